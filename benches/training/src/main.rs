//! A step of training in tlc, timed: `tlc-training CASE[:PART] THREADS STEPS [SHARE]` prints what recording and compiling took, the
//! median and the least time of a step, the sum of its steps' floors, the kernels beside products, the bytes of the arena and of all that a call
//! needs, and the last loss. The part is all of a step, or `forward` (the loss), or `gradients` (the loss and its derivatives, without the update).
//! With a share, what a call may need of memory is limited to what is not the arena and that share of it. `run.py` has peers take turns with it.
//!
//! With no steps, nothing runs: what is printed is the time of the first compilation in the process and the least of four later ones, the bytes of
//! code, and a hash of the plan with its kernels, by which two versions are seen to compile the same. Some cases are for that alone (`forward.rs`).

mod forward;
mod images;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Instant;

use tlc::ir::plan::Step;
use tlc::optim::{Groups, clip};
use tlc::{CompileOptions, DType, Executable, Graph, Input, State, Tensor};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// What is measured: the step, its state, and the inputs of each call.
struct Case {
    step: Executable,
    state: State,
    inputs: Vec<Input<'static>>,
    compile_ms: f64,
}

impl Case {
    /// What is compiled and never runs: its state may be larger than memory.
    fn compiled(step: Executable, compile_ms: f64) -> Case {
        Case {
            step,
            state: State::new(),
            inputs: Vec::new(),
            compile_ms,
        }
    }
}

/// What of a step is measured.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    /// The loss.
    Forward,
    /// The loss and its derivatives.
    Gradients,
    /// These and the update of the parameters.
    Step,
}

/// What is recorded and how it is compiled.
#[derive(Clone, Copy)]
pub struct Setting {
    threads: usize,
    limit: Option<u64>,
    part: Part,
    runs: bool,
}

impl Setting {
    /// What it is compiled with.
    pub fn options(self) -> CompileOptions {
        CompileOptions {
            threads: Some(self.threads),
            max_memory_bytes: self.limit,
            ..CompileOptions::default()
        }
    }

    /// Records what follows the loss. The peers update their parameters whatever it is, and so does this. Derivatives alone become states, so
    /// that nothing copies them out.
    fn learn(self, g: &Graph, optimizer: &Groups, loss: &Tensor, named: &[(&str, &Tensor)]) {
        g.output("loss", loss);
        if self.part == Part::Forward {
            return;
        }
        let gradients = tlc::grad(loss, &named.iter().map(|p| p.1).collect::<Vec<_>>());
        if self.part == Part::Step {
            optimizer.step_if(&g.constant(true), named, &gradients);
            return;
        }
        for ((name, _), d) in named.iter().zip(&gradients) {
            let name = format!("d.{name}");
            g.state(&name, DType::F32, d.shape());
            g.set(&name, d);
        }
    }
}

/// Zeros for what a step reads or sets and the state lacks.
fn fill(step: &Executable, state: &mut State) -> Outcome<()> {
    for s in step.states() {
        if state.get(&s.name).is_none() {
            let extents = s.ty.shape.iter().map(|n| n.as_const().ok_or("a state of fixed size"));
            let extents = extents.collect::<Result<Vec<i64>, _>>()?;
            let count = extents.iter().product::<i64>() as usize;
            entry(state, &s.name, &extents, vec![0.0; count])?;
        }
    }
    Ok(())
}

/// Numbers that look random, the same in every program: of a wave of high frequency.
fn wave(count: usize, scale: f32) -> Vec<f32> {
    (0..count)
        .map(|k| ((k as f64 * 12.9898).sin() * 43_758.545_3).fract() as f32 * scale)
        .collect()
}

fn entry(state: &mut State, name: &str, shape: &[i64], values: Vec<f32>) -> Outcome<()> {
    let shape: Vec<usize> = shape.iter().map(|&n| n as usize).collect();
    let tensor = tlc::HostTensor::from_slice(&shape, &values)?;
    Ok(state.insert(name, &tensor)?)
}

/// The perceptron 784-256-128-10 on a batch of 64: forward, softmax and cross entropy, backward, Adam.
fn mlp(setting: Setting) -> Outcome<Case> {
    let shapes: [(&str, &[i64]); 6] = [
        ("w1", &[784, 256]),
        ("b1", &[256]),
        ("w2", &[256, 128]),
        ("b2", &[128]),
        ("w3", &[128, 10]),
        ("b3", &[10]),
    ];
    let adam: Groups = "adam:lr=0.001".parse()?;
    let begin = Instant::now();
    let g = Graph::new("mlp");
    let (x, labels) = (g.input("x", DType::F32, [64, 784]), g.input("labels", DType::I64, [64]));
    let p = shapes.map(|(name, shape)| g.state(name, DType::F32, shape));
    let h = (x.matmul(&p[0]) + &p[1]).relu();
    let h = (h.matmul(&p[2]) + &p[3]).relu();
    let loss = (h.matmul(&p[4]) + &p[5]).cross_entropy(&labels);
    let named: Vec<(&str, &Tensor)> = shapes.iter().map(|s| s.0).zip(&p).collect();
    setting.learn(&g, &adam, &loss, &named);
    let step = g.compile(&setting.options())?;
    let compile_ms = begin.elapsed().as_secs_f64() * 1e3;
    if !setting.runs {
        return Ok(Case::compiled(step, compile_ms));
    }
    let mut state = State::new();
    for (name, shape) in shapes {
        let count = shape.iter().product::<i64>() as usize;
        entry(&mut state, name, shape, wave(count, 0.05))?;
    }
    adam.prepare(&mut state, &shapes.map(|s| s.0))?;
    fill(&step, &mut state)?;
    let x = tlc::HostTensor::from_slice(&[64, 784], &wave(64 * 784, 1.0))?;
    let labels: Vec<i64> = (0..64).map(|k| k * 7 % 10).collect();
    Ok(Case {
        step,
        state,
        inputs: vec![x.into(), labels.into()],
        compile_ms,
    })
}

/// AdamW over so many tensors of 10 M elements in all, gradients given, clipped by their global norm or not.
fn adam(setting: Setting, tensors: usize, clipped: bool) -> Outcome<Case> {
    let names: Vec<String> = (0..tensors).map(|k| format!("p{k}")).collect();
    let size = |k: usize| 10_000_000 / tensors as i64 + (k as i64 % 7 - 3) * 16;
    let adamw: Groups = "adamw:lr=0.001,wd=0.01".parse()?;
    let begin = Instant::now();
    let g = Graph::new("adam");
    let p: Vec<Tensor> = names
        .iter()
        .enumerate()
        .map(|(k, name)| g.state(name, DType::F32, [size(k)]))
        .collect();
    let d: Vec<Tensor> = (0..tensors)
        .map(|k| g.state(&format!("d{k}"), DType::F32, [size(k)]))
        .collect();
    let named: Vec<(&str, &Tensor)> = names.iter().map(String::as_str).zip(&p).collect();
    let gradients = match clipped {
        true => clip::by_global_norm(&d.iter().collect::<Vec<_>>(), 1.0).0,
        false => d.clone(),
    };
    adamw.step_if(&g.constant(true), &named, &gradients);
    g.output("loss", &d[0].slice(tlc::s![..1]).sum(0));
    let step = g.compile(&setting.options())?;
    let compile_ms = begin.elapsed().as_secs_f64() * 1e3;
    if !setting.runs {
        return Ok(Case::compiled(step, compile_ms));
    }
    let mut state = State::new();
    for (k, name) in names.iter().enumerate() {
        entry(&mut state, name, &[size(k)], vec![1.0; size(k) as usize])?;
        entry(&mut state, &format!("d{k}"), &[size(k)], vec![0.1; size(k) as usize])?;
    }
    adamw.prepare(&mut state, &names.iter().map(String::as_str).collect::<Vec<_>>())?;
    Ok(Case {
        step,
        state,
        inputs: Vec::new(),
        compile_ms,
    })
}

/// Width, heads, hidden width and tokens of a transformer, and the batch of sequences that it learns.
const WIDTH: i64 = 384;
const HEADS: i64 = 6;
const HIDDEN: i64 = 4 * WIDTH;
const TOKENS: i64 = 256;
const BATCH: [i64; 2] = [8, 128];

/// A transformer of so many layers, six where it is compared (normalized before each part, causal attention, gelu) on 8 sequences of 128 tokens: forward, cross entropy,
/// backward, Adam.
fn transformer(setting: Setting, layers: usize) -> Outcome<Case> {
    let mut shapes: Vec<(String, Vec<i64>)> = vec![("embed".into(), vec![TOKENS, WIDTH])];
    shapes.push(("place".into(), vec![BATCH[1], WIDTH]));
    for layer in 0..layers {
        let parts: [(&str, &[i64]); 12] = [
            ("norm1.weight", &[WIDTH]),
            ("norm1.bias", &[WIDTH]),
            ("qkv.weight", &[WIDTH, 3 * WIDTH]),
            ("qkv.bias", &[3 * WIDTH]),
            ("out.weight", &[WIDTH, WIDTH]),
            ("out.bias", &[WIDTH]),
            ("norm2.weight", &[WIDTH]),
            ("norm2.bias", &[WIDTH]),
            ("up.weight", &[WIDTH, HIDDEN]),
            ("up.bias", &[HIDDEN]),
            ("down.weight", &[HIDDEN, WIDTH]),
            ("down.bias", &[WIDTH]),
        ];
        shapes.extend(parts.map(|(name, shape)| (format!("{layer}.{name}"), shape.to_vec())));
    }
    shapes.push(("head".into(), vec![WIDTH, TOKENS]));
    let adam: Groups = "adam:lr=0.0001".parse()?;
    let begin = Instant::now();
    let g = Graph::new("transformer");
    let (x, labels) = (g.input("x", DType::I64, BATCH), g.input("labels", DType::I64, BATCH));
    let p: Vec<Tensor> = shapes
        .iter()
        .map(|(name, shape)| g.state(name, DType::F32, shape.clone()))
        .collect();
    let mut h = p[0].take(&x, 0) + &p[1];
    for w in p[2..p.len() - 1].chunks(12) {
        let n = h.layer_norm(Some(&w[0]), Some(&w[1]), 1e-5);
        let heads = (n.matmul(&w[2]) + &w[3]).reshape([BATCH[0], BATCH[1], 3, HEADS, WIDTH / HEADS]);
        let heads = heads.permute([2, 0, 3, 1, 4]);
        let [q, k, v] = [0, 1, 2].map(|part| heads.slice(tlc::s![part]));
        let seen = q.attention(&k, &v, &tlc::Attention::new().causal());
        let seen = seen.permute([0, 2, 1, 3]).reshape([BATCH[0], BATCH[1], WIDTH]);
        h = h + seen.matmul(&w[4]) + &w[5];
        let n = h.layer_norm(Some(&w[6]), Some(&w[7]), 1e-5);
        h = &h + (n.matmul(&w[8]) + &w[9]).gelu_tanh().matmul(&w[10]) + &w[11];
    }
    let loss = h
        .matmul(&p[p.len() - 1])
        .reshape([-1, TOKENS])
        .cross_entropy(&labels.reshape([-1]));
    let named: Vec<(&str, &Tensor)> = shapes.iter().map(|s| s.0.as_str()).zip(&p).collect();
    setting.learn(&g, &adam, &loss, &named);
    let step = g.compile(&setting.options())?;
    let compile_ms = begin.elapsed().as_secs_f64() * 1e3;
    if !setting.runs {
        return Ok(Case::compiled(step, compile_ms));
    }
    let mut state = State::new();
    for (name, shape) in &shapes {
        let count = shape.iter().product::<i64>() as usize;
        let values = match name.contains("norm") && name.ends_with("weight") {
            true => vec![1.0; count],
            false => wave(count, 0.05),
        };
        entry(&mut state, name, shape, values)?;
    }
    adam.prepare(&mut state, &shapes.iter().map(|s| s.0.as_str()).collect::<Vec<_>>())?;
    fill(&step, &mut state)?;
    let tokens = |k: i64| -> Vec<i64> { (0..BATCH[0] * BATCH[1]).map(|i| (i * 7 + k) % 251).collect() };
    let extents = BATCH.map(|n| n as usize);
    let [x, labels] = [0, 7].map(|k| tlc::HostTensor::from_slice(&extents, &tokens(k)));
    Ok(Case {
        step,
        state,
        inputs: vec![x?.into(), labels?.into()],
        compile_ms,
    })
}

/// The most bytes that this process had, by Linux's count.
fn peak_bytes() -> Outcome<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kib: u64 = line.and_then(|l| l.split_whitespace().next()).unwrap_or("0").parse()?;
    Ok(kib * 1024)
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, threads, steps, share @ ..] = &arguments[..] else {
        return Err("expected a case, a number of threads and one of steps".into());
    };
    let steps: usize = steps.parse()?;
    let (name, part) = match name.split_once(':') {
        None => (name.as_str(), Part::Step),
        Some((name, "forward")) => (name, Part::Forward),
        Some((name, "gradients")) => (name, Part::Gradients),
        Some((_, other)) => return Err(format!("`{other}`, expected forward or gradients").into()),
    };
    let make = |setting| match name {
        "mlp" => mlp(setting),
        "adam" => adam(setting, 300, false),
        "adam_clipped" => adam(setting, 300, true),
        "adam_clipped_1200" => adam(setting, 1200, true),
        "conv_dx" => images::convolution(setting, true),
        "conv_dw" => images::convolution(setting, false),
        "cnn" => images::residual(setting),
        "transformer" => transformer(setting, 6),
        other if !setting.runs => match other.strip_prefix("transformer_") {
            Some(layers) => transformer(setting, layers.parse()?),
            None => forward::compiled(setting, other),
        },
        other => {
            let known = "mlp, adam, adam_clipped, adam_clipped_1200, conv_dx, conv_dw, cnn or transformer";
            Err(format!("`{other}`, expected {known}").into())
        }
    };
    let mut setting = Setting {
        threads: threads.parse()?,
        limit: None,
        part,
        runs: steps > 0,
    };
    let mut case = make(setting)?;
    if !setting.runs {
        let mut again_ms = f64::INFINITY;
        for _ in 0..std::env::var("REPS").map_or(4, |n| n.parse().unwrap()) {
            again_ms = again_ms.min(make(setting)?.compile_ms);
        }
        let mut hash = DefaultHasher::new();
        case.step.plan().to_string().hash(&mut hash);
        println!(
            "{{\"compile_ms\": {:.3}, \"again_ms\": {again_ms:.3}, \"kernels\": {}, \"code_bytes\": {}, \"plan\": \"{:016x}\"}}",
            case.compile_ms,
            case.step.plan().kernels.len(),
            case.step.code_bytes(),
            hash.finish()
        );
        return Ok(());
    }
    if let [share] = share {
        let need = case.step.memory_with(&case.state, &case.inputs)?;
        let share: f64 = share.parse()?;
        setting.limit = Some(need.total() - need.arena + (need.arena as f64 * share) as u64);
        case = make(setting)?;
    }
    let need = case.step.memory_with(&case.state, &case.inputs)?;
    let mut loss = 0.0f32;
    let mut times = Vec::new();
    for step in 0..steps + 3 {
        let begin = Instant::now();
        case.step
            .run_with_into(&mut case.state, &case.inputs, &mut tlc::outputs![&mut loss])?;
        if step >= 3 {
            times.push(begin.elapsed().as_secs_f64() * 1e6);
        }
    }
    times.sort_by(f64::total_cmp);
    let plan = case.step.plan();
    let beside: usize = plan
        .steps
        .iter()
        .map(|s| match s {
            Step::Gemm(_) => 0,
            _ => s.launches().len(),
        })
        .sum();
    let floor_ns: f64 = tlc::explain::step_costs(plan, case.step.devices())
        .iter()
        .filter_map(|(_, cost)| cost.predicted_ns)
        .sum();
    println!(
        "{{\"compile_ms\": {:.3}, \"median_us\": {:.2}, \"least_us\": {:.2}, \"floor_us\": {:.2}, \"steps\": {}, \"beside_products\": {beside}, \"arena_bytes\": {}, \"memory_bytes\": {}, \"peak_bytes\": {}, \"loss\": {loss}}}",
        case.compile_ms,
        times[times.len() / 2],
        times[0],
        floor_ns / 1e3,
        plan.steps.len(),
        need.arena,
        need.total(),
        peak_bytes()?
    );
    Ok(())
}
