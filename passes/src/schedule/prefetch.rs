//! Prefetches: what a loop will read a known distance from now, asked for while it computes.

use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::visit::{Effect, walk};
use tlc_ir::kernel::{Bind, Kernel, Memory, Stmt};
use tlc_ir::target::CACHE_LINE_BYTES;

use super::directives::rewrite;
use super::{Directive, ScheduleReason, Scheduler};
use crate::directive::DirectiveRefusal;
use crate::tree::{defined_vars, loop_body};

/// The most runs of elements that an iteration reads, and lines that it asks for.
const MOST_RUNS: usize = 40;

/// The most elements that an iteration reads of whose lines it asks for each.
const MOST_ELEMENTS: i64 = 4096;

/// Has each iteration of a loop ask for the lines, so many elements further on, of what it reads of a parameter: in the iterations of a loop
/// around it one of so many shares each. Returns no loop.
pub(super) fn prefetch(
    kernel: &mut Kernel,
    var: VarId,
    by: VarId,
    param: u32,
    [ahead, shares]: [i64; 2],
) -> Result<Vec<VarId>, DirectiveRefusal> {
    let around = loop_body(&kernel.body, by).ok_or(DirectiveRefusal::NoLoop(by))?;
    let body = loop_body(around, var).ok_or(DirectiveRefusal::NotNested(by, var))?;
    if shares < 1 {
        return Err(DirectiveRefusal::Factor(shares));
    }
    let memory = Memory::Param(param);
    let (length, firsts) = runs(kernel, var, body, memory).ok_or(DirectiveRefusal::NoRun { var, param })?;
    let line = CACHE_LINE_BYTES / kernel.memory_dtype(memory).bytes() as i64;
    let lines = (length + line - 1) / line;
    let each = (lines + shares - 1) / shares;
    let share = match shares {
        1 => IndexExpr::ZERO,
        _ => IndexExpr::from(by) * IndexExpr::Const(each * line),
    };
    let ask = |first: &IndexExpr, k: i64| Stmt::Prefetch {
        memory,
        index: (first.clone() + share.clone() + IndexExpr::Const(ahead + k * line)).simplify(kernel),
    };
    let asked: Vec<Stmt> = firsts
        .iter()
        .flat_map(|first| (0..each).map(|k| ask(first, k)))
        .collect();
    rewrite(kernel, var, &mut |_, bind, body| {
        let body = asked.iter().cloned().chain(body).collect();
        vec![Stmt::Loop { var, bind, body }]
    });
    Ok(Vec::new())
}

/// Lines that [`iteration`] has an iteration of a loop ask for.
pub(super) fn lines_of_iteration(kernel: &Kernel, var: VarId, param: u32) -> Option<usize> {
    let body = loop_body(&kernel.body, var)?;
    Some(lines(kernel, var, body, Memory::Param(param))?.len())
}

/// Bytes between what a vector loads with a mask and what it asks for meanwhile: some rows of an image further on, so that what one row of windows
/// asks for is there before the next one begins.
const MASKED_AHEAD_BYTES: i64 = 2048;

impl Scheduler<'_> {
    /// Has the vectors of a row, which loads of parameters with masks make up, ask for what later ones load, where processors do not foresee it.
    pub(super) fn masks_ahead(&mut self, vectors: VarId) {
        if !self.emitter.prefetches || self.cpu.follows_masked_loads {
            return;
        }
        let Some(body) = loop_body(&self.kernel.body, vectors) else {
            return;
        };
        let mut found: Vec<(u32, i64)> = Vec::new();
        for a in walk(body).flat_map(|s| s.accesses()) {
            let (Memory::Param(param), true) = (a.memory, a.effect == Effect::Load && a.is_conditional()) else {
                continue;
            };
            let bytes = self.kernel.memory_dtype(a.memory).bytes() as i64;
            let step = a.index.affine_in(vectors).and_then(|(step, _)| step.as_const());
            let step = step.and_then(|n| n.checked_mul(bytes)).filter(|n| *n > 0);
            if let Some(step) = step
                && found.iter().all(|f| f.0 != param)
            {
                found.push((param, (MASKED_AHEAD_BYTES / step).max(1)));
            }
        }
        self.because(ScheduleReason::MasksAhead);
        for (param, ahead) in found {
            // A hint: rows are as good without it.
            self.apply(Directive::PrefetchIteration {
                var: vectors,
                param,
                ahead,
            });
        }
    }
}

/// Has each iteration of a loop ask for the lines that the iteration so many later reads of a parameter. Returns no loop.
pub(super) fn iteration(
    kernel: &mut Kernel,
    var: VarId,
    param: u32,
    ahead: i64,
) -> Result<Vec<VarId>, DirectiveRefusal> {
    let body = loop_body(&kernel.body, var).ok_or(DirectiveRefusal::NoLoop(var))?;
    let memory = Memory::Param(param);
    let lines = lines(kernel, var, body, memory).ok_or(DirectiveRefusal::NoRun { var, param })?;
    let later = |v: VarId| (v == var).then(|| IndexExpr::from(var) + IndexExpr::Const(ahead));
    let asked: Vec<Stmt> = lines
        .iter()
        .map(|index| Stmt::Prefetch {
            memory,
            index: index.replace_vars(&mut |v| later(v)).simplify(kernel),
        })
        .collect();
    rewrite(kernel, var, &mut |_, bind, body| {
        let body = asked.iter().cloned().chain(body).collect();
        vec![Stmt::Loop { var, bind, body }]
    });
    Ok(Vec::new())
}

/// An element in each line that an iteration of a loop reads of a parameter, wherever lines begin: those of the other loops inside
/// are all its.
fn lines(kernel: &Kernel, var: VarId, body: &[Stmt], memory: Memory) -> Option<Vec<IndexExpr>> {
    let inside = defined_vars(body);
    let line = CACHE_LINE_BYTES / kernel.memory_dtype(memory).bytes() as i64;
    // For each first element how far behind it the others are.
    let mut read: Vec<(IndexExpr, Vec<i64>)> = Vec::new();
    for a in walk(body).flat_map(|s| s.accesses()).filter(|a| a.memory == memory) {
        if a.effect != Effect::Load {
            return None;
        }
        a.index.affine_in(var)?;
        let mut behind = vec![0i64];
        // Elements that lie an unknown distance apart, as those of rows of unknown length do, are in lines of their own.
        let mut firsts = vec![a.index.clone()];
        for &v in inside.iter().filter(|v| a.index.uses(**v)) {
            let (step, _) = a.index.affine_in(v)?;
            let n = kernel.extents[v.0 as usize].as_const().filter(|n| *n >= 1)?;
            let Some(step) = step.as_const() else {
                if n.checked_mul(firsts.len() as i64)? > MOST_RUNS as i64 {
                    return None;
                }
                let at = |e: &IndexExpr, i| e.replace_vars(&mut |w| (w == v).then_some(IndexExpr::Const(i)));
                firsts = firsts.iter().flat_map(|e| (0..n).map(move |i| at(e, i))).collect();
                continue;
            };
            if n.checked_mul(behind.len() as i64)? > MOST_ELEMENTS {
                return None;
            }
            let at = |i: i64| step.checked_mul(i);
            behind = (0..n)
                .flat_map(|i| behind.iter().map(move |b| at(i)?.checked_add(*b)))
                .collect::<Option<Vec<i64>>>()?;
        }
        for first in firsts {
            let first = first.replace_vars(&mut |v| inside.contains(&v).then_some(IndexExpr::ZERO));
            let first = first.simplify(kernel);
            let from = |r: &IndexExpr| (first.clone() - r.clone()).simplify(kernel).as_const();
            match read.iter_mut().find_map(|r| Some((from(&r.0)?, &mut r.1))) {
                Some((from, all)) => all.extend(behind.iter().map(|b| from + b)),
                None => read.push((first, behind.clone())),
            }
        }
    }
    let mut asked = Vec::new();
    for (first, mut behind) in read {
        behind.sort_unstable();
        behind.dedup();
        // Of what goes on where the iteration before ends, as many lines as lie between the two: others that it reads are asked for by those around it.
        let step = first
            .affine_in(var)
            .and_then(|(step, _)| step.as_const())
            .filter(|n| *n > 0);
        if let (Some(step), [from, .., last]) = (step, &behind[..])
            && last - from >= step - 1
            && step % line == 0
        {
            asked.extend((0..step / line).map(|k| first.clone() + IndexExpr::Const(from + k * line)));
            continue;
        }
        // As far apart as a line is long, and the last of neighbours, which may be in the next one, unless the line that was asked for before
        // nearly always has it.
        let mut last: Option<i64> = None;
        for (i, &element) in behind.iter().enumerate() {
            let ends = behind.get(i + 1).is_none_or(|next| next - element >= line);
            let since = last.map_or(line, |l| element - l);
            if since >= line || ends && since > line / 4 {
                asked.push(first.clone() + IndexExpr::Const(element));
                last = Some(element);
            }
        }
    }
    (!asked.is_empty() && asked.len() <= MOST_RUNS).then_some(asked)
}

/// What an iteration of a loop reads of a parameter: from each of these elements on so many side by side, where the next iteration's begin.
/// Loops inside that are unrolled have a run for each of their iterations.
fn runs(kernel: &Kernel, var: VarId, body: &[Stmt], memory: Memory) -> Option<(i64, Vec<IndexExpr>)> {
    let inside = defined_vars(body);
    let unrolled: Vec<VarId> = walk(body)
        .filter_map(|s| match s {
            Stmt::Loop {
                var,
                bind: Bind::Unroll,
                ..
            } => Some(*var),
            _ => None,
        })
        .collect();
    let (mut length, mut firsts) = (None, Vec::new());
    for a in walk(body).flat_map(|s| s.accesses()).filter(|a| a.memory == memory) {
        if a.effect != Effect::Load {
            return None;
        }
        let mut found = vec![a.index.clone()];
        for &v in unrolled.iter().filter(|v| a.index.uses(**v)) {
            let n = kernel.extents[v.0 as usize]
                .as_const()
                .filter(|n| (0..=MOST_RUNS as i64).contains(n))?;
            let of = |index: &IndexExpr, i| index.replace_vars(&mut |w| (w == v).then_some(IndexExpr::Const(i)));
            found = found
                .iter()
                .flat_map(|index| (0..n).map(move |i| of(index, i)))
                .collect();
            if found.len() > MOST_RUNS {
                return None;
            }
        }
        for index in found {
            let first = index.replace_vars(&mut |v| inside.contains(&v).then_some(IndexExpr::ZERO));
            let first = first.simplify(kernel);
            let (stride, _) = first.affine_in(var)?;
            let stride = stride.as_const().filter(|n| *n > 0)?;
            if *length.get_or_insert(stride) != stride {
                return None;
            }
            // What begins within the elements of another run is a part of it.
            let within = |f: &IndexExpr| {
                let from = (first.clone() - f.clone()).simplify(kernel);
                from.as_const().is_some_and(|n| (0..stride).contains(&n))
            };
            if !firsts.iter().any(within) {
                firsts.push(first);
            }
        }
    }
    let length = length.filter(|_| firsts.len() <= MOST_RUNS)?;
    Some((length, firsts))
}
