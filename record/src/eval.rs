//! Values at once: a tensor made from data is compiled and run behind the scenes.
//!
//! Invariants:
//! - What is compiled does not depend on the data: the nodes that a tensor needs are printed in canonical form with every
//!   constant array as an input, and that text is the key of the cache. So the same expression over other arrays of the same
//!   shapes compiles nothing.
//! - The cache is bounded, the least recently used goes first, and equal graphs that arrive at once compile once.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tlc_ir::graph::{NodeId, NodeKind};
use tlc_ir::index::{IndexExpr, IndexNode, SymId};
use tlc_ir::{Graph as IrGraph, HostTensor};
use tlc_runtime::driver::RunError;

use crate::compile::{BuildError, CompileOptions, Executable, Input, Output, compile_ir};
use crate::error::Errors;
use crate::graph::Tensor;

/// Graphs kept.
const CAPACITY: usize = 128;

/// Why a tensor has no value.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvalError {
    /// The tensor, or another one of its graph, was refused.
    #[error(transparent)]
    Recording(#[from] Errors),
    /// It depends on run-time inputs.
    #[error("the value depends on the input `{name}`: compile the graph and run it with one")]
    NeedsInput {
        /// The first such input.
        name: String,
    },
    /// It depends on a size that a call must be given (sizes that data decides are not such ones).
    #[error("the value depends on the size `{name}`: compile the graph and give it one")]
    NeedsSize {
        /// The first such size.
        name: String,
    },
    /// It could not be compiled.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// It could not be run.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// What the cache of [`Tensor::eval`] has done in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvalStats {
    /// Graphs compiled.
    pub compiled: u64,
    /// Evaluations that found their graph compiled.
    pub reused: u64,
}

static COMPILED: AtomicU64 = AtomicU64::new(0);
static REUSED: AtomicU64 = AtomicU64::new(0);

/// What the cache has done so far.
pub fn stats() -> EvalStats {
    EvalStats {
        compiled: COMPILED.load(Ordering::Relaxed),
        reused: REUSED.load(Ordering::Relaxed),
    }
}

/// A place for one executable: whoever comes first fills it, the others wait.
type Place = Arc<Mutex<Option<Arc<Executable>>>>;

/// Most recently used first.
static CACHE: Mutex<VecDeque<(String, Place)>> = Mutex::new(VecDeque::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic leaves an empty place or an untouched list.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn place(key: String) -> Place {
    let mut cache = lock(&CACHE);
    let found = match cache.iter().position(|(k, _)| *k == key) {
        Some(at) => cache.remove(at),
        None => None,
    };
    let entry = found.unwrap_or_else(|| (key, Place::default()));
    let place = Arc::clone(&entry.1);
    cache.push_front(entry);
    cache.truncate(CAPACITY);
    place
}

/// The sizes of a lifted graph: only data decides them.
struct Sizes<'g> {
    from: &'g IrGraph,
    /// By symbol of `from`: the one of the lifted graph, once the call that binds it was added.
    moved: Vec<Option<IndexExpr>>,
    /// The first symbol met that something else decides.
    free: Option<SymId>,
}

impl Sizes<'_> {
    fn of(&mut self, e: &IndexExpr) -> IndexExpr {
        e.replace(&mut |atom| match atom {
            IndexNode::Sym(s) => {
                let known = self.moved.get(s.0 as usize).cloned().flatten();
                if known.is_none() {
                    self.free.get_or_insert(*s);
                }
                known
            }
            _ => None,
        })
    }

    /// The kind over the lifted graph's sizes; a call binds one that is added to `to`.
    fn kind(&mut self, kind: &NodeKind, to: &mut IrGraph) -> NodeKind {
        if let NodeKind::Call(function) = kind
            && let Some(symbol) = function.binds()
            && let Some(upper) = &self.from.symbols()[symbol.0 as usize].upper
        {
            let upper = self.of(upper);
            // Not its own name, which depends on what else was recorded.
            self.moved[symbol.0 as usize] = Some(to.add_data_symbol("size", upper).into());
        }
        kind.map_sizes(&mut |_, e| self.of(e))
    }
}

/// The part of a graph that one output needs, with its arrays as inputs, and the arrays.
fn lift(from: &IrGraph) -> Result<(IrGraph, Vec<HostTensor>), EvalError> {
    let uses = from.use_counts();
    let mut to = IrGraph::new("eval");
    let mut data = Vec::new();
    let mut sizes = Sizes {
        from,
        moved: vec![None; from.symbols().len()],
        free: None,
    };
    let mut moved: Vec<Option<NodeId>> = vec![None; from.len()];
    for (id, node) in from.nodes() {
        if let NodeKind::Input { name, .. } = &node.kind {
            if uses[id.index()] > 0 {
                return Err(EvalError::NeedsInput { name: name.clone() });
            }
            continue;
        }
        let kind = sizes.kind(&node.kind, &mut to);
        if let Some(symbol) = sizes.free {
            let name = from.symbol_name(symbol);
            return Err(EvalError::NeedsSize { name });
        }
        let operands: Vec<NodeId> = node.operands.iter().filter_map(|o| moved[o.index()]).collect();
        let added = match kind {
            NodeKind::Data(number) if number.0.shape().is_empty() => {
                to.add(NodeKind::Const(number.0.get(0)), &[], node.origin.clone())
            }
            NodeKind::Data(array) => {
                data.push(array.0);
                to.add_input(&format!("data{}", data.len() - 1), node.ty.clone(), node.origin.clone())
            }
            kind => to.add(kind, &operands, node.origin.clone()),
        };
        moved[id.index()] = Some(added.map_err(|e| Errors::new(vec![e]))?);
    }
    for o in from.outputs() {
        to.add_output(
            &o.name,
            moved[o.node.index()].expect("an output that is no input was added"),
        );
    }
    Ok((to, data))
}

impl Tensor {
    /// The tensor's value, if it follows from data alone. Compiled behind the scenes and kept by structure: the same
    /// expression over other arrays of the same shapes and dtypes runs at once.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let a = g.constant([[1.0f32, 2.0], [3.0, 4.0]]);
    /// let y = (a.matmul(&a) + 1.0).sum(0).eval()?;
    /// assert_eq!(y.as_slice::<f32>()?, [24.0, 34.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If the tensor or another one of its graph was refused, if it needs run-time inputs or sizes, or if it cannot be
    /// compiled or run.
    #[track_caller]
    pub fn eval(&self) -> Result<Output, EvalError> {
        let (graph, data) = lift(&self.graph().extract(&[("value", self)])?)?;
        let key = graph.to_string();
        let place = place(key);
        let mut held = lock(&place);
        let executable = match &*held {
            Some(known) => {
                REUSED.fetch_add(1, Ordering::Relaxed);
                Arc::clone(known)
            }
            None => {
                let new = Arc::new(compile_ir(&graph, &CompileOptions::default())?);
                COMPILED.fetch_add(1, Ordering::Relaxed);
                Arc::clone(held.insert(new))
            }
        };
        drop(held);
        let inputs: Vec<Input<'_>> = data.iter().map(Input::from).collect();
        let mut outputs = executable.run(&inputs)?;
        Ok(outputs.pop().expect("one output was added"))
    }
}
