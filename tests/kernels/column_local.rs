//! Functions along other axes than the last, which one kernel computes in tiles of columns: ragged sizes, several axes,
//! dtypes, special values and symbolic sizes, against the graph interpreter within its derived bounds; on one thread and two.

use tlc::{CompileOptions, DType, Graph, HostTensor, Tensor, compile_ir, keep};
use tlc_ir::interp::{self, compare, interpret, interpret_with_bounds};

type Function = fn(&Tensor, &[i64]) -> Tensor;

const FUNCTIONS: [(&str, Function); 6] = [
    ("softmax", |x, axes| {
        let e = (x - x.max(keep(axes))).exp();
        &e / e.sum(keep(axes))
    }),
    ("log_softmax", |x, axes| x - x.logsumexp(keep(axes))),
    ("logsumexp", |x, axes| x.logsumexp(keep(axes))),
    ("layer_norm", |x, axes| {
        let centered = x - x.mean(keep(axes));
        let variance = centered.square().mean(keep(axes));
        &centered / (variance + 1e-5).sqrt()
    }),
    ("less_the_largest", |x, axes| x - x.max(keep(axes))),
    ("twice", |x, axes| {
        // One column-local function of another.
        let y = x - x.mean(keep(axes));
        &y / (1.0 + y.abs().max(keep(axes)))
    }),
];

/// Values around zero, with something special here and there if asked for.
fn data(dtype: DType, shape: &[usize], special: bool) -> HostTensor {
    let n: usize = shape.iter().product();
    let value = |i: usize| match i % 53 {
        7 if special => f32::NAN,
        19 if special => f32::INFINITY,
        20 if special => f32::NEG_INFINITY,
        31 if special => -0.0,
        _ => ((i * 37 + 11) % 101) as f32 / 25.0 - 2.0,
    };
    let mut out = HostTensor::zeros(dtype, shape).unwrap();
    for i in 0..n {
        out.set(i, tlc::Scalar::from_f64(dtype, f64::from(value(i))));
    }
    out
}

fn check(what: &str, graph: &tlc_ir::Graph, x: &HostTensor, symbols: &[(&str, i64)]) {
    let options = interp::Options {
        symbols: symbols.iter().map(|(n, v)| (n.to_string(), *v)).collect(),
        ..interp::Options::default()
    };
    let inputs = [x.clone()];
    let exact = interpret(graph, &inputs, &options).unwrap_or_else(|e| panic!("{what}: {e}"));
    let bounded = interpret_with_bounds(graph, &inputs, &options).unwrap_or_else(|e| panic!("{what}: {e}"));
    let mut first: Option<Vec<HostTensor>> = None;
    for threads in [1, 2] {
        let options = CompileOptions {
            threads: Some(threads),
            ..CompileOptions::default()
        };
        let executable = compile_ir(graph, &options).unwrap_or_else(|e| panic!("{what}: {e}"));
        let found = executable.run(&[x.into()]).unwrap_or_else(|e| panic!("{what}: {e}"));
        let found: Vec<HostTensor> = found.iter().map(|o| o.to_host()).collect();
        for ((found, exact), bounded) in found.iter().zip(&exact).zip(&bounded) {
            assert_eq!(found.shape(), exact.shape(), "{what}");
            compare(found, bounded).unwrap_or_else(|e| panic!("{what}: {e}\n{}", executable.explain()));
        }
        match &first {
            Some(first) => assert_eq!(*first, found, "{what}: one thread and two differ"),
            None => first = Some(found),
        }
    }
}

fn recorded(f: Function, dtype: DType, shape: &[usize], axes: &[i64]) -> tlc_ir::Graph {
    let g = Graph::new("columns");
    let x = g.input("x", dtype, shape.to_vec());
    g.output("y", &f(&x, axes));
    g.finish().unwrap()
}

#[test]
fn ragged_shapes_and_several_axes() {
    let cases: [(&[usize], &[i64]); 16] = [
        (&[1, 1], &[0]),
        (&[2, 3], &[0]),
        (&[7, 4], &[0]),
        (&[8, 64], &[0]),
        (&[9, 65], &[0]),
        (&[1, 100], &[0]),
        (&[100, 1], &[0]),
        (&[17, 131], &[0]),
        (&[24, 521], &[0]),
        (&[3, 5, 7], &[1]),
        (&[3, 16, 7, 9], &[1]),
        (&[2, 8, 16, 16], &[1]),
        (&[3, 5, 7, 11], &[1, 2]),
        (&[3, 5, 7, 11], &[0, 2]),
        (&[3, 5, 7, 11], &[0, 1]),
        (&[2, 3, 1, 70], &[1]),
    ];
    for (name, f) in FUNCTIONS {
        for (shape, axes) in cases {
            for special in [false, true] {
                let graph = recorded(f, DType::F32, shape, axes);
                let what = format!("{name} of {shape:?} over {axes:?}, special values {special}");
                check(&what, &graph, &data(DType::F32, shape, special), &[]);
            }
        }
    }
}

#[test]
fn other_dtypes() {
    for (name, f) in FUNCTIONS {
        for dtype in [DType::F64, DType::F16, DType::BF16] {
            for (shape, axes) in [(&[9, 33][..], &[0][..]), (&[2, 8, 5, 16], &[1])] {
                let what = format!("{name} of {dtype} {shape:?} over {axes:?}");
                check(&what, &recorded(f, dtype, shape, axes), &data(dtype, shape, false), &[]);
            }
        }
    }
}

#[test]
fn empty_columns_and_no_columns() {
    let f: Function = |x, axes| {
        let y = x - x.sum(keep(axes));
        &y * y.square().sum(keep(axes))
    };
    for (shape, axes) in [
        (&[0, 7][..], &[0][..]),
        (&[7, 0], &[0]),
        (&[2, 0, 5], &[1]),
        (&[0, 3, 5], &[1]),
    ] {
        let what = format!("{shape:?} over {axes:?}");
        check(
            &what,
            &recorded(f, DType::F32, shape, axes),
            &data(DType::F32, shape, false),
            &[],
        );
    }
}

#[test]
fn symbolic_sizes() {
    for (name, f) in FUNCTIONS {
        for most in [100i64, 1 << 40] {
            let g = Graph::new("columns");
            let (n, h, w) = (
                g.symbol("n", 1..=8),
                g.symbol("h", 1..=most),
                g.symbol("w", 1..=1 << 20),
            );
            g.output("y", &f(&g.input("x", DType::F32, (&n, &h, &w)), &[1]));
            let graph = g.finish().unwrap();
            for shape in [[1, 1, 1], [2, 5, 7], [3, 8, 300], [1, 77, 16], [2, 13, 257]] {
                let sizes = [("n", shape[0]), ("h", shape[1]), ("w", shape[2])].map(|(n, v)| (n, v as i64));
                let what = format!("{name} of {shape:?}, at most {most} rows");
                check(&what, &graph, &data(DType::F32, &shape, false), &sizes);
            }
        }
    }
}

#[test]
fn a_value_that_is_stored_and_summed_along_columns() {
    let g = Graph::new("gradient");
    let x = g.input("x", DType::F32, (70, 130));
    let y = (&x * 2.0).tanh();
    g.output("y", &y);
    g.output("bias", &y.sum(0));
    g.output("largest", &y.max(0));
    let graph = g.finish().unwrap();
    check("gradient", &graph, &data(DType::F32, &[70, 130], true), &[]);
}

#[test]
fn one_row_times_a_matrix() {
    for (k, n) in [(1, 4), (64, 128), (7, 5), (100, 3), (33, 257), (784, 10), (0, 8)] {
        let g = Graph::new("row");
        let x = g.input("x", DType::F32, (1, k));
        let w: Vec<f32> = (0..k * n).map(|i| ((i * 31 + 7) % 97) as f32 / 48.0 - 1.0).collect();
        let w = g.constant(HostTensor::from_slice(&[k, n], &w).unwrap());
        g.output("y", &(x.matmul(&w) + 1.0).relu());
        g.output("column", &w.permute([1, 0]).matmul(&x.permute([1, 0])));
        let graph = g.finish().unwrap();
        check(
            &format!("1x{k} times {k}x{n}"),
            &graph,
            &data(DType::F32, &[1, k], false),
            &[],
        );
    }
}
