//! Every candidate of the choices that convolutions' schedules make computes the same bits, in machine code, on a processor with so small
//! caches that small images are large; and what a search finds is taken by whoever compiles with it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tlc::tune::tune;
use tlc::{CompileOptions, Conv, DType, Device, Graph, HostTensor, Input, Scalar, Tuned, TunedKernel, compile_ir};
use tlc_ir::interp::{self, compare, interpret_with_bounds};
use tlc_ir::target::Cpu;
use tlc_passes::tuning::{Pin, Pins, Tunable};
use tlc_passes::{Options, compile};
use tlc_runtime::driver::{Executable, TensorView};
use tlc_runtime::machine::MachineInfo;
use tlc_runtime::memory::BufferPool;
use tlc_runtime::pool::Pool;

/// Values around zero, with something special here and there.
fn data(shape: &[usize]) -> HostTensor {
    let mut out = HostTensor::zeros(DType::F32, shape).unwrap();
    for i in 0..out.len() {
        let value = match i % 211 {
            7 => f64::NAN,
            19 => f64::INFINITY,
            31 => -0.0,
            _ => ((i * 37 + 11) % 101) as f64 / 25.0 - 2.0,
        };
        out.set(i, Scalar::from_f64(DType::F32, value));
    }
    out
}

/// A convolution of so many channels, rows and columns to so many channels, with windows of so many elements squared.
fn convolution(channels: [usize; 2], size: usize, image: [usize; 2]) -> (tlc_ir::Graph, [HostTensor; 1]) {
    let [from, to] = channels;
    let shape = [1, from, image[0], image[1]];
    let g = Graph::new("convolution");
    let x = g.input("x", DType::F32, shape);
    let weights = g.constant(data(&[to, from, size, size]));
    g.output("y", &x.conv2d(&weights, None, &Conv::new().padding(size / 2)).tanh());
    (g.finish().unwrap(), [data(&shape)])
}

#[test]
fn candidates_of_convolutions_compute_the_same_bits() {
    if tlc_runtime::cpu::level::wide().is_none() {
        println!("SKIP: tiles are in vectors of AVX2 or wider");
        return;
    }
    let emitters = tlc_runtime::cpu::jit::emitters().unwrap();
    let pool = Arc::new(Pool::new(2));
    let mut about = BTreeSet::new();
    for (caches, channels, size, image) in [
        ([4, 16], [8, 32], 3, [6, 20]),
        ([4, 16], [16, 96], 3, [5, 7]),
        ([4, 16], [64, 64], 1, [8, 15]),
        ([32, 256], [64, 64], 1, [8, 15]),
        ([32, 128], [256, 64], 1, [8, 16]),
        ([4, 16], [80, 64], 3, [3, 14]),
    ] {
        let [l1_bytes, l2_bytes] = caches.map(|kib: u64| kib << 10);
        let cpu = Cpu {
            threads: 2,
            l1_bytes,
            l2_bytes,
            feeds_tiles: false,
            ..tlc_runtime::target::cpu(emitters.clone(), tlc::default_threads())
        };
        let (graph, inputs) = convolution(channels, size, image);
        let what = format!("{channels:?} of {size}x{size} over {image:?}");
        let compiled = |pins: Pins| {
            let options = Options {
                pins: Some(Arc::new(pins)),
                ..Options::new(cpu.clone())
            };
            compile(&graph, &options).unwrap().planned
        };
        let run = |planned: tlc_passes::planner::Planned| {
            tlc_ir::plan::verify::check(&planned.plan).unwrap_or_else(|e| panic!("{what}: {e}"));
            let pack = tlc_passes::memory::pack;
            let executable = Executable::new(planned.plan, Arc::clone(&pool), BufferPool::new(), pack).unwrap();
            let views = inputs.each_ref().map(|x| TensorView {
                dtype: x.dtype(),
                shape: x.shape(),
                data: x.bytes(),
            });
            let found = executable.run(&views).unwrap().remove(0);
            HostTensor::from_bytes(found.dtype, &found.shape, found.bytes()).unwrap()
        };
        let open = compiled(Pins::default());
        let made: Vec<_> = (open.launches.iter())
            .map(|l| (l.key.unwrap(), l.schedule.choices.clone()))
            .collect();
        let expected = run(open);
        let bounded = interpret_with_bounds(&graph, &inputs, &interp::Options::default()).unwrap();
        compare(&expected, &bounded[0]).unwrap_or_else(|e| panic!("{what}: {e}"));
        for (key, choices) in made {
            for (at, choice) in choices.iter().enumerate() {
                about.insert(choice.tunable);
                let before = choices[..at].iter().filter(|c| c.tunable == choice.tunable);
                let ordinal = before.count() as u32;
                for &value in &choice.candidates {
                    let pin = Pin {
                        tunable: choice.tunable,
                        ordinal,
                        value,
                    };
                    let mut pins = Pins::default();
                    pins.set(key, vec![pin]);
                    let found = run(compiled(pins));
                    assert!(found.bytes() == expected.bytes(), "{what}: {pin} computes other bits");
                }
            }
        }
    }
    let expected = [
        Tunable::TilePixels,
        Tunable::RoundChannels,
        Tunable::BlocksPerRow,
        Tunable::PiecePixels,
        Tunable::WeightsAhead,
        Tunable::ChannelsAhead,
    ];
    for tunable in expected {
        assert!(about.contains(&tunable), "no choice of {tunable}: {about:?}");
    }
}

#[test]
fn a_search_tries_all_candidates_and_changes_no_result() {
    let (graph, inputs) = convolution([16, 32], 3, [9, 20]);
    let views: Vec<Input<'_>> = inputs.iter().map(Input::from).collect();
    let options = CompileOptions {
        threads: Some(2),
        ..CompileOptions::default()
    };
    let mut last = 0.0;
    let tuning = tune(&graph, &options, &views, Duration::from_secs(120), &mut |part| {
        assert!(part >= last, "{last}, then {part}");
        last = part;
    });
    let tuning = tuning.unwrap();
    let candidates: usize = tuning.kernels.iter().map(|k| k.candidates).sum();
    assert!(
        tuning.complete && tuning.tried >= candidates && candidates > 0,
        "{tuning:?}"
    );
    // What is in the file is what was found, and is taken.
    let tuned = Tuned::from_json(&tuning.tuned.to_json()).unwrap();
    assert_eq!(tuned.kernels().len(), tuning.tuned.kernels().len());
    let plain = compile_ir(&graph, &options).unwrap();
    let with = CompileOptions {
        tuned: Some(Arc::new(tuned)),
        ..options
    };
    let with = compile_ir(&graph, &with).unwrap();
    let [plain, with] = [plain, with].map(|e| e.run(&views).unwrap()[0].to_host());
    assert!(plain.bytes() == with.bytes());
}

#[test]
fn choices_are_of_one_processor_and_of_its_kernels_alone() {
    let (graph, _) = convolution([16, 32], 3, [9, 20]);
    let of = |cpu: &str, value: i64| {
        let options = |tuned| CompileOptions {
            threads: Some(2),
            tuned: Some(Arc::new(tuned)),
            ..CompileOptions::default()
        };
        let open = compile_ir(&graph, &options(Tuned::default())).unwrap();
        let launches = &open.decisions().planned.launches;
        let about = |l: &&tlc_passes::planner::LaunchReport| !l.schedule.choices.is_empty();
        let launch = launches.iter().rev().find(about).unwrap();
        let tunable = launch.schedule.choices.last().unwrap().tunable;
        let ordinal = launch.schedule.choices.iter().filter(|c| c.tunable == tunable).count() as u32 - 1;
        let mut tuned = Tuned::default();
        tuned.insert(TunedKernel {
            cpu: cpu.into(),
            level: tlc_runtime::cpu::level::wide().map_or("sse", |l| l.name()).into(),
            threads: 2,
            kernel: launch.key.unwrap(),
            label: launch.schedule.choices.len().to_string(),
            choices: vec![Pin {
                tunable,
                ordinal,
                value,
            }],
            ns: [2.0, 1.0],
        });
        let with = compile_ir(&graph, &options(tuned)).unwrap();
        let launches = &with.decisions().planned.launches;
        let mut choices = launches.iter().flat_map(|l| &l.schedule.choices);
        choices.any(|c| c.pinned)
    };
    let here = MachineInfo::detect_without_gpu().cpu.key();
    // The last choice of every kernel that two threads share is how much work a thread is handed; a microsecond less than none is no candidate.
    assert!(of(&here, 1_000_000));
    assert!(!of(&here, -1));
    assert!(!of("another processor", 1_000_000));
}

#[test]
fn gpus_are_not_tuned() {
    let (graph, inputs) = convolution([1, 1], 1, [2, 2]);
    let views: Vec<Input<'_>> = inputs.iter().map(Input::from).collect();
    let options = CompileOptions {
        device: Device::Cuda(0),
        ..CompileOptions::default()
    };
    let refused = tune(&graph, &options, &views, Duration::from_secs(1), &mut |_| {});
    let text = refused.unwrap_err().to_string();
    assert_eq!(text, "kernels of cuda:0 cannot be tuned; expected the processor");
}

#[test]
fn files_that_are_none_are_refused_with_what_is_wrong() {
    let entry = |kernel: &str, choice: &str| {
        format!(
            r#"{{"tuned": 1, "kernels": [{{"cpu": "x", "level": "avx2", "threads": 1, "kernel": "{kernel}", "label": "a",
                "choices": ["{choice}"], "calculated_ns": 2, "tuned_ns": 1}}]}}"#
        )
    };
    assert!(Tuned::from_json(&entry("0123456789abcdef", "tile-pixels=7")).is_ok());
    for (text, wrong) in [
        (
            entry("0123456789abcdeg", "tile-pixels=7"),
            "kernel 0: `0123456789abcdeg` names no kernel",
        ),
        (entry("12", "tile-pixels=7"), "kernel 0: `12` names no kernel"),
        (entry("+123456789abcdef", "tile-pixels=7"), "kernel 0: `+1"),
        (
            entry("0123456789abcdef", "tile-pixel=7"),
            "kernel 0: `tile-pixel=7` is no choice",
        ),
        (r#"{"tuned": 2, "kernels": []}"#.to_string(), "the file has version 2"),
        (r#"{"tuned": 1}"#.to_string(), "missing field `kernels`"),
        (
            r#"{"tuned": 1, "kernels": [], "more": 1}"#.to_string(),
            "unknown field `more`",
        ),
        (String::new(), "EOF while parsing"),
    ] {
        let e = Tuned::from_json(&text).unwrap_err().to_string();
        assert!(e.starts_with(wrong), "{e}");
    }
}
