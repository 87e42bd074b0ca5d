//! grad: models with derivatives, and what is refused.

use serde_json::{Value, json};
use tlc::HostTensor;

use crate::proto::*;
use crate::support::Place;

/// `y = x W + b`, and `s`, the sum of the squares of `x`; W of 24 elements.
fn layer() -> Vec<u8> {
    let nodes = vec![
        node("MatMul", "product", &["x", "W"], &["p"]),
        node("Add", "shift", &["p", "b"], &["y"]),
        node("Mul", "square", &["x", "x"], &["s"]),
        node("ArgMax", "most", &["y"], &["at"]),
    ];
    let w: Vec<f32> = (0..24).map(|i| i as f32 / 8.0 - 1.0).collect();
    let weights = vec![floats("W", &[6, 4], &w), floats("b", &[4], &[1.0, -2.0, 3.0, 0.5])];
    let ty = |name, n| value(name, FLOAT, &[D::Sym("batch"), D::N(n)]);
    let at = value("at", INT64, &[D::N(1), D::N(4)]);
    model(
        graph(nodes, weights, vec![ty("x", 6)], vec![ty("y", 4), ty("s", 6), at]),
        vec![],
    )
}

fn place() -> Place {
    let p = Place::new();
    p.write("m.onnx", layer());
    p.f32s(
        "x.npy",
        &[2, 6],
        &[0.5, 1.0, -1.0, 2.0, 0.0, 3.0, 1.0, 1.0, -2.0, 0.25, 4.0, -1.0],
    );
    p.f32s("dy.npy", &[2, 4], &[1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 2.0]);
    p
}

#[test]
fn a_model_with_its_derivatives() {
    let p = place();
    let ran = p
        .run(&["grad", "m.onnx", "--of", "y", "--wrt", "x,weights", "-o", "d.tlir"])
        .code(0);
    assert_eq!(ran.out, "");
    assert_eq!(ran.err, "wrote d.tlir\nwrote d.safetensors: 1 tensor, 96 B\n");
    let arguments = ["--input", "x=x.npy", "--input", "d.y=dy.npy", "-o", "out"];
    p.run(&[&["run", "d.tlir"], &arguments[..]].concat()).code(0);
    assert_eq!(
        p.list("out"),
        ["at.npy", "d.W.npy", "d.b.npy", "d.x.npy", "s.npy", "y.npy"]
    );
    let read = |name: &str| p.read(name).as_slice::<f32>().expect("f32").to_vec();
    // W has rows of four, from -1 in steps of 1/8: d.x is dy Wᵀ.
    let w = |i: usize, j: usize| (i * 4 + j) as f32 / 8.0 - 1.0;
    let dx: Vec<f32> = (0..6)
        .map(|i| w(i, 0))
        .chain((0..6).map(|i| w(i, 1) + 2.0 * w(i, 3)))
        .collect();
    assert_eq!(read("out/d.x.npy"), dx);
    assert_eq!(read("out/d.b.npy"), [1.0, 1.0, 0.0, 2.0]);
    let x = read("x.npy");
    let dw: Vec<f32> = (0..6).flat_map(|i| [x[i], x[6 + i], 0.0, 2.0 * x[6 + i]]).collect();
    assert_eq!(read("out/d.W.npy"), dw);

    // What was written is a model like any other: its derivatives have derivatives.
    let again = ["grad", "d.tlir", "--of", "d.x", "--wrt", "W", "-o", "dd.tlir"];
    let ran = p.run(&again).code(3);
    assert!(
        ran.first_error().contains(
            "the model has an output `d.W` already; expected that name to be free for a derivative, or another prefix"
        ),
        "{}",
        ran.err
    );
    p.run(&["grad", "m.onnx", "--of", "s", "--wrt", "x", "-o", "s.tlir"])
        .code(0);
    p.run(&["grad", "s.tlir", "--of", "d.x", "--wrt", "d.s", "-o", "dd.tlir"])
        .code(0);
    p.run(&["verify", "dd.tlir", "--set", "batch=3"]).code(0);
}

/// Second derivatives: those of what `grad` wrote, under another prefix. Of `f = Σ (x W + b)³` by `W`, with `y = x W + b`:
/// `d.W = xᵀ 3y²` and along `V` it changes by `xᵀ (6y * xV)`, for d.f = 1; by `x`, by `(6y * xV) Wᵀ + 3y² Vᵀ`.
#[test]
fn derivatives_have_derivatives_of_another_prefix() {
    let p = place();
    let nodes = vec![
        node("MatMul", "product", &["x", "W"], &["p"]),
        node("Add", "shift", &["p", "b"], &["y"]),
        node("Mul", "square", &["y", "y"], &["q"]),
        node("Mul", "cube", &["q", "y"], &["c"]),
        node("ReduceSum", "total", &["c"], &["f"]).message(5, int_attribute("keepdims", 0)),
    ];
    let w: Vec<f32> = (0..8).map(|i| i as f32 / 8.0 - 0.5).collect();
    let weights = vec![floats("W", &[4, 2], &w), floats("b", &[2], &[1.0, -2.0])];
    let x = value("x", FLOAT, &[D::Sym("batch"), D::N(4)]);
    p.write(
        "m.onnx",
        model(graph(nodes, weights, vec![x], vec![value("f", FLOAT, &[])]), vec![]),
    );
    let x: Vec<f32> = vec![0.5, 1.0, -1.0, 2.0, 0.0, 3.0, 1.0, -2.0];
    p.f32s("x.npy", &[2, 4], &x);
    p.f32s("one.npy", &[], &[1.0]);
    let v: Vec<f32> = vec![1.0, 0.5, -1.0, 0.0, 2.0, 0.25, -0.5, 1.0];
    p.f32s("v.npy", &[4, 2], &v);
    p.run(&["grad", "m.onnx", "--of", "f", "--wrt", "W,x", "-o", "d.tlir"])
        .code(0);
    let again = [
        "grad",
        "d.tlir",
        "--of",
        "d.W",
        "--wrt",
        "weights,x",
        "--freeze",
        "b",
        "--prefix",
    ];
    p.run(&[&again[..], &["d.", "-o", "dd.tlir"]].concat()).code(3);
    let ran = p.run(&[&again[..], &["", "-o", "dd.tlir"]].concat()).code(3);
    assert!(
        ran.first_error().contains("the prefix of derivatives is empty"),
        "{}",
        ran.err
    );
    p.run(&[&again[..], &["dd.", "-o", "dd.tlir"]].concat()).code(0);
    let arguments = [
        "--input",
        "x=x.npy",
        "--input",
        "d.f=one.npy",
        "--input",
        "dd.d.W=v.npy",
        "-o",
        "out",
    ];
    p.run(&[&["run", "dd.tlir"], &arguments[..]].concat()).code(0);
    assert_eq!(p.list("out"), ["d.W.npy", "d.x.npy", "dd.W.npy", "dd.x.npy", "f.npy"]);

    let times = |a: &[f32], b: &[f32], i: usize, j: usize| (0..4).map(|k| a[i * 4 + k] * b[k * 2 + j]).sum::<f32>();
    let y = |i: usize, j: usize| times(&x, &w, i, j) + [1.0, -2.0][j];
    let moved = |i: usize, j: usize| 6.0 * y(i, j) * times(&x, &v, i, j);
    let by_w: Vec<f32> = (0..8)
        .map(|at| (0..2).map(|i| x[i * 4 + at / 2] * moved(i, at % 2)).sum())
        .collect();
    let by_x = |i: usize, k: usize| -> f32 {
        (0..2)
            .map(|j| moved(i, j) * w[k * 2 + j] + 3.0 * y(i, j) * y(i, j) * v[k * 2 + j])
            .sum()
    };
    let by_x: Vec<f32> = (0..8).map(|at| by_x(at / 4, at % 4)).collect();
    for (name, expected) in [("dd.W", by_w), ("dd.x", by_x)] {
        let found = p.read(&format!("out/{name}.npy"));
        for (found, expected) in found.as_slice::<f32>().expect("f32").iter().zip(&expected) {
            assert!(
                (found - expected).abs() <= 1e-5 * expected.abs().max(1.0),
                "{name}: {found} {expected}"
            );
        }
    }
    // A line of a batch has a prefix, too.
    let case = json!({"id": 1, "model": "d.tlir", "output_dir": "batch",
        "inputs": {"x": "x.npy", "d.f": "one.npy", "dd.d.W": "v.npy"},
        "grad": {"of": ["d.W"], "wrt": ["W", "x"], "prefix": "dd."}});
    p.write("cases.jsonl", case.to_string());
    p.run(&["run", "--batch", "cases.jsonl"]).code(0);
    assert_eq!(p.list("batch"), p.list("out"));
}

#[test]
fn names_are_listed_and_frozen() {
    let p = place();
    let ran = p.run(&["grad", "m.onnx", "--wrt", "list"]).code(0);
    assert_eq!(
        ran.out,
        "input x: f32[batch, 6]\nweight W: f32[6, 4]\nweight b: f32[4]\n"
    );
    let listed = p
        .run(&["grad", "m.onnx", "--wrt", "list", "--format", "json"])
        .code(0)
        .json();
    assert_eq!(listed["weights"][0], json!({ "name": "W", "type": "f32[6, 4]" }));
    p.run(&[
        "grad", "m.onnx", "--of", "y", "--wrt", "weights", "--freeze", "W*", "-o", "d.tlir",
    ])
    .code(0);
    let text = std::fs::read_to_string(p.path("d.tlir")).expect("a text");
    assert!(text.contains("as \"d.b\"") || text.contains("as d.b"), "{text}");
    assert!(!text.contains("d.W"), "{text}");
    // What no output depends on is zeros, and said.
    let ran = p
        .run(&["grad", "m.onnx", "--of", "s", "--wrt", "x,b", "-o", "d.tlir"])
        .code(0);
    let note = "note: m.onnx: no output that is differentiated depends on `b`; its derivative is zeros\n";
    assert!(ran.err.starts_with(note), "{}", ran.err);
}

#[test]
fn what_cannot_be_differentiated_is_refused() {
    let p = place();
    p.write(
        "loop.tlir",
        "graph @f(%x: f32[3], %go: bool[]) {
  %0 = loop %go, %x {conditional, carried=1} body @step(%i: i64[], %c: f32[3]) {
    %0 = sin %c : f32[3]
    %1 = const false : bool[]
    return %1, %0
  } : (f32[3])
  %1 = project %0 {result=0} : f32[3]
  return %1 as y
}
",
    );
    p.write(
        "taken.tlir",
        "graph @f(%x: f32[3], %d.y: f32[3]) {\n  %0 = mul %x, %d.y : f32[3]\n  return %0 as y\n}\n",
    );
    let table: &[(&[&str], i32, &str)] = &[
        (
            &["m.onnx", "--of", "z", "--wrt", "x"],
            3,
            "no output is named `z`; expected y, s, at",
        ),
        (&["m.onnx", "--of", "y,y", "--wrt", "x"], 3, "output `y` is given twice"),
        (
            &["m.onnx", "--of", "at", "--wrt", "x"],
            3,
            "output `at` is i64[1, 4]; expected floats",
        ),
        (
            &["m.onnx", "--of", "y", "--wrt", "V"],
            3,
            "no input or weight of at least two floats is named `V`; `--wrt list` prints",
        ),
        (
            &["m.onnx", "--of", "y", "--wrt", "b,weights"],
            3,
            "two derivatives are named `d.b`",
        ),
        (
            &["m.onnx", "--of", "y", "--wrt", "weights", "--freeze", "Z*"],
            3,
            "--freeze Z*: no weight",
        ),
        (
            &["m.onnx", "--of", "y", "--wrt", "weights", "--freeze", "*"],
            3,
            "the model has no weights",
        ),
        (&["m.onnx", "--wrt", "x"], 2, "--of is missing"),
        (
            &["taken.tlir", "--of", "y", "--wrt", "x"],
            3,
            "the model has an input `d.y` already",
        ),
        (
            &["loop.tlir", "--of", "y", "--wrt", "x"],
            4,
            "loop.tlir: the derivative of loop %0 at 2:3: nothing bounds its iterations; expected a trip count",
        ),
        (&["none.tlir", "--of", "y", "--wrt", "x"], 3, "none.tlir"),
    ];
    for (arguments, code, message) in table {
        let ran = p.run(&[&["grad", "-o", "d.tlir"], *arguments].concat()).code(*code);
        assert!(ran.first_error().contains(message), "{arguments:?}: {}", ran.err);
        assert!(!p.path("d.tlir").exists(), "{arguments:?}");
    }
    p.run(&["grad", "m.onnx", "--of", "y", "--wrt", "x"]).code(2);
    p.run(&["grad", "m.onnx", "--of", "y", "--wrt", "x", "-o", "d.onnx"])
        .code(2);
}

/// A line of a batch asks for derivatives as the command does.
#[test]
fn cases_of_a_batch_have_derivatives() {
    let p = place();
    let inputs = json!({ "x": "x.npy", "d.y": "dy.npy" });
    let cases = [
        json!({"id": 1, "model": "m.onnx", "inputs": inputs, "output_dir": "one",
               "grad": {"of": ["y"], "wrt": ["b", "x"]}}),
        json!({"id": 2, "model": "m.onnx", "inputs": inputs, "output_dir": "two", "grad": {"of": ["y"], "wrt": ["V"]}}),
        json!({"id": 3, "model": "m.onnx", "inputs": {"x": "x.npy"}, "output_dir": "three"}),
    ];
    p.write("cases.jsonl", cases.map(|c| c.to_string()).join("\n"));
    let ran = p.run(&["run", "--batch", "cases.jsonl"]).code(1);
    let status: Vec<String> = (ran.out.lines())
        .map(|l| serde_json::from_str::<Value>(l).expect("JSON")["status"].to_string())
        .collect();
    assert_eq!(status, ["\"ok\"", "\"error\"", "\"ok\""]);
    assert_eq!(p.list("one"), ["at.npy", "d.b.npy", "d.x.npy", "s.npy", "y.npy"]);
    assert_eq!(
        p.read("one/d.b.npy").as_slice::<f32>().expect("f32"),
        [1.0, 1.0, 0.0, 2.0]
    );
    assert_eq!(p.list("three"), ["at.npy", "s.npy", "y.npy"]);
}

/// `--freeze` leaves out of `weights`, and `list` stands alone.
#[test]
fn what_means_nothing_is_refused() {
    let p = place();
    let grad = ["grad", "m.onnx", "--of", "y", "-o", "d.tlir", "--wrt"];
    let ran = p.run(&[&grad[..], &["W", "--freeze", "b"]].concat()).code(3);
    let expected = "--freeze b: no `weights` to leave it out of; expected that among --wrt";
    assert!(ran.first_error().ends_with(expected), "{}", ran.err);
    let ran = p.run(&[&grad[..], &["list,x"]].concat()).code(2);
    let expected = "`list` beside other names in --wrt; expected it alone";
    assert!(ran.first_error().contains(expected), "{}", ran.err);
}

/// `verify --grad` compares derivatives with differences; a corner in reach says nothing, and is counted.
#[test]
fn derivatives_are_verified() {
    let p = place();
    let ran = p.run(&["verify", "m.onnx", "--grad", "--input", "x=x.npy"]).code(0);
    assert_eq!(
        ran.out,
        "right: derivatives of 2 outputs by 3 tensors along 4 directions\n"
    );
    let found = p
        .run(&["verify", "m.onnx", "--grad", "--set", "batch=3", "--format", "json"])
        .code(0)
        .json();
    assert_eq!(
        (&found["right"], &found["directions"], &found["wrong"]),
        (&json!(true), &json!(4), &Value::Null)
    );
    p.write(
        "corner.tlir",
        "graph @f(%x: f32[3]) {\n  %0 = abs %x : f32[3]\n  return %0 as y\n}\n",
    );
    p.f32s("near.npy", &[3], &[1e-7, -2e-7, 3e-7]);
    let ran = p
        .run(&["verify", "corner.tlir", "--grad", "--input", "x=near.npy"])
        .code(0);
    assert!(
        ran.out.ends_with("more end at a corner and say nothing\n"),
        "{}",
        ran.out
    );
    p.write(
        "whole.tlir",
        "graph @f(%x: i32[3]) {\n  %0 = abs %x : i32[3]\n  return %0 as y\n}\n",
    );
    let ran = p.run(&["verify", "whole.tlir", "--grad"]).code(3);
    assert!(ran.first_error().contains("no output of floats"), "{}", ran.err);
}

/// Networks as PyTorch exports them: convolutions, attention, norms, poolings, embeddings, recurrences.
#[test]
fn networks_have_right_derivatives() {
    let p = Place::new();
    let sizes: &[(&str, &[&str])] = &[
        ("residual_cnn", &["batch=2"]),
        ("vision_transformer", &["batch=1"]),
        ("mobile", &["batch=1"]),
        ("conv_next", &["batch=1"]),
        ("dense_cnn", &["batch=1"]),
        ("encoder", &["batch=2", "length=5"]),
        ("llama", &["batch=2", "length=5"]),
        ("u_net", &["batch=1", "height=16", "width=16"]),
        ("diffusion", &["batch=1", "height=8", "width=8"]),
        ("speech", &["batch=2", "frames=20"]),
        ("decoder", &["batch=2", "length=3", "past=2"]),
        ("lstm", &["batch=2", "time=3"]),
        ("gru", &["batch=2", "time=3"]),
    ];
    for (name, sizes) in sizes {
        let file = format!("{}/tests/models/{name}.onnx", env!("CARGO_MANIFEST_DIR"));
        let mut arguments = vec!["verify", &file, "--grad"];
        sizes.iter().for_each(|s| arguments.extend(["--set", s]));
        let ran = p.run(&arguments).code(0);
        assert!(ran.out.starts_with("right: derivatives of "), "{name}: {}", ran.out);
        assert!(!ran.out.contains("along 0 directions"), "{name}: {}", ran.out);
    }
}

/// `y = x w^n`, in a loop whose trip count is the input n: its derivatives are those for the value of n that is given.
#[test]
fn a_loop_has_the_trip_count_that_an_input_gives() {
    let p = Place::new();
    let body = vec![
        node("Mul", "times", &["v", "w"], &["next"]),
        node("Identity", "on", &["go"], &["goes"]),
    ];
    let scalar = |name, ty| value(name, ty, &[]);
    let v = |name| value(name, FLOAT, &[D::N(2)]);
    let body = graph(
        body,
        vec![],
        vec![scalar("i", INT64), scalar("go", BOOL), v("v")],
        vec![scalar("goes", BOOL), v("next")],
    );
    let nodes = vec![node("Loop", "again", &["n", "", "x"], &["y"]).message(5, graph_attribute("body", body))];
    let inputs = vec![scalar("n", INT64), v("x"), v("w")];
    p.write("m.onnx", model(graph(nodes, vec![], inputs, vec![v("y")]), vec![]));
    p.f32s("x.npy", &[2], &[1.0, -2.0]);
    p.f32s("w.npy", &[2], &[3.0, 0.5]);
    p.f32s("dy.npy", &[2], &[1.0, 10.0]);
    let count = HostTensor::from_slice(&[], &[3i64]).expect("a number");
    p.npy("n.npy", &count);
    let grad = ["grad", "m.onnx", "--of", "y", "--wrt", "x,w", "-o", "d.tlir"];
    let ran = p.run(&grad).code(4);
    let error = ran.first_error();
    assert!(
        error.contains("nothing bounds its iterations; expected a trip count"),
        "{error}"
    );
    let ran = p.run(&[&grad[..], &["-i", "n=n.npy"]].concat()).code(0);
    assert!(
        ran.err.contains("shapes or loops depend on the values of `n`"),
        "{}",
        ran.err
    );
    let given = [
        "-i",
        "n=n.npy",
        "-i",
        "x=x.npy",
        "-i",
        "w=w.npy",
        "-i",
        "d.y=dy.npy",
        "-o",
        "out",
    ];
    p.run(&[&["run", "d.tlir"], &given[..]].concat()).code(0);
    let case = json!({"id": 1, "model": "m.onnx", "output_dir": "batch", "grad": {"of": ["y"], "wrt": ["x", "w"]},
        "inputs": {"n": "n.npy", "x": "x.npy", "w": "w.npy", "d.y": "dy.npy"}});
    p.write("cases.jsonl", case.to_string());
    p.run(&["run", "--batch", "cases.jsonl"]).code(0);
    // w³ and 3 x w², times d.y.
    for place in ["out", "batch"] {
        for (name, expected) in [("d.x", [27.0, 1.25]), ("d.w", [27.0, -15.0])] {
            let found = p.read(&format!("{place}/{name}.npy"));
            assert_eq!(found.as_slice::<f32>().expect("f32"), expected, "{place} {name}");
        }
    }
    let ran = p.run(&["verify", "m.onnx", "--grad", "-i", "n=n.npy"]).code(0);
    assert!(
        ran.out.starts_with("right: derivatives of 1 output by 2 tensors"),
        "{}",
        ran.out
    );
}

/// `y` has the elements of `x w` where `x` is positive, `z` their squares, and `u` the distinct elements of `x w`: how many, data decides.
fn chosen() -> Vec<u8> {
    let nodes = vec![
        node("Mul", "scale", &["x", "w"], &["p"]),
        node("Greater", "is_positive", &["x", "zero"], &["c"]),
        node("Compress", "chosen", &["p", "c"], &["y"]).message(5, int_attribute("axis", 0)),
        node("NonZero", "places", &["c"], &["i"]),
        node("Transpose", "in_rows", &["i"], &["j"]),
        node("GatherND", "again", &["p", "j"], &["q"]),
        node("Mul", "square", &["q", "q"], &["z"]),
        node("Unique", "distinct", &["p"], &["u"]).message(5, int_attribute("sorted", 1)),
    ];
    let weights = vec![floats("w", &[4], &[2.0, 3.0, -1.0, 0.5]), floats("zero", &[], &[0.0])];
    let x = value("x", FLOAT, &[D::Sym("batch")]);
    let of = |name, n| value(name, FLOAT, &[D::Sym(n)]);
    model(
        graph(nodes, weights, vec![x], vec![of("y", "n"), of("z", "n"), of("u", "m")]),
        vec![],
    )
}

#[test]
fn outputs_whose_size_data_decides_have_derivatives() {
    let p = Place::new();
    p.write("m.onnx", chosen());
    p.f32s("x.npy", &[4], &[1.0, -2.0, 3.0, 4.0]);
    p.f32s("dy.npy", &[3], &[10.0, 100.0, 1000.0]);
    p.f32s("dz.npy", &[3], &[1.0, 2.0, 3.0]);
    let read = |name: &str| {
        p.read(&format!("out/{name}.npy"))
            .as_slice::<f32>()
            .expect("f32")
            .to_vec()
    };
    let grad = |of: &str| {
        p.run(&["grad", "m.onnx", "--of", of, "--wrt", "x,w", "-o", "d.tlir"])
            .code(0);
    };
    grad("y,z");
    p.run(&["check", "d.tlir"]).code(0);
    let given = |y: &'static str| {
        [
            "run",
            "d.tlir",
            "-i",
            "x=x.npy",
            "-i",
            y,
            "-i",
            "d.z=dz.npy",
            "-o",
            "out",
        ]
    };
    p.run(&given("d.y=dy.npy")).code(0);
    assert_eq!(read("y"), [2.0, -3.0, 2.0]);
    // d.y and 2 p d.z, where x is positive.
    let of_p = [10.0 + 4.0, 0.0, 100.0 - 12.0, 1000.0 + 12.0];
    let times = |factors: [f32; 4]| -> Vec<f32> { of_p.iter().zip(factors).map(|(d, f)| d * f).collect() };
    assert_eq!(read("d.x"), times([2.0, 3.0, -1.0, 0.5]));
    assert_eq!(read("d.w"), times([1.0, -2.0, 3.0, 4.0]));

    // A cotangent of another length, which is known only when the model has run, and two of different lengths, which is known before.
    p.f32s("two.npy", &[2], &[1.0, 1.0]);
    let ran = p.run(&given("d.y=two.npy")).code(3);
    assert!(ran.first_error().contains("given0"), "{}", ran.first_error());
    // One of one element is not repeated, whether its length is known when code is made or not.
    p.f32s("one.npy", &[1], &[1.0]);
    p.f32s("dz.npy", &[1], &[1.0]);
    for more in [&[][..], &["--set", "given0=1"], &["--max-memory", "3000"]] {
        let ran = p.run(&[&given("d.y=one.npy")[..], more].concat()).code(3);
        assert!(ran.first_error().contains("nonzero"), "{more:?}: {}", ran.first_error());
    }
    p.f32s("dz.npy", &[2], &[1.0, 1.0]);
    let ran = p.run(&given("d.y=two.npy"));
    assert_ne!(ran.code, 0);
    assert!(ran.first_error().contains("given0"), "{}", ran.first_error());

    // Distinct elements are where they stood first: -6, -3 and 2, which is there twice.
    grad("u");
    p.f32s("du.npy", &[3], &[1.0, 10.0, 100.0]);
    p.run(&["run", "d.tlir", "-i", "x=x.npy", "-i", "d.u=du.npy", "-o", "out"])
        .code(0);
    assert_eq!(read("u"), [-6.0, -3.0, 2.0]);
    assert_eq!(read("d.w"), [100.0, -2.0, 30.0, 0.0]);

    // A line of a batch, too.
    let case = json!({"id": 1, "model": "m.onnx", "output_dir": "batch", "grad": {"of": ["u"], "wrt": ["w"]},
        "inputs": {"x": "x.npy", "d.u": "du.npy"}});
    p.write("cases.jsonl", case.to_string());
    p.run(&["run", "--batch", "cases.jsonl"]).code(0);
    let found = p.read("batch/d.w.npy");
    assert_eq!(found.as_slice::<f32>().expect("f32"), [100.0, -2.0, 30.0, 0.0]);
}

#[cfg(target_os = "linux")]
#[test]
fn help_that_cannot_be_written_says_so() {
    let p = Place::new();
    let full = std::fs::File::create("/dev/full").expect("it opens");
    let ran = p.command(&["--help"]).stdout(full).output().expect("it starts");
    assert_eq!(ran.status.code(), Some(5));
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(said.starts_with("error: standard output: "), "{said}");
}
