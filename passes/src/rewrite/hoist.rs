//! Takes out of loops what every iteration would compute alike.
//!
//! A value of a body that follows from captures and constants alone is computed before the loop and captured, unless it is
//! only seen through views, or would be larger than what it is made of: then an iteration had to load it instead of computing
//! it. Matrices that a body multiplies with are laid out before the loop as the library multiplies them where they lie (see
//! [`panels`]). Out of a loop of one iteration only what follows from constants is taken, which is computed once per
//! executable: such a loop keeps its values apart from those around it (see [`Loop::is_fence`]).

use std::sync::Arc;

use tlc_ir::graph::{Body, GraphError, Loop, Operands, TensorType};
use tlc_ir::target::Emitter;
use tlc_ir::{Graph, Node, NodeId, NodeKind};

use super::panels::{self, Budget, Fixed, Layouts};
use super::{Context, Failure, Pass, Rebuilder, pack, rebuild, rebuild_of};
use crate::contraction::is_library_of_words;

/// A value may be so many times larger than the captures and constants that it is made of.
const MAX_GROWTH: i64 = 2;

/// What every iteration of a loop computes alike.
pub struct Hoist;

impl Pass for Hoist {
    fn name(&self) -> &'static str {
        "hoist"
    }

    fn run(&self, graph: &Graph, context: &mut Context<'_>) -> Result<Graph, Failure> {
        let blocks = context.tiles.map(|e| (e, context.weight_block_bytes));
        Ok(run(graph, context.layouts, blocks)?)
    }
}

/// Takes values out of the graph's loops, constants as `layouts` say. The matrices of words that the emitter of `tiles` multiplies are laid out for it
/// ([`pack::run`]).
///
/// # Errors
/// Never for a verified graph.
pub fn run(graph: &Graph, layouts: Layouts, tiles: Option<(&Emitter, i64)>) -> Result<Graph, GraphError> {
    let mut budget = Budget::default();
    let constant = Fixed::constants(graph);
    let is_loop = |n: &Node| matches!(n.kind, NodeKind::Loop(_));
    rebuild_of(graph, &is_loop, &mut |re, _, node, operands| {
        let NodeKind::Loop(l) = &node.kind else {
            return re.keep(node, operands);
        };
        let stays = stays(l, captures(l, &node.operands), &constant);
        let body = laid_out(l, &stays, layouts, tiles, &mut budget)?;
        let (l, operands) = hoisted(re, l, &stays, &body, operands)?;
        re.add(NodeKind::Loop(Arc::new(l)), &operands)
    })
}

/// The body's inputs before the captures.
pub(super) fn first_capture(l: &Loop) -> usize {
    1 + l.carried + l.slices.len()
}

/// The operands that a loop captures.
pub(super) fn captures<'o>(l: &Loop, operands: &'o [NodeId]) -> &'o [NodeId] {
    &operands[l.leading() + l.carried + l.slices.len()..]
}

/// Of which captures nothing is computed outside, where `constant` tells what is computed once.
pub(super) fn stays(l: &Loop, captures: &[NodeId], constant: &Fixed) -> Vec<bool> {
    captures
        .iter()
        .map(|&o| l.is_fence() && !constant.contains(o))
        .collect()
}

/// What is the same in every iteration; `stays` says of which captures nothing is computed outside.
pub(super) fn fixed(l: &Loop, stays: &[bool], body: &Graph) -> Fixed {
    let captures = body.inputs()[first_capture(l)..].iter().zip(stays);
    let captures: Vec<NodeId> = captures.filter(|(_, stays)| !**stays).map(|(&id, _)| id).collect();
    Fixed::in_body(body, &|id| captures.contains(&id))
}

/// The body with its fixed matrices laid out as they are multiplied.
fn laid_out(
    l: &Loop,
    stays: &[bool],
    layouts: Layouts,
    tiles: Option<(&Emitter, i64)>,
    budget: &mut Budget,
) -> Result<Graph, GraphError> {
    let body = &*l.body.0;
    let fixed = fixed(l, stays, body);
    rebuild(body, &mut |re, id, node, operands| {
        if let Some(new) = panels::laid_out(re, body, (id, node), operands, layouts, (&fixed, budget))? {
            return Ok(new);
        }
        let of_words = tiles.filter(|_| !is_library_of_words(body, id, layouts.products));
        match of_words {
            Some(tiles) => pack::words_in_blocks(re, body, (id, node), operands, tiles, (&fixed, budget)),
            None => re.keep(node, operands),
        }
    })
}

/// The values of a body that are to be captured, in the order of the body.
fn chosen(l: &Loop, stays: &[bool], body: &Graph) -> Vec<NodeId> {
    let mut out = Vec::new();
    if !body.binders().is_empty() {
        // Sizes that an iteration finds out mean nothing outside.
        return out;
    }
    let fixed = fixed(l, stays, body);
    let mut seen = vec![false; body.len()];
    let mut work: Vec<NodeId> = body.outputs().iter().map(|o| o.node).collect();
    while let Some(id) = work.pop() {
        if std::mem::replace(&mut seen[id.index()], true) {
            continue;
        }
        let node = body.node(id);
        let computes = !matches!(
            node.kind,
            NodeKind::View(_) | NodeKind::Const(_) | NodeKind::Data(_) | NodeKind::Input { .. } | NodeKind::Iota { .. }
        );
        if computes && fixed.contains(id) && pays(body, id) {
            out.push(id);
        } else {
            work.extend(node.operands.iter().copied());
        }
    }
    out.sort_unstable();
    out
}

/// Whether a value is not much larger than the captures and constants that it is made of.
fn pays(body: &Graph, id: NodeId) -> bool {
    let own = body.ty(id);
    let elements = own.elements();
    let bytes = |ty: &TensorType| Some(ty.elements().as_const()?.saturating_mul(ty.dtype.bytes() as i64));
    let mut below = 0i64;
    let mut seen = vec![id];
    let mut at = 0;
    while at < seen.len() && at < 256 {
        let node = body.node(seen[at]);
        if matches!(node.kind, NodeKind::Input { .. } | NodeKind::Data(_)) {
            if node.ty.elements() == elements {
                return true;
            }
            below = below.saturating_add(bytes(&node.ty).unwrap_or(0));
        }
        for o in &node.operands {
            if !seen.contains(o) {
                seen.push(*o);
            }
        }
        at += 1;
    }
    bytes(own).is_some_and(|b| b <= below.saturating_mul(MAX_GROWTH))
}

/// The loop with `body`, whose chosen values are computed before it, and its operands.
fn hoisted(
    re: &mut Rebuilder,
    l: &Loop,
    stays: &[bool],
    body: &Graph,
    operands: &[NodeId],
) -> Result<(Loop, Operands), GraphError> {
    let chosen = chosen(l, stays, body);
    let first = first_capture(l);
    let captures = captures(l, operands);
    // Outside.
    let mut outside: Vec<Option<NodeId>> = vec![None; body.len()];
    let mut needed = vec![false; body.len()];
    for &id in &chosen {
        needed[id.index()] = true;
    }
    for i in (0..body.len()).rev().filter(|_| !chosen.is_empty()) {
        if needed[i] {
            let node = body.node(NodeId(i as u32));
            node.operands.iter().for_each(|o| needed[o.index()] = true);
        }
    }
    for (&input, &operand) in body.inputs()[first..].iter().zip(captures) {
        outside[input.index()] = Some(operand);
    }
    let around = re.origin();
    for (id, node) in body.nodes() {
        if !needed[id.index()] || outside[id.index()].is_some() {
            continue;
        }
        let name = || match around.value_name() {
            Some(outer) => format!("{outer}.{}", body.value_name(id)),
            None => body.value_name(id),
        };
        re.set_origin(node.origin.recorded().clone().named(name));
        let operands: Operands = node
            .operands
            .iter()
            .map(|o| outside[o.index()].expect("it follows from captures"))
            .collect();
        outside[id.index()] = Some(re.add(node.kind.map_sizes(&mut |_, e| l.outer(e)), &operands)?);
    }
    re.set_origin(around);
    // Inside: what is still read of the captures, then what is new.
    let mut live = vec![false; body.len()];
    body.outputs().iter().for_each(|o| live[o.node.index()] = true);
    for i in (0..body.len()).rev() {
        let id = NodeId(i as u32);
        if live[i] && chosen.binary_search(&id).is_err() {
            body.visit_needs(id, &body.binders(), &mut |o| live[o.index()] = true);
        }
    }
    let mut inside = Rebuilder::new(&body.name);
    inside.graph.adopt_symbols(body);
    inside.graph.set_derived();
    let named = |id: NodeId| body.node(id).origin.clone().named(|| body.name_of_value(id));
    let mut map: Vec<Option<NodeId>> = vec![None; body.len()];
    let mut given: Operands = operands[..operands.len() - captures.len()].iter().copied().collect();
    for (k, &input) in body.inputs().iter().enumerate() {
        if k >= first && !live[input.index()] {
            continue;
        }
        let node = body.node(input);
        if let NodeKind::Input { name, ty, .. } = &node.kind {
            map[input.index()] = Some(inside.graph.add_input(name, ty.clone(), node.origin.clone())?);
        }
        if k >= first {
            given.push(captures[k - first]);
        }
    }
    for &id in chosen.iter().filter(|id| live[id.index()]) {
        let node = body.node(id);
        let taken = |name: &str| {
            body.inputs()
                .iter()
                .any(|&i| matches!(&body.node(i).kind, NodeKind::Input { name: n, .. } if n == name))
        };
        let name = (0..)
            .map(|k| format!("hoisted{}", id.index() + k * body.len()))
            .find(|n| !taken(n));
        let name = name.expect("some number is free");
        map[id.index()] = Some(inside.graph.add_input(&name, node.ty.clone(), named(id))?);
        given.push(outside[id.index()].expect("it was computed"));
    }
    for (id, node) in body.nodes() {
        if !live[id.index()] || map[id.index()].is_some() {
            continue;
        }
        inside.set_origin(named(id));
        let operands: Operands = node
            .operands
            .iter()
            .map(|o| map[o.index()].expect("operands come before users"))
            .collect();
        map[id.index()] = Some(inside.add(node.kind.clone(), &operands)?);
    }
    for o in body.outputs() {
        let node = map[o.node.index()].expect("outputs are live");
        inside.graph.add_output(&o.name, node);
    }
    inside.graph.adopt_guards(body, &map);
    let new = Loop {
        body: Body(Arc::new(inside.graph)),
        ..l.clone()
    };
    Ok((new, given))
}
