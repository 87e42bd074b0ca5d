//! Training of f16 and bf16 parameters: masters in f32 and loss scales, beside NumPy (`precision.py`).

use half::{bf16, f16};
use tlc::optim::{Groups, LossScale, STEPS, clip};
use tlc::{CompileOptions, DType, Executable, Graph, State, Tensor, inputs};

fn compiled(g: &Graph) -> Executable {
    g.compile(&CompileOptions::default()).unwrap_or_else(|e| panic!("{e}"))
}

fn lines(kind: &'static str) -> impl Iterator<Item = Vec<f64>> {
    let of = move |line: &'static str| {
        line.strip_prefix(kind)
            .map(|l| l.trim().split(' ').map(number).collect())
    };
    include_str!("precision.txt").lines().filter_map(of)
}

fn number(word: &str) -> f64 {
    word.parse().expect("a number")
}

fn scaled() -> Groups {
    "sgd:lr=0.01; masters=true; loss_scale=65536,2,0.5,3"
        .parse()
        .expect("an optimizer")
}

/// The loss is the sum of the parameter's elements times `x`.
fn scaled_step() -> (Executable, State) {
    let optimizer = scaled();
    let g = Graph::new("step");
    let (w, x) = (g.state("w", DType::F16, [3]), g.input("x", DType::F32, [3]));
    let loss = (w.cast(DType::F32) * &x).sum(..);
    g.output("ok", &optimizer.minimize(&loss, &[("w", &w)]));
    let mut state = State::new();
    state.insert("w", [f16::ONE; 3]).expect("an entry");
    optimizer.prepare(&mut state, &["w"]).expect("memory");
    (compiled(&g), state)
}

#[test]
fn a_loss_scale_follows_what_gradients_bear() {
    let (step, mut state) = scaled_step();
    let (mut calls, mut refused) = (0, 0);
    for line in lines("scale") {
        let [_, x @ .., scale, good, taken, a, b, c] = &line[..] else {
            panic!("{line:?}");
        };
        let x: Vec<f32> = x.iter().map(|&x| x as f32).collect();
        let before = state["optimizer.w.master"].bytes().expect("here").to_vec();
        let weights = state["w"].bytes().expect("here").to_vec();
        let out = step.run_with(&mut state, &inputs![&x]).expect("it runs");
        assert_eq!(state["optimizer.loss_scale.value"].as_scalar(), Ok(*scale as f32));
        assert_eq!(state["optimizer.loss_scale.good_steps"].as_scalar(), Ok(*good as u64));
        assert_eq!(state[STEPS].as_scalar(), Ok(*taken as u64));
        let master = state["optimizer.w.master"].as_slice::<f32>().expect("floats");
        for (found, expected) in master.iter().zip([a, b, c]) {
            assert!(
                (f64::from(*found) - expected).abs() <= 1e-6,
                "{master:?}, expected {line:?}"
            );
        }
        let rounded: Vec<f16> = master.iter().map(|&m| f16::from_f32(m)).collect();
        assert_eq!(state["w"].as_slice::<f16>(), Ok(&rounded[..]));
        if !out["ok"].as_scalar::<bool>().expect("a bool") {
            assert_eq!(
                (
                    state["optimizer.w.master"].bytes().expect("here"),
                    state["w"].bytes().expect("here")
                ),
                (&before[..], &weights[..])
            );
            refused += 1;
        }
        calls += 1;
    }
    assert_eq!((calls, refused), (16, 6));
}

/// Gradients of 1e-8 are 0 in f16, and are not behind a scale.
#[test]
fn small_gradients_move_f16_parameters() {
    let train = |optimizer: &str| {
        let optimizer: Groups = optimizer.parse().expect("an optimizer");
        let g = Graph::new("step");
        let w = g.state("w", DType::F16, [2]);
        optimizer.minimize(&(w.cast(DType::F32) * 1e-8).sum(..), &[("w", &w)]);
        let step = compiled(&g);
        let mut state = State::new();
        state.insert("w", [f16::ONE; 2]).expect("an entry");
        optimizer.prepare(&mut state, &["w"]).expect("memory");
        step.run_with(&mut state, &inputs![]).expect("it runs");
        state["w"].as_slice::<f16>().expect("numbers")[0].to_f32()
    };
    assert_eq!(train("sgd:lr=1e7"), 1.0);
    assert!((train("sgd:lr=1e7; loss_scale=65536") - 0.9).abs() < 1e-3);
}

#[test]
fn masters_move_as_those_of_numpy() {
    let optimizer: Groups = "adam:lr=1e-3; masters=true".parse().expect("an optimizer");
    let g = Graph::new("step");
    let w = g.state("w", DType::BF16, [3]);
    let c = g.constant([bf16::from_f32(0.1), bf16::from_f32(-0.7), bf16::from_f32(1.3)]);
    let away = (&w - c).cast(DType::F32);
    optimizer.minimize(&(away.square().sum(..) * 0.5), &[("w", &w)]);
    let step = compiled(&g);
    let mut state = State::new();
    state
        .insert("w", [bf16::ONE, bf16::ONE, bf16::NEG_ONE])
        .expect("an entry");
    optimizer.prepare(&mut state, &["w"]).expect("memory");
    assert_eq!(state["optimizer.w.master"].as_slice::<f32>(), Ok(&[1.0, 1.0, -1.0][..]));
    let mut expected = lines("adam").peekable();
    for t in 1..=300 {
        step.run_with(&mut state, &inputs![]).expect("it runs");
        let master = state["optimizer.w.master"].as_slice::<f32>().expect("floats");
        let rounded: Vec<bf16> = master.iter().map(|&m| bf16::from_f32(m)).collect();
        assert_eq!(state["w"].as_slice::<bf16>(), Ok(&rounded[..]));
        if let Some(line) = expected.next_if(|l| l[0] == f64::from(t)) {
            let near = |(a, b): (&f32, &f64)| (f64::from(*a) - b).abs() <= 2e-5;
            assert!(master.iter().zip(&line[1..]).all(near), "{master:?}, expected {line:?}");
        }
    }
    assert!(expected.next().is_none());
}

/// With masters, a bf16 parameter goes the way of an f32 one whose loss is computed from its nearest bf16, to the bit, for every optimizer.
#[test]
fn a_master_is_the_f32_parameter_that_is_rounded_before_its_use() {
    for text in [
        "sgd:lr=0.1,momentum=0.9",
        "adamw:lr=0.01",
        "adafactor",
        "lamb",
        "muon:lr=0.02",
        "lbfgs:lr=0.5,history=4",
    ] {
        let train = |dtype: DType| {
            let optimizer: Groups = format!("{text}; masters=true").parse().expect("an optimizer");
            let g = Graph::new("step");
            let w = g.state("w", dtype, [3, 4]);
            let x = g.input("x", DType::BF16, [5, 3]);
            let y = x.matmul(&w.cast(DType::BF16)).cast(DType::F32).tanh();
            optimizer.minimize(&(y - 0.3).square().mean(..), &[("w", &w)]);
            let step = compiled(&g);
            let mut state = State::new();
            let first = |k: usize| ((k * 29) % 17) as f32 / 8.0 - 1.0;
            let narrow = ndarray::Array2::from_shape_fn((3, 4), |(i, j)| bf16::from_f32(first(4 * i + j)));
            match dtype {
                DType::BF16 => state.insert("w", &narrow).expect("an entry"),
                _ => state.insert("w", narrow.mapv(f32::from)).expect("an entry"),
            }
            optimizer.prepare(&mut state, &["w"]).expect("memory");
            for t in 0..20 {
                let x = ndarray::Array2::from_shape_fn((5, 3), |(i, j)| {
                    bf16::from_f32(((7 * i + 3 * j + 5 * t) % 11) as f32 / 4.0 - 1.0)
                });
                step.run_with(&mut state, &inputs![&x]).expect("it runs");
            }
            state
        };
        let (narrow, wide) = (train(DType::BF16), train(DType::F32));
        let masters = [&narrow["optimizer.w.master"], &wide["w"]].map(|e| e.bytes().expect("here"));
        assert_eq!(masters[0], masters[1], "{text}");
        assert!(wide.get("optimizer.w.master").is_none(), "f32 is its own master");
    }
}

/// Gradients are unscaled before they are clipped.
#[test]
fn what_is_clipped_is_the_gradient_without_its_scale() {
    let optimizer = scaled();
    let g = Graph::new("step");
    let w = g.state("w", DType::F16, [2]);
    let loss = (w.cast(DType::F32) * g.constant([3.0f32, 4.0])).sum(..);
    let found = optimizer.gradients(&loss, &[("w", &w)]);
    assert_eq!(found.gradients[0].dtype(), DType::F32);
    let (clipped, norm) = clip::by_global_norm(&found.gradients.iter().collect::<Vec<_>>(), 1.0);
    optimizer.step_if(&found.ok, &[("w", &w)], &clipped);
    g.output("norm", &norm);
    g.output("loss", &found.loss);
    let step = compiled(&g);
    let mut state = State::new();
    state.insert("w", [f16::ONE; 2]).expect("an entry");
    optimizer.prepare(&mut state, &["w"]).expect("memory");
    // 65536 times 3 is no f16, nor is half of that, and so on.
    let norms: Vec<f32> = (0..4)
        .map(|_| {
            let out = step.run_with(&mut state, &inputs![]).expect("it runs");
            assert_eq!(out["loss"].as_scalar(), Ok(7.0f32));
            out["norm"].as_scalar().expect("a number")
        })
        .collect();
    assert!(norms[2].is_infinite() && norms[3] == 5.0, "{norms:?}");
    let master = state["optimizer.w.master"].as_slice::<f32>().expect("floats");
    assert!(
        (master[0] - (1.0 - 0.006)).abs() < 1e-6 && (master[1] - (1.0 - 0.008)).abs() < 1e-6,
        "{master:?}"
    );
}

#[test]
fn texts_and_numbers_of_the_policy() {
    let all: Groups = "adam; *.bias: lr=1; name=critic; masters=true; loss_scale=1024"
        .parse()
        .expect("an optimizer");
    let text = all.to_string();
    assert!(
        text.ends_with("; name=critic; masters=true; loss_scale=1024,2,0.5,2000"),
        "{text}"
    );
    assert_eq!(text.parse::<Groups>().expect("an optimizer").to_string(), text);
    let refused = |text: &str| text.parse::<Groups>().expect_err("refused").to_string();
    assert_eq!(refused("adam; masters=1"), "`masters=1`, expected true or false");
    assert!(refused("adam; loss_scale=0").contains("a first factor above 0"));
    assert!(refused("adam; loss_scale=1,2,0.5,7,8").contains("1,2,0.5,7,8"));
    assert!(refused("adam; lr=3").contains("no setting `lr` of all"));
    assert!(refused("adam; bias").contains("says no settings"));
    let unsound = LossScale {
        growth: 0.5,
        ..LossScale::default()
    };
    let unsound = Groups::new("sgd".parse::<tlc::optim::Optimizer>().expect("an optimizer")).loss_scale(unsound);
    let g = Graph::new("step");
    let w = g.state("w", DType::F16, ());
    unsound.minimize(&w.cast(DType::F32), &[("w", &w)]);
    let error = g.check().expect_err("refused").to_string();
    assert!(error.contains("the loss scale 65536,0.5,0.5,2000"), "{error}");
    let poisoned: Vec<Tensor> = unsound.gradients(&w.cast(DType::F32), &[("w", &w)]).gradients;
    assert!(poisoned[0].is_poisoned());
}

/// However long losses were no numbers, a factor is left that gradients can be divided by.
#[test]
fn a_loss_scale_comes_back_from_any_number_of_refused_steps() {
    let (step, mut state) = scaled_step();
    for _ in 0..300 {
        let out = step
            .run_with(&mut state, &inputs![&[f32::NAN, 1.0, 1.0]])
            .expect("it runs");
        assert_eq!(out["ok"].as_scalar(), Ok(false));
    }
    let least = state["optimizer.loss_scale.value"]
        .as_scalar::<f32>()
        .expect("a number");
    assert!(least >= f32::MIN_POSITIVE, "{least}");
    for _ in 0..9 {
        let out = step.run_with(&mut state, &inputs![&[1.0f32; 3]]).expect("it runs");
        assert_eq!(out["ok"].as_scalar(), Ok(true));
    }
    assert_eq!(state["optimizer.loss_scale.value"].as_scalar(), Ok(least * 8.0));
}
