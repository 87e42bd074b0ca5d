//! Random graphs over all node kinds and dtypes: compiled results against the interpreter, within its derived error bound,
//! and bitwise equal between thread counts. Each is compiled for one or two GPUs as well, and that
//! plan proven, interpreted, its steps in two orders, and run on simulated GPUs.
//!
//! `TLC_SEEDS=from..to` runs other seeds than the recorded ones, for as long as one likes: failures are printed as they are found,
//! and the file that `TLC_AT` names holds the seed that is running, for the case that generated code ends the process. `TLC_SEED=n`
//! runs one and prints its graph.

#[path = "differential/states.rs"]
mod states;

use std::path::Path;
use std::sync::Arc;

use tlc::{CompileOptions, PackedWeights, PackedWeightsError, compile_ir};
use tlc_ir::interp::{self, interpret, interpret_with_bounds};
use tlc_ir::plan::interp::{interpret_bound, interpret_shuffled};
use tlc_ir::plan::verify::{check_thoroughly, verify_layout};
use tlc_ir::plan::{DeviceId, Plan, Step, Work};
use tlc_ir::rng::Rng;
use tlc_ir::target::{Cpu, Gpu, MAX_BLOCK_THREADS};
use tlc_ir::testgen::{Case, GenKind, GenOptions, random_case, seeds};
use tlc_ir::{DType, Graph, HostTensor};
use tlc_passes::Options;
use tlc_passes::devices::{Devices, Place};
use tlc_passes::memory::pack;
use tlc_runtime::cpu::jit;
use tlc_runtime::driver::{Emitters, Executable, Load, RunError, TensorView};
use tlc_runtime::memory::BufferPool;
use tlc_runtime::pool::Pool;
use tlc_runtime::simulated::Simulated;

use states::{compare_all, to_host, view, without_paths};

/// The outputs, and the graph that was compiled if contractions in it were regrouped. What the executable keeps is left in a file, if one is given, and
/// looked for there.
fn run(
    case: &Case,
    inputs: &[HostTensor],
    threads: usize,
    passes: Option<&str>,
    packed: Option<&Path>,
) -> Result<(Vec<HostTensor>, Option<Graph>), String> {
    let failed = |e: PackedWeightsError| format!("packed weights: {e}");
    let options = CompileOptions {
        threads: Some(threads),
        passes: passes.map(String::from),
        symbols: case.symbols(),
        packed_weights: packed.map(PackedWeights::open).transpose().map_err(failed)?,
        ..Default::default()
    };
    let executable = compile_ir(&case.graph, &options).map_err(|e| format!("compile: {e}"))?;
    // Compilation looks for counterexamples at the ends of loops; here every kernel is proven or enumerated.
    check_thoroughly(executable.plan()).map_err(|e| e.to_string())?;
    let outputs = executable
        .run(&inputs.iter().map(Into::into).collect::<Vec<_>>())
        .map_err(|e| format!("run: {e}"))?;
    if let Some(packed) = packed.filter(|_| executable.packed_use().made > 0) {
        executable.save_packed_weights(packed).map_err(failed)?;
    }
    let decisions = executable.decisions();
    let regrouped = (!decisions.paths.is_empty()).then(|| decisions.graph.clone());
    Ok((outputs.iter().map(|o| o.to_host()).collect(), regrouped))
}

fn check(seed: u64, case: &Case, passes: Option<&str>) -> Result<(), String> {
    let inputs = case.input_data(seed);
    let options = interp::Options {
        symbols: case.symbols(),
        ..interp::Options::default()
    };
    // The second finds what the first has kept.
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    let packed = folder.path().join("packed");
    let (one, regrouped) = run(case, &inputs, 1, passes, Some(&packed))?;
    let (two, _) = run(case, &inputs, 2, passes, Some(&packed))?;
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
        let (plain, _) = run(case, &inputs, 1, Some(&without_paths(passes)), None)?;
        compare_all(&plain, &exact, &bounded)
    };
    judge(&one, regrouped)?;
    let gpus = on_gpus(case, &inputs, passes).map_err(|e| format!("for GPUs: {e}"))?;
    judge(&gpus.interpreted, gpus.regrouped.clone()).map_err(|e| format!("for GPUs: {e}"))?;
    judge(&gpus.ran, gpus.regrouped).map_err(|e| format!("on simulated GPUs: {e}"))
}

/// What a plan for GPUs computes.
struct OnGpus {
    /// As it is interpreted, in the order of the list and another one.
    interpreted: Vec<HostTensor>,
    /// As it runs on this host and simulated GPUs.
    ran: Vec<HostTensor>,
    /// The graph that was compiled, if contractions were regrouped.
    regrouped: Option<Graph>,
}

/// The outputs of the plan for a GPU beside a host, or with every value on any of two GPUs and the host, proven.
fn on_gpus(case: &Case, inputs: &[HostTensor], passes: Option<&str>) -> Result<OnGpus, String> {
    let gpu = || Gpu::any(Arc::new(tlc_codegen::cuda::emitter()));
    let host = Cpu::modest(Arc::new(jit::emitter().map_err(|e| e.to_string())?));
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
    fits_a_gpu(plan, gpu().opt_in_shared_bytes)?;
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
    let ran = run_on_simulated(case, plan, inputs, seed).map_err(|e| format!("it does not run: {e}"))?;
    Ok(OnGpus {
        interpreted: found,
        ran,
        regrouped: (!compiled.paths.is_empty()).then_some(compiled.graph),
    })
}

/// A plan on this host and simulated GPUs.
fn load_simulated(case: &Case, plan: &Plan, seed: u64) -> Result<Executable, RunError> {
    let load = Load {
        threads: Arc::new(Pool::new(2)),
        compiling: 1,
        ahead: None,
        buffers: BufferPool::new(),
        packer: pack,
        emitters: Emitters::default(),
        devices: Simulated::new(plan.devices.len() - 1, seed).devices(),
    };
    Ok(Executable::load(plan.clone(), load)?.with_symbols(case.symbols()))
}

/// The outputs of the second of two calls on this host and simulated GPUs, which finds in memory what the first left.
fn run_on_simulated(case: &Case, plan: &Plan, inputs: &[HostTensor], seed: u64) -> Result<Vec<HostTensor>, RunError> {
    let executable = load_simulated(case, plan, seed)?;
    let views: Vec<TensorView<'_>> = inputs.iter().map(view).collect();
    drop(executable.run(&views)?);
    Ok(to_host(&executable.run(&views)?))
}

/// Runs a graph with states on this host and simulated GPUs, and compares outputs and new values with the graph's.
fn check_states(seed: u64, case: &mut Case) -> Result<(), String> {
    let gpu = || Gpu::any(Arc::new(tlc_codegen::cuda::emitter()));
    let host = Cpu::modest(Arc::new(jit::emitter().map_err(|e| e.to_string())?));
    let place = match seed % 3 {
        0 => Place::On(DeviceId(2)),
        _ => Place::Scattered { seed },
    };
    let prove = |plan: &Plan| check_thoroughly(plan).map_err(|e| e.to_string());
    let load = |case: &Case, plan: &Plan| load_simulated(case, plan, seed);
    let devices = Devices::new(host, [gpu(), gpu()]);
    states::check(seed, case, place, devices, &prove, &load)
}

/// Every launch of a GPU is one that it can run, whose blocks may ask for so many bytes of shared memory.
fn fits_a_gpu(plan: &Plan, shared_bytes: i64) -> Result<(), String> {
    for step in plan.init.iter().chain(&plan.steps) {
        if let Step::Loop(l) = step {
            fits_a_gpu(&l.body, shared_bytes)?;
        }
        for launch in step.launches() {
            let on_host = launch
                .args
                .iter()
                .all(|s| plan.slots[s.0 as usize].device == DeviceId::HOST);
            match &launch.work {
                Work::Chunks { .. } if on_host => {}
                Work::Grid(grid) if grid.threads <= MAX_BLOCK_THREADS && grid.shared_bytes <= shared_bytes => {}
                work => return Err(format!("{} is shared out as {work:?}", launch.label)),
            }
        }
    }
    Ok(())
}

fn check_all(name: &str, default: std::ops::Range<u64>, options: &GenOptions, passes: &dyn Fn(u64) -> Option<String>) {
    check_each(name, default, options, &|seed, case| {
        let passes = passes(seed);
        check(seed, case, passes.as_deref()).map_err(|e| format!("passes {passes:?}: {e}"))
    });
}

fn check_each(
    name: &str,
    default: std::ops::Range<u64>,
    options: &GenOptions,
    check: &dyn Fn(u64, &mut Case) -> Result<(), String>,
) {
    let mut failures = Vec::new();
    let at = std::env::var_os("TLC_AT");
    for seed in seeds(default) {
        if let Some(at) = &at {
            std::fs::write(at, seed.to_string()).expect("the file that TLC_AT names can be written");
        }
        let mut case = random_case(seed, options);
        if std::env::var("TLC_SEED").is_ok() {
            println!("{}", case.graph);
        }
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(seed, &mut case)));
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
        let failure = format!("{name} seed {seed}: {message}");
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

/// Rows that are wider than the vectors of any emitter and end anywhere.
#[test]
fn graphs_of_wide_rows_match_the_interpreter() {
    let options = GenOptions {
        max_nodes: 12,
        max_elements: 6000,
        extents: vec![1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 100],
        ranges: vec![(0, 40), (9, 17), (1, 65)],
        max_terms: 100_000,
        ..GenOptions::default()
    };
    check_all("wide rows", 7000..7060, &options, &|_| None);
}

/// Products of every form, with what is before and behind them.
#[test]
fn graphs_of_products_match_the_interpreter() {
    let mut options = GenOptions {
        max_nodes: 16,
        ..GenOptions::default()
    };
    options.kinds.extend([GenKind::Product; 12]);
    check_all("products", 8000..8100, &options, &|_| None);
}

#[test]
fn graphs_of_symbolic_shape_match_the_interpreter() {
    check_all("symbolic", 2000..2150, &GenOptions::default(), &|_| None);
}

/// Sizes that data decides, and what follows them.
#[test]
fn graphs_whose_sizes_data_decides_match_the_interpreter() {
    let options = GenOptions {
        counted: true,
        ..GenOptions::default()
    };
    check_all("counted", 10_000..10_150, &options, &|_| None);
}

/// Bodies of loops and regions that hold whatever graphs do, beside sizes that data decides.
#[test]
fn graphs_of_deep_bodies_match_the_interpreter() {
    let options = GenOptions {
        max_nodes: 10,
        counted: true,
        deep: true,
        ..GenOptions::default()
    };
    check_all("deep", 12_000..12_150, &options, &|_| None);
}

/// Constants that are worth packing, rows and columns that fill vectors many times. No loops: thousands of iterations over as many elements take
/// the interpreter minutes.
#[test]
fn graphs_of_large_values_match_the_interpreter() {
    let mut options = GenOptions {
        max_nodes: 8,
        dtypes: vec![DType::F32, DType::F32, DType::I32, DType::F16, DType::I64, DType::U8],
        max_elements: 40_000,
        extents: vec![1, 2, 5, 64, 100, 129, 256, 257, 512, 1000, 4099, 20_000],
        ranges: vec![(0, 300), (64, 64), (1, 130), (0, 0)],
        max_terms: 2_000_000,
        counted: true,
        control: false,
        ..GenOptions::default()
    };
    let more = [GenKind::Data, GenKind::Data, GenKind::Product, GenKind::Reduce];
    options.kinds.extend(more);
    check_all("large", 13_000..13_040, &options, &|_| None);
}

/// What kernels are made of in another process than this: every level of the machine, and the portable emitter alone, with vectors and without.
fn other_levels() -> Vec<&'static str> {
    let wide = tlc_runtime::cpu::level::all().iter().map(|l| l.name());
    let all = wide.chain([tlc_runtime::cpu::level::PORTABLE, tlc_runtime::cpu::level::SCALAR]);
    all.filter(|name| *name != tlc_runtime::cpu::level::name()).collect()
}

/// Where this process makes most kernels at one level, the others are right too.
#[test]
fn graphs_match_the_interpreter_at_every_other_level_too() {
    for level in other_levels() {
        matches_at(level);
    }
}

fn matches_at(level: &str) {
    let program = std::env::current_exe().expect("this program");
    let tests = [
        ("graphs_of_every_dtype_match_the_interpreter", "5000..5060"),
        ("graphs_of_symbolic_shape_match_the_interpreter", "6000..6060"),
        ("graphs_of_wide_rows_match_the_interpreter", "7000..7030"),
        ("graphs_of_products_match_the_interpreter", "9000..9040"),
        ("graphs_whose_sizes_data_decides_match_the_interpreter", "11000..11040"),
        ("graphs_of_deep_bodies_match_the_interpreter", "14000..14030"),
        ("graphs_of_large_values_match_the_interpreter", "15000..15015"),
    ];
    for (name, seeds) in tests {
        let output = std::process::Command::new(&program)
            .args(["--exact", name])
            .env(tlc_runtime::cpu::level::VARIABLE, level)
            .env("TLC_SEEDS", seeds)
            .output()
            .expect("it runs");
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && printed.contains("1 passed"),
            "{level}: {printed}"
        );
    }
}

#[test]
fn any_subset_of_passes_in_any_order_keeps_results() {
    let pick = |seed: u64| {
        let mut rng = Rng::new(seed);
        let all = tlc_passes::pipeline::PASSES;
        let names: Vec<&str> = (0..rng.below(9)).map(|_| all[rng.below(all.len())].name()).collect();
        Some(names.join(","))
    };
    check_all("passes", 3000..3100, &GenOptions::default(), &pick);
}

#[test]
fn states_on_simulated_devices_have_the_values_of_outputs() {
    check_each("states", 4000..4150, &GenOptions::default(), &check_states);
    let more = GenOptions {
        counted: true,
        deep: true,
        ..GenOptions::default()
    };
    check_each("states", 16_000..16_040, &more, &check_states);
}
