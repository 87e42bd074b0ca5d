//! Matrix products of a bound plan.

use tlc_ir::DType;
use tlc_ir::index::IndexExpr;
use tlc_ir::plan::{Epilogue, Gemm, GemmOperand, Strides};

use super::{BoundLaunch, RunError};
use crate::cpu::gemm::{Cut, Leg, Matrix, Product, Side, Wound, cut};

/// Parts of the lines of an epilogue that each thread should get at least.
const PARTS_PER_THREAD: u64 = 4;
/// Of the lines of an epilogue, at most one in so many may wait until the whole product is done.
const LATE_LINES: u64 = 8;

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
    epilogue: Option<BoundEpilogue>,
}

/// What runs on a product's result.
pub(super) struct BoundEpilogue {
    pub(super) launch: BoundLaunch,
    /// How it goes along with the product; otherwise it runs when that is done.
    pub(super) along: Option<Along>,
}

/// How the lines of an epilogue lie in those of a result that fills its slot line after line.
pub(super) struct Along {
    /// What the result's lines are.
    pub(super) side: Side,
    /// Lines of one entry of the stack.
    pub(super) lines: u64,
    /// Elements of such a line.
    pub(super) width: u64,
    /// Elements of the whole result.
    elements: u64,
    /// Elements of a line of the epilogue.
    each: u64,
    /// Iterations of a line of the epilogue.
    pub(super) iterations: u64,
    /// Lines of the epilogue.
    count: u64,
}

impl Along {
    /// The epilogue's lines that lie in the result's elements from `begin` to `end`.
    pub(super) fn within(&self, begin: u64, end: u64) -> (u64, u64) {
        let first = begin.div_ceil(self.each);
        let last = match end == self.elements {
            true => self.count,
            false => self.count.min(end / self.each),
        };
        (first, last)
    }

    /// The line that begins before an element and ends behind it, if one does.
    pub(super) fn across(&self, element: u64) -> Option<u64> {
        let line = element / self.each;
        (!element.is_multiple_of(self.each) && line < self.count).then_some(line)
    }
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
            epilogue: None,
        };
        bound.cut = cut(&bound.product(&[]), threads);
        Ok(bound)
    }

    /// Adds the kernel behind it.
    pub(super) fn follow(
        &mut self,
        launch: BoundLaunch,
        e: &Epilogue,
        threads: usize,
        eval: &dyn Fn(&IndexExpr, &str) -> Result<i64, RunError>,
    ) -> Result<(), RunError> {
        let size = |x: &IndexExpr| eval(x, &e.launch.label).map(|v| v.max(0) as u64);
        let (iterations, each) = (size(&e.lines.iterations)?, size(&e.lines.elements)?);
        let along = self.along(&launch, iterations, each, threads);
        self.epilogue = Some(BoundEpilogue { launch, along });
        Ok(())
    }

    /// How an epilogue can go along, if it can and should.
    fn along(&self, launch: &BoundLaunch, iterations: u64, each: u64, threads: usize) -> Option<Along> {
        let (side, width) = self.filled()?;
        let entries: usize = self.batch.iter().product();
        let lines = match side {
            Side::Rows => self.m,
            Side::Columns => self.n,
        };
        let elements = (entries as u64).checked_mul(lines as u64)?.checked_mul(width as u64)?;
        if elements == 0 || iterations == 0 || each == 0 || !launch.extent.is_multiple_of(iterations) {
            return None;
        }
        let count = launch.extent / iterations;
        let along = Along {
            side,
            lines: lines as u64,
            width: width as u64,
            elements,
            each,
            iterations,
            count,
        };
        // Lines of which the last would lie outside of the result are not lines of it.
        if count.checked_sub(1)?.checked_mul(each)? >= elements {
            return None;
        }
        if threads > 1 {
            // One thread would do all the work of the kernel, or few lines, or lines that are complete together, would keep
            // the others waiting.
            let parts = match self.cut.counters(side, entries) {
                0 => count,
                together => count.min(together as u64),
            };
            let few = self.cut.is_serial() || parts < PARTS_PER_THREAD * threads as u64;
            if few && launch.extent > launch.grain {
                return None;
            }
            let mut late = 0;
            self.late(&along, &mut |_| late += 1);
            if late * LATE_LINES.max(4 * threads as u64) > count {
                return None;
            }
        }
        Some(along)
    }

    /// Calls `f` with each line of an epilogue that lies in several pieces of the product.
    pub(super) fn late(&self, along: &Along, f: &mut dyn FnMut(u64)) {
        if along.width.is_multiple_of(along.each) {
            return;
        }
        let entries: usize = self.batch.iter().product();
        let mut last = None;
        let product = self.product(&[]);
        for entry in 0..entries as u64 {
            let mut edge = |line: usize| {
                let line = along.across((entry * along.lines + line as u64) * along.width);
                if line.is_some() && line != last {
                    last = line;
                    line.iter().for_each(|&l| f(l));
                }
            };
            edge(0);
            self.cut.edges(&product, along.side, &mut edge);
        }
    }

    /// The side of lines that fill the result's slot one after the other, entry after entry, and the elements of a line.
    fn filled(&self) -> Option<(Side, usize)> {
        let stride = |legs: &[Leg]| match legs {
            [leg] => Some(leg.stride),
            _ => None,
        };
        let (row, column) = (stride(&self.dst.row)?, stride(&self.dst.column)?);
        let is = |extent: usize, stride: isize, wanted: usize| extent <= 1 || stride == wanted as isize;
        let (side, width) = if is(self.n, column, 1) && is(self.m, row, self.n) {
            (Side::Rows, self.n)
        } else if is(self.m, row, 1) && is(self.n, column, self.m) {
            (Side::Columns, self.m)
        } else {
            return None;
        };
        let mut wanted = self.m.checked_mul(self.n)?;
        for (&extent, &stride) in self.batch.iter().zip(&self.dst.batch).rev() {
            if !is(extent, stride, wanted) {
                return None;
            }
            wanted = wanted.checked_mul(extent)?;
        }
        (self.dst.offset == 0).then_some((side, width))
    }

    /// What runs behind it.
    pub(super) fn epilogue(&self) -> Option<&BoundEpilogue> {
        self.epilogue.as_ref()
    }

    /// Counters that it needs while it runs.
    pub(super) fn counters(&self) -> usize {
        let along = self.epilogue.as_ref().and_then(|e| e.along.as_ref());
        let entries = self.batch.iter().product();
        along.map_or(0, |a| self.cut.counters(a.side, entries))
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
