//! Matrix products of a bound plan.

use tlc_ir::DType;
use tlc_ir::index::IndexExpr;
use tlc_ir::plan::{Gemm, GemmOperand, Strides};

use super::RunError;
use crate::gemm::{Cut, Leg, Matrix, Product, Wound, cut};

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
        let walk = |w: &Strides| -> Result<Vec<Leg>, RunError> {
            let leg = |l: &tlc_ir::plan::Leg| -> Result<Leg, RunError> {
                Ok(Leg {
                    extent: size(&l.extent)?,
                    stride: stride(&l.stride)?,
                })
            };
            w.legs.iter().map(leg).collect()
        };
        let matrix = |o: &GemmOperand| -> Result<BoundMatrix, RunError> {
            Ok(BoundMatrix {
                slot: o.slot.0 as usize,
                offset: stride(&o.offset)?,
                batch: o.batch.iter().map(stride).collect::<Result<_, _>>()?,
                row: walk(&o.row)?,
                column: walk(&o.column)?,
                wound: o.is_wound(),
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
        Product {
            dtype: self.dtype,
            batch: &self.batch,
            m: self.m,
            n: self.n,
            k: self.k,
            lhs: self.lhs.matrix(slots, self.dtype),
            rhs: self.rhs.matrix(slots, self.dtype),
            dst: self.dst.matrix(slots, self.dtype),
        }
    }
}

struct BoundMatrix {
    slot: usize,
    offset: isize,
    batch: Vec<isize>,
    row: Vec<Leg>,
    column: Vec<Leg>,
    wound: bool,
}

impl BoundMatrix {
    fn matrix(&self, slots: &[*mut u8], dtype: DType) -> Matrix<'_> {
        let to = self.offset * dtype.bytes() as isize;
        let stride = |legs: &[Leg]| legs.last().map_or(0, |l| l.stride);
        Matrix {
            start: slots
                .get(self.slot)
                .map_or(std::ptr::null_mut(), |s| s.wrapping_offset(to)),
            batch: &self.batch,
            row: stride(&self.row),
            column: stride(&self.column),
            wound: self.wound.then_some(Wound {
                rows: &self.row,
                columns: &self.column,
                first_row: 0,
                first_column: 0,
            }),
        }
    }
}
