//! What times are compared with: the speeds that `tlc hwbench` measured on this machine, or assumed ones.
//!
//! Only predictions read these. Compilation does not: what a schedule decides follows from sizes, and how much work a thread is
//! given at a time from assumed speeds, so that a measurement changes nothing.

use tlc_ir::target::Cpu;
use tlc_passes::devices::Devices;
use tlc_runtime::hwbench::HwBench;
use tlc_runtime::machine::MachineInfo;

/// The directory of measurements and caches: `$XDG_CACHE_HOME/tlc` or `~/.cache/tlc`.
pub fn cache_directory() -> Option<std::path::PathBuf> {
    let set = |name: &str| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(std::path::PathBuf::from)
    };
    // The base directory specification asks to ignore relative paths.
    let base = set("XDG_CACHE_HOME")
        .filter(|p| p.is_absolute())
        .or_else(|| set("HOME").map(|h| h.join(".cache")))?;
    Some(base.join("tlc"))
}

/// What `tlc hwbench` measured, if it did on this processor, and undisturbed.
pub fn measured() -> Option<HwBench> {
    let text = std::fs::read_to_string(cache_directory()?.join("hwbench.json")).ok()?;
    HwBench::from_json(&text)
        .ok()
        .filter(|b| b.is_of(&MachineInfo::detect_without_gpu()) && !b.is_disturbed())
}

/// A target with the speeds to compare with: measured where that was done, assumed elsewhere; and which of the two. For all
/// threads of the target together.
pub fn limits(target: &Cpu) -> (Cpu, bool) {
    let Some(bench) = measured() else {
        return (assumed(target), false);
    };
    let mut limits = target.clone();
    let footprints = [
        target.l2_bytes / 2,
        target.l3_bytes / 2,
        target.l3_bytes.saturating_mul(4),
    ];
    for (rate, footprint) in limits.bytes_per_second.iter_mut().zip(footprints) {
        if let Some((measured, _)) = bench.best_bandwidth(footprint, 2, 1, target.threads) {
            *rate = measured;
        }
    }
    limits.f32_flops_per_second = bench.f32_flops_per_second.at(target.threads, bench.threads);
    // What was measured are vectors of the portable emitter, the first one; others are as much faster as is assumed of them.
    let portable = target.emitters.first().map_or(1.0, |e| e.vector_ops_per_second);
    let measured = bench.xmm_ops_per_second.at(target.threads, bench.threads);
    for e in &mut limits.emitters {
        e.vector_ops_per_second *= measured / portable;
    }
    (limits, true)
}

/// A target with the assumed speeds of all its threads together.
fn assumed(target: &Cpu) -> Cpu {
    let mut limits = target.clone();
    // What is assumed is of one thread; cores have their own caches and units, and share the memory.
    let threads = target.threads as f64;
    limits.bytes_per_second[..2]
        .iter_mut()
        .for_each(|rate| *rate *= threads);
    limits.f32_flops_per_second *= threads;
    limits
        .emitters
        .iter_mut()
        .for_each(|e| e.vector_ops_per_second *= threads);
    limits
}

/// Devices with assumed speeds, for decisions: what was measured on a machine changes none.
pub(crate) fn assumed_of(devices: &Devices) -> Devices {
    devices.clone().with_host(assumed(devices.host()))
}

/// As [`limits`], of a host and the devices beside it, whose speeds are what their drivers say.
pub fn limits_of(devices: &Devices) -> (Devices, bool) {
    let (host, measured) = limits(devices.host());
    (devices.clone().with_host(host), measured)
}
