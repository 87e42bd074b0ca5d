//! Canonical forms: small directional rewrites whose right-hand side never costs more.
//!
//! Every rule keeps the bits of the result (NaN payloads aside), or is licensed by the scalar semantics. Each is a named
//! function of the new graph; the driver applies the first that returns.

use tlc_ir::graph::{GraphError, View};
use tlc_ir::index::IndexExpr;
use tlc_ir::{Graph, NodeId, NodeKind, Scalar, ScalarOp};

use super::{Context, Failure, Pass, Rebuilder, all_ones};

type Rewritten = Result<Option<NodeId>, GraphError>;

/// Small directional rewrites.
pub struct Canonicalize;

impl Pass for Canonicalize {
    fn name(&self) -> &'static str {
        "canonicalize"
    }

    fn run(&self, graph: &Graph, _: &mut Context<'_>) -> Result<Graph, Failure> {
        Ok(run(graph)?)
    }
}

/// Applies the rules to every node, bottom up.
///
/// # Errors
/// Never for a verified graph.
pub fn run(graph: &Graph) -> Result<Graph, GraphError> {
    super::rebuild(graph, &mut |re, _, node, operands| {
        for rule in RULES {
            if let Some(new) = rule(re, &node.kind, operands)? {
                return Ok(new);
            }
        }
        re.keep(node, operands)
    })
}

/// A rule: the new node, where it applies.
type Rule = fn(&mut Rebuilder, &NodeKind, &[NodeId]) -> Rewritten;

const RULES: &[Rule] = &[
    constant_of_one_element,
    identity_operand,
    double_inverse,
    power_by_small_integer,
    constant_select,
    bounding_select,
    trivial_convert,
    nested_views,
    permute_of_joined_axes,
    trivial_view,
    trivial_reduce,
];

/// A stored constant of one element: the number, which kernels need not load.
fn constant_of_one_element(re: &mut Rebuilder, kind: &NodeKind, _: &[NodeId]) -> Rewritten {
    let NodeKind::Data(data) = kind else { return Ok(None) };
    if data.0.len() != 1 {
        return Ok(None);
    }
    let shape = data.0.shape().iter().map(|&n| IndexExpr::Const(n as i64)).collect();
    re.splat(data.0.get(0), &shape).map(Some)
}

/// `x * 1`, `x / 1`, `x - 0`, `x + (-0)`, and on integers `x + 0`: the operand.
fn identity_operand(re: &mut Rebuilder, kind: &NodeKind, operands: &[NodeId]) -> Rewritten {
    let NodeKind::Map(op) = kind else { return Ok(None) };
    let [x, y] = operands[..] else { return Ok(None) };
    let is = |re: &Rebuilder, node: NodeId, value: f64| {
        re.splat_value(node)
            .is_some_and(|s| s == Scalar::from_f64(s.dtype(), value))
    };
    let integer = re.graph.ty(x).dtype.is_int();
    let keep = match op {
        ScalarOp::Mul if is(re, y, 1.0) => Some(x),
        ScalarOp::Mul if is(re, x, 1.0) => Some(y),
        ScalarOp::Div if is(re, y, 1.0) => Some(x),
        ScalarOp::Sub if is(re, y, 0.0) => Some(x),
        ScalarOp::Add if is(re, y, -0.0) || (integer && is(re, y, 0.0)) => Some(x),
        ScalarOp::Add if is(re, x, -0.0) || (integer && is(re, x, 0.0)) => Some(y),
        _ => None,
    };
    Ok(keep)
}

/// `-(-x)` and `!!x`: the operand.
fn double_inverse(re: &mut Rebuilder, kind: &NodeKind, operands: &[NodeId]) -> Rewritten {
    let NodeKind::Map(op @ (ScalarOp::Neg | ScalarOp::Not)) = kind else {
        return Ok(None);
    };
    let inner = re.graph.node(operands[0]);
    Ok((inner.kind == NodeKind::Map(*op)).then(|| inner.operands[0]))
}

/// `pow(x, 1)` is `x`, `pow(x, 2)` is `x * x`, `pow(x, -1)` is `1 / x`: exact where the function is only accurate.
fn power_by_small_integer(re: &mut Rebuilder, kind: &NodeKind, operands: &[NodeId]) -> Rewritten {
    let NodeKind::Map(ScalarOp::Pow) = kind else {
        return Ok(None);
    };
    let Some(exponent) = re.splat_value(operands[1]).map(|s| s.as_f64()) else {
        return Ok(None);
    };
    let x = operands[0];
    if exponent == 1.0 {
        return Ok(Some(x));
    }
    if exponent == 2.0 {
        return re.add(NodeKind::Map(ScalarOp::Mul), &[x, x]).map(Some);
    }
    if exponent == -1.0 {
        let ty = re.graph.ty(x).clone();
        let one = re.splat(ty.dtype.one(), &ty.shape)?;
        return re.add(NodeKind::Map(ScalarOp::Div), &[one, x]).map(Some);
    }
    Ok(None)
}

/// A selection by a constant: the selected operand.
fn constant_select(re: &mut Rebuilder, kind: &NodeKind, operands: &[NodeId]) -> Rewritten {
    let NodeKind::Map(ScalarOp::Select) = kind else {
        return Ok(None);
    };
    if operands[1] == operands[2] {
        return Ok(Some(operands[1]));
    }
    Ok(re
        .splat_value(operands[0])
        .map(|c| if c.as_bool() { operands[1] } else { operands[2] }))
}

/// `x` where it is beyond a constant bound, else the bound: `max(x, bound)` or `min(x, bound)`. The forms differ where `x` is at
/// the bound: only in the sign of zero, and not where the bound is the zero that the extremum prefers, or the other one if `x`
/// stays there.
fn bounding_select(re: &mut Rebuilder, kind: &NodeKind, operands: &[NodeId]) -> Rewritten {
    let NodeKind::Map(ScalarOp::Select) = kind else {
        return Ok(None);
    };
    let (condition, bound, x) = (re.graph.node(operands[0]), operands[1], operands[2]);
    let NodeKind::Map(op @ (ScalarOp::Lt | ScalarOp::Le)) = condition.kind else {
        return Ok(None);
    };
    let Some(value) = re.splat_value(bound).filter(|v| !v.as_f64().is_nan()) else {
        return Ok(None);
    };
    let extremum = match condition.operands[..] {
        [a, b] if (a, b) == (x, bound) => ScalarOp::Max,
        [a, b] if (a, b) == (bound, x) => ScalarOp::Min,
        _ => return Ok(None),
    };
    if value.dtype().is_float() && value.as_f64() == 0.0 {
        let preferred = value.as_f64().is_sign_negative() == (extremum == ScalarOp::Min);
        let replaced = op == ScalarOp::Le;
        if preferred != replaced {
            return Ok(None);
        }
    }
    re.add(NodeKind::Map(extremum), &[x, bound]).map(Some)
}

/// A conversion to the dtype that the operand has: the operand.
fn trivial_convert(re: &mut Rebuilder, kind: &NodeKind, operands: &[NodeId]) -> Rewritten {
    let (NodeKind::Convert(to) | NodeKind::Bitcast(to)) = kind else {
        return Ok(None);
    };
    Ok((re.graph.ty(operands[0]).dtype == *to).then_some(operands[0]))
}

/// A reshape of a reshape, a permutation of a permutation, a broadcast of a broadcast: one view.
fn nested_views(re: &mut Rebuilder, kind: &NodeKind, operands: &[NodeId]) -> Rewritten {
    let NodeKind::View(outer) = kind else { return Ok(None) };
    let inner = re.graph.node(operands[0]);
    let NodeKind::View(below) = &inner.kind else {
        return Ok(None);
    };
    let base = inner.operands[0];
    let Some(view) = outer.after(below) else {
        return Ok(None);
    };
    let rule = trivial_view(re, &NodeKind::View(view.clone()), &[base])?;
    match rule {
        Some(node) => Ok(Some(node)),
        None => re.add(NodeKind::View(view), &[base]).map(Some),
    }
}

/// A permutation between reshapes that join the leading axes, which it leaves where they are, and part them again: a permutation.
fn permute_of_joined_axes(re: &mut Rebuilder, kind: &NodeKind, operands: &[NodeId]) -> Rewritten {
    let NodeKind::View(View::Reshape(to)) = kind else {
        return Ok(None);
    };
    let NodeKind::View(View::Permute(axes)) = &re.graph.node(operands[0]).kind else {
        return Ok(None);
    };
    let joined = re.graph.node(re.graph.node(operands[0]).operands[0]);
    let NodeKind::View(View::Reshape(between)) = &joined.kind else {
        return Ok(None);
    };
    let base = joined.operands[0];
    let from = &re.graph.ty(base).shape;
    let Some(lead) = (from.len() + 1).checked_sub(between.len()).filter(|lead| *lead > 1) else {
        return Ok(None);
    };
    let permuted = axes[1..].iter().map(|&axis| &between[axis as usize]);
    let alike = axes.first() == Some(&0)
        && from[lead..] == between[1..]
        && to.len() == from.len()
        && to[..lead] == from[..lead]
        && to[lead..].iter().eq(permuted);
    if !alike {
        return Ok(None);
    }
    let behind = axes[1..].iter().map(|&axis| axis + lead as u8 - 1);
    let all = (0..lead as u8).chain(behind).collect();
    re.add(NodeKind::View(View::Permute(all)), &[base]).map(Some)
}

/// A view that changes nothing: the operand.
fn trivial_view(re: &mut Rebuilder, kind: &NodeKind, operands: &[NodeId]) -> Rewritten {
    let NodeKind::View(view) = kind else { return Ok(None) };
    let trivial = view.changes_nothing(&re.graph.ty(operands[0]).shape);
    Ok(trivial.then_some(operands[0]))
}

/// A reduction over no axes, or over axes of one element: a reshape. (argmax and argmin return an index.) A sum of the one
/// term −0 keeps its sign here and may lose it elsewhere, which the scalar semantics leave open.
fn trivial_reduce(re: &mut Rebuilder, kind: &NodeKind, operands: &[NodeId]) -> Rewritten {
    let NodeKind::Reduce { monoid, axes } = kind else {
        return Ok(None);
    };
    let shape = re.graph.ty(operands[0]).shape.clone();
    let reduced: Vec<_> = axes.iter().map(|&a| shape[a as usize].clone()).collect();
    if monoid.is_arg() || !all_ones(&reduced) {
        return Ok(None);
    }
    let kept = (0..shape.len())
        .filter(|i| !axes.contains(&(*i as u8)))
        .map(|i| shape[i].clone())
        .collect();
    re.reshape(operands[0], &kept).map(Some)
}
