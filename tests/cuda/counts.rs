//! What kernels do on a device, counted: sectors, bank conflicts, instructions. Counts are exact and the same in every run, so that
//! they stand for speed where there is no GPU.

#[path = "counts/attention.rs"]
mod attention;
#[path = "counts/elementwise.rs"]
mod elementwise;
#[path = "counts/indices.rs"]
mod indices;
#[path = "counts/long_rows.rs"]
mod long_rows;
#[path = "counts/product_rows.rs"]
mod product_rows;
#[path = "counts/products.rs"]
mod products;
#[path = "counts/reductions.rs"]
mod reductions;
#[path = "counts/rows.rs"]
mod rows;
#[path = "counts/scans.rs"]
mod scans;
#[path = "counts/scatters.rs"]
mod scatters;
#[path = "counts/transpositions.rs"]
mod transpositions;

use std::path::Path;

use serde_json::Value;
use tlc::{CompileOptions, Device, HostTensor, Precision, Scalar, Specialize, compile_ir};
use tlc_ir::text::{no_data, parse_graph};

use crate::child::simulated;

/// Graphs and what they may cost, by the kind of kernel that they are.
const KINDS: &[(&str, &[Counted])] = &[
    ("attention", attention::COUNTED),
    ("elementwise", elementwise::COUNTED),
    ("indices", indices::COUNTED),
    (LONG_ROWS, long_rows::COUNTED),
    ("product rows", product_rows::COUNTED),
    ("products", products::COUNTED),
    ("reductions", reductions::COUNTED),
    ("rows", rows::COUNTED),
    ("scans", scans::COUNTED),
    ("scatters", scatters::COUNTED),
    ("transpositions", transpositions::COUNTED),
];

/// What runs on a device of one multiprocessor.
const LONG_ROWS: &str = "long rows";

/// A graph whose launches are counted.
struct Counted {
    name: &'static str,
    /// The graph.
    text: &'static str,
    /// The most kernels that a call launches.
    kernels: usize,
    /// The most sectors that requests may touch, in hundredths of what inputs and outputs occupy.
    sectors: u64,
    /// The fewest bytes that a thread moves at once between global memory and itself, on average over warps, of which the last of a row may
    /// not be full.
    access_bytes: u64,
    /// The most cycles lost to bank conflicts.
    conflicts: u64,
    /// The most barriers that warps pass, if they are counted.
    barriers: Option<u64>,
    /// The most instructions of a thread for each 16 bytes of the output, in tenths. Beyond that a thread has `SETUP` of them.
    instructions: Option<u64>,
    /// The fewest threads of all launches together.
    threads: Option<u64>,
    /// The most instructions of a thread, on average.
    each: Option<u64>,
    /// The most requests of all launches together.
    requests: Option<u64>,
    /// How many products are added up, and the most instructions of a thread for a thousand of them.
    products: Option<[u64; 2]>,
    /// How exactly products are computed.
    precision: Precision,
    /// Values of the graph's symbols, whose kernels are those for all sizes.
    symbols: &'static [i64],
}

/// Instructions that a thread of an elementwise kernel may need before it accesses anything.
const SETUP: u64 = 24;

/// One kernel that touches what goes in and out, once, with no more said of it.
const PLAIN: Counted = Counted {
    name: "",
    text: "",
    kernels: 1,
    sectors: 100,
    access_bytes: 0,
    conflicts: 0,
    barriers: None,
    instructions: None,
    threads: None,
    each: None,
    requests: None,
    products: None,
    precision: Precision::Exact,
    symbols: &[],
};

/// Counters of the launches of one call, added up.
#[derive(Default)]
struct Sum {
    launches: usize,
    threads: u64,
    lanes: u64,
    requests: u64,
    sectors: u64,
    bytes: u64,
    conflicts: u64,
    barriers: u64,
    local: u64,
}

impl Sum {
    fn add(&mut self, launch: &Value) {
        let number = |v: &Value| v.as_u64().expect("a count");
        let threads = |what: &str| {
            let sides = launch[what].as_array().expect("sides");
            sides.iter().map(number).product::<u64>()
        };
        self.launches += 1;
        self.threads += threads("grid") * threads("block");
        self.lanes += number(&launch["lane_instructions"]);
        for traffic in [&launch["global_loads"], &launch["global_stores"]] {
            self.requests += number(&traffic["requests"]);
            self.sectors += number(&traffic["sectors"]);
            self.bytes += number(&traffic["bytes"]);
        }
        self.conflicts += number(&launch["bank_conflicts"]);
        self.barriers += number(&launch["barriers"]);
        self.local += number(&launch["local_bytes"]);
    }
}

#[test]
fn kernels_cost_what_they_may() {
    let folder = tempfile::tempdir().expect("a folder");
    println!(
        "{:23} {:>7} {:>8} {:>12} {:>9} {:>9} {:>6} {:>9} {:>8} {:>6}",
        "graph", "kernels", "threads", "instr/thread", "requests", "sectors", "ratio", "conflicts", "barriers", "local"
    );
    let mut missed = Vec::new();
    for (kind, all) in KINDS {
        let file = folder.path().join(kind);
        let path = file.to_str().expect("a path of text");
        let small = crate::one_multiprocessor(folder.path());
        let mut settings = vec![("TLC_COUNTED_KIND", *kind), ("TLC_SIM_COUNTERS", path)];
        settings.extend((*kind == LONG_ROWS).then_some(("TLC_SIM_DEVICE", &small[..])));
        let Some(printed) = simulated("counts::children::counted", &settings) else {
            return;
        };
        let launches = read(&file);
        let mut before = 0;
        for counted in all.iter().filter(|c| is_asked(c)) {
            let number = |name: &str, what: &str| -> u64 {
                let line = format!("{what} {name} ");
                let of = |l: &str| l.strip_prefix(&line)?.parse().ok();
                printed.printed(what).into_iter().find_map(of).expect("a number")
            };
            let [bytes, results, launched] = ["bytes", "results", "launched"].map(|what| number(counted.name, what));
            let mut sum = Sum::default();
            launches[before..launched as usize]
                .iter()
                .for_each(|launch| sum.add(launch));
            before = launched as usize;
            missed.extend(counted.misses(&sum, bytes, results));
        }
        assert_eq!(before, launches.len(), "{kind}");
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

/// Whether a graph is counted: each, or the one that a variable names.
fn is_asked(counted: &Counted) -> bool {
    std::env::var("TLC_COUNTED").map_or(true, |name| name == counted.name)
}

impl Counted {
    /// Prints what a call took, of which inputs and results have so many bytes, and says what of it is too much.
    fn misses(&self, sum: &Sum, bytes: u64, results: u64) -> Vec<String> {
        let each = sum.lanes as f64 / sum.threads as f64;
        let ratio = sum.sectors * 3200 / bytes;
        println!(
            "{:23} {:7} {:8} {each:12.1} {:9} {:9} {:6.2} {:9} {:8} {:6}",
            self.name,
            sum.launches,
            sum.threads,
            sum.requests,
            sum.sectors,
            ratio as f64 / 100.0,
            sum.conflicts,
            sum.barriers,
            sum.local
        );
        let mut missed = Vec::new();
        let mut at_most = |what: &str, found: u64, most: u64| {
            if found > most {
                missed.push(format!("{}: {what}: {found}, at most {most}", self.name));
            }
        };
        at_most("kernels", sum.launches as u64, self.kernels as u64);
        at_most("sectors of 100", ratio, self.sectors);
        // Each request is of a warp.
        let least = self.access_bytes * 32 * sum.requests;
        at_most("bytes of warps that move so many a thread", least, sum.bytes);
        at_most("bank conflicts", sum.conflicts, self.conflicts);
        at_most("bytes of local memory", sum.local, 0);
        at_most("barriers", sum.barriers, self.barriers.unwrap_or(sum.barriers));
        at_most("threads that there should be", self.threads.unwrap_or(0), sum.threads);
        at_most("requests", sum.requests, self.requests.unwrap_or(sum.requests));
        let most = self.each.map_or(sum.lanes, |n| n * sum.threads);
        at_most("instructions of threads", sum.lanes, most);
        if let Some([products, most]) = self.products {
            println!(
                "{:23} {:.3} instructions a product",
                "",
                sum.lanes as f64 / products as f64
            );
            at_most("instructions of a thousand products", sum.lanes * 1000 / products, most);
        }
        if let Some(instructions) = self.instructions {
            let vectors = results.div_ceil(16);
            let most = sum.threads * SETUP * 10 + vectors * instructions;
            at_most("tenths of instructions", sum.lanes * 10, most);
        }
        missed
    }
}

/// The launches that a driver counted.
fn read(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).expect("counters");
    let launch = |line: &str| serde_json::from_str(line).expect("a line of JSON");
    text.lines().map(launch).collect()
}

mod children {
    use super::*;

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn counted() {
        let kind = std::env::var("TLC_COUNTED_KIND").expect("a kind");
        let file = std::env::var("TLC_SIM_COUNTERS").expect("a file");
        let (_, all) = KINDS.iter().find(|k| k.0 == kind).expect("a kind of kernels");
        for counted in all.iter().filter(|c| is_asked(c)) {
            let (bytes, results) = run(counted);
            println!("results {} {results}", counted.name);
            println!("bytes {} {}", counted.name, results + bytes);
            println!("launched {} {}", counted.name, read(Path::new(&file)).len());
        }
    }

    /// Calls a graph once; returns how many bytes its inputs and its results have.
    fn run(counted: &Counted) -> (usize, usize) {
        let graph = parse_graph(counted.text, &mut no_data).unwrap_or_else(|e| panic!("{e:?}"));
        let inputs: Vec<HostTensor> = graph
            .inputs()
            .iter()
            .map(|&i| {
                let ty = graph.ty(i);
                let sizes: Vec<usize> = ty
                    .shape
                    .iter()
                    .map(|d| d.eval_symbols(counted.symbols).expect("a size") as usize)
                    .collect();
                let mut x = HostTensor::zeros(ty.dtype, &sizes).expect("a tensor");
                for k in 0..x.len() {
                    x.set(k, Scalar::from_f64(ty.dtype, ((k * 37 + 11) % 101) as f64 / 25.0 + 0.5));
                }
                x
            })
            .collect();
        let options = CompileOptions {
            device: Device::cuda(0),
            precision: counted.precision,
            specialize: match counted.symbols {
                [] => Specialize::default(),
                _ => Specialize::Never,
            },
            ..CompileOptions::default()
        };
        let executable = compile_ir(&graph, &options).expect("an executable");
        let given: Vec<tlc::Input<'_>> = inputs.iter().map(Into::into).collect();
        let outputs = executable.run(&given).expect("outputs");
        let results = outputs.iter().map(|o| o.to_host().bytes().len()).sum();
        (inputs.iter().map(|t| t.bytes().len()).sum(), results)
    }
}
