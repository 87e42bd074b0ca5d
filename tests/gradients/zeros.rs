//! Derivatives of first and second order of products whose factors are zero. Products, running products, products that are scattered
//! together and determinants are linear in each operand, so a difference between two values of it is the derivative exactly.

use tlc::{DType, Graph, Monoid, ScatterOp, Tensor, grad, hessian, hvp, jvp};

fn values(t: &Tensor) -> Vec<f64> {
    t.eval().expect("it runs").as_slice::<f64>().expect("doubles").to_vec()
}

/// The gradient and the matrix of second derivatives, row by row, of a function that is linear in each operand.
fn by_differences(x: &[f64], f: &dyn Fn(&[f64]) -> f64) -> (Vec<f64>, Vec<f64>) {
    let at = |places: &[(usize, f64)]| {
        let mut x = x.to_vec();
        places.iter().for_each(|&(i, v)| x[i] = v);
        f(&x)
    };
    let n = x.len();
    let first = (0..n).map(|i| at(&[(i, 1.0)]) - at(&[(i, 0.0)])).collect();
    let pair = |i: usize, j: usize| {
        let corner = |a: f64, b: f64| at(&[(i, a), (j, b)]);
        match i == j {
            true => 0.0,
            false => corner(1.0, 1.0) - corner(1.0, 0.0) - corner(0.0, 1.0) + corner(0.0, 0.0),
        }
    };
    (first, (0..n * n).map(|k| pair(k / n, k % n)).collect())
}

/// Checks gradient and second derivatives of `loss` over `x`, these backwards twice, over all directions at once, and forwards over
/// backwards and forwards twice in single ones.
fn check(name: &str, x: &[f64], loss: impl Fn(&Tensor) -> Tensor, exact: &dyn Fn(&[f64]) -> f64) {
    let (first, second) = by_differences(x, exact);
    let g = Graph::default();
    let t = g.constant(x.to_vec());
    let y = loss(&t);
    let close = |found: &[f64], expected: &[f64]| {
        let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-9 * (1.0 + b.abs());
        found.len() == expected.len() && found.iter().zip(expected).all(near)
    };
    let slope = grad(&y, &[&t]).remove(0);
    let found = values(&slope);
    assert!(close(&found, &first), "{name} of {x:?}: {found:?}, expected {first:?}");
    let found = values(&hessian(&y, &t));
    assert!(
        close(&found, &second),
        "{name} of {x:?}: {found:?}, expected {second:?}"
    );
    for i in 0..x.len() {
        let row = &second[i * x.len()..][..x.len()];
        let mut unit = vec![0.0; x.len()];
        unit[i] = 1.0;
        let direction = g.constant(unit);
        let backwards = values(&grad(&(&slope * &direction).sum(..), &[&t])[0]);
        assert!(
            close(&backwards, row),
            "{name} of {x:?} by {i}: {backwards:?}, expected {row:?}"
        );
        let forwards = values(&hvp(&y, &[&t], &[&direction])[0]);
        assert!(
            close(&forwards, row),
            "{name} of {x:?} along {i}: {forwards:?}, expected {row:?}"
        );
        let tangent = jvp(&[&y], &[&t], &[&direction]).remove(0);
        let mixed = values(&grad(&tangent, &[&t])[0]);
        assert!(
            close(&mixed, row),
            "{name} of {x:?} of tangent {i}: {mixed:?}, expected {row:?}"
        );
    }
}

fn weights(n: usize) -> Vec<f64> {
    (0..n).map(|i| 10f64.powi(i as i32)).collect()
}

const ROWS: [&[f64]; 6] = [
    &[0.0, 0.0, 5.0],
    &[0.0, 2.0, 0.0, 3.0],
    &[2.0, 0.0, 3.0, 0.0],
    &[0.0, 0.0, 0.0, 2.0],
    &[2.0, 3.0, 4.0],
    &[0.0],
];

#[test]
fn running_products() {
    for x in ROWS {
        for (exclusive, reverse) in [(false, false), (true, false), (false, true), (true, true)] {
            let n = x.len();
            let scanned = move |x: &[f64]| {
                let part = |k: usize| match (reverse, exclusive) {
                    (false, false) => 0..k + 1,
                    (false, true) => 0..k,
                    (true, false) => k..n,
                    (true, true) => k + 1..n,
                };
                let w = weights(n);
                (0..n).map(|k| w[k] * x[part(k)].iter().product::<f64>()).sum()
            };
            let loss = |x: &Tensor| {
                let w = x.graph().constant(weights(n));
                (x.scan(Monoid::Mul, 0, exclusive, reverse) * w).sum(..)
            };
            check("cumprod", x, loss, &scanned);
        }
        check("prod", x, |x| x.prod(0), &|x| x.iter().product());
    }
}

/// torch.autograd.functional.hessian of `(x * x).prod()`: factors that are not linear, and a third derivative.
#[test]
fn products_of_more() {
    let g = Graph::default();
    let x = g.constant([0.0f64, 0.0, 3.0]);
    let y = x.square().prod(0);
    assert_eq!(values(&hessian(&y, &x)), [0.0; 9]);
    let x = g.constant([0.0f64, 0.0, 0.0]);
    let mut d = x.prod(0);
    for k in 0..3 {
        let unit = g.constant((0..3).map(|i| f64::from(u8::from(i == k))).collect::<Vec<f64>>());
        d = (grad(&d, &[&x]).remove(0) * unit).sum(..);
    }
    assert_eq!(values(&d), [1.0]);
}

#[test]
fn products_over_a_symbolic_axis() {
    use tlc::{CompileOptions, inputs};
    let g = Graph::new("f");
    let n = g.symbol("n", 0..=8);
    let x = g.input("x", DType::F64, [tlc::Dim::from(2), n.clone()]);
    let v = g.input("v", DType::F64, [tlc::Dim::from(2), n]);
    let slope = grad(&x.cumprod(1).sum(..), &[&x]).remove(0);
    g.output("h", &grad(&(slope * v).sum(..), &[&x])[0]);
    let compiled = g.compile(&CompileOptions::default()).expect("it compiles");
    let x: Vec<f64> = vec![0.0, 0.0, 5.0, 1.0, 0.0, 2.0];
    let v: Vec<f64> = vec![0.0, 1.0, 0.0, 1.0, 0.0, 0.0];
    let x = tlc::HostTensor::from_slice(&[2, 3], &x).expect("a tensor");
    let v = tlc::HostTensor::from_slice(&[2, 3], &v).expect("a tensor");
    let found = compiled.run(&inputs![&x, &v]).expect("it runs");
    // x0 + x0 x1 + x0 x1 x2 by x1, then by each: (1 + x2, 0, x0) and, by x0, (0, 1 + x2, x1).
    assert_eq!(found["h"].as_slice::<f64>().unwrap(), [6.0, 0.0, 0.0, 0.0, 3.0, 0.0]);
    let none = tlc::HostTensor::from_slice::<f64>(&[2, 0], &[]).expect("a tensor");
    assert_eq!(
        compiled.run(&inputs![&none, &none]).expect("it runs")["h"].shape(),
        [2, 0]
    );
}

#[test]
fn products_that_are_scattered_together() {
    // The first two are what is scattered into, the others go to places 1, 1, 0 and nowhere.
    for x in [
        [0.0, 0.0, 2.0, 3.0, 5.0, 7.0],
        [0.0, 1.0, 0.0, 0.0, 0.0, 7.0],
        [2.0, 3.0, 0.0, 4.0, 0.0, 0.0],
        [2.0, 3.0, 4.0, 5.0, 6.0, 7.0],
    ] {
        let loss = |x: &Tensor| {
            let g = x.graph();
            let places = g.constant([1i64, 1, 0, 9]);
            let y = x
                .narrow(0, 0, 2)
                .scatter(&[0], &[&places], &x.narrow(0, 2, 4), ScatterOp::Mul);
            (y * g.constant([1.0f64, 10.0])).sum(..)
        };
        check("scatter", &x, loss, &|x| x[0] * x[4] + 10.0 * x[1] * x[2] * x[3]);
    }
}

/// By the first row.
fn determinant(n: usize, m: &[f64]) -> f64 {
    if n == 0 {
        return 1.0;
    }
    let minor = |column: usize| -> Vec<f64> {
        let kept = (n..n * n).filter(|k| k % n != column);
        kept.map(|k| m[k]).collect()
    };
    let sign = |c: usize| if c.is_multiple_of(2) { 1.0 } else { -1.0 };
    (0..n).map(|c| sign(c) * m[c] * determinant(n - 1, &minor(c))).sum()
}

#[test]
fn determinants_of_singular_matrices() {
    let matrices: [&[f64]; 9] = [
        &[0.0],
        &[0.0, 0.0, 0.0, 1.0],
        &[0.0; 4],
        &[0.0, 0.0, 2.0, 0.0, 0.0, 3.0, 0.0, 0.0, 4.0],
        &[1.0, 2.0, 3.0, 2.0, 4.0, 6.0, 1.0, 1.0, 1.0],
        &[1.0, 2.0, 3.0, 2.0, 4.0, 6.0, 3.0, 6.0, 9.0],
        &[0.0; 9],
        &[1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0],
        &[
            0.0, 2.0, 0.0, 1.0, 1.0, 0.0, 3.0, 0.0, 0.0, 1.0, 0.0, 2.0, 1.0, 5.0, 3.0, 3.0,
        ],
    ];
    for m in matrices {
        let n = (1..=4).find(|n| n * n == m.len()).expect("a square");
        check("det", m, |x| x.reshape([n, n]).det(), &|m| determinant(n, m));
    }
}

/// torch.nn.functional: softplus, logsigmoid and binary_cross_entropy_with_logits are smooth at 0. Their second derivatives are those of
/// the logistic function, `s (1 - s)`, and its third `s (1 - s) (1 - 2 s)`.
#[test]
fn smooth_functions_that_are_computed_by_parts() {
    type F = fn(&Tensor) -> Tensor;
    let table: [(&str, F, f64); 3] = [
        ("softplus", |x| x.softplus(), 1.0),
        ("log_sigmoid", |x| x.log_sigmoid(), -1.0),
        (
            "binary_cross_entropy_with_logits",
            |x| x.binary_cross_entropy_with_logits(&x.zeros_like(), tlc::Reduction::Each),
            1.0,
        ),
    ];
    let places = [0.0f64, -0.0, -1.5, 2.0, 1e-300];
    for (name, f, sign) in table {
        let g = Graph::default();
        let x = g.constant(places.to_vec());
        let mut d = f(&x);
        for order in 1..=3 {
            d = grad(&d.sum(..), &[&x]).remove(0);
            let expected = places.map(|v| {
                let s = 1.0 / (1.0 + (-v).exp());
                match order {
                    // The logistic function falls with -x, whose logarithm the second is.
                    1 if sign < 0.0 => 1.0 - s,
                    1 => s,
                    2 => sign * s * (1.0 - s),
                    _ => sign * s * (1.0 - s) * (1.0 - 2.0 * s),
                }
            });
            for (a, b) in values(&d).iter().zip(expected) {
                assert!((a - b).abs() < 1e-14, "{name}, order {order}: {a}, expected {b}");
            }
        }
    }
    let g = Graph::default();
    let ends = g.constant([f64::INFINITY, f64::NEG_INFINITY, f64::NAN]);
    let found = values(&grad(&ends.softplus().sum(..), &[&ends])[0]);
    assert!(found[0] == 1.0 && found[1] == 0.0 && found[2].is_nan(), "{found:?}");
}
