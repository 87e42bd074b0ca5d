//! Products with a vector on machines that stream lines: which matrices are turned, what is asked for ahead, and results.

use std::sync::Arc;

use tlc_ir::kernel::Stmt;
use tlc_ir::plan::interp::interpret_bound;
use tlc_ir::target::Cpu;
use tlc_ir::text::{no_data, parse_module};
use tlc_ir::{DType, Graph, HostTensor};
use tlc_passes::{Compiled, Options, compile};

fn compiled(graph: &Graph, streams_lines: bool, l3_bytes: u64) -> Compiled {
    let cpu = Cpu {
        streams_lines,
        l2_bytes: 64 << 10,
        l3_bytes,
        ..Cpu::modest(Arc::new(tlc_codegen::wide::emitter(tlc_codegen::wide::Level::Avx512)))
    };
    let compiled = compile(graph, &Options::new(cpu)).expect("it compiles");
    let report = tlc_ir::plan::verify::verify(&compiled.planned.plan);
    assert!(report.errors.is_empty(), "{:?}", report.errors);
    compiled
}

/// A vector times a matrix that never changes and whose lines are as long as the vector.
fn product(columns: i64, length: i64) -> Graph {
    let text = format!(
        "graph @product(%x: f32[{length}]) {{
  %0 = iota {{axis=1}} : f32[{columns}, {length}]
  %1 = sin %0 : f32[{columns}, {length}]
  %2 = einsum %x, %1 {{a,ba->b}} : f32[{columns}]
  return %2
}}"
    );
    let module = parse_module(&text, &mut no_data).expect("a graph");
    module.graphs.into_iter().next().expect("one graph")
}

/// Whether the product's matrix was turned: its columns then lie together.
fn is_turned(c: &Compiled) -> bool {
    let text = c.graph.to_string();
    let (turned, as_it_is) = (text.contains("{a,ab->b}"), text.contains("{a,ba->b}"));
    assert!(turned != as_it_is, "{text}");
    turned
}

fn asks_ahead(c: &Compiled) -> bool {
    let mut statements = c.planned.plan.kernels.iter().flat_map(|k| k.statements());
    statements.any(|s| matches!(s, Stmt::Prefetch { .. }))
}

/// What the plan computes, against sums in f64.
fn check(c: &Compiled, columns: i64, length: i64) {
    let x: Vec<f32> = (0..length).map(|i| (i % 7) as f32 - 3.0).collect();
    let expected: f64 = (0..length)
        .zip(&x)
        .map(|(i, &x)| f64::from((i as f32).sin()) * f64::from(x))
        .sum();
    let x = HostTensor::from_slice(&[length as usize], &x).expect("a vector");
    let found = interpret_bound(&c.planned.plan, None, &[x], &[]).expect("it runs");
    assert_eq!((found[0].dtype(), found[0].len()), (DType::F32, columns as usize));
    for k in 0..columns as usize {
        let off = (found[0].get(k).as_f64() - expected).abs();
        assert!(off < 1e-4 * length as f64, "{k}: off by {off}");
    }
}

/// What a loop multiplies with again and again is in the last cache, if that holds it, and is not asked for.
#[test]
fn a_loop_asks_ahead_for_what_no_cache_holds() {
    // Columns that are no whole lines of a cache, so that the matrix is read as it lies.
    let text = "graph @repeated(%h: f32[520], %w: f32[520, 520]) {
  %0 = loop %h, %w {trip=16, carried=1, slices=[], stacks=[]} body @step(%i: i64[], %h: f32[520], %w: f32[520, 520]) {
    %0 = einsum %h, %w {a,ab->b} : f32[520]
    %1 = tanh %0 : f32[520]
    return %1
  } : (f32[520])
  %1 = project %0 {result=0} : f32[520]
  return %1
}";
    let module = parse_module(text, &mut no_data).expect("a graph");
    let graph = module.graphs.into_iter().next().expect("one graph");
    for (l3_bytes, asks) in [(32 << 20, false), (1 << 20, true)] {
        let c = compiled(&graph, false, l3_bytes);
        let bodies = c.planned.bodies.iter().flat_map(|b| &b.planned.plan.kernels);
        let mut statements = bodies.flat_map(|k| k.statements());
        let found = statements.any(|s| matches!(s, Stmt::Prefetch { .. }));
        assert_eq!(found, asks, "{l3_bytes}");
    }
}

#[test]
fn matrices_are_turned_for_long_vectors_alone_if_the_last_cache_holds_them() {
    // 520 lines of 1 KiB; 136 lines of 16 KiB, which are more than 2 MiB. Lines are no whole groups of vectors, and as columns no whole lines of a cache.
    for (columns, length, of_streams) in [(520, 264, [false, false]), (136, 4100, [true, false])] {
        let g = product(columns, length);
        for (l3_bytes, turned) in [32 << 20, 2 << 20].into_iter().zip(of_streams) {
            let (plain, streams) = (compiled(&g, false, l3_bytes), compiled(&g, true, l3_bytes));
            assert!(is_turned(&plain) && asks_ahead(&plain), "{columns} x {length}");
            assert_eq!(is_turned(&streams), turned, "{columns} x {length} of {l3_bytes}");
            assert!(!asks_ahead(&streams), "{columns} x {length}");
            for c in [&plain, &streams] {
                check(c, columns, length);
            }
        }
    }
}
