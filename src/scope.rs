//! Recording one operation: who is named when it fails.
//!
//! Invariants:
//! - Every public operation runs its body in a scope. Scopes nest per thread, because composites call other operations; the
//!   outermost one gives every node its source line and every error its name and operand types.
//! - An operation on a poisoned operand records nothing, reports nothing and answers a poisoned tensor.
//! - A body never panics on bad shapes: it answers a [`Refusal`], and the tensor it would have made is poisoned.

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
    let dtype = operands.first().map_or(tlc_ir::DType::F32, |t| t.dtype());
    if operands.iter().any(|t| t.is_poisoned()) {
        return poison(Tensor::poisoned(graph, dtype));
    }
    let scope = Entered::new(Location::caller());
    let result = if operands.iter().all(|t| t.graph().is(graph)) {
        body()
    } else {
        refuse_expecting("operands recorded in different graphs", "tensors of one graph")
    };
    if !scope.outermost {
        return result.unwrap_or_else(|refusal| {
            SCOPE.with_borrow_mut(|s| s.failure.get_or_insert(refusal).0.len());
            poison(Tensor::poisoned(graph, dtype))
        });
    }
    let inner = SCOPE.with_borrow_mut(|s| s.failure.take());
    let (problem, expected) = match (result, inner) {
        (Ok(value), None) => return value,
        (_, Some(inner)) => inner,
        (Err(refusal), None) => refusal,
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
    poison(Tensor::poisoned(graph, dtype))
}
