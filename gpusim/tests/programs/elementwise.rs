//! A thread an element.

use tlc_gpusim::{Class, Launch};

use crate::{everywhere, floats, integers};

#[test]
fn grid_stride() {
    everywhere(|b| {
        let (x, y) = (floats(1000, 1), floats(1000, 2));
        let (dx, dy, dz) = (b.input(&x), b.input(&y), b.output::<f32>(1000));
        let report = b.run("grid_stride", &Launch::new(3, 96).arg(dx).arg(dy).arg(dz).arg(1000_i32));
        let expected: Vec<f32> = x.iter().zip(&y).map(|(&x, &y)| 2.5_f32.mul_add(x, y)).collect();
        assert_eq!(b.read::<f32>(dz, 1000), expected);
        assert_eq!(report.counters.global_stores.bytes, 4000);
        assert_eq!(report.counters.global_stores.sectors, 125);
        assert_eq!(report.counters.lanes_of(Class::Store), 1000);
    });
}

#[test]
fn vectors() {
    everywhere(|b| {
        let x = floats(4 * 100, 3);
        let (dx, dy) = (b.input(&x), b.output::<f32>(400));
        let report = b.run("vectors", &Launch::new(4, 32).arg(dx).arg(dy).arg(100_i32));
        assert_eq!(b.read::<f32>(dy, 400), x.iter().map(|v| v * 2.0).collect::<Vec<_>>());
        assert_eq!(report.counters.global_loads.requests, 4);
        assert!((report.counters.global_loads.sector_ratio() - 1.0).abs() < 1e-9);
    });
}

#[test]
fn divergent_loops() {
    everywhere(|b| {
        let x: Vec<u32> = (1..=200).collect();
        let (dx, dy) = (b.input(&x), b.output::<u32>(200));
        let report = b.run("collatz", &Launch::new(2, 128).arg(dx).arg(dy).arg(200_i32));
        let steps = |mut v: u32| {
            let mut count = 0;
            while v != 1 {
                v = if v % 2 == 1 { 3 * v + 1 } else { v / 2 };
                count += 1;
            }
            count
        };
        assert_eq!(b.read::<u32>(dy, 200), x.iter().map(|&v| steps(v)).collect::<Vec<_>>());
        assert!(report.counters.branch_efficiency() < 1.0);
    });
}

#[test]
fn switches() {
    everywhere(|b| {
        let ops: Vec<i32> = integers(300, 4).into_iter().map(|v| (v % 9) as i32).collect();
        let x: Vec<i32> = integers(300, 5).into_iter().map(|v| v as i32).collect();
        let (d_op, dx, dy) = (b.input(&ops), b.input(&x), b.output::<i32>(300));
        b.run("dispatch", &Launch::new(3, 100).arg(d_op).arg(dx).arg(dy).arg(300_i32));
        let apply = |op: i32, v: i32| match op {
            0 => v.wrapping_mul(7),
            1 => v / 3,
            2 => v % 5,
            3 => v << 3,
            4 => !v,
            5 => (v.count_ones() + v.leading_zeros()) as i32,
            6 => ((i64::from(v) * i64::from(v)) >> 7) as i32,
            _ => v.reverse_bits(),
        };
        let expected: Vec<i32> = ops.iter().zip(&x).map(|(&op, &v)| apply(op, v)).collect();
        assert_eq!(b.read::<i32>(dy, 300), expected);
    });
}

#[test]
fn constant_memory() {
    everywhere(|b| {
        let x = floats(500, 6);
        let (dx, dy) = (b.input(&x), b.output::<f32>(500));
        b.run("stencil", &Launch::new(4, 128).arg(dx).arg(dy).arg(500_i32));
        let at = |i: i64| x[i.clamp(0, 499) as usize];
        let expected: Vec<f32> = (0..500)
            .map(|i| {
                let weights = [1.0_f32, 4.0, 6.0, 4.0, 1.0];
                let sum = (-2..=2)
                    .zip(weights)
                    .fold(0.0_f32, |sum, (k, w)| w.mul_add(at(i + k), sum));
                sum / 16.0
            })
            .collect();
        assert_eq!(b.read::<f32>(dy, 500), expected);
    });
}

#[test]
fn recursion_and_local_memory() {
    everywhere(|b| {
        let out = b.output::<i32>(64);
        b.run("recursive", &Launch::new(1, 64).arg(out));
        let mut fibonacci = vec![0, 1];
        for i in 2..12 {
            fibonacci.push(fibonacci[i - 1] + fibonacci[i - 2]);
        }
        assert_eq!(
            b.read::<i32>(out, 64),
            (0..64).map(|i| fibonacci[i % 12]).collect::<Vec<_>>()
        );
    });
}

#[test]
fn functions_of_cuda() {
    everywhere(|b| {
        // Large arguments take the slow path of the reduction, which uses local memory.
        let mut x: Vec<f32> = floats(200, 8).into_iter().map(|v| v * 20.0).collect();
        x[3] = 1e30;
        x[77] = -3.5e8;
        let u: Vec<f64> = x.iter().map(|&v| f64::from(v).clamp(-30.0, 30.0)).collect();
        let (dx, dy, du, dv) = (b.input(&x), b.output::<f32>(200), b.input(&u), b.output::<f64>(200));
        b.run(
            "sines",
            &Launch::new(2, 128).arg(dx).arg(dy).arg(du).arg(dv).arg(200_i32),
        );
        for (&x, y) in x.iter().zip(b.read::<f32>(dy, 200)) {
            let x = f64::from(x);
            let expected = x.sin() + (x.abs() + 1.0).ln() + x.tanh() + x.abs().powf(f64::from(0.3_f32));
            assert!(
                (f64::from(y) - expected).abs() <= expected.abs() * 1e-6 + 2e-6,
                "{x}: {y}, not {expected}"
            );
        }
        for (&u, v) in u.iter().zip(b.read::<f64>(dv, 200)) {
            let expected = u.exp() + u.cos() + u.abs().sqrt() + 1.0 / u;
            assert!(
                (v - expected).abs() <= expected.abs() * 1e-14,
                "{u}: {v}, not {expected}"
            );
        }
    });
}

#[test]
fn pairs_of_halves() {
    use half::f16;
    everywhere(|b| {
        let (x, y) = (integers(300, 9), integers(300, 10));
        let (dx, dy, dz) = (b.input(&x), b.input(&y), b.output::<u32>(300));
        b.run(
            "half_arithmetic",
            &Launch::new(3, 128).arg(dx).arg(dy).arg(dz).arg(300_i32),
        );
        let one = |x: u32, y: u32| {
            let (x, y) = (f16::from_bits(x as u16), f16::from_bits(y as u16));
            // Products of two f16 are exact in f64, and so is this sum: the exponents are not far apart enough to lose bits
            // that matter, which the test of single instructions checks on its own.
            let (x64, y64) = (x.to_f64(), y.to_f64());
            let t = f16::from_f64(x64 * y64 + x64);
            let t = f16::from_f64(t.to_f64() * y64);
            if t.is_nan() || x.is_nan() { f16::NAN } else { t.max(x) }
        };
        for (i, z) in b.read::<u32>(dz, 300).into_iter().enumerate() {
            for shift in [0, 16] {
                let (found, expected) = (f16::from_bits((z >> shift) as u16), one(x[i] >> shift, y[i] >> shift));
                let same = found == expected || found.is_nan() && expected.is_nan();
                assert!(same, "{i}: {found}, not {expected}");
            }
        }
    });
}

#[test]
fn a_kernel_of_tlc() {
    let table = floats(32 * 24, 11);
    let indices: Vec<i64> = integers(20, 12).into_iter().map(|v| i64::from(v % 80) - 40).collect();
    let mut device = tlc_gpusim::Device::default();
    let module = tlc_gpusim::Module::parse(include_str!("../kernels/tlc_gather.sm_80.ptx")).unwrap();
    let bytes: Vec<u8> = indices.iter().flat_map(|v| v.to_le_bytes()).collect();
    let at = device.allocate(160).unwrap();
    device.write(at, &bytes).unwrap();
    let mut b = crate::Bench {
        device,
        module,
        options: tlc_gpusim::Options::default(),
    };
    let (d_table, out) = (b.input(&table), b.output::<f32>(20 * 24));
    b.run(
        "encoder_0",
        &Launch::new(2, 256).arg(at).arg(d_table).arg(out).arg(20_i64),
    );
    let found = b.read::<f32>(out, 20 * 24);
    for (row, &index) in indices.iter().enumerate() {
        let index = if index < 0 { index + 32 } else { index };
        for column in 0..24 {
            let expected = if (0..32).contains(&index) {
                table[index as usize * 24 + column]
            } else {
                0.0
            };
            assert_eq!(found[row * 24 + column], expected, "row {row}");
        }
    }
}
