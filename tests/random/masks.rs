//! Dropout: what it keeps, how that is scaled, and that its derivative drops the same.

use tlc::{DType, Graph, Key, Tensor, grad};

use super::against::values;

type Dropout = fn(&Tensor, f64) -> Tensor;

const BOTH: [(&str, Dropout); 2] = [
    ("in its place", |x, p| x.dropout(p)),
    ("by a key", |x, p| x.dropout_with(p, &x.graph().key(5))),
];

#[test]
fn what_is_kept_is_scaled_and_the_derivative_keeps_the_same() {
    for (what, dropout) in BOTH {
        for (dtype, tolerance) in [
            (DType::F32, 1e-6),
            (DType::F64, 1e-15),
            (DType::F16, 1e-3),
            (DType::BF16, 8e-3),
        ] {
            let g = Graph::new("dropout");
            let n = 100_000;
            let x = g.full(n, 3.0, dtype);
            for p in [0.1, 0.5, 0.9] {
                let y = dropout(&x, p);
                assert_eq!(y.dtype(), dtype);
                let cotangent = 2.0;
                let d = grad(&(&y * cotangent).cast(DType::F64).sum(..), &[&x]).remove(0);
                let (y, d) = (values(&y), values(&d));
                let kept = 1.0 / (1.0 - p);
                for (y, d) in y.iter().zip(&d) {
                    let scale = if *y == 0.0 { 0.0 } else { kept };
                    assert!(
                        (y - 3.0 * scale).abs() <= 3.0 * kept * tolerance,
                        "{what}, {dtype}, {p}: {y}"
                    );
                    assert!(
                        (d - cotangent * scale).abs() <= 2.0 * kept * tolerance,
                        "{what}, {dtype}, {p}: {d}"
                    );
                }
                let share = y.iter().filter(|y| **y == 0.0).count() as f64 / n as f64;
                let error = (p * (1.0 - p) / n as f64).sqrt();
                assert!((share - p).abs() <= 4.0 * error, "{what}, {dtype}: {share} of {p}");
            }
        }
    }
}

#[test]
fn nothing_or_everything_is_dropped() {
    for (what, dropout) in BOTH {
        let g = Graph::new("ends");
        let x = g.constant([1.5f32, -2.0, f32::NAN, f32::INFINITY]);
        let all = dropout(&x, 0.0).eval().unwrap();
        let all: Vec<u32> = all.as_slice::<f32>().unwrap().iter().map(|v| v.to_bits()).collect();
        assert_eq!(all, [1.5f32, -2.0, f32::NAN, f32::INFINITY].map(f32::to_bits), "{what}");
        let none = dropout(&x, 1.0);
        assert_eq!(values(&none), [0.0; 4], "{what}");
        for (p, expected) in [(0.0, 1.0), (1.0, 0.0)] {
            let d = grad(&dropout(&x, p).sum(..), &[&x]).remove(0);
            assert_eq!(values(&d), [expected; 4], "{what}, {p}");
        }
        for p in [-0.1, 1.1, f64::NAN] {
            assert!(dropout(&x, p).is_poisoned(), "{what}, {p}");
        }
    }
}

#[test]
fn a_loop_drops_by_a_key_what_the_program_says() {
    let g = Graph::new("loop");
    let (x, key) = (g.ones(64, DType::F32), g.key(1));
    let results = g.repeat(3).record(|i| {
        let (x, key) = (i.capture(&x), Key::from_tensor(&i.capture(key.tensor())));
        let (same, other) = (x.dropout_with(0.5, &key), x.dropout_with(0.5, &key.fold_in(&i.number)));
        i.stack(&same, 0);
        i.stack(&other, 0);
        vec![]
    });
    let rows = |t: &Tensor| values(t).chunks(64).map(<[f64]>::to_vec).collect::<Vec<_>>();
    let (same, others) = (rows(&results[0]), rows(&results[1]));
    assert!(same[0] == same[1] && same[1] == same[2]);
    assert!(others[0] != others[1] && others[1] != others[2] && others[0] != others[2]);
    // The derivative of a loop draws again what it dropped.
    let results = g.repeat(3).carry(&x).record(|i| {
        let key = Key::from_tensor(&i.capture(key.tensor()));
        vec![i.carried[0].dropout_with(0.25, &key.fold_in(&i.number))]
    });
    let d = grad(&results[0].sum(..), &[&x]).remove(0);
    assert_eq!(values(&d), values(&results[0]));
    let d = g.repeat(3).carry(&x).record(|i| vec![i.carried[0].dropout(0.25)]);
    assert_eq!(values(&grad(&d[0].sum(..), &[&x])[0]), values(&d[0]));
}
