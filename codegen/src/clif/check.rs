//! What translation relies on without looking: every id that a kernel mentions exists.

use tlc_ir::index::IndexNode;
use tlc_ir::kernel::{Memory, Op, Stmt, ValueId};
use tlc_ir::{IndexExpr, Kernel, VarId};

use super::{Result, invalid};

/// Checks that every value, memory and loop variable that is mentioned exists.
pub(super) fn ids(kernel: &Kernel) -> Result<()> {
    let mut found = Unknown { kernel, what: None };
    for extent in &kernel.extents {
        found.index(extent);
    }
    kernel.visit(&mut |s| found.stmt(s));
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

    fn access(&mut self, memory: Memory, index: &IndexExpr) {
        match memory {
            Memory::Param(i) => self.note("parameter", i, self.kernel.params.len()),
            Memory::Scratch(i) => self.note("scratch", i, self.kernel.scratch.len()),
        }
        self.index(index);
    }

    fn stmt(&mut self, s: &Stmt) {
        match s {
            Stmt::Let { value, op } => {
                self.value(*value);
                match op {
                    Op::Const(_) => {}
                    Op::Index(e, _) => self.index(e),
                    Op::Load { memory, index, mask } => {
                        self.access(*memory, index);
                        mask.iter().for_each(|m| self.value(*m));
                    }
                    Op::Map(_, operands) => operands.iter().for_each(|v| self.value(*v)),
                    Op::Convert(_, v) | Op::Bitcast(_, v) => self.value(*v),
                }
            }
            Stmt::Store {
                memory,
                index,
                value,
                mask,
            } => {
                self.access(*memory, index);
                self.value(*value);
                mask.iter().for_each(|m| self.value(*m));
            }
            Stmt::Loop { var, .. } => self.var(*var),
            Stmt::If { cond, .. } => self.value(*cond),
            Stmt::Clamp { var, value } => {
                self.var(*var);
                self.value(*value);
            }
            Stmt::Accumulate { state, values, .. } => {
                state.iter().for_each(|(m, index)| self.access(*m, index));
                values.iter().for_each(|v| self.value(*v));
            }
            Stmt::Barrier => {}
        }
    }
}
