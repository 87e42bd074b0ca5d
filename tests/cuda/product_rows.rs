//! Norms and softmax of the rows of a product on a device, in one kernel with it: against the interpreter, whatever the numbers of rows and columns are.

use std::hash::{DefaultHasher, Hash, Hasher};

use tlc::{CompileOptions, Device, HostTensor, Precision, Scalar, Specialize, compile_ir};
use tlc_ir::interp::{self, interpret, interpret_with_bounds};
use tlc_ir::rng::Rng;
use tlc_ir::testgen::{random_tensor, seeds};
use tlc_ir::text::{no_data, parse_graph};

use crate::judged::judges;
use crate::states::compare_all;

/// What is computed of whole rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Norm {
    Layer,
    Rms,
    Softmax,
    /// The largest element of each, and where it is.
    Most,
}

/// A product of `[rows, length]` and `[length, columns]`, and what follows.
#[derive(Clone, Debug)]
pub struct Layer {
    pub dtype: &'static str,
    /// How often, each time with other rows.
    pub batch: Option<i64>,
    /// Their number, or `n`, of which calls say what it is.
    pub rows: Option<i64>,
    pub length: i64,
    pub columns: i64,
    pub turned: bool,
    pub bias: bool,
    pub residual: bool,
    pub norm: Norm,
    /// Whether the caller wants what the norm is of as well.
    pub both: bool,
}

impl Layer {
    /// As text: `%o` is the result.
    pub fn text(&self) -> String {
        let (k, n, dtype) = (self.length, self.columns, self.dtype);
        let m = self.rows.map_or("n".to_string(), |m| m.to_string());
        let batch = self.batch.map_or(String::new(), |b| format!("{b}, "));
        let axis = usize::from(self.batch.is_some()) + 1;
        let (rows, all, one) = (
            format!("[{batch}{m}]"),
            format!("[{batch}{m}, {n}]"),
            format!("[{batch}{m}, 1]"),
        );
        let (weights, labels) = match self.turned {
            true => (format!("[{n}, {k}]"), "cb"),
            false => (format!("[{k}, {n}]"), "bc"),
        };
        let x = if self.batch.is_some() { "x" } else { "" };
        let acc = if dtype.ends_with("16") { "; acc=f32" } else { "" };
        let mut given = format!("%x: {dtype}[{batch}{m}, {k}], %w: {dtype}{weights}");
        let mut lines = vec![format!(
            "%p = einsum %x, %w {{{x}ab,{labels}->{x}ac{acc}}} : {dtype}{all}"
        )];
        let mut at = "%p";
        if self.bias {
            given += &format!(", %b: {dtype}[{n}]");
            lines.push(format!("%b1 = expand %b : {dtype}{all}"));
            lines.push(format!("%pb = add {at}, %b1 : {dtype}{all}"));
            at = "%pb";
        }
        if self.residual {
            given += &format!(", %r: {dtype}{all}");
            lines.push(format!("%pr = add {at}, %r : {dtype}{all}"));
            at = "%pr";
        }
        let normed = at;
        if dtype != "f32" {
            lines.push(format!("%t = convert {at} : f32{all}"));
            at = "%t";
        }
        let mut line = |text: &str, shape: &str| lines.push(format!("{text} : f32{shape}"));
        let of_all = |from: &str, line: &mut dyn FnMut(&str, &str)| {
            line(&format!("{from}r = reshape {from}"), &one);
            line(&format!("{from}e = expand {from}r"), &all);
        };
        match self.norm {
            Norm::Layer => {
                line(&format!("%s = reduce add {at} {{axes=[{axis}]}}"), &rows);
                line(&format!("%nc = const {n}.0"), "[]");
                line("%n1 = expand %nc", &rows);
                line("%m = div %s, %n1", &rows);
                of_all("%m", &mut line);
                line(&format!("%d = sub {at}, %me"), &all);
            }
            Norm::Rms => {
                line(&format!("%nc = const {n}.0"), "[]");
                line("%n1 = expand %nc", &rows);
                line(&format!("%d = neg {at}"), &all);
            }
            Norm::Softmax => {
                line(&format!("%m = reduce max {at} {{axes=[{axis}]}}"), &rows);
                of_all("%m", &mut line);
                line(&format!("%d = sub {at}, %me"), &all);
                line("%e = exp %d", &all);
                line(&format!("%s = reduce add %e {{axes=[{axis}]}}"), &rows);
                of_all("%s", &mut line);
                line("%y = div %e, %se", &all);
            }
            Norm::Most => {
                line(&format!("%y = reduce max {at} {{axes=[{axis}]}}"), &rows);
            }
        }
        if let Norm::Layer | Norm::Rms = self.norm {
            line("%d2 = mul %d, %d", &all);
            line(&format!("%v = reduce add %d2 {{axes=[{axis}]}}"), &rows);
            line("%va = div %v, %n1", &rows);
            line("%ec = const 1e-5", "[]");
            line("%e1 = expand %ec", &rows);
            line("%vb = add %va, %e1", &rows);
            line("%h = rsqrt %vb", &rows);
            of_all("%h", &mut line);
            line("%y0 = mul %d, %he", &all);
            given += &format!(", %g: f32[{n}]");
            line("%g1 = expand %g", &all);
            line("%y = mul %y0, %g1", &all);
        }
        let mut results = String::from("%y");
        match (self.norm, dtype) {
            (Norm::Most, _) => {
                lines.push(format!("%where = reduce argmax {at} {{axes=[{axis}]}} : i64{rows}"));
                results += ", %where";
            }
            (_, "f32") => {}
            _ => {
                lines.push(format!("%o = convert %y : {dtype}{all}"));
                results = "%o".into();
            }
        }
        if self.both {
            results += &format!(", {normed}");
        }
        let symbols = if self.rows.is_none() {
            " where n in 0..=4096"
        } else {
            ""
        };
        let lines = lines.join("\n               ");
        format!(
            "graph @layer({given}){symbols} {{
               {lines}
               return {results}
             }}"
        )
    }

    fn random(rng: &mut Rng) -> Layer {
        Layer {
            dtype: rng.pick(&["f32", "f16", "bf16"]),
            batch: rng.pick(&[None, None, None, Some(2), Some(3)]),
            rows: rng.pick(&[None, Some(1), Some(15), Some(16), Some(64), Some(77), Some(200)]),
            length: rng.pick(&[1, 8, 17, 40, 64, 96, 200]),
            columns: match rng.below(3) {
                0 => rng.pick(&[8, 16, 32, 64, 128, 256]),
                _ => rng.range(8, 257),
            },
            turned: rng.below(2) == 0,
            bias: rng.below(2) == 0,
            residual: rng.below(2) == 0,
            norm: rng.pick(&[
                Norm::Layer,
                Norm::Layer,
                Norm::Rms,
                Norm::Softmax,
                Norm::Softmax,
                Norm::Most,
            ]),
            both: rng.below(5) == 0,
        }
    }
}

/// Whether one kernel computes it all.
fn is_one_kernel(executable: &tlc::Executable) -> bool {
    executable.plan().kernels.len() == 1
}

mod children {
    use super::*;

    /// Runs a graph at these sizes, with rows that are no numbers or infinite among the operands, or zero, and says how many kernels there were.
    fn run(layer: &Layer, precision: Precision, rng: &mut Rng, bits: &mut DefaultHasher) -> bool {
        let text = layer.text();
        let graph = parse_graph(&text, &mut no_data).unwrap_or_else(|e| panic!("{e:?}\n{text}"));
        let options = CompileOptions {
            device: Device::cuda(0),
            precision,
            specialize: Specialize::Never,
            ..CompileOptions::default()
        };
        let executable = compile_ir(&graph, &options).expect("an executable");
        let sizes = if layer.rows.is_none() {
            vec![1, 15, 64, 130]
        } else {
            vec![0]
        };
        for size in sizes {
            let symbols: Vec<(String, i64)> = graph.symbols().iter().map(|s| (s.name.clone(), size)).collect();
            let mut inputs = Vec::new();
            for (number, &i) in graph.inputs().iter().enumerate() {
                let ty = graph.ty(i);
                let shape: Vec<usize> = ty
                    .shape
                    .iter()
                    .map(|d| d.eval_symbols(&[size]).expect("a size") as usize)
                    .collect();
                let mut x = match rng.below(8) {
                    0 => random_tensor(rng, ty.dtype, &shape),
                    _ => {
                        let mut x = HostTensor::zeros(ty.dtype, &shape).expect("a tensor");
                        for at in 0..x.len() {
                            x.set(at, Scalar::from_f64(x.dtype(), rng.range(-64, 65) as f64 / 32.0));
                        }
                        x
                    }
                };
                if number == 0 && !x.is_empty() {
                    let row = layer.length as usize;
                    for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0] {
                        let at = rng.below(x.len() / row) * row;
                        let length = if value == 0.0 { row } else { 1 };
                        (at..at + length).for_each(|k| x.set(k, Scalar::from_f64(x.dtype(), value)));
                    }
                }
                inputs.push(x);
            }
            let interpreted = interp::Options {
                symbols,
                ..interp::Options::default()
            };
            let given: Vec<tlc::Input<'_>> = inputs.iter().map(Into::into).collect();
            let outputs = executable.run(&given).expect("results");
            let found: Vec<HostTensor> = outputs.iter().map(|o| o.to_host()).collect();
            if judges() {
                let exact = interpret(&graph, &inputs, &interpreted).expect("results");
                let bounded = interp::Options {
                    precision,
                    ..interpreted
                };
                let bounded = interpret_with_bounds(&graph, &inputs, &bounded).expect("bounds");
                compare_all(&found, &exact, &bounded).unwrap_or_else(|e| panic!("{size}: {e}\n{text}"));
            }
            found.iter().for_each(|t| t.bytes().hash(bits));
        }
        is_one_kernel(&executable)
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn random() {
        let (mut bits, mut one) = (DefaultHasher::new(), 0);
        let seeds = seeds(0..30);
        for seed in seeds {
            let mut rng = Rng::new(seed);
            let layer = Layer::random(&mut rng);
            let precision = match (layer.dtype, rng.below(2)) {
                ("f32", 0) => Precision::Tf32,
                _ => Precision::Exact,
            };
            println!("seed {seed}: {layer:?}");
            one += usize::from(run(&layer, precision, &mut rng, &mut bits));
        }
        println!("{one} of one kernel");
        println!("bits {:016x}", bits.finish());
    }
}
