//! Loads, stores and accumulation.
//!
//! Invariants:
//! - A masked access computes its address always and touches memory only where its mask is true.
//! - Stores of a lanes loop to one element happen in lane order.
//! - Consecutive lanes move as one access of exactly their bytes: no kernel reads past a buffer's end.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::immediates::V128Imm;
use cranelift_codegen::ir::{ConstantData, InstBuilder, MemFlagsData, Type, Value, types};
use smallvec::SmallVec;
use tlc_ir::graph::Monoid;
use tlc_ir::kernel::{Memory, ValueId};
use tlc_ir::{DType, IndexExpr, ScalarOp};

use super::index::LaneUse;
use super::translate::Translator;
use super::values::{Val, full, int_type, scalar_type};
use crate::error::{Result, invalid};

impl Translator<'_, '_> {
    fn is_register(&self, memory: Memory) -> bool {
        matches!(memory, Memory::Scratch(i) if self.registers.get(i as usize).is_some_and(Option::is_some))
    }

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
        let mut r = self.resolve(index)?;
        let flags = self.area(memory)?.flags;
        let bytes = dtype.bytes() as i64;
        let element = scalar_type(dtype);
        // Which lanes may be read: `None` for all.
        let mask = match mask {
            Some(m) if m.varies() => Some(self.mask_lanes(m)),
            other => {
                let uniform = other.map(|m| self.scalar(m, DType::Bool, 0));
                let count = self.lane_count() as i64;
                return match (r.lane, self.vector_type(dtype)) {
                    (LaneUse::None, _) => {
                        let (base, offset) = self.address(memory, &mut r)?;
                        let (base, offset) = self.fit_offset(base, offset, 0);
                        let v = self.guarded(uniform, element, |t| Ok(t.b.ins().load(element, flags, base, offset)))?;
                        Ok(Val::Scalar(v))
                    }
                    (LaneUse::Affine(step @ (1 | -1)), Some(ty)) => {
                        let (base, offset) = self.address(memory, &mut r)?;
                        let offset = if step < 0 { offset - (count - 1) * bytes } else { offset };
                        let (base, offset) = self.fit_offset(base, offset, 0);
                        let v = self.guarded(uniform, ty, |t| {
                            Ok(t.load_vector(dtype, ty, flags, base, offset, step < 0))
                        })?;
                        Ok(Val::Vector(v))
                    }
                    (LaneUse::Affine(2), Some(ty)) if bytes * count == 16 && dtype != DType::Bool => {
                        let (base, offset) = self.address(memory, &mut r)?;
                        let (base, offset) = self.fit_offset(base, offset, 2 * 16);
                        let v =
                            self.guarded(uniform, ty, |t| Ok(t.load_every_second(dtype, ty, flags, base, offset)))?;
                        Ok(Val::Vector(v))
                    }
                    (_, Some(ty)) if dtype != DType::Bool => {
                        self.guarded_lanes(uniform, dtype, ty, |t| t.load_lanes(memory, index, ty, flags))
                    }
                    _ => {
                        let mut lanes = SmallVec::new();
                        for lane in 0..count {
                            let (base, offset) = self.lane_address(memory, index, lane as u32)?;
                            let v =
                                self.guarded(uniform, element, |t| Ok(t.b.ins().load(element, flags, base, offset)))?;
                            lanes.push(v);
                        }
                        Ok(Val::Lanes(lanes))
                    }
                };
            }
        };
        let (bits, all) = mask.unwrap_or_else(|| unreachable!("handled above"));
        let count = self.lane_count();
        // All lanes at once where all may be read, as in every iteration but the last of a masked tail.
        if let (LaneUse::Affine(1), Some(ty)) = (r.lane, self.vector_type(dtype)) {
            let (base, offset) = self.address(memory, &mut r)?;
            let (base, offset) = self.fit_offset(base, offset, (count as i64 - 1) * bytes);
            let (fast, slow, after) = (self.b.create_block(), self.b.create_block(), self.b.create_block());
            let result = self.b.append_block_param(after, ty);
            self.b.ins().brif(all, fast, &[], slow, &[]);
            self.enter(fast);
            let v = self.load_vector(dtype, ty, flags, base, offset, false);
            self.b.ins().jump(after, &[v.into()]);
            self.enter(slow);
            let mut v = self.int_or_float_zero(ty);
            for lane in 0..count {
                let allowed = self.lane_bit(&bits, lane);
                v = self.value_if(allowed, v, |t| {
                    let at = offset + (lane as i64 * bytes) as i32;
                    let x = t.b.ins().load(element, flags, base, at);
                    let x = t.lane_element(x, dtype, ty);
                    Ok(t.b.ins().insertlane(v, x, lane as u8))
                })?;
            }
            self.b.ins().jump(after, &[v.into()]);
            self.enter(after);
            return Ok(Val::Vector(result));
        }
        let mut lanes = SmallVec::new();
        for lane in 0..count {
            let (base, offset) = self.lane_address(memory, index, lane)?;
            let allowed = self.lane_bit(&bits, lane);
            let v = self.guarded(Some(allowed), element, |t| {
                Ok(t.b.ins().load(element, flags, base, offset))
            })?;
            lanes.push(v);
        }
        Ok(Val::Lanes(lanes))
    }

    /// An element for each lane, whose places follow from no step. Neighbouring elements of which some are meant twice, as
    /// where an image is enlarged, move together.
    fn load_lanes(&mut self, memory: Memory, index: &IndexExpr, ty: Type, flags: MemFlagsData) -> Result<Val> {
        let dtype = self.kernel.memory_dtype(memory);
        let (count, bytes) = (self.lane_count(), dtype.bytes() as i32);
        let mut places: SmallVec<[(Value, i32); 8]> = SmallVec::new();
        for lane in 0..count {
            places.push(self.lane_address(memory, index, lane)?);
        }
        let (base, first) = places[0];
        let elements: SmallVec<[i32; 8]> = places.iter().map(|p| (p.1 - first) / bytes).collect();
        let last = elements[elements.len() - 1];
        let neighbours = places.iter().all(|p| p.0 == base && (p.1 - first) % bytes == 0)
            && elements.windows(2).all(|e| (0..=1).contains(&(e[1] - e[0])));
        if neighbours && bytes == 4 && count == 4 && matches!(last, 1 | 2) {
            let v = self.load_repeated(ty, flags, base, first, &elements);
            return Ok(Val::Vector(v));
        }
        let element = scalar_type(dtype);
        let load = |t: &mut Self, (base, offset)| t.b.ins().load(element, flags, base, offset);
        Ok(Val::Lanes(places.into_iter().map(|place| load(self, place)).collect()))
    }

    /// Elements of 4 bytes by their numbers from the first, of which there are two or three: two pairs, the second of which
    /// ends with the last element wanted.
    fn load_repeated(&mut self, ty: Type, flags: MemFlagsData, base: Value, first: i32, elements: &[i32]) -> Value {
        let last = elements.iter().copied().max().unwrap_or(1);
        let pair = |t: &mut Self, offset| {
            let x = t.b.ins().load(types::F64, flags, base, offset);
            let x = t.b.ins().scalar_to_vector(types::F64X2, x);
            t.cast(types::I8X16, x)
        };
        let low = pair(self, first);
        let high = match last {
            1 => low,
            _ => pair(self, first + 4 * (last - 1)),
        };
        let mask: Vec<u8> = (0..16)
            .map(|byte| {
                let (element, inside) = (elements[byte / 4], (byte % 4) as i32);
                // Bytes of the second pair are numbered from 16.
                let from = match element {
                    0 | 1 => 4 * element,
                    _ => 16 + 4,
                };
                (from + inside) as u8
            })
            .collect();
        let mask = self.b.func.dfg.immediates.push(ConstantData::from(V128Imm(
            <[u8; 16]>::try_from(mask).unwrap_or([0; 16]),
        )));
        let picked = self.b.ins().shuffle(low, high, mask);
        self.cast(ty, picked)
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
        let mut r = self.resolve(index)?;
        let flags = self.area(memory)?.flags;
        let bytes = dtype.bytes() as i64;
        let count = self.lane_count();
        if let Some(m) = mask.filter(|m| m.varies()) {
            let (bits, all) = self.mask_lanes(m);
            let fast = match (r.lane, self.vector_type(dtype)) {
                (LaneUse::Affine(1), Some(ty)) => Some(ty),
                _ => None,
            };
            let after = self.b.create_block();
            if let Some(ty) = fast {
                let vector = self.vector(v, dtype, ty);
                let (base, offset) = self.address(memory, &mut r)?;
                let (base, offset) = self.fit_offset(base, offset, 0);
                let (then, slow) = (self.b.create_block(), self.b.create_block());
                self.b.ins().brif(all, then, &[], slow, &[]);
                self.enter(then);
                self.store_vector(dtype, flags, vector, base, offset, false);
                self.b.ins().jump(after, &[]);
                self.enter(slow);
                self.memo.push(Default::default());
            }
            for lane in 0..count {
                let (base, offset) = self.lane_address(memory, index, lane)?;
                let x = self.scalar(v, dtype, lane);
                let allowed = self.lane_bit(&bits, lane);
                self.store_if(Some(allowed), |t| {
                    t.b.ins().store(flags, x, base, offset);
                });
            }
            if fast.is_some() {
                self.memo.pop();
            }
            self.b.ins().jump(after, &[]);
            self.enter(after);
            return Ok(());
        }
        let uniform = mask.map(|m| self.scalar(m, DType::Bool, 0));
        match (r.lane, self.vector_type(dtype)) {
            (LaneUse::None, _) => {
                // Every lane writes the same place: the last one stays.
                let x = self.scalar(v, dtype, count - 1);
                let (base, offset) = self.address(memory, &mut r)?;
                let (base, offset) = self.fit_offset(base, offset, 0);
                self.store_if(uniform, |t| {
                    t.b.ins().store(flags, x, base, offset);
                });
            }
            (LaneUse::Affine(step @ (1 | -1)), Some(ty)) => {
                let x = self.vector(v, dtype, ty);
                let (base, offset) = self.address(memory, &mut r)?;
                let offset = if step < 0 {
                    offset - (count as i64 - 1) * bytes
                } else {
                    offset
                };
                let (base, offset) = self.fit_offset(base, offset, 0);
                self.store_if(uniform, |t| t.store_vector(dtype, flags, x, base, offset, step < 0));
            }
            _ => {
                for lane in 0..count {
                    let x = self.scalar(v, dtype, lane);
                    let (base, offset) = self.lane_address(memory, index, lane)?;
                    self.store_if(uniform, |t| {
                        t.b.ins().store(flags, x, base, offset);
                    });
                }
            }
        }
        Ok(())
    }

    /// Base and offset of one lane's element.
    fn lane_address(&mut self, memory: Memory, index: &IndexExpr, lane: u32) -> Result<(Value, i32)> {
        let (base, offset) = self.in_lane(lane, |t| {
            let mut r = t.resolve(index)?;
            t.address(memory, &mut r)
        })?;
        Ok(self.fit_offset(base, offset, 0))
    }

    /// The value of `body`, or zero without running it where the condition is false.
    fn guarded(
        &mut self,
        cond: Option<Value>,
        ty: Type,
        body: impl FnOnce(&mut Self) -> Result<Value>,
    ) -> Result<Value> {
        match cond {
            None => body(self),
            Some(cond) => {
                let zero = self.int_or_float_zero(ty);
                self.value_if(cond, zero, body)
            }
        }
    }

    /// As [`Self::guarded`] for a value of each lane: one test for all of them.
    fn guarded_lanes(
        &mut self,
        cond: Option<Value>,
        dtype: DType,
        ty: Type,
        body: impl FnOnce(&mut Self) -> Result<Val>,
    ) -> Result<Val> {
        if cond.is_none() {
            return body(self);
        }
        let v = self.guarded(cond, ty, |t| {
            let lanes = body(t)?;
            Ok(t.vector(&lanes, dtype, ty))
        })?;
        Ok(Val::Vector(v))
    }

    fn store_if(&mut self, cond: Option<Value>, body: impl FnOnce(&mut Self)) {
        let Some(cond) = cond else { return body(self) };
        let (then, after) = (self.b.create_block(), self.b.create_block());
        self.b.ins().brif(cond, then, &[], after, &[]);
        self.enter(then);
        self.memo.push(Default::default());
        body(self);
        self.memo.pop();
        self.b.ins().jump(after, &[]);
        self.enter(after);
    }

    fn int_or_float_zero(&mut self, ty: Type) -> Value {
        if ty.lane_type().is_float() {
            self.float(ty, 0.0)
        } else {
            self.int(ty, 0)
        }
    }

    /// A mask as bits of an i32, lane 0 lowest, and whether all lanes are true.
    fn mask_lanes(&mut self, mask: &Val) -> (MaskBits, Value) {
        match mask {
            Val::Vector(m) => {
                let all = self.b.ins().vall_true(*m);
                (MaskBits::Bits(self.b.ins().vhigh_bits(types::I32, *m)), all)
            }
            other => {
                let lanes: SmallVec<[Value; 4]> = (0..self.lane_count())
                    .map(|lane| self.scalar(other, DType::Bool, lane))
                    .collect();
                let mut all = lanes[0];
                for lane in &lanes[1..] {
                    all = self.b.ins().band(all, *lane);
                }
                (MaskBits::Lanes(lanes), all)
            }
        }
    }

    fn lane_bit(&mut self, bits: &MaskBits, lane: u32) -> Value {
        match bits {
            MaskBits::Bits(bits) => self.b.ins().band_imm_u(*bits, 1i64 << lane),
            MaskBits::Lanes(lanes) => lanes[lane as usize],
        }
    }

    /// Consecutive elements as a vector of `ty`, in reverse lane order if asked.
    fn load_vector(
        &mut self,
        dtype: DType,
        ty: Type,
        flags: MemFlagsData,
        base: Value,
        offset: i32,
        reverse: bool,
    ) -> Value {
        let stored = if dtype == DType::Bool { types::I8X16 } else { ty };
        let mut v = match self.lane_count() * dtype.bits() {
            128 => self.b.ins().load(stored, flags, base, offset),
            64 => {
                let x = self.b.ins().load(types::F64, flags, base, offset);
                let x = self.b.ins().scalar_to_vector(types::F64X2, x);
                self.cast(stored, x)
            }
            32 => {
                let x = self.b.ins().load(types::F32, flags, base, offset);
                let x = self.b.ins().scalar_to_vector(types::F32X4, x);
                self.cast(stored, x)
            }
            _ => {
                let x = self.b.ins().load(types::I16, flags, base, offset);
                let x = self.b.ins().uextend(types::I32, x);
                let x = self.b.ins().scalar_to_vector(types::I32X4, x);
                self.cast(stored, x)
            }
        };
        if reverse {
            v = self.reverse_lanes(v, dtype.bytes());
        }
        if dtype == DType::Bool {
            let wide = self.widen(v, ty.lane_bits(), false);
            let zero = self.int(ty, 0);
            // A zero-extended byte is positive if it is not 0, and `>` is one instruction where `!=` is two.
            let cc = if ty == types::I8X16 {
                IntCC::NotEqual
            } else {
                IntCC::SignedGreaterThan
            };
            v = self.b.ins().icmp(cc, wide, zero);
        }
        v
    }

    /// Every second element as a full vector of `ty`: two vectors, the second of which ends with the last element wanted.
    fn load_every_second(&mut self, dtype: DType, ty: Type, flags: MemFlagsData, base: Value, offset: i32) -> Value {
        let bytes = dtype.bytes();
        let count = 16 / bytes;
        let last = offset + ((count - 1) * bytes) as i32;
        let low = self.b.ins().load(ty, flags, base, offset);
        let high = self.b.ins().load(ty, flags, base, last);
        let mask: Vec<u8> = (0..16)
            .map(|byte| {
                let element = 2 * (byte / bytes);
                // The second vector starts with element `count - 1`, and its bytes are numbered from 16.
                let from = if element < count {
                    element * bytes
                } else {
                    16 + (element - (count - 1)) * bytes
                };
                (from + byte % bytes) as u8
            })
            .collect();
        let mask = self.b.func.dfg.immediates.push(ConstantData::from(V128Imm(
            <[u8; 16]>::try_from(mask).unwrap_or([0; 16]),
        )));
        let (low, high) = (self.cast(types::I8X16, low), self.cast(types::I8X16, high));
        let picked = self.b.ins().shuffle(low, high, mask);
        self.cast(ty, picked)
    }

    fn store_vector(&mut self, dtype: DType, flags: MemFlagsData, v: Value, base: Value, offset: i32, reverse: bool) {
        let mut v = v;
        if dtype == DType::Bool {
            let narrow = self.truncate(v, 8);
            let one = self.int(types::I8X16, 1);
            v = self.b.ins().band(narrow, one);
        }
        if reverse {
            v = self.reverse_lanes(v, dtype.bytes());
        }
        let part = match self.lane_count() * dtype.bits() {
            128 => v,
            64 => {
                let x = self.cast(types::F64X2, v);
                self.b.ins().extractlane(x, 0)
            }
            32 => {
                let x = self.cast(types::F32X4, v);
                self.b.ins().extractlane(x, 0)
            }
            _ => {
                let x = self.cast(types::I16X8, v);
                self.b.ins().extractlane(x, 0)
            }
        };
        self.b.ins().store(flags, part, base, offset);
    }

    /// The used elements of `bytes` bytes each, in reverse order.
    fn reverse_lanes(&mut self, v: Value, bytes: usize) -> Value {
        let count = self.lane_count() as usize;
        self.shuffle_bytes(v, |byte| {
            let lane = byte / bytes;
            (lane < count).then(|| (count - 1 - lane) * bytes + byte % bytes)
        })
    }

    /// Keeps the low `bits` of each used lane, packed to the low end of the vector.
    pub(super) fn truncate(&mut self, v: Value, bits: u32) -> Value {
        let from = (self.type_of(v).lane_bits() / 8) as usize;
        let to = (bits / 8) as usize;
        if from == to {
            return v;
        }
        let count = self.lane_count() as usize;
        let packed = self.shuffle_bytes(v, |byte| (byte / to < count).then(|| byte / to * from + byte % to));
        self.cast(full(int_type(bits)), packed)
    }

    /// Rearranges bytes; result byte `i` is byte `from(i)`, anything where that is `None`.
    fn shuffle_bytes(&mut self, v: Value, from: impl Fn(usize) -> Option<usize>) -> Value {
        let ty = self.type_of(v);
        let bytes: [u8; 16] = std::array::from_fn(|i| from(i).unwrap_or(i) as u8);
        let mask = self.b.func.dfg.immediates.push(ConstantData::from(V128Imm(bytes)));
        let x = self.cast(types::I8X16, v);
        let x = self.b.ins().shuffle(x, x, mask);
        self.cast(ty, x)
    }

    /// Widens the low lanes of an integer vector.
    pub(super) fn widen(&mut self, v: Value, bits: u32, signed: bool) -> Value {
        let mut v = v;
        while self.type_of(v).lane_bits() < bits {
            v = if signed {
                self.b.ins().swiden_low(v)
            } else {
                self.b.ins().uwiden_low(v)
            };
        }
        v
    }

    /// Whether an accumulation has to run lane after lane: the lanes are not known to have a state each.
    pub(super) fn accumulate_in_order(&mut self, state: &[(Memory, IndexExpr)]) -> bool {
        self.lane_count() > 1
            && !state
                .iter()
                .all(|(_, index)| matches!(self.lane_use(index), Ok(LaneUse::Affine(_))))
    }

    /// `state = state ⊕ value`.
    pub(super) fn accumulate(
        &mut self,
        monoid: Monoid,
        state: &[(Memory, IndexExpr)],
        values: &[ValueId],
    ) -> Result<()> {
        let expected = if monoid.is_arg() { 2 } else { 1 };
        if state.len() != expected || values.len() != expected {
            return invalid(format!("{} takes {expected} states and values", monoid.name()));
        }
        let (memory, index) = &state[0];
        let dtype = self.kernel.memory_dtype(*memory);
        let new = self.value(values[0])?;
        let old = self.load(*memory, index, None)?;
        if !monoid.is_arg() {
            let v = self.map(monoid.combine(), dtype, &[old, new])?;
            return self.store(*memory, index, &v, None);
        }
        let (at_memory, at_index) = &state[1];
        let at_dtype = self.kernel.memory_dtype(*at_memory);
        let new_at = self.value(values[1])?;
        let old_at = self.load(*at_memory, at_index, None)?;
        let pair = if monoid == Monoid::ArgMax {
            [old.clone(), new.clone()]
        } else {
            [new.clone(), old.clone()]
        };
        let beyond = self.map(ScalarOp::Lt, dtype, &pair)?;
        let mut equal = self.map(ScalarOp::Eq, dtype, &[new.clone(), old.clone()])?;
        let mut better = beyond;
        if dtype.is_float() {
            let new_nan = self.map(ScalarOp::Ne, dtype, &[new.clone(), new.clone()])?;
            let old_nan = self.map(ScalarOp::Ne, dtype, &[old.clone(), old.clone()])?;
            let old_number = self.map(ScalarOp::Not, DType::Bool, std::slice::from_ref(&old_nan))?;
            let first_nan = self.map(ScalarOp::And, DType::Bool, &[new_nan.clone(), old_number])?;
            let both = self.map(ScalarOp::And, DType::Bool, &[new_nan, old_nan])?;
            better = self.map(ScalarOp::Or, DType::Bool, &[better, first_nan])?;
            equal = self.map(ScalarOp::Or, DType::Bool, &[equal, both])?;
        }
        let earlier = self.map(ScalarOp::Lt, at_dtype, &[new_at.clone(), old_at.clone()])?;
        let tie = self.map(ScalarOp::And, DType::Bool, &[equal, earlier])?;
        let take = self.map(ScalarOp::Or, DType::Bool, &[better, tie])?;
        let v = self.map(ScalarOp::Select, dtype, &[take.clone(), new, old])?;
        let at = self.map(ScalarOp::Select, at_dtype, &[take, new_at, old_at])?;
        self.store(*memory, index, &v, None)?;
        self.store(*at_memory, at_index, &at, None)
    }
}

/// Which lanes of a mask are true.
enum MaskBits {
    /// Bit `i` is lane `i`.
    Bits(Value),
    /// An i8 for each lane.
    Lanes(SmallVec<[Value; 4]>),
}
