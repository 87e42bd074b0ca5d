//! Where lanes that part at a branch meet again: the immediate post-dominator of the branch.

use super::{Instr, NEVER, Op, Pc};

/// Where control may go from an instruction; `len` stands for the function's end.
fn successors(instrs: &[Instr], pc: usize) -> Vec<usize> {
    let end = instrs.len();
    let next = pc + 1;
    let always = instrs[pc].guard.is_none();
    let mut all = match &instrs[pc].op {
        Op::Branch { to, .. } => vec![*to as usize],
        Op::BranchTable { targets, .. } => targets.iter().map(|&t| t as usize).collect(),
        Op::Return | Op::Exit | Op::Trap => vec![end],
        _ => return vec![next],
    };
    if !always {
        all.push(next);
    }
    all
}

/// Fills in where the lanes of each branch meet.
pub(super) fn resolve_meeting_points(instrs: &mut [Instr]) {
    // Blocks: runs of instructions that control enters only at the top.
    let len = instrs.len();
    let mut leads = vec![false; len + 1];
    leads[0] = true;
    leads[len] = true;
    for pc in 0..len {
        let targets = successors(instrs, pc);
        if targets != [pc + 1] {
            leads[pc + 1] = true;
            for target in targets {
                leads[target.min(len)] = true;
            }
        }
    }
    let starts: Vec<usize> = (0..=len).filter(|&pc| leads[pc]).collect();
    let exit = starts.len() - 1;
    let mut block_at = vec![0; len + 1];
    for (block, &start) in starts.iter().enumerate() {
        block_at[start] = block;
    }
    let outs: Vec<Vec<usize>> = (0..exit)
        .map(|block| {
            let last = starts[block + 1] - 1;
            successors(instrs, last)
                .into_iter()
                .map(|pc| block_at[pc.min(len)])
                .collect()
        })
        .collect();
    let immediate = post_dominators(&outs, exit);
    for (block, &meet) in immediate.iter().enumerate().take(exit) {
        let last = starts[block + 1] - 1;
        let at = if meet == exit { NEVER } else { starts[meet] as Pc };
        if let Op::Branch { meet, .. } | Op::BranchTable { meet, .. } = &mut instrs[last].op {
            *meet = at;
        }
    }
}

/// The immediate post-dominator of each block, by the algorithm of Cooper, Harvey and Kennedy on the graph turned around.
fn post_dominators(outs: &[Vec<usize>], exit: usize) -> Vec<usize> {
    let mut ins = vec![Vec::new(); exit + 1];
    for (block, targets) in outs.iter().enumerate() {
        for &target in targets {
            ins[target].push(block);
        }
    }
    // Numbers in the order in which a walk from the exit, backward, leaves the blocks.
    let mut number = vec![usize::MAX; exit + 1];
    let mut order = Vec::new();
    let mut seen = vec![false; exit + 1];
    let mut stack = vec![(exit, 0)];
    seen[exit] = true;
    while let Some((block, next)) = stack.pop() {
        if let Some(&from) = ins[block].get(next) {
            stack.push((block, next + 1));
            if !seen[from] {
                seen[from] = true;
                stack.push((from, 0));
            }
        } else {
            number[block] = order.len();
            order.push(block);
        }
    }
    let mut immediate = vec![usize::MAX; exit + 1];
    immediate[exit] = exit;
    let mut changed = true;
    while changed {
        changed = false;
        for &block in order.iter().rev() {
            if block == exit {
                continue;
            }
            let mut meet = usize::MAX;
            for &out in &outs[block] {
                if immediate[out] == usize::MAX {
                    continue;
                }
                meet = if meet == usize::MAX {
                    out
                } else {
                    intersect(meet, out, &immediate, &number)
                };
            }
            if meet != usize::MAX && immediate[block] != meet {
                immediate[block] = meet;
                changed = true;
            }
        }
    }
    // Blocks from which the exit cannot be reached, such as endless loops, meet nowhere.
    immediate
        .iter()
        .map(|&meet| if meet == usize::MAX { exit } else { meet })
        .collect()
}

fn intersect(mut a: usize, mut b: usize, immediate: &[usize], number: &[usize]) -> usize {
    while a != b {
        while number[a] < number[b] {
            a = immediate[a];
        }
        while number[b] < number[a] {
            b = immediate[b];
        }
    }
    a
}
