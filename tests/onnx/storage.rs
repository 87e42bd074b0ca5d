//! Models with tensors of storage types: packed elements, what moves them, and what is refused.

use tlc::onnx::{ImportOptions, import};
use tlc::{CompileOptions, DType, HostTensor, Input, Scalar, compile_ir};
use tlc_formats::ErrorKind;

use crate::proto::*;

const FLOAT8E4M3FN: i64 = 17;
const UINT4: i64 = 21;
const INT4: i64 = 22;
const FLOAT4E2M1: i64 = 23;
const UINT2: i64 = 25;
const INT2: i64 = 26;

fn newest(graph: Message) -> Vec<u8> {
    Message::default()
        .int(1, 13)
        .message(7, graph)
        .message(8, opset("", 28))
        .0
}

fn bits(dtype: DType, shape: &[usize], all: &[u8]) -> HostTensor {
    HostTensor::from_bytes(dtype, shape, all).expect("one element a byte")
}

fn run(model: &[u8], inputs: &[HostTensor]) -> Vec<HostTensor> {
    let graph = import(model, &ImportOptions::default())
        .unwrap_or_else(|e| panic!("{e}"))
        .graph;
    let executable = compile_ir(&graph, &CompileOptions::default()).expect("it compiles");
    let inputs: Vec<Input<'_>> = inputs.iter().map(Input::from).collect();
    let found = executable.run(&inputs).expect("it runs");
    found.iter().map(|o| o.to_host()).collect()
}

fn refusal(model: &[u8]) -> (ErrorKind, String) {
    let e = import(model, &ImportOptions::default()).expect_err("it is refused");
    (e.kind(), e.to_string())
}

fn header(element: i64, dims: &[i64]) -> Message {
    let m = dims.iter().fold(Message::default(), |m, &d| m.int(1, d));
    m.int(2, element).bytes(8, "w")
}

fn raw(element: i64, dims: &[i64], data: &[u8]) -> Message {
    header(element, dims).bytes(9, data)
}

fn words(element: i64, dims: &[i64], data: &[u8]) -> Message {
    data.iter().fold(header(element, dims), |m, &v| m.int(5, i64::from(v)))
}

/// The initializer `w` as f32.
fn widened(w: Message) -> Vec<u8> {
    let cast = node("Cast", "cast", &["w"], &["y"]).message(5, int_attribute("to", FLOAT));
    newest(graph(vec![cast], vec![w], vec![], vec![value("y", FLOAT, &[])]))
}

#[test]
fn elements_that_share_a_byte_lie_low_bits_first() {
    type Case<'a> = (i64, &'a [i64], &'a [u8], &'a [f32]);
    let cases: [Case<'_>; 7] = [
        (INT4, &[5], &[0x21, 0x8f, 0x07], &[1.0, 2.0, -1.0, -8.0, 7.0]),
        (UINT4, &[2, 2], &[0x21, 0x8f], &[1.0, 2.0, 15.0, 8.0]),
        (FLOAT4E2M1, &[3], &[0xf1, 0x02], &[0.5, -6.0, 1.0]),
        (INT2, &[5], &[0b11_10_01_00, 0b10], &[0.0, 1.0, -2.0, -1.0, -2.0]),
        (UINT2, &[3], &[0b00_11_01_10], &[2.0, 1.0, 3.0]),
        (INT4, &[0], &[], &[]),
        (FLOAT8E4M3FN, &[2], &[0x38, 0xfe], &[1.0, -448.0]),
    ];
    for (element, dims, data, expected) in cases {
        for w in [raw(element, dims, data), words(element, dims, data)] {
            let found = run(&widened(w), &[]);
            assert_eq!(found[0].as_slice::<f32>(), Some(expected), "{element}");
        }
    }
}

#[test]
fn bytes_that_do_not_fit_the_shape_are_refused() {
    for (element, dims, data, message) in [
        (INT4, 5, &[1, 2][..], "do not fit i4[5]; expected 3, found 2"),
        (INT4, 4, &[1, 2, 3], "do not fit i4[4]; expected 2, found 3"),
        (UINT2, 5, &[1], "do not fit u2[5]; expected 2, found 1"),
        (FLOAT8E4M3FN, 2, &[1], "do not fit f8e4m3fn[2]; expected 2, found 1"),
    ] {
        for w in [raw(element, &[dims], data), words(element, &[dims], data)] {
            let (kind, text) = refusal(&widened(w));
            assert_eq!(kind, ErrorKind::Invalid);
            assert!(text.contains(message), "{text}");
        }
    }
}

#[test]
fn what_moves_elements_takes_storage_types() {
    let nodes = vec![
        node("Identity", "a", &["x"], &["a"]),
        node("Transpose", "b", &["a"], &["b"]),
        node("Reshape", "c", &["b", "six"], &["c"]),
        node("Gather", "d", &["c", "order"], &["d"]),
        node("Concat", "e", &["d", "c"], &["e"]).message(5, int_attribute("axis", 0)),
        node("Unsqueeze", "f", &["e", "zero"], &["f"]),
        node("Expand", "g", &["f", "two"], &["g"]),
        node("Pad", "h", &["g", "pads"], &["h"]),
        node("Slice", "i", &["h", "zero", "ends", "zero"], &["y"]),
    ];
    let constants = vec![
        ints("six", &[1], &[6]),
        ints("order", &[6], &[5, 4, 3, 2, 1, 0]),
        ints("zero", &[1], &[0]),
        ints("two", &[2], &[2, 12]),
        ints("pads", &[4], &[0, 1, 0, 1]),
        ints("ends", &[1], &[1]),
    ];
    let made = |element, dtype: DType| {
        let x = value("x", element, &[D::N(2), D::N(3)]);
        let model = newest(graph(
            nodes.clone(),
            constants.clone(),
            vec![x],
            vec![value("y", element, &[])],
        ));
        let found = run(&model, &[bits(dtype, &[2, 3], &[0, 1, 2, 3, 0, 1])]);
        assert_eq!(
            found[0],
            bits(dtype, &[1, 14], &[0, 1, 2, 0, 1, 3, 0, 0, 3, 1, 0, 2, 1, 0])
        );
    };
    made(FLOAT8E4M3FN, DType::F8E4M3FN);
    made(INT4, DType::I4);
    made(UINT2, DType::U2);
    made(FLOAT4E2M1, DType::F4E2M1FN);
}

#[test]
fn bits_are_seen_as_another_type_of_as_many() {
    let cast = |from: i64, to: i64| {
        let cast = node("BitCast", "cast", &["x"], &["y"]).message(5, int_attribute("to", to));
        let x = value("x", from, &[D::N(3)]);
        newest(graph(vec![cast], vec![], vec![x], vec![value("y", to, &[])]))
    };
    let x = bits(DType::I4, &[3], &[0xf, 0x8, 1]);
    assert_eq!(run(&cast(INT4, UINT4), &[x])[0], bits(DType::U4, &[3], &[15, 8, 1]));
    let (kind, text) = refusal(&cast(INT4, FLOAT8E4M3FN));
    assert_eq!(kind, ErrorKind::Invalid);
    assert!(text.contains("i4 of 4 bits as f8e4m3fn"), "{text}");
    assert_eq!(refusal(&cast(FLOAT, INT64)).0, ErrorKind::Invalid);
}

#[test]
fn what_computes_refuses_storage_types_with_the_way_out() {
    let x = || value("x", FLOAT8E4M3FN, &[D::N(3)]);
    for op in ["Add", "Max", "Less", "Equal"] {
        let made = node(op, "n", &["x", "x"], &["y"]);
        let model = newest(graph(
            vec![made],
            vec![],
            vec![x()],
            vec![value("y", FLOAT8E4M3FN, &[])],
        ));
        let (_, text) = refusal(&model);
        assert!(text.contains("convert"), "{op}: {text}");
    }
    let mode = Message::default()
        .bytes(1, "round_mode")
        .bytes(4, "sideways")
        .int(20, 3);
    let cast = node("Cast", "cast", &["x"], &["y"])
        .message(5, int_attribute("to", FLOAT))
        .message(5, mode);
    let model = newest(graph(vec![cast], vec![], vec![x()], vec![value("y", FLOAT, &[])]));
    assert!(
        refusal(&model)
            .1
            .contains("round_mode `sideways`; expected up, down or nearest")
    );
}

#[test]
fn infinities_and_nan_are_found_in_8_bit_floats() {
    const FLOAT8E5M2: i64 = 19;
    let nodes = vec![
        node("IsNaN", "n", &["x"], &["nan"]),
        node("IsInf", "i", &["x"], &["inf"]),
        node("IsInf", "j", &["x"], &["negative"]).message(5, int_attribute("detect_positive", 0)),
    ];
    let outputs = ["nan", "inf", "negative"].map(|name| value(name, BOOL, &[]));
    let x = value("x", FLOAT8E5M2, &[D::N(5)]);
    let model = newest(graph(nodes, vec![], vec![x], outputs.to_vec()));
    let found = run(&model, &[bits(DType::F8E5M2, &[5], &[0x7b, 0x7c, 0xfc, 0x7d, 0xff])]);
    assert_eq!(found[0].bytes(), [0, 0, 0, 1, 1]);
    assert_eq!(found[1].bytes(), [0, 1, 1, 0, 0]);
    assert_eq!(found[2].bytes(), [0, 0, 1, 0, 0]);
}

#[test]
fn functions_made_of_others_keep_the_element_type() {
    // ONNX has no f32 in these.
    for (element, dtype) in [(10, DType::F16), (16, DType::BF16), (11, DType::F64)] {
        for op in [
            "Asinh",
            "Acosh",
            "Atanh",
            "Gelu",
            "Mish",
            "HardSwish",
            "Softplus",
            "Celu",
            "Selu",
            "Elu",
        ] {
            let x = value("x", element, &[D::N(3)]);
            let made = node(op, "n", &["x"], &["y"]);
            let model = newest(graph(vec![made], vec![], vec![x], vec![value("y", element, &[])]));
            let graph = import(&model, &ImportOptions::default())
                .unwrap_or_else(|e| panic!("{op}: {e}"))
                .graph;
            assert_eq!(graph.ty(graph.outputs()[0].node).dtype, dtype, "{op}");
        }
    }
}

#[test]
fn blocks_of_4_bit_weights_are_dequantized() {
    let weights = raw(INT4, &[2, 4], &[0x21, 0x43, 0x98, 0xfe]);
    let dequantize = node("DequantizeLinear", "d", &["w", "s"], &["y"])
        .message(5, int_attribute("axis", 1))
        .message(5, int_attribute("block_size", 2));
    let scales = floats("s", &[2, 2], &[1.0, 0.5, 2.0, 10.0]);
    let model = newest(graph(
        vec![dequantize],
        vec![weights, scales],
        vec![],
        vec![value("y", FLOAT, &[])],
    ));
    let found = run(&model, &[]);
    assert_eq!(
        found[0].as_slice::<f32>().expect("f32"),
        [1.0, 2.0, 1.5, 2.0, -16.0, -14.0, -20.0, -10.0]
    );
}

#[test]
fn products_of_8_bit_floats_are_quantized_again() {
    let product = node(
        "QLinearMatMul",
        "m",
        &["a", "sa", "z", "b", "sa", "z", "sy", "z"],
        &["y"],
    );
    let zero = header(FLOAT8E4M3FN, &[]).bytes(9, [0u8]);
    let mut zero = zero.0;
    // The same tensor under another name.
    let at = zero.windows(3).position(|w| w == [0x42, 1, b'w']).expect("the name");
    zero[at + 2] = b'z';
    let model = newest(graph(
        vec![product],
        vec![Message(zero), floats("sa", &[], &[0.5]), floats("sy", &[], &[2.0])],
        vec![
            value("a", FLOAT8E4M3FN, &[D::N(1), D::N(2)]),
            value("b", FLOAT8E4M3FN, &[D::N(2), D::N(1)]),
        ],
        vec![value("y", FLOAT8E4M3FN, &[])],
    ));
    let f8 = |v: f64| Scalar::from_f64(DType::F8E4M3FN, v).bits() as u8;
    let a = bits(DType::F8E4M3FN, &[1, 2], &[f8(1.5), f8(-4.0)]);
    let b = bits(DType::F8E4M3FN, &[2, 1], &[f8(3.0), f8(0.25)]);
    // (1.5 * 3 - 4 * 0.25) / 4 / 2 = 0.4375, which the type has.
    assert_eq!(run(&model, &[a, b])[0].get(0).as_f64(), 0.4375);
}
