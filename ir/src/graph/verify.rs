//! The graph verifier: reports every error, and trusts nothing that the builder checked.

use rustc_hash::FxHashSet;

use super::control::MAX_LOOP_DEPTH;
use super::{Graph, NodeId, NodeKind, TensorType, infer};
use crate::index::{IndexExpr, IndexNode};

/// One finding.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}{problem}", .value.as_ref().map_or(String::new(), |v| format!("{v}: ")))]
pub struct VerifyError {
    /// The node concerned, if one is.
    pub node: Option<NodeId>,
    /// Its name in the graph's text.
    pub value: Option<String>,
    /// What is wrong.
    pub problem: String,
}

/// Every violation of the graph language's rules; empty means valid.
pub fn verify(graph: &Graph) -> Vec<VerifyError> {
    let mut errors = verify_nested(graph, 0);
    if graph.outputs().is_empty() {
        errors.push(VerifyError {
            node: None,
            value: None,
            problem: "the graph has no outputs; expected at least one".to_string(),
        });
    }
    errors
}

fn verify_nested(graph: &Graph, depth: usize) -> Vec<VerifyError> {
    let mut errors = Vec::new();
    let mut report = |node: Option<NodeId>, problem: String| {
        let value = node.map(|n| graph.value_name(n));
        errors.push(VerifyError { node, value, problem });
    };
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
    for (i, s) in graph.symbols().iter().enumerate() {
        let mut fits = true;
        s.upper.iter().for_each(|e| {
            e.visit_atoms(&mut |a| fits &= matches!(a, IndexNode::Sym(s) if (s.0 as usize) < i));
        });
        if !fits {
            report(None, format!("symbol {}: its upper bound names a later symbol", s.name));
        }
    }
    // By symbol: whether a call above has bound it.
    let mut bound = vec![false; graph.symbols().len()];
    for (id, node) in graph.nodes() {
        if let Some(bad) = node.operands.iter().find(|o| **o >= id) {
            report(Some(id), format!("operand {bad} is not defined before it is used"));
            continue;
        }
        if let NodeKind::Call(function) = &node.kind
            && let Some(count) = function.binds()
            && let Some(bound) = bound.get_mut(count.0 as usize)
            && std::mem::replace(bound, true)
        {
            let name = graph.symbol_name(count);
            report(Some(id), format!("symbol {name} is bound by a call above"));
        }
        let (mut unknown, mut early) = (false, None);
        let mut visit = |d: &IndexExpr| {
            d.visit_atoms(&mut |a| match a {
                IndexNode::Sym(s) => match graph.symbols().get(s.0 as usize) {
                    Some(symbol) if symbol.upper.is_some() && !bound[s.0 as usize] => early = Some(*s),
                    Some(_) => {}
                    None => unknown = true,
                },
                _ => unknown = true,
            });
        };
        node.ty.shape.iter().for_each(&mut visit);
        node.kind.visit_sizes(&mut visit);
        if unknown {
            report(Some(id), "an extent names an unknown symbol".to_string());
            continue;
        }
        if let Some(symbol) = early {
            let name = graph.symbol_name(symbol);
            report(Some(id), format!("symbol {name} is used before a call binds it"));
            continue;
        }
        // Whoever calls would have to know what only the call finds out, and in the text inputs stand before everything.
        if matches!(node.kind, NodeKind::Input { .. }) && node.ty.shape.iter().any(|d| graph.is_data_bound(d)) {
            report(Some(id), "data decides an extent of an input".to_string());
            continue;
        }
        let bodies: Vec<&Graph> = match &node.kind {
            NodeKind::Loop(l) => vec![&l.body.0],
            NodeKind::Region(r) => r.bodies().map(|b| &*b.0).collect(),
            _ => vec![],
        };
        if !bodies.is_empty() && depth >= MAX_LOOP_DEPTH {
            report(
                Some(id),
                format!("loops and regions nest more than {MAX_LOOP_DEPTH} deep"),
            );
            continue;
        }
        let mut broken = false;
        for body in bodies {
            for e in verify_nested(body, depth + 1) {
                broken = true;
                report(Some(id), format!("body @{}: {e}", body.name));
            }
        }
        if broken {
            continue;
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
