//! Gradients on a device: a graph for each family of rules, against the interpreter's bounds.

use tlc::ir::interp::{self, compare, interpret_with_bounds};
use tlc::{Attention, CompileOptions, Conv, DType, Device, Graph, HostTensor, Input, Pool, Specialize, Tensor, grad};

use crate::child::simulated;

#[test]
fn gradients_of_every_family_are_those_of_the_interpreter() {
    simulated("gradients::children::swept", &[]);
}

fn data(shape: &[usize], seed: usize) -> HostTensor {
    let n: usize = shape.iter().product();
    let values: Vec<f32> = (0..n)
        .map(|i| ((i * i * 5 + i * 13 + seed * 7) % 97) as f32 / 48.0 - 1.0)
        .collect();
    HostTensor::from_slice(shape, &values).expect("as many")
}

/// What is differentiated: its name, the extents of what it is differentiated by, and what it computes.
type Case = (
    &'static str,
    &'static [&'static [usize]],
    fn(&Graph, &[Tensor]) -> Tensor,
);

const CASES: [Case; 16] = [
    ("convolution", &[&[2, 3, 9, 9], &[4, 3, 3, 3], &[4]], |_, x| {
        x[0].conv2d(&x[1], Some(&x[2]), &Conv::new().padding(1).stride(2))
    }),
    ("convolution in groups", &[&[2, 4, 11], &[6, 2, 3]], |_, x| {
        x[0].conv1d(&x[1], None, &Conv::new().groups(2).dilation(2))
    }),
    ("cross entropy", &[&[9, 20]], |g, x| {
        let labels = g.data(&(0..9).map(|i| i * 7 % 20).collect::<Vec<i64>>(), &[9]);
        x[0].cross_entropy(&labels)
    }),
    ("layer norm", &[&[6, 33], &[33], &[33]], |_, x| {
        x[0].layer_norm(Some(&x[1]), Some(&x[2]), 1e-5)
    }),
    ("batch norm", &[&[4, 3, 5, 5], &[3], &[3]], |g, x| {
        let (mean, var) = (g.zeros(3, DType::F32), g.ones(3, DType::F32));
        x[0].batch_norm_train(&mean, &var, Some(&x[1]), Some(&x[2]), 0.1, 1e-5)
            .0
    }),
    ("softmax", &[&[7, 40]], |_, x| x[0].softmax(1).square()),
    ("attention", &[&[2, 2, 9, 8], &[2, 2, 9, 8], &[2, 2, 9, 8]], |_, x| {
        x[0].attention(&x[1], &x[2], &Attention::new().causal())
    }),
    ("gather", &[&[11, 6]], |g, x| {
        let rows = g.data(&[3i64, 0, 3, 10, 7, 3], &[6]);
        x[0].take(&rows, 0).tanh()
    }),
    ("pools", &[&[2, 3, 9, 9]], |_, x| {
        let size = Pool::new(3).stride(2);
        x[0].max_pool(&size) * 2.0 + x[0].avg_pool(&size)
    }),
    ("prefixes", &[&[5, 70]], |_, x| x[0].cumsum(1).sin() + x[0].cumsum(0)),
    ("sorted", &[&[4, 37]], |g, x| {
        x[0].sort(1, false) * g.range(37, DType::F32)
    }),
    ("extrema and products", &[&[6, 20]], |_, x| {
        x[0].max(1) * x[0].min(1) + x[0].prod(1) + x[0].logsumexp(1)
    }),
    ("scalars", &[&[300], &[300]], |_, x| {
        let y = x[0].exp() + (x[1].square() + 1.0).log() * x[0].sigmoid() + x[1].erf().abs();
        y.maximum(&x[1]).relu() / (x[1].square() + 0.5).sqrt()
    }),
    ("views", &[&[6, 8], &[3, 8]], |_, x| {
        let part = x[0].narrow(0, 1, 3).flip(1) * &x[1];
        tlc::concat(&[&part, &x[0].reshape([6, 8]), &x[1]], 0)
            .t()
            .reshape([96])
            .square()
    }),
    ("a recurrence", &[&[7, 3, 8], &[3, 8], &[8, 8], &[8]], |g, x| {
        let r = g.repeat(7).carry(&x[1]).slice(&x[0], 0).record(|i| {
            let (w, b) = (i.capture(&x[2]), i.capture(&x[3]));
            let h = (i.carried[0].matmul(&w) + &i.slices[0] + b).tanh();
            i.stack(&h, 0);
            vec![h]
        });
        &r[0] + r[1].square().sum(0)
    }),
    (
        "a recurrence that a count ends",
        &[&[7, 3, 8], &[3, 8], &[8, 8]],
        |g, x| {
            let n = g.scalar(4, DType::I64);
            let r = g.repeat(7).at_most(&n).carry(&x[1]).slice(&x[0], 0).record(|i| {
                let w = i.capture(&x[2]);
                vec![(i.carried[0].matmul(&w) + &i.slices[0]).sin()]
            });
            r[0].clone()
        },
    ),
];

mod children {
    use super::*;

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn swept() {
        for (name, shapes, f) in CASES {
            let g = Graph::new("gradients");
            let x: Vec<Tensor> = (shapes.iter().enumerate())
                .map(|(k, shape)| g.input(&format!("x{k}"), DType::F32, *shape))
                .collect();
            let y = f(&g, &x);
            let loss = (&y * (&y * 0.25 + 1.0)).sum(..);
            for (k, d) in grad(&loss, &x.iter().collect::<Vec<_>>()).iter().enumerate() {
                g.output(&format!("d{k}"), d);
            }
            let ir = g.finish().unwrap_or_else(|e| panic!("{name}: {e}"));
            let inputs: Vec<HostTensor> = shapes.iter().enumerate().map(|(k, shape)| data(shape, k)).collect();
            let options = CompileOptions {
                device: Device::cuda(0),
                specialize: Specialize::Never,
                ..CompileOptions::default()
            };
            let compiled = g.compile(&options).unwrap_or_else(|e| panic!("{name}: {e}"));
            let given: Vec<Input<'_>> = inputs.iter().map(Into::into).collect();
            let bounds = interpret_with_bounds(&ir, &inputs, &interp::Options::default());
            let bounds = bounds.unwrap_or_else(|e| panic!("{name}: {e}"));
            // The first call goes step after step, the second records, the third is what was recorded.
            let mut before: Option<Vec<HostTensor>> = None;
            for _ in 0..3 {
                let found = compiled.run(&given).unwrap_or_else(|e| panic!("{name}: {e}"));
                let found: Vec<HostTensor> = found.iter().map(|t| t.to_host()).collect();
                for (k, (found, bounded)) in found.iter().zip(&bounds).enumerate() {
                    compare(found, bounded).unwrap_or_else(|e| panic!("{name}, d{k}: {e}"));
                }
                if let Some(before) = &before {
                    let same = before.iter().zip(&found).all(|(a, b)| a.bytes() == b.bytes());
                    assert!(same, "{name}: a later call has other bits");
                }
                before = Some(found);
            }
        }
    }
}
