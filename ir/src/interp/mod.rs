//! The graph interpreter: what a graph means, and the oracle for everything that compiles one.
//!
//! Invariants:
//! - It trusts only what the verifier checks, and never panics on a verified graph: inputs that do not fit, guards that
//!   fail and memory limits are errors.
//! - Every element is what the doc comments of [`crate::graph`] and [`crate::scalar`] say. Where those leave freedom (the
//!   order of a sum) the plain mode returns the most accurate result: sums in f64 with compensation, one rounding to the
//!   accumulator and one to the result.
//! - Only nodes that an output needs are computed, in id order; a value is dropped after its last use.
//!
//! Two modes share the driver: [`interpret`] computes elements of the graph's dtypes; [`interpret_with_bounds`] computes in
//! f64 and carries for each element how far a right implementation may be from it.

mod bounds;
mod combine;
mod elementwise;
mod host;
mod indexing;
mod lanes;
mod random;
mod repeat;
mod space;

pub use bounds::{Bounded, Mismatch, compare, interpret_each_with_bounds, interpret_with_bounds};
pub(crate) use host::host_results;
pub use random::{random_bits, threefry2x32};
pub(crate) use repeat::{element_of_tensor as element, stack_tensors as stack};

use crate::binding::{BindError, bind_symbols, check_condition, condition_waits};
use crate::dtype::DType;
use crate::graph::{Condition, Graph, HostFunction, Movement, Node, NodeId, NodeKind, View, infer};
use crate::index::IndexExpr;
use crate::precision::Precision;
use crate::scalar::ScalarOp;
use crate::tensor::{HostTensor, TensorError, element_count};

use combine::{Contraction, Prefix};
use indexing::Indices;
use lanes::Writer;

/// Settings of an interpretation.
#[derive(Clone, Debug)]
pub struct Options {
    /// Values by name of symbols that no input binds.
    pub symbols: Vec<(String, i64)>,
    /// The most bytes of live values, inputs and constants apart; checked before each node is computed.
    pub max_bytes: Option<u64>,
    /// The most nodes computed inside loops, an iteration counting each node of its body; a condition that never ends a
    /// loop ends here.
    pub max_steps: Option<u64>,
    /// How exactly what is judged was computed: where it was less than exactly, [`interpret_with_bounds`] says how far that may be off.
    /// The interpreter itself always computes exactly.
    pub precision: Precision,
}

/// What [`Options::max_steps`] is unless it is given.
pub const DEFAULT_MAX_STEPS: u64 = 100_000_000;

impl Default for Options {
    fn default() -> Options {
        Options {
            symbols: Vec::new(),
            max_bytes: None,
            max_steps: Some(DEFAULT_MAX_STEPS),
            precision: Precision::Exact,
        }
    }
}

/// Why a graph could not be interpreted.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum InterpError {
    /// The inputs do not fit.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The live values would exceed [`Options::max_bytes`].
    #[error("{node} ({kind}) needs {needed} bytes beside {live} live ones; the limit is {limit}")]
    Memory {
        /// The node about to be computed.
        node: NodeId,
        /// Its mnemonic.
        kind: &'static str,
        /// Bytes of its value and of temporaries.
        needed: u64,
        /// Bytes of the values alive.
        live: u64,
        /// The limit.
        limit: u64,
    },
    /// Loops compute more nodes than [`Options::max_steps`].
    #[error("{node}: the loop computes more than {limit} nodes")]
    Steps {
        /// The loop.
        node: NodeId,
        /// The limit.
        limit: u64,
    },
    /// More than 2^32 random elements.
    #[error("{node}: {found} random elements; expected at most 2^32")]
    RandomCount {
        /// The node.
        node: NodeId,
        /// Elements asked for.
        found: usize,
    },
    /// A tensor that cannot be allocated.
    #[error("{node}: {error}")]
    Tensor {
        /// The node.
        node: NodeId,
        /// Why.
        error: TensorError,
    },
    /// The graph is not one that the verifier accepts.
    #[error("{node}: {problem}; the graph does not verify")]
    Invalid {
        /// The node.
        node: NodeId,
        /// What is wrong.
        problem: String,
    },
}

/// A node about to be computed.
struct Step<'a> {
    symbols: &'a [i64],
    id: NodeId,
    node: &'a Node,
    /// Result extents.
    shape: Vec<usize>,
}

impl Step<'_> {
    fn failed(&self, error: TensorError) -> InterpError {
        InterpError::Tensor { node: self.id, error }
    }

    fn movement(&self, view: &View, operand: &[usize]) -> Result<Movement, InterpError> {
        let eval = |e: &IndexExpr| e.eval_symbols(self.symbols);
        view.movement(operand, &self.shape, &eval)
            .ok_or_else(|| InterpError::Invalid {
                node: self.id,
                problem: "an index expression has no value".into(),
            })
    }
}

/// One way to give a graph values.
trait Domain {
    /// The value of a node; cloning shares.
    type Value: Clone;
    /// Lifts an input or constant.
    fn leaf(&self, tensor: &HostTensor) -> Self::Value;
    /// Bytes of one element of a node's value.
    fn element_bytes(&self, dtype: DType) -> u64;
    /// The node's value.
    fn compute(&self, step: &Step<'_>, operands: &[&Self::Value]) -> Result<Self::Value, InterpError>;
    /// The results of a host function.
    fn call(
        &self,
        step: &Step<'_>,
        function: &HostFunction,
        operands: &[&Self::Value],
    ) -> Result<Vec<Self::Value>, InterpError>;
    /// The only element, of an integer or bool; the flag says whether it is certain.
    fn number(&self, value: &Self::Value) -> (i64, bool);
    /// What may be anything, of that value.
    fn doubt(&self, value: Self::Value) -> Self::Value;
    /// The elements at one position of an axis, which disappears.
    fn element(&self, value: &Self::Value, axis: usize, at: usize) -> Result<Self::Value, TensorError>;
    /// A tensor of that shape whose elements along an axis are the parts, zero where there is none.
    fn stack(
        &self,
        dtype: DType,
        shape: &[usize],
        axis: usize,
        parts: &[Option<Self::Value>],
    ) -> Result<Self::Value, TensorError>;
}

/// What was computed so far, and what is the most.
struct Budget {
    live: u64,
    max_bytes: u64,
    steps: u64,
    max_steps: u64,
}

fn elements(shape: &[usize]) -> u64 {
    element_count(shape).map_or(u64::MAX, |n| n as u64)
}

/// Is shown the value of a node that has one, and may put another in its place.
type Seen<'a, V> = dyn FnMut(NodeId, &V) -> Option<HostTensor> + 'a;

/// Computes the outputs in one domain. `seen` is shown each value, and may put another in its place.
fn run<D: Domain>(
    domain: &D,
    graph: &Graph,
    inputs: &[HostTensor],
    options: &Options,
    seen: &mut Seen<'_, D::Value>,
) -> Result<Vec<D::Value>, InterpError> {
    let types: Vec<(DType, &[usize])> = inputs.iter().map(|t| (t.dtype(), t.shape())).collect();
    let symbols = bind_symbols(graph, &types, &options.symbols)?;
    let mut budget = Budget {
        live: 0,
        max_bytes: options.max_bytes.unwrap_or(u64::MAX),
        steps: 0,
        max_steps: options.max_steps.unwrap_or(u64::MAX),
    };
    let schedule = Schedule::new(graph, &symbols)?;
    let leaves: Vec<D::Value> = inputs.iter().map(|t| domain.leaf(t)).collect();
    schedule.run(domain, leaves, &mut budget, seen)
}

/// A graph under symbol values, its conditions checked, and the order in which its values are computed and dropped.
struct Schedule<'g> {
    graph: &'g Graph,
    symbols: Vec<i64>,
    is_output: Vec<bool>,
    needed: Vec<bool>,
    last_use: Vec<Option<NodeId>>,
    /// Extents of each needed node; none where they wait for data.
    shapes: Vec<Option<Vec<usize>>>,
    /// Conditions that wait for data, by node.
    waiting: Vec<(NodeId, Condition)>,
}

impl<'g> Schedule<'g> {
    fn new(graph: &'g Graph, symbols: &[i64]) -> Result<Schedule<'g>, InterpError> {
        let mut last_use: Vec<Option<NodeId>> = vec![None; graph.len()];
        let mut is_output = vec![false; graph.len()];
        for o in graph.outputs() {
            match is_output.get_mut(o.node.index()) {
                Some(slot) => *slot = true,
                None => {
                    let problem = format!("output {} names a node that does not exist", o.name);
                    return Err(InterpError::Invalid { node: o.node, problem });
                }
            }
        }
        let mut needed = is_output.clone();
        let binders = graph.binders();
        let order: Vec<(NodeId, &Node)> = graph.nodes().collect();
        for &(id, node) in order.iter().rev() {
            if needed[id.index()] {
                for &o in &node.operands {
                    if o >= id {
                        let problem = format!("operand {o} is not defined before it is used");
                        return Err(InterpError::Invalid { node: id, problem });
                    }
                    last_use[o.index()] = last_use[o.index()].max(Some(id));
                }
                graph.visit_needs(id, &binders, &mut |o| needed[o.index()] = true);
            }
        }
        let mut shapes = vec![None; graph.len()];
        let mut waiting = Vec::new();
        for (id, node) in order {
            if !needed[id.index()] {
                continue;
            }
            // The conditions again, from the rules: a graph that was read, not built, has no recorded guards.
            let mut conditions = Vec::new();
            let ty = infer::infer(graph, &node.kind, &node.operands, &mut conditions)
                .map_err(|(problem, _)| InterpError::Invalid { node: id, problem })?;
            if ty != node.ty {
                let problem = format!("has type {}, not {}", graph.type_text(&node.ty), graph.type_text(&ty));
                return Err(InterpError::Invalid { node: id, problem });
            }
            for c in conditions {
                match condition_waits(graph.symbols(), &c) {
                    true => waiting.push((id, c)),
                    false => check_condition(graph, (id, None), &c, symbols)?,
                }
            }
            if !node.ty.shape.iter().any(|d| graph.is_data_bound(d)) {
                let shape = extents(&node.ty.shape, symbols).ok_or_else(|| no_extent(id))?;
                shapes[id.index()] = Some(shape);
            }
        }
        Ok(Schedule {
            graph,
            symbols: symbols.to_vec(),
            is_output,
            needed,
            last_use,
            shapes,
            waiting,
        })
    }

    /// Computes the outputs from values of the inputs.
    fn run<D: Domain>(
        &self,
        domain: &D,
        inputs: Vec<D::Value>,
        budget: &mut Budget,
        seen: &mut Seen<'_, D::Value>,
    ) -> Result<Vec<D::Value>, InterpError> {
        let graph = self.graph;
        let before = budget.live;
        let mut values: Vec<Option<D::Value>> = vec![None; graph.len()];
        // Results of loops and calls.
        let mut tuples: Vec<Vec<D::Value>> = vec![Vec::new(); graph.len()];
        let mut bytes = vec![0u64; graph.len()];
        let mut symbols = self.symbols.clone();
        for (id, node) in graph.nodes() {
            if !self.needed[id.index()] {
                continue;
            }
            let from = self.waiting.partition_point(|w| w.0 < id);
            for (_, c) in self.waiting[from..].iter().take_while(|w| w.0 == id) {
                check_condition(graph, (id, None), c, &symbols)?;
            }
            let shape = match &self.shapes[id.index()] {
                Some(shape) => shape.clone(),
                None => extents(&node.ty.shape, &symbols).ok_or_else(|| no_extent(id))?,
            };
            // What the node binds, once it is computed.
            let mut bound = None;
            let step = Step {
                symbols: &symbols,
                id,
                node,
                shape,
            };
            let operands: Vec<&D::Value> = node
                .operands
                .iter()
                .filter_map(|o| values[o.index()].as_ref())
                .collect();
            let value = match &node.kind {
                NodeKind::Input { index, .. } => {
                    Some(inputs.get(*index as usize).cloned().ok_or(InterpError::Invalid {
                        node: id,
                        problem: "an input without a position".into(),
                    })?)
                }
                NodeKind::Const(value) => Some(domain.leaf(&HostTensor::scalar(*value))),
                NodeKind::Data(data) => Some(domain.leaf(&data.0)),
                NodeKind::Project(result) => {
                    let of = &tuples[node.operands[0].index()];
                    Some(of.get(*result as usize).cloned().ok_or(InterpError::Invalid {
                        node: id,
                        problem: "a result that does not exist".into(),
                    })?)
                }
                _ => {
                    let mut own = elements(&step.shape).saturating_mul(domain.element_bytes(node.ty.dtype));
                    for ty in &node.results {
                        let shape = extents(&ty.shape, &symbols).ok_or_else(|| no_extent(id))?;
                        own = own.saturating_add(elements(&shape).saturating_mul(domain.element_bytes(ty.dtype)));
                    }
                    let temporary = temporary_bytes(graph, node, &symbols);
                    let wanted = own.saturating_add(temporary);
                    if budget.live.saturating_add(wanted) > budget.max_bytes {
                        return Err(InterpError::Memory {
                            node: id,
                            kind: node.kind.name(),
                            needed: wanted,
                            live: budget.live,
                            limit: budget.max_bytes,
                        });
                    }
                    bytes[id.index()] = own;
                    budget.live = budget.live.saturating_add(own);
                    match &node.kind {
                        NodeKind::Loop(l) => {
                            tuples[id.index()] = repeat::run(domain, &step, l, &operands, budget)?;
                            None
                        }
                        NodeKind::Region(r) => {
                            tuples[id.index()] = repeat::region(domain, &step, r, &operands, budget)?;
                            None
                        }
                        NodeKind::Call(function) => {
                            let results = domain.call(&step, function, &operands)?;
                            if let (Some(symbol), Some(count)) = (function.binds(), results.last()) {
                                bound = Some((symbol, domain.number(count).0));
                            }
                            tuples[id.index()] = results;
                            None
                        }
                        _ => Some(domain.compute(&step, &operands)?),
                    }
                }
            };
            values[id.index()] = value.map(|value| match seen(id, &value) {
                Some(other) => domain.leaf(&other),
                None => value,
            });
            if let Some((symbol, count)) = bound {
                symbols[symbol.0 as usize] = count;
            }
            for o in &node.operands {
                let i = o.index();
                if self.last_use[i] == Some(id) && !self.is_output[i] {
                    let tuple = !std::mem::take(&mut tuples[i]).is_empty();
                    if values[i].take().is_some() || tuple {
                        budget.live -= std::mem::take(&mut bytes[i]);
                    }
                }
            }
        }
        budget.live = before;
        // Outputs were marked needed, so each has a value.
        Ok(graph
            .outputs()
            .iter()
            .filter_map(|o| values[o.node.index()].clone())
            .collect())
    }
}

fn extents(shape: &[IndexExpr], symbols: &[i64]) -> Option<Vec<usize>> {
    let extent = |d: &IndexExpr| d.eval_symbols(symbols).and_then(|d| usize::try_from(d).ok());
    shape.iter().map(extent).collect()
}

fn no_extent(node: NodeId) -> InterpError {
    InterpError::Invalid {
        node,
        problem: "an extent has no value".into(),
    }
}

/// Bytes of widened copies that computing a node makes.
fn temporary_bytes(graph: &Graph, node: &Node, symbols: &[i64]) -> u64 {
    let count = |id: &NodeId| {
        let dims = graph.ty(*id).shape.iter();
        let dims: Option<Vec<usize>> = dims
            .map(|d| d.eval_symbols(symbols).and_then(|d| usize::try_from(d).ok()))
            .collect();
        dims.map_or(u64::MAX, |d| elements(&d)).saturating_mul(8)
    };
    match &node.kind {
        NodeKind::View(_) | NodeKind::Copy | NodeKind::Loop(_) | NodeKind::Region(_) => 0,
        _ => node.operands.iter().map(count).fold(0, u64::saturating_add),
    }
}

/// Computes the outputs of a graph.
///
/// # Errors
/// [`InterpError`] if the inputs do not fit the graph, a guard fails, memory runs out, or the graph does not verify.
pub fn interpret(graph: &Graph, inputs: &[HostTensor], options: &Options) -> Result<Vec<HostTensor>, InterpError> {
    run(&Plain, graph, inputs, options, &mut |_, _| None)
}

/// As [`interpret`], and calls `seen` with the value of each node that an output needs, in order.
///
/// # Errors
/// As [`interpret`].
pub fn interpret_each(
    graph: &Graph,
    inputs: &[HostTensor],
    options: &Options,
    seen: &mut dyn FnMut(NodeId, &HostTensor),
) -> Result<Vec<HostTensor>, InterpError> {
    run(&Plain, graph, inputs, options, &mut |id, value| {
        seen(id, value);
        None
    })
}

/// Elements of the graph's own dtypes.
struct Plain;

impl Domain for Plain {
    type Value = HostTensor;

    fn leaf(&self, tensor: &HostTensor) -> HostTensor {
        tensor.clone()
    }

    fn element_bytes(&self, dtype: DType) -> u64 {
        dtype.bytes() as u64
    }

    fn compute(&self, step: &Step<'_>, operands: &[&HostTensor]) -> Result<HostTensor, InterpError> {
        compute(step, operands)
    }

    fn call(
        &self,
        step: &Step<'_>,
        function: &HostFunction,
        operands: &[&HostTensor],
    ) -> Result<Vec<HostTensor>, InterpError> {
        host::call(step, function, operands)
    }

    fn number(&self, value: &HostTensor) -> (i64, bool) {
        (value.get(0).as_i64(), true)
    }

    fn doubt(&self, value: HostTensor) -> HostTensor {
        value
    }

    fn element(&self, value: &HostTensor, axis: usize, at: usize) -> Result<HostTensor, TensorError> {
        repeat::element_of_tensor(value, axis, at)
    }

    fn stack(
        &self,
        dtype: DType,
        shape: &[usize],
        axis: usize,
        parts: &[Option<HostTensor>],
    ) -> Result<HostTensor, TensorError> {
        let parts: Vec<Option<&HostTensor>> = parts.iter().map(Option::as_ref).collect();
        repeat::stack_tensors(dtype, shape, axis, &parts)
    }
}

/// A node of host tensors: everything but leaves.
fn compute(step: &Step<'_>, operands: &[&HostTensor]) -> Result<HostTensor, InterpError> {
    let (shape, dtype) = (&step.shape[..], step.node.ty.dtype);
    let result = match &step.node.kind {
        NodeKind::Input { .. }
        | NodeKind::Const(_)
        | NodeKind::Data(_)
        | NodeKind::Loop(_)
        | NodeKind::Call(_)
        | NodeKind::Region(_)
        | NodeKind::Project(_) => {
            return Err(InterpError::Invalid {
                node: step.id,
                problem: "not computed from the elements of its operands".into(),
            });
        }
        NodeKind::Iota { axis, .. } => iota(dtype, shape, *axis),
        NodeKind::Random { stream, .. } => {
            let count = elements(shape);
            if count > 1 << 32 {
                return Err(InterpError::RandomCount {
                    node: step.id,
                    found: count as usize,
                });
            }
            let key = operands[0].get(0).bits();
            Writer::new(DType::U32, shape).map(|w| w.fill(|i| random_bits(key, i as u32, *stream) as u64))
        }
        NodeKind::Map(op) => elementwise::map(*op, dtype, operands),
        NodeKind::Convert(to) => elementwise::convert(operands[0], *to),
        NodeKind::Bitcast(to) => operands[0].bitcast(*to),
        NodeKind::Einsum {
            inputs,
            output,
            semiring,
            accumulator,
            dtype,
        } => {
            let node = Contraction {
                inputs,
                output,
                semiring: *semiring,
                accumulator: *accumulator,
                dtype: *dtype,
            };
            combine::einsum(&node, operands, shape)
        }
        NodeKind::Reduce { monoid, axes } => combine::reduce(*monoid, axes, operands[0], shape),
        NodeKind::View(view) => {
            let movement = step.movement(view, operands[0].shape())?;
            move_tensor(&movement, view, operands[0], shape)
        }
        NodeKind::Gather { axes } => gather_tensor(axes, operands[0], &Indices::new(&operands[1..]), shape),
        NodeKind::Scatter { axes, op } => {
            indexing::scatter_tensor(*op, axes, operands[0], operands[1], &Indices::new(&operands[2..]))
        }
        NodeKind::Scan {
            monoid,
            axis,
            exclusive,
            reverse,
        } => {
            let node = Prefix {
                monoid: *monoid,
                axis: *axis,
                exclusive: *exclusive,
                reverse: *reverse,
            };
            combine::scan(node, operands[0])
        }
        NodeKind::Copy => Ok(operands[0].clone()),
    };
    result.map_err(|e| step.failed(e))
}

fn iota(dtype: DType, shape: &[usize], axis: u8) -> Result<HostTensor, TensorError> {
    let extent = shape[axis as usize].max(1);
    let inner = shape[axis as usize + 1..]
        .iter()
        .fold(1usize, |n, &d| n.saturating_mul(d))
        .max(1);
    let at = |i: usize| crate::Scalar::from_u64(dtype, (i / inner % extent) as u64).bits();
    Ok(Writer::new(dtype, shape)?.fill(at))
}

/// Calls a generic function on elements as unsigned words of their width.
macro_rules! by_width {
    ($dtype:expr, $word:ident => $body:expr) => {
        match $dtype.bytes() {
            1 => {
                type $word = u8;
                $body
            }
            2 => {
                type $word = u16;
                $body
            }
            4 => {
                type $word = u32;
                $body
            }
            _ => {
                type $word = u64;
                $body
            }
        }
    };
}

fn move_tensor(
    movement: &Movement,
    view: &View,
    operand: &HostTensor,
    shape: &[usize],
) -> Result<HostTensor, TensorError> {
    if let Movement::Same = movement {
        return operand.reshaped(shape);
    }
    let fill = match view {
        View::Pad { value, .. } => value.bits(),
        _ => 0,
    };
    let mut out = HostTensor::zeros(operand.dtype(), shape)?;
    by_width!(operand.dtype(), Word => {
        let source: &[Word] = bytemuck::cast_slice(operand.aligned_bytes());
        let target: &mut [Word] = bytemuck::cast_slice_mut(out.bytes_mut());
        movement.apply(source, operand.shape(), shape, fill as Word, target);
    });
    Ok(out)
}

fn gather_tensor(
    axes: &[u8],
    operand: &HostTensor,
    indices: &Indices,
    shape: &[usize],
) -> Result<HostTensor, TensorError> {
    let mut out = HostTensor::zeros(operand.dtype(), shape)?;
    by_width!(operand.dtype(), Word => {
        let source: &[Word] = bytemuck::cast_slice(operand.aligned_bytes());
        let target: &mut [Word] = bytemuck::cast_slice_mut(out.bytes_mut());
        indexing::gather(source, operand.shape(), axes, indices, 0, target);
    });
    Ok(out)
}

/// True for operations whose result the written semantics fix to the bit when the operands are known.
fn is_correctly_rounded(op: ScalarOp, dtype: DType) -> bool {
    // `fma` on f16 and bf16: the text forms allow both one rounding and a detour through f32.
    op.ulps() == 0.0 && !(op == ScalarOp::Fma && matches!(dtype, DType::F16 | DType::BF16))
}
