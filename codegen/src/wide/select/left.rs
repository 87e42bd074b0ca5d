//! Elements of memory that are loaded by what needs them: into all lanes at once, or bools each into its lane.
//!
//! Invariant: a load is left to what needs what it loads only if nothing else uses it and nothing is written between the two.

use iced_x86::Code;
use rustc_hash::FxHashSet;
use tlc_ir::DType;

use super::lanes::broadcast;
use super::masks::Mask;
use super::{Form, Reg, Selector, Size, width};
use crate::error::{Result, invalid};
use crate::flat::{Flat, Item, Op, Value};
use crate::wide::machine::Arg;

/// Bools that are put into the lanes of one register of bytes.
const MOST_BOOLS: usize = 16;

/// The loads of scalars that the one value which uses them does by itself.
pub(super) fn left_loads(flat: &Flat<'_>, uses: &[u32]) -> FxHashSet<Value> {
    let mut found = FxHashSet::default();
    walk(flat, uses, &flat.body, &mut found);
    found
}

fn walk(flat: &Flat<'_>, uses: &[u32], body: &[Item], found: &mut FxHashSet<Value>) {
    // Loads that nothing was written behind.
    let mut loaded: FxHashSet<Value> = FxHashSet::default();
    for item in body {
        match item {
            Item::Let(v) => match flat.op(*v) {
                Op::Load { mask: None, .. } if flat.info(*v).lanes == 1 && uses[v.0 as usize] == 1 => {
                    loaded.insert(*v);
                }
                Op::Splat(a) if loaded.contains(a) && is_broadcast(flat.dtype(*a)) => {
                    found.insert(*a);
                }
                Op::Pack(parts)
                    if flat.dtype(*v) == DType::Bool
                        && parts.len() <= MOST_BOOLS
                        && parts.iter().all(|p| loaded.contains(p)) =>
                {
                    found.extend(parts.iter().copied());
                }
                _ => {}
            },
            Item::Loop(l) => {
                walk(flat, uses, &l.body, found);
                loaded.clear();
            }
            Item::If(i) => {
                walk(flat, uses, &i.then, found);
                walk(flat, uses, &i.otherwise, found);
                loaded.clear();
            }
            _ => loaded.clear(),
        }
    }
}

/// Whether an instruction loads such an element into all lanes.
fn is_broadcast(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F64 | DType::I32)
}

impl Selector<'_, '_> {
    /// An element in all lanes, if its load was left to this.
    pub(super) fn loaded_splat(&mut self, a: Value, lanes: u32) -> Result<Option<(Form, Reg)>> {
        let (true, Op::Load { address, .. }) = (self.left_loads.contains(&a), self.flat.op(a)) else {
            return Ok(None);
        };
        let dtype = self.flat.dtype(a);
        let place = self.place(address, 0)?;
        let w = width(lanes, dtype.bits());
        let all = self.vector_op(broadcast(dtype), w, &[Arg::Memory(place)]);
        Ok(Some((Form::Vector, all)))
    }

    /// Bools that lie apart as a mask, if their loads were left to this: each goes into its byte of a vector, in place of being
    /// made 0 or 1 and shifted to its bit.
    pub(super) fn loaded_bools(&mut self, parts: &[Value]) -> Result<Option<Mask>> {
        if !parts.iter().all(|p| self.left_loads.contains(p)) {
            return Ok(None);
        }
        let mut bytes = self.constant(0, 32);
        for (lane, part) in parts.iter().enumerate() {
            let Op::Load { address, .. } = self.flat.op(*part) else {
                return invalid(format!("%{} is no load", part.0));
            };
            let place = self.place(address, 0)?;
            let args = [Arg::Use(bytes, Size::X), Arg::Memory(place), Arg::Imm8(lane as u8)];
            bytes = self.vector_as(Code::EVEX_Vpinsrb_xmm_xmm_r32m8_imm8, Size::X, &args);
        }
        Ok(Some(self.common_bits(1, 0, bytes, bytes)))
    }
}
