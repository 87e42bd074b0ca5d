//! Covering a loop whose length is not known with pieces of iterations that run side by side.
//!
//! What whole pieces leave over of such a loop is code of its own elsewhere, for a half of as many iterations, a quarter and so on. Here there is
//! one piece of code, and the last one that runs computes more than there is to compute:
//!
//! ```text
//! for v in 0..n { y[v] = f(x[v]) }      becomes      for o in 0..ceil(n / 4) { for i in 0..4 { y[4 o + i] = f(x[4 o + i]) if i < n - 4 o } }
//! ```
//! with the loop over `i` inside of all others. An image may keep a load inside its memory whatever the iteration is: what is padding is left out
//! already. Such loads stay as they are, so that all iterations that meet an element load it alike; and of windows that are not padded, those
//! elements are left out that the last iteration's window does not reach, of which the same is true.

use rustc_hash::FxHashMap;
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::{Kernel, Memory, Op, Stmt, ValueId};
use tlc_ir::{DType, ScalarOp};

use super::directives::rewrite;
use super::inward::{own_scratch, runs, side_by_side};
use super::slide::MOST_ROWS_APART;
use crate::directive::{DirectiveRefusal, MAX_UNROLL};
use crate::tree::substitute_in;

/// Runs `factor` iterations of a loop at once, inside of the loops of its body. Returns the loop over pieces and what each became.
pub(super) fn cover(kernel: &mut Kernel, var: VarId, factor: i64) -> Result<Vec<VarId>, DirectiveRefusal> {
    let own = own_scratch(kernel, var)?;
    if !(2..=MAX_UNROLL).contains(&factor) {
        return Err(DirectiveRefusal::Factor(factor));
    }
    let mut work = kernel.clone();
    let n = kernel.extents[var.0 as usize].clone();
    let k = IndexExpr::Const(factor);
    let piece = work.new_var(n.ceil_div(factor).simplify(kernel));
    let inside = work.new_var(k.clone());
    let first = IndexExpr::from(piece) * k.clone();
    // A piece that runs has an iteration.
    let left = IndexExpr::max(&IndexExpr::ONE, &IndexExpr::min(&k, &(n - first.clone())));
    let wide = side_by_side(&mut work, var, &own, factor)?;
    let defined = |s: &Stmt| match s {
        Stmt::Let { value, op } => Some((*value, op.clone())),
        _ => None,
    };
    let known = kernel.statements().filter_map(defined).collect();
    let mut made = Ok(Vec::new());
    rewrite(&mut work, var, &mut |kernel, bind, mut body| {
        let at = first.clone() + inside.into();
        substitute_in(kernel, &mut body, &mut |v| (v == var).then(|| at.clone()));
        let mut masks = Masks {
            var: inside,
            left: left.clone(),
            own: own.iter().map(|&i| Memory::Scratch(i)).collect(),
            known: FxHashMap::clone(&known),
            around: Vec::new(),
        };
        let (has, test) = masks.below(kernel, inside.into(), left.clone());
        let mut masked = masks.block(kernel, body, has);
        masked.splice(0..0, test);
        let body = match runs(kernel, masked, (inside, factor), (&own, &wide)) {
            Ok((body, loops)) => {
                made = Ok(loops);
                body
            }
            Err(refusal) => {
                made = Err(refusal);
                Vec::new()
            }
        };
        vec![Stmt::Loop { var: piece, bind, body }]
    });
    let mut loops = made?;
    loops.insert(0, piece);
    *kernel = work;
    Ok(loops)
}

/// Keeps iterations that a loop does not have from memory.
struct Masks {
    /// The iteration of a piece.
    var: VarId,
    /// Iterations that a piece has.
    left: IndexExpr,
    /// Registers, of which each iteration has its own.
    own: Vec<Memory>,
    known: FxHashMap<ValueId, Op>,
    /// Loops around what is looked at, inside of the piece.
    around: Vec<VarId>,
}

impl Masks {
    /// A value that says whether a number is below another one, and the statements that make it.
    fn below(&mut self, kernel: &mut Kernel, number: IndexExpr, end: IndexExpr) -> (ValueId, Vec<Stmt>) {
        let mut index = |e| (kernel.new_value(DType::I32), Op::Index(e, DType::I32));
        let (at, end) = (index(number), index(end));
        let args = smallvec::smallvec![at.0, end.0];
        let test = (kernel.new_value(DType::Bool), Op::Map(ScalarOp::Lt, args));
        let made = [at, end, test.clone()];
        self.known.extend(made.iter().cloned());
        (test.0, made.map(|(value, op)| Stmt::Let { value, op }).into())
    }

    /// The statements with masks on their accesses; `has` says whether an iteration is one of the loop's.
    fn block(&mut self, kernel: &mut Kernel, body: Vec<Stmt>, has: ValueId) -> Vec<Stmt> {
        let mut out = Vec::with_capacity(body.len());
        for mut s in body {
            if let Stmt::Let { value, op } = &s {
                self.known.insert(*value, op.clone());
            }
            if let Stmt::Loop { var, body, .. } = &mut s {
                self.around.push(*var);
                *body = self.block(kernel, std::mem::take(body), has);
                self.around.pop();
            }
            let (memory, index, mask, loads) = match &mut s {
                Stmt::Let {
                    op: Op::Load { memory, index, mask },
                    ..
                } => (*memory, index, mask, true),
                Stmt::Store {
                    memory, index, mask, ..
                } => (*memory, index, mask, false),
                _ => {
                    out.push(s);
                    continue;
                }
            };
            let free = self.own.contains(&memory) || !index.uses(self.var);
            if free || loads && mask.is_some_and(|m| self.keeps_inside(kernel, memory, index, m)) {
                out.push(s);
                continue;
            }
            let mut own = has;
            if loads
                && let Some((window, step)) = self.slides(kernel, index)
                && mask.is_none_or(|m| self.shifts(kernel, m, window, step))
            {
                let at = IndexExpr::from(self.var) * IndexExpr::Const(step) + window.into();
                let size = kernel.extents[window.0 as usize].clone();
                let end = (self.left.clone() - IndexExpr::ONE) * IndexExpr::Const(step) + size;
                let (reached, test) = self.below(kernel, at, end);
                out.extend(test);
                own = reached;
            }
            *mask = Some(match *mask {
                None => own,
                Some(before) => {
                    let both = kernel.new_value(DType::Bool);
                    let op = Op::Map(ScalarOp::And, smallvec::smallvec![before, own]);
                    self.known.insert(both, op.clone());
                    out.push(Stmt::Let { value: both, op });
                    both
                }
            });
            out.push(s);
        }
        out
    }

    /// Whether a condition is the same for an iteration and `window` as for the first one and that plus `step` for each iteration.
    fn shifts(&self, kernel: &Kernel, condition: ValueId, window: VarId, step: i64) -> bool {
        let shifted = |v: VarId| match v {
            v if v == self.var => Some(IndexExpr::ZERO),
            v if v == window => Some(IndexExpr::from(window) + IndexExpr::from(self.var) * IndexExpr::Const(step)),
            _ => None,
        };
        let mut open = vec![condition];
        while let Some(at) = open.pop() {
            match self.known.get(&at) {
                Some(Op::Const(_)) => {}
                Some(Op::Map(_, args)) => open.extend(args.iter().copied()),
                Some(Op::Index(e, _)) => {
                    if e.replace_vars(&mut |v| shifted(v)).simplify(kernel) != e.simplify(kernel) {
                        return false;
                    }
                }
                _ => return false,
            }
        }
        true
    }

    /// The loop over elements of a window that goes where iterations go, and how many of the elements it is from one iteration to the next.
    fn slides(&self, kernel: &Kernel, index: &IndexExpr) -> Option<(VarId, i64)> {
        let by = |v: VarId| index.affine_in(v).map(|(stride, _)| stride);
        let stride = by(self.var)?;
        self.around.iter().find_map(|&v| {
            let element = by(v).filter(|e| !e.is(0))?;
            let short = kernel.extents[v.0 as usize].as_const().is_some_and(|n| n >= 1);
            let apart = |step: &i64| {
                let both = stride.clone() - element.clone() * IndexExpr::Const(*step);
                both.simplify(kernel).is(0)
            };
            let step = (1..=MOST_ROWS_APART).find(apart).filter(|_| short)?;
            Some((v, step))
        })
    }

    /// Whether a load under a mask is inside its memory whatever the iteration is: the mask says of the numbers that its index is made of,
    /// and that change with the iteration, in which range they are.
    fn keeps_inside(&self, kernel: &Kernel, memory: Memory, index: &IndexExpr, mask: ValueId) -> bool {
        let mut ranges = Vec::new();
        self.ranges(kernel, mask, &mut ranges);
        let mut bounds = kernel.clone();
        let mut index = index.clone();
        for (at, end) in ranges {
            // A variable that is the number less something else.
            let mut vars = Vec::new();
            at.visit_atoms(&mut |n| {
                if let tlc_ir::index::IndexNode::Var(v) = n {
                    vars.push(*v);
                }
            });
            let found = vars.into_iter().find_map(|v| {
                let (stride, rest) = at.affine_in(v)?;
                (stride.is(1) && !end.uses(v) && !rest.uses(v)).then_some((v, rest))
            });
            let Some((v, rest)) = found else { continue };
            let number = bounds.new_var(end);
            let instead = IndexExpr::from(number) - rest;
            index = index.replace_vars(&mut |u| (u == v).then(|| instead.clone()));
        }
        let len = kernel.memory_len(memory);
        !index.uses(self.var) && index.proves_nonnegative(&bounds) && index.proves_less(len, &bounds)
    }

    /// Numbers that are at least 0 and below an end wherever a condition holds.
    fn ranges(&self, kernel: &Kernel, condition: ValueId, out: &mut Vec<(IndexExpr, IndexExpr)>) {
        let (mut limits, mut least) = (Vec::new(), Vec::new());
        let mut open = vec![condition];
        let number = |v: &ValueId| match self.known.get(v) {
            Some(Op::Index(e, DType::I32 | DType::I64)) => Some(e.clone()),
            Some(Op::Const(c)) if matches!(c.dtype(), DType::I32 | DType::I64) => IndexExpr::from_data(c.as_i64()),
            _ => None,
        };
        while let Some(at) = open.pop() {
            match self.known.get(&at) {
                Some(Op::Map(ScalarOp::And, args)) => open.extend(args.iter().copied()),
                Some(Op::Map(op @ (ScalarOp::Lt | ScalarOp::Le), args)) => {
                    let (Some(a), Some(b)) = (number(&args[0]), number(&args[1])) else {
                        continue;
                    };
                    let wide = kernel.dtype(args[0]) == DType::I64;
                    match op {
                        ScalarOp::Le if a.is(0) => least.push(b),
                        ScalarOp::Lt if wide || fits(kernel, &b) => limits.push((a, b, wide)),
                        _ => {}
                    }
                }
                _ => {}
            }
        }
        // One that 32 bits do not hold is a negative one to them, if it is not too large for that.
        let positive = |(e, _, wide): &(IndexExpr, IndexExpr, bool)| {
            let range = e.interval(kernel);
            let wraps = range.lo >= i64::from(i32::MIN) && range.hi <= i64::from(u32::MAX);
            match least.contains(e) {
                true => *wide || wraps,
                false => (*wide || fits(kernel, e)) && e.proves_nonnegative(kernel),
            }
        };
        out.extend(limits.into_iter().filter(positive).map(|(at, end, _)| (at, end)));
    }
}

/// Whether 32 bits hold a number.
fn fits(kernel: &Kernel, number: &IndexExpr) -> bool {
    let range = number.interval(kernel);
    range.lo >= i64::from(i32::MIN) && range.hi <= i64::from(i32::MAX)
}
