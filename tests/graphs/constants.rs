//! Constant subgraphs: small ones fold, large ones run once per executable.

use std::sync::Arc;

use ndarray::{Array2, ArrayD};
use tlc::{CompileOptions, Conv, DType, Executable, Graph, HostTensor, Input};
use tlc_ir::plan::Storage;

const F32: DType = DType::F32;

fn compile(g: &Graph, threads: usize) -> Executable {
    let options = CompileOptions {
        threads: Some(threads),
        ..CompileOptions::default()
    };
    let e = g.compile(&options).unwrap_or_else(|e| panic!("{e}"));
    let report = tlc_ir::plan::verify::verify(e.plan());
    assert!(report.errors.is_empty(), "{:?}", report.errors);
    e
}

fn matrix(rows: usize, columns: usize) -> Array2<f32> {
    Array2::from_shape_fn((rows, columns), |(i, j)| ((i * 31 + j * 17) % 23) as f32 * 0.25 - 2.0)
}

fn host<D: ndarray::Dimension>(a: &ndarray::Array<f32, D>) -> HostTensor {
    HostTensor::from_slice(a.shape(), a.as_slice().expect("in C order")).unwrap()
}

/// Runs an executable and holds its outputs against the interpreter's.
fn agrees(e: &Executable, g: &Graph, inputs: &[HostTensor], tolerance: f64) {
    let given: Vec<Input<'_>> = inputs.iter().map(Input::from).collect();
    let expected = tlc_ir::interp::interpret(&g.finish().unwrap(), inputs, &Default::default()).unwrap();
    // The first call fills what later ones read.
    for call in 0..3 {
        for (found, expected) in e.run(&given).unwrap().iter().zip(&expected) {
            let found = found.to_host();
            for i in 0..found.len() {
                let (a, b) = (found.get(i).as_f64(), expected.get(i).as_f64());
                assert!(
                    (a - b).abs() <= tolerance * b.abs().max(1.0),
                    "call {call}, element {i}: {a}, expected {b}"
                );
            }
        }
    }
}

#[test]
fn a_constant_that_is_too_large_to_fold_is_computed_once() {
    let g = Graph::new("weights");
    let x = g.input("x", F32, [16, 256]);
    let w = g.constant(matrix(256, 256)).cast(DType::F16).cast(F32);
    g.output("y", &x.matmul(&(w.exp() * 0.01)));
    let e = compile(&g, 1);
    assert_eq!((e.plan().init.len(), e.plan().steps.len()), (1, 1), "{}", e.explain());
    assert_eq!(e.plan().persistent_bytes(), 256 * 256 * 4);
    assert!(e.explain().contains("once, in the first call"));
    assert!(e.explain().contains("kept as long as the executable: 256.0 KiB"));
    agrees(&e, &g, &[host(&matrix(16, 256))], 1e-3);
}

#[test]
fn a_permuted_or_summed_constant_is_kept() {
    let g = Graph::new("scale");
    let x = g.input("x", F32, [200, 300]);
    let w = g.constant(matrix(300, 200));
    g.output("y", &(&x * w.t() + w.sum(1)));
    let e = compile(&g, 1);
    assert_eq!(e.plan().steps.len(), 1, "{}", e.explain());
    assert_eq!(e.plan().persistent_bytes(), (300 * 200 + 300) * 4);
    agrees(&e, &g, &[host(&matrix(200, 300))], 1e-4);
}

#[test]
fn intermediates_of_kept_values_are_not_kept() {
    let g = Graph::new("product");
    let x = g.input("x", F32, [128]);
    let (a, b) = (g.constant(matrix(128, 512)), g.constant(matrix(512, 128)));
    g.output("y", &(x * (a * 0.5).exp().matmul(&b).sum(0)));
    let e = compile(&g, 1);
    let persistent = |s: &&tlc_ir::plan::Slot| s.storage == Storage::Persistent;
    assert!(e.plan().slots.iter().filter(persistent).count() >= 2, "{}", e.plan());
    assert_eq!(e.plan().persistent_bytes(), 128 * 4);
    assert_eq!(e.plan().steps.len(), 1);
}

/// However large what shows it again and again is, and whether anything else reads it.
#[test]
fn what_rows_are_scaled_by_is_computed_once_and_not_in_each() {
    let (rows, columns) = (600, 500);
    let g = Graph::new("rows");
    let x = g.input("x", F32, [rows, columns]);
    let scale = g.constant(matrix(rows, 128)).exp().sum(1) * 0.5 + 1.0;
    g.output("y", &(x * scale.reshape([rows, 1])));
    let e = compile(&g, 1);
    let launches = e.plan().steps.iter().flat_map(|s| s.launches());
    let flops: Vec<_> = launches.map(|l| l.flops.as_const()).collect();
    assert_eq!(flops, [Some((rows * columns) as i64)], "{}", e.explain());
    assert_eq!(e.plan().persistent_bytes(), (rows * 4) as u64);
    agrees(&e, &g, &[host(&matrix(rows, columns))], 1e-4);
}

#[test]
fn small_constants_fold_and_leave_nothing_to_do() {
    let g = Graph::new("small");
    let x = g.input("x", F32, [8]);
    let w = g.constant(matrix(8, 8));
    g.output("y", &(x + (w.exp() + 1.0).sum(0)));
    let e = compile(&g, 1);
    assert!(e.plan().init.is_empty());
    assert_eq!((e.plan().constants.len(), e.plan().steps.len()), (1, 1));
    assert_eq!(e.plan().constants[0].shape(), [8]);
}

#[test]
fn outputs_and_what_depends_on_sizes_are_computed_at_each_call() {
    let g = Graph::new("outputs");
    let n = g.symbol("n", 1..=64);
    let x = g.input("x", F32, (&n, 128));
    let w = g.constant(matrix(128, 128)).exp();
    g.output("w", &w);
    g.output("y", &(&x + g.constant(matrix(1, 128)).expand((&n, 128)).exp()));
    let e = compile(&g, 1);
    assert!(e.plan().init.is_empty(), "{}", e.plan());
}

#[test]
fn the_weights_of_a_convolution_are_laid_out_once() {
    let g = Graph::new("conv");
    let x = g.input("x", F32, [2, 16, 14, 14]);
    let w = ArrayD::from_shape_fn(vec![64, 16, 3, 3], |i| {
        (i[0] + i[1] * 3 + i[2] * 5 + i[3]) as f32 % 7.0 - 3.0
    });
    // Stored with the output channels last, as other programs do.
    let w = w.permuted_axes(vec![1, 2, 3, 0]).as_standard_layout().to_owned();
    let w = g.constant(&w).permute([3, 0, 1, 2]) * 2.0;
    g.output("y", &x.conv2d(&w, None, &Conv::new().padding(1)));
    let e = compile(&g, 2);
    assert!(!e.plan().init.is_empty(), "{}", e.explain());
    let x = ArrayD::from_shape_fn(vec![2, 16, 14, 14], |i| (i[1] + i[2] * 2 + i[3]) as f32 % 5.0 - 2.0);
    agrees(&e, &g, &[host(&x)], 1e-4);
}

#[test]
fn several_threads_may_make_the_first_call_at_once() {
    let g = Graph::new("race");
    let x = g.input("x", F32, [64, 256]);
    let w = g.constant(matrix(256, 256)).exp();
    g.output("y", &(x.matmul(&w) * 0.5));
    for _ in 0..20 {
        let e = Arc::new(compile(&g, 2));
        let data = host(&matrix(64, 256));
        let results: Vec<Vec<u8>> = std::thread::scope(|scope| {
            let calls: Vec<_> = (0..4)
                .map(|_| {
                    let (e, data) = (Arc::clone(&e), &data);
                    scope.spawn(move || e.run(&[Input::from(data)]).unwrap()[0].bytes().to_vec())
                })
                .collect();
            calls.into_iter().map(|c| c.join().unwrap()).collect()
        });
        assert!(results.iter().all(|r| *r == results[0]));
    }
}

#[test]
fn constant_weights_are_laid_out_once_as_the_library_reads_them() {
    for (inner, outer, transposed) in [(96, 192, true), (96, 192, false), (100, 320, true), (600, 128, false)] {
        let g = Graph::new("layer");
        let n = g.symbol("n", 0..=4096);
        let x = g.input("x", F32, [n, inner.into()]);
        let w = match transposed {
            true => g.constant(matrix(outer as usize, inner as usize)).permute([1, 0]),
            false => g.constant(matrix(inner as usize, outer as usize)),
        };
        g.output("y", &x.matmul(&w));
        let [e, two] = [1, 2].map(|threads| compile(&g, threads));
        // The copy is made in the first call, and the product is all that a call does: its result is an output.
        let counts = (e.plan().init.len(), e.plan().steps.len());
        assert_eq!(counts, (1, 1), "{}", e.explain());
        assert_eq!(e.plan().persistent_bytes(), (inner * outer * 4) as u64);
        for n in [1, 2, 7, 48, 200] {
            let x = [host(&matrix(n, inner as usize))];
            agrees(&e, &g, &x, 1e-5);
            let run = |e: &Executable| e.run(&[Input::from(&x[0])]).unwrap()[0].to_host();
            assert_eq!(run(&e), run(&two), "{n} rows of {inner} by {outer}");
        }
    }
    // Where the last block is nearly whole zeros fill it up, and what they give is left out behind the product on each of its rows; columns
    // that lack more stay where they are.
    for (columns, laid_out) in [(1000, 1), (900, 0)] {
        let g = Graph::new("labels");
        let n = g.symbol("n", 0..=4096);
        let x = g.input("x", F32, [n, 64.into()]);
        g.output("y", &x.matmul(&g.constant(matrix(64, columns))));
        let [e, two] = [1, 2].map(|threads| compile(&g, threads));
        let counts = (e.plan().init.len(), e.plan().steps.len());
        assert_eq!(counts, (laid_out, 1), "{}", e.explain());
        for n in [0, 1, 2, 7, 48] {
            let mut values = matrix(n, 64);
            let x = [host(&values)];
            agrees(&e, &g, &x, 1e-5);
            let run = |e: &Executable, x: &HostTensor| e.run(&[Input::from(x)]).unwrap()[0].to_host();
            let found = run(&e, &x[0]);
            assert_eq!(found, run(&two, &x[0]), "{n} rows by {columns}");
            // What infinity makes of the zeros is no number, and in no result: other rows are as before.
            if n > 1 {
                values.row_mut(1).fill(f32::INFINITY);
                let with = run(&e, &host(&values));
                let others = (0..found.len()).filter(|i| i / columns != 1);
                others.into_iter().for_each(|i| assert_eq!(found.get(i), with.get(i)));
                assert!((0..columns).all(|j| !with.get(columns + j).as_f64().is_finite()));
            }
        }
    }
}

/// Constants of which a size says which part is meant, or where they go: nothing of them is kept from one call to the next, in code for any sizes and in
/// versions for those that recur.
#[test]
fn parts_of_constants_that_sizes_choose_differ_from_call_to_call() {
    let g = Graph::new("parts");
    let n = g.symbol("n", 0..=8);
    let size = g.input("size", F32, &n);
    let (rows, image) = (g.input("x", F32, [5, 64]), g.input("image", F32, [1, 24, 6, 6]));
    let (table, wide) = (g.constant(matrix(40, 64)), g.constant(matrix(96, 80)));
    let kernels = g.constant(matrix(48, 24 * 9)).reshape([48, 24, 3, 3]);
    // Rows of a table, as of positions, and what is computed of them alone; padding that moves them; weights of products, by rows and by columns, and
    // of a convolution.
    let positions = table.narrow(0, &n, 5);
    g.output("rows", &(&positions + &rows));
    g.output("computed", &((&positions * 0.1).exp().sin() + &rows));
    let behind = tlc::Dim::from(9) - &n;
    let moved = table
        .narrow(0, 0, 4)
        .pad(&[(n.clone(), behind), (0.into(), 0.into())], 0.0f32);
    g.output("moved", &(&moved.narrow(0, 4, 5) + &rows));
    g.output("by rows", &rows.matmul(&wide.narrow(0, &n, 64)));
    let columns = wide.narrow(0, 0, 64).narrow(1, &n, 48);
    g.output("by columns", &rows.matmul(&columns));
    g.output("turned", &rows.narrow(1, 0, 48).matmul(&columns.t()));
    g.output("one row", &rows.narrow(0, 0, 1).matmul(&wide.narrow(0, &n, 64)));
    g.output(
        "image",
        &image.conv2d(&kernels.narrow(0, &n, 32), None, &Conv::new().padding(1)),
    );
    g.output("size", &size.sum(..));
    for threads in [1, 2] {
        let e = compile(&g, threads);
        for n in [0usize, 3, 8, 3, 1, 3] {
            let image = host(&matrix(24, 36));
            let image = HostTensor::from_slice(&[1, 24, 6, 6], image.as_slice::<f32>().unwrap()).unwrap();
            let zeros = HostTensor::from_slice(&[n], &vec![0.0f32; n]).unwrap();
            agrees(&e, &g, &[zeros, host(&matrix(5, 64)), image], 1e-4);
        }
    }
}
