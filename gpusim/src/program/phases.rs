//! Barriers in shared memory (`mbarrier`), and the copies of tiles that complete on them.

use super::decode::{Decoded, Decoder};
use super::memory::{order_named, scope_named, space_named};
use super::modifiers::Modifiers;
use super::{Arrival, CopyTile, Op, Order, PhaseOp, PhaseWait};
use crate::arith::Ty;
use crate::counters::Class;
use crate::syntax::{Operand, PtxError, Space, Statement};

/// Whether a target such as `sm_90a` has bytes that barriers count.
fn counts_bytes(target: &str) -> bool {
    let digits: String = target.chars().filter(char::is_ascii_digit).collect();
    digits.parse::<u32>().is_ok_and(|number| number >= 90)
}

/// Shared memory under either of its names: of the block, or of a cluster, whose blocks are one each here.
fn shared(name: &str) -> Option<Space> {
    match name {
        "shared::cluster" => Some(Space::Shared),
        _ => space_named(name).filter(|&s| s == Space::Shared),
    }
}

fn dimensions(name: &str) -> Option<usize> {
    let number = name.strip_suffix('d')?.parse().ok()?;
    (1..=5).contains(&number).then_some(number)
}

impl<'a> Decoder<'a> {
    fn needs_counting(&self, m: &Modifiers<'_>) -> Result<(), PtxError> {
        if counts_bytes(self.target_name()) {
            return Ok(());
        }
        Err(m.error(&format!("is of sm_90 and later, not of {}", self.target_name())))
    }

    pub(super) fn phase(&mut self, s: &'a Statement, m: &mut Modifiers<'_>) -> Result<Decoded, PtxError> {
        let kind = m.find(|k| {
            let known = ["init", "inval", "arrive", "test_wait", "try_wait"];
            known.into_iter().find(|&known| known == k)
        });
        let expects = m.take("expect_tx");
        let by_parity = m.take("parity");
        let order = m.find(order_named);
        // Whoever is in the block is in every scope.
        m.find(scope_named);
        let space = m.find(shared);
        if !m.take("b64") {
            return Err(m.unknown());
        }
        let wrong = || m.error("has operands that do not fit");
        let (place, what) = match (kind, &s.operands[..]) {
            (Some("init"), [place, count]) => (place, PhaseOp::Init(self.source(count, Ty::U32, m)?)),
            (Some("inval"), [place]) => (place, PhaseOp::Invalidate),
            (None, [place, bytes]) if expects => (place, PhaseOp::Expect(self.source(bytes, Ty::U32, m)?)),
            (Some("arrive"), [state, place, rest @ ..]) => {
                let state = match state {
                    Operand::Sink => None,
                    _ => Some(self.target(state, m)?),
                };
                let number = match rest {
                    [] => None,
                    [number] => Some(self.source(number, Ty::U32, m)?),
                    _ => return Err(wrong()),
                };
                if expects && number.is_none() {
                    return Err(wrong());
                }
                let (count, bytes) = if expects { (None, number) } else { (number, None) };
                let arrival = Arrival {
                    state,
                    count,
                    bytes,
                    releases: order != Some(Order::Relaxed),
                };
                (place, PhaseOp::Arrive(arrival))
            }
            // The hint how long to hold a thread means nothing here.
            (Some(kind @ ("test_wait" | "try_wait")), [done, place, of] | [done, place, of, _]) => {
                let wait = PhaseWait {
                    done: self.target_pred(done, m)?,
                    of: self.source(of, if by_parity { Ty::U32 } else { Ty::B64 }, m)?,
                    by_parity,
                    holds: kind == "try_wait",
                    acquires: order != Some(Order::Relaxed),
                };
                (place, PhaseOp::Wait(wait))
            }
            _ => return Err(m.unknown()),
        };
        if by_parity && !matches!(what, PhaseOp::Wait(_)) {
            return Err(m.unknown());
        }
        if expects || matches!(what, PhaseOp::Wait(wait) if wait.holds) {
            self.needs_counting(m)?;
        }
        let place = self.place(place, space, m)?;
        Ok((Op::Phase { place, what }, Class::Barrier))
    }

    pub(super) fn copy_tile(&mut self, s: &'a Statement, m: &mut Modifiers<'_>) -> Result<Decoded, PtxError> {
        self.needs_counting(m)?;
        let is_tensor = m.take("tensor");
        let dimensions = m.find(dimensions);
        let (Some(dimensions), Some(_)) = (dimensions.filter(|_| is_tensor), m.find(shared)) else {
            return Err(m.error("is not simulated: only copies of tiles of tensors to shared memory are"));
        };
        // The other way round it is a copy from shared memory.
        let from_global =
            s.modifiers.iter().position(|k| k == "global") > s.modifiers.iter().position(|k| shared(k).is_some());
        if !(from_global && m.take("global") && m.take("mbarrier::complete_tx::bytes")) {
            return Err(m.error("is not simulated: only copies that complete on a barrier are"));
        }
        m.take("tile");
        m.take_cache_hints();
        let ([to, from, barrier] | [to, from, barrier, _]) = &s.operands[..] else {
            return Err(m.error("needs a place in shared memory, one in a tensor and a barrier"));
        };
        let Operand::Place(_, _, coordinates) = from else {
            return Err(m.error("needs a place in a tensor"));
        };
        if coordinates.len() != dimensions {
            return Err(m.error("has as many coordinates as it does not name"));
        }
        let at = coordinates
            .iter()
            .map(|c| self.source(c, Ty::S32, m))
            .collect::<Result<_, _>>()?;
        let copy = CopyTile {
            to: self.place(to, Some(Space::Shared), m)?,
            map: self.place(from, None, m)?,
            at,
            barrier: self.place(barrier, Some(Space::Shared), m)?,
        };
        Ok((Op::CopyTile(Box::new(copy)), Class::Copy))
    }
}
