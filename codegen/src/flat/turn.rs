//! Vectors turned: what a lane of each of them holds becomes neighbouring lanes of one vector.
//!
//! A tile of results that a kernel keeps in registers has its columns in lanes. Where its rows lie together in memory, a loop
//! over rows in lanes loads the tile across its registers, a column at a time. Column by column that takes an instruction for every
//! element; all columns of 16 vectors together take 64 instructions, four for each result, and later columns find what the
//! first one left. (The steps are the usual ones of a transpose in registers: neighbours, pairs, then parts of 128 bits.)
//!
//! Invariant: the steps of each four vectors come first, then those that join them, so that no more vectors are alive than were.

use smallvec::SmallVec;

use super::build::Builder;
use super::{Interleaving, Op, Value};

/// Vectors that are turned at once, and the lanes of each.
const SIDE: usize = 16;

/// Vectors and what they became.
pub(super) struct Turned {
    rows: [Value; SIDE],
    columns: [Value; SIDE],
    /// Where the columns were made.
    region: u32,
}

impl Builder<'_, '_> {
    /// The vector of scalars that are the same lane of one vector each, if the emitter makes it without taking them out one by one.
    pub(super) fn turned(&mut self, lanes: &[Value]) -> Option<Value> {
        let lane = |v: Value| match self.values[v.0 as usize].op {
            Op::Lane(whole, lane) => Some((whole, lane)),
            _ => None,
        };
        let (first, column) = lane(*lanes.first()?)?;
        let dtype = self.dtype(first);
        let fits = lanes.len() == SIDE && dtype.bits() == 32 && self.has.interleaves(dtype, SIDE as u32);
        let wide = |v: Value| self.values[v.0 as usize].lanes as usize == SIDE;
        let row = |v: &Value| lane(*v).filter(|l| l.1 == column && wide(l.0)).map(|l| l.0);
        let rows: SmallVec<[Value; SIDE]> = match fits {
            true => lanes.iter().map(row).collect::<Option<_>>()?,
            false => return None,
        };
        let rows: [Value; SIDE] = rows[..].try_into().ok()?;
        // One vector's lane in all lanes is another thing.
        if rows[1..].contains(&rows[0]) {
            return None;
        }
        let region = self.here();
        if let Some(t) = &self.turned
            && t.rows == rows
            && t.region == region
        {
            return Some(t.columns[usize::from(column)]);
        }
        let columns = self.turn(rows);
        self.turned = Some(Turned { rows, columns, region });
        Some(columns[usize::from(column)])
    }

    fn turn(&mut self, mut at: [Value; SIDE]) -> [Value; SIDE] {
        use Interleaving::*;
        for four in at.chunks_exact_mut(4) {
            let [a, b] = self.both(four[0], four[1], [FirstLanes, LastLanes]);
            let [c, d] = self.both(four[2], four[3], [FirstLanes, LastLanes]);
            let ([w, x], [y, z]) = (
                self.both(a, c, [FirstPairs, LastPairs]),
                self.both(b, d, [FirstPairs, LastPairs]),
            );
            four.copy_from_slice(&[w, x, y, z]);
        }
        let mut columns = at;
        for i in 0..4 {
            let [a, b] = self.both(at[i], at[4 + i], [EvenParts, OddParts]);
            let [c, d] = self.both(at[8 + i], at[12 + i], [EvenParts, OddParts]);
            [columns[i], columns[8 + i]] = self.both(a, c, [EvenParts, OddParts]);
            [columns[4 + i], columns[12 + i]] = self.both(b, d, [EvenParts, OddParts]);
        }
        columns
    }

    fn both(&mut self, a: Value, b: Value, how: [Interleaving; 2]) -> [Value; 2] {
        let nothing = |v: Value| matches!(self.values[v.0 as usize].op, Op::Undefined);
        // Of lanes that hold nothing nobody asks.
        let (a, b) = match (nothing(a), nothing(b)) {
            (true, true) => return [a, a],
            (true, false) => (b, b),
            (false, true) => (a, a),
            (false, false) => (a, b),
        };
        let dtype = self.dtype(a);
        how.map(|h| self.make(Op::Interleave(a, b, h), dtype, SIDE as u32))
    }
}
