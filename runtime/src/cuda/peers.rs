//! Devices that reach each other's memory.
//!
//! A copy from one device to another goes straight where the device that does it reaches the other's memory, and through the host
//! where it does not: the driver sees to that (`cuMemcpyPeerAsync`). So access is asked for where devices can have it, and what refuses it
//! costs time and nothing else.
//!
//! Invariant: access is to what a pool allocates and to what is allocated by itself. The first is the pool's (`cuMemPoolSetAccess`), for each
//! pool anew; the second is the context's (`cuCtxEnablePeerAccess`), once.

use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

use super::context::Context;
use super::library::{Handle, PoolAccess, Refusal};

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const DEVICE: u32 = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const READ_AND_WRITE: u32 = 3;
/// `CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED`: whoever uses the primary context beside tlc asked before.
const ALREADY_ENABLED: u32 = 704;

/// The devices that reach a device's memory, by the driver's numbers.
#[derive(Default)]
pub(super) struct Peers {
    reached_by: Mutex<Vec<c_int>>,
}

impl Peers {
    /// Notes one more; whether it is new.
    fn add(&self, device: c_int) -> bool {
        let mut all = self.reached_by.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = !all.contains(&device);
        if is_new {
            all.push(device);
        }
        is_new
    }

    fn all(&self) -> Vec<c_int> {
        self.reached_by.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Context {
    /// Has this device reach the memory of another one, if it can.
    pub(super) fn reach(&self, other: &Context) {
        let mut can = 0;
        // SAFETY: a valid place for the result, and devices that the driver named.
        let asked = self.quietly("cuDeviceCanAccessPeer", |d| unsafe {
            (d.cuDeviceCanAccessPeer)(&mut can, self.device(), other.device())
        });
        if asked.is_err() || can == 0 || !other.peers().add(self.device()) {
            return;
        }
        // SAFETY: a context that is never released.
        let enabled = self.quietly("cuCtxEnablePeerAccess", |d| unsafe {
            (d.cuCtxEnablePeerAccess)(other.handle(), 0)
        });
        self.note(
            enabled.or_else(|e| if e.code == ALREADY_ENABLED { Ok(()) } else { Err(e) }),
            other,
        );
        self.note(other.share_pool(&[self.device()]), other);
    }

    fn note(&self, done: Result<(), Refusal>, other: &Context) {
        if let Err(e) = done {
            let (here, there) = (self.properties().title(), other.properties().title());
            tracing::debug!("{here} does not reach the memory of {there}: {e}");
        }
    }

    /// Has devices that reach this one's memory reach what a new pool allocates.
    pub(super) fn share_new(&self, pool: Handle) -> Result<(), Refusal> {
        self.share(pool, &self.peers().all())
    }

    /// Has devices reach what a pool allocates.
    pub(super) fn share(&self, pool: Handle, devices: &[c_int]) -> Result<(), Refusal> {
        if devices.is_empty() {
            return Ok(());
        }
        let access = |device: &c_int| PoolAccess {
            location: DEVICE,
            device: *device,
            flags: READ_AND_WRITE,
        };
        let access: Vec<PoolAccess> = devices.iter().map(access).collect();
        // SAFETY: a pool of this context, and as many descriptions as are said.
        self.quietly("cuMemPoolSetAccess", |d| unsafe {
            (d.cuMemPoolSetAccess)(pool, access.as_ptr(), access.len())
        })
    }
}
