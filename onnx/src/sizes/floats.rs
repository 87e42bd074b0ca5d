//! Sizes that go through floats, as exporters write `ceil(h / 2) * 2`: whole numbers and quotients of them by a constant, which become
//! sizes again where they are rounded.
//!
//! Invariant: what is carried is what floats would be. Whole numbers are small enough for each to be a float, which a guard says
//! where extents decide. A quotient by a power of two is exact; another is rounded once, and numerators are so small (2^23 of f32)
//! that a quotient that is not whole stays between the same two integers: a fraction is at least one part of the divisor away from
//! them, and rounding moves it by less than half of that. A product with a constant that is no such quotient, as in `floor(h * 1.3)`, is carried
//! as the quotient of small integers that is rounded like it, which is tried for sizes up to a limit where it is whole, and a guard says that sizes are not larger. Where
//! there is none (1.3 of f32 is less than 13/10, and some products are rounded to less than an integer) each call computes the product, which decides a size.

use tlc_ir::DType;
use tlc_ir::index::IndexExpr;

use super::{Call, Sizes, Value, any, becomes_nonnegative, becomes_positive, broadcast, lowest, whole};
use crate::refusal::Outcome;
use crate::value::{Product, Ratio, size_value};
use tlc_record::Graph;
use tlc_record::dim::Dim;

/// A divisor is not larger.
const MAX_DIVISOR: i64 = 1 << 20;

/// Sizes times a constant are compared with a quotient up to this one, and carried as it if they agree at least up to the other.
const TRIED: i64 = 1 << 20;
const TRIED_AT_LEAST: i64 = 1 << 14;
/// Those of a quotient that is near the product alone.
const MAX_NEAR_TERM: i64 = 1 << 18;
/// Floats of 32 bits below this are apart by at most a half.
const EXACT_TO_HALVES: f64 = (1 << 22) as f64;
/// A product that each call computes may have a size up to this one, or it is not carried.
const LARGEST_AT_LEAST: i64 = 1 << 10;
/// Numbers above and below the line of such a quotient are not larger.
const MAX_TERM: i64 = 1 << 12;

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
            (range.lo >= -most || becomes_nonnegative(graph, &(d + most)))
                && (range.hi <= most || becomes_nonnegative(graph, &(Dim::from(most) - d)))
        }
    })
}

/// Whether a number of one sign is not 0, under a guard if extents decide.
fn becomes_nonzero(graph: &Graph, d: &Dim) -> bool {
    let range = graph.with_ir(|ir| d.expr().interval(ir));
    becomes_positive(graph, d) || range.hi <= 0 && becomes_positive(graph, &(d * -1))
}

/// Operand `i` as quotients of whole numbers, and whether it is carried.
fn operand(call: &Call<'_, '_, '_>, i: usize) -> Option<(Ratio, bool)> {
    let of = |sizes: Sizes, over: i64| Ratio {
        sizes,
        over,
        product: None,
    };
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
    // A zero among constants may have a sign, which no sum with a size keeps.
    let zero = |d: &Dim| d.as_const() == Some(0);
    let is_added = matches!((call.node.op_type(), i), ("Add", _) | ("Sub", 1));
    (carried || is_added || !ratio.sizes.dims.iter().any(zero)).then_some((ratio, carried))
}

/// The square roots of known sizes that are squares, as of the number of tokens that an image is cut into: floats compute them exactly.
pub(super) fn root(call: &Call<'_, '_, '_>) -> Option<Sizes> {
    let sizes = any(call, 0).filter(|s| s.dtype.is_float())?;
    let most = whole_numbers(sizes.dtype)?;
    let of = |d: &Dim| {
        let n = d.as_const().filter(|n| (0..=most).contains(n))?;
        let root = n.isqrt();
        (root * root == n).then(|| Dim::from(root))
    };
    Some(Sizes {
        dims: sizes.dims.iter().map(of).collect::<Option<_>>()?,
        ..sizes.clone()
    })
}

/// As [`root`], written as a power of a half.
pub(super) fn root_of_power(call: &Call<'_, '_, '_>) -> Option<Sizes> {
    let (exponent, shape, dtype) = number(call, 1)?;
    let same = dtype == any(call, 0)?.dtype;
    (exponent == 0.5 && shape.is_empty() && same).then(|| root(call))?
}

/// The one number of operand `i`, if that is a constant.
fn number(call: &Call<'_, '_, '_>, i: usize) -> Option<(f64, Vec<usize>, DType)> {
    let data = call.importer.known(call.value(i)?)?;
    let one = data.len() == 1 && data.shape().len() <= 1 && data.dtype().is_float();
    one.then(|| (data.get(0).as_f64(), data.shape().to_vec(), data.dtype()))
}

/// A constant that is so many parts of a power of two, as in a scale of 0.5 or 1.5.
fn fraction(call: &Call<'_, '_, '_>, i: usize) -> Option<Ratio> {
    let (value, shape, dtype) = number(call, i)?;
    let (mut parts, mut over) = (value, 1);
    while parts.trunc() != parts && over < MAX_DIVISOR {
        (parts, over) = (2.0 * parts, 2 * over);
    }
    let fits = parts.trunc() == parts && parts > 0.0 && parts <= MAX_TERM as f64 && over > 1;
    fits.then(|| Ratio {
        sizes: Sizes {
            dims: vec![Dim::from(parts as i64)],
            shape,
            dtype,
        },
        over,
        product: None,
    })
}

/// A product of what is carried with a constant that is no such fraction.
fn scaled(call: &Call<'_, '_, '_>) -> Option<Value> {
    let (i, factor, shape, dtype) = [1, 0].into_iter().find_map(|k| {
        let (factor, shape, dtype) = number(call, k)?;
        Some((1 - k, factor, shape, dtype))
    })?;
    let sizes = any(call, i).filter(|s| s.dtype == dtype)?;
    let graph = call.graph();
    if sizes.dims.iter().any(|d| lowest(&graph, d) < 0) {
        return None;
    }
    let (above, over, most, rounds_alike) = quotient_like(factor, dtype)?;
    // Data decides no size in a body.
    if !rounds_alike && graph.is_body() {
        return None;
    }
    let one = Sizes {
        dims: vec![Dim::from(above)],
        shape,
        dtype,
    };
    let (rows, shape) = broadcast([sizes, &one])?;
    let product = Some(Product {
        dims: rows.iter().map(|[d, _]| d.clone()).collect(),
        factor,
        most,
        rounds_alike,
    });
    let dims = rows.into_iter().map(|[d, above]| d * above).collect();
    let sizes = Sizes { dims, shape, dtype };
    Some(Value::Ratio(Ratio { sizes, over, product }.into()))
}

/// A quotient of integers that is near a factor, the largest size that is multiplied, and whether every size up to that times the factor, as
/// floats compute it, is rounded up and down to the same integers as that size times the quotient.
fn quotient_like(factor: f64, dtype: DType) -> Option<(i64, i64, i64, bool)> {
    if !(factor > 0.0 && factor <= MAX_TERM as f64) {
        return None;
    }
    // The product, and by what part of it at most it is rounded.
    let (times, rounding): (fn(f64, f64) -> f64, f64) = match dtype {
        DType::F32 => (|n, by| f64::from(n as f32 * by as f32), f64::from(f32::EPSILON) / 2.0),
        DType::F64 => (|n, by| n * by, f64::EPSILON / 2.0),
        _ => return None,
    };
    // Convergents of the factor's continued fraction. What is over a power of two counts as exact.
    let (mut before, mut last) = ((0, 1), (1, 0));
    let mut rest = factor;
    let mut near = None;
    loop {
        let whole = rest.floor() as i64;
        let next = (whole * last.0 + before.0, whole * last.1 + before.1);
        if next.0.max(next.1) > MAX_NEAR_TERM {
            break;
        }
        (before, last) = (last, next);
        let (above, over) = last;
        if above > 0 && over.count_ones() > 1 {
            // Up to here the quotient is at most half away from the product, and floats round that by at most as much.
            let apart = (factor - above as f64 / over as f64).abs() + factor * f64::EPSILON;
            let most = (0.5 / apart).min(EXACT_TO_HALVES / factor).min(TRIED as f64) as i64;
            near = (most >= LARGEST_AT_LEAST)
                .then_some((above, over, most, false))
                .or(near);
            if above.max(over) <= MAX_TERM {
                // A quotient that is not whole is at least one part of the divisor away from an integer: so far products are on its side.
                let clear = 1.0 / (over as f64 * (apart + factor * rounding));
                let clear = (clear.min(TRIED as f64) as i64 - 1).max(0);
                // Those that are whole are tried.
                let differs = |&k: &i64| times((k * over) as f64, factor) != (k * above) as f64;
                let most = (1..=clear / over).find(differs).map_or(clear, |k| k * over - 1);
                if most >= TRIED_AT_LEAST {
                    return Some((above, over, most, true));
                }
            }
        }
        rest = 1.0 / (rest - whole as f64);
        if !rest.is_finite() || rest > MAX_NEAR_TERM as f64 {
            break;
        }
    }
    near
}

/// A size that each call computes: the product of another with a factor, rounded, of which a quotient that is near it is known.
fn decided(graph: &Graph, of: &Dim, near: Dim, (factor, up): (f64, bool), dtype: DType) -> Option<Dim> {
    let product = size_value(graph, of, dtype).ok()? * graph.constant(factor).cast(dtype);
    let rounded = if up { product.ceil() } else { product.floor() };
    // At most 1 away from the quotient, of which `near` has lost a part, and rounded up.
    let upper = (near + 3).expr().clone();
    let all = graph.iota_1d(&upper, DType::I64).ok()?;
    Some(all.lt(rounded.cast(DType::I64)).nonzero().dim(1))
}

/// `Add`, `Sub`, `Mul` and `Div` of floats, of which one is carried.
pub(super) fn arithmetic(call: &Call<'_, '_, '_>) -> Option<Value> {
    if call.inputs.len() != 2 {
        return None;
    }
    let ((a, a_carried), (b, b_carried)) = match (operand(call, 0), operand(call, 1)) {
        (Some(a), Some(b)) => (a, b),
        _ if call.node.op_type() == "Mul" => return scaled(call),
        _ => return None,
    };
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
    let mut sign = 1;
    let (over, mut most) = match op {
        "Div" => {
            let by = b.sizes.dims.first()?.as_const().filter(|_| b.over == 1)?;
            let same = b.sizes.dims.iter().all(|d| d.as_const() == Some(by));
            sign = by.signum();
            let size = by.checked_abs().filter(|by| same && *by > 0)?;
            let over = a.over.checked_mul(size).filter(|over| *over <= MAX_DIVISOR)?;
            // Zero by what is negative is -0.
            if sign < 0 && !a.sizes.dims.iter().all(|d| becomes_nonzero(&graph, d)) {
                return None;
            }
            (over, whole_numbers(dtype)?)
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
        "Div" => x * sign,
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
    let product = None;
    Some(Value::Ratio(Ratio { sizes, over, product }.into()))
}

/// Operand 0, if it is carried as quotients, in the type of floats that the node says: they are as exact there, or rounded to the same side
/// of an integer, where numerators are as small as that type asks for.
pub(super) fn converted(call: &Call<'_, '_, '_>) -> Outcome<Option<Value>> {
    let Some(value @ Value::Ratio(r)) = call.value(0) else {
        return Ok(None);
    };
    let to = match call.node.op_type() {
        "Cast" => call.dtype("to")?,
        "CastLike" => Some(call.required(1)?.dtype()),
        _ => None,
    };
    let Some(to) = to.filter(|to| *to != r.sizes.dtype) else {
        return Ok(Some(value.clone()));
    };
    let most = whole_numbers(to).map(|most| if r.over.count_ones() == 1 { most } else { most / 2 });
    // What each call computes is computed in one type.
    let fits = most.is_some_and(|most| r.product.is_none() && stay_within(&call.graph(), &r.sizes.dims, most));
    let sizes = Sizes {
        dtype: to,
        ..r.sizes.clone()
    };
    Ok(fits.then(|| Value::Ratio(Ratio { sizes, ..(**r).clone() }.into())))
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
    // What is never rounded has no limit.
    let within = r.product.as_ref().is_none_or(|p| stay_within(&graph, &p.dims, p.most));
    if !within || !r.sizes.dims.iter().all(positive) {
        return None;
    }
    let to_whole = |(i, d): (usize, &Dim)| match &r.product {
        Some(p) if !p.rounds_alike => decided(&graph, &p.dims[i], quotient(d, r.over), (p.factor, up), r.sizes.dtype),
        _ => Some(quotient(&if up { d + (r.over - 1) } else { d.clone() }, r.over)),
    };
    Some(Sizes {
        dims: r.sizes.dims.iter().enumerate().map(to_whole).collect::<Option<_>>()?,
        ..r.sizes.clone()
    })
}
