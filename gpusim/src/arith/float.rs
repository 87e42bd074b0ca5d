//! Arithmetic of f32 and f64, and the approximations of special function units.
//!
//! The approximations are computed in f64 and rounded once, so they are within any error that the PTX manual documents.

use super::rounding::{self, F32, Round, directed, round, two_sum};
use super::{Compute, Ty, each};

fn s(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

fn d(bits: u64) -> f64 {
    f64::from_bits(bits)
}

/// The bits of an f32; NaN is the one that devices make.
fn of(value: f32) -> u64 {
    if value.is_nan() {
        0x7fff_ffff
    } else {
        u64::from(value.to_bits())
    }
}

fn of_double(value: f64) -> u64 {
    if value.is_nan() {
        0x7ff8_0000_0000_0000
    } else {
        value.to_bits()
    }
}

/// A zero that comes of two values that cancel is negative when rounding down.
pub(crate) fn zero_sum(sum: f64, a: f64, b: f64, mode: Round) -> f64 {
    let cancelled = sum == 0.0 && a.is_sign_negative() != b.is_sign_negative();
    if cancelled && mode == Round::Down { -0.0 } else { sum }
}

fn add_single(a: u64, b: u64, mode: Round) -> u64 {
    let (x, y) = (f64::from(s(a)), f64::from(s(b)));
    let (sum, rest) = two_sum(x, y);
    round(zero_sum(sum, x, y, mode), rest, F32, mode)
}

fn mul_single(a: u64, b: u64, mode: Round) -> u64 {
    round(f64::from(s(a)) * f64::from(s(b)), 0.0, F32, mode)
}

fn fma_single(a: u64, b: u64, c: u64, mode: Round) -> u64 {
    let product = f64::from(s(a)) * f64::from(s(b));
    let (sum, rest) = two_sum(product, f64::from(s(c)));
    round(zero_sum(sum, product, f64::from(s(c)), mode), rest, F32, mode)
}

fn div_single(a: u64, b: u64, mode: Round) -> u64 {
    let (x, y) = (f64::from(s(a)), f64::from(s(b)));
    let quotient = x / y;
    let rest = if quotient.is_finite() && y.is_finite() {
        (-quotient).mul_add(y, x) * y.signum()
    } else {
        0.0
    };
    round(quotient, rest, F32, mode)
}

fn sqrt_single(a: u64, mode: Round) -> u64 {
    let x = f64::from(s(a));
    let root = x.sqrt();
    let rest = if root.is_finite() {
        (-root).mul_add(root, x)
    } else {
        0.0
    };
    round(root, rest, F32, mode)
}

/// What a result that overflowed to an infinity is in a direction that rounds inward.
fn overflowed(near: f64, mode: Round) -> f64 {
    match mode {
        Round::Zero => f64::MAX.copysign(near),
        Round::Down if near > 0.0 => f64::MAX,
        Round::Up if near < 0.0 => f64::MIN,
        Round::Even | Round::Away | Round::Down | Round::Up => near,
    }
}

fn add_double(a: u64, b: u64, mode: Round) -> u64 {
    let (x, y) = (d(a), d(b));
    let (sum, rest) = two_sum(x, y);
    if sum.is_infinite() && x.is_finite() && y.is_finite() {
        return of_double(overflowed(sum, mode));
    }
    of_double(directed(zero_sum(sum, x, y, mode), rest, mode))
}

fn mul_double(a: u64, b: u64, mode: Round) -> u64 {
    let (x, y) = (d(a), d(b));
    let product = x * y;
    if product.is_infinite() && x.is_finite() && y.is_finite() {
        return of_double(overflowed(product, mode));
    }
    if product.is_nan() || product.is_infinite() || x == 0.0 || y == 0.0 {
        return of_double(product);
    }
    // Scaled where the error would be lost below the smallest number.
    let (x, y, scaled) = if product.abs() < rounding::power_of_two(-900) {
        let scale = rounding::power_of_two(500);
        let (small, large) = if x.abs() < y.abs() { (x, y) } else { (y, x) };
        (small * scale, large * if large.abs() < 1.0 { scale } else { 1.0 }, {
            product * scale * if large.abs() < 1.0 { scale } else { 1.0 }
        })
    } else {
        (x, y, product)
    };
    let rest = x.mul_add(y, -scaled);
    of_double(away_from_zero(
        product,
        rest,
        x.is_sign_negative() != y.is_sign_negative(),
        mode,
    ))
}

/// [`directed`], where a result that is zero may stand for one that is not.
fn away_from_zero(near: f64, rest: f64, negative: bool, mode: Round) -> f64 {
    if near == 0.0 && rest != 0.0 {
        return match (mode, negative) {
            (Round::Up, false) => f64::from_bits(1),
            (Round::Down, true) => -f64::from_bits(1),
            _ => near,
        };
    }
    directed(near, rest, mode)
}

fn fma_double(a: u64, b: u64, c: u64, mode: Round) -> u64 {
    let (x, y, z) = (d(a), d(b), d(c));
    let near = x.mul_add(y, z);
    if near.is_infinite() && x.is_finite() && y.is_finite() && z.is_finite() {
        return of_double(overflowed(near, mode));
    }
    if !near.is_finite() {
        return of_double(near);
    }
    // The error of a fused operation as two numbers (Boldo and Muller); its sign is what matters here.
    let high = x * y;
    let low = x.mul_add(y, -high);
    let (s1, s2) = two_sum(z, low);
    let (t1, t2) = two_sum(high, s1);
    let gamma = (t1 - near) + t2;
    let (e1, e2) = two_sum(gamma, s2);
    let rest = if e1 == 0.0 { e2 } else { e1 };
    of_double(directed(zero_sum(near, high, z, mode), rest, mode))
}

fn div_double(a: u64, b: u64, mode: Round) -> u64 {
    let (x, y) = (d(a), d(b));
    let quotient = x / y;
    if quotient.is_infinite() && x.is_finite() && y != 0.0 {
        return of_double(overflowed(quotient, mode));
    }
    let rest = if quotient.is_finite() && y.is_finite() {
        (-quotient).mul_add(y, x) * y.signum()
    } else {
        0.0
    };
    of_double(away_from_zero(
        quotient,
        rest,
        x.is_sign_negative() != y.is_sign_negative(),
        mode,
    ))
}

fn sqrt_double(a: u64, mode: Round) -> u64 {
    let root = d(a).sqrt();
    let rest = if root.is_finite() {
        (-root).mul_add(root, d(a))
    } else {
        0.0
    };
    of_double(directed(root, rest, mode))
}

/// A [`Compute`] for each direction that PTX names.
macro_rules! directions {
    ($mode:expr, $f:ident, $n:tt) => {
        match $mode {
            Round::Even | Round::Away => directions!(@ $f, $n, Round::Even),
            Round::Zero => directions!(@ $f, $n, Round::Zero),
            Round::Down => directions!(@ $f, $n, Round::Down),
            Round::Up => directions!(@ $f, $n, Round::Up),
        }
    };
    (@ $f:ident, 1, $mode:expr) => { each!(|a: u64, _: u64, _: u64| $f(a, $mode)) };
    (@ $f:ident, 2, $mode:expr) => { each!(|a: u64, b: u64, _: u64| $f(a, b, $mode)) };
    (@ $f:ident, 3, $mode:expr) => { each!(|a: u64, b: u64, c: u64| $f(a, b, c, $mode)) };
}

/// `add`, `sub`, `mul`, `fma`, `div`, `rcp` and `sqrt` with IEEE rounding.
pub(crate) fn rounded(name: &str, ty: Ty, mode: Round) -> Option<Compute> {
    fn sub_single(a: u64, b: u64, mode: Round) -> u64 {
        add_single(a, b ^ 1 << 31, mode)
    }
    fn sub_double(a: u64, b: u64, mode: Round) -> u64 {
        add_double(a, b ^ 1 << 63, mode)
    }
    fn rcp_single(a: u64, mode: Round) -> u64 {
        div_single(u64::from(1_f32.to_bits()), a, mode)
    }
    fn rcp_double(a: u64, mode: Round) -> u64 {
        div_double(1_f64.to_bits(), a, mode)
    }
    if mode == Round::Even {
        return Some(match (name, ty) {
            ("add", Ty::F32) => each!(|a: u64, b: u64, _: u64| of(s(a) + s(b))),
            ("sub", Ty::F32) => each!(|a: u64, b: u64, _: u64| of(s(a) - s(b))),
            ("mul", Ty::F32) => each!(|a: u64, b: u64, _: u64| of(s(a) * s(b))),
            ("fma", Ty::F32) => each!(|a: u64, b: u64, c: u64| of(s(a).mul_add(s(b), s(c)))),
            ("div", Ty::F32) => each!(|a: u64, b: u64, _: u64| of(s(a) / s(b))),
            ("rcp", Ty::F32) => each!(|a: u64, _: u64, _: u64| of(1.0 / s(a))),
            ("sqrt", Ty::F32) => each!(|a: u64, _: u64, _: u64| of(s(a).sqrt())),
            ("add", Ty::F64) => each!(|a: u64, b: u64, _: u64| of_double(d(a) + d(b))),
            ("sub", Ty::F64) => each!(|a: u64, b: u64, _: u64| of_double(d(a) - d(b))),
            ("mul", Ty::F64) => each!(|a: u64, b: u64, _: u64| of_double(d(a) * d(b))),
            ("fma", Ty::F64) => each!(|a: u64, b: u64, c: u64| of_double(d(a).mul_add(d(b), d(c)))),
            ("div", Ty::F64) => each!(|a: u64, b: u64, _: u64| of_double(d(a) / d(b))),
            ("rcp", Ty::F64) => each!(|a: u64, _: u64, _: u64| of_double(1.0 / d(a))),
            ("sqrt", Ty::F64) => each!(|a: u64, _: u64, _: u64| of_double(d(a).sqrt())),
            _ => return None,
        });
    }
    Some(match (name, ty) {
        ("add", Ty::F32) => directions!(mode, add_single, 2),
        ("sub", Ty::F32) => directions!(mode, sub_single, 2),
        ("mul", Ty::F32) => directions!(mode, mul_single, 2),
        ("fma", Ty::F32) => directions!(mode, fma_single, 3),
        ("div", Ty::F32) => directions!(mode, div_single, 2),
        ("rcp", Ty::F32) => directions!(mode, rcp_single, 1),
        ("sqrt", Ty::F32) => directions!(mode, sqrt_single, 1),
        ("add", Ty::F64) => directions!(mode, add_double, 2),
        ("sub", Ty::F64) => directions!(mode, sub_double, 2),
        ("mul", Ty::F64) => directions!(mode, mul_double, 2),
        ("fma", Ty::F64) => directions!(mode, fma_double, 3),
        ("div", Ty::F64) => directions!(mode, div_double, 2),
        ("rcp", Ty::F64) => directions!(mode, rcp_double, 1),
        ("sqrt", Ty::F64) => directions!(mode, sqrt_double, 1),
        _ => return None,
    })
}

/// `min` and `max`: -0 is below +0; a NaN gives the other operand, or with `.NaN` a NaN.
pub(crate) fn extreme(a: f64, b: f64, max: bool, nan: bool) -> f64 {
    if a.is_nan() || b.is_nan() {
        return if nan || (a.is_nan() && b.is_nan()) {
            f64::NAN
        } else if a.is_nan() {
            b
        } else {
            a
        };
    }
    let a_first = if a == b { a.is_sign_negative() } else { a < b };
    if a_first != max { a } else { b }
}

/// `min`, `max`, `abs`, `neg`, `copysign` and their kin, which round nothing.
pub(crate) fn exact(name: &str, ty: Ty) -> Option<Compute> {
    macro_rules! extremes {
        ($max:expr, $nan:expr) => {
            match ty {
                Ty::F32 => {
                    each!(|a: u64, b: u64, _: u64| { of(extreme(f64::from(s(a)), f64::from(s(b)), $max, $nan) as f32) })
                }
                Ty::F64 => each!(|a: u64, b: u64, _: u64| of_double(extreme(d(a), d(b), $max, $nan))),
                _ => return None,
            }
        };
    }
    // With `.xorsign.abs`: of the magnitudes, with the product's sign.
    macro_rules! magnitudes {
        ($max:expr, $nan:expr) => {
            match ty {
                Ty::F32 => each!(|a: u64, b: u64, _: u64| {
                    let (x, y) = (f64::from(s(a).abs()), f64::from(s(b).abs()));
                    of(extreme(x, y, $max, $nan) as f32) | (a ^ b) & 1 << 31
                }),
                _ => return None,
            }
        };
    }
    Some(match (name, ty) {
        ("min", _) => extremes!(false, false),
        ("max", _) => extremes!(true, false),
        ("min.NaN", _) => extremes!(false, true),
        ("max.NaN", _) => extremes!(true, true),
        ("min.xorsign.abs", _) => magnitudes!(false, false),
        ("max.xorsign.abs", _) => magnitudes!(true, false),
        ("min.NaN.xorsign.abs", _) => magnitudes!(false, true),
        ("max.NaN.xorsign.abs", _) => magnitudes!(true, true),
        ("abs", Ty::F32) => each!(|a: u64, _: u64, _: u64| a & 0x7fff_ffff),
        ("abs", Ty::F64) => each!(|a: u64, _: u64, _: u64| a & !(1 << 63)),
        ("neg", Ty::F32) => each!(|a: u64, _: u64, _: u64| a ^ 1 << 31),
        ("neg", Ty::F64) => each!(|a: u64, _: u64, _: u64| a ^ 1 << 63),
        ("copysign", Ty::F32) => each!(|a: u64, b: u64, _: u64| a & 1 << 31 | b & 0x7fff_ffff),
        ("copysign", Ty::F64) => each!(|a: u64, b: u64, _: u64| a & 1 << 63 | b & !(1 << 63)),
        _ => return None,
    })
}

/// The `.approx` and `.full` forms on f32, and those few on f64.
pub(crate) fn approximate(name: &str, ty: Ty) -> Option<Compute> {
    macro_rules! single {
        ($f:expr) => {
            each!(|a: u64, _: u64, _: u64| of(($f)(f64::from(s(a))) as f32))
        };
    }
    // Only the upper half of the bits takes part in the f64 forms.
    macro_rules! upper {
        ($f:expr) => {
            each!(|a: u64, _: u64, _: u64| {
                let value: f64 = ($f)(d(a & !0xffff_ffff));
                if value.is_nan() {
                    0x7fff_ffff_0000_0000
                } else {
                    value.to_bits() & !0xffff_ffff
                }
            })
        };
    }
    Some(match (name, ty) {
        ("div", Ty::F32) => each!(|a: u64, b: u64, _: u64| {
            let (x, y) = (f64::from(s(a)), f64::from(s(b)));
            of((x / y) as f32)
        }),
        ("rcp", Ty::F32) => single!(|x: f64| 1.0 / x),
        ("sqrt", Ty::F32) => single!(|x: f64| x.sqrt()),
        ("rsqrt", Ty::F32) => single!(|x: f64| 1.0 / x.sqrt()),
        ("ex2", Ty::F32) => single!(|x: f64| x.exp2()),
        ("lg2", Ty::F32) => single!(|x: f64| x.log2()),
        ("sin", Ty::F32) => single!(|x: f64| x.sin()),
        ("cos", Ty::F32) => single!(|x: f64| x.cos()),
        ("tanh", Ty::F32) => single!(|x: f64| x.tanh()),
        ("rcp", Ty::F64) => upper!(|x: f64| 1.0 / x),
        ("rsqrt", Ty::F64) => upper!(|x: f64| 1.0 / x.sqrt()),
        _ => return None,
    })
}

/// `.ftz` on an f32: a subnormal number is a zero of its sign.
pub(crate) fn flushed(bits: u64) -> u64 {
    if bits & 0x7f80_0000 == 0 {
        bits & 0x8000_0000
    } else {
        bits
    }
}

/// `.sat`: between 0 and 1, NaN is 0.
pub(crate) fn saturated(bits: u64, ty: Ty) -> u64 {
    match ty {
        Ty::F64 => {
            let value = d(bits);
            if value.is_nan() || value <= 0.0 {
                0
            } else {
                value.min(1.0).to_bits()
            }
        }
        _ => {
            let value = s(bits);
            if value.is_nan() || value <= 0.0 {
                0
            } else {
                u64::from(value.min(1.0).to_bits())
            }
        }
    }
}

/// `testp`.
pub(crate) fn class(name: &str, bits: u64, ty: Ty) -> bool {
    let (exponent, fraction, top) = match ty {
        Ty::F64 => ((bits >> 52) & 0x7ff, bits & ((1 << 52) - 1), 0x7ff),
        _ => ((bits >> 23) & 0xff, bits & ((1 << 23) - 1), 0xff),
    };
    match name {
        "finite" => exponent != top,
        "infinite" => exponent == top && fraction == 0,
        "number" => exponent != top || fraction == 0,
        "notanumber" => exponent == top && fraction != 0,
        "normal" => exponent != top && exponent != 0,
        _ => exponent == 0 && fraction != 0,
    }
}
