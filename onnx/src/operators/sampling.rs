//! Operators that sample at places which are data: grids, deformed windows, regions.

use tlc_ir::{DType, HostTensor};

use super::convolution::{Windows, kernel};
use crate::call::{Answer, Call, one};
use crate::refusal::{invalid, unsupported};
use tlc_record::dim::Dim;
use tlc_record::ops::conv::Conv;
use tlc_record::ops::resample::{Interpolation, Rounding};
use tlc_record::ops::roi::RoiAlign;
use tlc_record::ops::sample::{GridSample, Outside};

pub(super) fn grid_sample(c: &mut Call<'_, '_, '_>) -> Answer {
    let (x, grid) = (c.tensor(0)?, c.tensor(1)?);
    let plain = if c.version < 20 { "bilinear" } else { "linear" };
    // The older names until opset 20; both are unambiguous.
    let interpolation = match c.text("mode", plain)?.as_str() {
        "linear" | "bilinear" => Interpolation::Linear,
        "cubic" | "bicubic" => Interpolation::Cubic(-0.75),
        "nearest" => Interpolation::Nearest(Rounding::HalfEven),
        other => return invalid(format!("mode `{other}`; expected linear, nearest or cubic")),
    };
    let outside = match c.text("padding_mode", "zeros")?.as_str() {
        "zeros" => Outside::Zeros,
        "border" => Outside::Border,
        "reflection" => Outside::Reflection,
        other => {
            return invalid(format!("padding_mode `{other}`; expected zeros, border or reflection"));
        }
    };
    let mut options = GridSample::new(interpolation).outside(outside);
    if c.flag("align_corners", false)? {
        options = options.align_corners();
    }
    one(x.grid_sample(&grid, &options))
}

pub(super) fn affine_grid(c: &mut Call<'_, '_, '_>) -> Answer {
    let theta = c.tensor(0)?;
    let Some(size) = c.input_dims(1)? else {
        return invalid("operand 1 is missing; expected the size");
    };
    if !(4..=5).contains(&size.len()) {
        return invalid(format!("a size of {} axes; expected 4 or 5", size.len()));
    }
    if let Some(n) = size
        .iter()
        .filter_map(Dim::as_const)
        .find(|n| !(0..1 << 31).contains(n))
    {
        return invalid(format!("an extent of {n}; expected 0 or more"));
    }
    if (1..3).any(|axis| theta.rank() == 3 && theta.dim(axis).as_const().is_none()) {
        return unsupported("matrices of symbolic extents; expected numbers");
    }
    one(theta.affine_grid(size[2..].to_vec(), c.flag("align_corners", false)?))
}

pub(super) fn deform_conv(c: &mut Call<'_, '_, '_>) -> Answer {
    let (x, w, offset) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let (bias, mask) = (c.optional(3)?, c.optional(4)?);
    let (size, w) = kernel(c, &x, &w)?;
    let windows = Windows::of(c, &x, &size)?;
    let count = |name: &str, n: i64| match usize::try_from(n) {
        Ok(n) if n > 0 => Ok(n),
        _ => invalid(format!("{name} {n}; expected a positive number")),
    };
    let groups = count("group", c.int("group", 1)?)?;
    let offset_groups = count("offset_group", c.int("offset_group", 1)?)?;
    let numbers = |list: Vec<Dim>| -> Option<Vec<usize>> {
        let one = |d: Dim| d.as_const().and_then(|n| usize::try_from(n).ok());
        list.into_iter().map(one).collect()
    };
    let (Some(before), Some(behind)) = (numbers(windows.before), numbers(windows.behind)) else {
        return unsupported("auto_pad over an axis of symbolic extent; expected pads");
    };
    let options = Conv::new()
        .stride(windows.stride)
        .dilation(windows.dilation)
        .padding_sides(before, behind)
        .groups(groups);
    one(x.deform_conv(&w, &offset, mask.as_ref(), bias.as_ref(), offset_groups, &options))
}

/// The most samples in a cell along an axis.
const MAX_SAMPLES: f64 = 1024.0;

pub(super) fn roi_align(c: &mut Call<'_, '_, '_>) -> Answer {
    let (x, regions, images) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let plain = if c.version < 16 {
        "output_half_pixel"
    } else {
        "half_pixel"
    };
    let half_pixel = match c.text("coordinate_transformation_mode", plain)?.as_str() {
        "half_pixel" => true,
        "output_half_pixel" => false,
        other => {
            return invalid(format!(
                "coordinate_transformation_mode `{other}`; expected half_pixel or output_half_pixel"
            ));
        }
    };
    let max = match c.text("mode", "avg")?.as_str() {
        "avg" => false,
        "max" => true,
        other => return invalid(format!("mode `{other}`; expected avg or max")),
    };
    let mut cells = [0; 2];
    for (cells, name) in cells.iter_mut().zip(["output_height", "output_width"]) {
        *cells = match c.int(name, 1)? {
            n if (1..1 << 20).contains(&n) => n as usize,
            n => return invalid(format!("{name} {n}; expected a positive number")),
        };
    }
    let scale = c.float("spatial_scale", 1.0)?;
    let ratio = c.int("sampling_ratio", 0)?;
    if !(0..=MAX_SAMPLES as i64).contains(&ratio) {
        return invalid(format!("sampling_ratio {ratio}; expected 0 to {MAX_SAMPLES}"));
    }
    let (samples, counts) = match ratio {
        0 => {
            // As many as a cell has elements: known only with the regions.
            let known = c.elements(1)?;
            let rows = match known.shape() {
                [rows, 4] => *rows,
                other => return invalid(format!("regions of shape {other:?}; expected [regions, 4]")),
            };
            let mut counts = Vec::with_capacity(2 * rows);
            for r in 0..rows {
                for (axis, (first, last)) in [(1, 3), (0, 2)].into_iter().enumerate() {
                    // In f32, as the operator's arithmetic is.
                    let at = |k: usize| known.get(4 * r + k).as_f64() as f32 * scale as f32;
                    let size = at(last) - at(first);
                    let size = if half_pixel { size } else { size.max(1.0) };
                    let count = f64::from((size / cells[axis] as f32).ceil()).max(0.0);
                    if count.is_nan() || count > MAX_SAMPLES {
                        return unsupported(format!("{count} samples in a cell; expected at most {MAX_SAMPLES}"));
                    }
                    counts.push(count as i64);
                }
            }
            let largest = |axis: usize| counts.iter().skip(axis).step_by(2).copied().max().unwrap_or(1).max(1) as usize;
            let samples = [largest(0), largest(1)];
            let data = HostTensor::from_slice(&[rows, 2], &counts);
            let data = data.or_else(|e| invalid(e.to_string()))?;
            (samples, Some(c.graph().constant(data)))
        }
        n => ([n as usize; 2], None),
    };
    let options = RoiAlign {
        cells,
        samples,
        counts,
        scale,
        half_pixel,
        max,
    };
    one(x.roi_align(&regions, &images, &options))
}

pub(super) fn max_roi_pool(c: &mut Call<'_, '_, '_>) -> Answer {
    let (x, regions) = (c.tensor(0)?, c.tensor(1)?);
    let cells = match c.ints("pooled_shape")?.as_deref() {
        Some(&[h, w]) if (1..1 << 20).contains(&h) && (1..1 << 20).contains(&w) => [h as usize, w as usize],
        other => return invalid(format!("pooled_shape {other:?}; expected two positive numbers")),
    };
    if !regions.dtype().is_float() || x.dtype() == DType::Bool {
        return invalid(format!(
            "images of {} with regions of {}; expected floats",
            x.dtype(),
            regions.dtype()
        ));
    }
    one(x.roi_max_pool(&regions, cells, c.float("spatial_scale", 1.0)?))
}
