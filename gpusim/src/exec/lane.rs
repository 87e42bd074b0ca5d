//! Operations that depend on more than their operands, a lane at a time.

use crate::arith::{Lanes, Ty, extended, float, int, low, small};
use crate::program::{Carry, CarryKind, Lane};

pub(super) fn run(what: &Lane, a: &Lanes, b: &Lanes, c: &Lanes) -> Lanes {
    let each = |f: &dyn Fn(u64, u64, u64) -> u64| std::array::from_fn(|i| f(a[i], b[i], c[i]));
    match what {
        Lane::Convert(convert, width) => std::array::from_fn(|i| convert.apply(a[i], *width)),
        // The first operand goes to the upper half.
        Lane::ConvertPair(convert) => each(&|a, b, _| convert.apply(a, 16) << 16 | convert.apply(b, 16)),
        Lane::Lop3(table) => std::array::from_fn(|i| int::lop3(a[i], b[i], c[i], *table)),
        Lane::Permute(mode) => each(&|a, b, c| int::permuted(a, b, c, *mode)),
        Lane::Insert(width) => each(&|a, b, c| int::inserted(a, b, c & 0xff, c >> 8, *width)),
        Lane::Dot {
            signed_a,
            signed_b,
            two,
        } => each(&|a, b, c| int::dot(a, b, c, *signed_a, *signed_b, *two)),
        Lane::Single { f, ty, flush, saturate } => {
            let operand = |lanes: &Lanes| if *flush { lanes.map(float::flushed) } else { *lanes };
            let mut result = [0; 32];
            f(&operand(a), &operand(b), &operand(c), &mut result);
            if *flush {
                result = result.map(float::flushed);
            }
            if *saturate {
                result = result.map(|bits| float::saturated(bits, *ty));
            }
            result
        }
        Lane::Small { f, ty, finish } => {
            let mut result = [0; 32];
            f(a, b, c, &mut result);
            result.map(|bits| small::finished(bits, *ty, *finish))
        }
        Lane::Choose { float } => each(&|a, b, c| {
            let first = if *float {
                f32::from_bits(c as u32) >= 0.0
            } else {
                c as i32 >= 0
            };
            if first { a } else { b }
        }),
        Lane::Shift { f, bits } => {
            let mut result = [0; 32];
            f(a, b, c, &mut result);
            result.map(|v| if v == 0xffff_ffff { v } else { u64::from(bits - 1) - v })
        }
    }
}

/// Additions with carry: the results, and the lanes that carry out.
pub(super) fn carried(what: &Carry, a: &Lanes, b: &Lanes, c: &Lanes, flags: u32) -> (Lanes, u32) {
    let mut out = 0;
    let bits = what.bits;
    let result = std::array::from_fn(|i| {
        let carry = u128::from(what.reads && flags >> i & 1 == 1);
        let (x, y, z) = (low(a[i], bits), low(b[i], bits), low(c[i], bits));
        let (sum, overflow) = match what.kind {
            CarryKind::Add => {
                let sum = u128::from(x) + u128::from(y) + carry;
                (sum as u64, sum >> bits != 0)
            }
            CarryKind::Sub => {
                let taken = u128::from(y) + carry;
                ((u128::from(x).wrapping_sub(taken)) as u64, u128::from(x) < taken)
            }
            CarryKind::MadLo | CarryKind::MadHi => {
                let product = if what.signed {
                    (i128::from(extended(x, bits)).wrapping_mul(i128::from(extended(y, bits)))) as u128
                } else {
                    u128::from(x) * u128::from(y)
                };
                let part = if what.kind == CarryKind::MadHi {
                    product >> bits
                } else {
                    product
                };
                let sum = u128::from(low(part as u64, bits)) + u128::from(z) + carry;
                (sum as u64, sum >> bits != 0)
            }
        };
        out |= u32::from(overflow) << i;
        low(sum, bits)
    });
    (result, out)
}

/// Adds two numbers of a type, for atomic operations and reductions of a warp.
pub(super) fn sum(a: u64, b: u64, ty: Ty) -> u64 {
    let lanes = |x: u64| [x; 32];
    let f = int::plain("add", ty)
        .or_else(|| float::rounded("add", ty, crate::arith::rounding::Round::Even))
        .or_else(|| small::plain("add", ty));
    let Some(f) = f else { return a };
    let mut result = [0; 32];
    f(&lanes(a), &lanes(b), &lanes(0), &mut result);
    result[0]
}
