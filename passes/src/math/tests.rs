//! Sampled accuracy, the special cases of C99 annex F, and the emitted operations' types.

use super::Function::{self, *};
use super::reference::{error_f32, error_f64, reference};
use super::scalar::{Scalar, count_f32, count_f64, evaluate_f32, evaluate_f64};
use super::{Emit, Single};

/// The bound in ulps that f32 is held to; f64 is held to [`bound_f64`].
fn bound_f32(function: Function) -> f64 {
    match function {
        Exp | Exp2 | Log | Log2 | Log1p => 1.0,
        Expm1 => 1.5,
        Tanh | Erf | Rsqrt | Sin | Cos => 2.0,
        Tan | Asin | Acos | Atan | Sinh | Cosh | Asinh | Acosh | Atanh | Sigmoid => 3.0,
        _ => 4.0,
    }
}

/// Whole ulps from another library's result, so one more than our own error may be.
fn bound_f64(function: Function) -> f64 {
    match function {
        Exp | Exp2 | Log | Log2 | Expm1 | Log1p => 2.0,
        _ => 4.0,
    }
}

/// Arguments where algorithms change over, and around them.
// Neighbourhoods of constants, written as f32 prints them.
#[allow(
    clippy::approx_constant,
    clippy::excessive_precision,
    reason = "arguments near well-known constants are the point"
)]
fn edges() -> Vec<f32> {
    let mut out = vec![
        0.0,
        f32::MIN_POSITIVE,
        f32::from_bits(1),
        f32::MAX,
        f32::INFINITY,
        f32::NAN,
    ];
    for centre in [
        0.5_f32,
        1.0,
        2.0,
        0.70710677,
        std::f32::consts::SQRT_2,
        0.34657359,
        0.6931472,
        88.72284,
        89.415985,
        103.97208,
        127.0,
        128.0,
        149.0,
        150.0,
        4.0,
        3.9192059,
        9.0109131,
        65536.0,
        1.5707964,
        3.1415927,
        0.7853982,
        1.6777216e7,
        2.1990233e12,
    ] {
        for step in 0..9 {
            out.push(f32::from_bits(centre.to_bits() + step - 4));
        }
    }
    out.iter().flat_map(|&x| [x, -x]).collect()
}

#[test]
fn f32_functions_of_one_argument_are_within_their_bounds() {
    for function in Function::ALL.into_iter().filter(|f| f.arity() == 1) {
        let strided = (0..=u32::MAX).step_by(65_537 * 2 - 1).map(f32::from_bits);
        for x in strided.chain(edges()) {
            let got = evaluate_f32(function, x, 0.0);
            let error = error_f32(got, reference(function, f64::from(x), 0.0));
            assert!(
                error <= bound_f32(function),
                "{}({x:e}) = {got:e}: {error} ulp",
                function.name()
            );
        }
    }
}

#[test]
fn the_exponential_of_a_range_is_within_the_bound_of_that_of_all_numbers() {
    let exp = |x: f32| {
        let mut e = Scalar::<false>::default();
        let x = e.f32(x);
        super::exp_in_range::<Single, _>(&mut e, x).as_f32()
    };
    let limit = super::EXP_NORMAL as f32;
    for n in -1_000_000..=1_000_000 {
        let x = n as f32 / 1e6 * limit;
        let error = error_f32(exp(x), reference(Exp, f64::from(x), 0.0));
        assert!(error <= bound_f32(Exp), "exp({x:e}) = {:e}: {error} ulp", exp(x));
        // So that what a GPU computes has the bits of the processor.
        assert_eq!(exp(x).to_bits(), evaluate_f32(Exp, x, 0.0).to_bits(), "exp({x:e})");
    }
    assert!(exp(f32::NAN).is_nan());
    assert_eq!(exp(0.0), 1.0);
}

#[test]
fn functions_that_scale_by_one_operation_have_the_same_bits() {
    let made = |function, x: f32, scales| {
        let mut e = Scalar::<true> {
            scales,
            ..Scalar::default()
        };
        let x = e.f32(x);
        let y = super::emit::<Single, _>(function, &mut e, &[x]).unwrap().as_f32();
        assert_eq!(e.mismatches, 0);
        (y, e.operations)
    };
    let mut fewer = 0;
    for x in (0..=u32::MAX).step_by(65_537).map(f32::from_bits).chain(edges()) {
        for function in [Exp, Exp2] {
            let ((new, operations), (old, before)) = (made(function, x, true), made(function, x, false));
            let same = new.to_bits() == old.to_bits() || new.is_nan() && old.is_nan();
            assert!(same, "{}({x:e}): {new:e}, {old:e}", function.name());
            fewer += u64::from(operations < before);
        }
    }
    assert!(fewer > 2 << 16);
}

#[test]
fn short_exponentials_have_as_many_bits_as_they_say() {
    let exp2 = |x: f32| {
        let mut e = Scalar::<false>::default();
        let x = e.f32(x);
        super::short_exp2::<Single, _>(&mut e, x).as_f32()
    };
    for n in -1_270_000..=1_270_000 {
        let x = n as f32 / 1e4;
        let expected = f64::from(x).exp2();
        let error = (f64::from(exp2(x)) - expected).abs() / expected;
        let zero = x <= -126.0 && exp2(x) == 0.0;
        assert!(
            error <= tlc_ir::kernel::SHORT_ERROR || zero,
            "{x}: {}, off by {error}",
            exp2(x)
        );
    }
    for n in -126..128 {
        assert_eq!(f64::from(exp2(n as f32)), f64::from(n).exp2());
    }
    let ends = [f32::NEG_INFINITY, -1e30, -127.0, 128.0, f32::INFINITY].map(exp2);
    assert_eq!(ends, [0.0, 0.0, 0.0, f32::INFINITY, f32::INFINITY]);
    assert!(exp2(f32::NAN).is_nan());
}

#[test]
fn f32_functions_of_two_arguments_are_within_their_bounds() {
    let strided: Vec<f32> = (0..=u32::MAX)
        .step_by(21_474_837)
        .map(f32::from_bits)
        .chain(edges())
        .collect();
    for function in [Atan2, Pow] {
        for &x in &strided {
            for &y in &strided {
                let got = evaluate_f32(function, x, y);
                let error = error_f32(got, reference(function, f64::from(x), f64::from(y)));
                assert!(
                    error <= bound_f32(function),
                    "{}({x:e}, {y:e}) = {got:e}: {error} ulp",
                    function.name()
                );
            }
        }
    }
}

#[test]
fn f64_functions_are_within_their_bounds() {
    let strided = (0..=u64::MAX).step_by(0x0003_7fff_ffff_fff7).map(f64::from_bits);
    let arguments: Vec<f64> = strided.chain(edges().into_iter().map(f64::from)).collect();
    for function in Function::ALL {
        for (i, &x) in arguments.iter().enumerate() {
            let y = arguments[(i * 7919 + 13) % arguments.len()];
            let got = evaluate_f64(function, x, y);
            let error = error_f64(got, reference(function, x, y));
            assert!(
                error <= bound_f64(function),
                "{}({x:e}, {y:e}) = {got:e}: {error} ulp",
                function.name()
            );
        }
    }
}

#[test]
fn specials_are_exact() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let cases = [
        (Exp, 0.0, 1.0),
        (Exp, -inf, 0.0),
        (Exp, inf, inf),
        (Exp2, 5.0, 32.0),
        (Exp2, -149.0, f32::from_bits(1)),
        (Expm1, -0.0, -0.0),
        (Expm1, -inf, -1.0),
        (Expm1, f32::from_bits(3), f32::from_bits(3)),
        (Log, 1.0, 0.0),
        (Log, -0.0, -inf),
        (Log, -1.0, nan),
        (Log, inf, inf),
        (Log2, 8.0, 3.0),
        (Log2, f32::from_bits(1), -149.0),
        (Log1p, -0.0, -0.0),
        (Log1p, -1.0, -inf),
        (Log1p, -1.5, nan),
        (Sin, -0.0, -0.0),
        (Sin, inf, nan),
        (Cos, 0.0, 1.0),
        (Cos, -inf, nan),
        (Tan, -0.0, -0.0),
        (Asin, 1.5, nan),
        (Asin, -0.0, -0.0),
        (Acos, 1.0, 0.0),
        (Atan, -0.0, -0.0),
        (Atan, inf, std::f32::consts::FRAC_PI_2),
        (Sinh, -inf, -inf),
        (Sinh, -0.0, -0.0),
        (Cosh, 0.0, 1.0),
        (Cosh, -inf, inf),
        (Tanh, -0.0, -0.0),
        (Tanh, -inf, -1.0),
        (Asinh, 0.0, 0.0),
        (Asinh, -0.0, -0.0),
        (Asinh, -inf, -inf),
        (Asinh, inf, inf),
        (Asinh, f32::from_bits(3), f32::from_bits(3)),
        (Acosh, 1.0, 0.0),
        (Acosh, inf, inf),
        (Acosh, 0.99999994, nan),
        (Acosh, 0.0, nan),
        (Acosh, -1.0, nan),
        (Acosh, -3.0, nan),
        (Acosh, f32::MIN, nan),
        (Acosh, -inf, nan),
        (Atanh, -0.0, -0.0),
        (Atanh, f32::from_bits(3), f32::from_bits(3)),
        (Atanh, 1.0, inf),
        (Atanh, -1.0, -inf),
        (Atanh, 1.0000001, nan),
        (Atanh, f32::MIN, nan),
        (Atanh, inf, nan),
        (Erf, -0.0, -0.0),
        (Erf, inf, 1.0),
        (Sigmoid, 0.0, 0.5),
        (Sigmoid, inf, 1.0),
        (Sigmoid, -inf, 0.0),
        (Rsqrt, -0.0, -inf),
        (Rsqrt, inf, 0.0),
        (Rsqrt, -1.0, nan),
    ];
    for (function, x, expected) in cases {
        let got = evaluate_f32(function, x, 0.0);
        let wide = evaluate_f64(function, f64::from(x), 0.0);
        let same = got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan());
        assert!(same, "{}({x:e}) = {got:e}, expected {expected:e}", function.name());
        let tiny = x.is_subnormal() || expected.is_subnormal();
        let wide_same = tiny || (wide as f32).to_bits() == expected.to_bits() || (wide.is_nan() && expected.is_nan());
        assert!(
            wide_same,
            "f64 {}({x:e}) = {wide:e}, expected {expected:e}",
            function.name()
        );
    }
    for function in Function::ALL {
        assert!(evaluate_f32(function, nan, 2.0).is_nan(), "{}(NaN)", function.name());
        assert!(
            evaluate_f64(function, f64::NAN, 2.0).is_nan(),
            "{}(NaN)",
            function.name()
        );
    }
}

#[test]
fn pow_and_atan2_specials_agree_with_the_standard_library() {
    let values = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -0.5,
        2.0,
        -2.0,
        3.0,
        -3.0,
        2.5,
        -2.5,
        1e30,
        -1e30,
        16_777_217.0,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
    ];
    for function in [Pow, Atan2] {
        for x in values {
            for y in values {
                let exact = reference(function, x, y);
                let got = evaluate_f64(function, x, y);
                assert!(
                    error_f64(got, exact) <= 1.0,
                    "{}({x}, {y}) = {got}, expected {exact}",
                    function.name()
                );
                let (x, y) = (x as f32, y as f32);
                let exact = reference(function, f64::from(x), f64::from(y));
                let got = evaluate_f32(function, x, y);
                assert!(
                    error_f32(got, exact) <= 2.0,
                    "{}({x}, {y}) = {got}, expected {exact}",
                    function.name()
                );
            }
        }
    }
}

/// Where a rounded polynomial could leave the range of its function.
#[test]
fn bounded_functions_stay_within_their_bounds() {
    for step in 0..200_000_u32 {
        // Around the odd multiples of pi/2, and where tanh and erf come close to 1.
        let near = f32::from_bits(1.5_f32.to_bits() + step * 11);
        for x in [near, near * 3.0, near * 5.0, near * 7.0] {
            for function in [Sin, Cos, Tanh, Erf] {
                for x in [x, -x] {
                    let y = evaluate_f32(function, x, 0.0);
                    assert!(y.abs() <= 1.0, "{}({x:e}) = {y:e}", function.name());
                }
            }
        }
    }
}

/// The `ulp` example measures these for one sign of the argument.
#[test]
fn odd_and_even_functions_are_so_bit_for_bit() {
    for function in [Sin, Tan, Asin, Atan, Sinh, Tanh, Asinh, Atanh, Erf, Cos, Cosh] {
        for x in (0..0x7f80_0000_u32).step_by(9_973).map(f32::from_bits) {
            let (y, mirrored) = (evaluate_f32(function, x, 0.0), evaluate_f32(function, -x, 0.0));
            let expected = if matches!(function, Cos | Cosh) { y } else { -y };
            let same = expected.to_bits() == mirrored.to_bits() || (y.is_nan() && mirrored.is_nan());
            assert!(same, "{}({x:e}) = {y:e}, of -x {mirrored:e}", function.name());
        }
    }
}

#[test]
fn a_nan_stays_a_nan_whatever_its_payload() {
    for function in Function::ALL {
        for bit in 0..22 {
            for sign in [0, 1 << 31] {
                for quiet in [0, 1 << 22] {
                    let x = f32::from_bits(0x7f80_0000 | sign | quiet | 1 << bit);
                    assert!(evaluate_f32(function, x, 2.5).is_nan(), "{}({x:?})", function.name());
                }
            }
        }
        for bit in 0..51 {
            for quiet in [0, 1 << 51] {
                let x = f64::from_bits(0x7ff0_0000_0000_0000 | quiet | 1 << bit);
                assert!(evaluate_f64(function, x, 2.5).is_nan(), "{}({x:?})", function.name());
            }
        }
    }
}

/// Both sides of every change of regime: subnormal results of exp, late steps of tanh, specials of the logarithms.
#[test]
fn edges_of_regimes_are_within_their_bounds() {
    let centres = [
        -103.972,
        -87.33655,
        87.0,
        126.0,
        149.5,
        -86.6434,
        88.37626,
        88.72284,
        0.3032,
        0.2166,
        0.6498,
        9.010913,
        10.0,
        f32::MIN_POSITIVE,
        2.0 * f32::MIN_POSITIVE,
        f32::MAX,
        std::f32::consts::SQRT_2,
        0.41421356,
        0.75,
        1.0,
        1.25,
        3.0,
        6.7108864e7,
        1.8446744e19,
        -0.29289323,
        -0.99999994,
    ];
    for function in [Exp, Exp2, Expm1, Tanh, Log, Log2, Log1p, Asinh, Acosh, Atanh] {
        for centre in centres {
            for x in [centre, -centre] {
                for step in 0..2001_u32 {
                    let x = f32::from_bits((x.to_bits() - 1000).wrapping_add(step));
                    let got = evaluate_f32(function, x, 0.0);
                    let error = error_f32(got, reference(function, f64::from(x), 0.0));
                    assert!(
                        error <= bound_f32(function),
                        "{}({x:e}) = {got:e}: {error} ulp",
                        function.name()
                    );
                }
            }
        }
    }
}

/// The same for f64, whose samples elsewhere miss them.
#[test]
fn edges_of_the_exponentials_in_f64_are_within_their_bounds() {
    for centre in [
        708.0_f64,
        708.396418532264,
        709.782712893384,
        745.133219101941,
        746.0,
        1022.0,
        1024.0,
        1074.0,
    ] {
        for x in [centre, -centre] {
            for step in 0..2001_u64 {
                let x = f64::from_bits((x.to_bits() - 1000).wrapping_add(step));
                for function in [Exp, Exp2] {
                    let got = evaluate_f64(function, x, 0.0);
                    let error = error_f64(got, reference(function, x, 0.0));
                    let name = function.name();
                    assert!(error <= bound_f64(function), "{name}({x:e}) = {got:e}: {error} ulp");
                }
            }
        }
    }
}

#[test]
fn operand_types_are_consistent_in_every_arm() {
    for function in Function::ALL {
        for x in [0.3, 1e30, -1.0, 1e-40] {
            assert_eq!(count_f32(function, x as f32, 1.5).mismatches, 0, "{}", function.name());
            assert_eq!(count_f64(function, x, 1.5).mismatches, 0, "{}", function.name());
        }
    }
}

#[test]
fn instruction_counts_stay_within_their_budgets() {
    for (function, budget) in [
        (Exp, 15),
        (Exp2, 14),
        (Tanh, 20),
        (Erf, 26),
        (Sigmoid, 19),
        (Sin, 19),
        (Log, 23),
        (Log2, 24),
    ] {
        let count = count_f32(function, 0.75, 0.0).operations;
        assert!(count <= budget, "{} takes {count} instructions", function.name());
    }
}
