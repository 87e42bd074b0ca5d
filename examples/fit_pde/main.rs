//! An inverse problem: what conducts heat how well, and what heats, from sensors in a plate. Gradients go back through 200 time steps.
//!
//! `cargo run --release --example fit_pde` simulates a plate of 32x32 cells in f64, in plain Rust, and notes what 16x16 sensors read in each
//! step. From these it recovers the diffusivity and the source of heat of each cell with Adam, twice: once with all time steps in memory,
//! once with a checkpoint every 14 steps. Both take the same way; it prints how far off they end, what memory each needs and how long
//! each takes.

use std::process::ExitCode;
use std::time::Instant;

use tlc::optim::Groups;
use tlc::{CompileOptions, DType, Executable, Graph, State, Tensor, inputs, s};

/// Cells on a side; heat does not leave the plate.
const SIDE: usize = 32;
/// Cells from one sensor to the next.
const SPACING: usize = 2;
const SENSORS: usize = SIDE / SPACING;
const STEPS: usize = 200;
/// About the square root of the number of steps; it need not divide it.
const CHECKPOINT: usize = 14;
/// The fields are sums of hats around so many points on a side.
const HATS: usize = 9;
const ITERATIONS: usize = 150;
const OPTIMIZER: &str = "adam:lr=0.05";
/// How far the recovered diffusivity may be off, of its size, in the mean square.
const MAX_ERROR: f64 = 0.03;

const PARAMETERS: [&str; 2] = ["log_diffusivity", "source"];

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// A hill of height 1 around a place in the unit square.
fn hill((y, x): (f64, f64), (at_y, at_x): (f64, f64), width: f64) -> f64 {
    (-((y - at_y).powi(2) + (x - at_x).powi(2)) / (width * width)).exp()
}

/// Diffusivity times the time step over the squared spacing; at most 1/4 is stable.
fn true_diffusivity(at: (f64, f64)) -> f64 {
    0.06 + 0.12 * hill(at, (0.35, 0.3), 0.25) + 0.08 * hill(at, (0.7, 0.75), 0.3)
}

/// What a time step adds to a cell.
fn true_source(at: (f64, f64)) -> f64 {
    0.02 * hill(at, (0.6, 0.3), 0.2) - 0.02 * hill(at, (0.25, 0.7), 0.25)
}

/// Stripes that cross: heat flows everywhere at first.
fn start((y, x): (f64, f64)) -> f64 {
    (9.0 * y).sin() + (8.0 * x + 3.0 * y).cos()
}

/// A function of the cells' centers.
fn cells(f: impl Fn((f64, f64)) -> f64) -> Vec<f64> {
    let center = |k: usize| (k as f64 + 0.5) / SIDE as f64;
    (0..SIDE * SIDE)
        .map(|k| f((center(k / SIDE), center(k % SIDE))))
        .collect()
}

fn floats(values: &[f64]) -> Vec<f32> {
    values.iter().map(|v| *v as f32).collect()
}

/// What the sensors read after each step, `[STEPS, SENSORS, SENSORS]`.
fn simulate() -> Vec<f64> {
    let (a, source, mut u) = (cells(true_diffusivity), cells(true_source), cells(start));
    let mut readings = Vec::with_capacity(STEPS * SENSORS * SENSORS);
    for _ in 0..STEPS {
        let mut next: Vec<f64> = u.iter().zip(&source).map(|(u, q)| u + q).collect();
        let mut flow = |from: usize, to: usize| {
            let flux = 0.5 * (a[from] + a[to]) * (u[to] - u[from]);
            next[from] += flux;
            next[to] -= flux;
        };
        for i in 0..SIDE {
            for j in 0..SIDE - 1 {
                flow(i * SIDE + j, i * SIDE + j + 1);
                flow(j * SIDE + i, (j + 1) * SIDE + i);
            }
        }
        u = next;
        let sensors = (0..SIDE * SIDE).filter(|k| (k / SIDE) % SPACING == 0 && (k % SIDE) % SPACING == 0);
        readings.extend(sensors.map(|k| u[k]));
    }
    readings
}

/// The values of the hats at the cells of a side, `[SIDE, HATS]`: what interpolates between the points linearly.
fn hats() -> Vec<f32> {
    let value = |k: usize| {
        let at = (k / HATS) as f64 / (SIDE - 1) as f64 * (HATS - 1) as f64;
        (1.0 - (at - (k % HATS) as f64).abs()).max(0.0) as f32
    };
    (0..SIDE * HATS).map(value).collect()
}

/// The diffusivity and the source of each cell.
fn fields(g: &Graph) -> [Tensor; 2] {
    let hats = g.constant(hats()).reshape([SIDE, HATS]);
    let [log, source] = PARAMETERS.map(|name| {
        let heights = g.state(name, DType::F32, [HATS, HATS]);
        hats.matmul(&heights).matmul(&hats.transpose())
    });
    [log.exp(), source * 0.1]
}

/// A step: `u` and what flows into each cell from its neighbours and its source.
fn step(u: &Tensor, a: &Tensor, source: &Tensor) -> Tensor {
    let mut next = u + source;
    for axis in 0..2 {
        let before = |t: &Tensor| t.slice_axis(axis, s(..SIDE - 1));
        let behind = |t: &Tensor| t.slice_axis(axis, s(1..));
        let flux = (before(a) + behind(a)) * 0.5 * (behind(u) - before(u));
        let beside = |lo: i64, hi: i64| match axis {
            0 => flux.pad(&[(lo, hi), (0, 0)], 0.0),
            _ => flux.pad(&[(0, 0), (lo, hi)], 0.0),
        };
        next = next + beside(0, 1) - beside(1, 0);
    }
    next
}

/// A step of Adam on the mean square of what the sensors read otherwise.
fn record_fit(optimizer: &Groups, is_checkpointed: bool) -> Outcome<Executable> {
    let g = Graph::new("fit");
    let readings = g.input("readings", DType::F32, [STEPS, SENSORS, SENSORS]);
    let [a, source] = fields(&g);
    let u = g.constant(floats(&cells(start))).reshape([SIDE, SIDE]);
    let mut steps = g.repeat(STEPS);
    if is_checkpointed {
        steps = steps.checkpoint_every(CHECKPOINT);
    }
    let zero = g.scalar(0.0, DType::F32);
    let last = steps.carry(&u).carry(&zero).slice(&readings, 0).record(|i| {
        let next = step(&i.carried[0], &i.capture(&a), &i.capture(&source));
        let sensors = next.slice((s(..).step(SPACING as i64), s(..).step(SPACING as i64)));
        let off = (sensors - &i.slices[0]).square().sum(..);
        vec![next, &i.carried[1] + off]
    });
    let loss = &last[1] * (1.0 / (STEPS * SENSORS * SENSORS) as f64);
    let parameters: Vec<(&str, Tensor)> = (PARAMETERS.iter())
        .map(|name| (*name, g.state(name, DType::F32, [HATS, HATS])))
        .collect();
    let parameters: Vec<(&str, &Tensor)> = parameters.iter().map(|(name, t)| (*name, t)).collect();
    optimizer.minimize(&loss, &parameters);
    g.output("loss", &loss);
    Ok(g.compile(&CompileOptions::default())?)
}

/// The fields that parameters stand for.
fn record_fields() -> Outcome<Executable> {
    let g = Graph::new("fields");
    let [a, source] = fields(&g);
    g.output("diffusivity", &a);
    g.output("source", &source);
    Ok(g.compile(&CompileOptions::default())?)
}

/// How far values are off, of the size of what they should be.
fn relative_error(found: &[f32], expected: &[f64]) -> f64 {
    let off: f64 = found
        .iter()
        .zip(expected)
        .map(|(f, e)| (f64::from(*f) - e).powi(2))
        .sum();
    (off / expected.iter().map(|e| e * e).sum::<f64>()).sqrt()
}

/// What a fit found, and what it took.
struct Fit {
    losses: Vec<f32>,
    /// Of the diffusivity and of the source.
    errors: [f64; 2],
    /// Bytes between the steps of a call.
    memory: u64,
    seconds: f64,
}

fn fit(readings: &[f32], is_checkpointed: bool) -> Outcome<Fit> {
    let optimizer: Groups = OPTIMIZER.parse()?;
    let (train, fields) = (record_fit(&optimizer, is_checkpointed)?, record_fields()?);
    let mut state = State::new();
    let all = |value: f32| [[value; HATS]; HATS];
    state.insert(PARAMETERS[0], &all(0.1f32.ln()))?;
    state.insert(PARAMETERS[1], &all(0.0))?;
    optimizer.prepare(&mut state, &PARAMETERS)?;
    let memory = train.memory(&inputs![readings])?.arena;
    let begun = Instant::now();
    let mut losses = Vec::with_capacity(ITERATIONS);
    for _ in 0..ITERATIONS {
        losses.push(train.run_with(&mut state, &inputs![readings])?["loss"].as_scalar()?);
    }
    let seconds = begun.elapsed().as_secs_f64();
    let found = fields.run_with(&mut state, &inputs![])?;
    let error = |name: &str, expected: Vec<f64>| -> Outcome<f64> {
        Ok(relative_error(found[name].as_slice::<f32>()?, &expected))
    };
    Ok(Fit {
        losses,
        errors: [
            error("diffusivity", cells(true_diffusivity))?,
            error("source", cells(true_source))?,
        ],
        memory,
        seconds,
    })
}

fn run() -> Outcome<bool> {
    let readings = floats(&simulate());
    let [plain, checkpointed] = [fit(&readings, false)?, fit(&readings, true)?];
    for (name, fit) in [("every step kept", &plain), ("checkpoints", &checkpointed)] {
        println!(
            "{name:>15}: loss {:.1e} to {:.1e}, diffusivity off by {:.2}%, source by {:.2}%; {:.0} KiB, {:.2} s",
            fit.losses[0],
            fit.losses[ITERATIONS - 1],
            100.0 * fit.errors[0],
            100.0 * fit.errors[1],
            fit.memory as f64 / 1024.0,
            fit.seconds,
        );
    }
    println!(
        "{:.1} times less memory",
        plain.memory as f64 / checkpointed.memory as f64
    );
    Ok(checkpointed.errors[0] <= MAX_ERROR)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("error: the diffusivity is off by more than {MAX_ERROR}");
            ExitCode::FAILURE
        }
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}
