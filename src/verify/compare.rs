//! Two results of one computation: how far they are apart, where, and whether that is within what rounding allows.

use std::sync::Arc;

use tlc_ir::graph::{Body, GraphError, HostFunction, Loop, Operands, Region, Rule, View};
use tlc_ir::interp::Bounded;
use tlc_ir::{DType, Graph, HostTensor, NodeId, NodeKind};

use super::Case;

/// An element at which two results differ most.
#[derive(Clone, PartialEq, Debug)]
pub struct Extreme {
    /// How far they are apart.
    pub by: f64,
    /// Where.
    pub index: Vec<usize>,
    /// The first result there.
    pub a: f64,
    /// The second.
    pub b: f64,
}

/// How two results differ.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Difference {
    /// Elements compared.
    pub elements: usize,
    /// Elements that differ.
    pub differing: usize,
    /// The largest absolute difference, where both are numbers. `None` if none differs.
    pub absolute: Option<Extreme>,
    /// The largest difference relative to the larger magnitude, where both are numbers.
    pub relative: Option<Extreme>,
    /// Elements of which one is NaN or infinite and the other is something else, and the first of them.
    pub special: usize,
    /// Elements that are further apart than two right implementations may be, and the first of them.
    pub outside: usize,
    /// The first of these.
    pub first_outside: Option<Extreme>,
    /// Elements that may be anything.
    pub uncertain: usize,
}

impl Difference {
    /// True if every element is within the bounds.
    pub fn is_within(&self) -> bool {
        self.outside == 0
    }
}

/// The index of an element, from its position in C order.
pub(super) fn index_of(at: usize, shape: &[usize]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    let mut rest = at;
    for (slot, d) in index.iter_mut().zip(shape).rev() {
        *slot = rest % d;
        rest /= d;
    }
    index
}

/// Compares two tensors of one shape; `bounds` say of each how far a right implementation may be off. `None` if the shapes
/// differ. If both are results of `one_model`, what its meaning in one dtype differs from that in another is within bounds.
pub fn difference(a: &HostTensor, b: &HostTensor, bounds: (&Bounded, &Bounded), one_model: bool) -> Option<Difference> {
    if a.shape() != b.shape() || bounds.0.error.len() != a.len() || bounds.1.error.len() != a.len() {
        return None;
    }
    let mut out = Difference {
        elements: a.len(),
        ..Difference::default()
    };
    for i in 0..a.len() {
        let (x, y) = (a.get(i), b.get(i));
        let (p, q) = (x.as_f64(), y.as_f64());
        let apart = (bounds.0.value[i] - bounds.1.value[i]).abs();
        let apart = if one_model && apart.is_finite() { apart } else { 0.0 };
        let allowed = bounds.0.error[i] + bounds.1.error[i] + apart;
        let uncertain = allowed == f64::INFINITY;
        out.uncertain += usize::from(uncertain);
        // Integers beyond 2^53 are one number as f64 and may still differ.
        let integers = !x.dtype().is_float() && x.dtype() == y.dtype();
        let same = if integers {
            x == y
        } else {
            p == q || (p.is_nan() && q.is_nan())
        };
        if same {
            continue;
        }
        out.differing += 1;
        let by = (p - q).abs();
        let extreme = |by: f64| Extreme {
            by,
            index: index_of(i, a.shape()),
            a: p,
            b: q,
        };
        if by.is_finite() {
            if out.absolute.as_ref().is_none_or(|e| by > e.by) {
                out.absolute = Some(extreme(by));
            }
            let relative = by / p.abs().max(q.abs());
            if out.relative.as_ref().is_none_or(|e| relative > e.by) {
                out.relative = Some(extreme(relative));
            }
        } else {
            out.special += 1;
        }
        // Where nothing may be off, two evaluations in f64 still round.
        let rounding = 4.0 * f64::EPSILON * p.abs().max(q.abs());
        let fits = by <= allowed + rounding && !integers;
        if !uncertain && !fits {
            out.outside += 1;
            if out.first_outside.is_none() {
                out.first_outside = Some(extreme(by));
            }
        }
    }
    Some(out)
}

/// A case whose floats are computed in one dtype. Inputs and constants keep theirs and are converted first, so that their
/// rounding is part of the computation, and of its bounds.
///
/// # Errors
/// [`GraphError`] for an operation that does not take the dtype.
pub fn in_float(case: &Case, to: DType) -> Result<Case, GraphError> {
    Ok(Case {
        graph: graph_in_float(&case.graph, to, false)?,
        inputs: case.inputs.clone(),
        symbols: case.symbols.clone(),
    })
}

/// A graph with its floats in another dtype; a loop's body takes its inputs in that dtype as well.
pub(super) fn graph_in_float(from: &Graph, to: DType, body: bool) -> Result<Graph, GraphError> {
    let dtype = |d: DType| if d.is_float() { to } else { d };
    let mut graph = Graph::new(from.name.clone());
    for s in from.symbols() {
        match &s.upper {
            Some(upper) => graph.add_data_symbol(&s.name, upper.clone()),
            None => graph.add_symbol(&s.name, s.lo, s.hi),
        };
    }
    let mut map: Vec<NodeId> = Vec::with_capacity(from.len());
    for (_, node) in from.nodes() {
        let mut operands: Operands = node.operands.iter().map(|o| map[o.index()]).collect();
        let kind = match &node.kind {
            NodeKind::Convert(d) => NodeKind::Convert(dtype(*d)),
            NodeKind::Einsum {
                inputs,
                output,
                semiring,
                accumulator,
                dtype: result,
            } => NodeKind::Einsum {
                inputs: inputs.clone(),
                output: output.clone(),
                semiring: *semiring,
                accumulator: dtype(*accumulator),
                dtype: dtype(*result),
            },
            NodeKind::View(View::Pad {
                lo,
                hi,
                interior,
                value,
            }) => NodeKind::View(View::Pad {
                lo: lo.clone(),
                hi: hi.clone(),
                interior: interior.clone(),
                value: value.convert(dtype(value.dtype())),
            }),
            NodeKind::Loop(l) => NodeKind::Loop(Arc::new(Loop {
                body: Body(Arc::new(graph_in_float(&l.body.0, to, true)?)),
                ..(**l).clone()
            })),
            NodeKind::Region(r) => {
                let inside = |body: &Body| graph_in_float(&body.0, to, true).map(|g| Body(Arc::new(g)));
                NodeKind::Region(Arc::new(Region {
                    body: inside(&r.body)?,
                    symbols: r.symbols.clone(),
                    rule: match &r.rule {
                        rule @ (Rule::Opaque | Rule::Checkpoint) => rule.clone(),
                        Rule::Custom(derivative) => Rule::Custom(inside(derivative)?),
                    },
                }))
            }
            // The same value, which no pass need round.
            NodeKind::Bitcast(to) if from.ty(node.operands[0]).dtype == *to => NodeKind::Copy,
            // What is about the bits of a dtype, or takes one alone, gets its operands in that.
            kind @ (NodeKind::Bitcast(_) | NodeKind::Call(HostFunction::Suppress { .. })) => {
                for (made, of) in operands.iter_mut().zip(&node.operands) {
                    let original = from.ty(*of).dtype;
                    if graph.ty(*made).dtype != original {
                        *made = graph.add(NodeKind::Convert(original), &[*made], node.origin.clone())?;
                    }
                }
                kind.clone()
            }
            kind => kind.clone(),
        };
        let mut made = match &kind {
            NodeKind::Input { name, ty, .. } => {
                let mut ty = ty.clone();
                if body {
                    ty.dtype = dtype(ty.dtype);
                }
                graph.add_input(name, ty, node.origin.clone())?
            }
            kind => graph.add(kind.clone(), &operands, node.origin.clone())?,
        };
        // What has no float operand may be of another float.
        let found = graph.ty(made).dtype;
        if found.is_float() && found != to {
            made = graph.add(NodeKind::Convert(to), &[made], node.origin.clone())?;
        }
        map.push(made);
    }
    for o in from.outputs() {
        graph.add_output(&o.name, map[o.node.index()]);
    }
    Ok(graph)
}
