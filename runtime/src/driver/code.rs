//! The code of a plan, on each of its devices.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use tlc_ir::plan::{Launch, Plan, SlotId, Step};
use tlc_ir::target::EmitterId;
use tlc_ir::{HostTensor, Kernel};

use crate::binding::steps::{is_in_place, joining};
use crate::device::{Device, Joining, KernelHandle, Queued, ToJoin, ToLoad};
use crate::error::RunError;

/// What makes each kernel of a plan, by its number: one of the emitters of the device that runs it. What is missing is made by the
/// first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Emitters {
    /// Of the plan's own kernels.
    pub kernels: Vec<EmitterId>,
    /// Of those of loops' bodies, by the number of the loop among the plan's steps; `init` steps count first.
    pub bodies: Vec<Emitters>,
}

/// A plan's code: its kernels, and the code of the bodies of its loops in the order of the steps.
pub(crate) struct Code<K> {
    /// The kernels that the host runs, by number.
    pub(super) host: Vec<Option<K>>,
    /// Those that the other devices run.
    pub(super) others: Vec<Table>,
    /// By slot: whether all that reads it takes elements at any address.
    any_address: Vec<bool>,
    pub(super) bodies: Vec<Code<K>>,
}

/// The kernels that a device beside the host runs, by number.
pub(super) struct Table {
    /// For launches whose buffers lie apart.
    pub(super) apart: Vec<Option<KernelHandle>>,
    /// For those that write where they read.
    pub(super) in_place: Vec<Option<KernelHandle>>,
    /// Launches that are one, by the number of their step among the plan's sequences and groups.
    pub(super) joined: Vec<Option<KernelHandle>>,
}

/// The kernels of one device, each once, with what makes it.
#[derive(Default)]
struct Batch<'p> {
    kernels: Vec<ToLoad<'p>>,
    numbers: FxHashMap<ToLoad<'p>, usize>,
    /// The numbers by where the kernels lie, and whether they write where they read: those that were hashed once.
    met: FxHashMap<(*const Kernel, bool), usize>,
    /// Whether sequences and groups of launches are loaded as one kernel each.
    joins: bool,
    joined: Vec<ToJoin<'p>>,
    joined_numbers: FxHashMap<ToJoin<'p>, usize>,
}

impl<'p> Batch<'p> {
    /// The number of a kernel, which is one more if it is new.
    fn number(&mut self, key: ToLoad<'p>) -> usize {
        let number = *self.numbers.entry(key).or_insert_with(|| {
            self.kernels.push(key);
            self.kernels.len() - 1
        });
        self.met.insert((key.kernel, key.in_place), number);
        number
    }

    /// As [`Batch::number`], of launches that are one.
    fn join(&mut self, key: ToJoin<'p>) -> usize {
        let Batch {
            joined, joined_numbers, ..
        } = self;
        *joined_numbers.entry(key.clone()).or_insert_with(|| {
            joined.push(key);
            joined.len() - 1
        })
    }
}

/// What a device beside the host loaded of a batch.
struct Loaded {
    kernels: Vec<KernelHandle>,
    joined: Vec<KernelHandle>,
}

/// What a plan launches: its device, its number in the plan, and whether it writes where it reads.
type Launched = FxHashSet<(usize, usize, bool)>;

/// The loops of a plan, in the order of its steps.
fn loops(plan: &Plan) -> impl Iterator<Item = &Plan> {
    let steps = plan.init.iter().chain(&plan.steps);
    steps.filter_map(|s| match s {
        Step::Loop(l) => Some(&l.body),
        Step::Launch(_) | Step::Group(_) | Step::Sequence(_) | Step::Gemm(_) | Step::Copy { .. } | Step::Call(_) => {
            None
        }
    })
}

/// The number of the device that a launch runs on.
fn device_of(plan: &Plan, l: &Launch) -> usize {
    l.args.first().map_or(0, |s| plan.slots[s.0 as usize].device.0 as usize)
}

/// Calls `f` with the device of each step whose launches may be one, its number among such steps, and what the device loads for it.
fn joined<'p>(plan: &'p Plan, emitters: Option<&Emitters>, f: &mut dyn FnMut(usize, usize, ToJoin<'p>)) {
    let steps = plan.init.iter().chain(&plan.steps);
    let all = steps.filter_map(|s| joining(plan, s).map(|joining| (joining, s.launches())));
    for (number, (joining, all)) in all.enumerate() {
        let mut key = ToJoin {
            joining,
            kernels: Vec::new(),
            order: Vec::with_capacity(all.len()),
        };
        // Kernels are long to compare: those of one number are one.
        let mut known: FxHashMap<(usize, bool), usize> = FxHashMap::default();
        for l in all {
            let kernel = l.kernel.0 as usize;
            let in_place = match joining {
                // What one launch writes another may read.
                Joining::InTurn => true,
                Joining::Beside => is_in_place(plan, l),
            };
            key.order.push(*known.entry((kernel, in_place)).or_insert_with(|| {
                key.kernels.push(ToLoad {
                    kernel: &plan.kernels[kernel],
                    emitter: emitter(emitters, kernel),
                    in_place,
                });
                key.kernels.len() - 1
            }));
        }
        let device = all.first().map_or(0, |l| device_of(plan, l));
        f(device, number, key);
    }
}

/// Calls `f` with the device and number of each kernel that a plan launches, and what the device loads for it, once for each. `joins` says
/// of a device whether those of sequences and groups are not launched by themselves.
fn launched<'p>(
    plan: &'p Plan,
    emitters: Option<&Emitters>,
    joins: &dyn Fn(usize) -> bool,
    f: &mut dyn FnMut(usize, usize, ToLoad<'p>),
) {
    // Kernels are long to hash, and most are launched many times.
    let mut seen = Launched::default();
    let steps = plan.init.iter().chain(&plan.steps);
    let apart = steps.flat_map(|step| {
        let joined = joining(plan, step).is_some();
        step.launches().iter().map(move |l| (l, joined))
    });
    for (l, joined) in apart {
        let device = device_of(plan, l);
        if joined && joins(device) {
            continue;
        }
        let kernel = l.kernel.0 as usize;
        let to_load = ToLoad {
            kernel: &plan.kernels[kernel],
            emitter: emitter(emitters, kernel),
            // It is the same code on the host.
            in_place: device != 0 && is_in_place(plan, l),
        };
        if seen.insert((device, kernel, to_load.in_place)) {
            f(device, kernel, to_load);
        }
    }
}

fn emitter(emitters: Option<&Emitters>, kernel: usize) -> EmitterId {
    let known = emitters.and_then(|e| e.kernels.get(kernel));
    known.copied().unwrap_or_default()
}

fn collect<'p>(plan: &'p Plan, emitters: Option<&Emitters>, batches: &mut [Batch<'p>]) {
    let joins: Vec<bool> = batches.iter().map(|b| b.joins).collect();
    launched(plan, emitters, &|device| joins[device], &mut |device, _, key| {
        batches[device].number(key);
    });
    joined(plan, emitters, &mut |device, _, key| {
        if joins[device] {
            batches[device].join(key);
        }
    });
    for (k, body) in loops(plan).enumerate() {
        collect(body, emitters.and_then(|e| e.bodies.get(k)), batches);
    }
}

impl<K: Clone> Code<K> {
    /// Loads the kernels of a plan and of its loops' bodies, equal ones once for each device; also returns how many that were.
    pub(super) fn load<D: Device<Kernel = K>>(
        plan: &Plan,
        emitters: &Emitters,
        (host, others): (&D, &[Arc<dyn Queued>]),
        threads: usize,
    ) -> Result<(Code<K>, usize), RunError> {
        let mut batches: Vec<Batch<'_>> = (0..=others.len()).map(|_| Batch::default()).collect();
        for (batch, device) in batches[1..].iter_mut().zip(others) {
            batch.joins = device.joins_launches();
        }
        // A table that grows hashes its kernels again.
        batches[0].numbers.reserve(plan.kernels.len());
        collect(plan, Some(emitters), &mut batches);
        let count = batches.iter().map(|b| b.kernels.len() + b.joined.len()).sum();
        let _span = tracing::info_span!("compile", kernels = count).entered();
        let own = host.load(&batches[0].kernels, threads)?;
        let mut handles = Vec::with_capacity(others.len());
        for (device, batch) in others.iter().zip(&batches[1..]) {
            handles.push(Loaded {
                kernels: device.load(&batch.kernels, threads)?,
                joined: device.load_joined(&batch.joined, threads)?,
            });
        }
        let code = Code::of(plan, Some(emitters), &batches, (&own, &handles));
        Ok((code, count))
    }

    fn of(
        plan: &Plan,
        emitters: Option<&Emitters>,
        batches: &[Batch<'_>],
        (own, handles): (&[K], &[Loaded]),
    ) -> Code<K> {
        let mut code = Code::without_kernels(plan, handles.len());
        joined(plan, emitters, &mut |device, number, key| {
            let known = batches[device].joined_numbers.get(&key);
            if let (Some(&known), Some(other)) = (known, device.checked_sub(1)) {
                code.others[other].joined[number] = handles[other].joined.get(known).copied();
            }
        });
        launched(
            plan,
            emitters,
            &|device| batches[device].joins,
            &mut |device, kernel, key| {
                let number = batches[device].met[&(std::ptr::from_ref(key.kernel), key.in_place)];
                let Some(other) = device.checked_sub(1) else {
                    code.host[kernel] = Some(own[number].clone());
                    return;
                };
                let table = &mut code.others[other];
                let table = match key.in_place {
                    true => &mut table.in_place,
                    false => &mut table.apart,
                };
                table[kernel] = Some(handles[other].kernels[number]);
            },
        );
        for ((k, body), place) in loops(plan).enumerate().zip(&mut code.bodies) {
            *place = Code::of(body, emitters.and_then(|e| e.bodies.get(k)), batches, (own, handles));
        }
        code
    }

    /// What a walk needs that runs no kernels.
    pub(crate) fn without_kernels(plan: &Plan, others: usize) -> Code<K> {
        let mut count = 0;
        joined(plan, None, &mut |_, _, _| count += 1);
        Code {
            host: vec![None; plan.kernels.len()],
            others: (0..others)
                .map(|_| Table {
                    apart: vec![None; plan.kernels.len()],
                    in_place: vec![None; plan.kernels.len()],
                    joined: vec![None; count],
                })
                .collect(),
            any_address: any_address(plan),
            bodies: loops(plan).map(|body| Code::without_kernels(body, others)).collect(),
        }
    }

    /// Where a constant's elements are, in the host's memory.
    pub(super) fn constant(&self, slot: usize, data: &HostTensor) -> *mut u8 {
        let bytes = match self.any_address[slot] {
            true => data.placed_bytes().unwrap_or_else(|| data.bytes()),
            false => data.aligned_bytes(),
        };
        bytes.as_ptr().cast_mut()
    }

    /// The kernels of the host, for launches whose buffers lie apart and for those in place.
    #[inline]
    pub(super) fn of_host(&self) -> (&[Option<K>], &[Option<K>]) {
        (&self.host, &self.host)
    }

    /// As [`Code::of_host`], of another device, by its number from 1 on.
    #[inline]
    pub(super) fn of_other(&self, device: usize) -> (&[Option<KernelHandle>], &[Option<KernelHandle>]) {
        let table = &self.others[device - 1];
        (&table.apart, &table.in_place)
    }

    /// What launches of a step of another device are, if they are one launch there.
    #[inline]
    pub(super) fn joined_of(&self, device: usize, number: usize) -> Option<KernelHandle> {
        self.others[device - 1].joined[number]
    }

    /// The kernels of the host, those of loops' bodies included.
    pub(super) fn kernels(&self) -> Vec<&K> {
        let inside = self.bodies.iter().flat_map(Code::kernels);
        self.host.iter().flatten().chain(inside).collect()
    }
}

/// By slot: whether it is read by kernels and copies alone, which take elements at any address where the machine does.
/// Products and host functions read elements through references, and bodies of loops may hand a slot to either.
fn any_address(plan: &Plan) -> Vec<bool> {
    let mut all = vec![cfg!(any(target_arch = "x86_64", target_arch = "aarch64")); plan.slots.len()];
    for step in plan.init.iter().chain(&plan.steps) {
        let mut by_element = |s: SlotId| all[plan.root(s).0 as usize] = false;
        match step {
            Step::Launch(_) | Step::Group(_) | Step::Sequence(_) | Step::Copy { .. } => {}
            Step::Gemm(g) => {
                let products = [Some(&**g), g.behind()].into_iter().flatten();
                let operands = products.flat_map(|p| [&p.lhs, &p.rhs, &p.dst]);
                operands.for_each(|o| by_element(o.slot));
            }
            Step::Loop(_) | Step::Call(_) => step.visit_slots(&mut |s, _| by_element(s), &plan.kernels),
        }
    }
    all
}
