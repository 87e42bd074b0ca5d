//! Kernels of random graphs, made by the wide emitter at each of its levels whatever this machine has, on the evaluated processor: beside the
//! kernels' meaning, and beside the machine's own processor, bit for bit, where it has the level.
//!
//! `TLC_SEEDS=from..to` runs other seeds, for as long as one likes; failures are printed as they are found.

mod evaluated;

use std::collections::BTreeSet;
use std::sync::Arc;

use tlc_codegen::code::CompiledCode;
use tlc_codegen::wide::{self, Level};
use tlc_ir::kernel::interp::{KernelError, interpret};
use tlc_ir::kernel::{Access, Kernel, Memory};
use tlc_ir::rng::Rng;
use tlc_ir::target::{Cpu, CpuEmitter, EmitterId};
use tlc_ir::testgen::{GenOptions, random_case, random_tensor, seeds};
use tlc_ir::{DType, HostTensor, Precision, Scalar};
use tlc_passes::planner::Planned;
use tlc_passes::{Options, compile};
use tlc_runtime::cpu::jit::{self, Args, JitOptions};
use tlc_runtime::cpu::level;
use tlc_x86sim::iced_x86;

/// A machine whose widest level is this one.
fn machine(level: Level, scales: bool) -> Cpu {
    let table = match scales && level == Level::Avx512 {
        true => wide::emitter(level).with_scales(),
        false => wide::emitter(level),
    };
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
                let numbers = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -0.0, 1e300, 1e-40, 65504.0, 2147483648.0];
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
struct Call {
    kernel: Kernel,
    symbols: Vec<i64>,
    arguments: Vec<HostTensor>,
}

impl Call {
    fn buffers(&self) -> Vec<Vec<u8>> {
        self.arguments.iter().map(|t| t.bytes().to_vec()).collect()
    }

    /// The whole range, in two parts if it has more than one iteration; a kernel without one runs once.
    fn parts(&self, rng: &mut Rng) -> Vec<(i64, i64)> {
        let extent = self.kernel.parallel_extent().eval_symbols(&self.symbols).expect("an extent");
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
fn calls(seed: u64, level: Level) -> Result<Vec<Call>, String> {
    let case = random_case(seed, &options(seed));
    let settings = Options {
        precision: if seed % 5 == 4 { Precision::Fast } else { Precision::Exact },
        ..Options::new(machine(level, seed % 4 < 2))
    };
    let planned = compile(&case.graph, &settings).map_err(|e| format!("compile: {e}"))?.planned;
    let mut calls = Vec::new();
    add_calls(&planned, &case.binding, (&mut Rng::new(seed), seed % 3 == 1), &mut calls);
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

/// Runs a kernel on this machine's processor.
fn on_silicon(call: &Call, level: Level, dots: bool, parts: &[(i64, i64)]) -> Vec<Vec<u8>> {
    let options = JitOptions {
        threads: 1,
        level_alone: !dots,
        ..JitOptions::default()
    };
    let loaded = jit::compile_wide(level, &[&call.kernel], &options).unwrap_or_else(|e| panic!("{e}"));
    let words = |bytes: usize| vec![0u64; bytes.div_ceil(8) + 16];
    let mut memory: Vec<(Vec<u64>, usize)> = Vec::new();
    for bytes in call.buffers() {
        let mut copy = words(bytes.len());
        let skip = copy.as_ptr().align_offset(64).min(8) + 1;
        // SAFETY: there are so many bytes and 64 more behind `skip`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), copy.as_mut_ptr().add(skip).cast(), bytes.len()) };
        memory.push((copy, skip));
    }
    // SAFETY: `skip` is inside.
    let pointers: Vec<*mut u8> = memory.iter_mut().map(|(m, skip)| unsafe { m.as_mut_ptr().add(*skip).cast() }).collect();
    let scratch_bytes = call.kernel.cache_scratch_bytes().eval_symbols(&call.symbols).expect("a size") as usize;
    let mut scratch = words(scratch_bytes);
    let start = scratch.as_ptr().align_offset(64);
    let args = Args {
        buffers: pointers.as_ptr(),
        symbols: call.symbols.as_ptr(),
        scratch: scratch[start..].as_mut_ptr().cast(),
    };
    for (begin, end) in parts {
        // SAFETY: the buffers have the lengths that the kernel states, and nothing else uses them.
        unsafe { loaded[0].function.call(&args, *begin, *end) };
    }
    let taken = memory.iter().zip(call.buffers()).map(|((m, skip), b)| {
        let bytes: Vec<u8> = m[*skip..].iter().flat_map(|w| w.to_ne_bytes()).collect();
        bytes[..b.len()].to_vec()
    });
    taken.collect()
}

/// What has run in all.
#[derive(Default)]
struct Totals {
    kernels: u64,
    instructions: u64,
    accesses: u64,
    on_silicon: u64,
    /// Kernels that the interpreter refuses.
    without_meaning: u64,
    /// Elements that are close to what they mean, and not the same.
    close: u64,
    codes: BTreeSet<iced_x86::Code>,
}

fn scalars(dtype: DType, bytes: &[u8]) -> HostTensor {
    HostTensor::from_bytes(dtype, &[bytes.len() / dtype.bytes()], bytes).expect("a tensor")
}

/// Whether a sum in another order may give the other: the bound that tests of schedules have.
fn close(a: Scalar, b: Scalar) -> bool {
    let (x, y) = (a.as_f64(), b.as_f64());
    let tolerance = match a.dtype() {
        DType::F16 | DType::BF16 => 2e-2,
        DType::F32 => 1e-4,
        DType::F64 => 1e-10,
        _ => 0.0,
    };
    (x - y).abs() <= tolerance * (1.0 + x.abs().max(y.abs()))
}

fn check(call: &Call, code: &CompiledCode, (level, dots): (Level, bool), rng: &mut Rng, totals: &mut Totals) -> Result<(), String> {
    let kernel = &call.kernel;
    let mut meant = call.arguments.clone();
    let has_meaning = match interpret(kernel, &mut meant, &call.symbols) {
        Ok(()) => true,
        // Lanes that are read of registers which nothing wrote, and that a mask leaves out where they would be stored.
        Err(KernelError::Undefined {
            memory: Memory::Scratch(_),
            ..
        }) => false,
        Err(e) => return Err(format!("interpreted: {e}")),
    };
    totals.without_meaning += u64::from(!has_meaning);
    let parts = call.parts(rng);
    let mut found = call.buffers();
    let ran = evaluated::run(kernel, code, &mut found, &call.symbols, &parts).map_err(|e| e.to_string())?;
    totals.kernels += 1;
    totals.instructions += ran.counts.instructions;
    totals.accesses += ran.counts.accesses;
    totals.codes.extend(ran.codes);
    if level::all().contains(&level) && (!dots || level::multiplies_bytes(level)) {
        totals.on_silicon += 1;
        let native = on_silicon(call, level, dots, &parts);
        for (p, (a, b)) in native.iter().zip(&found).enumerate() {
            if let Some(at) = a.iter().zip(b).position(|(a, b)| a != b) {
                let dtype = kernel.params[p].dtype;
                let (a, b) = (scalars(dtype, a), scalars(dtype, b));
                let i = at / dtype.bytes();
                let bits = (a.get(i).bits(), b.get(i).bits());
                return Err(format!("p{p}[{i}]: the processor has {:#x}, the evaluated one {:#x}", bits.0, bits.1));
            }
        }
    }
    for (p, (meant, found)) in meant.iter().zip(&found).enumerate().filter(|_| has_meaning) {
        let found = scalars(meant.dtype(), found);
        for i in 0..meant.len() {
            let (m, f) = (meant.get(i), found.get(i));
            if m == f || m.is_nan() && f.is_nan() {
                continue;
            }
            if !close(m, f) {
                return Err(format!("p{p}[{i}]: {f}, it means {m}"));
            }
            totals.close += 1;
        }
    }
    Ok(())
}

#[test]
fn kernels_of_random_graphs_mean_on_it_what_they_mean() {
    let lacking: Vec<&str> = Level::ALL.iter().filter(|l| !level::all().contains(l)).map(|l| l.name()).collect();
    if !lacking.is_empty() {
        println!("SKIP beside the processor: it lacks {}", lacking.join(", "));
    }
    let mut failures = Vec::new();
    let mut totals = Totals::default();
    for seed in seeds(0..150) {
        for level in Level::ALL {
            let dots = seed % 2 == 0;
            let calls = match calls(seed, level) {
                Ok(calls) => calls,
                Err(e) => panic!("seed {seed}, {level:?}: {e}"),
            };
            let mut rng = Rng::new(seed);
            for call in &calls {
                let code = evaluated::code(&call.kernel, level, dots).unwrap_or_else(|e| panic!("{e}\n{}", call.kernel));
                if let Err(e) = check(call, &code, (level, dots), &mut rng, &mut totals) {
                    println!("seed {seed}, {}: {e}", level.name());
                    failures.push(format!("seed {seed}, {}: {e}\n{}", level.name(), call.kernel));
                }
            }
        }
    }
    let written: BTreeSet<_> = wide::instructions().collect();
    println!(
        "{} kernels, {} on silicon too, {} without a meaning; {} instructions, {} accesses; {} of {} instructions that the emitter has; {} elements close",
        totals.kernels,
        totals.on_silicon,
        totals.without_meaning,
        totals.instructions,
        totals.accesses,
        totals.codes.intersection(&written).count(),
        written.len(),
        totals.close,
    );
    let never: Vec<_> = written.difference(&totals.codes).map(|c| format!("{c:?}")).collect();
    println!("never: {}", never.join(" "));
    let unlisted: Vec<_> = totals.codes.difference(&written).collect();
    assert!(unlisted.is_empty(), "instructions that the emitter does not list: {unlisted:?}");
    assert!(failures.is_empty(), "{} failures; {}", failures.len(), failures[0]);
}
