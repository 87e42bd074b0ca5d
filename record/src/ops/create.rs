//! Tensors from data and from nothing.
//!
//! Invariants:
//! - A number that operations are made of is held by value: equal ones are one node. A float that the program makes is a node of its own
//!   (`Graph::number`), so that derivatives by it are not those by equal numbers too; passes make a value of it.
//! - Larger constants share the caller's [`HostTensor`] where one is given, and are copied once from slices and arrays.
//! - Filled tensors are a scalar, repeated: they take no memory.

use tlc_ir::graph::{ConstData, NodeKind};
use tlc_ir::tensor::TensorError;
use tlc_ir::{DType, Element, HostTensor, IndexExpr, Scalar, TensorType};

use crate::compile::Input;
use crate::dim::{Dim, IntoShape};
use crate::graph::Graph;
use crate::graph::Tensor;
use crate::graph::scope::{Step, is_asked_for, op, record, refuse, refuse_expecting};
use crate::promotion::Operand;

/// Constants, filled tensors and ranges.
impl Graph {
    /// A constant from data: whatever an [`Input`] is made from. A [`HostTensor`] is shared, all else is copied. The dtype is
    /// the data's, and so is the shape; slices and vectors become vectors.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let matrix = g.constant([[1.0f32, 2.0], [3.0, 4.0]]);
    /// let mask = g.constant(vec![true, false]);
    /// let cut = g.constant(ndarray::array![[1i64, 2, 3]].slice(ndarray::s![.., ..;2]));
    /// assert_eq!((matrix.rank(), mask.rank()), (2, 1));
    /// assert_eq!(cut.eval()?.as_slice::<i64>()?, [1, 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn constant<'a>(&self, data: impl Into<Input<'a>>) -> Tensor {
        let body = || self.host(data.into().to_host());
        record(self, "constant", &[], &[], body, |p| p)
    }

    /// A constant from elements in C order.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.data(&[1i32, 2, 3, 4, 5, 6], &[2, 3]);
    /// assert_eq!(x.sum(1).eval()?.as_slice::<i64>()?, [6, 15]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A length that is not the product of the extents.
    #[track_caller]
    pub fn data<T: Element>(&self, elements: &[T], shape: &[usize]) -> Tensor {
        let body = || self.host(HostTensor::from_slice(shape, elements));
        record(self, "data", &[], &[], body, |p| p)
    }

    fn host(&self, data: Result<HostTensor, TensorError>) -> Step {
        match data {
            Ok(t) if t.shape().is_empty() => self.number(t.get(0)),
            Ok(t) => self.node(NodeKind::Data(ConstData(t)), &[]),
            Err(e) => refuse(e.to_string()),
        }
    }

    /// A constant of rank 0. One by value is the same node as every equal one.
    fn number(&self, value: Scalar) -> Step {
        match value.dtype().is_float() && is_asked_for() {
            true => self.node(NodeKind::Data(ConstData(HostTensor::scalar(value))), &[]),
            false => self.node(NodeKind::Const(value), &[]),
        }
    }

    /// A rank-0 constant.
    ///
    /// ```
    /// use tlc::{DType, Graph};
    ///
    /// let g = Graph::default();
    /// assert_eq!(g.scalar(2.5, DType::F64).eval()?.as_slice::<f64>()?, [2.5]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn scalar(&self, value: impl Into<Operand>, dtype: DType) -> Tensor {
        let value = value.into();
        record(self, "scalar", &[], &[], || self.filled_anew(value, &[], dtype), |p| p)
    }

    /// As [`Graph::filled`], for a program that asks for it.
    pub(crate) fn filled_anew(&self, value: Operand, shape: &[IndexExpr], dtype: DType) -> Step {
        let value = match value {
            Operand::Weak(w) => self.number(w.of(dtype)?)?,
            Operand::Scalar(s) => self.number(s.convert(dtype))?,
            tensor => return self.filled(tensor, shape, dtype),
        };
        value.expanded(shape)
    }

    pub(crate) fn filled(&self, value: Operand, shape: &[IndexExpr], dtype: DType) -> Step {
        let value = match value {
            Operand::Weak(w) => self.node(NodeKind::Const(w.of(dtype)?), &[])?,
            Operand::Scalar(s) => self.node(NodeKind::Const(s.convert(dtype)), &[])?,
            Operand::Tensor(t) if !t.graph().is(self) => return Err(crate::graph::scope::mixed([self, t.graph()])),
            Operand::Tensor(t) if t.rank() == 0 => t.to(dtype)?,
            Operand::Tensor(t) => {
                return refuse_expecting(format!("fill value {}", t.type_text()), "a rank-0 tensor or a scalar");
            }
        };
        value.expanded(shape)
    }

    /// Every element `value` (a scalar or a rank-0 tensor).
    ///
    /// ```
    /// use tlc::{DType, Graph};
    ///
    /// let g = Graph::default();
    /// assert_eq!(g.full([2, 1], 7, DType::I32).eval()?.as_slice::<i32>()?, [7, 7]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// An integer that the dtype cannot hold, a shape that overflows.
    #[track_caller]
    pub fn full(&self, shape: impl IntoShape, value: impl Into<Operand>, dtype: DType) -> Tensor {
        let (shape, value) = (shape.into_shape(), value.into());
        record(self, "full", &[], &[], || self.filled_anew(value, &shape, dtype), |p| p)
    }

    /// Every element 0 (false).
    ///
    /// ```
    /// use tlc::{DType, Graph};
    ///
    /// let g = Graph::default();
    /// assert_eq!(g.zeros(3, DType::U8).eval()?.as_slice::<u8>()?, [0, 0, 0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn zeros(&self, shape: impl IntoShape, dtype: DType) -> Tensor {
        let (shape, zero) = (shape.into_shape(), dtype.zero());
        record(
            self,
            "zeros",
            &[],
            &[],
            || self.filled_anew(zero.into(), &shape, dtype),
            |p| p,
        )
    }

    /// Every element 1 (true).
    ///
    /// ```
    /// use tlc::{DType, Graph};
    ///
    /// let g = Graph::default();
    /// assert_eq!(g.ones([2], DType::F32).eval()?.as_slice::<f32>()?, [1.0, 1.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn ones(&self, shape: impl IntoShape, dtype: DType) -> Tensor {
        let (shape, one) = (shape.into_shape(), dtype.one());
        record(
            self,
            "ones",
            &[],
            &[],
            || self.filled_anew(one.into(), &shape, dtype),
            |p| p,
        )
    }

    /// The index along `axis` at every element. Integers and floats.
    #[track_caller]
    pub fn iota(&self, shape: impl IntoShape, axis: i64, dtype: DType) -> Tensor {
        let shape = shape.into_shape();
        let body = || {
            let Some(a) = crate::dim::resolve_axis(axis, shape.len()) else {
                return refuse(format!("axis {axis} of a tensor of rank {}", shape.len()));
            };
            let ty = TensorType { dtype, shape };
            self.node(NodeKind::Iota { ty, axis: a as u8 }, &[])
        };
        record(self, "iota", &[], &[], body, |p| p)
    }

    /// `[rows, columns]` with ones on a diagonal: `offset` columns right of the main one.
    ///
    /// ```
    /// use tlc::{DType, Graph};
    ///
    /// let g = Graph::default();
    /// assert_eq!(g.eye(2, 2, 0, DType::F32).eval()?.as_slice::<f32>()?, [1.0, 0.0, 0.0, 1.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn eye(&self, rows: impl Into<Dim>, columns: impl Into<Dim>, offset: i64, dtype: DType) -> Tensor {
        let shape = [rows.into(), columns.into()].into_shape();
        let body = || self.band(&shape, offset, tlc_ir::ScalarOp::Eq)?.to(dtype);
        record(self, "eye", &[], &[], body, |p| p)
    }

    /// `[rows, columns]` of bool: true on and below a diagonal, `offset` columns right of the main one. The causal mask of
    /// attention is `tril_mask(s, t, 0)`.
    #[track_caller]
    pub fn tril_mask(&self, rows: impl Into<Dim>, columns: impl Into<Dim>, offset: i64) -> Tensor {
        let shape = [rows.into(), columns.into()].into_shape();
        let body = || self.band(&shape, offset, tlc_ir::ScalarOp::Le);
        record(self, "tril_mask", &[], &[], body, |p| p)
    }

    /// `[rows, columns]` of bool: true on and above a diagonal, `offset` columns right of the main one.
    #[track_caller]
    pub fn triu_mask(&self, rows: impl Into<Dim>, columns: impl Into<Dim>, offset: i64) -> Tensor {
        let shape = [rows.into(), columns.into()].into_shape();
        let body = || {
            self.band(&shape, offset - 1, tlc_ir::ScalarOp::Le)?
                .map(tlc_ir::ScalarOp::Not)
        };
        record(self, "triu_mask", &[], &[], body, |p| p)
    }

    /// `column op row + offset` over a matrix.
    pub(crate) fn band(&self, shape: &[IndexExpr], offset: i64, op: tlc_ir::ScalarOp) -> Step {
        let iota = |axis| {
            let ty = TensorType::new(DType::I64, shape.iter().cloned());
            self.node(NodeKind::Iota { ty, axis }, &[])
        };
        let row = match offset {
            0 => iota(0)?,
            k => iota(0)? + k,
        };
        iota(1)?.map2(op, &row)
    }

    /// `start, start + step, ..` up to but not including `stop`; element `i` is `start + i * step`, rounded once.
    ///
    /// ```
    /// use tlc::{DType, Graph};
    ///
    /// let g = Graph::default();
    /// assert_eq!(g.arange(0.0, 1.0, 0.25, DType::F32).eval()?.as_slice::<f32>()?, [0.0, 0.25, 0.5, 0.75]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A step of 0 or one that is not finite; a start or step that an integer dtype cannot hold.
    #[track_caller]
    pub fn arange(&self, start: f64, stop: f64, step: f64, dtype: DType) -> Tensor {
        let body = || {
            let count = ((stop - start) / step).ceil();
            if step == 0.0 || !count.is_finite() {
                return refuse_expecting(
                    format!("{start} to {stop} by {step}"),
                    "finite numbers and a step other than 0",
                );
            }
            let count = count.max(0.0);
            if count > (1u64 << 53) as f64 {
                return refuse(format!("{count} elements"));
            }
            let n = IndexExpr::Const(count as i64);
            self.ramp(&n, start, step, start + count * step, dtype)
        };
        record(self, "arange", &[], &[], body, |p| p)
    }

    /// `[0, 1, .., n - 1]`; `n` may be symbolic. Integers and floats.
    ///
    /// ```
    /// use tlc::{DType, Graph};
    ///
    /// let g = Graph::default();
    /// assert_eq!(g.range(3, DType::I64).eval()?.as_slice::<i64>()?, [0, 1, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn range(&self, n: impl Into<Dim>, dtype: DType) -> Tensor {
        let n = n.into().0;
        record(self, "range", &[], &[], || self.iota_1d(&n, dtype), |p| p)
    }

    /// `count` numbers evenly spaced from `start` to `stop`, both included; computed in f64 and rounded once.
    ///
    /// ```
    /// use tlc::{DType, Graph};
    ///
    /// let g = Graph::default();
    /// assert_eq!(g.linspace(0.0, 1.0, 3, DType::F64).eval()?.as_slice::<f64>()?, [0.0, 0.5, 1.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn linspace(&self, start: f64, stop: f64, count: usize, dtype: DType) -> Tensor {
        let body = || {
            let n = IndexExpr::from(count);
            if count < 2 {
                return self.filled(start.into(), &[n], dtype);
            }
            let step = (stop - start) / (count - 1) as f64;
            let line = self.ramp(&n, start, step, f64::INFINITY, DType::F64)?;
            let last = self.iota_1d(&n, DType::I64)?.eq((count - 1) as i64);
            last.select(stop, line).to(dtype)
        };
        record(self, "linspace", &[], &[], body, |p| p)
    }

    /// `start + i * step`; in the dtype itself where every value up to `end` is exact there, else in f64.
    fn ramp(&self, n: &IndexExpr, start: f64, step: f64, end: f64, dtype: DType) -> Step {
        let exact = match dtype {
            DType::F64 => f64::INFINITY,
            DType::F32 => (1u64 << 24) as f64,
            DType::F16 => (1u64 << 11) as f64,
            DType::BF16 => (1u64 << 8) as f64,
            _ => (1u64 << 53) as f64,
        };
        let whole = start.fract() == 0.0 && step.fract() == 0.0;
        let fits = [start, step, end].iter().all(|v| v.abs() <= exact);
        let compute = match dtype {
            DType::F64 => DType::F64,
            d if d.is_int() && whole && fits => DType::I64,
            d if d.is_float() && whole && fits => d,
            _ => DType::F64,
        };
        let iota = self.iota_1d(n, compute)?;
        let scalar = |v: f64| Operand::Scalar(Scalar::from_f64(compute, v));
        let scaled = if step == 1.0 { iota } else { iota * scalar(step) };
        let moved = if start == 0.0 { scaled } else { scaled + scalar(start) };
        moved.to(dtype)
    }
}

/// Tensors like another.
impl Tensor {
    /// Zeros of the same dtype and shape.
    #[track_caller]
    pub fn zeros_like(&self) -> Tensor {
        self.full_like(self.dtype().zero())
    }

    /// Ones of the same dtype and shape.
    #[track_caller]
    pub fn ones_like(&self) -> Tensor {
        self.full_like(self.dtype().one())
    }

    /// The same dtype and shape, every element `value`.
    #[track_caller]
    pub fn full_like(&self, value: impl Into<Operand>) -> Tensor {
        let value = value.into();
        op("full_like", &[self], || {
            self.graph().filled_anew(value, self.extents(), self.dtype())
        })
    }
}
