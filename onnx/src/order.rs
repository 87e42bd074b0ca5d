//! The order of a model's nodes.
//!
//! The format asks for nodes behind those whose results they take, and most files have them so. Some tools append nodes to the end of the list, as
//! ONNX Runtime's conversion to 16-bit floats does with its casts: those are moved, and all others keep their places among each other.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use rustc_hash::{FxHashMap, FxHashSet};
use tlc_formats::onnx::{AttributeKind, Graph, Node};

/// The nodes, each behind those whose results it takes, or its subgraphs do. Nodes that wait for each other come last.
pub(super) fn ordered<'a>(nodes: impl Iterator<Item = Node<'a>>) -> Vec<Node<'a>> {
    let nodes: Vec<Node<'a>> = nodes.collect();
    // The first that makes a value: the name is refused if there is another.
    let mut makers: FxHashMap<&'a str, usize> = FxHashMap::default();
    for (k, node) in nodes.iter().enumerate() {
        for name in node.outputs().filter(|n| !n.is_empty()) {
            makers.entry(name).or_insert(k);
        }
    }
    let needs = |k: usize, each: &mut dyn FnMut(usize)| {
        taken(nodes[k], &mut |name| {
            if let Some(&maker) = makers.get(name).filter(|&&maker| maker != k) {
                each(maker);
            }
        });
    };
    let mut in_order = true;
    for k in 0..nodes.len() {
        needs(k, &mut |maker| in_order &= maker < k);
    }
    if in_order {
        return nodes;
    }
    let mut waiting = vec![0usize; nodes.len()];
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    for (k, waits) in waiting.iter_mut().enumerate() {
        needs(k, &mut |maker| {
            *waits += 1;
            users[maker].push(k);
        });
    }
    let mut ready: BinaryHeap<Reverse<usize>> = (0..nodes.len()).filter(|&k| waiting[k] == 0).map(Reverse).collect();
    let mut all = Vec::with_capacity(nodes.len());
    while let Some(Reverse(k)) = ready.pop() {
        all.push(nodes[k]);
        for &user in &users[k] {
            waiting[user] -= 1;
            if waiting[user] == 0 {
                ready.push(Reverse(user));
            }
        }
    }
    let circular = (0..nodes.len()).filter(|&k| waiting[k] > 0);
    all.extend(circular.map(|k| nodes[k]));
    all
}

/// The names of values that a node takes, or its subgraphs from around them.
fn taken<'a>(node: Node<'a>, each: &mut dyn FnMut(&'a str)) {
    node.inputs().for_each(&mut *each);
    for graph in subgraphs(node) {
        free(graph).into_iter().for_each(&mut *each);
    }
}

/// The names that a graph's nodes and results mention, and those of graphs inside it, but for what is made there.
pub(super) fn free<'a>(graph: Graph<'a>) -> BTreeSet<&'a str> {
    let (mut mentioned, mut own) = (BTreeSet::new(), FxHashSet::default());
    let mut graphs = vec![graph];
    while let Some(graph) = graphs.pop() {
        own.extend(graph.inputs().map(|i| i.name()));
        own.extend(graph.initializers().map(|t| t.name()));
        mentioned.extend(graph.outputs().map(|o| o.name()));
        for node in graph.nodes() {
            mentioned.extend(node.inputs().filter(|n| !n.is_empty()));
            own.extend(node.outputs());
            graphs.extend(subgraphs(node));
        }
    }
    mentioned.retain(|name| !own.contains(name));
    mentioned
}

/// The graphs in a node's attributes.
pub(super) fn subgraphs<'a>(node: Node<'a>) -> impl Iterator<Item = Graph<'a>> {
    let inner = node.attributes().filter(|a| a.kind() == AttributeKind::Graph);
    inner.filter_map(|a| a.graph())
}
