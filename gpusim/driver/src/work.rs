//! Work of streams: what an operation is, and what others wait for.

use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use tlc_gpusim::{Launch, Module, SlotEvent};

use crate::history::Stamp;
use crate::machine::{Gpu, lock};
use crate::product::Product;

/// Where a copy begins or ends.
#[derive(Clone, Debug)]
pub(crate) enum End {
    Device(u64),
    /// Memory of the host, as an address; whether it is pinned.
    Host(u64, bool),
    /// Bytes that were taken from the host when the copy was asked for.
    Taken(Arc<[u8]>),
}

/// What happens to a slot.
#[derive(Clone, Debug)]
pub(crate) struct SlotChange {
    pub(crate) event: SlotEvent,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) name: Arc<str>,
}

/// Memory that is given back in the order of a stream: how much of it the pool keeps is the pool's.
pub(crate) trait Returned: std::fmt::Debug + Send + Sync {
    fn returned(&self, gpu: &Gpu, bytes: u64);
}

/// What an operation does.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Launch {
        /// The handle of the function that was launched.
        function: u64,
        module: Arc<Module>,
        kernel: Arc<str>,
        launch: Launch,
    },
    Copy {
        from: End,
        to: End,
        bytes: u64,
    },
    Fill {
        address: u64,
        pattern: Vec<u8>,
        count: u64,
    },
    /// A library's product of matrices.
    Product(Arc<Product>),
    Slots(Arc<[SlotChange]>),
    Free {
        address: u64,
        pool: Option<Arc<dyn Returned>>,
    },
    /// Memory was allocated: who uses it must be after that.
    Claim {
        address: u64,
        bytes: u64,
    },
    /// Nothing: an event, or a wait.
    Mark,
    /// Operations in an order that their edges allow.
    Graph(Vec<(Work, Stamp)>),
}

/// An operation that others wait for.
#[derive(Debug, Default)]
pub(crate) struct Ticket {
    is_done: Mutex<bool>,
    changed: Condvar,
    at: OnceLock<Instant>,
}

impl Ticket {
    pub(crate) fn is_done(&self) -> bool {
        *lock(&self.is_done)
    }

    pub(crate) fn wait(&self) {
        let mut done = lock(&self.is_done);
        while !*done {
            done = self.changed.wait(done).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn finish(&self) {
        self.at.get_or_init(Instant::now);
        *lock(&self.is_done) = true;
        self.changed.notify_all();
    }

    /// When it was done.
    pub(crate) fn at(&self) -> Option<Instant> {
        self.at.get().copied()
    }
}
