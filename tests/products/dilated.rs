//! Convolutions with dilated windows of images whose size is not known when they are compiled, with sums too long for a kernel: the library multiplies
//! what windows have of the image, at every size; against the graph interpreter within its derived bounds, with equal bits on one thread and three.
//!
//! `TLC_SEEDS=from..to` runs other seeds.

use std::sync::Arc;

use tlc::{Conv, DType, Dim, Graph, HostTensor, Scalar};
use tlc_ir::interp::{self, compare, interpret_with_bounds};
use tlc_ir::plan::Step;
use tlc_ir::rng::Rng;
use tlc_ir::target::Cpu;
use tlc_ir::testgen::seeds;
use tlc_passes::{Options, compile};
use tlc_runtime::driver::{Executable, TensorView};
use tlc_runtime::memory::BufferPool;
use tlc_runtime::pool::Pool;

/// One convolution, and the sizes that it is given.
#[derive(Clone, Debug)]
struct Case {
    channels: usize,
    outputs: usize,
    kernel: [usize; 2],
    stride: usize,
    dilation: [usize; 2],
    padding: [usize; 2],
    bias: bool,
    activation: bool,
    /// Images, rows and columns of each call.
    sizes: Vec<[usize; 3]>,
}

impl Case {
    fn random(rng: &mut Rng) -> Case {
        let dilation = [(); 2].map(|()| rng.pick(&[1, 2, 3, 6, 12, 24]));
        let side = |rng: &mut Rng| rng.pick(&[1, 2, 3, 7, 8, 13, 14, 17, 20]);
        let size = |rng: &mut Rng| [rng.pick(&[0, 1, 1, 2, 3]), side(rng), side(rng)];
        Case {
            channels: rng.pick(&[70, 96]),
            outputs: rng.pick(&[16, 32]),
            kernel: rng.pick(&[[3, 3], [3, 3], [5, 3], [3, 5]]),
            stride: rng.pick(&[1, 1, 1, 2, 3]),
            padding: dilation.map(|d| d * rng.pick(&[1, 1, 2]) + rng.pick(&[0, 0, 1])),
            dilation,
            bias: rng.chance(50, 100),
            activation: rng.chance(50, 100),
            sizes: (0..3).map(|_| size(rng)).collect(),
        }
    }

    /// Whether a window has a place in an image.
    fn fits(&self, [_, h, w]: [usize; 3]) -> bool {
        let fits = |n: usize, i: usize| n + 2 * self.padding[i] > self.dilation[i] * (self.kernel[i] - 1);
        fits(h, 0) && fits(w, 1)
    }

    fn record(&self, weights: &HostTensor, bias: &HostTensor) -> tlc::ir::Graph {
        let g = Graph::new("dilated");
        let sizes: Vec<Dim> = (["n", "h", "w"].iter())
            .map(|s| Dim::from(&g.symbol(s, 0..=1 << 12)))
            .collect();
        let shape = [
            sizes[0].clone(),
            self.channels.into(),
            sizes[1].clone(),
            sizes[2].clone(),
        ];
        let x = g.input("x", DType::F32, shape);
        let settings = Conv::new()
            .stride(self.stride)
            .dilation(self.dilation)
            .padding(self.padding);
        let mut y = x.conv2d(&g.constant(weights), None, &settings);
        if self.bias {
            y += &g.constant(bias);
        }
        if self.activation {
            y = y.relu();
        }
        g.output("y", &y);
        g.finish().unwrap_or_else(|e| panic!("{self:?}: {e}"))
    }
}

fn data(shape: &[usize], rng: &mut Rng) -> HostTensor {
    let mut out = HostTensor::zeros(DType::F32, shape).unwrap();
    for i in 0..shape.iter().product() {
        out.set(i, Scalar::from_f64(DType::F32, (rng.bits() % 997) as f64 / 249.0 - 2.0));
    }
    out
}

/// Products of a plan that leave out what is beyond the image.
fn windowed(plan: &tlc_ir::plan::Plan) -> usize {
    let of = |s: &&Step| matches!(s, Step::Gemm(g) if g.lhs.is_windowed() || g.rhs.is_windowed());
    plan.steps.iter().filter(of).count()
}

/// What is compiled for any size, with a second cache so small that sums of some hundred products are long.
fn compiled(graph: &tlc::ir::Graph, threads: usize) -> (Arc<tlc_ir::plan::Plan>, Executable) {
    let emitters = tlc_runtime::cpu::jit::emitters().unwrap();
    let cpu = Cpu {
        l2_bytes: 32 << 10,
        streams_lines: false,
        ..tlc_runtime::target::cpu(emitters, threads)
    };
    let plan = compile(graph, &Options::new(cpu)).unwrap().planned.plan;
    let pool = Arc::new(Pool::new(threads));
    let executable = Executable::new(plan.clone(), pool, BufferPool::new(), tlc_passes::memory::pack).unwrap();
    (plan, executable)
}

fn run(executable: &Executable, input: &HostTensor) -> HostTensor {
    let view = TensorView {
        dtype: input.dtype(),
        shape: input.shape(),
        data: input.bytes(),
    };
    let found = executable.run(&[view]).unwrap().remove(0);
    HostTensor::from_bytes(found.dtype, &found.shape, found.bytes()).unwrap()
}

#[test]
fn dilated_windows_of_images_of_any_size_are_right() {
    let lanes = tlc_runtime::cpu::level::wide().map(|level| level.vector_bits() / 32);
    for seed in seeds(0..8) {
        let mut rng = Rng::new(seed);
        let case = Case::random(&mut rng);
        let [kh, kw] = case.kernel;
        let weights = data(&[case.outputs, case.channels, kh, kw], &mut rng);
        let bias = data(&[case.outputs, 1, 1], &mut rng);
        let graph = case.record(&weights, &bias);
        let executables = [1, 3].map(|threads| compiled(&graph, threads));
        let expected = usize::from(lanes.is_some() && case.dilation != [1, 1]);
        for (plan, _) in &executables {
            assert_eq!(windowed(plan), expected, "seed {seed}: {case:?}");
        }
        for &size in case.sizes.iter().filter(|s| case.fits(**s)) {
            let [n, h, w] = size;
            let image = data(&[n, case.channels, h, w], &mut rng);
            let meant = interpret_with_bounds(&graph, std::slice::from_ref(&image), &interp::Options::default());
            let meant = meant.unwrap_or_else(|e| panic!("seed {seed}: {size:?}: {e}"));
            let [one, three] = [0, 1].map(|k| run(&executables[k].1, &image));
            compare(&one, &meant[0]).unwrap_or_else(|m| panic!("seed {seed}: {case:?} {size:?}: {m}"));
            assert_eq!(
                one.bytes(),
                three.bytes(),
                "seed {seed}: {case:?} {size:?}: other bits on three threads"
            );
        }
    }
}

/// Weights that are no numbers are multiplied by padding, which makes no number of a result.
#[test]
fn infinite_weights_meet_the_padding() {
    let case = Case {
        channels: 70,
        outputs: 32,
        kernel: [3, 3],
        stride: 1,
        dilation: [12, 12],
        padding: [12, 12],
        bias: false,
        activation: false,
        sizes: vec![[1, 14, 14]],
    };
    let mut rng = Rng::new(7);
    let mut weights = data(&[32, 70, 3, 3], &mut rng);
    weights.set(0, Scalar::from_f64(DType::F32, f64::INFINITY));
    let graph = case.record(&weights, &data(&[32, 1, 1], &mut rng));
    let (plan, executable) = compiled(&graph, 1);
    assert_eq!(windowed(&plan), 0);
    let image = data(&[1, 70, 14, 14], &mut rng);
    let meant = interpret_with_bounds(&graph, std::slice::from_ref(&image), &interp::Options::default()).unwrap();
    let found = run(&executable, &image);
    compare(&found, &meant[0]).unwrap();
    assert!((0..14 * 14).any(|i| found.get(i).is_nan()));
}
