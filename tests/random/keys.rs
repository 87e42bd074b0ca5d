//! Keys: what they are made of, which draws they have in common, and that none meets another.

use std::collections::HashSet;

use tlc::ir::interp::{Options, interpret};
use tlc::{CompileOptions, DType, Graph, HostTensor, Key, Tensor, inputs, named_scope};

use super::against::{correlation, values};

/// As `ops::random` states it.
fn folded(key: u64, number: u64) -> u64 {
    let z = (key ^ (key >> 30)).wrapping_mul(0xbf58476d1ce4e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d049bb133111eb);
    (z ^ (z >> 31)).wrapping_add(number.wrapping_add(1).wrapping_mul(0x9e3779b97f4a7c15))
}

/// As `ops::key` states it: the fractions of √2 and √3.
fn split(key: u64, part: u64) -> u64 {
    folded(key ^ 0x6a09e667f3bcc908, part)
}

fn named(key: u64, name: &str) -> u64 {
    let hash = name.bytes().fold(0xcbf29ce484222325u64, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x100000001b3)
    });
    folded(key ^ 0xbb67ae8584caa73b, hash)
}

fn bits(key: &Key) -> u64 {
    key.tensor().eval().unwrap().as_scalar().unwrap()
}

fn words(t: &Tensor) -> Vec<u32> {
    t.eval().unwrap().as_slice::<u32>().unwrap().to_vec()
}

#[test]
fn keys_are_the_stated_ones() {
    let g = Graph::new("keys");
    for seed in [0, 1, 42, 0x9e3779b97f4a7c15, u64::MAX] {
        let key = g.key(seed);
        assert_eq!(bits(&key), seed);
        for number in [0u64, 1, 2, 1 << 40, u64::MAX - 1] {
            assert_eq!(bits(&key.fold_in(number)), folded(seed, number));
        }
        assert_eq!(bits(&key.fold_in(7).fold_in(9)), folded(folded(seed, 7), 9));
        for dtype in [DType::U8, DType::I32, DType::I64, DType::U64] {
            assert_eq!(bits(&key.fold_in(g.scalar(5, dtype))), folded(seed, 5));
        }
        let parts: [Key; 3] = key.split();
        let some = key.split_n(40);
        for (part, found) in parts.iter().chain(&some).enumerate() {
            let part = if part < 3 { part } else { part - 3 };
            assert_eq!(bits(found), split(seed, part as u64));
        }
        for name in ["", "weight", "layer.1", "\u{fc}"] {
            assert_eq!(bits(&key.named(name)), named(seed, name));
        }
    }
}

#[test]
fn no_key_is_derived_twice() {
    let mut seen = HashSet::new();
    let mut add = |key: u64, what: &str| assert!(seen.insert(key), "{what}");
    for seed in [0u64, 1, 2, 1 << 63, u64::MAX] {
        add(seed, "seed");
        for i in 0..100_000 {
            add(folded(seed, i), "fold_in");
            add(split(seed, i), "split");
            add(named(seed, &format!("layers.{i}.weight")), "named");
            if i < 300 {
                for k in 0..30 {
                    add(folded(split(seed, i), k), "fold_in of a part");
                    add(split(folded(seed, i), k), "a part of fold_in");
                    add(split(split(seed, i), k), "a part of a part");
                    add(folded(folded(seed, i), k), "fold_in twice");
                }
            }
        }
    }
}

#[test]
fn in_a_loop_a_key_is_the_same_everywhere_and_folding_in_the_number_gives_what_the_loop_inherits() {
    let g = Graph::new("loop");
    let outer = g.key(11);
    let count = 100_000;
    let results = g.repeat(count).record(|i| {
        let key = Key::from_tensor(&i.capture(outer.tensor()));
        i.stack(key.fold_in(&i.number).tensor(), 0);
        vec![]
    });
    let keys = results[0].eval().unwrap();
    let keys = keys.as_slice::<u64>().unwrap();
    assert!((0..count as u64).zip(keys).all(|(i, key)| *key == folded(11, i)));

    let results = g.repeat(3).record(|i| {
        let key = Key::from_tensor(&i.capture(outer.tensor()));
        i.stack(&key.random_bits(5), 0);
        i.stack(&key.fold_in(&i.number).random_bits(5), 0);
        vec![]
    });
    let (same, others) = (words(&results[0]), words(&results[1]));
    let outside = words(&outer.random_bits(5));
    assert_eq!(same, [&outside[..]; 3].concat());
    let expected: Vec<u32> = (0..3).flat_map(|i| words(&outer.fold_in(i).random_bits(5))).collect();
    assert_eq!(others, expected);
}

/// Every draw by a key, as f64.
fn draws(key: &Key) -> Vec<(&'static str, Tensor)> {
    let ones = key.tensor().graph().ones([4, 6], DType::F32);
    vec![
        ("bits", key.random_bits([4, 6])),
        ("uniform", key.uniform([4, 6], DType::F32)),
        ("uniform f64", key.uniform([4, 6], DType::F64)),
        ("normal", key.normal([4, 6], DType::F32)),
        ("normal f64", key.normal([4, 6], DType::F64)),
        ("truncated", key.truncated_normal(-1.0, 3.0, [4, 6], DType::F32)),
        ("integers", key.randint(-4, 90, [4, 6], DType::I32)),
        ("bernoulli", key.bernoulli(0.4, [4, 6])),
        ("permutation", key.permutation(24)),
        ("dropout", ones.dropout_with(0.4, key)),
    ]
}

#[test]
fn draws_follow_from_the_key_alone_and_not_from_their_place() {
    let first = Graph::new("first");
    let expected: Vec<Vec<f64>> = draws(&first.key(3)).iter().map(|(_, t)| values(t)).collect();

    // In the reverse order, between other draws, in scopes, behind a seed.
    let g = Graph::new("second");
    g.seed(99);
    g.randn(100, DType::F32);
    let count = expected.len();
    for k in (0..count).rev() {
        g.rand(7, DType::F32);
        g.key(4).uniform(9, DType::F64);
        let (name, found) = named_scope(&format!("scope {k}"), || draws(&g.key(3)).swap_remove(k));
        assert_eq!(values(&found), expected[k], "{name}");
    }
    // By a key that a call gives, compiled and interpreted.
    let h = Graph::new("third");
    let key = Key::from_tensor(&h.input("key", DType::U64, ()));
    for (name, t) in draws(&key) {
        h.output(name, &t.cast(DType::F64));
    }
    let run = h.compile(&CompileOptions::default()).unwrap();
    let found = run.run(&inputs![3u64]).unwrap();
    let input = HostTensor::from_slice(&[], &[3u64]).unwrap();
    let meant = interpret(&h.finish().unwrap(), &[input], &Options::default()).unwrap();
    for ((found, meant), expected) in found.iter().zip(&meant).zip(&expected) {
        let found = found.as_slice::<f64>().unwrap();
        let meant = meant.as_slice::<f64>().unwrap();
        // Logarithms and cosines in machine code are a rounding off what the host computes.
        let close = |a: &f64, b: &f64| (a - b).abs() <= 4e-6 * (1.0 + b.abs());
        assert!(
            found.iter().zip(expected).all(|(a, b)| close(a, b)),
            "{found:?}, {expected:?}"
        );
        assert!(
            found.iter().zip(meant).all(|(a, b)| close(a, b)),
            "{found:?}, {meant:?}"
        );
    }
}

#[test]
fn a_larger_draw_begins_like_a_smaller_one_and_distributions_have_nothing_in_common() {
    let g = Graph::new("common");
    let key = g.key(8);
    assert_eq!(words(&key.random_bits(9))[..], words(&key.random_bits([4, 5]))[..9]);
    let n = 50_000;
    let samples = [
        values(&key.random_bits(n)),
        values(&key.uniform(n, DType::F32)),
        values(&key.normal(n, DType::F32)),
        values(&key.truncated_normal(-2.0, 2.0, n, DType::F32)),
        values(&key.randint(0, 1000, n, DType::I32)),
        values(&key.bernoulli(0.5, n)),
        values(&g.ones(n, DType::F32).dropout_with(0.5, &key)),
        values(&key.permutation(n)),
    ];
    g.seed(8);
    let unnamed = [values(&g.random_bits(n)), values(&g.randn(n, DType::F32))];
    let all: Vec<&Vec<f64>> = samples.iter().chain(&unnamed).collect();
    for (i, a) in all.iter().enumerate() {
        for (j, b) in all.iter().enumerate().skip(i + 1) {
            let found = correlation(a, b) * (n as f64).sqrt();
            assert!(found.abs() < 4.5, "draws {i} and {j}: {found} root-n correlations");
        }
    }
}

#[test]
fn keys_that_differ_give_independent_numbers() {
    let g = Graph::new("independent");
    let key = g.key(0);
    // Neighbours, which fold_in, split and consecutive seeds give, and keys with one bit set.
    let mut keys: Vec<Key> = (0..12).map(|i| key.fold_in(i)).collect();
    keys.extend(key.split_n(12));
    keys.extend((1..12).map(|seed| g.key(seed)));
    keys.extend((4..64).step_by(7).map(|bit| g.key(1 << bit)));
    keys.push(key);
    for (k, key) in keys.iter().enumerate() {
        g.output(&format!("uniform{k}"), &key.uniform(4096, DType::F32));
        g.output(&format!("bits{k}"), &key.random_bits(64));
    }
    let found = g.compile(&CompileOptions::default()).unwrap().run(&[]).unwrap();
    let uniform: Vec<Vec<f64>> = (0..keys.len())
        .map(|k| {
            found[2 * k]
                .as_slice::<f32>()
                .unwrap()
                .iter()
                .map(|v| f64::from(*v))
                .collect()
        })
        .collect();
    for (i, a) in uniform.iter().enumerate() {
        for (j, b) in uniform.iter().enumerate().skip(i + 1) {
            let found = correlation(a, b) * 64.0;
            assert!(found.abs() < 4.5, "keys {i} and {j}: {found} root-n correlations");
        }
    }
    let mut seen = HashSet::new();
    for k in 0..keys.len() {
        for word in found[2 * k + 1].as_slice::<u32>().unwrap() {
            assert!(seen.insert(*word), "{word:#x} twice");
        }
    }
}

#[test]
fn a_graph_draws_by_the_key_it_is_given() {
    let of = |g: &Graph| named_scope("layer", || g.random_bits(6));
    let g = Graph::new("seeded");
    g.seed(folded(5, 2));
    let expected = words(&of(&g));

    let g = Graph::new("step");
    let step = g.input("step", DType::I64, ());
    g.draw_by(&g.key(5).fold_in(&step));
    g.output("bits", &of(&g));
    let inside = g.repeat(2).record(|i| {
        let drawn = i.graph().random_bits(6);
        i.stack(&drawn, 0);
        vec![]
    });
    g.output("inside", &inside[0]);
    let run = g.compile(&CompileOptions::default()).unwrap();
    let at = |step: i64| run.run(&inputs![step]).unwrap();
    assert_eq!(at(2)[0].as_slice::<u32>().unwrap(), expected);
    assert_ne!(at(3)[0].as_slice::<u32>().unwrap(), expected);
    let inside = at(2)[1].as_slice::<u32>().unwrap().to_vec();
    let distinct: HashSet<&u32> = inside.iter().chain(&expected).collect();
    assert_eq!(distinct.len(), 18);
}

#[test]
fn what_no_key_is_made_of_is_refused() {
    let refusal = |f: fn(&Graph)| {
        let g = Graph::new("refused");
        f(&g);
        let all = g.errors();
        assert_eq!(all.len(), 1, "{all:?}");
        all[0].to_string()
    };
    type Wrong = (fn(&Graph), &'static str);
    let cases: [Wrong; 13] = [
        (|g| drop(Key::from_tensor(&g.scalar(1, DType::I64))), "u64[]"),
        (|g| drop(Key::from_tensor(&g.zeros(2, DType::U64))), "u64[]"),
        (|g| drop(g.key(1).fold_in(-1)), "-1 does not fit u64"),
        (|g| drop(g.key(1).fold_in(1.5)), "an integer"),
        (|g| drop(g.key(1).fold_in(true)), "an integer"),
        (
            |g| drop(g.key(1).fold_in(g.scalar(1.0, DType::F32))),
            "an integer without axes",
        ),
        (
            |g| drop(g.key(1).fold_in(g.zeros(3, DType::I64))),
            "an integer without axes",
        ),
        (|g| drop(g.key(1).uniform(3, DType::I32)), "a float dtype"),
        (|g| drop(g.key(1).bernoulli(1.5, 3)), "0 <= p <= 1"),
        (
            |g| drop(g.ones(3, DType::F32).dropout_with(f64::NAN, &g.key(1))),
            "0 <= p <= 1",
        ),
        (
            |g| drop(g.key(1).truncated_normal(1.0, 1.0, 3, DType::F32)),
            "the lower one first",
        ),
        (
            |g| drop(g.key(1).truncated_normal(40.0, 50.0, 3, DType::F32)),
            "the bounds 40 and 50",
        ),
        (|g| drop(g.key(1).randint(0, 300, 3, DType::U8)), "299 does not fit u8"),
    ];
    for (f, expected) in cases {
        let found = refusal(f);
        assert!(found.contains(expected), "{found}; expected {expected}");
    }
    // What follows from a refused key adds nothing.
    let g = Graph::new("poisoned");
    let key = Key::from_tensor(&g.zeros(2, DType::U64));
    assert!(
        key.fold_in(3).split::<2>()[1]
            .named("a")
            .normal(4, DType::F32)
            .is_poisoned()
    );
    g.draw_by(&key);
    assert_eq!(g.errors().len(), 1);
    // A key of the graph around a loop has to be captured.
    let g = Graph::new("outside");
    let key = g.key(1);
    let results = g.repeat(2).record(|i| {
        let drawn = i.number.cast(DType::F32).dropout_with(0.5, &key);
        i.stack(&drawn, 0);
        vec![]
    });
    assert!(results[0].is_poisoned());
    assert!(g.errors()[0].to_string().contains("capture"), "{}", g.errors()[0]);
}
