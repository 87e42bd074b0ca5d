//! Windows over axes that end, times the rows of a plain operand: what of a window lies beyond is neither copied nor multiplied.
//!
//! The elements of a window are taken one after another, each with all channels, in blocks of these. Of each panel of windows only the vectors are
//! multiplied in which some window has the element at all; where a window of such a vector has none, the copy has a zero. So a result's sum has the
//! products of its window's elements, and zeros, in an order that depends on the window and the number of channels alone.

use super::super::{Composite, MAX_DIMS, StridedDim, WindowedAxis};
use super::pack::Place;
use super::{
    FAR_ROWS, MANY_PANELS, MAX_PANELS, STRIPS_AT_ONCE, Tiles, block, pack, panels_of_a_pass, prefetch_row,
    second_level_bytes,
};

/// A part of a product. Strides in elements.
pub(super) struct Part<'a, T> {
    /// The first element of the axes that the windows slide over.
    pub image: *const T,
    pub windows: Windows<'a>,
    /// Windows of the part.
    pub wide: usize,
    pub rows: *const T,
    pub row_count: usize,
    /// From row to row, and along the sum.
    pub row_strides: (isize, isize),
    pub results: *mut T,
    /// From row to row, and from window to window.
    pub result_strides: (isize, isize),
}

/// The windows of an operand.
#[derive(Clone, Copy)]
pub(super) struct Windows<'a> {
    /// Dimensions of their places.
    pub across: &'a [StridedDim],
    /// Dimensions of their elements, and of channels behind these.
    pub along: &'a [StridedDim],
    pub axes: &'a [WindowedAxis],
    /// The number of the first place.
    pub first: usize,
}

impl<'a> Windows<'a> {
    /// The windows of an operand whose axes end.
    pub fn of(c: &Composite<'a>, panels_are_rows: bool) -> Option<Windows<'a>> {
        let (across, along, first) = match panels_are_rows {
            true => (c.rows, c.columns, c.first_row),
            false => (c.columns, c.rows, c.first_column),
        };
        (!c.windowed.is_empty()).then_some(Windows {
            across,
            along,
            axes: c.windowed,
            first,
        })
    }

    /// Elements of a window.
    fn elements(&self) -> usize {
        self.along[..self.axes.len()].iter().map(|d| d.extent).product()
    }

    /// Products of each element.
    pub fn channels(&self) -> usize {
        self.along[self.axes.len()..].iter().map(|d| d.extent).product()
    }

    /// The places, by dimension, whose windows have an element, and where it is in the first window of all.
    fn element(&self, mut number: usize) -> ([(usize, usize); MAX_DIMS], isize) {
        let mut inside = [(0, usize::MAX); MAX_DIMS];
        let mut offset = 0isize;
        for (axis, dim) in self.axes.iter().zip(self.along).rev() {
            let at = number % dim.extent.max(1);
            number /= dim.extent.max(1);
            // The first place that is not before the axis, and the first that is behind it.
            let first = at as i128 * axis.dilation as i128 - axis.before as i128;
            let place = |least: i128| {
                let stride = axis.stride.max(1) as i128;
                let place = (least - first).max(0);
                usize::try_from((place + stride - 1) / stride).unwrap_or(usize::MAX)
            };
            inside[axis.place] = (place(0), place(axis.extent as i128));
            let to = (at as isize).wrapping_mul(dim.stride);
            offset = to
                .wrapping_sub(axis.before.wrapping_mul(axis.step))
                .wrapping_add(offset);
        }
        (inside, offset)
    }
}

/// Neighbours of a panel that have the element: the first one's offset, the place in the panel and the number.
#[derive(Clone, Copy, Default)]
struct Run {
    offset: isize,
    at: usize,
    len: usize,
}

/// What a panel has of an element: runs of neighbours, and vectors from the first to behind the last that has some.
struct Panel<const MOST: usize> {
    runs: [Run; MOST],
    count: usize,
    vectors: (usize, usize),
    /// Whether all elements of these vectors are in runs.
    whole: bool,
}

/// The most elements across a panel.
const WIDEST: usize = 64;

/// What a panel of `width` places from `first` on has of an element.
fn panel(
    w: &Windows<'_>,
    inside: &[(usize, usize); MAX_DIMS],
    first: usize,
    width: usize,
    lanes: usize,
) -> Panel<WIDEST> {
    let mut place = Place::new(w.across, first);
    let mut found = Panel {
        runs: [Run::default(); WIDEST],
        count: 0,
        vectors: (0, 0),
        whole: false,
    };
    let Some((last, outer)) = w
        .across
        .len()
        .checked_sub(1)
        .map(|last| (inside[last], &inside[..last]))
    else {
        return found;
    };
    let stride = w.across.last().map_or(1, |d| d.stride);
    let (mut at, mut covered) = (0, 0);
    while at < width {
        let len = place.left().min(width - at);
        let rows = outer
            .iter()
            .enumerate()
            .all(|(n, range)| (range.0..range.1).contains(&place.digit(n)));
        let from = place.digit(w.across.len() - 1);
        let (begin, end) = (last.0.max(from), last.1.min(from + len));
        if rows && begin < end {
            found.runs[found.count] = Run {
                offset: place.offset + (begin - from) as isize * stride,
                at: at + begin - from,
                len: end - begin,
            };
            found.count += 1;
            covered += end - begin;
        }
        at += len;
        place.advance(len);
    }
    if let (Some(first), Some(last)) = (found.runs[..found.count].first(), found.runs[..found.count].last()) {
        found.vectors = (first.at / lanes, (last.at + last.len).div_ceil(lanes));
        found.whole = covered == (found.vectors.1 - found.vectors.0) * lanes;
    }
    found
}

/// Copies `depth` channels from number `begin` on of a panel's element, the vectors that have it.
///
/// # Safety
/// What runs say is readable for each channel, and `to` writable for `PANEL` elements for each.
unsafe fn copy<K: Tiles>(
    from: *const K::Element,
    (w, panel): (&Windows<'_>, &Panel<WIDEST>),
    (begin, depth): (usize, usize),
    to: *mut K::Element,
) {
    let stride = w.across.last().map_or(1, |d| d.stride);
    let channels = &w.along[w.axes.len()..];
    let one = [StridedDim { extent: 1, stride: 0 }];
    let mut along = Place::new(if channels.is_empty() { &one } else { channels }, begin);
    let (first, last) = (panel.vectors.0 * K::LANES, panel.vectors.1 * K::LANES);
    for d in 0..depth {
        let (line, room) = (from.wrapping_offset(along.offset), to.wrapping_add(d * K::PANEL));
        // SAFETY: the caller's promise.
        unsafe {
            if !panel.whole {
                (first..last).for_each(|a| *room.add(a) = K::ZERO);
            }
            for run in &panel.runs[..panel.count] {
                let (line, room) = (line.wrapping_offset(run.offset), room.wrapping_add(run.at));
                match stride {
                    1 => pack::copy_run(line, room, run.len),
                    _ => (0..run.len).for_each(|a| *room.add(a) = *line.wrapping_offset(a as isize * stride)),
                }
            }
        }
        along.advance(1);
    }
}

/// Elements of scratch that so many windows and rows take.
pub(super) fn scratch<K: Tiles>(w: &Windows<'_>, wide: usize) -> usize {
    let depth = block::<K>(w.channels());
    let panels = wide.div_ceil(K::PANEL).min(panels_of_a_pass::<K>());
    (panels * K::PANEL + STRIPS_AT_ONCE * K::STRIP).saturating_mul(depth)
}

/// Computes a part.
///
/// # Safety
/// What windows have of their axes and the rows can be read, and the results written, which overlap neither; nobody else uses the scratch, which
/// has room for as many elements as [`scratch`] says. This machine has the instruction set of `K`.
pub(super) unsafe fn run<K: Tiles>(p: &Part<'_, K::Element>, scratch: *mut K::Element) {
    const { assert!(K::PANEL <= WIDEST) };
    let (w, wide) = (&p.windows, p.wide);
    let (down, across_results) = p.result_strides;
    let (next_row, along_rows) = p.row_strides;
    for i in 0..p.row_count as isize {
        for j in 0..wide as isize {
            // SAFETY: an element of the result.
            unsafe { *p.results.wrapping_offset(i * down + j * across_results) = K::ZERO };
        }
    }
    let size = size_of::<K::Element>();
    let channels = w.channels();
    let block = block::<K>(channels);
    let pass = panels_of_a_pass::<K>().min(MAX_PANELS) * K::PANEL;
    let strips = scratch.wrapping_add(wide.div_ceil(K::PANEL).min(pass / K::PANEL) * K::PANEL * block);
    let far = [p.row_count, channels, w.elements()]
        .into_iter()
        .fold(size, usize::saturating_mul)
        > second_level_bytes() / 2;
    for first in (0..wide).step_by(pass) {
        let across = pass.min(wide - first);
        for element in 0..w.elements() {
            let (inside, offset) = w.element(element);
            let of = |left: usize| {
                panel(
                    w,
                    &inside,
                    w.first + first + left,
                    K::PANEL.min(across - left),
                    K::LANES,
                )
            };
            let mut vectors = [(0, 0); MAX_PANELS];
            for (v, left) in vectors.iter_mut().zip((0..across).step_by(K::PANEL)) {
                *v = of(left).vectors;
            }
            let used = vectors.iter().filter(|v| v.0 < v.1).count();
            if used == 0 {
                continue;
            }
            let pack_strips = along_rows != 1 && used > MANY_PANELS;
            for begin in (0..channels).step_by(block) {
                let depth = block.min(channels - begin);
                for (v, left) in vectors
                    .iter()
                    .zip((0..across).step_by(K::PANEL))
                    .filter(|(v, _)| v.0 < v.1)
                {
                    let panel = of(left);
                    debug_assert_eq!(*v, panel.vectors);
                    let to = scratch.wrapping_add(left * depth);
                    // SAFETY: runs are elements of the axes, and scratch has room for a block of each panel.
                    unsafe { copy::<K>(p.image.wrapping_offset(offset), (w, &panel), (begin, depth), to) };
                }
                let sum = (element * channels + begin) as isize * along_rows;
                for top in (0..p.row_count).step_by(K::STRIP) {
                    let height = K::STRIP.min(p.row_count - top);
                    let mut strip = p.rows.wrapping_offset(top as isize * next_row + sum);
                    let (mut step, mut next) = (along_rows, next_row);
                    if far && along_rows == 1 && next_row.unsigned_abs() * size >= FAR_ROWS {
                        // The next strip's rows, which lie where no prefetcher looks.
                        for i in K::STRIP..(2 * K::STRIP).min(p.row_count - top) {
                            prefetch_row(strip.wrapping_offset(i as isize * next_row), depth, size);
                        }
                    }
                    if pack_strips {
                        let behind = top / K::STRIP % STRIPS_AT_ONCE;
                        if behind == 0 {
                            let source = pack::Source {
                                start: strip,
                                across: (STRIPS_AT_ONCE * K::STRIP).min(p.row_count - top),
                                depth,
                                stride_across: next_row,
                                stride_depth: along_rows,
                            };
                            // SAFETY: the source is part of the operand, and scratch has room for these strips of a block.
                            unsafe { K::pack_strips(source, strips) };
                        }
                        strip = strips.wrapping_add(behind * depth * K::STRIP);
                        (step, next) = (K::STRIP as isize, 1);
                    }
                    for (v, left) in vectors
                        .iter()
                        .zip((0..across).step_by(K::PANEL))
                        .filter(|(v, _)| v.0 < v.1)
                    {
                        let (begin, end) = (left + v.0 * K::LANES, (left + v.1 * K::LANES).min(across));
                        let width = end - begin;
                        let to = top as isize * down + (first + begin) as isize * across_results;
                        let kernel = K::kernel(width.div_ceil(K::LANES), height);
                        // SAFETY: the tile lies in the result, strip and panel in the operands or in scratch, where panels are whole vectors.
                        unsafe {
                            kernel(
                                width,
                                height,
                                depth,
                                p.results.wrapping_offset(to),
                                scratch.wrapping_add(left * depth + v.0 * K::LANES),
                                strip,
                                down,
                                across_results,
                                K::PANEL as isize,
                                step,
                                next,
                                K::ONE,
                                K::ONE,
                                1,
                                false,
                                false,
                                false,
                                std::ptr::null(),
                            );
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Avx512F32, FmaF32, ScalarF32, ScalarF64, Set, set};
    use super::*;
    use tlc_ir::rng::Rng;

    /// Windows over two axes, rows and columns, of some channels.
    struct Case {
        channels: usize,
        image: [usize; 2],
        kernel: [usize; 2],
        stride: [usize; 2],
        dilation: [usize; 2],
        before: [isize; 2],
        places: [usize; 2],
        rows: usize,
        first: usize,
    }

    impl Case {
        fn random(rng: &mut Rng) -> Case {
            let side = |rng: &mut Rng| rng.pick(&[0usize, 1, 2, 5, 13, 14, 16, 31, 40]);
            let image = [side(rng), side(rng)];
            let places = [rng.pick(&[1, 2, 3, 9, 14]), rng.pick(&[1, 4, 7, 14, 16, 20, 70])];
            Case {
                channels: rng.pick(&[1, 3, 7, 600]),
                image,
                kernel: [rng.pick(&[1, 2, 3]), rng.pick(&[1, 3, 4])],
                stride: [(); 2].map(|()| rng.pick(&[1, 1, 2, 3])),
                dilation: [(); 2].map(|()| rng.pick(&[1, 2, 6, 12, 50])),
                before: [(); 2].map(|()| rng.pick(&[-3, 0, 1, 6, 12, 40])),
                places,
                rows: rng.pick(&[1, 2, 6, 7, 20]),
                first: rng.pick(&[0, 0, 1, 5]).min(places[0] * places[1] - 1),
            }
        }

        /// The results by the definition, each in f64.
        fn meant(&self, image: &[f32], rows: &[f32]) -> Vec<f64> {
            let [kh, kw] = self.kernel;
            let depth = kh * kw * self.channels;
            let windows = self.first..self.places[0] * self.places[1];
            let element = |window: usize, t: usize| {
                let (c, t) = (t % self.channels, t / self.channels);
                let numbers = [[window / self.places[1], t / kw], [window % self.places[1], t % kw]];
                let mut at = [0; 2];
                for (k, [place, number]) in numbers.into_iter().enumerate() {
                    let i = (place * self.stride[k] + number * self.dilation[k]) as isize - self.before[k];
                    at[k] = usize::try_from(i).ok().filter(|i| *i < self.image[k])?;
                }
                Some(f64::from(image[(c * self.image[0] + at[0]) * self.image[1] + at[1]]))
            };
            let result = |row: usize, window: usize| {
                let products = (0..depth).filter_map(|t| Some(element(window, t)? * f64::from(rows[row * depth + t])));
                products.sum()
            };
            let windows = &windows;
            (0..self.rows)
                .flat_map(|r| windows.clone().map(move |w| (r, w)))
                .map(|(r, w)| result(r, w))
                .collect()
        }

        fn found<K: Tiles>(&self, image: &[K::Element], rows: &[K::Element]) -> Vec<K::Element> {
            let [h, w] = self.image;
            let dim = |extent: usize, stride: usize| StridedDim {
                extent,
                stride: stride as isize,
            };
            let across = [
                dim(self.places[0], self.stride[0] * w),
                dim(self.places[1], self.stride[1]),
            ];
            let along = [
                dim(self.kernel[0], self.dilation[0] * w),
                dim(self.kernel[1], self.dilation[1]),
                dim(self.channels, h * w),
            ];
            let axes = [0, 1].map(|k| WindowedAxis {
                place: k,
                stride: self.stride[k],
                dilation: self.dilation[k],
                before: self.before[k],
                extent: self.image[k],
                step: [w as isize, 1][k],
            });
            let windows = Windows {
                across: &across,
                along: &along,
                axes: &axes,
                first: self.first,
            };
            let wide = self.places[0] * self.places[1] - self.first;
            let mut results = vec![K::ONE; self.rows * (wide + 1)];
            let mut room = vec![K::ONE; scratch::<K>(&windows, wide)];
            let depth = windows.elements() * windows.channels();
            let part = Part {
                image: image.as_ptr(),
                windows,
                wide,
                rows: rows.as_ptr(),
                row_count: self.rows,
                row_strides: (depth as isize, 1),
                results: results.as_mut_ptr(),
                result_strides: (wide as isize + 1, 1),
            };
            // SAFETY: the vectors have so many elements, and the caller looked for the instructions.
            unsafe { run::<K>(&part, room.as_mut_ptr()) };
            results.chunks(wide + 1).flat_map(|row| row[..wide].to_vec()).collect()
        }
    }

    #[test]
    fn what_windows_have_of_their_axes_is_multiplied_and_nothing_else() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let case = Case::random(&mut rng);
            // Whole numbers, whose sums are exact in any order.
            let mut values = |n: usize| -> Vec<f32> { (0..n).map(|_| (rng.bits() % 9) as f32 - 4.0).collect() };
            let image = values(case.channels * case.image[0] * case.image[1]);
            let rows = values(case.rows * case.kernel[0] * case.kernel[1] * case.channels);
            let meant = case.meant(&image, &rows);
            let check = |name: &str, found: Vec<f32>| {
                let found: Vec<f64> = found.into_iter().map(f64::from).collect();
                assert_eq!(found, meant, "{name}, seed {seed}");
            };
            check("scalar", case.found::<ScalarF32>(&image, &rows));
            if set() != Set::Scalar {
                check("AVX2", case.found::<FmaF32>(&image, &rows));
            }
            if set() == Set::Avx512 {
                check("AVX-512", case.found::<Avx512F32>(&image, &rows));
            }
            let wide = |v: &[f32]| -> Vec<f64> { v.iter().map(|x| f64::from(*x)).collect() };
            assert_eq!(
                case.found::<ScalarF64>(&wide(&image), &wide(&rows)),
                meant,
                "f64, seed {seed}"
            );
        }
    }
}
