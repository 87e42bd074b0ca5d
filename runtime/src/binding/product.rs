//! Matrix products under concrete symbol values.

use tlc_ir::DType;
use tlc_ir::index::IndexExpr;
use tlc_ir::plan::{Gemm, GemmOperand, Strides};

use super::steps::BoundLaunch;
use crate::error::RunError;

/// One axis of several that are taken as one axis of a matrix, outermost first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StridedDim {
    /// Elements.
    pub extent: usize,
    /// Stride.
    pub stride: isize,
}

/// An axis that windows slide over and that ends ([`tlc_ir::plan::WindowedAxis`]), in numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowedAxis {
    /// Which dimension across the sum the places are.
    pub place: usize,
    /// Elements of the axis from place to place.
    pub stride: usize,
    /// Elements of the axis from element to element of a window.
    pub dilation: usize,
    /// Elements that the first window has before the axis begins.
    pub before: isize,
    /// Elements of the axis.
    pub extent: usize,
    /// Stride of the axis.
    pub step: isize,
}

/// One of the two operands of a product.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operand {
    /// The left one.
    Lhs,
    /// The right one.
    Rhs,
}

/// An operand as a stack of matrices that are copied so that they are multiplied where they lie: panels of neighbours across the sum, one
/// after the other, each with its steps along the sum one after the other. What the last panel lacks of its width is zero.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PackedLayout {
    /// Element type.
    pub dtype: DType,
    /// The first element, in the memory that is copied.
    pub offset: isize,
    /// Extent and stride of each batch axis along which the matrices differ.
    pub batch: Vec<(usize, isize)>,
    /// How its elements across the sum follow each other, outermost first.
    pub across: Vec<StridedDim>,
    /// How those along the sum do.
    pub depth: Vec<StridedDim>,
    /// Elements across a panel.
    pub width: usize,
}

/// The same elements in the same order, by as few axes as there can be: an axis of one element is none, and two of which one goes on where the other
/// ends are one. What was compiled for any sizes comes to be as simple as what was compiled for these.
fn merged(dims: Vec<StridedDim>) -> Vec<StridedDim> {
    let mut out: Vec<StridedDim> = Vec::with_capacity(dims.len());
    for dim in dims {
        match out.last_mut() {
            Some(_) if dim.extent == 1 => {}
            Some(last) if last.extent == 1 => *last = dim,
            Some(last)
                if isize::try_from(dim.extent).ok().and_then(|n| n.checked_mul(dim.stride)) == Some(last.stride) =>
            {
                *last = StridedDim {
                    extent: last.extent.saturating_mul(dim.extent),
                    stride: dim.stride,
                };
            }
            _ => out.push(dim),
        }
    }
    out
}

/// The elements that dimensions count.
fn count(dims: &[StridedDim]) -> usize {
    dims.iter().fold(1, |n, l| n.saturating_mul(l.extent))
}

impl PackedLayout {
    /// Elements across the sum.
    pub fn elements_across(&self) -> usize {
        count(&self.across)
    }

    /// Elements along the sum.
    pub fn elements_along(&self) -> usize {
        count(&self.depth)
    }

    /// Panels of one matrix.
    pub fn panels(&self) -> usize {
        self.elements_across().div_ceil(self.width.max(1))
    }

    /// Matrices of the stack.
    pub fn matrices(&self) -> usize {
        self.batch.iter().fold(1, |n, b| n.saturating_mul(b.0))
    }

    /// Elements of a panel.
    pub fn panel_elements(&self) -> usize {
        self.width.saturating_mul(self.elements_along())
    }

    /// Bytes of the copy.
    pub fn bytes(&self) -> usize {
        let panels = self.matrices().saturating_mul(self.panels());
        let elements = panels.saturating_mul(self.panel_elements());
        elements.saturating_mul(self.dtype.bytes())
    }
}

/// A state that a product reads and no step of the plan sets: if the caller promises that it stays as it is, the product may be
/// given a copy in another layout, which is made once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadState {
    /// The state, by its number in the plan.
    pub number: usize,
    /// Its bytes.
    pub bytes: u64,
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
    pub row: Vec<StridedDim>,
    /// How its columns follow each other.
    pub column: Vec<StridedDim>,
    /// Whether its rows or columns are several axes in one.
    pub composite: bool,
    /// The axes that its windows slide over, where these end.
    pub windowed: Vec<WindowedAxis>,
}

/// Memory that a library works in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BoundWorkspace {
    /// The slot.
    pub slot: usize,
    /// Its bytes.
    pub bytes: u64,
}

/// `dst[b, i, j] = Σ_k lhs[b, i, k] * rhs[b, k, j]`, and what runs on the result.
pub struct BoundProduct {
    /// f32 or f64; on a GPU also f16 or bf16, on a host also bf16, and i32, which are words of four bytes.
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
    /// What the library of a GPU works in.
    pub workspace: Option<BoundWorkspace>,
    /// What runs on the result.
    pub epilogue: Option<BoundEpilogue>,
    /// The states that the operands are, left and right, if they are any.
    pub states: [Option<ReadState>; 2],
}

/// A kernel behind a product.
pub struct BoundEpilogue {
    /// The kernel.
    pub launch: BoundLaunch,
    /// Iterations of one of its lines ([`Lines`](tlc_ir::plan::Lines)).
    pub iterations: u64,
    /// Elements of one.
    pub elements: u64,
    /// What the library of a GPU computes in place of the kernel.
    pub library: Option<BoundLibraryEpilogue>,
    /// The product of what the kernel leaves.
    pub product: Option<Box<BoundProduct>>,
}

/// A kernel as an epilogue of the library: slots in place of parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BoundLibraryEpilogue {
    /// The bias, and how many elements it has.
    pub bias: Option<(usize, usize)>,
    /// Whether what is below zero becomes zero.
    pub rectified: bool,
    /// The result.
    pub result: usize,
}

impl BoundProduct {
    /// Evaluates a product's sizes. The kernel behind it is evaluated already.
    pub(super) fn bind(
        g: &Gemm,
        (launch, states): (Option<BoundLaunch>, [Option<ReadState>; 2]),
        slot_bytes: &[u64],
        eval: &dyn Fn(&IndexExpr, &str) -> Result<i64, RunError>,
    ) -> Result<BoundProduct, RunError> {
        let size = |e: &IndexExpr| eval(e, &g.label).map(|v| v.max(0) as usize);
        let stride = |e: &IndexExpr| eval(e, &g.label).map(|v| v as isize);
        let walk = |w: &Strides, merges: bool| -> Result<Vec<StridedDim>, RunError> {
            let dim = |l: &tlc_ir::plan::StridedDim| -> Result<StridedDim, RunError> {
                Ok(StridedDim {
                    extent: size(&l.extent)?,
                    stride: stride(&l.stride)?,
                })
            };
            let dims = w.dims.iter().map(dim).collect::<Result<_, RunError>>()?;
            Ok(if merges { merged(dims) } else { dims })
        };
        let matrix = |o: &GemmOperand| -> Result<BoundMatrix, RunError> {
            // Windows are of dimensions by their numbers.
            let merges = !o.is_windowed();
            let (row, column) = (walk(&o.row, merges)?, walk(&o.column, merges)?);
            let windowed = |w: &tlc_ir::plan::WindowedAxis| -> Result<WindowedAxis, RunError> {
                Ok(WindowedAxis {
                    place: w.place,
                    stride: w.stride.max(1) as usize,
                    dilation: w.dilation.max(1) as usize,
                    before: stride(&w.before)?,
                    extent: size(&w.extent)?,
                    step: stride(&w.step)?,
                })
            };
            Ok(BoundMatrix {
                slot: o.slot.0 as usize,
                offset: stride(&o.offset)?,
                batch: o.batch.iter().map(stride).collect::<Result<_, _>>()?,
                composite: row.len() > 1 || column.len() > 1 || !merges,
                row,
                column,
                windowed: o.windowed.iter().map(windowed).collect::<Result<_, _>>()?,
            })
        };
        let epilogue = match (&g.epilogue, launch) {
            (Some(e), Some(launch)) => {
                let lines = |x: &IndexExpr| eval(x, &e.launch.label).map(|v| v.max(0) as u64);
                let slot = |p: u32| e.launch.args[p as usize].0 as usize;
                let bias = |p: u32| (slot(p), slot_bytes[slot(p)] as usize / g.dtype.bytes());
                let library = e.library.map(|l| BoundLibraryEpilogue {
                    bias: l.bias.map(bias),
                    rectified: l.rectified,
                    result: slot(l.result),
                });
                Some(BoundEpilogue {
                    launch,
                    library,
                    iterations: lines(&e.lines.iterations)?,
                    elements: lines(&e.lines.elements)?,
                    product: match &e.product {
                        Some(p) => Some(Box::new(BoundProduct::bind(p, (None, [None, None]), slot_bytes, eval)?)),
                        None => None,
                    },
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
            workspace: g.workspace.map(|slot| {
                let slot = slot.0 as usize;
                let bytes = slot_bytes[slot];
                BoundWorkspace { slot, bytes }
            }),
            epilogue,
            states,
        })
    }

    /// Makes rows of the longest axis of the stack along which the right operand is the same matrix, if there is one row, or columns where the left one
    /// is and there is one column: what was compiled for a batch of any size stacks products of as many rows as the batch has, which may come to be one.
    pub(super) fn rows_of_stack(&mut self) {
        // What is multiplied on has the same stack, and windows are across a sum by their dimensions.
        let windowed = [&self.lhs, &self.rhs].iter().any(|o| !o.windowed.is_empty());
        if windowed || self.epilogue.as_ref().is_some_and(|e| e.product.is_some()) {
            return;
        }
        let longest = |same: &BoundMatrix| {
            let axes = (0..self.batch.len()).filter(|&k| self.batch[k] > 1 && same.batch[k] == 0);
            axes.max_by_key(|&k| self.batch[k])
        };
        let row = (self.m == 1).then(|| longest(&self.rhs)).flatten();
        let column = (self.n == 1).then(|| longest(&self.lhs)).flatten();
        let Some(axis) = row.or(column) else { return };
        let extent = self.batch.remove(axis);
        let [lhs, rhs, dst] = [&mut self.lhs, &mut self.rhs, &mut self.dst].map(|o| {
            let stride = o.batch.remove(axis);
            (o, vec![StridedDim { extent, stride }])
        });
        match row.is_some() {
            true => {
                (self.m, lhs.0.row, dst.0.row) = (extent, lhs.1, dst.1);
            }
            false => {
                (self.n, rhs.0.column, dst.0.column) = (extent, rhs.1, dst.1);
            }
        }
        for o in [lhs.0, rhs.0, dst.0] {
            o.composite = o.row.len() > 1 || o.column.len() > 1;
        }
    }

    /// An operand.
    pub fn operand(&self, which: Operand) -> &BoundMatrix {
        match which {
            Operand::Lhs => &self.lhs,
            Operand::Rhs => &self.rhs,
        }
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
    /// The operand that is best given in another layout, if its state stays as it is.
    pub packed: Option<PackedOperand>,
}

/// An operand of a product that is best copied into another layout once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PackedOperand {
    /// The state that it is, by its number in the plan.
    pub state: usize,
    /// The layout.
    pub layout: PackedLayout,
}
