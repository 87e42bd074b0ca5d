//! Index expressions: the one language for dims, view maps, bounds, buffer sizes and launch ranges.
//!
//! Invariants:
//! - An [`IndexExpr`] is always in normal form, because only the constructors here make one: sums are flat, sorted, with like
//!   terms collected; products are distributed over sums, unless too many terms would come of it (`product.rs`); constants are folded. Structural equality is therefore equality
//!   of normal forms (sound, not complete).
//! - Division and modulo are floored, and every divisor is positive: constructors are called with divisors that are; the
//!   evaluator returns `None` where one is not.
//! - Constant arithmetic saturates; shapes near saturation are refused where they are recorded, so no such value is used.
//!
//! Proving (`a < b`, `0 <= a`) is by substitution of loop bounds and interval arithmetic in i128; it may fail to prove a
//! true fact, never prove a false one.

mod divide;
mod print;
mod product;
mod prove;

use std::cmp::Ordering;
use std::ops::{Add, Mul, Sub};
use std::sync::Arc;

use product::{factored, sort_factors, stays_factored};

pub use print::DisplayIndex;

/// A symbol of the enclosing graph, kernel or plan: its position in the symbol table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SymId(pub u32);

/// A loop variable of the enclosing kernel (or of a view map under construction).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct VarId(pub u32);

/// An integer expression over symbols and loop variables, in normal form. Cloning is cheap.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IndexExpr {
    /// A known integer.
    Const(i64),
    /// Anything else, shared.
    Node(Arc<IndexNode>),
}

/// The inside of a non-constant [`IndexExpr`].
#[derive(PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum IndexNode {
    /// A symbol.
    Sym(SymId),
    /// A loop variable.
    Var(VarId),
    /// `constant + Σ coefficient * term`; terms are neither sums nor constants, sorted, coefficients nonzero.
    Sum {
        /// Terms with their coefficients.
        terms: Vec<(IndexExpr, i64)>,
        /// The constant part.
        constant: i64,
        /// Number of nodes below, saturating.
        size: u32,
    },
    /// A product of at least two factors that are neither products nor constants; sorted. Sums are among them only where they
    /// would be distributed into too many terms, and come first.
    Product(Vec<IndexExpr>),
    /// `floor(a / b)`.
    FloorDiv(IndexExpr, IndexExpr),
    /// `a - b * floor(a / b)`.
    Mod(IndexExpr, IndexExpr),
    /// The smaller.
    Min(IndexExpr, IndexExpr),
    /// The larger.
    Max(IndexExpr, IndexExpr),
}

/// A closed range of integers; the extreme i64 values stand for "unbounded".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interval {
    /// Smallest value.
    pub lo: i64,
    /// Largest value.
    pub hi: i64,
}

impl Interval {
    /// The range `lo..=hi`.
    pub const fn new(lo: i64, hi: i64) -> Interval {
        Interval { lo, hi }
    }
    /// Any integer.
    pub const ALL: Interval = Interval {
        lo: i64::MIN,
        hi: i64::MAX,
    };

    fn clamp128(lo: i128, hi: i128) -> Interval {
        let c = |v: i128| v.clamp(i64::MIN as i128, i64::MAX as i128) as i64;
        Interval { lo: c(lo), hi: c(hi) }
    }

    fn scale(self, k: i64) -> Interval {
        // An infinity times a large coefficient leaves even i128.
        let scaled = |v: i64| sat128(v).saturating_mul(k as i128);
        let (a, b) = (scaled(self.lo), scaled(self.hi));
        Interval::clamp128(a.min(b), a.max(b))
    }
}

/// i64 extremes as infinities far outside i64, so that sums of them stay infinite.
fn sat128(v: i64) -> i128 {
    match v {
        i64::MIN => i64::MIN as i128 * 4,
        i64::MAX => i64::MAX as i128 * 4,
        v => v as i128,
    }
}

/// What is known of symbols and loop variables.
pub trait Bounds {
    /// Range of a symbol.
    fn symbol(&self, sym: SymId) -> Interval;
    /// Exclusive upper bound of a loop variable that starts at 0, if the variable is known.
    fn extent(&self, var: VarId) -> Option<IndexExpr>;
}

/// Bounds that know nothing but that symbols are not negative.
pub struct NoBounds;
impl Bounds for NoBounds {
    fn symbol(&self, _: SymId) -> Interval {
        Interval::new(0, i64::MAX)
    }
    fn extent(&self, _: VarId) -> Option<IndexExpr> {
        None
    }
}

impl From<i64> for IndexExpr {
    fn from(v: i64) -> Self {
        IndexExpr::Const(v)
    }
}
impl From<usize> for IndexExpr {
    fn from(v: usize) -> Self {
        IndexExpr::Const(i64::try_from(v).unwrap_or(i64::MAX))
    }
}
impl From<i32> for IndexExpr {
    fn from(v: i32) -> Self {
        IndexExpr::Const(v as i64)
    }
}
impl From<SymId> for IndexExpr {
    fn from(s: SymId) -> Self {
        IndexExpr::node(IndexNode::Sym(s))
    }
}
impl From<VarId> for IndexExpr {
    fn from(v: VarId) -> Self {
        IndexExpr::node(IndexNode::Var(v))
    }
}

type Terms = Vec<(IndexExpr, i64)>;

impl IndexExpr {
    /// Zero.
    pub const ZERO: IndexExpr = IndexExpr::Const(0);
    /// One.
    pub const ONE: IndexExpr = IndexExpr::Const(1);

    /// A number that a program computes with, as an index. `None` for a number so large that index arithmetic on it would
    /// saturate where the program's wraps, which 2^60 is far from on either side.
    pub fn from_data(number: i64) -> Option<IndexExpr> {
        const LARGEST: u64 = 1 << 60;
        (number.unsigned_abs() <= LARGEST).then_some(IndexExpr::Const(number))
    }

    fn node(n: IndexNode) -> IndexExpr {
        IndexExpr::Node(Arc::new(n))
    }

    /// The value, if it is constant.
    pub fn as_const(&self) -> Option<i64> {
        match self {
            IndexExpr::Const(c) => Some(*c),
            IndexExpr::Node(_) => None,
        }
    }

    /// What it is made of, unless it is constant.
    pub fn as_node(&self) -> Option<&IndexNode> {
        match self {
            IndexExpr::Const(_) => None,
            IndexExpr::Node(n) => Some(n),
        }
    }

    /// The loop variable, if the expression is just that.
    pub fn as_var(&self) -> Option<VarId> {
        match self {
            IndexExpr::Node(n) => match **n {
                IndexNode::Var(v) => Some(v),
                _ => None,
            },
            _ => None,
        }
    }

    /// True if it is the constant `c`.
    pub fn is(&self, c: i64) -> bool {
        self.as_const() == Some(c)
    }

    /// The linear view: `constant + Σ coefficient * term`.
    pub fn linear(&self) -> (Terms, i64) {
        match self {
            IndexExpr::Const(c) => (Vec::new(), *c),
            IndexExpr::Node(n) => match &**n {
                IndexNode::Sum { terms, constant, .. } => (terms.clone(), *constant),
                _ => (vec![(self.clone(), 1)], 0),
            },
        }
    }

    /// Number of nodes, saturating: a measure of the cost of evaluating it.
    pub fn size(&self) -> u32 {
        match self {
            IndexExpr::Const(_) => 1,
            IndexExpr::Node(n) => match &**n {
                IndexNode::Sym(_) | IndexNode::Var(_) => 1,
                IndexNode::Sum { size, .. } => *size,
                IndexNode::Product(f) => f.iter().fold(1, |n, f| n.saturating_add(f.size())),
                IndexNode::FloorDiv(a, b) | IndexNode::Mod(a, b) | IndexNode::Min(a, b) | IndexNode::Max(a, b) => {
                    a.size().saturating_add(b.size()).saturating_add(1)
                }
            },
        }
    }

    /// The largest number in it, without its sign; at least 1.
    pub fn largest_constant(&self) -> i64 {
        let n = match self {
            IndexExpr::Const(c) => return c.saturating_abs().max(1),
            IndexExpr::Node(n) => n,
        };
        match &**n {
            IndexNode::Sym(_) | IndexNode::Var(_) => 1,
            IndexNode::Sum { terms, constant, .. } => terms
                .iter()
                .map(|(t, c)| t.largest_constant().max(c.saturating_abs()))
                .fold(constant.saturating_abs(), i64::max),
            IndexNode::Product(f) => f.iter().map(IndexExpr::largest_constant).fold(1, i64::max),
            IndexNode::FloorDiv(a, b) | IndexNode::Mod(a, b) | IndexNode::Min(a, b) | IndexNode::Max(a, b) => {
                a.largest_constant().max(b.largest_constant())
            }
        }
    }

    /// `constant + Σ coefficient * term` from unnormalized parts whose terms are not sums.
    fn from_linear(mut terms: Terms, mut constant: i64) -> IndexExpr {
        if terms.len() > 1 {
            terms.sort_by(|a, b| a.0.cmp(&b.0));
            let mut write = 0;
            for read in 0..terms.len() {
                if write > 0 && terms[write - 1].0 == terms[read].0 {
                    terms[write - 1].1 = terms[write - 1].1.saturating_add(terms[read].1);
                } else {
                    terms.swap(write, read);
                    write += 1;
                }
            }
            terms.truncate(write);
        }
        terms.retain(|t| t.1 != 0);
        if terms.len() > 1 {
            Self::merge_div_mod(&mut terms, &mut constant);
            if let Some((at, part)) = Self::rounded(&terms) {
                terms.remove(at);
                return IndexExpr::from_linear(terms, constant) + part;
            }
        }
        match (&terms[..], constant) {
            ([], c) => IndexExpr::Const(c),
            ([(t, 1)], 0) => t.clone(),
            _ => {
                let size = terms
                    .iter()
                    .fold(1u32, |n, t| n.saturating_add(t.0.size()).saturating_add(1));
                IndexExpr::node(IndexNode::Sum { terms, constant, size })
            }
        }
    }

    /// Rewrites `c*(n*(x / n)) + c*(x mod n)` to `c*x`, wherever the pair occurs; `c` may be a product.
    fn merge_div_mod(terms: &mut Terms, constant: &mut i64) {
        loop {
            let mut found = None;
            'search: for (i, (t, c)) in terms.iter().enumerate() {
                let factors = t.factors();
                for (f, factor) in factors.iter().enumerate() {
                    let Some((x, n)) = factor.as_mod() else { continue };
                    let others = factors.iter().enumerate().filter(|(k, _)| *k != f).map(|(_, o)| o);
                    let rest = IndexExpr::product(others).mul_const(*c);
                    let quotient = IndexExpr::floor_div(&x, &n) * rest.clone() * n;
                    let (want, k) = quotient.linear();
                    if k != 0 || want.len() != 1 {
                        continue;
                    }
                    for (j, other) in terms.iter().enumerate() {
                        if *other == want[0] {
                            found = Some((i, j, x * rest));
                            break 'search;
                        }
                    }
                }
            }
            let Some((i, j, whole)) = found else { return };
            terms.remove(i.max(j));
            terms.remove(i.min(j));
            let (extra, k) = whole.linear();
            *constant = constant.saturating_add(k);
            let mut all = std::mem::take(terms);
            all.extend(extra);
            let (merged, k) = IndexExpr::from_linear(all, 0).linear();
            *constant = constant.saturating_add(k);
            *terms = merged;
            if terms.len() < 2 {
                return;
            }
        }
    }

    pub(super) fn as_mod(&self) -> Option<(IndexExpr, IndexExpr)> {
        match self {
            IndexExpr::Node(n) => match &**n {
                IndexNode::Mod(a, b) => Some((a.clone(), b.clone())),
                _ => None,
            },
            _ => None,
        }
    }

    fn mul_const(&self, k: i64) -> IndexExpr {
        match (self, k) {
            (_, 0) => IndexExpr::ZERO,
            (_, 1) => self.clone(),
            (IndexExpr::Const(c), k) => IndexExpr::Const(c.saturating_mul(k)),
            _ => {
                let (terms, c) = self.linear();
                let terms = terms.into_iter().map(|(t, a)| (t, a.saturating_mul(k))).collect();
                IndexExpr::from_linear(terms, c.saturating_mul(k))
            }
        }
    }

    pub(crate) fn factors(&self) -> Vec<IndexExpr> {
        match self {
            IndexExpr::Node(n) => match &**n {
                IndexNode::Product(f) => f.clone(),
                _ => vec![self.clone()],
            },
            _ => vec![self.clone()],
        }
    }

    /// The smaller of two.
    pub fn min(a: &IndexExpr, b: &IndexExpr) -> IndexExpr {
        Self::extremum(a, b, Ordering::Less)
    }

    /// The larger of two.
    pub fn max(a: &IndexExpr, b: &IndexExpr) -> IndexExpr {
        Self::extremum(a, b, Ordering::Greater)
    }

    fn extremum(a: &IndexExpr, b: &IndexExpr, keep: Ordering) -> IndexExpr {
        if let Some(d) = (a.clone() - b.clone()).as_const() {
            return if d.cmp(&0) == keep { a.clone() } else { b.clone() };
        }
        let (a, b) = if a <= b {
            (a.clone(), b.clone())
        } else {
            (b.clone(), a.clone())
        };
        IndexExpr::node(if keep == Ordering::Less {
            IndexNode::Min(a, b)
        } else {
            IndexNode::Max(a, b)
        })
    }

    /// `ceil(self / k)` for a positive `k`.
    pub fn ceil_div(&self, k: i64) -> IndexExpr {
        IndexExpr::floor_div(&(self.clone() + IndexExpr::Const(k - 1)), &IndexExpr::Const(k))
    }

    /// The product of many.
    pub fn product<'a>(all: impl IntoIterator<Item = &'a IndexExpr>) -> IndexExpr {
        all.into_iter().fold(IndexExpr::ONE, |a, b| a * b.clone())
    }

    /// The value under given symbol values and loop variables; `None` on division by zero, overflow or an unknown symbol.
    pub fn eval(&self, symbols: &[i64], vars: &dyn Fn(VarId) -> Option<i64>) -> Option<i64> {
        let n = match self {
            IndexExpr::Const(c) => return Some(*c),
            IndexExpr::Node(n) => n,
        };
        match &**n {
            IndexNode::Sym(s) => symbols.get(s.0 as usize).copied(),
            IndexNode::Var(v) => vars(*v),
            IndexNode::Sum { terms, constant, .. } => terms.iter().try_fold(*constant, |acc, (t, c)| {
                acc.checked_add(t.eval(symbols, vars)?.checked_mul(*c)?)
            }),
            IndexNode::Product(f) => f
                .iter()
                .try_fold(1i64, |acc, f| acc.checked_mul(f.eval(symbols, vars)?)),
            IndexNode::FloorDiv(a, b) => {
                let b = b.eval(symbols, vars).filter(|b| *b > 0)?;
                Some(a.eval(symbols, vars)?.div_euclid(b))
            }
            IndexNode::Mod(a, b) => {
                let b = b.eval(symbols, vars).filter(|b| *b > 0)?;
                Some(a.eval(symbols, vars)?.rem_euclid(b))
            }
            IndexNode::Min(a, b) => Some(a.eval(symbols, vars)?.min(b.eval(symbols, vars)?)),
            IndexNode::Max(a, b) => Some(a.eval(symbols, vars)?.max(b.eval(symbols, vars)?)),
        }
    }

    /// The value of an expression without loop variables.
    pub fn eval_symbols(&self, symbols: &[i64]) -> Option<i64> {
        self.eval(symbols, &|_| None)
    }

    /// Rebuilds the expression with symbols and variables replaced where the function returns.
    pub fn replace(&self, atom: &mut dyn FnMut(&IndexNode) -> Option<IndexExpr>) -> IndexExpr {
        self.replace_nodes(&mut |e| match e.as_node()? {
            n @ (IndexNode::Sym(_) | IndexNode::Var(_)) => atom(n),
            _ => None,
        })
    }

    /// Rebuilds the expression with nodes replaced where the function returns, outer ones first; what it returns is not looked
    /// into.
    pub fn replace_nodes(&self, node: &mut dyn FnMut(&IndexExpr) -> Option<IndexExpr>) -> IndexExpr {
        let n = match self {
            IndexExpr::Const(_) => return self.clone(),
            IndexExpr::Node(n) => n,
        };
        if let Some(replaced) = node(self) {
            return replaced;
        }
        match &**n {
            IndexNode::Sym(_) | IndexNode::Var(_) => self.clone(),
            IndexNode::Sum { terms, constant, .. } => {
                let mut all = Vec::with_capacity(terms.len());
                let mut k = *constant;
                for (t, c) in terms {
                    let (inner, add) = t.replace_nodes(node).mul_const(*c).linear();
                    all.extend(inner);
                    k = k.saturating_add(add);
                }
                IndexExpr::from_linear(all, k)
            }
            IndexNode::Product(f) => f.iter().fold(IndexExpr::ONE, |a, f| a * f.replace_nodes(node)),
            IndexNode::FloorDiv(a, b) => IndexExpr::floor_div(&a.replace_nodes(node), &b.replace_nodes(node)),
            IndexNode::Mod(a, b) => IndexExpr::modulo(&a.replace_nodes(node), &b.replace_nodes(node)),
            IndexNode::Min(a, b) => IndexExpr::min(&a.replace_nodes(node), &b.replace_nodes(node)),
            IndexNode::Max(a, b) => IndexExpr::max(&a.replace_nodes(node), &b.replace_nodes(node)),
        }
    }

    /// Replaces loop variables.
    pub fn replace_vars(&self, f: &mut dyn FnMut(VarId) -> Option<IndexExpr>) -> IndexExpr {
        self.replace(&mut |n| match n {
            IndexNode::Var(v) => f(*v),
            _ => None,
        })
    }

    /// The expression with two loop variables as one that counts through both, `flat = extent*outer + inner`, in each sum in which
    /// they are a multiple of that. Elsewhere they are left.
    pub fn flattened(&self, outer: VarId, inner: VarId, extent: &IndexExpr, flat: VarId) -> IndexExpr {
        self.replace_nodes(&mut |e| {
            let IndexNode::Sum { .. } = e.as_node()? else {
                return None;
            };
            let (step, rest) = e.affine_in(inner)?;
            let (stride, rest) = rest.affine_in(outer)?;
            let whole = !step.is(0) && !step.uses(outer) && stride == extent.clone() * step.clone();
            whole.then(|| step * flat.into() + rest)
        })
    }

    /// Calls `f` on every symbol and variable, with repeats.
    pub fn visit_atoms(&self, f: &mut dyn FnMut(&IndexNode)) {
        if let IndexExpr::Node(n) = self {
            match &**n {
                IndexNode::Sym(_) | IndexNode::Var(_) => f(n),
                IndexNode::Sum { terms, .. } => terms.iter().for_each(|t| t.0.visit_atoms(f)),
                IndexNode::Product(x) => x.iter().for_each(|x| x.visit_atoms(f)),
                IndexNode::FloorDiv(a, b) | IndexNode::Mod(a, b) | IndexNode::Min(a, b) | IndexNode::Max(a, b) => {
                    a.visit_atoms(f);
                    b.visit_atoms(f);
                }
            }
        }
    }

    /// True if `var` occurs.
    pub fn uses(&self, var: VarId) -> bool {
        let mut found = false;
        self.visit_atoms(&mut |n| found |= matches!(n, IndexNode::Var(v) if *v == var));
        found
    }

    /// True if any loop variable occurs.
    pub fn has_vars(&self) -> bool {
        let mut found = false;
        self.visit_atoms(&mut |n| found |= matches!(n, IndexNode::Var(_)));
        found
    }

    /// The coefficient of `var` and the rest, if the expression is `coefficient * var + rest` and neither mentions `var`.
    pub fn affine_in(&self, var: VarId) -> Option<(IndexExpr, IndexExpr)> {
        let (terms, constant) = self.linear();
        let mut coefficient = IndexExpr::ZERO;
        let mut rest = Vec::new();
        for (t, c) in terms {
            if !t.uses(var) {
                rest.push((t, c));
                continue;
            }
            let mut factors = t.factors();
            let at = factors.iter().position(|f| f.as_var() == Some(var))?;
            factors.remove(at);
            if factors.iter().any(|f| f.uses(var)) {
                return None;
            }
            coefficient = coefficient + IndexExpr::product(&factors).mul_const(c);
        }
        Some((coefficient, IndexExpr::from_linear(rest, constant)))
    }
}

impl Add for IndexExpr {
    type Output = IndexExpr;
    fn add(self, other: IndexExpr) -> IndexExpr {
        match (&self, &other) {
            (IndexExpr::Const(a), IndexExpr::Const(b)) => IndexExpr::Const(a.saturating_add(*b)),
            (IndexExpr::Const(0), _) => other,
            (_, IndexExpr::Const(0)) => self,
            _ => {
                let (mut terms, a) = self.linear();
                let (more, b) = other.linear();
                terms.extend(more);
                IndexExpr::from_linear(terms, a.saturating_add(b))
            }
        }
    }
}

impl Sub for IndexExpr {
    type Output = IndexExpr;
    fn sub(self, other: IndexExpr) -> IndexExpr {
        self + other.mul_const(-1)
    }
}

impl Mul for IndexExpr {
    type Output = IndexExpr;
    fn mul(self, other: IndexExpr) -> IndexExpr {
        match (&self, &other) {
            (IndexExpr::Const(a), _) => other.mul_const(*a),
            (_, IndexExpr::Const(b)) => self.mul_const(*b),
            _ => {
                let (left, a) = self.linear();
                let (right, b) = other.linear();
                let parts = |terms: &Terms, constant: i64| terms.len() + usize::from(constant != 0);
                let (m, n) = (parts(&left, a), parts(&right, b));
                if stays_factored(&self, m, &other, n) {
                    return factored([&self, &other]);
                }
                let mut terms = Vec::with_capacity((left.len() + 1) * (right.len() + 1));
                for (t, c) in &left {
                    if b != 0 {
                        terms.push((t.clone(), c.saturating_mul(b)));
                    }
                    for (u, d) in &right {
                        let mut factors = t.factors();
                        factors.extend(u.factors());
                        sort_factors(&mut factors);
                        terms.push((IndexExpr::node(IndexNode::Product(factors)), c.saturating_mul(*d)));
                    }
                }
                if a != 0 {
                    terms.extend(right.iter().map(|(u, d)| (u.clone(), d.saturating_mul(a))));
                }
                IndexExpr::from_linear(terms, a.saturating_mul(b))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_divisor_with_symbols_is_taken_apart_where_the_rest_is_small() {
        // v0 below 128, v1 below s0, v2 below s1.
        let bounds = Loops(vec![c(128), s(0), s(1)]);
        let area = s(0) * s(1);
        let flat = v(0) * area.clone() + v(1) * s(1) + v(2);
        let group = area.clone() * c(16);
        assert_eq!(
            IndexExpr::floor_div(&flat, &group).simplify(&bounds),
            IndexExpr::floor_div(&v(0), &c(16))
        );
        assert_eq!(
            IndexExpr::modulo(&flat, &group).simplify(&bounds),
            IndexExpr::modulo(&v(0), &c(16)) * area + v(1) * s(1) + v(2)
        );
        // A place in a table of groups: the group is below 8, whatever the channel.
        let place = v(1) * c(8) + IndexExpr::floor_div(&v(0), &c(16));
        assert!(place.proves_less(&(s(0) * c(8)), &bounds));
        assert!(!place.proves_less(&(s(0) * c(8) - c(1)), &bounds));
        // The rest may be as large as the part: nothing is known.
        let far = v(0) * s(0) * s(1) + v(1) * s(1) + v(2) + c(1);
        assert!(matches!(
            IndexExpr::floor_div(&far, &group).simplify(&bounds),
            IndexExpr::Node(_)
        ));
        assert_ne!(
            IndexExpr::floor_div(&far, &group).simplify(&bounds),
            IndexExpr::floor_div(&v(0), &c(16))
        );
    }

    fn v(i: u32) -> IndexExpr {
        VarId(i).into()
    }
    fn s(i: u32) -> IndexExpr {
        SymId(i).into()
    }
    fn c(k: i64) -> IndexExpr {
        k.into()
    }

    struct Loops(Vec<IndexExpr>);
    impl Bounds for Loops {
        fn symbol(&self, _: SymId) -> Interval {
            Interval::new(0, 1 << 20)
        }
        fn extent(&self, var: VarId) -> Option<IndexExpr> {
            self.0.get(var.0 as usize).cloned()
        }
    }

    #[test]
    fn like_terms_collect_and_cancel() {
        assert_eq!(v(0) + v(1) - v(0), v(1));
        assert_eq!(
            (v(0) + c(2)) * (s(0) + c(3)),
            v(0) * s(0) + c(3) * v(0) + c(2) * s(0) + c(6)
        );
        assert_eq!(v(0) * s(0) - s(0) * v(0), c(0));
    }

    #[test]
    fn flatten_then_unflatten_is_the_identity() {
        let bounds = Loops(vec![s(0), s(1)]);
        let flat = v(0) * s(1) + v(1);
        assert_eq!(IndexExpr::floor_div(&flat, &s(1)).simplify(&bounds), v(0));
        assert_eq!(IndexExpr::modulo(&flat, &s(1)).simplify(&bounds), v(1));
        let back = IndexExpr::floor_div(&v(0), &s(1)) * s(1) + IndexExpr::modulo(&v(0), &s(1));
        assert_eq!(back, v(0));
        // A group of channels seen as one axis and back: quotients and remainders by symbols under symbolic strides.
        let (row, column) = (IndexExpr::floor_div(&v(0), &s(1)), IndexExpr::modulo(&v(0), &s(1)));
        let (channel, row) = (IndexExpr::floor_div(&row, &s(0)), IndexExpr::modulo(&row, &s(0)));
        assert_eq!(channel * s(0) * s(1) + row * s(1) + column, v(0));
        let back = IndexExpr::floor_div(&v(0), &c(12)) * c(24) + IndexExpr::modulo(&v(0), &c(12)) * c(2);
        assert_eq!(back, v(0) * c(2));
    }

    #[test]
    fn two_variables_become_one_where_they_count_through_both() {
        // Padded axes: v1 below s1 + 1, and an axis of s2 + 2 behind it.
        let (extent, behind) = (s(1) + c(1), s(2) + c(2));
        let flat = |e: IndexExpr| e.flattened(VarId(0), VarId(1), &extent, VarId(7));
        let line = |step: IndexExpr| (v(0) * extent.clone() + v(1)) * step;
        assert_eq!(
            flat(line(behind.clone()) + v(2) + c(3)),
            v(7) * behind.clone() + v(2) + c(3)
        );
        let place = IndexExpr::floor_div(&line(c(4)), &s(0)) + v(1);
        assert_eq!(flat(place), IndexExpr::floor_div(&(v(7) * c(4)), &s(0)) + v(1));
        // Another order, another extent, and what uses one of them.
        for other in [v(1) * behind.clone() + v(0), v(0) * behind + v(1), v(0) + c(1), v(1)] {
            assert_eq!(flat(other.clone()), other);
        }
    }

    #[test]
    fn what_is_less_than_a_part_of_a_divisor_is_not_divided() {
        let bounds = Loops(vec![c(128), c(32), c(32), s(0)]);
        let element = v(0) * c(1024) + v(1) * c(32) + v(2);
        let group = IndexExpr::floor_div(&element, &c(16384));
        assert_eq!(group.simplify(&bounds), IndexExpr::floor_div(&v(0), &c(16)));
        let inside = IndexExpr::modulo(&element, &c(16384));
        let rest = v(1) * c(32) + v(2);
        assert_eq!(
            inside.simplify(&bounds),
            IndexExpr::modulo(&v(0), &c(16)) * c(1024) + rest
        );
        // What may be more stays.
        let open = IndexExpr::floor_div(&(v(0) * c(8) + v(3)), &c(16));
        assert_eq!(open.simplify(&bounds), open);
    }

    /// A random expression over two variables and a symbol, with the value it must have.
    fn random(rng: &mut impl FnMut(u64) -> u64, depth: u32) -> IndexExpr {
        if depth == 0 {
            return match rng(4) {
                0 => v(0),
                1 => v(1),
                2 => s(0),
                _ => c(rng(9) as i64 - 2),
            };
        }
        let a = random(rng, depth - 1);
        let b = random(rng, depth - 1);
        let positive = c([1, 2, 3, 4, 5, 6, 12, 24][rng(8) as usize]);
        let divisor = match rng(4) {
            0 => s(0) + positive,
            1 => s(0) * positive + v(1) + c(1),
            _ => positive,
        };
        match rng(7) {
            0 => a + b,
            1 => a - b,
            2 => a * b,
            3 => IndexExpr::floor_div(&a, &divisor),
            4 => IndexExpr::modulo(&a, &divisor),
            5 => IndexExpr::min(&a, &b),
            _ => IndexExpr::max(&a, &b),
        }
    }

    #[test]
    fn simplification_keeps_the_value_and_intervals_hold_it() {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut rng = |n: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % n
        };
        let bounds = Loops(vec![c(5), c(7)]);
        for _ in 0..3000 {
            let depth = 1 + rng(4) as u32;
            let e = random(&mut rng, depth);
            let simple = e.simplify(&bounds);
            let range = e.interval(&bounds);
            let nonnegative = e.proves_nonnegative(&bounds);
            for i in 0..5 {
                for j in 0..7 {
                    let vars = |x: VarId| Some(if x.0 == 0 { i } else { j });
                    let value = e.eval(&[3], &vars).unwrap();
                    assert_eq!(simple.eval(&[3], &vars), Some(value), "{e:?} -> {simple:?}");
                    assert!(
                        range.lo <= value && value <= range.hi,
                        "{e:?} = {value} outside {range:?}"
                    );
                    assert!(!nonnegative || value >= 0, "{e:?} = {value} proven nonnegative");
                }
            }
        }
    }

    #[test]
    fn volumes_of_many_padded_axes_stay_small_and_print_back() {
        let axes: Vec<IndexExpr> = (0..16)
            .map(|k| s(k) * c(2 + i64::from(k) % 3) + c(i64::from(k) % 5 + 1))
            .collect();
        let volume = IndexExpr::product(&axes);
        assert!(volume.size() < 1000, "{} nodes", volume.size());
        let values: Vec<i64> = (0..16).map(|k| k % 2).collect();
        let numbers = axes.iter().map(|d| d.eval_symbols(&values).expect("a number"));
        assert_eq!(volume.eval_symbols(&values), Some(numbers.product()));
        // Rebuilt from its parts it is the same.
        assert_eq!(volume.replace(&mut |_| None), volume);
        // Whatever the order, and with whatever is added, scaled or put in.
        for turn in 1..16 {
            let turned: Vec<IndexExpr> = axes[turn..].iter().chain(&axes[..turn]).cloned().collect();
            let other = IndexExpr::product(&turned);
            assert_eq!(
                other.eval_symbols(&values),
                volume.eval_symbols(&values),
                "turned by {turn}"
            );
            assert_eq!(other.replace(&mut |_| None), other, "turned by {turn}");
        }
        let offset = v(0) * volume.clone() + (v(1) + c(3)) * axes[0].clone() * volume.clone() + v(2);
        let (coefficient, rest) = offset.affine_in(VarId(0)).expect("affine");
        assert_eq!(coefficient, volume);
        assert!(rest.affine_in(VarId(1)).is_some());
        assert_eq!(offset.replace(&mut |_| None), offset);
        assert!((volume.clone() - volume.clone()).is(0));
        assert_eq!(IndexExpr::floor_div(&(volume.clone() * s(3)), &volume), s(3));
    }

    #[test]
    fn products_of_random_sums_have_the_values_of_their_factors() {
        let mut rng = crate::rng::Rng::new(11);
        for _ in 0..300 {
            let mut sum = |terms: usize| {
                (0..terms).fold(c(rng.range(-3, 9)), |e, _| {
                    let atom = match rng.chance(1, 4) {
                        true => v(rng.below(3) as u32),
                        false => s(rng.below(6) as u32),
                    };
                    e + atom * c(rng.range(-4, 6))
                })
            };
            let factors: Vec<IndexExpr> = (0..6).map(|k| sum(k % 4 + 1)).collect();
            let product = IndexExpr::product(&factors);
            let symbols = [1, 2, 0, 3, 1, 2];
            let vars = |v: VarId| Some(i64::from(v.0) + 1);
            let expected = factors
                .iter()
                .try_fold(1i64, |p, f| p.checked_mul(f.eval(&symbols, &vars)?));
            assert_eq!(product.eval(&symbols, &vars), expected, "{factors:?}");
            assert_eq!(product.replace(&mut |_| None), product, "{factors:?}");
        }
    }
}
