//! What a kernel needs to copy whole tiles by the engine that GPUs have for them (PTX ISA, "cp.async.bulk.tensor"), and what must be known of it before its
//! text is written.

use crate::flat::{Flat, Item, LoopKind, MOST_GROUPS, Region};

/// Name of the barriers, in the order of the groups.
pub(super) const BARRIERS: &str = "tile_barriers";
/// Bytes of all barriers.
pub(super) const BARRIER_BYTES: i64 = 8 * MOST_GROUPS as i64;
/// The type of what says where a matrix lies (CUDA Driver API, "CUtensorMap").
pub(super) const MATRIX_TYPE: &str = "struct __align__(64) tiled_matrix { unsigned char bytes[128]; };\n";

/// The parameters that say where the matrices lie.
pub(super) fn parameters(flat: &Flat<'_>) -> impl Iterator<Item = String> {
    (0..flat.matrices.len()).map(|m| format!("const __grid_constant__ tiled_matrix m{m}"))
}

/// How threads write shared memory.
#[derive(Clone, Copy, Default)]
pub(super) struct ThreadWrites {
    /// Whether they copy to it beside them.
    pub(super) copies: bool,
    /// Whether they copy to swizzled memory beside them.
    pub(super) swizzled_copies: bool,
    /// Whether they write swizzled memory in any way.
    pub(super) swizzled: bool,
}

/// How threads write shared memory somewhere in a region.
pub(super) fn threads_write(flat: &Flat<'_>, region: &Region) -> ThreadWrites {
    region.iter().fold(ThreadWrites::default(), |all, item| {
        let found = match item {
            Item::CopyAsync(c) => {
                let swizzled = flat.kernel.is_swizzled(c.to.memory);
                ThreadWrites {
                    copies: true,
                    swizzled_copies: swizzled,
                    swizzled,
                }
            }
            Item::Store { address, .. } => ThreadWrites {
                swizzled: flat.kernel.is_swizzled(address.memory),
                ..ThreadWrites::default()
            },
            Item::Loop(l) => threads_write(flat, &l.body),
            Item::If(i) => threads_write(flat, &i.then),
            _ => ThreadWrites::default(),
        };
        ThreadWrites {
            copies: all.copies || found.copies,
            swizzled_copies: all.swizzled_copies || found.swizzled_copies,
            swizzled: all.swizzled || found.swizzled,
        }
    })
}

/// How many groups are under way behind statements, if it is known wherever one waits; `before` is how many there were.
pub(super) fn known_groups(region: &Region, before: u32) -> Option<u32> {
    region.iter().try_fold(before, |pending, item| match item {
        Item::Commit => Some(pending + 1),
        Item::Wait(most) => Some(pending.min(*most)),
        Item::Loop(l) => match (l.kind, known_groups(&l.body, pending)?) {
            (LoopKind::Block, after) => Some(after),
            (_, after) => (after == pending).then_some(after),
        },
        Item::If(i) => known_groups(&i.then, pending).filter(|after| *after == pending),
        _ => Some(pending),
    })
}
