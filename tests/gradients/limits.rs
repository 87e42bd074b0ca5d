//! What is refused, where what is recorded comes from, and what it costs.

use tlc::ir::graph::Origin;
use tlc::{CompileOptions, CrossEntropy, DType, Graph, Reduction, State, Tensor, grad, inputs, vjp};

fn error(g: &Graph) -> String {
    g.finish().expect_err("it is refused").to_string()
}

#[test]
fn what_is_no_loss_is_refused() {
    let g = Graph::default();
    let x = g.input("x", DType::F32, [3]);
    let d = grad(&x, &[&x]);
    assert!(d[0].is_poisoned());
    let text = error(&g);
    assert!(text.contains("tests/gradients/limits.rs"), "{text}");
    assert!(
        text.contains("grad of f32[3]: the loss is no float of rank 0"),
        "{text}"
    );

    let g = Graph::default();
    let x = g.input("x", DType::F32, [3]);
    let _ = grad(&x.argmax(0), &[&x]);
    assert!(error(&g).contains("the loss is no float of rank 0"));
}

#[test]
fn what_has_no_derivative_is_refused() {
    let g = Graph::default();
    let (x, n) = (g.input("x", DType::F32, [3]), g.input("n", DType::I32, [3]));
    let _ = grad(&x.sum(..), &[&x, &n]);
    assert!(
        error(&g).contains("tensor 1 to differentiate by is i32[3]"),
        "{}",
        error(&g)
    );

    let g = Graph::default();
    let (x, other) = (g.input("x", DType::F32, [3]), Graph::default());
    let y = other.input("y", DType::F32, [3]);
    let _ = grad(&x.sum(..), &[&y]);
    assert!(error(&g).contains("operands recorded in different graphs"));
    assert!(error(&other).contains("operands recorded in different graphs"));

    let g = Graph::default();
    let x = g.input("x", DType::F32, [3]);
    let _ = vjp(&[&x.exp()], &[&g.zeros([2], DType::F32)], &[&x]);
    assert!(error(&g).contains("a cotangent f32[2] of f32[3]"), "{}", error(&g));

    let g = Graph::default();
    let x = g.input("x", DType::F16, [3]);
    let _ = grad(&x.bitcast(DType::BF16).cast(DType::F32).sum(..), &[&x]);
    assert!(
        error(&g).contains("the derivative of bitcast %0 at tests/gradients/limits.rs"),
        "{}",
        error(&g)
    );
}

#[test]
fn poison_spreads_and_says_nothing() {
    let g = Graph::default();
    let x = g.input("x", DType::F32, [3]);
    let bad = x.reshape([2]);
    assert!(grad(&bad.sum(..), &[&x])[0].is_poisoned());
    assert!(grad(&x.sum(..), &[&bad, &x]).iter().all(Tensor::is_poisoned));
    assert_eq!(g.errors().len(), 1);
    assert!(vjp(&[], &[], &[]).is_empty());
}

/// Only what lies between gets derivatives: not what the loss does not need, and not what `wrt` does not reach.
#[test]
fn nothing_else_is_differentiated() {
    let g = Graph::default();
    let (x, w) = (g.input("x", DType::F32, [3]), g.input("w", DType::F32, [3]));
    let hidden = x.exp().sin();
    let loss = (&hidden * &w).sum(..);
    let before = g.with_ir(|ir| ir.len());
    let d = grad(&loss, &[&w]);
    // 1, repeated, times what w is multiplied with.
    assert_eq!(g.with_ir(|ir| ir.len()) - before, 4);
    assert_eq!(d[0].ty(), w.ty());
    g.output("d", &d[0]);
    let text = g.finish().unwrap().to_string();
    assert!(!text.contains("cos"), "{text}");
}

#[test]
fn what_is_recorded_comes_from_its_operation() {
    let g = Graph::default();
    let x = g.input("x", DType::F32, [3]);
    let line = line!() + 1;
    let loss = x.sin().sum(..);
    let d = grad(&grad(&loss, &[&x])[0].sum(..), &[&x]);
    let origins: Vec<String> = g.with_ir(|ir| {
        let derived = |(_, n): (_, &tlc::ir::graph::Node)| match &n.origin {
            Origin::Derived(_) => Some(n.origin.to_string()),
            _ => None,
        };
        ir.nodes().filter_map(derived).collect()
    });
    let first = format!("gradient of sin at {}:{line}:", file!());
    assert!(origins.iter().any(|o| o.starts_with(&first)), "{origins:?}");
    let second = format!("gradient of cos in gradient of sin at {}:{line}:", file!());
    assert!(origins.iter().any(|o| o.starts_with(&second)), "{origins:?}");
    drop(d);
}

/// A chain of 100,000 operations: no recursion, and time in proportion.
#[test]
fn deep_graphs() {
    let g = Graph::default();
    let x = g.input("x", DType::F32, [2]);
    let mut y = x.clone();
    for _ in 0..50_000 {
        y = y.sin() * &x;
    }
    let before = g.with_ir(|ir| ir.len());
    let d = grad(&y.sum(..), &[&x]);
    assert!(!d[0].is_poisoned(), "{:?}", g.errors().first());
    let size = g.with_ir(|ir| ir.len());
    assert!(size < 5 * before, "{before} nodes became {size}");
}

/// Sizes that a call gives.
#[test]
fn symbolic_sizes() {
    let g = Graph::new("symbolic");
    let (n, m) = (g.symbol("n", 1..=64), g.symbol("m", 4..=64));
    let x = g.input("x", DType::F64, (&n, &m));
    let w = g.input("w", DType::F64, (&m, 3));
    let y = x.matmul(&w).softmax(-1).slice_axis(0, tlc::s(..).step(2));
    let z = x.window(1, 3, 1, 1).max(-1).pad(&[(0, 0), (1, 2)], 0.0).cumsum(1);
    let loss = y.square().sum(..) + z.square().mean(..) + x.slice_axis(1, tlc::s(1..4)).exp().sum(..);
    let d = grad(&loss, &[&x, &w]);
    assert_eq!((d[0].ty(), d[1].ty()), (x.ty(), w.ty()));
    g.output("loss", &loss);
    g.output("dx", &d[0]);
    g.output("dw", &d[1]);
    let run = g.compile(&CompileOptions::default()).unwrap();
    for (n, m) in [(1usize, 4usize), (5, 7), (8, 16)] {
        let data: Vec<f64> = (0..n * m).map(|i| (i as f64 * 0.37).sin()).collect();
        let weights: Vec<f64> = (0..m * 3).map(|i| (i as f64 * 0.71).cos()).collect();
        let (x, w) = (
            crate::against::host(&[n, m], &data),
            crate::against::host(&[m, 3], &weights),
        );
        let found = run.run(&inputs![&x, &w]).unwrap();
        let loss_at = |x: &tlc::HostTensor| run.run(&inputs![x, &w]).unwrap()["loss"].as_slice::<f64>().unwrap()[0];
        for (i, at) in data.iter().enumerate() {
            let moved = |by: f64| {
                let mut x = x.clone();
                x.set(i, tlc::Scalar::from_f64(DType::F64, at + by));
                loss_at(&x)
            };
            let expected = (moved(1e-5) - moved(-1e-5)) / 2e-5;
            let d = found["dx"].as_slice::<f64>().unwrap()[i];
            assert!(
                (d - expected).abs() <= 1e-6 * (1.0 + expected.abs()),
                "{n} {m}: dx[{i}] {d}, {expected}"
            );
        }
    }
}

/// Slices that symbols decide, whose ends no range proves to be inside: their cotangents are scattered.
#[test]
fn slices_between_symbols() {
    let g = Graph::new("between");
    let (n, k) = (g.symbol("n", 1..=64), g.symbol("k", 1..=64));
    let x = g.input("x", DType::F64, &n);
    let head = g.input("head", DType::F64, &k);
    let y = x.slice_axis(0, tlc::Slice::between(0, &k)) * &head;
    let d = grad(&y.square().sum(..), &[&x]);
    g.output("dx", &d[0]);
    assert_eq!(d[0].ty(), x.ty());
    let run = g.compile(&CompileOptions::default()).unwrap();
    let found = run.run(&inputs![&[1.0f64, 2.0, 3.0, 4.0], &[1.0f64, 10.0]]).unwrap();
    assert_eq!(found["dx"].as_slice::<f64>().unwrap(), [2.0, 400.0, 0.0, 0.0]);
}

/// The first row of a batch beside all of them, also of a batch that has none.
#[test]
fn the_first_row_of_a_batch_is_repeated() {
    for first_first in [true, false] {
        let g = Graph::new("first");
        let n = g.symbol("n", 0..=64);
        let x = g.input("x", DType::F64, (&n, 2));
        let first = x.slice_axis(0, tlc::Slice::between(0, n.min(1)));
        let y = if first_first { &first * &x } else { &x * &first };
        let d = grad(&y.sum(..), &[&x]);
        assert_eq!((y.ty(), d[0].ty()), (x.ty(), x.ty()));
        g.output("dx", &d[0]);
        let run = g.compile(&CompileOptions::default()).unwrap();
        for n in [3usize, 1, 0, 7] {
            let data: Vec<f64> = (1..=2 * n).map(|i| i as f64).collect();
            let rows = crate::against::host(&[n, 2], &data);
            let found = run.run(&inputs![&rows]).unwrap_or_else(|e| panic!("{n}: {e}"));
            let at = |i: usize| {
                let rows: f64 = data.iter().skip(i % 2).step_by(2).sum();
                data[i % 2] + if i < 2 { rows } else { 0.0 }
            };
            let expected: Vec<f64> = (0..2 * n).map(at).collect();
            assert_eq!(found["dx"].as_slice::<f64>().unwrap(), expected, "{n}");
        }
    }
}

#[test]
fn losses_refuse_what_does_not_belong_together() {
    type Loss = fn(&Graph, &Tensor) -> Tensor;
    let table: [(Loss, &str); 6] = [
        (
            |g, x| x.cross_entropy(&g.input("l", DType::F32, [3])),
            "expected [.., classes] and integers of [3]",
        ),
        (
            |g, x| x.cross_entropy(&g.input("l", DType::I64, [4])),
            "expected [.., classes] and integers of [3]",
        ),
        (
            |g, x| {
                let options = CrossEntropy::new().smoothing(1.5);
                x.cross_entropy_with(&g.input("l", DType::I64, [3]), &options)
            },
            "label smoothing of 1.5; expected a number from 0 to 1",
        ),
        (
            |g, x| {
                let options = CrossEntropy::new().weights(&g.input("w", DType::F32, [5]));
                x.cross_entropy_with(&g.input("l", DType::I64, [3]), &options)
            },
            "the weights",
        ),
        (
            |g, x| x.mse_loss(&g.input("y", DType::F32, [4]), Reduction::Mean),
            "expected predictions and targets of one shape",
        ),
        (
            |g, x| x.huber_loss(&g.input("y", DType::F32, [3, 4]), -1.0, Reduction::Mean),
            "huber",
        ),
    ];
    for (loss, expected) in table {
        let g = Graph::default();
        let x = g.input("x", DType::F32, [3, 4]);
        assert!(loss(&g, &x).is_poisoned(), "{expected}");
        let text = error(&g);
        assert!(
            text.contains(expected) && text.contains("tests/gradients/limits.rs"),
            "{text}"
        );
    }
}

/// A class out of range makes the loss NaN and counts nothing in gradients, and no row at all gives NaN with gradients of 0 (as `torch` where all rows are ignored).
#[test]
fn losses_of_classes_out_of_range_and_of_no_rows() {
    let g = Graph::default();
    let x = g.constant(vec![0.0f64, 0.0, 5.0, 7.0]).reshape([2, 2]);
    let of = |classes: [i64; 2], options: &CrossEntropy| {
        let loss = x.cross_entropy_with(&g.constant(classes.to_vec()), options);
        let d = grad(&loss, &[&x]).remove(0);
        let d = d.eval().unwrap().as_slice::<f64>().unwrap().to_vec();
        (loss.eval().unwrap().as_scalar::<f64>().unwrap(), d)
    };
    let (loss, d) = of([1, 9], &CrossEntropy::new().reduction(Reduction::Sum));
    assert!(loss.is_nan(), "{loss}");
    assert_eq!(d, [0.5, -0.5, 0.0, 0.0]);
    for (classes, ignored) in [([-1, 1], 9), ([9, 1], -1), ([1, 2], 9)] {
        let (loss, _) = of(classes, &CrossEntropy::new().ignore(ignored));
        assert!(loss.is_nan(), "{classes:?} {loss}");
    }
    let (loss, d) = of([1, 9], &CrossEntropy::new().ignore(9));
    assert!((loss - std::f64::consts::LN_2).abs() < 1e-15, "{loss}");
    assert_eq!(d, [0.5, -0.5, 0.0, 0.0]);
    let (loss, d) = of([-100, -100], &CrossEntropy::new().ignore(-100));
    assert!(loss.is_nan(), "{loss}");
    assert!(d.iter().all(|v| *v == 0.0), "{d:?}");
}

/// A parameter that the loss does not reach has a gradient of zeros, and the report of what was compiled says so, once.
#[test]
fn what_the_loss_does_not_reach_is_reported() {
    let g = Graph::new("train");
    let x = g.input("x", DType::F32, [3]);
    let [used, unused] = ["used", "unused"].map(|name| g.state(name, DType::F32, [3]));
    let loss = (&x * &used).square().sum(..);
    let optimizer: tlc::optim::Groups = "sgd:lr=0.5".parse().unwrap();
    optimizer.minimize(&loss, &[("used", &used), ("unused", &unused)]);
    assert_eq!(grad(&loss, &[&unused]).len(), 1);
    let train = g.compile(&CompileOptions::default()).unwrap();
    let report = train.explain();
    let said: Vec<&str> = report.lines().filter(|l| l.contains("its gradient is zeros")).collect();
    assert_eq!(
        said,
        ["nothing that is differentiated depends on `unused`: its gradient is zeros"]
    );
    let mut state = State::new();
    for name in ["used", "unused"] {
        state.insert(name, [1.0f32, 2.0, 3.0]).unwrap();
    }
    optimizer.prepare(&mut state, &["used", "unused"]).unwrap();
    train.run_with(&mut state, &inputs![&[1.0f32, 1.0, 1.0]]).unwrap();
    assert_eq!(state["unused"].as_slice::<f32>().unwrap(), [1.0, 2.0, 3.0]);
    assert_eq!(state["used"].as_slice::<f32>().unwrap(), [0.0, 0.0, 0.0]);
}
