//! The driver: handles, and the order in which work is given to streams.
//!
//! A handle is a number that is looked up, never an address that is followed: a wrong one is an error and not a crash. What orders
//! an operation is known when it is asked for, so its clock is made then, under one lock.

mod graphs;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::c_int;
use std::panic::catch_unwind;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, Once, OnceLock};

use tlc_gpusim::Module;

use crate::capture::{Capture, Captured, Exec, Graph};
use crate::clock::{Clock, Lines};
use crate::history::{Access, Stamp};
use crate::machine::{Machine, lock};
use crate::pool::Pool;
use crate::report::append;
use crate::result::{
    CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_INITIALIZED,
    CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
    CUDA_ERROR_UNKNOWN, CUresult,
};
use crate::settings::Settings;
use crate::stream::{Job, start};
use crate::work::{Ticket, Work};

use graphs::Kept;

/// How many ranges the history may have before it is looked through for what is settled.
const SETTLE: usize = 512;

/// A stream.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) gpu: usize,
    /// Whether it is ordered with the default stream.
    pub(crate) is_blocking: bool,
    number: u64,
    sender: Sender<Job>,
    pub(crate) last: Option<Arc<Ticket>>,
    line: usize,
    pub(crate) clock: Clock,
    pub(crate) capture: Option<Captured>,
}

/// What an event recorded.
#[derive(Clone, Debug)]
pub(crate) enum Recorded {
    Done(Arc<Ticket>, Clock),
    Captured(Captured),
}

/// An event.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) gpu: usize,
    pub(crate) has_time: bool,
    pub(crate) recorded: Option<Recorded>,
}

/// A module that was loaded.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    pub(crate) gpu: usize,
    pub(crate) module: Arc<Module>,
}

/// A kernel of a module.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    pub(crate) handle_of_module: u64,
    pub(crate) gpu: usize,
    pub(crate) module: Arc<Module>,
    pub(crate) name: Arc<str>,
    /// The most dynamic shared memory that it was allowed.
    pub(crate) dynamic_shared: u32,
}

/// A primary context.
#[derive(Debug, Default)]
pub(crate) struct Context {
    pub(crate) handle: u64,
    pub(crate) retained: u64,
    /// Devices whose memory it reaches, pools aside.
    pub(crate) peers: BTreeSet<usize>,
}

/// What streams left behind that were destroyed.
#[derive(Debug, Default)]
struct Left {
    tickets: Vec<Arc<Ticket>>,
    clock: Clock,
}

/// Everything that has a handle.
#[derive(Debug, Default)]
pub(crate) struct State {
    next: u64,
    operations: u64,
    /// Of a library beside the driver.
    pub(crate) library_handles: i64,
    pub(crate) contexts: Vec<Context>,
    pub(crate) streams: HashMap<u64, Stream>,
    /// What destroyed streams were given, by device and whether they were ordered with the default stream.
    left: HashMap<(usize, bool), Left>,
    /// The default stream of each device, made at its first use.
    defaults: HashMap<usize, u64>,
    pub(crate) events: HashMap<u64, Event>,
    pub(crate) modules: HashMap<u64, Loaded>,
    pub(crate) functions: HashMap<u64, Function>,
    pub(crate) pools: HashMap<u64, Arc<Pool>>,
    pub(crate) default_pools: HashMap<usize, u64>,
    /// The pools of what was allocated from one.
    pub(crate) pooled: HashMap<u64, Arc<Pool>>,
    /// Pinned memory of the host: its bytes by its address.
    pub(crate) pinned: BTreeMap<u64, u64>,
    pub(crate) captures: HashMap<u64, Capture>,
    pub(crate) graphs: HashMap<u64, Graph>,
    pub(crate) execs: HashMap<u64, Exec>,
    /// Arguments of nodes that were asked for.
    kept: HashMap<u64, Kept>,
    /// What the host knows is done.
    pub(crate) host: Clock,
    pub(crate) lines: Lines,
}

impl State {
    /// A new handle.
    pub(crate) fn handle(&mut self) -> u64 {
        self.next += 1;
        0x5100_0000 + self.next * 16
    }

    /// Whether all of a range of the host is pinned.
    pub(crate) fn is_pinned(&self, address: u64, bytes: u64) -> bool {
        let found = self.pinned.range(..=address).next_back();
        found.is_some_and(|(&start, &len)| bytes <= len.saturating_sub(address - start))
    }

    /// Whether a device reaches what lies at an address of some device.
    pub(crate) fn reaches(&self, machine: &Machine, gpu: usize, address: u64) -> bool {
        let Some((base, _)) = machine.holding(address) else {
            return false;
        };
        match (machine.owner(address), self.pooled.get(&base)) {
            (_, Some(pool)) => pool.is_reached_by(gpu),
            (Some(owner), None) => owner == gpu || self.contexts[gpu].peers.contains(&owner),
            (None, None) => false,
        }
    }

    /// The stream of a handle; 0 and 1 are the default one, and so is 2, that of the thread.
    pub(crate) fn stream(&mut self, machine: &Arc<Machine>, handle: u64) -> Result<u64, CUresult> {
        if handle > 2 {
            let found = self.streams.contains_key(&handle);
            return if found {
                Ok(handle)
            } else {
                Err(CUDA_ERROR_INVALID_HANDLE)
            };
        }
        let gpu = self.current()?;
        if let Some(&handle) = self.defaults.get(&gpu) {
            return Ok(handle);
        }
        let handle = self.open_stream(machine, gpu, true)?;
        self.defaults.insert(gpu, handle);
        Ok(handle)
    }

    /// Makes a stream.
    pub(crate) fn open_stream(
        &mut self,
        machine: &Arc<Machine>,
        gpu: usize,
        is_blocking: bool,
    ) -> Result<u64, CUresult> {
        let handle = self.handle();
        let sender = start(machine, gpu, self.next).map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
        let line = self.lines.open(&self.host);
        let stream = Stream {
            gpu,
            is_blocking,
            number: self.next,
            sender,
            last: None,
            line,
            clock: Clock::default(),
            capture: None,
        };
        self.streams.insert(handle, stream);
        Ok(handle)
    }

    /// Ends a stream; what it was given is still done, and still waited for.
    pub(crate) fn close_stream(&mut self, handle: u64) {
        let Some(stream) = self.streams.remove(&handle) else {
            return;
        };
        self.lines.close(stream.line);
        let left = self.left.entry((stream.gpu, stream.is_blocking)).or_default();
        left.clock.learn(&stream.clock);
        left.tickets.extend(stream.last);
        left.tickets.retain(|t| !t.is_done());
    }

    /// Ends the default stream of a device.
    pub(crate) fn close_default(&mut self, gpu: usize) {
        self.defaults.remove(&gpu);
    }

    fn is_default(&self, gpu: usize, handle: u64) -> bool {
        self.defaults.get(&gpu) == Some(&handle)
    }

    /// The device of the calling thread's context.
    pub(crate) fn current(&self) -> Result<usize, CUresult> {
        let handle = CURRENT.get();
        let found = self.contexts.iter().position(|c| c.handle == handle && c.retained > 0);
        found.filter(|_| handle != 0).ok_or(CUDA_ERROR_INVALID_CONTEXT)
    }

    /// A device's streams, with those that the default one is ordered with.
    fn ordered_with_default(&self, gpu: usize) -> impl Iterator<Item = (&u64, &Stream)> {
        self.streams.iter().filter(move |(_, s)| s.gpu == gpu && s.is_blocking)
    }

    /// Gives an operation to a stream.
    pub(crate) fn enqueue(
        &mut self,
        machine: &Arc<Machine>,
        handle: u64,
        what: &str,
        work: Work,
    ) -> Result<Arc<Ticket>, CUresult> {
        self.enqueue_after(machine, handle, what, work, None)
    }

    /// The same, after an operation of another stream.
    pub(crate) fn enqueue_after(
        &mut self,
        machine: &Arc<Machine>,
        handle: u64,
        what: &str,
        work: Work,
        other: Option<(&Arc<Ticket>, &Clock)>,
    ) -> Result<Arc<Ticket>, CUresult> {
        let make = |stamp: &Stamp, _: &mut Lines| (work, stamp.clock.clone());
        self.enqueue_made(machine, handle, what, make, other)
    }

    /// The same of an operation that is made when it is known what is before it, with what is known when it is done.
    fn enqueue_made(
        &mut self,
        machine: &Arc<Machine>,
        handle: u64,
        what: &str,
        make: impl FnOnce(&Stamp, &mut Lines) -> (Work, Clock),
        other: Option<(&Arc<Ticket>, &Clock)>,
    ) -> Result<Arc<Ticket>, CUresult> {
        let (gpu, is_blocking) = {
            let stream = self.streams.get(&handle).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
            (stream.gpu, stream.is_blocking)
        };
        machine.gpus[gpu].failure()?;
        let mut after: Vec<Arc<Ticket>> = Vec::new();
        let mut clock = Clock::default();
        if self.is_default(gpu, handle) {
            if let Some(left) = self.left.get(&(gpu, true)) {
                clock.learn(&left.clock);
                after.extend(left.tickets.iter().cloned());
            }
            for (_, stream) in self.ordered_with_default(gpu) {
                if stream.capture.is_some() {
                    return Err(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
                }
                clock.learn(&stream.clock);
                after.extend(stream.last.clone());
            }
        } else if is_blocking && let Some(default) = self.defaults.get(&gpu).and_then(|d| self.streams.get(d)) {
            clock.learn(&default.clock);
            after.extend(default.last.clone());
        }
        if let Some((ticket, known)) = other {
            after.push(ticket.clone());
            clock.learn(known);
        }
        after.retain(|t| !t.is_done());
        let stamp = self.stamp(handle, &clock, what)?;
        let (work, known) = make(&stamp, &mut self.lines);
        let ticket = Arc::new(Ticket::default());
        let stream = self.streams.get_mut(&handle).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        stream.last = Some(ticket.clone());
        stream.clock.learn(&known);
        let job = Job {
            work,
            stamp,
            after,
            ticket: ticket.clone(),
        };
        machine.pending.fetch_add(1, Ordering::SeqCst);
        stream.sender.send(job).map_err(|_| CUDA_ERROR_UNKNOWN)?;
        Ok(ticket)
    }

    /// The next operation of a stream, which is after what the host and `clock` know.
    pub(crate) fn stamp(&mut self, handle: u64, clock: &Clock, what: &str) -> Result<Stamp, CUresult> {
        self.operations += 1;
        let number = self.operations;
        let stream = self.streams.get_mut(&handle).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        stream.clock.learn(&self.host);
        stream.clock.learn(clock);
        let count = self.lines.next(stream.line);
        stream.clock.set(stream.line, count);
        let label = format!("{what} (operation {number}, stream {})", stream.number).into();
        Ok(Stamp {
            access: Access {
                line: stream.line,
                count,
                label,
            },
            clock: stream.clock.clone(),
        })
    }

    /// What the host has to wait for until a stream is done.
    pub(crate) fn tail(&self, handle: u64) -> Result<(usize, Option<Arc<Ticket>>, Clock), CUresult> {
        let stream = self.streams.get(&handle).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        if stream.capture.is_some() {
            return Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        Ok((stream.gpu, stream.last.clone(), stream.clock.clone()))
    }

    /// The same of all streams of a device.
    pub(crate) fn tails(&self, gpu: usize) -> (Vec<Arc<Ticket>>, Clock) {
        let mut clock = Clock::default();
        let mut tickets = Vec::new();
        for stream in self.streams.values().filter(|s| s.gpu == gpu) {
            clock.learn(&stream.clock);
            tickets.extend(stream.last.clone());
        }
        for left in [false, true].iter().filter_map(|&b| self.left.get(&(gpu, b))) {
            clock.learn(&left.clock);
            tickets.extend(left.tickets.iter().cloned());
        }
        (tickets, clock)
    }
}

thread_local! {
    /// The handle of the context that is current on a thread.
    pub(crate) static CURRENT: Cell<u64> = const { Cell::new(0) };
}

/// All of it.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) machine: Arc<Machine>,
    state: Mutex<State>,
}

static DRIVER: OnceLock<Result<Driver, String>> = OnceLock::new();

static REPORTED: Once = Once::new();

unsafe extern "C" {
    /// Has a function called when the process ends.
    safe fn atexit(function: extern "C" fn()) -> c_int;
}

/// Writes the report when the process ends.
fn at_exit() {
    extern "C" fn write() {
        // The process ends anyway.
        let _ = catch_unwind(|| {
            if let Ok(driver) = Driver::get() {
                append(driver.machine.settings.report_file.as_deref(), &driver.report());
            }
        });
    }
    if atexit(write) != 0 {
        eprintln!("tlc-gpusim: the report cannot be written at the end");
    }
}

impl Driver {
    /// Reads the environment, once.
    pub(crate) fn init() -> Result<&'static Driver, CUresult> {
        let made = DRIVER.get_or_init(|| {
            let settings = Settings::read(|name| std::env::var(name).ok())?;
            let mut state = State::default();
            for _ in &settings.devices {
                let context = Context {
                    handle: state.handle(),
                    ..Context::default()
                };
                state.contexts.push(context);
            }
            Ok(Driver {
                machine: Arc::new(Machine::new(settings)),
                state: Mutex::new(state),
            })
        });
        let asks = |d: &Driver| d.machine.settings.report_file.is_some();
        if made.as_ref().is_ok_and(asks) {
            REPORTED.call_once(at_exit);
        }
        made.as_ref().map_err(|error| {
            eprintln!("tlc-gpusim: {error}");
            CUDA_ERROR_INVALID_VALUE
        })
    }

    /// The driver after `cuInit`.
    pub(crate) fn get() -> Result<&'static Driver, CUresult> {
        match DRIVER.get() {
            Some(Ok(driver)) => Ok(driver),
            Some(Err(_)) | None => Err(CUDA_ERROR_NOT_INITIALIZED),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The device of the calling thread's context, if nothing has gone wrong there.
    pub(crate) fn current(&self) -> Result<usize, CUresult> {
        let gpu = self.state().current()?;
        self.machine.gpus[gpu].failure()?;
        Ok(gpu)
    }

    /// Gives an operation to a stream, or to the graph that the stream captures.
    pub(crate) fn submit(&self, handle: u64, what: &str, work: Work) -> Result<Arc<Ticket>, CUresult> {
        let mut state = self.state();
        let handle = state.stream(&self.machine, handle)?;
        if let Some(captured) = state.streams.get(&handle).and_then(|s| s.capture.clone()) {
            state.capture_node(handle, &captured, what, work)?;
            return Ok(Arc::default());
        }
        state.enqueue(&self.machine, handle, what, work)
    }

    /// The device of a stream.
    pub(crate) fn device_of(&self, handle: u64) -> Result<usize, CUresult> {
        let mut state = self.state();
        let handle = state.stream(&self.machine, handle)?;
        let found = state.streams.get(&handle).map(|s| s.gpu);
        found.ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    /// Waits until a stream has done everything.
    pub(crate) fn wait_for_stream(&self, handle: u64) -> Result<(), CUresult> {
        let (gpu, ticket, clock) = {
            let mut state = self.state();
            let handle = state.stream(&self.machine, handle)?;
            state.tail(handle)?
        };
        if let Some(ticket) = ticket {
            ticket.wait();
        }
        self.state().host.learn(&clock);
        self.settle();
        self.machine.gpus[gpu].failure()
    }

    /// Waits until a device has done everything.
    pub(crate) fn wait_for_device(&self, gpu: usize) -> Result<(), CUresult> {
        let (tickets, clock) = self.state().tails(gpu);
        tickets.iter().for_each(|t| t.wait());
        self.state().host.learn(&clock);
        self.settle();
        self.machine.gpus[gpu].failure()
    }

    /// Ends what belongs to a device's context: its streams, events, modules and memory.
    pub(crate) fn destroy_context(&self, gpu: usize) {
        // What failed is gone with the context.
        let _ = self.wait_for_device(gpu);
        let mut state = self.state();
        let streams: Vec<u64> = state
            .streams
            .iter()
            .filter(|(_, s)| s.gpu == gpu)
            .map(|(&h, _)| h)
            .collect();
        streams.into_iter().for_each(|s| state.close_stream(s));
        state.close_default(gpu);
        state.events.retain(|_, e| e.gpu != gpu);
        state.functions.retain(|_, f| f.gpu != gpu);
        let modules: Vec<Loaded> = state.modules.values().filter(|m| m.gpu == gpu).cloned().collect();
        state.modules.retain(|_, m| m.gpu != gpu);
        state.pools.retain(|_, p| p.gpu != gpu);
        state.default_pools.remove(&gpu);
        state.pooled.retain(|_, p| p.gpu != gpu);
        let device = &self.machine.gpus[gpu];
        modules.iter().for_each(|m| device.unload(&m.module));
        for address in device.live() {
            // Each is live, for nothing else runs on the device.
            let _ = self.machine.free(gpu, address);
        }
        device.cached.store(0, Ordering::SeqCst);
        state.contexts[gpu].peers.clear();
        state.contexts.iter_mut().for_each(|c| {
            c.peers.remove(&gpu);
        });
        device.recover();
    }

    /// An error if a stream of a device captures, which no operation of the whole device may be done beside.
    pub(crate) fn refuse_while_capturing(&self, gpu: usize) -> Result<(), CUresult> {
        let state = self.state();
        let captures = state.streams.values().any(|s| s.gpu == gpu && s.capture.is_some());
        if captures {
            Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        } else {
            Ok(())
        }
    }

    /// What was found, counted and is held, as JSON.
    pub(crate) fn report(&self) -> String {
        let mut held = self.machine.held();
        {
            let s = self.state();
            held.pinned_bytes = s.pinned.values().sum();
            let of_programs = s.streams.len() - s.defaults.len() + s.pools.len() - s.default_pools.len();
            let made = s.events.len() + s.modules.len() + s.functions.len() + s.graphs.len() + s.execs.len();
            held.handles = (of_programs + made) as u64 + s.library_handles.max(0) as u64;
        }
        lock(&self.machine.log).summary(&held)
    }

    /// Forgets accesses that every later operation is after, if none is on its way that was asked for before.
    fn settle(&self) {
        let state = self.state();
        let mut history = lock(&self.machine.history);
        if history.len() > SETTLE && self.machine.pending.load(Ordering::SeqCst) == 0 {
            history.settle(&state.host);
        }
    }
}
