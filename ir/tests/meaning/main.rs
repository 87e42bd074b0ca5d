//! What graphs and kernels mean: the interpreters, beside NumPy and plain loops, and what verifiers demand of sizes and threads.

mod accumulate;
mod control;
mod einsum;
mod interp;
mod interp_random;
mod narrow_cases;
mod numpy_cases;
mod sizes;
mod threads;
