//! Memory under a limit: values are computed again, results keep their bits, and what cannot be is refused with what it needs.

use tlc::ir::rng::Rng;
use tlc::ir::testgen::{GenKind, GenOptions, random_case, seeds};
use tlc::ir::{NodeKind, ScalarOp};
use tlc::{
    BuildError, CompileOptions, DType, Dim, Executable, Graph, HostTensor, Input, RunError, Specialize, State, Tensor,
    compile_ir, grad, inputs,
};

/// The gradients of a perceptron of so many layers of 64, over a batch.
fn perceptron(layers: usize, batch: Option<usize>) -> Graph {
    let g = Graph::new("perceptron");
    let batch = batch.map_or_else(|| g.symbol("n", 1..), Dim::from);
    let x = g.input("x", DType::F32, [batch, Dim::from(64)]);
    let weights: Vec<_> = (0..layers)
        .map(|k| g.input(&format!("w{k}"), DType::F32, [64, 64]))
        .collect();
    let mut h = x.clone();
    for w in &weights {
        h = h.matmul(w).gelu_tanh();
    }
    let loss = h.square().mean(..);
    g.output("loss", &loss);
    let gradients = grad(&loss, &weights.iter().collect::<Vec<_>>());
    for (k, d) in gradients.iter().enumerate() {
        g.output(&format!("d.w{k}"), d);
    }
    g
}

fn tensors(layers: usize, batch: usize) -> Vec<HostTensor> {
    let number = |k: usize| ((k * 7919 % 1009) as f32 / 1009.0 - 0.5) * 0.3;
    let tensor = |shape: &[usize], seed: usize| {
        let count: usize = shape.iter().product();
        let values: Vec<f32> = (0..count).map(|k| number(k + seed * 131)).collect();
        HostTensor::from_slice(shape, &values).expect("as many")
    };
    let mut all = vec![tensor(&[batch, 64], 1)];
    all.extend((0..layers).map(|k| tensor(&[64, 64], k + 2)));
    all
}

fn limited(limit: Option<u64>) -> CompileOptions {
    CompileOptions {
        max_memory_bytes: limit,
        specialize: Specialize::Never,
        ..CompileOptions::default()
    }
}

fn run(executable: &Executable, tensors: &[HostTensor]) -> Vec<Vec<u8>> {
    let inputs: Vec<Input<'_>> = tensors.iter().map(Input::from).collect();
    let out = executable.run(&inputs).expect("it runs");
    out.iter().map(|o| o.bytes().to_vec()).collect()
}

fn need(executable: &Executable, tensors: &[HostTensor]) -> tlc::MemoryNeed {
    let inputs: Vec<Input<'_>> = tensors.iter().map(Input::from).collect();
    executable.memory(&inputs).expect("they fit")
}

#[test]
fn a_limit_of_half_of_what_is_kept_is_obeyed_and_results_keep_their_bits() {
    let (g, tensors) = (perceptron(12, Some(512)), tensors(12, 512));
    let all = g.compile(&limited(None)).expect("it compiles");
    let kept = need(&all, &tensors);
    // Two values of 128 KiB a layer.
    assert!(kept.arena > 20 * 512 * 64 * 4, "{kept:?}");
    let limit = kept.total() - kept.arena / 2;
    let half = g.compile(&limited(Some(limit))).expect("it compiles");
    assert!(need(&half, &tensors).total() <= limit);
    assert_eq!(run(&all, &tensors), run(&half, &tensors));
    let made = &half.decisions().planned.rematerialized;
    assert_eq!(made.len(), 1);
    let text = tlc::explain::explain(half.decisions(), half.devices());
    assert!(text.contains("run again, at least"), "{text}");
    // No more than the forward part once more: a product and its activation a layer.
    let steps: usize = made[0].1.again.iter().map(|a| a.steps).sum();
    assert!((1..=24).contains(&steps), "{steps} steps run again:\n{text}");
}

#[test]
fn what_cannot_be_is_refused_with_the_least_that_can() {
    let (g, tensors) = (perceptron(12, Some(512)), tensors(12, 512));
    let kept = need(&g.compile(&limited(None)).expect("it compiles"), &tensors).total();
    let refused = g.compile(&limited(Some(1000))).expect_err("too little");
    let BuildError::Load(RunError::MemoryLimit {
        needed,
        limit: 1000,
        device: None,
    }) = refused
    else {
        panic!("{refused}");
    };
    assert!(needed < kept * 2 / 3, "{needed} of {kept}");
    assert_eq!(
        refused.to_string(),
        format!("a call needs {needed} bytes of memory; expected at most 1000")
    );
    let least = g.compile(&limited(Some(needed))).expect("the least can be");
    assert!(need(&least, &tensors).total() <= needed);
    assert_eq!(
        run(&least, &tensors),
        run(&g.compile(&limited(None)).expect("it compiles"), &tensors)
    );
    let below = g.compile(&limited(Some(needed - 1))).expect_err("below the least");
    assert!(
        matches!(below, BuildError::Load(RunError::MemoryLimit { .. })),
        "{below}"
    );
}

#[test]
fn calls_of_symbolic_sizes_are_held_to_the_limit_each() {
    let g = perceptron(8, None);
    let free = g.compile(&limited(None)).expect("it compiles");
    let (small, large, huge) = (tensors(8, 64), tensors(8, 2048), tensors(8, 16384));
    let limit = need(&free, &large).total() - need(&free, &large).arena / 3;
    assert!(need(&free, &small).total() <= limit);
    let held = g.compile(&limited(Some(limit))).expect("it compiles");
    for tensors in [&small, &large, &small, &large] {
        let inputs: Vec<Input<'_>> = tensors.iter().map(Input::from).collect();
        let (a, b) = (free.run(&inputs).expect("it runs"), held.run(&inputs).expect("it runs"));
        for (a, b) in a.iter().zip(b.iter()) {
            let (a, b) = (a.as_slice::<f32>().expect("f32"), b.as_slice::<f32>().expect("f32"));
            // The version for these sizes may sum in another order.
            for (a, b) in a.iter().zip(b) {
                assert!((a - b).abs() <= 1e-5 * a.abs().max(1e-3), "{a} {b}");
            }
        }
    }
    let made = held.specializations();
    assert_eq!(made.len(), 1, "{made:?}");
    assert!(made[0].reason.contains("bytes of memory"), "{made:?}");
    let inputs: Vec<Input<'_>> = huge.iter().map(Input::from).collect();
    let refused = held.run(&inputs).expect_err("too much");
    assert!(
        matches!(refused, RunError::MemoryLimit { needed, .. } if needed > limit),
        "{refused}"
    );
}

/// The order of a contraction over symbolic sizes is found before any call: it refuses nothing that a call has room for.
#[test]
fn contractions_of_symbolic_sizes_are_held_to_the_limit_by_each_call() {
    let g = Graph::new("trace");
    let (n, m) = (g.symbol("n", 1..=512), g.symbol("m", 1..=512));
    let a = g.input("a", DType::F64, (64, &n));
    let b = g.input("b", DType::F64, (&n, &m));
    let c = g.input("c", DType::F64, (&m, 64));
    g.output("y", &tlc::einsum("an,nm,ma->", &[&a, &b, &c]));
    let held = g.compile(&limited(Some(16 << 10))).expect("it compiles");
    let at = |(n, m): (usize, usize)| {
        let tensor = |shape: [usize; 2], first: usize| {
            let values = (0..shape[0] * shape[1]).map(|k| ((k * 7 + first) % 11) as f64 - 5.0);
            HostTensor::from_slice(&shape, &values.collect::<Vec<f64>>()).expect("a tensor")
        };
        [tensor([64, n], 1), tensor([n, m], 2), tensor([m, 64], 3)]
    };
    let few = at((2, 3));
    let of = |t: &HostTensor| t.as_slice::<f64>().expect("f64").to_vec();
    let [a, b, c] = [of(&few[0]), of(&few[1]), of(&few[2])];
    let mut expected = 0.0;
    for i in 0..64 {
        for j in 0..2 {
            for k in 0..3 {
                expected += a[i * 2 + j] * b[j * 3 + k] * c[k * 64 + i];
            }
        }
    }
    let inputs: Vec<Input<'_>> = few.iter().map(Input::from).collect();
    let found = held.run(&inputs).expect("it has room");
    // Small integers: no order rounds.
    assert_eq!(found["y"].as_scalar::<f64>().expect("f64"), expected);
    let many = at((512, 512));
    let inputs: Vec<Input<'_>> = many.iter().map(Input::from).collect();
    let refused = held.run(&inputs).expect_err("too much");
    assert!(matches!(refused, RunError::MemoryLimit { .. }), "{refused}");
}

/// Values that are made one from another, and then read in about the opposite order, as a backward pass does; some are states, and some
/// of those are set early. Returns the graph, its extent and the number of its states.
fn there_and_back(seed: u64) -> (Graph, usize, usize) {
    let mut rng = Rng::new(seed);
    let g = Graph::new("there_and_back");
    let n = rng.pick(&[4usize, 7, 16, 33, 130]);
    let mut made = vec![g.input("x", DType::F32, [n, n])];
    let states = rng.range(1, 4) as usize;
    made.extend((0..states).map(|k| g.state(&format!("s{k}"), DType::F32, [n, n])));
    let step = |rng: &mut Rng, a: &Tensor, b: &Tensor| match rng.below(9) {
        0 => a.matmul(b).tanh(),
        1 => (a + b).sin(),
        2 => a * b,
        3 => a.softmax(1) + b,
        4 => a.permute([1, 0]) - b,
        5 => a.maximum(b),
        6 => a.cumsum(0).tanh() * b,
        7 => {
            let body = |i: &mut tlc::Iteration| vec![(&i.carried[0] * 0.5 + i.capture(b)).cos()];
            let looped = g.repeat(3).carry(a).record(body);
            looped[0].clone()
        }
        _ => (a.matmul(b) + a).sigmoid(),
    };
    for _ in 0..rng.range(4, 14) {
        let (a, b) = (made[made.len() - 1].clone(), made[rng.below(made.len())].clone());
        made.push(step(&mut rng, &a, &b));
    }
    let mut unset: Vec<usize> = (0..states).collect();
    let mut back = made[made.len() - 1].clone();
    for k in (0..made.len()).rev() {
        if rng.chance(3, 4) {
            back = step(&mut rng, &back, &made[k]);
        }
        if !unset.is_empty() && rng.chance(1, 4) {
            let set = unset.swap_remove(rng.below(unset.len()));
            let value = match rng.below(3) {
                0 => &made[1 + set] * 0.9 + &back * 0.1,
                _ => &made[rng.below(made.len())] * 0.5,
            };
            g.set(&format!("s{set}"), &value);
        }
    }
    g.output("y", &back);
    (g, n, states)
}

/// The output of two calls one after the other, and the states after them.
fn two_calls(executable: &Executable, n: usize, states: usize) -> Vec<Vec<u8>> {
    let array =
        |k: usize| ndarray::Array2::from_shape_fn((n, n), |(i, j)| ((i * 5 + j * 3 + k) % 11) as f32 * 0.1 - 0.5);
    let mut state = State::new();
    for k in 0..states {
        state.insert(&format!("s{k}"), array(k)).expect("an entry");
    }
    let x = array(7);
    let mut out = Vec::new();
    for _ in 0..2 {
        let found = executable.run_with(&mut state, &inputs![&x]).expect("it runs");
        out.push(found[0].bytes().to_vec());
    }
    out.extend(state.iter().map(|e| e.bytes().expect("here").to_vec()));
    out
}

#[test]
fn random_graphs_compute_the_same_in_the_least_memory() {
    let (mut again, mut later, mut lowered) = (0, 0, 0);
    for seed in seeds(0..100) {
        let (g, n, states) = there_and_back(seed);
        let compile = |limit| g.compile(&limited(limit));
        let all = compile(None).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let x = ndarray::Array2::<f32>::zeros((n, n));
        let mut zeros = State::new();
        for k in 0..states {
            zeros.insert(&format!("s{k}"), &x).expect("an entry");
        }
        let kept = all.memory_with(&zeros, &inputs![&x]).expect("it fits");
        // No arena at all.
        let least = match compile(Some(kept.total() - kept.arena)) {
            Err(BuildError::Load(RunError::MemoryLimit { needed, .. })) => needed,
            Ok(_) => continue,
            Err(e) => panic!("seed {seed}: {e}"),
        };
        let held = compile(Some(least)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let need = held.memory_with(&zeros, &inputs![&x]).expect("it fits");
        assert!(need.total() <= least, "seed {seed}: {need:?}, {least}");
        lowered += usize::from(need.arena < kept.arena);
        for a in held
            .decisions()
            .planned
            .rematerialized
            .iter()
            .flat_map(|(_, made)| &made.again)
        {
            again += a.steps;
            later += usize::from(a.steps == 0);
        }
        assert_eq!(two_calls(&all, n, states), two_calls(&held, n, states), "seed {seed}");
    }
    assert!(
        again > 50 && lowered > 20,
        "{again} steps ran again, {later} later, {lowered} graphs"
    );
}

/// A chain of layers with weights of their own, and its gradient by its input.
fn deep(layers: usize) -> (Graph, Vec<f32>, Vec<f32>) {
    let g = Graph::new("deep");
    let x = g.input("x", DType::F32, [32, 32]);
    let w = g.input("w", DType::F32, [layers, 32, 32]);
    let y = (0..layers).fold(x.clone(), |h: Tensor, k| {
        h.matmul(&w.narrow(0, k as i64, 1).reshape([32usize, 32])).tanh()
    });
    g.output("d", &grad(&y.square().mean(..), &[&x])[0]);
    let number = |k: usize| ((k * 7919 % 1009) as f32 / 1009.0 - 0.5) * 0.5;
    let values = |count: usize| (0..count).map(number).collect();
    (g, values(1024), values(1024 * layers))
}

/// Changes one after the other took minutes: each was chosen among all, and weighed over every step.
#[test]
fn thousands_of_layers_compile_under_a_limit_in_seconds() {
    let (g, x, w) = deep(3000);
    let all = g.compile(&limited(None)).expect("it compiles");
    let kept = all.memory(&inputs![&x, &w]).expect("they fit");
    let start = std::time::Instant::now();
    let limit = kept.total() - kept.arena * 3 / 4;
    let held = g.compile(&limited(Some(limit))).expect("it compiles");
    // About a second where nothing else runs.
    assert!(start.elapsed().as_secs() < 30, "{:?}", start.elapsed());
    assert!(held.memory(&inputs![&x, &w]).expect("they fit").total() <= limit);
    let outputs = [&all, &held].map(|e| e.run(&inputs![&x, &w]).expect("it runs")[0].bytes().to_vec());
    assert_eq!(outputs[0], outputs[1]);
}

/// Steps that run again can make the arena larger, where values do not fit beside each other: what is stated is the least on the way.
#[test]
fn random_gradients_compute_the_same_in_the_least_memory() {
    use ScalarOp::*;
    let mut kinds = GenKind::all();
    kinds.extend([GenKind::Map; 6]);
    kinds.extend([GenKind::Input; 2]);
    let options = GenOptions {
        max_nodes: 24,
        dtypes: vec![DType::F32],
        kinds,
        ops: vec![
            Neg, Exp, Sin, Cos, Tanh, Atan, Erf, Asinh, Add, Sub, Mul, Fma, Sqrt, Div,
        ],
        guards: false,
        ..GenOptions::default()
    };
    let (mut refused, mut lowered) = (0, 0);
    for seed in seeds(0..120) {
        let case = random_case(seed, &options);
        let sizes: Vec<Option<i64>> = case.binding.iter().map(|&n| Some(n)).collect();
        let Ok(ir) = case.graph.specialize(&sizes) else {
            continue;
        };
        let recorded = Graph::from_ir(ir.clone());
        let floats = |ids: Vec<_>| -> Vec<Tensor> {
            let all = ids.into_iter().map(|id| recorded.tensor(id).expect("a value"));
            all.filter(|t| t.dtype() == DType::F32).collect()
        };
        let x = floats(ir.inputs().to_vec());
        let y = floats(ir.outputs().iter().map(|o| o.node).collect());
        let Some(loss) = y.iter().map(|y| y.tanh().sum(..)).reduce(|a, b| a + b) else {
            continue;
        };
        let slopes = grad(&loss, &x.iter().collect::<Vec<_>>());
        if !recorded.errors().is_empty() {
            // A loop that nothing bounds.
            continue;
        }
        let names: Vec<String> = (0..slopes.len()).map(|k| format!("d{k}")).collect();
        let mut outputs = vec![("loss", &loss)];
        outputs.extend(names.iter().map(String::as_str).zip(&slopes));
        let graph = recorded.extract(&outputs).expect("it is whole");
        let name = |g: &tlc::ir::Graph, id| match &g.node(id).kind {
            NodeKind::Input { name, .. } => name.clone(),
            _ => unreachable!("an input"),
        };
        let names: Vec<String> = ir.inputs().iter().map(|&id| name(&ir, id)).collect();
        let all = case.input_data(seed);
        let of = |n: String| all[names.iter().position(|m| *m == n).expect("an input")].clone();
        let data: Vec<HostTensor> = graph.inputs().iter().map(|&id| of(name(&graph, id))).collect();
        let compile = |limit| compile_ir(&graph, &limited(limit));
        let all = compile(None).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let kept = need(&all, &data);
        let impossible = compile(Some(kept.total() - kept.arena));
        let Err(BuildError::Load(RunError::MemoryLimit { needed, .. })) = impossible else {
            assert!(kept.arena == 0 || !all.plan().symbols.is_empty(), "seed {seed}");
            continue;
        };
        assert!(needed <= kept.total(), "seed {seed}: {needed} of {kept:?}");
        let held = compile(Some(needed)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert!(need(&held, &data).total() <= needed, "seed {seed}");
        assert_eq!(run(&all, &data), run(&held, &data), "seed {seed}");
        let below = compile(Some(needed - 1));
        assert!(
            matches!(below, Err(BuildError::Load(RunError::MemoryLimit { needed: n, .. })) if n == needed),
            "seed {seed}: {below:?}"
        );
        refused += 1;
        lowered += usize::from(needed < kept.total());
    }
    assert!(refused > 40, "{refused} refused, {lowered} lowered");
}

#[test]
fn sizes_that_data_decides_are_held_to_the_limit() {
    let g = Graph::new("nonzero");
    let x = g.input("x", DType::F32, [4096]);
    let at = x.gt(0.0).nonzero();
    g.output("y", &x.take(&at.squeeze(1), 0).sort(0, false).sum(..));
    let x = vec![1.0f32; 4096];
    let free = g.compile(&limited(None)).expect("it compiles");
    let kept = free.memory(&inputs![&x]).expect("it fits").total();
    g.compile(&limited(Some(kept))).expect("it fits");
    let refused = g.compile(&limited(Some(kept - 1))).expect_err("too little");
    assert!(
        matches!(refused, BuildError::Load(RunError::MemoryLimit { needed, .. }) if needed == kept),
        "{refused}"
    );
}

/// Each call of a size that cannot be compiled it again, until other sizes were refused that could.
#[test]
fn sizes_that_cannot_be_are_tried_once() {
    let g = perceptron(8, None);
    let free = g.compile(&limited(None)).expect("it compiles");
    let (large, huge) = (tensors(8, 2048), tensors(8, 16384));
    let limit = need(&free, &large).total() - need(&free, &large).arena / 3;
    let held = g.compile(&limited(Some(limit))).expect("it compiles");
    let call = |tensors: &[HostTensor]| {
        let inputs: Vec<Input<'_>> = tensors.iter().map(Input::from).collect();
        held.run(&inputs).map(drop)
    };
    for _ in 0..40 {
        assert!(matches!(call(&huge), Err(RunError::MemoryLimit { needed, .. }) if needed > limit));
    }
    call(&large).expect("it can be run in so little");
    assert_eq!(held.specializations().len(), 2);
}

/// What says how a kernel was made stays beside it where the copy before a scatter into a state is left out, and the steps behind run again.
#[test]
fn kernels_that_run_again_keep_their_reports() {
    let g = Graph::new("scatter");
    let (x, at) = (g.input("x", DType::F32, [64, 64]), g.input("at", DType::I64, [4]));
    let state = g.state("s", DType::F32, [64, 64]);
    g.set("s", &state.scatter_set(0, &at, &x.narrow(0, 0, 4)));
    let mut h = x.clone();
    let all: Vec<Tensor> = (0..6)
        .map(|_| {
            h = h.matmul(&x).softmax(1);
            h.clone()
        })
        .collect();
    g.output("y", &all.iter().rev().fold(h, |back, h| (back * h).cumsum(0).matmul(h)));
    let free = g.compile(&limited(None)).expect("it compiles");
    let zeros = ndarray::Array2::<f32>::zeros((64, 64));
    let mut state = State::new();
    state.insert("s", &zeros).expect("an entry");
    let need = free
        .memory_with(&state, &inputs![&zeros, &[0i64; 4]])
        .expect("they fit");
    let held = g
        .compile(&limited(Some(need.total() - need.arena / 3)))
        .expect("it compiles");
    assert!(!held.decisions().planned.rematerialized.is_empty());
    for e in [&free, &held] {
        let planned = &e.decisions().planned;
        let ran: Vec<_> = planned.plan.launches().iter().map(|l| l.kernel).collect();
        let reported: Vec<_> = planned.launches.iter().map(|l| l.kernel).collect();
        assert_eq!(ran, reported, "{}", planned.plan);
    }
}

/// The version for the sizes of a call may need more than the code for any: what is stated is the lesser, and is met.
#[test]
fn what_networks_are_refused_with_is_enough_for_them() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models");
    let mut refused = 0;
    for entry in std::fs::read_dir(&folder).expect("a folder") {
        let path = entry.expect("a file").path();
        if path.extension().is_none_or(|e| e != "onnx") {
            continue;
        }
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let imported = tlc::onnx::import(&std::fs::read(&path).expect("a model"), &Default::default());
        let graph = imported.expect("it imports").graph;
        let recorded = std::fs::read(path.with_extension("npz")).expect("recorded calls");
        let mut archive = tlc_formats::npz::Archive::open(&recorded).expect("an archive");
        let free = compile_ir(&graph, &limited(None)).expect("it compiles");
        let mut read = |name: &str| {
            let array = archive.read(&format!("in.0.{name}"), &Default::default());
            array.expect("an array")
        };
        let inputs: Vec<HostTensor> = free.plan().inputs.iter().map(|i| read(&i.name)).collect();
        let kept = need(&free, &inputs);
        let held = |limit: u64| {
            let executable = compile_ir(&graph, &limited(Some(limit))).map_err(|e| match e {
                BuildError::Load(e) => e,
                e => panic!("{name}: {e}"),
            })?;
            let given: Vec<Input<'_>> = inputs.iter().map(Input::from).collect();
            executable.run(&given).map(drop)
        };
        let Err(RunError::MemoryLimit { needed, .. }) = held(kept.total() - kept.arena) else {
            continue;
        };
        assert!(needed <= kept.total(), "{name}: {needed} of {kept:?}");
        held(needed).unwrap_or_else(|e| panic!("{name}: {e}"));
        refused += 1;
    }
    assert!(refused >= 8, "{refused} refused");
}

#[test]
fn threads_that_call_with_several_sizes_are_held_to_the_limit() {
    let g = perceptron(8, None);
    let free = g.compile(&limited(None)).expect("it compiles");
    let sizes = [64, 1024, 2048, 16384].map(|n| tensors(8, n));
    let limit = need(&free, &sizes[2]).total() - need(&free, &sizes[2]).arena / 3;
    let held = g.compile(&limited(Some(limit))).expect("it compiles");
    let expected = sizes[..3].iter().map(|t| run(&held, t)).collect::<Vec<_>>();
    let held = g.compile(&limited(Some(limit))).expect("it compiles");
    std::thread::scope(|s| {
        for thread in 0..4 {
            let (held, sizes, expected) = (&held, &sizes, &expected);
            s.spawn(move || {
                for k in (0..12).map(|k| (k + thread) % 4) {
                    match k {
                        3 => {
                            let inputs: Vec<Input<'_>> = sizes[3].iter().map(Input::from).collect();
                            let refused = held.run(&inputs).expect_err("too much");
                            assert!(matches!(refused, RunError::MemoryLimit { .. }), "{refused}");
                        }
                        k => assert_eq!(run(held, &sizes[k]), expected[k]),
                    }
                }
            });
        }
    });
}
