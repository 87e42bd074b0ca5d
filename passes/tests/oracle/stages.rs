//! A compiled graph run at each stage of compilation, and comparison of results.

use tlc_ir::graph::Condition;
use tlc_ir::kernel::Grid;
use tlc_ir::kernel::verify::verify;
use tlc_ir::plan::interp::interpret_bound;
use tlc_ir::plan::{KernelId, Layout, Plan, Step, Work};
use tlc_ir::target::{Cpu, Gpu, Target};
use tlc_ir::{Graph, HostTensor, IndexExpr, Kernel, SymId};
use tlc_passes::lower::lower;
use tlc_passes::pipeline::Pipeline;
use tlc_passes::{Compiled, Options, compile};

use super::generate::Case;

/// The plan where each epilogue is a step behind its product: other kernels need not go along the result.
fn with_epilogues_apart(plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    let apart = |mut step: Step| -> Vec<Step> {
        let epilogue = match &mut step {
            Step::Gemm(g) => g.epilogue.take(),
            _ => None,
        };
        let launch = epilogue.map(|e| Step::Launch(e.launch));
        std::iter::once(step).chain(launch).collect()
    };
    plan.steps = std::mem::take(&mut plan.steps).into_iter().flat_map(apart).collect();
    plan
}

/// The plan with another kernel for each launch; `symbols` replaces the launches' symbol arguments.
fn with_kernels(plan: &Plan, kernels: Vec<Kernel>, symbols: Option<Vec<IndexExpr>>) -> Plan {
    let mut plan = with_epilogues_apart(plan);
    let mut next = 0;
    for step in plan.init.iter_mut().chain(&mut plan.steps) {
        let launches = match step {
            Step::Launch(l) => std::slice::from_mut(l),
            Step::Group(all) => &mut all[..],
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

/// The plan with every launch's naive nest. What runs once per executable comes first in a plan.
pub fn naive_plan(compiled: &Compiled) -> Plan {
    let graph = &compiled.graph;
    let (once, each): (Vec<_>, Vec<_>) = compiled.clusters.clusters.iter().partition(|c| c.once);
    let naive: Vec<Kernel> = once
        .into_iter()
        .chain(each)
        .flat_map(|c| lower(graph, c, &compiled.clusters.is_root))
        .map(|n| n.kernel)
        .collect();
    let all: Vec<IndexExpr> = (0..graph.symbols().len() as u32).map(|s| SymId(s).into()).collect();
    with_kernels(&compiled.planned.plan, naive, Some(all))
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
        ("legalized", plan.clone()),
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

/// A modest CPU whose emitter has vectors of so many bits.
pub fn cpu(vector_bits: u32) -> Target {
    let mut emitter = tlc_codegen::clif::emitter(true);
    emitter.vector_bits = vector_bits;
    Cpu::modest(emitter.into()).into()
}

/// A GPU.
pub fn gpu() -> Target {
    Gpu::any(tlc_codegen::cuda::emitter().into()).into()
}

/// What is wrong with the compilation of a case for a target, if anything.
pub fn check(case: &Case, pipeline: &Pipeline, target: Target) -> Result<Compiled, String> {
    let options = Options {
        pipeline: pipeline.clone(),
        ..Options::new(target)
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
    for (stage, plan) in stages(compiled) {
        if let Some(e) = tlc_ir::plan::verify::verify(&plan).errors.first() {
            return Err(format!("{stage} plan: {e}{}", shown(&plan)));
        }
        for (k, kernel) in plan.kernels.iter().enumerate() {
            if let Some(e) = verify(kernel).errors.first() {
                return Err(format!("{stage} kernel {k}: {e}{}", shown(&plan)));
            }
        }
        for layout in [None, layout.as_ref()] {
            let arena = if layout.is_some() { ", one arena" } else { "" };
            let found = interpret_bound(&plan, layout, &case.inputs, &case.symbols)
                .map_err(|e| format!("{stage}{arena}: {e}{}", shown(&plan)))?;
            for (k, (f, e)) in found.iter().zip(expected).enumerate() {
                if let Some(d) = difference(f, e, case.tolerance[k]) {
                    return Err(format!("{stage}{arena}: output {k}: {d}{}", shown(&plan)));
                }
            }
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
