//! Gradients of gradients, and laws.

use tlc::{DType, Graph, Monoid, Tensor, einsum, grad, hvp, jvp, vjp};

use crate::against::check;

/// The derivative of `f`, weighted so that no two elements count alike.
fn first(x: &Tensor, f: impl Fn(&Tensor) -> Tensor) -> Tensor {
    let y = f(x);
    let weights = y.graph().range(y.elements(), DType::F64).reshape(y.shape()) * 0.3 + 0.7;
    grad(&(y * weights).sum(..), &[x]).remove(0)
}

#[test]
fn derivatives_of_derivatives() {
    let v = &[(&[4usize][..], 0.4, 1.6)];
    let m = &[(&[3usize, 4][..], -1.5, 1.5)];
    check("x ** 3", v, |_, x| first(&x[0], |x| x.pow(3.0)));
    check("sin", v, |_, x| first(&x[0], |x| x.sin()));
    check("exp", v, |_, x| first(&x[0], |x| x.exp()));
    check("tanh", v, |_, x| first(&x[0], |x| x.tanh()));
    check("log", v, |_, x| first(&x[0], |x| x.log()));
    check("sqrt", v, |_, x| first(&x[0], |x| x.sqrt()));
    check("1 / x", v, |_, x| first(&x[0], |x| x.reciprocal()));
    check("x ** x", v, |_, x| first(&x[0], |x| x.pow(x)));
    check("atan2", v, |_, x| first(&x[0], |x| x.atan2(x.square())));
    check("softmax", m, |_, x| first(&x[0], |x| x.softmax(1)));
    check("prod", m, |_, x| first(&x[0], |x| x.prod(1)));
    check("cumprod", m, |_, x| first(&x[0], |x| x.cumprod(1)));
    check("max", m, |_, x| first(&x[0], |x| x.max(1).exp()));
    check("scan", m, |_, x| {
        first(&x[0], |x| x.scan(Monoid::Add, 0, true, true).square())
    });
    check("einsum", m, |_, x| first(&x[0], |x| einsum("ij,kj,kl->il", &[x, x, x])));
    check("diagonal", &[(&[3, 3], -1.5, 1.5)], |_, x| {
        first(&x[0], |x| einsum("ii,ij->j", &[x, x]))
    });
    check("window", m, |_, x| first(&x[0], |x| x.window(1, 2, 1, 1).prod(-1)));
    check("gather", m, |g, x| {
        first(&x[0], |x| x.take(&g.constant([1i64, 1, 0]), 0).exp())
    });
    check("sort", m, |_, x| first(&x[0], |x| x.sort(1, false).exp()));
    check("var", m, |_, x| first(&x[0], |x| x.var(1, 1).exp()));
}

/// `∂²(x ** e) / ∂x ∂e = x ** (e - 1) * (1 + e * ln x)`, which is `1 / x` where the exponent is 0 although the slope is 0 there.
#[test]
fn how_the_slope_of_a_power_changes_with_an_exponent_of_0() {
    let g = Graph::default();
    let (x, e) = (g.constant([2.0f64, 0.5, 1.0]), g.constant([0.0f64, 0.0, 0.0]));
    let y = x.pow(&e);
    let first = grad(&y.sum(..), &[&x, &e]);
    for t in [
        &grad(&first[0].sum(..), &[&e])[0],
        &grad(&first[1].sum(..), &[&x])[0],
        &jvp(&[&first[0]], &[&e], &[&e.ones_like()])[0],
        &jvp(&[&first[1]], &[&x], &[&x.ones_like()])[0],
    ] {
        assert_eq!(t.eval().unwrap().as_slice::<f64>().unwrap(), [0.5, 2.0, 1.0]);
    }
    // Where it has no bound, all of them are 0, as is the slope.
    let x = g.constant([0.0f64, -0.0, f64::NAN]);
    let first = grad(&x.pow(&e).sum(..), &[&x]).remove(0);
    let second = grad(&first.sum(..), &[&e]).remove(0);
    for t in [&first, &second] {
        assert_eq!(t.eval().unwrap().as_slice::<f64>().unwrap(), [0.0; 3]);
    }
}

/// x ** 5, five times: 120.
#[test]
fn many_times() {
    let g = Graph::default();
    let x = g.scalar(1.7, DType::F64);
    let mut y = x.pow(5.0);
    for _ in 0..5 {
        y = grad(&y, &[&x]).remove(0);
    }
    let value = y.eval().unwrap().as_slice::<f64>().unwrap()[0];
    assert!((value - 120.0).abs() < 1e-9, "{value}");
    let zero = grad(&y, &[&x]).remove(0);
    assert_eq!(zero.eval().unwrap().as_slice::<f64>().unwrap(), [0.0]);
}

/// A product with the Jacobian is linear in the cotangents.
#[test]
fn cotangents_are_linear() {
    let g = Graph::default();
    let x = g.constant([0.3f64, -1.2, 2.0]);
    let (u, v) = (g.constant([1.0f64, 2.0, -3.0]), g.constant([0.5f64, -1.0, 4.0]));
    let y = x.softmax(0) * x.exp();
    let by = |d: &Tensor| vjp(&[&y], &[d], &[&x]).remove(0);
    let both = by(&(&u * 2.0 - &v * 3.0)) - (by(&u) * 2.0 - by(&v) * 3.0);
    let found = both.abs().max(..).eval().unwrap();
    assert!(found.as_slice::<f64>().unwrap()[0] < 1e-12);
}

/// Several outputs: the sum of their parts, one of which another is computed from.
#[test]
fn outputs_add_up() {
    let g = Graph::default();
    let x = g.constant([0.3f64, -1.2]);
    let y = x.square();
    let z = y.exp();
    let (dy, dz) = (g.constant([1.0f64, 2.0]), g.constant([3.0f64, 4.0]));
    let all = vjp(&[&y, &z, &y], &[&dy, &dz, &dy], &[&x]).remove(0);
    let parts = vjp(&[&y], &[&(&dy * 2.0)], &[&x]).remove(0) + vjp(&[&z], &[&dz], &[&x]).remove(0);
    let apart = (all - parts).abs().max(..).eval().unwrap();
    assert!(apart.as_slice::<f64>().unwrap()[0] < 1e-12);
}

/// A zero vector's length has derivatives of 0, of the second order too: PyTorch's of `torch.linalg.vector_norm`.
#[test]
fn the_norm_of_zeros() {
    let g = Graph::default();
    let x = g.constant([[0.0f64, 0.0], [3.0, -4.0]]);
    let v = g.constant([[1.0f64, -2.0], [1.0, 2.0]]);
    let found = hvp(&x.norm(1).sum(..), &[&x], &[&v]).remove(0);
    let found = found.eval().unwrap();
    let found = found.as_slice::<f64>().unwrap();
    assert_eq!(found[..2], [0.0, 0.0]);
    // (v - x (x · v) / |x|²) / |x|, with x · v = -5.
    for (found, expected) in found[2..]
        .iter()
        .zip([(1.0 + 3.0 / 5.0) / 5.0, (2.0 - 4.0 / 5.0) / 5.0])
    {
        assert!((found - expected).abs() < 1e-14, "{found} {expected}");
    }
}

/// `x ** e` at x = 0 by both: how the derivatives change with the cotangent is PyTorch's, in which no part is NaN, and by x and e what they
/// are nearby.
#[test]
fn powers_of_zero() {
    let g = Graph::default();
    let (x, e) = (g.constant([0.0f64, 0.0, 0.0, 2.0]), g.constant([2.0f64, 3.0, 1.5, 2.0]));
    let d = g.constant([1.0f64; 4]);
    let first = vjp(&[&x.pow(&e)], &[&d], &[&x, &e]);
    let (by_x, by_e) = (g.constant([1.0f64, 2.0, 3.0, 5.0]), g.constant([0.5f64; 4]));
    let second = vjp(&[&first[0], &first[1]], &[&by_x, &by_e], &[&d, &x, &e]);
    let [of_d, of_x, of_e] = [0, 1, 2].map(|k| second[k].eval().unwrap().as_slice::<f64>().unwrap().to_vec());
    let log = 2f64.ln();
    let near = |found: &[f64], expected: &[f64]| {
        let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-12;
        assert!(found.iter().zip(expected).all(near), "{found:?} {expected:?}");
    };
    near(&of_d, &[0.0, 0.0, 0.0, 5.0 * 4.0 + 0.5 * 4.0 * log]);
    near(&of_x[..2], &[2.0, 0.0]);
    near(&of_x[3..], &[5.0 * 2.0 + 0.5 * (2.0 + 4.0 * log)]);
    near(&of_e, &[0.0, 0.0, 0.0, 5.0 * (2.0 + 4.0 * log) + 0.5 * 4.0 * log * log]);
}

/// An exponent that is a number is no less a variable: how the derivative by the base changes with it, backwards and forwards.
#[test]
fn derivatives_by_a_base_change_with_an_exponent_that_is_known() {
    for e in [-2.0, 0.0, 0.5, 1.0, 2.0, 3.0] {
        let g = Graph::default();
        let bases = [0.5f64, 2.0, 3.0];
        let (x, power) = (g.constant(bases), g.full(3, e, DType::F64));
        let y = x.pow(&power);
        let by_base = grad(&y.sum(..), &[&x, &power]).remove(0);
        let backwards = grad(&by_base.sum(..), &[&power]).remove(0);
        // Along both at once: by the base twice, and by one and the other.
        let (ones, zeros) = (x.ones_like(), x.zeros_like());
        let along = jvp(&[&y], &[&x, &power], &[&ones, &ones]).remove(0);
        let forwards = jvp(&[&along], &[&x, &power], &[&zeros, &ones]).remove(0);
        let values = |t: &Tensor| t.eval().expect("it runs").as_slice::<f64>().expect("doubles").to_vec();
        let (backwards, forwards) = (values(&backwards), values(&forwards));
        for (k, x) in bases.into_iter().enumerate() {
            let mixed = x.powf(e - 1.0) * (1.0 + e * x.ln());
            let twice = x.powf(e) * x.ln().powi(2);
            let close = |found: f64, expected: f64| (found - expected).abs() <= 1e-13 * (1.0 + expected.abs());
            assert!(
                close(backwards[k], mixed),
                "{x} ** {e}: {}, expected {mixed}",
                backwards[k]
            );
            let expected = mixed + twice;
            assert!(
                close(forwards[k], expected),
                "{x} ** {e}: {}, expected {expected}",
                forwards[k]
            );
        }
    }
}
