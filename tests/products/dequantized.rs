//! Products of floats that were bytes, as quantized networks have them: against the exact sums of the integers, scaled in f64. Sums over integers
//! round three times, whatever their length, and so do short ones that floats add up exactly; those that stay sums of floats once for each product.
//!
//! `TLC_SEEDS=from..to` runs other seeds.

use tlc::{CompileOptions, Conv, DType, Dim, Graph, HostTensor, Scalar, Specialize, Tensor, compile_ir};
use tlc_codegen::wide::Level;
use tlc_ir::interp::{self, interpret};
use tlc_ir::rng::Rng;
use tlc_ir::testgen::seeds;

/// What is multiplied, by which scales.
#[derive(Clone, Debug)]
struct Case {
    image: DType,
    weights: DType,
    /// The zero points; that of the image may be none of its bytes.
    zeros: [i64; 2],
    image_scale: f32,
    /// Whether each column has a scale.
    each: bool,
    /// Whether scales of weights are an input.
    given: bool,
    /// A convolution of images of these channels, height and width by windows of so many rows and columns; or rows of a matrix.
    windows: Option<[usize; 2]>,
    batch: usize,
    sides: [usize; 2],
    channels: usize,
    columns: usize,
    padding: usize,
    stride: usize,
    groups: bool,
    /// Whether a matrix of weights has rows of its columns.
    turned: bool,
    bias: bool,
    requantized: bool,
}

impl Case {
    fn random(rng: &mut Rng) -> Case {
        let byte = |rng: &mut Rng| rng.pick(&[DType::U8, DType::U8, DType::I8]);
        let (image, weights) = (byte(rng), rng.pick(&[DType::I8, DType::I8, DType::I8, DType::U8]));
        let zero = |dtype| if dtype == DType::U8 { 128 } else { 0 };
        let columns = rng.pick(&[1, 2, 8, 16, 24, 32, 48, 100]);
        Case {
            image,
            weights,
            zeros: [
                rng.pick(&[0, 0, 7, 120, -3]),
                rng.pick(&[zero(weights), zero(weights), 3]),
            ],
            image_scale: rng.pick(&[0.02, 0.7, 1.0, -0.01, f32::MIN_POSITIVE, f32::INFINITY, f32::NAN]),
            each: rng.chance(60, 100),
            given: rng.chance(10, 100),
            windows: rng.pick(&[None, None, Some([3, 3]), Some([1, 1]), Some([2, 5])]),
            batch: rng.pick(&[0, 1, 1, 2, 3, 13]),
            sides: [rng.pick(&[1, 3, 5, 8]), rng.pick(&[1, 3, 7, 13, 14, 29])],
            channels: rng.pick(&[1, 2, 5, 8, 16, 32, 64, 129, 300]),
            columns,
            padding: rng.pick(&[0, 1, 1, 2]),
            stride: rng.pick(&[1, 1, 2]),
            groups: rng.chance(15, 100),
            bias: rng.chance(50, 100),
            requantized: rng.chance(30, 100),
            // The last, so that the others are what they were.
            turned: rng.chance(50, 100),
        }
    }

    fn has_results(&self) -> bool {
        let windows = self.windows.unwrap_or([1, 1]);
        (0..2).all(|i| self.sides[i] + 2 * self.padding >= windows[i])
    }

    /// Whether all is there that a sum of integers needs.
    fn is_of_integers(&self) -> bool {
        let scale = self.image_scale.abs();
        let bytes = self.zeros[0] >= 0 || self.image == DType::I8;
        // Weights of windows that have another zero point are no words, and neither are few columns, products, or short sums.
        let middle = if self.weights == DType::U8 { 128 } else { 0 };
        let windows = self.windows.map_or(1, |w| w[0] * w[1]);
        let zero = self.zeros[1] == middle || self.windows.is_none();
        let padded = self.image != DType::I8 || self.zeros[0] <= 127;
        let (sum, large) = (
            self.channels * windows,
            self.batch * self.channels * self.columns >= 4 << 10,
        );
        let scaled = (1e-15..1e15).contains(&scale) && !self.given;
        scaled && bytes && padded && zero && !self.groups && self.columns > 1 && sum >= 16 && self.channels > 1 && large
    }

    /// Whether so many sums of each channel's windows are added up exactly in f32.
    fn is_of_whole_floats(&self, results: Option<usize>) -> bool {
        let scaled = (1e-15..1e15).contains(&self.image_scale.abs()) && !self.given;
        let byte = self.zeros[0] >= 0 || self.image == DType::I8;
        let products = self.windows.map_or(1, |w| w[0] * w[1]);
        let many = results.is_none_or(|n| n * products >= 4 << 10);
        self.groups && self.windows.is_some() && scaled && byte && products > 1 && many
    }

    fn image_shape(&self) -> Vec<usize> {
        match self.windows {
            Some(_) => vec![self.batch, self.channels, self.sides[0], self.sides[1]],
            None => vec![self.batch, self.channels],
        }
    }

    fn weights_shape(&self) -> Vec<usize> {
        match self.windows {
            // Each channel has windows of its own.
            Some([h, w]) if self.groups => vec![self.channels, 1, h, w],
            Some([h, w]) => vec![self.columns, self.channels, h, w],
            None if self.turned => vec![self.columns, self.channels],
            None => vec![self.channels, self.columns],
        }
    }

    fn multiplied(&self, x: &Tensor, w: &Tensor) -> Tensor {
        match self.windows {
            Some(_) => {
                let groups = if self.groups { self.channels } else { 1 };
                let settings = Conv::new()
                    .stride(self.stride)
                    .padding([self.padding; 2])
                    .groups(groups);
                x.conv2d(w, None, &settings)
            }
            None if self.turned => x.matmul(&w.transpose()),
            None => x.matmul(w),
        }
    }

    fn outputs(&self) -> usize {
        if self.groups && self.windows.is_some() {
            self.channels
        } else {
            self.columns
        }
    }

    /// A vector of the columns, as it lies along the result or the weights.
    fn along(&self, v: &Tensor, of_weights: bool) -> Tensor {
        match (self.windows, of_weights) {
            (None, true) if self.turned => v.reshape([self.columns, 1]),
            (None, _) => v.clone(),
            (Some(_), true) => v.reshape([self.outputs(), 1, 1, 1]),
            (Some(_), false) => v.reshape([self.outputs(), 1, 1]),
        }
    }

    /// Whose sums are of integers (`exact`) or of floats.
    fn record(&self, symbolic: bool, data: &Data, exact: bool) -> tlc::ir::Graph {
        let g = Graph::new("dequantized");
        let mut shape: Vec<Dim> = self.image_shape().into_iter().map(Dim::from).collect();
        if symbolic {
            shape[0] = (&g.symbol("n", 0..=1 << 10)).into();
        }
        let x = g.input("x", self.image, shape).cast(DType::I32) - self.zeros[0] as i32;
        let w = g.constant(&data.weights).cast(DType::I32) - self.zeros[1] as i32;
        let given = self
            .given
            .then(|| g.input("s", DType::F32, data.scales.shape().to_vec()));
        if exact {
            g.output("y", &self.multiplied(&x, &w));
            return g.finish().unwrap_or_else(|e| panic!("{self:?}: {e}"));
        }
        let scales = given.unwrap_or_else(|| g.constant(&data.scales));
        let scales = if self.each { self.along(&scales, true) } else { scales };
        let x = x.cast(DType::F32) * self.image_scale;
        let w = w.cast(DType::F32) * scales;
        let mut y = self.multiplied(&x, &w);
        if self.bias {
            y += self.along(&g.constant(&data.bias), false);
        }
        if self.requantized {
            y = ((y / 1024.0).round() + 5.0).cast(DType::I8);
        }
        g.output("y", &y);
        g.finish().unwrap_or_else(|e| panic!("{self:?}: {e}"))
    }
}

struct Data {
    image: HostTensor,
    weights: HostTensor,
    scales: HostTensor,
    bias: HostTensor,
}

fn bytes(dtype: DType, shape: &[usize], rng: &mut Rng) -> HostTensor {
    let mut out = HostTensor::zeros(dtype, shape).unwrap();
    for i in 0..shape.iter().product() {
        out.set(i, Scalar::from_bits(dtype, rng.bits() & 0xff));
    }
    out
}

impl Data {
    fn random(case: &Case, rng: &mut Rng) -> Data {
        let outputs = case.outputs();
        let mut vector = |shape: &[usize], least: f32| {
            let n = shape.iter().product();
            let numbers: Vec<f32> = (0..n).map(|_| least + (rng.bits() & 0xff) as f32 / 256.0).collect();
            HostTensor::from_slice(shape, &numbers).unwrap()
        };
        let scales: &[usize] = if case.each { &[outputs] } else { &[] };
        let (scales, bias) = (vector(scales, 0.01), vector(&[outputs], -0.5));
        Data {
            image: bytes(case.image, &case.image_shape(), rng),
            weights: bytes(case.weights, &case.weights_shape(), rng),
            scales,
            bias,
        }
    }
}

/// Whether this machine's code multiplies words.
fn has_words() -> bool {
    tlc_runtime::cpu::level::wide().is_some_and(|level: Level| level.vector_bits() >= 256)
}

#[test]
fn random_products_of_dequantized_bytes_are_those_of_integers() {
    let (mut by_words, mut by_floats) = (0, 0);
    for seed in seeds(0..150) {
        let mut rng = Rng::new(seed);
        let mut case = Case::random(&mut rng);
        while !case.has_results() {
            case = Case::random(&mut rng);
        }
        let data = Data::random(&case, &mut rng);
        let sums = interpret(
            &case.record(false, &data, true),
            &(std::iter::once(data.image.clone()).chain(case.given.then(|| data.scales.clone()))).collect::<Vec<_>>(),
            &interp::Options::default(),
        );
        let sums = sums.unwrap_or_else(|e| panic!("seed {seed}: {case:?}: {e}")).remove(0);
        let inner: usize = if case.windows.is_some() {
            sums.shape()[2..].iter().product()
        } else {
            1
        };
        let [products, largest] = [case.channels * case.windows.map_or(1, |w| w[0] * w[1]), 383 * 383];
        for (symbolic, threads) in [(false, 1), (true, 3)] {
            let graph = case.record(symbolic, &data, false);
            let options = CompileOptions {
                threads: Some(threads),
                specialize: Specialize::Never,
                ..CompileOptions::default()
            };
            let at = || format!("seed {seed}: {case:?}, symbolic {symbolic}");
            let e = compile_ir(&graph, &options).unwrap_or_else(|e| panic!("{}: {e}", at()));
            let words = has_words() && e.explain().to_string().contains("einsum i32");
            by_words += usize::from(words);
            by_floats += usize::from(!words && has_words() && case.is_of_whole_floats(Some(sums.len())));
            assert!(
                words || !has_words() || !case.is_of_integers(),
                "{}\n{}",
                at(),
                e.explain()
            );
            let mut inputs = vec![(&data.image).into()];
            if case.given {
                inputs.push((&data.scales).into());
            }
            let found = e.run(&inputs).unwrap_or_else(|e| panic!("{}: {e}", at()))[0].to_host();
            assert_eq!(found.shape(), sums.shape(), "{}", at());
            for i in 0..found.len() {
                let column = i / inner % case.outputs();
                let weight_scale = data.scales.get(if case.each { column } else { 0 }).as_f64();
                let scale = f64::from(case.image_scale) * weight_scale;
                let bias = if case.bias { data.bias.get(column).as_f64() } else { 0.0 };
                let y = sums.get(i).as_f64() * scale + bias;
                let results = (!symbolic).then_some(found.len());
                let whole = words || (has_words() && case.is_of_whole_floats(results));
                let rounded = match whole {
                    true => 2e-7 * ((y - bias).abs() + y.abs()),
                    false => 1.2e-7 * (products + 2) as f64 * (largest * products) as f64 * scale.abs() + 1e-6,
                };
                let [lo, hi] = [y - rounded, y + rounded].map(|y| match case.requantized {
                    true => ((y / 1024.0).round_ties_even() + 5.0).clamp(-128.0, 127.0),
                    false => y,
                });
                let v = found.get(i).as_f64();
                // With a scale that is no number, or an infinity, a sum is one of those, unless all that it adds up is padding.
                let beyond = !v.is_finite() || (v - bias).abs() < 1e-6;
                let nan = !scale.is_finite() && (case.requantized || beyond);
                assert!(nan || (lo..=hi).contains(&v), "{}: {i}: {v} for {lo} to {hi}", at());
            }
        }
    }
    assert!(!has_words() || by_words > 40, "{by_words} of words");
    assert!(!has_words() || by_floats > 4, "{by_floats} of whole floats");
}

/// Windows with a stride of two read bytes that were padded as bytes, every other one at once where machines load so: no image of f32 is in memory.
#[test]
fn strided_windows_of_each_channel_read_padded_bytes() {
    if !has_words() {
        return println!("SKIP: sums of bytes are sums of floats here");
    }
    for (width, zero) in [(28, 0), (29, 7), (14, 200), (5, 255)] {
        let case = Case {
            image: DType::U8,
            weights: DType::I8,
            zeros: [zero, 0],
            image_scale: 0.02,
            each: true,
            given: false,
            windows: Some([3, 3]),
            batch: 1,
            sides: [28, width],
            channels: 32,
            columns: 32,
            padding: 1,
            stride: 2,
            groups: true,
            turned: false,
            bias: true,
            requantized: false,
        };
        let mut rng = Rng::new(width as u64);
        let data = Data::random(&case, &mut rng);
        let sums = interpret(
            &case.record(false, &data, true),
            std::slice::from_ref(&data.image),
            &interp::Options::default(),
        );
        let sums = sums.unwrap().remove(0);
        let graph = case.record(false, &data, false);
        for threads in [1, 2] {
            let options = CompileOptions {
                threads: Some(threads),
                ..CompileOptions::default()
            };
            let e = compile_ir(&graph, &options).unwrap();
            if tlc_runtime::cpu::level::wide() == Some(Level::Avx512) {
                let floats = e.plan().slots.iter().filter(|s| s.dtype == DType::F32);
                let largest = floats.filter_map(|s| s.len.as_const()).max();
                assert_eq!(largest, Some(sums.len() as i64), "{width}: {}", e.explain());
            }
            let found = e.run(&[(&data.image).into()]).unwrap()[0].to_host();
            let each = sums.len() / 32;
            for i in 0..sums.len() {
                let scale = 0.02f32 as f64 * data.scales.get(i / each).as_f64();
                let bias = data.bias.get(i / each).as_f64();
                let y = sums.get(i).as_f64() * scale + bias;
                let off = (found.get(i).as_f64() - y).abs();
                assert!(off <= 2e-7 * ((y - bias).abs() + y.abs()), "{width}: {i}: off by {off}");
            }
        }
    }
}

/// An infinite scale makes NaN of each zero, and of the sum.
#[test]
fn scales_that_are_no_numbers_stay_where_they_are() {
    for (scale, expected) in [(f32::INFINITY, "NaN"), (f32::NAN, "NaN"), (0.0, "0")] {
        let g = Graph::new("scales");
        let x = g.input("x", DType::U8, [64, 64]);
        let w = g.constant(HostTensor::from_slice(&[64, 64], &[1i8; 64 * 64]).unwrap());
        let x = (x.cast(DType::I32) - 3i32).cast(DType::F32) * scale;
        g.output("y", &x.matmul(&w.cast(DType::I32).cast(DType::F32)));
        let e = compile_ir(&g.finish().unwrap(), &CompileOptions::default()).unwrap();
        assert!(!e.explain().to_string().contains("einsum i32"));
        let image = HostTensor::from_slice(&[64, 64], &[3u8; 64 * 64]).unwrap();
        let found = e.run(&[(&image).into()]).unwrap()[0].to_host();
        assert!(
            (0..found.len()).all(|i| found.get(i).as_f64().to_string() == expected),
            "{scale}"
        );
    }
}
