//! Calls of an executable.

use std::cell::RefCell;

use tlc_ir::IndexExpr;
use tlc_ir::plan::Layout;
use tlc_runtime::driver::{
    Argument, LoopTime, MemoryNeed, OutputTensor, RunError, Sources, StateView, StepTime, Stopped, TensorView, Watched,
};

use super::input::{self, Input, Named};
use super::output::{Output, OutputMut, Outputs};
use super::specializations::Picked;
use super::state::{Entry, State};
use super::{Executable, Version};
use crate::graph::states::Append;

impl Executable {
    /// Runs with inputs in the order in which the graph declares them; results are in memory of a pool.
    ///
    /// ```
    /// use tlc::{CompileOptions, DType, Graph, inputs};
    ///
    /// let g = Graph::new("hypotenuse");
    /// let (a, b) = (g.input("a", DType::F64, [2]), g.input("b", DType::F64, [2]));
    /// g.output("c", &(a.square() + b.square()).sqrt());
    /// let hypotenuse = g.compile(&CompileOptions::default())?;
    /// let outputs = hypotenuse.run(&inputs![&[3.0, 5.0], &[4.0, 12.0]])?;
    /// assert_eq!(outputs["c"].as_slice::<f64>()?, [5.0, 13.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If inputs do not fit, memory runs out, or a worker panics.
    pub fn run(&self, inputs: &[Input<'_>]) -> Result<Outputs, RunError> {
        self.run_all(inputs)
    }

    /// As [`Executable::run`], with inputs by name, in any order.
    ///
    /// ```
    /// use tlc::{CompileOptions, DType, Graph, inputs};
    ///
    /// let g = Graph::new("ratio");
    /// let (a, b) = (g.input("a", DType::F32, [2]), g.input("b", DType::F32, [2]));
    /// g.output("a/b", &(&a / &b));
    /// let ratio = g.compile(&CompileOptions::default())?;
    /// let outputs = ratio.run_named(&inputs!["b" => &[2.0f32, 4.0], "a" => &[1.0f32, 1.0]])?;
    /// assert_eq!(outputs["a/b"].as_slice::<f32>()?, [0.5, 0.25]);
    /// let error = ratio.run_named(&inputs!["a" => &[1.0f32, 1.0]]).unwrap_err();
    /// assert_eq!(error.to_string(), "input `b` is missing");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Executable::run`]; a name that the graph does not have, one given twice, an input that is missing.
    pub fn run_named(&self, inputs: &[Named<'_, '_>]) -> Result<Outputs, RunError> {
        let names = self.general.inner.plan().inputs.iter().map(|i| i.name.as_str());
        self.run_all(&input::in_order(names, inputs)?)
    }

    #[doc(hidden)]
    pub fn run_all<'a, I: AsRef<Input<'a>>>(&self, inputs: &[I]) -> Result<Outputs, RunError> {
        let outputs = self.with_views(inputs, |views| {
            self.with_version(views, |version| version.inner.run(views))
        })?;
        Ok(self.named(outputs))
    }

    /// Calls `f` with views of the inputs.
    fn with_views<'a, I: AsRef<Input<'a>>, R>(
        &self,
        inputs: &[I],
        f: impl FnOnce(&[TensorView<'_>]) -> Result<R, RunError>,
    ) -> Result<R, RunError> {
        input::with_views(self.plan(), (&self.symbols, &|_| {}), inputs, f)
    }

    /// Runs on a state with inputs in the order in which the graph declares them; results are in memory of a pool. What the graph sets, the
    /// state has when the call returns; when it fails, the state is as it was, or torn ([`State::is_torn`]).
    ///
    /// # Errors
    /// As [`Executable::run`]; a state that is torn, lacks what the graph reads, has it in another type, or frozen where the graph sets it.
    pub fn run_with(&self, state: &mut State, inputs: &[Input<'_>]) -> Result<Outputs, RunError> {
        self.run_all_with(state, inputs)
    }

    /// As [`Executable::run_with`], with inputs by name, in any order.
    ///
    /// # Errors
    /// As [`Executable::run_with`] and [`Executable::run_named`].
    pub fn run_named_with(&self, state: &mut State, inputs: &[Named<'_, '_>]) -> Result<Outputs, RunError> {
        let names = self.plan().inputs.iter().map(|i| i.name.as_str());
        self.run_all_with(state, &input::in_order(names, inputs)?)
    }

    fn run_all_with<'a, I: AsRef<Input<'a>>>(&self, state: &mut State, inputs: &[I]) -> Result<Outputs, RunError> {
        let outputs = self.on_state(state, inputs, true, |version, views, states| {
            version.inner.run_updating(views, states)
        })?;
        Ok(self.named(outputs))
    }

    /// As [`Executable::run_with`], into the caller's memory, as [`Executable::run_into`]; allocates nothing once shapes have been seen.
    ///
    /// ```
    /// use tlc::{CompileOptions, DType, Graph, State, inputs, outputs};
    ///
    /// let g = Graph::new("count");
    /// let n = g.state("n", DType::U64, ());
    /// g.set("n", &(&n + 1));
    /// g.output("before", &n);
    /// let count = g.compile(&CompileOptions::default())?;
    /// let (mut state, mut before) = (State::new(), 0u64);
    /// state.insert("n", 41u64)?;
    /// count.run_with_into(&mut state, &inputs![], &mut outputs![&mut before])?;
    /// assert_eq!((before, state["n"].as_scalar::<u64>()?), (41, 42));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Executable::run_with`] and [`Executable::run_into`].
    pub fn run_with_into(
        &self,
        state: &mut State,
        inputs: &[Input<'_>],
        outputs: &mut [OutputMut<'_>],
    ) -> Result<(), RunError> {
        self.updating(state, inputs, outputs, true, |version, views, states, outputs| {
            version.inner.run_updating_into(views, states, outputs)
        })
    }

    /// An error if a call would append more to a cache than there is room for.
    fn has_room(&self, state: &State, sources: Sources<'_>) -> Result<(), RunError> {
        for append in &self.appends {
            let (capacity, rows) = match (append.capacity.as_const(), append.rows.as_const()) {
                (Some(capacity), Some(rows)) => (capacity, rows),
                _ => self.room(append, sources)?,
            };
            let Some(entry) = state.get(&append.length) else {
                continue;
            };
            entry.bytes()?;
            // What is wrong with another type the call says.
            let Ok(length) = entry.as_scalar::<i64>() else { continue };
            if length < 0 || length.checked_add(rows).is_none_or(|n| n > capacity) {
                return Err(RunError::CacheFull {
                    name: append.cache.clone(),
                    length,
                    capacity,
                    rows,
                });
            }
        }
        Ok(())
    }

    /// How many rows a cache has in a call, and how many are appended.
    fn room(&self, append: &Append, sources: Sources<'_>) -> Result<(i64, i64), RunError> {
        let of = |values: &[i64]| {
            let value = |e: &IndexExpr| e.eval_symbols(values).unwrap_or_default();
            (value(&append.capacity), value(&append.rows))
        };
        match self.general.inner.with_sizes(sources, of) {
            // A version for these sizes may run them.
            Err(RunError::Guard { .. }) => {
                let shapes: Vec<Vec<usize>> = sources.shapes().map(<[usize]>::to_vec).collect();
                let sizes = self.general.inner.sizes(&shapes)?;
                let values: Vec<i64> = sizes.iter().map(|s| s.unwrap_or_default()).collect();
                Ok(of(&values))
            }
            found => found,
        }
    }

    /// A call on a state that writes the caller's memory; `by_sizes` as in [`Executable::on_state`].
    fn updating<R>(
        &self,
        state: &mut State,
        inputs: &[Input<'_>],
        outputs: &mut [OutputMut<'_>],
        by_sizes: bool,
        call: impl FnOnce(&Version, &[TensorView<'_>], &mut [StateView<'_>], &mut [OutputMut<'_>]) -> Result<R, Stopped>,
    ) -> Result<R, RunError> {
        for output in &mut *outputs {
            output.stage(self.general.inner.buffers())?;
        }
        let result = self.on_state(state, inputs, by_sizes, |version, views, states| {
            call(version, views, states, outputs)
        });
        outputs.iter_mut().for_each(|o| o.land(result.is_ok()));
        result
    }

    /// A call with the entries of a state that the graph has; by the version for its sizes, or always by the code for any.
    fn on_state<'a, I: AsRef<Input<'a>>, R>(
        &self,
        state: &mut State,
        inputs: &[I],
        by_sizes: bool,
        call: impl FnOnce(&Version, &[TensorView<'_>], &mut [StateView<'_>]) -> Result<R, Stopped>,
    ) -> Result<R, RunError> {
        let plan = self.plan();
        state.whole()?;
        let complete = state.has_what_is_read(plan)?;
        // Read while inputs are looked at, and written only then.
        let state = RefCell::new(state);
        let of_states = |bind: &mut dyn FnMut(&[IndexExpr], &[usize])| {
            let state = state.borrow();
            state.read(plan).for_each(|(s, entry)| bind(&s.ty.shape, entry.shape()));
        };
        input::with_views(plan, (&self.symbols, &of_states), inputs, |views| {
            let state = &mut **state.borrow_mut();
            let (picked, shapes) = match self.specializations.is_some() || !self.appends.is_empty() || !complete {
                false => (Picked::GENERAL, Vec::new()),
                true => state.with_sources(plan, views, |state, sources| {
                    self.has_room(state, sources)?;
                    let picked = match by_sizes {
                        true => self.pick(sources)?,
                        false => Picked::GENERAL,
                    };
                    let shapes = match complete {
                        true => Vec::new(),
                        false => {
                            let version = picked.version.as_deref().unwrap_or(&self.general);
                            version.inner.state_shapes(sources)?
                        }
                    };
                    Ok::<_, RunError>((picked, shapes))
                })?,
            };
            self.run_picked(&picked, |version| {
                let plan = version.inner.plan();
                state.lend(plan, &shapes, |states| call(version, views, states))
            })
        })
    }

    /// The version that runs a call, or the code for any sizes.
    fn pick<'s>(&self, sources: impl Into<Sources<'s>>) -> Result<Picked, RunError> {
        match &self.specializations {
            Some(s) => s.pick(&self.general, sources.into()),
            None => Ok(Picked::GENERAL),
        }
    }

    /// Calls what runs these inputs, and counts the call.
    fn with_version<T>(
        &self,
        inputs: &[TensorView<'_>],
        call: impl FnOnce(&Version) -> Result<T, RunError>,
    ) -> Result<T, RunError> {
        if self.specializations.is_none() {
            return call(&self.general);
        }
        let picked = self.pick(inputs)?;
        self.run_picked(&picked, call)
    }

    fn run_picked<T>(
        &self,
        picked: &Picked,
        call: impl FnOnce(&Version) -> Result<T, RunError>,
    ) -> Result<T, RunError> {
        let result = call(picked.version.as_deref().unwrap_or(&self.general))?;
        if let Some(s) = &self.specializations {
            s.ran(&self.general, picked);
        }
        Ok(result)
    }

    fn named(&self, outputs: Vec<OutputTensor>) -> Outputs {
        let names = self.general.inner.plan().outputs.iter().map(|o| o.name.clone());
        let named = names.zip(outputs).map(|(name, tensor)| Output { name, tensor });
        Outputs(named.collect())
    }

    /// As [`Executable::run`], taking the inputs. An [`Output`] of an earlier call among them is given away: where the input
    /// is last read where an output of its size is written, that output is computed in its buffer (see
    /// [`tlc_ir::Plan::donations`]), and otherwise the buffer returns to the pool.
    ///
    /// ```
    /// use tlc::{CompileOptions, DType, Graph, inputs};
    ///
    /// let g = Graph::new("decay");
    /// let x = g.input("x", DType::F32, [4]);
    /// g.output("y", &(&x * 0.5));
    /// let decay = g.compile(&CompileOptions::default())?;
    /// let mut state = decay.run(&inputs![&[8.0f32, 4.0, 2.0, 1.0]])?.remove(0);
    /// for _ in 0..2 {
    ///     state = decay.run_donating(inputs![state])?.remove(0);
    /// }
    /// assert_eq!(state.as_slice::<f32>()?, [1.0, 0.5, 0.25, 0.125]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Executable::run`]; what was given away is gone all the same.
    pub fn run_donating<'a>(&self, inputs: impl IntoIterator<Item = Input<'a>>) -> Result<Outputs, RunError> {
        let mut inputs: Vec<Input<'a>> = inputs.into_iter().collect();
        let (picked, shapes) = self.with_views(&inputs, |views| {
            let shapes: Vec<Vec<usize>> = views.iter().map(|v| v.shape.to_vec()).collect();
            Ok((self.pick(views)?, shapes))
        })?;
        let arguments = inputs
            .iter_mut()
            .zip(&shapes)
            .map(|(input, shape)| match input.take_result() {
                Some(output) => Argument::Donated(output.tensor),
                None => Argument::Borrowed(input.view_as(shape)),
            });
        let arguments: Vec<Argument<'_>> = arguments.collect();
        let outputs = self.run_picked(&picked, |version| version.inner.run_donating(arguments))?;
        Ok(self.named(outputs))
    }

    /// Runs into the caller's memory, one place for each output in their order; allocates nothing once the input shapes have
    /// been seen.
    ///
    /// ```
    /// use ndarray::Array2;
    /// use tlc::{CompileOptions, DType, Graph, inputs, outputs};
    ///
    /// let g = Graph::new("square");
    /// let x = g.input("x", DType::F32, [2, 2]);
    /// g.output("y", &x.square());
    /// let square = g.compile(&CompileOptions::default())?;
    /// let (x, mut y) = (Array2::from_elem((2, 2), 3.0f32), Array2::<f32>::zeros((2, 2)));
    /// square.run_into(&inputs![&x], &mut outputs![&mut y])?;
    /// assert_eq!(y, Array2::from_elem((2, 2), 9.0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If inputs or outputs do not fit, memory runs out, or a worker panics.
    pub fn run_into(&self, inputs: &[Input<'_>], outputs: &mut [OutputMut<'_>]) -> Result<(), RunError> {
        self.writing(inputs, outputs, |version, views, outputs| {
            version.inner.run_into(views, outputs)
        })
    }

    /// As [`Executable::run_into`], and returns the outputs' shapes: where data decides a size, there is room for the
    /// largest (see [`Executable::output_shapes`]), and what lies beyond the actual size is anything.
    ///
    /// # Errors
    /// As [`Executable::run_into`].
    pub fn run_into_shaped(
        &self,
        inputs: &[Input<'_>],
        outputs: &mut [OutputMut<'_>],
    ) -> Result<Vec<Vec<usize>>, RunError> {
        self.writing(inputs, outputs, |version, views, outputs| {
            version.inner.run_into_shaped(views, outputs)
        })
    }

    /// A call that writes the caller's memory.
    fn writing<T>(
        &self,
        inputs: &[Input<'_>],
        outputs: &mut [OutputMut<'_>],
        call: impl FnOnce(&Version, &[TensorView<'_>], &mut [OutputMut<'_>]) -> Result<T, RunError>,
    ) -> Result<T, RunError> {
        for output in &mut *outputs {
            output.stage(self.general.inner.buffers())?;
        }
        let result = self.with_views(inputs, |views| {
            self.with_version(views, |version| call(version, views, outputs))
        });
        outputs.iter_mut().for_each(|o| o.land(result.is_ok()));
        result
    }

    /// As [`Executable::run`] with the code for any sizes, and calls `watch` before and after each step of the call.
    ///
    /// # Errors
    /// As [`Executable::run`].
    pub fn run_watched(&self, inputs: &[Input<'_>], watch: &mut dyn FnMut(&Watched<'_>)) -> Result<Outputs, RunError> {
        let outputs = self.with_views(inputs, |views| self.general.inner.run_watched(views, watch))?;
        Ok(self.named(outputs))
    }

    /// As [`Executable::run_into`] with the code for any sizes, and appends the time of each step to `times`. Returns what was
    /// measured in loops.
    ///
    /// # Errors
    /// As [`Executable::run_into`].
    pub fn run_profiled(
        &self,
        inputs: &[Input<'_>],
        outputs: &mut [OutputMut<'_>],
        times: &mut Vec<StepTime>,
    ) -> Result<Vec<LoopTime>, RunError> {
        for output in &mut *outputs {
            output.stage(self.general.inner.buffers())?;
        }
        let result = self.with_views(inputs, |views| self.general.inner.run_profiled(views, outputs, times));
        outputs.iter_mut().for_each(|o| o.land(result.is_ok()));
        result
    }

    /// As [`Executable::run_with_into`] with the code for any sizes, and appends the time of each step to `times`. Returns what was measured in
    /// loops.
    ///
    /// ```
    /// use tlc::{CompileOptions, DType, Graph, State, inputs, outputs};
    ///
    /// let g = Graph::new("momentum");
    /// let (w, rate) = (g.state("w", DType::F32, [1000]), g.input("rate", DType::F32, ()));
    /// g.set("w", &(&w - &w * &rate));
    /// let step = g.compile(&CompileOptions::default())?;
    /// let (mut state, mut times) = (State::new(), Vec::new());
    /// state.insert("w", vec![2.0f32; 1000])?;
    /// step.run_profiled_with(&mut state, &inputs![0.5f32], &mut outputs![], &mut times)?;
    /// assert_eq!(state["w"].as_slice::<f32>()?, [1.0; 1000]);
    /// for time in &times {
    ///     println!("step {}: {} ns", time.step, time.ns);
    /// }
    /// assert_eq!(times.len(), step.plan().steps.len());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Executable::run_with_into`].
    pub fn run_profiled_with(
        &self,
        state: &mut State,
        inputs: &[Input<'_>],
        outputs: &mut [OutputMut<'_>],
        times: &mut Vec<StepTime>,
    ) -> Result<Vec<LoopTime>, RunError> {
        self.updating(state, inputs, outputs, false, |version, views, states, outputs| {
            version.inner.run_updating_profiled(views, states, outputs, times)
        })
    }

    /// Output shapes for the given inputs, the largest where data decides.
    ///
    /// ```
    /// use tlc::{CompileOptions, DType, Graph, inputs};
    ///
    /// let g = Graph::new("pairs");
    /// let n = g.symbol("n", 1..=100);
    /// let x = g.input("x", DType::F32, (&n, 4));
    /// g.output("y", &x.reshape((&n * 2, 2)));
    /// let pairs = g.compile(&CompileOptions::default())?;
    /// assert_eq!(pairs.output_shapes(&inputs![&[[0.0f32; 4]; 3]])?, [[6, 2]]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If the inputs do not fit.
    pub fn output_shapes(&self, inputs: &[Input<'_>]) -> Result<Vec<Vec<usize>>, RunError> {
        self.with_views(inputs, |views| {
            let picked = self.pick(views)?;
            let version = picked.version.as_deref().unwrap_or(&self.general);
            version.inner.output_shapes(views)
        })
    }

    /// What the given inputs' shapes say of the plan's symbols, by position; `None` where data decides.
    ///
    /// # Errors
    /// If the inputs do not fit.
    pub fn sizes(&self, inputs: &[Input<'_>]) -> Result<Vec<Option<i64>>, RunError> {
        self.with_views(inputs, |views| {
            let shapes: Vec<Vec<usize>> = views.iter().map(|v| v.shape.to_vec()).collect();
            self.general.inner.sizes(&shapes)
        })
    }

    /// The memory that a call with the given inputs needs, before it runs.
    ///
    /// # Errors
    /// If the inputs do not fit.
    pub fn memory(&self, inputs: &[Input<'_>]) -> Result<MemoryNeed, RunError> {
        self.with_views(inputs, |views| {
            let picked = self.pick(views)?;
            let version = picked.version.as_deref().unwrap_or(&self.general);
            version.inner.memory(views, &|_, _| false, &|_| false)
        })
    }

    /// The memory that a call on a state with the given inputs needs, before it runs. States that are read count as inputs where the host
    /// computes; entries that are on a GPU already are not missing there.
    ///
    /// # Errors
    /// If the inputs do not fit, or the state lacks what the graph reads, or has it in another type.
    pub fn memory_with(&self, state: &State, inputs: &[Input<'_>]) -> Result<MemoryNeed, RunError> {
        let plan = self.plan();
        state.has_what_is_read(plan)?;
        let of_states = |bind: &mut dyn FnMut(&[IndexExpr], &[usize])| {
            state.read(plan).for_each(|(s, entry)| bind(&s.ty.shape, entry.shape()));
        };
        input::with_views(plan, (&self.symbols, &of_states), inputs, |views| {
            let read: Vec<_> = state.read(plan).map(|(_, entry)| entry.description()).collect();
            let sources = Sources::new(views, &read);
            let picked = self.pick(sources)?;
            let version = picked.version.as_deref().unwrap_or(&self.general);
            let states = &version.inner.plan().states;
            let resident = |number: usize, device: &_| state.is_on(&states[number], device);
            let frozen = |number: usize| state.get(&states[number].name).is_some_and(Entry::is_frozen);
            version.inner.memory(sources, &resident, &frozen)
        })
    }

    /// Arena placement for the given inputs.
    ///
    /// # Errors
    /// If the inputs do not fit.
    pub fn layout(&self, inputs: &[Input<'_>]) -> Result<Layout, RunError> {
        self.with_views(inputs, |views| self.general.inner.layout(views))
    }
}
