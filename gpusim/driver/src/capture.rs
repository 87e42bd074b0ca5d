//! Graphs: operations with edges, captured from streams, made executable once and launched many times.

use std::sync::Arc;

use crate::clock::Clock;
use crate::work::{Ticket, Work};

/// Where a stream is in a capture.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Captured {
    /// Which capture.
    pub(crate) id: u64,
    /// The nodes that the next one is after.
    pub(crate) after: Vec<usize>,
}

/// An operation of a graph.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) handle: u64,
    pub(crate) what: Arc<str>,
    pub(crate) work: Work,
    pub(crate) after: Vec<usize>,
    /// The node that it is part of, if that is a graph.
    pub(crate) part_of: Option<u64>,
}

impl Node {
    /// The handle that programs know it by.
    pub(crate) fn known_as(&self) -> u64 {
        self.part_of.unwrap_or(self.handle)
    }
}

/// The nodes of a handle that others are after: of a graph in the graph, those that nothing of it is after.
pub(crate) fn ends(nodes: &[Node], handle: u64) -> Vec<usize> {
    let mut own: Vec<usize> = (0..nodes.len()).filter(|&i| nodes[i].known_as() == handle).collect();
    let followed: Vec<usize> = own.iter().flat_map(|&i| &nodes[i].after).copied().collect();
    own.retain(|i| !followed.contains(i));
    own
}

/// Adds a graph to the nodes of another, behind some of them, as the node of that handle.
pub(crate) fn append(nodes: &mut Vec<Node>, child: &[Node], after: &[usize], handle: u64) {
    let offset = nodes.len();
    for (number, node) in child.iter().enumerate() {
        let inside: Vec<usize> = node.after.iter().map(|b| b + offset).collect();
        nodes.push(Node {
            // The nodes within are not used.
            handle: handle + 1 + number as u64,
            what: node.what.clone(),
            work: node.work.clone(),
            after: if inside.is_empty() { after.to_vec() } else { inside },
            part_of: Some(handle),
        });
    }
}

/// Has the nodes of a handle do what those of another graph do, which has as many, of the same kinds and in the same order.
pub(crate) fn replace(nodes: &mut [Node], handle: u64, child: &[Node]) -> Option<()> {
    let own: Vec<usize> = (0..nodes.len()).filter(|&i| nodes[i].part_of == Some(handle)).collect();
    let first = *own.first()?;
    let alike = |(&at, new): (&usize, &Node)| {
        let inside: Vec<usize> = new.after.iter().map(|b| b + first).collect();
        let same_order = inside.is_empty() || nodes[at].after == inside;
        same_order && std::mem::discriminant(&nodes[at].work) == std::mem::discriminant(&new.work)
    };
    if own.len() != child.len() || !own.iter().zip(child).all(alike) {
        return None;
    }
    own.into_iter()
        .zip(child)
        .for_each(|(at, new)| nodes[at].work = new.work.clone());
    Some(())
}

/// A capture that goes on.
#[derive(Debug)]
pub(crate) struct Capture {
    /// The stream that it began in.
    pub(crate) origin: u64,
    pub(crate) nodes: Vec<Node>,
    /// The handles that were asked for last.
    pub(crate) asked: Vec<u64>,
    /// Whether something was done that cannot be captured.
    pub(crate) is_invalid: bool,
}

/// A graph.
#[derive(Clone, Debug, Default)]
pub(crate) struct Graph {
    pub(crate) nodes: Vec<Node>,
}

/// A graph that can be launched.
#[derive(Debug)]
pub(crate) struct Exec {
    pub(crate) gpu: usize,
    pub(crate) nodes: Vec<Node>,
    /// The line of work of each node: nodes one after another share one.
    pub(crate) lines: Vec<usize>,
    /// All lines that it opened.
    pub(crate) opened: Vec<usize>,
    /// The last launch.
    pub(crate) last: Option<(Arc<Ticket>, Clock)>,
    pub(crate) launches: u64,
}

/// Parts the nodes of a graph into chains of which each node is after the one before it: the chain of each, and how many there are.
pub(crate) fn chains(nodes: &[Node]) -> (Vec<usize>, usize) {
    let mut chain_of = Vec::with_capacity(nodes.len());
    let mut last_of_chain: Vec<usize> = Vec::new();
    for (index, node) in nodes.iter().enumerate() {
        let mut before = node.after.iter().map(|&b| chain_of[b]);
        let goes_on = before.find(|&chain: &usize| node.after.contains(&last_of_chain[chain]));
        let chain = goes_on.unwrap_or(last_of_chain.len());
        if chain == last_of_chain.len() {
            last_of_chain.push(index);
        } else {
            last_of_chain[chain] = index;
        }
        chain_of.push(chain);
    }
    (chain_of, last_of_chain.len())
}

/// An order of nodes that their edges allow, drawn by a seed.
pub(crate) fn order(nodes: &[Node], seed: u64) -> Vec<usize> {
    let mut waits: Vec<usize> = nodes.iter().map(|n| n.after.len()).collect();
    let mut next: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    for (index, node) in nodes.iter().enumerate() {
        for &before in &node.after {
            next[before].push(index);
        }
    }
    let mut ready: Vec<usize> = (0..nodes.len()).filter(|&i| waits[i] == 0).collect();
    let mut order = Vec::with_capacity(nodes.len());
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while !ready.is_empty() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let node = ready.swap_remove((state >> 33) as usize % ready.len());
        order.push(node);
        for &after in &next[node] {
            waits[after] -= 1;
            if waits[after] == 0 {
                ready.push(after);
            }
        }
    }
    order
}

/// A graph as Graphviz reads it.
pub(crate) fn dot(nodes: &[Node]) -> String {
    let mut text = "digraph {\n".to_string();
    for (index, node) in nodes.iter().enumerate() {
        text.push_str(&format!("    n{index} [label=\"{}\"];\n", node.what.replace('"', "'")));
    }
    for (index, node) in nodes.iter().enumerate() {
        for before in &node.after {
            text.push_str(&format!("    n{before} -> n{index};\n"));
        }
    }
    text.push_str("}\n");
    text
}
