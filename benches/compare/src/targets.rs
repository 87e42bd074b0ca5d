//! The goals this project has set itself, beside what was measured.

use crate::report::{Report, time};

/// One goal.
pub struct Target {
    /// What it asks.
    pub what: String,
    /// What was measured, as text.
    pub measured: String,
    /// The limit, as text.
    pub limit: String,
    /// Whether it was met; `None` if not measured.
    pub met: Option<bool>,
}

impl Target {
    /// `pass`, `FAIL` or `not measured`.
    pub fn verdict(&self) -> &'static str {
        match self.met {
            Some(true) => "pass",
            Some(false) => "**FAIL**",
            None => "not measured",
        }
    }
}

fn at_most(what: impl Into<String>, value: Option<f64>, limit: f64, unit: &str) -> Target {
    Target {
        what: what.into(),
        measured: value.map_or("-".to_owned(), |v| format!("{v:.2}{unit}")),
        limit: format!("<= {limit}{unit}"),
        met: value.map(|v| v <= limit),
    }
}

fn at_least(what: impl Into<String>, value: Option<f64>, limit: f64, unit: &str) -> Target {
    Target {
        what: what.into(),
        measured: value.map_or("-".to_owned(), |v| format!("{v:.2}{unit}")),
        limit: format!(">= {limit}{unit}"),
        met: value.map(|v| v >= limit),
    }
}

/// Every goal, in the order of the list.
pub fn all(report: &Report) -> Vec<Target> {
    let ratio = |name: &str, threads| report.row(name, threads).map(crate::measure::Row::ratio);
    let bound = |name: &str, threads| report.row(name, threads).and_then(|r| r.time("tlc bound"));
    let speedup = |name: &str| Some(bound(name, 1)? / bound(name, 2)?);
    let mut out = Vec::new();
    for name in ["add_1024x1024", "fma_relu_1m", "chain10_1m"] {
        out.push(at_most(format!("{name}, against bound"), ratio(name, 1), 1.15, "x"));
        out.push(at_most(
            format!("{name}, 2 threads, against bound"),
            ratio(name, 2),
            1.3,
            "x",
        ));
    }
    for name in ["add_16m", "fma_relu_16m", "chain10_16m"] {
        for threads in [1, 2] {
            let value = report
                .row(name, threads)
                .and_then(|r| Some(r.time("tlc bound")? / r.bytes_ns));
            out.push(at_most(
                format!("{name}, {threads} thread(s), against bytes / bandwidth, past the caches or not"),
                value,
                1.35,
                "x",
            ));
        }
        let fresh = report
            .row(name, 1)
            .and_then(|r| Some(r.time("tlc fresh")? / r.time("tlc bound")?));
        out.push(at_most(format!("{name}, fresh against bound outputs"), fresh, 1.1, "x"));
    }
    for name in ["exp_1m", "sigmoid_1m", "tanh_1m", "gelu_tanh_1m"] {
        out.push(at_most(format!("{name}, against bound"), ratio(name, 1), 1.25, "x"));
    }
    for name in [
        "sum_all_1024x1024",
        "sum_axis0_1024",
        "sum_axis1_1024",
        "max_axis1_1024",
        "argmax_axis1_1024",
    ] {
        out.push(at_most(format!("{name}, against bound"), ratio(name, 1), 1.2, "x"));
        out.push(at_least(
            format!("{name}, 2 threads against 1"),
            speedup(name),
            1.7,
            "x",
        ));
    }
    for name in ["softmax_4096x1024", "layernorm_4096x1024", "rmsnorm_4096x1024"] {
        out.push(at_most(format!("{name}, against bound"), ratio(name, 1), 1.3, "x"));
    }
    let candle = |name: &str| {
        report
            .row(name, 1)
            .and_then(|r| Some(r.time("tlc bound")? / r.time("candle")?))
    };
    out.push(at_most(
        "log_softmax_4096x10, against candle",
        candle("log_softmax_4096x10"),
        0.5,
        "x",
    ));
    for name in ["transpose_1024", "transpose_4096"] {
        let value = report
            .row(name, 1)
            .and_then(|r| Some(r.time("tlc bound")? / r.floor_ns()));
        out.push(at_most(format!("{name}, against floor"), value, 2.5, "x"));
    }
    for n in [256, 512, 1000, 1024, 2048] {
        let name = format!("matmul_{n}");
        let peak = report
            .row(&name, 1)
            .and_then(|r| Some(r.flops_ns / r.time("tlc bound")?));
        out.push(at_least(
            format!("{name}, share of the multiply-add peak"),
            peak,
            0.9,
            "",
        ));
        out.push(at_least(
            format!("{name}, 2 threads against 1"),
            speedup(&name),
            1.8,
            "x",
        ));
    }
    let overheads = report.overheads.as_ref();
    out.push(at_most(
        "five tiny operations, warm, bound outputs",
        overheads.map(|o| o.tiny5_ns / 1e3),
        0.25,
        " us",
    ));
    out.push(at_most(
        "empty fork-join, two threads",
        overheads.map(|o| o.fork_join_ns / 1e3),
        1.0,
        " us",
    ));
    let shared = report.hardware.last().map(|h| h.fork_join_shared_ns / 1e3);
    out.push(at_most(
        "fork-join in which both threads take a chunk",
        shared,
        1.0,
        " us",
    ));
    for (graph, limit) in [
        ("chain10", 0.5),
        ("mlp_fwd_b64", 3.0),
        ("encoder_layer_8x128x384", 15.0),
    ] {
        let l = report.latencies.iter().find(|l| l.graph == graph);
        out.push(at_most(
            format!("compile {graph}, first in a process"),
            l.map(|l| l.first_ms),
            limit,
            " ms",
        ));
        out.push(at_most(
            format!("compile {graph}, later in the process"),
            l.map(|l| l.warm_ms),
            limit,
            " ms",
        ));
    }
    let mut chains: Vec<&str> = report.growth.iter().map(|g| g.chain.as_str()).collect();
    chains.dedup();
    for chain in chains {
        let of: Vec<_> = report.growth.iter().filter(|g| g.chain == chain).collect();
        // The short ones carry what any compilation costs, so growth is judged from 1,000 nodes on.
        let (first, last) = (of.get(1), of.last());
        let value = first.zip(last).map(|(a, b)| b.us_per_node() / a.us_per_node());
        let reached = last.is_some_and(|l| l.nodes >= 90_000);
        let mut t = at_most(
            format!("compile time a node, {chain}: longest chain against 1,000 nodes"),
            value,
            1.5,
            "x",
        );
        if let Some(last) = last {
            t.measured = format!("{} ({:.1} us a node at {})", t.measured, last.us_per_node(), last.nodes);
        }
        t.met = t.met.map(|m| m && reached);
        out.push(t);
    }
    for (name, arena, lower, _) in overheads.iter().flat_map(|o| &o.arenas) {
        let value = if *lower == 0 {
            1.0
        } else {
            *arena as f64 / *lower as f64
        };
        out.push(at_most(
            format!("arena of {name}, against the lower bound"),
            Some(value),
            1.05,
            "x",
        ));
    }
    out.push(at_most(
        "binary `tlc`, stripped",
        report.binary_bytes.map(|b| b as f64 / 1e6),
        12.0,
        " MB",
    ));
    out
}

/// A line for the terminal: how a row went.
pub fn line(row: &crate::measure::Row) -> String {
    let peer = row
        .best_peer()
        .map_or(String::new(), |p| format!("{} {}", p.who, time(p.median_ns)));
    format!(
        "{:<28} {} thread(s)  {:>9} bound {:>9} fresh  {:>6.2}x bound  {peer}",
        row.name,
        row.threads,
        time(row.time("tlc bound").unwrap_or(f64::NAN)),
        time(row.time("tlc fresh").unwrap_or(f64::NAN)),
        row.ratio()
    )
}
