//! Sorting along an axis, with the positions: what [`HostFunction::Sort`](tlc_ir::graph::HostFunction) says.
//!
//! Invariant: a row is sorted by keys, unsigned words in the order of the elements (reversed for a descending sort), and by
//! position where keys are equal, so the order is total and the same whatever sorts it.

use std::ops::Range;

use tlc_ir::DType;

use crate::pool::{Pool, PoolPanic};

/// The rows of a tensor: `outer * inner` of them, each of `extent` elements that are `inner` apart.
pub(crate) struct Sort {
    pub(crate) dtype: DType,
    pub(crate) outer: usize,
    pub(crate) extent: usize,
    pub(crate) inner: usize,
    /// How many elements are kept of each row; at most `extent`.
    pub(crate) count: usize,
    pub(crate) descending: bool,
}

/// The buffers of a sort.
#[derive(Clone, Copy)]
pub(crate) struct Buffers {
    pub(crate) x: *const u8,
    pub(crate) values: *mut u8,
    pub(crate) places: *mut u8,
    /// Room for the keys of so many rows at once.
    pub(crate) workspace: *mut u8,
    pub(crate) rows_at_once: usize,
}

// SAFETY: the parts of a sort read `x` alone, and write rows and workspaces that are theirs alone.
unsafe impl Sync for Buffers {}

/// Sorts every row, a part of them on each thread. What a row becomes does not depend on who sorts it.
///
/// # Safety
/// `x` holds `outer * extent * inner` elements, `values` and `places` (i64) `outer * count * inner`, `workspace`
/// `rows_at_once` (at least 1) times `extent` pairs of u64; all are aligned to their elements and none overlaps another.
///
/// # Errors
/// If a thread panics.
pub(crate) unsafe fn sort(s: &Sort, buffers: Buffers, threads: &Pool) -> Result<(), PoolPanic> {
    if s.extent == 0 || s.count == 0 || s.outer == 0 || s.inner == 0 {
        return Ok(());
    }
    let rows = s.outer * s.inner;
    let parts = match rows * s.extent < SMALL {
        true => 1,
        false => buffers.rows_at_once.min(rows),
    };
    let part = |p: usize| {
        let buffers = &buffers;
        // SAFETY: there are as many workspaces as parts, and each part is run once.
        let workspace = unsafe { buffers.workspace.add(p * s.extent * PAIR) };
        // In two factors: the product of three need not fit.
        let bound = |p: usize| (rows / parts) * p + (rows % parts).min(p);
        // SAFETY: the caller's promise.
        unsafe { sort_rows(s, bound(p)..bound(p + 1), *buffers, workspace) };
    };
    if parts == 1 {
        part(0);
        return Ok(());
    }
    threads.parallel_for(parts as u64, 1, &|_, begin, end| {
        (begin..end).for_each(|p| part(p as usize))
    })
}

/// Elements below which waking threads takes longer than sorting.
const SMALL: usize = 4096;

/// Bytes of a key and a position.
const PAIR: usize = 16;

/// Sorts some rows, numbered through `outer` and then `inner`.
///
/// # Safety
/// As for [`sort`], with a workspace of its own.
unsafe fn sort_rows(s: &Sort, rows: Range<usize>, buffers: Buffers, workspace: *mut u8) {
    let (x, values, places) = (buffers.x, buffers.values, buffers.places.cast::<i64>());
    let width = s.dtype.bytes();
    // SAFETY: the caller's promise.
    let row = unsafe { std::slice::from_raw_parts_mut(workspace.cast::<[u64; 2]>(), s.extent) };
    for (o, i) in rows.map(|r| (r / s.inner, r % s.inner)) {
        let at = |k: usize| ((o * s.extent + k) * s.inner + i) * width;
        for (k, pair) in row.iter_mut().enumerate() {
            // SAFETY: `k < extent`, so the element is inside `x`.
            let bits = unsafe { read(x.add(at(k)), width) };
            let key = key(s.dtype, bits);
            *pair = [if s.descending { !key } else { key }, k as u64];
        }
        if s.count < s.extent {
            row.select_nth_unstable(s.count - 1);
        }
        row[..s.count].sort_unstable();
        for (k, pair) in row[..s.count].iter().enumerate() {
            let to = (o * s.count + k) * s.inner + i;
            let from = at(pair[1] as usize);
            // SAFETY: `k < count` and the position is below `extent`, so both are inside.
            unsafe {
                std::ptr::copy_nonoverlapping(x.add(from), values.add(to * width), width);
                places.add(to).write(pair[1] as i64);
            }
        }
    }
}

/// The bits of an element.
///
/// # Safety
/// `at` points to `width` bytes that hold an element, aligned to it.
unsafe fn read(at: *const u8, width: usize) -> u64 {
    // SAFETY: the caller's promise.
    unsafe {
        match width {
            1 => u64::from(at.read()),
            2 => u64::from(at.cast::<u16>().read()),
            4 => u64::from(at.cast::<u32>().read()),
            _ => at.cast::<u64>().read(),
        }
    }
}

/// A word that orders as the elements do: every NaN last and equal, the zeros equal.
pub(super) fn key(dtype: DType, bits: u64) -> u64 {
    let width = dtype.bytes() as u32 * 8;
    let sign = 1u64 << (width - 1);
    let mask = u64::MAX >> (64 - width);
    if dtype.is_float() {
        // All ones in the exponent.
        let infinity = tlc_ir::Scalar::from_f64(dtype, f64::INFINITY).bits();
        let magnitude = bits & (sign - 1);
        return match magnitude {
            0 => sign,
            m if m > infinity => mask,
            _ if bits & sign != 0 => !bits & mask,
            _ => bits | sign,
        };
    }
    match dtype.is_signed_int() {
        true => bits & mask ^ sign,
        false => bits & mask,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tlc_ir::Scalar;

    #[test]
    fn keys_order_as_elements_do() {
        for dtype in DType::ALL.into_iter().filter(|d| !d.is_storage()) {
            let values = [
                f64::NEG_INFINITY,
                -3.0,
                -1.0,
                -0.0,
                0.0,
                1.0,
                2.0,
                f64::INFINITY,
                f64::NAN,
            ];
            for (i, &a) in values.iter().enumerate() {
                for &b in &values[i..] {
                    let (x, y) = (Scalar::from_f64(dtype, a), Scalar::from_f64(dtype, b));
                    let (k, l) = (key(dtype, x.bits()), key(dtype, y.bits()));
                    let less = (!x.is_nan() && y.is_nan()) || x.as_f64() < y.as_f64();
                    if less {
                        assert!(k < l, "{dtype} {a} {b}");
                    } else if x.as_f64() == y.as_f64() || (x.is_nan() && y.is_nan()) {
                        assert_eq!(k, l, "{dtype} {a} {b}");
                    }
                }
            }
        }
    }
}
