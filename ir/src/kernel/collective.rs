//! What the threads of a warp or a block compute together, from one element of each.
//!
//! A collective acts on one element of scratch of scope `Thread`: `memory[index]` of each thread of the group, in place. With
//! `x[t]` the element of the group's thread `t`:
//!
//! - `reduce` combines all of them, and each thread gets the result. Of a warp it is a tree, whatever the monoid:
//!
//!   ```text
//!   for half in [16, 8, 4, 2, 1]
//!     for t in 0..half
//!       x[t] = x[t] ⊕ x[t + half]        if there is a thread t + half
//!   ```
//!
//!   of which `x[0]` is the result. Of a block each warp reduces (the last one may have fewer threads), then the
//!   results of the warps in the same way.
//! - `scan` gives thread `t` what the threads up to and with `t` combine to. Of a warp:
//!
//!   ```text
//!   for step in [1, 2, 4, 8, 16]
//!     for t in (step..threads) descending
//!       x[t] = x[t - step] ⊕ x[t]
//!   ```
//!
//!   Of a block each warp scans, then the last elements of the warps in the same way, and then each element of a warp
//!   but the first is combined with what the warps before came to, on the left.
//! - `broadcast` gives each thread the element of one of them.
//! - `shift` gives each thread the element of the thread before it, and the first one what combines with nothing to nothing.
//!
//! Of a part of a warp it is as of a warp of so many threads, in each part.
//!
//! These are the orders of shuffles, so a GPU's result is the same bits.

use super::Memory;
use crate::graph::Monoid;
use crate::index::IndexExpr;
use crate::target::WARP_THREADS;

/// What a [`Collective`] does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CollectiveKind {
    /// Combines all elements.
    Reduce(Monoid),
    /// Combines each element with those of the threads before.
    Scan(Monoid),
    /// Gives every thread the element of this one of the group.
    Broadcast(i64),
    /// Gives every thread the element of the thread before, and the first one the monoid's identity.
    Shift(Monoid),
}

/// Which threads take part in a [`Collective`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Group {
    /// Those of the warp around.
    Warp,
    /// Each so many neighbours of the warp around, a power of two of them, among themselves.
    Part(i64),
    /// So many threads of the block, from the first one on.
    Block(i64),
}

impl Group {
    /// How many threads it has.
    pub const fn threads(self) -> i64 {
        match self {
            Group::Warp => WARP_THREADS,
            Group::Part(threads) | Group::Block(threads) => threads,
        }
    }

    /// How many groups of this kind the warp around has; of a block there is one.
    pub const fn parts(self) -> i64 {
        match self {
            Group::Part(threads) if threads > 0 => WARP_THREADS / threads,
            _ => 1,
        }
    }
}

/// See the [module](self).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Collective {
    /// What is done.
    pub kind: CollectiveKind,
    /// By whom.
    pub group: Group,
    /// Scratch of scope `Thread`.
    pub memory: Memory,
    /// The element of each thread's copy.
    pub index: IndexExpr,
}

/// One step of a collective of several threads: `to = left ⊕ right`, for threads of the group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CombineStep {
    /// Whose element is replaced.
    pub to: i64,
    /// Whose element is the left operand.
    pub left: i64,
    /// Whose element is the right operand.
    pub right: i64,
}

/// Threads of one warp or the warps of a block, by their number in the group: those that a tree or a scan goes over.
fn tree(members: &[i64], out: &mut Vec<CombineStep>) {
    let mut half = WARP_THREADS as usize / 2;
    while half > 0 {
        for t in 0..half.min(members.len()) {
            if let Some(&right) = members.get(t + half) {
                out.push(CombineStep {
                    to: members[t],
                    left: members[t],
                    right,
                });
            }
        }
        half /= 2;
    }
}

fn prefix(members: &[i64], out: &mut Vec<CombineStep>) {
    let mut step = 1;
    while step < WARP_THREADS as usize {
        for t in (step..members.len()).rev() {
            out.push(CombineStep {
                to: members[t],
                left: members[t - step],
                right: members[t],
            });
        }
        step *= 2;
    }
}

impl CollectiveKind {
    /// How elements are combined, if they are.
    pub const fn monoid(self) -> Option<Monoid> {
        match self {
            CollectiveKind::Reduce(monoid) | CollectiveKind::Scan(monoid) | CollectiveKind::Shift(monoid) => {
                Some(monoid)
            }
            CollectiveKind::Broadcast(_) => None,
        }
    }

    /// The combinations that a group of so many threads does, one after another, and then the thread whose element every thread
    /// gets, if they all get one. A shift combines nothing.
    pub fn steps(self, threads: i64) -> (Vec<CombineStep>, Option<i64>) {
        let all: Vec<i64> = (0..threads).collect();
        let warps: Vec<&[i64]> = all.chunks(WARP_THREADS as usize).collect();
        let mut out = Vec::new();
        match self {
            CollectiveKind::Broadcast(from) => (out, Some(from)),
            CollectiveKind::Shift(_) => (out, None),
            CollectiveKind::Reduce(_) => {
                warps.iter().for_each(|w| tree(w, &mut out));
                let firsts: Vec<i64> = warps.iter().map(|w| w[0]).collect();
                tree(&firsts, &mut out);
                (out, Some(0))
            }
            CollectiveKind::Scan(_) => {
                warps.iter().for_each(|w| prefix(w, &mut out));
                let lasts: Vec<i64> = warps.iter().map(|w| w[w.len() - 1]).collect();
                prefix(&lasts, &mut out);
                for (w, &before) in warps.iter().skip(1).zip(&lasts) {
                    // Its last element has been combined already.
                    out.extend(w[..w.len() - 1].iter().map(|&t| CombineStep {
                        to: t,
                        left: before,
                        right: t,
                    }));
                }
                (out, None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What each thread has after the steps, as text.
    fn after(kind: CollectiveKind, threads: i64) -> Vec<String> {
        let mut x: Vec<String> = (0..threads).map(|t| t.to_string()).collect();
        let (steps, all) = kind.steps(threads);
        for s in steps {
            x[s.to as usize] = format!("({}+{})", x[s.left as usize], x[s.right as usize]);
        }
        if let Some(from) = all {
            let one = x[from as usize].clone();
            x.fill(one);
        }
        x
    }

    #[test]
    fn trees_and_scans_combine_in_the_stated_order() {
        let reduced = after(CollectiveKind::Reduce(Monoid::Add), 4);
        assert!(reduced.iter().all(|x| x == "((0+2)+(1+3))"), "{reduced:?}");
        assert_eq!(after(CollectiveKind::Reduce(Monoid::Add), 3)[2], "((0+2)+1)");
        let scanned = after(CollectiveKind::Scan(Monoid::Add), 4);
        assert_eq!(scanned, ["0", "(0+1)", "(0+(1+2))", "((0+1)+(2+3))"]);
        assert_eq!(after(CollectiveKind::Broadcast(2), 3), ["2", "2", "2"]);
    }

    #[test]
    fn every_thread_of_every_group_gets_all_that_it_should() {
        let numbers = |text: &str| -> Vec<i64> {
            let mut all: Vec<i64> = text
                .split(|c: char| !c.is_ascii_digit())
                .filter(|n| !n.is_empty())
                .map(|n| n.parse().unwrap())
                .collect();
            let sorted = all.is_sorted();
            all.sort();
            // A scan keeps the order, for monoids that do not commute.
            if sorted {
                all
            } else {
                all.into_iter().map(|n| n + 5000).collect()
            }
        };
        for threads in [1, 2, 31, 32, 33, 64, 70, 128, 1024] {
            for x in after(CollectiveKind::Reduce(Monoid::Add), threads) {
                let mut all: Vec<i64> = numbers(&x).into_iter().map(|n| n % 5000).collect();
                all.sort();
                assert_eq!(all, Vec::from_iter(0..threads));
            }
            for (t, x) in after(CollectiveKind::Scan(Monoid::Add), threads).iter().enumerate() {
                assert_eq!(numbers(x), Vec::from_iter(0..=t as i64), "{threads} threads");
            }
        }
    }
}
