//! The optimal tree among those that keep a given order of the operands: every intermediate is made of neighbours.
//!
//! For a matrix chain that is the textbook matrix-chain product (Godbole, "On efficient computation of matrix chain
//! products", 1973), which greedy search misses badly: on a chain that ends in a vector it may multiply the matrices
//! first. Networks that are one path (each class shared by two neighbours, or of the output) are solved on plain
//! numbers in O(n^3); others, if they are small, with masks.

use super::network::{Mask, Network, members, saturate, union};

/// The most operands for which [`in_order`] is tried on networks that are no path.
pub(super) const MASKED_LIMIT: usize = 64;

/// The most operands for which a path is solved: 4 ms at 250, 30 ms at 500.
pub(super) const PATH_LIMIT: usize = 512;

/// The neighbours of each operand through classes that few hold.
fn neighbours(network: &Network) -> Vec<Vec<usize>> {
    let mut holders: Vec<Vec<usize>> = vec![Vec::new(); network.extents.len()];
    for (leaf, mask) in network.leaves.iter().enumerate() {
        members(mask).for_each(|class| holders[class].push(leaf));
    }
    let mut result: Vec<Vec<usize>> = vec![Vec::new(); network.leaves.len()];
    for held_by in holders.iter().filter(|h| h.len() <= 8) {
        for &a in held_by {
            result[a].extend(held_by.iter().filter(|&&b| b != a));
        }
    }
    for list in &mut result {
        list.sort_unstable();
        list.dedup();
    }
    result
}

/// Breadth first, each component from one of its ends.
pub(super) fn breadth_first_order(network: &Network) -> Vec<usize> {
    let neighbours = neighbours(network);
    let walk = |start: usize, seen: &mut Vec<bool>| {
        let mut order = vec![start];
        seen[start] = true;
        let mut next = 0;
        while next < order.len() {
            for &other in &neighbours[order[next]] {
                if !std::mem::replace(&mut seen[other], true) {
                    order.push(other);
                }
            }
            next += 1;
        }
        order
    };
    let mut seen = vec![false; network.leaves.len()];
    let mut order = Vec::with_capacity(network.leaves.len());
    for leaf in 0..network.leaves.len() {
        if !seen[leaf] {
            let mut scratch = seen.clone();
            let end = walk(leaf, &mut scratch).last().copied().unwrap_or(leaf);
            order.extend(walk(end, &mut seen));
        }
    }
    order
}

/// From an end of the network on, always the operand next that leaves the fewest elements open: a frontier that sweeps
/// over the network.
pub(super) fn sweep_order(network: &Network, start: usize) -> Vec<usize> {
    let mut rest: Vec<usize> = (0..network.leaves.len()).filter(|&leaf| leaf != start).collect();
    let mut order = vec![start];
    let mut live = network.holders.clone();
    let mut open = network.leaves[start].clone();
    while !rest.is_empty() {
        let connected = |leaf: usize| network.leaves[leaf].iter().zip(&open).any(|(x, y)| x & y != 0);
        // The elements that the frontier gains or loses by an operand, as a factor.
        let growth = |leaf: usize| {
            members(&network.leaves[leaf])
                .map(|class| match (open[class / 64] >> (class % 64) & 1 != 0, live[class]) {
                    (false, _) => network.extents[class],
                    (true, 2) => 1.0 / network.extents[class].max(1.0),
                    (true, _) => 1.0,
                })
                .product::<f64>()
        };
        let keys = rest
            .iter()
            .enumerate()
            .map(|(k, &leaf)| (!connected(leaf), growth(leaf), k));
        let next = keys
            .min_by(|x, y| x.0.cmp(&y.0).then(x.1.total_cmp(&y.1)))
            .map_or(0, |(.., k)| k);
        let leaf = rest.remove(next);
        for class in members(&network.leaves[leaf]) {
            let bit = 1 << (class % 64);
            if open[class / 64] & bit != 0 {
                live[class] -= 1;
            }
            open[class / 64] |= bit;
            if live[class] < 2 {
                open[class / 64] &= !bit;
            }
        }
        order.push(leaf);
    }
    order
}

/// The tree that takes the operands one by one.
pub(super) fn one_by_one(order: &[usize]) -> Vec<(usize, usize)> {
    let first = order.first().copied().into_iter();
    let made = first.chain(order.len()..);
    made.zip(order.iter().skip(1).copied()).collect()
}

/// If the network is one path: the extent to the left of each operand of `order` (and 1 at the end), and the product
/// of the output's classes that each operand has.
fn as_path(network: &Network, order: &[usize]) -> Option<(Vec<f64>, Vec<f64>)> {
    let mut place = vec![0; order.len()];
    order.iter().enumerate().for_each(|(k, &leaf)| place[leaf] = k);
    let mut bonds = vec![1.0; order.len() + 1];
    let mut legs = vec![1.0; order.len()];
    let mut ends: Vec<(usize, usize)> = vec![(usize::MAX, 0); network.extents.len()];
    for (leaf, mask) in network.leaves.iter().enumerate() {
        for class in members(mask) {
            let (low, high) = &mut ends[class];
            (*low, *high) = ((*low).min(place[leaf]), (*high).max(place[leaf]));
        }
    }
    for (class, &(low, high)) in ends.iter().enumerate() {
        let in_output = network.output[class / 64] >> (class % 64) & 1 != 0;
        let extent = network.extents[class];
        match (network.holders[class], in_output) {
            (2, true) => legs[low] = saturate(legs[low] * extent),
            (2, false) if high == low + 1 => bonds[high] = saturate(bonds[high] * extent),
            _ => return None,
        }
    }
    Some((bonds, legs))
}

/// The best tree over `order` under the limit; `None` also if the network is neither a path nor small.
pub(super) fn in_order(network: &Network, order: &[usize], limit: f64) -> Option<Vec<(usize, usize)>> {
    let count = order.len();
    let splits = match as_path(network, order) {
        Some((bonds, legs)) if count <= PATH_LIMIT => path_splits(&bonds, &legs, limit),
        _ if count <= MASKED_LIMIT => masked_splits(network, order, limit),
        _ => None,
    }?;
    let mut merges = Vec::with_capacity(count - 1);
    emit(order, &splits, 0, count, &mut merges);
    Some(merges)
}

/// A table over the intervals `i..j` of `0..=count`.
struct Intervals<T> {
    width: usize,
    cells: Vec<T>,
}

impl<T: Clone> Intervals<T> {
    fn new(count: usize, value: T) -> Self {
        Intervals {
            width: count + 1,
            cells: vec![value; (count + 1) * (count + 1)],
        }
    }

    fn get(&self, i: usize, j: usize) -> &T {
        &self.cells[i * self.width + j]
    }

    fn set(&mut self, i: usize, j: usize, value: T) {
        self.cells[i * self.width + j] = value;
    }
}

fn emit(order: &[usize], splits: &Intervals<u32>, i: usize, j: usize, merges: &mut Vec<(usize, usize)>) -> usize {
    if j == i + 1 {
        return order[i];
    }
    let k = *splits.get(i, j) as usize;
    let a = emit(order, splits, i, k, merges);
    let b = emit(order, splits, k, j, merges);
    merges.push((a, b));
    order.len() + merges.len() - 1
}

fn path_splits(bonds: &[f64], legs: &[f64], limit: f64) -> Option<Intervals<u32>> {
    let count = legs.len();
    let mut splits = Intervals::new(count, 0u32);
    // `starting` is indexed by (i, j), `ending` by (j, i), so that the inner loop reads both in sequence.
    let mut starting = Intervals::new(count, 0.0f64);
    let mut ending = Intervals::new(count, 0.0f64);
    let mut leg_products = legs.to_vec();
    for length in 2..=count {
        for i in 0..=count - length {
            let j = i + length;
            leg_products[i] = saturate(leg_products[i] * legs[j - 1]);
            let size = saturate(bonds[i] * bonds[j] * leg_products[i]);
            let (mut best, mut best_split) = (f64::INFINITY, 0);
            if length == count || size <= limit {
                let row = &starting.cells[i * starting.width..];
                let column = &ending.cells[j * ending.width..];
                for k in i + 1..j {
                    let cost = row[k] + column[k] + 2.0 * size * bonds[k];
                    if cost < best {
                        (best, best_split) = (cost, k);
                    }
                }
            }
            starting.set(i, j, best);
            ending.set(j, i, best);
            splits.set(i, j, best_split as u32);
        }
    }
    (*starting.get(0, count) < f64::INFINITY).then_some(splits)
}

fn masked_splits(network: &Network, order: &[usize], limit: f64) -> Option<Intervals<u32>> {
    let count = order.len();
    let words = network.output.len();
    let mut splits = Intervals::new(count, 0u32);
    let mut cost = Intervals::new(count, 0.0f64);
    let mut open = Intervals::new(count, Mask::from_elem(0, words));
    let nothing = Mask::from_elem(0, words);
    let mut before = vec![nothing.clone()];
    let mut after = vec![network.output.clone(); count + 1];
    for k in 0..count {
        before.push(union(&before[k], &network.leaves[order[k]]));
        after[count - 1 - k] = union(&after[count - k], &network.leaves[order[count - 1 - k]]);
    }
    for (i, before) in before.iter().enumerate().take(count) {
        let mut inside = nothing.clone();
        for j in i + 1..=count {
            inside = union(&inside, &network.leaves[order[j - 1]]);
            let outside = union(before, &after[j]);
            open.set(i, j, inside.iter().zip(&outside).map(|(x, y)| x & y).collect());
        }
    }
    for length in 2..=count {
        for i in 0..=count - length {
            let j = i + length;
            let (mut best, mut best_split) = (f64::INFINITY, 0);
            if length == count || network.size(open.get(i, j)) <= limit {
                for k in i + 1..j {
                    let parts = cost.get(i, k) + cost.get(k, j);
                    if parts < best {
                        let candidate = parts + 2.0 * network.size(&union(open.get(i, k), open.get(k, j)));
                        if candidate < best {
                            (best, best_split) = (candidate, k);
                        }
                    }
                }
            }
            cost.set(i, j, best);
            splits.set(i, j, best_split as u32);
        }
    }
    (*cost.get(0, count) < f64::INFINITY).then_some(splits)
}
