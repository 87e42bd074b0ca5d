//! The matrix micro-kernel, by the loops that define it.

use std::ops::Range;

use smallvec::smallvec;

use super::{KernelError, Machine};
use crate::dtype::{DType, Scalar};
use crate::index::VarId;
use crate::kernel::{Contract, ContractOperand};
use crate::precision::{Precision, to_tf32};
use crate::scalar::ScalarOp;

/// `state + left * right` in the accumulator's dtype: one rounding for floats, wrapping for integers.
fn multiply_add(left: Scalar, right: Scalar, state: Scalar, words: bool) -> Scalar {
    if state.dtype().is_float() {
        return ScalarOp::Fma.eval(&[left, right, state]);
    }
    let op = if words { ScalarOp::Dot4 } else { ScalarOp::Mul };
    let product = op.eval(&[left, right]);
    ScalarOp::Add.eval(&[state, product])
}

/// An operand as it is multiplied.
fn rounded(element: Scalar, precision: Precision) -> Scalar {
    match (precision, element.dtype()) {
        (Precision::Tf32, DType::F32) => {
            let value = to_tf32(f32::from_bits(element.bits() as u32));
            Scalar::from_bits(DType::F32, u64::from(value.to_bits()))
        }
        _ => element,
    }
}

/// At most so many steps of a sum at a time, whose operands' elements are kept.
const STEPS: i64 = 256;

impl Machine<'_> {
    pub(super) fn contract(&mut self, c: &Contract) -> Result<(), KernelError> {
        let extent = |m: &Self, v: VarId| m.index(&m.kernel.extents[v.0 as usize], 0);
        let [m, n, k] = [extent(self, c.m())?, extent(self, c.n())?, extent(self, c.k())?];
        let mut from = 0;
        while from < k && m > 0 && n > 0 {
            let to = from.saturating_add(c.k_block.min(STEPS)).min(k);
            // An operand has the same element for all rows, or all columns, of the result, and is not written meanwhile.
            let left = self.elements(c, &c.left, (c.m(), m), from..to)?;
            let right = self.elements(c, &c.right, (c.n(), n), from..to)?;
            let steps = (to - from) as usize;
            for (row, left) in left.chunks_exact(steps).enumerate() {
                self.set(c.m(), row as i64);
                for (column, right) in right.chunks_exact(steps).enumerate() {
                    self.set(c.n(), column as i64);
                    let at = self.index(&c.dst_index, 0)?;
                    let sum = self.load(c.dst, at)?;
                    let add = |sum, (&left, &right)| multiply_add(left, right, sum, c.words);
                    self.store(c.dst, at, left.iter().zip(right).fold(sum, add))?;
                }
            }
            from = to;
        }
        Ok(())
    }

    /// What is multiplied of an operand at some steps of the sum, line by line.
    fn elements(
        &mut self,
        c: &Contract,
        operand: &ContractOperand,
        (line, lines): (VarId, i64),
        steps: Range<i64>,
    ) -> Result<Vec<Scalar>, KernelError> {
        let accumulator = self.kernel.memory_dtype(c.dst);
        let mut elements = Vec::new();
        for at in 0..lines {
            self.set(line, at);
            for step in steps.clone() {
                self.set(c.k(), step);
                elements.push(rounded(self.element(operand, accumulator)?, c.precision));
            }
        }
        Ok(elements)
    }

    pub(super) fn set(&mut self, var: VarId, value: i64) {
        self.vars[var.0 as usize] = smallvec![value];
    }

    /// An operand's element in the accumulator's dtype; 0 where a condition does not hold.
    fn element(&mut self, operand: &ContractOperand, accumulator: DType) -> Result<Scalar, KernelError> {
        for range in &operand.ranges {
            let at = self.index(&range.index, 0)?;
            if at < 0 || at >= self.index(&range.limit, 0)? {
                return Ok(accumulator.zero());
            }
        }
        let at = self.index(&operand.index, 0)?;
        Ok(self.load(operand.memory, at)?.convert(accumulator))
    }
}
