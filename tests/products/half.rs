//! Convolutions and products of f16 and bf16: against the graph interpreter within its derived bounds, with equal bits on one thread and
//! three and whether sizes are known when compiled or not, over numbers that are subnormal, infinite, or become so.
//!
//! `TLC_SEEDS=from..to` runs other seeds.

use tlc::{CompileOptions, Conv, DType, Dim, Graph, HostTensor, Pool, Scalar, Specialize, Tensor, compile_ir};
use tlc_ir::interp::{self, compare, interpret_with_bounds};
use tlc_ir::plan::Storage;
use tlc_ir::rng::Rng;
use tlc_ir::testgen::seeds;
use tlc_runtime::cpu::level::{self, Halves};

/// What is multiplied.
#[derive(Clone, Debug)]
enum Kind {
    Conv {
        groups: usize,
        /// Of a group.
        channels: usize,
        outputs: usize,
        sides: [usize; 2],
        kernel: usize,
        stride: usize,
        padding: usize,
        pooled: bool,
    },
    Product {
        batch: usize,
        rows: usize,
        sum: usize,
        columns: usize,
        turned: bool,
        /// Whether the batch has one right operand for all.
        shared: bool,
    },
    Attention {
        queries: usize,
        keys: usize,
        width: usize,
    },
}

#[derive(Clone, Debug)]
struct Case {
    kind: Kind,
    dtype: DType,
    images: usize,
    /// Whether weights never change.
    fixed: bool,
    bias: bool,
    residual: bool,
    activation: bool,
    special: bool,
}

impl Case {
    fn random(rng: &mut Rng, kind: Kind) -> Case {
        Case {
            kind,
            dtype: rng.pick(&[DType::F16, DType::BF16]),
            images: rng.pick(&[0, 1, 1, 1, 2, 3]),
            fixed: rng.chance(70, 100),
            bias: rng.chance(60, 100),
            residual: rng.chance(40, 100),
            activation: rng.chance(60, 100),
            special: rng.chance(30, 100),
        }
    }

    fn of_windows(rng: &mut Rng) -> Case {
        let depthwise = rng.chance(40, 100);
        let kind = Kind::Conv {
            groups: if depthwise { 9 } else { rng.pick(&[1, 1, 2]) },
            channels: if depthwise { 1 } else { rng.pick(&[3, 12, 16, 33]) },
            outputs: if depthwise {
                rng.pick(&[1, 1, 2])
            } else {
                rng.pick(&[5, 16, 32, 48])
            },
            sides: [rng.pick(&[1, 2, 5, 8]), rng.pick(&[1, 3, 7, 14, 15, 17, 33])],
            kernel: rng.pick(&[1, 3, 3, 5]),
            stride: rng.pick(&[1, 1, 2]),
            padding: rng.pick(&[0, 1, 1, 2]),
            pooled: rng.chance(30, 100),
        };
        Case::random(rng, kind)
    }

    fn of_matrices(rng: &mut Rng) -> Case {
        let kind = Kind::Product {
            batch: rng.pick(&[1, 1, 2, 3]),
            rows: rng.pick(&[0, 1, 2, 3, 5, 8, 13, 33]),
            sum: rng.pick(&[1, 2, 15, 64, 129, 300]),
            columns: rng.pick(&[1, 3, 16, 31, 48, 64, 100, 512]),
            turned: rng.chance(50, 100),
            shared: rng.chance(50, 100),
        };
        Case::random(rng, kind)
    }

    fn of_attention(rng: &mut Rng) -> Case {
        let kind = Kind::Attention {
            queries: rng.pick(&[1, 2, 7, 33]),
            keys: rng.pick(&[1, 5, 32, 65]),
            width: rng.pick(&[8, 16, 33]),
        };
        Case::random(rng, kind)
    }

    /// Whether some product of known size is one with a vector, or so small that a loop nest computes it.
    fn is_small(&self) -> bool {
        let small = |m: usize, n: usize, k: usize| m == 1 || n == 1 || m * n * k < 8 * 1024;
        match self.kind {
            Kind::Conv { .. } => false,
            Kind::Product { rows, sum, columns, .. } => small(rows, columns, sum),
            Kind::Attention { queries, keys, width } => small(queries, keys, width),
        }
    }

    /// Shapes of the value that is multiplied and of the weights; `None` if there is no result.
    fn shapes(&self) -> Option<[Vec<usize>; 2]> {
        match self.kind {
            Kind::Conv {
                groups,
                channels,
                outputs,
                sides: [h, w],
                kernel,
                padding,
                pooled,
                ..
            } => {
                let least = h.min(w) + 2 * padding;
                let fits = least >= kernel && (!pooled || least >= kernel + 4);
                let image = vec![self.images, groups * channels, h, w];
                fits.then(|| [image, vec![groups * outputs, channels, kernel, kernel]])
            }
            Kind::Product {
                batch,
                rows,
                sum,
                columns,
                turned,
                shared,
            } => {
                let matrix = if turned { [columns, sum] } else { [sum, columns] };
                let batches = if shared { vec![] } else { vec![batch] };
                Some([vec![batch, rows, sum], batches.into_iter().chain(matrix).collect()])
            }
            Kind::Attention { queries, keys, width } => {
                Some([vec![self.images, 2, queries, width], vec![self.images, 2, keys, width]])
            }
        }
    }

    fn record(&self, symbolic: bool, weights: &HostTensor) -> tlc::ir::Graph {
        let g = Graph::new("half");
        let [shape, of_weights] = self.shapes().unwrap();
        let mut dims: Vec<Dim> = shape.iter().map(|&d| d.into()).collect();
        if symbolic {
            // Images, or rows of a product.
            let axis = usize::from(matches!(self.kind, Kind::Product { .. }));
            dims[axis] = (&g.symbol("n", 0..=64)).into();
        }
        let images = dims[0].clone();
        let x = g.input("x", self.dtype, dims);
        let fixed = self.fixed && !matches!(self.kind, Kind::Attention { .. });
        let w = if fixed {
            g.constant(weights)
        } else {
            let mut dims: Vec<Dim> = of_weights.iter().map(|&d| d.into()).collect();
            if matches!(self.kind, Kind::Attention { .. }) {
                dims[0] = images;
            }
            g.input("w", self.dtype, dims)
        };
        let mut y = match self.kind {
            Kind::Conv {
                groups,
                stride,
                padding,
                ..
            } => {
                let settings = Conv::new().stride(stride).groups(groups).padding(padding);
                x.conv2d(&w, None, &settings)
            }
            Kind::Product { turned, .. } => x.matmul(&if turned { w.t() } else { w }),
            Kind::Attention { width, .. } => {
                let scores = x.matmul(&w.t()) * (width as f64).powf(-0.5);
                scores.softmax(-1).matmul(&w)
            }
        };
        if self.bias {
            y = &y * 0.5 + 0.375;
        }
        if self.activation {
            y = y.relu();
        }
        if self.residual {
            y = &y + &(-&y).abs();
        }
        if let Kind::Conv { pooled: true, .. } = self.kind {
            y = after_pools(&y);
        }
        g.output("y", &y);
        g.finish().unwrap_or_else(|e| panic!("{self:?}: {e}"))
    }
}

/// The largest of windows, and their mean.
fn after_pools(y: &Tensor) -> Tensor {
    let most = y.max_pool(&Pool::new(3).stride(1).padding(1));
    most.avg_pool(&Pool::new(2).stride(1).padding(1))
}

fn data(dtype: DType, shape: &[usize], rng: &mut Rng, special: bool) -> HostTensor {
    let mut out = HostTensor::zeros(dtype, shape).unwrap();
    // Below the least normal number, and near the largest.
    let (small, large) = match dtype {
        DType::F16 => (1e-6, 6e4),
        _ => (1e-39, 3e38),
    };
    for i in 0..shape.iter().product() {
        let value = match rng.bits() % 997 {
            3 if special => f64::NAN,
            5 if special => f64::INFINITY,
            7 if special => f64::NEG_INFINITY,
            11 if special => -0.0,
            13..=17 if special => large,
            v @ 20..=60 => (v as f64 - 40.0) * small,
            v => v as f64 / 249.0 - 2.0,
        };
        out.set(i, Scalar::from_f64(dtype, value));
    }
    out
}

/// Equal bits, NaN alike.
fn same(a: &HostTensor, b: &HostTensor) -> bool {
    let alike = |i: usize| a.get(i) == b.get(i) || a.get(i).is_nan() && b.get(i).is_nan();
    a.shape() == b.shape() && (0..a.shape().iter().product()).all(alike)
}

fn right(usual: std::ops::Range<u64>, random: fn(&mut Rng) -> Case) {
    for seed in seeds(usual) {
        let mut rng = Rng::new(seed);
        let mut case = random(&mut rng);
        while case.shapes().is_none() {
            case = random(&mut rng);
        }
        let [shape, of_weights] = case.shapes().unwrap();
        let x = data(case.dtype, &shape, &mut rng, case.special);
        let weights = data(case.dtype, &of_weights, &mut rng, case.special);
        let mut first: Option<HostTensor> = None;
        for (symbolic, threads) in [(false, 1), (false, 3), (true, 1), (true, 3)] {
            let graph = case.record(symbolic, &weights);
            let options = CompileOptions {
                threads: Some(threads),
                specialize: Specialize::Never,
                ..CompileOptions::default()
            };
            let given = graph.inputs().len();
            let inputs = [x.clone(), weights.clone()];
            let inputs = &inputs[..given];
            let e = compile_ir(&graph, &options).unwrap_or_else(|e| panic!("seed {seed}: {case:?}: {e}"));
            let found = e.run(&inputs.iter().map(Into::into).collect::<Vec<_>>());
            let found = found.unwrap_or_else(|e| panic!("seed {seed}: {case:?}: {e}"))[0].to_host();
            let meant = interp::Options::default();
            let bounded = interpret_with_bounds(&graph, inputs, &meant);
            let bounded = bounded.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            compare(&found, &bounded[0]).unwrap_or_else(|m| panic!("seed {seed}: {case:?}: {m}\n{}", e.explain()));
            // Vectors and small matrices are added up in another order than rows whose number is unknown.
            match &first {
                Some(first) if threads > 1 || !case.is_small() => assert!(
                    same(first, &found),
                    "seed {seed}: {case:?}: other bits with symbolic sizes {symbolic}, {threads} threads"
                ),
                _ => first = Some(found),
            }
        }
    }
}

#[test]
fn random_convolutions() {
    right(0..40, Case::of_windows);
}

#[test]
fn random_products() {
    right(100..140, Case::of_matrices);
}

#[test]
fn random_attention() {
    right(200..212, Case::of_attention);
}

/// Products are those of the library, convolutions those that kernels compute from their windows, and neither is a loop nest of its own.
#[test]
fn they_are_multiplied_as_f32_is() {
    let mut rng = Rng::new(1);
    for dtype in [DType::F16, DType::BF16] {
        let g = Graph::new("product");
        let x = g.input("x", dtype, [64, 96]);
        let w = g.constant(data(dtype, &[96, 128], &mut rng, false));
        g.output("y", &x.matmul(&w).relu());
        let e = compile_ir(&g.finish().unwrap(), &CompileOptions::default()).unwrap();
        let calls = e.plan().steps.iter().any(|s| matches!(s, tlc::ir::plan::Step::Gemm(_)));
        assert!(calls, "{dtype}: {}", e.explain());
        let g = Graph::new("convolution");
        let x = g.input("x", dtype, [1, 16, 14, 14]);
        let w = g.constant(data(dtype, &[32, 16, 3, 3], &mut rng, false));
        g.output("y", &x.conv2d(&w, None, &Conv::new().padding(1)).relu());
        let e = compile_ir(&g.finish().unwrap(), &CompileOptions::default()).unwrap();
        let explained = e.explain().to_string();
        let direct = explained.contains("windows are multiplied where they lie");
        assert_eq!(direct, level::wide().is_some(), "{dtype}: {explained}");
    }
}

/// A matrix that one row is multiplied with stays as narrow as it is, in half the bytes: as it lies along rows, and in blocks of columns.
#[test]
fn a_matrix_that_is_read_once_stays_narrow() {
    let mut rng = Rng::new(2);
    let w = data(DType::BF16, &[256, 512], &mut rng, false);
    let stored = |rows: usize, turned: bool| {
        let g = Graph::new("product");
        let x = g.input("x", DType::BF16, [rows, 256]);
        let weights = match turned {
            true => g.constant(w.reshaped(&[512, 256]).unwrap()).t(),
            false => g.constant(&w),
        };
        g.output("y", &x.matmul(&weights));
        let e = compile_ir(&g.finish().unwrap(), &CompileOptions::default()).unwrap();
        let matrices = e.plan().slots.iter().filter(|s| s.len.is(256 * 512));
        let made = matrices.filter(|s| matches!(s.storage, Storage::Persistent));
        made.map(|s| s.dtype).collect::<Vec<_>>()
    };
    assert_eq!(stored(1, false), [DType::BF16]);
    assert_eq!(stored(1, true), []);
    assert!(!stored(2, false).is_empty());
}

/// The library has such a row where it multiplies pairs of bf16, along rows of the matrix that are long enough, and copies nothing for it: so it does at one
/// level alone. Columns that lie together are a kernel's, and so are the others.
#[test]
fn a_row_by_a_matrix_is_multiplied_by_pairs_where_they_are() {
    let mut rng = Rng::new(4);
    for (turned, k, n, many) in [
        (false, 256, 512, false),
        (true, 512, 256, true),
        (true, 301, 333, true),
        (true, 256, 2, true),
        (true, 255, 999, false),
        (false, 333, 301, false),
        (false, 8, 9000, false),
    ] {
        let special = k == 512;
        let shape = if turned { [n, k] } else { [k, n] };
        let (x, w) = (
            data(DType::BF16, &[1, k], &mut rng, special),
            data(DType::BF16, &shape, &mut rng, special),
        );
        let g = Graph::new("row");
        let weights = g.constant(&w);
        let weights = if turned { weights.t() } else { weights };
        let row = g.input("x", DType::BF16, [1, k]).matmul(&weights);
        g.output("y", &(&row + 0.5).relu());
        // And a matrix by a column.
        let matrix = if turned { g.constant(&w) } else { g.constant(&w).t() };
        g.output("z", &matrix.matmul(&g.input("c", DType::BF16, [k, 1])));
        let graph = g.finish().unwrap();
        let column = HostTensor::from_bytes(DType::BF16, &[k, 1], x.bytes()).unwrap();
        let meant = interpret_with_bounds(&graph, &[x.clone(), column.clone()], &interp::Options::default()).unwrap();
        let mut first: Option<Vec<HostTensor>> = None;
        for threads in [1, 2, 8] {
            let options = CompileOptions {
                threads: Some(threads),
                ..CompileOptions::default()
            };
            let e = compile_ir(&graph, &options).unwrap();
            let calls = e
                .plan()
                .steps
                .iter()
                .filter(|s| matches!(s, tlc::ir::plan::Step::Gemm(_)))
                .count();
            let expected = if many && level::halves() == Some(Halves::Pairs) {
                2
            } else {
                0
            };
            assert_eq!(calls, expected, "{k} by {n}: {}", e.explain());
            assert!(!many || e.plan().init.is_empty(), "{k} by {n}: {}", e.explain());
            let found = e.run(&[(&x).into(), (&column).into()]).unwrap();
            let found: Vec<HostTensor> = found.iter().map(|f| f.to_host()).collect();
            for (found, meant) in found.iter().zip(&meant) {
                compare(found, meant).unwrap_or_else(|m| panic!("{k} by {n}: {m}"));
            }
            match &first {
                None => first = Some(found),
                Some(f) => assert!(
                    f.iter().zip(&found).all(|(a, b)| same(a, b)),
                    "{k} by {n}, {threads} threads"
                ),
            }
        }
    }
}

/// A row of a product has the same bits among few rows and many, whether their number is known or not.
#[test]
fn a_row_has_the_same_bits_whatever_is_beside_it() {
    let mut rng = Rng::new(5);
    for (k, n) in [(300, 100), (64, 96), (1030, 64), (33, 48)] {
        for fixed in [true, false] {
            let w = data(DType::BF16, &[k, n], &mut rng, false);
            let all = data(DType::BF16, &[333, k], &mut rng, false);
            let mut first: Option<Vec<Scalar>> = None;
            let mut sizes = vec![
                (333, false, 1),
                (333, true, 2),
                (333, false, 8),
                (64, false, 3),
                (40, true, 1),
                (16, false, 1),
                (16, true, 1),
                (13, false, 4),
                (2, false, 1),
                (2, true, 2),
            ];
            if level::halves() == Some(Halves::Pairs) {
                // Of matrices as they lie one row is multiplied as several are.
                sizes.push((1, true, 1));
                sizes.extend((k * n >= 1 << 16).then_some((1, false, 2)));
            }
            for (rows, symbolic, threads) in sizes {
                let g = Graph::new("product");
                let m: Dim = match symbolic {
                    true => (&g.symbol("m", 0..=1 << 12)).into(),
                    false => rows.into(),
                };
                let x = g.input("x", DType::BF16, [m, k.into()]);
                let weights = match fixed {
                    true => g.constant(&w),
                    false => g.input("w", DType::BF16, [k, n]),
                };
                g.output("y", &x.matmul(&weights));
                let options = CompileOptions {
                    threads: Some(threads),
                    specialize: Specialize::Never,
                    ..CompileOptions::default()
                };
                let e = compile_ir(&g.finish().unwrap(), &options).unwrap();
                let mut part = HostTensor::zeros(DType::BF16, &[rows, k]).unwrap();
                (0..rows * k).for_each(|i| part.set(i, all.get(i)));
                let mut inputs = vec![(&part).into()];
                if !fixed {
                    inputs.push((&w).into());
                }
                let found = e.run(&inputs).unwrap()[0].to_host();
                let row: Vec<Scalar> = (0..rows.min(2) * n).map(|i| found.get(i)).collect();
                match &first {
                    None => first = Some(row),
                    Some(f) => assert!(
                        f[..row.len()] == row,
                        "{k} by {n}, {rows} rows, symbolic {symbolic}, fixed {fixed}"
                    ),
                }
            }
        }
    }
}

/// Matrices whose rows or columns lie in two strides, some of which look like the words of two neighbours along the sum that the library reads: two columns beside
/// each other, pairs of a sum in blocks of other widths, and in just those blocks.
#[test]
fn pairs_that_are_no_words_are_not_taken_for_them() {
    let mut rng = Rng::new(3);
    for (labels, x, y, out) in [
        ("abc,dce->abde", vec![8, 3, 16], vec![11, 16, 2], vec![8, 3, 11, 2]),
        ("cab,dce->abde", vec![16, 8, 3], vec![11, 16, 2], vec![8, 3, 11, 2]),
        ("dce,abc->deab", vec![11, 16, 2], vec![8, 3, 16], vec![11, 2, 8, 3]),
        ("akp,knp->an", vec![24, 8, 2], vec![8, 24, 2], vec![24, 24]),
        ("akp,knp->an", vec![24, 8, 2], vec![8, 64, 2], vec![24, 64]),
        ("akp,knp->an", vec![24, 8, 2], vec![8, 32, 2], vec![24, 32]),
        ("kap,knp->an", vec![8, 32, 2], vec![8, 40, 2], vec![32, 40]),
        (
            "abkp,dknp->abdn",
            vec![3, 8, 8, 2],
            vec![3, 8, 32, 2],
            vec![3, 8, 3, 32],
        ),
    ] {
        for dtype in [DType::BF16, DType::F16] {
            let list = |shape: &[usize]| shape.iter().map(|n| n.to_string()).collect::<Vec<_>>().join(", ");
            let (d, [x_, y_, out_]) = (dtype.name(), [&x, &y, &out].map(|s| list(s)));
            let text = format!(
                "graph @g(%x: {d}[{x_}], %y: {d}[{y_}]) {{\n  %0 = einsum %x, %y {{{labels}; acc=f32}} : {d}[{out_}]\n  return %0\n}}"
            );
            let graph = tlc_ir::text::parse_graph(&text, &mut tlc_ir::text::no_data)
                .unwrap_or_else(|e| panic!("{e:?}\n{text}"));
            let inputs = [data(dtype, &x, &mut rng, false), data(dtype, &y, &mut rng, false)];
            let expected = interpret_with_bounds(&graph, &inputs, &interp::Options::default()).unwrap();
            let given: Vec<tlc::Input<'_>> = inputs.iter().map(Into::into).collect();
            let found = compile_ir(&graph, &CompileOptions::default())
                .unwrap()
                .run(&given)
                .unwrap();
            compare(&found[0].to_host(), &expected[0]).unwrap_or_else(|e| panic!("{d} {labels}: {e}"));
        }
    }
}
