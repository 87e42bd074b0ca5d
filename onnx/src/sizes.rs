//! Shape arithmetic: small integer tensors carried as index expressions through the operators that compute shapes. `moves.rs` has those that
//! only move elements, `floats.rs` what exporters compute of sizes in floats.
//!
//! Invariants: what is carried equals what the operators would compute; where that is not certain (a quotient of something
//! that may be negative, numbers large enough to overflow) the operator is recorded as any other.

use tlc_ir::DType;
use tlc_ir::index::IndexExpr;

mod floats;
mod moves;

use super::assumptions::{Comparison, becomes_nonnegative};
use super::call::Call;
use super::refusal::Outcome;
use super::value::{MAX_SIZES, Sizes, Value};
use tlc_record::Graph;
use tlc_record::dim::Dim;

/// Index expressions with more parts than this are left to the graph.
const MAX_EXPRESSION: u32 = 128;
/// More axes are left to the graph.
const MAX_RANK: usize = 8;
/// Larger constants are left to the graph.
const MAX_NUMBER: i64 = 1 << 40;

/// Operand `i`, if it is carried, as integers or as floats that are whole numbers.
fn any<'c>(call: &'c Call<'_, '_, '_>, i: usize) -> Option<&'c Sizes> {
    match call.value(i) {
        Some(Value::Sizes(s)) => Some(s),
        _ => None,
    }
}

/// Operand `i`, if it is carried and not as floats.
fn sizes<'c>(call: &'c Call<'_, '_, '_>, i: usize) -> Option<&'c Sizes> {
    any(call, i).filter(|s| !s.dtype.is_float())
}

/// The numbers of operand `i`, if they are constants: carried ones, or those too large to be carried (`i64::MAX` as an end).
fn numbers(call: &Call<'_, '_, '_>, i: usize) -> Option<Vec<i64>> {
    match call.value(i)? {
        Value::Sizes(s) => s.numbers().filter(|_| s.dtype.is_int()),
        Value::Tensor(_, data) => {
            let data = data.as_ref().filter(|d| d.len() <= MAX_SIZES)?.host().ok()?;
            let whole = data.dtype().is_int() && data.shape().len() <= 1;
            whole.then(|| (0..data.len()).map(|k| data.get(k).as_i64()).collect())
        }
        Value::Ratio(_) | Value::Sequence(_) => None,
    }
}

/// The result of the node, if it is shape arithmetic over carried sizes.
pub(super) fn carried(call: &mut Call<'_, '_, '_>) -> Outcome<Option<Value>> {
    let found = match call.node.op_type() {
        "Shape" => shape(call)?,
        "Size" => size(call),
        "Identity" => any(call, 0).cloned(),
        "Floor" => floats::rounded(call, false),
        "Ceil" => floats::rounded(call, true),
        "Round" => any(call, 0).filter(|s| s.dtype.is_float()).cloned(),
        "Cast" => call.dtype("to")?.and_then(|to| cast(call, to)),
        "CastLike" => cast(call, call.required(1)?.dtype()),
        "Concat" => moves::concat(call)?,
        "Gather" => moves::gather(call)?,
        "Scatter" | "ScatterElements" => moves::scatter(call)?,
        "Slice" => moves::slice(call)?,
        "Squeeze" => moves::squeeze(call)?,
        "Unsqueeze" => moves::unsqueeze(call)?,
        "Reshape" => moves::reshape(call)?,
        "Transpose" => moves::transpose(call)?,
        "Expand" => moves::expand(call),
        "Add" => pairwise(call, |a, b| Some(a + b)),
        "Sub" => pairwise(call, |a, b| Some(a - b)),
        "Mul" => pairwise(call, |a, b| Some(a * b)),
        "Div" => divided(call),
        "Min" => pairwise(call, |a, b| Some(a.min(b))),
        "Max" => pairwise(call, |a, b| Some(a.max(b))),
        "Mod" => remainder(call)?,
        "Neg" => unary(call, |a| Dim::from(0) - a),
        "Abs" => absolute(call),
        "ReduceProd" => folded(call, 18, |a, b| a * b)?,
        "ReduceSum" => folded(call, 13, |a, b| a + b)?,
        "ReduceMin" => folded(call, 18, |a, b| a.min(b))?,
        "ReduceMax" => folded(call, 18, |a, b| a.max(b))?,
        "Equal" => compared(call, Comparison::Equal, |a, b| [a, b], true),
        "Less" => compared(call, Comparison::Less, |a, b| [a, b], true),
        "LessOrEqual" => compared(call, Comparison::Less, |a, b| [b, a], false),
        "Greater" => compared(call, Comparison::Less, |a, b| [b, a], true),
        "GreaterOrEqual" => compared(call, Comparison::Less, |a, b| [a, b], false),
        "And" => combined(call, |a, b| a.min(b)),
        "Or" => combined(call, |a, b| a.max(b)),
        "Xor" => combined(call, |a, b| a.max(&b) - a.min(&b)),
        "Not" => negated(call),
        "Where" => chosen(call),
        "Sqrt" => floats::root(call),
        "Pow" => floats::root_of_power(call),
        _ => None,
    };
    let found = match (found, call.node.op_type()) {
        (Some(found), _) => Some(Value::Sizes(found.into())),
        (None, "Add" | "Sub" | "Mul" | "Div") => floats::arithmetic(call),
        (None, "Cast" | "CastLike" | "Identity") => floats::converted(call)?,
        (None, _) => None,
    };
    let fits = |found: &Value| match found {
        Value::Sizes(s) => is_small(s),
        Value::Ratio(r) => is_small(&r.sizes),
        Value::Tensor(..) | Value::Sequence(_) => false,
    };
    Ok(found.filter(fits))
}

/// The parts of operand 0 along an axis, if it is carried and they are as long as it is.
pub(super) fn split(call: &Call<'_, '_, '_>, axis: usize, lengths: &[Dim]) -> Option<Vec<Value>> {
    let lengths = lengths.iter().map(|d| usize::try_from(d.as_const()?).ok());
    let parts = moves::parts(any(call, 0)?, axis, &lengths.collect::<Option<Vec<usize>>>()?)?;
    Some(parts.into_iter().map(|s| Value::Sizes(s.into())).collect())
}

/// Whether sizes are few, and short enough as expressions, to be carried.
fn is_small(sizes: &Sizes) -> bool {
    let small = |d: &Dim| match d.as_const() {
        Some(n) => n.unsigned_abs() < MAX_NUMBER as u64,
        None => d.expr().size() <= MAX_EXPRESSION,
    };
    sizes.dims.len() <= MAX_SIZES && sizes.shape.len() <= MAX_RANK && sizes.dims.iter().all(small)
}

fn vector(dims: Vec<Dim>, dtype: DType) -> Option<Sizes> {
    Some(Sizes {
        shape: vec![dims.len()],
        dims,
        dtype,
    })
}

/// `Shape`: since opset 15 a part of it, whose ends are clipped to the rank.
fn shape(call: &Call<'_, '_, '_>) -> Outcome<Option<Sizes>> {
    let dims = call.required(0)?.shape();
    let rank = dims.len() as i64;
    let (start, end) = (call.int("start", 0)?, call.int("end", rank)?);
    let clip = |n: i64| (if n < 0 { n.saturating_add(rank) } else { n }).clamp(0, rank) as usize;
    let (start, end) = (clip(start), clip(end));
    Ok(vector(dims.get(start..end).unwrap_or_default().to_vec(), DType::I64))
}

fn size(call: &Call<'_, '_, '_>) -> Option<Sizes> {
    let dims = call.value(0)?.shape();
    Some(Sizes {
        dims: vec![dims.into_iter().fold(Dim::from(1), |n, d| n * d)],
        shape: vec![],
        dtype: DType::I64,
    })
}

/// Whether every value that the expression can have is an i32.
fn fits_i32(graph: &Graph, d: &Dim) -> bool {
    let i = graph.with_ir(|ir| d.expr().interval(ir));
    i.lo >= i64::from(i32::MIN) && i.hi <= i64::from(i32::MAX)
}

/// Whether the expression is a divisor, under a guard if it may be 0.
pub(super) fn becomes_positive(graph: &Graph, d: &Dim) -> bool {
    lowest(graph, d) >= 0 && becomes_nonnegative(graph, &(d - 1))
}

/// Whether the expression may be taken for an i32, under a guard if it is of extents that may be too large for it.
fn becomes_i32(graph: &Graph, d: &Dim) -> bool {
    fits_i32(graph, d) || lowest(graph, d) >= 0 && becomes_nonnegative(graph, &(Dim::from(i64::from(i32::MAX)) - d))
}

/// The smallest value that the expression may have.
fn lowest(graph: &Graph, d: &Dim) -> i64 {
    graph.with_ir(|ir| d.expr().interval(ir)).lo
}

/// Up to here every integer is an f32.
const WHOLE_F32: i64 = 1 << 24;

/// Whether the expression may be taken for an f32, under a guard if it is of extents that may be too large.
fn becomes_f32(graph: &Graph, d: &Dim) -> bool {
    (lowest(graph, d) >= -WHOLE_F32 || becomes_nonnegative(graph, &(d + WHOLE_F32)))
        && becomes_nonnegative(graph, &(Dim::from(WHOLE_F32) - d))
}

/// The numbers of a constant operand that is not carried: floats that are whole, or what is behind a few operators that move them.
fn whole(call: &Call<'_, '_, '_>, i: usize) -> Option<Sizes> {
    let value = call.value(i)?;
    let extent = |d: &Dim| usize::try_from(d.as_const()?).ok();
    let shape: Vec<usize> = value.shape().iter().map(extent).collect::<Option<_>>()?;
    if shape.len() > 1 || shape.iter().product::<usize>() > MAX_SIZES {
        return None;
    }
    let data = call.importer.known(value)?;
    let number = |k: usize| {
        let number = data.get(k).as_f64();
        let small = number.trunc() == number && number.abs() < MAX_NUMBER as f64;
        small.then(|| Dim::from(number as i64))
    };
    Some(Sizes {
        dims: (0..data.len()).map(number).collect::<Option<_>>()?,
        shape,
        dtype: data.dtype(),
    })
}

/// Operand 0 in that dtype, which has each of its numbers.
fn cast(call: &Call<'_, '_, '_>, dtype: DType) -> Option<Sizes> {
    let s = match any(call, 0) {
        Some(s) => s.clone(),
        None if matches!(call.value(0), Some(Value::Ratio(_))) => {
            // Toward zero.
            floats::rounded(call, false).filter(|_| matches!(dtype, DType::I64 | DType::I32))?
        }
        // An integer has no sign of a zero to keep.
        None if matches!(dtype, DType::I64 | DType::I32) => whole(call, 0)?,
        None => return None,
    };
    let graph = call.graph();
    let exact = |d: &Dim| match dtype {
        DType::I64 => true,
        DType::I32 => becomes_i32(&graph, d),
        DType::F32 => becomes_f32(&graph, d),
        DType::F64 => {
            let range = graph.with_ir(|ir| d.expr().interval(ir));
            range.lo >= -(1 << 53) && range.hi <= 1 << 53
        }
        _ => false,
    };
    if dtype == DType::Bool && s.dims.iter().all(|d| lowest(&graph, d) >= 0) {
        let dims = s.dims.iter().map(|d| d.min(1)).collect();
        return Some(Sizes { dims, dtype, ..s });
    }
    s.dims.iter().all(exact).then(|| Sizes { dtype, ..s.clone() })
}

fn unary(call: &Call<'_, '_, '_>, f: impl Fn(Dim) -> Dim) -> Option<Sizes> {
    let s = sizes(call, 0).filter(|s| s.dtype == DType::I64)?;
    Some(Sizes {
        dims: s.dims.iter().cloned().map(f).collect(),
        ..s.clone()
    })
}

/// Operands broadcast to one another, element by element, and the shape of the result.
fn broadcast<const N: usize>(all: [&Sizes; N]) -> Option<(Vec<[Dim; N]>, Vec<usize>)> {
    let mut shape = vec![];
    for s in all {
        shape = moves::broadcast_shape(&shape, &s.shape)?;
    }
    let parts = all.map(|s| moves::expanded(s, &shape));
    let rows = (0..shape.iter().product()).map(|i| parts.each_ref().map(|p| p[i].clone()));
    Some((rows.collect(), shape))
}

/// Two operands broadcast to each other. Smaller integers than i64 could wrap: what may is left to the graph.
fn pairwise(call: &Call<'_, '_, '_>, f: impl Fn(Dim, Dim) -> Option<Dim>) -> Option<Sizes> {
    let (a, b) = (sizes(call, 0)?, sizes(call, 1)?);
    if a.dtype != b.dtype || a.dtype == DType::Bool || call.inputs.len() != 2 {
        return None;
    }
    let (rows, shape) = broadcast([a, b])?;
    let dims: Vec<Dim> = rows.into_iter().map(|[a, b]| f(a, b)).collect::<Option<_>>()?;
    let graph = call.graph();
    let exact = a.dtype == DType::I64 || dims.iter().all(|d| fits_i32(&graph, d));
    exact.then_some(Sizes {
        dims,
        shape,
        dtype: a.dtype,
    })
}

/// The remainder with the sign of the divisor, or, where that makes no difference, of the dividend.
fn remainder(call: &Call<'_, '_, '_>) -> Outcome<Option<Sizes>> {
    let floored = !call.flag("fmod", false)?;
    let graph = call.graph();
    Ok(pairwise(call, |a, b| {
        let same = floored || lowest(&graph, &a) >= 0;
        (same && becomes_positive(&graph, &b)).then(|| a % b)
    }))
}

fn absolute(call: &Call<'_, '_, '_>) -> Option<Sizes> {
    let graph = call.graph();
    let s = sizes(call, 0)?;
    let known = |d: &Dim| lowest(&graph, d) >= 0;
    if s.dtype == DType::I64 {
        return unary(call, |d| if known(&d) { d } else { (Dim::from(0) - &d).max(d) });
    }
    s.dims.iter().all(known).then(|| s.clone())
}

/// All in one, where there are some and nothing says otherwise. `since` is the opset from which axes are an operand.
fn folded(call: &Call<'_, '_, '_>, since: i64, f: impl Fn(&Dim, &Dim) -> Dim) -> Outcome<Option<Sizes>> {
    let keeps = call.flag("keepdims", true)?;
    let axes = match call.version < since {
        true => call.ints("axes")?,
        false => match call.value(1) {
            None => None,
            Some(_) => match numbers(call, 1) {
                Some(axes) => Some(axes),
                None => return Ok(None),
            },
        },
    };
    let all = match axes {
        Some(a) => matches!(a[..], [0 | -1]),
        None => !call.flag("noop_with_empty_axes", false)?,
    };
    let operand = sizes(call, 0).filter(|s| s.shape.len() == 1 && s.dtype == DType::I64 && all);
    let Some((first, rest)) = operand.and_then(|s| s.dims.split_first()) else {
        return Ok(None);
    };
    Ok(Some(Sizes {
        dims: vec![rest.iter().fold(first.clone(), |n, d| f(&n, d))],
        shape: if keeps { vec![1] } else { vec![] },
        dtype: DType::I64,
    }))
}

/// Whether a comparison of sizes, of these two of the operands, holds: decided by their ranges, or an expression that is 1 or 0.
fn compared(
    call: &mut Call<'_, '_, '_>,
    comparison: Comparison,
    order: fn(Dim, Dim) -> [Dim; 2],
    holds: bool,
) -> Option<Sizes> {
    let (a, b) = (sizes(call, 0)?, sizes(call, 1)?);
    if a.dtype != b.dtype || call.inputs.len() != 2 {
        return None;
    }
    let (rows, shape) = broadcast([a, b])?;
    let graph = call.graph();
    let one = |[a, b]: [Dim; 2]| {
        let [a, b] = order(a, b);
        let truth = call.importer.assumptions.truth(&graph, comparison, &a, &b);
        // What data decides, it compares.
        if truth.as_const().is_none() && call.importer.is_data_bound(&truth) {
            return None;
        }
        Some(if holds { truth } else { Dim::from(1) - truth })
    };
    Some(Sizes {
        dims: rows.into_iter().map(one).collect::<Option<_>>()?,
        shape,
        dtype: DType::Bool,
    })
}

/// Truths of two operands in one.
fn combined(call: &Call<'_, '_, '_>, f: fn(Dim, Dim) -> Dim) -> Option<Sizes> {
    let (a, b) = (sizes(call, 0)?, sizes(call, 1)?);
    if a.dtype != DType::Bool || b.dtype != DType::Bool {
        return None;
    }
    let (rows, shape) = broadcast([a, b])?;
    Some(Sizes {
        dims: rows.into_iter().map(|[a, b]| f(a, b)).collect(),
        shape,
        dtype: DType::Bool,
    })
}

fn negated(call: &Call<'_, '_, '_>) -> Option<Sizes> {
    let s = sizes(call, 0).filter(|s| s.dtype == DType::Bool)?;
    Some(Sizes {
        dims: s.dims.iter().map(|d| Dim::from(1) - d).collect(),
        ..s.clone()
    })
}

fn chosen(call: &Call<'_, '_, '_>) -> Option<Sizes> {
    let (c, a, b) = (sizes(call, 0)?, sizes(call, 1)?, sizes(call, 2)?);
    if c.dtype != DType::Bool || a.dtype != b.dtype {
        return None;
    }
    let (rows, shape) = broadcast([c, a, b])?;
    let pick = |[c, a, b]: [Dim; 3]| match c.as_const() {
        Some(0) => b,
        Some(_) => a,
        None if a == b => a,
        None => &b + c * (a - &b),
    };
    Some(Sizes {
        dims: rows.into_iter().map(pick).collect(),
        shape,
        dtype: a.dtype,
    })
}

/// What may be further below 0 than this is negative for more than the smallest sizes.
const SMALL: i64 = 1 << 12;

/// Integer division rounds toward zero, which is the floor where nothing is negative. The quotient of what is negative for the
/// smallest sizes alone (`(n - 1) / 8`), and one by what may be 0, are taken under a guard.
fn divided(call: &Call<'_, '_, '_>) -> Option<Sizes> {
    let graph = call.graph();
    pairwise(call, |a, b| match (a.as_const(), b.as_const()) {
        (_, Some(0)) => None,
        (Some(a), Some(b)) => Some(Dim::from(a / b)),
        (None, Some(b)) => {
            let nearly = b > 0 && lowest(&graph, &a) >= -SMALL;
            (nearly && becomes_nonnegative(&graph, &a)).then(|| IndexExpr::floor_div(a.expr(), &b.into()).into())
        }
        _ if lowest(&graph, &a) >= 0 && becomes_positive(&graph, &b) => Some(a / b),
        _ => None,
    })
}
