//! Threads that work together.

use tlc_gpusim::Launch;

use crate::{everywhere, floats, integers};

fn small_ints(count: usize, seed: u64) -> Vec<i32> {
    integers(count, seed)
        .into_iter()
        .map(|v| (v % 2001) as i32 - 1000)
        .collect()
}

#[test]
fn reduction_in_shared_memory() {
    everywhere(|b| {
        // Small integers, so that any order of additions gives the same sum.
        let x: Vec<f32> = small_ints(5000, 1).into_iter().map(|v| v as f32).collect();
        let (dx, out) = (b.input(&x), b.output::<f32>(4));
        let report = b.run("reduce", &Launch::new(4, 256).arg(dx).arg(out).arg(5000_i32));
        assert_eq!(b.read::<f32>(out, 4).iter().sum::<f32>(), x.iter().sum::<f32>());
        assert_eq!(report.counters.bank_conflicts, 0);
        assert_eq!(report.counters.barriers, 4 * 9);
    });
}

#[test]
fn reduction_by_shuffles() {
    everywhere(|b| {
        let x = small_ints(3000, 2);
        let (dx, out) = (b.input(&x), b.output::<i32>(1));
        b.run("reduce_warps", &Launch::new(1, 256).arg(dx).arg(out).arg(3000_i32));
        assert_eq!(b.read::<i32>(out, 1), [x.iter().sum::<i32>()]);
    });
}

#[test]
fn reduction_by_the_last_block() {
    everywhere(|b| {
        let x = small_ints(3000, 3);
        let (dx, partial, out) = (b.input(&x), b.output::<i32>(20), b.output::<i32>(1));
        for _ in 0..2 {
            b.run(
                "reduce_last_block",
                &Launch::new(20, 64).arg(dx).arg(partial).arg(out).arg(3000_i32),
            );
            assert_eq!(b.read::<i32>(out, 1), [x.iter().sum::<i32>()]);
        }
    });
}

#[test]
fn scan() {
    everywhere(|b| {
        let x = small_ints(1000, 4);
        let (dx, dy) = (b.input(&x), b.output::<i32>(1000));
        b.run("scan", &Launch::new(1, 1024).arg(dx).arg(dy).arg(1000_i32));
        let mut sum = 0;
        let expected: Vec<i32> = x
            .iter()
            .map(|v| {
                sum += v;
                sum
            })
            .collect();
        assert_eq!(b.read::<i32>(dy, 1000), expected);
    });
}

#[test]
fn transposition() {
    everywhere(|b| {
        let (rows, columns) = (70, 45);
        let x = floats(rows * columns, 5);
        let (dx, dy) = (b.input(&x), b.output::<f32>(rows * columns));
        let mut launch = Launch::new(2, 32).arg(dx).arg(dy).arg(rows as i32).arg(columns as i32);
        launch.grid = [2, 3, 1];
        launch.block = [32, 8, 1];
        let report = b.run("transpose", &launch);
        let y = b.read::<f32>(dy, rows * columns);
        assert!((0..rows).all(|r| (0..columns).all(|c| y[c * rows + r] == x[r * columns + c])));
        assert_eq!(report.counters.bank_conflicts, 0);
    });
}

#[test]
fn histogram() {
    everywhere(|b| {
        let x: Vec<u8> = integers(5000, 6).into_iter().map(|v| (v % 97) as u8).collect();
        let (dx, bins) = (b.input(&x), b.input(&[0_u32; 256]));
        b.run("histogram", &Launch::new(4, 128).arg(dx).arg(bins).arg(5000_i32));
        let mut expected = vec![0; 256];
        x.iter().for_each(|&v| expected[v as usize] += 1);
        assert_eq!(b.read::<u32>(bins, 256), expected);
    });
}

#[test]
fn asynchronous_copies() {
    everywhere(|b| {
        let x = floats(4 * 64 * 7, 7);
        let (dx, dy) = (b.input(&x), b.output::<f32>(64 * 7));
        b.run("double_buffered", &Launch::new(1, 64).arg(dx).arg(dy).arg(7_i32));
        let expected: Vec<f32> = (0..64 * 7)
            .map(|i| {
                let at = 4 * (i / 64 * 64 + 63 - i % 64);
                x[at] + x[at + 1] + x[at + 2] + x[at + 3]
            })
            .collect();
        assert_eq!(b.read::<f32>(dy, 64 * 7), expected);
    });
}

#[test]
fn softmax_rows() {
    everywhere(|b| {
        let (rows, columns) = (5, 300);
        let x: Vec<f32> = floats(rows * columns, 8).into_iter().map(|v| v * 9.0).collect();
        let (dx, dy) = (b.input(&x), b.output::<f32>(rows * columns));
        b.run(
            "softmax",
            &Launch::new(rows as u32, 128)
                .shared(512)
                .arg(dx)
                .arg(dy)
                .arg(columns as i32),
        );
        for (row, y) in x.chunks(columns).zip(b.read::<f32>(dy, rows * columns).chunks(columns)) {
            let most = row.iter().copied().fold(f32::MIN, f32::max);
            let sum: f64 = row.iter().map(|&v| f64::from(v - most).exp()).sum();
            for (&v, &y) in row.iter().zip(y) {
                let expected = f64::from(v - most).exp() / sum;
                assert!(
                    (f64::from(y) - expected).abs() <= 3e-6 * expected,
                    "{y}, not {expected}"
                );
            }
        }
    });
}

#[test]
fn locks_within_a_warp() {
    everywhere(|b| {
        let (lock, counter) = (b.input(&[0_i32]), b.input(&[0_i32]));
        b.run("spin_lock", &Launch::new(3, 48).arg(lock).arg(counter));
        assert_eq!(b.read::<i32>(counter, 1), [3 * 48]);
    });
}

#[test]
fn compaction_by_votes() {
    everywhere(|b| {
        let x = small_ints(900, 9);
        let (dx, dy, count) = (b.input(&x), b.output::<i32>(900), b.input(&[0_i32]));
        b.run("compact", &Launch::new(8, 128).arg(dx).arg(dy).arg(count).arg(900_i32));
        let mut expected: Vec<i32> = x.iter().copied().filter(|&v| v > 0).collect();
        let mut found = b.read::<i32>(dy, expected.len());
        assert_eq!(b.read::<i32>(count, 1), [expected.len() as i32]);
        expected.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, expected);
    });
}
