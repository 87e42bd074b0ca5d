//! `tlc hwbench --device cuda`: how fast a GPU copies, computes and begins.
//!
//! Copies are the driver's, products of matrices a kernel of their own; the rest are kernels as tlc makes them, timed by the device's events.

use std::time::Instant;

use serde_json::{Value, json};
use tlc::explain::time_text;
use tlc::{CompileOptions, DType, Device, Executable, Graph, Input, OutputMut, Specialize};
use tlc_runtime::cuda::{self, GraphLaunch, MatrixRates, Properties, Transfers};

use crate::data::number_json;
use crate::failure::{Code, Failure};
use crate::session::Session;

/// Fused multiply-adds of each element: far more than its bytes take.
const CHAIN: usize = 256;

/// How much of everything.
struct Effort {
    /// Bytes of a copy.
    copied: usize,
    /// Elements that are computed with.
    elements: usize,
    /// Rounds of products of matrices, and blocks that do them.
    rounds: [u32; 2],
    /// Times of each, of which the best counts.
    times: usize,
}

/// What was measured.
struct Measured {
    transfers: Transfers,
    f32_flops_per_second: f64,
    matrices: MatrixRates,
    /// The device's time of the smallest kernel.
    kernel_ns: f64,
    /// A launch of a captured graph alone.
    graph: GraphLaunch,
    /// The host's time of a call with the smallest kernel, inputs and outputs.
    call_ns: f64,
}

/// Runs the command. `effort` is from 0 to 2.
pub fn run(session: &Session, number: u32, effort: usize) -> Result<(), Failure> {
    let context = cuda::open(number).map_err(|e| Failure::new(Code::Unsupported, e.to_string()))?;
    let device = context.properties();
    let failed = |e: &dyn std::fmt::Display| Failure::new(Code::Failed, format!("cuda:{number}: {e}"));
    let (free, _) = context.memory().map_err(|e| failed(&e))?;
    let times = [5, 20, 100][effort];
    let effort = match device.simulated {
        // Each element takes microseconds there.
        true => Effort {
            copied: 1 << 20,
            elements: 1 << 10,
            rounds: [2, 1],
            times: 2,
        },
        false => Effort {
            copied: usize::try_from(free / 8).unwrap_or(usize::MAX).min(512 << 20),
            elements: 1 << 24,
            // Two blocks a multiprocessor, and about half a millisecond.
            rounds: [4096, 2 * device.multiprocessors.max(1)],
            times,
        },
    };
    let transfers = cuda::transfers(&context, effort.copied, effort.times).map_err(|e| failed(&e))?;
    let chain = chain(number, effort.elements, CHAIN)?;
    let computed = kernel_ns(&chain, effort.elements, effort.times)?;
    let [rounds, blocks] = effort.rounds;
    let matrices = cuda::matrix_rates(&context, blocks, rounds, effort.times).map_err(|e| failed(&e))?;
    let smallest = self::chain(number, 1, 1)?;
    let measured = Measured {
        transfers,
        matrices,
        f32_flops_per_second: (2 * CHAIN * effort.elements) as f64 / computed * 1e9,
        kernel_ns: kernel_ns(&smallest, 1, effort.times)?,
        graph: cuda::graph_launch(&context, effort.times).map_err(|e| failed(&e))?,
        call_ns: call_ns(&smallest, effort.times)?,
    };
    match session.console.json() {
        true => session.console.json_result(&for_programs(device, &measured))?,
        false => session.console.result(&table(device, &measured))?,
    }
    session.note_simulated();
    Ok(())
}

/// `y = y * x + x` so many times, of each element.
fn chain(number: u32, elements: usize, length: usize) -> Result<Executable, Failure> {
    let g = Graph::new("chain");
    let x = g.input("x", DType::F32, [elements]);
    let mut y = x.clone();
    for _ in 0..length {
        y = y.fma(&x, &x);
    }
    g.output("y", &y);
    let options = CompileOptions {
        device: Device::cuda(number),
        specialize: Specialize::Never,
        ..CompileOptions::default()
    };
    g.compile(&options).map_err(|e| Failure::build("hwbench", &e))
}

/// The least time that the kernel of a chain takes, as the device says.
fn kernel_ns(executable: &Executable, elements: usize, times: usize) -> Result<f64, Failure> {
    let x = vec![0.5f32; elements];
    let inputs = [Input::from(&x)];
    let is_kernel = |step: usize| !executable.plan().steps[step].launches().is_empty();
    let mut y = vec![0f32; elements];
    let mut least = f64::INFINITY;
    for _ in 0..times + 1 {
        let mut steps = Vec::new();
        executable
            .run_profiled(&inputs, &mut [OutputMut::from(&mut y[..])], &mut steps)
            .map_err(|e| Failure::run("hwbench", &e))?;
        let ns: u64 = steps.iter().filter(|s| is_kernel(s.step)).map(|s| s.ns).sum();
        least = least.min(ns.max(1) as f64);
    }
    Ok(least)
}

/// The least time of a warm call of a chain of one element.
fn call_ns(executable: &Executable, times: usize) -> Result<f64, Failure> {
    let (x, mut y) = ([0.5f32], [0f32]);
    let inputs = [Input::from(&x)];
    let mut least = f64::INFINITY;
    // The first two find memory and record.
    for _ in 0..2 + 10 * times {
        let start = Instant::now();
        executable
            .run_into(&inputs, &mut [OutputMut::from(&mut y[..])])
            .map_err(|e| Failure::run("hwbench", &e))?;
        least = least.min(start.elapsed().as_nanos() as f64);
    }
    Ok(least)
}

fn table(device: &Properties, m: &Measured) -> String {
    let mut out = format!("{}, driver {}\n\n", device.title(), device.driver);
    for (name, value) in [
        (
            "copies within its memory (read and written)",
            format!("{:.1} GB/s", m.transfers.within / 1e9),
        ),
        (
            "copies from the host",
            format!("{:.1} GB/s", m.transfers.from_host / 1e9),
        ),
        ("copies to the host", format!("{:.1} GB/s", m.transfers.to_host / 1e9)),
        (
            "f32 multiply-add",
            format!("{:.1} GFLOP/s", m.f32_flops_per_second / 1e9),
        ),
        (
            "f16 products of matrices (mma.sync)",
            format!("{:.1} GFLOP/s", m.matrices.f16 / 1e9),
        ),
        (
            "bf16 products of matrices",
            format!("{:.1} GFLOP/s", m.matrices.bf16 / 1e9),
        ),
        (
            "tf32 products of matrices",
            format!("{:.1} GFLOP/s", m.matrices.tf32 / 1e9),
        ),
        ("the smallest kernel", time_text(m.kernel_ns)),
        (
            "a captured graph of one kernel, for the host",
            time_text(m.graph.host_ns),
        ),
        ("the same, for the device", time_text(m.graph.device_ns)),
        ("a call with it, its input and its output", time_text(m.call_ns)),
    ] {
        out += &format!("{name:<44} {value:>16}\n");
    }
    out
}

fn for_programs(device: &Properties, m: &Measured) -> Value {
    json!({
        "device": device.title(),
        "driver": device.driver,
        "simulated": device.simulated,
        "copied_bytes_per_second": number_json(m.transfers.within),
        "from_host_bytes_per_second": number_json(m.transfers.from_host),
        "to_host_bytes_per_second": number_json(m.transfers.to_host),
        "f32_flops_per_second": number_json(m.f32_flops_per_second),
        "f16_matrix_flops_per_second": number_json(m.matrices.f16),
        "bf16_matrix_flops_per_second": number_json(m.matrices.bf16),
        "tf32_matrix_flops_per_second": number_json(m.matrices.tf32),
        "kernel_ns": number_json(m.kernel_ns),
        "graph_host_ns": number_json(m.graph.host_ns),
        "graph_device_ns": number_json(m.graph.device_ns),
        "call_ns": number_json(m.call_ns),
    })
}
