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

/// A step of training without effect: the operation, the line that recorded it and the number of the step are named, and the state stays.
#[test]
fn the_step_of_training_that_makes_a_nan_is_named() {
    use tlc::optim::Groups;
    use tlc::verify::nan::check_nan_with;
    use tlc::{Graph, State, inputs};
    let g = Graph::new("train");
    let x = g.input("x", DType::F32, [8, 4]);
    let w = g.state("w", DType::F32, [4, 3]);
    let line = line!() + 1;
    let logs = x.matmul(&w).log();
    let loss = logs.square().mean(..);
    let optimizer: Groups = "adam:lr=0.001".parse().unwrap();
    g.output("ok", &optimizer.minimize(&loss, &[("w", &w)]));
    let options = CompileOptions::default();
    let train = g.compile(&options).unwrap();
    let mut state = State::new();
    state
        .insert("w", ndarray::Array2::<f32>::from_elem((4, 3), 0.5))
        .unwrap();
    optimizer.prepare(&mut state, &["w"]).unwrap();
    let mut batch = ndarray::Array2::<f32>::ones((8, 4));
    let ok = |out: tlc::Outputs| out["ok"].as_scalar::<bool>().unwrap();
    for _ in 0..3 {
        assert!(ok(train.run_with(&mut state, &inputs![&batch]).unwrap()));
        assert!(
            check_nan_with(&train, &state, &inputs![&batch], &options)
                .unwrap()
                .nans
                .first
                .is_none()
        );
    }
    batch.row_mut(5).fill(-1.0);
    assert!(!ok(train.run_with(&mut state, &inputs![&batch]).unwrap()));
    let before: Vec<Vec<u8>> = state.iter().map(|e| e.bytes().unwrap().to_vec()).collect();
    let found = check_nan_with(&train, &state, &inputs![&batch], &options).unwrap();
    let text = found.to_string();
    assert_eq!(found.steps, [("optimizer.steps".to_string(), 3)]);
    let first = found.nans.first.unwrap();
    assert!(first.operation.ends_with(" log") && first.index[0] == 5, "{text}");
    let place = first.recorded_at.unwrap();
    assert!(place.contains(&format!("nan.rs:{line}:")), "{text}");
    assert!(
        text.starts_with("step 4 of optimizer.steps: the first NaN is made by %"),
        "{text}"
    );
    assert!(state.iter().zip(&before).all(|(e, b)| e.bytes().unwrap() == &b[..]));
    // What does not fit is refused, as by a call.
    assert!(check_nan_with(&train, &State::new(), &inputs![&batch], &options).is_err());
}
