//! States that stay on a GPU between calls.

use std::collections::BTreeMap;

use serde_json::Value;
use tempfile::TempDir;
use tlc::{CompileOptions, DType, Device, Entry, Executable, Graph, HostTensor, Input, RunError, State, inputs};
use tlc_runtime::cuda;

use crate::child::simulated;
use crate::memory::small_device;
use crate::recorded::{compiled, ten_warm_calls, times};

#[test]
fn a_training_step_is_one_graph_that_copies_inputs_and_outputs_alone() {
    let Some(calls) = ten_warm_calls("resident_states::children::training", &[]) else {
        return;
    };
    let expected = [("cuGraphLaunch", 10), ("cuStreamSynchronize", 10)];
    assert_eq!(calls, expected.map(|(name, n)| (name.to_string(), n)).into());
    let moved = |times: &str| {
        let folder = TempDir::new().expect("a folder");
        let report = folder.path().join("report");
        let path = report.to_str().expect("a path in UTF-8");
        let settings = [("TLC_SIM_REPORT", path), ("TLC_TEST_CALLS", times)];
        simulated("resident_states::children::training", &settings)?;
        let text = std::fs::read_to_string(&report).ok()?;
        let report: Value = serde_json::from_str(text.lines().last()?).ok()?;
        ["bytes_to_device", "bytes_to_host"]
            .map(|key| report[key].as_u64())
            .into()
    };
    // A real driver counts nothing.
    let (Some([Some(up), Some(down)]), Some([Some(more_up), Some(more_down)])) = (moved("4"), moved("14")) else {
        return;
    };
    assert_eq!(more_up - up, 10 * (ROWS * 5 + ROWS * 3) * 4, "x and y");
    assert_eq!(more_down - down, 10 * 4, "the loss");
}

#[test]
fn states_are_fetched_saved_shared_and_replaced_from_a_gpu() {
    simulated("resident_states::children::entries", &[]);
}

#[test]
fn each_state_has_a_graph_at_its_addresses() {
    let Some(calls) = ten_warm_calls("resident_states::children::decoders", &[]) else {
        return;
    };
    let expected = [("cuGraphLaunch", 50), ("cuStreamSynchronize", 50)];
    assert_eq!(calls, expected.map(|(name, n)| (name.to_string(), n)).into());
}

#[test]
fn a_frozen_entry_that_a_gpu_has_set_is_packed_on_the_host_alone() {
    simulated("resident_states::children::packed", &[]);
}

#[test]
fn memory_of_states_is_counted_and_given_back() {
    simulated("resident_states::children::memory", &[]);
    let folder = TempDir::new().expect("a folder");
    simulated(
        "resident_states::children::small",
        &[("TLC_SIM_DEVICE", &small_device(&folder))],
    );
}

#[test]
fn tensors_of_resident_calls_are_counted() {
    simulated("resident_states::children::resident_need", &[]);
}

#[test]
fn a_fault_leaves_states_whole_or_torn() {
    let at = |kind: &str, places: &[u32]| -> Vec<String> { places.iter().map(|n| format!("{kind}:{n}")).collect() };
    let faults = [
        at("alloc", &[1, 2, 3, 4, 5, 6, 7]),
        at("launch", &[1, 3, 6, 9]),
        at("illegal-address", &[1, 7]),
        at("device-lost", &[1, 3, 8]),
    ];
    for fault in faults.iter().flatten() {
        simulated("resident_states::children::faults", &[("TLC_SIM_FAULT", fault)]);
    }
}

const ROWS: u64 = 12;

/// A step of momentum on a linear model; the velocity is updated where it is, and so are the weights.
fn training() -> Graph {
    let g = Graph::new("train");
    let (x, y) = (g.input("x", DType::F32, [ROWS, 5]), g.input("y", DType::F32, [ROWS, 3]));
    let (w, v) = (g.state("w", DType::F32, [5, 3]), g.state("v", DType::F32, [5, 3]));
    let count = g.state("count", DType::I64, ());
    let loss = (x.matmul(&w) - &y).square().mean(..);
    let slope = tlc::grad(&loss, &[&w]).remove(0);
    let velocity = &v * 0.5 + slope;
    g.set("w", &(&w - &velocity * 0.125));
    g.set("v", &velocity);
    g.set("count", &(&count + 1));
    g.output("loss", &loss);
    g
}

fn data(shape: &[usize], seed: usize) -> HostTensor {
    let n = shape.iter().product();
    let values: Vec<f32> = (0..n)
        .map(|i| ((i * 13 + seed * 7) % 29) as f32 / 16.0 - 0.75)
        .collect();
    HostTensor::from_slice(shape, &values).expect("as many")
}

fn first() -> State {
    let mut state = State::new();
    state.insert("w", data(&[5, 3], 1)).expect("memory");
    state.insert("v", data(&[5, 3], 2)).expect("memory");
    state.insert("count", 0i64).expect("memory");
    state
}

fn batch(call: usize) -> [HostTensor; 2] {
    [data(&[ROWS as usize, 5], call), data(&[ROWS as usize, 3], call + 5)]
}

fn step(executable: &Executable, state: &mut State, call: usize) -> Result<f32, RunError> {
    let batch = batch(call);
    let given: Vec<Input<'_>> = batch.iter().map(Input::from).collect();
    Ok(executable.run_with(state, &given)?[0].as_scalar::<f32>().expect("f32"))
}

/// The bytes of all entries, by name.
fn values(state: &State) -> BTreeMap<String, Vec<u8>> {
    let bytes = |e: &Entry| e.to_host().expect("it is fetched").bytes().to_vec();
    state.iter().map(|e| (e.name().to_string(), bytes(e))).collect()
}

fn assert_close(found: &State, expected: &State) {
    for (f, e) in found.iter().zip(expected.iter()) {
        assert_eq!((f.name(), f.dtype(), f.shape()), (e.name(), e.dtype(), e.shape()));
        let (f, e) = (f.to_host().expect("it is fetched"), e.to_host().expect("it is here"));
        for i in 0..f.len() {
            let (f, e) = (f.get(i).as_f64(), e.get(i).as_f64());
            assert!((f - e).abs() <= 1e-4 * e.abs().max(1.0), "{f} for {e}");
        }
    }
}

mod children {
    use super::*;

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn training() {
        let g = super::training();
        let (here, there) = (compiled(&g, Device::cpu()), compiled(&g, Device::cuda(0)));
        let (mut on_host, mut on_device) = (first(), first());
        for call in 0..times() {
            let expected = step(&here, &mut on_host, call).expect("it runs");
            let found = step(&there, &mut on_device, call).expect("it runs");
            assert!((found - expected).abs() <= 1e-4, "{found} for {expected}");
        }
        assert_close(&on_device, &on_host);
        assert_eq!(
            on_device["count"].as_scalar::<i64>(),
            Ok(i64::try_from(times()).expect("few"))
        );
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn entries() {
        let g = super::training();
        let there = compiled(&g, Device::cuda(0));
        let folder = TempDir::new().expect("a folder");
        let file = folder.path().join("state.safetensors");
        let mut state = first();
        assert_eq!(state.device_bytes(), 0);
        step(&there, &mut state, 0).expect("it runs");
        assert_eq!(state.device_bytes(), 60 + 60 + 8);
        // Looked at, in each way.
        let before = values(&state);
        assert_eq!(state["w"].bytes().expect("it is fetched"), &before["w"][..]);
        assert!(state["v"].to_string().starts_with("v: f32[5, 3]\n[["), "{}", state["v"]);
        state.save(&file).expect("it is saved");
        assert_eq!(values(&State::open(&file).expect("it is read")), before);
        // Each step from the file is the same.
        let loss = step(&there, &mut state, 1).expect("it runs");
        let after = values(&state);
        assert_ne!(after, before);
        state.load(&file).expect("it is read");
        assert_eq!(state.device_bytes(), 0, "what was there is gone");
        assert_eq!(values(&state), before);
        assert_eq!(step(&there, &mut state, 1).expect("it runs"), loss);
        assert_eq!(values(&state), after);
        // An entry in place of another: its memory stays, its value is replaced.
        for (seed, call) in [(1, 0), (1, 0), (4, 0), (1, 0)] {
            let mut other = first();
            for name in ["w", "v", "count"] {
                let value = match name {
                    "w" => data(&[5, 3], seed),
                    _ => other[name].to_host().expect("it is here"),
                };
                other.insert(name, &value).expect("memory");
                state.insert(name, &value).expect("memory");
            }
            let expected = step(&there, &mut other, call).expect("it runs");
            assert_eq!(step(&there, &mut state, call).expect("it runs"), expected);
            assert_eq!(values(&state), values(&other));
        }
        assert!(state.remove("v"));
        assert_eq!(state.device_bytes(), 60 + 8);
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn packed() {
        // A weight that a call on the device sets, and a product that the library of the host packs it for.
        let scale = Graph::new("scale");
        let w = scale.state("w", DType::F32, [130, 70]);
        scale.set("w", &(&w * 2.0));
        let scale = compiled(&scale, Device::cuda(0));
        let g = Graph::new("layer");
        let x = g.input("x", DType::F32, [96, 70]);
        // Its transposition is copied in every call otherwise, whatever the vectors of the host and however many threads share the product.
        g.output("y", &x.matmul(&g.state("w", DType::F32, [130, 70]).t()));
        let (here, there) = (compiled(&g, Device::cpu()), compiled(&g, Device::cuda(0)));
        let x = data(&[96, 70], 4);
        let run = |e: &Executable, state: &mut State| e.run_with(state, &inputs![&x]).expect("it runs")[0].to_host();
        let weight = data(&[130, 70], 3);
        let (mut state, mut plain) = (State::new(), State::new());
        state.insert("w", &weight).expect("memory");
        scale.run_with(&mut state, &[]).expect("it runs");
        let doubled: Vec<f32> = weight.as_slice::<f32>().expect("f32").iter().map(|v| v * 2.0).collect();
        let doubled = HostTensor::from_slice(&[130, 70], &doubled).expect("as many");
        plain.insert("w", &doubled).expect("memory");
        state.freeze(|_| true);
        let mut other = state.share();
        let expected = run(&here, &mut plain);
        let need = |e: &Executable, s: &State| e.memory_with(s, &inputs![&x]).expect("it fits");
        let on_device = need(&there, &state);
        assert_eq!((on_device.packed, on_device.devices[0].states), (0, 70 * 130 * 4));
        // What is on the device already is not missing there; the plain one is in the host's memory alone.
        assert_eq!(
            need(&there, &plain).devices[0].missing - on_device.devices[0].missing,
            70 * 130 * 4
        );
        let found = run(&there, &mut state);
        for i in 0..found.len() {
            let (f, e) = (found.get(i).as_f64(), expected.get(i).as_f64());
            assert!((f - e).abs() <= 1e-4 * e.abs().max(1.0), "{f} for {e}");
        }
        assert_eq!(state["w"].packed(), (0, 0), "products of the device read what is there");
        let said = need(&here, &state).packed;
        assert!(said >= 70 * 130 * 4, "{said}");
        assert_eq!(run(&here, &mut other).bytes(), expected.bytes());
        assert_eq!(run(&here, &mut state).bytes(), expected.bytes());
        // It is fetched, packed once for both, and stays on the device.
        assert_eq!(state["w"].packed(), (1, usize::try_from(said).expect("small")));
        assert_eq!(other["w"].packed(), state["w"].packed());
        assert_eq!(state["w"].device_bytes(), 70 * 130 * 4);
        assert_eq!(run(&there, &mut other).bytes(), found.bytes());
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn decoders() {
        // Frozen weights are on the device once, and each decoder's own sum is elsewhere.
        let g = Graph::new("decode");
        let (w, sum) = (g.state("w", DType::F32, [64, 64]), g.state("sum", DType::F32, [64]));
        let x = g.input("x", DType::F32, [64]);
        let next = &sum + x.matmul(&w).tanh();
        g.set("sum", &next);
        g.output("y", &next.sum(0));
        let (here, there) = (compiled(&g, Device::cpu()), compiled(&g, Device::cuda(0)));
        let context = cuda::open(0).expect("a device");
        let mut weights = State::new();
        weights.insert("w", data(&[64, 64], 3)).expect("memory");
        weights.freeze(|_| true);
        let decoder = |k: usize| {
            let mut state = weights.share();
            state.insert("sum", data(&[64], k)).expect("memory");
            state
        };
        let mut on_device: Vec<State> = (0..5).map(decoder).collect();
        let mut on_host: Vec<State> = (0..5).map(decoder).collect();
        let run = |e: &Executable, state: &mut State, round: usize| {
            let x = data(&[64], round);
            e.run_with(state, &inputs![&x]).expect("it runs")[0]
                .as_scalar::<f32>()
                .expect("f32")
        };
        let mut live = None;
        for round in 0..times() {
            for (a, b) in on_device.iter_mut().zip(&mut on_host) {
                let (found, expected) = (run(&there, a, round), run(&here, b, round));
                assert!((found - expected).abs() <= 1e-3, "{found} for {expected}");
            }
            if round > 2 {
                assert_eq!(*live.get_or_insert(context.live_bytes()), context.live_bytes());
            }
        }
        assert_eq!(weights.device_bytes(), 64 * 64 * 4);
        let before = context.live_bytes();
        on_device.truncate(1);
        assert_eq!(before - context.live_bytes(), 4 * 64 * 4, "the sums of four");
        drop((on_device, on_host));
        assert_eq!(before - context.live_bytes(), 5 * 64 * 4, "all sums");
        drop(weights);
        assert_eq!(
            before - context.live_bytes(),
            5 * 64 * 4 + 64 * 64 * 4,
            "and the weights"
        );
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn memory() {
        let context = cuda::open(0).expect("a device");
        let before = context.live_bytes();
        let g = super::training();
        let there = compiled(&g, Device::cuda(0));
        let mut state = first();
        let [x, y] = batch(0);
        let need = |state: &State| {
            let need = there.memory_with(state, &inputs![&x, &y]).expect("they fit");
            need.devices[0].clone()
        };
        let first_need = need(&state);
        assert_eq!(first_need.states, 128);
        step(&there, &mut state, 0).expect("it runs");
        assert_eq!(need(&state).missing, 0);
        assert_eq!(need(&state).total(), first_need.total());
        drop(there);
        assert_eq!(context.live_bytes() - before, 128, "the state's own");
        drop(state);
        assert_eq!(context.live_bytes(), before);
        // States count where the memory of calls is limited.
        let g = Graph::new("scaled");
        let w = g.state("w", DType::F32, [4096]);
        g.set("w", &(&w * 0.5));
        g.output("y", &w.narrow(0, 0, 1));
        let options = |limit| CompileOptions {
            device: Device::cuda(0),
            max_memory_bytes: Some(limit),
            ..CompileOptions::default()
        };
        let refused = g
            .compile(&options(16_000))
            .expect_err("the state has 16384 bytes")
            .to_string();
        assert!(refused.contains("cuda:0"), "{refused}");
        assert!(g.compile(&options(20_000)).is_ok());
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn small() {
        let context = cuda::open(0).expect("a device");
        let g = Graph::new("scaled");
        let n = g.symbol("n", 1..=1 << 24);
        let w = g.state("w", DType::F32, [n]);
        g.set("w", &(&w * 0.5));
        g.output("y", &w.narrow(0, 0, 1));
        let there = compiled(&g, Device::cuda(0));
        let mut state = State::new();
        for round in 0..2 {
            state.insert("w", vec![1.0f32; 1 << 20]).expect("memory");
            let live = context.live_bytes();
            let refused = there.run_with(&mut state, &inputs![]).expect_err("4 MiB are too much");
            assert!(matches!(refused, RunError::DeviceTooSmall { .. }), "{refused}");
            assert!(!state.is_torn() && context.live_bytes() <= live, "round {round}");
            assert_eq!(state["w"].as_slice::<f32>().expect("f32")[7], 1.0);
            state.insert("w", vec![1.0f32; 1000]).expect("memory");
            there.run_with(&mut state, &inputs![]).expect("it fits");
            assert_eq!(state["w"].as_slice::<f32>().expect("f32")[7], 0.5);
        }
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn resident_need() {
        let g = Graph::new("grow");
        let n = g.symbol("n", 1..=1 << 20);
        let x = g.input("x", DType::F32, [n]);
        g.output("y", &(&x * 2.0));
        let limited = |limit| {
            let options = CompileOptions {
                device: Device::cuda(0),
                max_memory_bytes: Some(limit),
                ..CompileOptions::default()
            };
            g.compile(&options).expect("it compiles")
        };
        let x = vec![1.0f32; 1000];
        // An input and an output of 4000 bytes.
        let there = Device::cuda(0).upload(&x).expect("room");
        let refused = limited(7999)
            .run_on_device([Input::from(&there)])
            .expect_err("too little");
        assert!(
            matches!(
                refused,
                RunError::MemoryLimit {
                    needed: 8000,
                    limit: 7999,
                    ..
                }
            ),
            "{refused}"
        );
        let fits = limited(8000).run_on_device([Input::from(&there)]).expect("it fits");
        assert_eq!(
            fits["y"].to_host().expect("it is here").as_slice::<f32>(),
            Some(&[2.0f32; 1000][..])
        );
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn faults() {
        let fault = std::env::var("TLC_SIM_FAULT").expect("a fault");
        let g = super::training();
        let (here, there) = (compiled(&g, Device::cpu()), compiled(&g, Device::cuda(0)));
        let (mut state, mut expected) = (first(), first());
        let mut call = 0;
        let failed = loop {
            match step(&there, &mut state, call) {
                Ok(_) => step(&here, &mut expected, call).expect("it runs"),
                Err(e) => break Some(e),
            };
            call += 1;
            if call == 8 {
                break None;
            }
        };
        let Some(failed) = failed else {
            // Memory for staging can be done without.
            assert!(fault.starts_with("alloc:"), "{fault}: nothing failed");
            return;
        };
        if state.is_torn() {
            assert!(!fault.starts_with("alloc:"), "{fault}: nothing ran: {failed}");
            assert!(call > 0, "{fault}: the host had the first value");
            let refused = step(&there, &mut state, call).expect_err("it is torn");
            assert!(matches!(refused, RunError::StateTorn { .. }), "{refused}");
            state.clear();
            assert!(!state.is_torn());
            return;
        }
        if call == 0 || fault.starts_with("alloc:") {
            assert_close(&state, &expected);
        }
        if fault.starts_with("alloc:") {
            step(&there, &mut state, call).unwrap_or_else(|e| panic!("{fault}: {e}"));
            step(&here, &mut expected, call).expect("it runs");
            assert_close(&state, &expected);
        } else {
            // The device is lost, but what the host has goes on there.
            let goes_on = step(&here, &mut state, call);
            assert!(goes_on.is_ok() || call > 0, "{fault}: {goes_on:?}");
        }
    }
}
