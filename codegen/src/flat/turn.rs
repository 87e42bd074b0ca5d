//! Vectors turned: what a lane of each of them holds becomes neighbouring lanes of one vector.
//!
//! A tile of results that a kernel keeps in registers has its columns in lanes. Where its rows lie together in memory, a loop
//! over rows in lanes loads the tile across its registers, a column at a time. Column by column that takes an instruction for every
//! element; all columns of 16 vectors together take 64 instructions, four for each result (of 8 vectors 24, three), and later columns
//! find what the first one left. (The steps are the usual ones of a transpose in registers: neighbours, pairs, then parts of 128 bits.)
//!
//! A tile in memory is loaded so too: whole vectors are, and turned, where otherwise each element of a column is fetched by itself.
//!
//! Invariants:
//! - The steps of each four vectors come first, then those that join them, so that no more vectors are alive than were.
//! - A row of a tile that is two squares long takes a column of each in turn, so that those of both are kept.
//! - What was loaded is forgotten where its memory may be written.

use smallvec::SmallVec;
use tlc_ir::kernel::{Memory, Scope};

use super::build::Builder;
use super::index::{LaneUse, Resolved};
use super::{Address, Interleaving, Item, Offsets, Op, Value};

/// The most lanes of vectors that are turned, and so the most vectors.
const MOST: usize = 16;
/// Squares that are kept: a tile in registers has no row that is longer.
pub(super) const MOST_TURNED: usize = 2;
/// Lanes of a part of 128 bits.
const PART: usize = 4;

/// Vectors, as many as each has lanes.
type Square = SmallVec<[Value; MOST]>;

/// Vectors and what they became.
pub(super) struct Turned {
    rows: Square,
    columns: Square,
    /// Where the columns were made.
    region: u32,
}

/// Columns of a tile in memory.
pub(super) struct Loaded {
    /// The first element of the first row's vector.
    first: Address,
    /// Elements from one row to the next.
    step: i64,
    columns: Square,
    /// Where the columns were made.
    region: u32,
}

impl Loaded {
    /// Whether memory holds what was loaded from it behind an item.
    pub(super) fn outlives(&self, item: &Item) -> bool {
        match item {
            Item::Let(_) => true,
            Item::Store { address, .. } => address.memory != self.first.memory,
            _ => false,
        }
    }
}

impl Builder<'_, '_> {
    /// The elements of all lanes that lie apart in scratch whose rows are whole vectors, as a column of these vectors turned.
    pub(super) fn load_turned(&mut self, memory: Memory, r: &Resolved) -> Option<Value> {
        let (LaneUse::Affine(step), Memory::Scratch(i)) = (r.lane, memory) else {
            return None;
        };
        let scratch = &self.kernel.scratch[i as usize];
        let (dtype, side) = (scratch.dtype, i64::from(self.lane_count()));
        let squares =
            matches!(side as usize, 8 | MOST) && dtype.bits() == 32 && self.has.interleaves(dtype, side as u32);
        let whole = |n: i64| n % side == 0;
        if !squares
            || scratch.scope != Scope::Cache
            || step <= 0
            || !whole(step)
            || !scratch.len.as_const().is_some_and(whole)
        {
            return None;
        }
        let mut first = self.address(memory, r);
        let column = first.constant.rem_euclid(side);
        first.constant -= column;
        if !self.begins_at(&first, side) {
            return None;
        }
        let region = self.here();
        if let Some(t) = &self.loaded
            && (t.first, t.step, t.region) == (first, step, region)
        {
            return Some(t.columns[column as usize]);
        }
        let neighbours: Offsets = (0..side as u8).collect();
        let row = |i: i64| {
            let constant = first.constant + i * step;
            self.load_lanes(dtype, Address { constant, ..first }, &neighbours)
        };
        let rows: Square = (0..side).map(row).collect();
        let columns = self.turn(rows);
        let found = columns[column as usize];
        self.loaded = Some(Loaded {
            first,
            step,
            columns,
            region,
        });
        Some(found)
    }

    /// The vector of scalars that are the same lane of one vector each, if the emitter makes it without taking them out one by one.
    pub(super) fn turned(&mut self, lanes: &[Value]) -> Option<Value> {
        let lane = |v: Value| match self.values[v.0 as usize].op {
            Op::Lane(whole, lane) => Some((whole, lane)),
            _ => None,
        };
        let (first, column) = lane(*lanes.first()?)?;
        let dtype = self.dtype(first);
        let side = lanes.len();
        let fits = dtype.bits() == 32 && matches!(side, 8 | MOST) && self.has.interleaves(dtype, side as u32);
        let wide = |v: Value| self.values[v.0 as usize].lanes as usize == side;
        let row = |v: &Value| lane(*v).filter(|l| l.1 == column && wide(l.0)).map(|l| l.0);
        let rows: Square = match fits {
            true => lanes.iter().map(row).collect::<Option<_>>()?,
            false => return None,
        };
        // One vector's lane in all lanes is another thing.
        if rows[1..].contains(&rows[0]) {
            return None;
        }
        let region = self.here();
        if let Some(t) = self.turned.iter().find(|t| t.region == region && t.rows == rows) {
            return Some(t.columns[usize::from(column)]);
        }
        let columns = self.turn(rows.clone());
        let found = columns[usize::from(column)];
        if self.turned.len() == MOST_TURNED {
            self.turned.remove(0);
        }
        self.turned.push(Turned { rows, columns, region });
        Some(found)
    }

    fn turn(&mut self, mut at: Square) -> Square {
        use Interleaving::*;
        for four in at.chunks_exact_mut(PART) {
            let [a, b] = self.both(four[0], four[1], [FirstLanes, LastLanes]);
            let [c, d] = self.both(four[2], four[3], [FirstLanes, LastLanes]);
            let ([w, x], [y, z]) = (
                self.both(a, c, [FirstPairs, LastPairs]),
                self.both(b, d, [FirstPairs, LastPairs]),
            );
            four.copy_from_slice(&[w, x, y, z]);
        }
        // Part `p` of vector `i` of each four now has column `4 * p + i` of its four rows.
        let mut columns = at.clone();
        for i in 0..PART {
            match at.len() {
                MOST => {
                    let [a, b] = self.both(at[i], at[4 + i], [EvenParts, OddParts]);
                    let [c, d] = self.both(at[8 + i], at[12 + i], [EvenParts, OddParts]);
                    [columns[i], columns[8 + i]] = self.both(a, c, [EvenParts, OddParts]);
                    [columns[4 + i], columns[12 + i]] = self.both(b, d, [EvenParts, OddParts]);
                }
                _ => [columns[i], columns[4 + i]] = self.both(at[i], at[4 + i], [EvenParts, OddParts]),
            }
        }
        columns
    }

    fn both(&mut self, a: Value, b: Value, how: [Interleaving; 2]) -> [Value; 2] {
        let nothing = |v: Value| matches!(self.values[v.0 as usize].op, Op::Undefined);
        // Lanes that hold nothing are never used.
        let (a, b) = match (nothing(a), nothing(b)) {
            (true, true) => return [a, a],
            (true, false) => (b, b),
            (false, true) => (a, a),
            (false, false) => (a, b),
        };
        let (dtype, lanes) = (self.dtype(a), self.values[a.0 as usize].lanes);
        how.map(|h| self.make(Op::Interleave(a, b, h), dtype, lanes))
    }
}
