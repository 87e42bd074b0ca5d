//! ONNX models on the command line.

use crate::proto::*;
use crate::support::Place;

/// `y = relu(x W)` on `[batch, 2]`.
fn layer() -> Vec<u8> {
    let nodes = vec![
        node("MatMul", "product", &["x", "W"], &["p"]),
        node("Relu", "act", &["p"], &["y"]),
    ];
    let weights = vec![floats("W", &[2, 2], &[1.0, -1.0, 2.0, 1.0])];
    let ty = |name| value(name, FLOAT, &[D::Sym("batch"), D::N(2)]);
    model(graph(nodes, weights, vec![ty("x")], vec![ty("y")]), vec![])
}

#[test]
fn every_command_that_takes_a_model_takes_an_onnx_file() {
    let p = Place::new();
    p.write("m.onnx", layer());
    p.f32s("x.npy", &[2, 2], &[1.0, 2.0, 3.0, -4.0]);
    p.run(&["check", "m.onnx"]).code(0);
    p.run(&["run", "m.onnx", "--input", "x=x.npy", "--output-dir", "out"])
        .code(0);
    let written = std::fs::read(p.path("out/y.npy")).expect("the output");
    let y = tlc_formats::npy::read(&written).expect("an array");
    assert_eq!(y.shape(), [2, 2]);
    assert_eq!(y.as_slice::<f32>(), Some(&[5.0f32, 1.0, 0.0, 0.0][..]));
    p.run(&["explain", "m.onnx"]).code(0);
    p.run(&["opt", "m.onnx"]).code(0);
    p.run(&["emit", "m.onnx", "--what", "plan"]).code(0);
    p.run(&["bench", "m.onnx", "--set", "batch=3", "--time", "0.01"])
        .code(0);
    p.run(&["profile", "m.onnx", "--set", "batch=3"]).code(0);
}

#[test]
fn what_a_model_asks_for_in_vain_is_named() {
    let p = Place::new();
    let x = || value("x", FLOAT, &[D::N(2)]);
    let y = || value("y", FLOAT, &[D::N(2)]);
    let one = |n: Message| model(graph(vec![n], vec![], vec![x()], vec![y()]), vec![]);
    p.write("new.onnx", one(node("Frobnicate", "n", &["x"], &["y"])));
    let ran = p.run(&["run", "new.onnx", "--input", "x=random"]).code(4);
    assert_eq!(
        ran.first_error(),
        "error: new.onnx: node 'n' (Frobnicate): this operator is not supported"
    );
    p.write("wrong.onnx", one(node("Relu", "n", &["z"], &["y"])));
    let ran = p.run(&["check", "wrong.onnx"]).code(3);
    assert_eq!(
        ran.first_error(),
        "error: wrong.onnx: node 'n' (Relu): no value is named 'z'; expected an input, an initializer or the result of a \
         node that does not wait for it"
    );
}

#[test]
fn a_shape_in_a_file_steers_the_graph() {
    let p = Place::new();
    let nodes = vec![node("Reshape", "r", &["x", "s"], &["y"])];
    let inputs = vec![value("x", FLOAT, &[D::N(4)]), value("s", INT64, &[D::N(2)])];
    let y = value("y", FLOAT, &[D::N(2), D::N(2)]);
    p.write("m.onnx", model(graph(nodes, vec![], inputs, vec![y]), vec![]));
    p.f32s("x.npy", &[4], &[1.0, 2.0, 3.0, 4.0]);
    let s = tlc::HostTensor::from_slice(&[2], &[4i64, 1]).expect("a tensor");
    let mut bytes = vec![];
    tlc_formats::npy::write(&s, &mut bytes).expect("an array");
    p.write("s.npy", bytes);
    let ran = p
        .run(&["run", "m.onnx", "--input", "x=x.npy", "--input", "s=s.npy"])
        .code(0);
    assert!(ran.out.contains("\ny: f32[4, 1]"), "{}", ran.out);
    assert!(ran.err.contains("shapes depend on the values of `s`"), "{}", ran.err);
    let ran = p.run(&["explain", "m.onnx"]).code(4);
    assert!(ran.first_error().contains("value of the input `s`"), "{}", ran.err);
}

#[test]
fn bf16_numbers_in_files_steer_the_graph_and_a_file_that_cannot_be_read_is_named() {
    let p = Place::new();
    const BF16: i64 = 16;
    let names = ["start", "limit", "step"];
    let inputs = names.map(|n| value(n, BF16, &[])).to_vec();
    let nodes = vec![node("Range", "r", &names, &["y"])];
    p.write(
        "m.onnx",
        model(graph(nodes, vec![], inputs, vec![value("y", BF16, &[D::N(4)])]), vec![]),
    );
    for (name, number) in names.into_iter().zip([1.0, 3.0, 0.5]) {
        let number = tlc::HostTensor::scalar(tlc::Scalar::from_f64(tlc::DType::BF16, number));
        let mut bytes = vec![];
        tlc_formats::npy::write(&number, &mut bytes).expect("an array");
        assert!(String::from_utf8_lossy(&bytes).contains("|V2"));
        p.write(&format!("{name}.npy"), bytes);
    }
    let run = |start: &str| {
        let start = format!("start={start}");
        p.run(&[
            "run",
            "m.onnx",
            "-i",
            &start,
            "-i",
            "limit=limit.npy",
            "-i",
            "step=step.npy",
        ])
    };
    let ran = run("start.npy").code(0);
    assert!(ran.out.contains("y: bf16[4]"), "{}", ran.out);
    p.write("broken.npy", b"no array");
    let ran = run("broken.npy").code(3);
    assert!(ran.first_error().starts_with("error: broken.npy"), "{}", ran.err);
}

/// Two sizes with names of their own, of which one is 1: the model is read for these sizes, in which a mean is one of all.
#[test]
fn sizes_of_one_broadcast_as_the_model_says() {
    let p = Place::new();
    let dims = |name: &'static str| value(name, FLOAT, &[D::Sym(if name == "a" { "n" } else { "m" })]);
    let nodes = vec![
        node("Add", "add", &["a", "b"], &["s"]),
        node("ReduceMean", "mean", &["s"], &["y"]),
    ];
    let outputs = vec![value("y", FLOAT, &[D::N(1)])];
    p.write(
        "m.onnx",
        model(graph(nodes, vec![], vec![dims("a"), dims("b")], outputs), vec![]),
    );
    p.f32s("a.npy", &[1], &[1.0]);
    p.f32s("b.npy", &[3], &[1.0, 2.0, 6.0]);
    p.run(&[
        "run",
        "m.onnx",
        "--input",
        "a=a.npy",
        "--input",
        "b=b.npy",
        "--output-dir",
        "o",
    ])
    .code(0);
    assert_eq!(p.read("o/y.npy").as_slice::<f32>(), Some(&[4.0f32][..]));
    p.run(&[
        "run",
        "m.onnx",
        "--set",
        "n=1",
        "--set",
        "m=3",
        "--input",
        "a=a.npy",
        "--input",
        "b=b.npy",
        "--output-dir",
        "q",
    ])
    .code(0);
    assert_eq!(p.read("q/y.npy").as_slice::<f32>(), Some(&[4.0f32][..]));
}

/// What must be numbers has those of the inputs, where they are given.
#[test]
fn a_model_without_a_graph_for_any_sizes_runs_for_those_of_its_inputs() {
    let p = Place::new();
    let nodes = vec![node("Det", "det", &["x"], &["y"])];
    let x = value("x", FLOAT, &[D::Sym("n"), D::Sym("n")]);
    p.write(
        "det.onnx",
        model(graph(nodes, vec![], vec![x], vec![value("y", FLOAT, &[])]), vec![]),
    );
    p.f32s("x.npy", &[2, 2], &[3.0, 1.0, 2.0, 4.0]);
    p.f32s("wide.npy", &[2, 3], &[0.0; 6]);
    let ran = p.run(&["run", "det.onnx", "-i", "x=x.npy", "-o", "out"]).code(0);
    let note = "note: det.onnx: there is no graph for any sizes; this is for n=2";
    assert_eq!(ran.err.lines().next(), Some(note));
    assert_eq!(p.read("out/y.npy").as_slice::<f32>(), Some(&[10.0][..]));
    // Without them, and with those that are no model's.
    let refused = p.run(&["run", "det.onnx", "-o", "none"]).code(4);
    assert_eq!(
        refused.err,
        "error: det.onnx: node 'det' (Det): matrices of symbolic extent; expected numbers\n"
    );
    p.run(&["run", "det.onnx", "-i", "x=wide.npy", "-o", "none"]).code(3);
    assert!(!p.path("none").exists());
}
