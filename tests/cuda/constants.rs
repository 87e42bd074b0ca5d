//! Constants on a device: nothing of the parts that sizes choose is kept from one call to the next, and what is computed of constants alone is
//! computed once, also where several kernels leave each other something for it.

use tlc::{CompileOptions, Conv, DType, Device, Dim, Graph, HostTensor, Input, Specialize, Tensor, compile_ir};
use tlc_ir::interp::{Options, interpret, interpret_with_bounds};
use tlc_ir::rng::Rng;
use tlc_ir::testgen::random_tensor;

use crate::states::compare_all;

/// The sizes that choose parts.
const MOST: i64 = 8;

/// Rows of a table and what is computed of them alone, padding that moves them, weights of products by rows and by columns, of a convolution and of attention,
/// in a type.
fn graph(dtype: DType, rng: &mut Rng) -> Graph {
    let g = Graph::new("parts");
    let n = g.symbol("n", 0..=MOST);
    let size = g.input("size", DType::F32, &n);
    let (rows, image) = (g.input("x", dtype, [5, 64]), g.input("image", dtype, [1, 24, 6, 6]));
    let mut constant = |shape: &[usize]| g.constant(random_tensor(rng, dtype, shape));
    let (table, wide, kernels) = (constant(&[40, 64]), constant(&[96, 80]), constant(&[48, 24, 3, 3]));
    let positions = table.narrow(0, &n, 5);
    g.output("rows", &(&positions + &rows));
    g.output("computed", &((&positions * 0.1).exp().sin() + &rows));
    let behind = Dim::from(MOST + 1) - &n;
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
    let keys = table.narrow(0, &n, 32);
    let scores = (&rows.matmul(&keys.t()) * 0.125).softmax(-1);
    g.output("attention", &scores.matmul(&keys));
    g.output("sums", &table.narrow(0, &n, 20).sum(0));
    g.output("size", &size.sum(..));
    g
}

/// Values of nothing but constants, too large to be folded, which take several kernels each: scans, sums and rows of long ones, products along
/// a long sum, attention to many keys.
fn in_stages(dtype: DType, rng: &mut Rng) -> Graph {
    let g = Graph::new("stages");
    let x = g.input("x", dtype, [1]);
    let mut constant = |shape: &[usize]| g.constant(random_tensor(rng, dtype, shape));
    let (line, rows, wide) = (constant(&[80_000]), constant(&[3, 50_000]), constant(&[16, 20_000]));
    let keys = constant(&[2, 4096, 32]);
    let output = |name: &str, value: &Tensor| g.output(name, &(value + &x));
    output("scan", &line.cumsum(0));
    output("scan of rows", &rows.cumsum(1));
    output("largest", &line.max(..));
    output("sum", &line.sum(..));
    output("softmax", &rows.softmax(-1));
    output("product", &wide.matmul(&wide.t()));
    let scores = (&keys.narrow(1, 0, 4).matmul(&keys.permute([0, 2, 1])) * 0.125).softmax(-1);
    output("attention", &scores.matmul(&keys));
    g
}

mod children {
    use super::*;

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn once() {
        for dtype in [DType::F32, DType::F16, DType::F64] {
            let mut rng = Rng::new(31);
            let graph = in_stages(dtype, &mut rng).finish().expect("a graph");
            let options = CompileOptions {
                device: Device::cuda(0),
                ..CompileOptions::default()
            };
            let executable = compile_ir(&graph, &options).unwrap_or_else(|e| panic!("{dtype}: {e}"));
            // What kernels that run once leave each other, and all that they compute, lives as long as the executable.
            assert!(
                executable.plan().init.len() > graph.outputs().len(),
                "{dtype}: several steps run once"
            );
            for _ in 0..2 {
                let inputs = [random_tensor(&mut rng, dtype, &[1])];
                let found = executable.run(&[(&inputs[0]).into()]).expect("it runs");
                let found: Vec<HostTensor> = found.iter().map(|o| o.to_host()).collect();
                let exact = interpret(&graph, &inputs, &Options::default()).expect("results");
                let bounded = interpret_with_bounds(&graph, &inputs, &Options::default()).expect("bounds");
                compare_all(&found, &exact, &bounded).unwrap_or_else(|e| panic!("{dtype}: {e}"));
            }
        }
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn parts() {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let mut rng = Rng::new(23);
            let g = graph(dtype, &mut rng);
            let graph = g.finish().expect("a graph");
            for specialize in [Specialize::Never, Specialize::After(2)] {
                let options = CompileOptions {
                    device: Device::cuda(0),
                    specialize,
                    ..CompileOptions::default()
                };
                let executable = g.compile(&options).expect("it compiles");
                for n in [0usize, 3, 8, 3, 3, 1, 3, 8] {
                    let shapes = [vec![n], vec![5, 64], vec![1, 24, 6, 6]];
                    let dtypes = [DType::F32, dtype, dtype];
                    let inputs: Vec<HostTensor> = (shapes.iter().zip(dtypes))
                        .map(|(shape, dtype)| random_tensor(&mut rng, dtype, shape))
                        .collect();
                    let given: Vec<Input<'_>> = inputs.iter().map(Into::into).collect();
                    let found = executable.run(&given).expect("it runs");
                    let found: Vec<HostTensor> = found.iter().map(|o| o.to_host()).collect();
                    let exact = interpret(&graph, &inputs, &Options::default()).expect("results");
                    let bounded = interpret_with_bounds(&graph, &inputs, &Options::default()).expect("bounds");
                    compare_all(&found, &exact, &bounded).unwrap_or_else(|e| panic!("{dtype} of {n}: {e}"));
                }
                executable.wait_for_specializations();
            }
        }
    }
}
