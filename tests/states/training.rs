//! Training on states.

use tlc::optim::{Groups, STEPS};
use tlc::{CompileOptions, DType, Executable, Graph, State, Tensor, inputs};

/// Names and extents of the parameters of a perceptron of two layers.
const PARAMETERS: [(&str, &[usize]); 4] = [
    ("1.weight", &[5, 16]),
    ("1.bias", &[16]),
    ("2.weight", &[16, 3]),
    ("2.bias", &[3]),
];

fn step(optimizer: &Groups, threads: usize) -> Executable {
    let g = Graph::new("step");
    let x = g.input("x", DType::F32, [8, 5]);
    let labels = g.input("labels", DType::I64, [8]);
    let p: Vec<Tensor> = PARAMETERS
        .iter()
        .map(|(name, shape)| g.state(name, DType::F32, *shape))
        .collect();
    let hidden = (x.matmul(&p[0]) + &p[1]).tanh();
    let logits = hidden.matmul(&p[2]) + &p[3];
    let loss = logits.cross_entropy(&labels);
    let named: Vec<(&str, &Tensor)> = PARAMETERS.iter().map(|(name, _)| *name).zip(&p).collect();
    optimizer.minimize(&loss, &named);
    g.output("loss", &loss);
    let options = CompileOptions {
        threads: Some(threads),
        ..CompileOptions::default()
    };
    g.compile(&options).expect("it compiles")
}

/// Numbers between -1 and 1.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn fresh(optimizer: &Groups) -> State {
    let mut state = State::new();
    for (k, (name, shape)) in PARAMETERS.iter().enumerate() {
        let values = numbers(shape.iter().product(), k as u64 + 1);
        let array = ndarray::ArrayD::from_shape_vec(*shape, values).expect("as many");
        state.insert(name, &array).expect("an entry");
    }
    let names: Vec<&str> = PARAMETERS.iter().map(|(name, _)| *name).collect();
    optimizer.prepare(&mut state, &names).expect("memory");
    state
}

fn batch(number: u64) -> (ndarray::Array2<f32>, Vec<i64>) {
    let x = ndarray::Array2::from_shape_vec((8, 5), numbers(40, 100 + number)).expect("as many");
    let labels = x
        .rows()
        .into_iter()
        .map(|r| i64::from(r[0] > 0.0) + i64::from(r[1] > r[2]));
    let labels = labels.collect();
    (x, labels)
}

fn run(step: &Executable, state: &mut State, numbers: std::ops::Range<u64>) -> Vec<f32> {
    let losses = numbers.map(|k| {
        let (x, labels) = batch(k);
        let out = step.run_with(state, &inputs![&x, &labels]).expect("it runs");
        out["loss"].as_scalar::<f32>().expect("a number")
    });
    losses.collect()
}

fn same(a: &State, b: &State) {
    assert_eq!(a.len(), b.len());
    for e in a.iter() {
        assert_eq!(
            e.bytes().expect("here"),
            b[e.name()].bytes().expect("here"),
            "{}",
            e.name()
        );
    }
}

/// Without what a step without effect changes.
fn moving(mut state: State) -> State {
    state.remove("optimizer.loss_scale.value");
    state.remove("optimizer.loss_scale.good_steps");
    state
}

const OPTIMIZERS: [&str; 7] = [
    "sgd:lr=0.1,momentum=0.9",
    "adamw:lr=0.01,wd=0.1; *.bias: wd=0",
    "adafactor",
    "muon:lr=0.02; *.bias: adam:lr=0.01",
    "lamb:lr=0.01",
    "lbfgs:lr=0.05,history=5",
    "adam:lr=0.01; loss_scale=1024,2,0.5,20",
];

/// A hundred steps are fifty, a file, and fifty more; on one thread and on three.
#[test]
fn training_goes_on_from_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("state.safetensors");
    for text in OPTIMIZERS {
        let optimizer: Groups = text.parse().expect("an optimizer");
        let (alone, several) = (step(&optimizer, 1), step(&optimizer, 3));
        let mut through = fresh(&optimizer);
        let losses = run(&alone, &mut through, 0..100);
        assert!(losses[99] < losses[0], "{text}: {losses:?}");
        assert_eq!(through[STEPS].as_scalar::<u64>(), Ok(100));
        let mut state = fresh(&optimizer);
        run(&several, &mut state, 0..50);
        state.save(&file).expect("saved");
        let mut later = State::open(&file).expect("opened");
        run(&several, &mut later, 50..100);
        same(&through, &later);
    }
}

/// A number that is none, in the inputs of any of ten steps, leaves weights, moments and the number of steps as they were.
#[test]
fn a_nan_leaves_everything_as_it_was() {
    for text in OPTIMIZERS {
        let optimizer: Groups = text.parse().expect("an optimizer");
        let step = step(&optimizer, 2);
        for wrong in 0..10 {
            let mut state = fresh(&optimizer);
            run(&step, &mut state, 0..wrong);
            let before: Vec<Vec<u8>> = state.iter().map(|e| e.bytes().expect("here").to_vec()).collect();
            let (mut x, labels) = batch(wrong);
            x[[3, 2]] = f32::NAN;
            let out = step.run_with(&mut state, &inputs![&x, &labels]).expect("it runs");
            assert!(out["loss"].as_scalar::<f32>().expect("a number").is_nan());
            let scale = |e: &tlc::Entry| e.name().starts_with("optimizer.loss_scale.");
            for (e, before) in state.iter().zip(&before).filter(|(e, _)| !scale(e)) {
                assert_eq!(
                    e.bytes().expect("here"),
                    &before[..],
                    "{text}: {} after step {wrong}",
                    e.name()
                );
            }
            let mut without = fresh(&optimizer);
            run(&step, &mut without, 0..wrong);
            run(&step, &mut without, wrong + 1..12);
            run(&step, &mut state, wrong + 1..12);
            // A factor that is a power of two changes no digit.
            same(&moving(state), &moving(without));
        }
    }
}

/// What it takes: no copies, and few kernels beside the products.
#[test]
fn a_step_copies_nothing() {
    let optimizer: Groups = "adam:lr=0.01".parse().expect("an optimizer");
    let step = step(&optimizer, 1);
    let plan = step.plan();
    let count = |f: fn(&tlc::ir::plan::Step) -> bool| plan.steps.iter().filter(|s| f(s)).count();
    assert_eq!(count(|s| matches!(s, tlc::ir::plan::Step::Copy { .. })), 0, "{plan}");
    let beside = count(|s| !matches!(s, tlc::ir::plan::Step::Gemm(_)));
    assert!(beside <= 8, "{beside} steps beside products:\n{plan}");
    assert_eq!(step.states().len(), 4 + 8 + 1);
}

/// A step that is not to be, whatever its gradients are, changes nothing but the scale of the loss.
#[test]
fn a_step_that_is_not_ok_changes_nothing() {
    for text in OPTIMIZERS {
        let optimizer: Groups = text.parse().expect("an optimizer");
        let g = Graph::new("step");
        let ok = g.input("ok", DType::Bool, ());
        let p: Vec<Tensor> = PARAMETERS
            .iter()
            .map(|(name, shape)| g.state(name, DType::F32, *shape))
            .collect();
        let named: Vec<(&str, &Tensor)> = PARAMETERS.iter().map(|(name, _)| *name).zip(&p).collect();
        let losses = p.iter().map(|p| (p - 0.5).square().sum(..));
        let found = optimizer.gradients(&losses.reduce(|a, b| a + b).expect("some"), &named);
        optimizer.step_if(&(ok & found.ok), &named, &found.gradients);
        let step = g.compile(&CompileOptions::default()).expect("it compiles");
        let (mut state, mut without) = (fresh(&optimizer), fresh(&optimizer));
        for k in 0..12 {
            let ok = k % 3 != 1;
            step.run_with(&mut state, &inputs![ok]).expect("it runs");
            if ok {
                step.run_with(&mut without, &inputs![true]).expect("it runs");
            }
        }
        assert_eq!(state[STEPS].as_scalar::<u64>(), Ok(8));
        same(&moving(state), &moving(without));
    }
}
