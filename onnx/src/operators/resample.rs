//! Resize and Upsample.

use tlc_ir::DType;

use crate::call::{Answer, Call, one};
use crate::refusal::{Outcome, invalid, unsupported};
use tlc_record::Tensor;
use tlc_record::dim::Dim;
use tlc_record::ops::resample::{Coordinates, Interpolation, Resample, Rounding, weighed_in};

/// What a node says of every axis.
struct Settings {
    interpolation: Interpolation,
    coordinates: Coordinates,
    exclude_outside: bool,
    antialias: bool,
}

/// What a node says of each axis: the part that is taken, and scales or sizes.
struct Targets {
    roi: Option<Tensor>,
    /// The numbers of `roi`, where scales make the extents depend on them.
    part: Option<Vec<f64>>,
    scales: Option<Vec<f64>>,
    sizes: Option<Vec<Dim>>,
}

/// The weight of a cubic neighbour, unless the node gives one.
const CUBIC: f32 = -0.75;

pub(super) fn resize(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    let old = c.version < 11;
    let nearest = match c
        .text("nearest_mode", if old { "floor" } else { "round_prefer_floor" })?
        .as_str()
    {
        "round_prefer_floor" => Rounding::HalfDown,
        "round_prefer_ceil" => Rounding::HalfUp,
        "floor" => Rounding::Floor,
        "ceil" => Rounding::Ceil,
        other => return invalid(format!("nearest_mode `{other}`; expected one of Resize's")),
    };
    let interpolation = match c.text("mode", "nearest")?.as_str() {
        "nearest" => Interpolation::Nearest(nearest),
        "linear" => Interpolation::Linear,
        "cubic" => Interpolation::Cubic(c.float("cubic_coeff_a", CUBIC)?),
        other => return invalid(format!("mode `{other}`; expected nearest, linear or cubic")),
    };
    let graph = c.graph();
    let outside = c.float("extrapolation_value", 0.0)?;
    let plain = if old { "asymmetric" } else { "half_pixel" };
    let coordinates = match c.text("coordinate_transformation_mode", plain)?.as_str() {
        "half_pixel" => Coordinates::HalfPixel,
        "half_pixel_symmetric" => Coordinates::HalfPixelSymmetric,
        "pytorch_half_pixel" => Coordinates::HalfPixelOrStart,
        "tf_half_pixel_for_nn" => Coordinates::HalfPixelUnshifted,
        "align_corners" => Coordinates::AlignCorners,
        "asymmetric" => Coordinates::Asymmetric,
        "tf_crop_and_resize" => {
            let (zero, one) = (graph.scalar(0.0, DType::F64), graph.scalar(1.0, DType::F64));
            Coordinates::Crop(zero, one, outside)
        }
        other => {
            return invalid(format!(
                "coordinate_transformation_mode `{other}`; expected one of Resize's"
            ));
        }
    };
    let crops = matches!(coordinates, Coordinates::Crop(..));
    let how = Settings {
        interpolation,
        coordinates,
        exclude_outside: c.flag("exclude_outside", false)?,
        antialias: c.flag("antialias", false)?,
    };
    // Before opset 13 what is not used is an empty tensor.
    let given = |c: &Call<'_, '_, '_>, i: usize| {
        c.value(i)
            .is_some_and(|v| v.shape().first().is_some_and(|d| d.as_const() != Some(0)))
    };
    let (roi_at, scales_at, sizes_at) = if old { (None, 1, None) } else { (Some(1), 2, Some(3)) };
    let scales = match given(c, scales_at) {
        true => c.input_floats(scales_at)?,
        false => None,
    };
    let sizes = match sizes_at.filter(|&i| given(c, i)) {
        Some(i) => c.input_dims(i)?,
        None => None,
    };
    let roi = match roi_at.filter(|&i| crops && given(c, i)) {
        Some(i) => Some(c.tensor(i)?),
        None if crops => return invalid("no roi; expected one, for tf_crop_and_resize"),
        None => None,
    };
    let part = match roi.is_some() && scales.is_some() {
        true => c.input_floats(1)?,
        false => None,
    };
    let axes = c.ints("axes")?;
    let targets = Targets {
        roi,
        part,
        scales,
        sizes,
    };
    scaled(c, x, axes, targets, &how)
}

pub(super) fn upsample(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    let scales = match c.version < 9 {
        true => c.floats("scales")?,
        false => c.input_floats(1)?,
    };
    let interpolation = match c.text("mode", "nearest")?.as_str() {
        "nearest" => Interpolation::Nearest(Rounding::Floor),
        "linear" | "bilinear" => Interpolation::Linear,
        other => return invalid(format!("mode `{other}`; expected nearest or linear")),
    };
    let how = Settings {
        interpolation,
        coordinates: Coordinates::Asymmetric,
        exclude_outside: false,
        antialias: false,
    };
    let targets = Targets {
        roi: None,
        part: None,
        scales,
        sizes: None,
    };
    scaled(c, x, None, targets, &how)
}

/// A scale as the fraction of the least denominator that is rounded to it, an f32: 0.7 is 7 / 10, so that ten elements become seven, as in PyTorch,
/// which has no f32 there, and in ONNX Runtime, which rounds the product to one. The number 0.69999999 itself would leave six. None where it
/// takes numbers of more than 31 bits.
fn fraction(scale: f64) -> Option<(i64, i64)> {
    /// That of a range, in which there is one: its whole part, and one over that of what is left, which is turned around.
    fn simplest(least: f64, most: f64, left: usize) -> Option<(i64, i64)> {
        let whole = least.ceil();
        if whole <= most {
            return (whole < LARGEST).then_some((whole as i64, 1));
        }
        let whole = least.floor();
        let (q, p) = simplest(1.0 / (most - whole), 1.0 / (least - whole), left.checked_sub(1)?)?;
        let p = (whole as i64).checked_mul(q)?.checked_add(p)?;
        (p.max(q) < LARGEST as i64).then_some((p, q))
    }
    const LARGEST: f64 = (1u64 << 31) as f64;
    let f = scale as f32;
    let between = |other: f32| (f64::from(f) + f64::from(other)) / 2.0;
    let (p, q) = simplest(between(f.next_down()), between(f.next_up()), 64)?;
    ((p as f64 / q as f64) as f32 == f).then_some((p, q))
}

/// The extent times a scale, rounded down.
fn scaled_extent(extent: &Dim, scale: f64) -> Outcome<Dim> {
    match (fraction(scale), extent.as_const()) {
        (Some((p, q)), _) => Ok(extent * p / q),
        (None, Some(extent)) => Ok(Dim::from((extent as f64 * scale).floor() as i64)),
        (None, None) => unsupported(format!("a scale of {scale} over an axis of symbolic extent")),
    }
}

fn scaled(c: &Call<'_, '_, '_>, x: Tensor, axes: Option<Vec<i64>>, targets: Targets, how: &Settings) -> Answer {
    let axes = axes.unwrap_or_else(|| (0..x.rank() as i64).collect());
    let Targets {
        roi,
        part,
        scales,
        sizes,
    } = targets;
    let n = axes.len();
    if scales.as_ref().is_some_and(|s| s.len() != n)
        || sizes.as_ref().is_some_and(|s| s.len() != n)
        || roi
            .as_ref()
            .is_some_and(|r| r.rank() != 1 || r.dim(0).as_const() != Some(2 * n as i64))
        || scales.is_some() == sizes.is_some()
    {
        return invalid(format!(
            "scales, sizes or roi that do not fit {n} axes; expected scales or sizes, one an axis"
        ));
    }
    if let Some(s) = scales.iter().flatten().find(|s| !(**s > 0.0 && s.is_finite())) {
        return invalid(format!("a scale of {s}; expected a positive number"));
    }
    let numbers = sizes.iter().flatten().filter_map(Dim::as_const);
    if let Some(s) = numbers.into_iter().find(|s| !(0..1 << 31).contains(s)) {
        return invalid(format!("a size of {s}; expected 0 or more"));
    }
    let mut resolved = vec![];
    for &axis in &axes {
        let axis = c.axis(axis, x.rank())?;
        if resolved.contains(&axis) {
            return invalid(format!("axis {axis} is given twice; expected distinct axes"));
        }
        resolved.push(axis);
    }
    let common = aspect(c, &x, &resolved, sizes.as_deref())?;
    // Rounded once, behind all axes.
    let (dtype, wide) = match how.interpolation {
        Interpolation::Nearest(_) => (x.dtype(), x.dtype()),
        _ => (x.dtype(), weighed_in(x.dtype())),
    };
    let mut y = x.clone();
    for i in order(&resolved, scales.as_deref()) {
        let axis = resolved[i];
        let extent = x.dim(axis as i64);
        let mut options = Resample::new(how.interpolation);
        let ends = roi.as_ref().map(|r| (r.select_index(0, i), r.select_index(0, n + i)));
        let coordinates = match (&how.coordinates, ends) {
            (Coordinates::Crop(_, _, outside), Some((start, end))) => Coordinates::Crop(start, end, *outside),
            (other, _) => other.clone(),
        };
        let (length, scale) = match (&scales, &sizes, common) {
            (Some(s), ..) => {
                let taken = part.as_ref().map_or((0.0, 1.0), |p| (p[i], p[n + i]));
                (
                    scaled_length(&extent, s[i], taken)?,
                    Some(fraction(s[i]).map_or(s[i], |(p, q)| p as f64 / q as f64)),
                )
            }
            (_, Some(_), Some(scale)) => {
                let extent = extent.as_const().unwrap_or(0) as f64;
                (Dim::from((scale * extent + 0.5).floor() as i64), Some(scale))
            }
            (_, Some(s), None) => (s[i].clone(), None),
            _ => return invalid("neither scales nor sizes; expected one"),
        };
        let from_nothing = extent.as_const() == Some(0) && length.as_const() != Some(0);
        if length.as_const().is_some_and(|l| !(0..=1 << 31).contains(&l)) || from_nothing {
            return invalid(format!(
                "axis {axis} to {} elements; expected at least one, and one to make them of",
                length.as_const().unwrap_or(0)
            ));
        }
        let crops = matches!(coordinates, Coordinates::Crop(..));
        if !crops && scale.is_none_or(|s| s == 1.0) && length == extent {
            continue;
        }
        // Of a batch or channels that a model names and resizes to a number, it means that they are as many. Antialiased they could be
        // no others, for how many neighbours count depends on the ratio; a guard says so.
        if how.antialias && axis < 2 && scale.is_none() && extent.as_const().is_none() {
            let mut shape = y.shape();
            shape[axis] = length;
            y = y.broadcast_to(shape);
            continue;
        }
        options = options.coordinates(coordinates);
        if let Some(scale) = scale {
            options = options.scale(scale);
        }
        if how.exclude_outside {
            options = options.exclude_outside();
        }
        if how.antialias {
            // How many neighbours count is a number of the compiled graph.
            let weighs = !matches!(how.interpolation, Interpolation::Nearest(_));
            if weighs && scale.is_none() && (extent.as_const().is_none() || length.as_const().is_none()) {
                return unsupported(format!(
                    "antialias by sizes over axis {axis} of symbolic extent; expected scales"
                ));
            }
            options = options.antialias();
        }
        y = y.cast(wide).resample(axis as i64, length, &options);
    }
    one(match y.dtype() == dtype {
        true => y,
        false if dtype.is_float() => y.cast(dtype),
        false => y.round().cast(dtype),
    })
}

/// In which order the axes are resampled, as places in their list: those that shrink first, for what they leave out is computed for no
/// other axis. Then from the last axis to the first: the neighbours of a place on the last axis are gathered, element by element, and
/// those on another one are whole rows, so that the last axis comes while the others are still short. Scales alone decide, never
/// extents: results are the same bits where extents are symbols.
fn order(axes: &[usize], scales: Option<&[f64]>) -> Vec<usize> {
    let mut order: Vec<usize> = (0..axes.len()).collect();
    order.sort_by_key(|&i| match scales.is_some_and(|s| s[i] < 1.0) {
        true => (0, axes[i]),
        false => (1, usize::MAX - axes[i]),
    });
    order
}

/// The extent that a scale gives, of the part that a crop takes.
fn scaled_length(extent: &Dim, scale: f64, (start, end): (f64, f64)) -> Outcome<Dim> {
    match extent.as_const() {
        _ if (start, end) == (0.0, 1.0) => scaled_extent(extent, scale),
        Some(e) => Ok(Dim::from((e as f64 * (end - start) * scale).floor() as i64)),
        None => unsupported("tf_crop_and_resize by scales over an axis of symbolic extent; expected sizes"),
    }
}

/// The one scale of all axes, where the node keeps the aspect ratio.
fn aspect(c: &Call<'_, '_, '_>, x: &Tensor, axes: &[usize], sizes: Option<&[Dim]>) -> Outcome<Option<f64>> {
    let policy = c.text("keep_aspect_ratio_policy", "stretch")?;
    let larger = match policy.as_str() {
        "stretch" => return Ok(None),
        "not_larger" => false,
        "not_smaller" => true,
        other => return invalid(format!("keep_aspect_ratio_policy `{other}`; expected one of Resize's")),
    };
    let Some(sizes) = sizes else {
        return Ok(None);
    };
    let mut common: Option<f64> = None;
    for (size, &axis) in sizes.iter().zip(axes) {
        let (Some(size), Some(extent)) = (size.as_const(), x.dim(axis as i64).as_const()) else {
            return unsupported(format!("{policy} over an axis of symbolic extent; expected numbers"));
        };
        let ratio = size as f64 / extent as f64;
        common = Some(match common {
            Some(r) if (r > ratio) == larger => r,
            _ => ratio,
        });
    }
    Ok(common)
}
