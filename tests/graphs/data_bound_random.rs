//! What the runtime computes where data decides a size, against the graph interpreter, which has another way to each: on the
//! elements at which they could part.

use tlc::{CompileOptions, DType, Executable, Graph, HostTensor, Input, Tensor};
use tlc_ir::Scalar;
use tlc_ir::interp::{Options, interpret};
use tlc_ir::rng::Rng;

/// Elements in which ties, signs of zero, NaN of several kinds and the ends of a type are frequent.
fn elements(rng: &mut Rng, dtype: DType, shape: &[usize]) -> HostTensor {
    let mut t = HostTensor::zeros(dtype, shape).expect("small");
    for i in 0..t.len() {
        let plain = [
            0.0,
            -0.0,
            1.0,
            -1.0,
            2.0,
            0.5,
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            1e-40,
            -1e-40,
        ];
        let value = match rng.below(14) {
            k if k < plain.len() => Scalar::from_f64(dtype, plain[k]),
            11 => dtype.lowest(),
            12 => dtype.highest(),
            // A NaN with its sign, numbers beyond 2^53 and the like.
            _ => Scalar::from_bits(dtype, u64::MAX - ((rng.below(3) as u64) << (dtype.value_bits() - 1))),
        };
        t.set(i, value);
    }
    t
}

fn executables(g: &Graph) -> Vec<Executable> {
    let compiled = |threads| {
        let options = CompileOptions {
            threads: Some(threads),
            ..CompileOptions::default()
        };
        g.compile(&options).expect("it compiles")
    };
    [1, 2].map(compiled).into()
}

/// Both results, to the bit.
fn check(g: &Graph, executables: &[Executable], inputs: &[HostTensor]) {
    let graph = g.finish().expect("a graph");
    let right = interpret(&graph, inputs, &Options::default()).expect("it is interpreted");
    for e in executables {
        let given: Vec<Input<'_>> = inputs.iter().map(Input::from).collect();
        let found = e.run(&given).expect("it runs");
        for (f, r) in found.iter().zip(&right) {
            assert_eq!(f.shape(), r.shape(), "{} of {inputs:?}", f.name);
            assert_eq!(f.bytes(), r.bytes(), "{} of {inputs:?}", f.name);
        }
    }
}

/// A graph over a tensor of symbolic extents.
fn over(dtype: DType, rank: usize, f: &dyn Fn(&Graph, &Tensor)) -> Graph {
    let g = Graph::new("counted");
    let shape: Vec<tlc::Dim> = (0..rank).map(|a| g.symbol(&format!("n{a}"), 0..=16)).collect();
    let x = g.input("x", dtype, shape);
    f(&g, &x);
    g
}

const SIZES: [usize; 6] = [0, 1, 2, 3, 5, 9];

fn shapes(rng: &mut Rng, rank: usize) -> Vec<usize> {
    (0..rank).map(|_| SIZES[rng.below(SIZES.len())]).collect()
}

fn plain() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|d| !d.is_storage())
}

#[test]
fn elements_that_differ_from_zero_are_found() {
    let mut rng = Rng::new(3);
    for dtype in plain() {
        for rank in 0..4 {
            let g = over(dtype, rank, &|g, x| g.output("places", &x.nonzero()));
            let executables = executables(&g);
            for _ in 0..12 {
                let shape = shapes(&mut rng, rank);
                check(&g, &executables, &[elements(&mut rng, dtype, &shape)]);
            }
        }
    }
}

#[test]
fn distinct_elements_and_slices_are_found() {
    let mut rng = Rng::new(4);
    for dtype in plain() {
        for (rank, axis) in [
            (0, None),
            (1, None),
            (2, None),
            (1, Some(0)),
            (2, Some(1)),
            (3, Some(0)),
            (3, Some(1)),
        ] {
            let g = over(dtype, rank, &|g, x| {
                for sorted in [false, true] {
                    let u = x.unique(axis, sorted);
                    g.output(&format!("values {sorted}"), &u.values);
                    g.output(&format!("first {sorted}"), &u.first);
                    g.output(&format!("inverse {sorted}"), &u.inverse);
                    g.output(&format!("counts {sorted}"), &u.counts);
                }
            });
            let executables = executables(&g);
            for _ in 0..10 {
                let mut shape = shapes(&mut rng, rank);
                // Slices of one or two elements are often equal.
                if let Some(axis) = axis {
                    let small = |(a, n): (usize, &usize)| if a as i64 == axis { *n } else { n % 3 };
                    shape = shape.iter().enumerate().map(small).collect();
                }
                check(&g, &executables, &[elements(&mut rng, dtype, &shape)]);
            }
        }
    }
}

#[test]
fn boxes_are_suppressed() {
    let mut rng = Rng::new(5);
    for center in [false, true] {
        let g = Graph::new("boxes");
        let n = g.symbol("n", 0..=128);
        let (batches, classes) = (g.symbol("b", 0..=4), g.symbol("c", 0..=4));
        let boxes = g.input("boxes", DType::F32, [batches.clone(), n.clone(), 4.into()]);
        let scores = g.input("scores", DType::F32, [batches, classes, n]);
        let most = g.input("most", DType::I64, ());
        let overlap = g.input("overlap", DType::F32, ());
        let score = g.input("score", DType::F32, ());
        g.output("taken", &boxes.suppress(&scores, &most, &overlap, &score, center));
        let executables = executables(&g);
        for round in 0..300 {
            let (b, c) = (rng.below(3), rng.below(4));
            let n = [0, 1, 2, 7, 20, 90][rng.below(6)];
            // A small grid: boxes that are equal, touch, lie in each other, and have no area.
            let mut corner = |_| match round % 10 {
                9 => [0.0, f32::INFINITY, f32::NAN, -1.0][rng.below(4)],
                // So fine that many are taken.
                8 => rng.below(100) as f32 / 16.0,
                _ => rng.below(5) as f32 / 2.0 - 0.5,
            };
            let corners: Vec<f32> = (0..b * n * 4).map(&mut corner).collect();
            let some = [0.1, 0.5, 0.5, 0.9, -0.0, 0.0, f32::NAN, f32::INFINITY, -1.0];
            let scored: Vec<f32> = (0..b * c * n).map(|_| some[rng.below(9)]).collect();
            let one = |v: f32| HostTensor::from_slice(&[], &[v]).expect("a scalar");
            let limits = [0.0, 0.25, 1.0 / 3.0, 0.5, 1.0, f32::NAN, -1.0];
            let inputs = [
                HostTensor::from_slice(&[b, n, 4], &corners).expect("boxes"),
                HostTensor::from_slice(&[b, c, n], &scored).expect("scores"),
                HostTensor::from_slice(&[], &[[-1i64, 0, 1, 3, i64::MAX][rng.below(5)]]).expect("a scalar"),
                one(limits[rng.below(7)]),
                one([0.0, 0.5, -1.0, f32::NAN, f32::NEG_INFINITY][rng.below(5)]),
            ];
            check(&g, &executables, &inputs);
        }
    }
}

#[test]
fn rows_are_sorted_alike_on_any_number_of_threads() {
    let mut rng = Rng::new(6);
    for (axis, rank) in [(0, 1), (1, 2), (0, 2), (1, 3)] {
        let g = Graph::new("rows");
        let shape: Vec<tlc::Dim> = (0..rank).map(|a| g.symbol(&format!("n{a}"), 0..=16384)).collect();
        let x = g.input("x", DType::F32, shape);
        g.output("sorted", &x.sort(axis, false));
        g.output("places", &x.argsort(axis, true));
        let compiled = |threads| {
            let options = CompileOptions {
                threads: Some(threads),
                ..CompileOptions::default()
            };
            g.compile(&options).expect("it compiles")
        };
        let executables: Vec<Executable> = [1, 2, 3, 16].map(compiled).into();
        // More rows than are sorted at once, as many, fewer and none; rows that parts do not share evenly.
        for (rows, length) in [
            (1, 3000),
            (3, 3000),
            (8, 1024),
            (9, 1000),
            (61, 97),
            (0, 5),
            (300, 1),
            (5, 0),
        ] {
            let shape: Vec<usize> = match (axis, rank) {
                (_, 1) => vec![rows * length],
                (0, _) => vec![length, rows],
                (_, 2) => vec![rows, length],
                _ => vec![rows.div_ceil(3), length, 3],
            };
            check(&g, &executables, &[elements(&mut rng, DType::F32, &shape)]);
        }
    }
}
