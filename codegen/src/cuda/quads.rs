//! Pairs of 16 bits that four neighbouring threads have of a row, stored as 16 bytes each.
//!
//! Of what matrix instructions compute, a thread has two neighbours of each eight columns, and the three threads beside it the other six. To store them one
//! by one is to write half a sector at a time. Where a thread stores its pairs of four such groups of columns, the four exchange them, so that
//! each has one whole group.

use rustc_hash::FxHashMap;
use tlc_ir::kernel::Memory;
use tlc_ir::kernel::fold::{NEIGHBOURS, ROW_LANES};
use tlc_ir::target::GPU_ACCESS_BYTES;

use crate::flat::{Address, Flat, Item, Op, Value, Varies};

/// Bytes of an element.
const BYTES: i64 = 2;
/// Columns of a group.
const GROUP: i64 = GPU_ACCESS_BYTES / BYTES;

/// The stores of a thread that are done together with those of its neighbours, by the values that are stored.
#[derive(Default)]
pub(super) struct Quads {
    /// Which of them a value is stored by, and as which part.
    part: FxHashMap<Value, (usize, usize)>,
    /// The names of the parts that are there, and where the first is stored.
    names: Vec<([Option<String>; ROW_LANES as usize], Option<String>)>,
}

/// Parts that are stored together: their names, and the place of the first.
pub(super) type Quad = ([String; ROW_LANES as usize], String);

impl Quads {
    /// Whether a value is stored together with others.
    pub(super) fn has(&self, value: Value) -> bool {
        self.part.contains_key(&value)
    }

    /// Notes that a value of that name is stored at a place; returns all parts once they are there.
    pub(super) fn note(&mut self, value: Value, name: String, place: String) -> Option<Quad> {
        let &(quad, part) = self.part.get(&value)?;
        let (names, first) = &mut self.names[quad];
        names[part] = Some(name);
        if part == 0 {
            *first = Some(place);
        }
        let [Some(a), Some(b), Some(c), Some(d)] = names.clone() else {
            return None;
        };
        Some(([a, b, c, d], first.clone()?))
    }

    /// Those of the statements that each thread of a warp executes, of which `counter` is the number.
    pub(super) fn of(body: &[Item], counter: Value, flat: &Flat<'_>) -> Quads {
        type Base = (Memory, Option<Value>, Option<Value>);
        let mut stores: Vec<(Base, Vec<(i64, Value)>)> = Vec::new();
        for item in body {
            if let Item::Store {
                address,
                value,
                mask: None,
                ..
            } = item
                && matches!(address.memory, Memory::Param(_))
                && i64::from(flat.info(*value).lanes) == NEIGHBOURS
                && flat.kernel.memory_dtype(address.memory).bytes() as i64 == BYTES
                && matches!(flat.op(*value), Op::Pack(_))
            {
                let base = (address.memory, address.uniform, address.varying);
                let at = (address.constant, *value);
                match stores.iter_mut().find(|s| s.0 == base) {
                    Some(known) => known.1.push(at),
                    None if begins_in_fours(address, counter, flat) => stores.push((base, vec![at])),
                    None => {}
                }
            }
        }
        // A value says which store it is: none that is stored twice.
        let mut times: FxHashMap<Value, usize> = FxHashMap::default();
        for item in body {
            if let Item::Store { value, .. } = item {
                *times.entry(*value).or_default() += 1;
            }
        }
        let mut quads = Quads::default();
        for (_, mut all) in stores {
            all.sort_unstable_by_key(|s| s.0);
            // Stored twice, nobody can say which is the later.
            if all.windows(2).any(|w| w[0].0 == w[1].0) {
                continue;
            }
            let mut at = 0;
            while let Some(four) = all.get(at..at + ROW_LANES as usize) {
                let first = four[0].0;
                let follow = four.iter().zip(0..).all(|((c, _), n)| *c == first + n * GROUP);
                let once = four.iter().all(|(_, v)| times[v] == 1);
                if first % GROUP != 0 || !follow || !once {
                    at += 1;
                    continue;
                }
                let number = quads.names.len();
                quads.names.push(Default::default());
                quads
                    .part
                    .extend(four.iter().zip(0..).map(|((_, v), n)| (*v, (number, n))));
                at += ROW_LANES as usize;
            }
        }
        quads
    }
}

/// Whether the first column that four neighbouring threads store at an address is at a multiple of a group's, and each stores two.
fn begins_in_fours(address: &Address, counter: Value, flat: &Flat<'_>) -> bool {
    fn terms(flat: &Flat<'_>, v: Value, times: i64, out: &mut Vec<(Value, i64)>) -> Option<()> {
        match flat.op(v) {
            Op::Sum {
                terms: inside,
                constant,
            } => {
                inside
                    .iter()
                    .try_for_each(|(t, c)| terms(flat, *t, times.checked_mul(*c)?, out))?;
                (constant.checked_mul(times)? % GROUP == 0).then_some(())
            }
            _ => {
                out.push((v, times));
                Some(())
            }
        }
    }
    let mut all = Vec::new();
    let summed = address.parts().try_for_each(|v| terms(flat, v, 1, &mut all));
    let by_four = |of: &Value, by: &Value| *of == counter && flat.number(*by) == Some(ROW_LANES);
    let mut columns = 0;
    let known = all.iter().all(|(v, times)| match flat.op(*v) {
        Op::FloorMod(of, by) if by_four(of, by) => {
            columns += times;
            true
        }
        Op::FloorDiv(of, by) if by_four(of, by) => times % GROUP == 0,
        _ => times % GROUP == 0 && !flat.info(*v).varies.meets(Varies::THREAD),
    });
    summed.is_some() && known && columns == NEIGHBOURS
}
