//! Cases: iterations between which a condition on the loop's variable changes, each range with a body of its own.
//!
//! An element of a concatenation is that of one of its parts, whose number decides which:
//!
//! ```text
//! for c in 0..96 { for x { select(c < 64, a[c, x], b[c - 64, x]) } }
//! ```
//! becomes
//!
//! ```text
//! for c in 0..96 {
//!     if c < 64 { for x { a[c, x] } }
//!     if 64 <= c { for x { b[c - 64, x] } }
//! }
//! ```
//! so that what is the same for a whole row is asked once for it. Results are written where they were, so that iterations still
//! differ in what they write; what is read is found by a variable of the case, whose range says that it is there.

use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::visit::{walk, walk_mut};
use tlc_ir::kernel::{Access, Bind, Kernel, Memory, Op, Stmt, ValueId};
use tlc_ir::{DType, Scalar, ScalarOp};

use super::directives::{enclosing_lanes, exists, loop_bind, rewrite};
use super::peel::{Known, decided, own_scratch, with_own_scratch};
use super::{Directive, ScheduleReason, Scheduler};
use crate::directive::DirectiveRefusal;
use crate::legalize::legal_statements;
use crate::tree;
use crate::tree::clone_fresh;

/// The fewest cases that are worth code of their own.
const FEWEST: usize = 3;
/// The most, each with code of its own.
const MOST: usize = 40;
/// The most statements of all cases, before those of other cases are left out of each.
const MOST_STATEMENTS: usize = 20_000;
/// The most that are left, legalized: rows are then copied out a few times.
const MOST_LEFT: u64 = 2000;

/// The iterations of a loop over `0..n` that begin a case, the first one not among them, in ascending order.
pub(super) fn beginnings(kernel: &Kernel, body: &[Stmt], var: VarId, n: i64) -> Vec<i64> {
    let mut known = Known::constants(kernel);
    let mut found = Vec::new();
    for s in walk(body) {
        let Stmt::Let { value, op } = s else { continue };
        known.note(kernel, *value, op);
        let condition = known.margin(kernel, op).and_then(|margin| {
            let (slope, rest) = margin.affine_in(var)?;
            let slope = slope.as_const()?;
            Some((slope, standing_for(kernel, &rest, slope)?))
        });
        // `slope * v + rest >= 0`.
        let at = match condition {
            Some((slope, rest)) if slope > 0 => rest.div_euclid(slope).checked_neg(),
            Some((slope, rest)) if slope < 0 => slope.checked_neg().map(|s| rest.div_euclid(s).saturating_add(1)),
            _ => None,
        };
        found.extend(at.filter(|at| (1..n).contains(at)));
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// A number in place of what is added to a multiple of a loop's variable: the sum is at least 0 in the same iterations. Inside a range that the
/// multiples divide, as where an axis that is joined was cut into equal parts, it does not matter where.
fn standing_for(kernel: &Kernel, rest: &IndexExpr, slope: i64) -> Option<i64> {
    let range = rest.interval(kernel);
    let step = slope.checked_abs().filter(|step| *step > 0)?;
    (range.lo.div_euclid(step) == range.hi.div_euclid(step)).then_some(range.lo)
}

/// Statements that compute an index as a number of 64 bits.
fn number(kernel: &mut Kernel, op: Op, out: &mut Vec<Stmt>) -> ValueId {
    let value = kernel.new_value(DType::I64);
    out.push(Stmt::Let { value, op });
    value
}

/// Has every iteration run the body of its case; returns the outermost loops of all bodies.
pub(super) fn cases(kernel: &mut Kernel, var: VarId) -> Result<Vec<VarId>, DirectiveRefusal> {
    let body = exists(kernel, var)?;
    let n = kernel.extents[var.0 as usize].as_const();
    let n = n.ok_or(DirectiveRefusal::NotConstant(var))?;
    if loop_bind(&kernel.body, var) != Some(Bind::Serial) {
        return Err(DirectiveRefusal::Recurrence(var));
    }
    if let Some(Some(outer)) = enclosing_lanes(&kernel.body, var, None) {
        return Err(DirectiveRefusal::NotNested(outer, var));
    }
    let mut at = beginnings(kernel, body, var, n);
    if at.is_empty() || at.len() >= MOST || at.len() * walk(body).count() > MOST_STATEMENTS {
        return Err(DirectiveRefusal::NoCases(var));
    }
    at.insert(0, 0);
    at.push(n);
    let own = own_scratch(kernel, var);
    let constants = Known::constants(kernel);
    let mut made = Vec::new();
    rewrite(kernel, var, &mut |kernel, bind, body| {
        let mut out = Vec::new();
        let here = number(kernel, Op::Index(var.into(), DType::I64), &mut out);
        for range in at.windows(2) {
            let mut part = clone_fresh(kernel, &body);
            with_own_scratch(kernel, &mut part, &own);
            let (first, behind) = (range[0], range[1]);
            let inside = kernel.new_var(IndexExpr::Const(behind - first));
            let place = IndexExpr::Const(first) + inside.into();
            read_at(kernel, &mut part, var, &place);
            let mut of_case = Vec::new();
            let from = number(
                kernel,
                Op::Index(IndexExpr::from(var) - IndexExpr::Const(first), DType::I64),
                &mut of_case,
            );
            of_case.push(Stmt::Clamp {
                var: inside,
                value: from,
            });
            of_case.extend(decided(kernel, part, constants.clone()));
            made.extend(of_case.iter().filter_map(|s| match s {
                Stmt::Loop { var, .. } => Some(*var),
                _ => None,
            }));
            let bounds = [(ScalarOp::Le, first, true), (ScalarOp::Lt, behind, false)];
            let tests: Vec<ValueId> = bounds
                .into_iter()
                .filter(|&(_, bound, _)| bound > 0 && bound < n)
                .map(|(op, bound, before)| {
                    let bound = number(kernel, Op::Const(Scalar::from_i64(DType::I64, bound)), &mut out);
                    let args = if before { [bound, here] } else { [here, bound] };
                    let test = kernel.new_value(DType::Bool);
                    let op = Op::Map(op, args.into_iter().collect());
                    out.push(Stmt::Let { value: test, op });
                    test
                })
                .collect();
            let cond = match tests[..] {
                [one] => one,
                _ => {
                    let both = kernel.new_value(DType::Bool);
                    let op = Op::Map(ScalarOp::And, tests.into_iter().collect());
                    out.push(Stmt::Let { value: both, op });
                    both
                }
            };
            out.push(Stmt::If { cond, body: of_case });
        }
        vec![Stmt::Loop { var, bind, body: out }]
    });
    Ok(made)
}

/// Has numbers, and loads of what nothing writes, be those of a place in the loop over `var`.
fn read_at(kernel: &Kernel, body: &mut [Stmt], var: VarId, place: &IndexExpr) {
    let moved = |e: &IndexExpr| {
        e.replace_vars(&mut |v| (v == var).then(|| place.clone()))
            .simplify(kernel)
    };
    walk_mut(body, &mut |s| {
        let Stmt::Let { op, .. } = s else { return };
        match op {
            Op::Index(e, _) => *e = moved(e),
            Op::Load {
                memory: Memory::Param(p),
                index,
                ..
            } if kernel.params[*p as usize].access == Access::Read => *index = moved(index),
            _ => {}
        }
    });
}

impl Scheduler<'_> {
    /// Has each iteration of a loop run the body of its case, if there are several. Returns the loops in all of them.
    pub(super) fn in_cases(&mut self, var: VarId) -> Option<Vec<VarId>> {
        self.in_cases_of(var, FEWEST)
    }

    /// As [`Self::in_cases`], if there are so many.
    pub(super) fn in_cases_of(&mut self, var: VarId, fewest: usize) -> Option<Vec<VarId>> {
        let n = self.kernel.extents[var.0 as usize].as_const()?;
        let body = tree::loop_body(&self.kernel.body, var)?;
        if beginnings(&self.kernel, body, var, n).len() + 1 < fewest {
            return None;
        }
        let saved = (self.kernel.clone(), self.schedule.clone());
        let made = self.because(ScheduleReason::Cases).apply(Directive::Cases { var })?;
        if legal_statements(&self.kernel) > MOST_LEFT {
            (self.kernel, self.schedule) = saved;
            return None;
        }
        Some(made)
    }
}
