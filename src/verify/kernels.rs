//! A cluster at each stage of its way to machine code, run by the kernel interpreter on the values that it is to read.

use std::sync::Arc;

use tlc_ir::binding::bind_symbols;
use tlc_ir::interp::{self, Bounded, interpret_each, interpret_each_with_bounds};
use tlc_ir::kernel::interp::interpret as interpret_kernel;
use tlc_ir::kernel::{Access, Bind, Op, Stmt, visit};
use tlc_ir::{DType, Graph, HostTensor, Kernel, NodeId};
use tlc_passes::Compiled;
use tlc_passes::cluster::{Cluster, ClusterKind, Clusters};
use tlc_passes::lower::{Arg, Nest, lower};
use tlc_passes::schedule::{Applied, apply};

use super::{Case, guarded};
use crate::compile::CompileOptions;

/// Every value of a graph, and how far an implementation may be from it.
pub(super) struct Meaning {
    /// By node, for those that an output needs.
    pub values: Vec<Option<HostTensor>>,
    pub bounded: Vec<Option<Bounded>>,
    pub symbols: Vec<i64>,
}

impl Meaning {
    pub fn of(graph: &Graph, case: &Case, options: &CompileOptions) -> Option<Meaning> {
        let settings = case.interpretation(options);
        let mut values = vec![None; graph.len()];
        let mut bounded = vec![None; graph.len()];
        interpret_each(graph, &case.inputs, &settings, &mut |id, value| {
            values[id.index()] = Some(value.clone());
        })
        .ok()?;
        interpret_each_with_bounds(graph, &case.inputs, &settings, &mut |_| true, &mut |id, value| {
            bounded[id.index()] = Some(value);
            None
        })
        .ok()?;
        let types: Vec<(DType, &[usize])> = case.inputs.iter().map(|t| (t.dtype(), t.shape())).collect();
        let symbols = bind_symbols(graph, &types, &settings.symbols).ok()?;
        Some(Meaning {
            values,
            bounded,
            symbols,
        })
    }

    fn bounded(&self, node: NodeId) -> Option<&Bounded> {
        self.bounded[node.index()].as_ref()
    }
}

/// A kernel with what it runs on.
struct Bound {
    kernel: Arc<Kernel>,
    args: Vec<Arg>,
    symbols: Vec<i64>,
}

impl Bound {
    fn of(nest: Nest, meaning: &Meaning) -> Bound {
        Bound {
            kernel: Arc::new(nest.kernel),
            args: nest.args,
            symbols: meaning.symbols.clone(),
        }
    }
}

/// Runs the kernels of one cluster one after another; returns what is wrong with what they leave.
fn wrong(meaning: &Meaning, cluster: &Cluster, kernels: &[Bound]) -> Option<String> {
    let mut written: Vec<(Arg, HostTensor)> = Vec::new();
    for bound in kernels {
        let mut buffers = Vec::new();
        for (&arg, param) in bound.args.iter().zip(&bound.kernel.params) {
            let before = written.iter().find(|(a, _)| *a == arg).map(|(_, t)| t.clone());
            let fresh = || match (arg, param.access) {
                (Arg::Value(node), Access::Read) => meaning.values[node.index()].clone(),
                (Arg::Value(node), _) => garbage(meaning.values[node.index()].as_ref()?),
                (Arg::Temporary(_), _) => {
                    let len = usize::try_from(param.len.eval_symbols(&bound.symbols)?).ok()?;
                    garbage(&HostTensor::zeros(param.dtype, &[len]).ok()?)
                }
            };
            let Some(tensor) = before.or_else(fresh) else {
                return Some(format!("{arg:?} has no value"));
            };
            buffers.push(tensor);
        }
        match guarded(|| Ok(interpret_kernel(&bound.kernel, &mut buffers, &bound.symbols))) {
            Ok(Ok(())) => {}
            Ok(Err(e)) => return Some(e.to_string()),
            Err(finding) => return Some(finding.to_string()),
        }
        for ((&arg, param), tensor) in bound.args.iter().zip(&bound.kernel.params).zip(buffers) {
            if param.access != Access::Read {
                written.retain(|(a, _)| *a != arg);
                written.push((arg, tensor));
            }
        }
    }
    cluster.stored.iter().find_map(|&root| {
        let Some((_, found)) = written.iter().find(|(a, _)| *a == Arg::Value(root)) else {
            return Some(format!("{root} is not written"));
        };
        let mismatch = interp::compare(found, meaning.bounded(root)?).err()?;
        Some(format!("{root}: {mismatch}"))
    })
}

/// Memory that nobody has written: bytes of ones.
fn garbage(like: &HostTensor) -> Option<HostTensor> {
    let bytes = vec![0xFF; like.bytes().len()];
    let bytes = if like.dtype() == DType::Bool {
        vec![1; bytes.len()]
    } else {
        bytes
    };
    HostTensor::from_bytes(like.dtype(), like.shape(), &bytes).ok()
}

/// The kernels of a cluster as lowering makes them.
fn naive(graph: &Graph, cluster: &Cluster, clusters: &Clusters, meaning: &Meaning) -> Vec<Bound> {
    lower(graph, cluster, &clusters.is_root, tlc_ir::Precision::Exact, None)
        .into_iter()
        .map(|nest| Bound::of(nest, meaning))
        .collect()
}

/// The first cluster that lowering makes a wrong nest of, and what is wrong.
pub(super) fn wrong_nest(graph: &Graph, clusters: &Clusters, meaning: &Meaning) -> Option<(usize, String)> {
    clusters.clusters.iter().enumerate().find_map(|(number, cluster)| {
        if matches!(cluster.kind, ClusterKind::Gemm(_)) {
            return None;
        }
        match guarded(|| Ok(naive(graph, cluster, clusters, meaning))) {
            Ok(kernels) => wrong(meaning, cluster, &kernels).map(|text| (number, text)),
            Err(finding) => Some((number, finding.to_string())),
        }
    })
}

/// The stage at which a right nest becomes a wrong kernel.
pub(super) enum WrongKernel {
    /// A directive of the schedule.
    Directive(Applied),
    /// Moving what does not change out of loops.
    Hoisting,
    /// Making statements that the target has.
    Legalization(String),
}

/// The first kernel that scheduling or legalization spoils: its cluster, the stage, and what is wrong.
pub(super) fn wrong_kernel(compiled: &Compiled, meaning: &Meaning) -> Option<(usize, WrongKernel, String)> {
    let planned = &compiled.planned;
    let (graph, clusters) = (&compiled.graph, &compiled.clusters);
    let all = planned.plan.launches();
    let values_of = |launch: &tlc_ir::plan::Launch| -> Option<Vec<i64>> {
        launch
            .symbols
            .iter()
            .map(|e| e.eval_symbols(&meaning.symbols))
            .collect()
    };
    for (number, cluster) in clusters.clusters.iter().enumerate() {
        let own: Vec<usize> = (0..all.len())
            .filter(|&k| planned.launches[k].cluster == number)
            .collect();
        if own.is_empty() {
            continue;
        }
        let mut kernels = naive(graph, cluster, clusters, meaning);
        for (position, &k) in own.iter().enumerate() {
            let report = &planned.launches[k];
            let symbols = values_of(all[k])?;
            let nest = kernels[position].kernel.clone();
            kernels[position] = Bound {
                kernel: report.scheduled.clone(),
                args: kernels[position].args.clone(),
                symbols: symbols.clone(),
            };
            if let Some(text) = wrong(meaning, cluster, &kernels) {
                kernels[position].symbols = meaning.symbols.clone();
                let judge = |kernel: Kernel| {
                    kernels[position].kernel = Arc::new(kernel);
                    wrong(meaning, cluster, &kernels)
                };
                let (stage, text) = wrong_directive(&nest, &report.schedule.applied, text, judge);
                return Some((number, stage, text));
            }
            kernels[position].kernel = Arc::new(planned.plan.kernels[report.kernel.0 as usize].clone());
            if let Some(text) = wrong(meaning, cluster, &kernels) {
                let what = operations(&report.scheduled);
                return Some((number, WrongKernel::Legalization(what), text));
            }
            // The next kernel of the cluster is judged behind the nest, which is right.
            kernels[position] = Bound {
                kernel: nest,
                args: kernels[position].args.clone(),
                symbols: meaning.symbols.clone(),
            };
        }
    }
    None
}

/// The directive that spoils a nest, and what is wrong behind it. `text` is what is wrong with the scheduled kernel.
fn wrong_directive(
    nest: &Kernel,
    directives: &[Applied],
    text: String,
    mut judge: impl FnMut(Kernel) -> Option<String>,
) -> (WrongKernel, String) {
    let mut behind = Vec::with_capacity(directives.len());
    let mut kernel = nest.clone();
    for applied in directives {
        // What is refused changes nothing.
        let _ = apply(&mut kernel, &applied.directive);
        behind.push(kernel.clone());
    }
    // Lanes are serial loops at first: between the directive that binds them and the one that gives each an accumulator of
    // its own they would be in each other's way.
    for (applied, kernel) in directives.iter().zip(&behind) {
        let mut serial = kernel.clone();
        visit::walk_mut(&mut serial.body, &mut |s| {
            if let Stmt::Loop { bind, .. } = s
                && *bind == Bind::Lanes
            {
                *bind = Bind::Serial;
            }
        });
        if let Some(text) = judge(serial) {
            return (WrongKernel::Directive(applied.clone()), text);
        }
    }
    let is_wrong: Vec<Option<String>> = behind.into_iter().map(&mut judge).collect();
    match is_wrong.iter().rposition(Option::is_none) {
        // Right with the last directive: what follows is not a directive.
        Some(last) if last + 1 == directives.len() => (WrongKernel::Hoisting, text),
        last => {
            let first = last.map_or(0, |l| l + 1);
            match (directives.get(first), is_wrong.into_iter().nth(first).flatten()) {
                (Some(applied), Some(text)) => (WrongKernel::Directive(applied.clone()), text),
                _ => (WrongKernel::Hoisting, text),
            }
        }
    }
}

/// What a kernel computes, by name: `exp, add, reduce max`.
fn operations(kernel: &Kernel) -> String {
    let mut names: Vec<String> = Vec::new();
    for s in kernel.statements() {
        let name = match s {
            Stmt::Let { op: Op::Map(op, _), .. } => op.name().to_string(),
            Stmt::Let {
                op: Op::Convert(to, _), ..
            } => format!("convert to {to}"),
            Stmt::Accumulate { monoid, .. } => format!("accumulate {}", monoid.name()),
            _ => continue,
        };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.join(", ")
}
