//! Breaks einsums into contractions of two operands, in the order that [`crate::einsum_path`] finds.
//!
//! Diagonals are taken first, labels that only one operand has are summed in it, then pairs are contracted. Intermediates
//! are carried in the accumulator dtype. A symbolic extent counts as a typical size, so that the order is fixed once.
//!
//! Terms are regrouped by the distributive law, as far as [`NodeKind::Einsum`] permits.

use tlc_ir::graph::{GraphError, Labels, Origin, Semiring};
use tlc_ir::text::einsum_labels;
use tlc_ir::{DType, Graph, Node, NodeId, NodeKind};

use super::sink_layout::add_canonical;
use super::{Context, Failure, Pass, Rebuilder};
use crate::access::{label_count, repeats};
use crate::einsum_path::{ContractionPath, PathError, PathOptions, contraction_path};

/// What a symbolic extent counts as when orders are compared, unless its range says less.
const TYPICAL_EXTENT: i64 = 64;

/// The path chosen for one einsum.
#[derive(Clone, Debug, PartialEq)]
pub struct PathDecision {
    /// The einsum, in the graph before the pass.
    pub node: NodeId,
    /// Its name in the graph that was compiled.
    pub value: String,
    /// The path.
    pub path: ContractionPath,
}

/// Why the pass failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum EinsumPathError {
    /// No path fits the memory limit.
    #[error("einsum {{{labels}}} at {origin}: {}", .source.in_bytes(*.element_bytes))]
    Path {
        /// The einsum's labels.
        labels: String,
        /// Where it was recorded.
        origin: Origin,
        /// Bytes of an intermediate's element.
        element_bytes: usize,
        /// Why.
        source: PathError,
    },
    /// A bug in the pass.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// Contraction orders.
pub struct EinsumPath;

impl Pass for EinsumPath {
    fn name(&self) -> &'static str {
        "einsum-path"
    }

    fn run(&self, graph: &Graph, context: &mut Context<'_>) -> Result<Graph, Failure> {
        let (graph, made) = run(graph, &PathOptions::default(), context.max_memory_bytes)?;
        context.paths.extend(made);
        Ok(graph)
    }
}

/// Rewrites every einsum of more than two operands, with diagonals, or with labels to sum first. No intermediate takes more
/// than `max_bytes`.
///
/// # Errors
/// [`EinsumPathError::Path`] if no order fits the limit, unless sizes are symbolic: then it is the one that needs least.
pub fn run(
    graph: &Graph,
    options: &PathOptions,
    max_bytes: Option<u64>,
) -> Result<(Graph, Vec<PathDecision>), EinsumPathError> {
    let mut decisions = Vec::new();
    let mut failure = None;
    let new = super::rebuild(graph, &mut |re, id, node, operands| {
        let NodeKind::Einsum {
            inputs,
            output,
            accumulator,
            ..
        } = &node.kind
        else {
            return re.keep(node, operands);
        };
        if inputs.len() < 2 || !needs_path(graph, node) {
            return re.keep(node, operands);
        }
        let element_bytes = accumulator.bytes();
        let options = PathOptions {
            max_intermediate: max_bytes.map(|b| b as f64 / element_bytes as f64),
            ..options.clone()
        };
        match rewrite(re, graph, node, operands, &options) {
            Ok((result, path)) => {
                let value = graph.value_name(id);
                decisions.push(PathDecision { node: id, value, path });
                Ok(result)
            }
            Err(Failed::Graph(e)) => Err(e),
            Err(Failed::Path(source)) => {
                failure.get_or_insert(EinsumPathError::Path {
                    labels: einsum_labels(inputs, output),
                    origin: node.origin.clone(),
                    element_bytes,
                    source,
                });
                re.keep(node, operands)
            }
        }
    })?;
    match failure {
        Some(e) => Err(e),
        None => Ok((new, decisions)),
    }
}

/// Why one einsum was not rewritten.
enum Failed {
    Path(PathError),
    Graph(GraphError),
}

impl From<GraphError> for Failed {
    fn from(e: GraphError) -> Failed {
        Failed::Graph(e)
    }
}

fn needs_path(graph: &Graph, node: &Node) -> bool {
    let NodeKind::Einsum {
        inputs,
        output,
        semiring,
        accumulator,
        ..
    } = &node.kind
    else {
        return false;
    };
    // Products do not distribute over a maximum when a factor may be negative, and sums that wrap do not distribute over
    // either extremum: such a contraction is one loop nest.
    let tropical = matches!(semiring, Semiring::MaxAdd | Semiring::MinAdd);
    // A word is no number: what adds words up has other bytes.
    if matches!(semiring, Semiring::MaxMul | Semiring::AddDot4) || (tropical && !accumulator.is_float()) {
        return false;
    }
    // A sum of no terms is the identity whatever the operands are; a sum of part of them could be infinite, or NaN.
    if node.operands.iter().any(|&o| graph.ty(o).shape.iter().any(|d| d.is(0))) {
        return false;
    }
    let lonely = inputs.iter().enumerate().any(|(k, of)| {
        of.iter()
            .any(|l| !output.contains(l) && !inputs.iter().enumerate().any(|(j, other)| j != k && other.contains(l)))
    });
    inputs.len() > 2 || inputs.iter().any(repeats) || lonely
}

fn rewrite(
    re: &mut Rebuilder,
    graph: &Graph,
    node: &Node,
    operands: &[NodeId],
    options: &PathOptions,
) -> Result<(NodeId, ContractionPath), Failed> {
    let NodeKind::Einsum {
        inputs,
        output,
        semiring,
        accumulator,
        dtype,
    } = &node.kind
    else {
        unreachable!("an einsum")
    };
    let with_dtype = |dtype: DType| NodeKind::Einsum {
        inputs: inputs.clone(),
        output: output.clone(),
        semiring: *semiring,
        accumulator: *accumulator,
        dtype,
    };
    let (wide, last) = (with_dtype(*accumulator), with_dtype(*dtype));
    let mut extents = vec![1u64; label_count(inputs)];
    let mut known = true;
    for (labels, &o) in inputs.iter().zip(&node.operands) {
        for (&l, d) in labels.iter().zip(&graph.ty(o).shape) {
            let range = d.interval(graph);
            known &= d.as_const().is_some();
            let typical = d
                .as_const()
                .unwrap_or_else(|| range.hi.min(TYPICAL_EXTENT.max(range.lo)));
            extents[l as usize] = typical.max(0) as u64;
        }
    }
    let mut values: Vec<NodeId> = operands.to_vec();
    let mut labels: Vec<Labels> = inputs.to_vec();
    // Diagonals.
    for (value, of) in values.iter_mut().zip(labels.iter_mut()) {
        let mut once = Labels::new();
        of.iter().for_each(|l| {
            if !once.contains(l) {
                once.push(*l)
            }
        });
        if once.len() < of.len() {
            let kind = with_dtype(re.graph.ty(*value).dtype);
            *value = add_canonical(re, &kind, vec![of.clone()], once.clone(), &[*value])?;
            *of = once;
        }
    }
    let lists: Vec<Vec<u16>> = labels.iter().map(|l| l.to_vec()).collect();
    let found = contraction_path(&lists, output, &extents, options);
    let path = match found {
        // The sizes are no call's: each call is held to the limit by its own, with the order that needs least.
        Err(PathError::MemoryLimit { smallest, .. }) if !known => {
            let options = PathOptions {
                max_intermediate: Some(smallest),
                ..options.clone()
            };
            contraction_path(&lists, output, &extents, &options)
        }
        found => found,
    }
    .map_err(Failed::Path)?;
    for r in &path.reductions {
        let kept: Labels = r.kept.as_slice().into();
        values[r.operand] = add_canonical(
            re,
            &wide,
            vec![labels[r.operand].clone()],
            kept.clone(),
            &[values[r.operand]],
        )?;
        labels[r.operand] = kept;
    }
    for (k, step) in path.steps.iter().enumerate() {
        let (a, b) = step.operands;
        let kind = if k + 1 == path.steps.len() { &last } else { &wide };
        let result: Labels = step.result.as_slice().into();
        let pair = vec![Labels::from_slice(&step.lhs), Labels::from_slice(&step.rhs)];
        let value = add_canonical(re, kind, pair, result.clone(), &[values[a], values[b]])?;
        values.push(value);
        labels.push(result);
    }
    let value = *values.last().expect("an einsum has operands");
    Ok((value, path))
}
