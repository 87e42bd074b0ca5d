//! States that are recorded, given or left wrongly.

use tlc::{CompileOptions, DType, Graph, Input, RunError, State, inputs};

fn first_error(g: &Graph) -> String {
    g.errors().first().expect("an error").to_string()
}

#[test]
fn recordings_that_contradict_themselves() {
    let g = Graph::new("types");
    g.state("w", DType::F32, [2]);
    g.state("w", DType::F32, [3]);
    assert_eq!(
        first_error(&g),
        "state of w: f32[3]: the state `w` is f32[2]; expected f32[2]"
    );

    let g = Graph::new("twice");
    let w = g.state("w", DType::F32, [2]);
    g.set("w", &(&w + 1.0));
    g.set("w", &w);
    assert!(
        first_error(&g).contains("the state `w` is set already"),
        "{}",
        first_error(&g)
    );

    let g = Graph::new("other type");
    let w = g.state("w", DType::F32, [2]);
    g.set("w", &w.sum(0));
    assert!(
        first_error(&g).contains("the state `w` is f32[2]"),
        "{}",
        first_error(&g)
    );

    let g = Graph::new("input");
    g.input("w", DType::F32, [2]);
    g.state("w", DType::F32, [2]);
    assert!(first_error(&g).contains("`w`"), "{}", first_error(&g));

    let g = Graph::new("output");
    let w = g.state("w", DType::F32, [2]);
    g.output("w", &w);
    g.set("w", &w);
    assert!(first_error(&g).contains("taken by an output"), "{}", first_error(&g));

    let g = Graph::new("nothing to keep");
    let x = g.input("x", DType::F32, [2]);
    g.set_if(&x.gt(0.0).all(..), "w", &x);
    assert!(
        first_error(&g).contains("the graph does not read it"),
        "{}",
        first_error(&g)
    );

    let g = Graph::new("no condition");
    let w = g.state("w", DType::F32, [2]);
    g.set_if(&w.gt(0.0), "w", &w);
    assert!(first_error(&g).contains("expected bool[]"), "{}", first_error(&g));

    let g = Graph::new("data decides");
    let w = g.state("w", DType::F32, [4]);
    g.set("found", &w.nonzero());
    assert!(first_error(&g).contains("data decides"), "{}", first_error(&g));
}

/// Caches of which a call could not say before it runs whether they have room.
#[test]
fn as_many_rows_as_data_decides() {
    let g = Graph::new("found");
    let x = g.input("x", DType::I64, [6]);
    let found = x.gt(0).nonzero().squeeze(0);
    g.cache("c", DType::I64, [4], 0).append(&found);
    assert!(
        first_error(&g).contains("data decides how many rows there are"),
        "{}",
        first_error(&g)
    );
}

/// Parameters under each other's names would be given each other's values.
#[test]
fn parameters_under_other_names() {
    let g = Graph::new("swapped");
    let (a, b) = (g.state("a", DType::F32, [2]), g.state("b", DType::F32, [2]));
    let optimizer: tlc::optim::Groups = "sgd".parse().expect("an optimizer");
    optimizer.minimize(&(&a * &b).sum(..), &[("a", &b), ("b", &a)]);
    assert!(
        first_error(&g).contains("the parameter of the name `a` is not the state of that name"),
        "{}",
        first_error(&g)
    );
}

/// What a loop changes is carried.
#[test]
fn bodies_of_loops_have_no_states() {
    let g = Graph::new("looped");
    let w = g.state("w", DType::F32, [2]);
    let outer = g.clone();
    let _ = g.repeat(3).carry(&w).record(|i| {
        outer.set("w", &i.carried[0]);
        vec![&i.carried[0] + 1.0]
    });
    assert!(first_error(&g).contains("loop"), "{}", first_error(&g));

    let g = Graph::new("declared inside");
    let x = g.input("x", DType::F32, [2]);
    let _ = g.repeat(3).carry(&x).record(|i| {
        let inner = i.number.graph().state("w", DType::F32, [2]);
        vec![&i.carried[0] + inner]
    });
    assert!(
        first_error(&g).contains("the body of a loop has no states of its own"),
        "{}",
        first_error(&g)
    );
}

#[test]
fn calls_without_the_right_state() {
    let g = Graph::new("step");
    let w = g.state("w", DType::F32, [2]);
    g.set("w", &(&w * 2.0));
    let step = g.compile(&CompileOptions::default()).expect("it compiles");
    assert_eq!(
        step.run(&inputs![]).unwrap_err().to_string(),
        "the graph has 1 states, found 0: a call with states is Executable::run_with"
    );
    let mut state = State::new();
    assert_eq!(
        step.run_with(&mut state, &inputs![]).unwrap_err().to_string(),
        "the state has no `w`; expected f32[2]"
    );
    state.insert("w", [1.0f64, 2.0]).expect("an entry");
    assert_eq!(
        step.run_with(&mut state, &inputs![]).unwrap_err().to_string(),
        "state `w`: expected aligned f32[2], found f64[2] in 16 bytes"
    );
    state.insert("w", [1.0f32, 2.0, 3.0]).expect("an entry");
    assert_eq!(
        step.run_with(&mut state, &inputs![]).unwrap_err().to_string(),
        "state `w`: expected f32[2], found shape [3]"
    );
    state.insert("w", [1.0f32, 2.0]).expect("an entry");
    assert_eq!(
        step.run_with(&mut state, &inputs![1.0f32]).unwrap_err().to_string(),
        "the graph has 0 inputs, found 1"
    );
    state.freeze(|n| n == "w");
    assert_eq!(
        step.run_with(&mut state, &inputs![]).unwrap_err().to_string(),
        "state `w` is frozen, and would be set"
    );
    assert_eq!(state["w"].as_slice::<f32>(), Ok(&[1.0f32, 2.0][..]));
    assert!(!state.is_torn());
    assert_eq!(
        state.insert("w", 1.0f32).unwrap_err().to_string(),
        "state `w` is frozen, and would be set"
    );
    let mut fresh = State::new();
    let few = Input::bytes(DType::F32, &[3], &[0; 8]);
    assert!(fresh.insert("w", few).is_err() && fresh.is_empty());
    assert_eq!(
        state["w"].as_slice::<f64>().unwrap_err().to_string(),
        "state `w`: expected elements of f64, found f32[2]"
    );
}

/// A call that fails once it has written a state: how many elements are positive is known only then, and the graph assumed five.
#[test]
fn a_call_that_fails_in_the_middle_leaves_a_torn_state() {
    let g = Graph::new("torn");
    let w = g.state("w", DType::F32, [6]);
    let new = &w + 1.0;
    g.set("w", &new);
    let five = g.input("five", DType::I64, (1, 5));
    g.output("y", &(new.gt(0.0).nonzero() + five));
    let step = g.compile(&CompileOptions::default()).expect("it compiles");
    let g = Graph::new("look");
    g.output("y", &(g.state("w", DType::F32, [6]) * 2.0));
    let look = g.compile(&CompileOptions::default()).expect("it compiles");
    let five = ndarray::Array2::<i64>::zeros((1, 5));
    let mut state = State::new();
    state.insert("w", [1.0f32, 1.0, 1.0, 1.0, 1.0, -7.0]).expect("an entry");
    step.run_with(&mut state, &inputs![&five]).expect("five are positive");
    let mut other = State::new();
    other.insert("w", [1.0f32; 6]).expect("an entry");
    let error = step
        .run_with(&mut other, &inputs![&five])
        .expect_err("six are positive")
        .to_string();
    assert!(error.contains("the graph needs"), "{error}");
    assert!(other.is_torn(), "{}", step.plan());
    let again = step.run_with(&mut other, &inputs![&five]).unwrap_err().to_string();
    assert!(
        again.starts_with("the state was left half written by a call that failed (") && again.contains(&error),
        "{again}"
    );
    // A share has a half-written entry in the same memory.
    other.freeze(|_| true);
    let mut shared = other.share();
    assert_eq!(
        shared["w"].bytes().expect("here").as_ptr(),
        other["w"].bytes().expect("here").as_ptr()
    );
    assert!(shared.is_torn() && shared.share().is_torn());
    let refused = look.run_with(&mut shared, &inputs![]).unwrap_err().to_string();
    assert!(
        refused.contains("half written") && refused.contains(&error),
        "{refused}"
    );
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("w.safetensors");
    assert!(shared.save(&file).unwrap_err().to_string().contains("half written"));
    assert!(other.save(&file).unwrap_err().to_string().contains("half written"));
    assert!(!file.exists());
    state.save(&file).expect("it is whole");
    other.load(&file).expect("the same model");
    assert!(other["w"].is_frozen() && !other.is_torn() && !other.share().is_torn());
    look.run_with(&mut other, &inputs![]).expect("it is whole again");
    shared.load(&file).expect("the same model");
    look.run_with(&mut shared, &inputs![]).expect("it is whole again");
    other.clear();
    assert!(other.is_empty() && !other.is_torn());
    other.load(&file).expect("any model");
    step.run_with(&mut other, &inputs![&five])
        .expect("five are positive again");
}

/// What was frozen before a call failed is as it was, so that others may go on with it.
#[test]
fn shares_of_what_no_call_may_set_are_whole() {
    let g = Graph::new("torn");
    let (w, c) = (g.state("w", DType::F32, [6]), g.state("c", DType::F32, [6]));
    let new = &w + &c;
    g.set("c", &new);
    let five = g.input("five", DType::I64, (1, 5));
    g.output("y", &(new.gt(0.0).nonzero() + five));
    let step = g.compile(&CompileOptions::default()).expect("it compiles");
    let five = ndarray::Array2::<i64>::zeros((1, 5));
    let mut state = State::new();
    state.insert("w", [1.0f32; 6]).expect("an entry");
    state.insert("c", [1.0f32; 6]).expect("an entry");
    state.freeze(|name| name == "w");
    step.run_with(&mut state, &inputs![&five])
        .expect_err("six are positive");
    assert!(state.is_torn());
    let mut other = state.share();
    assert!(!other.is_torn());
    other.insert("c", [1.0f32, 1.0, 1.0, 1.0, 1.0, -7.0]).expect("an entry");
    step.run_with(&mut other, &inputs![&five]).expect("five are positive");
    // Frozen again, it is none the worse; what is frozen now is.
    state.freeze(|name| name == "w");
    assert!(!state.share().is_torn());
    state.freeze(|name| name == "c");
    assert!(state.share().is_torn());
}

#[test]
fn bytes_that_are_no_values_are_neither_inputs_nor_states() {
    let g = Graph::new("bytes");
    let (x, s) = (g.input("x", DType::Bool, [3]), g.state("s", DType::I4, [2]));
    g.set("s", &s);
    g.output("y", &x.logical_not());
    g.output("z", &s.cast(DType::I32));
    let executable = g.compile(&CompileOptions::default()).expect("it compiles");
    let mut state = State::new();
    for (dtype, bytes, text) in [
        (
            DType::I4,
            [0u8, 16],
            "input `s`: element 1 of i4 is 16, expected at most 15",
        ),
        (
            DType::Bool,
            [255, 0],
            "input `s`: element 0 of bool is 255, expected at most 1",
        ),
    ] {
        let refused = state
            .insert("s", Input::bytes(dtype, &[2], &bytes))
            .expect_err("no value");
        assert_eq!(refused.to_string(), text);
        assert!(state.is_empty());
    }
    state
        .insert("s", Input::bytes(DType::I4, &[2], &[15, 7]))
        .expect("values");
    for bytes in [[0u8, 1, 2], [128, 0, 1]] {
        let given = Input::bytes(DType::Bool, &[3], &bytes);
        for given in [given.borrowed(), Input::from(&given)] {
            let refused = executable.run_with(&mut state, &[given]).expect_err("no value");
            let RunError::InputValue { at, found, most, .. } = refused else {
                panic!("{refused}");
            };
            assert_eq!((bytes[at], most), (found, 1));
        }
    }
    let found = executable
        .run_with(&mut state, &[Input::bytes(DType::Bool, &[3], &[0, 1, 1])])
        .expect("it runs");
    assert_eq!(
        (found["y"].bytes(), found["z"].as_slice::<i32>()),
        (&[1, 0, 0][..], Ok(&[-1, 7][..]))
    );
}
