//! Random graphs. `TLC_SEEDS=from..to` runs other seeds, `TLC_SEED=n` one, which it prints.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tlc_ir::testgen::{GenKind, GenOptions, random_case};
use tlc_ir::{DType, ScalarOp};

use crate::same::{same, through_onnx};

/// How many were exported, and why others were not.
#[derive(Default, Debug)]
struct Count {
    equal: usize,
    close: usize,
    unread: usize,
    refused: BTreeMap<String, usize>,
}

fn check_all(default: &str, options: &GenOptions) -> Count {
    let one = std::env::var("TLC_SEED").ok();
    let range = match &one {
        Some(n) => format!("{n}..{}", n.parse::<u64>().expect("a number") + 1),
        None => std::env::var("TLC_SEEDS").unwrap_or(default.into()),
    };
    let (from, to) = range.split_once("..").expect("TLC_SEEDS is a range");
    let mut count = Count::default();
    let mut failures = vec![];
    for seed in from.parse::<u64>().expect("a number")..to.parse().expect("a number") {
        let case = random_case(seed, options);
        // Symbols that no input's shape gives are not for ONNX: every second graph has fixed sizes.
        let fixed: Vec<Option<i64>> = case.binding.iter().map(|&v| Some(v)).collect();
        let graph = match seed % 2 {
            0 => case.graph.specialize(&fixed).unwrap_or_else(|_| case.graph.clone()),
            _ => case.graph.clone(),
        };
        let inputs = case.input_data(seed);
        let left = graph.symbols().iter().map(|s| s.name.clone());
        let value = |name: String| {
            let at = case.graph.find_symbol(&name).expect("one of the case's");
            (name, case.binding[at.0 as usize])
        };
        let symbols: Vec<(String, i64)> = left.map(value).collect();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            if one.is_some() {
                println!("{graph}");
            }
            let again = through_onnx(&graph)?;
            if one.is_some() {
                println!("{again}");
            }
            // What came back is exported and read like any other.
            if seed % 3 == 0 {
                let third = through_onnx(&again).map_err(|e| format!("again: {e}"))?;
                same(&graph, &third, &inputs, &symbols)?;
            }
            same(&graph, &again, &inputs, &symbols)
        }));
        match outcome {
            Ok(Ok(true)) => count.equal += 1,
            Ok(Ok(false)) => count.close += 1,
            Ok(Err(e)) if e.starts_with("export: ") => {
                let reason = e.split_once(": ").map_or("", |(_, e)| e);
                let reason = reason.split_once(": ").map_or("", |(_, e)| e).to_string();
                *count.refused.entry(reason).or_default() += 1;
            }
            // A loop in a loop that ends early stacks as many results as data decides, which a body here cannot have.
            Ok(Err(e)) if e.contains("data decides a size in the body of a loop") => count.unread += 1,
            Ok(Err(e)) => failures.push(format!("seed {seed}: {e}")),
            Err(_) => failures.push(format!("seed {seed}: panic")),
        }
    }
    println!("{count:#?}");
    assert!(
        failures.is_empty(),
        "{} failures:\n{}",
        failures.len(),
        failures[..failures.len().min(30)].join("\n")
    );
    count
}

/// Everything but what ONNX has no word for.
fn sayable() -> GenOptions {
    let ops = ScalarOp::ALL
        .iter()
        .copied()
        .filter(|op| *op != ScalarOp::Atan2 && *op != ScalarOp::Fma);
    let kinds = GenOptions::default().kinds.into_iter();
    GenOptions {
        kinds: kinds
            .filter(|k| !matches!(k, GenKind::Random | GenKind::Scan | GenKind::Bitcast))
            .collect(),
        ops: ops.collect(),
        ..GenOptions::default()
    }
}

#[test]
fn float_graphs_come_back() {
    let options = GenOptions {
        dtypes: vec![DType::F32],
        guards: false,
        control: false,
        ..sayable()
    };
    let count = check_all("0..150", &options);
    assert!(
        std::env::var("TLC_SEED").is_ok() || count.equal + count.close > 60,
        "{count:?}"
    );
}

#[test]
fn graphs_of_numbers_and_bools_come_back() {
    let options = GenOptions {
        dtypes: DType::ALL.iter().copied().filter(|d| !d.is_storage()).collect(),
        ..sayable()
    };
    let count = check_all("1000..1200", &options);
    assert!(
        std::env::var("TLC_SEED").is_ok() || count.equal + count.close > 50,
        "{count:?}"
    );
}

#[test]
fn any_graph_comes_back_or_is_refused() {
    check_all("2000..2200", &GenOptions::default());
}
