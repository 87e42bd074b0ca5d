//! Memory for outputs: of the pool, or the caller's.

use tlc_ir::DType;

use super::call::same_extents;
use super::{Bound, Executable, OutputTensor, RunError, UNWRITTEN};

/// Memory of the caller that an output is written to: its bytes, and what is said of its type.
pub trait Destination {
    /// The element type, if it is said.
    fn dtype(&self) -> Option<DType>;
    /// The extents, if they are said.
    fn shape(&self) -> Option<&[usize]>;
    /// The bytes, aligned to the elements.
    fn bytes_mut(&mut self) -> &mut [u8];
}

impl Destination for &mut [u8] {
    fn dtype(&self) -> Option<DType> {
        None
    }

    fn shape(&self) -> Option<&[usize]> {
        None
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl Executable {
    /// Memory of the pool for the outputs.
    pub(super) fn take_outputs(&self, binding: &Bound) -> Result<Vec<OutputTensor>, RunError> {
        let mut outputs = Vec::with_capacity(self.plan.outputs.len());
        for (o, shape) in self.plan.outputs.iter().zip(&binding.sizes.output_shapes) {
            let bytes = binding.sizes.slot_bytes[o.slot.0 as usize] as usize;
            outputs.push(OutputTensor {
                dtype: o.ty.dtype,
                shape: shape.clone(),
                data: self.buffers.take(bytes)?,
            });
        }
        if cfg!(debug_assertions) {
            outputs.iter_mut().for_each(|o| o.data.as_mut_slice().fill(UNWRITTEN));
        }
        Ok(outputs)
    }

    /// Gives outputs the sizes that data decided; their buffers had room for the largest.
    pub(super) fn cut(&self, outputs: &mut [OutputTensor], last: Option<&Bound>) {
        let Some(last) = last else { return };
        for ((out, o), shape) in outputs
            .iter_mut()
            .zip(&self.plan.outputs)
            .zip(&last.sizes.output_shapes)
        {
            out.data.truncate(last.sizes.slot_bytes[o.slot.0 as usize] as usize);
            out.shape.clone_from(shape);
        }
    }

    /// Checks number, dtypes, shapes, bytes and alignment of the caller's memory for outputs.
    pub(super) fn check_outputs(&self, binding: &Bound, outputs: &mut [impl Destination]) -> Result<(), RunError> {
        if outputs.len() != self.plan.outputs.len() {
            return Err(RunError::OutputCount {
                expected: self.plan.outputs.len(),
                found: outputs.len(),
            });
        }
        for (k, (o, out)) in self.plan.outputs.iter().zip(outputs.iter_mut()).enumerate() {
            if let Some(found) = out.dtype().filter(|&d| d != o.ty.dtype) {
                return Err(RunError::OutputDtype {
                    name: o.name.clone(),
                    expected: o.ty.dtype,
                    found,
                });
            }
            if let Some(found) = out
                .shape()
                .filter(|s| !same_extents(s, &binding.sizes.output_shapes[k]))
            {
                return Err(RunError::OutputShape {
                    name: o.name.clone(),
                    expected: binding.sizes.output_shapes[k].clone(),
                    found: found.to_vec(),
                });
            }
            let expected = binding.sizes.slot_bytes[o.slot.0 as usize] as usize;
            let align = o.ty.dtype.bytes();
            let bytes = out.bytes_mut();
            if bytes.len() != expected || (expected > 0 && bytes.as_ptr().addr() % align != 0) {
                return Err(RunError::OutputBytes {
                    name: o.name.clone(),
                    expected,
                    align,
                    found: bytes.len(),
                });
            }
        }
        Ok(())
    }
}
