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

use smallvec::{SmallVec, smallvec};

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
        terms: Terms,
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

/// Terms of a sum with their coefficients. Most sums have no more than are kept beside the node.
pub type Terms = SmallVec<[(IndexExpr, i64); 2]>;

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
    #[inline]
    pub fn as_const(&self) -> Option<i64> {
        match self {
            IndexExpr::Const(c) => Some(*c),
            IndexExpr::Node(_) => None,
        }
    }

    /// What it is made of, unless it is constant.
    #[inline]
    pub fn as_node(&self) -> Option<&IndexNode> {
        match self {
            IndexExpr::Const(_) => None,
            IndexExpr::Node(n) => Some(n),
        }
    }

    /// The loop variable, if the expression is just that.
    #[inline]
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
    #[inline]
    pub fn is(&self, c: i64) -> bool {
        self.as_const() == Some(c)
    }

    /// The quotient by an expression that divides it without remainder, if it is seen that it does.
    pub fn divided_exactly(&self, by: &IndexExpr) -> Option<IndexExpr> {
        if by.is(0) {
            return None;
        }
        let (quotient, rest) = self.split_divisible(by);
        rest.is(0).then_some(quotient)
    }

    /// The linear view: `constant + Σ coefficient * term`.
    pub fn linear(&self) -> (Terms, i64) {
        match self {
            IndexExpr::Const(c) => (Terms::new(), *c),
            IndexExpr::Node(n) => match &**n {
                IndexNode::Sum { terms, constant, .. } => (terms.clone(), *constant),
                _ => (smallvec![(self.clone(), 1)], 0),
            },
        }
    }

    /// Adds a number of times the expression to parts of a sum, which need not be in normal form.
    fn add_to(&self, times: i64, terms: &mut Terms, constant: &mut i64) {
        let more = match self {
            IndexExpr::Const(c) => c.saturating_mul(times),
            IndexExpr::Node(n) => match &**n {
                IndexNode::Sum {
                    terms: of, constant: c, ..
                } => {
                    terms.extend(of.iter().map(|(t, a)| (t.clone(), a.saturating_mul(times))));
                    c.saturating_mul(times)
                }
                _ => {
                    terms.push((self.clone(), times));
                    0
                }
            },
        };
        *constant = constant.saturating_add(more);
    }

    /// As [`Self::linear`], of an expression that is not needed any longer: nothing is copied of a sum that nobody else has.
    fn into_linear(self) -> (Terms, i64) {
        let n = match self {
            IndexExpr::Const(c) => return (Terms::new(), c),
            IndexExpr::Node(n) => n,
        };
        if !matches!(*n, IndexNode::Sum { .. }) {
            return (smallvec![(IndexExpr::Node(n), 1)], 0);
        }
        match Arc::try_unwrap(n) {
            Ok(IndexNode::Sum { terms, constant, .. }) => (terms, constant),
            Ok(other) => (smallvec![(IndexExpr::node(other), 1)], 0),
            Err(shared) => IndexExpr::Node(shared).linear(),
        }
    }

    /// The sum of expressions, each times another: what adding up the products one by one makes, at once.
    pub fn dot(factors: &[IndexExpr], others: &[IndexExpr]) -> IndexExpr {
        let pairs = || factors.iter().zip(others);
        let plain =
            |(e, k): (&IndexExpr, &IndexExpr)| k.as_const().is_some() && !e.terms_of().any(|t| t.0.has_remainder());
        // Rules for remainders look at two terms at a time, and which two they meet first depends on the order of additions.
        if !pairs().all(plain) {
            return pairs().fold(IndexExpr::ZERO, |sum, (e, k)| sum + e.clone() * k.clone());
        }
        let mut terms = Terms::with_capacity(factors.len());
        let mut constant = 0i64;
        for (e, k) in pairs() {
            let k = k.as_const().unwrap_or(0);
            if k != 0 {
                e.add_to(k, &mut terms, &mut constant);
            }
        }
        IndexExpr::from_linear(terms, constant)
    }

    /// Whether a factor of it is a remainder.
    fn has_remainder(&self) -> bool {
        self.factors_of().iter().any(IndexExpr::is_mod)
    }

    /// The terms of a sum with their coefficients; of anything else but a number, itself.
    fn terms_of(&self) -> impl Iterator<Item = (&IndexExpr, i64)> {
        let (sum, one): (&[(IndexExpr, i64)], _) = match self.as_node() {
            None => (&[], None),
            Some(IndexNode::Sum { terms, .. }) => (terms, None),
            Some(_) => (&[], Some((self, 1))),
        };
        sum.iter().map(|(t, c)| (t, *c)).chain(one)
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
        // Both rules begin with a remainder.
        if terms.len() > 1 && terms.iter().any(|t| t.0.has_remainder()) {
            Self::merge_div_mod(&mut terms, &mut constant);
            if let Some((at, part)) = Self::rounded(&terms) {
                terms.remove(at);
                return IndexExpr::from_linear(terms, constant) + part;
            }
        }
        IndexExpr::of_normal(terms, constant)
    }

    /// As [`Self::from_linear`], of parts of a sum that is in normal form: its terms, or some of them, or all of them times one number.
    fn of_normal(mut terms: Terms, constant: i64) -> IndexExpr {
        match (&terms[..], constant) {
            ([], c) => IndexExpr::Const(c),
            ([(_, 1)], 0) => terms.remove(0).0,
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
                let factors = t.factors_of();
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
                let (mut terms, c) = self.linear();
                let mut exact = true;
                for (_, a) in &mut terms {
                    exact &= a.checked_mul(k).is_some();
                    *a = a.saturating_mul(k);
                }
                match exact {
                    true => IndexExpr::of_normal(terms, c.saturating_mul(k)),
                    false => IndexExpr::from_linear(terms, c.saturating_mul(k)),
                }
            }
        }
    }

    /// Whether it is a remainder.
    fn is_mod(&self) -> bool {
        matches!(self, IndexExpr::Node(n) if matches!(**n, IndexNode::Mod(..)))
    }

    /// As [`Self::factors`], where they are.
    fn factors_of(&self) -> &[IndexExpr] {
        match self.as_node() {
            Some(IndexNode::Product(f)) => f,
            _ => std::slice::from_ref(self),
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
        // What is at most the one of two is at most the larger of both: max(a, min(a, b)) is a, and max(a, max(a, b)) is the inner.
        for (part, whole) in [(a, b), (b, a)] {
            let (kind, x, y) = match whole.as_node() {
                Some(IndexNode::Min(x, y)) => (Ordering::Less, x, y),
                Some(IndexNode::Max(x, y)) => (Ordering::Greater, x, y),
                _ => continue,
            };
            if x == part || y == part {
                return if kind == keep { whole.clone() } else { part.clone() };
            }
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
    pub fn eval(&self, symbols: &[i64], vars: &(impl Fn(VarId) -> Option<i64> + ?Sized)) -> Option<i64> {
        let n = match self {
            IndexExpr::Const(c) => return Some(*c),
            IndexExpr::Node(n) => n,
        };
        match &**n {
            IndexNode::Sym(s) => symbols.get(s.0 as usize).copied(),
            IndexNode::Var(v) => vars(*v),
            IndexNode::Sum { terms, constant, .. } => {
                let mut sum = *constant;
                for (t, c) in terms {
                    // Most terms are variables.
                    let value = match t.as_node() {
                        Some(IndexNode::Var(v)) => vars(*v),
                        _ => t.eval(symbols, vars),
                    };
                    sum = sum.checked_add(value?.checked_mul(*c)?)?;
                }
                Some(sum)
            }
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
                let mut left = terms.iter().enumerate();
                // Nothing is copied where nothing is replaced.
                let first = left.find_map(|(at, (t, _))| {
                    let new = t.replace_nodes(node);
                    (new != *t).then_some((at, new))
                });
                let Some((at, new)) = first else {
                    return self.clone();
                };
                let mut all = Terms::with_capacity(terms.len());
                let mut k = *constant;
                all.extend(terms[..at].iter().cloned());
                new.add_to(terms[at].1, &mut all, &mut k);
                for (_, (t, c)) in left {
                    t.replace_nodes(node).add_to(*c, &mut all, &mut k);
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
            if !e.uses(inner) {
                return None;
            }
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

    /// Whether some loop variable that occurs is such a one.
    fn any_var(&self, is: &impl Fn(VarId) -> bool) -> bool {
        match self.as_node() {
            None | Some(IndexNode::Sym(_)) => false,
            Some(IndexNode::Var(v)) => is(*v),
            Some(IndexNode::Sum { terms, .. }) => terms.iter().any(|t| t.0.any_var(is)),
            Some(IndexNode::Product(x)) => x.iter().any(|x| x.any_var(is)),
            Some(IndexNode::FloorDiv(a, b) | IndexNode::Mod(a, b) | IndexNode::Min(a, b) | IndexNode::Max(a, b)) => {
                a.any_var(is) || b.any_var(is)
            }
        }
    }

    /// True if `var` occurs.
    pub fn uses(&self, var: VarId) -> bool {
        self.any_var(&|v| v == var)
    }

    /// True if any loop variable occurs.
    pub fn has_vars(&self) -> bool {
        self.any_var(&|_| true)
    }

    /// The coefficient of `var` and the rest, if the expression is `coefficient * var + rest` and neither mentions `var`.
    pub fn affine_in(&self, var: VarId) -> Option<(IndexExpr, IndexExpr)> {
        let one;
        let (terms, constant) = match self.as_node() {
            None => return Some((IndexExpr::ZERO, self.clone())),
            Some(IndexNode::Sum { terms, constant, .. }) => (&terms[..], *constant),
            Some(_) => {
                one = [(self.clone(), 1)];
                (&one[..], 0)
            }
        };
        let mut coefficient = IndexExpr::ZERO;
        let mut rest = Terms::new();
        for (t, c) in terms {
            if !t.uses(var) {
                rest.push((t.clone(), *c));
                continue;
            }
            let factors = t.factors_of();
            let at = factors.iter().position(|f| f.as_var() == Some(var))?;
            let others = || factors.iter().enumerate().filter(|(k, _)| *k != at).map(|(_, f)| f);
            if others().any(|f| f.uses(var)) {
                return None;
            }
            coefficient = coefficient + IndexExpr::product(others()).mul_const(*c);
        }
        let rest = match rest.len() == terms.len() {
            true => self.clone(),
            false => IndexExpr::of_normal(rest, constant),
        };
        Some((coefficient, rest))
    }
}

impl Add for IndexExpr {
    type Output = IndexExpr;
    fn add(self, other: IndexExpr) -> IndexExpr {
        match (&self, &other) {
            (IndexExpr::Const(a), IndexExpr::Const(b)) => IndexExpr::Const(a.saturating_add(*b)),
            (IndexExpr::Const(0), _) => other,
            (_, IndexExpr::Const(0)) => self,
            // What is in normal form stays so with another constant.
            (IndexExpr::Node(_), IndexExpr::Const(c)) => {
                let (terms, a) = self.into_linear();
                IndexExpr::of_normal(terms, a.saturating_add(*c))
            }
            (IndexExpr::Const(c), IndexExpr::Node(_)) => {
                let (terms, a) = other.into_linear();
                IndexExpr::of_normal(terms, a.saturating_add(*c))
            }
            _ => {
                let (mut terms, a) = self.into_linear();
                let (more, b) = other.into_linear();
                terms.extend(more);
                IndexExpr::from_linear(terms, a.saturating_add(b))
            }
        }
    }
}

impl Sub for IndexExpr {
    type Output = IndexExpr;
    fn sub(self, other: IndexExpr) -> IndexExpr {
        if let IndexExpr::Const(c) = other {
            return self + IndexExpr::Const(c.saturating_neg());
        }
        let (mut terms, mut constant) = self.into_linear();
        other.add_to(-1, &mut terms, &mut constant);
        IndexExpr::from_linear(terms, constant)
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
                let mut terms = Terms::with_capacity((left.len() + 1) * (right.len() + 1));
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
mod tests;
