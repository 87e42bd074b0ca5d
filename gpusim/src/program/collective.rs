//! What lanes and warps do together: barriers, shuffles, votes, matrices.

use super::decode::{Decoded, Decoder};
use super::modifiers::Modifiers;
use super::{BarrierKind, Mma, MmaType, Op, Place, Redux, Reg, Shuffle, Vote};
use crate::arith::Ty;
use crate::counters::Class;
use crate::syntax::{Operand, PtxError, Space, Statement};

impl<'a> Decoder<'a> {
    pub(super) fn collective(&mut self, s: &'a Statement, m: &mut Modifiers<'_>) -> Result<Decoded, PtxError> {
        match s.opcode.as_str() {
            "bar" | "barrier" => self.barrier(s, m),
            "shfl" => {
                self.synchronous(m)?;
                let mode = m.find(|k| {
                    Some(match k {
                        "up" => Shuffle::Up,
                        "down" => Shuffle::Down,
                        "bfly" => Shuffle::Butterfly,
                        "idx" => Shuffle::Index,
                        _ => return None,
                    })
                });
                let mode = mode.ok_or_else(|| m.unknown())?;
                let ty = m.ty()?;
                let [d, a, b, c, mask] = &s.operands[..] else {
                    return Err(m.error("needs five operands"));
                };
                let (d, p) = self.result_and_pred(d, m)?;
                let (a, mask) = (self.source(a, ty, m)?, self.source(mask, Ty::B32, m)?);
                let (b, c) = (self.source(b, Ty::B32, m)?, self.source(c, Ty::B32, m)?);
                Ok((
                    Op::Shuffle {
                        mode,
                        d,
                        p,
                        a,
                        b,
                        c,
                        mask,
                    },
                    Class::Warp,
                ))
            }
            "vote" => {
                self.synchronous(m)?;
                let mode = m.find(|k| {
                    Some(match k {
                        "all" => Vote::All,
                        "any" => Vote::Any,
                        "uni" => Vote::Uniform,
                        "ballot" => Vote::Ballot,
                        _ => return None,
                    })
                });
                let mode = mode.ok_or_else(|| m.unknown())?;
                m.ty()?;
                let [d, a, mask] = &s.operands[..] else {
                    return Err(m.error("needs three operands"));
                };
                let (d, p) = match mode {
                    Vote::Ballot => (Some(self.target(d, m)?), None),
                    Vote::All | Vote::Any | Vote::Uniform => (None, self.target_pred(d, m)?),
                };
                let a = match a {
                    Operand::Int(value) => self.constant_guard(*value != 0),
                    _ => self.guard(a, m)?,
                };
                Ok((
                    Op::Vote {
                        mode,
                        d,
                        p,
                        a,
                        mask: self.source(mask, Ty::B32, m)?,
                    },
                    Class::Warp,
                ))
            }
            "match" => {
                let all = m.take("all");
                if !all && !m.take("any") {
                    return Err(m.unknown());
                }
                self.synchronous(m)?;
                let ty = m.ty()?;
                let [d, a, mask] = &s.operands[..] else {
                    return Err(m.error("needs three operands"));
                };
                let (d, p) = self.result_and_pred(d, m)?;
                let d = d.unwrap_or_else(|| self.fresh());
                let (a, mask) = (self.source(a, ty, m)?, self.source(mask, Ty::B32, m)?);
                Ok((Op::Match { all, d, p, a, mask }, Class::Warp))
            }
            "redux" => {
                self.synchronous(m)?;
                let op = m.find(|k| {
                    Some(match k {
                        "add" => Redux::Add,
                        "min" => Redux::Min,
                        "max" => Redux::Max,
                        "and" => Redux::And,
                        "or" => Redux::Or,
                        "xor" => Redux::Xor,
                        _ => return None,
                    })
                });
                let op = op.ok_or_else(|| m.unknown())?;
                let ty = m.ty()?;
                if !matches!(ty, Ty::U32 | Ty::S32 | Ty::B32) {
                    return Err(m.unknown());
                }
                let [d, a, mask] = &s.operands[..] else {
                    return Err(m.error("needs three operands"));
                };
                let d = self.target(d, m)?;
                let (a, mask) = (self.source(a, ty, m)?, self.source(mask, Ty::B32, m)?);
                Ok((
                    Op::Redux {
                        op,
                        signed: ty.is_signed(),
                        d,
                        a,
                        mask,
                    },
                    Class::Warp,
                ))
            }
            "activemask" => {
                m.ty()?;
                let [d] = &s.operands[..] else {
                    return Err(m.error("needs a result"));
                };
                Ok((Op::ActiveMask { d: self.target(d, m)? }, Class::Warp))
            }
            "elect" => {
                self.synchronous(m)?;
                let [d, mask] = &s.operands[..] else {
                    return Err(m.error("needs two operands"));
                };
                let (d, p) = self.result_and_pred(d, m)?;
                let Some(p) = p else {
                    return Err(m.error("needs a predicate"));
                };
                Ok((
                    Op::Elect {
                        d,
                        p,
                        mask: self.source(mask, Ty::B32, m)?,
                    },
                    Class::Warp,
                ))
            }
            "ldmatrix" | "stmatrix" => self.matrices(s, m),
            "movmatrix" => {
                self.synchronous(m)?;
                if !(m.take("aligned") & m.take("m8n8") & m.take("trans")) {
                    return Err(m.unknown());
                }
                m.ty()?;
                let [d, a] = &s.operands[..] else {
                    return Err(m.error("needs two operands"));
                };
                Ok((
                    Op::MoveMatrix {
                        d: self.target(d, m)?,
                        a: self.source(a, Ty::B32, m)?,
                    },
                    Class::Matrix,
                ))
            }
            "mma" => self.mma(s, m),
            _ => {
                m.find(|k| matches!(k, "launch_dependents" | "wait").then_some(()));
                Ok((Op::Nop, Class::Barrier))
            }
        }
    }

    pub(super) fn synchronous(&self, m: &mut Modifiers<'_>) -> Result<(), PtxError> {
        if m.take("sync") {
            Ok(())
        } else {
            Err(m.error("without `.sync` is not supported"))
        }
    }

    /// `d|p`, `d`, either of them `_`.
    fn result_and_pred(&mut self, d: &Operand, m: &Modifiers<'_>) -> Result<(Option<Reg>, Option<u32>), PtxError> {
        let (d, p) = match d {
            Operand::Pair(d, p) => (&**d, self.target_pred(p, m)?),
            _ => (d, None),
        };
        let d = if *d == Operand::Sink {
            None
        } else {
            Some(self.target(d, m)?)
        };
        Ok((d, p))
    }

    fn barrier(&mut self, s: &Statement, m: &mut Modifiers<'_>) -> Result<Decoded, PtxError> {
        if s.opcode == "bar" && m.take("warp") {
            self.synchronous(m)?;
            let [mask] = &s.operands[..] else {
                return Err(m.error("needs a mask"));
            };
            return Ok((
                Op::WarpBarrier {
                    mask: self.source(mask, Ty::B32, m)?,
                },
                Class::Barrier,
            ));
        }
        m.take("cta");
        let aligned = s.opcode == "bar" || m.take("aligned");
        let kinds = ["sync", "arrive", "red"];
        let kind = m
            .find(|k| kinds.iter().find(|&&n| n == k).copied())
            .ok_or_else(|| m.unknown())?;
        let (kind, operands) = if kind == "red" {
            let what = m.find(|k| ["popc", "and", "or"].iter().find(|&&n| n == k).copied());
            let what = what.ok_or_else(|| m.unknown())?;
            m.ty()?;
            let [d, operands @ .., p] = &s.operands[..] else {
                return Err(m.error("needs three operands"));
            };
            let p = self.guard(p, m)?;
            let kind = match what {
                "popc" => BarrierKind::Count(self.target(d, m)?, p),
                _ => {
                    let Some(d) = self.target_pred(d, m)? else {
                        return Err(m.error("needs a result"));
                    };
                    if what == "and" {
                        BarrierKind::All(d, p)
                    } else {
                        BarrierKind::Any(d, p)
                    }
                }
            };
            (kind, operands)
        } else {
            let kind = if kind == "sync" {
                BarrierKind::Sync
            } else {
                BarrierKind::Arrive
            };
            (kind, &s.operands[..])
        };
        let (id, threads) = match operands {
            [id] if kind != BarrierKind::Arrive => (self.source(id, Ty::U32, m)?, None),
            [id, threads] => (self.source(id, Ty::U32, m)?, Some(self.source(threads, Ty::U32, m)?)),
            _ => return Err(m.error("has the wrong number of operands")),
        };
        Ok((
            Op::Barrier {
                id,
                threads,
                kind,
                aligned,
            },
            Class::Barrier,
        ))
    }

    fn matrices(&mut self, s: &Statement, m: &mut Modifiers<'_>) -> Result<Decoded, PtxError> {
        self.synchronous(m)?;
        if !(m.take("aligned") & m.take("m8n8")) {
            return Err(m.unknown());
        }
        let count = m.find(|k| match k {
            "x1" => Some(1),
            "x2" => Some(2),
            "x4" => Some(4),
            _ => None,
        });
        let count = count.ok_or_else(|| m.unknown())?;
        let transposed = m.take("trans");
        let shared = m.take("shared") | m.take("shared::cta");
        if m.ty()? != Ty::B16 {
            return Err(m.unknown());
        }
        let load = s.opcode == "ldmatrix";
        let [first, second] = &s.operands[..] else {
            return Err(m.error("needs two operands"));
        };
        let (registers, address) = if load { (first, second) } else { (second, first) };
        let list = match registers {
            Operand::Vector(list) => &list[..],
            single => std::slice::from_ref(single),
        };
        if list.len() != count {
            return Err(m.error("has as many registers as it does not name"));
        }
        let (base, offset) = self.address(address, m)?;
        let space = if shared { Space::Shared } else { Space::Generic };
        let place = Place { space, base, offset };
        let op = if load {
            let d = list.iter().map(|r| self.target(r, m)).collect::<Result<_, _>>()?;
            Op::LoadMatrix { d, place, transposed }
        } else {
            let a = list
                .iter()
                .map(|r| self.source(r, Ty::B32, m))
                .collect::<Result<_, _>>()?;
            Op::StoreMatrix { a, place, transposed }
        };
        Ok((op, Class::Matrix))
    }

    fn mma(&mut self, s: &Statement, m: &mut Modifiers<'_>) -> Result<Decoded, PtxError> {
        self.synchronous(m)?;
        let k = m.find(|k| match k {
            "m16n8k4" => Some(4),
            "m16n8k8" => Some(8),
            "m16n8k16" => Some(16),
            _ => None,
        });
        let fits = m.take("aligned") & m.take("row") & m.take("col");
        let (Some(k), true) = (k, fits) else {
            return Err(m.unknown());
        };
        let (dt, at, bt, ct) = (m.ty()?, m.ty()?, m.ty()?, m.ty()?);
        let ty = match (at, k) {
            (Ty::F16, 8 | 16) => MmaType::F16,
            (Ty::BF16, 8 | 16) => MmaType::BF16,
            (Ty::TF32, 4 | 8) => MmaType::TF32,
            _ => return Err(m.unknown()),
        };
        let half = |t: Ty| match t {
            Ty::F32 => Some(false),
            Ty::F16 if at == Ty::F16 => Some(true),
            _ => None,
        };
        let (Some(half_c), Some(half_d)) = (half(ct), half(dt)) else {
            return Err(m.unknown());
        };
        if at != bt {
            return Err(m.unknown());
        }
        let [d, a, b, c] = &s.operands[..] else {
            return Err(m.error("needs four operands"));
        };
        let per_register = if ty == MmaType::TF32 { 1 } else { 2 };
        let counts = [
            if half_d { 2 } else { 4 },
            k / 2 / per_register,
            k / 4 / per_register,
            if half_c { 2 } else { 4 },
        ];
        let lists: Vec<&[Operand]> = [d, a, b, c]
            .into_iter()
            .map(|o| match o {
                Operand::Vector(list) => &list[..],
                single => std::slice::from_ref(single),
            })
            .collect();
        if lists
            .iter()
            .zip(counts)
            .any(|(list, count)| list.len() != count as usize)
        {
            return Err(m.error("has the wrong number of registers"));
        }
        let d = lists[0].iter().map(|r| self.target(r, m)).collect::<Result<_, _>>()?;
        let mut sources = |list: &[Operand], ty| {
            list.iter()
                .map(|r| self.source(r, ty, m))
                .collect::<Result<Vec<_>, _>>()
        };
        let (a, b, c) = (
            sources(lists[1], Ty::B32)?,
            sources(lists[2], Ty::B32)?,
            sources(lists[3], Ty::F32)?,
        );
        Ok((
            Op::Mma(Box::new(Mma {
                k,
                ty,
                half_c,
                half_d,
                d,
                a,
                b,
                c,
            })),
            Class::Matrix,
        ))
    }
}
