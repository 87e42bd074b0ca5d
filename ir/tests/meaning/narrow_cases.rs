//! The storage types against ml_dtypes and onnx: every case of the recorded table `narrow_cases.txt` (made by
//! `narrow_cases.py`, which says what it leaves out and why).

use tlc_ir::dtype::narrow::encode;
use tlc_ir::{DType, Scalar};

fn scalars(dtype: DType, hex: &str) -> Vec<Scalar> {
    let digits = dtype.bytes() * 2;
    assert!(hex.len().is_multiple_of(digits), "{dtype}");
    let bits = |at: usize| u64::from_str_radix(&hex[at..at + digits], 16).expect("hex");
    (0..hex.len())
        .step_by(digits)
        .map(|at| Scalar::from_bits(dtype, bits(at)))
        .collect()
}

fn same(a: Scalar, b: Scalar) -> bool {
    a == b || (a.is_nan() && b.is_nan())
}

#[test]
fn conversions_agree_with_the_references() {
    let (mut decoded, mut encoded) = (0, 0);
    let mut operands = "";
    for line in include_str!("../narrow_cases.txt").lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let dtype: DType = words[1].parse().expect("a dtype");
        if words[0] == "decode" {
            let values = scalars(DType::F32, words[2]);
            assert_eq!(values.len(), 1 << dtype.value_bits(), "{dtype}");
            for (bits, expected) in values.into_iter().enumerate() {
                let found = Scalar::from_bits(dtype, bits as u64).convert(DType::F32);
                assert!(same(found, expected), "{dtype} {bits:#x}: {found}, expected {expected}");
                decoded += 1;
            }
            continue;
        }
        let (rule, from) = (words[2], words[3].parse().expect("a dtype"));
        if words[4] != "=" {
            operands = words[4];
        }
        for (x, expected) in scalars(from, operands).into_iter().zip(scalars(dtype, words[5])) {
            let found = match rule {
                "saturate" | "nearest" => x.convert(dtype),
                "unbounded" | "nearest_unbounded" => Scalar::from_bits(dtype, encode(dtype, x.as_f64(), false).into()),
                // The other roundings are functions over the graph, which are tested where they are.
                _ => continue,
            };
            assert!(
                same(found, expected),
                "{from} {x} to {dtype}, {rule}: {found}, expected {expected}"
            );
            encoded += 1;
        }
    }
    assert!(decoded == 1336 && encoded > 40_000, "{decoded} and {encoded} cases");
}
