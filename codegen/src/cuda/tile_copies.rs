//! Copies of whole tiles as text, and the waits for them.
//!
//! Invariants:
//! - The first thread of a block begins all of them. A group of copies is told from others by the barrier in shared memory that counts its bytes (PTX ISA,
//!   "mbarrier"); barriers are used in turn, each in phases of two kinds, so that a thread knows by the number of a group which barrier and which
//!   phase is its.
//! - Threads count the groups that were begun. Where it is not known how many of them are under way, they also count those that they have waited for.
//! - A group of no copy is done when it is begun.

use super::tiles::BARRIERS;
use super::write::{Writer, memory_name};
use crate::flat::{MOST_GROUPS, TileCopy};

impl Writer<'_, '_> {
    /// What makes the barriers, in front of everything else.
    pub(super) fn barriers_made(&mut self) -> String {
        if !self.tiles {
            return String::new();
        }
        let make = self.helpers.make_barriers();
        let done = if self.groups_known.is_none() {
            ", groups_done = 0"
        } else {
            ""
        };
        format!("    {make}({BARRIERS});\n    __syncthreads();\n    unsigned groups_begun = 0{done};\n")
    }

    /// Notes a copy, which is begun together with those that follow it.
    pub(super) fn copy_tile(&mut self, c: &TileCopy) {
        let matrix = &self.flat.matrices[c.matrix];
        let bytes = matrix.tile.iter().product::<i64>() * matrix.dtype.bytes() as i64;
        let copy = self.helpers.copy_tile(c.number.is_some());
        let to = format!(
            "{} + {}",
            memory_name(self.flat.kernel, c.to.memory),
            self.unswizzled(&c.to)
        );
        let [row, column] = [c.row, c.column].map(|v| format!("(int)({})", self.index(v).0));
        let row = match c.mask {
            // A row that there is not, nor those behind it that are of the tile.
            Some(mask) => format!("{} ? {row} : -{}", self.value(mask), matrix.tile[0]),
            None => row,
        };
        let number = c.number.map(|v| format!(", (int)({})", self.index(v).0));
        let number = number.unwrap_or_default();
        self.tiles_noted.push(format!(
            "{copy}({to}, &m{}, {column}, {row}{number}, {BARRIERS} + groups_begun % {MOST_GROUPS}, {bytes});",
            c.matrix
        ));
    }

    /// Begins the copies that were noted, and closes their group if it ends here.
    pub(super) fn begin_tiles(&mut self, closes: bool) {
        if !self.tiles || self.tiles_noted.is_empty() && !closes {
            return;
        }
        let noted = std::mem::take(&mut self.tiles_noted);
        self.open("if (threadIdx.x == 0) {");
        for line in noted {
            self.line(&line);
        }
        if closes {
            let arrive = self.helpers.arrive();
            self.line(&format!("{arrive}({BARRIERS} + groups_begun % {MOST_GROUPS});"));
        }
        self.close();
        if closes {
            self.line("++groups_begun;");
            self.groups_known = self.groups_known.map(|n| n + 1);
        }
    }

    /// Waits until at most so many groups of tiles are under way.
    pub(super) fn wait_for_tiles(&mut self, pending: u32) {
        if !self.tiles {
            return;
        }
        let wait = self.helpers.wait_for_tiles();
        if let Some(under_way) = self.groups_known {
            // The oldest first.
            for behind in (pending + 1..=under_way).rev() {
                self.line(&format!(
                    "{wait}({BARRIERS} + (groups_begun - {behind}) % {MOST_GROUPS}, (groups_begun - {behind}) / {MOST_GROUPS} % 2);"
                ));
            }
            self.groups_known = Some(pending.min(under_way));
            return;
        }
        self.line(&format!(
            "for (; groups_begun - groups_done > {pending}u; ++groups_done) {wait}({BARRIERS} + groups_done % {MOST_GROUPS}, groups_done / {MOST_GROUPS} % 2);"
        ));
    }
}
