//! Which operation makes the first NaN.

use tlc::verify::nan::check_nan;
use tlc::verify::{Case, compare};
use tlc::{CompileOptions, DType, compile_ir};
use tlc_ir::HostTensor;
use tlc_ir::interp::{Options, interpret_with_bounds};
use tlc_ir::text::parse_graph;

fn case(text: &str, inputs: Vec<HostTensor>) -> Case {
    Case {
        graph: parse_graph(text, &mut tlc_ir::text::no_data).unwrap(),
        inputs,
        symbols: vec![],
    }
}

const CHAIN: &str = "graph @g(%x: f32[4], %w: f32[4]) {
  %0 = sub %x, %w : f32[4]
  %1 = log %0 : f32[4]
  %2 = mul %1, %w : f32[4]
  %3 = exp %2 : f32[4]
  return %3 as y
}";

#[test]
fn the_operation_inside_of_a_fused_kernel_is_named() {
    let x = HostTensor::from_slice(&[4], &[2.0f32, 3.0, -1.0, 5.0]).unwrap();
    let w = HostTensor::from_slice(&[4], &[1.0f32; 4]).unwrap();
    let case = case(CHAIN, vec![x, w]);
    let executable = compile_ir(&case.graph, &CompileOptions::default()).unwrap();
    let found = check_nan(&case, &executable).unwrap();
    let first = found.first.expect("a NaN");
    assert_eq!(first.operation, "%1 log");
    assert_eq!(
        (first.index, first.operands, first.count),
        (vec![2], vec!["-2.0".to_string()], 1)
    );
    assert!(found.inputs.is_empty());
}

#[test]
fn a_nan_that_is_given_is_nobodys_fault() {
    let x = HostTensor::from_slice(&[4], &[2.0f32, f32::NAN, 4.0, 5.0]).unwrap();
    let w = HostTensor::from_slice(&[4], &[1.0f32; 4]).unwrap();
    let case = case(CHAIN, vec![x, w]);
    let executable = compile_ir(&case.graph, &CompileOptions::default()).unwrap();
    let found = check_nan(&case, &executable).unwrap();
    assert_eq!(found.inputs, [("x".to_string(), 1)]);
    assert_eq!(found.first, None);
}

#[test]
fn a_difference_is_judged_by_what_rounding_allows() {
    let x = HostTensor::from_slice(&[3], &[0.5f32, 1.5, 2.5]).unwrap();
    let one = case(
        "graph @g(%x: f32[3]) {\n  %0 = exp %x : f32[3]\n  return %0 as y\n}",
        vec![x],
    );
    let run = |case: &Case| {
        let executable = compile_ir(&case.graph, &CompileOptions::default()).unwrap();
        let inputs: Vec<_> = case.inputs.iter().map(Into::into).collect();
        let bounds = interpret_with_bounds(&case.graph, &case.inputs, &Options::default()).unwrap();
        (executable.run(&inputs).unwrap()[0].to_host(), bounds)
    };
    let wide = compare::in_float(&one, DType::F64).unwrap();
    let ((a, ea), (b, eb)) = (run(&one), run(&wide));
    assert_eq!(b.dtype(), DType::F64);
    let near = compare::difference(&a, &b, (&ea[0], &eb[0]), true).unwrap();
    assert!(near.is_within() && near.differing > 0, "{near:?}");
    let mut off = a.clone();
    off.as_mut_slice::<f32>().unwrap()[1] += 1e-4;
    let far = compare::difference(&off, &b, (&ea[0], &eb[0]), true).unwrap();
    assert_eq!((far.is_within(), far.outside), (false, 1));
    assert_eq!(far.absolute.unwrap().index, [1]);
    assert_eq!(
        compare::difference(
            &a,
            &HostTensor::zeros(DType::F32, &[2]).unwrap(),
            (&ea[0], &eb[0]),
            true
        ),
        None
    );
}
