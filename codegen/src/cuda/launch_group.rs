//! Several independent launches as one, whose grid has the blocks of all of them.
//!
//! The text has each distinct kernel once, as a function. A block finds by its number which launch it is of: what the kernel is given begins
//! with how many blocks there are up to each launch's last one. Behind that are each launch's addresses and symbols, and launches of one
//! kernel that follow each other have them at equal distances, so that a block computes where its own are.
//!
//! Invariant: no launch touches what another writes, so that blocks need no order, and a kernel's buffers are `__restrict__` where those of
//! its launches lie apart.

use std::fmt::Write;

use tlc_ir::index::IndexExpr;
use tlc_ir::kernel::Kernel;
use tlc_ir::target::{
    GPU_ACCESS_BYTES, MOST_GROUP_VALUES, MOST_OPT_IN_SHARED_BYTES, STATIC_SHARED_BYTES, group_values, half_full_blocks,
};

use super::sequence::{BODY, arguments, joined_block, part};
use super::{CudaError, CudaKernel, CudaOptions, SHARED, declared_by_launch, limit};

/// Launches of one kernel that follow each other.
struct Run {
    kernel: usize,
    launches: usize,
}

fn runs(order: &[usize]) -> Vec<Run> {
    let same = order.chunk_by(|a, b| a == b);
    same.map(|of| Run {
        kernel: of[0],
        launches: of.len(),
    })
    .collect()
}

/// Translates independent launches of legal kernels, `order` being the number of each launch's kernel, to one kernel. `in_place` says of
/// each kernel whether it writes where it reads. The kernel is given one structure: for each launch how many blocks it and those before
/// it have, as 32-bit numbers, padded to a multiple of 8 bytes; then for each launch the addresses of its buffers and its symbols, as 64-bit
/// values. It is launched with the blocks of all.
///
/// # Errors
/// [`CudaError`], naming what does not translate.
pub fn emit_launch_group(
    kernels: &[&Kernel],
    in_place: &[bool],
    order: &[usize],
    name: &str,
    options: &CudaOptions,
) -> Result<CudaKernel, CudaError> {
    if order.is_empty() {
        return Err(CudaError::Unsupported("a group of no launches".into()));
    }
    let (threads, shared_bytes) = joined_block(kernels, name, options)?;
    limit("bytes of shared memory", shared_bytes, MOST_OPT_IN_SHARED_BYTES)?;
    let each = |k: usize| kernels[k].params.len() + kernels[k].symbols.len();
    let given: usize = order.iter().map(|&k| each(k)).sum();
    let values = group_values(order.len(), given);
    limit("values of a group", values as i64, MOST_GROUP_VALUES as i64)?;
    let dynamic = shared_bytes > STATIC_SHARED_BYTES;

    let mut source = String::new();
    for (k, kernel) in kernels.iter().enumerate() {
        let may_alias = in_place.get(k).copied().unwrap_or(true);
        source.push_str(&part(kernel, k, threads, may_alias)?);
    }
    let ends = order.len().next_multiple_of(2);
    // An array has at least one element.
    let given = given.max(1);
    let _ = writeln!(
        source,
        "struct Given {{\n    unsigned ends[{ends}];\n    unsigned long long values[{given}];\n}};\n\
         extern \"C\" __global__ void __launch_bounds__({threads}, {}) {name}(const __grid_constant__ Given of) {{",
        half_full_blocks(threads)
    );
    match (dynamic, shared_bytes) {
        (true, _) => source.push_str(&declared_by_launch(GPU_ACCESS_BYTES)),
        (false, 0) => {
            let _ = writeln!(source, "    unsigned char* const {SHARED} = nullptr;");
        }
        (false, bytes) => {
            let _ = writeln!(
                source,
                "    __shared__ __align__({GPU_ACCESS_BYTES}) unsigned char {SHARED}[{bytes}];"
            );
        }
    }
    source.push_str(&body(kernels, order));
    source.push_str("}\n");
    Ok(CudaKernel {
        name: name.into(),
        source,
        grid: IndexExpr::ONE,
        block: threads as u32,
        shared_bytes: shared_bytes as u32,
        dynamic_shared_bytes: if dynamic { shared_bytes as u32 } else { 0 },
        matrices: Vec::new(),
    })
}

/// The text that finds the launch of a block, and has it do its part.
fn body(kernels: &[&Kernel], order: &[usize]) -> String {
    let mut out = format!("    int launch = 0;\n    int last = {};\n", order.len() - 1);
    out.push_str(
        "    while (launch < last) {
        const int middle = (launch + last) >> 1;
        if (blockIdx.x < of.ends[middle]) last = middle;
        else launch = middle + 1;
    }
    const int block = (int)blockIdx.x - (launch > 0 ? (int)of.ends[launch - 1] : 0);
",
    );
    let runs = runs(order);
    let (mut first, mut at) = (0, 0);
    for (number, run) in runs.iter().enumerate() {
        let k = run.kernel;
        let each = kernels[k].params.len() + kernels[k].symbols.len();
        let begin = if number == 0 { "    " } else { " else " };
        let end = first + run.launches;
        match number + 1 == runs.len() {
            true => {
                let _ = writeln!(out, "{begin}{{");
            }
            false => {
                let _ = writeln!(out, "{begin}if (launch < {end}) {{");
            }
        }
        let _ = writeln!(
            out,
            "        const unsigned long long* const own = of.values + ({at} + (launch - {first}) * {each});"
        );
        let (text, mut given) = arguments(kernels[k], k, "own", 0, "        ");
        out.push_str(&text);
        given.extend(["block".into(), SHARED.to_string()]);
        let _ = write!(out, "        part{k}::{BODY}({});\n    }}", given.join(", "));
        first = end;
        at += run.launches * each;
    }
    out.push('\n');
    out
}
