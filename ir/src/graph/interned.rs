//! Which nodes of a graph have a hash, so that equal ones are found.
//!
//! A number a node, in a table of twice as many at least, beside half of each hash: graphs of many layers have more nodes than caches have lines, and what
//! is asked of them at random is this table.

use super::NodeId;

/// Nodes by the hash of what they compute, in the order of the graph.
#[derive(Clone, Debug, Default)]
pub(super) struct Interned {
    /// A power of two of places, or none: a node's number, counted from 1, or 0. A node lies at the first free place from where its hash says.
    places: Vec<u32>,
    /// Half of the hash of each node.
    hashes: Vec<u32>,
}

impl Interned {
    /// How many nodes it has: the first ones of the graph.
    pub(super) fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Makes room for so many nodes in all.
    pub(super) fn reserve(&mut self, nodes: usize) {
        let least = (nodes * 2).next_power_of_two().max(8);
        if least <= self.places.len() {
            return;
        }
        self.hashes.reserve(nodes - self.hashes.len());
        self.places = vec![0; least];
        for at in 0..self.hashes.len() {
            self.place(at);
        }
    }

    /// The first node of that hash that is the one.
    pub(super) fn find(&self, hash: u64, mut is_it: impl FnMut(NodeId) -> bool) -> Option<NodeId> {
        let half = half(hash);
        let mask = self.places.len().checked_sub(1)?;
        let mut at = half as usize & mask;
        while let Some(node) = self.places[at].checked_sub(1) {
            if self.hashes[node as usize] == half && is_it(NodeId(node)) {
                return Some(NodeId(node));
            }
            at = (at + 1) & mask;
        }
        None
    }

    /// Takes on the next node of the graph.
    pub(super) fn push(&mut self, hash: u64) {
        self.reserve(self.len() + 1);
        self.hashes.push(half(hash));
        self.place(self.len() - 1);
    }

    /// Writes the number of a node to the first free place.
    fn place(&mut self, node: usize) {
        let mask = self.places.len() - 1;
        let mut at = self.hashes[node] as usize & mask;
        while self.places[at] != 0 {
            at = (at + 1) & mask;
        }
        self.places[at] = node as u32 + 1;
    }
}

fn half(hash: u64) -> u32 {
    (hash ^ hash >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hashes that meet at one place, that lie behind the end, and that differ where a half does not say.
    #[test]
    fn the_first_of_equal_ones_is_found_however_many_meet() {
        let mut nodes = Interned::default();
        let hashes: Vec<u64> = (0..100u64)
            .map(|k| match k % 4 {
                0 => 7,
                1 => u64::from(u32::MAX),
                2 => k,
                _ => 7 << 32,
            })
            .collect();
        assert_eq!(nodes.find(7, |_| true), None);
        for &hash in &hashes {
            nodes.push(hash);
        }
        assert_eq!(nodes.len(), 100);
        for (k, &hash) in hashes.iter().enumerate() {
            assert_eq!(nodes.find(hash, |n| n.0 as usize == k), Some(NodeId(k as u32)));
            let first = hashes.iter().position(|&h| half(h) == half(hash));
            assert_eq!(nodes.find(hash, |_| true).map(|n| n.0 as usize), first);
        }
        assert_eq!(nodes.find(1 << 20, |_| true), None);
        let before = nodes.places.len();
        nodes.reserve(100);
        assert_eq!(nodes.places.len(), before);
    }
}
