//! What the verifiers say of a module, with places in its text.

use super::cursor::Locator;
use super::kernel::StatementSpans;
use super::lexer::Span;
use super::plan::PlanSpans;
use super::{Entry, MAX_ERRORS, Module, ParseError};
use crate::graph::Origin;
use crate::kernel::{self, Kernel};
use crate::plan::verify::{PlanPlace, PlanViolation};
use crate::plan::{self, Plan};

/// Every violation in a module that was read from `text`, in the order of the text; at most [`MAX_ERRORS`].
///
/// Only what is certainly wrong is listed: what the verifiers can neither prove nor refute is not.
pub fn verify_module(module: &Module, text: &str) -> Vec<ParseError> {
    let mut found: Vec<(Span, String)> = Vec::new();
    for entry in &module.order {
        match entry {
            Entry::Graph(i) => {
                let Some(graph) = module.graphs.get(*i) else { continue };
                for e in crate::graph::verify::verify(graph) {
                    let origin = e
                        .node
                        .filter(|n| n.index() < graph.len())
                        .map(|n| graph.node(n).origin.recorded());
                    let start = match origin {
                        Some(&Origin::Text { line, column }) => offset(text, line, column),
                        _ => 0,
                    };
                    found.push((Span { start, end: start }, format!("@{}: {e}", graph.name)));
                }
            }
            Entry::Kernel(i, spans) => {
                let Some((name, kernel)) = module.kernels.get(*i) else {
                    continue;
                };
                let name = name.as_ref().map_or(String::new(), |n| format!("@{n}: "));
                verify_kernel(kernel, spans, &name, &mut found);
            }
            Entry::Plan(i, spans) => {
                let Some(plan) = module.plans.get(*i) else { continue };
                verify_plan(plan, spans, &mut found);
            }
        }
        if found.len() >= MAX_ERRORS {
            break;
        }
    }
    found.truncate(MAX_ERRORS);
    found.sort_by_key(|f| f.0);
    let mut locator = Locator::new(text);
    found
        .into_iter()
        .map(|(span, message)| ParseError {
            span,
            position: locator.position(span.start),
            message,
        })
        .collect()
}

/// The byte of a line and column, which count from 1.
fn offset(text: &str, line: u32, column: u32) -> usize {
    let before = text
        .split_inclusive('\n')
        .take(line as usize - 1)
        .map(str::len)
        .sum::<usize>();
    let rest = text.get(before..).unwrap_or_default();
    let within = rest.char_indices().nth(column as usize - 1);
    before + within.map_or(0, |(at, _)| at)
}

fn verify_kernel(kernel: &Kernel, spans: &StatementSpans, name: &str, found: &mut Vec<(Span, String)>) {
    for v in kernel::verify::verify(kernel).errors.into_iter().take(MAX_ERRORS) {
        found.push((spans.find(kernel, &v.place), format!("{name}{}", v.rule)));
    }
}

fn verify_plan(plan: &Plan, spans: &PlanSpans, found: &mut Vec<(Span, String)>) {
    let errors = plan::verify::verify(plan).errors;
    // What guards exclude is no error of a kernel: then only the plan knows the sizes that occur.
    if !plan::verify::has_conditions(plan) {
        for (number, (kernel, spans)) in plan.kernels.iter().zip(&spans.kernels).enumerate() {
            verify_kernel(kernel, spans, &format!("@{} kernel {number}: ", plan.name), found);
        }
    } else if errors.is_empty()
        && let Err(fault) = plan::verify::check_kernels(plan)
        && let plan::verify::Fault::Kernel {
            plan: name,
            kernel: number,
            violation,
        } = *fault
    {
        let at = number.0 as usize;
        let own = (spans.kernels.get(at).zip(plan.kernels.get(at))).filter(|_| name == plan.name);
        let span = own.map_or(spans.header, |(spans, kernel)| spans.find(kernel, &violation.place));
        found.push((span, format!("@{name} kernel {at}: {}", violation.rule)));
    }
    let place = |v: &PlanViolation| match v.place {
        PlanPlace::Tables => spans.header,
        PlanPlace::Slot(s) => spans.slots.get(s.0 as usize).copied().unwrap_or(spans.header),
        PlanPlace::Step(n) => {
            let step = match n.checked_sub(plan.init.len()) {
                Some(n) => spans.steps.get(n),
                None => spans.init.get(n),
            };
            step.copied().unwrap_or(spans.header)
        }
    };
    for v in errors.into_iter().take(MAX_ERRORS) {
        found.push((place(&v), format!("@{}: {}", plan.name, v.rule)));
    }
}
