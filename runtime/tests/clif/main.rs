//! Compiled kernels against the stated meaning of the kernel language.

mod build;
mod contract;
#[path = "../../../x86sim/tests/evaluated/mod.rs"]
mod evaluated;
mod functions;
mod gathers;
mod gpu;
mod module;
mod nests;
mod ops;
mod products;
mod registers;
mod table;
mod tiles;
mod vector_tiles;
