//! Kernels of random graphs, made by the wide emitter at each of its levels whatever this machine has, on the evaluated processor: beside the
//! kernels' meaning, and beside the machine's own processor, bit for bit, where it has the level.
//!
//! `TLC_SEEDS=from..to` runs other seeds, for as long as one likes; failures are printed as they are found.

#[path = "../evaluated/mod.rs"]
mod evaluated;
mod faults;
mod graphs;

use std::collections::BTreeSet;

use tlc_codegen::code::CompiledCode;
use tlc_codegen::wide::{self, Extensions, Level};
use tlc_ir::kernel::Memory;
use tlc_ir::kernel::interp::{KernelError, interpret};
use tlc_ir::rng::Rng;
use tlc_ir::testgen::seeds;
use tlc_ir::{DType, HostTensor, Scalar};
use tlc_runtime::cpu::jit::{self, Args, JitOptions};
use tlc_runtime::cpu::level;
use tlc_x86sim::iced_x86;

use graphs::{Call, calls};

/// What the processor has beside its level's instructions, in every other case.
fn extensions(seed: u64, level: Level) -> Extensions {
    let all = seed.is_multiple_of(2);
    Extensions {
        dots: all,
        byte_tables: all && level == Level::Avx512,
    }
}

/// Runs a kernel on this machine's processor.
fn on_silicon(call: &Call, level: Level, extended: bool, parts: &[(i64, i64)]) -> Vec<Vec<u8>> {
    let options = JitOptions {
        threads: 1,
        level_alone: !extended,
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
    let pointers: Vec<*mut u8> = memory
        .iter_mut()
        .map(|(m, skip)| unsafe { m.as_mut_ptr().add(*skip).cast() })
        .collect();
    let scratch_bytes = call
        .kernel
        .cache_scratch_bytes()
        .eval_symbols(&call.symbols)
        .expect("a size") as usize;
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

/// More instructions than any of these kernels takes.
const LIMIT: u64 = 1 << 26;

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

fn check(
    call: &Call,
    code: &CompiledCode,
    (level, extensions): (Level, Extensions),
    rng: &mut Rng,
    totals: &mut Totals,
) -> Result<(), String> {
    let (kernel, extended) = (&call.kernel, extensions != Extensions::default());
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
    let ran = evaluated::run(kernel, code, &mut found, (&call.symbols, &parts), LIMIT).map_err(|e| e.to_string())?;
    totals.kernels += 1;
    totals.instructions += ran.counts.instructions;
    totals.accesses += ran.counts.accesses;
    totals.codes.extend(ran.instructions.iter().map(|i| i.code()));
    if level::all().contains(&level) && (!extended || extensions == level::extensions(level)) {
        totals.on_silicon += 1;
        let native = on_silicon(call, level, extended, &parts);
        for (p, (a, b)) in native.iter().zip(&found).enumerate() {
            if let Some(at) = a.iter().zip(b).position(|(a, b)| a != b) {
                let dtype = kernel.params[p].dtype;
                let (a, b) = (scalars(dtype, a), scalars(dtype, b));
                let i = at / dtype.bytes();
                let bits = (a.get(i).bits(), b.get(i).bits());
                return Err(format!(
                    "p{p}[{i}]: the processor has {:#x}, the evaluated one {:#x}",
                    bits.0, bits.1
                ));
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
    let lacking: Vec<&str> = Level::ALL
        .iter()
        .filter(|l| !level::all().contains(l))
        .map(|l| l.name())
        .collect();
    if !lacking.is_empty() {
        println!("SKIP beside the processor: it lacks {}", lacking.join(", "));
    }
    let mut failures = Vec::new();
    let mut totals = Totals::default();
    let seeds = seeds(0..600);
    for seed in seeds.clone() {
        for level in Level::ALL {
            let extensions = extensions(seed, level);
            let calls = match calls(seed, level) {
                Ok(calls) => calls,
                Err(e) => panic!("seed {seed}, {level:?}: {e}"),
            };
            let mut rng = Rng::new(seed);
            for call in &calls {
                let code =
                    evaluated::code(&call.kernel, level, extensions).unwrap_or_else(|e| panic!("{e}\n{}", call.kernel));
                if let Err(e) = check(call, &code, (level, extensions), &mut rng, &mut totals) {
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
    // Of fewer graphs there may be anything.
    if seeds.end - seeds.start >= 600 {
        assert!(
            totals.kernels > 3000,
            "{} kernels are the wide emitter's",
            totals.kernels
        );
        assert!(totals.codes.len() > 500, "{} instructions have run", totals.codes.len());
    }
    let unlisted: Vec<_> = totals.codes.difference(&written).collect();
    assert!(
        unlisted.is_empty(),
        "instructions that the emitter does not list: {unlisted:?}"
    );
    assert!(failures.is_empty(), "{} failures; {}", failures.len(), failures[0]);
}
