//! The memory of a device: where it comes from, what of it stays for the next call, and when that goes back.

use tempfile::TempDir;
use tlc::{DType, Device, Graph, HostTensor, PoolUse, inputs};
use tlc_runtime::cuda;

use crate::child::simulated;
use crate::faults::{expect, no_nvrtc, tlc};
use crate::recorded::{assert_close, compiled, network, network_inputs, run};

/// The laptop's GPU with a driver that has no pools.
pub fn without_pools(folder: &TempDir) -> String {
    let known = concat!(env!("CARGO_MANIFEST_DIR"), "/gpusim/driver/devices/laptop-4gib.toml");
    let text = std::fs::read_to_string(known).expect("a description");
    let path = folder.path().join("plain.toml");
    let changed = text.replace("memory_pools = 1", "memory_pools = 0");
    assert_ne!(changed, text);
    std::fs::write(&path, changed).expect("written");
    path.to_str().expect("a path in UTF-8").into()
}

/// What a process with a device reports at its end; none where there is no such device.
fn reported(test: &str, settings: &[(&str, &str)]) -> Option<serde_json::Value> {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("report");
    let own = [("TLC_SIM_REPORT", path.to_str().expect("a path in UTF-8"))];
    simulated(test, &[settings, &own].concat())?;
    let text = std::fs::read_to_string(&path).ok()?;
    let last = text.lines().last().expect("a line");
    Some(serde_json::from_str(last).expect("JSON"))
}

#[test]
fn memory_comes_from_a_pool_and_all_of_it_goes_back() {
    let folder = TempDir::new().expect("a folder");
    let plain = without_pools(&folder);
    for (pooled, settings) in [(true, vec![]), (false, vec![("TLC_SIM_DEVICE", plain.as_str())])] {
        let Some(report) = reported("pools::children::leaks", &settings) else {
            return;
        };
        for what in ["device_bytes", "pinned_bytes", "handles"] {
            assert_eq!(report[what], 0, "{what} in {report}");
        }
        let calls = |name: &str| report["calls"][name].as_u64().unwrap_or(0);
        let [pool, alone] = ["cuMemAllocFromPoolAsync", "cuMemAlloc_v2"].map(calls);
        assert_eq!([pool > 0, alone > 0], [pooled, !pooled], "{report}");
        assert_eq!(
            calls("cuMemFreeAsync") + calls("cuMemFree_v2"),
            pool + alone,
            "{report}"
        );
        // One for each time that there are executables.
        assert_eq!(calls("cuMemPoolCreate"), if pooled { 200 } else { 0 }, "{report}");
        assert_eq!(calls("cuMemPoolDestroy"), calls("cuMemPoolCreate"), "{report}");
    }
}

/// Warm calls find what they need in what is spare, and the driver is asked for nothing.
#[test]
fn warm_calls_ask_for_no_memory() {
    let folder = TempDir::new().expect("a folder");
    simulated("pools::children::warm", &[]);
    simulated("pools::children::warm", &[("TLC_SIM_DEVICE", &without_pools(&folder))]);
}

/// What is kept for the next call of one executable goes to another that needs it.
#[test]
fn what_is_idle_goes_back_where_memory_runs_out() {
    let Some(report) = reported("pools::children::pressure", &[("TLC_SIM_MEMORY", "8388608")]) else {
        return;
    };
    assert!(report["calls"]["cuMemPoolTrimTo"].as_u64() > Some(0), "{report}");
}

/// Orders of streams that nothing but the pool's event gives: at each seed of delays.
#[test]
fn streams_come_behind_allocations_in_any_order() {
    for seed in ["1", "2", "3", "4", "5"] {
        simulated("pools::children::sizes", &[("TLC_SIM_SEED", seed)]);
    }
}

#[test]
fn executables_of_a_graph_keep_its_constants_once() {
    let folder = TempDir::new().expect("a folder");
    let plain = without_pools(&folder);
    for settings in [vec![], vec![("TLC_SIM_DEVICE", plain.as_str())]] {
        let Some(report) = reported("pools::children::constants", &settings) else {
            return;
        };
        for what in ["device_bytes", "pinned_bytes", "handles"] {
            assert_eq!(report[what], 0, "{what} in {report}");
        }
    }
}

#[test]
fn faults_of_allocations_are_errors_without_pools_too() {
    let folder = TempDir::new().expect("a folder");
    let plain = without_pools(&folder);
    for number in 1..=6 {
        let fault = format!("alloc:{number}");
        simulated(
            "faults::children::each",
            &[("TLC_SIM_FAULT", &*fault), ("TLC_SIM_DEVICE", &*plain)],
        );
    }
}

#[test]
fn commands_say_what_there_is_of_a_pool() {
    if no_nvrtc() {
        return;
    }
    let folder = TempDir::new().expect("a folder");
    let plain = without_pools(&folder);
    expect(tlc(&[], &["info"]), 0, &["in a pool that keeps at most 8.8 GiB idle"]);
    let without = [("TLC_SIM_DEVICE", plain.as_str())];
    expect(tlc(&without, &["info"]), 0, &["4.0 GiB without pools"]);
    let profile = [
        "profile",
        "sums.tlir",
        "--device",
        "cuda",
        "--set",
        "n=4096",
        "--time",
        "0.01",
    ];
    expect(
        tlc(&[], &profile),
        0,
        &[
            "memory of cuda:0 (NVIDIA H200 (simulated)): ",
            " allocated of a pool that holds ",
            "; 0 B spare; asked for ",
        ],
    );
    expect(tlc(&without, &profile), 0, &[" allocated; 0 B spare; asked for "]);
}

mod children {
    use super::*;

    fn pool() -> PoolUse {
        Device::cuda(0).pool_use().expect("a device")
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn leaks() {
        let g = Graph::new("doubled");
        let x = g.input("x", DType::F32, [1000]);
        g.output("y", &(&x + &x));
        let context = cuda::open(0).expect("a device");
        let x = vec![1.0f32; 1000];
        let mut free = None;
        for round in 0..200 {
            let executable = compiled(&g, Device::cuda(0));
            for _ in 0..3 {
                let found = executable.run_on_device(inputs![&x]).expect("it runs");
                let found = found["y"].to_host().expect("it is there");
                assert_eq!(found.as_slice::<f32>().expect("f32")[999], 2.0);
            }
            assert_eq!(pool().spare, 4000, "the result's");
            drop(executable);
            assert_eq!(pool().allocated, 0, "round {round}");
            let now = context.memory().expect("a device").0;
            assert_eq!(*free.get_or_insert(now), now, "round {round}");
        }
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn constants() {
        const SIDE: usize = 256;
        let g = Graph::new("weighted");
        let x = g.input("x", DType::F32, [4, SIDE as u64]);
        let values: Vec<f32> = (0..SIDE * SIDE).map(|i| ((i * 7) % 13) as f32 - 6.0).collect();
        let weights = HostTensor::from_slice(&[SIDE, SIDE], &values).expect("as many");
        g.output("y", &x.matmul(&g.constant(&weights)));
        let given = [HostTensor::from_slice(&[4, SIDE], &vec![0.5f32; 4 * SIDE]).expect("as many")];
        let one_copy = (SIDE * SIDE * 4) as u64;
        let here = compiled(&g, Device::cpu());
        let expected = run(&here, &given).expect("it runs");
        let first = compiled(&g, Device::cuda(0));
        assert_close(&run(&first, &given).expect("it runs"), &expected);
        let alone = pool().allocated;
        assert!(alone >= one_copy, "{alone}");
        let second = compiled(&g, Device::cuda(0));
        assert_close(&run(&second, &given).expect("it runs"), &expected);
        let both = pool().allocated;
        assert!(both - alone < one_copy, "{both} behind {alone}");
        // Whoever is left has them.
        drop(first);
        assert!((one_copy..both).contains(&pool().allocated));
        assert_close(&run(&second, &given).expect("it runs"), &expected);
        drop(second);
        assert_eq!(pool().allocated, 0);
        // And they come again.
        let third = compiled(&g, Device::cuda(0));
        assert_close(&run(&third, &given).expect("it runs"), &expected);
        assert_eq!(pool().allocated, alone);
        drop(third);
        assert_eq!(pool().allocated, 0);
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn warm() {
        let there = compiled(&network(), Device::cuda(0));
        let given = network_inputs(30, 1);
        let on_device: Vec<_> = given.iter().map(|t| Device::cuda(0).upload(t).expect("room")).collect();
        let call = || {
            run(&there, &given).expect("it runs");
            let [x, a, b] = &on_device[..] else {
                panic!("three inputs")
            };
            there.run_on_device(inputs![x, a, b]).expect("it runs");
        };
        (0..3).for_each(|_| call());
        let before = pool();
        (0..10).for_each(|_| call());
        let after = pool();
        assert_eq!([after.fresh, after.allocated], [before.fresh, before.allocated]);
        assert_eq!(after.reused - before.reused, 20, "two results a call");
        assert!(after.spare > 0);
        if after.pooled {
            assert!(after.reserved >= after.allocated);
            assert!(after.reserved_peak >= after.reserved && after.allocated_peak >= after.allocated);
        }
        assert!(Device::cuda(0).release_idle_memory().expect("a device"));
        assert_eq!(pool().spare, 0);
        assert!(
            !Device::cuda(0).release_idle_memory().expect("a device"),
            "nothing is left"
        );
        call();
        let refused = Device::cpu().pool_use().expect_err("it is refused").to_string();
        assert!(refused.contains("compiled for the processor alone"), "{refused}");
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn pressure() {
        let g = Graph::new("scaled");
        let n = g.symbol("n", 1..=1 << 20);
        let x = g.input("x", DType::F32, [n]);
        g.output("y", &(&x * 2.0));
        let (one, other) = (compiled(&g, Device::cuda(0)), compiled(&g, Device::cuda(0)));
        // A sixteenth of 8 MiB is the most that may be spare.
        let kept = vec![1.5f32; 100_000];
        let tensor = one.run_on_device(inputs![&kept]).expect("it runs");
        drop(tensor);
        assert_eq!(pool().spare, 400_000);
        // With it there would not be enough.
        let large = vec![1.5f32; 970_000];
        let found = other.run_on_device(inputs![&large]).expect("it runs");
        let found = found["y"].to_host().expect("it is there");
        assert_eq!(found.as_slice::<f32>().expect("f32")[969_999], 3.0);
        assert_eq!(pool().spare, 0);
        let again = one.run_on_device(inputs![&[1.5f32; 10]]).expect("it runs");
        assert_eq!(
            again["y"].to_host().expect("it is there").as_slice::<f32>(),
            Some(&[3.0f32; 10][..])
        );
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn sizes() {
        let (here, there) = (
            compiled(&network(), Device::cpu()),
            compiled(&network(), Device::cuda(0)),
        );
        // Ever more rows, so that arenas and staged tensors are allocated anew before calls.
        for (n, seed) in [(1, 1), (7, 2), (30, 3), (64, 4), (100, 5)] {
            for _ in 0..2 {
                let given = network_inputs(n, seed);
                let found = run(&there, &given).expect("it runs");
                assert_close(&found, &run(&here, &given).expect("it runs"));
            }
        }
    }
}
