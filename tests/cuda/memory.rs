//! What a call needs of a device's memory, known before it runs.

use tempfile::TempDir;
use tlc::{CompileOptions, DType, Device, Executable, Graph, RunError, inputs};
use tlc_runtime::cuda;

use crate::child::simulated;
use crate::faults::{expect, no_nvrtc, tlc};

/// The laptop's GPU with a mebibyte of memory.
pub fn small_device(folder: &TempDir) -> String {
    let known = concat!(env!("CARGO_MANIFEST_DIR"), "/gpusim/driver/devices/laptop-4gib.toml");
    let text = std::fs::read_to_string(known).expect("a description");
    let small = text.lines().map(|line| match line.split(' ').next() {
        Some("name") => "name = \"Small GPU\"\n".into(),
        Some("memory") => "memory = 1_048_576\n".into(),
        _ => format!("{line}\n"),
    });
    let path = folder.path().join("small.toml");
    std::fs::write(&path, small.collect::<String>()).expect("written");
    path.to_str().expect("a path in UTF-8").into()
}

const RUN: [&str; 7] = ["run", "sums.tlir", "--input", "x=ones", "--device", "cuda", "--set"];

#[test]
fn a_model_that_does_not_fit_a_device_is_refused_before_it_runs() {
    if no_nvrtc() {
        return;
    }
    let folder = TempDir::new().expect("a folder");
    let (small, report) = (small_device(&folder), folder.path().join("report"));
    let report = report.to_str().expect("a path in UTF-8");
    let variables = [("TLC_SIM_DEVICE", small.as_str()), ("TLC_SIM_REPORT", report)];
    let sized = |n: &'static str| [&RUN[..], &[n]].concat();
    expect(
        tlc(&variables, &sized("n=1000000")),
        5,
        &[
            "sums.tlir: running it needs too much memory of cuda:0 (Small GPU)",
            "expected at most 1.0 MiB, which are free of 1.0 MiB, found 7.6 MiB",
        ],
    );
    if let Ok(text) = std::fs::read_to_string(report) {
        assert!(
            !text.contains("cuLaunchKernel") && !text.contains("cuMemAlloc"),
            "{text}"
        );
    }
    expect(
        tlc(&variables, &sized("n=1000")),
        0,
        &[
            "memory of cuda:0 (Small GPU): at most 8.4 KiB, inputs, outputs and between steps 8.4 KiB",
            "1.0 MiB of 1.0 MiB are free",
        ],
    );
    expect(
        tlc(&[], &[&sized("n=1000000")[..], &["--max-memory", "4MiB"]].concat()),
        5,
        &["running it needs too much memory; expected at most 4.0 MiB, as --max-memory says, found 7.8 MiB"],
    );
    // The host needs a little less: the simulated device has room between slots.
    expect(
        tlc(&[], &[&sized("n=1000")[..], &["--max-memory", "8300"]].concat()),
        5,
        &[
            "too much memory of cuda:0 (NVIDIA H200 (simulated))",
            "as --max-memory says, found 8.4 KiB",
        ],
    );
}

#[test]
fn a_call_that_does_not_fit_a_device_fails_before_it_allocates() {
    let folder = TempDir::new().expect("a folder");
    simulated("memory::children::small", &[("TLC_SIM_DEVICE", &small_device(&folder))]);
}

#[test]
fn loops_are_cut_for_the_memory_of_a_device() {
    simulated("memory::children::segments", &[]);
}

mod children {
    use super::*;

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn segments() {
        let g = Graph::new("steps");
        let (x, w) = (g.input("x", DType::F32, [400]), g.input("w", DType::F32, [400]));
        let last = g.repeat(100).carry(&x).record(|i| {
            let w = i.capture(&w);
            vec![(&i.carried[0] * w).sin() + &i.carried[0] * 0.5]
        });
        for (k, d) in tlc::grad(&last[0].square().sum(0), &[&x, &w]).iter().enumerate() {
            g.output(&format!("d{k}"), d);
        }
        let compiled = |max_memory_bytes| {
            let options = CompileOptions {
                device: Device::cuda(0),
                max_memory_bytes,
                ..CompileOptions::default()
            };
            g.compile(&options).expect("it compiles")
        };
        let values = |seed: usize| {
            (0..400)
                .map(|i| ((i * 7 + seed) % 31) as f32 / 16.0 - 1.0)
                .collect::<Vec<_>>()
        };
        let (x, w) = (values(1), values(2));
        let all = compiled(None);
        let device = |e: &Executable| e.memory(&inputs![&x, &w]).expect("they fit").devices[0].total();
        // 100 values of 1600 bytes are kept of all iterations, 20 of segments.
        let limit = device(&all) - 100_000;
        let cut = compiled(Some(limit));
        assert!(device(&cut) <= limit);
        assert_eq!(cut.decisions().segmented.len(), 1);
        for _ in 0..3 {
            let (a, b) = (
                all.run(&inputs![&x, &w]).expect("it runs"),
                cut.run(&inputs![&x, &w]).expect("it runs"),
            );
            assert!(a.iter().zip(b.iter()).all(|(a, b)| a.bytes() == b.bytes()));
        }
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn small() {
        let g = Graph::new("sums");
        let n = g.symbol("n", 0..=1 << 24);
        let x = g.input("x", DType::F32, [n]);
        g.output("y", &x.cumsum(0));
        let options = CompileOptions {
            device: Device::cuda(0),
            ..CompileOptions::default()
        };
        let executable: Executable = g.compile(&options).expect("it compiles");
        let context = cuda::open(0).expect("a device");
        let (short, long) = (vec![1.0f32; 1000], vec![1.0f32; 1 << 20]);
        for round in 0..3 {
            let before = context.live_bytes();
            let refused = executable.run(&inputs![&long]).expect_err("8 MiB are too much");
            let RunError::DeviceTooSmall {
                peak,
                missing,
                free,
                total,
                ref device,
                what: Some(ref what),
            } = refused
            else {
                panic!("{refused}");
            };
            assert_eq!(device, "cuda:0 (Small GPU)");
            assert!(what.starts_with("what is alive at step "), "{what}");
            assert!(peak >= 8 << 20 && missing <= peak && free <= total, "{refused}");
            assert!(context.live_bytes() <= before, "round {round}");
            let fits = executable.run(&inputs![&short]).expect("it fits");
            assert_eq!(fits[0].as_slice::<f32>().expect("f32")[999], 1000.0);
        }
        let need = executable.memory(&inputs![&short]).expect("it fits");
        let [device] = &need.devices[..] else {
            panic!("{need:?}")
        };
        assert_eq!(device.missing, 0);
        assert!(device.total() > 8000);
    }
}
