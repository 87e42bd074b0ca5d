//! Where the first NaN comes from: the operation whose operands have none and whose result has one, in the run of the
//! compiled graph.
//!
//! Steps are watched for the first that reads no NaN and writes one. Its operations are then interpreted on the values that
//! the step read, which names the one among them that is to blame.

use tlc_ir::interp::interpret_each;
use tlc_ir::plan::{SlotId, Step};
use tlc_ir::{DType, HostTensor, NodeId, NodeKind};

use super::edit::{Change, Edit};
use super::values::place;
use super::{Case, Place};
use crate::compile::{CompileOptions, Executable, Input};
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
        index: vec![],
        operands: vec![],
        shown_in: place(compiled, node, Some(step)),
        count,
    };
    let values = |slot: SlotId| compiled.planned.values[slot.0 as usize];
    let read: Vec<(NodeId, Vec<u8>)> = read.into_iter().filter_map(|(s, b)| Some((values(s)?, b))).collect();
    if let Some((operation, index, operands)) = inside(case, executable, node, &read) {
        first.operation = operation;
        first.index = index;
        first.operands = operands;
    }
    out.first = Some(first);
    Ok(out)
}

/// The operation, among those that lie between what a step read and a value that it wrote, that made the first NaN.
fn inside(
    case: &Case,
    executable: &Executable,
    node: NodeId,
    read: &[(NodeId, Vec<u8>)],
) -> Option<(String, Vec<usize>, Vec<String>)> {
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
    Some((operation_text(&part.graph, id), index, operands))
}
