//! Operators that only move elements: shapes, joins, parts, padding.

use tlc_ir::DType;

use crate::assumptions::Comparison;
use crate::call::{Answer, Call, one};
use crate::refusal::{Outcome, invalid, unsupported};
use crate::sizes::becomes_positive;
use crate::value::Value;
use tlc_record::Tensor;
use tlc_record::dim::Dim;
use tlc_record::ops::slice::s;

/// The axes before `axis` as one, and those from it on as one.
pub(super) fn flattened(x: &Tensor, axis: usize) -> Tensor {
    let dims = x.shape();
    let product = |part: &[Dim]| part.iter().fold(Dim::from(1), |n, d| n * d);
    x.reshape([product(&dims[..axis]), product(&dims[axis..])])
}

pub(super) fn reshape(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    let keep_zero = c.flag("allowzero", false)?;
    let Some(mut target) = c.input_dims(1)? else {
        return invalid("operand 1 is missing; expected the shape");
    };
    if target.len() > tlc_ir::graph::MAX_RANK {
        return invalid(format!(
            "rank {}; expected at most {}",
            target.len(),
            tlc_ir::graph::MAX_RANK
        ));
    }
    let own = x.shape();
    for (i, d) in target.iter_mut().enumerate() {
        match d.as_const() {
            Some(0) if !keep_zero => match own.get(i) {
                Some(same) => *d = same.clone(),
                None => return invalid(format!("extent 0 at axis {i} copies an axis that is not there")),
            },
            Some(n) if n < -1 => return invalid(format!("extent {n}; expected -1, 0 or more")),
            _ => {}
        }
    }
    one(x.reshape(target))
}

pub(super) fn flatten(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    let axis = c.int("axis", 1)?;
    let axis = if axis == x.rank() as i64 {
        x.rank()
    } else {
        c.axis(axis, x.rank())?
    };
    one(flattened(&x, axis))
}

pub(super) fn transpose(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    one(match c.ints("perm")? {
        Some(axes) => x.permute(axes),
        None => x.transpose(),
    })
}

pub(super) fn squeeze(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    if let Some(axes) = c.axes(1, 13)? {
        return one(x.squeeze(axes));
    }
    let (graph, mut single) = (c.graph(), vec![]);
    let assumptions = &mut c.importer.assumptions;
    for (axis, extent) in x.shape().iter().enumerate() {
        let is_one = assumptions.truth(&graph, Comparison::Equal, extent, &1.into());
        let gone = match is_one.as_const() {
            Some(truth) => truth == 1,
            None => {
                let answer = match assumptions.question(&graph, &is_one) {
                    Some((question, None)) => assumptions.assume(&graph, question, &is_one),
                    Some((_, answer)) => answer,
                    None => None,
                };
                let Some(answer) = answer else {
                    return unsupported(
                        "a shape without the axes of one element, of which there may be some; expected axes",
                    );
                };
                answer
            }
        };
        if gone {
            single.push(axis as i64);
        }
    }
    one(x.squeeze(single))
}

pub(super) fn unsqueeze(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    let Some(axes) = c.axes(1, 13)? else {
        return invalid("no axes; expected them");
    };
    let rank = x.rank() + axes.len();
    let mut places = vec![];
    for a in axes {
        places.push(c.axis(a, rank)?);
    }
    places.sort_unstable();
    if places.windows(2).any(|w| w[0] == w[1]) {
        return invalid("an axis is given twice; expected distinct axes");
    }
    let mut shape = x.shape();
    places.iter().for_each(|&p| shape.insert(p, 1.into()));
    one(x.reshape(shape))
}

pub(super) fn expand(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    let Some(mut target) = c.input_dims(1)? else {
        return invalid("operand 1 is missing; expected the shape");
    };
    // An extent that is at most 1 is 1, under a guard, where it meets one that may be more.
    let graph = c.graph();
    let own = x.shape();
    let lead = own.len().saturating_sub(target.len());
    let behind = target.len().saturating_sub(own.len());
    for (from, to) in own.iter().skip(lead).zip(target.iter_mut().skip(behind)) {
        let most = |d: &Dim| graph.with_ir(|ir| d.expr().interval(ir)).hi;
        if to.as_const().is_none() && most(to) == 1 && most(from) > 1 && becomes_positive(&graph, to) {
            *to = 1.into();
        }
    }
    one(x.broadcast_to(broadcast(&own, &target)))
}

/// The shape that both broadcast to; extents that differ are left for the recording to refuse.
pub(super) fn broadcast(a: &[Dim], b: &[Dim]) -> Vec<Dim> {
    let rank = a.len().max(b.len());
    let at = |s: &[Dim], i: usize| (i + s.len()).checked_sub(rank).map_or(Dim::from(1), |k| s[k].clone());
    let pick = |i: usize| match at(b, i) {
        d if d.as_const() == Some(1) => at(a, i),
        d => d,
    };
    (0..rank).map(pick).collect()
}

pub(super) fn tile(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    let Some(repeats) = c.input_dims(1)? else {
        return invalid("operand 1 is missing; expected the repeats");
    };
    if repeats.len() != x.rank() {
        return invalid(format!("{} repeats; expected {}", repeats.len(), x.rank()));
    }
    if let Some(n) = repeats.iter().filter_map(Dim::as_const).find(|&n| n < 0) {
        return invalid(format!("{n} repeats; expected 0 or more"));
    }
    one(x.tile(repeats))
}

pub(super) fn concat(c: &mut Call<'_, '_, '_>) -> Answer {
    let all = c.tensors()?;
    let Some(axis) = c.maybe_int("axis")? else {
        return invalid("no axis; expected one");
    };
    let Some(first) = all.first() else {
        return invalid("no operands; expected at least one");
    };
    if let Some(axis) = tlc_record::dim::resolve_axis(axis, first.rank())
        && all.iter().all(|t| t.rank() == first.rank())
        && let Some(whole) = c.importer.concatenated_to_limits(&all, axis as i64)
    {
        return one(whole);
    }
    one(tlc_record::concat(&all.iter().collect::<Vec<_>>(), axis))
}

pub(super) fn split(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    let axis = c.axis(c.int("axis", 0)?, x.rank())?;
    let sizes = if c.version < 13 {
        c.ints("split")?.map(|l| l.into_iter().map(Dim::from).collect())
    } else {
        c.input_dims(1)?
    };
    let sizes: Vec<Dim> = match sizes {
        Some(sizes) => sizes,
        None => {
            let count = c.int("num_outputs", c.outputs as i64)?;
            if count < 1 || count != c.outputs as i64 {
                return invalid(format!("{count} parts for {} results; expected as many", c.outputs));
            }
            let extent = x.dim(axis as i64);
            let part = extent.div_ceil(count);
            let last = &extent - &part * (count - 1);
            if last.as_const().is_some_and(|n| n < 0) {
                return invalid(format!(
                    "{count} parts of an axis of {} elements",
                    extent.as_const().unwrap_or(0)
                ));
            }
            let mut all = vec![part; count as usize];
            all[count as usize - 1] = last;
            all
        }
    };
    // ONNX Runtime picks several sizes of one shape so.
    if let Some(parts) = crate::sizes::split(c, axis, &sizes) {
        return Ok(parts);
    }
    let parts = x.split(&sizes, axis as i64);
    Ok(parts.into_iter().map(Value::from).collect())
}

/// A longer step takes one element, too.
const LONGEST_STEP: i64 = 1 << 40;

/// A part of an axis as ONNX counts it: negative ends from the end, ends beyond the axis clipped.
fn part(x: &Tensor, axis: usize, start: &Dim, end: &Dim, step: i64) -> Outcome<Tensor> {
    if step == 0 {
        return invalid("a step of 0; expected another");
    }
    let extent = x.dim(axis as i64);
    let graph = x.graph();
    let interval = |d: &Dim| graph.with_ir(|ir| d.expr().interval(ir));
    // A place in 0..=extent, clipped. For steps down an end may be before the axis, and a start is an element if there is one.
    let place = |d: &Dim, down: bool, is_start: bool| -> Outcome<Dim> {
        let (lo, hi) = match (down, is_start) {
            (false, _) => (Dim::from(0), extent.clone()),
            (true, false) => (Dim::from(-1), &extent - 1),
            (true, true) => ((&extent - 1).min(0), &extent - 1),
        };
        Ok(match d.as_const() {
            Some(n) if n >= i32::MAX as i64 => hi,
            Some(n) if n <= -(i32::MAX as i64) => lo,
            Some(n) if n < 0 => match extent.as_const() {
                Some(e) => Dim::from(n.saturating_add(e)).max(lo),
                None => (&extent + n).max(lo),
            },
            Some(n) => Dim::from(n).min(hi),
            None if interval(d).lo >= 0 => d.min(hi),
            None if interval(d).hi < 0 => (&extent + d).max(lo),
            // It is below 0 only where the axis is empty.
            None if matches!((&extent - d).as_const(), Some(0 | 1)) => d.max(lo).min(hi),
            // Which side it counts from is only known with the symbols: 1 where it is the end.
            None => {
                let from_end = (Dim::from(0) - d).max(0).min(1);
                (d + &extent * from_end).max(lo).min(hi)
            }
        })
    };
    let down = step < 0;
    let (start, end) = (place(start, down, true)?, place(end, down, false)?);
    let simple = |d: &Dim| Dim::from(graph.simplify(d.expr()));
    let (start, end) = (simple(&start), simple(&end));
    // A number below 0 would count from the end.
    let taken = match end.as_const() {
        Some(-1) => s(start..),
        _ => s(start..end),
    };
    Ok(x.slice_axis(axis as i64, taken.step(step.clamp(-LONGEST_STEP, LONGEST_STEP))))
}

pub(super) fn slice(c: &mut Call<'_, '_, '_>) -> Answer {
    let mut x = c.tensor(0)?;
    let dims = |l: Option<Vec<i64>>| l.map(|l| l.into_iter().map(Dim::from).collect::<Vec<_>>());
    let (starts, ends, axes, steps) = match c.version < 10 {
        true => (dims(c.ints("starts")?), dims(c.ints("ends")?), c.ints("axes")?, None),
        false => (c.input_dims(1)?, c.input_dims(2)?, c.input_ints(3)?, c.input_ints(4)?),
    };
    let (Some(starts), Some(ends)) = (starts, ends) else {
        return invalid("no starts or no ends; expected both");
    };
    let axes = axes.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = steps.unwrap_or_else(|| vec![1; starts.len()]);
    if ends.len() != starts.len() || axes.len() != starts.len() || steps.len() != starts.len() {
        return invalid("starts, ends, axes and steps of several lengths; expected one");
    }
    let mut seen = vec![];
    for (i, &axis) in axes.iter().enumerate() {
        let axis = c.axis(axis, x.rank())?;
        if seen.contains(&axis) {
            return invalid(format!("axis {axis} is given twice; expected distinct axes"));
        }
        seen.push(axis);
        x = part(&x, axis, &starts[i], &ends[i], steps[i])?;
    }
    one(x)
}

pub(super) fn pad(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    let mode = c.text("mode", "constant")?;
    let (pads, axes) = match c.version < 11 {
        true => (c.ints("pads")?.map(|l| l.into_iter().map(Dim::from).collect()), None),
        false => (c.input_dims(1)?, c.input_ints(3)?),
    };
    let Some(pads) = pads else {
        return invalid("no pads; expected them");
    };
    let axes = axes.unwrap_or_else(|| (0..x.rank() as i64).collect());
    if pads.len() != 2 * axes.len() {
        return invalid(format!("{} pads; expected {}", pads.len(), 2 * axes.len()));
    }
    let mut each = vec![(Dim::from(0), Dim::from(0)); x.rank()];
    for (i, &axis) in axes.iter().enumerate() {
        let axis = c.axis(axis, x.rank())?;
        each[axis] = (pads[i].clone(), pads[axes.len() + i].clone());
    }
    if mode != "constant" {
        return moved_pad(&x, &each, &mode);
    }
    let mut fill = x.dtype().zero();
    // What the padding is where no constant says it.
    let mut computed = None;
    if c.version < 11 {
        fill = tlc_ir::Scalar::from_f64(x.dtype(), c.float("value", 0.0)?);
    } else if let Some(value) = c.value(2).cloned() {
        let given = c.tensor(2)?;
        let count = given.elements().as_const();
        if count != Some(1) {
            let count = count.map_or("some".into(), |n| n.to_string());
            return invalid(format!("a fill of {count} elements; expected one"));
        }
        match c.importer.constant(&value, "the fill") {
            Ok(data) => fill = data.get(0),
            Err(_) => computed = Some(given.reshape(())),
        }
    }
    // Negative padding takes away, of what padding on the other side added as well.
    let graph = c.graph();
    let mut wanted = x.shape();
    let mut cuts = vec![];
    let mut open = false;
    for (axis, (lo, hi)) in each.iter_mut().enumerate() {
        wanted[axis] = Dim::from(graph.simplify((&wanted[axis] + &*lo + &*hi).expr()));
        if let Some(n @ ..0) = wanted[axis].as_const() {
            return invalid(format!(
                "pads that leave {n} elements along axis {axis}; expected at least 0"
            ));
        }
        let mut less = [Dim::from(0), Dim::from(0)];
        for (less, d) in less.iter_mut().zip([lo, hi]) {
            let range = graph.with_ir(|ir| d.expr().interval(ir));
            if range.lo >= 0 {
                continue;
            }
            // Which of both it is may only be known with the symbols.
            open |= range.hi > 0;
            *less = (Dim::from(0) - &*d).max(0);
            *d = d.max(0);
        }
        let [before, behind] = less;
        if before.as_const() != Some(0) || behind.as_const() != Some(0) {
            cuts.push((axis as i64, before));
        }
    }
    let mut padded = match computed {
        None => x.pad(&each, fill),
        Some(fill) => {
            let own = graph.full(x.shape(), true, DType::Bool).pad(&each, false);
            own.select(x.pad(&each, x.dtype().zero()), fill)
        }
    };
    for (axis, before) in cuts {
        padded = padded.narrow(axis, before, wanted[axis as usize].clone());
    }
    one(if open { padded.reshape(wanted) } else { padded })
}

/// Padding with the tensor's own elements.
fn moved_pad(x: &Tensor, each: &[(Dim, Dim)], mode: &str) -> Answer {
    let mut x = x.clone();
    for (axis, (lo, hi)) in each.iter().enumerate() {
        if lo.as_const() == Some(0) && hi.as_const() == Some(0) {
            continue;
        }
        let extent = x.dim(axis as i64);
        let graph = x.graph();
        let value = |d: &Dim| graph.dim_value(d, DType::I64).or_else(|(problem, _)| invalid(problem));
        if extent.as_const() == Some(0) {
            return invalid(format!("axis {axis} is empty; expected elements to pad with"));
        }
        let length = &extent + lo + hi;
        if length.as_const().is_some_and(|n| n < 0) {
            return invalid(format!("padding takes more than axis {axis} has"));
        }
        let places = graph.range(length, DType::I64) - value(lo)?;
        // The last place, which there must be.
        let last = value(&(&extent - 1))?;
        // Most places are inside, where the element is that of the place itself.
        let inside = |first: &Tensor, last: &Tensor| places.ge(first).bit_and(places.le(last));
        let index = match mode {
            "edge" => places.maximum(0).minimum(last),
            "wrap" => {
                // What negative padding leaves is what goes round.
                let taken = |d: &Dim| (Dim::from(0) - d).max(0);
                let before = taken(lo);
                let left = extent - &before - taken(hi);
                if left.as_const().is_some_and(|n| n <= 0) {
                    return invalid(format!("padding leaves nothing of axis {axis} to pad with"));
                }
                let (first, last) = (value(&before)?, value(&(&before + &left - 1))?);
                let round = (&places - &first).remainder(value(&left)?) + &first;
                inside(&first, &last).select(&places, round)
            }
            "reflect" => {
                let least = graph.with_ir(|ir| extent.expr().interval(ir)).lo;
                let once = [lo, hi].into_iter().all(|d| d.as_const().is_some_and(|n| n < least));
                let (mirrored, period) = match once {
                    true => (places.maximum(-&places), 2 * &last),
                    false => {
                        let period = (2 * &last).maximum(1);
                        (places.remainder(&period), period)
                    }
                };
                let mirrored = mirrored.minimum(&period - &mirrored);
                inside(&value(&Dim::from(0))?, &last).select(&places, mirrored)
            }
            other => return invalid(format!("mode `{other}`; expected constant, reflect, edge or wrap")),
        };
        x = x.take_from_start(&index, axis as i64);
    }
    one(x)
}

pub(super) fn depth_to_space(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    let block = c.int("blocksize", 0)?;
    let crd = match c.text("mode", "DCR")?.as_str() {
        "DCR" => false,
        "CRD" => true,
        other => return invalid(format!("mode `{other}`; expected DCR or CRD")),
    };
    blocks(&x, block)?;
    let [n, channels, h, w] = [0, 1, 2, 3].map(|a| x.dim(a));
    let inner = channels.clone() / (block * block);
    let b = || Dim::from(block);
    let (shape, order) = match crd {
        false => (
            [n.clone(), b(), b(), inner.clone(), h.clone(), w.clone()],
            [0, 3, 4, 1, 5, 2],
        ),
        true => (
            [n.clone(), inner.clone(), b(), b(), h.clone(), w.clone()],
            [0, 1, 4, 2, 5, 3],
        ),
    };
    one(x
        .reshape(shape)
        .permute(order)
        .reshape([n, inner, h * block, w * block]))
}

pub(super) fn space_to_depth(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    let block = c.int("blocksize", 0)?;
    blocks(&x, block)?;
    let [n, channels, h, w] = [0, 1, 2, 3].map(|a| x.dim(a));
    let (h, w) = (h / block, w / block);
    let b = || Dim::from(block);
    let apart = x.reshape([n.clone(), channels.clone(), h.clone(), b(), w.clone(), b()]);
    let order = match c.text("mode", "DCR")?.as_str() {
        "DCR" => [0, 3, 5, 1, 2, 4],
        "CRD" => [0, 1, 3, 5, 2, 4],
        other => return invalid(format!("mode `{other}`; expected DCR or CRD")),
    };
    one(apart.permute(order).reshape([n, channels * (block * block), h, w]))
}

fn blocks(x: &Tensor, block: i64) -> Outcome<()> {
    if x.rank() != 4 {
        return invalid(format!("rank {}; expected 4", x.rank()));
    }
    match (1..=1 << 16).contains(&block) {
        true => Ok(()),
        false => invalid(format!("blocksize {block}; expected a positive number")),
    }
}

pub(super) fn trilu(c: &mut Call<'_, '_, '_>) -> Answer {
    /// An offset beyond every axis is as good as any.
    const FAR: i64 = 1 << 40;
    let x = c.tensor(0)?;
    if x.rank() < 2 {
        return invalid(format!("rank {}; expected at least 2", x.rank()));
    }
    let upper = c.flag("upper", true)?;
    let known = match c.value(1) {
        None => Some(0),
        Some(value) => match c.importer.known(value) {
            Some(k) if k.len() == 1 && k.dtype().is_int() => Some(k.get(0).as_i64().clamp(-FAR, FAR)),
            Some(k) => return invalid(format!("{} offsets of {}; expected one integer", k.len(), k.dtype())),
            None => None,
        },
    };
    if let Some(k) = known {
        return one(if upper { x.triu(k) } else { x.tril(k) });
    }
    let k = c.tensor(1)?.reshape(()).cast(DType::I64).maximum(-FAR).minimum(FAR);
    let place = |axis: i64| c.graph().iota([x.dim(-2), x.dim(-1)], axis, DType::I64);
    let (diagonal, column) = (place(0) + k, place(1));
    let keeps = if upper {
        column.ge(diagonal)
    } else {
        column.le(diagonal)
    };
    one(keeps.select(&x, x.dtype().zero()))
}

pub(super) fn center_crop_pad(c: &mut Call<'_, '_, '_>) -> Answer {
    let mut x = c.tensor(0)?;
    let Some(target) = c.input_dims(1)? else {
        return invalid("operand 1 is missing; expected the shape");
    };
    let axes = c.ints("axes")?.unwrap_or_else(|| (0..x.rank() as i64).collect());
    if axes.len() != target.len() {
        return invalid(format!(
            "{} extents for {} axes; expected as many",
            target.len(),
            axes.len()
        ));
    }
    let graph = c.graph();
    for (&axis, wanted) in axes.iter().zip(&target) {
        let axis = c.axis(axis, x.rank())?;
        if let Some(n) = wanted.as_const().filter(|n| !(0..1 << 40).contains(n)) {
            return invalid(format!("an extent of {n}; expected 0 or more"));
        }
        let simple = |d: Dim| Dim::from(graph.simplify(d.expr()));
        let extent = x.dim(axis as i64);
        let (more, less) = (simple((wanted - &extent).max(0)), simple((&extent - wanted).max(0)));
        if less.as_const() != Some(0) {
            x = x.narrow(axis as i64, &less / 2, simple(extent.min(wanted)));
        }
        let mut each = vec![(Dim::from(0), Dim::from(0)); x.rank()];
        each[axis] = (&more / 2, more.div_ceil(2));
        x = x.pad(&each, x.dtype().zero());
    }
    one(x)
}

pub(super) fn shape(_: &mut Call<'_, '_, '_>) -> Answer {
    unsupported("the expression of this shape is too large")
}
