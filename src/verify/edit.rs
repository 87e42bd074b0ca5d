//! Changes of a case that may keep what is wrong with it: nodes cut off or bypassed, outputs dropped, sizes made smaller.
//!
//! A change that makes no valid graph gives `None`; nothing else is promised of the result, which the caller tests.

use rustc_hash::FxHashMap;
use tlc_ir::graph::{ConstData, Operands, Origin, Shape, SizeRole, TensorType, View};
use tlc_ir::index::{IndexExpr, IndexNode};
use tlc_ir::{Graph, HostTensor, NodeId, NodeKind, Scalar};

use super::Case;

/// What becomes of a node.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// An older node of its type.
    Same(NodeId),
    /// An input with this value.
    Input(HostTensor),
    /// This value everywhere.
    Splat(Scalar),
}

/// Extents of one number become another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resize {
    /// The extent, at least 2.
    pub from: i64,
    /// What it becomes.
    pub to: i64,
    /// Whether its multiples become multiples of the new one.
    pub multiples: bool,
}

/// A change of a case.
#[derive(Clone, Debug, Default)]
pub(super) struct Edit {
    /// What becomes of nodes; the others stay.
    pub changes: FxHashMap<NodeId, Change>,
    /// The outputs, if not as before.
    pub outputs: Option<Vec<(String, NodeId)>>,
    /// Values of symbols, by name, that become numbers.
    pub bound: Vec<(String, i64)>,
    /// Other extents.
    pub resize: Option<Resize>,
    /// Whether inputs that nothing reads go.
    pub prune: bool,
}

/// The leading part of a tensor that a smaller shape has.
fn cropped(tensor: &HostTensor, shape: &[usize]) -> Option<HostTensor> {
    if tensor.shape() == shape {
        return Some(tensor.clone());
    }
    if tensor.shape().len() != shape.len() || tensor.shape().iter().zip(shape).any(|(old, new)| new > old) {
        return None;
    }
    let mut out = HostTensor::zeros(tensor.dtype(), shape).ok()?;
    for i in 0..out.len() {
        let (mut rest, mut at, mut stride) = (i, 0, 1);
        for (&new, &old) in shape.iter().zip(tensor.shape()).rev() {
            at += rest % new * stride;
            rest /= new;
            stride *= old;
        }
        out.set(i, tensor.get(at));
    }
    Some(out)
}

/// The extents that are numbers, and where they are not, those of a tensor.
fn extents(shape: &Shape, tensor: &HostTensor) -> Option<Vec<usize>> {
    let known = shape.iter().zip(tensor.shape());
    known
        .map(|(d, &n)| d.as_const().map_or(Some(n), |d| usize::try_from(d).ok()))
        .collect()
}

impl Edit {
    fn size(&self, e: &IndexExpr) -> IndexExpr {
        let Some(Resize { from, to, multiples }) = self.resize else {
            return e.clone();
        };
        match e.as_const() {
            Some(n) if n == from => IndexExpr::Const(to),
            Some(n) if multiples && n > from && n % from == 0 => IndexExpr::Const(n / from * to),
            _ => e.clone(),
        }
    }

    /// The case with the change; `None` where no valid graph comes of it.
    pub fn apply(&self, case: &Case) -> Option<Case> {
        let graph = &case.graph;
        let mut live = vec![false; graph.len()];
        let outputs: Vec<(String, NodeId)> = match &self.outputs {
            Some(outputs) => outputs.clone(),
            None => graph.outputs().iter().map(|o| (o.name.clone(), o.node)).collect(),
        };
        outputs.iter().for_each(|(_, node)| live[node.index()] = true);
        for i in (0..graph.len()).rev() {
            let id = NodeId(i as u32);
            if live[i] {
                match self.changes.get(&id) {
                    Some(Change::Same(other)) => live[other.index()] = true,
                    Some(_) => {}
                    None => graph.node(id).operands.iter().for_each(|o| live[o.index()] = true),
                }
            }
        }
        let mut new = Graph::new(graph.name.clone());
        let value_of = |name: &str| self.bound.iter().find(|(n, _)| n == name).map(|(_, v)| *v);
        let atoms: Vec<IndexExpr> = graph
            .symbols()
            .iter()
            .map(|s| match value_of(&s.name) {
                Some(value) => IndexExpr::Const(value),
                None => new.add_symbol(&s.name, s.lo, s.hi).into(),
            })
            .collect();
        let bound = |e: &IndexExpr| {
            e.replace(&mut |n| match n {
                IndexNode::Sym(s) => atoms.get(s.0 as usize).cloned(),
                _ => None,
            })
        };
        let size = |e: &IndexExpr| self.size(&bound(e));
        let sizes = |s: &Shape| -> Shape { s.iter().map(size).collect() };
        let ty = |t: &TensorType| TensorType {
            dtype: t.dtype,
            shape: sizes(&t.shape),
        };
        let mut inputs: Vec<HostTensor> = Vec::new();
        let mut map: Vec<Option<NodeId>> = vec![None; graph.len()];
        for (id, node) in graph.nodes() {
            let is_input = matches!(node.kind, NodeKind::Input { .. });
            if !live[id.index()] && (!is_input || self.prune) {
                continue;
            }
            let made = match self.changes.get(&id) {
                Some(Change::Same(other)) => map[other.index()]?,
                Some(Change::Splat(value)) => {
                    let scalar = new.add(NodeKind::Const(*value), &[], Origin::Unknown).ok()?;
                    let shape = sizes(&node.ty.shape);
                    match shape.is_empty() {
                        true => scalar,
                        false => new
                            .add(NodeKind::View(View::Expand(shape)), &[scalar], node.origin.clone())
                            .ok()?,
                    }
                }
                Some(Change::Input(value)) => {
                    let ty = ty(&node.ty);
                    let value = cropped(value, &extents(&ty.shape, value)?)?;
                    inputs.push(value);
                    new.add_input(&fresh_name(graph, id), ty, node.origin.clone()).ok()?
                }
                None => match &node.kind {
                    NodeKind::Input {
                        name,
                        ty: declared,
                        index,
                    } => {
                        let (ty, value) = (ty(declared), &case.inputs[*index as usize]);
                        inputs.push(cropped(value, &extents(&ty.shape, value)?)?);
                        new.add_input(name, ty, node.origin.clone()).ok()?
                    }
                    kind => {
                        let operands: Option<Operands> = node.operands.iter().map(|o| map[o.index()]).collect();
                        let kind = resized(kind, &mut |role, e| match role {
                            SizeRole::Extent => size(e),
                            SizeRole::Distance => bound(e),
                        })?;
                        new.add(kind, &operands?, node.origin.clone()).ok()?
                    }
                },
            };
            map[id.index()] = Some(made);
        }
        for (name, node) in &outputs {
            new.add_output(name, map[node.index()]?);
        }
        let symbols = case.symbols.iter().filter(|(name, _)| new.find_symbol(name).is_some());
        let symbols = symbols.cloned().collect();
        Some(Case {
            graph: new,
            inputs,
            symbols,
        })
    }
}

/// A node's kind under other sizes; constants are cropped to them.
fn resized(kind: &NodeKind, size: &mut dyn FnMut(SizeRole, &IndexExpr) -> IndexExpr) -> Option<NodeKind> {
    let NodeKind::Data(data) = kind else {
        return Some(kind.map_sizes(size));
    };
    let shape: Shape = data.0.shape().iter().map(|&d| IndexExpr::Const(d as i64)).collect();
    let shape = shape.iter().map(|e| size(SizeRole::Extent, e)).collect();
    let part = cropped(&data.0, &extents(&shape, &data.0)?)?;
    Some(match part.shape() == data.0.shape() {
        true => kind.clone(),
        false => NodeKind::Data(ConstData(part)),
    })
}

/// A name for an input that stands for a node.
fn fresh_name(graph: &Graph, node: NodeId) -> String {
    let taken = |name: &str| {
        graph
            .inputs()
            .iter()
            .any(|&i| matches!(&graph.node(i).kind, NodeKind::Input { name: n, .. } if n == name))
    };
    let mut name = format!("v{}", node.0);
    while taken(&name) {
        name.push('_');
    }
    name
}

/// The part of a graph that these outputs need, with all its inputs.
pub(super) fn with_outputs(graph: &Graph, outputs: &[(String, NodeId)]) -> Option<Graph> {
    let mut new = Graph::new(graph.name.clone());
    for s in graph.symbols() {
        match &s.upper {
            Some(upper) => new.add_data_symbol(&s.name, upper.clone()),
            None => new.add_symbol(&s.name, s.lo, s.hi),
        };
    }
    let binders = graph.binders();
    let mut live = vec![false; graph.len()];
    outputs.iter().for_each(|(_, node)| live[node.index()] = true);
    for i in (0..graph.len()).rev() {
        if live[i] {
            graph.visit_needs(NodeId(i as u32), &binders, &mut |o| live[o.index()] = true);
        }
    }
    let mut map: Vec<Option<NodeId>> = vec![None; graph.len()];
    for (id, node) in graph.nodes() {
        let made = match &node.kind {
            NodeKind::Input { name, ty, .. } => new.add_input(name, ty.clone(), node.origin.clone()).ok()?,
            kind if live[id.index()] => {
                let operands: Option<Operands> = node.operands.iter().map(|o| map[o.index()]).collect();
                new.add(kind.clone(), &operands?, node.origin.clone()).ok()?
            }
            _ => continue,
        };
        map[id.index()] = Some(made);
    }
    for (name, node) in outputs {
        new.add_output(name, map[node.index()]?);
    }
    Some(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a loop and a call say of a symbol follows it when it becomes a number and others move up.
    #[test]
    fn a_bound_symbol_is_bound_in_loops_and_calls_too() {
        let text = "graph @g(%x: f32[n, m]) where n, m {
  %sort = call sort %x {axis=1, count=m, descending} : (f32[n, m], i64[n, m])
  %sorted = project %sort {result=0} : f32[n, m]
  %loop = loop %sorted {trip=m, carried=1, symbols=[n, m]} body @b(%i: i64[], %h: f32[p, q]) where p, q {
    %0 = neg %h : f32[p, q]
    return %0
  } : (f32[n, m])
  %last = project %loop {result=0} : f32[n, m]
  return %last
}
";
        let case = Case {
            graph: tlc_ir::text::parse_graph(text, &mut tlc_ir::text::no_data).unwrap(),
            inputs: vec![HostTensor::zeros(tlc_ir::DType::F32, &[2, 3]).unwrap()],
            symbols: Vec::new(),
        };
        let edit = Edit {
            bound: vec![("n".into(), 2)],
            ..Edit::default()
        };
        let made = edit.apply(&case).expect("a valid graph");
        assert!(tlc_ir::graph::verify::verify(&made.graph).is_empty());
        let last = made.graph.outputs()[0].node;
        assert_eq!(made.graph.type_text(made.graph.ty(last)), "f32[2, m]");
    }
}
