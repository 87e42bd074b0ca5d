//! Which nodes of a graph have a hash, so that equal ones are found.
//!
//! A number a node, in a table of twice as many at least, beside half of each hash: graphs of many layers have more nodes than caches have lines, and what
//! is asked of them at random is this table. So that it is not asked at random, a node's place is among a few beside those of the last of its operands
//! where one is free there: what uses a value mostly follows it, and a graph that is gone through in order goes through the table in order.

use super::NodeId;

/// How many places beside a node's are for what uses it last.
const NEAR: usize = 16;

/// Nodes by the hash of what they compute, in the order of the graph.
#[derive(Clone, Debug, Default)]
pub(super) struct Interned {
    /// A power of two of places, or none: a node's number, counted from 1, or 0. A node lies at the first free place of those where it may.
    places: Vec<u32>,
    /// Half of the hash of each node, and the last of its operands, counted from 1, or 0.
    hashes: Vec<(u32, u32)>,
}

impl Interned {
    /// How many nodes it has: the first ones of the graph.
    pub(super) fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Makes room for so many nodes in all.
    pub(super) fn reserve(&mut self, nodes: usize) {
        let least = (nodes * 2).next_power_of_two().max(NEAR);
        if least <= self.places.len() {
            return;
        }
        self.hashes.reserve(nodes - self.hashes.len());
        self.places = vec![0; least];
        for at in 0..self.hashes.len() {
            self.place(at);
        }
    }

    /// The first node of that hash that is the one; `last` is the last of its operands.
    pub(super) fn find(
        &self,
        hash: u64,
        last: Option<NodeId>,
        mut is_it: impl FnMut(NodeId) -> bool,
    ) -> Option<NodeId> {
        if self.places.is_empty() {
            return None;
        }
        let key = key(hash, last);
        for at in self.probes(key) {
            let node = self.places[at].checked_sub(1)?;
            if self.hashes[node as usize] == key && is_it(NodeId(node)) {
                return Some(NodeId(node));
            }
        }
        None
    }

    /// Takes on the next node of the graph.
    pub(super) fn push(&mut self, hash: u64, last: Option<NodeId>) {
        self.reserve(self.len() + 1);
        self.hashes.push(key(hash, last));
        self.place(self.len() - 1);
    }

    /// Writes the number of a node to the first free place.
    fn place(&mut self, node: usize) {
        let free = self.probes(self.hashes[node]).find(|&at| self.places[at] == 0);
        // Half of the places are free, and all are tried.
        if let Some(free) = free {
            self.places[free] = node as u32 + 1;
        }
    }

    /// The places where a node may lie, in the order in which they are tried: those near the last of its operands, then all, from where its hash
    /// says. There is at least one place.
    fn probes(&self, (half, last): (u32, u32)) -> impl Iterator<Item = usize> + use<> {
        let mask = self.places.len() - 1;
        let near = match last {
            0 => 0,
            _ => NEAR,
        };
        let beside = (last as usize).wrapping_mul(2).wrapping_add(half as usize % (NEAR / 2));
        let near = (0..near).map(move |k| beside.wrapping_add(k) & mask);
        near.chain((0..=mask).map(move |k| (half as usize).wrapping_add(k) & mask))
    }
}

/// What equal nodes have in common of hash and operands.
fn key(hash: u64, last: Option<NodeId>) -> (u32, u32) {
    ((hash ^ hash >> 32) as u32, last.map_or(0, |id| id.0.wrapping_add(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hashes that meet at one place, that lie behind the end, and that differ where a half does not say; nodes without operands, of which many use one,
    /// and whose operand is any.
    #[test]
    fn the_first_of_equal_ones_is_found_however_many_meet() {
        let mut nodes = Interned::default();
        let hashes: Vec<(u64, Option<NodeId>)> = (0..300u64)
            .map(|k| {
                let hash = match k % 4 {
                    0 => 7,
                    1 => u64::from(u32::MAX),
                    2 => k,
                    _ => 7 << 32,
                };
                let last = match k / 4 % 3 {
                    0 => None,
                    1 => Some(NodeId(3)),
                    _ => Some(NodeId(k as u32 - 1)),
                };
                (hash, last)
            })
            .collect();
        assert_eq!(nodes.find(7, None, |_| true), None);
        for &(hash, last) in &hashes {
            nodes.push(hash, last);
        }
        assert_eq!(nodes.len(), 300);
        for (k, &(hash, last)) in hashes.iter().enumerate() {
            assert_eq!(nodes.find(hash, last, |n| n.0 as usize == k), Some(NodeId(k as u32)));
            let first = hashes.iter().position(|&(h, l)| key(h, l) == key(hash, last));
            assert_eq!(nodes.find(hash, last, |_| true).map(|n| n.0 as usize), first);
        }
        assert_eq!(nodes.find(1 << 20, None, |_| true), None);
        assert_eq!(nodes.find(1 << 20, Some(NodeId(3)), |_| true), None);
        let before = nodes.places.len();
        nodes.reserve(300);
        assert_eq!(nodes.places.len(), before);
    }
}
