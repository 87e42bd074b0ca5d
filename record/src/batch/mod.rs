//! Functions of one example as functions of a batch of them: graph to graph, without a loop.
//!
//! [`vmap`] records a function over tensors without the batch's axis, in a graph of its own, and records its nodes again with the axis
//! wherever a value differs from one example to the next.
//!
//! Invariants:
//! - One table (`Batch::one`) says how each kind of node is recorded over a batch: a line that is missing does not compile. What cannot
//!   be is refused by name and source line.
//! - The batch's axis leads every value that has it. A value that no operand with an axis reaches has none: it is computed once.
//! - Each example's result is what the function computes of that example alone. Sums are those of the same node kinds, so floats differ
//!   by no more than the order of sums that a node kind leaves open.

mod control;
mod index;
mod replay;
mod view;

use tlc_ir::graph::{Labels, NodeKind};
use tlc_ir::{Graph as IrGraph, IndexExpr};

use crate::dim::{Dim, resolve_axis};
use crate::graph::scope::{Step, record, refuse, refuse_expecting};
use crate::graph::{Graph, Tensor};
use crate::ops::linalg::contract_over;
use crate::ops::shape::moved;
pub(crate) use replay::over_batch;

/// How a function is made one of batches: see [`vmap`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Vmap {
    shared_draws: bool,
}

/// `function` of each example of a batch. Each operand has the axis along which its examples lie, or none if all examples share it;
/// `function` is given tensors without that axis, of a graph of their own. Each result has the batch's axis as its first.
///
/// Whatever can be recorded can be mapped, sizes that data decides apart; derivatives too: gradients of each sample are the gradient of
/// one, mapped. Random numbers differ from example to example ([`Vmap::shared_draws`] has them shared). A loop whose count or
/// condition differs goes on until that of no example does, and the values of examples that are done stay as they are.
///
/// ```
/// use tlc::{Graph, grad, vmap};
///
/// // The gradient of (w · x - y)² by w, for each sample.
/// let g = Graph::default();
/// let w = g.constant([1.0f64, 2.0]);
/// let x = g.constant([[1.0f64, 0.0], [0.0, 1.0], [1.0, 1.0]]);
/// let y = g.constant([0.0f64, 0.0, 1.0]);
/// let d = vmap(&[(&w, None), (&x, Some(0)), (&y, Some(0))], |t| {
///     let loss = (t[0].matmul(&t[1]) - &t[2]).square();
///     grad(&loss, &[&t[0]])
/// });
/// assert_eq!(d[0].eval()?.as_slice::<f64>()?, [2.0, 0.0, 0.0, 4.0, 4.0, 4.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// No operand with an axis, axes of different extents, a result that is not computed from what `function` is given, tensors of the graph
/// around in it; sizes that data decides, which would differ from example to example.
#[track_caller]
pub fn vmap(operands: &[(&Tensor, Option<i64>)], function: impl FnOnce(&[Tensor]) -> Vec<Tensor>) -> Vec<Tensor> {
    Vmap::new().map(operands, function)
}

impl Vmap {
    /// As [`vmap`] does it.
    pub fn new() -> Vmap {
        Vmap::default()
    }

    /// Random numbers that the function draws are the same for all examples.
    ///
    /// ```
    /// use tlc::{DType, Graph, Vmap};
    ///
    /// let g = Graph::default();
    /// let x = g.constant([0.0f32, 0.0]);
    /// let y = Vmap::new().shared_draws().map(&[(&x, Some(0))], |t| vec![&t[0] + t[0].graph().rand((), DType::F32)]);
    /// let found = y[0].eval()?;
    /// let found = found.as_slice::<f32>()?;
    /// assert_eq!(found[0], found[1]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn shared_draws(self) -> Vmap {
        Vmap { shared_draws: true }
    }

    /// See [`vmap`].
    ///
    /// # Errors
    /// As [`vmap`].
    #[track_caller]
    pub fn map(
        self,
        operands: &[(&Tensor, Option<i64>)],
        function: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
    ) -> Vec<Tensor> {
        let Some(graph) = operands.first().map(|(t, _)| t.graph()) else {
            return vec![];
        };
        let body = graph.region_body();
        let example = |(k, (t, axis)): (usize, &(&Tensor, Option<i64>))| {
            let mut shape = t.shape();
            match axis.map(|axis| resolve_axis(axis, t.rank())) {
                _ if t.is_poisoned() => return Tensor::poisoned(&body, t.dtype()),
                Some(None) => return Tensor::poisoned(&body, t.dtype()),
                Some(Some(axis)) => drop(shape.remove(axis)),
                None => {}
            }
            body.input(&format!("x{k}"), t.dtype(), shape)
        };
        let given: Vec<Tensor> = operands.iter().enumerate().map(example).collect();
        let results = {
            let _inside = graph.enter_loop();
            function(&given)
        };
        let poisons: Vec<Tensor> = results.iter().map(|t| Tensor::poisoned(graph, t.dtype())).collect();
        if graph.takes_errors(&body) {
            return poisons;
        }
        let captured = body.captured();
        let all: Vec<&Tensor> = operands.iter().map(|o| o.0).chain(&captured).collect();
        let again = || {
            let size = batch_size(graph, operands)?;
            let mut inputs = vec![];
            for (t, axis) in operands {
                inputs.push(match axis {
                    Some(axis) => Value::batched(t.permuted(&moved(t.rank(), t.axis(*axis)?, 0))?),
                    None => Value::shared((*t).clone()),
                });
            }
            inputs.extend(captured.iter().cloned().map(Value::shared));
            let batch = Batch {
                graph: graph.clone(),
                size,
                shared_draws: self.shared_draws,
            };
            let ir = body.with_ir(|ir| ir.clone());
            let symbols = graph.symbol_ranges().len();
            if ir.symbols().len() > symbols {
                return refuse_expecting("a size of the function's own", "sizes that the graph around it has");
            }
            let symbols: Vec<IndexExpr> = (0..symbols).map(|s| tlc_ir::SymId(s as u32).into()).collect();
            let mut outputs = vec![];
            for t in &results {
                match t.id() {
                    Some(id) if t.graph().is(&body) => outputs.push(id),
                    _ => {
                        return refuse_expecting(
                            "a result of another graph",
                            "one that is computed from what is given",
                        );
                    }
                }
            }
            let made = batch.body(&ir, &outputs, &symbols, &inputs)?;
            made.iter().map(|v| batch.whole(v)).collect()
        };
        // The function says itself why a result of its own is poisoned.
        if results.iter().any(Tensor::is_poisoned) && all.iter().any(|t| t.is_poisoned()) {
            return poisons;
        }
        record(graph, "vmap", &all, &[], again, |_| poisons)
    }
}

/// The extent of the axes that are mapped over.
fn batch_size(graph: &Graph, operands: &[(&Tensor, Option<i64>)]) -> Step<IndexExpr> {
    let mut size: Option<IndexExpr> = None;
    for (k, (t, axis)) in operands.iter().enumerate() {
        let Some(axis) = axis else { continue };
        let own = t.extents()[t.axis(*axis)?].clone();
        match &size {
            Some(known) if graph.differ(known, &own) => {
                let (known, own) = (graph.dim_text(known), graph.dim_text(&own));
                return refuse_expecting(
                    format!("operand {k} has {own} examples, those before it {known}"),
                    "as many",
                );
            }
            // A number says more than a symbol.
            Some(known) if known.as_const().is_some() => {}
            _ => size = Some(own),
        }
    }
    match size {
        Some(size) => Ok(size),
        None => refuse_expecting("no operand has an axis of examples", "one at least"),
    }
}

/// A value of what is mapped.
#[derive(Clone)]
pub(crate) struct Value {
    tensor: Tensor,
    /// Whether it differs from example to example: then its first axis is the batch's.
    is_batched: bool,
}

impl Value {
    fn batched(tensor: Tensor) -> Value {
        Value {
            tensor,
            is_batched: true,
        }
    }

    fn shared(tensor: Tensor) -> Value {
        Value {
            tensor,
            is_batched: false,
        }
    }

    /// The rank of one example.
    fn rank(&self) -> usize {
        self.tensor.rank() - usize::from(self.is_batched)
    }
}

/// What nodes are recorded over, and where.
#[derive(Clone)]
pub(crate) struct Batch {
    graph: Graph,
    /// How many examples there are.
    size: IndexExpr,
    /// Whether all examples see the same random numbers.
    shared_draws: bool,
}

impl Batch {
    /// The value with the batch's axis, repeated along it if it has none.
    fn whole(&self, value: &Value) -> Step {
        match value.is_batched {
            true => Ok(value.tensor.clone()),
            false => value.tensor.expanded(&self.shape(value.tensor.extents())),
        }
    }

    /// The extents of a batch of examples of these.
    fn shape(&self, of_one: &[IndexExpr]) -> Vec<IndexExpr> {
        std::iter::once(&self.size).chain(of_one).cloned().collect()
    }

    /// Whether a node's results differ from example to example although its operands do not.
    fn draws_apart(&self, kind: &NodeKind) -> bool {
        !self.shared_draws && draws(kind)
    }

    /// A node over a batch: its results, one but for a loop, call or region.
    fn node(&self, kind: &NodeKind, operands: &[Value]) -> Step<Vec<Value>> {
        let differs = operands.iter().any(|v| v.is_batched) || self.draws_apart(kind);
        match kind {
            NodeKind::Loop(it) if differs => self.repeated(it, operands),
            NodeKind::Call(function) if differs => self.called(function, &operands[0]),
            NodeKind::Region(region) if differs => self.region(region, operands),
            NodeKind::Loop(_) | NodeKind::Call(_) | NodeKind::Region(_) => {
                let results = control::results(kind);
                let operands: Vec<&Tensor> = operands.iter().map(|v| &v.tensor).collect();
                let all = self.graph.tuple(kind.clone(), &operands, results)?;
                Ok(all.into_iter().map(Value::shared).collect())
            }
            kind if differs => Ok(vec![Value::batched(self.one(kind, operands)?)]),
            kind => {
                let operands: Vec<&Tensor> = operands.iter().map(|v| &v.tensor).collect();
                Ok(vec![Value::shared(self.graph.node(kind.clone(), &operands)?)])
            }
        }
    }

    /// The table: a node of one result whose value differs from example to example.
    fn one(&self, kind: &NodeKind, operands: &[Value]) -> Step {
        let first = || &operands[0].tensor;
        let behind = |axis: u8| axis + 1;
        match kind {
            NodeKind::Input { .. } | NodeKind::Const(_) | NodeKind::Data(_) | NodeKind::Iota { .. } => {
                refuse("a value without operands, which is the same for all examples")
            }
            NodeKind::Random { shape, stream } => self.bits(shape, *stream, &operands[0]),
            NodeKind::Map(_) => {
                let whole: Vec<Tensor> = operands.iter().map(|v| self.whole(v)).collect::<Step<_>>()?;
                self.graph.node(kind.clone(), &whole.iter().collect::<Vec<_>>())
            }
            NodeKind::Convert(_) | NodeKind::Bitcast(_) | NodeKind::Copy => first().node(kind.clone()),
            NodeKind::Einsum {
                inputs,
                output,
                semiring,
                accumulator,
                dtype,
            } => {
                let new = inputs.iter().flatten().map(|l| l + 1).max().unwrap_or(0);
                let labels = |own: &Labels, has: bool| -> Labels {
                    let new = has.then_some(new);
                    new.into_iter().chain(own.iter().copied()).collect()
                };
                let all: Vec<Labels> = (inputs.iter().zip(operands))
                    .map(|(own, v)| labels(own, v.is_batched))
                    .collect();
                let terms: Vec<(&Tensor, &[u16])> = (operands.iter().zip(&all))
                    .map(|(v, labels)| (&v.tensor, &labels[..]))
                    .collect();
                contract_over(*semiring, &terms, &labels(output, true), *accumulator, *dtype)
            }
            NodeKind::Reduce { monoid, axes } => first().node(NodeKind::Reduce {
                monoid: *monoid,
                axes: axes.iter().map(|&a| behind(a)).collect(),
            }),
            NodeKind::View(view) => self.view(view, first()),
            NodeKind::Gather { axes } => self.gather(axes, operands),
            NodeKind::Scatter { axes, op } => self.scatter(axes, *op, operands),
            NodeKind::Scan {
                monoid,
                axis,
                exclusive,
                reverse,
            } => first().node(NodeKind::Scan {
                monoid: *monoid,
                axis: behind(*axis),
                exclusive: *exclusive,
                reverse: *reverse,
            }),
            NodeKind::Loop(_) | NodeKind::Call(_) | NodeKind::Region(_) | NodeKind::Project(_) => {
                refuse("a node of several results")
            }
        }
    }
}

impl Batch {
    /// Random bits for each example: of one key all of them at once. With a key for each example they are what that key gives alone,
    /// which is a node for each.
    fn bits(&self, shape: &[IndexExpr], stream: u32, key: &Value) -> Step {
        if !key.is_batched {
            let shape = self.shape(shape).into();
            return key.tensor.node(NodeKind::Random { shape, stream });
        }
        let repeat = self.graph.repeat(Dim(self.size.clone())).slice(&key.tensor, 0);
        let mut iteration = repeat.start();
        let shape = shape.into();
        let bits = iteration.slices[0].node(NodeKind::Random { shape, stream })?;
        iteration.stack(&bits, 0);
        Ok(repeat.finish(iteration, vec![]).remove(0))
    }
}

/// Whether a node draws random numbers, in a body of its own too.
fn draws(kind: &NodeKind) -> bool {
    let any = |body: &IrGraph| body.nodes().any(|(_, n)| draws(&n.kind));
    match kind {
        NodeKind::Random { .. } => true,
        NodeKind::Loop(it) => any(&it.body.0),
        NodeKind::Region(region) => any(&region.body.0),
        _ => false,
    }
}
