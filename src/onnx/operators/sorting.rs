//! Sorting.

use tlc_ir::DType;

use crate::onnx::call::{Answer, Call};
use crate::onnx::refusal::invalid;

pub(super) fn top_k(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    let axis = c.axis(c.int("axis", -1)?, x.rank())? as i64;
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
    let largest = c.flag("largest", true)?;
    // In any order, so also in this one, where `sorted` is 0.
    let (values, places) = x.top_k(count, axis, largest);
    Ok(vec![values.into(), places.cast(DType::I64).into()])
}
