//! Elementary functions with rare paths: special arguments in lanes beside ordinary ones.

use tlc_ir::kernel::{Access, Bind, Op, Stmt};
use tlc_ir::{DType, Kernel, Scalar, ScalarOp};
use tlc_passes::legalize::legalize;

use crate::build::*;

/// `op` of `n` numbers, so many at once.
fn kernel(op: ScalarOp, dtype: DType, n: i64, lanes: i64) -> Kernel {
    let mut b = Builder::default();
    let x = b.param(dtype, c(n), Access::Read);
    let y = b.param(dtype, c(n), Access::Write);
    b.repeat(Bind::Serial, c(n / lanes), |b, i| {
        b.repeat(Bind::Lanes, c(lanes), |b, l| {
            let at = i * c(lanes) + l;
            let v = b.load(x, at.clone());
            let v = b.map(op, &[v]);
            b.store(y, at, v);
        });
    });
    let mut kernel = b.finish();
    legalize(&mut kernel, &tlc_codegen::clif::emitter(true));
    kernel
}

/// Both sides of every edge of the regimes of exp and exp2, and what has no magnitude.
fn specials(dtype: DType) -> Vec<f64> {
    let edges: &[f64] = match dtype {
        DType::F32 => &[
            87.0, 87.33655, 88.72284, 103.97208, 104.5, 126.0, 128.0, 149.0, 150.5, 3e38,
        ],
        _ => &[
            708.0, 708.3964, 709.7828, 745.1333, 746.5, 1022.0, 1024.0, 1074.0, 1075.5, 1e308,
        ],
    };
    let step = |x: f64, up: bool| match dtype {
        DType::F32 if up => f64::from((x as f32).next_up()),
        DType::F32 => f64::from((x as f32).next_down()),
        _ if up => x.next_up(),
        _ => x.next_down(),
    };
    let mut out = vec![0.0, 1e-310, f64::INFINITY, f64::NAN, f64::from(f32::MIN_POSITIVE) / 4.0];
    for &edge in edges {
        let edge = if dtype == DType::F32 {
            f64::from(edge as f32)
        } else {
            edge
        };
        out.extend([step(edge, false), edge, step(edge, true)]);
    }
    out.iter().flat_map(|&x| [x, -x]).collect()
}

/// The distance in places, where both are numbers; a NaN is near a NaN only.
fn distance(a: Scalar, b: Scalar) -> u64 {
    let (x, y) = (a.as_f64(), b.as_f64());
    if x.is_nan() || y.is_nan() {
        return if x.is_nan() && y.is_nan() { 0 } else { u64::MAX };
    }
    if x.is_infinite() || y.is_infinite() {
        return if x == y { 0 } else { u64::MAX };
    }
    a.bits().abs_diff(b.bits())
}

#[test]
fn special_arguments_of_exponentials_do_not_touch_their_neighbours() {
    for (dtype, lanes) in [(DType::F32, 4), (DType::F64, 2)] {
        let mut input: Vec<f64> = Vec::new();
        for (i, special) in specials(dtype).into_iter().enumerate() {
            for at in 0..lanes as usize {
                let mut vector: Vec<f64> = (0..lanes)
                    .map(|l| ((i as i64 * 31 + l * 17) % 23 - 11) as f64 / 3.0)
                    .collect();
                vector[at] = special;
                input.extend(vector);
            }
            // A whole vector of them, and one with none.
            input.extend(vec![special; lanes as usize]);
            input.extend((0..lanes).map(|l| (l - 2) as f64 / 7.0));
        }
        let input: Vec<Scalar> = input.into_iter().map(|x| Scalar::from_f64(dtype, x)).collect();
        let n = input.len() as i64;
        for op in [ScalarOp::Exp, ScalarOp::Exp2] {
            let of = |lanes| {
                let mut buffers = [bytes(&input), vec![0; n as usize * dtype.bytes()]];
                run(&kernel(op, dtype, n, lanes), &mut buffers, &[]);
                scalars(dtype, &buffers[1])
            };
            let (together, alone) = (of(lanes), of(1));
            for ((x, y), one) in input.iter().zip(&together).zip(&alone) {
                let value = x.as_f64();
                let expected = if op == ScalarOp::Exp { value.exp() } else { value.exp2() };
                let expected = Scalar::from_f64(dtype, expected);
                let far = distance(*y, expected);
                assert!(far <= 1, "{dtype} {}({value:e}) = {y}, expected {expected}", op.name());
                assert_eq!(
                    distance(*y, *one),
                    0,
                    "{dtype} {}({value:e}) = {y}, alone {one}",
                    op.name()
                );
            }
        }
    }
}

/// `op` of `n` numbers and a constant, or of the constant and the numbers; the constant is loaded if it is not `known` to the kernel.
fn with_constant(op: ScalarOp, constant: Scalar, first: bool, n: i64, lanes: i64, known: bool) -> Kernel {
    let mut b = Builder::default();
    let dtype = constant.dtype();
    let x = b.param(dtype, c(n), Access::Read);
    let other = b.param(dtype, c(1), Access::Read);
    let y = b.param(dtype, c(n), Access::Write);
    b.repeat(Bind::Serial, c(n / lanes), |b, i| {
        b.repeat(Bind::Lanes, c(lanes), |b, l| {
            let at = i * c(lanes) + l;
            let v = b.load(x, at.clone());
            let k = match known {
                true => b.op(dtype, Op::Const(constant)),
                false => b.load(other, c(0)),
            };
            let v = b.map(op, &if first { [k, v] } else { [v, k] });
            b.store(y, at, v);
        });
    });
    let mut kernel = b.finish();
    legalize(&mut kernel, &tlc_codegen::clif::emitter(true));
    kernel
}

fn statements(body: &[Stmt]) -> usize {
    body.iter().map(|s| 1 + statements(s.body())).sum()
}

/// What a formula computes of constants is computed by the compiler, to the bits that the kernel would have computed.
#[test]
fn formulas_of_constants_have_the_same_bits() {
    for (dtype, lanes) in [(DType::F32, 4), (DType::F64, 2), (DType::F64, 1)] {
        let tiny = Scalar::from_bits(dtype, 1).as_f64();
        let constants = [
            0.9,
            0.999,
            2.5,
            -2.0,
            3.0,
            1.0,
            0.0,
            -0.0,
            f64::INFINITY,
            f64::NAN,
            tiny,
        ];
        let constants = constants.map(|x| Scalar::from_f64(dtype, x));
        let numbers: Vec<Scalar> = edges(dtype).iter().flat_map(|x| [*x; 4]).collect();
        for op in [ScalarOp::Pow, ScalarOp::Atan2] {
            for (&constant, first) in constants.iter().flat_map(|x| [(x, false), (x, true)]) {
                let n = numbers.len() as i64;
                let of = |known: bool| {
                    let kernel = with_constant(op, constant, first, n, lanes, known);
                    let nothing = vec![0; n as usize * dtype.bytes()];
                    let mut buffers = [bytes(&numbers), bytes(&[constant]), nothing];
                    run(&kernel, &mut buffers, &[]);
                    (scalars(dtype, &buffers[2]), statements(&kernel.body))
                };
                let ((found, fewer), (expected, more)) = (of(true), of(false));
                for ((x, found), expected) in numbers.iter().zip(found).zip(expected) {
                    let bits = |v: Scalar| if v.as_f64().is_nan() { u64::MAX } else { v.bits() };
                    assert_eq!(
                        bits(found),
                        bits(expected),
                        "{dtype} {}, {constant} and {x}, first {first}: {found}, not {expected}",
                        op.name()
                    );
                }
                assert!(fewer < more, "{fewer} statements, {more}");
            }
        }
    }
    // The logarithm of a base takes half of a power.
    let of = |known| {
        let base = Scalar::from_f64(DType::F64, 0.9);
        statements(&with_constant(ScalarOp::Pow, base, true, 4, 1, known).body)
    };
    assert!(2 * of(true) < of(false), "{} statements, {}", of(true), of(false));
}
