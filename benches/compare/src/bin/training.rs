//! Steps of training in candle, timed as `benches/training` times those of tlc: `training CASE STEPS` prints the median and the least time of a
//! step and the last loss. Candle takes its threads from `RAYON_NUM_THREADS`. `benches/training/run.py` has all peers take turns.

use std::time::Instant;

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_nn::{AdamW, Optimizer, ParamsAdamW, loss, ops};

/// What a step returns: the loss, or an element of a derivative.
type Step = Box<dyn FnMut() -> Result<Tensor>>;

/// Numbers that look random, the same in every program: of a wave of high frequency.
fn wave(shape: &[usize], scale: f32) -> Result<Tensor> {
    let count = shape.iter().product::<usize>();
    let values: Vec<f32> = (0..count)
        .map(|k| ((k as f64 * 12.9898).sin() * 43_758.545_3).fract() as f32 * scale)
        .collect();
    Tensor::from_vec(values, shape, &Device::Cpu)
}

/// The places `first, first + 7, ...`, each modulo `classes`.
fn sevens(count: u32, first: u32, classes: u32) -> Result<Tensor> {
    let labels: Vec<u32> = (0..count).map(|k| (k * 7 + first) % classes).collect();
    Tensor::new(labels, &Device::Cpu)
}

/// A step of Adam by the gradient of a loss.
fn adam(vars: Vec<Var>, lr: f64, mut loss: impl FnMut() -> Result<Tensor> + 'static) -> Result<Step> {
    let settings = ParamsAdamW {
        lr,
        weight_decay: 0.0,
        ..ParamsAdamW::default()
    };
    let mut adam = AdamW::new(vars, settings)?;
    Ok(Box::new(move || {
        let loss = loss()?;
        adam.backward_step(&loss)?;
        Ok(loss)
    }))
}

fn mlp() -> Result<Step> {
    let shapes: [&[usize]; 6] = [&[784, 256], &[256], &[256, 128], &[128], &[128, 10], &[10]];
    let p: Vec<Var> = shapes
        .iter()
        .map(|s| Var::from_tensor(&wave(s, 0.05)?))
        .collect::<Result<_>>()?;
    let (x, labels) = (wave(&[64, 784], 1.0)?, sevens(64, 0, 10)?);
    adam(p.clone(), 0.001, move || {
        let h = x.matmul(&p[0])?.broadcast_add(&p[1])?.relu()?;
        let h = h.matmul(&p[2])?.broadcast_add(&p[3])?.relu()?;
        loss::cross_entropy(&h.matmul(&p[4])?.broadcast_add(&p[5])?, &labels)
    })
}

/// The derivative of a convolution, by what candle's own backward pass calls.
fn convolution(by_images: bool) -> Result<Step> {
    let images = [8, 64, 56, 56];
    let (x, w, d) = (wave(&images, 1.0)?, wave(&[64, 64, 3, 3], 0.05)?, wave(&images, 1.0)?);
    Ok(Box::new(move || {
        let found = match by_images {
            true => d.conv_transpose2d(&w, 1, 0, 1, 1)?,
            false => {
                let (x, d) = (x.transpose(0, 1)?, d.transpose(0, 1)?);
                x.conv2d(&d, 1, 1, 1, 1)?.transpose(0, 1)?
            }
        };
        found.flatten_all()?.get(0)
    }))
}

/// The parameters of a convolution and of the normalization behind it.
struct Normalized {
    weights: Var,
    scale: Var,
    offset: Var,
    mean: Var,
    variance: Var,
    stride: usize,
}

impl Normalized {
    fn new([inner, outer]: [usize; 2], size: usize, stride: usize) -> Result<Normalized> {
        let scale = (6.0 / (inner * size * size) as f32).sqrt();
        let zeros = || Var::zeros(outer, DType::F32, &Device::Cpu);
        let ones = || Var::ones(outer, DType::F32, &Device::Cpu);
        Ok(Normalized {
            weights: Var::from_tensor(&wave(&[outer, inner, size, size], scale)?)?,
            scale: zeros()?,
            offset: zeros()?,
            mean: ones()?,
            variance: ones()?,
            stride,
        })
    }

    fn parameters(&self) -> [Var; 3] {
        [self.weights.clone(), self.scale.clone(), self.offset.clone()]
    }

    fn apply(&self, x: &Tensor) -> Result<Tensor> {
        let padding = self.weights.dim(2)? / 2;
        let y = x.conv2d(&self.weights, padding, self.stride, 1, 1)?;
        let channels = self.scale.elem_count();
        let column = |t: &Tensor| t.reshape((1, channels, 1, 1));
        let mean = y.mean_keepdim((0, 2, 3))?;
        let centered = y.broadcast_sub(&mean)?;
        let variance = centered.sqr()?.mean_keepdim((0, 2, 3))?;
        let count = (y.elem_count() / channels) as f64;
        for (kept, new, scale) in [
            (&self.mean, &mean, 1.0),
            (&self.variance, &variance, count / (count - 1.0)),
        ] {
            let new = (new.detach().flatten_all()? * (0.1 * scale))?;
            kept.set(&((kept.as_tensor() * 0.9)? + new)?)?;
        }
        let normal = centered.broadcast_div(&(variance + 1e-5)?.sqrt()?)?;
        normal
            .broadcast_mul(&column(&(self.scale.as_tensor() + 1.0)?)?)?
            .broadcast_add(&column(&self.offset)?)
    }
}

fn cnn() -> Result<Step> {
    let stem = Normalized::new([3, 16], 3, 1)?;
    let mut blocks = Vec::new();
    let mut inner = 16;
    for (stage, outer) in [16, 32, 64].into_iter().enumerate() {
        for block in 0..2 {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            let short = (stride > 1).then(|| Normalized::new([inner, outer], 1, stride));
            blocks.push((
                Normalized::new([inner, outer], 3, stride)?,
                Normalized::new([outer, outer], 3, 1)?,
                short.transpose()?,
            ));
            inner = outer;
        }
    }
    let w = Var::from_tensor(&wave(&[64, 10], 0.1)?)?;
    let b = Var::zeros(10, DType::F32, &Device::Cpu)?;
    let all = blocks
        .iter()
        .flat_map(|(first, second, short)| [Some(first), Some(second), short.as_ref()])
        .flatten();
    let mut vars: Vec<Var> = [&stem]
        .into_iter()
        .chain(all)
        .flat_map(Normalized::parameters)
        .collect();
    vars.extend([w.clone(), b.clone()]);
    let (x, labels) = (wave(&[32, 3, 32, 32], 1.0)?, sevens(32, 0, 10)?);
    adam(vars, 0.001, move || {
        let mut h = stem.apply(&x)?.relu()?;
        for (first, second, short) in &blocks {
            let y = second.apply(&first.apply(&h)?.relu()?)?;
            h = match short {
                Some(short) => short.apply(&h)?,
                None => h,
            };
            h = (h + y)?.relu()?;
        }
        let logits = h.mean((2, 3))?.matmul(&w)?.broadcast_add(&b)?;
        loss::cross_entropy(&logits, &labels)
    })
}

fn transformer() -> Result<Step> {
    const WIDTH: usize = 384;
    const HIDDEN: usize = 4 * WIDTH;
    const TOKENS: usize = 256;
    const BATCH: [usize; 2] = [8, 128];
    let var = |shape: &[usize]| Var::from_tensor(&wave(shape, 0.05)?);
    let ones = || Var::ones(WIDTH, DType::F32, &Device::Cpu);
    let [embed, place] = [[TOKENS, WIDTH], [BATCH[1], WIDTH]].map(|s| var(&s));
    let (embed, place) = (embed?, place?);
    let mut layers: Vec<Vec<Var>> = Vec::new();
    for _ in 0..6 {
        let shapes: [&[usize]; 9] = [
            &[WIDTH],
            &[WIDTH, 3 * WIDTH],
            &[3 * WIDTH],
            &[WIDTH, WIDTH],
            &[WIDTH],
            &[WIDTH],
            &[WIDTH, HIDDEN],
            &[HIDDEN],
            &[HIDDEN, WIDTH],
        ];
        let mut layer: Vec<Var> = shapes.iter().map(|s| var(s)).collect::<Result<_>>()?;
        layer.insert(0, ones()?);
        layer.insert(6, ones()?);
        layer.push(var(&[WIDTH])?);
        layers.push(layer);
    }
    let head = var(&[WIDTH, TOKENS])?;
    let mut vars = vec![embed.clone(), place.clone()];
    vars.extend(layers.iter().flatten().cloned());
    vars.push(head.clone());
    let tokens = (BATCH[0] * BATCH[1]) as u32;
    let (x, labels) = (sevens(tokens, 0, 251)?, sevens(tokens, 7, 251)?);
    let side = BATCH[1];
    let hidden: Vec<f32> = (0..side * side)
        .map(|k| if k % side > k / side { f32::NEG_INFINITY } else { 0.0 })
        .collect();
    let hidden = Tensor::from_vec(hidden, (1, 1, side, side), &Device::Cpu)?;
    adam(vars, 0.0001, move || {
        let normalized = |h: &Tensor, weight: &Var, bias: &Var| {
            let centered = h.broadcast_sub(&h.mean_keepdim(2)?)?;
            let variance = centered.sqr()?.mean_keepdim(2)?;
            centered
                .broadcast_div(&(variance + 1e-5)?.sqrt()?)?
                .broadcast_mul(weight)?
                .broadcast_add(bias)
        };
        let linear = |h: &Tensor, weight: &Var, bias: &Var| h.broadcast_matmul(weight)?.broadcast_add(bias);
        let mut h = embed
            .index_select(&x, 0)?
            .reshape((BATCH[0], side, WIDTH))?
            .broadcast_add(&place)?;
        for w in &layers {
            let n = normalized(&h, &w[0], &w[1])?;
            let heads = linear(&n, &w[2], &w[3])?.reshape((BATCH[0], side, 3, 6, 64))?;
            let head = |part: usize| heads.narrow(2, part, 1)?.squeeze(2)?.transpose(1, 2)?.contiguous();
            let scores = (head(0)?.matmul(&head(1)?.transpose(2, 3)?.contiguous()?)? * (1.0 / 8.0))?;
            let seen = ops::softmax(&scores.broadcast_add(&hidden)?, 3)?.matmul(&head(2)?)?;
            let seen = seen.transpose(1, 2)?.reshape((BATCH[0], side, WIDTH))?;
            h = (h + linear(&seen, &w[4], &w[5])?)?;
            let n = normalized(&h, &w[6], &w[7])?;
            h = (&h + linear(&linear(&n, &w[8], &w[9])?.gelu()?, &w[10], &w[11])?)?;
        }
        let logits = h.reshape((tokens as usize, WIDTH))?.matmul(&head)?;
        loss::cross_entropy(&logits, &labels)
    })
}

/// The most bytes that this process had, by Linux's count.
fn peak_bytes() -> std::result::Result<u64, Box<dyn std::error::Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kib: u64 = line.and_then(|l| l.split_whitespace().next()).unwrap_or("0").parse()?;
    Ok(kib * 1024)
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, steps] = &arguments[..] else {
        return Err("expected a case and a number of steps".into());
    };
    let steps: usize = steps.parse()?;
    let mut step = match name.as_str() {
        "mlp" => mlp()?,
        "conv_dx" => convolution(true)?,
        "conv_dw" => convolution(false)?,
        "cnn" => cnn()?,
        "transformer" => transformer()?,
        other => return Err(format!("`{other}`, expected mlp, conv_dx, conv_dw, cnn or transformer").into()),
    };
    let mut times = Vec::new();
    let mut loss = 0.0;
    for at in 0..steps + 3 {
        let begin = Instant::now();
        loss = step()?.to_scalar::<f32>()?;
        if at >= 3 {
            times.push(begin.elapsed().as_secs_f64() * 1e6);
        }
    }
    times.sort_by(f64::total_cmp);
    println!(
        "{{\"compile_ms\": 0.0, \"median_us\": {:.2}, \"least_us\": {:.2}, \"peak_bytes\": {}, \"loss\": {loss}}}",
        times[times.len() / 2],
        times[0],
        peak_bytes()?
    );
    Ok(())
}
