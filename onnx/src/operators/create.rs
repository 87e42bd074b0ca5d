//! Tensors from attributes and numbers.

use tlc_ir::{DType, HostTensor};

use crate::call::{Answer, Call, one};
use crate::refusal::{Outcome, invalid, unsupported};
use crate::value::{Value, size_value};
use tlc_formats::onnx::AttributeKind;
use tlc_record::Tensor;
use tlc_record::dim::Dim;

pub(super) fn constant(c: &mut Call<'_, '_, '_>) -> Answer {
    let graph = c.graph();
    let mut given = c.node.attributes().filter(|a| !a.name().starts_with("__"));
    let (Some(a), None) = (given.next(), given.next()) else {
        let known = c.node.attributes().count();
        return invalid(format!("{known} attributes; expected one, the value"));
    };
    let Some(a) = c.attribute(a.name()) else {
        return invalid("an attribute that the call does not give; expected the value");
    };
    let data = match a.kind() {
        AttributeKind::Tensor => match a.tensor() {
            Some(t) => return Ok(vec![Value::constant(&graph, c.importer.files.elements(t)?)]),
            None => return invalid("no tensor in the attribute value; expected one"),
        },
        AttributeKind::Float => HostTensor::from_slice(&[], &[a.float()])?,
        AttributeKind::Int => HostTensor::from_slice(&[], &[a.int()])?,
        AttributeKind::Floats => {
            let all: Vec<f32> = a.floats().collect();
            HostTensor::from_slice(&[all.len()], &all)?
        }
        AttributeKind::Ints => {
            let all: Vec<i64> = a.ints().collect();
            HostTensor::from_slice(&[all.len()], &all)?
        }
        kind => return unsupported(format!("a constant of {kind:?}; expected numbers")),
    };
    Ok(vec![Value::constant(&graph, data)])
}

pub(super) fn constant_of_shape(c: &mut Call<'_, '_, '_>) -> Answer {
    let Some(shape) = c.input_dims(0)? else {
        return invalid("operand 0 is missing; expected the shape");
    };
    if let Some(n) = shape.iter().filter_map(Dim::as_const).find(|&n| n < 0) {
        return invalid(format!("an extent of {n}; expected 0 or more"));
    }
    let fill = match c.attribute("value") {
        None => DType::F32.zero(),
        Some(a) => match a.tensor() {
            Some(t) => {
                let data = c.importer.files.host(t)?;
                if data.len() != 1 {
                    return invalid(format!("a value of {} elements; expected one", data.len()));
                }
                data.get(0)
            }
            None => return invalid("no tensor in the attribute value; expected one"),
        },
    };
    // A filled vector often goes on as a shape.
    if fill.dtype() == DType::I64
        && let [n] = &shape[..]
        && let Some(n) = n.as_const().filter(|&n| n <= crate::value::MAX_SIZES as i64)
    {
        let data = HostTensor::full(&[n as usize], fill)?;
        return Ok(vec![Value::constant(&c.graph(), data)]);
    }
    one(c.graph().full(shape, fill, fill.dtype()))
}

pub(super) fn eye_like(c: &mut Call<'_, '_, '_>) -> Answer {
    let x = c.tensor(0)?;
    if x.rank() != 2 {
        return invalid(format!("rank {}; expected 2", x.rank()));
    }
    let dtype = c.dtype("dtype")?.unwrap_or(x.dtype());
    let k = c.int("k", 0)?.clamp(-(1 << 40), 1 << 40);
    one(c.graph().eye(x.dim(0), x.dim(1), k, DType::F32).cast(dtype))
}

pub(super) fn range(c: &mut Call<'_, '_, '_>) -> Answer {
    let dtype = c.required(0)?.dtype();
    let graph = c.graph();
    let counts = dtype.is_int() || matches!(dtype, DType::F32 | DType::F64);
    if let [Some(start), Some(limit), Some(step)] = [0, 1, 2].map(|i| c.input_whole(i).filter(|_| counts))
        && (1..3).all(|i| c.value(i).is_some_and(|v| v.dtype() == dtype))
        && let Some(step) = step.as_const().filter(|&n| n != 0 && n != i64::MIN)
    {
        let span = if step > 0 { &limit - &start } else { &start - &limit };
        let count = graph.simplify(span.max(0).div_ceil(step.abs()).expr());
        let places = graph.range(Dim::from(count), dtype);
        let first = size_value(&graph, &start, dtype)?;
        let scaled = match step {
            1 => places,
            step => places * graph.scalar(tlc_ir::Scalar::from_f64(dtype, step as f64), dtype),
        };
        return one(if start.as_const() == Some(0) {
            scaled
        } else {
            scaled + first
        });
    }
    let mut numbers = vec![];
    for i in 0..3 {
        let data = c.elements(i)?;
        if data.len() != 1 || data.dtype() != dtype {
            return invalid(format!(
                "operand {i} of {} {}; expected one {dtype}",
                data.len(),
                data.dtype()
            ));
        }
        numbers.push(data.get(0).as_f64());
    }
    let [start, limit, delta] = numbers[..] else {
        return invalid("operands missing; expected three");
    };
    if delta == 0.0 {
        return invalid("a step of 0; expected another");
    }
    let count = ((limit - start) / delta).ceil().max(0.0);
    if count.is_nan() || count > (1u64 << 40) as f64 {
        return invalid(format!("{count} elements; expected fewer"));
    }
    // Small floats cannot count far, so they are computed in larger ones.
    let wide = dtype.accumulator();
    let number = |v: f64| graph.scalar(tlc_ir::Scalar::from_f64(wide, v), wide);
    // The values decide how many there are; what they are is computed from them, and has their derivatives.
    let value = |c: &Call<'_, '_, '_>, i: usize, v: f64| -> Outcome<Tensor> {
        Ok(match c.importer.constant(c.required(i)?, "a number") {
            Err(_) if dtype.is_float() => c.tensor(i)?.reshape(()).cast(wide),
            _ => number(v),
        })
    };
    let (start, delta) = (value(c, 0, start)?, value(c, 2, delta)?);
    let places = graph.range(count as i64, wide);
    one((places * delta + start).cast(dtype))
}
