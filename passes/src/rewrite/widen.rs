//! Sums of products of 16-bit floats as sums of products of f32.
//!
//! An einsum of f16 or bf16 that is added up in f32 multiplies and adds f32 by definition, and rounds each result once. Written out, with operands converted
//! below the views that it sees them through and the result converted back, it is a sum that the library, direct convolutions and
//! kernels of windows compute as they compute those of f32: each element is converted once and multiplied many times. Weights that never
//! change are converted once per executable.
//!
//! What is multiplied once alone stays as it is, half the bytes: the matrix of a product with a vector.

use smallvec::SmallVec;
use tlc_ir::graph::{GraphError, Labels, Semiring, View};
use tlc_ir::index::{Bounds, IndexExpr};
use tlc_ir::target::HostProducts;
use tlc_ir::{DType, Graph, Node, NodeId, NodeKind};

use super::panels::Fixed;
use super::{Context, Failure, Pass, Rebuilder};
use crate::access::label_count;
use crate::contraction::{MIN_LIBRARY_FLOPS, matrix_product};
use crate::direct::has_overlaps;
use crate::directive::MOST_SLIDING;

/// The most bytes of f32 that constants of a graph are converted to: they stay in memory beside the constants, which are often the pages
/// of a file.
const MAX_WIDENED_BYTES: i64 = 1 << 30;

/// Sums of products of 16-bit floats computed on values that were converted to f32 once.
pub struct Widen;

impl Pass for Widen {
    fn name(&self) -> &'static str {
        "widen"
    }

    fn run(&self, graph: &Graph, context: &mut Context<'_>) -> Result<Graph, Failure> {
        match context.layouts.panel_elements {
            // Other machines multiply 16-bit floats themselves.
            0 => Ok(graph.clone()),
            _ => Ok(run(
                graph,
                context.tiles.map(|e| e.lanes(DType::F32)),
                context.layouts.products,
            )?),
        }
    }
}

/// Converts the operands of what multiplies them more than once. `lanes` are those of a vector of f32, if lanes may be left out of it;
/// `products` are what the library takes as it is.
///
/// # Errors
/// Never for a verified graph.
pub fn run(graph: &Graph, lanes: Option<i64>, products: HostProducts) -> Result<Graph, GraphError> {
    let fixed = Fixed::constants(graph);
    // Constants that are converted, and the bytes that are left for more.
    let (mut converted, mut left) = (Vec::new(), MAX_WIDENED_BYTES);
    let of_halves = |n: &Node| {
        let mut operands = n.operands.iter();
        matches!(n.kind, NodeKind::Einsum { .. }) && operands.any(|o| is_half(graph.ty(*o).dtype))
    };
    super::rebuild_of(graph, &of_halves, &mut |re, id, node, operands| {
        let multiplied = match multiplied(graph, node) {
            // The library multiplies them as they are.
            _ if node.ty.dtype == DType::BF16 && matrix_product(graph, id, products).is_some() => {
                return re.keep(node, operands);
            }
            Some(m) if !fixed.contains(id) && takes(graph, node, &fixed, &mut converted, &mut left) => m,
            _ => return re.keep(node, operands),
        };
        let NodeKind::Einsum {
            inputs, output, dtype, ..
        } = &node.kind
        else {
            return re.keep(node, operands);
        };
        let wide: SmallVec<[NodeId; 2]> = operands
            .iter()
            .map(|&o| widened(re, o, multiplied, lanes))
            .collect::<Result<_, _>>()?;
        let kind = NodeKind::Einsum {
            inputs: inputs.clone(),
            output: output.clone(),
            semiring: Semiring::AddMul,
            accumulator: DType::F32,
            dtype: DType::F32,
        };
        let sum = re.add(kind, &wide)?;
        match dtype {
            DType::F32 => Ok(sum),
            _ => re.add(NodeKind::Convert(*dtype), &[sum]),
        }
    })
}

fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// Why elements of both operands are multiplied more than once.
#[derive(Clone, Copy, PartialEq)]
enum Multiplied {
    /// Each by places that the other operand has alone, as matrices are.
    ByPlaces,
    /// Windows have them in common, as those of each channel of an image.
    ByWindows,
}

/// Why a sum of products of 16-bit floats, perhaps with f32, in f32 multiplies elements of both operands more than once; `None` if a node is none or does not.
fn multiplied(graph: &Graph, node: &Node) -> Option<Multiplied> {
    let NodeKind::Einsum {
        inputs,
        output,
        semiring: Semiring::AddMul,
        accumulator: DType::F32,
        dtype,
    } = &node.kind
    else {
        return None;
    };
    let [a, b] = node.operands[..] else { return None };
    let of = [a, b].map(|o| graph.ty(o).dtype);
    let float = |d: &DType| is_half(*d) || *d == DType::F32;
    if !of.iter().any(|d| is_half(*d)) || !of.iter().chain([dtype]).all(float) {
        return None;
    }
    let mut extents = vec![1i64; label_count(inputs)];
    for (operand, labels) in [a, b].iter().zip(inputs) {
        for (&l, d) in labels.iter().zip(&graph.ty(*operand).shape) {
            extents[usize::from(l)] = d.interval(graph as &dyn Bounds).hi.max(0);
        }
    }
    let long = |l: &&u16| extents[usize::from(**l)] > 1;
    let summed = inputs.iter().flatten().any(|l| !output.contains(l) && long(&l));
    let most = extents.iter().fold(1i64, |n, e| n.saturating_mul(*e));
    // Elements of an operand are multiplied as often as the other one has places that it has not.
    let alone = |own: &Labels, other: &Labels| own.iter().filter(long).any(|l| !other.contains(l));
    let by_places = alone(&inputs[0], &inputs[1]) && alone(&inputs[1], &inputs[0]);
    let by_windows = [a, b].iter().any(|o| has_overlaps(graph, *o));
    let many = summed && most >= MIN_LIBRARY_FLOPS;
    match (by_places, by_windows) {
        (true, _) => many.then_some(Multiplied::ByPlaces),
        (false, true) => many.then_some(Multiplied::ByWindows),
        (false, false) => None,
    }
}

/// Whether there is room for what the node's constants are converted to.
fn takes(graph: &Graph, node: &Node, fixed: &Fixed, converted: &mut Vec<NodeId>, left: &mut i64) -> bool {
    let half = |b: &NodeId| is_half(graph.ty(*b).dtype);
    let new = |o: &NodeId| Some(base(graph, *o)).filter(|b| half(b) && fixed.contains(*b) && !converted.contains(b));
    let constants: SmallVec<[NodeId; 2]> = node.operands.iter().filter_map(new).collect();
    let bytes = |n: &NodeId| {
        graph
            .ty(*n)
            .elements()
            .as_const()?
            .checked_mul(DType::F32.bytes() as i64)
    };
    let all = constants.iter().try_fold(0i64, |sum, n| sum.checked_add(bytes(n)?));
    let fits = all.is_some_and(|all| all <= *left);
    if fits {
        *left -= all.unwrap_or(0);
        converted.extend(constants);
    }
    fits
}

/// What an operand is views of.
fn base(graph: &Graph, operand: NodeId) -> NodeId {
    let below = |at: &NodeId| match graph.node(*at).kind {
        NodeKind::View(_) => graph.node(*at).operands.first().copied(),
        _ => None,
    };
    std::iter::successors(Some(operand), below).last().unwrap_or(operand)
}

/// An operand in f32, if it is of 16-bit floats.
fn widened(
    re: &mut Rebuilder,
    operand: NodeId,
    multiplied: Multiplied,
    lanes: Option<i64>,
) -> Result<NodeId, GraphError> {
    if !is_half(re.graph.ty(operand).dtype) {
        return Ok(operand);
    }
    let stored = multiplied == Multiplied::ByWindows && has_overlaps(&re.graph, operand);
    in_f32(re, operand, stored, lanes)
}

/// Whether views are of sliding windows, each of few elements, whose results lie side by side.
fn slides(views: &[View]) -> bool {
    let elements = views.iter().try_fold(1i64, |n, view| match view {
        View::Window { size, stride: 1, .. } => n.checked_mul(size.as_const()?),
        View::Window { .. } => None,
        _ => Some(n),
    });
    elements.is_some_and(|n| n <= MOST_SLIDING)
}

/// An operand converted to f32 below its views. What several windows of a kernel have is `stored` so with its padding, and not converted in each;
/// products and direct convolutions have theirs stored anyway. Padding of rows that are one vector of so many `lanes` is lanes that are left out.
pub(super) fn in_f32(
    re: &mut Rebuilder,
    operand: NodeId,
    stored: bool,
    lanes: Option<i64>,
) -> Result<NodeId, GraphError> {
    let mut views = Vec::new();
    let mut at = operand;
    while let NodeKind::View(view) = &re.graph.node(at).kind {
        views.push(match view.fill() {
            Some(fill) => view.filled_with(fill.convert(DType::F32)),
            None => view.clone(),
        });
        at = re.graph.node(at).operands[0];
    }
    // Windows that slide meet an element once for each of their rows alone.
    let slides = lanes.is_some() && slides(&views) && re.graph.ty(at).shape.iter().all(|d| d.as_const().is_some());
    let mut stored = stored && !slides;
    let mut wide = re.add(NodeKind::Convert(DType::F32), &[at])?;
    let row = re.graph.ty(at).shape.last().and_then(IndexExpr::as_const);
    if stored && row.zip(lanes).is_some_and(|(row, lanes)| row <= lanes) {
        wide = re.add(NodeKind::Copy, &[wide])?;
        stored = false;
    }
    views.into_iter().rev().try_fold(wide, |mut below, view| {
        if stored && matches!(view, View::Window { .. }) {
            below = re.add(NodeKind::Copy, &[below])?;
            stored = false;
        }
        re.add(NodeKind::View(view), &[below])
    })
}
