//! Sequences of tensors. Those of a known length are put together and taken apart while the model is imported, and the graph has their
//! tensors alone; of those as long as a size says, which a loop appends to, it has one tensor, whose parts they are.

use std::rc::Rc;

use tlc_ir::{DType, HostTensor, Scalar};

use super::indexing::from_start;
use crate::call::{Answer, Call, one};
use crate::refusal::{Outcome, invalid, limit, unsupported};
use crate::value::{Sequence, Sizes, Value};
use tlc_record::dim::Dim;

/// The operators that take sequences. An `If` reads those around it by name.
pub(crate) const TAKERS: &[&str] = &[
    "ConcatFromSequence",
    "Identity",
    "Loop",
    "SequenceAt",
    "SequenceErase",
    "SequenceInsert",
    "SequenceLength",
];

/// The most tensors of a sequence.
const MAX_LENGTH: usize = 4096;

fn sequence_of(items: Vec<Value>, dtype: DType) -> Answer {
    if items.len() > MAX_LENGTH {
        return limit(format!(
            "a sequence of {} tensors; expected at most {MAX_LENGTH}",
            items.len()
        ));
    }
    one(Value::Sequence(Rc::new(Sequence::Known(items, dtype))))
}

/// Operand 0, which must be a sequence.
fn given(c: &Call<'_, '_, '_>) -> Outcome<Sequence> {
    match c.required(0)?.sequence() {
        Some(sequence) => Ok(sequence.clone()),
        None => invalid("operand 0 is a tensor; expected a sequence"),
    }
}

/// The tensors of operand 0, which must be a sequence of a known length.
fn known(c: &Call<'_, '_, '_>) -> Outcome<(Vec<Value>, DType)> {
    match given(c)? {
        Sequence::Known(items, dtype) => Ok((items, dtype)),
        Sequence::Stacked(_) => {
            unsupported("a sequence whose length depends on a size; expected one of a known length")
        }
    }
}

/// Operand `i` as a place among `count`, counted from the end where it is negative; none if it is left out.
fn place(c: &mut Call<'_, '_, '_>, i: usize, count: usize) -> Outcome<Option<usize>> {
    let Some(numbers) = c.input_ints(i)? else {
        return Ok(None);
    };
    let [number] = numbers[..] else {
        return invalid(format!("{} positions; expected one", numbers.len()));
    };
    match tlc_record::dim::resolve_axis(number, count) {
        Some(place) => Ok(Some(place)),
        None => invalid(format!("position {number}; expected one of {count}")),
    }
}

pub(super) fn empty(c: &mut Call<'_, '_, '_>) -> Answer {
    let dtype = c.dtype("dtype")?.unwrap_or(DType::F32);
    sequence_of(vec![], dtype)
}

pub(super) fn construct(c: &mut Call<'_, '_, '_>) -> Answer {
    let dtype = c.required(0)?.dtype();
    let items = (0..c.inputs.len()).map(|i| c.required(i).cloned());
    sequence_of(items.collect::<Outcome<_>>()?, dtype)
}

pub(super) fn at(c: &mut Call<'_, '_, '_>) -> Answer {
    let items = match given(c)? {
        Sequence::Known(items, _) => items,
        Sequence::Stacked(parts) => {
            let position = c.tensor(1)?.reshape(());
            return one(parts.take_from_start(&from_start(&position, &parts.dim(0))?, 0));
        }
    };
    match place(c, 1, items.len())? {
        Some(place) => one(items[place].clone()),
        None => invalid("no position; expected one"),
    }
}

pub(super) fn insert(c: &mut Call<'_, '_, '_>) -> Answer {
    let (mut items, dtype) = known(c)?;
    let item = c.required(1)?.clone();
    if item.sequence().is_some() || item.dtype() != dtype {
        return invalid(format!(
            "operand 1 is no tensor of {dtype}; expected what the sequence has"
        ));
    }
    // Behind the last is a place, too; counted from the end, before the last is the first.
    let end = items.len();
    let place = match c.input_ints(2)?.as_deref() {
        None => end,
        Some(&[n]) if (0..=end as i64).contains(&n) => n as usize,
        Some(&[n]) if (-(end as i64)..0).contains(&n) => (n + end as i64) as usize,
        Some(found) => return invalid(format!("position {found:?}; expected one from -{end} to {end}")),
    };
    items.insert(place, item);
    sequence_of(items, dtype)
}

pub(super) fn erase(c: &mut Call<'_, '_, '_>) -> Answer {
    let (mut items, dtype) = known(c)?;
    let place = match place(c, 1, items.len())? {
        Some(place) => place,
        None if items.is_empty() => return invalid("an empty sequence; expected a tensor in it"),
        None => items.len() - 1,
    };
    items.remove(place);
    sequence_of(items, dtype)
}

pub(super) fn length(c: &mut Call<'_, '_, '_>) -> Answer {
    let length = match given(c)? {
        Sequence::Known(items, _) => items.len() as i64,
        Sequence::Stacked(parts) => {
            return one(Value::Sizes(Rc::new(Sizes {
                dims: vec![parts.dim(0)],
                shape: vec![],
                dtype: DType::I64,
            })));
        }
    };
    let number = HostTensor::scalar(Scalar::from_i64(DType::I64, length));
    one(Value::constant(&c.graph(), number))
}

/// The tensors of a sequence behind each other, along an axis of theirs or along a new one.
pub(super) fn concat(c: &mut Call<'_, '_, '_>) -> Answer {
    let graph = c.graph();
    let sequence = given(c)?;
    let Some(axis) = c.maybe_int("axis")? else {
        return invalid("no axis; expected one");
    };
    let all = match sequence {
        Sequence::Known(items, _) => items.iter().map(|i| i.tensor(&graph)).collect::<Outcome<Vec<_>>>()?,
        Sequence::Stacked(parts) => {
            let new = c.flag("new_axis", false)?;
            let axis = c.axis(axis, parts.rank() - usize::from(!new))?;
            let moved = parts.move_axis(0, axis as i64);
            if new {
                return one(moved);
            }
            // The parts of an axis behind each other are that axis and theirs in one.
            let mut shape = moved.shape();
            let each = shape.remove(axis + 1);
            shape[axis] = &shape[axis] * each;
            return one(moved.reshape(shape));
        }
    };
    if all.is_empty() {
        return invalid("an empty sequence; expected at least one tensor");
    }
    let all: Vec<_> = all.iter().collect();
    one(match c.flag("new_axis", false)? {
        true => tlc_record::stack(&all, axis),
        false => tlc_record::concat(&all, axis),
    })
}

/// The parts of a tensor along an axis: of one element each, of as many as a number says and the rest, or of as many as a list says.
pub(super) fn split(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    let axis = c.axis(c.int("axis", 0)?, x.rank())?;
    let extent = x.dim(axis as i64);
    let list = c.value(1).is_some_and(|v| !v.shape().is_empty());
    let given = c.input_dims(1)?;
    let single = given.is_none();
    let unit = |d: &Dim| d.as_const() == Some(1);
    if extent.as_const().is_none() && !list && given.as_ref().is_none_or(|g| unit(&g[0])) {
        let front = x.move_axis(axis as i64, 0);
        let kept = !single || c.flag("keepdims", true)?;
        let parts = if kept { front.unsqueeze(axis as i64 + 1) } else { front };
        return one(Value::Sequence(Rc::new(Sequence::Stacked(parts))));
    }
    let sizes = match given {
        Some(sizes) if list => sizes,
        Some(size) => equal_parts(&extent, &size[0])?,
        None => equal_parts(&extent, &Dim::from(1))?,
    };
    if sizes.len() > MAX_LENGTH {
        return limit(format!("{} parts; expected at most {MAX_LENGTH}", sizes.len()));
    }
    let mut parts = x.split(&sizes, axis as i64);
    if single && !c.flag("keepdims", true)? {
        parts = parts.iter().map(|part| part.select_index(axis as i64, 0)).collect();
    }
    sequence_of(parts.into_iter().map(Value::from).collect(), x.dtype())
}

/// The sizes of parts of `size` elements, of which the last may have fewer.
fn equal_parts(extent: &Dim, size: &Dim) -> Outcome<Vec<Dim>> {
    let (Some(all), Some(each)) = (extent.as_const(), size.as_const()) else {
        return unsupported("parts whose number depends on a size; expected an axis of a known extent");
    };
    if each < 1 {
        return invalid(format!("parts of {each} elements; expected at least 1"));
    }
    let count = all / each + i64::from(all % each > 0);
    if count > MAX_LENGTH as i64 {
        return limit(format!("{count} parts; expected at most {MAX_LENGTH}"));
    }
    let sizes = (0..count).map(|i| each.min(all - i * each));
    Ok(sizes.map(Dim::from).collect())
}
