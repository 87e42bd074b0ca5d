//! Graphs over sizes of nothing.

use tlc::{CompileOptions, HostTensor, Input, compile_ir};
use tlc_ir::text::{no_data, parse_graph};

fn run(text: &str, inputs: &[HostTensor]) -> Vec<HostTensor> {
    let graph = parse_graph(text, &mut no_data).expect("a graph");
    let executable = compile_ir(&graph, &CompileOptions::default()).expect("compiled");
    let given: Vec<Input<'_>> = inputs.iter().map(Into::into).collect();
    let outputs = executable.run(&given).expect("it runs");
    outputs.iter().map(|o| o.to_host()).collect()
}

#[test]
fn a_masked_load_stays_in_a_loop_that_does_not_run() {
    // The mask of the padding is true in the first row, whose elements are none, and no buffer is behind them.
    for (n, rows) in [("0", 64), ("n", 64), ("n", 3000)] {
        let symbols = if n == "n" { " where n in 0..=4" } else { "" };
        let text = format!(
            "graph @f(%x: f32[1, {n}, {rows}]){symbols} {{
  %0 = pad %x {{lo=[0, 0, 0], hi=[{rows}, 0, 0], value=0.0}} : f32[{rows} + 1, {n}, {rows}]
  %1 = permute %0 {{axes=[2, 0, 1]}} : f32[{rows}, {rows} + 1, {n}]
  return %0, %1
}}"
        );
        let empty = HostTensor::zeros(tlc::DType::F32, &[1, 0, rows]).expect("nothing");
        let results = run(&text, &[empty]);
        assert_eq!(results[0].shape(), [rows + 1, 0, rows]);
        assert_eq!(results[1].shape(), [rows, rows + 1, 0]);
    }
}

#[test]
fn a_scatter_into_nothing_writes_nothing() {
    let text = "graph @f(%x0: f32[2, 0, 1]) {
  %0 = iota {axis=0} : i64[2]
  %1 = convert %0 : f32[2]
  %2 = permute %x0 {axes=[2, 1, 0]} : f32[1, 0, 2]
  %3 = const 1 : i64[]
  %4 = const 0 : i64[]
  %5 = pad %2 {lo=[0, 0, 0], hi=[1, 0, 0], value=0.0} : f32[2, 0, 2]
  %6 = scatter set %5, %1, %3, %4 {axes=[0, 1]} : f32[2, 0, 2]
  return %6
}";
    let empty = HostTensor::zeros(tlc::DType::F32, &[2, 0, 1]).expect("nothing");
    assert_eq!(run(text, &[empty])[0].shape(), [2, 0, 2]);
}
