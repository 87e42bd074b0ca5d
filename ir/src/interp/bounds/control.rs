//! What loops and host functions do with bounded values.

use std::sync::Arc;

use crate::dtype::{DType, Scalar};
use crate::graph::HostFunction;
use crate::interp::repeat::{around, element_of, element_of_tensor, stack_tensors, stacked, without};
use crate::interp::{InterpError, Step, extents, host, no_extent};
use crate::tensor::{HostTensor, TensorError};

use super::approx::Approx;
use super::{Value, elements_of, marks};

/// The value with every element uncertain.
pub(super) fn doubt(value: Value) -> Value {
    match value {
        Value::Exact { tensor, .. } => {
            let uncertain = marks(vec![true; tensor.len()]);
            Value::Exact { tensor, uncertain }
        }
        Value::Float { dtype, shape, elements } => {
            let all = elements.iter().map(|x| Approx::uncertain(x.value)).collect();
            Value::float(dtype, &shape, all)
        }
    }
}

/// One position of an axis.
pub(super) fn element(value: &Value, axis: usize, at: usize) -> Result<Value, TensorError> {
    Ok(match value {
        Value::Exact { tensor, uncertain } => Value::Exact {
            tensor: element_of_tensor(tensor, axis, at)?,
            uncertain: uncertain
                .as_ref()
                .and_then(|m| marks(element_of(m, tensor.shape(), axis, at, 1))),
        },
        Value::Float { dtype, shape, elements } => {
            let part = element_of(elements, shape, axis, at, 1);
            Value::float(*dtype, &without(shape, axis), part)
        }
    })
}

/// Parts side by side.
pub(super) fn stack(dtype: DType, shape: &[usize], axis: usize, parts: &[Option<Value>]) -> Result<Value, TensorError> {
    if dtype.is_float() {
        let floats: Vec<Option<Arc<Vec<Approx>>>> =
            parts.iter().map(|p| p.as_ref().map(|v| v.to_float(dtype))).collect();
        let views: Vec<Option<&[Approx]>> = floats.iter().map(|p| p.as_ref().map(|v| &v[..])).collect();
        let all = stacked(&views, shape, axis, 1, Approx::exact(0.0));
        return Ok(Value::float(dtype, shape, all));
    }
    let tensors: Vec<Option<&HostTensor>> = parts
        .iter()
        .map(|p| match p {
            Some(Value::Exact { tensor, .. }) => Some(tensor),
            _ => None,
        })
        .collect();
    let flags: Vec<Option<Vec<bool>>> = parts
        .iter()
        .map(|p| {
            p.as_ref()
                .map(|v| (0..elements_of(v.shape())).map(|i| v.is_marked(i)).collect())
        })
        .collect();
    let views: Vec<Option<&[bool]>> = flags.iter().map(|p| p.as_ref().map(|v| &v[..])).collect();
    Ok(Value::Exact {
        tensor: stack_tensors(dtype, shape, axis, &tensors)?,
        uncertain: marks(stacked(&views, shape, axis, 1, false)),
    })
}

/// The results of a host function.
pub(super) fn call(step: &Step<'_>, function: &HostFunction, operands: &[&Value]) -> Result<Vec<Value>, InterpError> {
    match function {
        HostFunction::Sort { axis, descending, .. } => {
            let shape = extents(&step.node.results[0].shape, step.symbols).ok_or_else(|| no_extent(step.id))?;
            sort(step, operands[0], &shape, *axis as usize, *descending)
        }
        _ => {
            let tensors: Result<Vec<HostTensor>, InterpError> = operands.iter().map(|v| v.tensor(step)).collect();
            let results = host::call(step, function, &tensors?.iter().collect::<Vec<_>>())?;
            // Exact elements give exact results; anything else could give any others.
            let exact = operands.iter().all(|v| match v {
                Value::Exact { uncertain, .. } => uncertain.is_none(),
                Value::Float { elements, .. } => elements.iter().all(|x| x.is_exact()),
            });
            Ok(results
                .iter()
                .map(|t| match exact {
                    true => leaf(t),
                    false => doubt(leaf(t)),
                })
                .collect())
        }
    }
}

fn leaf(tensor: &HostTensor) -> Value {
    if tensor.dtype().is_float() {
        let elements = crate::interp::lanes::floats(tensor).into_iter().map(Approx::exact);
        return Value::float(tensor.dtype(), tensor.shape(), elements.collect());
    }
    Value::Exact {
        tensor: tensor.clone(),
        uncertain: None,
    }
}

/// The k-th of a row moves at most as far as its elements do; where an element stands is certain if no other could have
/// come out on its other side.
fn sort(step: &Step<'_>, x: &Value, shape: &[usize], axis: usize, descending: bool) -> Result<Vec<Value>, InterpError> {
    let from = x.shape().to_vec();
    let (inner, extent, count) = (around(&from, axis).1.max(1), from[axis], shape[axis]);
    let tensor = match x {
        Value::Exact { tensor, .. } => tensor.clone(),
        Value::Float { elements, .. } => {
            let values: Vec<f64> = elements.iter().map(|e| e.value).collect();
            HostTensor::from_slice(&from, &values).map_err(|e| step.failed(e))?
        }
    };
    let rows = host::places(&tensor, axis, extent, descending);
    let failed = |e| step.failed(e);
    let mut places = HostTensor::zeros(DType::I64, shape).map_err(failed)?;
    let mut unsure = vec![false; elements_of(shape)];
    let mut sources = vec![0usize; elements_of(shape)];
    // How far any element of each row may be off.
    let mut spread = vec![0.0f64; rows.len()];
    for (row, order) in rows.iter().enumerate() {
        let (o, i) = (row / inner, row % inner);
        let at = |place: usize| (o * extent + place) * inner + i;
        let (value, error) = match x {
            Value::Exact { uncertain, .. } => {
                let marked = |p: usize| uncertain.as_ref().is_some_and(|m| m[at(p)]);
                (None, if (0..extent).any(marked) { f64::INFINITY } else { 0.0 })
            }
            Value::Float { elements, .. } => {
                let most = (0..extent).map(|p| elements[at(p)].error).fold(0.0, f64::max);
                (Some(elements), most)
            }
        };
        spread[row] = error;
        let apart = |a: usize, b: usize| match value {
            _ if error == 0.0 => true,
            None => false,
            Some(v) => {
                let (a, b) = (v[at(a)].value, v[at(b)].value);
                a.is_nan() != b.is_nan() && error.is_finite() || (a - b).abs() > 2.0 * error
            }
        };
        for k in 0..count {
            let to = (o * count + k) * inner + i;
            let before = k == 0 || apart(order[k - 1], order[k]);
            let behind = k + 1 >= extent || apart(order[k], order[k + 1]);
            unsure[to] = !(before && behind);
            sources[to] = at(order[k]);
            places.set(to, Scalar::from_i64(DType::I64, order[k] as i64));
        }
    }
    let row_of = |to: usize| to / (count * inner).max(1) * inner + to % inner;
    let values = match x {
        Value::Exact { tensor, .. } => {
            let mut out = HostTensor::zeros(tensor.dtype(), shape).map_err(failed)?;
            sources
                .iter()
                .enumerate()
                .for_each(|(to, &s)| out.set(to, tensor.get(s)));
            Value::Exact {
                tensor: out,
                uncertain: marks((0..sources.len()).map(|to| spread[row_of(to)] > 0.0).collect()),
            }
        }
        Value::Float { dtype, elements, .. } => {
            let all = sources.iter().enumerate().map(|(to, &s)| Approx {
                error: spread[row_of(to)],
                ..elements[s]
            });
            Value::float(*dtype, shape, all.collect())
        }
    };
    let places = Value::Exact {
        tensor: places,
        uncertain: marks(unsure),
    };
    Ok(vec![values, places])
}
