//! Gradients of convolutions by their weights: a kernel sums them where channels fill lanes, whatever the image; against the graph
//! interpreter within its derived bounds, with equal bits on one thread and three, and whether sizes are known when compiled or not.
//!
//! `TLC_SEEDS=from..to` runs other seeds.

use tlc::{CompileOptions, Conv, DType, Dim, Graph, HostTensor, Scalar, Specialize, compile_ir};
use tlc_codegen::wide::Level;
use tlc_ir::interp::{self, compare, interpret_with_bounds};
use tlc_ir::rng::Rng;
use tlc_ir::testgen::seeds;

/// One convolution.
#[derive(Clone, Debug)]
struct Case {
    images: usize,
    /// Of a group.
    channels: usize,
    /// Of a group.
    outputs: usize,
    groups: usize,
    sides: Vec<usize>,
    kernel: Vec<usize>,
    stride: usize,
    dilation: usize,
    padding: usize,
    special: bool,
}

impl Case {
    fn random(rng: &mut Rng) -> Case {
        let axes = rng.pick(&[1, 2, 2, 2, 2, 2, 3]);
        let long: &[usize] = if axes == 1 {
            &[1, 17, 128, 129, 300]
        } else {
            &[1, 2, 5, 8, 13, 16, 21]
        };
        let sides: Vec<usize> = (0..axes)
            .map(|_| rng.pick(if axes == 3 { &[1, 2, 4] } else { long }))
            .collect();
        Case {
            images: rng.pick(&[0, 1, 1, 2, 3]),
            channels: rng.pick(&[1, 3, 4, 7, 16]),
            outputs: lanes().unwrap_or(16) * rng.pick(&[1, 1, 2, 3, 4]),
            groups: rng.pick(&[1, 1, 1, 2]),
            kernel: sides.iter().map(|_| rng.pick(&[1, 2, 3, 3, 3, 5, 7])).collect(),
            sides,
            stride: rng.pick(&[1, 1, 2, 3]),
            dilation: rng.pick(&[1, 1, 2]),
            padding: rng.pick(&[0, 1, 1, 2, 4]),
            special: rng.chance(30, 100),
        }
    }

    /// The sides of the result, if a window has a place in the image.
    fn results(&self) -> Option<Vec<usize>> {
        let side = |(side, kernel): (&usize, &usize)| {
            let room = (side + 2 * self.padding).checked_sub(self.dilation * (kernel - 1) + 1)?;
            Some(room / self.stride + 1)
        };
        self.sides.iter().zip(&self.kernel).map(side).collect()
    }

    fn shape(&self, channels: usize, sides: &[usize]) -> Vec<usize> {
        [&[self.images, channels * self.groups], sides].concat()
    }

    /// The gradient by the weights alone, with sizes of the images known or not.
    fn record(&self, symbolic: bool) -> tlc::ir::Graph {
        let g = Graph::new("gradient");
        let dims = |sizes: &[usize], names: &[&str]| -> Vec<Dim> {
            let dim = |(n, name): (&usize, &&str)| match symbolic {
                true => Dim::from(&g.symbol(name, 0..=1 << 12)),
                false => Dim::from(*n),
            };
            sizes.iter().zip(names).map(dim).collect()
        };
        let mut shape = dims(&[self.images], &["n"]);
        shape.push((self.channels * self.groups).into());
        shape.extend(dims(&self.sides, &["d", "h", "w"]));
        let weights = [&[self.outputs * self.groups, self.channels], &self.kernel[..]].concat();
        let (x, w) = (g.input("x", DType::F32, shape), g.input("w", DType::F32, weights));
        let settings = Conv::new()
            .stride(self.stride)
            .dilation(self.dilation)
            .padding(self.padding)
            .groups(self.groups);
        let y = match self.sides.len() {
            1 => x.conv1d(&w, None, &settings),
            2 => x.conv2d(&w, None, &settings),
            _ => x.conv3d(&w, None, &settings),
        };
        let d = g.input("d", DType::F32, y.shape());
        g.output("dw", &tlc::vjp(&[&y], &[&d], &[&w]).remove(0));
        g.finish().unwrap_or_else(|e| panic!("{self:?}: {e}"))
    }
}

fn data(shape: &[usize], rng: &mut Rng, special: bool) -> HostTensor {
    let mut out = HostTensor::zeros(DType::F32, shape).unwrap();
    for i in 0..shape.iter().product() {
        let value = match rng.bits() % 9973 {
            3 if special => f64::NAN,
            5 if special => f64::INFINITY,
            7 if special => f64::NEG_INFINITY,
            v if special && v % 31 == 0 => -0.0,
            v => v as f64 / 2490.0 - 2.0,
        };
        out.set(i, Scalar::from_f64(DType::F32, value));
    }
    out
}

/// The lanes of the vectors that this machine's code has tiles of, if it has any.
fn lanes() -> Option<usize> {
    match tlc_runtime::cpu::level::wide()? {
        Level::Avx512 => Some(16),
        Level::Avx2 => Some(8),
    }
}

fn has_own_kernel(explained: &str) -> bool {
    explained.contains("a convolution's gradient by its weights, in tiles of")
}

fn options(threads: usize) -> CompileOptions {
    CompileOptions {
        threads: Some(threads),
        specialize: Specialize::Never,
        ..CompileOptions::default()
    }
}

/// Equal bits, NaN alike.
fn same(a: &HostTensor, b: &HostTensor) -> bool {
    let alike = |i: usize| {
        let (a, b) = (a.get(i).as_f64(), b.get(i).as_f64());
        a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
    };
    a.shape() == b.shape() && (0..a.shape().iter().product()).all(alike)
}

#[test]
fn random_gradients_by_weights_are_right_at_every_size() {
    let (mut compared, mut own) = (0, 0);
    for seed in seeds(0..10) {
        let mut rng = Rng::new(seed);
        let case = Case::random(&mut rng);
        let Some(results) = case.results() else { continue };
        let inputs = [
            data(&case.shape(case.channels, &case.sides), &mut rng, case.special),
            data(&case.shape(case.outputs, &results), &mut rng, case.special),
        ];
        let weights = HostTensor::zeros(
            DType::F32,
            &[&[case.outputs * case.groups, case.channels], &case.kernel[..]].concat(),
        )
        .unwrap();
        let mut first: [Option<HostTensor>; 2] = [None, None];
        let mut forms = Vec::new();
        for (symbolic, threads) in [(false, 1), (false, 3), (true, 1), (true, 3)] {
            let graph = case.record(symbolic);
            let e = compile_ir(&graph, &options(threads)).unwrap_or_else(|e| panic!("seed {seed}: {case:?}: {e}"));
            let explained = e.explain().to_string();
            forms.push(has_own_kernel(&explained));
            let all: Vec<&HostTensor> = match graph.inputs().len() {
                2 => vec![&inputs[0], &inputs[1]],
                _ => vec![&inputs[0], &weights, &inputs[1]],
            };
            let given: Vec<_> = all.iter().map(|t| (*t).into()).collect();
            let found = e.run(&given).unwrap_or_else(|e| panic!("seed {seed}: {case:?}: {e}"))[0].to_host();
            let before = first.iter().flatten().next();
            // Of the forms that the library sums, those of known and of unknown sizes have orders of their own.
            let comparable = |before: &HostTensor| same(before, &found) || !forms.iter().all(|f| *f) && symbolic;
            if let Some(before) = before {
                assert!(
                    comparable(before),
                    "seed {seed}: {case:?}: other bits, symbolic {symbolic}, {threads} threads\n{explained}"
                );
            }
            let at = usize::from(symbolic);
            if first[at].is_none() {
                let owned: Vec<HostTensor> = all.into_iter().cloned().collect();
                let bounded = interpret_with_bounds(&graph, &owned, &interp::Options::default());
                let bounded = bounded.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
                compare(&found, &bounded[0]).unwrap_or_else(|m| panic!("seed {seed}: {case:?}: {m}\n{explained}"));
                first[at] = Some(found);
            }
        }
        compared += 1;
        own += usize::from(forms.iter().all(|f| *f));
        assert!(lanes().is_some() || forms.iter().all(|f| !*f), "seed {seed}: {case:?}");
    }
    let usual = std::env::var("TLC_SEEDS").is_err();
    assert!(
        !usual || compared > 6 && (own > 4 || lanes().is_none()),
        "{own} of {compared}"
    );
}

#[test]
fn explain_says_why_there_is_no_kernel_and_the_kernel_copies_nothing() {
    let dense = Case {
        images: 2,
        channels: 3,
        outputs: 32,
        groups: 1,
        sides: vec![8, 8],
        kernel: vec![3, 3],
        stride: 1,
        dilation: 1,
        padding: 1,
        special: false,
    };
    let explained = |case: &Case| {
        let e = compile_ir(&case.record(false), &options(1)).unwrap_or_else(|e| panic!("{case:?}: {e}"));
        (e.plan().steps.len(), e.explain().to_string())
    };
    let (steps, text) = explained(&dense);
    assert_eq!(has_own_kernel(&text), lanes().is_some(), "{text}");
    let Some(lanes) = lanes() else { return };
    // The padded image, and the sum.
    assert_eq!(steps, 2, "{text}");
    let odd = Case {
        outputs: 20,
        ..dense.clone()
    };
    let short = Case {
        channels: 1,
        outputs: 16,
        sides: vec![40],
        kernel: vec![7],
        ..dense.clone()
    };
    let depthwise = Case {
        channels: 1,
        outputs: 1,
        groups: 16,
        ..dense
    };
    let lacking = format!("the gradient's channels do not fill vectors of {lanes}");
    for (case, why) in [
        (odd, &lacking[..]),
        (short, "7 vectors of sums are too few to keep a processor busy"),
        (depthwise, ""),
    ] {
        let (_, text) = explained(&case);
        let why = format!("no kernel of its own for the gradient by weights: {why}");
        assert!(text.contains(&why) && !has_own_kernel(&text), "{case:?}: {why}\n{text}");
    }
}
