//! What commands say of a plan for a device.

use serde_json::Value;
use tempfile::TempDir;

use crate::child::{real, skip};
use crate::faults::{expect, no_nvrtc, tlc};

const EXPLAIN: [&str; 5] = ["explain", "sums.tlir", "--device", "cuda", "--set"];

/// What a command prints for programs.
fn json(arguments: &[&str]) -> Option<Value> {
    let (code, text) = tlc(&[], &[arguments, &["--format", "json"]].concat())?;
    assert_eq!(code, 0, "{text}");
    // Notes follow it.
    let mut values = serde_json::Deserializer::from_str(&text).into_iter();
    Some(values.next().expect("a value").expect("JSON"))
}

#[test]
fn explain_says_how_blocks_and_threads_share_a_kernel() {
    if no_nvrtc() {
        return;
    }
    expect(
        tlc(&[], &[&EXPLAIN[..], &["n=4096"]].concat()),
        0,
        &[
            "gpu 1: 4916.7 GB/s, 66.9 f32 TFLOP/s, 1071 by matrix instructions on 16 bits, 3.00 us a launch; a kernel's block shares at most 48.0 KiB, 227.0 KiB if the driver is asked",
            "block of ",
            "bytes a thread",
            "blocks at once on a multiprocessor, ",
            "% of its threads, limited by the number of ",
            "transfer x",
            "(bound by link)",
            "the clocks that the driver names",
        ],
    );
    let Some(said) = json(&[&EXPLAIN[..], &["n=4096"]].concat()) else {
        return;
    };
    let steps = said["steps"].as_array().expect("steps");
    let kernel = steps.iter().find(|s| s["what"] == "kernel 0").expect("a kernel");
    assert_eq!(kernel["device"], 1);
    let occupancy = &kernel["occupancy"];
    let number = |name: &str| occupancy[name].as_u64().expect("a number");
    assert!(
        number("blocks") > 0 && number("threads") * 100 / 2048 == number("percent"),
        "{occupancy}"
    );
    assert!(
        steps
            .iter()
            .all(|s| s["what"] != "transfer" || s["occupancy"].is_null()),
        "{said}"
    );
    // 16 KiB that are read once and as many that are written, at the bandwidth of the device.
    let floor = kernel["floor_ns"].as_f64().expect("a number");
    assert!((floor - 2.0 * 16384.0 / 4916.7).abs() < 0.01, "{floor}");
}

#[test]
fn profile_joins_the_times_of_a_device_with_bytes_and_flops() {
    if no_nvrtc() {
        return;
    }
    let arguments = [
        "profile",
        "columns.tlir",
        "--device",
        "cuda",
        "--set",
        "n=4096",
        "--time",
        "0.01",
    ];
    expect(
        tlc(&[], &arguments),
        0,
        &[
            "sequence of 2",
            "kernel 2",
            "64.0 KiB",
            "; at most ",
            "% of its threads, limited by",
            "cuda:0 is simulated: its times say nothing of a real device",
        ],
    );
    let Some(said) = json(&arguments) else { return };
    let steps = said["steps"].as_array().expect("steps");
    // The scan of each of 64 blocks of rows and that of their totals, which are done in turn, and the addition of these.
    let expected = [
        ("transfer", 65536),
        ("sequence of 2", 131072 + 2048),
        ("kernel 2", 131072),
        ("transfer", 65536),
    ];
    assert_eq!(steps.len(), expected.len());
    for (step, (what, bytes)) in steps.iter().zip(expected) {
        assert_eq!(step["what"], what, "{said}");
        assert_eq!(step["bytes"], bytes, "{said}");
        assert_eq!(step["occupancy"].is_null(), what != "kernel 2", "{said}");
        // A simulated device has no registers.
        assert!(step["registers"].is_null() && step["local_bytes"].is_null(), "{said}");
        assert_eq!(step["on_host"], (step["step"] == "3"), "{said}");
        assert!(step["ns"].as_f64().is_some_and(|ns| ns > 0.0), "{said}");
    }
}

#[test]
fn calls_whose_tensors_stay_on_a_device_are_timed() {
    if no_nvrtc() {
        return;
    }
    let arguments = |device| {
        [
            "bench",
            "sums.tlir",
            "--device",
            device,
            "--resident",
            "--set",
            "n=64",
            "--time",
            "0",
        ]
    };
    let Some(said) = json(&arguments("cuda")) else { return };
    assert_eq!(said["resident"], true, "{said}");
    assert!(said["median_ns"].as_f64().is_some_and(|ns| ns > 0.0), "{said}");
    // What goes between the host and the device is no part of such a call.
    let plain: Vec<&str> = arguments("cuda").into_iter().filter(|a| *a != "--resident").collect();
    let Some(copied) = json(&plain) else { return };
    let floor = |said: &Value| said["floor_ns"].as_f64().expect("sizes are known");
    assert!(floor(&said) < floor(&copied), "{said} {copied}");
    expect(
        tlc(&[], &arguments("cpu")),
        2,
        &["--resident is of a GPU; expected --device cuda as well"],
    );
}

#[test]
fn a_device_is_told_to_take_the_times_of_steps() {
    if no_nvrtc() {
        return;
    }
    let folder = TempDir::new().expect("a folder");
    let report = folder.path().join("report");
    let path = report.to_str().expect("a path in UTF-8");
    let arguments = [
        "profile",
        "sums.tlir",
        "--device",
        "cuda",
        "--set",
        "n=64",
        "--time",
        "0.01",
    ];
    if tlc(&[("TLC_SIM_REPORT", path)], &arguments).is_none() {
        return;
    }
    let text = std::fs::read_to_string(&report).expect("a report");
    let report: Value = serde_json::from_str(text.lines().last().expect("a line")).expect("JSON");
    let times = report["calls"]["cuEventElapsedTime_v2"].as_u64().unwrap_or(0);
    assert!(
        times >= 15 && times.is_multiple_of(3),
        "three steps of each of five calls: {text}"
    );
}

#[test]
fn a_device_is_measured() {
    if no_nvrtc() {
        return;
    }
    let arguments = ["hwbench", "--device", "cuda", "--quick"];
    expect(
        tlc(&[], &arguments),
        0,
        &[
            "cuda:0 (NVIDIA H200 (simulated)), driver 13.0",
            "copies within its memory",
            "f32 multiply-add",
            "f16 products of matrices (mma.sync)",
            "the smallest kernel",
            "a captured graph of one kernel",
            "cuda:0 is simulated: its times say nothing of a real device",
        ],
    );
    let Some(said) = json(&arguments) else { return };
    assert_eq!(said["simulated"], true);
    for rate in [
        "copied_bytes_per_second",
        "from_host_bytes_per_second",
        "f32_flops_per_second",
        "f16_matrix_flops_per_second",
        "bf16_matrix_flops_per_second",
        "tf32_matrix_flops_per_second",
        "kernel_ns",
        "call_ns",
        "graph_host_ns",
        "graph_device_ns",
    ] {
        assert!(said[rate].as_f64().is_some_and(|r| r > 0.0), "{rate}: {said}");
    }
}

/// Four warps multiply it together on a device of compute capability 9.0, and on no other.
const LARGE: &str = "graph @large(%x: bf16[2048, 2048], %y: bf16[2048, 2048]) {
  %0 = einsum %x, %y {ab,bc->ac} : bf16[2048, 2048]
  return %0
}
";

#[test]
fn what_is_emitted_and_predicted_is_for_the_gpu_that_is_here() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("large.tlir");
    std::fs::write(&path, LARGE).expect("written");
    let path = path.to_str().expect("a path in UTF-8");
    let emit = |device: &str, more: &[&str]| -> Option<String> {
        let arguments = [&["emit", path, "--what", "cuda"], more].concat();
        let (code, text) = tlc(&[("TLC_SIM_DEVICE", device)], &arguments)?;
        assert_eq!(code, 0, "{text}");
        Some(text)
    };
    let plan = |device: &str| Some(tlc(&[("TLC_SIM_DEVICE", device)], &["plan", path, "--device", "cuda"])?.1);
    let Some(here) = emit("h200", &[]) else {
        skip("no libtlc_gpusim_driver.so");
        return;
    };
    if real() {
        // The variable names another one than the system has.
        return;
    }
    let in_groups = |text: Option<String>| text.expect("a device").contains("wgmma");
    assert!(in_groups(Some(here)));
    assert!(!in_groups(emit("a100", &[])));
    assert!(in_groups(emit("a100", &["--arch", "sm_90a"])));
    assert!(!in_groups(emit("h200", &["--arch", "sm_80"])));
    // Of several, that of the number.
    assert!(in_groups(emit("a100,h200", &["--device", "cuda:1"])));
    // One that is not there need not be.
    assert!(in_groups(emit("a100", &["--device", "cuda:1"])));
    let slow = plan("laptop-4gib").expect("a device");
    assert_ne!(slow, plan("h200").expect("a device"), "the laptop is as fast");
}

/// Two chains of products, each of which leaves most of the device idle.
const CHAINS: &str = "graph @chains(%x: f16[192, 160], %y: f16[192, 160], %w: f16[160, 160]) {
  %a = einsum %x, %w {ab,bc->ac; acc=f32} : f16[192, 160]
  %b = einsum %a, %w {ab,bc->ac; acc=f32} : f16[192, 160]
  %c = einsum %b, %w {ab,bc->ac; acc=f32} : f16[192, 160]
  %d = einsum %y, %w {ab,bc->ac; acc=f32} : f16[192, 160]
  %e = einsum %d, %w {ab,bc->ac; acc=f32} : f16[192, 160]
  %f = einsum %e, %w {ab,bc->ac; acc=f32} : f16[192, 160]
  %0 = add %c, %f : f16[192, 160]
  return %0
}
";

#[test]
fn launches_beside_others_are_said_to_be() {
    if no_nvrtc() {
        return;
    }
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("chains.tlir");
    std::fs::write(&path, CHAINS).expect("written");
    let path = path.to_str().expect("a path in UTF-8");
    let of = |command| [command, path, "--device", "cuda"];
    expect(
        tlc(&[], &of("explain")),
        0,
        &["\nqueues\n", "gpu 1: queue 4 has step", "multiprocessors idle"],
    );
    expect(tlc(&[], &of("plan")), 0, &[", in queue 4"]);
    expect(
        tlc(&[], &[&of("profile")[..], &["--time", "0.01"]].concat()),
        0,
        &["; in queue 4"],
    );
    let Some(profile) = json(&[&of("profile")[..], &["--time", "0.01"]].concat()) else {
        return;
    };
    let steps = profile["steps"].as_array().expect("steps");
    let there = steps.iter().filter(|s| s["queue"] == 4).count();
    assert!(there >= 2, "{profile}");
    assert!(steps.iter().any(|s| s["queue"].is_null()), "{profile}");
}
