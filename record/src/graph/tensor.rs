//! A value of a recording.
//!
//! Invariants: a tensor is a handle (graph, node) with its type at hand; it holds no data. A poisoned tensor stands for the
//! result of a refused operation: it has no node, keeps a dtype, and has rank 0.

use tlc_ir::graph::{NodeId, NodeKind, ScatterOp, TensorType, View};
use tlc_ir::{DType, IndexExpr, Scalar, ScalarOp};

use crate::dim::{Axes, Dim, resolve_axis};
use crate::graph::Graph;
use crate::graph::scope::{self, Step, refuse_expecting};

/// A value that a [`Graph`] computes. Cloning is cheap.
#[derive(Clone)]
pub struct Tensor {
    graph: Graph,
    node: Option<NodeId>,
    ty: TensorType,
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.node {
            Some(id) => write!(f, "{id}: {}", self.type_text()),
            None => f.write_str("poisoned"),
        }
    }
}

impl Tensor {
    pub(crate) fn new(graph: Graph, node: NodeId, ty: TensorType) -> Tensor {
        Tensor {
            graph,
            node: Some(node),
            ty,
        }
    }

    pub(crate) fn poisoned(graph: &Graph, dtype: DType) -> Tensor {
        Tensor {
            graph: graph.clone(),
            node: None,
            ty: TensorType {
                dtype,
                shape: Default::default(),
            },
        }
    }

    /// The graph it was recorded in.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Its node; `None` if the operation that should have made it was refused.
    pub fn id(&self) -> Option<NodeId> {
        self.node
    }

    /// True if the operation that should have made it, or one before that, was refused.
    pub fn is_poisoned(&self) -> bool {
        self.node.is_none()
    }

    /// Element type and extents.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.ty.dtype
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.ty.rank()
    }

    /// Extents, outermost first.
    pub fn shape(&self) -> Vec<Dim> {
        self.ty.shape.iter().cloned().map(Dim).collect()
    }

    /// The extents, if all are numbers.
    pub fn const_shape(&self) -> Option<Vec<usize>> {
        self.ty.const_shape()
    }

    /// The extent of an axis (negative: from the end).
    ///
    /// ```
    /// use tlc::{DType, Graph};
    ///
    /// let g = Graph::default();
    /// let n = g.symbol("n", 1..=8);
    /// let x = g.input("x", DType::F32, (&n, 3));
    /// assert_eq!(x.dim(-1).as_const(), Some(3));
    /// assert_eq!(x.dim(0), n);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// An axis that does not exist; the extent is 0 then.
    #[track_caller]
    pub fn dim(&self, axis: i64) -> Dim {
        let body = || Ok(Dim(self.ty.shape[self.axis(axis)?].clone()));
        scope::record(&self.graph, "dim", &[self], &[], body, |_| Dim(IndexExpr::ZERO))
    }

    /// Number of elements.
    pub fn elements(&self) -> Dim {
        Dim(self.ty.elements())
    }

    /// The type, printed with the symbols of its graph.
    pub fn type_text(&self) -> String {
        match self.node {
            Some(_) => self.graph.type_text(&self.ty),
            None => "a poisoned tensor".to_string(),
        }
    }

    pub(crate) fn extents(&self) -> &[IndexExpr] {
        &self.ty.shape
    }

    /// The axis counted from 0, or a refusal.
    pub(crate) fn axis(&self, axis: i64) -> Step<usize> {
        resolve_axis(axis, self.rank()).map_or_else(|| self.no_axis(axis), Ok)
    }

    /// The axes counted from 0 in the order given, or a refusal.
    pub(crate) fn axes(&self, axes: &Axes) -> Step<Vec<usize>> {
        axes.resolve(self.rank()).or_else(|(axis, twice)| {
            if twice {
                refuse_expecting(format!("axis {axis} is given twice"), "distinct axes")
            } else {
                self.no_axis(axis)
            }
        })
    }

    fn no_axis<T>(&self, axis: i64) -> Step<T> {
        let rank = self.rank() as i64;
        refuse_expecting(
            format!("axis {axis} of a tensor of rank {rank}"),
            match rank {
                0 => "a tensor with axes".to_string(),
                _ => format!("an axis from {} to {}", -rank, rank - 1),
            },
        )
    }

    /// The value that every element has, if that is known.
    pub(crate) fn known_number(&self) -> Option<Scalar> {
        let mut id = self.id()?;
        self.graph.with_ir(|ir| {
            loop {
                let node = ir.node(id);
                match &node.kind {
                    NodeKind::Const(value) => return Some(*value),
                    NodeKind::Data(data) => return (data.0.len() == 1).then(|| data.0.get(0)),
                    NodeKind::View(view) if view.fill().is_none() => id = node.operands[0],
                    _ => return None,
                }
            }
        })
    }

    pub(crate) fn node(&self, kind: NodeKind) -> Step {
        self.graph.node(kind, &[self])
    }

    #[doc(hidden)]
    pub fn view(&self, view: View) -> Step {
        self.node(NodeKind::View(view))
    }

    pub(crate) fn map(&self, op: ScalarOp) -> Step {
        self.node(NodeKind::Map(op))
    }

    pub(crate) fn map2(&self, op: ScalarOp, other: &Tensor) -> Step {
        self.graph.node(NodeKind::Map(op), &[self, other])
    }

    /// The tensor in that dtype; itself if it has it.
    pub(crate) fn to(&self, dtype: DType) -> Step {
        if self.dtype() == dtype {
            Ok(self.clone())
        } else {
            self.node(NodeKind::Convert(dtype))
        }
    }

    /// The tensor repeated to `shape`; itself if it has it.
    pub(crate) fn expanded(&self, shape: &[IndexExpr]) -> Step {
        if self.extents() == shape {
            Ok(self.clone())
        } else {
            self.view(View::Expand(shape.into()))
        }
    }

    pub(crate) fn reshaped(&self, shape: &[IndexExpr]) -> Step {
        if self.extents() == shape {
            Ok(self.clone())
        } else {
            self.view(View::Reshape(shape.into()))
        }
    }

    pub(crate) fn permuted(&self, permutation: &[usize]) -> Step {
        if permutation.iter().copied().eq(0..self.rank()) {
            Ok(self.clone())
        } else {
            self.view(View::Permute(permutation.iter().map(|&a| a as u8).collect()))
        }
    }

    pub(crate) fn scattered(&self, updates: &Tensor, axes: &[usize], indices: &[&Tensor], op: ScatterOp) -> Step {
        let mut operands = vec![self, updates];
        operands.extend(indices);
        let axes = axes.iter().map(|&a| a as u8).collect();
        self.graph.node(NodeKind::Scatter { axes, op }, &operands)
    }

    pub(crate) fn gathered(&self, axes: &[usize], indices: &[&Tensor]) -> Step {
        let mut operands = vec![self];
        operands.extend(indices);
        let axes = axes.iter().map(|&a| a as u8).collect();
        self.graph.node(NodeKind::Gather { axes }, &operands)
    }
}
