//! A graph under given sizes.

use std::sync::Arc;

use super::{Graph, GraphError, Loop, NodeId, NodeKind, Operands, Origin, Shape, TensorType, View};
use crate::index::{IndexExpr, IndexNode};

/// The extents that an operand expands to: its own where it was assumed equal to one that turned out to be 1.
fn wider(mut to: Shape, operand: &Shape) -> Shape {
    for (t, d) in to.iter_mut().rev().zip(operand.iter().rev()) {
        if *t == IndexExpr::ONE {
            *t = d.clone();
        }
    }
    to
}

impl Graph {
    /// The graph with symbols replaced by sizes: `values[s]` is that of symbol `s`, or `None` where it stays one (a symbol
    /// that `values` does not reach stays as well). Types, guards and views are inferred anew. Extents that were assumed
    /// equal and are not broadcast in elementwise operations where one of them is 1.
    ///
    /// # Errors
    /// What the sizes contradict.
    pub fn specialize(&self, values: &[Option<i64>]) -> Result<Graph, GraphError> {
        let mut new = Graph::new(self.name.clone());
        let mut atoms: Vec<IndexExpr> = Vec::with_capacity(self.symbols().len());
        for (k, s) in self.symbols().iter().enumerate() {
            atoms.push(match values.get(k).copied().flatten() {
                Some(v) => IndexExpr::Const(v),
                None => match &s.upper {
                    Some(upper) => {
                        let upper = upper.replace(&mut |n| match n {
                            IndexNode::Sym(s) => atoms.get(s.0 as usize).cloned(),
                            _ => None,
                        });
                        new.add_data_symbol(&s.name, upper).into()
                    }
                    None => new.add_symbol(&s.name, s.lo, s.hi).into(),
                },
            });
        }
        let dim = |e: &IndexExpr| {
            e.replace(&mut |n| match n {
                IndexNode::Sym(s) => atoms.get(s.0 as usize).cloned(),
                _ => None,
            })
        };
        let ty = |t: &TensorType| TensorType {
            dtype: t.dtype,
            shape: t.shape.iter().map(&dim).collect(),
        };
        let mut map: Vec<NodeId> = Vec::with_capacity(self.len());
        for (_, node) in self.nodes() {
            let mut operands: Operands = node.operands.iter().map(|o| map[o.index()]).collect();
            if matches!(node.kind, NodeKind::Map(_)) {
                new.broadcast(&mut operands, &node.origin)?;
            }
            let kind = match &node.kind {
                NodeKind::Input { name, ty: declared, .. } => {
                    map.push(new.add_input(name, ty(declared), node.origin.clone())?);
                    continue;
                }
                NodeKind::View(View::Expand(to)) => {
                    let to: Shape = to.iter().map(&dim).collect();
                    NodeKind::View(View::Expand(wider(to, &new.ty(operands[0]).shape)))
                }
                kind => kind.with_extents(&dim),
            };
            map.push(new.add(kind, &operands, node.origin.clone())?);
        }
        for o in self.outputs() {
            new.add_output(&o.name, map[o.node.index()]);
        }
        Ok(new)
    }
    /// Expands operands of one rank whose extent is 1 where another's is not.
    fn broadcast(&mut self, operands: &mut Operands, origin: &Origin) -> Result<(), GraphError> {
        let Some((&first, rest)) = operands.split_first() else {
            return Ok(());
        };
        let mut wanted = self.ty(first).shape.clone();
        for &o in rest {
            let shape = &self.ty(o).shape;
            if shape.len() != wanted.len() {
                return Ok(());
            }
            for (w, d) in wanted.iter_mut().zip(shape) {
                if *w == IndexExpr::ONE {
                    *w = d.clone();
                }
            }
        }
        for o in operands.iter_mut() {
            let shape = &self.ty(*o).shape;
            let repeats = |(d, w): (&IndexExpr, &IndexExpr)| *d == IndexExpr::ONE && *w != IndexExpr::ONE;
            if shape.iter().zip(&wanted).any(repeats) {
                *o = self.add(NodeKind::View(View::Expand(wanted.clone())), &[*o], origin.clone())?;
            }
        }
        Ok(())
    }
}

impl NodeKind {
    /// The kind with other extents: `dim` answers the new one of each. A loop's body stays, with other values of its symbols.
    pub fn with_extents(&self, dim: &dyn Fn(&IndexExpr) -> IndexExpr) -> NodeKind {
        let shape = |s: &Shape| -> Shape { s.iter().map(dim).collect() };
        let ty = |t: &TensorType| TensorType {
            dtype: t.dtype,
            shape: shape(&t.shape),
        };
        match self {
            NodeKind::Input { index, name, ty: made } => NodeKind::Input {
                index: *index,
                name: name.clone(),
                ty: ty(made),
            },
            NodeKind::Iota { ty: made, axis } => NodeKind::Iota {
                ty: ty(made),
                axis: *axis,
            },
            NodeKind::Random { shape: made, stream } => NodeKind::Random {
                shape: shape(made),
                stream: *stream,
            },
            NodeKind::View(view) => NodeKind::View(match view {
                View::Reshape(to) => View::Reshape(shape(to)),
                View::Expand(to) => View::Expand(shape(to)),
                View::Permute(p) => View::Permute(p.clone()),
                View::Pad { lo, hi, value } => View::Pad {
                    lo: shape(lo),
                    hi: shape(hi),
                    value: *value,
                },
                View::Slice { start, step, size } => View::Slice {
                    start: shape(start),
                    step: step.clone(),
                    size: shape(size),
                },
                View::Window {
                    axis,
                    size,
                    stride,
                    dilation,
                } => View::Window {
                    axis: *axis,
                    size: dim(size),
                    stride: *stride,
                    dilation: *dilation,
                },
            }),
            NodeKind::Loop(l) => NodeKind::Loop(Arc::new(Loop {
                symbols: l.symbols.iter().map(dim).collect(),
                trip: l.trip.as_ref().map(dim),
                ..(**l).clone()
            })),
            NodeKind::Call(function) => NodeKind::Call(function.with_extents(&mut |e| dim(e))),
            kind => kind.clone(),
        }
    }
}
