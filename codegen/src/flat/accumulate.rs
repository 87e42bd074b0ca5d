//! Accumulation, written out as loads, operations and stores.

use tlc_ir::graph::Monoid;
use tlc_ir::kernel::{Memory, ValueId};
use tlc_ir::{DType, IndexExpr, ScalarOp};

use super::build::Builder;
use super::index::LaneUse;
use crate::error::{Result, invalid};

impl Builder<'_, '_> {
    /// Whether an accumulation has to run lane after lane: the lanes are not known to have a state each.
    pub(super) fn accumulates_in_order(&mut self, state: &[(Memory, IndexExpr)]) -> bool {
        self.lane_count() > 1
            && !state
                .iter()
                .all(|(_, index)| matches!(self.lane_use(index), Ok(LaneUse::Affine(_))))
    }

    /// `state = state ⊕ value`.
    pub(super) fn accumulate(
        &mut self,
        monoid: Monoid,
        state: &[(Memory, IndexExpr)],
        values: &[ValueId],
    ) -> Result<()> {
        let expected = if monoid.is_arg() { 2 } else { 1 };
        let product = !monoid.is_arg() && values.len() == 2;
        if state.len() != expected || values.len() != expected && !product {
            return invalid(format!("{} takes {expected} states and values", monoid.name()));
        }
        let (memory, index) = &state[0];
        let dtype = self.kernel.memory_dtype(*memory);
        let new = self.value(values[0])?;
        let old = self.load(*memory, index, None)?;
        if product {
            let factor = self.value(values[1])?;
            let v = self.map(ScalarOp::Fma, dtype, &[new, factor, old])?;
            return self.store(*memory, index, &v, None);
        }
        if !monoid.is_arg() {
            let v = self.map(monoid.combine(), dtype, &[old, new])?;
            return self.store(*memory, index, &v, None);
        }
        let (at_memory, at_index) = &state[1];
        let at_dtype = self.kernel.memory_dtype(*at_memory);
        let new_at = self.value(values[1])?;
        let old_at = self.load(*at_memory, at_index, None)?;
        let pair = if monoid == Monoid::ArgMax {
            [old.clone(), new.clone()]
        } else {
            [new.clone(), old.clone()]
        };
        let beyond = self.map(ScalarOp::Lt, dtype, &pair)?;
        let mut equal = self.map(ScalarOp::Eq, dtype, &[new.clone(), old.clone()])?;
        let mut better = beyond;
        if dtype.is_float() {
            let new_nan = self.map(ScalarOp::Ne, dtype, &[new.clone(), new.clone()])?;
            let old_nan = self.map(ScalarOp::Ne, dtype, &[old.clone(), old.clone()])?;
            let old_number = self.map(ScalarOp::Not, DType::Bool, std::slice::from_ref(&old_nan))?;
            let first_nan = self.map(ScalarOp::And, DType::Bool, &[new_nan.clone(), old_number])?;
            let both = self.map(ScalarOp::And, DType::Bool, &[new_nan, old_nan])?;
            better = self.map(ScalarOp::Or, DType::Bool, &[better, first_nan])?;
            equal = self.map(ScalarOp::Or, DType::Bool, &[equal, both])?;
        }
        let earlier = self.map(ScalarOp::Lt, at_dtype, &[new_at.clone(), old_at.clone()])?;
        let tie = self.map(ScalarOp::And, DType::Bool, &[equal, earlier])?;
        let take = self.map(ScalarOp::Or, DType::Bool, &[better, tie])?;
        let v = self.map(ScalarOp::Select, dtype, &[take.clone(), new, old])?;
        let at = self.map(ScalarOp::Select, at_dtype, &[take, new_at, old_at])?;
        self.store(*memory, index, &v, None)?;
        self.store(*at_memory, at_index, &at, None)
    }
}
