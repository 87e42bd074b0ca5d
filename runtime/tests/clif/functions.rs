//! Elementary functions with rare paths: special arguments in lanes beside ordinary ones.

use tlc_codegen::wide::{self, Level};
use tlc_ir::kernel::interp::interpret;
use tlc_ir::kernel::verify::verify;
use tlc_ir::kernel::{Access, Bind, Op, Stmt};
use tlc_ir::target::Emitter;
use tlc_ir::{DType, Kernel, Scalar, ScalarOp};
use tlc_passes::legalize::legalize;

use crate::build::*;
use crate::contract::{parse, tensors};

/// `op` of `n` numbers, so many at once.
fn kernel(op: ScalarOp, dtype: DType, n: i64, lanes: i64) -> Kernel {
    kernel_for(op, dtype, n, lanes, &tlc_codegen::clif::emitter(true))
}

/// As [`kernel`], for an emitter.
fn kernel_for(op: ScalarOp, dtype: DType, n: i64, lanes: i64, emitter: &Emitter) -> Kernel {
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
    legalize(&mut kernel, emitter);
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

/// What each code generator that has all of a kernel makes of it, as written to the last of its buffers, and what the interpreter does.
fn results(kernel: &Kernel, arguments: &[Vec<Scalar>]) -> (Vec<Vec<Scalar>>, Vec<Scalar>) {
    assert_eq!(verify(kernel).errors, [], "{kernel}");
    let mut tensors = tensors(kernel, arguments);
    interpret(kernel, &mut tensors, &[]).unwrap_or_else(|e| panic!("{e}\n{kernel}"));
    let last = tensors.last().expect("a result");
    let meant = (0..last.len()).map(|i| last.get(i)).collect();
    let takes = |maker: &Maker| !matches!(maker, Maker::Wide(Level::Avx2));
    let made = makers().into_iter().filter(takes).map(|maker| {
        let f = compile_all(&maker, &[kernel]).remove(0).function;
        let mut buffers: Vec<Vec<u8>> = arguments.iter().map(|v| bytes(v)).collect();
        run_function(&f, kernel, &mut buffers, &[], None);
        scalars(last.dtype(), buffers.last().expect("a result"))
    });
    (made.collect(), meant)
}

fn f32_of(x: f32) -> Scalar {
    Scalar::from_bits(DType::F32, x.to_bits().into())
}

/// Every number by every power, in lanes and alone; what is printed is read again.
#[test]
fn scaling_by_a_power_of_two_rounds_once() {
    let numbers = [
        0.0,
        1.0,
        1.999_999_9,
        0.3,
        f32::MIN_POSITIVE,
        f32::from_bits(1),
        f32::from_bits(0x7f_ffff),
        f32::MAX,
        f32::INFINITY,
        f32::NAN,
    ];
    let powers = [
        0.0,
        1.0,
        0.75,
        24.0,
        126.0,
        127.0,
        128.0,
        149.0,
        150.0,
        151.5,
        276.0,
        277.0,
        300.0,
        1e9,
        f32::MAX,
        f32::INFINITY,
    ];
    let signs = |all: &[f32]| -> Vec<f32> { all.iter().flat_map(|&x| [x, -x]).collect() };
    let pairs: Vec<(f32, f32)> = signs(&numbers)
        .iter()
        .flat_map(|&x| signs(&powers).into_iter().chain([f32::NAN]).map(move |n| (x, n)))
        .collect();
    let pairs = &pairs[..pairs.len() / 16 * 16];
    let n = pairs.len() as i64;
    for lanes in [1, 4, 8, 16] {
        let mut b = Builder::default();
        let [x, by] = [0, 1].map(|_| b.param(DType::F32, c(n), Access::Read));
        let y = b.param(DType::F32, c(n), Access::Write);
        b.repeat(Bind::Serial, c(n / lanes), |b, i| {
            b.repeat(Bind::Lanes, c(lanes), |b, l| {
                let at = i * c(lanes) + l;
                let operands = [b.load(x, at.clone()), b.load(by, at.clone())];
                let v = b.op(DType::F32, Op::Scale(operands));
                b.store(y, at, v);
            });
        });
        let kernel = b.finish();
        assert_eq!(parse(&kernel.to_string()).to_string(), kernel.to_string());
        let arguments = [
            pairs.iter().map(|p| f32_of(p.0)).collect(),
            pairs.iter().map(|p| f32_of(p.1)).collect(),
            vec![f32_of(0.0); pairs.len()],
        ];
        let (made, meant) = results(&kernel, &arguments);
        for (i, (x, power)) in pairs.iter().enumerate() {
            for made in &made {
                assert_eq!(
                    distance(made[i], meant[i]),
                    0,
                    "{x:e} 2^{power}: {}, {}",
                    made[i],
                    meant[i]
                );
            }
            // Where the power is a number, and the product is one.
            let exact = f64::from(*x) * f64::from(power.floor()).exp2();
            if power.abs() <= 300.0 {
                assert_eq!(
                    distance(meant[i], f32_of(exact as f32)),
                    0,
                    "{x:e} 2^{power}: {}",
                    meant[i]
                );
            }
        }
    }
}

/// An emitter that multiplies by powers of two has shorter exponentials, of the same bits.
#[test]
fn exponentials_that_scale_have_the_same_bits() {
    let special = specials(DType::F32).into_iter().map(|x| x as f32);
    let strided = (0..=u32::MAX).step_by(1 << 20).map(f32::from_bits);
    let numbers: Vec<Scalar> = special.chain(strided).map(f32_of).collect();
    let numbers = &numbers[..numbers.len() / 16 * 16];
    let n = numbers.len() as i64;
    let each = |op| [1, 16].map(|lanes| (op, lanes));
    for (op, lanes) in [ScalarOp::Exp, ScalarOp::Exp2].into_iter().flat_map(each) {
        let of = |emitter: &Emitter| {
            let kernel = kernel_for(op, DType::F32, n, lanes, emitter);
            let arguments = [numbers.to_vec(), vec![f32_of(0.0); numbers.len()]];
            (results(&kernel, &arguments), statements(&kernel.body))
        };
        let ((scaled, meant), fewer) = of(&wide::emitter(Level::Avx512).with_scales());
        let ((long, same), more) = of(&wide::emitter(Level::Avx512));
        assert!(fewer < more, "{op}: {fewer} and {more} statements");
        for (i, x) in numbers.iter().enumerate() {
            assert_eq!(distance(meant[i], same[i]), 0, "{op} {x}: {}, {}", meant[i], same[i]);
            for made in scaled.iter().chain(&long) {
                assert_eq!(distance(made[i], meant[i]), 0, "{op} {x}: {}, {}", made[i], meant[i]);
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
