//! A GPU as the driver of plans sees it: queues are streams, marks are events.
//!
//! Invariants:
//! - Whatever an executable made on the device (streams, events, modules) goes with it.
//! - An event is used again once what it was recorded behind is done. A mark whose event is gone has been reached.
//! - Nobody waits for the device while a lock is held.
//! - A stream whose work the host has waited for is not asked again until it is given more.
//! - Streams of queues from [`RECORDED`] on capture graphs and run nothing.

mod joined;
mod products;
mod recorder;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::{CString, c_void};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Instant;

use smallvec::SmallVec;
use tlc_ir::target::EmitterId;

use products::Products;

use super::compile::{self, Function, Loaded, Wanted};
use super::context::{Context, open};
use super::graph::{End, Graph, Node, Operation};
use super::library::{Code, Handle, Library, SimulatedSlot};
use super::tensor_maps::Given;
use crate::binding::product::{BoundProduct, Prepared};
use crate::binding::steps::BoundLaunch;
use crate::device::{
    Device, DeviceBuffer, Event, Joining, KernelHandle, Mark, Peer, Places, Queued, RECORDED, Recorder, Room, SlotLife,
    ToJoin, ToLoad, Use,
};
use crate::error::{JitError, RunError};

/// `CU_STREAM_NON_BLOCKING`: it does not wait for the default stream, which nothing here uses.
const STREAM_FLAGS: u32 = 1;
/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`: what other threads do meanwhile is theirs.
const CAPTURE_MODE: u32 = 1;
/// `CU_FUNC_ATTRIBUTE_NUM_REGS`.
const REGISTERS: u32 = 4;
/// `CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES`.
const LOCAL_BYTES: u32 = 3;
/// `CU_MEMHOSTALLOC_PORTABLE`: for every device.
const PORTABLE: u32 = 1;
/// `CU_EVENT_DISABLE_TIMING`: such events take less.
const EVENT_FLAGS: u32 = 2;
/// The most marks of a queue that may not be reached yet: calls that do not wait make one each.
const MOST_MARKS: usize = 256;
/// Events that take times have no flags.
const TIMING_FLAGS: u32 = 0;

/// Devices for an executable whose plan numbers them from 1 on.
#[must_use]
pub fn queued(contexts: &[Arc<Context>]) -> Vec<Arc<dyn Queued>> {
    let made = |(number, context): (usize, &Arc<Context>)| {
        context.enters();
        Arc::new(Gpu::new(context, number + 1, false))
    };
    let all: Vec<Arc<Gpu>> = contexts.iter().enumerate().map(made).collect();
    for (gpu, other) in all.iter().flat_map(|gpu| all.iter().map(move |other| (gpu, other))) {
        if !Arc::ptr_eq(&gpu.context, &other.context) {
            gpu.context.reach(&other.context);
        }
    }
    for gpu in &all {
        let peers = all.iter().map(Arc::downgrade).collect();
        // Set here alone.
        let _ = gpu.peers.set(peers);
    }
    all.into_iter().map(|gpu| gpu as Arc<dyn Queued>).collect()
}

/// A device for copies of tensors that belong to no executable, made at the first call.
///
/// # Errors
/// As [`open`].
pub fn shared(ordinal: u32) -> Result<Arc<dyn Queued>, RunError> {
    static SHARED: Mutex<Vec<(u32, Arc<dyn Queued>)>> = Mutex::new(Vec::new());
    let context = open(ordinal)?;
    let mut known = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, device)) = known.iter().find(|d| d.0 == ordinal) {
        return Ok(Arc::clone(device));
    }
    let device: Arc<dyn Queued> = Arc::new(Gpu::new(&context, 1, true));
    known.push((ordinal, Arc::clone(&device)));
    Ok(device)
}

/// What a kernel is given, where a buffer is.
type Values<'v> = &'v dyn Fn(&DeviceBuffer) -> [u64; 3];

/// A device with one kernel, which is given as text with its name.
fn with_text(context: &Arc<Context>, (text, name): (&str, &str)) -> Result<Arc<Gpu>, RunError> {
    let gpu = Arc::new(Gpu::new(context, 1, true));
    let (loaded, function) = compile::from_text(context, text, name)?;
    {
        let mut state = gpu.state();
        state.loaded.push(loaded);
        state.kernels.push(function);
    }
    Ok(gpu)
}

/// Launches of a graph that was captured, which are given one behind another.
const GRAPHS: u32 = 32;

/// Nanoseconds of a launch of a graph of one kernel, which is given as text with its name, has three values and touches nothing: what the host
/// takes to give it, and what the device takes for each where they are given one behind another; the least of several times.
pub(super) fn timed_graph(context: &Arc<Context>, text: (&str, &str), times: usize) -> Result<[f64; 2], RunError> {
    let gpu = with_text(context, text)?;
    gpu.record(RECORDED)?;
    let given = gpu.given((RECORDED, KernelHandle(0)), (1, 32), SmallVec::from_slice(&[0; 3]));
    let number = gpu.recorded(RECORDED, None);
    given?;
    let number = number?;
    let mut least = [f64::INFINITY; 2];
    let mut measure = || -> Result<(), RunError> {
        for _ in 0..times.max(1) + 1 {
            gpu.time(0, false)?;
            let started = Instant::now();
            // SAFETY: the kernel touches nothing.
            let given = (0..GRAPHS).try_for_each(|_| unsafe { gpu.replay(0, number) });
            let on_host = started.elapsed().as_nanos() as f64;
            let given = given.and(gpu.time(0, true));
            gpu.settle(0)?;
            given?;
            let on_device = gpu.time_taken(0)?.unwrap_or(0).max(1) as f64;
            let found = [on_host, on_device].map(|ns| ns / f64::from(GRAPHS));
            least = [least[0].min(found[0]), least[1].min(found[1])];
        }
        Ok(())
    };
    let measured = measure();
    gpu.forget(number);
    measured.map(|()| least)
}

/// Nanoseconds of a kernel that is given as text with its name, the least of several times: so many blocks of threads, and values that know
/// where a buffer of so many bytes is.
pub(super) fn timed_text(
    context: &Arc<Context>,
    (text, name): (&str, &str),
    grid: (u32, u32),
    (bytes, values): (usize, Values<'_>),
    times: usize,
) -> Result<u64, RunError> {
    let gpu = with_text(context, (text, name))?;
    let device: Arc<dyn Queued> = Arc::clone(&gpu) as Arc<dyn Queued>;
    let out = DeviceBuffer::new(&device, bytes)?;
    let mut least = u64::MAX;
    // The first may take longer for what it touches first.
    for _ in 0..times.max(1) + 1 {
        gpu.time(0, false)?;
        let given = gpu.given((0, KernelHandle(0)), grid, SmallVec::from_slice(&values(&out)));
        let given = given.and(gpu.time(0, true));
        // Also where it failed: nothing may be under way when memory goes.
        gpu.settle(0)?;
        given?;
        least = least.min(gpu.time_taken(0)?.unwrap_or(0).max(1));
    }
    Ok(least)
}

/// Has the host wait for all that a stream was given.
///
/// # Safety
/// It is null, which is the default stream, or a stream of the device's primary context.
///
/// # Errors
/// As [`open`], and if what the stream was given failed.
pub unsafe fn wait_for(ordinal: u32, stream: *mut c_void) -> Result<(), RunError> {
    let context = open(ordinal)?;
    // SAFETY: the caller's promise.
    context.call("cuStreamSynchronize", |d| unsafe { (d.cuStreamSynchronize)(stream) })
}

/// What the function of a launch's kernel is given: the addresses of its buffers, then its symbols.
fn values_of<'l, K>(l: &'l BoundLaunch, at: &'l Places<'_, K>) -> impl Iterator<Item = u64> + 'l {
    let args = &at.args[l.first_arg..l.first_arg + l.args.len()];
    let symbols = l.symbols.iter().map(|s| *s as u64);
    args.iter().map(|a| a.addr() as u64).chain(symbols)
}

struct Gpu {
    context: Arc<Context>,
    /// In the plan.
    number: usize,
    /// Whether it is of no executable, and stays.
    is_shared: bool,
    /// The GPUs of the same executable, from number 1 on, this one included.
    peers: OnceLock<Vec<Weak<Gpu>>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    queues: BTreeMap<u32, Queue>,
    /// Events that nothing waits for.
    free: Vec<Handle>,
    /// Those of queues that are recorded, which are kept apart: who waits for an event must not find it captured meanwhile.
    free_recorded: Vec<Handle>,
    loaded: Vec<Loaded>,
    /// By number of a [`KernelHandle`].
    kernels: Vec<Function>,
    /// Graphs that were recorded, by number.
    recordings: BTreeMap<u64, Graph>,
    /// How many there ever were.
    recorded: u64,
    /// What the recording that goes on was given.
    noted: Vec<Node>,
    /// The recording that is given its operations again, the number of the next one, and whether all were the same but for addresses.
    amended: Option<(u64, usize, bool)>,
    products: Products,
}

// SAFETY: the handles are the driver's, which takes them on every thread.
unsafe impl Send for State {}

impl State {
    /// The events that a queue may use again.
    fn free_of(&mut self, queue: u32) -> &mut Vec<Handle> {
        match queue < RECORDED {
            true => &mut self.free,
            false => &mut self.free_recorded,
        }
    }
}

struct Queue {
    stream: Handle,
    /// Number of the latest mark.
    marked: u64,
    /// Marks that may not be reached yet, in their order.
    marks: VecDeque<(u64, Handle)>,
    /// How many operations it was given.
    given: u64,
    /// How many of them the host knows to be done.
    settled: u64,
    /// How many allocations of the device's memory it comes behind.
    behind: u64,
    /// The same of the memory of other devices, by their numbers.
    behind_peers: SmallVec<[(usize, u64); 1]>,
    /// Where the kernel that it was given last is.
    last: Option<Last>,
    /// The events around what is timed, if anything ever was.
    clock: Option<[Handle; 2]>,
}

/// Where a kernel is that a queue was given.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Last {
    /// By its number.
    Kernel(u64),
    /// In a recording of that number.
    Recording(u64),
}

impl Gpu {
    fn new(context: &Arc<Context>, number: usize, is_shared: bool) -> Gpu {
        Gpu {
            context: Arc::clone(context),
            number,
            is_shared,
            peers: OnceLock::new(),
            state: Mutex::default(),
        }
    }

    /// Another GPU of the same executable.
    fn peer(&self, number: usize) -> Result<Arc<Gpu>, RunError> {
        let of = |all: &Vec<Weak<Gpu>>| all.get(number.checked_sub(1)?)?.upgrade();
        let found = self.peers.get().and_then(of);
        found.ok_or_else(|| self.failed(format!("a bug in tlc: device {number} is none of its plan's")))
    }

    /// The event of a mark of this device, unless the mark has been reached.
    fn event_of(&self, mark: Mark) -> Option<Handle> {
        let state = self.state();
        let marks = &state.queues.get(&mark.queue)?.marks;
        marks.iter().find(|m| m.0 == mark.number).map(|m| m.1)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, message: String) -> RunError {
        RunError::Device {
            device: self.context.properties().title(),
            message,
        }
    }

    fn event(&self, flags: u32) -> Result<Handle, RunError> {
        let mut event: Handle = std::ptr::null_mut();
        self.context.call("cuEventCreate", |d| {
            // SAFETY: a valid place for the result.
            unsafe { (d.cuEventCreate)(&mut event, flags) }
        })?;
        Ok(event)
    }

    /// The queue of that number.
    fn queue<'s>(&self, state: &'s mut State, queue: u32) -> Result<&'s mut Queue, RunError> {
        let vacant = match state.queues.entry(queue) {
            Entry::Occupied(known) => return Ok(known.into_mut()),
            Entry::Vacant(vacant) => vacant,
        };
        let mut stream: Handle = std::ptr::null_mut();
        // SAFETY: a valid place for the result.
        self.context.call("cuStreamCreate", |d| unsafe {
            (d.cuStreamCreate)(&mut stream, STREAM_FLAGS)
        })?;
        Ok(vacant.insert(Queue {
            stream,
            marked: 0,
            marks: VecDeque::new(),
            given: 0,
            settled: 0,
            behind: 0,
            behind_peers: SmallVec::new(),
            last: None,
            clock: None,
        }))
    }

    /// The stream of a queue that is given an operation, behind the allocation of whatever it may touch.
    fn ready(&self, state: &mut State, queue: u32) -> Result<Handle, RunError> {
        let to = self.queue(state, queue)?;
        to.given += 1;
        let allocations = self.context.allocations();
        // What is recorded comes behind them when it is given to a queue.
        if to.behind != allocations && queue < RECORDED {
            self.context.allocated_since(to.stream)?;
            to.behind = allocations;
        }
        Ok(to.stream)
    }

    /// Gives a queue an operation: a call of the driver with its stream.
    fn give(
        &self,
        state: &mut State,
        queue: u32,
        name: &'static str,
        f: impl FnOnce(&Library, Handle) -> Code,
    ) -> Result<(), RunError> {
        let ready = self.ready(state, queue);
        let done = ready.and_then(|stream| self.context.call(name, |d| f(d, stream)));
        done.map_err(|e| self.blamed(state, queue, e))
    }

    /// Says of an error which kernel its queue was given last: what failed is that one or one before, for errors show late.
    fn blamed(&self, state: &State, queue: u32, error: RunError) -> RunError {
        let RunError::Device { device, message } = error else {
            return error;
        };
        // A queue that was given no kernel waited for others.
        let own = state.queues.get(&queue).and_then(|q| q.last);
        let last = own.or_else(|| state.queues.values().filter_map(|q| q.last).max());
        let name = |kernel: u64| state.kernels.get(kernel as usize).map_or("", |k| &k.name);
        let place = last.and_then(|last| match last {
            Last::Kernel(k) => Some(format!("kernel `{}`", name(k))),
            Last::Recording(r) => {
                let (first, last) = state.recordings.get(&r)?.kernels?;
                Some(format!(
                    "the graph of kernel `{}` to kernel `{}`",
                    name(first),
                    name(last)
                ))
            }
        });
        let message = match place {
            Some(place) => format!("{message}, in or before {place}"),
            None => message,
        };
        RunError::Device { device, message }
    }

    fn loaded(&self, wanted: &[Wanted<'_>], threads: usize) -> Result<Vec<KernelHandle>, RunError> {
        let (loaded, functions) = compile::load(&self.context, wanted, threads)?;
        let mut state = self.state();
        let first = state.kernels.len();
        state.loaded.extend(loaded);
        state.kernels.extend(functions);
        Ok((first..state.kernels.len()).map(|k| KernelHandle(k as u64)).collect())
    }

    fn launched(&self, queue: u32, l: &BoundLaunch, at: &Places<'_, KernelHandle>) -> Result<(), RunError> {
        if l.extent == 0 {
            return Ok(());
        }
        let (Some(&kernel), Some(threads)) = (at.kernel(l), l.block_threads) else {
            return Err(self.failed(format!("kernel {} is not loaded", l.kernel)));
        };
        self.given((queue, kernel), (l.extent as u32, threads), values_of(l, at).collect())
    }

    /// Gives a queue a kernel, with its grid and all that the function is called with.
    fn given(
        &self,
        (queue, KernelHandle(kernel)): (u32, KernelHandle),
        (blocks, threads): (u32, u32),
        values: SmallVec<[u64; 32]>,
    ) -> Result<(), RunError> {
        let mut state = self.state();
        let Some(function) = state.kernels.get(kernel as usize) else {
            return Err(self.failed(format!("a bug in tlc: kernel {kernel} is not loaded")));
        };
        let mut given = Given::new(&self.context, function, values.clone())?;
        let (function, dynamic_shared_bytes) = (function.handle, function.dynamic_shared_bytes);
        self.queue(&mut state, queue)?.last = Some(Last::Kernel(kernel));
        let operation = || Operation::Kernel {
            kernel,
            blocks,
            threads,
            values: values.into_iter().collect(),
        };
        let mut params = given.places();
        // SAFETY: the function has a pointer for each buffer, a 64-bit integer for each symbol and a map for each matrix, in this order, or 64-bit
        // integers alone, as the emitter writes them; the caller of `launch` promises what they point to. A binding's grid is below the limit.
        self.give_operation(&mut state, queue, operation, "cuLaunchKernel", |d, stream| unsafe {
            (d.cuLaunchKernel)(
                function,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                dynamic_shared_bytes,
                stream,
                params.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        })
    }

    fn mark_of(&self, queue: u32, number: u64) -> Mark {
        Mark {
            device: self.number,
            queue,
            number,
        }
    }

    fn destroy(&self, graph: &Graph) {
        // SAFETY: made here, destroyed once, and whoever has it forgotten has waited for what it does.
        unsafe { graph.destroy(&self.context) };
    }

    /// Has the host wait where it is far ahead of a queue, so that events come back.
    fn catch_up(&self, queue: u32) -> Result<(), RunError> {
        let late = {
            let state = self.state();
            let marks = state.queues.get(&queue).map(|q| &q.marks);
            let marks = marks.filter(|m| m.len() >= MOST_MARKS && queue < RECORDED);
            marks.and_then(|m| Some(m.get(m.len() / 2)?.0))
        };
        late.map_or(Ok(()), |number| self.reach(self.mark_of(queue, number)))
    }

    /// Forgets marks of a queue up to one that was reached.
    fn reached(&self, queue: u32, number: u64) {
        let mut state = self.state();
        let State { queues, free, .. } = &mut *state;
        let Some(queue) = queues.get_mut(&queue) else { return };
        while let Some((_, event)) = queue.marks.pop_front_if(|m| m.0 <= number) {
            free.push(event);
        }
    }
}

impl Gpu {
    /// What the driver knows of a kernel's function.
    fn attribute(&self, kernel: KernelHandle, attribute: u32) -> Option<u32> {
        // A simulated device runs PTX, which has as many registers as it likes.
        if self.context.properties().simulated {
            return None;
        }
        let function = self.state().kernels.get(kernel.0 as usize)?.handle;
        let mut value = 0;
        // SAFETY: a valid place for the result, and a function of a module that is loaded.
        let known = self.context.quietly("cuFuncGetAttribute", |d| unsafe {
            (d.cuFuncGetAttribute)(&mut value, attribute, function)
        });
        u32::try_from(value).ok().filter(|_| known.is_ok())
    }
}

impl Device for Gpu {
    type Kernel = KernelHandle;
    type Product = ();

    fn load(&self, kernels: &[ToLoad<'_>], threads: usize) -> Result<Vec<KernelHandle>, RunError> {
        if let Some(kernel) = kernels.iter().position(|k| k.emitter != EmitterId::default()) {
            let emitter = kernels[kernel].emitter;
            return Err(JitError::Emitter {
                kernel,
                emitter,
                known: 1,
            }
            .into());
        }
        let wanted: Vec<Wanted<'_>> = kernels.iter().map(|k| Wanted::Kernel(*k)).collect();
        self.loaded(&wanted, threads)
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
        (): &(),
        at: &mut Places<'_, KernelHandle>,
    ) -> Result<(), RunError> {
        // SAFETY: the caller's promise.
        unsafe { self.multiplied(queue, product, at) }
    }

    unsafe fn copy(&self, queue: u32, from: *const u8, to: *mut u8, bytes: usize) -> Result<(), RunError> {
        if bytes == 0 {
            return Ok(());
        }
        let (from, to) = (from.addr() as u64, to.addr() as u64);
        let operation = || Operation::Copy {
            from: End::Device(from),
            to: End::Device(to),
            bytes,
        };
        let state = &mut self.state();
        // SAFETY: the caller's promise.
        self.give_operation(state, queue, operation, "cuMemcpyDtoDAsync_v2", |d, stream| unsafe {
            (d.cuMemcpyDtoDAsync_v2)(to, from, bytes, stream)
        })
    }

    unsafe fn fill(&self, queue: u32, to: *mut u8, byte: u8, bytes: usize) -> Result<(), RunError> {
        if bytes == 0 {
            return Ok(());
        }
        let to = to.addr() as u64;
        let operation = || Operation::Fixed(vec![to, byte.into(), bytes as u64]);
        let state = &mut self.state();
        // SAFETY: the caller's promise.
        self.give_operation(state, queue, operation, "cuMemsetD8Async", |d, stream| unsafe {
            (d.cuMemsetD8Async)(to, byte, bytes, stream)
        })
    }
}

impl Queued for Gpu {
    fn joins_launches(&self) -> bool {
        true
    }

    fn load_joined(&self, joined: &[ToJoin<'_>], threads: usize) -> Result<Vec<KernelHandle>, RunError> {
        let wanted: Vec<Wanted<'_>> = joined.iter().map(Wanted::Joined).collect();
        self.loaded(&wanted, threads)
    }

    unsafe fn launch_joined(
        &self,
        queue: u32,
        (launches, joining): (&[BoundLaunch], Joining),
        joined: Option<KernelHandle>,
        at: &Places<'_, KernelHandle>,
    ) -> Result<(), RunError> {
        self.joined(queue, (launches, joining), joined, at)
    }

    fn allocate(&self, bytes: usize) -> Result<*mut u8, RunError> {
        let address = self.context.allocate(bytes)?;
        Ok(std::ptr::without_provenance_mut(address as usize))
    }

    fn room(&self) -> Result<Option<Room>, RunError> {
        let (free, total) = self.context.memory()?;
        // What nothing uses is given back where memory runs out.
        let free = free.saturating_add(self.context.idle_bytes());
        let device = self.context.properties().title();
        Ok(Some(Room { device, free, total }))
    }

    unsafe fn release(&self, start: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { self.context.free(start.addr() as u64) };
    }

    fn take(&self, bytes: usize) -> Result<*mut u8, RunError> {
        let address = self.context.take(bytes)?;
        Ok(std::ptr::without_provenance_mut(address as usize))
    }

    unsafe fn put_back(&self, start: *mut u8, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.context.put_back(start.addr() as u64, bytes, Vec::new()) };
    }

    fn spare(&self, sizes: &[usize]) -> u64 {
        self.context.spare_bytes(sizes)
    }

    fn runs_behind_calls(&self) -> bool {
        true
    }

    fn event(&self, mark: Mark) -> Option<Event> {
        self.event_of(mark).map(|e| Event(e.expose_provenance()))
    }

    fn wait_for_event(&self, queue: u32, event: Event) -> Result<(), RunError> {
        let event: Handle = std::ptr::with_exposed_provenance_mut(event.0);
        // SAFETY: the stream is of this context and alive, and so is the event, as the caller says. Who uses it again meanwhile has seen it
        // reached, and this waits for longer, but for nothing that waits for it.
        self.give(&mut self.state(), queue, "cuStreamWaitEvent", |d, stream| unsafe {
            (d.cuStreamWaitEvent)(stream, event, 0)
        })
    }

    fn take_in_use(&self, bytes: usize) -> Result<(*mut u8, Vec<Use>), RunError> {
        let (address, uses) = self.context.take_in_use(bytes)?;
        Ok((std::ptr::without_provenance_mut(address as usize), uses))
    }

    unsafe fn put_back_in_use(&self, start: *mut u8, bytes: usize, uses: Vec<Use>) {
        // SAFETY: the caller's promise.
        unsafe { self.context.put_back(start.addr() as u64, bytes, uses) };
    }

    fn ordinal(&self) -> Option<u32> {
        Some(self.context.properties().ordinal)
    }

    unsafe fn upload(&self, queue: u32, from: *const u8, to: *mut u8, bytes: usize) -> Result<(), RunError> {
        if bytes == 0 {
            return Ok(());
        }
        let to = to.addr() as u64;
        let operation = || Operation::Copy {
            from: End::Host(from.addr() as u64),
            to: End::Device(to),
            bytes,
        };
        let state = &mut self.state();
        // SAFETY: the caller's promise; it waits for the queue before it lets go of the host's memory.
        self.give_operation(state, queue, operation, "cuMemcpyHtoDAsync_v2", |d, stream| unsafe {
            (d.cuMemcpyHtoDAsync_v2)(to, from.cast(), bytes, stream)
        })
    }

    unsafe fn download(&self, queue: u32, from: *const u8, to: *mut u8, bytes: usize) -> Result<(), RunError> {
        if bytes == 0 {
            return Ok(());
        }
        let from = from.addr() as u64;
        let operation = || Operation::Copy {
            from: End::Device(from),
            to: End::Host(to.addr() as u64),
            bytes,
        };
        let state = &mut self.state();
        // SAFETY: as in `upload`.
        self.give_operation(state, queue, operation, "cuMemcpyDtoHAsync_v2", |d, stream| unsafe {
            (d.cuMemcpyDtoHAsync_v2)(to.cast(), from, bytes, stream)
        })
    }

    unsafe fn exchange(
        &self,
        queue: u32,
        other: Peer,
        from: *const u8,
        to: *mut u8,
        bytes: usize,
    ) -> Result<(), RunError> {
        if bytes == 0 {
            return Ok(());
        }
        let (from, to) = (from.addr() as u64, to.addr() as u64);
        let number = match other {
            Peer::From(number) | Peer::To(number) => number,
        };
        let peer = self.peer(number)?;
        let (here, there) = (self.context.handle(), peer.context.handle());
        let (source, target) = match other {
            Peer::From(_) => (there, here),
            Peer::To(_) => (here, there),
        };
        let mut state = self.state();
        // What is there was allocated in an order of its own.
        let allocations = peer.context.allocations();
        let of = self.queue(&mut state, queue)?;
        let known = of.behind_peers.iter().position(|p| p.0 == number);
        if known.is_none_or(|k| of.behind_peers[k].1 != allocations) {
            peer.context.allocated_since(of.stream)?;
            match known {
                Some(k) => of.behind_peers[k].1 = allocations,
                None => of.behind_peers.push((number, allocations)),
            }
        }
        // SAFETY: the caller's promise; the contexts are those of the memory that is said.
        self.give(&mut state, queue, "cuMemcpyPeerAsync", |d, stream| unsafe {
            (d.cuMemcpyPeerAsync)(to, target, from, source, bytes, stream)
        })
    }

    fn mark(&self, queue: u32) -> Result<Mark, RunError> {
        self.catch_up(queue)?;
        let mut state = self.state();
        if queue >= RECORDED && state.amended.is_some() {
            // What waits for what was recorded, and stays.
            return Ok(self.mark_of(queue, 0));
        }
        let of = self.queue(&mut state, queue)?;
        if queue < RECORDED && of.given == of.settled {
            // There is nothing to wait for: the mark has been reached.
            return Ok(self.mark_of(queue, of.marked));
        }
        let event = match state.free_of(queue).pop() {
            Some(event) => event,
            None => {
                let made = self.event(EVENT_FLAGS);
                made.map_err(|e| self.blamed(&state, queue, e))?
            }
        };
        // SAFETY: both are of this context and alive.
        let recorded = self.give(&mut state, queue, "cuEventRecord", |d, stream| unsafe {
            (d.cuEventRecord)(event, stream)
        });
        if let Err(e) = recorded {
            state.free_of(queue).push(event);
            return Err(e);
        }
        let of = self.queue(&mut state, queue)?;
        of.marked += 1;
        let number = of.marked;
        of.marks.push_back((number, event));
        Ok(self.mark_of(queue, number))
    }

    fn wait(&self, queue: u32, mark: Mark) -> Result<(), RunError> {
        // Whoever uses the event again meanwhile has seen the mark reached, and this waits for longer, but for nothing that waits for it.
        let event = match mark.device == self.number {
            true => self.event_of(mark),
            false => self.peer(mark.device)?.event_of(mark),
        };
        let Some(event) = event else {
            return Ok(());
        };
        // SAFETY: the stream is of this context and alive, and the event lives as long as the executable.
        self.give(&mut self.state(), queue, "cuStreamWaitEvent", |d, stream| unsafe {
            (d.cuStreamWaitEvent)(stream, event, 0)
        })
    }

    fn reach(&self, mark: Mark) -> Result<(), RunError> {
        let Some(event) = self.event_of(mark) else {
            return Ok(());
        };
        // SAFETY: events live as long as `self`. Who uses it again meanwhile has seen it reached, and this waits for longer.
        let done = self
            .context
            .call("cuEventSynchronize", |d| unsafe { (d.cuEventSynchronize)(event) });
        done.map_err(|e| self.blamed(&self.state(), mark.queue, e))?;
        self.reached(mark.queue, mark.number);
        Ok(())
    }

    fn settle(&self, queue: u32) -> Result<(), RunError> {
        let (stream, marked, given) = {
            let state = self.state();
            match state.queues.get(&queue) {
                Some(q) if q.given > q.settled => (q.stream, q.marked, q.given),
                _ => return Ok(()),
            }
        };
        // SAFETY: streams live as long as `self`.
        let done = self
            .context
            .call("cuStreamSynchronize", |d| unsafe { (d.cuStreamSynchronize)(stream) });
        done.map_err(|e| self.blamed(&self.state(), queue, e))?;
        self.reached(queue, marked);
        if let Some(queue) = self.state().queues.get_mut(&queue) {
            queue.settled = queue.settled.max(given);
        }
        Ok(())
    }

    fn time(&self, queue: u32, ends: bool) -> Result<(), RunError> {
        let mut state = self.state();
        let of = self.queue(&mut state, queue)?;
        let clock = match of.clock {
            Some(known) => known,
            None => *of.clock.insert([self.event(TIMING_FLAGS)?, self.event(TIMING_FLAGS)?]),
        };
        // Whoever asks for the time waits for this, though there may be no work around it.
        of.given += 1;
        let (event, stream) = (clock[usize::from(ends)], of.stream);
        // SAFETY: both are of this context and alive.
        self.context
            .call("cuEventRecord", |d| unsafe { (d.cuEventRecord)(event, stream) })
    }

    fn time_taken(&self, queue: u32) -> Result<Option<u64>, RunError> {
        let clock = self.state().queues.get(&queue).and_then(|q| q.clock);
        let Some([begin, end]) = clock else { return Ok(None) };
        let mut milliseconds = 0f32;
        // SAFETY: a valid place for the result, and events of this context that were recorded.
        self.context.call("cuEventElapsedTime_v2", |d| unsafe {
            (d.cuEventElapsedTime_v2)(&mut milliseconds, begin, end)
        })?;
        Ok(Some((f64::from(milliseconds) * 1e6) as u64))
    }

    fn registers(&self, kernel: KernelHandle) -> Option<u32> {
        self.attribute(kernel, REGISTERS).filter(|n| *n > 0)
    }

    fn local_bytes(&self, kernel: KernelHandle) -> Option<u32> {
        self.attribute(kernel, LOCAL_BYTES)
    }

    fn lasting(&self) -> Option<Arc<dyn Queued>> {
        shared(self.context.properties().ordinal).ok()
    }

    fn finish(&self) {
        let queues: SmallVec<[u32; 8]> = self.state().queues.keys().copied().collect();
        for queue in queues.into_iter().filter(|q| *q < RECORDED) {
            // What failed was reported, or the call failed before.
            let _ = self.settle(queue);
        }
    }

    fn checks_slots(&self) -> bool {
        self.context.checks_slots()
    }

    fn announce(&self, queue: u32, lives: &[SlotLife]) -> Result<(), RunError> {
        let names: Vec<CString> = lives
            .iter()
            .map(|l| CString::new(format!("slot {}", l.slot)).unwrap_or_default())
            .collect();
        let named = lives.iter().zip(&names).map(|(l, name)| SimulatedSlot {
            address: l.start.addr() as u64,
            bytes: l.bytes as u64,
            event: if l.born { 0 } else { 2 },
            reserved: 0,
            name: name.as_ptr(),
        });
        let slots: Vec<SimulatedSlot> = named.collect();
        let numbers = |s: &SimulatedSlot| [s.address, s.bytes, s.event.into()];
        let operation = || Operation::Fixed(slots.iter().flat_map(numbers).collect());
        let state = &mut self.state();
        self.give_operation(state, queue, operation, "tlcSimSlots", |d, stream| match d.slots {
            // SAFETY: as many slots as are said, whose names live until they are copied.
            Some(announce) => unsafe { announce(stream, slots.len() as u32, slots.as_ptr()) },
            None => 0,
        })
    }

    fn recorder(&self) -> Option<&dyn Recorder> {
        Some(self)
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        self.finish();
        let graphs = std::mem::take(&mut self.state().recordings);
        graphs.values().for_each(|g| self.destroy(g));
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        // What fails here failed before: it goes with the device.
        state.products.forget(&self.context);
        for queue in state.queues.values() {
            for (_, event) in &queue.marks {
                state.free.push(*event);
            }
            state.free.extend(queue.clock.iter().flatten());
        }
        let streams = state.queues.values().map(|q| q.stream).chain(state.products.stream());
        for stream in streams {
            // SAFETY: made here, destroyed once, and nothing runs in it any longer.
            let _ = self
                .context
                .quietly("cuStreamDestroy_v2", |d| unsafe { (d.cuStreamDestroy_v2)(stream) });
        }
        for event in state.free.iter().chain(&state.free_recorded) {
            // SAFETY: made here, destroyed once, and nothing waits for it.
            let _ = self
                .context
                .quietly("cuEventDestroy_v2", |d| unsafe { (d.cuEventDestroy_v2)(*event) });
        }
        if !self.is_shared {
            self.context.leaves();
        }
    }
}
