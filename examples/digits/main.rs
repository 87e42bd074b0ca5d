//! Handwritten digits: two trained classifiers, recorded, fused, compiled, run and explained.
//!
//! `cargo run --release --example digits` classifies the 360 held-out images of scikit-learn's digits with a multi-layer
//! perceptron and a small convolutional network, compares every logit with what the training script computed, prints
//! what the compiler made of each network, and how long one image takes. `-- --device cuda` does it on a GPU, of which
//! `tests/gpu/with-simulator` simulates one.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use tlc::formats::{npz, safetensors};
use tlc::{CompileOptions, Conv, DType, Device, Executable, Graph, HostTensor, Pool, Tensor, inputs};

const DIGITS: &[u8] = include_bytes!("digits.npz");
const REFERENCE: &[u8] = include_bytes!("reference.npz");
const MLP: &[u8] = include_bytes!("mlp.safetensors");
const CNN: &[u8] = include_bytes!("cnn.safetensors");

/// The largest difference from the reference logits that rounding explains.
const TOLERANCE: f32 = 1e-4;
/// Below this share of right answers something is wrong.
const MIN_ACCURACY: f64 = 0.96;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// The weights of a file as constants of a graph, by name.
struct Weights<'g> {
    graph: &'g Graph,
    tensors: Vec<(String, HostTensor)>,
}

impl<'g> Weights<'g> {
    fn load(graph: &'g Graph, file: &[u8]) -> Outcome<Weights<'g>> {
        Ok(Weights {
            graph,
            tensors: safetensors::read(file)?,
        })
    }

    fn get(&self, name: &str) -> Outcome<Tensor> {
        let found = self.tensors.iter().find(|(n, _)| n == name);
        let (_, data) = found.ok_or_else(|| format!("no tensor {name} in the weights"))?;
        Ok(self.graph.constant(data))
    }

    /// `x @ weight.T + bias`.
    fn linear(&self, name: &str, x: &Tensor) -> Outcome<Tensor> {
        let (w, b) = (self.get(&format!("{name}.weight"))?, self.get(&format!("{name}.bias"))?);
        Ok(x.linear(&w, Some(&b)))
    }

    /// A 3x3 convolution that keeps the image's size.
    fn conv(&self, name: &str, x: &Tensor) -> Outcome<Tensor> {
        let (w, b) = (self.get(&format!("{name}.weight"))?, self.get(&format!("{name}.bias"))?);
        Ok(x.conv2d(&w, Some(&b), &Conv::new().padding(1)))
    }
}

/// `images [n, 8, 8]`, pixels 0 to 16, to `logits [n, 10]`, and the largest one's position.
fn record(name: &str, device: Device, build: impl Fn(&Graph, &Tensor) -> Outcome<Tensor>) -> Outcome<Executable> {
    let g = Graph::new(name);
    let n = g.symbol("n", 1..=4096);
    let images = g.input("images", DType::U8, (&n, 8, 8));
    let logits = build(&g, &(images.cast(DType::F32) * (1.0 / 16.0)))?;
    g.output("logits", &logits);
    g.output("digit", &logits.argmax(-1));
    let options = CompileOptions {
        device,
        ..CompileOptions::default()
    };
    Ok(g.compile(&options)?)
}

fn mlp(g: &Graph, images: &Tensor) -> Outcome<Tensor> {
    let weights = Weights::load(g, MLP)?;
    let x = images.reshape((images.dim(0), 64));
    let x = weights.linear("fc1", &x)?.relu();
    let x = weights.linear("fc2", &x)?.relu();
    weights.linear("fc3", &x)
}

fn cnn(g: &Graph, images: &Tensor) -> Outcome<Tensor> {
    let weights = Weights::load(g, CNN)?;
    let x = images.reshape((images.dim(0), 1, 8, 8));
    let x = weights.conv("conv1", &x)?.relu();
    let x = weights.conv("conv2", &x)?.relu().max_pool(&Pool::new(2));
    weights.linear("fc", &x.reshape((images.dim(0), 512)))
}

/// Median seconds of one call, of at most 101 within a second.
fn median_seconds(executable: &Executable, images: &HostTensor) -> Outcome<f64> {
    let mut samples = Vec::with_capacity(101);
    let begin = Instant::now();
    while samples.len() < 101 && (samples.len() < 3 || begin.elapsed() < Duration::from_secs(1)) {
        let start = Instant::now();
        executable.run(&inputs![images])?;
        samples.push(start.elapsed().as_secs_f64());
    }
    samples.sort_by(f64::total_cmp);
    Ok(samples[samples.len() / 2])
}

fn evaluate(title: &str, key: &str, executable: &Executable) -> Outcome<bool> {
    let images = npz::read(DIGITS, "test_images")?;
    let labels = npz::read(DIGITS, "test_labels")?;
    let reference = npz::read(REFERENCE, key)?;
    let outputs = executable.run(&inputs![&images])?;
    let logits = outputs["logits"].as_slice::<f32>()?;
    let digits = outputs["digit"].as_slice::<i64>()?;
    let right = digits
        .iter()
        .enumerate()
        .filter(|(i, d)| labels.get(*i).as_i64() == **d)
        .count();
    let accuracy = right as f64 / labels.len() as f64;
    let off = logits
        .iter()
        .enumerate()
        .map(|(i, l)| (l - reference.get(i).as_f64() as f32).abs())
        .fold(0.0, f32::max);
    println!("{title}");
    println!(
        "  accuracy on {} held-out images: {accuracy:.4} ({right} right)",
        labels.len()
    );
    println!("  largest difference from the training script's logits: {off:.1e}");
    let one = HostTensor::from_slice(&[1, 8, 8], &images.as_slice::<u8>().ok_or("images are u8")?[..64])?;
    let (all, single) = (median_seconds(executable, &images)?, median_seconds(executable, &one)?);
    let each = all / labels.len() as f64 * 1e6;
    println!(
        "  time per image: {each:.2} us in a batch of {}, {:.2} us alone",
        labels.len(),
        single * 1e6
    );
    println!(
        "  first image: {}",
        if digits[0] == labels.get(0).as_i64() {
            "right"
        } else {
            "wrong"
        }
    );
    Ok(accuracy >= MIN_ACCURACY && off <= TOLERANCE)
}

/// The device that the arguments name.
fn device() -> Outcome<Device> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Ok(Device::cpu()),
        ["--device", name] => Ok(name.parse()?),
        _ => Err("expected no arguments, or --device cpu, cuda or cuda:N".into()),
    }
}

fn run() -> Outcome<bool> {
    let device = device()?;
    let start = Instant::now();
    let networks = [
        (
            "multi-layer perceptron 64-128-64-10",
            "mlp_logits",
            record("mlp", device, mlp)?,
        ),
        ("convolutional network", "cnn_logits", record("cnn", device, cnn)?),
    ];
    println!(
        "recorded and compiled two networks in {:.1} ms\n",
        start.elapsed().as_secs_f64() * 1e3
    );
    let mut good = true;
    for (title, key, executable) in &networks {
        good &= evaluate(title, key, executable)?;
        println!("\nwhat the compiler made of it:\n");
        for line in executable.explain().lines() {
            println!("  {line}");
        }
        println!();
    }
    Ok(good)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("error: accuracy below {MIN_ACCURACY} or logits further than {TOLERANCE} from the reference");
            ExitCode::FAILURE
        }
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}
