//! The steps of a plan under concrete symbol values: everything evaluated, whichever device runs it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tlc_ir::DType;
use tlc_ir::graph::TensorType;
use tlc_ir::index::IndexExpr;
use tlc_ir::kernel::Access;
use tlc_ir::plan::{DeviceId, GemmOperand, Launch, Plan, QueueId, SlotId, Step, Storage, Work};
use tlc_ir::target::MAX_GRID_BLOCKS;
use tlc_ir::tensor::element_count;

use super::call::BoundCall;
use super::product::{BoundProduct, PackedOperand, Prepared, ReadState};
use super::repeat::BoundLoop;
use super::segments::Segments;
use super::{Sizes, overflow};
use crate::error::RunError;

/// Bytes of the worker scratch areas' alignment.
pub const SCRATCH_ALIGNMENT: u64 = 64;

/// Decides about a product of the host whose sizes are known.
pub type Prepare<'a, P> = dyn Fn(&BoundProduct) -> Prepared<P> + 'a;

/// A step of a plan, and who runs it.
pub struct BoundStep<P> {
    /// The device, by its number; for a transfer, the one in whose queue it is.
    pub on: usize,
    /// Its queue, by the number among the queues of that device.
    pub queue: u32,
    /// Whether the host goes on only when it is done, though another device runs it.
    pub awaited_by_host: bool,
    /// What is run.
    pub work: BoundWork<P>,
}

/// What a step runs.
pub enum BoundWork<P> {
    /// Kernels that do not depend on each other, or that run in turn.
    Launches {
        /// The kernels.
        launches: Vec<BoundLaunch>,
        /// Whether they are too little work to be shared.
        alone: bool,
        /// Of those that a device may run as one launch, and those that run in turn: how they run, and the number of their step among such
        /// steps of the plan.
        joined: Option<(Joining, usize)>,
    },
    /// A matrix product.
    Product {
        /// Its numbers.
        product: Box<BoundProduct>,
        /// What the host decided about it, if the host computes it.
        choice: Option<Box<P>>,
        /// The operand that may be given in another layout, by its number in [`Binding::packed`].
        packed: Option<usize>,
    },
    /// Copies a slot.
    Copy(BoundCopy),
    /// Runs a plan again and again.
    Loop(Box<BoundLoop<P>>),
    /// Calls a host function.
    Call(Box<BoundCall>),
}

/// A copy from one slot to another.
pub struct BoundCopy {
    /// The slot that is copied.
    pub src: usize,
    /// The slot that it is copied to.
    pub dst: usize,
    /// The device of `src`.
    pub from: usize,
    /// The device of `dst`.
    pub to: usize,
    /// Bytes.
    pub bytes: usize,
}

/// One execution of a kernel.
pub struct BoundLaunch {
    /// The kernel's number in its plan.
    pub kernel: usize,
    /// Whether a slot that it writes is one that another of its parameters is bound to.
    pub in_place: bool,
    /// Where its buffers start in the table of addresses.
    pub first_arg: usize,
    /// The slots of its parameters.
    pub args: Vec<usize>,
    /// Values of its symbols.
    pub symbols: Vec<i64>,
    /// Parallel iterations, or blocks; none if it writes nothing.
    pub extent: u64,
    /// Parallel iterations that one chunk takes.
    pub grain: u64,
    /// Threads of a block, where it has a grid of blocks.
    pub block_threads: Option<u32>,
    /// Bytes that the threads of a block share.
    pub shared_bytes: u32,
    /// Bytes of scratch that each worker of the host needs.
    pub scratch_bytes: u64,
}

/// What an input, or a state that is read, is besides its extents.
pub struct BoundSource {
    /// The element type.
    pub dtype: DType,
    /// Bytes of all elements.
    pub bytes: usize,
}

/// A plan under concrete symbol values.
pub struct Binding<P> {
    /// No other has this number.
    pub id: u64,
    /// By position in the plan's [`sources`](Plan::sources).
    pub sources: Vec<BoundSource>,
    /// The sizes.
    pub sizes: Sizes,
    /// Bytes of scratch that each worker of the host needs.
    pub scratch_bytes: u64,
    /// Addresses that all launches are given.
    pub arg_count: usize,
    /// The most counters that a product needs.
    pub counters: usize,
    /// Operands of products that are states, and which a call may give in another layout. Those behind the end of the list it may not.
    pub packed: Vec<PackedOperand>,
    /// What runs once per executable.
    pub init: Vec<BoundStep<P>>,
    /// What runs at every call.
    pub steps: Vec<BoundStep<P>>,
    /// By step of a call: whether a step of another queue waits for it. Empty for the host alone.
    pub awaited: Vec<bool>,
    /// The queues beside the host's that the steps of a call, and what goes in and out of loops, are in: device and number.
    pub queues: Vec<(usize, u32)>,
    /// By step of a call: the slots of the arena whose lives begin there. Empty for the host alone without debug assertions.
    pub births: Vec<Vec<usize>>,
    /// By step of a call that another device than the host runs: the slots of its arena that no other step touches once it is done,
    /// as the order of its queue alone says. Empty for the host alone.
    pub deaths: Vec<Vec<usize>>,
    /// What devices may be given at once.
    pub segments: Segments,
    /// Whether a call has ended well.
    pub warm: AtomicBool,
    /// The same inputs' shapes with what calls said: the latest first.
    pub rebound: Mutex<VecDeque<Arc<Binding<P>>>>,
}

/// Whether a slot that a launch writes is one that another of its parameters is bound to, or may be if the caller gives an input away.
pub(crate) fn is_in_place(plan: &Plan, l: &Launch) -> bool {
    let given = |&(input, output): &(u32, u32)| {
        let output = plan.outputs.get(output as usize).map(|o| o.slot);
        let input = plan.inputs.get(input as usize).and_then(|i| i.slot);
        [input, output].iter().all(|s| s.is_some_and(|s| l.args.contains(&s)))
    };
    if plan.donations.iter().any(given) {
        return true;
    }
    let params = &plan.kernels[l.kernel.0 as usize].params;
    l.args.iter().zip(params).enumerate().any(|(k, (slot, param))| {
        let others = l.args.iter().enumerate().filter(|o| o.0 != k);
        param.access != Access::Read && others.map(|o| *o.1).any(|o| plan.shares(o, *slot))
    })
}

/// How launches that are one step run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Joining {
    /// One after another: [`Step::Sequence`].
    InTurn,
    /// Beside each other: [`Step::Group`].
    Beside,
}

/// How the launches of a step run that another device than the host may run as one, or that run in turn.
pub(crate) fn joining(plan: &Plan, step: &Step) -> Option<Joining> {
    match step {
        Step::Sequence(_) => Some(Joining::InTurn),
        Step::Group(all) => {
            let slot = all.first()?.args.first()?;
            let on = plan.slots[slot.0 as usize].device;
            (on != DeviceId::HOST).then_some(Joining::Beside)
        }
        _ => None,
    }
}

/// Evaluates the launches of a plan.
struct Launches<'b> {
    plan: &'b Plan,
    sizes: &'b Sizes,
    arg_count: usize,
}

impl Launches<'_> {
    fn bind(&mut self, l: &Launch) -> Result<BoundLaunch, RunError> {
        let fails = || overflow(&l.label);
        let eval = |e: &IndexExpr| e.eval_symbols(&self.sizes.symbols).ok_or_else(fails);
        let kernel = &self.plan.kernels[l.kernel.0 as usize];
        let values: Vec<i64> = l.symbols.iter().map(eval).collect::<Result<_, _>>()?;
        let local = |e: &IndexExpr| e.eval_symbols(&values).ok_or_else(fails);
        for (param, slot) in kernel.params.iter().zip(&l.args) {
            // What the kernel believes its buffers hold is what they hold.
            let wants = local(&param.len)?.max(0) as u64 * param.dtype.bytes() as u64;
            if wants > self.sizes.slot_bytes[slot.0 as usize] {
                return Err(fails());
            }
        }
        let (count, grain, block_threads, shared_bytes) = match &l.work {
            // What overflows is enough work for any number of threads.
            Work::Chunks { grain } => {
                let grain = grain.eval_symbols(&self.sizes.symbols).map_or(1, |n| n.max(1) as u64);
                (local(&kernel.parallel_extent())?, grain, None, 0)
            }
            Work::Grid(grid) => {
                let threads = u32::try_from(grid.threads).map_err(|_| fails())?;
                let shared = u32::try_from(grid.shared_bytes).map_err(|_| fails())?;
                (eval(&grid.blocks)?, 1, Some(threads), shared)
            }
        };
        // A launch that writes nothing does nothing, however far its loops go along the axes that are not empty.
        let written = kernel.params.iter().filter(|p| p.access != Access::Read);
        let lengths: Result<Vec<i64>, RunError> = written.map(|p| local(&p.len)).collect();
        let writes = lengths?.iter().any(|&n| n > 0);
        let extent = if writes { count.max(0) as u64 } else { 0 };
        if block_threads.is_some() && extent > MAX_GRID_BLOCKS {
            return Err(RunError::Grid {
                kernel: l.kernel.0 as usize,
                blocks: extent,
            });
        }
        let first_arg = self.arg_count;
        self.arg_count += l.args.len();
        Ok(BoundLaunch {
            kernel: l.kernel.0 as usize,
            in_place: is_in_place(self.plan, l),
            first_arg,
            args: l.args.iter().map(|s| s.0 as usize).collect(),
            extent,
            grain,
            block_threads,
            shared_bytes,
            scratch_bytes: match block_threads {
                None => local(&kernel.cache_scratch_bytes())?.max(0) as u64,
                Some(_) => 0,
            },
            symbols: values,
        })
    }
}

/// Who runs each step of a plan.
struct Runners<'p> {
    plan: &'p Plan,
}

impl Runners<'_> {
    /// The device of a slot.
    fn device(&self, slot: SlotId) -> usize {
        self.plan.slots[slot.0 as usize].device.0 as usize
    }

    /// The device of a step, its queue there, and whether the host waits for it. `call` is the step's number in a call.
    fn of(&self, step: &Step, call: Option<usize>) -> (usize, u32, bool) {
        let turn = call.and_then(|c| self.plan.turns.get(c));
        let queue = turn.map_or(QueueId::HOST, |t| t.queue);
        let at = self.plan.queue_device(queue).0 as usize;
        let on = match step {
            Step::Loop(_) | Step::Call(_) => 0,
            // What no queue says is done by the device that is not the host.
            Step::Copy { src, dst } => match at {
                0 => self.device(*src).max(self.device(*dst)),
                at => at,
            },
            Step::Launch(_) | Step::Group(_) | Step::Sequence(_) | Step::Gemm(_) => {
                let mut first = None;
                step.visit_slots(&mut |s, _| first = first.or(Some(self.device(s))), &self.plan.kernels);
                first.unwrap_or(0)
            }
        };
        let before = self.plan.queues.iter().take(queue.0 as usize);
        let number = before.filter(|d| d.0 as usize == on).count() as u32;
        match on == at {
            true => (on, number, false),
            false => (on, 0, on != 0),
        }
    }
}

/// The state that an operand is, if no step sets it.
fn read_state(plan: &Plan, operand: &GemmOperand, slot_bytes: &[u64]) -> Option<ReadState> {
    let root = plan.root(operand.slot).0 as usize;
    let Storage::State(k) = plan.slots[root].storage else {
        return None;
    };
    let number = k as usize;
    plan.states.get(number)?.set.is_none().then_some(ReadState {
        number,
        bytes: slot_bytes[root],
    })
}

/// See [`Binding::deaths`].
fn deaths_of<P>(plan: &Plan, steps: &[BoundStep<P>], births: &[Vec<usize>]) -> Vec<Vec<usize>> {
    /// The queue of a device that touches a slot, if no other does.
    type User = Option<(usize, u32)>;
    // By slot: who touches it, and the last step that does.
    let mut users: Vec<Option<(User, usize)>> = vec![None; plan.slots.len()];
    for (number, step) in plan.steps.iter().enumerate() {
        let own = (steps[number].on, steps[number].queue);
        step.visit_slots(
            &mut |s, _| {
                let user = &mut users[plan.root(s).0 as usize];
                let same = user.is_none_or(|u| u.0 == Some(own));
                *user = Some((Some(own).filter(|_| same), number));
            },
            &plan.kernels,
        );
    }
    let mut deaths = vec![Vec::new(); steps.len()];
    for &slot in births.iter().flatten() {
        let on = plan.slots[slot].device.0 as usize;
        if let Some((Some(user), last)) = users[slot]
            && user.0 == on
            && on != 0
        {
            deaths[last].push(slot);
        }
    }
    deaths
}

impl<P> Binding<P> {
    /// Evaluates everything, and checks that every buffer is as large as whoever uses it believes.
    ///
    /// # Errors
    /// [`RunError::Overflow`].
    pub fn new(plan: &Plan, sizes: Sizes, prepare: &Prepare<'_, P>) -> Result<Binding<P>, RunError> {
        let (symbols, slot_bytes) = (&sizes.symbols, &sizes.slot_bytes);
        let eval = |e: &IndexExpr, name: &str| e.eval_symbols(symbols).ok_or_else(|| overflow(name));
        let mut scratch_bytes = 0u64;
        let mut counters = 0;
        let mut packed = Vec::new();
        let (mut loops, mut joined) = (0, 0..);
        let mut steps: Vec<BoundStep<P>> = Vec::with_capacity(plan.init.len() + plan.steps.len());
        let mut queues = Vec::new();
        let runners = Runners { plan };
        let mut launches = Launches {
            plan,
            sizes: &sizes,
            arg_count: 0,
        };
        for (number, step) in plan.init.iter().chain(&plan.steps).enumerate() {
            let (on, queue, awaited_by_host) = runners.of(step, number.checked_sub(plan.init.len()));
            queues.push((on, queue));
            let mut needs = |bytes: u64| scratch_bytes = scratch_bytes.max(bytes.next_multiple_of(SCRATCH_ALIGNMENT));
            let work = match step {
                Step::Launch(l) => BoundWork::of(vec![launches.bind(l)?], &mut needs),
                Step::Group(all) | Step::Sequence(all) => {
                    let all: Result<_, RunError> = all.iter().map(|l| launches.bind(l)).collect();
                    match joining(plan, step) {
                        None => BoundWork::of(all?, &mut needs),
                        Some(how) => BoundWork::Launches {
                            launches: all?,
                            alone: false,
                            joined: joined.next().map(|number| (how, number)),
                        },
                    }
                }
                Step::Gemm(g) => {
                    let behind = g.epilogue.as_ref().map(|e| launches.bind(&e.launch)).transpose()?;
                    let states = [&g.lhs, &g.rhs].map(|o| read_state(plan, o, slot_bytes));
                    let mut product = Box::new(BoundProduct::bind(g, (behind, states), slot_bytes, &eval)?);
                    if on == 0 {
                        product.rows_of_stack();
                    }
                    let mut number = None;
                    let choice = match on {
                        0 => {
                            let prepared = prepare(&product);
                            if let Some(operand) = prepared.packed {
                                number = Some(packed.len());
                                packed.push(operand);
                            }
                            let own = prepared.scratch_bytes.next_multiple_of(SCRATCH_ALIGNMENT);
                            needs(own + product.epilogue.as_ref().map_or(0, |e| e.launch.scratch_bytes));
                            counters = counters.max(prepared.counters);
                            Some(Box::new(prepared.choice))
                        }
                        _ => None,
                    };
                    BoundWork::Product {
                        product,
                        choice,
                        packed: number,
                    }
                }
                Step::Copy { src, dst } => {
                    let (from, to) = (runners.device(*src), runners.device(*dst));
                    let (src, dst) = (src.0 as usize, dst.0 as usize);
                    BoundWork::Copy(BoundCopy {
                        src,
                        dst,
                        from,
                        to,
                        bytes: slot_bytes[dst].min(slot_bytes[src]) as usize,
                    })
                }
                Step::Loop(l) => {
                    let body = sizes.layout.bodies.get(loops).ok_or_else(|| overflow(&l.label))?;
                    let bound = BoundLoop::bind((plan, l), (number, loops), symbols, slot_bytes, body, prepare)?;
                    loops += 1;
                    needs(bound.body.scratch_bytes);
                    queues.extend(&bound.edges);
                    queues.extend(&bound.body.queues);
                    BoundWork::Loop(Box::new(bound))
                }
                Step::Call(c) => BoundWork::Call(Box::new(BoundCall::bind(c, plan, &sizes)?)),
            };
            steps.push(BoundStep {
                on,
                queue,
                awaited_by_host,
                work,
            });
        }
        let arg_count = launches.arg_count;
        let rest = steps.split_off(plan.init.len());
        let (init, steps) = (steps, rest);
        queues.retain(|&(on, _)| on != DeviceId::HOST.0 as usize);
        queues.sort_unstable();
        queues.dedup();
        let mut awaited = Vec::new();
        if plan.devices.len() > 1 {
            awaited = vec![false; steps.len()];
            for turn in &plan.turns {
                let waits = turn
                    .waits
                    .iter()
                    .filter_map(|&w| Some((w as usize, plan.turns.get(w as usize)?.queue)));
                waits.filter(|w| w.1 != turn.queue).for_each(|w| awaited[w.0] = true);
            }
        }
        let segments = Segments::of(plan, &sizes, &steps);
        let (mut births, mut deaths) = (Vec::new(), Vec::new());
        if cfg!(debug_assertions) || plan.devices.len() > 1 {
            births = vec![Vec::new(); steps.len()];
            for (slot, life) in plan.lives().into_iter().enumerate() {
                if let (Some((first, _)), Storage::Arena) = (life, &plan.slots[slot].storage) {
                    births[first].push(slot);
                }
            }
        }
        if plan.devices.len() > 1 {
            deaths = deaths_of(plan, &steps, &births);
        }
        let source = |((name, ty), shape): ((&str, &TensorType), &Vec<usize>)| {
            let bytes = element_count(shape).and_then(|n| n.checked_mul(ty.dtype.bytes()));
            let bytes = bytes.ok_or_else(|| overflow(name))?;
            Ok(BoundSource { dtype: ty.dtype, bytes })
        };
        let sources: Result<_, RunError> = plan.sources().zip(&sizes.shapes).map(source).collect();
        static IDS: AtomicU64 = AtomicU64::new(0);
        Ok(Binding {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            sources: sources?,
            sizes,
            scratch_bytes,
            arg_count,
            counters,
            packed,
            init,
            steps,
            awaited,
            queues,
            births,
            deaths,
            segments,
            warm: AtomicBool::new(false),
            rebound: Mutex::default(),
        })
    }

    /// True if no slot is larger than what the layout of another binding has room for.
    pub(crate) fn fits_in(&self, other: &Binding<P>) -> bool {
        let bytes = self.sizes.slot_bytes.iter().zip(&other.sizes.room);
        let steps = self.steps.iter().zip(&other.steps);
        bytes.into_iter().all(|(a, b)| a <= b)
            && steps.into_iter().all(|(a, b)| match (&a.work, &b.work) {
                (BoundWork::Loop(a), BoundWork::Loop(b)) => a.body.fits_in(&b.body),
                _ => true,
            })
    }
}

impl<P> BoundWork<P> {
    fn of(launches: Vec<BoundLaunch>, needs: &mut dyn FnMut(u64)) -> BoundWork<P> {
        launches.iter().for_each(|l| needs(l.scratch_bytes));
        let alone = at_most_one_chunk(&launches);
        BoundWork::Launches {
            launches,
            alone,
            joined: None,
        }
    }
}

/// Whether launches have no more iterations than one chunk: each is a part of one that its extent and grain say.
pub fn at_most_one_chunk(launches: &[BoundLaunch]) -> bool {
    let parts = launches.iter().map(|l| l.extent as f64 / l.grain as f64);
    parts.sum::<f64>() <= 1.0
}
