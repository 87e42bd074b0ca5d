//! Carried sizes moved: joined, picked, replaced, reshaped, broadcast.

use super::{any, numbers};
use crate::call::Call;
use crate::refusal::Outcome;
use crate::value::{MAX_SIZES, Sizes};
use tlc_record::dim::{Dim, resolve_axis};

/// The shape that both broadcast to, if they do.
pub(super) fn broadcast_shape(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let rank = a.len().max(b.len());
    let at = |s: &[usize], i: usize| (i + s.len()).checked_sub(rank).map_or(1, |k| s[k]);
    let one = |i: usize| match (at(a, i), at(b, i)) {
        (1, n) | (n, 1) => Some(n),
        (n, m) => (n == m).then_some(n),
    };
    let shape = (0..rank).map(one).collect::<Option<Vec<usize>>>()?;
    count(&shape)?;
    Some(shape)
}

/// The elements of that many axes, if they may be carried.
fn count(shape: &[usize]) -> Option<usize> {
    let n = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))?;
    (n <= MAX_SIZES).then_some(n)
}

/// The elements of a tensor of that shape, each from the place of `from` that `place` finds for its coordinates.
fn picked(from: &[Dim], shape: &[usize], place: impl Fn(&[usize]) -> usize) -> Vec<Dim> {
    let mut at = vec![0; shape.len()];
    let mut all = vec![];
    for _ in 0..shape.iter().product() {
        all.push(from[place(&at)].clone());
        for axis in (0..shape.len()).rev() {
            at[axis] += 1;
            if at[axis] < shape[axis] {
                break;
            }
            at[axis] = 0;
        }
    }
    all
}

fn flat(shape: &[usize], at: impl Iterator<Item = usize>) -> usize {
    shape.iter().zip(at).fold(0, |n, (&d, i)| n * d + i)
}

/// The elements broadcast to a shape that they broadcast to.
pub(super) fn expanded(s: &Sizes, shape: &[usize]) -> Vec<Dim> {
    let lead = shape.len() - s.shape.len();
    let own = |at: &[usize]| {
        let within = s
            .shape
            .iter()
            .zip(&at[lead..])
            .map(|(&d, &i)| if d == 1 { 0 } else { i });
        flat(&s.shape, within)
    };
    picked(&s.dims, shape, own)
}

/// The places `places` of an axis; the axis becomes one of as many elements.
fn taken(s: &Sizes, axis: usize, places: &[usize]) -> Option<Sizes> {
    let mut shape = s.shape.clone();
    shape[axis] = places.len();
    count(&shape)?;
    let own = |at: &[usize]| {
        flat(
            &s.shape,
            at.iter()
                .enumerate()
                .map(|(a, &i)| if a == axis { places[i] } else { i }),
        )
    };
    Some(Sizes {
        dims: picked(&s.dims, &shape, own),
        shape,
        dtype: s.dtype,
    })
}

/// Parts of an axis, one behind the other.
pub(super) fn parts(s: &Sizes, axis: usize, lengths: &[usize]) -> Option<Vec<Sizes>> {
    let all = lengths.iter().try_fold(0usize, |n, &d| n.checked_add(d))?;
    let mut at = 0;
    let part = |&length: &usize| {
        let places: Vec<usize> = (at..at + length).collect();
        at += length;
        taken(s, axis, &places)
    };
    (s.shape.get(axis) == Some(&all)).then(|| lengths.iter().map(part).collect())?
}

pub(super) fn concat(call: &Call<'_, '_, '_>) -> Outcome<Option<Sizes>> {
    let axis = call.int("axis", 0)?;
    let all: Option<Vec<&Sizes>> = (0..call.inputs.len()).map(|i| any(call, i)).collect();
    let Some(all) = all else { return Ok(None) };
    Ok(joined(&all, axis))
}

fn joined(all: &[&Sizes], axis: i64) -> Option<Sizes> {
    let first = all.first()?;
    let axis = resolve_axis(axis, first.shape.len())?;
    let mut shape = first.shape.clone();
    shape[axis] = all.iter().try_fold(0usize, |n, s| n.checked_add(*s.shape.get(axis)?))?;
    count(&shape)?;
    for s in all {
        let others = |s: &Sizes| [&s.shape[..axis], &s.shape[axis + 1..]].concat();
        if s.dtype != first.dtype || s.shape.len() != shape.len() || others(s) != others(first) {
            return None;
        }
    }
    let before: usize = shape[..axis].iter().product();
    let mut dims = vec![];
    for row in 0..before {
        for s in all {
            let n: usize = s.shape[axis..].iter().product();
            dims.extend_from_slice(&s.dims[row * n..(row + 1) * n]);
        }
    }
    Some(Sizes {
        dims,
        shape,
        dtype: first.dtype,
    })
}

pub(super) fn gather(call: &Call<'_, '_, '_>) -> Outcome<Option<Sizes>> {
    let axis = call.int("axis", 0)?;
    let (Some(data), Some(indices)) = (any(call, 0), any(call, 1)) else {
        return Ok(None);
    };
    Ok(gathered(data, indices, axis))
}

fn gathered(data: &Sizes, indices: &Sizes, axis: i64) -> Option<Sizes> {
    let axis = resolve_axis(axis, data.shape.len())?;
    let extent = data.shape[axis];
    let whole = indices.numbers().filter(|_| indices.dtype.is_int())?;
    let places = whole.into_iter().map(|i| resolve_axis(i, extent));
    let taken = taken(data, axis, &places.collect::<Option<Vec<usize>>>()?)?;
    let shape = [&data.shape[..axis], &indices.shape, &data.shape[axis + 1..]].concat();
    Some(Sizes { shape, ..taken })
}

/// A list in which some are replaced, as an exporter makes of its operand's shape that of what `index_copy` writes.
pub(super) fn scatter(call: &Call<'_, '_, '_>) -> Outcome<Option<Sizes>> {
    let (axis, reduction) = (call.int("axis", 0)?, call.text("reduction", "none")?);
    let (Some(data), Some(indices), Some(updates)) = (any(call, 0), any(call, 1), any(call, 2)) else {
        return Ok(None);
    };
    if reduction != "none" || resolve_axis(axis, data.shape.len()).is_none() {
        return Ok(None);
    }
    Ok(replaced(data, indices, updates))
}

fn replaced(data: &Sizes, indices: &Sizes, updates: &Sizes) -> Option<Sizes> {
    let [extent] = data.shape[..] else { return None };
    if data.dtype != updates.dtype || indices.shape.len() != 1 || updates.shape != indices.shape {
        return None;
    }
    let whole = indices.numbers().filter(|_| indices.dtype.is_int())?;
    let places = whole.into_iter().map(|i| resolve_axis(i, extent));
    let places = places.collect::<Option<Vec<usize>>>()?;
    // Of two in one place ONNX does not say which stays.
    if (1..places.len()).any(|k| places[..k].contains(&places[k])) {
        return None;
    }
    let mut dims = data.dims.clone();
    places.iter().zip(&updates.dims).for_each(|(&i, d)| dims[i] = d.clone());
    Some(Sizes { dims, ..data.clone() })
}

pub(super) fn slice(call: &Call<'_, '_, '_>) -> Outcome<Option<Sizes>> {
    let Some(data) = any(call, 0) else { return Ok(None) };
    let optional = |i: usize| match call.value(i) {
        None => Some(None),
        Some(_) => numbers(call, i).map(Some),
    };
    let (starts, ends, axes, steps) = match call.version < 10 {
        true => (
            call.ints("starts")?,
            call.ints("ends")?,
            Some(call.ints("axes")?),
            Some(None),
        ),
        false => (numbers(call, 1), numbers(call, 2), optional(3), optional(4)),
    };
    let (Some(starts), Some(ends), Some(axes), Some(steps)) = (starts, ends, axes, steps) else {
        return Ok(None);
    };
    let axes = axes.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = steps.unwrap_or_else(|| vec![1; starts.len()]);
    if [ends.len(), axes.len(), steps.len()] != [starts.len(); 3] {
        return Ok(None);
    }
    let mut seen = vec![];
    let mut part = data.clone();
    for (i, &axis) in axes.iter().enumerate() {
        let Some(axis) = resolve_axis(axis, data.shape.len()).filter(|a| steps[i] != 0 && !seen.contains(a)) else {
            return Ok(None);
        };
        seen.push(axis);
        let Some(taken) = taken(&part, axis, &places(data.shape[axis], starts[i], ends[i], steps[i])) else {
            return Ok(None);
        };
        part = taken;
    }
    Ok(Some(part))
}

/// The places from `start` to `end` of an axis, as ONNX counts and clips them.
fn places(extent: usize, start: i64, end: i64, step: i64) -> Vec<usize> {
    let n = extent as i64;
    if n == 0 {
        return vec![];
    }
    let from_end = |i: i64| if i < 0 { i.saturating_add(n) } else { i };
    let (lo, hi) = if step > 0 { (0, n) } else { (-1, n - 1) };
    let (mut at, end) = (from_end(start).clamp(lo.max(0), hi), from_end(end).clamp(lo, hi));
    let mut all = vec![];
    while at < n && ((step > 0 && at < end) || (step < 0 && at > end)) {
        all.push(at as usize);
        at = at.saturating_add(step);
    }
    all
}

/// The axes that an operand gives, or before opset 13 an attribute; `None` within where neither does.
fn axes(call: &Call<'_, '_, '_>) -> Outcome<Option<Option<Vec<i64>>>> {
    Ok(match (call.version < 13, call.value(1)) {
        (true, _) => Some(call.ints("axes")?),
        (false, None) => Some(None),
        (false, Some(_)) => numbers(call, 1).map(Some),
    })
}

pub(super) fn squeeze(call: &Call<'_, '_, '_>) -> Outcome<Option<Sizes>> {
    let (Some(data), Some(axes)) = (any(call, 0), axes(call)?) else {
        return Ok(None);
    };
    let rank = data.shape.len();
    let gone: Option<Vec<usize>> = match axes {
        Some(axes) => axes.into_iter().map(|a| resolve_axis(a, rank)).collect(),
        None => Some((0..rank).filter(|&a| data.shape[a] == 1).collect()),
    };
    Ok(gone
        .filter(|gone| gone.iter().all(|&a| data.shape[a] == 1))
        .map(|gone| {
            let kept = (0..rank).filter(|a| !gone.contains(a));
            Sizes {
                shape: kept.map(|a| data.shape[a]).collect(),
                ..data.clone()
            }
        }))
}

pub(super) fn unsqueeze(call: &Call<'_, '_, '_>) -> Outcome<Option<Sizes>> {
    let (Some(data), Some(Some(axes))) = (any(call, 0), axes(call)?) else {
        return Ok(None);
    };
    let rank = data.shape.len() + axes.len();
    let places: Option<Vec<usize>> = axes.into_iter().map(|a| resolve_axis(a, rank)).collect();
    let Some(mut places) = places else { return Ok(None) };
    places.sort_unstable();
    if places.windows(2).any(|w| w[0] == w[1]) {
        return Ok(None);
    }
    let mut shape = data.shape.clone();
    places.into_iter().for_each(|p| shape.insert(p, 1));
    Ok(Some(Sizes { shape, ..data.clone() }))
}

pub(super) fn reshape(call: &Call<'_, '_, '_>) -> Outcome<Option<Sizes>> {
    let keep_zero = call.flag("allowzero", false)?;
    let (Some(data), Some(target)) = (any(call, 0), numbers(call, 1)) else {
        return Ok(None);
    };
    Ok(reshaped(data, &target, keep_zero))
}

fn reshaped(data: &Sizes, target: &[i64], keep_zero: bool) -> Option<Sizes> {
    let (mut shape, mut open) = (vec![], None);
    for (axis, &n) in target.iter().enumerate() {
        shape.push(match n {
            0 if !keep_zero => *data.shape.get(axis)?,
            -1 if open.is_none() => {
                open = Some(axis);
                1
            }
            n => usize::try_from(n).ok()?,
        });
    }
    let known = count(&shape)?;
    if let Some(axis) = open {
        shape[axis] = data.dims.len().checked_div(known)?;
    }
    (count(&shape)? == data.dims.len()).then(|| Sizes { shape, ..data.clone() })
}

pub(super) fn transpose(call: &Call<'_, '_, '_>) -> Outcome<Option<Sizes>> {
    let Some(data) = any(call, 0) else { return Ok(None) };
    let rank = data.shape.len();
    let order = match call.ints("perm")? {
        None => (0..rank).rev().collect(),
        Some(perm) => match perm.into_iter().map(usize::try_from).collect::<Result<Vec<usize>, _>>() {
            Ok(order) => order,
            Err(_) => return Ok(None),
        },
    };
    if order.len() != rank || (0..rank).any(|a| !order.contains(&a)) {
        return Ok(None);
    }
    let shape: Vec<usize> = order.iter().map(|&a| data.shape[a]).collect();
    let own = |at: &[usize]| {
        let mut from = vec![0; rank];
        order.iter().zip(at).for_each(|(&a, &i)| from[a] = i);
        flat(&data.shape, from.into_iter())
    };
    Ok(Some(Sizes {
        dims: picked(&data.dims, &shape, own),
        shape,
        dtype: data.dtype,
    }))
}

pub(super) fn expand(call: &Call<'_, '_, '_>) -> Option<Sizes> {
    let (data, target) = (any(call, 0)?, numbers(call, 1)?);
    let target = target
        .into_iter()
        .map(|n| usize::try_from(n).ok())
        .collect::<Option<Vec<usize>>>()?;
    let shape = broadcast_shape(&data.shape, &target)?;
    Some(Sizes {
        dims: expanded(data, &shape),
        shape,
        dtype: data.dtype,
    })
}
