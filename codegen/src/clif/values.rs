//! Types, constants and moves of values.

use cranelift_codegen::ir::immediates::{Ieee32, Ieee64};
use cranelift_codegen::ir::{ConstantData, InstBuilder, MemFlagsData, Type, Value, types};
use tlc_ir::{DType, Scalar};

use super::table::VECTOR_BITS;
use super::translate::{MemoKey, Translator};
use crate::flat;

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

impl Translator<'_, '_, '_> {
    /// Bits of a lane of a full vector: the width of a mask.
    pub(super) fn lane_bits(&self) -> u32 {
        VECTOR_BITS / self.lanes
    }

    /// The vector type of a dtype in the lanes of the current operation.
    pub(super) fn vector_type(&self, dtype: DType) -> Type {
        match dtype {
            DType::Bool => full(int_type(self.lane_bits())),
            d => full(scalar_type(d)),
        }
    }

    /// The type of a value.
    pub(super) fn type_for(&self, v: flat::Value) -> Type {
        let info = self.flat.info(v);
        match (info.lanes, info.dtype) {
            (1, d) => scalar_type(d),
            (lanes, DType::Bool) => full(int_type(VECTOR_BITS / lanes)),
            (_, d) => full(scalar_type(d)),
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

    pub(super) fn constant_scalar(&mut self, c: Scalar) -> Value {
        match c.dtype() {
            DType::F32 => self.b.ins().f32const(Ieee32::with_bits(c.bits() as u32)),
            DType::F64 => self.b.ins().f64const(Ieee64::with_bits(c.bits())),
            d => self.int(scalar_type(d), c.bits() as i64),
        }
    }

    pub(super) fn constant_vector(&mut self, c: Scalar, ty: Type) -> Value {
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

    /// `v + c` on i64.
    pub(super) fn add_const(&mut self, v: Value, c: i64) -> Value {
        if c == 0 {
            return v;
        }
        self.b.ins().iadd_imm_s(v, c)
    }
}
