//! Ten million European options: one fused kernel against the loop that one would write by hand.
//!
//! `cargo run --release --example black_scholes` prices calls and puts by the formula of Black and Scholes (1973), with the
//! normal distribution of Abramowitz and Stegun 26.2.17, in f32. The hand-written loop computes the same formulas in the
//! same order; both are checked against f64 on a sample.

use std::process::ExitCode;
use std::time::Instant;

use tlc::{CompileOptions, DType, Executable, Graph, Input, Tensor, outputs};

const OPTIONS: usize = 10_000_000;
const RATE: f64 = 0.03;
const VOLATILITY: f64 = 0.25;
/// Largest difference from f64, as a share of the strike, that rounding in f32 explains.
const TOLERANCE: f64 = 2e-6;

/// Coefficients of the normal distribution's polynomial, highest power first.
const NORMAL: [f64; 5] = [1.330274429, -1.821255978, 1.781477937, -0.356563782, 0.319381530];
const NORMAL_SCALE: f64 = 0.2316419;
const INV_SQRT_2PI: f64 = 0.398_942_280_401_432_7;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// The normal distribution function, recorded.
fn normal(x: &Tensor) -> Tensor {
    let k = 1.0 / (1.0 + x.abs() * NORMAL_SCALE);
    let mut polynomial = &k * NORMAL[0];
    for c in &NORMAL[1..] {
        polynomial = (&polynomial + *c) * &k;
    }
    let upper = (x * x * -0.5).exp() * INV_SQRT_2PI * polynomial;
    x.ge(0.0).select(1.0 - &upper, &upper)
}

fn record() -> Graph {
    let g = Graph::new("black_scholes");
    let n = g.symbol("n", 1..=1 << 28);
    let [spot, strike, years] = ["spot", "strike", "years"].map(|name| g.input(name, DType::F32, &n));
    let spread = years.sqrt() * VOLATILITY;
    let d1 = ((&spot / &strike).log() + &years * (RATE + VOLATILITY * VOLATILITY / 2.0)) / &spread;
    let d2 = &d1 - &spread;
    let discounted = &strike * (&years * -RATE).exp();
    let call = &spot * normal(&d1) - &discounted * normal(&d2);
    g.output("call", &call);
    g.output("put", &(&call + &discounted - &spot));
    g
}

/// The same by hand, for one option.
macro_rules! by_hand {
    ($name:ident, $t:ty) => {
        fn $name(spot: $t, strike: $t, years: $t) -> [$t; 2] {
            let normal = |x: $t| {
                let k = 1.0 / (1.0 + x.abs() * NORMAL_SCALE as $t);
                let mut polynomial = k * NORMAL[0] as $t;
                for c in &NORMAL[1..] {
                    polynomial = (polynomial + *c as $t) * k;
                }
                let upper = (x * x * -0.5).exp() * INV_SQRT_2PI as $t * polynomial;
                if x >= 0.0 { 1.0 - upper } else { upper }
            };
            let (rate, volatility) = (RATE as $t, VOLATILITY as $t);
            let spread = years.sqrt() * volatility;
            let d1 = ((spot / strike).ln() + years * (rate + volatility * volatility / 2.0)) / spread;
            let d2 = d1 - spread;
            let discounted = strike * (years * -rate).exp();
            let call = spot * normal(d1) - discounted * normal(d2);
            [call, call + discounted - spot]
        }
    };
}
by_hand!(price_f32, f32);
by_hand!(price_f64, f64);

/// `count` numbers between `lo` and `hi`, always the same.
fn uniform(count: usize, lo: f32, hi: f32, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        lo + (hi - lo) * ((state >> 8) as f32 / (1 << 24) as f32)
    };
    (0..count).map(next).collect()
}

/// The least of five times, in seconds.
fn least_seconds(mut work: impl FnMut() -> Outcome<()>) -> Outcome<f64> {
    let mut least = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        work()?;
        least = least.min(start.elapsed().as_secs_f64());
    }
    Ok(least)
}

/// Largest difference of every 1009th option from f64, as a share of the strike.
fn error(inputs: &[Vec<f32>; 3], call: &[f32], put: &[f32]) -> f64 {
    let mut worst = 0f64;
    for i in (0..OPTIONS).step_by(1009) {
        let [spot, strike, years] = [0, 1, 2].map(|k| f64::from(inputs[k][i]));
        let [c, p] = price_f64(spot, strike, years);
        let off = (f64::from(call[i]) - c).abs().max((f64::from(put[i]) - p).abs());
        worst = worst.max(off / strike);
    }
    worst
}

fn run() -> Outcome<bool> {
    let inputs = [
        uniform(OPTIONS, 50.0, 150.0, 1),
        uniform(OPTIONS, 50.0, 150.0, 2),
        uniform(OPTIONS, 0.1, 3.0, 3),
    ];
    let (mut call, mut put) = (vec![0f32; OPTIONS], vec![0f32; OPTIONS]);
    let naive = least_seconds(|| {
        for i in 0..OPTIONS {
            [call[i], put[i]] = price_f32(inputs[0][i], inputs[1][i], inputs[2][i]);
        }
        Ok(())
    })?;
    println!("{OPTIONS} options, call and put, f32\n");
    println!(
        "  {:<22} {:>8}  {:>12}  {:>6}  {:>8}  error / strike",
        "", "time", "options/s", "GB/s", "speedup"
    );
    let gigabytes = (5 * 4 * OPTIONS) as f64 / 1e9;
    let line = |name: &str, seconds: f64, error: f64| {
        println!(
            "  {name:<22} {:>5.0} ms  {:>10.0} M  {:>6.1}  {:>7.1}x  {error:.1e}",
            seconds * 1e3,
            OPTIONS as f64 / seconds / 1e6,
            gigabytes / seconds,
            naive / seconds
        );
    };
    line("hand-written loop", naive, error(&inputs, &call, &put));

    let graph = record();
    let mut good = true;
    let mut last: Option<Executable> = None;
    let all = tlc::default_threads();
    for threads in if all > 1 { vec![1, all] } else { vec![1] } {
        let options = CompileOptions {
            threads: Some(threads),
            ..CompileOptions::default()
        };
        let executable = graph.compile(&options)?;
        let given = inputs.each_ref().map(Input::from);
        call.fill(f32::NAN);
        put.fill(f32::NAN);
        let seconds = least_seconds(|| Ok(executable.run_into(&given, &mut outputs![&mut call, &mut put])?))?;
        let off = error(&inputs, &call, &put);
        line(
            &format!("tlc, {threads} thread{}", if threads == 1 { "" } else { "s" }),
            seconds,
            off,
        );
        good &= off <= TOLERANCE;
        last = Some(executable);
    }
    let kernels = last.map_or(0, |e| e.plan().kernels.len());
    println!("\n  kernels: {kernels} (every input is read once, every output written once)");
    Ok(good && kernels == 1)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("the prices are not what they should be");
            ExitCode::FAILURE
        }
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}
