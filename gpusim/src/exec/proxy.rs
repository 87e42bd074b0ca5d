//! Which writes to shared memory asynchronous products may see, and asynchronous copies write over.
//!
//! Such products read by another way than loads and stores: what a thread wrote they see only if the thread fenced it
//! (`fence.proxy.async`) before it met their warps.

use super::step::lanes;
use super::{Block, Machine};

/// Bits of a thread's number in its block.
const THREAD_BITS: u32 = 10;

/// What marks a write of an asynchronous copy, which took the same way.
const ASYNCHRONOUS: u64 = 1 << 63;

/// Bytes that are told apart.
const GRAIN: usize = 2;

/// Times are numbers of instructions.
#[derive(Debug)]
pub(super) struct Proxy {
    /// When and by whom each two bytes were written last; 0 if never.
    writes: Vec<u64>,
    /// Each thread's last fence, and the last that others of the block know of.
    fences: Vec<u64>,
    published: Vec<u64>,
}

impl Proxy {
    pub(super) fn new(bytes: usize, threads: u32) -> Proxy {
        Proxy {
            writes: vec![0; bytes.div_ceil(GRAIN)],
            fences: vec![0; threads as usize],
            published: vec![0; threads as usize],
        }
    }

    fn wrote(&mut self, at: usize, bytes: u32, thread: u32, time: u64) {
        self.fill(at, bytes as usize, time << THREAD_BITS | u64::from(thread));
    }

    /// A piece of a tile arrives that a thread asked for.
    pub(super) fn landed(&mut self, at: usize, bytes: usize, thread: u32, time: u64) {
        self.fill(at, bytes, ASYNCHRONOUS | time << THREAD_BITS | u64::from(thread));
    }

    fn fill(&mut self, at: usize, bytes: usize, cell: u64) {
        let end = (at + bytes).div_ceil(GRAIN).min(self.writes.len());
        if let Some(cells) = self.writes.get_mut(at / GRAIN..end) {
            cells.fill(cell);
        }
    }

    /// A thread meets others.
    pub(super) fn publish(&mut self, thread: u32) {
        self.published[thread as usize] = self.fences[thread as usize];
    }

    fn find(&self, at: usize, bytes: usize, is_wrong: impl Fn(u64, usize, bool) -> bool) -> Option<u32> {
        let end = (at + bytes).div_ceil(GRAIN).min(self.writes.len());
        let cells = self.writes.get(at / GRAIN..end)?;
        let mut last = 0;
        for &cell in cells {
            let time = (cell & !ASYNCHRONOUS) >> THREAD_BITS;
            let (is_copy, thread) = (cell & ASYNCHRONOUS != 0, cell as u32 & ((1 << THREAD_BITS) - 1));
            // Neighbours are mostly of one write.
            if cell != last && is_wrong(time, thread as usize, is_copy) {
                return Some(thread);
            }
            last = cell;
        }
        None
    }

    /// A thread that wrote some of the bytes, which a product of a warp may not see.
    pub(super) fn unseen(&self, at: usize, bytes: usize, warp: u32) -> Option<u32> {
        self.find(at, bytes, |time, thread, is_copy| {
            let fences = if thread as u32 / 32 == warp {
                &self.fences
            } else {
                &self.published
            };
            time != 0 && !is_copy && fences[thread] <= time
        })
    }

    /// A thread that wrote some of the bytes later.
    pub(super) fn changed(&self, at: usize, bytes: usize, since: u64) -> Option<u32> {
        self.find(at, bytes, |time, _, _| time > since)
    }
}

impl Machine<'_> {
    /// Notes a write to shared memory by loads and stores or a copy.
    pub(super) fn note_write(&self, block: &mut Block, at: usize, lane: usize, to: usize, bytes: u32) {
        if let Some(proxy) = &mut block.proxy {
            proxy.wrote(to, bytes, block.warps[at].index * 32 + lane as u32, self.steps);
        }
    }

    pub(super) fn proxy_fence(&self, block: &mut Block, at: usize, active: u32) {
        if let Some(proxy) = &mut block.proxy {
            let warp = block.warps[at].index;
            for lane in lanes(active) {
                proxy.fences[warp as usize * 32 + lane] = self.steps;
            }
        }
        self.fence_phases(block, at, active);
    }
}
