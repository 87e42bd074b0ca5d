//! How scans run: in a serial loop, in blocks, or by a warp for each row.
//!
//! A scan along one long axis is a chain, which one thread follows. In blocks it is three steps: a scan of each block, one of the
//! blocks' totals, and an addition of these (Blelloch, "Prefix sums and their applications", 1990). Blocks depend on extents and
//! on the kind of device alone, so that results are equal to the bit for any number of threads.
//!
//! Where a device of many threads has many rows, a warp takes each, so that its threads read neighbours: a thread for each row would not.
//! Of fewer rows the warps of a block take one together, if its threads hold all of it; of longer ones a warp takes each so many elements, twice: for their
//! total, and for the results, with what is before them known.

use tlc_ir::target::{Target, WARP_THREADS};
use tlc_ir::{Graph, NodeId, NodeKind};

use super::{Blocks, ScanForm};

/// With this many other positions or more there is enough to do in parallel already: for a processor, and for a device of many threads, of which
/// each follows a row.
const ENOUGH_ROWS: i64 = 16;
const GPU_ENOUGH_ROWS: i64 = 4096;

/// Blocks of a processor: their totals are few, and their elements stay in its second cache until they are added to.
const CPU_BLOCK: i64 = 8192;
/// Blocks that one thread follows at the same time: each hides what the others wait for.
const CPU_CHAINS: i64 = 4;
/// Fewer elements than this are scanned before other threads would have begun.
const CPU_LEAST: i64 = 1 << 16;

/// The shortest and longest blocks of a device of many threads: as many as one has elements, about, for totals are a chain too.
const GPU_BLOCKS: (i64, i64) = (64, 4096);
/// Blocks where the extent is not known.
const GPU_BLOCK: i64 = 1024;
/// Fewer elements than this are not worth three launches.
const GPU_LEAST: i64 = 2048;
/// With this many rows or more a device of many threads has enough warps, one for each, to hide what they wait for.
const GPU_ROWS_OF_WARPS: i64 = 1024;
/// The longest rows that the threads of a block hold, 32 elements each at most.
const GPU_ROWS_OF_BLOCKS: i64 = 8192;
/// The fewest and the most elements that a warp takes of a row which several share: a few times what its threads load at once.
const GPU_CHUNKS: (i64, i64) = (256, 16384);

pub(super) fn form(graph: &Graph, root: NodeId, target: &Target) -> ScanForm {
    let node = graph.node(root);
    let NodeKind::Scan { axis, .. } = node.kind else {
        return ScanForm::Serial;
    };
    let most = |a: usize| node.ty.shape[a].interval(graph).hi;
    let axis = axis as usize;
    let rows = (0..node.ty.rank()).filter(|&a| a != axis);
    let rows = rows.fold(1i64, |n, a| n.saturating_mul(most(a)));
    let (enough, least, blocks) = match target {
        Target::Cpu(_) => (
            ENOUGH_ROWS,
            CPU_LEAST,
            Blocks {
                elements: CPU_BLOCK,
                chains: CPU_CHAINS,
                neighbours: false,
            },
        ),
        Target::Gpu(_) => {
            let of = |n: i64| (n.max(1).ilog2() / 2 + 1).min(62);
            let elements = node.ty.shape[axis].as_const().map_or(GPU_BLOCK, |n| 1 << of(n));
            let elements = elements.clamp(GPU_BLOCKS.0, GPU_BLOCKS.1);
            let blocks = Blocks {
                elements,
                chains: 1,
                neighbours: true,
            };
            (GPU_ENOUGH_ROWS, GPU_LEAST, blocks)
        }
    };
    // Totals are kept among the results, which may not round them.
    let exact = node.ty.dtype.accumulator() == node.ty.dtype;
    let in_blocks = exact && rows < enough && most(axis) >= least;
    let last = node.ty.shape[axis + 1..].iter().all(|d| d.is(1));
    match target {
        Target::Gpu(_) if last && rows < GPU_ROWS_OF_WARPS && most(axis) >= GPU_LEAST => {
            let chunk = chunk(node.ty.shape[axis].as_const());
            match most(axis) <= GPU_ROWS_OF_BLOCKS {
                true => ScanForm::ByBlocks { chunk },
                false => ScanForm::Chunks(chunk),
            }
        }
        Target::Gpu(_) if last && most(axis) >= WARP_THREADS => ScanForm::Warps,
        _ if in_blocks => ScanForm::Blocks(blocks),
        _ => ScanForm::Serial,
    }
}

/// Elements that a warp takes of rows of a length, if it is known: about as many as there are such parts, whose totals one warp scans.
fn chunk(length: Option<i64>) -> i64 {
    let of = |n: i64| 1 << (n.max(1).ilog2() / 2);
    length.map_or(GPU_BLOCK, of).clamp(GPU_CHUNKS.0, GPU_CHUNKS.1)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tlc_ir::target::{Cpu, Gpu};
    use tlc_ir::text::{no_data, parse_graph};

    use super::*;

    #[test]
    fn a_few_rows_are_enough_for_a_processor_and_few_for_a_gpu() {
        let gpu = Target::from(Gpu::any(Arc::new(tlc_codegen::cuda::emitter())));
        let cpu = Target::from(Cpu::modest(Arc::new(tlc_codegen::clif::emitter(true))));
        for (rows, of_cpu, of_gpu) in [(15, true, true), (256, false, true), (1024, false, false)] {
            let text = format!(
                "graph @scan(%x: f32[{rows}, 65536]) {{\n  %0 = scan add %x {{axis=1}} : f32[{rows}, 65536]\n  return %0\n}}"
            );
            let graph = parse_graph(&text, &mut no_data).expect("a graph");
            let root = graph.outputs()[0].node;
            let found = [&cpu, &gpu].map(|target| form(&graph, root, target));
            assert_eq!(matches!(found[0], ScanForm::Blocks(_)), of_cpu, "{rows} rows");
            let of_warps = if of_gpu { ScanForm::Chunks(256) } else { ScanForm::Warps };
            assert_eq!(found[1], of_warps, "{rows} rows");
        }
    }
}
