//! Register scratch.
//!
//! Invariants:
//! - Every access has a constant index, or one constant per lane.
//! - Scratch that a lanes loop walks with the lane is kept as vectors of that loop's shape; other accesses take lanes out
//!   of them. Otherwise each element is a scalar variable.

use cranelift_codegen::ir::{InstBuilder, Type, types};
use cranelift_frontend::Variable;
use smallvec::SmallVec;
use tlc_ir::kernel::{Bind, Memory, Stmt};
use tlc_ir::{DType, IndexExpr, Kernel, ScalarOp, VarId};

use super::index::LaneUse;
use super::translate::Translator;
use super::values::{Val, full, int_type, scalar_type};
use crate::error::{Result, invalid, unsupported};

/// Elements that one register scratch may have.
const REGISTER_LIMIT: i64 = 4096;

/// Variables of one scratch.
pub(super) struct RegisterScratch {
    dtype: DType,
    len: i64,
    /// Lanes of each variable: 1 for scalars.
    lanes: u32,
    variables: Vec<Variable>,
}

/// The lane counts with which a scratch is walked lane by lane; more than one answer means no vectors.
fn walked_by(kernel: &Kernel, scratch: u32) -> SmallVec<[i64; 2]> {
    fn note(index: &IndexExpr, lanes: Option<(VarId, i64)>, found: &mut SmallVec<[i64; 2]>) {
        let Some((var, count)) = lanes else { return };
        if index.uses(var) && !found.contains(&count) {
            found.push(count);
        }
    }
    fn walk(kernel: &Kernel, body: &[Stmt], scratch: u32, lanes: Option<(VarId, i64)>, found: &mut SmallVec<[i64; 2]>) {
        for s in body {
            for a in s.accesses().filter(|a| a.memory == Memory::Scratch(scratch)) {
                note(a.index, lanes, found);
            }
            let lanes = match s {
                Stmt::Loop {
                    var, bind: Bind::Lanes, ..
                } => Some((*var, kernel.extents[var.0 as usize].as_const().unwrap_or(0))),
                _ => lanes,
            };
            walk(kernel, s.body(), scratch, lanes, found);
        }
    }
    let mut found = SmallVec::new();
    walk(kernel, &kernel.body, scratch, None, &mut found);
    found
}

impl Translator<'_, '_> {
    /// Declares the variables of register scratch `i`.
    pub(super) fn declare_registers(&mut self, i: usize) -> Result<RegisterScratch> {
        let s = &self.kernel.scratch[i];
        let Some(len) = s.len.as_const() else {
            return invalid("register scratch without constant length");
        };
        if len > REGISTER_LIMIT {
            return unsupported(format!("register scratch of {len} elements (at most {REGISTER_LIMIT})"));
        }
        let (mut lanes, mut ty) = (1, scalar_type(s.dtype));
        if let [count @ (2 | 4 | 8 | 16)] = walked_by(self.kernel, i as u32)[..]
            && len % count == 0
            && self.vectors
            && let Some(vector) = vector_type(s.dtype, count as u32)
        {
            (lanes, ty) = (count as u32, vector);
        }
        let variables = (0..len / lanes as i64).map(|_| self.b.declare_var(ty)).collect();
        Ok(RegisterScratch {
            dtype: s.dtype,
            len,
            lanes,
            variables,
        })
    }

    /// The scratch of a register access and where lane 0 goes, with the step from lane to lane.
    fn register_place(&mut self, memory: Memory, index: &IndexExpr) -> Result<Place> {
        let Memory::Scratch(i) = memory else {
            return invalid("register access to a parameter");
        };
        let Some(Some(s)) = self.registers.get(i as usize) else {
            return invalid("register access to other scratch");
        };
        let (len, lanes, dtype) = (s.len, s.lanes, s.dtype);
        let r = self.resolve(index)?;
        let mut elements = SmallVec::<[Option<i64>; 16]>::new();
        let uniform = r.lane == LaneUse::None;
        if uniform {
            elements.push(self.constant(index)?);
        } else {
            self.each_lane(|t| {
                let c = t.constant(index)?;
                elements.push(c);
                Ok(())
            })?;
        }
        let elements = elements
            .into_iter()
            .map(|e| match e {
                Some(e) if (0..len).contains(&e) => Ok(e as usize),
                Some(e) => invalid(format!("register index {e} of {len}")),
                None => unsupported("a register index that unrolling does not make constant"),
            })
            .collect::<Result<SmallVec<[usize; 16]>>>()?;
        let whole = lanes > 1
            && r.lane == LaneUse::Affine(1)
            && elements.len() == lanes as usize
            && elements[0] % lanes as usize == 0;
        Ok(Place {
            scratch: i as usize,
            dtype,
            lanes: lanes as usize,
            elements,
            uniform,
            whole,
        })
    }

    fn register(&self, p: &Place, i: usize) -> Result<Variable> {
        match &self.registers[p.scratch] {
            Some(s) => Ok(s.variables[i]),
            None => invalid("register access to other scratch"),
        }
    }

    /// A load from register scratch.
    pub(super) fn load_register(&mut self, memory: Memory, index: &IndexExpr) -> Result<Val> {
        let p = self.register_place(memory, index)?;
        if p.whole {
            let var = self.register(&p, p.elements[0] / p.lanes)?;
            return Ok(Val::Vector(self.b.use_var(var)));
        }
        let mut lanes = SmallVec::new();
        for &e in &p.elements {
            let var = self.register(&p, e / p.lanes)?;
            let v = self.b.use_var(var);
            lanes.push(if p.lanes == 1 {
                v
            } else {
                self.scalar(&Val::Vector(v), p.dtype, (e % p.lanes) as u32)
            });
        }
        Ok(if p.uniform {
            Val::Scalar(lanes[0])
        } else {
            Val::Lanes(lanes)
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
        if p.whole {
            let var = self.register(&p, p.elements[0] / p.lanes)?;
            let mut v = v.clone();
            if let Some(mask) = mask {
                let old = Val::Vector(self.b.use_var(var));
                v = self.map(ScalarOp::Select, p.dtype, &[mask.clone(), v, old])?;
            }
            let Some(ty) = self.vector_type(p.dtype) else {
                return invalid("vector registers outside their lanes loop");
            };
            let v = self.vector(&v, p.dtype, ty);
            self.b.def_var(var, v);
            return Ok(());
        }
        // Where every lane writes one element, the last one stays.
        let ordered = !p.uniform || mask.is_some_and(Val::varies);
        let first = if ordered { 0 } else { self.lane_count() - 1 };
        for lane in first..self.lane_count() {
            let e = if p.uniform {
                p.elements[0]
            } else {
                p.elements[lane as usize]
            };
            let var = self.register(&p, e / p.lanes)?;
            let mut x = self.scalar(v, p.dtype, lane);
            if let Some(mask) = mask {
                let m = self.scalar(mask, DType::Bool, lane);
                let old = self.b.use_var(var);
                let old = if p.lanes == 1 {
                    old
                } else {
                    self.scalar(&Val::Vector(old), p.dtype, (e % p.lanes) as u32)
                };
                x = self.b.ins().select(m, x, old);
            }
            if p.lanes > 1 {
                let whole = self.b.use_var(var);
                let ty = self.type_of(whole);
                let x_lane = self.lane_element(x, p.dtype, ty);
                x = self.b.ins().insertlane(whole, x_lane, (e % p.lanes) as u8);
            }
            self.b.def_var(var, x);
        }
        Ok(())
    }
}

/// Where a register access goes.
struct Place {
    scratch: usize,
    dtype: DType,
    lanes: usize,
    /// One element, or one for each lane.
    elements: SmallVec<[usize; 16]>,
    uniform: bool,
    /// Exactly one vector variable.
    whole: bool,
}

/// The vector type of a dtype in a loop of that many lanes.
fn vector_type(dtype: DType, lanes: u32) -> Option<Type> {
    let width = 128 / lanes;
    match dtype {
        DType::Bool => Some(full(int_type(width))),
        d if d.bits() <= width => Some(full(scalar_type(d))),
        _ => None,
    }
    .filter(|t| t.bits() == types::I8X16.bits())
}
