//! Decisions that are wrong on purpose: each is found by `tlc::verify`, named, and shown by a small graph.
//!
//! The compiler has the faults under a feature of `tlc-passes` that only tests ask for. `TLC_FAULT=NAME` runs one and prints what was found. The table is printed with `--nocapture`.

use std::time::Duration;

use tlc::CompileOptions;
use tlc::verify::{Budget, Case, guilty, reduce, verify};
use tlc_ir::graph::verify::verify as verify_graph;
use tlc_ir::text::parse_graph;
use tlc_ir::{HostTensor, NodeKind};
use tlc_passes::faults::{Fault, seed};

/// What a fault does, where it shows, and what is to be said about it.
struct Expected {
    fault: Fault,
    /// A graph that it spoils, in company that it does not.
    graph: &'static str,
    /// Who is guilty.
    stage: &'static str,
    /// What the decision names.
    decision: &'static [&'static str],
    /// What its reason says.
    reason: &'static str,
    /// The most operations that the smallest graph may have, inputs and constants apart.
    operations: usize,
}

const ELEMENTWISE: &str = "graph @g(%a: f32[8, 16], %b: f32[8, 16]) {
  %0 = const 1.0 : f32[]
  %1 = expand %0 : f32[8, 16]
  %2 = mul %a, %b : f32[8, 16]
  %3 = add %2, %1 : f32[8, 16]
  %4 = neg %3 : f32[8, 16]
  %5 = tanh %4 : f32[8, 16]
  %6 = sub %5, %a : f32[8, 16]
  %7 = sub %a, %5 : f32[8, 16]
  %8 = mul %6, %7 : f32[8, 16]
  %9 = max %8, %b : f32[8, 16]
  %10 = reduce add %9 {axes=[1]} : f32[8]
  return %9 as y, %8 as z, %10 as total
}";

const VIEWS: &str = "graph @g(%x: f32[4, 4, 4], %y: f32[4, 4, 4]) {
  %0 = mul %x, %y : f32[4, 4, 4]
  %1 = permute %0 {axes=[1, 0, 2]} : f32[4, 4, 4]
  %2 = permute %1 {axes=[0, 2, 1]} : f32[4, 4, 4]
  %3 = slice %y {start=[0, 3, 0], step=[1, -1, 1]} : f32[4, 4, 4]
  %4 = add %2, %3 : f32[4, 4, 4]
  %5 = exp %4 : f32[4, 4, 4]
  return %5 as z
}";

const TURNED: &str = "graph @g(%x: f32[80, 64], %w: f32[64, 96], %b: f32[96, 80]) {
  %0 = einsum %x, %w {ab,bc->ac} : f32[80, 96]
  %1 = tanh %0 : f32[80, 96]
  %2 = permute %1 {axes=[1, 0]} : f32[96, 80]
  %3 = add %2, %b : f32[96, 80]
  %4 = exp %3 : f32[96, 80]
  return %4 as y
}";

const SOFTMAX: &str = "graph @g(%x: f32[32, 70], %w: f32[70]) {
  %0 = expand %w : f32[32, 70]
  %1 = mul %x, %0 : f32[32, 70]
  %2 = reduce max %1 {axes=[1]} : f32[32]
  %3 = reshape %2 : f32[32, 1]
  %4 = expand %3 : f32[32, 70]
  %5 = sub %1, %4 : f32[32, 70]
  %6 = exp %5 : f32[32, 70]
  %7 = reduce add %6 {axes=[1]} : f32[32]
  %8 = reshape %7 : f32[32, 1]
  %9 = expand %8 : f32[32, 70]
  %10 = div %6, %9 : f32[32, 70]
  return %10 as y
}";

const PRODUCTS: &str = "graph @g(%a: f32[64, 64], %b: f32[64, 64], %c: f32[64, 64]) {
  %0 = permute %a {axes=[1, 0]} : f32[64, 64]
  %1 = einsum %0, %b {ab,bc->ac} : f32[64, 64]
  %2 = tanh %1 : f32[64, 64]
  %3 = einsum %2, %c {ab,bc->ac} : f32[64, 64]
  %4 = add %3, %a : f32[64, 64]
  return %4 as y
}";

const THREE: &str = "graph @g(%a: f32[12, 20], %b: f32[20, 8], %c: f32[8, 12], %d: f32[12, 12]) {
  %0 = einsum %a, %b, %c {ij,jk,kl->il} : f32[12, 12]
  %1 = sub %0, %d : f32[12, 12]
  return %1 as y
}";

const CONSTANTS: &str = "graph @g(%x: f32[4]) {
  %0 = const 2.5 : f32[]
  %1 = const 4.0 : f32[]
  %2 = mul %0, %1 : f32[]
  %3 = expand %2 : f32[4]
  %4 = mul %x, %3 : f32[4]
  %5 = abs %4 : f32[4]
  return %5 as y
}";

const LONG_SUM: &str = "graph @g(%x: f32[200000]) {
  %0 = abs %x : f32[200000]
  %1 = reduce add %0 {axes=[0]} : f32[]
  %2 = sqrt %1 : f32[]
  return %2 as norm
}";

/// Rows, columns and the sum are two axes each, apart from each other in both operands: one of them is packed.
const TWO_WOUND: &str = "graph @g(%x: f32[16, 4, 16, 4], %w: f32[4, 16, 4, 16]) {
  %0 = einsum %x, %w {aibj,icjd->abcd} : f32[16, 16, 16, 16]
  %1 = tanh %0 : f32[16, 16, 16, 16]
  return %1 as y
}";

const REVERSED_SUMS: &str = "graph @g(%x: f32[64, 40], %y: f32[64]) {
  %0 = exp %x : f32[64, 40]
  %1 = reduce add %0 {axes=[1]} : f32[64]
  %2 = slice %1 {start=[63], step=[-1]} : f32[64]
  %3 = mul %2, %y : f32[64]
  %4 = tanh %3 : f32[64]
  return %4 as z
}";

const SIBLINGS: &str = "graph @g(%x: f32[40, 64], %w: f32[64, 64]) {
  %0 = exp %x : f32[40, 64]
  %1 = reduce add %0 {axes=[1]} : f32[40]
  %2 = reshape %1 : f32[40, 1]
  %3 = expand %2 : f32[40, 64]
  %4 = div %0, %3 : f32[40, 64]
  %5 = einsum %4, %w {ab,bc->ac} : f32[40, 64]
  %6 = tanh %5 : f32[40, 64]
  return %6 as y, %1 as sums
}";

const CHAIN: &str = "graph @g(%x: f32[64, 64], %a: f32[64, 64], %b: f32[64, 64]) {
  %0 = einsum %x, %a {ab,bc->ac} : f32[64, 64]
  %1 = tanh %0 : f32[64, 64]
  %2 = einsum %1, %b {ab,bc->ac} : f32[64, 64]
  %3 = einsum %2, %a {ab,bc->ac} : f32[64, 64]
  %4 = add %3, %1 : f32[64, 64]
  %5 = einsum %4, %b {ab,bc->ac} : f32[64, 64]
  return %5 as y
}";

const RESIDUAL: &str = "graph @g(%x: f32[64, 64], %a: f32[64, 64], %b: f32[64, 64]) {
  %0 = einsum %x, %a {ab,bc->ac} : f32[64, 64]
  %1 = tanh %0 : f32[64, 64]
  %2 = einsum %1, %b {ab,bc->ac} : f32[64, 64]
  %3 = add %2, %0 : f32[64, 64]
  %4 = einsum %3, %b {ab,bc->ac} : f32[64, 64]
  return %4 as y
}";

const SMALL_LAUNCHES: &str = "graph @g(%x: f32[16, 16], %y: f32[16, 16]) {
  %0 = scan add %x {axis=1} : f32[16, 16]
  %1 = permute %0 {axes=[1, 0]} : f32[16, 16]
  %2 = scan add %1 {axis=1} : f32[16, 16]
  %3 = mul %2, %y : f32[16, 16]
  return %3 as z
}";

const STATE: &str = "graph @g(%m: f32[80, 80], %x: f32[80, 80]) {
  %0 = permute %m {axes=[1, 0]} : f32[80, 80]
  %1 = mul %0, %x : f32[80, 80]
  %2 = add %1, %m : f32[80, 80]
  return %2 as m
}";

const WEIGHTS: &str = "graph @g(%x: f32[8, 90]) {
  %0 = iota {axis=1} : f32[90, 90]
  %1 = sin %0 : f32[90, 90]
  %2 = einsum %x, %1 {ab,bc->ac} : f32[8, 90]
  %3 = tanh %2 : f32[8, 90]
  return %3 as y
}";

#[rustfmt::skip]
const ALL: [Expected; 31] = [
    Expected { fault: Fault::AdditionOfOneIsNothing, graph: ELEMENTWISE, stage: "pass canonicalize", decision: &["= add"], reason: "", operations: 2 },
    Expected { fault: Fault::NegationIsNothing, graph: ELEMENTWISE, stage: "pass canonicalize", decision: &["= neg"], reason: "", operations: 1 },
    Expected { fault: Fault::PermutationsComposedBackwards, graph: VIEWS, stage: "pass canonicalize", decision: &["= permute"], reason: "", operations: 2 },
    Expected { fault: Fault::ReversalIsTrivial, graph: VIEWS, stage: "pass canonicalize", decision: &["= slice"], reason: "", operations: 1 },
    Expected { fault: Fault::PanicOnMaximum, graph: ELEMENTWISE, stage: "pass canonicalize", decision: &["= max", "it fails"], reason: "", operations: 1 },
    Expected { fault: Fault::FoldedConstantIsOff, graph: CONSTANTS, stage: "pass fold", decision: &["= mul"], reason: "", operations: 1 },
    Expected { fault: Fault::SubtractionCommutes, graph: ELEMENTWISE, stage: "pass cse", decision: &["= sub"], reason: "", operations: 2 },
    Expected { fault: Fault::OutputsSwapped, graph: ELEMENTWISE, stage: "pass dce", decision: &["outputs"], reason: "", operations: 2 },
    Expected { fault: Fault::LabelsNotPermuted, graph: PRODUCTS, stage: "pass sink-layout", decision: &["= einsum"], reason: "", operations: 2 },
    Expected { fault: Fault::ContractionTransposed, graph: THREE, stage: "pass einsum-path", decision: &["= einsum"], reason: "contraction order", operations: 1 },
    Expected { fault: Fault::SecondStageIsMaximum, graph: LONG_SUM, stage: "pass split-reduce", decision: &["= reduce"], reason: "", operations: 1 },
    Expected { fault: Fault::PackedInAnotherOrder, graph: TWO_WOUND, stage: "pass pack", decision: &["= einsum"], reason: "", operations: 3 },
    Expected { fault: Fault::FusedAtOtherIndices, graph: REVERSED_SUMS, stage: "fusion", decision: &["reduce add", "share a kernel"], reason: "", operations: 3 },
    Expected { fault: Fault::FusedExtentIsShort, graph: SOFTMAX, stage: "fusion", decision: &["share a kernel"], reason: "row-local", operations: 5 },
    Expected { fault: Fault::StoredValueForgotten, graph: SIBLINGS, stage: "fusion", decision: &["share a kernel"], reason: "row-local", operations: 7 },
    Expected { fault: Fault::ProductTransposed, graph: PRODUCTS, stage: "matrix product", decision: &["einsum"], reason: "", operations: 1 },
    Expected { fault: Fault::EpilogueOfOtherLines, graph: TURNED, stage: "product epilogue", decision: &["as its lines are complete"], reason: "behind the matrix product", operations: 3 },
    Expected { fault: Fault::SumBeginsAtOne, graph: SOFTMAX, stage: "lowering", decision: &["reduce add"], reason: "", operations: 1 },
    Expected { fault: Fault::StagedValueElsewhere, graph: SOFTMAX, stage: "schedule", decision: &["keep", "reduce"], reason: "phases", operations: 8 },
    Expected { fault: Fault::SplitDropsTail, graph: SOFTMAX, stage: "schedule", decision: &["split"], reason: "", operations: 1 },
    Expected { fault: Fault::AccumulatorLost, graph: SOFTMAX, stage: "schedule", decision: &["rfactor i"], reason: "vectors", operations: 1 },
    Expected { fault: Fault::ExponentialCoefficient, graph: SOFTMAX, stage: "legalization", decision: &["exp"], reason: "", operations: 1 },
    Expected { fault: Fault::MaximumIsMinimum, graph: SOFTMAX, stage: "legalization", decision: &["accumulate max"], reason: "", operations: 1 },
    Expected { fault: Fault::AliasOfLiveValue, graph: RESIDUAL, stage: "alias", decision: &["takes the bytes of"], reason: "in place", operations: 5 },
    Expected { fault: Fault::AliasNotInPlace, graph: CHAIN, stage: "alias", decision: &["takes the bytes of"], reason: "in place", operations: 4 },
    Expected { fault: Fault::ArenaOverlaps, graph: CHAIN, stage: "placement", decision: &["both in use"], reason: "", operations: 4 },
    Expected { fault: Fault::GroupedWithProducer, graph: SMALL_LAUNCHES, stage: "grouping", decision: &["side by side"], reason: "fork-join", operations: 3 },
    Expected { fault: Fault::WrongDonation, graph: STATE, stage: "donation", decision: &["bytes of input"], reason: "gives", operations: 3 },
    Expected { fault: Fault::CodeSubtractsBackwards, graph: ELEMENTWISE, stage: "machine code", decision: &["the kernel that computes"], reason: "", operations: 1 },
    Expected { fault: Fault::CodeDropsLastIteration, graph: SOFTMAX, stage: "machine code", decision: &["kernel"], reason: "", operations: 1 },
    Expected { fault: Fault::InitDropsLastIteration, graph: WEIGHTS, stage: "machine code", decision: &["the kernel that computes"], reason: "", operations: 3 },
];

fn case(text: &str) -> Case {
    let graph = parse_graph(text, &mut tlc_ir::text::no_data).unwrap_or_else(|e| panic!("{e:?} in {text}"));
    let input = |&id: &tlc_ir::NodeId| -> HostTensor {
        let ty = graph.ty(id);
        let NodeKind::Input { name, .. } = &graph.node(id).kind else {
            unreachable!("an input")
        };
        let shape = ty.const_shape().expect("fixed sizes");
        tlc::verify::data::random(name, ty.dtype, &shape, 7).expect("a small tensor")
    };
    Case {
        inputs: graph.inputs().iter().map(input).collect(),
        graph,
        symbols: vec![],
    }
}

fn operations(case: &Case) -> usize {
    let leaf = |k: &NodeKind| matches!(k, NodeKind::Input { .. } | NodeKind::Const(_) | NodeKind::Data(_));
    case.graph.nodes().filter(|(_, n)| !leaf(&n.kind)).count()
}

/// Seeds a fault and follows it; returns a row of the table, and what is not as expected.
fn follow(expected: &Expected) -> (String, Vec<String>) {
    let case = case(expected.graph);
    let options = CompileOptions {
        threads: Some(1),
        ..CompileOptions::default()
    };
    let clean = verify(&case, &options).expect("the interpreter runs it");
    let mut wrong = Vec::new();
    if !clean.is_right() {
        wrong.push(format!("without a fault: {}", clean.findings[0]));
    }
    let _seeded = seed(expected.fault);
    let report = verify(&case, &options).expect("the interpreter runs it");
    let Some(first) = report.findings.first().cloned() else {
        wrong.push("not caught".into());
        return (format!("{:?} | - | not caught |", expected.fault), wrong);
    };
    let budget = Budget {
        time: Duration::from_secs(30),
        ..Budget::default()
    };
    let mut fails = |case: &Case| {
        let report = verify(case, &options);
        report.is_ok_and(|r| r.findings.first().is_some_and(|f| f.is_like(&first)))
    };
    let smallest = reduce(&case, budget, &mut fails);
    if !verify_graph(&smallest.graph).is_empty() || !fails(&smallest) {
        wrong.push("what the reduction answers does not fail, or is no graph".into());
    }
    let left = operations(&smallest);
    if left > expected.operations {
        wrong.push(format!("{left} operations are left, expected {}", expected.operations));
    }
    let Some(guilty) = guilty::find(&smallest, &options) else {
        wrong.push("nobody is guilty".into());
        return (format!("{:?} | {first} | - | {left}", expected.fault), wrong);
    };
    if !guilty.stage.to_string().starts_with(expected.stage) {
        wrong.push(format!("`{}` is guilty, expected `{}`", guilty.stage, expected.stage));
    }
    for part in expected.decision {
        if !guilty.decision.contains(part) {
            wrong.push(format!(
                "the decision is `{}`, expected `{part}` in it",
                guilty.decision
            ));
        }
    }
    if !guilty.reason.contains(expected.reason) {
        wrong.push(format!(
            "the reason is `{}`, expected `{}` in it",
            guilty.reason, expected.reason
        ));
    }
    if std::env::var("TLC_FAULT").is_ok() {
        println!(
            "{first}\n{guilty}\n  {}\n{}",
            guilty.effect,
            guilty::graph_text(&smallest.graph)
        );
    }
    let first: String = first.to_string().chars().take(60).collect();
    (format!("{:?} | {first} | {guilty} | {left}", expected.fault), wrong)
}

#[test]
fn every_seeded_fault_is_caught_and_its_decision_named() {
    let mut wrong = Vec::new();
    let only = std::env::var("TLC_FAULT").ok();
    println!("fault | what is found | guilty | operations left");
    for expected in &ALL {
        let name = format!("{:?}", expected.fault);
        if only.as_ref().is_some_and(|o| *o != name) {
            continue;
        }
        let (row, problems) = follow(expected);
        println!("{row}");
        wrong.extend(problems.into_iter().map(|p| format!("{name}: {p}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_fault_has_its_case() {
    let listed: Vec<Fault> = ALL.iter().map(|e| e.fault).collect();
    assert_eq!(listed, Fault::ALL);
}

/// Runs the command line with a fault in it; returns the exit code and what it printed.
fn tlc(fault: Fault, dir: &std::path::Path, args: &[&str]) -> (Option<i32>, String, String) {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_tlc"))
        .args(args)
        .current_dir(dir)
        .env("TLC_SEEDED_FAULT", format!("{fault:?}"))
        .env_remove("RUST_BACKTRACE")
        .output()
        .expect("the binary runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn the_command_line_names_the_decision_and_writes_the_smallest_graph() {
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let path = dir.path();
    std::fs::write(path.join("m.tlir"), SOFTMAX).unwrap();
    let fault = Fault::ExponentialCoefficient;
    let (code, out, err) = tlc(fault, path, &["verify", "m.tlir"]);
    assert_eq!(code, Some(1), "{out}{err}");
    assert!(out.starts_with("wrong: step 0: "), "{out}");
    assert!(out.contains("guilty: legalization: "), "{out}");
    assert!(
        err.starts_with("error: m.tlir: the compiled graph is wrong: step 0"),
        "{err}"
    );
    let written = std::fs::read_to_string(path.join("m.reduced.tlir")).expect("the smallest graph");
    assert!(
        written.starts_with("// wrong: ") && written.contains("exp %"),
        "{written}"
    );
    let graph = parse_graph(&written, &mut tlc_ir::text::no_data).expect("a graph");
    assert!(graph.len() <= 3, "{written}");
    // It fails by itself, and so does what `reduce` prints.
    let (code, _, _) = tlc(fault, path, &["verify", "m.reduced.tlir", "--no-reduce"]);
    assert_eq!(code, Some(1));
    let (code, out, _) = tlc(fault, path, &["reduce", "m.tlir"]);
    assert_eq!((code, out.contains("exp %")), (Some(0), true), "{out}");
    let (code, out, _) = tlc(
        fault,
        path,
        &["verify", "m.tlir", "--format", "json", "-o", "small.tlir"],
    );
    let json: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((code, json["right"].as_bool()), (Some(1), Some(false)));
    assert_eq!(json["guilty"]["stage"], "legalization");
    assert_eq!(json["reduced"]["file"], "small.tlir");
}

#[test]
fn what_a_verifier_refuses_never_runs_and_its_graph_is_kept() {
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let path = dir.path();
    std::fs::write(path.join("m.tlir"), SIBLINGS).unwrap();
    let fault = Fault::StoredValueForgotten;
    let (code, out, err) = tlc(
        fault,
        path,
        &["run", "m.tlir", "--input", "x=ones", "--input", "w=ones"],
    );
    assert_eq!(code, Some(70), "{out}{err}");
    let first = err.lines().next().unwrap_or_default();
    assert!(
        first.starts_with("error: m.tlir: a bug in tlc: the plan is not valid: step "),
        "{err}"
    );
    let command = "the graph is in m.bug.tlir, and `tlc reduce m.bug.tlir` makes it smaller";
    assert!(first.ends_with(command), "{err}");
    // Nothing ran, and nothing but the graph is left.
    assert_eq!(out, "");
    let kept = std::fs::read_to_string(path.join("m.bug.tlir")).expect("the graph");
    let graph = parse_graph(&kept, &mut tlc_ir::text::no_data).expect("a graph");
    assert_eq!(graph.to_string(), case(SIBLINGS).graph.to_string());
    assert_eq!(std::fs::read_dir(path).expect("a folder").count(), 2);
    let (code, out, err) = tlc(fault, path, &["reduce", "m.bug.tlir"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.starts_with("// wrong: the plan is not valid: "), "{out}");
    let for_gpu = [
        "emit", "--what", "plan", "--device", "cuda", "--arch", "sm_80", "m.tlir",
    ];
    let (code, _, err) = tlc(fault, path, &for_gpu);
    assert_eq!(code, Some(70), "{err}");
    assert!(
        err.contains("`tlc reduce --device cuda m.bug.tlir` makes it smaller"),
        "{err}"
    );
}

#[test]
fn inputs_that_matter_are_written_beside_the_graph() {
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let path = dir.path();
    // Only numbers beyond 1 show it: random ones do not reach that far.
    let text = "graph @g(%x: f32[8]) {
  %0 = const 1.0 : f32[]
  %1 = expand %0 : f32[8]
  %2 = max %x, %1 : f32[8]
  %3 = sub %2, %1 : f32[8]
  return %3 as y
}";
    std::fs::write(path.join("m.tlir"), text).unwrap();
    let x = HostTensor::from_slice(&[8], &[0.5f32, 0.25, 0.0, 3.5, 0.5, 0.0, 0.0, 0.0]).unwrap();
    let mut bytes = Vec::new();
    tlc_formats::npy::write(&x, &mut bytes).unwrap();
    std::fs::write(path.join("x.npy"), bytes).unwrap();
    let (code, out, _) = tlc(
        Fault::CodeSubtractsBackwards,
        path,
        &["verify", "m.tlir", "-i", "x=x.npy", "-o", "small.tlir"],
    );
    assert_eq!(code, Some(1), "{out}");
    let again = out.lines().last().unwrap_or_default().to_string();
    let arguments: Vec<&str> = again.split("tlc ").nth(1).unwrap_or_default().split(' ').collect();
    let arguments: Vec<String> = arguments.iter().map(|a| a.trim_matches('\'').to_string()).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (code, _, _) = tlc(
        Fault::CodeSubtractsBackwards,
        path,
        &[&arguments[..], &["--no-reduce"]].concat(),
    );
    assert_eq!(code, Some(1), "{again}");
}

/// Kernels among which one crashes, and a product between them.
const ROOTS: &str = "graph @g(%x: f32[24, 32], %w: f32[32, 16]) {
  %0 = exp %x : f32[24, 32]
  %1 = einsum %0, %w {ab,bc->ac} : f32[24, 16]
  %2 = reduce add %0 {axes=[1]} : f32[24]
  %3 = sqrt %2 : f32[24]
  %4 = reshape %3 : f32[24, 1]
  %5 = expand %4 : f32[24, 16]
  %6 = div %1, %5 : f32[24, 16]
  %7 = permute %6 {axes=[1, 0]} : f32[16, 24]
  %8 = einsum %7, %0 {ab,bc->ac} : f32[16, 32]
  %9 = tanh %8 : f32[16, 32]
  return %9 as y, %3 as roots
}";

#[cfg(unix)]
#[test]
fn code_that_crashes_is_a_finding_that_names_its_kernel() {
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let path = dir.path();
    std::fs::write(path.join("m.tlir"), ROOTS).unwrap();
    let fault = Fault::CodeReadsFarAway;
    let (code, out, err) = tlc(fault, path, &["verify", "m.tlir"]);
    assert_eq!(code, Some(1), "{out}{err}");
    assert!(out.starts_with("wrong: crashed: SIGSEGV in step "), "{out}");
    let first = out.lines().next().unwrap_or_default();
    assert!(first.contains("kernel ") && first.contains("sqrt"), "{out}");
    assert!(
        out.contains("guilty: machine code: step 0, kernel 0 (sqrt), which writes "),
        "{out}"
    );
    assert!(
        err.starts_with("error: m.tlir: the compiled graph is wrong: crashed"),
        "{err}"
    );
    let written = std::fs::read_to_string(path.join("m.reduced.tlir")).expect("the smallest graph");
    let graph = parse_graph(&written, &mut tlc_ir::text::no_data).expect("a graph");
    assert!(written.contains(" = sqrt ") && graph.len() <= 2, "{written}");
    let (code, out, _) = tlc(
        fault,
        path,
        &["verify", "m.reduced.tlir", "--no-reduce", "--format", "json"],
    );
    let json: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(
        (code, &json["findings"][0]["kind"]),
        (Some(1), &"crashed".into()),
        "{out}"
    );
    let (code, out, err) = tlc(fault, path, &["reduce", "m.tlir"]);
    assert_eq!((code, out.contains(" = sqrt ")), (Some(0), true), "{out}{err}");
    // What is read once is not reduced, but named.
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_tlc"))
        .args(["verify", "-"])
        .env("TLC_SEEDED_FAULT", format!("{fault:?}"))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut stdin = child.stdin.take().expect("a pipe");
    std::io::Write::write_all(&mut stdin, ROOTS.as_bytes()).expect("it reads");
    drop(stdin);
    let ended = child.wait_with_output().expect("it ends");
    let err = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(1), "{err}");
    assert!(
        err.starts_with("error: <stdin>: the compiled graph is wrong: crashed: SIGSEGV"),
        "{err}"
    );
    let out = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(out.starts_with("wrong: crashed: SIGSEGV in step "), "{out}");
    // Nothing is left behind of the process of its own.
    let without = std::fs::read_dir(path).expect("a folder").count();
    assert_eq!(without, 2, "the model and the smallest graph");
}

/// Layers that a fault spoils at one place only.
fn long_case(layers: usize) -> Case {
    let g = tlc::Graph::new("layers");
    let mut x = g.input("x", tlc::DType::F32, [24, 32]);
    for layer in 0..layers {
        let w = g.input(&format!("w{layer}"), tlc::DType::F32, [32, 32]);
        let h = x.matmul(&w);
        let h = match layer == layers / 2 {
            true => (-(h.max(tlc::keep(-1)) - &h)).exp(),
            false => h.tanh(),
        };
        x = &x + &(&h * 0.25);
    }
    g.output("y", &x);
    let graph = g.finish().expect("a graph");
    let text = guilty::graph_text(&graph);
    case(&text)
}

#[test]
fn a_fault_deep_in_a_long_graph_is_shown_by_a_small_one() {
    let case = long_case(24);
    let options = CompileOptions {
        threads: Some(1),
        ..CompileOptions::default()
    };
    assert!(verify(&case, &options).expect("the interpreter runs it").is_right());
    // A wrong kernel and a wrong rewrite: neither is lost in the bounds of the layers behind it.
    for (fault, who) in [
        (Fault::ExponentialCoefficient, "legalization: exp"),
        (Fault::NegationIsNothing, "pass canonicalize: "),
    ] {
        let _seeded = seed(fault);
        let report = verify(&case, &options).expect("the interpreter runs it");
        let first = report.findings.first().cloned().expect("a finding");
        let mut tests = 0;
        let smallest = reduce(&case, Budget::default(), &mut |c| {
            tests += 1;
            let report = verify(c, &options);
            report.is_ok_and(|r| r.findings.first().is_some_and(|f| f.is_like(&first)))
        });
        assert_eq!(operations(&smallest), 1, "{}", guilty::graph_text(&smallest.graph));
        assert!(tests < 200, "{fault:?}: {tests} cases were tried");
        let guilty = guilty::find(&smallest, &options).expect("someone is guilty");
        assert!(guilty.to_string().starts_with(who), "{guilty}");
    }
}
