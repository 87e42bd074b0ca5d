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
