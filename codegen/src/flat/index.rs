//! Index expressions to index arithmetic and addresses.
//!
//! Invariants:
//! - Sums name the terms of outer loops first, and what does not change in a loop is a sum of its own in front of it.
//! - Variables of unrolled loops are constants here; a lanes variable is one only in code for a single lane.

use smallvec::SmallVec;
use tlc_ir::index::IndexNode;
use tlc_ir::kernel::{Memory, Scope, ValueId};
use tlc_ir::target::BYTE_TABLE;
use tlc_ir::{DType, IndexExpr, Scalar, ScalarOp, VarId};

use super::build::{Builder, Val};
use super::{Address, Op, Value, Varies, range};
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
    /// A loop's counter, or a clamped value.
    Value(Value),
    /// Clamped values, one per lane.
    Each(SmallVec<[Value; 4]>),
    /// Clamped values, in the lanes of an i32 vector that is made where something is gathered by them.
    Lanes(Clamped),
}

/// Data of each lane that an access clamps.
#[derive(Clone)]
pub(super) struct Clamped {
    /// The data.
    pub data: Val,
    /// The largest index, where lanes begin.
    pub last: Value,
    /// The clamped numbers.
    pub lanes: Value,
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
    pub terms: SmallVec<[(Value, i64); 4]>,
    pub lane: LaneUse,
}

impl Builder<'_, '_> {
    /// The constant that the expression is, with unrolled variables known.
    pub(super) fn known_index(&mut self, e: &IndexExpr) -> Result<Option<i64>> {
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
        self.flatten_index(e, 1, &mut r)?;
        if r.lane == LaneUse::Affine(0) {
            r.lane = LaneUse::None;
        }
        Ok(r)
    }

    fn flatten_index(&mut self, e: &IndexExpr, k: i64, out: &mut Resolved) -> Result<()> {
        let node = match e {
            IndexExpr::Const(c) => {
                out.constant = out.constant.wrapping_add(c.wrapping_mul(k));
                return Ok(());
            }
            IndexExpr::Node(n) => n,
        };
        let lane = self.lanes.and_then(|l| l.current);
        match &**node {
            IndexNode::Sum { terms, constant, .. } => {
                out.constant = out.constant.wrapping_add(constant.wrapping_mul(k));
                for (t, c) in terms {
                    self.flatten_index(t, c.wrapping_mul(k), out)?;
                }
            }
            IndexNode::Sym(s) => {
                if s.0 as usize >= self.kernel.symbols.len() {
                    return invalid(format!("unknown symbol {}", s.0));
                }
                let v = self.shared(Op::Symbol(s.0), DType::I64, 1);
                self.narrow(v, e.interval(self.kernel));
                add(out, v, k);
            }
            IndexNode::Var(v) => match (&self.vars[v.0 as usize], lane) {
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
                (VarState::Each(values), Some(lane)) => add(out, values[lane as usize], k),
                (VarState::Each(_) | VarState::Lanes(_), None) => out.lane = LaneUse::General,
                (VarState::Lanes(_), Some(lane)) => {
                    let one = self.clamped_lane(*v, lane)?;
                    add(out, one, k);
                }
                (VarState::Value(v), _) => add(out, *v, k),
                (VarState::Unbound, _) => return invalid(format!("loop variable {} is used outside its loop", v.0)),
            },
            IndexNode::Product(_)
            | IndexNode::FloorDiv(..)
            | IndexNode::Mod(..)
            | IndexNode::Min(..)
            | IndexNode::Max(..) => {
                let (mut known, mut per_lane, mut unbound) = (false, false, None);
                e.visit_atoms(&mut |n| {
                    if let IndexNode::Var(v) = n {
                        match &self.vars[v.0 as usize] {
                            VarState::Const(_) => known = true,
                            VarState::Lane if lane.is_some() => known = true,
                            VarState::Lane | VarState::Each(_) | VarState::Lanes(_) => per_lane = true,
                            VarState::Unbound => unbound = Some(v.0),
                            VarState::Value(_) => {}
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
                    return self.flatten_index(&folded, k, out);
                }
                match (per_lane, lane) {
                    (true, None) => out.lane = LaneUse::General,
                    _ => {
                        let v = self.nonlinear(node)?;
                        add(out, v, k);
                    }
                }
            }
        }
        Ok(())
    }

    /// The i64 value of an expression that does not depend on the lane (or, in code for one lane, that lane's).
    pub(super) fn eval(&mut self, e: &IndexExpr) -> Result<Value> {
        let r = self.resolve(e)?;
        if r.lane != LaneUse::None {
            return invalid("an index that depends on the lane where it may not");
        }
        Ok(self.sum(r.terms, r.constant))
    }

    /// A sum; what does not change in the innermost loop that some term changes in is a sum of its own.
    fn sum(&mut self, mut terms: SmallVec<[(Value, i64); 4]>, constant: i64) -> Value {
        terms.sort_by_key(|(v, _)| self.level(*v));
        match terms[..] {
            [] => return self.number(constant),
            [(v, 1)] if constant == 0 => return v,
            _ => {}
        }
        let level = |b: &Self, v: Value| b.home(b.level(v));
        let here = terms.last().map_or(0, |t| level(self, t.0));
        let outer = terms.iter().take_while(|t| level(self, t.0) < here).count();
        let mut all: SmallVec<[(Value, i64); 2]> = SmallVec::new();
        match terms[..outer] {
            [] => {}
            [one @ (_, 1)] => all.push(one),
            _ => {
                let inner = terms.drain(outer..).collect::<SmallVec<[(Value, i64); 4]>>();
                let outer = std::mem::replace(&mut terms, inner);
                let outer = self.sum(outer, 0);
                return self.sum_of([(outer, 1)].into_iter().chain(terms).collect(), constant);
            }
        }
        all.extend(terms.drain(outer..));
        self.sum_of(all, constant)
    }

    fn sum_of(&mut self, terms: SmallVec<[(Value, i64); 2]>, constant: i64) -> Value {
        let range = range::sum(terms.iter().map(|(v, k)| (self.range(*v), *k)), constant);
        self.index(Op::Sum { terms, constant }, range)
    }

    fn nonlinear(&mut self, node: &IndexNode) -> Result<Value> {
        Ok(match node {
            IndexNode::Product(factors) => {
                let mut all: SmallVec<[Value; 2]> = SmallVec::new();
                for f in factors {
                    all.push(self.eval(f)?);
                }
                all.sort_by_key(|v| self.level(*v));
                let range = range::product(all.iter().map(|v| self.range(*v)));
                self.index(Op::Product(all), range)
            }
            IndexNode::FloorDiv(a, b) | IndexNode::Mod(a, b) => {
                let (x, y) = (self.eval(a)?, self.eval(b)?);
                self.narrow(x, a.interval(self.kernel));
                self.narrow(y, b.interval(self.kernel));
                let (m, n) = (self.range(x), self.range(y));
                match node {
                    IndexNode::FloorDiv(..) => self.index(Op::FloorDiv(x, y), range::quotient(m, n)),
                    _ => self.index(Op::FloorMod(x, y), range::remainder(m, n)),
                }
            }
            IndexNode::Min(a, b) => {
                let (a, b) = (self.eval(a)?, self.eval(b)?);
                let range = range::smaller(self.range(a), self.range(b));
                self.index(Op::Smaller(a, b), range)
            }
            IndexNode::Max(a, b) => {
                let (a, b) = (self.eval(a)?, self.eval(b)?);
                let range = range::larger(self.range(a), self.range(b));
                self.index(Op::Larger(a, b), range)
            }
            IndexNode::Sym(_) | IndexNode::Var(_) | IndexNode::Sum { .. } => {
                return invalid("an index expression that is not in normal form");
            }
        })
    }

    /// The element; the index must not depend on the lane but by `Affine` (lane 0's then).
    pub(super) fn address(&mut self, memory: Memory, r: &Resolved) -> Address {
        let (uniform, varying): (SmallVec<[_; 4]>, SmallVec<[_; 4]>) = r
            .terms
            .iter()
            .copied()
            .partition(|t| self.info(t.0).varies.is_uniform());
        let part = |b: &mut Self, terms: SmallVec<[(Value, i64); 4]>| (!terms.is_empty()).then(|| b.sum(terms, 0));
        Address {
            memory,
            uniform: part(self, uniform),
            varying: part(self, varying),
            constant: r.constant,
        }
    }

    /// The element that an expression names.
    pub(super) fn element(&mut self, memory: Memory, index: &IndexExpr) -> Result<Address> {
        let r = self.resolve(index)?;
        Ok(self.address(memory, &r))
    }

    /// `var = max(0, min(value, extent - 1))`.
    pub(super) fn clamp(&mut self, var: VarId, id: ValueId) -> Result<()> {
        let value = self.value(id)?;
        let last = self.kernel.extents[var.0 as usize].clone() - IndexExpr::ONE;
        let from = self.kernel.dtype(id);
        if !matches!(from, DType::I64 | DType::I32) {
            return invalid("clamp of a value that is neither i64 nor i32");
        }
        if let Some(lanes) = self.clamped_lanes(var, from, &value)? {
            self.vars[var.0 as usize] = VarState::Lanes(lanes);
            return Ok(());
        }
        let value = self.convert(from, DType::I64, &value)?;
        let clamped = |b: &mut Self, data: Value| -> Result<Value> {
            let last = b.eval(&last)?;
            let v = b.shared(Op::Clamp { data, last }, DType::I64, 1);
            b.narrow(v, IndexExpr::from(var).interval(b.kernel));
            Ok(v)
        };
        self.vars[var.0 as usize] = match value {
            Val::Const(_) | Val::One(_) => {
                let data = self.scalar(&value, 0);
                VarState::Value(clamped(self, data)?)
            }
            Val::Vector(_) | Val::Each(_) => {
                let mut lanes = SmallVec::new();
                for lane in 0..self.lane_count() {
                    let data = self.scalar(&value, lane);
                    lanes.push(self.in_lane(lane, |b| clamped(b, data))?);
                }
                VarState::Each(lanes)
            }
        };
        Ok(())
    }

    /// Data of all lanes as indices of 32 bits, if the emitter gathers by such and the variable has no more values.
    fn clamped_lanes(&mut self, var: VarId, from: DType, value: &Val) -> Result<Option<Clamped>> {
        let extent = &self.kernel.extents[var.0 as usize];
        let most = extent.interval(self.kernel).hi;
        let gathers = self.has.gathers_lanes(DType::I32) && self.fits(from) && self.fits(DType::I32);
        if !value.varies() || !gathers || most > i64::from(i32::MAX) {
            return Ok(None);
        }
        let last = extent.clone() - IndexExpr::ONE;
        if self.lane_use(&last)? != LaneUse::None {
            return Ok(None);
        }
        let last = self.eval(&last)?;
        let limit = self.known_value(last);
        let limit = self.convert(DType::I64, from, &limit)?;
        let below = self.map(ScalarOp::Min, from, &[value.clone(), limit])?;
        let within = self.map(ScalarOp::Max, from, &[below, Val::Const(from.zero())])?;
        let within = self.convert(from, DType::I32, &within)?;
        let lanes = self.vector(&within);
        let data = value.clone();
        Ok(Some(Clamped { data, last, lanes }))
    }

    /// The clamped index of one lane.
    fn clamped_lane(&mut self, var: VarId, lane: u32) -> Result<Value> {
        let VarState::Lanes(Clamped { data, last, .. }) = self.vars[var.0 as usize].clone() else {
            return invalid(format!("variable {} is not in lanes", var.0));
        };
        let data = self.scalar(&data, lane);
        let data = match self.dtype(data) {
            DType::I64 => data,
            _ => self.shared(Op::Convert(data), DType::I64, 1),
        };
        let v = self.shared(Op::Clamp { data, last }, DType::I64, 1);
        self.narrow(v, IndexExpr::from(var).interval(self.kernel));
        Ok(v)
    }

    /// The elements that an index names whose lanes go by clamped data: what they count from, and how far each is behind it, if 32
    /// bits hold that. The rest of the index is linear in the lane.
    pub(super) fn gathered(&mut self, memory: Memory, index: &IndexExpr) -> Result<Option<(Address, Value)>> {
        if let Some(found) = self.looked_up(memory, index)? {
            return Ok(Some(found));
        }
        let dtype = self.kernel.memory_dtype(memory);
        let plain = matches!(memory, Memory::Param(_)) && self.has.gathers_lanes(dtype);
        if !plain || !self.fits(dtype) || !self.fits(DType::I32) {
            return Ok(None);
        }
        let mut by_data: SmallVec<[(VarId, i64); 4]> = SmallVec::new();
        let vars = &self.vars;
        let mut take = |e: &IndexExpr, k: i64| match e.as_var() {
            Some(v) if matches!(vars[v.0 as usize], VarState::Lanes(_)) => {
                by_data.push((v, k));
                true
            }
            _ => false,
        };
        let rest = match index {
            IndexExpr::Node(n) => match &**n {
                IndexNode::Sum { terms, constant, .. } => {
                    let mut rest = IndexExpr::Const(*constant);
                    for (t, k) in terms {
                        if !take(t, *k) {
                            rest = rest + t.clone() * IndexExpr::Const(*k);
                        }
                    }
                    rest
                }
                _ if take(index, 1) => IndexExpr::ZERO,
                _ => return Ok(None),
            },
            IndexExpr::Const(_) => return Ok(None),
        };
        let r = self.resolve(&rest)?;
        let step = match r.lane {
            LaneUse::None => 0,
            LaneUse::Affine(step) => step,
            LaneUse::General => return Ok(None),
        };
        // All numbers on the way must fit, whatever the data.
        let count = i64::from(self.lane_count());
        let mut most = step.unsigned_abs().saturating_mul(count as u64);
        for (v, k) in &by_data {
            let hi = IndexExpr::from(*v).interval(self.kernel).hi.max(0) as u64;
            most = most.saturating_add(hi.saturating_mul(k.unsigned_abs()));
        }
        if by_data.is_empty() || most > i32::MAX as u64 {
            return Ok(None);
        }
        let mut at: Option<Val> = None;
        for (v, k) in by_data {
            let VarState::Lanes(Clamped { lanes, .. }) = &self.vars[v.0 as usize] else {
                continue;
            };
            let mut term = Val::Vector(*lanes);
            let amount = |n: i64| Val::Const(Scalar::from_i64(DType::I32, n));
            if k != 1 {
                term = match k > 0 && k & (k - 1) == 0 {
                    true => self.map(
                        ScalarOp::Shl,
                        DType::I32,
                        &[term, amount(i64::from(k.trailing_zeros()))],
                    )?,
                    false => self.map(ScalarOp::Mul, DType::I32, &[term, amount(k)])?,
                };
            }
            at = Some(match at {
                None => term,
                Some(sum) => self.map(ScalarOp::Add, DType::I32, &[sum, term])?,
            });
        }
        let Some(mut at) = at else { return Ok(None) };
        if step != 0 {
            let first = self.constant(DType::I32.zero());
            let series = self.of_lanes(Op::Series { first, step }, DType::I32, count as u32);
            at = self.map(ScalarOp::Add, DType::I32, &[at, Val::Vector(series)])?;
        }
        let at = self.vector(&at);
        Ok(Some((self.address(memory, &r), at)))
    }

    /// As [`Self::gathered`], of bytes in a table of as many as a byte numbers, if the emitter picks these from registers. All bits of such a number but the
    /// low ones are zero.
    fn looked_up(&mut self, memory: Memory, index: &IndexExpr) -> Result<Option<(Address, Value)>> {
        let (Memory::Param(p), Some(v)) = (memory, index.as_var()) else {
            return Ok(None);
        };
        let param = &self.kernel.params[p as usize];
        let whole = param.len.is(BYTE_TABLE) && self.kernel.extents[v.0 as usize].is(BYTE_TABLE);
        let of_bytes = matches!(param.dtype, DType::U8 | DType::I8);
        let VarState::Lanes(Clamped { data, lanes, .. }) = &self.vars[v.0 as usize] else {
            return Ok(None);
        };
        if !whole || !of_bytes || !self.has.looks_bytes_up() || !self.fits(DType::I32) {
            return Ok(None);
        }
        // A byte needs no clamping.
        let is_byte = |data: Value| matches!(self.info(data).op, Op::Convert(x) if self.dtype(x) == DType::U8);
        let at = match data {
            Val::Vector(data) if self.dtype(*data) == DType::I32 && is_byte(*data) => *data,
            _ => *lanes,
        };
        let r = self.resolve(&IndexExpr::ZERO)?;
        Ok(Some((self.address(memory, &r), at)))
    }

    /// The value of [`tlc_ir::kernel::Op::Index`].
    pub(super) fn index_value(&mut self, index: &IndexExpr, to: DType) -> Result<Val> {
        let lane = self.lane_use(index)?;
        if let (LaneUse::None, Some(c)) = (lane, index.as_const()) {
            return Ok(Val::Const(Scalar::from_i64(to, c)));
        }
        if lane == LaneUse::None {
            let v = self.eval(index)?;
            let v = self.known_value(v);
            return self.convert(DType::I64, to, &v);
        }
        let LaneUse::Affine(step) = lane else {
            let mut lanes = SmallVec::new();
            self.each_lane(|b| {
                let v = b.eval(index)?;
                lanes.push(v);
                Ok(())
            })?;
            return match self.numbers_apart(&lanes, index, to)? {
                Some(v) => Ok(v),
                None => self.convert(DType::I64, to, &Val::Each(lanes)),
            };
        };
        let first = self.in_lane(0, |b| b.eval(index))?;
        let count = self.lane_count();
        if let Some(through) = self.added_as(index, to) {
            let first = self.known_value(first);
            let first = self.convert(DType::I64, through, &first)?;
            let first = self.scalar(&first, 0);
            let series = self.of_lanes(Op::Series { first, step }, through, count);
            return self.added(through, to, &Val::Vector(series));
        }
        let mut lanes = SmallVec::new();
        for lane in 0..count as i64 {
            let terms = SmallVec::from_slice(&[(first, 1)]);
            lanes.push(self.sum(terms, lane.wrapping_mul(step)));
        }
        self.convert(DType::I64, to, &Val::Each(lanes))
    }

    /// The dtype in which lanes of an index are added, if they fit it: one splat and one addition for all of them.
    fn added_as(&self, index: &IndexExpr, to: DType) -> Option<DType> {
        let range = index.interval(self.kernel);
        let small = range.lo >= i32::MIN as i64 && range.hi <= i32::MAX as i64;
        let through = match to {
            DType::F32 | DType::I32 | DType::U32 if small && self.fits(DType::I32) => Some(DType::I32),
            DType::I64 | DType::U64 => Some(DType::I64),
            d if d.is_int() => Some(d),
            _ => None,
        };
        through.filter(|d| self.fits(*d))
    }

    /// What was added in `through`, in the dtype of the index.
    fn added(&mut self, through: DType, to: DType, sum: &Val) -> Result<Val> {
        match to {
            DType::F32 => self.convert(DType::I32, to, sum),
            _ => self.bitcast(through, to, sum),
        }
    }

    /// Indices of lanes that are numbers apart, as of an image whose elements lie in several others in turn: the first lane's and a vector of numbers.
    fn numbers_apart(&mut self, lanes: &[Value], index: &IndexExpr, to: DType) -> Result<Option<Val>> {
        let sum = |v: Value| match &self.info(v).op {
            Op::Sum { terms, constant } => (terms.clone(), *constant),
            Op::Const(c) => (SmallVec::new(), c.as_i64()),
            _ => (SmallVec::from_slice(&[(v, 1)]), 0),
        };
        let (terms, first) = sum(lanes[0]);
        let mut apart: SmallVec<[i64; 16]> = SmallVec::new();
        for &lane in lanes {
            let (others, constant) = sum(lane);
            if others != terms {
                return Ok(None);
            }
            apart.push(constant.wrapping_sub(first));
        }
        let Some(through) = self.added_as(index, to) else {
            return Ok(None);
        };
        let first = self.known_value(lanes[0]);
        let first = self.convert(DType::I64, through, &first)?;
        let numbers = apart
            .iter()
            .map(|&n| self.constant(Scalar::from_i64(through, n)))
            .collect();
        let numbers = self.of_lanes(Op::Pack(numbers), through, lanes.len() as u32);
        let sum = self.map(ScalarOp::Add, through, &[first, Val::Vector(numbers)])?;
        self.added(through, to, &sum).map(Some)
    }

    /// Whether each thread, or whatever runs the kernel, has a memory of its own.
    pub(super) fn is_own(&self, memory: Memory) -> bool {
        match memory {
            Memory::Param(_) => false,
            Memory::Scratch(i) => match self.kernel.scratch[i as usize].scope {
                Scope::Register | Scope::Cache | Scope::Thread => true,
                Scope::Shared | Scope::WarpFragment | Scope::BlockFragment => false,
            },
        }
    }

    /// With which bound loops an index of a loop of that extent varies.
    pub(super) fn counts_with(&self, extent: Value, own: Varies) -> Varies {
        self.info(extent).varies.and(own)
    }
}

fn add(out: &mut Resolved, term: Value, k: i64) {
    match out.terms.iter_mut().find(|(t, _)| *t == term) {
        Some((_, coefficient)) => *coefficient = coefficient.wrapping_add(k),
        None => out.terms.push((term, k)),
    }
    out.terms.retain(|(_, k)| *k != 0);
}
