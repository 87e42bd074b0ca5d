//! Whole tiles of [`super::amx`], one after the other, each stored while the next is begun.
//!
//! To store four tiles of results takes as long as six products of tiles, and nothing else runs meanwhile if they are stored together: they fill the
//! queue of what waits for the last product. So each is stored right before its register takes the first product of the next square, and elements
//! move on from where they were stored, as they are or rounded, between the steps of that.
//!
//! Every result takes its steps in order, as of any other tile: sums that are continued are loaded where others are zero.

use std::arch::asm;
use std::marker::PhantomData;

use super::amx::{self, BLOCK, Operands, STEP, Words};

/// Bytes of a square of results that has been stored.
const SQUARE_BYTES: usize = BLOCK * BLOCK * 4;
/// Bytes of a row of such a square.
const ROW_BYTES: usize = BLOCK * 4;
/// Rows that move on in one step.
const ROWS_A_STEP: usize = 4;

/// Where squares are stored before their elements move on: one in turn with another, and one for what is stored before there is any.
#[repr(C, align(64))]
pub(super) struct Room([[u8; SQUARE_BYTES]; 3]);

impl Room {
    /// Room that nothing was written to.
    pub(super) const fn new() -> std::mem::MaybeUninit<Room> {
        std::mem::MaybeUninit::uninit()
    }
}

/// Where results go. The stride in bytes.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    /// The first element of the first row.
    pub start: *mut u8,
    /// The stride between rows.
    pub row: isize,
}

/// What becomes of a square.
#[derive(Clone, Copy)]
pub(super) enum Then {
    /// It stays where it is stored, [`BLOCK`] rows of as many elements one after the other.
    Stored(*mut u8),
    /// Its rows move on: i32 as they are, sums of halves rounded.
    Moved(Rows),
}

/// What a block of instructions is given.
#[repr(C)]
struct Call {
    /// Where the square before is stored.
    before: *mut u8,
    /// Sums that are continued, or null.
    sums: *const u8,
    /// Steps beside which rows move, those behind them, and as many as rows are left for.
    moving: usize,
    alone: usize,
    left: usize,
}

macro_rules! begin {
    ($dot:literal, $tile:literal, $at:literal, $skip:literal, $next:literal, $product:literal) => {
        concat!(
            "tilestored [r15 + rcx + ", $at, "], ", $tile, "\n",
            "test r14, r14\n",
            "jnz ", $skip, "f\n",
            "tilezero ", $tile, "\n",
            "jmp ", $next, "f\n",
            $skip, ":\n",
            "tileloadd ", $tile, ", [r14 + rcx + ", $at, "]\n",
            $next, ":\n",
            $dot, " ", $product, "\n",
        )
    };
}

macro_rules! words_of_two_rows {
    () => {
        "vmovdqu32 zmm0, [rsi]
        vmovdqu32 zmm1, [rsi + 64]
        vmovdqu32 zmm2, [rsi + 128]
        vmovdqu32 zmm3, [rsi + 192]
        vmovdqu32 [rdx], zmm0
        vmovdqu32 [rdx + 64], zmm1
        vmovdqu32 [rdx + r12], zmm2
        vmovdqu32 [rdx + r12 + 64], zmm3
        add rsi, 256
        lea rdx, [rdx + 2 * r12]
        "
    };
}

macro_rules! halves_of_two_rows {
    () => {
        "vmovups zmm0, [rsi]
        vmovups zmm1, [rsi + 64]
        vmovups zmm2, [rsi + 128]
        vmovups zmm3, [rsi + 192]
        vcvtne2ps2bf16 zmm0, zmm1, zmm0
        vcvtne2ps2bf16 zmm2, zmm3, zmm2
        vmovdqu32 [rdx], zmm0
        vmovdqu32 [rdx + r12], zmm2
        add rsi, 256
        lea rdx, [rdx + 2 * r12]
        "
    };
}

macro_rules! squares {
    ($name:ident, $dot:literal, $rows:ident) => {
        /// A square, while that before it is stored and perhaps moved on.
        ///
        /// # Safety
        /// Tiles are set for 16 rows and whole steps, and lie where the call may read or write.
        #[inline(always)]
        unsafe fn $name(call: &Call, o: &Operands, from: *const u8, to: Rows) {
            // SAFETY: the caller's promise.
            unsafe {
                asm!(
                    "mov rax, r9",
                    "shl rax, 4",
                    "add rax, r8",
                    "mov r13, r11",
                    "shl r13, 4",
                    "mov ecx, 128",
                    "tileloaddt1 tmm6, [r10 + r11]",
                    "tileloadd tmm4, [r8 + r9]",
                    begin!($dot, "tmm0", "0", "20", "21", "tmm0, tmm4, tmm6"),
                    "tileloadd tmm5, [rax + r9]",
                    begin!($dot, "tmm2", "2048", "22", "23", "tmm2, tmm5, tmm6"),
                    "tileloaddt1 tmm7, [r10 + r11 + 64]",
                    begin!($dot, "tmm3", "2112", "24", "25", "tmm3, tmm5, tmm7"),
                    begin!($dot, "tmm1", "64", "26", "27", "tmm1, tmm4, tmm7"),
                    "add r8, 64",
                    "add rax, 64",
                    "add r10, r13",
                    "mov rcx, [rdi + 16]",
                    "mov r14, [rdi + 24]",
                    "mov r15, [rdi + 32]",
                    "test rcx, rcx",
                    "jz 3f",
                    "2:",
                    "tileloaddt1 tmm6, [r10 + r11]",
                    "tileloadd tmm4, [r8 + r9]",
                    concat!($dot, " tmm0, tmm4, tmm6"),
                    $rows!(),
                    "tileloadd tmm5, [rax + r9]",
                    concat!($dot, " tmm2, tmm5, tmm6"),
                    "tileloaddt1 tmm7, [r10 + r11 + 64]",
                    concat!($dot, " tmm3, tmm5, tmm7"),
                    $rows!(),
                    concat!($dot, " tmm1, tmm4, tmm7"),
                    "add r8, 64",
                    "add rax, 64",
                    "add r10, r13",
                    "dec rcx",
                    "jnz 2b",
                    "3:",
                    "test r14, r14",
                    "jz 5f",
                    "4:",
                    "tileloaddt1 tmm6, [r10 + r11]",
                    "tileloadd tmm4, [r8 + r9]",
                    concat!($dot, " tmm0, tmm4, tmm6"),
                    "tileloadd tmm5, [rax + r9]",
                    concat!($dot, " tmm2, tmm5, tmm6"),
                    "tileloaddt1 tmm7, [r10 + r11 + 64]",
                    concat!($dot, " tmm3, tmm5, tmm7"),
                    concat!($dot, " tmm1, tmm4, tmm7"),
                    "add r8, 64",
                    "add rax, 64",
                    "add r10, r13",
                    "dec r14",
                    "jnz 4b",
                    "5:",
                    "test r15, r15",
                    "jz 7f",
                    "6:",
                    $rows!(),
                    $rows!(),
                    "dec r15",
                    "jnz 6b",
                    "7:",
                    in("rdi") call, inout("r8") o.strip => _, in("r9") o.strip_row, inout("r10") o.panel => _, in("r11") o.panel_sum,
                    inout("r14") call.sums => _, inout("r15") call.before => _, inout("rsi") from => _, inout("rdx") to.start => _,
                    in("r12") to.row, out("rax") _, out("rcx") _, out("r13") _, out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack)
                );
            }
        }
    };
}

squares!(square_unsigned, "tdpbusd", words_of_two_rows);
squares!(square_signed, "tdpbsud", words_of_two_rows);
squares!(square_halves, "tdpbf16ps", halves_of_two_rows);

macro_rules! ends {
    ($name:ident, $rows:ident) => {
        /// Stores the last square and moves so many times four rows.
        ///
        /// # Safety
        /// Tiles are set for 16 rows and whole steps; there is room for the square, and the rows can be written.
        #[inline(never)]
        unsafe fn $name(before: *mut u8, moved: usize, to: Rows) {
            // SAFETY: the caller's promise.
            unsafe {
                asm!(
                    "tilestored [rsi + rcx], tmm0",
                    "tilestored [rsi + rcx + 2048], tmm2",
                    "tilestored [rsi + rcx + 2112], tmm3",
                    "tilestored [rsi + rcx + 64], tmm1",
                    "test rax, rax",
                    "jz 3f",
                    "2:",
                    $rows!(),
                    $rows!(),
                    "dec rax",
                    "jnz 2b",
                    "3:",
                    inout("rsi") before => _, in("rcx") ROW_BYTES, inout("rax") moved => _, inout("rdx") to.start => _, in("r12") to.row,
                    out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, options(nostack)
                );
            }
        }
    };
}

ends!(end_words, words_of_two_rows);
ends!(end_halves, halves_of_two_rows);

/// Squares, of which the last one is still in tiles.
pub(super) struct Series<'r> {
    words: Words,
    room: *mut Room,
    /// Which part of the room is next.
    turn: usize,
    /// Where the last square will be stored, and what becomes of it.
    last: Option<(*mut u8, Then)>,
    of: PhantomData<&'r mut Room>,
}

impl Series<'_> {
    /// One without squares. Nothing else multiplies by tiles on this thread until it [ends](Series::end).
    pub(super) fn new(words: Words, room: &mut std::mem::MaybeUninit<Room>) -> Series<'_> {
        Series {
            words,
            room: room.as_mut_ptr(),
            turn: 0,
            last: None,
            of: PhantomData,
        }
    }

    fn part(&self, number: usize) -> *mut u8 {
        self.room.cast::<u8>().wrapping_add(number * SQUARE_BYTES)
    }

    /// Begins another square, in whole steps, of which there is at least one: [`BLOCK`] rows and columns of sums, which continue those at `sums`
    /// unless that is null.
    ///
    /// # Safety
    /// As for [`amx::multiply`], until the series ends; sums that are continued have been stored.
    #[inline(always)]
    pub(super) unsafe fn square(&mut self, o: Operands, sums: *const u8, then: Then) {
        debug_assert!(o.depth.is_multiple_of(STEP) && o.depth > 0);
        let nowhere = Rows {
            start: std::ptr::null_mut(),
            row: 0,
        };
        let (before, moved) = match self.last {
            Some((at, Then::Moved(to))) => (at, Some(to)),
            Some((at, Then::Stored(_))) => (at, None),
            None => (self.part(2), None),
        };
        let further = o.depth / STEP - 1;
        let all = if moved.is_some() { BLOCK / ROWS_A_STEP } else { 0 };
        let moving = all.min(further);
        let call = Call {
            before,
            sums,
            moving,
            alone: further - moving,
            left: all - moving,
        };
        let to = moved.unwrap_or(nowhere);
        // SAFETY: the caller's promise.
        unsafe {
            amx::set_whole();
            match self.words {
                Words::UnsignedBySigned => square_unsigned(&call, &o, before, to),
                Words::SignedByUnsigned => square_signed(&call, &o, before, to),
                Words::Halves => square_halves(&call, &o, before, to),
            }
        }
        let at = match then {
            Then::Stored(at) => at,
            Then::Moved(_) => {
                self.turn ^= 1;
                self.part(self.turn)
            }
        };
        self.last = Some((at, then));
    }

    /// Stores the last square.
    ///
    /// # Safety
    /// As for [`Series::square`].
    pub(super) unsafe fn end(&mut self) {
        let Some((at, then)) = self.last.take() else { return };
        let (moved, to) = match then {
            Then::Moved(to) => (BLOCK / ROWS_A_STEP, to),
            Then::Stored(start) => (0, Rows { start, row: 0 }),
        };
        // SAFETY: the caller's promise.
        unsafe {
            match self.words {
                Words::Halves => end_halves(at, moved, to),
                Words::UnsignedBySigned | Words::SignedByUnsigned => end_words(at, moved, to),
            }
        }
    }
}
