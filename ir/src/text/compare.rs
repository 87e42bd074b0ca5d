//! Structural equality of graphs: what the text form preserves.

use crate::graph::{Condition, Graph, Loop, NodeId, NodeKind};

/// The first difference between two graphs, or `None` if they are the same computation written the same way: equal names,
/// symbols, inputs, outputs and guards, and equal other nodes in the same order. Where inputs stand among the nodes does
/// not count, nor do origins; constants' data is compared by bits.
pub fn difference(a: &Graph, b: &Graph) -> Option<String> {
    if a.name != b.name {
        return Some(format!("names {:?} and {:?}", a.name, b.name));
    }
    if a.symbols() != b.symbols() {
        return Some(format!("symbols {:?} and {:?}", a.symbols(), b.symbols()));
    }
    if a.len() != b.len() || a.inputs().len() != b.inputs().len() {
        return Some(format!("{} and {} nodes", a.len(), b.len()));
    }
    // The nodes in comparable order, and each node's place in it.
    let order = |g: &Graph| {
        let mut order = g.inputs().to_vec();
        order.extend(
            g.nodes()
                .filter(|(_, n)| !matches!(n.kind, NodeKind::Input { .. }))
                .map(|(id, _)| id),
        );
        let mut place = vec![usize::MAX; g.len()];
        order.iter().enumerate().for_each(|(i, id)| place[id.index()] = i);
        (order, place)
    };
    let ((order_a, place_a), (order_b, place_b)) = (order(a), order(b));
    let place = |places: &[usize], id: NodeId| places.get(id.index()).copied();
    for (&ia, &ib) in order_a.iter().zip(&order_b) {
        let (na, nb) = (a.node(ia), b.node(ib));
        let kinds_equal = match (&na.kind, &nb.kind) {
            (NodeKind::Data(x), NodeKind::Data(y)) => x.0 == y.0,
            (NodeKind::Loop(x), NodeKind::Loop(y)) => {
                if let Some(inside) = difference(&x.body.0, &y.body.0) {
                    return Some(format!("in the body of {ia}: {inside}"));
                }
                let of_x = Loop {
                    body: y.body.clone(),
                    ..(**x).clone()
                };
                of_x == **y
            }
            (NodeKind::Region(x), NodeKind::Region(y)) => {
                if let Some(inside) = x.bodies().zip(y.bodies()).find_map(|(x, y)| difference(&x.0, &y.0)) {
                    return Some(format!("in the body of {ia}: {inside}"));
                }
                x.symbols == y.symbols && x.rule.name() == y.rule.name()
            }
            (x, y) => x == y,
        };
        if !kinds_equal {
            return Some(format!("{ia} is {:?}, {ib} is {:?}", na.kind, nb.kind));
        }
        let operands_equal = na.operands.len() == nb.operands.len()
            && na
                .operands
                .iter()
                .zip(&nb.operands)
                .all(|(&x, &y)| place(&place_a, x) == place(&place_b, y));
        if !operands_equal {
            return Some(format!(
                "{ia} has operands {:?}, {ib} has {:?}",
                na.operands, nb.operands
            ));
        }
        if na.ty != nb.ty || na.results != nb.results {
            return Some(format!(
                "{ia} has type {}, {ib} has {}",
                a.type_text(&na.ty),
                b.type_text(&nb.ty)
            ));
        }
    }
    let outputs = |g: &Graph, places: &[usize]| -> Vec<(String, Option<usize>)> {
        g.outputs()
            .iter()
            .map(|o| (o.name.clone(), place(places, o.node)))
            .collect()
    };
    if outputs(a, &place_a) != outputs(b, &place_b) {
        return Some(format!("outputs {:?} and {:?}", a.outputs(), b.outputs()));
    }
    let guards = |g: &Graph, places: &[usize]| -> Vec<(Condition, Option<usize>)> {
        g.guards()
            .iter()
            .map(|x| (x.condition.clone(), place(places, x.node)))
            .collect()
    };
    if guards(a, &place_a) != guards(b, &place_b) {
        return Some(format!("guards {:?} and {:?}", a.guards(), b.guards()));
    }
    None
}
