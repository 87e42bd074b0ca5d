//! Layouts of matrices that do not change: in blocks of columns that the library multiplies where they lie, and turned, or in blocks of lines, for
//! kernels that multiply a vector.

use smallvec::SmallVec;
use tlc_ir::graph::{Labels, MAX_RANK, Semiring, View};
use tlc_ir::index::IndexExpr;
use tlc_ir::target::{CACHE_LINE_BYTES, HostProducts};
use tlc_ir::{DType, Graph, NodeId, NodeKind};

use super::{HALVES, WORD_PANEL, binary_einsum, groups, library_dtype, library_einsum, strided};
use crate::access::{label_count, repeats};
use crate::direct::direct_image;
use crate::tile::{TREE_LANES, VECTORS_OF_A_ROW};

/// How a copy of an operand is laid out so that the library multiplies it where it lies: blocks of its elements along the
/// result's last label.
#[derive(Clone, PartialEq, Debug)]
pub struct PanelBlocks {
    /// The operand.
    pub operand: usize,
    /// The label that is cut into blocks, the last of the result.
    pub label: u16,
    /// The operand's other labels in the order of the copy: those before the number of the block, and those between it and
    /// the place in the block.
    pub outer: Labels,
    /// See there: the summed ones.
    pub summed: Labels,
    /// Elements of a block.
    pub width: i64,
    /// Elements of the last block that are none of the operand's.
    pub padding: i64,
    /// The label of the sum, if its neighbours lie together two by two at each place of a block.
    pub paired: Option<u16>,
    /// Of a matrix whose rows lie along the sum, which is one label: the loops that the sum becomes, outermost first, each as its iterations and how far it
    /// goes with one, so that the steps of the sum come in an order in which a kernel adds up such rows.
    pub steps: SmallVec<[(i64, i64); 6]>,
}

/// Columns that a matrix has for each of zeros that are multiplied with it.
const FEW_COLUMNS_OF_ZEROS: i64 = 16;

/// The operand of a product that the library would copy a panel at a time in every call, if blocks of `width` elements are as
/// good. That pays where the operand never changes: the caller knows whether it does.
pub fn panel_blocks(graph: &Graph, id: NodeId, width: u32, products: HostProducts) -> Option<PanelBlocks> {
    let (operands, inputs, output) = library_einsum(graph, id, products)?;
    // Axes of one element, as an image of one pixel has, are none.
    let mut axes = output.iter().zip(&graph.ty(id).shape).rev();
    let label = axes
        .find(|(_, d)| !d.is(1))
        .map(|(l, _)| *l)
        .or(output.last().copied())?;
    let side = match (inputs[0].contains(&label), inputs[1].contains(&label)) {
        (true, false) => 0,
        (false, true) => 1,
        _ => return None,
    };
    let axis = inputs[side].iter().position(|&l| l == label)?;
    let extent = graph.ty(operands[side]).shape[axis].as_const()?;
    let dtype = graph.ty(id).dtype;
    let width = match dtype {
        DType::I32 | DType::BF16 => WORD_PANEL,
        _ => i64::from(width),
    };
    if width == 0 || extent == 0 {
        return None;
    }
    // Columns of zeros make the last block whole, where they are few: of words and halves sums of another extent are packed otherwise.
    let padding = (width - extent % width) % width;
    if padding != 0 && (!dtype.is_float() || dtype == DType::BF16 || padding > extent / FEW_COLUMNS_OF_ZEROS) {
        return None;
    }
    let g = groups(graph, id)?;
    let s = strided(graph, operands[side], &inputs[side], g.labels)?;
    let paired = match (&g.summed[..], dtype) {
        (&[l], DType::BF16) if g.extents[l].as_const().is_some_and(|k| k % HALVES == 0) => Some(l as u16),
        (_, DType::BF16) => return None,
        _ => None,
    };
    // The number of the block is an axis more, of the operand and of the result, and so are pairs.
    let ranks = inputs.iter().chain([output]).map(|labels| labels.len());
    if ranks.max()? + 1 + usize::from(paired.is_some()) > MAX_RANK {
        return None;
    }
    // As it is, if one label is summed and each step along it is a block.
    let stride = |l: usize| s.strides[l].as_ref().and_then(IndexExpr::as_const);
    if paired.is_none()
        && extent == width
        && stride(label.into()) == Some(1)
        && g.summed.iter().all(|&l| stride(l) == Some(width))
    {
        return None;
    }
    let own = if side == 0 { &g.rows } else { &g.columns };
    let before = own.iter().filter(|&&l| l != usize::from(label));
    let short = |l: &usize| *l as u16;
    Some(PanelBlocks {
        operand: side,
        label,
        outer: g.batch.iter().chain(before).map(short).collect(),
        summed: g.summed.iter().map(short).collect(),
        width,
        padding,
        paired,
        steps: SmallVec::new(),
    })
}

/// The fewest columns of a matrix that is turned: kernels then add up whole tiles of them side by side.
const MIN_TURNED_COLUMNS: i64 = 512;
/// As [`MIN_TURNED_COLUMNS`], of a matrix whose vector is a long one.
const MIN_TURNED_COLUMNS_OF_LONG_SUMS: i64 = 128;
/// The fewest rows of a matrix that is copied in blocks of columns: what a block of few takes is mostly what is done once for it.
const FEWEST_ROWS_IN_BLOCKS: i64 = 128;
/// The fewest columns of a matrix that is copied in blocks of them.
const FEWEST_COLUMNS_IN_BLOCKS: i64 = 128;
/// Halvings of the lanes of a row of a matrix that was turned whose lanes are added up together, each in a register.
const HALVES_TOGETHER: usize = 3;
/// The bytes from which on a vector is long: half of the first-level cache, or more, in which it would stay from one result to the next if it
/// were not for the matrix.
const LONG_VECTOR_BYTES: i64 = 16 << 10;

/// The matrix of a product with a vector whose elements lie together along the sum, as operand, axis order in which a copy has its
/// columns together, and the stored value that it lies in. Then lines of columns are added up side by side, where otherwise each result needs a sum over lanes of its own,
/// and neighbouring results are read as streams of their own. That pays where the matrix never changes: the caller knows whether it does. Machines
/// that stream lines take it as it lies unless its vector is long and it has at most `turned_bytes`, and so stays in the last cache.
fn matrix_to_turn(graph: &Graph, id: NodeId, turned_bytes: Option<u64>) -> Option<(usize, SmallVec<[u8; 4]>, NodeId)> {
    let (operands, inputs, output) = library_einsum(graph, id, HostProducts::default())?;
    let extent = |side: usize, axis: usize| &graph.ty(operands[side]).shape[axis];
    let long = |side: usize| {
        let axes = inputs[side].iter().enumerate();
        axes.filter(move |&(axis, _)| !extent(side, axis).is(1))
            .map(|(_, &l)| l)
    };
    let side = (0..2).find(|&side| long(1 - side).all(|l| !output.contains(&l) && inputs[side].contains(&l)))?;
    let labels = &inputs[side];
    if repeats(labels) {
        return None;
    }
    let (own, summed): (Vec<u16>, Vec<u16>) = long(side).partition(|l| output.contains(l));
    let columns = graph.ty(id).elements().as_const()?;
    if summed.iter().any(|l| !inputs[1 - side].contains(l)) {
        return None;
    }
    let vector = graph.ty(operands[1 - side]);
    let vector_bytes = vector
        .elements()
        .as_const()
        .unwrap_or(0)
        .saturating_mul(vector.dtype.bytes() as i64);
    let long_vector = vector_bytes >= LONG_VECTOR_BYTES;
    if let Some(most) = turned_bytes {
        let matrix = graph.ty(operands[side]);
        let elements = matrix.elements().as_const().and_then(|n| u64::try_from(n).ok())?;
        if !long_vector || elements.saturating_mul(matrix.dtype.bytes() as u64) > most {
            return None;
        }
    }
    let fewest = match long_vector {
        true => MIN_TURNED_COLUMNS_OF_LONG_SUMS,
        false => MIN_TURNED_COLUMNS,
    };
    if columns < fewest {
        return None;
    }
    let s = strided(graph, operands[side], labels, label_count(inputs))?;
    let unit = |l: &u16| s.strides[usize::from(*l)].as_ref().is_some_and(|s| s.is(1));
    if own.iter().any(unit) || !summed.iter().any(unit) {
        return None;
    }
    let (own, mut order): (SmallVec<[u8; 4]>, SmallVec<[u8; 4]>) =
        (0..labels.len() as u8).partition(|&axis| own.contains(&labels[usize::from(axis)]));
    order.extend(own);
    Some((side, order, s.base))
}

/// The matrix of `matrix_to_turn` that is turned as a whole: one whose rows are added up otherwise than its columns are. (Of whole rows the blocks of
/// [`vector_blocks`] keep the order, and those that are not in blocks are added up where they lie.)
pub fn matrix_to_turn_whole(
    graph: &Graph,
    id: NodeId,
    turned_bytes: Option<u64>,
    vector_bits: u32,
) -> Option<(usize, SmallVec<[u8; 4]>, NodeId)> {
    let found = matrix_to_turn(graph, id, turned_bytes)?;
    let elements = graph.ty(graph.node(id).operands[1 - found.0]).elements().as_const()?;
    let whole = lanes_of_whole_rows(graph.ty(id).dtype, elements, vector_bits).is_some();
    (!whole).then_some(found)
}

/// The matrix that a vector is multiplied with in blocks of columns, of which each line is a cache line, and the stored value that it lies in: a kernel
/// then reads a block from one end to the other, where of the matrix it reads pieces of many lines at once. Columns are added up as they would be in
/// whole lines, so that the copy is a matter of speed alone. So is that of a matrix whose lines lie along the sum (`matrix_to_turn`): the steps of its sum come in the
/// order in which a kernel adds up a line in vectors of `vector_bits`.
pub fn vector_blocks(
    graph: &Graph,
    id: NodeId,
    turned_bytes: Option<u64>,
    vector_bits: u32,
) -> Option<(PanelBlocks, NodeId)> {
    let half = |dtype: DType| matches!(dtype, DType::F16 | DType::BF16);
    let (operands, inputs, output) = binary_einsum(graph, id, Semiring::AddMul, |dtype, accumulator| {
        library_dtype(dtype) && accumulator == dtype || half(dtype) && accumulator == DType::F32
    })?;
    let mut width = CACHE_LINE_BYTES / graph.ty(id).dtype.bytes() as i64;
    let extent = |side: usize, label: u16| {
        let axis = inputs[side].iter().position(|&l| l == label)?;
        graph.ty(operands[side]).shape[axis].as_const()
    };
    let long = |side: usize| {
        let labels = inputs[side].iter().copied();
        labels.filter(move |&l| extent(side, l) != Some(1))
    };
    let side = (0..2).find(|&side| long(1 - side).all(|l| !output.contains(&l) && inputs[side].contains(&l)))?;
    if repeats(&inputs[side]) {
        return None;
    }
    let label = *output
        .iter()
        .rev()
        .find(|&&l| extent(side, l).is_some_and(|n| n != 1))?;
    let columns = extent(side, label)?;
    let summed: Labels = long(side).filter(|l| !output.contains(l)).collect();
    let of_vector = summed.iter().all(|l| inputs[1 - side].contains(l));
    let rows = summed.iter().try_fold(1i64, |n, l| n.checked_mul(extent(side, *l)?))?;
    if rows < FEWEST_ROWS_IN_BLOCKS
        || columns % width != 0
        || columns < FEWEST_COLUMNS_IN_BLOCKS
        || summed.is_empty()
        || !of_vector
        || inputs[side].len() == MAX_RANK
    {
        return None;
    }
    let s = strided(graph, operands[side], &inputs[side], label_count(inputs))?;
    let together = s.strides[usize::from(label)].as_ref().is_some_and(|s| s.is(1));
    let mut steps = SmallVec::new();
    if !together && half(graph.ty(id).dtype) {
        return None;
    }
    if !together {
        matrix_to_turn(graph, id, turned_bytes)?;
    }
    if !together && let Some(lanes) = lanes_of_whole_rows(graph.ty(id).dtype, rows, vector_bits) {
        // Each block goes through the vector in the order of lanes, a line for each element: one that does not stay in the first cache is
        // better read in its own order, by rows that share it.
        if rows.saturating_mul(graph.ty(id).dtype.bytes() as i64) >= LONG_VECTOR_BYTES {
            return None;
        }
        let [_] = summed[..] else { return None };
        let side_by_side = (VECTORS_OF_A_ROW, lanes);
        let along = (rows / (lanes * VECTORS_OF_A_ROW), lanes * VECTORS_OF_A_ROW);
        // Lanes that are combined by halves are as many loops of two.
        let bits = match lanes >= TREE_LANES && lanes.cast_unsigned().is_power_of_two() {
            true => (0..lanes.ilog2()).map(|bit| (2, 1 << bit)).collect(),
            false => vec![(lanes, 1)],
        };
        let (around, together) = bits.split_at(bits.len().saturating_sub(HALVES_TOGETHER));
        let loops = around.iter().chain([&side_by_side, &along]).chain(together);
        steps.extend(loops.copied());
        width = lanes;
    }
    let outer = inputs[side].iter().copied();
    let blocks = PanelBlocks {
        operand: side,
        label,
        outer: outer.filter(|l| *l != label && !summed.contains(l)).collect(),
        summed,
        width,
        padding: 0,
        paired: None,
        steps,
    };
    Some((blocks, s.base))
}

/// Lanes of the vectors in which a kernel adds up a row of so many elements, if it is whole groups of vectors side by side.
fn lanes_of_whole_rows(dtype: DType, elements: i64, vector_bits: u32) -> Option<i64> {
    let lanes = i64::from(vector_bits / dtype.bits());
    (lanes >= 2 && elements % (lanes * VECTORS_OF_A_ROW) == 0).then_some(lanes)
}

/// Whether an einsum adds up products of a vector with a matrix, and is no convolution.
pub fn multiplies_vector(graph: &Graph, id: NodeId) -> bool {
    vector_of(graph, id).is_some()
}

/// Which operand of an einsum is a vector that it multiplies with a matrix; `None` if neither is, or if it is a convolution.
pub fn vector_of(graph: &Graph, id: NodeId) -> Option<usize> {
    let float = |dtype: DType, accumulator: DType| dtype.is_float() && accumulator.is_float();
    let (operands, inputs, output) = binary_einsum(graph, id, Semiring::AddMul, float)?;
    let side = (0..2).find(|&side| is_vector(graph, operands[side], &inputs[side], output))?;
    direct_image(graph, id).is_none().then_some(side)
}

/// Whether an operand of an einsum has no axis of the result that is longer than 1.
fn is_vector(graph: &Graph, operand: NodeId, labels: &Labels, output: &Labels) -> bool {
    let mut axes = labels.iter().zip(&graph.ty(operand).shape);
    axes.all(|(l, d)| d.is(1) || !output.contains(l))
}

/// Whether an einsum multiplies a vector with a matrix that it sees in blocks of columns, as [`vector_blocks`] has it.
pub fn has_column_blocks(graph: &Graph, id: NodeId) -> bool {
    let NodeKind::Einsum { inputs, output, .. } = &graph.node(id).kind else {
        return false;
    };
    let [a, b] = graph.node(id).operands[..] else {
        return false;
    };
    let is_vector = |side: usize, operand: NodeId| is_vector(graph, operand, &inputs[side], output);
    let in_blocks = |id: NodeId| is_in_column_blocks(graph, id) || is_of_column_blocks(graph, id);
    is_vector(0, a) && in_blocks(b) || is_vector(1, b) && in_blocks(a)
}

/// Values that are looked at between a matrix and the blocks of columns that it is computed from.
const MOST_BETWEEN: usize = 32;

/// Whether a value is dequantized from integers in blocks of columns, as the pass over weights of few bits has them.
fn is_of_column_blocks(graph: &Graph, id: NodeId) -> bool {
    let mut work = vec![id];
    for at in 0..MOST_BETWEEN {
        let Some(&id) = work.get(at) else { return false };
        let node = graph.node(id);
        match &node.kind {
            NodeKind::View(View::Permute(order)) if order[..] == [1, 0, 2] => {
                let copy = graph.node(node.operands[0]);
                if copy.kind == NodeKind::Copy && matches!(copy.ty.dtype, DType::U8 | DType::I8) {
                    return true;
                }
            }
            NodeKind::Map(_) | NodeKind::Convert(_) | NodeKind::View(_) => work.extend(&node.operands),
            _ => {}
        }
    }
    false
}

/// Whether a value is a matrix seen through what is in blocks of columns, as [`vector_blocks`] has it: that is what is kept of it.
fn is_in_column_blocks(graph: &Graph, id: NodeId) -> bool {
    let view = |id: NodeId| match &graph.node(id).kind {
        NodeKind::View(view) => Some((view, graph.node(id).operands[0])),
        _ => None,
    };
    let Some((View::Reshape(whole), permuted)) = view(id) else {
        return false;
    };
    let Some((View::Permute(order), kept)) = view(permuted) else {
        return false;
    };
    let ty = graph.ty(kept);
    let place = ty.shape.len().wrapping_sub(1);
    let line = CACHE_LINE_BYTES / ty.dtype.bytes() as i64;
    let is_block = |n: &IndexExpr| n.as_const().is_some_and(|n| n > 1 && line % n == 0);
    // The place is behind the number of the block, which had the sum between them, and the two are one axis.
    let beside = matches!(order[..], [.., number, p] if usize::from(p) == place && usize::from(number) + 1 < place);
    let blocks = ty.shape.last().is_some_and(is_block) && whole.len() == place;
    matches!(ty.dtype, DType::F32 | DType::F64 | DType::F16 | DType::BF16) && beside && blocks
}
