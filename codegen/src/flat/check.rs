//! What translation relies on without looking: every id that a kernel mentions exists.

use tlc_ir::index::IndexNode;
use tlc_ir::kernel::{Memory, Stmt, ValueId};
use tlc_ir::{IndexExpr, Kernel, VarId};

use crate::error::{Result, invalid};

/// Checks that every value, memory and loop variable that is mentioned exists.
pub(super) fn ids(kernel: &Kernel) -> Result<()> {
    let mut found = Unknown { kernel, what: None };
    for extent in &kernel.extents {
        found.index(extent);
    }
    kernel.statements().for_each(|s| found.stmt(s));
    found.what.map_or(Ok(()), invalid)
}

struct Unknown<'k> {
    kernel: &'k Kernel,
    what: Option<String>,
}

impl Unknown<'_> {
    fn note(&mut self, what: &str, id: u32, count: usize) {
        if id as usize >= count {
            self.what = Some(format!("unknown {what} {id}"));
        }
    }

    fn value(&mut self, v: ValueId) {
        self.note("value", v.0, self.kernel.values.len());
    }

    fn var(&mut self, v: VarId) {
        self.note("loop variable", v.0, self.kernel.extents.len());
    }

    fn index(&mut self, e: &IndexExpr) {
        e.visit_atoms(&mut |n| {
            if let IndexNode::Var(v) = n {
                self.var(*v);
            }
        });
    }

    fn stmt(&mut self, s: &Stmt) {
        s.defined_value().into_iter().for_each(|v| self.value(v));
        s.defined_vars().iter().for_each(|v| self.var(*v));
        s.indices().for_each(|e| self.index(e));
        s.operands().for_each(|v| self.value(v));
        for a in s.accesses() {
            match a.memory {
                Memory::Param(i) => self.note("parameter", i, self.kernel.params.len()),
                Memory::Scratch(i) => self.note("scratch", i, self.kernel.scratch.len()),
            }
        }
    }
}
