//! What is positive where a loop runs: its extent is, and so are factors and operands of that.

use super::prove::nonnegative_within;
use crate::index::{Bounds, IndexExpr, IndexNode};

/// How far an extent is taken apart.
const MAX_DEPTH: u32 = 8;

/// Nodes that each of the small proofs looks at.
const NODES: usize = 512;

/// True if `e` is certainly positive where all of `extents` are, as inside loops over them, and no length is negative.
pub fn positive_where(e: &IndexExpr, extents: &[IndexExpr], lengths: &[IndexExpr], bounds: &dyn Bounds) -> bool {
    let known = Known { lengths, bounds };
    extents.iter().any(|x| known.implies(x, e, MAX_DEPTH))
}

struct Known<'k> {
    lengths: &'k [IndexExpr],
    bounds: &'k dyn Bounds,
}

impl Known<'_> {
    /// True if `e` is certainly positive where `x` is.
    fn implies(&self, x: &IndexExpr, e: &IndexExpr, depth: u32) -> bool {
        if nonnegative_within(&(e.clone() - x.clone()), self.bounds, NODES) || self.multiple(x, e) {
            return true;
        }
        let (Some(n), Some(depth)) = (x.as_node(), depth.checked_sub(1)) else {
            return false;
        };
        match n {
            IndexNode::Sym(_) | IndexNode::Var(_) | IndexNode::Max(..) => false,
            // Both are at least the smaller.
            IndexNode::Min(a, b) => self.implies(a, e, depth) || self.implies(b, e, depth),
            // A remainder is at most what it is of.
            IndexNode::Mod(a, _) => self.not_negative(a) && self.implies(a, e, depth),
            IndexNode::FloorDiv(a, b) => match b.as_const().filter(|b| *b > 0) {
                Some(b) => self.implies(&(a.clone() - IndexExpr::Const(b - 1)), e, depth),
                None => self.implies(a, e, depth),
            },
            IndexNode::Product(factors) => (0..factors.len()).any(|f| {
                let others = factors.iter().enumerate().filter(|(k, _)| *k != f).map(|(_, o)| o);
                self.not_negative(&IndexExpr::product(others)) && self.implies(&factors[f], e, depth)
            }),
            IndexNode::Sum { terms, constant, .. } => self.sum(terms, *constant, e, depth),
        }
    }

    fn sum(&self, terms: &[(IndexExpr, i64)], constant: i64, e: &IndexExpr, depth: u32) -> bool {
        if let [(t, c)] = terms
            && *c > 0
        {
            let quotient = match t.as_node() {
                // c * floor(a / b) + k is positive from a >= b * ceil((1 - k) / c) on.
                Some(IndexNode::FloorDiv(a, b)) => b.as_const().filter(|b| *b > 0).map(|b| (a, b)),
                _ => None,
            };
            let least = 1i64.saturating_sub(constant).saturating_add(c - 1).div_euclid(*c);
            return match quotient {
                Some((a, b)) => {
                    let less = least.saturating_mul(b).saturating_sub(1);
                    self.implies(&(a.clone() - IndexExpr::Const(less)), e, depth)
                }
                None => least >= 1 && self.implies(t, e, depth),
            };
        }
        // Without what iterations and a constant take away it is larger.
        let added = |(t, c): &&(IndexExpr, i64)| {
            let range = t.interval(self.bounds);
            !t.has_vars() || if *c > 0 { range.hi > 0 } else { range.lo < 0 }
        };
        let kept = terms.iter().filter(added).count();
        (kept < terms.len() || constant < 0) && {
            let more = IndexExpr::Const(constant.max(0));
            let rest = terms
                .iter()
                .filter(added)
                .fold(more, |sum, (t, c)| sum + t.clone() * IndexExpr::Const(*c));
            self.implies(&rest, e, depth)
        }
    }

    /// True if `x` is a multiple of `e` that is not negative: both are then positive together.
    fn multiple(&self, x: &IndexExpr, e: &IndexExpr) -> bool {
        let times = IndexExpr::floor_div(x, e);
        times.clone() * e.clone() == *x && self.not_negative(&times)
    }

    fn not_negative(&self, e: &IndexExpr) -> bool {
        nonnegative_within(e, self.bounds, NODES) || self.lengths.contains(e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::{Interval, SymId, VarId};

    struct Ranges;
    impl Bounds for Ranges {
        fn symbol(&self, _: SymId) -> Interval {
            Interval::new(0, 9)
        }
        fn extent(&self, _: VarId) -> Option<IndexExpr> {
            Some(1000.into())
        }
    }

    #[test]
    fn what_divides_the_elements_of_a_loop_is_positive_inside() {
        let (n, m): (IndexExpr, IndexExpr) = (SymId(0).into(), SymId(1).into());
        let part = m.clone() - 1.into();
        let all = n.clone() * part.clone();
        let block = |e: IndexExpr| IndexExpr::from(VarId(0)) * (-256).into() + e;
        let holds = |x: IndexExpr| positive_where(&part, &[x], std::slice::from_ref(&all), &Ranges);
        assert!(holds(all.clone()));
        assert!(holds(all.ceil_div(256)));
        assert!(holds(IndexExpr::min(&256.into(), &block(all.clone()))));
        assert!(holds(IndexExpr::floor_div(&block(all.clone()), &16.into())));
        assert!(holds(IndexExpr::modulo(&all, &16.into())));
        assert!(!holds(n.clone()));
        assert!(!holds(m));
        assert!(!holds(all.clone() + 1.into()));
        assert!(!holds(IndexExpr::floor_div(&(all.clone() + 256.into()), &256.into())));
        // Without the lengths a number below 0 may have a remainder.
        assert!(!positive_where(
            &part,
            &[IndexExpr::modulo(&(n * part.clone()), &16.into())],
            &[],
            &Ranges
        ));
    }
}
