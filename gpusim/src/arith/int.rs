//! Integer arithmetic and bits.

use super::{Compute, Ty, each, low};

/// Makes a [`Compute`] of a generic expression for each integer width; `$s` and `$u` are the types with and without a sign.
macro_rules! by_type {
    ($ty:expr, $rule:ident) => {
        match $ty {
            Ty::U16 | Ty::B16 => Some($rule!(u16, u16)),
            Ty::U32 | Ty::B32 => Some($rule!(u32, u32)),
            Ty::U64 | Ty::B64 => Some($rule!(u64, u64)),
            Ty::S16 => Some($rule!(i16, u16)),
            Ty::S32 => Some($rule!(i32, u32)),
            Ty::S64 => Some($rule!(i64, u64)),
            _ => None,
        }
    };
}

/// An operation of two or three operands of one type, by name.
pub(crate) fn plain(name: &str, ty: Ty) -> Option<Compute> {
    macro_rules! add {
        ($t:ty, $u:ty) => {
            each!(|a: u64, b: u64, _: u64| u64::from((a as $u).wrapping_add(b as $u)))
        };
    }
    macro_rules! sub {
        ($t:ty, $u:ty) => {
            each!(|a: u64, b: u64, _: u64| u64::from((a as $u).wrapping_sub(b as $u)))
        };
    }
    macro_rules! mul_lo {
        ($t:ty, $u:ty) => {
            each!(|a: u64, b: u64, _: u64| u64::from((a as $u).wrapping_mul(b as $u)))
        };
    }
    macro_rules! mul_hi {
        ($t:ty, $u:ty) => {
            each!(|a: u64, b: u64, _: u64| {
                let product = i128::from(a as $t).wrapping_mul(i128::from(b as $t));
                u64::from((product >> <$t>::BITS) as $u)
            })
        };
    }
    macro_rules! mad_lo {
        ($t:ty, $u:ty) => {
            each!(|a: u64, b: u64, c: u64| u64::from((a as $u).wrapping_mul(b as $u).wrapping_add(c as $u)))
        };
    }
    macro_rules! mad_hi {
        ($t:ty, $u:ty) => {
            each!(|a: u64, b: u64, c: u64| {
                let product = i128::from(a as $t).wrapping_mul(i128::from(b as $t));
                u64::from(((product >> <$t>::BITS) as $u).wrapping_add(c as $u))
            })
        };
    }
    // What a division by zero gives is not specified; on devices all bits are set, and a remainder is the dividend.
    macro_rules! div {
        ($t:ty, $u:ty) => {
            each!(|a: u64, b: u64, _: u64| {
                u64::from(if b as $t == 0 {
                    <$u>::MAX
                } else {
                    (a as $t).wrapping_div(b as $t) as $u
                })
            })
        };
    }
    macro_rules! rem {
        ($t:ty, $u:ty) => {
            each!(|a: u64, b: u64, _: u64| {
                u64::from(if b as $t == 0 {
                    a as $u
                } else {
                    (a as $t).wrapping_rem(b as $t) as $u
                })
            })
        };
    }
    macro_rules! min {
        ($t:ty, $u:ty) => {
            each!(|a: u64, b: u64, _: u64| u64::from((a as $t).min(b as $t) as $u))
        };
    }
    macro_rules! max {
        ($t:ty, $u:ty) => {
            each!(|a: u64, b: u64, _: u64| u64::from((a as $t).max(b as $t) as $u))
        };
    }
    macro_rules! neg {
        ($t:ty, $u:ty) => {
            each!(|a: u64, _: u64, _: u64| u64::from((a as $u).wrapping_neg()))
        };
    }
    macro_rules! abs {
        ($t:ty, $u:ty) => {
            each!(|a: u64, _: u64, _: u64| {
                let value = a as $u;
                u64::from(if value >> (<$u>::BITS - 1) != 0 {
                    value.wrapping_neg()
                } else {
                    value
                })
            })
        };
    }
    macro_rules! sad {
        ($t:ty, $u:ty) => {
            each!(|a: u64, b: u64, c: u64| {
                let (x, y) = (i128::from(a as $t), i128::from(b as $t));
                u64::from(((x - y).unsigned_abs() as $u).wrapping_add(c as $u))
            })
        };
    }
    macro_rules! shr {
        ($t:ty, $u:ty) => {
            each!(|a: u64, b: u64, _: u64| {
                let by = b as u32;
                let value = a as $t;
                let most = <$t>::BITS - 1;
                u64::from(if by > most {
                    (value >> most >> 1) as $u
                } else {
                    (value >> by) as $u
                })
            })
        };
    }
    macro_rules! shl {
        ($t:ty, $u:ty) => {
            each!(|a: u64, b: u64, _: u64| u64::from((a as $u).checked_shl(b as u32).unwrap_or(0)))
        };
    }
    macro_rules! and {
        ($t:ty, $u:ty) => {
            each!(|a: u64, b: u64, _: u64| a & b)
        };
    }
    macro_rules! or {
        ($t:ty, $u:ty) => {
            each!(|a: u64, b: u64, _: u64| a | b)
        };
    }
    macro_rules! xor {
        ($t:ty, $u:ty) => {
            each!(|a: u64, b: u64, _: u64| a ^ b)
        };
    }
    macro_rules! not {
        ($t:ty, $u:ty) => {
            each!(|a: u64, _: u64, _: u64| u64::from(!(a as $u)))
        };
    }
    macro_rules! cnot {
        ($t:ty, $u:ty) => {
            each!(|a: u64, _: u64, _: u64| u64::from(a as $u == 0))
        };
    }
    match name {
        "add" => by_type!(ty, add),
        "sub" => by_type!(ty, sub),
        "mul.lo" => by_type!(ty, mul_lo),
        "mul.hi" => by_type!(ty, mul_hi),
        "mad.lo" => by_type!(ty, mad_lo),
        "mad.hi" => by_type!(ty, mad_hi),
        "div" => by_type!(ty, div),
        "rem" => by_type!(ty, rem),
        "min" => by_type!(ty, min),
        "max" => by_type!(ty, max),
        "neg" => by_type!(ty, neg),
        "abs" => by_type!(ty, abs),
        "sad" => by_type!(ty, sad),
        "shr" => by_type!(ty, shr),
        "shl" => by_type!(ty, shl),
        "and" => by_type!(ty, and),
        "or" => by_type!(ty, or),
        "xor" => by_type!(ty, xor),
        "not" => by_type!(ty, not),
        "cnot" => by_type!(ty, cnot),
        _ => None,
    }
}

/// Products of twice the width.
pub(crate) fn wide(ty: Ty) -> Option<Compute> {
    Some(match ty {
        Ty::U16 => each!(|a: u64, b: u64, c: u64| low((a * b).wrapping_add(c), 32)),
        Ty::S16 => each!(|a: u64, b: u64, c: u64| {
            u64::from((i32::from(a as i16) * i32::from(b as i16)).wrapping_add(c as i32) as u32)
        }),
        Ty::U32 => each!(|a: u64, b: u64, c: u64| (a as u32 as u64 * (b as u32 as u64)).wrapping_add(c)),
        Ty::S32 => each!(|a: u64, b: u64, c: u64| {
            (i64::from(a as i32) * i64::from(b as i32)).wrapping_add(c as i64) as u64
        }),
        _ => return None,
    })
}

/// Products of the low 24 bits; the high form has bits 16 to 47.
pub(crate) fn by_24(high: bool, ty: Ty) -> Option<Compute> {
    macro_rules! signed {
        ($x:expr) => {
            i64::from((($x as u32) << 8) as i32 >> 8)
        };
    }
    Some(match (high, ty) {
        (false, Ty::U32) => {
            each!(|a: u64, b: u64, c: u64| low(((a & 0xff_ffff) * (b & 0xff_ffff)).wrapping_add(c), 32))
        }
        (true, Ty::U32) => {
            each!(|a: u64, b: u64, c: u64| low((((a & 0xff_ffff) * (b & 0xff_ffff)) >> 16).wrapping_add(c), 32))
        }
        (false, Ty::S32) => {
            each!(|a: u64, b: u64, c: u64| low((signed!(a) * signed!(b)).wrapping_add(c as i64) as u64, 32))
        }
        (true, Ty::S32) => {
            each!(|a: u64, b: u64, c: u64| low(((signed!(a) * signed!(b)) >> 16).wrapping_add(c as i64) as u64, 32))
        }
        _ => return None,
    })
}

/// `add.sat.s32` and `sub.sat.s32`.
pub(crate) fn saturating(name: &str) -> Option<Compute> {
    Some(match name {
        "add" => each!(|a: u64, b: u64, _: u64| u64::from((a as i32).saturating_add(b as i32) as u32)),
        "sub" => each!(|a: u64, b: u64, _: u64| u64::from((a as i32).saturating_sub(b as i32) as u32)),
        _ => return None,
    })
}

/// `mad.hi.sat.s32`.
pub(crate) fn mad_hi_saturating() -> Compute {
    each!(|a: u64, b: u64, c: u64| {
        let product = (i64::from(a as i32) * i64::from(b as i32)) >> 32;
        u64::from((product as i32).saturating_add(c as i32) as u32)
    })
}

/// Two halves of 16 bits at once.
pub(crate) fn pairs(name: &str, ty: Ty, relu: bool) -> Option<Compute> {
    macro_rules! halves {
        ($t:ty, $f:expr) => {
            each!(|a: u64, b: u64, _: u64| {
                let f = $f;
                let one = |x: u64, y: u64| u64::from(f(x as $t, y as $t) as u16);
                one(a, b) | one(a >> 16, b >> 16) << 16
            })
        };
    }
    Some(match (name, ty, relu) {
        ("add", _, false) => halves!(u16, u16::wrapping_add),
        ("min", Ty::U16x2, false) => halves!(u16, |x: u16, y: u16| x.min(y)),
        ("max", Ty::U16x2, false) => halves!(u16, |x: u16, y: u16| x.max(y)),
        ("min", Ty::S16x2, false) => halves!(i16, |x: i16, y: i16| x.min(y)),
        ("max", Ty::S16x2, false) => halves!(i16, |x: i16, y: i16| x.max(y)),
        ("min", Ty::S16x2, true) => halves!(i16, |x: i16, y: i16| x.min(y).max(0)),
        ("max", Ty::S16x2, true) => halves!(i16, |x: i16, y: i16| x.max(y).max(0)),
        _ => return None,
    })
}

/// `min.s32.relu` and `max.s32.relu`.
pub(crate) fn relu(name: &str) -> Option<Compute> {
    Some(match name {
        "min" => each!(|a: u64, b: u64, _: u64| (a as i32).min(b as i32).max(0) as u64),
        "max" => each!(|a: u64, b: u64, _: u64| (a as i32).max(b as i32).max(0) as u64),
        _ => return None,
    })
}

/// Operations on bits whose name is their whole meaning.
pub(crate) fn bits(name: &str, ty: Ty) -> Option<Compute> {
    Some(match (name, ty) {
        ("popc", Ty::B32 | Ty::B64) => each!(|a: u64, _: u64, _: u64| u64::from(a.count_ones())),
        ("clz", Ty::B32) => each!(|a: u64, _: u64, _: u64| u64::from((a as u32).leading_zeros())),
        ("clz", Ty::B64) => each!(|a: u64, _: u64, _: u64| u64::from(a.leading_zeros())),
        ("brev", Ty::B32) => each!(|a: u64, _: u64, _: u64| u64::from((a as u32).reverse_bits())),
        ("brev", Ty::B64) => each!(|a: u64, _: u64, _: u64| a.reverse_bits()),
        ("bfe", Ty::U32) => each!(|a: u64, b: u64, c: u64| field(a, b, c, 32, false)),
        ("bfe", Ty::S32) => each!(|a: u64, b: u64, c: u64| field(a, b, c, 32, true)),
        ("bfe", Ty::U64) => each!(|a: u64, b: u64, c: u64| field(a, b, c, 64, false)),
        ("bfe", Ty::S64) => each!(|a: u64, b: u64, c: u64| field(a, b, c, 64, true)),
        ("bfind", Ty::U32 | Ty::U64) => each!(|a: u64, _: u64, _: u64| found(a)),
        ("bfind", Ty::S32) => each!(|a: u64, _: u64, _: u64| {
            let value = a as i32;
            found(u64::from(if value < 0 { !value } else { value } as u32))
        }),
        ("bfind", Ty::S64) => each!(|a: u64, _: u64, _: u64| {
            let value = a as i64;
            found(if value < 0 { !value } else { value } as u64)
        }),
        ("shf.l.wrap", Ty::B32) => {
            each!(|a: u64, b: u64, c: u64| { u64::from((((b << 32 | a & 0xffff_ffff) << (c & 31)) >> 32) as u32) })
        }
        ("shf.l.clamp", Ty::B32) => each!(|a: u64, b: u64, c: u64| {
            u64::from((((b << 32 | a & 0xffff_ffff) << (c as u32).min(32)) >> 32) as u32)
        }),
        ("shf.r.wrap", Ty::B32) => {
            each!(|a: u64, b: u64, c: u64| { u64::from(((b << 32 | a & 0xffff_ffff) >> (c & 31)) as u32) })
        }
        ("shf.r.clamp", Ty::B32) => {
            each!(|a: u64, b: u64, c: u64| { u64::from(((b << 32 | a & 0xffff_ffff) >> (c as u32).min(32)) as u32) })
        }
        ("bmsk.clamp", Ty::B32) => each!(|a: u64, b: u64, _: u64| mask(a as u32, b as u32)),
        ("bmsk.wrap", Ty::B32) => each!(|a: u64, b: u64, _: u64| mask(a as u32 & 31, b as u32 & 31)),
        ("szext.clamp", Ty::U32) => each!(|a: u64, b: u64, _: u64| low(a, (b as u32).min(32))),
        ("szext.clamp", Ty::S32) => each!(|a: u64, b: u64, _: u64| {
            let width = (b as u32).min(32);
            if width == 0 {
                0
            } else {
                low(super::extended(a, width) as u64, 32)
            }
        }),
        ("szext.wrap", Ty::U32) => each!(|a: u64, b: u64, _: u64| low(a, b as u32 & 31)),
        ("szext.wrap", Ty::S32) => each!(|a: u64, b: u64, _: u64| {
            let width = b as u32 & 31;
            if width == 0 {
                0
            } else {
                low(super::extended(a, width) as u64, 32)
            }
        }),
        _ => return None,
    })
}

fn mask(start: u32, count: u32) -> u64 {
    if start >= 32 {
        return 0;
    }
    low((low(u64::MAX, count.min(32))) << start, 32)
}

/// The position of the highest bit, or all bits of a u32 if there is none.
fn found(value: u64) -> u64 {
    if value == 0 {
        0xffff_ffff
    } else {
        u64::from(63 - value.leading_zeros())
    }
}

/// `bfe`: bits from a position on; those beyond the value are its sign, if it has one.
fn field(value: u64, position: u64, length: u64, width: u32, signed: bool) -> u64 {
    let position = (position & 0xff) as u32;
    let length = (length & 0xff) as u32;
    let value = low(value, width);
    let top = (position + length).saturating_sub(1).min(width - 1);
    let negative = signed && length > 0 && (value >> top) & 1 == 1;
    let known = width.saturating_sub(position).min(length);
    let taken = if known == 0 { 0 } else { low(value >> position, known) };
    low(if negative { taken | !low(u64::MAX, known) } else { taken }, width)
}

/// `bfi`: the low bits of `a` put into `b` at a position.
pub(crate) fn inserted(a: u64, b: u64, position: u64, length: u64, width: u32) -> u64 {
    let position = (position & 0xff) as u32;
    let length = (length & 0xff) as u32;
    if position >= width || length == 0 {
        return low(b, width);
    }
    let mask = low(low(u64::MAX, length.min(64)) << position, width);
    (b & !mask) | ((a << position) & mask)
}

/// `prmt`: four bytes out of eight, by a selector; `mode` is its modifier.
pub(crate) fn permuted(a: u64, b: u64, selector: u64, mode: Permutation) -> u64 {
    let bytes = (a & 0xffff_ffff) | (b << 32);
    let byte = |i: u64| (bytes >> (8 * (i & 7))) & 0xff;
    let s = selector & 3;
    let pick: [u64; 4] = match mode {
        Permutation::General => {
            let mut result = 0;
            for i in 0..4 {
                let nibble = (selector >> (4 * i)) & 15;
                let value = byte(nibble & 7);
                let value = if nibble & 8 != 0 {
                    if value & 0x80 != 0 { 0xff } else { 0 }
                } else {
                    value
                };
                result |= value << (8 * i);
            }
            return result;
        }
        Permutation::Forward4 => [s, s + 1, s + 2, s + 3],
        Permutation::Backward4 => [s, s + 7, s + 6, s + 5],
        Permutation::Replicate8 => [s, s, s, s],
        Permutation::EdgeLeft => [s, s.max(1), s.max(2), 3],
        Permutation::EdgeRight => [0, s.min(1), s.min(2), s],
        Permutation::Replicate16 => {
            let h = 2 * (s & 1);
            [h, h + 1, h, h + 1]
        }
    };
    (0..4).fold(0, |all, i| all | byte(pick[i]) << (8 * i))
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Permutation {
    General,
    Forward4,
    Backward4,
    Replicate8,
    EdgeLeft,
    EdgeRight,
    Replicate16,
}

/// `lop3`: any function of three bits, as a table of eight.
pub(crate) fn lop3(a: u64, b: u64, c: u64, table: u8) -> u64 {
    let mut result = 0;
    for row in 0..8_u32 {
        if table >> row & 1 == 0 {
            continue;
        }
        let x = if row & 4 != 0 { a } else { !a };
        let y = if row & 2 != 0 { b } else { !b };
        let z = if row & 1 != 0 { c } else { !c };
        result |= x & y & z;
    }
    low(result, 32)
}

/// `dp4a` and `dp2a`: products of bytes added up. `high` chooses the upper bytes of `b` for `dp2a`.
pub(crate) fn dot(a: u64, b: u64, c: u64, signed_a: bool, signed_b: bool, two: Option<bool>) -> u64 {
    let part = |value: u64, at: u32, bits: u32, signed: bool| {
        let value = low(value >> at, bits);
        if signed {
            super::extended(value, bits)
        } else {
            value as i64
        }
    };
    let sum: i64 = match two {
        None => (0..4)
            .map(|i| part(a, 8 * i, 8, signed_a) * part(b, 8 * i, 8, signed_b))
            .sum(),
        Some(high) => (0..2)
            .map(|i| part(a, 16 * i, 16, signed_a) * part(b, 8 * i + if high { 16 } else { 0 }, 8, signed_b))
            .sum(),
    };
    low((c as i64).wrapping_add(sum) as u64, 32)
}
