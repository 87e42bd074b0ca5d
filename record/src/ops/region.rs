//! Parts of a graph whose derivative is not that of their nodes.

use std::sync::Arc;

use tlc_ir::IndexExpr;
use tlc_ir::graph::{Body, NodeKind, Region, Rule};

use crate::dim::Dim;
use crate::graph::scope::{Step, making, op, record, refuse, refuse_expecting};
use crate::graph::{Graph, Tensor};

/// What a custom derivative is computed from, see [`custom_vjp`].
#[derive(Debug)]
pub struct Known {
    /// What the function was given.
    pub operands: Vec<Tensor>,
    /// What it returned.
    pub results: Vec<Tensor>,
    /// The cotangents of those results that are floats, in order.
    pub cotangents: Vec<Tensor>,
}

/// A function with a derivative of its own. `function` records it, over tensors of a graph of their own that stand for `operands`;
/// `derivative` records the cotangents of the operands that are floats, in order, each of its operand's type.
///
/// The results are those of `function`: no derivative, compiled, is the same as without one. Second derivatives are those of what
/// `derivative` records.
///
/// ```
/// use tlc::{Graph, custom_vjp, grad};
///
/// // Rounds, and passes cotangents on as if it did not: a straight-through estimator.
/// let g = Graph::default();
/// let x = g.constant([0.4f32, 1.7]);
/// let y = custom_vjp(&[&x], |x| vec![x[0].round()], |known| vec![known.cotangents[0].clone()]);
/// assert_eq!(y[0].eval()?.as_slice::<f32>()?, [0.0, 2.0]);
/// let dx = &grad(&(&y[0] * 3.0).sum(..), &[&x])[0];
/// assert_eq!(dx.eval()?.as_slice::<f32>()?, [3.0, 3.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Cotangents of another number or type; tensors of the graph around in either function; sizes that data decides; no operand.
#[track_caller]
pub fn custom_vjp(
    operands: &[&Tensor],
    function: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
    derivative: impl FnOnce(&Known) -> Vec<Tensor>,
) -> Vec<Tensor> {
    region("custom_vjp", operands, function, Derivative::Custom(derivative))
}

/// A function whose inner values derivatives do not keep: `function` records it, over tensors of a graph of their own that stand for
/// `operands`. [`grad`](crate::grad) and [`vjp`](crate::vjp) compute it again from the operands, where they need its inner values, in
/// place of keeping these from the time when its results were computed.
///
/// Of a chain of `n` equal functions in `√n` checkpoints, the checkpoints' operands and the inner values of one checkpoint are in memory
/// at once, about `2 √n` values in place of `n`, for the time of one more forward pass (Chen, Xu, Zhang and Guestrin, "Training deep
/// nets with sublinear memory cost", 2016). Values and derivatives are those without it, draws of random numbers included, which are the
/// same when they are computed again. Checkpoints may be inside each other; for the iterations of a loop there is
/// [`Repeat::checkpoint_every`](crate::Repeat::checkpoint_every).
///
/// ```
/// use tlc::{Graph, checkpoint, grad};
///
/// let g = Graph::default();
/// let (x, w) = (g.constant([0.5f32, 1.0]), g.constant([2.0f32, 3.0]));
/// let y = checkpoint(&[&x, &w], |t| vec![(&t[0] * &t[1]).sin().exp()]);
/// let plain = (&x * &w).sin().exp();
/// assert_eq!(y[0].eval()?.as_slice::<f32>()?, plain.eval()?.as_slice::<f32>()?);
/// let (d, expected) = (grad(&y[0].sum(..), &[&w]), grad(&plain.sum(..), &[&w]));
/// assert_eq!(d[0].eval()?.as_slice::<f32>()?, expected[0].eval()?.as_slice::<f32>()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Tensors of the graph around in the function, other than its operands; sizes that data decides; no operand.
#[track_caller]
pub fn checkpoint(operands: &[&Tensor], function: impl FnOnce(&[Tensor]) -> Vec<Tensor>) -> Vec<Tensor> {
    region("checkpoint", operands, function, NoFunction::Checkpoint)
}

/// What the derivative of a region is to be.
pub(crate) enum Derivative<F> {
    /// Zero.
    Opaque,
    /// What a function records.
    Custom(F),
    /// That of the function that the region records, which is computed again for it.
    Checkpoint,
}

/// A region whose derivative nobody records.
pub(crate) type NoFunction = Derivative<fn(&Known) -> Vec<Tensor>>;

/// A region over operands of one graph.
#[track_caller]
pub(crate) fn region(
    name: &str,
    operands: &[&Tensor],
    function: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
    derivative: Derivative<impl FnOnce(&Known) -> Vec<Tensor>>,
) -> Vec<Tensor> {
    let Some(graph) = operands.first().map(|t| t.graph()) else {
        return vec![];
    };
    let body = graph.region_body();
    let given = inputs(&body, "x", operands.iter().copied());
    let results = {
        let _inside = graph.enter_loop();
        function(&given)
    };
    let poisons: Vec<Tensor> = results.iter().map(|t| Tensor::poisoned(graph, t.dtype())).collect();
    let unlike = |t: &&Tensor| !t.is_poisoned() && !t.graph().is(&body);
    let foreign = results.iter().find(unlike).cloned();
    if graph.takes_errors(&body) || results.iter().any(Tensor::is_poisoned) {
        return poisons;
    }
    let captured = body.captured();
    let all: Vec<&Tensor> = operands.iter().copied().chain(&captured).collect();
    let (custom, without) = match derivative {
        Derivative::Custom(derivative) => (Some(derivative), Rule::Opaque),
        Derivative::Checkpoint => (None, Rule::Checkpoint),
        Derivative::Opaque => (None, Rule::Opaque),
    };
    let rule = custom.filter(|_| foreign.is_none()).map(|derivative| {
        let inner = graph.region_body();
        let operands = inputs(&inner, "x", all.iter().copied());
        let results_there = inputs(&inner, "y", results.iter());
        let cotangents = inputs(&inner, "d", results.iter().filter(|t| t.dtype().is_float()));
        let known = Known {
            operands,
            results: results_there,
            cotangents,
        };
        let made = {
            let _inside = graph.enter_loop();
            derivative(&known)
        };
        (inner, made)
    });
    if let Some((inner, made)) = &rule
        && (graph.takes_errors(inner) || made.iter().any(Tensor::is_poisoned))
    {
        return poisons;
    }
    let node = || {
        if foreign.is_some() {
            return refuse_expecting("a result of another graph", "one that is computed from the operands");
        }
        let rule = match &rule {
            None => without,
            Some((inner, made)) => {
                if !inner.captured().is_empty() {
                    return refuse_expecting(
                        "a derivative that draws random numbers",
                        "them among the results of the function",
                    );
                }
                Rule::Custom(closed(inner, made)?)
            }
        };
        let body = closed(&body, &results)?;
        let region = Region {
            symbols: symbols(graph, &body, &rule)?,
            body,
            rule,
        };
        graph.tuple(NodeKind::Region(Arc::new(region)), &all, results.len())
    };
    record(graph, name, &all, &[], node, |_| poisons)
}

/// Inputs of the types of tensors.
fn inputs<'t>(body: &Graph, name: &str, like: impl Iterator<Item = &'t Tensor>) -> Vec<Tensor> {
    let input = |(k, t): (usize, &Tensor)| match t.is_poisoned() {
        true => Tensor::poisoned(body, t.dtype()),
        false => body.input(&format!("{name}{k}"), t.dtype(), t.shape()),
    };
    like.enumerate().map(input).collect()
}

/// What was recorded as a body with these outputs.
fn closed(recorded: &Graph, outputs: &[Tensor]) -> Step<Body> {
    let mut body = recorded.with_ir(|ir| ir.clone());
    for t in outputs {
        match t.id() {
            Some(id) if t.graph().is(recorded) => body.add_output("", id),
            _ => return refuse_expecting("a result of another graph", "one that is computed from what is given"),
        }
    }
    Ok(Body(Arc::new(body)))
}

/// The values of the bodies' symbols, which are those of the graph around.
fn symbols(graph: &Graph, body: &Body, rule: &Rule) -> Step<Vec<IndexExpr>> {
    let mut used = body.0.used_symbols();
    if let Rule::Custom(derivative) = rule {
        let others = derivative.0.used_symbols();
        if others.len() != used.len() {
            return refuse("the derivative has other symbols than the function");
        }
        used.iter_mut().zip(others).for_each(|(u, o)| *u |= o);
    }
    if graph.symbol_ranges().len() < used.len() {
        return refuse("the body has a symbol that the graph around it lacks");
    }
    // As in a loop: the region does not wait for what binds a symbol that it does not mention.
    let value = |(s, used): (usize, bool)| match used {
        true => IndexExpr::from(tlc_ir::SymId(s as u32)),
        false => IndexExpr::Const(body.0.symbols()[s].lo),
    };
    Ok(used.into_iter().enumerate().map(value).collect())
}

impl Graph {
    /// The nodes of a body, recorded in this graph: its outputs. `symbols` are what its symbols are here.
    pub(crate) fn recorded_again(&self, body: &Body, symbols: &[IndexExpr], inputs: &[Tensor]) -> Step<Vec<Tensor>> {
        let body = &body.0;
        let mut given = inputs.iter();
        let mut made: Vec<Tensor> = Vec::with_capacity(body.len());
        for (_, node) in body.nodes() {
            let value = match &node.kind {
                NodeKind::Input { .. } => match given.next() {
                    Some(t) => t.clone(),
                    None => return refuse_expecting("a body of more inputs", "those that are given"),
                },
                kind => {
                    let kind = kind.map_sizes(&mut |_, e| tlc_ir::graph::region::outside(symbols, e));
                    let operands: Vec<&Tensor> = node.operands.iter().map(|o| &made[o.index()]).collect();
                    making(node.origin.clone(), || self.node(kind, &operands))?
                }
            };
            made.push(value);
        }
        Ok(body.outputs().iter().map(|o| made[o.node.index()].clone()).collect())
    }
}

impl Graph {
    /// The outputs of a graph of the graph language, recorded in this one: `inputs` in place of its inputs, `symbols` in place of its
    /// symbols.
    #[doc(hidden)]
    #[track_caller]
    pub fn record_ir(&self, ir: &Arc<tlc_ir::Graph>, symbols: &[Dim], inputs: &[&Tensor]) -> Vec<Tensor> {
        let body = Body(Arc::clone(ir));
        let record_again = || {
            let symbols: Vec<IndexExpr> = symbols.iter().map(|d| d.expr().clone()).collect();
            let inputs: Vec<Tensor> = inputs.iter().map(|t| (*t).clone()).collect();
            self.recorded_again(&body, &symbols, &inputs)
        };
        record(self, "record_ir", inputs, &[], record_again, |p| {
            vec![p; ir.outputs().len()]
        })
    }
}

impl Tensor {
    /// A function of the tensor, and what its cotangent is multiplied with: see [`custom_vjp`].
    #[doc(hidden)]
    #[track_caller]
    pub fn with_slope(
        &self,
        name: &str,
        function: impl FnOnce(&Tensor) -> Tensor,
        slope: impl FnOnce(&Tensor, &Tensor) -> Tensor,
    ) -> Tensor {
        op(name, &[self], || {
            let function = |x: &[Tensor]| vec![function(&x[0])];
            let slope = |k: &Known| vec![&k.cotangents[0] * slope(&k.operands[0], &k.results[0])];
            let mut results = region(name, &[self], function, Derivative::Custom(slope));
            results.pop().map_or_else(|| refuse("no result"), Ok)
        })
    }

    /// The same value, which derivatives take for a constant.
    ///
    /// ```
    /// use tlc::{Graph, grad};
    ///
    /// let g = Graph::default();
    /// let x = g.constant([3.0f32]);
    /// let dx = &grad(&(&x * x.stop_gradient()).sum(..), &[&x])[0];
    /// assert_eq!(dx.eval()?.as_slice::<f32>()?, [3.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn stop_gradient(&self) -> Tensor {
        op("stop_gradient", &[self], || {
            if !self.dtype().is_float() {
                return Ok(self.clone());
            }
            let same = |x: &[Tensor]| x.to_vec();
            let mut results = region("stop_gradient", &[self], same, NoFunction::Opaque);
            match results.pop() {
                Some(t) => Ok(t),
                None => refuse("nothing to stop"),
            }
        })
    }
}
