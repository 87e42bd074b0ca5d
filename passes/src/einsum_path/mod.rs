//! In which order to contract an n-ary einsum, two operands at a time.
//!
//! A pure algorithm on labels and extents; it knows nothing of graphs, dtypes or semirings.
//!
//! What holds:
//!
//! * No operand repeats a label: **the caller takes diagonals first**. Extents of equal labels are equal.
//! * A label that one operand alone has, and the output has not, is summed in that operand before the first step
//!   ([`Reduction`]). Any other label is summed in the step after which nobody needs it: a label of three operands, or of
//!   an operand and the output, lives until its last use.
//! * Cost is flops: elements read for each reduction, and for each step twice the product of the extents of all labels
//!   of the pair. Extents are exact; products are `f64` and saturate at 1e300, so nothing overflows. A zero extent makes
//!   zero flops.
//! * An *intermediate* is what one step makes and another consumes. Operands, reduced operands (never larger than the
//!   operand) and the final result are none: the memory limit is about intermediates.
//! * The result depends on the arguments alone: seeds are fixed, budgets count work and not time.
//!
//! Up to [`EXACT_OPERANDS`] operands the order is optimal (`exact`): about 0.1 ms for ten. Beyond, a few starts (`greedy`
//! with and without noise, `linear` orders) are compared, the best of them annealed by rotations of the tree, then
//! improved by exact re-optimization of parts until no part of eight improves (`tree`). All of that is bounded by counts;
//! for operands of ordinary rank it takes (one core, release, [`Effort::Balanced`]) 7 ms for 40 operands, 7 to 18 ms for
//! 100 and 60 to 160 ms for 500. In tests it stays within 2% of the exact answer on eight to ten operands.
//!
//! Crates that were considered instead: `omeco` 0.2.6 (MIT; maintained; brings rayon, petgraph, serde and rand; its
//! greedy search draws from the thread's generator and its memory limit is a penalty) and `opt-einsum-path` 0.2.0
//! (Apache-2.0; a port of opt_einsum on big integers whose repository pins nightly Rust). Measured on lattices, random
//! regular networks and random hypergraphs of 30 to 250 operands, this module found the same or fewer flops than omeco's
//! `TreeSA::fast()` in about half of its time (10^6.70 against 10^6.71 flops on a random 3-regular network of 100, 10^14.1
//! against 10^16.3 on one of 250), and it keeps a hard limit and is deterministic, so it depends on neither.

mod exact;
mod greedy;
mod linear;
mod network;
mod report;
mod tree;

#[cfg(test)]
mod tests;

use std::fmt;

pub use report::PathReport;

use greedy::{Scoring, SplitMix64};
use network::{Network, saturate};
use tree::{Cost, Tree};

/// A label, as in [`tlc_ir::einsum::EinsumSpec`].
pub type Label = tlc_ir::einsum::Label;

/// Up to this many operands the order is optimal at every effort.
pub const EXACT_OPERANDS: usize = 10;

/// How long to look for an order of many operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Effort {
    /// About 40 us an operand.
    Quick,
    /// About 150 us an operand, up to 300 us on dense networks.
    #[default]
    Balanced,
    /// About 3 to 8 ms an operand, and optimal up to 13 operands.
    Thorough,
}

impl Effort {
    fn exact_operands(self) -> usize {
        match self {
            Effort::Quick | Effort::Balanced => EXACT_OPERANDS,
            Effort::Thorough => 13,
        }
    }

    /// Randomized greedy starts.
    fn random_starts(self) -> usize {
        match self {
            Effort::Quick => 2,
            Effort::Balanced => 12,
            Effort::Thorough => 128,
        }
    }

    /// Of the starts, the best this many are refined.
    fn refined_starts(self) -> usize {
        match self {
            Effort::Quick => 1,
            Effort::Balanced => 3,
            Effort::Thorough => 12,
        }
    }

    /// Rotations per step and refined start.
    fn annealing_sweeps(self) -> usize {
        match self {
            Effort::Quick => 0,
            Effort::Balanced => 200,
            Effort::Thorough => 4_000,
        }
    }

    /// Splits per operand and refined start (see [`exact::split_count`]).
    fn refinement(self) -> u64 {
        match self {
            Effort::Quick => 4_000,
            Effort::Balanced => 6_000,
            Effort::Thorough => 40_000,
        }
    }
}

/// What [`contraction_path`] may do.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PathOptions {
    /// The most elements that any intermediate may have.
    pub max_intermediate: Option<f64>,
    /// How long to look.
    pub effort: Effort,
    /// Varies the randomized starts.
    pub seed: u64,
}

/// Why there is no path.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PathError {
    /// There is nothing to contract.
    #[error("no operands to contract")]
    NoOperands,
    /// The caller takes diagonals first.
    #[error("operand {operand} repeats label {label}; its diagonal must be taken first")]
    Diagonal {
        /// The operand.
        operand: usize,
        /// The label.
        label: Label,
    },
    /// A label is no index into the extents.
    #[error("label {label} has no extent; {extents} are given")]
    LabelWithoutExtent {
        /// The label.
        label: Label,
        /// The number of extents.
        extents: usize,
    },
    /// The output repeats a label.
    #[error("the output repeats label {label}")]
    OutputRepeats {
        /// The label.
        label: Label,
    },
    /// The output has a label that no operand has.
    #[error("output label {label} appears in no operand")]
    OutputUnknown {
        /// The label.
        label: Label,
    },
    /// No order obeys the memory limit.
    #[error(
        "no contraction order keeps every intermediate within {limit} elements; {} is {smallest}",
        if *.proven { "the smallest achievable limit" } else { "the smallest limit found to work" }
    )]
    MemoryLimit {
        /// The limit, in elements.
        limit: f64,
        /// A limit that works, in elements.
        smallest: f64,
        /// Whether no smaller one does.
        proven: bool,
    },
}

impl PathError {
    /// The message with limits in bytes, where an element has so many.
    pub fn in_bytes(&self, element_bytes: usize) -> String {
        match self {
            PathError::MemoryLimit {
                limit,
                smallest,
                proven,
            } => {
                let (limit, smallest) = (limit * element_bytes as f64, smallest * element_bytes as f64);
                let known = match proven {
                    true => "the smallest achievable limit",
                    false => "the smallest limit found to work",
                };
                format!(
                    "no contraction order keeps every intermediate within {limit} bytes; {known} is {smallest} bytes"
                )
            }
            other => other.to_string(),
        }
    }
}

/// Labels to sum in one operand before the first step.
#[derive(Debug, Clone, PartialEq)]
pub struct Reduction {
    /// The operand.
    pub operand: usize,
    /// The labels to sum, in the order of the operand.
    pub summed: Vec<Label>,
    /// The labels that stay, in the order of the operand.
    pub kept: Vec<Label>,
    /// The elements it reads.
    pub flops: f64,
}

/// The contraction of two tensors.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// The tensors, the smaller number first: operands are `0..n`, the result of step `k` is `n + k`.
    pub operands: (usize, usize),
    /// The labels of the first.
    pub lhs: Vec<Label>,
    /// The labels of the second.
    pub rhs: Vec<Label>,
    /// The labels of the result. The last step has the output's order; others have the labels of both operands first,
    /// then those of the first, then those of the second: the order in which a batched matrix product makes them.
    pub result: Vec<Label>,
    /// Twice the product of the extents of all labels of the pair.
    pub flops: f64,
    /// The elements of the result.
    pub elements: f64,
}

/// How a path was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method {
    /// No order has fewer flops.
    Exact,
    /// The best that was found.
    Heuristic {
        /// The number of operands that is too many for an exact answer.
        operands: usize,
        /// Where the search began.
        start: Start,
        /// The number of trees it chose from.
        starts: usize,
        /// Parts that were replaced by optimal ones.
        reoptimized: usize,
    },
}

/// Where a heuristic search began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Start {
    /// Greedy without noise.
    Greedy,
    /// Greedy with noise.
    RandomGreedy,
    /// The best tree over the operands in the order they have.
    GivenOrder,
    /// The best tree over the operands in breadth-first order.
    BreadthFirst,
    /// The best tree over the operands in the order in which a growing frontier stays smallest.
    Sweep,
}

impl fmt::Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Start::Greedy => "greedy",
            Start::RandomGreedy => "randomized greedy",
            Start::GivenOrder => "the given order",
            Start::BreadthFirst => "breadth-first order",
            Start::Sweep => "a sweep",
        })
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Method::Exact => f.write_str("exact"),
            Method::Heuristic {
                operands,
                start,
                starts,
                reoptimized,
            } => write!(
                f,
                "heuristic: {operands} operands are too many for an exact answer; began with {start} (of {starts} \
                 starts), re-optimized {reoptimized} part(s)"
            ),
        }
    }
}

/// An order of contraction. Its [`Display`](fmt::Display) is [`report`](ContractionPath::report) with made-up names.
#[derive(Debug, Clone, PartialEq)]
pub struct ContractionPath {
    /// The number of operands.
    pub operand_count: usize,
    /// Sums within single operands, before the first step.
    pub reductions: Vec<Reduction>,
    /// One fewer than operands. With one operand there is none: its reduction (if any), in the output's order, is the
    /// result.
    pub steps: Vec<Step>,
    /// Flops of all reductions and steps.
    pub flops: f64,
    /// Flops of one loop nest over all labels: a multiplication for each operand but one, and an addition. Saturates.
    pub naive_flops: f64,
    /// The decimal logarithm of the naive flops, which does not saturate (minus infinity if they are 0).
    pub naive_flops_log10: f64,
    /// The elements of the largest intermediate, 0 if there is none.
    pub largest_intermediate: f64,
    /// The elements of the result.
    pub output_elements: f64,
    /// How the path was found.
    pub method: Method,
}

impl ContractionPath {
    /// The steps as pairs of tensor numbers: operands are `0..n`, the result of step `k` is `n + k`.
    pub fn pairs(&self) -> Vec<(usize, usize)> {
        self.steps.iter().map(|step| step.operands).collect()
    }

    /// How many times fewer flops than naive; 1 if there are none.
    pub fn speedup(&self) -> f64 {
        if self.flops > 0.0 {
            self.naive_flops / self.flops
        } else {
            1.0
        }
    }
}

/// Finds an order in which to contract.
///
/// `operands[k]` are the labels of operand `k`, one per axis; `extents[label]` is the extent of a label.
///
/// # Errors
///
/// See [`PathError`].
pub fn contraction_path(
    operands: &[Vec<Label>],
    output: &[Label],
    extents: &[u64],
    options: &PathOptions,
) -> Result<ContractionPath, PathError> {
    let uses = check(operands, output, extents)?;
    let mut reduced = operands.to_vec();
    let mut reductions = Vec::new();
    for (operand, labels) in operands.iter().enumerate() {
        let (kept, summed): (Vec<_>, Vec<_>) = labels.iter().partition(|&&label| uses[usize::from(label)] > 1);
        if !summed.is_empty() {
            reduced[operand].clone_from(&kept);
            reductions.push(Reduction {
                operand,
                summed,
                kept,
                flops: elements(labels, extents),
            });
        }
    }
    let network = Network::new(&reduced, output, extents);
    let limit = options.max_intermediate.unwrap_or(f64::INFINITY);
    let count = operands.len();
    let few = count <= EXACT_OPERANDS || network.extents.len() <= exact::MAX_CLASSES;
    let (merges, method) = if few && count <= options.effort.exact_operands() {
        let leaves: Vec<&[u64]> = network.leaves.iter().map(|mask| mask.as_slice()).collect();
        let Some(solution) = exact::solve(&leaves, &network.output, &network.extents, limit) else {
            let smallest = exact::smallest_limit(&leaves, &network.output, &network.extents);
            return Err(PathError::MemoryLimit {
                limit,
                smallest,
                proven: true,
            });
        };
        let merges = if count == 1 {
            Vec::new()
        } else {
            Tree::new(&network, &solution.merges).merges()
        };
        (merges, Method::Exact)
    } else {
        search(&network, limit, options)?
    };
    Ok(describe(&reduced, output, extents, reductions, uses, &merges, method))
}

/// Checks the arguments; returns how many operands use each label, plus one if the output does.
fn check(operands: &[Vec<Label>], output: &[Label], extents: &[u64]) -> Result<Vec<u32>, PathError> {
    if operands.is_empty() {
        return Err(PathError::NoOperands);
    }
    let mut uses = vec![0u32; extents.len()];
    let mut last = vec![usize::MAX; extents.len()];
    for (operand, labels) in operands.iter().enumerate() {
        for &label in labels {
            let Some(last) = last.get_mut(usize::from(label)) else {
                return Err(PathError::LabelWithoutExtent {
                    label,
                    extents: extents.len(),
                });
            };
            if std::mem::replace(last, operand) == operand {
                return Err(PathError::Diagonal { operand, label });
            }
            uses[usize::from(label)] += 1;
        }
    }
    for &label in output {
        match last.get_mut(usize::from(label)) {
            None => {
                return Err(PathError::LabelWithoutExtent {
                    label,
                    extents: extents.len(),
                });
            }
            Some(last) if *last == operands.len() => return Err(PathError::OutputRepeats { label }),
            Some(last) if *last == usize::MAX => return Err(PathError::OutputUnknown { label }),
            Some(last) => *last = operands.len(),
        }
        uses[usize::from(label)] += 1;
    }
    Ok(uses)
}

fn elements(labels: &[Label], extents: &[u64]) -> f64 {
    let extent = |label: &Label| extents[usize::from(*label)] as f64;
    if labels.iter().any(|label| extent(label) == 0.0) {
        0.0
    } else {
        saturate(labels.iter().map(extent).product())
    }
}

/// The heuristic search.
fn search(network: &Network, limit: f64, options: &PathOptions) -> Result<(Vec<(usize, usize)>, Method), PathError> {
    let count = network.leaves.len();
    let mut random = SplitMix64(options.seed);
    let mut starts: Vec<(Cost, Start, Tree)> = Vec::new();
    let mut propose = |start: Start, merges: &[(usize, usize)]| {
        let tree = Tree::new(network, merges);
        let cost = tree.cost(limit);
        // An equal cost is most likely an equal tree; another one is the better start.
        if starts.iter().all(|(known, ..)| *known != cost) {
            starts.push((cost, start, tree));
        }
    };
    let given: Vec<usize> = (0..count).collect();
    let breadth_first = linear::breadth_first_order(network);
    let ends = [breadth_first[0], breadth_first[count - 1]];
    let [sweep, back] = ends.map(|end| linear::sweep_order(network, end));
    let mut tried: Vec<Vec<usize>> = Vec::new();
    for (start, order) in [
        (Start::GivenOrder, given),
        (Start::BreadthFirst, breadth_first),
        (Start::Sweep, sweep),
        (Start::Sweep, back),
    ] {
        // An order and its reverse have the same trees.
        if tried
            .iter()
            .any(|known| known.iter().eq(&order) || known.iter().eq(order.iter().rev()))
        {
            continue;
        }
        match linear::in_order(network, &order, limit) {
            Some(merges) => propose(start, &merges),
            None if start == Start::Sweep => propose(start, &linear::one_by_one(&order)),
            None => {}
        }
        tried.push(order);
    }
    for alpha in [1.0, 0.5, 0.0] {
        propose(
            Start::Greedy,
            &greedy::greedy(
                network,
                Scoring {
                    alpha,
                    temperature: 0.0,
                },
                &mut random,
            ),
        );
    }
    for _ in 0..options.effort.random_starts() {
        let alpha = random.unit();
        // Log-uniform between 0.03 and 3.
        let temperature = 0.03 * 100f64.powf(random.unit());
        propose(
            Start::RandomGreedy,
            &greedy::greedy(network, Scoring { alpha, temperature }, &mut random),
        );
    }
    let by_cost = |a: &Cost, b: &Cost| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal);
    starts.sort_by(|a, b| by_cost(&a.0, &b.0));
    let start_count = starts.len();
    let mut best: Option<(Cost, Start, usize, Tree)> = None;
    for (_, start, mut tree) in starts.into_iter().take(options.effort.refined_starts()) {
        let mut work = options.effort.refinement() * count as u64;
        tree.anneal(network, limit, &mut random, options.effort.annealing_sweeps());
        let reoptimized = tree.refine(network, limit, &mut work);
        let cost = tree.cost(limit);
        if best.as_ref().is_none_or(|(known, ..)| by_cost(&cost, known).is_lt()) {
            best = Some((cost, start, reoptimized, tree));
        }
    }
    // Greedy search always proposes a tree.
    let Some((cost, start, reoptimized, tree)) = best else {
        return Err(PathError::NoOperands);
    };
    if cost.over_limit > 0.0 {
        return Err(PathError::MemoryLimit {
            limit,
            smallest: cost.over_limit,
            proven: false,
        });
    }
    Ok((
        tree.merges(),
        Method::Heuristic {
            operands: count,
            start,
            starts: start_count,
            reoptimized,
        },
    ))
}

/// Gives each step its labels and costs.
fn describe(
    operands: &[Vec<Label>],
    output: &[Label],
    extents: &[u64],
    reductions: Vec<Reduction>,
    mut uses: Vec<u32>,
    merges: &[(usize, usize)],
    method: Method,
) -> ContractionPath {
    let count = operands.len();
    let all: Vec<Label> = (0..extents.len())
        .filter(|&l| uses[l] > 0)
        .map(|l| l as Label)
        .collect();
    let summing = all.len() > output.len();
    let naive_ops = if count == 1 { usize::from(summing) } else { count } as f64;
    let log10 = |label: &Label| (extents[usize::from(*label)] as f64).log10();
    let naive_flops_log10 = naive_ops.log10() + all.iter().map(log10).sum::<f64>();
    let naive_flops = saturate(naive_ops * elements(&all, extents));

    let mut tensors: Vec<Vec<Label>> = operands.to_vec();
    let mut steps: Vec<Step> = Vec::with_capacity(merges.len());
    let mut largest_intermediate = 0.0f64;
    // Which side of the pair holds a label: bit 0 the first, bit 1 the second.
    let mut sides = vec![0u8; extents.len()];
    for (k, &(a, b)) in merges.iter().enumerate() {
        let (lhs, rhs) = (std::mem::take(&mut tensors[a]), std::mem::take(&mut tensors[b]));
        lhs.iter().for_each(|&label| sides[usize::from(label)] |= 1);
        rhs.iter().for_each(|&label| sides[usize::from(label)] |= 2);
        let mut pair = lhs.clone();
        pair.extend(rhs.iter().filter(|&&label| sides[usize::from(label)] == 2));
        let mut kept = pair.clone();
        kept.retain(|&label| {
            let uses = &mut uses[usize::from(label)];
            *uses -= u32::from(sides[usize::from(label)] == 3);
            *uses > 1
        });
        // Stable: shared labels first, then the first's, then the second's.
        kept.sort_by_key(|&label| sides[usize::from(label)] != 3);
        pair.iter().for_each(|&label| sides[usize::from(label)] = 0);
        let last = k + 1 == merges.len();
        let result = if last { output.to_vec() } else { kept };
        let size = elements(&result, extents);
        if !last {
            largest_intermediate = largest_intermediate.max(size);
        }
        let flops = 2.0 * elements(&pair, extents);
        tensors.push(result.clone());
        steps.push(Step {
            operands: (a, b),
            lhs,
            rhs,
            result,
            flops,
            elements: size,
        });
    }
    // The sum of nothing is -0.0, which would be printed so.
    let flops = 0.0 + reductions.iter().map(|r| r.flops).sum::<f64>() + steps.iter().map(|s| s.flops).sum::<f64>();
    ContractionPath {
        operand_count: count,
        reductions,
        steps,
        flops,
        naive_flops,
        naive_flops_log10,
        largest_intermediate,
        output_elements: elements(output, extents),
        method,
    }
}
