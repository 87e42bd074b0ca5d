//! Several kernels as one that runs them in turn, in one block.
//!
//! The text has each distinct kernel once, as a function, and goes through the launches in a loop, so that what is launched again and again
//! is fetched once. Which kernel a launch is, of how many blocks, and where its buffers are it finds in shared memory. A barrier of the
//! block, which orders all memory of its threads, is between launches and between the blocks of one.
//!
//! Invariant: no parameter is `__restrict__`, for one launch reads what another wrote. Reads then are ordinary loads.

use std::fmt::Write;

use tlc_ir::index::IndexExpr;
use tlc_ir::kernel::{Grid, Kernel};
use tlc_ir::target::{
    GPU_ACCESS_BYTES, MAX_BLOCK_THREADS, MOST_OPT_IN_SHARED_BYTES, MOST_PARAMETER_VALUES, STATIC_SHARED_BYTES,
};

use super::groups::multiplies_in_groups;
use super::{
    CudaError, CudaKernel, CudaOptions, SHARED, capability, declared_by_launch, flatten, is_identifier, limit,
    parameters, prelude, scratch, symbols, with_fragments_placed, write,
};

/// What the function of a kernel is called within its namespace.
pub(super) const BODY: &str = "body";

/// Translates launches of legal kernels, `order` being the number of each launch's kernel, to one kernel of one block. It is given 64-bit
/// values alone: for each launch the number of its blocks, then the addresses of its buffers, then its symbols.
///
/// # Errors
/// [`CudaError`], naming what does not translate.
pub fn emit_sequence(
    kernels: &[&Kernel],
    order: &[usize],
    name: &str,
    options: &CudaOptions,
) -> Result<CudaKernel, CudaError> {
    let (threads, own) = joined_block(kernels, name, options)?;
    let each = |k: usize| 1 + kernels[k].params.len() + kernels[k].symbols.len();
    let values: usize = order.iter().map(|&k| each(k)).sum();
    limit("values of a sequence", values as i64, MOST_PARAMETER_VALUES as i64)?;
    // What says where everything is comes first.
    let table = (values as i64 * 8 + GPU_ACCESS_BYTES - 1) / GPU_ACCESS_BYTES * GPU_ACCESS_BYTES;
    let shared_bytes = table + own;
    limit("bytes of shared memory", shared_bytes, MOST_OPT_IN_SHARED_BYTES)?;
    let dynamic = shared_bytes > STATIC_SHARED_BYTES;

    let mut source = String::new();
    for (k, kernel) in kernels.iter().enumerate() {
        source.push_str(&part(kernel, k, threads, true)?);
    }
    let params: Vec<String> = (0..values).map(|v| format!("unsigned long long v{v}")).collect();
    let _ = writeln!(
        source,
        "extern \"C\" __global__ void __launch_bounds__({threads}, 1) {name}(\n    {}\n) {{",
        params.join(",\n    ")
    );
    match dynamic {
        true => source.push_str(&declared_by_launch(GPU_ACCESS_BYTES)),
        false => {
            let _ = writeln!(
                source,
                "    __shared__ __align__({GPU_ACCESS_BYTES}) unsigned char {SHARED}[{shared_bytes}];"
            );
        }
    }
    source.push_str(&body(kernels, order, table));
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

/// The threads, and the bytes of shared memory, of a block of a kernel of that name that runs each of these.
pub(super) fn joined_block(kernels: &[&Kernel], name: &str, options: &CudaOptions) -> Result<(i64, i64), CudaError> {
    if !is_identifier(name) {
        return Err(CudaError::Name(name.into()));
    }
    capability(&options.arch)?;
    if kernels.iter().any(|k| multiplies_in_groups(k)) {
        return Err(CudaError::Unsupported(
            "a product of four warps beside other kernels".into(),
        ));
    }
    let grids: Vec<Grid> = kernels
        .iter()
        .map(|k| k.grid().ok_or(CudaError::NoBlockLoop))
        .collect::<Result<_, _>>()?;
    let threads = grids.iter().map(|g| g.threads).max().unwrap_or(1);
    limit("threads of a block", threads, MAX_BLOCK_THREADS)?;
    Ok((threads, grids.iter().map(|g| g.shared_bytes).max().unwrap_or(0)))
}

/// A namespace with the function of one kernel, for blocks of so many threads. `may_alias` says whether a buffer that it writes may be
/// another one of it too, or one that another kernel of the same launch touches.
pub(super) fn part(kernel: &Kernel, number: usize, threads: i64, may_alias: bool) -> Result<String, CudaError> {
    let kernel = &*with_fragments_placed(kernel);
    // What has matrices of which tiles are copied is a launch of its own.
    let flat = flatten(kernel, "")?;
    let code = write::Writer::new(&flat, threads, "block", true).kernel()?;
    let mut params = parameters(kernel, may_alias);
    params.push("const int block".into());
    params.push(format!("unsigned char* const {SHARED}"));
    let mut out = format!("namespace part{number} {{\n");
    out.push_str(&prelude(kernel, &code));
    out.push_str(&code.helpers);
    let _ = writeln!(
        out,
        "static __device__ __forceinline__ void {BODY}({}) {{",
        params.join(", ")
    );
    out.push_str(&symbols(kernel, &code));
    out.push_str(&scratch(kernel, true)?);
    out.push_str(&code.text);
    out.push_str("}\n}\n");
    Ok(out)
}

/// The text that puts the values where a loop finds them, and the loop.
fn body(kernels: &[&Kernel], order: &[usize], table: i64) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "    unsigned long long* const values = (unsigned long long*){SHARED};"
    );
    out.push_str("    if (threadIdx.x == 0) {\n");
    let mut at = 0;
    for &k in order {
        // The number of the kernel is above that of the blocks.
        let _ = writeln!(out, "        values[{at}] = v{at} | {k}ull << 32;");
        let next = at + 1 + kernels[k].params.len() + kernels[k].symbols.len();
        for v in at + 1..next {
            let _ = writeln!(out, "        values[{v}] = v{v};");
        }
        at = next;
    }
    out.push_str("    }\n    __syncthreads();\n    const unsigned long long* of = values;\n    #pragma unroll 1\n");
    let _ = writeln!(out, "    for (int launch = 0; launch < {}; ++launch) {{", order.len());
    out.push_str("        const int kernel = (int)(of[0] >> 32);\n        const int blocks = (int)of[0];\n");
    for (k, kernel) in kernels.iter().enumerate() {
        let (open, values) = (if k == 0 { "        " } else { " else " }, kernel.params.len());
        match kernels.len() {
            1 => out.push_str("        {\n"),
            _ => {
                let _ = writeln!(out, "{open}if (kernel == {k}) {{");
            }
        }
        out.push_str("            #pragma unroll 1\n            for (int block = 0; block < blocks; ++block) {\n");
        out.push_str("                if (block > 0) __syncthreads();\n");
        let (text, mut given) = arguments(kernel, k, "of", 1, "                ");
        out.push_str(&text);
        given.extend(["block".into(), format!("{SHARED} + {table}")]);
        let _ = writeln!(out, "                part{k}::{BODY}({});", given.join(", "));
        let _ = write!(
            out,
            "            }}\n            of += {};\n        }}",
            1 + values + kernel.symbols.len()
        );
    }
    out.push_str("\n        __syncthreads();\n    }\n");
    out
}

/// The text that has a kernel's buffers found in an array of 64-bit values, from `first` on, and what its function is called with: the
/// buffers, then its symbols, which are behind them.
pub(super) fn arguments(
    kernel: &Kernel,
    part: usize,
    array: &str,
    first: usize,
    indent: &str,
) -> (String, Vec<String>) {
    let mut out = String::new();
    let mut given: Vec<String> = Vec::new();
    for (i, p) in kernel.params.iter().enumerate() {
        let constant = match p.access {
            tlc_ir::kernel::Access::Read => "const ",
            _ => "",
        };
        let pointer = format!("{constant}{}*", of_part(part, p.dtype));
        let _ = writeln!(out, "{indent}{pointer} const a{i} = ({pointer}){array}[{}];", first + i);
        // What is loaded from memory could be an address of any kind.
        let _ = writeln!(out, "{indent}__builtin_assume(__isGlobal(a{i}));");
        given.push(format!("a{i}"));
    }
    let symbols = first + kernel.params.len();
    given.extend((0..kernel.symbols.len()).map(|i| format!("(long long){array}[{}]", symbols + i)));
    (out, given)
}

/// The type of elements of a buffer, as the part of a kernel names it.
fn of_part(part: usize, dtype: tlc_ir::DType) -> String {
    format!("part{part}::{}", super::memory_type(dtype))
}
