//! Products of stacks of matrices of bytes, of which a call brings both or one: against the graph interpreter, to the bit, where they are sums of
//! integers, and against those sums, scaled in f64, where they are of dequantized bytes; on one thread and more, whether sizes are known when compiled
//! or not.
//!
//! `TLC_SEEDS=from..to` runs other seeds.

use tlc::{CompileOptions, DType, Dim, Graph, HostTensor, Scalar, Specialize, Tensor, compile_ir};
use tlc_ir::interp::{self, interpret};
use tlc_ir::rng::Rng;
use tlc_ir::testgen::seeds;

use super::bytes::{has_words, is_by_words};

/// A zero point.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Zero {
    None,
    One(i64),
    /// That a call brings.
    Given,
}

#[derive(Clone, Debug)]
struct Case {
    dtypes: [DType; 2],
    zeros: [Zero; 2],
    /// Extents of the stack, which the second operand may have 1 of or lack.
    stack: Vec<usize>,
    of_second: Vec<usize>,
    rows: usize,
    columns: usize,
    sum: usize,
    /// Whether an operand's rows lie beside those of other matrices of the stack, as heads do.
    apart: [bool; 2],
    /// Whether the second operand lies turned.
    turned: bool,
    /// Whether the second operand is a constant.
    fixed: bool,
    /// Whether it is a product of floats that were bytes.
    scales: Option<[f32; 2]>,
    /// Whether the first operand is what a quantization gives.
    quantized: bool,
}

impl Case {
    fn random(rng: &mut Rng) -> Case {
        let dtypes = [0, 1].map(|_| rng.pick(&[DType::U8, DType::I8]));
        let zeros = dtypes.map(|d| {
            let middle = if d == DType::U8 { 128 } else { 0 };
            rng.pick(&[Zero::None, Zero::One(7), Zero::One(middle), Zero::One(119), Zero::Given])
        });
        let stack = rng
            .pick(&[&[][..], &[1], &[2], &[5], &[2, 3], &[1, 4], &[0, 2]])
            .to_vec();
        let mut of_second = stack.clone();
        match rng.pick(&[0, 0, 0, 1, 2]) {
            1 => of_second.iter_mut().for_each(|d| *d = 1),
            2 => of_second.clear(),
            _ => {}
        }
        Case {
            dtypes,
            zeros,
            stack,
            of_second,
            rows: rng.pick(&[0, 1, 2, 7, 8, 9, 16, 33, 50, 64, 77, 100]),
            columns: rng.pick(&[1, 2, 7, 8, 9, 16, 31, 32, 50, 65, 77, 96]),
            sum: rng.pick(&[1, 4, 15, 16, 17, 31, 32, 50, 64, 197, 300]),
            apart: [0, 1].map(|_| rng.chance(40, 100)),
            turned: rng.chance(40, 100),
            fixed: rng.chance(15, 100),
            scales: rng
                .chance(50, 100)
                .then(|| [rng.pick(&[0.02, 1.0, -0.5]), rng.pick(&[0.01, 3.0])]),
            quantized: rng.chance(30, 100),
        }
    }

    fn shapes(&self) -> [Vec<usize>; 2] {
        let of = |stack: &[usize], rows: usize, columns: usize, apart: bool| {
            let mut shape = stack.to_vec();
            shape.extend([rows, columns]);
            if apart && stack.len() > 1 {
                let last = shape.len();
                shape.swap(last - 3, last - 2);
            }
            shape
        };
        let (k, n) = match self.turned {
            true => (self.columns, self.sum),
            false => (self.sum, self.columns),
        };
        [
            of(&self.stack, self.rows, self.sum, self.apart[0]),
            of(&self.of_second, k, n, self.apart[1]),
        ]
    }

    fn record(&self, symbolic: bool, exact: bool, data: &[HostTensor; 2]) -> tlc::ir::Graph {
        let g = Graph::new("stacks");
        let [of_first, of_second] = self.shapes();
        let mut first: Vec<Dim> = of_first.iter().map(|&d| Dim::from(d)).collect();
        if symbolic {
            let rows = if self.apart[0] && self.stack.len() > 1 { 3 } else { 2 };
            let rows = first.len() - rows;
            first[rows] = (&g.symbol("m", 0..=1 << 10)).into();
        }
        let x = match self.quantized && !exact {
            // The same bytes, of floats.
            true => (g.input("x", DType::F32, first) / 0.5).round().cast(self.dtypes[0]),
            false => g.input("x", self.dtypes[0], first),
        };
        let w = match self.fixed {
            true => g.constant(&data[1]),
            false => g.input("w", self.dtypes[1], of_second),
        };
        let less = |bytes: &Tensor, i: usize| {
            let wide = bytes.cast(DType::I32);
            let wide = match self.zeros[i] {
                Zero::None => wide,
                Zero::One(z) => wide - z as i32,
                Zero::Given => {
                    let z = g.input(&format!("z{i}"), self.dtypes[i], [] as [usize; 0]);
                    wide - z.cast(DType::I32)
                }
            };
            match self.scales {
                Some(scales) if !exact => wide.cast(DType::F32) * scales[i],
                _ => wide,
            }
        };
        let placed = |t: &Tensor, apart: bool, stack: &[usize]| match apart && stack.len() > 1 {
            true => t.permute([0, 2, 1, 3]),
            false => t.clone(),
        };
        let a = placed(&less(&x, 0), self.apart[0], &self.stack);
        let mut b = placed(&less(&w, 1), self.apart[1], &self.of_second);
        if self.turned {
            b = b.t();
        }
        g.output("y", &a.matmul(&b));
        g.finish().unwrap_or_else(|e| panic!("{self:?}: {e}"))
    }

    /// Whether all is there that words need.
    fn is_large(&self) -> bool {
        let stack: usize = self.stack.iter().product();
        // Small constants are folded.
        let fixed = self.fixed && self.columns * self.sum <= 4096;
        let least = self.rows.min(self.columns);
        let products = stack * self.rows * self.columns * self.sum;
        // Floats that were bytes stay floats where they are few.
        let fewest = if self.scales.is_some() && !self.fixed { 64 } else { 8 };
        least >= fewest && self.sum >= 16 && products >= 4 << 10 && !fixed
    }
}

fn bytes(dtype: DType, shape: &[usize], rng: &mut Rng) -> HostTensor {
    let mut out = HostTensor::zeros(dtype, shape).unwrap();
    let all = rng.chance(15, 100);
    for i in 0..shape.iter().product() {
        let furthest = if dtype == DType::U8 { 0xff } else { 0x80 };
        let bits = rng.bits() & 0xff;
        out.set(i, Scalar::from_bits(dtype, if all { furthest } else { bits }));
    }
    out
}

#[test]
fn random_stacks_of_bytes_are_right_to_the_bit() {
    let mut by_words = 0;
    for seed in seeds(0..120) {
        let mut rng = Rng::new(seed);
        let case = Case::random(&mut rng);
        let shapes = case.shapes();
        let data = [0, 1].map(|i| bytes(case.dtypes[i], &shapes[i], &mut rng));
        let zeros = [0, 1].map(|i| bytes(case.dtypes[i], &[], &mut rng));
        let mut inputs = vec![data[0].clone()];
        if !case.fixed {
            inputs.push(data[1].clone());
        }
        let given = case.zeros.iter().zip(&zeros).filter(|(z, _)| **z == Zero::Given);
        inputs.extend(given.map(|(_, z)| z.clone()));
        let sums = interpret(&case.record(false, true, &data), &inputs, &interp::Options::default());
        let sums = sums.unwrap_or_else(|e| panic!("seed {seed}: {case:?}: {e}")).remove(0);
        if case.quantized {
            let halves: Vec<f32> = (0..data[0].len())
                .map(|i| data[0].get(i).as_f64() as f32 / 2.0)
                .collect();
            inputs[0] = HostTensor::from_slice(&shapes[0], &halves).unwrap();
        }
        for (symbolic, threads) in [(false, 1), (true, 3)] {
            let at = || format!("seed {seed}: {case:?}, symbolic {symbolic}");
            let options = CompileOptions {
                threads: Some(threads),
                specialize: Specialize::Never,
                ..CompileOptions::default()
            };
            let e = compile_ir(&case.record(symbolic, false, &data), &options);
            let e = e.unwrap_or_else(|e| panic!("{}: {e}", at()));
            let explained = e.explain().to_string();
            let words = is_by_words(&e);
            by_words += usize::from(words);
            if has_words() && case.is_large() {
                assert!(words, "{}\n{explained}", at());
            }
            let views: Vec<_> = inputs.iter().map(Into::into).collect();
            let found = e.run(&views).unwrap_or_else(|e| panic!("{}: {e}", at()));
            let found = found[0].to_host();
            assert_eq!(found.shape(), sums.shape(), "{}", at());
            // A sum of floats that were bytes rounds each product and each addition; one of integers three times.
            let additions = if words { 3 } else { case.sum + 3 };
            for i in 0..found.len() {
                match case.scales {
                    None => assert_eq!(found.get(i), sums.get(i), "{}: {i}\n{explained}", at()),
                    Some([a, b]) => {
                        let scale = f64::from(a) * f64::from(b);
                        let (y, v) = (sums.get(i).as_f64() * scale, found.get(i).as_f64());
                        let largest = match additions {
                            3 => y.abs(),
                            _ => 383.0 * 383.0 * case.sum as f64 * scale.abs(),
                        };
                        let off = 6e-8 * additions as f64 * largest;
                        assert!((v - y).abs() <= off, "{}: {i}: {v} for {y}\n{explained}", at());
                    }
                }
            }
        }
    }
    assert!(!has_words() || by_words > 40, "{by_words} of words");
}
