//! Keys: unsigned words in the order of the elements, reversed for a descending sort.

use std::ops::{BitAnd, BitOr, BitXor};

use tlc_ir::DType;

/// A key: the fewest bits that hold those of any element.
pub(super) trait Word:
    Copy + Ord + BitAnd<Output = Self> + BitOr<Output = Self> + BitXor<Output = Self>
{
    const ZERO: Self;
    const MAX: Self;

    fn of(bits: u64) -> Self;

    fn bits(self) -> u64;
}

impl Word for u32 {
    const ZERO: u32 = 0;
    const MAX: u32 = u32::MAX;

    fn of(bits: u64) -> u32 {
        bits as u32
    }

    fn bits(self) -> u64 {
        self.into()
    }
}

impl Word for u64 {
    const ZERO: u64 = 0;
    const MAX: u64 = u64::MAX;

    fn of(bits: u64) -> u64 {
        bits
    }

    fn bits(self) -> u64 {
        self
    }
}

/// How elements of a dtype become words that order as they do, or the other way round.
#[derive(Clone, Copy)]
pub(super) struct Order {
    /// The bits of an element.
    mask: u64,
    /// The highest of them.
    sign: u64,
    /// For floats, the bits of infinity.
    infinity: Option<u64>,
    /// Whether the highest bit is a sign.
    signed: bool,
    descending: bool,
}

impl Order {
    pub(super) fn of(dtype: DType, descending: bool) -> Order {
        let width = dtype.bytes() as u32 * 8;
        Order {
            mask: u64::MAX >> (64 - width),
            sign: 1u64 << (width - 1),
            // All ones in the exponent.
            infinity: dtype
                .is_float()
                .then(|| tlc_ir::Scalar::from_f64(dtype, f64::INFINITY).bits()),
            signed: dtype.is_signed_int(),
            descending,
        }
    }

    /// The key of an element: every NaN last (in an ascending order) and equal, the zeros equal.
    #[inline(always)]
    pub(super) fn key(&self, bits: u64) -> u64 {
        let keys = Keys::<u64>::of(self);
        match keys.infinity {
            Some(infinity) => keys.of_float(bits, infinity),
            None => keys.of_integer(bits & self.mask),
        }
    }

    /// The element of a key, if only one has it.
    pub(super) fn bits(&self, key: u64) -> Option<u64> {
        let key = if self.descending { key ^ self.mask } else { key };
        match self.infinity {
            Some(_) if key == self.sign || key == self.mask => None,
            Some(_) if key & self.sign != 0 => Some(key ^ self.sign),
            Some(_) => Some(!key & self.mask),
            None if self.signed => Some(key ^ self.sign),
            None => Some(key),
        }
    }
}

/// A word that orders as the elements do: every NaN last and equal, the zeros equal.
pub(in super::super) fn key(dtype: DType, bits: u64) -> u64 {
    Order::of(dtype, false).key(bits)
}

/// How keys are made of floats, if there is an infinity, or of integers: with no branches, as signs are as good as random.
#[derive(Clone, Copy)]
pub(super) struct Keys<K> {
    all: K,
    sign: K,
    pub(super) infinity: Option<K>,
    /// What keys of a descending order are turned with.
    turned: K,
}

impl<K: Word> Keys<K> {
    pub(super) fn of(order: &Order) -> Keys<K> {
        let all = K::of(order.mask);
        let has_sign = order.signed || order.infinity.is_some();
        Keys {
            all,
            sign: if has_sign { K::of(order.sign) } else { K::ZERO },
            infinity: order.infinity.map(K::of),
            turned: if order.descending { all } else { K::ZERO },
        }
    }

    #[inline(always)]
    pub(super) fn of_float(self, x: K, infinity: K) -> K {
        let magnitude = x & (self.all ^ self.sign);
        let ordered = if x & self.sign == K::ZERO {
            x | self.sign
        } else {
            x ^ self.all
        };
        let ordered = if magnitude == K::ZERO { self.sign } else { ordered };
        let ordered = if magnitude > infinity { self.all } else { ordered };
        ordered ^ self.turned
    }

    #[inline(always)]
    pub(super) fn of_integer(self, x: K) -> K {
        x ^ self.sign ^ self.turned
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tlc_ir::Scalar;

    #[test]
    fn keys_order_as_elements_do() {
        for dtype in DType::ALL.into_iter().filter(|d| !d.is_storage()) {
            let values = [
                f64::NEG_INFINITY,
                -3.0,
                -1.0,
                -0.0,
                0.0,
                1.0,
                2.0,
                f64::INFINITY,
                f64::NAN,
            ];
            for (i, &a) in values.iter().enumerate() {
                for &b in &values[i..] {
                    let (x, y) = (Scalar::from_f64(dtype, a), Scalar::from_f64(dtype, b));
                    let (k, l) = (key(dtype, x.bits()), key(dtype, y.bits()));
                    let less = (!x.is_nan() && y.is_nan()) || x.as_f64() < y.as_f64();
                    if less {
                        assert!(k < l, "{dtype} {a} {b}");
                    } else if x.as_f64() == y.as_f64() || (x.is_nan() && y.is_nan()) {
                        assert_eq!(k, l, "{dtype} {a} {b}");
                    }
                }
            }
        }
    }
}
