//! Steps that train many tensors at once: what does not depend on the number of tensors.

use tlc::ir::plan::Step;
use tlc::optim::{Groups, clip};
use tlc::{CompileOptions, DType, Executable, Graph, State, Tensor, inputs};

/// AdamW behind clipping by the global norm, of tensors whose sizes differ; the `large`-th ones are summed in two stages. Gradients are states as well.
fn step(tensors: usize, large: usize, checked: bool) -> Executable {
    let names: Vec<String> = (0..tensors).map(|k| format!("p{k}")).collect();
    let size = |k: usize| match (k + 1) % large {
        0 => 100_000 + k as i64 % 7,
        _ => 30_000 + 16 * (k as i64 % 7),
    };
    let g = Graph::new("clipped");
    let p: Vec<Tensor> = (0..tensors)
        .map(|k| g.state(&names[k], DType::F32, [size(k)]))
        .collect();
    let d: Vec<Tensor> = (0..tensors)
        .map(|k| g.state(&format!("d{k}"), DType::F32, [size(k)]))
        .collect();
    let (clipped, norm) = clip::by_global_norm(&d.iter().collect::<Vec<_>>(), 1.0);
    let named: Vec<(&str, &Tensor)> = names.iter().map(String::as_str).zip(&p).collect();
    let optimizer: Groups = "adamw:lr=0.01".parse().expect("an optimizer");
    let ok = match checked {
        true => clip::all_finite(&d.iter().collect::<Vec<_>>()),
        false => g.constant(true),
    };
    optimizer.step_if(&ok, &named, &clipped);
    g.output("norm", &norm);
    g.compile(&CompileOptions::default()).expect("compiles")
}

#[test]
fn the_norm_of_many_tensors_takes_as_many_steps_as_that_of_few() {
    for (large, checked) in [(usize::MAX, false), (usize::MAX, true), (3, false), (3, true)] {
        let plans: Vec<Vec<usize>> = [10, 40, 300]
            .map(|tensors| {
                let step = step(tensors, large, checked);
                step.plan()
                    .steps
                    .iter()
                    .map(|s| s.launches().len().max(usize::from(matches!(s, Step::Copy { .. }))))
                    .collect()
            })
            .into();
        for plan in &plans[1..] {
            assert_eq!(
                plan.len(),
                plans[0].len(),
                "every {large}-th is large, checked: {checked}: {plans:?}"
            );
        }
        // Sums, perhaps their second stages, the norm, perhaps the check, the updates.
        let most = 3 + usize::from(large == 3) + usize::from(checked);
        assert!(plans[0].len() <= most, "{plans:?}");
    }
}

#[test]
fn the_norm_of_many_tensors_is_that_of_all_their_elements() {
    let step = step(20, 3, true);
    let mut state = State::new();
    let mut squares = 0.0;
    let names: Vec<String> = (0..20).map(|k| format!("p{k}")).collect();
    for entry in step.states() {
        let n = entry.ty.elements().as_const().expect("numbers") as usize;
        if let Some(k) = entry.name.strip_prefix('d').and_then(|k| k.parse::<usize>().ok()) {
            let value = 0.001 * (k as f64 + 1.0);
            squares += n as f64 * value * value;
            state.insert(&entry.name, vec![value as f32; n]).expect("inserted");
        } else if entry.name.starts_with('p') {
            state.insert(&entry.name, vec![1.0f32; n]).expect("inserted");
        }
    }
    let optimizer: Groups = "adamw:lr=0.01".parse().expect("an optimizer");
    optimizer
        .prepare(&mut state, &names.iter().map(String::as_str).collect::<Vec<_>>())
        .expect("prepared");
    let found = step.run_with(&mut state, &inputs![]).expect("runs");
    let norm = f64::from(found["norm"].as_scalar::<f32>().expect("f32"));
    assert!((norm / squares.sqrt() - 1.0).abs() < 1e-5, "{norm}, {}", squares.sqrt());
}
