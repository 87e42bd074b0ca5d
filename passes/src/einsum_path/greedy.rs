//! Greedy contraction trees, plain and randomized.
//!
//! The pair of tensors with the lowest `size(result) - alpha * (size(a) + size(b))` is contracted first, among pairs that
//! share a class; what stays unconnected is multiplied at the end, smallest first. With a temperature each score is
//! moved by Gumbel noise on a logarithmic scale, which samples pairs by Boltzmann weights.
//!
//! A class that many tensors hold would give quadratically many pairs, so each tensor meets at most
//! [`NEIGHBOURS_PER_CLASS`] holders of each of its classes.
//!
//! Source: Smith and Gray, "opt_einsum", JOSS 3(26), 753 (2018), paths `greedy` and `random-greedy`; alpha and
//! temperature as in Gray and Kourtis, arXiv:2002.01935.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use super::network::{Mask, Network, members};

const NEIGHBOURS_PER_CLASS: usize = 12;

/// A deterministic generator: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014).
pub(super) struct SplitMix64(pub u64);

impl SplitMix64 {
    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in the open interval (0, 1).
    pub fn unit(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }
}

/// How to score a pair.
#[derive(Clone, Copy)]
pub(super) struct Scoring {
    /// The weight of what the pair frees against what it makes.
    pub alpha: f64,
    /// The scale of the noise; 0 for none.
    pub temperature: f64,
}

#[derive(PartialEq)]
struct Candidate {
    score: f64,
    pair: (u32, u32),
}

impl Eq for Candidate {}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(self.pair.cmp(&other.pair))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

struct Search<'a> {
    network: &'a Network,
    scoring: Scoring,
    random: &'a mut SplitMix64,
    /// Classes and elements of each tensor made so far.
    tensors: Vec<(Mask, f64)>,
    alive: Vec<bool>,
    /// Living tensors by class.
    holders: Vec<Vec<u32>>,
    /// Holders left of each class, the output included.
    live: Vec<u32>,
    /// The classes that only two hold, so that contracting the two sums them.
    closing: Mask,
    queue: BinaryHeap<Reverse<Candidate>>,
    /// The last tensor that met each tensor, so that no pair is queued twice.
    met: Vec<u32>,
}

/// The merges of a greedy tree, as in [`super::exact::Solution::merges`].
pub(super) fn greedy(network: &Network, scoring: Scoring, random: &mut SplitMix64) -> Vec<(usize, usize)> {
    let count = network.leaves.len();
    let mut closing = Mask::from_elem(0, network.output.len());
    for (class, &held) in network.holders.iter().enumerate() {
        if held == 2 && network.output[class / 64] >> (class % 64) & 1 == 0 {
            closing[class / 64] |= 1 << (class % 64);
        }
    }
    let mut search = Search {
        network,
        scoring,
        random,
        tensors: Vec::with_capacity(2 * count),
        alive: Vec::with_capacity(2 * count),
        holders: vec![Vec::new(); network.extents.len()],
        live: network.holders.clone(),
        closing,
        queue: BinaryHeap::with_capacity(4 * count),
        met: Vec::with_capacity(2 * count),
    };
    for leaf in &network.leaves {
        search.add(leaf.clone());
    }
    let mut merges = Vec::with_capacity(count.saturating_sub(1));
    while let Some(Reverse(Candidate { pair: (a, b), .. })) = search.queue.pop() {
        if search.alive[a as usize] && search.alive[b as usize] {
            merges.push((a as usize, b as usize));
            search.contract(a, b);
        }
    }
    // What is left shares nothing (or its candidates were cut): outer products, the smallest two first.
    let remaining = (0..search.tensors.len()).filter(|&t| search.alive[t]);
    let mut rest: BinaryHeap<_> = remaining
        .map(|t| {
            Reverse(Candidate {
                score: search.tensors[t].1,
                pair: (t as u32, 0),
            })
        })
        .collect();
    while let (Some(Reverse(a)), Some(Reverse(b))) = (rest.pop(), rest.pop()) {
        let (a, b) = (a.pair.0, b.pair.0);
        merges.push((a.min(b) as usize, a.max(b) as usize));
        let made = search.contract(a, b);
        rest.push(Reverse(Candidate {
            score: search.tensors[made as usize].1,
            pair: (made, 0),
        }));
    }
    merges
}

impl Search<'_> {
    fn result(&self, a: u32, b: u32) -> Mask {
        let (a, b) = (&self.tensors[a as usize].0, &self.tensors[b as usize].0);
        (0..a.len())
            .map(|w| (a[w] | b[w]) & !(a[w] & b[w] & self.closing[w]))
            .collect()
    }

    fn contract(&mut self, a: u32, b: u32) -> u32 {
        let result = self.result(a, b);
        for tensor in [a, b] {
            self.alive[tensor as usize] = false;
            for class in members(&self.tensors[tensor as usize].0) {
                self.holders[class].retain(|&t| t != tensor);
            }
        }
        for w in 0..result.len() {
            let mut shared = self.tensors[a as usize].0[w] & self.tensors[b as usize].0[w];
            while shared != 0 {
                let bit = shared.trailing_zeros() as usize;
                shared &= shared - 1;
                let live = &mut self.live[64 * w + bit];
                *live -= 1;
                if *live == 2 && self.network.output[w] >> bit & 1 == 0 {
                    self.closing[w] |= 1 << bit;
                }
            }
        }
        self.add(result)
    }

    fn add(&mut self, open: Mask) -> u32 {
        let id = self.tensors.len() as u32;
        let size = self.network.size(&open);
        self.tensors.push((open, size));
        self.alive.push(true);
        self.met.push(id);
        for class in members(&self.tensors[id as usize].0.clone()) {
            let known = self.holders[class].len();
            for k in 0..known.min(NEIGHBOURS_PER_CLASS) {
                // The newest holders: they change most, and so differ from one tensor to the next.
                let other = self.holders[class][known - 1 - k];
                if std::mem::replace(&mut self.met[other as usize], id) != id {
                    let score = self.score(other, id);
                    self.queue.push(Reverse(Candidate {
                        score,
                        pair: (other, id),
                    }));
                }
            }
            self.holders[class].push(id);
        }
        id
    }

    fn score(&mut self, a: u32, b: u32) -> f64 {
        let made = self.network.size(&self.result(a, b));
        let freed = self.tensors[a as usize].1 + self.tensors[b as usize].1;
        let gain = made - self.scoring.alpha * freed;
        if self.scoring.temperature == 0.0 {
            return gain;
        }
        let noise = -(-self.random.unit().ln()).ln();
        gain.signum() * (gain.abs() + 1.0).ln() - self.scoring.temperature * noise
    }
}
