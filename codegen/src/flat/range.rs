//! Ranges of index arithmetic. The extreme i64 values stand for unbounded, as in [`Interval`].

use tlc_ir::index::Interval;

/// i64 extremes as infinities far outside i64, so that sums of them stay infinite.
fn wide(v: i64) -> i128 {
    match v {
        i64::MIN => i64::MIN as i128 * 4,
        i64::MAX => i64::MAX as i128 * 4,
        v => v as i128,
    }
}

fn closed(lo: i128, hi: i128) -> Interval {
    let clamp = |v: i128| v.clamp(i64::MIN as i128, i64::MAX as i128) as i64;
    Interval::new(clamp(lo), clamp(hi))
}

/// The range of `constant + Σ k * term`.
pub(super) fn sum(terms: impl Iterator<Item = (Interval, i64)>, constant: i64) -> Interval {
    let (mut lo, mut hi) = (constant as i128, constant as i128);
    for (range, k) in terms {
        let (a, b) = (
            wide(range.lo).saturating_mul(k as i128),
            wide(range.hi).saturating_mul(k as i128),
        );
        lo = lo.saturating_add(a.min(b));
        hi = hi.saturating_add(a.max(b));
    }
    closed(lo, hi)
}

/// The range of a product.
pub(crate) fn product(factors: impl Iterator<Item = Interval>) -> Interval {
    factors.fold(Interval::new(1, 1), |x, y| {
        let corner = |a: i64, b: i64| wide(a).saturating_mul(b as i128);
        let all = [
            corner(x.lo, y.lo),
            corner(x.lo, y.hi),
            corner(x.hi, y.lo),
            corner(x.hi, y.hi),
        ];
        let least = all.iter().copied().fold(i128::MAX, i128::min);
        let most = all.iter().copied().fold(i128::MIN, i128::max);
        closed(least, most)
    })
}

/// The range of a floored quotient.
pub(super) fn quotient(a: Interval, b: Interval) -> Interval {
    let (small, large) = (b.lo.max(1), b.hi.max(1));
    let lo = match a.lo {
        i64::MIN => i64::MIN,
        lo => lo.div_euclid(small).min(lo.div_euclid(large)),
    };
    let hi = match a.hi {
        i64::MAX => i64::MAX,
        hi => hi.div_euclid(small).max(hi.div_euclid(large)),
    };
    Interval::new(lo, hi)
}

/// The range of a floored remainder.
pub(super) fn remainder(a: Interval, b: Interval) -> Interval {
    let top = b.hi.saturating_sub(1).max(0);
    match a.lo >= 0 {
        true => Interval::new(0, top.min(a.hi)),
        false => Interval::new(0, top),
    }
}

/// The range of the smaller of two.
pub(super) fn smaller(a: Interval, b: Interval) -> Interval {
    Interval::new(a.lo.min(b.lo), a.hi.min(b.hi))
}

/// The range of the larger of two.
pub(super) fn larger(a: Interval, b: Interval) -> Interval {
    Interval::new(a.lo.max(b.lo), a.hi.max(b.hi))
}

/// What two ranges of one value have in common.
pub(super) fn both(a: Interval, b: Interval) -> Interval {
    match (a.lo.max(b.lo), a.hi.min(b.hi)) {
        (lo, hi) if lo <= hi => Interval::new(lo, hi),
        _ => a,
    }
}
