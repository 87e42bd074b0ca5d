//! Graphs that were compiled wrongly once, as small as they get: every value that a step leaves in memory, and every output,
//! against the interpreter.

use tlc::verify::{Case, data, verify};
use tlc::{CompileOptions, HostTensor};
use tlc_ir::NodeKind;
use tlc_ir::text::{no_data, parse_graph};

/// Compiles and runs a graph whose sizes are fixed on random inputs, and says what is wrong.
fn check(text: &str) {
    check_at(text, &[]);
}

/// As [`check`], of a graph with symbols, at these values.
fn check_at(text: &str, symbols: &[i64]) {
    let graph = parse_graph(text, &mut no_data).unwrap_or_else(|e| panic!("{e:?} in {text}"));
    let input = |&id: &tlc_ir::NodeId| -> HostTensor {
        let ty = graph.ty(id);
        let NodeKind::Input { name, .. } = &graph.node(id).kind else {
            unreachable!("an input")
        };
        let extents = ty.shape.iter().map(|d| d.eval_symbols(symbols));
        let shape: Option<Vec<usize>> = extents.map(|d| usize::try_from(d?).ok()).collect();
        data::random(name, ty.dtype, &shape.expect("sizes"), 7).expect("a small tensor")
    };
    let case = Case {
        inputs: graph.inputs().iter().map(input).collect(),
        graph,
        symbols: vec![],
    };
    let report = verify(&case, &CompileOptions::default()).expect("the interpreter runs it");
    assert!(report.is_right(), "{}\n{text}", report.findings[0]);
}

/// For n = 0 the two extents n - 1 have a positive product: the loops run, and what they read lies outside.
#[test]
fn extents_that_could_be_negative_are_assumed_not_to_be() {
    let text = "graph @f(%x: f32[n - 1, div(m, 2) + 1, n - 1, n + 1], %k: f32[n, m]) where n in 0..=4, m in 1..=5 {
  %0 = exp %x : f32[n - 1, div(m, 2) + 1, n - 1, n + 1]
  %1 = permute %0 {axes=[0, 2, 1, 3]} : f32[n - 1, n - 1, div(m, 2) + 1, n + 1]
  %2 = neg %k : f32[n, m]
  return %1 as y, %0 as z, %2 as w
}";
    for n in 1..=4 {
        check_at(text, &[n, 5]);
    }
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

#[test]
fn values_of_clusters_with_many_outputs_are_computed_in_loops_of_their_own_extents() {
    check(
        "graph @f(%x: f64[3], %p: i64[3, 2]) {
  %0 = const 1.0 : f64[]
  %1 = const 0.0 : f32[]
  %2 = const 0 : i64[]
  %3 = expand %1 : f32[1, 1, 3, 3]
  %4 = expand %0 : f64[3]
  %5 = div %4, %x : f64[3]
  %6 = convert %5 : i64[3]
  %7 = reshape %6 : i64[3, 1]
  %8 = expand %7 : i64[3, 2]
  %9 = add %8, %p : i64[3, 2]
  %10 = reshape %5 : f64[3, 1]
  %11 = expand %0 : f64[3, 2]
  %12 = expand %10 : f64[3, 2]
  %13 = sub %11, %12 : f64[3, 2]
  %14 = expand %2 : i64[3, 2]
  %15 = max %9, %14 : i64[3, 2]
  %16 = convert %13 : f32[3, 2]
  %17 = slice %15 {start=[0, 0], step=[1, 1]} : i64[3, 1]
  %18 = reshape %17 : i64[3]
  %19 = expand %2 : i64[3]
  %20 = lt %18, %19 : bool[3]
  %21 = select %20, %18, %19 : i64[3]
  %22 = gather %3, %21 {axes=[2]} : f32[3, 1, 1, 3]
  %23 = permute %22 {axes=[1, 2, 0, 3]} : f32[1, 1, 3, 3]
  %24 = permute %23 {axes=[2, 0, 1, 3]} : f32[3, 1, 1, 3]
  %25 = reshape %20 : bool[3, 1, 1, 1]
  %26 = expand %1 : f32[3, 1, 1, 3]
  %27 = expand %25 : bool[3, 1, 1, 3]
  %28 = select %27, %24, %26 : f32[3, 1, 1, 3]
  %29 = permute %28 {axes=[1, 2, 0, 3]} : f32[1, 1, 3, 3]
  return %29, %3, %16, %15, %19, %26, %4, %x, %p, %11, %14, %19, %11, %11, %14
}",
    );
}

#[test]
fn comparisons_of_the_largest_numbers_at_the_edges_of_padding_are_decided_as_computed() {
    for value in ["-9223372036854775808", "9223372036854775807"] {
        for (op, operands) in [("le", "%0, %0"), ("lt", "%0, %0"), ("le", "%0, %1"), ("lt", "%1, %0")] {
            check(&format!(
                "graph @f(%x: i64[5, 3, 3]) {{
  %0 = pad %x {{lo=[0, 0, 1], hi=[0, 0, 0], value={value}}} : i64[5, 3, 4]
  %1 = pad %x {{lo=[0, 0, 1], hi=[0, 0, 0], value=3}} : i64[5, 3, 4]
  %2 = {op} {operands} : bool[5, 3, 4]
  return %2
}}"
            ));
        }
    }
}
