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

/// The number by which a model's file names an element type.
pub fn element(dtype: DType) -> i64 {
    match dtype {
        DType::F32 => FLOAT,
        DType::F64 => 11,
        DType::Bool => BOOL,
        DType::U8 => UINT8,
        DType::I8 => 3,
        DType::U16 => 4,
        DType::I16 => 5,
        DType::I32 => 6,
        DType::I64 => INT64,
        other => panic!("{other}"),
    }
}

pub fn initializer(name: &str, of: &HostTensor) -> Message {
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
            "QuantizeLinear x s z -> y",
            vec![],
            vec![
                tensor::<f32>(&[2, 3], &[8.16, -10.22, 1.67, -2.27, -1.81, -0.86]),
                tensor::<f32>(&[3], &[0.001, 0.0002, 0.05]),
                tensor::<u16>(&[3], &[30000, 100, 7]),
            ],
            tensor::<u16>(&[2, 3], &[38160, 0, 40, 27730, 0, 0]),
        ),
        (
            "DequantizeLinear x s z -> y",
            vec![],
            vec![
                tensor::<i16>(&[2, 3], &[7273, -1257, -14113, -20416, 11485, 14074]),
                tensor::<f32>(&[], &[0.0025]),
                tensor::<i16>(&[], &[-120]),
            ],
            tensor::<f32>(&[2, 3], &[18.4825, -2.8425, -34.9825, -50.739998, 29.012499, 35.485]),
        ),
        (
            "GatherBlockQuantized d i s z -> y",
            vec![("block_size", A::I(16)), ("quantize_axis", A::I(1))],
            vec![
                tensor::<u8>(
                    &[3, 16],
                    &[
                        171, 206, 5, 206, 120, 131, 161, 73, 250, 13, 71, 98, 146, 104, 33, 11, 0, 12, 38, 255, 48,
                        167, 192, 60, 72, 111, 67, 249, 45, 229, 204, 216, 29, 100, 160, 126, 170, 173, 169, 15, 245,
                        142, 231, 69, 92, 225, 47, 16,
                    ],
                ),
                tensor::<i64>(&[2], &[2, -3]),
                tensor::<f32>(&[3, 2], &[0.1458, 0.184, 0.0555, 0.1891, 0.1844, 0.0137]),
                tensor::<u8>(&[3, 1], &[199, 181, 197]),
            ],
            tensor::<f32>(
                &[2, 32],
                &[
                    1.4752,
                    -0.7376,
                    -0.1844,
                    0.1844,
                    -0.92200005,
                    0.92200005,
                    1.6596,
                    0.3688,
                    0.92200005,
                    0.92200005,
                    1.4752,
                    0.92200005,
                    0.7376,
                    0.92200005,
                    1.8440001,
                    -0.92200005,
                    -0.0959,
                    0.0411,
                    0.0274,
                    -0.0548,
                    -0.0685,
                    0.0274,
                    -0.0959,
                    -0.1096,
                    0.0,
                    -0.0959,
                    -0.1507,
                    0.0274,
                    0.0411,
                    -0.137,
                    -0.1644,
                    -0.1507,
                    0.5832,
                    0.43739998,
                    1.0206,
                    0.729,
                    -0.2916,
                    -1.0206,
                    1.0206,
                    0.729,
                    0.1458,
                    0.0,
                    -0.5832,
                    0.1458,
                    -0.87479997,
                    0.43739998,
                    0.2916,
                    -0.43739998,
                    -0.368,
                    0.552,
                    0.184,
                    -2.208,
                    -0.92,
                    -1.472,
                    -1.84,
                    -1.104,
                    -1.84,
                    -0.552,
                    -0.736,
                    -1.104,
                    -2.024,
                    -1.84,
                    -0.184,
                    -2.208,
                ],
            ),
        ),
        (
            "GatherBlockQuantized d i s -> y",
            vec![("bits", A::I(8)), ("block_size", A::I(16))],
            vec![
                tensor::<u8>(
                    &[3, 16],
                    &[
                        0, 9, 128, 85, 111, 238, 52, 135, 83, 75, 206, 39, 81, 30, 38, 71, 178, 148, 114, 43, 204, 204,
                        60, 15, 81, 37, 204, 133, 129, 74, 129, 247, 60, 196, 3, 80, 238, 223, 21, 215, 216, 116, 94,
                        250, 243, 173, 102, 53,
                    ],
                ),
                tensor::<i64>(&[2], &[2, -3]),
                tensor::<f32>(&[3, 1], &[0.1212, 0.058, 0.1583]),
            ],
            tensor::<f32>(
                &[2, 16],
                &[
                    -10.7644, 10.7644, -19.7875, -7.5984, 17.413, 15.0385, -16.938099, 13.7720995, 13.9304, -1.8996,
                    -5.3822, 19.3126, 18.2045, 7.1235, -4.1158, -11.872499, -15.5136, -14.4228, 0.0, -5.2116003,
                    -2.0604, 13.332001, -9.2112, 0.8484, -5.454, -6.4236, 9.4536, -10.7868, -5.6964, -11.877601,
                    -10.908, -6.9084,
                ],
            ),
        ),
        (
            "MatMulNBits a w s -> y",
            vec![
                ("K", A::I(20)),
                ("N", A::I(3)),
                ("bits", A::I(4)),
                ("block_size", A::I(16)),
            ],
            vec![
                tensor::<f32>(
                    &[2, 20],
                    &[
                        -0.12, 2.12, -1.11, -0.38, 2.04, 0.65, 0.66, -0.51, -1.65, 0.17, 0.11, -1.23, -0.68, -0.07,
                        -0.94, -0.1, 0.1, 0.04, -0.51, 0.59, 0.89, 0.32, -0.82, 0.73, -0.5, 0.88, -1.07, 0.91, -0.02,
                        -1.25, -0.31, 0.05, 0.27, -0.98, -1.11, 0.2, -0.47, 0.24, 0.76, -1.65,
                    ],
                ),
                tensor::<u8>(
                    &[3, 2, 8],
                    &[
                        121, 131, 193, 243, 8, 36, 210, 242, 63, 79, 222, 108, 69, 211, 65, 104, 164, 140, 21, 7, 221,
                        192, 214, 137, 209, 84, 115, 201, 31, 77, 31, 116, 250, 34, 98, 103, 231, 52, 128, 67, 5, 192,
                        15, 71, 127, 124, 29, 251,
                    ],
                ),
                tensor::<f32>(
                    &[6],
                    &[0.24233145, 0.19495799, 0.15824537, 0.10537824, 0.0821304, 0.24398509],
                ),
            ],
            tensor::<f32>(
                &[2, 3],
                &[-1.2985297, -3.204969, 3.8247712, 10.145813, -3.644096, -3.1237133],
            ),
        ),
        (
            "MatMulNBits a w s z _ c -> y",
            vec![
                ("K", A::I(40)),
                ("N", A::I(2)),
                ("bits", A::I(4)),
                ("block_size", A::I(16)),
            ],
            vec![
                tensor::<f32>(
                    &[2, 40],
                    &[
                        0.67, 1.22, 0.38, -0.88, -1.51, 1.75, -0.11, -0.69, 0.14, -0.19, 0.85, 0.03, 0.01, -0.71, 0.47,
                        -1.03, 0.67, 1.52, -1.52, -2.47, 0.62, 2.55, -1.0, -1.25, 0.59, -0.84, -0.51, -0.35, 0.53,
                        -0.41, 0.28, -0.18, -0.84, -0.32, -0.95, 0.01, -1.12, -1.09, 1.46, -0.05, -0.05, 0.51, -0.42,
                        -0.23, 0.43, 0.28, -1.16, 0.83, -0.59, -1.06, -0.9, -0.39, 1.63, -1.18, 0.16, -2.14, -0.0, 0.9,
                        -0.24, -0.63, 0.23, 0.7, 0.66, 1.97, 0.21, -0.59, -0.13, -0.07, 0.11, -0.03, 0.17, -1.67, 0.83,
                        -0.57, -1.17, 0.64, 1.32, 0.49, 0.16, -0.93,
                    ],
                ),
                tensor::<u8>(
                    &[2, 3, 8],
                    &[
                        229, 38, 10, 123, 88, 229, 204, 108, 147, 150, 228, 6, 125, 172, 115, 235, 243, 211, 118, 226,
                        18, 169, 68, 62, 173, 196, 227, 54, 223, 212, 80, 16, 197, 211, 117, 42, 37, 96, 193, 81, 8,
                        176, 190, 45, 143, 101, 128, 1,
                    ],
                ),
                tensor::<f32>(
                    &[6],
                    &[0.10249894, 0.13423777, 0.07118425, 0.17663199, 0.12608485, 0.1950588],
                ),
                tensor::<u8>(&[4], &[129, 167, 40, 110]),
                tensor::<f32>(&[2], &[0.8624448, -0.12559208]),
            ],
            tensor::<f32>(&[2, 2], &[3.2192926, 8.035591, -4.7188506, 5.1675515]),
        ),
        (
            "MatMulNBits a w s z -> y",
            vec![
                ("K", A::I(18)),
                ("N", A::I(3)),
                ("bits", A::I(8)),
                ("block_size", A::I(16)),
            ],
            vec![
                tensor::<f32>(
                    &[2, 18],
                    &[
                        -1.13, 0.1, -0.18, 0.2, -1.61, 1.81, -0.6, -1.54, 0.62, -0.35, 0.32, -0.34, -0.06, 0.25, -0.75,
                        0.68, -0.47, -0.87, 0.08, 0.45, -0.23, -0.86, 0.62, -1.76, -1.03, 0.04, -1.36, 0.03, -0.05,
                        0.9, -0.91, -0.63, 0.33, -2.46, 3.1, -0.7,
                    ],
                ),
                tensor::<u8>(
                    &[3, 2, 16],
                    &[
                        112, 255, 99, 67, 59, 217, 54, 155, 60, 206, 183, 161, 108, 92, 243, 194, 100, 6, 32, 114, 117,
                        95, 251, 122, 203, 32, 95, 56, 36, 143, 36, 99, 175, 202, 143, 154, 75, 220, 47, 187, 22, 154,
                        64, 73, 88, 200, 202, 64, 137, 19, 227, 246, 92, 138, 137, 198, 17, 135, 215, 156, 142, 8, 236,
                        47, 89, 172, 118, 146, 150, 40, 3, 243, 207, 39, 171, 130, 188, 36, 179, 183, 255, 70, 110, 34,
                        3, 11, 114, 44, 190, 49, 160, 137, 84, 115, 255, 245,
                    ],
                ),
                tensor::<f32>(
                    &[6],
                    &[0.24083027, 0.20930922, 0.18431753, 0.21900462, 0.23775037, 0.054523546],
                ),
                tensor::<u8>(&[6], &[25, 30, 165, 92, 39, 23]),
            ],
            tensor::<f32>(
                &[2, 3],
                &[-21.587255, 28.928976, -104.88919, -113.23862, 120.42375, -88.340935],
            ),
        ),
        (
            "MatMulNBits a w s z -> y",
            vec![
                ("K", A::I(20)),
                ("N", A::I(2)),
                ("bits", A::I(4)),
                ("block_size", A::I(16)),
            ],
            vec![
                tensor::<f32>(
                    &[2, 20],
                    &[
                        -0.31, -0.59, -0.16, -0.48, -0.7, 0.14, -0.29, 1.44, 0.0, 0.32, 0.95, -0.3, 1.44, -0.63, -0.81,
                        -0.37, -0.11, -1.4, -0.04, -1.67, 1.39, -0.08, -0.64, -0.91, -0.38, -0.22, -1.04, -0.92, -0.19,
                        -0.52, 0.94, 1.14, 0.02, 0.47, -1.34, 0.64, -0.03, 0.48, 1.6, -2.28,
                    ],
                ),
                tensor::<u8>(
                    &[2, 2, 8],
                    &[
                        235, 119, 245, 23, 175, 161, 137, 157, 32, 8, 158, 206, 230, 201, 118, 234, 8, 171, 131, 177,
                        222, 41, 199, 6, 117, 16, 62, 246, 104, 165, 244, 242,
                    ],
                ),
                tensor::<f32>(&[4], &[0.11987687, 0.20104432, 0.0630798, 0.08324103]),
                tensor::<f32>(&[4], &[2.2170668, 4.402546, 4.459271, 3.9918916]),
            ],
            tensor::<f32>(&[2, 2], &[-0.4329692, 1.1329863, 1.786279, -0.6477014]),
        ),
        (
            "MatMulNBits a w s -> y",
            vec![
                ("K", A::I(33)),
                ("N", A::I(2)),
                ("bits", A::I(2)),
                ("block_size", A::I(16)),
            ],
            vec![
                tensor::<f32>(
                    &[2, 33],
                    &[
                        -1.06, 0.57, -0.49, 0.67, 1.01, -0.74, -0.05, 0.04, 1.19, 0.71, -1.22, 0.46, 0.75, 2.12, -1.68,
                        -0.54, 1.33, -1.36, -1.2, 0.52, 1.02, -0.67, 0.54, 0.12, 1.52, -0.0, 0.99, -0.9, -0.18, -0.1,
                        1.14, 0.58, -0.75, 0.68, 0.77, -0.11, -0.26, -0.19, -1.69, 0.19, 0.23, -0.87, 0.74, -1.37,
                        -0.55, -0.48, 1.99, -1.6, 0.56, 0.94, 0.38, 1.18, -1.0, -2.28, 0.77, -1.2, -0.33, -1.18, 1.05,
                        0.87, -0.72, 0.9, 0.12, -0.14, 0.06, -0.2,
                    ],
                ),
                tensor::<u8>(
                    &[2, 3, 4],
                    &[
                        93, 133, 82, 122, 118, 138, 232, 54, 106, 199, 232, 71, 243, 233, 71, 131, 182, 77, 56, 44,
                        119, 124, 185, 96,
                    ],
                ),
                tensor::<f32>(
                    &[6],
                    &[0.17461875, 0.14969191, 0.057391938, 0.21661896, 0.060334787, 0.21551903],
                ),
            ],
            tensor::<f32>(&[2, 2], &[-0.8841689, -0.5387066, 0.8592262, 0.44257852]),
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
    let (a, w) = (
        tensor::<f32>(&[1, 16], &[0.5; 16]),
        tensor::<u8>(&[2, 1, 8], &[0x37; 16]),
    );
    let of_bits = |bits: i64| {
        let sizes = [("K", 16), ("N", 2), ("bits", bits), ("block_size", 16)];
        sizes.map(|(name, size)| (name, A::I(size))).to_vec()
    };
    let scales = tensor::<f32>(&[2], &[0.5, 0.25]);
    let cases: [Refused; 13] = [
        (
            "MatMulNBits a w s -> y",
            of_bits(3),
            vec![a.clone(), w.clone(), scales.clone()],
            "3 bits; expected 2, 4 or 8",
        ),
        (
            "MatMulNBits a w s -> y",
            of_bits(8),
            vec![a.clone(), w.clone(), scales.clone()],
            "operand 1 is 16 elements of u8; expected 2 times at least 16 of u8",
        ),
        (
            "MatMulNBits a w s -> y",
            of_bits(4),
            vec![a.clone(), w.clone(), one.clone()],
            "expected 2 times 1",
        ),
        (
            "MatMulNBits a w s _ g -> y",
            of_bits(4),
            vec![a.clone(), w.clone(), scales.clone(), tensor::<i32>(&[16], &[0; 16])],
            "expected blocks in order",
        ),
        (
            "MatMulNBits a w s -> y",
            of_bits(4)[1..].to_vec(),
            vec![a, w.clone(), scales.clone()],
            "attribute K",
        ),
        (
            "GatherBlockQuantized w i s -> y",
            vec![("block_size", A::I(16)), ("quantize_axis", A::I(0))],
            vec![w.clone(), tensor::<i64>(&[1], &[0]), scales.clone()],
            "slices along axis 0, which is the one of the blocks",
        ),
        // Slices beyond the scales would be zeros.
        (
            "GatherBlockQuantized w i s -> y",
            vec![("block_size", A::I(16)), ("quantize_axis", A::I(2))],
            vec![w.clone(), tensor::<i64>(&[1], &[0]), tensor::<f32>(&[1, 1, 1], &[0.5])],
            "expected one for each 16 along axis 2",
        ),
        (
            "GatherBlockQuantized w i s -> y",
            vec![("block_size", A::I(24))],
            vec![w.clone(), tensor::<i64>(&[1], &[0]), scales.clone()],
            "blocks of 24; expected a power of two",
        ),
        (
            "NGramRepeatBlock x -> y",
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
            "rank 2; expected at least 3",
        ),
    ];
    for (text, attributes, operands, expected) in cases {
        let (bytes, _) = model_of_node(text, &attributes, &operands, &x);
        let error = import(&bytes, &ImportOptions::default()).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}
