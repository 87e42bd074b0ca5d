//! Long sums in blocks: a block of iterations is added up by itself, and blocks of these again.
//!
//! One running sum rounds with every term, so that its error grows with their number: after 2^16 terms of equal size up to
//! 2^-9 of an f32 sum is lost. A sum of `n` terms in blocks of `b`, in blocks of `c` of these, rounds about `b + c + n / (b * c)`
//! times on the way of a term, as few as pairwise summation does for what it costs (Higham, "The accuracy of floating point
//! summation", 1993; Castaldo, Whaley and Chronopoulos, "Reducing floating point error in dot product using the superblock
//! family of algorithms", 2008). The tree depends on extents and lanes alone.

use tlc_ir::graph::Monoid;
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::visit::{Effect, walk};
use tlc_ir::kernel::{Bind, Kernel, Memory, Op, Scope, Stmt};

use super::accumulators::{move_states, touched};
use super::directives::{enclosing_lanes, exists, loop_bind, rewrite};
use super::{Directive, ScheduleReason};
use crate::directive::DirectiveRefusal;
use crate::legalize::legal_block;
use crate::tree::{loop_body, substitute_in};

/// Iterations of one running sum that stay one, where sums of unknown lengths need not have the same blocks.
const ONE_SUM: i64 = 128;
/// Iterations that are not worth blocks, however long each is.
const FEW: i64 = 4;
/// Iterations of a block of a short body: few, for most terms are equally large, and their number alone says how much is lost.
const SHORT_BLOCK: i64 = 32;
/// Iterations of a block of a long body, of which several overlap in a processor: where a loop ends they no longer do.
const LONG_BLOCK: i64 = 128;
/// Legalized statements from which on a body is long.
const LONG_BODY: u64 = 120;
/// Blocks of a block of blocks, and of these; they cost nothing.
const BLOCKS_OF_BLOCKS: [i64; 2] = [64, 64];
/// The largest array of sums that is added up block by block.
const MOST_SUMS: i64 = 4096;

/// A loop around a sum: its variable and how it runs.
type Around = (VarId, Bind);

/// Floating-point sums that a loop adds to, in scratch outside it.
struct Sums {
    memory: Memory,
    len: i64,
    /// How many times an iteration adds to an element, at most.
    additions: i64,
    /// The elements: an index each, and the loops inside that walk it, outermost first.
    elements: Vec<(IndexExpr, Vec<Around>)>,
}

/// The floating-point sums to which the loop over `var` adds and which it does not use otherwise.
fn sums(kernel: &Kernel, var: VarId, inside: &[Stmt]) -> Vec<Sums> {
    let mut found = Vec::new();
    additions(inside, Some(&mut Vec::new()), &mut found);
    let mut out: Vec<Sums> = Vec::new();
    let mut refused: Vec<Memory> = Vec::new();
    // Where windows are copied out hundreds of statements add to one memory, and each question about it goes through all of them.
    let mut rooms: Vec<(Memory, Option<i64>)> = Vec::new();
    for (memory, index, around) in found {
        if refused.contains(&memory) {
            continue;
        }
        let known = rooms.iter().find(|(m, _)| *m == memory).map(|(_, len)| *len);
        let len = known.unwrap_or_else(|| {
            let len = room(kernel, inside, memory);
            rooms.push((memory, len));
            len
        });
        let walked = len.and_then(|len| Some((walks(kernel, var, inside, &index, &around?)?, len)));
        let Some(((walked, again), len)) = walked else {
            refused.push(memory);
            continue;
        };
        let at = out.iter().position(|s| s.memory == memory).unwrap_or_else(|| {
            out.push(Sums {
                memory,
                len,
                additions: 1,
                elements: Vec::new(),
            });
            out.len() - 1
        });
        out[at].additions = out[at].additions.max(again);
        if !out[at].elements.iter().any(|(i, _)| *i == index) {
            out[at].elements.push((index, walked));
        }
    }
    out.retain(|s| !refused.contains(&s.memory));
    out
}

/// Where statements add to scratch, with the loops around, outermost first; without them where it may not happen.
fn additions(
    body: &[Stmt],
    mut around: Option<&mut Vec<Around>>,
    found: &mut Vec<(Memory, IndexExpr, Option<Vec<Around>>)>,
) {
    for s in body {
        match s {
            Stmt::Accumulate {
                monoid: Monoid::Add,
                state,
                ..
            } if matches!(state[..], [(Memory::Scratch(_), _)]) => {
                found.push((state[0].0, state[0].1.clone(), around.as_deref().cloned()));
            }
            Stmt::Loop { var, bind, body } => match around.as_deref_mut() {
                Some(loops) => {
                    loops.push((*var, *bind));
                    additions(body, Some(loops), found);
                    loops.pop();
                }
                None => additions(body, None, found),
            },
            s => additions(s.body(), None, found),
        }
    }
}

/// The loops that walk an index, if they do so alike in every iteration of the loop over `var`, and how often the others meet an
/// element.
fn walks(
    kernel: &Kernel,
    var: VarId,
    inside: &[Stmt],
    index: &IndexExpr,
    around: &[Around],
) -> Option<(Vec<Around>, i64)> {
    let defined = crate::tree::defined_vars(inside);
    let mut walked: Vec<Around> = Vec::new();
    let mut used: Vec<IndexExpr> = vec![index.clone()];
    let mut again = 1i64;
    for &(v, bind) in around.iter().rev() {
        let extent = &kernel.extents[v.0 as usize];
        if used.iter().any(|e| e.uses(v)) {
            used.push(extent.clone());
            walked.push((v, bind));
        } else {
            again = again.saturating_mul(extent.interval(kernel).hi.max(1));
        }
    }
    walked.reverse();
    let strange = |v: &VarId| !walked.iter().any(|w| w.0 == *v) && used.iter().any(|e| e.uses(*v));
    (!used.iter().any(|e| e.uses(var)) && !defined.iter().any(strange)).then_some((walked, again))
}

/// Elements of scratch in which sums are kept that statements touch only to add to them.
fn room(kernel: &Kernel, inside: &[Stmt], memory: Memory) -> Option<i64> {
    let Memory::Scratch(n) = memory else { return None };
    let adds = |s: &Stmt| {
        matches!(
            s,
            Stmt::Accumulate {
                monoid: Monoid::Add,
                ..
            }
        )
    };
    let others = |s: &Stmt| {
        s.accesses()
            .any(|a| a.memory == memory && a.effect == Effect::Accumulate)
            && !adds(s)
    };
    let kept = matches!(kernel.scratch[n as usize].scope, Scope::Register | Scope::Cache);
    let usable =
        kept && kernel.memory_dtype(memory).is_float() && !touched(inside, memory) && !walk(inside).any(others);
    let len = kernel.memory_len(memory).as_const()?;
    (usable && (1..=MOST_SUMS).contains(&len)).then_some(len)
}

/// What `make` makes of an index, in loops of their own like those around it.
fn everywhere(
    kernel: &mut Kernel,
    (index, around): &(IndexExpr, Vec<Around>),
    make: impl FnOnce(&mut Kernel, IndexExpr) -> Vec<Stmt>,
) -> Vec<Stmt> {
    let mut new: Vec<(VarId, VarId)> = Vec::new();
    for &(v, _) in around {
        let fresh = |v: VarId| new.iter().find(|n| n.0 == v).map(|n| n.1.into());
        let extent = kernel.extents[v.0 as usize].replace_vars(&mut |v| fresh(v));
        new.push((v, kernel.new_var(extent)));
    }
    let fresh = |v: VarId| new.iter().find(|n| n.0 == v).map(|n| n.1.into());
    let mut body = make(kernel, index.replace_vars(&mut |v| fresh(v)));
    for (&(_, bind), &(_, var)) in around.iter().zip(&new).rev() {
        body = vec![Stmt::Loop { var, bind, body }];
    }
    body
}

pub(super) fn cascade(kernel: &mut Kernel, var: VarId, factor: i64) -> Result<Vec<VarId>, DirectiveRefusal> {
    let inside = exists(kernel, var)?;
    if factor < 1 {
        return Err(DirectiveRefusal::Factor(factor));
    }
    // Sums of lanes of their own, or of threads, are split by other means.
    if loop_bind(&kernel.body, var) != Some(Bind::Serial) {
        return Err(DirectiveRefusal::Recurrence(var));
    }
    if let Some(Some(lanes)) = enclosing_lanes(&kernel.body, var, None) {
        return Err(DirectiveRefusal::NotNested(lanes, var));
    }
    let sums = sums(kernel, var, inside);
    if sums.is_empty() {
        return Err(DirectiveRefusal::NoAccumulation(var));
    }
    // The sums of a block are zero before it. Elements that several statements add to are added up by the first, and zero behind it.
    let (mut before, mut after, mut renamed) = (Vec::new(), Vec::new(), Vec::new());
    for s in &sums {
        let Memory::Scratch(n) = s.memory else { continue };
        let scope = kernel.scratch[n as usize].scope;
        let dtype = kernel.memory_dtype(s.memory);
        let block = kernel.new_scratch(dtype, IndexExpr::Const(s.len), scope);
        let zero = kernel.new_value(dtype);
        let op = Op::Const(Monoid::Add.identity(dtype));
        before.push(Stmt::Let { value: zero, op });
        for element in &s.elements {
            let store = |index| Stmt::Store {
                memory: block,
                index,
                value: zero,
                mask: None,
            };
            before.extend(everywhere(kernel, element, |_, index| vec![store(index)]));
            after.extend(everywhere(kernel, element, |kernel, index| {
                let value = kernel.new_value(dtype);
                let op = Op::Load {
                    memory: block,
                    index: index.clone(),
                    mask: None,
                };
                let add = Stmt::Accumulate {
                    monoid: Monoid::Add,
                    state: smallvec::smallvec![(s.memory, index.clone())],
                    values: smallvec::smallvec![value],
                };
                vec![Stmt::Let { value, op }, add, store(index)]
            }));
        }
        renamed.push((s.memory, block));
    }
    if factor == 1 {
        rewrite(kernel, var, &mut |_, bind, mut body| {
            move_states(&mut body, &mut |m, _| {
                if let Some((_, block)) = renamed.iter().find(|(old, _)| old == m) {
                    *m = *block;
                }
            });
            body.append(&mut after);
            let mut out = std::mem::take(&mut before);
            out.push(Stmt::Loop { var, bind, body });
            out
        });
        return Ok(vec![var]);
    }
    let n = kernel.extents[var.0 as usize].clone();
    let k = IndexExpr::Const(factor);
    let outer = kernel.new_var(n.ceil_div(factor).simplify(kernel));
    let start = IndexExpr::from(outer) * k.clone();
    let inner = kernel.new_var(IndexExpr::min(&k, &(n - start.clone())).simplify(kernel));
    rewrite(kernel, var, &mut |kernel, bind, mut body| {
        let at = start.clone() + inner.into();
        substitute_in(kernel, &mut body, &mut |v| (v == var).then(|| at.clone()));
        move_states(&mut body, &mut |m, _| {
            if let Some((_, block)) = renamed.iter().find(|(old, _)| old == m) {
                *m = *block;
            }
        });
        let mut of_block = vec![Stmt::Loop {
            var: inner,
            bind: Bind::Serial,
            body,
        }];
        of_block.append(&mut after);
        let mut out = std::mem::take(&mut before);
        out.push(Stmt::Loop {
            var: outer,
            bind,
            body: of_block,
        });
        out
    });
    Ok(vec![outer, inner])
}

/// Has long sums added up in blocks, whatever the loops around them. `apply` applies a directive for a reason, and returns the loops
/// that it made. With `alike` sums of known lengths have the blocks that sums of unknown ones have: those that one block holds are one sum, and no
/// others are; without, sums of [`ONE_SUM`] are. Loops of `done` stay as they are.
pub(super) fn cascades<S>(
    scheduled: &mut S,
    (alike, done): (bool, &[VarId]),
    kernel: fn(&S) -> &Kernel,
    apply: fn(&mut S, Directive, ScheduleReason) -> Option<Vec<VarId>>,
) {
    let trips = |s: &S, v: VarId| kernel(s).extents[v.0 as usize].interval(kernel(s)).hi;
    let additions = |s: &S, v: VarId, body: &[Stmt]| {
        let sums = sums(kernel(s), v, body);
        sums.iter().map(|s| s.additions).max()
    };
    let long_sum = |s: &Stmt| match s {
        Stmt::Loop {
            var,
            bind: Bind::Serial,
            body,
        } if !done.contains(var) => {
            let n = trips(scheduled, *var);
            let each = (n > FEW).then(|| additions(scheduled, *var, body)).flatten()?;
            let one = if alike { SHORT_BLOCK } else { ONE_SUM };
            (n.saturating_mul(each) > one).then_some((*var, each))
        }
        _ => None,
    };
    let mut loops: Vec<(VarId, i64)> = walk(&kernel(scheduled).body).filter_map(long_sum).collect();
    // Inner sums first: what they add to is then a sum of the loop around them.
    loops.reverse();
    for (var, each) in loops {
        let body = loop_body(&kernel(scheduled).body, var);
        let first = match body.is_some_and(|b| legal_block(kernel(scheduled), b) > LONG_BODY) {
            true => LONG_BLOCK,
            false => SHORT_BLOCK,
        };
        in_blocks(scheduled, (var, each), first, alike, kernel, apply);
    }
}

/// Has the sum of a loop, to which an iteration adds `each` times, added up in blocks of so many terms, and blocks of these. Returns the loops that are
/// made of it.
fn in_blocks<S>(
    scheduled: &mut S,
    (mut var, mut each): (VarId, i64),
    first: i64,
    alike: bool,
    kernel: fn(&S) -> &Kernel,
    apply: fn(&mut S, Directive, ScheduleReason) -> Option<Vec<VarId>>,
) -> Vec<VarId> {
    let mut all = vec![var];
    for block in [first].into_iter().chain(BLOCKS_OF_BLOCKS) {
        let one = if alike { block } else { ONE_SUM };
        let trips = kernel(scheduled).extents[var.0 as usize].interval(kernel(scheduled)).hi;
        if trips.saturating_mul(each) <= one {
            break;
        }
        let factor = (block / each).max(1);
        each = 1;
        let Some(made) = apply(
            scheduled,
            Directive::Cascade { var, factor },
            ScheduleReason::SumsInBlocks { iterations: factor },
        ) else {
            break;
        };
        var = made[0];
        all.extend(made);
    }
    all
}

/// As [`cascades`], of one sum whose iterations have a short body, or stand for some that have. Returns the loops that are made of it.
pub(super) fn cascades_of<S>(
    scheduled: &mut S,
    var: VarId,
    kernel: fn(&S) -> &Kernel,
    apply: fn(&mut S, Directive, ScheduleReason) -> Option<Vec<VarId>>,
) -> Vec<VarId> {
    in_blocks(scheduled, (var, 1), SHORT_BLOCK, true, kernel, apply)
}
