//! What a run is said to need of memory, and what it takes: buffers are counted as they are made.

use std::collections::BTreeMap;
use std::path::Path;

use tlc::onnx::{ImportOptions, import};
use tlc::{CompileOptions, DType, Graph, HostTensor, Input, Specialize, State, compile_ir};
use tlc_formats::npz;
use tlc_runtime::memory::{live_bytes, take_peak_bytes};

/// One test: the counts are those of the process.
#[test]
fn networks_take_no_more_memory_than_they_are_said_to() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models");
    let mut networks = 0;
    for entry in std::fs::read_dir(&folder).expect("a folder") {
        let path = entry.expect("a file").path();
        if path.extension().is_none_or(|e| e != "onnx") {
            continue;
        }
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        for threads in [1, 2] {
            let imported = import(&std::fs::read(&path).expect("a model"), &ImportOptions::default());
            let options = CompileOptions {
                threads: Some(threads),
                specialize: Specialize::Never,
                ..CompileOptions::default()
            };
            let executable = compile_ir(&imported.expect("it imports").graph, &options).expect("it compiles");
            let recorded = std::fs::read(path.with_extension("npz")).expect("recorded calls");
            let mut archive = npz::Archive::open(&recorded).expect("an archive");
            let names: Vec<String> = archive.names().map(Into::into).collect();
            let of_call = |n: &&String| n.starts_with("in.0.");
            let all: BTreeMap<String, HostTensor> = names
                .iter()
                .filter(of_call)
                .map(|n| {
                    (
                        n["in.0.".len()..].to_string(),
                        archive.read(n, &Default::default()).expect("an array"),
                    )
                })
                .collect();
            let inputs: Vec<&HostTensor> = executable.plan().inputs.iter().map(|i| &all[&i.name]).collect();
            let given: Vec<Input<'_>> = inputs.iter().map(|t| (*t).into()).collect();
            let need = executable.memory(&given).expect("they fit");
            let before = live_bytes();
            let _ = take_peak_bytes();
            for _ in 0..2 {
                executable.run(&given).expect("it runs");
            }
            let taken = (take_peak_bytes() - before) as u64;
            let stated = need.kept + need.arena + need.scratch + need.outputs;
            assert!(
                taken <= stated,
                "{name} on {threads}: {taken} bytes taken of {stated}: {need:?}"
            );
            assert!(taken > 0 && need.constants > 0, "{name}: {need:?}");
        }
        networks += 1;
    }
    assert!(networks >= 13, "{networks} networks");
    copies_of_frozen_entries_go_with_the_last_state_that_has_them();
    executables_of_one_model_keep_its_weights_once();
}

/// What is made of weights is there once, however many executables read it, a version for fixed sizes among them, and goes with the last.
fn executables_of_one_model_keep_its_weights_once() {
    const BYTES: usize = 2048 * 3072 * 4;
    let g = Graph::new("layer");
    let x = g.input("x", DType::F32, [g.symbol("n", 1..=4096), 2048.into()]);
    let w: Vec<f32> = (0..2048 * 3072).map(|i| (i % 101) as f32 / 64.0).collect();
    let w = g.constant(HostTensor::from_slice(&[3072, 2048], &w).expect("small"));
    g.output("y", &x.matmul(&w.permute([1, 0])));
    let compiled = || {
        let options = CompileOptions {
            threads: Some(1),
            specialize: Specialize::After(2),
            ..CompileOptions::default()
        };
        g.compile(&options).expect("it compiles")
    };
    let x = HostTensor::zeros(DType::F32, &[32, 2048]).expect("small");
    let given = [Input::from(&x)];
    let run = |layer: &tlc::Executable| drop(layer.run(&given).expect("it runs"));
    let before = live_bytes();
    let first = compiled();
    run(&first);
    let one = live_bytes();
    assert!(one - before >= BYTES, "{}", one - before);
    (0..4).for_each(|_| run(&first));
    first.wait_for_specializations();
    (0..4).for_each(|_| run(&first));
    assert!(!first.specializations().is_empty());
    let others: Vec<_> = (0..4).map(|_| compiled()).collect();
    others.iter().for_each(run);
    let five = live_bytes();
    assert!(
        five - one < BYTES,
        "{} bytes for 5 and {} for one",
        five - before,
        one - before
    );
    drop(first);
    others.iter().for_each(run);
    assert!(live_bytes() - before >= BYTES);
    drop(others);
    assert!(live_bytes() - before < BYTES, "{}", live_bytes() - before);
}

/// What is packed of a frozen entry is as large as it is said to be, is there once for all states that share the entry, and goes with it.
fn copies_of_frozen_entries_go_with_the_last_state_that_has_them() {
    let g = Graph::new("layer");
    let x = g.input("x", DType::F32, [32, 96]);
    g.output("y", &x.matmul(&g.state("w", DType::F32, [100, 96]).t()));
    let options = CompileOptions {
        threads: Some(1),
        ..CompileOptions::default()
    };
    let layer = g.compile(&options).expect("it compiles");
    let x = HostTensor::zeros(DType::F32, &[32, 96]).expect("small");
    let given = [Input::from(&x)];
    let weights = HostTensor::zeros(DType::F32, &[100, 96]).expect("small");
    let mut state = State::new();
    state.insert("w", &weights).expect("an entry");
    for _ in 0..2 {
        drop(layer.run_with(&mut state, &given).expect("it runs"));
    }
    let warm = live_bytes();
    state.freeze(|_| true);
    let mut others: Vec<State> = (0..8).map(|_| state.share()).collect();
    let need = layer.memory_with(&state, &given).expect("they fit").packed as usize;
    for other in &mut others {
        drop(layer.run_with(other, &given).expect("it runs"));
    }
    let packed = live_bytes() - warm;
    assert!(packed >= 100 * 96 * 4 && packed <= need, "{packed} bytes, said {need}");
    drop(state);
    assert!(others.iter().all(|s| s["w"].packed() == (1, need)));
    others.truncate(1);
    assert_eq!(live_bytes() - warm, packed);
    drop(others);
    assert!(live_bytes() < warm, "the entry is gone as well");
}
