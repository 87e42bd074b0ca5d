//! Steps of loops and host functions: every slot that they touch is in the plan around them, but for the arena of a body.

use std::sync::Arc;

use tlc_ir::graph::control::mentions_data;
use tlc_ir::graph::{Along, HostFunction, Loop, Shape, Symbol, TensorType};
use tlc_ir::index::IndexExpr;
use tlc_ir::plan::{Carried, DeviceId, HostCall, Plan, Repeat, SlotId, Step, Storage, Walk};
use tlc_ir::{DType, NodeId, NodeKind};

use super::{Edge, PlannedBody, Planner, plan_between};
use crate::cluster::{Cluster, cluster_body, held_value};

/// Has a body, and those of loops in it, say which of its symbols have values that data decides around it: there must be room for any
/// value up to the largest, for a size may be larger where they are smaller (a remainder).
fn decided_outside(outside: &[Symbol], values: &[IndexExpr], body: &mut Plan) {
    for (symbol, value) in body.symbols.iter_mut().zip(values) {
        if mentions_data(outside, value) {
            symbol.upper = Some(IndexExpr::Const(symbol.hi));
        }
    }
    let Plan { symbols, steps, .. } = body;
    for step in steps {
        if let Step::Loop(l) = step {
            decided_outside(symbols, &l.symbols, &mut l.body);
        }
    }
}

impl Planner<'_> {
    /// The step of a cluster that is a loop or call.
    pub(super) fn control(&mut self, c: &Cluster) {
        let id = c.roots[0];
        match self.graph.node(id).kind.clone() {
            NodeKind::Loop(l) => self.repeat(c, id, &l),
            NodeKind::Call(function) => self.call(c, id, function),
            _ => unreachable!("only loops and calls have several results"),
        }
    }

    /// The slot of each result; one that nothing uses has one all the same, on the device that is given for it.
    fn results(&mut self, c: &Cluster, id: NodeId, device: impl Fn(usize) -> DeviceId) -> Vec<SlotId> {
        let types = self.graph.node(id).results.to_vec();
        let name = self.graph.value_name(id);
        let mut slots = vec![None; types.len()];
        for &r in &c.roots[1..] {
            if let NodeKind::Project(k) = self.graph.node(r).kind {
                slots[k as usize] = Some(self.slot(r));
            }
        }
        let fill = |(k, (slot, ty)): (usize, (Option<SlotId>, TensorType))| {
            slot.unwrap_or_else(|| self.temporary(format!("{name}.{k}"), ty.dtype, ty.elements(), device(k)))
        };
        slots.into_iter().zip(types).enumerate().map(fill).collect()
    }

    /// Memory that steps leave for each other: of the arena, or, for what is computed once, when there is none yet, its own.
    pub(super) fn temporary(&mut self, name: String, dtype: DType, len: IndexExpr, device: DeviceId) -> SlotId {
        let storage = if self.once { Storage::Persistent } else { Storage::Arena };
        self.push_slot(None, name, (dtype, len), storage, device)
    }

    fn repeat(&mut self, c: &Cluster, id: NodeId, l: &Loop) {
        let graph = Arc::clone(&l.body.0);
        let name = self.graph.value_name(id);
        let placement = self.placement;
        let result = |k: usize| placement.loop_result(id, k);
        let homes: Vec<DeviceId> = (0..l.results())
            .map(|k| {
                let is = |r: &&NodeId| matches!(self.graph.node(**r).kind, NodeKind::Project(of) if of as usize == k);
                c.roots[1..].iter().find(is).map_or(result(k), |&r| self.home(r))
            })
            .collect();
        // The host reads the numbers that the loop starts with; what goes around stays where it is left; the rest is where the
        // placement has it.
        let on: Vec<DeviceId> = (0..self.graph.node(id).operands.len())
            .map(|k| match k.checked_sub(l.leading()) {
                None => DeviceId::HOST,
                Some(k) if k < l.carried => homes[k],
                Some(k) => placement.loop_operand(id, k),
            })
            .collect();
        let outputs = (0..l.first_carried_output()).map(|_| DeviceId::HOST);
        let edge = Edge {
            inputs: [DeviceId::HOST]
                .into_iter()
                .chain(on[l.leading()..].iter().copied())
                .collect(),
            outputs: outputs.chain(homes).collect(),
            inside: true,
            ..Edge::of(&graph, DeviceId::HOST, &[], &[])
        };
        let inside = placement.inside(id, &graph);
        let mut clusters = cluster_body(&graph, &inside);
        let (planned, handed_in) = plan_between(&graph, &mut clusters, &inside, &edge, self.announce);
        let operands = self.graph.node(id).operands.clone();
        let operands: Vec<SlotId> = operands
            .iter()
            .zip(on)
            .map(|(&o, device)| self.read(held_value(self.graph, o), device))
            .collect();
        let results = self.results(c, id, result);
        let (lead, carried) = operands.split_at(l.leading());
        let (carried, slices) = carried.split_at(l.carried);
        let (slices, captures) = slices.split_at(l.slices.len());
        let mut captures = captures.to_vec();
        for (data, device) in handed_in {
            captures.push(self.constant(None, format!("{name}.constant"), data, device));
        }
        let carried = carried.iter().zip(&results).enumerate().map(|(k, (&first, &last))| {
            let slot = &self.plan.slots[last.0 as usize];
            let (dtype, len, device) = (slot.dtype, slot.len.clone(), slot.device);
            let spare = self.temporary(format!("{name}.carried{k}"), dtype, len, device);
            Carried { first, last, spare }
        });
        let carried: Vec<Carried> = carried.collect();
        let inputs = &graph.inputs()[1 + l.carried..];
        let types: Vec<TensorType> = inputs.iter().map(|&i| l.outer_type(graph.ty(i))).collect();
        let slices = self.walks(id, "slice", slices, &l.slices, &types);
        let outputs = &graph.outputs()[l.first_carried_output() + l.carried..];
        let types: Vec<TensorType> = outputs.iter().map(|o| l.outer_type(graph.ty(o.node))).collect();
        let stacks = self.walks(id, "stack", &results[l.carried..], &l.stacks, &types);
        let number = self.temporary(format!("{name}.number"), DType::I64, IndexExpr::ONE, DeviceId::HOST);
        let follows = l
            .conditional
            .then(|| self.temporary(format!("{name}.follows"), DType::Bool, IndexExpr::ONE, DeviceId::HOST));
        let mut body = Plan::clone(&planned.plan);
        decided_outside(&self.plan.symbols, &l.symbols, &mut body);
        let step = Repeat {
            body,
            symbols: l.symbols.clone(),
            trip: l.trip.clone(),
            count: l.counted.then(|| lead[0]),
            condition: l.condition_operand().map(|k| lead[k]),
            number,
            follows,
            carried,
            slices,
            captures,
            stacks,
            label: format!("loop {name}"),
        };
        self.bodies.push(PlannedBody {
            node: id,
            graph,
            clusters,
            planned,
        });
        self.push(Step::Loop(Box::new(step)), Vec::new());
    }

    /// `types` are those of one iteration's elements.
    fn walks(&mut self, id: NodeId, what: &str, slots: &[SlotId], along: &[Along], types: &[TensorType]) -> Vec<Walk> {
        let name = self.graph.value_name(id);
        let walk = |(k, ((&slot, &along), ty)): (usize, ((&SlotId, &Along), &TensorType))| {
            // With nothing before the axis, the elements of an iteration lie together.
            let together = ty.shape[..along.axis as usize].iter().all(|d| d.is(1));
            let device = self.plan.slots[slot.0 as usize].device;
            let aligned = device == DeviceId::HOST || Walk::aligned(ty.dtype, &ty.elements());
            let element = match together && aligned {
                true => None,
                false => Some(self.temporary(format!("{name}.{what}{k}"), ty.dtype, ty.elements(), device)),
            };
            Walk { slot, along, element }
        };
        slots.iter().zip(along).zip(types).enumerate().map(walk).collect()
    }

    fn call(&mut self, c: &Cluster, id: NodeId, function: HostFunction) {
        let nodes = self.graph.node(id).operands.clone();
        let name = self.graph.value_name(id);
        let read = |&o: &NodeId| self.read(held_value(self.graph, o), DeviceId::HOST);
        let operands = nodes.iter().map(read).collect();
        let shapes: Vec<Shape> = nodes.iter().map(|&o| self.graph.ty(o).shape.clone()).collect();
        let results = self.results(c, id, |_| DeviceId::HOST);
        let extents: Vec<&[IndexExpr]> = shapes.iter().map(|s| &s[..]).collect();
        let workspace = self.temporary(
            format!("{name}.workspace"),
            DType::U64,
            function.workspace(&extents),
            DeviceId::HOST,
        );
        let label = format!("{} {name}", function.name());
        let step = HostCall {
            function,
            shapes,
            operands,
            results,
            workspace,
            label,
        };
        self.push(Step::Call(Box::new(step)), Vec::new());
    }
}
