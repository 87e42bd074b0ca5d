//! The bounded mode: values in f64 beside a bound on how far a right implementation may be from them.
//!
//! Invariants:
//! - Integers and bools are exact as in the plain mode, with a mark where they depend on a float that could have come out
//!   otherwise; floats carry the error bounds that [`approx`] and [`sums`] derive. A tolerance is never chosen.
//! - Where products of f32 may be computed less exactly ([`Precision`]), the bound says so: each operand of a sum of products is off by
//!   what rounding it to tf32 may do to a number of its magnitude, unless it is exact and a tf32. Like those of sums, the bound is
//!   relative to magnitudes, so that products may be reordered.
//! - What could be anything (an overflow that may or may not happen, a branch that may go either way with consequences that
//!   cannot be bounded) has an infinite error, and [`compare`] passes over it. [`Bounded::uncertain`] counts such elements, so
//!   that a test can insist that most were checked.
//! - An error of exactly 0 means that the written semantics fix the element to the bit (the sign of a zero apart).

pub(super) mod approx;
mod compare;
mod control;
mod sums;

use std::sync::Arc;

use crate::dtype::{DType, Scalar};
use crate::graph::{Graph, HostFunction, Monoid, NodeId, NodeKind, Semiring, View};
use crate::precision::Precision;
use crate::scalar::ScalarOp;
use crate::tensor::{HostTensor, TensorError};

use super::combine::{Contraction, Prefix};
use super::indexing::{self, Indices};
use super::lanes::{Writer, floats};
use super::space::Groups;
use super::{Domain, InterpError, Options, Step, compute, elementwise, run};
use approx::Approx;
pub use compare::{Mismatch, compare};
use sums::{Fold, Ring};

/// A result with its error bounds, element by element in C order.
#[derive(Clone, Debug)]
pub struct Bounded {
    /// Element type that an implementation computes.
    pub dtype: DType,
    /// Extents.
    pub shape: Vec<usize>,
    /// The value in f64; for integers beyond 2^53 rounded, see `exact`.
    pub value: Vec<f64>,
    /// The value with absolute values in place of signed terms.
    pub magnitude: Vec<f64>,
    /// How far a right implementation may be from the value; infinite where anything is possible.
    pub error: Vec<f64>,
    /// The elements of a bool or integer result.
    pub exact: Option<HostTensor>,
}

impl Bounded {
    /// Number of elements that cannot be checked.
    pub fn uncertain(&self) -> usize {
        self.error.iter().filter(|e| **e == f64::INFINITY).count()
    }
}

/// Computes the outputs of a graph in f64 with error bounds.
///
/// # Errors
/// As [`super::interpret`].
pub fn interpret_with_bounds(
    graph: &Graph,
    inputs: &[HostTensor],
    options: &Options,
) -> Result<Vec<Bounded>, InterpError> {
    interpret_each_with_bounds(graph, inputs, options, &mut |_| false, &mut |_, _| None)
}

/// As [`interpret_with_bounds`], and calls `seen` with the value of each node that an output needs and that `wanted`
/// names, in order. No more than one such value is kept at a time. Where `seen` returns a tensor (of the node's type), what
/// follows is computed from that tensor, as if it were given: so each part of a computation can be judged by itself.
///
/// # Errors
/// As [`super::interpret`].
pub fn interpret_each_with_bounds(
    graph: &Graph,
    inputs: &[HostTensor],
    options: &Options,
    wanted: &mut dyn FnMut(NodeId) -> bool,
    seen: &mut dyn FnMut(NodeId, Bounded) -> Option<HostTensor>,
) -> Result<Vec<Bounded>, InterpError> {
    let domain = Bounds {
        precision: options.precision,
    };
    let mut each = |id: NodeId, value: &Value| match wanted(id) {
        true => seen(id, value.clone().into_bounded()),
        false => None,
    };
    Ok(run(&domain, graph, inputs, options, &mut each)?
        .into_iter()
        .map(Value::into_bounded)
        .collect())
}

/// Marks of uncertain elements; absent if there is none.
type Marks = Option<Arc<Vec<bool>>>;

fn marks(all: Vec<bool>) -> Marks {
    all.contains(&true).then(|| Arc::new(all))
}

/// A value under way.
#[derive(Clone)]
enum Value {
    /// Bools, integers and storage types.
    Exact { tensor: HostTensor, uncertain: Marks },
    /// Floats.
    Float {
        dtype: DType,
        shape: Vec<usize>,
        elements: Arc<Vec<Approx>>,
    },
}

impl Value {
    fn float(dtype: DType, shape: &[usize], elements: Vec<Approx>) -> Value {
        Value::Float {
            dtype,
            shape: shape.to_vec(),
            elements: Arc::new(elements),
        }
    }

    fn shape(&self) -> &[usize] {
        match self {
            Value::Exact { tensor, .. } => tensor.shape(),
            Value::Float { shape, .. } => shape,
        }
    }

    /// The tensor of bools or integers; for floats, the values rounded to the dtype.
    fn tensor(&self, step: &Step<'_>) -> Result<HostTensor, InterpError> {
        match self {
            Value::Exact { tensor, .. } => Ok(tensor.clone()),
            Value::Float { dtype, shape, elements } => Ok(Writer::new(*dtype, shape)
                .map_err(|e| step.failed(e))?
                .fill(|i| Scalar::from_f64(*dtype, elements[i].value).bits())),
        }
    }

    fn marks(&self) -> Marks {
        match self {
            Value::Exact { uncertain, .. } => uncertain.clone(),
            Value::Float { elements, .. } => marks(elements.iter().map(|x| x.is_uncertain()).collect()),
        }
    }

    fn is_marked(&self, i: usize) -> bool {
        match self {
            Value::Exact { uncertain, .. } => uncertain.as_ref().is_some_and(|m| m[i]),
            Value::Float { elements, .. } => elements[i].is_uncertain(),
        }
    }

    /// As floats of a dtype, with the semantics of `convert`.
    fn to_float(&self, to: DType) -> Arc<Vec<Approx>> {
        match self {
            Value::Float { dtype, elements, .. } if *dtype == to => elements.clone(),
            Value::Float { dtype, elements, .. } => {
                Arc::new(elements.iter().map(|x| approx::convert(*x, *dtype, to)).collect())
            }
            Value::Exact { tensor, uncertain } => Arc::new(
                (0..tensor.len())
                    .map(|i| {
                        let v = tensor.get(i).convert(to).as_f64();
                        let marked = uncertain.as_ref().is_some_and(|m| m[i]);
                        if marked { Approx::uncertain(v) } else { Approx::exact(v) }
                    })
                    .collect(),
            ),
        }
    }

    /// As bools or integers, with the semantics of `convert`.
    fn to_exact(&self, step: &Step<'_>, to: DType) -> Result<Value, InterpError> {
        Ok(match self {
            Value::Exact { tensor, uncertain } => Value::Exact {
                tensor: elementwise::convert(tensor, to).map_err(|e| step.failed(e))?,
                uncertain: uncertain.clone(),
            },
            Value::Float { shape, elements, .. } => {
                let at = |v: f64| Scalar::from_f64(to, v).bits();
                let jumps = |x: &Approx| {
                    let (lo, hi) = x.ends();
                    let whole = (at(lo), at(x.value), at(hi));
                    // To bool, zero inside the interval is a jump that the ends do not see.
                    let zero = to == DType::Bool && !x.is_exact() && x.value.abs() <= x.error;
                    x.is_uncertain() || whole.0 != whole.1 || whole.1 != whole.2 || zero
                };
                Value::Exact {
                    tensor: Writer::new(to, shape)
                        .map_err(|e| step.failed(e))?
                        .fill(|i| at(elements[i].value)),
                    uncertain: marks(elements.iter().map(jumps).collect()),
                }
            }
        })
    }

    /// The same bits as another dtype. What is not exact has other bits than are known, as have NaN and zero, whose sign
    /// the operation that made them left open.
    fn bitcast(&self, step: &Step<'_>, to: DType) -> Result<Value, InterpError> {
        // The same number, of which no more and no less is known.
        if matches!(self, Value::Float { dtype, .. } if *dtype == to) {
            return Ok(self.clone());
        }
        let tensor = self.tensor(step)?.bitcast(to).map_err(|e| step.failed(e))?;
        let open = |i: usize| match self {
            Value::Exact { .. } => self.is_marked(i),
            Value::Float { elements, .. } => {
                let x = elements[i];
                !x.is_exact() || x.value.is_nan() || x.value == 0.0
            }
        };
        let open: Vec<bool> = (0..tensor.len()).map(open).collect();
        if !to.is_float() {
            let uncertain = marks(open);
            return Ok(Value::Exact { tensor, uncertain });
        }
        let element = |(v, &open): (f64, &bool)| if open { Approx::uncertain(v) } else { Approx::exact(v) };
        let elements = floats(&tensor).into_iter().zip(&open).map(element).collect();
        Ok(Value::float(to, tensor.shape(), elements))
    }

    fn into_bounded(self) -> Bounded {
        match self {
            Value::Float { dtype, shape, elements } => Bounded {
                dtype,
                shape,
                value: elements.iter().map(|x| x.value).collect(),
                magnitude: elements.iter().map(|x| x.magnitude).collect(),
                error: elements.iter().map(|x| x.error).collect(),
                exact: None,
            },
            Value::Exact { tensor, uncertain } => {
                let value: Vec<f64> = (0..tensor.len()).map(|i| tensor.get(i).as_f64()).collect();
                let error = |i| {
                    if uncertain.as_ref().is_some_and(|m| m[i]) {
                        f64::INFINITY
                    } else {
                        0.0
                    }
                };
                Bounded {
                    dtype: tensor.dtype(),
                    shape: tensor.shape().to_vec(),
                    magnitude: value.iter().map(|v| v.abs()).collect(),
                    error: (0..value.len()).map(error).collect(),
                    value,
                    exact: Some(tensor),
                }
            }
        }
    }
}

/// Values with error bounds.
struct Bounds {
    precision: Precision,
}

impl Domain for Bounds {
    type Value = Value;

    fn leaf(&self, tensor: &HostTensor) -> Value {
        if tensor.dtype().is_float() {
            let elements = floats(tensor).into_iter().map(Approx::exact).collect();
            Value::float(tensor.dtype(), tensor.shape(), elements)
        } else {
            Value::Exact {
                tensor: tensor.clone(),
                uncertain: None,
            }
        }
    }

    fn element_bytes(&self, dtype: DType) -> u64 {
        if dtype.is_float() {
            size_of::<Approx>() as u64
        } else {
            dtype.bytes() as u64 + 1
        }
    }

    fn compute(&self, step: &Step<'_>, operands: &[&Value]) -> Result<Value, InterpError> {
        let (shape, dtype) = (&step.shape[..], step.node.ty.dtype);
        let is_float = |v: &&Value| matches!(v, Value::Float { .. });
        let any_float = operands.iter().any(is_float);
        match &step.node.kind {
            NodeKind::Copy => Ok(operands[0].clone()),
            NodeKind::Convert(to) if to.is_float() => Ok(Value::Float {
                dtype,
                shape: shape.to_vec(),
                elements: operands[0].to_float(*to),
            }),
            NodeKind::Convert(to) => operands[0].to_exact(step, *to),
            NodeKind::Bitcast(to) => operands[0].bitcast(step, *to),
            NodeKind::Map(op) if any_float => self.map(step, *op, operands),
            NodeKind::Einsum {
                inputs,
                output,
                semiring,
                accumulator,
                dtype,
            } => {
                let node = Contraction {
                    inputs,
                    output,
                    semiring: *semiring,
                    accumulator: *accumulator,
                    dtype: *dtype,
                };
                einsum(step, &node, operands, self.precision)
            }
            NodeKind::Reduce { monoid, axes } if any_float => reduce(
                step,
                *monoid,
                axes,
                operands[0].shape(),
                &operands[0].to_float(float_dtype(operands[0])),
            ),
            NodeKind::Scan {
                monoid,
                axis,
                exclusive,
                reverse,
            } if any_float => {
                let node = Prefix {
                    monoid: *monoid,
                    axis: *axis,
                    exclusive: *exclusive,
                    reverse: *reverse,
                };
                Ok(Value::float(
                    dtype,
                    shape,
                    scan(node, dtype, shape, operands[0].to_float(dtype).to_vec()),
                ))
            }
            NodeKind::View(view) if any_float => {
                let (from, elements) = (operands[0].shape(), operands[0].to_float(dtype));
                let fill = match view {
                    View::Pad { value, .. } => Approx::exact(value.as_f64()),
                    _ => Approx::exact(0.0),
                };
                let mut target = vec![fill; elements_of(shape)];
                step.movement(view, from)?
                    .apply(&elements, from, shape, fill, &mut target);
                Ok(Value::float(dtype, shape, target))
            }
            NodeKind::Gather { axes } if any_float => {
                let indices = indices(step, &operands[1..])?;
                let zero = Approx::exact(0.0);
                let mut target = vec![zero; elements_of(shape)];
                let from = operands[0].shape();
                indexing::gather(&operands[0].to_float(dtype), from, axes, &indices, zero, &mut target);
                mark_rows(&operands[1..], &mut target, |x| *x = Approx::uncertain(x.value));
                Ok(Value::float(dtype, shape, target))
            }
            NodeKind::Scatter { axes, op } if any_float => {
                let indices = indices(step, &operands[2..])?;
                let mut target = operands[0].to_float(dtype).to_vec();
                let updates = operands[1].to_float(dtype);
                indexing::scatter(shape, axes, &indices, updates.len(), |at, from| {
                    target[at] = match op.combine() {
                        Some(op) => approx::map(op, dtype, &[target[at], updates[from]]),
                        None => updates[from],
                    };
                });
                if !updates.is_empty() && operands[2..].iter().any(|v| v.marks().is_some()) {
                    target.iter_mut().for_each(|x| *x = Approx::uncertain(x.value));
                }
                Ok(Value::float(dtype, shape, target))
            }
            _ => exact_node(step, operands),
        }
    }

    fn call(&self, step: &Step<'_>, function: &HostFunction, operands: &[&Value]) -> Result<Vec<Value>, InterpError> {
        control::call(step, function, operands)
    }

    fn number(&self, value: &Value) -> (i64, bool) {
        match value {
            Value::Exact { tensor, .. } => (tensor.get(0).as_i64(), !value.is_marked(0)),
            Value::Float { elements, .. } => (elements[0].value as i64, false),
        }
    }

    fn doubt(&self, value: Value) -> Value {
        control::doubt(value)
    }

    fn element(&self, value: &Value, axis: usize, at: usize) -> Result<Value, TensorError> {
        control::element(value, axis, at)
    }

    fn stack(&self, dtype: DType, shape: &[usize], axis: usize, parts: &[Option<Value>]) -> Result<Value, TensorError> {
        control::stack(dtype, shape, axis, parts)
    }
}

impl Bounds {
    /// A map with a float among its operands.
    fn map(&self, step: &Step<'_>, op: ScalarOp, operands: &[&Value]) -> Result<Value, InterpError> {
        let (shape, dtype) = (&step.shape[..], step.node.ty.dtype);
        let last = operands[operands.len() - 1];
        let of = float_dtype(last);
        let args: Vec<Arc<Vec<Approx>>> = match op {
            ScalarOp::Select => operands[1..].iter().map(|v| v.to_float(of)).collect(),
            _ => operands.iter().map(|v| v.to_float(of)).collect(),
        };
        let count = elements_of(shape);
        match op {
            ScalarOp::Select => {
                let Value::Exact { tensor, uncertain } = operands[0] else {
                    return Err(InterpError::Invalid {
                        node: step.id,
                        problem: "a float condition".into(),
                    });
                };
                let pick = |i: usize| {
                    let (a, b) = (args[0][i], args[1][i]);
                    let (taken, other) = if tensor.bytes()[i] != 0 { (a, b) } else { (b, a) };
                    if !uncertain.as_ref().is_some_and(|m| m[i]) {
                        return taken;
                    }
                    let apart = (taken.value - other.value).abs() * (1.0 + 1e-9);
                    let error = taken.error.max(apart + other.error);
                    if error.is_finite() && other.error.is_finite() {
                        Approx {
                            error,
                            magnitude: taken.magnitude.max(other.magnitude),
                            ..taken
                        }
                    } else {
                        Approx::uncertain(taken.value)
                    }
                };
                Ok(Value::float(dtype, shape, (0..count).map(pick).collect()))
            }
            ScalarOp::Eq | ScalarOp::Ne | ScalarOp::Lt | ScalarOp::Le => {
                let holds = |i: usize| {
                    let (x, y) = (args[0][i].value, args[1][i].value);
                    match op {
                        ScalarOp::Eq => x == y,
                        ScalarOp::Ne => x != y,
                        ScalarOp::Lt => x < y,
                        _ => x <= y,
                    }
                };
                let jumps = |i: usize| !approx::comparison_is_certain(args[0][i], args[1][i]);
                Ok(Value::Exact {
                    tensor: Writer::new(DType::Bool, shape)
                        .map_err(|e| step.failed(e))?
                        .fill(|i| holds(i) as u64),
                    uncertain: marks((0..count).map(jumps).collect()),
                })
            }
            _ => {
                let at = |i: usize| {
                    let mut v = [Approx::exact(0.0); 3];
                    v.iter_mut().zip(&args).for_each(|(slot, a)| *slot = a[i]);
                    match self.precision.approximates() {
                        true => approx::approximate_map(op, dtype, &v[..args.len()]),
                        false => approx::map(op, dtype, &v[..args.len()]),
                    }
                };
                Ok(Value::float(dtype, shape, (0..count).map(at).collect()))
            }
        }
    }
}

fn elements_of(shape: &[usize]) -> usize {
    crate::tensor::element_count(shape).unwrap_or(0)
}

fn float_dtype(v: &Value) -> DType {
    match v {
        Value::Float { dtype, .. } => *dtype,
        Value::Exact { .. } => DType::F64,
    }
}

fn indices(step: &Step<'_>, values: &[&Value]) -> Result<Indices, InterpError> {
    let tensors: Result<Vec<HostTensor>, InterpError> = values.iter().map(|v| v.tensor(step)).collect();
    Ok(Indices::new(&tensors?.iter().collect::<Vec<_>>()))
}

/// Marks the result rows whose index is uncertain.
fn mark_rows<T>(indices: &[&Value], target: &mut [T], mut mark: impl FnMut(&mut T)) {
    let positions = elements_of(indices[0].shape());
    if positions == 0 || target.is_empty() {
        return;
    }
    let row = target.len() / positions;
    for (i, row) in target.chunks_mut(row).enumerate() {
        if indices.iter().any(|v| v.is_marked(i)) {
            row.iter_mut().for_each(&mut mark);
        }
    }
}

fn einsum(
    step: &Step<'_>,
    node: &Contraction<'_>,
    operands: &[&Value],
    precision: Precision,
) -> Result<Value, InterpError> {
    let shapes: Vec<&[usize]> = operands.iter().map(|v| v.shape()).collect();
    let acc = node.accumulator;
    if acc.is_float() {
        let mut values: Vec<Arc<Vec<Approx>>> = operands.iter().map(|v| v.to_float(acc)).collect();
        let multiplies = node.semiring == Semiring::AddMul && acc == DType::F32 && values.len() > 1;
        if multiplies && precision.of_products() == Precision::Tf32 {
            // Of more than two operands, what some of them come to is one as well: each is rounded twice at most.
            let times = if values.len() > 2 { 2.0 } else { 1.0 };
            for v in &mut values {
                *v = Arc::new(v.iter().map(|x| approx::as_tf32(*x, times)).collect());
            }
        }
        let halves = multiplies
            && operands
                .iter()
                .all(|v| matches!(v, Value::Float { dtype: DType::BF16, .. }));
        if halves {
            for v in &mut values {
                *v = Arc::new(v.iter().map(|x| approx::flushed(*x)).collect());
            }
        }
        let mut out = Vec::new();
        node.groups(&shapes).run(
            || Ring::new(node.semiring, (acc, halves), values.len()),
            |ring, offsets, run, steps| {
                for i in 0..run as i64 {
                    let factors = values.iter().zip(offsets.iter().zip(steps));
                    ring.push(acc, factors.map(|(v, (o, s))| v[(o + i * s) as usize]));
                }
            },
            |ring| out.push(ring.finish(acc, acc)),
        );
        let carried = Value::float(acc, &step.shape, out);
        return if node.dtype.is_float() {
            Ok(Value::Float {
                dtype: node.dtype,
                shape: step.shape.clone(),
                elements: carried.to_float(node.dtype),
            })
        } else {
            carried.to_exact(step, node.dtype)
        };
    }
    let converted: Result<Vec<Value>, InterpError> = operands.iter().map(|v| v.to_exact(step, acc)).collect();
    let converted = converted?;
    let carried = Contraction { dtype: acc, ..*node };
    let tensors: Result<Vec<HostTensor>, InterpError> = converted.iter().map(|v| v.tensor(step)).collect();
    let tensors = tensors?;
    let tensor = super::combine::einsum(&carried, &tensors.iter().collect::<Vec<_>>(), &step.shape);
    let mut uncertain = None;
    if converted.iter().any(|v| v.marks().is_some()) {
        let mut out = Vec::new();
        node.groups(&shapes).run(
            || false,
            |any, offsets, run, steps| {
                for i in 0..run as i64 {
                    let mut at = converted.iter().zip(offsets.iter().zip(steps));
                    *any |= at.any(|(v, (o, s))| v.is_marked((o + i * s) as usize));
                }
            },
            |any| out.push(any),
        );
        uncertain = marks(out);
    }
    let carried = Value::Exact {
        tensor: tensor.map_err(|e| step.failed(e))?,
        uncertain,
    };
    if node.dtype.is_float() {
        Ok(Value::Float {
            dtype: node.dtype,
            shape: step.shape.clone(),
            elements: carried.to_float(node.dtype),
        })
    } else {
        carried.to_exact(step, node.dtype)
    }
}

fn reduce(
    step: &Step<'_>,
    monoid: Monoid,
    axes: &[u8],
    from: &[usize],
    elements: &[Approx],
) -> Result<Value, InterpError> {
    let mut groups = Groups::reduction(from, axes);
    if monoid.is_arg() {
        let (mut positions, mut uncertain) = (Vec::new(), Vec::new());
        groups.run(
            Vec::new,
            |all, offsets, run, steps| {
                all.extend((0..run as i64).map(|i| elements[(offsets[0] + i * steps[0]) as usize]));
            },
            |all| {
                let (at, certain) = sums::winner(monoid.combine(), &all);
                positions.push(at as u64);
                uncertain.push(!certain);
            },
        );
        return Ok(Value::Exact {
            tensor: Writer::new(DType::I64, &step.shape)
                .map_err(|e| step.failed(e))?
                .fill(|i| positions[i]),
            uncertain: marks(uncertain),
        });
    }
    let dtype = step.node.ty.dtype;
    let mut out = Vec::new();
    groups.run(
        || Fold::new(monoid, dtype),
        |fold, offsets, run, steps| {
            for i in 0..run as i64 {
                fold.push(elements[(offsets[0] + i * steps[0]) as usize]);
            }
        },
        |fold| out.push(fold.finish(dtype)),
    );
    Ok(Value::float(dtype, &step.shape, out))
}

fn scan(node: Prefix, dtype: DType, shape: &[usize], mut elements: Vec<Approx>) -> Vec<Approx> {
    node.lines(shape, |first, step, count| {
        let mut fold = Fold::new(node.monoid, dtype);
        let mut at = first;
        for _ in 0..count {
            let x = elements[at as usize];
            if node.exclusive {
                elements[at as usize] = fold.finish(dtype);
            }
            fold.push(x);
            if !node.exclusive {
                elements[at as usize] = fold.finish(dtype);
            }
            at += step;
        }
    });
    elements
}

/// A node over bools and integers: the plain value, and which elements depend on uncertain ones.
fn exact_node(step: &Step<'_>, operands: &[&Value]) -> Result<Value, InterpError> {
    let tensors: Result<Vec<HostTensor>, InterpError> = operands.iter().map(|v| v.tensor(step)).collect();
    let tensors = tensors?;
    let tensor = compute(step, &tensors.iter().collect::<Vec<_>>())?;
    if tensor.dtype().is_float() {
        // Only leaves without operands (iota) make floats of no float.
        let elements = floats(&tensor).into_iter().map(Approx::exact).collect();
        return Ok(Value::float(tensor.dtype(), tensor.shape(), elements));
    }
    let mut uncertain = None;
    if operands.iter().any(|v| v.marks().is_some()) {
        uncertain = marks(propagate(step, operands, &tensors, tensor.len())?);
    }
    Ok(Value::Exact { tensor, uncertain })
}

/// Which elements of a node depend on marked elements of its operands.
fn propagate(
    step: &Step<'_>,
    operands: &[&Value],
    tensors: &[HostTensor],
    count: usize,
) -> Result<Vec<bool>, InterpError> {
    let all = |v: &Value| -> Vec<bool> { (0..elements_of(v.shape())).map(|i| v.is_marked(i)).collect() };
    let shape = &step.shape[..];
    Ok(match &step.node.kind {
        NodeKind::Map(ScalarOp::Select) => (0..count)
            .map(|i| {
                let (a, b) = (operands[1].is_marked(i), operands[2].is_marked(i));
                if operands[0].is_marked(i) {
                    a || b || tensors[1].get(i) != tensors[2].get(i)
                } else if tensors[0].get(i).as_bool() {
                    a
                } else {
                    b
                }
            })
            .collect(),
        NodeKind::Map(_) => (0..count).map(|i| operands.iter().any(|v| v.is_marked(i))).collect(),
        NodeKind::Reduce { axes, .. } => {
            let marked = all(operands[0]);
            let mut out = Vec::new();
            Groups::reduction(operands[0].shape(), axes).run(
                || false,
                |any, o, run, s| *any |= (0..run as i64).any(|i| marked[(o[0] + i * s[0]) as usize]),
                |any| out.push(any),
            );
            out
        }
        NodeKind::Scan {
            monoid, axis, reverse, ..
        } => {
            let mut marked = all(operands[0]);
            let node = Prefix {
                monoid: *monoid,
                axis: *axis,
                exclusive: false,
                reverse: *reverse,
            };
            node.lines(shape, |first, along, n| {
                let mut any = false;
                for i in 0..n as i64 {
                    let at = (first + i * along) as usize;
                    any |= marked[at];
                    marked[at] = any;
                }
            });
            marked
        }
        NodeKind::View(view) => {
            let mut out = vec![false; count];
            let from = operands[0].shape();
            step.movement(view, from)?
                .apply(&all(operands[0]), from, shape, false, &mut out);
            out
        }
        NodeKind::Gather { axes } => {
            let mut out = vec![false; count];
            let indices = Indices::new(&tensors[1..].iter().collect::<Vec<_>>());
            indexing::gather(&all(operands[0]), operands[0].shape(), axes, &indices, false, &mut out);
            mark_rows(&operands[1..], &mut out, |m| *m = true);
            out
        }
        NodeKind::Scatter { axes, op } => {
            let updates = all(operands[1]);
            if !updates.is_empty() && operands[2..].iter().any(|v| v.marks().is_some()) {
                return Ok(vec![true; count]);
            }
            let mut out = all(operands[0]);
            let indices = Indices::new(&tensors[2..].iter().collect::<Vec<_>>());
            indexing::scatter(shape, axes, &indices, updates.len(), |at, from| {
                out[at] = updates[from] || (op.combine().is_some() && out[at]);
            });
            out
        }
        // What is left (random bits under an uncertain key) depends on everything.
        _ => vec![true; count],
    })
}
