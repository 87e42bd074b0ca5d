//! Results do not depend on the floating-point mode of the thread that compiles and calls, which is left as it was found.

#![cfg(target_arch = "x86_64")]

use std::arch::asm;

use tlc::{CompileOptions, DType, Graph, HostTensor, inputs};

/// Subnormal numbers are taken for zero, made zero, and results are rounded up.
const OTHER: u32 = 0x1f80 | 1 << 15 | 1 << 6 | 2 << 13;
/// The register less the flags of what has occurred.
const MODE: u32 = !0x3f;

fn mode() -> u32 {
    let mut register = 0_u32;
    // SAFETY: stores four bytes in the variable.
    unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut register, options(nostack)) };
    register & MODE
}

fn set_mode(register: u32) {
    // SAFETY: no reserved bit is set, and every exception is masked; the test sets the default again before it computes anything.
    unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const register, options(nostack, readonly)) };
}

/// Elementwise kernels, sums, a product of the library and a constant that is folded, on two threads that the call makes.
fn compiled_and_run() -> Vec<Vec<u8>> {
    let g = Graph::new("mode");
    let x = g.input("x", DType::F32, (64, 64));
    let w = g.input("w", DType::F32, (64, 64));
    let tiny = g.constant(HostTensor::from_slice(&[64], &[3.0e-39_f32; 64]).expect("64 elements"));
    let folded = &tiny * 0.5;
    g.output("scaled", &(&x * 0.1));
    g.output("folded", &(&x + &folded));
    g.output("sum", &x.sum(1));
    g.output("product", &(&x * 1e-20).matmul(&(&w * 1e-20)));
    let options = CompileOptions {
        threads: Some(2),
        ..CompileOptions::default()
    };
    let executable = g.compile(&options).expect("it compiles");
    // Subnormal numbers and numbers from 1 to 2 in turns, by their bits: arithmetic would be in the mode that is tried.
    let values = |seed: u32| -> Vec<f32> {
        let exponent = |i: u32| if i.is_multiple_of(2) { 0x3f80_0000 } else { 0 };
        let bits = |i: u32| (i.wrapping_mul(seed) % 0x0080_0000) | exponent(i);
        (1..=64 * 64).map(|i| f32::from_bits(bits(i))).collect()
    };
    let (x, w) = (values(48_271), values(69_621));
    let outputs = executable.run(&inputs![&x, &w]).expect("it runs");
    outputs.iter().map(|o| o.bytes().to_vec()).collect()
}

#[test]
fn results_do_not_depend_on_the_callers_mode() {
    let expected = compiled_and_run();
    let subnormal = expected[0].chunks_exact(4).any(|b| {
        let value = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        value.is_subnormal()
    });
    assert!(subnormal, "a mode that flushes would not show");

    // Nothing is computed on this thread in the other mode but the calls themselves.
    let before = mode();
    set_mode(OTHER);
    let found = compiled_and_run();
    let after = mode();
    set_mode(before);

    assert_eq!(after, OTHER & MODE, "the mode is the caller's again");
    for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert!(found == expected, "output {at} has other bits");
    }
}
