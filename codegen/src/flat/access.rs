//! Loads and stores.
//!
//! Invariants:
//! - An access that the emitter does not mask stands in an if, so memory is touched only where its mask is true.
//! - Stores of a lanes loop to one element happen in lane order.
//! - Neighbouring elements of lanes move as one access, if the emitter has one, of no byte beyond the first and the last.

use smallvec::SmallVec;
use tlc_ir::kernel::Memory;
use tlc_ir::{DType, IndexExpr, ScalarOp};

use super::build::{Builder, Val};
use super::index::{LaneUse, Resolved};
use super::{Address, Item, Offsets, Op, Value};
use crate::error::Result;

/// Which lanes of a mask are true.
enum MaskBits {
    /// Bit `i` is lane `i`.
    Bits(Value),
    /// A bool for each lane.
    Lanes(SmallVec<[Value; 4]>),
}

impl Builder<'_, '_> {
    /// An element of memory, zero where the mask is false.
    pub(super) fn load(&mut self, memory: Memory, index: &IndexExpr, mask: Option<&Val>) -> Result<Val> {
        let dtype = self.kernel.memory_dtype(memory);
        match mask {
            Some(Val::Const(m)) if !m.as_bool() => return Ok(Val::Const(dtype.zero())),
            Some(Val::Const(_)) => return self.load(memory, index, None),
            _ => {}
        }
        if self.is_register(memory) {
            let v = self.load_register(memory, index)?;
            return match mask {
                None => Ok(v),
                Some(mask) => self.map(ScalarOp::Select, dtype, &[mask.clone(), v, Val::Const(dtype.zero())]),
            };
        }
        let r = self.resolve(index)?;
        if r.lane == LaneUse::General
            && self.lane_count() > 1
            && let Some((address, at)) = self.gathered(memory, index)?
        {
            return self.gather(dtype, address, at, mask);
        }
        match mask {
            Some(m) if m.varies() => self.load_masked(memory, index, &r, m),
            other => {
                let cond = other.map(|m| self.scalar(m, 0));
                self.load_all(memory, index, &r, cond)
            }
        }
    }

    /// A load of all lanes, or of none where the condition does not hold.
    fn load_all(&mut self, memory: Memory, index: &IndexExpr, r: &Resolved, cond: Option<Value>) -> Result<Val> {
        let dtype = self.kernel.memory_dtype(memory);
        if r.lane == LaneUse::None {
            let address = self.address(memory, r);
            return Ok(Val::One(self.load_one(dtype, address, cond)?));
        }
        if cond.is_none()
            && let Some(v) = self.load_turned(memory, r)
        {
            return Ok(Val::Vector(v));
        }
        if let Some((address, offsets)) = self.stepped(memory, r)
            && self.has.loads_lanes(dtype, &offsets)
            && self.aligned(&address)
        {
            let v = self.guarded(cond, dtype, |b| Ok(b.load_lanes(dtype, address, &offsets)))?;
            return Ok(self.in_registers(v));
        }
        let count = self.lane_count();
        if !self.fits(dtype) || dtype == DType::Bool {
            let mut lanes = SmallVec::new();
            for lane in 0..count {
                let address = self.lane_element(memory, index, lane)?;
                lanes.push(self.load_one(dtype, address, cond)?);
            }
            return Ok(Val::Each(lanes));
        }
        let mut places: SmallVec<[Address; 8]> = SmallVec::new();
        for lane in 0..count {
            places.push(self.lane_element(memory, index, lane)?);
        }
        // Places that follow from no step may still be neighbours, as where an image is enlarged.
        let together = near(&places).filter(|(_, offsets)| self.has.loads_lanes(dtype, offsets));
        let load = |b: &mut Self| match &together {
            Some((address, offsets)) => Val::Vector(b.load_lanes(dtype, *address, offsets)),
            None => Val::Each(
                places
                    .iter()
                    .map(|address| b.make(scalar_load(*address, None), dtype, 1))
                    .collect(),
            ),
        };
        match cond {
            None => Ok(load(self)),
            cond => {
                let v = self.guarded(cond, dtype, |b| {
                    let lanes = load(b);
                    Ok(b.vector(&lanes))
                })?;
                Ok(Val::Vector(v))
            }
        }
    }

    /// A load of elements that lanes number, those whose mask is true.
    fn gather(&mut self, dtype: DType, address: Address, at: Value, mask: Option<&Val>) -> Result<Val> {
        let lanes = self.lane_count();
        let (cond, mask) = match mask {
            Some(m) if m.varies() => (None, Some(self.vector(m))),
            other => (other.map(|m| self.scalar(m, 0)), None),
        };
        let v = self.guarded(cond, dtype, |b| {
            Ok(b.make(Op::Gather { address, at, mask }, dtype, lanes))
        })?;
        Ok(Val::Vector(v))
    }

    /// A load of the lanes whose mask is true.
    fn load_masked(&mut self, memory: Memory, index: &IndexExpr, r: &Resolved, mask: &Val) -> Result<Val> {
        let dtype = self.kernel.memory_dtype(memory);
        if let Some((address, offsets)) = self.masked(memory, r).or_else(|| self.masked_every_other(memory, r))
            && self.has.loads_lanes(dtype, &offsets)
        {
            let load = Op::Load {
                address,
                offsets,
                mask: Some(self.vector(mask)),
            };
            return Ok(Val::Vector(self.make(load, dtype, self.lane_count())));
        }
        // One element for all lanes is read once if any of them may.
        if let (LaneUse::None, Val::Vector(_)) = (r.lane, mask) {
            let others = self.map(ScalarOp::Not, DType::Bool, std::slice::from_ref(mask))?;
            let others = self.vector(&others);
            let none = self.shared(Op::AllLanes(others), DType::Bool, 1);
            let any = Op::Map(ScalarOp::Not, SmallVec::from_slice(&[none]));
            let any = self.shared(any, DType::Bool, 1);
            let address = self.address(memory, r);
            let read = Val::One(self.load_one(dtype, address, Some(any))?);
            return self.map(ScalarOp::Select, dtype, &[mask.clone(), read, Val::Const(dtype.zero())]);
        }
        let (bits, all) = self.mask_lanes(mask);
        let count = self.lane_count();
        // All lanes at once where all may be read, as in every iteration but the last of a masked tail.
        if r.lane == LaneUse::Affine(1)
            && let Some((address, offsets)) = self.stepped(memory, r)
            && self.has.loads_lanes(dtype, &offsets)
            && !self.has.masks_scalars()
        {
            let v = self.guard(
                all,
                |b| Ok(Some(b.load_lanes(dtype, address, &offsets))),
                |b| {
                    let mut v = b.vector(&Val::Const(dtype.zero()));
                    for lane in 0..count {
                        let allowed = b.lane_bit(&bits, lane);
                        let place = Address {
                            constant: address.constant.wrapping_add(i64::from(lane)),
                            ..address
                        };
                        let before = v;
                        let read = |b: &mut Self| {
                            let x = b.make(scalar_load(place, None), dtype, 1);
                            Ok(Some(b.make(Op::Insert(before, x, lane as u8), dtype, count)))
                        };
                        v = b.guard(allowed, read, |_| Ok(Some(before)))?.unwrap_or(before);
                    }
                    Ok(Some(v))
                },
            )?;
            return Ok(v.map_or(Val::Const(dtype.zero()), Val::Vector));
        }
        let mut lanes = SmallVec::new();
        for lane in 0..count {
            let address = self.lane_element(memory, index, lane)?;
            let allowed = self.lane_bit(&bits, lane);
            lanes.push(self.load_one(dtype, address, Some(allowed))?);
        }
        Ok(Val::Each(lanes))
    }

    /// Writes an element where the mask is true or absent.
    pub(super) fn store(&mut self, memory: Memory, index: &IndexExpr, v: &Val, mask: Option<&Val>) -> Result<()> {
        let dtype = self.kernel.memory_dtype(memory);
        match mask {
            Some(Val::Const(m)) if !m.as_bool() => return Ok(()),
            Some(Val::Const(_)) => return self.store(memory, index, v, None),
            _ => {}
        }
        if self.is_register(memory) {
            return self.store_register(memory, index, v, mask);
        }
        let r = self.resolve(index)?;
        if let Some(mask) = mask.filter(|m| m.varies()) {
            return self.store_masked(memory, index, &r, v, mask);
        }
        let count = self.lane_count();
        let cond = mask.map(|m| self.scalar(m, 0));
        if r.lane == LaneUse::None {
            // Every lane writes the same place: the last one stays.
            let x = self.scalar(v, count - 1);
            let address = self.address(memory, &r);
            return self.store_one(address, x, cond);
        }
        if let Some((address, offsets)) = self.stepped(memory, &r)
            && self.has.stores_lanes(dtype, &offsets)
            && self.aligned(&address)
        {
            let value = self.vector(v);
            return self.stored(cond, |b| b.store_lanes(address, &offsets, value));
        }
        for lane in 0..count {
            let x = self.scalar(v, lane);
            let address = self.lane_element(memory, index, lane)?;
            self.store_one(address, x, cond)?;
        }
        Ok(())
    }

    /// A store of the lanes whose mask is true.
    fn store_masked(&mut self, memory: Memory, index: &IndexExpr, r: &Resolved, v: &Val, mask: &Val) -> Result<()> {
        let dtype = self.kernel.memory_dtype(memory);
        if let Some((address, offsets)) = self.masked(memory, r)
            && self.has.stores_lanes(dtype, &offsets)
        {
            let (value, mask) = (self.vector(v), self.vector(mask));
            if let Some(count) = self.first_lanes(mask).filter(|_| self.has.stores_parts()) {
                return self.store_first(address, value, count);
            }
            self.push(Item::Store {
                address,
                offsets,
                value,
                mask: Some(mask),
            });
            return Ok(());
        }
        let (bits, all) = self.mask_lanes(mask);
        let one_by_one = |b: &mut Self| -> Result<()> {
            for lane in 0..b.lane_count() {
                let address = b.lane_element(memory, index, lane)?;
                let x = b.scalar(v, lane);
                let allowed = b.lane_bit(&bits, lane);
                b.store_one(address, x, Some(allowed))?;
            }
            Ok(())
        };
        if r.lane == LaneUse::Affine(1)
            && let Some((address, offsets)) = self.stepped(memory, r)
            && self.has.stores_lanes(dtype, &offsets)
            && !self.has.masks_scalars()
        {
            let value = self.vector(v);
            self.guard(
                all,
                |b| {
                    b.store_lanes(address, &offsets, value);
                    Ok(None)
                },
                |b| one_by_one(b).map(|()| None),
            )?;
            return Ok(());
        }
        one_by_one(self)
    }

    /// How many lanes a mask has, if it is known to be the first ones.
    fn first_lanes(&self, mask: Value) -> Option<u32> {
        let known = |v: Value| match &self.info(v).op {
            Op::Const(c) => Some(c.as_i64()),
            _ => None,
        };
        let Op::Map(ScalarOp::Lt, args) = &self.info(mask).op else {
            return None;
        };
        match (&self.info(args[0]).op, &self.info(args[1]).op) {
            (&Op::Series { first, step: 1 }, &Op::Splat(end)) => {
                let count = known(end)?.checked_sub(known(first)?)?;
                Some(count.clamp(0, i64::from(self.lane_count())) as u32)
            }
            _ => None,
        }
    }

    /// Stores the first lanes of a vector by stores of 1, 2, 4 and so on of them.
    fn store_first(&mut self, mut address: Address, value: Value, count: u32) -> Result<()> {
        let dtype = self.dtype(value);
        let mut at = 0;
        while at < count {
            let lanes = 1 << (count - at).ilog2();
            let part = match lanes {
                1 => self.shared(Op::Lane(value, at as u8), dtype, 1),
                _ if lanes == self.lane_count() => value,
                _ => self.shared(Op::Part(value, at as u8), dtype, lanes),
            };
            match lanes {
                1 => self.store_one(address, part, None)?,
                _ => self.store_lanes(address, &(0..lanes as u8).collect(), part),
            }
            address.constant = address.constant.wrapping_add(i64::from(lanes));
            at += lanes;
        }
        Ok(())
    }

    /// Neighbouring elements of lanes, where the emitter accesses those of some lanes only.
    fn masked(&mut self, memory: Memory, r: &Resolved) -> Option<(Address, Offsets)> {
        let dtype = self.kernel.memory_dtype(memory);
        let neighbours = r.lane == LaneUse::Affine(1);
        let (address, offsets) = self
            .stepped(memory, r)
            .filter(|_| neighbours && self.has.masks_lanes(dtype))?;
        (self.fits(dtype) && self.aligned(&address)).then_some((address, offsets))
    }

    /// Every other element, where the emitter loads those of some lanes only.
    fn masked_every_other(&mut self, memory: Memory, r: &Resolved) -> Option<(Address, Offsets)> {
        let dtype = self.kernel.memory_dtype(memory);
        let masks = r.lane == LaneUse::Affine(2) && self.has.masks_every_other(dtype);
        let (address, offsets) = self.stepped(memory, r).filter(|_| masks)?;
        (self.fits(dtype) && self.aligned(&address)).then_some((address, offsets))
    }

    /// The lowest element that lanes access which go by a step, and those of all lanes from there.
    fn stepped(&mut self, memory: Memory, r: &Resolved) -> Option<(Address, Offsets)> {
        let LaneUse::Affine(step) = r.lane else { return None };
        let dtype = self.kernel.memory_dtype(memory);
        if self.lane_count() == 1 || !self.fits(dtype) && !self.has.aligns_lanes() {
            return None;
        }
        let last = i64::from(self.lane_count() - 1);
        let lowest = step.min(0).checked_mul(last)?;
        let mut offsets = Offsets::new();
        for lane in 0..=last {
            offsets.push(u8::try_from(step.checked_mul(lane)?.checked_sub(lowest)?).ok()?);
        }
        let mut address = self.address(memory, r);
        address.constant = address.constant.wrapping_add(lowest);
        Some((address, offsets))
    }

    /// Whether the lanes of an access begin where the emitter has them begin.
    fn aligned(&self, address: &Address) -> bool {
        let lanes = i64::from(self.lane_count());
        !self.has.aligns_lanes() || self.begins_at(address, lanes)
    }

    /// Whether the number of an element is known to be a multiple of a number.
    pub(super) fn begins_at(&self, address: &Address, of: i64) -> bool {
        address.constant % of == 0 && address.parts().all(|v| self.is_multiple(v, of))
    }

    /// Whether an index is known to be a multiple of a number.
    fn is_multiple(&self, v: Value, of: i64) -> bool {
        match &self.info(v).op {
            Op::Const(c) => c.as_i64() % of == 0,
            Op::Sum { terms, constant } => {
                let whole = |&(t, k): &(Value, i64)| {
                    // What the coefficient lacks the term must have.
                    let shared = gcd(k.unsigned_abs(), of.unsigned_abs()) as i64;
                    self.is_multiple(t, of / shared)
                };
                constant % of == 0 && (of == 1 || terms.iter().all(whole))
            }
            Op::Product(factors) => factors.iter().any(|&f| self.is_multiple(f, of)),
            Op::FloorMod(a, b) | Op::Smaller(a, b) | Op::Larger(a, b) => {
                self.is_multiple(*a, of) && self.is_multiple(*b, of)
            }
            _ => of == 1,
        }
    }

    /// What was loaded as one access, as a vector where vectors hold it.
    pub(super) fn in_registers(&mut self, v: Value) -> Val {
        if self.fits(self.dtype(v)) {
            return Val::Vector(v);
        }
        let loaded = Val::Vector(v);
        Val::Each((0..self.lane_count()).map(|lane| self.scalar(&loaded, lane)).collect())
    }

    /// The element of one lane.
    fn lane_element(&mut self, memory: Memory, index: &IndexExpr, lane: u32) -> Result<Address> {
        self.in_lane(lane, |b| b.element(memory, index))
    }

    pub(super) fn load_lanes(&mut self, dtype: DType, address: Address, offsets: &Offsets) -> Value {
        let load = Op::Load {
            address,
            offsets: offsets.clone(),
            mask: None,
        };
        self.make(load, dtype, self.lane_count())
    }

    fn store_lanes(&mut self, address: Address, offsets: &Offsets, value: Value) {
        self.push(Item::Store {
            address,
            offsets: offsets.clone(),
            value,
            mask: None,
        });
    }

    fn load_one(&mut self, dtype: DType, address: Address, cond: Option<Value>) -> Result<Value> {
        if self.has.masks_scalars() {
            return Ok(self.make(scalar_load(address, cond), dtype, 1));
        }
        let zero = self.constant(dtype.zero());
        match cond {
            None => Ok(self.make(scalar_load(address, None), dtype, 1)),
            Some(cond) => {
                let read = |b: &mut Self| Ok(Some(b.make(scalar_load(address, None), dtype, 1)));
                Ok(self.guard(cond, read, |_| Ok(Some(zero)))?.unwrap_or(zero))
            }
        }
    }

    fn store_one(&mut self, address: Address, value: Value, cond: Option<Value>) -> Result<()> {
        let store = |mask| Item::Store {
            address,
            offsets: Offsets::new(),
            value,
            mask,
        };
        if self.has.masks_scalars() {
            self.push(store(cond));
            return Ok(());
        }
        self.stored(cond, |b| b.push(store(None)))
    }

    fn stored(&mut self, cond: Option<Value>, body: impl FnOnce(&mut Self)) -> Result<()> {
        let Some(cond) = cond else {
            body(self);
            return Ok(());
        };
        self.guard(
            cond,
            |b| {
                body(b);
                Ok(None)
            },
            |_| Ok(None),
        )?;
        Ok(())
    }

    /// The vector that `body` makes, or zero without running it where the condition is false.
    fn guarded(
        &mut self,
        cond: Option<Value>,
        dtype: DType,
        body: impl FnOnce(&mut Self) -> Result<Value>,
    ) -> Result<Value> {
        match cond {
            None => body(self),
            Some(cond) => {
                let zero = self.vector(&Val::Const(dtype.zero()));
                let v = self.guard(cond, |b| body(b).map(Some), |_| Ok(Some(zero)))?;
                Ok(v.unwrap_or(zero))
            }
        }
    }

    /// A mask by lanes, and whether all lanes are true.
    fn mask_lanes(&mut self, mask: &Val) -> (MaskBits, Value) {
        match mask {
            Val::Vector(m) => {
                let all = self.shared(Op::AllLanes(*m), DType::Bool, 1);
                (MaskBits::Bits(self.shared(Op::LaneBits(*m), DType::U32, 1)), all)
            }
            other => {
                let lanes: SmallVec<[Value; 4]> = (0..self.lane_count()).map(|lane| self.scalar(other, lane)).collect();
                let mut all = lanes[0];
                for lane in &lanes[1..] {
                    let both = Op::Map(ScalarOp::And, SmallVec::from_slice(&[all, *lane]));
                    all = self.shared(both, DType::Bool, 1);
                }
                (MaskBits::Lanes(lanes), all)
            }
        }
    }

    fn lane_bit(&mut self, bits: &MaskBits, lane: u32) -> Value {
        match bits {
            MaskBits::Bits(bits) => self.make(Op::Bit(*bits, lane as u8), DType::Bool, 1),
            MaskBits::Lanes(lanes) => lanes[lane as usize],
        }
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn scalar_load(address: Address, mask: Option<Value>) -> Op {
    Op::Load {
        address,
        offsets: Offsets::new(),
        mask,
    }
}

/// Places that differ by constants: the lowest, and all of them from there.
fn near(places: &[Address]) -> Option<(Address, Offsets)> {
    let first = places.first()?;
    let same = |p: &Address| (p.memory, p.uniform, p.varying) == (first.memory, first.uniform, first.varying);
    if !places.iter().all(same) {
        return None;
    }
    let lowest = places.iter().map(|p| p.constant).min()?;
    let offsets = places
        .iter()
        .map(|p| u8::try_from(p.constant.checked_sub(lowest)?).ok())
        .collect::<Option<Offsets>>()?;
    let address = Address {
        constant: lowest,
        ..*first
    };
    Some((address, offsets))
}
