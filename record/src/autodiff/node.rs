//! A node as its rules see it, backwards and forwards.

use tlc_ir::graph::{NodeKind, ScatterOp, TensorType};
use tlc_ir::{DType, IndexExpr};

use crate::graph::scope::Step;
use crate::graph::{Graph, Tensor};

/// A cotangent for each operand; none where it is zero or nobody asks for it.
pub(super) type Cotangents = Vec<Option<Tensor>>;

/// How a body is differentiated: from its outputs with cotangents to the derivatives by some of its tensors.
pub(super) type Differentiate = fn(&Graph, &[&Tensor], &[&Tensor], &[&Tensor]) -> Step<Vec<Tensor>>;

/// A node whose result has a cotangent.
pub(super) struct At<'a> {
    /// What it computes.
    pub kind: &'a NodeKind,
    /// What it computes it from.
    pub operands: &'a [Tensor],
    /// By operand: whether its cotangent is asked for.
    pub wanted: &'a [bool],
    /// What it has computed; rules use it again rather than compute it again.
    pub result: &'a Tensor,
    /// The cotangent of the result, of its type.
    pub cotangent: &'a Tensor,
}

impl At<'_> {
    /// The graph that is differentiated.
    pub fn graph(&self) -> &Graph {
        self.cotangent.graph()
    }

    /// The cotangents of a function that is constant wherever it has a derivative.
    pub fn zero(&self) -> Cotangents {
        vec![None; self.operands.len()]
    }

    /// The cotangents that are asked for, each by `f`, which is given the number of the operand. What `f` computes in a wider
    /// dtype than the operand's is rounded to that, once.
    pub fn each(&self, f: impl Fn(usize) -> Step) -> Step<Cotangents> {
        self.some(|k| f(k).map(Some))
    }

    /// As [`At::each`], of operands whose cotangent may be zero.
    pub fn some(&self, f: impl Fn(usize) -> Step<Option<Tensor>>) -> Step<Cotangents> {
        let cotangent = |(k, x): (usize, &Tensor)| match self.wanted[k] {
            true => f(k)?.map(|c| c.to(x.dtype())).transpose(),
            false => Ok(None),
        };
        self.operands.iter().enumerate().map(cotangent).collect()
    }
}

/// A node some of whose operands have tangents.
pub(super) struct Linearized<'a> {
    /// What it computes.
    pub kind: &'a NodeKind,
    /// What it computes it from.
    pub operands: &'a [Tensor],
    /// By operand: its tangent, of its type; none where it is zero.
    pub tangents: &'a [Option<Tensor>],
    /// What it has computed.
    pub result: &'a Tensor,
}

impl Linearized<'_> {
    /// The graph that is differentiated.
    pub fn graph(&self) -> &Graph {
        self.result.graph()
    }

    /// The tangent of the result of a linear function of the first operand alone.
    pub fn first(&self, f: impl FnOnce(&Tensor) -> Step) -> Step<Option<Tensor>> {
        self.tangents.first().and_then(Option::as_ref).map(f).transpose()
    }

    /// The tangent of an operand, zeros if need be.
    pub fn tangent(&self, k: usize) -> Step {
        match &self.tangents[k] {
            Some(t) => Ok(t.clone()),
            None => zeros(self.graph(), self.operands[k].extents(), self.operands[k].dtype()),
        }
    }
}

/// The sum of parts, carried in the accumulator of `dtype`, in which the result is; none of none.
pub(super) fn sum(parts: &[Tensor], dtype: DType) -> Step<Option<Tensor>> {
    if let [only] = parts {
        return only.to(dtype).map(Some);
    }
    let mut total: Option<Tensor> = None;
    for d in parts {
        let d = d.to(dtype.accumulator())?;
        total = Some(match total {
            Some(total) => total + d,
            None => d,
        });
    }
    total.map(|t| t.to(dtype)).transpose()
}

/// `t`, whose axes are those of `shape` but `axes`, repeated along these.
pub(super) fn repeated(t: &Tensor, axes: &[usize], shape: &[IndexExpr]) -> Step {
    t.with_ones(axes)?.expanded(shape)
}

/// Zeros of that type.
pub(super) fn zeros(graph: &Graph, shape: &[IndexExpr], dtype: DType) -> Step {
    graph.filled(dtype.zero().into(), shape, dtype)
}

/// The adjoint of a gather: the sum of updates at their places in a tensor like `x`, carried in the accumulator of its dtype,
/// in which the result is.
pub(super) fn summed_at(x: &Tensor, updates: &Tensor, axes: &[usize], indices: &[&Tensor]) -> Step {
    let wide = x.dtype().accumulator();
    zeros(x.graph(), x.extents(), wide)?.scattered(&updates.to(wide)?, axes, indices, ScatterOp::Add)
}

/// The position along an axis of each element of a tensor like `x`: i64.
pub(super) fn positions(x: &Tensor, axis: usize) -> Step {
    let ty = TensorType::new(DType::I64, x.extents().iter().cloned());
    x.graph().node(NodeKind::Iota { ty, axis: axis as u8 }, &[])
}
