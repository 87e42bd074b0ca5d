//! Loops: a body recorded once, that runs again and again.

mod segments;

use std::sync::Arc;

use tlc_ir::graph::{Along, Body, GraphError, Loop, NodeId, NodeKind, Operands, TensorType};
use tlc_ir::{DType, IndexExpr, SymId};

use crate::dim::{Dim, resolve_axis};
use crate::graph::Graph;
use crate::graph::Tensor;
use crate::graph::scope::{self, Step, refuse, refuse_expecting};

/// A loop about to be recorded: see [`Graph::repeat`].
#[derive(Clone, Debug)]
pub struct Repeat {
    graph: Graph,
    trip: Option<Dim>,
    count: Option<Tensor>,
    condition: Option<Tensor>,
    carried: Vec<Tensor>,
    slices: Vec<(Tensor, i64, bool)>,
    checkpoint_every: Option<usize>,
    /// Carried values that nothing needs after all.
    dropped: Vec<usize>,
}

/// One iteration of a loop while its body is recorded. Its tensors belong to a graph of their own; what the body needs of
/// the graph around it comes in through [`Iteration::capture`].
#[derive(Debug)]
pub struct Iteration {
    graph: Graph,
    /// The number of the iteration, from 0: `i64[]`.
    pub number: Tensor,
    /// What goes around, in the order of [`Repeat::carry`].
    pub carried: Vec<Tensor>,
    /// This iteration's elements of the sliced tensors, in the order of [`Repeat::slice`].
    pub slices: Vec<Tensor>,
    stacks: Vec<(Tensor, i64, bool)>,
    condition: Option<Tensor>,
}

impl Graph {
    /// A loop of `trip` iterations, or fewer if something else ends it before.
    ///
    /// ```
    /// use tlc::{CompileOptions, DType, Graph, inputs};
    ///
    /// let g = Graph::new("filter");
    /// let (x, start) = (g.input("x", DType::F32, [4]), g.input("start", DType::F32, ()));
    /// // y[i] = x[i] + y[i - 1] / 2
    /// let results = g.repeat(4).carry(&start).slice(&x, 0).record(|i| {
    ///     let y = &i.slices[0] + &i.carried[0] * 0.5;
    ///     i.stack(&y, 0);
    ///     vec![y]
    /// });
    /// g.output("last", &results[0]);
    /// g.output("y", &results[1]);
    /// let filter = g.compile(&CompileOptions::default())?;
    /// let found = filter.run(&inputs![&[8.0f32, 0.0, 2.0, 0.0], 0.0f32])?;
    /// assert_eq!(found[0].as_slice::<f32>()?, [2.0]);
    /// assert_eq!(found[1].as_slice::<f32>()?, [8.0, 4.0, 4.0, 2.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn repeat(&self, trip: impl Into<Dim>) -> Repeat {
        Repeat {
            trip: Some(trip.into()),
            ..self.repeat_while_any()
        }
    }

    /// A loop that goes on while a condition holds: `condition` (`bool[]`) says whether the first iteration runs,
    /// [`Iteration::go_on_if`] whether another follows. It has no stacked results and no slices.
    ///
    /// ```
    /// use tlc::{CompileOptions, DType, Graph, inputs};
    ///
    /// let g = Graph::new("halve");
    /// let x = g.input("x", DType::F32, ());
    /// let results = g.repeat_while(&x.gt(1.0)).carry(&x).record(|i| {
    ///     let half = &i.carried[0] * 0.5;
    ///     i.go_on_if(&half.gt(1.0));
    ///     vec![half]
    /// });
    /// g.output("y", &results[0]);
    /// let found = g.compile(&CompileOptions::default())?.run(&inputs![12.0f32])?;
    /// assert_eq!(found[0].as_slice::<f32>()?, [0.75]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn repeat_while(&self, condition: &Tensor) -> Repeat {
        self.repeat_while_any().while_(condition)
    }

    #[doc(hidden)]
    pub fn repeat_while_any(&self) -> Repeat {
        Repeat {
            graph: self.clone(),
            trip: None,
            count: None,
            condition: None,
            carried: Vec::new(),
            slices: Vec::new(),
            checkpoint_every: None,
            dropped: Vec::new(),
        }
    }
}

impl Repeat {
    /// A value that goes around: the first iteration is given `first`, each other one what the one before it returned.
    /// Its type stays as it is.
    pub fn carry(mut self, first: &Tensor) -> Repeat {
        self.carried.push(first.clone());
        self
    }

    /// A tensor of which iteration `i` is given the elements at `i` of an axis; its extent is the trip count.
    pub fn slice(mut self, x: &Tensor, axis: i64) -> Repeat {
        self.slices.push((x.clone(), axis, false));
        self
    }

    /// As [`Repeat::slice`], from the end of the axis to its start.
    pub fn slice_reversed(mut self, x: &Tensor, axis: i64) -> Repeat {
        self.slices.push((x.clone(), axis, true));
        self
    }

    /// The loop ends after so many iterations (`i64[]`), if not before.
    pub fn at_most(mut self, count: &Tensor) -> Repeat {
        self.count = Some(count.clone());
        self
    }

    /// The loop ends when a condition does not hold: `first` (`bool[]`) before the first iteration, then what
    /// [`Iteration::go_on_if`] was given.
    pub fn while_(mut self, first: &Tensor) -> Repeat {
        self.condition = Some(first.clone());
        self
    }

    /// The derivative in reverse mode keeps what every so many-th iteration began with, and computes those in between once more: of `n`
    /// iterations the carried values of about `n / iterations + iterations` are kept in place of `n`, which is least for the square
    /// root of `n`. Values are those of the plain loop, and so are gradients, but for the order in which those of captures are added up.
    ///
    /// The loop is recorded as one over segments of so many iterations, each of them a loop.
    ///
    /// ```
    /// use tlc::{DType, Graph, grad};
    ///
    /// let g = Graph::default();
    /// let x = g.scalar(1.0, DType::F64);
    /// let y = g.repeat(100).checkpoint_every(10).carry(&x).record(|i| vec![i.carried[0].sin()]);
    /// let plain = g.repeat(100).carry(&x).record(|i| vec![i.carried[0].sin()]);
    /// let (d, expected) = (grad(&y[0], &[&x]), grad(&plain[0], &[&x]));
    /// assert_eq!(d[0].eval()?.as_scalar::<f64>()?, expected[0].eval()?.as_scalar::<f64>()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// 0 iterations; a loop without a trip count, which has no derivative in reverse mode.
    pub fn checkpoint_every(mut self, iterations: usize) -> Repeat {
        self.checkpoint_every = Some(iterations);
        self
    }

    /// The loop does not carry the value of that number after all, which no iteration reads: there is no such result. An iteration that was started
    /// has it still, and what it becomes is ignored.
    pub(crate) fn without(mut self, carried: usize) -> Repeat {
        self.dropped.push(carried);
        self
    }

    /// Records the body: `body` returns what the carried values become. The results are the last carried values, then the
    /// stacked ones in the order of [`Iteration::stack`]; what no iteration wrote of those is zero.
    ///
    /// # Errors
    /// A carried value that changes its type, slices that are not as long as the trip count, a body that uses
    /// tensors of the graph around it without [`Iteration::capture`], a loop that nothing ends.
    #[track_caller]
    pub fn record(self, body: impl FnOnce(&mut Iteration) -> Vec<Tensor>) -> Vec<Tensor> {
        let mut iteration = self.start();
        let next = {
            let _inside = self.graph.enter_loop();
            body(&mut iteration)
        };
        self.finish(iteration, next)
    }

    /// An iteration whose body is to be recorded.
    #[track_caller]
    #[doc(hidden)]
    pub fn start(&self) -> Iteration {
        let (inner, number) = self.graph.body();
        let input = |name: String, ty: Option<TensorType>, dtype: DType| match ty {
            Some(ty) => inner.input(&name, ty.dtype, ty.shape.iter().cloned().map(Dim).collect::<Vec<_>>()),
            None => Tensor::poisoned(&inner, dtype),
        };
        let whole = |t: &Tensor| (!t.is_poisoned()).then(|| t.ty().clone());
        let mut carried = Vec::new();
        for (k, t) in self.carried.iter().enumerate() {
            carried.push(input(format!("carried{k}"), whole(t), t.dtype()));
        }
        let mut slices = Vec::new();
        for (k, (t, axis, _)) in self.slices.iter().enumerate() {
            let ty = whole(t).and_then(|mut ty| {
                ty.shape.remove(resolve_axis(*axis, t.rank())?);
                Some(ty)
            });
            slices.push(input(format!("slice{k}"), ty, t.dtype()));
        }
        Iteration {
            graph: inner,
            number,
            carried,
            slices,
            stacks: Vec::new(),
            condition: None,
        }
    }

    /// The loop over a body that was recorded.
    #[track_caller]
    #[doc(hidden)]
    pub fn finish(mut self, iteration: Iteration, mut next: Vec<Tensor>) -> Vec<Tensor> {
        let mut dropped = std::mem::take(&mut self.dropped);
        dropped.sort_unstable();
        for &k in dropped.iter().rev() {
            self.carried.remove(k);
            next.remove(k);
        }
        // Their inputs, without which the body is complete.
        let dropped: Vec<NodeId> = dropped.iter().filter_map(|&k| iteration.carried[k].id()).collect();
        let results = self.carried.iter().chain(iteration.stacks.iter().map(|s| &s.0));
        let poisons: Vec<Tensor> = results.map(|t| Tensor::poisoned(&self.graph, t.dtype())).collect();
        if self.graph.takes_errors(&iteration.graph) {
            return poisons;
        }
        // What was refused in the graph around is reported there already.
        let known = |t: &Tensor| t.is_poisoned() && (t.graph().is(&self.graph) || t.graph().is(&iteration.graph));
        let stacked = iteration.stacks.iter().map(|s| &s.0);
        if next.iter().chain(stacked).chain(&iteration.condition).any(known) {
            return poisons;
        }
        let graph = self.graph.clone();
        let operands = self.operands(&iteration);
        let operands: Vec<&Tensor> = operands.iter().collect();
        let record = || self.recorded(iteration, next, &operands, &dropped);
        scope::record(&graph, "repeat", &operands, &[], record, |_| poisons)
    }

    fn operands(&self, iteration: &Iteration) -> Vec<Tensor> {
        let lead = self.count.iter().chain(&self.condition);
        let rest = self.carried.iter().chain(self.slices.iter().map(|s| &s.0));
        lead.chain(rest).cloned().chain(iteration.graph.captured()).collect()
    }

    fn recorded(
        &self,
        iteration: Iteration,
        next: Vec<Tensor>,
        operands: &[&Tensor],
        dropped: &[NodeId],
    ) -> Step<Vec<Tensor>> {
        if next.len() != self.carried.len() {
            let problem = format!("the body returns {} values", next.len());
            return refuse_expecting(problem, format!("{}, one for each that is carried", self.carried.len()));
        }
        let along = |axis: i64, rank: usize, reverse: bool| match resolve_axis(axis, rank) {
            Some(axis) => Ok(Along {
                axis: axis as u8,
                reverse,
            }),
            None => refuse(format!("axis {axis} of a tensor of rank {rank}")),
        };
        let mut body = iteration.graph.with_ir(|ir| ir.clone());
        let mut outputs: Vec<&Tensor> = Vec::new();
        match (&self.condition, &iteration.condition) {
            (Some(_), Some(c)) => outputs.push(c),
            (None, None) => {}
            (Some(_), None) => return refuse_expecting("a condition that the body does not decide", "go_on_if"),
            (None, Some(_)) => return refuse_expecting("go_on_if without a first condition", "while_"),
        }
        outputs.extend(&next);
        outputs.extend(iteration.stacks.iter().map(|s| &s.0));
        for t in outputs {
            match t.id() {
                Some(id) if t.graph().is(&iteration.graph) => body.add_output("", id),
                _ => {
                    scope::concern([t.graph()]);
                    return refuse_expecting("a result of another graph", "tensors of the body, see capture");
                }
            }
        }
        if !dropped.is_empty() {
            body = without(&body, dropped).map_err(|e| (e.problem, e.expected))?;
        }
        let mut slices = Vec::new();
        for (t, axis, reverse) in &self.slices {
            slices.push(along(*axis, t.rank(), *reverse)?);
        }
        let mut stacks = Vec::new();
        for (t, axis, reverse) in &iteration.stacks {
            stacks.push(along(*axis, t.rank() + 1, *reverse)?);
        }
        let count = body.symbols().len();
        if self.graph.symbol_ranges().len() < count {
            return refuse("the body has a symbol that the graph around it lacks");
        }
        // One that the body does not mention may have any value, and the loop does not wait for what binds it.
        let value = |s: usize, used: bool| match used {
            true => IndexExpr::from(SymId(s as u32)),
            false => IndexExpr::Const(body.symbols()[s].lo),
        };
        let used = body.used_symbols().into_iter().enumerate();
        let symbols = used.map(|(s, used)| value(s, used)).collect();
        let results = self.carried.len() + stacks.len();
        let it = Loop {
            symbols,
            trip: self.trip.as_ref().map(|t| t.expr().clone()),
            counted: self.count.is_some(),
            conditional: self.condition.is_some(),
            carried: self.carried.len(),
            slices: slices.into(),
            stacks: stacks.into(),
            body: Body(Arc::new(body)),
        };
        match self.checkpoint_every {
            Some(every) => segments::recorded(&self.graph, it, operands, every),
            None => self.graph.tuple(NodeKind::Loop(Arc::new(it)), operands, results),
        }
    }
}

/// A body without inputs that no output needs.
fn without(body: &tlc_ir::Graph, dropped: &[NodeId]) -> Result<tlc_ir::Graph, GraphError> {
    let mut graph = tlc_ir::Graph::new(body.name.clone());
    graph.adopt_symbols(body);
    let mut map: Vec<Option<NodeId>> = Vec::with_capacity(body.len());
    for (id, node) in body.nodes() {
        let operands: Option<Operands> = node.operands.iter().map(|o| map[o.index()]).collect();
        map.push(match (&node.kind, operands) {
            _ if dropped.contains(&id) => None,
            (NodeKind::Input { name, ty, .. }, _) => Some(graph.add_input(name, ty.clone(), node.origin.clone())?),
            (kind, Some(operands)) => Some(graph.add(kind.clone(), &operands, node.origin.clone())?),
            (_, None) => None,
        });
    }
    for o in body.outputs() {
        graph.add_output(&o.name, map[o.node.index()].expect("what is dropped is not read"));
    }
    graph.adopt_guards(body, &map);
    Ok(graph)
}

impl Iteration {
    /// The graph that the body is recorded in: for constants and the like.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// A tensor of the graph around the loop, as each iteration sees it. A tensor of the body stays as it is.
    #[track_caller]
    pub fn capture(&self, outer: &Tensor) -> Tensor {
        let around = self.graph.around();
        if outer.graph().is(&self.graph) || !around.is_some_and(|g| g.is(outer.graph())) {
            // What is of a third graph is reported where it is used.
            return outer.clone();
        }
        if outer.is_poisoned() {
            return Tensor::poisoned(&self.graph, outer.dtype());
        }
        scope::record(&self.graph, "capture", &[], &[], || self.graph.capture(outer), |p| p)
    }

    /// A result of the loop that has this iteration's `element` at the iteration's number on a new axis.
    pub fn stack(&mut self, element: &Tensor, axis: i64) {
        self.stacks.push((element.clone(), axis, false));
    }

    /// As [`Iteration::stack`], from the end of the axis to its start.
    pub fn stack_reversed(&mut self, element: &Tensor, axis: i64) {
        self.stacks.push((element.clone(), axis, true));
    }

    /// Whether another iteration follows (`bool[]`), in a loop with a condition.
    pub fn go_on_if(&mut self, condition: &Tensor) {
        self.condition = Some(condition.clone());
    }
}
