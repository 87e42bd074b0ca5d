//! States in files: what comes back, what is refused, and what a failure leaves.

use tlc::{DType, HostTensor, State};

fn sample() -> State {
    let mut state = State::new();
    for (k, dtype) in DType::ALL.into_iter().enumerate() {
        let top = 1u8 << (dtype.value_bits().min(8) - 1);
        let bytes: Vec<u8> = (0..6 * dtype.bytes())
            .map(|b| {
                if dtype == DType::Bool {
                    b as u8 % 2
                } else {
                    b as u8 % top.max(2)
                }
            })
            .collect();
        let tensor = HostTensor::from_bytes(dtype, &[2, 3], &bytes).expect("a tensor");
        state.insert(&format!("{k}.{dtype}"), &tensor).expect("an entry");
    }
    state
        .insert("none", HostTensor::zeros(DType::F32, &[0, 4]).expect("a tensor"))
        .expect("an entry");
    state.insert("one", 2.5f64).expect("an entry");
    state
}

#[test]
fn every_type_comes_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("state.safetensors");
    let state = sample();
    state.save(&file).expect("saved");
    let back = State::open(&file).expect("opened");
    assert_eq!(back.len(), state.len());
    for e in state.iter() {
        let b = &back[e.name()];
        assert_eq!(
            (b.dtype(), b.shape(), b.bytes()),
            (e.dtype(), e.shape(), e.bytes()),
            "{}",
            e.name()
        );
    }
    // Saved over, and nothing lies beside it.
    back.save(&file).expect("saved again");
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1);
    assert_eq!(State::open(&file).expect("opened").len(), state.len());
}

#[test]
fn another_models_state_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("state.safetensors");
    let mut other = State::new();
    other.insert("w", [1.0f32, 2.0]).expect("an entry");
    other.insert("c", [1.0f32]).expect("an entry");
    other.save(&file).expect("saved");
    let mut state = State::new();
    state.insert("w", [[5.0f32, 6.0]]).expect("an entry");
    state.insert("b", [7.0f32]).expect("an entry");
    let text = state.load(&file).unwrap_err().to_string();
    let expected =
        "state.safetensors: another model's state: `w` is f32[2], expected f32[1, 2]; `b` is missing; `c` is unknown";
    assert!(text.ends_with(expected), "{text}");
    assert_eq!(state["w"].as_slice::<f32>(), Ok(&[5.0f32, 6.0][..]));
    let mut same = State::new();
    same.insert("c", [0.0f32]).expect("an entry");
    same.insert("w", [0.0f32, 0.0]).expect("an entry");
    same.freeze(|n| n == "w");
    same.load(&file).expect("the same model");
    assert_eq!(same["w"].as_slice::<f32>(), Ok(&[1.0f32, 2.0][..]));
    assert!(same["w"].is_frozen() && !same["c"].is_frozen());
    let mut empty = State::new();
    empty.load(&file).expect("any model");
    assert_eq!(empty.len(), 2);
}

#[test]
fn broken_files_are_errors() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("state.safetensors");
    sample().save(&file).expect("saved");
    let whole = std::fs::read(&file).expect("bytes");
    let mut state = State::open(&file).expect("opened");
    for length in [0, 7, 8, 100, whole.len() / 2, whole.len() - 1] {
        let cut = folder.path().join("cut.safetensors");
        std::fs::write(&cut, &whole[..length]).expect("written");
        let error = State::open(&cut).unwrap_err().to_string();
        assert!(error.contains("cut.safetensors: ") && !error.contains('\n'), "{error}");
        assert!(state.load(&cut).is_err());
        assert_eq!(state["one"].as_scalar::<f64>(), Ok(2.5));
    }
    assert!(
        State::open(folder.path().join("nothing"))
            .unwrap_err()
            .to_string()
            .contains("nothing: ")
    );
    assert!(State::open(folder.path()).is_err());
    // Where no file can be made, the old one is whole.
    assert!(state.save(folder.path().join("no/such/folder.safetensors")).is_err());
    let error = state.save(folder.path()).unwrap_err();
    assert!(
        error.to_string().contains(folder.path().to_str().expect("text")),
        "{error}"
    );
    assert_eq!(std::fs::read(&file).expect("bytes"), whole);
    // The format keeps a name for itself.
    state.insert("__metadata__", 1.0f32).expect("an entry");
    assert!(state.save(&file).is_err());
    assert_eq!(std::fs::read(&file).expect("bytes"), whole);
}
