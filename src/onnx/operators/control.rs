//! Branches, and operators that do nothing at inference.

use tlc_ir::DType;

use crate::onnx::call::{Answer, Call};
use crate::onnx::refusal::{Outcome, invalid, unsupported};
use tlc_formats::onnx::{AttributeKind, Graph};

fn graph_of<'a>(c: &Call<'_, '_, 'a>, name: &str) -> Outcome<Graph<'a>> {
    match c.attribute(name) {
        Some(a) if a.kind() == AttributeKind::Graph => {
            a.graph().map_or_else(|| invalid(format!("no graph in {name}")), Ok)
        }
        _ => invalid(format!("no attribute {name}; expected a graph")),
    }
}

/// Both branches are recorded and one is selected, or, where the condition is a constant, only that one.
pub(super) fn branch(c: &mut Call<'_, '_, '_>) -> Answer {
    let (then, otherwise) = (graph_of(c, "then_branch")?, graph_of(c, "else_branch")?);
    let value = c.required(0)?.clone();
    if let Ok(known) = c.importer.constant(&value, "the condition") {
        let taken = known.len() == 1 && known.get(0).as_bool();
        return c.importer.branch(if taken { then } else { otherwise });
    }
    let graph = c.graph();
    let condition = c.tensor(0)?.reshape(());
    let (a, b) = (c.importer.branch(then)?, c.importer.branch(otherwise)?);
    if a.len() != b.len() {
        return invalid(format!(
            "branches with {} and {} results; expected as many",
            a.len(),
            b.len()
        ));
    }
    let mut results = vec![];
    for (a, b) in a.into_iter().zip(b) {
        let (a, b) = (a.tensor(&graph)?, b.tensor(&graph)?);
        if a.shape() != b.shape() || a.dtype() != b.dtype() {
            return unsupported(
                "branches whose results have different types; expected one type, or a constant condition",
            );
        }
        results.push(condition.select(a, b).into());
    }
    Ok(results)
}

pub(super) fn dropout(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    if c.version < 7 && !c.flag("is_test", false)? {
        return unsupported("training before opset 7; expected is_test=1");
    }
    if c.version >= 12 && c.value(2).is_some() {
        let training = c.elements(2)?;
        let ratio = match c.input_floats(1)? {
            Some(r) => r.first().copied().unwrap_or(0.5),
            None => 0.5,
        };
        if training.len() == 1 && training.get(0).as_bool() && ratio != 0.0 {
            return unsupported("dropout while training; expected inference");
        }
    }
    let mask = x.graph().full(x.shape(), true, DType::Bool);
    Ok(vec![x.into(), mask.into()])
}
