//! A named value of a model: a tensor of the graph, sizes that need not be data, or a sequence of such.

use std::rc::Rc;

use tlc_ir::{DType, HostTensor};

use super::packed::Elements;
use super::refusal::{OperatorRefusal, Outcome, unsupported};
use tlc_formats::ErrorKind;
use tlc_record::Graph;
use tlc_record::Tensor;
use tlc_record::dim::Dim;

/// Integer tensors with at most so many elements are carried as sizes, constants if their rank is 0 or 1.
pub(super) const MAX_SIZES: usize = 128;

/// A value of a model.
#[derive(Clone, Debug)]
pub(super) enum Value {
    /// A tensor, with its elements if it is a constant.
    Tensor(Tensor, Option<Elements>),
    /// A few integers, as index expressions.
    Sizes(Rc<Sizes>),
    /// A few floats, as quotients of index expressions.
    Ratio(Rc<Ratio>),
    /// A sequence.
    Sequence(Rc<Sequence>),
}

/// Values that an index picks one of. The graph has no sequences: nodes put them together and take them apart while the model is
/// imported.
#[derive(Clone, Debug)]
pub(super) enum Sequence {
    /// Of a known length: tensors or sizes, all of that element type.
    Known(Vec<Value>, DType),
    /// As many tensors of one shape as a size says: the parts of a tensor along its first axis.
    Stacked(Tensor),
}

/// Integers known as expressions over the graph's symbols.
#[derive(Clone, Debug)]
pub(super) struct Sizes {
    /// The elements, in order.
    pub(super) dims: Vec<Dim>,
    pub(super) shape: Vec<usize>,
    pub(super) dtype: DType,
}

/// Sizes divided by a number above 1, in floats.
#[derive(Clone, Debug)]
pub(super) struct Ratio {
    /// The numerators, of a type of floats.
    pub(super) sizes: Sizes,
    pub(super) over: i64,
    /// What floats compute, if it is near the quotient and not that.
    pub(super) product: Option<Product>,
}

/// Sizes times a factor.
#[derive(Clone, Debug)]
pub(super) struct Product {
    pub(super) dims: Vec<Dim>,
    pub(super) factor: f64,
    /// The largest size of which the quotient says how the product is rounded.
    pub(super) most: i64,
    /// Whether it is rounded up and down to the same integers as the quotient, and not only near them.
    pub(super) rounds_alike: bool,
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
                return Value::Sizes(Rc::new(Sizes {
                    dims,
                    shape: data.shape().to_vec(),
                    dtype: data.dtype(),
                }));
            }
        }
        Value::Tensor(graph.constant(&data), Some(data.into()))
    }

    /// The value as a tensor of the graph.
    pub(super) fn tensor(&self, graph: &Graph) -> Outcome<Tensor> {
        match self {
            Value::Tensor(t, _) => Ok(t.clone()),
            Value::Sizes(s) => s.tensor(graph),
            Value::Ratio(r) => match &r.product {
                None => Ok(r.sizes.tensor(graph)? / graph.constant(r.over).cast(r.sizes.dtype)),
                Some(p) => {
                    let whole = Sizes {
                        dims: p.dims.clone(),
                        ..r.sizes.clone()
                    };
                    Ok(whole.tensor(graph)? * graph.constant(p.factor).cast(r.sizes.dtype))
                }
            },
            Value::Sequence(_) => unsupported("a sequence; expected a tensor"),
        }
    }

    /// Element type; of a sequence, that of its tensors.
    pub(super) fn dtype(&self) -> DType {
        match self {
            Value::Tensor(t, _) => t.dtype(),
            Value::Sizes(s) => s.dtype,
            Value::Ratio(r) => r.sizes.dtype,
            Value::Sequence(s) => match &**s {
                Sequence::Known(_, dtype) => *dtype,
                Sequence::Stacked(parts) => parts.dtype(),
            },
        }
    }

    /// Extents; a sequence has none.
    pub(super) fn shape(&self) -> Vec<Dim> {
        match self {
            Value::Tensor(t, _) => t.shape(),
            Value::Sizes(s) => s.shape.iter().map(Dim::from).collect(),
            Value::Ratio(r) => r.sizes.shape.iter().map(Dim::from).collect(),
            Value::Sequence(_) => vec![],
        }
    }

    /// The sequence, if it is one.
    pub(super) fn sequence(&self) -> Option<&Sequence> {
        match self {
            Value::Sequence(s) => Some(s),
            Value::Tensor(..) | Value::Sizes(_) | Value::Ratio(_) => None,
        }
    }
}

/// The furthest below 0 that a size is taken to data from.
const LOWEST: i64 = -(1 << 40);
/// The furthest above 0 that one is counted down from.
const HIGHEST: i64 = 1 << 40;

/// The value of an expression as data, negative or not.
pub(super) fn size_value(graph: &Graph, d: &Dim, dtype: DType) -> Outcome<Tensor> {
    let refused = |(message, _)| OperatorRefusal {
        kind: ErrorKind::Invalid,
        message,
    };
    let range = graph.with_ir(|ir| d.expr().interval(ir));
    match (range.lo, range.hi) {
        (lowest @ LOWEST..0, _) => {
            let above = graph.dim_value(&(d - lowest), DType::I64).map_err(refused)?;
            Ok((above + lowest).cast(dtype))
        }
        // What nothing bounds from below is counted down from above.
        (..LOWEST, highest @ LOWEST..HIGHEST) => {
            let below = graph
                .dim_value(&(Dim::from(highest) - d), DType::I64)
                .map_err(refused)?;
            Ok((-below + highest).cast(dtype))
        }
        _ => graph.dim_value(d, dtype).map_err(refused),
    }
}

impl Sizes {
    /// The numbers, if none depends on a symbol.
    pub(super) fn numbers(&self) -> Option<Vec<i64>> {
        self.dims.iter().map(Dim::as_const).collect()
    }

    fn tensor(&self, graph: &Graph) -> Outcome<Tensor> {
        let refused = |message: String| OperatorRefusal {
            kind: ErrorKind::Invalid,
            message,
        };
        if let Some(numbers) = self.numbers() {
            let data = HostTensor::from_slice(&self.shape, &numbers).map_err(|e| refused(e.to_string()))?;
            return Ok(graph.constant(data).cast(self.dtype));
        }
        let one = |d: &Dim| match self.dtype {
            DType::Bool => Ok(size_value(graph, d, DType::I64)?.ne(0)),
            dtype => size_value(graph, d, dtype),
        };
        let all = self.dims.iter().map(one).collect::<Outcome<Vec<Tensor>>>()?;
        Ok(match self.shape[..] {
            [] => all[0].clone(),
            [_] => tlc_record::stack(&all.iter().collect::<Vec<_>>(), 0),
            _ => tlc_record::stack(&all.iter().collect::<Vec<_>>(), 0).reshape(&self.shape),
        })
    }
}
