//! Values: constants, scalars, vectors and lanes, and the ways between them.

use cranelift_codegen::ir::immediates::{Ieee32, Ieee64};
use cranelift_codegen::ir::{ConstantData, InstBuilder, MemFlagsData, Type, Value, condcodes::IntCC, types};
use smallvec::SmallVec;
use tlc_ir::{DType, IndexExpr, Scalar, ScalarOp};

use super::index::LaneUse;
use super::translate::{MemoKey, Translator};
use crate::error::{Result, invalid};

/// A value of the kernel.
#[derive(Clone, Debug)]
pub(super) enum Val {
    /// Known now; materialized where it is used.
    Const(Scalar),
    /// Equal in every lane. A bool is an i8 of 0 or 1, a 16-bit float the i16 of its bits.
    Scalar(Value),
    /// One element per lane in the low lanes of 128 bits. Bools are masks as wide as `128 / lanes` bits.
    Vector(Value),
    /// One scalar per lane.
    Lanes(SmallVec<[Value; 4]>),
}

impl Val {
    pub fn constant(&self) -> Option<Scalar> {
        match self {
            Val::Const(c) => Some(*c),
            _ => None,
        }
    }

    /// True if lanes may differ.
    pub fn varies(&self) -> bool {
        matches!(self, Val::Vector(_) | Val::Lanes(_))
    }
}

/// The Cranelift type of one element.
pub(super) fn scalar_type(dtype: DType) -> Type {
    match dtype {
        DType::F32 => types::F32,
        DType::F64 => types::F64,
        d => int_type(d.bits()),
    }
}

/// The integer type of that many bits.
pub(super) fn int_type(bits: u32) -> Type {
    match bits {
        8 => types::I8,
        16 => types::I16,
        32 => types::I32,
        _ => types::I64,
    }
}

/// The full vector type over an element type.
pub(super) fn full(element: Type) -> Type {
    match element.bits() {
        8 => types::I8X16,
        16 => types::I16X8,
        32 if element.is_float() => types::F32X4,
        32 => types::I32X4,
        _ if element.is_float() => types::F64X2,
        _ => types::I64X2,
    }
}

impl Translator<'_, '_> {
    /// Iterations of the lanes loop, 1 outside of one or in code for one lane.
    pub(super) fn lane_count(&self) -> u32 {
        match self.lanes {
            Some(l) if l.current.is_none() => l.count,
            _ => 1,
        }
    }

    /// Bits of a lane of a full vector: the width of a mask. `None` where lanes do not make vectors.
    pub(super) fn lane_bits(&self) -> Option<u32> {
        match self.lanes {
            Some(l) if self.vectors && matches!(l.count, 2 | 4 | 8 | 16) => Some(128 / l.count),
            _ => None,
        }
    }

    /// The vector type of a dtype in the current lanes loop, if it has one.
    pub(super) fn vector_type(&self, dtype: DType) -> Option<Type> {
        let width = self.lane_bits()?;
        match dtype {
            DType::Bool => Some(full(int_type(width))),
            d if d.bits() <= width => Some(full(scalar_type(d))),
            _ => None,
        }
    }

    pub(super) fn type_of(&self, v: Value) -> Type {
        self.b.func.dfg.value_type(v)
    }

    /// Reinterprets bits.
    pub(super) fn cast(&mut self, to: Type, v: Value) -> Value {
        if self.type_of(v) == to {
            return v;
        }
        let flags = MemFlagsData::new().with_endianness(cranelift_codegen::ir::Endianness::Little);
        let from = self.type_of(v);
        if from.is_vector() && to.is_vector() {
            self.b.ins().bitcast(to, flags, v)
        } else {
            self.b.ins().bitcast(to, MemFlagsData::new(), v)
        }
    }

    pub(super) fn memo_get(&self, key: &MemoKey) -> Option<Value> {
        self.memo.iter().rev().find_map(|scope| scope.get(key).copied())
    }

    pub(super) fn memo_put(&mut self, key: MemoKey, value: Value) {
        if let Some(scope) = self.memo.last_mut() {
            scope.insert(key, value);
        }
    }

    /// An integer constant of a scalar or vector type, sign-extended or cut to the element.
    pub(super) fn int(&mut self, ty: Type, value: i64) -> Value {
        if ty.is_vector() {
            let bytes = (ty.lane_bits() / 8) as usize;
            let data: Vec<u8> = value.to_le_bytes()[..bytes].repeat(16 / bytes);
            let handle = self.b.func.dfg.constants.insert(ConstantData::from(data));
            return self.b.ins().vconst(ty, handle);
        }
        let bits = ty.bits();
        let cut = if bits == 64 {
            value
        } else {
            value & ((1i64 << bits) - 1)
        };
        self.b.ins().iconst(ty, cut)
    }

    /// A float constant of a scalar or vector type.
    pub(super) fn float(&mut self, ty: Type, value: f64) -> Value {
        match (ty.is_vector(), ty.lane_type()) {
            (true, types::F32) => {
                let v = self.int(types::I32X4, (value as f32).to_bits() as i64);
                self.cast(ty, v)
            }
            (true, _) => {
                let v = self.int(types::I64X2, value.to_bits() as i64);
                self.cast(ty, v)
            }
            (false, types::F32) => self.b.ins().f32const(Ieee32::with_float(value as f32)),
            (false, _) => self.b.ins().f64const(Ieee64::with_float(value)),
        }
    }

    fn constant_scalar(&mut self, c: Scalar) -> Value {
        match c.dtype() {
            DType::F32 => self.b.ins().f32const(Ieee32::with_bits(c.bits() as u32)),
            DType::F64 => self.b.ins().f64const(Ieee64::with_bits(c.bits())),
            d => self.int(scalar_type(d), c.bits() as i64),
        }
    }

    fn constant_vector(&mut self, c: Scalar, ty: Type) -> Value {
        let key = MemoKey::Const(c, ty);
        if let Some(v) = self.memo_get(&key) {
            return v;
        }
        let v = match c.dtype() {
            DType::Bool => self.int(ty, -(c.bits() as i64)),
            _ if ty.lane_type().is_float() => {
                let data: Vec<u8> = c.bits().to_le_bytes()[..c.dtype().bytes()].repeat(16 / c.dtype().bytes());
                let handle = self.b.func.dfg.constants.insert(ConstantData::from(data));
                self.b.ins().vconst(ty, handle)
            }
            _ => self.int(ty, c.bits() as i64),
        };
        self.memo_put(key, v);
        v
    }

    /// The scalar of one lane.
    pub(super) fn scalar(&mut self, v: &Val, dtype: DType, lane: u32) -> Value {
        match v {
            Val::Const(c) => self.constant_scalar(*c),
            Val::Scalar(v) => *v,
            Val::Lanes(lanes) => lanes[lane as usize],
            Val::Vector(v) => {
                let element = self.b.ins().extractlane(*v, lane as u8);
                if dtype == DType::Bool {
                    let zero = self.int(self.type_of(element), 0);
                    self.b.ins().icmp(IntCC::NotEqual, element, zero)
                } else {
                    element
                }
            }
        }
    }

    /// The value as a vector of type `ty`, which is `vector_type(dtype)`.
    pub(super) fn vector(&mut self, v: &Val, dtype: DType, ty: Type) -> Value {
        match v {
            Val::Vector(v) => *v,
            Val::Const(c) => self.constant_vector(*c, ty),
            Val::Scalar(s) => {
                let key = MemoKey::Splat(*s, ty, dtype == DType::Bool);
                if let Some(v) = self.memo_get(&key) {
                    return v;
                }
                let element = self.lane_element(*s, dtype, ty);
                let v = self.b.ins().splat(ty, element);
                self.memo_put(key, v);
                v
            }
            Val::Lanes(lanes) => {
                let first = self.lane_element(lanes[0], dtype, ty);
                let mut v = self.low_lane(first, ty);
                for (i, lane) in lanes.iter().enumerate().skip(1) {
                    let element = self.lane_element(*lane, dtype, ty);
                    v = self.b.ins().insertlane(v, element, i as u8);
                }
                v
            }
        }
    }

    /// A vector whose lane 0 is `element`; what the others hold is open.
    pub(super) fn low_lane(&mut self, element: Value, ty: Type) -> Value {
        match self.type_of(element) {
            types::I8 | types::I16 => {
                let wide = self.b.ins().uextend(types::I32, element);
                let v = self.b.ins().scalar_to_vector(types::I32X4, wide);
                self.cast(ty, v)
            }
            _ => self.b.ins().scalar_to_vector(ty, element),
        }
    }

    /// A scalar as what a lane of `ty` holds: bools become all ones or zero.
    pub(super) fn lane_element(&mut self, s: Value, dtype: DType, ty: Type) -> Value {
        if dtype != DType::Bool {
            return s;
        }
        let negated = self.b.ins().ineg(s);
        match ty.lane_type() {
            types::I8 => negated,
            wide => self.b.ins().sextend(wide, negated),
        }
    }

    /// `cond ? a : b` for a scalar i8 condition or a mask as wide as the lanes of `a` and `b`.
    pub(super) fn select(&mut self, cond: Value, a: Value, b: Value) -> Value {
        let ty = self.type_of(a);
        if ty.is_vector() {
            let cond = self.cast(ty, cond);
            self.b.ins().bitselect(cond, a, b)
        } else {
            self.b.ins().select(cond, a, b)
        }
    }

    /// The same bits as another dtype.
    pub(super) fn bitcast_value(&mut self, from: DType, to: DType, v: &Val) -> Result<Val> {
        if from.bits() != to.bits() {
            return invalid(format!("bitcast from {from} to {to}"));
        }
        // A bool has two bit patterns, so it is not the same bits as an integer mask.
        if from == DType::Bool || to == DType::Bool {
            let through = if from == DType::Bool { DType::U8 } else { from };
            let v = self.convert(from, through, v)?;
            let v = self.bitcast_value(through, if to == DType::Bool { DType::U8 } else { to }, &v)?;
            return if to == DType::Bool {
                self.convert(DType::U8, to, &v)
            } else {
                Ok(v)
            };
        }
        // The bits above a narrower value are dropped.
        if to.value_bits() < 8 && from.value_bits() > to.value_bits() {
            let whole = self.bitcast_value(from, DType::U8, v)?;
            let value = Scalar::from_bits(DType::U8, (1 << to.value_bits()) - 1);
            let low = self.map(ScalarOp::And, DType::U8, &[whole, Val::Const(value)])?;
            return self.recast(to, &low);
        }
        self.recast(to, v)
    }

    /// The same bits under the Cranelift type of another dtype.
    fn recast(&mut self, to: DType, v: &Val) -> Result<Val> {
        Ok(match v {
            Val::Const(c) => Val::Const(Scalar::from_bits(to, c.bits())),
            Val::Scalar(v) => Val::Scalar(self.cast(scalar_type(to), *v)),
            Val::Vector(v) => Val::Vector(self.cast(full(scalar_type(to)), *v)),
            Val::Lanes(lanes) => Val::Lanes(lanes.iter().map(|v| self.cast(scalar_type(to), *v)).collect()),
        })
    }

    /// The value of [`tlc_ir::kernel::Op::Index`].
    pub(super) fn index_value(&mut self, index: &IndexExpr, to: DType) -> Result<Val> {
        let lane = self.lane_use(index)?;
        if let (LaneUse::None, Some(c)) = (lane, index.as_const()) {
            return Ok(Val::Const(Scalar::from_i64(to, c)));
        }
        if lane == LaneUse::None {
            let v = self.eval(index)?;
            return self.convert(DType::I64, to, &Val::Scalar(v));
        }
        let LaneUse::Affine(step) = lane else {
            let mut lanes = SmallVec::new();
            self.each_lane(|t| {
                let v = t.eval(index)?;
                lanes.push(v);
                Ok(())
            })?;
            return self.convert(DType::I64, to, &Val::Lanes(lanes));
        };
        let first = self.in_lane(0, |t| t.eval(index))?;
        let count = self.lane_count();
        // Indices that fit the lanes are added there: one splat and one add for all lanes.
        let range = index.interval(self.kernel);
        let small = range.lo >= i32::MIN as i64 && range.hi <= i32::MAX as i64;
        let through = match to {
            DType::F32 | DType::I32 | DType::U32 if small && self.vector_type(DType::I32).is_some() => Some(DType::I32),
            DType::I64 | DType::U64 => Some(DType::I64),
            d if d.is_int() => Some(d),
            _ => None,
        };
        if let Some(through) = through
            && let Some(ty) = self.vector_type(through)
        {
            let base = self.convert(DType::I64, through, &Val::Scalar(first))?;
            let base = self.vector(&base, through, ty);
            let bytes = (ty.lane_bits() / 8) as usize;
            let data: Vec<u8> = (0..ty.lane_count() as i64)
                .flat_map(|lane| lane.wrapping_mul(step).to_le_bytes()[..bytes].to_vec())
                .collect();
            let handle = self.b.func.dfg.constants.insert(ConstantData::from(data));
            let steps = self.b.ins().vconst(ty, handle);
            let v = Val::Vector(self.b.ins().iadd(base, steps));
            return if to == DType::F32 {
                self.convert(DType::I32, to, &v)
            } else {
                self.bitcast_value(through, to, &v)
            };
        }
        let lanes = (0..count as i64)
            .map(|lane| self.add_const(first, lane.wrapping_mul(step)))
            .collect();
        self.convert(DType::I64, to, &Val::Lanes(lanes))
    }

    /// `v + c` on i64.
    pub(super) fn add_const(&mut self, v: Value, c: i64) -> Value {
        if c == 0 {
            return v;
        }
        self.b.ins().iadd_imm_s(v, c)
    }
}
