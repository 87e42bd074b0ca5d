//! GPU kernels of graphs with every node kind and dtype: they pass the verifier, mean what the naive nest means (by the
//! kernel interpreter), become CUDA text, and compile to machine code without spills where NVRTC is found.

#[path = "cuda_graphs/mod.rs"]
mod cuda_graphs;

use std::sync::Arc;

use cuda_graphs::{Case, cases, random_cases};
use tlc_codegen::cuda::{COMPILE_FLAGS, CudaError, CudaOptions, emit, emit_launch_group, identifier};
use tlc_ir::kernel::interp::interpret;
use tlc_ir::kernel::{Access, Bind, CollectiveKind, Kernel, Memory, Op, Scope, Stmt, verify};
use tlc_ir::plan::{Step, Work};
use tlc_ir::target::{Cpu, Gpu, Multiprocessor};
use tlc_ir::{DType, HostTensor, IndexExpr, NodeId, Precision, Scalar, ScalarOp};
use tlc_passes::cluster::{Cluster, ClusterKind, Clusters};
use tlc_passes::devices::Devices;
use tlc_passes::legalize::legalize;
use tlc_passes::lower::{Arg, Form, lower};
use tlc_passes::planner::Planned;
use tlc_passes::tree::substitute_in;
use tlc_passes::{Options, compile};
use tlc_runtime::nvrtc::{Nvrtc, NvrtcError};

/// Generated graphs that are checked by the interpreter, and of these the ones that are compiled, which takes longer.
const RANDOM: u64 = 150;
const RANDOM_COMPILED: u64 = 30;

/// Architectures with assemblers that differ.
const ARCHS: [&str; 3] = ["sm_80", "sm_90a", "sm_100"];
/// Cases whose kernels need as many registers as there are, or did for one of [`ARCHS`]: they are compiled for all.
const AT_RISK: [&str; 8] = [
    "reductions_f64",
    "reductions_i64",
    "unary_f64",
    "binary_i64",
    "layer_norm",
    "scans",
    "attention",
    "attention_of_one_row",
];

/// A kernel of a plan for a GPU, as it is launched.
struct GpuKernel {
    label: String,
    kernel: Kernel,
    form: Form,
    /// The node whose value each parameter holds; none of what kernels leave for each other.
    args: Vec<Option<NodeId>>,
    /// Values of its symbols, over the graph's.
    symbols: Vec<IndexExpr>,
}

fn gpu(case: &Case) -> (tlc_passes::Compiled, Vec<GpuKernel>) {
    let any = Gpu::any(Arc::new(tlc_codegen::cuda::emitter()));
    let gpu = Gpu {
        // A library multiplies f32 exactly.
        products: any
            .products
            .filter(|_| case.library && case.precision == Precision::Exact),
        ..any
    };
    let host = Cpu::modest(Arc::new(tlc_codegen::clif::emitter(true)));
    let options = Options {
        precision: case.precision,
        ..Options::new(Devices::new(host, [gpu]))
    };
    let compiled = compile(&case.graph, &options).unwrap_or_else(|e| panic!("{}: {e}", case.name));
    let Planned {
        plan,
        values,
        launches: launches_of,
        ..
    } = &compiled.planned;
    // Where the library does not compute it with the product, what is behind that is launched.
    let launches = plan.launches().into_iter();
    let kernels = launches.map(|l| {
        assert!(matches!(l.work, Work::Grid(_)), "{}: {}", case.name, l.label);
        GpuKernel {
            label: l.label.clone(),
            kernel: plan.kernels[l.kernel.0 as usize].clone(),
            form: launches_of
                .iter()
                .find(|r| r.kernel == l.kernel)
                .expect("a report")
                .form,
            args: l.args.iter().map(|s| values[s.0 as usize]).collect(),
            symbols: l.symbols.clone(),
        }
    });
    let kernels = kernels.collect();
    (compiled, kernels)
}

/// The multiprocessors of an architecture.
fn multiprocessor(arch: &str) -> Multiprocessor {
    Multiprocessor::of(match arch {
        "sm_80" => (8, 0),
        "sm_100" => (10, 0),
        _ => (9, 0),
    })
}

/// The naive nests, once per executable first, legalized but not scheduled, in the order of launches.
fn naive(graph: &tlc_ir::Graph, clusters: &Clusters) -> Vec<(Vec<Option<NodeId>>, Kernel)> {
    let emitter = tlc_codegen::cuda::emitter();
    let (once, each): (Vec<_>, Vec<_>) = clusters.clusters.iter().partition(|c| c.once);
    let nests = once
        .into_iter()
        .chain(each)
        .flat_map(|c| lower(graph, c, &clusters.is_root, Precision::Exact, None));
    nests
        .map(|mut n| {
            legalize(&mut n.kernel, &emitter);
            let args = n.args.iter().map(|arg| match arg {
                Arg::Value(node) => Some(*node),
                Arg::Temporary(_) => None,
            });
            (args.collect(), n.kernel)
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

/// Whether what threads keep for themselves is touched by loops over them of different shapes, so that a thread is another iteration of each.
fn keeps_across_loops(kernel: &Kernel) -> bool {
    type Shape = (bool, Option<i64>);
    fn walk(kernel: &Kernel, body: &[Stmt], warp: bool, shape: Option<Shape>, found: &mut Vec<(u32, Shape)>) {
        for s in body {
            for a in s.accesses() {
                if let (Memory::Scratch(i), Some(shape)) = (a.memory, shape)
                    && kernel.scratch[i as usize].scope == Scope::Thread
                    && !found.contains(&(i, shape))
                {
                    found.push((i, shape));
                }
            }
            let (warp, shape) = match s {
                Stmt::Loop { bind: Bind::Warp, .. } => (true, shape),
                Stmt::Loop {
                    var,
                    bind: Bind::Thread,
                    ..
                } => (warp, Some((warp, kernel.extents[var.0 as usize].as_const()))),
                _ => (warp, shape),
            };
            walk(kernel, s.body(), warp, shape, found);
        }
    }
    let mut found = Vec::new();
    walk(kernel, &kernel.body, false, None, &mut found);
    (0..kernel.scratch.len() as u32).any(|i| found.iter().filter(|f| f.0 == i).count() > 1)
}

/// The kernel with its blocks and threads in the opposite order. Iterations that are independent do not notice; those of threads are not where
/// a scan combines what the threads before each have, and are others where loops of different shapes share what threads keep.
fn reversed(kernel: &Kernel) -> Kernel {
    fn walk(kernel: &mut Kernel, body: &mut [Stmt], threads: bool) {
        for s in body {
            match s {
                Stmt::Loop { var, bind, body } => {
                    if *bind == Bind::Block || threads && *bind == Bind::Thread {
                        let (var, extent) = (*var, kernel.extents[var.0 as usize].clone());
                        let back = extent - IndexExpr::ONE - var.into();
                        substitute_in(kernel, body, &mut |v| (v == var).then(|| back.clone()));
                    }
                    walk(kernel, body, threads);
                }
                Stmt::If { body, .. } => walk(kernel, body, threads),
                _ => {}
            }
        }
    }
    let mut out = kernel.clone();
    let mut body = std::mem::take(&mut out.body);
    let scans = |s: &Stmt| matches!(s, Stmt::Collective(c) if matches!(c.kind, CollectiveKind::Scan(_)));
    let threads = !kernel.statements().any(scans) && !keeps_across_loops(kernel);
    walk(&mut out, &mut body, threads);
    out.body = body;
    out
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
        let mut nests = naive(&compiled.graph, &compiled.clusters);
        assert_eq!(nests.len(), kernels.len(), "{}", case.name);
        for k in &kernels {
            // Launches that are one with others stand where the first of them does. Those of the same values keep their order.
            let found = nests.iter().position(|(args, _)| *args == k.args);
            let found = found.unwrap_or_else(|| panic!("{}: {} has no nest", case.name, k.label));
            let (_, nest) = &nests.remove(found);
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
            let (mut expected, mut found, mut back) = (buffers.clone(), buffers.clone(), buffers);
            interpret(nest, &mut expected, &case.symbols).unwrap_or_else(|e| panic!("{} nest: {e}", case.name));
            interpret(&k.kernel, &mut found, &symbols)
                .unwrap_or_else(|e| panic!("{} {}: {e}\n{}", case.name, k.label, k.kernel));
            interpret(&reversed(&k.kernel), &mut back, &symbols)
                .unwrap_or_else(|e| panic!("{} {} reversed: {e}\n{}", case.name, k.label, reversed(&k.kernel)));
            for (p, (a, b)) in found.iter().zip(&back).enumerate() {
                assert!(
                    a.bytes() == b.bytes(),
                    "{} {}: parameter {p} depends on the order of blocks or threads\n{}",
                    case.name,
                    k.label,
                    k.kernel
                );
            }
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
            assert!(
                report.errors.is_empty(),
                "{} {}: {report:?}\n{}",
                case.name,
                k.label,
                k.kernel
            );
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
    let (mut count, mut fewest, mut crowded) = (0, 100, Vec::new());
    // `TLC_ARCHS=sm_80,sm_90a,sm_100` compiles all for all of these, which takes longer.
    let asked = std::env::var("TLC_ARCHS");
    let archs = asked.clone().unwrap_or(CudaOptions::default().arch);
    // Rows that do not stay on chip, of which there is one for each multiprocessor: blocks of as many threads as there can be.
    let long = cuda_graphs::softmax("softmax_of_long_rows", 108, 30_000);
    for case in cases().into_iter().chain([long]).chain(random_cases(RANDOM_COMPILED)) {
        let at_risk = asked.is_err() && AT_RISK.contains(&case.name.as_str());
        let archs: Vec<&str> = match at_risk {
            true => ARCHS.to_vec(),
            false => archs.split(',').collect(),
        };
        let (_, kernels) = gpu(&case);
        for (number, k) in kernels.iter().enumerate() {
            let name = identifier(&format!("{}_{number}_{}", case.name, k.label));
            for arch in &archs {
                let options = CudaOptions {
                    arch: (*arch).into(),
                    ..CudaOptions::default()
                };
                let cuda =
                    emit(&k.kernel, &name, &options).unwrap_or_else(|e| panic!("{} {}: {e}", case.name, k.label));
                let Some(nvrtc) = &nvrtc else { continue };
                let cubin = nvrtc
                    .compile(&cuda.source, &name, &options.arch, &COMPILE_FLAGS)
                    .unwrap_or_else(|e| panic!("{}: {e}\n{}", case.name, cuda.source));
                assert!(cubin.bytes.starts_with(b"\x7fELF"), "{}", case.name);
                let registers = cubin.registers.expect("ptxas reports registers");
                assert!(registers <= 255, "{name}: {registers} registers");
                if cubin.spill_bytes > 0 {
                    crowded.push(format!(
                        "{name} {arch} ({:?}): spills {} bytes",
                        k.form, cubin.spill_bytes
                    ));
                }
                let (block, shared) = (cuda.block.into(), cuda.shared_bytes.into());
                let occupancy = multiprocessor(arch).occupancy(block, shared, Some(registers.into()));
                println!(
                    "{name} {arch}: {registers} registers, {} bytes of stack, {} bytes shared, {} threads, {occupancy}",
                    cubin.stack_bytes, cuda.shared_bytes, cuda.block
                );
                count += 1;
                if registers > most.0 {
                    most = (registers, name.clone());
                }
                let products = k.kernel.statements().any(|s| matches!(s, Stmt::Contract(_)));
                if matches!(k.form, Form::Elementwise | Form::Rows) && !products {
                    fewest = occupancy.percent().min(fewest);
                    if occupancy.percent() < 50 {
                        crowded.push(format!(
                            "{name} {arch} ({:?}): {registers} registers, {occupancy}",
                            k.form
                        ));
                    }
                }
            }
        }
    }
    println!("{count} kernels compiled; at most {} registers ({})", most.0, most.1);
    println!("elementwise and rows: at least {fewest}% of the threads of a multiprocessor");
    assert!(crowded.is_empty(), "{}", crowded.join("\n"));
}

/// Graphs that are timed on devices, whose kernels are large: the assembler of no architecture keeps what they compute with in memory.
#[test]
fn kernels_of_timed_graphs_do_not_spill_on_any_architecture() {
    let Ok(nvrtc) = Nvrtc::load() else {
        // The reason is printed once, by the test of machine code.
        return;
    };
    let mut crowded = Vec::new();
    for case in cuda_graphs::timed().into_iter().chain(cuda_graphs::rows_of_products()) {
        let (compiled, kernels) = gpu(&case);
        let name = &case.name;
        let joined = |c: &Cluster| matches!(c.kind, ClusterKind::ProductRows(_));
        let of_product = name.starts_with("rows_of_product");
        assert_eq!(compiled.clusters.clusters.iter().any(joined), of_product, "{name}");
        assert!(!of_product || kernels.len() == 1, "{name}");
        for (number, k) in kernels.iter().enumerate() {
            let name = identifier(&format!("{}_{number}", case.name));
            for arch in ARCHS {
                let options = CudaOptions {
                    arch: arch.into(),
                    ..CudaOptions::default()
                };
                let cuda = emit(&k.kernel, &name, &options).unwrap_or_else(|e| panic!("{name}: {e}"));
                let cubin = nvrtc
                    .compile(&cuda.source, &name, arch, &COMPILE_FLAGS)
                    .unwrap_or_else(|e| panic!("{name}: {e}\n{}", cuda.source));
                let registers = cubin.registers.expect("ptxas reports registers");
                println!("{name} {arch}: {registers} registers, spills {}", cubin.spill_bytes);
                if (cubin.spill_bytes, cubin.stack_bytes) != (0, 0) {
                    crowded.push(format!("{name} {arch}: spills {} bytes", cubin.spill_bytes));
                }
            }
        }
    }
    assert!(crowded.is_empty(), "{}", crowded.join("\n"));
}

/// Kernels that are joined leave a multiprocessor as full as each of them does.
#[test]
fn groups_of_launches_compile_without_spills() {
    let nvrtc = match Nvrtc::load() {
        Ok(found) => found,
        Err(e) => {
            println!("SKIP machine code: {e}");
            return;
        }
    };
    let (mut found, mut crowded) = (0, Vec::new());
    for case in cases().into_iter().chain(random_cases(RANDOM_COMPILED)) {
        let (compiled, _) = gpu(&case);
        let plan = &compiled.planned.plan;
        for (number, step) in plan.steps.iter().enumerate() {
            let Step::Group(all) = step else { continue };
            if !all.iter().all(|l| matches!(l.work, Work::Grid(_))) {
                continue;
            }
            let mut distinct = Vec::new();
            let order: Vec<usize> = all
                .iter()
                .map(|l| {
                    let known = distinct.iter().position(|k| *k == l.kernel);
                    known.unwrap_or_else(|| {
                        distinct.push(l.kernel);
                        distinct.len() - 1
                    })
                })
                .collect();
            let kernels: Vec<&Kernel> = distinct.iter().map(|k| &plan.kernels[k.0 as usize]).collect();
            let name = identifier(&format!("{}_{number}", case.name));
            let options = CudaOptions::default();
            let cuda = emit_launch_group(&kernels, &vec![true; kernels.len()], &order, &name, &options)
                .unwrap_or_else(|e| panic!("{name}: {e}"));
            let cubin = nvrtc
                .compile(&cuda.source, &name, &options.arch, &COMPILE_FLAGS)
                .unwrap_or_else(|e| panic!("{name}: {e}\n{}", cuda.source));
            let registers = cubin.registers.expect("ptxas reports registers").into();
            let occupancy =
                multiprocessor(&options.arch).occupancy(cuda.block.into(), cuda.shared_bytes.into(), Some(registers));
            println!(
                "{name}: {} launches of {} kernels, {registers} registers, {occupancy}",
                all.len(),
                kernels.len()
            );
            found += 1;
            if cubin.spill_bytes > 0 || cubin.stack_bytes > 0 || occupancy.percent() < 50 {
                crowded.push(format!(
                    "{name}: {registers} registers, spills {}, {} of stack, {occupancy}",
                    cubin.spill_bytes, cubin.stack_bytes
                ));
            }
        }
    }
    assert!(crowded.is_empty(), "{}", crowded.join("\n"));
    assert!(found > 0, "no launches were grouped");
}

/// What is wrong with an instruction of a kernel that is compiled to be exact: it approximates, takes small numbers for zero, or leaves its rounding
/// to the assembler, which may then make one operation of two.
fn inexact(instruction: &str) -> Option<&'static str> {
    let parts: Vec<&str> = instruction.split('.').collect();
    let has = |of: &[&str]| parts[1..].iter().any(|p| of.contains(p));
    let rounded = ["add", "sub", "mul", "mad", "fma", "div", "rcp", "sqrt"].contains(&parts[0])
        && has(&["f16", "f16x2", "bf16", "bf16x2", "f32", "f32x2", "f64"]);
    if has(&["approx"]) {
        return Some("approximates");
    }
    if has(&["ftz"]) {
        return Some("takes small numbers for zero");
    }
    (rounded && !has(&["rn", "rz", "rm", "rp"])).then_some("does not say how it rounds")
}

/// The instructions of a PTX text, without predicates and operands.
fn instructions(ptx: &str) -> impl Iterator<Item = &str> {
    let statements = ptx
        .lines()
        .flat_map(|l| l.split("//").next().unwrap_or_default().split(';'));
    statements.filter_map(|s| {
        let s = s.trim_start_matches(|c: char| c.is_whitespace() || c == '{');
        let s = match s.strip_prefix('@') {
            Some(guarded) => guarded.split_once(char::is_whitespace)?.1.trim_start(),
            None => s,
        };
        let word = s.split_whitespace().next()?;
        word.starts_with(|c: char| c.is_ascii_lowercase()).then_some(word)
    })
}

#[test]
fn what_is_inexact_is_told_from_what_is_not() {
    let ptx = "
        add.rn.f32 %f1, %f2, %f3; // mul.f32
        @%p1 fma.rn.f32 %f1, %f2, %f3, %f4;
        {add.f16 %h1,%h2,%h3;
        }
        @!%p2 bra $L__BB0_2;
        $L__BB0_2:
        mul.wide.s32 %rd1, %r1, 4;
        sqrt.rn.ftz.f32 %f1, %f2;
        tanh.approx.f32 %f1, %f2; div.full.f32 %f1, %f2, %f3;
        atom.global.add.f32 %f1, [%rd1], %f2;
        .reg .f32 %f<5>;";
    let found: Vec<_> = instructions(ptx).filter_map(|i| Some((i, inexact(i)?))).collect();
    let expected = [
        ("add.f16", "does not say how it rounds"),
        ("sqrt.rn.ftz.f32", "takes small numbers for zero"),
        ("tanh.approx.f32", "approximates"),
        ("div.full.f32", "does not say how it rounds"),
    ];
    assert_eq!(found, expected);
}

#[test]
fn exact_kernels_neither_approximate_nor_leave_roundings_open() {
    let Ok(nvrtc) = Nvrtc::load() else {
        // The reason is printed once, by the test of machine code.
        return;
    };
    // Weights of an attention of 16-bit types, which are rounded to 16 bits before anything multiplies by them: `Op::ShortExp2`.
    const SHORT: &str = "ex2.approx.ftz.f32";
    // NVIDIA's `fmodf` guesses quotients by these, and corrects what it guessed: remainders are exact.
    const REMAINDER: [&str; 2] = ["div.approx.f32", "rcp.approx.ftz.f32"];
    let (mut count, mut arithmetic, mut wrong, mut weights) = (0, 0, Vec::new(), Vec::new());
    for case in cases().into_iter().chain(random_cases(RANDOM_COMPILED)) {
        assert_ne!(case.precision, Precision::Fast, "{}", case.name);
        let (_, kernels) = gpu(&case);
        for (number, k) in kernels.iter().enumerate() {
            let name = identifier(&format!("{}_{number}_{}", case.name, k.label));
            let cuda = emit(&k.kernel, &name, &CudaOptions::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
            let ptx = nvrtc
                .compile_to_ptx(&cuda.source, &name, "compute_90a", &COMPILE_FLAGS)
                .unwrap_or_else(|e| panic!("{name}: {e}\n{}", cuda.source));
            let has = |is: &dyn Fn(&Op) -> bool| {
                k.kernel
                    .statements()
                    .any(|s| matches!(s, Stmt::Let { op, .. } if is(op)))
            };
            let shortens = has(&|op| matches!(op, Op::ShortExp2(_)));
            let divides = has(&|op| matches!(op, Op::Map(ScalarOp::Rem | ScalarOp::Mod, _)));
            for instruction in instructions(&ptx) {
                arithmetic += usize::from(instruction.contains(".rn.f"));
                match inexact(instruction) {
                    Some(_) if shortens && instruction == SHORT => weights.push(case.name.clone()),
                    Some(_) if divides && REMAINDER.contains(&instruction) => {}
                    Some(why) => wrong.push(format!("{name}: {instruction} {why}")),
                    None => {}
                }
            }
            count += 1;
        }
    }
    weights.dedup();
    println!("{count} kernels, {arithmetic} rounded operations; weights are short in {weights:?}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(arithmetic > 1000, "{arithmetic} operations that round");
    let attentions = ["attention", "attention_128", "attention_64"];
    assert!(
        weights.iter().all(|w| attentions.contains(&&w[..])) && !weights.is_empty(),
        "{weights:?}"
    );
}

#[test]
fn products_keep_their_sums_in_registers_on_every_architecture() {
    let Ok(nvrtc) = Nvrtc::load() else {
        // The reason is printed once, by the test of machine code.
        return;
    };
    for case in cuda_graphs::products() {
        let (_, kernels) = gpu(&case);
        let multiplies = |k: &GpuKernel| k.kernel.statements().any(|s| matches!(s, Stmt::Contract(_)));
        assert_eq!(kernels.iter().filter(|k| multiplies(k)).count(), 1, "{}", case.name);
        for k in kernels.iter().filter(|k| multiplies(k)) {
            for arch in ["sm_80", "sm_90a", "sm_100"] {
                let options = CudaOptions {
                    arch: arch.into(),
                    ..CudaOptions::default()
                };
                let cuda = emit(&k.kernel, &case.name, &options).unwrap_or_else(|e| panic!("{}: {e}", case.name));
                assert!(cuda.source.contains("mma.sync"), "{}", cuda.source);
                let cubin = nvrtc
                    .compile(&cuda.source, &case.name, arch, &COMPILE_FLAGS)
                    .unwrap_or_else(|e| panic!("{}: {e}\n{}", case.name, cuda.source));
                let registers = cubin.registers.expect("ptxas reports registers");
                println!("{} {arch}: {registers} registers, {} threads", case.name, cuda.block);
                assert_eq!(
                    (cubin.spill_bytes, cubin.stack_bytes),
                    (0, 0),
                    "{}\n{}",
                    case.name,
                    cubin.log
                );
                // Four blocks of 128 threads share 65,536 registers; of an attention, which holds scores beside the results, two blocks do.
                let all = 65_536 / registers;
                let most = if cuda.source.contains("short_exp2") {
                    2 * cuda.block
                } else {
                    512
                };
                assert!(all >= most, "{} {arch}: {registers} registers", case.name);
            }
        }
    }
}

/// The text of four kernels, word for word; `TLC_BLESS=1` writes it anew.
#[test]
fn text_is_as_recorded() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let bless = std::env::var_os("TLC_BLESS").is_some();
    for case in [
        cuda_graphs::chain(),
        cuda_graphs::softmax("softmax", 6, 1000),
        cuda_graphs::column_sum(),
        cuda_graphs::product(),
    ] {
        let (_, kernels) = gpu(&case);
        assert_eq!(kernels.len(), 1, "{} is one kernel", case.name);
        let made = emit(&kernels[0].kernel, &case.name, &CudaOptions::default()).expect("translates");
        let path = folder.join(format!("{}.cu", case.name));
        if bless {
            std::fs::write(&path, &made.source).expect("the golden file is writable");
        }
        let recorded = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            recorded == made.source,
            "{} differs from {}; if that is meant, run with TLC_BLESS=1\n{}",
            case.name,
            path.display(),
            made.source
        );
    }
}

#[test]
fn what_does_not_translate_is_an_error() {
    let (compiled, kernels) = gpu(&cuda_graphs::chain());
    let kernel = &kernels[0].kernel;
    let with = |name: &str, arch: &str| {
        let options = CudaOptions {
            arch: arch.into(),
            ..CudaOptions::default()
        };
        emit(kernel, name, &options)
    };
    assert!(with("k", "sm_100").is_ok());
    assert!(matches!(with("1k", "sm_90a"), Err(CudaError::Name(_))));
    assert!(matches!(with("k", "sm_75"), Err(CudaError::Arch(_))));
    assert!(matches!(with("k", "compute_90"), Err(CudaError::Arch(_))));
    let (_, serial) = &naive(&compiled.graph, &compiled.clusters)[0];
    assert_eq!(emit(serial, "k", &CudaOptions::default()), Err(CudaError::NoBlockLoop));
}

#[test]
fn the_compiler_says_what_is_wrong() {
    let Ok(nvrtc) = Nvrtc::load() else {
        // The reason is printed once, by the test of machine code.
        return;
    };
    let refused = nvrtc.compile("__global__ void k() { int x = nothing; }", "bad", "sm_90a", &[]);
    match refused {
        Err(NvrtcError::Compile { name, log }) => {
            assert_eq!(name, "bad");
            assert!(log.contains("nothing"), "{log}");
        }
        other => panic!("expected a refusal, found {other:?}"),
    }
    assert!(nvrtc.compile("", "none", "sm_1", &[]).is_err(), "no such architecture");
    assert!(matches!(
        nvrtc.compile("\0", "nul", "sm_90a", &[]),
        Err(NvrtcError::Nul(_))
    ));
}
