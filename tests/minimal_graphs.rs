//! Graphs that were compiled wrongly once, as small as they get: every value that a step leaves in memory, and every output,
//! against the interpreter.

use tlc::verify::{Case, data, verify};
use tlc::{CompileOptions, HostTensor};
use tlc_ir::NodeKind;
use tlc_ir::text::{no_data, parse_graph};

/// Compiles and runs a graph whose sizes are fixed on random inputs, and says what is wrong.
fn check(text: &str) {
    let graph = parse_graph(text, &mut no_data).unwrap_or_else(|e| panic!("{e:?} in {text}"));
    let input = |&id: &tlc_ir::NodeId| -> HostTensor {
        let ty = graph.ty(id);
        let NodeKind::Input { name, .. } = &graph.node(id).kind else {
            unreachable!("an input")
        };
        let shape = ty.const_shape().expect("fixed sizes");
        data::random(name, ty.dtype, &shape, 7).expect("a small tensor")
    };
    let case = Case {
        inputs: graph.inputs().iter().map(input).collect(),
        graph,
        symbols: vec![],
    };
    let report = verify(&case, &CompileOptions::default()).expect("the interpreter runs it");
    assert!(report.is_right(), "{}\n{text}", report.findings[0]);
}

#[test]
fn a_product_reads_past_a_view_that_is_an_output() {
    check(
        "graph @f(%v: f32[16, 4, 8], %w: f32[32, 40]) {
  %0 = neg %v : f32[16, 4, 8]
  %1 = reshape %0 : f32[16, 32]
  %2 = einsum %1, %w {ab,bc->ac} : f32[16, 40]
  return %2 as y, %1 as s
}",
    );
}

#[test]
fn a_product_reads_past_views_of_which_any_is_an_output() {
    for outputs in [
        "%3 as y, %2 as s",
        "%3 as y, %1 as r, %2 as s",
        "%3 as y, %0 as v",
        "%3 as y, %1 as r",
    ] {
        check(&format!(
            "graph @f(%v: f32[16, 1, 8], %w: f32[32, 40]) {{
  %0 = neg %v : f32[16, 1, 8]
  %1 = expand %0 : f32[16, 4, 8]
  %2 = reshape %1 : f32[16, 32]
  %3 = einsum %2, %w {{ab,bc->ac}} : f32[16, 40]
  return {outputs}
}}"
        ));
    }
}

#[test]
fn a_mask_in_every_lane_is_not_the_number_of_the_same_bits() {
    for (kind, dtype) in [
        ("convert", "i8"),
        ("convert", "u8"),
        ("bitcast", "i8"),
        ("bitcast", "u8"),
    ] {
        check(&format!(
            "graph @f(%x: f32[]) {{
  %0 = convert %x : bool[]
  %1 = expand %0 : bool[64]
  %2 = {kind} %1 : {dtype}[64]
  return %2 as y, %1 as e
}}"
        ));
    }
    // The other way round: the number is in the lanes first.
    check(
        "graph @f(%x: f32[]) {
  %0 = convert %x : bool[]
  %1 = convert %0 : u8[]
  %2 = expand %1 : u8[64]
  %3 = expand %0 : bool[64]
  %4 = not %3 : bool[64]
  return %2 as y, %4 as e
}",
    );
}

#[test]
fn loops_around_one_that_is_known_to_be_empty_divide_by_nothing() {
    check(
        "graph @f(%x: f32[1]) {
  %0 = iota {axis=0} : i64[8, 2, 0]
  %1 = reshape %0 : i64[16, 0, 1]
  %2 = const 6.0 : f32[]
  %3 = expand %2 : f32[3, 0, 5]
  %4 = exp %3 : f32[3, 0, 5]
  %5 = reduce add %4 {axes=[0]} : f32[0, 5]
  %6 = neg %x : f32[1]
  return %1, %5, %6
}",
    );
}
