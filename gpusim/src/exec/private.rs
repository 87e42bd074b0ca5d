//! Memory of one thread or one block: bytes, and which of them were written.

use crate::memory::{Written, load, store};

#[derive(Clone, Debug, Default)]
pub(super) struct Private {
    pub(super) data: Vec<u8>,
    pub(super) written: Written,
}

impl Private {
    pub(super) fn new(bytes: usize) -> Private {
        Private {
            data: vec![0xa5; bytes],
            written: Written::new(bytes),
        }
    }

    pub(super) fn clear(&mut self) {
        self.data.fill(0xa5);
        self.written.clear();
    }

    /// Grows to hold so many bytes.
    pub(super) fn reserve(&mut self, bytes: usize) {
        if self.data.len() < bytes {
            let old = std::mem::replace(self, Private::new(bytes));
            for (at, &byte) in old.data.iter().enumerate() {
                if old.written.all(at, 1) {
                    self.write(at, 1, u64::from(byte));
                }
            }
        }
    }

    pub(super) fn holds(&self, at: u64, bytes: u32) -> bool {
        at.checked_add(u64::from(bytes))
            .is_some_and(|end| end <= self.data.len() as u64)
    }

    pub(super) fn read(&self, at: usize, bytes: u32) -> u64 {
        load(&self.data, at, bytes)
    }

    pub(super) fn write(&mut self, at: usize, bytes: u32, value: u64) {
        store(&mut self.data, at, bytes, value);
        self.written.set(at, bytes as usize);
    }
}
