//! A tensor network of ten tensors: the order of contractions is what matters.
//!
//! `cargo run --release --example einsum_network` contracts `pa,pe,aqb,eqf,brc,frg,csd,gsh,dt,ht->`, the overlap of two
//! chains of tensors (matrix product states), which one nested loop would take 10^15 steps for. It prints the order that
//! the compiler found, what it costs, and checks the number against f64 contracted by hand from the other end.

use std::process::ExitCode;
use std::time::Instant;

use tlc::{CompileOptions, DType, Graph, HostTensor, Input, Tensor};

const NETWORK: &str = "pa,pe,aqb,eqf,brc,frg,csd,gsh,dt,ht->";
/// Labels p to t; the chains' own labels are [`BOND`] long.
const SITE: usize = 16;
const BOND: usize = 64;
/// Largest relative difference that rounding in f32 explains.
const TOLERANCE: f64 = 1e-4;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn extent(label: char) -> usize {
    if "pqrst".contains(label) { SITE } else { BOND }
}

/// Numbers between 0 and 2, so that the sums neither vanish nor overflow, scaled by the tensor's summed size.
fn tensor(labels: &str, seed: u32) -> Outcome<HostTensor> {
    let shape: Vec<usize> = labels.chars().map(extent).collect();
    let count: usize = shape.iter().product();
    let scale = (count as f32).sqrt().recip();
    let mut state = seed;
    let data: Vec<f32> = (0..count)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 * scale
        })
        .collect();
    Ok(HostTensor::from_slice(&shape, &data)?)
}

/// The same in f64 from the right end: the environment of two bonds moves left, one site at a time.
fn by_hand(tensors: &[HostTensor]) -> f64 {
    let at = |t: usize, i: usize| tensors[t].get(i).as_f64();
    // environment[d, h] = sum over t of dt * ht
    let mut environment: Vec<f64> = (0..BOND * BOND)
        .map(|dh| {
            (0..SITE)
                .map(|t| at(8, dh / BOND * SITE + t) * at(9, dh % BOND * SITE + t))
                .sum()
        })
        .collect();
    for (upper, lower) in [(6, 7), (4, 5), (2, 3)] {
        let mut next = vec![0.0; BOND * BOND];
        for s in 0..SITE {
            // half[c, h] = sum over d of csd * environment[d, h]
            let mut half = vec![0.0; BOND * BOND];
            for (c, row) in half.chunks_exact_mut(BOND).enumerate() {
                for d in 0..BOND {
                    let v = at(upper, (c * SITE + s) * BOND + d);
                    let from = &environment[d * BOND..][..BOND];
                    row.iter_mut().zip(from).for_each(|(r, e)| *r += v * e);
                }
            }
            for (i, sum) in next.iter_mut().enumerate() {
                let (c, g) = (i / BOND, i % BOND);
                let row = &half[c * BOND..][..BOND];
                *sum += (0..BOND)
                    .map(|h| row[h] * at(lower, (g * SITE + s) * BOND + h))
                    .sum::<f64>();
            }
        }
        environment = next;
    }
    let ends = |a: usize, e: usize| {
        (0..SITE)
            .map(|p| at(0, p * BOND + a) * at(1, p * BOND + e))
            .sum::<f64>()
    };
    environment
        .iter()
        .enumerate()
        .map(|(i, v)| v * ends(i / BOND, i % BOND))
        .sum()
}

fn run() -> Outcome<bool> {
    let operands: Vec<&str> = NETWORK.trim_end_matches("->").split(',').collect();
    let tensors: Vec<HostTensor> = (1..)
        .zip(&operands)
        .map(|(seed, labels)| tensor(labels, seed))
        .collect::<Outcome<_>>()?;
    let g = Graph::new("network");
    let inputs: Vec<Tensor> = operands
        .iter()
        .zip(&tensors)
        .map(|(name, t)| g.input(name, DType::F32, t.shape()))
        .collect();
    g.output("overlap", &tlc::einsum(NETWORK, &inputs.iter().collect::<Vec<_>>()));
    let begin = Instant::now();
    let executable = g.compile(&CompileOptions::default())?;
    let compiled = begin.elapsed().as_secs_f64();

    println!("{NETWORK}\n  p, q, r, s, t = {SITE}, the others {BOND}\n");
    let ranks: Vec<usize> = tensors.iter().map(|t| t.shape().len()).collect();
    let letters = tlc::ir::einsum::parse(NETWORK, &ranks)?.letters();
    let path = &executable.decisions().paths.first().ok_or("no order was chosen")?.path;
    for line in path.report(&letters).to_string().lines() {
        println!("  {line}");
    }
    let views: Vec<Input<'_>> = tensors.iter().map(Input::from).collect();
    let mut least = f64::INFINITY;
    let mut value = f64::NAN;
    for _ in 0..50 {
        let begin = Instant::now();
        let outputs = executable.run(&views)?;
        least = least.min(begin.elapsed().as_secs_f64());
        value = f64::from(outputs["overlap"].as_scalar::<f32>()?);
    }
    let expected = by_hand(&tensors);
    let off = ((value - expected) / expected).abs();
    println!(
        "\n  compiled in {:.1} ms, runs in {:.0} us: {:.1} GFLOP/s",
        compiled * 1e3,
        least * 1e6,
        path.flops / least / 1e9
    );
    println!("  overlap {value:.6e}; by hand in f64 {expected:.6e}; relative difference {off:.1e}");
    Ok(off <= TOLERANCE)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("the overlap is not what it should be");
            ExitCode::FAILURE
        }
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}
