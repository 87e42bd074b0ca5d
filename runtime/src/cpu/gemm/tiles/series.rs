//! Whole tiles of [`super::amx`], one after the other, each stored while the next is begun.
//!
//! To store four tiles of results takes as long as four products of tiles, and nothing else runs meanwhile if they are stored together: they fill the
//! queue of what waits for the last product. So each is stored right before its register takes the first product of the next square, and elements
//! move on from where they were stored, as they are or rounded, between the steps of that.
//!
//! Every result takes its steps in order, as of any other tile: sums that are continued are loaded where others are zero.
//!
//! Invariant: from a square to the next, tiles keep what is in them: compiled code uses none, and whoever computes anything else by tiles, or
//! sets them anew, [ends](Series::end) the series first.

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

/// Where rows begin that are read or written. The stride in bytes.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    /// The first element of the first row.
    pub start: *mut u8,
    /// The stride between rows.
    pub row: isize,
}

/// Rows of 128 bytes that are copied beside products, [`BLOCK`] of them.
#[derive(Clone, Copy)]
pub(super) struct Copied {
    pub from: Rows,
    pub to: Rows,
}

/// What becomes of a square.
#[derive(Clone, Copy)]
pub(super) enum Then {
    /// It stays where it is stored.
    Stored(Rows),
    /// Its rows are stored in [`Room`] and move on: i32 as they are, sums of halves rounded.
    Moved(Rows),
}

/// What a block of instructions is given besides operands.
#[repr(C)]
struct Call {
    /// Steps beside which rows move, those behind them, and as many as rows are left for.
    moving: usize,
    alone: usize,
    left: usize,
    /// Rows that move: where they are read, where they are written with the stride there, and the stride where they are read.
    from: *const u8,
    to: *mut u8,
    to_row: isize,
    from_row: isize,
}

macro_rules! begin {
    ($dot:literal, $tile:literal, $stored:literal, $sums:literal, $skip:literal, $next:literal, $product:literal) => {
        concat!(
            "tilestored [",
            $stored,
            "], ",
            $tile,
            "\n",
            "test r14, r14\n",
            "jnz ",
            $skip,
            "f\n",
            "tilezero ",
            $tile,
            "\n",
            "jmp ",
            $next,
            "f\n",
            $skip,
            ":\n",
            "tileloadd ",
            $tile,
            ", [r14 + rsi + ",
            $sums,
            "]\n",
            $next,
            ":\n",
            $dot,
            " ",
            $product,
            "\n",
        )
    };
}

macro_rules! words_of_two_rows {
    () => {
        "vmovdqu32 zmm0, [rsi]
        vmovdqu32 zmm1, [rsi + 64]
        vmovdqu32 zmm2, [rsi + rdi]
        vmovdqu32 zmm3, [rsi + rdi + 64]
        vmovdqu32 [rdx], zmm0
        vmovdqu32 [rdx + 64], zmm1
        vmovdqu32 [rdx + r12], zmm2
        vmovdqu32 [rdx + r12 + 64], zmm3
        lea rsi, [rsi + 2 * rdi]
        lea rdx, [rdx + 2 * r12]
        "
    };
}

macro_rules! halves_of_two_rows {
    () => {
        "vmovups zmm0, [rsi]
        vmovups zmm1, [rsi + 64]
        vmovups zmm2, [rsi + rdi]
        vmovups zmm3, [rsi + rdi + 64]
        vcvtne2ps2bf16 zmm0, zmm1, zmm0
        vcvtne2ps2bf16 zmm2, zmm3, zmm2
        vmovdqu32 [rdx], zmm0
        vmovdqu32 [rdx + r12], zmm2
        lea rsi, [rsi + 2 * rdi]
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
        unsafe fn $name(call: &Call, o: &Operands, before: Rows, sums: *const u8) {
            // SAFETY: the caller's promise.
            unsafe {
                asm!(
                    "mov rax, r9",
                    "shl rax, 4",
                    "add rax, r8",
                    "mov r13, r11",
                    "shl r13, 4",
                    "mov rdx, rcx",
                    "shl rdx, 4",
                    "add rdx, r15",
                    "mov esi, 128",
                    "tileloaddt1 tmm6, [r10 + r11]",
                    "tileloadd tmm4, [r8 + r9]",
                    begin!($dot, "tmm0", "r15 + rcx", "0", "20", "21", "tmm0, tmm4, tmm6"),
                    "tileloadd tmm5, [rax + r9]",
                    begin!($dot, "tmm2", "rdx + rcx", "2048", "22", "23", "tmm2, tmm5, tmm6"),
                    "tileloaddt1 tmm7, [r10 + r11 + 64]",
                    begin!($dot, "tmm3", "rdx + rcx + 64", "2112", "24", "25", "tmm3, tmm5, tmm7"),
                    begin!($dot, "tmm1", "r15 + rcx + 64", "64", "26", "27", "tmm1, tmm4, tmm7"),
                    "add r8, 64",
                    "add rax, 64",
                    "add r10, r13",
                    "mov rcx, [rdi]",
                    "mov r14, [rdi + 8]",
                    "mov r15, [rdi + 16]",
                    "mov rsi, [rdi + 24]",
                    "mov rdx, [rdi + 32]",
                    "mov r12, [rdi + 40]",
                    "mov rdi, [rdi + 48]",
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
                    inout("rdi") call => _, inout("r8") o.strip => _, in("r9") o.strip_row, inout("r10") o.panel => _, in("r11") o.panel_sum,
                    inout("r14") sums => _, inout("r15") before.start => _, inout("rcx") before.row => _, out("rax") _, out("rdx") _, out("rsi") _,
                    out("r12") _, out("r13") _, out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
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
squares!(square_halves_copying, "tdpbf16ps", words_of_two_rows);

macro_rules! ends {
    ($name:ident, $rows:ident) => {
        /// Stores the last square and moves so many times four rows.
        ///
        /// # Safety
        /// Tiles are set for 16 rows and whole steps; there is room for the square, and the rows can be written.
        #[inline(never)]
        unsafe fn $name(before: Rows, moved: usize, to: Rows) {
            // SAFETY: the caller's promise.
            unsafe {
                asm!(
                    "mov r8, rdi",
                    "shl r8, 4",
                    "add r8, rsi",
                    "tilestored [rsi + rdi], tmm0",
                    "tilestored [r8 + rdi], tmm2",
                    "tilestored [r8 + rdi + 64], tmm3",
                    "tilestored [rsi + rdi + 64], tmm1",
                    "test rax, rax",
                    "jz 3f",
                    "2:",
                    $rows!(),
                    $rows!(),
                    "dec rax",
                    "jnz 2b",
                    "3:",
                    inout("rsi") before.start => _, in("rdi") before.row, out("r8") _, inout("rax") moved => _, inout("rdx") to.start => _, in("r12") to.row,
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
    last: Option<(Rows, Then)>,
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

    fn part(&self, number: usize) -> Rows {
        Rows {
            start: self.room.cast::<u8>().wrapping_add(number * SQUARE_BYTES),
            row: ROW_BYTES as isize,
        }
    }

    /// Whether elements of the last square move on while the next one is computed.
    pub(super) fn moves(&self) -> bool {
        matches!(self.last, Some((_, Then::Moved(_))))
    }

    /// Begins another square, in whole steps, of which there is at least one: [`BLOCK`] rows and columns of sums, which continue those at `sums`, row
    /// after row of as many, unless that is null. Copies rows beside it, unless elements [move](Series::moves).
    ///
    /// # Safety
    /// As for [`amx::multiply`], until the series ends; sums that are continued have been stored, or are the last square. Rows that are copied can be
    /// read and written.
    #[inline(always)]
    pub(super) unsafe fn square(&mut self, o: Operands, sums: *const u8, then: Then, copied: Option<Copied>) {
        debug_assert!(o.depth.is_multiple_of(STEP) && o.depth > 0);
        let (before, moved) = match self.last {
            Some((from, Then::Moved(to))) => (from, Some(Copied { from, to })),
            Some((at, Then::Stored(_))) => (at, None),
            None => (self.part(2), None),
        };
        let copies = moved.is_none() && copied.is_some();
        let beside = moved.or(copied);
        let further = o.depth / STEP - 1;
        let all = if beside.is_some() { BLOCK / ROWS_A_STEP } else { 0 };
        let moving = all.min(further);
        let nowhere = Rows {
            start: std::ptr::null_mut(),
            row: 0,
        };
        let Copied { from, to } = beside.unwrap_or(Copied {
            from: nowhere,
            to: nowhere,
        });
        let call = Call {
            moving,
            alone: further - moving,
            left: all - moving,
            from: from.start,
            to: to.start,
            to_row: to.row,
            from_row: from.row,
        };
        // SAFETY: the caller's promise.
        unsafe {
            amx::set_whole();
            match self.words {
                Words::UnsignedBySigned => square_unsigned(&call, &o, before, sums),
                Words::SignedByUnsigned => square_signed(&call, &o, before, sums),
                Words::Halves if copies => square_halves_copying(&call, &o, before, sums),
                Words::Halves => square_halves(&call, &o, before, sums),
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
            Then::Stored(rows) => (0, rows),
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
