//! The instructions that touch registers of asynchronous products.
//!
//! A copy of such a register is one of them too: compilers put copies where they like.

use super::touched::touched;
use super::{Instr, Left, Op, Reg, Special, Warpgroup, Watched};

/// Notes what instructions do with registers of asynchronous products; whether there are such products.
pub(super) fn watch(instrs: &mut [Instr], registers: usize, specials: &[(Reg, Special)]) -> bool {
    let mut is_used = vec![false; registers];
    let mut has_products = false;
    for instr in &*instrs {
        if let Op::Warpgroup(what) = &instr.op {
            has_products = true;
            mark(what, &mut is_used);
        }
    }
    if !has_products {
        return false;
    }
    follow_copies(instrs, &mut is_used, specials);
    for instr in instrs {
        instr.watched = watched(&instr.op, &is_used).map(Box::new);
    }
    true
}

fn mark(what: &Warpgroup, is_used: &mut [bool]) {
    let Warpgroup::Product(product) = what else { return };
    let left = match &product.a {
        Left::Registers(registers) => &registers[..],
        Left::Memory { .. } => &[],
    };
    for &register in product.d.iter().chain(left) {
        is_used[register as usize] = true;
    }
}

/// Marks what is copied from and to marked registers; constants, which nobody writes, are none of them.
fn follow_copies(instrs: &[Instr], is_used: &mut [bool], specials: &[(Reg, Special)]) {
    let mut is_special = vec![false; is_used.len()];
    for &(register, _) in specials {
        is_special[register as usize] = true;
    }
    let copies: Vec<(usize, usize)> = instrs
        .iter()
        .filter_map(|i| match i.op {
            Op::Move { d, a } if !is_special[a as usize] => Some((d as usize, a as usize)),
            _ => None,
        })
        .collect();
    let mut changes = true;
    while changes {
        changes = false;
        for &(d, a) in &copies {
            if is_used[d] != is_used[a] {
                is_used[d] = true;
                is_used[a] = true;
                changes = true;
            }
        }
    }
}

fn watched(op: &Op, is_used: &[bool]) -> Option<Watched> {
    let of = |list: Vec<Reg>| list.into_iter().filter(|&r| is_used[r as usize]).collect::<Vec<_>>();
    let (reads, writes) = match op {
        Op::Warpgroup(_) => return None,
        Op::Move { d, a } => {
            return is_used[*d as usize].then(|| Watched {
                reads: Vec::new(),
                writes: Vec::new(),
                copy: Some((*d, *a)),
            });
        }
        Op::Load(access) => (
            vec![access.place.base],
            access.registers.iter().flatten().copied().collect(),
        ),
        Op::Select { d, a, b, .. } => (vec![*a, *b], vec![*d]),
        Op::Shuffle { d, a, b, c, mask, .. } => (vec![*a, *b, *c, *mask], d.iter().copied().collect()),
        _ => {
            let found = touched(op);
            ([found.reads, found.copies].concat(), found.writes)
        }
    };
    let (reads, writes) = (of(reads), of(writes));
    let any = !reads.is_empty() || !writes.is_empty();
    any.then_some(Watched {
        reads,
        writes,
        copy: None,
    })
}
