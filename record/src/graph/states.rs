//! States: values that stay between calls, by name, in a [`State`](crate::State) of the caller.
//!
//! In the graph language a state is an input, an output, or one of each of the same name: the value before a call, and the one after it.
//! What is recorded here says which of them belong together.
//!
//! Invariants: a name is one input at most and is set once at most; old and new value have one type; the body of a loop has no states of
//! its own.

use tlc_ir::graph::{NodeId, NodeKind, TensorType};
use tlc_ir::{DType, IndexExpr, ScalarOp};
use tlc_passes::devices::StateBinding;

use super::scope::{Step, record, record_printing, refuse, refuse_expecting};
use super::{Graph, Tensor};
use crate::dim::IntoShape;

/// A state that a graph reads or sets.
pub(super) struct Declared {
    name: String,
    ty: TensorType,
    /// The input that it is when a call begins.
    read: Option<NodeId>,
    /// The number of the output that it is when a call ends.
    set: Option<u32>,
}

/// What must hold before a call: so many rows fit behind those that are there.
#[derive(Clone, Debug)]
pub(crate) struct Append {
    /// The state of the elements.
    pub cache: String,
    /// The state that counts them.
    pub length: String,
    /// Extents of the axis, of the cache and of what is appended.
    pub capacity: IndexExpr,
    pub rows: IndexExpr,
}

/// The name of the state that counts the elements of a cache along its axis.
pub(crate) fn length_name(cache: &str) -> String {
    format!("{cache}.length")
}

impl Graph {
    /// The value that the state of that name has when a call begins, whatever the call makes of it. Asked for again, it is the same
    /// tensor.
    ///
    /// States live in a [`State`](crate::State), from call to call, and may be read and set by several executables: what trains a
    /// model and what evaluates it. An extent that is a symbol follows from the state's size, as from an input's.
    ///
    /// ```
    /// use tlc::{CompileOptions, DType, Graph, State, inputs};
    ///
    /// let g = Graph::new("running_sum");
    /// let (sum, x) = (g.state("sum", DType::F64, [2]), g.input("x", DType::F64, [2]));
    /// g.set("sum", &(&sum + &x));
    /// g.output("before", &sum);
    /// let add = g.compile(&CompileOptions::default())?;
    ///
    /// let mut state = State::new();
    /// state.insert("sum", [0.0, 0.0])?;
    /// for _ in 0..3 {
    ///     add.run_with(&mut state, &inputs![&[1.0, 10.0]])?;
    /// }
    /// assert_eq!(state["sum"].as_slice::<f64>()?, [3.0, 30.0]);
    /// let outputs = add.run_with(&mut state, &inputs![&[0.5, 0.5]])?;
    /// assert_eq!(outputs["before"].as_slice::<f64>()?, [3.0, 30.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Graph::input`]; another type than the state is known to have; in the body of a loop.
    #[track_caller]
    pub fn state(&self, name: &str, dtype: DType, shape: impl IntoShape) -> Tensor {
        let shape = shape.into_shape();
        let ty = TensorType { dtype, shape };
        let text = || vec![format!("{name}: {}", self.type_text(&ty))];
        let body = || {
            self.outside_bodies()?;
            self.known_before_calls(&ty)?;
            self.fits(name, &ty)?;
            if let Some(node) = self.state_value(name) {
                return self.wrap(Ok(node));
            }
            let mut state = self.lock();
            let origin = state.origin();
            let added = state.ir.add_input(name, ty.clone(), origin);
            if let Ok(node) = added {
                state.declared(name, ty.clone()).read = Some(node);
            }
            drop(state);
            self.wrap(added)
        };
        record_printing(self, "state", &[], &text, body, |p| p)
    }

    /// Gives the state of that name another value, which it has once a call is over: every read of it in this graph is of the old one. It is
    /// computed in the state's own memory where nothing needs the old value any longer. A state that is only set need not exist before.
    ///
    /// # Errors
    /// A state that is set already; another type than it has when it is read; in the body of a loop, where a value is carried instead; a
    /// size that data decides.
    #[track_caller]
    pub fn set(&self, name: &str, value: &Tensor) {
        let body = || self.set_state(name, value);
        record(self, "set", &[value], &[name.to_string()], body, |_| ());
    }

    /// As [`Graph::set`] where `ok`, a bool of rank 0, holds, else the state keeps its value to the bit: how a training step leaves
    /// everything as it was when its loss is no number.
    ///
    /// ```
    /// use tlc::{CompileOptions, DType, Graph, State, inputs};
    ///
    /// let g = Graph::new("sum_of_numbers");
    /// let (sum, x) = (g.state("sum", DType::F32, ()), g.input("x", DType::F32, ()));
    /// let new = &sum + &x;
    /// g.set_if(&new.is_finite(), "sum", &new);
    /// let add = g.compile(&CompileOptions::default())?;
    /// let mut state = State::new();
    /// state.insert("sum", 1.0f32)?;
    /// for x in [2.0, f32::NAN, 4.0] {
    ///     add.run_with(&mut state, &inputs![x])?;
    /// }
    /// assert_eq!(state["sum"].as_scalar::<f32>()?, 7.0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Graph::set`]; a state that [`Graph::state`] does not read; an `ok` that is no bool of rank 0.
    #[track_caller]
    pub fn set_if(&self, ok: &Tensor, name: &str, value: &Tensor) {
        let body = || {
            if ok.ty().dtype != DType::Bool || ok.ty().rank() != 0 {
                return refuse_expecting(format!("the condition is {}", ok.type_text()), "bool[]");
            }
            let Some(old) = self.state_value(name) else {
                let problem = format!("the state `{name}` has no value to keep: the graph does not read it");
                return refuse_expecting(problem, format!("Graph::state(\"{name}\", ..) before"));
            };
            let old = self.wrap(Ok(old))?;
            self.fits(name, value.ty())?;
            let everywhere = ok.broadcast_to(value.ty().shape.clone());
            let chosen = self.node(NodeKind::Map(ScalarOp::Select), &[&everywhere, value, &old])?;
            self.set_state(name, &chosen)
        };
        record(self, "set_if", &[ok, value], &[name.to_string()], body, |_| ());
    }

    /// The names of the states that are read or set, in the order in which they were named first.
    pub fn state_names(&self) -> Vec<String> {
        self.lock().states.iter().map(|s| s.name.clone()).collect()
    }

    fn set_state(&self, name: &str, value: &Tensor) -> Step<()> {
        self.outside_bodies()?;
        self.fits(name, value.ty())?;
        let mut state = self.lock();
        if state.known(name).is_some_and(|s| s.set.is_some()) {
            drop(state);
            return refuse(format!("the state `{name}` is set already"));
        }
        if state.has_output(name) {
            drop(state);
            return refuse(format!("the name `{name}` is taken by an output"));
        }
        let by_data = value
            .ty()
            .shape
            .iter()
            .any(|e| tlc_ir::graph::control::mentions_data(state.ir.symbols(), e));
        if by_data {
            drop(state);
            return refuse_expecting(
                "data decides how large the value is",
                "a size that is known before the call",
            );
        }
        if let Some(id) = value.id() {
            let number = state.ir.outputs().len() as u32;
            state.ir.add_output(name, id);
            state.declared(name, value.ty().clone()).set = Some(number);
        }
        Ok(())
    }

    /// Refuses in the body of a loop or a region.
    fn outside_bodies(&self) -> Step<()> {
        match self.around() {
            None => Ok(()),
            Some(_) => refuse_expecting(
                "the body of a loop has no states of its own",
                "a state of the graph around it, whose value the body captures or carries",
            ),
        }
    }

    /// Refuses a type that the state of that name does not have.
    fn fits(&self, name: &str, ty: &TensorType) -> Step<()> {
        let known = self.lock().known(name).map(|s| s.ty.clone());
        match known {
            Some(known) if known != *ty => refuse_expecting(
                format!("the state `{name}` is {}", self.type_text(&known)),
                self.type_text(&known),
            ),
            _ => Ok(()),
        }
    }

    /// The value of a state when a call begins, if the graph reads it.
    pub(crate) fn state_value(&self, name: &str) -> Option<NodeId> {
        self.lock().known(name)?.read
    }

    /// Whether a state is given another value.
    pub(crate) fn is_set(&self, name: &str) -> bool {
        let state = self.lock();
        state.states.iter().any(|s| s.name == name && s.set.is_some())
    }

    /// Has calls refuse what does not fit into a cache.
    pub(crate) fn appends(&self, append: Append) {
        self.lock().appends.push(append);
    }

    /// What caches must have room for.
    pub(crate) fn all_appends(&self) -> Vec<Append> {
        self.lock().appends.clone()
    }

    /// Notes that what was differentiated does not depend on a value, if that is an input or a state.
    pub(crate) fn note_unreached(&self, value: NodeId) {
        let mut state = self.lock();
        if let NodeKind::Input { name, .. } = &state.ir.node(value).kind
            && !state.unreached.contains(name)
        {
            let name = name.clone();
            state.unreached.push(name);
        }
    }

    /// The inputs and states that [`Graph::note_unreached`] noted, each once.
    pub(crate) fn all_unreached(&self) -> Vec<String> {
        self.lock().unreached.clone()
    }

    /// Which inputs and outputs of the recorded graph are the old and the new values of states.
    pub(crate) fn state_bindings(&self) -> Vec<StateBinding> {
        let state = self.lock();
        let number = |node: NodeId| match &state.ir.node(node).kind {
            NodeKind::Input { index, .. } => Some(*index),
            _ => None,
        };
        let binding = |s: &Declared| StateBinding {
            input: s.read.and_then(number),
            output: s.set,
        };
        state.states.iter().map(binding).collect()
    }
}

impl super::State {
    /// The state of that name, if there is one.
    fn known(&self, name: &str) -> Option<&Declared> {
        self.state_numbers.get(name).map(|&at| &self.states[at])
    }

    /// The state of that name, of that type if it is new.
    fn declared(&mut self, name: &str, ty: TensorType) -> &mut Declared {
        let at = self.state_numbers.get(name).copied().unwrap_or_else(|| {
            self.state_numbers.insert(name.to_string(), self.states.len());
            self.states.push(Declared {
                name: name.to_string(),
                ty,
                read: None,
                set: None,
            });
            self.states.len() - 1
        });
        &mut self.states[at]
    }
}
