//! Calls on a state: what is read, what is set, and whose memory it is.

use tlc::{CompileOptions, DType, Graph, Specialize, State, inputs, outputs};

fn compiled(g: &Graph) -> tlc::Executable {
    g.compile(&CompileOptions::default()).expect("it compiles")
}

fn slice<'s>(state: &'s State, name: &str) -> &'s [f32] {
    state[name].as_slice().expect("floats")
}

/// Every read is of the value before the call, also after the state is set, and an output that is the old or the new value is its own.
#[test]
fn reads_are_of_the_value_before_the_call() {
    let g = Graph::new("shift");
    let w = g.state("w", DType::F32, [3]);
    let new = &w * 2.0;
    g.set("w", &new);
    g.output("old", &w);
    g.output("new", &new);
    g.output("old_sum", &g.state("w", DType::F32, [3]).sum(..));
    g.output("reversed", &w.flip(0));
    let step = compiled(&g);
    let mut state = State::new();
    state.insert("w", [1.0f32, 2.0, 3.0]).expect("an entry");
    for round in 0..4 {
        let k = (1 << round) as f32;
        let out = step.run_with(&mut state, &inputs![]).expect("it runs");
        assert_eq!(out["old"].as_slice::<f32>(), Ok(&[k, 2.0 * k, 3.0 * k][..]));
        assert_eq!(out["new"].as_slice::<f32>(), Ok(&[2.0 * k, 4.0 * k, 6.0 * k][..]));
        assert_eq!(out["old_sum"].as_scalar::<f32>(), Ok(6.0 * k));
        assert_eq!(out["reversed"].as_slice::<f32>(), Ok(&[3.0 * k, 2.0 * k, k][..]));
        assert_eq!(slice(&state, "w"), [2.0 * k, 4.0 * k, 6.0 * k]);
    }
}

#[test]
fn states_that_change_places_and_states_of_one_value() {
    let g = Graph::new("swap");
    let (a, b) = (g.state("a", DType::F32, [2]), g.state("b", DType::F32, [2]));
    g.set("a", &b);
    g.set("b", &a);
    g.set("c", &a);
    g.set("d", &a);
    let swap = compiled(&g);
    let mut state = State::new();
    state.insert("a", [1.0f32, 2.0]).expect("an entry");
    state.insert("b", [3.0f32, 4.0]).expect("an entry");
    swap.run_with(&mut state, &inputs![]).expect("it runs");
    assert_eq!(
        (slice(&state, "a"), slice(&state, "b")),
        (&[3.0, 4.0][..], &[1.0, 2.0][..])
    );
    assert_eq!(
        (slice(&state, "c"), slice(&state, "d")),
        (&[1.0, 2.0][..], &[1.0, 2.0][..])
    );
}

/// What only sets states makes them, of the sizes of the call.
#[test]
fn states_that_are_only_set_are_made() {
    let g = Graph::new("init");
    let n = g.symbol("n", 0..=100);
    let x = g.input("x", DType::F32, (&n, 2));
    g.set("total", &x.sum(0));
    g.set("rows", &(&x + 1.0));
    let init = compiled(&g);
    let mut state = State::new();
    init.run_named_with(&mut state, &inputs!["x" => &[[1.0f32, 2.0], [3.0, 4.0]]])
        .expect("it runs");
    assert_eq!(slice(&state, "total"), [4.0, 6.0]);
    assert_eq!(state["rows"].shape(), [2, 2]);
    // Of another size it is another state.
    let error = init.run_with(&mut state, &inputs![&[[1.0f32, 2.0]]]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "state `rows`: expected aligned f32[1, 2], found f32[2, 2] in 16 bytes"
    );
    assert_eq!(slice(&state, "total"), [4.0, 6.0]);
    assert!(state.remove("rows") && !state.remove("rows"));
    init.run_with(&mut state, &inputs![&[[1.0f32, 2.0]]]).expect("it runs");
    assert_eq!(
        (slice(&state, "rows"), slice(&state, "total")),
        (&[2.0, 3.0][..], &[1.0, 2.0][..])
    );
}

/// Extents that are symbols follow from states as from inputs, inputs without a shape take theirs from them, and a version for fixed sizes
/// does what the general one does.
#[test]
fn sizes_follow_from_states() {
    let g = Graph::new("rows");
    let (n, m) = (g.symbol("n", 0..=64), g.symbol("m", 0..=64));
    let w = g.state("w", DType::F32, (&n, &m));
    let x = g.input("x", DType::F32, (&n, &m));
    g.set("w", &(&w + &x));
    g.output("sum", &w.sum(..));
    let options = CompileOptions {
        specialize: Specialize::After(2),
        ..CompileOptions::default()
    };
    let add = g.compile(&options).expect("it compiles");
    for (rows, columns) in [(2usize, 3usize), (5, 1), (0, 4), (2, 3)] {
        let mut state = State::new();
        let values = ndarray::Array2::<f32>::ones((rows, columns));
        state.insert("w", &values).expect("an entry");
        let x = vec![1.0f32; rows * columns];
        for round in 0..5 {
            let out = add.run_with(&mut state, &inputs![&x]).expect("it runs");
            let elements = (rows * columns) as f32;
            assert_eq!(out["sum"].as_scalar::<f32>(), Ok(elements * (round + 1) as f32));
            add.wait_for_specializations();
        }
        assert_eq!(slice(&state, "w"), vec![6.0; rows * columns]);
    }
    assert!(!add.specializations().is_empty());
    let mut state = State::new();
    state.insert("w", [[1.0f32, 2.0]]).expect("an entry");
    let error = add.run_with(&mut state, &inputs![&[[1.0f32], [2.0]]]).unwrap_err();
    assert!(
        error.to_string().starts_with("state `w`: expected f32[n, m]"),
        "{error}"
    );
}

/// No version that was measured takes over in the midst of training, for then what is trained would depend on when it was ready. The same
/// graph without an update gets one.
#[test]
fn steps_of_training_keep_their_code() {
    let compiled = |sets: bool| {
        let g = Graph::new("step");
        let n = g.symbol("n", 0..=4096);
        let x = g.input("x", DType::F32, (&n, 16));
        let w = g.state("w", DType::F32, [16, 16]);
        let loss = x.matmul(&w).tanh().square().mean(..);
        let gradient = tlc::grad(&loss, &[&w]).remove(0);
        match sets {
            true => g.set("w", &(&w - &gradient * 0.1)),
            false => g.output("gradient", &gradient),
        }
        g.output("loss", &loss);
        g.compile(&CompileOptions::default()).expect("it compiles")
    };
    let x = ndarray::Array2::<f32>::from_elem((512, 16), 0.25);
    let mut state = State::new();
    let w = ndarray::Array2::<f32>::from_elem((16, 16), 0.125);
    state.insert("w", &w).expect("an entry");
    let (reading, setting) = (compiled(false), compiled(true));
    let mut calls = 0;
    while reading.specializations().is_empty() {
        calls += 1;
        assert!(calls < 100_000, "no version was made for sizes that recur");
        reading.run_with(&mut state, &inputs![&x]).expect("it runs");
    }
    for _ in 0..2 * calls {
        setting.run_with(&mut state, &inputs![&x]).expect("it runs");
    }
    setting.wait_for_specializations();
    assert_eq!(setting.specializations(), []);
}

/// Updates take place in the state's own memory.
#[test]
fn entries_stay_where_they_are() {
    let g = Graph::new("decay");
    let w = g.state("w", DType::F32, [1000]);
    let v = g.state("v", DType::F32, [1000]);
    let x = g.input("x", DType::F32, [1000]);
    let v2 = &v * 0.9 + &x;
    g.set("v", &v2);
    g.set("w", &(&w - &v2 * 0.1));
    let mean = w.mean(..);
    g.output("mean", &mean);
    let step = compiled(&g);
    let copies = step
        .plan()
        .steps
        .iter()
        .filter(|s| matches!(s, tlc::ir::plan::Step::Copy { .. }))
        .count();
    assert_eq!(copies, 0, "{}", step.plan());
    let mut state = State::new();
    state.insert("w", vec![1.0f32; 1000]).expect("an entry");
    state.insert("v", vec![0.0f32; 1000]).expect("an entry");
    let before = (
        state["w"].bytes().expect("here").as_ptr(),
        state["v"].bytes().expect("here").as_ptr(),
    );
    let (x, mut mean) = (vec![1.0f32; 1000], 0.0f32);
    for _ in 0..3 {
        step.run_with_into(&mut state, &inputs![&x], &mut outputs![&mut mean])
            .expect("it runs");
    }
    assert_eq!(
        before,
        (
            state["w"].bytes().expect("here").as_ptr(),
            state["v"].bytes().expect("here").as_ptr()
        )
    );
    // v is 1, 1.9, 2.71; the mean is that before the third step.
    assert!((slice(&state, "v")[999] - 2.71).abs() < 1e-6);
    assert!((slice(&state, "w")[0] - (1.0 - 0.561)).abs() < 1e-6);
    assert!((mean - 0.71).abs() < 1e-6);
}

/// A value that is not finite leaves every state as it was, to the bit, NaN and negative zero included.
#[test]
fn what_is_set_on_a_condition_stays_to_the_bit() {
    let g = Graph::new("guarded");
    let w = g.state("w", DType::F32, [4]);
    let n = g.state("n", DType::I64, ());
    let x = g.input("x", DType::F32, [4]);
    let ok = x.is_finite().all(..);
    g.set_if(&ok, "w", &(&w + &x));
    g.set_if(&ok, "n", &(&n + 1));
    let step = compiled(&g);
    let mut state = State::new();
    let quiet = f32::from_bits(0x7fc1_2345);
    state.insert("w", [1.0, -0.0, quiet, f32::INFINITY]).expect("an entry");
    state.insert("n", 5i64).expect("an entry");
    let before = state["w"].bytes().expect("here").to_vec();
    step.run_with(&mut state, &inputs![&[1.0, f32::NAN, 0.0, 0.0]])
        .expect("it runs");
    assert_eq!(
        (state["w"].bytes().expect("here"), state["n"].as_scalar::<i64>()),
        (&before[..], Ok(5))
    );
    step.run_with(&mut state, &inputs![&[1.0f32, 1.0, 1.0, 1.0]])
        .expect("it runs");
    assert_eq!((slice(&state, "w")[0], slice(&state, "w")[1]), (2.0, 1.0));
    assert_eq!(state["n"].as_scalar::<i64>(), Ok(6));
}

/// Eight readers of one set of weights, each with a count of its own.
#[test]
fn frozen_entries_are_shared() {
    let g = Graph::new("decoder");
    let w = g.state("w", DType::F32, [8]);
    let count = g.state("count", DType::F32, ());
    g.set("count", &(&count + w.sum(..)));
    let step = compiled(&g);
    let mut weights = State::new();
    weights.insert("w", [1.0f32; 8]).expect("an entry");
    weights.freeze(|_| true);
    let mut all: Vec<State> = (0..8).map(|_| weights.share()).collect();
    for (k, state) in all.iter_mut().enumerate() {
        state.insert("count", k as f32).expect("an entry");
        step.run_with(state, &inputs![]).expect("it runs");
        step.run_with(state, &inputs![]).expect("it runs");
    }
    for (k, state) in all.iter().enumerate() {
        assert_eq!(state["count"].as_scalar::<f32>(), Ok(k as f32 + 16.0));
        assert_eq!(
            state["w"].bytes().expect("here").as_ptr(),
            weights["w"].bytes().expect("here").as_ptr()
        );
    }
    // Threads may run them at once.
    std::thread::scope(|s| {
        for state in &mut all {
            s.spawn(|| step.run_with(state, &inputs![]).expect("it runs"));
        }
    });
    assert!(
        all.iter()
            .enumerate()
            .all(|(k, s)| s["count"].as_scalar::<f32>() == Ok(k as f32 + 24.0))
    );
}

/// Elements of every type, and empty ones.
#[test]
fn states_of_every_type() {
    for dtype in DType::ALL {
        let g = Graph::new("two");
        let (a, b) = (g.state("a", dtype, [2, 3]), g.state("none", dtype, [0, 3]));
        g.set("a", &a.flip(0));
        g.set("none", &b.flip(0));
        let flip = compiled(&g);
        let size = dtype.bytes();
        let bytes: Vec<u8> = (0..6 * size)
            .map(|k| {
                if dtype == DType::Bool {
                    k as u8 % 2
                } else {
                    (k % 2) as u8
                }
            })
            .collect();
        let aligned = tlc::HostTensor::from_bytes(dtype, &[2, 3], &bytes).expect("a tensor");
        let mut state = State::new();
        state.insert("a", &aligned).expect("an entry");
        state
            .insert("none", tlc::HostTensor::zeros(dtype, &[0, 3]).expect("a tensor"))
            .expect("an entry");
        flip.run_with(&mut state, &inputs![]).expect("it runs");
        let flipped = [&bytes[3 * size..], &bytes[..3 * size]].concat();
        assert_eq!(state["a"].bytes().expect("here"), flipped, "{dtype}");
    }
}

/// Rows that are written into a large state are all that a call moves of it.
#[test]
fn a_scatter_into_a_state_copies_nothing() {
    let g = Graph::new("append");
    let cache = g.state("cache", DType::F32, [4096, 64]);
    let length = g.state("length", DType::I64, ());
    let row = g.input("row", DType::F32, [1, 64]);
    let new = cache.scatter_set(0, &length.unsqueeze(0), &row);
    g.set("cache", &new);
    g.set("length", &(&length + 1));
    g.output("sum", &new.slice(tlc::s![..4]).sum(0));
    let append = compiled(&g);
    let plan = append.plan();
    let moved: i64 = plan
        .steps
        .iter()
        .flat_map(|s| s.launches())
        .filter_map(|l| l.bytes.as_const())
        .sum();
    assert!(moved < 4096, "{moved} bytes\n{plan}");
    let mut state = State::new();
    state
        .insert("cache", ndarray::Array2::<f32>::zeros((4096, 64)))
        .expect("an entry");
    state.insert("length", 0i64).expect("an entry");
    for k in 0..5 {
        let row = [[k as f32 + 1.0; 64]];
        let out = append.run_with(&mut state, &inputs![&row]).expect("it runs");
        let rows = (k + 1).min(4) as f32;
        assert_eq!(
            out["sum"].as_slice::<f32>().expect("floats")[63],
            rows * (rows + 1.0) / 2.0
        );
    }
    let all = slice(&state, "cache");
    assert_eq!((all[0], all[4 * 64], all[5 * 64]), (1.0, 5.0, 0.0));
}

/// Products whose operands, residuals and results are one state.
#[test]
fn a_state_that_is_the_operand_and_the_residual_of_its_product() {
    let n = 96usize;
    let g = Graph::new("products");
    let (w, v) = (g.state("w", DType::F64, [n, n]), g.state("v", DType::F64, [n, n]));
    g.set("w", &(w.matmul(&v) + &w));
    g.set("v", &(v.matmul(&v) + &w));
    g.output("old", &w.t());
    let step = compiled(&g);
    let mut state = State::new();
    // Powers of two times small integers, whose sums are exact.
    let entry = |k: usize| {
        ndarray::Array2::from_shape_fn((n, n), move |(i, j)| {
            ((i * 7 + j * 3 + k) % 5) as f64 / 64.0 - 1.0 / 32.0
        })
    };
    let (mut a, mut b) = (entry(0), entry(1));
    state.insert("w", &a).expect("an entry");
    state.insert("v", &b).expect("an entry");
    for _ in 0..3 {
        let out = step.run_with(&mut state, &inputs![]).expect("it runs");
        assert_eq!(out["old"].as_array::<f64, ndarray::Ix2>().expect("numbers"), a.t());
        (a, b) = (a.dot(&b) + &a, b.dot(&b) + &a);
        assert_eq!(state["w"].as_array::<f64, ndarray::Ix2>().expect("numbers"), a);
        assert_eq!(state["v"].as_array::<f64, ndarray::Ix2>().expect("numbers"), b);
    }
}
