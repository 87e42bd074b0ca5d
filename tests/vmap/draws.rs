//! Random numbers in functions over batches: which key draws what, and that derivatives drop what the function dropped, however they are
//! asked for.

use tlc::{
    CompileOptions, DType, Graph, HostTensor, Key, Tensor, Vmap, checkpoint, grad, hessian, inputs, jacobian, jvp, vmap,
};

const F: DType = DType::F64;
const WIDTH: usize = 16;

fn values(t: &Tensor) -> Vec<f64> {
    let found = t.cast(F).eval().expect("it runs");
    found.as_slice::<f64>().expect("doubles").to_vec()
}

/// What a function makes of a key, however deep in the recording the draw is.
type Draws = fn(&Key) -> Tensor;

const DRAWS: [(&str, Draws); 8] = [
    ("bits", |k| k.random_bits(WIDTH).cast(F)),
    ("normal", |k| k.normal(WIDTH, F)),
    ("permutation", |k| k.permutation(WIDTH).cast(F)),
    ("dropout", |k| k.tensor().graph().ones(WIDTH, F).dropout_with(0.5, k)),
    ("folded", |k| k.fold_in(3).normal(WIDTH, F)),
    ("split", |k| {
        let [a, b] = k.split();
        a.uniform(WIDTH, F) + b.named("b").uniform(WIDTH, F)
    }),
    ("in a loop", |k| {
        let all = k.tensor().graph().repeat(3).record(|i| {
            let key = Key::from_tensor(&i.capture(k.tensor())).fold_in(&i.number);
            i.stack(&key.normal(WIDTH, F), 0);
            vec![]
        });
        all[0].sum(0)
    }),
    ("in a checkpoint", |k| {
        let x = k.tensor().graph().ones(WIDTH, F);
        checkpoint(&[&x, k.tensor()], |t| {
            vec![t[0].dropout_with(0.5, &Key::from_tensor(&t[1])).exp()]
        })
        .remove(0)
    }),
];

const KEYS: [u64; 6] = [0, 1, 7, u64::MAX, 1 << 63, 0x9e37_79b9_7f4a_7c15];

#[test]
fn a_key_of_each_example_draws_what_it_draws_alone() {
    for (name, draws) in DRAWS {
        let g = Graph::new(name);
        let keys = g.data(&KEYS, &[6]);
        let alone: Vec<f64> = KEYS
            .iter()
            .flat_map(|k| values(&draws(&Graph::default().key(*k))))
            .collect();
        for shared in [false, true] {
            let how = if shared {
                Vmap::new().shared_draws()
            } else {
                Vmap::new()
            };
            let found = how
                .map(&[(&keys, Some(0))], |t| vec![draws(&Key::from_tensor(&t[0]))])
                .remove(0);
            assert_eq!(values(&found), alone, "{name}, shared {shared}");
        }
        let nested = vmap(&[(&keys.reshape([2, 3]), Some(1))], |t| {
            vmap(&[(&t[0], Some(0))], |t| vec![draws(&Key::from_tensor(&t[0]))])
        });
        let found = values(&nested[0].permute([1, 0, 2]));
        assert_eq!(found, alone, "{name}, nested");
    }
}

#[test]
fn a_number_of_each_example_folded_in_draws_what_it_draws_alone() {
    let numbers = [0i64, 5, -1];
    for (name, draws) in DRAWS {
        let g = Graph::new(name);
        let key = g.key(9);
        let alone = numbers.iter().flat_map(|n| {
            let g = Graph::default();
            values(&draws(&g.key(9).fold_in(g.scalar(*n, DType::I64))))
        });
        let alone: Vec<f64> = alone.collect();
        let found = vmap(&[(key.tensor(), None), (&g.constant(numbers), Some(0))], |t| {
            vec![draws(&Key::from_tensor(&t[0]).fold_in(&t[1]))]
        });
        assert_eq!(values(&found[0]), alone, "{name}");
    }
}

/// Networks of which the derivative by `x` is the factor that they scale it with: dropout, placed and repeated in every way.
type Drops = fn(&Tensor) -> Tensor;

const DROPS: [(&str, Drops); 8] = [
    ("in its place", |x| x.dropout(0.5)),
    ("by a key", |x| x.dropout_with(0.5, &x.graph().key(3))),
    ("twice", |x| x.dropout(0.3).dropout(0.3)),
    ("in a checkpoint", |x| {
        checkpoint(&[x], |t| vec![t[0].dropout(0.5)]).remove(0)
    }),
    ("in two checkpoints", |x| {
        checkpoint(&[x], |t| checkpoint(&[&t[0].dropout(0.3)], |t| vec![t[0].dropout(0.3)])).remove(0)
    }),
    ("in a loop", |x| {
        x.graph()
            .repeat(4)
            .carry(x)
            .record(|i| vec![i.carried[0].dropout(0.2)])
            .remove(0)
    }),
    ("in a loop with checkpoints", |x| {
        let steps = x.graph().repeat(5).checkpoint_every(2).carry(x);
        steps.record(|i| vec![i.carried[0].dropout(0.2)]).remove(0)
    }),
    ("in checkpoints of a loop", |x| {
        let steps = x.graph().repeat(4).carry(x);
        steps
            .record(|i| checkpoint(&[&i.carried[0]], |t| vec![t[0].dropout(0.2)]))
            .remove(0)
    }),
];

/// What is expected of a derivative at an element, from that and its factor.
type Expected = fn(f64, f64) -> f64;

/// Dropout of `x` is `x` times a mask. Its square's derivatives, twice the masks' squares times `x`, ask for the mask again each time.
fn all_ways(drops: Drops, x: &Tensor) -> Vec<(&'static str, Tensor, Expected)> {
    let y = drops(x);
    let loss = y.square().sum(..);
    let ones = x.ones_like();
    let once = grad(&loss, &[x]).remove(0);
    let forward = jvp(&[&y], &[x], &[&ones]).remove(0);
    vec![
        ("value", y.clone(), |x, mask| x * mask),
        ("gradient", once.clone(), |x, mask| 2.0 * mask * mask * x),
        ("forwards", forward, |_, mask| mask),
        ("twice", grad(&once.sum(..), &[x]).remove(0), |_, mask| {
            2.0 * mask * mask
        }),
        ("jacobian", jacobian(&y, x).sum(0), |_, mask| mask),
        ("hessian", hessian(&loss, x).sum(0), |_, mask| 2.0 * mask * mask),
    ]
}

/// Holds all ways to the masks of the values.
fn agree(what: &str, x: &[f64], found: &[(String, Vec<f64>, Expected)]) -> Vec<f64> {
    let masks: Vec<f64> = found[0].1.iter().zip(x).map(|(y, x)| y / x).collect();
    assert!(
        masks.contains(&0.0) && masks.iter().any(|m| *m > 1.0),
        "{what}: {masks:?}"
    );
    for (way, found, expected) in found {
        for ((found, x), mask) in found.iter().zip(x).zip(&masks) {
            let expected = expected(*x, *mask);
            assert!(
                (found - expected).abs() <= 1e-13 * expected.abs(),
                "{what}, {way}: {found}, expected {expected}"
            );
        }
    }
    masks
}

/// All outputs of one graph, compiled together: equal draws are one, or drawn again, as passes decide.
fn together(g: &Graph, ways: &[(&'static str, Tensor, Expected)], x: &HostTensor) -> Vec<Vec<f64>> {
    for (way, t, _) in ways {
        g.output(way, t);
    }
    let run = g.compile(&CompileOptions::default()).expect("it compiles");
    let found = run.run(&inputs![x]).expect("it runs");
    found
        .iter()
        .map(|y| y.as_slice::<f64>().expect("doubles").to_vec())
        .collect()
}

const SAMPLES: usize = 5;

fn elements() -> Vec<f64> {
    (0..SAMPLES * WIDTH).map(|k| 1.0 + k as f64 / 7.0).collect()
}

#[test]
fn every_derivative_drops_what_the_value_dropped() {
    let x = elements();
    for (name, drops) in DROPS {
        let g = Graph::new(name);
        let given = g.input("x", F, [SAMPLES * WIDTH]);
        let ways = all_ways(drops, &given);
        let data = HostTensor::from_slice(&[SAMPLES * WIDTH], &x).expect("as many");
        let found = together(&g, &ways, &data);
        let found: Vec<_> = ways
            .iter()
            .zip(found)
            .map(|((way, _, e), y)| (way.to_string(), y, *e))
            .collect();
        agree(name, &x, &found);
    }
}

/// Derivatives of each sample: each drops what its own value dropped, which is not what others dropped, unless draws are shared.
#[test]
fn derivatives_of_each_sample_drop_what_its_value_dropped() {
    let x = elements();
    for (name, drops) in DROPS {
        for shared in [false, true] {
            let g = Graph::new(name);
            let given = g.input("x", F, [SAMPLES, WIDTH]);
            let how = if shared {
                Vmap::new().shared_draws()
            } else {
                Vmap::new()
            };
            let mut kinds = vec![];
            let all = how.map(&[(&given, Some(0))], |t| {
                let ways = all_ways(drops, &t[0]);
                kinds = ways.iter().map(|w| (w.0, w.2)).collect();
                ways.into_iter().map(|w| w.1).collect()
            });
            let mut ways: Vec<_> = kinds.into_iter().zip(all).map(|((n, e), t)| (n, t, e)).collect();
            // The derivative of the batch, from outside.
            let outside = grad(&ways[0].1.square().sum(..), &[&given]).remove(0);
            ways.push(("from outside", outside, |x, mask| 2.0 * mask * mask * x));
            let data = HostTensor::from_slice(&[SAMPLES, WIDTH], &x).expect("as many");
            let found = together(&g, &ways, &data);
            let found: Vec<_> = ways
                .iter()
                .zip(found)
                .map(|((way, _, e), y)| (way.to_string(), y, *e))
                .collect();
            let masks = agree(&format!("{name}, shared {shared}"), &x, &found);
            let alike = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-13 * a.abs();
            let same = masks.chunks(WIDTH).all(|m| m.iter().zip(&masks).all(alike));
            assert_eq!(same, shared, "{name}: {masks:?}");
        }
    }
}
