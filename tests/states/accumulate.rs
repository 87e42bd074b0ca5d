//! Batches that are taken part by part: gradients are those of the whole batch, and what is kept at a time is that of a part.

use half::f16;
use tlc::optim::{Groups, accumulate};
use tlc::{
    CompileOptions, CrossEntropy, DType, Executable, Graph, HostTensor, Key, Reduction, State, Tensor, grad, inputs,
};

const ROWS: usize = 24;
const FEATURES: usize = 5;
const CLASSES: usize = 4;
const IGNORED: i64 = -100;

fn compiled(g: &Graph) -> Executable {
    g.compile(&CompileOptions::default()).unwrap_or_else(|e| panic!("{e}"))
}

fn value(k: usize, seed: usize) -> f64 {
    ((k * 37 + seed * 11) % 101) as f64 / 25.0 - 2.0
}

/// Rows that count are spread unevenly: the first parts have none, the last ones all.
fn labels() -> Vec<i64> {
    let of = |i: usize| match i {
        0..8 => IGNORED,
        8..16 if !i.is_multiple_of(3) => IGNORED,
        _ => (i * 7 % CLASSES) as i64,
    };
    (0..ROWS).map(of).collect()
}

/// The mean of cross entropy over the rows that count, and its derivatives by weights and offsets, in closed form.
fn expected(x: &[f64], w: &[f64], b: &[f64], labels: &[i64]) -> (f64, Vec<f64>) {
    let (mut loss, mut d, mut count) = (0.0, vec![0.0; FEATURES * CLASSES + CLASSES], 0.0);
    for (row, &label) in x.chunks(FEATURES).zip(labels).filter(|(_, label)| **label != IGNORED) {
        let logit = |c: usize| b[c] + (0..FEATURES).map(|k| row[k] * w[k * CLASSES + c]).sum::<f64>();
        let total: f64 = (0..CLASSES).map(|c| logit(c).exp()).sum();
        loss += total.ln() - logit(label as usize);
        count += 1.0;
        for c in 0..CLASSES {
            let slope = logit(c).exp() / total - f64::from(u8::from(c as i64 == label));
            (0..FEATURES).for_each(|k| d[k * CLASSES + c] += row[k] * slope);
            d[FEATURES * CLASSES + c] += slope;
        }
    }
    (loss / count, d.into_iter().map(|d| d / count).collect())
}

#[test]
fn gradients_are_those_of_the_whole_batch_wherever_labels_are_ignored() {
    let x: Vec<f64> = (0..ROWS * FEATURES).map(|k| value(k, 0)).collect();
    let w: Vec<f64> = (0..FEATURES * CLASSES).map(|k| value(k, 1) / 4.0).collect();
    let b: Vec<f64> = (0..CLASSES).map(|k| value(k, 2) / 4.0).collect();
    let (loss, derivatives) = expected(&x, &w, &b, &labels());
    for parts in [1, 2, 3, 4, 6, 12, 24] {
        let g = Graph::new("step");
        let points = g.input("x", DType::F64, [ROWS, FEATURES]);
        let classes = g.input("labels", DType::I64, [ROWS]);
        let (weights, offsets) = (
            g.input("w", DType::F64, [FEATURES, CLASSES]),
            g.input("b", DType::F64, [CLASSES]),
        );
        let options = CrossEntropy::new().ignore(IGNORED);
        let sum = options.clone().reduction(Reduction::Sum);
        let (found, d) = accumulate(parts, &[&points, &classes], &[&weights, &offsets], |part| {
            let logits = part.rows[0].matmul(&part.parameters[0]) + &part.parameters[1];
            let count = part.rows[1].ne(IGNORED).count_nonzero(..);
            (logits.cross_entropy_with(&part.rows[1], &sum), count)
        });
        g.output("loss", &found);
        d.iter().enumerate().for_each(|(k, d)| g.output(&format!("d{k}"), d));
        let whole = (points.matmul(&weights) + &offsets).cross_entropy_with(&classes, &options);
        let d = grad(&whole, &[&weights, &offsets]);
        d.iter()
            .enumerate()
            .for_each(|(k, d)| g.output(&format!("whole{k}"), d));
        let given = |values: &[f64], shape: &[usize]| HostTensor::from_slice(shape, values).expect("as many");
        let given = [
            given(&x, &[ROWS, FEATURES]),
            given(&w, &[FEATURES, CLASSES]),
            given(&b, &[CLASSES]),
        ];
        let out = compiled(&g)
            .run(&inputs![&given[0], &labels(), &given[1], &given[2]])
            .expect("it runs");
        assert!((out["loss"].as_scalar::<f64>().expect("a number") - loss).abs() <= 1e-12);
        for name in ["d", "whole"] {
            let all = [0, 1].map(|k| out[&*format!("{name}{k}")].as_slice::<f64>().expect("numbers").to_vec());
            for (found, expected) in all.concat().iter().zip(&derivatives) {
                assert!(
                    (found - expected).abs() <= 1e-12,
                    "{parts} parts, {name}: {found}, expected {expected}"
                );
            }
        }
    }
}

/// Bytes of the arena of a step over layers that are wide, in so many parts.
fn arena(parts: usize) -> u64 {
    let g = Graph::new("step");
    let x = g.input("x", DType::F32, [256, 64]);
    let w: Vec<Tensor> = (0..4)
        .map(|k| g.input(&format!("w{k}"), DType::F32, [64, 64]))
        .collect();
    let (loss, d) = accumulate(parts, &[&x], &w.iter().collect::<Vec<_>>(), |part| {
        let deep = |x: Tensor, w: &Tensor| x.matmul(w).tanh();
        let y = part.parameters.iter().fold(part.rows[0].clone(), deep);
        (y.square().sum(..), part.number.graph().dim_of(&y))
    });
    g.output("loss", &loss);
    d.iter().enumerate().for_each(|(k, d)| g.output(&format!("d{k}"), d));
    let step = compiled(&g);
    let given = [
        HostTensor::zeros(DType::F32, &[256, 64]),
        HostTensor::zeros(DType::F32, &[64, 64]),
    ];
    let [x, w] = given.map(|t| t.expect("few elements"));
    step.memory(&inputs![&x, &w, &w, &w, &w]).expect("the inputs fit").arena
}

trait Rows {
    fn dim_of(&self, y: &Tensor) -> Tensor;
}

impl Rows for Graph {
    /// The number of rows.
    fn dim_of(&self, y: &Tensor) -> Tensor {
        self.scalar(y.const_shape().expect("numbers")[0] as i64, DType::I64)
    }
}

#[test]
fn more_parts_take_less_memory() {
    let bytes = [1, 2, 4, 8, 16].map(arena);
    assert!(bytes.windows(2).all(|b| b[1] < b[0]), "{bytes:?}");
    // What is kept of a layer is that of a part; the rest is gradients.
    assert!(bytes[4] < bytes[0] / 2, "{bytes:?}");
}

/// f16 parameters: derivatives are added up in f32, and of more parts than f16 can count.
#[test]
fn derivatives_of_f16_are_added_up_in_f32() {
    let g = Graph::new("step");
    let (x, w) = (g.input("x", DType::F16, [4096]), g.constant(f16::ONE));
    let (loss, d) = accumulate(4096, &[&x], &[&w], |part| {
        let y = (&part.rows[0] * &part.parameters[0]).sum(..);
        (y, part.number.graph().scalar(1i64, DType::I64))
    });
    assert_eq!((loss.dtype(), d[0].dtype()), (DType::F32, DType::F32));
    g.output("d", &d[0]);
    let x: Vec<f16> = (0..4096).map(|k| f16::from_f64(value(k, 3) + 3.0)).collect();
    let mean = x.iter().map(|x| x.to_f64()).sum::<f64>() / 4096.0;
    let out = compiled(&g).run(&inputs![&x]).expect("it runs");
    assert!((f64::from(out["d"].as_scalar::<f32>().expect("a number")) - mean).abs() < 1e-5 * mean);
}

/// Each part draws by the key with its number folded in.
#[test]
fn parts_have_keys_of_their_own() {
    let g = Graph::new("step");
    let (x, w) = (g.input("x", DType::F64, [12]), g.input("w", DType::F64, [3]));
    let key = g.key(7);
    let one = |g: &Graph| g.scalar(1i64, DType::I64);
    let (_, d) = accumulate(4, &[&x], &[&w], |part| {
        let noise = part.key(&key).uniform([3], DType::F64);
        (
            (noise * &part.rows[0] * &part.parameters[0]).sum(..),
            one(part.number.graph()),
        )
    });
    g.output("d", &d[0]);
    let draw = |k: i64| Key::fold_in(&key, k).uniform([3], DType::F64);
    (0..4).for_each(|k| g.output(&format!("noise{k}"), &draw(k)));
    let x: Vec<f64> = (0..12).map(|k| value(k, 5)).collect();
    let out = compiled(&g).run(&inputs![&x, &[0.0; 3]]).expect("it runs");
    let d = out["d"].as_slice::<f64>().expect("numbers");
    for i in 0..3 {
        let noise = |k: usize| out[&*format!("noise{k}")].as_slice::<f64>().expect("numbers")[i];
        let expected: f64 = (0..4).map(|k| noise(k) * x[3 * k + i]).sum::<f64>() / 4.0;
        assert!((d[i] - expected).abs() < 1e-12, "{d:?}");
    }
}

/// Steps on a batch in parts are those on the whole, with a loss scale and masters as well.
#[test]
fn steps_by_parts_are_steps_by_the_batch() {
    for (text, near) in [
        ("adam:lr=0.05", 1e-12),
        ("adam:lr=0.05; loss_scale=65536,2,0.5,3", 1e-12),
    ] {
        let optimizer: Groups = text.parse().expect("an optimizer");
        let train = |parts: Option<usize>| {
            let g = Graph::new("step");
            let (x, y) = (g.input("x", DType::F64, [12, 3]), g.input("y", DType::F64, [12]));
            let w = g.state("w", DType::F64, [3]);
            let named = [("w", &w)];
            let found = match parts {
                Some(parts) => optimizer.accumulate(parts, &[&x, &y], &named, |part| {
                    let losses = (part.rows[0].matmul(&part.parameters[0]) - &part.rows[1]).square();
                    let count = part.number.graph().scalar((12 / parts) as i64, DType::I64);
                    (losses.sum(..), count)
                }),
                None => optimizer.gradients(&(x.matmul(&w) - &y).square().mean(..), &named),
            };
            optimizer.step_if(&found.ok, &named, &found.gradients);
            g.output("loss", &found.loss);
            let step = compiled(&g);
            let mut state = State::new();
            state.insert("w", [0.5, -0.5, 0.0]).expect("an entry");
            optimizer.prepare(&mut state, &["w"]).expect("memory");
            let x = ndarray::Array2::from_shape_fn((12, 3), |(i, j)| value(3 * i + j, 6));
            let y: Vec<f64> = (0..12).map(|i| value(i, 8)).collect();
            let mut all = vec![];
            for _ in 0..10 {
                let out = step.run_with(&mut state, &inputs![&x, &y]).expect("it runs");
                all.push(out["loss"].as_scalar::<f64>().expect("a number"));
            }
            all.extend(state["w"].as_slice::<f64>().expect("numbers"));
            all
        };
        let whole = train(None);
        for parts in [1, 3, 12] {
            let found = train(Some(parts));
            let same = |(a, b): (&f64, &f64)| (a - b).abs() <= near * b.abs().max(1.0);
            assert!(
                found.iter().zip(&whole).all(same),
                "{text}, {parts}: {found:?}, expected {whole:?}"
            );
        }
    }
}

/// Extents that are symbols are parted where a number of parts divides them for certain.
#[test]
fn sizes_may_be_symbols() {
    let g = Graph::new("step");
    let n = g.symbol("n", 1..=64);
    let (x, w) = (g.input("x", DType::F64, [&n * 4]), g.input("w", DType::F64, ()));
    // What says how large `n` is.
    g.output("rows", &g.input("rows", DType::Bool, [&n]));
    let (_, d) = accumulate(4, &[&x], &[&w], |part| {
        let one = part.number.graph().scalar(1.0, DType::F64);
        ((&part.rows[0] * &part.parameters[0]).sum(..), one)
    });
    g.output("d", &d[0]);
    let sum = compiled(&g);
    for n in [1, 3] {
        let x: Vec<f64> = (0..4 * n).map(|k| value(k, 9)).collect();
        let found = sum.run(&inputs![&x, 1.0, &vec![true; n]]).expect("it runs");
        let found = found["d"].as_scalar::<f64>().expect("a number");
        assert!((found - x.iter().sum::<f64>() / 4.0).abs() < 1e-12);
    }
}

#[test]
fn what_cannot_be_parted_is_refused() {
    let refused = |f: &dyn Fn(&Graph)| {
        let g = Graph::new("step");
        f(&g);
        let errors: Vec<String> = g.errors().iter().map(|e| e.to_string()).collect();
        assert_eq!(errors.len(), 1, "{errors:?}");
        errors[0].clone()
    };
    let sum = |part: &tlc::optim::Part| {
        let y = (&part.rows[0] * &part.parameters[0]).sum(..);
        let count = y.ones_like();
        (y, count)
    };
    let (five, six) = ([0.0; 5], [0.0; 6]);
    let text = refused(&|g| drop(accumulate(2, &[&g.constant(five)], &[&g.constant(1.0)], sum)));
    assert!(text.contains("f64[5] in 2 equal parts"), "{text}");
    let text = refused(&|g| drop(accumulate(0, &[&g.constant(six)], &[&g.constant(1.0)], sum)));
    assert!(text.contains("0 parts"), "{text}");
    let text = refused(&|g| {
        drop(accumulate(
            1,
            &[&g.constant(five), &g.constant(six)],
            &[&g.constant(1.0)],
            sum,
        ))
    });
    assert!(text.contains("as many rows"), "{text}");
    let text = refused(&|g| drop(accumulate(1, &[&g.constant(5.0)], &[&g.constant(1.0)], sum)));
    assert!(text.contains("f64[]"), "{text}");
    let text = refused(&|g| drop(accumulate(2, &[&g.constant(six)], &[&g.constant(1i64)], sum)));
    assert!(text.contains("i64[] to differentiate by"), "{text}");
    let text = refused(&|g| {
        drop(accumulate(2, &[&g.constant(six)], &[&g.constant(1.0)], |part| {
            (part.rows[0].clone(), part.number.clone())
        }))
    });
    assert!(text.contains("the sum of losses is f64[3]"), "{text}");
    let text = refused(&|g| {
        drop(accumulate(2, &[&g.constant(six)], &[&g.constant(1.0)], |part| {
            (part.rows[0].sum(..), part.rows[0].gt(0.0))
        }))
    });
    assert!(text.contains("the number of what counts is bool[3]"), "{text}");
    let text = refused(&|g| {
        let w = g.constant(1.0);
        drop(accumulate(2, &[&g.constant(six)], &[&w], |_| (w.clone(), w.clone())))
    });
    assert!(text.contains("two graphs"), "{text}");
}

/// Batches of random sizes, in any number of parts, with any labels ignored.
#[test]
fn random_batches_have_the_gradient_in_closed_form() {
    let mut rng = tlc::ir::rng::Rng::new(11);
    for _ in 0..16 {
        let (parts, each) = (1 + rng.below(5), 1 + rng.below(4));
        let (rows, seed) = (parts * each, rng.below(100));
        let mut labels: Vec<i64> = (0..rows)
            .map(|_| match rng.below(2) {
                0 => IGNORED,
                _ => rng.below(CLASSES) as i64,
            })
            .collect();
        // A mean of none is no number.
        labels[rng.below(rows)] = 1;
        let x: Vec<f64> = (0..rows * FEATURES).map(|k| value(k, seed)).collect();
        let w: Vec<f64> = (0..FEATURES * CLASSES).map(|k| value(k, seed + 1) / 4.0).collect();
        let (loss, derivatives) = expected(&x, &w, &[0.0; CLASSES], &labels);
        let g = Graph::new("step");
        let points = g.data(&x, &[rows, FEATURES]);
        let (classes, weights) = (g.data(&labels, &[rows]), g.data(&w, &[FEATURES, CLASSES]));
        let sum = CrossEntropy::new().ignore(IGNORED).reduction(Reduction::Sum);
        let (found, d) = accumulate(parts, &[&points, &classes], &[&weights], |part| {
            let logits = part.rows[0].matmul(&part.parameters[0]);
            (
                logits.cross_entropy_with(&part.rows[1], &sum),
                part.rows[1].ne(IGNORED).count_nonzero(..),
            )
        });
        g.output("loss", &found);
        g.output("d", &d[0]);
        let out = compiled(&g).run(&inputs![]).expect("it runs");
        assert!((out["loss"].as_scalar::<f64>().expect("a number") - loss).abs() <= 1e-12);
        for (found, expected) in out["d"].as_slice::<f64>().expect("numbers").iter().zip(&derivatives) {
            assert!(
                (found - expected).abs() <= 1e-12,
                "{rows} rows in {parts}: {found}, expected {expected}"
            );
        }
    }
}
