//! Matrix products of a bound plan: how each is shared out, and how the kernel behind it goes along.

use tlc_ir::DType;

use super::gemm::chain::{Chain, chain};
use super::gemm::{
    Composite, Cut, Matrix, Operand, PackedLayout, Product, Side, cheapest, copied, panel_width, reads_panels,
};
use crate::binding::product::{BoundEpilogue, BoundMatrix, BoundProduct, PackedOperand, Prepared, StridedDim};

/// Parts of the lines of an epilogue that each thread should get at least.
const PARTS_PER_THREAD: u64 = 4;
/// Of the lines of an epilogue, at most one in so many may wait until the whole product is done.
const LATE_LINES: u64 = 8;

/// What it costs to have another thread read an element of a result, in multiply-adds: a line of another core's cache comes late.
const CROSSING_COST: usize = 64;
/// What another dispatch costs.
const DISPATCH_COST: usize = 32 << 10;

/// A copy in another layout may take so many times the bytes of what it is made of: what the last panel lacks, and matrices of a stack
/// that overlap.
const MAX_GROWTH: u64 = 2;

/// What is decided about a product whose sizes are known.
#[derive(Default)]
pub struct Choice {
    /// How it is computed from operands as the plan has them.
    pub(super) plain: Way,
    /// How it is computed where a call has an operand in panels.
    pub(super) packed: Option<Box<Packed>>,
    /// How it is computed with a product behind the kernel behind it, if there is one.
    pub(super) chain: Option<Box<Chain>>,
}

/// How a product is computed.
#[derive(Default)]
pub(super) struct Way {
    /// How it is shared out.
    pub(super) cut: Cut,
    /// How the kernel behind it goes along with it; otherwise it runs when the product is done.
    pub(super) along: Option<Along>,
}

/// How a product is computed that has an operand in panels.
pub(super) struct Packed {
    /// That operand.
    which: Operand,
    /// Its panels, whose first is where the call says.
    panels: BoundMatrix,
    /// The rest.
    pub(super) way: Way,
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
pub(crate) fn choose(p: &BoundProduct, threads: usize) -> Prepared<Choice> {
    if let Some(behind) = p.epilogue.as_ref().and_then(|e| e.product.as_ref()) {
        let chain = chain(&product(p, &[]), &product(behind, &[]), threads);
        return Prepared {
            scratch_bytes: chain.scratch_bytes as u64,
            choice: Choice {
                plain: Way::default(),
                packed: None,
                chain: Some(Box::new(chain)),
            },
            ..Prepared::default()
        };
    }
    let way = |product: &Product<'_>| way(p, product, threads);
    let as_it_is = product(p, &[]);
    let plain = way(&as_it_is);
    let operand = copied(&as_it_is, &plain.cut).and_then(|which| Some((which, in_panels(p, which)?)));
    let (packed, operand) = match operand {
        None => (None, None),
        Some((which, (operand, panels))) => {
            let way = way(&with_panels(p, &[], which, &panels, std::ptr::null_mut()));
            (Some(Box::new(Packed { which, panels, way })), Some(operand))
        }
    };
    let ways = || std::iter::once(&plain).chain(packed.iter().map(|p| &p.way));
    let counters = |w: &Way| w.along.as_ref().map_or(0, |a| w.cut.counters(a.side, p.entries()));
    Prepared {
        scratch_bytes: ways().map(|w| w.cut.scratch_bytes as u64).max().unwrap_or(0),
        counters: ways().map(counters).max().unwrap_or(0),
        packed: operand,
        choice: Choice {
            plain,
            packed,
            chain: None,
        },
    }
}

/// How a product is shared out: as evenly as it can be, unless no thread could run the kernel behind it on what it has computed then. Reading what
/// others have takes longer than an uneven share of whole lines, up to a point. Whole lines read all of one operand, so it must be one that no step
/// writes.
fn way(p: &BoundProduct, product: &Product<'_>, threads: usize) -> Way {
    let (free, cost) = cheapest(product, threads, None);
    let Some(epilogue) = &p.epilogue else {
        return Way { cut: free, along: None };
    };
    let with = |cut: Cut| {
        let along = along(p, &cut, epilogue, threads);
        Way { cut, along }
    };
    let even = with(free);
    let (None, false, Some((side, _))) = (&even.along, free.is_serial() || !reads_panels(product), filled(p)) else {
        return even;
    };
    let (lines, longer) = cheapest(product, threads, Some(side));
    let elements = p.entries().saturating_mul(product.m).saturating_mul(product.n);
    let crossing = (elements / threads).saturating_mul(CROSSING_COST) / threads * (threads - 1);
    if longer > cost.saturating_add(crossing).saturating_add(DISPATCH_COST) {
        return even;
    }
    let whole = with(lines);
    if whole.along.is_some() { whole } else { even }
}

/// An operand as a copy in panels, and the copy as a matrix; `None` if it is no state that stays as it is, or the copy would be too large.
fn in_panels(p: &BoundProduct, which: Operand) -> Option<(PackedOperand, BoundMatrix)> {
    let matrix = p.operand(which);
    let state = match which {
        Operand::Lhs => p.states[0]?,
        Operand::Rhs => p.states[1]?,
    };
    let (across, depth) = match which {
        Operand::Lhs => (&matrix.row, &matrix.column),
        Operand::Rhs => (&matrix.column, &matrix.row),
    };
    let axes = p.batch.iter().copied().zip(matrix.batch.iter().copied());
    let layout = PackedLayout {
        dtype: p.dtype,
        offset: matrix.offset,
        batch: axes.filter(|&(extent, stride)| extent != 1 && stride != 0).collect(),
        across: across.clone(),
        depth: depth.clone(),
        width: panel_width(p.dtype),
    };
    let bytes = layout.bytes();
    if bytes == 0 || bytes as u64 > state.bytes.saturating_mul(MAX_GROWTH) {
        return None;
    }
    let panel = isize::try_from(layout.panel_elements()).ok()?;
    let mut stride = panel.checked_mul(isize::try_from(layout.panels()).ok()?)?;
    let mut batch = vec![0; p.batch.len()];
    for (k, &extent) in p.batch.iter().enumerate().rev() {
        if extent != 1 && matrix.batch[k] != 0 {
            batch[k] = stride;
            stride = stride.checked_mul(isize::try_from(extent).ok()?)?;
        }
    }
    let across = vec![
        StridedDim {
            extent: layout.panels(),
            stride: panel,
        },
        StridedDim {
            extent: layout.width,
            stride: 1,
        },
    ];
    let depth = vec![StridedDim {
        extent: layout.elements_along(),
        stride: layout.width as isize,
    }];
    let (row, column) = match which {
        Operand::Lhs => (across, depth),
        Operand::Rhs => (depth, across),
    };
    let panels = BoundMatrix {
        slot: matrix.slot,
        offset: 0,
        batch,
        row,
        column,
        composite: true,
        windowed: Vec::new(),
    };
    let number = state.number;
    Some((PackedOperand { state: number, layout }, panels))
}

/// The product of the matrices that `slots` hold, but for one, whose panels begin at `start`.
fn with_panels<'p>(
    p: &'p BoundProduct,
    slots: &[*mut u8],
    which: Operand,
    panels: &'p BoundMatrix,
    start: *mut u8,
) -> Product<'p> {
    let mut all = product(p, slots);
    let operand = match which {
        Operand::Lhs => &mut all.lhs,
        Operand::Rhs => &mut all.rhs,
    };
    *operand = Matrix {
        start,
        ..matrix(panels, &[], p.dtype)
    };
    all
}

impl Choice {
    /// The product of the matrices that `slots` hold, and how it is computed. Where the call has the operand in panels, they begin at
    /// `packed`; otherwise that is null.
    pub(super) fn of<'p>(&'p self, p: &'p BoundProduct, slots: &[*mut u8], packed: *mut u8) -> (Product<'p>, &'p Way) {
        match &self.packed {
            Some(q) if !packed.is_null() => (with_panels(p, slots, q.which, &q.panels, packed), &q.way),
            _ => (product(p, slots), &self.plain),
        }
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
    let stride = |dims: &[StridedDim]| match dims {
        [dim] => Some(dim.stride),
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
    let stride = |dims: &[StridedDim]| dims.last().map_or(0, |l| l.stride);
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
            windowed: &m.windowed,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::binding::product::ReadState;
    use crate::binding::steps::BoundLaunch;

    fn matrix(row: usize, column: usize) -> BoundMatrix {
        let dim = |stride: usize| {
            vec![StridedDim {
                extent: 0,
                stride: stride as isize,
            }]
        };
        BoundMatrix {
            slot: 0,
            offset: 0,
            batch: Vec::new(),
            row: dim(row),
            column: dim(column),
            composite: false,
            windowed: Vec::new(),
        }
    }

    /// `m` rows of a left operand times a state of `k x n` elements, which may be stored with its columns one after the other.
    fn bound(m: usize, k: usize, n: usize, turned: bool) -> BoundProduct {
        let extents = |mut matrix: BoundMatrix, rows: usize, columns: usize| {
            (matrix.row[0].extent, matrix.column[0].extent) = (rows, columns);
            matrix
        };
        let state = ReadState {
            number: 3,
            bytes: 4 * (k * n) as u64,
        };
        BoundProduct {
            workspace: None,
            dtype: DType::F32,
            batch: Vec::new(),
            m,
            n,
            k,
            lhs: extents(matrix(k, 1), m, k),
            rhs: extents(if turned { matrix(1, k) } else { matrix(n, 1) }, k, n),
            dst: extents(matrix(n, 1), m, n),
            epilogue: None,
            states: [None, Some(state)],
        }
    }

    /// `m` rows times a matrix, in panels or not, and a kernel behind it that goes along the rows.
    fn before_a_kernel(m: usize, k: usize, n: usize, in_panels: bool) -> BoundProduct {
        let mut p = bound(m, k, n, false);
        let dim = |extent: usize, stride: usize| StridedDim {
            extent,
            stride: stride as isize,
        };
        if in_panels {
            p.rhs.row = vec![dim(k, 64)];
            p.rhs.column = vec![dim(n / 64, 64 * k), dim(64, 1)];
            p.rhs.composite = true;
        }
        let launch = BoundLaunch {
            kernel: 0,
            in_place: true,
            first_arg: 0,
            args: Vec::new(),
            symbols: Vec::new(),
            extent: m as u64,
            grain: 1,
            block_threads: None,
            shared_bytes: 0,
            scratch_bytes: 0,
        };
        p.epilogue = Some(BoundEpilogue {
            launch,
            iterations: 1,
            elements: n as u64,
            library: None,
            product: None,
        });
        p
    }

    /// Threads have whole lines of a product of weights, half of a strip too, and run the kernel behind it on those; not where they would all read
    /// what others have written, and not if one would have much more to do.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_kernel_behind_a_product_runs_where_its_lines_are() {
        let shared = |p: &BoundProduct, threads| {
            let way = choose(p, threads).choice.plain;
            let mut edges = Vec::new();
            way.cut
                .edges(&product(p, &[]), Side::Rows, &mut |line| edges.push(line));
            (way.along.is_some(), edges)
        };
        assert_eq!(shared(&before_a_kernel(16, 256, 1024, true), 2), (true, vec![4, 8, 12]));
        assert_eq!(shared(&before_a_kernel(16, 256, 1024, false), 2), (false, vec![]));
        let (along, edges) = shared(&before_a_kernel(512, 128, 1024, true), 2);
        assert!(along && !edges.is_empty() && edges.iter().all(|e| e % 2 == 0));
        assert_eq!(shared(&before_a_kernel(3, 256, 1024, true), 2), (false, vec![]));
        assert!(
            choose(&before_a_kernel(16, 256, 1024, true), 1)
                .choice
                .plain
                .cut
                .is_serial()
        );
    }

    /// What a call copies of a state's elements is what it is said to keep, and with that it copies nothing.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_product_with_an_operand_in_panels_copies_nothing() {
        for (m, k, n, turned) in [
            (5, 70, 96, true),
            (96, 100, 96, false),
            (96, 7, 200, true),
            (7, 64, 640, true),
        ] {
            for threads in [1, 3] {
                let p = bound(m, k, n, turned);
                let prepared = choose(&p, threads);
                let case = (m, k, n, turned, threads);
                if !turned && threads > 1 {
                    // Pieces of few rows read whole vectors where they are.
                    continue;
                }
                let operand = prepared.packed.expect("it copies the right operand");
                assert_eq!(operand.state, 3, "{case:?}");
                let packed = prepared.choice.packed.expect("a way with panels");
                let panels = with_panels(&p, &[], packed.which, &packed.panels, std::ptr::null_mut());
                assert_eq!(copied(&panels, &packed.way.cut), None, "{case:?}");
            }
        }
        // Read where it is: few rows by whole vectors, or by lines that are turned, a vector by a matrix, and what is small.
        for (m, k, n, turned) in [
            (4, 100, 96, false),
            (4, 100, 96, true),
            (1, 100, 96, true),
            (16, 20, 20, true),
        ] {
            let prepared = choose(&bound(m, k, n, turned), 1);
            assert_eq!(prepared.packed, None, "{:?}", (m, k, n, turned));
        }
        // Nothing is kept of what calls may set.
        let p = BoundProduct {
            states: [None, None],
            ..bound(96, 100, 96, true)
        };
        assert_eq!(choose(&p, 1).packed, None);
    }
}
