//! Copies of operands in the order in which micro-kernels read them.
//!
//! A packed panel has `PANEL` elements for each step along the sum; what the operand lacks of the last vector at the edge is
//! zero.

use std::arch::x86_64::{
    __m256, __m256d, _mm256_loadu_pd, _mm256_loadu_ps, _mm256_permute2f128_pd, _mm256_permute2f128_ps,
    _mm256_shuffle_ps, _mm256_storeu_pd, _mm256_storeu_ps, _mm256_unpackhi_pd, _mm256_unpackhi_ps, _mm256_unpacklo_pd,
    _mm256_unpacklo_ps,
};

use super::super::{Leg, MAX_LEGS};

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
pub(super) struct WoundSource<'a, T> {
    pub start: *const T,
    pub legs_across: &'a [Leg],
    pub legs_depth: &'a [Leg],
    pub first: usize,
    pub across: usize,
    pub begin: usize,
    pub depth: usize,
}

/// A place on legs: a number in each, and the offset that they add up to.
struct Place<'a> {
    legs: &'a [Leg],
    digits: [usize; MAX_LEGS],
    offset: isize,
}

impl<'a> Place<'a> {
    fn new(legs: &'a [Leg], mut number: usize) -> Place<'a> {
        let mut place = Place {
            legs,
            digits: [0; MAX_LEGS],
            offset: 0,
        };
        for (leg, digit) in legs.iter().zip(&mut place.digits).rev() {
            *digit = number % leg.extent.max(1);
            number /= leg.extent.max(1);
            place.offset += *digit as isize * leg.stride;
        }
        place
    }

    /// Steps that stay on the innermost leg.
    #[inline(always)]
    fn left(&self) -> usize {
        let last = self.legs.len() - 1;
        self.legs[last].extent - self.digits[last]
    }

    /// Goes on by at most [`Place::left`] steps. It is called for each step of the sum: as a call of its own it takes a product
    /// over small windows a third of its time.
    #[inline(always)]
    fn advance(&mut self, steps: usize) {
        let mut steps = steps;
        for (leg, digit) in self.legs.iter().zip(&mut self.digits).rev() {
            *digit += steps;
            self.offset += steps as isize * leg.stride;
            if *digit < leg.extent {
                return;
            }
            self.offset -= *digit as isize * leg.stride;
            *digit = 0;
            steps = 1;
        }
    }
}

/// Neighbours of a panel that lie on the innermost leg.
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
unsafe fn wound_panels<T: Copy + Default, const PANEL: usize, const LANES: usize>(
    from: WoundSource<'_, T>,
    mut to: *mut T,
) {
    let stride = from.legs_across.last().map_or(1, |l| l.stride);
    let mut across = Place::new(from.legs_across, from.first);
    for first in (0..from.across).step_by(PANEL) {
        let width = PANEL.min(from.across - first);
        let written = width.next_multiple_of(LANES);
        let mut runs = [Run::default(); PANEL];
        let (mut count, mut at) = (0, 0);
        while at < width {
            let len = across.left().min(width - at);
            runs[count] = Run {
                offset: across.offset,
                at,
                len,
            };
            count += 1;
            at += len;
            across.advance(len);
        }
        let mut along = Place::new(from.legs_depth, from.begin);
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
unsafe fn copy_run<T: Copy>(from: *const T, to: *mut T, len: usize) {
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
        /// As for [`wound_panels`], and this machine must have the instructions.
        $(#[$feature])?
        pub(super) unsafe fn $name<const PANEL: usize, const LANES: usize>(
            from: WoundSource<'_, $element>,
            to: *mut $element,
        ) {
            // SAFETY: the caller's promise.
            unsafe { wound_panels::<_, PANEL, LANES>(from, to) };
        }
    };
}
composite!(wound_f32, f32);
composite!(wound_f64, f64);
composite!(wound_avx_f32, f32, #[target_feature(enable = "avx")]);
composite!(wound_avx_f64, f64, #[target_feature(enable = "avx")]);

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
