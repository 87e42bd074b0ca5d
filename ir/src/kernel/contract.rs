//! The matrix micro-kernel: `dst[m, n] += sum over k of left[m, k] * right[k, n]`, as one statement.
//!
//! # Meaning
//! The statement means these loops, in this order:
//!
//! ```text
//! for block in 0..ceil(extent of k / k_block)
//!   for m in 0..extent of m
//!     for n in 0..extent of n
//!       for k in k_block*block .. min(k_block*(block + 1), extent of k)
//!         dst[m, n] = fma(left[m, k], right[k, n], dst[m, n])
//! ```
//!
//! - The dtype of `dst` is the accumulator's: f32, f64, i32 or i64. Operands convert to it exactly before they are multiplied.
//! - A float product is not rounded before it is added: each step rounds once, as [`crate::ScalarOp::Fma`] does. Integers wrap.
//! - So each element of `dst` takes its products one after another in ascending `k`, whatever the block, and an order of the
//!   loops that keeps this gives the same bits. `k_block` says how much of the sum an emitter takes at a time.
//! - Into a fragment an emitter may add up by instructions for matrices: blocks still come one after another, but the products of a block
//!   are added in the order and with the roundings of these instructions, which keep at least the precision of the loops above where
//!   products of 16-bit floats or of tf32 are added in f32. The sign of a sum that is zero is then not known. The interpreter takes the loops.
//! - Where the precision is [`Precision::Tf32`], operands, which are f32, are rounded to tf32 ([`crate::precision::to_tf32`]) before they are
//!   multiplied. A product of two is exact in f32.
//! - An element of an operand for which a condition does not hold is not read and counts as 0. It is multiplied as any
//!   other, so 0 times infinity is NaN: along `k` both operands should have the condition.
//! - Where operands are words, which are i32 as `dst` is, [`crate::ScalarOp::Dot4`] takes the place of the product: the bytes of `left` are
//!   unsigned, those of `right` signed.
//! - Where `k` has no iteration, `dst` is neither read nor written.

use smallvec::SmallVec;

use super::visit::{Effect, MemoryAccess, MemoryAccessMut};
use super::{Kernel, Memory};
use crate::dtype::DType;
use crate::index::{IndexExpr, VarId};
use crate::precision::Precision;

/// A condition on an index expression: `0 <= index < limit`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Range {
    /// What is compared.
    pub index: IndexExpr,
    /// One past the largest value for which the condition holds.
    pub limit: IndexExpr,
}

/// The elements of one operand of a [`Contract`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ContractOperand {
    /// From where; not the memory that is accumulated into.
    pub memory: Memory,
    /// Element offset, over outer variables, `k`, and `m` or `n`.
    pub index: IndexExpr,
    /// Conditions over the same variables; an element for which one does not hold counts as 0.
    pub ranges: SmallVec<[Range; 1]>,
}

/// See the [module](self).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Contract {
    /// `m`, `n` and `k`, which belong to the statement. The extents of `m` and `n` are positive constants.
    pub vars: [VarId; 3],
    /// The scratch that is accumulated into.
    pub dst: Memory,
    /// Element offset of `dst[m, n]`: a strided matrix, of which different `m` and `n` are different elements.
    pub dst_index: IndexExpr,
    /// `left[m, k]`.
    pub left: ContractOperand,
    /// `right[k, n]`.
    pub right: ContractOperand,
    /// How many steps of `k` are one block; positive.
    pub k_block: i64,
    /// How exactly operands are multiplied; other than exactly only those of f32, into f32.
    pub precision: Precision,
    /// Whether operands are words of four bytes.
    pub words: bool,
}

impl Contract {
    /// The variable of the rows of `dst`.
    pub fn m(&self) -> VarId {
        self.vars[0]
    }

    /// The variable of the columns of `dst`.
    pub fn n(&self) -> VarId {
        self.vars[1]
    }

    /// The variable of the sum.
    pub fn k(&self) -> VarId {
        self.vars[2]
    }

    /// Both operands, the left one first.
    pub fn operands(&self) -> [&ContractOperand; 2] {
        [&self.left, &self.right]
    }

    /// The rows and columns of the tile; `None` where they are not constant.
    pub fn tile(&self, kernel: &Kernel) -> Option<[i64; 2]> {
        let extent = |v: VarId| kernel.extents.get(v.0 as usize)?.as_const();
        Some([extent(self.m())?, extent(self.n())?])
    }

    /// What the statement accesses.
    pub(super) fn accesses(&self) -> [MemoryAccess<'_>; 3] {
        fn load(o: &ContractOperand) -> MemoryAccess<'_> {
            MemoryAccess {
                memory: o.memory,
                index: &o.index,
                mask: None,
                ranges: &o.ranges,
                effect: Effect::Load,
            }
        }
        let dst = MemoryAccess {
            memory: self.dst,
            index: &self.dst_index,
            mask: None,
            ranges: &[],
            effect: Effect::Accumulate,
        };
        [load(&self.left), load(&self.right), dst]
    }

    /// What the statement accesses, to move it elsewhere.
    pub(super) fn accesses_mut(&mut self) -> [MemoryAccessMut<'_>; 3] {
        let Contract {
            dst,
            dst_index,
            left,
            right,
            ..
        } = self;
        fn load(o: &mut ContractOperand) -> MemoryAccessMut<'_> {
            MemoryAccessMut {
                memory: &mut o.memory,
                index: &mut o.index,
                effect: Effect::Load,
            }
        }
        let dst = MemoryAccessMut {
            memory: dst,
            index: dst_index,
            effect: Effect::Accumulate,
        };
        [load(left), load(right), dst]
    }

    /// Every index expression, in the order of [`Self::indices_mut`].
    pub(super) fn indices(&self) -> impl Iterator<Item = &IndexExpr> {
        let [left, right] = self.operands().map(|o| {
            let ranges = o.ranges.iter().flat_map(|r| [&r.index, &r.limit]);
            std::iter::once(&o.index).chain(ranges)
        });
        left.chain(right).chain(std::iter::once(&self.dst_index))
    }

    /// Every index expression, to replace it.
    pub(super) fn indices_mut(&mut self) -> impl Iterator<Item = &mut IndexExpr> {
        let [left, right] = [&mut self.left, &mut self.right].map(|o| {
            let ranges = o.ranges.iter_mut().flat_map(|r| [&mut r.index, &mut r.limit]);
            std::iter::once(&mut o.index).chain(ranges)
        });
        left.chain(right).chain(std::iter::once(&mut self.dst_index))
    }
}

/// Whether a [`Contract`] can accumulate in a dtype.
pub fn is_accumulator(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F64 | DType::I32 | DType::I64)
}

/// Whether each value of an operand's dtype is one of the accumulator's.
pub fn converts_exactly(from: DType, accumulator: DType) -> bool {
    match accumulator {
        DType::F32 | DType::F64 => from.is_any_float() && from.bits() <= accumulator.bits(),
        DType::I32 | DType::I64 if from.is_any_float() || from == DType::Bool => false,
        DType::I32 | DType::I64 if from.has_sign() => from.bits() <= accumulator.bits(),
        DType::I32 | DType::I64 => from.bits() < accumulator.bits(),
        _ => false,
    }
}
