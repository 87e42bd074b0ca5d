//! Steps of optimizers on states beside NumPy's, which `steps.py` writes to `steps.txt`.

use tlc::optim::{Groups, STEPS};
use tlc::{CompileOptions, DType, Graph, State, inputs};

const ROWS: usize = 6;
const COLUMNS: usize = 4;

fn near(found: f64, expected: f64) -> bool {
    (found - expected).abs() <= 1e-12 * expected.abs().max(1.0)
}

/// The optimizer, the number of the step, and the parameters behind it.
fn lines() -> impl Iterator<Item = (&'static str, u64, Vec<f64>)> {
    include_str!("steps.txt").lines().map(|line| {
        let mut words = line.split(' ');
        let name = words.next().expect("an optimizer");
        let number = words.next().expect("a step").parse().expect("a number");
        (name, number, words.map(|w| w.parse().expect("a number")).collect())
    })
}

#[test]
fn twenty_steps_are_those_of_numpy() {
    let part = |n: i64, of: i64, less: i64, by: f64| ((n % of) - less) as f64 / by;
    let a: Vec<f64> = (0..ROWS * COLUMNS)
        .map(|k| part(7 * (k / COLUMNS) as i64 + 3 * (k % COLUMNS) as i64, 11, 5, 4.0))
        .collect();
    let a = ndarray::Array2::from_shape_vec((ROWS, COLUMNS), a).expect("as many");
    let y: Vec<f64> = (0..ROWS).map(|i| part(5 * i as i64, 7, 3, 2.0)).collect();
    let mut all = lines().peekable();
    let mut steps = 0;
    while let Some((name, _, _)) = all.peek() {
        let name = *name;
        let optimizer: Groups = name.parse().expect("an optimizer");
        let g = Graph::new("step");
        let (points, values) = (
            g.input("a", DType::F64, [ROWS, COLUMNS]),
            g.input("y", DType::F64, [ROWS]),
        );
        let (w, b) = (g.state("w", DType::F64, [COLUMNS]), g.state("b", DType::F64, ()));
        let loss = (points.matmul(&w) + &b - &values).square().mean(..);
        g.output("ok", &optimizer.minimize(&loss, &[("w", &w), ("b", &b)]));
        let step = g.compile(&CompileOptions::default()).expect("it compiles");
        let mut state = State::new();
        state.insert("w", [0.0; COLUMNS]).expect("an entry");
        state.insert("b", 0.0).expect("an entry");
        optimizer.prepare(&mut state, &["w", "b"]).expect("memory");
        while let Some((_, number, expected)) = all.next_if(|(n, _, _)| *n == name) {
            let out = step.run_with(&mut state, &inputs![&a, &y]).expect("it runs");
            assert_eq!(out["ok"].as_scalar::<bool>(), Ok(true));
            assert_eq!(state[STEPS].as_scalar::<u64>(), Ok(number));
            let mut found = state["w"].as_slice::<f64>().expect("numbers").to_vec();
            found.push(state["b"].as_scalar().expect("a number"));
            let same = found.len() == expected.len() && found.iter().zip(&expected).all(|(f, e)| near(*f, *e));
            assert!(same, "{name}, step {number}: {found:?}, expected {expected:?}");
            steps += 1;
        }
    }
    assert_eq!(steps, 140);
}
