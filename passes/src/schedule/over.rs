//! What a phase of a row keeps goes where it has read for the last time: two rows in the memory of one.

use tlc_ir::index::VarId;
use tlc_ir::kernel::visit::{walk, walk_mut};
use tlc_ir::kernel::{Kernel, Memory, Op, Stmt};

use super::directives::exists;
use super::phases::{Phase, row, siblings};
use crate::directive::DirectiveRefusal;

/// Has the last scratch, which the phase of the loop over `var` fills, lie where another is, of which each iteration of that phase is the last to read its own
/// element, before it stores. Returns no loop.
pub(super) fn over(kernel: &mut Kernel, var: VarId, scratch: u32, place: u32) -> Result<Vec<VarId>, DirectiveRefusal> {
    exists(kernel, var)?;
    let refused = Err(DirectiveRefusal::ReadLater { scratch, place });
    let Some((last, others)) = kernel.scratch.split_last().filter(|(_, o)| o.len() == scratch as usize) else {
        return Err(DirectiveRefusal::NoScratch(scratch));
    };
    let held = others.get(place as usize).ok_or(DirectiveRefusal::NoScratch(place))?;
    if held != last {
        return refused;
    }
    let (all, at) = siblings(&kernel.body, var).ok_or(DirectiveRefusal::NoLoop(var))?;
    let phase = Phase::of(&all[at]).ok_or(DirectiveRefusal::NotNested(var, var))?;
    let (len, own) = row(kernel, &phase.vars);
    let touches = |body: &[Stmt], s: u32| {
        let mut accesses = walk(body).flat_map(|x| x.accesses());
        accesses.any(|a| a.memory == Memory::Scratch(s))
    };
    let count = |body: &[Stmt], s: u32| {
        let accesses = walk(body).flat_map(|x| x.accesses());
        accesses.filter(|a| a.memory == Memory::Scratch(s)).count()
    };
    let [before, behind] = [&all[..at], &all[at + 1..]];
    // All of one is behind the phase, all of the other in front of it: nothing around repeats them in another order.
    let in_order = !touches(before, scratch)
        && !touches(behind, place)
        && [scratch, place]
            .iter()
            .all(|&s| count(all, s) == count(&kernel.body, s));
    let stored = phase.body.iter().position(|s| match s {
        Stmt::Store {
            memory,
            index,
            mask: None,
            ..
        } => *memory == Memory::Scratch(scratch) && *index == own,
        _ => false,
    });
    let Some(stored) = stored else { return refused };
    let (reading, rest) = phase.body.split_at(stored);
    let reads_own = reading.iter().all(|s| match s {
        Stmt::Let {
            op: Op::Load { memory, index, .. },
            ..
        } if *memory == Memory::Scratch(place) => *index == own,
        s => !touches(std::slice::from_ref(s), place),
    });
    let fills = !touches(reading, scratch) && !touches(&rest[1..], scratch);
    if !in_order || !fills || !reads_own || touches(rest, place) || held.len != len {
        return refused;
    }
    walk_mut(&mut kernel.body, &mut |s| {
        let moved = s.accesses_mut().map(|a| a.memory);
        moved
            .filter(|m| **m == Memory::Scratch(scratch))
            .for_each(|m| *m = Memory::Scratch(place));
    });
    kernel.scratch.pop();
    Ok(Vec::new())
}
