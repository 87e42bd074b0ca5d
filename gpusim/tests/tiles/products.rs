//! Products and attention whose operands are copied in tiles.

use half::bf16;
use tlc_gpusim::{Launch, Module};

use crate::{Bench, Dice, SCHEDULES, TILES, argument, matrix};

/// Small numbers whose products and sums are exact in f32, as bf16.
fn numbers(len: usize, seed: u64) -> (Vec<u8>, Vec<f64>) {
    let mut dice = Dice::new(seed);
    let values: Vec<bf16> = (0..len)
        .map(|_| bf16::from_f32(dice.within(-64, 63) as f32 / 16.0))
        .collect();
    let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    (bytes, values.iter().map(|v| v.to_f64()).collect())
}

fn check_product(kernel: &str, threads: u32, (m, n, k): (usize, usize, usize)) {
    let module = Module::parse(TILES).unwrap();
    let ((a, left), (b, right)) = (numbers(m * k, 1), numbers(k * n, 2));
    for (schedule, seed) in SCHEDULES {
        let mut bench = Bench::new(schedule, seed);
        let (a, b) = (bench.input(&a), bench.input(&b));
        let c = bench.output(4 * m * n);
        let left_map = matrix(a, 2, (m as u64, k as u64), (128, 64));
        let right_map = matrix(b, 2, (k as u64, n as u64), (64, 64));
        let mut launch = Launch::new(1, threads)
            .shared(1024 + 3 * 32768)
            .arg(argument(&left_map))
            .arg(argument(&right_map))
            .arg(c)
            .arg(n as i32)
            .arg(k as i32);
        launch.grid = [n as u32 / 128, m as u32 / 128, 1];
        let report = bench.run(&module, kernel, &launch);
        assert!(report.is_clean(), "{kernel} at {schedule:?} {seed}: {report}");
        let found = bench.floats(c, m * n);
        for (i, &value) in found.iter().enumerate() {
            let (row, column) = (i / n, i % n);
            let expected: f64 = (0..k).map(|j| left[row * k + j] * right[j * n + column]).sum();
            assert_eq!(f64::from(value), expected, "{row} {column} at {schedule:?} {seed}");
        }
        let blocks = (m / 128 * n / 128) as u64;
        let steps = blocks * (k / 64) as u64;
        let counters = &report.counters;
        assert_eq!(counters.tile_copies, 3 * steps);
        assert_eq!(counters.global_loads.bytes, 2 * 128 * 128 * steps);
        assert_eq!(counters.global_loads.sectors * 32, counters.global_loads.bytes);
    }
}

#[test]
fn product_with_a_barrier_a_step() {
    check_product("product", 256, (256, 128, 320));
}

#[test]
fn product_with_threads_that_copy() {
    check_product("specialized", 288, (128, 256, 320));
}

#[test]
fn attention_in_tiles() {
    let module = Module::parse(TILES).unwrap();
    let (heads, length, features) = (2, 256, 64);
    let len = heads * length * features;
    let [(q, queries), (k, keys), (v, values)] = [3, 4, 5].map(|seed| numbers(len, seed));
    let scale = 0.05_f64;
    let at = |head: usize, row: usize, feature: usize| (head * length + row) * features + feature;
    for (schedule, seed) in SCHEDULES {
        let mut bench = Bench::new(schedule, seed);
        let maps = [&q, &k, &v].map(|bytes| {
            let address = bench.input(bytes);
            matrix(address, 2, ((heads * length) as u64, features as u64), (64, 64))
        });
        let out = bench.output(4 * len);
        let mut launch = Launch::new(1, 128).shared(1024 + 5 * 8192);
        for map in &maps {
            launch = launch.arg(argument(map));
        }
        launch = launch.arg(out).arg(length as i32).arg(scale as f32);
        launch.grid = [length as u32 / 64, heads as u32, 1];
        let report = bench.run(&module, "attention", &launch);
        assert!(report.is_clean(), "at {schedule:?} {seed}: {report}");
        let found = bench.floats(out, len);
        for (head, row) in (0..heads).flat_map(|h| (0..length).map(move |r| (h, r))) {
            let score = |key: usize| -> f64 {
                let dot: f64 = (0..features)
                    .map(|f| queries[at(head, row, f)] * keys[at(head, key, f)])
                    .sum();
                dot * scale
            };
            let scores: Vec<f64> = (0..length).map(score).collect();
            let top = scores.iter().copied().fold(f64::MIN, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
            let all: f64 = weights.iter().sum();
            for feature in 0..features {
                let sum: f64 = (0..length)
                    .map(|key| weights[key] * values[at(head, key, feature)])
                    .sum();
                let (expected, value) = (sum / all, f64::from(found[at(head, row, feature)]));
                // Weights are rounded to bf16, and values are at most 4.
                assert!((value - expected).abs() < 4.0 / 128.0, "{value} not {expected}");
            }
        }
    }
}
