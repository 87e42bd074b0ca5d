//! Peeling: the first and the last iterations of a loop run apart, so that conditions on its variable hold in the middle.
//!
//! Padding makes every access conditional, though only what lies at an edge needs the condition. In the middle part the
//! conditions are decided by the range of the variable, and accesses are plain. So are those of an image that is padded with its own
//! elements: what is cut off at both ends is cut off nowhere in the middle, where the index from data is a number plus the variable.

use rustc_hash::{FxHashMap, FxHashSet};
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::visit::{walk, walk_mut};
use tlc_ir::kernel::{Bind, Kernel, Memory, Op, Stmt, ValueId};
use tlc_ir::{DType, Scalar, ScalarOp};

use super::across::{scratch_of, scratch_outside};
use super::directives::{enclosing_lanes, exists, loop_bind, rewrite};
use super::{Directive, ScheduleReason, Scheduler};
use crate::directive::DirectiveRefusal;
use crate::tree;
use crate::tree::{clone_fresh, substitute_in};

/// The most iterations at both edges together.
const EDGES: i64 = 8;
/// Where they say which element an index from data is, which is a load for each lane anywhere else.
const GATHERED_EDGES: i64 = 64;

/// What is known of values while statements are walked: integers as index expressions, and decided bools.
#[derive(Clone, Default)]
pub(super) struct Known {
    numbers: FxHashMap<ValueId, IndexExpr>,
    bools: FxHashMap<ValueId, bool>,
    /// Values whose bits are all zero.
    zeros: FxHashSet<ValueId>,
    /// Masks of loads: where one is false, the value is zero.
    masks: FxHashMap<ValueId, ValueId>,
    /// Conditions that hold where two others do.
    both: FxHashMap<ValueId, [ValueId; 2]>,
    /// Indices from data that are what their data is.
    places: FxHashMap<VarId, IndexExpr>,
}

impl Known {
    /// What the constants of a kernel are, wherever they stand.
    pub(super) fn constants(kernel: &Kernel) -> Known {
        let mut known = Known::default();
        for s in kernel.statements() {
            if let Stmt::Let {
                value,
                op: op @ Op::Const(_),
            } = s
            {
                known.note(kernel, *value, op);
            }
        }
        known
    }

    /// What the constants of a kernel are, and the integers that are computed where an index from data may follow from them, whether
    /// or not a loop computes them.
    pub(super) fn numbers(kernel: &Kernel) -> Known {
        let mut known = Known::constants(kernel);
        if !kernel.statements().any(|s| matches!(s, Stmt::Clamp { .. })) {
            return known;
        }
        for s in kernel.statements() {
            if let Stmt::Let { value, op } = s
                && kernel.dtype(*value).is_int()
            {
                known.note(kernel, *value, op);
            }
        }
        known
    }

    /// The integer that an operation on integers comes to, if it does not wrap.
    fn number(&self, kernel: &Kernel, dtype: DType, op: &Op) -> Option<IndexExpr> {
        let of = |v: &ValueId| self.numbers.get(v).cloned();
        let number = match op {
            Op::Map(op, args) => {
                let (a, b) = (of(&args[0])?, args.get(1).and_then(of));
                match (op, b) {
                    (ScalarOp::Neg, None) => IndexExpr::ZERO - a,
                    (ScalarOp::Add, Some(b)) => a + b,
                    (ScalarOp::Sub, Some(b)) => a - b,
                    (ScalarOp::Mul, Some(b)) if a.as_const().is_some() || b.as_const().is_some() => a * b,
                    (ScalarOp::Max | ScalarOp::Min, Some(b)) => {
                        let (larger, smaller) = if (b.clone() - a.clone()).proves_nonnegative(kernel) {
                            (b, a)
                        } else if (a.clone() - b.clone()).proves_nonnegative(kernel) {
                            (a, b)
                        } else {
                            return None;
                        };
                        if *op == ScalarOp::Max { larger } else { smaller }
                    }
                    _ => return None,
                }
            }
            Op::Convert(_, from) => of(from)?,
            _ => return None,
        };
        fits(kernel, dtype, &number).then_some(number)
    }

    /// An expression that is at least 0 exactly where a comparison of integers holds, if the values do not wrap.
    pub(super) fn margin(&self, kernel: &Kernel, op: &Op) -> Option<IndexExpr> {
        let Op::Map(op @ (ScalarOp::Le | ScalarOp::Lt), args) = op else {
            return None;
        };
        let (a, b) = (self.numbers.get(&args[0])?, self.numbers.get(&args[1])?);
        let fits = |v: ValueId, e: &IndexExpr| fits(kernel, kernel.dtype(v), e);
        let strict = IndexExpr::from((*op == ScalarOp::Lt) as usize);
        (fits(args[0], a) && fits(args[1], b)).then(|| b.clone() - a.clone() - strict)
    }

    /// Whether a condition holds only where another one does.
    fn implies(&self, condition: ValueId, other: ValueId) -> bool {
        let (mut open, mut seen) = (vec![condition], FxHashSet::default());
        while let Some(at) = open.pop() {
            if at == other {
                return true;
            }
            if seen.insert(at) {
                open.extend(self.both.get(&at).into_iter().flatten());
            }
        }
        false
    }

    pub(super) fn note(&mut self, kernel: &Kernel, value: ValueId, op: &Op) {
        match op {
            Op::Const(c) if *c == kernel.dtype(value).zero() => {
                self.zeros.insert(value);
            }
            Op::Load { mask: Some(mask), .. } => {
                self.masks.insert(value, *mask);
            }
            Op::Map(ScalarOp::And, args) if kernel.dtype(value) == DType::Bool => {
                self.both.insert(value, [args[0], args[1]]);
            }
            _ => {}
        }
        match op {
            Op::Const(c) if matches!(kernel.dtype(value), DType::I32 | DType::I64) => {
                if let Some(e) = IndexExpr::from_data(c.as_i64()) {
                    self.numbers.insert(value, e);
                }
            }
            Op::Const(c) if c.dtype() == DType::Bool => {
                self.bools.insert(value, c.as_bool());
            }
            Op::Index(e, DType::I32 | DType::I64) => {
                self.numbers.insert(value, e.clone());
            }
            Op::Map(..) | Op::Convert(..) if matches!(kernel.dtype(value), DType::I32 | DType::I64) => {
                let number = self.number(kernel, kernel.dtype(value), op);
                self.numbers.extend(number.map(|e| (value, e)));
            }
            _ => {}
        }
    }
}

/// Whether integers of a type hold all that an expression may be.
fn fits(kernel: &Kernel, dtype: DType, e: &IndexExpr) -> bool {
    let range = e.interval(kernel);
    match dtype {
        DType::I32 => range.lo >= i32::MIN as i64 && range.hi <= i32::MAX as i64,
        dtype => dtype == DType::I64 && range.lo > i64::MIN && range.hi < i64::MAX,
    }
}

/// Returns the loops of the first iterations, of the middle, and of the last; without those that are empty.
pub(super) fn peel(kernel: &mut Kernel, var: VarId, from: i64, behind: i64) -> Result<Vec<VarId>, DirectiveRefusal> {
    exists(kernel, var)?;
    let n = kernel.extents[var.0 as usize].clone();
    if from < 0 || behind < 0 || from.saturating_add(behind) > n.interval(kernel).lo {
        return Err(DirectiveRefusal::Factor(from.min(behind)));
    }
    if !matches!(loop_bind(&kernel.body, var), Some(Bind::Serial)) {
        return Err(DirectiveRefusal::Recurrence(var));
    }
    if let Some(Some(outer)) = enclosing_lanes(&kernel.body, var, None) {
        return Err(DirectiveRefusal::NotNested(outer, var));
    }
    let (first, last) = (IndexExpr::Const(from), IndexExpr::Const(behind));
    let to = n.clone() - last.clone();
    let parts: Vec<(IndexExpr, IndexExpr)> = [
        (IndexExpr::ZERO, first.clone()),
        (first.clone(), to.clone() - first),
        (to, last),
    ]
    .into_iter()
    .filter(|(_, extent)| !extent.is(0))
    .collect();
    let own = own_scratch(kernel, var);
    let constants = Known::numbers(kernel);
    let mut made = Vec::new();
    rewrite(kernel, var, &mut |kernel, bind, body| {
        let mut out = Vec::new();
        for (number, (start, extent)) in parts.iter().enumerate() {
            let mut part = clone_fresh(kernel, &body);
            // Each part has states of its own, so that each may be scheduled in its own way.
            if number > 0 {
                with_own_scratch(kernel, &mut part, &own);
            }
            let v = kernel.new_var(extent.clone());
            let at = start.clone() + v.into();
            substitute_in(kernel, &mut part, &mut |x| (x == var).then(|| at.clone()));
            let body = decided(kernel, part, constants.clone());
            out.push(Stmt::Loop { var: v, bind, body });
            made.push(v);
        }
        out
    });
    Ok(made)
}

/// Scratch of one element that only the loop over `var` uses, each iteration writing it before all else.
pub(super) fn own_scratch(kernel: &Kernel, var: VarId) -> Vec<u32> {
    let (mut inside, mut outside) = (Vec::new(), Vec::new());
    let Some(body) = tree::loop_body(&kernel.body, var) else {
        return inside;
    };
    scratch_of(body, &mut inside);
    scratch_outside(&kernel.body, var, &mut outside);
    inside.retain(|&i| kernel.scratch[i as usize].len.is(1) && !outside.contains(&i) && set_first(kernel, body, i));
    inside
}

/// Whether the first statement that uses a scratch stores to it.
fn set_first(kernel: &Kernel, body: &[Stmt], scratch: u32) -> bool {
    let first = body.iter().find(|s| {
        let mut used = Vec::new();
        scratch_of(std::slice::from_ref(*s), &mut used);
        used.contains(&scratch)
    });
    match first {
        Some(Stmt::Store { mask, .. }) => mask.is_none(),
        Some(Stmt::Loop { var, body, .. }) => {
            kernel.extents[var.0 as usize].interval(kernel).lo >= 1 && set_first(kernel, body, scratch)
        }
        _ => false,
    }
}

/// Gives statements copies of these scratch memories.
pub(super) fn with_own_scratch(kernel: &mut Kernel, body: &mut [Stmt], own: &[u32]) {
    let copies: Vec<(Memory, Memory)> = own
        .iter()
        .map(|&i| {
            let s = kernel.scratch[i as usize].clone();
            (Memory::Scratch(i), kernel.new_scratch(s.dtype, s.len, s.scope))
        })
        .collect();
    walk_mut(body, &mut |s| {
        for a in s.accesses_mut() {
            if let Some((_, new)) = copies.iter().find(|c| c.0 == *a.memory) {
                *a.memory = *new;
            }
        }
    });
}

/// The statements with every comparison that the ranges of variables decide as a constant, and what follows from it; and without
/// choices between a load and zero that the load's mask makes.
pub(super) fn decided(kernel: &Kernel, body: Vec<Stmt>, mut known: Known) -> Vec<Stmt> {
    let mut renamed = FxHashMap::default();
    let body = decide(kernel, body, &mut known, &mut renamed);
    let mut used = FxHashSet::default();
    sweep(body, &mut used)
}

fn decide(kernel: &Kernel, body: Vec<Stmt>, known: &mut Known, renamed: &mut FxHashMap<ValueId, ValueId>) -> Vec<Stmt> {
    let mut out = Vec::with_capacity(body.len());
    for mut s in body {
        s.operands_mut()
            .for_each(|v| *v = renamed.get(v).copied().unwrap_or(*v));
        if !known.places.is_empty() {
            for e in s.indices_mut().filter(|e| e.has_vars()) {
                *e = e.replace_vars(&mut |v| known.places.get(&v).cloned()).simplify(kernel);
            }
        }
        if let Some(inside) = s.body_mut() {
            *inside = decide(kernel, std::mem::take(inside), known, renamed);
        }
        match &mut s {
            Stmt::Let { value, op } => {
                let value = *value;
                if let Some(margin) = known.margin(kernel, op) {
                    let below = IndexExpr::ZERO - margin.clone() - IndexExpr::ONE;
                    if margin.proves_nonnegative(kernel) {
                        *op = Op::Const(Scalar::from_bool(true));
                    } else if below.proves_nonnegative(kernel) {
                        *op = Op::Const(Scalar::from_bool(false));
                    }
                }
                match op {
                    Op::Map(ScalarOp::And, args) if kernel.dtype(value) == DType::Bool => {
                        match [args[0], args[1]].map(|v| known.bools.get(&v).copied()) {
                            [Some(true), _] => drop(renamed.insert(value, args[1])),
                            [_, Some(true)] => drop(renamed.insert(value, args[0])),
                            [Some(false), _] | [_, Some(false)] => *op = Op::Const(Scalar::from_bool(false)),
                            _ => {}
                        }
                    }
                    Op::Map(ScalarOp::Select, args) => match known.bools.get(&args[0]) {
                        Some(true) => drop(renamed.insert(value, args[1])),
                        Some(false) => drop(renamed.insert(value, args[2])),
                        // A load that has this mask, or one that leaves out more, has made that choice.
                        None if known.zeros.contains(&args[2]) => {
                            let mask = known.masks.get(&args[1]);
                            if mask.is_some_and(|m| known.implies(*m, args[0])) {
                                renamed.insert(value, args[1]);
                            }
                        }
                        None => {}
                    },
                    Op::Load { mask, .. } => match mask.and_then(|m| known.bools.get(&m)) {
                        Some(true) => *mask = None,
                        Some(false) => *op = Op::Const(kernel.dtype(value).zero()),
                        None => {}
                    },
                    _ => {}
                }
                if let Some(&same) = renamed.get(&value) {
                    if let Some(&b) = known.bools.get(&same) {
                        known.bools.insert(value, b);
                    }
                    continue;
                }
                known.note(kernel, value, op);
            }
            Stmt::Store { mask, .. } => *mask = mask.filter(|m| known.bools.get(m) != Some(&true)),
            // What is cut off at neither end is what it was.
            Stmt::Clamp { var, value } => {
                let extent = &kernel.extents[var.0 as usize];
                let counts = kernel.extents.iter().any(|n| n.uses(*var));
                let inside = |e: &&IndexExpr| !counts && e.proves_nonnegative(kernel) && e.proves_less(extent, kernel);
                if let Some(place) = known.numbers.get(value).filter(inside) {
                    known.places.insert(*var, place.clone());
                    continue;
                }
            }
            _ => {}
        }
        out.push(s);
    }
    out
}

/// The statements without values that nothing uses.
fn sweep(body: Vec<Stmt>, used: &mut FxHashSet<ValueId>) -> Vec<Stmt> {
    let mut out = Vec::with_capacity(body.len());
    for mut s in body.into_iter().rev() {
        if s.defined_value().is_some_and(|v| !used.contains(&v)) {
            continue;
        }
        used.extend(s.operands());
        if let Some(inside) = s.body_mut() {
            *inside = sweep(std::mem::take(inside), used);
        }
        out.push(s);
    }
    out.reverse();
    out
}

/// The most iterations at both ends of a loop that are apart from the others.
fn most_edges(body: &[Stmt]) -> i64 {
    match walk(body).any(|s| matches!(s, Stmt::Clamp { .. })) {
        true => GATHERED_EDGES,
        false => EDGES,
    }
}

/// The iterations at both ends of a loop of `n` in which conditions on its variable fail, where most of them hold.
fn edges(kernel: &Kernel, body: &[Stmt], var: VarId, n: &IndexExpr, known: &mut Known, found: &mut (i64, i64)) {
    let gathers = walk(body).any(|s| matches!(s, Stmt::Clamp { .. }));
    let most = most_edges(body).min(n.interval(kernel).lo / 2);
    // How many iterations at which end have a margin below 0, if they are few.
    let ends = |margin: &IndexExpr| -> Option<(i64, i64)> {
        let (slope, rest) = margin.affine_in(var)?;
        let least = rest.interval(kernel).lo;
        // `slope * v + rest >= 0`.
        let (from, behind) = match (slope.as_const(), n.as_const()) {
            (Some(slope), _) if slope > 0 => {
                let from = least.saturating_neg().saturating_add(slope - 1).div_euclid(slope);
                (from, 0)
            }
            // As long as the loop but for a number, whatever its length is.
            (Some(-1), _) => {
                let behind = (n.clone() - rest - IndexExpr::ONE).simplify(kernel).interval(kernel).hi;
                (0, behind)
            }
            (Some(slope), Some(n)) if slope < 0 => {
                let to = least.div_euclid(-slope).saturating_add(1);
                (0, n.saturating_sub(to))
            }
            _ => return None,
        };
        (from <= most && behind <= most).then_some((from, behind))
    };
    for s in walk(body) {
        let Stmt::Let { value, op } = s else { continue };
        known.note(kernel, *value, op);
        let margins = match op {
            // Which of both it is: what is cut off is what it was where most iterations are.
            Op::Map(op @ (ScalarOp::Max | ScalarOp::Min), args) if gathers && !known.numbers.contains_key(value) => {
                let [Some(a), Some(b)] = [args[0], args[1]].map(|v| known.numbers.get(&v).cloned()) else {
                    continue;
                };
                let larger = *op == ScalarOp::Max;
                [(a.clone(), b.clone()), (b, a)]
                    .into_iter()
                    .map(|(a, b)| (if larger { a.clone() - b } else { b - a.clone() }, Some(a)))
                    .collect::<Vec<_>>()
            }
            _ => known
                .margin(kernel, op)
                .map(|margin| (margin, None))
                .into_iter()
                .collect(),
        };
        for (margin, number) in margins {
            let Some((from, behind)) = ends(&margin) else { continue };
            *found = (found.0.max(from), found.1.max(behind));
            if let Some(number) = number {
                known.numbers.insert(*value, number);
                break;
            }
        }
    }
}

impl Scheduler<'_> {
    /// Peels the iterations at the edges of a loop in which some condition fails. Returns the loops that there are then,
    /// and which of them is the middle.
    pub(super) fn peeled(&mut self, var: VarId) -> (Vec<VarId>, VarId) {
        let whole = (vec![var], var);
        let n = self.kernel.extents[var.0 as usize].clone();
        let Some(body) = tree::loop_body(&self.kernel.body, var) else {
            return whole;
        };
        let mut found = (0, 0);
        let mut known = Known::numbers(&self.kernel);
        edges(&self.kernel, body, var, &n, &mut known, &mut found);
        let (from, behind) = found;
        if from + behind == 0 || from + behind > most_edges(body) || n.is(from + behind) {
            return whole;
        }
        match self
            .because(ScheduleReason::Edges)
            .apply(Directive::Peel { var, from, behind })
        {
            Some(made) => {
                let middle = made[(from > 0) as usize];
                (made, middle)
            }
            None => whole,
        }
    }
}
