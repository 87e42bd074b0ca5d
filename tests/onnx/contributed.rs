//! Operators of the domain `com.microsoft`, beside what ONNX Runtime 1.32.0 computed for the same operands, or, of those that its CPU provider does not have,
//! what their formulas give in f64: `contributed.txt`, which `contributed.py` writes.

use tlc::onnx::{ImportOptions, import};
use tlc::{CompileOptions, HostTensor, compile_ir};
use tlc_ir::{DType, Scalar};

use crate::proto::*;
use crate::quantizer::{element, initializer};

const RECORDED: &str = include_str!("contributed.txt");

/// A node with its operands and results.
struct Case {
    text: &'static str,
    attributes: Vec<(&'static str, A)>,
    operands: Vec<(&'static str, HostTensor)>,
    results: Vec<HostTensor>,
}

/// `[1,2]`, `3`, `0.5` or a word.
fn setting(text: &'static str) -> A {
    match (text.strip_prefix('['), text.parse(), text.parse()) {
        (Some(list), _, _) => A::Is(
            list.trim_end_matches(']')
                .split(',')
                .map(|n| n.parse().unwrap())
                .collect(),
        ),
        (None, Ok(whole), _) => A::I(whole),
        (None, _, Ok(number)) => A::F(number),
        _ => A::T(text),
    }
}

/// A name, a type, extents and elements.
fn tensor(line: &'static str) -> (&'static str, HostTensor) {
    let mut words = line.split(' ');
    let mut word = || words.next().expect(line);
    let (name, dtype, extents) = (word(), word(), word());
    let dtype: DType = dtype.parse().expect(line);
    let extents: Vec<usize> = match extents {
        "-" => vec![],
        some => some.split('x').map(|n| n.parse().unwrap()).collect(),
    };
    let mut t = HostTensor::zeros(dtype, &extents).unwrap();
    for (i, v) in words.enumerate() {
        t.set(i, Scalar::from_f64(dtype, v.parse().expect(line)));
    }
    (name, t)
}

fn recorded() -> Vec<Case> {
    let mut all: Vec<Case> = vec![];
    for line in RECORDED.lines() {
        if let Some((text, settings)) = line.split_once(" |") {
            let attributes = settings
                .split_whitespace()
                .map(|s| s.split_once('=').unwrap())
                .map(|(name, value)| (name, setting(value)))
                .collect();
            all.push(Case {
                text,
                attributes,
                operands: vec![],
                results: vec![],
            });
            continue;
        }
        let (case, (name, t)) = (all.last_mut().unwrap(), tensor(line));
        match name.starts_with('y') {
            true => case.results.push(t),
            false => case.operands.push((name, t)),
        }
    }
    all
}

/// The model, and the operands that each call brings: those whose names begin with `x`.
fn model_of(text: &str, attributes: &[(&str, A)], operands: &[(&str, HostTensor)]) -> (Vec<u8>, Vec<HostTensor>) {
    let (given, constants): (Vec<_>, Vec<_>) = operands.iter().partition(|(name, _)| name.starts_with('x'));
    let input = |(name, t): &&(&str, HostTensor)| {
        let dims: Vec<D> = t.shape().iter().map(|&d| D::N(d as i64)).collect();
        value(name, element(t.dtype()), &dims)
    };
    let outputs = text.split(" -> ").nth(1).unwrap().split_whitespace().map(result);
    let graph = graph(
        vec![op(text, attributes).bytes(7, "com.microsoft")],
        constants.iter().map(|(name, t)| initializer(name, t)).collect(),
        given.iter().map(input).collect(),
        outputs.collect(),
    );
    let bytes = Message::default()
        .int(1, 8)
        .message(7, graph)
        .message(8, opset("", 17))
        .message(8, opset("com.microsoft", 1))
        .0;
    (bytes, given.into_iter().map(|(_, t)| t.clone()).collect())
}

#[test]
fn nodes_are_as_recorded() {
    let cases = recorded();
    assert!(cases.len() > 100, "{}", cases.len());
    for Case {
        text,
        attributes,
        operands,
        results,
    } in cases
    {
        let (bytes, given) = model_of(text, &attributes, &operands);
        let text = format!("{text} {attributes:?}");
        let imported = import(&bytes, &ImportOptions::default()).unwrap_or_else(|e| panic!("{text}: {e}"));
        let e = compile_ir(&imported.graph, &CompileOptions::default()).unwrap_or_else(|e| panic!("{text}: {e}"));
        let inputs: Vec<_> = given.iter().map(Into::into).collect();
        let found = e.run(&inputs).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(found.len(), results.len(), "{text}");
        for (found, expected) in found.iter().map(|t| t.to_host()).zip(results) {
            let dtype = expected.dtype();
            assert_eq!((found.shape(), found.dtype()), (expected.shape(), dtype), "{text}");
            let number = |t: &HostTensor, i: usize| t.get(i).as_f64();
            let largest = (0..expected.len()).fold(0f64, |n, i| n.max(number(&expected, i).abs()));
            let most = match dtype {
                d if d.is_float() => 1e-4 * (1.0 + largest),
                // A byte that a float is rounded to, near the middle between two.
                DType::U8 | DType::I8 if text.starts_with('Q') => 1.0,
                _ => 0.0,
            };
            for i in 0..found.len() {
                let (v, of) = (number(&found, i), number(&expected, i));
                assert!((v - of).abs() <= most, "{text}: {i}: {v} for {of}");
            }
        }
    }
}

/// A node, its attributes, and what its refusal says.
type Refused = (&'static str, Vec<(&'static str, A)>, &'static str);

#[test]
fn other_nodes_are_refused() {
    let floats = |shape: &[usize]| HostTensor::zeros(DType::F32, shape).unwrap();
    let whole = |shape: &[usize], numbers: &[i32]| HostTensor::from_slice(shape, numbers).unwrap();
    let bytes = |shape: &[usize]| HostTensor::zeros(DType::U8, shape).unwrap();
    let heads = || ("num_heads", A::I(2));
    let of_groups = |groups: i64, activation: i64| vec![("groups", A::I(groups)), ("activation", A::I(activation))];
    let of_bits = |kind: i64| {
        let sizes = [("K", 3), ("N", 2), ("block_size", 16), ("quant_type", kind)];
        sizes.map(|(name, n)| (name, A::I(n))).to_vec()
    };
    let (shared, fused) = ("past_present_share_buffer", "swiglu_fusion");
    let cases: [Refused; 35] = [
        (
            "QAttention x_bytes c_bytes c_four c_one c_one -> y",
            vec![heads()],
            "weights of 4 columns; expected a multiple of 3",
        ),
        (
            "QAttention x_bytes c_one c_six c_one c_one -> y",
            vec![heads()],
            "weights of rank 0",
        ),
        (
            "QAttention x_bytes c_bytes c_six c_six c_one -> y",
            vec![heads()],
            "expected one number",
        ),
        (
            "QAttention x_bytes c_bytes c_six c_one c_one -> y",
            vec![heads(), (shared, A::I(1))],
            "expected past_present_share_buffer of 0",
        ),
        (
            "DecoderMaskedMultiHeadAttention x x x _ _ _ _ _ _ c_ints -> y",
            vec![heads()],
            "several beams",
        ),
        (
            "DecoderMaskedMultiHeadAttention x -> y",
            vec![heads()],
            "expected a key and a value",
        ),
        (
            "DecoderMaskedMultiHeadAttention x x x -> y",
            vec![heads(), ("output_qk", A::I(1))],
            "expected output_qk of 0",
        ),
        (
            "MoE x c_six c_six _ c_six -> y",
            vec![],
            "scores of rank 1 and weights of rank 1",
        ),
        (
            "MoE c_grid c_grid c_cube _ c_cube -> y",
            vec![("k", A::I(4))],
            "k of 4 for 3 experts",
        ),
        (
            "MoE c_grid c_grid c_cube _ c_cube -> y",
            vec![("activation_type", A::T("geglu"))],
            "the activation `geglu`",
        ),
        (
            "MoE c_grid c_grid c_cube _ c_cube -> y",
            vec![("activation_type", A::T("swiglu")), (fused, A::I(0))],
            "swiglu_fusion 0 without a third product",
        ),
        (
            "MoE c_grid c_grid c_cube _ c_cube _ c_cube -> y",
            vec![("activation_type", A::T("swiglu")), (fused, A::I(1))],
            "a third product beside one of gates and values",
        ),
        (
            "QMoE c_grid c_grid c_bytes c_one _ c_bytes c_one _ -> y",
            vec![],
            "weights of 2 axes; expected 3",
        ),
        (
            "QMoE c_grid c_grid c_codes3 c_one _ c_codes3 c_one _ -> y",
            vec![],
            "scales of f32[]; expected 6 times 1",
        ),
        (
            "QMoE c_grid c_grid c_codes3 c_six _ c_codes3 c_six _ -> y",
            vec![("quant_type", A::T("fp8"))],
            "quant_type fp8; expected int",
        ),
        ("GroupNorm x c_six c_six -> y", of_groups(2, 0), "groups do not divide"),
        (
            "GroupNorm x c_three c_three -> y",
            of_groups(1, 2),
            "activation 2; expected 0 or 1",
        ),
        (
            "GroupNorm c_grid c_six c_six -> y",
            of_groups(1, 0),
            "rank 2; expected at least 3",
        ),
        (
            "SkipGroupNorm x c_six c_six c_six -> y",
            of_groups(1, 0),
            "a skip of rank 1; expected 2 or 3",
        ),
        (
            "BiasSplitGelu x c_six -> y",
            vec![],
            "expected an even number of elements",
        ),
        (
            "NhwcMaxPool c_grid -> y",
            vec![("kernel_shape", A::Is(vec![2]))],
            "rank 2; expected at least 3",
        ),
        ("NhwcConv c_six c_six -> y", vec![], "rank 1; expected at least 3"),
        (
            "MatMulBnb4 x c_codes c_one -> y",
            of_bits(2),
            "quant_type 2; expected 0 or 1",
        ),
        (
            "MatMulBnb4 x c_codes c_six -> y",
            of_bits(1),
            "scales of f32[6]; expected 1",
        ),
        ("MatMulBnb4 x c_bytes c_one -> y", of_bits(1), "expected 3 of u8"),
        (
            "RelativePositionBias c_grid c_count c_count -> y",
            vec![("max_distance", A::I(8))],
            "expected 4 to 65535 buckets",
        ),
        (
            "RelativePositionBias c_table c_count c_count -> y",
            vec![("max_distance", A::I(2))],
            "max_distance 2; expected more than 2",
        ),
        (
            "RelativePositionBias c_table x_count c_count -> y",
            vec![("max_distance", A::I(8))],
            "lengths that data decides",
        ),
        (
            "GatedRelativePositionBias x c_six x c_six c_six c_one -> y",
            vec![heads()],
            "a weight of rank 1; expected 3 and 2",
        ),
        (
            "RemovePadding x c_grid -> y",
            vec![],
            "lengths of rank 2; expected 3 and 1",
        ),
        ("RestorePadding c_six c_ints -> y", vec![], "expected at least 2, and 2"),
        ("Rfft x -> y", vec![("signal_ndim", A::I(2))], "expected signal_ndim 1"),
        ("Inverse x -> y", vec![], "expected square ones of known extent"),
        (
            "CDist c_grid c_grid -> y",
            vec![("metric", A::T("cosine"))],
            "the metric `cosine`",
        ),
        ("ExpandDims x c_six -> y", vec![], "operand 1 of f32; expected integers"),
    ];
    for (text, attributes, expected) in cases {
        let operands = [
            ("x", floats(&[1, 2, 3])),
            ("x_bytes", bytes(&[1, 2, 3])),
            ("x_count", whole(&[1], &[4])),
            ("c_bytes", bytes(&[3, 4])),
            ("c_codes", bytes(&[3])),
            ("c_codes3", bytes(&[3, 2, 4])),
            ("c_count", whole(&[1], &[4])),
            ("c_cube", floats(&[3, 3, 3])),
            ("c_four", floats(&[4])),
            ("c_grid", floats(&[3, 3])),
            ("c_ints", whole(&[4], &[0; 4])),
            ("c_one", floats(&[])),
            ("c_six", floats(&[6])),
            ("c_three", floats(&[3])),
            ("c_table", floats(&[4, 2])),
        ];
        let (bytes, _) = model_of(text, &attributes, &operands);
        let error = import(&bytes, &ImportOptions::default())
            .err()
            .unwrap_or_else(|| panic!("{text} {attributes:?} is no error"))
            .to_string();
        assert!(error.contains(expected), "{text}: {error}");
        assert!(!error.contains('\n'), "{text}: {error}");
    }
}
