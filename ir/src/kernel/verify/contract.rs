//! Rules of contractions.

use super::{Checker, Definition, Rule};
use crate::index::{IndexExpr, VarId};
use crate::kernel::contract::{converts_exactly, is_accumulator};
use crate::kernel::{Contract, ContractOperand, Memory, Scope};
use crate::{DType, Precision};

impl Checker<'_> {
    pub(super) fn contract(&mut self, c: &Contract) {
        if let Some(lanes) = self.lanes {
            self.error(Rule::ContractInLanes(lanes));
        }
        if c.k_block < 1 {
            self.error(Rule::BlockLength(c.k_block));
        }
        let other = |m: Memory| self.known_dtype(m).is_some_and(|d| d != DType::F32);
        if c.precision != Precision::Exact && [c.dst, c.left.memory, c.right.memory].into_iter().any(other) {
            self.error(Rule::ContractPrecision(c.precision));
        }
        if c.precision != c.precision.of_products() {
            self.error(Rule::ProductPrecision(c.precision));
        }
        let other = |m: Memory| self.known_dtype(m).is_some_and(|d| d != DType::I32);
        if c.words && [c.dst, c.left.memory, c.right.memory].into_iter().any(other) {
            self.error(Rule::ContractWords);
        }
        // Extents are of what is outside: no side of a tile depends on another.
        let mut opened: Vec<VarId> = Vec::new();
        for v in c.vars {
            if let Some(extent) = self.kernel.extents.get(v.0 as usize) {
                self.index(extent);
            }
        }
        for v in c.vars {
            match self.vars.get(v.0 as usize) {
                None => self.error(Rule::Missing(format!("i{}", v.0))),
                Some(Definition::None) => {
                    self.vars[v.0 as usize] = Definition::Live;
                    opened.push(v);
                }
                Some(_) => self.error(Rule::VariableReused(v)),
            }
        }
        if opened.len() == c.vars.len() {
            for v in [c.m(), c.n()] {
                let extent = self.kernel.extents[v.0 as usize].as_const();
                if extent.is_none_or(|n| n < 1) {
                    self.error(Rule::TileExtent(v));
                }
            }
            self.operand(&c.left, c.n());
            self.operand(&c.right, c.m());
            self.tile(c);
        }
        for v in opened {
            self.vars[v.0 as usize] = Definition::Gone;
        }
    }

    /// An operand, and the variable that it may not be over.
    fn operand(&mut self, operand: &ContractOperand, other: VarId) {
        let conditions = operand.ranges.iter().flat_map(|r| [&r.index, &r.limit]);
        if conditions.clone().chain([&operand.index]).any(|e| e.uses(other)) {
            self.error(Rule::ContractSide(other));
        }
        conditions.for_each(|e| self.index(e));
        self.access(operand.memory, &operand.index, true, false);
    }

    fn tile(&mut self, c: &Contract) {
        let known = |scope: Scope| scope != Scope::Shared;
        match c.dst {
            Memory::Scratch(s) if self.kernel.scratch.get(s as usize).is_some_and(|s| !known(s.scope)) => {
                return self.error(Rule::TileMemory(c.dst));
            }
            Memory::Param(_) => return self.error(Rule::TileMemory(c.dst)),
            Memory::Scratch(_) => {}
        }
        if c.operands().iter().any(|o| o.memory == c.dst) {
            self.error(Rule::ContractAlias(c.dst));
        }
        // Rows and columns of a tile in registers are copied out.
        let sides = [c.m(), c.n()];
        self.unrolled.extend(sides);
        let accumulator = self.access(c.dst, &c.dst_index, true, true);
        for v in &sides {
            self.unrolled.remove(v);
        }
        let Some(accumulator) = accumulator else { return };
        if c.dst_index.uses(c.k()) || !self.is_matrix(c) {
            self.error(Rule::TileIndex(c.dst));
        }
        if !is_accumulator(accumulator) {
            return self.error(Rule::Accumulator(accumulator));
        }
        for operand in c.operands() {
            let Some(operand) = self.known_dtype(operand.memory) else {
                continue;
            };
            if !converts_exactly(operand, accumulator) {
                self.error(Rule::ContractOperand { operand, accumulator });
            }
        }
    }

    /// Whether the tile is a strided matrix, one of whose strides steps over all that the other reaches.
    fn is_matrix(&self, c: &Contract) -> bool {
        let Some([m, n]) = c.tile(self.kernel) else { return true };
        let stride = |v: VarId, e: &IndexExpr| {
            let (stride, rest) = e.affine_in(v)?;
            Some((i128::from(stride.as_const()?).abs(), rest))
        };
        let Some((row, rest)) = stride(c.m(), &c.dst_index) else {
            return false;
        };
        let Some((column, _)) = stride(c.n(), &rest) else {
            return false;
        };
        let over = |stride: i128, other: i128, count: i64| stride > other * i128::from(count - 1);
        match (m, n) {
            (1, 1) => true,
            (1, _) => column > 0,
            (_, 1) => row > 0,
            _ => (over(row, column, n) && column > 0) || (over(column, row, m) && row > 0),
        }
    }
}
