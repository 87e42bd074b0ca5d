//! Making a [`Flat`]: values, regions and what stands where.
//!
//! Invariants:
//! - Regions that are open form a stack; a value may be used while the region that it was defined in is open.
//! - Index arithmetic is placed by [`Builder::home`]; everything else where it is asked for.
//! - Equal pure operations that are looked up are one value as long as its definition dominates.

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use tlc_ir::index::{Interval, VarId};
use tlc_ir::kernel::{Scope, ValueId};
use tlc_ir::{DType, Kernel, Scalar};

use super::index::VarState;
use super::registers::{self, RegisterScratch};
use super::tiles::{WholeTile, whole_tiles};
use super::turn::{Loaded, MOST_TURNED, Turned};
use super::{Capability, Flat, If, IfKind, Item, Merge, Op, Region, TiledMatrix, Value, ValueInfo, Varies};
use super::{check, prune, range, repeated};
use crate::error::{Result, invalid, unsupported};

/// A value of the kernel.
#[derive(Clone, Debug)]
pub(super) enum Val {
    /// Known now.
    Const(Scalar),
    /// Equal in every lane.
    One(Value),
    /// One element per lane.
    Vector(Value),
    /// One scalar per lane.
    Each(SmallVec<[Value; 4]>),
}

impl Val {
    pub(super) fn constant(&self) -> Option<Scalar> {
        match self {
            Val::Const(c) => Some(*c),
            _ => None,
        }
    }

    /// True if lanes may differ.
    pub(super) fn varies(&self) -> bool {
        matches!(self, Val::Vector(_) | Val::Each(_))
    }
}

/// The lanes loop being lowered.
#[derive(Clone, Copy)]
pub(super) struct LaneLoop {
    pub count: u32,
    /// The lane for which code is being made, while it is made lane by lane.
    pub current: Option<u32>,
}

/// A region that is not finished.
struct Open {
    id: u32,
    /// Whether it is repeated, so that what does not change belongs in front of it.
    repeated: bool,
    items: Region,
}

pub(super) struct Builder<'k, 'c> {
    pub kernel: &'k Kernel,
    pub has: &'c dyn Capability,
    pub values: Vec<ValueInfo>,
    known: FxHashMap<(Op, DType, u32), Value>,
    /// Constants by their lanes, which most operations have some of.
    constants: FxHashMap<(Scalar, u32), Value>,
    /// Masks that follow from where lanes are.
    pub position_masks: FxHashSet<Value>,
    open: Vec<Open>,
    regions: u32,
    /// Bound loops around, for what is carried in them.
    pub around: Varies,
    /// What the kernel's values are on the current path; unrolled copies overwrite them.
    pub bound: Vec<Option<Val>>,
    pub vars: Vec<VarState>,
    pub lanes: Option<LaneLoop>,
    pub registers: Vec<Option<RegisterScratch>>,
    /// What each register of all scratch holds.
    pub held: Vec<Value>,
    /// What was carried without changing, and what it is.
    pub unchanged: Vec<(Value, Value)>,
    pub statements: u64,
    /// The loops that copy whole tiles, and of which matrices.
    pub tiles: FxHashMap<VarId, WholeTile>,
    pub matrices: Vec<TiledMatrix>,
    /// The vectors that were turned last, the latest behind the others.
    pub turned: SmallVec<[Turned; MOST_TURNED]>,
    /// The vectors of memory that were turned last.
    pub loaded: Option<Loaded>,
}

/// Whether so many lanes of that type make a vector, each as wide as its part of all bits or narrower.
pub(super) fn makes_vectors(bits: u32, lanes: u32, dtype: DType) -> bool {
    let width = bits / lanes;
    let whole = lanes.is_power_of_two() && bits.is_multiple_of(lanes) && width >= 8;
    whole && (dtype == DType::Bool || dtype.bits() <= width)
}

/// The lowered form of a legal kernel for an emitter that has so much.
///
/// # Errors
/// [`crate::CodegenError`] if the kernel uses what the emitter lacks, or breaks a rule of the kernel language.
pub fn flatten<'k>(kernel: &'k Kernel, has: &dyn Capability) -> Result<Flat<'k>> {
    check::ids(kernel)?;
    if has.table().has_blocks {
        check::own_scratch(kernel)?;
    }
    let mut b = Builder {
        kernel,
        has,
        values: Vec::with_capacity(64 + 4 * kernel.values.len()),
        known: FxHashMap::default(),
        constants: FxHashMap::default(),
        position_masks: FxHashSet::default(),
        open: Vec::new(),
        regions: 0,
        around: Varies::NOTHING,
        bound: vec![None; kernel.values.len()],
        vars: vec![VarState::Unbound; kernel.extents.len()],
        lanes: None,
        registers: Vec::new(),
        held: Vec::new(),
        unchanged: Vec::new(),
        statements: 0,
        tiles: match has.copies_tiles() {
            true => whole_tiles(kernel),
            false => FxHashMap::default(),
        },
        matrices: Vec::new(),
        turned: SmallVec::new(),
        loaded: None,
    };
    b.open_region(false);
    let scratch_at = b.scratch()?;
    b.block(&kernel.body, true)?;
    let body = b.close_region();
    let mut flat = Flat {
        kernel,
        values: b.values,
        scratch_at,
        matrices: b.matrices,
        body,
    };
    prune::prune(&mut flat, &b.unchanged);
    // Compilers behind text do it by themselves.
    if !has.table().has_blocks {
        repeated::share(&mut flat, has.mask_registers());
    }
    #[cfg(debug_assertions)]
    if let Err(what) = super::verify(&flat) {
        return Err(crate::CodegenError::Refused {
            by: "the verifier of the lowered form",
            message: what,
        });
    }
    Ok(flat)
}

impl Builder<'_, '_> {
    fn scratch(&mut self) -> Result<Vec<Option<Value>>> {
        let blocks = self.has.table().has_blocks;
        let (offsets, _) = self.kernel.scratch_offsets();
        let walked = registers::walked(self.kernel);
        let mut at = Vec::with_capacity(self.kernel.scratch.len());
        for (i, s) in self.kernel.scratch.iter().enumerate() {
            let mut begins = None;
            let mut registers = None;
            match s.scope {
                Scope::Register => registers = Some(self.declare_registers(i, &walked[i])?),
                Scope::Cache if blocks => {}
                Scope::Cache => begins = Some(self.eval(&offsets[i])?),
                Scope::Shared | Scope::Thread if blocks => {}
                Scope::Shared | Scope::Thread | Scope::WarpFragment | Scope::BlockFragment => {
                    return unsupported(format!("{} scratch", s.scope.name()));
                }
            }
            at.push(begins);
            self.registers.push(registers);
        }
        Ok(at)
    }

    pub(super) fn info(&self, v: Value) -> &ValueInfo {
        &self.values[v.0 as usize]
    }

    pub(super) fn dtype(&self, v: Value) -> DType {
        self.info(v).dtype
    }

    pub(super) fn level(&self, v: Value) -> u32 {
        self.info(v).level
    }

    pub(super) fn range(&self, v: Value) -> Interval {
        self.info(v).range
    }

    /// Begins a region.
    pub(super) fn open_region(&mut self, repeated: bool) {
        self.open.push(Open {
            id: self.regions,
            repeated,
            items: Vec::new(),
        });
        self.regions += 1;
    }

    /// Ends the innermost region.
    pub(super) fn close_region(&mut self) -> Region {
        self.open.pop().map_or_else(Vec::new, |o| o.items)
    }

    pub(super) fn push(&mut self, item: Item) {
        self.loaded = self.loaded.take().filter(|l| l.outlives(&item));
        if let Some(region) = self.open.last_mut() {
            region.items.push(item);
        }
    }

    fn top(&self) -> u32 {
        self.open.len() as u32 - 1
    }

    /// Where index arithmetic belongs whose operands are there at `level`: in front of the outermost loop inside that it does not
    /// change in, or here.
    pub(super) fn home(&self, level: u32) -> u32 {
        let inner = level as usize + 1..self.open.len();
        let top = self.top();
        inner
            .into_iter()
            .find(|&l| self.open[l].repeated)
            .map_or(top, |l| l as u32 - 1)
    }

    /// The innermost region.
    pub(super) fn here(&self) -> u32 {
        self.open.last().map_or(0, |o| o.id)
    }

    fn record(&mut self, info: ValueInfo) -> Value {
        self.values.push(info);
        Value(self.values.len() as u32 - 1)
    }

    /// A value that control defines, in the innermost region.
    pub(super) fn defined(&mut self, op: Op, dtype: DType, lanes: u32, varies: Varies) -> Value {
        let level = self.top();
        let region = self.open[level as usize].id;
        self.record(ValueInfo {
            op,
            dtype,
            lanes,
            varies: if lanes > 1 { varies.and(Varies::LANES) } else { varies },
            range: Interval::ALL,
            level,
            region,
        })
    }

    /// A value behind an if, or behind a loop.
    pub(super) fn outcome(&mut self, like: Value, varies: Varies) -> Value {
        let (dtype, lanes) = (self.dtype(like), self.info(like).lanes);
        self.defined(Op::Outcome, dtype, lanes, varies)
    }

    fn varies(&self, op: &Op, lanes: u32) -> Varies {
        let mut all = Varies::NOTHING;
        op.operands(|v| all = all.and(self.info(v).varies));
        if let Op::Load { address, .. } = op
            && self.is_own(address.memory)
        {
            all = all.and(self.around);
        }
        match lanes {
            1 => all.but(Varies::LANES),
            _ => all.and(Varies::LANES),
        }
    }

    fn is_placeless(&self, op: &Op) -> bool {
        match op {
            Op::Splat(s) => self.info(*s).op.is_constant(),
            op => op.is_placeless(),
        }
    }

    fn place(&mut self, op: Op, dtype: DType, lanes: u32, level: u32, range: Interval) -> Value {
        let varies = self.varies(&op, lanes);
        let placeless = self.is_placeless(&op);
        let level = if placeless { 0 } else { level };
        let region = self.open[level as usize].id;
        let value = self.record(ValueInfo {
            op,
            dtype,
            lanes,
            varies,
            range,
            level,
            region,
        });
        if !placeless {
            self.open[level as usize].items.push(Item::Let(value));
        }
        value
    }

    /// A value computed here.
    pub(super) fn make(&mut self, op: Op, dtype: DType, lanes: u32) -> Value {
        self.place(op, dtype, lanes, self.top(), Interval::ALL)
    }

    fn find(&self, key: &(Op, DType, u32)) -> Option<Value> {
        let value = *self.known.get(key)?;
        let info = self.info(value);
        let open = self.open.get(info.level as usize)?;
        (open.id == info.region).then_some(value)
    }

    /// A pure value, computed here unless it is known already.
    pub(super) fn shared(&mut self, op: Op, dtype: DType, lanes: u32) -> Value {
        let key = (op, dtype, lanes);
        if let Some(v) = self.find(&key) {
            return v;
        }
        let v = self.make(key.0.clone(), dtype, lanes);
        self.known.insert(key, v);
        v
    }

    /// Arithmetic on the positions of lanes, and what masks are made of it: known, or placed as index arithmetic where the emitter has
    /// registers for masks. The lanes at the edge of an image are the same in each of its rows.
    pub(super) fn of_lanes(&mut self, op: Op, dtype: DType, lanes: u32) -> Value {
        if !self.has.mask_registers() {
            return self.shared(op, dtype, lanes);
        }
        let key = (op, dtype, lanes);
        if let Some(v) = self.find(&key) {
            return v;
        }
        let mut level = 0;
        key.0.operands(|v| level = level.max(self.level(v)));
        let v = self.place(key.0.clone(), dtype, lanes, self.home(level), Interval::ALL);
        self.known.insert(key, v);
        v
    }

    /// Index arithmetic, placed where it belongs.
    pub(super) fn index(&mut self, op: Op, range: Interval) -> Value {
        let key = (op, DType::I64, 1);
        if let Some(v) = self.find(&key) {
            return v;
        }
        let mut level = 0;
        key.0.operands(|v| level = level.max(self.level(v)));
        let v = self.place(key.0.clone(), DType::I64, 1, self.home(level), range);
        self.known.insert(key, v);
        v
    }

    /// What else is known of an index.
    pub(super) fn narrow(&mut self, v: Value, known: Interval) {
        let info = &mut self.values[v.0 as usize];
        info.range = range::both(info.range, known);
    }

    /// A constant.
    pub(super) fn constant(&mut self, c: Scalar) -> Value {
        if let Some(v) = self.constants.get(&(c, 1)) {
            return *v;
        }
        let v = self.make(Op::Const(c), c.dtype(), 1);
        if c.dtype() == DType::I64 {
            self.narrow(v, Interval::new(c.as_i64(), c.as_i64()));
        }
        self.constants.insert((c, 1), v);
        v
    }

    /// A constant in all lanes.
    fn constant_vector(&mut self, c: Scalar, lanes: u32) -> Value {
        if let Some(v) = self.constants.get(&(c, lanes)) {
            return *v;
        }
        let scalar = self.constant(c);
        let v = self.make(Op::Splat(scalar), c.dtype(), lanes);
        self.constants.insert((c, lanes), v);
        v
    }

    /// An index that is known.
    pub(super) fn number(&mut self, c: i64) -> Value {
        self.constant(Scalar::from_i64(DType::I64, c))
    }

    /// A scalar as a value of the kernel.
    pub(super) fn known_value(&self, v: Value) -> Val {
        match self.info(v).op {
            Op::Const(c) => Val::Const(c),
            _ => Val::One(v),
        }
    }

    /// Iterations of the lanes loop, 1 outside of one or in code for one lane.
    pub(super) fn lane_count(&self) -> u32 {
        match self.lanes {
            Some(l) if l.current.is_none() => l.count,
            _ => 1,
        }
    }

    /// Whether elements of that type make a vector in the current lanes loop.
    pub(super) fn fits(&self, dtype: DType) -> bool {
        let count = self.lane_count();
        count > 1 && makes_vectors(self.has.vector_bits(), count, dtype)
    }

    /// The scalar of one lane.
    pub(super) fn scalar(&mut self, v: &Val, lane: u32) -> Value {
        match v {
            Val::Const(c) => self.constant(*c),
            Val::One(v) => *v,
            Val::Each(lanes) => lanes[lane as usize],
            Val::Vector(v) => self.shared(Op::Lane(*v, lane as u8), self.dtype(*v), 1),
        }
    }

    /// The value as a vector; its type fits the lanes.
    pub(super) fn vector(&mut self, v: &Val) -> Value {
        let count = self.lane_count();
        match v {
            Val::Vector(v) => *v,
            Val::Const(c) => self.constant_vector(*c, count),
            Val::One(scalar) => self.shared(Op::Splat(*scalar), self.dtype(*scalar), count),
            Val::Each(lanes) => match self.part_of(lanes) {
                Some((whole, first)) => self.shared(Op::Part(whole, first), self.dtype(whole), count),
                // Words that nobody takes apart.
                None => match self.together(v).filter(|whole| self.is_of_words(*whole)) {
                    Some(whole) => whole,
                    None => self.make(Op::Pack(lanes.clone()), self.dtype(lanes[0]), count),
                },
            },
        }
    }

    /// Whether a value of several lanes, which make no vector, was computed as words.
    fn is_of_words(&self, v: Value) -> bool {
        let info = self.info(v);
        matches!(info.op, Op::Map(..) | Op::Convert(_)) && !self.fits(info.dtype)
    }

    /// The vector that scalars are neighbouring lanes of, if the emitter takes them at once, and the first of these.
    fn part_of(&self, lanes: &[Value]) -> Option<(Value, u8)> {
        let (whole, first) = self.neighbours(lanes)?;
        let part = self.dtype(whole).bits() >= 32 && lanes.len() > 1;
        (self.has.takes_parts() && part).then_some((whole, first))
    }

    /// The vector that scalars are neighbouring lanes of, and the first of these.
    pub(super) fn neighbours(&self, lanes: &[Value]) -> Option<(Value, u8)> {
        let lane = |v: Value| match self.info(v).op {
            Op::Lane(whole, lane) => Some((whole, lane)),
            _ => None,
        };
        let (whole, first) = lane(lanes[0])?;
        let follows = |(i, v): (usize, &Value)| lane(*v) == Some((whole, first + i as u8));
        lanes.iter().enumerate().all(follows).then_some((whole, first))
    }

    /// The value of a defined id; in code for one lane, that lane's.
    pub(super) fn value(&mut self, id: ValueId) -> Result<Val> {
        let v = match self.bound.get(id.0 as usize) {
            Some(Some(v)) => v.clone(),
            _ => return invalid(format!("value {} is used before its definition", id.0)),
        };
        match self.lanes.and_then(|l| l.current) {
            Some(lane) if v.varies() => Ok(Val::One(self.scalar(&v, lane))),
            _ => Ok(v),
        }
    }

    /// Runs `f` once per lane of the current lanes loop, with indices and values as that lane's.
    pub(super) fn each_lane(&mut self, mut f: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        for lane in 0..self.lanes.map_or(0, |l| l.count) {
            self.in_lane(lane, &mut f)?;
        }
        Ok(())
    }

    /// Runs `f` with indices and values as lane `lane`'s.
    pub(super) fn in_lane<R>(&mut self, lane: u32, f: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        let Some(lanes) = &mut self.lanes else { return f(self) };
        let before = lanes.current.replace(lane);
        let result = f(self);
        if let Some(lanes) = &mut self.lanes {
            lanes.current = before;
        }
        result
    }

    /// An if that guards accesses: the value of `then` where the condition holds, else that of `otherwise`, if they have one.
    pub(super) fn guard(
        &mut self,
        cond: Value,
        then: impl FnOnce(&mut Self) -> Result<Option<Value>>,
        otherwise: impl FnOnce(&mut Self) -> Result<Option<Value>>,
    ) -> Result<Option<Value>> {
        self.open_region(false);
        let a = then(self)?;
        let then = self.close_region();
        self.open_region(false);
        let b = otherwise(self)?;
        let otherwise = self.close_region();
        let mut merges = Vec::new();
        if let (Some(then), Some(otherwise)) = (a, b) {
            let varies = [cond, then, otherwise]
                .iter()
                .fold(Varies::NOTHING, |all, v| all.and(self.info(*v).varies));
            let outcome = self.outcome(then, varies.but(Varies::LANES));
            merges.push(Merge {
                then,
                otherwise,
                outcome,
            });
        }
        let outcome = merges.first().map(|m| m.outcome);
        self.push(Item::If(Box::new(If {
            kind: IfKind::Guard,
            cond,
            then,
            otherwise,
            merges,
        })));
        Ok(outcome)
    }
}
