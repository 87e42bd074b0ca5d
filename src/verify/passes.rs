//! The graph passes one by one: which of them changed what the graph means, and where.

use std::cmp::Ordering;

use tlc_ir::graph::Graph;
use tlc_ir::interp::{Bounded, Mismatch, interpret_each, interpret_with_bounds};
use tlc_ir::{DType, NodeId, NodeKind, Scalar};
use tlc_passes::Options;
use tlc_passes::pipeline::{Pass, Pipeline, run_pass};
use tlc_passes::rewrite::einsum_path::PathDecision;

use super::compare::in_float;
use super::{Case, Finding, VerifyError, guarded, verify};
use crate::compile::{CompileOptions, Machine};

/// A pass that changed what a graph means.
pub(super) struct Wrong {
    pub pass: &'static dyn Pass,
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
        pipeline,
        max_memory_bytes: options.max_memory_bytes,
        precision: options.precision,
        verify_passes: true,
        ..Options::new(machine.target().clone())
    })
}

/// What a pass made of a graph.
#[derive(Default)]
struct Judged {
    after: Option<Graph>,
    paths: Vec<PathDecision>,
    /// What is wrong with it, if anything.
    finding: Option<Finding>,
}

/// Runs a pass on a graph, and compares what the two mean.
fn judge(pass: &dyn Pass, graph: &Graph, case: &Case, options: &CompileOptions, passes: &Options) -> Judged {
    let mut judged = Judged::default();
    let paths = &mut judged.paths;
    let ran = guarded(|| run_pass(pass, graph, passes, paths).map_err(|e| Finding::Refused(e.to_string())));
    let after = match ran {
        Ok(after) => after,
        Err(finding) => {
            judged.finding = Some(finding);
            return judged;
        }
    };
    judged.finding = other_meaning(graph, &after, pass.rounds(), case, options);
    judged.after = Some(after);
    judged
}

/// True if the graphs are the same, node for node.
fn same(a: &Graph, b: &Graph) -> bool {
    let nodes = a.nodes().zip(b.nodes());
    let outputs = a.outputs().iter().zip(b.outputs());
    a.len() == b.len()
        && nodes
            .into_iter()
            .all(|((_, x), (_, y))| x.kind == y.kind && x.operands == y.operands)
        && outputs.into_iter().all(|(x, y)| x.node == y.node)
}

/// The output that the passes gave another meaning, if there is one. `last` is the graph that was compiled. Not every pass is
/// judged by itself: those that do not round are judged together.
pub(super) fn changed_meaning(case: &Case, options: &CompileOptions, last: &Graph) -> Option<Finding> {
    let passes = pass_options(options).ok()?;
    let mut known = case.graph.clone();
    let mut graph = case.graph.clone();
    let advance = |known: &mut Graph, graph: &Graph, rounds: bool| -> Option<Finding> {
        if same(known, graph) {
            return None;
        }
        let before = std::mem::replace(known, graph.clone());
        other_meaning(&before, graph, rounds, case, options)
    };
    for &pass in &passes.pipeline.0 {
        // What fails here failed when the case was compiled.
        let after =
            guarded(|| run_pass(pass, &graph, &passes, &mut Vec::new()).map_err(|e| Finding::Refused(e.to_string())));
        let after = after.ok()?;
        if pass.rounds() {
            let before = advance(&mut known, &graph, false);
            if let Some(finding) = before.or_else(|| advance(&mut known, &after, true)) {
                return Some(finding);
            }
        }
        graph = after;
    }
    advance(&mut known, last, false)
}

/// What a graph means: with the bounds of its own dtypes, or with all floats in f64, whose bounds are those of f64.
fn meaning_of(graph: &Graph, fine: bool, case: &Case, options: &CompileOptions) -> Result<Vec<Bounded>, Finding> {
    let refused = |e: &dyn std::fmt::Display| Finding::Refused(e.to_string());
    let part = Case {
        graph: graph.clone(),
        inputs: case.inputs.clone(),
        symbols: case.symbols.clone(),
    };
    let part = match fine {
        true => in_float(&part, DType::F64).map_err(|e| refused(&e))?,
        false => part,
    };
    let settings = case.interpretation(options);
    guarded(|| interpret_with_bounds(&part.graph, &part.inputs, &settings).map_err(|e| refused(&e)))
}

/// The first output to which `after` gives another meaning than `before`. Sound rewrites differ in how f64 rounds; one that
/// itself `rounds` may use the bounds of the graph's own dtypes.
fn other_meaning(
    before: &Graph,
    after: &Graph,
    rounds: bool,
    case: &Case,
    options: &CompileOptions,
) -> Option<Finding> {
    let meanings = || {
        Ok((
            meaning_of(before, !rounds, case, options)?,
            meaning_of(after, !rounds, case, options)?,
        ))
    };
    let (expected, found) = match meanings() {
        Ok(meanings) => meanings,
        Err(finding) => return Some(finding),
    };
    let outputs = after.outputs().iter().zip(&found).zip(&expected);
    outputs.into_iter().find_map(|((o, a), b)| {
        let mismatch = differs(a, b)?;
        Some(Finding::Meaning(o.name.clone(), mismatch.into()))
    })
}

/// Whether two evaluations are further apart than their bounds.
fn differs(found: &Bounded, expected: &Bounded) -> Option<Mismatch> {
    if (found.dtype, &found.shape) != (expected.dtype, &expected.shape) {
        return Some(Mismatch::Type {
            expected: (expected.dtype, expected.shape.clone()),
            found: (found.dtype, found.shape.clone()),
        });
    }
    let mut outside = (0..found.value.len()).filter(|&i| {
        let (x, y) = (found.value[i], expected.value[i]);
        let error = found.error[i] + expected.error[i];
        if error == f64::INFINITY {
            return false;
        }
        let rounding = 4.0 * f64::EPSILON * found.magnitude[i].abs().max(expected.magnitude[i].abs());
        match (&found.exact, &expected.exact) {
            (Some(a), Some(b)) => a.get(i) != b.get(i),
            _ if x == y || (x.is_nan() && y.is_nan()) => false,
            // A NaN is near nothing.
            _ => (x - y)
                .abs()
                .partial_cmp(&(error + rounding))
                .is_none_or(Ordering::is_gt),
        }
    });
    let first = outside.next()?;
    let count = 1 + outside.count();
    let text = |b: &Bounded| match &b.exact {
        Some(t) => t.get(first),
        None => Scalar::from_f64(DType::F64, b.value[first]),
    };
    Some(Mismatch::Element {
        index: super::compare::index_of(first, &found.shape),
        actual: text(found),
        expected: text(expected).to_string(),
        error: found.error[first] + expected.error[first],
        magnitude: expected.magnitude[first],
        count,
        of: found.value.len(),
    })
}

/// The first pass that changed what the graph means.
pub(super) fn first_wrong(case: &Case, options: &CompileOptions) -> Option<Wrong> {
    let passes = pass_options(options).ok()?;
    let mut before = case.graph.clone();
    for &pass in &passes.pipeline.0 {
        let Judged { after, paths, finding } = judge(pass, &before, case, options, &passes);
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
        let judged = judge(wrong.pass, &part, case, options, &passes);
        if judged.finding.is_some() {
            return Some((id, judged.after));
        }
    }
    None
}

/// The first pass that chose contraction orders.
fn regrouping(case: &Case, options: &CompileOptions) -> Option<&'static dyn Pass> {
    let passes = pass_options(options).ok()?;
    let mut graph = case.graph.clone();
    for &pass in &passes.pipeline.0 {
        let mut paths = Vec::new();
        let ran = guarded(|| run_pass(pass, &graph, &passes, &mut paths).map_err(|e| Finding::Refused(e.to_string())));
        if !paths.is_empty() {
            return Some(pass);
        }
        graph = ran.ok()?;
    }
    None
}

/// Whether the outputs differ only because a contraction is computed in another order where infinities or empty sums meet,
/// as [`NodeKind::Einsum`](tlc_ir::NodeKind::Einsum) permits. In the written order there is nothing to excuse.
pub(super) fn only_regrouped(case: &Case, options: &CompileOptions) -> Result<bool, VerifyError> {
    let pass = match first_wrong(case, options) {
        Some(wrong) if matches!(wrong.finding, Finding::Meaning(..)) && !wrong.paths.is_empty() => Some(wrong.pass),
        Some(_) => None,
        // A sum that may overflow where it is taken before the product has no bounds there, and so no pass is wrong.
        None => regrouping(case, options),
    };
    let Some(pass) = pass else { return Ok(false) };
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
    let written = names.split(',').filter(|p| p.trim() != pass.name());
    let written = CompileOptions {
        passes: Some(written.collect::<Vec<_>>().join(",")),
        ..options.clone()
    };
    Ok(verify(case, &written)?.is_right())
}
