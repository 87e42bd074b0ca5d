//! Loops and host functions on the command line.

use crate::support::Place;

const MODEL: &str = "graph @running(%x: f32[n, 4], %h: f32[4]) where n in 1..=64 {
  %0 = loop %h, %x {trip=n, carried=1, slices=[0], stacks=[0 reverse]} body @step(%i: i64[], %h: f32[4], %x: f32[4]) {
    %0 = add %h, %x : f32[4]
    return %0, %0
  } : (f32[4], f32[n, 4])
  %1 = project %0 {result=1} : f32[n, 4]
  %2 = call sort %1 {axis=1, count=2, descending} : (f32[n, 2], i64[n, 2])
  %3 = project %2 {result=1} : i64[n, 2]
  return %1 as sums, %3 as largest
}
";

fn place() -> Place {
    let p = Place::new();
    p.write("m.tlir", MODEL);
    p
}

#[test]
fn every_command_knows_loops_and_calls() {
    let p = place();
    p.run(&["check", "m.tlir"]).code(0);
    p.run(&["fmt", "--check", "m.tlir"]).code(0);
    let plan = p.run(&["emit", "m.tlir", "--what", "plan"]).code(0).out;
    assert!(
        plan.contains("loop trip n") && plan.contains("call sort axis 1"),
        "{plan}"
    );
    p.write("plan.tlir", &plan);
    p.run(&["check", "plan.tlir"]).code(0);
    p.run(&["fmt", "--check", "plan.tlir"]).code(0);
    for what in ["graph", "clusters", "kernel", "dot", "clif"] {
        p.run(&["emit", "m.tlir", "--what", what]).code(0);
    }
    let explained = p.run(&["explain", "m.tlir"]).code(0).out;
    assert!(explained.contains("once for each iteration"), "{explained}");
    let profiled = p
        .run(&["profile", "m.tlir", "--set", "n=8", "--time", "0.02"])
        .code(0)
        .out;
    assert!(profiled.contains("loop of"), "{profiled}");
    // The kernels of a loop's body are those of the program.
    let kernels = p.run(&["emit", "m.tlir", "--what", "cuda"]).code(0).out;
    assert!(kernels.contains("__global__"), "{kernels}");
}

#[test]
fn sizes_of_a_loop_can_be_set_and_a_body_s_errors_have_places() {
    let p = place();
    let run = [
        "run", "m.tlir", "--input", "x=ones", "--input", "h=zeros", "--set", "n=3",
    ];
    let out = p.run(&run).code(0).out;
    assert!(
        out.contains("sums: f32[3, 4]") && out.contains("largest: i64[3, 2]"),
        "{out}"
    );
    p.write("wrong.tlir", MODEL.replace("add %h, %x", "add %h, %nothing"));
    let ran = p.run(&["check", "wrong.tlir"]).code(1);
    assert!(ran.first_error().starts_with("error: wrong.tlir:3:"), "{}", ran.err);
    p.write("grows.tlir", MODEL.replace("return %0, %0", "return %i, %0"));
    let ran = p.run(&["check", "grows.tlir"]).code(1);
    assert!(
        ran.first_error().contains("carried value 0 becomes i64[]"),
        "{}",
        ran.err
    );
}
