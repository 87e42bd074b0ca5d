//! What the functions should be, in f64, and how far a result is from that; shared by the tests and the `ulp` example.
//!
//! For an f32 result the f64 reference is as good as exact: its error, at most 2 f64 ulps, is 2^-28 of an f32 ulp. For
//! an f64 result it is another library's result, so a measured error includes that library's own (glibc: below 1 ulp
//! for most functions; libm's erf, also below 1).

use super::Function;

/// `function` of `x` (and `y`) in f64.
pub fn reference(function: Function, x: f64, y: f64) -> f64 {
    match function {
        Function::Exp => x.exp(),
        Function::Exp2 => x.exp2(),
        Function::Expm1 => x.exp_m1(),
        Function::Log => x.ln(),
        Function::Log2 => x.log2(),
        Function::Log1p => x.ln_1p(),
        Function::Sin => x.sin(),
        Function::Cos => x.cos(),
        Function::Tan => x.tan(),
        Function::Asin => x.asin(),
        Function::Acos => x.acos(),
        Function::Atan => x.atan(),
        Function::Atan2 => x.atan2(y),
        Function::Sinh => x.sinh(),
        Function::Cosh => x.cosh(),
        Function::Tanh => x.tanh(),
        // The standard library's acosh has no digits near 1, and libm's takes some numbers below -1 for valid ones.
        Function::Asinh => libm::asinh(x),
        Function::Acosh if x < 1.0 => f64::NAN,
        Function::Acosh => libm::acosh(x),
        Function::Atanh => libm::atanh(x),
        Function::Erf => libm::erf(x),
        Function::Pow => x.powf(y),
        Function::Sigmoid if x < 0.0 => x.exp() / (1.0 + x.exp()),
        Function::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Function::Rsqrt => 1.0 / x.sqrt(),
    }
}

/// The distance from an f32 result to the exact value in f32 ulps: 0.5 at most for a correctly rounded result.
///
/// Infinite where one is NaN and the other not, where an infinity or the sign of a zero is wrong.
pub fn error_f32(got: f32, exact: f64) -> f64 {
    if got.is_nan() || exact.is_nan() {
        return if got.is_nan() && exact.is_nan() {
            0.0
        } else {
            f64::INFINITY
        };
    }
    if got.to_bits() == (exact as f32).to_bits() && (got.is_infinite() || exact == 0.0) {
        return 0.0;
    }
    if exact.is_infinite() || exact == 0.0 || got.is_sign_negative() != exact.is_sign_negative() {
        return f64::INFINITY;
    }
    // Overflow is measured as if exponents went on.
    let got = if got.is_infinite() {
        128.0_f64.exp2().copysign(exact)
    } else {
        f64::from(got)
    };
    let exponent = ((exact.to_bits() >> 52) & 0x7ff) as i64 - 1023;
    let ulp = f64::from_bits(((exponent.clamp(-126, 127) - 23 + 1023) as u64) << 52);
    (got - exact).abs() / ulp
}

/// As [`error_f32`], in whole f64 ulps from another f64 result.
pub fn error_f64(got: f64, other: f64) -> f64 {
    if got.is_nan() || other.is_nan() {
        return if got.is_nan() && other.is_nan() {
            0.0
        } else {
            f64::INFINITY
        };
    }
    if got.is_sign_negative() != other.is_sign_negative() {
        return f64::INFINITY;
    }
    got.to_bits().abs_diff(other.to_bits()) as f64
}
