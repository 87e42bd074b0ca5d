//! ONNX's `Attention` in 16 bits on a device and on the processor, against its formula in f64.

use std::hash::{DefaultHasher, Hash, Hasher};

use tlc::onnx::{ImportOptions, import};
use tlc::{CompileOptions, DType, Device, HostTensor, Input, Scalar, Specialize, compile_ir};

use crate::proto::{A, BOOL, D, graph, model_of, op, value};

/// What a model computes: rank 4, heads of keys shared by `times` heads of queries.
#[derive(Clone, Copy)]
struct Case {
    dtype: DType,
    batch: usize,
    heads: usize,
    times: usize,
    rows: usize,
    /// Keys of the past, and new ones.
    past: usize,
    keys: usize,
    features: usize,
    width: usize,
    causal: bool,
    /// A bool mask of which one row hides every key.
    mask: bool,
    cap: f32,
}

const PLAIN: Case = Case {
    dtype: DType::F16,
    batch: 1,
    heads: 2,
    times: 1,
    rows: 33,
    past: 0,
    keys: 33,
    features: 32,
    width: 32,
    causal: false,
    mask: false,
    cap: 0.0,
};

const CASES: [Case; 6] = [
    Case { causal: true, ..PLAIN },
    Case {
        dtype: DType::BF16,
        times: 2,
        heads: 1,
        keys: 40,
        mask: true,
        ..PLAIN
    },
    Case {
        batch: 2,
        rows: 20,
        past: 30,
        keys: 20,
        width: 16,
        causal: true,
        ..PLAIN
    },
    Case {
        cap: 1.5,
        mask: true,
        ..PLAIN
    },
    Case {
        dtype: DType::BF16,
        rows: 17,
        keys: 70,
        features: 64,
        width: 64,
        ..PLAIN
    },
    // A decoder's step.
    Case {
        rows: 1,
        past: 90,
        keys: 1,
        times: 3,
        mask: true,
        ..PLAIN
    },
];

impl Case {
    fn all_keys(&self) -> usize {
        self.past + self.keys
    }

    fn element(&self) -> i64 {
        match self.dtype {
            DType::BF16 => 16,
            _ => 10,
        }
    }

    fn shapes(&self) -> Vec<(&'static str, Vec<usize>)> {
        let query = vec![self.batch, self.heads * self.times, self.rows, self.features];
        let of = |length, width| vec![self.batch, self.heads, length, width];
        let mut all = vec![
            ("q", query),
            ("k", of(self.keys, self.features)),
            ("v", of(self.keys, self.width)),
        ];
        if self.mask {
            all.push(("m", vec![self.rows, self.all_keys()]));
        }
        if self.past > 0 {
            all.extend([("pk", of(self.past, self.features)), ("pv", of(self.past, self.width))]);
        }
        all
    }

    fn model(&self) -> Vec<u8> {
        let inputs = self.shapes().into_iter().map(|(name, shape)| {
            let dims: Vec<D> = shape.iter().map(|n| D::N(*n as i64)).collect();
            let element = if name == "m" { BOOL } else { self.element() };
            value(name, element, &dims)
        });
        let (m, p) = (if self.mask { "m" } else { "_" }, self.past > 0);
        let past = if p { "pk pv" } else { "" };
        let mut attributes = vec![("is_causal", A::I(self.causal.into()))];
        if self.cap > 0.0 {
            attributes.push(("softcap", A::F(self.cap)));
        }
        let node = op(&format!("Attention q k v {m} {past} -> y"), &attributes);
        let shape = [self.batch, self.heads * self.times, self.rows, self.width].map(|n| D::N(n as i64));
        let outputs = vec![value("y", self.element(), &shape)];
        model_of(24, graph(vec![node], vec![], inputs.collect(), outputs), vec![])
    }

    /// By input its values, which its dtype holds.
    fn inputs(&self) -> Vec<HostTensor> {
        let each = self.shapes().into_iter().enumerate().map(|(number, (name, shape))| {
            let dtype = if name == "m" { DType::Bool } else { self.dtype };
            let mut x = HostTensor::zeros(dtype, &shape).expect("a tensor");
            for i in 0..x.len() {
                let scalar = match dtype {
                    DType::Bool => Scalar::from_bool(i / self.all_keys() != 0 && i % 3 != 1),
                    _ => Scalar::from_f64(dtype, ((i * 37 + 11 + number * 29) % 101) as f64 / 25.0 - 2.0),
                };
                x.set(i, scalar);
            }
            x
        });
        each.collect()
    }

    /// What the operator's formula says in f64, with the sum of the absolute values that each element is an average of.
    fn expected(&self, inputs: &[HostTensor]) -> Vec<(f64, f64)> {
        let names: Vec<&str> = self.shapes().iter().map(|s| s.0).collect();
        let of = |name: &str| names.iter().position(|n| *n == name).map(|k| &inputs[k]);
        let at = |name: &str, i: usize| of(name).expect("an input of that name").get(i).as_f64();
        let all = self.all_keys();
        // Of the past first, then of the new ones.
        let element = |new: &str, old: &str, (b, h, j, c): (usize, usize, usize, usize), width: usize| {
            let head = b * self.heads + h;
            match j.checked_sub(self.past) {
                None => at(old, (head * self.past + j) * width + c),
                Some(j) => at(new, (head * self.keys + j) * width + c),
            }
        };
        let mut out = Vec::new();
        for b in 0..self.batch {
            for h in 0..self.heads * self.times {
                for i in 0..self.rows {
                    let shared = h / self.times;
                    let row = ((b * self.heads * self.times + h) * self.rows + i) * self.features;
                    let score = |j: usize| {
                        let hidden = self.causal && j > i + self.past || self.mask && at("m", i * all + j) == 0.0;
                        let products = (0..self.features)
                            .map(|c| at("q", row + c) * element("k", "pk", (b, shared, j, c), self.features));
                        let raw = products.sum::<f64>() / (self.features as f64).sqrt();
                        let cap = f64::from(self.cap);
                        let capped = if cap > 0.0 { cap * (raw / cap).tanh() } else { raw };
                        if hidden { f64::NEG_INFINITY } else { capped }
                    };
                    let scores: Vec<f64> = (0..all).map(score).collect();
                    let most = scores.iter().fold(f64::NEG_INFINITY, |m, s| m.max(*s));
                    let powers = scores
                        .iter()
                        .map(|s| if most.is_finite() { (s - most).exp() } else { 0.0 });
                    let powers: Vec<f64> = powers.collect();
                    let sum: f64 = powers.iter().sum::<f64>().max(f64::MIN_POSITIVE);
                    for c in 0..self.width {
                        let value = |j: usize| element("v", "pv", (b, shared, j, c), self.width);
                        let terms = (0..all).map(|j| powers[j] / sum * value(j));
                        out.push(terms.fold((0.0, 0.0), |(y, size), t| (y + t, size + t.abs())));
                    }
                }
            }
        }
        out
    }

    /// Runs the model; returns its result and what the compiler says of it.
    fn run(&self, device: Device) -> (HostTensor, String, usize) {
        let graph = import(&self.model(), &ImportOptions::default())
            .unwrap_or_else(|e| panic!("{e}"))
            .graph;
        let options = CompileOptions {
            device,
            specialize: Specialize::Never,
            ..CompileOptions::default()
        };
        let executable = compile_ir(&graph, &options).expect("it compiles");
        let inputs = self.inputs();
        let given: Vec<Input<'_>> = inputs.iter().map(Input::from).collect();
        let found = executable.run(&given).expect("it runs")[0].to_host();
        let kernels = executable.plan().steps.iter().map(|s| s.launches().len()).sum();
        (found, executable.explain(), kernels)
    }

    /// Scores and softmax are exact next to 16 bits; a weight is rounded to them at most twice, and so is the result once.
    fn check(&self, found: &HostTensor) {
        let unit = match self.dtype {
            DType::BF16 => 2f64.powi(-8),
            _ => 2f64.powi(-11),
        };
        let expected = self.expected(&self.inputs());
        assert_eq!(found.len(), expected.len());
        for (i, (y, size)) in expected.into_iter().enumerate() {
            let found = found.get(i).as_f64();
            // Weights below the smallest normal number are off by half of a step there.
            let bound = unit * (2.0 * size + y.abs()) * 1.01 + self.all_keys() as f64 * 2f64.powi(-24);
            assert!(
                (found - y).abs() <= bound,
                "element {i}: {found} for {y}, bound {bound:e}"
            );
        }
    }
}

/// The processor's results.
pub fn on_the_processor() {
    for case in CASES {
        case.check(&case.run(Device::cpu()).0);
    }
}

mod children {
    use super::*;

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn all() {
        let mut bits = DefaultHasher::new();
        for case in CASES {
            let (found, said, kernels) = case.run(Device::cuda(0));
            case.check(&found);
            found.bytes().hash(&mut bits);
            // A past of keys and one of values are put before the new ones.
            let before = if case.past > 0 { 2 } else { 0 };
            assert!(kernels <= 1 + before, "{kernels} kernels\n{said}");
            let dtype = case.dtype.name();
            let by_matrices = said.contains(&format!("warps multiply {dtype} by matrix instructions"));
            assert_eq!(by_matrices, case.rows > 1, "{said}");
            assert!(said.contains("an attention in one kernel"), "{said}");
        }
        println!("bits {:016x}", bits.finish());
    }
}
