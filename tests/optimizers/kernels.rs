//! How many kernels updates are.

use tlc::optim::{Optimizer, clip};
use tlc::{CompileOptions, DType, Executable, Graph, Tensor};

/// One step of so many parameters, of `rows` rows and more, and its kernels.
fn step(text: &str, rows: usize, parameters: usize, clipped: bool) -> Executable {
    let optimizer: Optimizer = text.parse().unwrap();
    let g = Graph::new("step");
    let step = g.input("step", DType::I64, ());
    let input = |name: &str, k: usize| g.input(&format!("{name}{k}"), DType::F32, [rows + k, 32]);
    let given: Vec<[Tensor; 4]> = (0..parameters)
        .map(|k| ["p", "g", "m", "v"].map(|name| input(name, k)))
        .collect();
    let gradients: Vec<&Tensor> = given.iter().map(|t| &t[1]).collect();
    let gradients = match clipped {
        true => clip::by_global_norm(&gradients, 1.0).0,
        false => gradients.into_iter().cloned().collect(),
    };
    for (k, ([p, _, m, v], d)) in given.iter().zip(&gradients).enumerate() {
        let (p, slots) = optimizer.update(&step, p, d, &[m, v]);
        g.output(&format!("p{k}"), &p);
        g.output(&format!("m{k}"), &slots[0]);
        g.output(&format!("v{k}"), &slots[1]);
    }
    g.compile(&CompileOptions::default()).unwrap()
}

#[test]
fn the_update_of_a_parameter_is_one_kernel() {
    for text in [
        "adam",
        "adamw:wd=0.1",
        "adamw:lr=warmup(10,cosine(0.1,100))",
        "adamax",
        "adabound",
    ] {
        let exe = step(text, 100_000, 1, false);
        let count = exe.plan().kernels.len();
        assert_eq!(count, 1, "{text}:\n{}", exe.explain());
    }
}

#[test]
fn updates_of_small_parameters_share_a_kernel_and_large_ones_what_depends_on_the_step() {
    let count = |rows, parameters, clipped| step("adamw", rows, parameters, clipped).plan().kernels.len();
    assert_eq!(count(100, 5, false), 1);
    // One for each, and one for the corrections and the rate.
    assert_eq!(count(100_000, 5, false), 6);
    // Squares of each are summed in pieces and what these leave over before that; the sums of pieces are one kernel, and one is the factor.
    assert_eq!(count(100_000, 5, true), 6 + 2 * 5 + 2);
}
