//! Conversions from and to storage types ([`tlc_ir::dtype::narrow`]), as integer arithmetic on their bits.
//!
//! Decoding gives f32 or i32, which every value of a storage type fits exactly; encoding takes f32, f64 or i32. After it a
//! storage type is only loaded, stored, selected and seen as a u8.

use tlc_ir::dtype::narrow::FloatFormat;
use tlc_ir::kernel::{Op, ValueId};
use tlc_ir::{DType, Scalar, ScalarOp};

use super::Legalizer;
use crate::math::Emit;

/// What a storage type is decoded to.
pub(crate) fn decoded(storage: DType) -> DType {
    match storage.is_storage_float() {
        true => DType::F32,
        false => DType::I32,
    }
}

/// What is encoded as `storage` where `from` is the operand's dtype.
pub(crate) fn encoded(storage: DType, from: DType) -> DType {
    match from {
        _ if !storage.is_storage_float() => DType::I32,
        // A power of two is rounded from f32, and any integer that f32 rounds is too large for the others.
        DType::F64 if storage != DType::F8E8M0FNU => DType::F64,
        _ => DType::F32,
    }
}

/// The layout of a float that is computed in.
struct Wide {
    float: DType,
    int: DType,
    mantissa: u32,
    bias: i32,
}

impl Wide {
    fn of(float: DType) -> Wide {
        match float {
            DType::F64 => Wide {
                float,
                int: DType::I64,
                mantissa: 52,
                bias: 1023,
            },
            _ => Wide {
                float: DType::F32,
                int: DType::I32,
                mantissa: 23,
                bias: 127,
            },
        }
    }

    /// Bits of 2^n.
    fn power(&self, n: i32) -> i64 {
        i64::from(n + self.bias) << self.mantissa
    }
}

impl Legalizer<'_> {
    /// A conversion from or to a storage type.
    pub(super) fn convert_storage(&mut self, value: ValueId, from: DType, to: DType) -> ValueId {
        if from == to {
            return value;
        }
        let mut value = value;
        if from.is_storage() {
            value = self.decode(value, from);
        }
        if !to.is_storage() {
            return self.converted(to, value);
        }
        let middle = self.kernel.dtype(value);
        let clamps = !to.is_storage_float() && middle.is_float();
        let value = self.converted(encoded(to, middle), value);
        let bits = match FloatFormat::of(to) {
            Some(format) => self.encode_float(value, &format),
            None if to.is_storage_float() => self.encode_power(value),
            None => self.encode_int(value, to, clamps),
        };
        let byte = self.emit(Op::Convert(DType::U8, bits), DType::U8);
        self.emit(Op::Bitcast(to, byte), to)
    }

    fn converted(&mut self, to: DType, value: ValueId) -> ValueId {
        match self.kernel.dtype(value) == to {
            true => value,
            false => self.emit(Op::Convert(to, value), to),
        }
    }

    fn integer(&mut self, dtype: DType, value: i64) -> ValueId {
        self.emit(Op::Const(Scalar::from_i64(dtype, value)), dtype)
    }

    fn bits_of(&mut self, value: ValueId, to: DType) -> ValueId {
        self.emit(Op::Bitcast(to, value), to)
    }

    fn masked(&mut self, value: ValueId, mask: i64) -> ValueId {
        let mask = self.integer(self.kernel.dtype(value), mask);
        self.map(ScalarOp::And, &[value, mask])
    }

    fn equals(&mut self, value: ValueId, constant: i64) -> ValueId {
        let constant = self.integer(self.kernel.dtype(value), constant);
        self.map(ScalarOp::Eq, &[value, constant])
    }

    fn decode(&mut self, value: ValueId, from: DType) -> ValueId {
        let byte = self.bits_of(value, DType::U8);
        let bits = self.emit(Op::Convert(DType::I32, byte), DType::I32);
        match FloatFormat::of(from) {
            Some(format) => self.decode_float(bits, &format),
            None if from.is_storage_float() => self.decode_power(bits),
            None if from.lowest().as_i64() < 0 => {
                // The sign bit counts negative.
                let sign = self.integer(DType::I32, -from.lowest().as_i64());
                let flipped = self.map(ScalarOp::Xor, &[bits, sign]);
                self.map(ScalarOp::Sub, &[flipped, sign])
            }
            None => bits,
        }
    }

    /// Exponent and mantissa shifted into an f32's places, with the exponent's bias changed, are the normal numbers. A
    /// denormal one, one step of the exponent higher, has a hidden bit too many, which a subtraction takes away; for normal
    /// ones that gives more than they are, so the smaller of the two is the value. (A multiplication that would do for both
    /// meets denormal f32s, which cost processors a hundred cycles.)
    fn decode_float(&mut self, bits: ValueId, format: &FloatFormat) -> ValueId {
        let (i32, f32) = (DType::I32, DType::F32);
        let wide = Wide::of(f32);
        let magnitude = self.masked(bits, i64::from(format.sign()) - 1);
        let placed = Emit::shl(self, magnitude, 23 - format.mantissa);
        let rebias = self.integer(i32, wide.power(-format.bias));
        let normal = self.map(ScalarOp::Add, &[placed, rebias]);
        let first = self.integer(i32, wide.power(1 - format.bias));
        let above = self.map(ScalarOp::Add, &[placed, first]);
        let above = self.bits_of(above, f32);
        let first = self.bits_of(first, f32);
        let denormal = self.map(ScalarOp::Sub, &[above, first]);
        let denormal = self.bits_of(denormal, i32);
        // Floats that are not negative are ordered as their bits are.
        let unsigned = self.map(ScalarOp::Min, &[normal, denormal]);
        let mut value = self.bits_of(unsigned, f32);
        if format.infinity.is_some() {
            let largest = self.integer(i32, format.largest.into());
            let beyond = self.map(ScalarOp::Lt, &[largest, magnitude]);
            let infinity = Emit::f32(self, f32::INFINITY);
            value = self.map(ScalarOp::Select, &[beyond, infinity, value]);
        }
        let sign = self.masked(bits, format.sign().into());
        let sign = Emit::shl(self, sign, 32 - format.bits);
        let unsigned = self.bits_of(value, i32);
        let signed = self.map(ScalarOp::Or, &[unsigned, sign]);
        let value = self.bits_of(signed, f32);
        let is_nan = match (format.nan, format.infinity) {
            (None, _) => return value,
            (Some(nan), _) if !format.signed_zero => self.equals(bits, nan.into()),
            (Some(nan), None) => self.equals(magnitude, nan.into()),
            (Some(_), Some(infinity)) => {
                let infinity = self.integer(i32, infinity.into());
                self.map(ScalarOp::Lt, &[infinity, magnitude])
            }
        };
        let nan = Emit::f32(self, f32::NAN);
        self.map(ScalarOp::Select, &[is_nan, nan, value])
    }

    fn decode_power(&mut self, bits: ValueId) -> ValueId {
        let shifted = Emit::shl(self, bits, 23);
        let (is_first, is_nan) = (self.equals(bits, 0), self.equals(bits, 0xff));
        // 2^-127 is denormal in f32.
        let first = self.integer(DType::I32, 1 << 22);
        let nan = self.integer(DType::I32, f32::NAN.to_bits().into());
        let number = self.map(ScalarOp::Select, &[is_first, first, shifted]);
        let number = self.map(ScalarOp::Select, &[is_nan, nan, number]);
        self.bits_of(number, DType::F32)
    }

    /// Numbers that stay normal round in integers, those that become denormal by adding a float whose last bit is theirs
    /// (F. Giesen, "float->half variants"); what is too large was cut to the largest before.
    fn encode_float(&mut self, value: ValueId, format: &FloatFormat) -> ValueId {
        let wide = Wide::of(self.kernel.dtype(value));
        let int = wide.int;
        let all = self.bits_of(value, int);
        let magnitude = self.masked(all, int.highest().as_i64());
        let infinity = self.integer(int, wide.power(wide.bias + 1));
        let is_nan = self.map(ScalarOp::Lt, &[infinity, magnitude]);
        let drop = wide.mantissa - format.mantissa;
        let rebias = wide.power(-format.bias);
        let largest = self.integer(int, (i64::from(format.largest) << drop) + rebias);
        let is_large = self.map(ScalarOp::Lt, &[largest, magnitude]);
        let capped = self.map(ScalarOp::Select, &[is_large, largest, magnitude]);

        let last = Emit::shr(self, capped, drop);
        let odd = self.masked(last, 1);
        let half = self.integer(int, (1i64 << (drop - 1)) - 1 - rebias);
        let normal = self.map(ScalarOp::Add, &[capped, half]);
        let normal = self.map(ScalarOp::Add, &[normal, odd]);
        let normal = Emit::shr(self, normal, drop);

        let unit = wide.power(1 - format.bias - format.mantissa as i32 + wide.mantissa as i32);
        let magic = self.integer(int, unit);
        let magic_float = self.bits_of(magic, wide.float);
        let small = self.bits_of(capped, wide.float);
        let shifted = self.map(ScalarOp::Add, &[small, magic_float]);
        let shifted = self.bits_of(shifted, int);
        let denormal = self.map(ScalarOp::Sub, &[shifted, magic]);

        let first_normal = self.integer(int, wide.power(1 - format.bias));
        let is_denormal = self.map(ScalarOp::Lt, &[capped, first_normal]);
        let bits = self.map(ScalarOp::Select, &[is_denormal, denormal, normal]);
        let sign = Emit::shr(self, all, int.bits() - format.bits);
        let mut sign = self.masked(sign, format.sign().into());
        if !format.signed_zero {
            let zero = self.integer(int, 0);
            let is_zero = self.equals(bits, 0);
            sign = self.map(ScalarOp::Select, &[is_zero, zero, sign]);
        }
        let number = self.map(ScalarOp::Or, &[bits, sign]);
        let nan = self.integer(int, format.nan.unwrap_or(0).into());
        self.map(ScalarOp::Select, &[is_nan, nan, number])
    }

    fn encode_power(&mut self, value: ValueId) -> ValueId {
        let i32 = DType::I32;
        let all = self.bits_of(value, i32);
        let magnitude = self.masked(all, i32.highest().as_i64());
        let first_normal = self.integer(i32, 1 << 23);
        let (quarter, half) = (self.integer(i32, 1 << 21), self.integer(i32, 1 << 22));
        // Below 2^-126 an f32 is denormal, and half way from 2^-127 up one and a half times its bits.
        let is_denormal = self.map(ScalarOp::Lt, &[magnitude, first_normal]);
        let half = self.map(ScalarOp::Select, &[is_denormal, quarter, half]);
        let rounded = self.map(ScalarOp::Add, &[magnitude, half]);
        let exponent = Emit::shr(self, rounded, 23);
        let largest = self.integer(i32, 0xfe);
        let exponent = self.map(ScalarOp::Min, &[exponent, largest]);
        let zero = Emit::f32(self, 0.0);
        let is_number = self.map(ScalarOp::Le, &[zero, value]);
        let nan = self.integer(i32, 0xff);
        self.map(ScalarOp::Select, &[is_number, exponent, nan])
    }

    fn encode_int(&mut self, value: ValueId, to: DType, clamps: bool) -> ValueId {
        let mut value = value;
        if clamps {
            let low = self.integer(DType::I32, to.lowest().as_i64());
            let high = self.integer(DType::I32, to.highest().as_i64());
            value = self.map(ScalarOp::Max, &[value, low]);
            value = self.map(ScalarOp::Min, &[value, high]);
        }
        self.masked(value, (1 << to.value_bits()) - 1)
    }

    /// The same bits where one of the two is a bool, which is not all bits of its byte.
    pub(super) fn bitcast_bool(&mut self, value: ValueId, to: DType) -> ValueId {
        if to == DType::Bool {
            let byte = self.bits_of(value, DType::U8);
            return self.emit(Op::Convert(to, byte), to);
        }
        let byte = self.emit(Op::Convert(DType::U8, value), DType::U8);
        self.bits_of(byte, to)
    }
}

#[cfg(test)]
mod tests {
    use tlc_ir::index::IndexExpr;
    use tlc_ir::kernel::interp::interpret;
    use tlc_ir::kernel::{Access, Bind, Kernel, Memory, Param, Stmt, verify};
    use tlc_ir::rng::Rng;
    use tlc_ir::{DType, HostTensor, Scalar};

    use super::*;
    use crate::legalize::legalize;

    /// `p1[i] = op(p0[i])` over `n` elements.
    fn kernel(n: usize, from: DType, to: DType, op: impl FnOnce(ValueId) -> Op) -> Kernel {
        let mut k = Kernel::default();
        for (dtype, access) in [(from, Access::Read), (to, Access::Write)] {
            let len = IndexExpr::from(n);
            k.params.push(Param { dtype, len, access });
        }
        let i = k.new_var(IndexExpr::from(n));
        let (x, y) = (k.new_value(from), k.new_value(to));
        let load = Op::Load {
            memory: Memory::Param(0),
            index: i.into(),
            mask: None,
        };
        let body = vec![
            Stmt::Let { value: x, op: load },
            Stmt::Let { value: y, op: op(x) },
            Stmt::Store {
                memory: Memory::Param(1),
                index: i.into(),
                value: y,
                mask: None,
            },
        ];
        let bind = Bind::Serial;
        k.body = vec![Stmt::Loop { var: i, bind, body }];
        k
    }

    fn results(k: &Kernel, x: &HostTensor) -> HostTensor {
        let y = HostTensor::zeros(k.params[1].dtype, x.shape()).expect("small");
        let mut buffers = [x.clone(), y];
        interpret(k, &mut buffers, &[]).expect("it runs");
        let [_, y] = buffers;
        y
    }

    /// Checks that legalization keeps the meaning and leaves storage types to loads, stores and bit casts.
    fn check(from: DType, to: DType, op: impl FnOnce(ValueId) -> Op) {
        let mut rng = Rng::new(11);
        let mut x = HostTensor::zeros(from, &[512]).expect("small");
        for i in 0..x.len() {
            let number = Scalar::from_f64(from, (rng.unit() - 0.5) * 2f64.powi(rng.range(-20, 20) as i32));
            let bits = Scalar::from_bits(from, if from.bits() == 8 { i as u64 } else { rng.bits() });
            x.set(i, if i % 2 == 0 || from.bits() == 8 { bits } else { number });
        }
        let before = kernel(x.len(), from, to, op);
        let mut after = before.clone();
        legalize(&mut after, &tlc_codegen::clif::emitter(true));
        assert!(verify::verify(&after).errors.is_empty(), "{from} to {to}: {after}");
        after.statements().for_each(|s| match s {
            Stmt::Let {
                op: Op::Convert(to, v), ..
            } => {
                let from = after.dtype(*v);
                assert!(!to.is_storage() && !from.is_storage(), "{from} to {to} is left");
            }
            Stmt::Let {
                op: Op::Index(_, to), ..
            } => assert!(!to.is_storage(), "an index as {to} is left"),
            _ => {}
        });
        let (expected, found) = (results(&before, &x), results(&after, &x));
        for i in 0..x.len() {
            let (a, b) = (expected.get(i), found.get(i));
            let same = a == b || (a.is_nan() && b.is_nan());
            assert!(same, "{from} {} to {to}: {b}, expected {a}", x.get(i));
        }
    }

    #[test]
    fn conversions_become_arithmetic_on_bits_of_the_same_meaning() {
        for from in DType::ALL {
            for to in DType::ALL {
                if from.is_storage() || to.is_storage() {
                    check(from, to, |x| Op::Convert(to, x));
                }
                if from.bits() == 8 && to.bits() == 8 {
                    check(from, to, |x| Op::Bitcast(to, x));
                }
            }
        }
    }

    #[test]
    fn positions_are_encoded_as_their_numbers_are() {
        for to in DType::ALL.into_iter().filter(|d| d.is_storage()) {
            check(DType::U8, to, |_| Op::Index(IndexExpr::from(tlc_ir::VarId(0)), to));
        }
    }
}
