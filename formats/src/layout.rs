//! Element bytes between file order and C order, native byte order.
//!
//! Invariants: these functions move whole elements and reverse bytes within them; they know nothing of dtypes. Lengths
//! agree with the shape, which the callers have checked.

use std::io::{self, Write};

/// Edge of the square tiles in which elements are transposed: a tile of 8-byte elements is 8 KiB on either side.
const TILE: usize = 32;

/// Copies elements whose first axis varies fastest to C order.
pub(crate) fn fortran_to_c(source: &[u8], target: &mut [u8], shape: &[usize], width: usize) {
    if shape.len() < 2 || source.is_empty() {
        return target.copy_from_slice(source);
    }
    match width {
        1 => transpose::<1>(source, target, shape),
        2 => transpose::<2>(source, target, shape),
        4 => transpose::<4>(source, target, shape),
        8 => transpose::<8>(source, target, shape),
        _ => unreachable!("dtypes are 1, 2, 4 or 8 bytes wide"),
    }
}

/// Tiles over the first axis (stride 1 in the source) and the last (stride 1 in the target); an odometer over the rest.
fn transpose<const W: usize>(source: &[u8], target: &mut [u8], shape: &[usize]) {
    let (source, _) = source.as_chunks::<W>();
    let (target, _) = target.as_chunks_mut::<W>();
    let rank = shape.len();
    let count: usize = shape.iter().product();
    let (first, last) = (shape[0], shape[rank - 1]);
    let (first_stride, last_stride) = (count / first, count / last);

    // (extent, stride in the source, stride in the target) of the axes in between, the slowest first.
    let mut source_stride = first;
    let mut target_stride = first_stride;
    let middle: Vec<(usize, usize, usize)> = shape[1..rank - 1]
        .iter()
        .map(|&extent| {
            target_stride /= extent;
            let axis = (extent, source_stride, target_stride);
            source_stride *= extent;
            axis
        })
        .collect();

    let mut index = vec![0usize; middle.len()];
    let (mut from, mut to) = (0, 0);
    loop {
        for i0 in (0..first).step_by(TILE) {
            for j0 in (0..last).step_by(TILE) {
                for i in i0..(i0 + TILE).min(first) {
                    for j in j0..(j0 + TILE).min(last) {
                        target[to + i * first_stride + j] = source[from + i + j * last_stride];
                    }
                }
            }
        }
        let mut axis = middle.len();
        loop {
            if axis == 0 {
                return;
            }
            axis -= 1;
            let (extent, s, t) = middle[axis];
            index[axis] += 1;
            from += s;
            to += t;
            if index[axis] < extent {
                break;
            }
            index[axis] = 0;
            from -= s * extent;
            to -= t * extent;
        }
    }
}

/// Reverses the bytes of every element.
pub(crate) fn swap_bytes(data: &mut [u8], width: usize) {
    match width {
        2 => data.as_chunks_mut::<2>().0.iter_mut().for_each(|e| e.reverse()),
        4 => data.as_chunks_mut::<4>().0.iter_mut().for_each(|e| e.reverse()),
        8 => data.as_chunks_mut::<8>().0.iter_mut().for_each(|e| e.reverse()),
        _ => {}
    }
}

/// Writes native-endian elements of so many bytes each little-endian.
pub(crate) fn write_little_endian(width: usize, bytes: &[u8], writer: &mut impl Write) -> io::Result<()> {
    if cfg!(target_endian = "little") || width == 1 {
        return writer.write_all(bytes);
    }
    let mut swapped = Vec::with_capacity(1 << 16);
    for chunk in bytes.chunks(1 << 16) {
        swapped.clear();
        swapped.extend_from_slice(chunk);
        swap_bytes(&mut swapped, width);
        writer.write_all(&swapped)?;
    }
    Ok(())
}
