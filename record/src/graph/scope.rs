//! Recording one operation: who is named when it fails.
//!
//! Invariants:
//! - Every public operation runs its body in a scope. Scopes nest per thread, because composites call other operations; the
//!   outermost one gives every node its source line and every error its name and operand types.
//! - An operation on a poisoned operand records nothing, reports nothing and returns a poisoned tensor.
//! - An operation over tensors of several graphs is reported to each of them: none of them compiles.
//! - A body never panics on bad shapes: it returns a [`Refusal`], and the tensor it would have made is poisoned.

use std::cell::RefCell;
use std::panic::Location;

use tlc_ir::graph::{GraphError, Origin};
use tlc_runtime::float_mode::DefaultMode;

use crate::graph::Graph;
use crate::graph::Tensor;

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
    /// What is recorded now is made of an operation that was recorded before.
    made_of: Option<Origin>,
    failure: Option<Refusal>,
    /// Graphs of tensors that failed together.
    concerned: Vec<Graph>,
}

thread_local! {
    static SCOPE: RefCell<Scope> =
        const { RefCell::new(Scope { depth: 0, at: None, made_of: None, failure: None, concerned: Vec::new() }) };
}

/// Adds those that are not among them yet.
fn join<'g>(all: &mut Vec<Graph>, more: impl IntoIterator<Item = &'g Graph>) {
    for graph in more {
        if !all.iter().any(|g| g.is(graph)) {
            all.push(graph.clone());
        }
    }
}

/// Has the refusal that follows reported to these graphs, too.
pub(crate) fn concern<'g>(graphs: impl IntoIterator<Item = &'g Graph>) {
    SCOPE.with_borrow_mut(|s| join(&mut s.concerned, graphs));
}

/// The refusal of what would mix tensors of several graphs; it is reported to all of them.
pub(crate) fn mixed<'g>(graphs: impl IntoIterator<Item = &'g Graph>) -> Refusal {
    let graphs: Vec<&Graph> = graphs.into_iter().collect();
    let inner = graphs.iter().find(|g| graphs.iter().any(|outer| g.is_inside(outer)));
    let (problem, expected) = match inner.map(|g| g.is_loop_body()) {
        Some(true) => (
            "operands of a loop's body and of the graph around it, which are two graphs",
            "what the body needs through the iteration's `capture`, what it computes as its results",
        ),
        Some(false) => (
            "operands of a function and of the graph around it, which are two graphs",
            "what the function needs among its operands, what it computes as its results",
        ),
        None => ("operands recorded in different graphs", "tensors of one graph"),
    };
    concern(graphs);
    (problem.to_string(), Some(expected.to_string()))
}

/// The source line of the outermost operation being recorded on this thread.
pub(crate) fn origin() -> Origin {
    SCOPE.with_borrow(|s| s.at.map_or(Origin::Unknown, Origin::Source))
}

/// Whether the program asked for what is recorded now, and no other operation did.
pub(crate) fn is_asked_for() -> bool {
    SCOPE.with_borrow(|s| s.depth == 1)
}

/// The operation that what this thread records now is made of, if it is made of one.
pub(crate) fn made_of() -> Option<Origin> {
    SCOPE.with_borrow(|s| s.made_of.clone())
}

/// Puts back what was before, even if the body panics.
struct Restored(Option<Origin>);

impl Drop for Restored {
    fn drop(&mut self) {
        SCOPE.with_borrow_mut(|s| s.made_of = self.0.take());
    }
}

/// Runs `f`, whose nodes come from `origin` and not from the line that is being recorded.
pub(crate) fn making<T>(origin: Origin, f: impl FnOnce() -> T) -> T {
    let _restored = Restored(SCOPE.with_borrow_mut(|s| s.made_of.replace(origin)));
    f()
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
                s.concerned.clear();
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
    record_printing(graph, name, operands, &|| scalars.to_vec(), body, poison)
}

/// As [`record`]; the further operands are printed where the operation fails.
#[track_caller]
pub(crate) fn record_printing<T>(
    graph: &Graph,
    name: &str,
    operands: &[&Tensor],
    scalars: Print<'_>,
    body: impl FnOnce() -> Step<T>,
    poison: impl FnOnce(Tensor) -> T,
) -> T {
    let (mut body, mut value) = (Some(body), None);
    let whole = within(graph, name, operands, scalars, Location::caller(), &mut || {
        value = body.take().map(|body| body()).transpose()?;
        Ok(())
    });
    match value {
        Some(value) if whole => value,
        _ => poison(poisoned(graph, operands)),
    }
}

/// Prints operands that are no tensors.
pub(crate) type Print<'a> = &'a dyn Fn() -> Vec<String>;

/// Whether the operation around `body` was recorded: apart from it, because there is a copy of [`record`] for every body.
#[inline(never)]
fn within(
    graph: &Graph,
    name: &str,
    operands: &[&Tensor],
    scalars: Print<'_>,
    at: &'static Location<'static>,
    body: &mut dyn FnMut() -> Step<()>,
) -> bool {
    // Numbers that are recorded are rounded here.
    let _mode = DefaultMode::enter();
    let Some(recording) = Recording::begin(graph, operands, at) else {
        return false;
    };
    let refusal = match recording.mixed {
        None => body().err(),
        Some(_) => None,
    };
    recording.end(graph, name, operands, scalars, refusal)
}

#[inline(never)]
fn poisoned(graph: &Graph, operands: &[&Tensor]) -> Tensor {
    let dtype = operands.first().map_or(tlc_ir::DType::F32, |t| t.dtype());
    Tensor::poisoned(graph, dtype)
}

/// What is around the body of an operation.
struct Recording {
    scope: Entered,
    /// Why the body cannot run.
    mixed: Option<Refusal>,
}

impl Recording {
    /// `None` if an operand is poisoned: its graph knows why. Another graph does not, so that mixing them is reported.
    fn begin(graph: &Graph, operands: &[&Tensor], at: &'static Location<'static>) -> Option<Recording> {
        let several = !operands.iter().all(|t| t.graph().is(graph));
        if !several && operands.iter().any(|t| t.is_poisoned()) {
            return None;
        }
        let scope = Entered::new(at);
        let all = || std::iter::once(graph).chain(operands.iter().map(|t| t.graph()));
        Some(Recording {
            scope,
            mixed: several.then(|| mixed(all())),
        })
    }

    /// Whether nothing failed in the body, which returned `refusal`. The outermost operation reports what did.
    fn end(
        self,
        graph: &Graph,
        name: &str,
        operands: &[&Tensor],
        scalars: Print<'_>,
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
        let (inner, mut graphs) = SCOPE.with_borrow_mut(|s| (s.failure.take(), std::mem::take(&mut s.concerned)));
        let Some((problem, expected)) = inner.or(refusal) else {
            return true;
        };
        let mut texts: Vec<String> = operands.iter().map(|t| t.type_text()).collect();
        texts.extend(scalars());
        let error = GraphError {
            op: name.to_string(),
            operands: texts,
            problem,
            expected,
            origin: origin(),
        };
        join(&mut graphs, [graph]);
        graphs.iter().for_each(|g| g.report(error.clone()));
        false
    }
}
