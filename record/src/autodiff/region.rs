//! Derivatives of regions: what their rule says, and the transpose of that.

use tlc_ir::graph::{Region, Rule};

use super::node::{Cotangents, Differentiate, zeros};
use crate::graph::Tensor;
use crate::graph::scope::Step;

/// The cotangents of the operands, from those of the results.
pub(super) fn rule(
    region: &Region,
    results: &[Tensor],
    operands: &[Tensor],
    parts: &[(u32, Tensor)],
) -> Step<Cotangents> {
    let mut cotangents: Cotangents = vec![None; operands.len()];
    let (Rule::Custom(derivative), Some(graph)) = (&region.rule, operands.first().map(Tensor::graph)) else {
        return Ok(cotangents);
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

/// The tangents of the results, from those of the operands, of which there is one. The rule is linear in the cotangents `v`: what it
/// returns is `Jᵀv`. Then `J t` is the derivative of `Σ t * Jᵀv` by `v`: the rule is differentiated by its cotangents, as Townsend's
/// "A new trick for calculating Jacobian vector products" does (2017). Where it is not linear, that is the derivative at zeros.
pub(super) fn tangent(
    region: &Region,
    results: &[Tensor],
    operands: &[Tensor],
    tangents: &[Option<Tensor>],
    differentiate: Differentiate,
) -> Step<Vec<Option<Tensor>>> {
    let mut found = vec![None; results.len()];
    let (Rule::Custom(derivative), Some(graph)) = (&region.rule, operands.first().map(Tensor::graph)) else {
        return Ok(found);
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
