//! The pipeline: which passes run, in which order, and what they decided.
//!
//! The optional graph passes are data: a comma-separated list of names, which are also the names on the command line, in
//! tests and of tracing spans. Any subset in any order keeps every result. What follows them is fixed: own-outputs,
//! cluster, lower, schedule, legalize, memory.

use std::fmt;
use std::str::FromStr;

use tlc_ir::graph::GraphError;
use tlc_ir::index::IndexExpr;
use tlc_ir::kernel::Kernel;
use tlc_ir::{Graph, NodeId, Target};

use crate::cluster::{Clusters, cluster};
use crate::einsum_path::PathOptions;
use crate::legalize::legalize;
use crate::lower::{lower, lower_unstaged};
use crate::planner::{Planned, cluster_label, compact_symbols, plan};
use crate::rewrite::einsum_path::{EinsumPathError, PathDecision};
use crate::rewrite::{
    bodies, canonicalize, cse, dce, einsum_path, fold, hoist, own_outputs, pack, sink_layout, split_reduce,
};
use crate::schedule::{MAX_SHARED_BYTES, Schedule, schedule_gpu, shared_bytes};

/// An optional graph-to-graph pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Pass {
    /// Small directional rewrites.
    Canonicalize,
    /// Constant folding.
    Fold,
    /// Common subexpressions.
    Cse,
    /// Dead code.
    Dce,
    /// Contraction orders.
    EinsumPath,
    /// Permutations and broadcasts into einsum labels.
    SinkLayout,
    /// Long reductions in two stages.
    SplitReduce,
    /// What every iteration of a loop computes alike.
    Hoist,
    /// Operands of products copied so that their summed axes lie together, or constant ones so that they are never copied again.
    Pack,
}

impl Pass {
    /// Every optional pass.
    pub const ALL: [Pass; 9] = [
        Pass::Canonicalize,
        Pass::Fold,
        Pass::Cse,
        Pass::Dce,
        Pass::EinsumPath,
        Pass::SinkLayout,
        Pass::SplitReduce,
        Pass::Hoist,
        Pass::Pack,
    ];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Pass::Canonicalize => "canonicalize",
            Pass::Fold => "fold",
            Pass::Cse => "cse",
            Pass::Dce => "dce",
            Pass::EinsumPath => "einsum-path",
            Pass::SinkLayout => "sink-layout",
            Pass::SplitReduce => "split-reduce",
            Pass::Hoist => "hoist",
            Pass::Pack => "pack",
        }
    }
}

/// A list of optional passes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pipeline(pub Vec<Pass>);

impl Default for Pipeline {
    fn default() -> Pipeline {
        Pipeline(vec![
            Pass::Canonicalize,
            Pass::Fold,
            Pass::SinkLayout,
            Pass::EinsumPath,
            Pass::Cse,
            Pass::Dce,
            Pass::SplitReduce,
            Pass::Hoist,
            Pass::Pack,
        ])
    }
}

impl FromStr for Pipeline {
    type Err = PassError;
    fn from_str(text: &str) -> Result<Pipeline, PassError> {
        let names = text.split(',').map(str::trim).filter(|n| !n.is_empty());
        let find = |name: &str| {
            Pass::ALL
                .into_iter()
                .find(|p| p.name() == name)
                .ok_or_else(|| PassError::UnknownPass { name: name.into() })
        };
        names.map(find).collect::<Result<_, _>>().map(Pipeline)
    }
}

impl fmt::Display for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.iter().map(|p| p.name()).collect::<Vec<_>>().join(","))
    }
}

/// What the compiler may do, and for which machine.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Options {
    /// The machine.
    pub target: Target,
    /// Optional passes.
    pub pipeline: Pipeline,
    /// The most bytes that any einsum intermediate may have.
    pub max_memory_bytes: Option<u64>,
}

/// Why compilation failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PassError {
    /// No such pass.
    #[error("unknown pass `{name}`; expected {}", Pass::ALL.map(|p| p.name()).join(", "))]
    UnknownPass {
        /// The name.
        name: String,
    },
    /// A pass made a graph that does not type: a bug.
    #[error("pass {pass}: {source}")]
    Pass {
        /// The pass.
        pass: &'static str,
        /// What the builder said.
        source: Box<GraphError>,
    },
    /// No contraction order fits the memory limit.
    #[error(transparent)]
    EinsumPath(#[from] EinsumPathError),
}

/// Everything that compilation decided.
pub struct Compiled {
    /// The graph after the passes.
    pub graph: Graph,
    /// Contraction orders.
    pub paths: Vec<PathDecision>,
    /// Clusters and fusion decisions.
    pub clusters: Clusters,
    /// The plan, schedules and memory decisions.
    pub planned: Planned,
}

/// Runs one optional pass, over bodies of loops first.
///
/// # Errors
/// [`PassError`], naming the pass.
pub fn run_pass(
    pass: Pass,
    graph: &Graph,
    options: &Options,
    paths: &mut Vec<PathDecision>,
) -> Result<Graph, PassError> {
    rewritten_in(pass, graph, options, paths, false)
}

/// As [`run_pass`]; `inside` a loop, which copies nothing for later calls.
fn rewritten_in(
    pass: Pass,
    graph: &Graph,
    options: &Options,
    paths: &mut Vec<PathDecision>,
    inside: bool,
) -> Result<Graph, PassError> {
    let made = rewritten(pass, graph, options, paths, inside)?;
    #[cfg(feature = "seeded-faults")]
    let made = crate::faults::after_pass(pass, graph, made);
    Ok(made)
}

fn rewritten(
    pass: Pass,
    graph: &Graph,
    options: &Options,
    paths: &mut Vec<PathDecision>,
    inside: bool,
) -> Result<Graph, PassError> {
    let _span = tracing::info_span!("pass", name = pass.name()).entered();
    let wrap = |source: GraphError| PassError::Pass {
        pass: pass.name(),
        source: source.into(),
    };
    let with_bodies = bodies(graph, wrap, &mut |body| rewritten_in(pass, body, options, paths, true))?;
    let graph = with_bodies.as_ref().unwrap_or(graph);
    let panels = options.target.panel_elements;
    match pass {
        Pass::Canonicalize => canonicalize::run(graph).map_err(wrap),
        Pass::Fold => fold::run(graph).map_err(wrap),
        Pass::Cse => cse::run(graph).map_err(wrap),
        Pass::Dce => dce::run(graph).map_err(wrap),
        Pass::SinkLayout => sink_layout::run(graph).map_err(wrap),
        Pass::SplitReduce => split_reduce::run(graph).map_err(wrap),
        Pass::Hoist => hoist::run(graph, panels).map_err(wrap),
        Pass::Pack => pack::run(graph, if inside { 0 } else { panels }).map_err(wrap),
        Pass::EinsumPath => {
            let (graph, made) = einsum_path::run(graph, &PathOptions::default(), options.max_memory_bytes)?;
            paths.extend(made);
            Ok(graph)
        }
    }
}

/// Compiles a verified graph to a plan.
///
/// # Errors
/// [`PassError`].
pub fn compile(graph: &Graph, options: &Options) -> Result<Compiled, PassError> {
    let mut paths = Vec::new();
    let mut current = None;
    for &pass in &options.pipeline.0 {
        current = Some(run_pass(pass, current.as_ref().unwrap_or(graph), options, &mut paths)?);
    }
    let owned = own_outputs::run(current.as_ref().unwrap_or(graph)).map_err(|source| PassError::Pass {
        pass: "own-outputs",
        source: source.into(),
    })?;
    let mut clusters = {
        let _span = tracing::info_span!("pass", name = "cluster").entered();
        cluster(&owned, &options.target)
    };
    let planned = {
        let _span = tracing::info_span!("pass", name = "plan").entered();
        plan(&owned, &mut clusters, &options.target)
    };
    Ok(Compiled {
        graph: owned,
        paths,
        clusters,
        planned,
    })
}

/// A kernel for a GPU, as part of a compiled graph.
#[derive(Clone, Debug)]
pub struct GpuKernel {
    /// What it computes, for reports.
    pub label: String,
    /// The legal kernel, its body one loop over blocks.
    pub kernel: Kernel,
    /// The node whose value each parameter holds.
    pub args: Vec<NodeId>,
    /// Values of its symbols, over the graph's.
    pub symbols: Vec<IndexExpr>,
    /// What was done to the nest.
    pub schedule: Schedule,
}

/// The kernels of a graph's clusters for a GPU, in order of execution. Library products have none.
pub fn gpu_kernels(graph: &Graph, clusters: &Clusters) -> Vec<GpuKernel> {
    let mut out = Vec::new();
    for c in &clusters.clusters {
        let label = cluster_label(graph, c);
        let mut unstaged = lower_unstaged(graph, c, &clusters.is_root).into_iter();
        for mut nest in lower(graph, c, &clusters.is_root) {
            let again = unstaged.next();
            let mut symbols = compact_symbols(&mut nest.kernel);
            let (mut kernel, mut schedule) = schedule_gpu(&nest);
            if shared_bytes(&kernel).is_none_or(|b| b > MAX_SHARED_BYTES)
                && let Some(mut again) = again
            {
                // A row too long for shared memory: what two phases need is computed twice.
                symbols = compact_symbols(&mut again.kernel);
                (kernel, schedule) = schedule_gpu(&again);
                nest = again;
            }
            legalize(&mut kernel);
            out.push(GpuKernel {
                label: label.clone(),
                kernel,
                args: nest.args,
                symbols,
                schedule,
            });
        }
    }
    out
}
