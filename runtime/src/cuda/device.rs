//! A GPU as the driver of plans sees it: queues are streams, marks are events.
//!
//! Invariants:
//! - Whatever an executable made on the device (streams, events, modules) goes with it.
//! - An event is used again once what it was recorded behind is done. A mark whose event is gone has been reached.
//! - Nobody waits for the device while a lock is held.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;
use tlc_ir::target::EmitterId;

use super::compile::{self, Loaded};
use super::context::Context;
use super::library::{Address, Handle};
use crate::binding::product::{BoundProduct, Prepared};
use crate::binding::steps::BoundLaunch;
use crate::device::{Device, KernelHandle, Mark, Peer, Places, Queued, ToLoad};
use crate::error::{JitError, RunError};

/// `CU_STREAM_NON_BLOCKING`: it does not wait for the default stream, which nothing here uses.
const STREAM_FLAGS: u32 = 1;
/// `CU_EVENT_DISABLE_TIMING`: such events take less.
const EVENT_FLAGS: u32 = 2;

/// A device for an executable whose plan calls it by that number.
#[must_use]
pub fn queued(context: &Arc<Context>, number: usize) -> Arc<dyn Queued> {
    Arc::new(Gpu {
        context: Arc::clone(context),
        number,
        state: Mutex::default(),
    })
}

struct Gpu {
    context: Arc<Context>,
    /// In the plan.
    number: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    queues: BTreeMap<u32, Queue>,
    /// Events that nothing waits for.
    free: Vec<Handle>,
    loaded: Vec<Loaded>,
    /// By number of a [`KernelHandle`]: the function, and its name.
    kernels: Vec<(Handle, String)>,
    /// What was allocated, by address.
    memory: BTreeMap<Address, usize>,
}

// SAFETY: the handles are the driver's, which takes them on every thread.
unsafe impl Send for State {}

struct Queue {
    stream: Handle,
    /// Number of the latest mark.
    marked: u64,
    /// Marks that may not be reached yet, in their order.
    marks: VecDeque<(u64, Handle)>,
    /// The kernel that it was given last, by its number.
    last: Option<u64>,
}

impl Gpu {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, message: String) -> RunError {
        RunError::Device {
            device: self.number,
            message,
        }
    }

    /// The queue of that number.
    fn queue<'s>(&self, state: &'s mut State, queue: u32) -> Result<&'s mut Queue, RunError> {
        let vacant = match state.queues.entry(queue) {
            Entry::Occupied(known) => return Ok(known.into_mut()),
            Entry::Vacant(vacant) => vacant,
        };
        let mut stream: Handle = std::ptr::null_mut();
        // SAFETY: a valid place for the result.
        self.context.call(self.number, "cuStreamCreate", |d| unsafe {
            (d.cuStreamCreate)(&mut stream, STREAM_FLAGS)
        })?;
        Ok(vacant.insert(Queue {
            stream,
            marked: 0,
            marks: VecDeque::new(),
            last: None,
        }))
    }

    fn stream(&self, queue: u32) -> Result<Handle, RunError> {
        Ok(self.queue(&mut self.state(), queue)?.stream)
    }

    /// Says of an error that showed while the host waited which kernel was last in that queue: what failed is it or one before.
    fn blamed(&self, queue: u32, error: RunError) -> RunError {
        let RunError::Device { device, message } = error else {
            return error;
        };
        let state = self.state();
        // A queue that was given no kernel waited for others.
        let own = state.queues.get(&queue).and_then(|q| q.last);
        let last = own.or_else(|| state.queues.values().filter_map(|q| q.last).max());
        let message = match last.and_then(|k| state.kernels.get(k as usize)) {
            Some((_, name)) => format!("{message}, in or before kernel `{name}`"),
            None => message,
        };
        RunError::Device { device, message }
    }

    fn launched(&self, queue: u32, l: &BoundLaunch, at: &Places<'_, KernelHandle>) -> Result<(), RunError> {
        if l.extent == 0 {
            return Ok(());
        }
        let mut state = self.state();
        let kernel = at.kernel(l).copied().filter(|k| (k.0 as usize) < state.kernels.len());
        let (Some(KernelHandle(kernel)), Some(threads)) = (kernel, l.block_threads) else {
            return Err(self.failed(format!("kernel {} is not loaded", l.kernel)));
        };
        let function = state.kernels[kernel as usize].0;
        let to = self.queue(&mut state, queue)?;
        to.last = Some(kernel);
        let stream = to.stream;
        let args = &at.args[l.first_arg..l.first_arg + l.args.len()];
        let addresses = args.iter().map(|a| a.addr() as u64);
        let symbols = l.symbols.iter().map(|s| *s as u64);
        let mut values: SmallVec<[u64; 32]> = addresses.chain(symbols).collect();
        let values = values.iter_mut().map(|v| std::ptr::from_mut(v).cast::<c_void>());
        let mut params: SmallVec<[*mut c_void; 32]> = values.collect();
        // SAFETY: the function has a pointer for each buffer and a 64-bit integer for each symbol, in this order, as the emitter writes
        // them; the caller of `launch` promises what they point to. A binding's grid is below the limit.
        self.context
            .call(self.number, "cuLaunchKernel", |d| unsafe {
                (d.cuLaunchKernel)(
                    function,
                    l.extent as u32,
                    1,
                    1,
                    threads,
                    1,
                    1,
                    0,
                    stream,
                    params.as_mut_ptr(),
                    std::ptr::null_mut(),
                )
            })
            .map_err(|e| {
                drop(state);
                self.blamed(queue, e)
            })
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
        let (loaded, functions) = compile::load(&self.context, self.number, kernels, threads)?;
        let mut state = self.state();
        let first = state.kernels.len();
        state.loaded.extend(loaded);
        state.kernels.extend(functions);
        Ok((first..state.kernels.len()).map(|k| KernelHandle(k as u64)).collect())
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
        _: u32,
        _: &BoundProduct,
        (): &(),
        _: &mut Places<'_, KernelHandle>,
    ) -> Result<(), RunError> {
        Err(self.failed("a bug in tlc: there is no library of products here".into()))
    }

    unsafe fn copy(&self, queue: u32, from: *const u8, to: *mut u8, bytes: usize) -> Result<(), RunError> {
        if bytes == 0 {
            return Ok(());
        }
        let (stream, from, to) = (self.stream(queue)?, from.addr() as u64, to.addr() as u64);
        // SAFETY: the caller's promise.
        self.context.call(self.number, "cuMemcpyDtoDAsync_v2", |d| unsafe {
            (d.cuMemcpyDtoDAsync_v2)(to, from, bytes, stream)
        })
    }

    unsafe fn fill(&self, queue: u32, to: *mut u8, byte: u8, bytes: usize) -> Result<(), RunError> {
        if bytes == 0 {
            return Ok(());
        }
        let (stream, to) = (self.stream(queue)?, to.addr() as u64);
        // SAFETY: the caller's promise.
        self.context.call(self.number, "cuMemsetD8Async", |d| unsafe {
            (d.cuMemsetD8Async)(to, byte, bytes, stream)
        })
    }
}

impl Queued for Gpu {
    fn allocate(&self, bytes: usize) -> Result<*mut u8, RunError> {
        // Not nothing, so that each buffer has an address of its own. The driver aligns to 256 bytes.
        let bytes = bytes.max(1);
        let address = self.context.allocate(self.number, bytes)?;
        self.state().memory.insert(address, bytes);
        Ok(std::ptr::without_provenance_mut(address as usize))
    }

    unsafe fn release(&self, start: *mut u8) {
        let address = start.addr() as u64;
        let known = self.state().memory.remove(&address);
        if let Some(bytes) = known {
            // SAFETY: it was allocated here, and the caller promises that nothing touches it.
            unsafe { self.context.free(address, bytes) };
        }
    }

    unsafe fn upload(&self, queue: u32, from: *const u8, to: *mut u8, bytes: usize) -> Result<(), RunError> {
        if bytes == 0 {
            return Ok(());
        }
        let (stream, to) = (self.stream(queue)?, to.addr() as u64);
        // SAFETY: the caller's promise; it waits for the queue before it lets go of the host's memory.
        self.context.call(self.number, "cuMemcpyHtoDAsync_v2", |d| unsafe {
            (d.cuMemcpyHtoDAsync_v2)(to, from.cast(), bytes, stream)
        })
    }

    unsafe fn download(&self, queue: u32, from: *const u8, to: *mut u8, bytes: usize) -> Result<(), RunError> {
        if bytes == 0 {
            return Ok(());
        }
        let (stream, from) = (self.stream(queue)?, from.addr() as u64);
        // SAFETY: as in `upload`.
        let done = self.context.call(self.number, "cuMemcpyDtoHAsync_v2", |d| unsafe {
            (d.cuMemcpyDtoHAsync_v2)(to.cast(), from, bytes, stream)
        });
        done.map_err(|e| self.blamed(queue, e))
    }

    unsafe fn exchange(&self, _: u32, _: Peer, _: *const u8, _: *mut u8, _: usize) -> Result<(), RunError> {
        // Plans go through the host unless they are told of a link.
        Err(self.failed("there is no link to another device".into()))
    }

    fn mark(&self, queue: u32) -> Result<Mark, RunError> {
        let mut state = self.state();
        let stream = self.queue(&mut state, queue)?.stream;
        let event = match state.free.pop() {
            Some(event) => event,
            None => {
                let mut event: Handle = std::ptr::null_mut();
                // SAFETY: a valid place for the result.
                self.context.call(self.number, "cuEventCreate", |d| unsafe {
                    (d.cuEventCreate)(&mut event, EVENT_FLAGS)
                })?;
                event
            }
        };
        // SAFETY: both are of this context and alive.
        let recorded = self.context.call(self.number, "cuEventRecord", |d| unsafe {
            (d.cuEventRecord)(event, stream)
        });
        if let Err(e) = recorded {
            state.free.push(event);
            return Err(e);
        }
        let of = self.queue(&mut state, queue)?;
        of.marked += 1;
        let number = of.marked;
        of.marks.push_back((number, event));
        Ok(Mark {
            device: self.number,
            queue,
            number,
        })
    }

    fn wait(&self, queue: u32, mark: Mark) -> Result<(), RunError> {
        if mark.device != self.number {
            return Err(self.failed("it cannot wait for another device".into()));
        }
        let mut state = self.state();
        let stream = self.queue(&mut state, queue)?.stream;
        let marks = state.queues.get(&mark.queue).map(|q| &q.marks);
        let event = marks.and_then(|m| m.iter().find(|m| m.0 == mark.number));
        let Some(&(_, event)) = event else {
            return Ok(());
        };
        // SAFETY: both are of this context and alive; the lock keeps the event from being used again.
        self.context.call(self.number, "cuStreamWaitEvent", |d| unsafe {
            (d.cuStreamWaitEvent)(stream, event, 0)
        })
    }

    fn reach(&self, mark: Mark) -> Result<(), RunError> {
        let event = {
            let state = self.state();
            let marks = state.queues.get(&mark.queue).map(|q| &q.marks);
            marks.and_then(|m| m.iter().find(|m| m.0 == mark.number).map(|m| m.1))
        };
        let Some(event) = event else {
            return Ok(());
        };
        // SAFETY: events live as long as `self`. Who uses it again meanwhile has seen it reached, and this waits for longer.
        let done = self.context.call(self.number, "cuEventSynchronize", |d| unsafe {
            (d.cuEventSynchronize)(event)
        });
        done.map_err(|e| self.blamed(mark.queue, e))?;
        self.reached(mark.queue, mark.number);
        Ok(())
    }

    fn settle(&self, queue: u32) -> Result<(), RunError> {
        let (stream, marked) = {
            let state = self.state();
            let Some(queue) = state.queues.get(&queue) else {
                return Ok(());
            };
            (queue.stream, queue.marked)
        };
        // SAFETY: streams live as long as `self`.
        let done = self.context.call(self.number, "cuStreamSynchronize", |d| unsafe {
            (d.cuStreamSynchronize)(stream)
        });
        done.map_err(|e| self.blamed(queue, e))?;
        self.reached(queue, marked);
        Ok(())
    }

    fn finish(&self) {
        let queues: SmallVec<[u32; 8]> = self.state().queues.keys().copied().collect();
        for queue in queues {
            // What failed was reported, or the call failed before.
            let _ = self.settle(queue);
        }
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        self.finish();
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        // What fails here failed before: it goes with the device.
        for queue in state.queues.values() {
            for (_, event) in &queue.marks {
                state.free.push(*event);
            }
            // SAFETY: made here, destroyed once, and nothing runs in it any longer.
            let _ = self.context.quietly("cuStreamDestroy_v2", |d| unsafe {
                (d.cuStreamDestroy_v2)(queue.stream)
            });
        }
        for event in &state.free {
            // SAFETY: made here, destroyed once, and nothing waits for it.
            let _ = self
                .context
                .quietly("cuEventDestroy_v2", |d| unsafe { (d.cuEventDestroy_v2)(*event) });
        }
    }
}
