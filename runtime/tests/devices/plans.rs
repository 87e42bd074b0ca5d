//! The driver on several devices, which are simulated: what is computed on them is what the interpreter of graphs says, in every order
//! that a plan's waits allow, and what a plan lacks shows.

use std::sync::Arc;

use tlc_ir::graph::Graph;
use tlc_ir::interp;
use tlc_ir::plan::verify::check;
use tlc_ir::plan::{DeviceId, Plan, Step};
use tlc_ir::target::{Cpu, EmitterId, Gpu};
use tlc_ir::text::parse_graph;
use tlc_ir::{DType, HostTensor};
use tlc_passes::Options;
use tlc_passes::devices::{Devices, Place, StateBinding};
use tlc_runtime::binding::Binder;
use tlc_runtime::cpu::jit;
use tlc_runtime::driver::{Emitters, Executable, Load, RunError, TensorView};
use tlc_runtime::memory::BufferPool;
use tlc_runtime::null;
use tlc_runtime::pool::Pool;
use tlc_runtime::simulated::Simulated;

/// A product and a softmax, a loop whose body reads a constant and whose result is stacked along the last axis, a sort, a table whose
/// sums are computed once.
const MODEL: &str = "graph @m(%x: f32[n, 9], %p: f32[9, 9]) where n in 1..=64 {
  %0 = tanh %x : f32[n, 9]
  %1 = reduce max %0 {axes=[1]} : f32[n]
  %2 = reshape %1 : f32[n, 1]
  %3 = expand %2 : f32[n, 9]
  %4 = sub %0, %3 : f32[n, 9]
  %5 = exp %4 : f32[n, 9]
  %6 = const opaque \"w\" : f32[9, 9]
  %7 = exp %6 : f32[9, 9]
  %8 = reduce add %7 {axes=[0]} : f32[9]
  %9 = expand %8 : f32[n, 9]
  %10 = mul %5, %9 : f32[n, 9]
  %11 = einsum %10, %p {nk,km->nm} : f32[n, 9]
  %20 = loop %11, %p {trip=3, carried=1, stacks=[1], symbols=[n]} body @step(%i: i64[], %h: f32[k, 9], %q: f32[9, 9])
      where k in 1..=64 {
    %0 = einsum %h, %q {ab,bc->ac} : f32[k, 9]
    %1 = const 0.5 : f32[]
    %2 = expand %1 : f32[k, 9]
    %3 = mul %0, %2 : f32[k, 9]
    %4 = tanh %3 : f32[k, 9]
    %5 = reduce add %4 {axes=[1]} : f32[k]
    return %4, %5
  } : (f32[n, 9], f32[n, 3])
  %21 = project %20 {result=0} : f32[n, 9]
  %22 = project %20 {result=1} : f32[n, 3]
  %23 = call sort %21 {axis=1, count=9, descending} : (f32[n, 9], i64[n, 9])
  %24 = project %23 {result=0} : f32[n, 9]
  %25 = add %24, %10 : f32[n, 9]
  return %25 as y, %22 as s
}
";

/// Twice the places of the elements that are not 0: a size that data decides.
const SELECTED: &str = "graph @selected(%x: f32[n]) where n in 1..=64, k upto n {
  %0 = mul %x, %x : f32[n]
  %1 = call nonzero %0 {count=k} : (i64[1, k], i64[])
  %2 = project %1 {result=0} : i64[1, k]
  %3 = reshape %2 : i64[k]
  %4 = convert %3 : f32[k]
  %5 = add %4, %4 : f32[k]
  return %5 as places
}
";

/// Independent chains on both sides, so that queues have something to be out of order with.
const CHAINS: &str = "graph @chains(%a: f32[20], %b: f32[20], %m: f32[20, 20]) {
  %0 = exp %a : f32[20]
  %1 = einsum %0, %m {a,ab->b} : f32[20]
  %2 = tanh %b : f32[20]
  %3 = einsum %2, %m {a,ba->b} : f32[20]
  %4 = mul %1, %3 : f32[20]
  %5 = einsum %4, %m {a,ab->b} : f32[20]
  %6 = add %5, %2 : f32[20]
  return %6 as y
}";

fn numbers(seed: u64, shape: &[usize]) -> HostTensor {
    let count: usize = shape.iter().product();
    let number = |i: u64| {
        let mixed = (i + 1)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .wrapping_add(seed.wrapping_mul(0xd134_2543_de82_ef95));
        ((mixed >> 40) as f32 / (1u64 << 24) as f32) - 0.5
    };
    let bytes: Vec<u8> = (0..count as u64).flat_map(|i| number(i).to_ne_bytes()).collect();
    HostTensor::from_bytes(DType::F32, shape, &bytes).expect("as many bytes as the shape says")
}

fn graph(text: &str) -> Graph {
    let mut data = |_: &str, _: DType, shape: &[usize]| Ok(numbers(7, shape));
    parse_graph(text, &mut data).expect("a valid graph")
}

fn devices(gpus: usize) -> Devices {
    let host = Cpu::modest(Arc::new(jit::emitter().expect("a known machine")));
    Devices::new(
        host,
        (0..gpus).map(|_| Gpu::any(Arc::new(tlc_codegen::cuda::emitter()))),
    )
}

/// The plan for the last device, or scattered.
fn planned(graph: &Graph, gpus: usize, scattered: Option<u64>, states: &[StateBinding]) -> Plan {
    let mut options = Options {
        states: states.to_vec(),
        ..Options::new(devices(gpus))
    };
    if let Some(seed) = scattered {
        options.place = Place::Scattered { seed };
    }
    let plan = tlc_passes::compile(graph, &options).expect("it compiles").planned.plan;
    check(&plan).expect("a valid plan");
    Arc::unwrap_or_clone(plan)
}

fn load(plan: Plan, simulated: &Simulated) -> Result<Executable, RunError> {
    let load = Load {
        threads: Arc::new(Pool::new(2)),
        compiling: 1,
        ahead: None,
        buffers: BufferPool::new(),
        packer: tlc_passes::memory::pack,
        emitters: Emitters::default(),
        devices: simulated.devices(),
    };
    Executable::load(plan, load)
}

fn view(t: &HostTensor) -> TensorView<'_> {
    TensorView {
        dtype: t.dtype(),
        shape: t.shape(),
        data: t.bytes(),
    }
}

fn run(executable: &Executable, inputs: &[HostTensor]) -> Result<Vec<HostTensor>, RunError> {
    let views: Vec<TensorView<'_>> = inputs.iter().map(view).collect();
    let outputs = executable.run(&views)?;
    let tensor = |o: &tlc_runtime::driver::OutputTensor| HostTensor::from_bytes(o.dtype, &o.shape, o.bytes());
    Ok(outputs.iter().map(|o| tensor(o).expect("a result")).collect())
}

/// The outputs are the interpreter's, within its bounds.
fn judge(graph: &Graph, inputs: &[HostTensor], found: &[HostTensor]) -> Result<(), String> {
    let options = interp::Options::default();
    let expected = interp::interpret_with_bounds(graph, inputs, &options).map_err(|e| e.to_string())?;
    let shapes = interp::interpret(graph, inputs, &options).map_err(|e| e.to_string())?;
    for ((found, bounded), exact) in found.iter().zip(&expected).zip(&shapes) {
        if found.shape() != exact.shape() {
            return Err(format!("{:?} for {:?}", found.shape(), exact.shape()));
        }
        interp::compare(found, bounded).map_err(|e| e.to_string())?;
    }
    Ok(())
}

#[test]
fn plans_for_several_devices_compute_what_the_interpreter_says() {
    for (text, shapes) in [
        (MODEL, vec![vec![5, 9], vec![9, 9]]),
        (SELECTED, vec![vec![13]]),
        (CHAINS, vec![vec![20], vec![20], vec![20, 20]]),
    ] {
        let graph = graph(text);
        for seed in 0..12u64 {
            let gpus = 1 + (seed % 2) as usize;
            let plan = planned(&graph, gpus, (seed > 1).then_some(seed), &[]);
            let simulated = Simulated::new(gpus, seed);
            let executable = load(plan, &simulated).expect("it loads");
            // Later calls find what earlier ones left in memory.
            for round in 0..2 {
                let inputs: Vec<HostTensor> = shapes.iter().map(|s| numbers(seed + round, s)).collect();
                let found = run(&executable, &inputs).unwrap_or_else(|e| panic!("{} {seed}: {e}", graph.name));
                judge(&graph, &inputs, &found).unwrap_or_else(|e| panic!("{} {seed}: {e}", graph.name));
            }
            assert!(
                seed > 1 || simulated.jobs() > 0,
                "{} {seed}: nothing ran there",
                graph.name
            );
            drop(executable);
            assert_eq!(simulated.live_bytes(), 0, "{} {seed}", graph.name);
        }
    }
}

/// How many of some seeds show that a plan is wrong.
fn seen(graph: &Graph, shapes: &[&[usize]], broken: &Plan) -> usize {
    let shows = |seed: &u64| {
        let simulated = Simulated::new(broken.devices.len() - 1, *seed);
        let inputs: Vec<HostTensor> = shapes.iter().map(|s| numbers(*seed, s)).collect();
        let executable = load(broken.clone(), &simulated).expect("it loads");
        match run(&executable, &inputs) {
            Ok(found) => judge(graph, &inputs, &found).is_err(),
            Err(_) => true,
        }
    };
    (0..12u64).filter(shows).count()
}

#[test]
fn each_wait_that_is_missing_shows() {
    let graph = graph(CHAINS);
    let shapes: [&[usize]; 3] = [&[20], &[20], &[20, 20]];
    let plan = planned(&graph, 2, Some(3), &[]);
    assert_eq!(seen(&graph, &shapes, &plan), 0);
    let mut waits = 0;
    for (step, turn) in plan.turns.iter().enumerate() {
        for wait in 0..turn.waits.len() {
            let mut broken = plan.clone();
            broken.turns[step].waits.remove(wait);
            assert!(check(&broken).is_err(), "step {step} does not need wait {wait}");
            assert!(
                seen(&graph, &shapes, &broken) > 0,
                "wait {wait} of step {step} is not missed\n{plan}"
            );
            waits += 1;
        }
    }
    assert!(waits > 3, "{waits} waits");
}

#[test]
fn each_transfer_that_is_missing_shows() {
    let graph = graph(CHAINS);
    let shapes: [&[usize]; 3] = [&[20], &[20], &[20, 20]];
    let plan = planned(&graph, 2, Some(3), &[]);
    let mut transfers = 0;
    for step in 0..plan.steps.len() {
        if let Step::Copy { .. } = plan.steps[step] {
            let mut broken = plan.clone();
            broken.steps[step] = Step::Group(Vec::new());
            assert!(seen(&graph, &shapes, &broken) > 0, "step {step} is not missed\n{plan}");
            transfers += 1;
        }
    }
    assert!(transfers > 3, "{transfers} transfers");
}

/// Who watches a call sees what steps left in the memory of other devices, and who times it waits for each step.
#[test]
fn watched_and_timed_calls_go_step_by_step() {
    let graph = graph(CHAINS);
    let plan = planned(&graph, 2, Some(3), &[]);
    let simulated = Simulated::new(2, 5);
    let executable = load(plan.clone(), &simulated).expect("it loads");
    let inputs: Vec<HostTensor> = [vec![20], vec![20], vec![20, 20]]
        .iter()
        .map(|s| numbers(2, s))
        .collect();
    let views: Vec<TensorView<'_>> = inputs.iter().map(view).collect();
    let mut seen = 0;
    let watched = executable.run_watched(&views, &mut |w| {
        if w.begins {
            return;
        }
        plan.steps[w.step].visit_slots(
            &mut |slot, _| {
                let elsewhere = plan.slots[slot.0 as usize].device != DeviceId::HOST;
                let bytes = w.slot(slot).expect("every slot has memory");
                let values = bytes
                    .chunks_exact(4)
                    .map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
                assert!(
                    values.into_iter().all(|v| v.is_finite()),
                    "slot {} at step {}",
                    slot.0,
                    w.step
                );
                seen += usize::from(elsewhere);
            },
            &plan.kernels,
        );
    });
    assert!(seen > 10, "{seen} slots of other devices");
    let mut y = vec![0f32; 20];
    let mut times = Vec::new();
    let mut outputs = [bytemuck::cast_slice_mut::<f32, u8>(&mut y)];
    executable
        .run_profiled(&views, &mut outputs, &mut times)
        .expect("it runs");
    assert_eq!(times.len(), plan.steps.len());
    let watched = watched.expect("it runs");
    assert_eq!(watched[0].bytes(), bytemuck::cast_slice::<f32, u8>(&y));
}

/// What a loop's body reads and no iteration changes is on its device before the loop begins.
#[test]
fn constants_of_a_loop_are_copied_once() {
    let text = |trip: usize| {
        format!(
            "graph @steps(%x: f32[9]) {{
  %0 = loop %x {{trip={trip}, carried=1}} body @step(%i: i64[], %h: f32[9]) {{
    %0 = const opaque \"w\" : f32[9]
    %1 = add %h, %0 : f32[9]
    %2 = tanh %1 : f32[9]
    return %2
  }} : (f32[9])
  %1 = project %0 {{result=0}} : f32[9]
  return %1 as y
}}"
        )
    };
    let transfers = |trip: usize| {
        let graph = graph(&text(trip));
        let plan = planned(&graph, 1, None, &[]);
        let binder = Binder {
            plan: &plan,
            given: &[],
            idle: &[],
            packer: tlc_passes::memory::pack,
        };
        let sizes = binder.bind(vec![vec![9]]).expect("sizes");
        let (counts, _) = null::call(&plan, &sizes).expect("it is counted");
        assert_eq!(counts.launches, trip as u64);
        let inputs = [numbers(3, &[9])];
        let simulated = Simulated::new(1, 1);
        let executable = load(plan, &simulated).expect("it loads");
        let found = run(&executable, &inputs).expect("it runs");
        judge(&graph, &inputs, &found).expect("what the interpreter says");
        counts.transfers
    };
    assert_eq!((transfers(2), transfers(7)), (2, 2), "the input and the output");
}

#[test]
fn a_device_without_room_is_an_error() {
    let text = "graph @large(%x: f32[n]) where n in 1..=1000000000 {
  %0 = exp %x : f32[n]
  %1 = reduce add %0 {axes=[0]} : f32[]
  return %1 as y
}";
    let graph = graph(text);
    let plan = planned(&graph, 1, None, &[]);
    let simulated = Simulated::new(1, 0);
    let executable = load(plan, &simulated).expect("it loads");
    // Nothing is read: the call fails before it begins.
    let large = HostTensor::zeros(DType::F32, &[300_000_000]).expect("pages that nothing touches");
    let error = run(&executable, &[large]).expect_err("more than the device has");
    assert!(
        error.to_string().starts_with("device 1: no memory left for "),
        "{error}"
    );
    // It is as good as new.
    let small = numbers(1, &[10]);
    let found = run(&executable, std::slice::from_ref(&small)).expect("it fits");
    judge(&graph, &[small], &found).expect("the sum");
}

#[test]
fn emitters_that_do_not_exist_are_errors() {
    let graph = graph(CHAINS);
    let plan = planned(&graph, 0, None, &[]);
    let load = Load {
        threads: Arc::new(Pool::new(1)),
        compiling: 1,
        ahead: None,
        buffers: BufferPool::new(),
        packer: tlc_passes::memory::pack,
        emitters: Emitters {
            kernels: vec![EmitterId(4); plan.kernels.len()],
            bodies: Vec::new(),
        },
        devices: Vec::new(),
    };
    let error = Executable::load(plan, load).err().expect("no such emitter");
    let known = jit::emitters().expect("this machine's").len();
    assert_eq!(
        error.to_string(),
        format!("kernel 0: there is no emitter 4; this machine has {known}")
    );
}

#[test]
fn a_plan_for_other_devices_is_refused() {
    let plan = planned(&graph(CHAINS), 2, None, &[]);
    let error = load(plan, &Simulated::new(1, 0)).err().expect("refused");
    assert_eq!(error.to_string(), "the plan is for 2 devices beside the host, found 1");
}
