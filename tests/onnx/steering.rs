//! Models whose shapes depend on the values of inputs: compiled for each value that comes, a bounded number kept.

use tlc::onnx::{Model, ModelError};
use tlc::{CompileOptions, HostTensor, Input, inputs};

use crate::proto::A::I;
use crate::proto::*;

/// A file that is removed again.
pub struct File(std::path::PathBuf);

impl File {
    pub fn new(name: &str, bytes: &[u8]) -> File {
        let path = std::env::temp_dir().join(format!("tlc-steering-{}-{name}.onnx", std::process::id()));
        std::fs::write(&path, bytes).expect("a temporary file");
        File(path)
    }

    pub fn open(&self) -> Result<Model, ModelError> {
        Model::open(&self.0, &CompileOptions::default())
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn longs(values: &[i64]) -> HostTensor {
    HostTensor::from_slice(&[values.len()], values).expect("a tensor")
}

fn floats(shape: &[usize]) -> HostTensor {
    let data: Vec<f32> = (0..shape.iter().product()).map(|i: usize| i as f32).collect();
    HostTensor::from_slice(shape, &data).expect("a tensor")
}

/// `y = Tile(Relu(x), repeats)`.
fn tiled() -> File {
    let nodes = vec![
        node("Relu", "relu", &["x"], &["r"]),
        node("Tile", "tile", &["r", "repeats"], &["y"]),
    ];
    let inputs = vec![
        value("x", FLOAT, &[D::Sym("n"), D::N(2)]),
        value("repeats", INT64, &[D::N(2)]),
    ];
    let outputs = vec![value("y", FLOAT, &[D::Sym("a"), D::Sym("b")])];
    File::new("tiled", &model(graph(nodes, vec![], inputs, outputs), vec![]))
}

#[test]
fn a_model_is_compiled_for_each_value_that_steers_it_and_kept() {
    let file = tiled();
    let model = file.open().expect("it opens, though nothing can be compiled yet");
    assert_eq!(model.imports(), 0);
    for round in 0..2 {
        for (k, repeats) in [[1i64, 2], [3, 1], [2, 2]].iter().enumerate() {
            for rows in [1usize, 4] {
                let x = floats(&[rows, 2]);
                let y = model
                    .run_named(&inputs!["repeats" => repeats, "x" => &x])
                    .expect("it runs");
                let [down, right] = [repeats[0] as usize, repeats[1] as usize];
                assert_eq!(y[0].shape(), [rows * down, 2 * right]);
                let values = y[0].as_slice::<f32>().expect("floats");
                for (at, v) in values.iter().enumerate() {
                    let (i, j) = (at / (2 * right), at % (2 * right));
                    assert_eq!(*v, ((i % rows) * 2 + j % 2) as f32);
                }
            }
            assert_eq!(model.imports(), if round == 0 { k + 1 } else { 3 });
        }
    }
    let told = model.explain();
    assert!(
        told.contains("shapes depend on the values of `repeats`; this is for [2, 2]"),
        "{told}"
    );
    assert!(told.contains("this is for [3, 1]"));
}

#[test]
fn the_number_kept_is_bounded() {
    let file = tiled();
    let model = file.open().expect("it opens");
    for k in 1..=20 {
        let y = model.run(&inputs![&floats(&[1, 2]), &[k, 1i64]]).expect("it runs");
        assert_eq!(y[0].shape(), [k as usize, 2]);
    }
    assert_eq!(model.imports(), 8);
}

/// `y = ReduceMean(a + b)` with extents of different names.
fn broadcast() -> File {
    let nodes = vec![
        node("Add", "add", &["a", "b"], &["s"]),
        node("ReduceMean", "mean", &["s"], &["y"]),
    ];
    let inputs = vec![value("a", FLOAT, &[D::Sym("n")]), value("b", FLOAT, &[D::Sym("m")])];
    let outputs = vec![value("y", FLOAT, &[D::N(1)]), value("s", FLOAT, &[D::Sym("k")])];
    File::new("broadcast", &model(graph(nodes, vec![], inputs, outputs), vec![]))
}

/// The mean divides by the extent of the sum, which is that of `b` where `a` has one element.
#[test]
fn sizes_of_one_broadcast_as_the_model_says() {
    let model = broadcast().open().expect("it opens");
    for round in 0..2 {
        for (n, m) in [(3, 3), (1, 3), (3, 1), (1, 1), (1, 4)] {
            let outputs = model.run(&inputs![&floats(&[n]), &floats(&[m])]).expect("it runs");
            let sum = |i: usize| if n == 1 { 0 } else { i } + if m == 1 { 0 } else { i };
            let sums: Vec<f32> = (0..n.max(m)).map(|i| sum(i) as f32).collect();
            assert_eq!(outputs["s"].as_slice::<f32>().unwrap(), sums, "{n} {m}");
            let mean = sums.iter().sum::<f32>() / sums.len() as f32;
            assert_eq!(outputs["y"].as_slice::<f32>().unwrap(), [mean], "{n} {m}");
        }
        assert_eq!(
            model.imports(),
            3,
            "one for any sizes, and for (1, 3) and (1, 4); round {round}"
        );
    }
    let refused = model.run(&inputs![&floats(&[2]), &floats(&[3])]);
    let Err(ModelError::Run(e)) = refused else {
        panic!("it must be refused")
    };
    assert!(e.to_string().contains("the graph needs m = n"), "{e}");
}

#[test]
fn a_model_that_nothing_steers_is_compiled_once() {
    let nodes = vec![node("Relu", "relu", &["x"], &["y"])];
    let inputs = vec![value("x", FLOAT, &[D::Sym("n"), D::N(2)])];
    let outputs = vec![value("y", FLOAT, &[D::Sym("n"), D::N(2)])];
    let file = File::new("relu", &model(graph(nodes, vec![], inputs, outputs), vec![]));
    let model = file.open().expect("it opens");
    assert_eq!(model.imports(), 1);
    for rows in [0, 1, 7] {
        let y = model.run_named(&inputs!["x" => &floats(&[rows, 2])]).expect("it runs");
        assert_eq!(y[0].shape(), [rows, 2]);
    }
    assert_eq!(model.imports(), 1);
}

#[test]
fn wrong_calls_are_told() {
    let file = tiled();
    let model = file.open().expect("it opens");
    let (x, two) = (floats(&[1, 2]), longs(&[2, 1]));
    let error = |inputs: &[(&str, Input<'_>)]| model.run_named(inputs).expect_err("it is wrong").to_string();
    assert_eq!(error(&inputs!["x" => &x]), "input `repeats` is missing");
    assert_eq!(error(&inputs!["repeats" => &two]), "input `x` is missing");
    assert_eq!(
        error(&inputs!["x" => &x, "repeats" => &two, "z" => &x]),
        "no input `z`; expected x, repeats"
    );
    assert_eq!(
        error(&inputs!["x" => &x, "repeats" => &two, "x" => &x]),
        "input `x` is given twice"
    );
    let count = model.run(&inputs![&x]).expect_err("it is wrong").to_string();
    assert_eq!(count, "the graph has 2 inputs, found 1");
    let text = error(&inputs!["x" => &x, "repeats" => &longs(&[-1, 2])]);
    assert!(text.contains("node 'tile' (Tile)"), "{text}");
    let text = error(&inputs!["x" => &two, "repeats" => &two]);
    assert!(text.contains("input `x`"), "{text}");
    assert!(matches!(
        Model::open("no such file.onnx", &CompileOptions::default()),
        Err(ModelError::Open(_))
    ));
}

#[test]
fn a_model_without_a_graph_for_any_sizes_is_compiled_for_those_of_each_call() {
    let of = |name: &str, operator: &str| {
        let nodes = vec![op(operator, &[])];
        let x = value("x", FLOAT, &[D::Sym("n"), D::Sym("n")]);
        File::new(name, &model(graph(nodes, vec![], vec![x], vec![result("y")]), vec![]))
    };
    let file = of("determinant", "Det x -> y");
    let model = file.open().expect("it opens, though nothing can be compiled yet");
    assert_eq!(model.imports(), 0);
    let two = HostTensor::from_slice(&[2, 2], &[3.0f32, 1.0, 2.0, 4.0]).expect("a tensor");
    let three = HostTensor::from_slice(&[3, 3], &[2.0f32, 0.0, 0.0, 0.0, 3.0, 0.0, 0.0, 0.0, 4.0]).expect("a tensor");
    for _ in 0..2 {
        for (x, expected) in [(&two, 10.0), (&three, 24.0)] {
            let y = model.run(&inputs![x]).expect("it runs");
            assert_eq!(y[0].as_slice::<f32>().expect("f32"), [expected]);
        }
        assert_eq!(model.imports(), 2);
    }
    let wide = HostTensor::from_slice(&[2, 3], &[0.0f32; 6]).expect("a tensor");
    model.run(&inputs![&wide]).expect_err("no matrix");
    model.run(&inputs![&two]).expect("as before");
    // What is unsupported for known sizes too is told at once.
    let refused = of("unknown", "NoOperator x -> y")
        .open()
        .err()
        .expect("no operator")
        .to_string();
    assert!(refused.contains("NoOperator"), "{refused}");
}

/// Sizes that a large product decides are refused at once: the graph interpreter would compute it for minutes.
#[test]
fn networks_are_not_interpreted_to_learn_a_size() {
    let resized = |n: i64| {
        let nodes = vec![
            op("MatMul x x -> product", &[]),
            op("ReduceMax product -> most", &[("keepdims", I(0))]),
            op("Cast most -> number", &[("to", I(INT64))]),
            op("Reshape number list -> sizes", &[]),
            op("Resize image _ _ sizes -> y", &[]),
        ];
        let inputs = vec![
            value("x", FLOAT, &[D::N(n), D::N(n)]),
            value("image", FLOAT, &[D::N(4)]),
        ];
        let constants = vec![ints("list", &[1], &[1])];
        let bytes = model(graph(nodes, constants, inputs, vec![result("y")]), vec![]);
        let file = File::new("resized", &bytes);
        let model = file.open().expect("it opens");
        let n = n as usize;
        let x = HostTensor::from_slice(&[n, n], &vec![8.0 / n as f32; n * n]).expect("a tensor");
        let image = floats(&[4]);
        let found = model.run(&inputs![&x, &image]).map(|y| y[0].shape().to_vec());
        found.map_err(|e| e.to_string())
    };
    // 8 / n squared, n times: 1 for 64.
    assert_eq!(resized(64), Ok(vec![1]));
    let refused = resized(1200).expect_err("a billion products");
    assert!(
        refused.contains("takes 1728000000 products; expected a constant"),
        "{refused}"
    );
}
