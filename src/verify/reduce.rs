//! A small case that fails as a large one does: delta debugging (Zeller and Hildebrandt, "Simplifying and isolating
//! failure-inducing input", TSE 2002) over outputs, nodes, sizes and constants.
//!
//! The law: what comes out verifies as a graph, and fails. Each change is kept only if the case still fails with it, so
//! that the result fails by construction; when the budget is spent, the best case so far is the result.

use std::time::{Duration, Instant};

use rustc_hash::{FxHashMap, FxHashSet};
use tlc_ir::graph::verify::verify;
use tlc_ir::index::IndexExpr;
use tlc_ir::interp::interpret_each;
use tlc_ir::{DType, Graph, HostTensor, NodeId, NodeKind};

use super::Case;
use super::edit::{Change, Edit, Resize};
use crate::compile::CompileOptions;

/// How long to search.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// The most time.
    pub time: Duration,
    /// The most cases to test.
    pub tests: usize,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget {
            time: Duration::from_secs(60),
            tests: 4000,
        }
    }
}

/// Makes a failing case smaller. `fails` says whether a case fails as the first one does; it is asked of valid cases only.
pub fn reduce(case: &Case, budget: Budget, fails: &mut dyn FnMut(&Case) -> bool) -> Case {
    let mut reducer = Reducer {
        best: case.clone(),
        until: Instant::now() + budget.time,
        left: budget.tests,
        fails,
    };
    reducer.run();
    reducer.best
}

struct Reducer<'f> {
    best: Case,
    until: Instant,
    left: usize,
    fails: &'f mut dyn FnMut(&Case) -> bool,
}

/// What a case costs a reader: nodes, then inputs, then elements.
fn size(case: &Case) -> (usize, usize, usize) {
    let graph = &case.graph;
    let elements = case.inputs.iter().map(HostTensor::len).sum::<usize>();
    let data = graph.nodes().map(|(_, n)| match &n.kind {
        NodeKind::Data(d) => d.0.len(),
        _ => 0,
    });
    (graph.len(), graph.inputs().len(), elements + data.sum::<usize>())
}

impl Reducer<'_> {
    fn spent(&self) -> bool {
        self.left == 0 || Instant::now() >= self.until
    }

    /// Keeps a change if the case still fails.
    fn keep(&mut self, edit: &Edit) -> bool {
        if self.spent() {
            return false;
        }
        let Some(case) = edit.apply(&self.best) else {
            return false;
        };
        self.keep_case(case)
    }

    fn keep_case(&mut self, case: Case) -> bool {
        let failing = self.test(&case);
        if failing {
            self.best = case;
        }
        failing
    }

    fn test(&mut self, case: &Case) -> bool {
        if self.spent() || !verify(&case.graph).is_empty() {
            return false;
        }
        self.left -= 1;
        (self.fails)(case)
    }

    fn run(&mut self) {
        self.bind_symbols();
        self.windows();
        loop {
            let before = size(&self.best);
            self.drop_outputs();
            self.prune();
            self.promote_outputs();
            self.cut_nodes();
            self.cut_operands();
            self.bypass_nodes();
            self.splat_nodes();
            self.prune();
            self.smaller_extents();
            if self.spent() || size(&self.best) >= before {
                break;
            }
        }
        self.plainer_data();
        self.prune();
    }

    fn graph(&self) -> &Graph {
        &self.best.graph
    }

    /// Values of the symbols: all of them become numbers, or one by one.
    fn bind_symbols(&mut self) {
        let types: Vec<(DType, &[usize])> = self.best.inputs.iter().map(|t| (t.dtype(), t.shape())).collect();
        let Ok(values) = tlc_ir::binding::bind_symbols(self.graph(), &types, &self.best.symbols) else {
            return;
        };
        let names = self.graph().symbols().iter().map(|s| s.name.clone());
        let all: Vec<(String, i64)> = names.zip(values).collect();
        let bound = |bound: Vec<(String, i64)>| Edit {
            bound,
            ..Edit::default()
        };
        if all.is_empty() || self.keep(&bound(all.clone())) {
            return;
        }
        for one in all {
            self.keep(&bound(vec![one]));
        }
    }

    /// The values of some nodes.
    fn values(&self, wanted: &FxHashSet<NodeId>) -> Option<FxHashMap<NodeId, HostTensor>> {
        let mut out = FxHashMap::default();
        let settings = self.best.interpretation(&CompileOptions::default());
        interpret_each(self.graph(), &self.best.inputs, &settings, &mut |id, value| {
            if wanted.contains(&id) {
                out.insert(id, value.clone());
            }
        })
        .ok()?;
        Some(out)
    }

    /// Nodes below `from` become inputs, and nodes from `to` on go.
    fn window(&self, from: usize, to: usize) -> Option<Edit> {
        let graph = self.graph();
        let mut outputs: Vec<(String, NodeId)> = Vec::new();
        let mut wanted: FxHashSet<NodeId> = FxHashSet::default();
        let computed = |id: NodeId| {
            let kind = &graph.node(id).kind;
            !matches!(kind, NodeKind::Input { .. } | NodeKind::Const(_) | NodeKind::Data(_))
        };
        let mut give = |node: NodeId| {
            if computed(node) && !outputs.iter().any(|(_, n)| *n == node) {
                outputs.push((format!("y{}", node.0), node));
            }
        };
        let inside = |id: NodeId| (from..to).contains(&id.index());
        for (id, node) in graph.nodes() {
            for &o in &node.operands {
                if id.index() >= to && inside(o) {
                    give(o);
                }
                if inside(id) && o.index() < from && computed(o) {
                    wanted.insert(o);
                }
            }
        }
        graph
            .outputs()
            .iter()
            .filter(|o| inside(o.node))
            .for_each(|o| give(o.node));
        if outputs.is_empty() {
            return None;
        }
        let values = self.values(&wanted)?;
        Some(Edit {
            changes: values.into_iter().map(|(id, v)| (id, Change::Input(v))).collect(),
            outputs: Some(outputs),
            prune: true,
            ..Edit::default()
        })
    }

    /// Whether nodes `from..to` fail by themselves.
    fn window_fails(&mut self, from: usize, to: usize) -> Option<Case> {
        let case = self.window(from, to)?.apply(&self.best)?;
        self.test(&case).then_some(case)
    }

    /// The shortest run of nodes that fails, by halves from either side.
    fn windows(&mut self) {
        let nodes = self.graph().len();
        if nodes < 16 {
            return;
        }
        let mut found = None;
        // The end: with `high` it fails, with `low` it does not.
        let (mut low, mut high) = (0, nodes);
        while low + 1 < high && !self.spent() {
            let middle = low.midpoint(high);
            match self.window_fails(0, middle) {
                Some(case) => (high, found) = (middle, Some(case)),
                None => low = middle,
            }
        }
        let end = high;
        // The beginning: with `low` it fails, with `high` it does not.
        let (mut low, mut high) = (0, end);
        while low + 1 < high && !self.spent() {
            let middle = low.midpoint(high);
            match self.window_fails(middle, end) {
                Some(case) => (low, found) = (middle, Some(case)),
                None => high = middle,
            }
        }
        if let Some(case) = found {
            self.best = case;
        }
    }

    fn prune(&mut self) {
        let edit = Edit {
            prune: true,
            ..Edit::default()
        };
        self.keep(&edit);
    }

    /// One output, or fewer.
    fn drop_outputs(&mut self) {
        let all = self.graph().outputs().to_vec();
        if all.len() < 2 {
            return;
        }
        for o in &all {
            let edit = Edit {
                outputs: Some(vec![(o.name.clone(), o.node)]),
                prune: true,
                ..Edit::default()
            };
            if self.keep(&edit) {
                return;
            }
        }
        let mut at = 0;
        while self.graph().outputs().len() > 1 && at < self.graph().outputs().len() && !self.spent() {
            let mut rest: Vec<(String, NodeId)> = Vec::new();
            for (k, o) in self.graph().outputs().iter().enumerate() {
                if k != at {
                    rest.push((o.name.clone(), o.node));
                }
            }
            let edit = Edit {
                outputs: Some(rest),
                ..Edit::default()
            };
            if !self.keep(&edit) {
                at += 1;
            }
        }
    }

    /// An older node in an output's place: the oldest first.
    fn promote_outputs(&mut self) {
        let graph = self.graph();
        if graph.outputs().len() != 1 {
            return;
        }
        let name = graph.outputs()[0].name.clone();
        let last = graph.outputs()[0].node;
        let older: Vec<NodeId> = computed(graph).filter(|&id| id < last).collect();
        for id in older {
            let edit = Edit {
                outputs: Some(vec![(name.clone(), id)]),
                prune: true,
                ..Edit::default()
            };
            if self.keep(&edit) || self.spent() {
                return;
            }
        }
    }

    /// Nodes become inputs, the youngest first: what only they needed goes.
    fn cut_nodes(&mut self) {
        self.each_node(&mut |reducer, id| {
            let node = reducer.graph().node(id);
            // Nodes of inputs alone are tried last: an input more for a node less gains nothing.
            if node.operands.is_empty() {
                return None;
            }
            let values = reducer.values(&FxHashSet::from_iter([id]))?;
            let value = values.get(&id)?.clone();
            let changes = FxHashMap::from_iter([(id, Change::Input(value))]);
            Some(Edit {
                changes,
                prune: true,
                ..Edit::default()
            })
        });
    }

    /// All computed operands of a node become inputs at once: where several are computed of one input, each alone is an input more for a
    /// node less.
    fn cut_operands(&mut self) {
        self.each_node(&mut |reducer, id| {
            let graph = reducer.graph();
            let operands = graph.node(id).operands.iter().copied();
            let computed: FxHashSet<NodeId> = operands.filter(|&o| !graph.node(o).operands.is_empty()).collect();
            if computed.len() < 2 {
                return None;
            }
            let values = reducer.values(&computed)?;
            let input = |id: NodeId| Some((id, Change::Input(values.get(&id)?.clone())));
            Some(Edit {
                changes: computed.iter().map(|&id| input(id)).collect::<Option<_>>()?,
                prune: true,
                ..Edit::default()
            })
        });
    }

    /// Nodes become one of their operands.
    fn bypass_nodes(&mut self) {
        for operand in 0..3 {
            self.each_node(&mut |reducer, id| {
                let graph = reducer.graph();
                let &other = graph.node(id).operands.get(operand)?;
                if graph.ty(other) != graph.ty(id) {
                    return None;
                }
                let changes = FxHashMap::from_iter([(id, Change::Same(other))]);
                Some(Edit {
                    changes,
                    prune: true,
                    ..Edit::default()
                })
            });
        }
    }

    /// Nodes, inputs and data become constants.
    fn splat_nodes(&mut self) {
        for one in [true, false] {
            self.each_node(&mut |reducer, id| {
                let node = reducer.graph().node(id);
                let is_splat = |id: NodeId| reducer.graph().splat_value(id).is_some();
                if is_splat(id) {
                    return None;
                }
                let value = if one { node.ty.dtype.one() } else { node.ty.dtype.zero() };
                let changes = FxHashMap::from_iter([(id, Change::Splat(value))]);
                Some(Edit {
                    changes,
                    prune: true,
                    ..Edit::default()
                })
            });
        }
    }

    /// Tries a change at each node, the youngest first; behind one that is kept, goes on below the place where it was.
    fn each_node(&mut self, change: &mut dyn FnMut(&Self, NodeId) -> Option<Edit>) {
        let mut from_end = 0;
        while from_end < self.graph().len() && !self.spent() {
            let id = NodeId((self.graph().len() - 1 - from_end) as u32);
            let before = size(&self.best);
            let smaller = change(self, id).is_some_and(|edit| {
                let made = edit.apply(&self.best);
                made.is_some_and(|case| size(&case) < before && self.keep_case(case))
            });
            if !smaller {
                from_end += 1;
            }
        }
    }

    /// Every extent that is a number, the largest first, made as small as it goes.
    fn smaller_extents(&mut self) {
        let mut seen: FxHashSet<i64> = FxHashSet::default();
        while !self.spent() {
            let Some(from) = largest_extent(self.graph(), &seen) else {
                return;
            };
            seen.insert(from);
            for to in [1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 64, from / 2, from - 1] {
                if to < 1 || to >= from {
                    continue;
                }
                let resized = [true, false].into_iter().any(|multiples| {
                    let resize = Some(Resize { from, to, multiples });
                    self.keep(&Edit {
                        resize,
                        ..Edit::default()
                    })
                });
                if resized {
                    // What it became is not tried again unless something else makes it possible.
                    seen.insert(to);
                    break;
                }
            }
        }
    }

    /// Inputs of ones, zeros or small numbers, where that is enough to fail.
    fn plainer_data(&mut self) {
        for at in 0..self.best.inputs.len() {
            let tensor = &self.best.inputs[at];
            let (dtype, shape) = (tensor.dtype(), tensor.shape().to_vec());
            let mut counted = HostTensor::zeros(dtype, &shape).ok();
            if let Some(t) = &mut counted {
                for i in 0..t.len() {
                    t.set(i, tlc_ir::Scalar::from_i64(dtype, (i % 100) as i64));
                }
            }
            let ones = HostTensor::full(&shape, dtype.one()).ok();
            let zeros = HostTensor::zeros(dtype, &shape).ok();
            for made in [ones, zeros, counted].into_iter().flatten() {
                let mut case = self.best.clone();
                if case.inputs[at] == made {
                    break;
                }
                case.inputs[at] = made;
                if self.keep_case(case) {
                    break;
                }
            }
        }
    }
}

fn computed(graph: &Graph) -> impl Iterator<Item = NodeId> + '_ {
    let leaf = |k: &NodeKind| matches!(k, NodeKind::Input { .. } | NodeKind::Const(_) | NodeKind::Data(_));
    graph.nodes().filter(move |(_, n)| !leaf(&n.kind)).map(|(id, _)| id)
}

/// The largest extent above 1 of any node that is not in `seen`.
fn largest_extent(graph: &Graph, seen: &FxHashSet<i64>) -> Option<i64> {
    let shapes = graph.nodes().flat_map(|(_, n)| &n.ty.shape);
    let numbers = shapes.filter_map(IndexExpr::as_const);
    numbers.filter(|n| *n > 1 && !seen.contains(n)).max()
}

/// The case with random inputs of a seed in place of its own: what a reader can have without files.
pub fn with_random_inputs(case: &Case, seed: u64) -> Option<Case> {
    let mut made = case.clone();
    for (&id, tensor) in case.graph.inputs().iter().zip(&mut made.inputs) {
        let NodeKind::Input { name, .. } = &case.graph.node(id).kind else {
            return None;
        };
        *tensor = super::data::random(name, tensor.dtype(), tensor.shape(), seed).ok()?;
    }
    Some(made)
}
