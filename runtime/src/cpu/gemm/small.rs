//! Small products, whatever the strides of their operands: tiles of a few rows by a few vectors in registers, with masks at the edges.
//!
//! What packing, cutting and micro-kernels of whole tiles take before the first multiply-add is most of what a product of some thousand
//! multiply-adds takes. Here one operand is read a vector at a time, where its elements lie beside each other across the sum, or else from a copy in
//! which they do, and the other one an element at a time, where it is. Lanes run along the columns of the result or along its rows, whichever
//! leaves fewer of them idle. Each element is one chain of multiply-adds in each block of the sum, and the blocks are added up in turn, as in
//! [`tiles`]: bits do not depend on what is chosen here.

use std::arch::x86_64::*;
use std::ops::Range;

use tlc_ir::DType;

use super::unroll::unroll;
use super::{Matrix, Product, tiles};

/// Multiply-adds of one matrix up to which a product is small: with more, micro-kernels and packed panels are faster.
const MOST_WORK: usize = 8 << 10;
/// As [`MOST_WORK`], of a result that is no whole vectors across: micro-kernels take longer for what is left over (17 by 17 results of sums of 40 take half
/// of the time here).
const MOST_WORK_OF_PARTS: usize = 32 << 10;
/// Elements of a copied operand, at most: they stay in the first-level cache.
const MOST_COPIED: usize = 6 << 10;
/// Rows of a tile.
const ROWS: usize = 8;
/// Vectors of a row of a tile.
const VECTORS: usize = 2;
/// Cycles that a multiply-add takes to be there for the next one: shorter rounds of a tile wait.
const LATENCY: usize = 4;
/// What it takes to turn an element of a vector into place, as a share of a multiply-add of a vector.
const TURNED: usize = 4;
/// As [`TURNED`], to copy an element from where it lies apart.
const APART: usize = 16;

/// How a small product is computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Small {
    /// Whether lanes run along the rows of the result.
    turned: bool,
    /// Elements of a copy from one step of the sum to the next; 0 where nothing is copied.
    pitch: usize,
}

/// A product as it is computed, or the first of a stack: lanes run along the elements of a line, of which there is one for each step of the sum.
struct Part<T> {
    lines: *const T,
    /// Along the sum, and across.
    line_strides: (isize, isize),
    rows: *const T,
    /// From row to row, and along the sum.
    row_strides: (isize, isize),
    results: *mut T,
    /// From row to row, and from lane to lane.
    result_strides: (isize, isize),
    row_count: usize,
    columns: usize,
    k: usize,
    block: usize,
    /// As in [`Small`].
    pitch: usize,
}

/// How a product is computed here, if it is small and this machine has the instructions.
pub(super) fn small(p: &Product<'_>) -> Option<Small> {
    let work = p.m.saturating_mul(p.n).saturating_mul(p.k);
    let plain = p.lhs.composite.is_none() && p.rhs.composite.is_none();
    let float = p.dtype.is_float() && p.dtype.bytes() >= 4;
    if work == 0 || work > MOST_WORK_OF_PARTS || !plain || !float {
        return None;
    }
    let lanes = match (std::is_x86_feature_detected!("avx512f"), tiles::has_multiply_adds()) {
        (true, _) => 64 / p.dtype.bytes(),
        (false, true) if std::is_x86_feature_detected!("avx2") => 32 / p.dtype.bytes(),
        (false, _) => return None,
    };
    // What either way takes, in steps of a vector.
    let cost = |rows: usize, columns: usize, across: isize, along: isize, stored: isize| {
        let vectors = columns.div_ceil(lanes);
        let tiles = rows.div_ceil(ROWS) * vectors.div_ceil(VECTORS);
        let multiplied = (rows * vectors).max(tiles * LATENCY) * p.k;
        let copied = match (across, along) {
            (1, _) => 0,
            (_, 1) => vectors * p.k * TURNED,
            _ => columns * p.k * APART / lanes,
        };
        let scattered = if stored == 1 { 0 } else { rows * columns };
        multiplied + copied + scattered
    };
    let straight = cost(p.m, p.n, p.rhs.column, p.rhs.row, p.dst.column);
    let turned = cost(p.n, p.m, p.lhs.row, p.lhs.column, p.dst.row);
    let turned = turned < straight;
    let (columns, across) = if turned { (p.m, p.lhs.row) } else { (p.n, p.rhs.column) };
    let pitch = if across == 1 {
        0
    } else {
        columns.next_multiple_of(lanes)
    };
    let most = match columns.is_multiple_of(lanes) {
        true => MOST_WORK,
        false => MOST_WORK_OF_PARTS,
    };
    (work <= most && pitch * p.k <= MOST_COPIED).then_some(Small { turned, pitch })
}

/// Scratch that it needs.
pub(super) fn scratch_bytes(p: &Product<'_>, how: Small) -> usize {
    how.pitch * p.k * p.dtype.bytes()
}

impl<T> Part<T> {
    fn of(p: &Product<'_>, how: Small) -> Part<T> {
        let (lines, rows) = if how.turned { (&p.lhs, &p.rhs) } else { (&p.rhs, &p.lhs) };
        let (line_strides, row_strides, result_strides, counts) = match how.turned {
            false => (
                (p.rhs.row, p.rhs.column),
                (p.lhs.row, p.lhs.column),
                (p.dst.row, p.dst.column),
                (p.m, p.n),
            ),
            true => (
                (p.lhs.column, p.lhs.row),
                (p.rhs.column, p.rhs.row),
                (p.dst.column, p.dst.row),
                (p.n, p.m),
            ),
        };
        Part {
            lines: lines.start.cast_const().cast(),
            line_strides,
            rows: rows.start.cast_const().cast(),
            row_strides,
            results: p.dst.start.cast(),
            result_strides,
            row_count: counts.0,
            columns: counts.1,
            k: p.k,
            block: tiles::block_elements(p),
            pitch: how.pitch,
        }
    }
}

/// Where the matrices of a stack begin.
struct Starts<'p> {
    extents: &'p [usize],
    /// Of lines, rows and results.
    strides: [&'p [isize]; 3],
}

impl<'p> Starts<'p> {
    fn of(p: &Product<'p>, how: Small) -> Starts<'p> {
        let (lines, rows) = if how.turned { (&p.lhs, &p.rhs) } else { (&p.rhs, &p.lhs) };
        let strides = |m: &Matrix<'p>| m.batch;
        Starts {
            extents: p.batch,
            strides: [strides(lines), strides(rows), strides(&p.dst)],
        }
    }

    /// Elements from the first matrix of each to those of an entry.
    fn at(&self, entry: usize) -> [isize; 3] {
        let mut sums = [0; 3];
        if let [_] = self.extents {
            for (sum, strides) in sums.iter_mut().zip(self.strides) {
                *sum = entry as isize * strides[0];
            }
            return sums;
        }
        let mut rest = entry;
        for (axis, &extent) in self.extents.iter().enumerate().rev() {
            for (sum, strides) in sums.iter_mut().zip(self.strides) {
                *sum += (rest % extent) as isize * strides[axis];
            }
            rest /= extent;
        }
        sums
    }
}

/// Computes entries of a stack of products as [`small`] said; `p` is the stack, or one product.
///
/// # Safety
/// As for [`super::multiply`], of these entries, with scratch for one worker.
pub(super) unsafe fn run(p: &Product<'_>, how: Small, entries: Range<usize>, scratch: *mut u8) {
    let starts = Starts::of(p, how);
    // SAFETY: the caller's promise, and the instructions were looked for.
    unsafe {
        match (p.dtype, std::is_x86_feature_detected!("avx512f")) {
            (DType::F64, true) => avx512_f64(&Part::of(p, how), &starts, entries, scratch.cast()),
            (DType::F64, false) => fma_f64(&Part::of(p, how), &starts, entries, scratch.cast()),
            (_, true) => avx512_f32(&Part::of(p, how), &starts, entries, scratch.cast()),
            (_, false) => fma_f32(&Part::of(p, how), &starts, entries, scratch.cast()),
        }
    }
}

/// Steps of 128 bits of f32, and of f64.
const FOUR: usize = 4;
const TWO: usize = 2;

/// Vectors that are four steps of the sum, each of an element of every line: pieces of 128 bits come from memory to where they belong, and
/// only within them elements change places. (That is for short sums: of 16 steps and more two rows take 1.2 times as long so on a Zen 4 as by vectors
/// that are loaded whole and turned, as [`lines`](super::lines) does.)
///
/// # Safety
/// Four elements of each line can be read from `at` on.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn turn_512_f32(lines: &[*const f32; 16], at: usize) -> [__m512; 4] {
    // The steps of four lines a vector.
    let mut four = [_mm512_setzero_ps(); FOUR];
    unroll!(i < FOUR {
        // SAFETY: the caller's promise.
        unsafe {
            let v = _mm512_castps128_ps512(_mm_loadu_ps(lines[i].add(at)));
            let v = _mm512_insertf32x4::<1>(v, _mm_loadu_ps(lines[i + 4].add(at)));
            let v = _mm512_insertf32x4::<2>(v, _mm_loadu_ps(lines[i + 8].add(at)));
            four[i] = _mm512_insertf32x4::<3>(v, _mm_loadu_ps(lines[i + 12].add(at)));
        }
    });
    let [a, b, c, d] = four;
    let (ab, cd) = (_mm512_unpacklo_ps(a, b), _mm512_unpacklo_ps(c, d));
    let (ab, cd) = (_mm512_castps_pd(ab), _mm512_castps_pd(cd));
    let (first, second) = (_mm512_unpacklo_pd(ab, cd), _mm512_unpackhi_pd(ab, cd));
    let (ab, cd) = (_mm512_unpackhi_ps(a, b), _mm512_unpackhi_ps(c, d));
    let (ab, cd) = (_mm512_castps_pd(ab), _mm512_castps_pd(cd));
    let (third, fourth) = (_mm512_unpacklo_pd(ab, cd), _mm512_unpackhi_pd(ab, cd));
    [
        _mm512_castpd_ps(first),
        _mm512_castpd_ps(second),
        _mm512_castpd_ps(third),
        _mm512_castpd_ps(fourth),
    ]
}

/// As [`turn_512_f32`], of two steps.
///
/// # Safety
/// As there, of two elements.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn turn_512_f64(lines: &[*const f64; 8], at: usize) -> [__m512d; 2] {
    let mut two = [_mm512_setzero_ps(); TWO];
    unroll!(i < TWO {
        // SAFETY: the caller's promise; 16 bytes, whatever they are called.
        unsafe {
            let v = _mm512_castps128_ps512(_mm_loadu_ps(lines[i].add(at).cast()));
            let v = _mm512_insertf32x4::<1>(v, _mm_loadu_ps(lines[i + 2].add(at).cast()));
            let v = _mm512_insertf32x4::<2>(v, _mm_loadu_ps(lines[i + 4].add(at).cast()));
            two[i] = _mm512_insertf32x4::<3>(v, _mm_loadu_ps(lines[i + 6].add(at).cast()));
        }
    });
    let (a, b) = (_mm512_castps_pd(two[0]), _mm512_castps_pd(two[1]));
    [_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b)]
}

/// As [`turn_512_f32`].
///
/// # Safety
/// As there.
#[target_feature(enable = "avx")]
#[inline]
unsafe fn turn_256_f32(lines: &[*const f32; 8], at: usize) -> [__m256; 4] {
    let mut four = [_mm256_setzero_ps(); FOUR];
    unroll!(i < FOUR {
        // SAFETY: the caller's promise.
        unsafe {
            let v = _mm256_castps128_ps256(_mm_loadu_ps(lines[i].add(at)));
            four[i] = _mm256_insertf128_ps::<1>(v, _mm_loadu_ps(lines[i + 4].add(at)));
        }
    });
    let [a, b, c, d] = four;
    let (ab, cd) = (_mm256_unpacklo_ps(a, b), _mm256_unpacklo_ps(c, d));
    let (ab, cd) = (_mm256_castps_pd(ab), _mm256_castps_pd(cd));
    let (first, second) = (_mm256_unpacklo_pd(ab, cd), _mm256_unpackhi_pd(ab, cd));
    let (ab, cd) = (_mm256_unpackhi_ps(a, b), _mm256_unpackhi_ps(c, d));
    let (ab, cd) = (_mm256_castps_pd(ab), _mm256_castps_pd(cd));
    let (third, fourth) = (_mm256_unpacklo_pd(ab, cd), _mm256_unpackhi_pd(ab, cd));
    [
        _mm256_castpd_ps(first),
        _mm256_castpd_ps(second),
        _mm256_castpd_ps(third),
        _mm256_castpd_ps(fourth),
    ]
}

/// As [`turn_512_f64`].
///
/// # Safety
/// As there.
#[target_feature(enable = "avx")]
#[inline]
unsafe fn turn_256_f64(lines: &[*const f64; 4], at: usize) -> [__m256d; 2] {
    let mut two = [_mm256_setzero_pd(); TWO];
    unroll!(i < TWO {
        // SAFETY: the caller's promise.
        unsafe {
            let v = _mm256_castpd128_pd256(_mm_loadu_pd(lines[i].add(at)));
            two[i] = _mm256_insertf128_pd::<1>(v, _mm_loadu_pd(lines[i + 2].add(at)));
        }
    });
    [_mm256_unpacklo_pd(two[0], two[1]), _mm256_unpackhi_pd(two[0], two[1])]
}

/// A mask of the first lanes.
#[target_feature(enable = "avx512f")]
#[inline]
fn first_512_f32(count: usize) -> __mmask16 {
    if count >= 16 { u16::MAX } else { !(u16::MAX << count) }
}

/// As [`first_512_f32`].
#[target_feature(enable = "avx512f")]
#[inline]
fn first_512_f64(count: usize) -> __mmask8 {
    if count >= 8 { u8::MAX } else { !(u8::MAX << count) }
}

/// As [`first_512_f32`].
#[target_feature(enable = "avx2")]
#[inline]
fn first_256_f32(count: usize) -> __m256i {
    let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    _mm256_cmpgt_epi32(_mm256_set1_epi32(count.min(8) as i32), lanes)
}

/// As [`first_512_f32`].
#[target_feature(enable = "avx2")]
#[inline]
fn first_256_f64(count: usize) -> __m256i {
    let lanes = _mm256_setr_epi64x(0, 1, 2, 3);
    _mm256_cmpgt_epi64(_mm256_set1_epi64x(count.min(4) as i64), lanes)
}

/// The elements under a mask; others are zero and not read.
///
/// # Safety
/// The elements under the mask can be read.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn load_512_f32(from: *const f32, mask: __mmask16) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe { _mm512_maskz_loadu_ps(mask, from) }
}

/// As [`load_512_f32`].
///
/// # Safety
/// As there.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn load_512_f64(from: *const f64, mask: __mmask8) -> __m512d {
    // SAFETY: the caller's promise.
    unsafe { _mm512_maskz_loadu_pd(mask, from) }
}

macro_rules! small {
    (
        $name:ident, $features:literal, $element:ty, $vector:ty, $lanes:literal, piece: $piece:ident, rows: $rows:literal,
        $zero:ident, $set:ident, $first:ident, $load:ident, $store:ident, $put:ident, $fma:ident, $add:ident, $turn:ident
    ) => {
        /// Computes entries of a stack, with scratch for the copy.
        ///
        /// # Safety
        /// The machine has the features, lines and rows can be read and results written, and scratch has room for the copy.
        #[target_feature(enable = $features)]
        unsafe fn $name(p: &Part<$element>, starts: &Starts<'_>, entries: Range<usize>, copy: *mut $element) {
            const LANES: usize = $lanes;
            const PIECE: usize = $piece;
            const MOST: usize = $rows;

            /// Writes the first `lanes` of a vector, `step` elements apart, or adds them to what is there.
            ///
            /// # Safety
            /// These elements can be read and written.
            #[target_feature(enable = $features)]
            #[inline]
            unsafe fn put(to: *mut $element, step: isize, lanes: usize, sums: $vector, added: bool) {
                // SAFETY: the caller's promise.
                unsafe {
                    if step == 1 && lanes == LANES {
                        return $put(to, if added { $add($load(to, $first(LANES)), sums) } else { sums });
                    }
                    if step == 1 {
                        let mask = $first(lanes);
                        return $store(to, mask, if added { $add($load(to, mask), sums) } else { sums });
                    }
                    let mut some = [0 as $element; LANES];
                    $put(some.as_mut_ptr(), sums);
                    for lane in 0..lanes {
                        let to = to.wrapping_offset(lane as isize * step);
                        *to = if added { *to + some[lane] } else { some[lane] };
                    }
                }
            }

            /// `R` rows by `V` vectors, of which the last has the lanes of a mask.
            ///
            /// # Safety
            /// As for the function around it, of these rows and vectors.
            #[target_feature(enable = $features)]
            #[inline(never)]
            unsafe fn tile<const R: usize, const V: usize>(
                p: &Part<$element>,
                (lines, line_stride): (*const $element, isize),
                first: *const $element,
                (results, count): (*mut $element, usize),
            ) {
                let (row, along) = p.row_strides;
                let (row_step, lane_step) = p.result_strides;
                let mut masks = [$first(LANES); V];
                masks[V - 1] = $first(count - (V - 1) * LANES);
                let mut rows = [std::ptr::null::<$element>(); R];
                for r in 0..R {
                    rows[r] = first.wrapping_offset(r as isize * row);
                }
                let mut lines = lines;
                let mut at = 0isize;
                // SAFETY: the caller's promise; what masks leave out is not touched.
                unsafe {
                    for from in (0..p.k).step_by(p.block) {
                        let mut sums = [[$zero(); V]; R];
                        for _ in from..p.k.min(from + p.block) {
                            let mut line = [$zero(); V];
                            unroll!(v < V { line[v] = $load(lines.wrapping_add(v * LANES), masks[v]); });
                            unroll!(r < R {
                                let x = $set(*rows[r].wrapping_offset(at));
                                unroll!(v < V { sums[r][v] = $fma(line[v], x, sums[r][v]); });
                            });
                            at += along;
                            lines = lines.wrapping_offset(line_stride);
                        }
                        unroll!(r < R {
                            let to = results.wrapping_offset(r as isize * row_step);
                            unroll!(v < V {
                                let to = to.wrapping_offset((v * LANES) as isize * lane_step);
                                let lanes = LANES.min(count - v * LANES);
                                put(to, lane_step, lanes, sums[r][v], from > 0);
                            });
                        });
                    }
                }
            }

            /// Copies the elements across of a part so that they lie beside each other.
            ///
            /// # Safety
            /// As for the function around it.
            #[target_feature(enable = $features)]
            unsafe fn copied(p: &Part<$element>, lines: *const $element, copy: *mut $element) {
                let (along, across) = p.line_strides;
                for left in (0..p.columns).step_by(LANES) {
                    let taken = LANES.min(p.columns - left);
                    let mut at = 0;
                    // SAFETY: the caller's promise; lines have `k` elements, and the copy has whole vectors.
                    unsafe {
                        if along == 1 && p.k >= PIECE {
                            // Lanes beyond the last column have that one once more.
                            let mut of_tile = [std::ptr::null(); LANES];
                            for (i, line) in of_tile.iter_mut().enumerate() {
                                *line = lines.wrapping_offset((left + i.min(taken - 1)) as isize * across);
                            }
                            while at < p.k {
                                // The last of them overlap those before.
                                let from = at.min(p.k - PIECE);
                                let steps = $turn(&of_tile, from);
                                unroll!(i < PIECE { $put(copy.add((from + i) * p.pitch + left), steps[i]); });
                                at = from + PIECE;
                            }
                        }
                        for at in at..p.k {
                            let from = lines.wrapping_offset(at as isize * along + left as isize * across);
                            for i in 0..taken {
                                *copy.add(at * p.pitch + left + i) = *from.wrapping_offset(i as isize * across);
                            }
                        }
                    }
                }
            }

            // Parts of nearly equal size.
            let most = match p.row_count <= MOST {
                true => p.row_count,
                false => p.row_count.div_ceil(p.row_count.div_ceil(MOST)),
            };
            for entry in entries {
                let [lines, rows, results] = starts.at(entry);
                let (mut lines, mut line_stride) = (p.lines.wrapping_offset(lines), p.line_strides.0);
                let (rows, results) = (p.rows.wrapping_offset(rows), p.results.wrapping_offset(results));
                if p.pitch > 0 {
                    // SAFETY: the caller's promise.
                    unsafe { copied(p, lines, copy) };
                    (lines, line_stride) = (copy.cast_const(), p.pitch as isize);
                }
                for left in (0..p.columns).step_by(VECTORS * LANES) {
                    let count = (VECTORS * LANES).min(p.columns - left);
                    let l = (lines.wrapping_add(left), line_stride);
                    let results = results.wrapping_offset(left as isize * p.result_strides.1);
                    for first in (0..p.row_count).step_by(most.max(1)) {
                        let here = most.min(p.row_count - first);
                        let x = rows.wrapping_offset(first as isize * p.row_strides.0);
                        let y = (results.wrapping_offset(first as isize * p.result_strides.0), count);
                        // SAFETY: the caller's promise.
                        unsafe {
                            match (here, count > LANES) {
                                (1, false) => tile::<1, 1>(p, l, x, y),
                                (2, false) => tile::<2, 1>(p, l, x, y),
                                (3, false) => tile::<3, 1>(p, l, x, y),
                                (4, false) => tile::<4, 1>(p, l, x, y),
                                (5, false) => tile::<{ least(5, MOST) }, 1>(p, l, x, y),
                                (6, false) => tile::<{ least(6, MOST) }, 1>(p, l, x, y),
                                (7, false) => tile::<{ least(7, MOST) }, 1>(p, l, x, y),
                                (_, false) => tile::<MOST, 1>(p, l, x, y),
                                (1, true) => tile::<1, 2>(p, l, x, y),
                                (2, true) => tile::<2, 2>(p, l, x, y),
                                (3, true) => tile::<3, 2>(p, l, x, y),
                                (4, true) => tile::<4, 2>(p, l, x, y),
                                (5, true) => tile::<{ least(5, MOST) }, 2>(p, l, x, y),
                                (6, true) => tile::<{ least(6, MOST) }, 2>(p, l, x, y),
                                (7, true) => tile::<{ least(7, MOST) }, 2>(p, l, x, y),
                                (_, true) => tile::<MOST, 2>(p, l, x, y),
                            }
                        }
                    }
                }
            }
        }
    };
}

/// The smaller of two numbers, as constants.
const fn least(a: usize, b: usize) -> usize {
    if a < b { a } else { b }
}

small!(
    avx512_f32, "avx512f", f32, __m512, 16, piece: FOUR, rows: 8,
    _mm512_setzero_ps, _mm512_set1_ps, first_512_f32, load_512_f32, _mm512_mask_storeu_ps, _mm512_storeu_ps, _mm512_fmadd_ps, _mm512_add_ps, turn_512_f32
);
small!(
    avx512_f64, "avx512f", f64, __m512d, 8, piece: TWO, rows: 8,
    _mm512_setzero_pd, _mm512_set1_pd, first_512_f64, load_512_f64, _mm512_mask_storeu_pd, _mm512_storeu_pd, _mm512_fmadd_pd, _mm512_add_pd, turn_512_f64
);
small!(
    fma_f32, "avx2,fma", f32, __m256, 8, piece: FOUR, rows: 4,
    _mm256_setzero_ps, _mm256_set1_ps, first_256_f32, _mm256_maskload_ps, _mm256_maskstore_ps, _mm256_storeu_ps, _mm256_fmadd_ps, _mm256_add_ps, turn_256_f32
);
small!(
    fma_f64, "avx2,fma", f64, __m256d, 4, piece: TWO, rows: 4,
    _mm256_setzero_pd, _mm256_set1_pd, first_256_f64, _mm256_maskload_pd, _mm256_maskstore_pd, _mm256_storeu_pd, _mm256_fmadd_pd, _mm256_add_pd, turn_256_f64
);

#[cfg(test)]
mod tests {
    use super::*;

    /// What every instruction set of this machine computes, whatever the strides: a chain of multiply-adds in each block, the blocks added up in turn,
    /// for each entry of a stack, and no other element is written.
    #[test]
    fn every_instruction_set_sums_chains_in_blocks() {
        macro_rules! check {
            ($f:ident, $element:ty, $lanes:literal, $feature:tt) => {
                if std::is_x86_feature_detected!($feature) {
                    for (rows, columns) in [
                        (1usize, 1usize),
                        (2, 2),
                        (3, 17),
                        (5, 33),
                        (8, 16),
                        (9, 7),
                        (17, 40),
                        (31, 3),
                    ] {
                        for (k, block) in [
                            (1usize, 1usize),
                            (2, 2),
                            (3, 3),
                            (5, 5),
                            (16, 16),
                            (19, 19),
                            (40, 14),
                        ] {
                            for layout in 0..12usize {
                                let value = |i: usize| (i * 37 % 101) as $element / 97.0 - 0.5;
                                // Every other element is somebody else's in the last layouts.
                                let apart = if layout >= 8 { 2 } else { 1 };
                                let entry = [rows * k * apart, k * columns * apart, rows * columns * apart];
                                let x: Vec<$element> = (0..2 * entry[0]).map(value).collect();
                                let y: Vec<$element> = (0..2 * entry[1]).map(|i| value(i + 7)).collect();
                                let mut z = vec![9 as $element; 2 * entry[2]];
                                let strides = |turned: bool, of: usize, by: usize| {
                                    let (a, b) = if turned { (1, of) } else { (by, 1) };
                                    ((a * apart) as isize, (b * apart) as isize)
                                };
                                let row_strides = strides(layout & 1 != 0, rows, k);
                                let line_strides = strides(layout & 2 != 0, k, columns);
                                let result_strides = strides(layout & 4 != 0, rows, columns);
                                let copied = line_strides.1 != 1;
                                let pitch = if copied {
                                    columns.next_multiple_of($lanes)
                                } else {
                                    0
                                };
                                let mut copy = vec![<$element>::NAN; pitch * k];
                                let part = Part {
                                    lines: y.as_ptr(),
                                    line_strides,
                                    rows: x.as_ptr(),
                                    row_strides,
                                    results: z.as_mut_ptr(),
                                    result_strides,
                                    row_count: rows,
                                    columns,
                                    k,
                                    block,
                                    pitch,
                                };
                                let steps = entry.map(|e| [e as isize]);
                                let starts = Starts {
                                    extents: &[2],
                                    strides: [&steps[1], &steps[0], &steps[2]],
                                };
                                // SAFETY: the vectors have so many elements, and the feature was looked for.
                                unsafe { $f(&part, &starts, 0..2, copy.as_mut_ptr()) };
                                let mut written = 0;
                                for (e, i, j) in (0..2 * rows * columns)
                                    .map(|at| (at / (rows * columns), at / columns % rows, at % columns))
                                {
                                    let place = |first: usize, (a, b): (isize, isize), i: usize, j: usize| {
                                        first + i * a as usize + j * b as usize
                                    };
                                    let mut expected: Option<$element> = None;
                                    for from in (0..k).step_by(block) {
                                        let mut sum = 0 as $element;
                                        for s in from..k.min(from + block) {
                                            let a = x[place(e * entry[0], row_strides, i, s)];
                                            sum = a.mul_add(y[place(e * entry[1], line_strides, s, j)], sum);
                                        }
                                        expected = Some(expected.map_or(sum, |e| e + sum));
                                    }
                                    let at = place(e * entry[2], result_strides, i, j);
                                    let case = (rows, columns, k, block, layout);
                                    assert_eq!(Some(z[at]), expected, "{} {case:?}", stringify!($f));
                                    z[at] = 9 as $element;
                                    written += 1;
                                }
                                assert_eq!(written, 2 * rows * columns);
                                assert!(z.iter().all(|&v| v == 9 as $element), "nothing else is written");
                            }
                        }
                    }
                }
            };
        }
        check!(avx512_f32, f32, 16, "avx512f");
        check!(avx512_f64, f64, 8, "avx512f");
        check!(fma_f32, f32, 8, "avx2");
        check!(fma_f64, f64, 4, "avx2");
    }
}
