//! Where matrices lie, as the engine that copies tiles of them is told (CUDA Driver API, "Tensor Map Object Management").

use std::ffi::c_void;

use smallvec::SmallVec;
use tlc_codegen::cuda::TiledMatrix;
use tlc_ir::{DType, IndexExpr};

use super::compile::Function;
use super::context::Context;
use crate::error::RunError;

/// `CU_TENSOR_MAP_DATA_TYPE_UINT8`, `_UINT16`, `_UINT32`, `_UINT64`, `_FLOAT16` and `_BFLOAT16`. Elements of other types are moved as integers of their size.
const UINT8: u32 = 0;
const UINT16: u32 = 1;
const UINT32: u32 = 2;
const UINT64: u32 = 4;
const FLOAT16: u32 = 6;
const BFLOAT16: u32 = 9;
/// `CU_TENSOR_MAP_INTERLEAVE_NONE`.
const INTERLEAVE: u32 = 0;
/// `CU_TENSOR_MAP_SWIZZLE_128B`.
const SWIZZLE: u32 = 3;
/// `CU_TENSOR_MAP_L2_PROMOTION_L2_128B`.
const PROMOTION: u32 = 2;
/// `CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE`: zeros.
const OUTSIDE: u32 = 0;

/// `CUtensorMap`.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(super) struct TensorMap([u64; 16]);

impl TensorMap {
    fn of(context: &Context, matrix: &TiledMatrix, address: u64, symbols: &[i64]) -> Result<TensorMap, RunError> {
        let of_call = |e: &IndexExpr| e.eval_symbols(symbols).filter(|n| *n >= 0);
        let (Some(count), Some(rows)) = (of_call(&matrix.count), of_call(&matrix.rows)) else {
            let what = "a bug in tlc: the extents of a matrix do not follow from a kernel's symbols";
            return Err(RunError::Device {
                device: context.properties().title(),
                message: what.into(),
            });
        };
        // Of what has no elements nothing is copied, and the driver takes no such tensor.
        let [count, rows] = [count, rows].map(|n| n.max(1) as u64);
        let columns = matrix.columns as u64;
        let [height, width] = matrix.tile.map(|n| n as u32);
        let bytes = matrix.dtype.bytes();
        let data_type = match (matrix.dtype, bytes) {
            (DType::F16, _) => FLOAT16,
            (DType::BF16, _) => BFLOAT16,
            (_, 1) => UINT8,
            (_, 2) => UINT16,
            (_, 4) => UINT32,
            _ => UINT64,
        };
        let mut map = TensorMap([0; 16]);
        // The first extent is that along which elements are neighbours, which has no stride.
        let pitch = columns * bytes as u64;
        let (extents, strides) = ([columns, rows, count], [pitch, pitch.saturating_mul(rows)]);
        let (tile, steps) = ([width, height, 1], [1u32; 3]);
        let dimensions = 2 + u32::from(matrix.is_one_of_several());
        // SAFETY: the map is aligned as it must be; there are as many extents, sides of a tile and steps as dimensions, and strides of all but one, and the
        // driver keeps none of them. That the address is one of memory it does not ask.
        context.call("cuTensorMapEncodeTiled", |d| unsafe {
            (d.cuTensorMapEncodeTiled)(
                std::ptr::from_mut(&mut map).cast::<c_void>(),
                data_type,
                dimensions,
                std::ptr::without_provenance_mut(address as usize),
                extents.as_ptr(),
                strides.as_ptr(),
                tile.as_ptr(),
                steps.as_ptr(),
                INTERLEAVE,
                SWIZZLE,
                PROMOTION,
                OUTSIDE,
            )
        })?;
        Ok(map)
    }
}

/// What a function is called with: 64-bit values, or one structure of them, and behind them where its matrices lie.
pub(super) struct Given {
    values: SmallVec<[u64; 32]>,
    is_structure: bool,
    maps: SmallVec<[TensorMap; 4]>,
}

impl Given {
    /// Of values, which are the addresses of a function's buffers and behind them its symbols.
    ///
    /// # Errors
    /// If the driver refuses a matrix.
    pub(super) fn new(context: &Context, function: &Function, values: SmallVec<[u64; 32]>) -> Result<Given, RunError> {
        let maps = match function.matrices.is_empty() {
            true => SmallVec::new(),
            false => {
                let (addresses, symbols) = values.split_at(function.buffers);
                let symbols: SmallVec<[i64; 8]> = symbols.iter().map(|s| s.cast_signed()).collect();
                let of = |m: &TiledMatrix| TensorMap::of(context, m, addresses[m.param as usize], &symbols);
                function.matrices.iter().map(of).collect::<Result<_, _>>()?
            }
        };
        let is_structure = function.takes_structure;
        Ok(Given {
            values,
            is_structure,
            maps,
        })
    }

    /// Where each of them is, as long as this stays where it is.
    pub(super) fn places(&mut self) -> SmallVec<[*mut c_void; 32]> {
        let separate = if self.is_structure { 1 } else { self.values.len() };
        let values = self
            .values
            .iter_mut()
            .take(separate)
            .map(|v| std::ptr::from_mut(v).cast::<c_void>());
        let maps = self.maps.iter_mut().map(|m| std::ptr::from_mut(m).cast::<c_void>());
        values.chain(maps).collect()
    }
}
