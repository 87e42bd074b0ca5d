//! Graphs with states, memory of the caller that a call reads and updates, against the interpreter.

use tlc_ir::graph::control::mentions_data;
use tlc_ir::interp::{self, Bounded, compare, interpret, interpret_with_bounds};
use tlc_ir::plan::Plan;
use tlc_ir::rng::Rng;
use tlc_ir::testgen::Case;
use tlc_ir::{HostTensor, NodeId};
use tlc_passes::Options;
use tlc_passes::devices::{Devices, Place, StateBinding};
use tlc_runtime::driver::{Executable, OutputTensor, RunError, StateBytes, StateMemory, StateView, TensorView};

pub fn view(t: &HostTensor) -> TensorView<'_> {
    TensorView {
        dtype: t.dtype(),
        shape: t.shape(),
        data: t.bytes(),
    }
}

pub fn to_host(outputs: &[OutputTensor]) -> Vec<HostTensor> {
    let tensor = |o: &OutputTensor| HostTensor::from_bytes(o.dtype, &o.shape, o.bytes());
    outputs.iter().map(|o| tensor(o).expect("a result")).collect()
}

pub fn compare_all(actual: &[HostTensor], exact: &[HostTensor], bounded: &[Bounded]) -> Result<(), String> {
    for (k, ((actual, exact), bounded)) in actual.iter().zip(exact).zip(bounded).enumerate() {
        if actual.shape() != exact.shape() || actual.dtype() != exact.dtype() {
            return Err(format!("output {k}: {:?} for {:?}", actual.shape(), exact.shape()));
        }
        compare(actual, bounded).map_err(|e| format!("output {k}: {e}"))?;
    }
    Ok(())
}

/// Makes some inputs of a graph states, and an output of one: each is read, updated to another value of its type, or both.
fn make_states(case: &mut Case, rng: &mut Rng) -> Vec<StateBinding> {
    let mut states = Vec::new();
    for (k, &input) in case.graph.inputs().to_vec().iter().enumerate() {
        let nodes = case.graph.nodes().map(|(id, _)| id);
        let one = |id: &NodeId| !case.graph.node(*id).kind.is_tuple();
        let alike = nodes.filter(|id| one(id) && case.graph.ty(*id) == case.graph.ty(input));
        let alike: Vec<NodeId> = alike.collect();
        let output = match rng.below(4) {
            0 => None,
            1 | 2 => Some(case.graph.outputs().len() as u32),
            _ => continue,
        };
        if output.is_some() {
            case.graph
                .add_output(&format!("state{k}"), alike[rng.below(alike.len())]);
        }
        let input = Some(k as u32);
        states.push(StateBinding { input, output });
    }
    let last = case.graph.outputs()[0].node;
    let decided = |d| mentions_data(case.graph.symbols(), d);
    if rng.below(3) == 0 && !case.graph.ty(last).shape.iter().any(decided) {
        let output = Some(case.graph.outputs().len() as u32);
        case.graph.add_output("set", last);
        states.push(StateBinding { input: None, output });
    }
    states
}

/// Runs a graph, some of whose inputs and outputs become states, on devices, and compares outputs and new values with the graph's.
/// `prove` is asked about its plan, and `load` makes it run.
pub fn check(
    seed: u64,
    case: &mut Case,
    place: Place,
    devices: Devices,
    prove: &dyn Fn(&Plan) -> Result<(), String>,
    load: &dyn Fn(&Case, &Plan) -> Result<Executable, RunError>,
) -> Result<(), String> {
    let inputs = case.input_data(seed);
    let states = make_states(case, &mut Rng::new(seed));
    let options = Options {
        place,
        // Regrouped contractions would need the graph that was compiled to compare with.
        pipeline: without_paths(None).parse().map_err(|e| format!("passes: {e}"))?,
        states: states.clone(),
        ..Options::new(devices)
    };
    let compiled = tlc_passes::compile(&case.graph, &options).map_err(|e| format!("compile: {e}"))?;
    let plan = &compiled.planned.plan;
    prove(plan)?;
    let options = interp::Options {
        symbols: case.symbols(),
        ..interp::Options::default()
    };
    let exact = interpret(&case.graph, &inputs, &options).map_err(|e| format!("interpreter: {e}"))?;
    let bounded = interpret_with_bounds(&case.graph, &inputs, &options).map_err(|e| format!("interpreter: {e}"))?;
    let executable = load(case, plan).map_err(|e| e.to_string())?;
    let is_state = |k: usize| states.iter().any(|s| s.input == Some(k as u32));
    let views: Vec<TensorView<'_>> = (inputs.iter().enumerate())
        .filter(|(k, _)| !is_state(*k))
        .map(|(_, t)| view(t))
        .collect();
    let mut memory = Vec::new();
    for s in &states {
        let of = match (s.input, s.output) {
            (Some(i), _) => &inputs[i as usize],
            (None, Some(o)) => &exact[o as usize],
            (None, None) => return Err("a state of nothing".into()),
        };
        let bytes = StateMemory::zeros(of.bytes().len());
        memory.push((of.dtype(), of.shape().to_vec(), bytes));
    }
    // A device records the third call, and the fourth is what was recorded.
    for round in 0..4 {
        for (s, (_, _, bytes)) in states.iter().zip(&mut memory) {
            if let Some(i) = s.input {
                let first = inputs[i as usize].bytes();
                bytes.overwrite(first).map_err(|e| e.to_string())?;
            }
        }
        let mut given: Vec<StateView<'_>> = (memory.iter_mut().zip(&plan.states))
            .map(|((dtype, shape, bytes), declared)| StateView {
                dtype: *dtype,
                shape,
                data: match declared.set {
                    Some(_) => StateBytes::Own(bytes),
                    None => StateBytes::Shared(bytes),
                },
            })
            .collect();
        let outputs = executable.run_updating(&views, &mut given).map_err(|e| e.to_string())?;
        let mut outputs = to_host(&outputs).into_iter();
        let mut found = Vec::new();
        for k in 0..exact.len() {
            let state = states.iter().position(|s| s.output == Some(k as u32));
            found.push(match state {
                Some(state) => {
                    let (dtype, shape, bytes) = &memory[state];
                    let bytes = bytes.on_host().map_err(|e| e.to_string())?;
                    HostTensor::from_bytes(*dtype, shape, bytes).map_err(|e| e.to_string())?
                }
                None => outputs.next().ok_or("an output is missing")?,
            });
        }
        compare_all(&found, &exact, &bounded).map_err(|e| format!("call {round}: {e}\n{states:?}"))?;
    }
    Ok(())
}

/// The passes without `einsum-path`.
pub fn without_paths(passes: Option<&str>) -> String {
    let default = tlc_passes::pipeline::Pipeline::default().to_string();
    let names = passes.unwrap_or(&default).split(',');
    names.filter(|p| *p != "einsum-path").collect::<Vec<_>>().join(",")
}
