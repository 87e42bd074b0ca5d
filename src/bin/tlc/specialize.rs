//! `--set NAME=N`: a graph with some of its symbols replaced by sizes.

use std::sync::Arc;

use tlc_ir::graph::{GraphError, Loop, Operands, Shape, TensorType, View};
use tlc_ir::index::{IndexExpr, IndexNode};
use tlc_ir::{Graph, NodeId, NodeKind};

use crate::failure::{Code, Failure};

/// The graph under the given sizes. Types, guards and views are inferred anew, so what the sizes contradict is an error.
pub fn specialize(graph: &Graph, sets: &[(String, i64)], file: &str) -> Result<Graph, Failure> {
    if sets.is_empty() {
        return Ok(graph.clone());
    }
    let mut values: Vec<Option<i64>> = vec![None; graph.symbols().len()];
    for (name, value) in sets {
        let Some(symbol) = graph.find_symbol(name) else {
            let known: Vec<&str> = graph.symbols().iter().map(|s| s.name.as_str()).collect();
            let expected = if known.is_empty() {
                "none: every size is fixed".into()
            } else {
                known.join(", ")
            };
            return Err(Failure::new(
                Code::Usage,
                format!("--set {name}={value}: {file} has no size `{name}`; expected {expected}"),
            ));
        };
        let declared = &graph.symbols()[symbol.0 as usize];
        if declared.upper.is_some() {
            let message = format!("--set {name}={value}: data decides this size; expected none for it");
            return Err(Failure::new(Code::Usage, message));
        }
        if !(declared.lo..=declared.hi).contains(value) {
            let (lo, hi) = (declared.lo, declared.hi);
            return Err(Failure::new(
                Code::Usage,
                format!("--set {name}={value}: out of range; expected {lo}..={hi}"),
            ));
        }
        if values[symbol.0 as usize]
            .replace(*value)
            .is_some_and(|before| before != *value)
        {
            return Err(Failure::new(
                Code::Usage,
                format!("--set {name}: given twice; expected one size"),
            ));
        }
    }
    rebuild(graph, &values).map_err(|e| Failure::at(Code::Invalid, file, format!("under the sizes of --set: {e}")))
}

fn rebuild(graph: &Graph, values: &[Option<i64>]) -> Result<Graph, GraphError> {
    let mut new = Graph::new(graph.name.clone());
    let mut atoms: Vec<IndexExpr> = Vec::with_capacity(values.len());
    for (s, value) in graph.symbols().iter().zip(values) {
        atoms.push(match value {
            Some(v) => IndexExpr::Const(*v),
            None => match &s.upper {
                Some(upper) => {
                    let upper = upper.replace(&mut |n| match n {
                        IndexNode::Sym(s) => atoms.get(s.0 as usize).cloned(),
                        _ => None,
                    });
                    new.add_data_symbol(&s.name, upper).into()
                }
                None => new.add_symbol(&s.name, s.lo, s.hi).into(),
            },
        });
    }
    let dim = |e: &IndexExpr| {
        e.replace(&mut |n| match n {
            IndexNode::Sym(s) => atoms.get(s.0 as usize).cloned(),
            _ => None,
        })
    };
    let shape = |s: &Shape| -> Shape { s.iter().map(&dim).collect() };
    let ty = |t: &TensorType| TensorType {
        dtype: t.dtype,
        shape: shape(&t.shape),
    };
    let mut map: Vec<NodeId> = Vec::with_capacity(graph.len());
    for (_, node) in graph.nodes() {
        let operands: Operands = node.operands.iter().map(|o| map[o.index()]).collect();
        let kind = match &node.kind {
            NodeKind::Input { name, ty: declared, .. } => {
                map.push(new.add_input(name, ty(declared), node.origin)?);
                continue;
            }
            NodeKind::Iota { ty: made, axis } => NodeKind::Iota {
                ty: ty(made),
                axis: *axis,
            },
            NodeKind::Random { shape: made, stream } => NodeKind::Random {
                shape: shape(made),
                stream: *stream,
            },
            NodeKind::View(view) => NodeKind::View(match view {
                View::Reshape(to) => View::Reshape(shape(to)),
                View::Expand(to) => View::Expand(shape(to)),
                View::Permute(p) => View::Permute(p.clone()),
                View::Pad { lo, hi, value } => View::Pad {
                    lo: shape(lo),
                    hi: shape(hi),
                    value: *value,
                },
                View::Slice { start, step, size } => View::Slice {
                    start: shape(start),
                    step: step.clone(),
                    size: shape(size),
                },
                View::Window {
                    axis,
                    size,
                    stride,
                    dilation,
                } => View::Window {
                    axis: *axis,
                    size: dim(size),
                    stride: *stride,
                    dilation: *dilation,
                },
            }),
            // A body keeps its symbols; the loop gives them other values.
            NodeKind::Loop(l) => NodeKind::Loop(Arc::new(Loop {
                symbols: l.symbols.iter().map(&dim).collect(),
                trip: l.trip.as_ref().map(&dim),
                ..(**l).clone()
            })),
            NodeKind::Call(function) => NodeKind::Call(function.with_extents(&mut |e| dim(e))),
            kind => kind.clone(),
        };
        map.push(new.add(kind, &operands, node.origin)?);
    }
    for o in graph.outputs() {
        new.add_output(&o.name, map[o.node.index()]);
    }
    Ok(new)
}
