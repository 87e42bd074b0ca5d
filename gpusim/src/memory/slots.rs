//! Slots: parts of an allocation that a program hands out on its own, as the allocator of one arena does.
//!
//! An allocation in which a slot was ever announced is accessible within live slots only, and for a kernel only within those that
//! one of its parameters points into. So what a kernel does beside its slot is found although the bytes are the program's own.

use std::sync::Arc;

use super::{Allocation, Device, MemoryError, Refusal};

/// What happens to a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotEvent {
    /// It begins to be; nobody has written its bytes.
    Birth,
    /// It begins to be over bytes that keep their values, as the result of a computation in place does.
    Adoption,
    /// It ends.
    Death,
}

#[derive(Clone, Debug)]
pub(crate) struct Slot {
    start: u64,
    end: u64,
    name: Arc<str>,
    is_live: bool,
    /// The launch that has a parameter which points into it.
    bound: u64,
}

impl Slot {
    const fn may_be_accessed(&self, launch: u64) -> bool {
        self.is_live && self.bound == launch
    }
}

impl Allocation {
    /// Whether a range lies in a slot that a launch may access.
    pub(super) fn slots_hold(&self, at: u64, bytes: u64, launch: u64) -> bool {
        self.slot(at)
            .is_some_and(|s| s.may_be_accessed(launch) && at + bytes <= s.end)
    }

    /// The slot that holds an offset.
    fn slot(&self, at: u64) -> Option<&Slot> {
        let index = self.slots.partition_point(|s| s.start <= at).checked_sub(1)?;
        Some(&self.slots[index]).filter(|s| at < s.end)
    }

    /// Where an offset is among the slots, in words.
    pub(super) fn slot_neighbourhood(&self, at: u64, launch: u64) -> String {
        if let Some(slot) = self.slot(at) {
            let name = &slot.name;
            let (inside, bytes) = (at - slot.start, slot.end - slot.start);
            return if !slot.is_live {
                format!("{inside} bytes into slot `{name}`, which is dead")
            } else if slot.bound == launch {
                format!("{inside} bytes into slot `{name}` of {bytes} bytes")
            } else {
                format!("{inside} bytes into slot `{name}`, which no parameter of the launch points into")
            };
        }
        let index = self.slots.partition_point(|s| s.start <= at);
        let below = index.checked_sub(1).map(|i| &self.slots[i]);
        match (below, self.slots.get(index)) {
            (Some(s), _) => {
                let (past, bytes) = (at - s.end, s.end - s.start);
                format!("{past} bytes past slot `{}` of {bytes} bytes", s.name)
            }
            (None, Some(s)) => format!("{} bytes before slot `{}`", s.start - at, s.name),
            (None, None) => String::new(),
        }
    }
}

impl Device {
    /// Announces what happens to a slot. A slot that begins replaces those that it overlaps, what is left of them included; one
    /// without bytes is none.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`] if no allocation holds the range, [`MemoryError::NotAllocated`] if a slot that ends is none.
    pub fn slot(&mut self, event: SlotEvent, address: u64, bytes: u64, name: &str) -> Result<(), MemoryError> {
        let (index, at) = self.range(address, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        let allocation = &mut self.allocations[index];
        let start = at as u64;
        let end = start + bytes;
        if event == SlotEvent::Death {
            let found = allocation.slots.iter_mut().find(|s| s.start == start && s.is_live);
            let slot = found.ok_or(MemoryError::NotAllocated(address))?;
            slot.is_live = false;
            return Ok(());
        }
        if event == SlotEvent::Birth {
            allocation.forget(at, bytes as usize);
        }
        allocation.slots.retain(|s| s.end <= start || s.start >= end);
        let slot = Slot {
            start,
            end,
            name: name.into(),
            is_live: true,
            bound: 0,
        };
        let place = allocation.slots.partition_point(|s| s.start < start);
        allocation.slots.insert(place, slot);
        Ok(())
    }

    /// Says where a range lies if it is in an allocation with slots and in no live one of them: what a copy must not do.
    pub fn outside_of_slots(&self, address: u64, bytes: u64) -> Option<String> {
        let (index, at) = self.range(address, bytes).ok()?;
        let allocation = &self.allocations[index];
        if allocation.slots.is_empty() || bytes == 0 {
            return None;
        }
        let slot = allocation.slot(at as u64);
        if slot.is_some_and(|s| s.is_live && at as u64 + bytes <= s.end) {
            return None;
        }
        // What is named is the first byte that is in no live slot.
        let end = at as u64 + bytes;
        let wrong = slot.filter(|s| s.is_live).map_or(at as u64, |s| s.end.min(end));
        Some(allocation.slot_neighbourhood(wrong, u64::MAX))
    }

    /// Lets the launch that begins access the slots that its parameters point into.
    pub(crate) fn bind_slots(&mut self, params: &[u8]) {
        self.launches += 1;
        let launch = self.launches;
        for word in params.chunks_exact(8) {
            let address = u64::from_le_bytes(word.try_into().unwrap_or_default());
            let mut hint = usize::MAX;
            let index = match self.find(address, 0, &mut hint) {
                Ok((index, _)) => index,
                Err(Refusal::Slot) => hint,
                Err(Refusal::Nowhere | Refusal::Freed) => continue,
            };
            let Some(allocation) = self.allocations.get_mut(index) else {
                continue;
            };
            let at = address - allocation.base;
            let Some(place) = allocation.slots.partition_point(|s| s.start <= at).checked_sub(1) else {
                continue;
            };
            if at < allocation.slots[place].end {
                allocation.slots[place].bound = launch;
            }
        }
    }
}
