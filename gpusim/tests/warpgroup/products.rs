//! Results, bit for bit where they are exact.

use tlc_gpusim::{Class, Launch, Module, Report};

use crate::{Bench, Kept, SCHEDULES, numbers};

const TEXT: &str = include_str!("../kernels/wgmma.sm_90a.ptx");

/// A kernel that multiplies once: C of m by n.
struct Product {
    kernel: &'static str,
    kept: Kept,
    size: (usize, usize, usize),
    /// Whether memory has A and B column by column of the rows that they multiply.
    transposed: (bool, bool),
    sign: f64,
}

impl Product {
    const fn new(kernel: &'static str, kept: Kept, size: (usize, usize, usize), transposed: (bool, bool)) -> Product {
        Product {
            kernel,
            kept,
            size,
            transposed,
            sign: 1.0,
        }
    }

    fn launch(&self, bench: &mut Bench, module: &Module, a: &[u8], b: &[u8]) -> (Report, Vec<f32>) {
        let (m, n, k) = self.size;
        let bytes = if self.kept == Kept::Tf32 { 4 } else { 2 };
        let (a, b, c) = (bench.input(a), bench.input(b), bench.output(m * n));
        let launch = Launch::new(1, (m / 64 * 128) as u32)
            .shared(((m + n) * k * bytes) as u32)
            .arg(a)
            .arg(b)
            .arg(c);
        let report = bench.run(module, self.kernel, &launch);
        (report, bench.read(c, m * n))
    }

    /// What a plain loop gives.
    fn expected(&self, a: &[f64], b: &[f64]) -> Vec<f32> {
        let (m, n, k) = self.size;
        let left = |row: usize, i: usize| {
            if self.transposed.0 {
                a[i * m + row]
            } else {
                a[row * k + i]
            }
        };
        let right = |column: usize, i: usize| {
            if self.transposed.1 {
                b[i * n + column]
            } else {
                b[column * k + i]
            }
        };
        (0..m * n)
            .map(|at| {
                let sum: f64 = (0..k).map(|i| left(at / n, i) * right(at % n, i)).sum();
                (self.sign * sum) as f32
            })
            .collect()
    }

    fn check(&self) {
        let module = Module::parse(TEXT).unwrap();
        let (m, n, k) = self.size;
        let (a, left) = self.kept.keep(&numbers(m * k, 3));
        let (b, right) = self.kept.keep(&numbers(n * k, 4));
        let expected = self.expected(&left, &right);
        for (schedule, seed) in SCHEDULES {
            let mut bench = Bench::new(schedule, seed);
            let (report, found) = self.launch(&mut bench, &module, &a, &b);
            assert!(report.is_clean(), "{report}");
            assert_eq!(found, expected, "{} at {schedule:?}", self.kernel);
            let steps = k / if self.kept == Kept::Tf32 { 8 } else { 16 };
            assert_eq!(report.counters.warps_of(Class::Matrix), (m / 16 * steps) as u64);
        }
    }
}

#[test]
fn rows_along_k() {
    Product::new("rows_rows", Kept::Bf16, (128, 64, 64), (false, false)).check();
    Product::new("rows_rows_permuted", Kept::Bf16, (128, 64, 128), (false, false)).check();
}

#[test]
fn rows_along_m_and_n() {
    Product::new("columns_columns", Kept::Bf16, (64, 64, 32), (true, true)).check();
    Product::new("columns_columns_permuted", Kept::Bf16, (128, 64, 64), (true, true)).check();
}

#[test]
fn widest_and_narrowest() {
    Product::new("wide", Kept::Bf16, (64, 256, 64), (false, true)).check();
    let narrow = Product::new("narrow_negative", Kept::Bf16, (64, 8, 32), (false, false));
    Product { sign: -1.0, ..narrow }.check();
}

#[test]
fn halves() {
    Product::new("halves", Kept::F16, (64, 24, 32), (true, false)).check();
    Product::new("halves_in_registers", Kept::F16, (128, 24, 48), (false, true)).check();
}

#[test]
fn left_operand_in_registers() {
    Product::new("registers_permuted", Kept::Bf16, (64, 64, 64), (false, true)).check();
}

#[test]
fn tf32() {
    Product::new("tf32", Kept::Tf32, (64, 16, 32), (false, false)).check();
    Product::new("tf32_in_registers", Kept::Tf32, (64, 16, 32), (false, false)).check();
}

/// Rows with values at the edges: each result has one term that is not zero or decides.
#[test]
fn edges() {
    let product = Product::new("rows_rows", Kept::Bf16, (128, 64, 64), (false, false));
    let module = Module::parse(TEXT).unwrap();
    let edges = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 3e38, 1e-39, -1.5];
    let at = |rows: usize, shift: usize| {
        let mut values = vec![0.0; rows * 64];
        for row in 0..rows {
            values[row * 64 + 5] = edges[row / shift % 8];
        }
        values
    };
    let (a, left) = Kept::Bf16.keep(&at(128, 1));
    let (b, right) = Kept::Bf16.keep(&at(64, 8));
    let (report, found) = product.launch(&mut Bench::new(SCHEDULES[0].0, 0), &module, &a, &b);
    assert!(report.is_clean(), "{report}");
    let bits = |v: &f32| if v.is_nan() { u32::MAX } else { v.to_bits() };
    // The sum starts at zero, so that no result is -0.0.
    let expected: Vec<f32> = product.expected(&left, &right).iter().map(|v| v + 0.0).collect();
    assert_eq!(
        found.iter().map(bits).collect::<Vec<_>>(),
        expected.iter().map(bits).collect::<Vec<_>>()
    );
}

#[test]
fn pipeline() {
    let module = Module::parse(TEXT).unwrap();
    for k in [64, 128, 192, 448] {
        let (m, n) = (64, 128);
        let (a, left) = Kept::Bf16.keep(&numbers(m * k, 5));
        let (b, right) = Kept::Bf16.keep(&numbers(n * k, 6));
        let expected = Product::new("pipeline", Kept::Bf16, (m, n, k), (false, true)).expected(&left, &right);
        for (schedule, seed) in SCHEDULES {
            let mut bench = Bench::new(schedule, seed);
            let (a, b, c) = (bench.input(&a), bench.input(&b), bench.output(m * n));
            let launch = Launch::new(2, 128).shared(65536).arg(a).arg(b).arg(c).arg(k as i32);
            let report = bench.run(&module, "pipeline", &launch);
            assert!(report.is_clean(), "{report}");
            assert_eq!(bench.read(c, m * n), expected, "k = {k} at {schedule:?}");
        }
    }
}

#[test]
fn attention() {
    let module = Module::parse(TEXT).unwrap();
    for keys in [64, 128, 320] {
        let small = |len, seed| numbers(len, seed).iter().map(|v| v / 8.0).collect::<Vec<f32>>();
        let (q, queries) = Kept::Bf16.keep(&small(64 * 64, 1));
        let (k, rows) = Kept::Bf16.keep(&small(keys * 64, 2));
        let (v, values) = Kept::Bf16.keep(&small(keys * 64, 3));
        for (schedule, seed) in SCHEDULES {
            let mut bench = Bench::new(schedule, seed);
            let (q, k, v, o) = (bench.input(&q), bench.input(&k), bench.input(&v), bench.output(64 * 64));
            let launch = Launch::new(1, 128)
                .shared(5 * 8192)
                .arg(q)
                .arg(k)
                .arg(v)
                .arg(o)
                .arg(keys as i32);
            let report = bench.run(&module, "attention", &launch);
            assert!(report.is_clean(), "{report}");
            let found = bench.read(o, 64 * 64);
            for row in 0..64 {
                let scores: Vec<f64> = (0..keys)
                    .map(|key| (0..64).map(|i| queries[row * 64 + i] * rows[key * 64 + i]).sum())
                    .collect();
                let weights: Vec<f64> = scores.iter().map(|s: &f64| s.exp2()).collect();
                let sum: f64 = weights.iter().sum();
                for column in 0..64 {
                    let expected: f64 = (0..keys)
                        .map(|key| weights[key] / sum * values[key * 64 + column])
                        .sum();
                    let off = (f64::from(found[row * 64 + column]) - expected).abs();
                    assert!(off < 4e-3, "{row} {column}: {off}");
                }
            }
        }
    }
}
