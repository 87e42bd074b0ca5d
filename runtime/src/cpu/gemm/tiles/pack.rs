//! Copies of operands in the order in which micro-kernels read them.
//!
//! A packed panel has `PANEL` elements for each step along the sum; what the operand lacks of the last vector at the edge is
//! zero.

use std::arch::x86_64::{
    __m256, __m256d, __mmask16, _mm256_loadu_pd, _mm256_loadu_ps, _mm256_permute2f128_pd, _mm256_permute2f128_ps,
    _mm256_shuffle_ps, _mm256_storeu_pd, _mm256_storeu_ps, _mm256_unpackhi_pd, _mm256_unpackhi_ps, _mm256_unpacklo_pd,
    _mm256_unpacklo_ps, _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps, _mm512_permutex2var_ps, _mm512_setr_epi32,
};

use super::super::{MAX_DIMS, StridedDim};

/// Part of an operand: `across` elements beside each other, at `depth` steps along the sum. Strides in elements.
#[derive(Clone, Copy)]
pub(super) struct Source<T> {
    pub start: *const T,
    pub across: usize,
    pub depth: usize,
    pub stride_across: isize,
    pub stride_depth: isize,
}

impl<T> Source<T> {
    fn at(&self, across: usize, depth: usize) -> *const T {
        let to = across as isize * self.stride_across + depth as isize * self.stride_depth;
        self.start.wrapping_offset(to)
    }
}

/// Copies panels. Of a panel at the edge only whole vectors of `LANES` are written.
///
/// # Safety
/// Every element of the source must be readable, and `to` writable for `depth * PANEL` elements for each panel begun.
#[inline(always)]
unsafe fn panels<T: Copy + Default, const PANEL: usize, const LANES: usize>(
    from: Source<T>,
    mut to: *mut T,
    transpose: impl Fn(Source<T>, *mut T) -> (usize, usize),
) {
    for first in (0..from.across).step_by(PANEL) {
        let width = PANEL.min(from.across - first);
        let part = Source {
            start: from.at(first, 0),
            across: width,
            ..from
        };
        let vectors = width / LANES;
        let written = width.next_multiple_of(LANES);
        if from.stride_across == 1 {
            for d in 0..from.depth {
                let (line, room) = (part.at(0, d), to.wrapping_add(d * PANEL));
                // SAFETY: elements of the source, and a panel's worth of room.
                unsafe {
                    if width == PANEL {
                        room.cast::<[T; PANEL]>().write(line.cast::<[T; PANEL]>().read());
                        continue;
                    }
                    for v in 0..vectors {
                        let vector = line.add(v * LANES).cast::<[T; LANES]>().read();
                        room.add(v * LANES).cast::<[T; LANES]>().write(vector);
                    }
                    for a in vectors * LANES..width {
                        *room.add(a) = *line.add(a);
                    }
                    for a in width..written {
                        *room.add(a) = T::default();
                    }
                }
            }
        } else {
            // The part that `transpose` has copied is left out.
            let (done_across, done_depth) = transpose(part, to);
            for d in 0..from.depth {
                let begin = if d < done_depth { done_across } else { 0 };
                // SAFETY: elements of the source, and a panel's worth of room.
                unsafe {
                    for a in begin..width {
                        *to.add(d * PANEL + a) = *part.at(a, d);
                    }
                    for a in width..written {
                        *to.add(d * PANEL + a) = T::default();
                    }
                }
            }
        }
        to = to.wrapping_add(PANEL * from.depth);
    }
}

/// Part of a composite operand (see [`Composite`](super::super::Composite)): `across` elements from number `first`, at `depth` steps
/// along the sum from number `begin`.
#[derive(Clone, Copy)]
pub(super) struct CompositeSource<'a, T> {
    pub start: *const T,
    pub dims_across: &'a [StridedDim],
    pub dims_depth: &'a [StridedDim],
    pub first: usize,
    pub across: usize,
    pub begin: usize,
    pub depth: usize,
}

/// A place on dimensions: a number in each, and the offset that they add up to.
pub(super) struct Place<'a> {
    dims: &'a [StridedDim],
    digits: [usize; MAX_DIMS],
    pub offset: isize,
}

impl<'a> Place<'a> {
    pub(super) fn new(dims: &'a [StridedDim], mut number: usize) -> Place<'a> {
        let mut place = Place {
            dims,
            digits: [0; MAX_DIMS],
            offset: 0,
        };
        for (dim, digit) in dims.iter().zip(&mut place.digits).rev() {
            *digit = number % dim.extent.max(1);
            number /= dim.extent.max(1);
            place.offset += *digit as isize * dim.stride;
        }
        place
    }

    /// The next so many elements in runs of neighbours, and how many runs they are. Goes on behind them.
    #[inline(always)]
    fn runs<const MOST: usize>(&mut self, width: usize) -> ([Run; MOST], usize) {
        let mut runs = [Run::default(); MOST];
        let (mut count, mut at) = (0, 0);
        while at < width {
            let len = self.left().min(width - at);
            runs[count] = Run {
                offset: self.offset,
                at,
                len,
            };
            count += 1;
            at += len;
            self.advance(len);
        }
        (runs, count)
    }

    /// The number in a dimension.
    pub(super) fn digit(&self, dim: usize) -> usize {
        self.digits[dim]
    }

    /// Steps that stay on the innermost dimension.
    #[inline(always)]
    pub(super) fn left(&self) -> usize {
        let last = self.dims.len() - 1;
        self.dims[last].extent - self.digits[last]
    }

    /// Goes on by at most [`Place::left`] steps. It is called for each step of the sum: as a call of its own it takes a product
    /// over small windows a third of its time.
    #[inline(always)]
    pub(super) fn advance(&mut self, steps: usize) {
        let mut steps = steps;
        for (dim, digit) in self.dims.iter().zip(&mut self.digits).rev() {
            *digit += steps;
            self.offset += steps as isize * dim.stride;
            if *digit < dim.extent {
                return;
            }
            self.offset -= *digit as isize * dim.stride;
            *digit = 0;
            steps = 1;
        }
    }
}

/// Neighbours of a panel that lie on the innermost dimension.
#[derive(Clone, Copy, Default)]
struct Run {
    offset: isize,
    at: usize,
    len: usize,
}

/// Copies panels of a composite operand. Of a panel at the edge only whole vectors of `LANES` are written.
///
/// # Safety
/// Every element of the source must be readable, and `to` writable for `depth * PANEL` elements for each panel begun.
#[inline(always)]
unsafe fn composite_panels<T: Copy + Default, const PANEL: usize, const LANES: usize>(
    from: CompositeSource<'_, T>,
    mut to: *mut T,
) {
    let stride = from.dims_across.last().map_or(1, |l| l.stride);
    let mut across = Place::new(from.dims_across, from.first);
    for first in (0..from.across).step_by(PANEL) {
        let width = PANEL.min(from.across - first);
        let written = width.next_multiple_of(LANES);
        let (runs, count) = across.runs::<PANEL>(width);
        let mut along = Place::new(from.dims_depth, from.begin);
        for d in 0..from.depth {
            let line = from.start.wrapping_offset(along.offset);
            let room = to.wrapping_add(d * PANEL);
            for run in &runs[..count] {
                let (line, room) = (line.wrapping_offset(run.offset), room.wrapping_add(run.at));
                // SAFETY: elements of the source, and a panel's worth of room.
                unsafe {
                    if stride == 1 {
                        copy_run::<T>(line, room, run.len);
                    } else {
                        for a in 0..run.len {
                            *room.add(a) = *line.wrapping_offset(a as isize * stride);
                        }
                    }
                }
            }
            for a in width..written {
                // SAFETY: within the panel.
                unsafe { *room.add(a) = T::default() };
            }
            along.advance(1);
        }
        to = to.wrapping_add(PANEL * from.depth);
    }
}

/// Copies neighbours. A call of `memcpy` would cost more than most runs are long.
///
/// # Safety
/// `len` elements readable and writable.
#[inline(always)]
pub(super) unsafe fn copy_run<T: Copy>(from: *const T, to: *mut T, len: usize) {
    let mut at = 0;
    // SAFETY: the caller's promise.
    unsafe {
        while len - at >= 8 {
            to.add(at).cast::<[T; 8]>().write(from.add(at).cast::<[T; 8]>().read());
            at += 8;
        }
        if len - at >= 4 {
            to.add(at).cast::<[T; 4]>().write(from.add(at).cast::<[T; 4]>().read());
            at += 4;
        }
        while at < len {
            *to.add(at) = *from.add(at);
            at += 1;
        }
    }
}

macro_rules! composite {
    ($name:ident, $element:ident $(, #[$feature:meta])?) => {
        /// Copies panels of a composite operand.
        ///
        /// # Safety
        /// As for [`composite_panels`], and this machine must have the instructions.
        $(#[$feature])?
        pub(super) unsafe fn $name<const PANEL: usize, const LANES: usize>(
            from: CompositeSource<'_, $element>,
            to: *mut $element,
        ) {
            // SAFETY: the caller's promise.
            unsafe { composite_panels::<_, PANEL, LANES>(from, to) };
        }
    };
}
composite!(composite_f32, f32);
composite!(composite_f64, f64);
composite!(composite_avx_f32, f32, #[target_feature(enable = "avx")]);
composite!(composite_avx_f64, f64, #[target_feature(enable = "avx")]);

/// What one vector copies of a run: elements from `offset` on to lanes from `at` on.
#[derive(Clone, Copy, Default)]
struct Piece {
    offset: isize,
    at: usize,
    /// The elements that are read of the first vector's length, and of the one behind it.
    read: [__mmask16; 2],
    /// The lanes that are written.
    written: __mmask16,
}

/// Copies panels of a composite operand as [`composite_panels`] does, in vectors of 512 bits. Neighbours that lie next to each other, or
/// every other element, move by whole vectors; a mask ends them where a run ends.
///
/// # Safety
/// As for [`composite_panels`], and this machine must have AVX-512 F.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn composite_avx512_f32<const PANEL: usize, const LANES: usize>(
    from: CompositeSource<'_, f32>,
    to: *mut f32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        match from.dims_across.last().map_or(1, |l| l.stride) {
            1 => composite_pieces::<PANEL, LANES, 1>(from, to),
            2 => composite_pieces::<PANEL, LANES, 2>(from, to),
            _ => composite_panels::<_, PANEL, LANES>(from, to),
        }
    }
}

/// As [`composite_avx512_f32`], of neighbours that lie 1 or 2 elements apart.
///
/// # Safety
/// As there.
#[target_feature(enable = "avx512f")]
unsafe fn composite_pieces<const PANEL: usize, const LANES: usize, const STRIDE: usize>(
    from: CompositeSource<'_, f32>,
    mut to: *mut f32,
) {
    const VECTOR: usize = 16;
    let first_of = |n: usize| (((1u32 << n.min(VECTOR)) - 1) & 0xffff) as __mmask16;
    let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    let mut across = Place::new(from.dims_across, from.first);
    for first in (0..from.across).step_by(PANEL) {
        let width = PANEL.min(from.across - first);
        let (runs, count) = across.runs::<PANEL>(width);
        // At most one for each element, and one for what the last vector lacks.
        let mut pieces = [Piece::default(); PANEL];
        let mut used = 0;
        for run in &runs[..count] {
            for begin in (0..run.len).step_by(VECTOR) {
                let lanes = VECTOR.min(run.len - begin);
                let read = (lanes - 1) * STRIDE + 1;
                pieces[used] = Piece {
                    offset: run.offset + (begin * STRIDE) as isize,
                    at: run.at + begin,
                    read: [first_of(read), first_of(read.saturating_sub(VECTOR))],
                    written: first_of(lanes),
                };
                used += 1;
            }
        }
        let rest = width.next_multiple_of(LANES) - width;
        if rest > 0 {
            // It reads nothing.
            pieces[used] = Piece {
                at: width,
                written: first_of(rest),
                ..Piece::default()
            };
            used += 1;
        }
        let mut along = Place::new(from.dims_depth, from.begin);
        for d in 0..from.depth {
            let line = from.start.wrapping_offset(along.offset);
            let room = to.wrapping_add(d * PANEL);
            for piece in &pieces[..used] {
                let start = line.wrapping_offset(piece.offset);
                // SAFETY: elements of the source, and a panel's worth of room; a mask leaves the others alone.
                unsafe {
                    let mut v = _mm512_maskz_loadu_ps(piece.read[0], start);
                    if STRIDE == 2 {
                        let behind = _mm512_maskz_loadu_ps(piece.read[1], start.wrapping_add(VECTOR));
                        v = _mm512_permutex2var_ps(v, even, behind);
                    }
                    _mm512_mask_storeu_ps(room.wrapping_add(piece.at), piece.written, v);
                }
            }
            along.advance(1);
        }
        to = to.wrapping_add(PANEL * from.depth);
    }
}

/// Copies strips: `STRIP` elements beside each other at each step, a strip after the other.
///
/// # Safety
/// Every element of the source must be readable, and `to` writable for `depth * STRIP` elements for each strip begun.
pub(super) unsafe fn strips<T: Copy, const STRIP: usize>(from: Source<T>, to: *mut T) {
    let whole = if from.stride_across == 1 {
        from.across / STRIP
    } else {
        0
    };
    // A line of the source is read once: all strips take their part of it.
    for d in 0..from.depth {
        for s in 0..whole {
            // SAFETY: the caller's promise.
            unsafe {
                let elements = from.at(s * STRIP, d).cast::<[T; STRIP]>().read();
                to.add((s * from.depth + d) * STRIP)
                    .cast::<[T; STRIP]>()
                    .write(elements);
            }
        }
    }
    for a in whole * STRIP..from.across {
        for d in 0..from.depth {
            // SAFETY: the caller's promise.
            unsafe { *to.add((a / STRIP * from.depth + d) * STRIP + a % STRIP) = *from.at(a, d) };
        }
    }
}

macro_rules! plain {
    ($name:ident, $element:ident) => {
        /// Copies panels, with no instructions beyond the architecture's.
        ///
        /// # Safety
        /// As for [`panels`].
        pub(super) unsafe fn $name<const PANEL: usize, const LANES: usize>(from: Source<$element>, to: *mut $element) {
            // SAFETY: the caller's promise.
            unsafe { panels::<_, PANEL, LANES>(from, to, |_, _| (0, 0)) };
        }
    };
}
plain!(panels_f32, f32);
plain!(panels_f64, f64);

macro_rules! with_avx {
    ($name:ident, $element:ident, $block:literal, $transpose:ident) => {
        /// Copies panels with 256-bit vectors; operands whose elements lie together along the sum are transposed a square
        /// at a time.
        ///
        /// # Safety
        /// As for [`panels`], and this machine must have AVX.
        #[target_feature(enable = "avx")]
        pub(super) unsafe fn $name<const PANEL: usize, const LANES: usize>(from: Source<$element>, to: *mut $element) {
            let squares = |part: Source<$element>, to: *mut $element| {
                if part.stride_depth != 1 {
                    return (0, 0);
                }
                let across = part.across / $block * $block;
                let depth = part.depth / $block * $block;
                for d in (0..depth).step_by($block) {
                    for a in (0..across).step_by($block) {
                        let to = to.wrapping_add(d * PANEL + a);
                        // SAFETY: a whole square of the source, and of the panel.
                        unsafe { $transpose(part.at(a, d), part.stride_across, to, PANEL) };
                    }
                }
                (across, depth)
            };
            // SAFETY: the caller's promise.
            unsafe { panels::<_, PANEL, LANES>(from, to, squares) };
        }
    };
}
with_avx!(panels_avx_f32, f32, 8, transpose_8x8);
with_avx!(panels_avx_f64, f64, 4, transpose_4x4);

/// Writes the transpose of 8 rows of 8 elements.
///
/// # Safety
/// The rows, `stride` apart, must be readable; 8 rows of 8 that are `to_stride` apart writable.
#[target_feature(enable = "avx")]
#[inline]
unsafe fn transpose_8x8(from: *const f32, stride: isize, to: *mut f32, to_stride: usize) {
    let row = |i: isize| -> __m256 {
        // SAFETY: the caller's promise.
        unsafe { _mm256_loadu_ps(from.wrapping_offset(i * stride)) }
    };
    let pairs = |i: isize| {
        let (a, b) = (row(i), row(i + 1));
        (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b))
    };
    // Columns of four rows in each half: 0 and 4, 1 and 5, 2 and 6, 3 and 7.
    let fours = |i: isize| {
        let ((low, high), (low2, high2)) = (pairs(i), pairs(i + 2));
        [
            _mm256_shuffle_ps::<0x44>(low, low2),
            _mm256_shuffle_ps::<0xee>(low, low2),
            _mm256_shuffle_ps::<0x44>(high, high2),
            _mm256_shuffle_ps::<0xee>(high, high2),
        ]
    };
    let (top, bottom) = (fours(0), fours(4));
    for i in 0..4 {
        let near = _mm256_permute2f128_ps::<0x20>(top[i], bottom[i]);
        let far = _mm256_permute2f128_ps::<0x31>(top[i], bottom[i]);
        // SAFETY: the caller's promise.
        unsafe {
            _mm256_storeu_ps(to.wrapping_add(i * to_stride), near);
            _mm256_storeu_ps(to.wrapping_add((i + 4) * to_stride), far);
        }
    }
}

/// Writes the transpose of 4 rows of 4 elements.
///
/// # Safety
/// The rows, `stride` apart, must be readable; 4 rows of 4 that are `to_stride` apart writable.
#[target_feature(enable = "avx")]
#[inline]
unsafe fn transpose_4x4(from: *const f64, stride: isize, to: *mut f64, to_stride: usize) {
    let row = |i: isize| -> __m256d {
        // SAFETY: the caller's promise.
        unsafe { _mm256_loadu_pd(from.wrapping_offset(i * stride)) }
    };
    let (a, b, c, d) = (row(0), row(1), row(2), row(3));
    let (low, high) = (_mm256_unpacklo_pd(a, b), _mm256_unpackhi_pd(a, b));
    let (low2, high2) = (_mm256_unpacklo_pd(c, d), _mm256_unpackhi_pd(c, d));
    let columns = [
        _mm256_permute2f128_pd::<0x20>(low, low2),
        _mm256_permute2f128_pd::<0x20>(high, high2),
        _mm256_permute2f128_pd::<0x31>(low, low2),
        _mm256_permute2f128_pd::<0x31>(high, high2),
    ];
    for (i, column) in columns.into_iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { _mm256_storeu_pd(to.wrapping_add(i * to_stride), column) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every way to copy windows copies the same elements, and zeros where the last vector has none; nothing else is written.
    #[test]
    fn windows_are_copied_alike_by_every_instruction_set() {
        const PANEL: usize = 64;
        const LANES: usize = 16;
        if !std::is_x86_feature_detected!("avx512f") {
            return;
        }
        let image: Vec<f32> = (0..40 * 40 * 3).map(|i| i as f32).collect();
        let dim = |extent: usize, stride: isize| StridedDim { extent, stride };
        for step in [1usize, 2, 3] {
            for (rows, columns) in [(7, 7), (1, 5), (12, 12), (3, 17), (13, 1), (2, 12)] {
                let across = [dim(rows, (40 * step) as isize), dim(columns, step as isize)];
                let depth = [dim(3, 1600), dim(2, 40), dim(3, 1)];
                for (first, begin) in [(0, 0), (3, 4)] {
                    let source = CompositeSource {
                        start: image.as_ptr(),
                        dims_across: &across,
                        dims_depth: &depth,
                        first,
                        across: (rows * columns).saturating_sub(first),
                        begin,
                        depth: 18 - begin,
                    };
                    let size = source.across.div_ceil(PANEL) * PANEL * source.depth + 1;
                    let (mut plain, mut wide) = (vec![-1f32; size], vec![-1f32; size]);
                    // SAFETY: windows inside the image, panels inside the vectors, and the instructions were looked for.
                    unsafe {
                        composite_f32::<PANEL, LANES>(source, plain.as_mut_ptr());
                        composite_avx512_f32::<PANEL, LANES>(source, wide.as_mut_ptr());
                    }
                    let case = (step, rows, columns, first, begin);
                    assert_eq!(plain, wide, "{case:?}");
                    for (a, d) in (0..source.across).flat_map(|a| (0..source.depth).map(move |d| (a, d))) {
                        let (n, k) = (first + a, begin + d);
                        let at = (k / 6) * 1600 + (k / 3 % 2 + n / columns * step) * 40 + k % 3 + n % columns * step;
                        let found = wide[a / PANEL * PANEL * source.depth + d * PANEL + a % PANEL];
                        assert_eq!(found, image[at], "{case:?} {a} {d}");
                    }
                }
            }
        }
    }
}
