//! Quotients and remainders: what divides exactly is divided, the rest stays a quotient.

use rustc_hash::FxHashSet;

use super::{IndexExpr, IndexNode, Terms};

/// The most steps of a division by a sum.
const MAX_DIVISION: usize = 64;

/// The sum, in halves, so that long sums are not copied for each of their terms.
fn total(mut terms: Vec<IndexExpr>) -> IndexExpr {
    while terms.len() > 1 {
        let mut halves = terms.into_iter();
        let mut next = Vec::new();
        while let Some(a) = halves.next() {
            next.push(match halves.next() {
                Some(b) => a + b,
                None => a,
            });
        }
        terms = next;
    }
    terms.pop().unwrap_or(IndexExpr::ZERO)
}

impl IndexExpr {
    /// Splits `self` into `(q, r)` with `self = q*d + r`, where `r` keeps the terms that `d` does not divide.
    pub(super) fn split_divisible(&self, d: &IndexExpr) -> (IndexExpr, IndexExpr) {
        match d {
            // Not a divisor: code that never runs (a loop over nothing) may still mention it.
            IndexExpr::Const(..=0) => (IndexExpr::ZERO, self.clone()),
            IndexExpr::Const(d) => {
                // Splitting a coefficient would add terms; take only what divides exactly.
                let divides = |c: i64| c.rem_euclid(*d) == 0;
                let (whole, constant) = match self.as_node() {
                    None => (0, self.as_const().unwrap_or(0)),
                    Some(IndexNode::Sum { terms, constant, .. }) => {
                        (terms.iter().filter(|(_, c)| divides(*c)).count(), *constant)
                    }
                    Some(_) => (usize::from(divides(1)), 0),
                };
                let rest = constant.rem_euclid(*d);
                if whole == 0 && rest == constant {
                    return (IndexExpr::ZERO, self.clone());
                }
                let (mut q, mut r) = (Terms::new(), Terms::new());
                for (t, c) in self.terms_of() {
                    match divides(c) {
                        true => q.push((t.clone(), c.div_euclid(*d))),
                        false => r.push((t.clone(), c)),
                    }
                }
                (
                    IndexExpr::of_normal(q, constant.div_euclid(*d)),
                    IndexExpr::of_normal(r, rest),
                )
            }
            IndexExpr::Node(_) => {
                let (dterms, dconst) = d.linear();
                if dconst != 0 || dterms.len() != 1 {
                    return (self.split_by_sum(d)).unwrap_or_else(|| (IndexExpr::ZERO, self.clone()));
                }
                let (terms, constant) = self.linear();
                let mut r = Terms::new();
                let (dfactors, dcoef) = (dterms[0].0.factors(), dterms[0].1);
                let mut quotient = Vec::new();
                'terms: for (t, c) in terms {
                    if c.checked_rem(dcoef) == Some(0) {
                        let mut left = t.factors();
                        for f in &dfactors {
                            match left.iter().position(|x| x == f) {
                                Some(i) => drop(left.remove(i)),
                                None => {
                                    r.push((t, c));
                                    continue 'terms;
                                }
                            }
                        }
                        let product = left.into_iter().fold(IndexExpr::ONE, |a, b| a * b);
                        quotient.push(product.mul_const(c / dcoef));
                    } else {
                        r.push((t, c));
                    }
                }
                (total(quotient), IndexExpr::from_linear(r, constant))
            }
        }
    }

    /// Where `d` is a sum: `(q, r)` with `self = q*d + r`, `q` not 0 and every term of `r` one of `self`. That is polynomial
    /// division with what is neither sum nor product as indeterminates; it finds every exact quotient.
    fn split_by_sum(&self, d: &IndexExpr) -> Option<(IndexExpr, IndexExpr)> {
        if self == d {
            return Some((IndexExpr::ONE, IndexExpr::ZERO));
        }
        let (divisor, dconst) = d.linear();
        // The largest term in the graded lexicographic order, which products keep: factors are sorted.
        let (lead, by) = divisor
            .iter()
            .map(|(t, c)| (t.factors(), *c))
            .max_by(|(a, _), (b, _)| a.len().cmp(&b.len()).then_with(|| b.cmp(a)))?;
        let (own, constant) = self.linear();
        if own.len() + usize::from(constant != 0) < divisor.len() + usize::from(dconst != 0) {
            return None;
        }
        let mut quotient = IndexExpr::ZERO;
        let mut rest = self.clone();
        // Each step takes a term of `self`, or one that a step before it left.
        for _ in 0..MAX_DIVISION.min(2 * own.len()) {
            let (terms, _) = rest.linear();
            let part = terms.iter().find_map(|(t, c)| {
                let mut left = t.factors();
                for f in &lead {
                    left.remove(left.iter().position(|x| x == f)?);
                }
                let whole = c.checked_rem(by) == Some(0);
                whole.then(|| IndexExpr::product(&left).mul_const(c / by))
            });
            let Some(part) = part else { break };
            rest = rest - part.clone() * d.clone();
            quotient = quotient + part;
        }
        if quotient.is(0) {
            return None;
        }
        let (left, rest_constant) = rest.linear();
        let all: FxHashSet<_> = own.iter().collect();
        let kept = left.iter().all(|t| all.contains(t)) && (rest_constant == 0 || rest_constant == constant);
        // No coefficient on the way was near saturation.
        let largest = |terms: &Terms, k: i64| terms.iter().fold(k.unsigned_abs(), |m, t| m.max(t.1.unsigned_abs()));
        let (parts, k) = quotient.linear();
        let product = u128::from(largest(&parts, k)) * u128::from(largest(&divisor, dconst));
        let exact = product * (MAX_DIVISION as u128) < 1 << 62 && largest(&own, constant) < 1 << 62;
        (kept && exact).then_some((quotient, rest))
    }

    /// `floor(a / b)`; `b` must be positive.
    pub fn floor_div(a: &IndexExpr, b: &IndexExpr) -> IndexExpr {
        match (a, b) {
            (_, IndexExpr::Const(1)) => return a.clone(),
            (IndexExpr::Const(0), _) => return IndexExpr::ZERO,
            (IndexExpr::Const(x), IndexExpr::Const(y)) if *y > 0 => return IndexExpr::Const(x.div_euclid(*y)),
            (_, IndexExpr::Const(y)) if *y <= 0 => return IndexExpr::node(IndexNode::FloorDiv(a.clone(), b.clone())),
            _ => {}
        }
        let (q, r) = a.split_divisible(b);
        if r.is(0) {
            return q;
        }
        if let IndexExpr::Const(y) = b {
            let (terms, constant) = r.linear();
            if !terms.is_empty() && terms.iter().all(|t| t.1 < 0) && constant != i64::MIN {
                // floor(-x / y) = -floor((x + y - 1) / y).
                return q - IndexExpr::floor_div(&(r.mul_const(-1) + IndexExpr::Const(y - 1)), b);
            }
        }
        let rest = match (&r, b) {
            (IndexExpr::Const(x), IndexExpr::Const(y)) => IndexExpr::Const(x.div_euclid(*y)),
            (IndexExpr::Node(n), IndexExpr::Const(y)) => match &**n {
                // floor(floor(x / m) / y) = floor(x / (m*y)) for positive constants.
                IndexNode::FloorDiv(x, IndexExpr::Const(m)) if *m > 0 && m.checked_mul(*y).is_some() => {
                    return q + IndexExpr::floor_div(x, &IndexExpr::Const(m * y));
                }
                // floor((floor(x / m) + k) / y) = floor((x + k*m) / (m*y)): windows with strides, one behind the other.
                IndexNode::Sum { terms, constant, .. } => match nested(terms, *constant, *y) {
                    Some(e) => return q + e,
                    None => IndexExpr::node(IndexNode::FloorDiv(r.clone(), b.clone())),
                },
                // (x mod y) / y = 0.
                IndexNode::Mod(_, m) if m == b => IndexExpr::ZERO,
                _ => IndexExpr::node(IndexNode::FloorDiv(r.clone(), b.clone())),
            },
            (IndexExpr::Node(n), _) if matches!(&**n, IndexNode::Mod(_, m) if m == b) => IndexExpr::ZERO,
            _ => IndexExpr::node(IndexNode::FloorDiv(r, b.clone())),
        };
        q + rest
    }

    /// `a - b * floor(a / b)`; `b` must be positive.
    pub fn modulo(a: &IndexExpr, b: &IndexExpr) -> IndexExpr {
        match (a, b) {
            (_, IndexExpr::Const(1)) => return IndexExpr::ZERO,
            (IndexExpr::Const(x), IndexExpr::Const(y)) if *y > 0 => return IndexExpr::Const(x.rem_euclid(*y)),
            (_, IndexExpr::Const(y)) if *y <= 0 => return IndexExpr::node(IndexNode::Mod(a.clone(), b.clone())),
            _ => {}
        }
        let (_, r) = a.split_divisible(b);
        let r = b.as_const().and_then(|n| r.without_remainders(n)).unwrap_or(r);
        match &r {
            IndexExpr::Const(0) => IndexExpr::ZERO,
            IndexExpr::Const(x) if b.as_const().is_some() => IndexExpr::Const(x.rem_euclid(b.as_const().unwrap_or(1))),
            IndexExpr::Node(n) if matches!(&**n, IndexNode::Mod(_, m) if m == b) => r,
            _ => IndexExpr::node(IndexNode::Mod(r, b.clone())),
        }
    }
}

/// `floor((floor(x / m) + constant) / y)` as one quotient, if `terms` are `floor(x / m)` alone.
fn nested(terms: &Terms, constant: i64, y: i64) -> Option<IndexExpr> {
    let [(IndexExpr::Node(inner), 1)] = &terms[..] else {
        return None;
    };
    let IndexNode::FloorDiv(x, IndexExpr::Const(m)) = &**inner else {
        return None;
    };
    let (divisor, shift) = (m.checked_mul(y)?, constant.checked_mul(*m)?);
    (*m > 0).then(|| IndexExpr::floor_div(&(x.clone() + IndexExpr::Const(shift)), &IndexExpr::Const(divisor)))
}

impl IndexExpr {
    /// What has the same remainder by `n` as this sum, with `x` in place of each `x mod n` in it.
    fn without_remainders(&self, n: i64) -> Option<IndexExpr> {
        let Some(IndexNode::Sum { terms, constant, .. }) = self.as_node() else {
            return None;
        };
        let inner = |t: &IndexExpr| t.as_mod().filter(|(_, m)| m.is(n)).map(|(x, _)| x);
        terms.iter().find(|(t, _)| inner(t).is_some())?;
        let whole = terms.iter().fold(IndexExpr::Const(*constant), |sum, (t, c)| {
            sum + inner(t).unwrap_or_else(|| t.clone()).mul_const(*c)
        });
        Some(whole.split_divisible(&IndexExpr::Const(n)).1)
    }

    /// A remainder in a sum joined with what it is a remainder of: `c*(x mod n) - c*x` as `-c*n*floor(x / n)`, which with `x = -y` rounds
    /// `y` up to a multiple of `n`.
    pub(super) fn rounded(terms: &Terms) -> Option<(usize, IndexExpr)> {
        for (i, (t, c)) in terms.iter().enumerate() {
            let Some((x, IndexExpr::Const(n))) = t.as_mod() else {
                continue;
            };
            // Both signs have one remainder by 2.
            let minus = x.mul_const(-1);
            for x in [&x, &minus].into_iter().take(if n == 2 { 2 } else { 1 }) {
                let (own, _) = x.mul_const(-*c).linear();
                if own.is_empty() || !own.iter().all(|o| terms.contains(o)) {
                    continue;
                }
                let up = own.iter().all(|(_, k)| k.signum() == c.signum());
                let multiple = match up {
                    true => {
                        let last = x.mul_const(-1) + IndexExpr::Const(n - 1);
                        IndexExpr::floor_div(&last, &IndexExpr::Const(n))
                            .mul_const(n)
                            .mul_const(*c)
                    }
                    false => IndexExpr::floor_div(x, &IndexExpr::Const(n))
                        .mul_const(n)
                        .mul_const(-*c),
                };
                // What the sum is with the remainder's term left out.
                return Some((i, multiple + x.mul_const(*c)));
            }
        }
        None
    }

    /// A quotient in a sum joined with what it is a quotient of: `k*floor(x / m) - k*y*floor((x + s) / (m*y))` as
    /// `k*(floor((x + s) / m) mod y) - k*floor((x mod m + s) / m)`, whose range is narrower.
    pub(super) fn remainder_joined(terms: &Terms, constant: i64) -> Option<IndexExpr> {
        let quotient = |t: &IndexExpr| match t {
            IndexExpr::Node(n) => match &**n {
                IndexNode::FloorDiv(x, IndexExpr::Const(d)) if *d > 0 => Some((x.clone(), *d)),
                _ => None,
            },
            IndexExpr::Const(_) => None,
        };
        for (i, (whole, c)) in terms.iter().enumerate() {
            let Some((x, d)) = quotient(whole) else { continue };
            for (j, (t, k)) in terms.iter().enumerate() {
                if i == j || c.signum() == k.signum() || c.checked_rem(*k) != Some(0) {
                    continue;
                }
                let (own, m) = quotient(t).unwrap_or_else(|| (t.clone(), 1));
                let Some(y) = (c / k).checked_neg().filter(|y| m.checked_mul(*y) == Some(d)) else {
                    continue;
                };
                let shift = x.clone() - own.clone();
                if shift.as_const().is_none() {
                    continue;
                }
                let (m, y) = (IndexExpr::Const(m), IndexExpr::Const(y));
                let carry = IndexExpr::floor_div(&(IndexExpr::modulo(&own, &m) + shift), &m);
                let part = IndexExpr::modulo(&IndexExpr::floor_div(&x, &m), &y) - carry;
                let others = (0..terms.len()).filter(|n| *n != i && *n != j);
                let others: Terms = others.map(|n| terms[n].clone()).collect();
                return Some(IndexExpr::from_linear(others, constant) + part.mul_const(*k));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::{SymId, VarId};

    fn v(i: u32) -> IndexExpr {
        VarId(i).into()
    }
    fn s(i: u32) -> IndexExpr {
        SymId(i).into()
    }
    fn c(k: i64) -> IndexExpr {
        k.into()
    }

    #[test]
    fn a_sum_divides_what_it_is_a_factor_of() {
        // A sequence with one more token: [b, n + 1, 32] as [b, n + 1, 4, -1], and as [-1, 32].
        let (b, n) = (s(0), s(1));
        let token = n.clone() + c(1);
        let all = b.clone() * token.clone() * c(32);
        let known = b.clone() * token.clone() * c(4);
        assert_eq!(IndexExpr::floor_div(&all, &known), c(8));
        assert_eq!(IndexExpr::floor_div(&all, &token), b.clone() * c(32));
        assert_eq!(IndexExpr::modulo(&all, &token), c(0));
        let area = (b.clone() + n.clone()) * (b.clone() - n.clone() + c(2));
        assert_eq!(
            IndexExpr::floor_div(&area, &(b.clone() + n.clone())),
            b.clone() - n.clone() + c(2)
        );
        let square = (b.clone() + c(1)) * (b.clone() + c(1)) * (n.clone() + c(2));
        assert_eq!(
            IndexExpr::floor_div(&square, &(b.clone() + c(1))),
            (b.clone() + c(1)) * (n.clone() + c(2))
        );
        // A part of it: the place of an element and back.
        let flat = v(0) * token.clone() + v(1);
        assert_eq!(
            IndexExpr::floor_div(&flat, &token),
            v(0) + IndexExpr::floor_div(&v(1), &token)
        );
        // What is no factor is left alone.
        let open = IndexExpr::floor_div(&(b.clone() * n.clone() + c(1)), &token);
        assert!(
            matches!(&open, IndexExpr::Node(n) if matches!(&**n, IndexNode::FloorDiv(..))),
            "{open:?}"
        );
        let huge = (b.clone() + c(1)) * c(i64::MAX / 2) * c(2);
        let _ = IndexExpr::floor_div(&huge, &(b + c(1)));
    }
    #[test]
    fn quotients_of_quotients_are_one_and_what_they_leave_has_the_range_of_a_remainder() {
        use crate::index::{Interval, NoBounds};
        let half = |e: IndexExpr| IndexExpr::floor_div(&(e + c(1)), &c(2));
        let n = s(0);
        // A window of stride 2 three times.
        assert_eq!(
            half(half(half(n.clone()))),
            IndexExpr::floor_div(&(n.clone() + c(7)), &c(8))
        );
        let (two, four) = (IndexExpr::floor_div(&n, &c(2)), IndexExpr::floor_div(&n, &c(4)));
        let left = two.clone() - four.clone() * c(2);
        assert_eq!(left.interval(&NoBounds), Interval::new(0, 1));
        // What padding before and behind it takes.
        let before = IndexExpr::floor_div(&left, &c(2));
        assert_eq!(before, c(0));
        assert_eq!((left - before).interval(&NoBounds), Interval::new(0, 1));
        let up = half(half(n.clone())) * c(2) - half(n.clone());
        assert_eq!(up.interval(&NoBounds), Interval::new(0, 1));
        assert_eq!((n.clone() * c(3) - two * c(6)).interval(&NoBounds), Interval::new(0, 3));
        assert_eq!((n.clone() - four * c(2)).interval(&NoBounds).lo, i64::MIN);
        // What a convolution of the same size takes before its operand.
        let before = half(n.clone()) + IndexExpr::floor_div(&(c(1) - n.clone()), &c(2));
        assert_eq!(before.interval(&NoBounds), Interval::new(0, 1));
        assert_eq!(half(n.clone()) + IndexExpr::floor_div(&n.mul_const(-1), &c(2)), c(0));
    }
    #[test]
    fn what_padding_rounds_up_is_a_multiple() {
        // Windows of 2 and of 7 along a padded axis.
        let n = s(0);
        for w in [2, 7] {
            let pad = IndexExpr::modulo(&(c(w) - IndexExpr::modulo(&n, &c(w))), &c(w));
            assert_eq!(pad, IndexExpr::modulo(&n.mul_const(-1), &c(w)));
            let padded = n.clone() + pad;
            assert_eq!(padded, IndexExpr::floor_div(&(n.clone() + c(w - 1)), &c(w)) * c(w));
            assert_eq!(IndexExpr::floor_div(&padded, &c(w)) * c(w), padded);
            assert_eq!(padded - IndexExpr::modulo(&n.mul_const(-1), &c(w)), n);
        }
        let odd = n.clone() + IndexExpr::modulo(&n, &c(2));
        assert_eq!(odd, IndexExpr::floor_div(&(n.clone() + c(1)), &c(2)) * c(2));
        assert_eq!(
            n.clone() - IndexExpr::modulo(&n, &c(8)),
            IndexExpr::floor_div(&n, &c(8)) * c(8)
        );
    }
}
