//! Recording one operation: who is named when it fails.
//!
//! Invariants:
//! - Every public operation runs its body in a scope. Scopes nest per thread, because composites call other operations; the
//!   outermost one gives every node its source line and every error its name and operand types.
//! - An operation on a poisoned operand records nothing, reports nothing and returns a poisoned tensor.
//! - A body never panics on bad shapes: it returns a [`Refusal`], and the tensor it would have made is poisoned.

use std::cell::RefCell;
use std::panic::Location;

use tlc_ir::graph::{GraphError, Origin};

use crate::graph::Graph;
use crate::tensor::Tensor;

/// What is wrong, and what would fit.
pub(crate) type Refusal = tlc_ir::graph::infer::Refusal;

/// The result of the body of an operation.
pub(crate) type Step<T = Tensor> = Result<T, Refusal>;

/// Refuses, without saying what would fit.
pub(crate) fn refuse<T>(problem: impl Into<String>) -> Step<T> {
    Err((problem.into(), None))
}

/// Refuses, and says what would fit.
pub(crate) fn refuse_expecting<T>(problem: impl Into<String>, expected: impl Into<String>) -> Step<T> {
    Err((problem.into(), Some(expected.into())))
}

#[derive(Default)]
struct Scope {
    depth: u32,
    at: Option<&'static Location<'static>>,
    failure: Option<Refusal>,
}

thread_local! {
    static SCOPE: RefCell<Scope> = const { RefCell::new(Scope { depth: 0, at: None, failure: None }) };
}

/// The source line of the outermost operation being recorded on this thread.
pub(crate) fn origin() -> Origin {
    SCOPE.with_borrow(|s| s.at.map_or(Origin::Unknown, Origin::Source))
}

/// Leaves the scope even if the body panics.
struct Entered {
    outermost: bool,
}

impl Entered {
    fn new(at: &'static Location<'static>) -> Entered {
        SCOPE.with_borrow_mut(|s| {
            s.depth += 1;
            if s.depth == 1 {
                s.at = Some(at);
                s.failure = None;
            }
            Entered {
                outermost: s.depth == 1,
            }
        })
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        SCOPE.with_borrow_mut(|s| {
            s.depth -= 1;
            if s.depth == 0 {
                s.at = None;
            }
        });
    }
}

/// Runs the body of an operation that yields one tensor. `operands` is not empty; its first one says the graph.
#[track_caller]
pub(crate) fn op(name: &str, operands: &[&Tensor], body: impl FnOnce() -> Step) -> Tensor {
    let first = operands
        .first()
        .expect("an operation over tensors needs one to know its graph");
    record(first.graph(), name, operands, &[], body, |poisoned| poisoned)
}

/// Runs the body of an operation. `scalars` are further operands, printed; `poison` makes the result of a failed one from
/// a poisoned tensor.
#[track_caller]
pub(crate) fn record<T>(
    graph: &Graph,
    name: &str,
    operands: &[&Tensor],
    scalars: &[String],
    body: impl FnOnce() -> Step<T>,
    poison: impl FnOnce(Tensor) -> T,
) -> T {
    let Some(recording) = Recording::begin(graph, operands, Location::caller()) else {
        return poison(poisoned(graph, operands));
    };
    let (value, refusal) = match recording.mixed.is_none().then(body) {
        Some(Ok(value)) => (Some(value), None),
        Some(Err(refusal)) => (None, Some(refusal)),
        None => (None, None),
    };
    match (recording.end(graph, name, operands, scalars, refusal), value) {
        (true, Some(value)) => value,
        _ => poison(poisoned(graph, operands)),
    }
}

fn poisoned(graph: &Graph, operands: &[&Tensor]) -> Tensor {
    let dtype = operands.first().map_or(tlc_ir::DType::F32, |t| t.dtype());
    Tensor::poisoned(graph, dtype)
}

/// What is around the body of an operation: apart from it, because there is a copy of [`record`] for every body.
struct Recording {
    scope: Entered,
    /// Why the body cannot run.
    mixed: Option<Refusal>,
}

impl Recording {
    /// `None` if an operand is poisoned.
    #[inline(never)]
    fn begin(graph: &Graph, operands: &[&Tensor], at: &'static Location<'static>) -> Option<Recording> {
        if operands.iter().any(|t| t.is_poisoned()) {
            return None;
        }
        let mixed = !operands.iter().all(|t| t.graph().is(graph));
        Some(Recording {
            scope: Entered::new(at),
            mixed: mixed.then(|| {
                let inside = |t: &&Tensor| operands.iter().any(|o| o.graph().is_inside(t.graph()));
                let (problem, expected) = match operands.iter().position(inside) {
                    Some(k) => (
                        format!("operand {k} belongs to the graph around the loop, whose body is a graph of its own"),
                        "the tensor that the iteration's `capture` returns for it",
                    ),
                    None => (
                        "operands recorded in different graphs".to_string(),
                        "tensors of one graph",
                    ),
                };
                (problem, Some(expected.to_string()))
            }),
        })
    }

    /// Whether nothing failed in the body, which returned `refusal`. The outermost operation reports what did.
    #[inline(never)]
    fn end(
        self,
        graph: &Graph,
        name: &str,
        operands: &[&Tensor],
        scalars: &[String],
        refusal: Option<Refusal>,
    ) -> bool {
        let refusal = refusal.or(self.mixed);
        if !self.scope.outermost {
            return match refusal {
                None => true,
                Some(refusal) => {
                    SCOPE.with_borrow_mut(|s| s.failure.get_or_insert(refusal).0.len());
                    false
                }
            };
        }
        // What failed inside is the reason of what failed outside.
        let inner = SCOPE.with_borrow_mut(|s| s.failure.take());
        let Some((problem, expected)) = inner.or(refusal) else {
            return true;
        };
        let mut texts: Vec<String> = operands.iter().map(|t| graph.type_text(t.ty())).collect();
        texts.extend_from_slice(scalars);
        graph.report(GraphError {
            op: name.to_string(),
            operands: texts,
            problem,
            expected,
            origin: origin(),
        });
        false
    }
}
