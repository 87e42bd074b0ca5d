//! Matrix products through the crate `gemm`, one thread of it per chunk of our own pool.
//!
//! Rows or columns are split, never the summed axis, and every chunk is at least [`CHUNK_MULTIPLE`] wide, so that the
//! library sums each element in the same order whatever the number of threads.

use gemm::Parallelism;
use tlc_ir::DType;

use crate::pool::{Pool, PoolPanic};

/// Below so many multiply-adds a product stays on the calling thread.
const MIN_PARALLEL_WORK: usize = 1 << 18;
/// Rows or columns of one chunk are a multiple of this, which is a multiple of every micro-kernel's edge.
pub const CHUNK_MULTIPLE: usize = 96;

/// One product: `dst = lhs * rhs`. Strides are (row, column) in elements.
pub struct MatrixArgs {
    /// f32 or f64.
    pub dtype: DType,
    /// Rows of the result.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// Summed extent.
    pub k: usize,
    /// Result.
    pub dst: *mut u8,
    /// Strides of the result.
    pub dst_strides: (isize, isize),
    /// Left operand.
    pub lhs: *const u8,
    /// Strides of the left operand.
    pub lhs_strides: (isize, isize),
    /// Right operand.
    pub rhs: *const u8,
    /// Strides of the right operand.
    pub rhs_strides: (isize, isize),
}

struct Shared<'a>(&'a MatrixArgs);
// SAFETY: chunks write disjoint rows or columns of the result and only read the operands.
unsafe impl Sync for Shared<'_> {}

/// Computes a matrix product on the pool.
///
/// # Errors
/// [`PoolPanic`] if a worker panicked.
///
/// # Safety
/// The matrices must lie in memory that is valid for reads (operands) and writes (result), the result must overlap neither
/// operand, and no two elements of the result may share an address.
pub unsafe fn multiply(args: &MatrixArgs, pool: &Pool) -> Result<(), PoolPanic> {
    let shared = Shared(args);
    let by_columns = args.n >= args.m;
    let long = if by_columns { args.n } else { args.m };
    let work = args.m.saturating_mul(args.n).saturating_mul(args.k);
    if pool.threads() == 1 || work < MIN_PARALLEL_WORK || long < 2 * CHUNK_MULTIPLE {
        // SAFETY: the whole product, as the caller promises.
        unsafe { chunk(args, (0, args.m), (0, args.n)) };
        return Ok(());
    }
    // Whole multiples each; the last chunk takes what is left over, so that none is narrow.
    let units = long / CHUNK_MULTIPLE;
    let chunks = units.min(2 * pool.threads());
    pool.parallel_for(chunks as u64, 1, &|_, begin, end| {
        let shared = &shared;
        for c in begin as usize..end as usize {
            let edge = |c: usize| {
                if c == chunks {
                    long
                } else {
                    c * units / chunks * CHUNK_MULTIPLE
                }
            };
            let range = (edge(c), edge(c + 1));
            let (rows, columns) = if by_columns {
                ((0, shared.0.m), range)
            } else {
                (range, (0, shared.0.n))
            };
            // SAFETY: chunks are disjoint parts of the caller's product.
            unsafe { chunk(shared.0, rows, columns) };
        }
    })
}

/// Computes rows `rows.0..rows.1` and columns `columns.0..columns.1`.
unsafe fn chunk(a: &MatrixArgs, rows: (usize, usize), columns: (usize, usize)) {
    // SAFETY: the caller's product covers the requested part.
    unsafe {
        match a.dtype {
            DType::F64 => typed::<f64>(a, rows, columns),
            _ => typed::<f32>(a, rows, columns),
        }
    }
}

unsafe fn typed<T: num::Real>(a: &MatrixArgs, rows: (usize, usize), columns: (usize, usize)) {
    let (r, c) = (rows.0 as isize, columns.0 as isize);
    // SAFETY: offsets stay inside the matrices that the caller promised.
    unsafe {
        gemm::gemm(
            rows.1 - rows.0,
            columns.1 - columns.0,
            a.k,
            a.dst.cast::<T>().offset(r * a.dst_strides.0 + c * a.dst_strides.1),
            a.dst_strides.1,
            a.dst_strides.0,
            false,
            a.lhs.cast::<T>().offset(r * a.lhs_strides.0),
            a.lhs_strides.1,
            a.lhs_strides.0,
            a.rhs.cast::<T>().offset(c * a.rhs_strides.1),
            a.rhs_strides.1,
            a.rhs_strides.0,
            T::ZERO,
            T::ONE,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

mod num {
    /// The two element types of the library products.
    pub trait Real: Copy + 'static {
        /// 0.
        const ZERO: Self;
        /// 1.
        const ONE: Self;
    }
    impl Real for f32 {
        const ZERO: f32 = 0.0;
        const ONE: f32 = 1.0;
    }
    impl Real for f64 {
        const ZERO: f64 = 0.0;
        const ONE: f64 = 1.0;
    }
}
