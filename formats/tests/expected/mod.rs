//! What the arrays in `golden/` hold; the same rule as `values` in `make_golden.py`.

use std::path::PathBuf;

use tlc_ir::dtype::{DType, Scalar};
use tlc_ir::tensor::HostTensor;

/// The tensor that `make_golden.py` wrote for this dtype and shape.
pub fn tensor(dtype: DType, shape: &[usize]) -> HostTensor {
    let mut tensor = HostTensor::zeros(dtype, shape).unwrap();
    for i in 0..tensor.len() {
        tensor.set(i, value(dtype, i as u64));
    }
    tensor
}

fn value(dtype: DType, i: u64) -> Scalar {
    match dtype {
        DType::Bool => Scalar::from_bool(i.is_multiple_of(3)),
        d if d.is_storage() => Scalar::from_bits(d, i * 37 + 5),
        d if d.is_int() => Scalar::from_bits(d, (i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - d.bits())),
        d => Scalar::from_f64(d, (i as f64 - 3.0) / 4.0),
    }
}

/// The bytes of a file in `golden/`.
#[allow(dead_code, reason = "each test binary uses what it needs")]
pub fn golden(name: &str) -> Vec<u8> {
    std::fs::read(directory().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Names of the files in `golden/`, sorted.
#[allow(dead_code, reason = "each test binary uses what it needs")]
pub fn golden_names() -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(directory())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}
