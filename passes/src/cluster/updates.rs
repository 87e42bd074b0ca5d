//! How the updates of a scatter are shared out.
//!
//! Invariant: whatever the choice, the updates of one element apply one after another in C order, so that results are equal to
//! the bit for any number of threads. Nothing is added up apart and combined later.

use tlc_ir::index::IndexExpr;
use tlc_ir::target::Target;
use tlc_ir::{Graph, NodeId, NodeKind};

use super::Updates;

/// Updates below this many elements are applied before other threads would have begun.
const FEW_ELEMENTS: i64 = 1 << 13;

/// Rows of at least this many elements are worth the loop over all indices that each position before the indexed axis runs.
const ROW_ELEMENTS: i64 = 16;

/// Bytes of a row that each thread gets at least where threads share rows. All look at every index, and neighbouring cache lines are fetched together
/// by the cores that write them: two threads take twice as long as one with 128 bytes each, as long with 512, and 0.77 with 2 KiB.
const PART_BYTES: i64 = 2 << 10;

/// An owner looks at every index, with a branch that is hard to predict, and no prefetcher follows it from one of its rows to the next.
/// That pays if the rows that the owners add at the same time are at least as long as this. Two threads take 1.2 to 2.5 times as long as
/// one with rows of 64 bytes to 2 KiB, as long with 4 KiB, and 0.75 with 16 KiB.
const OWNED_BYTES: i64 = 16 << 10;

/// Where rows are shorter, each position along the first axes walks the updates with a stride, and meets the cache lines that its
/// neighbours met: two threads take 1.3 times as long as one loop over all, so that it pays from three on. Blocks of positions
/// are better, if an axis can be cut into equal ones.
const STRIDED_OWNERS: i64 = 3;

/// Blocks for each thread, at most.
const BLOCKS_PER_THREAD: i64 = 8;

/// Threads for each multiprocessor of a device of many, each of which walks all indices; all read the same one at about the same time. More would
/// walk in turn.
const DEVICE_THREADS: i64 = 256;

pub(super) fn updates(graph: &Graph, root: NodeId, target: &Target) -> Updates {
    let node = graph.node(root);
    let NodeKind::Scatter { axes, .. } = &node.kind else {
        unreachable!("a scatter cluster")
    };
    let bytes = node.ty.dtype.bytes() as i64;
    let most = |d: &IndexExpr| d.interval(graph).hi;
    let first = axes.iter().copied().min().unwrap_or(0) as usize;
    let most_owners = match target {
        Target::Cpu(cpu) => i64::try_from(cpu.threads).unwrap_or(i64::MAX),
        Target::Gpu(gpu) => {
            let kept = (0..node.ty.rank()).filter(|a| !axes.contains(&(*a as u8)));
            let positions = kept.fold(1i64, |n, a| n.saturating_mul(most(&node.ty.shape[a])));
            let owners = gpu.multiprocessors.saturating_mul(DEVICE_THREADS) / positions.max(1);
            // Offsets of ranges, or those of turns, are constants.
            let constant = |d: &IndexExpr| d.as_const().is_some();
            let known = constant(&node.ty.shape[first]) || node.ty.shape[first + 1..].iter().all(constant);
            return match known {
                true => Updates::Apart(owners.min(most(&node.ty.shape[first])).max(1)),
                false => Updates::Apart(1),
            };
        }
    };
    if most_owners < 2 {
        return Updates::Serial;
    }
    let elements = |shape: &mut dyn Iterator<Item = &IndexExpr>| shape.fold(1i64, |n, d| n.saturating_mul(most(d)));
    let updates = elements(&mut graph.ty(node.operands[1]).shape.iter());
    let behind = |(a, d): (usize, _)| (!axes.contains(&(a as u8))).then_some(d);
    if node.ty.shape[..first].iter().any(|d| most(d) > 1) {
        let row = elements(&mut node.ty.shape.iter().enumerate().skip(first).filter_map(behind));
        let blocks = match updates >= FEW_ELEMENTS {
            true => outer_blocks(&node.ty.shape, first, most_owners),
            false => None,
        };
        return match row >= ROW_ELEMENTS {
            true => Updates::Outer,
            false => blocks.unwrap_or(match most_owners >= STRIDED_OWNERS {
                true => Updates::Outer,
                false => Updates::Serial,
            }),
        };
    }
    let row = elements(&mut node.ty.shape.iter().enumerate().filter_map(behind));
    if updates < FEW_ELEMENTS || row < ROW_ELEMENTS {
        return Updates::Serial;
    }
    let blocks = row_blocks(&node.ty.shape, axes, most_owners, PART_BYTES / bytes.max(1));
    if let Some(blocks) = blocks {
        return blocks;
    }
    if row.saturating_mul(bytes).saturating_mul(most_owners) < OWNED_BYTES {
        return Updates::Serial;
    }
    match node.ty.shape[first].as_const() {
        Some(extent) if extent > 1 => Updates::Owners(most_owners.min(extent)),
        Some(_) => Updates::Serial,
        // Offsets of ranges would be no constants. Between rows of constant length, those of turns are.
        None if node.ty.shape[first + 1..].iter().all(|d| d.as_const().is_some()) => Updates::Turns(most_owners),
        None => Updates::Serial,
    }
}

/// An axis behind the first indexed one, of which no index takes positions, in as many equal blocks as there are threads, or as many
/// fewer as divide it. The part of a row that a block has is at least `least` elements, one behind the other. `None` if there is no
/// such axis, or strides are not known, without which nothing would prove the blocks apart.
fn row_blocks(shape: &[IndexExpr], axes: &[u8], threads: i64, least: i64) -> Option<Updates> {
    let (first, last) = (*axes.iter().min()? as usize, *axes.iter().max()? as usize);
    let known: Vec<i64> = shape[first + 1..]
        .iter()
        .map(IndexExpr::as_const)
        .collect::<Option<_>>()?;
    let row = &known[last - first..];
    let of_axis = |(at, &extent): (usize, &i64)| {
        let behind: i64 = row[at + 1..].iter().product();
        let fits = |n: &i64| extent % n == 0 && extent / n * behind >= least.max(1);
        let blocks = (2..=threads.min(extent)).rev().find(fits)?;
        Some((blocks, last + 1 + at))
    };
    // The outermost of those that have the most: its blocks lie together.
    let found = row.iter().enumerate().filter_map(of_axis).rev();
    let (blocks, axis) = found.max_by_key(|f| f.0)?;
    Some(Updates::Blocks { axis, blocks })
}

/// The first of the axes before the indexed one that has several positions, in equal blocks, at least one for each of so many
/// threads. `None` if no such number divides it, or strides are not known, without which nothing would prove the blocks apart.
fn outer_blocks(shape: &[IndexExpr], indexed: usize, threads: i64) -> Option<Updates> {
    let axis = shape[..indexed].iter().position(|d| !d.is(1))?;
    let extent = shape[axis].as_const()?;
    if shape[axis..].iter().any(|d| d.as_const().is_none()) {
        return None;
    }
    let most = extent.min(threads.saturating_mul(BLOCKS_PER_THREAD));
    let divides = |blocks: &i64| extent % blocks == 0;
    let even = (1..=most / threads).map(|n| n * threads).find(divides);
    // Otherwise as many as can be, so that the threads end at about the same time.
    let blocks = even.or_else(|| (threads..=most).rev().find(divides))?;
    Some(Updates::Blocks { axis, blocks })
}
