//! How many blocks a multiprocessor should have the registers for at the same time, where four warps multiply together.
//!
//! Some blocks multiply while others do what is between: the more there are, the fewer registers each thread has.

use tlc_ir::index::VarId;
use tlc_ir::kernel::{Bind, Kernel, Memory, Scope, Stmt};
use tlc_ir::target::{Gpu as Target, WARP_THREADS};

use super::ScheduleReason;
use super::gpu::Gpu;
use crate::directive::{Directive, DirectiveRefusal};

/// Registers of a thread beside the sums of products that four warps do together; and beside so few sums that one more block is worth that some of them
/// wait in memory (attention of 64 features on an H200: four blocks in 360 us, three in 383).
const BESIDE_SUMS: i64 = 56;
const BESIDE_FEW_SUMS: i64 = 32;
const FEW_SUMS: i64 = 96;
/// The most blocks that any multiprocessor holds.
const MOST: i64 = 32;

/// Has a multiprocessor have registers for so many blocks of a kernel; returns no loop.
pub(super) fn reside(kernel: &mut Kernel, blocks: i64) -> Result<Vec<VarId>, DirectiveRefusal> {
    let in_blocks = matches!(&kernel.body[..], [Stmt::Loop { bind: Bind::Block, .. }]);
    match u32::try_from(blocks) {
        Ok(n) if in_blocks && (1..=MOST).contains(&blocks) => {
            kernel.residents = n;
            Ok(Vec::new())
        }
        _ => Err(DirectiveRefusal::Residents(blocks)),
    }
}

impl Gpu {
    /// Asks for as many blocks as there are registers and shared memory for, where four warps multiply together.
    pub(super) fn reside(&mut self, gpu: &Target) -> Result<(), DirectiveRefusal> {
        if !self.kernel.scratch.iter().any(|s| s.swizzled) {
            return Ok(());
        }
        let Some(grid) = self.kernel.grid() else { return Ok(()) };
        let registers = registers(&self.kernel);
        let by_registers = gpu.multiprocessor.registers / (grid.threads * registers);
        let by_memory = gpu.multiprocessor.occupancy(grid.threads, grid.shared_bytes, None);
        let blocks = by_registers.min(by_memory.blocks).clamp(1, MOST);
        self.why = ScheduleReason::Residents { blocks };
        self.apply(Directive::Reside { blocks }).map(drop)
    }
}

/// Registers of a thread of a kernel whose warps multiply in groups of four.
fn registers(kernel: &Kernel) -> i64 {
    let mut sums: Vec<Memory> = Vec::new();
    for s in kernel.statements() {
        if let Stmt::Contract(c) = s
            && !sums.contains(&c.dst)
        {
            sums.push(c.dst);
        }
    }
    let fragment = |m: &Memory| match m {
        Memory::Scratch(i) => kernel
            .scratch
            .get(*i as usize)
            .filter(|s| s.scope == Scope::WarpFragment),
        Memory::Param(_) => None,
    };
    let held = sums.iter().filter_map(fragment).filter_map(|s| s.len.as_const());
    let sums = held.sum::<i64>() / WARP_THREADS;
    sums + if sums <= FEW_SUMS { BESIDE_FEW_SUMS } else { BESIDE_SUMS }
}
