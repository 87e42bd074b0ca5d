//! Loads that are left out by a condition that is the same in all lanes, such as that of a row outside of an image: they load zeros among the constants.
//!
//! Each row of an image of unknown size has a condition, and each column a mask. Combining the two for every load takes more instructions than the load
//! itself, and there are few mask registers. Instead, a row outside of the image gets the address of a block of zeros, chosen once for all of the row's
//! loads, and a load only has the mask of its column. The condition itself is a comparison of the row's number, made where the address is chosen: kept
//! from where it is known, each row's would take a register.
//!
//! Invariants:
//! - A load is as far from the first zero as it is from its row's address, so only loads close to that address go to zeros; the others keep their masks.
//! - Masks that only such loads need are never made; any other use makes them in the block that defines them.

use iced_x86::Code;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use tlc_ir::{DType, ScalarOp};

use super::masks::{Logic, Mask};
use super::{Arg, Block, Inst, Place, Reg, Selector, Size};
use crate::error::{Result, invalid};
use crate::flat::{Flat, Item, Op, Value};
use crate::wide::machine::Base;

/// The fewest loads in one piece of code for which choosing addresses takes less than combining masks.
const FEWEST_LOADS: usize = 8;
/// Bytes of zeros, and how many of them lie before the one that stands for a row's address.
const ZEROS: i64 = 512;
const BEFORE: i64 = 64;
/// Bytes behind an element that a load may touch: a vector.
const VECTOR: i64 = 64;

/// What a mask is true of together.
#[derive(Clone)]
struct Conditions {
    /// Conditions that are the same in all lanes.
    uniform: SmallVec<[Value; 2]>,
    /// The one of lanes, if there is one.
    lanes: Option<Value>,
}

/// Masks of loads that are the same in all lanes in part.
#[derive(Default)]
pub(super) struct Zeros {
    masks: FxHashMap<Value, Conditions>,
    /// Those masks and what they are made of: made where something needs them.
    made_late: FxHashSet<Value>,
    /// The address of zeros.
    first: Option<Reg>,
    /// The address of zeros less an index, by the index and the block.
    behind: FxHashMap<Added, Reg>,
    /// What the numbers of rows have in common, by its terms: it is where all of these are known, so that whatever sees them sees it.
    rows: FxHashMap<Row, Reg>,
    /// The address that is chosen, by the row's own and its conditions.
    chosen: FxHashMap<(Reg, SmallVec<[Value; 2]>, Added), Reg>,
}

/// The terms of a row's number.
type Row = SmallVec<[(Value, i64); 2]>;

/// The index that is added to an address, and the block where it is.
type Added = (Option<(Reg, u8)>, Block);

impl Zeros {
    /// The masks of a kernel with sizes that are not known; in others few rows have conditions.
    pub(super) fn of(flat: &Flat<'_>, uses: &[u32]) -> Zeros {
        let mut found = Zeros::default();
        if !flat.kernel.symbols.is_empty() {
            found.region(flat, &flat.body);
            found.conditions(flat, uses);
        }
        found
    }

    /// Has the conditions, what they are made of, and the numbers that these compare be made late where nothing else uses them.
    fn conditions(&mut self, flat: &Flat<'_>, uses: &[u32]) {
        let mut by: FxHashMap<Value, u32> = FxHashMap::default();
        let mut open: Vec<Value> = self.made_late.iter().copied().collect();
        while let Some(late) = open.pop() {
            flat.op(late).operands(|v| {
                let used = by.entry(v).or_default();
                *used += 1;
                if *used == uses[v.0 as usize] && is_of_condition(flat, v) && self.made_late.insert(v) {
                    open.push(v);
                }
            });
        }
    }

    fn region(&mut self, flat: &Flat<'_>, body: &[Item]) {
        let mut here = Vec::new();
        for item in body {
            match item {
                Item::Let(v) => {
                    if let Op::Load { mask: Some(mask), .. } = flat.op(*v)
                        && flat.info(*v).lanes > 1
                        && let Some(conditions) = conditions(flat, *mask)
                    {
                        here.push((*mask, conditions));
                    }
                }
                Item::Loop(l) => self.region(flat, &l.body),
                Item::If(i) => {
                    self.region(flat, &i.then);
                    self.region(flat, &i.otherwise);
                }
                _ => {}
            }
        }
        if here.len() < FEWEST_LOADS {
            return;
        }
        for (mask, conditions) in here {
            self.late(flat, mask);
            self.masks.insert(mask, conditions);
        }
    }

    fn late(&mut self, flat: &Flat<'_>, mask: Value) {
        match flat.op(mask) {
            Op::Splat(_) => {
                self.made_late.insert(mask);
            }
            Op::Map(ScalarOp::And, both) if is_uniform_in_part(flat, mask) => {
                self.made_late.insert(mask);
                both.iter().for_each(|v| self.late(flat, *v));
            }
            _ => {}
        }
    }

    /// Whether a value is made where it is needed.
    pub(super) fn is_late(&self, v: Value) -> bool {
        self.made_late.contains(&v)
    }
}

/// Whether a value is a condition, or a number that one compares: of one lane, and in 32 bits.
fn is_of_condition(flat: &Flat<'_>, v: Value) -> bool {
    let i32s = |v: &Value| flat.dtype(*v) == DType::I32;
    flat.info(v).lanes == 1
        && match flat.op(v) {
            Op::Map(ScalarOp::And, both) => both.iter().all(|b| flat.dtype(*b) == DType::Bool),
            Op::Map(ScalarOp::Lt | ScalarOp::Le, both) => both.iter().all(i32s),
            Op::Convert(a) => i32s(&v) && matches!(flat.op(*a), Op::Sum { .. }),
            _ => false,
        }
}

/// Whether a mask, or one of the conditions that it is true of together, is the same in all lanes.
fn is_uniform_in_part(flat: &Flat<'_>, mask: Value) -> bool {
    match flat.op(mask) {
        Op::Splat(_) => true,
        Op::Map(ScalarOp::And, both) => both.iter().any(|v| is_uniform_in_part(flat, *v)),
        _ => false,
    }
}

/// The conditions that a mask is true of together, of which some are the same in all lanes and at most one is not.
fn conditions(flat: &Flat<'_>, mask: Value) -> Option<Conditions> {
    let mut found = Conditions {
        uniform: SmallVec::new(),
        lanes: None,
    };
    let mut open: SmallVec<[Value; 4]> = smallvec::smallvec![mask];
    while let Some(at) = open.pop() {
        match flat.op(at) {
            Op::Splat(a) if flat.constant(*a).is_none() => {
                if !found.uniform.contains(a) {
                    found.uniform.push(*a);
                }
            }
            Op::Map(ScalarOp::And, both) if is_uniform_in_part(flat, at) => open.extend(both.iter().copied()),
            _ if found.lanes.is_none_or(|v| v == at) => found.lanes = Some(at),
            _ => return None,
        }
    }
    (!found.uniform.is_empty()).then_some(found)
}

impl Selector<'_, '_> {
    /// The address and the mask with which to load: zeros where a condition that is the same in all lanes does not hold. The last element that is loaded
    /// begins `span` bytes behind the first.
    pub(super) fn or_zeros(&mut self, place: Place, span: i64, mask: Option<Value>) -> Result<(Place, Option<Value>)> {
        let (Some(conditions), Base::Reg(base)) = (mask.and_then(|m| self.zeros.masks.get(&m)), place.base) else {
            return Ok((place, mask));
        };
        let first = i64::from(place.displacement);
        if first < -BEFORE || first + span + VECTOR > ZEROS - BEFORE {
            return Ok((place, mask));
        }
        let Conditions { uniform, lanes } = conditions.clone();
        let key = (base, uniform, (place.index, self.here));
        let chosen = match self.zeros.chosen.get(&key) {
            Some(known) => *known,
            None => {
                let zeros = self.zeros_behind(place.index);
                let mut address = base;
                for condition in &key.1 {
                    address = self.if_holds(*condition, address, zeros)?;
                }
                self.zeros.chosen.insert(key, address);
                address
            }
        };
        let base = Base::Reg(chosen);
        Ok((Place { base, ..place }, lanes))
    }

    /// The address, or that of zeros where a condition does not hold.
    fn if_holds(&mut self, condition: Value, address: Reg, zeros: Reg) -> Result<Reg> {
        let q = |v| Arg::Use(v, Size::Q);
        let d = |v| Arg::Use(v, Size::D);
        match self.flat.op(condition) {
            Op::Map(ScalarOp::And, both) if self.zeros.is_late(condition) => {
                let address = self.if_holds(both[0], address, zeros)?;
                self.if_holds(both[1], address, zeros)
            }
            Op::Map(ScalarOp::Lt, both) if self.zeros.is_late(condition) => {
                let (a, b) = (self.low(both[0])?, self.low(both[1])?);
                self.push(Inst::new(Code::Cmp_r32_rm32, &[d(b), d(a)]));
                Ok(self.int_update(Code::Cmovg_r64_rm64, zeros, &[q(address)]))
            }
            Op::Map(ScalarOp::Le, both) if self.zeros.is_late(condition) => {
                let b = self.low(both[1])?;
                if self.flat.number(both[0]) == Some(0) {
                    self.push(Inst::new(Code::Test_rm32_r32, &[d(b), d(b)]));
                    return Ok(self.int_update(Code::Cmovs_r64_rm64, address, &[q(zeros)]));
                }
                let a = self.low(both[0])?;
                self.push(Inst::new(Code::Cmp_r32_rm32, &[d(a), d(b)]));
                Ok(self.int_update(Code::Cmovg_r64_rm64, address, &[q(zeros)]))
            }
            _ => {
                let holds = self.int(condition)?;
                self.push(Inst::new(Code::Test_rm64_r64, &[q(holds), q(holds)]));
                Ok(self.int_update(Code::Cmove_r64_rm64, address, &[q(zeros)]))
            }
        }
    }

    /// A number of 32 bits, in a register whose other bits may be anything.
    fn low(&mut self, v: Value) -> Result<Reg> {
        let Op::Convert(a) = self.flat.op(v) else {
            return self.int(v);
        };
        match self.flat.op(*a) {
            // Rows' numbers differ by constants: these are added here, as each would take a register.
            Op::Sum { terms, constant } if self.zeros.is_late(v) => {
                let sum = match self.zeros.rows.get(terms) {
                    Some(known) => *known,
                    None => {
                        let (sum, _) = self.terms(terms)?;
                        self.zeros.rows.insert(terms.clone(), sum);
                        sum
                    }
                };
                Ok(self.plus(sum, *constant))
            }
            _ => self.int(v),
        }
    }

    /// The address that becomes that of zeros once an index is added.
    fn zeros_behind(&mut self, index: Option<(Reg, u8)>) -> Reg {
        let key = (index, self.here);
        if let Some(known) = self.zeros.behind.get(&key) {
            return *known;
        }
        let first = match self.zeros.first {
            Some(first) => first,
            None => {
                let entry = self.entry;
                let made = self.at(entry, |s| {
                    let displacement = BEFORE as i32;
                    let place = s.pooled(vec![0; ZEROS as usize]);
                    s.int_op(
                        Code::Lea_r64_m,
                        Size::Q,
                        &[Arg::Memory(Place { displacement, ..place })],
                    )
                });
                self.zeros.first = Some(made);
                made
            }
        };
        let made = match index {
            None => first,
            Some((index, scale)) => {
                let added = self.times(index, scale.into());
                self.int_update(Code::Sub_r64_rm64, first, &[Arg::Use(added, Size::Q)])
            }
        };
        self.zeros.behind.insert(key, made);
        made
    }

    /// A mask that is made late, where it is defined.
    pub(super) fn late_mask(&mut self, v: Value, bits: u32) -> Result<Mask> {
        let home = self.home(v);
        match self.flat.op(v) {
            Op::Map(_, both) => {
                let (a, b) = (self.mask(both[0], bits)?, self.mask(both[1], bits)?);
                let lanes = self.flat.info(v).lanes;
                Ok(self.at(home, |s| s.logic(Logic::And, a, b, lanes)))
            }
            Op::Splat(a) => {
                let all = self.int(*a)?;
                Ok(self.at(home, |s| s.spread_bool(all, bits)))
            }
            _ => invalid(format!("%{} is no mask of several conditions", v.0)),
        }
    }
}
