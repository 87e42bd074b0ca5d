//! This machine as passes see it.

use std::sync::Arc;

use tlc_ir::target::{
    Cpu, CpuEmitter, Gpu, HostProducts, LibraryGain, LibraryShare, Multiprocessor, ProductLibrary, Products,
};

use crate::cpu::gemm::PANEL_ELEMENTS;
use crate::cpu::level::{self, Halves};
use crate::cuda::{Context, Properties, arch_name};
use crate::error::Unavailable;
use crate::machine::{
    cache_sizes, feeds_tiles, follows_distant_rows, follows_masked_loads, streamed_bits, streams_lines,
};

/// What the passes need to know of this machine with so many threads: what its emitters have, caches from the processor, speeds from the
/// machine model's defaults (see [`crate::hwbench`] for measured ones).
#[must_use]
pub fn cpu(emitters: Vec<CpuEmitter>, threads: usize) -> Cpu {
    let caches = cache_sizes();
    Cpu {
        panel_elements: PANEL_ELEMENTS,
        products: products(),
        threads,
        l1_bytes: caches.l1d.bytes,
        l2_bytes: caches.l2.bytes,
        l3_bytes: caches.last_level_bytes(),
        streams_lines: streams_lines(),
        feeds_tiles: feeds_tiles(),
        follows_distant_rows: follows_distant_rows(),
        follows_masked_loads: follows_masked_loads(),
        streamed_bits: streamed_bits(),
        ..Cpu::with_emitters(emitters)
    }
}

/// What the library of products multiplies here beside large matrices of f32 and f64.
fn products() -> HostProducts {
    let halves = level::halves();
    HostProducts {
        words: level::matrices().is_ok(),
        halves: halves.is_some(),
        // Of a tile of a matrix one row would be most of the work.
        vectors: halves == Some(Halves::Pairs),
        small: cfg!(target_arch = "x86_64") && level::wide().is_some(),
    }
}

/// f32 multiply-adds that a multiprocessor begins in a clock (CUDA C++ Programming Guide, "Arithmetic Instructions"); those of 8.0 begin
/// half as many.
const FUSED_PER_CLOCK: f64 = 128.0;

/// Multiply-adds of 16-bit floats, added up in f32, that the matrix instructions of a multiprocessor do in a clock, at most (NVIDIA A100, H100 and
/// Blackwell architecture white papers; dense, by the widest instruction of each).
const fn matrices_per_clock(capability: (i32, i32)) -> f64 {
    match capability {
        (8, 0) => 1024.0,
        (9, _) => 2048.0,
        (10 | 11, _) => 4096.0,
        _ => 512.0,
    }
}

/// A device as passes see it: what its driver says of its speeds, where it does.
#[must_use]
pub fn gpu(properties: &Properties) -> Gpu {
    let any = Gpu::any(Arc::new(tlc_codegen::cuda::emitter_for(&arch_name(
        properties.capability,
    ))));
    let (khz, bits) = properties.memory_clock;
    // Memory moves two words a clock.
    let bytes_per_second = f64::from(khz) * 1e3 * 2.0 * f64::from(bits) / 8.0;
    let fused = match properties.capability {
        (8, 0) => FUSED_PER_CLOCK / 2.0,
        _ => FUSED_PER_CLOCK,
    };
    let rate = |fused: f64| f64::from(properties.multiprocessors) * f64::from(properties.clock_khz) * 1e3 * fused * 2.0;
    let flops = rate(fused);
    let matrix_flops = rate(matrices_per_clock(properties.capability));
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
        matrix_flops_per_second: known(matrix_flops, any.matrix_flops_per_second),
        multiprocessors: properties.multiprocessors.into(),
        multiprocessor,
        // Whether there is a library takes a context to find out: see `product_library`.
        products: None,
        ..any
    }
}

/// Rows, columns and sum of a product are so long at least for the library to be taken to be faster.
pub const LEAST_LIBRARY_EXTENT: i64 = 512;

/// What the library gains on devices where it was measured: products of 4096 by 4096 by 4096 took cuBLASLt 13.0 0.187 ms in f16 and
/// 2.69 ms in f32 on an H100, kernels 0.230 ms and 3.78 ms. What kernels compute behind a product took them 107 and 46 us (GELU by tanh of 4096
/// by 3072 and by the error function of 3152 by 3072 results, of cost 86 and 46), other kernels 63 and 20 us.
fn library_gain(capability: (i32, i32)) -> Option<LibraryGain> {
    (capability == (9, 0)).then_some(LibraryGain {
        narrow: 310,
        epilogue: 45,
        wide: 7930,
    })
}

/// The library of products of a device, if it is to have some of them: what is asked for by name must be there, what is left to tlc need not.
///
/// # Errors
/// If the library is asked for, and there is none.
pub fn product_library(context: &Context, products: Products) -> Result<Option<ProductLibrary>, Unavailable> {
    let share = match products {
        Products::Library => LibraryShare::All,
        Products::Auto => LibraryShare::Plain {
            least_extent: LEAST_LIBRARY_EXTENT,
            gain: library_gain(context.properties().capability),
        },
        _ => return Ok(None),
    };
    match context.product_library() {
        Err(e) if products == Products::Library => Err(e),
        Err(_) => Ok(None),
        Ok(_) => Ok(Some(ProductLibrary {
            share,
            narrow: true,
            workspace_bytes: workspace_bytes(context.properties().capability),
        })),
    }
}

/// Bytes that NVIDIA recommends to give the library to work in (cuBLAS library, "cublasSetWorkspace").
fn workspace_bytes((major, _): (i32, i32)) -> u64 {
    match major {
        9..=11 => 32 << 20,
        12 => 12 << 20,
        _ => 4 << 20,
    }
}
