//! Products of matrices.

use half::bf16;
use tlc_gpusim::{Class, Launch};

use crate::{everywhere, floats};

#[test]
fn tiled_product() {
    everywhere(|b| {
        let (m, n, k) = (37, 29, 45);
        let (x, y) = (floats(m * k, 1), floats(k * n, 2));
        let (dx, dy, dz) = (b.input(&x), b.input(&y), b.output::<f32>(m * n));
        let mut launch = Launch::new(1, 1)
            .arg(dx)
            .arg(dy)
            .arg(dz)
            .arg(m as i32)
            .arg(n as i32)
            .arg(k as i32);
        launch.grid = [2, 3, 1];
        launch.block = [16, 16, 1];
        b.run("product", &launch);
        let z = b.read::<f32>(dz, m * n);
        for row in 0..m {
            for column in 0..n {
                let expected = (0..k).fold(0.0_f32, |sum, i| x[row * k + i].mul_add(y[i * n + column], sum));
                assert_eq!(z[row * n + column], expected);
            }
        }
    });
}

#[test]
fn tensor_cores_bf16() {
    everywhere(|b| {
        let (x, y) = (floats(16 * 16, 3), floats(8 * 16, 4));
        let bits = |v: &[f32]| v.iter().map(|&v| bf16::from_f32(v).to_bits()).collect::<Vec<u16>>();
        let value = |v: f32| f64::from(bf16::from_f32(v).to_f32());
        let (dx, dy, dz) = (b.input(&bits(&x)), b.input(&bits(&y)), b.output::<f32>(16 * 8));
        let report = b.run("tensor_bf16", &Launch::new(1, 32).arg(dx).arg(dy).arg(dz));
        let z = b.read::<f32>(dz, 16 * 8);
        for row in 0..16 {
            for column in 0..8 {
                // Sixteen exact products whose sum is exact in f64.
                let expected: f64 = (0..16)
                    .map(|k| value(x[row * 16 + k]) * value(y[column * 16 + k]))
                    .sum();
                assert_eq!(z[row * 8 + column], expected as f32, "{row} {column}");
            }
        }
        assert_eq!(report.counters.warps_of(Class::Matrix), 3);
    });
}

#[test]
fn tensor_cores_tf32() {
    everywhere(|b| {
        let (x, y) = (floats(16 * 8, 5), floats(8 * 8, 6));
        let value = |v: f32| f64::from(f32::from_bits(v.to_bits() & !0x1fff));
        let (dx, dy, dz) = (b.input(&x), b.input(&y), b.output::<f32>(16 * 8));
        b.run("tensor_tf32", &Launch::new(1, 32).arg(dx).arg(dy).arg(dz));
        let z = b.read::<f32>(dz, 16 * 8);
        for row in 0..16 {
            for column in 0..8 {
                let expected: f64 = (0..8).map(|k| value(x[row * 8 + k]) * value(y[k * 8 + column])).sum();
                assert_eq!(z[row * 8 + column], expected as f32, "{row} {column}");
            }
        }
    });
}
