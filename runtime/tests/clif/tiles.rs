//! Naive nests around products, taken apart, packed and contracted by directives: everything about the kernels is proven, and what
//! they compute is what the nests compute, interpreted, legalized and as machine code.

use tlc_ir::kernel::interp::interpret;
use tlc_ir::kernel::verify::{Report, verify};
use tlc_ir::kernel::{Kernel, Stmt};
use tlc_ir::{DType, Scalar};
use tlc_passes::directive::{Refusal, parse as directives};
use tlc_passes::schedule::apply;

use crate::contract::{agreed, arguments, parse, tensors};

/// Applies a text of directives.
fn scheduled(kernel: &Kernel, text: &str) -> Kernel {
    let mut kernel = kernel.clone();
    for d in directives(text).unwrap_or_else(|e| panic!("{e:?}\n{text}")) {
        apply(&mut kernel, &d).unwrap_or_else(|e| panic!("{d}: {e}\n{kernel}"));
    }
    kernel
}

/// Why the last directive of a text does not apply.
fn refusal(kernel: &Kernel, text: &str) -> Refusal {
    let mut kernel = kernel.clone();
    let mut all = directives(text).unwrap();
    let last = all.pop().unwrap();
    for d in all {
        apply(&mut kernel, &d).unwrap_or_else(|e| panic!("{d}: {e}\n{kernel}"));
    }
    let before = kernel.clone();
    let refusal = apply(&mut kernel, &last).expect_err(&format!("{last}\n{kernel}"));
    assert_eq!(kernel, before, "{last} refuses, but changes the kernel");
    refusal
}

fn contractions(kernel: &Kernel) -> usize {
    kernel.statements().filter(|s| matches!(s, Stmt::Contract(_))).count()
}

/// Schedules a nest and compares it with the nest: the same integers, and floats that are as near as their sums allow.
fn same_as_naive(naive: &Kernel, schedule: &str, symbols: &[i64]) -> Kernel {
    assert_eq!(verify(naive), Report::default(), "{naive}");
    let kernel = scheduled(naive, schedule);
    assert_eq!(verify(&kernel), Report::default(), "{kernel}");
    assert_eq!(parse(&kernel.to_string()), kernel);
    let arguments = arguments(naive, symbols, 11);
    let mut expected = tensors(naive, &arguments);
    interpret(naive, &mut expected, symbols).unwrap_or_else(|e| panic!("{e}\n{naive}"));
    let found = agreed(&kernel, symbols, &arguments);
    for (p, (e, f)) in expected.iter().zip(&found).enumerate() {
        for (i, f) in f.iter().enumerate() {
            assert!(
                near(e.get(i), *f),
                "p{p}[{i}]: {}, found {f} for {symbols:?}\n{kernel}",
                e.get(i)
            );
        }
    }
    kernel
}

fn near(a: Scalar, b: Scalar) -> bool {
    let (x, y) = (a.as_f64(), b.as_f64());
    let within = match a.dtype() {
        DType::F64 => 1e-12,
        DType::F32 => 2e-4,
        DType::F16 | DType::BF16 => 0.05,
        _ => 0.0,
    };
    a == b || (x.is_nan() && y.is_nan()) || (x - y).abs() <= within * (1.0 + x.abs())
}

const SQUARE: &str = "\
kernel (p0: f32[256] read, p1: f32[256] read, p2: f32[256] write) {
  scratch r0: f32[1] register
  for i0 in 0..16 serial {
    for i1 in 0..16 serial {
      %0: f32 = const 0.0
      store r0[0], %0
      for i2 in 0..16 serial {
        %1: f32 = load p0[16*i0 + i2]
        %2: f32 = load p1[16*i2 + i1]
        %3: f32 = mul %1, %2
        accumulate add r0[0] with %3
      }
      %4: f32 = load r0[0]
      store p2[16*i0 + i1], %4
    }
  }
}
";

#[test]
fn a_square_product_becomes_a_contraction() {
    let kernel = same_as_naive(
        &parse(SQUARE),
        "tile-sum i0 i1 i2 rows=16 columns=16 cache
         contract i5 i6 i7 rows=16 columns=16 block=4",
        &[],
    );
    assert_eq!(contractions(&kernel), 1, "{kernel}");
}
