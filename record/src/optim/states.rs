//! Optimizers whose parameters, and what is remembered of them, are states of the graph.
//!
//! Invariant: a step sets everything or nothing: the number of steps, each parameter and each slot by the same condition.

use tlc_ir::DType;
use tlc_runtime::driver::RunError;

use super::clip;
use super::groups::Groups;
use crate::autodiff::grad;
use crate::compile::State;
use crate::dim::Dim;
use crate::graph::Tensor;
use crate::graph::scope::{record, refuse_expecting};

/// The state that counts the steps that were taken, `u64[]`.
pub const STEPS: &str = "optimizer.steps";

/// The state of a slot of a parameter.
fn slot_name(parameter: &str, slot: &str) -> String {
    format!("optimizer.{parameter}.{slot}")
}

impl Groups {
    /// Records a step down the gradient of a loss, a number, that sets parameters: states by their names, and the tensors that
    /// [`Graph::state`](crate::Graph::state) gave for them. What is remembered of a parameter is the states `optimizer.NAME.SLOT`, the number of steps
    /// [`STEPS`]; [`Groups::prepare`] makes them. Where the loss or a gradient is no finite number, all of them keep their values, to the
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
        let tensors: Vec<&Tensor> = parameters.iter().map(|(_, p)| *p).collect();
        let gradients = grad(loss, &tensors);
        let mut ok = loss.is_finite();
        if !gradients.is_empty() {
            ok &= clip::all_finite(&gradients.iter().collect::<Vec<_>>());
        }
        self.step_if(&ok, parameters, &gradients);
        ok
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
            let taken = graph.state(STEPS, DType::U64, ());
            let step = &taken + 1;
            graph.set_if(ok, STEPS, &step);
            for ((name, parameter), gradient) in parameters.iter().zip(gradients) {
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
                let optimizer = self.of(name);
                let slots: Vec<(String, Tensor)> = optimizer
                    .slots(parameter.dtype(), &parameter.shape())
                    .into_iter()
                    .map(|slot| {
                        let state = slot_name(name, slot.name);
                        let tensor = graph.state(&state, slot.dtype, slot.shape);
                        (state, tensor)
                    })
                    .collect();
                let remembered: Vec<&Tensor> = slots.iter().map(|(_, t)| t).collect();
                let (new, after) = optimizer.update(&step, parameter, gradient, &remembered);
                graph.set_if(ok, name, &new);
                for ((state, _), value) in slots.iter().zip(&after) {
                    graph.set_if(ok, state, value);
                }
            }
            Ok(())
        };
        record(&graph, "step_if", &operands, &[], body, |_| ());
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
            for slot in self.of(name).slots(entry.dtype(), &shape) {
                let extents: Vec<i64> = slot.shape.iter().filter_map(|d| d.expr().as_const()).collect();
                let extents: Vec<usize> = extents.iter().filter_map(|&n| usize::try_from(n).ok()).collect();
                let first = tlc_ir::Scalar::from_f64(slot.dtype, slot.first);
                let value = tlc_ir::HostTensor::full(&extents, first)?;
                state.insert(&slot_name(name, slot.name), &value)?;
            }
        }
        state.insert(STEPS, 0u64)
    }
}
