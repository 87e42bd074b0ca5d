//! Inputs and outputs that are states: their new values are computed in their own bytes where nothing needs the old ones any longer, and
//! every result is that of the graph without states.

use crate::oracle::generate::{Rng, graph};
use crate::oracle::stages::{cpu, describe, gpu, scattered};
use tlc_ir::plan::interp::{interpret_bound, interpret_with_states};
use tlc_ir::plan::verify::{check, verify_layout};
use tlc_ir::plan::{Plan, Step};
use tlc_ir::text::{no_data, parse_graph, parse_module};
use tlc_ir::{Graph, HostTensor};
use tlc_passes::devices::StateBinding;
use tlc_passes::memory::{AliasReason, pack};
use tlc_passes::{Compiled, Options, compile};

fn both(input: u32, output: u32) -> StateBinding {
    StateBinding {
        input: Some(input),
        output: Some(output),
    }
}

fn with_states(graph: &Graph, states: &[StateBinding]) -> Compiled {
    let options = Options {
        states: states.to_vec(),
        ..cpu(128)
    };
    let compiled = compile(graph, &options).expect("it compiles");
    check(&compiled.planned.plan).expect("the plan is right");
    compiled
}

fn copies(plan: &Plan) -> usize {
    plan.steps.iter().filter(|s| matches!(s, Step::Copy { .. })).count()
}

fn parsed(text: &str) -> Graph {
    parse_graph(text, &mut no_data).expect("a graph")
}

#[test]
fn a_sum_is_updated_in_place_and_no_step_copies_it() {
    let g = parsed("graph @f(%s: f32[8], %x: f32[8]) {\n  %0 = add %s, %x : f32[8]\n  return %0 as s\n}");
    let compiled = with_states(&g, &[both(0, 0)]);
    let plan = &compiled.planned.plan;
    assert_eq!((plan.inputs.len(), plan.outputs.len(), plan.states.len()), (1, 0, 1));
    assert_eq!(copies(plan), 0, "{plan}");
    assert_eq!(compiled.planned.aliases[0].reason, AliasReason::UpdatesState);
    let x = HostTensor::from_slice(&[8], &[1f32; 8]).unwrap();
    let mut states = [HostTensor::from_slice(&[8], &[2f32; 8]).unwrap()];
    for _ in 0..3 {
        interpret_with_states(plan, None, std::slice::from_ref(&x), &mut states, &[], None).expect("it runs");
    }
    assert_eq!(states[0], HostTensor::from_slice(&[8], &[5f32; 8]).unwrap());
}

/// The reversed old value is read at other elements than those that are written: the new value waits elsewhere.
#[test]
fn a_state_that_is_read_elsewhere_is_copied() {
    let g = parsed(
        "graph @f(%s: f32[8]) {\n  %0 = slice %s {start=[7], step=[-1]} : f32[8]\n  %1 = exp %0 : f32[8]\n  return %1 as s\n}",
    );
    let compiled = with_states(&g, &[both(0, 0)]);
    let plan = &compiled.planned.plan;
    assert_eq!(copies(plan), 1, "{plan}");
    assert_eq!(compiled.planned.aliases[0].reason, AliasReason::StateCopied);
}

/// Two states that change places: at most one of them can be written in place.
#[test]
fn states_that_change_places_keep_their_values() {
    let g = parsed("graph @f(%a: f32[3], %b: f32[3]) {\n  return %b as a, %a as b\n}");
    let compiled = with_states(&g, &[both(0, 0), both(1, 1)]);
    let plan = &compiled.planned.plan;
    let tensor = |v: f32| HostTensor::from_slice(&[3], &[v; 3]).unwrap();
    let mut states = [tensor(1.0), tensor(2.0)];
    interpret_with_states(plan, None, &[], &mut states, &[], None).expect("it runs");
    assert_eq!(states, [tensor(2.0), tensor(1.0)], "{plan}");
}

#[test]
fn the_verifier_refuses_states_that_are_misused() {
    // The sums read the old value before the exponential overwrites it.
    let g = parsed(
        "graph @f(%s: f32[8]) {\n  %0 = scan add %s {axis=0} : f32[8]\n  %1 = exp %s : f32[8]\n  return %1 as s, %0 as y\n}",
    );
    let plan = Plan::clone(&with_states(&g, &[both(0, 0)]).planned.plan);
    assert_eq!(copies(&plan), 0, "{plan}");
    let mut early = plan.clone();
    early.steps.reverse();
    let refused = |plan: &Plan| verified(plan).expect_err("refused");
    assert!(refused(&early).contains("is overwritten by"), "{}", refused(&early));
    let mut kept = plan.clone();
    kept.states[0].set = None;
    assert!(refused(&kept).contains("is written, but"), "{}", refused(&kept));
    let mut unread = plan.clone();
    unread.states[0].read = false;
    assert!(
        refused(&unread).contains("read before it is written"),
        "{}",
        refused(&unread)
    );
    let mut elsewhere = plan.clone();
    elsewhere.states[0].set = Some(plan.outputs[0].slot);
    assert!(refused(&elsewhere).contains("share bytes"), "{}", refused(&elsewhere));
}

fn verified(plan: &Plan) -> Result<(), String> {
    check(plan).map_err(|e| e.to_string())
}

#[test]
fn states_that_are_not_the_graphs_are_errors() {
    let g = parsed("graph @f(%s: f32[8], %x: f32[4]) {\n  %0 = exp %s : f32[8]\n  return %0 as y\n}");
    let refused = |states: &[StateBinding]| {
        let options = Options {
            states: states.to_vec(),
            ..cpu(128)
        };
        compile(&g, &options).err().expect("refused").to_string()
    };
    assert_eq!(refused(&[both(2, 0)]), "state 0: there is no input 2; the graph has 2");
    assert_eq!(
        refused(&[both(0, 0), both(0, 0)]),
        "state 1: input 0 is another state's as well"
    );
    assert_eq!(
        refused(&[both(1, 0)]),
        "state 0: its new value is f32[8], expected f32[4]"
    );
    let none = StateBinding {
        input: None,
        output: None,
    };
    assert_eq!(refused(&[none]), "state 0: neither an input nor an output");
}

/// Random states of random graphs, on a CPU, a GPU and several devices: outputs and new values are those without states, in any order of
/// steps, and the text determines the plan.
#[test]
fn random_states_have_the_values_of_outputs() {
    let (mut in_place, mut copied) = (0, 0);
    for seed in 0..400 {
        let mut case = graph(seed, 8, 600, seed % 3 == 0);
        let mut rng = Rng(seed.wrapping_mul(77) | 1);
        let mut states = Vec::new();
        for (k, &input) in case.graph.inputs().to_vec().iter().enumerate() {
            let ty = case.graph.ty(input).clone();
            let alike: Vec<_> = (case
                .graph
                .nodes()
                .map(|(id, _)| id)
                .filter(|&id| *case.graph.ty(id) == ty))
            .collect();
            match rng.below(4) {
                0 => states.push(StateBinding {
                    input: Some(k as u32),
                    output: None,
                }),
                1 | 2 => {
                    states.push(both(k as u32, case.graph.outputs().len() as u32));
                    case.graph.add_output(&format!("state{k}"), rng.pick(&alike));
                }
                _ => {}
            }
        }
        if rng.chance(30) {
            let last = case.graph.outputs()[0].node;
            let output = Some(case.graph.outputs().len() as u32);
            states.push(StateBinding { input: None, output });
            case.graph.add_output("set", last);
        }
        for machine in [cpu(128), gpu(), scattered(seed)] {
            let counts = agree(&case.graph, &case.inputs, &case.symbols, &states, machine);
            let counts = counts.unwrap_or_else(|e| panic!("seed {seed}: {e}\n{states:?}\n{}", describe(&case.graph)));
            (in_place, copied) = (in_place + counts.0, copied + counts.1);
        }
    }
    assert!(in_place > 100 && copied > 50, "{in_place} in place, {copied} copied");
}

/// How many states are updated in place, and how many are copied.
fn agree(
    graph: &Graph,
    inputs: &[HostTensor],
    symbols: &[i64],
    states: &[StateBinding],
    machine: Options,
) -> Result<(usize, usize), String> {
    let plain = compile(graph, &machine).map_err(|e| e.to_string())?;
    let expected = interpret_bound(&plain.planned.plan, None, inputs, symbols).map_err(|e| e.to_string())?;
    let options = Options {
        states: states.to_vec(),
        ..machine
    };
    let compiled = compile(graph, &options).map_err(|e| e.to_string())?;
    let plan = &compiled.planned.plan;
    let shown = |e: String| format!("{e}\n{plan}");
    verified(plan).map_err(shown)?;
    let text = plan.to_string();
    let read = parse_module(&text, &mut no_data).map_err(|e| shown(e[0].to_string()))?;
    if read.plans.first().map(Plan::to_string).as_deref() != Some(&text) {
        return Err(shown("its text is another plan's".into()));
    }
    let layout = pack(plan, symbols).ok_or("no arenas")?;
    if let Some(e) = verify_layout(plan, &layout, symbols).first() {
        return Err(shown(e.to_string()));
    }
    let is_state = |k: usize| states.iter().any(|s| s.input == Some(k as u32));
    let given: Vec<HostTensor> = (inputs.iter().enumerate().filter(|(k, _)| !is_state(*k)))
        .map(|(_, x)| x.clone())
        .collect();
    for seed in [None, Some(1), Some(2)] {
        let before = states.iter().map(|s| match (s.input, s.output) {
            (Some(i), _) => inputs[i as usize].clone(),
            // Anything: it is written before it is read.
            (None, Some(o)) => expected[o as usize].clone(),
            (None, None) => unreachable!("refused"),
        });
        let mut updated: Vec<HostTensor> = before.clone().collect();
        let found = interpret_with_states(plan, Some(&layout), &given, &mut updated, symbols, seed)
            .map_err(|e| shown(e.to_string()))?;
        let is_set = |k: usize| states.iter().any(|s| s.output == Some(k as u32));
        let outputs: Vec<&HostTensor> = (expected.iter().enumerate().filter(|(k, _)| !is_set(*k)))
            .map(|(_, x)| x)
            .collect();
        if !found
            .iter()
            .map(HostTensor::bytes)
            .eq(outputs.iter().map(|x| x.bytes()))
        {
            return Err(shown(format!("order {seed:?}: another output")));
        }
        for ((s, new), old) in states.iter().zip(&updated).zip(before) {
            let wanted = s.output.map_or(&old, |o| &expected[o as usize]);
            if new.bytes() != wanted.bytes() {
                return Err(shown(format!("order {seed:?}: another value of {s:?}")));
            }
        }
    }
    let count = |reason| compiled.planned.aliases.iter().filter(|a| a.reason == reason).count();
    Ok((count(AliasReason::UpdatesState), count(AliasReason::StateCopied)))
}
