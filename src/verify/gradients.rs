//! Are derivatives right? They are compared with finite differences in f64, by the graph interpreter.
//!
//! Every float input and every constant of at least two floats, those of bodies of loops as well, is moved along random directions, both ways; by how much the
//! outputs change must be what the derivatives say. Where the graph has a corner within reach of the move, which differences of two
//! sizes show, a direction says nothing and is counted. Where one is wrong, every operation is differentiated by itself, and the
//! first whose derivative is wrong is named.

use tlc_ir::graph::{GraphError, NodeKind, TensorType};
use tlc_ir::interp::{self, InterpError, interpret, interpret_each};
use tlc_ir::rng::Rng;
use tlc_ir::{DType, Graph, HostTensor, NodeId, Scalar};

use super::Case;
use super::compare::graph_in_float;
use crate::{Graph as Recording, Tensor, jvp, vjp};

/// How far inputs are moved, for elements of about 1.
const STEP: f64 = 1.0 / (1 << 20) as f64;

/// How far a derivative may be off, relative to its size.
const TOLERANCE: f64 = 1e-5;

/// What was found.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Gradients {
    /// Outputs that were differentiated.
    pub of: usize,
    /// Inputs and constants that they were differentiated by.
    pub by: usize,
    /// Constants of at least two floats that stayed as they are: those in bodies of regions.
    pub left: usize,
    /// Directions in which the derivatives are right.
    pub right: usize,
    /// Directions that say nothing, for a corner is in reach or a value is not finite.
    pub open: usize,
    /// The first direction in which they are wrong.
    pub wrong: Option<Wrong>,
    /// A region whose own derivative is not that of what it computes, with its place: the numbers above are without regions then.
    pub region: Option<String>,
}

/// A derivative that is wrong.
#[derive(Clone, PartialEq, Debug)]
pub struct Wrong {
    /// Whether it is that of forward mode.
    pub forward: bool,
    /// What the derivatives say along the direction.
    pub found: f64,
    /// What differences say.
    pub expected: f64,
    /// The first operation whose own derivative is wrong, with its place.
    pub rule: Option<String>,
}

/// Why derivatives cannot be checked.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GradientError {
    /// The interpreter cannot run the graph.
    #[error(transparent)]
    Interpreter(#[from] InterpError),
    /// An operation does not take f64.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// An operation has no derivative.
    #[error("{0}")]
    Refused(String),
    /// There is nothing to differentiate.
    #[error("no output of floats, or no input or constant of floats; expected both")]
    Nothing,
}

/// Derivatives of outputs: with cotangents by inputs, or by inputs with tangents.
type Derivative<'a> = &'a dyn Fn(&[&Tensor], &[&Tensor], &[&Tensor]) -> Vec<Tensor>;

/// How derivatives are made.
#[derive(Clone, Copy)]
struct Differentiate<'a> {
    /// [`vjp`].
    reverse: Derivative<'a>,
    /// [`jvp`].
    forward: Derivative<'a>,
}

/// Compares the derivatives of a case's outputs with finite differences along so many random directions.
///
/// # Errors
/// [`GradientError`]; derivatives that are wrong are what is returned.
pub fn gradients(case: &Case, directions: usize, seed: u64) -> Result<Gradients, GradientError> {
    let how = Differentiate {
        reverse: &|of, with, by| vjp(of, with, by),
        forward: &|of, by, along| jvp(of, by, along),
    };
    checked(case, directions, seed, how)
}

fn checked(case: &Case, directions: usize, seed: u64, how: Differentiate<'_>) -> Result<Gradients, GradientError> {
    let case = in_doubles(case)?;
    let found = compared(&case, directions, seed, how)?;
    let (Some(wrong), Some(graph)) = (&found.wrong, case.graph.inlined()?) else {
        return Ok(found);
    };
    let nodes = compared(&Case { graph, ..case }, directions, seed, how)?;
    Ok(match &nodes.wrong {
        Some(_) => nodes,
        None => Gradients {
            region: wrong.rule.clone(),
            left: found.left,
            ..nodes
        },
    })
}

/// As [`checked`], with the derivatives that regions have of their own.
fn compared(case: &Case, directions: usize, seed: u64, how: Differentiate<'_>) -> Result<Gradients, GradientError> {
    let graph = &case.graph;
    let is_open = |id: NodeId| {
        let ty = graph.ty(id);
        ty.dtype.is_float() && !ty.shape.iter().any(|d| graph.is_data_bound(d))
    };
    let of: Vec<NodeId> = graph
        .outputs()
        .iter()
        .map(|o| o.node)
        .filter(|id| is_open(*id))
        .collect();
    let floats = |(_, id): &(usize, NodeId)| graph.ty(*id).dtype.is_float();
    let by: Vec<(usize, NodeId)> = graph.inputs().iter().copied().enumerate().filter(floats).collect();
    if of.is_empty() || by.is_empty() {
        return Err(GradientError::Nothing);
    }
    let mut result = Gradients {
        of: of.len(),
        by: by.len(),
        left: left(graph),
        ..Gradients::default()
    };
    all_have_derivatives(case, &of, &by, how)?;
    let mut rng = Rng::new(seed ^ 0x6772_6164);
    for _ in 0..directions {
        match along(case, &of, &by, &mut rng, how)? {
            Direction::Right => result.right += 1,
            Direction::Open => result.open += 1,
            Direction::Wrong {
                forward,
                found,
                expected,
            } => {
                let rule = first_wrong(case, &mut rng, how)?;
                result.wrong = Some(Wrong {
                    forward,
                    found,
                    expected,
                    rule,
                });
                break;
            }
        }
    }
    Ok(result)
}

/// That no operation lacks a derivative, which is known before anything is computed: a loop that nothing bounds need not end.
fn all_have_derivatives(
    case: &Case,
    of: &[NodeId],
    by: &[(usize, NodeId)],
    how: Differentiate<'_>,
) -> Result<(), GradientError> {
    let recording = Recording::from_ir(case.graph.clone());
    let outputs: Vec<Tensor> = of.iter().filter_map(|id| recording.tensor(*id)).collect();
    let wrt: Vec<Tensor> = by.iter().filter_map(|(_, id)| recording.tensor(*id)).collect();
    let cotangents: Vec<Tensor> = outputs
        .iter()
        .map(|y| recording.scalar(1.0, y.dtype()).expand(y.shape()))
        .collect();
    fn refs(all: &[Tensor]) -> Vec<&Tensor> {
        all.iter().collect()
    }
    let derivatives = (how.reverse)(&refs(&outputs), &refs(&cotangents), &refs(&wrt));
    let named: Vec<(&str, &Tensor)> = derivatives.iter().map(|t| ("d", t)).collect();
    recording.extract(&named).map(|_| ()).map_err(refused)
}

/// The first reason that a recording was refused for.
fn refused(e: crate::Errors) -> GradientError {
    let problem = e.iter().map(|e| e.problem.clone()).next();
    GradientError::Refused(problem.unwrap_or_default())
}

/// Constants of several floats inside regions, whose derivatives are of their operands alone.
fn left(graph: &Graph) -> usize {
    let data = |g: &Graph| (g.nodes()).filter(|(_, n)| is_moved(&n.kind)).count();
    let inside = |kind: &NodeKind| match kind {
        NodeKind::Region(r) => data(&r.body.0) + left(&r.body.0),
        NodeKind::Loop(l) => left(&l.body.0),
        _ => 0,
    };
    graph.nodes().map(|(_, n)| inside(&n.kind)).sum()
}

/// Whether a node is a constant that is moved, where it can be.
fn is_moved(kind: &NodeKind) -> bool {
    matches!(kind, NodeKind::Data(data) if data.0.dtype().is_float() && data.0.len() >= 2)
}

/// The case with inputs in place of constants of several floats, and all floats f64.
fn in_doubles(case: &Case) -> Result<Case, GradientError> {
    let captured = case.graph.with_constants_captured()?;
    let from = captured.as_ref().unwrap_or(&case.graph);
    let mut to = Graph::new(from.name.clone());
    to.adopt_symbols(from);
    let mut inputs = Vec::with_capacity(case.inputs.len());
    let mut moved: Vec<NodeId> = Vec::with_capacity(from.len());
    let mut given = case.inputs.iter();
    let is_taken = |name: &str| {
        from.inputs()
            .iter()
            .any(|&i| matches!(&from.node(i).kind, NodeKind::Input { name: n, .. } if n == name))
    };
    for (id, node) in from.nodes() {
        let operands: Vec<NodeId> = node.operands.iter().map(|o| moved[o.index()]).collect();
        let added = match &node.kind {
            NodeKind::Input { name, ty, .. } => {
                inputs.extend(given.next().map(doubles));
                to.add_input(name, ty.clone(), node.origin.clone())?
            }
            NodeKind::Data(data) if is_moved(&node.kind) => {
                let mut name = format!("constant{}", id.0);
                while is_taken(&name) {
                    name.push('\'');
                }
                inputs.push(doubles(&data.0));
                to.add_input(&name, node.ty.clone(), node.origin.clone())?
            }
            kind => to.add(kind.clone(), &operands, node.origin.clone())?,
        };
        moved.push(added);
    }
    for o in from.outputs() {
        to.add_output(&o.name, moved[o.node.index()]);
    }
    Ok(Case {
        graph: graph_in_float(&to, DType::F64, true)?,
        inputs,
        symbols: case.symbols.clone(),
    })
}

/// The tensor in f64, if it has floats.
fn doubles(t: &HostTensor) -> HostTensor {
    if !t.dtype().is_float() {
        return t.clone();
    }
    let all: Vec<f64> = (0..t.len()).map(|i| t.get(i).as_f64()).collect();
    // As many elements as the shape has.
    HostTensor::from_slice(t.shape(), &all).unwrap_or_else(|_| t.clone())
}

/// What a direction says.
enum Direction {
    Right,
    Open,
    Wrong { forward: bool, found: f64, expected: f64 },
}

fn random(rng: &mut Rng, like: &HostTensor) -> HostTensor {
    let all: Vec<f64> = (0..like.len()).map(|_| rng.unit() * 2.0 - 1.0).collect();
    HostTensor::from_slice(like.shape(), &all).unwrap_or_else(|_| like.clone())
}

/// The sum of the products of elements, and of their sizes.
fn product(a: &HostTensor, b: &HostTensor) -> (f64, f64) {
    let terms = (0..a.len().min(b.len())).map(|i| a.get(i).as_f64() * b.get(i).as_f64());
    terms.fold((0.0, 0.0), |(sum, size), t| (sum + t, size + t.abs()))
}

/// Compares along one direction, with random cotangents.
fn along(
    case: &Case,
    of: &[NodeId],
    by: &[(usize, NodeId)],
    rng: &mut Rng,
    how: Differentiate<'_>,
) -> Result<Direction, GradientError> {
    let options = interp::Options {
        symbols: case.symbols.clone(),
        ..interp::Options::default()
    };
    let recording = Recording::from_ir(case.graph.clone());
    let tensor = |id: NodeId| recording.tensor(id).ok_or(GradientError::Nothing);
    let outputs: Vec<Tensor> = of.iter().map(|&id| tensor(id)).collect::<Result<_, _>>()?;
    let named: Vec<(&str, &Tensor)> = outputs.iter().map(|t| ("y", t)).collect();
    let values = recording.extract(&named).map_err(refused)?;
    let middle = interpret(&values, &case.inputs, &options)?;
    let weights: Vec<HostTensor> = middle.iter().map(|y| random(rng, y)).collect();
    let cotangents: Vec<Tensor> = (weights.iter().zip(&outputs))
        .map(|(w, y)| recording.constant(w.clone()).expand(y.shape()))
        .collect();
    let wrt: Vec<Tensor> = by.iter().map(|(_, id)| tensor(*id)).collect::<Result<_, _>>()?;
    fn refs(all: &[Tensor]) -> Vec<&Tensor> {
        all.iter().collect()
    }
    let derivatives = (how.reverse)(&refs(&outputs), &refs(&cotangents), &refs(&wrt));
    let named: Vec<(&str, &Tensor)> = derivatives.iter().map(|t| ("d", t)).collect();
    let gradient = recording.extract(&named).map_err(refused)?;
    let derivatives = interpret(&gradient, &case.inputs, &options)?;

    let directions: Vec<HostTensor> = by.iter().map(|(k, _)| random(rng, &case.inputs[*k])).collect();
    let found: f64 = directions.iter().zip(&derivatives).map(|(v, d)| product(v, d).0).sum();
    let tangents: Vec<Tensor> = (directions.iter().zip(&wrt))
        .map(|(v, x)| recording.constant(v.clone()).expand(x.shape()))
        .collect();
    let ahead = (how.forward)(&refs(&outputs), &refs(&wrt), &refs(&tangents));
    let named: Vec<(&str, &Tensor)> = ahead.iter().map(|t| ("t", t)).collect();
    let ahead = interpret(&recording.extract(&named).map_err(refused)?, &case.inputs, &options)?;
    let ahead: f64 = ahead.iter().zip(&weights).map(|(t, w)| product(t, w).0).sum();
    let moved = |by_how_much: f64| -> Result<(f64, f64), GradientError> {
        let mut inputs = case.inputs.clone();
        for ((k, _), v) in by.iter().zip(&directions) {
            let x = &mut inputs[*k];
            for i in 0..x.len() {
                let at = x.get(i).as_f64() + by_how_much * v.get(i).as_f64();
                x.set(i, Scalar::from_f64(DType::F64, at));
            }
        }
        let all = interpret(&values, &inputs, &options)?;
        let sums = all.iter().zip(&weights).map(|(y, w)| product(y, w));
        Ok(sums.fold((0.0, 0.0), |(a, b), (sum, size)| (a + sum, b + size)))
    };
    // The slope of a line through both sides, how much steeper it is ahead than behind, and the size of the sums' terms.
    let here = moved(0.0)?;
    let differences = |step: f64| -> Result<(f64, f64, f64), GradientError> {
        let (ahead, behind) = (moved(step)?, moved(-step)?);
        let bend = (ahead.0 - here.0 - (here.0 - behind.0)) / step;
        Ok(((ahead.0 - behind.0) / (2.0 * step), bend.abs(), ahead.1.max(behind.1)))
    };
    let ((expected, bend, size), (coarse, wider, _)) = (differences(STEP)?, differences(2.0 * STEP)?);
    // What the terms of the sums round to, divided by the step.
    let rounding = 64.0 * f64::EPSILON * size / STEP;
    let allowed = TOLERANCE * expected.abs().max(found.abs()) + rounding;
    // The bend of a smooth function doubles with the step, that of a corner just here stays.
    let corner = bend > 4.0 * rounding && wider < 1.5 * bend;
    if !expected.is_finite() || (expected - coarse).abs() > allowed / 4.0 || corner {
        return Ok(Direction::Open);
    }
    for (forward, found) in [(false, found), (true, ahead)] {
        if (found - expected).abs() > allowed || found.is_nan() {
            return Ok(Direction::Wrong {
                forward,
                found,
                expected,
            });
        }
    }
    Ok(Direction::Right)
}

/// The first operation whose derivative is wrong by itself.
fn first_wrong(case: &Case, rng: &mut Rng, how: Differentiate<'_>) -> Result<Option<String>, GradientError> {
    let graph = &case.graph;
    let options = interp::Options {
        symbols: case.symbols.clone(),
        ..interp::Options::default()
    };
    let mut values: Vec<Option<HostTensor>> = vec![None; graph.len()];
    interpret_each(graph, &case.inputs, &options, &mut |id, value| {
        values[id.index()] = Some(value.clone());
    })?;
    let types: Vec<(DType, &[usize])> = case.inputs.iter().map(|t| (t.dtype(), t.shape())).collect();
    let Ok(symbols) = tlc_ir::binding::bind_symbols(graph, &types, &case.symbols) else {
        return Ok(None);
    };
    for (id, _) in graph.nodes() {
        if let Some(alone) = by_itself(graph, id, &values, &symbols)? {
            let of: Vec<NodeId> = alone.graph.outputs().iter().map(|o| o.node).collect();
            // What is rounded to another type on the way has no differences to speak of.
            let is_f64 = |id: NodeId| alone.graph.ty(id).dtype == DType::F64;
            let by: Vec<(usize, NodeId)> = (alone.graph.inputs().iter().copied().enumerate())
                .filter(|(_, id)| is_f64(*id))
                .collect();
            if by.is_empty() || !of.iter().copied().all(is_f64) {
                continue;
            }
            for _ in 0..3 {
                if let Ok(Direction::Wrong { .. }) = along(&alone, &of, &by, rng, how) {
                    let node = match graph.node(id) {
                        part if matches!(part.kind, NodeKind::Project(_)) => graph.node(part.operands[0]),
                        node => node,
                    };
                    return Ok(Some(format!("{}{}", node.kind.name(), node.origin.clause())));
                }
            }
        }
    }
    Ok(None)
}

/// A node that has a value of floats as a graph of its own, on the values that its operands had; the calls that it picks
/// results of with it. None of a node without operands, and of sizes that data decides.
fn by_itself(
    graph: &Graph,
    id: NodeId,
    values: &[Option<HostTensor>],
    symbols: &[i64],
) -> Result<Option<Case>, GradientError> {
    let node = graph.node(id);
    let unknown = |id: NodeId| graph.ty(id).shape.iter().any(|d| graph.is_data_bound(d));
    if !node.ty.dtype.is_float() || node.operands.is_empty() || unknown(id) {
        return Ok(None);
    }
    let mut alone = Graph::new("alone");
    alone.adopt_symbols(graph);
    let mut inputs = vec![];
    let mut input = |alone: &mut Graph, id: NodeId| -> Result<Option<NodeId>, GradientError> {
        let Some(value) = values[id.index()].clone() else {
            return Ok(None);
        };
        let ty: TensorType = graph.ty(id).clone();
        let added = alone.add_input(&format!("x{}", inputs.len()), ty, graph.node(id).origin.clone())?;
        inputs.push(value);
        Ok(Some(added))
    };
    let whole = match node.kind {
        NodeKind::Project(_) => graph.node(node.operands[0]),
        _ => node,
    };
    let mut operands = vec![];
    for &o in &whole.operands {
        match input(&mut alone, o)? {
            Some(added) => operands.push(added),
            None => return Ok(None),
        }
    }
    let mut made = alone.add(whole.kind.clone(), &operands, whole.origin.clone())?;
    if let NodeKind::Project(_) = node.kind {
        made = alone.add(node.kind.clone(), &[made], node.origin.clone())?;
    }
    alone.add_output("y", made);
    let all = graph.symbols().iter().zip(symbols);
    let known = all
        .filter(|(s, _)| s.upper.is_none())
        .map(|(s, v)| (s.name.clone(), *v));
    Ok(Some(Case {
        symbols: known.collect(),
        graph: alone,
        inputs,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `softmax(x W)`, with a size that the input gives, and a sort behind it.
    fn case() -> Case {
        let g = Recording::new("network");
        let n = g.symbol("n", 1..=9);
        let x = g.input("x", DType::F32, (&n, 3));
        let w = g.data(&[0.5f32, -1.0, 0.25, 2.0, 1.5, -0.5], &[3, 2]);
        let y = x.matmul(&w).sin().softmax(-1);
        g.output("y", &y);
        g.output("sorted", &y.sort(0, false));
        g.output("at", &y.argmax(0));
        let data = super::super::data::random("x", DType::F32, &[4, 3], 1).unwrap();
        Case {
            graph: g.finish().unwrap(),
            inputs: vec![data],
            symbols: vec![],
        }
    }

    #[test]
    fn right_derivatives_are_right() {
        let found = gradients(&case(), 4, 0).unwrap();
        assert_eq!(found.wrong, None);
        assert_eq!((found.of, found.by, found.right + found.open), (2, 2, 4));
        assert!(found.right >= 2, "{found:?}");
    }

    /// Derivatives that are wrong wherever the values in between go through a sine.
    #[test]
    fn the_first_wrong_rule_is_named() {
        let wrong = |of: &[&Tensor], with: &[&Tensor], by: &[&Tensor]| {
            let sines = |ir: &Graph| ir.nodes().any(|(_, n)| n.kind == NodeKind::Map(tlc_ir::ScalarOp::Sin));
            let has = of[0].graph().with_ir(sines);
            let all = vjp(of, with, by);
            all.iter().map(|d| if has { d * 1.5 } else { d.clone() }).collect()
        };
        let how = Differentiate {
            reverse: &wrong,
            forward: &|of, by, along| jvp(of, by, along),
        };
        let found = checked(&case(), 4, 0, how).unwrap().wrong.unwrap();
        assert!(!found.forward);
        assert!((found.found - 1.5 * found.expected).abs() < 1e-6 * found.expected.abs());
        let rule = found.rule.unwrap();
        assert!(rule.starts_with("sin at src/verify/gradients.rs:"), "{rule}");
    }

    #[test]
    fn what_cannot_be_checked_is_said() {
        let g = Recording::default();
        let x = g.input("x", DType::F32, [2]);
        g.output("at", &x.argmax(0));
        let case = |g: &Recording| Case {
            graph: g.finish().unwrap(),
            inputs: vec![HostTensor::from_slice(&[2], &[1.0f32, 2.0]).unwrap()],
            symbols: vec![],
        };
        assert_eq!(gradients(&case(&g), 1, 0), Err(GradientError::Nothing));
        let y = g.repeat_while(&x.sum(..).gt(0.0)).carry(&x).record(|i| {
            i.go_on_if(&i.carried[0].sum(..).gt(0.0));
            vec![&i.carried[0] - 1.0]
        });
        g.output("y", &y[0]);
        let error = gradients(&case(&g), 1, 0).unwrap_err().to_string();
        assert!(error.contains("nothing bounds its iterations"), "{error}");
    }
}
