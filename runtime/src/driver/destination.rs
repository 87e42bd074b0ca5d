//! Memory of the caller for outputs.

use tlc_ir::DType;

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
