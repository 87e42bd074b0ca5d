//! Kernels that run in the step of a matrix product: what they compute, on every number of threads, and which do.

use tlc::verify::{Case, verify};
use tlc::{CompileOptions, DType, Executable, Graph, HostTensor, Tensor, compile_ir};
use tlc_ir::plan::{Gemm, Step};

/// A small generator of numbers; the tests need the same ones each time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % n as u64) as usize
    }

    fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// In -1..=1, now and then something special.
    fn tensor(&mut self, dtype: DType, shape: &[usize], special: bool) -> HostTensor {
        let count = shape.iter().product();
        let specials = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 0.0];
        let mut number = || match special && self.below(40) == 0 {
            true => self.one_of(&specials),
            false => self.below(2001) as f64 / 1000.0 - 1.0,
        };
        let all: Vec<f64> = (0..count).map(|_| number()).collect();
        match dtype {
            DType::F64 => HostTensor::from_slice(shape, &all).unwrap(),
            _ => HostTensor::from_slice(shape, &all.iter().map(|&x| x as f32).collect::<Vec<f32>>()).unwrap(),
        }
    }
}

fn options(threads: usize) -> CompileOptions {
    CompileOptions {
        threads: Some(threads),
        ..CompileOptions::default()
    }
}

fn products(e: &Executable) -> Vec<&Gemm> {
    let mut all = Vec::new();
    for step in &e.plan().steps {
        if let Step::Gemm(g) = step {
            all.push(&**g);
        }
    }
    all
}

/// Verifies a case on several numbers of threads, which `verify` compares with yet others.
#[track_caller]
fn holds(case: &Case, what: &str) {
    for threads in [1, 3] {
        let report = verify(case, &options(threads)).unwrap_or_else(|e| panic!("{what}: {e}"));
        let findings: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
        assert!(report.is_right(), "{what}, {threads} threads: {}", findings.join("\n"));
    }
}

/// What follows a product, by number; `x` has rank 2 or more.
const FOLLOWERS: usize = 10;
fn follow(g: &Graph, number: usize, x: &Tensor, dims: &[usize], dtype: DType) -> Vec<(&'static str, Tensor)> {
    let (m, n) = (dims[dims.len() - 2], dims[dims.len() - 1]);
    let last = -1;
    match number {
        0 => vec![("bias", (x + g.input("bias", dtype, [n])).relu())],
        1 => vec![("activation", x.tanh())],
        2 => vec![("residual", (x + g.input("residual", dtype, dims.to_vec())).sigmoid())],
        3 => vec![("softmax", x.softmax(last))],
        4 => {
            let mut around = vec![(0, 0); dims.len() - 2];
            around.extend([(1, 2), (2, 1)]);
            vec![("padded", x.relu().pad(&around, 0.0))]
        }
        5 => vec![("rows", x * g.input("scale", dtype, [m, 1]))],
        6 => vec![("norm", x.layer_norm(None, None, 1e-5))],
        7 => vec![("sums", x.sum(last)), ("most", x.max(last))],
        8 => vec![("product", x.clone()), ("half", x * 0.5)],
        _ => vec![("reversed", x.flip([dims.len() - 1]).abs())],
    }
}

#[test]
fn what_follows_a_product_is_right_whatever_the_sizes() {
    let mut r = Numbers(11);
    let (mut behind, mut all) = (0, 0);
    for round in 0..120 {
        let mut size = || r.one_of(&[0usize, 1, 2, 3, 7, 8, 9, 16, 31, 47, 48, 49, 64, 65, 100, 130, 193]);
        let (m, n, k) = (size(), size(), size());
        let batch: Vec<usize> = (0..r.below(3)).map(|_| r.one_of(&[1, 2, 3, 5])).collect();
        let dtype = r.one_of(&[DType::F32, DType::F32, DType::F64]);
        let turned = r.below(3) == 0;
        let number = round % FOLLOWERS;
        // A maximum of nothing has no value, and a mean of nothing is not a number.
        if n == 0 && matches!(number, 3 | 6 | 7) {
            continue;
        }
        let shape = |rows: usize, columns: usize| [&batch[..], &[rows, columns]].concat();
        let g = Graph::new("behind");
        let (a, b) = (g.input("a", dtype, shape(m, k)), g.input("b", dtype, shape(k, n)));
        // The result as rows of columns, or as columns of rows.
        let (x, dims) = match turned {
            false => (a.matmul(&b), shape(m, n)),
            true => {
                let last = batch.len();
                let mut axes: Vec<usize> = (0..last).collect();
                axes.extend([last + 1, last]);
                (a.matmul(&b).permute(axes), shape(n, m))
            }
        };
        if dims[dims.len() - 1] == 0 && matches!(number, 3 | 6 | 7) {
            continue;
        }
        for (name, y) in follow(&g, number, &x, &dims, dtype) {
            g.output(name, &y);
        }
        let graph = g.finish().unwrap();
        let special = r.below(4) == 0;
        let inputs = graph.inputs().iter().map(|&i| {
            let shape: Vec<usize> = graph
                .ty(i)
                .shape
                .iter()
                .map(|d| d.as_const().unwrap() as usize)
                .collect();
            r.tensor(dtype, &shape, special)
        });
        let case = Case {
            inputs: inputs.collect(),
            graph,
            symbols: Vec::new(),
        };
        let what = format!("{batch:?} {m} x {n} x {k} {dtype} turned {turned} follower {number}");
        let e = compile_ir(&case.graph, &options(1)).unwrap_or_else(|e| panic!("{what}: {e}"));
        let products = products(&e);
        all += products.len();
        behind += products.iter().filter(|p| p.epilogue.is_some()).count();
        holds(&case, &what);
    }
    // Small products are no library products; what reads them otherwise than by lines is no epilogue.
    assert!(behind * 10 > all * 8 && all > 20, "{behind} of {all}");
}

#[test]
fn symbolic_sizes_take_every_epilogue_along() {
    let mut r = Numbers(5);
    for number in 0..4 {
        let g = Graph::new("symbolic");
        let (b, m, n) = (g.symbol("b", 0..=64), g.symbol("m", 0..=4096), g.symbol("n", 1..=4096));
        let x = g
            .input("x", DType::F32, (&b, &m, 40))
            .matmul(&g.input("w", DType::F32, (40, &n)));
        let y = match number {
            0 => (x + g.input("bias", DType::F32, (&n,))).gelu(),
            1 => x.softmax(-1),
            2 => x.layer_norm(None, None, 1e-5),
            _ => x.relu().pad(&[(0, 0), (1, 1), (1, 1)], 0.0),
        };
        g.output("y", &y);
        let graph = g.finish().unwrap();
        let e = compile_ir(&graph, &options(2)).unwrap();
        let all = products(&e);
        assert!(all.len() == 1 && all[0].epilogue.is_some(), "{}", e.explain());
        assert_eq!(e.plan().steps.len(), 1, "{}", e.explain());
        for (b, m, n) in [(1, 1, 1), (0, 3, 5), (2, 0, 9), (3, 17, 130), (1, 200, 33), (5, 8, 64)] {
            let mut inputs = vec![
                r.tensor(DType::F32, &[b, m, 40], false),
                r.tensor(DType::F32, &[40, n], false),
            ];
            if number == 0 {
                inputs.push(r.tensor(DType::F32, &[n], false));
            }
            let case = Case {
                graph: graph.clone(),
                inputs,
                symbols: Vec::new(),
            };
            holds(&case, &format!("{number}: {b} {m} {n}"));
        }
    }
}

#[test]
fn two_products_share_the_kernel_of_the_later() {
    let g = Graph::new("gated");
    let x = g.input("x", DType::F32, [50, 64]);
    let weight = |name: &str| g.input(name, DType::F32, [64, 96]);
    let (gate, up) = (x.matmul(&weight("gate")), x.matmul(&weight("up")));
    g.output("y", &(gate.silu() * up));
    let graph = g.finish().unwrap();
    let e = compile_ir(&graph, &options(1)).unwrap();
    let all = products(&e);
    assert_eq!((all.len(), e.plan().steps.len()), (2, 2), "{}", e.explain());
    assert!(
        all[0].epilogue.is_none() && all[1].epilogue.is_some(),
        "{}",
        e.explain()
    );
    let mut r = Numbers(3);
    let inputs = vec![
        r.tensor(DType::F32, &[50, 64], true),
        r.tensor(DType::F32, &[64, 96], true),
        r.tensor(DType::F32, &[64, 96], false),
    ];
    let symbols = Vec::new();
    holds(&Case { graph, inputs, symbols }, "gated");
}

#[test]
fn an_operand_of_the_product_is_never_overwritten_by_what_follows() {
    // The residual is an operand of the product too: each line still reads all of it.
    let g = Graph::new("residual");
    let x = g.input("x", DType::F32, [96, 96]).tanh();
    let y = &x + x.matmul(&g.input("w", DType::F32, [96, 96]));
    let z = &y + y.matmul(&x);
    g.output("z", &z);
    let graph = g.finish().unwrap();
    let e = compile_ir(&graph, &options(2)).unwrap();
    assert!(products(&e).iter().all(|p| p.epilogue.is_some()), "{}", e.explain());
    let mut r = Numbers(9);
    let inputs = vec![
        r.tensor(DType::F32, &[96, 96], false),
        r.tensor(DType::F32, &[96, 96], false),
    ];
    let symbols = Vec::new();
    holds(&Case { graph, inputs, symbols }, "residual");
}

#[test]
fn the_result_takes_the_bytes_of_the_product() {
    let g = Graph::new("in place");
    let x = g.input("x", DType::F32, [128, 64]);
    let h = (x.matmul(&g.input("w", DType::F32, [64, 256])) + g.input("b", DType::F32, [256])).relu();
    // Two read it, so that it is in memory.
    g.output("y", &h.matmul(&g.input("v", DType::F32, [256, 32])));
    g.output("z", &h.matmul(&g.input("u", DType::F32, [256, 32])));
    let e = compile_ir(&g.finish().unwrap(), &options(1)).unwrap();
    let layout = e.decisions().planned.layout.as_ref().unwrap();
    assert_eq!(layout.host().bytes, 128 * 256 * 4, "{}", e.explain());
}

#[test]
fn a_product_whose_size_data_decides_is_cut_anew() {
    // Up to 4096 rows, of which few are kept: then columns are cut in place of rows.
    let g = Graph::new("kept");
    let x = g.input("x", DType::F32, [4096, 64]);
    let rows = x.take(
        &g.input("keep", DType::F32, [4096]).gt(0.0).nonzero().select_index(0, 0),
        0,
    );
    let product = rows
        .unsqueeze(0)
        .expand((12, rows.dim(0), 64))
        .matmul(&g.input("w", DType::F32, [12, 64, 768]));
    g.output("y", &(product + g.input("b", DType::F32, [768])).relu());
    let graph = g.finish().unwrap();
    let mut r = Numbers(21);
    let (x, w) = (
        r.tensor(DType::F32, &[4096, 64], false),
        r.tensor(DType::F32, &[12, 64, 768], false),
    );
    let b = r.tensor(DType::F32, &[768], false);
    for kept in [0usize, 1, 5, 20, 48, 100, 1000] {
        let keep: Vec<f32> = (0..4096).map(|i| if i < kept { 1.0 } else { -1.0 }).collect();
        let keep = HostTensor::from_slice(&[4096], &keep).unwrap();
        let mut all = Vec::new();
        for threads in [1, 2, 3, 8] {
            let e = compile_ir(&graph, &options(threads)).unwrap();
            let all_products = products(&e);
            assert!(
                all_products.len() == 1 && all_products[0].epilogue.is_some(),
                "{}",
                e.explain()
            );
            let out = e.run(&[(&x).into(), (&keep).into(), (&w).into(), (&b).into()]).unwrap();
            assert_eq!(out[0].shape(), [12, kept, 768]);
            all.push(out[0].as_slice::<f32>().unwrap().to_vec());
        }
        assert!(all.iter().all(|one| one == &all[0]), "{kept} rows");
        let (x, w, b) = (
            x.as_slice::<f32>().unwrap(),
            w.as_slice::<f32>().unwrap(),
            b.as_slice::<f32>().unwrap(),
        );
        for i in (0..kept).step_by(37) {
            for j in 0..768 {
                let sum: f64 = (0..64)
                    .map(|k| f64::from(x[i * 64 + k]) * f64::from(w[k * 768 + j]))
                    .sum();
                let expected = (sum + f64::from(b[j])).max(0.0);
                assert!(
                    (f64::from(all[0][i * 768 + j]) - expected).abs() < 1e-4,
                    "{kept} rows: [{i}, {j}]"
                );
            }
        }
    }
}
