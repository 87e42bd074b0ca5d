//! Forward mode: products with Jacobians and with second derivatives, what is refused, and what it costs. That each rule is the
//! transpose of the one in reverse mode is part of every check against differences.

use tlc::ir::rng::Rng;
use tlc::{CompileOptions, DType, Graph, Tensor, custom_vjp, grad, hvp, inputs, jvp, vjp};

fn values(t: &Tensor) -> Vec<f64> {
    t.eval().expect("it runs").as_slice::<f64>().expect("doubles").to_vec()
}

fn error(g: &Graph) -> String {
    g.finish().expect_err("it is refused").to_string()
}

fn close(a: &[f64], b: &[f64]) {
    assert_eq!(a.len(), b.len());
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-12 * (1.0 + b.abs());
    assert!(a.iter().zip(b).all(near), "{a:?} and {b:?}");
}

fn drawn(g: &Graph, shape: &[usize], seed: u64) -> Tensor {
    let mut rng = Rng::new(seed);
    let data: Vec<f64> = (0..shape.iter().product()).map(|_| rng.unit() * 2.0 - 1.0).collect();
    g.constant(tlc::HostTensor::from_slice(shape, &data).expect("as many elements"))
}

/// `sum((x - y)^2) + 100 sum((x[1..] - x[..-1]^2)^2)`, Rosenbrock's function: its second derivatives are known in closed form.
fn rosenbrock(x: &Tensor) -> Tensor {
    let n = x.const_shape().expect("numbers")[0] as i64;
    let (head, tail) = (x.narrow(0, 0, n - 1), x.narrow(0, 1, n - 1));
    ((1.0 - &head).square() + (tail - head.square()).square() * 100.0).sum(..)
}

/// As `scipy.optimize.rosen_hess_prod` states them.
fn rosenbrock_product(x: &[f64], v: &[f64]) -> Vec<f64> {
    let n = x.len();
    let mut h = vec![0.0; n];
    for i in 0..n {
        let mut diagonal = 0.0;
        if i + 1 < n {
            diagonal += 1200.0 * x[i] * x[i] - 400.0 * x[i + 1] + 2.0;
            h[i] -= 400.0 * x[i] * v[i + 1];
        }
        if i > 0 {
            diagonal += 200.0;
            h[i] -= 400.0 * x[i - 1] * v[i - 1];
        }
        h[i] += diagonal * v[i];
    }
    h
}

#[test]
fn products_with_second_derivatives() {
    let g = Graph::default();
    let (x, v) = (drawn(&g, &[7], 1), drawn(&g, &[7], 2));
    let found = values(&hvp(&rosenbrock(&x), &[&x], &[&v])[0]);
    let expected = rosenbrock_product(&values(&x), &values(&v));
    close(&found, &expected);
}

/// A network of contractions, reductions, regions and a loop.
fn network(x: &Tensor, w: &Tensor) -> Tensor {
    let g = x.graph();
    let h = g
        .repeat(3)
        .carry(x)
        .record(|i| vec![(i.carried[0].matmul(&i.capture(w))).tanh() + &i.carried[0] * 0.5]);
    let h = h[0].silu() * h[0].softmax(-1) + h[0].cumsum(1).sort(1, true).sigmoid();
    (h.logsumexp(1) + h.prod(1) + h.norm(1)).sum(..)
}

/// `<u, H v> = <v, H u>`, and both are what reverse mode over reverse mode gives.
#[test]
fn second_derivatives_are_symmetric() {
    let g = Graph::default();
    let (x, w) = (drawn(&g, &[3, 4], 3), drawn(&g, &[4, 4], 4));
    let loss = network(&x, &w);
    let (u, v) = (
        [drawn(&g, &[3, 4], 5), drawn(&g, &[4, 4], 6)],
        [drawn(&g, &[3, 4], 7), drawn(&g, &[4, 4], 8)],
    );
    let dot = |a: &[Tensor], b: &[Tensor]| (&a[0] * &b[0]).sum(..) + (&a[1] * &b[1]).sum(..);
    let product = |t: &[Tensor]| hvp(&loss, &[&x, &w], &[&t[0], &t[1]]);
    let (hu, hv) = (product(&u), product(&v));
    close(&values(&dot(&u, &hv)), &values(&dot(&v, &hu)));
    let slope = grad(&loss, &[&x, &w]);
    let twice = grad(&dot(&slope, &v), &[&x, &w]);
    for (a, b) in hv.iter().zip(&twice) {
        close(&values(a), &values(b));
    }
}

/// The product of the Jacobian with tangents is the derivative of that of cotangents with it by the cotangents: reverse mode alone.
#[test]
fn forwards_is_backwards_twice() {
    let g = Graph::default();
    let (x, w) = (drawn(&g, &[3, 4], 13), drawn(&g, &[4, 4], 14));
    let tangents = [drawn(&g, &[3, 4], 15), drawn(&g, &[4, 4], 16)];
    let h = x.matmul(&w);
    let pool = tlc::Pool::new(3).padding(1).stride(1);
    let pooled = h.reshape([1, 3, 4]).max_pool(&pool).reshape([3, 4]);
    let y = (pooled + h.relu()).softmax(-1);
    let ahead = jvp(&[&y], &[&x, &w], &[&tangents[0], &tangents[1]]);
    let v = g.zeros([3, 4], DType::F64).stop_gradient();
    let back = vjp(&[&y], &[&v], &[&x, &w]);
    let twice = vjp(&[&back[0], &back[1]], &[&tangents[0], &tangents[1]], &[&v]);
    close(&values(&ahead[0]), &values(&twice[0]));
}

#[test]
fn tangents_are_linear_and_add_up() {
    let g = Graph::default();
    let x = g.constant([0.3f64, -1.2, 2.0]);
    let (u, v) = (g.constant([1.0f64, 2.0, -3.0]), g.constant([0.5f64, -1.0, 4.0]));
    let y = x.softmax(0) * x.exp();
    let by = |t: &Tensor| jvp(&[&y], &[&x], &[t]).remove(0);
    let both = by(&(&u * 2.0 - &v * 3.0)) - (by(&u) * 2.0 - by(&v) * 3.0);
    close(&values(&both), &[0.0; 3]);
    // One input twice, and one that is computed from another.
    let square = x.square();
    let t = jvp(&[&square.exp(), &x, &square], &[&x, &square, &x], &[&u, &v, &u]);
    let moved = &x * &u * 4.0 + &v;
    close(&values(&t[0]), &values(&(square.exp() * &moved)));
    close(&values(&t[1]), &values(&(&u * 2.0)));
    close(&values(&t[2]), &values(&moved));
    // What does not depend on it.
    let t = jvp(&[&u.exp()], &[&x], &[&v]);
    assert_eq!(values(&t[0]), [0.0; 3]);
    assert!(jvp(&[], &[], &[]).is_empty());
}

/// In reverse mode such a loop is refused: nothing bounds what it would have to keep.
#[test]
fn loops_that_nothing_bounds_have_tangents() {
    let g = Graph::new("newton");
    let a = g.input("a", DType::F64, ());
    let far = |x: &Tensor, a: &Tensor| (x.square() - a).abs().gt(1e-12);
    let start = a.clone();
    let root = g.repeat_while(&far(&start, &a)).carry(&start).record(|i| {
        let a = i.capture(&a);
        let x = (&i.carried[0] + &a / &i.carried[0]) * 0.5;
        i.go_on_if(&far(&x, &a));
        vec![x]
    });
    let one = g.scalar(1.0, DType::F64);
    g.output("t", &jvp(&[&root[0]], &[&a], &[&one])[0]);
    let run = g.compile(&CompileOptions::default()).expect("it compiles");
    for a in [2.0f64, 10.0, 0.25] {
        let found = run.run(&inputs![a]).expect("it runs");
        let slope = found[0].as_scalar::<f64>().expect("a double");
        assert!((slope - 0.5 / a.sqrt()).abs() < 1e-9, "{slope} of {a}");
    }
}

/// A value that a loop carries has no tangent beside it unless it moves.
#[test]
fn what_does_not_move_is_carried_once() {
    let g = Graph::default();
    let (x, still) = (g.constant([1.0f64, 2.0]), g.constant([3.0f64, 4.0]));
    let r = g.repeat(3).carry(&x).carry(&still).carry(&still).record(|i| {
        let c = &i.carried;
        vec![&c[0] * &c[1], c[1].clone(), c[0].clone()]
    });
    let t = jvp(&[&r[0], &r[1], &r[2]], &[&x], &[&g.ones([2], DType::F64)]);
    // c1 does not move; c2 is given what moves.
    close(&values(&t[0]), &[27.0, 64.0]);
    assert_eq!(values(&t[1]), [0.0, 0.0]);
    close(&values(&t[2]), &[9.0, 16.0]);
    let carried = g.with_ir(|ir| {
        let loops = ir.nodes().filter_map(|(_, n)| match &n.kind {
            tlc::ir::graph::NodeKind::Loop(l) => Some(l.carried),
            _ => None,
        });
        loops.collect::<Vec<_>>()
    });
    assert_eq!(carried, [3, 5]);
}

#[test]
fn regions_move_as_their_rule_says() {
    let g = Graph::default();
    let x = g.constant([1.0f64, 3.0]);
    let t = g.constant([10.0f64, 100.0]);
    let still = jvp(&[&(&x * x.stop_gradient())], &[&x], &[&t]);
    assert_eq!(values(&still[0]), [10.0, 300.0]);
    // The rule, not the function: whole numbers do not move.
    let rounded = custom_vjp(
        &[&x, &t],
        |x| vec![x[0].round(), x[0].argmax(0), &x[0] * &x[1]],
        |k| {
            vec![
                &k.cotangents[0] * 3.0 + &k.cotangents[1] * &k.operands[1],
                &k.cotangents[1] * &k.operands[0],
            ]
        },
    );
    let found = jvp(&[&rounded[0], &rounded[2]], &[&x], &[&t]);
    assert_eq!(values(&found[0]), [30.0, 300.0]);
    assert_eq!(values(&found[1]), [100.0, 10000.0]);
}

#[test]
fn narrow_floats_have_tangents_of_their_type() {
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        let g = Graph::default();
        let x = g.constant([1.0f64, 2.0]).cast(dtype);
        let t = g.constant([1.0f64, -1.0]).cast(dtype);
        let y = (x.square() * &x + x.sqrt().square()).cumsum(0).matmul(&x);
        let d = jvp(&[&y], &[&x], &[&t]);
        assert_eq!(d[0].ty(), y.ty());
        // y = 2 x0^4 ... with sums c0 = x0^3 + x0, c1 = c0 + x1^3 + x1: y = c0 x0 + c1 x1.
        // dy = dc0 x0 + c0 + dc1 x1 - c1, dc0 = 4, dc1 = 4 - 13.
        let expected = 4.0 + 2.0 + (4.0 - 13.0) * 2.0 - 12.0;
        assert_eq!(values(&d[0].cast(DType::F64)), [expected]);
    }
}

#[test]
fn what_has_no_tangent_is_refused() {
    let g = Graph::default();
    let x = g.input("x", DType::F32, [3]);
    assert!(jvp(&[&x.argmax(0)], &[&x], &[&x])[0].is_poisoned());
    let text = error(&g);
    assert!(text.contains("output 0 is i64[]; expected floats"), "{text}");
    assert!(text.contains("tests/gradients/forward.rs"), "{text}");

    let g = Graph::default();
    let x = g.input("x", DType::F32, [3]);
    let _ = jvp(&[&x.exp()], &[&x], &[]);
    let text = error(&g);
    assert!(
        text.contains("1 inputs and 0 tangents; expected a tangent for each input"),
        "{text}"
    );

    let g = Graph::default();
    let x = g.input("x", DType::F32, [3]);
    let _ = jvp(&[&x.exp()], &[&x], &[&g.zeros([2], DType::F32)]);
    assert!(error(&g).contains("a tangent f32[2] of f32[3]"), "{}", error(&g));

    let g = Graph::default();
    let x = g.input("x", DType::F32, [3]);
    let _ = hvp(&x.exp(), &[&x], &[&x]);
    assert!(error(&g).contains("the loss is no float of rank 0"), "{}", error(&g));

    let g = Graph::default();
    let x = g.input("x", DType::F16, [3]);
    let _ = jvp(&[&x.bitcast(DType::BF16)], &[&x], &[&x]);
    assert!(
        error(&g).contains("the derivative of bitcast %0 at tests/gradients/forward.rs"),
        "{}",
        error(&g)
    );
}
