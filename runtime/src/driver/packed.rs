//! Operands of products that stay as they are between calls, in the layout in which products read them where they lie.
//!
//! A product copies an operand panel by panel in every call if its elements do not lie as the micro-kernels read them. Where the operand is a
//! state that nobody changes any longer, the copy is made once, by the first call that needs it, and kept beside the state's
//! bytes: whoever shares those shares the copies.
//!
//! Invariants:
//! - A copy is made of bytes that stay as they are as long as it lives. It is never written again, and never dropped before the
//!   [`PackedForms`] that has it.
//! - A product sums in the same order with the copy and without it, so results are the same bits.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Bound, Executable, Frame, RunError, StateBytes, StateView};
use crate::binding::product::{PackedLayout, PackedOperand};
use crate::cpu::gemm::pack;
use crate::memory::AlignedBuffer;
use crate::pool::Pool;

/// Layouts that one value is copied into, at most: those beyond are copied panel by panel in every call. Slices whose sizes differ from call to
/// call ask for ever new ones.
const MAX_FORMS: usize = 8;
/// Bytes of panels that one thread copies at a time.
const CHUNK_BYTES: usize = 64 << 10;

/// Copies of a value that does not change any longer, in the layouts that products asked for so far.
#[derive(Default)]
pub struct PackedForms {
    forms: Mutex<Vec<Form>>,
}

struct Form {
    layout: PackedLayout,
    data: AlignedBuffer,
}

impl std::fmt::Debug for PackedForms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PackedForms({} of {} bytes)", self.count(), self.bytes())
    }
}

impl PackedForms {
    fn forms(&self) -> MutexGuard<'_, Vec<Form>> {
        // A form is added when it is complete.
        self.forms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many copies there are. Each was made once.
    pub fn count(&self) -> usize {
        self.forms().len()
    }

    /// Bytes of all copies.
    pub fn bytes(&self) -> usize {
        self.forms().iter().map(|f| f.data.len()).sum()
    }

    /// Where the copy of `from` in a layout is. The first call makes it, while others wait; `None` if there is no room for it.
    fn get(&self, layout: &PackedLayout, from: &[u8], threads: &Pool) -> Result<Option<*mut u8>, RunError> {
        let mut forms = self.forms();
        if let Some(form) = forms.iter().find(|f| f.layout == *layout) {
            return Ok(Some(form.data.as_ptr().cast_mut()));
        }
        if forms.len() >= MAX_FORMS {
            return Ok(None);
        }
        // Calls do without it where the system has no memory for it.
        let Ok(mut data) = AlignedBuffer::zeroed(layout.bytes()) else {
            return Ok(None);
        };
        let _span = tracing::info_span!("pack", bytes = layout.bytes()).entered();
        let ends = Ends(from.as_ptr(), data.as_mut_ptr());
        let panel_bytes = layout.panel_elements().saturating_mul(layout.dtype.bytes());
        let grain = (CHUNK_BYTES / panel_bytes.max(1)).max(1) as u64;
        let panels = layout.matrices() * layout.panels();
        threads.parallel_for(panels as u64, grain, &|_, begin, end| {
            let Ends(from, to) = &ends;
            // SAFETY: the layout is that of an operand in these bytes, the buffer has the bytes of the copy, and each panel is
            // given to one thread.
            unsafe { pack(layout, begin as usize..end as usize, *from, *to) };
        })?;
        let start = data.as_mut_ptr();
        forms.push(Form {
            layout: layout.clone(),
            data,
        });
        Ok(Some(start))
    }
}

/// Where a copy is made from, and where it is made.
struct Ends(*const u8, *mut u8);

// SAFETY: threads read the one and write parts of the other that are their own.
unsafe impl Sync for Ends {}

impl Executable {
    /// Lets calls copy operands into other layouts, which live beside the states that they are made of, only as far as a call then needs no
    /// more than so many bytes of the host's memory. What calls need without that is not limited here.
    pub fn with_memory_limit(mut self, limit: Option<u64>) -> Executable {
        self.memory_limit = limit;
        self
    }

    /// Finds out which operands of products a call has in panels, and makes what is missing.
    pub(super) fn find_packed(
        &self,
        binding: &Bound,
        states: &[StateView<'_>],
        frame: &mut Frame,
    ) -> Result<(), RunError> {
        frame.packed.clear();
        for operand in &binding.packed {
            let start = match &states[operand.state].data {
                // Products on the host alone have such operands, so the bytes are there: a state that was on a device was fetched for the call.
                StateBytes::Frozen { memory, packed } => {
                    packed.get(&operand.layout, memory.on_host()?, self.threads())?
                }
                StateBytes::Own(_) | StateBytes::Shared(_) => None,
            };
            frame.packed.push(start.unwrap_or(std::ptr::null_mut()));
        }
        Ok(())
    }

    /// Takes operands from the list of those that calls may copy until a call needs no more than so many bytes.
    pub(super) fn limit_packed(&self, binding: &mut Bound, limit: u64) -> Result<(), RunError> {
        if !binding.packed.is_empty() {
            let left = limit.saturating_sub(self.host_need(binding).total());
            while packed_bytes(&binding.packed) > left {
                binding.packed.pop();
            }
        }
        Ok(())
    }
}

/// Bytes of the copies of operands, equal ones once.
pub(super) fn packed_bytes<'o>(operands: impl IntoIterator<Item = &'o PackedOperand>) -> u64 {
    let mut seen: Vec<&PackedOperand> = Vec::new();
    for operand in operands {
        if !seen.contains(&operand) {
            seen.push(operand);
        }
    }
    seen.iter().fold(0, |n, o| n.saturating_add(o.layout.bytes() as u64))
}
