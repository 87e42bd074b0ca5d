//! What the driver asks of a device: memory, kernels, and work in queues.
//!
//! A slot of a plan is on one device, and during a call it has an address in that device's memory: the beginning of a buffer that the
//! driver allocated there, and an offset that the layout says. The driver hands addresses around as pointers; only the device they
//! belong to reads or writes what they point to.
//!
//! The first device of a plan is the [`Host`]: what it is asked to do is done when it returns. The others are [`Queued`]: they only
//! take work into their queues, which they go through beside each other, each in its order. A [`Mark`] stands for all that a queue
//! was given so far; other queues and the host wait for marks.

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Weak};

use tlc_ir::Kernel;
use tlc_ir::target::EmitterId;

use crate::binding::call::BoundCall;
use crate::binding::product::{BoundProduct, Prepared};
use crate::binding::steps::BoundLaunch;
pub use crate::binding::steps::Joining;
use crate::error::RunError;

/// Where a call has what its steps need, as the device sees it that runs one of them.
pub struct Places<'a, K> {
    /// The plan's kernels, by number; those of other devices are missing.
    pub kernels: &'a [Option<K>],
    /// The same kernels, for launches that are [in place](BoundLaunch::in_place).
    pub in_place: &'a [Option<K>],
    /// Where each slot is, in the memory of its device.
    pub slots: &'a [*mut u8],
    /// The addresses that launches are given, from [`BoundLaunch::first_arg`] on.
    pub args: &'a [*mut u8],
    /// Counters of the host's products, at least as many as one of them needs.
    pub counters: &'a mut [AtomicU32],
    /// Scratch of the host's workers.
    pub scratch: Scratch,
    /// Where the panels of a product's operand begin, if the call has it in panels; otherwise null.
    pub packed: *mut u8,
}

impl<K> Places<'_, K> {
    /// The kernel of a launch, if this device has it.
    #[inline]
    pub fn kernel(&self, l: &BoundLaunch) -> Option<&K> {
        let all = if l.in_place { self.in_place } else { self.kernels };
        all[l.kernel].as_ref()
    }
}

/// A kernel that a device is asked to load.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ToLoad<'k> {
    /// The kernel.
    pub kernel: &'k Kernel,
    /// What makes it, by its number among the device's emitters.
    pub emitter: EmitterId,
    /// Whether a buffer that it writes may be one that it reads as well.
    pub in_place: bool,
}

/// Launches that a device is asked to load as one kernel.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ToJoin<'k> {
    /// How they run.
    pub joining: Joining,
    /// The distinct kernels.
    pub kernels: Vec<ToLoad<'k>>,
    /// Of each launch, the number of its kernel among them.
    pub order: Vec<usize>,
}

/// Scratch memory: an area for each worker.
#[derive(Clone, Copy)]
pub struct Scratch {
    /// The first area.
    pub start: *mut u8,
    /// Bytes of each.
    pub bytes: u64,
}

/// What a queue of a device was given so far.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Mark {
    /// The device, by its number in the plan.
    pub device: usize,
    /// The queue, by its number among those of the device.
    pub queue: u32,
    /// How much.
    pub number: u64,
}

/// Queues from this number on are for recording alone; see [`Recorder`].
pub const RECORDED: u32 = 1 << 16;

/// Runs steps of a plan.
///
/// Queues are numbered from 0 on each device, and exist as soon as they are named. The host ignores them.
pub trait Device: Send + Sync {
    /// A loaded kernel.
    type Kernel: Clone + Send + Sync;
    /// What it decides about a product when its sizes are known.
    type Product: Send + Sync;

    /// Loads kernels, each made by the emitter that is said; on so many threads, if that is work for several.
    ///
    /// # Errors
    /// If there is no such emitter, or a kernel cannot be made or loaded.
    fn load(&self, kernels: &[ToLoad<'_>], threads: usize) -> Result<Vec<Self::Kernel>, RunError>;

    /// Decides about a product.
    fn prepare(&self, product: &BoundProduct) -> Prepared<Self::Product>;

    /// Runs kernels that do not depend on each other; on one thread, if they are to be `alone`.
    ///
    /// # Safety
    /// The places are those of the binding that the launches are of, every slot they name is on this device and has the bytes that the
    /// binding says, and nothing else touches what they write, or writes what they read, until they are done.
    ///
    /// # Errors
    /// If they cannot be run.
    unsafe fn launch(
        &self,
        queue: u32,
        launches: &[BoundLaunch],
        alone: bool,
        at: &Places<'_, Self::Kernel>,
    ) -> Result<(), RunError>;

    /// Computes a product, and runs the kernel behind it.
    ///
    /// # Safety
    /// As for [`Device::launch`].
    ///
    /// # Errors
    /// As [`Device::launch`].
    unsafe fn multiply(
        &self,
        queue: u32,
        product: &BoundProduct,
        choice: &Self::Product,
        at: &mut Places<'_, Self::Kernel>,
    ) -> Result<(), RunError>;

    /// Copies bytes within the memory of the device.
    ///
    /// # Safety
    /// Both places have the bytes and do not overlap, and nothing else touches what is written, or writes what is read, until it is
    /// done.
    ///
    /// # Errors
    /// If it cannot be done.
    unsafe fn copy(&self, queue: u32, from: *const u8, to: *mut u8, bytes: usize) -> Result<(), RunError>;

    /// Sets bytes in the memory of the device.
    ///
    /// # Safety
    /// As for [`Device::copy`].
    ///
    /// # Errors
    /// As [`Device::copy`].
    unsafe fn fill(&self, queue: u32, to: *mut u8, byte: u8, bytes: usize) -> Result<(), RunError>;
}

/// The device that goes through a plan.
pub trait Host: Device {
    /// Whether memory holds values. Without them a loop's body is gone through once, between [`Host::enter`] and [`Host::leave`].
    const VALUES: bool;

    /// Runs a host function; returns the symbol that it binds, and its value.
    ///
    /// # Safety
    /// As for [`Device::launch`].
    ///
    /// # Errors
    /// If it cannot be run.
    unsafe fn call(&self, call: &BoundCall, at: &Places<'_, Self::Kernel>) -> Result<Option<(usize, i64)>, RunError>;

    /// Says that the body of a loop follows, without values.
    fn enter(&self) {}

    /// Says that the body has been gone through, in place of so many times. `known` says whether a call with values would run it as
    /// often.
    fn leave(&self, times: u64, known: bool) {
        let _ = (times, known);
    }
}

/// The memory of a device beside the host, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// The device, by the number that users give it and its name.
    pub device: String,
    /// What is free.
    pub free: u64,
    /// All there is.
    pub total: u64,
}

/// A device beside the host.
pub trait Queued: Device<Kernel = KernelHandle, Product = ()> {
    /// Allocates memory, aligned to [`ALIGNMENT`](crate::memory::ALIGNMENT).
    ///
    /// # Errors
    /// If it has none left.
    fn allocate(&self, bytes: usize) -> Result<*mut u8, RunError>;

    /// What memory it has, unless that is the host's.
    ///
    /// # Errors
    /// If the device failed.
    fn room(&self) -> Result<Option<Room>, RunError> {
        Ok(None)
    }

    /// Returns memory.
    ///
    /// # Safety
    /// It was allocated here, and nothing that still runs touches it.
    unsafe fn release(&self, start: *mut u8);

    /// Copies from the host's memory.
    ///
    /// # Safety
    /// As for [`Device::copy`], `from` in the host's memory.
    ///
    /// # Errors
    /// As [`Device::copy`].
    unsafe fn upload(&self, queue: u32, from: *const u8, to: *mut u8, bytes: usize) -> Result<(), RunError>;

    /// Copies to the host's memory.
    ///
    /// # Safety
    /// As for [`Device::copy`], `to` in the host's memory.
    ///
    /// # Errors
    /// As [`Device::copy`].
    unsafe fn download(&self, queue: u32, from: *const u8, to: *mut u8, bytes: usize) -> Result<(), RunError>;

    /// Copies from the memory of another device beside the host to this one's, or the other way.
    ///
    /// # Safety
    /// As for [`Device::copy`], the other place in the memory of the other device.
    ///
    /// # Errors
    /// As [`Device::copy`].
    unsafe fn exchange(
        &self,
        queue: u32,
        other: Peer,
        from: *const u8,
        to: *mut u8,
        bytes: usize,
    ) -> Result<(), RunError>;

    /// A mark behind all that a queue was given.
    ///
    /// # Errors
    /// If the device failed.
    fn mark(&self, queue: u32) -> Result<Mark, RunError>;

    /// Has a queue wait for a mark, of any device.
    ///
    /// # Errors
    /// If the device failed.
    fn wait(&self, queue: u32, mark: Mark) -> Result<(), RunError>;

    /// Has the host wait for a mark of this device.
    ///
    /// # Errors
    /// If what led to it failed.
    fn reach(&self, mark: Mark) -> Result<(), RunError>;

    /// Has the host wait for all that a queue was given.
    ///
    /// # Errors
    /// If that failed.
    fn settle(&self, queue: u32) -> Result<(), RunError>;

    /// Whether a sequence or a group of launches is one launch here. Else its kernels are loaded as others are.
    fn joins_launches(&self) -> bool {
        false
    }

    /// Loads launches that are one step, each as one kernel: where they are one launch.
    ///
    /// # Errors
    /// As [`Device::load`].
    fn load_joined(&self, joined: &[ToJoin<'_>], threads: usize) -> Result<Vec<KernelHandle>, RunError> {
        let _ = (joined, threads);
        Ok(Vec::new())
    }

    /// Runs kernels in turn, or independent ones beside each other: as one launch of the kernel that was loaded of them, or one after
    /// another.
    ///
    /// # Safety
    /// As for [`Device::launch`], but that in turn each may touch what those before it do.
    ///
    /// # Errors
    /// As [`Device::launch`].
    unsafe fn launch_joined(
        &self,
        queue: u32,
        (launches, joining): (&[BoundLaunch], Joining),
        joined: Option<KernelHandle>,
        at: &Places<'_, KernelHandle>,
    ) -> Result<(), RunError> {
        let _ = (joining, joined);
        let mut each = launches.iter().map(std::slice::from_ref);
        // SAFETY: the caller's promise; a queue does one after another.
        each.try_for_each(|l| unsafe { self.launch(queue, l, false, at) })
    }

    /// The registers that a thread of a kernel takes, if that is known.
    fn registers(&self, kernel: KernelHandle) -> Option<u32> {
        let _ = kernel;
        None
    }

    /// The bytes of local memory that a thread of a kernel has, in which is what registers had no room for, if that is known.
    fn local_bytes(&self, kernel: KernelHandle) -> Option<u32> {
        let _ = kernel;
        None
    }

    /// Begins to take the time of what a queue is given from here on, or ends it; a device may take none.
    ///
    /// # Errors
    /// If the device failed.
    fn time(&self, queue: u32, ends: bool) -> Result<(), RunError> {
        let _ = (queue, ends);
        Ok(())
    }

    /// The nanoseconds between the two, as the device measured them, once the queue is settled; `None` if it does not.
    ///
    /// # Errors
    /// If the device failed.
    fn time_taken(&self, queue: u32) -> Result<Option<u64>, RunError> {
        let _ = queue;
        Ok(None)
    }

    /// The device as it is for memory that outlives an executable, where it has any such.
    fn lasting(&self) -> Option<Arc<dyn Queued>> {
        None
    }

    /// Has the host wait for all that the device was given. What fails meanwhile was reported or is not needed any longer.
    fn finish(&self);

    /// As [`Queued::allocate`], for memory that is returned with [`Queued::put_back`], which the device may keep for the next that wants as
    /// many bytes.
    ///
    /// # Errors
    /// As [`Queued::allocate`].
    fn take(&self, bytes: usize) -> Result<*mut u8, RunError> {
        self.allocate(bytes)
    }

    /// Returns memory that was [taken](Queued::take) with so many bytes.
    ///
    /// # Safety
    /// As for [`Queued::release`].
    unsafe fn put_back(&self, start: *mut u8, bytes: usize) {
        let _ = bytes;
        // SAFETY: the caller's promise.
        unsafe { self.release(start) };
    }

    /// Bytes of those of these buffers, each of so many bytes, that [`Queued::take`] has without new memory.
    fn spare(&self, sizes: &[usize]) -> u64 {
        let _ = sizes;
        0
    }

    /// Whether calls may return before it has done what they gave it.
    fn runs_behind_calls(&self) -> bool {
        false
    }

    /// What queues of other devices wait for a mark of this one by, unless it has been reached.
    fn event(&self, mark: Mark) -> Option<Event> {
        let _ = mark;
        None
    }

    /// Has a queue wait for an event of a device with the same memory, which is alive.
    ///
    /// # Errors
    /// If the device failed.
    fn wait_for_event(&self, queue: u32, event: Event) -> Result<(), RunError> {
        let _ = (queue, event);
        Ok(())
    }

    /// As [`Queued::take`], for who has queues wait for what still uses the memory, which is told.
    ///
    /// # Errors
    /// As [`Queued::allocate`].
    fn take_in_use(&self, bytes: usize) -> Result<(*mut u8, Vec<Use>), RunError> {
        Ok((self.take(bytes)?, Vec::new()))
    }

    /// As [`Queued::put_back`], of memory that may still be used.
    ///
    /// # Safety
    /// As for [`Queued::release`], but for these uses.
    unsafe fn put_back_in_use(&self, start: *mut u8, bytes: usize, uses: Vec<Use>) {
        // What failed is known where it was waited for, and uses nothing any longer.
        uses.iter().for_each(|u| drop(u.reach()));
        // SAFETY: the caller's promise.
        unsafe { self.put_back(start, bytes) };
    }

    /// Its number among those of the driver, if it is a GPU of one: those of one number have one memory.
    fn ordinal(&self) -> Option<u32> {
        None
    }

    /// Whether it finds accesses beside slots; see [`Queued::announce`].
    fn checks_slots(&self) -> bool {
        false
    }

    /// Says in a queue which slots begin and cease to live there.
    ///
    /// # Errors
    /// If the device failed.
    fn announce(&self, queue: u32, lives: &[SlotLife]) -> Result<(), RunError> {
        let _ = (queue, lives);
        Ok(())
    }

    /// What records for it, if it can.
    fn recorder(&self) -> Option<&dyn Recorder> {
        None
    }
}

/// Keeps what the queues of a device are given, and gives it to them again at once.
pub trait Recorder {
    /// Begins a recording in a queue, from [`RECORDED`] on: what it is given until [`Recorder::recorded`] is kept and not done. Other
    /// such queues take part from where they wait for a mark of it, and it waits for marks of theirs before the end. Buffers keep the
    /// addresses that they have now. Whoever calls this sees to it that one thread records at a time.
    ///
    /// # Errors
    /// If the device refuses.
    fn record(&self, queue: u32) -> Result<(), RunError>;

    /// Ends a recording; returns its number. `kernels` are the first and the last in it, for messages.
    ///
    /// # Errors
    /// If something in it could not be recorded. Then it is forgotten.
    fn recorded(&self, queue: u32, kernels: Option<(KernelHandle, KernelHandle)>) -> Result<u64, RunError>;

    /// Begins to change the addresses of a recording: what queues from [`RECORDED`] on are given until [`Recorder::amended`] is, operation
    /// by operation, what was recorded, at the addresses where buffers are now. One thread does so at a time, as in [`Recorder::record`].
    fn amend(&self, recording: u64);

    /// Ends that.
    ///
    /// # Errors
    /// If something was another operation, or the device refused. The recording is then worth nothing, but to be forgotten.
    fn amended(&self) -> Result<(), RunError>;

    /// Gives a queue what was recorded.
    ///
    /// # Safety
    /// As for what was recorded.
    ///
    /// # Errors
    /// If the device failed.
    unsafe fn replay(&self, queue: u32, recording: u64) -> Result<(), RunError>;

    /// Forgets a recording that nothing does any longer.
    fn forget(&self, recording: u64);

    /// Allocates memory of the host that recordings may copy from and to.
    ///
    /// # Errors
    /// If there is none left.
    fn allocate_host(&self, bytes: usize) -> Result<*mut u8, RunError>;

    /// Returns it.
    ///
    /// # Safety
    /// It was allocated so, and nothing that still runs touches it.
    unsafe fn release_host(&self, start: *mut u8);
}

/// The other end of a copy between two devices beside the host, by its number in the plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    /// Where the bytes come from.
    From(usize),
    /// Where they go.
    To(usize),
}

/// A kernel that a [`Queued`] device loaded, by a number of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct KernelHandle(pub u64);

/// Where the life of a slot begins or ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotLife {
    /// Its number in the plan.
    pub slot: usize,
    /// Where it is, in the memory of its device.
    pub start: *mut u8,
    /// Its bytes.
    pub bytes: usize,
    /// Whether it is born: until it is written nobody may read it. Otherwise it dies.
    pub born: bool,
}

/// What the queues of a driver's devices wait by, as the driver names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event(pub usize);

/// Work that a device was given and may not have done, by a mark behind it. A device that is gone has done it all.
#[derive(Clone)]
pub struct Use {
    device: Weak<dyn Queued>,
    mark: Mark,
}

impl Use {
    /// What a device was given before a mark of its own.
    pub fn new(device: &Arc<dyn Queued>, mark: Mark) -> Use {
        Use {
            device: Arc::downgrade(device),
            mark,
        }
    }

    /// Whether it is in the same queue as another: then the later of them comes after both.
    pub fn is_beside(&self, other: &Use) -> bool {
        self.device.ptr_eq(&other.device) && self.mark.queue == other.mark.queue
    }

    /// Whether the host knows that it is done.
    pub fn is_known_done(&self) -> bool {
        self.device.upgrade().is_none_or(|d| d.event(self.mark).is_none())
    }

    /// Has the host wait for it.
    ///
    /// # Errors
    /// If it failed.
    pub fn reach(&self) -> Result<(), RunError> {
        self.device.upgrade().map_or(Ok(()), |d| d.reach(self.mark))
    }

    /// Has a queue of a device with the same memory wait for it.
    ///
    /// # Errors
    /// If the device failed.
    pub fn before(&self, device: &Arc<dyn Queued>, queue: u32) -> Result<(), RunError> {
        let Some(of) = self.device.upgrade() else {
            return Ok(());
        };
        match Arc::ptr_eq(&of, device) {
            // A queue does one after another.
            true if self.mark.queue == queue => Ok(()),
            true => device.wait(queue, self.mark),
            // It stays alive meanwhile.
            false => of.event(self.mark).map_or(Ok(()), |e| device.wait_for_event(queue, e)),
        }
    }
}

/// Memory of a device beside the host, which it gets back.
pub(crate) struct DeviceBuffer {
    device: Arc<dyn Queued>,
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the driver hands the address around and never reads or writes through it; devices are `Sync`.
unsafe impl Send for DeviceBuffer {}
// SAFETY: as above.
unsafe impl Sync for DeviceBuffer {}

impl DeviceBuffer {
    /// Allocates memory.
    pub(crate) fn new(device: &Arc<dyn Queued>, bytes: usize) -> Result<DeviceBuffer, RunError> {
        Ok(DeviceBuffer {
            start: device.allocate(bytes)?,
            bytes,
            device: Arc::clone(device),
        })
    }

    /// Its address.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start
    }

    /// Its size.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The device.
    pub(crate) fn device(&self) -> &Arc<dyn Queued> {
        &self.device
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        // SAFETY: it was allocated there, and calls wait for what they gave the device before they let go of memory.
        unsafe { self.device.release(self.start) };
    }
}
