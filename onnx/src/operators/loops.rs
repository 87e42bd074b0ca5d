//! Loop and Scan: a subgraph as the body of the graph's loop.

use std::rc::Rc;

use tlc_formats::onnx::Graph;
use tlc_ir::{DType, HostTensor, Scalar};

use super::control::graph_of;
use crate::call::{Answer, Call};
use crate::order::{free, subgraphs};
use crate::refusal::{Outcome, invalid, limit, unsupported};
use crate::value::{Sequence, Value};
use tlc_record::Tensor;
use tlc_record::dim::Dim;
use tlc_record::ops::repeat::{Iteration, Repeat};

/// The body's formal inputs.
fn formals<'a>(body: Graph<'a>, expected: usize) -> Outcome<Vec<&'a str>> {
    let names: Vec<&str> = body.inputs().map(|i| i.name()).collect();
    match names.len() == expected {
        true => Ok(names),
        false => invalid(format!("a body of {} inputs; expected {expected}", names.len())),
    }
}

/// A scalar as the body declares it: of rank 0, or one element of rank 1.
fn as_declared(body: Graph<'_>, input: usize, scalar: Tensor) -> Tensor {
    let declared = body.inputs().nth(input).and_then(|i| i.ty()?.tensor()?.shape());
    match declared.map(|s| s.count()) {
        Some(1) => scalar.reshape([1]),
        _ => scalar,
    }
}

pub(super) fn repeat(c: &mut Call<'_, '_, '_>) -> Answer {
    let body = graph_of(c, "body")?;
    let is_sequence = |i: usize| c.value(i).is_some_and(|v| v.sequence().is_some());
    let (lists, tensors): (Vec<usize>, Vec<usize>) = (2..c.inputs.len()).partition(|&i| is_sequence(i));
    if !lists.is_empty() {
        let few = |n: &[i64]| matches!(n, [n] if *n <= MAX_UNROLLED);
        let few = c.value(0).is_none() || c.input_ints(0).is_ok_and(|n| n.is_some_and(|n| few(&n)));
        if few || !lists.iter().all(|&i| is_appended_to(body, i)) {
            return with_sequences(c, body);
        }
    }
    let graph = c.graph();
    let carried: Vec<Tensor> = tensors.iter().map(|&i| c.tensor(i)).collect::<Outcome<_>>()?;
    let operands = c.inputs.len().max(2);
    let names = formals(body, operands)?;
    let outputs = body.outputs().count();
    if outputs + 1 < operands {
        return invalid(format!(
            "a body of {outputs} outputs; expected at least {}",
            operands - 1
        ));
    }
    // What is appended to a sequence in each iteration is stacked, as other results are.
    let stacked = outputs - 1 - carried.len();
    let known = |c: &Call<'_, '_, '_>, i: usize| {
        let value = c.required(i).ok()?;
        let data = c.importer.constant(value, "an operand").ok()?;
        (data.len() == 1).then(|| data.get(0))
    };
    // The condition before the first iteration: true unless it is given.
    let mut first = Some(true);
    if c.value(1).is_some() {
        first = known(c, 1).map(|v| v.as_bool());
    }
    let mut trip: Option<Dim> = None;
    let mut count: Option<Tensor> = None;
    if c.value(0).is_some() {
        if let Some(dim) = c.input_dims_if_carried(0) {
            trip = Some(dim.max(0));
        } else if let Some(n) = known(c, 0) {
            trip = Some(n.as_i64().max(0).into());
        } else if c.importer.options.trip_counts
            && let Ok(Some(n)) = c.input_ints(0)
            && let [n] = n[..]
        {
            trip = Some(n.max(0).into());
        } else if stacked > 0 {
            // As long as the stacked results are, so it must be known now.
            match c.input_ints(0)?.as_deref() {
                Some(&[n]) => trip = Some(n.max(0).into()),
                _ => return invalid("the trip count; expected one number"),
            }
        } else {
            count = Some(c.tensor(0)?.reshape(()).cast(DType::I64));
        }
    }
    if first == Some(false) {
        trip = Some(0.into());
    }
    let before = match first {
        Some(value) => graph.full((), value, DType::Bool),
        None => c.tensor(1)?.reshape(()),
    };
    let start = |trip: Option<Dim>, conditional: bool| -> Repeat {
        let mut l = match trip {
            Some(trip) => graph.repeat(trip),
            None => graph.repeat_while_any(),
        };
        if let Some(count) = &count {
            l = l.at_most(count);
        }
        if conditional {
            l = l.while_(&before);
        }
        carried.iter().fold(l, |l, x| l.carry(x))
    };
    // An iteration runs only where the condition held: inside the body it is true.
    let l = start(trip.clone(), true);
    let iteration = l.start();
    let number = as_declared(body, 0, iteration.number.clone());
    let condition = as_declared(body, 1, iteration.graph().constant(true_()));
    let condition = Value::Tensor(condition, None);
    let mut values = vec![Value::from(number), condition];
    let mut inner = iteration.carried.iter().cloned().map(Value::from);
    for i in 2..c.inputs.len() {
        match c.required(i)? {
            list if lists.contains(&i) => values.push(Value::Sequence(Rc::new(Sequence::Known(vec![], list.dtype())))),
            _ => values.extend(inner.next()),
        }
    }
    let pairs = names.iter().copied().zip(values).collect();
    let around = std::mem::replace(&mut c.importer.iterations, 1);
    let attempt = c.importer.iteration(body, iteration, pairs);
    let attempt = attempt.map(|(iteration, results)| (iteration, appended_last(results, &lists, operands)));
    let inside = std::mem::replace(&mut c.importer.iterations, around);
    let alike = |from: &Tensor, to: &Value| from.shape() == to.shape() && from.dtype() == to.dtype();
    let same = |(iteration, results): &(Iteration, Vec<Value>)| {
        iteration
            .carried
            .iter()
            .zip(&results[1..])
            .all(|(from, to)| alike(from, to))
    };
    // A body whose sizes depend on the iteration's number, or that changes the carried types, differs from iteration
    // to iteration.
    if !attempt.as_ref().is_ok_and(same) {
        let few = match trip.as_ref().and_then(Dim::as_const) {
            Some(n) => Some(n),
            None => match c.input_ints(0).ok().flatten().as_deref() {
                Some(&[n]) => Some(n.max(0)),
                _ => None,
            },
        };
        if let Some(trip) = few.filter(|n| *n <= MAX_UNROLLED) {
            return unrolled(c, body, &names, Some(trip), first);
        }
        if c.value(0).is_none()
            && first.is_some()
            && let Ok(results) = unrolled(c, body, &names, None, first)
        {
            return Ok(results);
        }
    }
    let (mut iteration, results) = attempt?;
    let pairs = iteration.carried.iter().zip(&results[1..]);
    if let Some((k, (from, to))) = pairs.enumerate().find(|(_, (from, to))| !alike(from, to)) {
        return unsupported(format!(
            "carried value {k} of {} becomes {}; expected the same shape and type, or a trip count of at most {MAX_UNROLLED} that is \
             a constant or from a file",
            from.type_text(),
            to.tensor(iteration.graph())?.type_text()
        ));
    }
    let inner = iteration.graph().clone();
    let decides = c.importer.constant(&results[0], "the condition");
    let goes_on = decides.ok().filter(|e| e.len() == 1).map(|e| e.get(0).as_bool());
    let tensors: Vec<Tensor> = results[1..].iter().map(|v| v.tensor(&inner)).collect::<Outcome<_>>()?;
    let conditional = first.is_none() || goes_on != Some(true);
    let own = trip.as_ref().and_then(Dim::as_const).filter(|_| !conditional);
    let all = inside.saturating_mul(own.unwrap_or(1).max(1));
    if all > MAX_ITERATIONS {
        return limit(format!("a loop of {all} iterations; expected at most {MAX_ITERATIONS}"));
    }
    c.importer.iterations = around.max(all);
    if trip.is_none() && count.is_none() && !conditional {
        return invalid("a loop that never ends; expected a trip count or a condition");
    }
    let room = trip
        .as_ref()
        .is_some_and(|t| t.as_const().is_none_or(|t| t <= MAX_STACKED));
    if stacked > 0 && c.value(0).is_none() && trip.is_none() {
        return unrolled(c, body, &names, None, first);
    }
    if stacked > 0 && !room {
        let found = "stacked results of a loop without a bound";
        return unsupported(format!(
            "{found}; expected a trip count of at most {MAX_STACKED}, whatever else ends it"
        ));
    }
    if conditional {
        iteration.go_on_if(&results[0].tensor(&inner)?.reshape(()));
    }
    let (next, parts) = tensors.split_at(carried.len());
    parts.iter().for_each(|t| iteration.stack(t, 0));
    let cut = conditional && stacked > 0;
    if cut {
        super::sorting::outside_of_bodies(c)?;
        // Which iterations ran: what no iteration wrote is false.
        iteration.stack(&inner.full((), true, DType::Bool), 0);
    }
    let l = start(trip, conditional);
    let mut results = l.finish(iteration, next.to_vec());
    if let Some(ran) = results.pop_if(|_| cut) {
        let places = ran.nonzero().select_index(0, 0);
        for stacked in &mut results[carried.len()..] {
            *stacked = stacked.take_from_start(&places, 0);
        }
    }
    let mut stacked = results.split_off(carried.len()).into_iter();
    let mut carried = results.into_iter();
    let mut all = vec![];
    for i in 2..c.inputs.len() {
        match c.required(i)?.sequence() {
            Some(before) => all.extend(stacked.next().map(|parts| behind(before, parts, &graph)).transpose()?),
            None => all.extend(carried.next().map(Value::from)),
        }
    }
    all.extend(stacked.map(Value::from));
    Ok(all)
}

/// Whether all that an iteration does with the sequence of that operand is to append one tensor to it and hand it on.
fn is_appended_to(body: Graph<'_>, operand: usize) -> bool {
    let formal = body.inputs().nth(operand).map(|i| i.name());
    let result = body.outputs().nth(operand - 1).map(|o| o.name());
    let (Some(formal), Some(result)) = (formal, result) else {
        return false;
    };
    let mut appends = 0;
    for node in body.nodes() {
        let mut operands = node.inputs();
        let appending = node.op_type() == "SequenceInsert" && node.outputs().eq([result]);
        if appending && operands.next() == Some(formal) && operands.nth(1).is_none_or(str::is_empty) {
            appends += 1;
        } else if node.inputs().any(|n| n == formal || n == result) {
            return false;
        }
        if subgraphs(node).any(|g| free(g).iter().any(|n| *n == formal || *n == result)) {
            return false;
        }
    }
    let handed_on = body.outputs().filter(|o| o.name() == formal || o.name() == result);
    appends == 1 && handed_on.count() == 1
}

/// The results of a body for so many operands, with the one tensor that is appended to each sequence behind what is carried.
fn appended_last(mut results: Vec<Value>, lists: &[usize], operands: usize) -> Vec<Value> {
    let stacked = results.split_off(results.len().min(operands - 1));
    let (mut ordered, mut appended) = (vec![], vec![]);
    for (k, value) in results.into_iter().enumerate() {
        match value.sequence() {
            Some(Sequence::Known(items, _)) if lists.contains(&(k + 1)) => appended.extend(items.iter().cloned()),
            _ => ordered.push(value),
        }
    }
    ordered.into_iter().chain(appended).chain(stacked).collect()
}

/// A sequence with tensors appended to it that are the parts of one.
fn behind(before: &Sequence, parts: Tensor, graph: &tlc_record::Graph) -> Outcome<Value> {
    let parts = match before {
        Sequence::Known(items, _) if items.is_empty() => parts,
        Sequence::Known(items, _) => {
            let items: Vec<Tensor> = items.iter().map(|i| i.tensor(graph)).collect::<Outcome<_>>()?;
            let first = tlc_record::stack(&items.iter().collect::<Vec<_>>(), 0);
            tlc_record::concat(&[&first, &parts], 0)
        }
        Sequence::Stacked(first) => tlc_record::concat(&[first, &parts], 0),
    };
    Ok(Value::Sequence(Rc::new(Sequence::Stacked(parts))))
}

/// The most iterations of a loop that nothing but its trip count ends, those of loops inside it included: more take longer than
/// anybody waits.
const MAX_ITERATIONS: i64 = 1 << 28;
/// A loop of so few iterations is recorded one by one where they differ.
const MAX_UNROLLED: i64 = 128;
/// The most iterations of a loop with stacked results that data ends, or may end: buffers have room for all.
const MAX_STACKED: i64 = 1 << 31;

/// A loop that hands sequences on, which are no values of the graph: its iterations, one after the other.
fn with_sequences<'a>(c: &mut Call<'_, '_, 'a>, body: Graph<'a>) -> Answer {
    let carried = c.inputs.len().saturating_sub(2);
    let names = formals(body, 2 + carried)?;
    let outputs = body.outputs().count();
    if outputs < 1 + carried {
        return invalid(format!(
            "a body of {outputs} outputs; expected at least {}",
            1 + carried
        ));
    }
    let trip = match c.input_ints(0)?.as_deref() {
        Some(&[n]) if n <= MAX_UNROLLED => Some(n.max(0)),
        None => None,
        Some([_]) => {
            return unsupported(format!(
                "a loop that carries a sequence; expected a trip count of at most {MAX_UNROLLED}"
            ));
        }
        Some(_) => return invalid("the trip count; expected one number"),
    };
    let first = c.value(1).is_none().then_some(true);
    unrolled(c, body, &names, trip, first)
}

/// The iterations one after the other, each with its number as a constant. Without a trip count, as many as the condition says, which is a constant
/// behind each, as it is where what an iteration counts up is compared with one.
fn unrolled<'a>(
    c: &mut Call<'_, '_, 'a>,
    body: Graph<'a>,
    names: &[&'a str],
    trip: Option<i64>,
    first: Option<bool>,
) -> Answer {
    let graph = c.graph();
    let first = match first {
        Some(first) => first,
        None => c.elements(1)?.get(0).as_bool(),
    };
    let mut values: Vec<Value> = Vec::new();
    for i in 2..c.inputs.len() {
        values.push(c.required(i)?.clone());
    }
    let stacked = body.outputs().count() - 1 - values.len();
    let mut parts: Vec<Vec<Tensor>> = vec![Vec::new(); stacked];
    let mut goes_on = first;
    for i in 0..trip.unwrap_or(MAX_UNROLLED) {
        if !goes_on {
            break;
        }
        let declared = |input: usize, value: HostTensor| {
            let shape = as_declared(body, input, graph.full((), 0, DType::I64)).const_shape();
            let value = value.reshaped(&shape.unwrap_or_default()).unwrap_or(value);
            Value::constant(&graph, value)
        };
        let number = HostTensor::scalar(Scalar::from_i64(DType::I64, i));
        let mut given = vec![declared(0, number), declared(1, true_())];
        given.append(&mut values);
        let pairs = names.iter().copied().zip(given).collect();
        let mut results = c.importer.branch_with(body, pairs)?;
        let decides = c
            .importer
            .constant(&results[0], "the condition of a loop whose iterations differ")?;
        for (k, part) in results.split_off(results.len() - stacked).iter().enumerate() {
            parts[k].push(part.tensor(&graph)?);
        }
        values = results.split_off(1);
        goes_on = decides.len() == 1 && decides.get(0).as_bool();
    }
    if goes_on && trip.is_none() {
        return unsupported(format!(
            "a loop without a trip count whose iterations differ; expected at most {MAX_UNROLLED} of them"
        ));
    }
    for part in &parts {
        if part.is_empty() {
            return unsupported("stacked results of a loop that does not run and whose iterations differ");
        }
        values.push(tlc_record::stack(&part.iter().collect::<Vec<_>>(), 0).into());
    }
    Ok(values)
}

fn true_() -> HostTensor {
    HostTensor::scalar(Scalar::from_bool(true))
}

/// How the operands and results of a Scan are walked along.
struct Walks {
    input_axes: Vec<i64>,
    input_reverse: Vec<bool>,
    output_axes: Vec<i64>,
    output_reverse: Vec<bool>,
}

impl Walks {
    fn new(c: &Call<'_, '_, '_>, inputs: usize, outputs: usize) -> Outcome<Walks> {
        let list = |name: &str, n: usize| -> Outcome<Vec<i64>> {
            match c.ints(name)? {
                Some(all) if all.len() != n => invalid(format!("{name} of {} numbers; expected {n}", all.len())),
                Some(all) => Ok(all),
                None => Ok(vec![0; n]),
            }
        };
        let flags = |name: &str, n: usize| -> Outcome<Vec<bool>> {
            let all = list(name, n)?;
            match all.iter().find(|v| !matches!(v, 0 | 1)) {
                Some(v) => invalid(format!("{name} holds {v}; expected 0 or 1")),
                None => Ok(all.into_iter().map(|v| v == 1).collect()),
            }
        };
        let old = c.version < 9;
        let directions = if old { "directions" } else { "scan_input_directions" };
        Ok(Walks {
            input_axes: if old {
                vec![0; inputs]
            } else {
                list("scan_input_axes", inputs)?
            },
            input_reverse: flags(directions, inputs)?,
            output_axes: if old {
                vec![0; outputs]
            } else {
                list("scan_output_axes", outputs)?
            },
            output_reverse: if old {
                vec![false; outputs]
            } else {
                flags("scan_output_directions", outputs)?
            },
        })
    }
}

pub(super) fn scan(c: &mut Call<'_, '_, '_>) -> Answer {
    let body = graph_of(c, "body")?;
    let old = c.version < 9;
    if old && c.value(0).is_some() {
        return unsupported("sequence_lens; expected none");
    }
    let operands: Vec<Tensor> = (usize::from(old)..c.inputs.len())
        .map(|i| c.tensor(i))
        .collect::<Outcome<_>>()?;
    let slices = match c.maybe_int("num_scan_inputs")? {
        Some(n) if n >= 1 && n as usize <= operands.len() => n as usize,
        _ => return invalid("num_scan_inputs; expected as many operands, and at least one"),
    };
    let carried = operands.len() - slices;
    let names = formals(body, operands.len())?;
    let outputs = body.outputs().count();
    let Some(stacked) = outputs.checked_sub(carried) else {
        return invalid(format!("a body of {outputs} outputs; expected at least {carried}"));
    };
    let walks = Walks::new(c, slices, stacked)?;
    if !old {
        let results = scan_over(c, body, &names, &operands, carried, &walks)?;
        return Ok(results.into_iter().map(Into::into).collect());
    }
    // Before version 9 all operands and results have a batch axis in front, which the body does not see.
    let Some(batch) = operands.first().filter(|t| t.rank() > 0).map(|t| t.dim(0)) else {
        return invalid("an operand of rank 0; expected a batch axis");
    };
    let l = operands.iter().fold(c.graph().repeat(batch), |l, x| l.slice(x, 0));
    let outer = l.start();
    let inside = outer.slices.clone();
    let graph = c.importer.enter(outer);
    let results = scan_over(c, body, &names, &inside, carried, &walks);
    let mut outer = c.importer.leave(graph);
    results?.iter().for_each(|t| outer.stack(t, 0));
    let results = l.finish(outer, vec![]);
    Ok(results.into_iter().map(Into::into).collect())
}

/// One scan over operands of the graph being recorded: the first `carried` go around, the others are walked along.
fn scan_over<'a>(
    c: &mut Call<'_, '_, 'a>,
    body: Graph<'a>,
    names: &[&'a str],
    operands: &[Tensor],
    carried: usize,
    walks: &Walks,
) -> Outcome<Vec<Tensor>> {
    let (first, sliced) = operands.split_at(carried);
    let axis = c.axis(walks.input_axes[0], sliced[0].rank())?;
    let mut l = first
        .iter()
        .fold(c.graph().repeat(sliced[0].dim(axis as i64)), |l, x| l.carry(x));
    for (k, x) in sliced.iter().enumerate() {
        let axis = c.axis(walks.input_axes[k], x.rank())? as i64;
        l = match walks.input_reverse[k] {
            true => l.slice_reversed(x, axis),
            false => l.slice(x, axis),
        };
    }
    let iteration = l.start();
    let values = iteration
        .carried
        .iter()
        .chain(&iteration.slices)
        .cloned()
        .map(Value::from);
    let values = names.iter().copied().zip(values).collect();
    let (mut iteration, results) = c.importer.iteration(body, iteration, values)?;
    let inner = iteration.graph().clone();
    let tensors: Vec<Tensor> = results.iter().map(|v| v.tensor(&inner)).collect::<Outcome<_>>()?;
    let (next, parts) = tensors.split_at(carried);
    for (k, t) in parts.iter().enumerate() {
        let axis = c.axis(walks.output_axes[k], t.rank() + 1)? as i64;
        match walks.output_reverse[k] {
            true => iteration.stack_reversed(t, axis),
            false => iteration.stack(t, axis),
        }
    }
    Ok(l.finish(iteration, next.to_vec()))
}
