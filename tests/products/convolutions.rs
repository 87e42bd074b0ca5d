//! Random convolutions: strides, dilations, groups, paddings, ragged, tiny and empty images, transposed ones, with bias and
//! activation behind them, sizes known when compiled or not; against the graph interpreter within its derived bounds, with equal
//! bits on one thread and three.
//!
//! `TLC_SEEDS=from..to` runs other seeds. `TLC_CPU=sse` runs them through the portable code generator.

use tlc::{CompileOptions, Conv, DType, Dim, Graph, HostTensor, Scalar, Specialize, Tensor, compile_ir, einsum};
use tlc_ir::interp::{self, compare, interpret_with_bounds};
use tlc_ir::rng::Rng;
use tlc_ir::testgen::seeds;

/// One convolution.
#[derive(Clone, Debug)]
struct Case {
    dtype: DType,
    images: usize,
    groups: usize,
    channels: usize,
    outputs: usize,
    sides: [usize; 2],
    kernel: [usize; 2],
    stride: usize,
    dilation: usize,
    padding: [usize; 2],
    transposed: bool,
    bias: bool,
    activation: bool,
    symbolic: bool,
    special: bool,
}

impl Case {
    fn random(rng: &mut Rng) -> Case {
        let depthwise = rng.chance(45, 100);
        let groups = match depthwise {
            true => rng.pick(&[1, 3, 8, 20, 33]),
            false => rng.pick(&[1, 1, 1, 2, 4]),
        };
        let (channels, outputs) = match depthwise {
            true => (1, rng.pick(&[1, 1, 1, 2])),
            false => (rng.pick(&[1, 2, 3, 8, 17]), rng.pick(&[1, 3, 8, 16, 35])),
        };
        let symbolic = rng.chance(40, 100);
        let sides = [(); 2].map(|()| rng.pick(&[1, 2, 3, 4, 5, 7, 8, 13, 14, 16, 17, 31, 33]));
        let kernel = [(); 2].map(|()| rng.pick(&[1, 1, 2, 3, 3, 3, 5, 7]));
        Case {
            dtype: rng.pick(&[DType::F32, DType::F32, DType::F32, DType::F64]),
            images: rng.pick(&[1, 1, 1, 2, 3, if symbolic { 0 } else { 1 }]),
            groups,
            channels,
            outputs,
            sides,
            kernel,
            stride: rng.pick(&[1, 1, 1, 2, 2, 3]),
            dilation: rng.pick(&[1, 1, 1, 2, 4, 12]),
            padding: [(); 2].map(|()| rng.pick(&[0, 1, 1, 2, 3, 12])),
            transposed: !symbolic && rng.chance(20, 100),
            bias: rng.chance(60, 100),
            activation: rng.chance(60, 100),
            symbolic,
            special: rng.chance(15, 100),
        }
    }

    /// One of few channels a group, or of one output channel: vectors of windows that are whole rows of the image, parts of one, or go on in the
    /// next row.
    fn of_few_channels(rng: &mut Rng) -> Case {
        let groups = rng.pick(&[1, 1, 2, 3, 6, 13]);
        let sides = [
            rng.pick(&[1, 3, 5, 7, 9, 14, 18, 29]),
            rng.pick(&[1, 5, 7, 8, 9, 10, 13, 14, 16, 17, 28, 30, 57, 58, 101]),
        ];
        Case {
            groups,
            channels: rng.pick(&[1, 2, 4, 8, 12, 24]),
            outputs: match groups {
                1 => rng.pick(&[1, 1, 2, 5, 12, 40, 56, 136]),
                _ => rng.pick(&[1, 2, 3, 4, 6, 8, 12, 24]),
            },
            sides,
            kernel: rng.pick(&[[3, 3], [3, 3], [3, 3], [5, 5], [1, 7], [7, 1], [2, 4]]),
            dilation: rng.pick(&[1, 1, 1, 2, 3]),
            padding: [(); 2].map(|()| rng.pick(&[0, 1, 1, 2, 3])),
            transposed: false,
            ..Case::random(rng)
        }
    }

    /// Whether a window has a place in the image.
    fn has_results(&self) -> bool {
        let fits = |i: usize| self.sides[i] + 2 * self.padding[i] > self.dilation * (self.kernel[i] - 1);
        match self.transposed {
            true => true,
            false => (0..2).all(fits),
        }
    }

    fn settings(&self) -> Conv {
        let conv = Conv::new().stride(self.stride).dilation(self.dilation);
        conv.padding(self.padding).groups(self.groups)
    }

    fn shapes(&self) -> [Vec<usize>; 3] {
        let [h, w] = self.sides;
        let [kh, kw] = self.kernel;
        let (all_in, all_out) = (self.groups * self.channels, self.groups * self.outputs);
        let weight = match self.transposed {
            true => vec![all_in, self.outputs, kh, kw],
            false => vec![all_out, self.channels, kh, kw],
        };
        [vec![self.images, all_in, h, w], weight, vec![all_out, 1, 1]]
    }

    /// What each element of the image makes of the weights, added up where it lies.
    fn transposed(&self, x: &Tensor, w: &Tensor) -> Tensor {
        let (c, o, g) = (self.channels, self.outputs, self.groups);
        let ([h, width], [kh, kw]) = (self.sides, self.kernel);
        let x = x.reshape([self.images, g, c, h, width]);
        let y = einsum("gcoij,bgcuv->bgouvij", &[&w.reshape([g, c, o, kh, kw]), &x]);
        let y = y.reshape([self.images, g * o, h, width, kh, kw]);
        let reach = |side: usize, size: usize| (side - 1) * self.stride + self.dilation * (size - 1) + 1;
        let y = y.overlap_add(3, reach(width, kw), self.stride, self.dilation);
        y.overlap_add(2, reach(h, kh), self.stride, self.dilation)
    }

    fn record(&self, g: &Graph) {
        let [image, weight, bias] = self.shapes();
        let sizes: Vec<Dim> = match self.symbolic {
            true => ["n", "h", "w"]
                .map(|s| Dim::from(&g.symbol(s, 0..=1 << 16)))
                .into_iter()
                .collect(),
            false => [image[0], image[2], image[3]].map(Dim::from).into_iter().collect(),
        };
        let shape = [sizes[0].clone(), image[1].into(), sizes[1].clone(), sizes[2].clone()];
        let x = g.input("x", self.dtype, shape);
        let w = g.input("w", self.dtype, weight);
        let b = g.input("b", self.dtype, bias);
        let mut y: Tensor = match self.transposed {
            true => self.transposed(&x, &w),
            false => x.conv2d(&w, None, &self.settings()),
        };
        if self.bias {
            y += &b;
        }
        if self.activation {
            y = y.relu();
        }
        g.output("y", &y);
    }
}

fn data(dtype: DType, shape: &[usize], rng: &mut Rng, special: bool) -> HostTensor {
    let mut out = HostTensor::zeros(dtype, shape).unwrap();
    for i in 0..shape.iter().product() {
        let value = match rng.bits() % 97 {
            3 if special => f64::NAN,
            5 if special => f64::INFINITY,
            7 if special => f64::NEG_INFINITY,
            11 if special => -0.0,
            v => v as f64 / 24.0 - 2.0,
        };
        out.set(i, Scalar::from_f64(dtype, value));
    }
    out
}

#[test]
fn random_convolutions_are_right() {
    right(0..140, Case::random);
}

#[test]
fn random_convolutions_of_few_channels_are_right() {
    right(1000..1140, Case::of_few_channels);
}

/// Convolutions have results within the bounds of their meaning, with the same bits on one thread and three.
fn right(usual: std::ops::Range<u64>, random: fn(&mut Rng) -> Case) {
    let mut compared = 0;
    for seed in seeds(usual) {
        let mut rng = Rng::new(seed);
        let case = random(&mut rng);
        if !case.has_results() {
            continue;
        }
        let g = Graph::new("convolution");
        case.record(&g);
        let graph = g.finish().unwrap_or_else(|e| panic!("seed {seed}: {case:?}: {e}"));
        let inputs = case.shapes().map(|s| data(case.dtype, &s, &mut rng, case.special));
        let meant = interp::Options::default();
        let bounded = interpret_with_bounds(&graph, &inputs, &meant).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let mut first: Option<HostTensor> = None;
        for threads in [1, 3] {
            let options = CompileOptions {
                threads: Some(threads),
                specialize: Specialize::Never,
                ..CompileOptions::default()
            };
            let e = compile_ir(&graph, &options).unwrap_or_else(|e| panic!("seed {seed}: {case:?}: {e}"));
            let found = e.run(&inputs.each_ref().map(Into::into));
            let found = found.unwrap_or_else(|e| panic!("seed {seed}: {case:?}: {e}"))[0].to_host();
            compare(&found, &bounded[0]).unwrap_or_else(|m| panic!("seed {seed}: {case:?}: {m}\n{}", e.explain()));
            match &first {
                Some(first) => assert_eq!(*first, found, "seed {seed}: {case:?}: one thread and three differ"),
                None => first = Some(found),
            }
        }
        compared += 1;
    }
    assert!(
        compared > 60 || std::env::var("TLC_SEEDS").is_ok(),
        "only {compared} have results"
    );
}
