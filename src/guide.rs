//! How to use tlc, a page a subject. Every example runs in the tests.

#[doc = include_str!("guide/recording.md")]
pub mod recording {}

#[doc = include_str!("guide/shapes.md")]
pub mod shapes {}

#[doc = include_str!("guide/running.md")]
pub mod running {}

#[doc = include_str!("guide/gpu.md")]
pub mod gpu {}

#[doc = include_str!("guide/loops.md")]
pub mod loops {}

#[doc = include_str!("guide/gradients.md")]
pub mod gradients {}

#[doc = include_str!("guide/states.md")]
pub mod states {}

#[doc = include_str!("guide/random.md")]
pub mod random {}

#[doc = include_str!("guide/einsum.md")]
pub mod einsum {}

#[doc = include_str!("guide/explaining.md")]
pub mod explaining {}

#[doc = include_str!("guide/onnx.md")]
pub mod onnx {}
