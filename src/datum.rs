//! Rust types that tensors' elements are given in.

use tlc_ir::Element;

use crate::compile::output::Memory;

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
