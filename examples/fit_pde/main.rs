//! An inverse problem: how well each part of a plate conducts heat, from sensors in it. Gradients go back through 200 time steps.
//!
//! `cargo run --release --example fit_pde` simulates a plate of 32x32 cells with known sources of heat in f64, in plain Rust, and notes what
//! 16x16 sensors read in each step. From these it recovers the diffusivity of each cell with Adam, twice: once with all time steps in
//! memory, once with a checkpoint every 20 steps. It prints how far off both end, what memory a gradient needs and how long they take.

use std::process::ExitCode;
use std::time::Instant;

use tlc::optim::Groups;
use tlc::{CompileOptions, DType, Executable, Graph, State, Tensor, grad, inputs, s};

/// Cells on a side; heat does not leave the plate.
const SIDE: usize = 32;
/// Cells from one sensor to the next.
const SPACING: usize = 2;
const SENSORS: usize = SIDE / SPACING;
const STEPS: usize = 200;
/// About the square root of the number of steps. One that divides it leaves the readings where they are; of others they are copied.
const CHECKPOINT: usize = 20;
/// The diffusivity has parameters at so many points on a side, and between them what interpolates.
const POINTS: usize = 9;
/// Diffusivity times the time step over the squared spacing: up to here steps are stable.
const MAX_DIFFUSIVITY: f64 = 0.25;
const ITERATIONS: usize = 80;
const OPTIMIZER: &str = "adam:lr=0.2";
/// How far the recovered diffusivity may be off, of its size, in the mean square.
const MAX_ERROR: f64 = 0.01;

const PARAMETERS: &str = "diffusivity";

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// A hill of height 1 around a place in the unit square.
fn hill((y, x): (f64, f64), (at_y, at_x): (f64, f64), width: f64) -> f64 {
    (-((y - at_y).powi(2) + (x - at_x).powi(2)) / (width * width)).exp()
}

/// The parameter behind the diffusivity: its sigmoid is the share of the largest one.
fn parameter(at: (f64, f64)) -> f64 {
    1.8 * hill(at, (0.35, 0.3), 0.25) + 1.2 * hill(at, (0.7, 0.75), 0.3) - 1.0
}

/// What a time step adds to a cell, which is known.
fn source((y, x): (f64, f64)) -> f64 {
    0.02 * (7.0 * x).sin() * (6.0 * y).cos()
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

/// The diffusivity that is to be found.
fn true_diffusivity() -> Vec<f64> {
    let (weights, place) = (weights(), |k: usize| k as f64 / (POINTS - 1) as f64);
    let value = |cell: usize| -> f64 {
        let weight = |cell: usize, point: usize| f64::from(weights[cell * POINTS + point]);
        (0..POINTS * POINTS)
            .map(|k| (k / POINTS, k % POINTS))
            .map(|(i, j)| weight(cell / SIDE, i) * weight(cell % SIDE, j) * parameter((place(i), place(j))))
            .sum()
    };
    (0..SIDE * SIDE)
        .map(|cell| MAX_DIFFUSIVITY / (1.0 + (-value(cell)).exp()))
        .collect()
}

/// What the sensors read after each step, `[STEPS, SENSORS, SENSORS]`.
fn simulate() -> Vec<f64> {
    let (a, source, mut u) = (true_diffusivity(), cells(source), cells(start));
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
        let rows = u.chunks_exact(SIDE).step_by(SPACING);
        readings.extend(rows.flat_map(|row| row.iter().step_by(SPACING)));
    }
    readings
}

/// What the points count in linear interpolation at the cells of a side, `[SIDE, POINTS]`.
fn weights() -> Vec<f32> {
    let value = |k: usize| {
        let at = (k / POINTS) as f64 / (SIDE - 1) as f64 * (POINTS - 1) as f64;
        (1.0 - (at - (k % POINTS) as f64).abs()).max(0.0) as f32
    };
    (0..SIDE * POINTS).map(value).collect()
}

/// The diffusivity of each cell, from the parameters at the points.
fn diffusivity(parameters: &Tensor) -> Tensor {
    let weights = parameters.graph().constant(weights()).reshape([SIDE, POINTS]);
    weights.matmul(parameters).matmul(&weights.transpose()).sigmoid() * MAX_DIFFUSIVITY
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

/// The mean square of what the sensors read otherwise.
fn loss(parameters: &Tensor, is_checkpointed: bool) -> Tensor {
    let g = parameters.graph();
    let readings = g.input("readings", DType::F32, [STEPS, SENSORS, SENSORS]);
    let a = diffusivity(parameters);
    let field = |values: Vec<f64>| g.constant(floats(&values)).reshape([SIDE, SIDE]);
    let (source, u) = (field(cells(source)), field(cells(start)));
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
    &last[1] * (1.0 / (STEPS * SENSORS * SENSORS) as f64)
}

/// A step of Adam.
fn record_fit(optimizer: &Groups, is_checkpointed: bool) -> Outcome<Executable> {
    let g = Graph::new("fit");
    let parameters = g.state(PARAMETERS, DType::F32, [POINTS, POINTS]);
    let loss = loss(&parameters, is_checkpointed);
    optimizer.minimize(&loss, &[(PARAMETERS, &parameters)]);
    g.output("loss", &loss);
    Ok(g.compile(&CompileOptions::default())?)
}

/// The gradient alone.
fn record_gradient(is_checkpointed: bool) -> Outcome<Executable> {
    let g = Graph::new("gradient");
    let parameters = g.input(PARAMETERS, DType::F32, [POINTS, POINTS]);
    g.output("d", &grad(&loss(&parameters, is_checkpointed), &[&parameters])[0]);
    Ok(g.compile(&CompileOptions::default())?)
}

/// The field that parameters stand for.
fn record_diffusivity() -> Outcome<Executable> {
    let g = Graph::new("diffusivity");
    g.output("a", &diffusivity(&g.state(PARAMETERS, DType::F32, [POINTS, POINTS])));
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
    /// How far the diffusivity is off.
    error: f64,
    /// Bytes that the gradient needs between its inputs and outputs.
    memory: u64,
    seconds: f64,
}

/// The parameters to begin with: one diffusivity everywhere.
const GUESS: [[f32; POINTS]; POINTS] = [[0.0; POINTS]; POINTS];

fn fit(readings: &[f32], is_checkpointed: bool) -> Outcome<Fit> {
    let optimizer: Groups = OPTIMIZER.parse()?;
    let train = record_fit(&optimizer, is_checkpointed)?;
    let memory = record_gradient(is_checkpointed)?.memory(&inputs![&GUESS, readings])?;
    let mut state = State::new();
    state.insert(PARAMETERS, GUESS)?;
    optimizer.prepare(&mut state, &[PARAMETERS])?;
    let begun = Instant::now();
    let mut losses = Vec::with_capacity(ITERATIONS);
    for _ in 0..ITERATIONS {
        losses.push(train.run_with(&mut state, &inputs![readings])?["loss"].as_scalar()?);
    }
    let seconds = begun.elapsed().as_secs_f64();
    let found = record_diffusivity()?.run_with(&mut state, &inputs![])?;
    Ok(Fit {
        losses,
        error: relative_error(found["a"].as_slice()?, &true_diffusivity()),
        memory: memory.arena,
        seconds,
    })
}

fn run() -> Outcome<bool> {
    let readings = floats(&simulate());
    let [kept, checkpointed] = [fit(&readings, false)?, fit(&readings, true)?];
    for (name, fit) in [("every step kept", &kept), ("checkpoints", &checkpointed)] {
        println!(
            "{name:>15}: loss {:.1e} to {:.1e}, diffusivity off by {:.3}%; {:.0} KiB, {:.2} s",
            fit.losses[0],
            fit.losses[ITERATIONS - 1],
            100.0 * fit.error,
            fit.memory as f64 / 1024.0,
            fit.seconds,
        );
    }
    println!(
        "{:.1} times less memory",
        kept.memory as f64 / checkpointed.memory as f64
    );
    Ok(kept.error.max(checkpointed.error) <= MAX_ERROR)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("error: a diffusivity is off by more than {MAX_ERROR}");
            ExitCode::FAILURE
        }
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_find_the_same_in_less_memory() {
        let readings = floats(&simulate());
        let [kept, checkpointed] = [false, true].map(|c| fit(&readings, c).expect("it fits"));
        for fit in [&kept, &checkpointed] {
            assert!(fit.error <= MAX_ERROR, "{}", fit.error);
            assert!(fit.losses[ITERATIONS - 1] < fit.losses[0] * 1e-3, "{:?}", fit.losses);
        }
        // What the forward pass computes is the same, to the bit.
        assert_eq!(kept.losses[0], checkpointed.losses[0]);
        // The states of all steps; those at the checkpoints, those between two of them, and what is being computed.
        let state = (4 * SIDE * SIDE) as u64;
        assert!(kept.memory >= STEPS as u64 * state, "{} bytes", kept.memory);
        let few = (STEPS / CHECKPOINT + CHECKPOINT + 12) as u64;
        assert!(checkpointed.memory <= few * state, "{} bytes", checkpointed.memory);
    }

    #[test]
    fn gradients_are_the_same() {
        let readings = floats(&simulate());
        let [kept, checkpointed] = [false, true].map(|c| {
            let found = record_gradient(c)
                .expect("it compiles")
                .run(&inputs![&GUESS, &readings]);
            found.expect("it runs")["d"].as_slice::<f32>().expect("floats").to_vec()
        });
        let largest = kept.iter().fold(0.0f32, |m, d| m.max(d.abs()));
        // Sums over steps are added up in another order.
        let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-5 * largest;
        assert!(kept.iter().zip(&checkpointed).all(near), "{kept:?} {checkpointed:?}");
    }
}
