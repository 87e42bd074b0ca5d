//! Warm calls: what a device does without the host is one graph.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use tlc::{
    CompileOptions, DType, Device, Executable, Graph, GridSample, HostTensor, Input, Interpolation, Outside, Specialize,
};

use crate::child::{Settings, simulated};

/// How often each entry point of the driver was called by a test of this file that makes so many calls of an executable.
fn calls_of(test: &str, times: usize, settings: Settings<'_>) -> Option<BTreeMap<String, i64>> {
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("report");
    let times = times.to_string();
    let path = report.to_str().expect("a path in UTF-8");
    let own = [("TLC_SIM_REPORT", path), ("TLC_TEST_CALLS", &*times)];
    simulated(test, &[settings, &own].concat())?;
    // A real driver counts nothing.
    report.exists().then(|| counted(&report))
}

fn counted(report: &Path) -> BTreeMap<String, i64> {
    let text = std::fs::read_to_string(report).expect("a report");
    let last = text.lines().last().expect("a line");
    let report: Value = serde_json::from_str(last).expect("JSON");
    let calls = report["calls"].as_object().expect("calls");
    calls
        .iter()
        .map(|(name, n)| (name.clone(), n.as_i64().expect("a number")))
        .collect()
}

/// What ten warm calls asked of the driver, without what makes a context current, and what NVRTC asks where its results are not in the cache.
pub fn ten_warm_calls(test: &str, settings: Settings<'_>) -> Option<BTreeMap<String, i64>> {
    let few = calls_of(test, 4, settings)?;
    let mut more = calls_of(test, 14, settings)?;
    for (name, n) in &few {
        *more.entry(name.clone()).or_default() -= n;
    }
    let other = ["cuCtxSetCurrent", "cuInit", "cuGetExportTable"];
    more.retain(|name, n| *n != 0 && !other.contains(&name.as_str()));
    Some(more)
}

#[test]
fn a_warm_call_is_one_graph_and_one_wait() {
    let Some(calls) = ten_warm_calls("recorded::children::steps", &[]) else {
        return;
    };
    let expected = [("cuGraphLaunch", 10), ("cuStreamSynchronize", 10)];
    assert_eq!(calls, expected.map(|(name, n)| (name.to_string(), n)).into());
}

#[test]
fn loops_that_the_host_need_not_watch_are_part_of_the_graph() {
    let Some(calls) = ten_warm_calls("recorded::children::loops", &[]) else {
        return;
    };
    let expected = [("cuGraphLaunch", 10), ("cuStreamSynchronize", 10)];
    assert_eq!(calls, expected.map(|(name, n)| (name.to_string(), n)).into());
    simulated("recorded::children::loops_of_sizes", &[]);
    simulated("recorded::children::rows_that_are_not_aligned", &[]);
}

#[test]
fn what_the_host_does_parts_graphs() {
    simulated("recorded::children::host_between", &[]);
}

#[test]
fn calls_of_several_threads_and_sizes_keep_to_their_graphs() {
    simulated("recorded::children::threads", &[]);
}

#[test]
fn a_fault_in_a_graph_names_its_steps_and_kernels() {
    simulated("recorded::children::fault", &[("TLC_SIM_FAULT", "launch:12")]);
}

#[test]
fn many_values_of_a_thread_need_not_fit_a_block() {
    simulated("recorded::children::samples", &[]);
}

/// The times that a test calls, which its parent decides.
pub fn times() -> usize {
    let set = std::env::var("TLC_TEST_CALLS").ok();
    set.map_or(4, |t| t.parse().expect("TLC_TEST_CALLS is a number"))
}

pub fn compiled(g: &Graph, device: Device) -> Executable {
    let options = CompileOptions {
        device,
        specialize: Specialize::Never,
        ..CompileOptions::default()
    };
    g.compile(&options).expect("it compiles")
}

/// Several kernels: `softmax(x @ a) @ b`, and a sum that does not depend on it. They are too large for one block to do all in turn.
pub fn network() -> Graph {
    let g = Graph::new("network");
    // So many rows may be more than one block should do, and so the sums are a launch behind that of what they are made of.
    let n = g.symbol("n", 1..=4096);
    let x = g.input("x", DType::F32, [n, 24.into()]);
    let a = g.input("a", DType::F32, [24, 104]);
    let b = g.input("b", DType::F32, [104, 8]);
    let y = x.matmul(&a).softmax(-1).matmul(&b);
    g.output("y", &y);
    g.output("z", &y.sum(0));
    g
}

/// Steps of the host between those of a GPU: places, whose number data decides, and a loop.
fn with_host() -> Graph {
    let g = Graph::new("with_host");
    let x = g.input("x", DType::F32, [200]);
    let scaled = (&x * 3.0).exp();
    let positive = scaled.take(&x.gt(0.0).nonzero().select_index(0, 0), 0);
    g.output("shifted", &(&positive - positive.sum(0)));
    let results = g.repeat(5).carry(&scaled).record(|i| {
        let y = &i.carried[0] * 0.5 + 1.0;
        vec![y]
    });
    g.output("looped", &(&results[0] * &x).sum(0));
    g
}

/// Loops whose trip counts inputs decide: over rows from both ends, with numbers of iterations, and one in another.
fn with_loops() -> Graph {
    let g = Graph::new("with_loops");
    let n = g.symbol("n", 0..=100);
    let x = g.input("x", DType::F32, [n.clone(), 24.into()]);
    let a = g.input("a", DType::F32, [24, 24]);
    let first = x.sum(0).tanh();
    let ahead = g.repeat(&n).carry(&first).slice(&x, 0).record(|i| {
        let h = (i.carried[0].unsqueeze(0).matmul(&i.capture(&a)).squeeze(0) * 0.1 + &i.slices[0]).tanh();
        let weighted = &h * &(i.number.cast(DType::F32) + 1.0);
        i.stack(&weighted, 1);
        vec![h]
    });
    g.output("last", &ahead[0]);
    g.output("columns", &ahead[1]);
    let back = g
        .repeat(&n)
        .carry(&first)
        .slice_reversed(&x.transpose(), 1)
        .record(|i| {
            let h = &i.carried[0] * 0.5 + &i.slices[0];
            i.stack_reversed(&h, 0);
            vec![h]
        });
    g.output("back", &back[1]);
    let sums = g.repeat(3).carry(&ahead[0]).carry(&first).record(|i| {
        let outer = i.number.cast(DType::F32);
        let inner = i.graph().repeat(4).carry(&i.carried[1]).record(|j| {
            let y = &j.carried[0] * 0.5 + j.number.cast(DType::F32);
            vec![y]
        });
        let next = &i.carried[0] + &(&inner[0] * &outer);
        vec![next, inner[0].clone()]
    });
    g.output("sums", &(&sums[0] + &sums[1]));
    g.output("total", &x.sum(1).exp());
    g
}

fn data(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7 + seed * 13) % 11) as f32 / 4.0 - 1.0).collect()
}

pub fn network_inputs(n: usize, seed: usize) -> Vec<HostTensor> {
    let of = |shape: &[usize], seed| {
        HostTensor::from_slice(shape, &data(shape.iter().product(), seed)).expect("as many as the shape says")
    };
    vec![of(&[n, 24], seed), of(&[24, 104], seed + 1), of(&[104, 8], seed + 2)]
}

pub fn run(e: &Executable, inputs: &[HostTensor]) -> Result<Vec<HostTensor>, String> {
    let given: Vec<Input<'_>> = inputs.iter().map(Input::from).collect();
    let outputs = e.run(&given).map_err(|e| e.to_string())?;
    Ok(outputs.iter().map(|o| o.to_host()).collect())
}

/// Whether results differ by no more than rounding does.
pub fn assert_close(found: &[HostTensor], expected: &[HostTensor]) {
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found.shape(), expected.shape());
        let (found, expected) = (found.as_slice::<f32>(), expected.as_slice::<f32>());
        for (f, e) in found.expect("f32").iter().zip(expected.expect("f32")) {
            assert!((f - e).abs() <= 1e-4 * e.abs().max(1.0), "{f} for {e}");
        }
    }
}

mod children {
    use super::*;

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn steps() {
        let g = network();
        let (here, there) = (compiled(&g, Device::cpu()), compiled(&g, Device::cuda(0)));
        for call in 0..times() {
            let inputs = network_inputs(30, call);
            assert_close(
                &run(&there, &inputs).expect("it runs"),
                &run(&here, &inputs).expect("it runs"),
            );
        }
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn host_between() {
        let g = with_host();
        let (here, there) = (compiled(&g, Device::cpu()), compiled(&g, Device::cuda(0)));
        // The same number of places several times, and others.
        for seed in [0, 0, 0, 1, 2, 0, 3, 1, 1, 2, 2, 2] {
            let inputs = [HostTensor::from_slice(&[200], &data(200, seed)).expect("as many")];
            assert_close(
                &run(&there, &inputs).expect("it runs"),
                &run(&here, &inputs).expect("it runs"),
            );
        }
    }

    /// Runs loops with so many rows, in this order.
    fn looped(rows: impl Iterator<Item = usize>) {
        let g = with_loops();
        let (here, there) = (compiled(&g, Device::cpu()), compiled(&g, Device::cuda(0)));
        for (call, n) in rows.enumerate() {
            let of = |shape: &[usize], seed| HostTensor::from_slice(shape, &data(shape.iter().product(), seed));
            let inputs = [of(&[n, 24], call), of(&[24, 24], call + 1)].map(|t| t.expect("as many"));
            let found = run(&there, &inputs).expect("it runs");
            assert_close(&found, &run(&here, &inputs).expect("it runs"));
        }
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn loops() {
        looped(std::iter::repeat_n(30, times()));
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn loops_of_sizes() {
        looped([1, 1, 0, 0, 2, 2, 30, 99, 99, 1, 0, 30].into_iter());
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn rows_that_are_not_aligned() {
        let g = Graph::new("rows");
        let (m, n) = (g.symbol("m", 0..=10), g.symbol("n", 0..=30_000));
        let (c, x) = (g.input("c", DType::F32, [&n]), g.input("x", DType::F32, [&m, &n]));
        let results = g.repeat(&m).carry(&c).slice(&x, 0).record(|i| {
            let y = &i.carried[0] * 0.5 + &i.slices[0];
            i.stack(&(&y + 1.0), 0);
            vec![y]
        });
        g.output("last", &results[0]);
        g.output("all", &results[1]);
        let (here, there) = (compiled(&g, Device::cpu()), compiled(&g, Device::cuda(0)));
        for (m, n) in [(6, 5), (3, 20_001), (4, 16), (2, 1)] {
            let of = |shape: &[usize], seed| HostTensor::from_slice(shape, &data(shape.iter().product(), seed));
            let inputs = [of(&[n], 1), of(&[m, n], 2)].map(|t| t.expect("as many"));
            let expected = run(&here, &inputs).expect("it runs");
            for _ in 0..3 {
                assert_close(&run(&there, &inputs).expect("it runs"), &expected);
            }
        }
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn samples() {
        for outside in [Outside::Border, Outside::Reflection] {
            let g = Graph::new("samples");
            let (x, at) = (
                g.input("x", DType::F32, [1, 2, 9, 9]),
                g.input("at", DType::F32, [1, 30, 30, 2]),
            );
            let options = GridSample::new(Interpolation::Cubic(-0.75)).outside(outside);
            // So many wide values that a block cannot share them.
            let y = x.cast(DType::F64).grid_sample(&at.cast(DType::F64), &options);
            g.output("y", &y.cast(DType::F32));
            let (here, there) = (compiled(&g, Device::cpu()), compiled(&g, Device::cuda(0)));
            let of = |shape: &[usize], seed| HostTensor::from_slice(shape, &data(shape.iter().product(), seed));
            let inputs = [of(&[1, 2, 9, 9], 1), of(&[1, 30, 30, 2], 2)].map(|t| t.expect("as many"));
            assert_close(
                &run(&there, &inputs).expect("it runs"),
                &run(&here, &inputs).expect("it runs"),
            );
        }
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn threads() {
        let g = network();
        let (here, there) = (compiled(&g, Device::cpu()), compiled(&g, Device::cuda(0)));
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (here, there) = (&here, &there);
                scope.spawn(move || {
                    for call in 0..6 {
                        // Larger sizes move the arenas.
                        let inputs = network_inputs([20, 3, 60, 20, 60, 3][call], thread * 10 + call);
                        let expected = run(here, &inputs).expect("it runs");
                        assert_close(&run(there, &inputs).expect("it runs"), &expected);
                    }
                });
            }
        });
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn fault() {
        let there = compiled(&network(), Device::cuda(0));
        let failed = (0..10).find_map(|call| run(&there, &network_inputs(30, call)).err());
        let message = failed.expect("a launch fails");
        assert!(message.contains("CUDA_ERROR_LAUNCH_FAILED"), "{message}");
        assert!(
            message.contains("the graph of kernel `kernel0` to kernel `"),
            "{message}"
        );
        let again = run(&there, &network_inputs(30, 0)).expect_err("the device is lost");
        assert!(again.contains("is lost since"), "{again}");
    }
}
