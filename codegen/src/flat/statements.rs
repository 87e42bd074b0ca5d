//! The walk over a kernel's statements.

use smallvec::SmallVec;
use tlc_ir::index::Interval;
use tlc_ir::kernel::{Bind, CopyNest, Group, MAX_STATEMENTS, Memory, Op as KernelOp, Stmt, ValueId, visit};
use tlc_ir::scalar::ScalarOp;
use tlc_ir::target::{Support, Width};
use tlc_ir::{DType, IndexExpr, Kernel, Scalar, VarId};

use super::build::{Builder, LaneLoop, Val};
use super::index::VarState;
use super::{BlockCopy, Carry, If, IfKind, Item, Loop, LoopKind, Merge, Op, Value, Varies, range};
use crate::error::{CodegenError, Result, invalid, unsupported};

/// Iterations of a lanes loop.
const LANE_LIMIT: u32 = 64;

impl<'k> Builder<'k, '_> {
    fn count_statement(&mut self) -> Result<()> {
        self.statements += 1;
        if self.statements > MAX_STATEMENTS {
            return Err(CodegenError::TooLarge { limit: MAX_STATEMENTS });
        }
        Ok(())
    }

    /// Lowers statements in order.
    pub(super) fn block(&mut self, body: &'k [Stmt], outermost: bool) -> Result<()> {
        for stmt in body {
            self.count_statement()?;
            match stmt {
                Stmt::Let { value, op } => {
                    let v = self.op(op, *value)?;
                    self.bound[value.0 as usize] = Some(v);
                }
                Stmt::Store {
                    memory,
                    index,
                    value,
                    mask,
                } => {
                    let v = self.value(*value)?;
                    let m = mask.map(|m| self.value(m)).transpose()?;
                    self.store(*memory, index, &v, m.as_ref())?;
                }
                Stmt::Loop { var, .. } if self.tiles.contains_key(var) => {
                    if let Some(tile) = self.tiles.remove(var) {
                        self.copy_tile(&tile)?;
                        self.tiles.insert(*var, tile);
                    }
                }
                Stmt::Loop { var, bind, body } => self.loop_stmt(*var, *bind, body, outermost)?,
                Stmt::If { cond, body } => {
                    let cond = self.value(*cond)?;
                    self.if_stmt(&cond, body)?;
                }
                Stmt::Clamp { var, value } => self.clamp(*var, *value)?,
                Stmt::Accumulate { monoid, state, values } => {
                    if self.accumulates_in_order(state) {
                        self.each_lane(|b| b.accumulate(*monoid, state, values))?;
                    } else {
                        self.accumulate(*monoid, state, values)?;
                    }
                }
                Stmt::Prefetch { memory, index } if self.has.table().prefetches => {
                    let address = self.element(*memory, index)?;
                    self.push(Item::Prefetch(address));
                }
                Stmt::Prefetch { .. } => {}
                Stmt::Barrier if self.has.table().has_blocks => self.push(Item::Barrier),
                Stmt::Barrier => return unsupported("barriers"),
                Stmt::Contract(c) => self.multiply(c)?,
                Stmt::Collective(c)
                    if self.has.table().has_blocks && matches!(c.group, Group::Warp | Group::Part(_)) =>
                {
                    let address = self.element(c.memory, &c.index)?;
                    self.push(Item::Collective {
                        kind: c.kind,
                        threads: c.group.threads(),
                        address,
                    });
                }
                Stmt::Collective(_) => return unsupported("collectives but those of warps"),
                Stmt::Each { .. } | Stmt::FoldRows(_) => return unsupported("fragments"),
                Stmt::CopyAsync(c) if self.has.table().has_blocks => self.copy_async(c)?,
                Stmt::Commit if self.has.table().has_blocks => self.push(Item::Commit),
                Stmt::Wait(pending) if self.has.table().has_blocks => self.push(Item::Wait(*pending)),
                Stmt::CopyAsync(_) | Stmt::Commit | Stmt::Wait(_) => return unsupported("copies beside the threads"),
            }
        }
        Ok(())
    }

    fn loop_stmt(&mut self, var: VarId, bind: Bind, body: &'k [Stmt], outermost: bool) -> Result<()> {
        let extent = &self.kernel.extents[var.0 as usize];
        let blocks = self.has.table().has_blocks;
        match bind {
            Bind::Unroll => match self.known_index(extent)? {
                Some(n) => self.copies(var, n, body),
                None => invalid("an unrolled loop without constant extent"),
            },
            Bind::Lanes => {
                let count = match self.known_index(extent)? {
                    Some(n) if n <= LANE_LIMIT as i64 => n.max(0) as u32,
                    Some(n) => return unsupported(format!("a lanes loop of {n} iterations (at most {LANE_LIMIT})")),
                    None => return invalid("a lanes loop without constant extent"),
                };
                if self.lanes.is_some() {
                    return unsupported("nested lanes loops");
                }
                if count < 2 {
                    return self.copies(var, i64::from(count), body);
                }
                self.vars[var.0 as usize] = VarState::Lane;
                self.lanes = Some(LaneLoop { count, current: None });
                self.block(body, false)?;
                self.lanes = None;
                Ok(())
            }
            Bind::Serial | Bind::Parallel if self.lanes.is_some() => unsupported("a serial loop inside a lanes loop"),
            Bind::Serial => self.serial(var, body),
            Bind::Parallel if blocks => unsupported("parallel loops"),
            Bind::Parallel if outermost => self.bound_loop(var, LoopKind::Parallel, Varies::NOTHING, body),
            Bind::Parallel => invalid("a parallel loop that is not outermost"),
            Bind::Copy | Bind::Stream if self.has.copies_blocks() => self.copy_loop(var, bind, body),
            Bind::Copy | Bind::Stream => self.serial(var, body),
            Bind::Block if blocks && outermost => self.bound_loop(var, LoopKind::Block, Varies::BLOCK, body),
            Bind::Block if blocks => invalid("a block loop inside another loop"),
            Bind::Thread if blocks => self.bound_loop(var, LoopKind::Thread, Varies::THREAD, body),
            Bind::Warp if blocks => self.bound_loop(var, LoopKind::Warp, Varies::WARP, body),
            Bind::Block | Bind::Warp | Bind::Thread => unsupported(format!("{} loops", bind.name())),
        }
    }

    /// The body once for each iteration.
    fn copies(&mut self, var: VarId, n: i64, body: &'k [Stmt]) -> Result<()> {
        for i in 0..n {
            self.count_statement()?;
            self.vars[var.0 as usize] = VarState::Const(i);
            self.block(body, false)?;
        }
        Ok(())
    }

    /// The counter of a loop, in the region that is open.
    fn counter(&mut self, var: VarId, extent: Value, varies: Varies) -> Value {
        let varies = self.counts_with(extent, varies);
        let counter = self.defined(Op::Counter, DType::I64, 1, varies);
        let most = self.range(extent).hi.saturating_sub(1).max(0);
        let known = IndexExpr::from(var).interval(self.kernel);
        self.narrow(counter, range::both(known, Interval::new(0, most)));
        self.vars[var.0 as usize] = VarState::Value(counter);
        counter
    }

    /// A loop whose iterations are independent. What registers hold does not outlive an iteration.
    fn bound_loop(&mut self, var: VarId, kind: LoopKind, own: Varies, body: &'k [Stmt]) -> Result<()> {
        let extent = self.eval(&self.kernel.extents[var.0 as usize])?;
        let (around, held) = (self.around, self.held.clone());
        self.around = around.and(own);
        self.open_region(kind == LoopKind::Parallel);
        let counter = self.counter(var, extent, own);
        self.block(body, false)?;
        let body = self.close_region();
        self.around = around;
        self.held = held;
        self.push(Item::Loop(Box::new(Loop {
            kind,
            counter,
            extent,
            carried: Vec::new(),
            body,
        })));
        Ok(())
    }

    fn serial(&mut self, var: VarId, body: &'k [Stmt]) -> Result<()> {
        let extent = &self.kernel.extents[var.0 as usize];
        match self.known_index(extent)? {
            Some(n) if n <= 0 => return Ok(()),
            Some(1) => {
                self.vars[var.0 as usize] = VarState::Const(0);
                return self.block(body, false);
            }
            _ => {}
        }
        let extent = self.eval(extent)?;
        let written = self.written(body);
        let before: Vec<Value> = written.iter().map(|&r| self.held[r]).collect();
        self.open_region(true);
        let varies = self.counts_with(extent, self.around);
        let counter = self.counter(var, extent, Varies::NOTHING);
        let mut inside = Vec::with_capacity(written.len());
        for &r in &written {
            let (dtype, lanes) = (self.dtype(self.held[r]), self.info(self.held[r]).lanes);
            let v = self.defined(Op::Carried, dtype, lanes, varies);
            self.held[r] = v;
            inside.push(v);
        }
        self.block(body, false)?;
        let body = self.close_region();
        let mut carried = Vec::new();
        for (i, &r) in written.iter().enumerate() {
            let (initial, inside, next) = (before[i], inside[i], self.held[r]);
            if next == inside {
                self.unchanged.push((inside, initial));
                self.held[r] = initial;
                continue;
            }
            let outcome = self.outcome(inside, varies);
            self.held[r] = outcome;
            carried.push(Carry {
                initial,
                inside,
                next,
                outcome,
            });
        }
        self.push(Item::Loop(Box::new(Loop {
            kind: LoopKind::Serial,
            counter,
            extent,
            carried,
            body,
        })));
        Ok(())
    }

    /// The registers of all scratch that statements write some of.
    fn written(&self, body: &[Stmt]) -> Vec<usize> {
        if self.held.is_empty() {
            return Vec::new();
        }
        let mut scratch: SmallVec<[u32; 8]> = SmallVec::new();
        for s in visit::walk(body) {
            for a in s.accesses().filter(|a| a.effect.writes()) {
                if let Memory::Scratch(i) = a.memory
                    && !scratch.contains(&i)
                {
                    scratch.push(i);
                }
            }
        }
        scratch.sort();
        scratch.into_iter().flat_map(|i| self.registers_of(i)).collect()
    }

    fn if_stmt(&mut self, cond: &Val, body: &'k [Stmt]) -> Result<()> {
        let (kind, cond) = match cond {
            Val::Const(c) if !c.as_bool() => return Ok(()),
            Val::Const(_) => return self.block(body, false),
            Val::One(c) => (IfKind::Plain, *c),
            Val::Vector(mask) => (IfKind::Rare, self.shared(Op::AnyLane(*mask), DType::Bool, 1)),
            Val::Each(lanes) => {
                let mut any = lanes[0];
                for lane in &lanes[1..] {
                    any = self.make(
                        Op::Map(ScalarOp::Or, SmallVec::from_slice(&[any, *lane])),
                        DType::Bool,
                        1,
                    );
                }
                (IfKind::Rare, any)
            }
        };
        let written = self.written(body);
        let before: Vec<Value> = written.iter().map(|&r| self.held[r]).collect();
        self.open_region(false);
        self.block(body, false)?;
        let then_items = self.close_region();
        let mut merges = Vec::new();
        for (i, &r) in written.iter().enumerate() {
            let (then, otherwise) = (self.held[r], before[i]);
            if then == otherwise {
                continue;
            }
            let varies = [cond, then, otherwise]
                .iter()
                .fold(Varies::NOTHING, |all, v| all.and(self.info(*v).varies));
            let outcome = self.outcome(otherwise, varies.but(Varies::LANES));
            self.held[r] = outcome;
            merges.push(Merge {
                then,
                otherwise,
                outcome,
            });
        }
        self.push(Item::If(Box::new(If {
            kind,
            cond,
            then: then_items,
            otherwise: Vec::new(),
            merges,
        })));
        Ok(())
    }

    fn copy_loop(&mut self, var: VarId, bind: Bind, body: &[Stmt]) -> Result<()> {
        let Some(nest) = CopyNest::of(self.kernel, var, body) else {
            return invalid("a copy loop that does not just copy");
        };
        let copy = BlockCopy {
            to: self.element(nest.to, &nest.to_at)?,
            to_pitch: self.eval(&nest.to_pitch)?,
            from: self.element(nest.from, &nest.from_at)?,
            from_pitch: self.eval(&nest.from_pitch)?,
            rows: self.eval(&nest.rows)?,
            columns: self.eval(&nest.columns)?,
            transposed: nest.transposed,
            streaming: bind == Bind::Stream,
        };
        self.push(Item::Copy(Box::new(copy)));
        Ok(())
    }

    fn op(&mut self, op: &KernelOp, result: ValueId) -> Result<Val> {
        let kernel: &Kernel = self.kernel;
        let dtype = kernel.dtype(result);
        match op {
            KernelOp::Const(c) if c.dtype() == dtype => Ok(Val::Const(*c)),
            KernelOp::Const(_) => invalid("a constant of another dtype than its value"),
            KernelOp::Index(index, to) => self.index_value(index, *to),
            KernelOp::Load { memory, index, mask } => {
                let mask = mask.map(|m| self.value(m)).transpose()?;
                self.load(*memory, index, mask.as_ref())
            }
            KernelOp::Map(op, operands) => {
                let dtypes: SmallVec<[DType; 3]> = operands.iter().map(|v| kernel.dtype(*v)).collect();
                if op.result_dtype(&dtypes) != Ok(dtype) {
                    return invalid(format!("{op} on {dtypes:?} giving {dtype}"));
                }
                let mut vals: SmallVec<[Val; 3]> = SmallVec::new();
                for v in operands {
                    vals.push(self.value(*v)?);
                }
                self.map(*op, dtypes[dtypes.len() - 1], &vals)
            }
            KernelOp::Convert(to, v) => {
                let from = kernel.dtype(*v);
                let v = self.value(*v)?;
                self.convert(from, *to, &v)
            }
            // A GPU has an instruction for it. Other exponentials have become formulas by now, so that the operation stands for this one.
            KernelOp::ShortExp2(v) if self.has.table().has_blocks => {
                let v = self.value(*v)?;
                self.map(ScalarOp::Exp2, DType::F32, &[v])
            }
            KernelOp::ShortExp2(_) => unsupported("short exponentials"),
            KernelOp::Approximate(op, operands) if self.has.table().has_blocks => {
                let vals = operands
                    .iter()
                    .map(|v| self.value(*v))
                    .collect::<Result<SmallVec<[Val; 3]>>>()?;
                Ok(self.approximate(*op, &vals))
            }
            KernelOp::Approximate(op, _) => unsupported(format!("an approximate {op} (legalize it)")),
            KernelOp::Scale(operands) => {
                let [x, n] = *operands;
                let (x, n) = (self.value(x)?, self.value(n)?);
                Ok(self.scale(&x, &n))
            }
            KernelOp::Bitcast(to, v) => {
                let from = kernel.dtype(*v);
                let v = self.value(*v)?;
                self.bitcast(from, *to, &v)
            }
        }
    }

    /// A scalar operation on values whose last operand (and the result, but for comparisons) is of `dtype`.
    pub(super) fn map(&mut self, op: ScalarOp, dtype: DType, vals: &[Val]) -> Result<Val> {
        if (matches!(dtype, DType::F16 | DType::BF16) || dtype.is_storage()) && op != ScalarOp::Select {
            return unsupported(format!("{op} on {dtype} (legalize it)"));
        }
        let constants: Option<SmallVec<[Scalar; 3]>> = vals.iter().map(Val::constant).collect();
        if let Some(constants) = constants {
            return Ok(Val::Const(op.eval(&constants)));
        }
        let result = match op {
            ScalarOp::Eq | ScalarOp::Ne | ScalarOp::Lt | ScalarOp::Le => DType::Bool,
            _ => dtype,
        };
        if !vals.iter().any(Val::varies) {
            let args = vals.iter().map(|v| self.scalar(v, 0)).collect();
            return Ok(Val::One(self.make(Op::Map(op, args), result, 1)));
        }
        let known = vals.last().is_some_and(|v| v.constant().is_some());
        if self.fits(dtype) && (op == ScalarOp::Select || self.has.maps_lanes(op, dtype, known)) {
            return Ok(Val::Vector(self.map_vector(op, result, vals)));
        }
        let count = self.lane_count();
        if self.has.maps_words(op, dtype, count)
            && let Some(args) = vals.iter().map(|v| self.together(v)).collect()
        {
            let words = self.make(Op::Map(op, args), result, count);
            return Ok(self.in_registers(words));
        }
        let mut lanes = SmallVec::new();
        for lane in 0..count {
            let args = vals.iter().map(|v| self.scalar(v, lane)).collect();
            lanes.push(self.make(Op::Map(op, args), result, 1));
        }
        Ok(Val::Each(lanes))
    }

    /// The value of all lanes that lies together already: what was loaded as one access, or computed of that.
    pub(super) fn together(&mut self, v: &Val) -> Option<Value> {
        match v {
            Val::Vector(v) => Some(*v),
            Val::Const(_) => Some(self.vector(v)),
            Val::One(_) => None,
            Val::Each(lanes) => self
                .neighbours(lanes)
                .filter(|&(whole, first)| first == 0 && self.info(whole).lanes as usize == lanes.len())
                .map(|(whole, _)| whole),
        }
    }

    /// An operation on f32 that the device approximates, element by element.
    fn approximate(&mut self, op: ScalarOp, vals: &[Val]) -> Val {
        let one = |s: &mut Self, lane| {
            let args = vals.iter().map(|v| s.scalar(v, lane)).collect();
            s.make(Op::Approximate(op, args), DType::F32, 1)
        };
        match vals.iter().any(Val::varies) {
            true => Val::Each((0..self.lane_count()).map(|lane| one(self, lane)).collect()),
            false => Val::One(one(self, 0)),
        }
    }

    /// `x 2^floor(n)` of f32.
    fn scale(&mut self, x: &Val, n: &Val) -> Val {
        if !x.varies() && !n.varies() {
            let (x, n) = (self.scalar(x, 0), self.scalar(n, 0));
            return Val::One(self.make(Op::Scale(x, n), DType::F32, 1));
        }
        if self.fits(DType::F32) {
            let (x, n, lanes) = (self.vector(x), self.vector(n), self.lane_count());
            return Val::Vector(self.make(Op::Scale(x, n), DType::F32, lanes));
        }
        let lane = |s: &mut Self, lane| {
            let (x, n) = (s.scalar(x, lane), s.scalar(n, lane));
            s.make(Op::Scale(x, n), DType::F32, 1)
        };
        Val::Each((0..self.lane_count()).map(|i| lane(self, i)).collect())
    }

    fn map_vector(&mut self, op: ScalarOp, result: DType, vals: &[Val]) -> Value {
        // One amount shifts, and one condition may choose, for all lanes.
        let scalar = |i: usize| match op {
            ScalarOp::Shl | ScalarOp::Shr => i == 1 && !vals[1].varies(),
            ScalarOp::Select => i == 0 && !vals[0].varies(),
            _ => false,
        };
        let mut args: SmallVec<[Value; 3]> = SmallVec::new();
        for (i, v) in vals.iter().enumerate() {
            args.push(if scalar(i) { self.scalar(v, 0) } else { self.vector(v) });
        }
        let op = match (op, &args[..]) {
            (ScalarOp::Or, [a, b]) if result == DType::Bool => match (self.nan_test(*a), self.nan_test(*b)) {
                (Some(x), Some(y)) if self.dtype(x) == self.dtype(y) => Op::Unordered(x, y),
                _ => Op::Map(op, args),
            },
            _ => Op::Map(op, args),
        };
        let lanes = self.lane_count();
        let mut of_positions = result == DType::Bool && self.has.mask_registers();
        op.operands(|v| of_positions &= self.is_of_positions(v));
        if !of_positions {
            return self.make(op, result, lanes);
        }
        let mask = self.of_lanes(op, result, lanes);
        self.position_masks.insert(mask);
        mask
    }

    /// Whether a value follows from where lanes are: a number that comes from indices alone, or a mask of such numbers.
    fn is_of_positions(&self, v: Value) -> bool {
        match &self.info(v).op {
            Op::Series { .. } => true,
            Op::Splat(s) => self.dtype(*s).is_int() || self.info(*s).op.is_constant(),
            op => op.is_constant() || self.position_masks.contains(&v),
        }
    }

    /// The float `x` of a mask that is `x != x`: two such masks are one comparison.
    fn nan_test(&self, mask: Value) -> Option<Value> {
        match &self.info(mask).op {
            Op::Map(ScalarOp::Ne, args) if args[0] == args[1] && self.dtype(args[0]).is_float() => Some(args[0]),
            _ => None,
        }
    }

    /// The value converted to another dtype.
    pub(super) fn convert(&mut self, from: DType, to: DType, v: &Val) -> Result<Val> {
        if from == to {
            return Ok(v.clone());
        }
        if let Val::Const(c) = v {
            return Ok(Val::Const(c.convert(to)));
        }
        if from.is_storage() || to.is_storage() {
            return unsupported(format!("{from} to {to} (legalize to integers)"));
        }
        if !v.varies() {
            let scalar = self.scalar(v, 0);
            return Ok(Val::One(self.make(Op::Convert(scalar), to, 1)));
        }
        // Conversions of 16-bit floats go through f32, which must then fit the lanes too.
        let half = |d| matches!(d, DType::F16 | DType::BF16);
        let through_f32 = half(from) && to != DType::Bool || half(to) && from != DType::Bool;
        let fits = self.fits(from) && self.fits(to) && (!through_f32 || self.fits(DType::F32));
        if fits && self.has.table().convert(from, to, Width::Lanes) == Support::Native {
            let vector = self.vector(v);
            return Ok(Val::Vector(self.make(Op::Convert(vector), to, self.lane_count())));
        }
        let count = self.lane_count();
        if self.has.converts_words(from, to, count)
            && let Some(whole) = self.together(v)
        {
            let words = self.make(Op::Convert(whole), to, count);
            return Ok(self.in_registers(words));
        }
        let mut lanes = SmallVec::new();
        for lane in 0..count {
            let scalar = self.scalar(v, lane);
            lanes.push(self.make(Op::Convert(scalar), to, 1));
        }
        Ok(Val::Each(lanes))
    }

    /// The same bits as another dtype.
    pub(super) fn bitcast(&mut self, from: DType, to: DType, v: &Val) -> Result<Val> {
        if from.bits() != to.bits() {
            return invalid(format!("bitcast from {from} to {to}"));
        }
        // A bool has two bit patterns, so it is not the same bits as an integer mask.
        if from == DType::Bool || to == DType::Bool {
            let through = if from == DType::Bool { DType::U8 } else { from };
            let v = self.convert(from, through, v)?;
            let v = self.bitcast(through, if to == DType::Bool { DType::U8 } else { to }, &v)?;
            return if to == DType::Bool {
                self.convert(DType::U8, to, &v)
            } else {
                Ok(v)
            };
        }
        // The bits above a narrower value are dropped.
        if to.value_bits() < 8 && from.value_bits() > to.value_bits() {
            let whole = self.bitcast(from, DType::U8, v)?;
            let value = Scalar::from_bits(DType::U8, (1 << to.value_bits()) - 1);
            let low = self.map(ScalarOp::And, DType::U8, &[whole, Val::Const(value)])?;
            return Ok(self.recast(to, &low));
        }
        Ok(self.recast(to, v))
    }

    fn recast(&mut self, to: DType, v: &Val) -> Val {
        let cast = |b: &mut Self, v: Value| match b.dtype(v) == to {
            true => v,
            false => b.make(Op::Bitcast(v), to, b.info(v).lanes),
        };
        match v {
            Val::Const(c) => Val::Const(Scalar::from_bits(to, c.bits())),
            Val::One(v) => Val::One(cast(self, *v)),
            Val::Vector(v) => Val::Vector(cast(self, *v)),
            Val::Each(lanes) => Val::Each(lanes.iter().map(|v| cast(self, *v)).collect()),
        }
    }
}
