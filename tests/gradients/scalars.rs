//! Every scalar operation.

use tlc::ir::ScalarOp;
use tlc::{DType, Graph, Tensor};

use crate::against::{Given, check};

/// Ranges of operands, and an operation on them.
type Recorded = (Vec<(f64, f64)>, fn(&[Tensor]) -> Tensor);

/// The operation over recorded tensors, and where its operands come from; `None` if it has no floats among its operands.
fn recorded(op: ScalarOp) -> Option<Recorded> {
    let any = (-2.0, 2.0);
    let positive = (0.3, 3.0);
    let unit = (-0.9, 0.9);
    let one = |range, f: fn(&[Tensor]) -> Tensor| Some((vec![range], f));
    let two = |a, b, f: fn(&[Tensor]) -> Tensor| Some((vec![a, b], f));
    match op {
        ScalarOp::Neg => one(any, |x| -&x[0]),
        ScalarOp::Abs => one(any, |x| x[0].abs()),
        ScalarOp::Sign => one(any, |x| x[0].sign()),
        ScalarOp::Floor => one(any, |x| x[0].floor()),
        ScalarOp::Ceil => one(any, |x| x[0].ceil()),
        ScalarOp::Round => one(any, |x| x[0].round()),
        ScalarOp::Trunc => one(any, |x| x[0].trunc()),
        ScalarOp::Sqrt => one(positive, |x| x[0].sqrt()),
        ScalarOp::Rsqrt => one(positive, |x| x[0].rsqrt()),
        ScalarOp::Exp => one(any, |x| x[0].exp()),
        ScalarOp::Exp2 => one(any, |x| x[0].exp2()),
        ScalarOp::Expm1 => one(any, |x| x[0].expm1()),
        ScalarOp::Log => one(positive, |x| x[0].log()),
        ScalarOp::Log2 => one(positive, |x| x[0].log2()),
        ScalarOp::Log1p => one(positive, |x| x[0].log1p()),
        ScalarOp::Sin => one(any, |x| x[0].sin()),
        ScalarOp::Cos => one(any, |x| x[0].cos()),
        ScalarOp::Tan => one(unit, |x| x[0].tan()),
        ScalarOp::Asin => one(unit, |x| x[0].asin()),
        ScalarOp::Acos => one(unit, |x| x[0].acos()),
        ScalarOp::Atan => one(any, |x| x[0].atan()),
        ScalarOp::Sinh => one(any, |x| x[0].sinh()),
        ScalarOp::Cosh => one(any, |x| x[0].cosh()),
        ScalarOp::Tanh => one(any, |x| x[0].tanh()),
        ScalarOp::Asinh => one(any, |x| x[0].asinh()),
        ScalarOp::Acosh => one((1.2, 3.0), |x| x[0].acosh()),
        ScalarOp::Atanh => one(unit, |x| x[0].atanh()),
        ScalarOp::Erf => one(any, |x| x[0].erf()),
        ScalarOp::Add => two(any, any, |x| &x[0] + &x[1]),
        ScalarOp::Sub => two(any, any, |x| &x[0] - &x[1]),
        ScalarOp::Mul => two(any, any, |x| &x[0] * &x[1]),
        ScalarOp::Div => two(any, positive, |x| &x[0] / &x[1]),
        ScalarOp::Rem => two((-5.0, 5.0), (0.9, 1.1), |x| x[0].rem(&x[1])),
        ScalarOp::Mod => two((-5.0, 5.0), (-1.1, -0.9), |x| &x[0] % &x[1]),
        ScalarOp::Pow => two(positive, any, |x| x[0].pow(&x[1])),
        ScalarOp::Atan2 => two(any, positive, |x| x[0].atan2(&x[1])),
        ScalarOp::Max => two(any, any, |x| x[0].maximum(&x[1])),
        ScalarOp::Min => two(any, any, |x| x[0].minimum(&x[1])),
        ScalarOp::Eq => two(any, any, |x| x[0].eq(&x[1]).cast(DType::F64)),
        ScalarOp::Ne => two(any, any, |x| x[0].ne(&x[1]).cast(DType::F64)),
        ScalarOp::Lt => two(any, any, |x| x[0].lt(&x[1]).cast(DType::F64)),
        ScalarOp::Le => two(any, any, |x| x[0].le(&x[1]).cast(DType::F64)),
        ScalarOp::Select => two(any, any, |x| {
            let g = x[0].graph();
            let mask = g.constant([true, false, false, true, true, false, true]);
            mask.select(&x[0], &x[1])
        }),
        ScalarOp::Fma => Some((vec![any, any, any], |x| x[0].fma(&x[1], &x[2]))),
        ScalarOp::Not
        | ScalarOp::And
        | ScalarOp::Or
        | ScalarOp::Xor
        | ScalarOp::Shl
        | ScalarOp::Shr
        | ScalarOp::Dot4 => None,
    }
}

#[test]
fn every_scalar_operation_has_its_derivative() {
    for &op in ScalarOp::ALL {
        let Some((ranges, f)) = recorded(op) else {
            assert!(!op.takes(DType::F64), "{op} takes floats");
            continue;
        };
        let given: Vec<Given<'_>> = ranges.iter().map(|r| (&[7usize][..], r.0, r.1)).collect();
        check(op.name(), &given, |_, x| f(x));
    }
}

#[test]
fn powers_with_known_exponents_have_theirs() {
    for e in [0.0, 1.0, 2.0, 3.0, 4.0, 0.5, -1.5] {
        check(&format!("pow {e}"), &[(&[5], 0.3, 3.0)], |_, x| x[0].pow(e));
    }
    check("powi", &[(&[5], -2.0, 2.0)], |_, x| x[0].powi(5));
    check("base", &[(&[5], -2.0, 2.0)], |g, x| {
        g.scalar(2.5, DType::F64).pow(&x[0])
    });
}

/// In f16 and bf16 a derivative of several operations is computed in f32 and rounded once.
#[test]
fn narrow_floats_round_once() {
    for dtype in [DType::F16, DType::BF16] {
        let g = Graph::default();
        let x = g.constant([0.3f32, -1.7, 2.9]).cast(dtype);
        let d = tlc::grad(&x.tanh().cast(DType::F32).sum(..), &[&x]);
        assert_eq!(d[0].dtype(), dtype);
        let y = x.tanh().cast(DType::F32);
        let expected = ((1.0 - &y) * (&y + 1.0)).cast(dtype);
        assert_eq!(
            d[0].cast(DType::F32).eval().unwrap().as_slice::<f32>().unwrap(),
            expected.cast(DType::F32).eval().unwrap().as_slice::<f32>().unwrap(),
        );
        // Three uses of 1, one of 2^-11 or less: their sum is carried in f32.
        let small = if dtype == DType::F16 { 0.0004 } else { 0.003 };
        let y = &x * 1.0 + &x * small + &x * small + &x * small;
        let d = tlc::grad(&y.cast(DType::F32).sum(..), &[&x]);
        let found = d[0].cast(DType::F32).eval().unwrap();
        let narrow = |v: f64| tlc::Scalar::from_f64(dtype, v).as_f64();
        let expected = narrow(1.0 + 3.0 * narrow(small)) as f32;
        assert_eq!(found.as_slice::<f32>().unwrap(), [expected; 3], "{dtype}");
    }
}
