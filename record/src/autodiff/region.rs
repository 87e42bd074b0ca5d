//! Derivatives of regions: what their rule says, and the transpose of that.
//!
//! Those of checkpoints are those of their bodies. Backwards, a loop of one iteration computes the body again and goes back through it:
//! nodes that do the same in one graph are one node, so what is computed again needs a graph of its own, and loops are such graphs which
//! no pass opens ([`Loop::is_fence`](tlc_ir::graph::Loop::is_fence)). A loop is planned apart from what is around it, so of the body's
//! values none lives longer than the loop. Along a direction, nothing is kept: the tangents are a checkpoint again, of what computes them.

use std::cell::RefCell;

use tlc_ir::graph::{Region, Rule};

use super::node::{Cotangents, Differentiate, zeros};
use super::repeat::Linearize;
use crate::graph::Tensor;
use crate::graph::scope::{Refusal, Step, op, record, refuse};
use crate::ops::region::{Derivative, Known, NoFunction};

/// The cotangents of the operands, from those of the results.
pub(super) fn rule(
    region: &Region,
    results: &[Tensor],
    operands: &[Tensor],
    wanted: &[bool],
    parts: &[(u32, Tensor)],
    differentiate: Differentiate,
) -> Step<Cotangents> {
    let mut cotangents: Cotangents = vec![None; operands.len()];
    let Some(graph) = operands.first().map(Tensor::graph) else {
        return Ok(cotangents);
    };
    let derivative = match &region.rule {
        Rule::Opaque => return Ok(cotangents),
        Rule::Custom(derivative) => derivative,
        Rule::Checkpoint => return again(region, operands, wanted, parts, differentiate),
    };
    let mut given: Vec<Tensor> = operands.iter().chain(results).cloned().collect();
    for (k, y) in results.iter().enumerate().filter(|(_, y)| y.dtype().is_float()) {
        given.push(match parts.iter().find(|(p, _)| *p as usize == k) {
            Some((_, d)) => d.clone(),
            None => zeros(graph, y.extents(), y.dtype())?,
        });
    }
    let made = graph.recorded_again(derivative, &region.symbols, &given)?;
    let floats = operands
        .iter()
        .zip(&mut cotangents)
        .filter(|(x, _)| x.dtype().is_float());
    floats.zip(made).for_each(|((_, slot), d)| *slot = Some(d));
    Ok(cotangents)
}

/// What `fast` computes, with the derivatives of `exact`, which computes the same in another way: for rules that select between formulas,
/// and are right where they select but not in how that changes.
pub(super) fn same_by_parts(
    name: &str,
    operands: &[&Tensor],
    fast: impl FnOnce(&[Tensor]) -> Step,
    exact: impl FnOnce(&[Tensor]) -> Step,
) -> Step {
    let function = |given: &[Tensor]| vec![op(name, &[&given[0]], || fast(given))];
    let derivative = |known: &Known| {
        let floats = known.operands.iter().filter(|x| x.dtype().is_float());
        let by: Vec<&Tensor> = floats.collect();
        let graph = known.operands[0].graph();
        let differentiate = || {
            let y = exact(&known.operands)?;
            super::derivatives(graph, &[&y], &[&known.cotangents[0]], &by)
        };
        record(graph, name, &by, &[], differentiate, |p| vec![p; by.len()])
    };
    let mut results = crate::ops::region::region(name, operands, function, Derivative::Custom(derivative));
    results.pop().map_or_else(|| refuse("no result"), Ok)
}

/// The cotangents of a checkpoint's operands that are asked for: the body, computed again in a loop of one iteration.
fn again(
    region: &Region,
    operands: &[Tensor],
    wanted: &[bool],
    parts: &[(u32, Tensor)],
    differentiate: Differentiate,
) -> Step<Cotangents> {
    let mut cotangents: Cotangents = vec![None; operands.len()];
    // The loop sees one tensor once, however often it is an operand.
    let first = |k: &usize| operands[..*k].iter().all(|x| x.id() != operands[*k].id());
    let asked = |k: &usize| wanted[*k] && operands[*k].dtype().is_float() && first(k);
    let asked: Vec<usize> = (0..operands.len()).filter(asked).collect();
    let repeat = operands[0].graph().repeat(1);
    let mut iteration = repeat.start();
    let inputs: Vec<Tensor> = operands.iter().map(|x| iteration.capture(x)).collect();
    let outputs = iteration
        .graph()
        .recorded_again(&region.body, &region.symbols, &inputs)?;
    let of: Vec<&Tensor> = parts.iter().map(|(k, _)| &outputs[*k as usize]).collect();
    let with: Vec<Tensor> = parts.iter().map(|(_, d)| iteration.capture(d)).collect();
    let by: Vec<&Tensor> = asked.iter().map(|&k| &inputs[k]).collect();
    let found = differentiate(iteration.graph(), &of, &with.iter().collect::<Vec<_>>(), &by)?;
    // What is stacked is written where it is to be: nothing that goes around has to begin as something.
    found.iter().for_each(|d| iteration.stack(d, 0));
    for (k, d) in asked.into_iter().zip(repeat.finish(iteration, vec![])) {
        cotangents[k] = Some(d.reshaped(operands[k].extents())?);
    }
    Ok(cotangents)
}

/// The tangents of the results, from those of the operands, of which there is one. The rule is linear in the cotangents `v`: what it
/// returns is `Jᵀv`. Then `J t` is the derivative of `Σ t * Jᵀv` by `v`: the rule is differentiated by its cotangents, as Townsend's
/// "A new trick for calculating Jacobian vector products" does (2017). Where it is not linear, that is the derivative at zeros.
pub(super) fn tangent(
    region: &Region,
    results: &[Tensor],
    operands: &[Tensor],
    tangents: &[Option<Tensor>],
    differentiate: Differentiate,
    linearize: Linearize,
) -> Step<Vec<Option<Tensor>>> {
    let mut found = vec![None; results.len()];
    let Some(graph) = operands.first().map(Tensor::graph) else {
        return Ok(found);
    };
    let derivative = match &region.rule {
        Rule::Opaque => return Ok(found),
        Rule::Custom(derivative) => derivative,
        Rule::Checkpoint => return along(region, operands, tangents, differentiate, linearize),
    };
    let floats: Vec<usize> = (0..results.len()).filter(|&k| results[k].dtype().is_float()).collect();
    let mut cotangents = Vec::with_capacity(floats.len());
    for &k in &floats {
        // A region is like no other node: nothing else is computed from these zeros.
        cotangents.push(zeros(graph, results[k].extents(), results[k].dtype())?.stop_gradient());
    }
    let given: Vec<Tensor> = operands.iter().chain(results).chain(&cotangents).cloned().collect();
    let made = graph.recorded_again(derivative, &region.symbols, &given)?;
    let inputs = operands.iter().zip(tangents).filter(|(x, _)| x.dtype().is_float());
    let known = made.iter().zip(inputs).filter_map(|(d, (_, t))| Some((d, t.as_ref()?)));
    let (of, with): (Vec<&Tensor>, Vec<&Tensor>) = known.unzip();
    let by: Vec<&Tensor> = cotangents.iter().collect();
    for (&k, t) in floats.iter().zip(differentiate(graph, &of, &with, &by)?) {
        found[k] = Some(t);
    }
    Ok(found)
}

/// The tangents of a checkpoint's results, which another checkpoint computes from operands and tangents.
fn along(
    region: &Region,
    operands: &[Tensor],
    tangents: &[Option<Tensor>],
    differentiate: Differentiate,
    linearize: Linearize,
) -> Step<Vec<Option<Tensor>>> {
    let moving: Vec<usize> = (0..operands.len()).filter(|&k| tangents[k].is_some()).collect();
    let all: Vec<&Tensor> = operands.iter().chain(tangents.iter().flatten()).collect();
    // By result of the region: which of those of the new one its tangent is.
    let places: RefCell<Vec<Option<usize>>> = RefCell::new(vec![]);
    let refused: RefCell<Option<Refusal>> = RefCell::new(None);
    let inside = |given: &[Tensor]| -> Step<Vec<Tensor>> {
        let graph = given[0].graph();
        let (x, t) = given.split_at(operands.len());
        let made = graph.recorded_again(&region.body, &region.symbols, x)?;
        let by: Vec<&Tensor> = moving.iter().map(|&k| &x[k]).collect();
        let with: Vec<&Tensor> = t.iter().take(by.len()).collect();
        let found = linearize(graph, &made.iter().collect::<Vec<_>>(), &by, &with, differentiate)?;
        let mut next = 0;
        let place = |t: &Option<Tensor>| {
            t.as_ref().map(|_| {
                next += 1;
                next - 1
            })
        };
        places.replace(found.iter().map(place).collect());
        Ok(found.into_iter().flatten().collect())
    };
    let function = |given: &[Tensor]| {
        inside(given).unwrap_or_else(|refusal| {
            refused.replace(Some(refusal));
            vec![]
        })
    };
    let made = crate::ops::region::region("jvp", &all, function, NoFunction::Checkpoint);
    if let Some(refusal) = refused.into_inner() {
        return Err(refusal);
    }
    let tangent = |place: Option<usize>| place.map(|k| made.get(k).cloned().map_or_else(|| refuse("no tangent"), Ok));
    places
        .into_inner()
        .into_iter()
        .map(|p| tangent(p).transpose())
        .collect()
}
