//! The largest of windows over bytes: against the graph interpreter, to the bit, for any stride, dilation and padding, on one thread and more, whether sizes are
//! known when compiled or not; and in lanes where machines have them.
//!
//! `TLC_SEEDS=from..to` runs other seeds.

use tlc::{CompileOptions, DType, Dim, Graph, HostTensor, Pool, Scalar, Specialize, compile_ir};
use tlc_codegen::wide::Level;
use tlc_ir::interp::{self, interpret};
use tlc_ir::kernel::{Bind, Stmt};
use tlc_ir::rng::Rng;
use tlc_ir::testgen::seeds;

fn bytes(dtype: DType, shape: &[usize], rng: &mut Rng) -> HostTensor {
    let mut out = HostTensor::zeros(dtype, shape).unwrap();
    for i in 0..shape.iter().product() {
        // Often among the smallest, which padding must not be taken for.
        let bits = rng.bits();
        let byte = if bits & 0x300 == 0 { bits & 0x81 } else { bits & 0xff };
        out.set(i, Scalar::from_bits(dtype, byte));
    }
    out
}

#[test]
fn random_pools_of_bytes_are_right_to_the_bit() {
    for seed in seeds(0..150) {
        let mut rng = Rng::new(seed);
        let dtype = rng.pick(&[DType::U8, DType::I8]);
        let size = [0, 1].map(|_| rng.pick(&[1usize, 2, 3, 3, 5]));
        let (stride, dilation) = (rng.pick(&[1usize, 1, 2, 2, 3]), rng.pick(&[1usize, 1, 2]));
        let padding = size.map(|n| rng.pick(&[0, n / 2]));
        let sides = [0, 1].map(|_| rng.pick(&[9usize, 14, 17, 28, 33, 70]));
        let shape = [
            rng.pick(&[0usize, 1, 1, 2]),
            rng.pick(&[1usize, 3, 16, 40]),
            sides[0],
            sides[1],
        ];
        let symbolic = rng.chance(40, 100);
        let g = Graph::new("pool");
        let mut dims: Vec<Dim> = shape.iter().map(|&d| Dim::from(d)).collect();
        if symbolic {
            dims[0] = (&g.symbol("n", 0..=4)).into();
            dims[3] = (&g.symbol("w", 9..=100)).into();
        }
        let x = g.input("x", dtype, dims);
        let of = match rng.chance(30, 100) {
            true => (x.cast(DType::F32) * 0.7).round().cast(dtype),
            false => x,
        };
        let pool = Pool::new(size).stride(stride).padding(padding).dilation(dilation);
        let y = of.max_pool(&pool);
        let y = match rng.chance(30, 100) {
            true => y.cast(DType::F32) * 0.5,
            false => y,
        };
        g.output("y", &y);
        let graph = g.finish().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let x = bytes(dtype, &shape, &mut rng);
        let expected = interpret(&graph, std::slice::from_ref(&x), &interp::Options::default()).unwrap();
        for threads in [1, 3] {
            let options = CompileOptions {
                threads: Some(threads),
                specialize: Specialize::Never,
                ..CompileOptions::default()
            };
            let e = compile_ir(&graph, &options).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            let found = e.run(&[(&x).into()]).unwrap_or_else(|e| panic!("seed {seed}: {e}"))[0].to_host();
            assert_eq!(found.shape(), expected[0].shape(), "seed {seed}");
            for i in 0..found.len() {
                let what = || {
                    format!(
                        "seed {seed}: {shape:?} of {dtype}, {size:?} by {stride}, {i}\n{}",
                        e.explain()
                    )
                };
                assert_eq!(found.get(i), expected[0].get(i), "{}", what());
            }
        }
    }
}

/// The pooling of a residual network, in bytes.
#[test]
fn windows_over_bytes_run_in_lanes() {
    if tlc_runtime::cpu::level::wide() != Some(Level::Avx512) {
        return println!("SKIP: lanes do not load every other byte here");
    }
    for stride in [1, 2] {
        let g = Graph::new("pool");
        let x = g.input("x", DType::U8, [1usize, 64, 56, 56]);
        g.output("y", &x.max_pool(&Pool::new([3, 3]).stride(stride).padding([1, 1])));
        let e = compile_ir(&g.finish().unwrap(), &CompileOptions::default()).unwrap();
        let in_lanes = |s: &Stmt| matches!(s, Stmt::Loop { bind: Bind::Lanes, .. });
        let plan = e.plan();
        let all = plan.kernels.iter().all(|k| k.statements().any(in_lanes));
        assert!(all, "stride {stride}\n{}", e.explain());
    }
}
