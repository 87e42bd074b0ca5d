//! Corners, ties, zeros, empty tensors, repeated operands. Expected values are written down by hand after what the named system
//! documents or computes; where that says nothing, after the rule that this crate states.

use tlc::{DType, Graph, GridSample, Interpolation, Monoid, RoiAlign, ScatterOp, Tensor, grad};

const INF: f64 = f64::INFINITY;
const NAN: f64 = f64::NAN;

/// The derivative of the sum of `f(x)`.
fn slope(x: &[f64], f: impl Fn(&Tensor) -> Tensor) -> Vec<f64> {
    let g = Graph::default();
    let x = g.constant(x.to_vec());
    let d = grad(&f(&x).sum(..), &[&x]);
    d[0].eval().unwrap().as_slice::<f64>().unwrap().to_vec()
}

fn same(name: &str, found: &[f64], expected: &[f64]) {
    let equal = |(a, b): (&f64, &f64)| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-14 * b.abs();
    let all = found.len() == expected.len() && found.iter().zip(expected).all(equal);
    assert!(all, "{name}: {found:?}, expected {expected:?}");
}

/// PyTorch's, where both systems agree JAX's as well (`torch.autograd.grad(f(x).sum(), x)`).
#[test]
fn functions_at_their_corners() {
    type F = fn(&Tensor) -> Tensor;
    let table: &[(&str, F, &[f64], &[f64])] = &[
        (
            "abs",
            |x| x.abs(),
            &[-2.0, -0.0, 0.0, 3.0, NAN],
            &[-1.0, 0.0, 0.0, 1.0, NAN],
        ),
        ("sign", |x| x.sign(), &[-2.0, 0.0, 3.0], &[0.0, 0.0, 0.0]),
        ("floor", |x| x.floor(), &[-2.0, 0.5, 3.0], &[0.0, 0.0, 0.0]),
        ("sqrt", |x| x.sqrt(), &[0.0, 4.0, -1.0, INF], &[INF, 0.25, NAN, 0.0]),
        ("rsqrt", |x| x.rsqrt(), &[0.0, 4.0], &[-INF, -0.0625]),
        ("log", |x| x.log(), &[0.0, 2.0, INF], &[INF, 0.5, 0.0]),
        ("log2", |x| x.log2(), &[0.0], &[INF]),
        ("log1p", |x| x.log1p(), &[-1.0, 0.0], &[INF, 1.0]),
        (
            "reciprocal",
            |x| x.reciprocal(),
            &[0.0, -0.0, 2.0, INF],
            &[-INF, -INF, -0.25, 0.0],
        ),
        ("square", |x| x.square(), &[0.0, -3.0], &[0.0, -6.0]),
        ("x ** 0", |x| x.pow(0.0), &[0.0, 2.0, NAN], &[0.0, 0.0, 0.0]),
        ("x ** 1", |x| x.pow(1.0), &[0.0, -2.0], &[1.0, 1.0]),
        ("x ** 2", |x| x.pow(2.0), &[0.0, -2.0], &[0.0, -4.0]),
        ("x ** 3", |x| x.pow(3.0), &[0.0, -2.0], &[0.0, 12.0]),
        ("x ** 0.5", |x| x.pow(0.5), &[0.0, 4.0], &[INF, 0.25]),
        ("x ** -1", |x| x.pow(-1.0), &[0.0, 2.0], &[-INF, -0.25]),
        (
            "0 ** x",
            |x| x.graph().scalar(0.0, DType::F64).pow(x),
            &[0.0, 1.0, 2.0],
            &[0.0, 0.0, 0.0],
        ),
        (
            "1 ** x",
            |x| x.graph().scalar(1.0, DType::F64).pow(x),
            &[0.0, 1.0, -2.0],
            &[0.0, 0.0, 0.0],
        ),
        ("asin", |x| x.asin(), &[1.0, -1.0, 0.0], &[INF, INF, 1.0]),
        ("acos", |x| x.acos(), &[1.0, -1.0, 0.0], &[-INF, -INF, -1.0]),
        ("atanh", |x| x.atanh(), &[1.0, -1.0, 0.0], &[INF, INF, 1.0]),
        ("acosh", |x| x.acosh(), &[1.0, -2.0], &[INF, NAN]),
        ("exp", |x| x.exp(), &[-INF, 0.0, INF], &[0.0, 1.0, INF]),
        ("tanh", |x| x.tanh(), &[-INF, 0.0, INF], &[0.0, 1.0, 0.0]),
        ("sigmoid", |x| x.sigmoid(), &[0.0], &[0.25]),
        (
            "erf",
            |x| x.erf(),
            &[0.0, INF],
            &[std::f64::consts::FRAC_2_SQRT_PI, 0.0],
        ),
        ("sin", |x| x.sin(), &[0.0], &[1.0]),
        ("cos", |x| x.cos(), &[0.0], &[0.0]),
        // torch.maximum and torch.minimum: half to each of equal operands, all of it to both where one is NaN.
        (
            "max(x, 1)",
            |x| x.maximum(1.0),
            &[0.0, 1.0, 2.0, NAN],
            &[0.0, 0.5, 1.0, 1.0],
        ),
        (
            "min(x, 1)",
            |x| x.minimum(1.0),
            &[0.0, 1.0, 2.0, NAN],
            &[1.0, 0.5, 0.0, 1.0],
        ),
        ("max(x, x)", |x| x.maximum(x), &[1.0, -2.0], &[1.0, 1.0]),
        // torch.nn.functional: 0 at the bounds; elu has that of its branch for negative numbers. Clamp passes at its bounds.
        (
            "relu",
            |x| x.relu(),
            &[-1.0, -0.0, 0.0, 2.0, NAN],
            &[0.0, 0.0, 0.0, 1.0, 1.0],
        ),
        (
            "relu6",
            |x| x.relu6(),
            &[-1.0, 0.0, 3.0, 6.0, 7.0],
            &[0.0, 0.0, 1.0, 0.0, 0.0],
        ),
        (
            "hardtanh",
            |x| x.hard_tanh(-1.0, 1.0),
            &[-2.0, -1.0, 0.0, 1.0, 2.0],
            &[0.0, 0.0, 1.0, 0.0, 0.0],
        ),
        (
            "hardsigmoid",
            |x| x.hard_sigmoid() * 6.0,
            &[-4.0, -3.0, 0.0, 3.0, 4.0],
            &[0.0, 0.0, 1.0, 0.0, 0.0],
        ),
        (
            "clamp",
            |x| x.clamp(-1.0, 1.0),
            &[-2.0, -1.0, 0.0, 1.0, 2.0],
            &[0.0, 1.0, 1.0, 1.0, 0.0],
        ),
        (
            "clamp from 0",
            |x| x.clamp(0.0, INF),
            &[-2.0, -0.0, 0.0, 1.0],
            &[0.0, 1.0, 1.0, 1.0],
        ),
        ("elu", |x| x.elu(2.0), &[0.0, 1.0], &[2.0, 1.0]),
        (
            "leaky_relu",
            |x| x.leaky_relu(0.25),
            &[-1.0, 0.0, 1.0],
            &[0.25, 0.25, 1.0],
        ),
        ("softplus", |x| x.softplus(), &[0.0], &[0.5]),
        ("log_sigmoid", |x| x.log_sigmoid(), &[0.0], &[0.5]),
        ("norm", |x| x.norm(..), &[0.0, 0.0], &[0.0, 0.0]),
        ("norm of one", |x| x.norm(..), &[-3.0, 0.0], &[-1.0, 0.0]),
        // torch.fmod and torch.remainder by the divisor: the quotient that was taken off, negated.
        (
            "rem(7, x)",
            |x| (x.graph().scalar(7.0, DType::F64)).rem(x),
            &[2.0, -2.0, 0.7],
            &[-3.0, 3.0, -10.0],
        ),
        (
            "mod(7, x)",
            |x| x.graph().scalar(7.0, DType::F64) % x,
            &[2.0, -2.0],
            &[-3.0, 4.0],
        ),
        ("x + x", |x| x + x, &[1.0], &[2.0]),
        ("x - x", |x| x - x, &[1.0], &[0.0]),
        ("x * x", |x| x * x, &[3.0], &[6.0]),
        ("x / x", |x| x / x, &[3.0], &[0.0]),
        (
            "x ** x",
            |x| x.pow(x),
            &[1.0, 2.0],
            &[1.0, 4.0 * (1.0 + std::f64::consts::LN_2)],
        ),
        ("fma(x, x, x)", |x| x.fma(x, x), &[3.0], &[7.0]),
        ("atan2(x, x)", |x| x.atan2(x), &[3.0, 0.0], &[0.0, 0.0]),
    ];
    for (name, f, x, expected) in table {
        same(name, &slope(x, f), expected);
    }
}

/// An untaken branch whose local derivative is finite gives 0; where that is infinite the result is NaN (torch.where, jnp.where).
#[test]
fn branches_that_are_not_taken() {
    let safe = slope(&[-1.0, 4.0], |x| x.gt(0.0).select(x.square(), 1.0));
    same("finite", &safe, &[0.0, 8.0]);
    let unsafe_ = slope(&[0.0, 4.0], |x| x.gt(0.0).select(x.sqrt(), 0.0));
    same("infinite", &unsafe_, &[NAN, 0.25]);
}

/// torch.amax and torch.amin: in equal parts to all that are the extremum; where that is NaN, to all NaN (torch.max).
#[test]
fn reductions_at_ties_and_zeros() {
    same("max", &slope(&[3.0, 1.0, 3.0], |x| x.max(..)), &[0.5, 0.0, 0.5]);
    same(
        "min",
        &slope(&[3.0, 1.0, 1.0, 1.0, 1.0], |x| x.min(..)),
        &[0.0, 0.25, 0.25, 0.25, 0.25],
    );
    same("max of NaN", &slope(&[3.0, NAN, 1.0], |x| x.max(..)), &[0.0, 1.0, 0.0]);
    same("prod", &slope(&[2.0, 3.0, 4.0], |x| x.prod(..)), &[12.0, 8.0, 6.0]);
    same(
        "prod, one zero",
        &slope(&[2.0, 0.0, 4.0], |x| x.prod(..)),
        &[0.0, 8.0, 0.0],
    );
    same(
        "prod, two zeros",
        &slope(&[0.0, 0.0, 4.0], |x| x.prod(..)),
        &[0.0, 0.0, 0.0],
    );
    same("prod of one", &slope(&[0.0], |x| x.prod(..)), &[1.0]);
    same("norm of zeros", &slope(&[3.0, 4.0], |x| x.norm(..)), &[0.6, 0.8]);
    same("mean", &slope(&[3.0, 4.0], |x| x.mean(..)), &[0.5, 0.5]);
    same(
        "argmax",
        &slope(&[3.0, 4.0], |x| x.argmax(0).cast(DType::F64)),
        &[0.0, 0.0],
    );
}

/// torch.cumprod with zeros; running extrema go to the first element that was the extremum.
#[test]
fn scans_at_ties_and_zeros() {
    same(
        "cumprod",
        &slope(&[2.0, 3.0, 4.0], |x| x.cumprod(0)),
        &[16.0, 10.0, 6.0],
    );
    same(
        "cumprod, a zero",
        &slope(&[2.0, 0.0, 4.0], |x| x.cumprod(0)),
        &[1.0, 10.0, 0.0],
    );
    same(
        "cumprod, zeros",
        &slope(&[0.0, 0.0, 4.0], |x| x.cumprod(0)),
        &[1.0, 0.0, 0.0],
    );
    same("cumsum", &slope(&[2.0, 0.0, 4.0], |x| x.cumsum(0)), &[3.0, 2.0, 1.0]);
    same(
        "cummax",
        &slope(&[1.0, 3.0, 3.0, 2.0, 4.0], |x| x.cummax(0)),
        &[1.0, 3.0, 0.0, 0.0, 1.0],
    );
    same(
        "cummin",
        &slope(&[3.0, 3.0, 1.0, 2.0], |x| x.cummin(0)),
        &[2.0, 0.0, 2.0, 0.0],
    );
    same(
        "cummax of NaN",
        &slope(&[1.0, NAN, 3.0, NAN], |x| x.cummax(0)),
        &[1.0, 3.0, 0.0, 0.0],
    );
    let last = |x: &Tensor| x.scan(Monoid::Max, 0, false, true);
    same(
        "from the end",
        &slope(&[4.0, 3.0, 3.0, 2.0], last),
        &[1.0, 0.0, 2.0, 1.0],
    );
    same("of -inf", &slope(&[-INF, -INF], |x| x.cummax(0)), &[2.0, 0.0]);
}

/// PyTorch's; JAX has NaN there.
#[test]
fn the_angle_at_the_origin() {
    let g = Graph::default();
    let (y, x) = (
        g.constant([0.0f64, -0.0, 0.0, 3.0]),
        g.constant([0.0f64, 0.0, -0.0, 4.0]),
    );
    let first = grad(&y.atan2(&x).sum(..), &[&y, &x]);
    same(
        "by y",
        first[0].eval().unwrap().as_slice().unwrap(),
        &[0.0, 0.0, 0.0, 4.0 / 25.0],
    );
    same(
        "by x",
        first[1].eval().unwrap().as_slice().unwrap(),
        &[0.0, 0.0, 0.0, -3.0 / 25.0],
    );
    let second = grad(&first[0].sum(..), &[&y, &x]);
    same(
        "by y, y",
        second[0].eval().unwrap().as_slice().unwrap(),
        &[0.0, 0.0, 0.0, -24.0 / 625.0],
    );
    same(
        "by y, x",
        second[1].eval().unwrap().as_slice().unwrap(),
        &[0.0, 0.0, 0.0, -7.0 / 625.0],
    );
}

/// jnp.ndarray.at[..].set: of several updates of one place, the last has the derivative. torch.scatter_reduce (amax, prod).
#[test]
fn scatters_at_the_same_place() {
    let into = |how: ScatterOp| {
        move |x: &Tensor| {
            let g = x.graph();
            let base = g.constant([1.0f64, 2.0, 0.0]);
            base.scatter(&[0], &[&g.constant([1i64, 1, 2, 5])], x, how)
        }
    };
    same(
        "set",
        &slope(&[3.0, 4.0, 5.0, 6.0], into(ScatterOp::Set)),
        &[0.0, 1.0, 1.0, 0.0],
    );
    same(
        "add",
        &slope(&[3.0, 4.0, 5.0, 6.0], into(ScatterOp::Add)),
        &[1.0, 1.0, 1.0, 0.0],
    );
    same(
        "mul",
        &slope(&[3.0, 4.0, 5.0, 6.0], into(ScatterOp::Mul)),
        &[8.0, 6.0, 0.0, 0.0],
    );
    same(
        "max",
        &slope(&[2.0, 2.0, 5.0, 6.0], into(ScatterOp::Max)),
        &[1.0 / 3.0, 1.0 / 3.0, 1.0, 0.0],
    );
    same(
        "min",
        &slope(&[2.0, 1.0, 0.0, 6.0], into(ScatterOp::Min)),
        &[0.0, 1.0, 0.5, 0.0],
    );
    let base = |how: ScatterOp| {
        move |x: &Tensor| {
            let g = x.graph();
            x.scatter(&[0], &[&g.constant([1i64, 1])], &g.constant([3.0f64, 4.0]), how)
        }
    };
    same("into, set", &slope(&[1.0, 2.0], base(ScatterOp::Set)), &[1.0, 0.0]);
    same("into, add", &slope(&[1.0, 2.0], base(ScatterOp::Add)), &[1.0, 1.0]);
    same("into, mul", &slope(&[1.0, 2.0], base(ScatterOp::Mul)), &[1.0, 12.0]);
    same("into, max", &slope(&[1.0, 4.0], base(ScatterOp::Max)), &[1.0, 0.5]);
}

/// Sorted elements carry their cotangents back; equal ones keep their order.
#[test]
fn sorts_at_ties() {
    let weigh = |x: Tensor| x.graph().constant([1.0f64, 10.0, 100.0]) * x;
    same(
        "sort",
        &slope(&[2.0, 1.0, 2.0], |x| weigh(x.sort(0, false))),
        &[10.0, 1.0, 100.0],
    );
    same(
        "top_k",
        &slope(&[2.0, 1.0, 2.0], |x| x.top_k(1, 0, true).0),
        &[1.0, 0.0, 0.0],
    );
}

/// Nothing has derivatives, too: of no elements there are none, and the sum of none is 0.
#[test]
fn empty_tensors() {
    let none: &[f64] = &[];
    same("sum", &slope(none, |x| x.sum(..)), none);
    same("prod", &slope(none, |x| x.prod(..)), none);
    same("exp", &slope(none, |x| x.exp()), none);
    same("cumprod", &slope(none, |x| x.cumprod(0)), none);
    same("slice", &slope(&[1.0, 2.0], |x| x.slice(tlc::s(1..1))), &[0.0, 0.0]);
    let g = Graph::default();
    let (a, b) = (g.zeros([3, 0], DType::F64).copy(), g.zeros([0, 2], DType::F64).copy());
    let d = grad(&a.matmul(&b).sum(..), &[&a, &b]);
    assert_eq!(d[0].const_shape(), Some(vec![3, 0]));
    assert_eq!(d[1].const_shape(), Some(vec![0, 2]));
}

/// Rank 0, broadcast operands, and values that are used often.
#[test]
fn ranks_and_uses() {
    let g = Graph::default();
    let (x, v) = (g.scalar(3.0, DType::F64), g.constant([1.0f64, 2.0, 4.0]));
    let loss = (&x * &v + &x).sum(..);
    let d = grad(&loss, &[&x, &v]);
    same("x", d[0].eval().unwrap().as_slice().unwrap(), &[10.0]);
    same("v", d[1].eval().unwrap().as_slice().unwrap(), &[3.0, 3.0, 3.0]);
    let d = grad(&x, &[&x, &v]);
    same("itself", d[0].eval().unwrap().as_slice().unwrap(), &[1.0]);
    same("unreached", d[1].eval().unwrap().as_slice().unwrap(), &[0.0, 0.0, 0.0]);
    // A value in between, and what it is computed from.
    let y = v.square();
    let d = grad(&y.exp().sum(..), &[&y, &v, &v]);
    let e = [1.0f64.exp(), 4.0f64.exp(), 16.0f64.exp()];
    let close = |found: &Tensor, expected: &[f64]| {
        let found = found.eval().unwrap();
        let found = found.as_slice::<f64>().unwrap();
        assert!(
            found
                .iter()
                .zip(expected)
                .all(|(a, b)| (a - b).abs() <= 1e-12 * b.abs()),
            "{found:?}"
        );
    };
    close(&d[0], &e);
    close(&d[1], &[2.0 * e[0], 4.0 * e[1], 8.0 * e[2]]);
    close(&d[2], &[2.0 * e[0], 4.0 * e[1], 8.0 * e[2]]);
}

/// On an element the slope of a linear interpolation changes: PyTorch takes the one after it, the difference to the next element.
#[test]
fn a_sample_on_an_element_has_the_slope_after_it() {
    let g = Graph::default();
    let x = g.constant([[[0.0f64, 1.0, 4.0]]]);
    // The three elements themselves, where corners are aligned: places are grid + 1.
    let grid = g.constant([[[-1.0f64], [0.0], [1.0]]]);
    let y = x.grid_sample(&grid, &GridSample::new(Interpolation::Linear).align_corners());
    assert_eq!(
        y.eval().expect("a value").as_slice::<f64>().expect("f64"),
        [0.0, 1.0, 4.0]
    );
    let d = grad(&y.sum(..), &[&grid]).remove(0);
    assert_eq!(
        d.eval().expect("a value").as_slice::<f64>().expect("f64"),
        [1.0, 3.0, -4.0]
    );
}

/// Of a region that ends before it begins there are no samples: its cells are zero whatever it is, and other regions have the derivatives that they
/// have without it.
#[test]
fn regions_without_samples() {
    let slopes = |regions: &[[f64; 4]], counts: &[[i64; 2]], max: bool| -> Vec<f64> {
        let g = Graph::default();
        let image: Vec<f64> = (0..25).map(|i| f64::from(i * i % 11)).collect();
        let x = g.constant(image).reshape([1, 1, 5, 5]);
        let boxes = g.constant(regions.concat()).reshape([regions.len(), 4]);
        let options = RoiAlign {
            cells: [1, 2],
            samples: [2, 2],
            counts: Some(g.constant(counts.concat()).reshape([regions.len(), 2])),
            scale: 1.0,
            half_pixel: true,
            max,
        };
        let y = x.roi_align(&boxes, &g.constant(vec![0i64; regions.len()]), &options);
        let d = grad(&y.sum(..), &[&boxes]);
        d[0].eval().unwrap().as_slice::<f64>().unwrap().to_vec()
    };
    let (whole, empty, flat) = ([0.6, 0.7, 3.4, 3.9], [3.2, 3.1, 1.3, 1.7], [2.2, 0.7, 2.2, 3.9]);
    for max in [false, true] {
        let alone = slopes(&[whole], &[[2, 1]], max);
        assert!(alone.iter().any(|d| *d != 0.0), "{alone:?}");
        let beside = slopes(&[whole, empty, flat], &[[2, 1], [0, 0], [2, 0]], max);
        same("beside others", &beside[..4], &alone);
        same("without samples", &beside[4..], &[0.0; 8]);
    }
}
