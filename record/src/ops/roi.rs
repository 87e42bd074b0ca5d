//! Pooling over regions that are data: each region of an image becomes a grid of cells.

use tlc_ir::{DType, IndexExpr};

use super::resample::Interpolation;
use super::sample::{neighbours, sum_of_taps, wide_of};
use crate::dim::Dim;
use crate::graph::Tensor;
use crate::graph::scope::{Step, op, refuse_expecting};

/// How [`Tensor::roi_align`] goes about it.
#[derive(Clone, Debug)]
pub struct RoiAlign {
    /// Rows and columns of cells.
    pub cells: [usize; 2],
    /// Rows and columns of samples in a cell.
    pub samples: [usize; 2],
    /// `[regions, 2]`: how many of those each region takes; all, if not given.
    pub counts: Option<Tensor>,
    /// What coordinates are multiplied with to count elements.
    pub scale: f64,
    /// Elements are areas: coordinates lie half an element lower. Otherwise a region is at least one element wide.
    pub half_pixel: bool,
    /// The largest of the weighted neighbours of all samples, instead of the mean of the samples.
    pub max: bool,
}

fn both(a: Option<Tensor>, b: Tensor) -> Option<Tensor> {
    Some(match a {
        Some(a) => a.logical_and(b),
        None => b,
    })
}

impl Tensor {
    /// For each region `[x1, y1, x2, y2]` of `regions` (`[r, 4]`) of the image `images[r]` a grid of cells, each the mean of
    /// bilinear samples (He et al., "Mask R-CNN", arXiv:1703.06870): `self` is `[batch, channels, height, width]`, the
    /// result `[r, channels, cells..]`. Samples more than one element outside are zero.
    ///
    /// # Errors
    /// Other shapes, no cells or no samples.
    #[track_caller]
    pub fn roi_align(&self, regions: &Tensor, images: &Tensor, options: &RoiAlign) -> Tensor {
        op("roi_align", &[self, regions, images], || {
            self.exactly_rank("images", 4)?;
            regions.exactly_rank("regions", 2)?;
            images.exactly_rank("image numbers", 1)?;
            regions.extent_is("the regions", 1, &IndexExpr::Const(4))?;
            images.extent_is("the image numbers", 0, &regions.extents()[0])?;
            if options.cells.contains(&0) || options.samples.contains(&0) {
                return refuse_expecting("no cells or no samples", "at least one");
            }
            let (wide, graph) = (wide_of(self.dtype()), self.graph());
            let shift = if options.half_pixel { 0.5 } else { 0.0 };
            let boxed = regions.to(wide)? * options.scale - shift;
            // Axes: region, rows of cells, columns of cells, rows of samples, columns of samples.
            let per_region = |t: Tensor| t.reshape([regions.dim(0), 1.into(), 1.into(), 1.into(), 1.into()]);
            let along = |at: usize, extent: usize| -> Step {
                let mut shape = vec![IndexExpr::ONE; 5];
                shape[at] = extent.into();
                graph.iota_1d(&extent.into(), wide)?.reshaped(&shape)
            };
            let (mut taps, mut inside, mut taken, mut total) = (vec![], None, None, None);
            for (axis, (first, last)) in [(1, 3), (0, 2)].into_iter().enumerate() {
                let (start, end) = (boxed.select_index(1, first), boxed.select_index(1, last));
                let mut size = end - &start;
                if !options.half_pixel {
                    size = size.maximum(1.0);
                }
                let cell = per_region(size / options.cells[axis] as f64);
                let (cells, samples) = (
                    along(1 + axis, options.cells[axis])?,
                    along(3 + axis, options.samples[axis])?,
                );
                let count = match &options.counts {
                    Some(counts) => per_region(counts.select_index(1, axis as i64).to(wide)?),
                    None => graph.scalar(options.samples[axis] as f64, wide),
                };
                // A region that ends before it begins may have no samples. Nothing of it is taken, but a derivative needs what is not to be finite.
                let some = match &options.counts {
                    Some(_) => count.maximum(1.0),
                    None => count.clone(),
                };
                let at = per_region(start) + cells * &cell + (&samples + 0.5) * &cell / some;
                let n = graph.dim_value(&self.dim(2 + axis as i64), wide)?;
                inside = both(inside, at.ge(-1.0).logical_and(at.le(&n)));
                taken = both(taken, samples.lt(&count));
                total = Some(match total {
                    Some(t) => t * &count,
                    None => count,
                });
                let last = n - 1.0;
                let at = at.maximum(0.0).minimum(&last);
                taps.push(neighbours(&at, Interpolation::Linear, wide, |i| Ok(i.minimum(&last)))?);
            }
            let fixed = [(0, per_region(images.to(DType::I64)?))];
            let shown = |mask: Option<Tensor>, t: &Tensor, otherwise: f64| match mask {
                Some(mask) => mask.unsqueeze(-1).select(t, otherwise),
                None => t.clone(),
            };
            let values = if options.max {
                let mut largest: Option<Tensor> = None;
                for a in &taps[0] {
                    for b in &taps[1] {
                        let part = sum_of_taps(self, &fixed, &[2, 3], &[vec![a.clone()], vec![b.clone()]], wide)?;
                        largest = Some(match largest {
                            Some(l) => l.maximum(part),
                            None => part,
                        });
                    }
                }
                let samples = shown(inside, &largest.unwrap_or_else(|| self.clone()), 0.0);
                let y = shown(taken, &samples, f64::NEG_INFINITY).max([3, 4]);
                // A region without samples.
                y.eq(f64::NEG_INFINITY).select(0.0, y)
            } else {
                let samples = shown(inside, &sum_of_taps(self, &fixed, &[2, 3], &taps, wide)?, 0.0);
                let sum = shown(taken, &samples, 0.0).sum([3, 4]);
                match total {
                    Some(t) if t.rank() > 0 => {
                        sum / t.maximum(1.0).reshape([regions.dim(0), 1.into(), 1.into(), 1.into()])
                    }
                    Some(t) => sum / t,
                    None => sum,
                }
            };
            values.move_axis(-1, 1).to(self.dtype())
        })
    }

    /// For each region `[image, x1, y1, x2, y2]` of `regions` (`[r, 5]`, multiplied with `scale` and rounded) a grid of
    /// cells, each the maximum of the elements that it covers, zero where it covers none (Girshick, "Fast R-CNN",
    /// arXiv:1504.08083): `self` is `[batch, channels, height, width]`, the result `[r, channels, cells..]`.
    ///
    /// # Errors
    /// Other shapes.
    #[track_caller]
    pub fn roi_max_pool(&self, regions: &Tensor, cells: [usize; 2], scale: f64) -> Tensor {
        op("roi_max_pool", &[self, regions], || {
            self.exactly_rank("images", 4)?;
            regions.exactly_rank("regions", 2)?;
            regions.extent_is("the regions", 1, &IndexExpr::Const(5))?;
            let (wide, graph) = (wide_of(regions.dtype()), self.graph());
            // Halves are rounded away from zero.
            let scaled = regions.to(wide)? * scale;
            let rounded = (scaled.abs() + 0.5).floor() * scaled.sign();
            let mut y = self.take_from_start(&regions.select_index(1, 0).to(DType::I64)?, 0);
            let mut empty: Option<Tensor> = None;
            // Columns, then rows: each pass leaves cells where the elements of that axis were.
            for (axis, first) in [(3usize, 1i64), (2, 2)] {
                let count = cells[axis - 2];
                let (start, end) = (rounded.select_index(1, first), rounded.select_index(1, first + 2));
                let cell = ((end - &start + 1.0).maximum(1.0) / count as f64).unsqueeze(1);
                let start = start.unsqueeze(1);
                let i = graph.iota_1d(&count.into(), wide)?;
                let n = graph.dim_value(&self.dim(axis as i64), wide)?;
                let within = |t: Tensor| t.maximum(0.0).minimum(&n);
                let lo = within((&i * &cell).floor() + &start);
                let hi = within(((&i + 1.0) * &cell).ceil() + &start);
                // [r, cells] to the rank of `y`, cells along `axis`.
                let placed = |t: &Tensor, behind: Option<Dim>| {
                    let mut shape = vec![Dim::from(1); 4];
                    (shape[0], shape[axis]) = (regions.dim(0), count.into());
                    shape.extend(behind.clone());
                    // Elements of the axis lie behind its cells.
                    if behind.is_some() {
                        let last = shape.remove(4);
                        shape.insert(axis + 1, last);
                    }
                    t.reshape(shape)
                };
                let elements = graph.iota_1d(&self.extents()[axis], wide)?;
                let covered = elements.ge(lo.unsqueeze(-1)).logical_and(elements.lt(hi.unsqueeze(-1)));
                let covered = placed(&covered, Some(self.dim(axis as i64)));
                y = covered
                    .select(y.unsqueeze(axis as i64), self.dtype().lowest())
                    .max(axis as i64 + 1);
                let none = placed(&hi.le(&lo), None);
                empty = Some(match empty {
                    Some(e) => e.logical_or(none),
                    None => none,
                });
            }
            Ok(match empty {
                Some(empty) => empty.select(self.dtype().zero(), y),
                None => y,
            })
        })
    }
}
