//! Convolutions over images whose channels lie together in memory, as tokens do that are seen as an image, and such whose results have their channels last:
//! against the graph interpreter within its derived bounds, with equal bits on one thread and three, and whether sizes are known when compiled or not.
//!
//! `TLC_SEEDS=from..to` runs other seeds.

use tlc::{CompileOptions, Conv, DType, Dim, Graph, HostTensor, Scalar, Specialize, Tensor, compile_ir};
use tlc_ir::interp::{self, compare, interpret_with_bounds};
use tlc_ir::rng::Rng;
use tlc_ir::testgen::seeds;

/// What is before and behind a convolution.
#[derive(Clone, Debug)]
struct Case {
    images: usize,
    /// Of all groups.
    channels: usize,
    outputs: usize,
    groups: usize,
    sides: [usize; 2],
    kernel: [usize; 2],
    stride: usize,
    dilation: usize,
    padding: [usize; 2],
    /// Whether the image is given as tokens, and whether the result is.
    tokens: [bool; 2],
    /// Whether the image is computed of what is given, element by element, as an image.
    computed: bool,
    /// Whether it is a part of a larger image's channels.
    part: bool,
    bias: bool,
    activation: bool,
    norm: bool,
    special: bool,
}

impl Case {
    fn random(rng: &mut Rng) -> Case {
        let channels = rng.pick(&[3, 5, 16, 17, 24, 64]);
        Case {
            images: rng.pick(&[1, 1, 2]),
            channels,
            outputs: rng.pick(&[1, 16, 24, 60, 64]),
            groups: 1,
            sides: [rng.pick(&[1, 2, 4, 9]), rng.pick(&[1, 3, 7, 14, 17])],
            kernel: rng.pick(&[[3, 3], [3, 3], [1, 3], [5, 5], [1, 7], [2, 2]]),
            stride: rng.pick(&[1, 1, 2, 3]),
            dilation: rng.pick(&[1, 1, 2]),
            padding: [(); 2].map(|()| rng.pick(&[0, 1, 1, 2, 3])),
            tokens: rng.pick(&[[true, true], [true, true], [true, false], [false, true]]),
            computed: rng.chance(30, 100),
            part: rng.chance(20, 100),
            bias: rng.chance(60, 100),
            activation: rng.chance(50, 100),
            norm: rng.chance(30, 100),
            special: rng.chance(25, 100),
        }
    }

    fn depthwise(rng: &mut Rng) -> Case {
        let channels = rng.pick(&[1, 8, 16, 17, 48, 100]);
        Case {
            channels,
            outputs: channels,
            groups: channels,
            kernel: rng.pick(&[[3, 3], [3, 3], [5, 5], [7, 7], [1, 9], [2, 3]]),
            ..Case::random(rng)
        }
    }

    fn places(&self, side: usize) -> Option<usize> {
        let room =
            (self.sides[side] + 2 * self.padding[side]).checked_sub(self.dilation * (self.kernel[side] - 1) + 1)?;
        Some(room / self.stride + 1)
    }

    fn record(&self, symbolic: bool, weights: &HostTensor, bias: &HostTensor) -> tlc::ir::Graph {
        let g = Graph::new("together");
        let sizes: Vec<Dim> = match symbolic {
            true => (["n", "h", "w"].iter())
                .map(|s| Dim::from(&g.symbol(s, 0..=1 << 12)))
                .collect(),
            false => [self.images, self.sides[0], self.sides[1]].map(Dim::from).into(),
        };
        let [n, h, w] = &sizes[..] else { unreachable!() };
        let all = if self.part { self.channels + 3 } else { self.channels };
        let mut image: Tensor = match self.tokens[0] {
            true => {
                let x = g.input("x", DType::F32, [n.clone(), h.clone(), w.clone(), all.into()]);
                let tokens = x.reshape([n.clone(), h.clone() * w.clone(), all.into()]);
                tokens
                    .permute([0, 2, 1])
                    .reshape([n.clone(), all.into(), h.clone(), w.clone()])
            }
            false => g.input("x", DType::F32, [n.clone(), all.into(), h.clone(), w.clone()]),
        };
        if self.part {
            image = image.narrow(1, 2, self.channels);
        }
        if self.computed {
            image = (&image + 0.25).tanh();
        }
        let settings = Conv::new()
            .stride(self.stride)
            .dilation(self.dilation)
            .groups(self.groups)
            .padding(self.padding);
        let mut y = image.conv2d(&g.constant(weights), None, &settings);
        if self.bias {
            y += &g.constant(bias);
        }
        if self.tokens[1] {
            y = y.permute([0, 2, 3, 1]);
        }
        if self.norm {
            let axis = if self.tokens[1] { 3 } else { 1 };
            y = &y - &y.mean([axis]).unsqueeze(axis);
        }
        if self.activation {
            y = y.relu();
        }
        g.output("y", &y);
        g.finish().unwrap_or_else(|e| panic!("{self:?}: {e}"))
    }
}

fn data(shape: &[usize], rng: &mut Rng, special: bool) -> HostTensor {
    let mut out = HostTensor::zeros(DType::F32, shape).unwrap();
    for i in 0..shape.iter().product() {
        let value = match rng.bits() % 997 {
            3 if special => f64::NAN,
            5 if special => f64::INFINITY,
            11 if special => -0.0,
            v => v as f64 / 249.0 - 2.0,
        };
        out.set(i, Scalar::from_f64(DType::F32, value));
    }
    out
}

/// Equal bits, NaN alike.
fn same(a: &HostTensor, b: &HostTensor) -> bool {
    let alike = |i: usize| a.get(i) == b.get(i) || a.get(i).is_nan() && b.get(i).is_nan();
    a.shape() == b.shape() && (0..a.shape().iter().product()).all(alike)
}

fn compiled(graph: &tlc::ir::Graph, threads: usize) -> tlc::Executable {
    let options = CompileOptions {
        threads: Some(threads),
        specialize: Specialize::Never,
        ..CompileOptions::default()
    };
    compile_ir(graph, &options).unwrap_or_else(|e| panic!("{e}\n{graph}"))
}

fn right(usual: std::ops::Range<u64>, random: fn(&mut Rng) -> Case) {
    for seed in seeds(usual) {
        let mut rng = Rng::new(seed);
        let mut case = random(&mut rng);
        while (0..2).any(|side| case.places(side).is_none()) {
            case = random(&mut rng);
        }
        let [kh, kw] = case.kernel;
        let weights = data(
            &[case.outputs, case.channels / case.groups, kh, kw],
            &mut rng,
            case.special,
        );
        let bias = data(&[case.outputs, 1, 1], &mut rng, case.special);
        let channels = case.channels + if case.part { 3 } else { 0 };
        let [h, w] = case.sides;
        let shape = match case.tokens[0] {
            true => [case.images, h, w, channels],
            false => [case.images, channels, h, w],
        };
        let inputs = [data(&shape, &mut rng, case.special)];
        let mut first: Option<HostTensor> = None;
        for symbolic in [false, true] {
            let graph = case.record(symbolic, &weights, &bias);
            let bounded = interpret_with_bounds(&graph, &inputs, &interp::Options::default());
            let bounded = bounded.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            let [alone, together] = [1, 3].map(|threads| {
                let e = compiled(&graph, threads);
                let found = e.run(&inputs.each_ref().map(Into::into));
                found.unwrap_or_else(|e| panic!("seed {seed}: {case:?}: {e}"))[0].to_host()
            });
            compare(&alone, &bounded[0]).unwrap_or_else(|m| panic!("seed {seed}, symbolic {symbolic}: {case:?}: {m}"));
            assert!(
                same(&alone, &together),
                "seed {seed}, symbolic {symbolic}: {case:?}: threads"
            );
            // All that a depthwise convolution adds up is a window, whatever computes it. (A mean of channels is another sum where these are columns.)
            let first = first.get_or_insert_with(|| alone.clone());
            assert!(
                case.groups == 1 || case.norm || same(first, &alone),
                "seed {seed}: {case:?}: other bits with symbolic sizes"
            );
        }
    }
}

#[test]
fn random_convolutions_between_tokens_are_right() {
    right(0..30, Case::random);
}

#[test]
fn random_depthwise_convolutions_between_tokens_are_right() {
    right(100..130, Case::depthwise);
}

/// Convolutions whose results are tokens have tiles, and no windows are copied; a sum that is too long for a tile is a product with a copy of the windows.
#[test]
fn results_with_their_channels_last_come_from_tiles() {
    if tlc_runtime::cpu::level::wide().is_none() {
        println!("SKIP: tiles are in vectors of AVX2 or wider");
        return;
    }
    let mut rng = Rng::new(1);
    for (channels, kernel, stride, direct) in [(64, [1, 3], 2, true), (32, [3, 3], 1, true), (4096, [3, 3], 1, false)] {
        let case = Case {
            images: 1,
            channels,
            outputs: 32,
            groups: 1,
            sides: [3, 20],
            kernel,
            stride,
            dilation: 1,
            padding: [0, 1],
            tokens: [false, true],
            computed: false,
            part: false,
            bias: true,
            activation: true,
            norm: false,
            special: false,
        };
        let weights = data(&[32, channels, kernel[0], kernel[1]], &mut rng, false);
        let bias = data(&[32, 1, 1], &mut rng, false);
        for symbolic in [false, true] {
            let explained = compiled(&case.record(symbolic, &weights, &bias), 1)
                .explain()
                .to_string();
            let tiles = explained.contains("windows are multiplied where they lie");
            assert_eq!(tiles, direct, "{case:?}, symbolic {symbolic}\n{explained}");
            assert_eq!(
                explained.contains("matrix product by the library"),
                !direct,
                "{case:?}\n{explained}"
            );
        }
    }
}

/// Lanes go along the channels, and padding that is stored is stored in the order of tokens.
#[test]
fn depthwise_convolutions_of_tokens_go_along_channels() {
    if tlc_runtime::cpu::level::wide().is_none() {
        println!("SKIP: lanes are vectors of AVX2 or wider");
        return;
    }
    let mut rng = Rng::new(2);
    for kernel in [3, 7] {
        let case = Case {
            images: 1,
            channels: 64,
            outputs: 64,
            groups: 64,
            sides: [14, 14],
            kernel: [kernel; 2],
            stride: 1,
            dilation: 1,
            padding: [kernel / 2; 2],
            tokens: [true, true],
            computed: false,
            part: false,
            bias: true,
            activation: true,
            norm: false,
            special: false,
        };
        let weights = data(&[64, 1, kernel, kernel], &mut rng, false);
        let bias = data(&[64, 1, 1], &mut rng, false);
        let e = compiled(&case.record(false, &weights, &bias), 1);
        let explained = e.explain().to_string();
        assert!(!explained.contains("scalar"), "{explained}");
        assert!(explained.contains("columns form"), "{explained}");
    }
}

/// A stack of results of convolutions of which sums are taken: each is stored where the stack has it, and computed in tiles.
#[test]
fn stacked_results_of_convolutions_are_computed_where_they_are_stored() {
    if tlc_runtime::cpu::level::wide().is_none() {
        println!("SKIP: tiles are in vectors of AVX2 or wider");
        return;
    }
    let mut rng = Rng::new(3);
    let g = Graph::new("stacked");
    let x = g.input("x", DType::F32, [1, 16, 14, 14]);
    let paths = [1, 2].map(|dilation| {
        let weights = g.constant(data(&[32, 16, 3, 3], &mut rng, false));
        let settings = Conv::new().dilation(dilation).padding([dilation; 2]);
        x.conv2d(&weights, None, &settings).relu().unsqueeze(1)
    });
    let both = tlc::concat(&paths.each_ref(), 1);
    let shares = both.sum([1]).mean([2, 3]).reshape([1, 1, 32, 1, 1]);
    g.output("y", &(&both * &shares).sum([1]));
    let graph = g.finish().unwrap();
    let inputs = [data(&[1, 16, 14, 14], &mut rng, false)];
    let bounded = interpret_with_bounds(&graph, &inputs, &interp::Options::default()).unwrap();
    for threads in [1, 3] {
        let e = compiled(&graph, threads);
        let explained = e.explain().to_string();
        let tiles = explained.matches("windows are multiplied where they lie").count();
        assert_eq!(tiles, 2, "{explained}");
        let found = e.run(&inputs.each_ref().map(Into::into)).unwrap()[0].to_host();
        compare(&found, &bounded[0]).unwrap_or_else(|m| panic!("{m}\n{explained}"));
    }
}

/// One channel of the result: a sum over the image's channels for each pixel, whose lanes are pixels.
#[test]
fn a_convolution_to_one_channel_goes_along_its_pixels() {
    let mut rng = Rng::new(4);
    let g = Graph::new("one");
    let x = g.input("x", DType::F32, [1, 32, 20, 24]);
    let weights = g.constant(data(&[1, 32, 1, 1], &mut rng, false));
    g.output("y", &x.conv2d(&weights, None, &Conv::new()).relu());
    let graph = g.finish().unwrap();
    let inputs = [data(&[1, 32, 20, 24], &mut rng, true)];
    let bounded = interpret_with_bounds(&graph, &inputs, &interp::Options::default()).unwrap();
    let e = compiled(&graph, 1);
    let explained = e.explain().to_string();
    assert!(explained.contains("columns form"), "{explained}");
    let found = e.run(&inputs.each_ref().map(Into::into)).unwrap()[0].to_host();
    compare(&found, &bounded[0]).unwrap_or_else(|m| panic!("{m}\n{explained}"));
}
