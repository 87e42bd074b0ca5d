//! Pieces of a product by the driver of the crate `gemm`, which packs into memory that it allocates.

use gemm::Parallelism;
use tlc_ir::DType;

use super::{Composite, Matrix, Operand, PackedLayout, Product, Progress, StridedDim, Unit};

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

/// None that could be given otherwise: the crate copies in a way of its own.
pub(super) fn copied(_: &Product<'_>, _tall: usize, _wide: usize) -> Option<Operand> {
    None
}

/// Nothing is copied in panels.
pub(super) fn panel_width(_: DType) -> usize {
    1
}

/// Copies part of a panel, as all that [`panel_width`] allows: one element across.
///
/// # Safety
/// As for [`super::pack`].
pub(super) unsafe fn pack(layout: &PackedLayout, (first, across): (usize, usize), from: *const u8, to: *mut u8) {
    let size = layout.dtype.bytes();
    for d in 0..layout.elements_along() {
        for a in 0..across {
            let at = place(&layout.across, first + a) + place(&layout.depth, d);
            let (from, to) = (
                from.wrapping_offset(at * size as isize),
                to.wrapping_add((d * layout.width + a) * size),
            );
            // SAFETY: the caller's promise.
            unsafe { std::ptr::copy_nonoverlapping(from, to, size) };
        }
    }
}

/// Computes a piece, and then reports its lines.
///
/// # Safety
/// As for [`super::multiply`].
pub(super) unsafe fn run(p: &Product<'_>, _scratch: *mut u8, progress: Progress<'_>) {
    // SAFETY: the caller's promise.
    unsafe {
        match p.dtype {
            DType::F64 => with_copies::<f64>(p, 0.0, 1.0),
            _ => with_copies::<f32>(p, 0.0, 1.0),
        }
    }
    if let Some((side, f)) = progress {
        f(p.lines(side));
    }
}

/// The offset of a number on dimensions.
fn place(dims: &[StridedDim], mut number: usize) -> isize {
    let mut offset = 0;
    for dim in dims.iter().rev() {
        offset += (number % dim.extent.max(1)) as isize * dim.stride;
        number /= dim.extent.max(1);
    }
    offset
}

/// What windows have before their axes in front of an element of a composite operand; none if the element is beyond an axis.
fn inside(w: &Composite<'_>, windows_are_rows: bool, [row, column]: [usize; 2]) -> Option<isize> {
    let ((across, i), (along, t)) = match windows_are_rows {
        true => ((w.rows, row), (w.columns, column)),
        false => ((w.columns, column), (w.rows, row)),
    };
    let digit = |dims: &[StridedDim], number: usize, dim: usize| {
        let inner: usize = dims[dim + 1..].iter().map(|d| d.extent.max(1)).product();
        number / inner % dims[dim].extent.max(1)
    };
    let mut before = 0isize;
    for (n, axis) in w.windowed.iter().enumerate() {
        let at = digit(across, i, axis.place) as i128 * axis.stride as i128;
        let at = at + digit(along, t, n) as i128 * axis.dilation as i128 - axis.before as i128;
        if !(0..axis.extent as i128).contains(&at) {
            return None;
        }
        before = before.wrapping_add(axis.before.wrapping_mul(axis.step));
    }
    Some(before)
}

/// The product with a composite operand copied.
unsafe fn with_copies<T: Copy + 'static>(p: &Product<'_>, zero: T, one: T) {
    let copy = |m: &Matrix<'_>, windows_are_rows: bool, rows: usize, columns: usize| -> Option<Vec<T>> {
        let w = m.composite?;
        let start = m.start.cast::<T>().cast_const();
        let mut all = Vec::with_capacity(rows * columns);
        for i in 0..rows {
            let row = place(w.rows, w.first_row + i);
            for j in 0..columns {
                let offset = row + place(w.columns, w.first_column + j);
                all.push(
                    match inside(&w, windows_are_rows, [w.first_row + i, w.first_column + j]) {
                        // SAFETY: an element of the operand.
                        Some(before) => unsafe { *start.wrapping_offset(offset - before) },
                        None => zero,
                    },
                );
            }
        }
        Some(all)
    };
    let (mut lhs, mut rhs) = (copy(&p.lhs, true, p.m, p.k), copy(&p.rhs, false, p.k, p.n));
    let mut p = *p;
    if let Some(lhs) = &mut lhs {
        (p.lhs.start, p.lhs.row, p.lhs.column) = (lhs.as_mut_ptr().cast(), p.k as isize, 1);
    }
    if let Some(rhs) = &mut rhs {
        (p.rhs.start, p.rhs.row, p.rhs.column) = (rhs.as_mut_ptr().cast(), p.n as isize, 1);
    }
    // SAFETY: the caller's promise.
    unsafe { typed(&p, zero, one) };
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
