//! Special registers by name.

use super::{LaneMask, Special};

pub(super) fn parse(name: &str) -> Option<Special> {
    let (base, axis) = match name.split_once('.') {
        Some((base, axis)) => (base, ["x", "y", "z"].iter().position(|&a| a == axis)?),
        None => (name, 3),
    };
    Some(match (base, axis) {
        ("%tid", 0..3) => Special::Thread(axis),
        ("%ntid", 0..3) => Special::BlockSize(axis),
        ("%ctaid", 0..3) => Special::Block(axis),
        ("%nctaid", 0..3) => Special::GridSize(axis),
        ("%laneid", 3) => Special::LaneId,
        ("%warpid", 3) => Special::WarpId,
        ("%nwarpid", 3) => Special::WarpCount,
        ("%smid" | "%gridid", 3) => Special::Zero,
        ("%nsmid", 3) => Special::SmCount,
        ("%lanemask_eq", 3) => Special::LaneMask(LaneMask::Equal),
        ("%lanemask_le", 3) => Special::LaneMask(LaneMask::LessEqual),
        ("%lanemask_lt", 3) => Special::LaneMask(LaneMask::Less),
        ("%lanemask_ge", 3) => Special::LaneMask(LaneMask::GreaterEqual),
        ("%lanemask_gt", 3) => Special::LaneMask(LaneMask::Greater),
        ("%dynamic_smem_size", 3) => Special::DynamicSharedBytes,
        ("%total_smem_size", 3) => Special::TotalSharedBytes,
        ("WARP_SZ", 3) => Special::Constant(32),
        _ => return None,
    })
}
