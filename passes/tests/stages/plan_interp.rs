//! Compiled plans against a plain evaluation of the graph, at every stage, with and without a shared arena; every kernel
//! through the verifier.

use std::collections::BTreeSet;

use crate::oracle::generate::{Rng, graph};
use crate::oracle::stages::{check, cpu, describe, gpu, scattered, two_emitters};
use tlc_ir::plan::Step;
use tlc_passes::pipeline::{PASSES, Pipeline};
use tlc_passes::{Compiled, Options};

fn seeds() -> std::ops::Range<u64> {
    match std::env::var("TLC_SEEDS").ok().and_then(|s| {
        let (a, b) = s.split_once("..")?;
        Some(a.parse().ok()?..b.parse().ok()?)
    }) {
        Some(range) => range,
        None => 0..300,
    }
}

fn run(name: &str, nodes: usize, elements: usize, symbolic: bool, random_passes: bool) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut failures = Vec::new();
    let mut total = 0;
    for seed in seeds() {
        let case = graph(seed, nodes, elements, symbolic);
        let mut rng = Rng(seed | 1);
        let pipeline = if random_passes {
            let n = rng.below(6);
            Pipeline((0..n).map(|_| rng.pick(&PASSES)).collect())
        } else {
            Pipeline::default()
        };
        let result = std::panic::catch_unwind(|| check(&case, &pipeline, machine(seed)).map(|c| reach(&c)))
            .unwrap_or_else(|e| {
                let text = e.downcast_ref::<String>().cloned();
                let text = text.or_else(|| e.downcast_ref::<&str>().map(|s| s.to_string()));
                Err(format!("panic: {}", text.unwrap_or_default()))
            });
        total += 1;
        match result {
            Ok(seen) => reached.extend(seen),
            Err(e) => failures.push((case.graph.len(), seed, e, describe(&case.graph), pipeline.to_string())),
        }
    }
    failures.sort();
    for (_, seed, e, ..) in failures.iter().take(40) {
        println!("seed {seed}: {e}");
    }
    if let Some((_, seed, e, text, pipeline)) = failures.first() {
        panic!(
            "{name}: {} of {total} cases fail; the smallest is seed {seed} under `{pipeline}`: {e}\n{text}",
            failures.len()
        );
    }
    reached
}

/// CPUs of several widths, one with two emitters, a GPU, and a host with two.
fn machine(seed: u64) -> Options {
    match seed % 8 {
        0 => cpu(128),
        1 => two_emitters(),
        2 => cpu(256),
        3 => cpu(512),
        4 | 5 => gpu(),
        _ => scattered(seed / 2),
    }
}

/// What of the compiler a case has reached, by name.
fn reach(compiled: &Compiled) -> Vec<String> {
    let mut out = Vec::new();
    for step in &compiled.planned.plan.steps {
        out.push(match step {
            Step::Launch(_) => "launch".to_string(),
            Step::Group(_) => "group".to_string(),
            Step::Sequence(_) => "sequence".to_string(),
            Step::Gemm(_) => "gemm".to_string(),
            Step::Copy { .. } => "copy".to_string(),
            Step::Loop(_) => "loop".to_string(),
            Step::Call(_) => "call".to_string(),
        });
    }
    for l in &compiled.planned.launches {
        out.push(format!("{:?}", l.form));
        for a in &l.schedule.applied {
            let text = format!("{:?}", a.directive);
            out.push(text.split(' ').next().unwrap_or_default().to_string());
        }
        for r in &l.schedule.inner {
            out.push(if r.is_ok() {
                "vector".to_string()
            } else {
                "scalar".to_string()
            });
        }
        let scratch = l.scheduled.scratch.iter();
        out.extend(scratch.map(|s| s.scope.name().to_string()));
    }
    out.extend(compiled.planned.aliases.iter().map(|a| format!("{:?}", a.reason)));
    out
}

#[test]
fn small_graphs() {
    drop(run("small", 3, 400, false, false));
}

#[test]
fn random_graphs() {
    drop(run("random", 12, 2000, false, false));
}

#[test]
fn random_graphs_under_random_passes() {
    drop(run("passes", 10, 600, false, true));
}

#[test]
fn symbolic_graphs() {
    drop(run("symbolic", 8, 2000, true, false));
}

#[test]
fn large_values_reach_every_kind_of_step_and_directive() {
    let reached = run("large", 4, 40_000, false, false);
    println!("{reached:?}");
    let wanted = "launch group Elementwise Rows Columns Serial Split Block Fuse Interchange Bind RFactor Privatize \
        Keep TileColumns vector scalar register cache IntoOutput StillLive NotOurs";
    if std::env::var("TLC_SEEDS").is_err() {
        let missing: Vec<&str> = wanted.split_whitespace().filter(|w| !reached.contains(*w)).collect();
        assert!(missing.is_empty(), "not reached: {missing:?}");
    }
}
