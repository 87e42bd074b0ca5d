//! Sinks permutations and broadcasts into einsum labels, where they cost nothing.
//!
//! A permuted operand is the operand with permuted labels; a broadcast axis that another operand also has is no axis at
//! all. A permutation of an einsum's result is the einsum with a permuted output. What a slice of the result cuts off of an
//! operand's padding is not padded ([`super::narrow`]).

use rustc_hash::FxHashSet;
use smallvec::SmallVec;
use tlc_ir::graph::{GraphError, Labels, Semiring, View};
use tlc_ir::{Graph, Node, NodeId, NodeKind};

use super::narrow::{less_padding, reshaped, shows_padding};
use super::{Context, Failure, Pass, Rebuilder};

/// Permutations and broadcasts into einsum labels.
pub struct SinkLayout;

impl Pass for SinkLayout {
    fn name(&self) -> &'static str {
        "sink-layout"
    }

    fn run(&self, graph: &Graph, _: &mut Context<'_>) -> Result<Graph, Failure> {
        Ok(run(graph)?)
    }
}

/// Moves layout changes into labels.
///
/// # Errors
/// Never for a verified graph.
pub fn run(graph: &Graph) -> Result<Graph, GraphError> {
    let uses = graph.use_counts();
    let early = before_layout(graph, &uses);
    // Views of which there are several users: what is padded below them is.
    let mut shared = FxHashSet::default();
    super::rebuild(graph, &mut |re, id, node, operands| match &node.kind {
        NodeKind::Einsum {
            inputs,
            output,
            semiring,
            ..
        } => {
            // Where products are those of words, both operands have each summed label.
            let fixed = |l: u16| *semiring == Semiring::AddDot4 && !output.contains(&l);
            let (mut labels, mut bases): (Vec<Labels>, Vec<NodeId>) = (inputs.to_vec(), operands.to_vec());
            for k in 0..bases.len() {
                while sink(re, &mut labels, &mut bases, k, &fixed) {}
            }
            add_canonical(re, &node.kind, labels, output.clone(), &bases)
        }
        NodeKind::View(View::Permute(p)) if uses[node.operands[0].index()] == 1 => {
            let below = re.graph.node(operands[0]).clone();
            let NodeKind::Einsum { inputs, output, .. } = &below.kind else {
                return re.keep(node, operands);
            };
            let permuted = p.iter().map(|&a| output[a as usize]).collect();
            add_canonical(re, &below.kind, inputs.to_vec(), permuted, &below.operands)
        }
        NodeKind::View(View::Slice { start, step, size })
            if uses[node.operands[0].index()] == 1
                && reshaped(graph, node.operands[0]).is_none_or(|below| uses[below.index()] == 1)
                && step.iter().all(|&s| s == 1) =>
        {
            match less_padding(re, operands[0], start, size, &shared)? {
                Some(new) => Ok(new),
                None => re.keep(node, operands),
            }
        }
        _ if uses[id.index()] > 1 && shows_padding(&node.kind) => {
            let view = re.keep(node, operands)?;
            shared.insert(view);
            Ok(view)
        }
        _ if early[id.index()] => computed_before(re, node, operands),
        _ => re.keep(node, operands),
    })
}

/// Which nodes are computed, element by element, of a value in another order or shape and of numbers, for a contraction that alone reads them. Computed
/// before that they leave the layout to the contraction, and may be part of the kernel that computes the value.
fn before_layout(graph: &Graph, uses: &[u32]) -> Vec<bool> {
    let mut early = vec![false; graph.len()];
    let contractions = graph.nodes().filter(|(_, n)| matches!(n.kind, NodeKind::Einsum { .. }));
    for &operand in contractions.flat_map(|(_, n)| &n.operands) {
        let (mut at, mut passed) = (operand, Vec::new());
        while let node = graph.node(at)
            && matches!(node.kind, NodeKind::Map(_) | NodeKind::Convert(_))
            && uses[at.index()] == 1
        {
            let mut computed = node.operands.iter().filter(|o| graph.splat_value(**o).is_none());
            let (Some(&only), None) = (computed.next(), computed.next()) else {
                break;
            };
            passed.push(at);
            at = only;
        }
        if is_layout(&graph.node(at).kind) {
            passed.into_iter().for_each(|id| early[id.index()] = true);
        }
    }
    early
}

/// Whether a node has the elements of its operand, each once.
fn is_layout(kind: &NodeKind) -> bool {
    matches!(kind, NodeKind::View(View::Permute(_) | View::Reshape(_)))
}

/// The layout of what is computed of what it is the layout of, and of numbers.
///
/// # Errors
/// Never for nodes of [`before_layout`].
fn computed_before(re: &mut Rebuilder, node: &Node, operands: &[NodeId]) -> Result<NodeId, GraphError> {
    let laid_out = |o: &&NodeId| is_layout(&re.graph.node(**o).kind) && re.splat_value(**o).is_none();
    let Some(&value) = operands.iter().find(laid_out) else {
        return re.keep(node, operands);
    };
    let (mut base, mut views) = (value, Vec::new());
    while is_layout(&re.graph.node(base).kind) {
        views.push(re.graph.node(base).kind.clone());
        base = re.graph.node(base).operands[0];
    }
    let shape = re.graph.ty(base).shape.clone();
    let mut own: SmallVec<[NodeId; 3]> = SmallVec::new();
    for &operand in operands {
        own.push(match re.splat_value(operand) {
            Some(number) => re.splat(number, &shape)?,
            None => base,
        });
    }
    let mut computed = re.add(node.kind.clone(), &own)?;
    for view in views.into_iter().rev() {
        computed = re.add(view, &[computed])?;
    }
    Ok(computed)
}

/// Moves one view below operand `k` into its labels, of which the operand must keep those that are `fixed`; returns whether it did.
fn sink(re: &Rebuilder, labels: &mut [Labels], bases: &mut [NodeId], k: usize, fixed: &dyn Fn(u16) -> bool) -> bool {
    let node = re.graph.node(bases[k]);
    let NodeKind::View(view) = &node.kind else { return false };
    let below = node.operands[0];
    match view {
        View::Permute(p) => {
            let mut moved: Labels = SmallVec::from_elem(0, p.len());
            for (axis, &from) in p.iter().enumerate() {
                moved[from as usize] = labels[k][axis];
            }
            labels[k] = moved;
        }
        View::Expand(_) => {
            let from = &re.graph.ty(below).shape;
            let lead = labels[k].len() - from.len();
            // Only whole broadcast axes can go; an axis of one element that stays needs its label.
            let gone = labels[k][..lead].to_vec();
            let elsewhere = |l: u16| labels.iter().enumerate().any(|(i, of)| i != k && of.contains(&l));
            let unchanged = from.iter().zip(&node.ty.shape[lead..]).all(|(a, b)| a == b);
            if !unchanged || !gone.iter().all(|&l| elsewhere(l) && !fixed(l)) {
                return false;
            }
            labels[k] = labels[k][lead..].into();
        }
        _ => return false,
    }
    bases[k] = below;
    true
}

/// Adds an einsum with its labels renumbered by first appearance.
///
/// # Errors
/// If the operands do not fit the labels: a bug in the calling pass.
pub fn add_canonical(
    re: &mut Rebuilder,
    like: &NodeKind,
    mut inputs: Vec<Labels>,
    mut output: Labels,
    operands: &[NodeId],
) -> Result<NodeId, GraphError> {
    let NodeKind::Einsum {
        semiring,
        accumulator,
        dtype,
        ..
    } = like
    else {
        unreachable!("an einsum")
    };
    let mut order: Vec<u16> = Vec::new();
    for l in inputs.iter_mut().flatten() {
        let at = order.iter().position(|x| x == l).unwrap_or_else(|| {
            order.push(*l);
            order.len() - 1
        });
        *l = at as u16;
    }
    for l in &mut output {
        *l = order
            .iter()
            .position(|x| x == l)
            .expect("output labels appear in an operand") as u16;
    }
    let kind = NodeKind::Einsum {
        inputs: inputs.into(),
        output,
        semiring: *semiring,
        accumulator: *accumulator,
        dtype: *dtype,
    };
    re.add(kind, operands)
}
