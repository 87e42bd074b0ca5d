//! The optimal order, by dynamic programming over subsets of the operands.
//!
//! For each subset of the leaves the cheapest contraction tree is built from the cheapest trees of two complementary
//! parts, over all such parts, outer products included: (3^n - 2^(n+1) + 1) / 2 splits for n leaves. The tensor that a
//! subset contracts to does not depend on the order, which is what makes the subproblems independent. Ties go to the
//! smaller total size of the intermediates.
//!
//! Source: Pfeifer, Haegeman, Verstraete, "Faster identification of optimal contraction sequences for tensor networks",
//! Phys. Rev. E 90, 033315 (2014), arXiv:1304.6112, without its pruning (for the few leaves here a dense table is faster).

use super::network::{SATURATED, saturate};

/// The most classes a problem may have; ten leaves never have more.
pub(super) const MAX_CLASSES: usize = 2048;

/// A contraction tree over the leaves of one problem.
pub(super) struct Solution {
    /// Pairs in order, by number: leaves are `0..n`, the result of `merges[k]` is `n + k`.
    pub merges: Vec<(usize, usize)>,
    /// Twice the sum over steps of the product of all extents of the pair.
    pub flops: f64,
    /// The sum of the sizes of all intermediates, the final result excluded.
    pub total: f64,
}

/// The cheapest tree in which no intermediate (the final result is none) exceeds `limit` elements, if there is one.
///
/// `leaves` and `output` are masks over `extents`. A class of one leaf alone must be in `output`. Between 1 and 16 leaves and
/// at most [`MAX_CLASSES`] classes.
pub(super) fn solve(leaves: &[&[u64]], output: &[u64], extents: &[f64], limit: f64) -> Option<Solution> {
    match Classes::of(leaves, output, extents) {
        classes if classes.keys.len() <= 64 => Subsets::<1>::new(leaves.len(), &classes).solve(limit),
        classes if classes.keys.len() <= 256 => Subsets::<4>::new(leaves.len(), &classes).solve(limit),
        classes => Subsets::<32>::new(leaves.len(), &classes).solve(limit),
    }
}

/// The least limit under which [`solve`] finds a tree: the smallest possible largest intermediate.
pub(super) fn smallest_limit(leaves: &[&[u64]], output: &[u64], extents: &[f64]) -> f64 {
    match Classes::of(leaves, output, extents) {
        classes if classes.keys.len() <= 64 => Subsets::<1>::new(leaves.len(), &classes).smallest_limit(),
        classes if classes.keys.len() <= 256 => Subsets::<4>::new(leaves.len(), &classes).smallest_limit(),
        classes => Subsets::<32>::new(leaves.len(), &classes).smallest_limit(),
    }
}

/// The number of splits that [`solve`] looks at: what it costs.
pub(super) fn split_count(leaves: usize) -> u64 {
    3u64.saturating_pow(leaves as u32) / 2
}

/// The distinct classes of a problem (see [`super::network`]): bit `k` of a key is set if leaf `k` holds the class, bit
/// `n` if the output does.
struct Classes {
    keys: Vec<(u32, f64)>,
}

impl Classes {
    fn of(leaves: &[&[u64]], output: &[u64], extents: &[f64]) -> Self {
        let mut keys: Vec<(u32, f64)> = Vec::new();
        for (word, &in_output) in output.iter().enumerate() {
            let mut rest = leaves.iter().fold(0, |all, leaf| all | leaf[word]);
            while rest != 0 {
                let bit = rest.trailing_zeros();
                rest &= rest - 1;
                let held = |mask: u64, place: usize| ((mask >> bit & 1) as u32) << place;
                let key = leaves
                    .iter()
                    .enumerate()
                    .fold(held(in_output, leaves.len()), |key, (place, leaf)| {
                        key | held(leaf[word], place)
                    });
                keys.push((key, extents[64 * word + bit as usize]));
            }
        }
        // Products commute only up to rounding; the stable sort keeps them deterministic.
        keys.sort_by_key(|&(key, _)| key);
        keys.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            if same {
                kept.1 = saturate(kept.1 * next.1);
            }
            same
        });
        Classes { keys }
    }
}

/// What is known of each subset of the leaves, indexed by its bits.
struct Subsets<const W: usize> {
    leaf_count: usize,
    /// The classes of the tensor that the subset contracts to.
    open: Vec<[u64; W]>,
    /// Its number of elements.
    size: Vec<f64>,
    /// For each group of eight classes the product of the extents of each of its 256 subsets.
    products: Vec<[f64; 256]>,
}

impl<const W: usize> Subsets<W> {
    fn new(leaf_count: usize, classes: &Classes) -> Self {
        let mut products = vec![[1.0; 256]; classes.keys.len().div_ceil(8)];
        let mut leaf_masks = vec![[0u64; W]; leaf_count];
        let mut output = [0u64; W];
        for (class, &(key, extent)) in classes.keys.iter().enumerate() {
            let (word, bit) = (class / 64, 1u64 << (class % 64));
            for (place, mask) in leaf_masks.iter_mut().enumerate() {
                if key >> place & 1 != 0 {
                    mask[word] |= bit;
                }
            }
            if key >> leaf_count & 1 != 0 {
                output[word] |= bit;
            }
            for (subset, product) in products[class / 8].iter_mut().enumerate() {
                if subset >> (class % 8) & 1 != 0 {
                    *product = saturate(*product * extent);
                }
            }
        }
        let full = (1usize << leaf_count) - 1;
        let mut all = vec![[0u64; W]; full + 1];
        for subset in 1..=full {
            let leaf = leaf_masks[subset.trailing_zeros() as usize];
            let rest = all[subset & (subset - 1)];
            all[subset] = std::array::from_fn(|w| leaf[w] | rest[w]);
        }
        let mut this = Subsets {
            leaf_count,
            open: Vec::with_capacity(full + 1),
            size: Vec::new(),
            products,
        };
        for subset in 0..=full {
            let (inside, outside) = (&all[subset], &all[full ^ subset]);
            this.open
                .push(std::array::from_fn(|w| inside[w] & (outside[w] | output[w])));
        }
        this.size = this.open.iter().map(|open| this.product(open)).collect();
        this
    }

    #[inline]
    fn product(&self, mask: &[u64; W]) -> f64 {
        let mut product = 1.0;
        for (group, table) in self.products.iter().enumerate() {
            product *= table[(mask[group / 8] >> (8 * (group % 8)) & 0xff) as usize];
        }
        saturate(product)
    }

    /// The unordered pairs of disjoint non-empty sets whose union is `subset`.
    #[inline]
    fn splits(subset: usize) -> impl Iterator<Item = (usize, usize)> {
        let lowest = subset & subset.wrapping_neg();
        let rest = subset ^ lowest;
        let mut part = rest;
        std::iter::from_fn(move || {
            (part != 0).then(|| {
                part = (part - 1) & rest;
                (lowest | part, subset ^ lowest ^ part)
            })
        })
    }

    fn solve(&self, limit: f64) -> Option<Solution> {
        let full = (1usize << self.leaf_count) - 1;
        let mut flops = vec![f64::INFINITY; full + 1];
        let mut total = vec![0.0; full + 1];
        let mut split = vec![0u32; full + 1];
        for subset in 1..=full {
            if subset & (subset - 1) == 0 {
                flops[subset] = 0.0;
                continue;
            }
            if subset != full && self.size[subset] > limit {
                continue;
            }
            let (mut best, mut best_total, mut best_split) = (f64::INFINITY, f64::INFINITY, 0);
            for (a, b) in Self::splits(subset) {
                let parts = flops[a] + flops[b];
                if parts > best || parts == f64::INFINITY {
                    continue;
                }
                let pair = std::array::from_fn(|w| self.open[a][w] | self.open[b][w]);
                let candidate = parts + 2.0 * self.product(&pair);
                let candidate_total = total[a] + total[b];
                if candidate < best || (candidate == best && candidate_total < best_total) {
                    (best, best_total, best_split) = (candidate, candidate_total, a as u32);
                }
            }
            flops[subset] = best;
            total[subset] = best_total + if subset == full { 0.0 } else { self.size[subset] };
            split[subset] = best_split;
        }
        (flops[full] < f64::INFINITY).then(|| {
            let mut merges = Vec::with_capacity(self.leaf_count.saturating_sub(1));
            self.emit(full, &split, &mut merges);
            let total = if self.leaf_count > 1 { total[full] } else { 0.0 };
            Solution {
                merges,
                flops: flops[full],
                total,
            }
        })
    }

    /// Appends the merges of `subset` and returns its number.
    fn emit(&self, subset: usize, split: &[u32], merges: &mut Vec<(usize, usize)>) -> usize {
        if subset & (subset - 1) == 0 {
            return subset.trailing_zeros() as usize;
        }
        let part = split[subset] as usize;
        let a = self.emit(part, split, merges);
        let b = self.emit(subset ^ part, split, merges);
        merges.push((a, b));
        self.leaf_count + merges.len() - 1
    }

    fn smallest_limit(&self) -> f64 {
        let full = (1usize << self.leaf_count) - 1;
        let mut largest = vec![0.0f64; full + 1];
        for subset in 1..=full {
            if subset & (subset - 1) != 0 {
                let parts = Self::splits(subset).map(|(a, b)| largest[a].max(largest[b]));
                let own = if subset == full { 0.0 } else { self.size[subset] };
                largest[subset] = parts.fold(SATURATED, f64::min).max(own);
            }
        }
        largest[full]
    }
}
