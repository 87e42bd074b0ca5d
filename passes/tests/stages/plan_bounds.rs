//! Random graphs of all node kinds and dtypes: every stage of compilation within the error bounds of the graph interpreter;
//! every kernel and plan through its verifier.

use std::sync::Arc;

use crate::oracle::stages::{describe, stages};
use tlc_ir::graph::Condition;
use tlc_ir::interp::{self, compare, interpret_with_bounds};
use tlc_ir::kernel::verify::{Violation, verify};
use tlc_ir::plan::interp::interpret_bound;
use tlc_ir::plan::{Launch, Plan, Step};
use tlc_ir::target::Cpu;
use tlc_ir::testgen::{Case, GenOptions, random_case};
use tlc_passes::{Options, compile, memory};

/// The bindings that the runtime lets through: in the symbols' ranges, and with every guard. `None` if they are too many to visit.
fn admissible(plan: &Plan) -> Option<Vec<Vec<i64>>> {
    const MOST: usize = 1 << 12;
    let mut all = vec![vec![]];
    for s in &plan.symbols {
        let longer = |b: &Vec<i64>| {
            (s.lo..=s.hi.min(s.lo + MOST as i64))
                .map(|v| [&b[..], &[v]].concat())
                .collect()
        };
        all = all.iter().flat_map::<Vec<Vec<i64>>, _>(longer).collect();
        if all.len() > MOST {
            return None;
        }
    }
    all.retain(|symbols| {
        plan.guards.iter().all(|g| match &g.condition {
            Condition::Equal(a, b) => a.eval_symbols(symbols) == b.eval_symbols(symbols),
            Condition::NonNegative(e) => e.eval_symbols(symbols).is_none_or(|v| v >= 0),
        })
    });
    Some(all)
}

/// What is wrong with a kernel for sizes that it can have in its plan. Its verifier knows only the ranges of its symbols; what guards
/// of the plan refuse never reaches it.
fn under_guards(plan: &Plan, kernel: usize, error: Violation) -> Option<Violation> {
    let launches: Vec<&Launch> = plan
        .init
        .iter()
        .chain(&plan.steps)
        .flat_map(|s| match s {
            Step::Launch(l) => std::slice::from_ref(l),
            Step::Group(all) | Step::Sequence(all) => all,
            _ => &[],
        })
        .filter(|l| l.kernel.0 as usize == kernel)
        .collect();
    // Kernels of a loop's body have that plan's symbols.
    let (false, false, Some(bindings)) = (plan.guards.is_empty(), launches.is_empty(), admissible(plan)) else {
        return Some(error);
    };
    for launch in launches {
        for symbols in &bindings {
            let mut fixed = plan.kernels[kernel].clone();
            for (range, e) in fixed.symbols.iter_mut().zip(&launch.symbols) {
                *range = match e.eval_symbols(symbols) {
                    Some(n) => (n, n),
                    None => return Some(error),
                };
            }
            if let Some(e) = verify(&fixed).errors.into_iter().next() {
                return Some(e);
            }
        }
    }
    None
}

fn check(seed: u64, case: &Case) -> Result<(), String> {
    let names = case.graph.symbols().iter().map(|s| s.name.clone());
    let options = interp::Options {
        symbols: names.zip(case.binding.iter().copied()).collect(),
        ..interp::Options::default()
    };
    let inputs = case.input_data(seed);
    let compiled = compile(
        &case.graph,
        &Options::new(Cpu::modest(Arc::new(tlc_codegen::clif::emitter(true)))),
    )
    .map_err(|e| e.to_string())?;
    let bounds = interpret_with_bounds(&case.graph, &inputs, &options).map_err(|e| format!("interpreter: {e}"))?;
    let layout = memory::pack(&compiled.planned.plan, &case.binding);
    for (stage, plan) in stages(&compiled) {
        if let Some(e) = tlc_ir::plan::verify::verify(&plan).errors.first() {
            return Err(format!("{stage}: {e}"));
        }
        for (k, kernel) in plan.kernels.iter().enumerate() {
            let broken = verify(kernel).errors.into_iter().next();
            if let Some(e) = broken.and_then(|e| under_guards(&plan, k, e)) {
                return Err(format!("{stage} kernel {k}: {e}\n{kernel}"));
            }
        }
        let found = interpret_bound(&plan, layout.as_ref(), &inputs, &case.binding);
        let found = found.map_err(|e| format!("{stage}: {e}"))?;
        for (k, (f, b)) in found.iter().zip(&bounds).enumerate() {
            compare(f, b).map_err(|e| format!("{stage}: output {k}: {e}"))?;
        }
    }
    Ok(())
}

#[test]
fn generated_graphs_stay_inside_the_bounds_at_every_stage() {
    let range = std::env::var("TLC_SEEDS").ok().and_then(|s| {
        let (a, b) = s.split_once("..")?;
        Some(a.parse().ok()?..b.parse().ok()?)
    });
    let options = GenOptions {
        max_nodes: 10,
        max_elements: 600,
        ..GenOptions::default()
    };
    let mut failures = Vec::new();
    for seed in range.unwrap_or(0..150u64) {
        let case = random_case(seed, &options);
        let result = std::panic::catch_unwind(|| check(seed, &case)).unwrap_or_else(|_| Err("panic".into()));
        if let Err(e) = result {
            println!("seed {seed}: {}", e.lines().next().unwrap_or_default());
            failures.push((case.graph.len(), seed, e));
        }
    }
    failures.sort();
    if let Some((_, seed, e)) = failures.first() {
        let case = random_case(*seed, &options);
        panic!(
            "{} cases fail; the smallest is seed {seed}: {e}\n{}",
            failures.len(),
            describe(&case.graph)
        );
    }
}
