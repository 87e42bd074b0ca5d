//! Devices, queues and the order of steps.

use super::{Checker, PlanPlace, PlanRule};
use crate::plan::order::Clock;
use crate::plan::{DeviceId, DeviceKind, Launch, QueueId, Repeat, SlotId, Step, Storage};

/// The accesses to the bytes of a slot, up to a step.
struct Accesses {
    writes: Clock,
    all: Clock,
}

impl Checker<'_> {
    /// Checks that devices and queues exist, and that waits are for earlier steps. Returns whether the rest may rely on it.
    pub(super) fn device_tables(&mut self) -> bool {
        let plan = self.plan;
        let before = self.report.errors.len();
        self.place = PlanPlace::Tables;
        let others = plan.devices.get(1..).unwrap_or(&[]);
        if plan.devices.first() != Some(&DeviceKind::Host) || others.contains(&DeviceKind::Host) {
            self.error(PlanRule::Devices);
        }
        if plan.queues.first() != Some(&DeviceId::HOST) {
            self.error(PlanRule::FirstQueue);
        }
        for (number, device) in plan.queues.iter().enumerate() {
            if device.0 as usize >= plan.devices.len() {
                self.error(PlanRule::Missing(format!(
                    "device {} that queue {number} names",
                    device.0
                )));
            }
        }
        for (i, slot) in plan.slots.iter().enumerate() {
            let id = SlotId(i as u32);
            self.place = PlanPlace::Slot(id);
            if slot.device.0 as usize >= plan.devices.len() {
                self.error(PlanRule::Missing(format!("device {} that {id} names", slot.device.0)));
                continue;
            }
            if let Storage::Constant(_) = slot.storage
                && slot.device != DeviceId::HOST
            {
                self.error(PlanRule::ConstantElsewhere(id));
            }
            let root = self.root(id);
            if plan.slots[root.0 as usize].device != slot.device {
                self.error(PlanRule::AliasElsewhere(id, root));
            }
        }
        self.place = PlanPlace::Tables;
        if !plan.turns.is_empty() && plan.turns.len() != plan.steps.len() {
            self.error(PlanRule::Turns(plan.turns.len(), plan.steps.len()));
        }
        for (number, turn) in plan.turns.iter().enumerate() {
            self.place = PlanPlace::Step(plan.init.len() + number);
            if turn.queue.0 as usize >= plan.queues.len() {
                self.error(PlanRule::Missing(format!("queue {}", turn.queue.0)));
            }
            for &wait in turn.waits.iter().filter(|&&w| w as usize >= number) {
                self.error(PlanRule::LaterWait(wait, number));
            }
        }
        self.report.errors.len() == before
    }

    fn device(&self, slot: SlotId) -> DeviceId {
        self.plan.slots[slot.0 as usize].device
    }

    /// Every step touches one device, but for copies, runs in a queue of it, and only does what such a device can.
    pub(super) fn devices(&mut self) {
        let plan = self.plan;
        for (number, step) in plan.init.iter().chain(&plan.steps).enumerate() {
            self.place = PlanPlace::Step(number);
            let queue = match number.checked_sub(plan.init.len()) {
                Some(call) => plan.turns.get(call).map(|t| t.queue),
                // A step of `init` has no queue: it runs where it must.
                None => None,
            };
            let mut expected: Vec<DeviceId> = Vec::new();
            match step {
                Step::Copy { src, dst } => expected.extend([self.device(*src), self.device(*dst)]),
                Step::Launch(_) | Step::Group(_) | Step::Sequence(_) | Step::Gemm(_) => {
                    let mut touched = Vec::new();
                    step.visit_slots(&mut |s, _| touched.push(s), &plan.kernels);
                    let Some(device) = touched.first().map(|&s| self.device(s)) else {
                        continue;
                    };
                    touched.retain(|&s| self.device(s) != device);
                    if let Some(&slot) = touched.first() {
                        self.error(PlanRule::OtherDevice(slot, device));
                    }
                    let kind = plan.devices[device.0 as usize];
                    step.launches().iter().for_each(|l| self.runs_on(l, kind));
                    expected.push(device);
                }
                Step::Call(_) => {
                    step.visit_slots(&mut |s, _| self.on_host(s), &plan.kernels);
                    expected.push(DeviceId::HOST);
                }
                Step::Loop(l) => {
                    self.loop_devices(l);
                    expected.push(DeviceId::HOST);
                }
            }
            // A plan without turns is the host's alone.
            let runs = plan.queue_device(queue.unwrap_or(QueueId::HOST));
            let given = queue.is_some() || number >= plan.init.len();
            if given && !expected.contains(&runs) {
                self.error(PlanRule::OtherQueue(runs, expected[0]));
            }
        }
        self.place = PlanPlace::Tables;
    }

    fn on_host(&mut self, slot: SlotId) {
        if self.device(slot) != DeviceId::HOST {
            self.error(PlanRule::OtherDevice(slot, DeviceId::HOST));
        }
    }

    fn runs_on(&mut self, l: &Launch, kind: DeviceKind) {
        // Whether the launch is shared out as the kernel says is another rule's.
        let has_grid = self.plan.kernels[l.kernel.0 as usize].grid().is_some();
        if has_grid != (kind == DeviceKind::Gpu) {
            self.error(PlanRule::KernelOn(l.kernel, kind));
        }
    }

    /// The host counts iterations and reads conditions; every other value is where the body expects it.
    fn loop_devices(&mut self, l: &Repeat) {
        let known = [Some(l.number), l.count, l.condition, l.follows];
        known.into_iter().flatten().for_each(|s| self.on_host(s));
        let body = &l.body;
        if (&body.devices, &body.queues) != (&self.plan.devices, &self.plan.queues) {
            return self.error(PlanRule::Loop("its body has other devices or queues".into()));
        }
        let inside = |slot: Option<SlotId>| slot.and_then(|s| body.slots.get(s.0 as usize)).map(|s| s.device);
        let first = usize::from(l.follows.is_some());
        let mut pairs: Vec<(SlotId, Option<DeviceId>)> = Vec::new();
        let input = |k: usize| inside(body.inputs.get(k).and_then(|i| i.slot));
        let output = |k: usize| inside(body.outputs.get(k).map(|o| o.slot));
        pairs.push((l.number, input(0)));
        pairs.extend(l.follows.map(|s| (s, output(0))));
        for (k, c) in l.carried.iter().enumerate() {
            for slot in [c.first, c.last, c.spare] {
                pairs.extend([(slot, input(1 + k)), (slot, output(first + k))]);
            }
        }
        for (k, w) in l.slices.iter().enumerate() {
            let at = input(1 + l.carried.len() + k);
            pairs.extend([Some(w.slot), w.element].into_iter().flatten().map(|s| (s, at)));
        }
        for (k, &slot) in l.captures.iter().enumerate() {
            pairs.push((slot, input(1 + l.carried.len() + l.slices.len() + k)));
        }
        for (k, w) in l.stacks.iter().enumerate() {
            let at = output(first + l.carried.len() + k);
            pairs.extend([Some(w.slot), w.element].into_iter().flatten().map(|s| (s, at)));
        }
        for (slot, expected) in pairs {
            if let Some(device) = expected.filter(|&d| d != self.device(slot)) {
                self.error(PlanRule::OtherDevice(slot, device));
            }
        }
    }

    /// Of two steps of a call that touch the same bytes, one of them writing, one happens before the other.
    pub(super) fn ordered(&mut self) {
        let plan = self.plan;
        if plan.turns.is_empty() {
            return;
        }
        let order = plan.order();
        let fresh = || Accesses {
            writes: order.nothing(),
            all: order.nothing(),
        };
        let mut accesses: Vec<Accesses> = plan.slots.iter().map(|_| fresh()).collect();
        for (at, step) in plan.steps.iter().enumerate() {
            self.place = PlanPlace::Step(plan.init.len() + at);
            let mut touched = Vec::new();
            step.visit_slots(&mut |s, w| touched.push((s, w)), &plan.kernels);
            for &(slot, writes) in &touched {
                let earlier = &accesses[self.root(slot).0 as usize];
                let conflicting = if writes { &earlier.all } else { &earlier.writes };
                if let Some(other) = order.unordered(conflicting, at) {
                    self.error(PlanRule::Unordered(slot, plan.init.len() + other));
                }
            }
            for (slot, writes) in touched {
                let known = &mut accesses[self.root(slot).0 as usize];
                order.add(&mut known.all, at);
                if writes {
                    order.add(&mut known.writes, at);
                }
            }
        }
        self.place = PlanPlace::Tables;
    }
}
