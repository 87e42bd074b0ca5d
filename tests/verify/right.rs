//! What is compiled right is found right: random graphs of every kind, on every kind of call.

use tlc::CompileOptions;
use tlc::verify::{Case, verify};
use tlc_ir::testgen::{GenOptions, random_case};

fn seeds(default: std::ops::Range<u64>) -> std::ops::Range<u64> {
    match std::env::var("TLC_SEEDS") {
        Ok(range) => {
            let (from, to) = range.split_once("..").expect("TLC_SEEDS is a range");
            from.parse().expect("a number")..to.parse().expect("a number")
        }
        Err(_) => default,
    }
}

/// A random graph with data.
pub fn random(seed: u64, options: &GenOptions) -> Case {
    let case = random_case(seed, options);
    let names = case.graph.symbols().iter().map(|s| s.name.clone());
    let symbols = names.zip(case.binding.iter().copied()).collect();
    Case {
        inputs: case.input_data(seed),
        graph: case.graph,
        symbols,
    }
}

#[test]
fn random_graphs_are_right_in_every_value() {
    let (mut values, mut elements, mut uncertain) = (0, 0, 0);
    let mut wrong = Vec::new();
    for seed in seeds(0..120) {
        let case = random(seed, &GenOptions::default());
        let report = verify(&case, &CompileOptions::default()).expect("the interpreter runs it");
        values += report.values;
        elements += report.elements;
        uncertain += report.uncertain;
        for finding in report.findings.iter().take(1) {
            wrong.push(format!("seed {seed}: {finding}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(values > 100 && elements > 1000, "{values} values, {elements} elements");
    assert!(uncertain * 4 < elements, "{uncertain} of {elements} may be anything");
}
