//! Operators of the domain `com.microsoft` on images whose channels lie behind the space, as ONNX Runtime writes them where its kernels read images so.

use super::table::Run;
use super::{fused, pooling};
use crate::call::{Answer, Call, one};
use crate::refusal::{Outcome, invalid};
use tlc_record::Tensor;

/// The channels of an image, from behind the space to before it.
pub(super) fn first(x: &Tensor) -> Outcome<Tensor> {
    match x.rank() {
        0..=2 => invalid(format!("rank {}; expected at least 3", x.rank())),
        _ => Ok(x.move_axis(-1, 1)),
    }
}

/// The way back.
pub(super) fn last(x: &Tensor) -> Tensor {
    x.move_axis(1, -1)
}

/// An operator's function on operands of which those numbered have their channels last, as its result then has.
fn around(c: &mut Call<'_, '_, '_>, operands: &[usize], run: impl FnOnce(&mut Call<'_, '_, '_>) -> Answer) -> Answer {
    let mut inputs = c.inputs.clone();
    for &at in operands {
        if let Some(x) = c.optional(at)? {
            inputs[at] = Some(first(&x)?.into());
        }
    }
    one(last(&c.with_inputs(inputs, run)?))
}

/// An operator's function whose first operand, and result, have their channels last if the node says so.
pub(super) fn where_asked(c: &mut Call<'_, '_, '_>, run: Run) -> Answer {
    match c.flag("channels_last", false)? {
        true => around(c, &[0], run),
        false => run(c),
    }
}

/// A convolution by a weight that has its channels last too.
pub(super) fn conv(c: &mut Call<'_, '_, '_>) -> Answer {
    around(c, &[0, 1], super::convolution::conv)
}

/// A convolution by a weight as ONNX has it, with what is added to it and an activation.
pub(super) fn fused_conv(c: &mut Call<'_, '_, '_>) -> Answer {
    around(c, &[0, 3], fused::conv)
}

pub(super) fn max_pool(c: &mut Call<'_, '_, '_>) -> Answer {
    c.at_most_outputs(1)?;
    around(c, &[0], pooling::max_pool)
}
