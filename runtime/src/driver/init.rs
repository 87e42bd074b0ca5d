//! What is computed once per executable: constants too large to fold, weights in another order or dtype.
//!
//! Invariants: the `init` steps run once, whoever calls first, while other callers wait; if they fail, the next call tries
//! again. What another executable keeps, or a file has, is not made again: of the steps run those that make what is missing. What only `init` steps
//! read is freed when they are done. Nothing here depends on a binding: the sizes of what lives as long as the executable are constants.

use std::sync::Arc;

use tlc_ir::plan::recipe::{Init, Piece};
use tlc_ir::plan::{DeviceId, SlotId, Storage};

use super::kept::{self, Buffer, Kept, KeptBefore, KeptName, KeptValue, Named};
use super::walk::{Finish, slot_text};
use super::{Bound, CallState, Executable, RunError, lock};
use crate::device::DeviceBuffer;
use crate::memory::AlignedBuffer;

impl Executable {
    /// Has the first call look for what it keeps among values that were kept before, and give names to what it keeps so that others may be told of
    /// it; see [`Executable::kept_values`].
    pub fn with_kept_before(mut self, before: Arc<KeptBefore>) -> Executable {
        self.kept_before = Some(before);
        self
    }

    /// What it keeps under names, once a call has run; nothing without [`Executable::with_kept_before`].
    pub fn kept_values(&self) -> impl Iterator<Item = KeptValue> {
        self.kept.get().into_iter().flat_map(Kept::values)
    }

    /// As [`Executable::kept_values`], of those of which it is certain that the bytes are what the names stand for: constants in a mapped file that
    /// somebody has written to since the first call began are others. Reads all constants that values were made of.
    pub fn certain_kept_values(&self) -> Vec<KeptValue> {
        let kept = self.kept.get();
        kept.map_or_else(Vec::new, |kept| kept.certain_values(&self.plan, &self.emitters))
    }

    /// The results of the `init` steps; the first call computes them. `binding` is any binding of the plan.
    pub(super) fn kept(&self, binding: &Bound) -> Result<&Kept, RunError> {
        if let Some(kept) = self.kept.get() {
            return Ok(kept);
        }
        let _one_at_a_time = lock(&self.initializing);
        if let Some(kept) = self.kept.get() {
            return Ok(kept);
        }
        let kept = self.initialize(binding)?;
        Ok(self.kept.get_or_init(|| kept))
    }

    /// The value of a name, from another executable or from a file.
    fn kept_elsewhere(&self, value: &Named, beyond: Option<&KeptName>) -> Option<Buffer> {
        if let Some(number) = value.other {
            let shared = kept::find_there(&value.here)?;
            return Some(Buffer::SharedThere(shared, Arc::clone(&self.others[number - 1])));
        }
        if let Some(shared) = kept::find(&value.here) {
            return Some(Buffer::Shared(shared));
        }
        let before = self.kept_before.as_ref()?.get(&beyond?.to_string())?;
        (before.bytes().len() == value.bytes.next_multiple_of(kept::ALIGN)).then(|| Buffer::Before(before.clone()))
    }

    /// By slot: whether a step of a call touches it.
    fn read_by_calls(&self) -> Vec<bool> {
        let plan = &self.plan;
        let mut read = vec![false; plan.slots.len()];
        for step in &plan.steps {
            step.visit_slots(&mut |s, _| read[plan.root(s).0 as usize] = true, &plan.kernels);
        }
        read
    }

    /// Bytes of what it would keep on a device beside the host that other executables keep there already.
    pub(super) fn kept_there_already(&self, slot_bytes: &[u64], device: DeviceId) -> u64 {
        let plan = &self.plan;
        let init = Init::of(plan);
        let read = self.read_by_calls();
        let named = kept::named((plan, &init), &self.emitters, &self.others, &read, slot_bytes);
        let here = named.iter().filter(|v| v.other == Some(device.0 as usize));
        let there = here.filter(|v| kept::find_there(&v.here).is_some());
        there.map(|v| v.bytes as u64).sum()
    }

    fn initialize(&self, binding: &Bound) -> Result<Kept, RunError> {
        let _span = tracing::info_span!("init", plan = %self.plan.name, steps = self.plan.init.len()).entered();
        let plan = &self.plan;
        let slots = plan.slots.len();
        let mut buffers: Vec<Option<Buffer>> = (0..slots).map(|_| None).collect();
        if plan.init.is_empty() {
            return Ok(Kept {
                buffers,
                named: Vec::new(),
            });
        }
        let read = self.read_by_calls();
        let sizes = &binding.sizes.slot_bytes;
        let init = Init::of(plan);
        let named = kept::named((plan, &init), &self.emitters, &self.others, &read, sizes);
        let beyond = match self.kept_before {
            // What is on other devices is in no file.
            Some(_) if self.others.is_empty() => kept::beyond(plan, &named, &self.emitters, self.threads())?,
            _ => Vec::new(),
        };
        for (i, value) in named.iter().enumerate() {
            buffers[value.slot] = self.kept_elsewhere(value, beyond.get(i));
        }
        let pieces = self.missing(&init, &read, &mut buffers);

        let threads = self.threads().threads() as u64;
        let mut state = CallState::new()?;
        state.scratch = AlignedBuffer::zeroed(binding.scratch_bytes.saturating_mul(threads) as usize)?;
        state.frame.fit(binding, plan.devices.len());
        // By slot: the last step that touches it, of those that run.
        let mut last = vec![None; slots];
        for &piece in &pieces {
            init.visit(piece, &mut |root, _| last[root.0 as usize] = Some(piece.0));
        }
        for (i, slot) in plan.slots.iter().enumerate().filter(|(i, _)| last[*i].is_some()) {
            match &slot.storage {
                Storage::Constant(k) => {
                    state.frame.slots[i] = self.code.constant(i, &plan.constants[*k as usize]);
                }
                Storage::Persistent => {
                    let bytes = sizes[i] as usize;
                    let padded = bytes.next_multiple_of(kept::ALIGN);
                    let buffer = match (buffers[i].take(), slot.device.0.checked_sub(1)) {
                        (Some(found), _) => found,
                        (None, None) => Buffer::Host(AlignedBuffer::zeroed(padded)?),
                        (None, Some(other)) => {
                            let own = &self.others[other as usize];
                            let shared = named.iter().any(|value| value.slot == i);
                            let lasting = shared.then(|| own.lasting()).flatten();
                            let made = DeviceBuffer::new(lasting.as_ref().unwrap_or(own), bytes);
                            Buffer::Other(made.map_err(|e| e.needed_for(|| slot_text(plan, i)))?)
                        }
                    };
                    state.frame.slots[i] = buffers[i].insert(buffer).start();
                }
                Storage::Input(_)
                | Storage::Output(_)
                | Storage::State(_)
                | Storage::Arena
                | Storage::Alias(_)
                | Storage::Part { .. }
                | Storage::Lines => {}
            }
        }
        // Dropped before the buffers are, if a step fails.
        let finish = Finish(&self.others);
        let walk = self.walk(binding, &mut state.scratch);
        let mut left = pieces.iter().copied().peekable();
        while let Some((number, launch)) = left.next() {
            let step = &binding.init[number];
            let mut launches: Vec<usize> = launch.into_iter().collect();
            while let Some((_, also)) = left.next_if(|next| next.0 == number) {
                launches.extend(also);
            }
            walk.part(step, &launches, &mut state.frame)?;
            // The steps of `init` run one after another.
            walk.settle(&[(step.on, step.queue)])?;
            // Pages of a file that nothing reads again need not stay beside what was made of them.
            self.release_constants(&read, &|i| last[i] == Some(number));
        }
        if !beyond.is_empty() {
            // Those of which a name was made, and nothing else.
            self.release_constants(&read, &|i| last[i].is_none());
        }
        drop(finish);
        for (buffer, read) in buffers.iter_mut().zip(read) {
            buffer.take_if(|_| !read);
        }
        for value in &named {
            let buffer = &mut buffers[value.slot];
            let constants = || value.constants().iter().map(|k| plan.constants[*k as usize].clone());
            *buffer = match (buffer.take(), value.other) {
                (Some(Buffer::Host(data)), _) => {
                    Some(Buffer::Shared(kept::share(value.here, data, constants().collect())))
                }
                (Some(Buffer::Other(data)), Some(number)) => {
                    let own = Arc::clone(&self.others[number - 1]);
                    let shared = kept::share_there(value.here, data, constants().collect());
                    Some(Buffer::SharedThere(shared, own))
                }
                (other, _) => other,
            };
        }
        let in_a_file = buffers.iter().flatten().filter_map(|b| match b {
            Buffer::Before(t) => Some(t.clone()),
            Buffer::Host(_) | Buffer::Shared(_) | Buffer::Other(_) | Buffer::SharedThere(..) => None,
        });
        self.streamed.add(in_a_file.collect());
        Ok(Kept {
            buffers,
            // None of them without names beyond this process.
            named: named.into_iter().zip(beyond).collect(),
        })
    }

    /// Gives back the pages of constants that no step of a call reads, of those slots.
    fn release_constants(&self, read: &[bool], of: &dyn Fn(usize) -> bool) {
        for (i, slot) in self.plan.slots.iter().enumerate() {
            if let Storage::Constant(k) = slot.storage
                && !read[i]
                && of(i)
            {
                crate::mmap::release(self.plan.constants[k as usize].bytes());
            }
        }
    }

    /// What has to be done for the values that are not there. A value that would be written on the way to another is made as well: what others
    /// keep is not written.
    fn missing(&self, init: &Init<'_>, read: &[bool], buffers: &mut [Option<Buffer>]) -> Vec<Piece> {
        let plan = &self.plan;
        let persistent = |i: usize| matches!(plan.slots[i].storage, Storage::Persistent);
        loop {
            let absent = (0..plan.slots.len()).filter(|&i| persistent(i) && read[i] && buffers[i].is_none());
            let absent: Vec<SlotId> = absent.map(|i| SlotId(i as u32)).collect();
            let pieces = init.pieces_of(&absent, &|s| buffers[s.0 as usize].is_some());
            let mut written = Vec::new();
            for &piece in &pieces {
                init.visit(piece, &mut |root, writes| {
                    written.extend((writes && buffers[root.0 as usize].is_some()).then_some(root));
                });
            }
            if written.is_empty() {
                return pieces.into_iter().collect();
            }
            for root in written {
                buffers[root.0 as usize] = None;
            }
        }
    }
}
