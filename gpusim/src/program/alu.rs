//! Arithmetic on integers, bits and predicates, moves and comparisons. Floats are in `alu_float`.

use super::decode::{Decoded, Decoder};
use super::modifiers::Modifiers;
use super::{Carry, CarryKind, Combine, Lane, Op, Reg};
use crate::arith::int::{self, Permutation};
use crate::arith::rounding::Round;
use crate::arith::{Ty, float, select};
use crate::counters::Class;
use crate::syntax::{Operand, PtxError, Statement};

impl<'a> Decoder<'a> {
    pub(super) fn arithmetic(&mut self, s: &'a Statement, m: &mut Modifiers<'_>) -> Result<Decoded, PtxError> {
        match s.opcode.as_str() {
            "mov" => self.mov(s, m),
            "setp" => self.setp(s, m),
            "set" => self.set(s, m),
            "selp" => {
                let ty = m.ty()?;
                let [d, a, b, p] = &s.operands[..] else {
                    return Err(m.error("needs four operands"));
                };
                let by = self.guard(p, m)?;
                let op = Op::Select {
                    d: self.target(d, m)?,
                    a: self.source(a, ty, m)?,
                    b: self.source(b, ty, m)?,
                    by,
                };
                Ok((op, Class::Compare))
            }
            "slct" => {
                let flush = m.take("ftz");
                let (ty, by) = (m.ty()?, m.ty()?);
                let _ = flush;
                let what = Lane::Choose { float: by == Ty::F32 };
                self.lane(s, m, what, [ty, ty, by], Class::Compare)
            }
            "testp" => {
                let kinds = ["finite", "infinite", "number", "notanumber", "normal", "subnormal"];
                let name = m.find(|k| kinds.iter().find(|&&n| n == k).map(|n| (*n).to_string()));
                let Some(name) = name else { return Err(m.unknown()) };
                let ty = m.ty()?;
                let [d, a] = &s.operands[..] else {
                    return Err(m.error("needs two operands"));
                };
                let Some(d) = self.target_pred(d, m)? else {
                    return Ok((Op::Nop, Class::Compare));
                };
                Ok((
                    Op::Class {
                        name,
                        ty,
                        d,
                        a: self.source(a, ty, m)?,
                    },
                    Class::Compare,
                ))
            }
            "cvt" => self.convert(s, m),
            "cvt.pack" => Err(m.unknown()),
            "addc" | "subc" | "madc" => self.with_carry(s, m),
            "add" | "sub" | "mad" if m.take("cc") => self.with_carry_out(s, m),
            "lop3" => {
                m.ty()?;
                let [d, a, b, c, Operand::Int(table)] = &s.operands[..] else {
                    return Err(m.error("needs four operands and a table"));
                };
                let what = Lane::Lop3(*table as u8);
                let op = Op::Lane {
                    what: Box::new(what),
                    d: self.target(d, m)?,
                    a: self.source(a, Ty::B32, m)?,
                    b: self.source(b, Ty::B32, m)?,
                    c: self.source(c, Ty::B32, m)?,
                };
                Ok((op, Class::Integer))
            }
            "prmt" => {
                m.ty()?;
                let mode = m.find(|k| {
                    Some(match k {
                        "f4e" => Permutation::Forward4,
                        "b4e" => Permutation::Backward4,
                        "rc8" => Permutation::Replicate8,
                        "ecl" => Permutation::EdgeLeft,
                        "ecr" => Permutation::EdgeRight,
                        "rc16" => Permutation::Replicate16,
                        _ => return None,
                    })
                });
                let what = Lane::Permute(mode.unwrap_or(Permutation::General));
                self.lane(s, m, what, [Ty::B32; 3], Class::Integer)
            }
            "bfi" => {
                let ty = m.ty()?;
                let [d, a, b, position, length] = &s.operands[..] else {
                    return Err(m.error("needs five operands"));
                };
                // Position and length become one operand, the length above the low byte.
                let packed = match (position, length) {
                    (Operand::Int(p), Operand::Int(l)) => self.constant((p & 0xff) | (l & 0xff) << 8),
                    _ => return Err(m.error("with a position or length that is no constant is not supported")),
                };
                let op = Op::Lane {
                    what: Box::new(Lane::Insert(ty.bits())),
                    d: self.target(d, m)?,
                    a: self.source(a, ty, m)?,
                    b: self.source(b, ty, m)?,
                    c: packed,
                };
                Ok((op, Class::Integer))
            }
            "dp4a" | "dp2a" => {
                let two = match (s.opcode.as_str(), m.take("hi"), m.take("lo")) {
                    ("dp4a", false, false) => None,
                    ("dp2a", true, false) => Some(true),
                    ("dp2a", false, true) => Some(false),
                    _ => return Err(m.unknown()),
                };
                let (a, b) = (m.ty()?, m.ty()?);
                let what = Lane::Dot {
                    signed_a: a.is_signed(),
                    signed_b: b.is_signed(),
                    two,
                };
                self.lane(s, m, what, [Ty::B32; 3], Class::Integer)
            }
            "mul24" | "mad24" => {
                let high = m.take("hi");
                m.take("lo");
                m.take("sat");
                let ty = m.ty()?;
                let f = int::by_24(high, ty).ok_or_else(|| m.unknown())?;
                self.alu(s, m, f, [ty; 3], Class::Integer)
            }
            "popc" | "clz" | "brev" | "bfe" | "shf" | "bmsk" | "szext" | "bfind" => self.bits(s, m),
            "shl" | "shr" => {
                let ty = m.ty()?;
                let f = int::plain(&s.opcode, ty).ok_or_else(|| m.unknown())?;
                self.alu(s, m, f, [ty, Ty::U32, ty], Class::Integer)
            }
            "and" | "or" | "xor" | "not" | "cnot" | "sad" => self.logic(s, m),
            "add" | "sub" | "mul" | "mad" | "fma" | "div" | "rem" | "abs" | "neg" | "min" | "max" | "rcp" | "sqrt"
            | "rsqrt" | "sin" | "cos" | "lg2" | "ex2" | "tanh" | "copysign" => self.numbers(s, m),
            _ => Err(m.unknown()),
        }
    }

    /// A result and up to three operands.
    pub(super) fn alu(
        &mut self,
        s: &Statement,
        m: &Modifiers<'_>,
        f: crate::arith::Compute,
        types: [Ty; 3],
        class: Class,
    ) -> Result<Decoded, PtxError> {
        let (d, [a, b, c]) = self.up_to_three(s, m, types)?;
        Ok((Op::Alu { f, d, a, b, c }, class))
    }

    pub(super) fn lane(
        &mut self,
        s: &Statement,
        m: &Modifiers<'_>,
        what: Lane,
        types: [Ty; 3],
        class: Class,
    ) -> Result<Decoded, PtxError> {
        let (d, [a, b, c]) = self.up_to_three(s, m, types)?;
        Ok((
            Op::Lane {
                what: Box::new(what),
                d,
                a,
                b,
                c,
            },
            class,
        ))
    }

    fn up_to_three(&mut self, s: &Statement, m: &Modifiers<'_>, types: [Ty; 3]) -> Result<(Reg, [Reg; 3]), PtxError> {
        let Some((d, sources)) = s.operands.split_first() else {
            return Err(m.error("needs operands"));
        };
        if sources.is_empty() || sources.len() > 3 {
            return Err(m.error("has the wrong number of operands"));
        }
        let zero = self.constant(0);
        let mut regs = [zero; 3];
        for ((reg, source), ty) in regs.iter_mut().zip(sources).zip(types) {
            *reg = self.source(source, ty, m)?;
        }
        Ok((self.target(d, m)?, regs))
    }

    fn numbers(&mut self, s: &'a Statement, m: &mut Modifiers<'_>) -> Result<Decoded, PtxError> {
        let name = s.opcode.as_str();
        let ty = s
            .modifiers
            .iter()
            .rev()
            .find_map(|t| Ty::parse(t))
            .ok_or_else(|| m.error("needs a type"))?;
        if ty.is_float() {
            return self.floats(s, m);
        }
        let m_ty = m.ty()?;
        let three = [m_ty; 3];
        if matches!(m_ty, Ty::U16x2 | Ty::S16x2) {
            let relu = m.take("relu");
            let f = int::pairs(name, m_ty, relu).ok_or_else(|| m.unknown())?;
            return self.alu(s, m, f, three, Class::Integer);
        }
        let f = match name {
            "mul" | "mad" if m.take("wide") => {
                let f = int::wide(m_ty);
                let double = match m_ty {
                    Ty::U16 => Ty::U32,
                    Ty::S16 => Ty::S32,
                    Ty::U32 => Ty::U64,
                    _ => Ty::S64,
                };
                let f = f.ok_or_else(|| m.unknown())?;
                return self.alu(s, m, f, [m_ty, m_ty, double], Class::Integer);
            }
            "mad" if m.take("hi") => {
                if m.take("sat") {
                    Some(int::mad_hi_saturating()).filter(|_| m_ty == Ty::S32)
                } else {
                    int::plain("mad.hi", m_ty)
                }
            }
            "mul" if m.take("hi") => int::plain("mul.hi", m_ty),
            "mad" if m.take("lo") => int::plain("mad.lo", m_ty),
            "mul" if m.take("lo") => int::plain("mul.lo", m_ty),
            "add" | "sub" if m.take("sat") => int::saturating(name).filter(|_| m_ty == Ty::S32),
            "min" | "max" if m.take("relu") => int::relu(name).filter(|_| m_ty == Ty::S32),
            "add" | "sub" | "div" | "rem" | "min" | "max" | "neg" | "abs" => int::plain(name, m_ty),
            _ => None,
        };
        let f = f.ok_or_else(|| m.unknown())?;
        self.alu(s, m, f, three, Class::Integer)
    }

    fn bits(&mut self, s: &Statement, m: &mut Modifiers<'_>) -> Result<Decoded, PtxError> {
        let mut name = s.opcode.clone();
        for part in ["l", "r", "wrap", "clamp"] {
            if m.take(part) {
                name.push('.');
                name.push_str(part);
            }
        }
        let shift = m.take("shiftamt");
        let ty = m.ty()?;
        let f = int::bits(&name, ty).ok_or_else(|| m.unknown())?;
        if shift {
            let what = Lane::Shift { f, bits: ty.bits() };
            return self.lane(s, m, what, [ty; 3], Class::Integer);
        }
        let types = if name.starts_with("bfe") {
            [ty, Ty::U32, Ty::U32]
        } else {
            [ty; 3]
        };
        self.alu(s, m, f, types, Class::Integer)
    }

    fn logic(&mut self, s: &Statement, m: &mut Modifiers<'_>) -> Result<Decoded, PtxError> {
        let ty = m.ty()?;
        if ty != Ty::Pred {
            let f = int::plain(&s.opcode, ty).ok_or_else(|| m.unknown())?;
            return self.alu(s, m, f, [ty; 3], Class::Integer);
        }
        let Some((d, sources)) = s.operands.split_first() else {
            return Err(m.error("needs operands"));
        };
        let Some(d) = self.target_pred(d, m)? else {
            return Ok((Op::Nop, Class::Compare));
        };
        let op = match (s.opcode.as_str(), sources) {
            ("not", [a]) => {
                let a = self.guard(a, m)?;
                Op::PredMove {
                    d,
                    a: super::Guard {
                        pred: a.pred,
                        inverted: !a.inverted,
                    },
                }
            }
            ("and" | "or" | "xor", [a, b]) => {
                let how = match s.opcode.as_str() {
                    "and" => Combine::And,
                    "or" => Combine::Or,
                    _ => Combine::Xor,
                };
                Op::PredLogic {
                    d,
                    how,
                    a: self.pred_source(a, m)?,
                    b: self.pred_source(b, m)?,
                }
            }
            _ => return Err(m.unknown()),
        };
        Ok((op, Class::Compare))
    }

    /// A predicate that logic reads, or a number in its place: NVRTC inverts one by `xor.pred` with -1.
    fn pred_source(&mut self, operand: &Operand, m: &Modifiers<'_>) -> Result<super::Guard, PtxError> {
        match operand {
            Operand::Int(value) => Ok(self.constant_guard(*value != 0)),
            _ => self.guard(operand, m),
        }
    }

    fn mov(&mut self, s: &Statement, m: &mut Modifiers<'_>) -> Result<Decoded, PtxError> {
        let ty = m.ty()?;
        let [d, a] = &s.operands[..] else {
            return Err(m.error("needs two operands"));
        };
        let op = match (d, a) {
            (_, _) if ty == Ty::Pred => {
                let Some(d) = self.target_pred(d, m)? else {
                    return Ok((Op::Nop, Class::Move));
                };
                match a {
                    Operand::Int(value) => Op::PredConst { d, value: *value != 0 },
                    _ => Op::PredMove {
                        d,
                        a: self.guard(a, m)?,
                    },
                }
            }
            (_, Operand::Vector(parts)) => {
                let bits = part_bits(ty, parts.len(), m)?;
                let part = part_type(bits);
                let parts = parts
                    .iter()
                    .map(|p| self.source(p, part, m))
                    .collect::<Result<_, _>>()?;
                Op::Pack {
                    d: self.target(d, m)?,
                    parts,
                    bits,
                }
            }
            (Operand::Vector(parts), _) => {
                let bits = part_bits(ty, parts.len(), m)?;
                let parts = parts
                    .iter()
                    .map(|p| {
                        if *p == Operand::Sink {
                            Ok(None)
                        } else {
                            self.target(p, m).map(Some)
                        }
                    })
                    .collect::<Result<_, _>>()?;
                Op::Unpack {
                    parts,
                    a: self.source(a, ty, m)?,
                    bits,
                }
            }
            (_, Operand::Name(name))
                if matches!(name.as_str(), "%clock" | "%clock64" | "%globaltimer" | "%clock_hi") =>
            {
                Op::Clock {
                    d: self.target(d, m)?,
                    bits: ty.bits(),
                }
            }
            _ => Op::Move {
                d: self.target(d, m)?,
                a: self.source(a, ty, m)?,
            },
        };
        Ok((op, Class::Move))
    }

    fn comparison(&self, m: &mut Modifiers<'_>) -> Result<(String, Option<Combine>), PtxError> {
        let names = [
            "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu", "geu",
            "num", "nan",
        ];
        let name = m.find(|k| names.iter().find(|&&n| n == k).map(|n| (*n).to_string()));
        let Some(name) = name else { return Err(m.unknown()) };
        let with = m.find(|k| match k {
            "and" => Some(Combine::And),
            "or" => Some(Combine::Or),
            "xor" => Some(Combine::Xor),
            _ => None,
        });
        Ok((name, with))
    }

    fn setp(&mut self, s: &Statement, m: &mut Modifiers<'_>) -> Result<Decoded, PtxError> {
        let (name, with) = self.comparison(m)?;
        let flush = m.take("ftz");
        let ty = m.ty()?;
        if flush {
            return Err(m.error("with `.ftz` is not supported"));
        }
        let f = select::comparison(&name, ty).ok_or_else(|| m.unknown())?;
        let ([d, a, b] | [d, a, b, _]) = &s.operands[..] else {
            return Err(m.error("needs three operands"));
        };
        let with = match (with, s.operands.get(3)) {
            (Some(how), Some(p)) => Some((how, self.guard(p, m)?)),
            (None, None) => None,
            _ => return Err(m.error("has a predicate too many or too few")),
        };
        let (d, q) = match d {
            Operand::Pair(d, q) => (self.target_pred(d, m)?, self.target_pred(q, m)?),
            _ => (self.target_pred(d, m)?, None),
        };
        let (a, b) = (self.source(a, ty, m)?, self.source(b, ty, m)?);
        Ok((Op::Set { f, d, q, a, b, with }, Class::Compare))
    }

    fn set(&mut self, s: &Statement, m: &mut Modifiers<'_>) -> Result<Decoded, PtxError> {
        let (name, with) = self.comparison(m)?;
        let to = m.ty()?;
        let ty = m.ty()?;
        let f = select::comparison(&name, ty).ok_or_else(|| m.unknown())?;
        let ([d, a, b] | [d, a, b, _]) = &s.operands[..] else {
            return Err(m.error("needs three operands"));
        };
        let with = match (with, s.operands.get(3)) {
            (Some(how), Some(p)) => Some((how, self.guard(p, m)?)),
            (None, None) => None,
            _ => return Err(m.error("has a predicate too many or too few")),
        };
        let truth = match to {
            Ty::F32 => u64::from(1_f32.to_bits()),
            Ty::U32 | Ty::S32 => 0xffff_ffff,
            Ty::F16 => 0x3c00,
            Ty::BF16 => 0x3f80,
            _ => return Err(m.unknown()),
        };
        let (a, b) = (self.source(a, ty, m)?, self.source(b, ty, m)?);
        Ok((
            Op::SetNumber {
                f,
                d: self.target(d, m)?,
                a,
                b,
                with,
                truth,
            },
            Class::Compare,
        ))
    }

    fn with_carry(&mut self, s: &Statement, m: &mut Modifiers<'_>) -> Result<Decoded, PtxError> {
        let writes = m.take("cc");
        self.carried(s, m, true, writes)
    }

    fn with_carry_out(&mut self, s: &Statement, m: &mut Modifiers<'_>) -> Result<Decoded, PtxError> {
        self.carried(s, m, false, true)
    }

    fn carried(
        &mut self,
        s: &Statement,
        m: &mut Modifiers<'_>,
        reads: bool,
        writes: bool,
    ) -> Result<Decoded, PtxError> {
        let kind = match (s.opcode.trim_end_matches('c'), m.take("hi"), m.take("lo")) {
            ("add", false, false) => CarryKind::Add,
            ("sub", false, false) => CarryKind::Sub,
            ("mad", true, false) => CarryKind::MadHi,
            ("mad", false, true) => CarryKind::MadLo,
            _ => return Err(m.unknown()),
        };
        let ty = m.ty()?;
        let (d, [a, b, c]) = self.up_to_three(s, m, [ty; 3])?;
        let flag = self.carry();
        let what = Carry {
            kind,
            bits: ty.bits(),
            signed: ty.is_signed(),
            reads,
            writes,
            flag,
        };
        Ok((Op::Carry { what, d, a, b, c }, Class::Integer))
    }
}

fn part_bits(ty: Ty, parts: usize, m: &Modifiers<'_>) -> Result<u32, PtxError> {
    match (ty.bits(), parts) {
        (bits @ (16 | 32 | 64), 2) | (bits @ (32 | 64), 4) => Ok(bits / parts as u32),
        _ => Err(m.error("does not go into so many parts")),
    }
}

const fn part_type(bits: u32) -> Ty {
    match bits {
        8 => Ty::B8,
        16 => Ty::B16,
        _ => Ty::B32,
    }
}

/// What directions of rounding floats of a type may name, and the default.
pub(super) fn rounding(m: &mut Modifiers<'_>) -> Result<Round, PtxError> {
    match m.round() {
        None => Ok(Round::Even),
        Some((mode, false)) if mode != Round::Away => Ok(mode),
        Some(_) => Err(m.unknown()),
    }
}

/// `float::class` names are checked when they are decoded.
pub(crate) fn in_class(name: &str, bits: u64, ty: Ty) -> bool {
    float::class(name, bits, ty)
}
