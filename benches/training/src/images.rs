//! Convolutions: the derivatives of one, and a step of a residual network.

use std::time::Instant;

use tlc::optim::Groups;
use tlc::{Conv, DType, Graph, HostTensor, State, Tensor};

use crate::{Case, Outcome, Setting, entry, fill, wave};

/// A convolution of 64 channels by 3 x 3, of eight images of 56 x 56: its derivative by the images, or by the weights. The loss is one element of
/// it.
pub fn convolution(setting: Setting, by_images: bool) -> Outcome<Case> {
    const IMAGES: [i64; 4] = [8, 64, 56, 56];
    const WEIGHTS: [i64; 4] = [64, 64, 3, 3];
    let begin = Instant::now();
    let g = Graph::new("convolution");
    let x = g.input("x", DType::F32, IMAGES);
    let w = g.input("w", DType::F32, WEIGHTS);
    let y = x.conv2d(&w, None, &Conv::new().padding(1));
    let cotangent = g.input("d", DType::F32, IMAGES);
    let by = if by_images { &x } else { &w };
    let d = tlc::vjp(&[&y], &[&cotangent], &[by]).remove(0);
    // Nothing copies it out.
    g.state("derivative", DType::F32, d.shape());
    g.set("derivative", &d);
    let corner = vec![tlc::Slice::from(0); 4];
    g.output("loss", &d.slice(&corner[..]));
    let step = g.compile(&setting.options())?;
    let compile_ms = begin.elapsed().as_secs_f64() * 1e3;
    if !setting.runs {
        return Ok(Case::compiled(step, compile_ms));
    }
    let mut state = State::new();
    let shape = if by_images { IMAGES } else { WEIGHTS };
    let count = |shape: &[i64]| shape.iter().product::<i64>() as usize;
    entry(&mut state, "derivative", &shape, vec![0.0; count(&shape)])?;
    let inputs = [(&IMAGES, 1.0), (&WEIGHTS, 0.05), (&IMAGES, 1.0)].map(|(shape, scale)| {
        let extents: Vec<usize> = shape.iter().map(|&n| n as usize).collect();
        HostTensor::from_slice(&extents, &wave(count(shape), scale))
    });
    Ok(Case {
        step,
        state,
        inputs: inputs.into_iter().map(|t| Ok(t?.into())).collect::<Outcome<_>>()?,
        compile_ms,
    })
}

/// What the residual network's parameters are called, their shapes, and the scale of their first values.
struct Parameters<'g> {
    graph: &'g Graph,
    all: Vec<(String, Vec<i64>, f32)>,
    tensors: Vec<Tensor>,
    /// Running statistics, which nothing is differentiated by.
    statistics: Vec<(String, i64)>,
}

impl Parameters<'_> {
    fn new(&mut self, name: String, shape: &[i64], scale: f32) -> Tensor {
        let t = self.graph.state(&name, DType::F32, shape);
        self.all.push((name, shape.to_vec(), scale));
        self.tensors.push(t.clone());
        t
    }

    /// A convolution by `size` x `size` and the normalization of its result.
    fn normalized(&mut self, name: &str, x: &Tensor, channels: [i64; 2], size: i64, stride: usize) -> Tensor {
        let [inner, outer] = channels;
        let fan_in = (inner * size * size) as f32;
        let w = self.new(format!("{name}.w"), &[outer, inner, size, size], (6.0 / fan_in).sqrt());
        let y = x.conv2d(&w, None, &Conv::new().stride(stride).padding(size as usize / 2));
        // About 1, as the scale of waves is.
        let scale = self.new(format!("{name}.scale"), &[outer], 0.0) + 1.0;
        let offset = self.new(format!("{name}.offset"), &[outer], 0.0);
        let [mean, var] = ["mean", "var"].map(|of| {
            let name = format!("{name}.{of}");
            self.statistics.push((name.clone(), outer));
            self.graph.state(&name, DType::F32, [outer])
        });
        let (y, new_mean, new_var) = y.batch_norm_train(&mean, &var, Some(&scale), Some(&offset), 0.1, 1e-5);
        self.graph.set(&format!("{name}.mean"), &new_mean);
        self.graph.set(&format!("{name}.var"), &new_var);
        y
    }
}

/// A residual network on 32 images of 32 x 32: three stages of 16, 32 and 64 channels, two blocks each, batch norm, Adam.
pub fn residual(setting: Setting) -> Outcome<Case> {
    let adam: Groups = "adam:lr=0.001".parse()?;
    let begin = Instant::now();
    let g = Graph::new("residual");
    let x = g.input("x", DType::F32, [32, 3, 32, 32]);
    let labels = g.input("labels", DType::I64, [32]);
    let mut p = Parameters {
        graph: &g,
        all: vec![],
        tensors: vec![],
        statistics: vec![],
    };
    let mut h = p.normalized("stem", &x, [3, 16], 3, 1).relu();
    let mut inner = 16;
    for (stage, outer) in [16, 32, 64].into_iter().enumerate() {
        for block in 0..2 {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            let name = format!("stage{stage}.{block}");
            let y = p.normalized(&format!("{name}.a"), &h, [inner, outer], 3, stride).relu();
            let y = p.normalized(&format!("{name}.b"), &y, [outer, outer], 3, 1);
            if stride > 1 {
                h = p.normalized(&format!("{name}.short"), &h, [inner, outer], 1, stride);
            }
            h = (h + y).relu();
            inner = outer;
        }
    }
    let w = p.new("head.w".into(), &[64, 10], 0.1);
    let b = p.new("head.b".into(), &[10], 0.0);
    let loss = (h.mean([2, 3]).matmul(&w) + b).cross_entropy(&labels);
    let Parameters {
        all,
        tensors,
        statistics,
        ..
    } = p;
    let named: Vec<(&str, &Tensor)> = all.iter().map(|(name, ..)| name.as_str()).zip(&tensors).collect();
    setting.learn(&g, &adam, &loss, &named);
    let step = g.compile(&setting.options())?;
    let compile_ms = begin.elapsed().as_secs_f64() * 1e3;
    if !setting.runs {
        return Ok(Case::compiled(step, compile_ms));
    }
    let mut state = State::new();
    for (name, shape, scale) in &all {
        let count = shape.iter().product::<i64>() as usize;
        entry(&mut state, name, shape, wave(count, *scale))?;
    }
    for (name, channels) in &statistics {
        entry(&mut state, name, &[*channels], vec![1.0; *channels as usize])?;
    }
    adam.prepare(
        &mut state,
        &all.iter().map(|(name, ..)| name.as_str()).collect::<Vec<_>>(),
    )?;
    fill(&step, &mut state)?;
    let x = HostTensor::from_slice(&[32, 3, 32, 32], &wave(32 * 3 * 32 * 32, 1.0))?;
    let labels: Vec<i64> = (0..32).map(|k| k * 7 % 10).collect();
    Ok(Case {
        step,
        state,
        inputs: vec![x.into(), labels.into()],
        compile_ms,
    })
}
