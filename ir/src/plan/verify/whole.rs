//! Everything that one compilation made: a plan, the plans of its loops' bodies, and the kernels of each.

use crate::binding::condition_holds;
use crate::graph::{Condition, Symbol};
use crate::index::{IndexExpr, IndexNode};
use crate::kernel::Kernel;
use crate::kernel::verify::{Violation, refute, verify_for};
use crate::plan::verify::{PlanViolation, verify};
use crate::plan::{KernelId, Plan, Step};

/// What a verifier found wrong with a compiled plan.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// Its steps, or those of a loop's body, break a rule.
    #[error("the plan is not valid: {0}")]
    Plan(PlanViolation),
    /// A kernel breaks a rule.
    #[error("kernel {} of @{plan} is not valid: {violation}", kernel.0)]
    Kernel {
        /// Name of the plan that has it: that of the graph, or of a loop's body.
        plan: String,
        /// The kernel.
        kernel: KernelId,
        /// What is wrong.
        violation: Violation,
    },
}

/// The first error in a plan and all of its kernels, bodies of loops included. Kernels are judged as the plan launches them: its
/// guards hold, and symbols have values that occur together. What is merely unproven is no error.
///
/// # Errors
/// [`Fault`]: whoever made the plan has a bug, and it must not run.
pub fn check(plan: &Plan) -> Result<(), Box<Fault>> {
    if let Some(violation) = verify(plan).errors.into_iter().next() {
        return Err(Box::new(Fault::Plan(violation)));
    }
    check_kernels(plan)
}

/// As [`check`], of the kernels alone: the plan itself has no errors.
///
/// # Errors
/// [`Fault::Kernel`].
pub fn check_kernels(plan: &Plan) -> Result<(), Box<Fault>> {
    kernels(plan, &sizes(plan), &refute)
}

/// Whether kernels of the plan may rely on more than the ranges of its symbols: on guards, or on bounds that data decides.
pub fn has_conditions(plan: &Plan) -> bool {
    !plan.guards.is_empty() || plan.symbols.iter().any(|s| s.upper.is_some())
}

/// As [`check`], with every kernel also under [`verify_for`], which enumerates what it cannot prove. That takes several times
/// as long.
///
/// # Errors
/// As for [`check`].
pub fn check_thoroughly(plan: &Plan) -> Result<(), Box<Fault>> {
    check(plan)?;
    kernels(plan, &sizes(plan), &|kernel, symbols| {
        verify_for(kernel, symbols).errors.into_iter().next()
    })
}

/// What judges a kernel, given values of its symbols.
type Judge = dyn Fn(&Kernel, &[Vec<i64>]) -> Option<Violation>;

/// The kernels of a plan under some values of its symbols.
fn kernels(plan: &Plan, sizes: &[Vec<i64>], judge: &Judge) -> Result<(), Box<Fault>> {
    let steps = || plan.init.iter().chain(&plan.steps);
    let mut launched: Vec<Vec<Vec<i64>>> = vec![Vec::new(); plan.kernels.len()];
    for launch in steps().flat_map(Step::launches) {
        let kernel = &plan.kernels[launch.kernel.0 as usize];
        let known = &mut launched[launch.kernel.0 as usize];
        for symbols in sizes {
            let values = launch.symbols.iter().map(|e| e.eval_symbols(symbols));
            let Some(values) = values.collect::<Option<Vec<i64>>>() else {
                continue;
            };
            let fits = values
                .iter()
                .zip(&kernel.symbols)
                .all(|(v, &(lo, hi))| lo <= *v && *v <= hi);
            if fits && !known.contains(&values) {
                known.push(values);
            }
        }
    }
    for ((kernel, values), number) in plan.kernels.iter().zip(&launched).zip(0..) {
        if let Some(violation) = judge(kernel, values) {
            return Err(Box::new(Fault::Kernel {
                plan: plan.name.clone(),
                kernel: KernelId(number),
                violation,
            }));
        }
    }
    for step in steps() {
        if let Step::Loop(l) = step {
            let inner: Vec<Vec<i64>> = sizes.iter().filter_map(|s| l.inner_symbols(s)).collect();
            kernels(&l.body, &inner, judge)?;
        }
    }
    Ok(())
}

/// Symbols of which each is at its least value once while the others are not.
const ALONE: usize = 6;

/// Values of a plan's symbols that are worth trying: the least, small odd ones, and one symbol at its least, as far as they are
/// in range and the guards hold.
fn sizes(plan: &Plan) -> Vec<Vec<i64>> {
    let symbols = &plan.symbols;
    let all = |wanted: &dyn Fn(usize) -> i64| -> Vec<i64> {
        let value = |(k, s): (usize, &Symbol)| wanted(k).clamp(s.lo, s.hi.max(s.lo));
        symbols.iter().enumerate().map(value).collect()
    };
    let mut tries = vec![all(&|k| symbols[k].lo)];
    if symbols.is_empty() {
        return tries;
    }
    tries.push(all(&|k| symbols[k].lo.saturating_add(1)));
    tries.extend([7, 37].map(|n| all(&|_| n)));
    tries.extend((0..symbols.len().min(ALONE)).map(|alone| all(&|k| if k == alone { symbols[k].lo } else { 7 })));
    let mut out: Vec<Vec<i64>> = Vec::new();
    for mut values in tries {
        fit(plan, &mut values);
        let in_range = values.iter().zip(symbols).all(|(v, s)| s.lo <= *v && *v <= s.hi);
        let holds = plan.guards.iter().all(|g| condition_holds(&g.condition, &values));
        if in_range && holds && !out.contains(&values) {
            out.push(values);
        }
    }
    out
}

/// Changes values so that symbols which must equal something do, and those that data decides stay below their upper bounds.
fn fit(plan: &Plan, values: &mut [i64]) {
    let bare = |e: &IndexExpr| match e {
        IndexExpr::Node(n) => match **n {
            IndexNode::Sym(s) => Some(s.0 as usize),
            _ => None,
        },
        IndexExpr::Const(_) => None,
    };
    for _ in 0..2 {
        for guard in &plan.guards {
            let (a, b) = match &guard.condition {
                Condition::Equal(a, b) => (a, b),
                Condition::NonNegative(e) => {
                    raise(e, values);
                    continue;
                }
            };
            let (symbol, other) = match (bare(a), bare(b)) {
                (Some(s), _) => (s, b),
                (None, Some(s)) => (s, a),
                (None, None) => continue,
            };
            if let Some(v) = other.eval_symbols(values) {
                values[symbol] = v;
            }
        }
        for (k, s) in plan.symbols.iter().enumerate() {
            if let Some(most) = s.upper.as_ref().and_then(|u| u.eval_symbols(values)) {
                values[k] = values[k].min(most.max(0));
            }
        }
    }
}

/// Makes an expression that is negative 0 by a larger value of one symbol, where that is a term of its own.
fn raise(e: &IndexExpr, values: &mut [i64]) {
    let Some(missing) = e.eval_symbols(values).filter(|v| *v < 0) else {
        return;
    };
    for s in 0..values.len() {
        let before = values[s];
        values[s] = before.saturating_sub(missing);
        if e.eval_symbols(values) == Some(0) {
            return;
        }
        values[s] = before;
    }
}
