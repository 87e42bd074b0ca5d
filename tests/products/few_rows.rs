//! Products of few rows, as decoders compute them: values, counts of steps, and that nothing of the right operand is packed.

use tlc::ir::rng::Rng;
use tlc::ir::testgen::{random_tensor, seeds};
use tlc::verify::{Case, verify};
use tlc::{CompileOptions, DType, Executable, Graph, HostTensor, Input, Specialize, Tensor};
use tlc_ir::plan::Step;

fn options(threads: usize) -> CompileOptions {
    CompileOptions {
        threads: Some(threads),
        specialize: Specialize::Never,
        ..CompileOptions::default()
    }
}

fn compiled(g: &Graph, threads: usize) -> Executable {
    g.compile(&options(threads)).unwrap_or_else(|e| panic!("{e}"))
}

/// A tensor of floats, at times with values that are not finite.
fn data(rng: &mut Rng, dtype: DType, shape: &[usize], odd: bool) -> HostTensor {
    if odd || !matches!(dtype, DType::F32 | DType::F64) {
        return random_tensor(rng, dtype, shape);
    }
    let count: usize = shape.iter().product();
    let all = (0..count).map(|_| rng.range(-1000, 1000) as f64 / 500.0);
    match dtype {
        DType::F64 => HostTensor::from_slice(shape, &all.collect::<Vec<f64>>()),
        _ => HostTensor::from_slice(shape, &all.map(|x| x as f32).collect::<Vec<f32>>()),
    }
    .expect("a tensor")
}

/// Asserts that a graph computes what the interpreter does.
fn assert_right(g: &Graph, inputs: Vec<HostTensor>, threads: usize, what: &str) {
    let graph = g.finish().unwrap_or_else(|e| panic!("{what}: {e}"));
    let case = Case {
        graph,
        inputs,
        symbols: Vec::new(),
    };
    let report = verify(&case, &options(threads)).unwrap_or_else(|e| panic!("{what}: {e}"));
    let findings: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    assert!(report.is_right(), "{what}: {}", findings.join("\n"));
}

/// Types of inputs, in their order.
type Types = Vec<(DType, Vec<usize>)>;

/// `x w` with few rows of x, and what may stand before and behind it; also the number of rows, where it is a symbol.
fn recorded(rng: &mut Rng) -> (Graph, Types, Vec<i64>) {
    let g = Graph::new("rows");
    let dtype = [DType::F32, DType::F32, DType::F64][rng.below(3)];
    let (m, k, n) = (
        1 + rng.below(20),
        [1, 5, 16, 48, 100, 192, 515, 800][rng.below(8)] + rng.below(17),
        [1, 3, 16, 60, 64, 200, 1040][rng.below(7)] + rng.below(20),
    );
    let mut inputs = Vec::new();
    let mut input = |name: &str, dtype: DType, shape: Vec<usize>| {
        inputs.push((dtype, shape.clone()));
        g.input(name, dtype, shape)
    };
    let batch: Vec<usize> = match rng.chance(1, 4) {
        true => vec![1 + rng.below(3)],
        false => vec![],
    };
    // Rows: of one size, or of one that a call says; of a larger tensor, at times.
    let shape = |own: [usize; 2]| batch.iter().copied().chain(own).collect::<Vec<usize>>();
    let mut sizes = Vec::new();
    let mut x: Tensor = match (batch.is_empty(), rng.below(4)) {
        (true, 0) => {
            let rows = g.symbol("rows", 0..=40);
            sizes.push(m as i64);
            inputs.push((dtype, vec![m, k]));
            g.input("x", dtype, (&rows, k))
        }
        (_, 1) => input("x", dtype, shape([m + 2, k + 3]))
            .narrow(-2, 1, m as i64)
            .narrow(-1, 2, k as i64),
        (_, 2) => input("x", dtype, shape([k, m])).t(),
        _ => input("x", dtype, shape([m, k])),
    };
    let stored = match (dtype, rng.below(4)) {
        (DType::F32, 0) => [DType::BF16, DType::F16, DType::F8E4M3FN][rng.below(3)],
        _ => dtype,
    };
    let turned = rng.chance(1, 2);
    let own = if turned { [n, k] } else { [k, n] };
    let of_w = if rng.chance(1, 2) { shape(own) } else { own.to_vec() };
    let mut input = |name: &str, dtype: DType, shape: Vec<usize>| {
        inputs.push((dtype, shape.clone()));
        g.input(name, dtype, shape)
    };
    // At times a constant, which may be laid out anew.
    let mut w = match rng.chance(1, 3) {
        true => g.constant(data(rng, stored, &of_w, false)),
        false => input("w", stored, of_w),
    };
    if turned {
        w = w.t();
    }
    if stored != dtype {
        w = w.cast(dtype);
    }
    match rng.below(4) {
        0 => x = &x + input("shift", dtype, vec![k]),
        1 => w = &w * input("scale", dtype, vec![n]),
        _ => {}
    }
    let mut y = x.matmul(&w);
    y = match rng.below(5) {
        0 => y + input("bias", dtype, vec![n]),
        1 => y.relu(),
        2 if sizes.is_empty() => &y + input("residual", dtype, shape([m, n])),
        3 => y.softmax(-1),
        _ => y,
    };
    g.output("y", &y);
    (g, inputs, sizes)
}

#[test]
fn few_rows_match_the_interpreter_whatever_is_before_and_behind() {
    for seed in seeds(0..160) {
        let mut rng = Rng::new(seed);
        let (g, declared, sizes) = recorded(&mut rng);
        let odd = rng.chance(1, 4);
        let inputs: Vec<HostTensor> = declared
            .iter()
            .map(|(dtype, shape)| data(&mut rng, *dtype, shape, odd))
            .collect();
        let graph = g.finish().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let given: Vec<Input<'_>> = inputs.iter().map(Input::from).collect();
        let run = |threads: usize| {
            compiled(&g, threads).run(&given).expect("it runs")["y"]
                .bytes()
                .to_vec()
        };
        assert!(
            run(1) == run(3),
            "seed {seed}: one thread and three differ, {sizes:?}\n{graph}"
        );
        assert_right(&g, inputs.clone(), 1, &format!("seed {seed}"));
    }
}

/// A decoder's matrices, with columns that lie together: a product is one step with what follows it, and packs nothing of the matrix, for it
/// has memory for a copy of the rows alone.
#[test]
fn few_rows_by_columns_that_lie_together_pack_nothing() {
    for (rows, k) in [(2usize, 768usize), (4, 768), (7, 400), (16, 768)] {
        for threads in [1, 2] {
            let g = Graph::new("layer");
            let x = g.input("x", DType::F32, [rows, k]);
            let w = g.input("w", DType::F32, [1000usize, k]);
            let bias = g.input("bias", DType::F32, [1000usize]);
            g.output("y", &(x.matmul(&w.t()) + bias).relu());
            let e = compiled(&g, threads);
            let plan = e.plan();
            let [Step::Gemm(product)] = &plan.steps[..] else {
                panic!("one step: {plan}");
            };
            assert!(product.epilogue.is_some(), "{plan}");
            let mut rng = Rng::new(1);
            let given =
                [[rows, k].to_vec(), [1000, k].to_vec(), vec![1000]].map(|s| data(&mut rng, DType::F32, &s, false));
            let given: Vec<Input<'_>> = given.iter().map(Input::from).collect();
            let need = e.memory(&given).expect("it fits");
            let cfg = format!("{rows} rows of {k}, {threads} threads: {need:?}");
            assert_eq!((need.arena, need.kept), (0, 0), "{cfg}");
            let copies = threads * (rows * k * DType::F32.bytes());
            assert!(need.scratch as usize <= copies, "{copies} bytes are enough for {cfg}");
        }
    }
}

/// A row times a constant matrix that lies by columns: the matrix is turned once, in blocks of columns that every call walks line by line, where the
/// machine does not stream lines; so it is in a loop. One that is read elsewhere as well is not held twice.
/// Weights that no second cache holds, in panels: each row of a product has the same bits whatever rows are beside it, on one thread and on two.
#[test]
fn rows_beside_others_have_the_same_bits_where_weights_come_from_afar() {
    let (k, n) = (600, 2176 + 24);
    let mut rng = Rng::new(31);
    let w = data(&mut rng, DType::F32, &[k, n], false);
    let x = data(&mut rng, DType::F32, &[333, k], false);
    let values = x.as_slice::<f32>().unwrap();
    let bits = |rows: usize, threads: usize| -> Vec<u32> {
        let g = Graph::new("rows");
        let y = g.input("x", DType::F32, [rows, k]).matmul(&g.constant(&w)).relu();
        g.output("y", &y);
        let part = HostTensor::from_slice(&[rows, k], &values[..rows * k]).unwrap();
        let found = compiled(&g, threads).run(&[(&part).into()]).unwrap();
        let found = found[0].to_host();
        found.as_slice::<f32>().unwrap().iter().map(|v| v.to_bits()).collect()
    };
    let all = bits(333, 1);
    for rows in [2, 3, 6, 7, 13, 16, 31, 48, 64, 65, 96] {
        for threads in [1, 2] {
            assert!(
                bits(rows, threads) == all[..rows * n],
                "{rows} rows on {threads} threads"
            );
        }
    }
    let g = Graph::new("rows");
    let y = g.input("x", DType::F32, [5usize, k]).matmul(&g.constant(&w)).relu();
    g.output("y", &y);
    let part = HostTensor::from_slice(&[5, k], &values[..5 * k]).unwrap();
    assert_right(&g, vec![part], 2, "five rows");
}

#[test]
fn a_constant_matrix_is_turned_for_one_row() {
    let (k, n) = (160usize, 640usize);
    let mut rng = Rng::new(3);
    let weights = data(&mut rng, DType::F32, &[n, k], false);
    let recorded = |again: bool, in_loop: bool| {
        let g = Graph::new("row");
        let x = g.input("x", DType::F32, [1, k]);
        let w = g.constant(&weights);
        let product = |x: &Tensor, w: &Tensor| x.matmul(&w.t()).tanh();
        let y = match in_loop {
            true => g.repeat(3).carry(&x).record(|i| {
                let y = product(&i.carried[0], &i.capture(&w));
                vec![y.narrow(-1, 0, k as i64)]
            })[0]
                .clone(),
            false => product(&x, &w),
        };
        g.output("y", &y);
        if again {
            g.output("w", &w.sum(0));
        }
        g
    };
    for (again, in_loop) in [(false, false), (true, false), (false, true)] {
        let g = recorded(again, in_loop);
        let e = compiled(&g, 1);
        let columns = e.explain().to_string().contains("tiles of 16 columns");
        assert_eq!(columns, !again && !e.target().streams_lines, "{again} {in_loop}");
        let inputs = vec![data(&mut rng, DType::F32, &[1, k], false)];
        assert_right(&g, inputs, 2, &format!("{again} {in_loop}"));
    }
}

/// A product of one row whose columns are as many as a tile's, and behind it a sum over rows, of which there is one: that has no loop of its own.
#[test]
fn a_sum_over_the_one_row_of_a_product_is_right() {
    for n in [8usize, 16, 32, 48] {
        for k in [1usize, 2, 5, 64] {
            for columns in [1usize, 3] {
                let mut rng = Rng::new((n * k + columns) as u64);
                let g = Graph::new("row");
                let a = g.input("a", DType::F32, [1, k]);
                let b = g.input("b", DType::F32, [k, n]);
                let c = g.constant(data(&mut rng, DType::F32, &[n, columns], false));
                g.output("y", &a.matmul(&b).matmul(&c).sum(0));
                g.output("z", &a.matmul(&b).sum(0).matmul(&c));
                let inputs = [[1, k], [k, n]].map(|s| data(&mut rng, DType::F32, &s, false)).to_vec();
                assert_right(&g, inputs, 2, &format!("{n} {k} {columns}"));
            }
        }
    }
}

/// What scales each channel of an image, as a product of one row computes it, is a kernel of its own that walks the matrix line by line where it is
/// turned: in loops over images each addend would lie a line from the last.
#[test]
fn scales_of_channels_are_summed_beside_the_image() {
    let (k, n) = (168usize, 672usize);
    let mut rng = Rng::new(7);
    let weights = data(&mut rng, DType::F32, &[n, k], false);
    let g = Graph::new("scales");
    let x = g.input("x", DType::F32, [1, k]);
    let image = g.input("image", DType::F32, [n, 49]);
    let scales = x.matmul(&g.constant(&weights).t()).reshape([n, 1]);
    g.output("y", &(image * scales.sigmoid()));
    let e = compiled(&g, 2);
    let explained = e.explain().to_string();
    let apart = explained.contains("tiles of 16 columns");
    assert_eq!(apart, !e.target().streams_lines, "{explained}");
    let inputs = [vec![1, k], vec![n, 49]]
        .map(|s| data(&mut rng, DType::F32, &s, false))
        .to_vec();
    assert_right(&g, inputs, 2, "scales");
}
