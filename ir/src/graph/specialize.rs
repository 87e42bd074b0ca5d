//! A graph under given sizes.

use super::{Graph, GraphError, NodeId, NodeKind, Operands, Origin, Shape, TensorType, View};
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
                kind => kind.map_sizes(&mut |_, e| dim(e)),
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
