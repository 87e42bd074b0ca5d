//! This machine as passes see it.

use std::sync::Arc;

use tlc_ir::target::{Cpu, CpuEmitter, Gpu, Multiprocessor};

use crate::cpu::gemm::PANEL_ELEMENTS;
use crate::cuda::Properties;
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

/// f32 multiply-adds that a multiprocessor begins in a clock (CUDA C++ Programming Guide, "Arithmetic Instructions"); those of 8.0 begin
/// half as many.
const FUSED_PER_CLOCK: f64 = 128.0;

/// A device as passes see it: what its driver says of its speeds, where it does.
#[must_use]
pub fn gpu(properties: &Properties) -> Gpu {
    let any = Gpu::any(Arc::new(tlc_codegen::cuda::emitter()));
    let (khz, bits) = properties.memory_clock;
    // Memory moves two words a clock.
    let bytes_per_second = f64::from(khz) * 1e3 * 2.0 * f64::from(bits) / 8.0;
    let fused = match properties.capability {
        (8, 0) => FUSED_PER_CLOCK / 2.0,
        _ => FUSED_PER_CLOCK,
    };
    let flops = f64::from(properties.multiprocessors) * f64::from(properties.clock_khz) * 1e3 * fused * 2.0;
    let known = |said: f64, otherwise: f64| if said > 0.0 { said } else { otherwise };
    let (usual, opt_in) = properties.shared_bytes;
    let asked = match opt_in {
        0 => Gpu::opt_in_of(properties.capability),
        said => said.into(),
    };
    let usual_of = Multiprocessor::of(properties.capability);
    let held = |said: u32, otherwise: i64| if said > 0 { said.into() } else { otherwise };
    let multiprocessor = Multiprocessor {
        shared_bytes: held(properties.multiprocessor.shared_bytes, usual_of.shared_bytes),
        reserved_bytes: usual_of.reserved_bytes,
        registers: held(properties.multiprocessor.registers, usual_of.registers),
        threads: held(properties.multiprocessor.threads, usual_of.threads),
        blocks: held(properties.multiprocessor.blocks, usual_of.blocks),
    };
    Gpu {
        opt_in_shared_bytes: asked.max(usual.into()),
        bytes_per_second: known(bytes_per_second, any.bytes_per_second),
        f32_flops_per_second: known(flops, any.f32_flops_per_second),
        multiprocessors: properties.multiprocessors.into(),
        multiprocessor,
        // Products are kernels of our own.
        library_products: false,
        ..any
    }
}
