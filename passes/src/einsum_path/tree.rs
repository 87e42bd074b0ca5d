//! Contraction trees, their cost, and their improvement by re-optimizing small parts exactly.
//!
//! A [`Tree`] over n leaves has the nodes `0..n` for the leaves and `n..2n-1` for the steps, in no particular order.
//! What a node contracts to depends only on the leaves below it, so replacing the inside of any connected part of the
//! tree (its root and the nodes hanging below it kept) changes no other node. [`Tree::refine`] does that with the
//! optimal inside, for parts of at most [`WINDOW`] hanging nodes, until no part improves or the work is spent.
//! [`Tree::anneal`] moves between trees by random rotations first, to leave poor valleys.
//!
//! Source: "subtree reconfiguration", Gray and Kourtis, "Hyper-optimized tensor network contraction", Quantum 5, 410
//! (2021), arXiv:2002.01935.

use super::exact;
use super::greedy::SplitMix64;
use super::network::{Mask, Network, union};

/// The most nodes that hang below a part that is re-optimized exactly.
pub(super) const WINDOW: usize = 8;

const NONE: u32 = u32::MAX;

#[derive(Clone)]
struct Node {
    children: Option<(u32, u32)>,
    parent: u32,
    /// The classes of the tensor.
    open: Mask,
    /// Its elements.
    size: f64,
    /// The flops of its own step.
    flops: f64,
    /// Whether a window at this node may improve, per [`Growth`].
    dirty: [bool; 2],
}

/// A binary contraction tree.
#[derive(Clone)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    leaf_count: usize,
    root: u32,
}

/// What a tree costs, in the order in which trees are compared: first how far it breaks the memory limit.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub(super) struct Cost {
    /// The largest intermediate if that is over the limit, else 0.
    pub over_limit: f64,
    /// Flops of all steps.
    pub flops: f64,
    /// The sum of the sizes of all intermediates.
    pub total: f64,
}

/// How a window grows from its root: by opening the largest hanging node, or the one that hangs highest.
#[derive(Clone, Copy)]
enum Growth {
    Largest = 0,
    Highest = 1,
}

impl Tree {
    /// `merges` in the form of [`exact::Solution::merges`] over the leaves of the network.
    pub fn new(network: &Network, merges: &[(usize, usize)]) -> Self {
        let leaf_count = network.leaves.len();
        let node = |open: Mask, size| Node {
            children: None,
            parent: NONE,
            open,
            size,
            flops: 0.0,
            dirty: [true; 2],
        };
        let mut nodes: Vec<Node> = network
            .leaves
            .iter()
            .map(|mask| node(mask.clone(), network.size(mask)))
            .collect();
        let mut live = network.holders.clone();
        for &(a, b) in merges {
            let both = union(&nodes[a].open, &nodes[b].open);
            let mut open = both.clone();
            for (word, open_word) in open.iter_mut().enumerate() {
                let mut shared = nodes[a].open[word] & nodes[b].open[word];
                while shared != 0 {
                    let bit = shared.trailing_zeros() as usize;
                    shared &= shared - 1;
                    let holders = &mut live[64 * word + bit];
                    *holders -= 1;
                    if *holders == 1 {
                        *open_word &= !(1 << bit);
                    }
                }
            }
            let id = nodes.len() as u32;
            nodes[a].parent = id;
            nodes[b].parent = id;
            let size = network.size(&open);
            let flops = 2.0 * network.size(&both);
            nodes.push(Node {
                children: Some((a as u32, b as u32)),
                flops,
                ..node(open, size)
            });
        }
        let root = nodes.len() as u32 - 1;
        Tree {
            nodes,
            leaf_count,
            root,
        }
    }

    fn inner(&self) -> impl Iterator<Item = (u32, &Node)> {
        (self.leaf_count as u32..).zip(&self.nodes[self.leaf_count..])
    }

    pub fn cost(&self, limit: f64) -> Cost {
        let mut cost = Cost {
            over_limit: 0.0,
            flops: 0.0,
            total: 0.0,
        };
        for (id, node) in self.inner() {
            cost.flops += node.flops;
            if id != self.root {
                cost.total += node.size;
                if node.size > limit {
                    cost.over_limit = cost.over_limit.max(node.size);
                }
            }
        }
        cost
    }

    /// Re-optimizes parts until none improves or `work` (in splits of [`exact::solve`]) is spent. Returns how many
    /// parts it replaced.
    pub fn refine(&mut self, network: &Network, limit: f64, work: &mut u64) -> usize {
        let mut replaced = 0;
        for growth in [Growth::Largest, Growth::Highest].into_iter().cycle() {
            for id in self.postorder() {
                if !std::mem::take(&mut self.nodes[id as usize].dirty[growth as usize]) {
                    continue;
                }
                if *work == 0 {
                    return replaced;
                }
                replaced += usize::from(self.refine_at(network, id, growth, limit, work));
            }
            if self.inner().all(|(_, node)| node.dirty == [false; 2]) {
                break;
            }
        }
        replaced
    }

    /// Inner nodes, children before parents.
    fn postorder(&self) -> Vec<u32> {
        let mut order = Vec::with_capacity(self.nodes.len());
        let mut stack = vec![self.root];
        while let Some(id) = stack.pop() {
            if let Some((a, b)) = self.nodes[id as usize].children {
                order.push(id);
                stack.extend([a, b]);
            }
        }
        order.reverse();
        order
    }

    fn refine_at(&mut self, network: &Network, root: u32, growth: Growth, limit: f64, work: &mut u64) -> bool {
        let mut inside = vec![root];
        let Some((a, b)) = self.nodes[root as usize].children else {
            return false;
        };
        let mut hanging = vec![a, b];
        while hanging.len() < WINDOW {
            let mut inner = (0..hanging.len()).filter(|&k| self.nodes[hanging[k] as usize].children.is_some());
            let grown = match growth {
                // Hanging nodes are listed from the highest down.
                Growth::Highest => inner.next(),
                Growth::Largest => inner.max_by(|&x, &y| {
                    let size = |k: usize| self.nodes[hanging[k] as usize].size;
                    size(x).total_cmp(&size(y))
                }),
            };
            let Some(grown) = grown else { break };
            let id = hanging.remove(grown);
            inside.push(id);
            if let Some((a, b)) = self.nodes[id as usize].children {
                hanging.extend([a, b]);
            }
        }
        if hanging.len() < 3 {
            return false;
        }
        *work = work.saturating_sub(exact::split_count(hanging.len()));
        let masks: Vec<&[u64]> = hanging
            .iter()
            .map(|&id| self.nodes[id as usize].open.as_slice())
            .collect();
        let output = self.nodes[root as usize].open.as_slice();
        let (mut flops, mut total, mut largest) = (0.0, 0.0, 0.0f64);
        for &id in &inside {
            let node = &self.nodes[id as usize];
            flops += node.flops;
            if id != root {
                total += node.size;
                largest = largest.max(node.size);
            }
        }
        let solve = |limit: f64| exact::solve(&masks, output, &network.extents, limit);
        let mut within_limit = solve(limit);
        let mut must_replace = largest > limit;
        if within_limit.is_none() {
            // Then at least as near to the limit as possible.
            let reachable = exact::smallest_limit(&masks, output, &network.extents);
            must_replace = reachable < largest;
            within_limit = solve(reachable.max(limit).min(largest));
        }
        let Some(solution) = within_limit else { return false };
        // A relative gain below rounding would let two equal trees replace each other for ever.
        let cheaper = solution.flops < flops * (1.0 - 1e-9);
        let smaller = solution.flops <= flops && solution.total < total * (1.0 - 1e-9);
        if cheaper || smaller || must_replace {
            self.replace(network, root, &inside, &hanging, &solution.merges);
            return true;
        }
        false
    }

    fn replace(&mut self, network: &Network, root: u32, inside: &[u32], hanging: &[u32], merges: &[(usize, usize)]) {
        // The root comes last among the steps and keeps its number.
        let steps: Vec<u32> = inside[1..].iter().copied().chain([root]).collect();
        let id = |local: usize| {
            if local < hanging.len() {
                hanging[local]
            } else {
                steps[local - hanging.len()]
            }
        };
        let below: Vec<Mask> = hanging.iter().map(|&h| self.nodes[h as usize].open.clone()).collect();
        let output = self.nodes[root as usize].open.clone();
        let mut leaves_of: Vec<u64> = (0..hanging.len()).map(|k| 1 << k).collect();
        for (k, &(a, b)) in merges.iter().enumerate() {
            let members = leaves_of[a] | leaves_of[b];
            leaves_of.push(members);
            let mut inner = Mask::from_elem(0, output.len());
            let mut outer = output.clone();
            for (leaf, mask) in below.iter().enumerate() {
                let side = if members >> leaf & 1 != 0 {
                    &mut inner
                } else {
                    &mut outer
                };
                side.iter_mut().zip(mask).for_each(|(x, y)| *x |= y);
            }
            let open: Mask = inner.iter().zip(&outer).map(|(x, y)| x & y).collect();
            let (a, b, own) = (id(a), id(b), steps[k]);
            let both = union(&self.nodes[a as usize].open, &self.nodes[b as usize].open);
            self.nodes[a as usize].parent = own;
            self.nodes[b as usize].parent = own;
            let parent = self.nodes[own as usize].parent;
            self.nodes[own as usize] = Node {
                children: Some((a, b)),
                parent,
                size: network.size(&open),
                flops: 2.0 * network.size(&both),
                open,
                dirty: [true; 2],
            };
        }
        // Windows of ancestors that reach into this part may improve now.
        let mut above = self.nodes[root as usize].parent;
        for _ in 0..WINDOW {
            if above == NONE {
                break;
            }
            self.nodes[above as usize].dirty = [true; 2];
            above = self.nodes[above as usize].parent;
        }
    }

    /// Rotates random edges of the tree, `((a b) c)` to `((a c) b)` or `((b c) a)`, accepting a rotation that makes the
    /// two steps r times dearer with probability `r^-beta`, beta growing from 1 to 40. Ends with the best tree it saw.
    ///
    /// Source: "TreeSA", Kalachev, Panteleev, Yung, "Multi-tensor contraction for XEB verification of quantum circuits",
    /// arXiv:2108.05665.
    pub fn anneal(&mut self, network: &Network, limit: f64, random: &mut SplitMix64, sweeps: usize) {
        let steps = self.nodes.len() - self.leaf_count;
        let mut best = (self.cost(limit), self.clone());
        for sweep in 0..sweeps {
            let beta = 40f64.powf(sweep as f64 / (sweeps - 1).max(1) as f64);
            for _ in 0..steps {
                let top = self.leaf_count + (random.next() % steps as u64) as usize;
                let choice = random.next();
                let Some((left, right)) = self.nodes[top].children else {
                    continue;
                };
                let (inner, c) = if choice & 1 == 0 { (left, right) } else { (right, left) };
                let Some((a, b)) = self.nodes[inner as usize].children else {
                    continue;
                };
                // `b` leaves the inner step, `c` enters it.
                let (a, b) = if choice & 2 == 0 { (a, b) } else { (b, a) };
                let [mask_a, mask_b, mask_c] = [a, b, c].map(|id| &self.nodes[id as usize].open);
                let inner_pair = union(mask_a, mask_c);
                let outside = union(mask_b, &self.nodes[top].open);
                let open: Mask = inner_pair.iter().zip(&outside).map(|(x, y)| x & y).collect();
                let inner_flops = 2.0 * network.size(&inner_pair);
                let top_flops = 2.0 * network.size(&union(&open, mask_b));
                let before = self.nodes[inner as usize].flops + self.nodes[top].flops;
                let after = inner_flops + top_flops;
                let size = network.size(&open);
                let over = |size: f64| if size > limit { size } else { 0.0 };
                let (over_before, over_after) = (over(self.nodes[inner as usize].size), over(size));
                let ratio = if over_after == over_before {
                    after / before
                } else {
                    (over_after + 1.0) / (over_before + 1.0)
                };
                if ratio > 1.0 && random.unit() > ratio.powf(-beta) {
                    continue;
                }
                self.nodes[top].children = Some((inner, b));
                self.nodes[top].flops = top_flops;
                let rotated = &mut self.nodes[inner as usize];
                (rotated.children, rotated.flops) = (Some((a, c)), inner_flops);
                (rotated.open, rotated.size) = (open, size);
                self.nodes[b as usize].parent = top as u32;
                self.nodes[c as usize].parent = inner;
            }
            let cost = self.cost(limit);
            if cost < best.0 {
                best = (cost, self.clone());
            }
        }
        *self = best.1;
        self.nodes.iter_mut().for_each(|node| node.dirty = [true; 2]);
    }

    /// The steps in an order that keeps few elements alive: of two subtrees the one whose evaluation needs more beyond
    /// its own result goes first (Sethi and Ullman, "The generation of optimal code for arithmetic expressions", 1970).
    pub fn merges(&self) -> Vec<(usize, usize)> {
        let mut peak = vec![0.0f64; self.nodes.len()];
        let mut swapped = vec![false; self.nodes.len()];
        // Operands exist anyway, so they count for nothing.
        let size = |id: u32| {
            if (id as usize) < self.leaf_count {
                0.0
            } else {
                self.nodes[id as usize].size
            }
        };
        for id in self.postorder() {
            let Some((a, b)) = self.nodes[id as usize].children else {
                continue;
            };
            let first = |x: u32, y: u32| peak[x as usize].max(size(x) + peak[y as usize]);
            let (ab, ba) = (first(a, b), first(b, a));
            swapped[id as usize] = ba < ab;
            peak[id as usize] = ab.min(ba).max(size(a) + size(b) + size(id));
        }
        let mut number = vec![0usize; self.nodes.len()];
        (0..self.leaf_count).for_each(|leaf| number[leaf] = leaf);
        let mut merges = Vec::with_capacity(self.leaf_count.saturating_sub(1));
        let mut stack = vec![(self.root, false)];
        while let Some((id, ready)) = stack.pop() {
            let Some((a, b)) = self.nodes[id as usize].children else {
                continue;
            };
            if ready {
                let (a, b) = (number[a as usize], number[b as usize]);
                number[id as usize] = self.leaf_count + merges.len();
                merges.push((a.min(b), a.max(b)));
            } else {
                let (first, second) = if swapped[id as usize] { (b, a) } else { (a, b) };
                stack.extend([(id, true), (second, false), (first, false)]);
            }
        }
        merges
    }
}
