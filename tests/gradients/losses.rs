//! Losses at their corners: logits far out, infinite differences, nothing to predict, vectors of zeros, no element at all.

use tlc::{CompileOptions, CrossEntropy, DType, Graph, Reduction, Tensor, grad, hessian};

/// The values of tensors, as f64.
fn values(all: &[&Tensor]) -> Vec<Vec<f64>> {
    let g = all[0].graph();
    for (k, t) in all.iter().enumerate() {
        g.output(&format!("y{k}"), &t.cast(DType::F64));
    }
    let run = g.compile(&CompileOptions::default()).expect("it compiles");
    let found = run.run(&[]).expect("it runs");
    found
        .iter()
        .map(|y| y.as_slice::<f64>().expect("f64").to_vec())
        .collect()
}

/// Close to 0 a loss is the difference of what is large, unless it is computed otherwise: of a logit of 10 and a target of 1, f32 had two
/// digits of it left.
#[test]
fn binary_cross_entropy_of_logits_keeps_its_digits() {
    let logits = [0.0f64, -0.0, 1e-9, 0.5, 3.0, 10.0, 20.0, 50.0, 80.0, 100.0, 800.0];
    let x: Vec<f64> = logits.iter().flat_map(|x| [*x, -x, *x, -x, *x]).collect();
    let t: Vec<f64> = logits.iter().flat_map(|_| [1.0, 0.0, 0.0, 1.0, 0.25]).collect();
    let softplus = |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p();
    let sigmoid = |x: f64| {
        let e = (-x.abs()).exp();
        if x >= 0.0 { 1.0 / (1.0 + e) } else { e / (1.0 + e) }
    };
    for (dtype, tolerance, least) in [(DType::F64, 4e-15, 1e-300), (DType::F32, 1e-6, 1e-37)] {
        let g = Graph::default();
        let (logits, targets) = (g.constant(x.clone()).cast(dtype), g.constant(t.clone()).cast(dtype));
        let loss = logits.binary_cross_entropy_with_logits(&targets, Reduction::Each);
        let total = loss.sum(..);
        let first = grad(&total, &[&logits]).remove(0);
        let second = hessian(&total, &logits).diagonal(0, 0, 1);
        let found = values(&[&loss, &first, &second]);
        for (k, (&x, &t)) in x.iter().zip(&t).enumerate() {
            let expected = [
                t * softplus(-x) + (1.0 - t) * softplus(x),
                (1.0 - t) * sigmoid(x) - t * sigmoid(-x),
                sigmoid(x) * sigmoid(-x),
            ];
            for (what, expected) in expected.into_iter().enumerate() {
                let found = found[what][k];
                assert!(
                    (found - expected).abs() <= tolerance * expected.abs() + least,
                    "{dtype}, derivative {what} of {x} with {t}: {found}, expected {expected}"
                );
            }
        }
    }
}

#[test]
fn slopes_of_infinite_differences_are_those_of_the_line() {
    let x = [f64::INFINITY, f64::NEG_INFINITY, 1e300, 0.25, -0.25, f64::NAN];
    for delta in [0.5, 2.0] {
        let g = Graph::default();
        let (x, t) = (g.constant(x), g.zeros(6, DType::F64));
        let huber = x.huber_loss(&t, delta, Reduction::Sum);
        let smooth = x.smooth_l1_loss(&t, delta, Reduction::Sum);
        let (d, s) = (grad(&huber, &[&x]).remove(0), grad(&smooth, &[&x]).remove(0));
        let found = values(&[&d, &s]);
        assert_eq!(found[0][..5], [delta, -delta, delta, 0.25, -0.25]);
        assert_eq!(found[1][..5], [1.0, -1.0, 1.0, 0.25 / delta, -0.25 / delta]);
        assert!(found.iter().all(|d| d[5].is_nan()));
    }
}

#[test]
fn no_divergence_where_nothing_is_expected() {
    let never = f64::NEG_INFINITY;
    let (half, quarter) = (0.5f64, 0.25f64);
    for (log, t) in [
        (false, [half, half, 0.0, 0.0, f64::NAN]),
        (true, [half.ln(), half.ln(), never, never, f64::NAN]),
    ] {
        let g = Graph::default();
        let t = g.constant(t);
        let x = g.constant([quarter.ln(), half.ln(), never, quarter.ln(), 0.0]);
        let each = x.kl_div(&t, log, Reduction::Each);
        let d = grad(&each.sum(..), &[&x, &t]);
        let found = values(&[&each, &d[0], &d[1]]);
        assert!((found[0][0] - half * 2f64.ln()).abs() < 1e-15, "{found:?}");
        assert_eq!(found[0][1..4], [0.0, 0.0, 0.0]);
        assert!((found[1][0] + half).abs() < 1e-15, "{found:?}");
        assert_eq!(found[1][2..4], [0.0, 0.0]);
        // t (ln t - x) by t is ln t - x + 1, and by ln t that times t.
        let by_target = (2f64.ln() + 1.0) * if log { half } else { 1.0 };
        assert!((found[2][0] - by_target).abs() < 1e-15, "{found:?}");
        assert_eq!(found[2][2..4], [0.0, 0.0]);
        assert!(found[0][4].is_nan(), "{found:?}");
    }
}

/// What is zero has a cosine of 0 with everything, which is at the margin: its huge slope is not taken, as in PyTorch.
#[test]
fn pairs_at_the_margin_have_no_slope() {
    let g = Graph::default();
    let (a, b) = (
        g.constant([[1.0f64, 2.0], [0.0, 0.0]]),
        g.constant([[0.0f64, 0.0], [3.0, 4.0]]),
    );
    let loss = a.cosine_embedding_loss(&b, &g.constant([-1i64, -1]), 0.0, Reduction::Sum);
    let d = grad(&loss, &[&a, &b]);
    assert_eq!(values(&[&loss, &d[0], &d[1]]), [vec![0.0], vec![0.0; 4], vec![0.0; 4]]);
}

/// As in PyTorch and SciPy, and as where the size is known only when it is called.
#[test]
fn over_no_element_softmax_is_empty_and_the_sum_of_exponentials_is_0() {
    for shape in [[0, 3], [3, 0], [0, 0]] {
        let empty = usize::from(shape[0] != 0);
        let g = Graph::default();
        let x = g.zeros(shape, DType::F32);
        let (soft, logs) = (x.softmax(empty as i64), x.log_softmax(empty as i64));
        let sum = x.logsumexp(empty as i64);
        let d = grad(&(soft.sum(..) + logs.sum(..)), &[&x]).remove(0);
        assert_eq!((soft.const_shape(), soft.dtype()), (Some(shape.to_vec()), DType::F32));
        assert_eq!(logs.const_shape(), Some(shape.to_vec()));
        let found = values(&[&soft, &logs, &d, &sum]);
        assert!(found[..3].iter().all(Vec::is_empty), "{found:?}");
        assert_eq!(found[3], vec![f64::NEG_INFINITY; shape[1 - empty]]);
    }
    // No row, or rows of no class at all.
    let g = Graph::default();
    let x = g.zeros([0, 3], DType::F64);
    let none = g.zeros(0, DType::I64);
    let loss = x.cross_entropy_with(&none, &CrossEntropy::new().reduction(Reduction::Sum));
    assert_eq!(values(&[&loss]), [[0.0]]);
}
