//! Functions of a byte: those that are looked up in a table of their values have the same bits as where they are computed, of every byte, and what is
//! the byte itself again is not computed.
//!
//! `TLC_SEEDS=from..to` runs other seeds.

use tlc::ir::kernel::{Op, Stmt};
use tlc::{CompileOptions, DType, Dim, Executable, Graph, HostTensor, Scalar, Specialize, Tensor, compile_ir};
use tlc_codegen::wide::Level;
use tlc_ir::ScalarOp;
use tlc_ir::interp::{self, interpret};
use tlc_ir::rng::Rng;
use tlc_ir::testgen::seeds;

/// Whether this machine's code loads elements that data says into vectors.
fn gathers() -> bool {
    tlc_runtime::cpu::level::wide().is_some_and(|level: Level| level.vector_bits() >= 256)
}

/// Whether some kernel loads an element that data says.
fn looks_up(e: &Executable) -> bool {
    let at = |s: &Stmt| matches!(s, Stmt::Clamp { .. });
    e.plan().kernels.iter().any(|k| k.statements().any(at))
}

/// All passes but one.
fn without(pass: &str) -> Option<String> {
    let names = tlc_passes::pipeline::PASSES.iter().map(|p| p.name());
    Some(names.filter(|n| *n != pass).collect::<Vec<_>>().join(","))
}

/// Whether some kernel rounds to integers.
fn rounds(e: &Executable) -> bool {
    let round = |s: &Stmt| {
        matches!(
            s,
            Stmt::Let {
                op: Op::Map(ScalarOp::Round, _),
                ..
            }
        )
    };
    e.plan().kernels.iter().any(|k| k.statements().any(round))
}

fn compiled(graph: &tlc::ir::Graph, passes: Option<String>, threads: usize) -> Executable {
    let options = CompileOptions {
        passes,
        threads: Some(threads),
        specialize: Specialize::Never,
        ..CompileOptions::default()
    };
    compile_ir(graph, &options).unwrap_or_else(|e| panic!("{e}"))
}

/// Every byte, again and again.
fn bytes(dtype: DType, n: usize) -> HostTensor {
    let mut out = HostTensor::zeros(dtype, &[n]).unwrap();
    for i in 0..n {
        out.set(i, Scalar::from_bits(dtype, (i * 37) as u64 & 0xff));
    }
    out
}

/// Floats of bytes.
fn numbers(x: &Tensor, rng: &mut Rng) -> Tensor {
    let point = rng.pick(&[0.0f32, 128.0, -3.0, 77.0]);
    let scale = rng.pick(&[0.01f32, 0.1, 1.0, 1e-30]);
    (x.cast(DType::F32) - point) * scale
}

/// A costly function of floats, of which some have no number and infinite ones.
fn function(x: &Tensor, rng: &mut Rng) -> Tensor {
    match rng.pick(&[0, 1, 2, 3, 4, 5, 6]) {
        0 => (x / 2f32.sqrt()).erf() * x,
        1 => x.exp().sin(),
        2 => x / (1.0 + (-x).exp()).log(),
        3 => x.tanh() + x.log(),
        4 => (x * 3.0).sigmoid().sqrt().cos(),
        5 => x.gt(0.5).select(x.exp(), x.sinh()),
        _ => x.pow(3.0) + x.reciprocal().exp(),
    }
}

#[test]
fn bits_are_those_of_the_function() {
    let mut by_table = 0;
    for seed in seeds(0..120) {
        let mut rng = Rng::new(seed);
        let n = rng.pick(&[0usize, 1, 7, 1000, 1024, 1031, 4097, 9000]);
        let byte = |rng: &mut Rng| rng.pick(&[DType::U8, DType::I8]);
        let of = byte(&mut rng);
        let steps = rng.pick(&[1, 1, 2, 3]);
        let symbolic = rng.chance(40, 100);
        let g = Graph::new("function");
        let size: Dim = match symbolic {
            true => (&g.symbol("n", 0..=1 << 14)).into(),
            false => n.into(),
        };
        let input = g.input("x", of, [size]);
        // Bytes of a call, or such as follow from them.
        let mut x = match rng.chance(50, 100) {
            true => input.clone(),
            false => (&input + &input).maximum(3),
        };
        for step in 0..steps {
            let y = function(&numbers(&x, &mut rng), &mut rng);
            let y = match rng.chance(30, 100) {
                true => y * numbers(&x, &mut rng),
                false => y,
            };
            let last = step + 1 == steps;
            x = match rng.pick(&[0, 1, 2, 3]) {
                0 if last => y,
                1 if last => y.cast(DType::I32),
                2 if last => y.cast(DType::I16),
                _ => (y / 0.02).round().cast(byte(&mut rng)),
            };
            if rng.chance(20, 100) {
                g.output(&format!("also{step}"), &x);
            }
        }
        g.output("y", &x);
        let graph = g.finish().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let x = bytes(of, n);
        let threads = rng.pick(&[1, 3]);
        let (with, without) = (
            compiled(&graph, None, threads),
            compiled(&graph, without("tables"), threads),
        );
        let large = symbolic || n >= 1024;
        let what = format!("seed {seed}: {n}{} of {of}", if symbolic { ", symbolic" } else { "" });
        assert!(!looks_up(&with) || large && gathers(), "{what}\n{}", with.explain());
        assert!(!looks_up(&without), "{what}");
        by_table += usize::from(looks_up(&with));
        let [found, computed] = [&with, &without].map(|e| e.run(&[(&x).into()]).unwrap());
        let judged = interpret(&graph, std::slice::from_ref(&x), &interp::Options::default()).unwrap();
        for (output, ((found, computed), judged)) in found.iter().zip(&computed).zip(&judged).enumerate() {
            let (found, computed) = (found.to_host(), computed.to_host());
            for i in 0..n {
                let [a, b] = [found.get(i), computed.get(i)];
                let nan = |s: Scalar| s.dtype().is_float() && s.as_f64().is_nan();
                assert!(
                    a == b || nan(a) && nan(b),
                    "{what}, output {output}: {a} of {}, which is {b}",
                    x.get(i)
                );
                assert_eq!(nan(a), nan(judged.get(i)), "{what}, output {output}: {}", x.get(i));
            }
        }
    }
    assert!(!gathers() || by_table > 40, "{by_table} by a table");
}

/// A cheap function is computed, and so is what follows from more than one byte, or from a number that a call brings.
#[test]
fn what_is_no_costly_function_of_a_byte_is_computed() {
    let g = Graph::new("computed");
    let (x, y) = (g.input("x", DType::U8, 5000), g.input("y", DType::U8, 5000));
    let s = g.input("s", DType::F32, ());
    let (a, b) = (x.cast(DType::F32), y.cast(DType::F32));
    g.output("cheap", &((&a - 3.0) * 0.5).maximum(0.0));
    g.output("both", &(&a + &b).erf().exp());
    g.output("given", &(&a * &s).erf().exp());
    let e = compiled(&g.finish().unwrap(), None, 1);
    assert!(!looks_up(&e), "{}", e.explain());
}

/// Bytes that go through floats and views, with scales of all kinds and zero points at both ends.
#[test]
fn round_trips_are_left_out_where_they_change_nothing() {
    let mut left_out = 0;
    for seed in seeds(0..80) {
        let mut rng = Rng::new(seed);
        let of = rng.pick(&[DType::U8, DType::I8]);
        let (rows, columns) = (rng.pick(&[0usize, 1, 16]), rng.pick(&[1usize, 16, 100]));
        let n = rows * columns;
        let scales = [1.0f32, 0.1, 0.0078, 3e-39, 1e-45, 1e37, 3e38, f32::INFINITY, -0.5, 0.0];
        let ordinary = rng.chance(60, 100);
        let scale = match ordinary {
            true => rng.pick(&scales[..3]) * (1.0 + (rng.bits() & 0xff) as f32 / 256.0),
            false => rng.pick(&scales),
        };
        let least = if of == DType::I8 { -128 } else { 0 };
        let point = rng.pick(&[least, least + 255, least + 77]) as f32;
        let divides = rng.chance(70, 100);
        let g = Graph::new("round");
        let x = g.input("x", of, (rows, columns));
        let number = |x: &Tensor| (x.cast(DType::F32) - point) * scale;
        let byte = |x: &Tensor, scale: f32| {
            let quotient = if divides { x / scale } else { x * (1.0 / scale) };
            (quotient.round() + point).cast(of)
        };
        let trips = rng.pick(&[1, 2, 3]);
        let mut y = x.clone();
        for _ in 0..trips {
            let seen = match rng.pick(&[0, 1, 2]) {
                0 => number(&y),
                1 => number(&y).t(),
                _ => number(&y).reshape((n,)).reshape((columns, rows)),
            };
            y = byte(&seen, scale);
        }
        let other = rng.chance(20, 100);
        if other {
            y = byte(&number(&y), scale * 1.01);
        }
        g.output("y", &y);
        let graph = g.finish().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let mut given = HostTensor::zeros(of, &[rows, columns]).unwrap();
        for i in 0..n {
            given.set(i, Scalar::from_bits(of, (i * 37) as u64 & 0xff));
        }
        let e = compiled(&graph, None, 1);
        let computed = compiled(&graph, without("round-trips"), 1);
        let what = format!("seed {seed}: {rows}x{columns} of {of}, {scale:e}, {point}, {trips} trips");
        if n > 0 && ordinary && divides && !other {
            assert!(!rounds(&e), "{what}\n{}", e.explain());
            left_out += 1;
        }
        let expected = interpret(&graph, std::slice::from_ref(&given), &interp::Options::default()).unwrap();
        for e in [e, computed] {
            let found = e.run(&[(&given).into()]).unwrap()[0].to_host();
            assert_eq!(found.shape(), expected[0].shape(), "{what}");
            for i in 0..n {
                assert_eq!(found.get(i), expected[0].get(i), "{what}: element {i}\n{}", e.explain());
            }
        }
    }
    assert!(left_out > 10, "{left_out}");
}
