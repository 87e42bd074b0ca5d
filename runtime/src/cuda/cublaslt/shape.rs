//! Products as the library takes them.
//!
//! Matrices are described as the library knows them best, by columns (cuBLAS library, "cublasLtOrder_t"): one that lies by rows is one by
//! columns turned around, and where the result lies by rows, it is the turned product of the turned operands in the other order.

use std::ffi::{c_int, c_uint};

use tlc_ir::DType;
use tlc_ir::target::GPU_ACCESS_BYTES;

use super::super::library::Address;
use super::value;
use crate::binding::product::{BoundLibraryEpilogue, BoundMatrix, BoundProduct};

/// A stack of matrices by columns.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Layout {
    pub(super) rows: u64,
    pub(super) columns: u64,
    /// Elements from column to column.
    pub(super) leading: i64,
    /// Elements from matrix to matrix.
    pub(super) stack: i64,
    /// Whether what is multiplied is the matrix turned around.
    pub(super) turned: bool,
    /// Bytes that its address is a multiple of.
    pub(super) alignment: u32,
}

/// What distinguishes one product from others for the library: all but addresses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in super::super) struct Shape {
    pub(super) dtype: DType,
    /// Of the two factors in their order for the library, and of the result.
    pub(super) layouts: [Layout; 3],
    /// Whether the first factor is the right operand.
    pub(super) swapped: bool,
    pub(super) batch: c_int,
    pub(super) workspace_bytes: u64,
    /// `cublasLtEpilogue_t`: what is done with the result.
    pub(super) epilogue: c_uint,
}

/// Where matrices are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) struct Places {
    /// Of the left and right operand, and of the result.
    pub(in super::super) matrices: [Address; 3],
    /// Of the memory to work in.
    pub(in super::super) workspace: Address,
    /// Of the bias; 0 if there is none.
    pub(in super::super) bias: Address,
}

/// The stride of a matrix' rows or columns, if they have one.
fn straight(dims: &[crate::binding::product::StridedDim]) -> Option<i64> {
    match dims {
        [dim] => i64::try_from(dim.stride).ok(),
        _ => None,
    }
}

/// A matrix of so many rows and columns with these strides, by columns: as it is, or turned around.
fn by_columns([rows, columns]: [usize; 2], [down, across]: [i64; 2]) -> Option<Layout> {
    let lies = |[rows, columns]: [usize; 2], [down, across]: [i64; 2]| {
        let together = down == 1 || rows == 1;
        // A single column has no next one.
        let leading = if columns == 1 { rows as i64 } else { across };
        (together && leading >= rows as i64).then_some((rows as u64, columns as u64, leading))
    };
    let as_it_is = lies([rows, columns], [down, across]).map(|found| (found, false));
    let ((rows, columns, leading), turned) =
        as_it_is.or_else(|| lies([columns, rows], [across, down]).map(|found| (found, true)))?;
    Some(Layout {
        rows,
        columns,
        leading,
        stack: 0,
        turned,
        alignment: 0,
    })
}

impl Shape {
    /// A product as the library takes it, with what it is to compute behind it; none if it cannot. None of its extents is 0.
    pub(in super::super) fn of(p: &BoundProduct, behind: Option<&BoundLibraryEpilogue>) -> Option<Shape> {
        let batch = match p.batch[..] {
            [] => 1,
            [count] => c_int::try_from(count).ok()?,
            _ => return None,
        };
        let layout = |matrix: &BoundMatrix, extents: [usize; 2], turns: bool| {
            let [rows, columns] = extents;
            let [down, across] = [straight(&matrix.row)?, straight(&matrix.column)?];
            let found = match turns {
                true => by_columns([columns, rows], [across, down]),
                false => by_columns([rows, columns], [down, across]),
            };
            let offset = matrix.offset.unsigned_abs() * p.dtype.bytes();
            Some(Layout {
                stack: matrix.batch.first().map_or(0, |stride| *stride as i64),
                alignment: 1 << (offset | GPU_ACCESS_BYTES as usize).trailing_zeros(),
                ..found?
            })
        };
        let (m, n, k) = (p.m, p.n, p.k);
        let bias = behind.and_then(|b| b.bias);
        // A bias has an element for each row, as the library sees the result.
        let fits = |result: &Layout| !result.turned && bias.is_none_or(|(_, len)| len as u64 == result.rows);
        let as_it_is = layout(&p.dst, [m, n], false).filter(fits);
        let (swapped, result) = match as_it_is {
            Some(result) => (false, result),
            None => (true, layout(&p.dst, [m, n], true).filter(fits)?),
        };
        let added = if bias.is_some() { value::ADD_BIAS } else { 0 };
        let rectified = if behind.is_some_and(|b| b.rectified) {
            value::RELU
        } else {
            0
        };
        let [left, right] = [layout(&p.lhs, [m, k], swapped)?, layout(&p.rhs, [k, n], swapped)?];
        let [first, second] = if swapped { [right, left] } else { [left, right] };
        Some(Shape {
            dtype: p.dtype,
            layouts: [first, second, result],
            swapped,
            batch,
            workspace_bytes: p.workspace.as_ref().map_or(0, |w| w.bytes),
            epilogue: match added | rectified {
                0 => value::NOTHING,
                behind => behind,
            },
        })
    }

    /// Whether the library computes more than the product.
    pub(in super::super) fn has_epilogue(&self) -> bool {
        self.epilogue != value::NOTHING
    }

    /// `cudaDataType_t` of the elements, and `cublasComputeType_t` and `cudaDataType_t` of sums and factors.
    pub(super) fn types(&self) -> Option<[c_uint; 3]> {
        Some(match self.dtype {
            DType::F32 => [value::SINGLE, value::IN_SINGLE, value::SINGLE],
            DType::F64 => [value::DOUBLE, value::IN_DOUBLE, value::DOUBLE],
            DType::F16 => [value::HALF, value::IN_SINGLE, value::SINGLE],
            DType::BF16 => [value::BRAIN, value::IN_SINGLE, value::SINGLE],
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::binding::product::StridedDim;

    /// A product of so many rows, columns and terms whose matrices have these strides: down and across.
    fn product([m, n, k]: [usize; 3], strides: [[isize; 2]; 3]) -> BoundProduct {
        let matrix = |[down, across]: [isize; 2], [rows, columns]: [usize; 2]| BoundMatrix {
            slot: 0,
            offset: 0,
            batch: Vec::new(),
            row: vec![StridedDim {
                extent: rows,
                stride: down,
            }],
            column: vec![StridedDim {
                extent: columns,
                stride: across,
            }],
            composite: false,
            windowed: Vec::new(),
        };
        let [lhs, rhs, dst] = strides;
        BoundProduct {
            dtype: DType::F32,
            batch: Vec::new(),
            m,
            n,
            k,
            lhs: matrix(lhs, [m, k]),
            rhs: matrix(rhs, [k, n]),
            dst: matrix(dst, [m, n]),
            workspace: None,
            epilogue: None,
            states: [None, None],
        }
    }

    #[test]
    fn matrices_are_described_by_columns() {
        let described = |p: &BoundProduct| {
            let shape = Shape::of(p, None)?;
            Some((
                shape.swapped,
                shape.layouts.map(|l| (l.rows, l.columns, l.leading, l.turned)),
            ))
        };
        // By rows: the turned product of the operands in the other order.
        let by_rows = product([5, 7, 3], [[3, 1], [7, 1], [7, 1]]);
        let expected = [(7, 3, 7, false), (3, 5, 3, false), (7, 5, 7, false)];
        assert_eq!(described(&by_rows), Some((true, expected)));
        // The left operand by columns, rows of the right one apart.
        let mixed = product([5, 7, 3], [[1, 5], [10, 1], [7, 1]]);
        let expected = [(7, 3, 10, false), (5, 3, 5, true), (7, 5, 7, false)];
        assert_eq!(described(&mixed), Some((true, expected)));
        let by_columns = product([5, 7, 3], [[1, 6], [1, 3], [1, 5]]);
        let expected = [(5, 3, 6, false), (3, 7, 3, false), (5, 7, 5, false)];
        assert_eq!(described(&by_columns), Some((false, expected)));
        // Sides of one element have no stride that matters.
        let thin = product([1, 1, 3], [[3, 1], [1, 1], [1, 1]]);
        let expected = [(1, 3, 1, false), (3, 1, 3, false), (1, 1, 1, false)];
        assert_eq!(described(&thin), Some((false, expected)));
        // A bias along the columns of a single row, or of no others: what has its elements for rows.
        let biased = |p: &BoundProduct, len| {
            let behind = BoundLibraryEpilogue {
                bias: Some((0, len)),
                rectified: true,
                result: 0,
            };
            let shape = Shape::of(p, Some(&behind))?;
            assert_eq!(shape.epilogue, 6);
            let [.., result] = shape.layouts;
            Some((shape.swapped, result.rows, result.columns))
        };
        assert_eq!(
            biased(&product([1, 7, 3], [[3, 1], [7, 1], [7, 1]]), 7),
            Some((true, 7, 1))
        );
        assert_eq!(
            biased(&product([5, 1, 3], [[3, 1], [1, 1], [1, 1]]), 1),
            Some((true, 1, 5))
        );
        assert_eq!(biased(&by_rows, 7), Some((true, 7, 5)));
        assert_eq!(biased(&by_columns, 5), Some((false, 5, 7)));
        assert_eq!(biased(&by_rows, 5), None);
        // Gaps along both axes, and rows that overlap.
        assert_eq!(described(&product([5, 7, 3], [[6, 2], [7, 1], [7, 1]])), None);
        assert_eq!(described(&product([5, 7, 3], [[1, 1], [7, 1], [7, 1]])), None);
    }
}
