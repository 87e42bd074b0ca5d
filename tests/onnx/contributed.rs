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
