//! Calls that take inputs over: a result of an earlier call becomes the buffer of an output.
//!
//! Invariant: a donated buffer becomes an output's only where the plan says so ([`Plan::donations`](tlc_ir::Plan)), which
//! its verifier checks: the input is read for the last time before, or element by element where, the output is written.

use super::{Description, Executable, OutputTensor, RunError, TensorView};

/// An input of [`Executable::run_donating`].
#[derive(Debug)]
pub enum Argument<'a> {
    /// Memory that stays the caller's.
    Borrowed(TensorView<'a>),
    /// A result of an earlier call that may be overwritten.
    Donated(OutputTensor),
}

impl Argument<'_> {
    fn view(&self) -> TensorView<'_> {
        match self {
            Argument::Borrowed(view) => *view,
            Argument::Donated(tensor) => tensor.view(),
        }
    }
}

impl Executable {
    /// As [`Executable::run`], with inputs that may be given away: where the plan allows it, an output is computed in the
    /// buffer of a donated input; a donated buffer that no output takes returns to the pool.
    ///
    /// # Errors
    /// As [`Executable::run`]; donated inputs are gone all the same.
    pub fn run_donating(&self, mut arguments: Vec<Argument<'_>>) -> Result<Vec<OutputTensor>, RunError> {
        let begun = {
            let views: Vec<TensorView<'_>> = arguments.iter().map(Argument::view).collect();
            self.begin(views.iter().map(Description::from))?
        };
        let addresses: Vec<*mut u8> = arguments
            .iter_mut()
            .map(|a| match a {
                Argument::Borrowed(view) => view.data.as_ptr().cast_mut(),
                Argument::Donated(tensor) => tensor.data.as_mut_ptr(),
            })
            .collect();
        let mut arguments: Vec<Option<Argument<'_>>> = arguments.into_iter().map(Some).collect();
        self.call(begun, |binding, state| {
            let mut outputs = Vec::with_capacity(self.plan.outputs.len());
            for (k, (o, shape)) in self.plan.outputs.iter().zip(&binding.sizes.output_shapes).enumerate() {
                let bytes = binding.sizes.slot_bytes[o.slot.0 as usize] as usize;
                let mut givers = self.plan.donations.iter().filter(|d| d.1 as usize == k);
                let given = givers.find_map(|&(input, _)| {
                    arguments[input as usize].take_if(|a| matches!(a, Argument::Donated(t) if t.data.len() == bytes))
                });
                let data = match given {
                    Some(Argument::Donated(tensor)) => tensor.data,
                    _ => self.buffers.take(bytes)?,
                };
                outputs.push(OutputTensor {
                    dtype: o.ty.dtype,
                    shape: shape.clone(),
                    data,
                });
            }
            self.size(binding, state, &|_| false)?;
            for (o, out) in self.plan.outputs.iter().zip(&mut outputs) {
                state.frame.slots[o.slot.0 as usize] = out.data.as_mut_ptr();
            }
            let last = self.execute(binding, state, &|k| addresses[k], &mut |_, _, _, _| {})?;
            self.cut(&mut outputs, last.as_deref());
            Ok(outputs)
        })
    }
}
