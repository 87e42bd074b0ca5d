//! Derivatives of regions: what their rule says.

use tlc_ir::graph::{Region, Rule};

use super::node::{Cotangents, zeros};
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
