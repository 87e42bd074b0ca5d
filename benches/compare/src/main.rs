//! Runs tlc beside candle, ndarray and gemm in one process, checks that the answers agree, and writes what it measured as
//! Markdown, JSON and pictures.
//!
//! ```text
//! cargo run --release --manifest-path benches/compare/Cargo.toml -- [--threads 1,2] [--filter TEXT] [--out DIR] [--quick]
//! ```
//!
//! The program starts itself again for every thread count, because candle's pool (rayon) takes its size from the
//! environment once a process; some times over, because processes differ; and for every compile latency, which is that of
//! a fresh process.
//!
//! Cargo unifies features, so candle's matrix products run on `gemm` with the feature `x86-v4` here, about twice as fast as
//! by default.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use clap::Parser;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tlc_runtime::hwbench::{Effort as HardwareEffort, HwBench};
use tlc_runtime::pool::{Pool, default_threads};

use tlc_compare::measure::{Effort, Failure, Row};
use tlc_compare::report::Report;
use tlc_compare::{extras, measure, plot, targets, workload};

/// Measures tlc beside other libraries and beside what the machine can do.
#[derive(Parser, Clone, Debug)]
struct Arguments {
    /// Thread counts.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    threads: Vec<usize>,
    /// Only workloads whose names contain one of these texts, separated by commas; then nothing but workloads is measured.
    #[arg(long, value_delimiter = ',')]
    filter: Vec<String>,
    /// Where the results go.
    #[arg(long, default_value = "benches/compare/out")]
    out: PathBuf,
    /// A few minutes less: short samples, no large workloads.
    #[arg(long)]
    quick: bool,
    /// The day that the report states.
    #[arg(long)]
    date: Option<String>,
    /// Prints what the compiler makes of one workload, with its machine code, and measures nothing.
    #[arg(long, value_name = "WORKLOAD")]
    show: Option<String>,
    /// What this process measures (used by the program itself).
    #[arg(long, hide = true)]
    part: Option<String>,
}

/// What the process of one thread count found.
#[derive(Serialize, Deserialize)]
struct Rows {
    hardware: HwBench,
    rows: Vec<Row>,
    failures: Vec<(String, String)>,
}

/// Processes in which every row is measured: where in physical memory a process has its arrays decides a fifth of the speed of
/// what is bound by the last cache, and neighbours half of the memory's. Each measures the machine's limits for itself, and
/// of each row the process counts in which tlc's distance from them is the median.
const PROCESSES: usize = 3;

/// What several processes found, as one.
fn middle(found: Vec<Rows>) -> Option<Rows> {
    let mut all = found.into_iter();
    let mut first = all.next()?;
    let others: Vec<Rows> = all.collect();
    for row in &mut first.rows {
        let again = others.iter().flat_map(|o| &o.rows).filter(|r| r.name == row.name);
        let mut each: Vec<&Row> = again.collect();
        let own = row.clone();
        each.push(&own);
        each.sort_by(|a, b| a.ratio().total_cmp(&b.ratio()));
        *row = each[each.len() / 2].clone();
    }
    for other in others {
        first.hardware = measure::better(first.hardware, &other.hardware);
        first.failures.extend(other.failures);
    }
    Some(first)
}

fn rows(arguments: &Arguments) -> Result<Rows, Failure> {
    let threads = arguments.threads[0];
    let measure_hardware = || HwBench::measure(&Pool::new(default_threads()), HardwareEffort::NORMAL, &mut |_, _| {});
    let mut hardware = measure_hardware()?;
    let effort = Effort {
        budget: Duration::from_millis(if arguments.quick { 100 } else { 300 }),
        fewest: 5,
        most: 301,
    };
    let (mut rows, mut failures) = (Vec::new(), Vec::new());
    for w in workload::all(!arguments.quick) {
        if !arguments.filter.is_empty() && !arguments.filter.iter().any(|f| w.name.contains(f.as_str())) {
            continue;
        }
        match measure::run(&w, threads, &hardware, effort) {
            Ok(row) => {
                eprintln!("{}", targets::line(&row));
                for t in row.times.iter().filter(|t| t.difference > 1.0) {
                    let why = format!(
                        "{} differs from tlc by {:.1} tolerances of {:.2e}",
                        t.who, t.difference, row.tolerance
                    );
                    eprintln!("  {why}");
                    failures.push((format!("{} on {threads}", w.name), why));
                }
                rows.push(row);
            }
            Err(e) => {
                eprintln!("{}: {e}", w.name);
                failures.push((format!("{} on {threads}", w.name), e.to_string()));
            }
        }
    }
    hardware = measure::better(hardware, &measure_hardware()?);
    rows.iter_mut().for_each(|row| row.limits(&hardware));
    Ok(Rows {
        hardware,
        rows,
        failures,
    })
}

/// Runs this program again for one part and reads its answer.
fn part<T: DeserializeOwned>(arguments: &Arguments, name: &str, threads: usize) -> Result<T, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--part", name, "--threads", &threads.to_string()]);
    if !arguments.filter.is_empty() {
        command.args(["--filter", &arguments.filter.join(",")]);
    }
    if arguments.quick {
        command.arg("--quick");
    }
    let output = command
        .env("RAYON_NUM_THREADS", threads.to_string())
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(format!("{name} on {threads} threads: {}", output.status).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// The answer of one part, as JSON.
fn answer(arguments: &Arguments, part: &str) -> Result<String, Failure> {
    Ok(match part.split_once(':') {
        None if part == "rows" => serde_json::to_string(&rows(arguments)?)?,
        None if part == "overheads" => serde_json::to_string(&extras::overheads()?)?,
        None if part == "growth" => {
            let mut all = Vec::new();
            let limit_s = if arguments.quick { 5.0 } else { 90.0 };
            extras::growth(limit_s, |g| {
                eprintln!(
                    "{} nodes ({}): {:.2} ms, {:.2} us a node",
                    g.nodes,
                    g.chain,
                    g.compile_ms,
                    g.us_per_node()
                );
                all.push(g);
            })?;
            serde_json::to_string(&all)?
        }
        Some(("latency", graph)) => serde_json::to_string(&extras::latency(graph, 31)?)?,
        _ => return Err(format!("no part {part}").into()),
    })
}

fn command_output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map_or("unknown".to_owned(), |o| {
        String::from_utf8_lossy(&o.stdout).trim().to_owned()
    })
}

fn compare(arguments: &Arguments) -> Result<Report, Failure> {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().and_then(|l| l.parse().ok()).unwrap_or(f64::NAN);
    let tlc = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/release/tlc");
    let given: Vec<String> = std::env::args().skip(1).collect();
    let mut report = Report {
        cpu: String::new(),
        rustc: command_output("rustc", &["--version"]),
        date: arguments
            .date
            .clone()
            .unwrap_or_else(|| command_output("date", &["+%Y-%m-%d"])),
        command: format!(
            "cargo run --release --manifest-path benches/compare/Cargo.toml -- {}",
            given.join(" ")
        ),
        load,
        hardware: Vec::new(),
        rows: Vec::new(),
        failures: Vec::new(),
        overheads: None,
        latencies: Vec::new(),
        growth: Vec::new(),
        binary_bytes: std::fs::metadata(tlc).ok().map(|m| m.len()),
    };
    for &threads in &arguments.threads {
        let all = (0..PROCESSES).map(|_| part(arguments, "rows", threads));
        let found = middle(all.collect::<Result<_, _>>()?).ok_or("no process ran")?;
        report.cpu = found.hardware.cpu_model.clone();
        report.hardware.push(found.hardware);
        report.rows.extend(found.rows);
        report.failures.extend(found.failures);
    }
    if arguments.filter.is_empty() {
        report.overheads = Some(part(arguments, "overheads", 2)?);
        for graph in extras::GRAPHS {
            // The first in a process is the median over five processes.
            let mut all = Vec::new();
            for _ in 0..5 {
                all.push(part::<extras::Latency>(arguments, &format!("latency:{graph}"), 1)?);
            }
            let mut latency = all[4].clone();
            latency.first_ms = measure::median(&mut all.iter().map(|l| l.first_ms).collect::<Vec<_>>());
            report.latencies.push(latency);
        }
        match part(arguments, "growth", 1) {
            Ok(growth) => report.growth = growth,
            Err(e) => report.failures.push(("growth".to_owned(), e.to_string())),
        }
    }
    Ok(report)
}

fn run(arguments: &Arguments) -> Result<bool, Failure> {
    if let Some(part) = &arguments.part {
        println!("{}", answer(arguments, part)?);
        return Ok(true);
    }
    if let Some(name) = &arguments.show {
        let all = workload::all(true);
        let w = all
            .iter()
            .find(|w| w.name == *name)
            .ok_or_else(|| format!("no workload {name}"))?;
        print!("{}", measure::show(w, arguments.threads[0])?);
        return Ok(true);
    }
    std::fs::create_dir_all(&arguments.out)?;
    let report = compare(arguments)?;
    std::fs::write(arguments.out.join("results.md"), report.markdown())?;
    std::fs::write(
        arguments.out.join("results.json"),
        serde_json::to_string_pretty(&report)?,
    )?;
    for &threads in &arguments.threads {
        let rows: Vec<&Row> = report.rows.iter().filter(|r| r.threads == threads).collect();
        plot::draw(
            &arguments.out.join(format!("results-{threads}.svg")),
            &rows,
            &report.cpu,
        )?;
    }
    eprintln!("wrote {}", arguments.out.join("results.md").display());
    Ok(report.failures.is_empty())
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("some workloads failed or disagreed");
            ExitCode::FAILURE
        }
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}
