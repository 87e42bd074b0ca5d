//! States that stay on devices between calls, which are simulated: values whoever calls, what is copied, faults, and memory that is given
//! back. The numbers are such that arithmetic is exact.

use std::sync::Arc;

use tlc_ir::graph::Graph;
use tlc_ir::interp;
use tlc_ir::plan::verify::check;
use tlc_ir::plan::{DeviceId, Plan};
use tlc_ir::rng::Rng;
use tlc_ir::target::{Cpu, Gpu};
use tlc_ir::text::{no_data, parse_graph};
use tlc_ir::{DType, HostTensor};
use tlc_passes::Options;
use tlc_passes::devices::{Devices, Place, StateBinding};
use tlc_runtime::cpu::jit;
use tlc_runtime::driver::{
    Emitters, Executable, Load, Sources, StateBytes, StateMemory, StateView, Stopped, TensorView,
};
use tlc_runtime::memory::BufferPool;
use tlc_runtime::pool::Pool;
use tlc_runtime::simulated::{Moved, Simulated};

/// Of its states `w` may be updated where it is, `m` needs the old `w`, `n` counts, `c` is only read and `made` only set.
const STEP: &str = "graph @step(%w: f64[6], %m: f64[6], %n: i64[], %c: f64[6], %x: f64[6]) {
  %0 = sub %w, %m : f64[6]
  %1 = add %w, %x : f64[6]
  %2 = const 1 : i64[]
  %3 = add %n, %2 : i64[]
  %4 = add %0, %c : f64[6]
  %5 = permute %4 {axes=[0]} : f64[6]
  %6 = reduce add %5 {axes=[0]} : f64[]
  return %0 as w, %1 as m, %3 as n, %4 as made, %6 as sum
}";

/// A step that writes what it reads, in place.
const SUM: &str = "graph @sum(%w: f64[6], %x: f64[6]) {
  %0 = add %w, %x : f64[6]
  return %0 as w, %0 as y
}";

fn states() -> Vec<StateBinding> {
    let state = |input, output| StateBinding { input, output };
    vec![
        state(Some(0), Some(0)),
        state(Some(1), Some(1)),
        state(Some(2), Some(2)),
        state(Some(3), None),
        state(None, Some(3)),
    ]
}

fn graph(text: &str) -> Graph {
    parse_graph(text, &mut no_data).expect("a graph")
}

fn planned(graph: &Graph, states: Vec<StateBinding>, gpus: usize, place: Option<Place>) -> Plan {
    let host = Cpu::modest(Arc::new(jit::emitter().expect("a known machine")));
    let gpus = (0..gpus).map(|_| Gpu::any(Arc::new(tlc_codegen::cuda::emitter())));
    let mut options = Options {
        states,
        ..Options::new(Devices::new(host, gpus))
    };
    options.place = place.unwrap_or(options.place);
    let plan = tlc_passes::compile(graph, &options).expect("it compiles").planned.plan;
    check(&plan).expect("a valid plan");
    Arc::unwrap_or_clone(plan)
}

fn load(plan: Plan, simulated: &Simulated) -> Executable {
    let mut devices = simulated.devices();
    devices.truncate(plan.devices.len() - 1);
    let load = Load {
        threads: Arc::new(Pool::new(1)),
        compiling: 1,
        ahead: None,
        buffers: BufferPool::new(),
        packer: tlc_passes::memory::pack,
        emitters: Emitters::default(),
        devices,
    };
    Executable::load(plan, load).expect("it loads")
}

fn floats(values: impl IntoIterator<Item = f64>) -> HostTensor {
    let values: Vec<f64> = values.into_iter().collect();
    HostTensor::from_slice(&[values.len()], &values).expect("as many")
}

fn view(t: &HostTensor) -> TensorView<'_> {
    TensorView {
        dtype: t.dtype(),
        shape: t.shape(),
        data: t.bytes(),
    }
}

/// The states of [`STEP`]: their memory, and what it holds.
struct Held {
    memory: Vec<StateMemory>,
    expected: Vec<HostTensor>,
}

impl Held {
    fn new() -> Held {
        let expected = vec![
            floats((1..7).map(f64::from)),
            floats([2.0; 6]),
            HostTensor::from_slice(&[], &[0i64]).expect("one"),
            floats((1..7).map(|i| f64::from(i * i))),
            floats([0.0; 6]),
        ];
        let memory = expected.iter().map(|t| StateMemory::of(t.bytes()).expect("memory"));
        Held {
            memory: memory.collect(),
            expected,
        }
    }

    /// A call; returns the sum.
    fn call(&mut self, executable: &Executable, x: &HostTensor) -> Result<f64, Stopped> {
        let declared = &executable.plan().states;
        let all = self.memory.iter_mut().zip(&self.expected).zip(declared);
        let mut views: Vec<StateView<'_>> = all
            .map(|((memory, tensor), declared)| StateView {
                dtype: tensor.dtype(),
                shape: tensor.shape(),
                data: match declared.set {
                    Some(_) => StateBytes::Own(memory),
                    None => StateBytes::Shared(memory),
                },
            })
            .collect();
        let outputs = executable.run_updating(&[view(x)], &mut views)?;
        Ok(f64::from_ne_bytes(outputs[0].bytes().try_into().expect("one number")))
    }

    /// What a call with that input leaves, and its sum, as the interpreter of graphs says.
    fn step(&self, graph: &Graph, x: &HostTensor) -> (Vec<HostTensor>, f64) {
        let mut given = self.expected[..4].to_vec();
        given.push(x.clone());
        let found = interp::interpret(graph, &given, &interp::Options::default()).expect("it is interpreted");
        let mut next = found[..3].to_vec();
        next.extend([self.expected[3].clone(), found[3].clone()]);
        (next, found[4].as_slice::<f64>().expect("f64")[0])
    }

    fn is_as_expected(&self) -> Result<(), String> {
        for (number, (memory, expected)) in self.memory.iter().zip(&self.expected).enumerate() {
            let mut found = vec![0; memory.bytes()];
            memory.read_into(&mut found).map_err(|e| e.to_string())?;
            if found != expected.bytes() {
                return Err(format!("state {number}: {found:?} for {:?}", expected.bytes()));
            }
        }
        Ok(())
    }
}

/// Executables of one graph: for the host, for each of two devices, and for all three.
fn executables(graph: &Graph, simulated: &Simulated) -> Vec<Executable> {
    let mut all = vec![
        load(planned(graph, states(), 0, None), simulated),
        load(planned(graph, states(), 1, None), simulated),
        load(planned(graph, states(), 2, None), simulated),
    ];
    for seed in 1..4 {
        let place = Some(Place::Scattered { seed });
        all.push(load(planned(graph, states(), 2, place), simulated));
    }
    all
}

#[test]
fn whoever_calls_finds_what_was_set_last() {
    let graph = graph(STEP);
    for seed in 0..40u64 {
        let simulated = Simulated::new(2, seed);
        let all = executables(&graph, &simulated);
        let mut rng = Rng::new(seed);
        let mut held = Held::new();
        for round in 0..12 {
            let which = rng.below(all.len());
            let x = floats((0..6).map(|_| rng.range(-3, 3) as f64));
            let (next, sum) = held.step(&graph, &x);
            let found = held.call(&all[which], &x).expect("it runs");
            assert_eq!(found, sum, "seed {seed}, call {round} of executable {which}");
            held.expected = next;
            match rng.below(4) {
                // Looked at.
                0 => {
                    let at = rng.below(held.memory.len());
                    let found = held.memory[at].on_host().expect("it is fetched");
                    assert_eq!(found, held.expected[at].bytes(), "seed {seed}, call {round}");
                }
                // Given another value.
                1 => {
                    let at = rng.below(2);
                    held.expected[at] = floats((0..6).map(|_| rng.range(-9, 9) as f64));
                    held.memory[at].overwrite(held.expected[at].bytes()).expect("memory");
                }
                2 => held
                    .is_as_expected()
                    .unwrap_or_else(|e| panic!("seed {seed}, call {round}: {e}")),
                _ => {}
            }
        }
        held.is_as_expected().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        drop(all);
        let live: u64 = held.memory.iter().map(StateMemory::device_bytes).sum();
        // Buffers of nothing have a byte; here are none.
        assert_eq!(
            simulated.live_bytes() as u64,
            live,
            "seed {seed}: what is left is the states'"
        );
        drop(held);
        assert_eq!(simulated.live_bytes(), 0, "seed {seed}");
    }
}

#[test]
fn a_call_copies_its_inputs_and_outputs_alone() {
    let graph = graph(STEP);
    let simulated = Simulated::new(1, 5);
    let executable = load(planned(&graph, states(), 1, None), &simulated);
    let plan = executable.plan();
    let on_host = plan
        .slots
        .iter()
        .any(|s| s.device == DeviceId::HOST && matches!(s.storage, tlc_ir::plan::Storage::State(_)));
    assert!(!on_host, "the device has all states");
    let mut held = Held::new();
    let x = floats([1.0; 6]);
    held.call(&executable, &x).expect("it runs");
    let first = simulated.moved();
    // `made` is not read.
    let read: usize = held.memory[..4].iter().map(StateMemory::bytes).sum();
    assert_eq!(
        first,
        Moved {
            up: (read + 48) as u64,
            down: 8
        }
    );
    for _ in 0..10 {
        held.call(&executable, &x).expect("it runs");
    }
    let ten = simulated.moved();
    assert_eq!((ten.up - first.up, ten.down - first.down), (480, 80));
    // What was only read is still in the host's memory; what was set is fetched once.
    for _ in 0..2 {
        held.memory[3].on_host().expect("it is here");
        held.memory[0].on_host().expect("it is fetched");
    }
    assert_eq!(simulated.moved().down - ten.down, 48);
    // A call that sets it makes that copy stale, and needs none.
    held.call(&executable, &x).expect("it runs");
    assert!(!held.memory[0].is_on_host() && held.memory[3].is_on_host());
    assert_eq!(simulated.moved().up - ten.up, 48);
}

#[test]
fn what_callers_share_is_copied_once() {
    let graph = graph(STEP);
    let simulated = Simulated::new(1, 3);
    let all: Vec<Executable> = (0..2)
        .map(|_| load(planned(&graph, states(), 1, None), &simulated))
        .collect();
    let shared = StateMemory::of(Held::new().expected[3].bytes()).expect("memory");
    let x = floats([1.0; 6]);
    std::thread::scope(|scope| {
        for executable in &all {
            let (shared, x) = (&shared, &x);
            scope.spawn(move || {
                let mut own = Held::new();
                let mut others: Vec<StateMemory> = own.memory.drain(..).collect();
                let (first, last) = others.split_at_mut(3);
                let data = first.iter_mut().map(StateBytes::Own);
                let data = data
                    .chain([StateBytes::Shared(shared)])
                    .chain([StateBytes::Own(&mut last[1])]);
                let tensors = own.expected.iter();
                let mut views: Vec<StateView<'_>> = tensors
                    .zip(data)
                    .map(|(t, data)| StateView {
                        dtype: t.dtype(),
                        shape: t.shape(),
                        data,
                    })
                    .collect();
                executable.run_updating(&[view(x)], &mut views).expect("it runs");
            });
        }
    });
    // Twice `w`, `m`, `n` and `x`, and once `c`.
    assert_eq!(simulated.moved().up, 2 * (48 + 48 + 8 + 48) + 48);
}

#[test]
fn a_call_that_fails_leaves_states_whole_or_says_that_it_does_not() {
    let graph = graph(STEP);
    let (mut whole, mut torn) = (0, 0);
    for seed in 0..60u64 {
        let simulated = Simulated::new(2, seed);
        let all = executables(&graph, &simulated);
        let mut rng = Rng::new(seed);
        let mut held = Held::new();
        for round in 0..10 {
            let which = rng.below(all.len());
            let x = floats((0..6).map(|_| rng.range(-3, 3) as f64));
            let (next, _) = held.step(&graph, &x);
            if rng.chance(1, 2) {
                simulated.fail_after(rng.below(8) as u64);
            }
            match held.call(&all[which], &x) {
                Ok(_) => held.expected = next,
                Err(Stopped { torn: false, .. }) => {
                    whole += 1;
                    held.is_as_expected()
                        .unwrap_or_else(|e| panic!("seed {seed}, call {round} of executable {which}: {e}"));
                }
                Err(Stopped { torn: true, .. }) => {
                    torn += 1;
                    held = Held::new();
                }
            }
            // A fault that no call met is met by nothing else.
            simulated.fail_after(u64::MAX / 2);
        }
    }
    assert!(whole > 20 && torn > 20, "{whole} whole, {torn} torn");
}

#[test]
fn a_first_call_that_fails_leaves_the_value_that_the_host_has() {
    let graph = graph(SUM);
    let binding = StateBinding {
        input: Some(0),
        output: Some(0),
    };
    for jobs in 0..6 {
        let simulated = Simulated::new(1, jobs);
        let executable = load(planned(&graph, vec![binding], 1, None), &simulated);
        let first = floats((1..7).map(f64::from));
        let mut memory = StateMemory::of(first.bytes()).expect("memory");
        let call = |memory: &mut StateMemory| {
            let mut states = [StateView {
                dtype: DType::F64,
                shape: &[6],
                data: StateBytes::Own(memory),
            }];
            executable
                .run_updating(&[view(&floats([1.0; 6]))], &mut states)
                .map(drop)
        };
        simulated.fail_after(jobs);
        match call(&mut memory) {
            Ok(()) => {
                assert!(jobs > 2, "{jobs}");
                // On the device alone now.
                simulated.fail_after(1);
                assert!(call(&mut memory).expect_err("it fails").torn, "{jobs}");
            }
            Err(stopped) => {
                assert!(!stopped.torn, "{jobs}");
                assert_eq!(memory.on_host().expect("it is here"), first.bytes(), "{jobs}");
                simulated.fail_after(u64::MAX / 2);
                call(&mut memory).expect("it runs");
                let expected = floats((2..8).map(f64::from));
                assert_eq!(memory.on_host().expect("it is fetched"), expected.bytes(), "{jobs}");
            }
        }
    }
}

#[test]
fn states_count_in_the_need_of_a_call() {
    let graph = graph(STEP);
    let simulated = Simulated::new(1, 0);
    let executable = load(planned(&graph, states(), 1, None), &simulated);
    let x = floats([0.0; 6]);
    let need = |held: &Held| {
        let views = [view(&x)];
        let read = held.expected[..4].iter().map(view);
        let read: Vec<_> = read.map(|v| (&v).into()).collect();
        let resident = |number: usize, device: &Arc<_>| held.memory[number].is_on(device);
        let need = executable.memory(Sources::new(&views, &read), &resident, &|_| false);
        need.expect("they fit").devices.remove(0)
    };
    let mut held = Held::new();
    let before = need(&held);
    assert_eq!(before.states, 4 * 48 + 8);
    assert_eq!(before.missing, before.total());
    held.call(&executable, &x).expect("it runs");
    let after = need(&held);
    assert_eq!(
        (after.states, after.total(), after.missing),
        (before.states, before.total(), 0)
    );
}
