//! Products by Intel AMX: squares of 32 by 32 results, whose operands are words of four bytes or of two bf16 values.
//!
//! A strip is rows of words that lie together along the sum, a panel has for each word along the sum those of neighbouring columns together:
//! both are read as tiles where they lie. A step of the sum is 16 words; what is left of a sum at its end is a step of its own, by tiles
//! that are as much shorter. Panels are read as what will not be read again soon, so that the strip, which is, stays in the first-level cache.
//! Every result takes its steps in order, whatever rows and columns are beside it.
//!
//! How large tiles are is state of a thread. [`Session`] sets it for a piece of a product and takes all of it back at the end; micro-kernels
//! change it where a piece ends in fewer rows or words.

use std::arch::asm;
use std::cell::Cell;
use std::marker::PhantomData;

/// Rows of a tile, words of a row.
const SIDE: usize = 16;
/// Words of a step of the sum.
pub(super) const STEP: usize = SIDE;
/// Bytes of a row.
const ROW_BYTES: isize = 64;
/// Sides of a square of results.
pub(super) const BLOCK: usize = 2 * SIDE;

/// What a word is made of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Words {
    /// Unsigned bytes in strips, signed ones in panels.
    UnsignedBySigned,
    /// The other way round.
    SignedByUnsigned,
    /// Pairs of bf16, added up in f32.
    Halves,
}

/// Rows and words of the last step for which a thread's tiles are set.
type Shape = (u8, u8);

/// No such shape: tiles are not set.
const UNSET: Shape = (0, 0);

thread_local! {
    static SHAPE: Cell<Shape> = const { Cell::new(UNSET) };
}

/// While it lives, the thread may call micro-kernels.
pub(super) struct Session(PhantomData<*const ()>);

impl Session {
    /// Begins one. There is none on this thread.
    pub(super) fn begin() -> Session {
        SHAPE.set(UNSET);
        Session(PhantomData)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if SHAPE.replace(UNSET) != UNSET {
            // SAFETY: tiles were set, so the instructions exist; nobody needs what is in them.
            unsafe {
                asm!("tilerelease", out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _, out("tmm5") _,
                     out("tmm6") _, out("tmm7") _, options(nostack, preserves_flags));
            }
        }
    }
}

/// The operand of `ldtilecfg`.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Sets the thread's tiles for strips of so many rows, and so many words in the last step of a sum (0 if it is whole).
///
/// Tiles 0 and 1 hold results; 4 is the strip's, 6 and 7 are the panel's, and 5, 2 and 3 are the same for the last step. Where that is whole,
/// all tiles are, and a micro-kernel for two strips uses them as it likes.
#[inline(always)]
unsafe fn shape(rows: usize, rest: usize) {
    if SHAPE.get() != (rows as u8, rest as u8) {
        // SAFETY: the caller's promise.
        unsafe { reshape(rows, rest) };
    }
}

/// As [`shape`], whatever it is set for.
#[cold]
#[inline(never)]
unsafe fn reshape(rows: usize, rest: usize) {
    let wanted = (rows as u8, rest as u8);
    let (rows, last) = (rows as u8, if rest == 0 { SIDE } else { rest });
    let panel = last as u8;
    let mut c = Configuration {
        palette: 1,
        start: 0,
        reserved: [0; 14],
        row_bytes: [0; 16],
        rows: [0; 16],
    };
    c.row_bytes[..8].fill(ROW_BYTES as u16);
    c.row_bytes[5] = 4 * last as u16;
    c.rows[..8].copy_from_slice(&[rows, rows, panel, panel, rows, rows, SIDE as u8, SIDE as u8]);
    // SAFETY: the caller has the instructions, and the configuration is one of their palette.
    unsafe {
        asm!("ldtilecfg [{}]", in(reg) &raw const c, out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _,
             out("tmm5") _, out("tmm6") _, out("tmm7") _, options(nostack, readonly, preserves_flags));
    }
    SHAPE.set(wanted);
}

/// What a block of instructions is given. Strides in bytes.
///
/// What registers are given is not read from memory at once: words that were written one by one, and are read two by two, wait for all that was
/// written before, which are the results of another tile.
#[repr(C)]
struct Call {
    /// Whether a shorter one follows.
    rest: usize,
    /// Whether products are added to the sums that are there.
    added: usize,
    /// Whether there are two tiles of columns.
    two: usize,
    /// The sums, [`BLOCK`] of a row together.
    sums: *mut u8,
}

macro_rules! rows {
    ($rows:ident, $dot:literal) => {
        /// One strip by one or two tiles of columns.
        ///
        /// # Safety
        /// The tiles are set for its rows and the words of its last step, and lie where the call may read or write.
        #[inline(always)]
        unsafe fn $rows(call: &Call, strip: *const u8, o: &Operands) {
            // SAFETY: the caller's promise.
            unsafe {
                asm!(
                    "mov rax, [rdi + 16]",
                    "mov rdx, [rdi + 24]",
                    "mov esi, 128",
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "cmp qword ptr [rdi + 8], 0",
                    "je 2f",
                    "tileloadd tmm0, [rdx + rsi]",
                    "test rax, rax",
                    "jz 2f",
                    "tileloadd tmm1, [rdx + rsi + 64]",
                    "2:",
                    "mov r12, r11",
                    "shl r12, 4",
                    "test rcx, rcx",
                    "jz 5f",
                    "3:",
                    "tileloadd tmm4, [r8 + r9]",
                    "tileloaddt1 tmm6, [r10 + r11]",
                    concat!($dot, " tmm0, tmm4, tmm6"),
                    "test rax, rax",
                    "jz 4f",
                    "tileloaddt1 tmm7, [r10 + r11 + 64]",
                    concat!($dot, " tmm1, tmm4, tmm7"),
                    "4:",
                    "add r8, 64",
                    "add r10, r12",
                    "dec rcx",
                    "jnz 3b",
                    "5:",
                    "cmp qword ptr [rdi], 0",
                    "je 6f",
                    "tileloadd tmm5, [r8 + r9]",
                    "tileloaddt1 tmm2, [r10 + r11]",
                    concat!($dot, " tmm0, tmm5, tmm2"),
                    "test rax, rax",
                    "jz 6f",
                    "tileloaddt1 tmm3, [r10 + r11 + 64]",
                    concat!($dot, " tmm1, tmm5, tmm3"),
                    "6:",
                    "tilestored [rdx + rsi], tmm0",
                    "test rax, rax",
                    "jz 7f",
                    "tilestored [rdx + rsi + 64], tmm1",
                    "7:",
                    in("rdi") call, inout("r8") strip => _, in("r9") o.strip_row, inout("r10") o.panel => _,
                    in("r11") o.panel_sum, inout("rcx") o.depth / SIDE => _, out("rax") _, out("rdx") _, out("rsi") _, out("r12") _,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _,
                    out("tmm5") _, out("tmm6") _, out("tmm7") _, options(nostack)
                );
            }
        }
    };
}

rows!(rows_unsigned, "tdpbusd");
rows!(rows_signed, "tdpbsud");
rows!(rows_halves, "tdpbf16ps");

/// Part of a square of sums: at most [`BLOCK`] rows and columns of it.
#[derive(Clone, Copy)]
pub(super) struct Part {
    /// The first sum; [`BLOCK`] of a row lie together. Whole tiles of columns are written.
    pub sums: *mut u32,
    pub rows: usize,
    pub columns: usize,
    /// Whether products are added to what is there.
    pub added: bool,
}

/// Operands of a square. Strides in bytes.
#[derive(Clone, Copy)]
pub(super) struct Operands {
    /// Rows of words that lie together.
    pub strip: *const u8,
    /// The stride between rows.
    pub strip_row: isize,
    /// Words of neighbouring columns together. Where columns end within 16, words up to there can be read.
    pub panel: *const u8,
    /// The stride along the sum.
    pub panel_sum: isize,
    /// Words of the sum, at least 1.
    pub depth: usize,
}

/// Sets the thread's tiles for 16 rows and whole steps.
///
/// # Safety
/// This process may use tiles of matrices, and a [`Session`] has begun on this thread.
#[inline(always)]
pub(super) unsafe fn set_whole() {
    // SAFETY: the caller's promise.
    unsafe { shape(SIDE, 0) };
}

/// Computes part of a square of sums, whatever its rows, columns and words.
///
/// # Safety
/// This process may use tiles of matrices, and a [`Session`] has begun on this thread; the operands can be read and the sums written.
#[inline(never)]
pub(super) unsafe fn multiply(words: Words, o: Operands, part: Part) {
    let rest = o.depth % SIDE;
    for first in (0..part.rows).step_by(SIDE) {
        let call = Call {
            rest: usize::from(rest > 0),
            added: usize::from(part.added),
            two: usize::from(part.columns > SIDE),
            sums: part.sums.wrapping_add(first * BLOCK).cast(),
        };
        let strip = o.strip.wrapping_offset(first as isize * o.strip_row);
        // SAFETY: the caller's promise; tiles are set for what is computed.
        unsafe {
            shape(SIDE.min(part.rows - first), rest);
            match words {
                Words::UnsignedBySigned => rows_unsigned(&call, strip, &o),
                Words::SignedByUnsigned => rows_signed(&call, strip, &o),
                Words::Halves => rows_halves(&call, strip, &o),
            }
        }
    }
}
