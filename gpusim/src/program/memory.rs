//! Loads, stores, atomic operations, fences, asynchronous copies.

use super::decode::{Decoded, Decoder};
use super::modifiers::Modifiers;
use super::{Access, AtomOp, Atomic, Op, Order, Place, Scope};
use crate::arith::Ty;
use crate::counters::Class;
use crate::syntax::{Operand, PtxError, Space, Statement};

pub(super) fn space_named(name: &str) -> Option<Space> {
    Some(match name {
        "global" => Space::Global,
        "shared" | "shared::cta" => Space::Shared,
        "local" => Space::Local,
        "const" => Space::Const,
        "param" | "param::entry" | "param::func" => Space::Param,
        _ => return None,
    })
}

pub(super) fn scope_named(name: &str) -> Option<Scope> {
    Some(match name {
        "cta" => Scope::Block,
        "cluster" | "gpu" | "sys" | "gl" => Scope::Device,
        _ => return None,
    })
}

pub(super) fn order_named(name: &str) -> Option<Order> {
    Some(match name {
        "weak" => Order::Weak,
        "volatile" | "relaxed" | "mmio" => Order::Relaxed,
        "acquire" => Order::Acquire,
        "release" => Order::Release,
        "acq_rel" => Order::AcquireRelease,
        _ => return None,
    })
}

fn vector_named(name: &str) -> Option<u32> {
    Some(match name {
        "v2" => 2,
        "v4" => 4,
        "v8" => 8,
        _ => return None,
    })
}

/// The elements of a vector of as many as the instruction names, or the one value.
fn elements<'a>(value: &'a Operand, lanes: Option<u32>, m: &Modifiers<'_>) -> Result<&'a [Operand], PtxError> {
    match (value, lanes) {
        (Operand::Vector(values), Some(lanes)) if values.len() == lanes as usize => Ok(values),
        (Operand::Vector(values), None) if values.len() == 1 => Ok(values),
        (Operand::Vector(_), _) | (_, Some(_)) => Err(m.error("has as many values as it does not name")),
        (_, None) => Ok(std::slice::from_ref(value)),
    }
}

impl<'a> Decoder<'a> {
    pub(super) fn memory(&mut self, s: &'a Statement, m: &mut Modifiers<'_>) -> Result<Decoded, PtxError> {
        match s.opcode.as_str() {
            "ld" | "ldu" => self.load(s, m),
            "st" => self.store(s, m),
            "atom" | "red" => self.atomic(s, m),
            "fence" => {
                if m.take("mbarrier_init") {
                    m.take("release");
                    m.find(scope_named).ok_or_else(|| m.unknown())?;
                    return Ok((Op::PhaseFence, Class::Barrier));
                }
                if m.take("proxy") && m.take("async") {
                    let space = m.find(|k| {
                        if k == "shared::cluster" {
                            Some(Space::Shared)
                        } else {
                            space_named(k)
                        }
                    });
                    let op = match space {
                        None | Some(Space::Shared) => Op::ProxyFence,
                        Some(_) => Op::Nop,
                    };
                    return Ok((op, Class::Barrier));
                }
                if s.modifiers.iter().any(|k| k.starts_with("proxy")) {
                    m.find(|k| k.starts_with("proxy").then_some(()));
                    m.find(order_named);
                    m.find(scope_named);
                    m.find(space_named);
                    return Ok((Op::Nop, Class::Barrier));
                }
                let known = m.take("sc") | m.find(order_named).is_some();
                let scope = m.find(scope_named).filter(|_| known).ok_or_else(|| m.unknown())?;
                Ok((Op::Fence(scope), Class::Barrier))
            }
            "membar" => {
                let scope = m.find(scope_named).ok_or_else(|| m.unknown())?;
                Ok((Op::Fence(scope), Class::Barrier))
            }
            "cvta" => {
                let back = m.take("to");
                let space = m.find(space_named).ok_or_else(|| m.unknown())?;
                m.ty()?;
                let [d, a] = &s.operands[..] else {
                    return Err(m.error("needs two operands"));
                };
                let (d, a) = (self.target(d, m)?, self.source(a, Ty::B64, m)?);
                let op = if back {
                    Op::FromGeneric { d, a, space }
                } else {
                    Op::ToGeneric { d, a, space }
                };
                Ok((op, Class::Integer))
            }
            "isspacep" => {
                let space = m.find(space_named).ok_or_else(|| m.unknown())?;
                let [d, a] = &s.operands[..] else {
                    return Err(m.error("needs two operands"));
                };
                let a = self.source(a, Ty::B64, m)?;
                let op = self.target_pred(d, m)?.map_or(Op::Nop, |d| Op::IsSpace { d, a, space });
                Ok((op, Class::Compare))
            }
            "cp" => self.copy_async(s, m),
            // They only move data between caches.
            _ => {
                m.find(space_named);
                m.take_cache_hints();
                m.find(|k| matches!(k, "L1" | "L2" | "evict_last" | "evict_normal" | "tensormap").then_some(()));
                Ok((Op::Nop, Class::Load))
            }
        }
    }

    pub(super) fn place(
        &mut self,
        operand: &Operand,
        space: Option<Space>,
        m: &Modifiers<'_>,
    ) -> Result<Place, PtxError> {
        let (base, offset) = self.address(operand, m)?;
        let space = match (space, self.space_of(operand)) {
            (Some(Space::Const), _) => Space::Global,
            // The name of a variable is an address in its space.
            (None, Some(known)) => known,
            (Some(space), _) => space,
            (None, None) => Space::Generic,
        };
        Ok(Place { space, base, offset })
    }

    fn access(&mut self, s: &Statement, m: &mut Modifiers<'_>, is_load: bool) -> Result<Access, PtxError> {
        let order = m.find(order_named).unwrap_or(Order::Weak);
        let scope = m.find(scope_named).unwrap_or(Scope::Device);
        let space = m.find(space_named);
        m.take_cache_hints();
        let lanes = m.find(vector_named);
        let ty = m.ty()?;
        if ty == Ty::Pred || ty.bits() / 8 * lanes.unwrap_or(1) > 32 {
            return Err(m.unknown());
        }
        let ([value, address] | [value, address, _]) = (match is_load {
            true => &s.operands[..],
            false => &s.operands[..],
        }) else {
            return Err(m.error("needs a value and an address"));
        };
        let (value, address) = if is_load { (value, address) } else { (address, value) };
        let place = self.place(address, space, m)?;
        let values = elements(value, lanes, m)?;
        let mut registers = Vec::with_capacity(values.len());
        let mut width = 64;
        for value in values {
            registers.push(match (is_load, value) {
                (true, Operand::Sink) => None,
                (true, _) => {
                    width = self.width(value);
                    Some(self.target(value, m)?)
                }
                (false, _) => Some(self.source(value, ty, m)?),
            });
        }
        let sign_to = if ty.is_signed() { width } else { 0 };
        Ok(Access {
            place,
            bytes: ty.bits() / 8,
            registers,
            sign_to,
            order,
            scope,
        })
    }

    fn load(&mut self, s: &Statement, m: &mut Modifiers<'_>) -> Result<Decoded, PtxError> {
        let access = self.access(s, m, true)?;
        Ok((Op::Load(Box::new(access)), Class::Load))
    }

    fn store(&mut self, s: &Statement, m: &mut Modifiers<'_>) -> Result<Decoded, PtxError> {
        let access = self.access(s, m, false)?;
        Ok((Op::Store(Box::new(access)), Class::Store))
    }

    fn atomic(&mut self, s: &Statement, m: &mut Modifiers<'_>) -> Result<Decoded, PtxError> {
        let order = m.find(order_named).unwrap_or(Order::Relaxed);
        let scope = m.find(scope_named).unwrap_or(Scope::Device);
        let space = m.find(space_named);
        m.take_cache_hints();
        m.take("noftz");
        let op = m.find(|k| {
            Some(match k {
                "and" => AtomOp::And,
                "or" => AtomOp::Or,
                "xor" => AtomOp::Xor,
                "exch" => AtomOp::Exch,
                "cas" => AtomOp::Cas,
                "add" => AtomOp::Add,
                "inc" => AtomOp::Inc,
                "dec" => AtomOp::Dec,
                "min" => AtomOp::Min,
                "max" => AtomOp::Max,
                _ => return None,
            })
        });
        let op = op.ok_or_else(|| m.unknown())?;
        let lanes = m.find(vector_named);
        let ty = m.ty()?;
        let bitwise = matches!(ty, Ty::B32 | Ty::B64);
        let fits = match op {
            AtomOp::And | AtomOp::Or | AtomOp::Xor | AtomOp::Exch => bitwise,
            AtomOp::Cas => bitwise || ty == Ty::B16,
            AtomOp::Inc | AtomOp::Dec => ty == Ty::U32,
            AtomOp::Min | AtomOp::Max => matches!(ty, Ty::U32 | Ty::S32 | Ty::U64 | Ty::S64),
            AtomOp::Add => matches!(
                ty,
                Ty::U32 | Ty::S32 | Ty::U64 | Ty::S64 | Ty::F32 | Ty::F64 | Ty::F16 | Ty::BF16 | Ty::F16x2 | Ty::BF16x2
            ),
        };
        // Vectors are of floating numbers in global memory, at most 16 bytes.
        let is_float = matches!(ty, Ty::F32 | Ty::F16 | Ty::BF16 | Ty::F16x2 | Ty::BF16x2);
        let is_vector = op == AtomOp::Add && is_float && space.is_none_or(|s| s == Space::Global);
        if !fits || lanes.is_some_and(|lanes| !is_vector || lanes * ty.bits() > 128) {
            return Err(m.unknown());
        }
        let (old, operands) = match (s.opcode.as_str(), &s.operands[..]) {
            ("atom", [d, rest @ ..]) => (elements(d, lanes, m)?, rest),
            (_, rest) => (&[][..], rest),
        };
        let mut results = Vec::with_capacity(old.len());
        for d in old {
            results.push(match d {
                Operand::Sink => None,
                _ => Some(self.target(d, m)?),
            });
        }
        let (place, a, b) = match (op, operands) {
            (AtomOp::Cas, [place, a, b]) => (place, a, b),
            (AtomOp::Cas, _) => return Err(m.error("needs two values")),
            (_, [place, a]) => (place, a, a),
            _ => return Err(m.error("needs an address and a value")),
        };
        let place = self.place(place, space, m)?;
        let mut values = Vec::new();
        for a in elements(a, lanes, m)? {
            values.push(self.source(a, ty, m)?);
        }
        let b = match op {
            AtomOp::Cas => self.source(b, ty, m)?,
            _ => values[0],
        };
        let atomic = Atomic {
            place,
            op,
            ty,
            results,
            a: values,
            b,
            order,
            scope,
        };
        Ok((Op::Atomic(Box::new(atomic)), Class::Atomic))
    }

    fn copy_async(&mut self, s: &'a Statement, m: &mut Modifiers<'_>) -> Result<Decoded, PtxError> {
        if !m.take("async") {
            return Err(m.unknown());
        }
        if m.take("bulk") {
            return self.copy_tile(s, m);
        }
        let count = |operand: Option<&Operand>| match operand {
            Some(Operand::Int(n)) => u32::try_from(*n).ok(),
            _ => None,
        };
        if m.take("commit_group") {
            return Ok((Op::CopyCommit, Class::Copy));
        }
        if m.take("wait_all") {
            return Ok((Op::CopyWait(None), Class::Copy));
        }
        if m.take("wait_group") {
            let pending = count(s.operands.first()).ok_or_else(|| m.error("needs a number of groups"))?;
            return Ok((Op::CopyWait(Some(pending)), Class::Copy));
        }
        if !(m.take("ca") | m.take("cg")) || !m.find(space_named).is_some_and(|s| s == Space::Shared) {
            return Err(m.unknown());
        }
        if !m.take("global") {
            return Err(m.unknown());
        }
        m.take_cache_hints();
        let [to, from, bytes, rest @ ..] = &s.operands[..] else {
            return Err(m.error("needs three operands"));
        };
        let bytes = count(Some(bytes)).filter(|b| matches!(b, 4 | 8 | 16));
        let bytes = bytes.ok_or_else(|| m.error("copies 4, 8 or 16 bytes"))?;
        let (mut size, mut ignore) = (None, None);
        match rest {
            [] => {}
            [operand] if self.is_pred(operand) => ignore = Some(self.guard(operand, m)?),
            [operand] => size = Some(self.source(operand, Ty::U32, m)?),
            _ => return Err(m.error("has operands that are not supported")),
        }
        let to = self.place(to, Some(Space::Shared), m)?;
        let from = self.place(from, Some(Space::Global), m)?;
        Ok((
            Op::CopyAsync {
                to,
                from,
                bytes,
                size,
                ignore,
            },
            Class::Copy,
        ))
    }
}
