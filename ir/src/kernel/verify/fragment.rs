//! Rules of fragments and of what is done with each of their elements. Where such statements stand is checked with the threads.

use super::{Checker, Definition, Rule};
use crate::index::{IndexExpr, VarId};
use crate::kernel::fold::{NEIGHBOURS, ROW_LANES};
use crate::kernel::{FoldRows, Kernel, Memory, Scope, Stmt};

/// Whether a memory is a fragment.
pub(super) fn is_fragment(kernel: &Kernel, memory: Memory) -> bool {
    match memory {
        Memory::Param(_) => false,
        Memory::Scratch(s) => {
            let scope = kernel.scratch.get(s as usize).map(|s| s.scope);
            matches!(scope, Some(Scope::WarpFragment | Scope::BlockFragment))
        }
    }
}

/// Whether an index is that of a matrix row by row.
pub(super) fn is_element(kernel: &Kernel, [m, n]: [VarId; 2], index: &IndexExpr) -> bool {
    let (Some(m_extent), Some(columns)) = (kernel.extents.get(m.0 as usize), kernel.extents.get(n.0 as usize)) else {
        return false;
    };
    // A variable of one value is 0.
    let at = |v: VarId, extent: &IndexExpr| match extent.is(1) {
        true => IndexExpr::ZERO,
        false => v.into(),
    };
    let whole = at(m, m_extent) * columns.clone() + at(n, columns);
    index.simplify(kernel) == whole.simplify(kernel)
}

/// Whether an index is the row of a matrix of one column.
pub(super) fn is_row(kernel: &Kernel, m: VarId, index: &IndexExpr) -> bool {
    let row = match kernel.extents.get(m.0 as usize) {
        Some(extent) if extent.is(1) => IndexExpr::ZERO,
        _ => m.into(),
    };
    index.simplify(kernel) == row
}

impl Checker<'_> {
    pub(super) fn fold_rows(&mut self, f: &FoldRows) {
        if let Some(lanes) = self.lanes {
            let inner = f.vars[0];
            self.error(Rule::InsideLanes { lanes, inner });
        }
        for memory in [f.from, f.to] {
            if self.memory(memory).is_some() && !is_fragment(self.kernel, memory) {
                self.error(Rule::EachMemory(memory));
            }
        }
        let opened: Vec<VarId> = f.vars.into_iter().filter(|v| self.open_var(*v)).collect();
        for v in &opened {
            if self.kernel.extents[v.0 as usize].as_const().is_none_or(|n| n < 1) {
                self.error(Rule::TileExtent(*v));
            }
        }
        let dtypes = (
            self.access(f.from, &f.from_index, true, false),
            self.access(f.to, &f.to_index, true, true),
        );
        opened.into_iter().for_each(|v| self.close_var(v));
        let whole = |columns: i64| columns % (ROW_LANES * NEIGHBOURS) == 0;
        if f.shape(self.kernel).is_some_and(|[_, columns]| !whole(columns)) {
            self.error(Rule::FoldColumns(f.from));
        }
        if f.monoid.is_arg() {
            return self.error(Rule::CollectiveMonoid(f.monoid.name()));
        }
        let (Some(from), Some(to)) = dtypes else { return };
        if from != to {
            return self.error(Rule::FoldDtype { from, to });
        }
        if let Err(e) = f.monoid.combine().result_dtype(&[from, to]) {
            self.error(e.into());
        }
    }

    pub(super) fn each(&mut self, vars: [VarId; 2], memory: Memory, body: &[Stmt]) {
        if self.memory(memory).is_some() && !is_fragment(self.kernel, memory) {
            self.error(Rule::EachMemory(memory));
        }
        if let Some(lanes) = self.lanes {
            self.error(Rule::InsideLanes { lanes, inner: vars[0] });
        }
        let opened: Vec<VarId> = vars.into_iter().filter(|v| self.open_var(*v)).collect();
        for v in &opened {
            if self.kernel.extents[v.0 as usize].as_const().is_none_or(|n| n < 1) {
                self.error(Rule::TileExtent(*v));
            }
        }
        self.depth += 1;
        self.block(body);
        self.depth -= 1;
        opened.into_iter().for_each(|v| self.close_var(v));
    }

    pub(super) fn close_var(&mut self, var: VarId) {
        self.vars[var.0 as usize] = Definition::Gone;
    }
}
