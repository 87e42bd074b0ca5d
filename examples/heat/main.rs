//! Heat in a plate: a five-point stencil written as slices, one kernel a step, and a picture.
//!
//! `cargo run --release --example heat [FILE.png]` lets 512x512 points cool for 600 steps, with the edge held at zero, and
//! writes the temperature as a picture (`target/heat.png` unless another file is named). It checks the maximum principle (no point
//! gets hotter than the hottest was, none colder than the edge), that no heat appears, and every point against the same
//! steps with `ndarray`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use ndarray::{Array2, s as cut};
use tlc::{CompileOptions, DType, Executable, Graph, inputs, outputs, s};

const SIDE: usize = 512;
const STEPS: usize = 600;
/// Diffusivity times the time step over the squared spacing; at most 1/4 is stable.
const RATE: f32 = 0.24;
/// Largest difference from ndarray's result; both are f32, added in another order.
const TOLERANCE: f32 = 1e-5;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// One step: `next = u + rate * (north + south + west + east - 4 u)` inside, 0 on the edge.
fn record() -> Outcome<Executable> {
    let g = Graph::new("heat");
    let u = g.input("u", DType::F32, [SIDE, SIDE]);
    let (inside, before, behind) = (s(1..SIDE - 1), s(..SIDE - 2), s(2..));
    let center = u.slice((inside.clone(), inside.clone()));
    let north = u.slice((before.clone(), inside.clone()));
    let south = u.slice((behind.clone(), inside.clone()));
    let west = u.slice((inside.clone(), before));
    let east = u.slice((inside, behind));
    let next = &center + (north + south + west + east - &center * 4.0) * f64::from(RATE);
    g.output("next", &next.pad(&[(1, 1), (1, 1)], 0.0));
    Ok(g.compile(&CompileOptions::default())?)
}

/// A hot ring, a hot bar and a few sparks.
fn start() -> Array2<f32> {
    Array2::from_shape_fn((SIDE, SIDE), |(i, j)| {
        let (y, x) = (i as f32 / SIDE as f32 - 0.5, j as f32 / SIDE as f32 - 0.5);
        let radius = (x * x + y * y).sqrt();
        let edge = i == 0 || j == 0 || i == SIDE - 1 || j == SIDE - 1;
        match () {
            () if edge => 0.0,
            () if (0.28..0.36).contains(&radius) => 1.0,
            () if x.abs() < 0.015 && y.abs() < 0.2 => 0.8,
            () if i % 97 < 9 && j % 97 < 9 => 1.0,
            () => 0.0,
        }
    })
}

fn reference(mut u: Array2<f32>) -> Array2<f32> {
    let mut next = Array2::zeros((SIDE, SIDE));
    for _ in 0..STEPS {
        ndarray::Zip::from(next.slice_mut(cut![1..SIDE - 1, 1..SIDE - 1]))
            .and(u.windows((3, 3)))
            .for_each(|n, w| {
                *n = w[[1, 1]] + (w[[0, 1]] + w[[2, 1]] + w[[1, 0]] + w[[1, 2]] - w[[1, 1]] * 4.0) * RATE;
            });
        std::mem::swap(&mut u, &mut next);
    }
    u
}

/// Black, red, yellow, white.
fn color(heat: f32) -> [u8; 3] {
    let at = heat.clamp(0.0, 1.0).sqrt() * 3.0;
    [0.0, 1.0, 2.0].map(|from| ((at - from).clamp(0.0, 1.0) * 255.0) as u8)
}

fn write_png(path: &Path, u: &Array2<f32>) -> Outcome<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let file = std::io::BufWriter::new(std::fs::File::create(path)?);
    let mut encoder = png::Encoder::new(file, SIDE as u32, SIDE as u32);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let pixels: Vec<u8> = u.iter().flat_map(|&heat| color(heat)).collect();
    encoder.write_header()?.write_image_data(&pixels)?;
    Ok(())
}

fn total(u: &Array2<f32>) -> f64 {
    u.iter().map(|&v| f64::from(v)).sum()
}

fn run(path: &Path) -> Outcome<bool> {
    let step = record()?;
    let first = start();
    let (mut now, mut next) = (first.clone(), Array2::<f32>::zeros((SIDE, SIDE)));
    let begin = Instant::now();
    for _ in 0..STEPS {
        step.run_into(&inputs![&now], &mut outputs![&mut next])?;
        std::mem::swap(&mut now, &mut next);
    }
    let seconds = begin.elapsed().as_secs_f64();
    let begin = Instant::now();
    let expected = reference(first.clone());
    let by_ndarray = begin.elapsed().as_secs_f64();

    let least = now.iter().fold(f32::INFINITY, |a, &b| a.min(b));
    let most = now.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
    let most_before = first.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
    let off = (&now - &expected).iter().fold(0f32, |a, b| a.max(b.abs()));
    let each = seconds / STEPS as f64;
    println!(
        "{STEPS} steps of {SIDE}x{SIDE} points, {} kernel a step",
        step.plan().steps.len()
    );
    println!(
        "  tlc      {:>7.1} us a step, {:.1} GB/s",
        each * 1e6,
        (2 * 4 * SIDE * SIDE) as f64 / each / 1e9
    );
    println!(
        "  ndarray  {:>7.1} us a step, {:.1}x slower; results differ by at most {off:.1e}",
        by_ndarray / STEPS as f64 * 1e6,
        by_ndarray / seconds
    );
    println!("  temperature {least:.3} to {most:.3} (at first up to {most_before:.3})");
    println!("  heat left: {:.1} %", total(&now) / total(&first) * 100.0);
    write_png(path, &now)?;
    println!("  picture: {}", path.display());
    Ok(off <= TOLERANCE && least >= 0.0 && most <= most_before && total(&now) <= total(&first))
}

fn main() -> ExitCode {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/heat.png");
    let path = std::env::args_os().nth(1).map_or(default, PathBuf::from);
    match run(&path) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("the temperatures are not what they should be");
            ExitCode::FAILURE
        }
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}
