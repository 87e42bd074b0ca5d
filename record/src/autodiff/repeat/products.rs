//! Gradients of captures that are sums of products over iterations: one product after the loop.
//!
//! A recurrence multiplies with the same weights in each iteration. Their gradient is a sum over iterations of products of what an
//! iteration multiplied with cotangents: `n` products that sum over no more than a batch each, and `n` additions of all of the sum. As
//! one product over both kept side by side, where time is one more axis that is summed, it is a single product, and the sum of
//! an element is carried in its accumulator.
//!
//! What is kept is written and read once; a sum that goes around is read and written, and what is added to it read, in each iteration. So
//! a product is taken out of the loop where what has to be kept for it is at most as many bytes to move as the sum would be: a large
//! batch beside a small matrix stays inside, whose products are long enough. Some factors are kept in any case: slices of the loop, such as the
//! values that forward iterations began with, and what it stacks as the cotangents of slices. Where a call may not need that much memory, the compiler puts the products
//! back into the loop (see `tlc_passes::carried_sums`): that is free to it, as a contraction has no order of its terms, while it could not
//! take a sum apart that goes around in a given order.
//!
//! Sums of one value over its axes, such as the gradients of biases, stay in the loop: their addends are as small as their sums, and what
//! they add up is in the cache there, while outside all that was kept would be read once more.
//!
//! Invariants:
//! - What an iteration that did not run would have kept is zero in each factor, so that it adds 0 * 0: slices of the loop are factors as they
//!   are only where all iterations run.
//! - What is kept of a loop inside the body is not kept once more for each iteration of this one: that is what checkpoints exist to avoid.
//!   The product of an inner loop is one of an iteration, whose sum goes around.

use tlc_ir::graph::{Along, Labels, MAX_RANK, Monoid, NodeId, NodeKind, Semiring, View};
use tlc_ir::{DType, Graph as Ir, IndexExpr, ScalarOp};

use crate::graph::scope::Step;
use crate::graph::{Graph, Tensor};
use crate::ops::linalg::contract_over;
use crate::ops::repeat::Iteration;

/// More terms than that are not looked for in one gradient.
const MAX_TERMS: usize = 64;

/// A product of an iteration that is part of a gradient.
struct Term {
    /// The number of the gradient.
    of: usize,
    value: NodeId,
    factors: Vec<(NodeId, Labels)>,
    output: Labels,
    /// What products go through to become a part of the gradient, all of it linear, the first first.
    through: Vec<NodeKind>,
    /// How many bytes go between memory and an iteration if the sum goes around.
    carried_bytes: i64,
}

/// A part of a gradient that is no product.
struct Rest {
    of: usize,
    value: NodeId,
    through: Vec<NodeKind>,
}

/// What of a loop's gradients is computed behind it.
pub(super) struct Products {
    terms: Vec<Term>,
    /// By gradient: what an iteration adds to a sum that goes around, if there is anything.
    pub carried: Vec<Option<Tensor>>,
    /// What the factors are behind the loop.
    kept: Vec<(NodeId, Kept)>,
    /// The accumulator of each gradient.
    dtypes: Vec<DType>,
}

/// A factor of all iterations, all of them in the same order.
#[derive(Clone)]
enum Kept {
    /// A tensor that the loop slices, along that axis.
    Slice(Tensor, usize),
    /// The stacked result of that number, along that axis.
    Stack(usize, usize),
}

/// A loop that goes back through another, as far as this has to know it.
pub(super) struct Around<'a> {
    /// Its iteration.
    pub iteration: &'a mut Iteration,
    /// By slice: the tensor, and its axis, if its elements are those of all iterations in order.
    pub slices: &'a [Option<(Tensor, usize)>],
    /// What it stacks already.
    pub stacked: &'a [(Tensor, Along)],
    /// Whether the order of iterations in what is kept is from the last to the first, which is that of the forward loop.
    pub reversed: bool,
    /// The trip count.
    pub trip: &'a IndexExpr,
}

impl Products {
    /// Looks for products in the gradients of an iteration, whose sums are in the accumulators of `dtypes`; what they multiply is stacked.
    pub fn of(around: Around<'_>, gradients: &[Tensor], dtypes: Vec<DType>) -> Step<Products> {
        let mut all = Products {
            terms: Vec::new(),
            carried: gradients.iter().cloned().map(Some).collect(),
            kept: Vec::new(),
            dtypes,
        };
        if matches!(around.trip.as_const(), Some(0 | 1)) {
            return Ok(all);
        }
        let graph = around.iteration.graph().clone();
        let (mut terms, mut rests) = (Vec::new(), Vec::new());
        graph.with_ir(|ir| {
            let varies = varying(ir, 1 + around.iteration.carried.len() + around.iteration.slices.len());
            for (of, d) in gradients.iter().enumerate() {
                if let Some(id) = d.id() {
                    parts(ir, &varies, (of, id, all.dtypes[of]), &mut terms, &mut rests);
                }
            }
        });
        let known = |id: NodeId| {
            let is_it = |t: &Tensor| t.id() == Some(id);
            if let Some(k) = around.iteration.slices.iter().position(is_it) {
                return around.slices[k].clone().map(|(t, axis)| Kept::Slice(t, axis));
            }
            let mut stacks = around.stacked.iter();
            let k = stacks.position(|(t, along)| is_it(t) && along.reverse == around.reversed)?;
            Some(Kept::Stack(k, around.stacked[k].1.axis.into()))
        };
        chosen(&graph, &mut terms, &mut rests, &|id| known(id).is_some());
        if terms.is_empty() {
            return Ok(all);
        }
        let mut new = Vec::new();
        for (id, _) in terms.iter().flat_map(|t| &t.factors) {
            if all.kept.iter().any(|(kept, _)| kept == id) {
                continue;
            }
            let kept = known(*id).unwrap_or_else(|| {
                new.push(*id);
                Kept::Stack(around.stacked.len() + new.len() - 1, 0)
            });
            all.kept.push((*id, kept));
        }
        for id in new {
            let element = tensor(&graph, id);
            match around.reversed {
                true => around.iteration.stack_reversed(&element, 0),
                false => around.iteration.stack(&element, 0),
            }
        }
        for of in 0..gradients.len() {
            if terms.iter().any(|t| t.of == of) {
                all.carried[of] = carried(&graph, rests.iter().filter(|r| r.of == of), all.dtypes[of])?;
            }
        }
        all.terms = terms;
        Ok(all)
    }

    /// The sum of a gradient over all iterations: `carried` is what went around, `results` are those of the loop.
    pub fn total(&self, of: usize, carried: Option<&Tensor>, results: &[Tensor]) -> Step<Option<Tensor>> {
        let mut total = carried.cloned();
        for term in self.terms.iter().filter(|t| t.of == of) {
            let time = term.factors.iter().flat_map(|f| &f.1).max().map_or(0, |l| l + 1);
            let mut factors = Vec::with_capacity(term.factors.len());
            for (id, labels) in &term.factors {
                let Some((_, kept)) = self.kept.iter().find(|(known, _)| known == id) else {
                    continue;
                };
                let (t, axis) = match kept {
                    Kept::Slice(t, axis) => (t, *axis),
                    Kept::Stack(k, axis) => (&results[*k], *axis),
                };
                let mut labels = labels.clone();
                labels.insert(axis, time);
                factors.push((t, labels));
            }
            let factors: Vec<(&Tensor, &[u16])> = factors.iter().map(|(t, labels)| (*t, &labels[..])).collect();
            let dtype = self.dtypes[of];
            let product = contract_over(Semiring::AddMul, &factors, &term.output, dtype, dtype)?;
            let part = gone_through(&product, &term.through)?;
            total = Some(match total {
                Some(total) => total.map2(ScalarOp::Add, &part)?,
                None => part,
            });
        }
        Ok(total)
    }
}

fn tensor(graph: &Graph, id: NodeId) -> Tensor {
    let ty = graph.with_ir(|ir| ir.ty(id).clone());
    Tensor::new(graph.clone(), id, ty)
}

/// By node of a body: whether iterations differ in it. The inputs from that number on are captures.
fn varying(ir: &Ir, captures: usize) -> Vec<bool> {
    let mut varies = vec![false; ir.len()];
    for (id, node) in ir.nodes() {
        varies[id.index()] = match &node.kind {
            NodeKind::Input { index, .. } => (*index as usize) < captures,
            _ => node.operands.iter().any(|o| varies[o.index()]),
        };
    }
    varies
}

/// The terms of a gradient: products and the rest of it.
fn parts(
    ir: &Ir,
    varies: &[bool],
    (of, gradient, dtype): (usize, NodeId, DType),
    terms: &mut Vec<Term>,
    rests: &mut Vec<Rest>,
) {
    let (first_term, first_rest) = (terms.len(), rests.len());
    // What is still to be taken apart, and what it goes through, the last first.
    let mut work: Vec<(NodeId, Vec<NodeKind>)> = vec![(gradient, Vec::new())];
    while let Some((id, mut through)) = work.pop() {
        if terms.len() + rests.len() + work.len() > first_term + first_rest + MAX_TERMS {
            terms.truncate(first_term);
            rests.truncate(first_rest);
            let through = Vec::new();
            rests.push(Rest {
                of,
                value: gradient,
                through,
            });
            return;
        }
        let node = ir.node(id);
        match &node.kind {
            NodeKind::Map(ScalarOp::Add) => {
                work.push((node.operands[1], through.clone()));
                work.push((node.operands[0], through));
                continue;
            }
            // The sum is wider.
            NodeKind::Convert(_) if ir.ty(node.operands[0]).dtype.is_float() => {
                work.push((node.operands[0], through));
                continue;
            }
            kind if is_linear(kind) => {
                through.push(kind.clone());
                work.push((node.operands[0], through));
                continue;
            }
            _ => {}
        }
        through.reverse();
        match product(ir, varies, id, dtype) {
            Some((factors, output)) => {
                let sum = ir.ty(id).elements();
                let bytes = sum.interval(ir).lo.saturating_mul(dtype.bytes() as i64);
                terms.push(Term {
                    of,
                    value: id,
                    factors,
                    output,
                    through,
                    carried_bytes: bytes.saturating_mul(3),
                });
            }
            None => rests.push(Rest { of, value: id, through }),
        }
    }
}

/// Whether a node of one operand makes sums of what it makes of the addends.
fn is_linear(kind: &NodeKind) -> bool {
    match kind {
        NodeKind::View(View::Pad { value, .. }) => *value == value.dtype().zero(),
        NodeKind::View(_) => true,
        NodeKind::Reduce { monoid, .. } => *monoid == Monoid::Add,
        _ => false,
    }
}

/// The factors of a product that can be taken out of the loop, and the labels of the result.
fn product(ir: &Ir, varies: &[bool], id: NodeId, dtype: DType) -> Option<(Vec<(NodeId, Labels)>, Labels)> {
    let node = ir.node(id);
    let NodeKind::Einsum {
        inputs,
        output,
        semiring: Semiring::AddMul,
        accumulator,
        ..
    } = &node.kind
    else {
        return None;
    };
    let fits =
        |&o: &NodeId| varies[o.index()] && ir.ty(o).dtype.is_float() && ir.ty(o).rank() < MAX_RANK && !is_kept(ir, o);
    let is_one = *accumulator == dtype && node.operands.len() > 1 && node.operands.iter().all(fits);
    let factors = node.operands.iter().copied().zip(inputs.iter().cloned());
    is_one.then(|| (factors.collect(), output.clone()))
}

/// Whether a value is what a loop stacks, seen through views.
fn is_kept(ir: &Ir, mut id: NodeId) -> bool {
    loop {
        let node = ir.node(id);
        match &node.kind {
            NodeKind::View(_) | NodeKind::Convert(_) | NodeKind::Copy => id = node.operands[0],
            NodeKind::Project(k) => {
                return match &ir.node(node.operands[0]).kind {
                    NodeKind::Loop(l) => *k as usize >= l.carried,
                    _ => false,
                };
            }
            _ => return false,
        }
    }
}

/// Leaves the terms that move fewer bytes outside than inside the loop; the others are among the rest. `is_free` says of which factors
/// nothing has to be kept.
fn chosen(graph: &Graph, terms: &mut Vec<Term>, rests: &mut Vec<Rest>, is_free: &dyn Fn(NodeId) -> bool) {
    let bytes = |id: NodeId| {
        if is_free(id) {
            return 0;
        }
        let elements = graph.with_ir(|ir| (ir.ty(id).elements().interval(ir).hi, ir.ty(id).dtype));
        // Written by the loop, and read behind it.
        elements.0.saturating_mul(elements.1.bytes() as i64).saturating_mul(2)
    };
    loop {
        let readers = |id: NodeId| terms.iter().filter(|t| t.factors.iter().any(|f| f.0 == id)).count() as i64;
        // What is kept for several is shared by them.
        let kept = |t: &Term| {
            let mut ids: Vec<NodeId> = t.factors.iter().map(|f| f.0).collect();
            ids.sort_unstable();
            ids.dedup();
            let share = ids.into_iter().map(|id| bytes(id) / readers(id).max(1));
            share.fold(0, i64::saturating_add)
        };
        let excess = terms.iter().enumerate().map(|(k, t)| (kept(t) - t.carried_bytes, k));
        let Some((_, worst)) = excess.filter(|(excess, _)| *excess > 0).max() else {
            return;
        };
        let term = terms.remove(worst);
        rests.push(Rest {
            of: term.of,
            value: term.value,
            through: term.through,
        });
    }
}

/// The sum of these parts of a gradient.
fn carried<'a>(graph: &Graph, rests: impl Iterator<Item = &'a Rest>, dtype: DType) -> Step<Option<Tensor>> {
    let mut sum: Option<Tensor> = None;
    for rest in rests {
        let part = gone_through(&tensor(graph, rest.value).to(dtype)?, &rest.through)?;
        sum = Some(match sum {
            Some(sum) => sum.map2(ScalarOp::Add, &part)?,
            None => part,
        });
    }
    Ok(sum)
}

/// What linear nodes make of a tensor.
fn gone_through(t: &Tensor, through: &[NodeKind]) -> Step {
    let mut made = t.clone();
    for kind in through {
        let mut kind = kind.clone();
        if let NodeKind::View(View::Pad { value, .. }) = &mut kind {
            *value = t.dtype().zero();
        }
        made = made.node(kind)?;
    }
    Ok(made)
}
