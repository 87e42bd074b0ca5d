//! Graphs without derivatives whose compile time is measured: those of `benches/compare`, layers in a row, ONNX models and random graphs.

use std::sync::Arc;
use std::time::Instant;

use tlc::ir::tensor::BytesOwner;
use tlc::ir::testgen::{GenOptions, random_graph};
use tlc::onnx::{ImportOptions, import_in_place};
use tlc::{Attention, DType, Graph, MappedFile, Tensor};

use crate::{Case, Outcome, Setting};

/// Compiles `chain10`, `mlp_fwd_b64`, `encoder_layer`, `encoder_` with a number of layers, `random_` with a seed, or the ONNX model of a file, whose
/// reading and import count as recording does.
pub fn compiled(setting: Setting, name: &str) -> Outcome<Case> {
    if let Some(seed) = name.strip_prefix("random_") {
        let graph = random_graph(seed.parse()?, &GenOptions::default());
        let begin = Instant::now();
        let step = tlc::compile_ir(&graph, &setting.options())?;
        return Ok(Case::compiled(step, begin.elapsed().as_secs_f64() * 1e3));
    }
    if name.ends_with(".onnx") {
        let begin = Instant::now();
        let bytes: BytesOwner = Arc::new(MappedFile::open(std::path::Path::new(name))?);
        let model = import_in_place(&bytes, &ImportOptions::default())?;
        let step = tlc::compile_ir(&model.graph, &setting.options())?;
        return Ok(Case::compiled(step, begin.elapsed().as_secs_f64() * 1e3));
    }
    let begin = Instant::now();
    let g = Graph::new(name);
    let y = match name {
        "chain10" => chain(&g),
        "mlp_fwd_b64" => perceptron(&g),
        "encoder_layer" => encoder(&g, 1),
        _ => match name.strip_prefix("encoder_") {
            Some(layers) => encoder(&g, layers.parse()?),
            None => {
                return Err(format!(
                    "`{name}`, expected chain10, mlp_fwd_b64, encoder_layer, encoder_LAYERS, random_SEED or a file"
                )
                .into());
            }
        },
    };
    g.output("y", &y);
    let step = g.compile(&setting.options())?;
    Ok(Case::compiled(step, begin.elapsed().as_secs_f64() * 1e3))
}

/// Ten operations on a million elements.
fn chain(g: &Graph) -> Tensor {
    let [a, b] = ["a", "b"].map(|name| g.input(name, DType::F32, [1 << 20]));
    let x = ((&a * &b + &a) * 0.5 - &b).relu();
    ((x.square() + 1.0) * &a).abs() - 0.25
}

/// 784-256-128-10 with ReLU.
fn perceptron(g: &Graph) -> Tensor {
    let x = g.input("x", DType::F32, [64, 784]);
    let layer = |x: &Tensor, name: &str, inner: i64, outer: i64| {
        let w = g.input(&format!("{name}.w"), DType::F32, [inner, outer]);
        let b = g.input(&format!("{name}.b"), DType::F32, [outer]);
        x.matmul(&w) + b
    };
    let h = layer(&x, "first", 784, 256).relu();
    let h = layer(&h, "second", 256, 128).relu();
    layer(&h, "third", 128, 10)
}

/// Encoder layers, normalized behind each part: batch 8, length 128, width 384, 12 heads, inner width 1536. Queries, keys and values of the first
/// one come in projected, as they do in `benches/compare`; the others take what is before them for all three.
fn encoder(g: &Graph, layers: usize) -> Tensor {
    let image = |name: &str| g.input(name, DType::F32, [8, 128, 384]);
    let [mut x, q, k, v] = ["x", "q", "k", "v"].map(image);
    for layer in 0..layers {
        let vector = |name: &str, size: i64| g.input(&format!("{layer}.{name}"), DType::F32, [size]);
        let matrix = |name: &str, shape: [i64; 2]| g.input(&format!("{layer}.{name}"), DType::F32, shape);
        let heads = |x: &Tensor| x.reshape([8, 128, 12, 32]).permute([0, 2, 1, 3]);
        let [q, k, v] = match layer {
            0 => [&q, &k, &v].map(heads),
            _ => [(); 3].map(|()| heads(&x)),
        };
        let a = q.attention(&k, &v, &Attention::new());
        let a = a.permute([0, 2, 1, 3]).reshape([8, 128, 384]);
        let a = a.matmul(&matrix("wo", [384, 384])) + vector("bo", 384);
        let normal = |x: &Tensor, name: &str| {
            let [weight, bias] = ["weight", "bias"].map(|of| vector(&format!("{name}.{of}"), 384));
            x.layer_norm(Some(&weight), Some(&bias), 1e-5)
        };
        let y = normal(&(&x + a), "norm1");
        let h = (y.matmul(&matrix("w1", [384, 1536])) + vector("b1", 1536)).gelu();
        x = normal(
            &(&y + h.matmul(&matrix("w2", [1536, 384])) + vector("b2", 384)),
            "norm2",
        );
    }
    x
}
