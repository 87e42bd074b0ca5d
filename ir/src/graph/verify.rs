//! The graph verifier: reports every error, and trusts nothing that the builder checked.

use super::{Graph, NodeId, infer};

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
    let mut errors = Vec::new();
    let mut report = |node: Option<NodeId>, problem: String| errors.push(VerifyError { node, problem });
    for (i, s) in graph.symbols().iter().enumerate() {
        if s.lo < 0 || s.lo > s.hi {
            report(
                None,
                format!("symbol {}: range {}..={} is empty or negative", s.name, s.lo, s.hi),
            );
        }
        if graph.symbols()[..i].iter().any(|o| o.name == s.name) {
            report(None, format!("symbol {} is declared twice", s.name));
        }
    }
    for (id, node) in graph.nodes() {
        if let Some(bad) = node.operands.iter().find(|o| **o >= id) {
            report(Some(id), format!("operand {bad} is not defined before it is used"));
            continue;
        }
        let mut unknown = false;
        for d in &node.ty.shape {
            d.visit_atoms(&mut |a| match a {
                crate::index::IndexNode::Sym(s) => unknown |= s.0 as usize >= graph.symbols().len(),
                _ => unknown = true,
            });
        }
        if unknown {
            report(Some(id), "an extent names an unknown symbol".to_string());
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
    }
    for (i, out) in graph.outputs().iter().enumerate() {
        if out.node.index() >= graph.len() {
            report(
                None,
                format!("output {} names {}, which does not exist", out.name, out.node),
            );
        }
        if graph.outputs()[..i].iter().any(|o| o.name == out.name) {
            report(None, format!("output name {} is used twice", out.name));
        }
    }
    errors
}
