//! Rust types that tensors' elements are given in, and how results are written to memory of theirs.

use ndarray::{ArrayViewMut, Dimension};
use tlc_ir::Element;

/// An element type of Rust data that goes in and out of graphs: the integers, `f32`, `f64`, [`half::f16`], [`half::bf16`]
/// and `bool`. It is every [`Element`]; that it is a trait of its own lets slices, arrays and scalars convert alike.
pub trait Datum: Element + Landing {}

/// How results are written to memory of a type. Not to be named outside.
pub trait Landing: Sized {
    /// The memory for results.
    #[doc(hidden)]
    fn memory(elements: &mut [Self]) -> Memory<'_>;
}

macro_rules! datum {
    ($($t:ty),*) => { $(
        impl Datum for $t {}
        impl Landing for $t {
            fn memory(elements: &mut [Self]) -> Memory<'_> {
                Memory::Direct(bytemuck::cast_slice_mut(elements))
            }
        }
    )* };
}
datum!(i8, i16, i32, i64, u8, u16, u32, u64, f32, f64, half::f16, half::bf16);

impl Datum for bool {}
impl Landing for bool {
    fn memory(elements: &mut [bool]) -> Memory<'_> {
        Memory::Bools(elements)
    }
}

/// Memory of the caller, by how it is written.
pub enum Memory<'a> {
    /// By the call itself.
    Direct(&'a mut [u8]),
    /// After the call.
    Bools(&'a mut [bool]),
    /// After the call.
    Strided(Box<dyn Assign + Send + 'a>),
}

/// An array that elements in C order are assigned to.
pub trait Assign {
    /// How many elements it has.
    fn elements(&self) -> usize;
    /// Assigns the elements; bytes that are none of its type are left out.
    fn assign_bytes(&mut self, bytes: &[u8]);
}

impl<T: Datum, D: Dimension> Assign for ArrayViewMut<'_, T, D> {
    fn elements(&self) -> usize {
        self.len()
    }

    fn assign_bytes(&mut self, bytes: &[u8]) {
        if let Ok(elements) = bytemuck::checked::try_cast_slice::<u8, T>(bytes) {
            self.iter_mut().zip(elements).for_each(|(to, from)| *to = *from);
        }
    }
}
