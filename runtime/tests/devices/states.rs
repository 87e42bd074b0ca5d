//! Calls that update states in the caller's memory.

use std::sync::Arc;

use tlc_ir::DType;
use tlc_ir::target::Gpu;
use tlc_ir::text::{no_data, parse_graph};
use tlc_passes::devices::{Devices, StateBinding};
use tlc_passes::{Options, compile};
use tlc_runtime::driver::{Executable, RunError, StateBytes, StateMemory, StateView, TensorView};
use tlc_runtime::memory::BufferPool;
use tlc_runtime::pool::Pool;

/// A running sum and the number of its rows so far; the output is the mean.
const MEAN: &str = "graph @mean(%sum: f64[4], %count: f64[], %x: f64[4]) {
  %0 = add %sum, %x : f64[4]
  %1 = const 1.0 : f64[]
  %2 = add %count, %1 : f64[]
  %3 = expand %2 : f64[4]
  %4 = div %0, %3 : f64[4]
  return %0 as sum, %2 as count, %4 as mean
}";

fn options() -> Options {
    let cpu = tlc_runtime::target::cpu(
        tlc_runtime::cpu::jit::emitters().expect("a known machine"),
        tlc_runtime::pool::default_threads(),
    );
    let state = |k| StateBinding {
        input: Some(k),
        output: Some(k),
    };
    Options {
        states: vec![state(0), state(1)],
        ..Options::new(cpu)
    }
}

fn load(options: &Options) -> Result<Executable, RunError> {
    let graph = parse_graph(MEAN, &mut no_data).expect("a graph");
    let plan = compile(&graph, options).expect("it compiles").planned.plan;
    Executable::new(
        plan,
        Arc::new(Pool::new(2)),
        BufferPool::new(),
        tlc_passes::memory::pack,
    )
}

fn bytes(values: &[f64]) -> &[u8] {
    bytemuck::cast_slice(values)
}

#[test]
fn states_are_updated_in_the_callers_memory() {
    let executable = load(&options()).expect("it loads");
    let [mut sum, mut count] = [32, 8].map(StateMemory::zeros);
    for round in 1..=5 {
        let x = [1.0f64, 2.0, 3.0, 4.0].map(|v| v * f64::from(round));
        let input = TensorView {
            dtype: DType::F64,
            shape: &[4],
            data: bytes(&x),
        };
        let mut states = [
            StateView {
                dtype: DType::F64,
                shape: &[4],
                data: StateBytes::Own(&mut sum),
            },
            StateView {
                dtype: DType::F64,
                shape: &[],
                data: StateBytes::Own(&mut count),
            },
        ];
        let outputs = executable.run_updating(&[input], &mut states).expect("it runs");
        // 1 + ... + n is n (n + 1) / 2.
        let total = f64::from(round * (round + 1) / 2);
        let expected = [1.0, 2.0, 3.0, 4.0].map(|v| v * total);
        assert_eq!(sum.on_host().expect("it is here"), bytes(&expected));
        assert_eq!(count.on_host().expect("it is here"), bytes(&[f64::from(round)]));
        let mean = expected.map(|v| v / f64::from(round));
        assert_eq!(outputs[0].bytes(), bytes(&mean));
    }
}

#[test]
fn states_that_do_not_fit_are_errors() {
    let executable = load(&options()).expect("it loads");
    let x = [0.0f64; 4];
    let input = TensorView {
        dtype: DType::F64,
        shape: &[4],
        data: bytes(&x),
    };
    let none = executable.run(&[input]).expect_err("no states");
    assert_eq!(
        none.to_string(),
        "the graph has 2 states, found 0: a call with states is Executable::run_with"
    );
    let [mut sum, mut count] = [24, 8].map(StateMemory::zeros);
    let mut states = [
        StateView {
            dtype: DType::F64,
            shape: &[3],
            data: StateBytes::Own(&mut sum),
        },
        StateView {
            dtype: DType::F64,
            shape: &[],
            data: StateBytes::Own(&mut count),
        },
    ];
    let short = executable.run_updating(&[input], &mut states).expect_err("too short");
    let text = "state `sum`: expected f64[4], found shape [3]";
    assert_eq!(short.to_string(), text);
}

#[test]
fn a_plan_for_a_gpu_is_refused() {
    let host = tlc_runtime::target::cpu(
        tlc_runtime::cpu::jit::emitters().expect("a known machine"),
        tlc_runtime::pool::default_threads(),
    );
    let gpu = Gpu::any(Arc::new(tlc_codegen::cuda::emitter()));
    let refused = load(&Options::new(Devices::new(host, [gpu]))).err().expect("refused");
    assert_eq!(
        refused.to_string(),
        "the plan is for 1 devices beside the host, found 0"
    );
}
