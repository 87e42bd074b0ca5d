//! Devices, and which of them each value is computed on.
//!
//! Placement comes before clustering: no kernel crosses devices, and every decision about a kernel asks the device that runs it. A value
//! that needs no memory, because it is computed where it is read, is computed on the device of whoever reads it.

use tlc_ir::plan::{DeviceId, DeviceKind};
use tlc_ir::target::{Cpu, Gpu};
use tlc_ir::{Graph, NodeId, NodeKind, Precision, Target};

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
    /// By node: the device of the kernel or step that computes it.
    of: Vec<DeviceId>,
}

/// Gives each node of a graph a device.
pub fn place<'d>(graph: &Graph, devices: &'d Devices, place: Place) -> Placement<'d> {
    let mut placement = Placement {
        devices,
        place,
        caller: DeviceId::HOST,
        precision: Precision::Exact,
        of: Vec::new(),
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
            _ => placement.pick(u64::from(id.0)),
        };
        placement.of.push(device);
    }
    placement
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

    /// The same, with products that need only be so exact.
    #[must_use]
    pub fn with_precision(mut self, precision: Precision) -> Placement<'d> {
        self.precision = precision;
        self
    }

    /// How exactly products are to be computed.
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

    /// Where a loop leaves a result, and its body computes it. Values that go around have one place for all iterations.
    pub fn loop_result(&self, node: NodeId, result: usize) -> DeviceId {
        self.pick((u64::from(node.0) << 16) + 2 * result as u64)
    }

    /// Where a state of the caller is.
    pub fn state(&self, number: usize) -> DeviceId {
        self.pick(u64::MAX - number as u64)
    }

    /// Where the body of a loop reads an operand that does not go around.
    pub fn loop_operand(&self, node: NodeId, operand: usize) -> DeviceId {
        self.pick((u64::from(node.0) << 16) + 2 * operand as u64 + 1)
    }

    /// The devices of the values of a loop's body.
    pub fn inside(&self, body: &Graph) -> Placement<'d> {
        place(body, self.devices, self.place).with_precision(self.precision)
    }

    fn pick(&self, number: u64) -> DeviceId {
        match self.place {
            Place::On(device) => device,
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
