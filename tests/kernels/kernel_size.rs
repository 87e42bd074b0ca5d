//! Graphs whose kernels would be too large for the code generator compile, and compute what the interpreter does: long chains of
//! functions that become many statements, alone, in front of reductions and in rows. How large the kernels become is tested in
//! `passes/tests/stages/kernel_size.rs`, over all operations and dtypes.

use tlc::{CompileOptions, DType, Graph, HostTensor, Scalar, Tensor, compile_ir, keep};
use tlc_ir::interp::{Options, compare, interpret_with_bounds};

/// Values from -1 to 1.
fn data(dtype: DType, shape: &[usize]) -> HostTensor {
    let mut out = HostTensor::zeros(dtype, shape).unwrap();
    for i in 0..out.len() {
        let value = ((i * 37 + 11) % 101) as f64 / 50.0 - 1.0;
        out.set(i, Scalar::from_f64(dtype, value));
    }
    out
}

/// Compiles and runs on one thread and two: the same bits, within the interpreter's bounds, which must mean something.
fn check(what: &str, dtype: DType, shape: &[usize], of: impl FnOnce(&Tensor) -> Tensor) {
    let g = Graph::new("large");
    let x = g.input("x", dtype, shape);
    g.output("y", &of(&x));
    let ir = g.finish().unwrap();
    let inputs = [data(dtype, shape)];
    let bounded = interpret_with_bounds(&ir, &inputs, &Options::default()).unwrap();
    let known = bounded[0].error.iter().all(|e| e.is_finite());
    assert!(known, "{what}: nothing is known of the result");
    let run = |threads| {
        let options = CompileOptions {
            threads: Some(threads),
            ..CompileOptions::default()
        };
        let executable = compile_ir(&ir, &options).unwrap_or_else(|e| panic!("{what}: {e}"));
        let outputs = executable
            .run(&[(&inputs[0]).into()])
            .unwrap_or_else(|e| panic!("{what}: {e}"));
        outputs[0].to_host()
    };
    let (one, two) = (run(1), run(2));
    assert_eq!(one, two, "{what}");
    compare(&one, &bounded[0]).unwrap_or_else(|e| panic!("{what}: {e}"));
}

type Function = fn(&Tensor) -> Tensor;

/// Functions that map -1 to 1 into itself and are no steeper than 1 there, so that errors do not grow.
const FUNCTIONS: [(&str, Function); 6] = [
    ("sin", |x| x.sin()),
    ("tan", |x| (x * 0.25).tan()),
    ("pow", |x| (x * 0.25 + 0.5).pow(0.75)),
    ("erf", |x| (x * 0.5).erf()),
    ("log1p", |x| (x * 0.25).log1p()),
    ("atan2", |x| x.atan2(2.0) * 0.5),
];

fn repeated(x: &Tensor, steps: usize, f: Function) -> Tensor {
    (0..steps).fold(x.clone(), |x, _| f(&x))
}

#[test]
fn chains_beyond_the_size_of_a_kernel_are_right() {
    for (name, f) in FUNCTIONS {
        for (dtype, steps) in [(DType::F32, 130), (DType::F64, 70)] {
            check(&format!("{name} {dtype} {steps}"), dtype, &[67], |x| {
                repeated(x, steps, f)
            });
        }
    }
    check("sin bf16", DType::BF16, &[64], |x| repeated(x, 300, |x| x.sin()));
    check("sin 10,000", DType::F32, &[64], |x| repeated(x, 10_000, |x| x.sin()));
}

#[test]
fn reductions_and_rows_of_long_functions_are_right() {
    let long = |x: &Tensor| (0..50).fold(x.clone(), |x, i| FUNCTIONS[i % 6].1(&x));
    for shape in [[20, 67], [200, 5]] {
        for axis in [0, 1] {
            let name = format!("{shape:?} {axis}");
            check(&name, DType::F64, &shape, |x| long(x).sum(axis));
            check(&name, DType::F32, &shape, |x| {
                let y = long(x);
                let centered = &y - y.max(keep(axis));
                long(&(&centered - centered.mean(keep(axis))))
            });
        }
    }
}
