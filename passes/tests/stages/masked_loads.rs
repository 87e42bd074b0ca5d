//! Rows of images of unknown size, which are loaded with masks: what is asked for ahead where prefetchers do not follow such loads.

use std::sync::Arc;

use tlc_ir::kernel::Stmt;
use tlc_ir::plan::interp::interpret;
use tlc_ir::target::Cpu;
use tlc_ir::text::{no_data, parse_module};
use tlc_ir::{DType, Graph, HostTensor, Scalar};
use tlc_passes::{Compiled, Options, compile};

const PADDED: &str = "graph @padded(%x: f32[n, 20, h, w]) where n in 0..=16, h in 0..=1048576, w in 0..=1048576 {
  %0 = pad %x {lo=[0, 0, 1, 1], hi=[0, 0, 1, 1], value=0.0} : f32[n, 20, h + 2, w + 2]
  return %0 as y
}";

/// Windows whose steps are given, and how many results they have along an axis.
fn windows(stride: i64, results: [&str; 2]) -> String {
    let [h, w] = results;
    format!(
        "graph @windows(%x: f32[n, 20, h, w], %k: f32[20, 3, 3]) where n in 0..=16, h in 1..=1048576, w in 1..=1048576 {{
  %0 = pad %x {{lo=[0, 0, 1, 1], hi=[0, 0, 1, 1], value=0.0}} : f32[n, 20, h + 2, w + 2]
  %1 = window %0 {{axis=2, size=3, stride={stride}, dilation=1}} : f32[n, 20, {h}, w + 2, 3]
  %2 = window %1 {{axis=3, size=3, stride={stride}, dilation=1}} : f32[n, 20, {h}, {w}, 3, 3]
  %3 = einsum %2, %k {{nchwij,cij->nchw}} : f32[n, 20, {h}, {w}]
  return %3 as y
}}"
    )
}

fn graph(text: &str) -> Graph {
    let module = parse_module(text, &mut no_data).unwrap_or_else(|e| panic!("{}\n{text}", e[0]));
    module.graphs.into_iter().next().expect("one graph")
}

fn compiled(graph: &Graph, follows_masked_loads: bool) -> Compiled {
    let cpu = Cpu {
        follows_masked_loads,
        ..Cpu::modest(Arc::new(tlc_codegen::wide::emitter(tlc_codegen::wide::Level::Avx512)))
    };
    let compiled = compile(graph, &Options::new(cpu)).expect("it compiles");
    let report = tlc_ir::plan::verify::verify(&compiled.planned.plan);
    assert!(report.errors.is_empty(), "{:?}", report.errors);
    compiled
}

/// Statements that ask for something.
fn asked(c: &Compiled) -> usize {
    let statements = c.planned.plan.kernels.iter().flat_map(|k| k.statements());
    statements.filter(|s| matches!(s, Stmt::Prefetch { .. })).count()
}

fn numbers(shape: &[usize]) -> HostTensor {
    let n = shape.iter().product();
    let data: Vec<f32> = (0..n).map(|i| (i * 7 % 23) as f32 - 11.0).collect();
    let mut t = HostTensor::from_slice(shape, &data).expect("numbers");
    if n > 3 {
        t.set(3, Scalar::from_f64(DType::F32, -0.0));
    }
    t
}

/// Rows that are copied ask for one line for each vector; 7 rows of windows share those of 9 rows of the image, of which a step of two shows 15 in two
/// lines each.
#[test]
fn what_is_loaded_with_masks_is_asked_for_where_nobody_foresees_it() {
    let slide = windows(1, ["h", "w"]);
    let step = windows(2, ["div(h - 1, 2) + 1", "div(w - 1, 2) + 1"]);
    for (text, lines) in [(PADDED, 1), (&slide, 9), (&step, 30)] {
        let graph = graph(text);
        let [follows, misses] = [true, false].map(|follows| compiled(&graph, follows));
        assert_eq!(asked(&follows), 0, "{text}");
        assert_eq!(asked(&misses), lines, "{text}");
        for (n, h, w) in [(1, 7, 7), (2, 15, 33), (1, 1, 64), (0, 3, 3)] {
            let mut inputs = vec![numbers(&[n, 20, h, w])];
            if graph.inputs().len() > 1 {
                inputs.push(numbers(&[20, 3, 3]));
            }
            let run = |c: &Compiled| interpret(&c.planned.plan, None, &inputs).expect("it runs");
            let expected =
                tlc_ir::interp::interpret(&graph, &inputs, &tlc_ir::interp::Options::default()).expect("it runs");
            for c in [&follows, &misses] {
                // Sums of small integers are exact.
                assert_eq!(run(c), expected, "{n} of {h} by {w}\n{text}");
            }
        }
    }
}
