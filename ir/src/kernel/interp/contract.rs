//! The matrix micro-kernel, by the loops that define it.

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

impl Machine<'_> {
    pub(super) fn contract(&mut self, c: &Contract) -> Result<(), KernelError> {
        let extent = |m: &Self, v: VarId| m.index(&m.kernel.extents[v.0 as usize], 0);
        let [m, n, k] = [extent(self, c.m())?, extent(self, c.n())?, extent(self, c.k())?];
        let accumulator = self.kernel.memory_dtype(c.dst);
        let mut from = 0;
        while from < k {
            let to = from.saturating_add(c.k_block).min(k);
            for row in 0..m {
                self.set(c.m(), row);
                for column in 0..n {
                    self.set(c.n(), column);
                    let at = self.index(&c.dst_index, 0)?;
                    let mut sum = self.load(c.dst, at)?;
                    for step in from..to {
                        self.set(c.k(), step);
                        let left = rounded(self.element(&c.left, accumulator)?, c.precision);
                        let right = rounded(self.element(&c.right, accumulator)?, c.precision);
                        sum = multiply_add(left, right, sum, c.words);
                    }
                    self.store(c.dst, at, sum)?;
                }
            }
            from = to;
        }
        Ok(())
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
