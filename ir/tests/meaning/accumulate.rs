//! Accumulations of products.

use tlc_ir::kernel::interp::interpret;
use tlc_ir::kernel::verify::{Rule, verify};
use tlc_ir::text::{no_data, parse_module};
use tlc_ir::{DType, HostTensor, Kernel};

fn rules(kernel: &Kernel) -> Vec<Rule> {
    verify(kernel).errors.into_iter().map(|v| v.rule).collect()
}

#[test]
fn a_product_is_added_without_being_rounded_where_a_sum_of_floats_takes_two_values() {
    // (1 + e)^2 - (1 + 2 e) = e^2, which a product in f32 no longer has.
    let text = |dtype: &str, monoid: &str, second: &str| {
        format!(
            "kernel (p0: {dtype}[2] read, p1: {dtype}[2] read, p2: {dtype}[1] write) {{
  scratch r0: {dtype}[1] register
  %0: {dtype} = const 0.0
  store r0[0], %0
  for i0 in 0..2 serial {{
    %1: {dtype} = load p0[i0]
    %2: {second} = load p1[i0]
    accumulate {monoid} r0[0] with %1, %2
  }}
  %3: {dtype} = load r0[0]
  store p2[0], %3
}}
"
        )
    };
    let kernel = |text: &str| {
        let mut module = parse_module(text, &mut no_data).unwrap_or_else(|e| panic!("{}", e[0]));
        module.kernels.remove(0).1
    };
    let right = kernel(&text("f32", "add", "f32"));
    assert_eq!(rules(&right), []);
    assert_eq!(kernel(&right.to_string()).to_string(), right.to_string());
    let e = 1.0 / 4096.0f32;
    let of = |x: [f32; 2]| HostTensor::from_slice(&[2], &x).expect("a tensor");
    let mut buffers = vec![
        of([-1.0, 1.0 + e]),
        of([1.0 + 2.0 * e, 1.0 + e]),
        HostTensor::zeros(DType::F32, &[1]).expect("a tensor"),
    ];
    interpret(&right, &mut buffers, &[]).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(buffers[2].as_slice(), Some(&[e * e][..]));
    for (dtype, monoid) in [("f32", "max"), ("f32", "mul"), ("f16", "add")] {
        let wrong = kernel(&text(dtype, monoid, dtype));
        assert!(matches!(rules(&wrong)[..], [Rule::States { .. }]), "{dtype} {monoid}");
    }
    let mixed = text("f32", "add", "f64").replace("p1: f32", "p1: f64");
    assert!(matches!(rules(&kernel(&mixed))[..], [Rule::Dtype { .. }]));
}
