//! What is known of an index expression under bounds: ranges, proofs, simplification.

use smallvec::SmallVec;

use super::{Bounds, IndexExpr, IndexNode, Interval, Terms, VarId, sat128};

/// What a quotient by a divisor that is no number is below: a loop of `k*d` iterations, or a remainder of a division by as many, has `k` times `d` of them. As
/// far as loops are known to run, `max(d, 1)` is `d`.
fn quotient_limit(of: &IndexExpr, by: &IndexExpr, bounds: &dyn Bounds) -> Option<IndexExpr> {
    by.as_node()?;
    let plain = |e: &IndexExpr| match e.as_node() {
        Some(IndexNode::Max(a, b)) if b.is(1) => a.clone(),
        Some(IndexNode::Max(a, b)) if a.is(1) => b.clone(),
        _ => e.clone(),
    };
    let (count, remainder) = match of.as_node()? {
        IndexNode::Var(v) => (bounds.extent(*v)?, false),
        IndexNode::Mod(_, count) => (plain(count), true),
        _ => return None,
    };
    let limit = count.divided_exactly(&plain(by))?;
    // A remainder of nothing is nothing, which is not below nothing.
    (!remainder || limit.interval(bounds).lo >= 1).then_some(limit)
}

/// What the quotient of a loop's variable by a number is below, if that divides its iterations, however many these are.
fn limit_by_number(of: &IndexExpr, by: &IndexExpr, bounds: &dyn Bounds) -> Option<IndexExpr> {
    let divisor = by.as_const().filter(|n| *n > 0)?;
    let extent = bounds.extent(of.as_var()?)?;
    extent.divided_exactly(&IndexExpr::Const(divisor))
}

impl IndexExpr {
    /// A range that holds every value the expression can take.
    pub fn interval(&self, bounds: &dyn Bounds) -> Interval {
        let n = match self {
            IndexExpr::Const(c) => return Interval::new(*c, *c),
            IndexExpr::Node(n) => n,
        };
        match &**n {
            IndexNode::Sym(s) => bounds.symbol(*s),
            IndexNode::Var(v) => match bounds.extent(*v) {
                Some(e) => Interval::new(0, e.interval(bounds).hi.saturating_sub(1).max(0)),
                None => Interval::ALL,
            },
            IndexNode::Sum { terms, constant, .. } => {
                let (mut lo, mut hi) = (*constant as i128, *constant as i128);
                for (t, c) in terms {
                    let i = t.interval(bounds).scale(*c);
                    lo = lo.saturating_add(sat128(i.lo));
                    hi = hi.saturating_add(sat128(i.hi));
                }
                let whole = Interval::clamp128(lo, hi);
                match IndexExpr::remainder_joined(terms, *constant).map(|e| e.interval(bounds)) {
                    Some(i) if i.lo.max(whole.lo) <= i.hi.min(whole.hi) => {
                        Interval::new(i.lo.max(whole.lo), i.hi.min(whole.hi))
                    }
                    _ => whole,
                }
            }
            IndexNode::Product(f) => f.iter().fold(Interval::new(1, 1), |acc, f| {
                let b = f.interval(bounds);
                let c = |x: i64, y: i64| (x as i128) * (y as i128);
                let all = [c(acc.lo, b.lo), c(acc.lo, b.hi), c(acc.hi, b.lo), c(acc.hi, b.hi)];
                Interval::clamp128(all.into_iter().min().unwrap_or(0), all.into_iter().max().unwrap_or(0))
            }),
            IndexNode::FloorDiv(of, by) => {
                let (a, b) = (of.interval(bounds), by.interval(bounds));
                let (small, large) = (b.lo.max(1), b.hi.max(1));
                let lo = if a.lo == i64::MIN {
                    i64::MIN
                } else {
                    a.lo.div_euclid(small).min(a.lo.div_euclid(large))
                };
                let hi = if a.hi == i64::MAX {
                    i64::MAX
                } else {
                    a.hi.div_euclid(small).max(a.hi.div_euclid(large))
                };
                let limit = quotient_limit(of, by, bounds).map(|k| k.interval(bounds).hi.saturating_sub(1));
                Interval::new(lo, limit.map_or(hi, |most| hi.min(most).max(lo)))
            }
            IndexNode::Mod(a, b) => {
                let (a, b) = (a.interval(bounds), b.interval(bounds));
                let top = b.hi.saturating_sub(1).max(0);
                if a.lo >= 0 {
                    Interval::new(0, top.min(a.hi))
                } else {
                    Interval::new(0, top)
                }
            }
            IndexNode::Min(a, b) => {
                let (a, b) = (a.interval(bounds), b.interval(bounds));
                Interval::new(a.lo.min(b.lo), a.hi.min(b.hi))
            }
            IndexNode::Max(a, b) => {
                let (a, b) = (a.interval(bounds), b.interval(bounds));
                Interval::new(a.lo.max(b.lo), a.hi.max(b.hi))
            }
        }
    }

    /// True if the expression is certainly a multiple of a number above 0.
    pub fn proves_multiple(&self, of: i64, bounds: &dyn Bounds) -> bool {
        if let Some(IndexNode::Min(a, b) | IndexNode::Max(a, b)) = self.as_node() {
            return a.proves_multiple(of, bounds) && b.proves_multiple(of, bounds);
        }
        IndexExpr::modulo(self, &IndexExpr::Const(of)).simplify(bounds).is(0)
    }

    /// True if the expression is certainly not negative.
    pub fn proves_nonnegative(&self, bounds: &dyn Bounds) -> bool {
        if self.interval(bounds).lo >= 0 {
            return true;
        }
        // Put each linear loop variable at the end of its range that makes the sum smallest: the symbolic extents then
        // cancel against symbols that interval arithmetic would treat as unrelated.
        let mut current = self.clone();
        for _ in 0..16 {
            let mut var = None;
            current.visit_atoms(&mut |n| {
                if let IndexNode::Var(v) = n {
                    var = var.max(Some(*v));
                }
            });
            let Some(v) = var else { break };
            let Some((coefficient, rest)) = current.affine_in(v) else {
                // Quotients and remainders of it at the end of their own range.
                match current.without_quotients(v, bounds) {
                    Some(e) if e.interval(bounds).lo >= 0 => return true,
                    Some(e) => current = e,
                    None => return false,
                }
                continue;
            };
            let range = coefficient.interval(bounds);
            current = if range.lo >= 0 {
                rest
            } else if range.hi <= 0 {
                let Some(extent) = bounds.extent(v) else { return false };
                rest + coefficient * (extent - IndexExpr::ONE)
            } else {
                return false;
            };
            if current.interval(bounds).lo >= 0 {
                return true;
            }
        }
        false
    }

    /// A sum that is at most this one, with each quotient and remainder that mentions `var` as what it is at most, or at least; `None` if there is no
    /// such term or nothing is known of it.
    fn without_quotients(&self, var: VarId, bounds: &dyn Bounds) -> Option<IndexExpr> {
        let (terms, mut constant) = self.linear();
        let mut rest = Terms::with_capacity(terms.len());
        let mut ends = IndexExpr::ZERO;
        for (t, c) in terms {
            let divides =
                matches!(&t, IndexExpr::Node(n) if matches!(&**n, IndexNode::FloorDiv(..) | IndexNode::Mod(..)));
            if !t.uses(var) {
                rest.push((t, c));
                continue;
            }
            if let Some(IndexNode::FloorDiv(of, by)) = t.as_node()
                && c < 0
                && let Some(limit) = quotient_limit(of, by, bounds).or_else(|| limit_by_number(of, by, bounds))
                && !limit.uses(var)
            {
                ends = ends + (limit - IndexExpr::ONE).mul_const(c);
                continue;
            }
            let range = t.interval(bounds);
            let end = if c > 0 { range.lo } else { range.hi };
            if !divides || end == i64::MAX || end == i64::MIN {
                return None;
            }
            constant = constant.checked_add(end.checked_mul(c)?)?;
        }
        Some(IndexExpr::from_linear(rest, constant) + ends)
    }

    /// True if `self < other` certainly.
    pub fn proves_less(&self, other: &IndexExpr, bounds: &dyn Bounds) -> bool {
        (other.clone() - self.clone() - IndexExpr::ONE).proves_nonnegative(bounds)
    }

    /// Where a divisor is a product `n * d`: `(q, r, n, d)` with `self = q*d + r` and r in `0..d`. A number is split where what
    /// is left to divide has fewer terms, for else one division would only be traded for another.
    fn split_by_part(
        &self,
        divisor: &IndexExpr,
        bounds: &dyn Bounds,
    ) -> Option<(IndexExpr, IndexExpr, IndexExpr, IndexExpr)> {
        if let IndexExpr::Const(number) = divisor {
            return self.split_by_divisor(*number, bounds);
        }
        let (terms, 0) = divisor.linear() else { return None };
        let [(product, coefficient)] = &terms[..] else {
            return None;
        };
        let factors = product.factors();
        let number = IndexExpr::Const(*coefficient);
        let parts = (0..factors.len()).map(|f| {
            let others = factors.iter().enumerate().filter(|(k, _)| *k != f).map(|(_, o)| o);
            (IndexExpr::product(others) * number.clone(), factors[f].clone())
        });
        for (n, d) in [(number.clone(), product.clone())].into_iter().chain(parts) {
            if n.is(1) || n.interval(bounds).lo < 0 {
                continue;
            }
            let (q, r) = self.split_divisible(&d);
            if !q.is(0) && r.proves_nonnegative(bounds) && r.proves_less(&d, bounds) {
                return Some((q, r, n, d));
            }
        }
        None
    }

    fn split_by_divisor(
        &self,
        number: i64,
        bounds: &dyn Bounds,
    ) -> Option<(IndexExpr, IndexExpr, IndexExpr, IndexExpr)> {
        let Some(IndexNode::Sum { terms, .. }) = self.as_node() else {
            return None;
        };
        if terms.len() < 2 {
            return None;
        }
        terms.iter().find_map(|(_, coefficient)| {
            let d = gcd(*coefficient, number);
            let part = IndexExpr::Const(d);
            if d <= 1 || d >= number {
                return None;
            }
            let (q, r) = self.split_divisible(&part);
            let fewer = q.terms_of().count() < terms.len() && !q.is(0);
            let fits = fewer && r.proves_nonnegative(bounds) && r.proves_less(&part, bounds);
            fits.then(|| (q, r, IndexExpr::Const(number / d), part))
        })
    }

    /// Removes divisions, modulos, minima and maxima that the bounds decide.
    pub fn simplify(&self, bounds: &dyn Bounds) -> IndexExpr {
        let n = match self {
            IndexExpr::Const(_) => return self.clone(),
            IndexExpr::Node(n) => n,
        };
        match &**n {
            IndexNode::Sym(s) => {
                let i = bounds.symbol(*s);
                if i.lo == i.hi {
                    IndexExpr::Const(i.lo)
                } else {
                    self.clone()
                }
            }
            IndexNode::Var(v) => match bounds.extent(*v) {
                Some(e) if e.is(1) => IndexExpr::ZERO,
                _ => self.clone(),
            },
            IndexNode::Sum { terms, constant, .. } => {
                let simpler: SmallVec<[IndexExpr; 8]> = terms.iter().map(|(t, _)| t.simplify(bounds)).collect();
                if simpler.iter().zip(terms).all(|(new, (t, _))| new == t) {
                    return self.clone();
                }
                let terms = simpler.into_iter().zip(terms);
                terms.fold(IndexExpr::Const(*constant), |acc, (t, (_, c))| acc + t.mul_const(*c))
            }
            IndexNode::Product(f) => f.iter().fold(IndexExpr::ONE, |a, f| a * f.simplify(bounds)),
            IndexNode::FloorDiv(a, by) => {
                let (a, b) = (a.simplify(bounds), by.simplify(bounds));
                // A divisor that turns out not to be positive (a symbol that is 0) stays what it was: nothing is ever divided by it where
                // there are no elements, and constants that divide are positive.
                if b.as_const().is_some_and(|b| b <= 0) {
                    return IndexExpr::node(IndexNode::FloorDiv(a, by.clone()));
                }
                let (q, r) = a.split_divisible(&b);
                if r.proves_nonnegative(bounds) && r.proves_less(&b, bounds) {
                    q
                } else if let Some((q, _, n, _)) = a.split_by_part(&b, bounds) {
                    // floor((q*d + r) / (n*d)) = floor(q / n) for r in 0..d.
                    IndexExpr::floor_div(&q, &n).simplify(bounds)
                } else {
                    IndexExpr::floor_div(&a, &b)
                }
            }
            IndexNode::Mod(a, by) => {
                let (a, b) = (a.simplify(bounds), by.simplify(bounds));
                if b.as_const().is_some_and(|b| b <= 0) {
                    return IndexExpr::node(IndexNode::Mod(a, by.clone()));
                }
                let (_, r) = a.split_divisible(&b);
                if r.proves_nonnegative(bounds) && r.proves_less(&b, bounds) {
                    r
                } else if let Some((q, r, n, d)) = a.split_by_part(&b, bounds) {
                    // (q*d + r) mod (n*d) = (q mod n)*d + r for r in 0..d.
                    IndexExpr::modulo(&q, &n).simplify(bounds) * d + r
                } else {
                    IndexExpr::modulo(&a, &b)
                }
            }
            IndexNode::Min(a, b) => {
                let (a, b) = (a.simplify(bounds), b.simplify(bounds));
                if (b.clone() - a.clone()).proves_nonnegative(bounds) {
                    a
                } else if (a.clone() - b.clone()).proves_nonnegative(bounds) {
                    b
                } else {
                    IndexExpr::min(&a, &b)
                }
            }
            IndexNode::Max(a, b) => {
                let (a, b) = (a.simplify(bounds), b.simplify(bounds));
                if (a.clone() - b.clone()).proves_nonnegative(bounds) {
                    a
                } else if (b.clone() - a.clone()).proves_nonnegative(bounds) {
                    b
                } else {
                    IndexExpr::max(&a, &b)
                }
            }
        }
    }
}

pub(super) fn gcd(a: i64, b: i64) -> i64 {
    let (mut a, mut b) = (a.saturating_abs(), b.saturating_abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
