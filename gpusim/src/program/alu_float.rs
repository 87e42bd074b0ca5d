//! Arithmetic on floats, and conversions.

use super::alu::rounding;
use super::decode::{Decoded, Decoder};
use super::modifiers::Modifiers;
use super::{Lane, Op};
use crate::arith::convert::Convert;
use crate::arith::rounding::Round;
use crate::arith::small::{self, Finish};
use crate::arith::{Ty, each, float};
use crate::counters::Class;
use crate::syntax::{Operand, PtxError, Statement};

impl<'a> Decoder<'a> {
    pub(super) fn floats(&mut self, s: &'a Statement, m: &mut Modifiers<'_>) -> Result<Decoded, PtxError> {
        let flush = m.take("ftz");
        let saturate = m.take("sat");
        let relu = m.take("relu");
        let approx = m.take("approx") | m.take("full");
        m.take("rnd");
        let mut name = s.opcode.clone();
        for part in ["NaN", "xorsign", "abs"] {
            if m.take(part) {
                name.push('.');
                name.push_str(part);
            }
        }
        let mode = rounding(m)?;
        let ty = m.ty()?;
        if name == "mad" {
            name = "fma".to_string();
        }
        let three = [ty; 3];
        match ty {
            Ty::F32 | Ty::F64 => {
                // `add.f32.f16`: an operand of another type.
                let special = matches!(name.as_str(), "rsqrt" | "sin" | "cos" | "lg2" | "ex2" | "tanh");
                let f = if approx || special {
                    float::approximate(&name, ty)
                } else {
                    float::rounded(&name, ty, mode).or_else(|| float::exact(&name, ty))
                };
                let f = f.filter(|_| !relu).ok_or_else(|| m.unknown())?;
                let class = match ty {
                    _ if approx || special => Class::Special,
                    Ty::F64 => Class::Double,
                    _ => Class::Single,
                };
                if flush && ty == Ty::F32 || saturate {
                    let flush = flush && ty == Ty::F32;
                    return self.lane(s, m, Lane::Single { f, ty, flush, saturate }, three, class);
                }
                self.alu(s, m, f, three, class)
            }
            Ty::F16 | Ty::BF16 | Ty::F16x2 | Ty::BF16x2 => {
                if mode != Round::Even {
                    return Err(m.unknown());
                }
                let f = small::plain(&name, ty).ok_or_else(|| m.unknown())?;
                let class = if matches!(name.as_str(), "ex2" | "tanh") {
                    Class::Special
                } else {
                    Class::Half
                };
                if flush || saturate || relu {
                    let finish = Finish { saturate, relu, flush };
                    return self.lane(s, m, Lane::Small { f, ty, finish }, three, class);
                }
                self.alu(s, m, f, three, class)
            }
            _ => Err(m.unknown()),
        }
    }

    pub(super) fn convert(&mut self, s: &'a Statement, m: &mut Modifiers<'_>) -> Result<Decoded, PtxError> {
        let round = m.round();
        let flush = m.take("ftz");
        let saturate = m.take("sat");
        let finite = m.take("satfinite");
        let relu = m.take("relu");
        let to = m.ty()?;
        let from = m.ty()?;
        let single = |ty: Ty| match ty {
            Ty::F16x2 => Some(Ty::F16),
            Ty::BF16x2 => Some(Ty::BF16),
            _ => None,
        };
        let (mode, integral) = round.unwrap_or((Round::Even, false));
        // A conversion from a float to an integer names how it rounds; the default is not reached by valid texts.
        let float_to_int = from.is_float() && !to.is_float();
        if float_to_int && !integral {
            return Err(m.error("needs a rounding to an integer"));
        }
        let mut convert = Convert {
            to,
            from,
            mode,
            integral,
            saturate,
            finite,
            relu,
            flush,
        };
        if let (Some(half), Ty::F32, [d, a, b]) = (single(to), from, &s.operands[..]) {
            convert.to = half;
            let zero = self.constant(0);
            let what = Box::new(Lane::ConvertPair(convert));
            let (d, a, b) = (
                self.target(d, m)?,
                self.source(a, Ty::F32, m)?,
                self.source(b, Ty::F32, m)?,
            );
            return Ok((Op::Lane { what, d, a, b, c: zero }, Class::Convert));
        }
        if [to, from]
            .iter()
            .any(|t| matches!(t, Ty::F16x2 | Ty::BF16x2 | Ty::Pred | Ty::U16x2 | Ty::S16x2))
        {
            return Err(m.unknown());
        }
        let [d, a] = &s.operands[..] else {
            return Err(m.error("needs two operands"));
        };
        let width = self.width(d);
        let (d, a) = (self.target(d, m)?, self.source_of(a, from, m)?);
        let plain = !saturate && !finite && !relu && !flush;
        let fast = match (to, from, mode) {
            _ if !plain => None,
            (Ty::U64, Ty::U32, _) => Some(each!(|a: u64, _: u64, _: u64| a & 0xffff_ffff)),
            (Ty::S64, Ty::S32, _) => Some(each!(|a: u64, _: u64, _: u64| i64::from(a as i32) as u64)),
            (Ty::U32 | Ty::S32, Ty::U64 | Ty::S64, _) if width == 32 => {
                Some(each!(|a: u64, _: u64, _: u64| a & 0xffff_ffff))
            }
            (Ty::U32 | Ty::S32, Ty::U16, _) => Some(each!(|a: u64, _: u64, _: u64| a & 0xffff)),
            (Ty::U16 | Ty::S16, Ty::U32 | Ty::S32, _) if width == 16 => {
                Some(each!(|a: u64, _: u64, _: u64| a & 0xffff))
            }
            (Ty::F32, Ty::S32, Round::Even) => {
                Some(each!(|a: u64, _: u64, _: u64| u64::from((a as i32 as f32).to_bits())))
            }
            (Ty::F32, Ty::U32, Round::Even) => {
                Some(each!(|a: u64, _: u64, _: u64| u64::from((a as u32 as f32).to_bits())))
            }
            (Ty::F32, Ty::F64, Round::Even) if !integral => Some(each!(|a: u64, _: u64, _: u64| {
                let value = f64::from_bits(a) as f32;
                if value.is_nan() {
                    0x7fff_ffff
                } else {
                    u64::from(value.to_bits())
                }
            })),
            (Ty::F64, Ty::F32, _) if !integral => Some(each!(|a: u64, _: u64, _: u64| f64::from(f32::from_bits(
                a as u32
            ))
            .to_bits())),
            _ => None,
        };
        let zero = self.constant(0);
        Ok(match fast {
            Some(f) => (
                Op::Alu {
                    f,
                    d,
                    a,
                    b: zero,
                    c: zero,
                },
                Class::Convert,
            ),
            None => {
                let what = Box::new(Lane::Convert(convert, width));
                (
                    Op::Lane {
                        what,
                        d,
                        a,
                        b: zero,
                        c: zero,
                    },
                    Class::Convert,
                )
            }
        })
    }

    /// A source that may be wider than its type.
    fn source_of(&mut self, operand: &Operand, ty: Ty, m: &Modifiers<'_>) -> Result<u32, PtxError> {
        self.source(operand, ty, m)
    }
}
