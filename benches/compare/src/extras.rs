//! What is not a throughput: the cost of a call and of a fork-join, compile latency and its growth, memory.

use std::hint::black_box;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use tlc::{CompileOptions, DType, Graph, Input, Tensor, inputs, outputs};
use tlc_runtime::pool::Pool;

use crate::measure::{Failure, median};
use crate::network;

/// Small costs, in nanoseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Overheads {
    /// A warm call of tiny5 into bound outputs, on one thread.
    pub tiny5_ns: f64,
    /// An empty fork-join on two threads, workers warm.
    pub fork_join_ns: f64,
    /// Each `(graph, arena bytes, lower bound bytes, bytes without sharing)`.
    pub arenas: Vec<(String, u64, u64, u64)>,
}

/// The time to compile one graph, in milliseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Latency {
    /// The graph.
    pub graph: String,
    /// Recording and compiling, the first time in a process. The code generator's own set-up is part of it.
    pub first_ms: f64,
    /// Median of the later ones in the process, each recorded anew; nothing is cached between them.
    pub warm_ms: f64,
    /// Kernels in the plan.
    pub kernels: usize,
}

/// The time to compile a chain of `nodes` operations.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Growth {
    /// Which chain.
    pub chain: String,
    /// Nodes in the recorded graph.
    pub nodes: usize,
    /// Recording, in milliseconds.
    pub record_ms: f64,
    /// Compiling, in milliseconds.
    pub compile_ms: f64,
}

impl Growth {
    /// Microseconds of compiling for each node.
    pub fn us_per_node(&self) -> f64 {
        self.compile_ms * 1e3 / self.nodes as f64
    }
}

fn options(threads: usize) -> CompileOptions {
    CompileOptions {
        threads: Some(threads),
        ..CompileOptions::default()
    }
}

fn recorded(name: &str, shapes: &[&[usize]], f: impl Fn(&[Tensor]) -> Tensor) -> Graph {
    let g = Graph::new(name);
    let inputs: Vec<Tensor> = shapes
        .iter()
        .enumerate()
        .map(|(i, &s)| g.input(&format!("x{i}"), DType::F32, s))
        .collect();
    g.output("y", &f(&inputs));
    g
}

/// Graphs whose compile latency and memory are reported.
pub const GRAPHS: [&str; 3] = ["chain10", "mlp_fwd_b64", "encoder_layer_8x128x384"];

/// Records one of [`GRAPHS`].
fn graph(name: &str) -> Graph {
    const M: &[usize] = &[1 << 20];
    match name {
        "chain10" => recorded(name, &[M, M], |t| {
            let (a, b) = (&t[0], &t[1]);
            let x = ((a * b + a) * 0.5 - b).relu();
            ((x.square() + 1.0) * a).abs() - 0.25
        }),
        "mlp_fwd_b64" => {
            let shapes: &[&[usize]] = &[&[64, 784], &[784, 256], &[256], &[256, 128], &[128], &[128, 10], &[10]];
            recorded(name, shapes, network::mlp_graph)
        }
        _ => recorded(name, &network::ENCODER, network::encoder_graph),
    }
}

/// Compiles one of [`GRAPHS`] `times` times; the process must not have compiled anything before.
///
/// # Errors
/// If it does not compile.
pub fn latency(name: &str, times: usize) -> Result<Latency, Failure> {
    let mut samples = Vec::new();
    let mut kernels = 0;
    for _ in 0..times.max(2) {
        let start = Instant::now();
        let exe = graph(name).compile(&options(1))?;
        samples.push(start.elapsed().as_secs_f64() * 1e3);
        kernels = exe.plan().kernels.len();
    }
    Ok(Latency {
        graph: name.to_owned(),
        first_ms: samples[0],
        warm_ms: median(&mut samples[1..]),
        kernels,
    })
}

/// Compiles unrolled chains of growing length: elementwise steps over one space, and rows of normalizations; stops where
/// the next is likely to take longer than `limit_s`.
///
/// # Errors
/// If one does not compile.
pub fn growth(limit_s: f64, mut each: impl FnMut(Growth)) -> Result<(), Failure> {
    type Chain = fn(&[Tensor], usize) -> Tensor;
    let chains: [(&str, Chain); 2] = [
        ("elementwise", |t, nodes| {
            let mut x = t[0].clone();
            for i in 0..nodes / 2 {
                x = (&x * &t[1]) + if i % 2 == 0 { &t[0] } else { &t[1] };
            }
            x
        }),
        ("matmul + relu", |t, nodes| {
            let mut x = t[0].clone();
            for _ in 0..nodes / 2 {
                x = x.matmul(&t[1]).relu();
            }
            x
        }),
    ];
    for (chain, f) in chains {
        for nodes in [100, 1_000, 10_000, 100_000] {
            let start = Instant::now();
            let g = recorded(chain, &[&[64, 64], &[64, 64]], |t| f(t, nodes));
            let record_ms = start.elapsed().as_secs_f64() * 1e3;
            let count = g.with_ir(|ir| ir.len());
            let start = Instant::now();
            let exe = g.compile(&options(1))?;
            let compile_ms = start.elapsed().as_secs_f64() * 1e3;
            drop(exe);
            each(Growth {
                chain: chain.to_owned(),
                nodes: count,
                record_ms,
                compile_ms,
            });
            if compile_ms / 1e3 * 10.0 > limit_s {
                break;
            }
        }
    }
    Ok(())
}

/// Measures the cost of a call and of a fork-join, and plans memory.
///
/// # Errors
/// If a graph does not compile or run.
pub fn overheads() -> Result<Overheads, Failure> {
    let exe = recorded("tiny5", &[&[16], &[16]], |t| {
        ((&t[0] + &t[1]) * &t[0] - &t[1]).relu() * 0.5
    })
    .compile(&options(1))?;
    let (a, b, mut y) = ([0.5f32; 16], [0.25f32; 16], [0f32; 16]);
    let given = inputs![&a, &b];
    let mut outs = outputs![&mut y];
    let tiny5_ns = batches(|| exe.run_into(black_box(&given), &mut outs).expect("fits"));
    let pool = Pool::new(2);
    let fork_join_ns = batches(|| {
        pool.parallel_for(2, 1, &|_, begin, _| {
            black_box(begin);
        })
        .expect("an empty body");
    });
    let mut arenas = Vec::new();
    for name in GRAPHS {
        let exe = graph(name).compile(&options(1))?;
        let inputs: Vec<Vec<usize>> = exe
            .plan()
            .inputs
            .iter()
            .map(|i| i.ty.shape.iter().map(|d| d.as_const().unwrap_or(1) as usize).collect())
            .collect();
        let zeros: Vec<Vec<f32>> = inputs.iter().map(|s| vec![0.0; s.iter().product()]).collect();
        let given: Vec<Input<'_>> = inputs
            .iter()
            .zip(&zeros)
            .map(|(shape, data)| Input::bytes(DType::F32, shape, bytemuck::cast_slice(data)))
            .collect();
        let layout = exe.layout(&given)?;
        arenas.push((
            name.to_owned(),
            layout.host().bytes,
            layout.host().lower_bound_bytes,
            layout.host().naive_bytes,
        ));
    }
    Ok(Overheads {
        tiny5_ns,
        fork_join_ns,
        arenas,
    })
}

/// Median over batches of 64 calls, so that the clock does not count.
fn batches(mut call: impl FnMut()) -> f64 {
    for _ in 0..1000 {
        call();
    }
    let mut samples: Vec<f64> = (0..2000)
        .map(|_| {
            let start = Instant::now();
            (0..64).for_each(|_| call());
            start.elapsed().as_nanos() as f64 / 64.0
        })
        .collect();
    median(&mut samples)
}
