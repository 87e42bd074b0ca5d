//! Rounding an exact value to a binary format, in each direction.
//!
//! A value is a pair: an `f64`, and on which side of it the exact value lies. All formats up to f32 come out of such a pair
//! with one rounding, so results are those of IEEE 754 and not of two roundings in a row.

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Round {
    /// To nearest, ties to even.
    Even,
    /// To nearest, ties away from zero.
    Away,
    Zero,
    Down,
    Up,
}

/// A binary format of at most 32 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Format {
    /// Bits of the exponent.
    pub(crate) exponent: u32,
    /// Bits of the fraction that are stored.
    pub(crate) fraction: u32,
    /// Whether the highest exponent means infinities; e4m3 has only a NaN there.
    pub(crate) infinities: bool,
}

pub(crate) const F32: Format = Format {
    exponent: 8,
    fraction: 23,
    infinities: true,
};
pub(crate) const F16: Format = Format {
    exponent: 5,
    fraction: 10,
    infinities: true,
};
pub(crate) const BF16: Format = Format {
    exponent: 8,
    fraction: 7,
    infinities: true,
};
pub(crate) const TF32: Format = Format {
    exponent: 8,
    fraction: 10,
    infinities: true,
};
pub(crate) const E4M3: Format = Format {
    exponent: 4,
    fraction: 3,
    infinities: false,
};
pub(crate) const E5M2: Format = Format {
    exponent: 5,
    fraction: 2,
    infinities: true,
};

impl Format {
    const fn bias(self) -> i64 {
        (1 << (self.exponent - 1)) - 1
    }

    pub(crate) const fn bits(self) -> u32 {
        1 + self.exponent + self.fraction
    }

    const fn sign_bit(self) -> u64 {
        1 << (self.exponent + self.fraction)
    }

    pub(crate) const fn infinity(self) -> u64 {
        ((1 << self.exponent) - 1) << self.fraction
    }

    pub(crate) const fn nan(self) -> u64 {
        self.sign_bit() - 1
    }

    pub(crate) const fn largest(self) -> u64 {
        if self.infinities {
            self.infinity() - 1
        } else {
            self.nan() - 1
        }
    }

    /// The value of some bits, exactly.
    pub(crate) fn value(self, bits: u64) -> f64 {
        let sign = if bits & self.sign_bit() != 0 { -1.0 } else { 1.0 };
        let exponent = (bits >> self.fraction) & ((1 << self.exponent) - 1);
        let fraction = bits & ((1 << self.fraction) - 1);
        let top = (1 << self.exponent) - 1;
        if exponent == top && self.infinities {
            return if fraction == 0 { sign * f64::INFINITY } else { f64::NAN };
        }
        if !self.infinities && bits & !self.sign_bit() == self.nan() {
            return f64::NAN;
        }
        let (mantissa, exponent) = if exponent == 0 {
            (fraction, 1)
        } else {
            (fraction | 1 << self.fraction, exponent as i64)
        };
        sign * mantissa as f64 * power_of_two(exponent - self.bias() - i64::from(self.fraction))
    }
}

/// 2 to a power that an f64 has as a normal number.
pub(crate) const fn power_of_two(exponent: i64) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

/// The bits of the value that is `near` plus something of the sign of `rest` and less than half a unit in the last place.
pub(crate) fn round(near: f64, rest: f64, format: Format, mode: Round) -> u64 {
    let sign = if near.is_sign_negative() { format.sign_bit() } else { 0 };
    if near.is_nan() {
        return format.nan();
    }
    if near.is_infinite() {
        return if format.infinities {
            sign | format.infinity()
        } else {
            format.nan()
        };
    }
    if near == 0.0 {
        return sign;
    }
    let bits = near.to_bits();
    let stored = ((bits >> 52) & 0x7ff) as i64;
    let fraction = bits & ((1 << 52) - 1);
    let (mut mantissa, mut exponent) = if stored == 0 {
        (fraction, -1074)
    } else {
        (fraction | 1 << 52, stored - 1075)
    };
    // Two bits more: room for a sticky bit on either side.
    mantissa <<= 2;
    exponent -= 2;
    if rest != 0.0 {
        let outward = (rest > 0.0) == (near > 0.0);
        mantissa = if outward { mantissa + 1 } else { mantissa - 1 };
    }
    // The exponent of the lowest bit that the format keeps.
    let top = 63 - i64::from(mantissa.leading_zeros()) + exponent;
    let lowest = top.max(1 - format.bias()) - i64::from(format.fraction);
    let drop = lowest - exponent;
    let (mut kept, up) = if drop <= 0 {
        (mantissa << (-drop).min(63), false)
    } else if drop > 63 {
        (0, rounds_up(mode, sign != 0, false, false, true))
    } else {
        let kept = mantissa >> drop;
        let below = mantissa & ((1 << drop) - 1);
        let half = 1 << (drop - 1);
        let up = below != 0 && rounds_up(mode, sign != 0, kept & 1 == 1, below == half, below < half);
        (kept, up)
    };
    kept += u64::from(up);
    let mut lowest = lowest;
    if kept >> (format.fraction + 1) != 0 {
        kept >>= 1;
        lowest += 1;
    }
    if kept == 0 {
        return sign;
    }
    let exponent = lowest + i64::from(format.fraction) + format.bias();
    let bits = if kept >> format.fraction == 0 {
        kept
    } else {
        ((exponent.max(0) as u64) << format.fraction) + (kept - (1 << format.fraction))
    };
    if exponent >= (1 << format.exponent) || bits > format.largest() {
        let inward = match mode {
            Round::Even | Round::Away => false,
            Round::Zero => true,
            Round::Down => sign == 0,
            Round::Up => sign != 0,
        };
        let beyond = if format.infinities {
            format.infinity()
        } else {
            format.nan()
        };
        return sign | if inward { format.largest() } else { beyond };
    }
    sign | bits
}

/// Whether a magnitude goes up: `tie` if what is dropped is exactly half a unit, `less` if it is less than that.
pub(crate) const fn rounds_up(mode: Round, negative: bool, odd: bool, tie: bool, less: bool) -> bool {
    match mode {
        Round::Even => !less && (!tie || odd),
        Round::Away => !less,
        Round::Zero => false,
        Round::Down => negative,
        Round::Up => !negative,
    }
}

/// The sum of two numbers as the nearest one and what is missing, exactly.
pub(crate) fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    if !sum.is_finite() {
        return (sum, 0.0);
    }
    let other = sum - a;
    (sum, (a - (sum - other)) + (b - other))
}

/// A result of an f64 operation rounded in a direction, from the nearest one and the sign of what is missing.
pub(crate) fn directed(near: f64, rest: f64, mode: Round) -> f64 {
    if near.is_nan() {
        return near;
    }
    let up = rest > 0.0;
    let down = rest < 0.0;
    match mode {
        Round::Even | Round::Away => near,
        Round::Up if up => near.next_up(),
        Round::Down if down => near.next_down(),
        Round::Zero if near > 0.0 && down => near.next_down(),
        Round::Zero if near < 0.0 && up => near.next_up(),
        Round::Up | Round::Down | Round::Zero => near,
    }
}
