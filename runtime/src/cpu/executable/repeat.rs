//! Loops: a body's steps again and again, between buffers of the plan around it.
//!
//! Invariants:
//! - Binding checks that each buffer handed to the body has the bytes that the body's plan gives that input or output, and
//!   that what the iterations walk along is as long as the trip count says; no iteration beyond the trip count runs.
//! - Iterations write a carried value to its two buffers in turn, never to the one that they read.
//! - A run of a known binding allocates nothing.

use std::sync::atomic::AtomicU32;
use std::time::Instant;

use tlc_ir::graph::{Along, HostFunction};
use tlc_ir::plan::{BodyLayout, DeviceId, HostCall, Plan, Repeat, SlotId, Step, Walk};
use tlc_ir::{DType, HostTensor, Kernel};

use super::{Binding, BoundStep, Code, Frame, LoopTime, Run, RunError};
use crate::binding::{Sizes, overflow};
use crate::cpu::host_functions::counted::counted;
use crate::cpu::host_functions::sort::{Buffers, Sort, sort};
use crate::cpu::jit::KernelFn;
use crate::pool::Pool;

/// Calls `f` on a plan and on the bodies of its loops, those inside first come after.
pub(super) fn visit_plans<'p>(plan: &'p Plan, f: &mut dyn FnMut(&'p Plan)) {
    f(plan);
    for step in plan.init.iter().chain(&plan.steps) {
        if let Step::Loop(l) = step {
            visit_plans(&l.body, f);
        }
    }
}

/// The code of a plan, of compiled kernels.
pub(super) fn code(plan: &Plan, function: &dyn Fn(&Kernel) -> KernelFn) -> Code {
    let bodies = plan.init.iter().chain(&plan.steps).filter_map(|s| match s {
        Step::Loop(l) => Some(code(&l.body, function)),
        _ => None,
    });
    Code {
        kernels: plan.kernels.iter().map(function).collect(),
        any_address: any_address(plan),
        bodies: bodies.collect(),
    }
}

/// By slot: whether it is read by kernels and copies alone, which take elements at any address where the machine does.
/// Products and host functions read elements through references, and bodies of loops may hand a slot to either.
fn any_address(plan: &Plan) -> Vec<bool> {
    let mut all = vec![cfg!(any(target_arch = "x86_64", target_arch = "aarch64")); plan.slots.len()];
    for step in plan.init.iter().chain(&plan.steps) {
        let mut by_element = |s: SlotId| all[plan.root(s).0 as usize] = false;
        match step {
            Step::Launch(_) | Step::Group(_) | Step::Copy { .. } => {}
            Step::Gemm(g) => [&g.lhs, &g.rhs, &g.dst].iter().for_each(|o| by_element(o.slot)),
            _ => step.visit_slots(&mut |s, _| by_element(s), &plan.kernels),
        }
    }
    all
}

/// Where a constant's elements are.
pub(super) fn constant(code: &Code, slot: usize, data: &HostTensor) -> *mut u8 {
    let bytes = match code.any_address[slot] {
        true => data.bytes(),
        false => data.aligned_bytes(),
    };
    bytes.as_ptr().cast_mut()
}

/// Machine code size in bytes.
pub(super) fn code_bytes(code: &Code) -> usize {
    let own: usize = code.kernels.iter().map(|k| k.size_bytes()).sum();
    own + code.bodies.iter().map(code_bytes).sum::<usize>()
}

/// Where a body's slots are, and what it is given in the present iteration.
#[derive(Default)]
pub(super) struct BodyFrame {
    inputs: Vec<*mut u8>,
    frame: Frame,
    /// Iterations of a timed call, and nanoseconds of each step in all of them.
    iterations: u64,
    step_ns: Vec<u64>,
}

impl Frame {
    /// Makes room for the slots of a plan and of its loops' bodies.
    pub(super) fn fit(&mut self, binding: &Binding) {
        self.slots.resize(binding.sizes.slot_bytes.len(), std::ptr::null_mut());
        self.args.resize(binding.arg_count, std::ptr::null_mut());
        self.counters
            .resize_with(self.counters.len().max(binding.counters), AtomicU32::default);
        let steps = binding.init.iter().chain(&binding.steps);
        let loops = steps.filter_map(|s| match s {
            BoundStep::Loop(l) => Some(l),
            _ => None,
        });
        for (k, l) in loops.enumerate() {
            if self.bodies.len() == k {
                self.bodies.push(BodyFrame::default());
            }
            let body = &mut self.bodies[k];
            body.inputs.resize(l.inputs, std::ptr::null_mut());
            body.step_ns.resize(l.body.steps.len(), 0);
            body.frame.fit(&l.body);
        }
    }

    /// Says whether the steps of loops' bodies are timed from here on. Where they are, counting starts at 0.
    pub(super) fn measure(&mut self, timed: bool) {
        self.timed = timed;
        for body in &mut self.bodies {
            if timed {
                body.iterations = 0;
                body.step_ns.fill(0);
            }
            body.frame.measure(timed);
        }
    }

    /// What a timed call measured in the loops among a binding's steps.
    pub(super) fn loop_times(&self, binding: &Binding) -> Vec<LoopTime> {
        let timed = |(step, bound): (usize, &BoundStep)| match bound {
            BoundStep::Loop(l) => {
                let body = &self.bodies[l.number];
                Some(LoopTime {
                    step,
                    iterations: body.iterations,
                    steps: body.step_ns.clone(),
                    loops: body.frame.loop_times(&l.body),
                })
            }
            _ => None,
        };
        binding.steps.iter().enumerate().filter_map(timed).collect()
    }
}

impl Binding {
    /// True if no slot is larger than under another binding, whose layout has room for it.
    pub(super) fn fits_in(&self, other: &Binding, plan: &Plan) -> bool {
        let own = self
            .sizes
            .slot_bytes
            .iter()
            .zip(&other.sizes.slot_bytes)
            .all(|(a, b)| a <= b);
        own && self
            .steps
            .iter()
            .zip(&other.steps)
            .zip(&plan.steps)
            .all(|steps| match steps {
                ((BoundStep::Loop(a), BoundStep::Loop(b)), Step::Loop(l)) => a.body.fits_in(&b.body, &l.body),
                _ => true,
            })
    }
}

/// A value that goes around: slots, and bytes.
struct BoundCarried {
    first: usize,
    last: usize,
    spare: usize,
    /// The slot of the body's output.
    output: usize,
    bytes: usize,
}

/// A tensor that is walked along: for each of `outer` places before the axis, `inner` bytes for each of `extent` positions.
struct BoundWalk {
    slot: usize,
    along: Along,
    element: Option<usize>,
    /// The slot of the body's output; unused for inputs.
    output: usize,
    outer: usize,
    extent: usize,
    inner: usize,
}

impl BoundWalk {
    /// `ty` is the type of one iteration's elements, `bytes` what they take in the body.
    fn bind(
        w: &Walk,
        shape: &[usize],
        width: usize,
        trip: Option<usize>,
        output: usize,
        slot_bytes: &[u64],
    ) -> Option<BoundWalk> {
        let axis = w.along.axis as usize;
        let product = |dims: &[usize]| dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        let outer = product(shape.get(..axis)?)?;
        let inner = product(&shape[axis..])?.checked_mul(width)?;
        let bound = BoundWalk {
            slot: w.slot.0 as usize,
            along: w.along,
            element: w.element.map(|s| s.0 as usize),
            output,
            outer,
            extent: trip?,
            inner,
        };
        let one = outer.checked_mul(inner)? as u64;
        let whole = one.checked_mul(bound.extent as u64)?;
        let fits = slot_bytes[bound.slot] >= whole
            && bound.element.is_none_or(|e| slot_bytes[e] >= one)
            && (bound.element.is_some() || outer == 1 || one == 0);
        fits.then_some(bound)
    }

    /// Where an iteration's elements are, if they lie together.
    fn place(&self, slots: &[*mut u8], iteration: usize) -> *mut u8 {
        match self.element {
            Some(element) => slots[element],
            None => {
                let at = self.along.position(iteration, self.extent) * self.inner;
                // An offset inside the slot, which holds `outer * extent * inner` bytes, or any for nothing at all.
                slots[self.slot].wrapping_add(at)
            }
        }
    }

    /// Copies an iteration's elements out of the tensor, or back into it, where they do not lie together.
    fn copy(&self, slots: &[*mut u8], iteration: usize, back: bool) {
        let Some(element) = self.element else { return };
        let position = self.along.position(iteration, self.extent);
        for o in 0..self.outer {
            // SAFETY: binding checked that the tensor has `outer * extent * inner` bytes and the element's buffer
            // `outer * inner`; `position` is below `extent`, and the planner's buffers do not overlap.
            unsafe {
                let whole = slots[self.slot].add((o * self.extent + position) * self.inner);
                let part = slots[element].add(o * self.inner);
                match back {
                    true => std::ptr::copy_nonoverlapping(part, whole, self.inner),
                    false => std::ptr::copy_nonoverlapping(whole, part, self.inner),
                }
            }
        }
    }

    /// Zeroes an iteration's elements in the tensor.
    fn clear(&self, slots: &[*mut u8], iteration: usize) {
        let position = self.along.position(iteration, self.extent);
        for o in 0..self.outer {
            // SAFETY: as in `copy`.
            unsafe {
                let whole = slots[self.slot].add((o * self.extent + position) * self.inner);
                std::ptr::write_bytes(whole, 0, self.inner);
            }
        }
    }
}

/// A loop under concrete symbol values.
pub(super) struct BoundLoop {
    pub(super) body: Binding,
    /// The loop's step; `init` steps count first.
    step: usize,
    /// Number among the loops of its plan.
    number: usize,
    offset: u64,
    inputs: usize,
    trip: Option<usize>,
    count: Option<usize>,
    condition: Option<usize>,
    counter: usize,
    /// The slot here, and the body's.
    follows: Option<(usize, usize)>,
    carried: Vec<BoundCarried>,
    slices: Vec<BoundWalk>,
    captures: Vec<usize>,
    stacks: Vec<BoundWalk>,
}

impl BoundLoop {
    /// Evaluates a loop's sizes and those of its body.
    pub(super) fn bind(
        l: &Repeat,
        (step, number): (usize, usize),
        symbols: &[i64],
        slot_bytes: &[u64],
        layout: &BodyLayout,
        threads: usize,
    ) -> Result<BoundLoop, RunError> {
        let misfit = || overflow(&l.label);
        let inner = l.inner_symbols(symbols).ok_or_else(misfit)?;
        let extents = |ty: &tlc_ir::TensorType| -> Option<Vec<usize>> {
            let size = |d: &tlc_ir::IndexExpr| usize::try_from(d.eval_symbols(&inner)?).ok();
            ty.shape.iter().map(size).collect()
        };
        let mut shapes = Vec::new();
        for input in &l.body.inputs {
            shapes.push(extents(&input.ty).ok_or_else(misfit)?);
        }
        let sizes = Sizes::of(&l.body, &inner, shapes, layout.layout.clone(), &[])?;
        let body = Binding::new(&l.body, sizes, threads)?;
        let trip = match &l.trip {
            Some(t) => Some(
                t.eval_symbols(symbols)
                    .and_then(|t| usize::try_from(t).ok())
                    .ok_or_else(misfit)?,
            ),
            None => None,
        };
        let bytes = |shape: &[usize], width: usize| {
            shape
                .iter()
                .try_fold(width, |n, &d| n.checked_mul(d))
                .ok_or_else(misfit)
        };
        let first = usize::from(l.follows.is_some());
        let count = l.carried.len();
        if l.body.inputs.len() != 1 + count + l.slices.len() + l.captures.len()
            || l.body.outputs.len() != first + count + l.stacks.len()
            || !l.body.init.is_empty()
        {
            return Err(misfit());
        }
        let has = |slot: usize, bytes: usize| match slot_bytes[slot] >= bytes as u64 {
            true => Ok(slot),
            false => Err(misfit()),
        };
        let slot = |s: SlotId| s.0 as usize;
        // The body's slots are as large as the types of its inputs and outputs say.
        for (input, shape) in l.body.inputs.iter().zip(&body.sizes.shapes) {
            let bytes = bytes(shape, input.ty.dtype.bytes())?;
            if input
                .slot
                .is_some_and(|s| body.sizes.slot_bytes[slot(s)] > bytes as u64)
            {
                return Err(misfit());
            }
        }
        for (output, shape) in l.body.outputs.iter().zip(&body.sizes.output_shapes) {
            let bytes = bytes(shape, output.ty.dtype.bytes())?;
            if body.sizes.slot_bytes[slot(output.slot)] > bytes as u64 {
                return Err(misfit());
            }
        }
        let mut carried = Vec::new();
        for (k, c) in l.carried.iter().enumerate() {
            let (input, output) = (&l.body.inputs[1 + k], &l.body.outputs[first + k]);
            let bytes = bytes(&body.sizes.shapes[1 + k], input.ty.dtype.bytes())?;
            if input.ty.dtype != output.ty.dtype || body.sizes.shapes[1 + k] != body.sizes.output_shapes[first + k] {
                return Err(misfit());
            }
            carried.push(BoundCarried {
                first: has(slot(c.first), bytes)?,
                last: has(slot(c.last), bytes)?,
                spare: has(slot(c.spare), bytes)?,
                output: slot(output.slot),
                bytes,
            });
        }
        let mut slices = Vec::new();
        for (k, w) in l.slices.iter().enumerate() {
            let at = 1 + count + k;
            let width = l.body.inputs[at].ty.dtype.bytes();
            slices.push(BoundWalk::bind(w, &body.sizes.shapes[at], width, trip, 0, slot_bytes).ok_or_else(misfit)?);
        }
        let mut captures = Vec::new();
        for (k, s) in l.captures.iter().enumerate() {
            let at = 1 + count + l.slices.len() + k;
            let bytes = bytes(&body.sizes.shapes[at], l.body.inputs[at].ty.dtype.bytes())?;
            captures.push(has(slot(*s), bytes)?);
        }
        let mut stacks = Vec::new();
        for (k, w) in l.stacks.iter().enumerate() {
            let at = first + count + k;
            let output = &l.body.outputs[at];
            let (shape, width) = (&body.sizes.output_shapes[at], output.ty.dtype.bytes());
            let bound = BoundWalk::bind(w, shape, width, trip, slot(output.slot), slot_bytes);
            stacks.push(bound.ok_or_else(misfit)?);
        }
        let follows = match l.follows {
            Some(s) => Some((has(slot(s), 1)?, slot(l.body.outputs[0].slot))),
            None => None,
        };
        Ok(BoundLoop {
            step,
            number,
            offset: layout.offset(DeviceId::HOST),
            inputs: l.body.inputs.len(),
            trip,
            count: l.count.map(|s| has(slot(s), 8)).transpose()?,
            condition: l.condition.map(|s| has(slot(s), 1)).transpose()?,
            counter: has(slot(l.number), 8)?,
            follows,
            carried,
            slices,
            captures,
            stacks,
            body,
        })
    }
}

impl Run<'_> {
    /// Runs a loop.
    pub(super) fn repeat(&self, l: &BoundLoop, frame: &mut Frame, arena: *mut u8) -> Result<(), RunError> {
        let Frame { slots, bodies, .. } = frame;
        let body = &mut bodies[l.number];
        let (init, steps) = (&self.plan.init, &self.plan.steps);
        let step = init.get(l.step).or_else(|| steps.get(l.step - init.len()));
        let Some(Step::Loop(repeat)) = step else {
            unreachable!("the binding is of this plan");
        };
        let run = Run {
            plan: &repeat.body,
            code: &self.code.bodies[l.number],
            binding: &l.body,
            ..*self
        };
        // SAFETY: the layout places the body's arena inside the arena.
        let arena = unsafe { arena.add(l.offset as usize) };
        let mut limit = l.trip.unwrap_or(usize::MAX);
        if let Some(count) = l.count {
            // SAFETY: binding checked that the slot holds an i64; slots are aligned to their elements.
            let count = unsafe { slots[count].cast::<i64>().read() };
            limit = limit.min(usize::try_from(count).unwrap_or(0));
        }
        // SAFETY: binding checked that the slot holds a byte.
        let mut goes_on = l.condition.is_none_or(|c| unsafe { slots[c].read() } != 0);
        for (input, c) in body.inputs[1..].iter_mut().zip(&l.carried) {
            *input = slots[c.first];
        }
        let captures = 1 + l.carried.len() + l.slices.len();
        for (input, &slot) in body.inputs[captures..].iter_mut().zip(&l.captures) {
            *input = slots[slot];
        }
        body.inputs[0] = slots[l.counter];
        let mut iteration = 0;
        while goes_on && iteration < limit {
            // SAFETY: binding checked that the slot holds an i64.
            unsafe { slots[l.counter].cast::<i64>().write(iteration as i64) };
            for (k, w) in l.slices.iter().enumerate() {
                w.copy(slots, iteration, false);
                body.inputs[1 + l.carried.len() + k] = w.place(slots, iteration);
            }
            // The last iteration, if it is known, writes where the results belong.
            let ends_in_last = l.follows.is_some() || (limit - 1 - iteration).is_multiple_of(2);
            for (k, c) in l.carried.iter().enumerate() {
                let reads_last = body.inputs[1 + k] == slots[c.last];
                let to = match ends_in_last && !reads_last || body.inputs[1 + k] == slots[c.spare] {
                    true => c.last,
                    false => c.spare,
                };
                body.frame.slots[c.output] = slots[to];
            }
            if let Some((here, output)) = l.follows {
                body.frame.slots[output] = slots[here];
            }
            for w in &l.stacks {
                body.frame.slots[w.output] = w.place(slots, iteration);
            }
            let inputs = &body.inputs;
            run.place(&mut body.frame, arena, &|k| inputs[k], &|_| std::ptr::null_mut());
            for (number, step) in l.body.steps.iter().enumerate() {
                let begin = body.frame.timed.then(Instant::now);
                run.mark_unwritten(number, &mut body.frame);
                run.step(step, &mut body.frame, arena)?;
                if let Some(begin) = begin {
                    body.step_ns[number] += begin.elapsed().as_nanos() as u64;
                }
            }
            for w in &l.stacks {
                w.copy(slots, iteration, true);
            }
            for (k, c) in l.carried.iter().enumerate() {
                body.inputs[1 + k] = body.frame.slots[c.output];
            }
            if let Some((here, _)) = l.follows {
                // SAFETY: binding checked that the slot holds a byte.
                goes_on = unsafe { slots[here].read() } != 0;
            }
            iteration += 1;
        }
        body.iterations += iteration as u64;
        for (k, c) in l.carried.iter().enumerate() {
            if body.inputs[1 + k] != slots[c.last] {
                // SAFETY: binding checked that each holds `bytes` bytes; they are different buffers.
                unsafe { std::ptr::copy_nonoverlapping(body.inputs[1 + k], slots[c.last], c.bytes) };
            }
        }
        for i in iteration..l.trip.unwrap_or(0) {
            l.stacks.iter().for_each(|w| w.clear(slots, i));
        }
        Ok(())
    }
}

/// A host function under concrete symbol values.
pub(super) enum BoundCall {
    Sort {
        x: usize,
        values: usize,
        places: usize,
        workspace: usize,
        /// Rows whose keys the workspace has room for.
        rows_at_once: usize,
        sort: Sort,
    },
    Counted(Counted),
}

/// A function whose result's size data decides.
pub(super) struct Counted {
    function: HostFunction,
    /// Symbol, and the largest value that its buffers have room for.
    symbol: usize,
    most: i64,
    /// Slot, dtype, extents.
    operands: Vec<(usize, DType, Vec<usize>)>,
    /// Slot and bytes.
    results: Vec<(usize, usize)>,
}

impl BoundCall {
    /// Evaluates its sizes.
    pub(super) fn bind(c: &HostCall, plan: &Plan, symbols: &[i64], slot_bytes: &[u64]) -> Result<BoundCall, RunError> {
        let misfit = || overflow(&c.label);
        let size = |e: &tlc_ir::IndexExpr| e.eval_symbols(symbols).and_then(|v| usize::try_from(v).ok());
        let has = |slot: SlotId, elements: Option<usize>, width: usize| {
            let bytes = elements.and_then(|n| n.checked_mul(width)).ok_or_else(misfit)?;
            match slot_bytes[slot.0 as usize] >= bytes as u64 {
                true => Ok(slot.0 as usize),
                false => Err(misfit()),
            }
        };
        let product = |dims: &[usize]| dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        if let Some(symbol) = c.function.binds() {
            let mut operands = Vec::new();
            for (slot, shape) in c.operands.iter().zip(&c.shapes) {
                let dtype = plan.slots[slot.0 as usize].dtype;
                let shape: Option<Vec<usize>> = shape.iter().map(size).collect();
                let shape = shape.ok_or_else(misfit)?;
                operands.push((has(*slot, product(&shape), dtype.bytes())?, dtype, shape));
            }
            let results = c
                .results
                .iter()
                .map(|s| (s.0 as usize, slot_bytes[s.0 as usize] as usize));
            let upper = plan.symbols.get(symbol.0 as usize).and_then(|s| s.upper.as_ref());
            return Ok(BoundCall::Counted(Counted {
                function: c.function.clone(),
                symbol: symbol.0 as usize,
                most: upper.and_then(|e| e.eval_symbols(symbols)).ok_or_else(misfit)?,
                operands,
                results: results.collect(),
            }));
        }
        match &c.function {
            HostFunction::Sort {
                axis,
                count,
                descending,
            } => {
                let ([x], [values, places], [shape]) = (&c.operands[..], &c.results[..], &c.shapes[..]) else {
                    return Err(misfit());
                };
                let shape: Option<Vec<usize>> = shape.iter().map(size).collect();
                let (shape, axis) = (shape.ok_or_else(misfit)?, *axis as usize);
                let count = size(count).ok_or_else(misfit)?;
                let extent = *shape.get(axis).filter(|e| count <= **e).ok_or_else(misfit)?;
                let dtype = plan.slots[x.0 as usize].dtype;
                if plan.slots[values.0 as usize].dtype != dtype {
                    return Err(misfit());
                }
                let mut kept = shape.clone();
                kept[axis] = count;
                // At least one row's; each pair of words is a key and a position.
                let workspace = has(c.workspace, extent.checked_mul(2), 8)?;
                let rows_at_once = slot_bytes[workspace] / (16 * extent.max(1) as u64);
                Ok(BoundCall::Sort {
                    x: has(*x, product(&shape), dtype.bytes())?,
                    values: has(*values, product(&kept), dtype.bytes())?,
                    places: has(*places, product(&kept), 8)?,
                    workspace,
                    rows_at_once: usize::try_from(rows_at_once).unwrap_or(1).max(1),
                    sort: Sort {
                        dtype,
                        outer: product(&shape[..axis]).ok_or_else(misfit)?,
                        extent,
                        inner: product(&shape[axis + 1..]).ok_or_else(misfit)?,
                        count,
                        descending: *descending,
                    },
                })
            }
            // The others bind a symbol.
            _ => Err(misfit()),
        }
    }

    /// Runs it; answers the symbol that it binds, and its value.
    ///
    /// # Errors
    /// If the system has no memory left.
    pub(super) fn run(&self, slots: &[*mut u8], threads: &Pool) -> Result<Option<(usize, i64)>, RunError> {
        match self {
            BoundCall::Counted(c) => c.run(slots).map(Some),
            BoundCall::Sort {
                x,
                values,
                places,
                workspace,
                rows_at_once,
                sort: settings,
            } => {
                let buffers = Buffers {
                    x: slots[*x],
                    values: slots[*values],
                    places: slots[*places],
                    workspace: slots[*workspace],
                    rows_at_once: *rows_at_once,
                };
                // SAFETY: binding checked what each buffer holds; the planner's buffers do not overlap.
                unsafe { sort(settings, buffers, threads)? };
                Ok(None)
            }
        }
    }
}

impl Counted {
    fn run(&self, slots: &[*mut u8]) -> Result<(usize, i64), RunError> {
        let misfit = || overflow(self.function.name());
        let mut operands = Vec::with_capacity(self.operands.len());
        for (slot, dtype, shape) in &self.operands {
            let bytes = shape.iter().product::<usize>() * dtype.bytes();
            let data: &[u8] = match bytes {
                0 => &[],
                // SAFETY: binding checked that the slot holds so many bytes, which an earlier step or the caller wrote.
                n => unsafe { std::slice::from_raw_parts(slots[*slot], n) },
            };
            operands.push(HostTensor::from_bytes(*dtype, shape, data).map_err(|_| misfit())?);
        }
        let results = counted(&self.function, &operands).ok_or_else(misfit)?;
        let count = results
            .last()
            .filter(|t| t.len() == 1)
            .ok_or_else(misfit)?
            .get(0)
            .as_i64();
        if count > self.most || results.len() != self.results.len() {
            return Err(misfit());
        }
        for ((slot, room), result) in self.results.iter().zip(&results) {
            let bytes = result.bytes();
            if bytes.len() > *room {
                return Err(misfit());
            }
            // SAFETY: the slot has room for so many bytes, and is not the result's own memory.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), slots[*slot], bytes.len()) };
        }
        Ok((self.symbol, count))
    }
}
