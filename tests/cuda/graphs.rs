//! Random graphs on a device, against the interpreter.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tlc::{CompileOptions, Device, HostTensor, Precision, Specialize, compile_ir};
use tlc_ir::graph::ViewKind;
use tlc_ir::interp::{self, interpret, interpret_with_bounds};
use tlc_ir::plan::{DeviceId, Plan};
use tlc_ir::target::Cpu;
use tlc_ir::testgen::{Case, GenKind, GenOptions, random_case, seeds};
use tlc_ir::text::{no_data, parse_graph};
use tlc_ir::{DType, Graph, NodeKind};
use tlc_passes::devices::{Devices, Link, Place};
use tlc_passes::memory::pack;
use tlc_runtime::cpu::jit;
use tlc_runtime::cuda;
use tlc_runtime::driver::{Emitters, Executable, Load};
use tlc_runtime::memory::BufferPool;
use tlc_runtime::pool::Pool;

use crate::judged::judges;
use crate::random_states;
use crate::states::{self, compare_all, without_paths};

/// Runs a graph on devices that share it: the outputs of the third of three calls, and the graph that was compiled if contractions in it were regrouped. The first call goes step
/// after step, the second records, and the third is what was recorded; those before have other inputs, and leave what is in memory.
fn run(
    case: &Case,
    inputs: &[HostTensor],
    on: &[Device],
    passes: Option<String>,
    precision: Precision,
) -> Result<(Vec<HostTensor>, Option<Graph>), String> {
    let names = case.graph.symbols().iter().map(|s| s.name.clone());
    let options = CompileOptions {
        threads: Some(2),
        passes,
        symbols: names.zip(case.binding.iter().copied()).collect(),
        specialize: Specialize::Never,
        device: on[0],
        beside: on[1..].to_vec(),
        precision,
        ..CompileOptions::default()
    };
    let executable = compile_ir(&case.graph, &options).map_err(|e| format!("compile: {e}"))?;
    let given: Vec<tlc::Input<'_>> = inputs.iter().map(Into::into).collect();
    for (call, seed) in [("first", 1), ("second", 2)] {
        let others = case.input_data(seed);
        let others: Vec<tlc::Input<'_>> = others.iter().map(Into::into).collect();
        drop(executable.run(&others).map_err(|e| format!("{call} run: {e}"))?);
    }
    let outputs = executable.run(&given).map_err(|e| format!("third run: {e}"))?;
    let decisions = executable.decisions();
    let regrouped = (!decisions.paths.is_empty()).then(|| decisions.graph.clone());
    Ok((outputs.iter().map(|o| o.to_host()).collect(), regrouped))
}

/// Runs a graph on devices, some of them with approximations; its results are within the interpreter's bounds.
fn check(case: &Case, seed: u64, on: &[Device]) -> Result<Vec<HostTensor>, String> {
    let inputs = case.input_data(seed);
    let symbols = case.graph.symbols().iter().map(|s| s.name.clone());
    let precision = match seed % 4 {
        3 => Precision::Fast,
        _ => Precision::Exact,
    };
    let options = interp::Options {
        symbols: symbols.zip(case.binding.iter().copied()).collect(),
        precision,
        ..interp::Options::default()
    };
    let judge = |graph: &Graph, found: &[HostTensor]| {
        if !judges() {
            return Ok(());
        }
        let exact = interpret(graph, &inputs, &options).map_err(|e| format!("interpreter: {e}"))?;
        let bounded = interpret_with_bounds(graph, &inputs, &options).map_err(|e| format!("interpreter: {e}"))?;
        compare_all(found, &exact, &bounded)
    };
    let (found, regrouped) = run(case, &inputs, on, None, precision)?;
    match (judge(&case.graph, &found), regrouped) {
        // Where infinities or empty sums meet, contractions in another order are as right and differ: then the results are those of
        // the graph that was compiled, and in the written order those of the graph.
        (Err(_), Some(regrouped)) => {
            judge(&regrouped, &found).map_err(|e| format!("regrouped: {e}"))?;
            let (plain, _) = run(case, &inputs, on, Some(without_paths(None)), precision)?;
            judge(&case.graph, &plain)?;
        }
        (compared, _) => compared?,
    }
    Ok(found)
}

/// Runs a graph with states on this host and so many devices, which copy from each other.
fn check_states(seed: u64, case: &mut Case, gpus: u32) -> Result<(), String> {
    let gpus: Result<Vec<_>, _> = (0..gpus).map(cuda::open).collect();
    let gpus = gpus.map_err(|e| e.to_string())?;
    let host = Cpu::modest(Arc::new(jit::emitter().map_err(|e| e.to_string())?));
    let mut devices = Devices::new(host, gpus.iter().map(|g| tlc_runtime::target::gpu(g.properties())));
    if gpus.len() == 2 {
        let [a, b] = [1, 2].map(DeviceId);
        devices = devices.with_link(Link::pcie(a, b)).with_link(Link::pcie(b, a));
    }
    let place = match (seed % 3, gpus.len()) {
        (0, 1) => Place::On(DeviceId(1)),
        (0, _) => Place::Divided,
        _ => Place::Scattered { seed },
    };
    let load = |case: &Case, plan: &Plan| {
        let load = Load {
            threads: Arc::new(Pool::new(2)),
            compiling: 1,
            ahead: None,
            buffers: BufferPool::new(),
            packer: pack,
            emitters: Emitters::default(),
            devices: cuda::queued(&gpus),
        };
        let names = case.graph.symbols().iter().map(|s| s.name.clone());
        let symbols = names.zip(case.binding.iter().copied()).collect();
        Ok(Executable::load(plan.clone(), load)?.with_symbols(symbols))
    };
    states::check(seed, case, place, devices, &|_| Ok(()), &load)
}

/// Extents at which rows, tiles, columns and blocks of several elements a thread are chosen, some of them just short of whole ones.
fn large() -> GenOptions {
    let mut kinds = GenKind::all();
    kinds.extend([GenKind::Map; 4]);
    // What has schedules of its own.
    for kind in [
        GenKind::View(ViewKind::Permute),
        GenKind::Reduce,
        GenKind::Einsum,
        GenKind::Scan,
    ] {
        kinds.extend([kind; 4]);
    }
    GenOptions {
        max_nodes: 16,
        kinds,
        extents: vec![1, 3, 8, 16, 31, 32, 33, 64, 65, 96, 128, 200, 256, 257, 1024, 5000],
        ranges: vec![(0, 70), (64, 64), (1, 300), (30, 33)],
        max_elements: 60_000,
        max_terms: 300_000,
        ..GenOptions::default()
    }
}

/// Few rows that are longer than what stays on chip, and rows just as long as that, beside what is one number of each.
fn long() -> GenOptions {
    let mut kinds = vec![
        GenKind::Input,
        GenKind::Const,
        GenKind::Iota,
        GenKind::Convert,
        GenKind::Gather,
    ];
    kinds.extend([GenKind::Map; 6]);
    for kind in [
        GenKind::Rows,
        GenKind::Reduce,
        GenKind::Scan,
        GenKind::View(ViewKind::Expand),
        GenKind::View(ViewKind::Permute),
        GenKind::View(ViewKind::Slice),
        GenKind::View(ViewKind::Reshape),
    ] {
        kinds.extend([kind; 2]);
    }
    GenOptions {
        max_nodes: 12,
        kinds,
        extents: vec![1, 2, 3, 4, 4096, 8192, 12_289, 20_000, 32_768, 58_113, 65_536, 80_000],
        ranges: vec![(1, 4), (8_000, 70_000), (65_536, 65_536)],
        max_elements: 330_000,
        max_terms: 330_000,
        max_rank: 3,
        control: false,
        ..GenOptions::default()
    }
}

/// What matrix instructions take, at the edges of their tiles: products of 16 bits and of f32, what is made of them, and how their operands lie.
fn multiplied() -> GenOptions {
    let mut kinds = vec![
        GenKind::Input,
        GenKind::Convert,
        GenKind::Rows,
        GenKind::Join,
        GenKind::Reduce,
    ];
    kinds.extend([GenKind::Map; 3]);
    kinds.extend([GenKind::Product; 4]);
    for kind in [
        GenKind::Einsum,
        GenKind::Windows,
        GenKind::View(ViewKind::Permute),
        GenKind::View(ViewKind::Slice),
        GenKind::View(ViewKind::Pad),
    ] {
        kinds.extend([kind; 2]);
    }
    GenOptions {
        max_nodes: 12,
        dtypes: vec![DType::F16, DType::BF16, DType::F16, DType::BF16, DType::F32],
        kinds,
        extents: vec![1, 8, 15, 16, 32, 33, 48, 50, 64, 65, 100, 128, 130, 192, 256],
        ranges: vec![(1, 130), (64, 64), (1, 300), (30, 66)],
        max_elements: 40_000,
        max_terms: 1_500_000,
        max_rank: 4,
        control: false,
        ..GenOptions::default()
    }
}

/// Images: what pads, cuts, turns and slides over them, at extents that no 16 bytes divide and at some that they do.
fn images() -> GenOptions {
    let mut kinds = vec![
        GenKind::Input,
        GenKind::Const,
        GenKind::Convert,
        GenKind::Join,
        GenKind::Reduce,
        GenKind::Gather,
        GenKind::View(ViewKind::Reshape),
    ];
    kinds.extend([GenKind::Map; 5]);
    for kind in [
        GenKind::Windows,
        GenKind::View(ViewKind::Pad),
        GenKind::View(ViewKind::Slice),
        GenKind::View(ViewKind::Permute),
        GenKind::View(ViewKind::Expand),
    ] {
        kinds.extend([kind; 3]);
    }
    GenOptions {
        max_nodes: 14,
        dtypes: vec![
            DType::F32,
            DType::F16,
            DType::F32,
            DType::BF16,
            DType::I8,
            DType::U8,
            DType::I64,
        ],
        kinds,
        extents: vec![1, 2, 3, 4, 7, 8, 14, 16, 27, 28, 30, 32, 56, 57],
        ranges: vec![(1, 3), (5, 30), (28, 28), (1, 60)],
        max_elements: 40_000,
        max_terms: 300_000,
        max_rank: 4,
        control: false,
        ..GenOptions::default()
    }
}

/// Elements of one byte, of which an access moves 16, and what they are compared and converted to.
fn bytes() -> GenOptions {
    let mut kinds = vec![
        GenKind::Input,
        GenKind::Const,
        GenKind::Iota,
        GenKind::Bitcast,
        GenKind::Gather,
        GenKind::Join,
        GenKind::Reduce,
    ];
    kinds.extend([GenKind::Map; 10]);
    kinds.extend([GenKind::Convert; 3]);
    for kind in [
        ViewKind::Permute,
        ViewKind::Expand,
        ViewKind::Slice,
        ViewKind::Pad,
        ViewKind::Reshape,
    ] {
        kinds.push(GenKind::View(kind));
    }
    GenOptions {
        max_nodes: 14,
        dtypes: vec![DType::I8, DType::U8, DType::Bool, DType::I8, DType::U8, DType::F32],
        kinds,
        extents: vec![1, 3, 15, 16, 17, 31, 33, 64, 100, 256, 257, 1024, 4096],
        ranges: vec![(0, 40), (64, 64), (1, 300), (16, 4096)],
        max_elements: 70_000,
        max_terms: 100_000,
        max_rank: 4,
        control: false,
        ..GenOptions::default()
    }
}

/// Graphs of sizes that may be large, see [`enlarged`]: of few axes, so that no tensor has more elements than there are numbers.
fn vast() -> GenOptions {
    let unknown = [GenKind::Data, GenKind::Product, GenKind::Windows];
    let mut kinds = GenKind::all();
    kinds.retain(|k| !unknown.contains(k));
    kinds.extend([GenKind::Map; 4]);
    kinds.extend([ViewKind::Expand, ViewKind::Permute, ViewKind::Reshape, ViewKind::Pad].map(GenKind::View));
    GenOptions {
        max_nodes: 12,
        kinds,
        extents: vec![1, 3, 4, 8, 33],
        ranges: vec![(1, 40), (1, 9), (1, 70), (1, 300)],
        max_elements: 20_000,
        max_rank: 3,
        guards: false,
        control: false,
        ..GenOptions::default()
    }
}

/// A graph whose sizes may be so large that its indices take 64 bits, if it is one of such sizes too.
fn enlarged(case: &Case) -> Option<Graph> {
    const MOST: i64 = 1 << 17;
    let text = case.graph.symbols().iter().fold(case.graph.to_string(), |text, s| {
        let range = |hi: i64| format!("{} in {}..={hi}", s.name, s.lo);
        text.replace(&range(s.hi), &range(MOST))
    });
    let graph = parse_graph(&text, &mut no_data).ok()?;
    graph.symbols().iter().any(|s| s.hi == MOST).then_some(graph)
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

/// The larger and the smaller of zeros, by `maximum` and `minimum` of IEEE 754-2019, alone and in vectors, one of them a constant or none.
pub fn zeros(device: Device) {
    let signs = |n: usize, every: usize| (0..n).map(move |i| if (i / every).is_multiple_of(2) { 0.0 } else { -0.0 });
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        let g = tlc::Graph::new("zeros");
        let n = g.symbol("n", 1..=100);
        let [a, b] = ["a", "b"].map(|name| g.input(name, DType::F64, [&n]).cast(dtype));
        for (name, value) in [("both", None), ("plus", Some(0.0)), ("minus", Some(-0.0))] {
            let other = value.map_or_else(|| b.clone(), |v| g.full([&n], v, dtype));
            g.output(&format!("max_{name}"), &a.maximum(&other).cast(DType::F64));
            g.output(&format!("min_{name}"), &a.minimum(&other).cast(DType::F64));
            g.output(&format!("max_of_{name}"), &other.maximum(&a).cast(DType::F64));
        }
        let options = CompileOptions {
            device,
            ..CompileOptions::default()
        };
        let executable = g.compile(&options).expect("it compiles");
        for n in [1, 4, 37] {
            let given: [Vec<f64>; 2] = [signs(n, 1).collect(), signs(n, 2).collect()];
            let found = executable.run(&tlc::inputs![&given[0], &given[1]]).expect("it runs");
            for (name, other) in [("both", None), ("plus", Some(0.0)), ("minus", Some(-0.0f64))] {
                for (i, &a) in given[0].iter().enumerate() {
                    let b = other.unwrap_or(given[1][i]);
                    let negative = |of: &str| {
                        found[&*format!("{of}_{name}")].as_slice::<f64>().expect("f64")[i].is_sign_negative()
                    };
                    let all = a.is_sign_negative() && b.is_sign_negative();
                    let any = a.is_sign_negative() || b.is_sign_negative();
                    assert_eq!(
                        [negative("max"), negative("max_of"), negative("min")],
                        [all, all, any],
                        "{dtype} {name} {a} {b}"
                    );
                }
            }
        }
    }
}

/// Goes through cases; each that fails is printed. `TLC_SEED=n` runs one and prints its graph.
fn each(
    what: &str,
    default: std::ops::Range<u64>,
    options: &GenOptions,
    f: &mut dyn FnMut(u64, &mut Case) -> Result<(), String>,
) {
    let mut failures = Vec::new();
    for seed in seeds(default) {
        let mut case = random_case(seed, options);
        if std::env::var("TLC_SEED").is_ok() {
            println!("{}", case.graph);
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| f(seed, &mut case)));
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
        bits_of(0..60, &GenOptions::default());
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn large_graphs() {
        bits_of(10_000..10_030, &large());
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn long_rows() {
        bits_of(30_000..30_012, &long());
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn multiplied_graphs() {
        bits_of(40_000..40_016, &multiplied());
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn images_of_all_sizes() {
        bits_of(50_000..50_012, &images());
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn vast_sizes() {
        let mut bits = DefaultHasher::new();
        let mut found = 0;
        each("graph", 70_000..70_040, &vast(), &mut |seed, case| {
            let Some(graph) = enlarged(case) else { return Ok(()) };
            case.graph = graph;
            found += 1;
            let results = check(case, seed, &[Device::cuda(0)])?;
            results.iter().for_each(|t| t.bytes().hash(&mut bits));
            Ok(())
        });
        println!("bits {:016x}", bits.finish());
        println!("enlarged {found}");
        assert!(std::env::var("TLC_SEED").is_ok() || found > 0);
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn elements_of_one_byte() {
        bits_of(60_000..60_012, &bytes());
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn states() {
        each("states", 20_000..20_060, &GenOptions::default(), &mut |seed, case| {
            check_states(seed, case, 1)
        });
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn states_on_two() {
        let options = GenOptions::default();
        each("states", 21_000..21_060, &options, &mut |seed, case| {
            check_states(seed, case, 2)
        });
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn divided_graphs() {
        bits_on(&[Device::cuda(0), Device::cuda(1)], 0..40, &GenOptions::default());
        bits_on(&[2, 0, 1].map(Device::cuda), 100..120, &GenOptions::default());
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn calls_on_states() {
        random_states::check_all(0..25, random_states::SMALL, Device::cuda(0));
        random_states::check_all(0..2, random_states::LARGE, Device::cuda(0));
    }

    fn bits_of(default: std::ops::Range<u64>, options: &GenOptions) {
        bits_on(&[Device::cuda(0)], default, options);
    }

    fn bits_on(on: &[Device], default: std::ops::Range<u64>, options: &GenOptions) {
        let mut bits = DefaultHasher::new();
        each("graph", default, options, &mut |seed, case| {
            let found = check(case, seed, on)?;
            found.iter().for_each(|t| t.bytes().hash(&mut bits));
            Ok(())
        });
        println!("bits {:016x}", bits.finish());
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn zeros() {
        crate::graphs::zeros(Device::cuda(0));
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
            let here = run(case, &inputs, &[Device::cpu()], None, Precision::Exact)?.0;
            let there = run(case, &inputs, &[Device::cuda(0)], None, Precision::Exact)?.0;
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
