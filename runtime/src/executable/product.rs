//! Matrix products of a bound plan.

use tlc_ir::DType;
use tlc_ir::index::IndexExpr;
use tlc_ir::plan::{Gemm, GemmOperand};

use super::RunError;
use crate::gemm::{Cut, Matrix, Product, cut};

/// A product under concrete symbol values, with the cut chosen for it.
pub(super) struct BoundGemm {
    dtype: DType,
    batch: Vec<usize>,
    m: usize,
    n: usize,
    k: usize,
    lhs: BoundMatrix,
    rhs: BoundMatrix,
    dst: BoundMatrix,
    cut: Cut,
}

impl BoundGemm {
    /// Evaluates a product's sizes and chooses its cut.
    pub(super) fn bind(
        g: &Gemm,
        threads: usize,
        eval: &dyn Fn(&IndexExpr, &str) -> Result<i64, RunError>,
    ) -> Result<BoundGemm, RunError> {
        let size = |e: &IndexExpr| eval(e, &g.label).map(|v| v.max(0) as usize);
        let stride = |e: &IndexExpr| eval(e, &g.label).map(|v| v as isize);
        let matrix = |o: &GemmOperand| -> Result<BoundMatrix, RunError> {
            Ok(BoundMatrix {
                slot: o.slot.0 as usize,
                offset: stride(&o.offset)?,
                batch: o.batch.iter().map(stride).collect::<Result<_, _>>()?,
                row: stride(&o.row)?,
                column: stride(&o.column)?,
            })
        };
        let mut bound = BoundGemm {
            dtype: g.dtype,
            batch: g.batch.iter().map(size).collect::<Result<_, _>>()?,
            m: size(&g.m)?,
            n: size(&g.n)?,
            k: size(&g.k)?,
            lhs: matrix(&g.lhs)?,
            rhs: matrix(&g.rhs)?,
            dst: matrix(&g.dst)?,
            cut: Cut::default(),
        };
        bound.cut = cut(&bound.product(&[]), threads);
        Ok(bound)
    }

    /// How it is shared out.
    pub(super) fn cut(&self) -> &Cut {
        &self.cut
    }

    /// The product of the matrices that `slots` hold.
    pub(super) fn product(&self, slots: &[*mut u8]) -> Product<'_> {
        let size = self.dtype.bytes() as isize;
        let matrix = |m: &BoundMatrix| Matrix {
            start: slots
                .get(m.slot)
                .map_or(std::ptr::null_mut(), |s| s.wrapping_offset(m.offset * size)),
            batch: &[],
            row: m.row,
            column: m.column,
        };
        Product {
            dtype: self.dtype,
            batch: &self.batch,
            m: self.m,
            n: self.n,
            k: self.k,
            lhs: Matrix {
                batch: &self.lhs.batch,
                ..matrix(&self.lhs)
            },
            rhs: Matrix {
                batch: &self.rhs.batch,
                ..matrix(&self.rhs)
            },
            dst: Matrix {
                batch: &self.dst.batch,
                ..matrix(&self.dst)
            },
        }
    }
}

struct BoundMatrix {
    slot: usize,
    offset: isize,
    batch: Vec<isize>,
    row: isize,
    column: isize,
}
