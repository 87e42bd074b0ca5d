//! Timing one workload: every library in turn, sample by sample.
//!
//! Invariants:
//! - Libraries take turns (round-robin), so that a slow minute of the machine meets all of them.
//! - A turn is as many calls as fill four milliseconds (at least one), untimed, which bring the library's own data back into
//!   the caches as the loops that measure the machine have theirs there, and then the same number timed; a sample is their
//!   mean. What is reported is the median over samples.
//! - A sample during which our threads waited for a core (other programs were at work) does not count, if at least three
//!   others are left; the share of such samples is kept, and a workload is measured up to four times as long for them.
//! - With more than one thread a turn begins after 200 us of quiet, so that the workers of the library before, which spin
//!   for a while, are parked.
//! - The answers are compared before anything is timed.

use std::hint::black_box;
use std::time::{Duration, Instant};

use candle_core::{DType as CandleType, Device, Tensor as Candle};
use serde::{Deserialize, Serialize};
use tlc::{CompileOptions, DType, Graph, Input, OutputMut};
use tlc_codegen::clif::EmitText;
use tlc_runtime::hwbench::{BandwidthRow, HwBench};
use tlc_runtime::cpu::jit::JitOptions;
use tlc_runtime::memory::AlignedBuffer;

use crate::count::{Work, plan_work};
use crate::workload::Workload;

/// Any failure, with its text.
pub type Failure = Box<dyn std::error::Error>;

/// How long to measure.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Time for the samples of one workload.
    pub budget: Duration,
    /// The fewest samples of each library.
    pub fewest: usize,
    /// The most samples of each library.
    pub most: usize,
}

/// The time of one library.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Time {
    /// Which: `tlc bound`, `tlc fresh`, `candle`, ..
    pub who: String,
    /// Median time of a call.
    pub median_ns: f64,
    /// Number of samples.
    pub samples: usize,
    /// A quarter of the samples are faster.
    pub quartile_ns: f64,
    /// The share of all samples during which something else had a core; they count only if fewer than three others are left.
    pub disturbed: f64,
    /// Largest difference from tlc's answer, as a share of the tolerance.
    pub difference: f64,
}

/// One workload's measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The workload.
    pub name: String,
    /// Threads.
    pub threads: usize,
    /// Bytes of the inputs.
    pub reads: u64,
    /// Bytes of the outputs.
    pub writes: u64,
    /// Whether elements are f64.
    pub double: bool,
    /// What the plan computes.
    pub work: Work,
    /// As the table of peers counts.
    pub flops: f64,
    /// `bytes / bandwidth`, at this footprint and mix, the better of ordinary and non-temporal stores.
    pub bytes_ns: f64,
    /// Vector arithmetic of our kernels at the measured issue rate, or all vector instructions at the measured mixed rate,
    /// whichever is longer; and matrix products at the multiply-add peak.
    pub instructions_ns: f64,
    /// Multiply-adds and divisions of our kernels at their measured rates, a division taking from the multiply-adds what it
    /// does take on this machine, or being slower than all of them by itself; and matrix products, as above.
    pub multiplies_ns: f64,
    /// `flops / peak`.
    pub flops_ns: f64,
    /// Steps of the plan.
    pub steps: usize,
    /// Allowed difference between answers.
    pub tolerance: f64,
    /// The times, `tlc bound` first.
    pub times: Vec<Time>,
}

impl Row {
    /// Our bound: the longest of the bytes', the instructions' and the multiplications' time.
    pub fn bound_ns(&self) -> f64 {
        self.bytes_ns.max(self.instructions_ns).max(self.multiplies_ns)
    }

    /// The table of peers' floor.
    pub fn floor_ns(&self) -> f64 {
        self.bytes_ns.max(self.flops_ns)
    }

    /// The median of one library.
    pub fn time(&self, who: &str) -> Option<f64> {
        self.times.iter().find(|t| t.who == who).map(|t| t.median_ns)
    }

    /// The limits, from a measurement of the machine.
    pub fn limits(&mut self, bench: &HwBench) {
        let (all, threads) = (bench.threads, self.threads);
        let bandwidth = bench.best_bandwidth(self.reads + self.writes, self.reads, self.writes, threads);
        let bandwidth = bandwidth.map_or(1e9, |b| b.0);
        let f32_peak = bench.f32_flops_per_second.at(threads, all);
        let f64_peak = bench.f64_flops_per_second.at(threads, all);
        let arithmetic = self.work.instructions.arithmetic / bench.xmm_ops_per_second.at(threads, all);
        let mixed = self.work.instructions.total() / bench.xmm_mixed_ops_per_second.at(threads, all);
        let rate = bench.xmm_multiplies_per_second.at(threads, all);
        let instructions = &self.work.instructions;
        let multiplies = (instructions.multiplies + instructions.divisions * bench.division_in_multiplies()) / rate;
        let divisions = instructions.divisions / bench.xmm_divisions_per_second.at(threads, all);
        let products = self.work.gemm_f32_flops / f32_peak + self.work.gemm_f64_flops / f64_peak;
        let peak = if self.double { f64_peak } else { f32_peak };
        self.bytes_ns = self.bytes() / bandwidth * 1e9;
        self.instructions_ns = (arithmetic.max(mixed) + products) * 1e9;
        self.multiplies_ns = (multiplies.max(divisions) + products) * 1e9;
        self.flops_ns = self.flops / peak * 1e9;
    }

    /// Every input once and every output once.
    pub fn bytes(&self) -> f64 {
        (self.reads + self.writes) as f64
    }

    /// The fastest library that is not tlc.
    pub fn best_peer(&self) -> Option<&Time> {
        let peers = self.times.iter().filter(|t| !t.who.starts_with("tlc"));
        peers.min_by(|a, b| a.median_ns.total_cmp(&b.median_ns))
    }

    /// How far tlc, with bound outputs, is from its bound.
    pub fn ratio(&self) -> f64 {
        self.time("tlc bound").unwrap_or(f64::NAN) / self.bound_ns()
    }
}

/// A library's next call.
type Call<'a> = Box<dyn FnMut() + 'a>;

/// The median.
pub fn median(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The inputs: evenly spread numbers from a counter-based hash.
fn inputs(w: &Workload) -> Result<Vec<AlignedBuffer>, Failure> {
    let mut out = Vec::new();
    for (k, shape) in w.inputs.iter().enumerate() {
        let n: usize = shape.iter().product();
        let at = |i: usize| {
            let mut z = (i as u64 + 1)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .wrapping_add(k as u64 * 0x1234_5678_9abc_def1);
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            let unit = ((z ^ (z >> 31)) >> 40) as f64 / (1u64 << 24) as f64;
            if w.positive.contains(&k) {
                unit + 0.5
            } else {
                unit * 2.0 - 1.0
            }
        };
        let mut buffer = AlignedBuffer::zeroed(n * if w.double { 8 } else { 4 })?;
        if w.double {
            let data: &mut [f64] = bytemuck::cast_slice_mut(buffer.as_mut_slice());
            data.iter_mut().enumerate().for_each(|(i, x)| *x = at(i));
        } else {
            let data: &mut [f32] = bytemuck::cast_slice_mut(buffer.as_mut_slice());
            data.iter_mut().enumerate().for_each(|(i, x)| *x = at(i) as f32);
        }
        out.push(buffer);
    }
    Ok(out)
}

fn to_f64(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    match dtype {
        DType::F64 => bytemuck::cast_slice::<u8, f64>(bytes).to_vec(),
        DType::I64 => bytemuck::cast_slice::<u8, i64>(bytes)
            .iter()
            .map(|&x| x as f64)
            .collect(),
        _ => bytemuck::cast_slice::<u8, f32>(bytes)
            .iter()
            .map(|&x| f64::from(x))
            .collect(),
    }
}

/// "Infinitely far", in a form that JSON has.
const FAR: f64 = 1e300;

/// The largest difference, as a share of the tolerance; NaN and a wrong length are infinitely far.
fn difference(a: &[f64], b: &[f64], tolerance: f64) -> f64 {
    if a.len() != b.len() {
        return FAR;
    }
    let worst = a.iter().zip(b).map(|(x, y)| (x - y).abs());
    let worst = worst.fold(0.0, |m: f64, d| if d.is_nan() { FAR } else { m.max(d) });
    if worst == 0.0 {
        0.0
    } else {
        (worst / tolerance).min(FAR)
    }
}

/// The better of two measurements of one machine, figure by figure: what was disturbed in one is not in the other.
pub fn better(mut a: HwBench, b: &HwBench) -> HwBench {
    for row in &mut a.bandwidth {
        let same = |r: &&BandwidthRow| {
            (r.operation, r.level, r.threads, r.non_temporal)
                == (row.operation, row.level, row.threads, row.non_temporal)
        };
        if let Some(other) = b.bandwidth.iter().find(same) {
            row.bytes_per_second = row.bytes_per_second.max(other.bytes_per_second);
        }
    }
    let rates = [
        (&mut a.f32_flops_per_second, b.f32_flops_per_second),
        (&mut a.f64_flops_per_second, b.f64_flops_per_second),
        (&mut a.xmm_ops_per_second, b.xmm_ops_per_second),
        (&mut a.xmm_mixed_ops_per_second, b.xmm_mixed_ops_per_second),
        (&mut a.xmm_multiplies_per_second, b.xmm_multiplies_per_second),
        (&mut a.xmm_divisions_per_second, b.xmm_divisions_per_second),
        (
            &mut a.xmm_divisions_beside_per_second,
            b.xmm_divisions_beside_per_second,
        ),
    ];
    for (rate, other) in rates {
        rate.one_thread = rate.one_thread.max(other.one_thread);
        rate.all_threads = rate.all_threads.max(other.all_threads);
    }
    a.disturbed_share = a.disturbed_share.min(b.disturbed_share);
    a
}

/// The graph of a workload.
fn record(w: &Workload) -> Graph {
    let dtype = if w.double { DType::F64 } else { DType::F32 };
    let g = Graph::new(w.name.clone());
    let tensors: Vec<tlc::Tensor> = w
        .inputs
        .iter()
        .enumerate()
        .map(|(i, s)| g.input(&format!("x{i}"), dtype, &s[..]))
        .collect();
    for (i, t) in (w.record)(&tensors).iter().enumerate() {
        g.output(&format!("y{i}"), t);
    }
    g
}

/// What the compiler makes of a workload: its decisions, kernels and machine code.
///
/// # Errors
/// If it does not compile.
pub fn show(w: &Workload, threads: usize) -> Result<String, Failure> {
    let exe = record(w).compile(&CompileOptions {
        threads: Some(threads),
        ..CompileOptions::default()
    })?;
    let options = JitOptions {
        text: EmitText {
            listing: false,
            disasm: true,
        },
        ..JitOptions::default()
    };
    let mut out = exe.explain();
    for (i, kernel) in exe.plan().kernels.iter().enumerate() {
        let code = tlc_runtime::cpu::jit::compile(&[kernel], &options)?;
        let assembly = code.first().and_then(|c| c.disasm.as_deref()).unwrap_or_default();
        let count = crate::count::static_vector_instructions(kernel, &[]);
        out += &format!("\nkernel {i}: {count:?}\n{kernel}\n{assembly}\n");
    }
    Ok(out)
}

/// Compiles, checks and times one workload.
///
/// # Errors
/// If a library fails, or an answer is further from tlc's than the tolerance.
pub fn run(w: &Workload, threads: usize, bench: &HwBench, effort: Effort) -> Result<Row, Failure> {
    let dtype = if w.double { DType::F64 } else { DType::F32 };
    let g = record(w);
    let exe = g.compile(&CompileOptions {
        threads: Some(threads),
        ..CompileOptions::default()
    })?;
    let data = inputs(w)?;
    let given: Vec<Input<'_>> = data
        .iter()
        .zip(&w.inputs)
        .map(|(d, shape)| Input::bytes(dtype, shape, d.as_slice()))
        .collect();
    let types: Vec<DType> = exe.plan().outputs.iter().map(|o| o.ty.dtype).collect();
    let sizes: Vec<usize> = exe
        .output_shapes(&given)?
        .iter()
        .zip(&types)
        .map(|(s, t)| s.iter().product::<usize>() * t.bytes())
        .collect();
    let mut buffers = sizes
        .iter()
        .map(|&n| AlignedBuffer::zeroed(n))
        .collect::<Result<Vec<_>, _>>()?;
    exe.run_into(&given, &mut places(&types, &mut buffers))?;
    let answer = to_f64(types[0], buffers[0].as_slice());
    let mut outs = places(&types, &mut buffers);
    let tolerance = w.tolerance();

    let mut names = vec!["tlc bound", "tlc fresh"];
    let fresh = exe.run(&given)?;
    let mut differences = vec![0.0, difference(&to_f64(types[0], fresh[0].bytes()), &answer, 0.0)];
    drop(fresh);
    let candle_inputs = match &w.candle {
        None => Vec::new(),
        Some(_) => data
            .iter()
            .zip(&w.inputs)
            .map(|(d, s)| candle_tensor(d.as_slice(), s, w.double))
            .collect::<Result<_, _>>()?,
    };
    let slices: Vec<&[u8]> = data.iter().map(|d| d.as_slice()).collect();
    let mut native_out = w
        .native
        .iter()
        .map(|_| AlignedBuffer::zeroed(sizes[0]))
        .collect::<Result<Vec<_>, _>>()?;
    if let Some(f) = &w.candle {
        let y = f(&candle_inputs)?
            .flatten_all()?
            .to_dtype(CandleType::F64)?
            .to_vec1::<f64>()?;
        names.push("candle");
        differences.push(difference(&y, &answer, tolerance));
    }
    for ((who, f), out) in w.native.iter().zip(&mut native_out) {
        f(&slices, out.as_mut_slice(), threads);
        names.push(who);
        differences.push(difference(&to_f64(types[0], out.as_slice()), &answer, tolerance));
    }
    let mut calls: Vec<Call<'_>> = vec![
        Box::new(|| exe.run_into(&given, &mut outs).expect("ran before")),
        Box::new(|| drop(black_box(exe.run(&given).expect("ran before")))),
    ];
    if let Some(f) = &w.candle {
        let inputs = &candle_inputs;
        calls.push(Box::new(move || drop(black_box(f(inputs).expect("ran before")))));
    }
    for ((_, f), out) in w.native.iter().zip(&mut native_out) {
        let slices = &slices;
        calls.push(Box::new(move || f(slices, black_box(out.as_mut_slice()), threads)));
    }
    let samples = round_robin(&mut calls, threads, effort);
    drop(calls);
    let times = names
        .iter()
        .zip(samples)
        .zip(differences)
        .map(|((who, samples), difference)| {
            let (mut samples, disturbed) = samples.chosen();
            Time {
                who: (*who).to_owned(),
                median_ns: median(&mut samples),
                samples: samples.len(),
                quartile_ns: samples[samples.len() / 4],
                disturbed,
                difference,
            }
        })
        .collect();
    let reads: u64 = data.iter().map(|d| d.len() as u64).sum();
    let writes: u64 = sizes.iter().map(|&n| n as u64).sum();
    let mut row = Row {
        name: w.name.clone(),
        threads,
        reads,
        writes,
        double: w.double,
        work: plan_work(exe.plan()),
        flops: w.flops,
        bytes_ns: 0.0,
        instructions_ns: 0.0,
        multiplies_ns: 0.0,
        flops_ns: 0.0,
        steps: exe.plan().steps.len(),
        tolerance,
        times,
    };
    row.limits(bench);
    Ok(row)
}

/// Compiles a workload and lends a warm call of it, into bound outputs.
///
/// # Errors
/// If it does not compile or run.
pub fn with_call(w: &Workload, threads: usize, f: impl FnOnce(&mut dyn FnMut())) -> Result<(), Failure> {
    let dtype = if w.double { DType::F64 } else { DType::F32 };
    let exe = record(w).compile(&CompileOptions {
        threads: Some(threads),
        ..CompileOptions::default()
    })?;
    let data = inputs(w)?;
    let given: Vec<Input<'_>> = data
        .iter()
        .zip(&w.inputs)
        .map(|(d, shape)| Input::bytes(dtype, shape, d.as_slice()))
        .collect();
    let shapes = exe.output_shapes(&given)?;
    let sizes = shapes.iter().zip(&exe.plan().outputs);
    let mut buffers = sizes
        .map(|(s, o)| AlignedBuffer::zeroed(s.iter().product::<usize>() * o.ty.dtype.bytes()))
        .collect::<Result<Vec<_>, _>>()?;
    let types: Vec<DType> = exe.plan().outputs.iter().map(|o| o.ty.dtype).collect();
    let mut outs = places(&types, &mut buffers);
    exe.run_into(&given, &mut outs)?;
    f(&mut || exe.run_into(&given, &mut outs).expect("ran before"));
    Ok(())
}

/// The buffers as places for outputs of these types.
fn places<'b>(types: &[DType], buffers: &'b mut [AlignedBuffer]) -> Vec<OutputMut<'b>> {
    let all = types.iter().zip(buffers);
    all.map(|(&dtype, b)| OutputMut::bytes(dtype, b.as_mut_slice())).collect()
}

fn candle_tensor(bytes: &[u8], shape: &[usize], double: bool) -> candle_core::Result<Candle> {
    if double {
        Candle::from_slice(bytemuck::cast_slice::<u8, f64>(bytes), shape, &Device::Cpu)
    } else {
        Candle::from_slice(bytemuck::cast_slice::<u8, f32>(bytes), shape, &Device::Cpu)
    }
}

/// Samples of each call, in nanoseconds.
fn round_robin(calls: &mut [Call<'_>], threads: usize, effort: Effort) -> Vec<Samples> {
    const TURN: Duration = Duration::from_millis(4);
    let quiet = || {
        let start = Instant::now();
        while threads > 1 && start.elapsed() < Duration::from_micros(200) {
            std::hint::spin_loop();
        }
    };
    let batch: Vec<u32> = calls
        .iter_mut()
        .map(|call| {
            quiet();
            call();
            let start = Instant::now();
            call();
            let once = start.elapsed().as_nanos().max(20);
            (TURN.as_nanos() / once).clamp(1, 20_000) as u32
        })
        .collect();
    let mut samples = vec![Samples::default(); calls.len()];
    let start = Instant::now();
    loop {
        let taken = samples[0].all.len();
        let quiet_enough = samples.iter().all(|s| s.undisturbed.len() >= effort.fewest);
        let elapsed = start.elapsed();
        if taken >= effort.most
            || (taken >= effort.fewest && elapsed >= effort.budget && (quiet_enough || elapsed >= 4 * effort.budget))
        {
            return samples;
        }
        for ((call, &batch), samples) in calls.iter_mut().zip(&batch).zip(&mut samples) {
            quiet();
            for _ in 0..batch {
                call();
            }
            let waited = waited_ns(threads);
            let start = Instant::now();
            for _ in 0..batch {
                call();
            }
            let ns = start.elapsed().as_nanos() as f64;
            let waited = waited_ns(threads).saturating_sub(waited) as f64;
            samples.all.push(ns / f64::from(batch));
            if waited <= 0.02 * ns {
                samples.undisturbed.push(ns / f64::from(batch));
            }
        }
    }
}

/// Samples of one library.
#[derive(Clone, Debug, Default)]
struct Samples {
    all: Vec<f64>,
    /// Those during which our threads waited for a core for at most 2% of the time.
    undisturbed: Vec<f64>,
}

impl Samples {
    /// The samples to go by, and the share of all that were disturbed.
    fn chosen(self) -> (Vec<f64>, f64) {
        let disturbed = 1.0 - self.undisturbed.len() as f64 / self.all.len().max(1) as f64;
        let chosen = if self.undisturbed.len() >= 3 {
            self.undisturbed
        } else {
            self.all
        };
        (chosen, disturbed)
    }
}

/// How long our threads (only this one, if it works alone) have been ready to run while something else had the core, in
/// nanoseconds, as Linux accounts it; 0 elsewhere.
fn waited_ns(threads: usize) -> u64 {
    let of = |path: &std::path::Path| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.split(' ').nth(1).and_then(|t| t.parse().ok()).unwrap_or(0)
    };
    if threads == 1 {
        return of("/proc/thread-self/schedstat".as_ref());
    }
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    tasks.map(|t| of(&t.path().join("schedstat"))).sum()
}
