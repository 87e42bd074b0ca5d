//! Windows of an image times few rows, as convolutions of few channels a group have them: windows are read where they lie.
//!
//! A copy in panels holds an element of the image once for each window that it is a part of, and a few rows use each copy a few times, so that
//! copying takes longer than multiplying. Here vectors of windows beside each other are loaded from the image for every step of the sum, in
//! pieces where a vector goes on in the next row, and meet up to eight rows in registers. Results are those of micro-kernels to the bit: a chain
//! of multiply-adds for each block of the sum, and the blocks added up.

use std::arch::x86_64::*;

use super::super::StridedDim;
use super::super::unroll::unroll;
use super::pack::Place;

/// The most rows: a copy that more rows read costs little beside their products.
pub(super) const MOST_ROWS: usize = 32;
/// Elements of a vector.
const LANES: usize = 16;
/// Windows in a row of the image, at least: a vector of fewer has too many pieces.
const LEAST_WIDTH: usize = 5;
/// Vectors at once, beside eight rows and beside fewer.
const VECTORS: [usize; 2] = [3, 6];
/// What loading a piece of a vector takes, in multiply-adds.
const PIECE: usize = 2;

/// A part of a product: `results[i, j] = Σ_k rows[i, k] * windows[k, j]`, the results of a row beside each other.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    pub image: *const f32,
    pub across: &'a [StridedDim],
    pub depth: &'a [StridedDim],
    /// The number of the first window among those that `across` counts.
    pub first: usize,
    pub windows: usize,
    pub rows: *const f32,
    /// From row to row, and along the sum.
    pub row_strides: (isize, isize),
    pub row_count: usize,
    pub results: *mut f32,
    /// From row to row.
    pub result_stride: isize,
    pub k: usize,
    /// Elements of a block of the sum.
    pub block: usize,
}

/// Whether windows with these dimensions are read where they lie by so many rows.
pub(super) fn takes(across: &[StridedDim], rows: usize) -> bool {
    let near = |inner: &StridedDim| matches!(inner.stride, 1 | 2) && inner.extent >= LEAST_WIDTH;
    rows <= MOST_ROWS && across.last().is_some_and(near)
}

/// Windows of a vector, and the pieces that it has at most: whole rows of an image, or as many as there are lanes, whichever takes less time.
fn layout(p: &Part<'_>) -> (usize, usize) {
    let width = p.across.last().map_or(1, |d| d.extent.max(1));
    let whole = LANES / width;
    let together = (LANES, (LANES - 1).div_ceil(width) + 1);
    if whole == 0 || !p.first.is_multiple_of(width) {
        return together;
    }
    let time = |(lanes, pieces): (usize, usize)| p.windows.div_ceil(lanes) * (p.row_count + PIECE * pieces);
    let rows = (whole * width, whole);
    if time(rows) <= time(together) { rows } else { together }
}

/// What is loaded of a vector at once: elements of `read`, of two vectors where windows lie two elements apart.
#[derive(Clone, Copy, Default)]
struct Piece {
    offset: isize,
    read: [__mmask16; 2],
}

/// A vector of windows.
#[derive(Clone, Copy)]
struct Vector<const P: usize> {
    pieces: [Piece; P],
    /// The lanes that are results, from `at` on.
    lanes: __mmask16,
    at: usize,
}

/// A mask of lanes.
fn mask(lanes: u64) -> __mmask16 {
    (lanes & 0xffff) as __mmask16
}

/// The next so many windows, which go on at a place.
fn vector<const P: usize, const STEP: usize>(place: &mut Place<'_>, at: usize, lanes: usize) -> Vector<P> {
    let (runs, count) = place.runs::<LANES>(lanes);
    debug_assert!(count <= P, "{count} pieces of at most {P}");
    // One that is left out reads nothing, where something is.
    let none = Piece {
        offset: runs[0].offset,
        read: [0; 2],
    };
    let mut pieces = [none; P];
    for (piece, run) in pieces.iter_mut().zip(&runs[..count]) {
        let first = run.at * STEP;
        let read = ((1u64 << ((run.len - 1) * STEP + 1)) - 1) << first;
        *piece = Piece {
            offset: run.offset - first as isize,
            read: [mask(read), mask(read >> LANES)],
        };
    }
    Vector {
        pieces,
        lanes: mask((1 << lanes) - 1),
        at,
    }
}

/// A block of the sum: where its steps begin in the image, and their factors in the first row.
#[derive(Clone, Copy)]
struct Block<'a> {
    image: *const f32,
    steps: &'a [isize],
    rows: *const f32,
    row_strides: (isize, isize),
    results: *mut f32,
    result_stride: isize,
    /// Whether it is added to what is there.
    added: bool,
}

/// Multiplies `R` rows by `V` vectors of windows that lie `STEP` elements apart.
///
/// # Safety
/// As for [`avx512_f32`].
#[target_feature(enable = "avx512f")]
unsafe fn tile<const R: usize, const V: usize, const P: usize, const STEP: usize>(b: Block<'_>, vectors: &[Vector<P>]) {
    let vectors: [Vector<P>; V] = std::array::from_fn(|v| vectors[v]);
    let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    let mut sums = [[_mm512_setzero_ps(); V]; R];
    let (next, along) = b.row_strides;
    let (mut low, mut high) = (b.rows, b.rows.wrapping_offset(4 * next));
    for &step in b.steps {
        let image = b.image.wrapping_offset(step);
        let mut x = [_mm512_setzero_ps(); V];
        // SAFETY: masks leave out what is no element of a window, and the caller vouches for the others.
        unsafe {
            unroll!(v < V {
                let mut behind = _mm512_setzero_ps();
                unroll!(i < P {
                    let piece = &vectors[v].pieces[i];
                    let start = image.wrapping_offset(piece.offset);
                    x[v] = match i {
                        0 => _mm512_maskz_loadu_ps(piece.read[0], start),
                        _ => _mm512_mask_loadu_ps(x[v], piece.read[0], start),
                    };
                    if STEP == 2 {
                        behind = _mm512_mask_loadu_ps(behind, piece.read[1], start.wrapping_add(LANES));
                    }
                });
                if STEP == 2 {
                    x[v] = _mm512_permutex2var_ps(x[v], even, behind);
                }
            });
            unroll!(r < R {
                let row = if r < 4 { low } else { high };
                let y = _mm512_set1_ps(*row.wrapping_offset((r % 4) as isize * next));
                unroll!(v < V { sums[r][v] = _mm512_fmadd_ps(x[v], y, sums[r][v]); });
            });
        }
        low = low.wrapping_offset(along);
        if R > 4 {
            high = high.wrapping_offset(along);
        }
    }
    unroll!(r < R {
        let results = b.results.wrapping_offset(r as isize * b.result_stride);
        unroll!(v < V {
            let (to, lanes) = (results.wrapping_add(vectors[v].at), vectors[v].lanes);
            // SAFETY: lanes of results.
            unsafe {
                let sum = match b.added {
                    true => _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, to), sums[r][v]),
                    false => sums[r][v],
                };
                _mm512_mask_storeu_ps(to, lanes, sum);
            }
        });
    });
}

/// Multiplies `R` rows by up to six vectors, of eight rows up to three.
///
/// # Safety
/// As for [`avx512_f32`].
#[target_feature(enable = "avx512f")]
unsafe fn strip<const R: usize, const P: usize, const STEP: usize>(b: Block<'_>, vectors: &[Vector<P>]) {
    // SAFETY: the caller's promise.
    unsafe {
        match vectors.len() {
            1 => tile::<R, 1, P, STEP>(b, vectors),
            2 => tile::<R, 2, P, STEP>(b, vectors),
            3 => tile::<R, 3, P, STEP>(b, vectors),
            _ if R == 8 => {}
            _ => tile::<R, 6, P, STEP>(b, vectors),
        }
    }
}

/// Multiplies all rows by all windows, of which a vector has so many in at most `P` pieces.
///
/// # Safety
/// As for [`avx512_f32`].
#[target_feature(enable = "avx512f")]
unsafe fn block<const P: usize, const STEP: usize>(p: &Part<'_>, b: Block<'_>, lanes: usize) {
    let most = VECTORS[usize::from(p.row_count < 8)];
    let mut place = Place::new(p.across, p.first);
    let mut begin = 0;
    while begin < p.windows {
        // About as many vectors in each tile, and 1, 2, 3 or 6.
        let left = (p.windows - begin).div_ceil(lanes);
        let mut count = left.div_ceil(left.div_ceil(most));
        if count > VECTORS[0] && count < VECTORS[1] {
            count = count.div_ceil(2);
        }
        let mut vectors = [Vector {
            pieces: [Piece::default(); P],
            lanes: 0,
            at: 0,
        }; VECTORS[1]];
        for v in &mut vectors[..count] {
            let taken = lanes.min(p.windows - begin);
            *v = vector::<P, STEP>(&mut place, begin, taken);
            begin += taken;
        }
        let vectors = &vectors[..count];
        let mut row = 0;
        while row < p.row_count {
            let left = p.row_count - row;
            let b = Block {
                rows: b.rows.wrapping_offset(row as isize * b.row_strides.0),
                results: b.results.wrapping_offset(row as isize * b.result_stride),
                ..b
            };
            // SAFETY: the caller's promise.
            row += unsafe {
                match left {
                    8.. if count <= VECTORS[0] => {
                        strip::<8, P, STEP>(b, vectors);
                        8
                    }
                    4.. => {
                        strip::<4, P, STEP>(b, vectors);
                        4
                    }
                    2.. => {
                        strip::<2, P, STEP>(b, vectors);
                        2
                    }
                    _ => {
                        strip::<1, P, STEP>(b, vectors);
                        1
                    }
                }
            };
        }
    }
}

/// Computes a part of a product of windows that [`takes`] says yes to. `scratch` has room for a number for each step of a block of the sum.
///
/// # Safety
/// The machine has AVX-512 F; windows and rows can be read and results written, which overlap neither; nobody else uses the scratch,
/// which is aligned.
pub(super) unsafe fn avx512_f32(p: Part<'_>, scratch: *mut isize) {
    let (lanes, pieces) = layout(&p);
    let step = p.across.last().map_or(1, |d| d.stride);
    let mut along = Place::new(p.depth, 0);
    for begin in (0..p.k).step_by(p.block) {
        let depth = p.block.min(p.k - begin);
        for i in 0..depth {
            // SAFETY: within the scratch.
            unsafe { scratch.add(i).write(along.offset) };
            along.advance(1);
        }
        let b = Block {
            image: p.image,
            // SAFETY: they were just written.
            steps: unsafe { std::slice::from_raw_parts(scratch, depth) },
            rows: p.rows.wrapping_offset(begin as isize * p.row_strides.1),
            row_strides: p.row_strides,
            results: p.results,
            result_stride: p.result_stride,
            added: begin > 0,
        };
        // SAFETY: the caller's promise.
        unsafe {
            match (pieces, step) {
                (1, 1) => block::<1, 1>(&p, b, lanes),
                (2, 1) => block::<2, 1>(&p, b, lanes),
                (_, 1) => block::<4, 1>(&p, b, lanes),
                (1, _) => block::<1, 2>(&p, b, lanes),
                (2, _) => block::<2, 2>(&p, b, lanes),
                (_, _) => block::<4, 2>(&p, b, lanes),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums of products block by block, of every window and row, and nothing else is written; what lies between windows is not read into them.
    #[test]
    fn windows_are_multiplied_where_they_lie() {
        if !std::is_x86_feature_detected!("avx512f") {
            return;
        }
        let dim = |extent: usize, stride: isize| StridedDim { extent, stride };
        // Multiples of 2^-6 below 1: every sum is exact.
        let value = |i: usize| (i * 37 % 101) as f32 / 64.0 - 0.75;
        for step in [1usize, 2] {
            for (lines, width) in [(7, 7), (1, 5), (5, 6), (4, 8), (3, 9), (12, 12), (3, 16), (3, 17), (9, 28), (2, 56), (2, 100)] {
                let pitch = width * step + 3;
                let plane = (lines * step + 3) * pitch;
                let across = [dim(lines, (pitch * step) as isize), dim(width, step as isize)];
                let depth = [dim(2, plane as isize), dim(3, pitch as isize), dim(3, 1)];
                // What is no element of any window spoils what reads it.
                let image: Vec<f32> = (0..2 * plane).map(value).collect();
                for (row_count, block, first, turned) in [
                    (1, 18, 0, false),
                    (2, 18, 3, true),
                    (3, 7, 0, false),
                    (4, 18, 1, false),
                    (7, 18, 0, true),
                    (8, 18, 0, false),
                    (8, 5, 2, true),
                    (24, 18, 0, false),
                    (31, 9, 4, true),
                ] {
                    let windows = lines * width - first;
                    let row_strides = if turned { (1, row_count as isize) } else { (18, 1) };
                    let rows: Vec<f32> = (0..row_count * 18).map(|i| value(i + 5)).collect();
                    let stride = windows + 1;
                    let mut results = vec![9f32; row_count * stride];
                    let mut scratch = vec![0isize; block];
                    let part = Part {
                        image: image.as_ptr(),
                        across: &across,
                        depth: &depth,
                        first,
                        windows,
                        rows: rows.as_ptr(),
                        row_strides,
                        row_count,
                        results: results.as_mut_ptr(),
                        result_stride: stride as isize,
                        k: 18,
                        block,
                    };
                    assert!(takes(&across, row_count));
                    // SAFETY: the vectors have so many elements, and the feature was looked for.
                    unsafe { avx512_f32(part, scratch.as_mut_ptr()) };
                    for (i, j) in (0..row_count).flat_map(|i| (0..=windows).map(move |j| (i, j))) {
                        let found = results[i * stride + j];
                        let n = first + j;
                        let terms = (0..18).map(|k| {
                            let at = k / 9 * plane + (k / 3 % 3 + n / width * step) * pitch + k % 3 + n % width * step;
                            let row = i as isize * row_strides.0 + k as isize * row_strides.1;
                            f64::from(image[at]) * f64::from(rows[row as usize])
                        });
                        let wanted = if j == windows { 9.0 } else { terms.sum() };
                        let case = (step, lines, width, row_count, block, first);
                        assert_eq!(f64::from(found), wanted, "{case:?} {i} {j}");
                    }
                }
            }
        }
    }
}
