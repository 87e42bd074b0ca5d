//! Products of bytes less their zero points with weights that never change: against the graph interpreter, to the bit, on one thread and more,
//! whether sizes are known when compiled or not, with the most that bytes can make of long sums, and sums that no word divides.
//!
//! `TLC_SEEDS=from..to` runs other seeds.

use tlc::{CompileOptions, Conv, DType, Dim, Executable, Graph, HostTensor, Scalar, Specialize, Tensor, compile_ir};
use tlc_codegen::wide::Level;
use tlc_ir::ScalarOp;
use tlc_ir::interp::{self, interpret};
use tlc_ir::kernel::{Op, Stmt};
use tlc_ir::plan::{Plan, Step};
use tlc_ir::rng::Rng;
use tlc_ir::testgen::seeds;

/// What the zero points of an operand are.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Zero {
    None,
    One,
    /// One that a call brings.
    Given,
    /// One for each column.
    Each,
}

#[derive(Clone, Debug)]
struct Case {
    image: DType,
    weights: DType,
    image_zero: Zero,
    weights_zero: Zero,
    batch: Option<usize>,
    rows: usize,
    columns: usize,
    sum: usize,
    turned: bool,
    /// Whether a call brings the weights.
    given: bool,
    /// Whether all bytes are the ones that make the largest products.
    extreme: bool,
    /// Whether the result goes on to bytes again.
    requantized: bool,
    /// How often a loop does it, with other bytes and the same weights.
    steps: Option<usize>,
}

impl Case {
    fn random(rng: &mut Rng) -> Case {
        let mut byte = || rng.pick(&[DType::U8, DType::I8]);
        Case {
            image: byte(),
            weights: byte(),
            image_zero: rng.pick(&[Zero::None, Zero::One, Zero::One, Zero::Given]),
            weights_zero: rng.pick(&[Zero::None, Zero::None, Zero::One, Zero::Each]),
            batch: rng.pick(&[None, None, Some(1), Some(3)]),
            rows: rng.pick(&[0, 1, 1, 2, 3, 4, 5, 7, 12, 13, 33]),
            columns: rng.pick(&[1, 2, 7, 8, 15, 16, 17, 31, 32, 48, 64, 100]),
            sum: rng.pick(&[1, 2, 3, 4, 5, 6, 7, 8, 37, 64, 129, 300, 600]),
            turned: rng.chance(30, 100),
            given: rng.chance(20, 100),
            extreme: rng.chance(25, 100),
            requantized: rng.chance(40, 100),
            steps: None,
        }
    }

    /// As [`Case::random`], in a loop, which computes with weights before its first step whoever brings them.
    fn random_in_loop(rng: &mut Rng) -> Case {
        let steps = Some(rng.pick(&[1, 2, 3, 5]));
        Case {
            steps,
            ..Case::random(rng)
        }
    }

    /// One large enough for words to be worth making.
    fn is_large(&self) -> bool {
        // Smaller matrices are folded, and are words where they are in the range of bytes.
        let folded = self.columns * self.sum <= 4096;
        let products = self.batch.unwrap_or(1) * self.rows * self.columns * self.sum;
        // Zero points that were moved since are left alone.
        let moved = self.turned && self.weights_zero == Zero::Each;
        let fixed = match self.steps {
            // One step is no loop.
            Some(steps) => steps > 1,
            None => !self.given && !folded,
        };
        fixed && self.sum >= 16 && self.columns >= 2 && products >= 4 << 10 && !moved
    }

    fn record(&self, symbolic: bool, data: &Data) -> tlc::ir::Graph {
        let g = Graph::new("bytes");
        let rows: Dim = match symbolic {
            true => (&g.symbol("m", 0..=1 << 12)).into(),
            false => self.rows.into(),
        };
        let mut shape: Vec<Dim> = self.steps.into_iter().chain(self.batch).map(Dim::from).collect();
        shape.extend([rows, self.sum.into()]);
        let x = g.input("x", self.image, shape);
        let w = match self.given {
            true => g.input("w", self.weights, data.weights.shape()),
            false => g.constant(&data.weights),
        };
        let less = |bytes: &Tensor, zero: Option<Tensor>| {
            let wide = bytes.cast(DType::I32);
            match zero {
                Some(zero) => wide - zero.cast(DType::I32),
                None => wide,
            }
        };
        let x_zero = match self.image_zero {
            Zero::None | Zero::Each => None,
            Zero::One => Some(g.constant(&data.image_zero)),
            Zero::Given => Some(g.input("z", self.image, [] as [usize; 0])),
        };
        let w_zero = match self.weights_zero {
            Zero::None | Zero::Given => None,
            Zero::One | Zero::Each => Some(g.constant(&data.weights_zero)),
        };
        // A matrix that lies turned has its zero points along its rows.
        let w_zero = w_zero.map(|z| {
            if self.turned && z.rank() == 1 {
                z.unsqueeze(-1)
            } else {
                z
            }
        });
        let product = |x: &Tensor, seen: &dyn Fn(&Tensor) -> Tensor| {
            let mut w = less(&seen(&w), w_zero.as_ref().map(seen));
            if self.turned {
                w = w.t();
            }
            let y = less(x, x_zero.as_ref().map(seen)).matmul(&w);
            match self.requantized {
                true => ((y.cast(DType::F32) * 0.013).round() + 3.0).cast(DType::U8),
                false => y,
            }
        };
        let y = match self.steps {
            None => product(&x, &Tensor::clone),
            Some(steps) => {
                let results = g.repeat(steps).slice(&x, 0).record(|i| {
                    let y = product(&i.slices[0], &|t| i.capture(t));
                    i.stack(&y, 0);
                    vec![]
                });
                results[0].clone()
            }
        };
        g.output("y", &y);
        g.finish().unwrap_or_else(|e| panic!("{self:?}: {e}"))
    }

    fn shapes(&self) -> [Vec<usize>; 2] {
        let outer = self.steps.into_iter().chain(self.batch);
        let image = outer.chain([self.rows, self.sum]).collect();
        let weights = match self.turned {
            true => vec![self.columns, self.sum],
            false => vec![self.sum, self.columns],
        };
        [image, weights]
    }
}

struct Data {
    image: HostTensor,
    weights: HostTensor,
    image_zero: HostTensor,
    weights_zero: HostTensor,
}

fn bytes(dtype: DType, shape: &[usize], rng: &mut Rng, all: Option<i64>) -> HostTensor {
    let mut out = HostTensor::zeros(dtype, shape).unwrap();
    for i in 0..shape.iter().product() {
        let bits = rng.bits();
        let byte = all.unwrap_or(match bits >> 8 & 7 {
            0 => 0x80,
            1 => 0x7f,
            2 => 0xff,
            _ => (bits & 0xff) as i64,
        });
        out.set(i, Scalar::from_bits(dtype, byte as u64 & 0xff));
    }
    out
}

/// The byte of a dtype that is furthest from zero.
fn furthest(dtype: DType) -> i64 {
    if dtype == DType::U8 { 0xff } else { 0x80 }
}

impl Data {
    fn random(case: &Case, rng: &mut Rng) -> Data {
        let [image, weights] = case.shapes();
        let all = |dtype| case.extreme.then(|| furthest(dtype));
        let zeros: &[usize] = if case.weights_zero == Zero::Each {
            &[case.columns]
        } else {
            &[]
        };
        Data {
            image: bytes(case.image, &image, rng, all(case.image)),
            weights: bytes(case.weights, &weights, rng, all(case.weights)),
            image_zero: bytes(case.image, &[], rng, None),
            weights_zero: bytes(case.weights, zeros, rng, None),
        }
    }
}

/// Whether this machine's code multiplies words.
pub(super) fn has_words() -> bool {
    tlc_runtime::cpu::level::wide().is_some_and(|level: Level| level.vector_bits() >= 256)
}

pub(super) fn is_by_words(e: &Executable) -> bool {
    fn by_kernel(plan: &Plan) -> bool {
        let of_words = |s: &Stmt| {
            matches!(
                s,
                Stmt::Let {
                    op: Op::Map(ScalarOp::Dot4, _),
                    ..
                }
            )
        };
        let in_body = |s: &Step| matches!(s, Step::Loop(l) if by_kernel(&l.body));
        plan.kernels.iter().any(|k| k.statements().any(of_words)) || plan.steps.iter().any(in_body)
    }
    by_kernel(e.plan()) || e.explain().to_string().contains("by the library of words")
}

fn equal(a: &HostTensor, b: &HostTensor) -> bool {
    a.shape() == b.shape() && a.dtype() == b.dtype() && (0..a.shape().iter().product()).all(|i| a.get(i) == b.get(i))
}

#[test]
fn random_products_of_bytes_are_right_to_the_bit() {
    random_products(&Case::random);
}

#[test]
fn random_products_of_bytes_in_loops_are_right_to_the_bit() {
    random_products(&Case::random_in_loop);
}

fn random_products(random: &dyn Fn(&mut Rng) -> Case) {
    let mut by_words = 0;
    for seed in seeds(0..100) {
        let mut rng = Rng::new(seed);
        let case = random(&mut rng);
        let data = Data::random(&case, &mut rng);
        let mut inputs = vec![data.image.clone()];
        if case.given {
            inputs.push(data.weights.clone());
        }
        if case.image_zero == Zero::Given {
            inputs.push(data.image_zero.clone());
        }
        for (symbolic, threads) in [(false, 1), (false, 3), (true, 2)] {
            let graph = case.record(symbolic, &data);
            let options = CompileOptions {
                threads: Some(threads),
                specialize: Specialize::Never,
                ..CompileOptions::default()
            };
            let e = compile_ir(&graph, &options).unwrap_or_else(|e| panic!("seed {seed}: {case:?}: {e}"));
            let explained = e.explain().to_string();
            if has_words() && case.is_large() {
                assert!(is_by_words(&e), "seed {seed}: {case:?}\n{explained}");
            }
            by_words += usize::from(is_by_words(&e));
            let expected = interpret(&graph, &inputs, &interp::Options::default()).unwrap();
            let views: Vec<_> = inputs.iter().map(Into::into).collect();
            let found = e.run(&views).unwrap_or_else(|e| panic!("seed {seed}: {case:?}: {e}"));
            let found = found[0].to_host();
            assert!(
                equal(&expected[0], &found),
                "seed {seed}: {case:?}, symbolic {symbolic}, {threads} threads\n{explained}"
            );
        }
    }
    assert!(!has_words() || by_words > 15, "{by_words} of words");
}

/// 255 times -128 as often as a sum of i32 takes it, and once more.
#[test]
fn the_largest_products_of_long_sums_wrap_as_i32_does() {
    for sum in [65_793, 65_794, 70_001] {
        let case = Case {
            image: DType::U8,
            weights: DType::I8,
            image_zero: Zero::None,
            weights_zero: Zero::None,
            batch: None,
            rows: 2,
            columns: 3,
            sum,
            turned: false,
            given: false,
            extreme: true,
            requantized: false,
            steps: None,
        };
        let data = Data::random(&case, &mut Rng::new(1));
        let graph = case.record(false, &data);
        let e = compile_ir(&graph, &CompileOptions::default()).unwrap();
        let found = e.run(&[(&data.image).into()]).unwrap()[0].to_host();
        let expected = (sum as i64 * 255 * -128) as i32;
        assert!((0..6).all(|i| found.get(i).as_i64() == i64::from(expected)), "{sum}");
    }
}

/// One convolution of bytes.
#[derive(Clone, Debug)]
struct Image {
    /// Axes of an image: the last one alone, both, or both behind one of three.
    axes: usize,
    dtype: DType,
    weights: DType,
    images: usize,
    channels: usize,
    outputs: usize,
    sides: [usize; 2],
    kernel: [usize; 2],
    stride: usize,
    padding: usize,
    /// Channels of each group; all, in one.
    of_group: Option<usize>,
    zero: Option<i64>,
    /// Whether a call brings the zero point.
    given: bool,
    /// Of the weights: none, one for all, or one for each output from this one on.
    weights_zero: Option<i64>,
    each: bool,
    requantized: bool,
}

impl Image {
    fn random(rng: &mut Rng) -> Image {
        Image {
            axes: rng.pick(&[2, 2, 2, 2, 1, 1, 3]),
            dtype: rng.pick(&[DType::U8, DType::U8, DType::I8]),
            weights: rng.pick(&[DType::I8, DType::I8, DType::U8]),
            images: rng.pick(&[1, 1, 2]),
            channels: rng.pick(&[1, 2, 3, 4, 5, 8, 13, 32, 40]),
            outputs: rng.pick(&[1, 8, 10, 16, 24, 32, 48]),
            sides: [rng.pick(&[1, 3, 5, 8]), rng.pick(&[1, 3, 7, 13, 14, 29])],
            kernel: rng.pick(&[[3, 3], [3, 3], [1, 1], [1, 1], [1, 3], [2, 5]]),
            stride: rng.pick(&[1, 1, 2]),
            padding: rng.pick(&[0, 1, 1, 2]),
            of_group: rng.pick(&[None, None, Some(1), Some(1), Some(4)]),
            zero: rng.pick(&[None, Some(7), Some(120), Some(-3)]),
            given: rng.chance(30, 100),
            // Of u8 the middle is the usual one.
            weights_zero: rng.pick(&[None, None, Some(128), Some(128), Some(0), Some(13), Some(-77)]),
            each: rng.chance(20, 100),
            requantized: rng.chance(50, 100),
        }
    }

    fn has_results(&self) -> bool {
        let divides =
            self.channels.is_multiple_of(self.channels_of_group()) && self.outputs.is_multiple_of(self.groups());
        divides && (0..2).all(|i| self.sides[i] + 2 * self.padding >= self.kernel[i])
    }

    fn channels_of_group(&self) -> usize {
        self.of_group.unwrap_or(self.channels)
    }

    fn groups(&self) -> usize {
        self.channels / self.channels_of_group()
    }

    fn record(&self, symbolic: bool, weights: &HostTensor) -> tlc::ir::Graph {
        let g = Graph::new("image");
        let size = |name: &str, known: usize| match symbolic {
            true => Dim::from(&g.symbol(name, 0..=1 << 10)),
            false => known.into(),
        };
        let [h, w] = self.sides;
        let mut shape = vec![size("n", self.images), self.channels.into()];
        match self.axes {
            1 => shape.push(size("w", w)),
            2 => shape.extend([size("h", h), size("w", w)]),
            _ => shape.extend([3.into(), size("h", h), size("w", w)]),
        }
        let mut x = g.input("x", self.dtype, shape).cast(DType::I32);
        if self.given {
            x = &x - g.input("z", self.dtype, ()).cast(DType::I32);
        } else if let Some(zero) = self.zero {
            x = &x - (zero as i32);
        }
        let mut w = g.constant(weights).cast(DType::I32);
        if let Some(zero) = self.weights_zero {
            // What is of the type of the weights, whatever that is.
            let byte = |k: usize| Scalar::from_i64(self.weights, zero + k as i64).as_i64() as i32;
            w = match self.each {
                true => {
                    let zeros: Vec<i32> = (0..self.outputs).map(byte).collect();
                    let shape = [&[self.outputs, 1][..], &vec![1; self.axes]].concat();
                    let zeros = HostTensor::from_slice(&shape, &zeros).expect("zero points");
                    &w - g.constant(&zeros)
                }
                false => &w - byte(0),
            };
        }
        let settings = Conv::new().stride(self.stride).padding(self.padding);
        let settings = settings.groups(self.groups());
        let mut y = match self.axes {
            1 => x.conv1d(&w, None, &settings),
            2 => x.conv2d(&w, None, &settings),
            _ => x.conv3d(&w, None, &settings),
        };
        if self.requantized {
            y = ((y.cast(DType::F32) * 0.021).round() + 5.0).cast(DType::I8);
        }
        g.output("y", &y);
        g.finish().unwrap_or_else(|e| panic!("{self:?}: {e}"))
    }
}

#[test]
fn random_convolutions_of_bytes_are_right_to_the_bit() {
    let mut by_words = 0;
    for seed in seeds(0..80) {
        let mut rng = Rng::new(seed);
        let mut case = Image::random(&mut rng);
        while !case.has_results() {
            case = Image::random(&mut rng);
        }
        let along = |[a, b]: [usize; 2], of_three: usize| match case.axes {
            1 => vec![b],
            2 => vec![a, b],
            _ => vec![of_three, a, b],
        };
        let of_weights = [vec![case.outputs, case.channels_of_group()], along(case.kernel, 2)].concat();
        let weights = bytes(case.weights, &of_weights, &mut rng, None);
        let of_image = [vec![case.images, case.channels], along(case.sides, 3)].concat();
        let mut inputs = vec![bytes(case.dtype, &of_image, &mut rng, None)];
        if case.given {
            inputs.push(bytes(case.dtype, &[], &mut rng, None));
        }
        for (symbolic, threads) in [(false, 1), (true, 3), (false, 7)] {
            let graph = case.record(symbolic, &weights);
            let options = CompileOptions {
                threads: Some(threads),
                specialize: Specialize::Never,
                ..CompileOptions::default()
            };
            let e = compile_ir(&graph, &options).unwrap_or_else(|e| panic!("seed {seed}: {case:?}: {e}"));
            let explained = e.explain().to_string();
            by_words += usize::from(is_by_words(&e));
            let expected = interpret(&graph, &inputs, &interp::Options::default()).unwrap();
            let found = e.run(&inputs.iter().map(Into::into).collect::<Vec<_>>());
            let found = found.unwrap_or_else(|e| panic!("seed {seed}: {case:?}: {e}"))[0].to_host();
            assert!(
                equal(&expected[0], &found),
                "seed {seed}: {case:?}, symbolic {symbolic}, {threads} threads\n{explained}"
            );
        }
    }
    assert!(!has_words() || by_words > 20, "{by_words} of words");
}

/// The weights alone say how long a sum is, where the image has a symbol for it.
#[test]
fn sums_of_bytes_whose_length_is_a_symbol_of_the_image_are_right_to_the_bit() {
    for (k, n) in [(32usize, 16usize), (33, 2), (70, 48)] {
        let mut rng = Rng::new(k as u64);
        let weights = bytes(DType::I8, &[k, n], &mut rng, None);
        let g = Graph::new("length");
        let (b, d) = (g.symbol("b", 0..=100), g.symbol("d", 0..=100));
        let x = g.input("x", DType::U8, (&b, &d));
        let product = x.cast(DType::I32).matmul(&g.constant(&weights).cast(DType::I32));
        g.output("y", &product);
        let graph = g.finish().unwrap_or_else(|e| panic!("{e}"));
        let e = compile_ir(&graph, &CompileOptions::default()).unwrap_or_else(|e| panic!("{e}"));
        for rows in [0usize, 1, 6, 37] {
            let image = bytes(DType::U8, &[rows, k], &mut rng, None);
            let expected = interpret(&graph, std::slice::from_ref(&image), &interp::Options::default()).unwrap();
            let found = e.run(&[(&image).into()]).unwrap_or_else(|e| panic!("{e}"))[0].to_host();
            assert!(equal(&expected[0], &found), "{rows} rows, {k}x{n}");
        }
    }
}
