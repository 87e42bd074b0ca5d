//! The results, as Markdown and JSON.

use std::fmt::Write;

use serde::{Deserialize, Serialize};
use tlc_runtime::hwbench::{HwBench, Operation};

use crate::extras::{Growth, Latency, Overheads};
use crate::measure::Row;
use crate::targets;

/// Everything one run found out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The processor.
    pub cpu: String,
    /// `rustc --version`.
    pub rustc: String,
    /// Day of the run.
    pub date: String,
    /// The command line.
    pub command: String,
    /// One-minute load average before the run: far above 0, others were at work.
    pub load: f64,
    /// The machine's limits, measured in the same process as the rows: one for each thread count.
    pub hardware: Vec<HwBench>,
    /// The rows.
    pub rows: Vec<Row>,
    /// What failed: workload and why.
    pub failures: Vec<(String, String)>,
    /// Call, fork-join, memory.
    pub overheads: Option<Overheads>,
    /// Compile latency.
    pub latencies: Vec<Latency>,
    /// Compile time against size.
    pub growth: Vec<Growth>,
    /// Size of the stripped binary `tlc`, if it was built.
    pub binary_bytes: Option<u64>,
}

/// A time with three digits.
pub fn time(ns: f64) -> String {
    let (value, unit) = match ns {
        n if n.is_nan() => return "-".to_owned(),
        n if n < 1e3 => (n, "ns"),
        n if n < 1e6 => (n / 1e3, "us"),
        n if n < 1e9 => (n / 1e6, "ms"),
        n => (n / 1e9, "s"),
    };
    let digits = match value {
        v if v < 10.0 => 2,
        v if v < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {unit}")
}

impl Report {
    /// A row, by workload and threads.
    pub fn row(&self, name: &str, threads: usize) -> Option<&Row> {
        self.rows.iter().find(|r| r.name == name && r.threads == threads)
    }

    /// The whole report.
    pub fn markdown(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "## {}\n", self.cpu)?;
        writeln!(
            out,
            "{}, {}, load average {:.1} before the run.\n",
            self.date, self.rustc, self.load
        )?;
        writeln!(out, "`{}`\n", self.command)?;
        let disturbed = self.hardware.iter().map(|h| h.disturbed_share).fold(0.0, f64::max);
        writeln!(
            out,
            "Another program had one of our cores during {:.0}% of the samples of the machine's limits.\n",
            disturbed * 100.0
        )?;
        self.write_hardware(out)?;
        writeln!(out, "### Targets\n\n| target | measured | limit | |\n|---|---|---|---|")?;
        for t in targets::all(self) {
            writeln!(out, "| {} | {} | {} | {} |", t.what, t.measured, t.limit, t.verdict())?;
        }
        let mut counts: Vec<usize> = self.rows.iter().map(|r| r.threads).collect();
        counts.dedup();
        for threads in counts {
            self.write_rows(out, threads)?;
        }
        self.write_compile(out)?;
        if !self.failures.is_empty() {
            writeln!(out, "\n### Failed\n\n| workload | why |\n|---|---|")?;
            for (name, why) in &self.failures {
                writeln!(out, "| {name} | {} |", why.replace('|', "/").replace('\n', " "))?;
            }
        }
        Ok(())
    }

    fn write_hardware(&self, out: &mut String) -> std::fmt::Result {
        let Some(h) = self.hardware.last() else { return Ok(()) };
        writeln!(
            out,
            "### Limits, measured in the same run\n\n| | 1 thread | {} threads |\n|---|---|---|",
            h.threads
        )?;
        let rates = [
            ("f32 multiply-add, GFLOP/s", h.f32_flops_per_second),
            ("f64 multiply-add, GFLOP/s", h.f64_flops_per_second),
            ("128-bit arithmetic, G/s", h.xmm_ops_per_second),
            ("128-bit, half of them loads, G/s", h.xmm_mixed_ops_per_second),
            ("128-bit multiply-adds, G/s", h.xmm_multiplies_per_second),
            ("128-bit divisions, G/s", h.xmm_divisions_per_second),
        ];
        for (what, rate) in rates {
            writeln!(
                out,
                "| {what} | {:.1} | {:.1} |",
                rate.one_thread / 1e9,
                rate.all_threads / 1e9
            )?;
        }
        writeln!(
            out,
            "| a division among multiply-adds, in multiply-adds | {:.1} | |",
            h.division_in_multiplies()
        )?;
        for row in h.bandwidth.iter().filter(|r| r.threads == 1) {
            let same = |r: &&tlc_runtime::hwbench::BandwidthRow| {
                (r.operation, r.level, r.non_temporal) == (row.operation, row.level, row.non_temporal)
            };
            let both = h.bandwidth.iter().filter(|r| r.threads == h.threads).find(same);
            let stores = if row.non_temporal && row.operation != Operation::Read {
                ", past the caches"
            } else {
                ""
            };
            let text = format!("{:?} in {:?}{stores}, GB/s", row.operation, row.level);
            writeln!(
                out,
                "| {} | {:.0} | {:.0} |",
                text.to_lowercase().replace("gb/s", "GB/s"),
                row.bytes_per_second / 1e9,
                both.map_or(f64::NAN, |r| r.bytes_per_second) / 1e9
            )?;
        }
        writeln!(out)
    }

    fn write_rows(&self, out: &mut String, threads: usize) -> std::fmt::Result {
        let plural = if threads == 1 { "" } else { "s" };
        writeln!(out, "\n### {threads} thread{plural}\n")?;
        writeln!(
            out,
            "| workload | tlc bound | tlc fresh | bytes part | instr part | mul part | x bound | x floor | best peer | tlc / peer | disturbed | all peers |"
        )?;
        writeln!(out, "|---|---|---|---|---|---|---|---|---|---|---|---|")?;
        for r in self.rows.iter().filter(|r| r.threads == threads) {
            let ours = r.time("tlc bound").unwrap_or(f64::NAN);
            let (peer, ratio) = match r.best_peer() {
                Some(p) => (
                    format!("{} {}", time(p.median_ns), p.who),
                    format!("{:.2}", ours / p.median_ns),
                ),
                None => ("-".to_owned(), "-".to_owned()),
            };
            let peers: Vec<String> = r
                .times
                .iter()
                .filter(|t| !t.who.starts_with("tlc"))
                .map(|t| format!("{} {}", t.who, time(t.median_ns)))
                .collect();
            writeln!(
                out,
                "| {} | {} | {} | {} | {} | {} | {:.2} | {:.2} | {peer} | {ratio} | {:.0}% | {} |",
                r.name,
                time(ours),
                time(r.time("tlc fresh").unwrap_or(f64::NAN)),
                time(r.bytes_ns),
                time(r.instructions_ns),
                time(r.multiplies_ns),
                r.ratio(),
                ours / r.floor_ns(),
                r.times.first().map_or(0.0, |t| t.disturbed) * 100.0,
                peers.join(", ")
            )?;
        }
        Ok(())
    }

    fn write_compile(&self, out: &mut String) -> std::fmt::Result {
        if !self.latencies.is_empty() {
            writeln!(out, "\n### Compile latency, one thread, no caches\n")?;
            writeln!(
                out,
                "| graph | first in a process | later ones | kernels |\n|---|---|---|---|"
            )?;
            for l in &self.latencies {
                writeln!(
                    out,
                    "| {} | {:.2} ms | {:.2} ms | {} |",
                    l.graph, l.first_ms, l.warm_ms, l.kernels
                )?;
            }
        }
        if !self.growth.is_empty() {
            writeln!(out, "\n### Compile time against graph size\n")?;
            writeln!(
                out,
                "| chain | nodes | record | compile | us a node |\n|---|---|---|---|---|"
            )?;
            for g in &self.growth {
                let us = g.us_per_node();
                writeln!(
                    out,
                    "| {} | {} | {:.2} ms | {:.2} ms | {us:.2} |",
                    g.chain, g.nodes, g.record_ms, g.compile_ms
                )?;
            }
        }
        if let Some(o) = &self.overheads {
            writeln!(
                out,
                "\n### Memory\n\n| graph | arena | lower bound | without sharing |\n|---|---|---|---|"
            )?;
            for (name, arena, lower, naive) in &o.arenas {
                writeln!(out, "| {name} | {arena} | {lower} | {naive} |")?;
            }
        }
        Ok(())
    }
}
