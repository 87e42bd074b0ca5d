//! Pools of memory that is allocated and given back in the order of streams: what they account.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use crate::machine::{Gpu, lock};
use crate::work::Returned;

/// What a pool holds, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Account {
    pub(crate) used: u64,
    pub(crate) used_high: u64,
    pub(crate) reserved: u64,
    pub(crate) reserved_high: u64,
    /// How much it keeps although nothing uses it.
    pub(crate) threshold: u64,
}

/// A pool.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) gpu: usize,
    account: Mutex<Account>,
    /// Other devices that reach what is allocated from it.
    reached_by: Mutex<BTreeSet<usize>>,
}

impl Pool {
    pub(crate) fn new(gpu: usize) -> Pool {
        Pool {
            gpu,
            account: Mutex::default(),
            reached_by: Mutex::default(),
        }
    }

    /// Whether a device reaches what is allocated from it.
    pub(crate) fn is_reached_by(&self, gpu: usize) -> bool {
        gpu == self.gpu || lock(&self.reached_by).contains(&gpu)
    }

    /// Says whether another device does.
    pub(crate) fn set_reached_by(&self, gpu: usize, reaches: bool) {
        let mut reached_by = lock(&self.reached_by);
        match reaches {
            true => reached_by.insert(gpu),
            false => reached_by.remove(&gpu),
        };
    }

    pub(crate) fn account(&self) -> Account {
        *lock(&self.account)
    }

    /// Changes what may be set: the threshold, and the high marks to what is so now.
    pub(crate) fn set(&self, change: impl FnOnce(&mut Account)) {
        change(&mut lock(&self.account));
    }

    /// Notes an allocation, which takes from what the pool keeps first.
    pub(crate) fn taken(&self, gpu: &Gpu, bytes: u64) {
        let mut a = lock(&self.account);
        let kept = bytes.min(a.reserved - a.used);
        gpu.cached.fetch_sub(kept, Ordering::SeqCst);
        a.used += bytes;
        a.reserved = a.reserved.max(a.used);
        a.used_high = a.used_high.max(a.used);
        a.reserved_high = a.reserved_high.max(a.reserved);
    }

    /// Keeps no more than so many bytes that nothing uses.
    pub(crate) fn trim(&self, gpu: &Gpu, keep: u64) {
        let mut a = lock(&self.account);
        let cached = a.reserved - a.used;
        let dropped = cached.min(a.reserved.saturating_sub(keep));
        gpu.cached.fetch_sub(dropped, Ordering::SeqCst);
        a.reserved -= dropped;
    }
}

impl Returned for Pool {
    fn returned(&self, gpu: &Gpu, bytes: u64) {
        let threshold = {
            let mut a = lock(&self.account);
            a.used = a.used.saturating_sub(bytes);
            gpu.cached.fetch_add(bytes, Ordering::SeqCst);
            a.threshold
        };
        self.trim(gpu, threshold);
    }
}
