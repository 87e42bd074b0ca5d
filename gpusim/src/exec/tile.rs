//! Where operands of asynchronous products lie in shared memory, as their descriptors say.

use std::ops::Range;

/// A matrix of rows along m or n and columns along k, in units of 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tile {
    start: u64,
    leading: u64,
    stride: u64,
    /// Whether units are permuted in 128 bytes, by which of eight such rows they are in.
    is_swizzled: bool,
    /// Whether units go along the rows' axis, not along k.
    is_transposed: bool,
    /// Elements of a unit.
    per: usize,
    /// Columns.
    k: usize,
}

/// Sixteen bytes of a matrix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Unit {
    pub(super) address: u64,
    /// The first element.
    row: usize,
    column: usize,
}

impl Tile {
    /// Reads a descriptor; what is wrong with it otherwise.
    pub(super) fn parse(descriptor: u64, is_transposed: bool, k: usize) -> Result<Tile, String> {
        let field = |at: u32| (descriptor >> at & 0x3fff) << 4;
        let layout = descriptor >> 62;
        if layout > 1 {
            return Err(format!("the layout {layout} of a descriptor is not simulated"));
        }
        if descriptor >> 49 & 7 != 0 {
            return Err("a base offset in a descriptor is not simulated".to_string());
        }
        Ok(Tile {
            start: field(0),
            leading: field(16),
            stride: field(32),
            is_swizzled: layout == 1,
            is_transposed,
            per: if k == 16 { 8 } else { 4 },
            k,
        })
    }

    /// An address that has to be at a multiple, and the multiple, if it is at none.
    pub(super) const fn misaligned(&self) -> Option<(u64, u32)> {
        // Rows of 128 bytes are permuted in eights, which begin at multiples of 1024; along k a matrix begins within a row.
        if self.is_swizzled && self.start & 0x380 != 0 {
            Some((self.start, 1024))
        } else {
            None
        }
    }

    /// The units that hold some rows.
    pub(super) fn units(self, rows: Range<usize>) -> impl Iterator<Item = Unit> {
        let (major, minor) = if self.is_transposed {
            (rows.start / self.per..rows.end / self.per, self.k)
        } else {
            (rows, self.k / self.per)
        };
        major.flat_map(move |i| (0..minor).map(move |j| self.unit(i, j)))
    }

    fn unit(&self, i: usize, j: usize) -> Unit {
        let (x, y) = (i as u64, j as u64);
        let offset = match (self.is_transposed, self.is_swizzled) {
            (false, false) => x / 8 * self.stride + x % 8 * 16 + y * self.leading,
            (false, true) => x / 8 * self.stride + x % 8 * 128 + y * 16,
            (true, false) => x * self.stride + y / 8 * self.leading + y % 8 * 16,
            (true, true) => x / 8 * self.leading + x % 8 * 16 + y / 8 * self.stride + y % 8 * 128,
        };
        let address = self.start + offset;
        let swizzle = if self.is_swizzled { address >> 3 & 0x70 } else { 0 };
        let (row, column) = if self.is_transposed {
            (i * self.per, j)
        } else {
            (i, j * self.per)
        };
        Unit {
            address: address ^ swizzle,
            row,
            column,
        }
    }

    /// Where the elements of a unit are: row and column.
    pub(super) fn elements(&self, unit: Unit) -> impl Iterator<Item = (usize, usize)> {
        let is_transposed = self.is_transposed;
        (0..self.per).map(move |i| {
            if is_transposed {
                (unit.row + i, unit.column)
            } else {
                (unit.row, unit.column + i)
            }
        })
    }
}
