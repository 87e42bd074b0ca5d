//! Loops under concrete symbol values.
//!
//! Invariant: binding checks that each buffer handed to the body has the bytes that the body's plan gives that input or output, and
//! that what the iterations walk along is as long as the trip count says.

use tlc_ir::graph::Along;
use tlc_ir::plan::{BodyLayout, DeviceId, Plan, Repeat, SlotId, Step, Walk};

use super::steps::{Binding, Prepare};
use super::{Sizes, overflow};
use crate::error::RunError;

/// A value that goes around.
pub struct BoundCarried {
    /// The device that has it.
    pub on: usize,
    /// The slot that the first iteration is given.
    pub first: usize,
    /// The slot that the last iteration leaves it in.
    pub last: usize,
    /// Iterations write to this slot and to `last` in turn.
    pub spare: usize,
    /// The slot of the body's output.
    pub output: usize,
    /// Bytes of it.
    pub bytes: usize,
}

/// A tensor that is walked along: for each of `outer` places before the axis, `inner` bytes for each of `extent` positions.
pub struct BoundWalk {
    /// The device that has it.
    pub on: usize,
    /// The tensor.
    pub slot: usize,
    /// How it is walked along.
    pub along: Along,
    /// Where one iteration's elements are copied from or to; without it they lie together in the tensor.
    pub element: Option<usize>,
    /// The slot of the body's output; unused for inputs.
    pub output: usize,
    /// Places before the axis.
    pub outer: usize,
    /// Positions along it.
    pub extent: usize,
    /// Bytes of one position of one place.
    pub inner: usize,
}

impl BoundWalk {
    /// `shape` is that of one iteration's elements, `width` the bytes of one element.
    fn bind(
        (w, on): (&Walk, usize),
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
            on,
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
    pub(crate) fn place(&self, slots: &[*mut u8], iteration: usize) -> *mut u8 {
        match self.element {
            Some(element) => slots[element],
            None => {
                let at = self.along.position(iteration, self.extent) * self.inner;
                // An offset inside the slot, which holds `outer * extent * inner` bytes, or any for nothing at all.
                slots[self.slot].wrapping_add(at)
            }
        }
    }
}

/// A loop under concrete symbol values.
pub struct BoundLoop<P> {
    /// One iteration.
    pub body: Binding<P>,
    /// The loop's step; `init` steps count first.
    pub step: usize,
    /// Number among the loops of its plan.
    pub number: usize,
    /// Where the body's arena begins in the one around it, by device.
    pub offsets: Vec<u64>,
    /// Number of the body's inputs.
    pub inputs: usize,
    /// The most iterations.
    pub trip: Option<usize>,
    /// The slot of the number of iterations.
    pub count: Option<usize>,
    /// The slot that says whether the first iteration runs.
    pub condition: Option<usize>,
    /// The slot of the iteration's number.
    pub counter: usize,
    /// The slot that says whether another iteration follows, and that of the body's output.
    pub follows: Option<(usize, usize)>,
    /// Values that go around.
    pub carried: Vec<BoundCarried>,
    /// Operands of which each iteration sees one element.
    pub slices: Vec<BoundWalk>,
    /// The slots of what each iteration sees alike.
    pub captures: Vec<usize>,
    /// Results of which each iteration writes one element.
    pub stacks: Vec<BoundWalk>,
    /// The queues beside the host's in which values are copied between iterations: the first of each device that has some.
    pub edges: Vec<(usize, u32)>,
}

impl<P> BoundLoop<P> {
    /// The plan of its body; `plan` is the one that it is bound in.
    pub(crate) fn body_in<'p>(&self, plan: &'p Plan) -> &'p Plan {
        let (init, steps) = (&plan.init, &plan.steps);
        let step = init.get(self.step).or_else(|| steps.get(self.step - init.len()));
        let Some(Step::Loop(repeat)) = step else {
            unreachable!("the binding is of this plan");
        };
        &repeat.body
    }

    /// Evaluates a loop's sizes and those of its body.
    pub(super) fn bind(
        (plan, l): (&Plan, &Repeat),
        (step, number): (usize, usize),
        symbols: &[i64],
        slot_bytes: &[u64],
        layout: &BodyLayout,
        prepare: &Prepare<'_, P>,
    ) -> Result<BoundLoop<P>, RunError> {
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
        // In an iteration every size is known.
        let decided = vec![true; inner.len()];
        let sizes = Sizes::of(&l.body, &inner, shapes, layout.layout.clone(), &decided)?;
        let body = Binding::new(&l.body, sizes, prepare)?;
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
        let on = |s: SlotId| plan.slots[s.0 as usize].device.0 as usize;
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
                on: on(c.last),
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
            slices.push(
                BoundWalk::bind((w, on(w.slot)), &body.sizes.shapes[at], width, trip, 0, slot_bytes)
                    .ok_or_else(misfit)?,
            );
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
            let bound = BoundWalk::bind((w, on(w.slot)), shape, width, trip, slot(output.slot), slot_bytes);
            stacks.push(bound.ok_or_else(misfit)?);
        }
        let follows = match l.follows {
            Some(s) => Some((has(slot(s), 1)?, slot(l.body.outputs[0].slot))),
            None => None,
        };
        let devices = 0..plan.devices.len() as u32;
        let walked = slices.iter().chain(&stacks).map(|w: &BoundWalk| w.on);
        let moved = walked.chain(carried.iter().map(|c: &BoundCarried| c.on));
        let mut edges: Vec<(usize, u32)> = moved.filter(|&on| on != 0).map(|on| (on, 0)).collect();
        edges.sort_unstable();
        edges.dedup();
        Ok(BoundLoop {
            edges,
            step,
            number,
            offsets: devices.map(|d| layout.offset(DeviceId(d))).collect(),
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
