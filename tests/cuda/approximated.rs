//! Functions that a device approximates where that is allowed: within the errors that are stated, of all numbers of 16 bits and of f32 of every
//! size, and what is infinite or no number as it is.

use tlc::{CompileOptions, Device, HostTensor, Precision, Scalar, compile_ir};
use tlc_ir::DType;
use tlc_ir::interp::{self, interpret, interpret_with_bounds};
use tlc_ir::rng::Rng;
use tlc_ir::text::{no_data, parse_graph};

use crate::child::simulated;
use crate::states::compare_all;

#[test]
fn approximations_are_as_near_as_is_stated() {
    drop(simulated("approximated::children::functions", &[]));
}

mod children {
    use super::*;

    /// Every number of 16 bits; of f32 those at the ends of what is normal, and others of every size.
    fn operand(dtype: DType, seed: u64) -> HostTensor {
        let n = 1 << 16;
        let mut rng = Rng::new(seed);
        let mut x = HostTensor::zeros(dtype, &[n]).expect("a tensor");
        let ends = [
            0.0,
            f32::INFINITY,
            f32::NAN,
            f32::MAX,
            f32::MIN_POSITIVE,
            1e-45,
            1.0,
            88.72,
            88.73,
            87.3,
            103.97,
            127.99,
        ];
        for at in 0..n {
            let bits = match (dtype, at) {
                (DType::F32, 0..24) => u64::from((ends[at / 2] * [1.0, -1.0][at % 2]).to_bits()),
                // Half of them of a size that functions have no end of their own for.
                (DType::F32, _) if at % 2 == 0 => u64::from(((rng.bits() % 2_000_001) as f32 / 5e4 - 20.0).to_bits()),
                (DType::F32, _) => rng.bits() & 0xffff_ffff,
                // Each once, of two operands each with another of the other.
                _ => (at as u64).wrapping_mul(2 * seed + 1) & 0xffff,
            };
            x.set(at, Scalar::from_bits(dtype, bits));
        }
        x
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn functions() {
        let names = ["exp", "exp2", "log", "log2", "sqrt", "rsqrt", "tanh", "erf", "sin"];
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let t = dtype.name();
            let mut text =
                format!("graph @functions(%x: {t}[65536], %y: {t}[65536]) {{\n  %0 = div %x, %y : {t}[65536]\n");
            let mut outputs = "%0".to_string();
            for (k, name) in names.iter().enumerate() {
                let k = k + 1;
                text += &format!("  %{k} = {name} %x : {t}[65536]\n");
                outputs += &format!(", %{k}");
            }
            // What several of them make: 1 / (1 + e^-x).
            text += &format!(
                "  %10 = neg %x : {t}[65536]\n  %11 = exp %10 : {t}[65536]\n  %12 = const 1 : {t}[]\n  %13 = expand %12 : {t}[65536]\n  \
                 %14 = add %11, %13 : {t}[65536]\n  %15 = div %13, %14 : {t}[65536]\n  return {outputs}, %15\n}}"
            );
            let graph = parse_graph(&text, &mut no_data).unwrap_or_else(|e| panic!("{e:?}\n{text}"));
            let inputs = [operand(dtype, 1), operand(dtype, 77)];
            let interpreted = interp::Options {
                precision: Precision::Fast,
                ..interp::Options::default()
            };
            let options = CompileOptions {
                device: Device::cuda(0),
                precision: Precision::Fast,
                ..CompileOptions::default()
            };
            let executable = compile_ir(&graph, &options).expect("an executable");
            let given: Vec<tlc::Input<'_>> = inputs.iter().map(Into::into).collect();
            let found = executable.run(&given).expect("results");
            let found: Vec<HostTensor> = found.iter().map(|o| o.to_host()).collect();
            let exact = interpret(&graph, &inputs, &interpreted).expect("results");
            let bounded = interpret_with_bounds(&graph, &inputs, &interpreted).expect("bounds");
            compare_all(&found, &exact, &bounded).unwrap_or_else(|e| panic!("{t}: {e}"));
            if dtype == DType::F32 {
                for (k, name) in names.iter().enumerate() {
                    near(name, &inputs[0], &found[k + 1]);
                }
            }
        }
    }

    /// Compares what is of ordinary size with the standard library's functions of f64.
    fn near(name: &str, x: &HostTensor, found: &HostTensor) {
        let mut compared = 0;
        for at in 0..x.len() {
            let x = x.get(at).as_f64();
            if !(1e-3..60.0).contains(&x.abs()) {
                continue;
            }
            let (wanted, off): (f64, f64) = match name {
                "exp" => (x.exp(), x.exp() * 2e-5),
                "exp2" => (x.exp2(), x.exp2() * 1e-6),
                "log" if x > 0.0 => (x.ln(), 1e-6 * (1.0 + x.ln().abs())),
                "log2" if x > 0.0 => (x.log2(), 1e-6 * (1.0 + x.log2().abs())),
                "sqrt" if x > 0.0 => (x.sqrt(), 1e-6 * x.sqrt()),
                "rsqrt" if x > 0.0 => (1.0 / x.sqrt(), 1e-6 / x.sqrt()),
                "tanh" => (x.tanh(), 2e-6),
                _ => continue,
            };
            let found = found.get(at).as_f64();
            assert!(
                (found - wanted).abs() <= off,
                "{name} of {x:e} is {found:e}, expected {wanted:e}"
            );
            compared += 1;
        }
        assert!(
            compared > 10_000 || matches!(name, "erf" | "sin"),
            "{name}: {compared} compared"
        );
    }
}
