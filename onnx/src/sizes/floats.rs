//! Sizes that go through floats, as exporters write `ceil(h / 2) * 2`: whole numbers and quotients of them by a constant, which become
//! sizes again where they are rounded.
//!
//! Invariant: what is carried is what floats would be. Whole numbers are small enough for each to be a float, which a guard says
//! where extents decide. A quotient by a power of two is exact; another is rounded once, and numerators are so small (2^23 of f32)
//! that a quotient that is not whole stays between the same two integers: a fraction is at least one part of the divisor away from
//! them, and rounding moves it by less than half of that.

use tlc_ir::DType;
use tlc_ir::index::IndexExpr;

use super::{Call, Sizes, Value, any, becomes_nonnegative, broadcast, lowest, whole};
use crate::value::Ratio;
use tlc_record::Graph;
use tlc_record::dim::Dim;

/// A divisor is not larger.
const MAX_DIVISOR: i64 = 1 << 20;

/// Up to here every integer is a float of that type.
fn whole_numbers(dtype: DType) -> Option<i64> {
    match dtype {
        DType::F32 => Some(1 << 24),
        DType::F64 => Some(1 << 53),
        _ => None,
    }
}

/// Whether the numbers are at most that large, under a guard if extents decide.
fn stay_within(graph: &Graph, dims: &[Dim], most: i64) -> bool {
    dims.iter().all(|d| match d.as_const() {
        Some(n) => n.unsigned_abs() <= most as u64,
        None => {
            let range = graph.with_ir(|ir| d.expr().interval(ir));
            range.lo >= -most && (range.hi <= most || becomes_nonnegative(graph, &(Dim::from(most) - d)))
        }
    })
}

/// Operand `i` as quotients of whole numbers, and whether it is carried.
fn operand(call: &Call<'_, '_, '_>, i: usize) -> Option<(Ratio, bool)> {
    let of = |sizes: Sizes, over: i64| Ratio { sizes, over };
    let (ratio, carried) = match call.value(i)? {
        Value::Ratio(r) => ((**r).clone(), true),
        Value::Sizes(s) => (of((**s).clone(), 1), true),
        Value::Tensor(..) => match whole(call, i) {
            Some(s) => (of(s, 1), false),
            None => (fraction(call, i)?, false),
        },
        Value::Sequence(_) => return None,
    };
    whole_numbers(ratio.sizes.dtype)?;
    // A zero among constants may have a sign.
    let zero = |d: &Dim| d.as_const() == Some(0);
    (carried || !ratio.sizes.dims.iter().any(zero)).then_some((ratio, carried))
}

/// A constant that is one part of a power of two, as in a scale of 0.5.
fn fraction(call: &Call<'_, '_, '_>, i: usize) -> Option<Ratio> {
    let data = call.importer.known(call.value(i)?)?;
    if data.len() != 1 || data.shape().len() > 1 {
        return None;
    }
    let over = data.get(0).as_f64().recip();
    let sizes = Sizes {
        dims: vec![Dim::from(1)],
        shape: data.shape().to_vec(),
        dtype: data.dtype(),
    };
    let power = over >= 2.0 && over <= MAX_DIVISOR as f64 && over.trunc() == over && (over as i64).count_ones() == 1;
    power.then_some(Ratio {
        sizes,
        over: over as i64,
    })
}

/// `Add`, `Sub`, `Mul` and `Div` of floats, of which one is carried.
pub(super) fn arithmetic(call: &Call<'_, '_, '_>) -> Option<Value> {
    if call.inputs.len() != 2 {
        return None;
    }
    let ((a, a_carried), (b, b_carried)) = (operand(call, 0)?, operand(call, 1)?);
    let dtype = a.sizes.dtype;
    let exact = |over: i64| over.count_ones() == 1;
    if dtype != b.sizes.dtype || !(a_carried || b_carried) || !exact(a.over) {
        return None;
    }
    let (rows, shape) = broadcast([&a.sizes, &b.sizes])?;
    let (op, graph) = (call.node.op_type(), call.graph());
    let negative = |r: &Ratio| r.sizes.dims.iter().any(|d| lowest(&graph, d) < 0);
    // Zero times what is negative is -0.
    if op == "Mul" && (negative(&a) || negative(&b)) {
        return None;
    }
    let (over, mut most) = match op {
        "Div" => {
            let by = b.sizes.dims.first()?.as_const().filter(|_| b.over == 1)?;
            let same = b.sizes.dims.iter().all(|d| d.as_const() == Some(by));
            (
                a.over.checked_mul(by).filter(|_| same && by > 0)?,
                whole_numbers(dtype)?,
            )
        }
        _ if !exact(b.over) => return None,
        "Mul" => (a.over.checked_mul(b.over)?, whole_numbers(dtype)?),
        _ => (a.over.max(b.over), whole_numbers(dtype)?),
    };
    if over > MAX_DIVISOR {
        return None;
    }
    if !exact(over) {
        most /= 2;
    }
    let one = |[x, y]: [Dim; 2]| match op {
        "Div" => x,
        "Mul" => x * y,
        "Add" => x * (over / a.over) + y * (over / b.over),
        _ => x * (over / a.over) - y * (over / b.over),
    };
    let dims: Vec<Dim> = rows.into_iter().map(one).collect();
    if !stay_within(&graph, &dims, most) {
        return None;
    }
    let divisible = |d: &Dim| graph.with_ir(|ir| d.expr().proves_multiple(over, ir));
    let sizes = Sizes { dims, shape, dtype };
    if sizes.dims.iter().all(divisible) {
        let dims = sizes.dims.iter().map(|d| quotient(d, over)).collect();
        return Some(Value::Sizes(Sizes { dims, ..sizes }.into()));
    }
    Some(Value::Ratio(Ratio { sizes, over }.into()))
}

/// The largest integer that is not above.
fn quotient(d: &Dim, over: i64) -> Dim {
    IndexExpr::floor_div(d.expr(), &over.into()).into()
}

/// The quotients of operand 0, rounded down or up; converted to integers they are rounded toward zero, which is down for those
/// that are not negative, as a guard may say.
pub(super) fn rounded(call: &Call<'_, '_, '_>, up: bool) -> Option<Sizes> {
    if let Some(s) = any(call, 0) {
        return s.dtype.is_float().then(|| s.clone());
    }
    let Some(Value::Ratio(r)) = call.value(0) else {
        return None;
    };
    let graph = call.graph();
    let positive = |d: &Dim| lowest(&graph, d) >= 0 || becomes_nonnegative(&graph, d);
    let to_whole = |d: &Dim| quotient(&if up { d + (r.over - 1) } else { d.clone() }, r.over);
    r.sizes.dims.iter().all(positive).then(|| Sizes {
        dims: r.sizes.dims.iter().map(to_whole).collect(),
        ..r.sizes.clone()
    })
}
