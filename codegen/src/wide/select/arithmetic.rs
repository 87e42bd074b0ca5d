//! Scalar operations, on scalars and on all lanes, with exactly the meaning of [`tlc_ir::scalar`].
//!
//! Invariant: no instruction traps, whatever the operands: divisors are made harmless first.

use iced_x86::Code;
use regalloc2::{PReg, RegClass};
use smallvec::SmallVec;
use tlc_ir::{DType, Scalar, ScalarOp};

use super::masks::{Logic, Mask};
use super::{Arg, Form, Inst, Reg, Selector, Size, width};
use crate::error::{Result, unsupported};
use crate::flat::{Flat, Op, Value};
use crate::host::{RuntimeFunction, is_called};
use crate::wide::opcodes::{self, Codes};

/// Comparisons of `vcmpps` and `vcmppd` (Intel SDM, "Comparison Predicate for VCMPPD"): ordered ones raise nothing on quiet NaN.
pub(super) mod predicate {
    pub(in crate::wide) const EQUAL: u8 = 0x00;
    pub(in crate::wide) const UNORDERED: u8 = 0x03;
    pub(in crate::wide) const NOT_EQUAL: u8 = 0x04;
    pub(in crate::wide) const LESS: u8 = 0x11;
    pub(in crate::wide) const LESS_OR_EQUAL: u8 = 0x12;
    pub(in crate::wide) const GREATER: u8 = 0x1e;
    pub(in crate::wide) const GREATER_OR_EQUAL: u8 = 0x1d;
    pub(in crate::wide) const ORDERED: u8 = 0x07;
}

/// Predicates of `vpcmpd` (Intel SDM, "VPCMPD/VPCMPUD").
pub(super) const EQUALS: u8 = 0;
pub(super) const LESS_THAN: u8 = 1;
pub(super) const AT_MOST: u8 = 2;
pub(super) const DIFFERS: u8 = 4;

/// The way of `vrndscale` and `vround` to round, without an inexact exception.
const ROUND: [u8; 4] = [8, 9, 10, TRUNCATE];
pub(super) const TRUNCATE: u8 = 11;

/// The instruction for f32 or for f64.
pub(super) fn by_float(dtype: DType, single: Codes, double: Codes) -> Codes {
    if dtype == DType::F32 { single } else { double }
}

/// The instruction for integers of that many bits.
pub(super) fn by_bits(dtype: DType, codes: [Codes; 4]) -> Codes {
    codes[(dtype.bits() / 8).trailing_zeros() as usize]
}

/// The comparison by which a value is the larger or the smaller of two floats as `vmaxps` and `vminps` choose (the second one where
/// neither is less), and whether the larger.
pub(super) fn chosen_extremum(flat: &Flat<'_>, v: Value) -> Option<(Value, bool)> {
    let Op::Map(ScalarOp::Select, args) = flat.op(v) else {
        return None;
    };
    Some((args[0], extremum_of(flat, args)?))
}

/// Whether `select c, a, b` is the larger of two floats, or the smaller, where it is one of these.
fn extremum_of(flat: &Flat<'_>, args: &[Value]) -> Option<bool> {
    let Op::Map(ScalarOp::Lt, of) = flat.op(args[0]) else {
        return None;
    };
    let on = flat.dtype(args[1]);
    let alike = flat.info(args[0]).lanes == flat.info(args[1]).lanes && flat.dtype(of[0]) == on;
    match (of[0], of[1]) {
        _ if !alike || !matches!(on, DType::F32 | DType::F64) => None,
        (x, y) if (x, y) == (args[2], args[1]) => Some(true),
        (x, y) if (x, y) == (args[1], args[2]) => Some(false),
        _ => None,
    }
}

impl Selector<'_, '_> {
    pub(super) fn uses_of(&self, v: Value) -> u32 {
        self.uses[v.0 as usize]
    }

    pub(super) fn map(&mut self, op: ScalarOp, v: Value, args: &[Value]) -> Result<(Form, Reg)> {
        let lanes = self.flat.info(v).lanes;
        let on = args.last().map_or(self.flat.dtype(v), |a| self.flat.dtype(*a));
        match on {
            _ if op == ScalarOp::Select => self.select(on, lanes, args),
            DType::Bool => self.map_bool(op, lanes, args),
            DType::F32 | DType::F64 => self.map_float(op, on, lanes, args),
            d if d.is_int() => self.map_int(op, d, lanes, args),
            d => unsupported(format!("{op} on {d} (legalize to f32)")),
        }
    }

    fn select(&mut self, on: DType, lanes: u32, args: &[Value]) -> Result<(Form, Reg)> {
        if let Some(max) = extremum_of(self.flat, args) {
            // The instruction is its second operand where neither is less.
            let codes = match max {
                true => by_float(on, opcodes::MAX_PS, opcodes::MAX_PD),
                false => by_float(on, opcodes::MIN_PS, opcodes::MIN_PD),
            };
            let (a, b) = (self.vector(args[1])?, self.vector(args[2])?);
            let w = width(lanes, on.bits());
            let size = Size::VECTORS[w];
            return Ok((
                Form::Vector,
                self.vector_op(codes, w, &[Arg::Use(a, size), Arg::Use(b, size)]),
            ));
        }
        let of_lanes = self.flat.info(args[0]).lanes;
        let cond = match (lanes, of_lanes) {
            // One condition for all lanes.
            (2.., 1) => {
                let cond = self.int(args[0])?;
                self.spread_bool(
                    cond,
                    if on == DType::Bool {
                        self.bits_of_lanes(lanes)
                    } else {
                        on.bits()
                    },
                )
            }
            _ if on == DType::Bool => self.masks_alike(args[0], args[1])?[0],
            _ => self.mask(args[0], on.bits())?,
        };
        if on == DType::Bool {
            let (a, b) = (self.mask(args[1], cond.bits)?, self.mask(args[2], cond.bits)?);
            let then = self.logic(Logic::And, cond, a, lanes);
            let otherwise = self.logic(Logic::AndNot, cond, b, lanes);
            return Ok(self.logic(Logic::Or, then, otherwise, lanes).of_value());
        }
        let w = width(lanes, on.bits());
        if self.flat.constant(args[2]).is_some_and(|c| c.bits() == 0) {
            let a = self.vector(args[1])?;
            return Ok((Form::Vector, self.select_or_zero(on.bytes(), w, cond, a)));
        }
        let (a, b) = (self.vector(args[1])?, self.vector(args[2])?);
        let ones = u64::MAX >> (64 - on.bits());
        if !self.has_mask_registers() && self.flat.constant(args[1]).is_some_and(|c| c.bits() == ones) {
            // Ones, as the mask has them already.
            let size = Size::VECTORS[w];
            let args = [Arg::Use(cond.reg, size), Arg::Use(b, size)];
            return Ok((Form::Vector, self.vector_op(opcodes::OR_D, w, &args)));
        }
        Ok((Form::Vector, self.blend(on.bytes(), w, cond, a, b)))
    }

    fn map_bool(&mut self, op: ScalarOp, lanes: u32, args: &[Value]) -> Result<(Form, Reg)> {
        use ScalarOp::*;
        if lanes == 1 {
            let a = self.int(args[0])?;
            let b = match args.get(1) {
                Some(b) => self.int(*b)?,
                None => a,
            };
            let with = |s: &mut Self, code, a, b| s.int_update(code, a, &[Arg::Use(b, Size::Q)]);
            let not = |s: &mut Self, a| s.int_update(Code::Xor_rm64_imm32, a, &[Arg::Imm32(1)]);
            let made = match op {
                Not => not(self, a),
                And | Min => with(self, Code::And_r64_rm64, a, b),
                Or | Max => with(self, Code::Or_r64_rm64, a, b),
                Xor | Ne => with(self, Code::Xor_r64_rm64, a, b),
                Eq => {
                    let differ = with(self, Code::Xor_r64_rm64, a, b);
                    not(self, differ)
                }
                Lt | Le => {
                    let none = not(self, a);
                    let code = if op == Lt {
                        Code::And_r64_rm64
                    } else {
                        Code::Or_r64_rm64
                    };
                    with(self, code, none, b)
                }
                _ => return unsupported(format!("{op} on bool")),
            };
            return Ok((Form::Int, made));
        }
        let [a, b] = self.masks_alike(args[0], args.get(1).copied().unwrap_or(args[0]))?;
        let made = match op {
            Not => self.negated(a, lanes),
            And | Min => self.logic(Logic::And, a, b, lanes),
            Or | Max => self.logic(Logic::Or, a, b, lanes),
            Xor | Ne => self.logic(Logic::Xor, a, b, lanes),
            Eq => {
                let differ = self.logic(Logic::Xor, a, b, lanes);
                self.negated(differ, lanes)
            }
            Lt => self.logic(Logic::AndNot, a, b, lanes),
            Le => {
                let none = self.negated(a, lanes);
                self.logic(Logic::Or, none, b, lanes)
            }
            _ => return unsupported(format!("{op} on bool")),
        };
        Ok(made.of_value())
    }

    pub(super) fn unordered(&mut self, a: Value, b: Value) -> Result<(Form, Reg)> {
        let (dtype, lanes) = (self.flat.dtype(a), self.flat.info(a).lanes);
        let (a, b) = (self.vector(a)?, self.vector(b)?);
        let w = width(lanes, dtype.bits());
        Ok(self.compare(dtype, w, a, b, predicate::UNORDERED).of_value())
    }

    pub(super) fn scale(&mut self, x: Value, n: Value) -> Result<Reg> {
        if !self.has_mask_registers() {
            return unsupported("scaling by powers of two");
        }
        let w = width(self.flat.info(x).lanes, DType::F32.bits());
        let uses = [self.vector(x)?, self.vector(n)?].map(|r| Arg::Use(r, Size::VECTORS[w]));
        Ok(self.vector_op(opcodes::SCALEF_PS, w, &uses))
    }

    fn map_float(&mut self, op: ScalarOp, on: DType, lanes: u32, vals: &[Value]) -> Result<(Form, Reg)> {
        use ScalarOp::*;
        let args: SmallVec<[Reg; 3]> = vals.iter().map(|v| self.vector(*v)).collect::<Result<_>>()?;
        if is_called(op) {
            if lanes > 1 {
                return unsupported(format!("{op} on lanes of {on}"));
            }
            let at = |n: usize| PReg::new(n, RegClass::Float);
            let args: SmallVec<[(Reg, PReg); 3]> = args.iter().enumerate().map(|(n, r)| (*r, at(n))).collect();
            return Ok((
                Form::Vector,
                self.call(RuntimeFunction::Map(op, on), &args, Some(at(0))),
            ));
        }
        let w = width(lanes, on.bits());
        let size = Size::VECTORS[w];
        let by = |single, double| by_float(on, single, double);
        let uses: SmallVec<[Arg; 3]> = args.iter().map(|r| Arg::Use(*r, size)).collect();
        let compares = match op {
            Eq => Some(predicate::EQUAL),
            Ne => Some(predicate::NOT_EQUAL),
            Lt => Some(predicate::LESS),
            Le => Some(predicate::LESS_OR_EQUAL),
            _ => None,
        };
        if let Some(predicate) = compares {
            return Ok(self.compare(on, w, args[0], args[1], predicate).of_value());
        }
        let plain = match op {
            Add => Some(by(opcodes::ADD_PS, opcodes::ADD_PD)),
            Sub => Some(by(opcodes::SUB_PS, opcodes::SUB_PD)),
            Mul => Some(by(opcodes::MUL_PS, opcodes::MUL_PD)),
            Div => Some(by(opcodes::DIV_PS, opcodes::DIV_PD)),
            Sqrt => Some(by(opcodes::SQRT_PS, opcodes::SQRT_PD)),
            _ => None,
        };
        if let Some(codes) = plain {
            return Ok((Form::Vector, self.vector_op(codes, w, &uses)));
        }
        let sign = 1u64 << (on.bits() - 1);
        let bitwise = |s: &mut Self, codes: Codes, bits: u64| {
            let mask = s.constant(bits, on.bits());
            s.vector_op(codes, w, &[uses[0], Arg::Use(mask, size)])
        };
        let rounded = |s: &mut Self, way: usize| {
            let codes = by(opcodes::RNDSCALE_PS, opcodes::RNDSCALE_PD);
            s.vector_op(codes, w, &[uses[0], Arg::Imm8(ROUND[way])])
        };
        let made = match op {
            Neg => bitwise(self, by(opcodes::XOR_D, opcodes::XOR_Q), sign),
            Abs => bitwise(self, by(opcodes::AND_D, opcodes::AND_Q), !sign),
            Round => rounded(self, 0),
            Floor => rounded(self, 1),
            Ceil => rounded(self, 2),
            Trunc => rounded(self, 3),
            Rsqrt => {
                let one = self.constant(on.one().bits(), on.bits());
                let root = self.vector_op(by(opcodes::SQRT_PS, opcodes::SQRT_PD), w, &uses);
                let args = [Arg::Use(one, size), Arg::Use(root, size)];
                self.vector_op(by(opcodes::DIV_PS, opcodes::DIV_PD), w, &args)
            }
            Fma => self.fused(on, w, vals, &args),
            Max | Min => self.float_extremum(op, on, w, vals, &args),
            Sign => {
                let zero = self.constant(0, 32);
                let element = |x: f64| Scalar::from_f64(on, x).bits();
                let (one, minus) = (
                    self.constant(element(1.0), on.bits()),
                    self.constant(element(-1.0), on.bits()),
                );
                let below = self.compare(on, w, args[0], zero, predicate::LESS);
                let above = self.compare(on, w, args[0], zero, predicate::GREATER);
                let r = self.blend(on.bytes(), w, below, minus, args[0]);
                self.blend(on.bytes(), w, above, one, r)
            }
            _ => return unsupported(format!("{op} on {on}")),
        };
        Ok((Form::Vector, made))
    }

    /// `a * b + c` with one rounding, in the place of whichever operand is not needed any more.
    fn fused(&mut self, on: DType, w: usize, vals: &[Value], args: &[Reg]) -> Reg {
        let size = Size::VECTORS[w];
        let single = |v: Value| self.uses_of(v) == 1 && self.flat.constant(v).is_none();
        let (codes, from, others) = match (single(vals[2]), single(vals[0]), single(vals[1])) {
            (true, ..) => (
                by_float(on, opcodes::FMADD231_PS, opcodes::FMADD231_PD),
                args[2],
                [args[0], args[1]],
            ),
            (_, _, true) => (
                by_float(on, opcodes::FMADD213_PS, opcodes::FMADD213_PD),
                args[1],
                [args[0], args[2]],
            ),
            _ => (
                by_float(on, opcodes::FMADD213_PS, opcodes::FMADD213_PD),
                args[0],
                [args[1], args[2]],
            ),
        };
        self.vector_update(codes, w, from, &others.map(|r| Arg::Use(r, size)))
    }

    /// `max` or `min` of floats: NaN wins, and -0 is below +0.
    ///
    /// `vmaxps a, b` is `b` where either is NaN and where both are zeros (Intel SDM). So with a number first it is right but for the
    /// zeros of `max(+0, x)`, to which +0 is added, and of `min(-0, x)`, which takes the long way: `vrangeps` knows zeros and forgets NaN.
    fn float_extremum(&mut self, op: ScalarOp, on: DType, w: usize, vals: &[Value], args: &[Reg]) -> Reg {
        let size = Size::VECTORS[w];
        let max = op == ScalarOp::Max;
        let known = |v: Value| self.flat.constant(v).map(|c| c.as_f64()).filter(|c| !c.is_nan());
        let number = match (known(vals[0]), known(vals[1])) {
            (Some(c), _) => Some((c, args[0], args[1])),
            (_, Some(c)) => Some((c, args[1], args[0])),
            _ => None,
        };
        let codes = match max {
            true => by_float(on, opcodes::MAX_PS, opcodes::MAX_PD),
            false => by_float(on, opcodes::MIN_PS, opcodes::MIN_PD),
        };
        if let Some((c, constant, x)) = number {
            let negative = c.is_sign_negative();
            let wrong_zero = c == 0.0 && negative != max;
            if !wrong_zero || max {
                let r = self.vector_op(codes, w, &[Arg::Use(constant, size), Arg::Use(x, size)]);
                if !wrong_zero {
                    return r;
                }
                let add = by_float(on, opcodes::ADD_PS, opcodes::ADD_PD);
                return self.vector_op(add, w, &[Arg::Use(r, size), Arg::Use(constant, size)]);
            }
        }
        let (a, b) = (args[0], args[1]);
        if !self.has_mask_registers() {
            return self.extremum_of_both(on, max, w, a, b);
        }
        let range = by_float(on, opcodes::RANGE_PS, opcodes::RANGE_PD);
        let way = if max { 5 } else { 4 };
        let uses = [Arg::Use(a, size), Arg::Use(b, size)];
        let r = self.vector_op(range, w, &[uses[0], uses[1], Arg::Imm8(way)]);
        let nan = self.compare(on, w, a, b, predicate::UNORDERED);
        let add = by_float(on, opcodes::ADD_PS, opcodes::ADD_PD);
        let to = self.vector_reg();
        let inst = Inst::new(add[w], &[Arg::Update { from: r, to, size }, uses[0], uses[1]]);
        self.push(inst.masked(nan.reg));
        to
    }

    fn map_int(&mut self, op: ScalarOp, on: DType, lanes: u32, vals: &[Value]) -> Result<(Form, Reg)> {
        use ScalarOp::*;
        if matches!(op, Div | Rem | Mod) {
            return match lanes {
                1 => self.divide(op, on, vals),
                _ => unsupported(format!("{op} on lanes of {on}")),
            };
        }
        let w = width(lanes, on.bits());
        let size = Size::VECTORS[w];
        let signed = on.is_signed_int();
        if lanes == 1
            && let Some(compared) = self.compare_in_general(op, signed, vals)?
        {
            return Ok((Form::Int, compared));
        }
        if matches!(op, Shl | Shr) {
            return Ok((Form::Vector, self.shift(op, on, lanes, vals)?));
        }
        if op == Dot4 {
            return Ok((Form::Vector, self.dot4(w, [vals[0], vals[1]], None)?));
        }
        if op == Add
            && let Some(made) = self.added_dot4(w, vals)?
        {
            return Ok((Form::Vector, made));
        }
        let args: SmallVec<[Reg; 3]> = vals.iter().map(|v| self.vector(*v)).collect::<Result<_>>()?;
        if let Some(made) = self.map_quads(op, on, w, &args) {
            return Ok((Form::Vector, made));
        }
        let uses: SmallVec<[Arg; 3]> = args.iter().map(|r| Arg::Use(*r, size)).collect();
        let predicate = match op {
            Eq => Some(EQUALS),
            Lt => Some(LESS_THAN),
            Le => Some(AT_MOST),
            Ne => Some(DIFFERS),
            _ => None,
        };
        if let Some(predicate) = predicate {
            return Ok(self.compare_ints(on, w, args[0], args[1], predicate).of_value());
        }
        use opcodes::*;
        let codes = match op {
            Add => by_bits(on, [ADD_B, ADD_W, ADD_D, ADD_Q]),
            Sub => by_bits(on, [SUB_B, SUB_W, SUB_D, SUB_Q]),
            // The low byte of a product is that of the low bytes.
            Mul => by_bits(on, [MULL_W, MULL_W, MULL_D, MULL_Q]),
            And => AND_D,
            Or => OR_D,
            Xor => XOR_D,
            Max | Min => return Ok((Form::Vector, self.int_extremum(on, op == Max, w, args[0], args[1]))),
            Abs if signed => by_bits(on, [ABS_B, ABS_W, ABS_D, ABS_Q]),
            Abs => return Ok((Form::Vector, args[0])),
            Neg => {
                let zero = self.constant(0, 32);
                let codes = by_bits(on, [SUB_B, SUB_W, SUB_D, SUB_Q]);
                return Ok((Form::Vector, self.vector_op(codes, w, &[Arg::Use(zero, size), uses[0]])));
            }
            Not => {
                let ones = self.constant(u64::MAX, 32);
                return Ok((Form::Vector, self.vector_op(XOR_D, w, &[uses[0], Arg::Use(ones, size)])));
            }
            Sign => {
                let one = self.constant(1, on.bits());
                let r = self.int_extremum(on, false, w, args[0], one);
                if !signed {
                    return Ok((Form::Vector, r));
                }
                let minus = self.constant(u64::MAX, on.bits());
                return Ok((Form::Vector, self.int_extremum(on, true, w, r, minus)));
            }
            _ => return unsupported(format!("{op} on {on}")),
        };
        Ok((Form::Vector, self.vector_op(codes, w, &uses)))
    }

    /// A comparison of scalars that are in general registers already, or known.
    fn compare_in_general(&mut self, op: ScalarOp, signed: bool, vals: &[Value]) -> Result<Option<Reg>> {
        let is_there = |v: &Value| {
            let forms = self.forms[v.0 as usize];
            forms.vector.is_none() && (forms.int.is_some() || self.flat.op(*v).is_index())
        };
        let ready = |v: &Value| self.flat.number(*v).is_some() || is_there(v);
        let code = match (op, signed) {
            (ScalarOp::Eq, _) => Code::Sete_rm8,
            (ScalarOp::Ne, _) => Code::Setne_rm8,
            (ScalarOp::Lt, true) => Code::Setl_rm8,
            (ScalarOp::Le, true) => Code::Setle_rm8,
            (ScalarOp::Lt, false) => Code::Setb_rm8,
            (ScalarOp::Le, false) => Code::Setbe_rm8,
            _ => return Ok(None),
        };
        if !vals.iter().all(ready) || !vals.iter().any(is_there) {
            return Ok(None);
        }
        let (a, b) = (self.int(vals[0])?, self.int(vals[1])?);
        self.push(Inst::new(
            Code::Cmp_r64_rm64,
            &[Arg::Use(a, Size::Q), Arg::Use(b, Size::Q)],
        ));
        Ok(Some(self.flag(code)))
    }

    /// Shifts: by an amount at or above the width, or below 0, everything is shifted out, which is how the instructions with an
    /// amount for each lane take it.
    fn shift(&mut self, op: ScalarOp, on: DType, lanes: u32, vals: &[Value]) -> Result<Reg> {
        use opcodes::*;
        let left = op == ScalarOp::Shl;
        let signed = on.is_signed_int();
        let bits = on.bits();
        let w = width(lanes, bits);
        let size = Size::VECTORS[w];
        let x = self.vector(vals[0])?;
        if bits == 8 || bits == 16 && lanes == 1 && !self.has_mask_registers() {
            // A scalar: as one of 32 bits.
            if lanes > 1 {
                return unsupported(format!("{op} on lanes of {on}"));
            }
            let extend = |s: &mut Self, signed: bool, v: Reg| {
                let codes = match (bits, signed) {
                    (8, true) => EXTEND_S_BD,
                    (8, false) => EXTEND_Z_BD,
                    (_, true) => EXTEND_S_WD,
                    (_, false) => EXTEND_Z_WD,
                };
                s.vector_op(codes, 0, &[Arg::Use(v, Size::X)])
            };
            let amount = self.vector(vals[1])?;
            let amount = extend(self, false, amount);
            let x = extend(self, signed, x);
            let codes = if left {
                SLLV_D
            } else if signed {
                SRAV_D
            } else {
                SRLV_D
            };
            return Ok(self.vector_op(codes, 0, &[Arg::Use(x, Size::X), Arg::Use(amount, Size::X)]));
        }
        if bits == 64 && signed && !left && !self.has_mask_registers() {
            return self.shift_quads(on, lanes, x, vals[1]);
        }
        let pick = |codes: [Codes; 3]| codes[(bits / 16).trailing_zeros() as usize];
        if let Some(amount) = self.flat.constant(vals[1]) {
            let inside = amount.bits() < u64::from(bits);
            let codes = match (left, signed) {
                (true, _) => pick([SLL_W, SLL_D, SLL_Q]),
                (false, true) => pick([SRA_W, SRA_D, SRA_Q]),
                (false, false) => pick([SRL_W, SRL_D, SRL_Q]),
            };
            let amount = match (inside, left || !signed) {
                (true, _) => amount.bits(),
                (false, true) => return Ok(self.constant(0, 32)),
                (false, false) => u64::from(bits) - 1,
            };
            return Ok(self.vector_op(codes, w, &[Arg::Use(x, size), Arg::Imm8(amount as u8)]));
        }
        let amount = match (lanes, self.flat.info(vals[1]).lanes) {
            (2.., 1) => self.splat(vals[1], on, lanes)?.1,
            _ => self.vector(vals[1])?,
        };
        let codes = match (left, signed) {
            (true, _) => pick([SLLV_W, SLLV_D, SLLV_Q]),
            (false, true) => pick([SRAV_W, SRAV_D, SRAV_Q]),
            (false, false) => pick([SRLV_W, SRLV_D, SRLV_Q]),
        };
        Ok(self.vector_op(codes, w, &[Arg::Use(x, size), Arg::Use(amount, size)]))
    }

    /// Division and remainders of scalars that do not trap. Integers of fewer bits are divided in 64, where only zero has to be
    /// kept away.
    fn divide(&mut self, op: ScalarOp, on: DType, vals: &[Value]) -> Result<(Form, Reg)> {
        use ScalarOp::*;
        let signed = on.is_signed_int();
        let known = self.flat.constant(vals[1]).map(|c| c.as_i64());
        let harmless = matches!(known, Some(k) if k != 0 && (k != -1 || !signed));
        let (a, b) = (self.int(vals[0])?, self.int(vals[1])?);
        let q = |r| Arg::Use(r, Size::Q);
        let test = |s: &mut Self, v: Reg| s.push(Inst::new(Code::Test_rm64_r64, &[q(v), q(v)]));
        let minus_one = |s: &mut Self| s.push(Inst::new(Code::Cmp_rm64_imm32, &[q(b), Arg::Imm32(-1)]));
        let mut divisor = b;
        if !harmless {
            let one = self.number(1);
            test(self, b);
            divisor = self.int_update(Code::Cmove_r64_rm64, b, &[q(one)]);
            if signed {
                minus_one(self);
                divisor = self.int_update(Code::Cmove_r64_rm64, divisor, &[q(one)]);
            }
        }
        let (mut quotient, mut remainder) = self.divided(a, divisor, signed);
        if op == Div {
            if !harmless {
                let zero = self.number(0);
                let negated = self.int_update(Code::Neg_rm64, a, &[]);
                test(self, b);
                quotient = self.int_update(Code::Cmove_r64_rm64, quotient, &[q(zero)]);
                if signed {
                    minus_one(self);
                    quotient = self.int_update(Code::Cmove_r64_rm64, quotient, &[q(negated)]);
                }
            }
            return Ok((Form::Int, self.extend(quotient, on)));
        }
        if !harmless {
            test(self, b);
            remainder = self.int_update(Code::Cmove_r64_rm64, remainder, &[q(a)]);
        }
        if op == Mod && signed {
            // Floored: where the remainder is not 0 and its sign is not the divisor's. With divisor 0 adding it changes nothing.
            let more = self.int_update(Code::Add_r64_rm64, remainder, &[q(b)]);
            let signs = self.int_update(Code::Xor_r64_rm64, remainder, &[q(b)]);
            test(self, signs);
            let adjusted = self.int_update(Code::Cmovs_r64_rm64, remainder, &[q(more)]);
            test(self, remainder);
            remainder = self.int_update(Code::Cmovne_r64_rm64, remainder, &[q(adjusted)]);
        }
        Ok((Form::Int, self.extend(remainder, on)))
    }
}

impl Selector<'_, '_> {
    /// The larger or the smaller of integers.
    pub(super) fn int_extremum(&mut self, on: DType, max: bool, w: usize, a: Reg, b: Reg) -> Reg {
        use opcodes::*;
        if on.bits() == 64 && !self.has_mask_registers() {
            let (high, low) = if max { (a, b) } else { (b, a) };
            let above = self.compare_ints(on, w, b, a, LESS_THAN);
            return self.blend(on.bytes(), w, above, high, low);
        }
        let codes = match (max, on.is_signed_int()) {
            (true, true) => by_bits(on, [MAXS_B, MAXS_W, MAXS_D, MAXS_Q]),
            (true, false) => by_bits(on, [MAXU_B, MAXU_W, MAXU_D, MAXU_Q]),
            (false, true) => by_bits(on, [MINS_B, MINS_W, MINS_D, MINS_Q]),
            (false, false) => by_bits(on, [MINU_B, MINU_W, MINU_D, MINU_Q]),
        };
        let size = Size::VECTORS[w];
        self.vector_op(codes, w, &[Arg::Use(a, size), Arg::Use(b, size)])
    }

    /// A comparison of integers, by a predicate of `vpcmpd`.
    pub(super) fn compare_ints(&mut self, on: DType, w: usize, a: Reg, b: Reg, predicate: u8) -> Mask {
        use opcodes::*;
        if !self.has_mask_registers() {
            return self.compare_lanes(on, w, a, b, predicate);
        }
        let codes = match on.is_signed_int() {
            true => by_bits(on, [CMP_B, CMP_W, CMP_D, CMP_Q]),
            false => by_bits(on, [CMPU_B, CMPU_W, CMPU_D, CMPU_Q]),
        };
        let size = Size::VECTORS[w];
        let args = [Arg::Use(a, size), Arg::Use(b, size), Arg::Imm8(predicate)];
        let reg = self.mask_op(codes[w], &args);
        Mask { reg, bits: 1 }
    }
}
