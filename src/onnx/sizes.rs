//! Shape arithmetic: small integer tensors carried as index expressions through the operators that compute shapes.
//!
//! Invariants: what is carried equals what the operators would compute; where that is not certain (a quotient of something
//! that may be negative, numbers large enough to overflow) the operator is recorded as any other.

use tlc_ir::DType;
use tlc_ir::graph::View;
use tlc_ir::index::{IndexExpr, Interval};

use super::call::Call;
use super::refusal::Outcome;
use super::value::{MAX_SIZES, Sizes, Value};
use crate::dim::{Dim, resolve_axis};
use crate::graph::Graph;

/// Index expressions with more parts than this are left to the graph.
const MAX_EXPRESSION: u32 = 64;
/// Larger constants are left to the graph.
const MAX_NUMBER: i64 = 1 << 40;

fn sizes<'c>(call: &'c Call<'_, '_, '_>, i: usize) -> Option<&'c Sizes> {
    match call.value(i) {
        Some(Value::Sizes(s)) => Some(s),
        _ => None,
    }
}

/// The result of the node, if it is shape arithmetic over carried sizes.
pub(super) fn carried(call: &mut Call<'_, '_, '_>) -> Outcome<Option<Value>> {
    let found = match call.node.op_type() {
        "Shape" => shape(call)?,
        "Size" => size(call),
        "Identity" => sizes(call, 0).cloned(),
        "Cast" => cast(call)?,
        "Concat" => concat(call)?,
        "Gather" => gather(call)?,
        "Slice" => slice(call)?,
        "Squeeze" => squeeze(call)?,
        "Unsqueeze" => unsqueeze(call)?,
        "Reshape" => reshape(call),
        "Add" => pairwise(call, |a, b| Some(a + b)),
        "Sub" => pairwise(call, |a, b| Some(a - b)),
        "Mul" => pairwise(call, |a, b| Some(a * b)),
        "Div" => divided(call),
        "Min" => pairwise(call, |a, b| Some(a.min(b))),
        "Max" => pairwise(call, |a, b| Some(a.max(b))),
        "Mod" => remainder(call)?,
        "Neg" => unary(call, |a| Dim::from(0) - a),
        "Abs" => absolute(call),
        "ReduceProd" => product(call)?,
        "Equal" => compared(call, |d| match (d.lo, d.hi) {
            (0, 0) => Some(true),
            (lo, hi) if lo > 0 || hi < 0 => Some(false),
            _ => None,
        }),
        "Less" => compared(call, |d| decided(d.hi < 0, d.lo >= 0)),
        "LessOrEqual" => compared(call, |d| decided(d.hi <= 0, d.lo > 0)),
        "Greater" => compared(call, |d| decided(d.lo > 0, d.hi <= 0)),
        "GreaterOrEqual" => compared(call, |d| decided(d.lo >= 0, d.hi < 0)),
        "Not" => negated(call),
        "Where" => chosen(call),
        _ => None,
    };
    let Some(found) = found else {
        return Ok(None);
    };
    let small = |d: &Dim| match d.as_const() {
        Some(n) => n.unsigned_abs() < MAX_NUMBER as u64,
        None => d.expr().size() <= MAX_EXPRESSION,
    };
    let fits =
        found.dims.len() <= MAX_SIZES && found.dims.iter().all(small) && (!found.scalar || found.dims.len() == 1);
    Ok(fits.then(|| Value::sizes(found.dims, found.scalar, found.dtype)))
}

fn vector(dims: Vec<Dim>, dtype: DType) -> Option<Sizes> {
    Some(Sizes {
        dims,
        scalar: false,
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
        scalar: true,
        dtype: DType::I64,
    })
}

/// Whether every value that the expression can have is an i32.
fn fits_i32(graph: &Graph, d: &Dim) -> bool {
    let i = graph.with_ir(|ir| d.expr().interval(ir));
    i.lo >= i64::from(i32::MIN) && i.hi <= i64::from(i32::MAX)
}

/// Whether the expression may be taken for an i32. One of extents that may be too large for it is, under a guard: a slice
/// that starts behind its operand's only element unless it is no larger.
fn becomes_i32(graph: &Graph, d: &Dim) -> bool {
    if fits_i32(graph, d) {
        return true;
    }
    let positive = graph.with_ir(|ir| d.expr().interval(ir)).lo >= 0;
    let excess = (d - i64::from(i32::MAX)).max(0);
    let slice = View::Slice {
        start: [excess.expr().clone()].into_iter().collect(),
        step: [1].into_iter().collect(),
        size: [IndexExpr::ONE].into_iter().collect(),
    };
    let one = graph.iota_1d(&IndexExpr::ONE, DType::I64);
    positive && one.and_then(|one| one.view(slice)).is_ok()
}

fn cast(call: &Call<'_, '_, '_>) -> Outcome<Option<Sizes>> {
    let to = call.dtype("to")?;
    let graph = call.graph();
    Ok(match (sizes(call, 0), to) {
        (Some(s), Some(DType::I64)) => Some(Sizes {
            dtype: DType::I64,
            ..s.clone()
        }),
        (Some(s), Some(DType::I32)) if s.dims.iter().all(|d| becomes_i32(&graph, d)) => Some(Sizes {
            dtype: DType::I32,
            ..s.clone()
        }),
        _ => None,
    })
}

fn concat(call: &Call<'_, '_, '_>) -> Outcome<Option<Sizes>> {
    let axis = call.int("axis", 0)?;
    let mut dims = vec![];
    let mut dtype = None;
    for i in 0..call.inputs.len() {
        match sizes(call, i) {
            Some(s) if !s.scalar && dtype.is_none_or(|d| d == s.dtype) => {
                dims.extend_from_slice(&s.dims);
                dtype = Some(s.dtype);
            }
            _ => return Ok(None),
        }
        if dims.len() > MAX_SIZES {
            return Ok(None);
        }
    }
    Ok(dtype
        .filter(|_| axis == 0 || axis == -1)
        .and_then(|dtype| vector(dims, dtype)))
}

fn gather(call: &Call<'_, '_, '_>) -> Outcome<Option<Sizes>> {
    let axis = call.int("axis", 0)?;
    let (Some(data), Some(indices)) = (sizes(call, 0), sizes(call, 1)) else {
        return Ok(None);
    };
    let Some(numbers) = indices.numbers().filter(|_| !data.scalar && (axis == 0 || axis == -1)) else {
        return Ok(None);
    };
    let picked = numbers
        .iter()
        .map(|&i| Some(data.dims[resolve_axis(i, data.dims.len())?].clone()));
    Ok(picked.collect::<Option<Vec<Dim>>>().map(|dims| Sizes {
        dims,
        scalar: indices.scalar,
        dtype: data.dtype,
    }))
}

fn slice(call: &Call<'_, '_, '_>) -> Outcome<Option<Sizes>> {
    let Some(data) = sizes(call, 0).filter(|s| !s.scalar) else {
        return Ok(None);
    };
    let one = |list: Option<Vec<i64>>| list.filter(|l| l.len() == 1).map(|l| l[0]);
    let given = |i: usize| one(sizes(call, i).and_then(Sizes::numbers));
    let (start, end, axis, step) = match call.version < 10 {
        true => (
            one(call.ints("starts")?),
            one(call.ints("ends")?),
            one(call.ints("axes")?).or(Some(0)),
            Some(1),
        ),
        false => (
            given(1),
            given(2),
            if call.value(3).is_some() { given(3) } else { Some(0) },
            if call.value(4).is_some() { given(4) } else { Some(1) },
        ),
    };
    let (Some(start), Some(end), Some(0 | -1), Some(step)) = (start, end, axis, step) else {
        return Ok(None);
    };
    if step == 0 {
        return Ok(None);
    }
    let n = data.dims.len() as i64;
    let from_end = |i: i64| if i < 0 { i.saturating_add(n) } else { i };
    let (lo, hi) = if step > 0 { (0, n) } else { (-1, n - 1) };
    let (mut at, end) = (
        from_end(start).clamp(lo.max(0), hi.max(lo)),
        from_end(end).clamp(lo, hi.max(lo)),
    );
    let mut dims = vec![];
    while (step > 0 && at < end) || (step < 0 && at > end) {
        dims.push(data.dims[at as usize].clone());
        at = at.saturating_add(step);
    }
    Ok(vector(dims, data.dtype))
}

fn squeeze(call: &Call<'_, '_, '_>) -> Outcome<Option<Sizes>> {
    let Some(data) = sizes(call, 0).filter(|s| !s.scalar && s.dims.len() == 1) else {
        return Ok(None);
    };
    let axes = match call.version < 13 {
        true => call.ints("axes")?,
        false => sizes(call, 1).and_then(Sizes::numbers),
    };
    let plain = call.version >= 13 && call.value(1).is_none();
    let fits = plain || matches!(axes.as_deref(), Some([0 | -1]));
    Ok(fits.then(|| Sizes {
        scalar: true,
        ..data.clone()
    }))
}

fn unsqueeze(call: &Call<'_, '_, '_>) -> Outcome<Option<Sizes>> {
    let Some(data) = sizes(call, 0).filter(|s| s.scalar) else {
        return Ok(None);
    };
    let axes = match call.version < 13 {
        true => call.ints("axes")?,
        false => sizes(call, 1).and_then(Sizes::numbers),
    };
    Ok(matches!(axes.as_deref(), Some([0 | -1])).then(|| Sizes {
        scalar: false,
        ..data.clone()
    }))
}

/// Between a number and a vector of one, and from a vector to itself.
fn reshape(call: &Call<'_, '_, '_>) -> Option<Sizes> {
    let (data, target) = (sizes(call, 0)?, sizes(call, 1)?);
    let n = data.dims.len() as i64;
    let scalar = match target.numbers()?[..] {
        [] if n == 1 => true,
        [-1] => false,
        [m] if m == n && n > 0 => false,
        _ => return None,
    };
    Some(Sizes { scalar, ..data.clone() })
}

fn unary(call: &Call<'_, '_, '_>, f: impl Fn(Dim) -> Dim) -> Option<Sizes> {
    let s = sizes(call, 0).filter(|s| s.dtype == DType::I64)?;
    Some(Sizes {
        dims: s.dims.iter().cloned().map(f).collect(),
        ..s.clone()
    })
}

/// Operands broadcast to one another, element by element, and whether the result is a number.
fn broadcast<const N: usize>(all: [&Sizes; N]) -> Option<(Vec<[Dim; N]>, bool)> {
    let n = all.iter().map(|s| s.dims.len()).find(|&n| n != 1).unwrap_or(1);
    if all.iter().any(|s| s.dims.len() != n && s.dims.len() != 1) {
        return None;
    }
    let at = |s: &Sizes, i: usize| s.dims[if s.dims.len() == 1 { 0 } else { i }].clone();
    let rows = (0..n).map(|i| all.map(|s| at(s, i))).collect();
    Some((rows, all.iter().all(|s| s.scalar)))
}

/// Two operands broadcast to each other. Smaller integers than i64 could wrap: what may is left to the graph.
fn pairwise(call: &Call<'_, '_, '_>, f: impl Fn(Dim, Dim) -> Option<Dim>) -> Option<Sizes> {
    let (a, b) = (sizes(call, 0)?, sizes(call, 1)?);
    if a.dtype != b.dtype || a.dtype == DType::Bool || call.inputs.len() != 2 {
        return None;
    }
    let (rows, scalar) = broadcast([a, b])?;
    let dims: Vec<Dim> = rows.into_iter().map(|[a, b]| f(a, b)).collect::<Option<_>>()?;
    let graph = call.graph();
    let exact = a.dtype == DType::I64 || dims.iter().all(|d| fits_i32(&graph, d));
    exact.then_some(Sizes {
        dims,
        scalar,
        dtype: a.dtype,
    })
}

/// The remainder with the sign of the divisor.
fn remainder(call: &Call<'_, '_, '_>) -> Outcome<Option<Sizes>> {
    let floored = !call.flag("fmod", false)?;
    Ok(pairwise(call, |a, b| {
        let n = b.as_const().filter(|&n| n > 0 && floored)?;
        Some(a % n)
    }))
}

fn absolute(call: &Call<'_, '_, '_>) -> Option<Sizes> {
    let graph = call.graph();
    let s = sizes(call, 0)?;
    let positive = |d: &Dim| graph.with_ir(|ir| d.expr().interval(ir)).lo >= 0;
    s.dims.iter().all(positive).then(|| s.clone())
}

/// The product of all, where nothing says otherwise.
fn product(call: &Call<'_, '_, '_>) -> Outcome<Option<Sizes>> {
    let keeps = call.flag("keepdims", true)?;
    let axes = match call.version < 18 {
        true => call.ints("axes")?,
        false => match call.value(1) {
            None => None,
            Some(_) => match sizes(call, 1).and_then(Sizes::numbers) {
                Some(axes) => Some(axes),
                None => return Ok(None),
            },
        },
    };
    let all = axes.is_none_or(|a| matches!(a[..], [0 | -1]));
    Ok(sizes(call, 0)
        .filter(|s| !s.scalar && s.dtype == DType::I64 && all)
        .map(|s| Sizes {
            dims: vec![s.dims.iter().fold(Dim::from(1), |n, d| n * d)],
            scalar: !keeps,
            dtype: s.dtype,
        }))
}

fn decided(yes: bool, no: bool) -> Option<bool> {
    (yes || no).then_some(yes)
}

/// Truths that hold for every value of the symbols, decided by the interval of the difference.
fn compared(call: &Call<'_, '_, '_>, f: impl Fn(Interval) -> Option<bool>) -> Option<Sizes> {
    let (a, b) = (sizes(call, 0)?, sizes(call, 1)?);
    if a.dtype != b.dtype || call.inputs.len() != 2 {
        return None;
    }
    let graph = call.graph();
    let (rows, scalar) = broadcast([a, b])?;
    let truth = |[a, b]: [Dim; 2]| {
        let difference = a - b;
        f(graph.with_ir(|ir| difference.expr().interval(ir))).map(|t| Dim::from(i64::from(t)))
    };
    Some(Sizes {
        dims: rows.into_iter().map(truth).collect::<Option<_>>()?,
        scalar,
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
    let (rows, scalar) = broadcast([c, a, b])?;
    let pick = |[c, a, b]: [Dim; 3]| Some(if c.as_const()? != 0 { a } else { b });
    Some(Sizes {
        dims: rows.into_iter().map(pick).collect::<Option<_>>()?,
        scalar,
        dtype: a.dtype,
    })
}

/// Integer division rounds toward zero, which is the floor where nothing is negative.
fn divided(call: &Call<'_, '_, '_>) -> Option<Sizes> {
    let graph = call.graph();
    pairwise(call, |a, b| match (a.as_const(), b.as_const()) {
        (_, Some(0)) => None,
        (Some(a), Some(b)) => Some(Dim::from(a / b)),
        (None, Some(b)) => {
            let lo = graph.with_ir(|ir| a.expr().interval(ir)).lo;
            (b > 0 && lo >= 0).then(|| IndexExpr::floor_div(a.expr(), &b.into()).into())
        }
        _ => None,
    })
}
