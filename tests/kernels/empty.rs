//! Graphs over sizes of nothing.

use tlc::{CompileOptions, HostTensor, Input, compile_ir};
use tlc_ir::interp::{self, interpret};
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

/// Compiles, runs and interprets a graph without symbols on inputs of zeros, and compares.
fn agrees(text: &str) {
    let graph = parse_graph(text, &mut no_data).unwrap_or_else(|e| panic!("{e:?} in {text}"));
    let zeros = |&id: &tlc_ir::NodeId| {
        let ty = graph.ty(id);
        let shape = ty.const_shape().expect("fixed sizes");
        HostTensor::zeros(ty.dtype, &shape).expect("a small tensor")
    };
    let inputs: Vec<HostTensor> = graph.inputs().iter().map(zeros).collect();
    let expected = interpret(&graph, &inputs, &interp::Options::default()).expect("the interpreter runs it");
    assert_eq!(run(text, &inputs), expected, "{text}");
}

#[test]
fn what_is_read_inside_a_loop_that_does_not_run_is_not_read_before_it() {
    let monoids = ["add", "mul", "max", "min"];
    let reductions = monoids.map(|m| format!("reduce {m} %0 {{axes=[0]}} : f32[]"));
    let others = [
        "scan add %0 {axis=0} : f32[0]",
        "einsum %0, %0 {a,a->} : f32[]",
        "convert %0 : f64[0]",
    ];
    for last in reductions.iter().map(String::as_str).chain(others) {
        agrees(&format!(
            "graph @f(%x: f32[3, 0]) {{\n  %0 = reshape %x : f32[0]\n  %1 = {last}\n  return %1\n}}"
        ));
    }
    // A column of a matrix without rows, and a mask that is true where there is no element.
    agrees(
        "graph @f(%x: f32[5, 0]) {
  %0 = reshape %x : f32[0, 5]
  %1 = exp %0 : f32[0, 5]
  %2 = reduce add %1 {axes=[0]} : f32[5]
  %3 = pad %x {lo=[1, 0], hi=[0, 0], value=2.0} : f32[6, 0]
  %4 = reduce max %3 {axes=[1]} : f32[6]
  return %2, %4
}",
    );
}

/// Runs something that must end at once, and fails if it has not after a minute.
fn at_once(what: &str, f: impl FnOnce() + Send + 'static) {
    let (done, ended) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        f();
        let _ = done.send(());
    });
    match ended.recv_timeout(std::time::Duration::from_secs(60)) {
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("still running: {what}"),
        // It ended, or it panicked, which joining it passes on.
        _ => thread.join().unwrap_or_else(|p| std::panic::resume_unwind(p)),
    }
}

#[test]
fn axes_around_an_empty_one_are_not_walked() {
    const N: &str = "3037000500, 3037000500, 0";
    let statements = [
        format!("expand %s : u8[{N}]"),
        format!("neg %x : u8[{N}]"),
        format!("convert %x : f32[{N}]"),
        format!("bitcast %x : i8[{N}]"),
        format!("iota {{axis=1}} : u8[{N}]"),
        format!("permute %x {{axes=[1, 0, 2]}} : u8[{N}]"),
        "permute %x {axes=[2, 1, 0]} : u8[0, 3037000500, 3037000500]".into(),
        format!("slice %x {{start=[3037000499, 0, 0], step=[-1, 1, 1]}} : u8[{N}]"),
        format!("scan add %x {{axis=0}} : u8[{N}]"),
        format!("scan add %x {{axis=2}} : u8[{N}]"),
        "reduce add %x {axes=[0, 1]} : u8[0]".into(),
        "reduce add %x {axes=[0, 1, 2]} : u8[]".into(),
        "reduce max %x {axes=[0, 1, 2]} : u8[]".into(),
        "einsum %x, %x {abc,abc->c} : u8[0]".into(),
        "einsum %x, %x {abc,abc->} : u8[]".into(),
        "gather %x, %i {axes=[2]} : u8[0, 3037000500, 3037000500]".into(),
        format!("scatter add %x, %e, %i {{axes=[0]}} : u8[{N}]"),
        "reshape %x : u8[3037000500, 0]".into(),
    ];
    for statement in statements {
        let updates = "%e = slice %x {start=[0, 0, 0], step=[1, 1, 1]} : u8[0, 3037000500, 0]";
        let text =
            format!("graph @f(%x: u8[{N}], %s: u8[], %i: i64[0]) {{\n  {updates}\n  %0 = {statement}\n  return %0\n}}");
        at_once(&statement, move || agrees(&text));
    }
}
