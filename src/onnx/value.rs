//! A named value of a model: a tensor of the graph, or sizes that need not be data.

use std::rc::Rc;

use tlc_ir::{DType, HostTensor};

use super::packed::Elements;
use super::refusal::{Outcome, Refusal};
use crate::dim::Dim;
use crate::graph::Graph;
use crate::tensor::Tensor;
use tlc_formats::ErrorKind;

/// Integer tensors of rank 0 or 1 with at most so many elements are carried as sizes.
pub(super) const MAX_SIZES: usize = 128;

/// A value of a model.
#[derive(Clone, Debug)]
pub(super) enum Value {
    /// A tensor, with its elements if it is a constant.
    Tensor(Tensor, Option<Elements>),
    /// Integers of rank 0 or 1, as index expressions.
    Sizes(Rc<Sizes>),
}

/// Integers known as expressions over the graph's symbols.
#[derive(Clone, Debug)]
pub(super) struct Sizes {
    pub(super) dims: Vec<Dim>,
    pub(super) scalar: bool,
    pub(super) dtype: DType,
}

impl From<Tensor> for Value {
    fn from(tensor: Tensor) -> Value {
        Value::Tensor(tensor, None)
    }
}

impl Value {
    /// A constant.
    pub(super) fn constant(graph: &Graph, elements: impl Into<Elements>) -> Value {
        let data = match elements.into() {
            Elements::Whole(data) => data,
            packed => return Value::Tensor(packed.tensor(graph), Some(packed)),
        };
        let steers = matches!(data.dtype(), DType::I64 | DType::I32) && data.shape().len() <= 1;
        if steers && data.len() <= MAX_SIZES {
            let dims: Vec<i64> = (0..data.len()).map(|i| data.get(i).as_i64()).collect();
            // Larger numbers are data: index arithmetic on them could overflow.
            if dims.iter().all(|d| d.unsigned_abs() < 1 << 40) {
                let dims = dims.into_iter().map(Dim::from).collect();
                return Value::sizes(dims, data.shape().is_empty(), data.dtype());
            }
        }
        Value::Tensor(graph.constant(&data), Some(data.into()))
    }

    /// Integers of rank 0 or 1.
    pub(super) fn sizes(dims: Vec<Dim>, scalar: bool, dtype: DType) -> Value {
        Value::Sizes(Rc::new(Sizes { dims, scalar, dtype }))
    }

    /// The value as a tensor of the graph.
    pub(super) fn tensor(&self, graph: &Graph) -> Outcome<Tensor> {
        match self {
            Value::Tensor(t, _) => Ok(t.clone()),
            Value::Sizes(s) => s.tensor(graph),
        }
    }

    /// Element type.
    pub(super) fn dtype(&self) -> DType {
        match self {
            Value::Tensor(t, _) => t.dtype(),
            Value::Sizes(s) => s.dtype,
        }
    }

    /// Extents.
    pub(super) fn shape(&self) -> Vec<Dim> {
        match self {
            Value::Tensor(t, _) => t.shape(),
            Value::Sizes(s) if s.scalar => vec![],
            Value::Sizes(s) => vec![s.dims.len().into()],
        }
    }
}

impl Sizes {
    /// The numbers, if none depends on a symbol.
    pub(super) fn numbers(&self) -> Option<Vec<i64>> {
        self.dims.iter().map(Dim::as_const).collect()
    }

    fn tensor(&self, graph: &Graph) -> Outcome<Tensor> {
        let refused = |message: String| Refusal {
            kind: ErrorKind::Invalid,
            message,
        };
        if let Some(numbers) = self.numbers() {
            let shape = [numbers.len()];
            let shape = if self.scalar { &[][..] } else { &shape[..] };
            let data = HostTensor::from_slice(shape, &numbers).map_err(|e| refused(e.to_string()))?;
            return Ok(graph.constant(data).cast(self.dtype));
        }
        let one = |d: &Dim| graph.dim_value(d, self.dtype).map_err(|(problem, _)| refused(problem));
        let all = self.dims.iter().map(one).collect::<Outcome<Vec<Tensor>>>()?;
        Ok(match self.scalar {
            true => all[0].clone(),
            false => crate::stack(&all.iter().collect::<Vec<_>>(), 0),
        })
    }
}
