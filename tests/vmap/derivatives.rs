//! Gradients of each sample, Jacobians and matrices of second derivatives.

use tlc::ir::rng::Rng;
use tlc::{CompileOptions, DType, Graph, HostTensor, Tensor, grad, hessian, inputs, jacobian, jvp, vjp, vmap};

fn drawn(g: &Graph, shape: &[usize], seed: u64) -> Tensor {
    let mut rng = Rng::new(seed);
    let data: Vec<f64> = (0..shape.iter().product()).map(|_| rng.unit() * 2.0 - 1.0).collect();
    g.constant(HostTensor::from_slice(shape, &data).expect("as many elements"))
}

fn values(t: &Tensor) -> Vec<f64> {
    t.eval().expect("it runs").as_slice::<f64>().expect("doubles").to_vec()
}

fn close(a: &[f64], b: &[f64]) {
    assert_eq!(a.len(), b.len());
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-11 * (1.0 + b.abs());
    assert!(a.iter().zip(b).all(near), "{a:?} and {b:?}");
}

/// A small network: a convolution, pooling, a loop, a product and a loss.
fn loss(x: &Tensor, label: &Tensor, kernel: &Tensor, w: &Tensor) -> Tensor {
    let g = x.graph();
    let image = x.unsqueeze(0);
    let h = image.conv(kernel, None, &tlc::Conv::new().padding(1)).relu();
    let h = h.max_pool(&tlc::Pool::new(2).stride(2)).reshape([1, 8]);
    let h = g
        .repeat(2)
        .carry(&h)
        .record(|i| vec![i.carried[0].matmul(&i.capture(w)).tanh() + &i.carried[0]]);
    h[0].cross_entropy(&label.reshape([1]))
}

#[test]
fn gradients_of_each_sample_are_those_of_the_sample_alone() {
    let g = Graph::default();
    let x = drawn(&g, &[5, 1, 4, 4], 1);
    let labels = g.constant([0i64, 3, 7, 1, 1]);
    let (kernel, w) = (drawn(&g, &[2, 1, 3, 3], 2), drawn(&g, &[8, 8], 3));
    let all = vmap(&[(&x, Some(0)), (&labels, Some(0)), (&kernel, None), (&w, None)], |t| {
        grad(&loss(&t[0], &t[1], &t[2], &t[3]), &[&t[2], &t[3], &t[0]])
    });
    for e in 0..5i64 {
        let own = loss(&x.select_index(0, e), &labels.select_index(0, e), &kernel, &w);
        let alone = grad(&own, &[&kernel, &w]);
        for (d, all) in alone.iter().zip(&all) {
            close(&values(&all.select_index(0, e)), &values(d));
        }
    }
    // Their sum is the gradient of the sum.
    let total = vmap(&[(&x, Some(0)), (&labels, Some(0)), (&kernel, None), (&w, None)], |t| {
        vec![loss(&t[0], &t[1], &t[2], &t[3])]
    });
    let whole = grad(&total[0].sum(..), &[&kernel, &w]);
    close(&values(&all[0].sum(0)), &values(&whole[0]));
    close(&values(&all[1].sum(0)), &values(&whole[1]));
    // And forwards.
    let (u, v) = (drawn(&g, &[2, 1, 3, 3], 4), drawn(&g, &[8, 8], 5));
    let t = jvp(&[&total[0]], &[&kernel, &w], &[&u, &v]);
    let by_rows = (&all[0] * &u).sum([1, 2, 3, 4]) + (&all[1] * &v).sum([1, 2]);
    close(&values(&t[0]), &values(&by_rows));
}

/// Of each row and of each column: by more elements than there are results, and by fewer.
#[test]
fn jacobians_by_rows_and_by_columns() {
    let g = Graph::default();
    let (x, w) = (drawn(&g, &[2, 3], 6), drawn(&g, &[3, 4], 7));
    let wide = x.matmul(&w).softmax(1).cumsum(1).sort(0, true);
    let narrow = x.matmul(&w).sum(1).sin();
    for y in [&wide, &narrow] {
        for x in [&x, &w] {
            let j = jacobian(y, x);
            let shape = [y.const_shape().unwrap(), x.const_shape().unwrap()].concat();
            assert_eq!(j.const_shape(), Some(shape));
            let (u, t) = (
                drawn(&g, &y.const_shape().unwrap(), 8),
                drawn(&g, &x.const_shape().unwrap(), 9),
            );
            let flat = j.reshape([y.elements(), x.elements()]);
            let from_left = u.flatten().matmul(&flat);
            close(&values(&from_left), &values(&vjp(&[y], &[&u], &[x])[0]));
            let from_right = flat.matmul(&t.flatten());
            close(&values(&from_right), &values(&jvp(&[y], &[x], &[&t])[0]));
        }
    }
    // What does not depend on it.
    assert_eq!(values(&jacobian(&narrow, &g.zeros([2], DType::F64))), [0.0; 4]);
    // There is no way back through a loop that nothing bounds.
    let root = g.repeat_while(&x.max(..).gt(0.1)).carry(&x).record(|i| {
        let half = &i.carried[0] * 0.5;
        i.go_on_if(&half.max(..).gt(0.1));
        vec![half]
    });
    let scale = values(&root[0])[0] / values(&x)[0];
    assert!(scale < 1.0);
    assert_eq!(values(&jacobian(&root[0].sum(..), &x)), [scale; 6]);
    // A value itself.
    let y = x.sum(1);
    assert_eq!(values(&jacobian(&y, &y)), [1.0, 0.0, 0.0, 1.0]);
}

/// `log(Σ exp(x))` has the second derivatives `diag(p) - p pᵀ` with `p = softmax(x)`.
#[test]
fn second_derivatives() {
    let g = Graph::default();
    let x = drawn(&g, &[4], 10);
    let h = hessian(&x.logsumexp(0), &x);
    let p = values(&x.softmax(0));
    let expected: Vec<f64> = (0..16)
        .map(|k| f64::from(u8::from(k / 4 == k % 4)) * p[k / 4] - p[k / 4] * p[k % 4])
        .collect();
    close(&values(&h), &expected);
    // Through a loop and regions: symmetric, and what reverse mode twice gives.
    let w = drawn(&g, &[3, 3], 11);
    let y = g
        .repeat(3)
        .carry(&w)
        .record(|i| vec![i.carried[0].matmul(&i.carried[0]).silu() + i.carried[0].sort(1, false)]);
    let loss = (y[0].norm(1) * 0.5).sum(..);
    let h = hessian(&loss, &w);
    assert_eq!(h.const_shape(), Some(vec![3, 3, 3, 3]));
    close(&values(&h), &values(&h.permute([2, 3, 0, 1])));
    let slope = grad(&loss, &[&w]).remove(0).flatten();
    for k in 0..9i64 {
        let row = grad(&slope.select_index(0, k), &[&w]).remove(0);
        close(&values(&h.reshape([9, 9]).select_index(0, k)), &values(&row));
    }
}

/// Iterations that only some examples have pass cotangents and tangents on as they are.
#[test]
fn derivatives_through_conditions_that_differ() {
    let g = Graph::default();
    let (start, limits) = (g.constant([1.5f64, 90.0, 2.5]), g.constant([50.0f64, 7.0, 30.0]));
    let grown = |t: &[Tensor]| {
        let go = t[0].lt(&t[1]);
        let r = t[0].graph().repeat(9).while_(&go).carry(&t[0]).record(|i| {
            let y = i.carried[0].square() + i.capture(&t[1]) * 0.01;
            i.stack(&y, 0);
            i.go_on_if(&y.lt(i.capture(&t[1])));
            vec![y]
        });
        vec![r[0].log() + r[1].sum(..) * 0.001]
    };
    let y = vmap(&[(&start, Some(0)), (&limits, Some(0))], grown).remove(0);
    let d = grad(&y.sum(..), &[&start, &limits]);
    let t = jvp(
        &[&y],
        &[&start, &limits],
        &[&g.full([3], 2.0, DType::F64), &g.full([3], 5.0, DType::F64)],
    );
    let inside = vmap(&[(&start, Some(0)), (&limits, Some(0))], |t| {
        grad(&grown(t)[0], &[&t[0], &t[1]])
    });
    for e in 0..3i64 {
        let own = [start.select_index(0, e), limits.select_index(0, e)];
        let y = grown(&own).remove(0);
        let alone = grad(&y, &[&own[0], &own[1]]);
        for k in 0..2 {
            close(&values(&d[k].select_index(0, e)), &values(&alone[k]));
            close(&values(&inside[k].select_index(0, e)), &values(&alone[k]));
        }
        close(
            &values(&t[0].select_index(0, e)),
            &values(&(&alone[0] * 2.0 + &alone[1] * 5.0)),
        );
    }
}

/// Matrices of each sample, and in each iteration: transformations inside of each other.
#[test]
fn matrices_of_each_sample() {
    let g = Graph::default();
    let (x, w) = (drawn(&g, &[3, 4], 12), drawn(&g, &[4, 4], 13));
    let energy = |x: &Tensor, w: &Tensor| (x.matmul(w).silu().norm(0) + x.logsumexp(0)).square();
    let all = vmap(&[(&x, Some(0)), (&w, None)], |t| {
        let y = t[0].matmul(&t[1]).relu();
        vec![hessian(&energy(&t[0], &t[1]), &t[0]), jacobian(&y, &t[1])]
    });
    let steps = g.repeat(3).slice(&x, 0).record(|i| {
        let (x, w) = (i.slices[0].clone(), i.capture(&w));
        let h = hessian(&energy(&x, &w), &x);
        i.stack(&h, 0);
        vec![]
    });
    close(&values(&steps[0]), &values(&all[0]));
    for e in 0..3i64 {
        let own = x.select_index(0, e);
        close(
            &values(&all[0].select_index(0, e)),
            &values(&hessian(&energy(&own, &w), &own)),
        );
        let y = own.matmul(&w).relu();
        close(&values(&all[1].select_index(0, e)), &values(&jacobian(&y, &w)));
    }
    // The derivative of the norm of a gradient of each sample: a penalty, by what all share.
    let penalty = |x: &Tensor, w: &Tensor| grad(&energy(x, w), &[x]).remove(0).square().sum(..);
    let each = vmap(&[(&x, Some(0)), (&w, None)], |t| vec![penalty(&t[0], &t[1])]).remove(0);
    let found = grad(&each.sum(..), &[&w]).remove(0);
    let alone = (0..3i64).map(|e| grad(&penalty(&x.select_index(0, e), &w), &[&w]).remove(0));
    close(&values(&found), &values(&alone.reduce(|a, b| a + b).expect("three")));
}

#[test]
fn sizes_may_be_symbols() {
    let g = Graph::new("symbolic");
    let n = g.symbol("n", 0..=9);
    let x = g.input("x", DType::F64, &n);
    g.output("j", &jacobian(&x.cumsum(0), &x));
    g.output("h", &hessian(&x.pow(3.0).sum(..), &x));
    let run = g.compile(&CompileOptions::default()).expect("it compiles");
    let found = run.run(&inputs![&[1.0f64, 2.0]]).expect("it runs");
    assert_eq!(found["j"].as_slice::<f64>().unwrap(), [1.0, 0.0, 1.0, 1.0]);
    assert_eq!(found["h"].as_slice::<f64>().unwrap(), [6.0, 0.0, 0.0, 12.0]);
}

/// Zeros of both signs, infinities, negative bases: what the derivative of a power is there does not depend on who else is in the batch.
#[test]
fn powers_at_their_corners_have_the_derivatives_that_they_have_alone() {
    let corners = [
        -2.0,
        -0.5,
        -0.0,
        0.0,
        0.5,
        1.0,
        3.0,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
    ];
    let pairs: Vec<(f64, f64)> = corners.iter().flat_map(|x| corners.map(|e| (*x, e))).collect();
    // Both derivatives, and those of their sum.
    let both = |t: &[Tensor]| {
        let (x, e) = (&t[0], &t[1]);
        let first = grad(&x.pow(e).sum(..), &[x, e]);
        let second = grad(&(first[0].sum(..) + first[1].sum(..)), &[x, e]);
        first.into_iter().chain(second).collect::<Vec<_>>()
    };
    let words = |t: &Tensor| -> Vec<u64> {
        let found = t.eval().expect("it runs");
        let found = found.as_slice::<f64>().expect("doubles");
        // Which of the NaNs it is, nobody says.
        found
            .iter()
            .map(|v| if v.is_nan() { u64::MAX } else { v.to_bits() })
            .collect()
    };
    let g = Graph::default();
    let x = g.constant(pairs.iter().map(|p| p.0).collect::<Vec<_>>());
    let e = g.constant(pairs.iter().map(|p| p.1).collect::<Vec<_>>());
    let alone = both(&[x.clone(), e.clone()]);
    let batch = vmap(&[(&x, Some(0)), (&e, Some(0))], both);
    for (k, (alone, batch)) in alone.iter().zip(&batch).enumerate() {
        assert_eq!(words(alone), words(batch), "result {k}");
    }
    for one in corners {
        let shared = vmap(
            &[(&g.constant(corners), Some(0)), (&g.scalar(one, DType::F64), None)],
            both,
        );
        let alone = both(&[g.constant(corners), g.full(corners.len(), one, DType::F64)]);
        for (k, (alone, shared)) in alone.iter().zip(&shared).enumerate() {
            assert_eq!(words(alone), words(shared), "result {k} for the exponent {one}");
        }
    }
}
