//! Loops and host functions.

use super::{Checker, PlanRule, verify};
use crate::dtype::DType;
use crate::graph::{HostFunction, Shape};
use crate::index::IndexExpr;
use crate::plan::{DeviceId, HostCall, Repeat, SlotId, Step, Walk};

impl Checker<'_> {
    /// The expressions that such a step holds.
    pub(super) fn control_expressions(&mut self, step: &Step) {
        match step {
            Step::Loop(l) => l.symbols.iter().chain(&l.trip).for_each(|e| self.symbolic(e)),
            Step::Call(c) => {
                c.shapes.iter().flatten().for_each(|e| self.symbolic(e));
                c.function.visit_sizes(&mut |e| self.symbolic(e));
            }
            _ => {}
        }
    }

    /// What such a step writes shares bytes with nothing else that it touches.
    pub(super) fn apart(&mut self, step: &Step) {
        let mut touched: Vec<(SlotId, bool)> = Vec::new();
        step.visit_slots(&mut |s, w| touched.push((s, w)), &self.plan.kernels);
        for (i, &(a, writes)) in touched.iter().enumerate() {
            for &(b, also) in &touched[i + 1..] {
                if (writes || also) && self.shares(a, b) {
                    self.error(PlanRule::NotInPlace(a, b));
                }
            }
        }
    }

    /// A loop's slots are as large as its body's inputs and outputs; the body is right in itself.
    pub(super) fn repeat(&mut self, l: &Repeat) {
        let body = &l.body;
        for violation in verify(body).errors {
            self.error(PlanRule::Body(body.name.clone(), Box::new(violation)));
        }
        if !body.init.is_empty() || !body.states.is_empty() {
            self.error(PlanRule::Loop("its body has init steps or states".into()));
        }
        let first = usize::from(l.follows.is_some());
        let inputs = 1 + l.carried.len() + l.slices.len() + l.captures.len();
        let outputs = first + l.carried.len() + l.stacks.len();
        let counts = [
            ("inputs", inputs, body.inputs.len()),
            ("outputs", outputs, body.outputs.len()),
            ("symbols", l.symbols.len(), body.symbols.len()),
        ];
        for (what, expected, found) in counts {
            if expected != found {
                let text = format!("its body has {found} {what}; expected {expected}");
                return self.error(PlanRule::Loop(text));
            }
        }
        if l.trip.is_none() && l.count.is_none() && l.condition.is_none() {
            self.error(PlanRule::Loop("it never ends".into()));
        }
        if l.condition.is_some() != l.follows.is_some() {
            self.error(PlanRule::Loop("it has half a condition".into()));
        }
        let one = IndexExpr::ONE;
        l.count.iter().for_each(|s| self.argument(*s, DType::I64, &one));
        l.condition.iter().for_each(|s| self.argument(*s, DType::Bool, &one));
        self.argument(l.number, DType::I64, &one);
        l.follows.iter().for_each(|s| self.argument(*s, DType::Bool, &one));
        let input = |k: usize| (body.inputs[k].ty.dtype, l.outer(&body.inputs[k].ty.elements()));
        let output = |k: usize| (body.outputs[k].ty.dtype, l.outer(&body.outputs[k].ty.elements()));
        for (k, c) in l.carried.iter().enumerate() {
            let (dtype, len) = input(1 + k);
            if output(first + k) != (dtype, len.clone()) {
                self.error(PlanRule::Loop(format!("carried value {k} changes its type")));
            }
            [c.first, c.last, c.spare]
                .into_iter()
                .for_each(|s| self.argument(s, dtype, &len));
        }
        for (k, w) in l.slices.iter().enumerate() {
            let at = 1 + l.carried.len() + k;
            self.walk(l, w, input(at), body.inputs[at].ty.shape.get(..w.along.axis as usize));
        }
        for (k, slot) in l.captures.iter().enumerate() {
            let (dtype, len) = input(1 + l.carried.len() + l.slices.len() + k);
            self.argument(*slot, dtype, &len);
        }
        for (k, w) in l.stacks.iter().enumerate() {
            let at = first + l.carried.len() + k;
            self.walk(l, w, output(at), body.outputs[at].ty.shape.get(..w.along.axis as usize));
        }
    }

    /// `outer` are the extents before the axis, over the body's symbols.
    fn walk(&mut self, l: &Repeat, w: &Walk, (dtype, len): (DType, IndexExpr), outer: Option<&[IndexExpr]>) {
        let (Some(trip), Some(outer)) = (&l.trip, outer) else {
            let text = format!("{} is walked along an axis that is not there", w.slot);
            return self.error(PlanRule::Loop(text));
        };
        self.argument(w.slot, dtype, &(len.clone() * trip.clone()));
        let slot = self.plan.slots.get(w.slot.0 as usize);
        let on_device = slot.is_some_and(|s| s.device != DeviceId::HOST);
        match w.element {
            Some(element) => self.argument(element, dtype, &len),
            None if !outer.iter().all(|d| l.outer(d).is(1)) => {
                let text = format!("the elements of {} do not lie together", w.slot);
                self.error(PlanRule::Loop(text));
            }
            None if on_device && !Walk::aligned(dtype, &len) => {
                let text = format!(
                    "iterations are given places in {} that threads cannot read at once",
                    w.slot
                );
                self.error(PlanRule::Loop(text));
            }
            None => {}
        }
    }

    /// A host function's slots are as large as its operands and results.
    pub(super) fn host_call(&mut self, c: &HostCall) {
        let (operands, results) = (c.function.arity(), c.function.results());
        for (what, expected, found) in [
            ("operands", operands, c.operands.len()),
            ("operand shapes", operands, c.shapes.len()),
            ("results", results, c.results.len()),
        ] {
            if expected != found {
                return self.error(PlanRule::Call(format!("it has {found} {what}; expected {expected}")));
            }
        }
        for (slot, shape) in c.operands.iter().zip(&c.shapes) {
            let dtype = self.plan.slots[slot.0 as usize].dtype;
            self.argument(*slot, dtype, &IndexExpr::product(shape));
        }
        let shapes: Vec<&[IndexExpr]> = c.shapes.iter().map(|s| &s[..]).collect();
        self.argument(c.workspace, DType::U64, &c.function.workspace(&shapes));
        match &c.function {
            HostFunction::Sort { axis, count, .. } => {
                let mut shape = c.shapes[0].clone();
                let Some(extent) = shape.get_mut(*axis as usize) else {
                    return self.error(PlanRule::Call(format!("there is no axis {axis}")));
                };
                let spare = extent.clone() - count.clone();
                if spare.as_const().is_some_and(|s| s < 0) {
                    self.error(PlanRule::Call("it keeps more elements than there are".into()));
                }
                *extent = count.clone();
                let len = IndexExpr::product(&shape);
                let dtype = self.plan.slots[c.operands[0].0 as usize].dtype;
                self.argument(c.results[0], dtype, &len);
                self.argument(c.results[1], DType::I64, &len);
            }
            function => {
                let dtype = self.plan.slots[c.operands[0].0 as usize].dtype;
                let Some(symbol) = function.binds() else { return };
                let count = IndexExpr::from(symbol);
                let shape = &c.shapes[0];
                let results: Vec<(DType, IndexExpr)> = match function {
                    HostFunction::NonZero { .. } => {
                        let places = count.clone() * IndexExpr::from(shape.len());
                        vec![(DType::I64, places)]
                    }
                    HostFunction::Unique { axis, .. } => {
                        let (mut kept, mut all) = (Shape::from_iter([count.clone()]), IndexExpr::product(shape));
                        if let Some(axis) = axis {
                            let Some(extent) = shape.get(*axis as usize) else {
                                return self.error(PlanRule::Call(format!("there is no axis {axis}")));
                            };
                            all = extent.clone();
                            kept = shape.clone();
                            kept[*axis as usize] = count.clone();
                        }
                        let list = |n: IndexExpr| (DType::I64, n);
                        vec![
                            (dtype, IndexExpr::product(&kept)),
                            list(count.clone()),
                            list(all),
                            list(count.clone()),
                        ]
                    }
                    _ => vec![(DType::I64, count * IndexExpr::Const(3))],
                };
                for (slot, (dtype, len)) in c.results.iter().zip(&results) {
                    self.argument(*slot, *dtype, len);
                }
                self.argument(c.results[results.len()], DType::I64, &IndexExpr::ONE);
                match self.plan.symbols.get(symbol.0 as usize) {
                    Some(s) if s.upper.is_some() => {}
                    _ => self.error(PlanRule::Call("it binds a symbol that data does not decide".into())),
                }
            }
        }
    }
}
