//! Where the first NaN comes from: the operation whose operands have none and whose result has one, in the run of the
//! compiled graph.
//!
//! Steps are watched for the first that reads no NaN and writes one. Its operations are then interpreted on the values that
//! the step read, which names the one among them that is to blame.

use tlc_ir::graph::Origin;
use tlc_ir::interp::interpret_each;
use tlc_ir::plan::{SlotId, Step};
use tlc_ir::{DType, Graph, HostTensor, NodeId, NodeKind};

use super::edit::{Change, Edit};
use super::values::place;
use super::{Case, Place};
use crate::compile::{BuildError, CompileOptions, Entry, Executable, Input, State, compile_ir};
use crate::explain::operation_text;
use tlc_runtime::driver::RunError;

/// Where NaNs are and where they come from.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Nans {
    /// Inputs that hold NaNs, and how many.
    pub inputs: Vec<(String, usize)>,
    /// The first operation that made one.
    pub first: Option<FirstNan>,
}

/// The first operation that made a NaN.
#[derive(Clone, PartialEq, Debug)]
pub struct FirstNan {
    /// The operation's value, and its name in the model that it came from: `%4 log 'layer.3/Log'`.
    pub operation: String,
    /// The line of the program that recorded it, if one did.
    pub recorded_at: Option<String>,
    /// The first element of its result that is NaN, if the operation's result was seen.
    pub index: Vec<usize>,
    /// What its operands are there, where they have the result's shape.
    pub operands: Vec<String>,
    /// The value in memory in which it showed first.
    pub shown_in: Place,
    /// NaNs in that value.
    pub count: usize,
}

impl std::fmt::Display for FirstNan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the first NaN is made by {}", self.operation)?;
        if let Some(line) = &self.recorded_at {
            write!(f, ", recorded at {line},")?;
        }
        if !self.operands.is_empty() {
            write!(f, " of {} at {:?}", self.operands.join(" and "), self.index)?;
        } else if !self.index.is_empty() {
            write!(f, " at {:?}", self.index)?;
        }
        let step = self.shown_in.step.map_or(String::new(), |s| format!(" in step {s}"));
        write!(f, "{step}, whose result {} has {}", self.shown_in.text, self.count)
    }
}

fn nan_count(dtype: DType, bytes: &[u8]) -> usize {
    let width = dtype.bytes();
    if !dtype.is_float() || width == 0 {
        return 0;
    }
    let count = bytes.len() / width;
    HostTensor::from_bytes(dtype, &[count], bytes).map_or(0, |t| nans_of(&t))
}

fn nans_of(t: &HostTensor) -> usize {
    match t.as_slice::<f32>() {
        Some(all) => all.iter().filter(|x| x.is_nan()).count(),
        None if t.dtype().is_float() => (0..t.len()).filter(|&i| t.get(i).is_nan()).count(),
        None => 0,
    }
}

/// Runs a case, whose compiled form is `executable`, and looks for NaNs.
///
/// # Errors
/// If the run fails.
pub fn check_nan(case: &Case, executable: &Executable) -> Result<Nans, RunError> {
    let plan = executable.plan();
    let compiled = executable.decisions();
    let inputs: Vec<Input<'_>> = case.inputs.iter().map(Into::into).collect();
    let mut out = Nans::default();
    for (declared, tensor) in plan.inputs.iter().zip(&case.inputs) {
        let count = nans_of(tensor);
        if count > 0 {
            out.inputs.push((declared.name.clone(), count));
        }
    }
    let visit = |step: &Step, f: &mut dyn FnMut(SlotId, bool)| plan.visit_slots_around(step, f);
    let mut guilty: Option<(usize, NodeId, usize)> = None;
    let mut reads_nan = false;
    executable.run_watched(&inputs, &mut |watched| {
        if guilty.is_some() {
            return;
        }
        if watched.begins {
            reads_nan = false;
        }
        visit(&plan.steps[watched.step], &mut |slot, writes| {
            let dtype = plan.slots[slot.0 as usize].dtype;
            let count = || watched.slot(slot).map_or(0, |bytes| nan_count(dtype, bytes));
            if watched.begins && !writes {
                reads_nan = reads_nan || count() > 0;
            }
            if !watched.begins
                && writes
                && !reads_nan
                && guilty.is_none()
                && let Some(node) = compiled.planned.values[slot.0 as usize]
            {
                let nans = count();
                if nans > 0 {
                    guilty = Some((watched.step, node, nans));
                }
            }
        });
    })?;
    let Some((step, node, count)) = guilty else {
        return Ok(out);
    };
    // Again, for what the step reads.
    let mut read: Vec<(SlotId, Vec<u8>)> = Vec::new();
    executable.run_watched(&inputs, &mut |watched| {
        if watched.begins && watched.step == step {
            visit(&plan.steps[step], &mut |slot, writes| {
                if !writes && let Some(bytes) = watched.slot(slot) {
                    read.push((slot, bytes.to_vec()));
                }
            });
        }
    })?;
    let mut first = FirstNan {
        operation: operation_text(&compiled.graph, node),
        recorded_at: line_of(&compiled.graph, node),
        index: vec![],
        operands: vec![],
        shown_in: place(compiled, node, Some(step)),
        count,
    };
    let values = |slot: SlotId| compiled.planned.values[slot.0 as usize];
    let read: Vec<(NodeId, Vec<u8>)> = read.into_iter().filter_map(|(s, b)| Some((values(s)?, b))).collect();
    if let Some(made) = inside(case, executable, node, &read) {
        let FirstNan { shown_in, count, .. } = first;
        first = FirstNan {
            shown_in,
            count,
            ..made
        };
    }
    out.first = Some(first);
    Ok(out)
}

/// Where NaNs are in a call on states, as a step of training is, and where they come from.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct StepNans {
    /// The counters of steps among the states, as optimizers have, and how many steps each has counted before this call.
    pub steps: Vec<(String, u64)>,
    /// What the call makes of its inputs, among which states are.
    pub nans: Nans,
}

impl std::fmt::Display for StepNans {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (name, count) in &self.steps {
            write!(f, "step {} of {name}: ", count.saturating_add(1))?;
        }
        match (&self.nans.first, &self.nans.inputs[..]) {
            (Some(first), _) => write!(f, "{first}"),
            (None, []) => write!(f, "no operation makes a NaN"),
            (None, [(name, count), ..]) => write!(f, "no operation makes the first NaN: {name} has {count}"),
        }
    }
}

/// As [`check_nan`], of a call of `executable` on a state, which stays as it is: after a step of an optimizer that had no effect, because the loss or
/// a gradient was no finite number, it says which operation, recorded where, made it so. `options` are those that `executable` was compiled with; it is
/// compiled again, without states.
///
/// ```
/// use tlc::optim::Groups;
/// use tlc::verify::nan::check_nan_with;
/// use tlc::{CompileOptions, DType, Graph, State, inputs};
///
/// let g = Graph::new("train");
/// let (x, w) = (g.input("x", DType::F32, [2]), g.state("w", DType::F32, [2]));
/// let loss = (&x * &w).log().sum(..);
/// let optimizer: Groups = "sgd:lr=0.1".parse()?;
/// g.output("ok", &optimizer.minimize(&loss, &[("w", &w)]));
/// let options = CompileOptions::default();
/// let train = g.compile(&options)?;
///
/// let mut state = State::new();
/// state.insert("w", [1.0f32, 2.0])?;
/// optimizer.prepare(&mut state, &["w"])?;
/// let batch = inputs![&[1.0f32, -1.0]];
/// assert!(!train.run_with(&mut state, &batch)?["ok"].as_scalar::<bool>()?);
/// let found = check_nan_with(&train, &state, &batch, &options)?;
/// assert!(found.to_string().starts_with("step 1 of optimizer.steps: the first NaN is made by %"), "{found}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// If inputs and states do not fit the graph, or the run fails.
pub fn check_nan_with(
    executable: &Executable,
    state: &State,
    inputs: &[Input<'_>],
    options: &CompileOptions,
) -> Result<StepNans, BuildError> {
    // Refuses what does not fit.
    executable.memory_with(state, inputs)?;
    let graph = executable.decisions().graph.clone();
    let mut given = inputs.iter();
    let mut values = Vec::with_capacity(graph.inputs().len());
    for &id in graph.inputs() {
        let name = match &graph.node(id).kind {
            NodeKind::Input { name, .. } => name,
            _ => continue,
        };
        values.push(match executable.states().iter().any(|s| s.name == **name) {
            true => state[name].to_host()?,
            false => match given.next() {
                Some(input) => input.to_host().map_err(RunError::from)?,
                None => continue,
            },
        });
    }
    let case = Case {
        graph,
        inputs: values,
        symbols: options.symbols.clone(),
    };
    let alone = compile_ir(
        &case.graph,
        &CompileOptions {
            tuned: None,
            packed_weights: None,
            ..options.clone()
        },
    )?;
    let counts = |e: &Entry| e.name().ends_with(".steps") && e.dtype() == DType::U64 && e.shape().is_empty();
    let steps = state
        .iter()
        .filter(|e| counts(e))
        .filter_map(|e| Some((e.name().to_string(), e.as_scalar().ok()?)));
    let steps = steps.collect();
    let mut nans = check_nan(&case, &alone)?;
    // A step that has no effect may leave no NaN anywhere in memory: one kernel makes it and sees that it is none.
    if nans.first.is_none() && nans.inputs.is_empty() {
        nans.first = first_made(&case);
    }
    Ok(StepNans { steps, nans })
}

/// The line of the program that recorded a node.
fn line_of(graph: &Graph, node: NodeId) -> Option<String> {
    match graph.node(node).origin.recorded() {
        Origin::Source(location) => Some(location.to_string()),
        _ => None,
    }
}

/// The operation, among those that lie between what a step read and a value that it wrote, that made the first NaN.
fn inside(case: &Case, executable: &Executable, node: NodeId, read: &[(NodeId, Vec<u8>)]) -> Option<FirstNan> {
    let graph = &executable.decisions().graph;
    let whole = Case {
        graph: graph.clone(),
        inputs: case.inputs.clone(),
        symbols: case.symbols.clone(),
    };
    let views: Vec<_> = case.inputs.iter().map(|t| (t.dtype(), t.shape())).collect();
    let symbols = tlc_ir::binding::bind_symbols(graph, &views, &case.symbols).ok()?;
    let mut edit = Edit {
        outputs: Some(vec![("value".into(), node)]),
        ..Edit::default()
    };
    for (id, bytes) in read {
        let n = graph.node(*id);
        if matches!(n.kind, NodeKind::Input { .. } | NodeKind::Data(_)) {
            continue;
        }
        let extent = |d: &tlc_ir::IndexExpr| d.eval_symbols(&symbols).and_then(|d| usize::try_from(d).ok());
        let shape: Option<Vec<usize>> = n.ty.shape.iter().map(extent).collect();
        let value = HostTensor::from_bytes(n.ty.dtype, &shape?, bytes).ok()?;
        edit.changes.insert(*id, Change::Input(value));
    }
    let part = edit.apply(&whole)?;
    first_made(&part)
}

/// The operation that makes the first NaN, by the interpreter, shown in its own result.
fn first_made(part: &Case) -> Option<FirstNan> {
    let mut values: Vec<Option<HostTensor>> = vec![None; part.graph.len()];
    let mut found: Option<(NodeId, usize)> = None;
    let settings = part.interpretation(&CompileOptions::default());
    interpret_each(&part.graph, &part.inputs, &settings, &mut |id, value| {
        values[id.index()] = Some(value.clone());
        if found.is_some() || !value.dtype().is_float() {
            return;
        }
        let n = part.graph.node(id);
        let leaf = matches!(n.kind, NodeKind::Input { .. } | NodeKind::Const(_) | NodeKind::Data(_));
        let has = |o: &NodeId| values[o.index()].as_ref().is_some_and(|t| nans_of(t) > 0);
        if !leaf && !n.operands.iter().any(has) {
            found = (0..value.len()).find(|&i| value.get(i).is_nan()).map(|i| (id, i));
        }
    })
    .ok()?;
    let (id, at) = found?;
    let n = part.graph.node(id);
    let shape = values[id.index()].as_ref()?.shape().to_vec();
    let operand = |o: &NodeId| -> Option<String> {
        let t = values[o.index()].as_ref()?;
        (t.shape() == shape).then(|| t.get(at).to_string())
    };
    let operands = n.operands.iter().filter_map(operand).collect();
    let index = super::compare::index_of(at, &shape);
    let operation = operation_text(&part.graph, id);
    Some(FirstNan {
        shown_in: Place {
            node: id,
            text: operation.clone(),
            step: None,
        },
        count: nans_of(values[id.index()].as_ref()?),
        operation,
        recorded_at: line_of(&part.graph, id),
        index,
        operands,
    })
}
