//! Contractions as matrix products: which einsums the library can compute, and with what strides.
//!
//! A binary add-mul einsum is `dst[batch, m, n] = Σ_k lhs[batch, m, k] * rhs[batch, k, n]` once its labels are sorted into
//! groups. Operands may be views of stored values as long as every label walks them with one stride.

pub mod layouts;
mod windowed;

use smallvec::SmallVec;
use tlc_ir::graph::{Labels, Semiring, Shape};
use tlc_ir::index::{Bounds, IndexExpr, VarId};
use tlc_ir::plan::{StridedDim, Strides, Windowed};
use tlc_ir::target::{HostProducts, ProductLibrary};
use tlc_ir::{DType, Graph, NodeId, NodeKind};

use crate::access::{Index, Variables, is_source, label_count, repeats};
use crate::direct::{direct_image, has_overlaps};
use tlc_ir::graph::infer::flat_index;
use windowed::{PaddedWindows, padded_windows};

pub use windowed::weights_order;

/// Below this many multiply-adds a loop nest beats the call, unless the library is fast at small products ([`HostProducts::small`]).
pub const MIN_LIBRARY_FLOPS: i64 = 8 * 1024;

/// As [`MIN_LIBRARY_FLOPS`], of each product of a stack, which a kernel computes several of at once, where the library is fast at small products.
const MIN_FLOPS_OF_A_STACK: i64 = 1024;

/// A strided operand: a stored value and the stride of each axis group.
#[derive(Clone, PartialEq, Debug)]
pub struct MatrixOperand {
    /// The stored value.
    pub base: NodeId,
    /// Offset of the first element.
    pub offset: IndexExpr,
    /// Stride per batch axis.
    pub batch: Shape,
    /// How its rows follow each other.
    pub row: Strides,
    /// How its columns follow each other.
    pub column: Strides,
    /// The axes that its windows slide over, where these end.
    pub windowed: Windowed,
}

impl MatrixOperand {
    /// Whether its rows or columns are several axes in one, as those of sliding windows are.
    pub fn is_composite(&self) -> bool {
        self.row.dims.len() > 1 || self.column.dims.len() > 1 || !self.windowed.is_empty()
    }
}

/// A contraction in matrix form.
#[derive(Clone, PartialEq, Debug)]
pub struct MatrixProduct {
    /// Extents of the batch axes.
    pub batch: Shape,
    /// Rows.
    pub m: IndexExpr,
    /// Columns.
    pub n: IndexExpr,
    /// Summed extent.
    pub k: IndexExpr,
    /// Left operand, rows by summed.
    pub lhs: MatrixOperand,
    /// Right operand, summed by columns.
    pub rhs: MatrixOperand,
    /// Strides of the result (its base is the einsum itself).
    pub dst: MatrixOperand,
}

impl MatrixProduct {
    /// Makes one axis of those of the batch; `None` if they cannot be one.
    fn stack(&mut self) -> Option<()> {
        let real: SmallVec<[usize; 4]> = (0..self.batch.len()).filter(|&axis| !self.batch[axis].is(1)).collect();
        let (&last, outer) = real.split_last().unwrap_or((&0, &[]));
        let mut span = self.batch.get(last).cloned().unwrap_or(IndexExpr::ONE);
        for &axis in outer.iter().rev() {
            let fits = |o: &MatrixOperand| o.batch[axis] == o.batch[last].clone() * span.clone();
            if ![&self.lhs, &self.rhs, &self.dst].into_iter().all(fits) {
                return None;
            }
            span = span * self.batch[axis].clone();
        }
        for o in [&mut self.lhs, &mut self.rhs, &mut self.dst] {
            o.batch = real.last().map(|&axis| o.batch[axis].clone()).into_iter().collect();
        }
        self.batch = real.last().map(|_| span).into_iter().collect();
        Some(())
    }
}

impl MatrixOperand {
    /// Whether the elements of a row or of a column lie together, and rows or columns do not overlap.
    fn is_packed(&self, extents: [&IndexExpr; 2], bounds: &dyn Bounds) -> bool {
        let [row, column] = [&self.row, &self.column].map(|s| match &s.dims[..] {
            [dim] => Some(&dim.stride),
            _ => None,
        });
        let (Some(row), Some(column)) = (row, column) else {
            return false;
        };
        let apart = |stride: &IndexExpr, extent: &IndexExpr| (stride.clone() - extent.clone()).interval(bounds).lo >= 0;
        let ahead = |s: &IndexExpr| s.interval(bounds).lo >= 0;
        let stacked = self.batch.iter().all(ahead);
        stacked && (column.is(1) && apart(row, extents[1]) || row.is(1) && apart(column, extents[0]))
    }
}

/// Strides of each label in an operand, through the views below it.
pub(crate) struct Strided {
    /// The stored value.
    pub(crate) base: NodeId,
    /// Offset of the first element.
    pub(crate) offset: IndexExpr,
    /// Stride by label; `None` where the operand lacks the label.
    pub(crate) strides: Vec<Option<IndexExpr>>,
}

/// Whether a dtype's values can be multiplied by the library.
pub fn library_dtype(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F64)
}

/// Operands and labels of an einsum of two operands.
type Binary<'g> = ([NodeId; 2], &'g [Labels], &'g Labels);

/// Operands and labels of an einsum of two operands whose sum of products the library can compute, all in one dtype.
fn library_einsum(graph: &Graph, id: NodeId, products: HostProducts) -> Option<Binary<'_>> {
    words_einsum(graph, id, products).or_else(|| {
        binary_einsum(graph, id, Semiring::AddMul, |dtype, accumulator| {
            library_dtype(dtype) && accumulator == dtype
                || products.halves && (dtype, accumulator) == (DType::BF16, DType::F32)
        })
    })
}

/// Operands and labels of a sum of products of words that the library computes.
fn words_einsum(graph: &Graph, id: NodeId, products: HostProducts) -> Option<Binary<'_>> {
    let found = binary_einsum(graph, id, Semiring::AddDot4, |_, _| products.words)?;
    let [m, n, k] = groups(graph, id)?.sizes();
    products
        .takes_words(m.as_const(), n.as_const(), k.as_const())
        .then_some(found)
}

/// Whether the library computes a sum of products of words.
pub fn is_library_of_words(graph: &Graph, id: NodeId, products: HostProducts) -> bool {
    words_einsum(graph, id, products).is_some()
}

/// Operands and labels of an einsum of two operands over a semiring, all in one dtype that, with that of the accumulator, `takes` says yes to.
fn binary_einsum(
    graph: &Graph,
    id: NodeId,
    over: Semiring,
    takes: impl Fn(DType, DType) -> bool,
) -> Option<Binary<'_>> {
    let node = graph.node(id);
    let NodeKind::Einsum {
        inputs,
        output,
        semiring,
        accumulator,
        dtype,
    } = &node.kind
    else {
        return None;
    };
    let [a, b] = node.operands[..] else { return None };
    let same = [graph.ty(a).dtype, graph.ty(b).dtype].iter().all(|d| d == dtype);
    (*semiring == over && same && takes(*dtype, *accumulator)).then_some(([a, b], inputs, output))
}

/// The matrix form of an einsum that the library should compute.
pub fn matrix_product(graph: &Graph, id: NodeId, products: HostProducts) -> Option<MatrixProduct> {
    if direct_image(graph, id).is_some() {
        return None;
    }
    let einsum = library_einsum(graph, id, products)?;
    let dtype = graph.ty(id).dtype;
    if dtype != DType::BF16 {
        let of = match products.small && library_dtype(dtype) {
            true => Of::Small,
            false => Of::Matrices,
        };
        let kinds = [of, Of::OneChannel];
        let padded = padded_windows(graph, id, windowed::Of::LaidOut);
        let padded = padded.and_then(|w| kinds.iter().find_map(|&of| product_of(graph, id, einsum, of, Some(&w))));
        return padded.or_else(|| kinds.iter().find_map(|&of| product_of(graph, id, einsum, of, None)));
    }
    let of = match products.vectors {
        true => Of::Any,
        false => Of::Matrices,
    };
    product_of(graph, id, einsum, of, None).filter(takes_halves)
}

/// Which products are looked for.
#[derive(Clone, Copy, PartialEq)]
enum Of {
    /// Those of matrices.
    Matrices,
    /// Those of few multiply-adds too, if they have one sum: windows over few pixels are a kernel's.
    Small,
    /// Those of a vector too.
    Any,
    /// Those of windows with the weights of one channel alone.
    OneChannel,
}

/// Halves of a word.
const HALVES: i64 = 2;

/// Neighbours of a panel of words.
pub(crate) const WORD_PANEL: i64 = 32;

/// The longest sum over windows with the weights of one channel that a kernel adds up: it copies out as many products.
const LONGEST_SUM_OF_ONE_CHANNEL: i64 = 49;

/// The shortest sum of products of bf16 that the library computes: of shorter ones most of a tile of a matrix is empty.
const SHORTEST_SUM_OF_HALVES: i64 = 16;

/// The shortest sum of products of a vector with rows of bf16 that the library computes, whatever the number of rows: of shorter ones a kernel has what is
/// around them as well.
const SHORTEST_SUM_OF_ROWS: i64 = 256;

/// Whether the library multiplies operands of bf16 as they lie: composite ones only in the blocks of [`panel_blocks`], and a matrix that a vector is multiplied with it
/// reads where it is, if its rows lie along the sum. (Columns side by side a kernel adds up faster, as they come or in blocks of them.)
fn takes_halves(product: &MatrixProduct) -> bool {
    let is = |d: &StridedDim, extent: i64, stride: i64| d.extent.is(extent) && d.stride.is(stride);
    // A word is two neighbours along the sum, whatever else there are two of.
    let in_words = |across: &Strides, sum: &Strides| {
        let pairs =
            matches!(&sum.dims[..], [words, pair] if words.stride.is(HALVES * WORD_PANEL) && is(pair, HALVES, 1));
        pairs && matches!(&across.dims[..], [block] | [_, block] if is(block, WORD_PANEL, HALVES))
    };
    let fits = |o: &MatrixOperand, across: &Strides, sum: &Strides| !o.is_composite() || in_words(across, sum);
    let long = product.k.as_const().is_none_or(|k| k >= SHORTEST_SUM_OF_HALVES);
    let matrix = match (product.m.is(1), product.n.is(1)) {
        (false, false) => None,
        (true, _) => Some((&product.rhs, &product.rhs.row)),
        (false, true) => Some((&product.lhs, &product.lhs.column)),
    };
    let read = |(o, along): (&MatrixOperand, &Strides)| {
        let together = matches!(&along.dims[..], [dim] if dim.stride.is(1));
        let many = product.k.as_const().is_none_or(|k| k >= SHORTEST_SUM_OF_ROWS);
        many && product.batch.is_empty() && !o.is_composite() && together
    };
    let (lhs, rhs) = (&product.lhs, &product.rhs);
    let fits = fits(lhs, &lhs.row, &lhs.column) && fits(rhs, &rhs.column, &rhs.row);
    long && fits && matrix.is_none_or(read)
}

/// The matrix form of an einsum that the library of a GPU can compute: matrices whose elements lie together along rows or columns, with one
/// stride along the other axis, that are stacked with one stride.
pub fn stacked_product(graph: &Graph, id: NodeId, library: &ProductLibrary) -> Option<MatrixProduct> {
    let einsum = binary_einsum(graph, id, Semiring::AddMul, |dtype, accumulator| {
        library.multiplies(dtype, accumulator)
    })?;
    let mut product = product_of(graph, id, einsum, Of::Matrices, None)?;
    product.stack()?;
    let MatrixProduct {
        m, n, k, lhs, rhs, dst, ..
    } = &product;
    let matrices = [(lhs, [m, k]), (rhs, [k, n]), (dst, [m, n])];
    matrices
        .iter()
        .all(|(o, extents)| o.is_packed(*extents, graph))
        .then_some(product)
}

/// Whether a graph, or what is inside of it, has products that may have so many multiply-adds.
pub fn has_products(graph: &Graph, multiply_adds: i64) -> bool {
    graph.nodes().any(|(_, node)| match &node.kind {
        NodeKind::Einsum { inputs, .. } if node.operands.len() >= 2 => {
            let mut extents = vec![1i64; label_count(inputs)];
            for (operand, labels) in node.operands.iter().zip(inputs) {
                for (&l, d) in labels.iter().zip(&graph.ty(*operand).shape) {
                    extents[usize::from(l)] = d.interval(graph).hi.max(0);
                }
            }
            let most = extents.iter().fold(1i64, |n, e| n.saturating_mul(*e));
            most >= multiply_adds
        }
        NodeKind::Loop(l) => has_products(&l.body.0, multiply_adds),
        NodeKind::Region(r) => r.bodies().any(|body| has_products(&body.0, multiply_adds)),
        _ => false,
    })
}

/// The matrix form of an einsum, of windows of a padded image from the image itself where `padded` are those.
fn product_of(
    graph: &Graph,
    id: NodeId,
    ([a, b], inputs, output): Binary<'_>,
    of: Of,
    padded: Option<&PaddedWindows>,
) -> Option<MatrixProduct> {
    let Groups {
        labels,
        extents,
        mut batch,
        mut rows,
        mut columns,
        mut summed,
    } = groups_in(graph, id, output, of)?;
    let walked = |operand: usize, id| match padded.filter(|w| w.operand == operand) {
        Some(w) => w.strided(graph, labels),
        None => strided(graph, id, &inputs[operand], labels),
    };
    let (lhs, rhs) = (walked(0, a)?, walked(1, b)?);
    if let Some(w) = padded {
        summed = w.summed.to_vec();
    }
    let dst_strides = tlc_ir::graph::infer::row_major_strides(&graph.ty(id).shape);
    let mut dst = Strided {
        base: id,
        offset: IndexExpr::ZERO,
        strides: vec![None; labels],
    };
    for (&l, s) in output.iter().zip(dst_strides) {
        dst.strides[l as usize] = Some(s);
    }
    // The operand whose elements lie along the result's is copied a panel at a time before it is multiplied: its labels may
    // walk it with a stride each. Those of the other operand and of the result may not: what does not fit becomes a batch
    // axis, or, where it is summed, keeps the library from computing it.
    let composite = composite(&rows, &columns, output);
    if padded.is_some_and(|w| composite != Some(w.operand)) {
        return None;
    }
    let (of_rows, of_columns, of_sum): (Vec<&Strided>, Vec<&Strided>, Vec<&Strided>) = match composite {
        Some(0) => (vec![&dst], vec![&rhs, &dst], vec![&rhs]),
        Some(_) => (vec![&lhs, &dst], vec![&dst], vec![&lhs]),
        None => (vec![&lhs, &dst], vec![&rhs, &dst], vec![&lhs, &rhs]),
    };
    let row = collapse(&mut rows, &mut batch, &extents, &of_rows);
    let column = collapse(&mut columns, &mut batch, &extents, &of_columns);
    let (summed_strides, rest) = common_stride(&summed, &extents, &of_sum)?;
    if !rest.is_empty() {
        return None;
    }
    let count = |of: &[usize]| of.iter().fold(IndexExpr::ONE, |n, &l| n * extents[l].clone());
    let (m, n, k) = (count(&rows), count(&columns), count(&summed));
    let straight =
        |extent: &IndexExpr, strides: &[IndexExpr], i: usize| Strides::straight(extent.clone(), strides[i].clone());
    let dims = |s: &Strided, of: &[usize]| match padded {
        Some(w) => w.walk(s, of, &extents),
        None => walk(s, of, &extents),
    };
    let [lhs_walks, rhs_walks] = match composite {
        Some(0) => [
            [dims(&lhs, &rows)?, dims(&lhs, &summed)?],
            [straight(&k, &summed_strides, 0), straight(&n, &column, 0)],
        ],
        Some(_) => [
            [straight(&m, &row, 0), straight(&k, &summed_strides, 0)],
            [dims(&rhs, &summed)?, dims(&rhs, &columns)?],
        ],
        None => [
            [straight(&m, &row, 0), straight(&k, &summed_strides, 0)],
            [straight(&k, &summed_strides, 1), straight(&n, &column, 0)],
        ],
    };
    let last = |strides: &[IndexExpr]| strides.len() - 1;
    let dst_walks = [straight(&m, &row, last(&row)), straight(&n, &column, last(&column))];
    let mut windowed = [Windowed::new(), Windowed::new()];
    if let Some(w) = padded {
        let across = if w.operand == 0 { &rows } else { &columns };
        windowed[w.operand] = w.windowed(graph, across, labels)?;
    }
    let operand = |s: &Strided, [row, column]: [Strides; 2], windowed: Windowed| MatrixOperand {
        base: s.base,
        offset: s.offset.clone(),
        batch: batch
            .iter()
            .map(|&l| s.strides[l].clone().unwrap_or(IndexExpr::ZERO))
            .collect(),
        row,
        column,
        windowed,
    };
    let [of_lhs, of_rhs] = windowed;
    Some(MatrixProduct {
        batch: batch.iter().map(|&l| extents[l].clone()).collect(),
        lhs: operand(&lhs, lhs_walks, of_lhs),
        rhs: operand(&rhs, rhs_walks, of_rhs),
        dst: operand(&dst, dst_walks, Windowed::new()),
        m,
        n,
        k,
    })
}

/// The operand that may be composite: the one that has the last label of the result, if that is not one of the batch.
fn composite(rows: &[usize], columns: &[usize], output: &Labels) -> Option<usize> {
    let last = usize::from(*output.last()?);
    if columns.contains(&last) {
        Some(1)
    } else {
        rows.contains(&last).then_some(0)
    }
}

/// How labels together walk an operand; `None` if that takes too many dimensions.
fn walk(s: &Strided, of: &[usize], extents: &[IndexExpr]) -> Option<Strides> {
    let mut dims: SmallVec<[StridedDim; 1]> = SmallVec::new();
    for &l in of.iter().rev().filter(|&&l| !extents[l].is(1)) {
        let (extent, stride) = (extents[l].clone(), s.strides[l].clone()?);
        match dims.last_mut() {
            Some(inner) if stride == inner.stride.clone() * inner.extent.clone() => {
                inner.extent = extent * inner.extent.clone()
            }
            _ => dims.push(StridedDim { extent, stride }),
        }
    }
    if dims.is_empty() {
        return Some(Strides::straight(IndexExpr::ONE, IndexExpr::ONE));
    }
    dims.reverse();
    (dims.len() <= Strides::MAX_DIMS).then_some(Strides { dims })
}

/// The labels of a binary contraction by what they are in the product.
struct Groups {
    labels: usize,
    extents: Vec<IndexExpr>,
    batch: Vec<usize>,
    rows: Vec<usize>,
    columns: Vec<usize>,
    summed: Vec<usize>,
}

impl Groups {
    /// Rows, columns and the summed extent.
    fn sizes(&self) -> [IndexExpr; 3] {
        [&self.rows, &self.columns, &self.summed]
            .map(|of| of.iter().fold(IndexExpr::ONE, |n, &l| n * self.extents[l].clone()))
    }
}

/// Sorts the labels of a binary einsum, if it is a product that is worth the library's call.
fn groups(graph: &Graph, id: NodeId) -> Option<Groups> {
    match &graph.node(id).kind {
        NodeKind::Einsum { output, .. } => groups_in(graph, id, output, Of::Matrices),
        _ => None,
    }
}

/// As [`groups`], with the labels of the result in an order of the caller's.
fn groups_in(graph: &Graph, id: NodeId, output: &Labels, of: Of) -> Option<Groups> {
    let node = graph.node(id);
    let NodeKind::Einsum { inputs, .. } = &node.kind else {
        return None;
    };
    let labels = label_count(inputs);
    let mut extents = vec![IndexExpr::ONE; labels];
    for (operand, of) in node.operands.iter().zip(inputs) {
        for (&l, d) in of.iter().zip(&graph.ty(*operand).shape) {
            extents[l as usize] = d.clone();
        }
    }
    let has = |of: &Labels, l: usize| of.contains(&(l as u16));
    if inputs.iter().any(repeats) {
        return None;
    }
    let (mut batch, mut rows, mut columns, mut summed) = (vec![], vec![], vec![], vec![]);
    for l in output.iter().map(|&l| l as usize) {
        match (has(&inputs[0], l), has(&inputs[1], l)) {
            (true, true) => batch.push(l),
            (true, false) => rows.push(l),
            _ => columns.push(l),
        }
    }
    for l in (0..labels).filter(|l| !has(output, *l)) {
        match (has(&inputs[0], l), has(&inputs[1], l)) {
            (true, true) => summed.push(l),
            // A label that only one operand has is summed before the product; the einsum-path pass does that.
            _ => return None,
        }
    }
    let product = |of: &[usize]| of.iter().fold(IndexExpr::ONE, |n, &l| n * extents[l].clone());
    let (m, n, k) = (product(&rows), product(&columns), product(&summed));
    let vectors = usize::from(m.is(1)) + usize::from(n.is(1));
    let wanted = match of {
        Of::Matrices | Of::Small => vectors == 0,
        Of::Any => vectors <= 1,
        Of::OneChannel => {
            let long = k.as_const().is_none_or(|k| k > LONGEST_SUM_OF_ONE_CHANNEL);
            let alone = batch.iter().all(|&l| extents[l].is(1));
            vectors == 1 && long && alone && node.operands.iter().any(|&o| has_overlaps(graph, o))
        }
    };
    if !wanted || k.is(1) || k.is(0) {
        return None;
    }
    // How a vector is multiplied does not depend on how many results there are, and one product that is small because its sizes are known
    // has the sums of one whose sizes are not.
    let long = |of: &[usize]| of.iter().filter(|&&l| !extents[l].is(1)).count();
    let least = match of {
        _ if vectors > 0 => 0,
        Of::Small if long(&summed) == 1 && long(&batch) == 0 => 0,
        Of::Small if long(&summed) == 1 => MIN_FLOPS_OF_A_STACK,
        _ => MIN_LIBRARY_FLOPS,
    };
    let flops = (m.clone() * n.clone() * k.clone()).as_const();
    if flops.is_some_and(|f| f < least) {
        return None;
    }
    Some(Groups {
        labels,
        extents,
        batch,
        rows,
        columns,
        summed,
    })
}

/// Operands of a product that would have to be composite (see [`Strides`]) and may not be, with the axis order in which a copy of
/// each would do: batch labels first, then own and summed ones, whichever walk the operand with stride 1 last. This is how
/// a convolution whose result has its pixels first becomes a matrix product.
///
/// `order` is that of the result, where it is not the einsum's own.
pub fn operands_to_pack(
    graph: &Graph,
    id: NodeId,
    order: Option<&Labels>,
    products: HostProducts,
) -> Vec<(usize, SmallVec<[u8; 4]>)> {
    let Some((operands, inputs, own)) = library_einsum(graph, id, products) else {
        return Vec::new();
    };
    let output = order.unwrap_or(own);
    // One label walks with one stride: a plain matrix product is looked at no further.
    let mut summed: SmallVec<[_; 8]> = inputs.iter().flatten().filter(|l| !output.contains(l)).collect();
    summed.sort_unstable();
    summed.dedup();
    if summed.len() < 2 {
        return Vec::new();
    }
    let Some(g) = groups_in(graph, id, output, Of::Matrices) else {
        return Vec::new();
    };
    let mut out = Vec::new();
    for (k, &operand) in operands.iter().enumerate() {
        let Some(s) = strided(graph, operand, &inputs[k], g.labels) else {
            continue;
        };
        let straight = common_stride(&g.summed, &g.extents, &[&s]).is_some_and(|(_, rest)| rest.is_empty());
        let may_wind = composite(&g.rows, &g.columns, output) == Some(k) && walk(&s, &g.summed, &g.extents).is_some();
        if straight || may_wind {
            continue;
        }
        let own = if k == 0 { &g.rows } else { &g.columns };
        let (outer, inner) = own.split_at(own.len() - walked_last(&g, own, &s, output));
        let order = g.batch.iter().chain(outer).chain(&g.summed).chain(inner);
        let axis = |l: &usize| inputs[k].iter().position(|&x| x as usize == *l).map(|p| p as u8);
        if let Some(order) = order.map(axis).collect::<Option<SmallVec<[u8; 4]>>>() {
            out.push((k, order));
        }
    }
    out
}

/// A result's neighbours that one call of the library should at least compute.
const MIN_NEIGHBOURS: i64 = 16;

/// The order of a product's result, batch labels first, then rows, then columns, in which the library computes it in fewer
/// and larger calls than in the order that is asked for: where rows and columns are interleaved, as those of blocks of pixels
/// are, only the innermost label of each makes a matrix. `None` where the order that is asked for does.
pub fn result_order(graph: &Graph, id: NodeId, products: HostProducts) -> Option<Labels> {
    let (operands, inputs, output) = library_einsum(graph, id, products)?;
    // Most results end in enough neighbours of one group: those are looked at no further.
    let last = *output.last()?;
    let of = |l: u16| inputs.iter().map(move |i| i.contains(&l));
    let mut neighbours = 1i64;
    for (&l, extent) in output.iter().zip(&graph.ty(id).shape).rev() {
        if of(l).ne(of(last)) {
            break;
        }
        neighbours = neighbours.saturating_mul(extent.as_const()?);
        if neighbours >= MIN_NEIGHBOURS {
            return None;
        }
    }
    let g = groups(graph, id)?;
    // Labels of one element, such as the sides of an image that was averaged, separate nothing.
    let long = |l: &usize| !g.extents[*l].is(1);
    let mut from_behind = output.iter().rev().map(|&l| usize::from(l)).filter(long);
    let innermost = from_behind.next()?;
    if let Some(own) = [&g.rows, &g.columns].into_iter().find(|own| own.contains(&innermost)) {
        let beside = from_behind.take_while(|l| own.contains(l)).count();
        if 1 + beside == own.iter().filter(|l| long(l)).count() {
            return None;
        }
    }
    let side = composite(&g.rows, &g.columns, output)?;
    let (mut with_last, mut other) = match side {
        0 => (g.rows, g.columns),
        _ => (g.columns, g.rows),
    };
    let count = |of: &[usize]| {
        of.iter()
            .fold(IndexExpr::ONE, |n, &l| n * g.extents[l].clone())
            .as_const()
    };
    let from_behind = output.iter().rev().map(|&l| usize::from(l));
    let neighbours: Vec<usize> = from_behind.take_while(|l| with_last.contains(l)).collect();
    if count(&neighbours)? >= MIN_NEIGHBOURS || neighbours.len() == with_last.len() {
        return None;
    }
    // Columns are the labels of the operand that has more of them side by side.
    let unit = |k: usize, of: &[usize]| {
        let s = strided(graph, operands[k], &inputs[k], g.labels);
        let innermost = of.last().copied();
        s.zip(innermost)
            .is_some_and(|(s, l)| s.strides[l].as_ref().is_some_and(|s| s.is(1)))
    };
    let inner = |of: &[usize]| of.last().and_then(|&l| g.extents[l].as_const());
    let bigger = inner(&other) > inner(&with_last) || inner(&other).is_none();
    if bigger && unit(1 - side, &other) {
        std::mem::swap(&mut with_last, &mut other);
    }
    let order = g.batch.iter().chain(&other).chain(&with_last);
    Some(order.map(|&l| l as u16).collect())
}

/// How many of an operand's own labels the copy should walk last: those that are also neighbours in the result, if the last
/// of them walks the operand with stride 1 and further than the last summed label does.
fn walked_last(g: &Groups, own: &[usize], operand: &Strided, output: &Labels) -> usize {
    let extent = |l: &usize| g.extents[*l].as_const();
    let (Some(&last), Some(summed)) = (own.last(), g.summed.last()) else {
        return 0;
    };
    let unit = operand.strides[last].as_ref().is_some_and(|s| s.is(1));
    if !unit || extent(&last).is_none() || extent(&last) <= extent(summed) {
        return 0;
    }
    let at = |l: usize| output.iter().position(|&x| x as usize == l);
    let neighbours = |pair: &[usize]| match (at(pair[0]), at(pair[1])) {
        (Some(a), Some(b)) => a + 1 == b,
        _ => false,
    };
    1 + own.windows(2).rev().take_while(|pair| neighbours(pair)).count()
}

/// Reduces `group` to its innermost labels that collapse to one stride in every tensor; the outer ones move to `batch`.
fn collapse(group: &mut Vec<usize>, batch: &mut Vec<usize>, extents: &[IndexExpr], of: &[&Strided]) -> Vec<IndexExpr> {
    match common_stride(group, extents, of) {
        Some((strides, rest)) => {
            group.retain(|l| !rest.contains(l));
            batch.extend(rest);
            strides
        }
        None => vec![IndexExpr::ZERO; of.len()],
    }
}

/// The stride of the innermost labels of a group in each tensor, and the outer labels that do not fit it.
fn common_stride(group: &[usize], extents: &[IndexExpr], of: &[&Strided]) -> Option<(Vec<IndexExpr>, Vec<usize>)> {
    let real: Vec<usize> = group.iter().copied().filter(|&l| !extents[l].is(1)).collect();
    let Some(&last) = real.last() else {
        return Some((vec![IndexExpr::ONE; of.len()], Vec::new()));
    };
    let strides: Vec<IndexExpr> = of.iter().map(|s| s.strides[last].clone()).collect::<Option<_>>()?;
    let mut span = extents[last].clone();
    for (i, &l) in real.iter().enumerate().rev().skip(1) {
        let fits = of
            .iter()
            .zip(&strides)
            .all(|(s, stride)| s.strides[l].as_ref() == Some(&(stride.clone() * span.clone())));
        if !fits {
            return Some((strides, real[..=i].to_vec()));
        }
        span = span * extents[l].clone();
    }
    Some((strides, Vec::new()))
}

/// Follows views below an operand as long as every label keeps one stride.
pub(crate) fn strided(graph: &Graph, operand: NodeId, labels: &Labels, count: usize) -> Option<Strided> {
    let shape = &graph.ty(operand).shape;
    let own = || {
        let mut strides = vec![None; count];
        for (&l, s) in labels.iter().zip(tlc_ir::graph::infer::row_major_strides(shape)) {
            strides[l as usize] = Some(s);
        }
        Strided {
            base: operand,
            offset: IndexExpr::ZERO,
            strides,
        }
    };
    if !matches!(graph.node(operand).kind, NodeKind::View(_)) {
        return Some(own());
    }
    let mut vars = Variables::new(graph);
    let index: Index = shape.iter().map(|d| vars.push(d.clone()).into()).collect();
    let mut best = None;
    let (mut at, mut index) = (operand, index);
    loop {
        let here = &graph.ty(at).shape;
        let flat = flat_index(&index, here).simplify(&vars);
        let strides: Option<SmallVec<[IndexExpr; 4]>> = (0..shape.len())
            .map(|axis| {
                let (stride, _) = flat.affine_in(VarId(axis as u32))?;
                (!stride.has_vars()).then_some(stride)
            })
            .collect();
        let Some(strides) = strides else { break };
        let offset = flat.replace_vars(&mut |_| Some(IndexExpr::ZERO));
        // An axis of one element has no stride that matters; a broadcast one has stride 0, which the library accepts.
        best = Some((at, offset, strides));
        let node = graph.node(at);
        match &node.kind {
            NodeKind::View(view) if view.fill().is_none() && !is_source(&node.kind) => {
                let below = node.operands[0];
                index = view.operand_index(&graph.ty(below).shape, here, &index, &vars).index;
                at = below;
            }
            _ => break,
        }
    }
    let (base, offset, by_axis) = best?;
    // The base must be a value that can be stored: a scalar constant or a counter is cheaper expanded into the operand.
    let base_ok = !matches!(graph.node(base).kind, NodeKind::Const(_) | NodeKind::Iota { .. });
    if !base_ok {
        return Some(own());
    }
    let mut strides = vec![None; count];
    for (&l, s) in labels.iter().zip(by_axis) {
        strides[l as usize] = Some(s);
    }
    Some(Strided { base, offset, strides })
}
