//! Copies of blocks of memory, straight and transposed, into the caches or past them.
//!
//! A transposition is made of square blocks that are turned in registers. Written directly, such a block touches a part of
//! many rows, and where rows are a power of two apart these fall into a few cache sets. So a tile of blocks is turned into
//! a buffer on the stack first, and from there written row by row. Writing past the caches needs no such care, as long as
//! whole lines are written: then the blocks go out directly.

use std::ops::Range;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Elements of the tiles that are turned in the cache: rows and columns of what is written.
const fn tile(element: usize) -> (usize, usize) {
    match element {
        1 => (128, 256),
        2 => (128, 128),
        4 => (64, 128),
        _ => (64, 64),
    }
}

/// Bytes of the buffer for a tile, whose rows are a line longer than the tile's.
const BUFFER: usize = 128 * (256 + LINE);

/// A block whose rows lie within so many bytes is written directly: it fits the first cache whole.
const SMALL: usize = 16 << 10;

const _: () = {
    let mut element = 1;
    while element <= 8 {
        let (rows, columns) = tile(element);
        assert!(rows * (columns * element + LINE) <= BUFFER);
        element *= 2;
    }
};

/// A block of memory: where it starts, and bytes from one row to the next.
#[derive(Clone, Copy)]
struct Block {
    start: *mut u8,
    pitch: isize,
}

impl Block {
    /// The block that begins at an element of this one.
    fn at(self, row: usize, column: usize, element: usize) -> Block {
        let offset = self.pitch.wrapping_mul(row as isize);
        Block {
            start: self.start.wrapping_offset(offset).wrapping_add(column * element),
            pitch: self.pitch,
        }
    }
}

type Copy = unsafe extern "C" fn(*mut u8, i64, *const u8, i64, i64, i64);

/// The function for a kind of copy, if there is one.
pub(super) fn address(element: u8, transposed: bool, streaming: bool) -> Option<*const u8> {
    let f: Copy = match (element, transposed, streaming) {
        (1, false, false) => rows::<false>,
        (1, false, true) => rows::<true>,
        (1, true, false) => transposed_block::<1, false>,
        (1, true, true) => transposed_block::<1, true>,
        (2, true, false) => transposed_block::<2, false>,
        (2, true, true) => transposed_block::<2, true>,
        (4, true, false) => transposed_block::<4, false>,
        (4, true, true) => transposed_block::<4, true>,
        (8, true, false) => transposed_block::<8, false>,
        (8, true, true) => transposed_block::<8, true>,
        _ => return None,
    };
    Some(f as *const u8)
}

/// Copies rows of `columns` bytes.
///
/// # Safety
/// Both blocks are valid, the first for writes. They overlap only where they are the same.
unsafe extern "C" fn rows<const STREAM: bool>(
    to: *mut u8,
    to_pitch: i64,
    from: *const u8,
    from_pitch: i64,
    rows: i64,
    columns: i64,
) {
    let (rows, columns) = (rows.max(0) as usize, columns.max(0) as usize);
    let (to_pitch, from_pitch) = (to_pitch as isize, from_pitch as isize);
    for r in 0..rows as isize {
        let (to, from) = (to.wrapping_offset(r * to_pitch), from.wrapping_offset(r * from_pitch));
        // SAFETY: rows of the two blocks.
        unsafe { row::<STREAM>(to, from, columns) };
    }
}

/// Copies one row.
///
/// # Safety
/// As for [`rows`].
#[inline]
unsafe fn row<const STREAM: bool>(to: *mut u8, from: *const u8, bytes: usize) {
    if STREAM {
        // SAFETY: the caller's promise.
        unsafe { stream_row(to, from, bytes) }
    } else {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy(from, to, bytes) }
    }
}

/// Copies a row past the caches, but for the parts of lines at its ends.
///
/// # Safety
/// As for [`rows`].
#[cfg(target_arch = "x86_64")]
unsafe fn stream_row(to: *mut u8, from: *const u8, bytes: usize) {
    use std::arch::x86_64::{_mm_loadu_si128, _mm_stream_si128};
    let head = to.align_offset(LINE).min(bytes);
    let lines = (bytes - head) / LINE;
    let tail = head + lines * LINE;
    // SAFETY: all accesses are inside the two rows, and streamed ones are aligned to lines.
    unsafe {
        std::ptr::copy(from, to, head);
        if has_avx512() {
            stream_lines(to.add(head), from.add(head), lines);
        } else {
            for at in (head..tail).step_by(16) {
                let x = _mm_loadu_si128(from.add(at).cast());
                _mm_stream_si128(to.add(at).cast(), x);
            }
        }
        std::ptr::copy(from.add(tail), to.add(tail), bytes - tail);
    }
}

/// Copies whole lines past the caches.
///
/// # Safety
/// Both ranges are valid, and `to` is aligned to a line.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn stream_lines(to: *mut u8, from: *const u8, lines: usize) {
    use std::arch::x86_64::{_mm512_loadu_si512, _mm512_stream_si512};
    for at in (0..lines * LINE).step_by(LINE) {
        // SAFETY: inside the ranges.
        unsafe { _mm512_stream_si512(to.add(at).cast(), _mm512_loadu_si512(from.add(at).cast())) };
    }
}

/// Copies a row; this processor has no stores past the caches that we know of.
///
/// # Safety
/// As for [`rows`].
#[cfg(not(target_arch = "x86_64"))]
unsafe fn stream_row(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy(from, to, bytes) }
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    std::is_x86_feature_detected!("avx512f")
}

/// Copies `from`'s columns to `to`'s rows.
///
/// # Safety
/// `to` is valid for writes of `rows` rows of `columns` elements of `E` bytes, `from` for reads of `columns` rows of `rows`
/// elements, and they do not overlap.
unsafe extern "C" fn transposed_block<const E: usize, const STREAM: bool>(
    to: *mut u8,
    to_pitch: i64,
    from: *const u8,
    from_pitch: i64,
    rows: i64,
    columns: i64,
) {
    let to = Block {
        start: to,
        pitch: to_pitch as isize,
    };
    let from = Block {
        start: from.cast_mut(),
        pitch: from_pitch as isize,
    };
    let (rows, columns) = (rows.max(0) as usize, columns.max(0) as usize);
    let (tile_rows, tile_columns) = tile(E);
    for r in (0..rows).step_by(tile_rows) {
        for c in (0..columns).step_by(tile_columns) {
            let (to, from) = (to.at(r, c, E), from.at(c, r, E));
            let size = (tile_rows.min(rows - r), tile_columns.min(columns - c));
            // SAFETY: a part of the blocks.
            unsafe { transposed_tile::<E, STREAM>(to, from, size) };
        }
    }
}

/// Copies one tile.
///
/// # Safety
/// As for [`transposed_block`], for at most [`tile`] rows and columns.
unsafe fn transposed_tile<const E: usize, const STREAM: bool>(to: Block, from: Block, (rows, columns): (usize, usize)) {
    #[cfg(target_arch = "x86_64")]
    {
        let side = LINE / E;
        let lines = (to.start as usize | to.pitch as usize).is_multiple_of(LINE);
        if STREAM && E >= 4 && lines && rows.is_multiple_of(side) && columns.is_multiple_of(side) && has_avx512() {
            // SAFETY: whole blocks of the tile, whose rows are lines.
            unsafe { wide::turn::<E, true>(to, from, rows, columns) };
            return;
        }
    }
    if !STREAM && rows.saturating_mul(to.pitch.unsigned_abs()) <= SMALL {
        // SAFETY: the caller's promise.
        unsafe { turn::<E>(to, from, rows, columns) };
        return;
    }
    let mut buffer = std::mem::MaybeUninit::<Buffer>::uninit();
    let staged = Block {
        start: buffer.as_mut_ptr().cast(),
        pitch: (columns * E).next_multiple_of(LINE) as isize + LINE as isize,
    };
    // SAFETY: the tile fits the buffer, which is written before it is read.
    unsafe {
        turn::<E>(staged, from, rows, columns);
        for r in 0..rows {
            row::<STREAM>(to.at(r, 0, E).start, staged.at(r, 0, E).start, columns * E);
        }
    }
}

#[repr(align(64))]
struct Buffer(#[allow(dead_code, reason = "written and read through pointers")] [u8; BUFFER]);

/// Turns a tile: whole blocks in registers, wide ones first, what is left element by element.
///
/// # Safety
/// As for [`transposed_block`].
unsafe fn turn<const E: usize>(to: Block, from: Block, rows: usize, columns: usize) {
    let mut wide = (0, 0);
    #[cfg(target_arch = "x86_64")]
    if E >= 4 && has_avx512() {
        let side = LINE / E;
        wide = (rows / side * side, columns / side * side);
        // SAFETY: whole blocks of the tile.
        unsafe { wide::turn::<E, false>(to, from, wide.0, wide.1) };
    }
    // SAFETY: the rest of the tile.
    unsafe {
        strip::<E>(to, from, 0..wide.0, wide.1..columns);
        strip::<E>(to, from, wide.0..rows, 0..columns);
    }
}

/// Turns a part of a tile in blocks of 16 bytes, of which the last of a row or column begin early enough to be whole.
///
/// # Safety
/// As for [`transposed_block`].
unsafe fn strip<const E: usize>(to: Block, from: Block, rows: Range<usize>, columns: Range<usize>) {
    #[cfg(target_arch = "x86_64")]
    {
        let side = 16 / E;
        if rows.len() >= side && columns.len() >= side {
            for c in columns.clone().step_by(side) {
                let c = c.min(columns.end - side);
                for r in rows.clone().step_by(side) {
                    let r = r.min(rows.end - side);
                    // SAFETY: a block of the part.
                    unsafe { narrow::turn::<E>(to.at(r, c, E), from.at(c, r, E)) };
                }
            }
            return;
        }
    }
    // SAFETY: the caller's promise.
    unsafe { elements::<E>(to, from, rows, columns) };
}

/// Copies element by element.
///
/// # Safety
/// As for [`transposed_block`].
unsafe fn elements<const E: usize>(to: Block, from: Block, rows: Range<usize>, columns: Range<usize>) {
    for c in columns {
        for r in rows.clone() {
            // SAFETY: an element of each block.
            unsafe {
                let x = from.at(c, r, E).start.cast::<[u8; E]>().read();
                to.at(r, c, E).start.cast::<[u8; E]>().write(x);
            }
        }
    }
}

/// Blocks of 16 bytes by as many elements.
#[cfg(target_arch = "x86_64")]
mod narrow {
    use std::arch::x86_64::*;

    use super::Block;

    /// Turns one block.
    ///
    /// # Safety
    /// Both blocks are valid for `16 / E` rows of 16 bytes, the first for writes.
    #[inline]
    pub(super) unsafe fn turn<const E: usize>(to: Block, from: Block) {
        let side = 16 / E;
        // SAFETY: inside the blocks; SSE2 is part of every x86-64.
        unsafe {
            let mut x = [_mm_setzero_si128(); 16];
            for (k, x) in x[..side].iter_mut().enumerate() {
                *x = _mm_loadu_si128(from.at(k, 0, E).start.cast());
            }
            // Each step interleaves row k with row k + side / 2; after all of them rows have become columns.
            let mut step = 1;
            while step < side {
                let before = x;
                for k in 0..side / 2 {
                    let (a, b) = (before[k], before[k + side / 2]);
                    (x[2 * k], x[2 * k + 1]) = match E {
                        1 => (_mm_unpacklo_epi8(a, b), _mm_unpackhi_epi8(a, b)),
                        2 => (_mm_unpacklo_epi16(a, b), _mm_unpackhi_epi16(a, b)),
                        4 => (_mm_unpacklo_epi32(a, b), _mm_unpackhi_epi32(a, b)),
                        _ => (_mm_unpacklo_epi64(a, b), _mm_unpackhi_epi64(a, b)),
                    };
                }
                step *= 2;
            }
            for (k, x) in x[..side].iter().enumerate() {
                _mm_storeu_si128(to.at(k, 0, E).start.cast(), *x);
            }
        }
    }
}

/// Blocks of a line by as many elements, of 4 or 8 bytes.
#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::x86_64::*;

    use super::{Block, LINE};

    /// Turns a tile of whole blocks.
    ///
    /// # Safety
    /// As for [`super::transposed_block`]; `rows` and `columns` are multiples of `LINE / E`. Streamed rows are aligned to
    /// lines.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn turn<const E: usize, const STREAM: bool>(to: Block, from: Block, rows: usize, columns: usize) {
        let side = LINE / E;
        for c in (0..columns).step_by(side) {
            for r in (0..rows).step_by(side) {
                // SAFETY: a block of the tile.
                unsafe {
                    match E {
                        4 => turn_4::<STREAM>(to.at(r, c, E), from.at(c, r, E)),
                        _ => turn_8::<STREAM>(to.at(r, c, E), from.at(c, r, E)),
                    }
                }
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load(from: Block, row: usize) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_loadu_si512(from.at(row, 0, 1).start.cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn store<const STREAM: bool>(to: Block, row: usize, x: __m512i) {
        let at = to.at(row, 0, 1).start;
        // SAFETY: the caller's promise.
        unsafe {
            match STREAM {
                true => _mm512_stream_si512(at.cast(), x),
                false => _mm512_storeu_si512(at.cast(), x),
            }
        }
    }

    /// Sixteen rows of sixteen elements of 4 bytes.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn turn_4<const STREAM: bool>(to: Block, from: Block) {
        let mut x = [_mm512_setzero_si512(); 16];
        let mut y = x;
        // SAFETY: rows of the blocks.
        unsafe {
            for (k, x) in x.iter_mut().enumerate() {
                *x = load(from, k);
            }
            // Within each quarter of a register, four rows become four columns.
            for k in (0..16).step_by(2) {
                y[k] = _mm512_unpacklo_epi32(x[k], x[k + 1]);
                y[k + 1] = _mm512_unpackhi_epi32(x[k], x[k + 1]);
            }
            for k in (0..16).step_by(4) {
                x[k] = _mm512_unpacklo_epi64(y[k], y[k + 2]);
                x[k + 1] = _mm512_unpackhi_epi64(y[k], y[k + 2]);
                x[k + 2] = _mm512_unpacklo_epi64(y[k + 1], y[k + 3]);
                x[k + 3] = _mm512_unpackhi_epi64(y[k + 1], y[k + 3]);
            }
            // Then the quarters of four registers likewise.
            for k in 0..4 {
                quarters::<STREAM>(to, [k, 4 + k, 8 + k, 12 + k], [x[k], x[4 + k], x[8 + k], x[12 + k]]);
            }
        }
    }

    /// Eight rows of eight elements of 8 bytes.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn turn_8<const STREAM: bool>(to: Block, from: Block) {
        let mut x = [_mm512_setzero_si512(); 8];
        let mut y = x;
        // SAFETY: rows of the blocks.
        unsafe {
            for (k, x) in x.iter_mut().enumerate() {
                *x = load(from, k);
            }
            for k in (0..8).step_by(2) {
                y[k] = _mm512_unpacklo_epi64(x[k], x[k + 1]);
                y[k + 1] = _mm512_unpackhi_epi64(x[k], x[k + 1]);
            }
            for k in 0..2 {
                quarters::<STREAM>(to, [k, 2 + k, 4 + k, 6 + k], [y[k], y[2 + k], y[4 + k], y[6 + k]]);
            }
        }
    }

    /// Stores register `k`, made of the `k`-th quarters of the four given, as row `rows[k]`.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn quarters<const STREAM: bool>(to: Block, rows: [usize; 4], [a, b, c, d]: [__m512i; 4]) {
        let (ab_even, ab_odd) = (_mm512_shuffle_i64x2::<0x88>(a, b), _mm512_shuffle_i64x2::<0xdd>(a, b));
        let (cd_even, cd_odd) = (_mm512_shuffle_i64x2::<0x88>(c, d), _mm512_shuffle_i64x2::<0xdd>(c, d));
        // SAFETY: the caller's promise.
        unsafe {
            store::<STREAM>(to, rows[0], _mm512_shuffle_i64x2::<0x88>(ab_even, cd_even));
            store::<STREAM>(to, rows[1], _mm512_shuffle_i64x2::<0x88>(ab_odd, cd_odd));
            store::<STREAM>(to, rows[2], _mm512_shuffle_i64x2::<0xdd>(ab_even, cd_even));
            store::<STREAM>(to, rows[3], _mm512_shuffle_i64x2::<0xdd>(ab_odd, cd_odd));
        }
    }
}

#[cfg(test)]
mod tests;
