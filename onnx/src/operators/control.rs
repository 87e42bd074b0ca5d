//! Branches.

use crate::call::{Answer, Call};
use crate::fold::is_decided_by_data;
use crate::order::free;
use crate::refusal::{Outcome, invalid};
use crate::value::{Value, size_value};
use tlc_formats::onnx::{AttributeKind, Graph as Subgraph};
use tlc_ir::{DType, HostTensor};
use tlc_record::dim::Dim;
use tlc_record::{Graph, Tensor, custom_vjp};

pub(super) fn graph_of<'a>(c: &Call<'_, '_, 'a>, name: &str) -> Outcome<Subgraph<'a>> {
    match c.attribute(name) {
        Some(a) if a.kind() == AttributeKind::Graph => {
            a.graph().map_or_else(|| invalid(format!("no graph in {name}")), Ok)
        }
        _ => invalid(format!("no attribute {name}; expected a graph")),
    }
}

/// What an import that is repeated may know of a condition.
enum Question {
    /// Of sizes: its number, and the expression that is 1 where it holds.
    Sizes(usize, Dim),
    /// Of values.
    Data(usize),
    None,
}

/// Both branches are recorded and one is selected, or, where the condition is known or assumed, only that one. Where the branches' results
/// differ in their extents and the condition depends on data, so do the extents of what is selected.
pub(super) fn branch(c: &mut Call<'_, '_, '_>) -> Answer {
    let (then, otherwise) = (graph_of(c, "then_branch")?, graph_of(c, "else_branch")?);
    let value = c.required(0)?.clone();
    if let Ok(known) = c.importer.constant(&value, "the condition") {
        let taken = is_taken(&known);
        return c.importer.branch(if taken { then } else { otherwise });
    }
    let question = match &value {
        Value::Sizes(s) if s.dims.len() == 1 => match c.importer.assumptions.question(&c.graph(), &s.dims[0]) {
            Some((_, Some(taken))) => return c.importer.branch(if taken { then } else { otherwise }),
            Some((question, None)) => Question::Sizes(question, s.dims[0].clone()),
            None => Question::None,
        },
        _ => match c.importer.assumptions.question_of_data(&c.graph()) {
            Some((_, true)) => {
                let taken = is_taken(&c.importer.elements(&value, "the condition")?);
                return c.importer.branch(if taken { then } else { otherwise });
            }
            Some((question, false)) => Question::Data(question),
            None => Question::None,
        },
    };
    let result = either(c, &value, then, otherwise, &question);
    // A branch that is no model for these sizes need not be one where a given value says that it is not taken.
    if let (Err(_), Question::Data(question)) = (&result, question)
        && let Ok(known) = c.importer.computed(&value, "the condition")
    {
        c.importer.assumptions.rely_on(question, is_taken(&known));
    }
    result
}

fn is_taken(condition: &HostTensor) -> bool {
    condition.len() == 1 && condition.get(0).as_bool()
}

/// The results of both branches, of which the condition selects.
fn either<'a>(
    c: &mut Call<'_, '_, 'a>,
    value: &Value,
    then: Subgraph<'a>,
    otherwise: Subgraph<'a>,
    question: &Question,
) -> Answer {
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
        let one_rank = |(a, b): (&Value, &Value)| {
            let tensors = a.sequence().is_none() && b.sequence().is_none();
            tensors && a.shape().len() == b.shape().len() && a.dtype() == b.dtype()
        };
        let sizes_differ = a.iter().zip(&b).all(one_rank) && !graph.is_body();
        if !sizes_differ || !is_decided_by_data(&condition) {
            // A type follows from the condition, so the condition must be known.
            let what = "the condition of branches whose results differ in type";
            let taken = match c.importer.elements(value, what) {
                Ok(known) => is_taken(&known),
                Err(_) if sizes_differ => return chosen(&graph, &condition, &a, &b),
                Err(refusal) => {
                    if let Question::Sizes(question, holds) = question {
                        c.importer.assumptions.assume_first(&graph, *question, holds);
                    }
                    return Err(refusal);
                }
            };
            return Ok(if taken { a } else { b });
        }
    }
    chosen(&graph, &condition, &a, &b)
}

/// The results of one branch or the other, of the same ranks and element types.
fn chosen(graph: &Graph, condition: &Tensor, a: &[Value], b: &[Value]) -> Answer {
    let mut results = vec![];
    for (a, b) in a.iter().zip(b) {
        let (a, b) = (a.tensor(graph)?, b.tensor(graph)?);
        results.push(one_of(graph, condition, a, b)?.into());
    }
    Ok(results)
}

/// One of two tensors of one rank; data decides the extents in which they differ.
fn one_of(graph: &Graph, condition: &Tensor, mut a: Tensor, mut b: Tensor) -> Outcome<Tensor> {
    let extents = a.shape().into_iter().zip(b.shape());
    let differ: Vec<(usize, (Dim, Dim))> = extents.enumerate().filter(|(_, (a, b))| a != b).collect();
    let is_empty = |t: &Tensor| t.shape().iter().any(|d| d.as_const() == Some(0));
    let (no_a, no_b) = (is_empty(&a), is_empty(&b));
    for (axis, (of_a, of_b)) in differ {
        let extent = |d: &Dim| size_value(graph, d, DType::I64);
        let extent = condition.select(extent(&of_a)?, extent(&of_b)?);
        let longest = Dim::from(graph.simplify(of_a.max(&of_b).expr()));
        let there = graph.range(&longest, DType::I64).lt(extent);
        let places = there.nonzero().select_index(0, 0);
        // Of the one that is not taken there may be fewer: what is read behind its end is zero.
        (a, b) = (
            a.take_from_start(&places, axis as i64),
            b.take_from_start(&places, axis as i64),
        );
    }
    Ok(match (no_a, no_b) {
        (true, _) => b,
        (_, true) => a,
        (false, false) => condition.select(a, b),
    })
}

/// What a branch sees of the floats around it: the same values, to which no cotangent comes back, and from which no tangent goes in,
/// unless the branch is taken. Else a derivative that is infinite in there would be NaN outside, times the zero of the selection.
fn gated<'a>(c: &Call<'_, '_, 'a>, branch: Subgraph<'a>, condition: &Tensor, when: bool) -> Vec<(&'a str, Value)> {
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
