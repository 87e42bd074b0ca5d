//! Index expressions to i64 arithmetic and addresses.
//!
//! Invariants:
//! - Sums are emitted outermost loop first, so that the parts which do not change in a loop are one value that Cranelift
//!   hoists, and the innermost variable is added last, where x86 folds it into the address.
//! - The constant part becomes the offset of the load or store.
//! - Variables of unrolled loops are constants here; a lanes variable is one only in code for a single lane.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, Value, types};
use smallvec::SmallVec;
use tlc_ir::index::{IndexNode, Interval};
use tlc_ir::kernel::{Memory, ValueId};
use tlc_ir::{DType, IndexExpr, VarId};

use super::translate::{LaneLoop, MemoKey, Translator};
use super::values::Val;
use crate::error::{Result, invalid};

/// What a loop variable is bound to.
#[derive(Clone)]
pub(super) enum VarState {
    /// Not in scope.
    Unbound,
    /// An unrolled iteration.
    Const(i64),
    /// The variable of the lanes loop.
    Lane,
    /// A loop counter: itself, and multiplied by `unit`, whichever are kept.
    Counter {
        plain: Option<Value>,
        scaled: Option<(Value, i64)>,
        depth: u32,
    },
    /// A clamped value.
    Clamped { value: Value, depth: u32 },
    /// Clamped values, one per lane.
    ClampedLanes(SmallVec<[Value; 4]>),
}

/// An atom of a linear expression.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) enum Term {
    /// An expression that does not depend on the lane.
    Expr(IndexExpr),
    /// A value computed for the current lane.
    Value(Value),
}

/// How an expression depends on the lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LaneUse {
    /// Not at all.
    None,
    /// By a constant step from lane to lane.
    Affine(i64),
    /// Otherwise.
    General,
}

/// `constant + Σ coefficient * term` with unrolled variables folded.
pub(super) struct Resolved {
    pub constant: i64,
    pub terms: SmallVec<[(Term, i64); 4]>,
    pub lane: LaneUse,
}

impl Translator<'_, '_> {
    /// The constant that the expression is, with unrolled variables known.
    pub(super) fn constant(&mut self, e: &IndexExpr) -> Result<Option<i64>> {
        if let Some(c) = e.as_const() {
            return Ok(Some(c));
        }
        let r = self.resolve(e)?;
        Ok((r.terms.is_empty() && r.lane == LaneUse::None).then_some(r.constant))
    }

    /// How the expression depends on the lane.
    pub(super) fn lane_use(&mut self, e: &IndexExpr) -> Result<LaneUse> {
        Ok(self.resolve(e)?.lane)
    }

    /// The linear view under the current bindings.
    pub(super) fn resolve(&mut self, e: &IndexExpr) -> Result<Resolved> {
        let mut r = Resolved {
            constant: 0,
            terms: SmallVec::new(),
            lane: LaneUse::None,
        };
        self.flatten(e, 1, &mut r)?;
        if r.lane == LaneUse::Affine(0) {
            r.lane = LaneUse::None;
        }
        Ok(r)
    }

    fn current_lane(&self) -> Option<u32> {
        self.lanes.and_then(|l: LaneLoop| l.current)
    }

    fn flatten(&mut self, e: &IndexExpr, k: i64, out: &mut Resolved) -> Result<()> {
        let node = match e {
            IndexExpr::Const(c) => {
                out.constant = out.constant.wrapping_add(c.wrapping_mul(k));
                return Ok(());
            }
            IndexExpr::Node(n) => n,
        };
        match &**node {
            IndexNode::Sum { terms, constant, .. } => {
                out.constant = out.constant.wrapping_add(constant.wrapping_mul(k));
                for (t, c) in terms {
                    self.flatten(t, c.wrapping_mul(k), out)?;
                }
            }
            IndexNode::Sym(_) => push(out, Term::Expr(e.clone()), k),
            IndexNode::Var(v) => match (&self.vars[v.0 as usize], self.current_lane()) {
                (VarState::Const(c), _) => out.constant = out.constant.wrapping_add(c.wrapping_mul(k)),
                (VarState::Lane, Some(lane)) => {
                    out.constant = out.constant.wrapping_add((lane as i64).wrapping_mul(k));
                }
                (VarState::Lane, None) => {
                    out.lane = match out.lane {
                        LaneUse::None => LaneUse::Affine(k),
                        LaneUse::Affine(step) => LaneUse::Affine(step.wrapping_add(k)),
                        LaneUse::General => LaneUse::General,
                    }
                }
                (VarState::ClampedLanes(values), Some(lane)) => {
                    let v = values[lane as usize];
                    push(out, Term::Value(v), k);
                }
                (VarState::ClampedLanes(_), None) => out.lane = LaneUse::General,
                (VarState::Counter { .. } | VarState::Clamped { .. }, _) => push(out, Term::Expr(e.clone()), k),
                (VarState::Unbound, _) => return invalid(format!("loop variable {} is used outside its loop", v.0)),
            },
            IndexNode::Product(_)
            | IndexNode::FloorDiv(..)
            | IndexNode::Mod(..)
            | IndexNode::Min(..)
            | IndexNode::Max(..) => {
                let (mut known, mut per_lane, mut unbound) = (false, false, None);
                let lane = self.current_lane();
                e.visit_atoms(&mut |n| {
                    if let IndexNode::Var(v) = n {
                        match &self.vars[v.0 as usize] {
                            VarState::Const(_) => known = true,
                            VarState::Lane if lane.is_some() => known = true,
                            VarState::Lane | VarState::ClampedLanes(_) => per_lane = true,
                            VarState::Unbound => unbound = Some(v.0),
                            _ => {}
                        }
                    }
                });
                if let Some(v) = unbound {
                    return invalid(format!("loop variable {v} is used outside its loop"));
                }
                if known {
                    let folded = e.replace_vars(&mut |v| match self.vars[v.0 as usize] {
                        VarState::Const(c) => Some(IndexExpr::Const(c)),
                        VarState::Lane => lane.map(|l| IndexExpr::Const(l as i64)),
                        _ => None,
                    });
                    // A product with a constant may have become linear in the lane.
                    return self.flatten(&folded, k, out);
                }
                match (per_lane, lane) {
                    (false, _) => push(out, Term::Expr(e.clone()), k),
                    (true, None) => out.lane = LaneUse::General,
                    (true, Some(_)) => {
                        let v = self.eval_node(node)?;
                        push(out, Term::Value(v), k);
                    }
                }
            }
        }
        Ok(())
    }

    /// The loop depth at which a term changes.
    fn term_depth(&self, term: &Term) -> u32 {
        let mut depth = 0;
        match term {
            Term::Value(_) => depth = u32::MAX,
            Term::Expr(e) => e.visit_atoms(&mut |n| {
                if let IndexNode::Var(v) = n {
                    depth = depth.max(match &self.vars[v.0 as usize] {
                        VarState::Counter { depth, .. } | VarState::Clamped { depth, .. } => *depth,
                        _ => 0,
                    });
                }
            }),
        }
        depth
    }

    /// The i64 value of an expression that does not depend on the lane (or, in code for one lane, that lane's).
    pub(super) fn eval(&mut self, e: &IndexExpr) -> Result<Value> {
        let mut r = self.resolve(e)?;
        if r.lane != LaneUse::None {
            return invalid("an index that depends on the lane where it may not");
        }
        self.sort_terms(&mut r);
        let mut sum = None;
        for (term, k) in &r.terms {
            let v = self.term_times(term, *k, 1)?;
            sum = Some(match sum {
                None => v,
                Some(s) => self.b.ins().iadd(s, v),
            });
        }
        Ok(match sum {
            None => self.b.ins().iconst(types::I64, r.constant),
            Some(s) => self.add_const(s, r.constant),
        })
    }

    fn sort_terms(&self, r: &mut Resolved) {
        if r.terms.len() > 1 {
            r.terms.sort_by_key(|(t, _)| self.term_depth(t));
        }
    }

    /// `term * k * scale`; a loop counter that is kept scaled is used where it divides.
    fn term_times(&mut self, term: &Term, k: i64, scale: i64) -> Result<Value> {
        let mut k = k.wrapping_mul(scale);
        let v = match term {
            Term::Value(v) => *v,
            Term::Expr(e) => {
                let mut counter = None;
                if let Some(var) = e.as_var()
                    && let VarState::Counter {
                        scaled: Some((v, unit)),
                        ..
                    } = self.vars[var.0 as usize]
                    && k % unit == 0
                {
                    counter = Some((v, k / unit));
                }
                match counter {
                    Some((v, rest)) => {
                        k = rest;
                        v
                    }
                    None => self.eval_term(e)?,
                }
            }
        };
        Ok(self.times(v, k))
    }

    fn times(&mut self, v: Value, k: i64) -> Value {
        match k {
            1 => v,
            k if k > 0 && k & (k - 1) == 0 => self.b.ins().ishl_imm_u(v, k.trailing_zeros() as i64),
            k => self.b.ins().imul_imm_s(v, k),
        }
    }

    /// A symbol, a variable or a nonlinear expression.
    fn eval_term(&mut self, e: &IndexExpr) -> Result<Value> {
        let IndexExpr::Node(node) = e else {
            return Ok(self.int(types::I64, e.as_const().unwrap_or(0)));
        };
        match &**node {
            IndexNode::Sym(s) => self
                .symbols
                .get(s.0 as usize)
                .map_or_else(|| invalid(format!("unknown symbol {}", s.0)), |v| Ok(*v)),
            IndexNode::Var(v) => self.counter(*v),
            _ => {
                let key = MemoKey::Index(e.clone());
                if let Some(v) = self.memo_get(&key) {
                    return Ok(v);
                }
                let v = self.eval_node(node)?;
                self.memo_put(key, v);
                Ok(v)
            }
        }
    }

    fn counter(&mut self, var: VarId) -> Result<Value> {
        match self.vars[var.0 as usize] {
            VarState::Counter { plain: Some(v), .. } | VarState::Clamped { value: v, .. } => Ok(v),
            VarState::Counter {
                scaled: Some((v, unit)),
                ..
            } => {
                let unit = self.int(types::I64, unit);
                Ok(self.b.ins().udiv(v, unit))
            }
            _ => invalid(format!("loop variable {} is used outside its loop", var.0)),
        }
    }

    fn eval_node(&mut self, node: &IndexNode) -> Result<Value> {
        Ok(match node {
            IndexNode::Product(factors) => {
                let mut ordered: SmallVec<[(u32, Value); 4]> = SmallVec::new();
                for f in factors {
                    let v = self.eval(f)?;
                    ordered.push((self.term_depth(&Term::Expr(f.clone())), v));
                }
                ordered.sort_by_key(|(depth, _)| *depth);
                let mut product = ordered[0].1;
                for (_, v) in &ordered[1..] {
                    product = self.b.ins().imul(product, *v);
                }
                product
            }
            IndexNode::FloorDiv(a, b) => self.floor_div(a, b)?.0,
            IndexNode::Mod(a, b) => self.floor_div(a, b)?.1,
            IndexNode::Min(a, b) | IndexNode::Max(a, b) => {
                let (a, b) = (self.eval(a)?, self.eval(b)?);
                let cc = if matches!(node, IndexNode::Min(..)) {
                    IntCC::SignedLessThan
                } else {
                    IntCC::SignedGreaterThan
                };
                self.pick(cc, a, b)
            }
            _ => return invalid("an index expression that is not in normal form"),
        })
    }

    /// `a cc b ? a : b`.
    fn pick(&mut self, cc: IntCC, a: Value, b: Value) -> Value {
        let c = self.b.ins().icmp(cc, a, b);
        self.b.ins().select(c, a, b)
    }

    /// Floored quotient and remainder; a divisor below 1 counts as 1, since it can only occur where nothing runs.
    fn floor_div(&mut self, a: &IndexExpr, b: &IndexExpr) -> Result<(Value, Value)> {
        let (x, y): (Interval, Interval) = (a.interval(self.kernel), b.interval(self.kernel));
        let n = self.eval(a)?;
        if let Some(d) = self.constant(b)?.filter(|d| *d > 0 && d & (d - 1) == 0) {
            let quotient = self.b.ins().sshr_imm_u(n, d.trailing_zeros() as i64);
            return Ok((quotient, self.b.ins().band_imm_s(n, d - 1)));
        }
        let mut d = self.eval(b)?;
        if y.lo < 1 {
            let one = self.int(types::I64, 1);
            d = self.pick(IntCC::SignedGreaterThan, d, one);
        }
        if x.lo >= 0 {
            // 32-bit division is several times faster than 64-bit on most x86 machines.
            if x.hi <= u32::MAX as i64 && y.hi <= u32::MAX as i64 {
                let (n, d) = (self.b.ins().ireduce(types::I32, n), self.b.ins().ireduce(types::I32, d));
                let (q, r) = (self.b.ins().udiv(n, d), self.b.ins().urem(n, d));
                return Ok((self.b.ins().uextend(types::I64, q), self.b.ins().uextend(types::I64, r)));
            }
            return Ok((self.b.ins().udiv(n, d), self.b.ins().urem(n, d)));
        }
        let (q, r) = (self.b.ins().sdiv(n, d), self.b.ins().srem(n, d));
        let negative = self.b.ins().icmp_imm_s(IntCC::SignedLessThan, r, 0);
        let (q_less, r_more) = (self.b.ins().iadd_imm_s(q, -1), self.b.ins().iadd(r, d));
        Ok((
            self.b.ins().select(negative, q_less, q),
            self.b.ins().select(negative, r_more, r),
        ))
    }

    /// Base and byte offset of an element; the index must not depend on the lane but by `Affine` (lane 0's then).
    pub(super) fn address(&mut self, memory: Memory, r: &mut Resolved) -> Result<(Value, i64)> {
        self.sort_terms(r);
        let bytes = self.kernel.memory_dtype(memory).bytes() as i64;
        let area = self.area(memory)?;
        let offset = r.constant.wrapping_mul(bytes);
        let key = MemoKey::Address(memory, r.terms.clone());
        if let Some(base) = self.memo_get(&key) {
            return Ok((base, offset));
        }
        let mut base = area.base;
        let mut for_one_lane = false;
        for (term, k) in &r.terms {
            for_one_lane |= matches!(term, Term::Value(_));
            let v = self.term_times(term, *k, bytes)?;
            base = self.b.ins().iadd(base, v);
        }
        if !for_one_lane {
            self.memo_put(key, base);
        }
        Ok((base, offset))
    }

    /// A base and an offset that fits the instruction, for byte offsets `offset..offset + span`.
    pub(super) fn fit_offset(&mut self, base: Value, offset: i64, span: i64) -> (Value, i32) {
        match (i32::try_from(offset), i32::try_from(offset.saturating_add(span))) {
            (Ok(offset), Ok(_)) => (base, offset),
            _ => (self.add_const(base, offset), 0),
        }
    }

    /// `var = max(0, min(value, extent - 1))`.
    pub(super) fn clamp(&mut self, var: VarId, id: ValueId) -> Result<()> {
        let value = self.value(id)?;
        let extent = self.kernel.extents[var.0 as usize].clone();
        if self.kernel.dtype(id) != DType::I64 {
            return invalid("clamp of a value that is not i64");
        }
        let depth = self.depth;
        let state = match value {
            Val::Const(_) | Val::Scalar(_) => {
                let v = self.scalar(&value, DType::I64, 0);
                VarState::Clamped {
                    value: self.clamp_one(v, &extent)?,
                    depth,
                }
            }
            _ => {
                let mut lanes = SmallVec::new();
                for lane in 0..self.lane_count() {
                    let v = self.scalar(&value, DType::I64, lane);
                    let v = self.in_lane(lane, |t| t.clamp_one(v, &extent))?;
                    lanes.push(v);
                }
                VarState::ClampedLanes(lanes)
            }
        };
        self.vars[var.0 as usize] = state;
        Ok(())
    }

    fn clamp_one(&mut self, v: Value, extent: &IndexExpr) -> Result<Value> {
        let last = self.eval(&(extent.clone() - IndexExpr::ONE))?;
        let v = self.pick(IntCC::SignedLessThan, v, last);
        let zero = self.int(types::I64, 0);
        Ok(self.pick(IntCC::SignedGreaterThan, v, zero))
    }
}

fn push(out: &mut Resolved, term: Term, k: i64) {
    match out.terms.iter_mut().find(|(t, _)| *t == term) {
        Some((_, coefficient)) => *coefficient = coefficient.wrapping_add(k),
        None => out.terms.push((term, k)),
    }
    out.terms.retain(|(_, k)| *k != 0);
}
