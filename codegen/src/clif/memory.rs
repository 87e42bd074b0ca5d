//! Loads and stores, and what lanes need to move.
//!
//! Invariant: consecutive lanes move as one access of exactly their bytes: no kernel reads past a buffer's end.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::immediates::V128Imm;
use cranelift_codegen::ir::{ConstantData, InstBuilder, MemFlagsData, Type, Value, types};
use tlc_ir::DType;

use super::table::Pattern;
use super::translate::Translator;
use super::values::{full, int_type};
use crate::error::{Result, unsupported};
use crate::flat::{self, Address};

impl Translator<'_, '_, '_> {
    /// An element, or one for each lane.
    pub(super) fn load(&mut self, dtype: DType, ty: Type, a: &Address, offsets: &[u8]) -> Result<Value> {
        let flags = self.area(a.memory)?.flags;
        let last = offsets.iter().copied().max().unwrap_or(0);
        let (base, offset) = self.place(a, i64::from(last) * dtype.bytes() as i64)?;
        if offsets.is_empty() {
            return Ok(self.b.ins().load(ty, flags, base, offset));
        }
        Ok(match Pattern::of(dtype, offsets) {
            Some(Pattern::Consecutive) => self.load_vector(dtype, ty, flags, base, offset, false),
            Some(Pattern::Reversed) => self.load_vector(dtype, ty, flags, base, offset, true),
            Some(Pattern::EverySecond) => self.load_every_second(dtype, ty, flags, base, offset),
            Some(Pattern::Repeated) => self.load_repeated(ty, flags, base, offset, offsets),
            None => return unsupported("lanes of elements that lie apart"),
        })
    }

    /// Writes an element, or one for each lane.
    pub(super) fn store(&mut self, a: &Address, offsets: &[u8], value: flat::Value) -> Result<()> {
        let flags = self.area(a.memory)?.flags;
        let dtype = self.flat.dtype(value);
        self.lanes = self.flat.info(value).lanes;
        let x = self.value(value);
        let last = offsets.iter().copied().max().unwrap_or(0);
        let (base, offset) = self.place(a, i64::from(last) * dtype.bytes() as i64)?;
        if offsets.is_empty() {
            self.b.ins().store(flags, x, base, offset);
            return Ok(());
        }
        let reverse = match Pattern::of(dtype, offsets) {
            Some(Pattern::Consecutive) => false,
            Some(Pattern::Reversed) => true,
            Some(Pattern::EverySecond | Pattern::Repeated) | None => {
                return unsupported("lanes of elements that lie apart");
            }
        };
        self.store_vector(dtype, flags, x, base, offset, reverse);
        Ok(())
    }

    /// Elements of 4 bytes by their numbers from the first, of which there are two or three: two pairs, the second of which
    /// ends with the last element wanted.
    fn load_repeated(&mut self, ty: Type, flags: MemFlagsData, base: Value, first: i32, elements: &[u8]) -> Value {
        let last = i32::from(elements.iter().copied().max().unwrap_or(1));
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
                let (element, inside) = (i32::from(elements[byte / 4]), (byte % 4) as i32);
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

    pub(super) fn zero(&mut self, ty: Type) -> Value {
        if ty.lane_type().is_float() {
            self.float(ty, 0.0)
        } else {
            self.int(ty, 0)
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
        let mut v = match self.lanes * dtype.bits() {
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
        let part = match self.lanes * dtype.bits() {
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
        let count = self.lanes as usize;
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
        let count = self.lanes as usize;
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
}
