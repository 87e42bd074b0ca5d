//! Resize: each axis by itself, as a few weighted neighbours of each place.
//!
//! Places and weights follow the formulas of the operator's document (onnx.ai, Resize-19); they are computed here, in f64,
//! so the graph only gathers and adds.

use tlc_ir::{DType, HostTensor};

use crate::onnx::call::{Answer, Call, one};
use crate::onnx::refusal::{Outcome, invalid, unsupported};
use crate::tensor::Tensor;

/// How places and weights are chosen.
struct Sampling {
    mode: String,
    coordinates: String,
    nearest: String,
    cubic: f64,
    exclude_outside: bool,
    antialias: bool,
    extrapolation: f64,
}

/// One axis: its extent, what it becomes, and the part of it that is taken.
struct Axis {
    extent: usize,
    result: usize,
    scale: f64,
    roi: (f64, f64),
}

/// The most weights that one axis may have.
const MAX_WEIGHTS: usize = 1 << 24;

impl Sampling {
    /// Where place `i` of the result lies in the operand.
    fn original(&self, a: &Axis, i: usize) -> Outcome<f64> {
        let (x, n) = (i as f64, a.extent as f64);
        let exact = n * a.scale;
        let half = (x + 0.5) / a.scale - 0.5;
        Ok(match self.coordinates.as_str() {
            "half_pixel" => half,
            "half_pixel_symmetric" => n / 2.0 * (1.0 - a.result as f64 / exact) + half,
            "pytorch_half_pixel" if a.result == 1 => 0.0,
            "pytorch_half_pixel" => half,
            "align_corners" if a.result == 1 => 0.0,
            "align_corners" => x * (n - 1.0) / (exact - 1.0),
            "asymmetric" => x / a.scale,
            "tf_crop_and_resize" => {
                let (start, end) = a.roi;
                let within = match a.result {
                    1 => (end - start) * (n - 1.0) / 2.0,
                    m => x * (end - start) * (n - 1.0) / (m as f64 - 1.0),
                };
                start * (n - 1.0) + within
            }
            other => {
                return invalid(format!(
                    "coordinate_transformation_mode `{other}`; expected one of Resize's"
                ));
            }
        })
    }

    fn kernel(&self, x: f64) -> f64 {
        let (x, a) = (x.abs(), self.cubic);
        match self.mode.as_str() {
            "linear" => (1.0 - x).max(0.0),
            _ if x <= 1.0 => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
            _ if x < 2.0 => ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a,
            _ => 0.0,
        }
    }

    /// For each neighbour, the operand's place and the weight of every place of the result.
    fn neighbours(&self, a: &Axis) -> Outcome<Vec<(Vec<i64>, Vec<f64>)>> {
        let last = a.extent as i64 - 1;
        if self.mode == "nearest" {
            let mut places = Vec::with_capacity(a.result);
            for i in 0..a.result {
                let x = self.original(a, i)?;
                let at = match self.nearest.as_str() {
                    "round_prefer_floor" => (x - 0.5).ceil(),
                    "round_prefer_ceil" => (x + 0.5).floor(),
                    "floor" => x.floor(),
                    "ceil" => x.ceil(),
                    other => return invalid(format!("nearest_mode `{other}`; expected one of Resize's")),
                };
                places.push((at as i64).clamp(0, last));
            }
            return Ok(vec![(places, vec![])]);
        }
        let stretch = if self.antialias { a.scale.min(1.0) } else { 1.0 };
        let reach = if self.mode == "linear" { 1.0 } else { 2.0 };
        let start = (-reach / stretch).floor() as i64 + 1;
        let count = (2 - 2 * start).max(2) as usize;
        if count.saturating_mul(a.result) > MAX_WEIGHTS {
            return unsupported(format!("{count} neighbours of {} places; expected fewer", a.result));
        }
        let mut all = vec![(vec![0; a.result], vec![0.0; a.result]); count];
        for i in 0..a.result {
            let x = self.original(a, i)?;
            let floor = x.floor();
            let mut sum = 0.0;
            for (k, (places, weights)) in all.iter_mut().enumerate() {
                let at = (floor as i64).saturating_add(start + k as i64);
                let outside = !(0..=last).contains(&at);
                weights[i] = match self.exclude_outside && outside {
                    true => 0.0,
                    false => self.kernel((start as f64 + k as f64 - (x - floor)) * stretch),
                };
                places[i] = at.clamp(0, last);
                sum += weights[i];
            }
            if (self.antialias || self.exclude_outside) && sum != 0.0 {
                all.iter_mut().for_each(|(_, weights)| weights[i] /= sum);
            }
        }
        Ok(all)
    }
}

/// Numbers along one axis of a tensor of that rank.
fn column(x: &Tensor, numbers: &[f64], axis: usize, dtype: DType) -> Outcome<Tensor> {
    let mut shape = vec![1; x.rank()];
    shape[axis] = numbers.len();
    match HostTensor::from_slice(&shape, numbers) {
        Ok(data) => Ok(x.graph().constant(data).cast(dtype)),
        Err(e) => invalid(e.to_string()),
    }
}

fn resampled(x: &Tensor, axis: usize, a: &Axis, how: &Sampling) -> Outcome<Tensor> {
    let wide = match x.dtype().is_float() {
        true => x.dtype().accumulator(),
        false => DType::F32,
    };
    let mut y: Option<Tensor> = None;
    for (places, weights) in how.neighbours(a)? {
        let part = x.take(&x.graph().constant(&places), axis as i64);
        let part = match weights.is_empty() {
            true => part,
            false => part.cast(wide) * column(x, &weights, axis, wide)?,
        };
        y = Some(match y {
            Some(y) => y + part,
            None => part,
        });
    }
    let Some(mut y) = y else {
        return invalid("no neighbours");
    };
    if how.coordinates == "tf_crop_and_resize" {
        let mut inside = Vec::with_capacity(a.result);
        for i in 0..a.result {
            let at = how.original(a, i)?;
            inside.push(f64::from(u8::from((0.0..=a.extent as f64 - 1.0).contains(&at))));
        }
        let inside = column(x, &inside, axis, DType::Bool)?;
        y = inside.select(y, how.extrapolation);
    }
    Ok(y)
}

/// A symbolic axis can only be repeated, where that is what the settings amount to.
fn repeated(x: &Tensor, axis: usize, scale: Option<f64>, how: &Sampling) -> Outcome<Tensor> {
    let plain = match how.coordinates.as_str() {
        "asymmetric" => how.nearest == "floor",
        "half_pixel" | "pytorch_half_pixel" => how.nearest.starts_with("round"),
        _ => false,
    };
    match scale {
        Some(1.0) if how.coordinates != "tf_crop_and_resize" => Ok(x.clone()),
        Some(s) if s >= 1.0 && s.fract() == 0.0 && s < 1e6 && how.mode == "nearest" && plain => {
            Ok(x.repeat(s as i64, axis as i64))
        }
        _ => unsupported(format!(
            "axis {axis} of symbolic extent; expected a number, or a whole scale in mode nearest"
        )),
    }
}

pub(super) fn resize(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    let old = c.version < 11;
    let how = Sampling {
        mode: c.text("mode", "nearest")?,
        coordinates: c.text(
            "coordinate_transformation_mode",
            if old { "asymmetric" } else { "half_pixel" },
        )?,
        nearest: c.text("nearest_mode", if old { "floor" } else { "round_prefer_floor" })?,
        cubic: c.float("cubic_coeff_a", -0.75)?,
        exclude_outside: c.flag("exclude_outside", false)?,
        antialias: c.flag("antialias", false)?,
        extrapolation: c.float("extrapolation_value", 0.0)?,
    };
    if !["nearest", "linear", "cubic"].contains(&how.mode.as_str()) {
        return invalid(format!("mode `{}`; expected nearest, linear or cubic", how.mode));
    }
    let axes = c.ints("axes")?.unwrap_or_else(|| (0..x.rank() as i64).collect());
    let (roi, scales, sizes) = match old {
        true => (None, c.input_floats(1)?, None),
        false => (c.input_floats(1)?, c.input_floats(2)?, c.input_ints(3)?),
    };
    let roi = roi.filter(|_| how.coordinates == "tf_crop_and_resize");
    // Before opset 13 what is not used is an empty tensor.
    let scales = scales.filter(|s| !s.is_empty());
    let sizes = sizes.filter(|s| !s.is_empty());
    scaled(c, x, &axes, (roi, scales, sizes), &how)
}

pub(super) fn upsample(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    let scales = match c.version < 9 {
        true => c.floats("scales")?,
        false => c.input_floats(1)?,
    };
    let how = Sampling {
        mode: c.text("mode", "nearest")?,
        coordinates: "asymmetric".into(),
        nearest: "floor".into(),
        cubic: -0.75,
        exclude_outside: false,
        antialias: false,
        extrapolation: 0.0,
    };
    if !["nearest", "linear"].contains(&how.mode.as_str()) {
        return invalid(format!("mode `{}`; expected nearest or linear", how.mode));
    }
    let axes: Vec<i64> = (0..x.rank() as i64).collect();
    scaled(c, x, &axes, (None, scales, None), &how)
}

type Targets = (Option<Vec<f64>>, Option<Vec<f64>>, Option<Vec<i64>>);

fn scaled(c: &Call<'_, '_, '_>, x: Tensor, axes: &[i64], (roi, scales, sizes): Targets, how: &Sampling) -> Answer {
    let n = axes.len();
    if scales.as_ref().is_some_and(|s| s.len() != n)
        || sizes.as_ref().is_some_and(|s| s.len() != n)
        || roi.as_ref().is_some_and(|r| r.len() != 2 * n)
        || scales.is_some() == sizes.is_some()
    {
        return invalid(format!(
            "scales, sizes or roi that do not fit {n} axes; expected scales or sizes, one an axis"
        ));
    }
    if let Some(s) = scales.iter().flatten().find(|s| !(**s > 0.0 && s.is_finite())) {
        return invalid(format!("a scale of {s}; expected a positive number"));
    }
    if let Some(s) = sizes.iter().flatten().find(|s| !(1..1 << 31).contains(*s)) {
        return invalid(format!("a size of {s}; expected a positive number"));
    }
    let mut resolved = vec![];
    for &axis in axes {
        resolved.push(c.axis(axis, x.rank())?);
    }
    let policy = c.text("keep_aspect_ratio_policy", "stretch")?;
    let extents: Vec<Option<i64>> = resolved.iter().map(|&a| x.dim(a as i64).as_const()).collect();
    let mut common = None;
    if let (Some(sizes), true) = (&sizes, policy != "stretch") {
        let Some(extents) = extents.iter().copied().collect::<Option<Vec<i64>>>() else {
            return unsupported(format!("{policy} over an axis of symbolic extent; expected numbers"));
        };
        let ratios = sizes.iter().zip(&extents).map(|(&s, &e)| s as f64 / e as f64);
        common = Some(match policy.as_str() {
            "not_larger" => ratios.fold(f64::INFINITY, f64::min),
            "not_smaller" => ratios.fold(0.0, f64::max),
            other => return invalid(format!("keep_aspect_ratio_policy `{other}`; expected one of Resize's")),
        });
    }
    let mut y = x.clone();
    let dtype = x.dtype();
    for (i, &axis) in resolved.iter().enumerate() {
        let part = roi.as_ref().map_or((0.0, 1.0), |r| (r[i], r[n + i]));
        let Some(extent) = extents[i] else {
            let scale = scales.as_ref().map(|s| s[i]);
            y = repeated(&y, axis, scale, how)?;
            continue;
        };
        let (result, scale) = match (&scales, &sizes, common) {
            (Some(s), _, _) => ((extent as f64 * (part.1 - part.0) * s[i]).floor() as i64, s[i]),
            (_, Some(_), Some(scale)) => ((scale * extent as f64 + 0.5).floor() as i64, scale),
            (_, Some(s), None) => (s[i], s[i] as f64 / extent as f64),
            _ => return invalid("neither scales nor sizes; expected one"),
        };
        if result < 0 || result > 1 << 31 || extent < 1 {
            return invalid(format!(
                "axis {axis} from {extent} to {result} elements; expected at least one"
            ));
        }
        if scale == 1.0 && result == extent && how.coordinates != "tf_crop_and_resize" {
            continue;
        }
        let a = Axis {
            extent: extent as usize,
            result: result as usize,
            scale,
            roi: part,
        };
        y = resampled(&y, axis, &a, how)?;
    }
    one(y.cast(dtype))
}
