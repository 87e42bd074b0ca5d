//! Scratch that threads need not share: each touches elements of its own alone.

use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::visit::walk_mut;
use tlc_ir::kernel::{Bind, Kernel, Memory, Scope, Stmt};
use tlc_ir::target::WARP_THREADS;

use crate::directive::DirectiveRefusal;

/// How elements of scratch go to threads: so many neighbours to each of so many threads in turn.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Dealt {
    elements: i64,
    threads: i64,
}

/// The loops over warps and threads around a statement.
#[derive(Clone, Copy, Default)]
struct Around {
    warp: Option<VarId>,
    thread: Option<VarId>,
}

pub(super) fn own(kernel: &mut Kernel, scratch: u32) -> Result<Vec<VarId>, DirectiveRefusal> {
    let held = kernel.scratch.get(scratch as usize);
    let held = held.ok_or(DirectiveRefusal::NoScratch(scratch))?;
    let Some(len) = held.len.as_const().filter(|_| !held.swizzled) else {
        return Err(DirectiveRefusal::SharedElements(scratch));
    };
    if !matches!(held.scope, Scope::Cache | Scope::Shared) {
        return Err(DirectiveRefusal::ScratchScope(Scope::Thread));
    }
    let mut found: Option<Dealt> = None;
    let mut places: Vec<IndexExpr> = Vec::new();
    each_access(&kernel.body, scratch, Around::default(), &mut |index, around| {
        let (dealt, place) = dealt(kernel, index, around)?;
        places.push(place);
        (*found.get_or_insert(dealt) == dealt).then_some(())
    })
    .ok_or(DirectiveRefusal::SharedElements(scratch))?;
    let Some(dealt) = found else {
        return Err(DirectiveRefusal::SharedElements(scratch));
    };
    let mut places = places.into_iter();
    let mut body = std::mem::take(&mut kernel.body);
    walk_mut(&mut body, &mut |s| {
        for a in s.accesses_mut().filter(|a| *a.memory == Memory::Scratch(scratch)) {
            *a.index = places.next().unwrap_or(IndexExpr::ZERO);
        }
    });
    kernel.body = body;
    let turns = (len + dealt.elements * dealt.threads - 1) / (dealt.elements * dealt.threads);
    let held = &mut kernel.scratch[scratch as usize];
    // Of an empty row there is something to declare too.
    (held.len, held.scope) = (IndexExpr::Const((turns * dealt.elements).max(1)), Scope::Thread);
    Ok(Vec::new())
}

/// Shows the index of each access to a scratch, in order; `None` where one is no plain access, or `f` says so.
fn each_access(
    body: &[Stmt],
    scratch: u32,
    around: Around,
    f: &mut impl FnMut(&IndexExpr, Around) -> Option<()>,
) -> Option<()> {
    for s in body {
        let plain = matches!(s, Stmt::Let { .. } | Stmt::Store { .. } | Stmt::Accumulate { .. });
        for a in s.accesses().filter(|a| a.memory == Memory::Scratch(scratch)) {
            f(a.index, around).filter(|()| plain)?;
        }
        let inside = match s {
            Stmt::Loop {
                var, bind: Bind::Warp, ..
            } => Around {
                warp: Some(*var),
                ..around
            },
            Stmt::Loop {
                var,
                bind: Bind::Thread,
                ..
            } => Around {
                thread: Some(*var),
                ..around
            },
            _ => around,
        };
        each_access(s.body(), scratch, inside, f)?;
    }
    Some(())
}

/// How the elements that an index goes through are dealt to the threads of a block, or of a warp if it does not depend on which one that is, and
/// which of its own each thread has there.
fn dealt(kernel: &Kernel, index: &IndexExpr, around: Around) -> Option<(Dealt, IndexExpr)> {
    let thread = around.thread?;
    let count = |v: VarId| kernel.extents[v.0 as usize].as_const();
    let (terms, constant) = index.linear();
    let step = |v: VarId| terms.iter().find(|t| t.0.as_var() == Some(v)).map(|t| t.1);
    // Of several rows of a warp, each has so many threads, whose number in the row counts.
    let parts = std::iter::successors(Some(WARP_THREADS / 2), |n| Some(n / 2)).take_while(|n| *n > 0);
    let numbers = parts.map(|n| (n, IndexExpr::modulo(&thread.into(), &n.into())));
    let mut numbers = numbers.filter(|_| around.warp.is_some());
    let in_part = numbers.find_map(|(n, number)| {
        let term = terms.iter().find(|t| t.0 == number)?;
        Some((n, number, term.1))
    });
    let elements = match &in_part {
        Some((_, _, step)) => *step,
        None => step(thread)?,
    };
    let threads = match around.warp.and_then(|w| Some((w, step(w)?))) {
        Some((warp, apart)) if apart == elements.checked_mul(WARP_THREADS)? => count(warp)? * count(thread)?,
        Some(_) => return None,
        None => in_part.as_ref().map_or_else(|| count(thread), |p| Some(p.0))?,
    };
    if elements < 1 || constant < 0 {
        return None;
    }
    let all = elements.checked_mul(threads)?;
    // What lies behind the thread's first element of a turn.
    let mut behind = constant % all;
    let mut place = IndexExpr::Const(constant / all * elements + behind);
    for (term, step) in &terms {
        let number = in_part.as_ref().is_some_and(|p| p.1 == *term);
        if number || term.as_var().is_some_and(|v| v == thread || Some(v) == around.warp) {
            continue;
        }
        if term.uses(thread) || around.warp.is_some_and(|w| term.uses(w)) {
            return None;
        }
        if step % all == 0 {
            place = place + term.clone() * IndexExpr::Const(step / threads);
            continue;
        }
        let range = term.interval(kernel);
        if *step < 0 || range.lo < 0 {
            return None;
        }
        behind = behind.checked_add(step.checked_mul(range.hi)?)?;
        place = place + term.clone() * IndexExpr::Const(*step);
    }
    (behind < elements).then_some((Dealt { elements, threads }, place))
}
