//! This machine as passes see it.

use tlc_ir::target::{Cpu, CpuEmitter};

use crate::cpu::gemm::PANEL_ELEMENTS;
use crate::machine::cache_sizes;
use crate::pool::default_threads;

/// What the passes need to know of this machine: what its emitters have, caches from the processor, speeds from the machine
/// model's defaults (see [`crate::hwbench`] for measured ones).
#[must_use]
pub fn cpu(emitters: Vec<CpuEmitter>) -> Cpu {
    let caches = cache_sizes();
    Cpu {
        panel_elements: PANEL_ELEMENTS,
        threads: default_threads(),
        l1_bytes: caches.l1d.bytes,
        l2_bytes: caches.l2.bytes,
        l3_bytes: caches.last_level_bytes(),
        ..Cpu::with_emitters(emitters)
    }
}
