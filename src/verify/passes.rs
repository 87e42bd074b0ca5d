//! The graph passes one by one: which of them changed what the graph means, and where.

use tlc_ir::graph::{Graph, verify::verify as verify_graph};
use tlc_ir::interp::{self, Bounded, interpret, interpret_each, interpret_with_bounds};
use tlc_ir::{NodeId, NodeKind};
use tlc_passes::Options;
use tlc_passes::pipeline::{Pass, Pipeline, run_pass};
use tlc_passes::rewrite::einsum_path::PathDecision;

use super::{Case, Finding, VerifyError, guarded, verify};
use crate::compile::{CompileOptions, Machine};

/// A pass that changed what a graph means.
pub(super) struct Wrong {
    pub pass: Pass,
    /// The graph that it was given.
    pub before: Graph,
    /// What it made of it, if it made anything.
    pub after: Option<Graph>,
    /// Contraction orders that it chose.
    pub paths: Vec<PathDecision>,
    pub finding: Finding,
}

/// How the passes are run, and which.
pub(super) fn pass_options(options: &CompileOptions) -> Result<Options, Finding> {
    let refused = |e: &dyn std::fmt::Display| Finding::Refused(e.to_string());
    let machine = Machine::with_threads(options.threads).map_err(|e| refused(&e))?;
    let pipeline = match &options.passes {
        Some(names) => names.parse().map_err(|e| refused(&e))?,
        None => Pipeline::default(),
    };
    Ok(Options {
        target: machine.target().clone(),
        pipeline,
        max_memory_bytes: options.max_memory_bytes,
    })
}

/// What is wrong with what a pass made of a graph, if anything.
fn judge(
    pass: Pass,
    graph: &Graph,
    expected: &[Bounded],
    case: &Case,
    options: &CompileOptions,
    passes: &Options,
) -> (Option<Graph>, Vec<PathDecision>, Option<Finding>) {
    let mut paths = Vec::new();
    let ran = guarded(|| run_pass(pass, graph, passes, &mut paths).map_err(|e| Finding::Refused(e.to_string())));
    let after = match ran {
        Ok(after) => after,
        Err(finding) => return (None, paths, Some(finding)),
    };
    if let Some(error) = verify_graph(&after).first() {
        let text = format!("what it made is not valid: {error}");
        return (Some(after), paths, Some(Finding::Refused(text)));
    }
    let finding = match guarded(|| {
        interpret(&after, &case.inputs, &case.interpretation(options)).map_err(|e| Finding::Refused(e.to_string()))
    }) {
        Err(finding) => Some(finding),
        Ok(outputs) => outputs
            .iter()
            .zip(expected)
            .zip(after.outputs())
            .find_map(|((t, b), o)| {
                let mismatch = interp::compare(t, b).err()?;
                Some(Finding::Output(o.name.clone(), mismatch.into()))
            }),
    };
    (Some(after), paths, finding)
}

/// The first pass that changed what the graph means.
pub(super) fn first_wrong(case: &Case, options: &CompileOptions) -> Option<Wrong> {
    let passes = pass_options(options).ok()?;
    let expected = interpret_with_bounds(&case.graph, &case.inputs, &case.interpretation(options)).ok()?;
    let mut before = case.graph.clone();
    for &pass in &passes.pipeline.0 {
        let (after, paths, finding) = judge(pass, &before, &expected, case, options, &passes);
        if let Some(finding) = finding {
            return Some(Wrong {
                pass,
                before,
                after,
                paths,
                finding,
            });
        }
        before = after?;
    }
    None
}

/// The part of a graph that one node needs, with the node as its only output.
fn cone(graph: &Graph, node: NodeId) -> Option<Graph> {
    let name = graph.outputs().first()?.name.clone();
    super::edit::with_outputs(graph, &[(name, node)])
}

/// The first node of the graph that a wrong pass was given whose value is another one behind the pass.
pub(super) fn first_wrong_node(
    wrong: &Wrong,
    case: &Case,
    options: &CompileOptions,
) -> Option<(NodeId, Option<Graph>)> {
    let passes = pass_options(options).ok()?;
    for (id, node) in wrong.before.nodes() {
        if matches!(
            node.kind,
            NodeKind::Input { .. } | NodeKind::Const(_) | NodeKind::Data(_)
        ) {
            continue;
        }
        let Some(part) = cone(&wrong.before, id) else { continue };
        let Ok(expected) = interpret_with_bounds(&part, &case.inputs, &case.interpretation(options)) else {
            continue;
        };
        let (after, _, finding) = judge(wrong.pass, &part, &expected, case, options, &passes);
        if finding.is_some() {
            return Some((id, after));
        }
    }
    None
}

/// Whether the outputs differ only because a contraction is computed in another order where infinities, NaN or empty sums
/// meet: both orders are right there, and differ. In the written order there is nothing to excuse.
pub(super) fn only_regrouped(case: &Case, options: &CompileOptions) -> Result<bool, VerifyError> {
    let Some(wrong) = first_wrong(case, options) else {
        return Ok(false);
    };
    if wrong.pass != Pass::EinsumPath || !matches!(wrong.finding, Finding::Output(..)) || wrong.paths.is_empty() {
        return Ok(false);
    }
    let mut special = false;
    let settings = case.interpretation(options);
    interpret_each(&case.graph, &case.inputs, &settings, &mut |_, value| {
        let huge = |x: f64| !x.is_finite() || x.abs() >= f64::from(f32::MAX).sqrt();
        special |=
            value.is_empty() || (value.dtype().is_float() && (0..value.len()).any(|i| huge(value.get(i).as_f64())));
    })?;
    if !special {
        return Ok(false);
    }
    let names = match &options.passes {
        Some(names) => names.clone(),
        None => Pipeline::default().to_string(),
    };
    let written = names.split(',').filter(|p| p.trim() != Pass::EinsumPath.name());
    let written = CompileOptions {
        passes: Some(written.collect::<Vec<_>>().join(",")),
        ..options.clone()
    };
    Ok(verify(case, &written)?.is_right())
}
