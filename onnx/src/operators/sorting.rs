//! Sorting, and picking elements in a number that data decides.

use tlc_ir::{DType, HostTensor, Scalar};

use crate::call::{Answer, Call, one};
use crate::refusal::{Outcome, invalid, unsupported};
use tlc_record::Tensor;
use tlc_record::dim::Dim;

pub(super) fn top_k(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    let axis = c.axis(c.int("axis", -1)?, x.rank())? as i64;
    let largest = c.flag("largest", true)?;
    if let Some(count) = c.decided_by_data(1) {
        return top_of_counted(c, &x, &count, axis, largest);
    }
    let count = match c.version < 10 {
        true => match c.maybe_int("k")? {
            Some(k) => k.into(),
            None => return invalid("no attribute k; expected a number"),
        },
        false => match c.input_dims(1)?.as_deref() {
            Some([k]) => k.clone(),
            _ => return invalid("k; expected one number"),
        },
    };
    if count.as_const().is_some_and(|k| k < 0) {
        return invalid("a negative k; expected 0 or more");
    }
    // In any order, so also in this one, where `sorted` is 0.
    let (values, places) = x.top_k(count, axis, largest);
    Ok(vec![values.into(), places.cast(DType::I64).into()])
}

/// As many of the first in order as data says, none where it says less than none, and all where it says more than there are.
fn top_of_counted(c: &Call<'_, '_, '_>, x: &Tensor, count: &Tensor, axis: i64, largest: bool) -> Answer {
    outside_of_bodies(c)?;
    let all = x.shape()[axis as usize].clone();
    let (values, places) = x.top_k(&all, axis, largest);
    let positions = c.graph().range(&all, DType::I64);
    let picked = positions.lt(count.reshape(())).nonzero().select_index(0, 0);
    let of = |t: Tensor| t.take_from_start(&picked, axis);
    Ok(vec![of(values).into(), of(places.cast(DType::I64)).into()])
}

/// Refuses a size that data decides in the body of a loop.
pub(super) fn outside_of_bodies(c: &Call<'_, '_, '_>) -> Outcome<()> {
    match c.graph().is_body() {
        true => unsupported("data decides a size in the body of a loop; expected sizes that are known before it"),
        false => Ok(()),
    }
}

/// The most elements of a mask whose places are counted while the model is imported.
const MAX_KNOWN_MASK: i64 = 1 << 20;

/// Where operand `i` is not zero: an `i64[rank, count]` in order. Of what follows from constants alone the places are constants, so
/// that their number is none that data decides.
fn places(c: &mut Call<'_, '_, '_>, i: usize) -> Outcome<Tensor> {
    let value = c.required(i)?.clone();
    let x = c.tensor(i)?;
    let shape: Option<Vec<i64>> = x.shape().iter().map(Dim::as_const).collect();
    let elements = shape.and_then(|s| s.iter().try_fold(1i64, |n, &e| n.checked_mul(e)));
    if elements.is_some_and(|n| n <= MAX_KNOWN_MASK)
        && let Ok(known) = c.importer.constant(&value, "the mask")
    {
        let rank = known.shape().len();
        let found: Vec<usize> = (0..known.len()).filter(|&k| known.get(k).as_f64() != 0.0).collect();
        let mut all = Vec::with_capacity(rank * found.len());
        for axis in 0..rank {
            let stride: usize = known.shape()[axis + 1..].iter().product();
            let extent = known.shape()[axis];
            all.extend(found.iter().map(|k| (k / stride % extent) as i64));
        }
        let all = HostTensor::from_slice(&[rank, found.len()], &all).or_else(|e| invalid(e.to_string()))?;
        return Ok(c.graph().constant(all));
    }
    outside_of_bodies(c)?;
    Ok(x.nonzero())
}

pub(super) fn nonzero(c: &mut Call<'_, '_, '_>) -> Answer {
    one(places(c, 0)?)
}

pub(super) fn compress(c: &mut Call<'_, '_, '_>) -> Answer {
    let (x, condition) = (c.tensor(0)?, c.tensor(1)?);
    if condition.rank() != 1 {
        return invalid(format!("a condition of rank {}; expected 1", condition.rank()));
    }
    let (x, axis) = match c.maybe_int("axis")? {
        Some(axis) => (x.clone(), c.axis(axis, x.rank())? as i64),
        None => (x.flatten(), 0),
    };
    // What a longer condition says has no element.
    let (given, there) = (condition.dim(0), x.dim(axis));
    let fits = match (given.as_const(), there.as_const()) {
        (Some(given), Some(there)) => given <= there,
        _ => given == there,
    };
    if !fits {
        c.inputs[1] = Some(condition.narrow(0, 0, given.min(there)).into());
    }
    let places = places(c, 1)?.select_index(0, 0);
    one(x.take_from_start(&places, axis))
}

pub(super) fn unique(c: &mut Call<'_, '_, '_>) -> Answer {
    outside_of_bodies(c)?;
    let x = c.tensor(0)?;
    let axis = match c.maybe_int("axis")? {
        Some(axis) => Some(c.axis(axis, x.rank())? as i64),
        None => None,
    };
    let found = x.unique(axis, c.flag("sorted", true)?);
    Ok([found.values, found.first, found.inverse, found.counts]
        .map(Into::into)
        .into())
}

pub(super) fn suppress(c: &mut Call<'_, '_, '_>) -> Answer {
    outside_of_bodies(c)?;
    let (boxes, scores) = (c.tensor(0)?, c.tensor(1)?);
    let graph = c.graph();
    let scalar = |i: usize, otherwise: Scalar| -> Outcome<Tensor> {
        match c.optional(i)? {
            Some(t) => Ok(t.reshape(()).cast(otherwise.dtype())),
            None => Ok(graph.full((), otherwise.as_f64(), otherwise.dtype())),
        }
    };
    let most = scalar(2, DType::I64.zero())?;
    let overlap = scalar(3, DType::F32.zero())?;
    let score = scalar(4, Scalar::from_f64(DType::F32, f64::NEG_INFINITY))?;
    let center = match c.int("center_point_box", 0)? {
        0 => false,
        1 => true,
        other => return invalid(format!("center_point_box {other}; expected 0 or 1")),
    };
    one(boxes.suppress(&scores, &most, &overlap, &score, center))
}
