//! What warps multiply together, and copies that run beside the threads.
//!
//! Invariants:
//! - A contraction gets here only where the emitter has matrix instructions that cut its tile and its sum without a rest.
//! - Operands lie in shared memory as strided matrices of which every element may be read, or threads hold the left one.

use tlc_ir::kernel::{
    AsyncCopy as KernelCopy, Bind, Contract, ContractOperand, Kernel, Memory, SWIZZLED_ROW_BYTES, Scope, Stmt,
};
use tlc_ir::target::{Support, WARP_GROUP};
use tlc_ir::{IndexExpr, VarId};

use super::build::Builder;
use super::{AsyncCopy, Item, LeftOperand, MatrixOperand, Multiply};
use crate::error::{Result, invalid, unsupported};

/// The largest multiple that is looked for, in elements: the exchanges of swizzled memory repeat after 1024 bytes.
const LARGEST_MULTIPLE: i64 = 512;

impl Builder<'_, '_> {
    /// A contraction into what the threads of a warp hold.
    pub(super) fn multiply(&mut self, c: &Contract) -> Result<()> {
        let dtypes = c.operands().map(|o| self.kernel.memory_dtype(o.memory));
        let accumulator = self.kernel.memory_dtype(c.dst);
        let extent = |v: VarId| self.kernel.extents[v.0 as usize].as_const();
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
            false => LeftOperand::Shared(self.operand(&c.left, [c.m(), c.k()])?),
        };
        let right = self.operand(&c.right, [c.n(), c.k()])?;
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

    /// A matrix in shared memory; if it is swizzled, that of four warps, of which each has the rows from its own on.
    fn operand(&mut self, operand: &ContractOperand, sides: [VarId; 2]) -> Result<MatrixOperand> {
        if !self.kernel.is_swizzled(operand.memory) {
            return self.matrix(&operand.index, operand, sides);
        }
        // The first of the four warps.
        let group = IndexExpr::Const(WARP_GROUP);
        let index = operand.index.replace_vars(&mut |v| {
            let first = IndexExpr::floor_div(&v.into(), &group) * group.clone();
            is_warp(self.kernel, v).then_some(first)
        });
        let row = SWIZZLED_ROW_BYTES / self.kernel.memory_dtype(operand.memory).bytes() as i64;
        let stretched = sides
            .iter()
            .find_map(|side| in_stretches(self.kernel, &index, *side, row));
        if let Some((first, apart)) = stretched {
            let matrix = self.matrix(&first, operand, sides)?;
            if [matrix.across, matrix.along].contains(&row) && matrix.multiple >= LARGEST_MULTIPLE {
                return Ok(MatrixOperand {
                    swizzled: Some(apart),
                    ..matrix
                });
            }
        }
        unsupported("contractions of swizzled operands that do not lie in rows")
    }

    fn matrix(
        &mut self,
        index: &IndexExpr,
        operand: &ContractOperand,
        [across, along]: [VarId; 2],
    ) -> Result<MatrixOperand> {
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
        let parts = strided(index, across).and_then(|(a, rest)| Some((a, strided(&rest, along)?)));
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
            swizzled: None,
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

/// Whether a variable counts warps.
fn is_warp(kernel: &Kernel, var: VarId) -> bool {
    kernel.statements().any(|s| match s {
        Stmt::Loop {
            var: of,
            bind: Bind::Warp,
            ..
        } => *of == var,
        _ => false,
    })
}

/// An index along a side whose elements lie together in stretches of so many: the index in the first stretch, and how far the next one is.
fn in_stretches(kernel: &Kernel, index: &IndexExpr, side: VarId, row: i64) -> Option<(IndexExpr, i64)> {
    let mut bounds = Kernel {
        extents: kernel.extents.clone(),
        symbols: kernel.symbols.clone(),
        ..Kernel::default()
    };
    let length = kernel.extents[side.0 as usize].as_const()?;
    let count = if length <= row { 1 } else { length / row };
    if count > 1 && length % row != 0 {
        return None;
    }
    let stretch = bounds.new_var(IndexExpr::Const(count));
    let element = bounds.new_var(IndexExpr::Const(length.min(row)));
    let at = IndexExpr::from(stretch) * IndexExpr::Const(row) + element.into();
    let index = index
        .replace_vars(&mut |v| (v == side).then(|| at.clone()))
        .simplify(&bounds);
    let step = |v: VarId| index.affine_in(v).and_then(|(step, _)| step.as_const());
    let apart = if count == 1 { 0 } else { step(stretch)? };
    let first = index.replace_vars(&mut |v| match v {
        v if v == stretch => Some(IndexExpr::ZERO),
        v if v == element => Some(side.into()),
        _ => None,
    });
    (step(element)? == 1).then(|| (first.simplify(&bounds), apart))
}
