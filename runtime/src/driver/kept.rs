//! Values that live as long as an executable, and what names them beyond it.
//!
//! A value has the name of its recipe: the steps that make it, the instructions they run by, and the constants they read. What two executables of
//! a process keep under one name is there once, for as long as one of them lives; and what a process has written to a file under its name, a
//! later one reads from there.
//!
//! Invariants:
//! - Equal names mean equal bytes. Within a process a constant is told from others by its address, which stays its own as long as the value is kept; beyond
//!   it by its bytes, for nothing that a system says of a file tells for sure that it has not changed.
//! - A value that was made is known beyond this process only if its constants have the bytes that they had when it was named: a file may have been
//!   written to while it was read.
//! - What is shared is never written again.
//! - A value on another device than the host is there for executables of this process alone, and is in memory that belongs to none of them.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use rustc_hash::FxHashMap;
use tlc_ir::plan::recipe::{Init, Recipe};
use tlc_ir::plan::{DeviceId, Plan, SlotId, Storage};
use tlc_ir::target::EmitterId;
use tlc_ir::tensor::BytesOwner;
use tlc_ir::{DType, HostTensor};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use super::lock;
use crate::cpu::level;
use crate::device::{DeviceBuffer, Queued};
use crate::memory::AlignedBuffer;
use crate::pool::{Pool, PoolPanic};

/// Smaller values are made by each executable: finding them would take longer. Builds with debug assertions look for all of them, so that random
/// graphs, which are small, try it.
const MIN_BYTES: usize = if cfg!(debug_assertions) { 1 } else { 16 << 10 };

/// What a name stands for besides what its recipe says. Another number where recipes, or the kernels in them, come to mean something else.
const MEANING: u32 = 1;

/// Bytes of a value that was kept before are a multiple of this: so are the places of values that lie one behind the other.
pub const ALIGN: usize = 64;

/// The name of a value that `init` steps make.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct KeptName(u128);

impl fmt::Display for KeptName {
    /// 32 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Values that were kept before, by the text of their names: their bytes, and zeros behind them.
pub type KeptBefore = FxHashMap<String, HostTensor>;

/// A value that an executable keeps.
#[derive(Clone, Debug)]
pub struct KeptValue {
    /// Its name beyond this process.
    pub name: KeptName,
    /// Its bytes (u8), with zeros behind them up to a multiple of [`KEPT_ALIGN`](super::KEPT_ALIGN).
    pub bytes: HostTensor,
    /// Whether they were kept before and not made.
    pub found: bool,
}

/// A value that executables share.
pub(super) struct Shared {
    data: AlignedBuffer,
    /// The constants that its name knows by their addresses.
    _constants: Vec<HostTensor>,
}

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        self.data.as_slice()
    }
}

/// A value in the memory of another device than the host that executables share.
pub(super) struct SharedThere {
    data: DeviceBuffer,
    /// The constants that its name knows by their addresses.
    _constants: Vec<HostTensor>,
}

/// Memory that lives as long as the executable.
pub(super) enum Buffer {
    /// Of this executable alone.
    Host(AlignedBuffer),
    /// Of every executable that keeps the value.
    Shared(Arc<Shared>),
    /// In a file.
    Before(HostTensor),
    /// Of another device.
    Other(DeviceBuffer),
    /// Of another device, for every executable that keeps the value there. The device's pool lives as long as an executable has the device,
    /// so that this one's goes behind the value.
    SharedThere(
        Arc<SharedThere>,
        #[expect(dead_code, reason = "it is there to be dropped last")] Arc<dyn Queued>,
    ),
}

impl Buffer {
    pub(super) fn start(&self) -> *mut u8 {
        match self {
            Buffer::Host(b) => b.as_ptr().cast_mut(),
            Buffer::Shared(s) => s.data.as_ptr().cast_mut(),
            // Pages of a file are small; see `placed`.
            Buffer::Before(t) => t.placed_bytes().unwrap_or_else(|| t.bytes()).as_ptr().cast_mut(),
            Buffer::Other(b) => b.start(),
            Buffer::SharedThere(s, _) => s.data.start(),
        }
    }
}

/// What the `init` steps left.
pub(super) struct Kept {
    /// By slot.
    pub(super) buffers: Vec<Option<Buffer>>,
    /// The values with names beyond this process, if those were asked for.
    pub(super) named: Vec<(Named, KeptName)>,
}

impl Kept {
    /// Where a slot's bytes are. They are only read.
    pub(super) fn address(&self, slot: usize) -> *mut u8 {
        let buffer = self.buffers.get(slot).and_then(Option::as_ref);
        buffer.map_or(std::ptr::null_mut(), Buffer::start)
    }

    fn value(&self, (value, name): &(Named, KeptName)) -> Option<KeptValue> {
        let (bytes, found) = match self.buffers[value.slot].as_ref()? {
            Buffer::Shared(shared) => {
                let owner: BytesOwner = shared.clone();
                let bytes = HostTensor::from_owner(DType::U8, &[shared.data.len()], &owner, 0);
                (bytes.ok()?, false)
            }
            Buffer::Before(bytes) => (bytes.clone(), true),
            Buffer::Host(_) | Buffer::Other(_) | Buffer::SharedThere(..) => return None,
        };
        Some(KeptValue {
            name: *name,
            bytes,
            found,
        })
    }

    /// The values with names beyond this process.
    pub(super) fn values(&self) -> impl Iterator<Item = KeptValue> {
        self.named.iter().filter_map(|n| self.value(n))
    }

    /// As [`Kept::values`], without those that were made and whose constants are no longer what they were when they were named.
    pub(super) fn certain_values(&self, plan: &Plan, emitters: &[EmitterId]) -> Vec<KeptValue> {
        let certain = |n: &&(Named, KeptName)| {
            let found = matches!(self.buffers[n.0.slot], Some(Buffer::Before(_)));
            found || n.0.beyond(plan, emitters) == n.1
        };
        self.named
            .iter()
            .filter(certain)
            .filter_map(|n| self.value(n))
            .collect()
    }
}

/// Values that executables of this process keep, by their names.
type Table<T> = OnceLock<Mutex<FxHashMap<KeptName, Weak<T>>>>;

/// Those of the host.
static SHARED: Table<Shared> = OnceLock::new();
/// Those of other devices.
static SHARED_THERE: Table<SharedThere> = OnceLock::new();

/// The value of that name in a table, if an executable of this process keeps it.
fn known<T>(table: &Table<T>, name: &KeptName) -> Option<Arc<T>> {
    lock(table.get_or_init(Mutex::default)).get(name)?.upgrade()
}

/// Puts a value in a table. One that was made meanwhile takes its place.
fn put<T>(table: &Table<T>, name: KeptName, value: T) -> Arc<T> {
    let mut all = lock(table.get_or_init(Mutex::default));
    if let Some(known) = all.get(&name).and_then(Weak::upgrade) {
        return known;
    }
    if all.len() == all.capacity() {
        all.retain(|_, value| value.strong_count() > 0);
    }
    let value = Arc::new(value);
    all.insert(name, Arc::downgrade(&value));
    value
}

/// The value of that name in the host's memory, if an executable of this process keeps it.
pub(super) fn find(name: &KeptName) -> Option<Arc<Shared>> {
    known(&SHARED, name)
}

/// Has other executables find a value under its name. One that was made meanwhile takes its place.
pub(super) fn share(name: KeptName, data: AlignedBuffer, constants: Vec<HostTensor>) -> Arc<Shared> {
    let value = Shared {
        data,
        _constants: constants,
    };
    put(&SHARED, name, value)
}

/// As [`find`], in the memory of another device.
pub(super) fn find_there(name: &KeptName) -> Option<Arc<SharedThere>> {
    known(&SHARED_THERE, name)
}

/// As [`share`], in the memory of another device, which has made it.
pub(super) fn share_there(name: KeptName, data: DeviceBuffer, constants: Vec<HostTensor>) -> Arc<SharedThere> {
    let value = SharedThere {
        data,
        _constants: constants,
    };
    put(&SHARED_THERE, name, value)
}

/// A value that may be kept under a name.
pub(super) struct Named {
    pub(super) slot: usize,
    /// Its bytes.
    pub(super) bytes: usize,
    /// The device whose memory it is in, from number 1 on; none for the host.
    pub(super) other: Option<usize>,
    /// In this process.
    pub(super) here: KeptName,
    recipe: Recipe,
}

impl Named {
    /// The constants of which it is made, by number.
    pub(super) fn constants(&self) -> &[u32] {
        &self.recipe.constants
    }

    /// Its name beyond this process, as its constants are now.
    fn beyond(&self, plan: &Plan, emitters: &[EmitterId]) -> KeptName {
        name((plan, &[]), &self.recipe, emitters, &|bytes| xxh3_128(bytes))
    }
}

/// The name of what a recipe makes, where the devices beside the host are those of these numbers in the system.
fn name(
    (plan, devices): (&Plan, &[u32]),
    recipe: &Recipe,
    emitters: &[EmitterId],
    constant: &dyn Fn(&[u8]) -> u128,
) -> KeptName {
    let mut hash = Xxh3::new();
    for part in [env!("CARGO_PKG_VERSION"), level::name(), &recipe.text] {
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    hash.update(&MEANING.to_le_bytes());
    for k in &recipe.kernels {
        let emitter = emitters.get(k.0 as usize).copied().unwrap_or_default();
        hash.update(format!("{emitter:?};").as_bytes());
    }
    for k in &recipe.constants {
        let bytes = plan.constants[*k as usize].bytes();
        hash.update(&(bytes.len() as u64).to_le_bytes());
        hash.update(&constant(bytes).to_le_bytes());
    }
    for ordinal in devices {
        hash.update(&ordinal.to_le_bytes());
    }
    KeptName(hash.digest128())
}

/// The names of values beyond this process, as their constants are now.
pub(super) fn beyond(
    plan: &Plan,
    values: &[Named],
    emitters: &[EmitterId],
    threads: &Pool,
) -> Result<Vec<KeptName>, PoolPanic> {
    let names: Vec<OnceLock<KeptName>> = values.iter().map(|_| OnceLock::new()).collect();
    threads.parallel_for(values.len() as u64, 1, &|_, begin, end| {
        for i in begin as usize..end as usize {
            let _ = names[i].set(values[i].beyond(plan, emitters));
        }
    })?;
    Ok(names.into_iter().filter_map(OnceLock::into_inner).collect())
}

/// The slots of values that calls read and that may be kept under names: where all is the host's, all of its, and else those of the other
/// devices, `others`, which have memory that outlives an executable.
pub(super) fn named(
    (plan, init): (&Plan, &Init<'_>),
    emitters: &[EmitterId],
    others: &[Arc<dyn Queued>],
    read: &[bool],
    slot_bytes: &[u64],
) -> Vec<Named> {
    let known = others.iter().map(|d| d.ordinal());
    let Some(ordinals) = known.collect::<Option<Vec<u32>>>() else {
        return Vec::new();
    };
    if plan.devices.len() != 1 + ordinals.len() {
        return Vec::new();
    }
    let slots = plan.slots.iter().zip(read).zip(slot_bytes).enumerate();
    let large = slots.filter(|(_, ((s, read), bytes))| {
        let there = ordinals.is_empty() || s.device != DeviceId::HOST;
        matches!(s.storage, Storage::Persistent) && **read && there && **bytes >= MIN_BYTES as u64
    });
    large
        .filter_map(|(slot, ((s, _), bytes))| {
            let recipe = init.recipe(SlotId(slot as u32))?;
            let constant = |bytes: &[u8]| bytes.as_ptr().addr() as u128;
            Some(Named {
                slot,
                bytes: *bytes as usize,
                other: (s.device != DeviceId::HOST).then_some(s.device.0 as usize),
                here: name((plan, &ordinals), &recipe, emitters, &constant),
                recipe,
            })
        })
        .collect()
}

/// Bytes that an executable of a plan would keep of which no executable of this process has a copy that it could share. `emitters` are those of
/// the plan's own kernels.
pub fn kept_bytes_to_make(plan: &Plan, emitters: &[EmitterId]) -> u64 {
    let bytes = |s: &tlc_ir::plan::Slot| match s.storage {
        Storage::Persistent => u64::try_from(s.len.as_const()?)
            .ok()?
            .checked_mul(s.dtype.bytes() as u64),
        _ => None,
    };
    let slot_bytes: Vec<u64> = plan.slots.iter().map(|s| bytes(s).unwrap_or(0)).collect();
    let read = vec![true; plan.slots.len()];
    let shared = named((plan, &Init::of(plan)), emitters, &[], &read, &slot_bytes);
    let shared = shared.iter().filter(|value| find(&value.here).is_some());
    let shared: u64 = shared.map(|value| value.bytes as u64).sum();
    slot_bytes.iter().sum::<u64>().saturating_sub(shared)
}
