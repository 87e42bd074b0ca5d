//! Constants that calls read from a mapped file, copied to huge pages.
//!
//! A file is mapped in pages of a few KiB, and the processor looks up each of them when a product reads its weights from end to end; on huge
//! pages what a decoding step reads comes up to half as fast again. Copying takes longer than a call that reads it all, so it is done on a thread of
//! its own once an executable has been called a few times. The copies are the tensors' ([`HostTensor::place`]), so that all executables of a graph share
//! them, and the file's pages are given back: what is resident stays the same.
//!
//! What is only gathered from, as embeddings are, stays in the file.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use tlc_ir::HostTensor;
use tlc_ir::index::VarId;
use tlc_ir::kernel::visit::{Effect, walk};
use tlc_ir::kernel::{Kernel, Memory, Stmt};
use tlc_ir::plan::{Plan, Step, Storage};

use super::Executable;
use crate::machine::{HugePageMode, available_bytes, huge_page_mode};
use crate::memory::{AlignedBuffer, HUGE_PAGE_BYTES};

/// The call behind which constants are copied.
const CALLS: u32 = 4;
/// Memory is left alone if the copies would take more than one part in so many of what the system has to give: pages of a file can be dropped and read
/// again, these cannot.
const SHARE_OF_AVAILABLE: u64 = 2;
/// Bytes that are copied before the file's pages of them are given back: a large constant is never there twice as a whole.
const PIECE_BYTES: usize = 16 << 20;

/// The constants of a plan that calls stream, and how often there was one.
#[derive(Default)]
pub(super) struct Streamed {
    constants: Vec<HostTensor>,
    /// What the executable keeps in a file, once that is known.
    kept: OnceLock<Vec<HostTensor>>,
    calls: AtomicU32,
    /// Whether there is any.
    any: AtomicBool,
}

impl Streamed {
    /// Those of a plan and of its loops' bodies.
    pub(super) fn of(plan: &Plan) -> Streamed {
        let mut constants = Vec::new();
        collect(plan, &mut constants);
        // Most plans have none, and the system is not asked.
        if !constants.is_empty() && !has_huge_pages() {
            constants.clear();
        }
        Streamed {
            any: AtomicBool::new(!constants.is_empty()),
            constants,
            ..Streamed::default()
        }
    }

    /// Adds what the executable keeps in a file.
    pub(super) fn add(&self, kept: Vec<HostTensor>) {
        if !kept.is_empty() && has_huge_pages() && self.kept.set(kept).is_ok() {
            self.any.store(true, Ordering::Relaxed);
        }
    }

    fn all(&self) -> Vec<HostTensor> {
        let kept = self.kept.get().into_iter().flatten();
        self.constants.iter().chain(kept).cloned().collect()
    }

    /// Counts a call; behind the last that is waited for, the constants are copied on a thread.
    #[inline]
    pub(super) fn called(&self) {
        if self.any.load(Ordering::Relaxed) && self.calls.load(Ordering::Relaxed) < CALLS {
            self.count();
        }
    }

    #[cold]
    #[inline(never)]
    fn count(&self) {
        if self.calls.fetch_add(1, Ordering::Relaxed) + 1 != CALLS {
            return;
        }
        let constants = self.all();
        // Where no thread is to be had, calls go on with the file.
        let _ = std::thread::Builder::new()
            .name("tlc-place".into())
            .spawn(move || place(&constants));
    }
}

fn has_huge_pages() -> bool {
    matches!(huge_page_mode(), HugePageMode::Always | HugePageMode::Madvise)
}

impl Executable {
    /// Copies what calls read from mapped files end to end to huge pages now, where the system has them and memory for it, which calls would otherwise
    /// have done in the background after the first few. Results are the same.
    pub fn place_constants(&self) {
        self.streamed.calls.store(CALLS, Ordering::Relaxed);
        place(&self.streamed.all());
    }
}

fn place(constants: &[HostTensor]) {
    let left: Vec<&HostTensor> = constants.iter().filter(|c| c.placed_bytes().is_none()).collect();
    let bytes: u64 = left.iter().map(|c| c.bytes().len() as u64).sum();
    if available_bytes().is_none_or(|available| bytes > available / SHARE_OF_AVAILABLE) {
        tracing::debug!(bytes, "constants stay in their file");
        return;
    }
    let _span = tracing::info_span!("place", bytes).entered();
    for constant in left {
        let from = constant.bytes();
        // SAFETY: all of its bytes are written below.
        let Ok(mut copy) = (unsafe { AlignedBuffer::uninit(from.len()) }) else {
            return;
        };
        let mut to = copy.as_mut_ptr();
        for piece in from.chunks(PIECE_BYTES) {
            // SAFETY: the buffer has as many bytes as all pieces, which are its own.
            unsafe {
                std::ptr::copy_nonoverlapping(piece.as_ptr(), to, piece.len());
                to = to.add(piece.len());
            }
            crate::mmap::release(piece);
        }
        constant.place(Arc::new(copy));
        // Calls may have read some of it meanwhile.
        crate::mmap::release(from);
    }
}

/// The plan's constants that lie in a mapped file, fill a huge page, and are read by a step of a call from where an index says that no data decides.
fn collect(plan: &Plan, out: &mut Vec<HostTensor>) {
    for step in &plan.steps {
        if let Step::Loop(l) = step {
            collect(&l.body, out);
        }
    }
    let large = |c: &HostTensor| c.bytes().len() >= HUGE_PAGE_BYTES && crate::mmap::holds(c.bytes());
    let large: Vec<bool> = plan.constants.iter().map(large).collect();
    // Kernels are looked at only if there is something to be found.
    if !large.contains(&true) {
        return;
    }
    let mut see = |slot| {
        let slot = &plan.slots[plan.root(slot).0 as usize];
        if let (Storage::Constant(k), 0) = (&slot.storage, slot.device.0)
            && large[*k as usize]
            && let constant = &plan.constants[*k as usize]
            && !out.iter().any(|other| other.same_data(constant))
        {
            out.push(constant.clone());
        }
    };
    for step in &plan.steps {
        for launch in step.launches() {
            let kernel = &plan.kernels[launch.kernel.0 as usize];
            let params = launch.args.iter().zip(0..);
            params
                .filter(|&(_, p)| streams(kernel, p))
                .for_each(|(&slot, _)| see(slot));
        }
        if let Step::Gemm(g) = step {
            let behind = g.behind().into_iter().flat_map(|p| [p.lhs.slot, p.rhs.slot]);
            [g.lhs.slot, g.rhs.slot].into_iter().chain(behind).for_each(&mut see);
        }
    }
}

/// Whether a kernel loads from a parameter elsewhere than where data says.
fn streams(kernel: &Kernel, param: u32) -> bool {
    let clamped: Vec<VarId> = walk(&kernel.body)
        .filter_map(|s| match s {
            Stmt::Clamp { var, .. } => Some(*var),
            _ => None,
        })
        .collect();
    let mut accesses = walk(&kernel.body).flat_map(|s| s.accesses());
    accesses.any(|a| {
        let gathers = clamped.iter().any(|&v| a.index.uses(v));
        a.memory == Memory::Param(param) && a.effect == Effect::Load && !gathers
    })
}
