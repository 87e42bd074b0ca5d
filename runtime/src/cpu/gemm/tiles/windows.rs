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

/// The most rows, of windows that lie one element apart and two: a copy that more rows read costs little beside their products.
const MOST_ROWS: [usize; 2] = [128, 40];
/// Rows of a tile, at most.
pub(super) const ROWS: usize = 8;
/// Elements of a vector.
const LANES: usize = 16;
/// Windows in a row of the image, at least: a vector of fewer has too many pieces.
const LEAST_WIDTH: usize = 5;
/// As [`MOST_ROWS`], of windows of one element, which are in a copy once.
const MOST_ROWS_OF_LINES: usize = 32;
/// Steps of a sum over windows of one element, at least.
const LEAST_LINES: usize = 64;
/// Vectors at once, beside eight rows and beside fewer.
const VECTORS: [usize; 2] = [3, 6];

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
    /// Whether the image is beyond the second-level cache, and is asked for before it is read.
    pub far: bool,
}

/// Whether windows with these dimensions are read where they lie by so many rows.
pub(super) fn takes(across: &[StridedDim], rows: usize) -> bool {
    let [near, apart] = MOST_ROWS;
    across.last().is_some_and(|inner| match inner.stride {
        1 => rows <= near && inner.extent >= LEAST_WIDTH,
        2 => rows <= apart && inner.extent >= LEAST_WIDTH,
        _ => false,
    })
}

/// Whether `k` lines of a matrix, whose elements lie together and which are too far apart to be a panel, are read where they are by so many rows,
/// as windows of one element. A copy of short columns is in the first-level cache when the last row reads it.
pub(super) fn takes_lines(k: usize, rows: usize) -> bool {
    k >= LEAST_LINES && rows <= MOST_ROWS_OF_LINES
}

/// Which windows make a vector.
#[derive(Clone, Copy, Debug)]
struct Layout {
    /// Windows in a row of the image.
    width: usize,
    /// Rows that a vector takes whole if they are shorter than it, and else 1 if vectors end where rows do; 0 if they go on in the next row.
    rows: usize,
}

impl Layout {
    /// The layout that takes the least time.
    fn of(p: &Part<'_>) -> Layout {
        let (width, step) = p
            .across
            .last()
            .map_or((1, 1), |d| (d.extent.max(1), d.stride.unsigned_abs()));
        let rows = (LANES / width).max(1);
        if !p.first.is_multiple_of(width) {
            return Layout { width, rows: 0 };
        }
        // Half cycles: a vector's multiply-adds, or its loads, most of which touch two cache lines, and its part of loading factors. Tiles have
        // 1, 2 or 4 pieces.
        let time = |l: &Layout| {
            let multiplied = 2 * p.row_count.min(ROWS);
            l.vectors(0, p.windows) * multiplied.max(4 * l.pieces().next_power_of_two() * step + 3)
        };
        let whole = Layout { width, rows };
        let on = Layout { width, rows: 0 };
        if time(&whole) <= time(&on) { whole } else { on }
    }

    /// The pieces that a vector has at most.
    fn pieces(&self) -> usize {
        match self.rows {
            0 => (LANES - 1).div_ceil(self.width) + 1,
            rows => rows,
        }
    }

    /// How many of so many windows, the first of which is at a place in its row, the first vector has.
    fn lanes(&self, at: usize, windows: usize) -> usize {
        match self.rows {
            0 => LANES.min(windows),
            rows => LANES.min(rows * self.width - at).min(windows),
        }
    }

    /// Vectors of so many windows.
    fn vectors(&self, at: usize, windows: usize) -> usize {
        if self.rows == 0 {
            return windows.div_ceil(LANES);
        }
        let together = self.rows * self.width;
        let first = (together - at).min(windows);
        let (whole, rest) = ((windows - first) / together, (windows - first) % together);
        first.div_ceil(LANES) + whole * together.div_ceil(LANES) + rest.div_ceil(LANES)
    }
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
    // A piece that is left out reads nothing, where something is.
    let none = Piece {
        offset: place.offset,
        read: [0; 2],
    };
    let (mut pieces, mut taken) = ([none; P], 0);
    for piece in &mut pieces {
        let len = place.left().min(lanes - taken);
        if len == 0 {
            break;
        }
        let first = taken * STEP;
        let read = ((1u64 << ((len - 1) * STEP + 1)) - 1) << first;
        *piece = Piece {
            offset: place.offset - first as isize,
            read: [mask(read), mask(read >> LANES)],
        };
        place.advance(len);
        taken += len;
    }
    debug_assert!(taken == lanes, "{taken} of {lanes} lanes in {P} pieces");
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
    /// How many elements further on lines are asked for, unless that is 0.
    ahead: isize,
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
                // Steps of the sum are too far apart for the processor to see what comes.
                if b.ahead != 0 {
                    let next = image.wrapping_offset(vectors[v].pieces[0].offset + b.ahead);
                    _mm_prefetch::<_MM_HINT_T0>(next.cast());
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
            _ if R == ROWS => {}
            _ => tile::<R, 6, P, STEP>(b, vectors),
        }
    }
}

/// Multiplies all rows by all windows, of which a vector has at most `P` pieces.
///
/// # Safety
/// As for [`avx512_f32`].
#[target_feature(enable = "avx512f")]
unsafe fn block<const P: usize, const STEP: usize>(p: &Part<'_>, b: Block<'_>, layout: Layout) {
    let most = VECTORS[usize::from(p.row_count < ROWS)];
    let mut place = Place::new(p.across, p.first);
    let none = Vector {
        pieces: [Piece::default(); P],
        lanes: 0,
        at: 0,
    };
    let mut vectors = [none; VECTORS[1]];
    let mut begin = 0;
    // Windows behind the first of those that end with a vector.
    let mut at = 0;
    while begin < p.windows {
        // About as many vectors in each tile, and 1, 2, 3 or 6.
        let left = layout.vectors(at, p.windows - begin);
        let mut count = left.div_ceil(left.div_ceil(most));
        if count > VECTORS[0] && count < VECTORS[1] {
            count = count.div_ceil(2);
        }
        for v in &mut vectors[..count] {
            let taken = layout.lanes(at, p.windows - begin);
            *v = vector::<P, STEP>(&mut place, begin, taken);
            begin += taken;
            at += taken;
            if at == layout.rows * layout.width {
                at = 0;
            }
        }
        let vectors = &vectors[..count];
        let mut row = 0;
        while row < p.row_count {
            let left = p.row_count - row;
            let b = Block {
                rows: b.rows.wrapping_offset(row as isize * b.row_strides.0),
                results: b.results.wrapping_offset(row as isize * b.result_stride),
                // The first rows ask for what the next vectors read, once for all.
                ahead: if p.far && row == 0 {
                    (count * LANES * STEP) as isize
                } else {
                    0
                },
                ..b
            };
            // SAFETY: the caller's promise.
            row += unsafe {
                match left {
                    ROWS.. if count <= VECTORS[0] => {
                        strip::<ROWS, P, STEP>(b, vectors);
                        ROWS
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

/// Where steps of a sum begin, `depth` from number `begin` on.
///
/// # Safety
/// There is room for as many.
unsafe fn steps_of(dims: &[StridedDim], begin: usize, depth: usize, to: *mut isize) {
    // SAFETY: the caller's promise, and within what was written.
    unsafe {
        if begin > 0 || dims.iter().map(|d| d.extent).product::<usize>() != depth {
            let mut along = Place::new(dims, begin);
            for i in 0..depth {
                to.add(i).write(along.offset);
                along.advance(1);
            }
            return;
        }
        // All of them: those of the inner dimensions again for each element of an outer one.
        to.write(0);
        let mut made = 1;
        for dim in dims.iter().rev() {
            for element in 1..dim.extent {
                for i in 0..made {
                    to.add(element * made + i)
                        .write(*to.add(i) + element as isize * dim.stride);
                }
            }
            made *= dim.extent;
        }
    }
}

/// Computes a part of a product of windows that [`takes`] says yes to. `scratch` has room for a number for each step of a block of the sum.
///
/// # Safety
/// The machine has AVX-512 F; windows and rows can be read and results written, which overlap neither; nobody else uses the scratch,
/// which is aligned.
pub(super) unsafe fn avx512_f32(p: Part<'_>, scratch: *mut isize) {
    let layout = Layout::of(&p);
    let step = p.across.last().map_or(1, |d| d.stride);
    for begin in (0..p.k).step_by(p.block) {
        let depth = p.block.min(p.k - begin);
        // SAFETY: the caller's promise.
        unsafe { steps_of(p.depth, begin, depth, scratch) };
        let b = Block {
            image: p.image,
            // SAFETY: they were just written.
            steps: unsafe { std::slice::from_raw_parts(scratch, depth) },
            rows: p.rows.wrapping_offset(begin as isize * p.row_strides.1),
            row_strides: p.row_strides,
            results: p.results,
            result_stride: p.result_stride,
            added: begin > 0,
            ahead: 0,
        };
        // SAFETY: the caller's promise.
        unsafe {
            match (layout.pieces(), step) {
                (1, 1) => block::<1, 1>(&p, b, layout),
                (2, 1) => block::<2, 1>(&p, b, layout),
                (_, 1) => block::<4, 1>(&p, b, layout),
                (1, _) => block::<1, 2>(&p, b, layout),
                (2, _) => block::<2, 2>(&p, b, layout),
                (_, _) => block::<4, 2>(&p, b, layout),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A chain of multiply-adds for each block of the sum, and the blocks added up, of every window and row; nothing else is written.
    #[test]
    fn windows_are_multiplied_where_they_lie() {
        if !std::is_x86_feature_detected!("avx512f") {
            return;
        }
        let value = |i: usize| (i * 37 % 101) as f32 / 63.0 - 0.75;
        let dim = |extent: usize, stride: isize| StridedDim { extent, stride };
        let images = [
            (7, 7),
            (1, 5),
            (5, 6),
            (4, 8),
            (5, 5),
            (3, 9),
            (12, 12),
            (3, 16),
            (3, 17),
            (9, 28),
            (2, 56),
            (2, 100),
        ];
        for ((lines, width), step) in images.into_iter().flat_map(|i| [(i, 1), (i, 2)]) {
            let pitch = width * step + 3;
            let plane = (lines * step + 3) * pitch;
            let across = [dim(lines, (pitch * step) as isize), dim(width, step as isize)];
            let depth = [dim(2, plane as isize), dim(3, pitch as isize), dim(3, 1)];
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
                assert!(takes(&across, row_count));
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
                    far: first > 0,
                };
                // SAFETY: the vectors have so many elements, and the feature was looked for.
                unsafe { avx512_f32(part, scratch.as_mut_ptr()) };
                for (i, j) in (0..row_count).flat_map(|i| (0..=windows).map(move |j| (i, j))) {
                    let n = first + j;
                    let product = |k: usize| {
                        let at = k / 9 * plane + (k / 3 % 3 + n / width * step) * pitch + k % 3 + n % width * step;
                        let row = i as isize * row_strides.0 + k as isize * row_strides.1;
                        (image[at], rows[row as usize])
                    };
                    let chain = |from: usize| {
                        let steps = from..(from + block).min(18);
                        steps.map(product).fold(0f32, |sum, (x, y)| x.mul_add(y, sum))
                    };
                    let wanted = match j == windows {
                        true => 9.0,
                        false => (block..18).step_by(block).map(chain).fold(chain(0), |a, b| a + b),
                    };
                    let case = (step, lines, width, row_count, block, first);
                    assert_eq!(results[i * stride + j].to_bits(), wanted.to_bits(), "{case:?} {i} {j}");
                }
            }
        }
    }

    /// Vectors of a layout are as many as are made, and none has more pieces than it says.
    #[test]
    fn layouts_count_their_vectors() {
        for (width, rows) in (LEAST_WIDTH..40).flat_map(|w| [(w, 0), (w, (LANES / w).max(1))]) {
            let layout = Layout { width, rows };
            for windows in 1..200 {
                let dims = [
                    StridedDim {
                        extent: 40,
                        stride: 100,
                    },
                    StridedDim {
                        extent: width,
                        stride: 1,
                    },
                ];
                let mut place = Place::new(&dims, 0);
                let (mut begin, mut at, mut made) = (0, 0, 0);
                while begin < windows.min(40 * width) {
                    let left = windows.min(40 * width) - begin;
                    let taken = layout.lanes(at, left);
                    assert!(taken > 0 && layout.pieces() <= 4);
                    let vector = vector::<4, 1>(&mut place, begin, taken);
                    let pieces = vector.pieces.iter().filter(|p| p.read[0] != 0).count();
                    assert!(pieces <= layout.pieces(), "{layout:?} {windows}");
                    begin += taken;
                    at = (at + taken) % (layout.rows * width).max(1);
                    made += 1;
                }
                assert_eq!(made, layout.vectors(0, windows.min(40 * width)), "{layout:?} {windows}");
            }
        }
    }
}
