//! Merging two groups of roots: whether it is legal, whether it pays, and what the one group is then.
//!
//! Invariants: a merge that would make a circle is refused, and so is one for which the search for a circle was cut short; what is
//! asked costs no more than what lies between the two groups.

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::{NodeId, NodeKind};

use super::{Clusterer, Demand, Group, MAX_KERNEL_STATEMENTS};
use crate::access::space;
use crate::direct::{direct_image, has_overlaps};
use crate::made::{Made, made};
use crate::partition::{LoopSpace, Role};
use crate::reason::{FusionDecision, FusionReason, FusionStage};

/// Roots of one cluster, unless all run over one space and read each other only where they are.
const MAX_ROOTS: usize = 64;
/// Clusters visited when looking for a cycle.
const CYCLE_BUDGET: usize = 512;

/// Whether a value takes loops of its own to compute.
pub(super) fn sums_up(kind: &NodeKind) -> bool {
    matches!(
        kind,
        NodeKind::Reduce { .. } | NodeKind::Einsum { .. } | NodeKind::Scan { .. } | NodeKind::Scatter { .. }
    )
}

/// The roots of two groups, ascending.
fn roots_of(a: &Group, b: &Group) -> Vec<NodeId> {
    let mut roots = [&a.roots[..], &b.roots[..]].concat();
    roots.sort();
    roots
}

impl Clusterer<'_> {
    /// Merges two groups if that is legal and pays; returns why or why not.
    pub(super) fn try_merge(&mut self, a: usize, b: usize, siblings: bool) -> FusionReason {
        for g in [a, b] {
            if let Some(step) = self.groups[g].step {
                return FusionReason::OwnStep { step };
            }
        }
        if self.is_once(a) != self.is_once(b) {
            return FusionReason::Once;
        }
        let device = |g: usize| self.placement.device(self.groups[g].roots[0]);
        if device(a) != device(b) {
            return FusionReason::OtherDevice;
        }
        let apart = |g: usize| self.groups[g].roots.iter().any(|r| self.apart[r.index()]);
        if apart(a) || apart(b) {
            return FusionReason::ScalarInEveryRow;
        }
        let tiles = |g: usize| {
            self.groups[g]
                .roots
                .iter()
                .any(|r| direct_image(self.graph, *r).is_some())
        };
        let sums = |g: usize| self.groups[g].roots.iter().any(|r| sums_up(self.kind(*r)));
        // Siblings only share what they load, of which a tile keeps nothing for others.
        if [(a, b), (b, a)]
            .into_iter()
            .any(|(one, other)| tiles(one) && (siblings || sums(other)))
        {
            return FusionReason::OwnTile;
        }
        let slides = |g: usize| {
            let over_windows = |r: &NodeId| {
                sums_up(self.kind(*r)) && (self.graph.node(*r).operands.iter()).any(|o| has_overlaps(self.graph, *o))
            };
            tiles(g) || self.groups[g].roots.iter().any(over_windows)
        };
        let looks_up = |g: usize| self.groups[g].roots.iter().any(|r| self.cone_size(*r).looks_up);
        if looks_up(a) && slides(b) || looks_up(b) && slides(a) {
            return FusionReason::LooksUp;
        }
        let multiplies = |g: usize| self.groups[g].roots.iter().any(|r| self.is_multiplied_in_tiles(*r));
        if multiplies(a) && multiplies(b) {
            return FusionReason::OwnProducts;
        }
        if let Some(reason) = self.waits_for_others(a, b) {
            return reason;
        }
        let statements = self.groups[a].statements.saturating_add(self.groups[b].statements);
        if statements > MAX_KERNEL_STATEMENTS {
            return FusionReason::KernelSize { statements };
        }
        let (space, flat) = if let Some(space) = self.flat_space(a, b) {
            (space, true)
        } else {
            if self.groups[a].roots.len() + self.groups[b].roots.len() > MAX_ROOTS {
                return FusionReason::KernelSize { statements };
            }
            let roots = roots_of(&self.groups[a], &self.groups[b]);
            let mut shared = self.loop_space(&roots);
            made(Made::Space {
                alone: [a, b].map(|g| self.groups[g].space.as_ref()),
                roots: [a, b].map(|g| &self.groups[g].roots[..]),
                shared: &mut shared,
            });
            if let Some(reason) = self.stored_instead([a, b], &roots, shared.as_ref().ok()) {
                return reason;
            }
            let space = match shared {
                Ok(space) => space,
                Err(reason) => return reason,
            };
            // What is done with a tile's results is done where they are.
            let mut roles = roots.iter().zip(&space.roles);
            let apart = |(r, roles): (&NodeId, &Vec<Role>)| {
                let of_result = &roles[..self.graph.ty(*r).rank()];
                of_result.iter().any(|role| matches!(role, Role::Inner(_)))
            };
            if (tiles(a) || tiles(b)) && roles.any(apart) {
                return FusionReason::OwnTile;
            }
            if let Some(reason) = self.unprofitable(&roots, &space) {
                return reason;
            }
            let flat = self.is_flat(&roots, &space);
            (space, flat)
        };
        if let Some(reason) = self.loses_emitter(a, b) {
            return reason;
        }
        match self.would_cycle(a, b) {
            Some(true) => return FusionReason::Cycle,
            None => return FusionReason::SearchBudget,
            Some(false) => {}
        }
        let Some(left) = self.merges.checked_sub(1) else {
            return FusionReason::Limit;
        };
        self.merges = left;
        let inner = space.roles.iter().flatten().any(|r| matches!(r, Role::Inner(_)));
        let reason = if siblings {
            FusionReason::Siblings
        } else if space.is_column_local() {
            FusionReason::ColumnLocal {
                columns: self.graph.dim_text(&IndexExpr::product(&space.parallel)),
            }
        } else if inner && let Some((row, times)) = self.read_again(&roots_of(&self.groups[a], &self.groups[b]), &space)
        {
            FusionReason::ReadAgain { row, times }
        } else if inner {
            FusionReason::RowLocal {
                rows: self.graph.dim_text(&IndexExpr::product(&space.parallel)),
            }
        } else {
            FusionReason::SameSpace
        };
        // The smaller joins the larger.
        let (into, from) = match self.groups[a].roots.len() < self.groups[b].roots.len() {
            true => (b, a),
            false => (a, b),
        };
        let moved = std::mem::take(&mut self.groups[from].roots);
        moved.iter().for_each(|r| self.group_of[r.index()] = Some(into));
        self.groups[from].merged_into = Some(into);
        let reads = [
            std::mem::take(&mut self.groups[from].reads),
            std::mem::take(&mut self.groups[into].reads),
        ];
        let mut reads: Vec<usize> = reads
            .iter()
            .flatten()
            .map(|&g| self.resolve(g))
            .filter(|&g| g != into)
            .collect();
        reads.sort();
        reads.dedup();
        let costly = std::mem::take(&mut self.groups[from].costly);
        let operations = self.groups[into].operations.with(&self.groups[from].operations);
        let group = &mut self.groups[into];
        group.costly.extend(costly);
        group.roots.extend(moved);
        group.roots.sort();
        group.statements = statements;
        group.operations = operations;
        group.emitter = None;
        group.space = Some(space);
        group.flat = flat;
        group.reads = reads;
        let (first, last) = (group.roots[0].index(), group.roots[group.roots.len() - 1].index());
        let mut at = self.cut_after(first);
        while at <= last {
            self.next_cut[at] = at as u32 + 1;
            at = self.cut_after(first);
        }
        reason
    }

    /// The first node after `node` with no group around the place before it: nothing up to there depends on what follows.
    fn cut_after(&mut self, node: usize) -> usize {
        let mut at = node + 1;
        while self.next_cut[at] as usize != at {
            // Halves the way for the next time.
            let next = self.next_cut[at] as usize;
            self.next_cut[at] = self.next_cut[next];
            at = next;
        }
        at
    }

    /// True if every root's axes are the parallel axes, one by one; those of one element need no loop.
    pub(super) fn is_flat(&self, roots: &[NodeId], space: &LoopSpace) -> bool {
        let first = &space.roles[0];
        let in_order = first.iter().filter(|r| **r != Role::Unit).enumerate();
        in_order.into_iter().all(|(n, r)| *r == Role::Parallel(n))
            && roots.iter().all(|&r| self.graph.ty(r).rank() == first.len())
            && space.roles.iter().all(|r| r == first)
    }

    pub(super) fn is_once(&self, group: usize) -> bool {
        self.once[self.groups[group].roots[0].index()]
    }

    /// The space of two groups that run over the same axes and read each other only at the very element that the loop is at.
    /// Looks only at what lies between the two, so that a chain of any length is put together in linear time.
    fn flat_space(&self, a: usize, b: usize) -> Option<LoopSpace> {
        let (x, y) = (&self.groups[a], &self.groups[b]);
        if !x.flat || !y.flat {
            return None;
        }
        let (root, other) = (x.roots[0], y.roots[0]);
        let shape = &self.graph.ty(root).shape;
        if *shape != self.graph.ty(other).shape {
            return None;
        }
        let here = |d: &Demand| {
            let at = d.index.iter().enumerate();
            at.zip(shape)
                .all(|((axis, i), extent)| extent.is(1) || i.as_var() == Some(VarId(axis as u32)))
        };
        let newer = |of: &Group, than: NodeId| of.roots[of.roots.partition_point(|&r| r < than)..].to_vec();
        for (reader, read, number) in [(x, y, b), (y, x, a)] {
            for r in newer(reader, read.roots[0]) {
                let mut inside = self.demands[r.index()]
                    .iter()
                    .filter(|d| self.group_of[d.source.index()] == Some(number));
                if !inside.all(here) {
                    return None;
                }
            }
        }
        // One role list for all: they are alike.
        x.space.clone()
    }

    /// Whether a path leads from one group to the other through a third. `None` if the search was cut short.
    fn would_cycle(&mut self, a: usize, b: usize) -> Option<bool> {
        for (start, goal) in [(a, b), (b, a)] {
            // Ids bound the search: what a group depends on is older than its newest root, unless a group on the way has
            // newer roots as well. So no way leads from one side of a cut to the newer one.
            let oldest = self.groups[goal].roots[0];
            let mut seen = 0;
            self.searches += 1;
            self.searched.resize(self.groups.len(), 0);
            let direct = self.groups[start].reads.iter().map(|&g| self.resolve(g));
            let mut work: Vec<usize> = direct.filter(|&g| g != start && g != goal).collect();
            while let Some(g) = work.pop() {
                let Some(&newest) = self.groups[g].roots.last() else {
                    continue;
                };
                if self.cut_after(newest.index()) <= oldest.index() {
                    continue;
                }
                if std::mem::replace(&mut self.searched[g], self.searches) == self.searches {
                    continue;
                }
                seen += 1;
                if seen > CYCLE_BUDGET {
                    return None;
                }
                for next in self.groups[g].reads.iter().map(|&g| self.resolve(g)) {
                    if next == goal || next == start {
                        return Some(true);
                    }
                    work.push(next);
                }
            }
        }
        Some(false)
    }

    /// Merges groups that read the same values over the same space without exchanging any.
    pub(super) fn merge_siblings(&mut self) {
        let mut by_source: FxHashMap<NodeId, SmallVec<[NodeId; 4]>> = FxHashMap::default();
        let roots: Vec<NodeId> = self
            .graph
            .nodes()
            .map(|(id, _)| id)
            .filter(|id| self.is_root[id.index()])
            .collect();
        // Parts of concatenations finish products, each behind its own.
        let parts = self.joins.values().flatten().filter(|p| !p.copied);
        let parts: FxHashSet<NodeId> = parts.map(|p| p.value).collect();
        for &root in &roots {
            if self.groups[self.group(root)].step.is_some() {
                continue;
            }
            let mut sources: Vec<NodeId> = self.demands[root.index()].iter().map(|d| d.source).collect();
            sources.sort();
            sources.dedup();
            for source in sources {
                // Only the latest few readers of a value are tried, which keeps this linear.
                let readers = by_source.entry(source).or_default();
                let latest: SmallVec<[NodeId; 4]> = readers.iter().rev().take(4).copied().collect();
                readers.push(root);
                for other in latest {
                    let (a, b) = (self.group(other), self.group(root));
                    let both_parts = parts.contains(&other) && parts.contains(&root);
                    if a == b || both_parts || !self.similar(other, root) {
                        continue;
                    }
                    let reason = self.try_merge(a.min(b), a.max(b), true);
                    self.ledger.record(FusionDecision {
                        stage: FusionStage::Siblings,
                        producer: other,
                        consumer: root,
                        reason,
                    });
                }
            }
        }
    }

    /// True if two roots iterate the same extents in the same way.
    fn similar(&self, a: NodeId, b: NodeId) -> bool {
        let (x, y) = (space(self.graph, a), space(self.graph, b));
        let axes = |id: NodeId| match self.kind(id) {
            NodeKind::Reduce { axes, .. } => axes.to_vec(),
            _ => Vec::new(),
        };
        x.extents == y.extents && x.result_rank == y.result_rank && axes(a) == axes(b)
    }
}
