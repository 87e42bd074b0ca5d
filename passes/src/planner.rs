//! Assembling the plan: clusters become steps over slots.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use tlc_ir::graph::{Shape, TensorType};
use tlc_ir::index::IndexExpr;
use tlc_ir::kernel::Kernel;
use tlc_ir::plan::{
    DeviceId, Gemm, GemmOperand, KernelId, Layout, Plan, PlanInput, PlanOutput, PlanState, Slot, SlotId, Step, Storage,
};
use tlc_ir::target::{EmitterId, Gpu};
use tlc_ir::{DType, Graph, HostTensor, NodeId, NodeKind, Target};

use crate::cluster::{Cluster, ClusterKind, Clusters, output_values};
use crate::contraction::MatrixOperand;
use crate::devices::{Placement, StateBinding};
use crate::epilogue;
use crate::grids;
use crate::groups;
pub use crate::launch::LaunchReport;
use crate::made::{Made, made};
use crate::memory::{self, AliasDecision};
use crate::reason::{FusionDecision, FusionStage};
use crate::rematerialize::{Cost, Draft, Rematerialized};
use crate::sequences;
use alike::{Alike, Places};
use nests::Nests;

mod alike;
mod control;
mod nests;
mod queues;
mod share;

/// The plan with what was decided on the way.
pub struct Planned {
    /// The plan, which what runs it shares.
    pub plan: Arc<Plan>,
    /// The node whose elements each slot holds, if it is one's.
    pub values: Vec<Option<NodeId>>,
    /// What makes each kernel, by its number: one of the emitters of the device that runs it.
    pub emitters: Vec<EmitterId>,
    /// Per launch, in order of execution.
    pub launches: Vec<LaunchReport>,
    /// Nests that were made for them, each once for all clusters that are alike; without those of loops' bodies.
    pub lowered: usize,
    /// Every in-place decision.
    pub aliases: Vec<AliasDecision>,
    /// The arena, if no size is symbolic.
    pub layout: Option<Layout>,
    /// The bodies of loops, in order of execution.
    pub bodies: Vec<PlannedBody>,
    /// What was computed again because an arena was limited, by device; one whose arena was small enough is not in it.
    pub rematerialized: Vec<(DeviceId, Rematerialized)>,
}

/// What was decided about the body of a loop.
pub struct PlannedBody {
    /// The loop.
    pub node: NodeId,
    /// The body.
    pub graph: Arc<Graph>,
    /// Its clusters.
    pub clusters: Clusters,
    /// Its plan.
    pub planned: Planned,
}

/// What is told of each kernel as soon as it is decided, with a device that runs it and what makes it there.
pub type Announce<'a> = &'a dyn Fn(&Kernel, DeviceId, EmitterId);

struct Planner<'g> {
    graph: &'g Graph,
    announce: Announce<'g>,
    placement: &'g Placement<'g>,
    plan: Plan,
    /// By slot.
    values: Vec<Option<NodeId>>,
    /// The number of each input that is no state.
    number_of: FxHashMap<NodeId, u32>,
    /// Where each value is computed.
    slot_of: FxHashMap<NodeId, SlotId>,
    /// Values that are computed where concatenations have them: which, and from which element on.
    part_of: FxHashMap<NodeId, (NodeId, IndexExpr)>,
    /// Where each value is on other devices, and whether it has been copied there yet.
    copy_of: FxHashMap<(NodeId, DeviceId), (SlotId, bool)>,
    /// Values that are computed once per executable.
    kept: FxHashSet<NodeId>,
    /// Whether the steps being made run once per executable.
    once: bool,
    /// Whether it is the body of a loop that is planned.
    inside: bool,
    /// The plan's kernels by their hashes; equal ones of different emitters are not one.
    kernel_of: FxHashMap<u64, SmallVec<[KernelId; 1]>>,
    emitters: Vec<EmitterId>,
    /// Scheduled and legalized kernels by the hash of their naive form: equal nests are scheduled once.
    known: FxHashMap<u64, Nests>,
    /// Clusters whose kernels are known.
    alike: Alike,
    places: Places,
    /// Nests that were made.
    lowered: usize,
    in_place: Vec<Vec<(SlotId, SlotId)>>,
    /// Kernels that do nothing but copy their first parameter to the second.
    copies: FxHashSet<KernelId>,
    launches: Vec<LaunchReport>,
    bodies: Vec<PlannedBody>,
    /// Constants that the body of a loop is handed on a device, as inputs behind its own.
    handed_in: Vec<(HostTensor, DeviceId)>,
}

/// What crosses the edge of a graph.
struct Edge<'s> {
    /// Where each input is.
    inputs: Vec<DeviceId>,
    /// Where each output is expected.
    outputs: Vec<DeviceId>,
    /// Which inputs and outputs are states.
    states: &'s [StateBinding],
    /// By input of the graph, and by output: the state that it is.
    state_of_input: Vec<Option<usize>>,
    state_of_output: Vec<Option<usize>>,
    /// Whether it is the body of a loop.
    inside: bool,
    /// The most bytes of each device's arena.
    arena_limits: &'s [u64],
}

impl<'s> Edge<'s> {
    /// Of a graph as a whole, whose caller has everything in one place.
    fn of(graph: &Graph, caller: DeviceId, states: &'s [StateBinding], arena_limits: &'s [u64]) -> Edge<'s> {
        let mut edge = Edge {
            inputs: vec![caller; graph.inputs().len()],
            outputs: vec![caller; graph.outputs().len()],
            states,
            state_of_input: vec![None; graph.inputs().len()],
            state_of_output: vec![None; graph.outputs().len()],
            inside: false,
            arena_limits,
        };
        for (number, s) in states.iter().enumerate() {
            if let Some(input) = s.input {
                edge.state_of_input[input as usize].get_or_insert(number);
            }
            if let Some(output) = s.output {
                edge.state_of_output[output as usize].get_or_insert(number);
            }
        }
        edge
    }
}

/// Plans clusters, in their order. What it decides about kernels behind products is appended to their ledger. Where sizes are fixed, the
/// arena of each device has at most so many bytes (by its number; one that is missing may have any), if that can be; if not, it is as
/// small as it could be made.
pub fn plan(
    graph: &Graph,
    clusters: &mut Clusters,
    placement: &Placement<'_>,
    states: &[StateBinding],
    arena_limits: &[u64],
    announce: Announce<'_>,
) -> Planned {
    let edge = Edge::of(graph, placement.caller(), states, arena_limits);
    plan_between(graph, clusters, placement, &edge, announce).0
}

/// The plan, and the constants that it is handed as inputs behind the graph's own.
fn plan_between(
    graph: &Graph,
    clusters: &mut Clusters,
    placement: &Placement<'_>,
    edge: &Edge<'_>,
    announce: Announce<'_>,
) -> (Planned, Vec<(HostTensor, DeviceId)>) {
    let mut p = Planner {
        graph,
        announce,
        placement,
        plan: Plan {
            name: graph.name.clone(),
            devices: placement.devices().kinds(),
            queues: queues::queues(placement.devices().count()),
            symbols: graph.symbols().to_vec(),
            guards: graph.guards().to_vec(),
            ..Plan::default()
        },
        values: Vec::new(),
        number_of: FxHashMap::default(),
        slot_of: FxHashMap::default(),
        part_of: parts_in_place(clusters),
        copy_of: FxHashMap::default(),
        kept: clusters
            .clusters
            .iter()
            .filter(|c| c.once)
            .flat_map(|c| c.roots.clone())
            .collect(),
        once: false,
        inside: edge.inside,
        kernel_of: FxHashMap::default(),
        emitters: Vec::new(),
        known: FxHashMap::default(),
        alike: Alike::default(),
        places: Places::default(),
        lowered: 0,
        in_place: Vec::new(),
        copies: FxHashSet::default(),
        launches: Vec::new(),
        bodies: Vec::new(),
        handed_in: Vec::new(),
    };
    p.declare(edge);
    for (number, c) in clusters.clusters.iter().enumerate() {
        p.once = c.once;
        p.cluster(number, c, &clusters.is_root);
    }
    p.once = false;
    p.deliver(edge);
    for (node, &number) in &p.number_of {
        p.plan.inputs[number as usize].slot = p.slot_of.get(node).copied();
    }
    let cpu = match placement.devices().target(DeviceId::HOST) {
        Target::Cpu(cpu) => Some(cpu),
        Target::Gpu(_) => None,
    };
    let epilogues = epilogue::attach(&mut p.plan, &mut p.in_place, &mut p.launches, (graph, &p.values), cpu);
    record_epilogues(graph, clusters, &p.values, epilogues);
    let mut aliases = memory::joined(&p.plan);
    let updates = memory::update_states(&mut p.plan, &mut p.in_place, &mut p.launches, &p.copies);
    aliases.extend(updates);
    let rematerialized = p.rematerialize(edge.arena_limits);
    let gpus = gpus(placement, edge.arena_limits);
    aliases.extend(settle(&mut p.plan, &mut p.in_place, &mut p.launches, &gpus));
    p.plan.donations = memory::choose_donations(&p.plan, &p.in_place, &mut aliases);
    made(Made::Donations(&mut p.plan));
    let layout = if p.plan.symbols.is_empty() {
        memory::pack(&p.plan, &[])
    } else {
        None
    };
    let planned = Planned {
        plan: Arc::new(p.plan),
        values: p.values,
        emitters: p.emitters,
        launches: p.launches,
        lowered: p.lowered,
        bodies: p.bodies,
        aliases,
        layout,
        rematerialized,
    };
    (planned, p.handed_in)
}

/// Which values concatenations have in place, and where.
fn parts_in_place(clusters: &Clusters) -> FxHashMap<NodeId, (NodeId, IndexExpr)> {
    let mut found = FxHashMap::default();
    for c in &clusters.clusters {
        let ClusterKind::Join(parts) = &c.kind else { continue };
        for p in parts.iter().filter(|p| !p.copied) {
            found.insert(p.value, (c.roots[0], p.at.clone()));
        }
    }
    found
}

/// The GPUs on which launches may be joined, by device: where an arena is limited, what they touch should not live longer.
fn gpus<'p>(placement: &'p Placement<'_>, limits: &[u64]) -> Vec<Option<&'p Gpu>> {
    let all = (0..placement.devices().count() as u32).map(DeviceId);
    all.map(|device| match placement.devices().target(device) {
        Target::Gpu(gpu) if limits.get(device.0 as usize).is_none_or(|&limit| limit == u64::MAX) => Some(gpu),
        _ => None,
    })
    .collect()
}

/// What is decided about steps once it is known which there are: groups and sequences of launches, turns, and which slots share bytes.
fn settle(
    plan: &mut Plan,
    in_place: &mut Vec<Vec<(SlotId, SlotId)>>,
    launches: &mut Vec<LaunchReport>,
    gpus: &[Option<&Gpu>],
) -> Vec<AliasDecision> {
    groups::group_launches(plan, in_place, launches);
    grids::group_launches(plan, in_place, launches, gpus);
    sequences::join_launches(plan, in_place, gpus);
    made(Made::Groups { plan, in_place });
    queues::take_turns(plan, gpus);
    let mut aliases = memory::choose_aliases(plan, in_place);
    made(Made::Aliases {
        plan,
        decisions: &mut aliases,
    });
    aliases
}

/// Appends what was decided about kernels behind products, for each edge from a product to such a kernel.
fn record_epilogues(graph: &Graph, clusters: &mut Clusters, values: &[Option<NodeId>], decisions: epilogue::Decisions) {
    let links = decisions.products;
    let decisions = decisions.kernels;
    let products: FxHashSet<NodeId> = decisions.iter().filter_map(|d| values[d.product.0 as usize]).collect();
    let mut readers: FxHashMap<NodeId, Vec<NodeId>> = FxHashMap::default();
    for d in clusters
        .ledger
        .entries()
        .iter()
        .filter(|d| products.contains(&d.producer))
    {
        let of = readers.entry(d.producer).or_default();
        if !of.contains(&d.consumer) {
            of.push(d.consumer);
        }
    }
    for decision in decisions {
        let Some(producer) = values[decision.product.0 as usize] else {
            continue;
        };
        let kernel = &clusters.clusters[decision.cluster].roots;
        let reason = decision.reason.fusion_reason(graph);
        for &consumer in readers.get(&producer).into_iter().flatten() {
            if kernel.binary_search(&consumer).is_ok() {
                clusters.ledger.record(FusionDecision {
                    stage: FusionStage::Epilogues,
                    producer,
                    consumer,
                    reason: reason.clone(),
                });
            }
        }
    }
    for link in links {
        let ends = (values[link.rows.0 as usize], values[link.product.0 as usize]);
        if let (Some(producer), Some(consumer)) = ends {
            clusters.ledger.record(FusionDecision {
                stage: FusionStage::Epilogues,
                producer,
                consumer,
                reason: link.reason.fusion_reason(&|e| graph.dim_text(e)),
            });
        }
    }
}

impl Planner<'_> {
    fn declare(&mut self, edge: &Edge<'_>) {
        let unset = |_| PlanState {
            name: String::new(),
            ty: TensorType {
                dtype: DType::Bool,
                shape: Shape::new(),
            },
            slot: SlotId(0),
            read: false,
            set: None,
        };
        self.plan.states = edge.states.iter().map(unset).collect();
        for &i in self.graph.inputs() {
            let NodeKind::Input { name, ty, index } = &self.graph.node(i).kind else {
                continue;
            };
            if let Some(k) = edge.state_of_input[*index as usize] {
                let device = self.placement.state(k);
                let slot = self.new_slot(i, name.clone(), Storage::State(k as u32), device);
                self.plan.states[k] = PlanState {
                    name: name.clone(),
                    ty: ty.clone(),
                    slot,
                    read: true,
                    set: None,
                };
                continue;
            }
            let number = self.plan.inputs.len() as u32;
            self.number_of.insert(i, number);
            if edge.inputs[*index as usize] != DeviceId::HOST {
                self.new_slot(i, name.clone(), Storage::Input(number), edge.inputs[*index as usize]);
            }
            self.plan.inputs.push(PlanInput {
                name: name.clone(),
                ty: ty.clone(),
                slot: None,
            });
        }
        let values = output_values(self.graph, self.placement.products());
        for (k, (o, value)) in self.graph.outputs().iter().zip(values).enumerate() {
            let ty = self.graph.ty(o.node).clone();
            if let Some(state) = edge.state_of_output[k] {
                if edge.states[state].input.is_none() {
                    let held = (ty.dtype, ty.elements());
                    let storage = Storage::State(state as u32);
                    let device = self.placement.state(state);
                    let slot = self.push_slot(None, o.name.clone(), held, storage, device);
                    self.plan.states[state] = PlanState {
                        name: o.name.clone(),
                        ty,
                        slot,
                        read: false,
                        set: None,
                    };
                }
                continue;
            }
            let (storage, device) = (Storage::Output(self.plan.outputs.len() as u32), edge.outputs[k]);
            let slot = match self.home(value) == device {
                true => self.new_slot(value, o.name.clone(), storage, device),
                false => {
                    let held = self.graph.ty(value);
                    let held = (held.dtype, held.elements());
                    let slot = self.push_slot(Some(value), o.name.clone(), held, storage, device);
                    self.copy_of.insert((value, device), (slot, false));
                    slot
                }
            };
            self.plan.outputs.push(PlanOutput {
                name: o.name.clone(),
                ty,
                slot,
            });
        }
    }

    /// Has each output where it is expected, and each state at its new value.
    fn deliver(&mut self, edge: &Edge<'_>) {
        let values = output_values(self.graph, self.placement.products());
        for (k, (value, &device)) in values.into_iter().zip(&edge.outputs).enumerate() {
            let Some(state) = edge.state_of_output[k] else {
                self.read(value, device);
                continue;
            };
            let dst = self.plan.states[state].slot;
            let src = self.read(value, self.plan.slots[dst.0 as usize].device);
            self.push(Step::Copy { src, dst }, Vec::new());
            self.plan.states[state].set = Some(dst);
        }
    }

    /// The device where a value is computed, or the caller has it.
    fn home(&self, node: NodeId) -> DeviceId {
        match self.slot_of.get(&node) {
            Some(slot) => self.plan.slots[slot.0 as usize].device,
            None => self.placement.device(node),
        }
    }

    fn new_slot(&mut self, node: NodeId, name: String, storage: Storage, device: DeviceId) -> SlotId {
        let ty = self.graph.ty(node);
        let id = self.push_slot(Some(node), name, (ty.dtype, ty.elements()), storage, device);
        self.slot_of.insert(node, id);
        id
    }

    fn push_slot(
        &mut self,
        node: Option<NodeId>,
        name: String,
        (dtype, len): (DType, IndexExpr),
        storage: Storage,
        device: DeviceId,
    ) -> SlotId {
        self.plan.slots.push(Slot {
            name,
            dtype,
            len,
            storage,
            device,
        });
        self.values.push(node);
        SlotId(self.plan.slots.len() as u32 - 1)
    }

    /// The slot that a value is computed to.
    fn slot(&mut self, node: NodeId) -> SlotId {
        if let Some(&s) = self.slot_of.get(&node) {
            return s;
        }
        let device = self.placement.device(node);
        if let Some((whole, at)) = self.part_of.get(&node).cloned() {
            let of = self.slot(whole);
            return self.new_slot(node, self.graph.value_name(node), Storage::Part { of, at }, device);
        }
        let (name, storage) = match &self.graph.node(node).kind {
            NodeKind::Input { name, .. } => (name.clone(), Storage::Input(self.number_of[&node])),
            NodeKind::Data(data) => {
                self.plan.constants.push(data.0.clone());
                let storage = Storage::Constant(self.plan.constants.len() as u32 - 1);
                (self.graph.value_name(node), storage)
            }
            _ if self.kept.contains(&node) => (self.graph.value_name(node), Storage::Persistent),
            _ => (self.graph.value_name(node), Storage::Arena),
        };
        self.new_slot(node, name, storage, device)
    }

    /// A slot of another device than the host that holds a constant, which is copied there once: by the steps that run once, or, in the
    /// body of a loop, by those around it, which hand it in.
    fn constant(&mut self, node: Option<NodeId>, name: String, data: HostTensor, device: DeviceId) -> SlotId {
        let shape: Shape = data.shape().iter().map(|&d| IndexExpr::from(d)).collect();
        let held = (data.dtype(), IndexExpr::from(data.len()));
        if self.inside {
            let ty = TensorType {
                dtype: data.dtype(),
                shape,
            };
            let storage = Storage::Input(self.plan.inputs.len() as u32);
            let slot = self.push_slot(node, name.clone(), held, storage, device);
            self.plan.inputs.push(PlanInput {
                name,
                ty,
                slot: Some(slot),
            });
            self.handed_in.push((data, device));
            return slot;
        }
        self.plan.constants.push(data);
        let storage = Storage::Constant(self.plan.constants.len() as u32 - 1);
        let mut src = self.push_slot(node, name.clone(), held.clone(), storage, DeviceId::HOST);
        for at in self.placement.devices().route(DeviceId::HOST, device) {
            let dst = self.push_slot(node, name.clone(), held.clone(), Storage::Persistent, at);
            self.plan.init.push(Step::Copy { src, dst });
            src = dst;
        }
        src
    }

    /// The slot where a device finds a value that has been computed: it is copied there when it is first read there.
    fn read(&mut self, node: NodeId, device: DeviceId) -> SlotId {
        if let Some(&(copy, true)) = self.copy_of.get(&(node, device)) {
            return copy;
        }
        let declared = self.copy_of.contains_key(&(node, device));
        if let NodeKind::Data(data) = &self.graph.node(node).kind
            && self.inside
            && device != DeviceId::HOST
            && !declared
        {
            let name = self.graph.value_name(node);
            let slot = self.constant(Some(node), name, data.0.clone(), device);
            self.copy_of.insert((node, device), (slot, true));
            return slot;
        }
        let slot = self.slot(node);
        let home = self.plan.slots[slot.0 as usize].device;
        if home == device {
            return slot;
        }
        // What does not change from call to call is copied once. The body of a loop has no steps that run once.
        let once = !self.inside
            && matches!(
                self.plan.slots[slot.0 as usize].storage,
                Storage::Constant(_) | Storage::Persistent
            );
        let mut src = slot;
        for at in self.placement.devices().route(home, device) {
            src = match self.copy_of.get(&(node, at)) {
                Some(&(copy, true)) => copy,
                declared => {
                    let dst = match declared {
                        Some(&(output, _)) => output,
                        None => {
                            let Slot { name, dtype, len, .. } = self.plan.slots[slot.0 as usize].clone();
                            let storage = if once { Storage::Persistent } else { Storage::Arena };
                            self.push_slot(Some(node), name, (dtype, len), storage, at)
                        }
                    };
                    self.copy_of.insert((node, at), (dst, true));
                    // An output is written by each call.
                    let outlives = self.plan.slots[dst.0 as usize].storage == Storage::Persistent;
                    let outside = std::mem::replace(&mut self.once, outlives);
                    self.push(Step::Copy { src, dst }, Vec::new());
                    self.once = outside;
                    dst
                }
            };
        }
        src
    }

    fn cluster(&mut self, number: usize, c: &Cluster, is_root: &[bool]) {
        let device = self.placement.device(c.roots[0]);
        let target = self.placement.devices().target(device);
        if let ClusterKind::Gemm(product) = &c.kind {
            let operand = |p: &mut Self, o: &MatrixOperand| GemmOperand {
                slot: p.read(o.base, device),
                offset: o.offset.clone(),
                batch: o.batch.clone(),
                row: o.row.clone(),
                column: o.column.clone(),
                windowed: o.windowed.clone(),
            };
            let (lhs, rhs, dst) = (
                operand(self, &product.lhs),
                operand(self, &product.rhs),
                operand(self, &product.dst),
            );
            let name = self.graph.value_name(c.roots[0]);
            let workspace = match target {
                Target::Gpu(gpu) => gpu.products.map_or(0, |library| library.workspace_bytes),
                Target::Cpu(_) => 0,
            };
            let workspace = (workspace > 0).then(|| {
                let bytes = IndexExpr::from(workspace as usize);
                self.temporary(format!("{name}.workspace"), DType::U8, bytes, device)
            });
            self.push(
                Step::Gemm(Box::new(Gemm {
                    dtype: self.graph.ty(c.roots[0]).dtype,
                    batch: product.batch.clone(),
                    m: product.m.clone(),
                    n: product.n.clone(),
                    k: product.k.clone(),
                    lhs,
                    rhs,
                    dst,
                    workspace,
                    epilogue: None,
                    label: format!("matmul {name}"),
                })),
                Vec::new(),
            );
            return;
        }
        if let ClusterKind::Join(parts) = &c.kind {
            let of = self.slot(c.roots[0]);
            for part in parts.iter().filter(|p| p.copied) {
                let src = self.read(part.value, device);
                let Slot { name, dtype, len, .. } = self.plan.slots[src.0 as usize].clone();
                let storage = Storage::Part {
                    of,
                    at: part.at.clone(),
                };
                let dst = self.push_slot(None, name, (dtype, len), storage, device);
                self.push(Step::Copy { src, dst }, Vec::new());
            }
            return;
        }
        if let ClusterKind::Loop | ClusterKind::Call = &c.kind {
            return self.control(c);
        }
        // What its nests leave for each other.
        let mut temporaries: Vec<SlotId> = Vec::new();
        for ready in self.ready(c, is_root, device, target) {
            for (dtype, len) in &ready.temporaries {
                let name = format!("{}.parts", self.graph.value_name(c.roots[0]));
                temporaries.push(self.temporary(name, *dtype, len.clone(), device));
            }
            self.launch(number, c, (device, target), ready, &temporaries);
        }
    }

    fn push(&mut self, step: Step, in_place: Vec<(SlotId, SlotId)>) {
        if self.once {
            self.plan.init.push(step);
        } else {
            self.plan.steps.push(step);
            self.in_place.push(in_place);
        }
    }

    /// Computes values again where the arena of a device is larger than its limit.
    fn rematerialize(&mut self, limits: &[u64]) -> Vec<(DeviceId, Rematerialized)> {
        let mut out = Vec::new();
        if !self.plan.symbols.is_empty() {
            return out;
        }
        let once: usize = self.plan.init.iter().map(|s| s.launches().len()).sum();
        let gpus = gpus(self.placement, limits);
        for (device, &limit) in (0..).map(DeviceId).zip(limits).take(self.plan.devices.len()) {
            let target = self.placement.devices().target(device);
            let mut rest = self.launches.split_off(once).into_iter();
            let steps = self.plan.steps.iter();
            let mut reports: Vec<Vec<LaunchReport>> = steps
                .map(|s| rest.by_ref().take(s.launches().len()).collect())
                .collect();
            let first = self.launches.clone();
            let arena = |plan: &Plan, in_place: &[Vec<(SlotId, SlotId)>]| {
                let (mut plan, mut in_place) = (plan.clone(), in_place.to_vec());
                settle(&mut plan, &mut in_place, &mut first.clone(), &gpus);
                memory::pack(&plan, &[]).map_or(0, |layout| layout.arena(device).bytes)
            };
            let kept_bytes = arena(&self.plan, &self.in_place);
            let costs = Cost::of(&self.plan, device, target).filter(|_| kept_bytes > limit);
            let Some(costs) = costs else {
                self.launches.extend(reports.into_iter().flatten());
                continue;
            };
            let mut draft = Draft {
                costs,
                plan: &mut self.plan,
                in_place: &mut self.in_place,
                reports: &mut reports,
                values: &mut self.values,
            };
            // The bytes that are live are the least that an arena may have: it is larger where values do not fit beside each other, and
            // where launches of a group run at once.
            let again = draft.lower(device, limit, &|draft| arena(draft.plan, draft.in_place));
            self.launches.extend(reports.into_iter().flatten());
            let found = Rematerialized {
                kept_bytes,
                limit_bytes: limit,
                again,
            };
            out.push((device, found));
        }
        out
    }
}

/// What a cluster computes, for reports: `reduce.max+exp`.
pub fn cluster_label(graph: &Graph, c: &Cluster) -> String {
    let mut names: Vec<String> = Vec::new();
    for &r in &c.roots {
        let node = graph.node(r);
        let name = match &node.kind {
            NodeKind::Reduce { monoid, .. } => format!("reduce.{}", monoid.name()),
            kind => kind.name().to_string(),
        };
        names.push(name);
    }
    if names.len() > 6 {
        let more = names.len() - 5;
        names.truncate(5);
        names.push(format!("{more} more"));
    }
    names.join("+")
}
