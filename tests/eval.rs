//! Direct evaluation. One test counts compilations, which are the process's, so it is the only one here that compiles.

use tlc::eval::stats;
use tlc::{CompileOptions, DType, EvalError, Graph, Tensor};

fn expression(g: &Graph, scale: f32) -> Tensor {
    let a = g.constant([[1.0f32 * scale, 2.0], [3.0, 4.0]]);
    let b = g.constant([0.5f32, -0.5]);
    (a.matmul(&a) + &b).relu().sum(-1)
}

fn expected(scale: f32) -> [f32; 2] {
    let a = [[scale, 2.0], [3.0, 4.0]];
    let cell = |i: usize, j: usize| a[i][0] * a[0][j] + a[i][1] * a[1][j] + [0.5, -0.5][j];
    [0, 1].map(|i| cell(i, 0).max(0.0) + cell(i, 1).max(0.0))
}

#[test]
fn equal_structure_compiles_once_whatever_the_data_and_the_thread() {
    let before = stats();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            scope.spawn(move || {
                for round in 0..10 {
                    let scale = (thread * 10 + round) as f32;
                    // Whatever else the graph holds does not matter.
                    let g = Graph::new(format!("thread {thread}"));
                    g.input("unused", DType::F32, [round + 1]);
                    g.constant(vec![1.0f32; round + 2]).exp();
                    let y = expression(&g, scale).eval().unwrap();
                    assert_eq!(y.as_slice::<f32>().unwrap(), expected(scale));
                    assert_eq!(y.shape(), [2]);
                }
            });
        }
    });
    let after = stats();
    assert_eq!(after.compiled - before.compiled, 1);
    assert_eq!(after.reused - before.reused, 79);

    // Another structure is another graph.
    let g = Graph::default();
    let y = (expression(&g, 1.0) * 2.0).eval().unwrap();
    assert_eq!(y.as_slice::<f32>().unwrap(), expected(1.0).map(|v| v * 2.0));
    assert_eq!(stats().compiled - after.compiled, 1);

    // What eval returns is what a compiled graph returns.
    let t = expression(&g, 3.0);
    g.output("t", &t);
    let options = CompileOptions::default();
    let compiled = g.compile(&options).unwrap().run(&[]).unwrap();
    assert_eq!(compiled[0].bytes(), t.eval().unwrap().bytes());

    // Data itself, a scalar, and more graphs than the cache holds.
    let data = g.constant([1i64, 2, 3]);
    assert_eq!(data.eval().unwrap().as_slice::<i64>().unwrap(), [1, 2, 3]);
    let scalar = (g.scalar(2.0, DType::F64) * 3.0).eval().unwrap();
    assert_eq!(scalar.as_slice::<f64>().unwrap(), [6.0]);
    for n in 1..=150usize {
        let g = Graph::default();
        let y = (g.constant(vec![1.0f32; n]) + n as f64).eval().unwrap();
        assert_eq!(y.as_slice::<f32>().unwrap(), vec![1.0 + n as f32; n]);
    }
}

#[test]
fn what_needs_inputs_or_sizes_has_no_value() {
    let g = Graph::default();
    let x = g.input("x", DType::F32, [2]);
    let error = (&x + g.constant([1.0f32, 2.0])).eval().unwrap_err();
    assert!(
        matches!(&error, EvalError::NeedsInput { name } if name == "x"),
        "{error}"
    );
    assert_eq!(
        error.to_string(),
        "the value depends on the input `x`: compile the graph and run it with one"
    );
    let n = g.symbol("n", 0..=9);
    let error = g.range(&n, DType::I64).eval().unwrap_err();
    assert!(
        matches!(&error, EvalError::NeedsSize { name } if name == "n"),
        "{error}"
    );
}

#[test]
fn a_refused_tensor_has_no_value() {
    let g = Graph::default();
    let bad = g.constant([1.0f32, 2.0]) + g.constant([1.0f32, 2.0, 3.0]);
    let error = bad.eval().unwrap_err();
    assert!(matches!(error, EvalError::Recording(_)), "{error}");
    assert!(error.to_string().contains("add of f32[2] and f32[3]"), "{error}");
}
