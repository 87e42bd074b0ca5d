//! Pieces of a product by the driver of the crate `gemm`, which packs into memory that it allocates.

use gemm::Parallelism;
use tlc_ir::DType;

use super::{Product, Unit};

/// A multiple of every micro-kernel's edge, and wide enough that the crate takes no shortcut that sums in another order.
const EDGE: usize = 96;

/// The crate has another kernel for results of at most 256 elements: where a cut could make such a piece, there is none.
const MIN_ACROSS: usize = 4;

/// The unit of cuts.
pub(super) fn unit(p: &Product<'_>) -> Unit {
    let edge = |across: usize| if across < MIN_ACROSS { usize::MAX } else { EDGE };
    Unit {
        rows: edge(p.n),
        columns: edge(p.m),
        partial: false,
    }
}

/// None: the crate allocates.
pub(super) fn scratch_bytes(_: &Product<'_>) -> usize {
    0
}

/// Elements that a piece of that size packs.
pub(super) fn packed_elements(p: &Product<'_>, _tall: usize, wide: usize) -> usize {
    wide.saturating_mul(p.k)
}

/// Computes a piece.
///
/// # Safety
/// As for [`super::multiply`].
pub(super) unsafe fn run(p: &Product<'_>, _scratch: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        match p.dtype {
            DType::F64 => typed::<f64>(p, 0.0, 1.0),
            _ => typed::<f32>(p, 0.0, 1.0),
        }
    }
}

unsafe fn typed<T: 'static>(p: &Product<'_>, zero: T, one: T) {
    // SAFETY: the caller's promise.
    unsafe {
        gemm::gemm(
            p.m,
            p.n,
            p.k,
            p.dst.start.cast::<T>(),
            p.dst.column,
            p.dst.row,
            false,
            p.lhs.start.cast::<T>(),
            p.lhs.column,
            p.lhs.row,
            p.rhs.start.cast::<T>(),
            p.rhs.column,
            p.rhs.row,
            zero,
            one,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}
