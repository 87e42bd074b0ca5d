//! Launches that are one: sequences and groups.

use smallvec::SmallVec;
use tlc_ir::target::MAX_GRID_BLOCKS;

use super::{Gpu, values_of};
use crate::binding::steps::BoundLaunch;
use crate::device::{Joining, KernelHandle, Places};
use crate::error::RunError;

impl Gpu {
    /// Gives a queue launches as the one kernel that was loaded of them.
    pub(super) fn joined(
        &self,
        queue: u32,
        (launches, joining): (&[BoundLaunch], Joining),
        joined: Option<KernelHandle>,
        at: &Places<'_, KernelHandle>,
    ) -> Result<(), RunError> {
        let blocks: u64 = launches.iter().map(|l| l.extent).sum();
        if blocks == 0 {
            return Ok(());
        }
        let Some(kernel) = joined else {
            return Err(self.failed("a bug in tlc: launches that are one are not loaded".into()));
        };
        let threads = launches.iter().filter_map(|l| l.block_threads).max().unwrap_or(1);
        match joining {
            Joining::InTurn => {
                let each = launches
                    .iter()
                    .map(|l| std::iter::once(l.extent).chain(values_of(l, at)));
                self.given((queue, kernel), (1, threads), each.flatten().collect())
            }
            Joining::Beside => {
                // A plan that was verified has no more blocks.
                let Some(blocks) = u32::try_from(blocks).ok().filter(|n| u64::from(*n) <= MAX_GRID_BLOCKS) else {
                    return Err(self.failed(format!("a group of launches has {blocks} blocks together")));
                };
                self.given((queue, kernel), (blocks, threads), grouped(launches, at))
            }
        }
    }
}

/// What a kernel of a group of launches is given: how many blocks there are up to each one's last, two to a value, and then what each is
/// given.
fn grouped<K>(launches: &[BoundLaunch], at: &Places<'_, K>) -> SmallVec<[u64; 32]> {
    let mut values: SmallVec<[u64; 32]> = SmallVec::new();
    let mut end = 0;
    for (number, l) in launches.iter().enumerate() {
        end += l.extent;
        match (number % 2, values.last_mut()) {
            (1, Some(pair)) => *pair |= end << 32,
            _ => values.push(end),
        }
    }
    launches.iter().for_each(|l| values.extend(values_of(l, at)));
    values
}
