//! Matrix products of a bound plan: how each is shared out, and how the kernel behind it goes along.

use tlc_ir::DType;

use super::gemm::{Composite, Cut, Matrix, Product, Side, cut};
use crate::binding::product::{BoundEpilogue, BoundMatrix, BoundProduct, Leg, Prepared};

/// Parts of the lines of an epilogue that each thread should get at least.
const PARTS_PER_THREAD: u64 = 4;
/// Of the lines of an epilogue, at most one in so many may wait until the whole product is done.
const LATE_LINES: u64 = 8;

/// What is decided about a product whose sizes are known.
pub struct Choice {
    /// How it is shared out.
    pub(super) cut: Cut,
    /// How the kernel behind it goes along with it; otherwise it runs when the product is done.
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

/// Chooses a product's cut, and whether the kernel behind it goes along.
pub(super) fn choose(p: &BoundProduct, threads: usize) -> Prepared<Choice> {
    let cut = cut(&product(p, &[]), threads);
    let along = p.epilogue.as_ref().and_then(|e| along(p, &cut, e, threads));
    let counters = along.as_ref().map_or(0, |a| cut.counters(a.side, p.entries()));
    Prepared {
        scratch_bytes: cut.scratch_bytes as u64,
        counters,
        choice: Choice { cut, along },
    }
}

/// How an epilogue can go along, if it can and should.
fn along(p: &BoundProduct, cut: &Cut, epilogue: &BoundEpilogue, threads: usize) -> Option<Along> {
    let (launch, iterations, each) = (&epilogue.launch, epilogue.iterations, epilogue.elements);
    let (side, width) = filled(p)?;
    let entries = p.entries();
    let lines = match side {
        Side::Rows => p.m,
        Side::Columns => p.n,
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
        let parts = match cut.counters(side, entries) {
            0 => count,
            together => count.min(together as u64),
        };
        let few = cut.is_serial() || parts < PARTS_PER_THREAD * threads as u64;
        if few && launch.extent > launch.grain {
            return None;
        }
        let mut waiting = 0;
        late(p, cut, &along, &mut |_| waiting += 1);
        if waiting * LATE_LINES.max(4 * threads as u64) > count {
            return None;
        }
    }
    Some(along)
}

/// Calls `f` with each line of an epilogue that lies in several pieces of the product.
pub(super) fn late(p: &BoundProduct, cut: &Cut, along: &Along, f: &mut dyn FnMut(u64)) {
    if along.width.is_multiple_of(along.each) {
        return;
    }
    let mut last = None;
    let product = product(p, &[]);
    for entry in 0..p.entries() as u64 {
        let mut edge = |line: usize| {
            let line = along.across((entry * along.lines + line as u64) * along.width);
            if line.is_some() && line != last {
                last = line;
                line.iter().for_each(|&l| f(l));
            }
        };
        edge(0);
        cut.edges(&product, along.side, &mut edge);
    }
}

/// The side of lines that fill the result's slot one after the other, entry after entry, and the elements of a line.
fn filled(p: &BoundProduct) -> Option<(Side, usize)> {
    let stride = |legs: &[Leg]| match legs {
        [leg] => Some(leg.stride),
        _ => None,
    };
    let (row, column) = (stride(&p.dst.row)?, stride(&p.dst.column)?);
    let is = |extent: usize, stride: isize, wanted: usize| extent <= 1 || stride == wanted as isize;
    let (side, width) = if is(p.n, column, 1) && is(p.m, row, p.n) {
        (Side::Rows, p.n)
    } else if is(p.m, row, 1) && is(p.n, column, p.m) {
        (Side::Columns, p.m)
    } else {
        return None;
    };
    let mut wanted = p.m.checked_mul(p.n)?;
    for (&extent, &stride) in p.batch.iter().zip(&p.dst.batch).rev() {
        if !is(extent, stride, wanted) {
            return None;
        }
        wanted = wanted.checked_mul(extent)?;
    }
    (p.dst.offset == 0).then_some((side, width))
}

/// The product of the matrices that `slots` hold.
pub(super) fn product<'p>(p: &'p BoundProduct, slots: &[*mut u8]) -> Product<'p> {
    Product {
        dtype: p.dtype,
        batch: &p.batch,
        m: p.m,
        n: p.n,
        k: p.k,
        lhs: matrix(&p.lhs, slots, p.dtype),
        rhs: matrix(&p.rhs, slots, p.dtype),
        dst: matrix(&p.dst, slots, p.dtype),
    }
}

fn matrix<'p>(m: &'p BoundMatrix, slots: &[*mut u8], dtype: DType) -> Matrix<'p> {
    let to = m.offset * dtype.bytes() as isize;
    let stride = |legs: &[Leg]| legs.last().map_or(0, |l| l.stride);
    Matrix {
        start: slots
            .get(m.slot)
            .map_or(std::ptr::null_mut(), |s| s.wrapping_offset(to)),
        batch: &m.batch,
        row: stride(&m.row),
        column: stride(&m.column),
        composite: m.composite.then_some(Composite {
            rows: &m.row,
            columns: &m.column,
            first_row: 0,
            first_column: 0,
        }),
    }
}
