//! Kernels of random graphs, for each level.

use std::collections::BTreeSet;
use std::sync::Arc;

use tlc_codegen::wide::{self, Level};
use tlc_ir::kernel::{Access, Kernel};
use tlc_ir::rng::Rng;
use tlc_ir::target::{Cpu, CpuEmitter, EmitterId};
use tlc_ir::testgen::{GenOptions, random_case, random_tensor};
use tlc_ir::{DType, HostTensor, Precision, Scalar};
use tlc_passes::planner::Planned;
use tlc_passes::{Options, compile};

/// A machine whose widest level is this one.
fn machine(level: Level, scales: bool) -> Cpu {
    let mut table = wide::emitter(level);
    table.scales = scales && level == Level::Avx512;
    table.looks_bytes_up = table.scales;
    Cpu::with_emitters(vec![
        CpuEmitter::modest(Arc::new(tlc_codegen::clif::emitter(true))),
        CpuEmitter::modest(Arc::new(table)),
    ])
}

fn options(seed: u64) -> GenOptions {
    let wide = GenOptions {
        max_nodes: 10,
        max_elements: 1500,
        max_rank: 4,
        extents: vec![1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 100],
        ranges: vec![(0, 40), (9, 17), (1, 65), (1, 4)],
        ..GenOptions::default()
    };
    let common = GenOptions {
        symbolic: seed % 3 == 2,
        guards: false,
        control: seed % 7 == 3,
        max_terms: 4000,
        ..wide
    };
    match seed % 2 {
        0 => common,
        _ => GenOptions {
            max_nodes: 16,
            max_elements: 600,
            extents: vec![1, 2, 3, 4, 5, 1, 2, 3, 8, 20],
            ..common
        },
    }
}

/// Data of which some is where operations go wrong.
fn data(rng: &mut Rng, dtype: DType, len: usize, edges: bool) -> HostTensor {
    let mut data = random_tensor(rng, dtype, &[len]);
    for i in 0..len {
        if !edges || dtype == DType::Bool || !rng.chance(1, 4) {
            continue;
        }
        let bits = match (dtype.is_float(), rng.below(4)) {
            (true, 0) => {
                let numbers = [
                    f64::INFINITY,
                    f64::NEG_INFINITY,
                    f64::NAN,
                    -0.0,
                    1e300,
                    1e-40,
                    65504.0,
                    2147483648.0,
                ];
                Scalar::from_f64(dtype, numbers[rng.below(numbers.len())]).bits()
            }
            (false, 0) => [0, u64::MAX, 1 << (dtype.bits() - 1), (1 << (dtype.bits() - 1)) - 1][rng.below(4)],
            _ => rng.bits(),
        };
        data.set(i, Scalar::from_bits(dtype, bits));
    }
    data
}

/// A kernel with what it is called with.
pub struct Call {
    pub kernel: Kernel,
    pub symbols: Vec<i64>,
    pub arguments: Vec<HostTensor>,
}

impl Call {
    /// The arguments' bytes.
    pub fn buffers(&self) -> Vec<Vec<u8>> {
        self.arguments.iter().map(|t| t.bytes().to_vec()).collect()
    }

    /// The whole range, in two parts if it has more than one iteration; a kernel without one runs once.
    pub fn parts(&self, rng: &mut Rng) -> Vec<(i64, i64)> {
        let extent = self
            .kernel
            .parallel_extent()
            .eval_symbols(&self.symbols)
            .expect("an extent");
        match extent {
            0 | 1 => vec![(0, extent)],
            _ => {
                let middle = rng.range(0, extent);
                vec![(0, middle), (middle, extent)]
            }
        }
    }
}

/// The kernels that the wide emitter makes of a random graph on such a machine.
pub fn calls(seed: u64, level: Level) -> Result<Vec<Call>, String> {
    let case = random_case(seed, &options(seed));
    let settings = Options {
        precision: if seed % 5 == 4 {
            Precision::Fast
        } else {
            Precision::Exact
        },
        ..Options::new(machine(level, seed % 4 < 2))
    };
    let planned = compile(&case.graph, &settings)
        .map_err(|e| format!("compile: {e}"))?
        .planned;
    let mut calls = Vec::new();
    add_calls(
        &planned,
        &case.binding,
        (&mut Rng::new(seed), seed % 3 == 1),
        &mut calls,
    );
    Ok(calls)
}

fn add_calls(planned: &Planned, binding: &[i64], (rng, edges): (&mut Rng, bool), calls: &mut Vec<Call>) {
    let mut seen = BTreeSet::new();
    for launch in planned.plan.launches() {
        let number = launch.kernel.0 as usize;
        if planned.emitters.get(number) != Some(&EmitterId(1)) || !seen.insert(number) {
            continue;
        }
        let kernel = planned.plan.kernels[number].clone();
        let symbols: Option<Vec<i64>> = launch.symbols.iter().map(|s| s.eval_symbols(binding)).collect();
        // In a loop they may be what only a call knows.
        let Some(symbols) = symbols else { continue };
        let arguments = kernel.params.iter().map(|p| {
            let len = p.len.eval_symbols(&symbols).expect("a length") as usize;
            match p.access {
                Access::Write => HostTensor::zeros(p.dtype, &[len]).expect("a small tensor"),
                _ => data(rng, p.dtype, len, edges),
            }
        });
        let arguments = arguments.collect();
        calls.push(Call {
            kernel,
            symbols,
            arguments,
        });
    }
    for body in &planned.bodies {
        add_calls(&body.planned, binding, (rng, edges), calls);
    }
}
