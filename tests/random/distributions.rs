//! Draws follow their distributions: by the statistic of Kolmogorov and Smirnov, by moments, by frequencies.

use tlc::{CompileOptions, DType, Graph, Key};

use super::against::{follows, has_moments, normal_below, values};

const COUNT: usize = 200_000;

#[test]
fn uniform_numbers_are_uniform() {
    let g = Graph::new("uniform");
    for (seed, dtype) in [(1, DType::F32), (2, DType::F64), (3, DType::F32)] {
        let sample = values(&g.key(seed).uniform(COUNT, dtype));
        assert!(sample.iter().all(|v| (0.0..1.0).contains(v)), "{dtype}");
        follows(&format!("{dtype}"), &sample, |x| x);
        has_moments(&format!("{dtype}"), &sample, 0.5, (1f64 / 12.0).sqrt(), 1.8);
    }
    // One number by each of many keys.
    let key = g.key(9);
    let results = g.repeat(COUNT).record(|i| {
        let key = Key::from_tensor(&i.capture(key.tensor())).fold_in(&i.number);
        i.stack(&key.uniform((), DType::F32), 0);
        vec![]
    });
    follows("across keys", &values(&results[0]), |x| x);
}

#[test]
fn normal_numbers_are_normal() {
    let g = Graph::new("normal");
    for (seed, dtype) in [(1, DType::F32), (2, DType::F64)] {
        let sample = values(&g.key(seed).normal(COUNT, dtype));
        follows(&format!("{dtype}"), &sample, normal_below);
        has_moments(&format!("{dtype}"), &sample, 0.0, 1.0, 3.0);
    }
    for dtype in [DType::F16, DType::BF16] {
        let sample = values(&g.key(4).normal(COUNT, dtype));
        // Rounding moves a deviation of 1 by less than the standard error.
        has_moments(&format!("{dtype}"), &sample, 0.0, 1.0, 3.0);
    }
}

#[test]
fn truncated_normal_numbers_are_those_between_the_bounds() {
    let inf = f64::INFINITY;
    let g = Graph::new("truncated");
    let bounds = [
        (-2.0, 2.0),
        (-0.5, 3.0),
        (0.0, inf),
        (-inf, -1.0),
        (-inf, inf),
        (1.5, 1.75),
        (5.0, 5.5),
        (-9.0, -8.0),
        (12.0, inf),
        (-30.0, -29.0),
        (-30.0, 0.1),
    ];
    for (k, (lo, hi)) in bounds.into_iter().enumerate() {
        for dtype in [DType::F32, DType::F64] {
            let what = format!("{lo} to {hi}, {dtype}");
            let sample = values(&g.key(k as u64).truncated_normal(lo, hi, COUNT, dtype));
            assert!(sample.iter().all(|v| (lo..=hi).contains(v) && v.is_finite()), "{what}");
            // Above zero, from the other end, where probabilities have more digits.
            if lo > 0.0 {
                let all = normal_below(-lo) - normal_below(-hi);
                follows(&what, &sample, |x| (normal_below(-lo) - normal_below(-x)) / all);
            } else {
                let all = normal_below(hi) - normal_below(lo);
                follows(&what, &sample, |x| (normal_below(x) - normal_below(lo)) / all);
            }
        }
    }
    // Both ends of what 24 bits reach are there, and nothing beyond.
    let sample = values(&g.key(77).truncated_normal(-inf, inf, 4_000_000, DType::F32));
    let (least, most) = sample.iter().fold((0f64, 0f64), |(lo, hi), v| (lo.min(*v), hi.max(*v)));
    assert!(
        (-6.0..-4.5).contains(&least) && (4.5..6.0).contains(&most),
        "{least} {most}"
    );
}

#[test]
fn between_bounds_that_are_close_together_numbers_are_uniform() {
    // The density is flat there, so that an error of a part in 10^10 of the distance would show.
    let g = Graph::new("narrow");
    for at in [-20.0, -5.0, -1.0, -0.3, 0.25, 0.9, 3.0, 33.0] {
        let sample = values(&g.key(1).truncated_normal(at, at + 1e-9, 1000, DType::F64));
        let (lo, width) = (at, (at + 1e-9) - at);
        follows(&format!("at {at}"), &sample, |x| (x - lo) / width);
    }
}

#[test]
fn truths_and_integers_are_as_frequent_as_they_should_be() {
    let g = Graph::new("frequent");
    for (seed, p) in [(1, 0.5), (2, 0.1), (3, 0.999), (4, 0.0), (5, 1.0)] {
        let share = values(&g.key(seed).bernoulli(p, COUNT)).iter().sum::<f64>() / COUNT as f64;
        let error = (p * (1.0 - p) / COUNT as f64).sqrt();
        assert!((share - p).abs() <= 4.0 * error, "{p}: {share}");
    }
    let dice = values(&g.key(6).randint(-2, 4, COUNT, DType::I8));
    let expected = COUNT as f64 / 6.0;
    let squares = (-2..4).map(|face| {
        let found = dice.iter().filter(|v| **v == f64::from(face)).count() as f64;
        (found - expected).powi(2) / expected
    });
    // χ² with five degrees of freedom is above 20.5 in one of 1000 cases.
    assert!(squares.sum::<f64>() < 20.5);
}

#[test]
fn permutations_are_all_equally_likely() {
    let g = Graph::new("permutation");
    let order = values(&g.key(1).permutation(100_000));
    let mut sorted = order.clone();
    sorted.sort_by(f64::total_cmp);
    assert!(sorted.iter().enumerate().all(|(i, v)| i as f64 == *v));
    assert!(order.iter().enumerate().filter(|(i, v)| *i as f64 == **v).count() < 10);
    assert!(values(&g.key(1).permutation(0)).is_empty());

    let (count, key) = (24_000, g.key(2));
    let results = g.repeat(count).record(|i| {
        let key = Key::from_tensor(&i.capture(key.tensor())).fold_in(&i.number);
        i.stack(&key.permutation(4), 0);
        vec![]
    });
    g.output("orders", &results[0]);
    let found = g.compile(&CompileOptions::default()).unwrap().run(&[]).unwrap();
    let mut counts = std::collections::HashMap::new();
    for order in found[0].as_slice::<i64>().unwrap().chunks(4) {
        *counts.entry(order.to_vec()).or_insert(0) += 1;
    }
    assert_eq!(counts.len(), 24);
    let squares = counts.values().map(|&n| f64::from(n - 1000).powi(2) / 1000.0);
    // χ² with 23 degrees of freedom is above 49.7 in one of 1000 cases.
    assert!(squares.sum::<f64>() < 49.7, "{counts:?}");
}
