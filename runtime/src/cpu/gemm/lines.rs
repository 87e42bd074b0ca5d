//! Few rows times a matrix, all with the summed axis together in memory: lines of the matrix are turned in registers.
//!
//! As many lines as a vector has lanes are loaded a vector each, and turned, so that each vector holds one step of the sum for all of these
//! lines; it is multiplied with what each of the few rows has at that step. So the matrix is read once, where it lies, and each result is
//! summed as micro-kernels do, to the bit: one chain of multiply-adds for each block of the sum, and the blocks added up in turn.
//!
//! Below, *vectors* are the few rows, or the few columns of the mirrored case, and *lines* those of the matrix. The elements of the vectors are
//! copied first, those of a step beside each other: rows a multiple of a page apart would share sets of the first-level cache with the lines.

use std::arch::x86_64::*;

use tlc_ir::DType;

use super::dots::{Operands, Shape};
use super::{Product, Unit, tiles};

/// The most vectors: with more, micro-kernels make up for what packing takes.
pub(super) const FEW: usize = 16;
/// Lines of the smallest part of a result: what the widest instruction set takes at once.
const LINES: usize = 16;
/// Bytes of the copy of the vectors, about, that is made at once.
const COPIED_BYTES: usize = 64 << 10;
/// Lines that are multiples of so many bytes apart share sets of the first-level cache.
const CROWDED_BYTES: usize = 2048;
/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// The unit of cuts: vectors stay together, so that nobody else reads the lines.
pub(super) fn unit(p: &Product<'_>, shape: Shape) -> Unit {
    let (rows, columns) = match shape {
        Shape::LinesByVectors => (LINES, p.n.max(1)),
        Shape::VectorsByLines => (p.m.max(1), LINES),
    };
    Unit {
        rows,
        columns,
        partial: true,
    }
}

/// Blocks of the sum of which the vectors are copied at once.
fn blocks_at_once(p: &Product<'_>, vectors: usize, block: usize) -> usize {
    let blocks = p.k.div_ceil(block);
    (COPIED_BYTES / (vectors.max(1) * block * p.dtype.bytes())).clamp(1, blocks.max(1))
}

/// Scratch that a piece needs, and any part of it.
pub(super) fn scratch_bytes(p: &Product<'_>, shape: Shape) -> usize {
    let block = tiles::block_elements(p);
    let step = shape.vectors(p) * p.dtype.bytes();
    (p.k.div_ceil(block) * block * step).min(COPIED_BYTES.max(block * step))
}

/// Computes a piece of a product of a shape.
///
/// # Safety
/// As for [`super::multiply`], with scratch for one worker; the product has that shape, or is a piece of one that has.
pub(super) unsafe fn run(p: &Product<'_>, shape: Shape, scratch: *mut u8) {
    let block = tiles::block_elements(p);
    let together = blocks_at_once(p, shape.vectors(p), block);
    macro_rules! call {
        ($f:ident) => {
            $f(Operands::of(p, shape), (p.k, block, together), scratch.cast())
        };
    }
    // SAFETY: the caller's promise, and the instructions were looked for.
    unsafe {
        match (p.dtype, std::is_x86_feature_detected!("avx512f")) {
            (DType::F64, true) => call!(avx512_f64),
            (DType::F64, false) => call!(fma_f64),
            (_, true) => call!(avx512_f32),
            (_, false) => call!(fma_f32),
        }
    }
}

/// Vectors that are steps of the sum, of vectors that are lines.
#[target_feature(enable = "avx512f")]
#[inline]
fn turn_512_f32(lines: [__m512; 16]) -> [__m512; 16] {
    let mut quarters = lines;
    for i in 0..4 {
        // Four lines by four steps in each quarter of a vector.
        let [a, b, c, d] = [lines[4 * i], lines[4 * i + 1], lines[4 * i + 2], lines[4 * i + 3]];
        let (ab, cd) = (_mm512_unpacklo_ps(a, b), _mm512_unpacklo_ps(c, d));
        let (ab, cd) = (_mm512_castps_pd(ab), _mm512_castps_pd(cd));
        quarters[4 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd));
        quarters[4 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd));
        let (ab, cd) = (_mm512_unpackhi_ps(a, b), _mm512_unpackhi_ps(c, d));
        let (ab, cd) = (_mm512_castps_pd(ab), _mm512_castps_pd(cd));
        quarters[4 * i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd));
        quarters[4 * i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd));
    }
    let mut steps = lines;
    for i in 0..4 {
        let [a, b, c, d] = [quarters[i], quarters[4 + i], quarters[8 + i], quarters[12 + i]];
        let (low, high) = (_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0x44>(c, d));
        steps[i] = _mm512_shuffle_f32x4::<0x88>(low, high);
        steps[4 + i] = _mm512_shuffle_f32x4::<0xdd>(low, high);
        let (low, high) = (_mm512_shuffle_f32x4::<0xee>(a, b), _mm512_shuffle_f32x4::<0xee>(c, d));
        steps[8 + i] = _mm512_shuffle_f32x4::<0x88>(low, high);
        steps[12 + i] = _mm512_shuffle_f32x4::<0xdd>(low, high);
    }
    steps
}

/// As [`turn_512_f32`].
#[target_feature(enable = "avx512f")]
#[inline]
fn turn_512_f64(lines: [__m512d; 8]) -> [__m512d; 8] {
    let mut quarters = lines;
    for i in 0..4 {
        quarters[2 * i] = _mm512_unpacklo_pd(lines[2 * i], lines[2 * i + 1]);
        quarters[2 * i + 1] = _mm512_unpackhi_pd(lines[2 * i], lines[2 * i + 1]);
    }
    let mut steps = lines;
    for i in 0..2 {
        let [a, b, c, d] = [quarters[i], quarters[2 + i], quarters[4 + i], quarters[6 + i]];
        let (low, high) = (_mm512_shuffle_f64x2::<0x44>(a, b), _mm512_shuffle_f64x2::<0x44>(c, d));
        steps[i] = _mm512_shuffle_f64x2::<0x88>(low, high);
        steps[2 + i] = _mm512_shuffle_f64x2::<0xdd>(low, high);
        let (low, high) = (_mm512_shuffle_f64x2::<0xee>(a, b), _mm512_shuffle_f64x2::<0xee>(c, d));
        steps[4 + i] = _mm512_shuffle_f64x2::<0x88>(low, high);
        steps[6 + i] = _mm512_shuffle_f64x2::<0xdd>(low, high);
    }
    steps
}

/// As [`turn_512_f32`].
#[target_feature(enable = "avx")]
#[inline]
fn turn_256_f32(lines: [__m256; 8]) -> [__m256; 8] {
    let mut halves = lines;
    for i in 0..2 {
        let [a, b, c, d] = [lines[4 * i], lines[4 * i + 1], lines[4 * i + 2], lines[4 * i + 3]];
        let (ab, cd) = (_mm256_unpacklo_ps(a, b), _mm256_unpacklo_ps(c, d));
        let (ab, cd) = (_mm256_castps_pd(ab), _mm256_castps_pd(cd));
        halves[4 * i] = _mm256_castpd_ps(_mm256_unpacklo_pd(ab, cd));
        halves[4 * i + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(ab, cd));
        let (ab, cd) = (_mm256_unpackhi_ps(a, b), _mm256_unpackhi_ps(c, d));
        let (ab, cd) = (_mm256_castps_pd(ab), _mm256_castps_pd(cd));
        halves[4 * i + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(ab, cd));
        halves[4 * i + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(ab, cd));
    }
    let mut steps = lines;
    for i in 0..4 {
        steps[i] = _mm256_permute2f128_ps::<0x20>(halves[i], halves[4 + i]);
        steps[4 + i] = _mm256_permute2f128_ps::<0x31>(halves[i], halves[4 + i]);
    }
    steps
}

/// As [`turn_512_f32`].
#[target_feature(enable = "avx")]
#[inline]
fn turn_256_f64(lines: [__m256d; 4]) -> [__m256d; 4] {
    let [a, b, c, d] = lines;
    let (ab, cd) = (_mm256_unpacklo_pd(a, b), _mm256_unpacklo_pd(c, d));
    let (above, below) = (_mm256_unpackhi_pd(a, b), _mm256_unpackhi_pd(c, d));
    [
        _mm256_permute2f128_pd::<0x20>(ab, cd),
        _mm256_permute2f128_pd::<0x20>(above, below),
        _mm256_permute2f128_pd::<0x31>(ab, cd),
        _mm256_permute2f128_pd::<0x31>(above, below),
    ]
}

/// The first elements of a vector, then zeros.
///
/// # Safety
/// So many elements can be read.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn some_512_f32(from: *const f32, count: usize) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe { _mm512_maskz_loadu_ps(!(u16::MAX << count), from) }
}

/// As [`some_512_f32`].
///
/// # Safety
/// As there.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn some_512_f64(from: *const f64, count: usize) -> __m512d {
    // SAFETY: the caller's promise.
    unsafe { _mm512_maskz_loadu_pd(!(u8::MAX << count), from) }
}

/// As [`some_512_f32`].
///
/// # Safety
/// As there.
#[target_feature(enable = "avx")]
#[inline]
unsafe fn some_256_f32(from: *const f32, count: usize) -> __m256 {
    let mut elements = [0f32; 8];
    // SAFETY: the caller's promise.
    unsafe {
        std::ptr::copy_nonoverlapping(from, elements.as_mut_ptr(), count);
        _mm256_loadu_ps(elements.as_ptr())
    }
}

/// As [`some_512_f32`].
///
/// # Safety
/// As there.
#[target_feature(enable = "avx")]
#[inline]
unsafe fn some_256_f64(from: *const f64, count: usize) -> __m256d {
    let mut elements = [0f64; 4];
    // SAFETY: the caller's promise.
    unsafe {
        std::ptr::copy_nonoverlapping(from, elements.as_mut_ptr(), count);
        _mm256_loadu_pd(elements.as_ptr())
    }
}

/// The smaller of two numbers, as constants.
const fn least(a: usize, b: usize) -> usize {
    if a < b { a } else { b }
}

macro_rules! lines {
    (
        $name:ident, $features:literal, $element:ty, $vector:ty, $lanes:literal, vectors: $vectors:literal,
        $zero:ident, $set:ident, $load:ident, $some:ident, $store:ident, $fma:ident, $add:ident, $turn:ident
    ) => {
        /// Results of lines and vectors, with sums of `k` steps in blocks, of so many of which the vectors are copied together to `copy`.
        ///
        /// # Safety
        /// The machine has the features, `k` elements of each line and vector can be read, and the results written, and the copy has room.
        #[target_feature(enable = $features)]
        unsafe fn $name(p: Operands<$element>, (k, block, together): (usize, usize, usize), copy: *mut $element) {
            const LANES: usize = $lanes;
            const VECTORS: usize = $vectors;

            /// The sums of `R` vectors with `count` steps more, fewer than there are lanes, from where lines begin at `at`; the vectors' copy has `pitch`
            /// elements a step.
            ///
            /// # Safety
            /// As for the function around it, of these lines and vectors.
            #[target_feature(enable = $features)]
            #[inline]
            unsafe fn steps<const R: usize>(
                (lines, at, count): (&[*const $element; LANES], usize, usize),
                (x, pitch): (*const $element, usize),
                sums: [$vector; R],
            ) -> [$vector; R] {
                let mut s = sums;
                let mut rows = [$zero(); LANES];
                // SAFETY: the caller's promise.
                unsafe {
                    for i in 0..LANES {
                        rows[i] = $some(lines[i].add(at), count);
                    }
                    let rows = $turn(rows);
                    let mut turned = [[0 as $element; LANES]; LANES];
                    for i in 0..LANES {
                        $store(turned[i].as_mut_ptr(), rows[i]);
                    }
                    for i in 0..count {
                        let step = $load(turned[i].as_ptr());
                        for r in 0..R {
                            s[r] = $fma(step, $set(*x.add(i * pitch + r)), s[r]);
                        }
                    }
                }
                s
            }

            /// `R` vectors by as many lines as there are lanes, of which `taken` are there: what blocks of the sum from step `begin` on come to is added
            /// to the results, or begins them.
            ///
            /// # Safety
            /// As for the function around it, of these lines and vectors.
            #[target_feature(enable = $features)]
            #[inline]
            unsafe fn tile<const R: usize>(
                (lines, taken): (&[*const $element; LANES], usize),
                (begin, end, block): (usize, usize, usize),
                (x, pitch, lead): (*const $element, usize, Option<usize>),
                (results, line_step, vector_step): (*mut $element, isize, isize),
            ) {
                let mut totals = [$zero(); R];
                let whole = line_step == 1 && taken == LANES;
                let mut some = [[0 as $element; LANES]; R];
                // SAFETY: the caller's promise.
                unsafe {
                    if begin > 0 {
                        for r in 0..R {
                            for line in 0..taken {
                                let at = line as isize * line_step + r as isize * vector_step;
                                some[r][line] = *results.wrapping_offset(at);
                            }
                            totals[r] = $load(some[r].as_ptr());
                        }
                    }
                    for from in (begin..end).step_by(block) {
                        let to = end.min(from + block);
                        let mut s = [$zero(); R];
                        let mut at = from;
                        if let Some(lead) = lead {
                            let head = (lead.wrapping_sub(from) % LANES).min(to - from);
                            if head > 0 {
                                s = steps::<R>((lines, at, head), (x.add((at - begin) * pitch), pitch), s);
                                at += head;
                            }
                        }
                        while at + LANES <= to {
                            let mut rows = [$zero(); LANES];
                            for i in 0..LANES {
                                rows[i] = $load(lines[i].add(at));
                            }
                            let rows = $turn(rows);
                            let x = x.add((at - begin) * pitch);
                            for i in 0..LANES {
                                for r in 0..R {
                                    s[r] = $fma(rows[i], $set(*x.add(i * pitch + r)), s[r]);
                                }
                            }
                            at += LANES;
                        }
                        if at < to {
                            s = steps::<R>((lines, at, to - at), (x.add((at - begin) * pitch), pitch), s);
                        }
                        for r in 0..R {
                            totals[r] = if from == 0 { s[r] } else { $add(totals[r], s[r]) };
                        }
                    }
                    for r in 0..R {
                        let to = results.wrapping_offset(r as isize * vector_step);
                        if whole {
                            $store(to, totals[r]);
                            continue;
                        }
                        $store(some[r].as_mut_ptr(), totals[r]);
                        for line in 0..taken {
                            *to.wrapping_offset(line as isize * line_step) = some[r][line];
                        }
                    }
                }
            }

            let (lines, count) = &p.lines;
            let (vectors, few) = &p.vectors;
            let (line_step, vector_step) = p.steps;
            // Parts of the vectors of nearly equal size.
            let parts = few.div_ceil(VECTORS).max(1);
            // Lines that share sets of the first-level cache are read in whole lines of it: what is left of one may be gone when the next steps
            // need it.
            let crowded = lines.stride.unsigned_abs() * size_of::<$element>() % CROWDED_BYTES == 0;
            for begin in (0..k).step_by(block * together) {
                let end = k.min(begin + block * together);
                for v in 0..*few {
                    let from = vectors.at(v);
                    for at in begin..end {
                        // SAFETY: an element of a vector, and one of the copy.
                        unsafe { *copy.add((at - begin) * few + v) = *from.add(at) };
                    }
                }
                for first in (0..*count).step_by(LANES) {
                    let taken = LANES.min(count - first);
                    // Lanes beyond the last line have that one once more.
                    let mut of_tile = [std::ptr::null(); LANES];
                    for (i, line) in of_tile.iter_mut().enumerate() {
                        *line = lines.at(first + i.min(taken - 1)).cast_const();
                    }
                    let to_cache_line = of_tile[0].addr().wrapping_neg() % LINE_BYTES / size_of::<$element>();
                    let lead = crowded.then_some(to_cache_line);
                    for part in 0..parts {
                        let vector = part * few / parts;
                        let here = (part + 1) * few / parts - vector;
                        let to = first as isize * line_step + vector as isize * vector_step;
                        let l = (&of_tile, taken);
                        let of_sum = (begin, end, block);
                        let x = (copy.wrapping_add(vector).cast_const(), *few, lead);
                        let y = (p.results.wrapping_offset(to), line_step, vector_step);
                        // SAFETY: the caller's promise.
                        unsafe {
                            match here {
                                1 => tile::<1>(l, of_sum, x, y),
                                2 => tile::<2>(l, of_sum, x, y),
                                3 => tile::<3>(l, of_sum, x, y),
                                4 => tile::<4>(l, of_sum, x, y),
                                5 => tile::<{ least(5, VECTORS) }>(l, of_sum, x, y),
                                6 => tile::<{ least(6, VECTORS) }>(l, of_sum, x, y),
                                7 => tile::<{ least(7, VECTORS) }>(l, of_sum, x, y),
                                _ => tile::<VECTORS>(l, of_sum, x, y),
                            }
                        }
                    }
                }
            }
        }
    };
}

// Vectors whose sums are in registers beside the lines that are turned.
lines!(
    avx512_f32, "avx512f", f32, __m512, 16, vectors: 8,
    _mm512_setzero_ps, _mm512_set1_ps, _mm512_loadu_ps, some_512_f32, _mm512_storeu_ps, _mm512_fmadd_ps, _mm512_add_ps, turn_512_f32
);
lines!(
    avx512_f64, "avx512f", f64, __m512d, 8, vectors: 8,
    _mm512_setzero_pd, _mm512_set1_pd, _mm512_loadu_pd, some_512_f64, _mm512_storeu_pd, _mm512_fmadd_pd, _mm512_add_pd, turn_512_f64
);
lines!(
    fma_f32, "avx,fma", f32, __m256, 8, vectors: 4,
    _mm256_setzero_ps, _mm256_set1_ps, _mm256_loadu_ps, some_256_f32, _mm256_storeu_ps, _mm256_fmadd_ps, _mm256_add_ps, turn_256_f32
);
lines!(
    fma_f64, "avx,fma", f64, __m256d, 4, vectors: 4,
    _mm256_setzero_pd, _mm256_set1_pd, _mm256_loadu_pd, some_256_f64, _mm256_storeu_pd, _mm256_fmadd_pd, _mm256_add_pd, turn_256_f64
);

#[cfg(test)]
mod tests {
    use super::super::dots::Walk;
    use super::*;

    /// What every instruction set of this machine computes: a chain of multiply-adds in each block, the blocks added up in turn, and no other
    /// element is written.
    #[test]
    fn every_instruction_set_sums_chains_in_blocks() {
        macro_rules! check {
            ($f:ident, $element:ty, $feature:tt) => {
                if std::is_x86_feature_detected!($feature) {
                    for vectors in 1..=17usize {
                        for lines in [1usize, 2, 15, 16, 31, 40] {
                            for (k, block, together) in [
                                (1usize, 1usize, 1usize),
                                (7, 7, 1),
                                (16, 16, 1),
                                (33, 33, 1),
                                (100, 34, 1),
                                (100, 34, 2),
                                (131, 66, 2),
                            ] {
                                // From different places of a cache line on.
                                let offset = (vectors + lines) % 5;
                                let value = |i: usize| (i * 37 % 101) as $element / 97.0 - 0.5;
                                let mut a: Vec<$element> = (0..lines * k + offset).map(|i| value(i)).collect();
                                let mut x: Vec<$element> = (0..vectors * k).map(|i| value(i + 5)).collect();
                                let mut copy = vec![<$element>::NAN; vectors * block * together];
                                for turned in [false, true] {
                                    let mut y = vec![9 as $element; lines * vectors + 1];
                                    let steps = if turned {
                                        (1, lines as isize)
                                    } else {
                                        (vectors as isize, 1)
                                    };
                                    let operands = Operands {
                                        lines: (Walk::new(a[offset..].as_mut_ptr().cast(), k as isize), lines),
                                        vectors: (Walk::new(x.as_mut_ptr().cast(), k as isize), vectors),
                                        results: y.as_mut_ptr(),
                                        steps,
                                    };
                                    // SAFETY: the vectors have so many elements, and the feature was looked for.
                                    unsafe { $f(operands, (k, block, together), copy.as_mut_ptr()) };
                                    for i in 0..lines {
                                        for j in 0..vectors {
                                            let mut expected: Option<$element> = None;
                                            for from in (0..k).step_by(block) {
                                                let mut sum = 0 as $element;
                                                for s in from..k.min(from + block) {
                                                    sum = a[offset + i * k + s].mul_add(x[j * k + s], sum);
                                                }
                                                expected = Some(expected.map_or(sum, |e| e + sum));
                                            }
                                            let found = y[i * steps.0 as usize + j * steps.1 as usize];
                                            let case = (vectors, lines, k, block, together, turned);
                                            assert_eq!(Some(found), expected, "{} {case:?}", stringify!($f));
                                        }
                                    }
                                    assert_eq!(y[lines * vectors], 9 as $element);
                                }
                            }
                        }
                    }
                }
            };
        }
        check!(avx512_f32, f32, "avx512f");
        check!(avx512_f64, f64, "avx512f");
        check!(fma_f32, f32, "fma");
        check!(fma_f64, f64, "fma");
    }
}
