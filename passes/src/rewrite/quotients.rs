//! Quotients that are rounded to bytes, by products.
//!
//! What quantizes divides by a scale: `round(x / s) + z`, as a byte. A division of vectors takes as long as half a dozen products. With `1 / s` in
//! two parts, `h` the nearest float and `l` what that lacks, `fma(x, h, x * l)` is the quotient but for its last bit. That bit counts only
//! beside a half, where results go from one integer to the next.
//!
//! Invariants:
//! - Bytes are the same. Both quotients grow with `x`, so that it is enough that the floats around each half between two bytes are rounded to
//!   the same integers; all of these are tried, for the scale at hand.
//! - `x` is a number far from the ends of f32's range, by what it is computed of: infinity times `l` would be NaN.
//!
//! Zeros added in front of a conversion to bytes are left out as well, which change nothing but the sign of a zero, and zero points of 0.

use tlc_ir::graph::{GraphError, Semiring};
use tlc_ir::target::{Support, Width};
use tlc_ir::{DType, Graph, Node, NodeId, NodeKind, Scalar, ScalarOp};

use super::{Context, Failure, Pass, Rebuilder};

/// The power of two that scales, their reciprocals and quotients' dividends stay below.
const FAR: f64 = (1u64 << 60) as f64;
/// As [`FAR`], of what dividends are computed of.
const WIDEST: f64 = FAR * (1u64 << 40) as f64;
/// Zero points are between this and its negative.
const ZERO_POINT: f64 = 256.0;
/// Floats on each side of a half's dividend that are tried: further away both quotients are beyond the half by more than they are off.
const BESIDE: i32 = 4;
/// Nodes that are looked at to bound a dividend.
const NODES: u32 = 160;
/// Elements of constants that are looked at.
const ELEMENTS: usize = 1 << 16;

/// Quotients that are rounded to bytes, by products.
pub struct Quotients;

impl Pass for Quotients {
    fn name(&self) -> &'static str {
        "quotients"
    }

    fn run(&self, graph: &Graph, context: &mut Context<'_>) -> Result<Graph, Failure> {
        let fused = |e: &tlc_ir::target::Emitter| e.map(ScalarOp::Fma, DType::F32, Width::Lanes) == Support::Native;
        match context.tiles.is_some_and(fused) {
            true => Ok(run(graph)?),
            false => Ok(graph.clone()),
        }
    }
}

/// Multiplies where the graph divides by constants what it then rounds to bytes.
///
/// # Errors
/// Never for a verified graph.
pub fn run(graph: &Graph) -> Result<Graph, GraphError> {
    let to_bytes = |n: &Node| matches!(n.kind, NodeKind::Convert(DType::U8 | DType::I8));
    super::rebuild_of(
        graph,
        &to_bytes,
        &mut |re, _, node, operands| match quantized(re, node, operands)? {
            Some(new) => Ok(new),
            None => re.keep(node, operands),
        },
    )
}

/// Bytes as they are computed with neither a division nor a zero added, if that changes something.
fn quantized(re: &mut Rebuilder<'_>, node: &Node, operands: &[NodeId]) -> Result<Option<NodeId>, GraphError> {
    let (NodeKind::Convert(to @ (DType::U8 | DType::I8)), &[value]) = (&node.kind, operands) else {
        return Ok(None);
    };
    if re.graph.ty(value).dtype != DType::F32 {
        return Ok(None);
    }
    let (rounded, zero_point) = match shifted(re, value) {
        Some((rounded, point)) => (rounded, point),
        None => (value, 0.0),
    };
    let quotient = match re.graph.node(rounded).kind {
        NodeKind::Map(ScalarOp::Round) => re.graph.node(rounded).operands[0],
        _ => return Ok(None),
    };
    let mut new = rounded;
    if let Some((x, [high, low])) = factors(re, quotient, *to, zero_point) {
        let shape = re.graph.ty(x).shape.clone();
        let high = re.splat(Scalar::from_f64(DType::F32, high), &shape)?;
        let low = re.splat(Scalar::from_f64(DType::F32, low), &shape)?;
        let rest = re.add(NodeKind::Map(ScalarOp::Mul), &[x, low])?;
        let quotient = re.add(NodeKind::Map(ScalarOp::Fma), &[x, high, rest])?;
        new = re.add(NodeKind::Map(ScalarOp::Round), &[quotient])?;
    }
    if zero_point != 0.0 && new != rounded {
        let shape = re.graph.ty(new).shape.clone();
        let point = re.splat(Scalar::from_f64(DType::F32, zero_point), &shape)?;
        new = re.add(NodeKind::Map(ScalarOp::Add), &[new, point])?;
    } else if zero_point != 0.0 {
        new = value;
    }
    match new == value {
        true => Ok(None),
        false => re.add(node.kind.clone(), &[new]).map(Some),
    }
}

/// What a constant integer is added to, and that integer.
fn shifted(re: &Rebuilder<'_>, value: NodeId) -> Option<(NodeId, f64)> {
    let node = re.graph.node(value);
    let (NodeKind::Map(ScalarOp::Add), &[a, b]) = (&node.kind, &node.operands[..]) else {
        return None;
    };
    let point = |n: NodeId| {
        let z = re.splat_value(n)?.as_f64();
        (z.fract() == 0.0 && z.abs() <= ZERO_POINT).then_some(z)
    };
    match (point(a), point(b)) {
        (None, Some(z)) => Some((a, z)),
        (Some(z), None) => Some((b, z)),
        _ => None,
    }
}

/// What is divided, and what to multiply it by, if a value is a quotient that may be computed so.
fn factors(re: &Rebuilder<'_>, quotient: NodeId, to: DType, zero_point: f64) -> Option<(NodeId, [f64; 2])> {
    let node = re.graph.node(quotient);
    let (NodeKind::Map(ScalarOp::Div), &[x, by]) = (&node.kind, &node.operands[..]) else {
        return None;
    };
    let scale = re.splat_value(by)?.as_f64() as f32;
    let parts = reciprocal(scale)?;
    let lowest = if to == DType::I8 { i8::MIN as f64 } else { 0.0 } - zero_point;
    if !agrees(scale, parts, lowest as i32) {
        return None;
    }
    let bound = bound(&re.graph, x, &mut NODES.clone())?;
    (bound <= FAR).then_some((x, parts.map(f64::from)))
}

/// The reciprocal of a scale in two floats; `None` of what is none, or too large or small.
fn reciprocal(scale: f32) -> Option<[f32; 2]> {
    if !(1.0 / FAR..=FAR).contains(&f64::from(scale)) {
        return None;
    }
    let exact = 1.0 / f64::from(scale);
    let high = exact as f32;
    Some([high, (exact - f64::from(high)) as f32])
}

/// Whether quotients by a scale, and their products, are rounded to the same integers from about `lowest` to 255 more.
fn agrees(scale: f32, [high, low]: [f32; 2], lowest: i32) -> bool {
    (lowest - 1..=lowest + 255).all(|k| {
        let half = f64::from(k) + 0.5;
        let middle = (half * f64::from(scale)) as f32;
        (-BESIDE..=BESIDE).all(|n| {
            let x = f32::from_bits(middle.to_bits().wrapping_add_signed(n));
            (x / scale).round_ties_even() == x.mul_add(high, x * low).round_ties_even()
        })
    })
}

/// What a value's magnitude is at most, if it is computed of numbers alone and everything on the way is far from infinity.
fn bound(graph: &Graph, id: NodeId, left: &mut u32) -> Option<f64> {
    *left = left.checked_sub(1)?;
    let node = graph.node(id);
    let dtype = graph.ty(id).dtype;
    let mut of = |k: usize| bound(graph, node.operands[k], left);
    let magnitude = |v: Scalar| Some(v.as_f64().abs()).filter(|v| v.is_finite());
    let found = match &node.kind {
        NodeKind::Const(value) => magnitude(*value),
        NodeKind::Data(data) => {
            let count: usize = data.0.shape().iter().product();
            let mut all = (0..count).map(|i| magnitude(data.0.get(i)));
            match count <= ELEMENTS {
                true => all.try_fold(0.0, |most: f64, v| Some(most.max(v?))),
                false => None,
            }
        }
        NodeKind::View(view) => {
            let fill = view.fill().map_or(Some(0.0), magnitude);
            of(0).and_then(|below| Some(below.max(fill?)))
        }
        NodeKind::Copy => of(0),
        NodeKind::Convert(DType::F32 | DType::I32) => of(0),
        NodeKind::Map(ScalarOp::Add | ScalarOp::Sub) => of(0).and_then(|a| Some(a + of(1)?)),
        NodeKind::Map(ScalarOp::Mul) => of(0).and_then(|a| Some(a * of(1)?)),
        NodeKind::Map(ScalarOp::Max | ScalarOp::Min) => of(0).and_then(|a| Some(a.max(of(1)?))),
        NodeKind::Map(ScalarOp::Neg | ScalarOp::Abs) => of(0),
        NodeKind::Map(ScalarOp::Select) => of(1).and_then(|a| Some(a.max(of(2)?))),
        // What is outside is zero.
        NodeKind::Gather { .. } => of(0),
        NodeKind::Einsum {
            inputs,
            output,
            semiring: Semiring::AddMul,
            ..
        } if dtype == DType::F32 => {
            let mut terms = Some(1.0);
            let mut seen = Vec::new();
            for (labels, &operand) in inputs.iter().zip(&node.operands) {
                for (label, extent) in labels.iter().zip(&graph.ty(operand).shape) {
                    if !output.contains(label) && !seen.contains(label) {
                        seen.push(*label);
                        terms = terms.zip(extent.as_const()).map(|(n, extent)| n * extent as f64);
                    }
                }
            }
            (0..inputs.len()).fold(terms, |product, k| product.and_then(|p| Some(p * of(k)?)))
        }
        _ => None,
    };
    match dtype {
        DType::F32 => found.filter(|&b| b <= WIDEST),
        // What integers hold, if they do not wrap around.
        DType::U8 | DType::I8 | DType::U16 | DType::I16 | DType::I32 => {
            let most = 2f64.powi(dtype.bits() as i32) - 1.0;
            Some(found.filter(|&b| b < 2f64.powi(31)).map_or(most, |b| b.min(most)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both quotients of every float around the range of bytes, for scales of all kinds.
    #[test]
    fn what_agrees_beside_halves_agrees_everywhere() {
        for scale in [
            0.00013503073f32,
            0.0015519947,
            0.023528,
            1.0,
            0.1,
            3.0e-7,
            5.5e8,
            0.33333334,
        ] {
            let parts = reciprocal(scale).expect("a scale");
            assert!(agrees(scale, parts, -128), "{scale}");
            let most = (300.0 * scale).to_bits();
            for bits in (0..most).step_by(997) {
                for x in [f32::from_bits(bits), -f32::from_bits(bits)] {
                    let product = x.mul_add(parts[0], x * parts[1]);
                    assert_eq!(
                        (x / scale).round_ties_even(),
                        product.round_ties_even(),
                        "{x:e} by {scale}"
                    );
                }
            }
        }
    }

    #[test]
    fn what_is_no_reciprocal_is_refused() {
        for scale in [0.0, -0.5, f32::NAN, f32::INFINITY, f32::MIN_POSITIVE, f32::MAX] {
            assert_eq!(reciprocal(scale), None, "{scale}");
        }
        assert!(!agrees(0.1, [10.0, -1e-4], 0));
        // One product alone is off by enough to be seen.
        assert!(!agrees(0.023528, [1.0 / 0.023528, 0.0], -128));
    }
}
