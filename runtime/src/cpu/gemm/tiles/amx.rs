//! Micro-kernels by Intel AMX: squares of 32 by 32 results, or parts of them, whose operands are words of four bytes or of two bf16 values.
//!
//! A strip is rows of words that lie together along the sum, a panel has for each word along the sum those of neighbouring columns together:
//! both are read as tiles where they lie. A step of the sum is 16 words; what is left of a sum at its end is a step of its own, by tiles
//! that are as much shorter. Whole squares one after the other are computed by [`super::series`]. Panels are read as what will not be read again soon, so that the strip, which is, stays in the first-level cache.
//! Every result takes its steps in order, whatever rows and columns are beside it.
//!
//! How large tiles are is state of a thread. [`Session`] sets it for a piece of a product and takes all of it back at the end; micro-kernels
//! change it where a piece ends in fewer rows or words.

use std::arch::asm;
use std::cell::Cell;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// Rows of a tile, words of a row.
const SIDE: usize = 16;
/// Words of a step of the sum.
pub(super) const STEP: usize = SIDE;
/// Bytes of a row.
const ROW_BYTES: isize = 64;
/// Sides of what a micro-kernel computes.
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
    /// Whether results are added to what is there.
    added: usize,
    /// Whether there are two tiles of columns.
    two: usize,
    /// Tiles of results: those of the first rows, then those of the second.
    results: [*mut u8; 4],
    result_strides: [isize; 4],
    /// The strip, and the stride between its rows.
    strip: *const u8,
    strip_stride: isize,
    /// The panel, and the stride along the sum.
    panel: *const u8,
    panel_stride: isize,
    /// Whole steps.
    steps: usize,
}

macro_rules! micro_kernels {
    ($square:ident, $rows:ident, $dot:literal) => {
        /// Two strips by two tiles of columns, in whole steps, of which there is at least one.
        ///
        /// # Safety
        /// The tiles are set for 16 rows and whole steps, and lie where the call may read or write.
        #[inline(always)]
        unsafe fn $square(call: &Call) {
            // SAFETY: the caller's promise.
            unsafe {
                asm!(
                    "mov rax, r9",
                    "shl rax, 4",
                    "add rax, r8",
                    "cmp qword ptr [rdi + 8], 0",
                    "je 2f",
                    "mov rdx, [rdi + 24]",
                    "mov rsi, [rdi + 56]",
                    "tileloadd tmm0, [rdx + rsi]",
                    "mov rdx, [rdi + 32]",
                    "mov rsi, [rdi + 64]",
                    "tileloadd tmm1, [rdx + rsi]",
                    "mov rdx, [rdi + 40]",
                    "mov rsi, [rdi + 72]",
                    "tileloadd tmm2, [rdx + rsi]",
                    "mov rdx, [rdi + 48]",
                    "mov rsi, [rdi + 80]",
                    "tileloadd tmm3, [rdx + rsi]",
                    "jmp 3f",
                    "2:",
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    "3:",
                    "mov rdx, r11",
                    "shl rdx, 4",
                    "4:",
                    "tileloadd tmm4, [r8 + r9]",
                    "tileloaddt1 tmm6, [r10 + r11]",
                    concat!($dot, " tmm0, tmm4, tmm6"),
                    "tileloaddt1 tmm7, [r10 + r11 + 64]",
                    concat!($dot, " tmm1, tmm4, tmm7"),
                    "tileloadd tmm5, [rax + r9]",
                    concat!($dot, " tmm2, tmm5, tmm6"),
                    concat!($dot, " tmm3, tmm5, tmm7"),
                    "add r8, 64",
                    "add rax, 64",
                    "add r10, rdx",
                    "dec rcx",
                    "jnz 4b",
                    "mov rdx, [rdi + 24]",
                    "mov rsi, [rdi + 56]",
                    "tilestored [rdx + rsi], tmm0",
                    "mov rdx, [rdi + 32]",
                    "mov rsi, [rdi + 64]",
                    "tilestored [rdx + rsi], tmm1",
                    "mov rdx, [rdi + 40]",
                    "mov rsi, [rdi + 72]",
                    "tilestored [rdx + rsi], tmm2",
                    "mov rdx, [rdi + 48]",
                    "mov rsi, [rdi + 80]",
                    "tilestored [rdx + rsi], tmm3",
                    in("rdi") call, inout("r8") call.strip => _, in("r9") call.strip_stride, inout("r10") call.panel => _,
                    in("r11") call.panel_stride, inout("rcx") call.steps => _, out("rax") _, out("rdx") _, out("rsi") _, out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _,
                    out("tmm5") _, out("tmm6") _, out("tmm7") _, options(nostack)
                );
            }
        }

        /// One strip by one or two tiles of columns.
        ///
        /// # Safety
        /// The tiles are set for its rows and the words of its last step, and lie where the call may read or write.
        #[inline(always)]
        unsafe fn $rows(call: &Call) {
            // SAFETY: the caller's promise.
            unsafe {
                asm!(
                    "mov rax, [rdi + 16]",
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "cmp qword ptr [rdi + 8], 0",
                    "je 2f",
                    "mov rdx, [rdi + 24]",
                    "mov rsi, [rdi + 56]",
                    "tileloadd tmm0, [rdx + rsi]",
                    "test rax, rax",
                    "jz 2f",
                    "mov rdx, [rdi + 32]",
                    "mov rsi, [rdi + 64]",
                    "tileloadd tmm1, [rdx + rsi]",
                    "2:",
                    "mov rdx, r11",
                    "shl rdx, 4",
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
                    "add r10, rdx",
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
                    "mov rdx, [rdi + 24]",
                    "mov rsi, [rdi + 56]",
                    "tilestored [rdx + rsi], tmm0",
                    "test rax, rax",
                    "jz 7f",
                    "mov rdx, [rdi + 32]",
                    "mov rsi, [rdi + 64]",
                    "tilestored [rdx + rsi], tmm1",
                    "7:",
                    in("rdi") call, inout("r8") call.strip => _, in("r9") call.strip_stride, inout("r10") call.panel => _,
                    in("r11") call.panel_stride, inout("rcx") call.steps => _, out("rax") _, out("rdx") _, out("rsi") _, out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _,
                    out("tmm5") _, out("tmm6") _, out("tmm7") _, options(nostack)
                );
            }
        }
    };
}

micro_kernels!(square_unsigned, rows_unsigned, "tdpbusd");
micro_kernels!(square_signed, rows_signed, "tdpbsud");
micro_kernels!(square_halves, rows_halves, "tdpbf16ps");

/// Results of a micro-kernel: at most [`BLOCK`] rows and columns. Strides in elements.
#[derive(Clone, Copy)]
pub(super) struct Results {
    pub start: *mut u32,
    pub row: isize,
    pub column: isize,
    pub rows: usize,
    pub columns: usize,
    /// Whether they are added to what is there.
    pub added: bool,
}

/// Operands of a micro-kernel. Strides in bytes.
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

/// A tile of results beside the place where they belong.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Apart([[u32; SIDE]; SIDE]);

/// Sets the thread's tiles for 16 rows and whole steps.
///
/// # Safety
/// This process may use tiles of matrices, and a [`Session`] has begun on this thread.
#[inline(always)]
pub(super) unsafe fn set_whole() {
    // SAFETY: the caller's promise.
    unsafe { shape(SIDE, 0) };
}

/// Computes results, whatever their rows, columns and words.
///
/// # Safety
/// This process may use tiles of matrices, and a [`Session`] has begun on this thread; the operands can be read and the results written.
#[inline(never)]
pub(super) unsafe fn multiply(words: Words, o: Operands, r: Results) {
    let (steps, rest) = (o.depth / SIDE, o.depth % SIDE);
    let two = r.columns > SIDE;
    let square = rest == 0 && two && r.rows == BLOCK;
    let heights = [r.rows.min(SIDE), r.rows.saturating_sub(SIDE)];
    let mut apart = [const { MaybeUninit::<Apart>::uninit() }; 4];
    let mut call = Call {
        strip: o.strip,
        strip_stride: o.strip_row,
        panel: o.panel,
        panel_stride: o.panel_sum,
        steps,
        rest: usize::from(rest > 0),
        added: usize::from(r.added),
        two: usize::from(two),
        results: [std::ptr::null_mut(); 4],
        result_strides: [ROW_BYTES; 4],
    };
    let place = |tile: usize| {
        let (row, column) = (tile / 2 * SIDE, tile % 2 * SIDE);
        let width = r.columns.saturating_sub(column).min(SIDE);
        let to = row as isize * r.row + column as isize * r.column;
        (r.start.wrapping_offset(to), heights[tile / 2], width)
    };
    let in_place = |width: usize| width == SIDE && r.column == 1;
    for (tile, apart) in apart.iter_mut().enumerate() {
        let (start, height, width) = place(tile);
        if in_place(width) {
            (call.results[tile], call.result_strides[tile]) = (start.cast(), 4 * r.row);
            continue;
        }
        call.results[tile] = apart.as_mut_ptr().cast();
        if r.added {
            for i in 0..height {
                for j in 0..width {
                    let from = start.wrapping_offset(i as isize * r.row + j as isize * r.column);
                    // SAFETY: an element of the results.
                    unsafe { (*apart.as_mut_ptr()).0[i][j] = *from };
                }
            }
        }
    }
    // SAFETY: the caller's promise; tiles are set for what is computed.
    unsafe {
        if square {
            shape(SIDE, 0);
            match words {
                Words::UnsignedBySigned => square_unsigned(&call),
                Words::SignedByUnsigned => square_signed(&call),
                Words::Halves => square_halves(&call),
            }
        } else {
            for (half, &height) in heights.iter().enumerate().filter(|h| *h.1 > 0) {
                shape(height, rest);
                if half > 0 {
                    call.strip = call.strip.wrapping_offset(SIDE as isize * call.strip_stride);
                    for tile in 0..2 {
                        call.results[tile] = call.results[2 + tile];
                        call.result_strides[tile] = call.result_strides[2 + tile];
                    }
                }
                match words {
                    Words::UnsignedBySigned => rows_unsigned(&call),
                    Words::SignedByUnsigned => rows_signed(&call),
                    Words::Halves => rows_halves(&call),
                }
            }
        }
    }
    for (tile, apart) in apart.iter().enumerate() {
        let (start, height, width) = place(tile);
        if in_place(width) {
            continue;
        }
        for i in 0..height {
            for j in 0..width {
                let to = start.wrapping_offset(i as isize * r.row + j as isize * r.column);
                // SAFETY: an element of the results, and one of the tile that was stored.
                unsafe { *to = (*apart.as_ptr()).0[i][j] };
            }
        }
    }
}
