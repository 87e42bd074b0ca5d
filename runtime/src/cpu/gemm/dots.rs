//! One row times a matrix, both with the summed axis together in memory: dot products.
//!
//! Such a product reads every element of the matrix once, and packs nothing. Below, the *vectors* are the row, or the column of the mirrored
//! case, and *lines* are those of the matrix. Each result is summed in two vector registers of accumulators, whatever its neighbours, in
//! blocks of which the sums are added up, so its bits depend on the summed extent alone. One vector of bf16 is multiplied so as well, by
//! pairs. Several vectors are what [`lines`](super::lines) is for, whose sums have the order of micro-kernels, but for results with fewer
//! rows and fewer columns than a vector has lanes: chains of so few results leave most of a machine idle (2 by 4096 by 2: six times as long).

use std::arch::x86_64::*;

use tlc_ir::DType;

use super::{Matrix, Product, Unit, lines};
use crate::cpu::level::{Halves, halves};

/// Elements of the sum for each vector, where there are several, from which on it takes longer to pack a line than to multiply it as it lies.
const LONG: usize = 16;
/// As [`LONG`], of results that are added up in lanes: than to add up the lanes of its results.
const LONG_IN_LANES: usize = 48;
/// Results with fewer rows and fewer columns have long sums added up in lanes.
const SMALL: usize = 16;
/// Vectors whose accumulators are in registers at once.
const VECTORS: usize = 4;
/// Vectors of each line that are added up in a row: long sums are added up in blocks, and these in turn, so that they round less often.
const BLOCK: usize = 256;
/// Blocks that are added up in a row.
const BLOCKS: usize = 64;
/// Lines of the smallest part of a result: a multiple of what is taken at once.
const LINES: usize = 12;

/// What the two operands are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shape {
    /// The left operand is the matrix: the results' rows are its lines.
    LinesByVectors,
    /// The right operand is.
    VectorsByLines,
}

impl Shape {
    /// Whether each result is a dot product of its own, and not one of a group of chains.
    pub(super) fn is_dots(self, p: &Product<'_>) -> bool {
        self.vectors(p) == 1 || is_small(p)
    }

    /// How many vectors there are.
    pub(super) fn vectors(self, p: &Product<'_>) -> usize {
        match self {
            Shape::LinesByVectors => p.n,
            Shape::VectorsByLines => p.m,
        }
    }
}

/// Whether a result has few rows and few columns.
fn is_small(p: &Product<'_>) -> bool {
    p.m < SMALL && p.n < SMALL
}

/// What the operands of a product are, if it is such a product and this machine has the instructions.
pub(super) fn shape(p: &Product<'_>) -> Option<Shape> {
    let together = p.lhs.composite.is_none() && p.rhs.composite.is_none() && p.lhs.column == 1 && p.rhs.row == 1;
    let pairs = p.dtype == DType::BF16 && halves() == Some(Halves::Pairs);
    let long = if is_small(p) { LONG_IN_LANES } else { LONG };
    let few = |vectors: usize| vectors == 1 || !pairs && vectors <= lines::FEW && p.k >= long * vectors;
    let has = std::is_x86_feature_detected!("avx512f")
        || std::is_x86_feature_detected!("fma") && std::is_x86_feature_detected!("avx");
    match (few(p.m) && p.m <= p.n, few(p.n)) {
        _ if !together || !has || p.k == 0 || !(pairs || p.dtype.is_float() && p.dtype.bytes() >= 4) => None,
        (true, _) => Some(Shape::VectorsByLines),
        (_, true) => Some(Shape::LinesByVectors),
        _ => None,
    }
}

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

/// Where vectors or lines begin, and how far apart.
pub(super) struct Walk<T> {
    start: *mut T,
    /// Elements from one to the next.
    pub(super) stride: isize,
}

impl<T> Walk<T> {
    pub(super) fn new(start: *mut u8, stride: isize) -> Walk<T> {
        let start = start.cast();
        Walk { start, stride }
    }

    /// Where the one of this number begins.
    pub(super) fn at(&self, number: usize) -> *mut T {
        self.start.wrapping_offset(number as isize * self.stride)
    }
}

/// Lines and vectors, each with how many there are, and where their results lie.
pub(super) struct Operands<T> {
    pub(super) lines: (Walk<T>, usize),
    pub(super) vectors: (Walk<T>, usize),
    pub(super) results: *mut T,
    /// Elements from the result of a line to that of the next, and from vector to vector.
    pub(super) steps: (isize, isize),
}

impl<T> Operands<T> {
    /// Those of a product of a shape.
    pub(super) fn of(p: &Product<'_>, shape: Shape) -> Operands<T> {
        let walk = |m: &Matrix<'_>, stride: isize, count: usize| (Walk::new(m.start, stride), count);
        let (rows, columns) = (walk(&p.lhs, p.lhs.row, p.m), walk(&p.rhs, p.rhs.column, p.n));
        let (lines, vectors, steps) = match shape {
            Shape::LinesByVectors => (rows, columns, (p.dst.row, p.dst.column)),
            Shape::VectorsByLines => (columns, rows, (p.dst.column, p.dst.row)),
        };
        Operands {
            lines,
            vectors,
            results: p.dst.start.cast(),
            steps,
        }
    }
}

/// Computes a piece of a product of a shape that [`is_dots`](Shape::is_dots).
///
/// # Safety
/// As for [`super::multiply`]; the product has that [`shape`], or is a piece of one that has.
pub(super) unsafe fn run(p: &Product<'_>, shape: Shape) {
    macro_rules! call {
        ($f:ident) => {
            $f(Operands::of(p, shape), p.k)
        };
    }
    // SAFETY: the caller's promise, and the instructions were looked for.
    unsafe {
        match (p.dtype, std::is_x86_feature_detected!("avx512f")) {
            (DType::BF16, _) => call!(avx512_bf16),
            (DType::F64, true) => call!(avx512_f64),
            (DType::F64, false) => call!(fma_f64),
            (_, true) => call!(avx512_f32),
            (_, false) => call!(fma_f32),
        }
    }
}

/// The sum of the lanes, each half added to the other, then the halves of that.
#[target_feature(enable = "avx")]
#[inline]
fn sum_256_f32(v: __m256) -> f32 {
    let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
}

/// As [`sum_256_f32`].
#[target_feature(enable = "avx")]
#[inline]
fn sum_256_f64(v: __m256d) -> f64 {
    let two = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd::<1>(v));
    _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)))
}

/// As [`sum_256_f32`].
#[target_feature(enable = "avx512f")]
#[inline]
fn sum_512_f32(v: __m512) -> f32 {
    let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(v)));
    sum_256_f32(_mm256_add_ps(_mm512_castps512_ps256(v), high))
}

/// As [`sum_256_f32`].
#[target_feature(enable = "avx512f")]
#[inline]
fn sum_512_f64(v: __m512d) -> f64 {
    let high = _mm512_extractf64x4_pd::<1>(v);
    sum_256_f64(_mm256_add_pd(_mm512_castpd512_pd256(v), high))
}

macro_rules! dots {
    (
        $name:ident, $features:literal, $element:ty, $lanes:literal, at_once: $at_once:expr,
        $zero:ident, $load:ident, $fma:ident, $add:ident, $sum:ident
    ) => {
        /// `results[i * steps.0 + j * steps.1] = Σ_k lines[i][k] * vectors[j][k]` for all lines and vectors.
        ///
        /// # Safety
        /// The machine has the features, `k` elements of each line and vector can be read, and the results written.
        #[target_feature(enable = $features)]
        unsafe fn $name(p: Operands<$element>, k: usize) {
            let Operands {
                lines: (lines, line_count),
                vectors: (vectors, vector_count),
                results,
                steps,
            } = p;
            let y = (results, steps.0, steps.1);
            const LANES: usize = $lanes;

            /// `R` vectors by `C` lines.
            ///
            /// # Safety
            /// As for the function around it, of the lines and vectors from these numbers on.
            #[target_feature(enable = $features)]
            #[inline]
            unsafe fn block<const R: usize, const C: usize>(
                (lines, line): (&Walk<$element>, usize),
                (vectors, vector): (&Walk<$element>, usize),
                k: usize,
                y: (*mut $element, isize, isize),
            ) {
                let mut a = [std::ptr::null::<$element>(); C];
                let mut x = [std::ptr::null::<$element>(); R];
                for (c, a) in a.iter_mut().enumerate() {
                    *a = lines.at(line + c);
                }
                for (r, x) in x.iter_mut().enumerate() {
                    *x = vectors.at(vector + r);
                }
                let mut sums = [[[$zero(); 2]; C]; R];
                let mut blocks = 0;
                let mut of_blocks = [[[$zero(); 2]; C]; R];
                let whole = k / LANES * LANES;
                let rest = k - whole;
                // SAFETY: whole vectors before the ends of lines and vectors, then what is left of them, in arrays.
                unsafe {
                    let mut i = 0;
                    loop {
                        let end = k.min(i + BLOCK * LANES);
                        while i + 2 * LANES <= end {
                            for half in 0..2 {
                                let at = i + half * LANES;
                                let mut v = [$zero(); R];
                                for r in 0..R {
                                    v[r] = $load(x[r].add(at));
                                }
                                for c in 0..C {
                                    let w = $load(a[c].add(at));
                                    for r in 0..R {
                                        sums[r][c][half] = $fma(w, v[r], sums[r][c][half]);
                                    }
                                }
                            }
                            i += 2 * LANES;
                        }
                        if i + 2 * LANES > k {
                            break;
                        }
                        blocks += 1;
                        for r in 0..R {
                            for c in 0..C {
                                let [block, outer] = &mut of_blocks[r][c];
                                *block = $add(*block, $add(sums[r][c][0], sums[r][c][1]));
                                sums[r][c] = [$zero(); 2];
                                if blocks % BLOCKS == 0 {
                                    *outer = $add(*outer, *block);
                                    *block = $zero();
                                }
                            }
                        }
                    }
                    if i < whole {
                        for c in 0..C {
                            let w = $load(a[c].add(i));
                            for r in 0..R {
                                sums[r][c][0] = $fma(w, $load(x[r].add(i)), sums[r][c][0]);
                            }
                        }
                    }
                    if rest > 0 {
                        // What is left, then zeros.
                        let mut left = [[0 as $element; LANES]; R];
                        for r in 0..R {
                            std::ptr::copy_nonoverlapping(x[r].add(whole), left[r].as_mut_ptr(), rest);
                        }
                        for c in 0..C {
                            let mut line = [0 as $element; LANES];
                            std::ptr::copy_nonoverlapping(a[c].add(whole), line.as_mut_ptr(), rest);
                            let w = $load(line.as_ptr());
                            for r in 0..R {
                                sums[r][c][1] = $fma(w, $load(left[r].as_ptr()), sums[r][c][1]);
                            }
                        }
                    }
                    for r in 0..R {
                        for c in 0..C {
                            let to = (line + c) as isize * y.1 + (vector + r) as isize * y.2;
                            let mut sum = $add(sums[r][c][0], sums[r][c][1]);
                            if blocks > 0 {
                                let [block, outer] = of_blocks[r][c];
                                sum = $add($add(outer, block), sum);
                            }
                            *y.0.wrapping_offset(to) = $sum(sum);
                        }
                    }
                }
            }

            // Blocks of vectors of nearly equal size, and as many lines as have room beside the larger ones.
            let blocks = vector_count.div_ceil(VECTORS).max(1);
            let most = vector_count.div_ceil(blocks);
            const AT_ONCE: [usize; VECTORS] = $at_once;
            let at_once = AT_ONCE[most.clamp(1, VECTORS) - 1];
            let mut line = 0;
            while line < line_count {
                let taken = if line_count - line >= at_once { at_once } else { 1 };
                for number in 0..blocks {
                    let vector = number * vector_count / blocks;
                    let count = (number + 1) * vector_count / blocks - vector;
                    let (l, v) = ((&lines, line), (&vectors, vector));
                    // SAFETY: the caller's promise.
                    unsafe {
                        match (count, taken) {
                            (1, 1) => block::<1, 1>(l, v, k, y),
                            (2, 1) => block::<2, 1>(l, v, k, y),
                            (3, 1) => block::<3, 1>(l, v, k, y),
                            (4, 1) => block::<4, 1>(l, v, k, y),
                            (1, _) => block::<1, { AT_ONCE[0] }>(l, v, k, y),
                            (2, n) if n == AT_ONCE[1] => block::<2, { AT_ONCE[1] }>(l, v, k, y),
                            (2, _) => block::<2, { AT_ONCE[2] }>(l, v, k, y),
                            (3, n) if n == AT_ONCE[2] => block::<3, { AT_ONCE[2] }>(l, v, k, y),
                            (3, _) => block::<3, { AT_ONCE[3] }>(l, v, k, y),
                            (4, _) => block::<4, { AT_ONCE[3] }>(l, v, k, y),
                            _ => {}
                        }
                    }
                }
                line += taken;
            }
        }
    };
}

// Lines at once by vectors at once: with two accumulators each, and a register for each vector, they fill the registers.
dots!(
    avx512_f32, "avx512f", f32, 16, at_once: [4, 4, 4, 3],
    _mm512_setzero_ps, _mm512_loadu_ps, _mm512_fmadd_ps, _mm512_add_ps, sum_512_f32
);
dots!(
    avx512_f64, "avx512f", f64, 8, at_once: [4, 4, 4, 3],
    _mm512_setzero_pd, _mm512_loadu_pd, _mm512_fmadd_pd, _mm512_add_pd, sum_512_f64
);
dots!(
    fma_f32, "avx,fma", f32, 8, at_once: [4, 3, 2, 1],
    _mm256_setzero_ps, _mm256_loadu_ps, _mm256_fmadd_ps, _mm256_add_ps, sum_256_f32
);
dots!(
    fma_f64, "avx,fma", f64, 4, at_once: [4, 3, 2, 1],
    _mm256_setzero_pd, _mm256_loadu_pd, _mm256_fmadd_pd, _mm256_add_pd, sum_256_f64
);

/// Registers for the sum of a line of bf16.
const ACCUMULATORS: usize = 4;

/// Words, which are pairs of bf16.
#[target_feature(enable = "avx512f,avx512bf16")]
#[inline]
fn pairs(words: __m512i) -> __m512bh {
    // SAFETY: 64 bytes, whatever they are called.
    unsafe { std::mem::transmute::<__m512i, __m512bh>(words) }
}

/// The sum of products of a line and a vector, rounded once. Vectors of 16 pairs go by turns to four registers, the last of them filled up with
/// zeros.
///
/// # Safety
/// The machine has the features, and `k` elements of both can be read.
#[expect(
    clippy::needless_range_loop,
    reason = "counted loops of constant length become registers; iterators are calls, which lack the instructions"
)]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn dot(line: *const u16, x: *const u16, k: usize) -> u16 {
    const HALVES: usize = 32;
    let mut sums = [_mm512_setzero_ps(); ACCUMULATORS];
    let mut at = 0;
    // SAFETY: whole vectors before the ends of both, then what is left of them, by a mask.
    unsafe {
        while at + ACCUMULATORS * HALVES <= k {
            for q in 0..ACCUMULATORS {
                let w = pairs(_mm512_loadu_si512(line.add(at + q * HALVES).cast()));
                let v = pairs(_mm512_loadu_si512(x.add(at + q * HALVES).cast()));
                sums[q] = _mm512_dpbf16_ps(sums[q], w, v);
            }
            at += ACCUMULATORS * HALVES;
        }
        for q in 0..ACCUMULATORS {
            if at < k {
                let mask = u32::MAX >> (HALVES - (k - at).min(HALVES));
                let w = pairs(_mm512_maskz_loadu_epi16(mask, line.add(at).cast()));
                let v = pairs(_mm512_maskz_loadu_epi16(mask, x.add(at).cast()));
                sums[q] = _mm512_dpbf16_ps(sums[q], w, v);
                at += HALVES;
            }
        }
        let [first, second, third, fourth] = sums;
        let sum = sum_512_f32(_mm512_add_ps(
            _mm512_add_ps(first, second),
            _mm512_add_ps(third, fourth),
        ));
        let rounded = std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(_mm512_set1_ps(sum)));
        _mm256_extract_epi16::<0>(rounded) as u16
    }
}

/// As the others, of bf16.
///
/// # Safety
/// As for the others.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn avx512_bf16(p: Operands<u16>, k: usize) {
    // A line after the other: that is how memory is read best.
    let (lines, count) = &p.lines;
    let x = p.vectors.0.at(0).cast_const();
    for line in 0..*count {
        let to = p.results.wrapping_offset(line as isize * p.steps.0);
        // SAFETY: the caller's promise.
        unsafe { *to = dot(lines.at(line), x, k) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What every instruction set of this machine computes: sums of products, and no other element is written.
    #[test]
    fn every_instruction_set_sums_all_products() {
        macro_rules! check {
            ($f:ident, $element:ty, $feature:tt) => {
                if std::is_x86_feature_detected!($feature) {
                    for vectors in 1..=17usize {
                        for lines in [1usize, 2, 5, 12, 31] {
                            for k in [1usize, 7, 16, 33, 100] {
                                let value = |i: usize| (i * 37 % 101) as f64 / 64.0 - 0.75;
                                let mut a: Vec<$element> = (0..lines * k).map(|i| value(i) as $element).collect();
                                let mut x: Vec<$element> = (0..vectors * k).map(|i| value(i + 5) as $element).collect();
                                let mut y = vec![9 as $element; lines * vectors + 1];
                                let walk = |v: &mut Vec<$element>| Walk::new(v.as_mut_ptr().cast(), k as isize);
                                let (a_walk, x_walk) = (walk(&mut a), walk(&mut x));
                                // SAFETY: the vectors have so many elements, and the feature was looked for.
                                unsafe {
                                    let operands = Operands {
                                        lines: (a_walk, lines),
                                        vectors: (x_walk, vectors),
                                        results: y.as_mut_ptr(),
                                        steps: (vectors as isize, 1),
                                    };
                                    $f(operands, k)
                                };
                                for i in 0..lines {
                                    for j in 0..vectors {
                                        // Multiples of 2^-12 below 2^8: every sum is exact.
                                        let sum: f64 = (0..k).map(|s| value(i * k + s) * value(j * k + s + 5)).sum();
                                        let found = f64::from(y[i * vectors + j]);
                                        assert_eq!(found, sum, "{} {vectors} {lines} {k}", stringify!($f));
                                    }
                                }
                                assert_eq!(y[lines * vectors], 9 as $element);
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
