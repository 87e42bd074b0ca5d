//! Compiled plans against a plain evaluation of the graph, at every stage, with and without a shared arena; every kernel
//! through the verifier.

mod oracle;

use oracle::generate::{Rng, graph};
use oracle::stages::{check, describe};
use tlc_passes::pipeline::{Pass, Pipeline};

fn seeds() -> std::ops::Range<u64> {
    match std::env::var("TLC_SEEDS").ok().and_then(|s| {
        let (a, b) = s.split_once("..")?;
        Some(a.parse().ok()?..b.parse().ok()?)
    }) {
        Some(range) => range,
        None => 0..300,
    }
}

fn run(name: &str, nodes: usize, elements: usize, symbolic: bool, random_passes: bool) {
    let mut failures = Vec::new();
    let mut total = 0;
    for seed in seeds() {
        let case = graph(seed, nodes, elements, symbolic);
        let mut rng = Rng(seed | 1);
        let pipeline = if random_passes {
            let n = rng.below(6);
            Pipeline((0..n).map(|_| rng.pick(&Pass::ALL)).collect())
        } else {
            Pipeline::default()
        };
        let result = std::panic::catch_unwind(|| check(&case, &pipeline)).unwrap_or_else(|e| {
            let text = e.downcast_ref::<String>().cloned();
            let text = text.or_else(|| e.downcast_ref::<&str>().map(|s| s.to_string()));
            Err(format!("panic: {}", text.unwrap_or_default()))
        });
        total += 1;
        if let Err(e) = result {
            failures.push((case.graph.len(), seed, e, describe(&case.graph), pipeline.to_string()));
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
}

#[test]
fn small_graphs() {
    run("small", 3, 400, false, false);
}

#[test]
fn random_graphs() {
    run("random", 12, 2000, false, false);
}

#[test]
fn random_graphs_under_random_passes() {
    run("passes", 10, 600, false, true);
}

#[test]
fn symbolic_graphs() {
    run("symbolic", 8, 2000, true, false);
}

#[test]
fn large_values() {
    run("large", 4, 40_000, false, false);
}
