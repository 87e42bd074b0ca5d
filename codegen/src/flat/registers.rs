//! Register scratch, as values.
//!
//! Invariants:
//! - Every access has a constant index, or one constant per lane.
//! - Scratch that a lanes loop walks with the lane is kept as vectors of that loop's lanes; other accesses take lanes out
//!   of them. Otherwise each element is a scalar.

use std::ops::Range;

use smallvec::SmallVec;
use tlc_ir::kernel::{Bind, Memory, Stmt};
use tlc_ir::{DType, IndexExpr, Kernel, ScalarOp, VarId};

use super::build::{Builder, Val, makes_vectors};
use super::index::LaneUse;
use super::{Op, Value};
use crate::error::{Result, invalid, unsupported};

/// Elements that one register scratch may have.
const REGISTER_LIMIT: i64 = 4096;

/// The registers of one scratch.
#[derive(Clone, Copy)]
pub(super) struct RegisterScratch {
    dtype: DType,
    len: i64,
    /// Lanes of each register: 1 for scalars.
    lanes: u32,
    /// Number of the first in `held`, and how many they are.
    first: usize,
    count: usize,
}

/// Lanes of loops that go through a scratch, and whether they write it.
pub(super) type Walked = SmallVec<[(i64, bool); 2]>;

/// By scratch, the lane counts with which it is walked lane by lane.
pub(super) fn walked(kernel: &Kernel) -> Vec<Walked> {
    fn walk(kernel: &Kernel, body: &[Stmt], lanes: Option<(VarId, i64)>, found: &mut [Walked]) {
        for s in body {
            if let Some((var, count)) = lanes {
                for a in s.accesses() {
                    let Memory::Scratch(scratch) = a.memory else { continue };
                    let one = (count, a.effect.writes());
                    if let Some(of) = found.get_mut(scratch as usize)
                        && a.index.uses(var)
                        && !of.contains(&one)
                    {
                        of.push(one);
                    }
                }
            }
            let lanes = match s {
                Stmt::Loop {
                    var, bind: Bind::Lanes, ..
                } => Some((*var, kernel.extents[var.0 as usize].as_const().unwrap_or(0))),
                _ => lanes,
            };
            walk(kernel, s.body(), lanes, found);
        }
    }
    let mut found = vec![Walked::new(); kernel.scratch.len()];
    walk(kernel, &kernel.body, None, &mut found);
    found
}

/// Where a register access goes.
struct Place {
    scratch: RegisterScratch,
    /// One element, or one for each lane.
    elements: SmallVec<[usize; 16]>,
    uniform: bool,
    /// Exactly one vector.
    whole: bool,
}

impl Place {
    /// The register of an element, and its lane there.
    fn register(&self, element: usize) -> (usize, u8) {
        let lanes = self.scratch.lanes as usize;
        (self.scratch.first + element / lanes, (element % lanes) as u8)
    }
}

impl Builder<'_, '_> {
    /// The registers of scratch `i`, which hold anything. It is walked as [`walked`] says.
    pub(super) fn declare_registers(&mut self, i: usize, walked: &Walked) -> Result<RegisterScratch> {
        let s = &self.kernel.scratch[i];
        let Some(len) = s.len.as_const() else {
            return invalid("register scratch without constant length");
        };
        if len > REGISTER_LIMIT {
            return unsupported(format!("register scratch of {len} elements (at most {REGISTER_LIMIT})"));
        }
        let mut lanes = 1;
        // Loops of fewer lanes may read parts of a vector that others write.
        let most = walked.iter().map(|w| w.0).max();
        if let Some(count) = most
            && walked
                .iter()
                .all(|&(n, writes)| n == count || !writes && n > 1 && count % n == 0)
            && count > 1
            && len % count == 0
            && let Ok(count) = u32::try_from(count)
            && makes_vectors(self.has.vector_bits(), count, s.dtype)
        {
            lanes = count;
        }
        let (first, count) = (self.held.len(), (len.max(0) / i64::from(lanes)) as usize);
        let nothing = self.shared(Op::Undefined, s.dtype, lanes);
        self.held.resize(first + count, nothing);
        Ok(RegisterScratch {
            dtype: s.dtype,
            len,
            lanes,
            first,
            count,
        })
    }

    /// The registers of a scratch, by their numbers in `held`.
    pub(super) fn registers_of(&self, scratch: u32) -> Range<usize> {
        match self.registers.get(scratch as usize) {
            Some(Some(s)) => s.first..s.first + s.count,
            _ => 0..0,
        }
    }

    pub(super) fn is_register(&self, memory: Memory) -> bool {
        matches!(memory, Memory::Scratch(i) if self.registers.get(i as usize).is_some_and(Option::is_some))
    }

    fn register_place(&mut self, memory: Memory, index: &IndexExpr) -> Result<Place> {
        let Memory::Scratch(i) = memory else {
            return invalid("register access to a parameter");
        };
        let Some(Some(scratch)) = self.registers.get(i as usize).copied() else {
            return invalid("register access to other scratch");
        };
        let r = self.resolve(index)?;
        let lane = r.lane;
        let uniform = lane == LaneUse::None;
        let len = scratch.len;
        let within = |e: Option<i64>| match e {
            Some(e) if (0..len).contains(&e) => Ok(e as usize),
            Some(e) => invalid(format!("register index {e} of {len}")),
            None => unsupported("a register index that unrolling does not make constant"),
        };
        let first = r.terms.is_empty().then_some(r.constant);
        let mut elements = SmallVec::<[usize; 16]>::new();
        match lane {
            LaneUse::None => elements.push(within(first)?),
            LaneUse::Affine(step) => {
                for k in 0..i64::from(self.lane_count()) {
                    elements.push(within(first.map(|e| e.wrapping_add(k.wrapping_mul(step))))?);
                }
            }
            LaneUse::General => self.each_lane(|b| {
                let e = b.known_index(index)?;
                elements.push(within(e)?);
                Ok(())
            })?,
        }
        let lanes = scratch.lanes as usize;
        let whole =
            lanes > 1 && lane == LaneUse::Affine(1) && elements.len() == lanes && elements[0].is_multiple_of(lanes);
        Ok(Place {
            scratch,
            elements,
            uniform,
            whole,
        })
    }

    /// What a register holds in one lane.
    fn held_in(&mut self, register: usize, lane: u8) -> Value {
        let v = self.held[register];
        match self.info(v).lanes {
            1 => v,
            _ => self.shared(Op::Lane(v, lane), self.dtype(v), 1),
        }
    }

    /// A load from register scratch.
    pub(super) fn load_register(&mut self, memory: Memory, index: &IndexExpr) -> Result<Val> {
        let p = self.register_place(memory, index)?;
        if p.whole {
            return Ok(Val::Vector(self.held[p.register(p.elements[0]).0]));
        }
        let mut lanes = SmallVec::new();
        for &e in &p.elements {
            let (register, lane) = p.register(e);
            lanes.push(self.held_in(register, lane));
        }
        if !p.uniform
            && self.fits(p.scratch.dtype)
            && let Some(turned) = self.turned(&lanes)
        {
            return Ok(Val::Vector(turned));
        }
        Ok(if p.uniform {
            self.known_value(lanes[0])
        } else {
            Val::Each(lanes)
        })
    }

    /// A store to register scratch.
    pub(super) fn store_register(
        &mut self,
        memory: Memory,
        index: &IndexExpr,
        v: &Val,
        mask: Option<&Val>,
    ) -> Result<()> {
        let p = self.register_place(memory, index)?;
        let dtype = p.scratch.dtype;
        if p.whole {
            let (register, _) = p.register(p.elements[0]);
            let mut v = v.clone();
            if let Some(mask) = mask {
                let old = Val::Vector(self.held[register]);
                v = self.map(ScalarOp::Select, dtype, &[mask.clone(), v, old])?;
            }
            if !self.fits(dtype) {
                return invalid("vector registers outside their lanes loop");
            }
            self.held[register] = self.vector(&v);
            return Ok(());
        }
        // Where every lane writes one element, the last one stays.
        let ordered = !p.uniform || mask.is_some_and(Val::varies);
        let first = if ordered { 0 } else { self.lane_count() - 1 };
        for lane in first..self.lane_count() {
            let element = match p.uniform {
                true => p.elements[0],
                false => p.elements[lane as usize],
            };
            let (register, part) = p.register(element);
            let mut x = self.scalar(v, lane);
            if let Some(mask) = mask {
                let m = self.scalar(mask, lane);
                let old = self.held_in(register, part);
                x = self.make(Op::Map(ScalarOp::Select, SmallVec::from_slice(&[m, x, old])), dtype, 1);
            }
            if p.scratch.lanes > 1 {
                let whole = self.held[register];
                x = self.make(Op::Insert(whole, x, part), dtype, p.scratch.lanes);
            }
            self.held[register] = x;
        }
        Ok(())
    }
}
