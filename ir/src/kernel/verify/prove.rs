//! Proofs over all iterations: by intervals and substitution of loop ends, by cases over minima and maxima, and by
//! enumeration where the iteration space is small. What is not proven is sought to be refuted by an example.
//!
//! Invariants: a proof covers every reachable iteration (and maybe unreachable ones); an example is a reachable one, for
//! symbol values in their ranges.

use std::fmt;

use rustc_hash::FxHashMap;

use crate::index::{Bounds, IndexExpr, IndexNode, Interval, SymId, VarId};
use crate::kernel::verify::{Place, Report, Rule, Violation};
use crate::kernel::{Kernel, Memory, Range, Stmt};

/// Symbol and variable values that refute a fact; empty if none are known.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Example {
    /// Value of each symbol.
    pub symbols: Vec<i64>,
    /// Values of loop variables, outermost first.
    pub vars: Vec<(VarId, i64)>,
}

impl fmt::Display for Example {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.symbols.is_empty() && self.vars.is_empty() {
            return f.write_str("for all that is known");
        }
        f.write_str("for")?;
        for (i, s) in self.symbols.iter().enumerate() {
            write!(f, " s{i}={s}")?;
        }
        for (v, value) in &self.vars {
            write!(f, " i{}={value}", v.0)?;
        }
        Ok(())
    }
}

/// Iterations that enumeration visits at most.
const ENUMERATED: usize = 1 << 14;

/// Nodes of the expressions that one proof looks at: cases multiply, and each costs as much as its expression is large.
pub(super) const NODES: usize = 1 << 15;

/// Checks that every unconditional access is inside its memory.
pub(super) fn accesses(kernel: &Kernel, tries: &Tries, report: &mut Report) {
    let mut walk = Walk {
        kernel,
        tries,
        report,
        place: Vec::new(),
        vars: Vec::new(),
    };
    walk.block(&kernel.body);
}

struct Walk<'k, 'r> {
    kernel: &'k Kernel,
    tries: &'k Tries,
    report: &'r mut Report,
    place: Vec<u32>,
    vars: Vec<VarId>,
}

impl Walk<'_, '_> {
    fn block(&mut self, body: &[Stmt]) {
        let depth = self.vars.len();
        for (i, s) in body.iter().enumerate() {
            self.place.push(i as u32);
            self.vars.extend(s.own_vars());
            for a in s.accesses().filter(|a| a.mask.is_none()) {
                self.access(a.memory, a.index, a.ranges);
            }
            self.vars.truncate(self.vars.len() - s.own_vars().len());
            match s {
                Stmt::Loop { var, body, .. } => {
                    self.vars.push(*var);
                    self.block(body);
                    self.vars.pop();
                }
                Stmt::Clamp { var, .. } => self.vars.push(*var),
                Stmt::Each { vars, body, .. } => {
                    self.vars.extend(vars);
                    self.block(body);
                    self.vars.truncate(self.vars.len() - vars.len());
                }
                // What is under a condition is the program's to keep inside.
                _ => {}
            }
            self.place.pop();
        }
        self.vars.truncate(depth);
    }

    fn access(&mut self, memory: Memory, index: &IndexExpr, ranges: &[Range]) {
        let len = self.kernel.memory_len(memory);
        if inside_where(self.kernel, index, len, ranges) {
            return;
        }
        let (proven, example) = search(self.kernel, self.tries, &self.vars, &mut |symbols, vars| {
            for r in ranges {
                if !(0..r.limit.eval(symbols, vars)?).contains(&r.index.eval(symbols, vars)?) {
                    return Some(true);
                }
            }
            let at = index.eval(symbols, vars)?;
            let len = len.eval_symbols(symbols)?;
            Some((0..len).contains(&at))
        });
        if proven {
            return;
        }
        let list = match example {
            Some(_) => &mut self.report.errors,
            None => &mut self.report.unproven,
        };
        list.push(Violation {
            place: Place(self.place.clone()),
            rule: Rule::OutOfBounds {
                memory,
                example: example.unwrap_or_default(),
            },
        });
    }
}

/// Whether an access is proven to be inside a memory of that length wherever the conditions hold.
fn inside_where(kernel: &Kernel, index: &IndexExpr, len: &IndexExpr, ranges: &[Range]) -> bool {
    let proven = |index: &IndexExpr, bounds: &dyn Bounds| {
        let above = len.clone() - index.clone() - IndexExpr::ONE;
        nonnegative(index, bounds) && nonnegative(&above, bounds)
    };
    if proven(index, kernel) {
        return true;
    }
    let (index, bounds) = narrowed(kernel, index, ranges);
    !ranges.is_empty() && proven(&index, &bounds)
}

/// An index under its conditions, in variables whose extents the conditions are: where `e` is a variable plus something else,
/// the variable is `x` less that, for `x` in the range of `e`.
fn narrowed(kernel: &Kernel, index: &IndexExpr, ranges: &[Range]) -> (IndexExpr, Narrowed) {
    let mut index = index.clone();
    let mut bounds = Narrowed {
        symbols: kernel.symbols.clone(),
        extents: kernel.extents.clone(),
    };
    let mut ranges = ranges.to_vec();
    for i in 0..ranges.len() {
        let Range { index: e, limit } = ranges[i].clone();
        let mut vars = Vec::new();
        e.visit_atoms(&mut |n| {
            if let IndexNode::Var(v) = n {
                vars.push(*v);
            }
        });
        // The innermost one: what is around it stays.
        let found = vars.into_iter().max().and_then(|v| {
            let (stride, rest) = e.affine_in(v)?;
            (stride.is(1) && !limit.uses(v)).then_some((v, rest))
        });
        let Some((v, rest)) = found else { continue };
        let x = VarId(bounds.extents.len() as u32);
        bounds.extents.push(limit);
        let instead = IndexExpr::from(x) - rest;
        let put = |e: &IndexExpr| e.replace_vars(&mut |u| (u == v).then(|| instead.clone()));
        index = put(&index);
        for r in &mut ranges[i + 1..] {
            (r.index, r.limit) = (put(&r.index), put(&r.limit));
        }
    }
    (index, bounds)
}

/// The ranges of a kernel's symbols and variables, and of variables that stand for conditions.
struct Narrowed {
    symbols: Vec<(i64, i64)>,
    extents: Vec<IndexExpr>,
}

impl Bounds for Narrowed {
    fn symbol(&self, sym: SymId) -> Interval {
        let known = self.symbols.get(sym.0 as usize);
        known.map_or(Interval::new(0, i64::MAX), |&(lo, hi)| Interval::new(lo, hi))
    }
    fn extent(&self, var: VarId) -> Option<IndexExpr> {
        self.extents.get(var.0 as usize).cloned()
    }
}

/// True if the expression is certainly not negative, in all iterations of the loops that its variables belong to.
pub fn nonnegative(e: &IndexExpr, bounds: &dyn Bounds) -> bool {
    nonnegative_within(e, bounds, NODES)
}

/// As [`nonnegative`], looking at so many nodes of expressions at most.
pub(super) fn nonnegative_within(e: &IndexExpr, bounds: &dyn Bounds, nodes: usize) -> bool {
    let mut cases = Cases {
        bounds,
        left: nodes,
        failed: FxHashMap::default(),
    };
    cases.hold(e, MOST_CASES)
}

/// How deep cases are split into cases.
const MOST_CASES: u32 = 6;

/// A proof by cases. Loop ends that are put in for several variables make one expression in whatever order they are put in, so that most
/// cases of a proof that fails come up many times: each is looked at once.
struct Cases<'b> {
    bounds: &'b dyn Bounds,
    /// Nodes that may still be looked at.
    left: usize,
    /// What was not proven at a depth, with the nodes that were looked at for it: it counts them again.
    failed: FxHashMap<(IndexExpr, u32), usize>,
}

impl Cases<'_> {
    /// As [`IndexExpr::proves_nonnegative`], with loop ends put in for variables and minima and maxima split into cases.
    fn hold(&mut self, e: &IndexExpr, depth: u32) -> bool {
        if e.as_const().is_some() {
            return self.split(e, depth);
        }
        let case = (e.clone(), depth);
        if let Some(&looked_at) = self.failed.get(&case) {
            self.left = self.left.saturating_sub(looked_at);
            return false;
        }
        let before = self.left;
        let holds = self.split(e, depth);
        if !holds {
            self.failed.insert(case, before - self.left);
        }
        holds
    }

    fn split(&mut self, e: &IndexExpr, depth: u32) -> bool {
        let bounds = self.bounds;
        if e.proves_nonnegative(bounds) {
            return true;
        }
        if depth == 0 || self.left == 0 {
            return false;
        }
        self.left = self.left.saturating_sub(e.size() as usize);
        if let Some(e) = recombined(e) {
            return self.hold(&e, depth - 1);
        }
        let (terms, _) = e.linear();
        for (t, c) in &terms {
            let IndexExpr::Node(n) = t else { continue };
            let (a, b, any) = match &**n {
                IndexNode::Min(a, b) => (a.clone(), b.clone(), *c < 0),
                IndexNode::Max(a, b) => (a.clone(), b.clone(), *c > 0),
                IndexNode::Product(factors) => match extremum_of_product(factors, bounds) {
                    Some((a, b, least)) => (a, b, (*c < 0) == least),
                    None => continue,
                },
                IndexNode::Mod(_, b) => {
                    // x mod b is one of 0..=b-1: the end that makes the sum smaller.
                    let rest = e.clone() - t.clone() * IndexExpr::Const(*c);
                    let end = if *c > 0 {
                        IndexExpr::ZERO
                    } else {
                        b.clone() - IndexExpr::ONE
                    };
                    if self.hold(&(rest + end * IndexExpr::Const(*c)), depth - 1) {
                        return true;
                    }
                    continue;
                }
                IndexNode::FloorDiv(a, b) if let Some(b) = b.as_const().filter(|&b| b > 0 && c % b == 0) => {
                    // b * floor(a / b) is one of a-b+1..=a.
                    let rest = e.clone() - t.clone() * IndexExpr::Const(*c);
                    let end = if *c > 0 {
                        a.clone() - IndexExpr::Const(b - 1)
                    } else {
                        a.clone()
                    };
                    if self.hold(&(rest + end * IndexExpr::Const(c / b)), depth - 1) {
                        return true;
                    }
                    continue;
                }
                IndexNode::FloorDiv(a, b) if let Some(b) = b.as_const().filter(|&b| *c < -1 && b > 0 && b % c == 0) => {
                    // n * floor(a / (n * d)) is at most floor(a / d).
                    let rest = e.clone() - t.clone() * IndexExpr::Const(*c);
                    let most = IndexExpr::floor_div(a, &IndexExpr::Const(b / -c));
                    if self.hold(&(rest - most), depth - 1) {
                        return true;
                    }
                    continue;
                }
                _ => continue,
            };
            let rest = e.clone() - t.clone() * IndexExpr::Const(*c);
            let mut case = |x: &IndexExpr| self.hold(&(rest.clone() + x.clone() * IndexExpr::Const(*c)), depth - 1);
            return if any {
                case(&a) || case(&b)
            } else {
                case(&a) && case(&b)
            };
        }
        // The innermost variable that occurs linearly, at the end of its range that makes the sum smallest.
        let mut vars = Vec::new();
        e.visit_atoms(&mut |n| {
            if let IndexNode::Var(v) = n {
                vars.push(*v);
            }
        });
        vars.sort();
        vars.dedup();
        for v in vars.into_iter().rev() {
            let Some((coefficient, rest)) = e.affine_in(v) else {
                continue;
            };
            let range = coefficient.interval(bounds);
            let smallest = if range.lo >= 0 {
                rest
            } else if range.hi <= 0
                && let Some(extent) = bounds.extent(v)
            {
                rest + coefficient * (extent - IndexExpr::ONE)
            } else {
                continue;
            };
            if self.hold(&smallest, depth - 1) {
                return true;
            }
        }
        false
    }
}

/// A product of which one factor is a minimum or maximum and the others are not negative is the minimum or maximum of two products:
/// these, and whether it is the minimum.
fn extremum_of_product(factors: &[IndexExpr], bounds: &dyn Bounds) -> Option<(IndexExpr, IndexExpr, bool)> {
    let (at, (a, b, least)) = factors.iter().enumerate().find_map(|(at, f)| {
        let IndexExpr::Node(n) = f else { return None };
        match &**n {
            IndexNode::Min(a, b) => Some((at, (a, b, true))),
            IndexNode::Max(a, b) => Some((at, (a, b, false))),
            _ => None,
        }
    })?;
    let others = factors.iter().enumerate().filter(|(i, _)| *i != at).map(|(_, f)| f);
    let others = IndexExpr::product(others);
    (others.interval(bounds).lo >= 0).then(|| (others.clone() * a.clone(), others * b.clone(), least))
}

/// The sum with `k * (x mod b) + k * b * floor(x / b)` as `k * x`, if it has such terms: what the loops over the whole pieces of
/// a range and over the rest of it come to together.
fn recombined(e: &IndexExpr) -> Option<IndexExpr> {
    let (terms, _) = e.linear();
    terms.iter().find_map(|(rest, k)| {
        let IndexExpr::Node(n) = rest else { return None };
        let IndexNode::Mod(x, b) = &**n else { return None };
        let all = k.checked_mul(b.as_const()?)?;
        let whole = IndexExpr::floor_div(x, b);
        terms.iter().any(|(t, c)| *c == all && *t == whole).then(|| {
            let (rest, whole) = (rest.clone() * IndexExpr::Const(*k), whole * IndexExpr::Const(all));
            e.clone() - rest - whole + x.clone() * IndexExpr::Const(*k)
        })
    })
}

/// A fact of one iteration, under symbol values and a lookup of variables; `None` where an expression has no value.
pub(super) type Fact<'a> = dyn FnMut(&[i64], &dyn Fn(VarId) -> Option<i64>) -> Option<bool> + 'a;

/// Looks for an iteration where a fact does not hold. Returns whether all iterations were seen to satisfy it, and an
/// iteration that does not.
pub(super) fn search(kernel: &Kernel, tries: &Tries, vars: &[VarId], fact: &mut Fact<'_>) -> (bool, Option<Example>) {
    let mut complete = tries.complete;
    for symbols in &tries.symbols {
        let mut budget = ENUMERATED;
        let mut values: Vec<(VarId, i64)> = Vec::new();
        let found = enumerate(kernel, vars, symbols, &mut values, &mut budget, fact, false);
        if found.is_some() {
            return (false, found);
        }
        if budget == 0 {
            complete = false;
            let mut budget = ENUMERATED;
            let found = enumerate(kernel, vars, symbols, &mut values, &mut budget, fact, true);
            if found.is_some() {
                return (false, found);
            }
        }
    }
    (complete, None)
}

/// Values of a kernel's symbols under which counterexamples are looked for.
pub(super) struct Tries {
    symbols: Vec<Vec<i64>>,
    /// Whether there are no other values.
    complete: bool,
}

impl Tries {
    /// Ends of the symbols' ranges and small odd sizes.
    pub(super) fn of(kernel: &Kernel) -> Tries {
        let (symbols, complete) = symbol_values(kernel);
        Tries { symbols, complete }
    }

    /// Those that a caller knows to occur. A kernel without symbols has one case, whatever the caller knows.
    pub(super) fn given(kernel: &Kernel, symbols: &[Vec<i64>]) -> Tries {
        match kernel.symbols.is_empty() {
            true => Tries::of(kernel),
            false => Tries {
                symbols: symbols.iter().filter(|s| launchable(kernel, s)).cloned().collect(),
                complete: false,
            },
        }
    }
}

/// Symbol values worth trying, and whether those are all there are.
fn symbol_values(kernel: &Kernel) -> (Vec<Vec<i64>>, bool) {
    let mut all: Vec<Vec<i64>> = vec![Vec::new()];
    let mut complete = true;
    for s in 0..kernel.symbols.len() {
        let Interval { lo, hi } = kernel.symbol(SymId(s as u32));
        let mut tries: Vec<i64> = [lo, lo.saturating_add(1), 7, 37]
            .into_iter()
            .filter(|v| (lo..=hi).contains(v))
            .collect();
        tries.sort();
        tries.dedup();
        complete &= hi.saturating_sub(lo).saturating_add(1) == tries.len() as i64;
        all = all
            .iter()
            .flat_map(|a| tries.iter().map(|&t| [&a[..], &[t]].concat()))
            .collect();
        all.truncate(64);
        complete &= all.len() < 64;
    }
    all.retain(|symbols| launchable(kernel, symbols));
    (all, complete)
}

/// Nothing can be launched with values that give a memory a negative length, or for which a condition does not hold.
fn launchable(kernel: &Kernel, symbols: &[i64]) -> bool {
    if !kernel.requires.iter().all(|c| c.holds(symbols) == Some(true)) {
        return false;
    }
    let params = kernel.params.iter().map(|p| &p.len);
    params
        .chain(kernel.scratch.iter().map(|s| &s.len))
        .all(|len| len.eval_symbols(symbols).is_some_and(|n| n >= 0))
}

/// Visits iterations in order until the budget is spent; `corners` visits only the ends of each range.
fn enumerate(
    kernel: &Kernel,
    vars: &[VarId],
    symbols: &[i64],
    values: &mut Vec<(VarId, i64)>,
    budget: &mut usize,
    fact: &mut Fact<'_>,
    corners: bool,
) -> Option<Example> {
    if *budget == 0 {
        return None;
    }
    let lookup = |v: VarId| values.iter().find(|x| x.0 == v).map(|x| x.1);
    let Some((&var, rest)) = vars.split_first() else {
        *budget -= 1;
        return match fact(symbols, &lookup) {
            Some(true) => None,
            _ => Some(Example {
                symbols: symbols.to_vec(),
                vars: values.clone(),
            }),
        };
    };
    let extent = kernel.extents[var.0 as usize].eval(symbols, &lookup).unwrap_or(0);
    let ends = [0, 1, extent / 2, extent.saturating_sub(2), extent.saturating_sub(1)];
    let steps: Box<dyn Iterator<Item = i64>> = if corners && extent > 5 {
        Box::new(ends.into_iter())
    } else {
        Box::new(0..extent)
    };
    for i in steps {
        values.push((var, i));
        let before = *budget;
        let found = enumerate(kernel, rest, symbols, values, budget, fact, corners);
        values.pop();
        if found.is_some() {
            return found;
        }
        // Iterations of which none reaches the fact take time too.
        *budget -= usize::from(*budget == before && *budget > 0);
        if *budget == 0 {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Ranges(Vec<IndexExpr>);
    impl Bounds for Ranges {
        fn symbol(&self, _: SymId) -> Interval {
            Interval::new(1, 1 << 31)
        }
        fn extent(&self, var: VarId) -> Option<IndexExpr> {
            self.0.get(var.0 as usize).cloned()
        }
    }

    #[test]
    fn a_block_that_is_cut_short_is_inside_its_range() {
        let n = IndexExpr::from(SymId(0));
        let (o, i) = (VarId(0), VarId(1));
        let start = IndexExpr::from(o) * 64.into();
        let left = IndexExpr::min(&64.into(), &(n.clone() - start.clone()));
        let bounds = Ranges(vec![n.ceil_div(64), left]);
        let index = start + i.into();
        assert!(nonnegative(&(n.clone() - index.clone() - IndexExpr::ONE), &bounds));
        assert!(!nonnegative(&(n - index - 2.into()), &bounds));
    }

    /// Loops of which none cuts what the others leave: each subset of ends that are put in is looked at once, and not each order.
    #[test]
    fn what_cannot_be_proven_is_looked_at_once() {
        let vars = || (0..8).map(|v| IndexExpr::from(VarId(v)));
        let bounds = Ranges(vars().map(|_| IndexExpr::from(SymId(0))).collect());
        let n = IndexExpr::from(SymId(0));
        let e = vars().fold(n - 1000.into(), |e, v| e + v);
        let mut cases = Cases {
            bounds: &bounds,
            left: 1 << 20,
            failed: FxHashMap::default(),
        };
        assert!(!cases.hold(&e, MOST_CASES));
        // Of at most six of eight: the sum of the binomial coefficients. Orders would be 28,961.
        assert!(cases.failed.len() <= 247, "{}", cases.failed.len());
        // What they cost is counted as if each order of at most five ends were looked at, so that as much is proven as without. A sum
        // of a symbol and `v` variables has `3 + 2 * v` nodes.
        let (mut orders, mut nodes) = (1, 0);
        for v in (3..=8).rev() {
            nodes += orders * (3 + 2 * v);
            orders *= v;
        }
        assert_eq!((1 << 20) - cases.left, nodes);
    }
}
