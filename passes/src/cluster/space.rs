//! Which loops a set of roots can share, and whether sharing them pays.

use rustc_hash::FxHashSet;
use smallvec::SmallVec;
use tlc_ir::graph::Shape;
use tlc_ir::index::{IndexExpr, IndexNode, VarId};
use tlc_ir::target::Target;
use tlc_ir::{NodeId, NodeKind, ScalarOp};

use super::merge::sums_up;
use super::{Clusterer, LoopSpace, MAX_KERNEL_STATEMENTS, Role, columns};
use crate::access::{MAX_INDEX_SIZE, space};
use crate::contraction::layouts::has_column_blocks;
use crate::reason::FusionReason;
use crate::tile::{COLUMN_VALUE_BYTES, NARROWEST_TILE, are_few_rows};

/// Operations of a kernel, with those that are computed again because they are needed at several places, as a multiple of
/// what computing everything once takes: beyond it values are written down.
const MAX_REPETITION: u32 = 8;
/// So many are repeated in any case.
const FREE_REPETITION: u32 = 256;

/// Roots, and axes of all of them, for which there is room without a box: most pairs of groups that are asked about are of a few.
const FEW_ROOTS: usize = 16;
const FEW_AXES: usize = 32;

/// Loads of single elements that take longer than a kernel of their sum's own.
const MANY_STRIDED: i64 = 4096;

/// Choices between parts of a concatenation, for each of its elements, which a kernel of its own leaves out.
const MANY_CHOICES: u32 = 3;

/// Whether there is a quotient or a remainder in it.
fn divides(e: &IndexExpr) -> bool {
    let IndexExpr::Node(n) = e else { return false };
    match &**n {
        IndexNode::Sym(_) | IndexNode::Var(_) => false,
        IndexNode::Sum { terms, .. } => terms.iter().any(|t| divides(&t.0)),
        IndexNode::Product(f) => f.iter().any(divides),
        IndexNode::FloorDiv(..) | IndexNode::Mod(..) => true,
        IndexNode::Min(a, b) | IndexNode::Max(a, b) => divides(a) || divides(b),
    }
}

impl Clusterer<'_> {
    /// The parallel axes of a set of roots, or why they cannot share a loop.
    pub(super) fn loop_space(&self, roots: &[NodeId]) -> Result<LoopSpace, FusionReason> {
        let spaces: SmallVec<[_; 4]> = roots.iter().map(|&r| space(self.graph, r)).collect();
        let mut first: SmallVec<[usize; FEW_ROOTS]> = SmallVec::with_capacity(roots.len());
        let mut total = 0usize;
        for s in &spaces {
            first.push(total);
            total += s.extents.len();
        }
        let (spaces, first) = (&spaces[..], &first[..]);
        let mut parent: SmallVec<[usize; FEW_AXES]> = (0..total).collect();
        fn find(parent: &mut [usize], mut x: usize) -> usize {
            while parent[x] != x {
                parent[x] = parent[parent[x]];
                x = parent[x];
            }
            x
        }
        let mut serial: SmallVec<[bool; FEW_AXES]> = SmallVec::from_elem(false, total);
        let mut touched: SmallVec<[bool; FEW_ROOTS]> = SmallVec::from_elem(false, roots.len());
        let position = |id: NodeId| roots.binary_search(&id).ok();
        for (k, s) in spaces.iter().enumerate() {
            for flag in &mut serial[first[k] + s.result_rank..first[k] + s.extents.len()] {
                *flag = true;
            }
        }
        for (k, &consumer) in roots.iter().enumerate() {
            for d in &self.demands[consumer.index()] {
                let Some(p) = position(d.source).filter(|&p| p != k) else {
                    continue;
                };
                touched[k] = true;
                touched[p] = true;
                let mut used: SmallVec<[VarId; 4]> = SmallVec::new();
                for (axis, i) in d.index.iter().enumerate() {
                    let at = first[p] + axis;
                    let var = i
                        .as_var()
                        .filter(|v| (v.0 as usize) < spaces[k].extents.len() && !used.contains(v));
                    match var {
                        Some(v) if spaces[k].extents[v.0 as usize] == spaces[p].extents[axis] => {
                            used.push(v);
                            let (x, y) = (find(&mut parent, at), find(&mut parent, first[k] + v.0 as usize));
                            parent[x.max(y)] = x.min(y);
                        }
                        _ if spaces[p].extents[axis].is(1) => {}
                        _ => serial[at] = true,
                    }
                }
            }
        }
        // Roots that exchange nothing line up by position of their result axes.
        let anchor = (0..roots.len())
            .min_by_key(|&k| (spaces[k].result_rank, k))
            .unwrap_or(0);
        for k in 0..roots.len() {
            if k != anchor && !(touched[k] && touched[anchor]) {
                for axis in 0..spaces[anchor].result_rank.min(spaces[k].result_rank) {
                    if spaces[anchor].extents[axis] == spaces[k].extents[axis] {
                        let (x, y) = (
                            find(&mut parent, first[anchor] + axis),
                            find(&mut parent, first[k] + axis),
                        );
                        parent[x.max(y)] = x.min(y);
                    }
                }
            }
        }
        let class: SmallVec<[usize; FEW_AXES]> = (0..total).map(|x| find(&mut parent, x)).collect();
        let class = &class[..];
        let mut serial_class: SmallVec<[bool; FEW_AXES]> = SmallVec::from_elem(false, total);
        (0..total)
            .filter(|&x| serial[x])
            .for_each(|x| serial_class[class[x]] = true);
        let mut parallel_classes: SmallVec<[usize; 4]> = SmallVec::new();
        let mut parallel = Shape::new();
        for axis in 0..spaces[anchor].result_rank {
            if spaces[anchor].extents[axis].is(1) {
                continue;
            }
            let c = class[first[anchor] + axis];
            let in_all = (0..roots.len()).all(|k| {
                (0..spaces[k].extents.len())
                    .filter(|a| class[first[k] + a] == c)
                    .count()
                    == 1
            });
            if in_all && !serial_class[c] {
                parallel_classes.push(c);
                parallel.push(spaces[anchor].extents[axis].clone());
            }
        }
        let mut roles = Vec::with_capacity(roots.len());
        for (k, s) in spaces.iter().enumerate() {
            let mut inner = 0;
            let mut last_parallel = None;
            let mut row = Vec::with_capacity(s.extents.len());
            for axis in 0..s.extents.len() {
                if s.extents[axis].is(1) {
                    row.push(Role::Unit);
                    continue;
                }
                match parallel_classes.iter().position(|&c| c == class[first[k] + axis]) {
                    Some(p) => {
                        if last_parallel.is_some_and(|l| l > p) {
                            return Err(FusionReason::StridedRows);
                        }
                        last_parallel = Some(p);
                        row.push(Role::Parallel(p));
                    }
                    None => {
                        row.push(Role::Inner(inner));
                        inner += 1;
                    }
                }
            }
            // A reduction's result must be complete at one point of the parallel space.
            let reduces = s.extents.len() > s.result_rank;
            if reduces && row[..s.result_rank].iter().any(|r| matches!(r, Role::Inner(_))) {
                return Err(FusionReason::OtherIndices);
            }
            roles.push(row);
        }
        // What is read inside the cluster must be the element of this very iteration.
        for (k, &consumer) in roots.iter().enumerate() {
            for d in &self.demands[consumer.index()] {
                let Some(p) = position(d.source).filter(|&p| p != k) else {
                    continue;
                };
                for (axis, i) in d.index.iter().enumerate() {
                    if let Role::Parallel(number) = roles[p][axis] {
                        let same = i
                            .as_var()
                            .is_some_and(|v| roles[k].get(v.0 as usize) == Some(&Role::Parallel(number)));
                        if !same && !spaces[p].extents[axis].is(1) {
                            return Err(FusionReason::OtherIndices);
                        }
                    }
                }
            }
        }
        let space = LoopSpace { parallel, roles };
        // A root that stores rows stores them whole: its inner axes are its last. Or it stores columns, side by side.
        if space.is_column_local() && !columns::walks_columns(self.graph, roots, &space, &self.is_root) {
            return Err(FusionReason::StridedRows);
        }
        Ok(space)
    }

    /// Whether sharing loops would compute too much again, or make more statements than a kernel may have. A value that a root of the same loops reads where they are not at
    /// that moment (shifted, say) is computed there too, once for each such place, and so is everything below it.
    fn repeats(&self, roots: &[NodeId], merged: &LoopSpace) -> Option<FusionReason> {
        // Of each root: how often it is computed for readers at their own place, which share it, and for the others.
        let (mut here, mut moved) = (vec![1u32; roots.len()], vec![0u32; roots.len()]);
        // And how large the index expressions become that lead to it.
        let mut size = vec![1u32; roots.len()];
        let (mut once, mut all, mut statements) = (0u32, 0u32, 0u32);
        for (k, reader) in roots.iter().enumerate().rev() {
            let times = here[k].saturating_add(moved[k]);
            let cone = self.cone_size(*reader);
            let ops = cone.cost.max(1);
            once = once.saturating_add(ops);
            all = all.saturating_add(ops.saturating_mul(times));
            statements = statements.saturating_add(cone.statements.saturating_mul(times));
            for d in &self.demands[reader.index()] {
                let divided = d.index.iter().filter(|i| divides(i)).map(IndexExpr::size).max();
                let reached = size[k].saturating_mul(divided.unwrap_or(1));
                // What a root alone reads, whatever its index, is none of the others' business.
                if size[k] > 1 && reached > MAX_INDEX_SIZE {
                    return Some(FusionReason::OtherIndices);
                }
                let Some(p) = roots.binary_search(&d.source).ok().filter(|&p| p != k) else {
                    continue;
                };
                match d.index.iter().all(|i| i.as_var().is_some() || !i.has_vars()) {
                    true => here[p] = here[p].max(times),
                    false => moved[p] = moved[p].saturating_add(times),
                }
                size[p] = size[p].max(reached);
                if size[p] > MAX_INDEX_SIZE {
                    return Some(FusionReason::OtherIndices);
                }
            }
        }
        let most = once.saturating_mul(MAX_REPETITION).saturating_add(FREE_REPETITION);
        if all > most {
            return Some(FusionReason::Repeated { ops: all, once });
        }
        // What several passes over a row need may be computed in each.
        if statements.saturating_mul(roots.len() as u32) > MAX_KERNEL_STATEMENTS {
            statements = statements.saturating_mul(self.passes(roots, merged));
        }
        (statements > MAX_KERNEL_STATEMENTS).then_some(FusionReason::KernelSize { statements })
    }

    /// How many loops over inner axes a kernel of the roots has: one for each extent of such axes among the reductions that wait
    /// for equally many others.
    fn passes(&self, roots: &[NodeId], merged: &LoopSpace) -> u32 {
        self.inner_loops(roots, merged).len() as u32
    }

    /// Elements of rows that do not stay on the chip of a GPU, and how many loops of a kernel read them.
    pub(super) fn read_again(&self, roots: &[NodeId], merged: &LoopSpace) -> Option<(i64, usize)> {
        let target = self.placement.target(roots[0]);
        if !matches!(target, Target::Gpu(_)) {
            return None;
        }
        let loops = self.inner_loops(roots, merged).into_iter();
        let rows = loops.map(|(_, inner)| self.typical(&IndexExpr::product(&inner)));
        let long: Vec<i64> = rows.filter(|row| row.saturating_mul(4) > target.row_bytes()).collect();
        long.iter().max().map(|&row| (row, long.len()))
    }

    /// The loops over inner axes that [`Self::passes`] counts: for how many reductions each waits, and the extents.
    fn inner_loops(&self, roots: &[NodeId], merged: &LoopSpace) -> FxHashSet<(u32, Shape)> {
        let spaces: Vec<_> = roots.iter().map(|&r| space(self.graph, r)).collect();
        let mut waits = vec![0u32; roots.len()];
        let mut loops: FxHashSet<(u32, Shape)> = FxHashSet::default();
        for (k, root) in roots.iter().enumerate() {
            for d in &self.demands[root.index()] {
                if let Some(p) = roots.binary_search(&d.source).ok().filter(|&p| p < k) {
                    let reduces = spaces[p].extents.len() > spaces[p].result_rank;
                    waits[k] = waits[k].max(waits[p] + u32::from(reduces));
                }
            }
            let inner = merged.roles[k].iter().zip(&spaces[k].extents);
            let inner = inner.filter(|(role, _)| matches!(role, Role::Inner(_)));
            loops.insert((waits[k], inner.map(|(_, extent)| extent.clone()).collect()));
        }
        loops
    }

    /// Why roots that could share their loops should not.
    pub(super) fn unprofitable(&self, roots: &[NodeId], merged: &LoopSpace) -> Option<FusionReason> {
        let rows = self.typical(&IndexExpr::product(&merged.parallel));
        let row = roots.iter().zip(&merged.roles).map(|(&r, roles)| {
            let s = space(self.graph, r);
            let inner = roles
                .iter()
                .zip(&s.extents)
                .filter(|(role, _)| matches!(role, Role::Inner(_)));
            self.typical(&inner.fold(IndexExpr::ONE, |n, (_, d)| n * d.clone()))
        });
        let row = row.max().unwrap_or(1);
        if let Some(reason) = self.repeats(roots, merged) {
            return Some(reason);
        }
        if self.joins_rows(roots, merged) {
            return Some(FusionReason::OtherIndices);
        }
        if merged.is_column_local() {
            let chooses = |r: &NodeId| self.cone_size(*r).parts >= MANY_CHOICES;
            if roots.iter().any(chooses) && roots.iter().any(|r| sums_up(self.kind(*r))) {
                return Some(FusionReason::ChoosesParts);
            }
            return self.tall_columns(roots, merged);
        }
        if self.sums_across(roots, merged) {
            return Some(FusionReason::StridedRows);
        }
        if are_few_rows(rows, row) {
            return Some(FusionReason::FewRows { rows, row });
        }
        // Rows of different values, which would be read one after the other.
        let read = self.read_elements(roots, rows.saturating_mul(row));
        if rows < 8 && row.max(1) < read && read > 1 << 16 {
            let row = read / rows.max(1);
            return Some(FusionReason::FewRows { rows, row });
        }
        // What stays close must hold the row in f32.
        let target = self.placement.target(roots[0]);
        let long = row.saturating_mul(4) > target.row_bytes();
        match target {
            // Each loop over a row reads what a kernel of its own would read, of which the last cache still has a part; but a row is one block's.
            Target::Gpu(gpu) if rows >= gpu.multiprocessors => None,
            _ => long.then_some(FusionReason::LongRows { row }),
        }
    }

    /// Whether a root sums up products with a matrix whose elements lie side by side along the parallel axis, and another one stores a row for
    /// each of these sums, as a scale of each channel is multiplied by its image. In loops over rows each lane's addend would be a load of its
    /// own, and lie far from the last. What is summed without a product, as by a norm over channels, is of the image that is stored.
    fn sums_across(&self, roots: &[NodeId], merged: &LoopSpace) -> bool {
        let stores_rows = |(root, roles): (&NodeId, &Vec<Role>)| {
            !sums_up(self.kind(*root)) && roles.iter().any(|r| matches!(r, Role::Inner(_)))
        };
        if !roots.iter().zip(&merged.roles).any(stores_rows) {
            return false;
        }
        let many = |root: &NodeId| {
            let node = self.graph.node(*root);
            let addends = IndexExpr::product(&space(self.graph, *root).extents);
            matches!(node.kind, NodeKind::Einsum { .. })
                && node.operands.len() > 1
                && self.typical(&addends) >= MANY_STRIDED
        };
        // Of blocks of columns each addend is a block's width from the last.
        if roots.iter().any(|r| many(r) && has_column_blocks(self.graph, *r)) {
            return true;
        }
        let summed = roots.iter().zip(&merged.roles).filter(|(r, _)| many(r));
        columns::reads_columns(self.graph, roots, summed, merged, &self.is_root)
    }

    /// Whether one of roots joins parts of rows, one behind the other or in turn, and others have rows of other lengths, as what joins it with more
    /// channels has, or sum rows up of which parts have elements in turn.
    /// A loop of each of them would walk its rows across, and ask for each element again which part it is of.
    fn joins_rows(&self, roots: &[NodeId], merged: &LoopSpace) -> bool {
        let joins = |r: &NodeId| {
            let node = self.graph.node(*r);
            let below = node.operands.first().map(|o| self.kind(*o));
            let copied = node.kind == NodeKind::Copy && matches!(below, Some(NodeKind::Map(ScalarOp::Select)));
            copied || self.interleaved.contains(r)
        };
        if !roots.iter().any(joins) {
            return false;
        }
        if roots.iter().any(|r| sums_up(self.kind(*r))) {
            return roots.iter().any(|r| self.interleaved.contains(r));
        }
        let row = |(&root, roles): (&NodeId, &Vec<Role>)| {
            let extents = space(self.graph, root).extents;
            let inner = roles
                .iter()
                .zip(extents)
                .filter(|(role, _)| matches!(role, Role::Inner(_)));
            inner.map(|(_, extent)| extent).collect::<Shape>()
        };
        let mut rows = roots.iter().zip(&merged.roles).map(row);
        let first = rows.next();
        rows.any(|r| Some(&r) != first.as_ref())
    }

    /// How many elements of values in memory a kernel of these roots reads, if each is read once, and of each value no more than `most`.
    fn read_elements(&self, roots: &[NodeId], most: i64) -> i64 {
        let of = roots
            .iter()
            .flat_map(|r| self.demands[r.index()].iter().map(|d| d.source));
        let mut sources: Vec<NodeId> = of.filter(|s| roots.binary_search(s).is_err()).collect();
        sources.sort_unstable();
        sources.dedup();
        let elements = |s: &NodeId| self.typical(&self.graph.ty(*s).elements()).min(most);
        sources.iter().fold(0i64, |sum, s| sum.saturating_add(elements(s)))
    }

    /// Why columns do not stay in the second-level cache, if a tile of the narrowest kind does not.
    fn tall_columns(&self, roots: &[NodeId], merged: &LoopSpace) -> Option<FusionReason> {
        let rows = roots.iter().zip(&merged.roles).map(|(&r, roles)| {
            let s = space(self.graph, r);
            let inner = roles
                .iter()
                .zip(&s.extents)
                .filter(|(role, _)| matches!(role, Role::Inner(_)));
            let rows = inner.fold(IndexExpr::ONE, |n, (_, d)| n * d.clone());
            rows.interval(self.graph).hi
        });
        let rows = rows.max().unwrap_or(1);
        let most = self.placement.target(roots[0]).resident_bytes() / (NARROWEST_TILE * COLUMN_VALUE_BYTES);
        (rows > most).then_some(FusionReason::TallColumns { rows, most })
    }

    /// A size, or for one that depends on symbols what it is where each of them has the geometric middle of its range: sizes
    /// spread over orders of magnitude, and both ends of a declared range are rare. A symbol of which nothing is declared has
    /// [`UNDECLARED_SIZE`].
    pub(super) fn typical(&self, size: &IndexExpr) -> i64 {
        let middle = |lo: i64, hi: i64| ((lo.max(1) as f64) * (hi.max(1) as f64)).sqrt() as i64;
        let range = size.interval(self.graph);
        if range.lo >= range.hi {
            return range.hi;
        }
        let symbols = self.graph.symbols().iter().map(|s| match s.hi >= i64::from(i32::MAX) {
            true => UNDECLARED_SIZE.max(s.lo),
            false => middle(s.lo, s.hi),
        });
        let symbols: Vec<i64> = symbols.collect();
        size.eval_symbols(&symbols)
            .unwrap_or_else(|| middle(range.lo, range.hi))
    }
}

/// What is expected of a size of which nothing is declared: a batch, a length, the side of an image. Rows that turn out longer
/// than expected are read again from further away; rows that were not fused are always written and read in between.
const UNDECLARED_SIZE: i64 = 64;
