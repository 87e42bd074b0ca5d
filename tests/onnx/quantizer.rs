//! Operators of the domain `com.microsoft` on bytes, beside what ONNX Runtime 1.32.0 computed for the same operands.
//!
//! Its results are recorded: a byte may differ by one where a value is near the middle between two bytes, for it rounds scales in another order.

use tlc::onnx::{ImportOptions, import};
use tlc::{CompileOptions, HostTensor, compile_ir};
use tlc_ir::DType;
use tlc_ir::tensor::Element;

use crate::proto::*;

fn tensor<T: Element>(shape: &[usize], data: &[T]) -> HostTensor {
    HostTensor::from_slice(shape, data).unwrap()
}

fn element(dtype: DType) -> i64 {
    match dtype {
        DType::F32 => FLOAT,
        DType::U8 => 2,
        DType::I8 => 3,
        DType::I32 => 6,
        other => panic!("{other}"),
    }
}

fn initializer(name: &str, of: &HostTensor) -> Message {
    let m = (of.shape().iter()).fold(Message::default(), |m, &d| m.int(1, d as i64));
    m.int(2, element(of.dtype())).bytes(8, name).bytes(9, of.bytes())
}

/// A node of the domain with its operands, of which those whose names begin with `a`, `b` or `x` and have axes are inputs.
fn model_of_node(
    text: &str,
    attributes: &[(&str, A)],
    operands: &[HostTensor],
    result: &HostTensor,
) -> (Vec<u8>, Vec<HostTensor>) {
    let words: Vec<&str> = text
        .split(" -> ")
        .next()
        .unwrap()
        .split(" ")
        .skip(1)
        .filter(|w| *w != "_")
        .collect();
    let (mut inputs, mut constants, mut given) = (Vec::new(), Vec::new(), Vec::new());
    for (&name, of) in words.iter().zip(operands) {
        let dims: Vec<D> = of.shape().iter().map(|&d| D::N(d as i64)).collect();
        match !dims.is_empty() && ["a", "b", "x", "x0", "x1"].contains(&name) {
            true => {
                inputs.push(value(name, element(of.dtype()), &dims));
                given.push(of.clone());
            }
            false => constants.push(initializer(name, of)),
        }
    }
    let dims: Vec<D> = result.shape().iter().map(|&d| D::N(d as i64)).collect();
    let node = op(text, attributes).bytes(7, "com.microsoft");
    let outputs = vec![value("y", element(result.dtype()), &dims)];
    let bytes = Message::default()
        .int(1, 8)
        .message(7, graph(vec![node], constants, inputs, outputs))
        .message(8, opset("", 17))
        .message(8, opset("com.microsoft", 1))
        .0;
    (bytes, given)
}

type Recorded = (&'static str, Vec<(&'static str, A)>, Vec<HostTensor>, HostTensor);

fn recorded() -> Vec<Recorded> {
    vec![
        (
            "QLinearAdd a as az b bs bz ys yz -> y",
            vec![],
            vec![
                tensor::<u8>(&[2, 3], &[171, 206, 5, 206, 120, 131]),
                tensor::<f32>(&[], &[0.02]),
                tensor::<u8>(&[], &[7]),
                tensor::<u8>(&[3], &[161, 73, 250]),
                tensor::<f32>(&[], &[0.1]),
                tensor::<u8>(&[], &[120]),
                tensor::<f32>(&[], &[0.07]),
                tensor::<u8>(&[], &[100]),
            ],
            tensor::<u8>(&[2, 3], &[205, 90, 255, 215, 65, 255]),
        ),
        (
            "QLinearMul a as az b bs bz ys yz -> y",
            vec![],
            vec![
                tensor::<u8>(&[2, 3], &[171, 206, 5, 206, 120, 131]),
                tensor::<f32>(&[], &[0.02]),
                tensor::<u8>(&[], &[7]),
                tensor::<u8>(&[3], &[161, 73, 250]),
                tensor::<f32>(&[], &[0.1]),
                tensor::<u8>(&[], &[120]),
                tensor::<f32>(&[], &[0.2]),
                tensor::<u8>(&[], &[100]),
            ],
            tensor::<u8>(&[2, 3], &[167, 6, 97, 182, 47, 255]),
        ),
        (
            "QLinearGlobalAveragePool x xs xz ys yz -> y",
            vec![],
            vec![
                tensor::<u8>(
                    &[1, 2, 3, 4],
                    &[
                        13, 71, 98, 146, 104, 33, 11, 0, 12, 38, 255, 48, 167, 192, 60, 72, 111, 67, 249, 45, 229, 204,
                        216, 29,
                    ],
                ),
                tensor::<f32>(&[], &[0.05]),
                tensor::<u8>(&[], &[130]),
                tensor::<f32>(&[], &[0.04]),
                tensor::<u8>(&[], &[90]),
            ],
            tensor::<u8>(&[1, 2, 1, 1], &[14, 98]),
        ),
        (
            "QLinearAveragePool x xs xz ys yz -> y",
            vec![
                ("kernel_shape", A::Is(vec![2, 3])),
                ("strides", A::Is(vec![1, 2])),
                ("pads", A::Is(vec![1, 1, 1, 1])),
            ],
            vec![
                tensor::<u8>(
                    &[1, 2, 3, 4],
                    &[
                        13, 71, 98, 146, 104, 33, 11, 0, 12, 38, 255, 48, 167, 192, 60, 72, 111, 67, 249, 45, 229, 204,
                        216, 29,
                    ],
                ),
                tensor::<f32>(&[], &[0.05]),
                tensor::<u8>(&[], &[130]),
                tensor::<f32>(&[], &[0.04]),
                tensor::<u8>(&[], &[90]),
            ],
            tensor::<u8>(
                &[1, 2, 4, 2],
                &[0, 59, 0, 2, 0, 8, 0, 70, 152, 62, 95, 70, 118, 96, 198, 115],
            ),
        ),
        (
            "QLinearAveragePool x xs xz ys yz -> y",
            vec![
                ("kernel_shape", A::Is(vec![2, 2])),
                ("strides", A::Is(vec![2, 2])),
                ("pads", A::Is(vec![1, 0, 1, 0])),
                ("count_include_pad", A::I(1)),
            ],
            vec![
                tensor::<u8>(
                    &[1, 2, 3, 4],
                    &[
                        13, 71, 98, 146, 104, 33, 11, 0, 12, 38, 255, 48, 167, 192, 60, 72, 111, 67, 249, 45, 229, 204,
                        216, 29,
                    ],
                ),
                tensor::<f32>(&[], &[0.05]),
                tensor::<u8>(&[], &[130]),
                tensor::<f32>(&[], &[0.04]),
                tensor::<u8>(&[], &[90]),
            ],
            tensor::<u8>(&[1, 2, 2, 2], &[35, 85, 0, 26, 121, 50, 118, 96]),
        ),
        (
            "QLinearLeakyRelu x xs xz ys yz -> y",
            vec![("alpha", A::F(0.25))],
            vec![
                tensor::<u8>(
                    &[1, 2, 3, 4],
                    &[
                        13, 71, 98, 146, 104, 33, 11, 0, 12, 38, 255, 48, 167, 192, 60, 72, 111, 67, 249, 45, 229, 204,
                        216, 29,
                    ],
                ),
                tensor::<f32>(&[], &[0.05]),
                tensor::<u8>(&[], &[130]),
                tensor::<f32>(&[], &[0.04]),
                tensor::<u8>(&[], &[90]),
            ],
            tensor::<u8>(
                &[1, 2, 3, 4],
                &[
                    53, 72, 80, 110, 82, 60, 53, 49, 53, 61, 246, 64, 136, 168, 68, 72, 84, 70, 239, 63, 214, 182, 198,
                    58,
                ],
            ),
        ),
        (
            "QLinearSigmoid x xs xz ys yz -> y",
            vec![],
            vec![
                tensor::<u8>(
                    &[1, 2, 3, 4],
                    &[
                        13, 71, 98, 146, 104, 33, 11, 0, 12, 38, 255, 48, 167, 192, 60, 72, 111, 67, 249, 45, 229, 204,
                        216, 29,
                    ],
                ),
                tensor::<f32>(&[], &[0.05]),
                tensor::<u8>(&[], &[130]),
                tensor::<f32>(&[], &[0.00390625]),
                tensor::<u8>(&[], &[0]),
            ],
            tensor::<u8>(
                &[1, 2, 3, 4],
                &[
                    1, 13, 43, 177, 55, 2, 1, 0, 1, 3, 255, 4, 221, 245, 8, 13, 71, 11, 255, 4, 254, 250, 253, 2,
                ],
            ),
        ),
        (
            "QLinearSoftmax x xs xz ys yz -> y",
            vec![("axis", A::I(2)), ("opset", A::I(13))],
            vec![
                tensor::<u8>(
                    &[1, 2, 3, 4],
                    &[
                        13, 71, 98, 146, 104, 33, 11, 0, 12, 38, 255, 48, 167, 192, 60, 72, 111, 67, 249, 45, 229, 204,
                        216, 29,
                    ],
                ),
                tensor::<f32>(&[], &[0.05]),
                tensor::<u8>(&[], &[130]),
                tensor::<f32>(&[], &[0.00390625]),
                tensor::<u8>(&[], &[0]),
            ],
            tensor::<u8>(
                &[1, 2, 3, 4],
                &[
                    3, 191, 0, 254, 251, 29, 0, 0, 3, 37, 255, 2, 11, 91, 0, 186, 1, 0, 215, 48, 244, 165, 41, 22,
                ],
            ),
        ),
        (
            "QLinearSoftmax x xs xz ys yz -> y",
            vec![("axis", A::I(1)), ("opset", A::I(11))],
            vec![
                tensor::<u8>(
                    &[1, 2, 3, 4],
                    &[
                        13, 71, 98, 146, 104, 33, 11, 0, 12, 38, 255, 48, 167, 192, 60, 72, 111, 67, 249, 45, 229, 204,
                        216, 29,
                    ],
                ),
                tensor::<f32>(&[], &[0.05]),
                tensor::<u8>(&[], &[130]),
                tensor::<f32>(&[], &[0.00390625]),
                tensor::<u8>(&[], &[0]),
            ],
            tensor::<u8>(
                &[1, 2, 3, 4],
                &[
                    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 112, 0, 1, 5, 0, 0, 0, 0, 83, 0, 30, 9, 16, 0,
                ],
            ),
        ),
        (
            "QLinearConcat ys yz x0 s0 z0 x1 s1 z1 -> y",
            vec![("axis", A::I(1))],
            vec![
                tensor::<f32>(&[], &[0.03]),
                tensor::<u8>(&[], &[20]),
                tensor::<u8>(&[2, 1], &[100, 160]),
                tensor::<f32>(&[], &[0.03]),
                tensor::<u8>(&[], &[20]),
                tensor::<u8>(&[2, 3], &[126, 170, 173, 169, 15, 245]),
                tensor::<f32>(&[], &[0.05]),
                tensor::<u8>(&[], &[90]),
            ],
            tensor::<u8>(&[2, 4], &[100, 80, 153, 158, 160, 152, 0, 255]),
        ),
        (
            "QGemm a as az b bs bz c ys yz -> y",
            vec![("transB", A::I(1)), ("alpha", A::F(1.0))],
            vec![
                tensor::<u8>(&[2, 5], &[142, 231, 69, 92, 225, 47, 16, 95, 173, 31]),
                tensor::<f32>(&[], &[0.04]),
                tensor::<u8>(&[], &[9]),
                tensor::<i8>(
                    &[3, 5],
                    &[94, -41, -70, 11, 101, 98, 95, -50, -124, 71, 53, 69, -128, -119, 0],
                ),
                tensor::<f32>(&[3], &[0.01, 0.02, 0.05]),
                tensor::<i8>(&[3], &[0, 0, 0]),
                tensor::<i32>(&[3], &[100, -2000, 30]),
                tensor::<f32>(&[], &[0.5]),
                tensor::<u8>(&[], &[128]),
            ],
            tensor::<u8>(&[2, 3], &[146, 183, 147, 129, 95, 16]),
        ),
        (
            "QGemm a as az b bs bz c -> y",
            vec![("transB", A::I(1)), ("alpha", A::F(0.5))],
            vec![
                tensor::<u8>(&[2, 5], &[142, 231, 69, 92, 225, 47, 16, 95, 173, 31]),
                tensor::<f32>(&[], &[0.04]),
                tensor::<u8>(&[], &[9]),
                tensor::<i8>(
                    &[3, 5],
                    &[94, -41, -70, 11, 101, 98, 95, -50, -124, 71, 53, 69, -128, -119, 0],
                ),
                tensor::<f32>(&[3], &[0.01, 0.02, 0.05]),
                tensor::<i8>(&[3], &[0, 0, 0]),
                tensor::<i32>(&[3], &[100, -2000, 30]),
            ],
            tensor::<f32>(&[2, 3], &[4.4058, 13.6672, 4.84, 0.2782, -8.274, -27.997002]),
        ),
        (
            "QGemm a as az b bs bz _ ys yz -> y",
            vec![("transB", A::I(0)), ("alpha", A::F(1.0))],
            vec![
                tensor::<u8>(&[2, 5], &[142, 231, 69, 92, 225, 47, 16, 95, 173, 31]),
                tensor::<f32>(&[], &[0.04]),
                tensor::<u8>(&[], &[9]),
                tensor::<i8>(
                    &[5, 3],
                    &[-43, -17, 110, -76, 7, -45, -53, 78, -89, -47, -98, -90, -57, 50, 20],
                ),
                tensor::<f32>(&[], &[0.02]),
                tensor::<i8>(&[], &[0]),
                tensor::<f32>(&[], &[0.5]),
                tensor::<u8>(&[], &[128]),
            ],
            tensor::<u8>(&[2, 3], &[61, 139, 122, 103, 114, 99]),
        ),
    ]
}

#[test]
fn operators_on_bytes_are_as_recorded() {
    for (text, attributes, operands, expected) in recorded() {
        let (bytes, given) = model_of_node(text, &attributes, &operands, &expected);
        let imported = import(&bytes, &ImportOptions::default()).unwrap_or_else(|e| panic!("{text}: {e}"));
        let e = compile_ir(&imported.graph, &CompileOptions::default()).unwrap_or_else(|e| panic!("{text}: {e}"));
        let inputs: Vec<_> = given.iter().map(Into::into).collect();
        let found = e.run(&inputs).unwrap_or_else(|e| panic!("{text}: {e}"))[0].to_host();
        assert_eq!(
            (found.shape(), found.dtype()),
            (expected.shape(), expected.dtype()),
            "{text}"
        );
        let most = if expected.dtype() == DType::F32 { 1e-4 } else { 1.0 };
        for i in 0..found.len() {
            let (v, of) = (found.get(i).as_f64(), expected.get(i).as_f64());
            assert!((v - of).abs() <= most, "{text}: {i}: {v} for {of}");
        }
    }
}

/// A node, its attributes and operands, and what its refusal says.
type Refused = (&'static str, Vec<(&'static str, A)>, Vec<HostTensor>, &'static str);

#[test]
fn other_operators_of_the_domain_and_bad_operands_are_refused() {
    let x = tensor::<u8>(&[2, 3], &[1, 2, 3, 4, 5, 6]);
    let (one, zero) = (tensor::<f32>(&[], &[0.5]), tensor::<u8>(&[], &[3]));
    let many = tensor::<f32>(&[2], &[0.5, 0.25]);
    let cases: [Refused; 5] = [
        (
            "Attention x -> y",
            vec![],
            vec![x.clone()],
            "QLinearAdd, QLinearAveragePool",
        ),
        (
            "QLinearSigmoid x s -> y",
            vec![],
            vec![x.clone(), one.clone()],
            "2 operands; expected 4 to 5",
        ),
        (
            "QLinearSigmoid x s z t -> y",
            vec![],
            vec![x.clone(), many, zero.clone(), one.clone()],
            "expected one number",
        ),
        (
            "QLinearConcat t z x s -> y",
            vec![("axis", A::I(0))],
            vec![one.clone(), zero.clone(), x.clone(), one.clone()],
            "three for each part",
        ),
        (
            "QLinearGlobalAveragePool x s z t u -> y",
            vec![("channels_last", A::I(1))],
            vec![x.clone(), one.clone(), zero.clone(), one, zero],
            "expected channels_last of 0",
        ),
    ];
    for (text, attributes, operands, expected) in cases {
        let (bytes, _) = model_of_node(text, &attributes, &operands, &x);
        let error = import(&bytes, &ImportOptions::default()).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}
