//! Gathers and scatters. Negative indices count from the end; constant ones outside of their axis are refused.

use tlc_ir::DType;
use tlc_ir::graph::ScatterOp;

use crate::call::{Answer, Call, one};
use crate::refusal::{OperatorRefusal, Outcome, invalid, unsupported};
use tlc_formats::ErrorKind;
use tlc_record::Tensor;
use tlc_record::dim::Dim;

/// Indices into an axis of that extent, none negative.
pub(super) fn from_start(indices: &Tensor, extent: &Dim) -> Outcome<Tensor> {
    if !indices.dtype().is_int() {
        return invalid(format!("indices of {}; expected integers", indices.dtype()));
    }
    let indices = indices.cast(DType::I64);
    let n = indices
        .graph()
        .dim_value(extent, DType::I64)
        .map_err(|(message, _)| OperatorRefusal {
            kind: ErrorKind::Invalid,
            message,
        })?;
    Ok(indices.lt(0).select(&indices + n, &indices))
}

/// Refuses constant indices, which are operand 1, that lie outside of their axes: `extents` are those of the axes that its elements
/// index in turn. Where data decides, what lies outside reads zero and is not written.
pub(super) fn within(c: &Call<'_, '_, '_>, extents: &[Dim]) -> Outcome<()> {
    let Some(known) = c.importer.known(c.required(1)?) else {
        return Ok(());
    };
    if !known.dtype().is_int() {
        return Ok(());
    }
    for (k, extent) in extents.iter().enumerate() {
        let Some(n) = extent.as_const() else { continue };
        let mut along = (k..known.len()).step_by(extents.len()).map(|i| known.get(i).as_i64());
        if let Some(index) = along.find(|i| !(-n..n).contains(i)) {
            return invalid(format!(
                "index {index} into an axis of {n} elements; expected {} to {}",
                -n,
                n - 1
            ));
        }
    }
    Ok(())
}

pub(super) fn gather(c: &mut Call<'_, '_, '_>) -> Answer {
    let (x, indices) = (c.tensor(0)?, c.tensor(1)?);
    let axis = c.axis(c.int("axis", 0)?, x.rank())? as i64;
    within(c, &[x.dim(axis)])?;
    one(x.take_from_start(&from_start(&indices, &x.dim(axis))?, axis))
}

/// For each element of `indices`, its own coordinates, with those of `axis` replaced by the element.
fn coordinates(indices: &Tensor, axis: usize, extent: &Dim) -> Outcome<Vec<Tensor>> {
    let along = from_start(indices, extent)?;
    let own = |a: usize| indices.graph().iota(indices.shape(), a as i64, DType::I64);
    Ok((0..indices.rank())
        .map(|a| if a == axis { along.clone() } else { own(a) })
        .collect())
}

fn every_axis(x: &Tensor) -> Vec<i64> {
    (0..x.rank() as i64).collect()
}

pub(super) fn gather_elements(c: &mut Call<'_, '_, '_>) -> Answer {
    let (x, indices) = (c.tensor(0)?, c.tensor(1)?);
    if x.rank() != indices.rank() {
        return invalid(format!("ranks {} and {}; expected one rank", x.rank(), indices.rank()));
    }
    let axis = c.axis(c.int("axis", 0)?, x.rank())?;
    within(c, &[x.dim(axis as i64)])?;
    let all = coordinates(&indices, axis, &x.dim(axis as i64))?;
    one(x.gather(&every_axis(&x), &all.iter().collect::<Vec<_>>()))
}

fn how(c: &Call<'_, '_, '_>) -> Outcome<ScatterOp> {
    Ok(match c.text("reduction", "none")?.as_str() {
        "none" => ScatterOp::Set,
        "add" => ScatterOp::Add,
        "mul" => ScatterOp::Mul,
        "max" => ScatterOp::Max,
        "min" => ScatterOp::Min,
        other => return invalid(format!("reduction `{other}`; expected none, add, mul, max or min")),
    })
}

/// `x` with `updates` at the coordinates on its first axes.
fn scattered(x: &Tensor, coordinates: &[Tensor], updates: &Tensor, how: ScatterOp) -> Answer {
    let axes: Vec<i64> = (0..coordinates.len() as i64).collect();
    let indices: Vec<&Tensor> = coordinates.iter().collect();
    if x.dtype() != DType::Bool {
        return one(x.scatter(&axes, &indices, updates, how));
    }
    // Scatters take numbers.
    if how != ScatterOp::Set {
        return unsupported("a reduction of bool; expected none");
    }
    let number = |t: &Tensor| t.cast(DType::U8);
    one(number(x)
        .scatter(&axes, &indices, &number(updates), how)
        .cast(DType::Bool))
}

pub(super) fn scatter_elements(c: &mut Call<'_, '_, '_>) -> Answer {
    let (x, indices, updates) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    if x.rank() != indices.rank() || updates.rank() != indices.rank() {
        return invalid("data, indices and updates do not belong together; expected one rank");
    }
    let axis = c.axis(c.int("axis", 0)?, x.rank())?;
    within(c, &[x.dim(axis as i64)])?;
    let all = coordinates(&indices, axis, &x.dim(axis as i64))?;
    scattered(&x, &all, &updates, how(c)?)
}

/// The last axis of `indices` as coordinates of the axes of `x` from `batch` on.
fn nd(c: &Call<'_, '_, '_>, x: &Tensor, indices: &Tensor, batch: usize) -> Outcome<Vec<Tensor>> {
    let Some(depth) = indices.shape().last().and_then(Dim::as_const) else {
        return unsupported("indices whose last extent is symbolic; expected a number");
    };
    if depth < 1 || batch as i64 + depth > x.rank() as i64 || batch >= indices.rank() {
        return invalid(format!(
            "indices of {depth} coordinates with {batch} batch axes for a tensor of rank {}; expected at most its rank",
            x.rank()
        ));
    }
    within(c, &x.shape()[batch..batch + depth as usize])?;
    let mut all = vec![];
    let places: Vec<Dim> = indices.shape()[..indices.rank() - 1].to_vec();
    for a in 0..batch {
        all.push(x.graph().iota(places.clone(), a as i64, DType::I64));
    }
    for k in 0..depth {
        let one = indices.select_index(-1, k);
        all.push(from_start(&one, &x.dim(batch as i64 + k))?);
    }
    Ok(all)
}

pub(super) fn gather_nd(c: &mut Call<'_, '_, '_>) -> Answer {
    let (x, indices) = (c.tensor(0)?, c.tensor(1)?);
    let batch = c.int("batch_dims", 0)?;
    if !(0..x.rank().min(indices.rank()) as i64).contains(&batch) {
        return invalid(format!("batch_dims {batch}; expected fewer than the rank"));
    }
    let all = nd(c, &x, &indices, batch as usize)?;
    let axes: Vec<i64> = (0..all.len() as i64).collect();
    one(x.gather(&axes, &all.iter().collect::<Vec<_>>()))
}

pub(super) fn scatter_nd(c: &mut Call<'_, '_, '_>) -> Answer {
    let (x, indices, updates) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    if indices.rank() == 0 {
        return invalid("indices of rank 0; expected at least 1");
    }
    let all = nd(c, &x, &indices, 0)?;
    scattered(&x, &all, &updates, how(c)?)
}

pub(super) fn one_hot(c: &mut Call<'_, '_, '_>) -> Answer {
    let (indices, values) = (c.tensor(0)?, c.tensor(2)?);
    let depth = match c.required(1)?.dtype().is_float() {
        true => c
            .input_floats(1)?
            .map(|d| d.iter().map(|&d| Dim::from(d as i64)).collect()),
        false => c.input_dims(1)?,
    };
    let Some([depth]) = depth.as_deref() else {
        return invalid("no depth; expected one number");
    };
    if values.rank() != 1 || values.dim(0).as_const().is_some_and(|n| n != 2) {
        return invalid("values that are not two; expected the value of off and of on");
    }
    // Where their number is a symbol, it is taken to be two, by a guard.
    let values = match values.dim(0).as_const() {
        Some(_) => values,
        None => values.broadcast_to([2]),
    };
    let rank = indices.rank() + 1;
    let axis = c.axis(c.int("axis", -1)?, rank)? as i64;
    let graph = c.graph();
    let n = graph
        .dim_value(depth, DType::I64)
        .map_err(|(message, _)| OperatorRefusal {
            kind: ErrorKind::Invalid,
            message,
        })?;
    let indices = match indices.dtype().is_float() {
        true => indices.cast(DType::I64),
        false => indices.cast(DType::I64),
    };
    let indices = indices.lt(0).select(&indices + n, &indices).unsqueeze(axis);
    let mut shape = vec![Dim::from(1); rank];
    shape[axis as usize] = depth.clone();
    let places = graph.iota(shape, axis, DType::I64);
    let (off, on) = (values.select_index(0, 0), values.select_index(0, 1));
    one(indices.eq(places).select(on, off))
}

pub(super) fn tensor_scatter(c: &mut Call<'_, '_, '_>) -> Answer {
    let (cache, update) = (c.tensor(0)?, c.tensor(1)?);
    let axis = c.axis(c.int("axis", -2)?, cache.rank())?;
    let circular = match c.text("mode", "linear")?.as_str() {
        "linear" => false,
        "circular" => true,
        other => return invalid(format!("mode `{other}`; expected linear or circular")),
    };
    if update.rank() != cache.rank() || axis == 0 {
        return invalid("cache and update do not belong together; expected one rank and an axis behind the batch");
    }
    let graph = c.graph();
    let own = |a: usize| graph.iota(update.shape(), a as i64, DType::I64);
    let mut along = own(axis);
    if let Some(first) = c.optional(2)? {
        let mut shape = vec![Dim::from(1); cache.rank()];
        shape[0] = cache.dim(0);
        along += first.cast(DType::I64).reshape(shape);
    }
    if circular {
        let n = graph
            .dim_value(&cache.dim(axis as i64), DType::I64)
            .map_err(|(message, _)| OperatorRefusal {
                kind: ErrorKind::Invalid,
                message,
            })?;
        along = along.remainder(n);
    }
    let all: Vec<Tensor> = (0..cache.rank())
        .map(|a| if a == axis { along.clone() } else { own(a) })
        .collect();
    one(cache.scatter(
        &every_axis(&cache),
        &all.iter().collect::<Vec<_>>(),
        &update,
        ScatterOp::Set,
    ))
}

pub(super) fn reverse_sequence(c: &mut Call<'_, '_, '_>) -> Answer {
    let (x, lengths) = (c.tensor(0)?, c.tensor(1)?);
    let (batch, time) = (c.int("batch_axis", 1)?, c.int("time_axis", 0)?);
    if x.rank() < 2 || !lengths.dtype().is_int() || ![(0, 1), (1, 0)].contains(&(batch, time)) {
        return invalid(format!(
            "batch_axis {batch} and time_axis {time} of rank {} with lengths of {}; expected 0 and 1, rank 2 or more, integers",
            x.rank(),
            lengths.dtype()
        ));
    }
    one(x.reverse_sequence(&lengths, batch, time))
}
