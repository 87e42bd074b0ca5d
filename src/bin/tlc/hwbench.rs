//! `tlc hwbench`: measures this machine and keeps the result in the cache directory.

use std::fmt::Write;

use clap::Args;
use serde_json::{Value, json};
use tlc_runtime::hwbench::{Effort, HwBench, HwBenchError};
use tlc_runtime::pool::{Pool, default_threads};

use crate::failure::{Code, Failure};
use crate::session::{Session, cache_directory};
use crate::staging::Outputs;

/// Arguments.
#[derive(Args, Debug)]
pub struct Hwbench {
    /// About a second, for a first guess
    #[arg(long, conflicts_with = "thorough")]
    quick: bool,
    /// About half a minute, for figures to publish
    #[arg(long)]
    thorough: bool,
    /// Do not keep the result
    #[arg(long)]
    no_save: bool,
}

/// Runs the command.
pub fn run(session: &Session, args: &Hwbench) -> Result<(), Failure> {
    let effort = match (args.quick, args.thorough) {
        (true, _) => Effort::QUICK,
        (_, true) => Effort::THOROUGH,
        _ => Effort::NORMAL,
    };
    let pool = Pool::new(session.global.threads.unwrap_or_else(default_threads));
    let bar = session.console.progress(1000, "measuring");
    let measured = HwBench::measure(&pool, effort, &mut |share, next| {
        bar.set_position((share * 1000.0) as u64);
        bar.set_message(next.to_string());
    });
    bar.finish_and_clear();
    let bench = measured.map_err(|e| match e {
        HwBenchError::Memory(e) => Failure::new(Code::Limit, e.to_string()),
        other => Failure::new(Code::Bug, other.to_string()),
    })?;
    let mut saved = None;
    if !args.no_save {
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
    if session.console.json() {
        let mut value: Value = serde_json::from_str(&bench.to_json()).unwrap_or(Value::Null);
        value["saved"] = json!(saved.map(|p| p.to_string_lossy().into_owned()));
        return session.console.json_result(&value);
    }
    session.console.result(&table(&bench))?;
    if let Some(path) = saved {
        session.console.note(&format!("kept in {}", path.display()));
    }
    Ok(())
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
    if bench.disturbed_share > 0.05 {
        let share = 100.0 * bench.disturbed_share;
        let _ = writeln!(
            out,
            "\n{share:.0}% of the samples were disturbed by other programs: measure again when idle"
        );
    }
    out
}
