//! One executable at many sizes, those that data decides among them: what was recorded, arenas and staging change with them.

use std::hash::{DefaultHasher, Hash, Hasher};

use tlc::{CompileOptions, DType, Device, Executable, Graph, HostTensor, Input, Specialize, concat};
use tlc_ir::interp::{Options, interpret, interpret_with_bounds};
use tlc_ir::rng::Rng;
use tlc_ir::testgen::random_tensor;

use crate::judged::judges;
use crate::states::compare_all;

/// Rows that data chooses, and what is made of them.
fn chosen_rows(g: &Graph) {
    let (n, m) = (g.symbol("n", 0..=300), g.symbol("m", 1..=70));
    let x = g.input("x", DType::F32, [n, m]);
    let places = x.sum(-1).gt(0.0).nonzero();
    let rows = x.take(&places.select_index(0, 0), 0);
    g.output("places", &places);
    g.output("scaled", &(&rows * 2.0 + 1.0));
    g.output("weights", &rows.softmax(-1));
    g.output("sums", &rows.cumsum(0));
    g.output("gram", &rows.matmul(&rows.transpose()));
    g.output("turned", &(rows.transpose().sin() + rows.sum(1)));
    g.output("joined", &concat(&[&rows, &x], 0));
}

/// How often values occur, and what they add up to.
fn histogram(g: &Graph) {
    let n = g.symbol("n", 0..=3000);
    let x = g.input("x", DType::F32, [n]);
    let kinds = x.round().cast(DType::I32);
    let unique = kinds.unique(None, true);
    let zeros = unique.counts.cast(DType::F32) * 0.0;
    g.output("values", &(&unique.values * 2));
    g.output("counts", &unique.counts);
    g.output("added", &zeros.scatter_add(0, &unique.inverse, &x));
    g.output(
        "shares",
        &(unique.counts.cast(DType::F32) / unique.counts.cast(DType::F32).sum(..)),
    );
}

/// Two sizes that data decides one after the other.
fn twice(g: &Graph) {
    let n = g.symbol("n", 0..=2000);
    let x = g.input("x", DType::F16, [n]);
    let first = x.take(&x.gt(-1.0).nonzero().select_index(0, 0), 0);
    let shifted = first.cast(DType::F32).sin() * 3.0;
    let second = shifted.take(&shifted.gt(0.0).nonzero().select_index(0, 0), 0);
    g.output("first", &first);
    g.output("second", &(&second + second.max(..)));
    g.output("shifted", &shifted.cumsum(0));
}

/// No size that data decides: one call, one recording for each shape.
fn plain(g: &Graph) {
    let (n, m) = (g.symbol("n", 0..=300), g.symbol("m", 1..=300));
    let x = g.input("x", DType::F32, [&n, &m]);
    let w = g.input("w", DType::F32, [&m, &n]);
    let y = x.matmul(&w).tanh();
    g.output("y", &y);
    g.output("rows", &(x.transpose() + &w).softmax(0));
    g.output("all", &y.sum(..));
}

type Build = fn(&Graph);

const GRAPHS: [(&str, Build); 4] = [
    ("chosen rows", chosen_rows),
    ("histogram", histogram),
    ("twice", twice),
    ("plain", plain),
];

/// Calls an executable at sizes that repeat, and returns a hash of its results.
fn calls(name: &str, build: Build, rounds: usize, specialize: Specialize) -> u64 {
    let g = Graph::new(name);
    build(&g);
    let options = CompileOptions {
        device: Device::cuda(0),
        specialize,
        ..CompileOptions::default()
    };
    let executable: Executable = g.compile(&options).expect("it compiles");
    let graph = g.finish().expect("a graph");
    let mut rng = Rng::new(name.len() as u64);
    let mut bits = DefaultHasher::new();
    for round in 0..rounds {
        // Few of each, so that most were there before.
        let sizes = [[0, 1], [5, 3], [33, 64], [256, 20], [100, 70]][rng.below(5)];
        let inputs = executable.plan().inputs.iter();
        let inputs: Vec<HostTensor> = inputs
            .map(|i| {
                let shape =
                    i.ty.shape
                        .iter()
                        .map(|d| d.eval_symbols(&sizes).expect("two symbols") as usize);
                random_tensor(&mut rng, i.ty.dtype, &shape.collect::<Vec<_>>())
            })
            .collect();
        let given: Vec<Input<'_>> = inputs.iter().map(Into::into).collect();
        let found = executable
            .run(&given)
            .unwrap_or_else(|e| panic!("{name} round {round}: {e}"));
        let found: Vec<HostTensor> = found.iter().map(|o| o.to_host()).collect();
        if judges() {
            let exact = interpret(&graph, &inputs, &Options::default()).expect("it is interpreted");
            let bounded = interpret_with_bounds(&graph, &inputs, &Options::default()).expect("it is interpreted");
            compare_all(&found, &exact, &bounded).unwrap_or_else(|e| panic!("{name} round {round} {sizes:?}: {e}"));
        }
        found.iter().for_each(|t| t.bytes().hash(&mut bits));
    }
    executable.wait_for_specializations();
    bits.finish()
}

mod children {
    use super::*;

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn sizes() {
        let bits = GRAPHS.map(|(name, build)| format!(" {:016x}", calls(name, build, rounds(), Specialize::Never)));
        println!("bits{}", bits.concat());
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn versions() {
        for (name, build) in GRAPHS {
            calls(name, build, rounds(), Specialize::After(2));
        }
    }

    fn rounds() -> usize {
        std::env::var("TLC_ROUNDS").map_or(24, |r| r.parse().expect("a number"))
    }
}
