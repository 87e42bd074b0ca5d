//! What each step leaves in memory, compared with the meaning of the graph that was compiled.
//!
//! A step is judged by what it made of the values that it read, not of those that it should have read: so the bounds are
//! those of one kernel, however deep the graph is, and one wrong step does not make those behind it look wrong.

use rustc_hash::FxHashMap;
use tlc_ir::interp::{self, Bounded, interpret_each_with_bounds};
use tlc_ir::plan::{Launch, SlotId, Step, Storage};
use tlc_ir::{HostTensor, NodeId};
use tlc_passes::Compiled;

use super::{Case, Finding, Place, Report, Stop, VerifyError, compiled, first_other, guarded, ran};
use crate::compile::{CompileOptions, Executable, Input, Output, Outputs};
use crate::explain::{counted, node_text};

/// The step that writes each slot for the last time: what a scatter copies and then updates is whole behind the update.
fn last_writers(executable: &Executable) -> Vec<Option<usize>> {
    let plan = executable.plan();
    let mut out = vec![None; plan.slots.len()];
    for (number, step) in plan.steps.iter().enumerate() {
        visit(step, executable, &mut |slot, writes| {
            if writes {
                out[slot.0 as usize] = Some(number);
            }
        });
    }
    out
}

fn visit(step: &Step, executable: &Executable, f: &mut dyn FnMut(SlotId, bool)) {
    executable.plan().visit_slots_around(step, f);
}

/// A value of the compiled graph, for messages.
pub(super) fn place(compiled: &Compiled, node: NodeId, step: Option<usize>) -> Place {
    Place {
        node,
        text: node_text(&compiled.graph, node),
        step,
    }
}

/// What a watched call showed.
struct Seen {
    /// By slot: the bytes, right behind the step that wrote them.
    bytes: Vec<Option<Vec<u8>>>,
    /// Slots that held something else when a step read them, and which step that was.
    overwritten: Vec<(SlotId, usize)>,
    outputs: Outputs,
}

/// What a step is and what it writes.
fn step_text(executable: &Executable, number: usize) -> String {
    let step = &executable.plan().steps[number];
    let compiled = executable.decisions();
    let mut written: Vec<String> = Vec::new();
    visit(step, executable, &mut |slot, writes| {
        let node = compiled.planned.values[slot.0 as usize].filter(|_| writes);
        written.extend(node.map(|node| node_text(&compiled.graph, node)));
    });
    let kernel = |l: &Launch| format!("kernel {} ({})", l.kernel.0, l.label);
    let what = match step {
        Step::Launch(l) => kernel(l),
        Step::Group(all) => all.iter().map(kernel).collect::<Vec<_>>().join(" beside "),
        Step::Sequence(all) => all.iter().map(kernel).collect::<Vec<_>>().join(" before "),
        Step::Gemm(_) => "a product by the library".into(),
        Step::Copy { .. } => "a copy".into(),
        Step::Loop(_) => "a loop".into(),
        Step::Call(_) => "a call of the runtime".into(),
    };
    match written.is_empty() {
        true => format!("step {number}, {what}"),
        false => format!("step {number}, {what}, which writes {}", written.join(", ")),
    }
}

fn watch(
    case: &Case,
    executable: &Executable,
    writers: &[Option<usize>],
    tell: &mut dyn FnMut(&str),
) -> Result<Seen, Stop> {
    let plan = executable.plan();
    let mut bytes: Vec<Option<Vec<u8>>> = vec![None; plan.slots.len()];
    let mut overwritten = Vec::new();
    let inputs: Vec<Input<'_>> = case.inputs.iter().map(Into::into).collect();
    tell(match plan.init.is_empty() {
        true => "the first call",
        false => "what runs once per executable",
    });
    let outputs = guarded(|| {
        Ok(executable.run_watched(&inputs, &mut |watched| {
            let step = &plan.steps[watched.step];
            if watched.begins {
                tell(&step_text(executable, watched.step));
            }
            if watched.begins && watched.step == 0 {
                for (slot, held) in bytes.iter_mut().enumerate() {
                    if plan.slots[slot].storage == Storage::Persistent {
                        *held = watched.slot(SlotId(slot as u32)).map(<[u8]>::to_vec);
                    }
                }
            }
            visit(step, executable, &mut |slot, writes| {
                let at = slot.0 as usize;
                if watched.begins && !writes {
                    let (held, now) = (bytes[at].as_deref(), watched.slot(slot));
                    if held.is_some() && held != now {
                        overwritten.push((slot, watched.step));
                    }
                }
                if !watched.begins && writes && writers[at] == Some(watched.step) {
                    bytes[at] = watched.slot(slot).map(<[u8]>::to_vec);
                }
            });
        }))
    })??;
    tell("the comparison");
    Ok(Seen {
        bytes,
        overwritten,
        outputs,
    })
}

/// Runs a case and compares every value that a step left in memory. Returns the outputs too, which are compared with the
/// meaning of the graph before the passes elsewhere.
pub(super) fn compare_values(
    case: &Case,
    executable: &Executable,
    options: &CompileOptions,
    tell: &mut dyn FnMut(&str),
) -> Result<(Report, Outputs), Stop> {
    let compiled = executable.decisions();
    let writers = last_writers(executable);
    let seen = watch(case, executable, &writers, tell)?;
    let mut slots_of: FxHashMap<NodeId, Vec<usize>> = FxHashMap::default();
    for (slot, bytes) in seen.bytes.iter().enumerate() {
        if bytes.is_some()
            && let Some(node) = compiled.planned.values[slot]
        {
            slots_of.entry(node).or_default().push(slot);
        }
    }
    let mut report = Report {
        steps: executable.plan().steps.len(),
        ..Report::default()
    };
    let mut found: Vec<(usize, Finding)> = Vec::new();
    for &(slot, reader) in &seen.overwritten {
        let at = slot.0 as usize;
        if let Some(node) = compiled.planned.values[at] {
            let place = place(compiled, node, writers[at]);
            found.push((2 * reader, Finding::Overwritten(place, reader)));
        }
    }
    let mut compare = |node: NodeId, bounded: Bounded| -> Option<HostTensor> {
        let mut held = None;
        for &slot in &slots_of[&node] {
            let bytes = seen.bytes[slot].as_deref().unwrap_or_default();
            report.values += 1;
            report.elements += bounded.value.len() as u64;
            report.uncertain += bounded.uncertain() as u64;
            let Ok(actual) = HostTensor::from_bytes(bounded.dtype, &bounded.shape, bytes) else {
                let text = format!(
                    "the plan is not valid: {} has {} bytes in memory",
                    compiled.graph.value_name(node),
                    bytes.len()
                );
                found.push((0, Finding::Plan(text)));
                continue;
            };
            if let Err(mismatch) = interp::compare(&actual, &bounded) {
                let step = writers[slot];
                let order = step.map_or(0, |s| 2 * s + 1);
                found.push((order, Finding::Value(place(compiled, node, step), mismatch.into())));
            }
            held = held.or(Some(actual));
        }
        // What follows read this value, right or wrong: it is judged by what it made of it.
        held
    };
    let interpreted = interpret_each_with_bounds(
        &compiled.graph,
        &case.inputs,
        &case.interpretation(options),
        &mut |node| slots_of.contains_key(&node),
        &mut compare,
    );
    if let Err(e) = interpreted {
        // The graph before the passes could be interpreted, so that this is a pass's doing, unless memory ran out.
        let finding = Finding::Refused(format!("the graph behind the passes: {e}"));
        return match e {
            interp::InterpError::Memory { .. } => Err(e.into()),
            _ => Ok((Report::of(finding), seen.outputs)),
        };
    }
    found.sort_by_key(|(order, _)| *order);
    report.findings = found.into_iter().map(|(_, finding)| finding).collect();
    Ok((report, seen.outputs))
}

/// Runs again, on another number of threads, and with inputs given away: all of which must give the same bits.
pub(super) fn compare_calls(
    case: &Case,
    executable: &Executable,
    outputs: &[Output],
    options: &CompileOptions,
    tell: &mut dyn FnMut(&str),
) -> Result<Option<Finding>, VerifyError> {
    let mut calls = || -> Result<Option<Finding>, Stop> {
        tell("a second call");
        let again = ran(executable, case)?;
        if let Some(name) = first_other(outputs, &again) {
            return Ok(Some(Finding::Again(name)));
        }
        let threads = if executable.target().threads == 1 { 2 } else { 1 };
        tell(&format!("a call on {}", counted(threads, "thread")));
        let others = CompileOptions {
            threads: Some(threads),
            ..options.clone()
        };
        let other = ran(&compiled(case, &others)?, case)?;
        if let Some(name) = first_other(outputs, &other) {
            return Ok(Some(Finding::Threads(name)));
        }
        for &(input, _) in &executable.plan().donations {
            tell("a call that is given an input");
            if let Some(output) = donated(case, executable, outputs, input as usize, options)? {
                let input = executable.plan().inputs[input as usize].name.clone();
                return Ok(Some(Finding::Donation { input, output }));
            }
        }
        Ok(None)
    };
    match calls() {
        Ok(finding) => Ok(finding),
        Err(Stop::Found(finding)) => Ok(Some(finding)),
        Err(Stop::Unable(error)) => Err(error),
    }
}

/// The output that changes when an input is given away.
fn donated(
    case: &Case,
    executable: &Executable,
    outputs: &[Output],
    input: usize,
    options: &CompileOptions,
) -> Result<Option<String>, Stop> {
    // Only results can be given away, so that the input goes through a graph that returns it.
    let tensor = &case.inputs[input];
    let mut graph = tlc_ir::Graph::new("identity");
    let ty = tlc_ir::TensorType::new(tensor.dtype(), tensor.shape().iter().map(|&d| d as i64));
    let node = graph.add_input("x", ty, tlc_ir::graph::Origin::Unknown);
    let node = node.map_err(|e| Finding::Refused(e.to_string()))?;
    graph.add_output("x", node);
    let identity = Case {
        graph,
        inputs: vec![tensor.clone()],
        symbols: vec![],
    };
    let given = ran(&compiled(&identity, options)?, &identity)?;
    let mut given = given.into_iter();
    let inputs = case.inputs.iter().enumerate().map(|(k, t)| match k == input {
        true => given.next().map_or_else(|| t.into(), Input::from),
        false => t.into(),
    });
    let inputs: Vec<Input<'_>> = inputs.collect();
    let found = guarded(|| Ok(executable.run_donating(inputs)))??;
    Ok(first_other(outputs, &found))
}
