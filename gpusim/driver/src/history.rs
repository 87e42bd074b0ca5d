//! Who accessed which bytes last, so that two operations that nothing orders are found in every run, whichever came first.
//!
//! Each range of bytes remembers its last write and the reads since that are not before another of them. An access conflicts with
//! one that its clock does not know, if either writes.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::clock::Clock;

/// Who an operation is, and what is known to be before it.
#[derive(Clone, Debug)]
pub(crate) struct Stamp {
    pub(crate) access: Access,
    pub(crate) clock: Clock,
}

/// An operation, as a range of bytes remembers it.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    /// Its line of work, and which of its operations it is.
    pub(crate) line: usize,
    pub(crate) count: u64,
    /// What it is, in words.
    pub(crate) label: Arc<str>,
}

#[derive(Clone, Debug, Default)]
struct Segment {
    end: u64,
    write: Option<Access>,
    reads: Vec<Access>,
}

/// Two operations without an order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Conflict {
    /// The first byte that both access.
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) other: Arc<str>,
    pub(crate) other_writes: bool,
}

/// The accesses to all memory, of devices and of the host.
#[derive(Debug, Default)]
pub(crate) struct History {
    segments: BTreeMap<u64, Segment>,
}

impl History {
    /// Remembers that an operation accessed ranges, each from its first byte to one past its last; the first conflict, if any.
    pub(crate) fn access(
        &mut self,
        ranges: &[(u64, u64)],
        is_write: bool,
        who: &Access,
        clock: &Clock,
    ) -> Option<Conflict> {
        let mut conflict = None;
        for &(start, end) in ranges.iter().filter(|(start, end)| start < end) {
            let found = self.access_one((start, end), is_write, who, clock);
            conflict = conflict.or(found);
        }
        conflict
    }

    fn access_one(
        &mut self,
        (start, end): (u64, u64),
        is_write: bool,
        who: &Access,
        clock: &Clock,
    ) -> Option<Conflict> {
        self.split(start);
        self.split(end);
        let mut conflict: Option<Conflict> = None;
        let is_before = |a: &Access| a.line == who.line && a.count <= who.count || clock.of(a.line) >= a.count;
        for (&at, segment) in self.segments.range_mut(start..end) {
            let write = segment.write.iter().map(|w| (w, true));
            let reads = segment.reads.iter().filter(|_| is_write).map(|r| (r, false));
            if conflict.is_none()
                && let Some((other, other_writes)) = write.chain(reads).find(|(a, _)| !is_before(a))
            {
                conflict = Some(Conflict {
                    address: at,
                    bytes: segment.end - at,
                    other: other.label.clone(),
                    other_writes,
                });
            }
            if !is_write {
                segment.reads.retain(|r| !is_before(r));
                segment.reads.push(who.clone());
            }
        }
        if is_write {
            let inside: Vec<u64> = self.segments.range(start..end).map(|(&at, _)| at).collect();
            for at in inside {
                self.segments.remove(&at);
            }
            let segment = Segment {
                end,
                write: Some(who.clone()),
                reads: Vec::new(),
            };
            self.segments.insert(start, segment);
        } else {
            self.fill_gaps(start, end, who);
        }
        conflict
    }

    /// Remembers a read where nothing was before.
    fn fill_gaps(&mut self, start: u64, end: u64, who: &Access) {
        let mut at = start;
        let mut gaps = Vec::new();
        for (&next, segment) in self.segments.range(start..end) {
            if at < next {
                gaps.push((at, next));
            }
            at = segment.end;
        }
        if at < end {
            gaps.push((at, end));
        }
        for (start, end) in gaps {
            let segment = Segment {
                end,
                write: None,
                reads: vec![who.clone()],
            };
            self.segments.insert(start, segment);
        }
    }

    /// Makes a segment begin at an address that one holds.
    fn split(&mut self, at: u64) {
        let Some((_, segment)) = self.segments.range_mut(..at).next_back() else {
            return;
        };
        if segment.end > at {
            let rest = segment.clone();
            segment.end = at;
            self.segments.insert(at, rest);
        }
    }

    /// An operation that accessed a range and that a clock does not know.
    pub(crate) fn unknown(&self, start: u64, end: u64, clock: &Clock) -> Option<Arc<str>> {
        let before = self.segments.range(..start).next_back().filter(|(_, s)| s.end > start);
        let segments = before.into_iter().chain(self.segments.range(start..end));
        let mut accesses = segments.flat_map(|(_, s)| s.write.iter().chain(&s.reads));
        let unknown = accesses.find(|a| clock.of(a.line) < a.count);
        unknown.map(|a| a.label.clone())
    }

    /// Forgets a range, which is no memory any more.
    pub(crate) fn forget(&mut self, start: u64, end: u64) {
        self.split(start);
        self.split(end);
        let inside: Vec<u64> = self.segments.range(start..end).map(|(&at, _)| at).collect();
        for at in inside {
            self.segments.remove(&at);
        }
    }

    /// Forgets what everybody will know from now on, because the host does.
    pub(crate) fn settle(&mut self, host: &Clock) {
        let is_known = |a: &Access| host.of(a.line) >= a.count;
        self.segments
            .retain(|_, s| !(s.write.iter().all(is_known) && s.reads.iter().all(is_known)));
    }

    /// How many ranges it remembers.
    pub(crate) fn len(&self) -> usize {
        self.segments.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(line: usize, count: u64) -> (Access, Clock) {
        let mut clock = Clock::default();
        clock.set(line, count);
        let label = format!("{line}.{count}").into();
        (Access { line, count, label }, clock)
    }

    #[test]
    fn accesses_without_an_order_conflict_if_one_writes() {
        let mut history = History::default();
        let (first, clock) = access(0, 1);
        assert_eq!(history.access(&[(0, 100)], true, &first, &clock), None);
        let (second, unordered) = access(1, 1);
        let conflict = history.access(&[(90, 110)], false, &second, &unordered).unwrap();
        assert_eq!((conflict.address, conflict.bytes, &*conflict.other), (90, 10, "0.1"));
        let (third, mut ordered) = access(2, 1);
        ordered.set(0, 1);
        assert_eq!(history.access(&[(0, 90)], false, &third, &ordered), None);
        let mut half = unordered;
        half.set(0, 1);
        let conflict = history.access(&[(0, 90)], true, &second, &half).unwrap();
        assert!(!conflict.other_writes && &*conflict.other == "2.1");
        ordered.set(2, 1);
        ordered.set(1, 1);
        history.settle(&ordered);
        assert_eq!(history.len(), 0);
    }
}
