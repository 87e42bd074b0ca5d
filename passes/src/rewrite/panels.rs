//! Lays operands out as the library multiplies them where they lie, once instead of in every call.
//!
//! An operand that never changes (see [`Fixed`]) and that the library would otherwise copy a panel at a time is copied into
//! blocks: as many neighbours along the result's last axis as [`Target::panel_elements`](tlc_ir::Target) says, for each step
//! along the sum. The einsum says so with one label more, the number of the block, and its result is reshaped. A matrix that a vector
//! is multiplied with, for which there is a kernel, is copied in blocks of columns of which each line is a cache line, and seen through the copy,
//! or, where its columns are no whole blocks, turned so that they lie together.
//!
//! What is made of constants alone is computed once per executable; what a loop's body captures, before the loop
//! (see [`hoist`](super::hoist)).

use smallvec::SmallVec;
use tlc_ir::graph::{GraphError, Labels, Shape, View};
use tlc_ir::index::IndexExpr;
use tlc_ir::target::HostProducts;
use tlc_ir::{Graph, Node, NodeId, NodeKind};

use super::Rebuilder;
use super::sink_layout::add_canonical;
use crate::contraction::layouts::{PanelBlocks, matrix_to_turn_whole, panel_blocks, vector_blocks};

/// The most bytes of constants that a graph lays out anew: copies stay in memory beside the constants, which are often the
/// pages of a file.
const MAX_COPIED_BYTES: u64 = 512 << 20;

/// Which values of a graph are the same in every call, or in every iteration of a loop.
pub struct Fixed {
    fixed: Vec<bool>,
    uses: Vec<u32>,
}

impl Fixed {
    /// What follows from constants alone, whatever the sizes of a call.
    pub fn constants(graph: &Graph) -> Fixed {
        Fixed::of(graph, &|_| false, &|kind| !kind.has_open_sizes())
    }

    /// What follows in a body, all of whose iterations have the same sizes, from constants and from the inputs that `fixed` names alone.
    pub fn in_body(body: &Graph, fixed: &dyn Fn(NodeId) -> bool) -> Fixed {
        Fixed::of(body, fixed, &|_| true)
    }

    fn of(graph: &Graph, fixed: &dyn Fn(NodeId) -> bool, may_be: &dyn Fn(&NodeKind) -> bool) -> Fixed {
        let mut all = vec![false; graph.len()];
        for (id, node) in graph.nodes() {
            all[id.index()] = match &node.kind {
                NodeKind::Input { .. } => fixed(id),
                NodeKind::Loop(_) | NodeKind::Call(_) | NodeKind::Region(_) | NodeKind::Random { .. } => false,
                _ => may_be(&node.kind) && node.operands.iter().all(|o| all[o.index()]),
            };
        }
        Fixed {
            fixed: all,
            uses: graph.use_counts(),
        }
    }

    /// Whether a value is fixed.
    pub fn contains(&self, id: NodeId) -> bool {
        self.fixed[id.index()]
    }

    /// Whether one node alone reads a value.
    fn is_read_once(&self, id: NodeId) -> bool {
        self.uses[id.index()] <= 1
    }
}

/// How many bytes copies may still take.
pub struct Budget(u64);

impl Default for Budget {
    fn default() -> Budget {
        Budget(MAX_COPIED_BYTES)
    }
}

impl Budget {
    pub(super) fn take(&mut self, graph: &Graph, operand: NodeId) -> bool {
        let ty = graph.ty(operand);
        let elements = ty.elements().as_const().and_then(|n| u64::try_from(n).ok());
        let bytes = elements.and_then(|n| n.checked_mul(ty.dtype.bytes() as u64));
        bytes.is_some_and(|bytes| self.take_bytes(bytes))
    }

    /// Whether so many bytes were left; they are taken.
    pub(super) fn take_bytes(&mut self, bytes: u64) -> bool {
        let fits = bytes <= self.0;
        if fits {
            self.0 -= bytes;
        }
        fits
    }
}

/// How a host reads operands of products that stay as they are.
#[derive(Clone, Copy, Debug)]
pub struct Layouts {
    /// Width of the blocks that the product library takes without a copy; 0 for none.
    pub panel_elements: u32,
    /// Bits of the vectors in which kernels add up rows.
    pub vector_bits: u32,
    /// What matrices are turned for a product with a vector ([`tlc_ir::target::Cpu::turned_bytes`]).
    pub turned_bytes: Option<u64>,
    /// What the product library multiplies beside f32 and f64.
    pub products: HostProducts,
}

impl Layouts {
    /// Of what has no product library.
    pub const NONE: Layouts = Layouts {
        panel_elements: 0,
        vector_bits: 0,
        turned_bytes: None,
        products: HostProducts {
            words: false,
            halves: false,
            vectors: false,
            small: false,
        },
    };
}

/// The einsum `id` of `graph` with its fixed operand laid out for it, if that pays: in blocks, or turned.
///
/// # Errors
/// Never for a verified graph.
pub fn laid_out(
    re: &mut Rebuilder,
    graph: &Graph,
    (id, node): (NodeId, &Node),
    operands: &[NodeId],
    layouts: Layouts,
    (fixed, budget): (&Fixed, &mut Budget),
) -> Result<Option<NodeId>, GraphError> {
    let width = layouts.panel_elements;
    if width == 0 || !node.operands.iter().any(|&o| fixed.contains(o)) || fixed.contains(id) {
        return Ok(None);
    }
    let mut takes = |k: usize| fixed.contains(node.operands[k]) && budget.take(graph, node.operands[k]);
    if let Some(blocks) = panel_blocks(graph, id, width, layouts.products) {
        return match takes(blocks.operand) {
            true => in_blocks(re, graph, (id, node), operands, blocks).map(Some),
            false => Ok(None),
        };
    }
    // What others read as well would take memory twice, and a matrix such as that of an embedding is the largest of a model.
    if let Some((blocks, base)) = vector_blocks(graph, id, layouts.turned_bytes, layouts.vector_bits)
        && fixed.is_read_once(base)
        && takes(blocks.operand)
    {
        return in_column_blocks(re, graph, node, operands, blocks).map(Some);
    }
    match matrix_to_turn_whole(graph, id, layouts.turned_bytes, layouts.vector_bits) {
        Some((k, order, base)) if fixed.is_read_once(base) && takes(k) => {
            turned(re, node, operands, k, order).map(Some)
        }
        _ => Ok(None),
    }
}

/// The einsum `id` of `graph` with an operand in blocks.
fn in_blocks(
    re: &mut Rebuilder,
    graph: &Graph,
    (id, node): (NodeId, &Node),
    operands: &[NodeId],
    blocks: PanelBlocks,
) -> Result<NodeId, GraphError> {
    let NodeKind::Einsum { inputs, output, .. } = &node.kind else {
        return re.keep(node, operands);
    };
    let PanelBlocks {
        operand,
        label,
        outer,
        summed,
        width,
        padding,
        paired,
        ..
    } = blocks;
    let width = IndexExpr::Const(width);
    // The extent of the label as whole blocks, in the operand and in the result.
    let whole = |labels: &Labels, shape: &[IndexExpr]| -> Shape {
        let axes = labels.iter().zip(shape);
        axes.map(|(&l, d)| match l == label {
            true => d.clone() + IndexExpr::Const(padding),
            false => d.clone(),
        })
        .collect()
    };
    let place = label;
    let number = 1 + inputs.iter().flatten().copied().max().unwrap_or(0);
    let (pair, two) = (number + 1, IndexExpr::Const(2));
    // The label as two, in the operand and in the result, and so that of pairs, in both operands.
    let split = |labels: &Labels, shape: &[IndexExpr]| -> (Labels, Shape) {
        let both = labels.iter().zip(shape).flat_map(|(&l, d)| match l == label {
            true => vec![(number, IndexExpr::floor_div(d, &width)), (place, width.clone())],
            false if paired == Some(l) => vec![(l, IndexExpr::floor_div(d, &two)), (pair, two.clone())],
            false => vec![(l, d.clone())],
        });
        both.unzip()
    };
    let of_operand = &graph.ty(node.operands[operand]).shape;
    let mut whole_operand = operands[operand];
    if padding != 0 {
        let none: Shape = of_operand.iter().map(|_| IndexExpr::ZERO).collect();
        let behind = whole(&inputs[operand], &none);
        let zero = graph.ty(node.operands[operand]).dtype.zero();
        whole_operand = re.padded(whole_operand, none, behind, zero)?;
    }
    let (labels, shape) = split(&inputs[operand], &whole(&inputs[operand], of_operand));
    let cut = re.reshape(whole_operand, &shape)?;
    let order = outer.iter().chain([&number]).chain(&summed).chain([&place]);
    let order = order.chain(paired.is_some().then_some(&pair));
    let order: Labels = order.copied().collect();
    let axis = |l: &u16| labels.iter().position(|x| x == l).expect("the same labels") as u8;
    let view = re.add(NodeKind::View(View::Permute(order.iter().map(axis).collect())), &[cut])?;
    let copy = re.add(NodeKind::Copy, &[view])?;
    let (mut all, mut values): (Vec<Labels>, Vec<_>) = (inputs.to_vec(), operands.to_vec());
    (all[operand], values[operand]) = (order, copy);
    if paired.is_some() {
        let other = 1 - operand;
        let (labels, shape) = split(&inputs[other], &graph.ty(node.operands[other]).shape);
        (all[other], values[other]) = (labels, re.reshape(operands[other], &shape)?);
    }
    let of_result = &graph.ty(id).shape;
    let (out, _) = split(output, of_result);
    let product = add_canonical(re, &node.kind, all, out, &values)?;
    let product = re.reshape(product, &whole(output, of_result))?;
    match padding {
        0 => Ok(product),
        _ => re.add(
            NodeKind::View(View::Slice {
                start: of_result.iter().map(|_| IndexExpr::ZERO).collect(),
                step: of_result.iter().map(|_| 1).collect(),
                size: of_result.iter().cloned().collect(),
            }),
            &[product],
        ),
    }
}

/// The product of a vector with a matrix that is seen through a copy in blocks of columns: whatever is computed of it knows nothing of them.
fn in_column_blocks(
    re: &mut Rebuilder,
    graph: &Graph,
    node: &Node,
    operands: &[NodeId],
    blocks: PanelBlocks,
) -> Result<NodeId, GraphError> {
    let NodeKind::Einsum { inputs, output, .. } = &node.kind else {
        return re.keep(node, operands);
    };
    let matrix = blocks.operand;
    let number = 1 + inputs.iter().flatten().copied().max().unwrap_or(0);
    let steps: Labels = (number + 1..).take(blocks.steps.len()).collect();
    let summed = match steps.is_empty() {
        true => blocks.summed.clone(),
        false => steps.clone(),
    };
    // The axis of columns as two, the number of the block and the place in it, and that of the sum as one for each of its steps.
    let split = |k: usize, columns: bool| -> (Labels, Shape) {
        let axes = inputs[k].iter().zip(&graph.ty(node.operands[k]).shape);
        let axes = axes.flat_map(|(&l, d)| match l {
            _ if columns && l == blocks.label => {
                let width = IndexExpr::Const(blocks.width);
                vec![(number, IndexExpr::floor_div(d, &width)), (l, width)]
            }
            _ if !steps.is_empty() && blocks.summed.contains(&l) => {
                let mut loops: Vec<_> = steps.iter().zip(&blocks.steps).collect();
                loops.sort_unstable_by_key(|(_, (_, step))| std::cmp::Reverse(*step));
                loops
                    .into_iter()
                    .map(|(&l, &(n, _))| (l, IndexExpr::Const(n)))
                    .collect()
            }
            _ => vec![(l, d.clone())],
        });
        axes.unzip()
    };
    let permuted = |re: &mut Rebuilder, value: NodeId, from: &Labels, to: &Labels| {
        let axis = |l: &u16| from.iter().position(|x| x == l).expect("the same labels") as u8;
        re.add(NodeKind::View(View::Permute(to.iter().map(axis).collect())), &[value])
    };
    let (labels, shape) = split(matrix, true);
    let cut = re.reshape(operands[matrix], &shape)?;
    let outer = blocks.outer.iter();
    let order: Labels = outer
        .clone()
        .chain([&number])
        .chain(&summed)
        .chain([&blocks.label])
        .copied()
        .collect();
    let view = permuted(re, cut, &labels, &order)?;
    let copy = re.add(NodeKind::Copy, &[view])?;
    // And back: the number behind the sum, beside the place.
    let back: Labels = outer
        .clone()
        .chain(&summed)
        .chain([&number, &blocks.label])
        .copied()
        .collect();
    let seen = permuted(re, copy, &order, &back)?;
    let (labels, shape) = split(matrix, false);
    let order: Labels = outer.chain(&summed).chain([&blocks.label]).copied().collect();
    let extent = |l: &u16| shape[labels.iter().position(|x| x == l).expect("a label of the matrix")].clone();
    let whole: Shape = order.iter().map(extent).collect();
    let (mut all, mut values): (Vec<Labels>, Vec<_>) = (inputs.to_vec(), operands.to_vec());
    (all[matrix], values[matrix]) = (order, re.reshape(seen, &whole)?);
    if !steps.is_empty() {
        let vector = 1 - matrix;
        let (labels, shape) = split(vector, false);
        let cut = re.reshape(operands[vector], &shape)?;
        let others = labels.iter().filter(|l| !steps.contains(l));
        let order: Labels = others.chain(&steps).copied().collect();
        (all[vector], values[vector]) = (order.clone(), permuted(re, cut, &labels, &order)?);
    }
    add_canonical(re, &node.kind, all, output.clone(), &values)
}

/// The product of a vector with a matrix, the axes of a copy of the matrix in another order.
fn turned(
    re: &mut Rebuilder,
    node: &Node,
    operands: &[NodeId],
    matrix: usize,
    order: SmallVec<[u8; 4]>,
) -> Result<NodeId, GraphError> {
    let NodeKind::Einsum { inputs, output, .. } = &node.kind else {
        return re.keep(node, operands);
    };
    let (mut labels, mut values): (Vec<Labels>, Vec<_>) = (inputs.to_vec(), operands.to_vec());
    labels[matrix] = order.iter().map(|&axis| inputs[matrix][usize::from(axis)]).collect();
    let view = re.add(NodeKind::View(View::Permute(order)), &[values[matrix]])?;
    values[matrix] = re.add(NodeKind::Copy, &[view])?;
    add_canonical(re, &node.kind, labels, output.clone(), &values)
}
