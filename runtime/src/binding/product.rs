//! Matrix products under concrete symbol values.

use tlc_ir::DType;
use tlc_ir::index::IndexExpr;
use tlc_ir::plan::{Gemm, GemmOperand, Strides};

use super::steps::BoundLaunch;
use crate::error::RunError;

/// One axis of several that are taken as one axis of a matrix, outermost first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leg {
    /// Elements.
    pub extent: usize,
    /// Stride.
    pub stride: isize,
}

/// A stack of strided matrices in a slot. Strides in elements.
#[derive(Clone, Debug)]
pub struct BoundMatrix {
    /// The slot.
    pub slot: usize,
    /// The first element.
    pub offset: isize,
    /// Stride of each batch axis.
    pub batch: Vec<isize>,
    /// How its rows follow each other.
    pub row: Vec<Leg>,
    /// How its columns follow each other.
    pub column: Vec<Leg>,
    /// Whether its rows or columns are several axes in one.
    pub composite: bool,
}

/// `dst[b, i, j] = Σ_k lhs[b, i, k] * rhs[b, k, j]`, and what runs on the result.
pub struct BoundProduct {
    /// f32 or f64.
    pub dtype: DType,
    /// Extents of the batch axes.
    pub batch: Vec<usize>,
    /// Rows of the result.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// Summed extent.
    pub k: usize,
    /// Left operand.
    pub lhs: BoundMatrix,
    /// Right operand.
    pub rhs: BoundMatrix,
    /// Result.
    pub dst: BoundMatrix,
    /// What runs on the result.
    pub epilogue: Option<BoundEpilogue>,
}

/// A kernel behind a product.
pub struct BoundEpilogue {
    /// The kernel.
    pub launch: BoundLaunch,
    /// Iterations of one of its lines ([`Lines`](tlc_ir::plan::Lines)).
    pub iterations: u64,
    /// Elements of one.
    pub elements: u64,
}

impl BoundProduct {
    /// Evaluates a product's sizes. The kernel behind it is evaluated already.
    pub(super) fn bind(
        g: &Gemm,
        launch: Option<BoundLaunch>,
        eval: &dyn Fn(&IndexExpr, &str) -> Result<i64, RunError>,
    ) -> Result<BoundProduct, RunError> {
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
                composite: o.is_composite(),
            })
        };
        let epilogue = match (&g.epilogue, launch) {
            (Some(e), Some(launch)) => {
                let lines = |x: &IndexExpr| eval(x, &e.launch.label).map(|v| v.max(0) as u64);
                Some(BoundEpilogue {
                    launch,
                    iterations: lines(&e.lines.iterations)?,
                    elements: lines(&e.lines.elements)?,
                })
            }
            _ => None,
        };
        Ok(BoundProduct {
            dtype: g.dtype,
            batch: g.batch.iter().map(size).collect::<Result<_, _>>()?,
            m: size(&g.m)?,
            n: size(&g.n)?,
            k: size(&g.k)?,
            lhs: matrix(&g.lhs)?,
            rhs: matrix(&g.rhs)?,
            dst: matrix(&g.dst)?,
            epilogue,
        })
    }

    /// Entries of the stack.
    pub fn entries(&self) -> usize {
        self.batch.iter().product()
    }
}

/// What the host decides about a product when its sizes are known.
#[derive(Default)]
pub struct Prepared<P> {
    /// The decision.
    pub choice: P,
    /// Bytes of scratch that each worker needs for the product; those of the kernel behind it follow.
    pub scratch_bytes: u64,
    /// Counters that it needs while it runs.
    pub counters: usize,
}
