//! What warps multiply together, and copies that run beside the threads.
//!
//! Invariants:
//! - A contraction gets here only where the emitter has matrix instructions that cut its tile and its sum without a rest.
//! - Operands lie in shared memory as strided matrices of which every element may be read, or threads hold the left one.

use tlc_ir::IndexExpr;
use tlc_ir::kernel::{AsyncCopy as KernelCopy, Contract, ContractOperand, Memory, Scope};
use tlc_ir::target::Support;

use super::build::Builder;
use super::{AsyncCopy, Item, LeftOperand, MatrixOperand, Multiply};
use crate::error::{Result, invalid, unsupported};

/// The largest multiple that is looked for, in elements.
const LARGEST_MULTIPLE: i64 = 64;

impl Builder<'_, '_> {
    /// A contraction into what the threads of a warp hold.
    pub(super) fn multiply(&mut self, c: &Contract) -> Result<()> {
        let dtypes = c.operands().map(|o| self.kernel.memory_dtype(o.memory));
        let accumulator = self.kernel.memory_dtype(c.dst);
        let extent = |v: tlc_ir::VarId| self.kernel.extents[v.0 as usize].as_const();
        let table = self.has.table();
        let native = |[m, n]: &[i64; 2]| {
            table.contract(dtypes, accumulator, c.precision, [*m, *n, c.k_block]) == Support::Native
        };
        let Some([rows, columns]) = c.tile(self.kernel).filter(native) else {
            return unsupported("contractions that are not legalized");
        };
        let Some(steps) = extent(c.k()).filter(|n| n % c.k_block == 0) else {
            return unsupported("contractions of sums that are not whole blocks");
        };
        let left = match self.is_held(c.left.memory) {
            true => LeftOperand::Held(c.left.memory),
            false => LeftOperand::Shared(self.matrix(&c.left, [c.m(), c.k()])?),
        };
        let right = self.matrix(&c.right, [c.n(), c.k()])?;
        self.push(Item::Multiply(Box::new(Multiply {
            dst: c.dst,
            extents: [rows, columns, steps],
            left,
            right,
            precision: c.precision,
        })));
        Ok(())
    }

    /// Whether threads hold a memory, as they do a fragment that has been placed.
    fn is_held(&self, memory: Memory) -> bool {
        match memory {
            Memory::Param(_) => false,
            Memory::Scratch(i) => self.kernel.scratch[i as usize].scope == Scope::Thread,
        }
    }

    fn matrix(&mut self, operand: &ContractOperand, [across, along]: [tlc_ir::VarId; 2]) -> Result<MatrixOperand> {
        let shared = match operand.memory {
            Memory::Param(_) => false,
            Memory::Scratch(i) => self.kernel.scratch[i as usize].scope == Scope::Shared,
        };
        if !shared || !operand.ranges.is_empty() {
            return unsupported("contractions of operands that do not lie whole in shared memory");
        }
        let strided = |e: &IndexExpr, v| {
            let (stride, rest) = e.affine_in(v)?;
            Some((stride.as_const()?, rest))
        };
        let parts = strided(&operand.index, across).and_then(|(a, rest)| Some((a, strided(&rest, along)?)));
        let Some((across, (along, start))) = parts else {
            return unsupported("contractions of operands that are no strided matrices");
        };
        let first = self.element(operand.memory, &start)?;
        let halves = std::iter::successors(Some(LARGEST_MULTIPLE), |n| Some(n / 2)).take_while(|n| *n > 1);
        let multiple = halves.into_iter().find(|n| self.begins_at(&first, *n)).unwrap_or(1);
        Ok(MatrixOperand {
            first,
            across,
            along,
            multiple,
        })
    }

    pub(super) fn copy_async(&mut self, c: &KernelCopy) -> Result<()> {
        let Some(elements) = self.kernel.extents[c.var.0 as usize].as_const() else {
            return invalid("a copy beside the threads without constant length");
        };
        let first = |e: &IndexExpr| e.replace_vars(&mut |v| (v == c.var).then_some(IndexExpr::ZERO));
        let to = self.element(c.to, &first(&c.to_index))?;
        let from = self.element(c.from, &first(&c.from_index))?;
        let bytes = elements.saturating_mul(self.kernel.memory_dtype(c.to).bytes() as i64);
        let whole = matches!(bytes, 4 | 8 | 16);
        if !whole || ![&to, &from].iter().all(|a| self.begins_at(a, elements)) {
            return unsupported("copies beside the threads that are not aligned");
        }
        let mask = match c.mask {
            Some(mask) => {
                let mask = self.value(mask)?;
                Some(self.scalar(&mask, 0))
            }
            None => None,
        };
        self.push(Item::CopyAsync(Box::new(AsyncCopy {
            elements,
            to,
            from,
            mask,
        })));
        Ok(())
    }
}
