//! What lowering relies on without looking: every id that a kernel mentions exists, and what threads have of their own stays
//! with them.

use tlc_ir::index::IndexNode;
use tlc_ir::kernel::{Bind, Memory, Scope, Stmt, ValueId};
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

/// A thread's own scratch must not leave its loop: one that a thread loop writes is used in that loop only.
pub(super) fn own_scratch(kernel: &Kernel) -> Result<()> {
    // Per scratch: the thread loop that wrote it, and where it is used (`None`: outside of thread loops).
    let mut writer: Vec<Option<u32>> = vec![None; kernel.scratch.len()];
    let mut users: Vec<Vec<Option<u32>>> = vec![Vec::new(); kernel.scratch.len()];
    fn walk(body: &[Stmt], thread: Option<u32>, see: &mut dyn FnMut(Memory, bool, Option<u32>)) {
        for s in body {
            s.accesses().for_each(|a| see(a.memory, a.effect.writes(), thread));
            let inside = match s {
                Stmt::Loop {
                    var,
                    bind: Bind::Thread,
                    ..
                } => Some(var.0),
                _ => thread,
            };
            walk(s.body(), inside, see);
        }
    }
    walk(&kernel.body, None, &mut |memory, writes, thread| {
        let Memory::Scratch(i) = memory else { return };
        let Some(s) = kernel.scratch.get(i as usize) else {
            return;
        };
        if matches!(s.scope, Scope::Shared | Scope::Thread) {
            return;
        }
        if writes && thread.is_some() {
            writer[i as usize] = thread;
        }
        users[i as usize].push(thread);
    });
    for (i, w) in writer.iter().enumerate() {
        if w.is_some() && users[i].iter().any(|u| u != w) {
            return invalid(format!(
                "scratch {i} is written in a thread loop and used outside of it"
            ));
        }
    }
    Ok(())
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
