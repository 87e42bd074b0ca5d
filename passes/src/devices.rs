//! Devices, and which of them each value is computed on.
//!
//! Placement comes before clustering: no kernel crosses devices, and every decision about a kernel asks the device that runs it. A value
//! that needs no memory, because it is computed where it is read, is computed on the device of whoever reads it.
//!
//! A graph that is [divided](Place::Divided) is cut between nodes, in the order in which they were recorded: each GPU computes the nodes
//! between two cuts. The cuts are where each GPU has about as many bytes of inputs and constants to hold, and of the places near
//! there, where the fewest bytes cross. A loop is computed whole on one device, and so is a state.

use tlc_ir::plan::{DeviceId, DeviceKind};
use tlc_ir::target::{Cpu, Gpu, HostProducts};
use tlc_ir::{Graph, NodeId, NodeKind, Precision, Target};

use crate::tuning::Pins;

/// What two devices are joined by, in one direction.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Link {
    /// Where bytes come from.
    pub from: DeviceId,
    /// Where they go.
    pub to: DeviceId,
    /// How many a second.
    pub bytes_per_second: f64,
    /// Seconds until the first of them is there.
    pub latency_seconds: f64,
}

impl Link {
    /// Sixteen lanes of PCI Express 4.0, of which 25 GB/s are seen in practice, after some ten microseconds.
    pub fn pcie(from: DeviceId, to: DeviceId) -> Link {
        Link {
            from,
            to,
            bytes_per_second: 25e9,
            latency_seconds: 10e-6,
        }
    }
}

/// The devices that a graph is compiled for: a host, and the GPUs beside it.
#[derive(Clone, PartialEq, Debug)]
pub struct Devices {
    /// By number; the first is the host, and only it is one.
    targets: Vec<Target>,
    /// The host has one to each GPU, and one back.
    links: Vec<Link>,
}

impl From<Cpu> for Devices {
    fn from(host: Cpu) -> Devices {
        Devices::new(host, [])
    }
}

impl Devices {
    /// A host, and GPUs that are joined to the host alone ([`Link::pcie`]).
    pub fn new(host: Cpu, gpus: impl IntoIterator<Item = Gpu>) -> Devices {
        let gpus = gpus.into_iter().map(Target::from);
        let targets: Vec<Target> = std::iter::once(Target::from(host)).chain(gpus).collect();
        let to_host = |gpu| {
            [
                Link::pcie(DeviceId::HOST, DeviceId(gpu)),
                Link::pcie(DeviceId(gpu), DeviceId::HOST),
            ]
        };
        Devices {
            links: (1..targets.len() as u32).flat_map(to_host).collect(),
            targets,
        }
    }

    /// The same, with a link between two devices, in place of the one that they may have in that direction.
    #[must_use]
    pub fn with_link(mut self, link: Link) -> Devices {
        self.links.retain(|l| (l.from, l.to) != (link.from, link.to));
        self.links.push(link);
        self
    }

    /// What joins one device to another, if something does.
    pub fn link(&self, from: DeviceId, to: DeviceId) -> Option<&Link> {
        self.links.iter().find(|l| (l.from, l.to) == (from, to))
    }

    /// A device.
    ///
    /// # Panics
    /// If there is no device of that number.
    pub fn target(&self, device: DeviceId) -> &Target {
        &self.targets[device.0 as usize]
    }

    /// The same, with another host.
    #[must_use]
    pub fn with_host(mut self, host: Cpu) -> Devices {
        self.targets[0] = host.into();
        self
    }

    /// The host.
    pub fn host(&self) -> &Cpu {
        match &self.targets[0] {
            Target::Cpu(cpu) => cpu,
            Target::Gpu(_) => unreachable!("the first device is the host"),
        }
    }

    /// How many there are, the host included.
    pub fn count(&self) -> usize {
        self.targets.len()
    }

    /// What a plan calls them.
    pub fn kinds(&self) -> Vec<DeviceKind> {
        let kind = |t: &Target| match t {
            Target::Cpu(_) => DeviceKind::Host,
            Target::Gpu(_) => DeviceKind::Gpu,
        };
        self.targets.iter().map(kind).collect()
    }

    /// The devices that bytes pass on their way from one to another, the last included: the other alone where a link joins
    /// them, else the host first.
    pub fn route(&self, from: DeviceId, to: DeviceId) -> Vec<DeviceId> {
        match self.link(from, to) {
            Some(_) => vec![to],
            None => vec![DeviceId::HOST, to],
        }
    }
}

/// An input, an output, or one of each that are the old and the new value of one state ([`tlc_ir::plan::PlanState`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StateBinding {
    /// Number of the graph's input that is the value when a call begins.
    pub input: Option<u32>,
    /// Number of the graph's output that is the value when it ends.
    pub output: Option<u32>,
}

/// How nodes are placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// On one device, or on the host what has no form there.
    On(DeviceId),
    /// On all GPUs, each a part of the nodes in their order; on the host what has no form there.
    Divided,
    /// Each on some device, as a hash of its number and the seed says: what tests of plans for several devices need.
    Scattered {
        /// Of the hash.
        seed: u64,
    },
}

/// The device of each value of a graph.
#[derive(Clone, Debug)]
pub struct Placement<'d> {
    devices: &'d Devices,
    place: Place,
    /// Where the caller has inputs and wants outputs.
    caller: DeviceId,
    /// How exactly products are computed.
    precision: Precision,
    /// What choices are to be, where they may be pinned.
    pins: Option<&'d Pins>,
    /// By node: the device of the kernel or step that computes it.
    of: Vec<DeviceId>,
    /// Where a graph that is divided is cut.
    cuts: Vec<Cut>,
    /// By state, where the graph is divided.
    states: Vec<DeviceId>,
}

/// A place in the order of nodes where a graph is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cut {
    /// The first node behind it.
    pub before: NodeId,
    /// The device of the nodes behind it.
    pub to: DeviceId,
    /// Bytes of inputs and constants that the devices before it have; sizes that are unknown count as 1.
    pub held_bytes: u64,
    /// Bytes of values that cross it, likewise.
    pub crossing_bytes: u64,
}

/// Gives each node of a graph a device.
pub fn place<'d>(graph: &Graph, devices: &'d Devices, place: Place) -> Placement<'d> {
    let mut placement = Placement {
        devices,
        place,
        caller: DeviceId::HOST,
        precision: Precision::Exact,
        pins: None,
        of: Vec::new(),
        cuts: match place {
            Place::Divided => cuts(graph, devices.count() - 1),
            Place::On(_) | Place::Scattered { .. } => Vec::new(),
        },
        states: Vec::new(),
    };
    for (id, node) in graph.nodes() {
        let device = match &node.kind {
            // Where the caller and the file have them.
            NodeKind::Input { .. } | NodeKind::Data(_) => DeviceId::HOST,
            // The host counts iterations and runs its own functions.
            NodeKind::Loop(_) | NodeKind::Call(_) => DeviceId::HOST,
            NodeKind::Project(result) => match &graph.node(node.operands[0]).kind {
                NodeKind::Call(_) => DeviceId::HOST,
                _ => placement.loop_result(node.operands[0], *result as usize),
            },
            _ => placement.pick(id, u64::from(id.0)),
        };
        placement.of.push(device);
    }
    placement
}

/// The bytes of a node's result.
fn bytes(graph: &Graph, node: NodeId) -> u64 {
    let ty = graph.ty(node);
    let extents = ty.shape.iter().map(|d| d.as_const().unwrap_or(1).max(0) as u64);
    extents.fold(ty.dtype.bytes() as u64, u64::saturating_mul)
}

/// Where a graph is cut for so many devices.
fn cuts(graph: &Graph, parts: usize) -> Vec<Cut> {
    let count = graph.nodes().count();
    let is_source = |node: NodeId| matches!(graph.node(node).kind, NodeKind::Input { .. } | NodeKind::Data(_));
    // A view is where the value is that it is of, whoever reads it.
    let mut is_output = vec![false; count];
    graph.outputs().iter().for_each(|o| is_output[o.node.index()] = true);
    let mut of: Vec<NodeId> = Vec::with_capacity(count);
    for (id, node) in graph.nodes() {
        let is_seen_through = matches!(node.kind, NodeKind::View(_)) && !is_output[id.index()];
        of.push(match is_seen_through {
            true => of[node.operands[0].index()],
            false => id,
        });
    }
    // What a node makes its device hold: the inputs and constants that none before it reads.
    let mut seen = vec![false; count];
    let mut held = Vec::with_capacity(count);
    // By value, the last node that reads it.
    let mut last: Vec<usize> = (0..count).collect();
    for (id, node) in graph.nodes() {
        let mut here = 0;
        let reads: &[NodeId] = if of[id.index()] == id { &node.operands } else { &[] };
        for operand in reads.iter().map(|o| of[o.index()]) {
            last[operand.index()] = id.index();
            if is_source(operand) && !std::mem::replace(&mut seen[operand.index()], true) {
                here += bytes(graph, operand);
            }
        }
        held.push(here);
    }
    // By node, the bytes of values from before it that it or a later one reads, each of them once.
    let mut crossing = vec![0u64; count + 1];
    let mut leaving = vec![0u64; count + 1];
    let mut open = 0u64;
    // Where a value is from; a loop or a function has no memory but that of its results, which are there when it is done.
    let mut results: Vec<Vec<NodeId>> = vec![Vec::new(); count];
    for (id, node) in graph.nodes() {
        match &node.kind {
            NodeKind::Project(_) => results[node.operands[0].index()].push(id),
            NodeKind::Loop(_) | NodeKind::Call(_) => {}
            // Kernels have numbers in them, and count for themselves.
            NodeKind::Input { .. } | NodeKind::Data(_) | NodeKind::Const(_) | NodeKind::Iota { .. } => {}
            _ => results[id.index()].push(id),
        }
    }
    for id in 0..count {
        open -= leaving[id];
        crossing[id] = open;
        for value in &results[id] {
            if last[value.index()] > id && of[value.index()] == *value {
                let bytes = bytes(graph, *value);
                open += bytes;
                leaving[last[value.index()].max(id) + 1] += bytes;
            }
        }
    }
    // A node counts for itself, so that a graph that holds nothing is cut as well.
    let total: u64 = held.iter().sum::<u64>() + count as u64;
    let mut cuts: Vec<Cut> = Vec::new();
    for part in 1..parts as u64 {
        let goal = u128::from(total) * u128::from(part) / parts as u128;
        let slack = u128::from(total) / (8 * parts as u128);
        let after = cuts.last().map_or(0, |c| c.before.index());
        let mut before = 0u64;
        let places = held.iter().enumerate().map(|(id, own)| {
            let place = (id, before + id as u64);
            before += own;
            place
        });
        let off = |sum: u64| u128::from(sum).abs_diff(goal);
        // Of those that are near enough the one that the least crosses, else the nearest.
        let best = places
            .filter(|(id, _)| *id > after)
            .min_by_key(|&(id, sum)| match off(sum) {
                near if near <= slack => (0, u128::from(crossing[id]), near),
                far => (far, u128::from(crossing[id]), far),
            });
        let Some((id, _)) = best else { break };
        cuts.push(Cut {
            before: NodeId(id as u32),
            to: DeviceId(part as u32 + 1),
            held_bytes: held[..id].iter().sum(),
            crossing_bytes: crossing[id],
        });
    }
    cuts
}

impl<'d> Placement<'d> {
    /// The devices.
    pub fn devices(&self) -> &'d Devices {
        self.devices
    }

    /// The same, for a caller that has inputs on another device than the host, and wants outputs there.
    #[must_use]
    pub fn for_caller(mut self, caller: DeviceId) -> Placement<'d> {
        self.caller = caller;
        self
    }

    /// The same, with what need only be so exact.
    #[must_use]
    pub fn with_precision(mut self, precision: Precision) -> Placement<'d> {
        self.precision = precision;
        self
    }

    /// Where choices of schedules may be pinned, with what they are to be.
    #[must_use]
    pub fn with_pins(mut self, pins: Option<&'d Pins>) -> Placement<'d> {
        self.pins = pins;
        self
    }

    /// What choices are to be, where they may be pinned.
    pub fn pins(&self) -> Option<&'d Pins> {
        self.pins
    }

    /// What the host's library of products multiplies beside f32 and f64.
    pub fn products(&self) -> HostProducts {
        self.devices.host().products
    }

    /// How exactly is to be computed.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// Where the caller has inputs and wants outputs.
    pub fn caller(&self) -> DeviceId {
        self.caller
    }

    /// The device that computes a value.
    pub fn device(&self, node: NodeId) -> DeviceId {
        self.of[node.index()]
    }

    /// The machine that computes a value.
    pub fn target(&self, node: NodeId) -> &'d Target {
        self.devices.target(self.device(node))
    }

    /// Where it is cut, if it is divided.
    pub fn cuts(&self) -> &[Cut] {
        &self.cuts
    }

    /// The same, with states of the caller, each on the device that reads it first or else computes it.
    #[must_use]
    pub fn with_states(mut self, graph: &Graph, states: &[StateBinding]) -> Placement<'d> {
        if self.place == Place::Divided {
            let device = |state: &StateBinding| {
                let input = state.input.and_then(|k| graph.inputs().get(k as usize).copied());
                let reader = input.and_then(|i| graph.nodes().find(|(_, n)| n.operands.contains(&i)));
                let output = state.output.and_then(|k| graph.outputs().get(k as usize));
                let first = reader.map(|(id, _)| id).or(output.map(|o| o.node));
                self.part(first.unwrap_or(NodeId(0)))
            };
            self.states = states.iter().map(device).collect();
        }
        self
    }

    /// Where a loop leaves a result, and its body computes it. Values that go around have one place for all iterations.
    pub fn loop_result(&self, node: NodeId, result: usize) -> DeviceId {
        self.pick(node, (u64::from(node.0) << 16) + 2 * result as u64)
    }

    /// Where a state of the caller is.
    pub fn state(&self, number: usize) -> DeviceId {
        match self.states.get(number) {
            Some(device) => *device,
            None => self.pick(NodeId(0), u64::MAX - number as u64),
        }
    }

    /// Where the body of a loop reads an operand that does not go around.
    pub fn loop_operand(&self, node: NodeId, operand: usize) -> DeviceId {
        self.pick(node, (u64::from(node.0) << 16) + 2 * operand as u64 + 1)
    }

    /// The devices of the values of a loop's body.
    pub fn inside(&self, node: NodeId, body: &Graph) -> Placement<'d> {
        let inside = match self.place {
            Place::Divided => Place::On(self.part(node)),
            same => same,
        };
        place(body, self.devices, inside)
            .with_precision(self.precision)
            .with_pins(self.pins)
    }

    /// The device between whose cuts a node is.
    fn part(&self, node: NodeId) -> DeviceId {
        let behind = self.cuts.iter().rev().find(|c| c.before <= node);
        behind.map_or(DeviceId(1), |c| c.to)
    }

    fn pick(&self, node: NodeId, number: u64) -> DeviceId {
        match self.place {
            Place::On(device) => device,
            Place::Divided => self.part(node),
            Place::Scattered { seed } => {
                // The finalizer of MurmurHash3 (Appleby).
                let mut h = number ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                h = (h ^ (h >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
                h = (h ^ (h >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
                DeviceId(((h ^ (h >> 33)) % self.devices.count() as u64) as u32)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tlc_ir::text::parse_graph;
    use tlc_ir::{DType, HostTensor};

    use super::*;

    /// Four products with constants of 16 KiB each, between the middle two a value of 32 bytes, and a loop.
    const LAYERS: &str = "graph @layers(%x: f32[8, 64], %s: f32[8]) {
  %0 = const opaque \"a\" : f32[64, 64]
  %1 = const opaque \"b\" : f32[64, 64]
  %2 = const opaque \"c\" : f32[64, 64]
  %3 = const opaque \"d\" : f32[64, 64]
  %4 = einsum %x, %0 {ab,bc->ac} : f32[8, 64]
  %5 = einsum %4, %1 {ab,bc->ac} : f32[8, 64]
  %6 = reduce add %5 {axes=[1]} : f32[8]
  %7 = reshape %6 : f32[8, 1]
  %8 = expand %7 : f32[8, 64]
  %9 = einsum %8, %2 {ab,bc->ac} : f32[8, 64]
  %10 = einsum %9, %3 {ab,bc->ac} : f32[8, 64]
  %11 = loop %s {trip=3, carried=1} body @step(%i: i64[], %h: f32[8]) {
    %0 = tanh %h : f32[8]
    return %0
  } : (f32[8])
  %12 = project %11 {result=0} : f32[8]
  return %10 as y, %12 as t
}";

    fn devices(gpus: usize) -> Devices {
        let gpu = || Gpu::any(Arc::new(tlc_codegen::cuda::emitter()));
        let host = Cpu::modest(Arc::new(tlc_codegen::clif::emitter(true)));
        Devices::new(host, (0..gpus).map(|_| gpu()))
    }

    /// Two products with constants of 16 KiB each. The value between them is read through three views of it, beside a number for each
    /// element and a mask that kernels have in them.
    const VIEWS: &str = "graph @views(%x: f32[64, 8]) {
  %0 = const opaque \"a\" : f32[64, 64]
  %1 = const opaque \"b\" : f32[64, 64]
  %2 = einsum %0, %x {ab,bc->ac} : f32[64, 8]
  %3 = permute %2 {axes=[1, 0]} : f32[8, 64]
  %4 = reshape %2 : f32[8, 64]
  %5 = slice %4 {start=[0, 0], step=[1, 2]} : f32[8, 32]
  %6 = const 2.0 : f32[]
  %7 = expand %6 : f32[8, 64]
  %8 = iota {axis=1} : i64[8, 64]
  %9 = einsum %3, %1 {ab,bc->ac} : f32[8, 64]
  %10 = mul %9, %7 : f32[8, 64]
  %11 = add %10, %4 : f32[8, 64]
  %12 = convert %8 : f32[8, 64]
  %13 = add %11, %12 : f32[8, 64]
  %14 = reduce add %5 {axes=[1]} : f32[8]
  return %13, %14
}";

    #[test]
    fn a_value_crosses_once_however_it_is_seen() {
        let mut data =
            |_: &str, dtype: DType, shape: &[usize]| HostTensor::zeros(dtype, shape).map_err(|e| e.to_string());
        let graph = parse_graph(VIEWS, &mut data).expect("a graph");
        let two = devices(2);
        let placement = place(&graph, &two, Place::Divided);
        let [cut] = placement.cuts() else {
            panic!("{:?}", placement.cuts())
        };
        assert_eq!(cut.held_bytes, (64 * 8 + 64 * 64) * 4);
        assert_eq!(cut.crossing_bytes, 64 * 8 * 4);
    }

    #[test]
    fn each_part_holds_about_as_much_and_little_crosses() {
        let mut data =
            |_: &str, dtype: DType, shape: &[usize]| HostTensor::zeros(dtype, shape).map_err(|e| e.to_string());
        let graph = parse_graph(LAYERS, &mut data).expect("a graph");
        let two = devices(2);
        let placement = place(&graph, &two, Place::Divided);
        let [cut] = placement.cuts() else {
            panic!("{:?}", placement.cuts())
        };
        assert_eq!((cut.to, cut.crossing_bytes), (DeviceId(2), 32));
        assert_eq!(cut.held_bytes, 8 * 64 * 4 + 2 * 64 * 64 * 4);
        for (id, node) in graph.nodes() {
            let expected = match &node.kind {
                NodeKind::Input { .. } | NodeKind::Data(_) | NodeKind::Loop(_) => DeviceId::HOST,
                _ if id < cut.before => DeviceId(1),
                _ => DeviceId(2),
            };
            assert_eq!(placement.device(id), expected, "{id:?}");
            if let NodeKind::Loop(l) = &node.kind {
                // Whole on one device.
                let inside = placement.inside(id, &l.body.0);
                let homes = [placement.loop_result(id, 0), placement.loop_operand(id, 0)];
                assert_eq!(homes, [DeviceId(2); 2]);
                let mut all = l.body.0.nodes();
                assert!(all.all(|(n, v)| matches!(v.kind, NodeKind::Input { .. }) || inside.device(n) == DeviceId(2)));
            }
        }
        // A state is where it is read first.
        let states = [0, 1].map(|k| StateBinding {
            input: Some(k),
            output: None,
        });
        let placement = placement.with_states(&graph, &states);
        assert_eq!([0, 1].map(|k| placement.state(k)), [DeviceId(1), DeviceId(2)]);
        // More devices than there is something to compute for.
        for gpus in 3..40 {
            let many = devices(gpus);
            let placement = place(&graph, &many, Place::Divided);
            let cuts: Vec<NodeId> = placement.cuts().iter().map(|c| c.before).collect();
            assert!(cuts.len() < gpus && cuts.is_sorted_by(|a, b| a < b), "{cuts:?}");
        }
    }
}
