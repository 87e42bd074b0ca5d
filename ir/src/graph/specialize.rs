//! A graph under given sizes.
//!
//! Two extents that could be equal are assumed to be when they meet, and the result has the first one's name. Where the first
//! turns out to be 1 and the other not, the result is the other's: it is *wider* than its name says. A size elsewhere in
//! the graph that has this name may mean the operand (1) or the result (the other), and the graph does not say which:
//! `x.len()` and `(&x + &y).len()` are recorded alike. So such a graph is refused, unless both readings give the same result
//! because the extent only repeats what is broadcast in an elementwise operation behind it.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::control::mentions;
use super::region::type_outside;
use super::{Body, Graph, GraphError, Loop, NodeId, NodeKind, Operands, Origin, Shape, TensorType, View};
use crate::index::{IndexExpr, IndexNode, SymId};

/// The extents that an operand expands to: its own where it was assumed equal to one that turned out to be 1.
fn wider(mut to: Shape, operand: &Shape) -> Shape {
    for (t, d) in to.iter_mut().rev().zip(operand.iter().rev()) {
        if *t == IndexExpr::ONE {
            *t = d.clone();
        }
    }
    to
}

/// Finds sizes that two readings of a graph disagree about.
struct Readings {
    /// The symbols that extents are named by which are wider in the specialized graph.
    wider: Vec<bool>,
    /// For each node of the graph as recorded, the axes of extent 1 that would be longer if the size meant what is wider.
    open: Vec<Vec<bool>>,
}

impl Readings {
    /// `map` says which node of `new` each of `old` became, `named` its type as the names of sizes have it.
    fn check(old: &Graph, new: &Graph, map: &[NodeId], named: &[TensorType]) -> Result<(), GraphError> {
        let mut wider = vec![false; old.symbols().len()];
        for ((id, _), (now, named)) in old.nodes().zip(map.iter().zip(named)) {
            let shapes = named.shape.iter().zip(&new.ty(*now).shape);
            for ((named, now), recorded) in shapes.zip(&old.ty(id).shape) {
                if named != now {
                    recorded.visit_atoms(&mut |a| {
                        if let IndexNode::Sym(SymId(s)) = a {
                            wider[*s as usize] = true;
                        }
                    });
                }
            }
        }
        if !wider.contains(&true) {
            return Ok(());
        }
        let mut readings = Readings { wider, open: vec![] };
        for (id, node) in old.nodes() {
            let open = readings
                .of(old, new, map, id)
                .ok_or_else(|| readings.refusal(old, id))?;
            debug_assert!(
                open.is_empty() || open.len() == new.ty(map[id.index()]).shape.len(),
                "{}",
                node.kind.name()
            );
            readings.open.push(open);
        }
        let undecided = |id: NodeId| readings.open[id.index()].contains(&true);
        match old.outputs().iter().find(|o| undecided(o.node)) {
            Some(o) => Err(readings.refusal(old, o.node)),
            None => Ok(()),
        }
    }

    /// The open axes of a node's result; none where readings differ in more than repetition.
    fn of(&self, old: &Graph, new: &Graph, map: &[NodeId], id: NodeId) -> Option<Vec<bool>> {
        let node = old.node(id);
        let shape = &new.ty(map[id.index()]).shape;
        let open = |o: &NodeId| &self.open[o.index()];
        let any_open = node.operands.iter().any(|o| open(o).contains(&true));
        let mut mentioned = false;
        node.kind.visit_sizes(&mut |e| mentioned |= mentions(e, &self.wider));
        match &node.kind {
            // What the call says.
            NodeKind::Input { .. } => Some(vec![]),
            NodeKind::Map(_) | NodeKind::Convert(_) if any_open => Some(
                (0..shape.len())
                    .map(|k| shape[k] == IndexExpr::ONE && node.operands.iter().any(|o| open(o).get(k) == Some(&true)))
                    .collect(),
            ),
            NodeKind::View(View::Expand(to)) if !any_open => {
                // An extent behind which the operand's own stands repeats nothing under either reading.
                let own = &new.ty(map[node.operands[0].index()]).shape;
                let own = |k: usize| (k + own.len()).checked_sub(to.len()).map(|k| &own[k]);
                let axes = to.iter().zip(shape).enumerate().map(|(k, (to, now))| {
                    let settled = own(k) == Some(now) && *now != IndexExpr::ONE;
                    match mentions(to, &self.wider) && !settled {
                        true => (*now == IndexExpr::ONE).then_some(true),
                        false => Some(false),
                    }
                });
                axes.collect()
            }
            // As many elements as the operand has, which is settled.
            NodeKind::View(View::Reshape(_))
                if mentioned && !any_open && !self.is_wider(old, new, map, node.operands[0]) =>
            {
                Some(vec![])
            }
            _ => (!any_open && !mentioned).then(Vec::new),
        }
    }

    /// Whether a value has another shape than its names say.
    fn is_wider(&self, old: &Graph, new: &Graph, map: &[NodeId], id: NodeId) -> bool {
        let shapes = old.ty(id).shape.iter().zip(&new.ty(map[id.index()]).shape);
        shapes
            .clone()
            .any(|(named, now)| mentions(named, &self.wider) && *now != IndexExpr::ONE)
    }

    fn refusal(&self, old: &Graph, id: NodeId) -> GraphError {
        let node = old.node(id);
        let names = old.symbols().iter().zip(&self.wider).filter(|(_, wider)| **wider);
        let names: Vec<&str> = names.map(|(s, _)| s.name.as_str()).collect();
        GraphError {
            op: node.kind.name().to_string(),
            operands: vec![],
            problem: format!(
                "a size by {}, which is 1 beside a longer axis that it was assumed equal to",
                names.join(", ")
            ),
            expected: Some("equal extents".into()),
            origin: node.origin.clone(),
        }
    }
}

impl Graph {
    /// The graph with symbols replaced by sizes: `values[s]` is that of symbol `s`, or `None` where it stays one (a symbol
    /// that `values` does not reach stays as well). Types, guards and views are inferred anew. Extents that were assumed
    /// equal and are not broadcast in elementwise operations where one of them is 1.
    ///
    /// # Errors
    /// What the sizes contradict, and sizes that mean two things because of what was broadcast.
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
        let named: Vec<TensorType> = self.nodes().map(|(id, _)| ty(self.ty(id))).collect();
        Readings::check(self, &new, &map, &named)?;
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

/// Whether a symbol of a loop's body stands for a number, in the graph or in a body.
fn has_known_sizes(graph: &Graph) -> bool {
    graph.nodes().any(|(_, node)| match &node.kind {
        NodeKind::Loop(l) => l.symbols.iter().any(|s| s.as_const().is_some()) || has_known_sizes(&l.body.0),
        _ => false,
    })
}

/// Bodies with numbers for sizes, by the address of what they were, which the graph keeps alive, and by the numbers. None where the body stays as it is.
type Settled = FxHashMap<(usize, Vec<Option<i64>>), Option<Body>>;

impl Loop {
    /// The loop with numbers in its body for the symbols that stand for them; only the others are its symbols then.
    fn settled(&self, known: &mut Settled) -> Option<Loop> {
        let values: Vec<Option<i64>> = self.symbols.iter().map(IndexExpr::as_const).collect();
        let others = self.symbols.iter().filter(|s| s.as_const().is_none()).cloned();
        let symbols: Vec<IndexExpr> = others.collect();
        let key = (Arc::as_ptr(&self.body.0) as usize, values);
        let body = match known.get(&key) {
            Some(body) => body.clone(),
            None => {
                let body = self.settled_body(&key.1, &symbols).map(|body| Body(Arc::new(body)));
                known.insert(key, body.clone());
                body
            }
        };
        let body = body?;
        Some(Loop {
            body,
            symbols,
            ..self.clone()
        })
    }

    /// Its body under those values. None if it has no sizes to put in, or would be of other types: where something is broadcast in it that is one
    /// long.
    fn settled_body(&self, values: &[Option<i64>], symbols: &[IndexExpr]) -> Option<Graph> {
        let old = &*self.body.0;
        let mut new = match symbols.len() == values.len() {
            true => old.with_settled_bodies().ok()??,
            false => {
                let new = old.specialize(values).ok()?;
                new.with_settled_bodies().ok()?.unwrap_or(new)
            }
        };
        let results = |of: &Graph| of.outputs().iter().map(|o| o.node).collect::<Vec<_>>();
        let all = |of: &Graph| of.inputs().iter().copied().chain(results(of)).collect::<Vec<_>>();
        let mut both = all(old).into_iter().zip(all(&new));
        let same = both.all(|(a, b)| self.outer_type(old.ty(a)) == type_outside(symbols, new.ty(b)));
        if old.is_derived() {
            new.set_derived();
        }
        same.then_some(new)
    }
}

impl Graph {
    /// The graph with numbers in the bodies of its loops, at any depth, for the symbols that stand for numbers there; `None` if there are none. It
    /// computes the same. [`Graph::specialize`] leaves such symbols behind, and so does a recording in which a body does not mention a size.
    ///
    /// # Errors
    /// A node that does not fit: a graph that was never verified.
    pub fn with_settled_bodies(&self) -> Result<Option<Graph>, GraphError> {
        if !has_known_sizes(self) {
            return Ok(None);
        }
        let mut graph = Graph::new(self.name.clone());
        graph.adopt_symbols(self);
        graph.set_derived();
        let (mut known, mut changes) = (Settled::default(), false);
        let mut map: Vec<Option<NodeId>> = Vec::with_capacity(self.len());
        for (id, node) in self.nodes() {
            let origin = match self.is_derived() {
                true => node.origin.clone(),
                false => node.origin.clone().named(|| self.name_of_value(id)),
            };
            let operands: Operands = node.operands.iter().filter_map(|o| map[o.index()]).collect();
            let made = match &node.kind {
                NodeKind::Input { .. } => graph.adopt_input(self, id),
                NodeKind::Loop(l) => {
                    let new = l.settled(&mut known);
                    changes |= new.is_some();
                    let new = new.map_or_else(|| Arc::clone(l), Arc::new);
                    graph.add(NodeKind::Loop(new), &operands, origin)?
                }
                kind => graph.add(kind.clone(), &operands, origin)?,
            };
            map.push(Some(made));
        }
        for o in self.outputs() {
            if let Some(node) = map[o.node.index()] {
                graph.add_output(&o.name, node);
            }
        }
        graph.adopt_guards(self, &map);
        graph.settle();
        Ok(changes.then_some(graph))
    }
}
