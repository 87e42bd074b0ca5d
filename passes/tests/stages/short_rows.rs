//! Short rows, one in each lane: blocks of them are copied in another order on every level, and all levels compute the same bits.

use std::sync::Arc;

use tlc_codegen::wide::Level;
use tlc_ir::kernel::{Bind, Stmt};
use tlc_ir::plan::interp::interpret_bound;
use tlc_ir::target::Cpu;
use tlc_ir::text::{no_data, parse_module};
use tlc_ir::{Graph, HostTensor};
use tlc_passes::{Compiled, Options, compile};

/// The logarithm of the softmax of each row.
fn log_softmax(rows: usize, columns: usize) -> Graph {
    let (all, one) = (format!("f32[{rows}, {columns}]"), format!("f32[{rows}, 1]"));
    let text = format!(
        "graph @rows(%x: {all}) {{
  %0 = reduce max %x {{axes=[1]}} : f32[{rows}]
  %1 = reshape %0 : {one}
  %2 = expand %1 : {all}
  %3 = sub %x, %2 : {all}
  %4 = exp %3 : {all}
  %5 = reduce add %4 {{axes=[1]}} : f32[{rows}]
  %6 = log %5 : f32[{rows}]
  %7 = reshape %6 : {one}
  %8 = expand %7 : {all}
  %9 = sub %3, %8 : {all}
  return %9
}}"
    );
    let module = parse_module(&text, &mut no_data).expect("a graph");
    module.graphs.into_iter().next().expect("one graph")
}

fn compiled(graph: &Graph, level: Level) -> Compiled {
    let cpu = Cpu::modest(Arc::new(tlc_codegen::wide::emitter(level)));
    let compiled = compile(graph, &Options::new(cpu)).expect("it compiles");
    let report = tlc_ir::plan::verify::verify(&compiled.planned.plan);
    assert!(report.errors.is_empty(), "{:?}", report.errors);
    compiled
}

/// Loops that copy rows into scratch or out of it.
fn copies(c: &Compiled) -> usize {
    let statements = c.planned.plan.kernels.iter().flat_map(|k| k.statements());
    let copying = |s: &&Stmt| matches!(s, Stmt::Loop { bind: Bind::Copy, .. });
    statements.filter(copying).count()
}

/// Also at AVX-512, which could gather a row's elements and scatter them: for a block of 16 rows of 10 that takes 320 steps.
#[test]
fn rows_are_copied_in_another_order_on_every_level() {
    // Blocks of equal size, blocks of which the last is smaller, and less than one vector behind whole ones.
    for (rows, columns) in [(128, 10), (67, 10), (97, 4)] {
        let graph = log_softmax(rows, columns);
        let mut data: Vec<f32> = (0..rows * columns).map(|i| (i * 37 % 101) as f32 * 0.1 - 5.0).collect();
        for (row, special) in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, f32::MAX]
            .into_iter()
            .enumerate()
        {
            data[row * 13 * columns + row % columns] = special;
        }
        let x = HostTensor::from_slice(&[rows, columns], &data).expect("rows");
        let all = [Level::Avx512, Level::Avx2].map(|level| {
            let c = compiled(&graph, level);
            assert_eq!(copies(&c), 2, "{rows} rows of {columns} at {}", level.name());
            let mut found = interpret_bound(&c.planned.plan, None, std::slice::from_ref(&x), &[]).expect("it runs");
            found.swap_remove(0)
        });
        assert_eq!(all[0].bytes(), all[1].bytes(), "{rows} rows of {columns}");
    }
}
