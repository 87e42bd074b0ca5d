//! Resampling along an axis: each place of the result lies somewhere between places of the operand, and is a weighted sum
//! of its neighbours.
//!
//! Places and weights are computed by the graph, in f64, from the extents: so the extents may be symbols, and where they are
//! numbers the computation runs once per executable. Formulas: the ONNX operator Resize, which has those of the common
//! frameworks.

use tlc_ir::{DType, IndexExpr};

use crate::dim::Dim;
use crate::graph::Tensor;
use crate::graph::scope::{Step, op, refuse_expecting};

/// To which whole number a place is rounded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rounding {
    /// The nearest, the lower of two.
    HalfDown,
    /// The nearest, the higher of two.
    HalfUp,
    /// The nearest, the even one of two.
    HalfEven,
    /// The next lower.
    Floor,
    /// The next higher.
    Ceil,
}

impl Rounding {
    pub(crate) fn of(self, at: &Tensor) -> Tensor {
        match self {
            Rounding::HalfDown => (at - 0.5).ceil(),
            Rounding::HalfUp => (at + 0.5).floor(),
            Rounding::HalfEven => at.round(),
            Rounding::Floor => at.floor(),
            Rounding::Ceil => at.ceil(),
        }
    }
}

/// What the value between places is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Interpolation {
    /// That of one place.
    Nearest(Rounding),
    /// On the line between the two neighbours.
    Linear,
    /// Cubic convolution over four neighbours with this coefficient (R. Keys, "Cubic convolution interpolation for digital
    /// image processing", 1981); -0.5 and -0.75 are usual.
    Cubic(f64),
}

impl Interpolation {
    /// How far away a neighbour may lie.
    fn reach(self) -> f64 {
        match self {
            Interpolation::Nearest(_) => 0.0,
            Interpolation::Linear => 1.0,
            Interpolation::Cubic(_) => 2.0,
        }
    }

    /// The weight of a neighbour at that distance (any sign).
    pub(crate) fn weight(self, distance: &Tensor) -> Tensor {
        let x = distance.abs();
        match self {
            Interpolation::Nearest(_) => x.ones_like(),
            Interpolation::Linear => (1.0 - &x).maximum(0.0),
            Interpolation::Cubic(a) => {
                let near = (((a + 2.0) * &x - (a + 3.0)) * &x) * &x + 1.0;
                let far = ((a * &x - 5.0 * a) * &x + 8.0 * a) * &x - 4.0 * a;
                x.le(1.0).select(near, x.lt(2.0).select(far, 0.0))
            }
        }
    }

    /// The first neighbour, counted from the floor of a place, and how many there are, where distances shrink by `stretch`.
    fn window(self, stretch: f64) -> (i64, i64) {
        let start = (-self.reach() / stretch).floor() as i64 + 1;
        (start, (2 - 2 * start).max(2))
    }
}

/// Where place `i` of the result lies in the operand; `n` is the operand's extent, `m` the result's, `s` the scale.
#[derive(Clone, Debug)]
pub enum Coordinates {
    /// `(i + 0.5) / s - 0.5`: elements are areas.
    HalfPixel,
    /// [`Coordinates::HalfPixel`], moved so that the middles coincide where `m` is not `n s`.
    HalfPixelSymmetric,
    /// [`Coordinates::HalfPixel`], and 0 where `m` is 1.
    HalfPixelOrStart,
    /// `(i + 0.5) / s`.
    HalfPixelUnshifted,
    /// `i (n - 1) / (n s - 1)`: elements are points, and the ends coincide.
    AlignCorners,
    /// `i / s`.
    Asymmetric,
    /// From the part of the operand between two rank-0 tensors (0 is its start, 1 its end): elements are points. Places
    /// outside the operand take the value given.
    Crop(Tensor, Tensor, f64),
}

/// How [`Tensor::resample`] goes about it.
#[derive(Clone, Debug)]
pub struct Resample {
    interpolation: Interpolation,
    coordinates: Coordinates,
    scale: Option<f64>,
    exclude_outside: bool,
    antialias: bool,
}

/// More neighbours than this are summed by a reduction.
const UNROLLED: i64 = 4;
/// The most neighbours that a place may have.
const MAX_NEIGHBOURS: i64 = 1 << 20;

impl Resample {
    /// Half-pixel coordinates, the scale that the extents say, places beyond the ends as the ends.
    pub fn new(interpolation: Interpolation) -> Resample {
        Resample {
            interpolation,
            coordinates: Coordinates::HalfPixel,
            scale: None,
            exclude_outside: false,
            antialias: false,
        }
    }

    /// Where places lie.
    pub fn coordinates(mut self, coordinates: Coordinates) -> Resample {
        self.coordinates = coordinates;
        self
    }

    /// The scale, where it is not the quotient of the extents.
    pub fn scale(mut self, scale: f64) -> Resample {
        self.scale = Some(scale);
        self
    }

    /// Neighbours beyond the ends have no weight, instead of being the end.
    pub fn exclude_outside(mut self) -> Resample {
        self.exclude_outside = true;
        self
    }

    /// Downward, neighbours are taken from as wide around as one place of the result covers.
    pub fn antialias(mut self) -> Resample {
        self.antialias = true;
        self
    }

    /// Where the places of the result lie, in f64.
    fn places(&self, x: &Tensor, axis: usize, length: &Dim) -> Step {
        let graph = x.graph();
        let i = graph.iota_1d(length.expr(), DType::F64)?;
        let (n, m) = (
            graph.dim_value(&x.dim(axis as i64), DType::F64)?,
            graph.dim_value(length, DType::F64)?,
        );
        let scale = match self.scale {
            Some(s) => graph.scalar(s, DType::F64),
            None => &m / &n,
        };
        let unless_one = |otherwise: Tensor| match length.as_const() {
            Some(1) => otherwise.zeros_like(),
            Some(_) => otherwise,
            None => m.eq(1.0).select(0.0, otherwise),
        };
        let half = (&i + 0.5) / &scale;
        Ok(match &self.coordinates {
            Coordinates::HalfPixel => half - 0.5,
            Coordinates::HalfPixelSymmetric => &n / 2.0 * (1.0 - &m / (&n * &scale)) + (half - 0.5),
            Coordinates::HalfPixelOrStart => unless_one(half - 0.5),
            Coordinates::HalfPixelUnshifted => half,
            Coordinates::AlignCorners => unless_one(&i * (&n - 1.0) / (&n * &scale - 1.0)),
            Coordinates::Asymmetric => i / &scale,
            Coordinates::Crop(start, end, _) => {
                let (start, end) = (start.to(DType::F64)?, end.to(DType::F64)?);
                let (last, span) = (&n - 1.0, end - &start);
                let middle = &span * &last / 2.0;
                let along = match length.as_const() {
                    Some(1) => i.zeros_like() + middle,
                    Some(_) => &i * &span * &last / (&m - 1.0),
                    None => m.eq(1.0).select(middle, &i * &span * &last / (&m - 1.0)),
                };
                start * last + along
            }
        })
    }

    /// Whether each element is only repeated, and how often.
    fn repeats(&self, x: &Tensor, axis: usize, length: &Dim) -> Option<i64> {
        let plain = matches!(
            (&self.coordinates, self.interpolation),
            (Coordinates::Asymmetric, Interpolation::Nearest(Rounding::Floor))
                | (
                    Coordinates::HalfPixel | Coordinates::HalfPixelSymmetric | Coordinates::HalfPixelOrStart,
                    Interpolation::Nearest(Rounding::HalfDown | Rounding::HalfUp | Rounding::HalfEven),
                )
        );
        let extent = x.dim(axis as i64);
        let times = match (self.scale, extent.as_const(), length.as_const()) {
            (Some(s), ..) if s.fract() == 0.0 && (1.0..1e6).contains(&s) => s as i64,
            (None, Some(n), Some(m)) if n > 0 && m % n == 0 => m / n,
            _ => return None,
        };
        (plain && times > 0 && &extent * times == *length).then_some(times)
    }
}

/// The float type in which neighbours of a type are weighed: one that has all of its values, but for integers of 64 bits.
pub fn weighed_in(dtype: DType) -> DType {
    match dtype {
        d if d.is_float() => d.accumulator(),
        DType::Bool | DType::I8 | DType::U8 | DType::I16 | DType::U16 => DType::F32,
        _ => DType::F64,
    }
}

impl Tensor {
    /// The tensor with `length` places along an axis, each from its neighbours as `options` say. Integers are computed as
    /// floats and rounded half to even; weights of f16 and bf16 are f32.
    ///
    /// # Errors
    /// An empty axis, a scale that is not positive, `antialias` without a scale over an axis of symbolic extent.
    #[track_caller]
    pub fn resample(&self, axis: i64, length: impl Into<Dim>, options: &Resample) -> Tensor {
        let length = length.into();
        op("resample", &[self], || {
            let axis = self.axis(axis)?;
            let extent = self.dim(axis as i64);
            if extent.as_const() == Some(0) && length.as_const() == Some(0) {
                return Ok(self.clone());
            }
            if extent.as_const() == Some(0) {
                return refuse_expecting(format!("axis {axis} is empty"), "at least one element");
            }
            if let Some(s) = options.scale.filter(|s| !(*s > 0.0 && s.is_finite())) {
                return refuse_expecting(format!("a scale of {s}"), "a positive number");
            }
            if let Some(times) = options.repeats(self, axis, &length) {
                return Ok(self.repeat(times, axis as i64));
            }
            let places = options.places(self, axis, &length)?;
            let y = self.resampled(axis, &length, options, &places)?;
            let Coordinates::Crop(_, _, outside) = &options.coordinates else {
                return Ok(y);
            };
            let last = self.graph().dim_value(&(extent - 1), DType::F64)?;
            let inside = places.ge(0.0).logical_and(places.le(last));
            let outside = tlc_ir::Scalar::from_f64(self.dtype(), *outside);
            Ok(self.column(&inside, axis)?.select(y, outside))
        })
    }

    /// A vector along one axis of a tensor of this rank.
    fn column(&self, v: &Tensor, axis: usize) -> Step {
        let mut shape = vec![IndexExpr::ONE; self.rank()];
        shape[axis] = v.extents()[0].clone();
        v.reshaped(&shape)
    }

    fn resampled(&self, axis: usize, length: &Dim, options: &Resample, places: &Tensor) -> Step {
        let graph = self.graph();
        // All places of one element have its value, to the bit: neighbours with weights add up to nearly that.
        let (one, extent) = (!options.exclude_outside, &self.extents()[axis]);
        if one && extent.is(1) {
            let mut shape: Vec<Dim> = self.extents().iter().cloned().map(Dim::from).collect();
            shape[axis] = length.clone();
            return Ok(self.expand(shape));
        }
        let perhaps_one =
            one && !matches!(options.interpolation, Interpolation::Nearest(_)) && graph.least(extent) <= 1;
        let mut last = self.dim(axis as i64) - 1;
        if options.scale.is_some() {
            // A scale makes nothing of nothing; a length asks for an element.
            last = last.max(0);
        }
        let last = graph.dim_value(&last, DType::I64)?;
        // Indices of 32 bits, where the axis has no more elements: as many in a vector as there are floats.
        let most = self.extents()[axis].clone() - IndexExpr::ONE;
        let short = graph.with_ir(|ir| most.interval(ir).hi) <= i64::from(i32::MAX);
        let within = |at: &Tensor| -> Step {
            let at = at.maximum(0).minimum(&last);
            if short { at.to(DType::I32) } else { Ok(at) }
        };
        if let Interpolation::Nearest(rounding) = options.interpolation {
            let at = within(&rounding.of(places).to(DType::I64)?)?;
            return Ok(self.take_from_start(&at, axis as i64));
        }
        let stretch = match (options.antialias, options.scale) {
            (false, _) => 1.0,
            (true, Some(s)) => s.min(1.0),
            (true, None) => match (self.dim(axis as i64).as_const(), length.as_const()) {
                (Some(n), Some(m)) => (m as f64 / n as f64).min(1.0),
                _ => {
                    return refuse_expecting(
                        format!("antialias over axis {axis} of symbolic extent"),
                        "a scale, or extents that are numbers",
                    );
                }
            },
        };
        let (start, count) = options.interpolation.window(stretch);
        if count > MAX_NEIGHBOURS {
            return refuse_expecting(
                format!("{count} neighbours of a place"),
                format!("at most {MAX_NEIGHBOURS}"),
            );
        }
        let dtype = self.dtype();
        let wide = weighed_in(dtype);
        // One row for each place, one column for each neighbour.
        let floor = places.floor();
        let offsets = graph.iota_1d(&count.into(), DType::I64)? + start;
        let index = floor.to(DType::I64)?.unsqueeze(1) + &offsets;
        let distance = (offsets.to(DType::F64)? - (places - &floor).unsqueeze(1)) * stretch;
        let mut weights = options.interpolation.weight(&distance);
        if options.exclude_outside {
            let inside = index.ge(0).logical_and(index.le(&last));
            weights = inside.select(weights, 0.0);
        }
        if options.antialias || options.exclude_outside {
            let total = weights.sum(crate::keep(1));
            weights = total.eq(0.0).select(&weights, &weights / &total);
        }
        let (index, weights) = (within(&index)?, weights.to(wide)?);
        let rounded = |y: Tensor| if dtype.is_float() { y } else { y.round() };
        if count > UNROLLED {
            let all = self.take_from_start(&index, axis as i64).to(wide)?;
            let mut shape = vec![IndexExpr::ONE; self.rank() + 1];
            shape[axis] = length.expr().clone();
            shape[axis + 1] = count.into();
            let y = rounded((all * weights.reshaped(&shape)?).sum(axis as i64 + 1)).to(dtype)?;
            return match perhaps_one {
                true => self.unless_one(axis, y, &self.take_from_start(&index.select_index(1, 0), axis as i64)),
                false => Ok(y),
            };
        }
        let (mut sum, mut first): (Option<Tensor>, Option<Tensor>) = (None, None);
        for k in 0..count {
            let weight = self.column(&weights.select_index(1, k), axis)?;
            let element = self.take_from_start(&index.select_index(1, k), axis as i64);
            let part = element.to(wide)? * weight;
            first = first.or(Some(element));
            sum = Some(match sum {
                Some(s) => s + part,
                None => part,
            });
        }
        let y = rounded(sum.unwrap_or_else(|| self.clone())).to(dtype)?;
        match first.filter(|_| perhaps_one) {
            Some(first) => self.unless_one(axis, y, &first),
            None => Ok(y),
        }
    }

    /// The neighbours themselves where the axis turns out to have but one element, else what they add up to.
    fn unless_one(&self, axis: usize, sum: Tensor, first: &Tensor) -> Step {
        let extent = self.graph().dim_value(&self.dim(axis as i64), DType::I64)?;
        Ok(extent.eq(1).select(first, sum))
    }
}
