//! `--top N`: the largest elements along the last axis, as class scores are read.

use std::cmp::Ordering;

use serde_json::{Value, json};
use tlc::Scalar;
use tlc_ir::tensor::element;
use tlc_runtime::driver::TensorView;

use crate::data::{less, scalar_json};

/// Rows that are shown; the rest is counted.
const MAX_ROWS: usize = 16;

/// The positions and values of the largest elements of each row, in descending order; of equals the first is the larger,
/// NaN is larger than any number.
fn rows(tensor: TensorView<'_>, n: usize) -> Vec<Vec<(usize, Scalar)>> {
    let width = tensor.shape.last().copied().unwrap_or(1);
    if width == 0 {
        return vec![];
    }
    let order = |a: &(usize, Scalar), b: &(usize, Scalar)| match (a.1.is_nan(), b.1.is_nan()) {
        (true, false) => Ordering::Less,
        (false, true) => Ordering::Greater,
        _ if less(b.1, a.1) => Ordering::Less,
        _ if less(a.1, b.1) => Ordering::Greater,
        _ => a.0.cmp(&b.0),
    };
    let row = |r: usize| {
        let mut best: Vec<(usize, Scalar)> = vec![];
        for i in 0..width {
            let next = (i, element(tensor.dtype, tensor.data, r * width + i));
            if best.len() == n && best.last().is_none_or(|last| order(last, &next).is_le()) {
                continue;
            }
            best.insert(best.partition_point(|b| order(b, &next).is_lt()), next);
            best.truncate(n);
        }
        best
    };
    let len: usize = tensor.shape.iter().product();
    (0..len / width).map(row).collect()
}

/// For people: a row a line.
pub fn text(name: &str, tensor: TensorView<'_>, n: usize) -> String {
    let rows = rows(tensor, n);
    let mut out = format!("{name}: the largest of each row, position and value\n");
    for (number, row) in rows.iter().enumerate().take(MAX_ROWS) {
        let values: Vec<String> = row.iter().map(|(i, v)| format!("{i}: {v}")).collect();
        out += &format!("  row {number}  {}\n", values.join("   "));
    }
    if rows.len() > MAX_ROWS {
        out += &format!("  … and {} rows more\n", rows.len() - MAX_ROWS);
    }
    out
}

/// For programs: all rows.
pub fn json(tensor: TensorView<'_>, n: usize) -> Value {
    let one = |(index, value): &(usize, Scalar)| json!({ "index": index, "value": scalar_json(*value) });
    let all = rows(tensor, n);
    all.iter().map(|row| row.iter().map(one).collect::<Value>()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::view;
    use tlc::HostTensor;

    #[test]
    fn rows_are_ranked_with_the_first_of_equals_first_and_nan_on_top() {
        let t = HostTensor::from_slice(&[2, 4], &[1.0f32, 3.0, 3.0, 2.0, -1.0, f32::NAN, 0.0, f32::INFINITY]).unwrap();
        let positions: Vec<Vec<usize>> = rows(view(&t), 3)
            .iter()
            .map(|r| r.iter().map(|x| x.0).collect())
            .collect();
        assert_eq!(positions, [vec![1, 2, 3], vec![1, 3, 2]]);
        assert!(rows(view(&HostTensor::from_slice::<f32>(&[3, 0], &[]).unwrap()), 2).is_empty());
        let one = HostTensor::from_slice(&[], &[7i64]).unwrap();
        assert_eq!(rows(view(&one), 5).len(), 1);
    }
}
