//! Conversions between dtypes, with exactly the meaning of [`tlc_ir::scalar`], on scalars and on all lanes.
//!
//! Invariant: one rounding. Where the way through f32 would round twice, the host converts.

use iced_x86::Code;
use regalloc2::{PReg, RegClass};
use rustc_hash::{FxHashMap, FxHashSet};
use tlc_ir::{DType, Scalar, ScalarOp};

use super::arithmetic::by_float;
use super::arithmetic::predicate::{GREATER_OR_EQUAL, NOT_EQUAL, ORDERED, UNORDERED};
use super::masks::Mask;
use super::{Arg, Form, Inst, Reg, Selector, Size, general, width};
use crate::error::{Result, unsupported};
use crate::flat::{Flat, Item, Op, Value};
use crate::host::RuntimeFunction;
use crate::wide::opcodes::{self, Codes};

/// Values that are rounded to bf16 only to be converted back at once, which stays in 32 bits.
pub(super) fn rounded_back(flat: &Flat<'_>, uses: &[u32]) -> FxHashSet<Value> {
    let mut found = FxHashSet::default();
    walk(flat, uses, &flat.body, &mut found);
    found
}

/// Values of f32 rounded to the nearest integers only to be converted to integers of at most 32 bits, which instructions do at once.
pub(super) fn rounded_to_integers(flat: &Flat<'_>, uses: &[u32]) -> FxHashSet<Value> {
    fn count(flat: &Flat<'_>, body: &[Item], converted: &mut FxHashMap<Value, u32>) {
        for item in body {
            match item {
                Item::Let(v) => {
                    let Op::Convert(x) = flat.op(*v) else { continue };
                    let to = flat.dtype(*v);
                    let rounded = matches!(flat.op(*x), Op::Map(ScalarOp::Round, _)) && flat.dtype(*x) == DType::F32;
                    if rounded && to.is_int() && to.bits() <= 32 {
                        *converted.entry(*x).or_default() += 1;
                    }
                }
                Item::Loop(l) => count(flat, &l.body, converted),
                Item::If(i) => {
                    count(flat, &i.then, converted);
                    count(flat, &i.otherwise, converted);
                }
                _ => {}
            }
        }
    }
    let mut converted = FxHashMap::default();
    count(flat, &flat.body, &mut converted);
    let all = converted.into_iter().filter(|(v, n)| uses[v.0 as usize] == *n);
    all.map(|(v, _)| v).collect()
}

fn walk(flat: &Flat<'_>, uses: &[u32], body: &[Item], found: &mut FxHashSet<Value>) {
    let mut seen: FxHashSet<Value> = FxHashSet::default();
    for item in body {
        match item {
            Item::Let(v) => {
                let Op::Convert(x) = flat.op(*v) else { continue };
                match (flat.dtype(*x), flat.dtype(*v)) {
                    (DType::F32, DType::BF16) if uses[v.0 as usize] == 1 => {
                        seen.insert(*v);
                    }
                    (DType::BF16, DType::F32) if seen.contains(x) => {
                        found.insert(*x);
                    }
                    _ => {}
                }
            }
            Item::Loop(l) => walk(flat, uses, &l.body, found),
            Item::If(i) => {
                walk(flat, uses, &i.then, found);
                walk(flat, uses, &i.otherwise, found);
            }
            _ => {}
        }
    }
}

/// How a float becomes an integer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Truncated,
    /// To nearest, ties to even.
    Nearest,
}

impl Selector<'_, '_> {
    pub(super) fn convert(&mut self, a: Value, v: Value) -> Result<(Form, Reg)> {
        let (from, to) = (self.flat.dtype(a), self.flat.dtype(v));
        let lanes = self.flat.info(v).lanes;
        // An index goes to another integer where it is.
        if lanes == 1 && from.is_int() && to.is_int() && self.is_general(a) {
            let x = self.int(a)?;
            return Ok((Form::Int, self.extend(x, to)));
        }
        if from == DType::Bool {
            return self.convert_bool(a, to, lanes);
        }
        if let (true, Op::Convert(x)) = (self.rounded_back.contains(&a), self.flat.op(a)) {
            let x = self.vector(*x)?;
            return Ok((Form::Vector, self.rounded_and_back(x, width(lanes, 32))));
        }
        if let (true, Op::Map(_, operands)) = (self.rounded_to_integers.contains(&a), self.flat.op(a)) {
            let x = self.vector(operands[0])?;
            return Ok((Form::Vector, self.float_to_int(x, (from, to), lanes, Way::Nearest)));
        }
        let x = self.vector(a)?;
        if to == DType::Bool {
            return Ok(self.is_true(x, from, lanes).of_value());
        }
        Ok((Form::Vector, self.convert_vector(x, from, to, lanes)?))
    }

    /// Whether a value is in a general register alone.
    fn is_general(&self, v: Value) -> bool {
        let forms = self.forms[v.0 as usize];
        forms.vector.is_none()
            && (forms.int.is_some() || self.flat.op(v).is_index() || matches!(self.flat.op(v), Op::Const(_)))
    }

    fn convert_bool(&mut self, a: Value, to: DType, lanes: u32) -> Result<(Form, Reg)> {
        if lanes == 1 && to.is_int() {
            return Ok((Form::Int, self.int(a)?));
        }
        let mask = self.mask(a, to.bits())?;
        let one = self.constant(to.one().bits(), to.bits());
        let w = width(lanes, to.bits());
        Ok((Form::Vector, self.select_or_zero(to.bytes(), w, mask, one)))
    }

    /// Which lanes are not 0; NaN is not.
    fn is_true(&mut self, x: Reg, from: DType, lanes: u32) -> Mask {
        let w = width(lanes, from.bits());
        match from {
            DType::F32 | DType::F64 => {
                let zero = self.constant(0, 32);
                self.compare(from, w, x, zero, NOT_EQUAL)
            }
            DType::F16 | DType::BF16 => {
                let magnitude = self.constant(0x7fff, 16);
                self.common_bits(2, w, x, magnitude)
            }
            _ => self.common_bits(from.bytes(), w, x, x),
        }
    }

    /// An instruction whose wider side has that width; the other is narrower by so many halvings.
    pub(super) fn widen(&mut self, codes: Codes, w: usize, halvings: usize, x: Reg) -> Reg {
        self.vector_op(codes, w, &[Arg::Use(x, Size::VECTORS[w.saturating_sub(halvings)])])
    }

    pub(super) fn narrow(&mut self, codes: Codes, w: usize, halvings: usize, x: Reg, immediate: Option<u8>) -> Reg {
        let to = self.vector_reg();
        let (small, size) = (Size::VECTORS[w.saturating_sub(halvings)], Size::VECTORS[w]);
        let args = [Arg::Def(to, small), Arg::Use(x, size)];
        let mut inst = Inst::new(codes[w], &args);
        inst.args.extend(immediate.map(Arg::Imm8));
        self.push(inst);
        to
    }

    fn convert_vector(&mut self, x: Reg, from: DType, to: DType, lanes: u32) -> Result<Reg> {
        use DType::*;
        use opcodes::*;
        let half = |d| matches!(d, F16 | BF16);
        let w = width(lanes, from.bits().max(to.bits()));
        let signed = from.is_signed_int();
        if !self.has_mask_registers()
            && from != to
            && !half(from)
            && !half(to)
            && let Some(made) = self.convert_lanes(x, from, to, lanes)?
        {
            return Ok(made);
        }
        Ok(match (from, to) {
            _ if from == to => x,
            (F16, F32) => self.widen(CONVERT_F16_F32, w, 1, x),
            (BF16, F32) => {
                let wide = self.widen(EXTEND_Z_WD, w, 1, x);
                self.vector_op(SLL_D, w, &[Arg::Use(wide, Size::VECTORS[w]), Arg::Imm8(16)])
            }
            // To nearest, ties to even.
            (F32, F16) => self.narrow(CONVERT_F32_F16, w, 1, x, Some(0)),
            (F32, BF16) => {
                let bits = self.rounded_to_bf16(x, w);
                self.truncate(bits, w, 4, 2)
            }
            (F64 | I32 | U32 | I64 | U64, F16 | BF16) => {
                if lanes > 1 {
                    return unsupported(format!("{from} to {to} in lanes"));
                }
                return self.convert_by_host(x, from, to);
            }
            (_, _) if half(from) || half(to) => {
                let single = self.convert_vector(x, from, F32, lanes)?;
                self.convert_vector(single, F32, to, lanes)?
            }
            (F32, F64) => self.widen(CONVERT_F32_F64, w, 1, x),
            (F64, F32) => self.narrow(CONVERT_F64_F32, w, 1, x, None),
            (F32 | F64, _) => self.float_to_int(x, (from, to), lanes, Way::Truncated),
            (I32, F32) => self.widen(CONVERT_I32_F32, w, 0, x),
            (U32, F32) => self.widen(CONVERT_U32_F32, w, 0, x),
            (I64, F32) => self.narrow(CONVERT_I64_F32, w, 1, x, None),
            (U64, F32) => self.narrow(CONVERT_U64_F32, w, 1, x, None),
            (I32, F64) => self.widen(CONVERT_I32_F64, w, 1, x),
            (U32, F64) => self.widen(CONVERT_U32_F64, w, 1, x),
            (I64, F64) => self.widen(CONVERT_I64_F64, w, 0, x),
            (U64, F64) => self.widen(CONVERT_U64_F64, w, 0, x),
            // Narrower integers go by way of 32 bits, which hold them.
            (_, F32 | F64) => {
                let whole = self.convert_vector(x, from, I32, lanes)?;
                self.convert_vector(whole, I32, to, lanes)?
            }
            _ if to.bits() == from.bits() => x,
            _ if to.bits() > from.bits() => {
                let (codes, halvings) = match (from.bytes(), to.bytes(), signed) {
                    (1, 2, true) => (EXTEND_S_BW, 1),
                    (1, 2, false) => (EXTEND_Z_BW, 1),
                    (1, 4, true) => (EXTEND_S_BD, 2),
                    (1, 4, false) => (EXTEND_Z_BD, 2),
                    (1, _, true) => (EXTEND_S_BQ, 3),
                    (1, _, false) => (EXTEND_Z_BQ, 3),
                    (2, 4, true) => (EXTEND_S_WD, 1),
                    (2, 4, false) => (EXTEND_Z_WD, 1),
                    (2, _, true) => (EXTEND_S_WQ, 2),
                    (2, _, false) => (EXTEND_Z_WQ, 2),
                    (_, _, true) => (EXTEND_S_DQ, 1),
                    (_, _, false) => (EXTEND_Z_DQ, 1),
                };
                self.widen(codes, w, halvings, x)
            }
            _ => self.truncate(x, w, from.bytes(), to.bytes()),
        })
    }

    /// The low bytes of elements of so many bytes.
    fn truncate(&mut self, x: Reg, w: usize, from: usize, to: usize) -> Reg {
        use opcodes::*;
        if !self.has_mask_registers() {
            return self.truncated(x, w, from, to);
        }
        let (codes, halvings) = match (from, to) {
            (2, _) => (NARROW_WB, 1),
            (4, 1) => (NARROW_DB, 2),
            (4, _) => (NARROW_DW, 1),
            (_, 1) => (NARROW_QB, 3),
            (_, 2) => (NARROW_QW, 2),
            (_, _) => (NARROW_QD, 1),
        };
        self.narrow(codes, w, halvings, x, None)
    }

    /// Truncates, or rounds f32 to the nearest integers, and saturates; NaN is 0.
    fn float_to_int(&mut self, x: Reg, (from, to): (DType, DType), lanes: u32, way: Way) -> Reg {
        use DType::*;
        use opcodes::*;
        if to.bits() < 32 {
            let through = if to.is_signed_int() { I32 } else { U32 };
            let whole = self.float_to_int(x, (from, through), lanes, way);
            let w = width(lanes, 32);
            let (codes, halvings) = match (to.is_signed_int(), to.bits()) {
                (true, 8) => (NARROW_S_DB, 2),
                (true, _) => (NARROW_S_DW, 1),
                (false, 8) => (NARROW_U_DB, 2),
                (false, _) => (NARROW_U_DW, 1),
            };
            return self.narrow(codes, w, halvings, whole, None);
        }
        let w = width(lanes, from.bits().max(to.bits()));
        let of_float = width(lanes, from.bits());
        let float = Size::VECTORS[of_float];
        let zero = self.constant(0, 32);
        let signed = to.is_signed_int();
        // `max(x, 0)` is its second operand where `x` is NaN.
        let x = match signed {
            true => x,
            false => {
                let codes = by_float(from, MAX_PS, MAX_PD);
                self.vector_op(codes, of_float, &[Arg::Use(x, float), Arg::Use(zero, float)])
            }
        };
        // What is too large becomes all ones, which is the largest number without a sign.
        let made = match (from, to) {
            (F32, I32) if way == Way::Nearest => self.widen(ROUND_F32_I32, w, 0, x),
            (F32, U32) if way == Way::Nearest => self.widen(ROUND_F32_U32, w, 0, x),
            (F32, I32) => self.widen(CONVERT_F32_I32, w, 0, x),
            (F32, U32) => self.widen(CONVERT_F32_U32, w, 0, x),
            (F32, I64) => self.widen(CONVERT_F32_I64, w, 1, x),
            (F32, _) => self.widen(CONVERT_F32_U64, w, 1, x),
            (_, I32) => self.narrow(CONVERT_F64_I32, w, 1, x, None),
            (_, U32) => self.narrow(CONVERT_F64_U32, w, 1, x, None),
            (_, I64) => self.widen(CONVERT_F64_I64, w, 0, x),
            _ => self.widen(CONVERT_F64_U64, w, 0, x),
        };
        if !signed {
            return made;
        }
        // With a sign it becomes the lowest number, which is right below.
        let of_int = width(lanes, to.bits());
        let limit = Scalar::from_f64(from, 2f64.powi(to.bits() as i32 - 1));
        let limit = self.constant(limit.bits(), from.bits());
        let above = self.compare(from, of_float, x, limit, GREATER_OR_EQUAL);
        let most = self.constant(u64::MAX >> (65 - to.bits()), to.bits());
        let capped = self.blend(to.bytes(), of_int, above, most, made);
        let number = self.compare(from, of_float, x, x, ORDERED);
        self.select_or_zero(to.bytes(), of_int, number, capped)
    }

    /// The bits of f32 rounded to nearest-even to bf16, in the low halves of 32 bits.
    fn rounded_to_bf16(&mut self, x: Reg, w: usize) -> Reg {
        let sum = self.with_half(x, w);
        self.vector_op(opcodes::SRL_D, w, &[Arg::Use(sum, Size::VECTORS[w]), Arg::Imm8(16)])
    }

    /// f32 rounded to what bf16 have, as f32.
    fn rounded_and_back(&mut self, x: Reg, w: usize) -> Reg {
        let size = Size::VECTORS[w];
        let (sum, high) = (self.with_half(x, w), self.constant(0xffff_0000, 32));
        self.vector_op(opcodes::AND_D, w, &[Arg::Use(sum, size), Arg::Use(high, size)])
    }

    /// The bits of f32 with those added that make the high halves bf16 rounded to nearest-even. In integers, for the processor's own conversion
    /// takes denormals as zero. A NaN must not be rounded to infinity: it becomes the quiet one of its sign.
    fn with_half(&mut self, x: Reg, w: usize) -> Reg {
        use opcodes::*;
        let size = Size::VECTORS[w];
        let u = |r| Arg::Use(r, size);
        let (below, quiet) = (self.constant(0x7fff, 32), self.constant(0x40_0000, 32));
        if self.has_mask_registers() {
            let (half, last) = (self.constant(0x8000, 32), self.constant(0x1_0000, 32));
            let odd = self.common_bits(4, w, x, last);
            let nan = self.compare(DType::F32, w, x, x, UNORDERED);
            let even = self.vector_op(ADD_D, w, &[u(x), u(below)]);
            let sum = self.masked_update(ADD_D, w, even, &[u(x), u(half)], odd);
            return self.masked_update(OR_D, w, sum, &[u(x), u(quiet)], nan);
        }
        let shifted = self.vector_op(SRL_D, w, &[u(x), Arg::Imm8(16)]);
        let one = self.constant(1, 32);
        let odd = self.vector_op(AND_D, w, &[u(shifted), u(one)]);
        let bias = self.vector_op(ADD_D, w, &[u(odd), u(below)]);
        let sum = self.vector_op(ADD_D, w, &[u(x), u(bias)]);
        let nan = self.vector_op(OR_D, w, &[u(x), u(quiet)]);
        let number = self.compare(DType::F32, w, x, x, ORDERED);
        self.blend(4, w, number, sum, nan)
    }

    /// An instruction that writes the lanes of a vector where a mask is set.
    fn masked_update(&mut self, codes: Codes, w: usize, from: Reg, args: &[Arg], mask: Mask) -> Reg {
        let (to, size) = (self.vector_reg(), Size::VECTORS[w]);
        let update = [Arg::Update { from, to, size }];
        let all: Vec<Arg> = update.iter().chain(args).cloned().collect();
        self.push(Inst::new(codes[w], &all).masked(mask.reg));
        to
    }

    /// A scalar, by a function that rounds once.
    fn convert_by_host(&mut self, x: Reg, from: DType, to: DType) -> Result<Reg> {
        use DType::*;
        let through = match from {
            I32 => I64,
            U32 => U64,
            d => d,
        };
        let x = self.convert_vector(x, from, through, 1)?;
        let function = RuntimeFunction::Convert(through, to);
        let bits = match through {
            F64 => self.call(function, &[(x, PReg::new(0, RegClass::Float))], Some(general::RAX)),
            _ => {
                let int = self.int_of_vector(x, through);
                self.call(function, &[(int, general::RDI)], Some(general::RAX))
            }
        };
        Ok(self.vector_as(Code::EVEX_Vmovd_xmm_rm32, Size::X, &[Arg::Use(bits, Size::D)]))
    }
}
