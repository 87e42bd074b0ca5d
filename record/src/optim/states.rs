//! Optimizers whose parameters, and what is remembered of them, are states of the graph.
//!
//! Invariant: a step sets everything or nothing: the number of steps, each parameter, its master and each slot by the same condition. A loss scale
//! is what a step without effect changes.

use tlc_ir::DType;
use tlc_runtime::driver::RunError;

use super::accumulate::{Part, accumulate_scaled};
use super::clip;
use super::groups::Groups;
use super::loss_scale::LossScale;
use super::optimizer::Update;
use super::rule::Slot;
use crate::autodiff::grad;
use crate::compile::State;
use crate::dim::Dim;
use crate::graph::scope::{Step, record, refuse_expecting};
use crate::graph::{Graph, Tensor};

/// What [`Groups::gradients`] and [`Groups::accumulate`] find.
#[derive(Clone, Debug)]
pub struct Gradients {
    /// The loss, without any scale.
    pub loss: Tensor,
    /// The gradient of each parameter.
    pub gradients: Vec<Tensor>,
    /// Whether the loss and all gradients are finite numbers: `bool[]`.
    pub ok: Tensor,
}

impl Gradients {
    #[track_caller]
    fn checked(loss: Tensor, gradients: Vec<Tensor>) -> Gradients {
        let mut ok = loss.is_finite();
        if !gradients.is_empty() {
            ok &= clip::all_finite(&gradients.iter().collect::<Vec<_>>());
        }
        Gradients { loss, gradients, ok }
    }
}

/// The state that counts the steps that were taken, `u64[]`, of an optimizer without another [name](Groups::named).
pub const STEPS: &str = "optimizer.steps";

/// The slot of a parameter that has it in f32.
const MASTER: &str = "master";

/// The states that move with a parameter, with their names.
struct Moved {
    master: Option<(String, Tensor)>,
    slots: Vec<(String, Tensor)>,
}

impl Groups {
    /// The state that counts the steps that were taken, `u64[]`: [`STEPS`] unless it has another [name](Groups::named).
    pub fn steps(&self) -> String {
        format!("{}.steps", self.name)
    }

    /// The state of a slot of a parameter.
    fn slot_name(&self, parameter: &str, slot: &str) -> String {
        format!("{}.{parameter}.{slot}", self.name)
    }

    /// The numbers of parameters that take their steps together, in the order of the first of each.
    fn together(&self, parameters: &[(&str, &Tensor)]) -> Vec<Vec<usize>> {
        let mut all: Vec<(Option<usize>, Vec<usize>)> = vec![];
        for (k, (name, _)) in parameters.iter().enumerate() {
            let (group, joint) = (self.number_of(name), self.of(name).moves_together());
            match all.iter_mut().find(|(of, _)| joint && *of == group) {
                Some((_, members)) => members.push(k),
                None => all.push((group, vec![k])),
            }
        }
        all.into_iter().map(|(_, members)| members).collect()
    }

    /// Records a step down the gradient of a loss, a number, that sets parameters: states by their names, and the tensors that
    /// [`Graph::state`](crate::Graph::state) gave for them. What is remembered of a parameter is the states `optimizer.NAME.SLOT`, the number of steps
    /// [`STEPS`]; [`Groups::prepare`] makes them. With another [name](Groups::named) they begin with that, so that one graph may have several
    /// optimizers, each for its own parameters and down its own loss. Where the loss or a gradient is no finite number, all of them keep their values, to the
    /// bit. Returns whether that was not so, `bool[]`.
    ///
    /// ```
    /// use tlc::optim::Groups;
    /// use tlc::{CompileOptions, DType, Graph, State, inputs};
    ///
    /// // A line through points.
    /// let g = Graph::new("train");
    /// let (x, y) = (g.input("x", DType::F64, [4]), g.input("y", DType::F64, [4]));
    /// let (slope, offset) = (g.state("slope", DType::F64, ()), g.state("offset", DType::F64, ()));
    /// let loss = (&slope * &x + &offset - &y).square().mean(..);
    /// let optimizer: Groups = "adam:lr=0.1".parse()?;
    /// optimizer.minimize(&loss, &[("slope", &slope), ("offset", &offset)]);
    /// g.output("loss", &loss);
    /// let train = g.compile(&CompileOptions::default())?;
    ///
    /// let mut state = State::new();
    /// state.insert("slope", 0.0)?;
    /// state.insert("offset", 0.0)?;
    /// optimizer.prepare(&mut state, &["slope", "offset"])?;
    /// for _ in 0..500 {
    ///     train.run_with(&mut state, &inputs![&[0.0, 1.0, 2.0, 3.0], &[1.0, 3.0, 5.0, 7.0]])?;
    /// }
    /// assert!((state["slope"].as_scalar::<f64>()? - 2.0).abs() < 1e-3);
    /// assert!((state["offset"].as_scalar::<f64>()? - 1.0).abs() < 1e-3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`grad`], [`Optimizer::update`](super::Optimizer::update) and [`Graph::set`](crate::Graph::set); a parameter that is not the state
    /// of its name.
    #[track_caller]
    pub fn minimize(&self, loss: &Tensor, parameters: &[(&str, &Tensor)]) -> Tensor {
        let Gradients { gradients, ok, .. } = self.gradients(loss, parameters);
        self.step_if(&ok, parameters, &gradients);
        ok
    }

    /// The gradients that [`Groups::minimize`] steps by, for a program that does more with them before it calls [`Groups::step_if`]: with a
    /// [loss scale](Groups::loss_scale) they are divided by it already, in f32.
    ///
    /// ```
    /// use tlc::optim::{Groups, clip};
    /// use tlc::{DType, Graph};
    ///
    /// let g = Graph::new("train");
    /// let w = g.state("w", DType::F16, [3]);
    /// let loss = w.cast(DType::F32).square().sum(..);
    /// let optimizer: Groups = "adam:lr=0.1; masters=true; loss_scale=65536".parse()?;
    /// let found = optimizer.gradients(&loss, &[("w", &w)]);
    /// let (clipped, norm) = clip::by_global_norm(&found.gradients.iter().collect::<Vec<_>>(), 1.0);
    /// optimizer.step_if(&found.ok, &[("w", &w)], &clipped);
    /// g.output("norm", &norm);
    /// # g.check()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`grad`]; a loss scale that is none.
    #[track_caller]
    pub fn gradients(&self, loss: &Tensor, parameters: &[(&str, &Tensor)]) -> Gradients {
        let tensors: Vec<&Tensor> = parameters.iter().map(|(_, p)| *p).collect();
        let Some(factor) = self.factor(loss.graph()) else {
            return Gradients::checked(loss.clone(), grad(loss, &tensors));
        };
        let body = || {
            let wide = loss.dtype().accumulator();
            Ok(loss.to(wide)? * factor.to(wide)?)
        };
        let scaled = record(loss.graph(), "loss_scale", &[loss, &factor], &[], body, |p| p);
        let found = grad(&scaled, &tensors);
        let body = || {
            let inverse = 1.0 / &factor;
            let plain = |d: &Tensor| {
                let wide = d.dtype().accumulator();
                Ok(d.to(wide)? * inverse.to(wide)?)
            };
            found.iter().map(plain).collect::<Step<Vec<_>>>()
        };
        let operands: Vec<&Tensor> = found.iter().chain([&factor]).collect();
        let poison = |p: Tensor| vec![p; found.len()];
        let plain = record(loss.graph(), "loss_scale", &operands, &[], body, poison);
        Gradients::checked(loss.clone(), plain)
    }

    /// As [`Groups::gradients`], of a batch that is taken part by part: see [`accumulate`](super::accumulate). The loss is the mean
    /// over the batch.
    ///
    /// # Errors
    /// As [`accumulate`](super::accumulate) and [`Groups::gradients`].
    ///
    /// # Panics
    /// Without parameters, which have no graph.
    #[track_caller]
    pub fn accumulate(
        &self,
        parts: usize,
        batch: &[&Tensor],
        parameters: &[(&str, &Tensor)],
        f: impl FnOnce(&Part) -> (Tensor, Tensor),
    ) -> Gradients {
        let tensors: Vec<&Tensor> = parameters.iter().map(|(_, p)| *p).collect();
        let graph = tensors.first().expect("no parameters belong to no graph").graph();
        let factor = self.factor(graph);
        let (loss, gradients) = accumulate_scaled(parts, batch, &tensors, factor.as_ref(), f);
        Gradients::checked(loss, gradients)
    }

    /// The factor of the loss, if there is one.
    #[track_caller]
    fn factor(&self, graph: &Graph) -> Option<Tensor> {
        let scale = self.scale.as_ref()?;
        let body = || {
            scale.checked()?;
            let [(_, factor), _] = LossScale::states(graph, &self.name);
            Ok(factor)
        };
        Some(record(graph, "loss_scale", &[], &[], body, |p| p))
    }

    /// Records a step by gradients of one's own, as [`Groups::minimize`], where `ok` holds: a bool of rank 0 that is known before anything
    /// is set.
    ///
    /// # Errors
    /// As [`Groups::minimize`]; another number of gradients than of parameters.
    #[track_caller]
    pub fn step_if(&self, ok: &Tensor, parameters: &[(&str, &Tensor)], gradients: &[Tensor]) {
        let graph = ok.graph().clone();
        let mut operands = vec![ok];
        operands.extend(parameters.iter().map(|(_, p)| *p));
        operands.extend(gradients);
        let body = || {
            if parameters.len() != gradients.len() {
                return refuse_expecting(
                    format!("{} gradients of {} parameters", gradients.len(), parameters.len()),
                    "one of each",
                );
            }
            if graph.is_set(&self.steps()) {
                let problem = format!("the state `{}` is set already, by another step", self.steps());
                return refuse_expecting(problem, "a name for each optimizer of a graph: Groups::named");
            }
            let taken = graph.state(&self.steps(), DType::U64, ());
            let step = &taken + 1;
            graph.set_if(ok, &self.steps(), &step);
            for (name, parameter) in parameters {
                // Another's value would be set; one that is not read is refused below.
                if graph
                    .state_value(name)
                    .is_some_and(|value| parameter.id() != Some(value))
                {
                    return refuse_expecting(
                        format!("the parameter of the name `{name}` is not the state of that name"),
                        format!("the tensor that Graph::state(\"{name}\", ..) gives"),
                    );
                }
            }
            for members in self.together(parameters) {
                let moved = |k: &usize| self.moved(&graph, parameters[*k].0, parameters[*k].1);
                let moved: Vec<Moved> = members.iter().map(moved).collect();
                let mut updates = Vec::new();
                for (k, moved) in members.iter().zip(&moved) {
                    updates.push(Update {
                        parameter: moved.master.as_ref().map_or(parameters[*k].1, |(_, master)| master),
                        gradient: &gradients[*k],
                        slots: moved.slots.iter().map(|(_, t)| t.clone()).collect(),
                    });
                }
                let optimizer = self.of(parameters[members[0]].0);
                let found = optimizer.update_all(&step, &updates, Some(ok));
                for ((k, moved), (new, after)) in members.iter().zip(&moved).zip(&found) {
                    let (name, parameter) = parameters[*k];
                    graph.set_if(ok, name, &new.to(parameter.dtype())?);
                    if let Some((master, _)) = &moved.master {
                        graph.set_if(ok, master, new);
                    }
                    for (slot, ((state, _), value)) in moved.slots.iter().zip(after).enumerate() {
                        match optimizer.keeps(slot) {
                            true => graph.set(state, value),
                            false => graph.set_if(ok, state, value),
                        }
                    }
                }
            }
            if let Some(scale) = &self.scale {
                scale.checked()?.follow(ok, &self.name)?;
            }
            Ok(())
        };
        record(&graph, "step_if", &operands, &[], body, |_| ());
    }

    /// The states that move with a parameter.
    fn moved(&self, graph: &Graph, name: &str, parameter: &Tensor) -> Moved {
        let shape = parameter.shape();
        let master = self.master(parameter.dtype()).map(|dtype| {
            let state = self.slot_name(name, MASTER);
            let tensor = graph.state(&state, dtype, shape.clone());
            (state, tensor)
        });
        let state = |slot: Slot| {
            let state = self.slot_name(name, slot.name);
            let tensor = graph.state(&state, slot.dtype, slot.shape);
            (state, tensor)
        };
        let slots = self.of(name).slots(parameter.dtype(), &shape);
        Moved {
            master,
            slots: slots.into_iter().map(state).collect(),
        }
    }

    /// The dtype of the master of a parameter of that dtype, if it has one.
    fn master(&self, dtype: DType) -> Option<DType> {
        let wide = dtype.accumulator();
        (self.has_masters && wide != dtype).then_some(wide)
    }

    /// Enters into a state, which has the parameters of these names, what is remembered of them before the first step.
    ///
    /// # Errors
    /// A parameter that is not there; memory that is refused.
    pub fn prepare(&self, state: &mut State, parameters: &[&str]) -> Result<(), RunError> {
        for name in parameters {
            let Some(entry) = state.get(name) else {
                return Err(RunError::StateMissing {
                    name: (*name).to_string(),
                    expected: "a parameter".into(),
                });
            };
            let shape: Vec<Dim> = entry.shape().iter().map(|&n| Dim::from(n as i64)).collect();
            let dtype = entry.dtype();
            if let Some(wide) = self.master(dtype) {
                let values = entry.to_host()?;
                let mut master = tlc_ir::HostTensor::zeros(wide, entry.shape())?;
                (0..values.len()).for_each(|i| master.set(i, values.get(i).convert(wide)));
                state.insert(&self.slot_name(name, MASTER), &master)?;
            }
            for slot in self.of(name).slots(dtype, &shape) {
                let extents: Vec<i64> = slot.shape.iter().filter_map(|d| d.expr().as_const()).collect();
                let extents: Vec<usize> = extents.iter().filter_map(|&n| usize::try_from(n).ok()).collect();
                let first = tlc_ir::Scalar::from_f64(slot.dtype, slot.first);
                let value = tlc_ir::HostTensor::full(&extents, first)?;
                state.insert(&self.slot_name(name, slot.name), &value)?;
            }
        }
        if let Some(scale) = &self.scale {
            state.insert(&format!("{}.loss_scale.value", self.name), scale.first as f32)?;
            state.insert(&format!("{}.loss_scale.good_steps", self.name), 0u64)?;
        }
        state.insert(&self.steps(), 0u64)
    }
}
