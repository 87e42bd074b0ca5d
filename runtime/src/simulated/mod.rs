//! Devices for tests, where there is no GPU: they run plans for GPUs in memory of the host's, and show what a plan or the driver did
//! wrong.
//!
//! - Memory: each device has buffers of its own, filled with bytes of NaN when they are allocated. A transfer that is missing leaves
//!   these; an address of another device, or outside of a buffer, is an error.
//! - Queues: work is kept until the host waits for it, and then done in an order that a seed picks among those that the waits allow, some
//!   queues much later than others. A wait that is missing gives other results under some seeds.
//! - Kernels are those of the kernel language, run by its interpreter; products are summed as the interpreter of plans does.

mod work;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tlc_ir::Kernel;
use tlc_ir::target::EmitterId;

use crate::binding::product::{BoundProduct, Prepared};
use crate::binding::steps::BoundLaunch;
use crate::device::{Device, KernelHandle, Mark, Peer, Places, Queued, ToLoad};
use crate::error::{JitError, RunError};
use crate::memory::AlignedBuffer;
use work::{Job, Place, Product};

/// What memory holds that nothing has written.
const UNWRITTEN: u8 = 0xff;
/// Bytes of each device's memory.
const CAPACITY_BYTES: u64 = 1 << 30;

/// Devices that are simulated together: the first is number 1 of a plan.
pub struct Simulated {
    world: Arc<Mutex<World>>,
    devices: Vec<Arc<dyn Queued>>,
}

/// Bytes that were copied between the host and the devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Moved {
    /// To devices.
    pub up: u64,
    /// To the host.
    pub down: u64,
}

/// What errors call a device of that number in the plan.
fn named(number: usize) -> String {
    format!("device {number}")
}

impl Simulated {
    /// So many devices, whose queues are gone through as the seed says.
    pub fn new(devices: usize, seed: u64) -> Simulated {
        let mut state = seed;
        let world = World {
            memories: (0..devices).map(|_| Memory::default()).collect(),
            queues: BTreeMap::new(),
            kernels: Vec::new(),
            failed: None,
            // Nothing before the host waits, all at once, or something in between.
            eager: [0, 4, 1][draw(&mut state, 3)],
            state,
            jobs: 0,
            moved: Moved::default(),
            fails_at: None,
        };
        let world = Arc::new(Mutex::new(world));
        let device = |number| -> Arc<dyn Queued> {
            Arc::new(OneOf {
                world: Arc::clone(&world),
                number,
            })
        };
        Simulated {
            devices: (1..=devices).map(device).collect(),
            world,
        }
    }

    /// The devices, for [`Load::devices`](crate::driver::Load).
    pub fn devices(&self) -> Vec<Arc<dyn Queued>> {
        self.devices.clone()
    }

    /// Has the launch, product, copy or fill fail that is done behind so many from now on.
    pub fn fail_after(&self, jobs: u64) {
        let mut world = lock(&self.world);
        world.fails_at = Some(world.jobs + jobs);
    }

    /// Bytes that were copied between the host and the devices so far.
    pub fn moved(&self) -> Moved {
        lock(&self.world).moved
    }

    /// How many launches, products, copies and fills were done.
    pub fn jobs(&self) -> u64 {
        lock(&self.world).jobs
    }

    /// Bytes that are allocated on the devices.
    pub fn live_bytes(&self) -> usize {
        let world = lock(&self.world);
        let buffers = world.memories.iter().flat_map(|m| m.buffers.values());
        buffers.map(AlignedBuffer::len).sum()
    }
}

fn lock(world: &Mutex<World>) -> MutexGuard<'_, World> {
    world.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A number below `n`, by Knuth's MMIX generator; the upper bits are the random ones.
fn draw(state: &mut u64, n: usize) -> usize {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize % n
}

/// The buffers of a device, by their addresses.
#[derive(Default)]
struct Memory {
    buffers: BTreeMap<usize, AlignedBuffer>,
    bytes: u64,
}

impl Memory {
    /// Where bytes are that lie in one buffer, and how many follow there.
    fn find(&mut self, at: usize, bytes: usize) -> Option<(*mut u8, usize)> {
        let (&start, buffer) = self.buffers.range_mut(..=at).next_back()?;
        let left = buffer.len().checked_sub(at - start).filter(|&left| left >= bytes)?;
        Some((buffer.as_mut_ptr().wrapping_add(at - start), left))
    }
}

/// What a queue was given and has not done.
struct Queue {
    jobs: VecDeque<Job>,
    given: u64,
    done: u64,
    /// How often it is picked, beside others.
    weight: usize,
}

struct World {
    memories: Vec<Memory>,
    queues: BTreeMap<(usize, u32), Queue>,
    kernels: Vec<Kernel>,
    /// What failed first: device and message.
    failed: Option<(usize, String)>,
    /// One of so many jobs has one done when it is given; none for 0.
    eager: usize,
    state: u64,
    jobs: u64,
    moved: Moved,
    /// The number of the job that is to fail.
    fails_at: Option<u64>,
}

impl World {
    fn queue(&mut self, device: usize, queue: u32) -> &mut Queue {
        let World { queues, state, .. } = self;
        queues.entry((device, queue)).or_insert_with(|| Queue {
            jobs: VecDeque::new(),
            given: 0,
            done: 0,
            weight: [1, 1, 60][draw(state, 3)],
        })
    }

    fn give(&mut self, device: usize, queue: u32, job: Job) {
        let to = self.queue(device, queue);
        to.jobs.push_back(job);
        to.given += 1;
        if self.eager > 0 && draw(&mut self.state, self.eager) == 0 {
            self.advance();
        }
    }

    /// Whether a queue was given all that a mark stands for, and has done it.
    fn is_done(&self, mark: Mark) -> bool {
        let queue = self.queues.get(&(mark.device, mark.queue));
        queue.map_or(mark.number == 0, |q| q.done >= mark.number)
    }

    /// Does what is next in one of the queues; returns whether any could go on.
    fn advance(&mut self) -> bool {
        let goes_on = |q: &Queue| match q.jobs.front() {
            Some(Job::Wait(mark)) => self.is_done(*mark),
            Some(_) => true,
            None => false,
        };
        let ready: Vec<((usize, u32), usize)> = (self.queues.iter())
            .filter(|(_, q)| goes_on(q))
            .map(|(&key, q)| (key, q.weight))
            .collect();
        let all: usize = ready.iter().map(|r| r.1).sum();
        if all == 0 {
            return false;
        }
        let mut left = draw(&mut self.state, all);
        for (key, weight) in ready {
            if left >= weight {
                left -= weight;
                continue;
            }
            let Some(queue) = self.queues.get_mut(&key) else { break };
            let Some(job) = queue.jobs.pop_front() else { break };
            queue.done += 1;
            if let Err(message) = self.run(key.0, job) {
                self.failed.get_or_insert((key.0, message));
            }
            break;
        }
        true
    }

    /// Goes on until a mark is reached.
    fn reach(&mut self, mark: Mark) -> Result<(), RunError> {
        while !self.is_done(mark) {
            if !self.advance() {
                let message = format!("queue {} waits for what is never done", mark.queue);
                self.failed.get_or_insert((mark.device, message));
                break;
            }
        }
        match self.failed.take() {
            Some((number, message)) => Err(RunError::Device {
                device: named(number),
                message,
            }),
            None => Ok(()),
        }
    }
}

/// One of the devices.
struct OneOf {
    world: Arc<Mutex<World>>,
    /// In a plan.
    number: usize,
}

impl OneOf {
    fn give(&self, queue: u32, job: Job) {
        lock(&self.world).give(self.number, queue, job);
    }

    fn here(&self, at: *const u8) -> Place {
        Place::On(self.number, at.addr())
    }

    fn copied(&self, queue: u32, from: Place, to: Place, bytes: usize) -> Result<(), RunError> {
        if bytes > 0 {
            self.give(queue, Job::Copy { from, to, bytes });
        }
        Ok(())
    }

    fn launched(&self, queue: u32, l: &BoundLaunch, at: &Places<'_, KernelHandle>) -> Result<(), RunError> {
        if l.extent == 0 {
            return Ok(());
        }
        let Some(&KernelHandle(kernel)) = at.kernel(l) else {
            let message = format!("kernel {} is not loaded", l.kernel);
            return Err(RunError::Device {
                device: named(self.number),
                message,
            });
        };
        let args = &at.args[l.first_arg..l.first_arg + l.args.len()];
        let job = Job::Launch {
            kernel: kernel as usize,
            args: args.iter().map(|a| a.addr()).collect(),
            symbols: l.symbols.clone(),
        };
        self.give(queue, job);
        Ok(())
    }
}

impl Device for OneOf {
    type Kernel = KernelHandle;
    type Product = ();

    fn load(&self, kernels: &[ToLoad<'_>], _: usize) -> Result<Vec<KernelHandle>, RunError> {
        let mut world = lock(&self.world);
        let mut handles = Vec::with_capacity(kernels.len());
        for (number, &ToLoad { kernel, emitter, .. }) in kernels.iter().enumerate() {
            if emitter != EmitterId::default() {
                let kernel = number;
                return Err(JitError::Emitter {
                    kernel,
                    emitter,
                    known: 1,
                }
                .into());
            }
            if kernel.grid().is_none() {
                let message = format!("kernel {number} has no blocks");
                return Err(RunError::Device {
                    device: named(self.number),
                    message,
                });
            }
            handles.push(KernelHandle(world.kernels.len() as u64));
            world.kernels.push(kernel.clone());
        }
        Ok(handles)
    }

    fn prepare(&self, _: &BoundProduct) -> Prepared<()> {
        Prepared::default()
    }

    unsafe fn launch(
        &self,
        queue: u32,
        launches: &[BoundLaunch],
        _: bool,
        at: &Places<'_, KernelHandle>,
    ) -> Result<(), RunError> {
        launches.iter().try_for_each(|l| self.launched(queue, l, at))
    }

    unsafe fn multiply(
        &self,
        queue: u32,
        product: &BoundProduct,
        _: &(),
        at: &mut Places<'_, KernelHandle>,
    ) -> Result<(), RunError> {
        if let Some(workspace) = &product.workspace {
            // As a library would, it leaves something there.
            let at = at.slots[workspace.slot].addr();
            let bytes = workspace.bytes as usize;
            self.give(queue, Job::Fill { at, byte: 0xa5, bytes });
        }
        self.give(queue, Job::Multiply(Box::new(Product::of(product, at.slots))));
        match &product.epilogue {
            Some(e) => self.launched(queue, &e.launch, at),
            None => Ok(()),
        }
    }

    unsafe fn copy(&self, queue: u32, from: *const u8, to: *mut u8, bytes: usize) -> Result<(), RunError> {
        self.copied(queue, self.here(from), self.here(to), bytes)
    }

    unsafe fn fill(&self, queue: u32, to: *mut u8, byte: u8, bytes: usize) -> Result<(), RunError> {
        if bytes > 0 {
            let at = to.addr();
            self.give(queue, Job::Fill { at, byte, bytes });
        }
        Ok(())
    }
}

impl Queued for OneOf {
    fn allocate(&self, bytes: usize) -> Result<*mut u8, RunError> {
        let mut world = lock(&self.world);
        let memory = &mut world.memories[self.number - 1];
        if memory.bytes.saturating_add(bytes as u64) > CAPACITY_BYTES {
            let message = format!("no memory left for {bytes} bytes beside {}", memory.bytes);
            return Err(RunError::Device {
                device: named(self.number),
                message,
            });
        }
        // Not nothing, so that each buffer has an address of its own.
        let mut buffer = AlignedBuffer::zeroed(bytes.max(1))?;
        buffer.as_mut_slice().fill(UNWRITTEN);
        let start = buffer.as_mut_ptr();
        memory.bytes += buffer.len() as u64;
        memory.buffers.insert(start.addr(), buffer);
        Ok(start)
    }

    unsafe fn release(&self, start: *mut u8) {
        let memory = &mut lock(&self.world).memories[self.number - 1];
        if let Some(buffer) = memory.buffers.remove(&start.addr()) {
            memory.bytes -= buffer.len() as u64;
        }
    }

    unsafe fn upload(&self, queue: u32, from: *const u8, to: *mut u8, bytes: usize) -> Result<(), RunError> {
        self.copied(queue, Place::Host(from.cast_mut()), self.here(to), bytes)
    }

    unsafe fn download(&self, queue: u32, from: *const u8, to: *mut u8, bytes: usize) -> Result<(), RunError> {
        self.copied(queue, self.here(from), Place::Host(to), bytes)
    }

    unsafe fn exchange(
        &self,
        queue: u32,
        other: Peer,
        from: *const u8,
        to: *mut u8,
        bytes: usize,
    ) -> Result<(), RunError> {
        let (from, to) = match other {
            Peer::From(device) => (Place::On(device, from.addr()), self.here(to)),
            Peer::To(device) => (self.here(from), Place::On(device, to.addr())),
        };
        self.copied(queue, from, to, bytes)
    }

    fn mark(&self, queue: u32) -> Result<Mark, RunError> {
        let number = lock(&self.world).queue(self.number, queue).given;
        Ok(Mark {
            device: self.number,
            queue,
            number,
        })
    }

    fn wait(&self, queue: u32, mark: Mark) -> Result<(), RunError> {
        self.give(queue, Job::Wait(mark));
        Ok(())
    }

    fn reach(&self, mark: Mark) -> Result<(), RunError> {
        lock(&self.world).reach(mark)
    }

    fn settle(&self, queue: u32) -> Result<(), RunError> {
        let mark = self.mark(queue)?;
        self.reach(mark)
    }

    fn finish(&self) {
        let mut world = lock(&self.world);
        let marks: Vec<Mark> = (world.queues.iter())
            .filter(|((device, _), _)| *device == self.number)
            .map(|(&(device, queue), q)| Mark {
                device,
                queue,
                number: q.given,
            })
            .collect();
        for mark in marks {
            // What failed was reported, or the call failed before.
            let _ = world.reach(mark);
        }
    }
}
