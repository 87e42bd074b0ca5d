//! Convolutions and pooling: products and maxima over sliding windows, which ONNX has operators for.
//!
//! Invariant: what is recognized is a product or maximum over all axes of windows that slide over all axes but the first
//! two, with padding that the operator has itself; anything else is written as it stands.

use rustc_hash::FxHashMap;
use tlc_formats::onnx::write::Attribute;
use tlc_ir::graph::{Labels, Monoid, NodeId, NodeKind, Semiring, View};
use tlc_ir::{Graph, Scalar};

use super::{Outcome, Writer};
use crate::packed::Packed;

/// A node that is a convolution or a pooling.
pub(super) struct Windowed {
    /// What is slid over, before it is padded.
    x: NodeId,
    weight: Option<Weight>,
    windows: Windows,
    /// The values that the operator takes.
    pub(super) needs: Vec<NodeId>,
}

/// The weight of a convolution.
struct Weight {
    node: NodeId,
    groups: i64,
    /// Whether the node has one axis for groups and one for the outputs of each.
    split: bool,
}

/// Windows along all axes behind the first two.
struct Windows {
    kernel: Vec<i64>,
    strides: Vec<i64>,
    dilations: Vec<i64>,
    /// Before all axes, then behind them.
    pads: Vec<i64>,
    fill: Option<Scalar>,
}

/// The nodes that are convolutions or poolings.
pub(super) fn absorbed(graph: &Graph) -> FxHashMap<NodeId, Windowed> {
    let mut all = FxHashMap::default();
    for (id, node) in graph.nodes() {
        let found = match &node.kind {
            NodeKind::Einsum { .. } => convolution(graph, id),
            NodeKind::Reduce {
                monoid: Monoid::Max, ..
            } => pooling(graph, id),
            _ => None,
        };
        if let Some(found) = found {
            all.insert(id, found);
        }
    }
    all
}

/// The nodes that are written: those that outputs need, without windows that are part of an operator and
/// the arithmetic that unpacks constants.
pub(super) fn wanted(
    graph: &Graph,
    windowed: &FxHashMap<NodeId, Windowed>,
    packed: &FxHashMap<NodeId, Packed>,
) -> Vec<bool> {
    let mut wanted = vec![false; graph.len()];
    graph.outputs().iter().for_each(|o| wanted[o.node.index()] = true);
    let binders = graph.binders();
    for i in (0..graph.len()).rev() {
        let id = NodeId(i as u32);
        if !wanted[i] {
            continue;
        }
        match windowed.get(&id) {
            _ if packed.contains_key(&id) => {}
            Some(w) => w.needs.iter().for_each(|o| wanted[o.index()] = true),
            None => graph.visit_needs(id, &binders, &mut |o| wanted[o.index()] = true),
        }
    }
    wanted
}

/// The tensor under a chain of windows along axes 2 and on, and those windows.
fn windows(graph: &Graph, mut id: NodeId) -> Option<(NodeId, Windows)> {
    let mut found = Windows {
        kernel: vec![],
        strides: vec![],
        dilations: vec![],
        pads: vec![],
        fill: None,
    };
    // What has no place for a window is no operator's business: runtimes refuse it.
    if graph.ty(id).shape.iter().any(|d| d.is(0)) {
        return None;
    }
    let mut axes = vec![];
    while let NodeKind::View(View::Window {
        axis,
        size,
        stride,
        dilation,
    }) = &graph.node(id).kind
    {
        axes.insert(0, *axis as usize);
        found.kernel.insert(0, size.as_const()?);
        found.strides.insert(0, *stride);
        found.dilations.insert(0, *dilation);
        id = graph.node(id).operands[0];
    }
    let n = axes.len();
    let in_order = axes.iter().enumerate().all(|(i, &a)| a == i + 2);
    if n == 0 || !in_order || graph.ty(id).rank() != n + 2 {
        return None;
    }
    found.pads = vec![0; 2 * n];
    if let NodeKind::View(View::Pad {
        lo,
        hi,
        interior,
        value,
    }) = &graph.node(id).kind
    {
        let constant = |s: &[tlc_ir::IndexExpr]| s.iter().map(|d| d.as_const()).collect::<Option<Vec<i64>>>();
        let (lo, hi) = (constant(lo)?, constant(hi)?);
        if [lo[0], lo[1], hi[0], hi[1]] != [0; 4] || interior.iter().any(|p| *p > 0) {
            return None;
        }
        found.pads = [&lo[2..], &hi[2..]].concat();
        found.fill = Some(*value);
        id = graph.node(id).operands[0];
    }
    Some((id, found))
}

fn pooling(graph: &Graph, id: NodeId) -> Option<Windowed> {
    let node = graph.node(id);
    let NodeKind::Reduce { axes, .. } = &node.kind else {
        return None;
    };
    let (x, windows) = windows(graph, node.operands[0])?;
    let n = windows.kernel.len();
    let last = axes.iter().map(|&a| a as usize).eq(n + 2..2 * n + 2);
    let fits = windows.fill.is_none_or(|f| f == node.ty.dtype.lowest());
    (last && fits && node.ty.dtype.is_float()).then(|| Windowed {
        x,
        weight: None,
        windows,
        needs: vec![x],
    })
}

fn convolution(graph: &Graph, id: NodeId) -> Option<Windowed> {
    let node = graph.node(id);
    let NodeKind::Einsum {
        inputs,
        output,
        semiring: Semiring::AddMul,
        accumulator,
        dtype,
    } = &node.kind
    else {
        return None;
    };
    let plain = dtype.is_float() && *accumulator == dtype.accumulator();
    let (&[a, b], [of_a, of_b]) = (&node.operands[..], &inputs[..]) else {
        return None;
    };
    if !plain || graph.ty(a).dtype != *dtype || graph.ty(b).dtype != *dtype {
        return None;
    }
    one_group(graph, a, b, of_a, of_b, output)
        .or_else(|| one_group(graph, b, a, of_b, of_a, output))
        .or_else(|| groups(graph, a, b, of_a, of_b, output))
        .or_else(|| groups(graph, b, a, of_b, of_a, output))
}

/// Windows `[b, c, space.., kernel..]` times `[f, c, kernel..]` is `[b, f, space..]`.
fn one_group(
    graph: &Graph,
    x: NodeId,
    weight: NodeId,
    of_x: &Labels,
    of_weight: &Labels,
    output: &Labels,
) -> Option<Windowed> {
    let (x, windows) = windows(graph, x)?;
    let n = windows.kernel.len();
    let (&[b, c], &f) = (of_x.get(..2)?, output.get(1)?) else {
        return None;
    };
    let (space, kernel) = of_x[2..].split_at(n);
    let fits = of_weight[..] == [&[f, c], kernel].concat() && output[..] == [&[b, f], space].concat();
    let weight = Weight {
        node: weight,
        groups: 1,
        split: false,
    };
    (fits && distinct(&[&of_x[..], &[f]].concat()) && windows.fill.is_none_or(zero)).then(|| Windowed {
        needs: vec![x, weight.node],
        x,
        weight: Some(weight),
        windows,
    })
}

/// The same with the channels split in groups, an axis of their own behind the first of both, and before that of the weight.
fn groups(
    graph: &Graph,
    x: NodeId,
    weight: NodeId,
    of_x: &Labels,
    of_weight: &Labels,
    output: &Labels,
) -> Option<Windowed> {
    let NodeKind::View(View::Reshape(split)) = &graph.node(x).kind else {
        return None;
    };
    let under = graph.node(x).operands[0];
    let (source, windows) = windows(graph, under)?;
    let n = windows.kernel.len();
    let (&[b, g, c], &f) = (of_x.get(..3)?, output.get(2)?) else {
        return None;
    };
    let (space, kernel) = of_x[3..].split_at_checked(n)?;
    let fits = of_weight[..] == [&[g, f, c], kernel].concat() && output[..] == [&[b, g, f], space].concat();
    let channels = &graph.ty(under).shape;
    let (of_group, all) = (split[2].as_const()?, channels[1].as_const()?);
    let same =
        split[0] == channels[0] && split[3..] == channels[2..] && of_group.checked_mul(split[1].as_const()?)? == all;
    if !fits || !same || !distinct(&[&of_x[..], &[f]].concat()) || !windows.fill.is_none_or(zero) {
        return None;
    }
    // The weight before its outputs were split, if they were.
    let joined = graph.node(weight).operands.first().copied().filter(|&o| {
        let (whole, parts) = (&graph.ty(o).shape, &graph.ty(weight).shape);
        let outputs = parts[0].clone() * parts[1].clone();
        matches!(graph.node(weight).kind, NodeKind::View(View::Reshape(_)))
            && whole.len() == n + 2
            && whole[0] == outputs
            && whole[1..] == parts[2..]
    });
    let weight = Weight {
        node: joined.unwrap_or(weight),
        groups: split[1].as_const()?,
        split: joined.is_none(),
    };
    Some(Windowed {
        needs: vec![source, weight.node],
        x: source,
        weight: Some(weight),
        windows,
    })
}

fn zero(fill: Scalar) -> bool {
    fill.as_f64() == 0.0
}

fn distinct(labels: &[u16]) -> bool {
    (1..labels.len()).all(|i| !labels[..i].contains(&labels[i]))
}

impl Writer<'_, '_> {
    pub(super) fn windowed(&mut self, id: NodeId, windowed: &Windowed) -> Outcome<Option<String>> {
        let ty = self.ty(id);
        let x = self.value(windowed.x)?;
        let w = &windowed.windows;
        let list = |all: &[i64]| Attribute::Ints(all.to_vec());
        let mut attributes = vec![("kernel_shape", list(&w.kernel))];
        if w.strides.iter().any(|&s| s != 1) {
            attributes.push(("strides", list(&w.strides)));
        }
        if w.dilations.iter().any(|&d| d != 1) {
            attributes.push(("dilations", list(&w.dilations)));
        }
        if w.pads.iter().any(|&p| p != 0) {
            attributes.push(("pads", list(&w.pads)));
        }
        if ty.dtype == tlc_ir::DType::BF16 {
            self.shared.needs(22);
        }
        let Some(weight) = &windowed.weight else {
            return Ok(Some(self.with("MaxPool", &[&x], attributes)));
        };
        let mut kernel = self.value(weight.node)?;
        if weight.split {
            let parts = &self.ty(weight.node).shape;
            let mut whole = vec![parts[0].clone() * parts[1].clone()];
            whole.extend_from_slice(&parts[2..]);
            kernel = self.reshape(&kernel, &whole)?;
        }
        if weight.groups == 1 {
            return Ok(Some(self.with("Conv", &[&x, &kernel], attributes)));
        }
        attributes.push(("group", Attribute::Int(weight.groups)));
        let y = self.with("Conv", &[&x, &kernel], attributes);
        self.reshape(&y, &ty.shape).map(Some)
    }
}
