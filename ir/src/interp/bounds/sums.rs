//! Error bounds of sums, products and extrema over many elements, in any order.
//!
//! A sum of n terms in any order has `|fl(Σx) − Σx| <= γ_{n−1} Σ|x|` (Higham, equation 4.4 and the remark that it holds for
//! every ordering), a sum of n products of k factors γ_{n+k−2}; with γ_j = ju/(1 − ju) <= ju(1 + 2ju) for ju <= 1/4. We charge
//! n + k + 1 roundings, relative to the terms' *magnitudes*, so that neighbouring sums may be merged, split and reordered
//! (their intermediate results are then never formed), plus the terms' own errors.
//!
//! If every term is exact and all are multiples of 2^g with `Σ|x| <= 2^(g + p)`, every partial sum in every order is exactly
//! representable and the sum is exact. That keeps integers, counts and masks in floats certain.
//!
//! A product of n factors in any order has the relative error `Π (1 + e_i/|x_i|)(1 + u)^n − 1`. If an exact product's
//! significant bits fit, all its partial products do, because odd parts divide.

use crate::dtype::{DType, Scalar};
use crate::graph::{Monoid, Semiring};
use crate::scalar::ScalarOp;

use super::super::lanes::Wide;
use super::approx::{
    self, Approx, TINY, U64, overflow, precision, product_error, rounded, smallest, smallest_exponent, unit_roundoff,
};

/// The exponent of the lowest set bit of a finite number other than zero.
fn low_bit(v: f64) -> i32 {
    let bits = v.abs().to_bits();
    let (exponent, fraction) = ((bits >> 52) as i32, bits & ((1 << 52) - 1));
    if exponent == 0 {
        fraction.trailing_zeros() as i32 - 1074
    } else {
        (fraction | 1 << 52).trailing_zeros() as i32 + exponent - 1075
    }
}

/// A term of a sum: a product of factors, not rounded, and whether f64 holds it exactly.
#[derive(Clone, Copy)]
pub(super) struct Term {
    value: f64,
    magnitude: f64,
    error: f64,
    exact: bool,
}

impl From<Approx> for Term {
    fn from(x: Approx) -> Term {
        Term {
            value: x.value,
            magnitude: x.magnitude,
            error: x.error,
            exact: x.is_exact(),
        }
    }
}

impl Term {
    /// Multiplies by another factor.
    pub(super) fn times(self, x: Approx) -> Term {
        let own = Approx {
            value: self.value,
            magnitude: self.magnitude,
            error: self.error,
        };
        let value = self.value * x.value;
        let residual = self.value.mul_add(x.value, -value);
        let jumped = !value.is_finite() && self.value.is_finite() && x.value.is_finite();
        Term {
            value,
            magnitude: self.magnitude * x.magnitude,
            error: if jumped { f64::INFINITY } else { product_error(own, x) },
            // Far below, the residual itself may underflow, so small products count as inexact.
            exact: self.exact && x.is_exact() && residual == 0.0 && (value == 0.0 || value.abs() > 1e-250),
        }
    }
}

/// A sum under way.
#[derive(Clone, Copy)]
pub(super) struct Sum {
    total: (f64, f64),
    /// Σ|finite values|, Σ magnitudes, Σ errors.
    size: f64,
    magnitude: f64,
    error: f64,
    count: f64,
    exact: bool,
    low: i32,
    only_negative_zeros: bool,
    infinite: bool,
    /// Whether products and sums that are no normal numbers may be zero.
    flushes: bool,
}

impl Sum {
    pub(super) fn new() -> Sum {
        Sum {
            total: (0.0, 0.0),
            size: 0.0,
            magnitude: 0.0,
            error: 0.0,
            count: 0.0,
            exact: true,
            low: i32::MAX,
            only_negative_zeros: true,
            infinite: false,
            flushes: false,
        }
    }

    pub(super) fn push(&mut self, t: Term) {
        f64::push(&mut self.total, Monoid::Add, t.value);
        self.count += 1.0;
        self.error += t.error;
        self.exact &= t.exact;
        if t.value.is_finite() {
            self.size += t.value.abs();
            self.magnitude += t.magnitude.max(t.value.abs());
            if t.value != 0.0 {
                self.low = self.low.min(low_bit(t.value));
            }
        } else {
            self.infinite = true;
        }
        self.only_negative_zeros &= t.value == 0.0 && t.value.is_sign_negative();
    }

    /// The sum, carried in `dtype`, of terms that are products of `factors`.
    pub(super) fn finish(self, dtype: DType, factors: usize) -> Approx {
        let value = f64::total(self.total);
        if self.error.is_nan() || self.error == f64::INFINITY {
            return Approx::uncertain(value);
        }
        let may_overflow = self.magnitude + self.error >= overflow(dtype) * (1.0 - 1e-3);
        if self.infinite || !value.is_finite() {
            // Infinite terms decide, unless finite ones may overflow the other way.
            return if self.infinite && !may_overflow {
                Approx::exact(value)
            } else {
                Approx::uncertain(value)
            };
        }
        if may_overflow {
            return Approx::uncertain(value);
        }
        let lowest = match self.flushes {
            true => approx::NORMAL_EXPONENT,
            false => smallest_exponent(dtype),
        };
        let fits = self.low == i32::MAX
            || (self.low >= lowest && self.size <= 2f64.powi((self.low + precision(dtype)).clamp(-1022, 1023)));
        if self.exact && fits {
            return Approx {
                value,
                magnitude: self.magnitude,
                error: if self.only_negative_zeros && self.count > 0.0 {
                    TINY
                } else {
                    0.0
                },
            };
        }
        let roundings = (self.count + factors as f64 + 1.0) * (unit_roundoff(dtype) + U64);
        if roundings > 0.25 {
            return Approx::uncertain(value);
        }
        let gamma = roundings * (1.0 + 2.0 * roundings);
        let underflow = if factors > 1 {
            self.count * factors as f64 * 0.5 * smallest(dtype)
        } else {
            0.0
        };
        // Each product, each sum, and what is left of the last one when it is rounded.
        let flushed = if self.flushes {
            (2.0 * self.count + 2.0) * approx::NORMAL
        } else {
            0.0
        };
        Approx {
            value,
            magnitude: self.magnitude,
            error: (self.error + gamma * (self.magnitude + self.error) + underflow + flushed) * (1.0 + 1e-9),
        }
    }
}

/// A product under way.
#[derive(Clone, Copy)]
pub(super) struct Product {
    value: f64,
    /// Relative error of the nonzero part.
    relative: f64,
    /// Products of the factors (with their errors) above and below one.
    large: f64,
    small: f64,
    count: f64,
    exact: bool,
    uncertain: bool,
    special: bool,
    zero: bool,
}

impl Product {
    pub(super) fn new() -> Product {
        Product {
            value: 1.0,
            relative: 0.0,
            large: 1.0,
            small: 1.0,
            count: 0.0,
            exact: true,
            uncertain: false,
            special: false,
            zero: false,
        }
    }

    pub(super) fn push(&mut self, x: Approx) {
        let value = self.value * x.value;
        self.exact &= x.is_exact() && (self.value.mul_add(x.value, -value) == 0.0);
        self.count += 1.0;
        if !x.value.is_finite() {
            self.special = true;
            self.uncertain |= !x.is_exact();
        } else if x.value == 0.0 && x.is_exact() {
            self.zero = true;
        } else if x.value.abs() <= x.error {
            // The factor may be zero or of either sign.
            self.uncertain = true;
        } else {
            let r = x.error / x.value.abs();
            self.relative += r + self.relative * r;
            self.large *= (x.value.abs() + x.error).max(1.0);
            self.small *= (x.value.abs() - x.error).min(1.0);
        }
        self.value = value;
    }

    pub(super) fn finish(self, dtype: DType) -> Approx {
        let normal = smallest(dtype) / unit_roundoff(dtype);
        // Any order may overflow to an infinity or underflow to zero on the way.
        let crosses = self.large >= overflow(dtype) * (1.0 - 1e-3) || self.small <= normal * 2.0;
        if self.uncertain || (crosses && self.count > 1.0) {
            return Approx::uncertain(self.value);
        }
        if self.special || self.zero {
            return Approx::exact(self.value);
        }
        let fits = low_bit(self.value) + precision(dtype) > self.value.abs().log2().floor() as i32;
        if self.exact && (fits || self.count <= 1.0) {
            return Approx::exact(self.value);
        }
        let roundings = self.count * (unit_roundoff(dtype) + U64);
        if roundings > 0.25 {
            return Approx::uncertain(self.value);
        }
        let grown = roundings * (1.0 + 2.0 * roundings);
        let relative = self.relative + grown + self.relative * grown;
        Approx {
            value: self.value,
            magnitude: self.value.abs(),
            error: self.value.abs() * relative * (1.0 + 1e-9),
        }
    }
}

/// A maximum or minimum with another element.
pub(super) fn extreme(op: ScalarOp, x: Approx, y: Approx) -> Approx {
    approx::map(op, DType::F64, &[x, y])
}

/// A float monoid under way.
#[derive(Clone, Copy)]
pub(super) enum Fold {
    Sum(Sum),
    Product(Product),
    Extreme(ScalarOp, Approx),
}

impl Fold {
    pub(super) fn new(monoid: Monoid, dtype: DType) -> Fold {
        match monoid {
            Monoid::Add => Fold::Sum(Sum::new()),
            Monoid::Mul => Fold::Product(Product::new()),
            _ => Fold::Extreme(monoid.combine(), Approx::exact(monoid.identity(dtype).as_f64())),
        }
    }

    pub(super) fn push(&mut self, x: Approx) {
        match self {
            Fold::Sum(s) => s.push(x.into()),
            Fold::Product(p) => p.push(x),
            Fold::Extreme(op, best) => *best = extreme(*op, *best, x),
        }
    }

    /// The result, carried in the dtype's accumulator and rounded to the dtype.
    pub(super) fn finish(self, dtype: DType) -> Approx {
        let accumulator = dtype.accumulator();
        match self {
            Fold::Sum(s) => approx::convert(s.finish(accumulator, 1), accumulator, dtype),
            Fold::Product(p) => approx::convert(p.finish(accumulator), accumulator, dtype),
            Fold::Extreme(_, best) => best,
        }
    }
}

/// A semiring's sum of products on floats, under way.
#[derive(Clone, Copy)]
pub(super) enum Ring {
    AddMul(Sum, usize),
    /// The sum's operation and whether factors multiply.
    Extreme(ScalarOp, bool, Approx),
}

impl Ring {
    /// `flushes` says whether products and sums that are no normal numbers of f32 may be zero.
    pub(super) fn new(semiring: Semiring, (accumulator, flushes): (DType, bool), factors: usize) -> Ring {
        match semiring {
            Semiring::AddMul => {
                let sum = Sum { flushes, ..Sum::new() };
                Ring::AddMul(sum, factors)
            }
            other => {
                let sum = other.sum();
                let identity = Approx::exact(sum.identity(accumulator).as_f64());
                Ring::Extreme(sum.combine(), other.product() == ScalarOp::Mul, identity)
            }
        }
    }

    /// Adds the product of factors (at least one), which are of the accumulator's dtype.
    pub(super) fn push(&mut self, accumulator: DType, mut factors: impl Iterator<Item = Approx> + Clone) {
        let reorders = factors.clone().nth(2).is_some();
        let every = factors.clone();
        let Some(first) = factors.next() else { return };
        match self {
            Ring::AddMul(sum, _) => {
                let mut term = factors.fold(first.into(), Term::times);
                if reorders && !stays_normal(every, accumulator) {
                    term.error = f64::INFINITY;
                }
                sum.push(term);
            }
            Ring::Extreme(op, multiply, best) => {
                let product = if *multiply { ScalarOp::Mul } else { ScalarOp::Add };
                let mut term = first;
                for (i, x) in factors.enumerate() {
                    // Beyond two factors the order is open, so the intermediate results are not to the bit.
                    if i > 0 && !is_whole(term, x, product, accumulator) {
                        let f = product.eval_f64(&[term.value, x.value, 0.0]);
                        let before = match product {
                            ScalarOp::Mul => product_error(term, x),
                            _ => term.error + x.error,
                        };
                        // Two more roundings of the magnitude: any association of the same factors.
                        let reorder = 4.0 * unit_roundoff(accumulator) * (term.magnitude + x.magnitude);
                        let extra = if product == ScalarOp::Mul {
                            4.0 * unit_roundoff(accumulator) * f.abs()
                        } else {
                            reorder
                        };
                        term = rounded(accumulator, f, term.magnitude + x.magnitude, before + extra, 0.0);
                    } else {
                        term = approx::map(product, accumulator, &[term, x]);
                    }
                }
                *best = extreme(*op, *best, term);
            }
        }
    }

    pub(super) fn finish(self, accumulator: DType, dtype: DType) -> Approx {
        let carried = match self {
            Ring::AddMul(sum, factors) => sum.finish(accumulator, factors),
            Ring::Extreme(_, _, best) => best,
        };
        approx::convert(carried, accumulator, dtype)
    }
}

/// True if no partial product of the factors, in any order, overflows or underflows.
fn stays_normal(factors: impl Iterator<Item = Approx>, dtype: DType) -> bool {
    let (mut large, mut small) = (1.0f64, 1.0f64);
    for x in factors {
        let size = x.value.abs();
        if size.is_finite() && size != 0.0 {
            large *= (size + x.error).max(1.0);
            small *= size.min(1.0);
        }
    }
    large < overflow(dtype) * 0.5 && small > 2.0 * smallest(dtype) / unit_roundoff(dtype)
}

/// True if the operation on exact operands is itself exact, so that no order changes it.
fn is_whole(x: Approx, y: Approx, op: ScalarOp, dtype: DType) -> bool {
    if !x.is_exact() || !y.is_exact() {
        return false;
    }
    let small = |v: f64| v.fract() == 0.0 && v.abs() < 2f64.powi(precision(dtype) / 2 - 2);
    let f = op.eval_f64(&[x.value, y.value, 0.0]);
    !f.is_finite() || (small(x.value) && small(y.value) && Scalar::from_f64(dtype, f).as_f64() == f)
}

/// The winner's position among elements (the first largest or smallest, the first NaN) and whether it is certain.
pub(super) fn winner(op: ScalarOp, elements: &[Approx]) -> (usize, bool) {
    if elements.iter().any(|x| x.is_uncertain()) {
        return (0, false);
    }
    if let Some(nan) = elements.iter().position(|x| x.value.is_nan()) {
        return (nan, true);
    }
    let mut best = 0;
    for (i, x) in elements.iter().enumerate() {
        let wins = if op == ScalarOp::Max {
            x.value > elements[best].value
        } else {
            x.value < elements[best].value
        };
        if wins {
            best = i;
        }
    }
    let top = elements[best];
    let certain = elements.iter().enumerate().all(|(i, x)| {
        i == best || (x.value == top.value && x.is_exact() && top.is_exact()) || {
            x.value != top.value && approx::comparison_is_certain(*x, top)
        }
    });
    (best, certain)
}
