//! Compiled kernels against the stated meaning of the kernel language.

mod build;
mod contract;
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
