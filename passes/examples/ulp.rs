//! Measures the functions of `tlc_passes::math`: largest error, where, and instructions.
//!
//! `ulp [--stride N] [--threads N] [--f64] [FUNCTION...]`: every f32 argument by default (`--stride 1`; of odd and even
//! functions those of one sign), all functions.
//! Functions of two arguments, and f64 (`--f64`), are sampled. Build with `RUSTFLAGS="-C target-feature=+fma"`, or
//! each fma is a call. Prints a markdown table.

use std::process::ExitCode;
use tlc_passes::math::Function;
use tlc_passes::math::scalar::{Scalar, count_f32, count_f64, evaluate_f32, evaluate_f64};

#[path = "../src/math/reference.rs"]
mod reference;

use reference::{error_f32, error_f64, reference};

/// The largest error so far, and where.
#[derive(Clone, Copy, Default)]
struct Worst {
    error: f64,
    x: f64,
    y: f64,
}

impl Worst {
    fn add(&mut self, error: f64, x: f64, y: f64) {
        if error > self.error {
            *self = Self { error, x, y };
        }
    }
}

/// True of odd and even functions, which work on `|x|` or with operations that are odd themselves: one sign is enough.
fn is_symmetric(function: Function) -> bool {
    use Function::*;
    matches!(
        function,
        Sin | Cos | Tan | Asin | Atan | Sinh | Cosh | Tanh | Asinh | Atanh | Erf
    )
}

/// SplitMix64.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A random float: half over all bit patterns, half with a small exponent, where most functions live.
fn random_f64(state: &mut u64) -> f64 {
    let bits = random(state);
    if random(state) & 1 == 0 {
        return f64::from_bits(bits);
    }
    let exponent = 1023 - 12 + random(state) % 22;
    f64::from_bits(bits & 0x800f_ffff_ffff_ffff | exponent << 52)
}

fn part(function: Function, double: bool, stride: u64, first: u64) -> Worst {
    let mut worst = Worst::default();
    let mut state = first;
    if double {
        for _ in 0..(1_u64 << 28) / stride {
            let x = random_f64(&mut state);
            // A power that stays in range more often than not.
            let y = if function == Function::Pow && random(&mut state) & 1 == 0 {
                random_f64(&mut state) % 1000.0 / x.abs().log2()
            } else {
                random_f64(&mut state)
            };
            worst.add(error_f64(evaluate_f64(function, x, y), reference(function, x, y)), x, y);
        }
    } else if function.arity() == 2 {
        for _ in 0..(1_u64 << 30) / stride {
            let x = random_f64(&mut state) as f32;
            // Powers of numbers close to 1 need the logarithm most exactly.
            let x = if function == Function::Pow && random(&mut state) & 3 == 0 {
                let distance = (-(1.0 + (random(&mut state) % 24) as f64)).exp2();
                (1.0 + distance * (x.fract() as f64)) as f32
            } else {
                x
            };
            let y = if function == Function::Pow && random(&mut state) & 1 == 0 {
                (random_f64(&mut state) % 150.0) as f32 / x.abs().log2()
            } else {
                random_f64(&mut state) as f32
            };
            let exact = reference(function, f64::from(x), f64::from(y));
            worst.add(
                error_f32(evaluate_f32(function, x, y), exact),
                f64::from(x),
                f64::from(y),
            );
        }
    } else {
        let step = stride as usize;
        let (low, high) = (first << 24, (first + 1) << 24);
        for bits in (low..high).step_by(step) {
            let x = f32::from_bits(bits as u32);
            worst.add(
                error_f32(evaluate_f32(function, x, 0.0), reference(function, f64::from(x), 0.0)),
                f64::from(x),
                0.0,
            );
        }
    }
    worst
}

fn measure(function: Function, double: bool, stride: u64, threads: u64) -> Worst {
    // f32 functions of one argument go by 256 blocks of leading bits, all else by seeds.
    let (blocks, stride) = if !double && function.arity() == 1 {
        (if is_symmetric(function) { 128 } else { 256 }, stride)
    } else {
        (16, stride * 16)
    };
    let mut worst = Worst::default();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    let mut worst = Worst::default();
                    for block in (thread..blocks).step_by(threads as usize) {
                        let w = part(function, double, stride, block);
                        worst.add(w.error, w.x, w.y);
                    }
                    worst
                })
            })
            .collect();
        for w in workers.into_iter().filter_map(|worker| worker.join().ok()) {
            worst.add(w.error, w.x, w.y);
        }
    });
    worst
}

fn main() -> ExitCode {
    let (mut stride, mut threads, mut double, mut functions) = (1, 1, false, Vec::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--f64" => double = true,
            "--stride" | "--threads" => {
                let Some(value) = arguments.next().and_then(|v| v.parse().ok()).filter(|&v: &u64| v > 0) else {
                    eprintln!("{argument} needs a positive number");
                    return ExitCode::from(2);
                };
                *(if argument == "--stride" {
                    &mut stride
                } else {
                    &mut threads
                }) = value;
            }
            name => {
                let Some(function) = Function::ALL.into_iter().find(|f| f.name() == name) else {
                    eprintln!("no function {name}");
                    return ExitCode::from(2);
                };
                functions.push(function);
            }
        }
    }
    if functions.is_empty() {
        functions.extend(Function::ALL);
    }
    println!("| function | instructions | of these div, sqrt | for huge arguments | largest error (ulp) | at |");
    println!("|---|---|---|---|---|---|");
    for function in functions {
        let count = |x: f64| -> Scalar<true> {
            if double {
                count_f64(function, x, 2.5)
            } else {
                count_f32(function, x as f32, 2.5)
            }
        };
        let (usual, huge) = (count(0.75), count(1e30));
        let slow = if huge.operations == usual.operations {
            String::new()
        } else {
            huge.operations.to_string()
        };
        let worst = measure(function, double, stride, threads);
        let place = if function.arity() == 2 {
            format!("{:e}, {:e}", worst.x, worst.y)
        } else {
            format!("{:e}", worst.x)
        };
        println!(
            "| {} | {} | {} | {} | {:.3} | {} |",
            function.name(),
            usual.operations,
            usual.divisions,
            slow,
            worst.error,
            place
        );
    }
    ExitCode::SUCCESS
}
