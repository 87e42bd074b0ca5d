//! Fifty steps of small networks from the same weights as PyTorch: a convolutional one with batch norms, and a transformer.

use serde_json::Value;
use tlc::optim::Optimizer;
use tlc::{Attention, CompileOptions, Conv, DType, Graph, Input, Pool, Tensor, grad};

use crate::reference::{first_slots, numbers};

/// A parameter: its extents, and how far and around which number its elements are spread.
type Parameter = (&'static [usize], f64, f64);

fn values(shape: &[usize], seed: usize, (scale, middle): (f64, f64)) -> Vec<f32> {
    let n: usize = shape.iter().product();
    let value = |i: usize| ((i * i * 7 + i * 37 + seed * 11) % 101) as f64 / 50.0 - 1.0;
    (0..n).map(|i| (value(i) * scale + middle) as f32).collect()
}

const CNN: [Parameter; 8] = [
    (&[6, 1, 3, 3], 0.5, 0.0),
    (&[6], 0.2, 1.0),
    (&[6], 0.1, 0.0),
    (&[8, 6, 3, 3], 0.2, 0.0),
    (&[8], 0.2, 1.0),
    (&[8], 0.1, 0.0),
    (&[8, 4], 0.4, 0.0),
    (&[4], 0.1, 0.0),
];

fn cnn(g: &Graph, p: &[Tensor]) -> Tensor {
    let x = g.data(&values(&[16, 1, 8, 8], 1, (1.0, 0.0)), &[16, 1, 8, 8]);
    let labels = g.data(&(0..16).map(|i| i * 7 % 4).collect::<Vec<i64>>(), &[16]);
    let block = |x: &Tensor, p: &[Tensor], channels: i64| {
        let (mean, var) = (g.zeros(channels, DType::F32), g.ones(channels, DType::F32));
        let x = x.conv2d(&p[0], None, &Conv::new().padding(1));
        x.batch_norm_train(&mean, &var, Some(&p[1]), Some(&p[2]), 0.1, 1e-5)
            .0
            .relu()
    };
    let h = block(&x, &p[..3], 6).max_pool(&Pool::new(2));
    let h = block(&h, &p[3..6], 8).mean([2, 3]);
    (h.matmul(&p[6]) + &p[7]).cross_entropy(&labels)
}

const WIDTH: usize = 16;
const LENGTH: usize = 10;
const WORDS: usize = 12;
const TRANSFORMER: [Parameter; 11] = [
    (&[WORDS, WIDTH], 0.5, 0.0),
    (&[LENGTH, WIDTH], 0.2, 0.0),
    (&[WIDTH], 0.1, 1.0),
    (&[WIDTH], 0.1, 0.0),
    (&[WIDTH, 3 * WIDTH], 0.3, 0.0),
    (&[WIDTH, WIDTH], 0.3, 0.0),
    (&[WIDTH], 0.1, 1.0),
    (&[WIDTH], 0.1, 0.0),
    (&[WIDTH, 2 * WIDTH], 0.3, 0.0),
    (&[2 * WIDTH, WIDTH], 0.3, 0.0),
    (&[WIDTH, WORDS], 0.3, 0.0),
];

fn transformer(g: &Graph, p: &[Tensor]) -> Tensor {
    let (rows, width) = (LENGTH as i64, WIDTH as i64);
    let words: Vec<i64> = (0..8 * (rows + 1))
        .map(|i| (i * i * 5 + i * 3) % WORDS as i64)
        .collect();
    let ids = g.data(&words, &[8, LENGTH + 1]);
    let x = p[0].take(&ids.narrow(1, 0, rows), 0) + &p[1];
    let h = x.layer_norm(Some(&p[2]), Some(&p[3]), 1e-5).matmul(&p[4]);
    let head = |k: i64| {
        let part = h.narrow(-1, k * width, width).reshape([8, rows, 2, width / 2]);
        part.permute([0, 2, 1, 3])
    };
    let a = head(0).attention(&head(1), &head(2), &Attention::new().causal());
    let x = x + a.permute([0, 2, 1, 3]).reshape([8, rows, width]).matmul(&p[5]);
    let h = x.layer_norm(Some(&p[6]), Some(&p[7]), 1e-5);
    let x = x + h.matmul(&p[8]).gelu().matmul(&p[9]);
    let scores = x.matmul(&p[10]).reshape([8 * rows, WORDS as i64]);
    scores.cross_entropy(&ids.narrow(1, 1, rows).reshape([8 * rows]))
}

/// Trains a network, and compares each loss with the one that was recorded.
fn follows(name: &str, optimizer: &str, parameters: &[Parameter], network: fn(&Graph, &[Tensor]) -> Tensor) {
    let recorded: Value = serde_json::from_str(include_str!("../reference/curves.json")).unwrap();
    let optimizer: Optimizer = optimizer.parse().unwrap();
    let g = Graph::new(name);
    let number = g.input("step", DType::I64, ());
    let p: Vec<Tensor> = (parameters.iter().enumerate())
        .map(|(k, of)| g.input(&format!("p{k}"), DType::F32, of.0))
        .collect();
    let loss = network(&g, &p);
    g.output("loss", &loss);
    let mut state: Vec<Input> = (parameters.iter().enumerate())
        .map(|(k, of)| values(of.0, k + 2, (of.1, of.2)).into())
        .collect();
    // Parameters, then the slots of each, as inputs and as outputs.
    let mut next = Vec::new();
    let mut moved = Vec::new();
    for (k, d) in grad(&loss, &p.iter().collect::<Vec<_>>()).iter().enumerate() {
        let slots = optimizer.slots(DType::F32, &p[k].shape());
        let slots: Vec<Tensor> = (slots.iter())
            .map(|s| g.input(&format!("p{k}.{}", s.name), s.dtype, s.shape.clone()))
            .collect();
        let (updated, slots) = optimizer.update(&number, &p[k], d, &slots.iter().collect::<Vec<_>>());
        next.push(updated);
        moved.extend(slots);
        state.extend(first_slots(&optimizer, DType::F32, parameters[k].0));
    }
    for (k, t) in next.iter().chain(&moved).enumerate() {
        g.output(&format!("next{k}"), t);
    }
    let train = g.compile(&CompileOptions::default()).unwrap();
    for (t, expected) in numbers(&recorded[name]).iter().enumerate() {
        let results = {
            let mut given: Vec<Input> = vec![(t as i64 + 1).into()];
            given.extend(state.iter().map(Input::from));
            train.run(&given).unwrap()
        };
        let mut results = results.into_vec().into_iter();
        let loss = results.next().unwrap().as_scalar::<f32>().unwrap();
        assert!(
            (f64::from(loss) - expected).abs() < 1e-4,
            "{name}, step {}: {loss}, expected {expected}",
            t + 1
        );
        state = results.map(Into::into).collect();
    }
}

#[test]
fn a_convolutional_network_follows_the_curve_of_pytorch() {
    follows("cnn", "sgd:lr=0.05,momentum=0.9", &CNN, cnn);
}

#[test]
fn a_transformer_follows_the_curve_of_pytorch() {
    follows("transformer", "adamw:lr=3e-3,wd=0.01", &TRANSFORMER, transformer);
}
