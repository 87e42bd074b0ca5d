//! A CUDA driver without a GPU: the C entry points of NVIDIA's driver over [`tlc_gpusim`].
#![allow(non_snake_case)]

mod capture;
mod clock;
mod description;
mod driver;
mod entry;
mod history;
mod pool;
mod report;
mod result;
mod settings;
mod stream;
mod work;

pub use entry::*;
pub use result::*;
