//! Random graphs over all node kinds and dtypes: compiled results against the interpreter, within its derived error bound,
//! and bitwise equal between thread counts. Each is compiled for one or two GPUs as well, and that
//! plan proven and interpreted, its steps in two orders.
//!
//! `TLC_SEEDS=from..to` runs other seeds than the recorded ones, for as long as one likes: failures are printed as they are found,
//! and the file that `TLC_AT` names holds the seed that is running, for the case that generated code ends the process. `TLC_SEED=n`
//! runs one and prints its graph.

use std::sync::Arc;

use tlc::{CompileOptions, compile_ir};
use tlc_ir::interp::{self, Bounded, compare, interpret, interpret_with_bounds};
use tlc_ir::plan::interp::{interpret_bound, interpret_shuffled};
use tlc_ir::plan::verify::{check_thoroughly, verify_layout};
use tlc_ir::plan::{DeviceId, Plan, Step, Work};
use tlc_ir::target::{Cpu, Gpu, MAX_BLOCK_THREADS, STATIC_SHARED_BYTES};
use tlc_ir::testgen::{Case, GenOptions, random_case};
use tlc_ir::{DType, Graph, HostTensor};
use tlc_passes::Options;
use tlc_passes::devices::{Devices, Place};
use tlc_passes::memory::pack;

/// The outputs, and the graph that was compiled if contractions in it were regrouped.
fn run(
    case: &Case,
    inputs: &[HostTensor],
    threads: usize,
    passes: Option<&str>,
) -> Result<(Vec<HostTensor>, Option<Graph>), String> {
    let names = case.graph.symbols().iter().map(|s| s.name.clone());
    let options = CompileOptions {
        threads: Some(threads),
        passes: passes.map(String::from),
        symbols: names.zip(case.binding.iter().copied()).collect(),
        ..Default::default()
    };
    let executable = compile_ir(&case.graph, &options).map_err(|e| format!("compile: {e}"))?;
    // Compilation looks for counterexamples at the ends of loops; here every kernel is proven or enumerated.
    check_thoroughly(executable.plan()).map_err(|e| e.to_string())?;
    let outputs = executable
        .run(&inputs.iter().map(Into::into).collect::<Vec<_>>())
        .map_err(|e| format!("run: {e}"))?;
    let decisions = executable.decisions();
    let regrouped = (!decisions.paths.is_empty()).then(|| decisions.graph.clone());
    Ok((outputs.iter().map(|o| o.to_host()).collect(), regrouped))
}

fn check(seed: u64, case: &Case, passes: Option<&str>) -> Result<(), String> {
    let inputs = case.input_data(seed);
    let options = interp::Options {
        symbols: case
            .graph
            .symbols()
            .iter()
            .map(|s| s.name.clone())
            .zip(case.binding.iter().copied())
            .collect(),
        ..interp::Options::default()
    };
    let (one, regrouped) = run(case, &inputs, 1, passes)?;
    let (two, _) = run(case, &inputs, 2, passes)?;
    for (k, (a, b)) in one.iter().zip(&two).enumerate() {
        if a != b {
            return Err(format!("output {k} differs between one and two threads"));
        }
    }
    let exact = interpret(&case.graph, &inputs, &options).map_err(|e| format!("interpreter: {e}"))?;
    let bounded = interpret_with_bounds(&case.graph, &inputs, &options).map_err(|e| format!("interpreter: {e}"))?;
    let judge = |found: &[HostTensor], regrouped: Option<Graph>| -> Result<(), String> {
        let compared = compare_all(found, &exact, &bounded);
        let (Err(_), Some(regrouped)) = (&compared, regrouped) else {
            return compared;
        };
        // Contractions are regrouped as `NodeKind::Einsum` permits: where infinities or empty sums meet, both orders are right
        // and differ. Then the result is that of the regrouped graph, and in the written order it is that of the graph itself.
        let exact_of = |e| format!("interpreter, regrouped: {e}");
        let exact_regrouped = interpret(&regrouped, &inputs, &options).map_err(exact_of)?;
        let bounded_regrouped = interpret_with_bounds(&regrouped, &inputs, &options).map_err(exact_of)?;
        compare_all(found, &exact_regrouped, &bounded_regrouped).map_err(|e| format!("regrouped: {e}"))?;
        let (plain, _) = run(case, &inputs, 1, Some(&without_paths(passes)))?;
        compare_all(&plain, &exact, &bounded)
    };
    judge(&one, regrouped)?;
    let (found, regrouped) = on_gpus(case, &inputs, passes).map_err(|e| format!("for GPUs: {e}"))?;
    judge(&found, regrouped).map_err(|e| format!("for GPUs: {e}"))
}

/// The outputs of the plan for a GPU beside a host, or with every value on any of two GPUs and the host, proven and interpreted in
/// the order of the list and another one; and the graph that was compiled if contractions were regrouped.
fn on_gpus(
    case: &Case,
    inputs: &[HostTensor],
    passes: Option<&str>,
) -> Result<(Vec<HostTensor>, Option<Graph>), String> {
    let gpu = || Gpu::any(Arc::new(tlc_codegen::cuda::emitter()));
    let host = Cpu::modest(Arc::new(tlc_codegen::clif::emitter(true)));
    let seed = case.graph.len() as u64;
    let mut options = match seed % 2 {
        0 => Options::new(Devices::new(host, [gpu()])),
        _ => Options {
            place: Place::Scattered { seed },
            ..Options::new(Devices::new(host, [gpu(), gpu()]))
        },
    };
    if let Some(passes) = passes {
        options.pipeline = passes.parse().map_err(|e| format!("passes: {e}"))?;
    }
    let compiled = tlc_passes::compile(&case.graph, &options).map_err(|e| format!("compile: {e}"))?;
    let plan = &compiled.planned.plan;
    check_thoroughly(plan).map_err(|e| e.to_string())?;
    fits_a_gpu(plan)?;
    let layout = pack(plan, &case.binding).ok_or("it has no arenas")?;
    if let Some(e) = verify_layout(plan, &layout, &case.binding).first() {
        return Err(format!("layout: {e}"));
    }
    let found = interpret_bound(plan, Some(&layout), inputs, &case.binding).map_err(|e| format!("plan: {e}"))?;
    let other =
        interpret_shuffled(plan, Some(&layout), inputs, &case.binding, seed).map_err(|e| format!("plan: {e}"))?;
    if found.iter().zip(&other).any(|(a, b)| a.bytes() != b.bytes()) {
        return Err("another order of steps gives other results".into());
    }
    Ok((found, (!compiled.paths.is_empty()).then_some(compiled.graph)))
}

/// Every launch of a GPU is one that it can run.
fn fits_a_gpu(plan: &Plan) -> Result<(), String> {
    for step in plan.init.iter().chain(&plan.steps) {
        if let Step::Loop(l) = step {
            fits_a_gpu(&l.body)?;
        }
        for launch in step.launches() {
            let on_host = launch
                .args
                .iter()
                .all(|s| plan.slots[s.0 as usize].device == DeviceId::HOST);
            match &launch.work {
                Work::Chunks { .. } if on_host => {}
                Work::Grid(grid) if grid.threads <= MAX_BLOCK_THREADS && grid.shared_bytes <= STATIC_SHARED_BYTES => {}
                work => return Err(format!("{} is shared out as {work:?}", launch.label)),
            }
        }
    }
    Ok(())
}

fn default_passes() -> String {
    tlc_passes::pipeline::Pipeline::default().to_string()
}

/// The passes without `einsum-path`.
fn without_paths(passes: Option<&str>) -> String {
    let names = passes.map(String::from).unwrap_or_else(default_passes);
    names
        .split(',')
        .filter(|p| *p != "einsum-path")
        .collect::<Vec<_>>()
        .join(",")
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

fn seeds(default: std::ops::Range<u64>) -> Vec<u64> {
    if let Ok(one) = std::env::var("TLC_SEED") {
        return vec![one.parse().expect("TLC_SEED is a number")];
    }
    match std::env::var("TLC_SEEDS") {
        Ok(range) => {
            let (from, to) = range.split_once("..").expect("TLC_SEEDS is a range");
            (from.parse().expect("a number")..to.parse().expect("a number")).collect()
        }
        Err(_) => default.collect(),
    }
}

fn check_all(name: &str, default: std::ops::Range<u64>, options: &GenOptions, passes: &dyn Fn(u64) -> Option<String>) {
    let mut failures = Vec::new();
    let at = std::env::var_os("TLC_AT");
    for seed in seeds(default) {
        if let Some(at) = &at {
            std::fs::write(at, seed.to_string()).expect("the file that TLC_AT names can be written");
        }
        let case = random_case(seed, options);
        let passes = passes(seed);
        if std::env::var("TLC_SEED").is_ok() {
            println!("{}", case.graph);
        }
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(seed, &case, passes.as_deref())));
        let message = match outcome {
            Ok(Ok(())) => continue,
            Ok(Err(e)) => e,
            Err(p) => format!(
                "panic: {}",
                p.downcast_ref::<String>()
                    .cloned()
                    .or(p.downcast_ref::<&str>().map(|s| s.to_string()))
                    .unwrap_or_default()
            ),
        };
        let failure = format!("{name} seed {seed} passes {passes:?}: {message}");
        if at.is_some() {
            println!("{failure}");
        }
        failures.push(failure);
    }
    assert!(
        failures.is_empty(),
        "{} failures:\n{}",
        failures.len(),
        failures[..failures.len().min(40)].join("\n")
    );
}

#[test]
fn f32_graphs_of_fixed_shape_match_the_interpreter() {
    let options = GenOptions {
        dtypes: vec![DType::F32],
        symbolic: false,
        guards: false,
        ..GenOptions::default()
    };
    check_all("f32", 0..150, &options, &|_| None);
}

#[test]
fn graphs_of_every_dtype_match_the_interpreter() {
    let options = GenOptions {
        symbolic: false,
        guards: false,
        ..GenOptions::default()
    };
    check_all("dtypes", 1000..1200, &options, &|_| None);
}

#[test]
fn graphs_of_symbolic_shape_match_the_interpreter() {
    check_all("symbolic", 2000..2150, &GenOptions::default(), &|_| None);
}

#[test]
fn any_subset_of_passes_in_any_order_keeps_results() {
    let pick = |seed: u64| {
        let mut rng = tlc_ir::rng::Rng::new(seed);
        let all = tlc_passes::pipeline::PASSES;
        let names: Vec<&str> = (0..rng.below(9)).map(|_| all[rng.below(all.len())].name()).collect();
        Some(names.join(","))
    };
    check_all("passes", 3000..3100, &GenOptions::default(), &pick);
}
