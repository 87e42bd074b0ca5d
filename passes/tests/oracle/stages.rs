//! A compiled graph run at each stage of compilation, and comparison of results.

use tlc_ir::graph::Condition;
use tlc_ir::kernel::verify::verify;
use tlc_ir::kernel::{Bind, Grid, Stmt};
use tlc_ir::plan::interp::{interpret_bound, interpret_shuffled};
use tlc_ir::plan::verify::PlanRule;
use tlc_ir::plan::{DeviceId, KernelId, Layout, Plan, Step, Storage, Turn, Work};
use tlc_ir::target::{Cpu, CpuEmitter, Emitter, Gpu, Support};
use tlc_ir::{DType, Graph, HostTensor, IndexExpr, Kernel, ScalarOp, SymId};
use tlc_passes::devices::{Devices, Link, Place};
use tlc_passes::legalize::legalize;
use tlc_passes::lower::lower;
use tlc_passes::pipeline::Pipeline;
use tlc_passes::{Compiled, Options, compile};

use super::generate::Case;

/// The plan where each epilogue is a step behind its product, and each launch of a sequence one: other kernels need not go along the result,
/// nor be a GPU's.
fn with_epilogues_apart(plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    let apart = |mut step: Step| -> Vec<Step> {
        if let Step::Sequence(all) = step {
            return all.into_iter().map(Step::Launch).collect();
        }
        let epilogue = match &mut step {
            Step::Gemm(g) => g.epilogue.take(),
            _ => None,
        };
        let behind = epilogue.into_iter().flat_map(|e| {
            let product = e.product.map(Step::Gemm);
            std::iter::once(Step::Launch(e.launch)).chain(product)
        });
        std::iter::once(step).chain(behind).collect()
    };
    let apart: Vec<Vec<Step>> = std::mem::take(&mut plan.steps).into_iter().map(apart).collect();
    // The last step that each one has become, and turns for all of them.
    let mut count = 0;
    let ends: Vec<u32> = apart
        .iter()
        .map(|steps| {
            count += steps.len() as u32;
            count - 1
        })
        .collect();
    let turns = std::mem::take(&mut plan.turns).into_iter().zip(&apart);
    plan.turns = turns
        .flat_map(|(mut turn, steps)| {
            turn.waits.iter_mut().for_each(|w| *w = ends[*w as usize]);
            let queue = turn.queue;
            let behind = Turn {
                queue,
                ..Turn::default()
            };
            std::iter::once(turn).chain(steps[1..].iter().map(move |_| behind.clone()))
        })
        .collect();
    plan.steps = apart.into_iter().flatten().collect();
    // What passed from product to product has bytes of its own.
    for slot in plan.slots.iter_mut().filter(|s| s.storage == Storage::Lines) {
        slot.storage = Storage::Arena;
    }
    plan
}

/// The plan with everything on the host, which runs kernels that have no grid.
fn on_host(mut plan: Plan) -> Plan {
    plan.devices.truncate(1);
    plan.queues.truncate(1);
    plan.turns.clear();
    plan.slots.iter_mut().for_each(|s| s.device = DeviceId::HOST);
    for step in &mut plan.steps {
        if let Step::Loop(l) = step {
            l.body = on_host(std::mem::take(&mut l.body));
        }
    }
    plan
}

/// The plan with another kernel for each launch; `symbols` replaces the launches' symbol arguments.
fn with_kernels(plan: &Plan, kernels: Vec<Kernel>, symbols: Option<Vec<IndexExpr>>) -> Plan {
    let mut plan = with_epilogues_apart(plan);
    let mut next = 0;
    for step in plan.init.iter_mut().chain(&mut plan.steps) {
        let launches = match step {
            Step::Launch(l) => std::slice::from_mut(l),
            Step::Group(all) | Step::Sequence(all) => &mut all[..],
            _ => &mut [],
        };
        for l in launches {
            l.kernel = KernelId(next);
            if let Some(s) = &symbols {
                l.symbols = s.clone();
            }
            l.work = match kernels.get(next as usize).and_then(Kernel::grid) {
                Some(grid) => Work::Grid(Grid {
                    blocks: l.outer(&grid.blocks),
                    ..grid
                }),
                None => Work::Chunks { grain: IndexExpr::ONE },
            };
            next += 1;
        }
    }
    assert_eq!(next as usize, kernels.len(), "one kernel per launch");
    plan.kernels = kernels;
    plan
}

/// The plan with every launch's naive nest. Launches are not in the order of clusters: a kernel behind a product is launched with that.
pub fn naive_plan(compiled: &Compiled) -> Plan {
    let graph = &compiled.graph;
    let clusters = compiled.clusters.clusters.iter();
    let mut nests: Vec<_> = clusters
        .map(|c| lower(graph, c, &compiled.clusters.is_root, tlc_ir::Precision::Exact, None).into_iter())
        .collect();
    let launches = compiled.planned.launches.iter();
    let naive: Vec<Kernel> = launches
        .map(|l| nests[l.cluster].next().expect("a nest for each launch").kernel)
        .map(|mut kernel| {
            // One that is written for blocks by its serial meaning: blocks are cut short by masks, which says nothing of threads.
            if kernel.grid().is_some() {
                legalize(&mut kernel, &tlc_codegen::clif::emitter(true));
                if let [Stmt::Loop { bind, .. }] = &mut kernel.body[..] {
                    *bind = Bind::Serial;
                }
            }
            kernel
        })
        .collect();
    assert!(nests.iter().all(|left| left.len() == 0), "a launch for each nest");
    let all: Vec<IndexExpr> = (0..graph.symbols().len() as u32).map(|s| SymId(s).into()).collect();
    with_kernels(&on_host(Plan::clone(&compiled.planned.plan)), naive, Some(all))
}

/// The plan at each stage: naive nests, scheduled kernels, legalized kernels.
pub fn stages(compiled: &Compiled) -> Vec<(&'static str, Plan)> {
    let plan = &compiled.planned.plan;
    let scheduled = compiled
        .planned
        .launches
        .iter()
        .map(|l| (*l.scheduled).clone())
        .collect();
    vec![
        ("naive", naive_plan(compiled)),
        ("scheduled", with_kernels(plan, scheduled, None)),
        ("legalized", Plan::clone(plan)),
    ]
}

/// The first difference of two tensors, if any.
pub fn difference(found: &HostTensor, expected: &HostTensor, tolerance: Option<f64>) -> Option<String> {
    if found.dtype() != expected.dtype() || found.shape() != expected.shape() {
        return Some(format!("{found:?} for {expected:?}"));
    }
    for i in 0..found.len() {
        let (x, y) = (found.get(i), expected.get(i));
        let (a, b) = (x.as_f64(), y.as_f64());
        let equal = match tolerance {
            _ if x == y => true,
            // The sign of a zero is open where signs of zeros are.
            _ if found.dtype().is_float() => {
                a == b || (a.is_nan() && b.is_nan()) || { tolerance.is_some_and(|t| (a - b).abs() <= t) }
            }
            _ => false,
        };
        if !equal {
            return Some(format!("element {i} of {:?}: {x}, expected {y}", found.shape()));
        }
    }
    None
}

fn host(vector_bits: u32) -> Cpu {
    let mut emitter = tlc_codegen::clif::emitter(true);
    emitter.vector_bits = vector_bits;
    Cpu::modest(emitter.into())
}

fn one_gpu() -> Gpu {
    Gpu::any(tlc_codegen::cuda::emitter().into())
}

/// For a modest CPU whose emitter has vectors of so many bits.
pub fn cpu(vector_bits: u32) -> Options {
    Options::new(host(vector_bits))
}

/// A made-up emitter of 512 bits, which lacks hyperbolic tangents, logarithms and all that has 64 bits.
pub fn wide_emitter() -> Emitter {
    let narrow = tlc_codegen::clif::emitter(true);
    let missing = |d: DType| matches!(d, DType::F64 | DType::I64 | DType::U64);
    Emitter::new(
        "wide",
        512,
        32,
        true,
        |op, on, width| match op {
            _ if missing(on) => Support::Missing,
            ScalarOp::Tanh | ScalarOp::Log => Support::Missing,
            _ => narrow.map(op, on, width),
        },
        |from, to, width| match missing(from) || missing(to) {
            true => Support::Missing,
            false => narrow.convert(from, to, width),
        },
    )
}

/// For a CPU with two emitters: the one of [`wide_emitter`], and one of 128 bits that has everything.
pub fn two_emitters() -> Options {
    let emitters = [tlc_codegen::clif::emitter(true), wide_emitter()];
    let emitters = emitters.map(|e| CpuEmitter::modest(e.into()));
    Options::new(Cpu::with_emitters(emitters.into()))
}

/// For a GPU beside a host.
pub fn gpu() -> Options {
    Options::new(Devices::new(host(128), [one_gpu()]))
}

/// For one GPU without a library of matrix products.
pub fn gpu_alone() -> Options {
    let gpu = Gpu {
        products: None,
        ..one_gpu()
    };
    Options::new(Devices::new(host(128), [gpu]))
}

/// For a host and two GPUs, each value on any of them; odd seeds have a link from the first GPU to the second.
pub fn scattered(seed: u64) -> Options {
    let mut devices = Devices::new(host(128), [one_gpu(), one_gpu()]);
    if seed % 2 == 1 {
        devices = devices.with_link(Link::pcie(DeviceId(1), DeviceId(2)));
    }
    Options {
        place: Place::Scattered { seed },
        ..Options::new(devices)
    }
}

/// What is wrong with the compilation of a case, if anything.
pub fn check(case: &Case, pipeline: &Pipeline, options: Options) -> Result<Compiled, String> {
    let options = Options {
        pipeline: pipeline.clone(),
        ..options
    };
    let compiled = compile(&case.graph, &options).map_err(|e| e.to_string())?;
    let expected = super::evaluate(&case.graph, &case.inputs, &case.symbols);
    check_compiled(&compiled, case, &expected)?;
    Ok(compiled)
}

fn check_compiled(compiled: &Compiled, case: &Case, expected: &[HostTensor]) -> Result<(), String> {
    let layout: Option<Layout> = tlc_passes::memory::pack(&compiled.planned.plan, &case.symbols);
    if let Some(layout) = &layout
        && let Some(e) = tlc_ir::plan::verify::verify_layout(&compiled.planned.plan, layout, &case.symbols).first()
    {
        return Err(format!("layout: {e}"));
    }
    waits_are_needed(&compiled.planned.plan)?;
    for (stage, plan) in stages(compiled) {
        if let Some(e) = tlc_ir::plan::verify::verify(&plan).errors.first() {
            return Err(format!("{stage} plan: {e}{}", shown(&plan)));
        }
        for (k, kernel) in plan.kernels.iter().enumerate() {
            if let Some(e) = verify(kernel).errors.first() {
                return Err(format!("{stage} kernel {k}: {e}{}", shown(&plan)));
            }
        }
        // The arena, and in which orders queues may take steps, is that of the plan that runs: the stages before it have the same
        // steps, and only their kernels are on trial.
        let runs = stage == "legalized";
        let layouts: &[Option<&Layout>] = match runs {
            true => &[None, layout.as_ref()],
            false => &[None],
        };
        for (run, &layout) in layouts.iter().enumerate() {
            let arena = if layout.is_some() { ", one arena" } else { "" };
            let orders = match run == 1 && !plan.turns.is_empty() {
                true => 3,
                false => 0,
            };
            let found = interpret_bound(&plan, layout, &case.inputs, &case.symbols)
                .map_err(|e| format!("{stage}{arena}: {e}{}", shown(&plan)))?;
            for (k, (f, e)) in found.iter().zip(expected).enumerate() {
                if let Some(d) = difference(f, e, case.tolerance[k]) {
                    return Err(format!("{stage}{arena}: output {k}: {d}{}", shown(&plan)));
                }
            }
            // Whatever order the queues take, the bits are the same.
            for seed in 0..orders {
                let other = interpret_shuffled(&plan, layout, &case.inputs, &case.symbols, seed)
                    .map_err(|e| format!("{stage}{arena}, order {seed}: {e}{}", shown(&plan)))?;
                if other.iter().zip(&found).any(|(a, b)| a.bytes() != b.bytes()) {
                    return Err(format!(
                        "{stage}{arena}: order {seed} gives other results{}",
                        shown(&plan)
                    ));
                }
            }
        }
    }
    Ok(())
}

/// Without any one of its waits a plan has two steps that may touch the same bytes at once, and the verifier says so.
fn waits_are_needed(plan: &Plan) -> Result<(), String> {
    for (step, turn) in plan.turns.iter().enumerate() {
        for k in 0..turn.waits.len() {
            let mut broken = plan.clone();
            broken.turns[step].waits.remove(k);
            let errors = tlc_ir::plan::verify::verify(&broken).errors;
            if !errors.iter().any(|e| matches!(e.rule, PlanRule::Unordered(..))) {
                let wait = turn.waits[k];
                return Err(format!("step {step} need not wait for step {wait}{}", shown(plan)));
            }
        }
    }
    for step in &plan.steps {
        if let Step::Loop(l) = step {
            waits_are_needed(&l.body)?;
        }
    }
    Ok(())
}

/// A plan's text, if `TLC_SHOW` is set.
fn shown(plan: &Plan) -> String {
    match std::env::var("TLC_SHOW") {
        Ok(_) => format!("\n{plan}"),
        Err(_) => String::new(),
    }
}

/// A graph's nodes, for messages.
pub fn describe(graph: &Graph) -> String {
    let mut out = String::new();
    for g in graph.guards() {
        if let Condition::Equal(a, b) = &g.condition {
            out += &format!("guard {a:?} = {b:?}\n");
        }
    }
    for (id, n) in graph.nodes() {
        let operands: Vec<String> = n.operands.iter().map(|o| o.to_string()).collect();
        let kind = format!("{:?}", n.kind);
        let kind: String = kind.chars().take(160).collect();
        out += &format!(
            "{id} = {} {} : {} {kind}\n",
            n.kind.name(),
            operands.join(", "),
            graph.type_text(&n.ty)
        );
    }
    for o in graph.outputs() {
        out += &format!("{} = {}\n", o.name, o.node);
    }
    out
}
