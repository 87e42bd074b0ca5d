//! Positions of extrema on a device: what is not a number, infinities, zeros of both signs and elements that are alike, where threads of a
//! warp, warps of a block and threads of one column each have some of them.

use tlc::{CompileOptions, Device, HostTensor, Scalar, compile_ir};
use tlc_ir::DType;
use tlc_ir::interp::{Options, interpret};
use tlc_ir::text::{no_data, parse_graph};

use crate::child::simulated;

#[test]
fn positions_of_extrema_are_the_first_ones() {
    drop(simulated("extrema::children::positions", &[]));
}

mod children {
    use super::*;

    /// An element of a row that is all alike but for a few.
    fn element(row: usize, k: usize, n: usize) -> f64 {
        let special = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 7.0];
        // Rows of one value alone, of two special ones apart, and of numbers that recur.
        match row % 8 {
            r @ 0..=3 => special[r],
            4 if k % 29 == 5 => special[row / 8 % 5],
            5 if k + 2 >= n => special[row / 8 % 5],
            6 => [0.0, -0.0][k % 2],
            7 => ((k * 37 + row) % 101) as f64 - 50.0,
            _ => 1.0,
        }
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn positions() {
        for (rows, n) in [(40, 1), (40, 33), (40, 130), (40, 1024), (4096, 256)] {
            for dtype in [DType::F32, DType::F16, DType::I8] {
                let name = dtype.name();
                let text = format!(
                    "graph @g(%x: {name}[{rows}, {n}]) {{
                       %0 = reduce argmax %x {{axes=[1]}} : i64[{rows}]
                       %1 = reduce argmin %x {{axes=[1]}} : i64[{rows}]
                       %2 = reduce argmax %x {{axes=[0]}} : i64[{n}]
                       return %0, %1, %2
                     }}"
                );
                let graph = parse_graph(&text, &mut no_data).unwrap_or_else(|e| panic!("{e:?}"));
                let mut x = HostTensor::zeros(dtype, &[rows, n]).expect("a tensor");
                for at in 0..rows * n {
                    x.set(at, Scalar::from_f64(dtype, element(at / n, at % n, n)));
                }
                let wanted = interpret(&graph, std::slice::from_ref(&x), &Options::default()).expect("results");
                let options = CompileOptions {
                    device: Device::cuda(0),
                    ..CompileOptions::default()
                };
                let executable = compile_ir(&graph, &options).expect("an executable");
                let found = executable.run(&[(&x).into()]).expect("results");
                for (found, wanted) in found.iter().zip(&wanted) {
                    assert_eq!(found.to_host().bytes(), wanted.bytes(), "{name}[{rows}, {n}]");
                }
            }
        }
    }
}
