//! Elements of memory that are loaded into all lanes at once.
//!
//! Invariant: a load is left to the broadcast of what it loads only if nothing else uses it and nothing is written between the two.

use rustc_hash::FxHashSet;
use tlc_ir::DType;

use super::lanes::broadcast;
use super::{Form, Reg, Selector, width};
use crate::error::Result;
use crate::flat::{Flat, Item, Op, Value};
use crate::wide::machine::Arg;

/// The loads of scalars that their broadcast does by itself.
pub(super) fn broadcast_loads(flat: &Flat<'_>, uses: &[u32]) -> FxHashSet<Value> {
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
                Op::Load { mask: None, .. } if is_taken(flat, *v) && uses[v.0 as usize] == 1 => {
                    loaded.insert(*v);
                }
                Op::Splat(a) if loaded.contains(a) => {
                    found.insert(*a);
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

fn is_taken(flat: &Flat<'_>, v: Value) -> bool {
    let info = flat.info(v);
    info.lanes == 1 && matches!(info.dtype, DType::F32 | DType::F64 | DType::I32)
}

impl Selector<'_, '_> {
    /// An element in all lanes, if its load was left to this.
    pub(super) fn loaded_splat(&mut self, a: Value, lanes: u32) -> Result<Option<(Form, Reg)>> {
        let (true, Op::Load { address, .. }) = (self.broadcast_loads.contains(&a), self.flat.op(a)) else {
            return Ok(None);
        };
        let dtype = self.flat.dtype(a);
        let place = self.place(address, 0)?;
        let w = width(lanes, dtype.bits());
        let all = self.vector_op(broadcast(dtype), w, &[Arg::Memory(place)]);
        Ok(Some((Form::Vector, all)))
    }
}
