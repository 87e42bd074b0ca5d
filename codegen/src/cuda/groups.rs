//! Products of matrices by the instructions that four warps execute together (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions").
//!
//! Invariants:
//! - Operands lie in swizzled memory, or the threads hold the left one. The instruction is told by a descriptor where a matrix lies: its address, and
//!   how far parts of it are apart (the same, "Matrix Descriptor Format").
//! - What threads hold, of the result and of a left operand, is placed as for the instructions of one warp: each of the four has the next 16
//!   rows of 64.
//! - A product goes on beside what follows it up to the next statement that touches its result or an operand, to a barrier, or to the end of
//!   what is executed once. What other threads do to the shared memory that it reads is behind a barrier.
//! - They read shared memory past the order that barriers give to other accesses: whoever writes such memory closes its writes before
//!   the barrier behind which they are read.

use tlc_ir::kernel::{Kernel, Memory, SWIZZLE_PERIOD_BYTES, SWIZZLED_ROW_BYTES};
use tlc_ir::target::GPU_ACCESS_BYTES;
use tlc_ir::{DType, Precision};

use super::CudaError;
use super::fragments::{HELD, tiles_of};
use super::table::{GROUP_COLUMNS, MATRIX_TILE, matrix_steps};
use super::under_way::{UnderWay, reads_closed_memory};
use super::write::{Writer, memory_name};
use crate::flat::{Item, LeftOperand, MatrixOperand, Multiply};

/// Whether four warps multiply together anywhere in a kernel: somebody reads swizzled memory as instructions do.
pub(super) fn multiplies_in_groups(kernel: &Kernel) -> bool {
    kernel.scratch.iter().any(|s| s.swizzled)
}

/// Where a matrix lies, for its descriptors.
struct Place {
    /// The line of text that says where it begins.
    address: String,
    /// What is added for step `k` of the sum, in bytes.
    step: String,
    /// Bytes between stretches, and between periods of rows, in units of 16.
    apart: [i64; 2],
    /// Whether elements of the same step of the sum lie together.
    across: bool,
}

impl Writer<'_, '_> {
    /// What the threads of four warps multiply together.
    pub(super) fn multiply_in_groups(&mut self, p: &Multiply) -> Result<(), CudaError> {
        let [rows, columns, steps] = p.extents;
        let dtype = self.flat.kernel.memory_dtype(p.right.first.memory);
        let unsupported = |what: &str| CudaError::Unsupported(what.into());
        let kind = match (dtype, p.precision) {
            (DType::F16, Precision::Exact) => "f16",
            (DType::BF16, Precision::Exact) => "bf16",
            _ => {
                return Err(CudaError::Unsupported(format!(
                    "a matrix instruction of four warps for {dtype}"
                )));
            }
        };
        let step = matrix_steps(dtype);
        let whole = tiles_of([rows, columns]).is_some() && steps % step == 0;
        if rows != MATRIX_TILE[0] || columns > GROUP_COLUMNS || !whole {
            return Err(unsupported("a matrix of four warps of that size"));
        }
        let right = self.operand_place(&p.right, "right")?;
        let accumulators = memory_name(self.flat.kernel, p.dst);
        let held = columns / MATRIX_TILE[1] * HELD;
        let begin = self.helpers.begin_group(held);
        let end = self.helpers.end_group(held);
        let describe = self.helpers.describe_matrix();
        let described = |o: &Place, name: &str| {
            let [stretches, periods] = o.apart;
            format!("{describe}({name} + {}, {stretches}, {periods})", o.step)
        };
        self.open("{");
        self.line(&right.address);
        let (left, turned) = match &p.left {
            LeftOperand::Shared(left) => {
                let left = self.operand_place(left, "left")?;
                self.line(&left.address);
                (described(&left, "left"), Some(left.across))
            }
            LeftOperand::Held(memory) => {
                let held = memory_name(self.flat.kernel, *memory);
                let take = self.helpers.take_matrix(dtype);
                let tiles = step / MATRIX_TILE[1];
                self.line(&format!("unsigned a[{}][4];", steps / step));
                self.line("#pragma unroll");
                self.line(&format!("for (int k = 0; k < {}; ++k)", steps / step));
                let pin = self.helpers.pin_matrix();
                self.depth_in(|w| w.line(&format!("{take}(a[k], {held} + k * {}), {pin}(a[k]);", tiles * HELD)));
                (format!("a[k / {step}]"), None)
            }
        };
        let multiply = self.helpers.multiply_group(kind, columns, turned, right.across);
        self.line(&format!("{begin}({accumulators});"));
        self.line("#pragma unroll");
        self.line(&format!("for (int k = 0; k < {steps}; k += {step})"));
        let right = described(&right, "right");
        self.depth_in(|w| w.line(&format!("{multiply}({accumulators}, {left}, {right});")));
        self.line("asm volatile(\"wgmma.commit_group.sync.aligned;\" ::: \"memory\");");
        self.close();
        let left = match &p.left {
            LeftOperand::Held(memory) => *memory,
            LeftOperand::Shared(left) => left.first.memory,
        };
        let earlier = self.under_way.take();
        self.under_way = Some(UnderWay {
            latest: [p.dst, left, p.right.first.memory],
            earlier: earlier.map_or_else(Vec::new, |e| [&e.earlier[..], &e.latest].concat()),
            end: format!("{end}({accumulators});"),
        });
        Ok(())
    }

    fn operand_place(&self, o: &MatrixOperand, name: &str) -> Result<Place, CudaError> {
        let Some(stretch) = o.swizzled else {
            return Err(CudaError::Unsupported(
                "an operand of four warps that is not swizzled".into(),
            ));
        };
        let bytes = self.flat.kernel.memory_dtype(o.first.memory).bytes() as i64;
        let row = SWIZZLED_ROW_BYTES / bytes;
        let across = o.across == 1;
        let step = match across {
            true => format!("k * {}", o.along * bytes),
            false => format!("(k / {row} * {} + k % {row} * {bytes})", stretch * bytes),
        };
        // Where there is one stretch nobody asks how far the next one is.
        let stretches = (stretch * bytes).max(GPU_ACCESS_BYTES);
        let memory = memory_name(self.flat.kernel, o.first.memory);
        let first = self.unswizzled(&o.first);
        Ok(Place {
            address: format!("const unsigned {name} = (unsigned)__cvta_generic_to_shared({memory} + {first});"),
            step,
            apart: [stretches / GPU_ACCESS_BYTES, SWIZZLE_PERIOD_BYTES / GPU_ACCESS_BYTES],
            across,
        })
    }

    /// What may be open where two ways meet.
    pub(super) fn meet_open(&mut self, (writes, copies): (bool, Option<u32>)) {
        self.open_writes |= writes;
        self.copies_open = match (self.copies_open, copies) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }

    /// Closes a thread's writes to shared memory for instructions that read it past the order of barriers, in front of one.
    pub(super) fn close_writes(&mut self) {
        // Copies that nobody has waited for stay open.
        if std::mem::replace(&mut self.open_writes, self.copies_open.is_some()) {
            self.line("asm volatile(\"fence.proxy.async.shared::cta;\" ::: \"memory\");");
        }
    }

    /// The number of items from a barrier on that are the barrier and a product which may be begun in front of it, and whether another barrier follows,
    /// which then is the same one.
    pub(super) fn begins_early(&self, items: &[Item]) -> Option<(usize, bool)> {
        let (Item::Barrier, behind) = items.split_first()? else {
            return None;
        };
        let is_index = |i: &&Item| matches!(i, Item::Let(v) if self.flat.op(*v).is_index());
        let indices = behind.iter().take_while(is_index).count();
        let Item::Loop(l) = behind.get(indices)? else {
            return None;
        };
        // Whole tiles are there once they were waited for; of what threads write themselves a barrier must lie behind.
        let closed =
            |m: Memory| self.tile_memories.contains(&m) || !self.open_writes && self.flat.kernel.is_swizzled(m);
        let barrier_behind = matches!(behind.get(indices + 1), Some(Item::Barrier));
        let early = self.tiles && reads_closed_memory(l, self.flat, &closed);
        early.then_some((indices + 2, barrier_behind))
    }

    /// Waits for the products that are under way, if an item must find them done.
    pub(super) fn end_group_for(&mut self, item: &Item) {
        let needs = self.under_way.as_ref().is_some_and(|p| p.is_needed_by(item, self.flat));
        if needs {
            self.end_group();
        }
    }

    /// Waits for the products that are under way.
    pub(super) fn end_group(&mut self) {
        if let Some(p) = self.under_way.take() {
            self.line(&p.end);
        }
    }

    /// Waits for the products that are under way, but for the latest.
    pub(super) fn end_earlier_groups(&mut self) {
        if let Some(p) = &mut self.under_way {
            // In a loop the one of the iteration before as well.
            p.earlier.clear();
            self.line("asm volatile(\"wgmma.wait_group.sync.aligned 1;\" ::: \"memory\");");
        }
    }
}
