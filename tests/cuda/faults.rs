//! What is missing or fails, as the command and the library say it.

use std::process::Command;

use tempfile::TempDir;
use tlc::{CompileOptions, DType, Device, Executable, Graph, inputs};
use tlc_runtime::cuda;

use crate::child::{cache, library, real, simulated, skip};
use crate::recorded::{compiled, network, network_inputs, run};

const SUM: &str = "graph @sum(%x: f32[8], %y: f32[8]) {\n  %0 = add %x, %y : f32[8]\n  return %0\n}\n";

/// Of any length.
const SUMS: &str =
    "graph @sums(%x: f32[n]) where n in 0..=16777216 {\n  %0 = scan add %x {axis=0} : f32[n]\n  return %0\n}\n";

/// Of columns of any length.
const COLUMNS: &str =
    "graph @columns(%x: f32[n, 4]) where n in 0..=4194304 {\n  %0 = scan add %x {axis=0} : f32[n, 4]\n  return %0\n}\n";

/// Runs the command on a simulated device under these variables: its exit code, and what it printed. `None` without the device.
pub fn tlc(variables: &[(&str, &str)], arguments: &[&str]) -> Option<(i32, String)> {
    let library = library()?;
    let folder = TempDir::new().expect("a folder");
    std::fs::write(folder.path().join("sum.tlir"), SUM).expect("written");
    std::fs::write(folder.path().join("sums.tlir"), SUMS).expect("written");
    std::fs::write(folder.path().join("columns.tlir"), COLUMNS).expect("written");
    let run = Command::new(env!("CARGO_BIN_EXE_tlc"))
        .current_dir(folder.path())
        .args(arguments)
        .env("TLC_CUDA_DRIVER", library)
        .env("TLC_CACHE", cache())
        // What the host was measured to do elsewhere is not told here.
        .env("XDG_CACHE_HOME", folder.path())
        .env_remove("TLC_CUDA_CODE")
        .envs(variables.iter().copied())
        .output()
        .expect("the command runs");
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&run.stdout),
        String::from_utf8_lossy(&run.stderr)
    );
    Some((run.status.code().unwrap_or(-1), text))
}

/// Whether nothing compiles kernels here, which it says.
pub fn no_nvrtc() -> bool {
    let missing = tlc_runtime::nvrtc::Nvrtc::load().is_err();
    if missing {
        skip("no NVRTC");
    }
    missing
}

const RUN: [&str; 6] = ["run", "sum.tlir", "--input", "x=ones", "--input", "y=ones"];

/// The model on a device.
fn run_on(device: &str, variables: &[(&str, &str)]) -> Option<(i32, String)> {
    tlc(variables, &[&RUN[..], &["--device", device]].concat())
}

pub fn expect(found: Option<(i32, String)>, code: i32, parts: &[&str]) {
    let Some((status, text)) = found else {
        skip("no libtlc_gpusim_driver.so");
        return;
    };
    assert_eq!(status, code, "{text}");
    for part in parts {
        assert!(text.contains(part), "{part} in\n{text}");
    }
}

#[test]
fn what_is_missing_is_said_in_a_sentence() {
    expect(
        run_on("cuda", &[("TLC_CUDA_DRIVER", "/nonexistent/libcuda.so.1")]),
        4,
        &[
            "error: there is no CUDA driver: /nonexistent/libcuda.so.1",
            "TLC_CUDA_DRIVER",
        ],
    );
    expect(
        run_on("cuda", &[("TLC_SIM_FAULT", "driver:12.4")]),
        4,
        &["the CUDA driver is of version 12.4; expected 13.0 or newer"],
    );
    expect(
        run_on("cuda:3", &[]),
        4,
        &["there is no device cuda:3; the driver finds one, cuda:0"],
    );
    expect(
        run_on("cuda", &[("TLC_NVRTC", "/nonexistent/libnvrtc.so")]),
        4,
        &["nvidia-cuda-nvrtc", "TLC_NVRTC"],
    );
    expect(run_on("tpu", &[]), 2, &["expected cpu, cuda or cuda:N"]);
}

#[test]
fn the_command_runs_models_and_says_what_fails() {
    if no_nvrtc() {
        return;
    }
    // Machine code is refused here; PTX follows.
    expect(run_on("cuda:0", &[]), 0, &["min 2", "max 2"]);
    expect(
        run_on("cuda", &[("TLC_SIM_FAULT", "alloc:1")]),
        5,
        &["has no memory for"],
    );
    expect(
        run_on("cuda", &[("TLC_SIM_FAULT", "launch:1")]),
        1,
        &["CUDA_ERROR_LAUNCH_FAILED", "kernel `kernel0`", "found at step"],
    );
    expect(tlc(&[], &["info"]), 0, &["cuda:0", "compute capability 9.0"]);
    expect(tlc(&[], &["cache", "list"]), 0, &["kernels", "programs, "]);
    expect(tlc(&[("TLC_CACHE", "off")], &["cache", "list"]), 0, &["no cache"]);
}

#[test]
fn a_device_that_is_not_fit_is_no_wrong_graph() {
    if no_nvrtc() {
        return;
    }
    let verify = ["verify", "sum.tlir", "--device", "cuda"];
    expect(tlc(&[], &verify), 0, &["right: "]);
    for (variable, value, code, part) in [
        (
            "TLC_CUDA_DRIVER",
            "/nonexistent/libcuda.so.1",
            4,
            "there is no CUDA driver",
        ),
        ("TLC_NVRTC", "/nonexistent/libnvrtc.so", 4, "NVRTC is not available"),
        ("TLC_SIM_MEMORY", "100", 5, "too little memory"),
        ("TLC_SIM_FAULT", "alloc:1", 5, "bytes more, for "),
        ("TLC_SIM_FAULT", "device-lost:1", 1, "found at step"),
    ] {
        let found = tlc(&[(variable, value)], &verify);
        let blamed = found.as_ref().is_some_and(|f| f.1.contains("guilty"));
        assert!(!blamed, "{variable}={value}: {found:?}");
        expect(found, code, &[part]);
    }
}

#[test]
fn times_are_of_one_device_and_there_may_be_nothing_to_time() {
    if no_nvrtc() {
        return;
    }
    let folder = TempDir::new().expect("a folder");
    let saved = folder.path().join("saved.json").to_string_lossy().into_owned();
    let bench = ["bench", "sum.tlir", "--time", "0.01"];
    expect(tlc(&[], &[&bench[..], &["--save", &saved]].concat()), 0, &["median"]);
    let against = [&bench[..], &["--device", "cuda", "--against", &saved]].concat();
    expect(
        tlc(&[], &against),
        2,
        &["a result of @sum on", "expected one of this graph, @sum on NVIDIA"],
    );
    let none = ["--set", "n=0", "--device", "cuda"];
    expect(
        tlc(&[], &[&["bench", "sums.tlir", "--time", "0.01"], &none[..]].concat()),
        0,
        &["median"],
    );
    expect(tlc(&[], &[&["profile", "sums.tlir"], &none[..]].concat()), 0, &["step"]);
}

#[test]
fn a_lost_device_stays_lost() {
    simulated("faults::children::lost", &[("TLC_SIM_FAULT", "illegal-address:2")]);
}

#[test]
fn what_an_executable_took_is_given_back() {
    let folder = TempDir::new().expect("a folder");
    let report = folder.path().join("report");
    let path = report.to_str().expect("a path in UTF-8");
    if simulated("faults::children::leaks", &[("TLC_SIM_REPORT", path)]).is_none() {
        return;
    }
    let text = std::fs::read_to_string(&report).expect("a report");
    let report: serde_json::Value = serde_json::from_str(text.lines().last().expect("a line")).expect("JSON");
    for what in ["device_bytes", "pinned_bytes", "handles"] {
        assert_eq!(report[what], 0, "{what} in {text}");
    }
    assert_eq!(report["calls"]["cuGraphLaunch"], 2000, "{text}");
}

#[test]
fn every_fault_is_an_error_that_says_where_and_what_follows() {
    let at = |kind: &str, places: &[u32]| -> Vec<String> { places.iter().map(|n| format!("{kind}:{n}")).collect() };
    let faults = [
        at("alloc", &[1, 2, 3, 4]),
        at("launch", &[1, 2, 7]),
        at("illegal-address", &[1, 7]),
        at("ecc", &[1, 7]),
        at("device-lost", &[1, 8]),
    ];
    for fault in faults.iter().flatten() {
        simulated("faults::children::each", &[("TLC_SIM_FAULT", fault)]);
    }
}

/// `x + x` on a device.
fn doubled() -> Executable {
    let g = Graph::new("doubled");
    let x = g.input("x", DType::F32, [1000]);
    g.output("y", &(&x + &x));
    let options = CompileOptions {
        device: Device::cuda(0),
        ..CompileOptions::default()
    };
    g.compile(&options).expect("it compiles")
}

mod children {
    use super::*;

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn lost() {
        let executable = doubled();
        let x = vec![1.0f32; 1000];
        assert!(executable.run(&inputs![&x]).is_ok());
        let first = executable
            .run(&inputs![&x])
            .expect_err("the second launch fails")
            .to_string();
        assert!(first.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{first}");
        let second = executable
            .run(&inputs![&x])
            .expect_err("the device is lost")
            .to_string();
        assert!(second.contains("is lost since"), "{second}");
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn each() {
        let fault = std::env::var("TLC_SIM_FAULT").expect("a fault");
        let executable = compiled(&network(), Device::cuda(0));
        let call = |n: usize| run(&executable, &network_inputs(30, n));
        let Some((failed, message)) = (0..8).find_map(|n| Some((n, call(n).err()?))) else {
            // Memory for staging can be done without.
            assert!(fault.starts_with("alloc:"), "{fault}: nothing failed");
            return;
        };
        let next = call(failed);
        match fault.split(':').next() {
            Some("alloc") => {
                let place = message.contains("has no memory for") && message.contains("step ");
                assert!(place, "{fault}: {message}");
                assert!(next.is_ok(), "{fault}: {next:?}");
            }
            _ => {
                let place = message.contains("found at step ") && message.contains("kernel `");
                assert!(place, "{fault}: {message}");
                let next = next.expect_err("the device is lost");
                assert!(next.contains("is lost since"), "{fault}: {next}");
            }
        }
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn leaks() {
        let context = cuda::open(0).expect("a device");
        let x = vec![1.0f32; 1000];
        let mut free = None;
        for round in 0..1000 {
            let executable = doubled();
            // Step after step, as it is recorded, and as it was.
            for _ in 0..3 {
                let outputs = executable.run(&inputs![&x]).expect("it runs");
                assert_eq!(outputs[0].as_slice::<f32>().expect("f32")[999], 2.0);
            }
            drop(executable);
            assert_eq!(context.live_bytes(), 0, "round {round}");
            let now = context.memory().expect("a device").0;
            // A real driver gives more back later on.
            let before = *free.get_or_insert(now);
            let kept = if real() { now >= before } else { now == before };
            assert!(kept, "round {round}: {now} bytes are free, {before} were");
        }
    }
}
