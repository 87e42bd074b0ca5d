//! What the sizes of a call follow from: its inputs, and the states that it reads, as far as types and shapes go.

use tlc_ir::DType;

use super::TensorView;

/// What an input, or a state that is read, is, wherever it is.
#[derive(Clone, Copy, Debug)]
pub struct Description<'a> {
    pub(super) dtype: DType,
    pub(super) shape: &'a [usize],
    /// The address of its elements.
    pub(super) address: usize,
    pub(super) bytes: usize,
}

impl<'a> Description<'a> {
    /// A tensor of so many bytes, in memory that is aligned for any elements.
    #[must_use]
    pub fn new(dtype: DType, shape: &'a [usize], bytes: usize) -> Description<'a> {
        Description {
            dtype,
            shape,
            address: 0,
            bytes,
        }
    }
}

impl<'a> From<&TensorView<'a>> for Description<'a> {
    #[inline]
    fn from(view: &TensorView<'a>) -> Description<'a> {
        Description {
            dtype: view.dtype,
            shape: view.shape,
            address: view.data.as_ptr().addr(),
            bytes: view.data.len(),
        }
    }
}

/// The tensors that the sizes of a call follow from, in the order of the plan's [`sources`](tlc_ir::Plan::sources).
#[derive(Clone, Copy, Debug)]
pub struct Sources<'s> {
    inputs: &'s [TensorView<'s>],
    states: &'s [Description<'s>],
}

impl<'s> Sources<'s> {
    /// Inputs, and behind them the states that are read.
    #[must_use]
    pub fn new(inputs: &'s [TensorView<'s>], states: &'s [Description<'s>]) -> Sources<'s> {
        Sources { inputs, states }
    }

    /// Their extents.
    pub fn shapes(&self) -> impl ExactSizeIterator<Item = &'s [usize]> + Clone + use<'s> {
        let (inputs, states) = (self.inputs, self.states);
        (0..inputs.len() + states.len()).map(move |k| match inputs.get(k) {
            Some(input) => input.shape,
            None => states[k - inputs.len()].shape,
        })
    }

    #[inline]
    pub(super) fn iter(&self) -> impl Iterator<Item = Description<'s>> + Clone + use<'s> {
        self.inputs
            .iter()
            .map(Description::from)
            .chain(self.states.iter().copied())
    }
}

impl<'s> From<&'s [TensorView<'s>]> for Sources<'s> {
    fn from(inputs: &'s [TensorView<'s>]) -> Sources<'s> {
        Sources { inputs, states: &[] }
    }
}
