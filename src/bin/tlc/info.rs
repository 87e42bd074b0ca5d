//! `tlc info`: what this machine offers.

use std::fmt::Write;
use std::path::Path;

use serde_json::{Value, json};
use tlc::explain::bytes_text;
use tlc_runtime::cpu::level::{self, Halves};
use tlc_runtime::cuda;
use tlc_runtime::error::Unavailable;
use tlc_runtime::machine::MachineInfo;
use tlc_runtime::nvrtc::Nvrtc;

use crate::failure::Failure;
use crate::session::{Session, cache_directory, measured};

/// Runs the command.
pub fn run(session: &Session) -> Result<(), Failure> {
    let mut machine = MachineInfo::detect();
    let measured = measured().is_some();
    let devices = cuda::devices();
    // What is used is what the environment names, which need not be what the system has.
    if let Some(path) = devices.iter().flatten().next().map(|d| d.driver_path.clone()) {
        machine.gpu.cuda_driver = Some(path);
    }
    if let Ok(nvrtc) = Nvrtc::load() {
        machine.gpu.nvrtc = Some(nvrtc.path().to_string_lossy().into_owned());
    }
    if let Some(path) = std::env::var_os("TLC_CUBLASLT").filter(|p| Path::new(p).exists()) {
        machine.gpu.cublaslt = Some(path.to_string_lossy().into_owned());
    }
    let cache = cache_directory().map(|d| d.to_string_lossy().into_owned());
    if session.console.json() {
        return session.console.json_result(&json!({
            "version": env!("CARGO_PKG_VERSION"),
            "machine": serde_json::to_value(&machine).unwrap_or(Value::Null),
            "vector_bytes": machine.features.vector_bytes(),
            "vector_levels": machine.features.names(),
            "kernel_level": level::name(),
            "matrices": level::matrices().is_ok(),
            "pairs_of_bf16": level::halves() == Some(Halves::Pairs),
            "matrices_missing": level::matrices().err().map(|e| e.to_string()),
            "measured": measured,
            "cache_directory": cache,
            "devices": devices.iter().flatten().map(device_json).collect::<Vec<_>>(),
            "devices_missing": devices.as_ref().err().map(ToString::to_string),
        }));
    }
    let mut out = String::new();
    let cpu = &machine.cpu;
    let mut row = |name: &str, value: String| {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{name:<12} {value}");
    };
    row("tlc", env!("CARGO_PKG_VERSION").into());
    row("cpu", format!("{} ({}, {})", cpu.key(), cpu.vendor, cpu.architecture));
    row(
        "cores",
        format!(
            "{} physical, {} logical, {} usable threads",
            cpu.physical_cores, cpu.logical_cores, cpu.usable_threads
        ),
    );
    row(
        "vectors",
        format!(
            "{} bits: {}",
            8 * machine.features.vector_bytes(),
            machine.features.names().join(" ")
        ),
    );
    row("kernels", level::name().into());
    row(
        "matrices",
        match (level::matrices(), level::halves()) {
            (Ok(()), _) => "int8 and bf16 by AMX".into(),
            (Err(e), Some(_)) => format!("bf16 by AVX512-BF16; no AMX: {e}"),
            (Err(e), None) => format!("none: {e}"),
        },
    );
    let caches = &machine.caches;
    let l3 = caches.l3.as_ref().map_or("none".into(), |c| {
        format!("{} (shared by {})", bytes_text(c.bytes), c.shared_by)
    });
    row(
        "caches",
        format!(
            "L1 {}, L2 {}, L3 {l3}",
            bytes_text(caches.l1d.bytes),
            bytes_text(caches.l2.bytes)
        ),
    );
    row("memory", machine.memory_bytes.map_or("unknown".into(), bytes_text));
    row(
        "pages",
        format!(
            "{}, huge pages {:?}",
            bytes_text(machine.page_bytes),
            machine.huge_pages
        ),
    );
    // What is missing, and for what.
    let found = |library: &Option<String>, without: &str| match library {
        Some(path) => path.clone(),
        None => format!("not found: {without}"),
    };
    match &devices {
        Ok(devices) if devices.is_empty() => row("gpu", "none".into()),
        Ok(devices) => devices
            .iter()
            .for_each(|d| row(&format!("cuda:{}", d.ordinal), device_text(d))),
        // The line of the driver says why.
        Err(Unavailable::Driver { .. }) => row("gpu", "none".into()),
        Err(e) => row("cuda", e.to_string()),
    }
    row("driver", found(&machine.gpu.cuda_driver, "nothing runs on a GPU"));
    row("nvrtc", found(&machine.gpu.nvrtc, "nothing is compiled for a GPU"));
    let kernels = "on a GPU tlc's own kernels multiply matrices";
    row("cublaslt", found(&machine.gpu.cublaslt, kernels));
    row(
        "measured",
        if measured {
            "yes".into()
        } else {
            "no: run `tlc hwbench`".into()
        },
    );
    row(
        "cache",
        cache.unwrap_or_else(|| "none: neither XDG_CACHE_HOME nor HOME is set".into()),
    );
    session.console.result(&out)
}

/// A GPU, in a line.
fn device_text(d: &cuda::Properties) -> String {
    let (major, minor) = d.capability;
    let pools = match d.memory_pools {
        true => format!("in a pool that keeps at most {} idle", bytes_text(d.most_idle_bytes())),
        false => "without pools".into(),
    };
    format!(
        "{}, compute capability {major}.{minor}, {} multiprocessors of {} threads and {} registers, {} {pools}, {} of shared memory a block, driver {} ({})",
        d.name,
        d.multiprocessors,
        d.multiprocessor.threads,
        d.multiprocessor.registers,
        bytes_text(d.memory_bytes),
        bytes_text(d.shared_bytes.1.into()),
        d.driver,
        d.driver_path
    )
}

fn device_json(d: &cuda::Properties) -> Value {
    json!({
        "device": format!("cuda:{}", d.ordinal),
        "name": d.name,
        "capability": format!("{}.{}", d.capability.0, d.capability.1),
        "multiprocessors": d.multiprocessors,
        "multiprocessor_threads": d.multiprocessor.threads,
        "multiprocessor_registers": d.multiprocessor.registers,
        "memory_bytes": d.memory_bytes,
        "memory_pools": d.memory_pools,
        "most_idle_bytes": d.most_idle_bytes(),
        "shared_bytes": d.shared_bytes.0,
        "shared_bytes_opt_in": d.shared_bytes.1,
        "l2_bytes": d.l2_bytes,
        "driver": d.driver,
        "driver_path": d.driver_path,
    })
}
