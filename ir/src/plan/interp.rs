//! The meaning of a plan: its steps in order, kernels by the kernel interpreter, matrix products in f64.
//!
//! Invariants:
//! - Fresh memory is filled with `0xFF` bytes (NaN as a float), so that a value read before it is written shows; slots that
//!   nothing has written are refused outright.
//! - Aliases share the bytes of the slot they name. Under a [`Layout`] all arena slots share one arena at their offsets, so
//!   slots that overlap while both are live show a wrong result.
//! - Inputs and constants are never written.
//! - A launch whose written slots are all empty does nothing, and takes no time.

use rustc_hash::FxHashMap;

use crate::binding::{condition_waits, most_under};
use crate::dtype::{DType, Scalar};
use crate::graph::control::mentions_data;
use crate::graph::{Condition, TensorType};
use crate::index::{IndexExpr, IndexNode, SymId};
use crate::kernel::Access;
use crate::kernel::interp::{Buffers, KernelError, interpret_on};
use crate::plan::{
    DeviceId, Epilogue, Gemm, GemmOperand, HostCall, Launch, Layout, LibraryEpilogue, Plan, PlanState, Repeat, SlotId,
    Step, Storage, Strides, WindowedAxis,
};
use crate::scalar::ScalarOp;
use crate::tensor::{HostTensor, TensorError};

/// Why a plan could not be run, or broke a rule while it ran.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The inputs do not fit the declared ones.
    #[error("input {position}: {problem}")]
    Input {
        /// Position of the input.
        position: usize,
        /// What is wrong.
        problem: String,
    },
    /// An assumption about symbols does not hold.
    #[error("guard {0:?} does not hold")]
    Guard(Condition),
    /// An index expression has no value for the bound symbols, or a negative one.
    #[error("{0:?} is not a size")]
    Size(IndexExpr),
    /// A slot is read that nothing wrote.
    #[error("step {step}: slot {} is read before it is written", .slot.0)]
    Unwritten {
        /// Number of the step.
        step: usize,
        /// The slot.
        slot: SlotId,
    },
    /// A slot is written that is the caller's or constant.
    #[error("step {step}: slot {} is written, but is an input or constant", .slot.0)]
    ReadOnly {
        /// Number of the step.
        step: usize,
        /// The slot.
        slot: SlotId,
    },
    /// A slot has no place, or not inside its region.
    #[error("slot {} has no place for {bytes} bytes", .slot.0)]
    Place {
        /// The slot.
        slot: SlotId,
        /// What it needs.
        bytes: usize,
    },
    /// A kernel could not be run.
    #[error("step {step} ({label}): {source}")]
    Kernel {
        /// Number of the step.
        step: usize,
        /// What it computes.
        label: String,
        /// Why.
        source: KernelError,
    },
    /// A kernel behind a product does not compute what the library is said to compute in its place.
    #[error("step {step}: slot {} does not hold what a library leaves behind the product", .slot.0)]
    LibraryEpilogue {
        /// Number of the step.
        step: usize,
        /// What the kernel wrote.
        slot: SlotId,
    },
    /// A matrix product or copy leaves its slot.
    #[error("step {step} accesses slot {} outside its length", .slot.0)]
    OutOfBounds {
        /// Number of the step.
        step: usize,
        /// The slot.
        slot: SlotId,
    },
    /// A loop that runs more than [`MAX_ITERATIONS`] times, or whose body does.
    #[error("step {step}: the loop runs more than {MAX_ITERATIONS} times")]
    Iterations {
        /// Number of the step.
        step: usize,
    },
    /// A step of a loop's body.
    #[error("step {step}: in the loop: {source}")]
    Body {
        /// Number of the loop's step.
        step: usize,
        /// What went wrong in it.
        source: Box<PlanError>,
    },
    /// A loop whose parts do not fit its body.
    #[error("step {step}: the loop's body has no such input or output")]
    BodyShape {
        /// Number of the step.
        step: usize,
    },
    /// A tensor could not be made.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// The most iterations of a loop that are interpreted.
pub const MAX_ITERATIONS: usize = 1 << 20;

/// Symbol values for the given inputs: an extent that is a bare symbol binds it; others take their smallest value.
///
/// # Errors
/// [`PlanError::Input`], [`PlanError::Guard`].
pub fn bind(plan: &Plan, inputs: &[HostTensor]) -> Result<Vec<i64>, PlanError> {
    let mut values: Vec<Option<i64>> = vec![None; plan.symbols.len()];
    let fail = |position, problem: String| PlanError::Input { position, problem };
    if inputs.len() != plan.inputs.len() {
        let problem = format!("{} inputs expected, found {}", plan.inputs.len(), inputs.len());
        return Err(fail(inputs.len(), problem));
    }
    for (i, (declared, given)) in plan.inputs.iter().zip(inputs).enumerate() {
        if declared.ty.dtype != given.dtype() || declared.ty.rank() != given.shape().len() {
            let problem = format!("{}{:?} does not fit {:?}", given.dtype(), given.shape(), declared.ty);
            return Err(fail(i, problem));
        }
        for (d, &n) in declared.ty.shape.iter().zip(given.shape()) {
            if let IndexExpr::Node(node) = d
                && let IndexNode::Sym(SymId(s)) = &**node
            {
                values[*s as usize].get_or_insert(n as i64);
            }
        }
    }
    let mut symbols: Vec<i64> = Vec::new();
    for (v, s) in values.iter().zip(&plan.symbols) {
        let most = s.upper.as_ref().and_then(|e| most_under(&plan.symbols, e, &symbols));
        symbols.push(v.or(most).unwrap_or(s.lo));
    }
    for (i, (declared, given)) in plan.inputs.iter().zip(inputs).enumerate() {
        for (d, &n) in declared.ty.shape.iter().zip(given.shape()) {
            if d.eval_symbols(&symbols) != i64::try_from(n).ok() {
                return Err(fail(i, format!("extent {n}, expected {d:?} under {symbols:?}")));
            }
        }
    }
    for guard in &plan.guards {
        if condition_waits(&plan.symbols, &guard.condition) {
            continue;
        }
        let holds = match &guard.condition {
            Condition::Equal(a, b) => a.eval_symbols(&symbols) == b.eval_symbols(&symbols),
            Condition::NonNegative(e) => e.eval_symbols(&symbols).is_none_or(|v| v >= 0),
        };
        if !holds {
            return Err(PlanError::Guard(guard.condition.clone()));
        }
    }
    Ok(symbols)
}

/// Runs a plan once, with its `init` steps, and returns its outputs. Without a layout every arena slot has memory of its
/// own, shared only with its aliases.
///
/// # Errors
/// [`PlanError`].
pub fn interpret(plan: &Plan, layout: Option<&Layout>, inputs: &[HostTensor]) -> Result<Vec<HostTensor>, PlanError> {
    let symbols = bind(plan, inputs)?;
    interpret_bound(plan, layout, inputs, &symbols)
}

/// As [`interpret`], for symbol values that the inputs need not determine.
///
/// # Errors
/// [`PlanError`].
pub fn interpret_bound(
    plan: &Plan,
    layout: Option<&Layout>,
    inputs: &[HostTensor],
    symbols: &[i64],
) -> Result<Vec<HostTensor>, PlanError> {
    run(plan, layout, (inputs, &mut []), (symbols, false), None)
}

/// As [`interpret_bound`], for a plan with states, which the call updates: those that hold no value before are replaced. With a
/// seed, in an order of steps as [`interpret_shuffled`] takes.
///
/// # Errors
/// [`PlanError`]; then the states are as they were.
pub fn interpret_with_states(
    plan: &Plan,
    layout: Option<&Layout>,
    inputs: &[HostTensor],
    states: &mut [HostTensor],
    symbols: &[i64],
    seed: Option<u64>,
) -> Result<Vec<HostTensor>, PlanError> {
    run(plan, layout, (inputs, states), (symbols, false), seed)
}

/// As [`interpret_bound`], with the steps of a call in another order: a random one, as the seed says, of those that the plan's
/// queues and waits allow. Bodies of loops as well.
///
/// # Errors
/// [`PlanError`].
pub fn interpret_shuffled(
    plan: &Plan,
    layout: Option<&Layout>,
    inputs: &[HostTensor],
    symbols: &[i64],
    seed: u64,
) -> Result<Vec<HostTensor>, PlanError> {
    run(plan, layout, (inputs, &mut []), (symbols, false), Some(seed))
}

/// `decided` says that each symbol has its value, also those that data decides.
fn run(
    plan: &Plan,
    layout: Option<&Layout>,
    (inputs, states): (&[HostTensor], &mut [HostTensor]),
    (symbols, decided): (&[i64], bool),
    seed: Option<u64>,
) -> Result<Vec<HostTensor>, PlanError> {
    let mut m = Machine::new(plan, layout, (inputs, states), (symbols.to_vec(), decided), seed)?;
    let init = plan.init.len();
    for (number, step) in plan.init.iter().enumerate() {
        m.step(number, step, None)?;
    }
    let order = match seed {
        Some(seed) => plan.order().shuffled(seed),
        None => (0..plan.steps.len()).collect(),
    };
    for at in order {
        let step = &plan.steps[at];
        let is_loop = |s: &&Step| matches!(s, Step::Loop(_));
        let body = match step {
            Step::Loop(_) => {
                let loops = plan.steps[..at].iter().filter(is_loop).count();
                layout.and_then(|l| l.bodies.get(loops)).map(|b| &b.layout)
            }
            _ => None,
        };
        m.step(init + at, step, body)?;
    }
    let outputs: Vec<HostTensor> = (plan.outputs.iter().map(|o| m.result(o.slot, &o.ty))).collect::<Result<_, _>>()?;
    let set = |s: &PlanState| s.set.map(|slot| m.result(slot, &s.ty)).transpose();
    let updated: Vec<Option<HostTensor>> = plan.states.iter().map(set).collect::<Result<_, _>>()?;
    for (state, new) in states.iter_mut().zip(updated) {
        if let Some(new) = new {
            *state = new;
        }
    }
    Ok(outputs)
}

struct Machine<'p> {
    plan: &'p Plan,
    symbols: Vec<i64>,
    regions: Vec<Vec<u8>>,
    /// Region and byte offset of each slot.
    places: Vec<(usize, usize)>,
    lens: Vec<usize>,
    /// By slot: what is viewed only.
    written: Vec<bool>,
    /// The parts of each slot that is made up of some.
    parts: FxHashMap<SlotId, Vec<SlotId>>,
    /// Of the order of steps, if it is random.
    seed: Option<u64>,
}

impl<'p> Machine<'p> {
    fn new(
        plan: &'p Plan,
        layout: Option<&Layout>,
        (inputs, states): (&[HostTensor], &[HostTensor]),
        (symbols, decided): (Vec<i64>, bool),
        seed: Option<u64>,
    ) -> Result<Self, PlanError> {
        let mut m = Machine {
            plan,
            symbols,
            regions: Vec::new(),
            places: vec![(0, 0); plan.slots.len()],
            lens: Vec::new(),
            written: vec![false; plan.slots.len()],
            parts: plan.parts(),
            seed,
        };
        for slot in &plan.slots {
            // As large as data may make it, where it is not known how large it is.
            let most = match decided {
                true => slot.len.eval_symbols(&m.symbols).and_then(|n| usize::try_from(n).ok()),
                false => plan.most(&slot.len, &m.symbols).and_then(|n| usize::try_from(n).ok()),
            };
            m.lens.push(most.ok_or_else(|| PlanError::Size(slot.len.clone()))?);
        }
        // The arena of each device comes first.
        for device in 0..plan.devices.len() {
            let arena = layout.map_or(0, |l| l.arena(DeviceId(device as u32)).bytes);
            m.regions.push(vec![0xFF; arena as usize]);
        }
        for (i, slot) in plan.slots.iter().enumerate() {
            let id = SlotId(i as u32);
            let bytes = m.lens[i] * slot.dtype.bytes();
            let device = slot.device.0 as usize;
            if device >= plan.devices.len() {
                return Err(PlanError::Place { slot: id, bytes });
            }
            let given = match &slot.storage {
                Storage::Alias(_) | Storage::Part { .. } => continue,
                Storage::Arena if layout.is_some() => {
                    let at = layout.and_then(|l| l.offsets.get(i).copied().flatten());
                    let at = at.filter(|&at| at as usize + bytes <= m.regions[device].len());
                    m.places[i] = (device, at.ok_or(PlanError::Place { slot: id, bytes })? as usize);
                    continue;
                }
                Storage::Input(k) => inputs.get(*k as usize),
                Storage::Constant(k) => plan.constants.get(*k as usize),
                Storage::State(k) if plan.states.get(*k as usize).is_some_and(|s| s.read) => states.get(*k as usize),
                Storage::State(_) | Storage::Output(_) | Storage::Persistent | Storage::Arena | Storage::Lines => {
                    m.places[i] = (m.regions.len(), 0);
                    m.regions.push(vec![0xFF; bytes]);
                    continue;
                }
            };
            let data = given
                .filter(|t| t.bytes().len() == bytes && t.dtype() == slot.dtype)
                .ok_or(PlanError::Place { slot: id, bytes })?;
            m.places[i] = (m.regions.len(), 0);
            m.regions.push(data.bytes().to_vec());
            m.written[i] = true;
        }
        for (i, slot) in plan.slots.iter().enumerate() {
            if let Storage::Alias(_) | Storage::Part { .. } = slot.storage {
                let root = plan.root(SlotId(i as u32)).0 as usize;
                let bytes = m.lens[i] * slot.dtype.bytes();
                let begin = plan.begins(SlotId(i as u32)).map_or(Ok(0), |e| m.size(&e))?;
                if begin.saturating_add(bytes) > m.lens[root] * plan.slots[root].dtype.bytes() {
                    return Err(PlanError::Place {
                        slot: SlotId(i as u32),
                        bytes,
                    });
                }
                m.places[i] = (m.places[root].0, m.places[root].1 + begin);
            }
        }
        Ok(m)
    }

    /// Whether a slot has been written, or all parts of it.
    fn holds_value(&self, slot: SlotId) -> bool {
        let value = self.plan.viewed(slot);
        let parts = || self.parts.get(&value);
        self.written[value.0 as usize] || parts().is_some_and(|all| all.iter().all(|p| self.holds_value(*p)))
    }

    /// What is in a slot when the call ends.
    fn result(&self, slot: SlotId, ty: &TensorType) -> Result<HostTensor, PlanError> {
        if !self.holds_value(slot) {
            let step = self.plan.init.len() + self.plan.steps.len();
            return Err(PlanError::Unwritten { step, slot });
        }
        self.tensor(slot, &self.shape(&ty.shape)?)
    }

    fn size(&self, e: &IndexExpr) -> Result<usize, PlanError> {
        e.eval_symbols(&self.symbols)
            .and_then(|v| usize::try_from(v).ok())
            .ok_or_else(|| PlanError::Size(e.clone()))
    }

    fn step(&mut self, number: usize, step: &Step, body: Option<&Layout>) -> Result<(), PlanError> {
        let mut touched = Vec::new();
        step.visit_slots(&mut |slot, writes| touched.push((slot, writes)), &self.plan.kernels);
        for &(slot, writes) in &touched {
            let root = self.plan.root(slot);
            if writes {
                let storage = &self.plan.slots[root.0 as usize].storage;
                if matches!(storage, Storage::Input(_) | Storage::Constant(_)) {
                    return Err(PlanError::ReadOnly { step: number, slot });
                }
            } else if !self.holds_value(slot) && !self.plan.makes(step, slot, &|s| self.plan.viewed(s)) {
                return Err(PlanError::Unwritten { step: number, slot });
            }
        }
        match step {
            Step::Launch(l) => self.launch(number, l)?,
            Step::Group(all) | Step::Sequence(all) => all.iter().try_for_each(|l| self.launch(number, l))?,
            Step::Gemm(g) => {
                self.gemm(number, g)?;
                if let Some(e) = &g.epilogue {
                    let said = e
                        .library
                        .map(|l| self.library_epilogue(number, (g, e), l))
                        .transpose()?;
                    self.launch(number, &e.launch)?;
                    said.map_or(Ok(()), |(result, values)| self.holds(number, result, &values))?;
                }
                g.behind().into_iter().try_for_each(|p| self.gemm(number, p))?;
            }
            Step::Copy { src, dst } => {
                for i in 0..self.lens[src.0 as usize] {
                    let v = self.get(number, *src, i as i64)?;
                    self.put(number, *dst, i as i64, v)?;
                }
            }
            Step::Loop(l) => self.repeat(number, l, body)?,
            Step::Call(c) => self.call(number, c)?,
        }
        for (slot, writes) in touched {
            self.written[self.plan.viewed(slot).0 as usize] |= writes;
        }
        Ok(())
    }

    /// What a library would leave behind a product, and where.
    fn library_epilogue(
        &self,
        step: usize,
        (g, e): (&Gemm, &Epilogue),
        l: LibraryEpilogue,
    ) -> Result<(SlotId, Vec<Scalar>), PlanError> {
        let slot = |number: u32| e.launch.args[number as usize];
        let result = slot(l.result);
        let zero = Scalar::from_f64(g.dtype, 0.0);
        let value = |i: i64| -> Result<Scalar, PlanError> {
            let mut value = self.get(step, g.dst.slot, i)?;
            if let Some(bias) = l.bias.map(slot) {
                let at = i % (self.lens[bias.0 as usize] as i64).max(1);
                value = ScalarOp::Add.eval(&[value, self.get(step, bias, at)?]);
            }
            Ok(match l.rectified {
                true => ScalarOp::Max.eval(&[value, zero]),
                false => value,
            })
        };
        let values: Result<_, _> = (0..self.lens[g.dst.slot.0 as usize] as i64).map(value).collect();
        Ok((result, values?))
    }

    /// Whether a slot holds these values, which a kernel left there.
    fn holds(&self, step: usize, slot: SlotId, values: &[Scalar]) -> Result<(), PlanError> {
        for (i, said) in (0i64..).zip(values) {
            let (found, said) = (self.get(step, slot, i)?.as_f64(), said.as_f64());
            if found != said && !(found.is_nan() && said.is_nan()) {
                return Err(PlanError::LibraryEpilogue { step, slot });
            }
        }
        Ok(())
    }

    fn launch(&mut self, number: usize, l: &Launch) -> Result<(), PlanError> {
        let kernel = &self.plan.kernels[l.kernel.0 as usize];
        let mut written = l.args.iter().zip(&kernel.params).filter(|a| a.1.access != Access::Read);
        if written.all(|a| self.lens[a.0.0 as usize] == 0) {
            return Ok(());
        }
        let mut symbols = Vec::new();
        for e in &l.symbols {
            symbols.push(
                e.eval_symbols(&self.symbols)
                    .ok_or_else(|| PlanError::Size(e.clone()))?,
            );
        }
        let args = l.args.iter().map(|s| {
            let slot = &self.plan.slots[s.0 as usize];
            (self.places[s.0 as usize], slot.dtype, self.lens[s.0 as usize])
        });
        let mut buffers = Regions {
            args: args.collect(),
            regions: &mut self.regions,
        };
        interpret_on(kernel, &mut buffers, &symbols).map_err(|source| PlanError::Kernel {
            step: number,
            label: l.label.clone(),
            source,
        })
    }

    /// A slot's elements, in those extents.
    fn tensor(&self, slot: SlotId, shape: &[usize]) -> Result<HostTensor, PlanError> {
        let (region, at) = self.places[slot.0 as usize];
        let dtype = self.plan.slots[slot.0 as usize].dtype;
        let bytes = self.lens[slot.0 as usize] * dtype.bytes();
        Ok(HostTensor::from_bytes(
            dtype,
            shape,
            &self.regions[region][at..at + bytes],
        )?)
    }

    fn fill(&mut self, step: usize, slot: SlotId, data: &HostTensor) -> Result<(), PlanError> {
        if data.len() != self.lens[slot.0 as usize] || data.dtype() != self.plan.slots[slot.0 as usize].dtype {
            return Err(PlanError::OutOfBounds { step, slot });
        }
        let (region, at) = self.places[slot.0 as usize];
        self.regions[region][at..at + data.bytes().len()].copy_from_slice(data.bytes());
        Ok(())
    }

    fn shape(&self, shape: &[IndexExpr]) -> Result<Vec<usize>, PlanError> {
        shape.iter().map(|d| self.size(d)).collect()
    }

    fn call(&mut self, number: usize, c: &HostCall) -> Result<(), PlanError> {
        let mut operands = Vec::new();
        for (slot, shape) in c.operands.iter().zip(&c.shapes) {
            operands.push(self.tensor(*slot, &self.shape(shape)?)?);
        }
        let results = crate::interp::host_results(&c.function, &operands, &self.symbols);
        let results = results.ok_or(PlanError::BodyShape { step: number })?;
        if let (Some(symbol), Some(count)) = (c.function.binds(), results.last()) {
            self.symbols[symbol.0 as usize] = count.get(0).as_i64();
            for (i, slot) in self.plan.slots.iter().enumerate() {
                if mentions_data(&self.plan.symbols, &slot.len) {
                    // What a later call decides is still as large as it may be.
                    let size = self.plan.most(&slot.len, &self.symbols);
                    self.lens[i] = slot
                        .len
                        .eval_symbols(&self.symbols)
                        .map_or_else(|| size.unwrap_or(0) as usize, |n| n.max(0) as usize);
                }
            }
        }
        for (slot, data) in c.results.iter().zip(&results) {
            self.fill(number, *slot, data)?;
        }
        Ok(())
    }

    fn repeat(&mut self, number: usize, l: &Repeat, layout: Option<&Layout>) -> Result<(), PlanError> {
        let misfit = || PlanError::BodyShape { step: number };
        let mut symbols = Vec::new();
        for e in &l.symbols {
            symbols.push(
                e.eval_symbols(&self.symbols)
                    .ok_or_else(|| PlanError::Size(e.clone()))?,
            );
        }
        let trip = l.trip.as_ref().map(|t| self.size(t)).transpose()?;
        let mut limit = trip.unwrap_or(usize::MAX);
        if let Some(count) = l.count {
            limit = limit.min(self.get(number, count, 0)?.as_i64().max(0) as usize);
        }
        let mut goes_on = match l.condition {
            Some(slot) => self.get(number, slot, 0)?.as_i64() != 0,
            None => true,
        };
        let inner = |ty: &TensorType| -> Result<Vec<usize>, PlanError> {
            let size = |d: &IndexExpr| d.eval_symbols(&symbols).and_then(|d| usize::try_from(d).ok());
            ty.shape
                .iter()
                .map(|d| size(d).ok_or_else(|| PlanError::Size(d.clone())))
                .collect()
        };
        let input = |k: usize| l.body.inputs.get(k).ok_or_else(misfit);
        let mut carried = Vec::new();
        for (k, c) in l.carried.iter().enumerate() {
            carried.push(self.tensor(c.first, &inner(&input(1 + k)?.ty)?)?);
        }
        let mut sliced = Vec::new();
        for (k, w) in l.slices.iter().enumerate() {
            let mut shape = inner(&input(1 + l.carried.len() + k)?.ty)?;
            shape.insert((w.along.axis as usize).min(shape.len()), trip.ok_or_else(misfit)?);
            sliced.push(self.tensor(w.slot, &shape)?);
        }
        let mut captures = Vec::new();
        for (k, slot) in l.captures.iter().enumerate() {
            let ty = &input(1 + l.carried.len() + l.slices.len() + k)?.ty;
            captures.push(self.tensor(*slot, &inner(ty)?)?);
        }
        let first = usize::from(l.follows.is_some());
        let mut stacks = Vec::new();
        for (k, w) in l.stacks.iter().enumerate() {
            let output = l.body.outputs.get(first + l.carried.len() + k).ok_or_else(misfit)?;
            let mut shape = inner(&output.ty)?;
            shape.insert((w.along.axis as usize).min(shape.len()), trip.ok_or_else(misfit)?);
            stacks.push((output.ty.dtype, shape, vec![None; trip.unwrap_or(0)]));
        }
        let mut iteration = 0;
        while goes_on && iteration < limit {
            if iteration >= MAX_ITERATIONS {
                return Err(PlanError::Iterations { step: number });
            }
            let index = Scalar::from_i64(DType::I64, iteration as i64);
            let mut inputs = vec![HostTensor::scalar(index)];
            inputs.append(&mut carried);
            for (x, w) in sliced.iter().zip(&l.slices) {
                let at = w.along.position(iteration, trip.unwrap_or(0));
                inputs.push(crate::interp::element(x, w.along.axis as usize, at)?);
            }
            inputs.extend(captures.iter().cloned());
            let seed = self.seed.map(|s| s.wrapping_add(iteration as u64));
            let outputs = run(&l.body, layout, (&inputs, &mut []), (&symbols, true), seed);
            let mut outputs = outputs
                .map_err(|source| PlanError::Body {
                    step: number,
                    source: Box::new(source),
                })?
                .into_iter();
            if l.follows.is_some() {
                goes_on = outputs.next().ok_or_else(misfit)?.get(0).as_i64() != 0;
            }
            carried = outputs.by_ref().take(l.carried.len()).collect();
            for (part, (w, stack)) in outputs.zip(l.stacks.iter().zip(&mut stacks)) {
                stack.2[w.along.position(iteration, trip.unwrap_or(0))] = Some(part);
            }
            iteration += 1;
        }
        for (c, value) in l.carried.iter().zip(&carried) {
            self.fill(number, c.last, value)?;
        }
        for (w, (dtype, shape, parts)) in l.stacks.iter().zip(&stacks) {
            let parts: Vec<Option<&HostTensor>> = parts.iter().map(Option::as_ref).collect();
            let whole = crate::interp::stack(*dtype, shape, w.along.axis as usize, &parts)?;
            self.fill(number, w.slot, &whole)?;
        }
        Ok(())
    }

    fn get(&self, step: usize, slot: SlotId, index: i64) -> Result<Scalar, PlanError> {
        let len = self.lens[slot.0 as usize] as i64;
        if !(0..len).contains(&index) {
            return Err(PlanError::OutOfBounds { step, slot });
        }
        let (region, at) = self.places[slot.0 as usize];
        Ok(read(
            &self.regions[region][at..],
            self.plan.slots[slot.0 as usize].dtype,
            index as usize,
        ))
    }

    fn put(&mut self, step: usize, slot: SlotId, index: i64, value: Scalar) -> Result<(), PlanError> {
        let len = self.lens[slot.0 as usize] as i64;
        if !(0..len).contains(&index) || value.dtype() != self.plan.slots[slot.0 as usize].dtype {
            return Err(PlanError::OutOfBounds { step, slot });
        }
        let (region, at) = self.places[slot.0 as usize];
        write(&mut self.regions[region][at..], index as usize, value);
        Ok(())
    }

    fn gemm(&mut self, step: usize, g: &Gemm) -> Result<(), PlanError> {
        let mut extents = Vec::new();
        for d in g.batch.iter().chain([&g.m, &g.n, &g.k]) {
            extents.push(self.size(d)? as i64);
        }
        let value = |e: &IndexExpr| e.eval_symbols(&self.symbols).ok_or_else(|| PlanError::Size(e.clone()));
        let walk = |w: &Strides| -> Result<Vec<(i64, i64)>, PlanError> {
            let dims = w.dims.iter().map(|l| Ok((value(&l.extent)?, value(&l.stride)?)));
            dims.collect()
        };
        type Dims = Vec<(i64, i64)>;
        type Walked<'o> = (i64, Vec<i64>, [Dims; 2], Vec<(&'o WindowedAxis, [i64; 2], i64)>);
        fn strides<'o>(
            o: &'o GemmOperand,
            value: &dyn Fn(&IndexExpr) -> Result<i64, PlanError>,
            walk: &dyn Fn(&Strides) -> Result<Dims, PlanError>,
        ) -> Result<Walked<'o>, PlanError> {
            let batch: Result<Vec<i64>, _> = o.batch.iter().map(value).collect();
            let windowed = |w: &'o WindowedAxis| Ok((w, [value(&w.before)?, value(&w.extent)?], value(&w.step)?));
            let windowed: Result<_, PlanError> = o.windowed.iter().map(windowed).collect();
            Ok((value(&o.offset)?, batch?, [walk(&o.row)?, walk(&o.column)?], windowed?))
        }
        let place = |dims: &[(i64, i64)], mut index: i64| {
            let mut sum = 0;
            for (number, &(extent, stride)) in dims.iter().enumerate().rev() {
                let here = if number == 0 { index } else { index % extent };
                sum += here * stride;
                index /= extent.max(1);
            }
            sum
        };
        let digit = |dims: &[(i64, i64)], index: i64, number: usize| {
            let inner = dims.get(number + 1..).unwrap_or(&[]);
            let inner: i64 = inner.iter().map(|d| d.0.max(1)).product();
            index / inner % dims.get(number).map_or(1, |d| d.0.max(1))
        };
        // Where an element of an operand is, by its numbers across and along the sum; none if it is beyond an axis.
        let at_windows = |o: &Walked<'_>, (across, i): (usize, i64), t: i64| {
            let (to, from) = (&o.2[across], &o.2[1 - across]);
            let mut at = place(to, i) + place(from, t);
            for (number, (w, ends, step)) in o.3.iter().enumerate() {
                w.element([digit(to, i, w.place), digit(from, t, number)], *ends)?;
                at -= ends[0] * step;
            }
            Some(at)
        };
        let of = |o| strides(o, &value, &walk);
        let (lhs, rhs, dst) = (of(&g.lhs)?, of(&g.rhs)?, of(&g.dst)?);
        let axes = g.batch.len();
        let (m, n, k) = (extents[axes], extents[axes + 1], extents[axes + 2]);
        let batches: i64 = extents[..axes].iter().product();
        for b in 0..batches {
            let mut left = b;
            let mut at = [lhs.0, rhs.0, dst.0];
            for axis in (0..axes).rev() {
                let i = left % extents[axis];
                left /= extents[axis];
                at[0] += i * lhs.1[axis];
                at[1] += i * rhs.1[axis];
                at[2] += i * dst.1[axis];
            }
            for i in 0..m {
                for j in 0..n {
                    let mut sum = 0.0;
                    let mut words = g.dtype.zero();
                    for t in 0..k {
                        let (Some(x), Some(y)) = (at_windows(&lhs, (0, i), t), at_windows(&rhs, (1, j), t)) else {
                            continue;
                        };
                        let x = self.get(step, g.lhs.slot, at[0] + x)?;
                        let y = self.get(step, g.rhs.slot, at[1] + y)?;
                        match g.dtype {
                            DType::I32 => words = ScalarOp::Add.eval(&[words, ScalarOp::Dot4.eval(&[x, y])]),
                            _ => sum += x.as_f64() * y.as_f64(),
                        }
                    }
                    let index = at[2] + place(&dst.2[0], i) + place(&dst.2[1], j);
                    let result = match g.dtype {
                        DType::I32 => words,
                        _ => Scalar::from_f64(g.dtype, sum),
                    };
                    self.put(step, g.dst.slot, index, result)?;
                }
            }
        }
        Ok(())
    }
}

/// A kernel's arguments as ranges of shared regions.
struct Regions<'m> {
    /// Region and byte offset, element type, number of elements.
    args: Vec<((usize, usize), DType, usize)>,
    regions: &'m mut [Vec<u8>],
}

impl Buffers for Regions<'_> {
    fn count(&self) -> usize {
        self.args.len()
    }
    fn dtype(&self, param: usize) -> DType {
        self.args[param].1
    }
    fn len(&self, param: usize) -> usize {
        self.args[param].2
    }
    fn load(&self, param: usize, index: usize) -> Scalar {
        let ((region, at), dtype, _) = self.args[param];
        read(&self.regions[region][at..], dtype, index)
    }
    fn store(&mut self, param: usize, index: usize, value: Scalar) {
        let ((region, at), ..) = self.args[param];
        write(&mut self.regions[region][at..], index, value);
    }
}

fn read(bytes: &[u8], dtype: DType, index: usize) -> Scalar {
    let width = dtype.bytes();
    let mut raw = [0u8; 8];
    let from = &bytes[index * width..(index + 1) * width];
    if cfg!(target_endian = "little") {
        raw[..width].copy_from_slice(from);
    } else {
        raw[8 - width..].copy_from_slice(from);
    }
    Scalar::from_bits(dtype, u64::from_ne_bytes(raw))
}

fn write(bytes: &mut [u8], index: usize, value: Scalar) {
    let width = value.dtype().bytes();
    let raw = value.bits().to_ne_bytes();
    let low = if cfg!(target_endian = "little") {
        &raw[..width]
    } else {
        &raw[8 - width..]
    };
    bytes[index * width..(index + 1) * width].copy_from_slice(low);
}
