//! What is divided by a scale, rounded and stored as bytes: the same bytes whether the kernel divides or multiplies.
//!
//! `TLC_SEEDS=from..to` runs other seeds.

use tlc::ir::kernel::{Op, Stmt};
use tlc::{CompileOptions, DType, Executable, Graph, HostTensor, Scalar, compile_ir};
use tlc_codegen::wide::Level;
use tlc_ir::ScalarOp;
use tlc_ir::interp::{self, interpret};
use tlc_ir::rng::Rng;
use tlc_ir::testgen::seeds;

/// Whether some kernel divides.
fn divides(e: &Executable) -> bool {
    let quotient = |s: &Stmt| {
        matches!(
            s,
            Stmt::Let {
                op: Op::Map(ScalarOp::Div, _),
                ..
            }
        )
    };
    e.plan().kernels.iter().any(|k| k.statements().any(quotient))
}

/// Whether this machine's code multiplies in place of dividing.
fn multiplies() -> bool {
    tlc_runtime::cpu::level::wide().is_some_and(|level: Level| level.vector_bits() >= 256)
}

/// Integers at which quotients are about halves, and those of all sizes.
fn integers(n: usize, step: f64, rng: &mut Rng) -> HostTensor {
    let mut out = HostTensor::zeros(DType::I32, &[n]).unwrap();
    let ends = [0, 1, -1, i32::MAX, i32::MIN];
    for i in 0..n {
        let half = (rng.bits() % 600) as f64 - 299.5;
        let beside = (half * step).clamp(-2e9, 2e9) as i64 + (rng.bits() % 3) as i64 - 1;
        let v = match i {
            _ if i < ends.len() => i64::from(ends[i]),
            _ if i % 5 == 0 => i64::from(rng.bits() as i32),
            _ => beside,
        };
        out.set(i, Scalar::from_i64(DType::I32, v));
    }
    out
}

#[test]
fn bytes_are_those_of_the_quotients() {
    for seed in seeds(0..60) {
        let mut rng = Rng::new(seed);
        let n = rng.pick(&[0usize, 1, 15, 16, 17, 100, 1000]);
        let number = |rng: &mut Rng, least: i32, most: i32| {
            let exponent = least + (rng.bits() % (most - least + 1) as u64) as i32;
            (1.0 + (rng.bits() & 0xffff) as f32 / 65536.0) * 2f32.powi(exponent)
        };
        let (scale, by) = (number(&mut rng, -20, 2), number(&mut rng, -14, 6));
        let to = rng.pick(&[DType::U8, DType::I8]);
        let point = rng.pick(&[0.0f32, 0.0, 7.0, 128.0, -5.0]);
        let bias = rng.pick(&[0.0f32, 0.75, -3.0]);
        let x = integers(n, f64::from(by) / f64::from(scale), &mut rng);
        let g = Graph::new("quantized");
        let sums = g.input("x", DType::I32, n).cast(DType::F32);
        let y = ((sums * scale + bias) / by).round() + point;
        g.output("y", &y.cast(to));
        let graph = g.finish().unwrap();
        let expected = interpret(&graph, std::slice::from_ref(&x), &interp::Options::default()).unwrap();
        let e = compile_ir(&graph, &CompileOptions::default()).unwrap();
        let what = format!("seed {seed}: {n} of {scale:e} by {by:e} + {point} as {to}");
        // Of no elements nothing matters.
        if n > 0 {
            assert_eq!(divides(&e), !multiplies(), "{what}\n{}", e.explain());
        }
        let found = e.run(&[(&x).into()]).unwrap()[0].to_host();
        for i in 0..n {
            assert_eq!(found.get(i), expected[0].get(i), "{what}: {}", x.get(i));
        }
    }
}

/// Of numbers that may be infinite or none at all, and of scales that a call brings, kernels divide.
#[test]
fn what_may_be_no_number_is_divided() {
    let edges = [
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        f32::MAX,
        -0.0,
        0.0,
        1e-42,
        12.75,
        12.25,
        -3.0,
    ];
    let x = HostTensor::from_slice(&[edges.len()], &edges).unwrap();
    for (given, by) in [
        (false, 0.1f32),
        (false, -0.5),
        (false, 0.0),
        (false, f32::NAN),
        (true, 0.1),
    ] {
        let g = Graph::new("quantized");
        let input = g.input("x", DType::F32, edges.len());
        // One that is bounded where the scale is no constant.
        let x_of = if given {
            input.cast(DType::I32).cast(DType::F32)
        } else {
            input
        };
        let scale = if given {
            g.input("s", DType::F32, ())
        } else {
            g.scalar(by, DType::F32)
        };
        g.output("y", &((x_of / scale).round() + 3.0).cast(DType::U8));
        let graph = g.finish().unwrap();
        let mut inputs = vec![x.clone()];
        if given {
            inputs.push(HostTensor::from_slice(&[], &[by]).unwrap());
        }
        let expected = interpret(&graph, &inputs, &interp::Options::default()).unwrap();
        let e = compile_ir(&graph, &CompileOptions::default()).unwrap();
        assert!(divides(&e), "{by}\n{}", e.explain());
        let inputs: Vec<_> = inputs.iter().map(Into::into).collect();
        let found = e.run(&inputs).unwrap()[0].to_host();
        for (i, v) in edges.iter().enumerate() {
            assert_eq!(found.get(i), expected[0].get(i), "{v} by {by}");
        }
    }
}
