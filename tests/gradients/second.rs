//! Gradients of gradients, and laws.

use tlc::{DType, Graph, Monoid, Tensor, einsum, grad, vjp};

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
