//! Small integers that become floats: the low bits of a lane pick what they are worth from a register.
//!
//! What an integer of few bits is worth is one of 16 floats, and an instruction that permutes the lanes of a register picks each lane by the low bits of an
//! index, whatever the others are. So one instruction does what takes up to four: to mask the bits, to subtract a zero point, to convert,
//! and to subtract one of a float. What is computed further from the float and numbers that all lanes have, as a block's zero point and its scale, is
//! computed of the table's 16 entries, once for all elements that are picked with these numbers; each entry is rounded as its element would be.

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use tlc_ir::{DType, ScalarOp};

use super::{Form, Reg, Selector, Size};
use crate::error::Result;
use crate::flat::{Flat, Item, Op, Value};
use crate::wide::machine::Arg;
use crate::wide::opcodes;
use iced_x86::Code;

/// Lanes of a register of 512 bits, which are the entries of a table.
const ENTRIES: u32 = 16;

/// What is picked.
#[derive(Clone)]
pub(super) struct Picked {
    /// The lanes of which the low bits pick.
    by: Value,
    table: [f32; ENTRIES as usize],
    /// What is computed from the entries before: differences and products with the same number in all lanes.
    further: Further,
}

/// Operations on a table, each with a vector of the same number in all lanes.
pub(super) type Further = SmallVec<[(ScalarOp, Value); 2]>;

/// Values that are picked from tables.
#[derive(Default)]
pub(super) struct Lookups {
    picked: FxHashMap<Value, Picked>,
    /// What only these are computed from, which nothing needs any longer.
    inside: FxHashSet<Value>,
}

impl Lookups {
    pub(super) fn is_inside(&self, v: Value) -> bool {
        self.inside.contains(&v)
    }

    pub(super) fn of(&self, v: Value) -> Option<Picked> {
        self.picked.get(&v).cloned()
    }
}

/// The values of a kernel that are picked from tables.
pub(super) fn lookups(flat: &Flat<'_>, uses: &[u32]) -> Lookups {
    let mut found = Lookups::default();
    walk(flat, uses, &flat.body, &mut found);
    found
}

fn walk(flat: &Flat<'_>, uses: &[u32], body: &[Item], found: &mut Lookups) {
    for item in body {
        match item {
            Item::Let(v) => {
                if let Some(p) = converted(flat, uses, *v, found)
                    .or_else(|| shifted(flat, uses, *v, found))
                    .or_else(|| combined(flat, uses, *v, found))
                {
                    found.picked.insert(*v, p);
                }
            }
            Item::Loop(l) => walk(flat, uses, &l.body, found),
            Item::If(i) => {
                walk(flat, uses, &i.then, found);
                walk(flat, uses, &i.otherwise, found);
            }
            _ => {}
        }
    }
}

/// The operand of a value that is combined with a number by `op`, and that number; of operations whose operands may change places, with either.
fn with_number(flat: &Flat<'_>, v: Value, op: ScalarOp) -> Option<(Value, tlc_ir::Scalar)> {
    let Op::Map(found, args) = flat.op(v) else { return None };
    let &[a, b] = &args[..] else { return None };
    if *found != op {
        return None;
    }
    match (flat.constant(a), flat.constant(b)) {
        (None, Some(n)) => Some((a, n)),
        (Some(n), None) if op.is_commutative() => Some((b, n)),
        _ => None,
    }
}

/// A conversion to f32 of the low bits of integers, perhaps less a number.
fn converted(flat: &Flat<'_>, uses: &[u32], v: Value, found: &mut Lookups) -> Option<Picked> {
    let Op::Convert(x) = *flat.op(v) else { return None };
    let alone = |v: Value| uses[v.0 as usize] == 1;
    let info = flat.info(v);
    if (info.dtype, info.lanes) != (DType::F32, ENTRIES) || flat.dtype(x) != DType::I32 || !alone(x) {
        return None;
    }
    let (masked, less) = match with_number(flat, x, ScalarOp::Sub) {
        Some((masked, n)) if alone(masked) => (masked, n.as_i64()),
        Some(_) => return None,
        None => (x, 0),
    };
    let (by, mask) = with_number(flat, masked, ScalarOp::And)?;
    let mask = mask.as_i64();
    if flat.info(by).lanes != ENTRIES || !(0..i64::from(ENTRIES)).contains(&mask) || !(-128..=128).contains(&less) {
        return None;
    }
    found.inside.extend([x, masked]);
    // The first elements of bytes are shifted by nothing.
    let by = match with_number(flat, by, ScalarOp::Shr) {
        Some((whole, n)) if n.as_i64() == 0 && alone(by) => {
            found.inside.insert(by);
            whole
        }
        _ => by,
    };
    let table = std::array::from_fn(|i| ((i as i64 & mask) - less) as f32);
    Some(Picked {
        by,
        table,
        further: Further::new(),
    })
}

/// Such a conversion less a number.
fn shifted(flat: &Flat<'_>, uses: &[u32], v: Value, found: &mut Lookups) -> Option<Picked> {
    if flat.dtype(v) != DType::F32 {
        return None;
    }
    let (x, n) = with_number(flat, v, ScalarOp::Sub)?;
    let mut p = found
        .of(x)
        .filter(|p| uses[x.0 as usize] == 1 && p.further.is_empty())?;
    let less = n.as_f64() as f32;
    p.table.iter_mut().for_each(|t| *t -= less);
    found.picked.remove(&x);
    found.inside.insert(x);
    Some(p)
}

/// The difference of a picked float and a number that all lanes have, or their product.
fn combined(flat: &Flat<'_>, uses: &[u32], v: Value, found: &mut Lookups) -> Option<Picked> {
    let Op::Map(op @ (ScalarOp::Sub | ScalarOp::Mul), args) = flat.op(v) else {
        return None;
    };
    let &[a, b] = &args[..] else { return None };
    let picked = |x: Value| found.of(x).filter(|_| uses[x.0 as usize] == 1);
    let in_all = |x: Value| matches!(flat.op(x), Op::Splat(s) if flat.constant(*s).is_none());
    let (x, with, mut p) = match (picked(a), picked(b)) {
        (Some(p), None) if in_all(b) => (a, b, p),
        (None, Some(p)) if in_all(a) && op.is_commutative() => (b, a, p),
        _ => return None,
    };
    p.further.push((*op, with));
    found.picked.remove(&x);
    found.inside.insert(x);
    Some(p)
}

impl Selector<'_, '_> {
    pub(super) fn looked_up(&mut self, p: Picked) -> Result<(Form, Reg)> {
        let by = self.vector(p.by)?;
        let mut table = self.table(p.table.iter().flat_map(|t| t.to_le_bytes()).collect());
        for &(op, with) in &p.further {
            table = self.further(table, op, with)?;
        }
        let args = [Arg::Use(by, Size::Z), Arg::Use(table, Size::Z)];
        let code = Code::EVEX_Vpermps_zmm_k1z_zmm_zmmm512b32;
        Ok((Form::Vector, self.vector_as(code, Size::Z, &args)))
    }

    /// A table combined with the same number in all lanes, which is made once for all of a block.
    fn further(&mut self, table: Reg, op: ScalarOp, with: Value) -> Result<Reg> {
        let key = (table, op, with);
        if let Some((made, block)) = self.combined_tables.get(&key)
            && *block == self.here
        {
            return Ok(*made);
        }
        let args = [Arg::Use(table, Size::Z), Arg::Use(self.vector(with)?, Size::Z)];
        let codes = match op {
            ScalarOp::Sub => opcodes::SUB_PS,
            _ => opcodes::MUL_PS,
        };
        let made = self.vector_op(codes, 2, &args);
        self.combined_tables.insert(key, (made, self.here));
        Ok(made)
    }
}
