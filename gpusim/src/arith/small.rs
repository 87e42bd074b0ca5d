//! Arithmetic of f16, bf16 and pairs of them.

use super::float::{extreme, zero_sum};
use super::rounding::{BF16, F16, Format, Round, round, two_sum};
use super::{Compute, Ty, each};

/// What an operation does beside its arithmetic.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Finish {
    pub(crate) saturate: bool,
    pub(crate) relu: bool,
    pub(crate) flush: bool,
}

/// Adds, multiplies and fuses in one 16-bit format, rounding once.
fn one(op: Op, a: u64, b: u64, c: u64, format: Format) -> u64 {
    let (x, y, z) = (
        format.value(a & 0xffff),
        format.value(b & 0xffff),
        format.value(c & 0xffff),
    );
    match op {
        Op::Add => rounded_sum(x, y, format),
        Op::Sub => rounded_sum(x, -y, format),
        // A product of two such numbers has at most 22 bits.
        Op::Mul => round(x * y, 0.0, format, Round::Even),
        Op::Fma => rounded_sum(x * y, z, format),
        Op::Min => quiet(extreme(x, y, false, false), format),
        Op::Max => quiet(extreme(x, y, true, false), format),
        Op::MinNan => quiet(extreme(x, y, false, true), format),
        Op::MaxNan => quiet(extreme(x, y, true, true), format),
        Op::Abs => a & 0x7fff,
        Op::Neg => a & 0xffff ^ 0x8000,
        Op::Exp2 => round(x.exp2(), 0.0, format, Round::Even),
        Op::Tanh => round(x.tanh(), 0.0, format, Round::Even),
    }
}

fn rounded_sum(a: f64, b: f64, format: Format) -> u64 {
    let (sum, rest) = two_sum(a, b);
    round(zero_sum(sum, a, b, Round::Even), rest, format, Round::Even)
}

fn quiet(value: f64, format: Format) -> u64 {
    round(value, 0.0, format, Round::Even)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Op {
    Add,
    Sub,
    Mul,
    Fma,
    Min,
    Max,
    MinNan,
    MaxNan,
    Abs,
    Neg,
    Exp2,
    Tanh,
}

macro_rules! both_shapes {
    ($op:expr, $format:expr, $pair:expr) => {
        if $pair {
            each!(|a: u64, b: u64, c: u64| {
                one($op, a, b, c, $format) | one($op, a >> 16, b >> 16, c >> 16, $format) << 16
            })
        } else {
            each!(|a: u64, b: u64, c: u64| one($op, a, b, c, $format))
        }
    };
}

/// An operation by name, `min.NaN` among them.
pub(crate) fn plain(name: &str, ty: Ty) -> Option<Compute> {
    macro_rules! table {
        ($($name:literal $op:ident),*) => {
            match (name, ty) {
                $(
                    ($name, Ty::F16) => Some(both_shapes!(Op::$op, F16, false)),
                    ($name, Ty::BF16) => Some(both_shapes!(Op::$op, BF16, false)),
                    ($name, Ty::F16x2) => Some(both_shapes!(Op::$op, F16, true)),
                    ($name, Ty::BF16x2) => Some(both_shapes!(Op::$op, BF16, true)),
                )*
                _ => None,
            }
        };
    }
    table!(
        "add" Add, "sub" Sub, "mul" Mul, "fma" Fma, "min" Min, "max" Max, "min.NaN" MinNan, "max.NaN" MaxNan,
        "abs" Abs, "neg" Neg, "ex2" Exp2, "tanh" Tanh
    )
}

/// The format of a 16-bit type or of each half of a pair.
pub(crate) const fn format_of(ty: Ty) -> Option<Format> {
    match ty {
        Ty::F16 | Ty::F16x2 => Some(F16),
        Ty::BF16 | Ty::BF16x2 => Some(BF16),
        _ => None,
    }
}

/// `.sat`, `.relu` and `.ftz` on a result.
pub(crate) fn finished(bits: u64, ty: Ty, finish: Finish) -> u64 {
    let Some(format) = format_of(ty) else { return bits };
    let half = |bits: u64| {
        let mut bits = bits & 0xffff;
        if finish.flush && bits & format.infinity() == 0 {
            bits &= 0x8000;
        }
        let value = format.value(bits);
        if finish.relu && !value.is_nan() && value <= 0.0 {
            bits = 0;
        }
        if finish.saturate {
            bits = if value.is_nan() || value <= 0.0 {
                0
            } else {
                round(value.min(1.0), 0.0, format, Round::Even)
            };
        }
        bits
    };
    if ty.bits() == 32 {
        half(bits) | half(bits >> 16) << 16
    } else {
        half(bits)
    }
}
