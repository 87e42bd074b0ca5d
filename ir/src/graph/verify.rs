//! The graph verifier: reports every error, and trusts nothing that the builder checked.

use rustc_hash::FxHashSet;

use super::control::MAX_LOOP_DEPTH;
use super::{Graph, NodeId, NodeKind, TensorType, View, infer};
use crate::index::{IndexExpr, IndexNode};

/// One finding.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}{problem}", .node.map_or(String::new(), |n| format!("{n}: ")))]
pub struct VerifyError {
    /// The node concerned, if one is.
    pub node: Option<NodeId>,
    /// What is wrong.
    pub problem: String,
}

/// Every violation of the graph language's rules; empty means valid.
pub fn verify(graph: &Graph) -> Vec<VerifyError> {
    verify_nested(graph, 0)
}

fn verify_nested(graph: &Graph, depth: usize) -> Vec<VerifyError> {
    let mut errors = Vec::new();
    let mut report = |node: Option<NodeId>, problem: String| errors.push(VerifyError { node, problem });
    let mut names = FxHashSet::default();
    for s in graph.symbols() {
        if s.lo < 0 || s.lo > s.hi {
            report(
                None,
                format!("symbol {}: range {}..={} is empty or negative", s.name, s.lo, s.hi),
            );
        }
        if !names.insert(s.name.as_str()) {
            report(None, format!("symbol {} is declared twice", s.name));
        }
    }
    for (id, node) in graph.nodes() {
        if let Some(bad) = node.operands.iter().find(|o| **o >= id) {
            report(Some(id), format!("operand {bad} is not defined before it is used"));
            continue;
        }
        let mut unknown = false;
        let mut visit = |d: &IndexExpr| {
            d.visit_atoms(&mut |a| match a {
                IndexNode::Sym(s) => unknown |= s.0 as usize >= graph.symbols().len(),
                _ => unknown = true,
            });
        };
        node.ty.shape.iter().for_each(&mut visit);
        visit_extents(&node.kind, &mut visit);
        if unknown {
            report(Some(id), "an extent names an unknown symbol".to_string());
            continue;
        }
        if let NodeKind::Loop(l) = &node.kind {
            if depth >= MAX_LOOP_DEPTH {
                report(Some(id), format!("loops nest more than {MAX_LOOP_DEPTH} deep"));
                continue;
            }
            let inner = verify_nested(&l.body.0, depth + 1);
            let broken = !inner.is_empty();
            for e in inner {
                report(Some(id), format!("body @{}: {e}", l.body.0.name));
            }
            if broken {
                continue;
            }
        }
        match infer::infer(graph, &node.kind, &node.operands, &mut Vec::new()) {
            Err((problem, expected)) => {
                let expected = expected.map_or(String::new(), |e| format!("; expected {e}"));
                report(Some(id), format!("{}: {problem}{expected}", node.kind.name()));
            }
            Ok(ty) if ty != node.ty => {
                let (found, expected) = (graph.type_text(&node.ty), graph.type_text(&ty));
                report(
                    Some(id),
                    format!("{}: has type {found}; expected {expected}", node.kind.name()),
                );
            }
            Ok(_) => {}
        }
        match infer::results(graph, &node.kind, &node.operands, &mut Vec::new()) {
            Ok(results) if results[..] != node.results[..] => {
                let types = |all: &[TensorType]| all.iter().map(|t| graph.type_text(t)).collect::<Vec<_>>().join(", ");
                let (found, expected) = (types(&node.results), types(&results));
                report(
                    Some(id),
                    format!("{}: has results {found}; expected {expected}", node.kind.name()),
                );
            }
            // An error was reported above.
            Ok(_) | Err(_) => {}
        }
    }
    names.clear();
    for (position, &id) in graph.inputs().iter().enumerate() {
        if let NodeKind::Input { index, name, .. } = &graph.node(id).kind {
            if *index as usize != position {
                report(Some(id), format!("input {name}: numbered {index}; expected {position}"));
            }
            if !names.insert(name.as_str()) {
                report(Some(id), format!("input name {name} is used twice"));
            }
        }
    }
    names.clear();
    for out in graph.outputs() {
        if out.node.index() >= graph.len() {
            report(
                None,
                format!("output {} names {}, which does not exist", out.name, out.node),
            );
        }
        if out.node.index() < graph.len() && graph.node(out.node).kind.is_tuple() {
            report(
                None,
                format!("output {} names {}, which has several results", out.name, out.node),
            );
        }
        if !names.insert(out.name.as_str()) {
            report(None, format!("output name {} is used twice", out.name));
        }
    }
    errors
}

/// Calls `f` on every extent that a kind carries.
fn visit_extents(kind: &NodeKind, f: &mut dyn FnMut(&IndexExpr)) {
    match kind {
        NodeKind::Input { ty, .. } | NodeKind::Iota { ty, .. } => ty.shape.iter().for_each(f),
        NodeKind::Random { shape, .. } => shape.iter().for_each(f),
        NodeKind::View(View::Reshape(shape) | View::Expand(shape)) => shape.iter().for_each(f),
        NodeKind::View(View::Pad { lo, hi, .. }) => lo.iter().chain(hi).for_each(f),
        NodeKind::View(View::Slice { start, size, .. }) => start.iter().chain(size).for_each(f),
        NodeKind::View(View::Window { size, .. }) => f(size),
        NodeKind::Loop(l) => l.symbols.iter().chain(&l.trip).for_each(f),
        NodeKind::Call(function) => function.visit_extents(f),
        _ => {}
    }
}
