//! Random graphs on a device, against the interpreter.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};

use tlc::{CompileOptions, Device, HostTensor, Specialize, compile_ir};
use tlc_ir::interp::{self, Bounded, compare, interpret, interpret_with_bounds};
use tlc_ir::testgen::{Case, GenOptions, random_case};
use tlc_ir::{DType, NodeKind};

/// Seeds of a run, unless `TLC_SEEDS=from..to` says others.
fn seeds(default: std::ops::Range<u64>) -> std::ops::Range<u64> {
    match std::env::var("TLC_SEEDS") {
        Ok(range) => {
            let (from, to) = range.split_once("..").expect("TLC_SEEDS is a range");
            from.parse().expect("a number")..to.parse().expect("a number")
        }
        Err(_) => default,
    }
}

/// The outputs of the third of three calls, which finds in memory what the others left: the first goes step after step, the second records,
/// and the third is what was recorded.
fn run(case: &Case, inputs: &[HostTensor], device: Device) -> Result<Vec<HostTensor>, String> {
    let names = case.graph.symbols().iter().map(|s| s.name.clone());
    let options = CompileOptions {
        threads: Some(2),
        symbols: names.zip(case.binding.iter().copied()).collect(),
        specialize: Specialize::Never,
        device,
        ..CompileOptions::default()
    };
    let executable = compile_ir(&case.graph, &options).map_err(|e| format!("compile: {e}"))?;
    let given: Vec<tlc::Input<'_>> = inputs.iter().map(Into::into).collect();
    for call in ["first", "second"] {
        drop(executable.run(&given).map_err(|e| format!("{call} run: {e}"))?);
    }
    let outputs = executable.run(&given).map_err(|e| format!("third run: {e}"))?;
    Ok(outputs.iter().map(|o| o.to_host()).collect())
}

fn compare_all(actual: &[HostTensor], exact: &[HostTensor], bounded: &[Bounded]) -> Result<(), String> {
    for (k, ((actual, exact), bounded)) in actual.iter().zip(exact).zip(bounded).enumerate() {
        if actual.shape() != exact.shape() || actual.dtype() != exact.dtype() {
            return Err(format!("output {k}: {:?} for {:?}", actual.shape(), exact.shape()));
        }
        compare(actual, bounded).map_err(|e| format!("output {k}: {e}"))?;
    }
    Ok(())
}

/// Runs a graph on the device; its results are within the interpreter's bounds.
fn check(case: &Case, seed: u64) -> Result<Vec<HostTensor>, String> {
    let inputs = case.input_data(seed);
    let symbols = case.graph.symbols().iter().map(|s| s.name.clone());
    let options = interp::Options {
        symbols: symbols.zip(case.binding.iter().copied()).collect(),
        ..interp::Options::default()
    };
    let found = run(case, &inputs, Device::cuda(0))?;
    let exact = interpret(&case.graph, &inputs, &options).map_err(|e| format!("interpreter: {e}"))?;
    let bounded = interpret_with_bounds(&case.graph, &inputs, &options).map_err(|e| format!("interpreter: {e}"))?;
    compare_all(&found, &exact, &bounded)?;
    Ok(found)
}

/// Whether values are computed each from one element of each operand, or moved.
fn is_elementwise(case: &Case) -> bool {
    case.graph.nodes().all(|(_, n)| {
        !matches!(
            n.kind,
            NodeKind::Reduce { .. } | NodeKind::Einsum { .. } | NodeKind::Scan { .. } | NodeKind::Scatter { .. }
        )
    })
}

/// Goes through cases; each that fails is told.
fn each(
    what: &str,
    default: std::ops::Range<u64>,
    options: &GenOptions,
    f: &mut dyn FnMut(u64, &Case) -> Result<(), String>,
) {
    let mut failures = Vec::new();
    for seed in seeds(default) {
        let case = random_case(seed, options);
        let outcome = catch_unwind(AssertUnwindSafe(|| f(seed, &case)));
        let message = match outcome {
            Ok(Ok(())) => continue,
            Ok(Err(e)) => e,
            Err(_) => "panic".into(),
        };
        println!("{what} seed {seed}: {message}");
        failures.push(seed);
    }
    assert!(failures.is_empty(), "{} failures: {failures:?}", failures.len());
}

mod children {
    use super::*;

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn random_graphs() {
        let mut bits = DefaultHasher::new();
        each("graph", 0..60, &GenOptions::default(), &mut |seed, case| {
            let found = check(case, seed)?;
            found.iter().for_each(|t| t.bytes().hash(&mut bits));
            Ok(())
        });
        println!("bits {:016x}", bits.finish());
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn elementwise() {
        let options = GenOptions {
            symbolic: false,
            guards: false,
            ..GenOptions::default()
        };
        let mut compared = 0;
        each("graph", 5000..5120, &options, &mut |seed, case| {
            if !is_elementwise(case) {
                return Ok(());
            }
            compared += 1;
            let inputs = case.input_data(seed);
            let here = run(case, &inputs, Device::cpu())?;
            let there = run(case, &inputs, Device::cuda(0))?;
            for (k, (a, b)) in here.iter().zip(&there).enumerate() {
                equal_but_for_nan(a, b).map_err(|e| format!("output {k}: {e}"))?;
            }
            Ok(())
        });
        println!("compared {compared}");
        assert!(std::env::var("TLC_SEEDS").is_ok() || compared > 10);
    }
}

/// Whether two tensors have the same bits, any NaN being equal to any.
fn equal_but_for_nan(a: &HostTensor, b: &HostTensor) -> Result<(), String> {
    if a.dtype() != b.dtype() || a.shape() != b.shape() {
        return Err("another type".into());
    }
    let is_nan = |bytes: &[u8]| match a.dtype() {
        DType::F32 => f32::from_ne_bytes(bytes.try_into().unwrap_or_default()).is_nan(),
        DType::F64 => f64::from_ne_bytes(bytes.try_into().unwrap_or_default()).is_nan(),
        DType::F16 => u16::from_ne_bytes(bytes.try_into().unwrap_or_default()) & 0x7fff > 0x7c00,
        DType::BF16 => u16::from_ne_bytes(bytes.try_into().unwrap_or_default()) & 0x7fff > 0x7f80,
        _ => false,
    };
    let size = a.dtype().bytes();
    let elements = a.bytes().chunks(size).zip(b.bytes().chunks(size)).enumerate();
    for (i, (x, y)) in elements {
        if x != y && !(is_nan(x) && is_nan(y)) {
            return Err(format!("element {i}: {y:02x?}, on the processor {x:02x?}"));
        }
    }
    Ok(())
}
