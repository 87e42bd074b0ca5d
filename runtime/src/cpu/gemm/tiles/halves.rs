//! Products of bf16 by the micro-kernels of [`amx`] or [`pairs`], added up in f32 and rounded once.
//!
//! A word is two neighbours along the sum. Strips are read where they lie if their elements lie together along the sum, of which there is an even
//! number; panels are copied, or lie as words already, in blocks of [`amx::BLOCK`] columns (`passes/src/rewrite/panels.rs` makes such blocks). Results
//! of a strip are f32 in scratch memory until their sums are complete. Few rows by a matrix whose elements lie together across the sum read it
//! where it is, if [`pairs`] multiplies: by lines, a few of which are read at once from end to end.
//!
//! Invariant: each result takes the pairs of its sum in order, by tiles in steps of [`amx::STEP`] from the first one on, whatever is beside it.

use std::arch::x86_64::{
    __m512i, __mmask16, __mmask32, _mm256_mask_storeu_epi16, _mm512_cvtne2ps_pbh, _mm512_cvtneps_pbh, _mm512_loadu_ps,
    _mm512_mask_storeu_epi16, _mm512_mask_storeu_epi32, _mm512_maskz_loadu_epi16, _mm512_maskz_loadu_epi32,
    _mm512_permutex2var_epi64, _mm512_permutexvar_epi64, _mm512_setr_epi64, _mm512_setzero_si512, _mm512_shuffle_i32x4,
    _mm512_storeu_si512, _mm512_unpackhi_epi16, _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi16,
    _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
};

use super::super::{Composite, Product, StridedDim};
use super::strips::{self, BLOCK_WORDS, Pass, Rows, Strips, WORD_BYTES, panels_of_a_pass};
use super::{FAR_ROWS, Tell, along_rows, amx, pairs};
use crate::cpu::level::{self, Halves};

/// Elements of a word.
const PAIR: usize = 2;

/// Whether tiles of matrices multiply them, in a session of those, and not [`pairs`].
pub(super) fn by_tiles() -> bool {
    level::halves() == Some(Halves::Tiles)
}

/// Rows up to which a set of the first-level cache has room for a line of each and of a panel.
const NEAR_ROWS: usize = 4;

/// Words of a sum.
fn words(k: usize) -> usize {
    k.div_ceil(PAIR)
}

/// Columns whose sums [`few`] has at once: as many sums of a row stay in the first-level cache beside lines.
const FEW_COLUMNS: usize = 4096;

/// Rows that are few: of more it takes less time to copy panels than to make words again for each [`pairs::ROWS`].
const FEW_ROWS: usize = 32;

/// Lines of words that [`few`] adds up in registers: with more, sums are loaded and stored less often, and memory is read in more places at once,
/// which it is slower at.
fn lines_at_once(rows: usize) -> usize {
    match rows {
        0..=2 => 4,
        3..=12 => 8,
        _ => 16,
    }
}

const _: () = assert!(pairs::PANEL == amx::BLOCK);

/// Bytes of scratch that a piece needs: panels, two strips, and the results of one; or a strip and results of few rows.
pub(super) fn scratch_bytes(p: &Product<'_>) -> usize {
    let (tall, wide) = if along_rows(p) { (p.n, p.m) } else { (p.m, p.n) };
    let panels = panels_of_a_pass(words(p.k), wide);
    let few = tall.min(FEW_ROWS) * wide.min(FEW_COLUMNS).next_multiple_of(pairs::PANEL);
    let words = amx::BLOCK * ((panels + 2) * words(p.k) + panels * amx::BLOCK);
    WORD_BYTES * words.max(amx::BLOCK * self::words(p.k) + few)
}

/// Where blocks of words lie that need no copy.
#[derive(Clone, Copy)]
struct Blocks {
    /// Bytes from one to the next.
    stride: isize,
    /// The number of the first.
    first: usize,
}

impl Blocks {
    /// The blocks of an operand with those dimensions, if that is how it lies.
    fn of(across: &[StridedDim], depth: &[StridedDim], origin: usize) -> Option<Blocks> {
        let dim = |extent: usize, stride: usize| StridedDim {
            extent,
            stride: stride as isize,
        };
        let pairs = depth.len() == 2 && depth[1] == dim(PAIR, 1) && depth[0].stride == (PAIR * amx::BLOCK) as isize;
        let (stride, inner) = match across {
            [inner] => (0, inner),
            [outer, inner] => (outer.stride, inner),
            _ => return None,
        };
        (pairs && *inner == dim(amx::BLOCK, PAIR) && origin.is_multiple_of(amx::BLOCK)).then_some(Blocks {
            stride: stride * size_of::<u16>() as isize,
            first: origin / amx::BLOCK,
        })
    }
}

/// Whether an operand lies in blocks of words.
pub(super) fn is_in_blocks(across: &[StridedDim], depth: &[StridedDim]) -> bool {
    Blocks::of(across, depth, 0).is_some()
}

/// An operand: elements across the sum, and along it.
#[derive(Clone, Copy)]
struct Side {
    start: *const u16,
    across: isize,
    sum: isize,
}

impl Side {
    fn at(self, across: usize, sum: usize) -> *const u16 {
        let to = across as isize * self.across + sum as isize * self.sum;
        self.start.wrapping_offset(to)
    }
}

/// Computes a piece, in a session of tiles if it is [by tiles](by_tiles).
///
/// # Safety
/// As for [`super::run`], and a composite operand [lies in blocks](is_in_blocks).
pub(super) unsafe fn run(p: &Product<'_>, scratch: *mut u8, tell: &mut Tell<'_>) {
    let rows = along_rows(p);
    let (panel_of, strip_of, tall, wide) = match rows {
        true => (&p.lhs, &p.rhs, p.n, p.m),
        false => (&p.rhs, &p.lhs, p.m, p.n),
    };
    let (dst_tall, dst_wide) = match rows {
        true => (p.dst.column, p.dst.row),
        false => (p.dst.row, p.dst.column),
    };
    let side = |m: &super::super::Matrix<'_>, across: isize, sum: isize| Side {
        start: m.start.cast_const().cast(),
        across,
        sum,
    };
    let (panel, strip) = match rows {
        true => (
            side(panel_of, p.lhs.row, p.lhs.column),
            side(strip_of, p.rhs.column, p.rhs.row),
        ),
        false => (
            side(panel_of, p.rhs.column, p.rhs.row),
            side(strip_of, p.lhs.row, p.lhs.column),
        ),
    };
    let in_blocks = |w: Composite<'_>| match rows {
        true => Blocks::of(w.rows, w.columns, w.first_row),
        false => Blocks::of(w.columns, w.rows, w.first_column),
    };
    let blocks = panel_of.composite.and_then(in_blocks);
    let dst = p.dst.start.cast::<u16>();
    if p.k == 0 {
        for i in 0..tall as isize {
            for j in 0..wide as isize {
                // SAFETY: an element of the result.
                unsafe { *dst.wrapping_offset(i * dst_tall + j * dst_wide) = 0 };
            }
        }
        return;
    }
    let results = Results {
        start: dst,
        tall: dst_tall,
        wide: dst_wide,
    };
    let own = blocks.map(|b| (panel_of.start.cast_const(), b));
    // SAFETY: the caller's promise.
    unsafe {
        if by_tiles() {
            by_strips((panel, wide, own), (strip, tall), p.k, results, scratch, tell);
        } else if own.is_none() && panel.across == 1 && tall <= FEW_ROWS {
            few((panel, wide), (strip, tall), p.k, results, scratch);
        } else {
            by_panels((panel, wide, own), (strip, tall), p.k, results, scratch, tell);
        }
    }
}

/// Where results lie, with their strides.
#[derive(Clone, Copy)]
struct Results {
    start: *mut u16,
    /// From row to row of a strip.
    tall: isize,
    /// From column to column of a panel.
    wide: isize,
}

impl Results {
    fn at(self, row: usize, column: usize) -> *mut u16 {
        let to = row as isize * self.tall + column as isize * self.wide;
        self.start.wrapping_offset(to)
    }
}

/// The words of some rows, copied if they do not lie as such.
///
/// # Safety
/// The rows can be read, and there is room for their copy: [`amx::BLOCK`] of them at least.
unsafe fn strip_of(from: Side, rows: usize, k: usize, room: *mut u32) -> Words {
    let far = rows > NEAR_ROWS && from.across.unsigned_abs() * size_of::<u16>() >= FAR_ROWS;
    if from.sum == 1 && k.is_multiple_of(PAIR) && !far {
        return Words::InPlace(from);
    }
    // SAFETY: the caller's promise.
    unsafe {
        if from.across == 1 {
            pack_panels(from, rows, k, room);
            return Words::Lines(room);
        }
        pack_strip(from, rows, k, room.cast());
    }
    Words::Blocks(room, rows)
}

/// Rows of words.
#[derive(Clone, Copy)]
enum Words {
    /// Elements where they are.
    InPlace(Side),
    /// A copy, each block of the sum by itself, of so many rows.
    Blocks(*const u32, usize),
    /// A copy, for each word along the sum those of all rows together.
    Lines(*const u32),
}

impl Words {
    /// Those of a block of the sum.
    fn block(self, begin: usize, depth: usize) -> pairs::Strip {
        let word = WORD_BYTES as isize;
        match self {
            Words::InPlace(from) => pairs::Strip {
                start: from.at(0, PAIR * begin).cast(),
                row: from.across * size_of::<u16>() as isize,
                sum: word,
            },
            Words::Blocks(start, rows) => pairs::Strip {
                start: start.wrapping_add(rows * begin).cast(),
                row: depth as isize * word,
                sum: word,
            },
            Words::Lines(start) => pairs::Strip {
                start: start.wrapping_add(amx::BLOCK * begin).cast(),
                row: word,
                sum: amx::BLOCK as isize * word,
            },
        }
    }
}

/// Computes results of few rows from a matrix whose elements lie together across the sum.
///
/// # Safety
/// As for [`run`], by [`pairs`].
unsafe fn few((panel, wide): (Side, usize), (strip, tall): (Side, usize), k: usize, to: Results, scratch: *mut u8) {
    let length = words(k);
    let lines = lines_at_once(tall);
    let strips = scratch.cast::<u32>();
    let room = strips.wrapping_add(amx::BLOCK * length).cast::<f32>();
    // SAFETY: part of the operand, and scratch has room for a strip.
    let strip = unsafe { strip_of(strip, tall, k, strips) };
    for first in (0..wide).step_by(FEW_COLUMNS) {
        let columns = FEW_COLUMNS.min(wide - first);
        let row = columns.next_multiple_of(pairs::PANEL);
        for begin in (0..length).step_by(BLOCK_WORDS) {
            let depth = BLOCK_WORDS.min(length - begin);
            let block = strip.block(begin, depth);
            for word in (0..depth).step_by(lines) {
                let at = PAIR * (begin + word);
                let lines = pairs::Lines {
                    start: panel.at(first, at),
                    line: panel.sum,
                    depth: (PAIR * lines).min(k - at),
                    columns,
                };
                let sums = pairs::Sums {
                    start: room,
                    row,
                    rows: tall,
                    added: at > 0,
                };
                // SAFETY: the caller's promise; scratch has room for the sums.
                unsafe { pairs::few(block.from(0, word), lines, sums) };
            }
        }
        for i in 0..tall {
            for left in (0..columns).step_by(pairs::PANEL) {
                let sums = room.wrapping_add(i * row + left);
                let width = pairs::PANEL.min(columns - left);
                // SAFETY: sums of a panel, and those results.
                unsafe { round_interleaved(sums, to.at(i, first + left), to.wide, width) };
            }
        }
    }
}

/// Computes results by tiles, from panels that are copied, or lie in blocks from a place on.
///
/// # Safety
/// As for [`run`], in a session of tiles.
unsafe fn by_strips(
    (panel, wide, lying): (Side, usize, Option<(*const u8, Blocks)>),
    (strip, tall): (Side, usize),
    k: usize,
    to: Results,
    scratch: *mut u8,
    tell: &mut Tell<'_>,
) {
    let length = words(k);
    // One strip alone meets a panel once, and its results are few: then each panel is multiplied as soon as it is copied.
    let once = tall <= amx::BLOCK && lying.is_none();
    let most = if once { 1 } else { panels_of_a_pass(length, wide) };
    let panels = scratch.cast::<u32>();
    let room = panels.wrapping_add(most * amx::BLOCK * length);
    let sums = room.wrapping_add(2 * amx::BLOCK * length).cast::<u8>();
    let half = size_of::<u16>() as isize;
    for first in (0..wide).step_by(most * amx::BLOCK) {
        let across = (most * amx::BLOCK).min(wide - first);
        if lying.is_none() {
            let from = Side {
                start: panel.at(first, 0),
                ..panel
            };
            // SAFETY: part of the operand, and scratch has room for whole panels.
            unsafe { pack_panels(from, across, k, panels) };
        }
        let words_panel = |left: usize| match lying {
            Some((start, b)) => {
                let number = b.first + (first + left) / amx::BLOCK;
                start.wrapping_offset(number as isize * b.stride)
            }
            None => panels.wrapping_add(left * length).cast_const().cast(),
        };
        let strips = Strips {
            lying: |top: usize| {
                let lie = strip.sum == 1 && k.is_multiple_of(PAIR);
                lie.then_some(Rows {
                    start: strip.at(top, 0).cast_mut().cast(),
                    row: strip.across * half,
                })
            },
            copy: |top: usize, height: usize, to: *mut u8| {
                let start = strip.at(top, 0);
                // SAFETY: part of the operand, and scratch has room for a strip.
                unsafe { pack_strip(Side { start, ..strip }, height, k, to.cast()) };
            },
            room: room.cast(),
        };
        let pass = Pass {
            words: amx::Words::Halves,
            tall,
            across,
            length,
            panel_sum: (amx::BLOCK * WORD_BYTES) as isize,
            sums,
            results: strips::Results {
                start: to.at(0, first).cast(),
                tall: to.tall * half,
                wide: to.wide * half,
            },
            added: false,
        };
        let told = (across == wide && tell.is_asked()).then_some(|lines| tell.complete(lines, size_of::<u16>()));
        // SAFETY: the caller's promise; panels are in the operand or in scratch, which has room for sums.
        unsafe { pass.run(words_panel, &strips, once && first > 0, told) };
    }
}

/// Computes results by [`pairs`], from panels that are copied, or lie in blocks from a place on.
///
/// # Safety
/// As for [`run`].
unsafe fn by_panels(
    (panel, wide, lying): (Side, usize, Option<(*const u8, Blocks)>),
    (strip, tall): (Side, usize),
    k: usize,
    to: Results,
    scratch: *mut u8,
    tell: &mut Tell<'_>,
) {
    let length = words(k);
    // One strip alone meets a panel once, and its results are few: then each panel is multiplied as soon as it is copied.
    let once = tall <= amx::BLOCK && lying.is_none();
    let pass = if once { 1 } else { panels_of_a_pass(length, wide) };
    let panels = scratch.cast::<u32>();
    let strips = panels.wrapping_add(pass * amx::BLOCK * length);
    let sums = strips.wrapping_add(amx::BLOCK * length);
    let mut strip_words = None;
    for first in (0..wide).step_by(pass * amx::BLOCK) {
        let across = (pass * amx::BLOCK).min(wide - first);
        if lying.is_none() {
            let from = Side {
                start: panel.at(first, 0),
                ..panel
            };
            // SAFETY: part of the operand, and scratch has room for whole panels.
            unsafe { pack_panels(from, across, k, panels) };
        }
        for top in (0..tall).step_by(amx::BLOCK) {
            let height = amx::BLOCK.min(tall - top);
            let from = Side {
                start: strip.at(top, 0),
                ..strip
            };
            // SAFETY: part of the operand, and scratch has room for a strip.
            let words = strip_words
                .take()
                .unwrap_or_else(|| unsafe { strip_of(from, height, k, strips) });
            for begin in (0..length).step_by(BLOCK_WORDS) {
                let depth = BLOCK_WORDS.min(length - begin);
                let block = words.block(begin, depth);
                for left in (0..across).step_by(amx::BLOCK) {
                    let own = match lying {
                        Some((start, b)) => {
                            let number = b.first + (first + left) / amx::BLOCK;
                            start.wrapping_offset(number as isize * b.stride)
                        }
                        None => panels.wrapping_add(left * length).cast_const().cast(),
                    };
                    // A block after the other.
                    let sums = sums.wrapping_add(left * amx::BLOCK);
                    let width = amx::BLOCK.min(across - left);
                    let tile = Tile {
                        strip: block,
                        panel: own.wrapping_add(begin * amx::BLOCK * WORD_BYTES),
                        depth,
                        sums,
                        rows: height,
                        // Whole vectors, for scratch has room: what is beside the result is not looked at.
                        columns: width.next_multiple_of(amx::STEP),
                        added: begin > 0,
                    };
                    let complete = begin + depth == length;
                    let rounded = (complete && to.wide == 1).then(|| pairs::Rounded {
                        start: to.at(top, first + left),
                        row: to.tall,
                        columns: width,
                    });
                    // SAFETY: the caller's promise; the sums are scratch.
                    unsafe { tile.multiply(rounded) };
                    if !complete || rounded.is_some() {
                        continue;
                    }
                    for i in 0..height {
                        let from = sums.wrapping_add(i * amx::BLOCK).cast::<f32>();
                        // SAFETY: sums of a row, of which whole vectors are scratch, and those results.
                        unsafe { round(from, to.at(top + i, first + left), to.wide, width) };
                    }
                }
            }
            // Of one strip the next panels need it as it is.
            strip_words = once.then_some(words);
            if across == wide {
                tell.complete(top + height, size_of::<u16>());
            }
        }
    }
}

/// What a micro-kernel is given.
struct Tile {
    strip: pairs::Strip,
    panel: *const u8,
    depth: usize,
    sums: *mut u32,
    rows: usize,
    columns: usize,
    added: bool,
}

impl Tile {
    /// Computes it, rounded if there is a place for that.
    ///
    /// # Safety
    /// The operands can be read, and the sums and what is rounded written.
    unsafe fn multiply(self, rounded: Option<pairs::Rounded>) {
        let panel = pairs::Panel {
            start: self.panel,
            depth: self.depth,
            columns: self.columns,
        };
        let sums = pairs::Sums {
            start: self.sums.cast(),
            row: amx::BLOCK,
            rows: self.rows,
            added: self.added,
        };
        // SAFETY: the caller's promise.
        unsafe { pairs::multiply(self.strip, panel, sums, rounded) };
    }
}

/// Rounds sums to bf16.
///
/// # Safety
/// As many sums can be read as are whole vectors, and the results written; this machine has the instructions, as all with tiles.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub(super) unsafe fn round(from: *const f32, to: *mut u16, stride: isize, count: usize) {
    for begin in (0..count).step_by(amx::STEP) {
        let left = amx::STEP.min(count - begin);
        // SAFETY: the caller's promise.
        unsafe {
            let halves = _mm512_cvtneps_pbh(_mm512_loadu_ps(from.add(begin)));
            // SAFETY: 16 halves, whatever they are called.
            let halves = std::mem::transmute::<std::arch::x86_64::__m256bh, std::arch::x86_64::__m256i>(halves);
            if stride == 1 {
                let mask = ((1u32 << left) - 1) as __mmask16;
                _mm256_mask_storeu_epi16(to.add(begin).cast(), mask, halves);
                continue;
            }
            let mut apart = [0u16; amx::STEP];
            std::arch::x86_64::_mm256_storeu_si256(apart.as_mut_ptr().cast(), halves);
            for (i, half) in apart.iter().enumerate().take(left) {
                *to.wrapping_offset((begin + i) as isize * stride) = *half;
            }
        }
    }
}

/// As [`round`], of 32 sums of a row that [`pairs::few`] made.
///
/// # Safety
/// As there.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn round_interleaved(from: *const f32, to: *mut u16, stride: isize, count: usize) {
    let order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    // SAFETY: the caller's promise.
    unsafe {
        let halves = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(from.add(amx::STEP)), _mm512_loadu_ps(from));
        // SAFETY: 32 halves, whatever they are called.
        let halves = std::mem::transmute::<std::arch::x86_64::__m512bh, __m512i>(halves);
        let halves = _mm512_permutexvar_epi64(order, halves);
        if stride == 1 {
            let mask = ((1u64 << count) - 1) as __mmask32;
            _mm512_mask_storeu_epi16(to.cast(), mask, halves);
            return;
        }
        let mut apart = [0u16; pairs::PANEL];
        _mm512_storeu_si512(apart.as_mut_ptr().cast(), halves);
        for (i, half) in apart.iter().enumerate().take(count) {
            *to.wrapping_offset(i as isize * stride) = *half;
        }
    }
}

/// Copies panels of words, each with its words along the sum one after the other. Columns that the last one lacks, up to a whole tile, are zero.
///
/// # Safety
/// Every element of the source can be read, and whole panels written; this machine has the instructions.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn pack_panels(from: Side, across: usize, k: usize, to: *mut u32) {
    let length = words(k);
    if from.across == 1 {
        // SAFETY: the caller's promise.
        return unsafe { interleave(from, across, k, to) };
    }
    if from.sum == 1 {
        // SAFETY: the caller's promise.
        return unsafe { turn(from, across, k, to) };
    }
    for first in (0..across).step_by(amx::BLOCK) {
        let width = amx::BLOCK.min(across - first);
        for word in 0..length {
            let room = to.wrapping_add(first * length + word * amx::BLOCK);
            for column in 0..amx::BLOCK {
                let element = |sum: usize| match column < width && sum < k {
                    // SAFETY: an element of the source.
                    true => u32::from(unsafe { *from.at(first + column, sum) }),
                    false => 0,
                };
                let pair = element(PAIR * word) | element(PAIR * word + 1) << 16;
                // SAFETY: a word of the panel.
                unsafe { *room.add(column) = pair };
            }
        }
    }
}

/// As [`pack_panels`], of elements that lie together along the sum: so many words of so many columns at once are turned in registers. Columns need not
/// begin at a word.
///
/// # Safety
/// As there.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn turn(from: Side, across: usize, k: usize, to: *mut u32) {
    let length = words(k);
    for first in (0..across.next_multiple_of(amx::BLOCK)).step_by(amx::STEP) {
        let width = across.saturating_sub(first).min(amx::STEP);
        let (panel, column) = (first / amx::BLOCK * amx::BLOCK, first % amx::BLOCK);
        for begin in (0..length).step_by(amx::STEP) {
            let count = (PAIR * amx::STEP).min(k - PAIR * begin);
            let mask = u32::MAX >> (PAIR * amx::STEP - count);
            let mut columns = [_mm512_setzero_si512(); amx::STEP];
            for (i, words) in columns.iter_mut().enumerate() {
                if i < width {
                    // SAFETY: elements of the source; what the last word lacks is zero.
                    *words = unsafe { _mm512_maskz_loadu_epi16(mask, from.at(first + i, PAIR * begin).cast()) };
                }
            }
            let lines = turned(columns);
            let depth = amx::STEP.min(length - begin);
            let room = to.wrapping_add(panel * length + begin * amx::BLOCK + column);
            for (i, line) in lines.iter().enumerate() {
                if i < depth {
                    // SAFETY: half a line of a panel.
                    unsafe { _mm512_storeu_si512(room.wrapping_add(i * amx::BLOCK).cast(), *line) };
                }
            }
        }
    }
}

/// Copies columns of words as rows: `rows` words lie together at each of `depth` steps, `stride` words apart; row after row is written, that many
/// words apart.
///
/// # Safety
/// Every word can be read, and as many written; this machine has the instructions.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn turn_words(
    from: *const u32,
    stride: isize,
    (rows, depth): (usize, usize),
    (to, row): (*mut u32, usize),
) {
    let of = |count: usize| ((1u32 << count.min(amx::STEP)) - 1) as __mmask16;
    for first in (0..rows).step_by(amx::STEP) {
        for begin in (0..depth).step_by(amx::STEP) {
            let (width, length) = (amx::STEP.min(rows - first), amx::STEP.min(depth - begin));
            let mut lines = [_mm512_setzero_si512(); amx::STEP];
            for (i, line) in lines.iter_mut().enumerate().take(length) {
                let at = from.wrapping_add(first).wrapping_offset((begin + i) as isize * stride);
                // SAFETY: words of the source.
                *line = unsafe { _mm512_maskz_loadu_epi32(of(width), at.cast()) };
            }
            for (i, words) in turned(lines).iter().enumerate().take(width) {
                let at = to.wrapping_add((first + i) * row + begin);
                // SAFETY: words of a row.
                unsafe { _mm512_mask_storeu_epi32(at.cast(), of(length), *words) };
            }
        }
    }
}

/// The words with the same number of each vector together: pairs of vectors' words, fours, then those of the quarters.
#[target_feature(enable = "avx512f")]
#[inline]
fn turned(v: [__m512i; amx::STEP]) -> [__m512i; amx::STEP] {
    let mut twos = v;
    for i in (0..amx::STEP).step_by(2) {
        twos[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
        twos[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
    }
    // Word `4 q + j` of four vectors, in quarter `q` of vector `j` of the four.
    let mut fours = twos;
    for i in (0..amx::STEP).step_by(4) {
        for half in 0..2 {
            let (a, b) = (twos[i + half], twos[i + 2 + half]);
            fours[i + 2 * half] = _mm512_unpacklo_epi64(a, b);
            fours[i + 2 * half + 1] = _mm512_unpackhi_epi64(a, b);
        }
    }
    let mut lines = fours;
    for j in 0..4 {
        let [a, b, c, d] = [fours[j], fours[4 + j], fours[8 + j], fours[12 + j]];
        // Quarters 0 and 2, then 1 and 3, of two vectors each.
        let (even, odd) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
        let (even_behind, odd_behind) = (_mm512_shuffle_i32x4::<0x88>(c, d), _mm512_shuffle_i32x4::<0xdd>(c, d));
        lines[j] = _mm512_shuffle_i32x4::<0x88>(even, even_behind);
        lines[4 + j] = _mm512_shuffle_i32x4::<0x88>(odd, odd_behind);
        lines[8 + j] = _mm512_shuffle_i32x4::<0xdd>(even, even_behind);
        lines[12 + j] = _mm512_shuffle_i32x4::<0xdd>(odd, odd_behind);
    }
    lines
}

/// As [`pack_panels`], of elements that lie together across the sum.
///
/// # Safety
/// As there.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn interleave(from: Side, across: usize, k: usize, to: *mut u32) {
    let low = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    let high = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    let length = words(k);
    // Neighbours to read more of a line at once, but no more: panels are often so far apart that they share sets of the cache.
    for pair in (0..across).step_by(2 * amx::BLOCK) {
        for word in 0..length {
            let both = PAIR * word + 1 < k;
            for first in (pair..across).step_by(amx::BLOCK).take(2) {
                let width = amx::BLOCK.min(across - first);
                let room = to.wrapping_add(first * length + word * amx::BLOCK);
                let mask = ((1u64 << width) - 1) as __mmask32;
                // SAFETY: elements of the source, and a line of a panel.
                unsafe {
                    let a = _mm512_maskz_loadu_epi16(mask, from.at(first, PAIR * word).cast());
                    // Nothing is loaded where no page may be, which takes long even if all of it is masked.
                    let b = match both {
                        true => _mm512_maskz_loadu_epi16(mask, from.at(first, PAIR * word + 1).cast()),
                        false => _mm512_setzero_si512(),
                    };
                    let (even, odd) = (_mm512_unpacklo_epi16(a, b), _mm512_unpackhi_epi16(a, b));
                    _mm512_storeu_si512(room.cast(), _mm512_permutex2var_epi64(even, low, odd));
                    _mm512_storeu_si512(room.add(amx::STEP).cast(), _mm512_permutex2var_epi64(even, high, odd));
                }
            }
        }
    }
}

/// Copies rows of words together, those of each block of the sum by themselves. What the last word lacks is zero.
///
/// # Safety
/// Every element of the source can be read, and so many words of each row written.
unsafe fn pack_strip(from: Side, rows: usize, k: usize, to: *mut u16) {
    for begin in (0..k).step_by(PAIR * BLOCK_WORDS) {
        let count = (PAIR * BLOCK_WORDS).min(k - begin);
        let length = count.next_multiple_of(PAIR);
        for row in 0..rows {
            let to = to.wrapping_add(rows * begin + row * length);
            // SAFETY: the caller's promise.
            unsafe {
                match from.sum {
                    1 => std::ptr::copy_nonoverlapping(from.at(row, begin), to, count),
                    _ => (0..count).for_each(|d| *to.add(d) = *from.at(row, begin + d)),
                }
                if count < length {
                    *to.add(count) = 0;
                }
            }
        }
    }
}
