//! Several GPUs in one process: executables on one each, and graphs that are divided among them.

use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;
use tlc::{BuildError, CompileOptions, DType, Device, Executable, Graph, HostTensor, Input, Specialize, State, inputs};
use tlc_runtime::cuda;

use crate::child::{real, simulated, skip, with_findings};
use crate::faults::{expect, no_nvrtc, tlc};
use crate::pools::without_pools;
use crate::recorded::assert_close;

/// Two devices of different kinds.
const TWO: (&str, &str) = ("TLC_SIM_DEVICE", "h200,a100");

/// What a process reported at its end.
fn report(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).expect("a report");
    serde_json::from_str(text.lines().last().expect("a line")).expect("JSON")
}

/// As [`report`], of a test's process with two devices; none where there are no such devices.
fn reported(test: &str, settings: &[(&str, &str)]) -> Option<Value> {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("report");
    let own = [TWO, ("TLC_SIM_REPORT", path.to_str().expect("a path in UTF-8"))];
    simulated(test, &[&own, settings].concat())?;
    path.exists().then(|| report(&path))
}

#[test]
fn executables_on_two_devices_have_their_own_constants_and_states() {
    for seed in ["0", "1", "2"] {
        simulated("peers::children::one_each", &[TWO, ("TLC_SIM_SEED", seed)]);
    }
}

#[test]
fn a_divided_graph_copies_from_one_device_to_the_other() {
    let Some(report) = reported("peers::children::layers", &[]) else {
        return;
    };
    assert_eq!(
        report["calls"]["cuMemcpyPeerAsync"], 5,
        "one value in each of five calls: {report}"
    );
    assert_eq!(report["bytes_to_host"], 5 * 8 * 16 * 4, "the results alone: {report}");
    assert_eq!(
        report["bytes_between_devices"],
        5 * 8 * 16 * 4,
        "as the cut says: {report}"
    );
    assert_eq!(
        report["bytes_through_host"], 0,
        "each device reaches the other: {report}"
    );
    // Each recorded once, the two parts; an odd order of streams must not matter.
    for seed in ["1", "2", "3", "4"] {
        simulated("peers::children::layers", &[TWO, ("TLC_SIM_SEED", seed)]);
    }
}

#[test]
fn devices_that_do_not_reach_each_other_copy_through_the_host() {
    let Some(report) = reported("peers::children::layers", &[("TLC_SIM_PEERS", "off")]) else {
        return;
    };
    for what in ["bytes_between_devices", "bytes_through_host"] {
        assert_eq!(report[what], 5 * 8 * 16 * 4, "{what} in {report}");
    }
}

#[test]
fn memory_of_no_pool_is_reached_too() {
    let folder = TempDir::new().expect("a folder");
    let file = without_pools(&folder);
    let two = format!("{file},{file}");
    let Some(report) = reported("peers::children::layers", &[("TLC_SIM_DEVICE", &two)]) else {
        return;
    };
    assert_eq!(report["calls"]["cuMemAllocFromPoolAsync"], Value::Null, "{report}");
    assert_eq!(report["bytes_between_devices"], 5 * 8 * 16 * 4, "{report}");
    assert_eq!(report["bytes_through_host"], 0, "{report}");
}

#[test]
fn loops_and_states_stay_on_one_device() {
    for seed in ["0", "1", "2"] {
        simulated("peers::children::training", &[TWO, ("TLC_SIM_SEED", seed)]);
    }
}

#[test]
fn two_devices_are_left_as_they_were() {
    let Some(report) = reported("peers::children::leaks", &[]) else {
        return;
    };
    for what in ["device_bytes", "pinned_bytes", "handles"] {
        assert_eq!(report[what], 0, "{what} in {report}");
    }
}

#[test]
fn what_fails_names_the_device() {
    for number in 1..=9 {
        for kind in ["alloc", "launch", "ecc"] {
            let fault = format!("{kind}:{number}");
            // What a device leaves unwritten that failed, the other one reads, which is found.
            let set = [TWO, ("TLC_SIM_FAULT", &*fault), ("TLC_SIM_ON_FINDING", "continue")];
            with_findings("peers::children::faults", &set);
        }
    }
    simulated("peers::children::refusals", &[TWO]);
}

#[test]
fn the_environment_says_which_devices_there_are() {
    if no_nvrtc() {
        return;
    }
    let run = ["run", "sum.tlir", "--input", "x=ones", "--input", "y=ones", "--device"];
    let on = |device: &'static str| [&run[..], &[device]].concat();
    let second = [TWO, ("CUDA_VISIBLE_DEVICES", "1")];
    expect(
        tlc(&second, &on("cuda:0")),
        0,
        &["memory of cuda:0 (NVIDIA A100", "min 2", "max 2"],
    );
    expect(
        tlc(&second, &on("cuda:1")),
        4,
        &["there is no device cuda:1; the driver finds one, cuda:0"],
    );
    let turned = [TWO, ("CUDA_VISIBLE_DEVICES", "1,0")];
    expect(tlc(&turned, &on("cuda:1")), 0, &["memory of cuda:1 (NVIDIA H200"]);
    expect(tlc(&[TWO], &["info"]), 0, &["cuda:0", "cuda:1"]);
    expect(
        tlc(&[TWO, ("CUDA_VISIBLE_DEVICES", "")], &on("cuda:0")),
        4,
        &["there is no device cuda:0"],
    );
    simulated("peers::children::second_alone", &second);
}

#[test]
fn commands_divide_a_graph() {
    if no_nvrtc() {
        return;
    }
    if real() {
        return skip("it is of two GPUs, which a simulator has");
    }
    let explain = ["explain", "sum.tlir", "--device", "cuda:0", "--beside", "cuda:1"];
    expect(
        tlc(&[TWO], &explain),
        0,
        &["gpu 2 computes what is from ", " go from one to the other"],
    );
    let run = ["run", "sum.tlir", "--input", "x=ones", "--input", "y=ones", "--device"];
    let beside = |device, other| [&run[..], &[device, "--beside", other]].concat();
    expect(tlc(&[TWO], &beside("cuda:1", "cuda:0")), 0, &["min 2", "max 2"]);
    for (device, other) in [("cuda:0", "cuda:0"), ("cuda:0", "cpu"), ("cpu", "cuda:0")] {
        let (_, text) = tlc(&[TWO], &beside(device, other)).unwrap_or_default();
        assert!(text.contains("cannot share the work with"), "{device} {other}: {text}");
    }
    let plan = ["plan", "sum.tlir", "--device", "cuda", "--beside", "cuda:1"];
    expect(tlc(&[], &plan), 0, &["gpu 2"]);
}

mod children {
    use super::*;

    fn compiled(g: &Graph, on: &[u32]) -> Executable {
        try_compiled(g, on).expect("it compiles")
    }

    fn try_compiled(g: &Graph, on: &[u32]) -> Result<Executable, BuildError> {
        let on: Vec<Device> = on.iter().map(|n| Device::cuda(*n)).collect();
        let options = CompileOptions {
            device: on.first().copied().unwrap_or_default(),
            beside: on.get(1..).unwrap_or_default().to_vec(),
            specialize: Specialize::Never,
            ..CompileOptions::default()
        };
        g.compile(&options)
    }

    fn data(shape: &[usize], seed: usize) -> HostTensor {
        let n = shape.iter().product();
        let values: Vec<f32> = (0..n).map(|i| ((i * 13 + seed * 7) % 29) as f32 / 32.0 - 0.4).collect();
        HostTensor::from_slice(shape, &values).expect("as many")
    }

    /// Layers, each with a constant of its own: too large to be part of kernels.
    fn network() -> Graph {
        let g = Graph::new("layers");
        let mut x = g.input("x", DType::F32, [8, 16]);
        for layer in 0..4 {
            let w = g.constant(data(&[16, 16], layer));
            x = (x.matmul(&w) + 0.25).tanh();
        }
        g.output("y", &x);
        g
    }

    fn outputs(e: &Executable, given: &[&HostTensor]) -> Result<Vec<HostTensor>, tlc::RunError> {
        let given: Vec<Input<'_>> = given.iter().map(|t| Input::from(*t)).collect();
        Ok(e.run(&given)?.iter().map(|o| o.to_host()).collect())
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn one_each() {
        let g = network();
        let here = compiled(&g, &[]);
        let [first, second] = [compiled(&g, &[0]), compiled(&g, &[1])];
        let counted = |value: f32| {
            let g = Graph::new("counted");
            let sum = g.state("sum", DType::F32, [16]);
            g.set("sum", &(&sum + value));
            g.output("twice", &(&sum * 2.0));
            g
        };
        let sums = [compiled(&counted(1.0), &[0]), compiled(&counted(10.0), &[1])];
        let mut state = State::new();
        state
            .insert("sum", HostTensor::from_slice(&[16], &[0.0f32; 16]).expect("as many"))
            .expect("memory");
        for call in 0..5 {
            let x = data(&[8, 16], call);
            let expected = outputs(&here, &[&x]).expect("it runs");
            std::thread::scope(|scope| {
                let both = [&first, &second].map(|e| scope.spawn(|| outputs(e, &[&x]).expect("it runs")));
                for found in both {
                    assert_close(&found.join().expect("no panic"), &expected);
                }
            });
            // One state on both in turn: where it was written last it is whole.
            for (e, before) in sums.iter().zip([11.0 * call as f32, 11.0 * call as f32 + 1.0]) {
                let found = e.run_with(&mut state, &[]).expect("it runs");
                assert_eq!(found[0].as_slice::<f32>().expect("f32"), [2.0 * before; 16]);
            }
        }
        for number in [0, 1] {
            let used = Device::cuda(number).pool_use().expect("a device");
            assert!(used.allocated >= 4 * 16 * 16 * 4, "the constants at least: {used:?}");
        }
        let tensor = Device::cuda(0).upload(data(&[8, 16], 1)).expect("room");
        let refused = second
            .run_on_device(inputs![&tensor])
            .expect_err("it is elsewhere")
            .to_string();
        assert!(
            refused.contains("input `x` is in the memory of another device"),
            "{refused}"
        );
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn layers() {
        let g = network();
        let (here, there) = (compiled(&g, &[]), compiled(&g, &[0, 1]));
        let cuts = &there.decisions().cuts;
        assert_eq!(cuts.len(), 1, "{cuts:?}");
        assert_eq!(cuts[0].held_bytes, 512 + 2 * 1024, "{cuts:?}");
        assert_eq!(cuts[0].crossing_bytes, 512, "{cuts:?}");
        for call in 0..5 {
            let x = data(&[8, 16], call);
            let found = outputs(&there, &[&x]).expect("it runs");
            assert_close(&found, &outputs(&here, &[&x]).expect("it runs"));
        }
        let need = there.memory(&inputs![&data(&[8, 16], 0)]).expect("it fits");
        let kept: Vec<u64> = need.devices.iter().map(|d| d.kept).collect();
        assert_eq!(kept, [2048, 2048], "half of the constants each");
        let names: Vec<String> = need
            .devices
            .iter()
            .filter_map(|d| Some(d.room.as_ref()?.device.clone()))
            .collect();
        assert!(
            names[0].starts_with("cuda:0 (") && names[1].starts_with("cuda:1 ("),
            "{names:?}"
        );
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn training() {
        let g = Graph::new("train");
        let (x, y) = (g.input("x", DType::F32, [12, 8]), g.input("y", DType::F32, [12, 8]));
        let all = ["w0", "w1", "w2"].map(|name| g.state(name, DType::F32, [8, 8]));
        let mut h = x;
        for w in &all[..2] {
            h = h.matmul(w).tanh();
        }
        // The same weights three times, in a loop.
        let last = g.repeat(3).carry(&h).record(|i| {
            let w = i.capture(&all[2]);
            vec![i.carried[0].matmul(&w).tanh()]
        });
        let loss = (&last[0] - &y).square().mean(..);
        let slopes = tlc::grad(&loss, &[&all[0], &all[1], &all[2]]);
        for (name, (w, slope)) in ["w0", "w1", "w2"].into_iter().zip(all.iter().zip(&slopes)) {
            g.set(name, &(w - slope * 0.25));
        }
        g.output("loss", &loss);
        let first = || {
            let mut state = State::new();
            for (k, name) in ["w0", "w1", "w2"].into_iter().enumerate() {
                state.insert(name, data(&[8, 8], k)).expect("memory");
            }
            state
        };
        let (mut on_host, mut on_two) = (first(), first());
        let (here, there) = (compiled(&g, &[]), compiled(&g, &[1, 0]));
        for call in 0..6 {
            let batch = [data(&[12, 8], call), data(&[12, 8], call + 9)];
            let given = || batch.iter().map(Input::from).collect::<Vec<_>>();
            let expected = here.run_with(&mut on_host, &given()).expect("it runs")[0].to_host();
            let found = there.run_with(&mut on_two, &given()).expect("it runs")[0].to_host();
            assert_close(&[found], &[expected]);
        }
        let values = |state: &State| {
            state
                .iter()
                .map(|e| e.to_host().expect("it is fetched"))
                .collect::<Vec<_>>()
        };
        assert_close(&values(&on_two), &values(&on_host));
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn leaks() {
        let g = network();
        let contexts = [0, 1].map(|n| cuda::open(n).expect("a device"));
        let x = data(&[8, 16], 1);
        for round in 0..200 {
            let executable = compiled(&g, &[0, 1]);
            for _ in 0..3 {
                drop(outputs(&executable, &[&x]).expect("it runs"));
                drop(executable.run_on_device(inputs![&x]).expect("it runs"));
            }
            drop(executable);
            assert_eq!(contexts.each_ref().map(|c| c.live_bytes()), [0, 0], "round {round}");
        }
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn faults() {
        let executable = compiled(&network(), &[0, 1]);
        let x = data(&[8, 16], 1);
        let failed = (0..4).find_map(|_| outputs(&executable, &[&x]).err());
        // Memory for staging can be done without.
        let fault = std::env::var("TLC_SIM_FAULT").expect("a fault");
        let Some(error) = failed.map(|e| e.to_string()) else {
            assert!(fault.starts_with("alloc:"), "{fault}: nothing failed");
            return;
        };
        assert!(
            error.contains("cuda:0 (") || error.contains("cuda:1 ("),
            "{fault}: {error}"
        );
        let next = outputs(&executable, &[&x]);
        match fault.starts_with("alloc:") {
            true => assert!(next.is_ok(), "{fault}: {next:?}"),
            false => {
                let next = next.expect_err("the device is lost").to_string();
                assert!(next.contains("is lost since"), "{fault}: {next}");
                // The other goes on.
                let alone = [0, 1].map(|n| try_compiled(&network(), &[n]).is_ok_and(|e| outputs(&e, &[&x]).is_ok()));
                assert_eq!(alone.iter().filter(|ok| **ok).count(), 1, "{fault}: {alone:?}");
                let lost = alone.iter().position(|ok| !ok).expect("one of them");
                assert!(error.contains(&format!("cuda:{lost} (")), "{fault}: {error}");
            }
        }
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn refusals() {
        let g = network();
        for (device, beside) in [
            (Device::cpu(), Device::cuda(0)),
            (Device::cuda(0), Device::cpu()),
            (Device::cuda(1), Device::cuda(1)),
        ] {
            let options = CompileOptions {
                device,
                beside: vec![beside],
                ..CompileOptions::default()
            };
            let refused = g.compile(&options).expect_err("it is refused");
            assert!(matches!(refused, BuildError::Beside { .. }), "{refused}");
        }
        let options = CompileOptions {
            device: Device::cuda(0),
            beside: vec![Device::cuda(2)],
            ..CompileOptions::default()
        };
        let refused = g.compile(&options).expect_err("there are two").to_string();
        assert!(refused.contains("there is no device cuda:2"), "{refused}");
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn second_alone() {
        let context = cuda::open(0).expect("a device");
        assert!(context.properties().name.contains("A100"), "{:?}", context.properties());
        assert!(cuda::open(1).is_err());
        let found = outputs(&compiled(&network(), &[0]), &[&data(&[8, 16], 3)]).expect("it runs");
        assert_close(
            &found,
            &outputs(&compiled(&network(), &[]), &[&data(&[8, 16], 3)]).expect("it runs"),
        );
    }
}
