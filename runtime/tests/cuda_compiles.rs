//! GPU kernels of graphs with every node kind and dtype: they pass the verifier, mean what the naive nest means (by the
//! kernel interpreter), become CUDA text, and compile to machine code without spills where NVRTC is found.

#[path = "cuda_graphs/mod.rs"]
mod cuda_graphs;

use cuda_graphs::{Case, cases, random_cases};
use tlc_codegen::cuda::{COMPILE_FLAGS, CudaOptions, emit, identifier};
use tlc_ir::kernel::interp::interpret;
use tlc_ir::kernel::{Access, Kernel, verify};
use tlc_ir::{DType, HostTensor, Scalar};
use tlc_passes::cluster::Clusters;
use tlc_passes::legalize::legalize;
use tlc_passes::lower::lower;
use tlc_passes::pipeline::{GpuKernel, gpu_kernels};
use tlc_passes::{Options, compile};
use tlc_runtime::nvrtc::Nvrtc;

/// Generated graphs that are checked by the interpreter, and of these the ones that are compiled, which takes longer.
const RANDOM: u64 = 150;
const RANDOM_COMPILED: u64 = 30;

fn gpu(case: &Case) -> (tlc_passes::Compiled, Vec<GpuKernel>) {
    let compiled = compile(&case.graph, &Options::default()).unwrap_or_else(|e| panic!("{}: {e}", case.name));
    let kernels = gpu_kernels(&compiled.graph, &compiled.clusters);
    (compiled, kernels)
}

/// The naive nests, legalized but not scheduled, in the order of `gpu_kernels`.
fn naive(graph: &tlc_ir::Graph, clusters: &Clusters) -> Vec<(Vec<tlc_ir::NodeId>, Kernel)> {
    let nests = clusters
        .clusters
        .iter()
        .flat_map(|c| lower(graph, c, &clusters.is_root));
    nests
        .map(|mut n| {
            legalize(&mut n.kernel);
            (n.args, n.kernel)
        })
        .collect()
}

/// Small numbers, different from place to place, that every dtype holds.
fn filled(dtype: DType, len: usize, seed: usize) -> HostTensor {
    let mut t = HostTensor::zeros(dtype, &[len]).expect("a small tensor");
    for i in 0..len {
        let v = ((i * 7 + seed * 3) % 11) as f64;
        let v = match dtype {
            d if d.is_float() => v / 4.0 - 1.0,
            d if d.is_signed_int() => v - 3.0,
            _ => v,
        };
        t.set(i, Scalar::from_f64(dtype, v));
    }
    t
}

fn close(a: Scalar, b: Scalar) -> bool {
    let (x, y) = (a.as_f64(), b.as_f64());
    let tolerance = match a.dtype() {
        DType::F16 | DType::BF16 => 2e-2,
        DType::F32 => 1e-4,
        DType::F64 => 1e-10,
        _ => 0.0,
    };
    a == b || (x.is_nan() && y.is_nan()) || (x - y).abs() <= tolerance * (1.0 + x.abs().max(y.abs()))
}

#[test]
fn scheduled_kernels_mean_what_the_nest_means() {
    for case in cases().into_iter().chain(random_cases(RANDOM)) {
        let (compiled, kernels) = gpu(&case);
        let nests = naive(&compiled.graph, &compiled.clusters);
        assert_eq!(nests.len(), kernels.len(), "{}", case.name);
        for (k, (args, nest)) in kernels.iter().zip(&nests) {
            assert_eq!(&k.args, args, "{}: {}", case.name, k.label);
            let symbols: Vec<i64> = k
                .symbols
                .iter()
                .map(|s| s.eval_symbols(&case.symbols).expect("bound"))
                .collect();
            let buffers: Vec<HostTensor> = nest
                .params
                .iter()
                .enumerate()
                .map(|(i, p)| {
                    let len = p.len.eval_symbols(&case.symbols).expect("bound") as usize;
                    if p.access == Access::Write {
                        HostTensor::zeros(p.dtype, &[len]).expect("small")
                    } else {
                        filled(p.dtype, len, i)
                    }
                })
                .collect();
            let (mut expected, mut found) = (buffers.clone(), buffers);
            interpret(nest, &mut expected, &case.symbols).unwrap_or_else(|e| panic!("{} nest: {e}", case.name));
            interpret(&k.kernel, &mut found, &symbols)
                .unwrap_or_else(|e| panic!("{} {}: {e}\n{:#?}", case.name, k.label, k.kernel.body));
            for (p, (want, have)) in expected.iter().zip(&found).enumerate() {
                for i in 0..want.len() {
                    assert!(
                        close(want.get(i), have.get(i)),
                        "{} {}: parameter {p} element {i}: expected {}, found {}",
                        case.name,
                        k.label,
                        want.get(i),
                        have.get(i)
                    );
                }
            }
        }
    }
}

#[test]
fn scheduled_kernels_are_accepted_by_the_verifier() {
    for case in cases().into_iter().chain(random_cases(RANDOM)) {
        let (_, kernels) = gpu(&case);
        for k in &kernels {
            let report = verify::verify(&k.kernel);
            assert!(report.errors.is_empty(), "{} {}: {report:?}", case.name, k.label);
        }
    }
}

#[test]
fn every_kernel_compiles_to_machine_code() {
    let nvrtc = match Nvrtc::load() {
        Ok(found) => Some(found),
        Err(e) => {
            println!("SKIP machine code: {e}");
            None
        }
    };
    let mut most = (0, String::new());
    let mut count = 0;
    for case in cases().into_iter().chain(random_cases(RANDOM_COMPILED)) {
        let (_, kernels) = gpu(&case);
        for (number, k) in kernels.iter().enumerate() {
            let name = identifier(&format!("{}_{number}_{}", case.name, k.label));
            let options = CudaOptions::default();
            let cuda = emit(&k.kernel, &name, &options).unwrap_or_else(|e| panic!("{} {}: {e}", case.name, k.label));
            let Some(nvrtc) = &nvrtc else { continue };
            let cubin = nvrtc
                .compile(&cuda.source, &name, &options.arch, &COMPILE_FLAGS)
                .unwrap_or_else(|e| panic!("{}: {e}\n{}", case.name, cuda.source));
            assert!(cubin.bytes.starts_with(b"\x7fELF"), "{}", case.name);
            let registers = cubin.registers.expect("ptxas reports registers");
            assert!(registers <= 255, "{name}: {registers} registers");
            assert_eq!(cubin.spill_bytes, 0, "{name} spills\n{}", cubin.log);
            println!(
                "{name}: {registers} registers, {} bytes of stack, {} bytes shared, {} threads",
                cubin.stack_bytes, cuda.shared_bytes, cuda.block
            );
            count += 1;
            if registers > most.0 {
                most = (registers, name);
            }
        }
    }
    println!("{count} kernels compiled; at most {} registers ({})", most.0, most.1);
}
