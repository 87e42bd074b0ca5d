//! Speeds of the machine are for predictions: they appear in what is explained, and change nothing that is compiled.

use std::sync::Arc;

use tlc::{CompileOptions, DType, Graph};
use tlc_ir::target::{Cpu, CpuEmitter};

fn model() -> Graph {
    let g = Graph::new("model");
    let x = g.input("x", DType::F32, [256, 384]);
    let w = g.input("w", DType::F32, [384, 512]);
    g.output("y", &x.matmul(&w).relu().softmax(-1));
    g
}

#[test]
fn explain_says_which_machine_its_times_are_for() {
    let text = model()
        .compile(&CompileOptions::default())
        .expect("it compiles")
        .explain();
    assert!(text.lines().last().is_some_and(|l| l.starts_with("times: ")), "{text}");
}

#[test]
fn speeds_decide_nothing_that_results_depend_on() {
    let graph = model().finish().expect("no errors");
    let plan = |cpu: Cpu| {
        let compiled = tlc_passes::compile(&graph, &tlc_passes::Options::new(cpu)).expect("it compiles");
        // All but how much work a thread gets at a time, which changes no result.
        let text = compiled.planned.plan.to_string();
        let lines = text.lines().map(|line| match line.split_once(" grain ") {
            Some((before, after)) => {
                let (_, rest) = after.split_once(" bytes ").expect("a launch says what it moves");
                format!("{before} bytes {rest}")
            }
            None => line.to_string(),
        });
        lines.collect::<Vec<_>>()
    };
    let assumed = Cpu::modest(Arc::new(tlc_codegen::clif::emitter(true)));
    let measured = Cpu {
        bytes_per_second: [3e12, 1e12, 2e10],
        emitters: assumed
            .emitters
            .iter()
            .map(|e| CpuEmitter {
                vector_ops_per_second: 1e8,
                ..e.clone()
            })
            .collect(),
        f32_flops_per_second: 1e13,
        ..assumed.clone()
    };
    assert_eq!(plan(assumed), plan(measured));
}
