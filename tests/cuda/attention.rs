//! Attention on a device: one kernel, within the interpreter's bounds, for heads, masks, types and sizes of all kinds.

use std::hash::{DefaultHasher, Hash, Hasher};

use tlc::{
    Attention, CompileOptions, DType, Device, Graph, HostTensor, Precision, Scalar, Specialize, Tensor, compile_ir,
};
use tlc_ir::interp::{self, interpret, interpret_with_bounds};
use tlc_ir::plan::Step;

use crate::judged::judges;
use crate::states::compare_all;

/// Sizes and settings of an attention.
struct Shape {
    dtype: DType,
    batch: usize,
    heads: usize,
    /// Heads of queries for each head of keys.
    times: usize,
    rows: usize,
    keys: usize,
    features: usize,
    width: usize,
    causal: bool,
    /// What of the keys each head sees: all, or what a bool or something added says.
    mask: Option<DType>,
    /// Whether lengths are symbols.
    symbolic: bool,
    /// Whether there are infinities and NaN.
    special: bool,
    precision: Precision,
}

const PLAIN: Shape = Shape {
    dtype: DType::F32,
    batch: 1,
    heads: 2,
    times: 1,
    rows: 64,
    keys: 64,
    features: 32,
    width: 32,
    causal: false,
    mask: None,
    symbolic: false,
    special: false,
    precision: Precision::Exact,
};

/// Heads of keys or values, each read by several heads of queries.
fn repeated(x: &Tensor, s: &Shape, width: usize) -> Tensor {
    let length = x.dim(2);
    x.unsqueeze(2)
        .expand((s.batch, s.heads, s.times, &length, width))
        .reshape((s.batch, s.heads * s.times, &length, width))
}

impl Shape {
    fn record(&self) -> Graph {
        let g = Graph::new("attention");
        let length = |name: &str, n: usize| match self.symbolic {
            true => g.symbol(name, 0..=500),
            false => n.into(),
        };
        let (rows, keys): (tlc::Dim, tlc::Dim) = (length("s", self.rows), length("t", self.keys));
        let q = g.input(
            "q",
            self.dtype,
            (self.batch, self.heads * self.times, &rows, self.features),
        );
        let k = g.input("k", self.dtype, (self.batch, self.heads, &keys, self.features));
        let v = g.input("v", self.dtype, (self.batch, self.heads, &keys, self.width));
        let mut options = Attention::new();
        if self.causal {
            options = options.causal();
        }
        if let Some(dtype) = self.mask {
            options = options.mask(&g.input("m", dtype, (self.batch, 1, &rows, &keys)));
        }
        let (k, v) = match self.times {
            1 => (k, v),
            _ => (repeated(&k, self, self.features), repeated(&v, self, self.width)),
        };
        g.output("y", &q.attention(&k, &v, &options));
        g
    }

    /// Whether four warps multiply together on a device that has instructions for that.
    fn in_groups(&self) -> bool {
        let whole = [self.features, self.width].iter().all(|n| n % 64 == 0);
        let device = std::env::var("TLC_SIM_DEVICE").is_err();
        device && whole && self.dtype.bytes() == 2 && (self.rows >= 64 || self.symbolic)
    }

    /// Kernels that compute it: several blocks share the keys of a single row, and hidden keys are left out where nothing is wild.
    fn launches(&self) -> usize {
        let shared = self.rows == 1 && self.keys >= 512;
        let tile = if self.in_groups() { 128 } else { 64 };
        let narrow = self.dtype.bytes() == 2 || self.precision != Precision::Exact;
        let keys = if self.symbolic { 500 } else { self.keys };
        let horizon = self.causal && narrow && self.rows > 1 && keys > 3 * tile;
        1 + usize::from(shared || horizon)
    }

    fn inputs(&self) -> Vec<HostTensor> {
        let queries = [self.batch, self.heads * self.times, self.rows, self.features];
        let keys = [self.batch, self.heads, self.keys, self.features];
        let values = [self.batch, self.heads, self.keys, self.width];
        let mask = [self.batch, 1, self.rows, self.keys];
        let mut all = vec![(self.dtype, queries), (self.dtype, keys), (self.dtype, values)];
        all.extend(self.mask.map(|dtype| (dtype, mask)));
        let mut inputs = Vec::new();
        for (number, (dtype, shape)) in all.into_iter().enumerate() {
            let mut x = HostTensor::zeros(dtype, &shape).expect("a tensor");
            for k in 0..x.len() {
                let value = match dtype {
                    _ if number == 3 && k % 3 == 1 => f64::NEG_INFINITY,
                    DType::Bool => 1.0,
                    _ if number == 3 => 0.0,
                    _ if self.special && k % 331 == 17 => [f64::NAN, f64::INFINITY, -0.0][k / 331 % 3],
                    _ => ((k * 37 + 11 + number * 7) % 101) as f64 / 50.0 - 1.0,
                };
                let scalar = match dtype {
                    DType::Bool => Scalar::from_bool(value > 0.0),
                    _ => Scalar::from_f64(dtype, value),
                };
                x.set(k, scalar);
            }
            inputs.push(x);
        }
        inputs
    }
}

mod children {
    use super::*;

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn attentions() {
        let shapes = [
            Shape { ..PLAIN },
            Shape {
                rows: 70,
                keys: 45,
                features: 20,
                width: 24,
                causal: true,
                ..PLAIN
            },
            Shape {
                heads: 1,
                times: 3,
                batch: 2,
                rows: 33,
                keys: 50,
                mask: Some(DType::F32),
                ..PLAIN
            },
            Shape {
                dtype: DType::F16,
                rows: 40,
                keys: 33,
                mask: Some(DType::Bool),
                ..PLAIN
            },
            Shape {
                dtype: DType::BF16,
                rows: 20,
                keys: 70,
                features: 64,
                width: 64,
                causal: true,
                ..PLAIN
            },
            Shape {
                dtype: DType::F16,
                rows: 70,
                keys: 45,
                features: 20,
                width: 24,
                causal: true,
                ..PLAIN
            },
            Shape {
                dtype: DType::F16,
                heads: 1,
                times: 3,
                batch: 2,
                rows: 33,
                keys: 50,
                features: 16,
                width: 16,
                mask: Some(DType::F32),
                ..PLAIN
            },
            Shape {
                dtype: DType::BF16,
                heads: 1,
                rows: 33,
                keys: 40,
                features: 128,
                width: 128,
                ..PLAIN
            },
            Shape {
                dtype: DType::BF16,
                rows: 100,
                keys: 37,
                symbolic: true,
                causal: true,
                ..PLAIN
            },
            Shape {
                dtype: DType::F16,
                rows: 30,
                keys: 60,
                special: true,
                ..PLAIN
            },
            Shape {
                dtype: DType::F16,
                rows: 1,
                keys: 200,
                features: 64,
                width: 64,
                mask: Some(DType::F32),
                ..PLAIN
            },
            // Blocks share the keys.
            Shape {
                dtype: DType::F16,
                rows: 1,
                keys: 900,
                features: 64,
                width: 64,
                mask: Some(DType::F32),
                ..PLAIN
            },
            Shape {
                heads: 1,
                times: 3,
                rows: 1,
                keys: 600,
                width: 20,
                special: true,
                ..PLAIN
            },
            Shape {
                rows: 40,
                keys: 70,
                features: 20,
                width: 48,
                precision: Precision::Tf32,
                mask: Some(DType::F32),
                ..PLAIN
            },
            Shape {
                dtype: DType::F64,
                rows: 35,
                keys: 40,
                features: 16,
                width: 7,
                ..PLAIN
            },
            Shape {
                features: 128,
                width: 128,
                rows: 40,
                keys: 64,
                ..PLAIN
            },
            Shape {
                rows: 30,
                keys: 60,
                special: true,
                ..PLAIN
            },
            Shape {
                rows: 100,
                keys: 37,
                symbolic: true,
                causal: true,
                ..PLAIN
            },
            Shape {
                rows: 5,
                keys: 0,
                symbolic: true,
                ..PLAIN
            },
            Shape {
                rows: 0,
                keys: 5,
                symbolic: true,
                ..PLAIN
            },
        ];
        right(&shapes);
    }

    /// More rows than a device of few multiprocessors has room for at once: blocks of 128.
    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn many_rows() {
        let many = Shape {
            dtype: DType::BF16,
            batch: 1,
            heads: 41,
            rows: 128,
            keys: 20,
            features: 16,
            width: 16,
            ..PLAIN
        };
        right(&[
            Shape { ..many },
            Shape {
                dtype: DType::F16,
                heads: 20,
                rows: 260,
                keys: 70,
                features: 24,
                width: 40,
                causal: true,
                special: true,
                ..many
            },
            Shape {
                dtype: DType::F32,
                precision: Precision::Tf32,
                width: 24,
                mask: Some(DType::F32),
                ..many
            },
            // Rows of the result that are too long for a warp to have twice as many.
            Shape { width: 72, ..many },
        ]);
    }

    /// Features that fill rows of swizzled memory, which four warps multiply together; of long causal ones, tiles that are hidden from a block
    /// are left out unless something is infinite, no number or huge.
    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn four_warps() {
        let four = Shape {
            dtype: DType::BF16,
            heads: 1,
            rows: 64,
            keys: 130,
            features: 64,
            width: 64,
            ..PLAIN
        };
        let causal = Shape {
            rows: 400,
            keys: 400,
            causal: true,
            ..four
        };
        right(&[
            Shape { ..four },
            Shape {
                dtype: DType::F16,
                rows: 100,
                keys: 300,
                features: 128,
                width: 64,
                mask: Some(DType::F32),
                ..four
            },
            Shape {
                features: 64,
                width: 192,
                times: 2,
                rows: 65,
                keys: 7,
                special: true,
                ..four
            },
            Shape {
                symbolic: true,
                rows: 129,
                keys: 128,
                ..four
            },
            Shape { ..causal },
            Shape {
                dtype: DType::F16,
                rows: 200,
                keys: 450,
                ..causal
            },
            Shape {
                special: true,
                ..causal
            },
            // Rows of other features, which each warp multiplies by itself.
            Shape {
                features: 24,
                width: 40,
                ..causal
            },
        ]);
    }

    /// That each is one kernel with the results of its meaning, or two where hidden keys are left out; prints what stands for the bits of
    /// all.
    fn right(shapes: &[Shape]) {
        let mut bits = DefaultHasher::new();
        for (number, shape) in shapes.iter().enumerate() {
            let graph = shape.record().finish().expect("a graph");
            let inputs = shape.inputs();
            let options = CompileOptions {
                device: Device::cuda(0),
                specialize: Specialize::Never,
                precision: shape.precision,
                ..CompileOptions::default()
            };
            let executable = compile_ir(&graph, &options).expect("an executable");
            let launches: usize = executable.plan().steps.iter().map(|s| s.launches().len()).sum();
            let products = executable.plan().steps.iter().filter(|s| matches!(s, Step::Gemm(_)));
            assert_eq!(
                (launches, products.count()),
                (shape.launches(), 0),
                "{number}: {}",
                executable.explain()
            );
            let by_matrices = shape.rows != 1 && (shape.dtype.bytes() == 2 || shape.precision != Precision::Exact);
            let explained = executable.explain();
            let explained = explained.contains("warps multiply") || explained.contains("warps together multiply");
            assert_eq!(explained, by_matrices, "{number}: {}", executable.explain());
            let together = executable.explain().contains("four warps together multiply");
            assert_eq!(together, shape.in_groups(), "{number}: {}", executable.explain());
            let counted = std::env::var("TLC_SIM_DEVICE").is_ok();
            let rows = executable.explain().contains("in blocks of 128 rows");
            assert_eq!(rows, counted, "{number}: {}", executable.explain());
            let given: Vec<tlc::Input<'_>> = inputs.iter().map(Into::into).collect();
            let outputs = executable.run(&given).expect("outputs");
            let found: Vec<HostTensor> = outputs.iter().map(|o| o.to_host()).collect();
            let meaning = interp::Options {
                precision: shape.precision,
                ..interp::Options::default()
            };
            if judges() {
                let exact = interpret(&graph, &inputs, &meaning).expect("a value");
                let bounded = interpret_with_bounds(&graph, &inputs, &meaning).expect("bounds");
                compare_all(&found, &exact, &bounded).unwrap_or_else(|e| panic!("{number}: {e}"));
            }
            found.iter().for_each(|t| t.bytes().hash(&mut bits));
        }
        println!("bits {:016x}", bits.finish());
    }
}
