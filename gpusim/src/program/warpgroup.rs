//! The asynchronous products of four warps, `wgmma`, which sm_90a alone has.

use super::decode::{Decoded, Decoder};
use super::modifiers::Modifiers;
use super::{AsyncProduct, Left, MmaType, Op, Warpgroup};
use crate::arith::Ty;
use crate::counters::Class;
use crate::syntax::{Operand, PtxError, Statement};

/// The n and k of a shape such as `m64n128k16`.
fn shape(name: &str) -> Option<(u32, u32)> {
    let (n, k) = name.strip_prefix("m64n")?.split_once('k')?;
    let (n, k) = (n.parse().ok()?, k.parse().ok()?);
    let fits = (8..=256).contains(&n) && n % 8 == 0;
    fits.then_some((n, k))
}

impl Decoder<'_> {
    pub(super) fn warpgroup(&mut self, s: &Statement, m: &mut Modifiers<'_>) -> Result<Decoded, PtxError> {
        if self.target_name() != "sm_90a" {
            return Err(m.error(&format!("is of sm_90a alone, not of {}", self.target_name())));
        }
        self.synchronous(m)?;
        if !m.take("aligned") {
            return Err(m.error("without `.aligned` is not supported"));
        }
        if m.take("mma_async") {
            let product = self.async_product(s, m)?;
            return Ok((Op::Warpgroup(Warpgroup::Product(Box::new(product))), Class::Matrix));
        }
        let what = if m.take("fence") {
            Warpgroup::Fence
        } else if m.take("commit_group") {
            Warpgroup::Commit
        } else if m.take("wait_group") {
            let [Operand::Int(pending)] = s.operands[..] else {
                return Err(m.error("needs a number of groups"));
            };
            Warpgroup::Wait(u32::try_from(pending).map_err(|_| m.error("needs a number of groups"))?)
        } else {
            return Err(m.unknown());
        };
        Ok((Op::Warpgroup(what), Class::Barrier))
    }

    fn async_product(&mut self, s: &Statement, m: &mut Modifiers<'_>) -> Result<AsyncProduct, PtxError> {
        let (n, k) = m.find(shape).ok_or_else(|| m.unknown())?;
        let (dt, at, bt) = (m.ty()?, m.ty()?, m.ty()?);
        let ty = match (dt, at, k) {
            (Ty::F32, Ty::F16, 16) => MmaType::F16,
            (Ty::F32, Ty::BF16, 16) => MmaType::BF16,
            (Ty::F32, Ty::TF32, 8) => MmaType::TF32,
            _ => return Err(m.unknown()),
        };
        if at != bt {
            return Err(m.unknown());
        }
        let [Operand::Vector(d), a, b, adds, scale_a, scale_b, rest @ ..] = &s.operands[..] else {
            return Err(m.error("needs accumulators, two operands, a predicate and two signs"));
        };
        if d.len() != n as usize / 2 {
            return Err(m.error("has the wrong number of registers"));
        }
        // Operands of 16 bits say whether they are transposed; those in registers never are.
        let is_narrow = ty != MmaType::TF32;
        let (a_transposed, b_transposed) = match (rest, a) {
            ([], _) if !is_narrow => (false, false),
            ([b], Operand::Vector(_)) if is_narrow => (false, flag(b, m)?),
            ([a, b], Operand::Name(_)) if is_narrow => (flag(a, m)?, flag(b, m)?),
            _ => return Err(m.error("has the wrong number of operands")),
        };
        let a = match a {
            Operand::Vector(list) if list.len() == 4 => Left::Registers(
                list.iter()
                    .map(|r| self.source(r, Ty::B32, m))
                    .collect::<Result<_, _>>()?,
            ),
            Operand::Vector(_) => return Err(m.error("has the wrong number of registers")),
            descriptor => Left::Memory {
                descriptor: self.source(descriptor, Ty::B64, m)?,
                transposed: a_transposed,
            },
        };
        Ok(AsyncProduct {
            n,
            k,
            ty,
            d: d.iter().map(|r| self.target(r, m)).collect::<Result<_, _>>()?,
            a,
            b: self.source(b, Ty::B64, m)?,
            b_transposed,
            adds: self.guard(adds, m)?,
            negative: is_negative(scale_a, m)? != is_negative(scale_b, m)?,
        })
    }
}

fn flag(operand: &Operand, m: &Modifiers<'_>) -> Result<bool, PtxError> {
    match operand {
        Operand::Int(0) => Ok(false),
        Operand::Int(1) => Ok(true),
        _ => Err(m.error("is transposed by 0 or 1")),
    }
}

fn is_negative(operand: &Operand, m: &Modifiers<'_>) -> Result<bool, PtxError> {
    match operand {
        Operand::Int(1) => Ok(false),
        Operand::Int(u64::MAX) => Ok(true),
        _ => Err(m.error("has signs other than 1 and -1")),
    }
}
