//! `tlc hwbench`: measures this machine and keeps the result in the cache directory.
//!
//! Invariant: what is kept was measured on a quiet machine, twice with about the same result. A model of a busy machine would
//! promise limits that programs run faster than.

use std::fmt::Write;

use clap::Args;
use serde_json::{Value, json};
use tlc::Device;
use tlc_runtime::hwbench::{Effort, HwBench, HwBenchError};
use tlc_runtime::pool::{Pool, default_threads};

use crate::failure::{Code, Failure};
use crate::hwbench_gpu;
use crate::session::{Session, cache_directory};
use crate::staging::Outputs;

/// Arguments.
#[derive(Args, Debug)]
pub struct Hwbench {
    /// A second or two, for a first guess
    #[arg(long, conflicts_with = "thorough")]
    quick: bool,
    /// About a minute, for figures to publish
    #[arg(long)]
    thorough: bool,
    /// Do not keep the result
    #[arg(long)]
    no_save: bool,
}

/// Runs the command.
pub fn run(session: &Session, args: &Hwbench) -> Result<(), Failure> {
    if let Some(Device::Cuda(number)) = session.global.device {
        let effort = if args.thorough { 2 } else { usize::from(!args.quick) };
        return hwbench_gpu::run(session, number, effort);
    }
    let effort = match (args.quick, args.thorough) {
        (true, _) => Effort::QUICK,
        (_, true) => Effort::THOROUGH,
        _ => Effort::NORMAL,
    };
    let pool = Pool::new(session.global.threads.unwrap_or_else(default_threads));
    let (bench, disturbance) = undisturbed(&mut |attempt| measure(session, &pool, effort, attempt))?;
    let mut saved = None;
    if !args.no_save && disturbance.is_none() {
        let dir = cache_directory().ok_or_else(|| {
            Failure::new(
                Code::Invalid,
                "no cache directory; expected XDG_CACHE_HOME or HOME to be set, or --no-save",
            )
        })?;
        let path = dir.join("hwbench.json");
        let mut outputs = Outputs::new();
        outputs.directory(&dir)?;
        outputs.file(&path, &mut |w| w.write_all(bench.to_json().as_bytes()))?;
        outputs.commit()?;
        saved = Some(path);
    }
    let failure = disturbance.map(|what| {
        let message =
            format!("the machine is busy: {what}, {MOST_ATTEMPTS} times; expected a quiet machine; nothing is kept");
        Failure::new(Code::Failed, message)
    });
    if session.console.json() {
        let mut value: Value = serde_json::from_str(&bench.to_json()).unwrap_or(Value::Null);
        value["saved"] = json!(saved.map(|p| p.to_string_lossy().into_owned()));
        return match failure {
            Some(failure) => Err(failure.with_result(value)),
            None => session.console.json_result(&value),
        };
    }
    session.console.result(&table(&bench))?;
    if let Some(path) = saved {
        session.console.note(&format!("kept in {}", path.display()));
    }
    failure.map_or(Ok(()), Err)
}

fn measure(session: &Session, pool: &Pool, effort: Effort, attempt: usize) -> Result<HwBench, Failure> {
    let what = match attempt {
        0 => "measuring".to_string(),
        n => format!("measuring again ({n} of {})", MOST_ATTEMPTS - 1),
    };
    let bar = session.console.progress(1000, &what);
    let measured = HwBench::measure(pool, effort, &mut |share, next| {
        bar.set_position((share * 1000.0) as u64);
        bar.set_message(next.to_string());
    });
    bar.finish_and_clear();
    measured.map_err(|e| match e {
        HwBenchError::Memory(e) => Failure::new(Code::Limit, e.to_string()),
        other => Failure::new(Code::Bug, other.to_string()),
    })
}

/// How often the machine is measured, until it is quiet.
const MOST_ATTEMPTS: usize = 5;

/// The largest factor between two measurements of one speed on a quiet machine.
const MOST_FACTOR: f64 = 1.25;

/// Measures until two measurements in a row are undisturbed and agree, and returns the better figure of each. Failing that,
/// the last two and what disturbed them.
fn undisturbed(
    measure: &mut dyn FnMut(usize) -> Result<HwBench, Failure>,
) -> Result<(HwBench, Option<String>), Failure> {
    let mut before = measure(0)?;
    let mut attempt = 1;
    loop {
        let last = measure(attempt)?;
        attempt += 1;
        let mut both = last.clone();
        let disturbed = both.is_disturbed() || before.is_disturbed();
        let share = 100.0 * both.disturbed_share.max(before.disturbed_share);
        let factor = both.combine(before);
        let disturbance = match (disturbed, factor <= MOST_FACTOR) {
            (false, true) => return Ok((both, None)),
            (true, _) => format!("other programs had the cores during {share:.0}% of the samples"),
            (false, false) => format!("two measurements of one speed differ by a factor of {factor:.2}"),
        };
        if attempt >= MOST_ATTEMPTS {
            return Ok((both, Some(disturbance)));
        }
        before = last;
    }
}

fn table(bench: &HwBench) -> String {
    let mut out = format!(
        "{}, {} loops, 1 and {} threads\n\n",
        bench.cpu_model, bench.kernels, bench.threads
    );
    let rates = [
        ("f32 multiply-add, GFLOP/s", bench.f32_flops_per_second),
        ("f64 multiply-add, GFLOP/s", bench.f64_flops_per_second),
        ("128-bit arithmetic, Gop/s", bench.xmm_ops_per_second),
        ("128-bit loads and arithmetic, Gop/s", bench.xmm_mixed_ops_per_second),
        ("128-bit multiply-adds, Gop/s", bench.xmm_multiplies_per_second),
        ("128-bit divisions, Gop/s", bench.xmm_divisions_per_second),
    ];
    // Writing to a String cannot fail.
    for (name, rate) in rates {
        let _ = writeln!(
            out,
            "{name:<38} {:>9.1} {:>9.1}",
            rate.one_thread / 1e9,
            rate.all_threads / 1e9
        );
    }
    let _ = writeln!(out, "{:<38} {:>9.0}", "fresh page, ns", bench.page_fault_ns);
    let _ = writeln!(out, "{:<38} {:>9.0}", "fresh huge page, ns", bench.huge_page_fault_ns);
    let _ = writeln!(out, "{:<38} {:>9.0}", "fork-join, ns", bench.fork_join_ns);
    let _ = writeln!(
        out,
        "\n{:<8} {:<7} {:<13} {:>7} {:>12} {:>9}",
        "level", "does", "stores", "threads", "footprint", "GB/s"
    );
    for row in &bench.bandwidth {
        let _ = writeln!(
            out,
            "{:<8} {:<7} {:<13} {:>7} {:>12} {:>9.1}",
            format!("{:?}", row.level),
            format!("{:?}", row.operation).to_lowercase(),
            if row.non_temporal {
                "past caches"
            } else {
                "through caches"
            },
            row.threads,
            tlc::explain::bytes_text(row.footprint_bytes),
            row.bytes_per_second / 1e9
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use tlc_runtime::hwbench::{BandwidthRow, Level, Operation, Rate, SCHEMA};
    use tlc_runtime::machine::MachineInfo;

    use super::*;

    /// A measurement with one speed for all, and a share of disturbed samples.
    fn measured(speed: f64, disturbed_share: f64) -> HwBench {
        let rate = Rate {
            one_thread: speed,
            all_threads: speed,
        };
        HwBench {
            schema: SCHEMA,
            cpu_model: "some".into(),
            kernels: "portable".into(),
            threads: 1,
            caches: MachineInfo::detect_without_gpu().caches,
            bandwidth: vec![BandwidthRow {
                operation: Operation::Read,
                level: Level::L2,
                footprint_bytes: 1 << 16,
                threads: 1,
                non_temporal: false,
                bytes_per_second: speed,
            }],
            f32_flops_per_second: rate,
            f64_flops_per_second: rate,
            xmm_ops_per_second: rate,
            xmm_mixed_ops_per_second: rate,
            xmm_multiplies_per_second: rate,
            xmm_divisions_per_second: rate,
            xmm_divisions_beside_per_second: rate,
            page_fault_ns: 1e3 / speed,
            huge_page_fault_ns: 0.0,
            fork_join_ns: 0.0,
            fork_join_shared_ns: 0.0,
            disturbed_share,
        }
    }

    /// What comes of measurements in a row, and how many were made.
    fn of(all: &[(f64, f64)]) -> (HwBench, Option<String>, usize) {
        let mut made = 0;
        let (bench, disturbance) = undisturbed(&mut |attempt| {
            assert_eq!(attempt, made);
            made += 1;
            let (speed, share) = all[attempt];
            Ok(measured(speed, share))
        })
        .expect("measurements");
        (bench, disturbance, made)
    }

    #[test]
    fn the_machine_is_measured_until_it_is_quiet() {
        let (bench, disturbance, made) = of(&[(10.0, 0.0), (11.0, 0.01)]);
        assert_eq!((disturbance, made), (None, 2));
        assert_eq!(bench.f32_flops_per_second.one_thread, 11.0);
        assert!(bench.bandwidth.iter().all(|row| row.bytes_per_second == 11.0));
        // Another program uses memory, which no clock shows; then one has a core.
        let (bench, disturbance, made) = of(&[(5.0, 0.0), (10.0, 0.0), (10.0, 0.5), (10.0, 0.0), (9.0, 0.0)]);
        assert_eq!((disturbance, made), (None, 5));
        assert_eq!(bench.f32_flops_per_second.all_threads, 10.0);
    }

    #[test]
    fn a_busy_machine_is_said_to_be_one() {
        let (_, disturbance, made) = of(&[(5.0, 0.0), (10.0, 0.0), (5.0, 0.0), (10.0, 0.0), (5.0, 0.0)]);
        assert_eq!(made, MOST_ATTEMPTS);
        assert!(disturbance.is_some_and(|d| d.contains("a factor of 2.00")));
        let (_, disturbance, _) = of(&[(5.0, 0.2); 5]);
        assert!(disturbance.is_some_and(|d| d.contains("during 20% of the samples")));
    }
}
