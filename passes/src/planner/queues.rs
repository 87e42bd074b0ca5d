//! Which queue each step is in, and what it waits for.
//!
//! A GPU has three queues: one of kernels and products, one of copies that bring bytes to it and one of those that take them away, so
//! that copies go on while kernels run. A step waits for the steps of other queues that it depends on: those that write what it
//! reads, and those that touch what it writes. What another wait or its own queue implies is left out.

use smallvec::SmallVec;
use tlc_ir::plan::order::{Clock, Order};
use tlc_ir::plan::{DeviceId, Plan, QueueId, SlotId, Step, Turn};

/// The device of each queue of a plan for so many devices.
pub(super) fn queues(devices: usize) -> Vec<DeviceId> {
    let gpus = (1..devices as u32).flat_map(|d| [DeviceId(d); 3]);
    std::iter::once(DeviceId::HOST).chain(gpus).collect()
}

/// The queue of a step.
fn queue(plan: &Plan, step: &Step) -> QueueId {
    let device = |slot: SlotId| plan.slots[slot.0 as usize].device;
    let (device, kind) = match step {
        Step::Copy { src, dst } => match (device(*src), device(*dst)) {
            (from, to) if from == to => (to, 0),
            (from, DeviceId::HOST) => (from, 2),
            (_, to) => (to, 1),
        },
        Step::Loop(_) | Step::Call(_) => (DeviceId::HOST, 0),
        Step::Launch(_) | Step::Group(_) | Step::Sequence(_) | Step::Gemm(_) => {
            let mut first = None;
            step.visit_slots(&mut |s, _| first = first.or(Some(device(s))), &plan.kernels);
            (first.unwrap_or(DeviceId::HOST), 0)
        }
    };
    match device {
        DeviceId::HOST => QueueId::HOST,
        device => QueueId(1 + 3 * (device.0 - 1) + kind),
    }
}

/// Gives each step of a call its turn. A plan for the host alone needs none.
pub(super) fn take_turns(plan: &mut Plan) {
    if plan.devices.len() == 1 {
        return;
    }
    let mut order = Order::new(0, plan.queues.len(), &[]);
    // By the slot whose bytes they touch: the steps that write, and all.
    let mut accesses: Vec<[Clock; 2]> = vec![[order.nothing(), order.nothing()]; plan.slots.len()];
    let mut turns = Vec::with_capacity(plan.steps.len());
    for (at, step) in plan.steps.iter().enumerate() {
        let mut touched = Vec::new();
        step.visit_slots(&mut |s, w| touched.push((plan.root(s).0 as usize, w)), &plan.kernels);
        let mut needed = order.nothing();
        for &(root, writes) in &touched {
            order.join(&mut needed, &accesses[root][usize::from(writes)]);
        }
        let queue = queue(plan, step);
        let waits: SmallVec<[u32; 2]> = order.waits(queue, &needed);
        let turn = Turn { queue, waits };
        order.push(&turn);
        turns.push(turn);
        for (root, writes) in touched {
            order.add(&mut accesses[root][1], at);
            if writes {
                order.add(&mut accesses[root][0], at);
            }
        }
    }
    // As text is read: what says nothing is not there.
    if turns.iter().any(|t| *t != Turn::default()) {
        plan.turns = turns;
    }
}
