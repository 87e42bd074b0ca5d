//! What a call would take, without running it.

use super::support::Place;

const LAYER: &str = "graph @layer(%x: f32[n,1024], %w: f32[1024,512]) where n in 1..=4096 {
  %0 = einsum %x, %w {ab,bc->ac} : f32[n,512]
  %1 = exp %0 : f32[n,512]
  return %1 as y
}
";

const STEPS: &str = "graph @steps(%x: f32[256]) {
  %0 = loop %x {trip=10, carried=1, slices=[], stacks=[]} body @inner(%i: i64[], %v: f32[256]) {
    %0 = sin %v : f32[256]
    return %0
  } : (f32[256])
  %1 = project %0 {result=0} : f32[256]
  return %1 as y
}
";

#[test]
fn a_plan_has_steps_memory_and_a_time() {
    let p = Place::new();
    p.write("layer.tlir", LAYER);
    let ran = p.run(&["plan", "layer.tlir", "--set", "n=512"]).code(0);
    // 512 x 1024 and 1024 x 512 floats come in, 512 x 512 go out.
    let memory = "host   inputs 4.0 MiB + outputs 1.0 MiB + scratch ";
    assert!(ran.out.contains(memory), "{}", ran.out);
    assert!(ran.out.contains("1 launch, 1 library product"), "{}", ran.out);
}

/// Scratch of kernels and products included.
#[test]
fn a_plan_counts_the_memory_that_a_run_asks_for() {
    let p = Place::new();
    let products = "graph @f(%x: f32[256], %z: f32[256]) {
      %0 = einsum %x, %z {a,b->ab} : f32[256,256]
      %1 = exp %0 : f32[256,256]
      %2 = einsum %1, %0 {ab,bc->ac} : f32[256,256]
      %3 = sin %2 : f32[256,256]
      %4 = einsum %3, %2 {ab,bc->ac} : f32[256,256]
      %5 = reduce add %4 {axes=[0]} : f32[256]
      return %2 as y, %5 as s
    }";
    p.write("products.tlir", products);
    p.write("steps.tlir", STEPS);
    for (file, limit, inputs) in [("products.tlir", "4K", &["x", "z"][..]), ("steps.tlir", "1K", &["x"])] {
        for threads in ["1", "2"] {
            let mut args = vec!["--max-memory", limit, "--threads", threads];
            let planned = p.run(&[&["plan", file][..], &args].concat()).code(5);
            let given: Vec<String> = inputs.iter().map(|i| format!("{i}=random")).collect();
            for input in &given {
                args.extend(["--input", input]);
            }
            let ran = p
                .run(&[&["run", file, "--output-dir", "o"][..], &args].concat())
                .code(5);
            let found = |text: &str| text.split("found ").nth(1).map(str::to_string);
            assert!(found(&planned.err).is_some(), "{}", planned.err);
            assert_eq!(found(&planned.err), found(&ran.err), "{file}, {threads} threads");
        }
    }
}

#[test]
fn a_plan_for_a_gpu_counts_transfers() {
    let p = Place::new();
    p.write("layer.tlir", LAYER);
    let ran = p
        .run(&[
            "plan",
            "layer.tlir",
            "--set",
            "n=512",
            "--device",
            "cuda",
            "--format",
            "json",
        ])
        .code(0);
    let json = ran.json();
    assert_eq!(json["counts"]["transfers"], 3);
    assert_eq!(
        json["counts"]["transferred_bytes"],
        (512 * 1024 + 1024 * 512 + 512 * 512) * 4
    );
    assert_eq!(json["memory"][1]["device"], "gpu 1");
    let steps = json["steps"].as_array().expect("a list");
    let end = |step: &serde_json::Value| step["start_ns"].as_f64().unwrap() + step["ns"].as_f64().unwrap();
    for step in steps {
        for wait in step["waits"].as_array().expect("a list") {
            let before = &steps[wait.as_u64().unwrap() as usize];
            assert!(end(before) <= step["start_ns"].as_f64().unwrap() + 1e-6, "{step}");
        }
    }
    let last = steps.iter().map(end).fold(0.0, f64::max);
    assert!((last - json["predicted_ns"].as_f64().unwrap()).abs() < 1e-3);
}

#[test]
fn a_loop_counts_all_its_iterations() {
    let p = Place::new();
    p.write("steps.tlir", STEPS);
    let json = p.run(&["plan", "steps.tlir", "--format", "json"]).code(0).json();
    assert_eq!(json["counts"]["iterations"], 10);
    assert_eq!(json["counts"]["launches"], 10);
    assert_eq!(json["counts"]["exact"], true);
}

#[test]
fn an_open_size_is_an_error_that_says_which() {
    let p = Place::new();
    p.write("layer.tlir", LAYER);
    let ran = p.run(&["plan", "layer.tlir"]).code(2);
    let expected = "error: layer.tlir: the size `n` is open; expected a value for it, as in --set n=1";
    assert_eq!(ran.first_error(), expected);
    p.run(&["plan", "layer.tlir", "--set", "n=5000"]).code(2);
    p.run(&["plan", "missing.tlir"]).code(3);
}

#[test]
fn a_grid_beyond_every_device_is_an_error() {
    let p = Place::new();
    p.write(
        "long.tlir",
        "graph @long(%x: i8[n,4096]) {\n  %0 = neg %x : i8[n,4096]\n  return %0 as y\n}\n",
    );
    let cuda = |n: &str| p.run(&["plan", "long.tlir", "--device", "cuda", "--set", n]);
    cuda("n=1000000").code(0);
    let ran = cuda("n=2147483648").code(5);
    assert!(
        ran.err.contains("which is beyond the 2147483647 of any device"),
        "{}",
        ran.err
    );
}

/// As `run` refuses it.
#[test]
fn a_plan_that_cannot_be_so_small_is_refused() {
    let p = Place::new();
    p.write("layer.tlir", LAYER);
    let plan = |limit: &str, device: &str| {
        let sizes = ["--set", "n=512", "--max-memory", limit, "--device", device];
        p.run(&[&["plan", "layer.tlir"][..], &sizes].concat())
    };
    for device in ["cpu", "cuda"] {
        plan("8MiB", device).code(0);
        // 512 x 1024 and 1024 x 512 floats come in, 512 x 512 go out.
        let refused = plan("4MiB", device).code(5);
        assert!(
            refused.err.contains("expected at most 4.0 MiB, as --max-memory says"),
            "{}",
            refused.err
        );
        assert!(refused.out.is_empty(), "{}", refused.out);
    }
}
