//! Who read a word that threads of several warps read, in blocks whose barriers in shared memory let some threads write again when
//! others have arrived: that all readers have is then more than an epoch tells.

use super::Stamp;

/// Lanes of a warp that read at one time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Reader {
    lanes: u32,
    /// Of the first lane of the warp.
    stamp: Stamp,
}

/// Lists of readers, by numbers from 1; 0 is none.
#[derive(Debug, Default)]
pub(super) struct Readers {
    lists: Vec<Vec<Reader>>,
    free: Vec<u32>,
}

impl Readers {
    pub(super) fn clear(&mut self) {
        self.lists.clear();
        self.free.clear();
    }

    /// Adds lanes of the warp of a thread to a list, which begins if there is none.
    pub(super) fn add(&mut self, list: &mut u32, stamp: Stamp, lanes: u32) {
        if *list == 0 {
            *list = self.free.pop().unwrap_or_else(|| {
                self.lists.push(Vec::new());
                self.lists.len() as u32
            });
        }
        let Some(readers) = self.lists.get_mut(*list as usize - 1) else {
            return;
        };
        let stamp = Stamp {
            thread: stamp.thread / 32 * 32,
            ..stamp
        };
        // What a lane read before its last read does not matter.
        for reader in readers.iter_mut().filter(|r| r.stamp.thread == stamp.thread) {
            reader.lanes &= !lanes;
        }
        readers.retain(|r| r.lanes != 0);
        let same = |r: &&mut Reader| {
            (r.stamp.thread, r.stamp.epoch, r.stamp.clock) == (stamp.thread, stamp.epoch, stamp.clock)
        };
        match readers.iter_mut().find(same) {
            Some(reader) => reader.lanes |= lanes,
            None => readers.push(Reader { lanes, stamp }),
        }
    }

    /// Ends a list.
    pub(super) fn remove(&mut self, list: u32) {
        if let Some(readers) = (list as usize).checked_sub(1).and_then(|i| self.lists.get_mut(i)) {
            readers.clear();
            self.free.push(list);
        }
    }

    /// The reads of a list.
    pub(super) fn of(&self, list: u32) -> impl Iterator<Item = Stamp> {
        let index = (list as usize).checked_sub(1);
        let readers = index.and_then(|i| self.lists.get(i)).into_iter().flatten();
        readers.flat_map(|r| {
            let lanes = (0..32).filter(|l| r.lanes >> l & 1 == 1);
            lanes.map(|lane| Stamp {
                thread: r.stamp.thread + lane,
                ..r.stamp
            })
        })
    }
}
