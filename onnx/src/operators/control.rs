//! Branches.

use crate::call::{Answer, Call};
use crate::order::free;
use crate::refusal::{Outcome, invalid};
use crate::value::Value;
use tlc_formats::onnx::{AttributeKind, Graph};
use tlc_record::{Tensor, custom_vjp};

pub(super) fn graph_of<'a>(c: &Call<'_, '_, 'a>, name: &str) -> Outcome<Graph<'a>> {
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
    let taken = gated(c, then, &condition, true);
    let a = c.importer.branch_with(then, taken)?;
    let taken = gated(c, otherwise, &condition, false);
    let b = c.importer.branch_with(otherwise, taken)?;
    if a.len() != b.len() {
        return invalid(format!(
            "branches with {} and {} results; expected as many",
            a.len(),
            b.len()
        ));
    }
    let one_type = |(a, b): (&Value, &Value)| a.shape() == b.shape() && a.dtype() == b.dtype();
    if !a.iter().zip(&b).all(one_type) {
        // A type follows from the condition, so the condition must be known.
        let known = c
            .importer
            .elements(&value, "the condition of branches whose results differ in type")?;
        let taken = known.len() == 1 && known.get(0).as_bool();
        return Ok(if taken { a } else { b });
    }
    let mut results = vec![];
    for (a, b) in a.into_iter().zip(b) {
        results.push(condition.select(a.tensor(&graph)?, b.tensor(&graph)?).into());
    }
    Ok(results)
}

/// What a branch sees of the floats around it: the same values, to which no cotangent comes back, and from which no tangent goes in,
/// unless the branch is taken. Else a derivative that is infinite in there would be NaN outside, times the zero of the selection.
fn gated<'a>(c: &Call<'_, '_, 'a>, branch: Graph<'a>, condition: &Tensor, when: bool) -> Vec<(&'a str, Value)> {
    let mut values = vec![];
    for name in free(branch) {
        if c.importer.is_absent(name) {
            continue;
        }
        let Ok(Value::Tensor(x, None)) = c.importer.lookup(name) else {
            continue;
        };
        if !x.dtype().is_float() || x.is_poisoned() {
            continue;
        }
        let through = custom_vjp(
            &[&x, condition],
            |t| vec![t[0].clone()],
            |known| {
                let d = &known.cotangents[0];
                let taken = &known.operands[1];
                vec![match when {
                    true => taken.select(d, 0),
                    false => taken.select(0, d),
                }]
            },
        );
        values.extend(through.into_iter().map(|t| (name, Value::from(t))));
    }
    values
}
