//! Numbers beside those of PyTorch and of papers.

use tlc::optim::{Optimizer, Schedule, average, clip};
use tlc::{CompileOptions, DType, Graph, Input, inputs};

use crate::reference::{close, counts, first, first_slots, gradient, numbers, recorded, step_of};

#[test]
fn a_hundred_steps_are_those_of_pytorch_and_of_the_papers() {
    let mut seen = std::collections::BTreeSet::new();
    for case in recorded()["optimizers"].as_array().unwrap() {
        let (text, shape) = (case["text"].as_str().unwrap(), counts(&case["shape"]));
        let optimizer: Optimizer = text.parse().unwrap();
        seen.insert(optimizer.name());
        let step = step_of(&optimizer, DType::F64, &shape);
        let n = shape.iter().product();
        let mut p: Input = first(n).into();
        let (mut slots, mut kept) = (first_slots(&optimizer, DType::F64, &shape), vec![]);
        for t in 1..=100 {
            let mut given: Vec<Input> = vec![(t as i64).into(), p, gradient(n, t).into()];
            given.append(&mut slots);
            let mut results = step.run(&given).unwrap();
            let next = results.remove(0);
            if [1, 10, 100].contains(&t) {
                kept.extend_from_slice(next.as_slice::<f64>().unwrap());
            }
            p = next.into();
            slots = results.into_vec().into_iter().map(Input::from).collect();
        }
        close(text, &kept, &numbers(&case["values"]), 1e-12);
    }
    assert_eq!(seen.len(), 14, "{seen:?}");
}

#[test]
fn schedules_are_those_of_pytorch() {
    for case in recorded()["schedules"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let optimizer: Optimizer = format!("sgd:lr={text}").parse().unwrap();
        // A step of size `rate` from 0, against a gradient of -1.
        let step = step_of(&optimizer, DType::F64, &[]);
        let rate = |t: &usize| {
            step.run(&inputs![*t as i64, 0.0, -1.0]).unwrap()[0]
                .as_scalar::<f64>()
                .unwrap()
        };
        let found: Vec<f64> = counts(&case["at"]).iter().map(rate).collect();
        close(text, &found, &numbers(&case["values"]), 1e-12);
    }
}

#[test]
fn a_function_of_the_step_is_a_schedule() {
    let schedule = Schedule::Function(std::sync::Arc::new(|t| 1.0 / (t + 1.0)));
    let g = Graph::default();
    let at = |t: i64| {
        schedule
            .at(&g.scalar(t, DType::I64))
            .eval()
            .unwrap()
            .as_scalar::<f64>()
            .unwrap()
    };
    assert_eq!((at(1), at(3)), (0.5, 0.25));
}

#[test]
fn averages_are_those_of_pytorch() {
    for case in recorded()["averages"].as_array().unwrap() {
        let kind = case["kind"].as_str().unwrap();
        let g = Graph::new("average");
        let (step, old, p) = (
            g.input("step", DType::I64, ()),
            g.input("old", DType::F64, [5]),
            g.input("p", DType::F64, [5]),
        );
        let new = match kind {
            "exponential" => average::exponential(&step, &old, &p, 0.9),
            "equal" => average::equal(&step, &old, &p),
            other => panic!("{other}"),
        };
        g.output("new", &new);
        let step = g.compile(&CompileOptions::default()).unwrap();
        let (mut old, mut kept) = (vec![0.0; 5], vec![]);
        for t in 1..=100 {
            let new = step.run(&inputs![t as i64, &old, &gradient(5, t)]).unwrap();
            old = new[0].as_slice::<f64>().unwrap().to_vec();
            if [1, 10, 100].contains(&t) {
                kept.extend_from_slice(&old);
            }
        }
        close(kind, &kept, &numbers(&case["values"]), 1e-12);
    }
}

#[test]
fn clipping_by_the_global_norm_is_that_of_pytorch() {
    for case in recorded()["clipped"].as_array().unwrap() {
        let g = Graph::default();
        let (a, b) = (g.data(&gradient(5, 1), &[5]), g.data(&gradient(6, 2), &[2, 3]));
        let (clipped, norm) = clip::by_global_norm(&[&a, &b], case["limit"].as_f64().unwrap());
        let mut found = vec![];
        for t in [&norm, &clipped[0], &clipped[1]] {
            found.extend_from_slice(t.eval().unwrap().as_slice::<f64>().unwrap());
        }
        close("clipped", &found, &numbers(&case["values"]), 1e-12);
    }
}
