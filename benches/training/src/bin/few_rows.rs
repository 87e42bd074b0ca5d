//! Products of few rows with large matrices, as decoders compute them: beside one plain read of the matrices, and with frozen entries beside
//! entries that calls may set.
//!
//! `few_rows products [THREADS]` prints a line for each matrix and number of rows, `few_rows frozen [THREADS]` one for each stack of layers.

use std::hint::black_box;
use std::time::{Duration, Instant};

use tlc::{CompileOptions, DType, Executable, Graph, HostTensor, Input, Specialize, State};

/// How long each case is measured, at least.
const AT_LEAST: Duration = Duration::from_millis(150);
/// Calls of a case, at least.
const CALLS: usize = 20;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// The least time of many calls.
fn least(mut call: impl FnMut() -> Outcome<()>) -> Outcome<Duration> {
    let (start, mut least, mut calls) = (Instant::now(), Duration::MAX, 0);
    while calls < CALLS || start.elapsed() < AT_LEAST {
        let begin = Instant::now();
        call()?;
        least = least.min(begin.elapsed());
        calls += 1;
    }
    Ok(least)
}

/// The least times of two ways to do one thing, which take turns.
fn in_turns(mut a: impl FnMut() -> Outcome<()>, mut b: impl FnMut() -> Outcome<()>) -> Outcome<[Duration; 2]> {
    let mut both = [Duration::MAX; 2];
    for _ in 0..5 {
        both[0] = both[0].min(least(&mut a)?);
        both[1] = both[1].min(least(&mut b)?);
    }
    Ok(both)
}

fn values(count: usize, seed: usize) -> Vec<f32> {
    (0..count)
        .map(|k| ((k * 37 + seed * 11) % 101) as f32 / 500.0 - 0.1)
        .collect()
}

fn tensor(shape: &[usize], seed: usize) -> HostTensor {
    HostTensor::from_slice(shape, &values(shape.iter().product(), seed)).expect("memory for a tensor")
}

fn compiled(g: &Graph, threads: usize) -> Outcome<Executable> {
    Ok(g.compile(&CompileOptions {
        threads: Some(threads),
        specialize: Specialize::Never,
        ..CompileOptions::default()
    })?)
}

/// Reads every byte once, on so many threads.
fn read(all: &[f32], threads: usize) -> Duration {
    let sum = |part: &[f32]| {
        let mut sums = [0u32; 64];
        for block in part.chunks_exact(64) {
            for (s, v) in sums.iter_mut().zip(block) {
                *s ^= v.to_bits();
            }
        }
        black_box(sums);
    };
    let part = all.len().div_ceil(threads);
    let mut best = Duration::MAX;
    std::thread::scope(|scope| {
        // One of the threads says when.
        for own in all.chunks(part).skip(1) {
            scope.spawn(move || {
                let begin = Instant::now();
                while begin.elapsed() < Duration::from_millis(60) {
                    sum(own);
                }
            });
        }
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(50) {
            let begin = Instant::now();
            sum(&all[..part.min(all.len())]);
            best = best.min(begin.elapsed());
        }
    });
    best
}

fn products(threads: usize) -> Outcome<()> {
    println!("| k x n | stored | rows | us | GB/s | of a plain read |");
    println!("|---|---|---|---|---|---|");
    for (k, n) in [(768usize, 3072usize), (3072, 768), (4096, 4096), (1000, 1000)] {
        let plain = read(&values(k * n, 1), threads);
        for turned in [false, true] {
            for rows in [1usize, 2, 3, 4, 6, 8, 12, 16, 24, 32] {
                let g = Graph::new("product");
                let x = g.input("x", DType::F32, [rows, k]);
                let (stored, shape) = if turned { ("n x k", [n, k]) } else { ("k x n", [k, n]) };
                let w_in = g.input("w", DType::F32, shape);
                let y = if turned { x.matmul(&w_in.t()) } else { x.matmul(&w_in) };
                g.output("y", &y);
                let e = compiled(&g, threads)?;
                let (x, w) = (tensor(&[rows, k], 2), tensor(&shape, 1));
                let given = [Input::from(&x), Input::from(&w)];
                let time = least(|| Ok(drop(black_box(e.run(&given)?))))?;
                let us = time.as_secs_f64() * 1e6;
                let rate = (k * n * 4) as f64 / time.as_secs_f64() / 1e9;
                let of = plain.as_secs_f64() / time.as_secs_f64();
                println!("| {k} x {n} | {stored} | {rows} | {us:.0} | {rate:.1} | {of:.2} |");
            }
        }
    }
    Ok(())
}

/// Layers of `x + relu(x up) down`, all matrices stored with their columns one after the other where `turned`.
fn stack(rows: usize, width: usize, inner: usize, layers: usize, turned: bool) -> (Graph, State) {
    let g = Graph::new("stack");
    let mut x = g.input("x", DType::F32, [rows, width]);
    let mut state = State::new();
    for layer in 0..layers {
        let mut matrix = |name: &str, k: usize, n: usize| {
            let name = format!("{name}{layer}");
            let shape = if turned { [n, k] } else { [k, n] };
            let value = tensor(&shape, layer);
            state.insert(&name, &value).expect("memory for an entry");
            let w = g.state(&name, DType::F32, shape);
            if turned { w.t() } else { w }
        };
        let (up, down) = (matrix("up", width, inner), matrix("down", inner, width));
        x = &x + x.matmul(&up).maximum(0.0).matmul(&down);
    }
    g.output("y", &x);
    (g, state)
}

fn frozen(threads: usize) -> Outcome<()> {
    println!("| width, inner, layers | stored | rows | as it is, us | frozen, us | ratio |");
    println!("|---|---|---|---|---|---|");
    for (width, inner, layers) in [(64usize, 256usize, 2usize), (768, 3072, 6)] {
        for turned in [false, true] {
            for rows in [1usize, 4, 16, 17, 24, 32, 48, 64, 128] {
                let (g, mut plain) = stack(rows, width, inner, layers, turned);
                let (_, mut frozen) = stack(rows, width, inner, layers, turned);
                frozen.freeze(|_| true);
                let e = compiled(&g, threads)?;
                let x = tensor(&[rows, width], 2);
                let given = [Input::from(&x)];
                let [a, b] = in_turns(
                    || Ok(drop(black_box(e.run_with(&mut plain, &given)?))),
                    || Ok(drop(black_box(e.run_with(&mut frozen, &given)?))),
                )?;
                let (a, b) = (a.as_secs_f64() * 1e6, b.as_secs_f64() * 1e6);
                let stored = if turned { "n x k" } else { "k x n" };
                println!(
                    "| {width}, {inner}, {layers} | {stored} | {rows} | {a:.1} | {b:.1} | {:.2} |",
                    b / a
                );
            }
        }
    }
    Ok(())
}

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let what = arguments.next().unwrap_or_default();
    let threads = arguments.next().map_or(Ok(1), |n| n.parse())?;
    match what.as_str() {
        "products" => products(threads),
        "frozen" => frozen(threads),
        _ => Err("expected `products` or `frozen`, and a number of threads".into()),
    }
}
