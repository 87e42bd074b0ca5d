//! What all threads of a block load alike, brought to shared memory for all of them.
//!
//! ```text
//! for t thread {                      for c in ceil(n / length) {
//!   a                                   for f in min(length, n - length * c) thread { shared[f] = x[length * c + f] }
//!   for k in n { b(x[k]) }       =>     for t thread { a; for k in min(length, n - length * c) { b(shared[k]) } }
//! }                                   }
//! ```
//! Each thread goes through the same iterations in the same order as before.

use smallvec::SmallVec;
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::{Access, Bind, Kernel, Memory, Op, Scope, Stmt, ValueId};
use tlc_ir::target::MAX_BLOCK_THREADS;

use super::ScheduleReason;
use super::directives::rewrite;
use super::gpu::Gpu;
use super::threads::load;
use crate::directive::{Directive, DirectiveRefusal};
use crate::tree::{defined_vars, store, substitute_in};

/// Iterations whose loads come to shared memory at a time; of fewer in all it is not worth two barriers.
const LENGTH: i64 = 128;

impl Gpu {
    /// A thread per iteration of the parallel loops of a scatter, of which each block brings the indices to its threads.
    pub(super) fn updates(&mut self, parallel: &[VarId], threads: i64) -> Result<(), DirectiveRefusal> {
        let [block, thread] = self.items(parallel, threads)?;
        let indices = self
            .loops_inside(thread)
            .pop()
            .ok_or(DirectiveRefusal::NoLoop(thread))?;
        let var = self.one_loop(&self.chain(indices))?;
        if self.kernel.extents[var.0 as usize].interval(&self.kernel).hi < LENGTH {
            let (stages, least) = (1, LENGTH);
            return Err(DirectiveRefusal::FewIterations { var, stages, least });
        }
        self.why = ScheduleReason::SharedMemory;
        let length = LENGTH;
        self.apply(Directive::ShareLoads { thread, var, length })?;
        self.why = ScheduleReason::Order;
        self.apply(Directive::Synchronize { block }).map(drop)
    }
}

/// A load that is the same for all threads.
struct Shared {
    value: ValueId,
    memory: Memory,
    index: IndexExpr,
}

/// The loop that is the last statement of a thread loop, which is all of a block; and the loads in it that are shared.
fn shared_loads(kernel: &Kernel, thread: VarId, var: VarId) -> Result<Vec<Shared>, DirectiveRefusal> {
    let [
        Stmt::Loop {
            bind: Bind::Block,
            body: block,
            ..
        },
    ] = &kernel.body[..]
    else {
        return Err(DirectiveRefusal::NotInBlock(thread));
    };
    let [
        Stmt::Loop {
            var: t,
            bind: Bind::Thread,
            body,
        },
    ] = &block[..]
    else {
        return Err(DirectiveRefusal::NotInBlock(thread));
    };
    let not_nested = DirectiveRefusal::NotNested(thread, var);
    let Some((last, before)) = body.split_last().filter(|_| *t == thread) else {
        return Err(not_nested);
    };
    let Stmt::Loop {
        var: v,
        bind: Bind::Serial,
        body: inside,
    } = last
    else {
        return Err(not_nested);
    };
    let computed = before
        .iter()
        .all(|s| matches!(s, Stmt::Let { .. } | Stmt::Clamp { .. }));
    let own = defined_vars(before);
    let extent = &kernel.extents[var.0 as usize];
    let of_thread = |e: &IndexExpr| e.uses(thread) || own.iter().any(|v| e.uses(*v));
    if *v != var || !computed || of_thread(extent) {
        return Err(not_nested);
    }
    let inner = defined_vars(inside);
    let found = inside.iter().filter_map(|s| match s {
        Stmt::Let {
            value,
            op:
                Op::Load {
                    memory: memory @ Memory::Param(p),
                    index,
                    mask: None,
                },
        } => {
            let read = kernel.params[*p as usize].access == Access::Read;
            let alike = index.uses(var) && !of_thread(index) && !inner.iter().any(|v| index.uses(*v));
            (read && alike).then(|| Shared {
                value: *value,
                memory: *memory,
                index: index.clone(),
            })
        }
        _ => None,
    });
    let found: Vec<Shared> = found.collect();
    match found.is_empty() {
        true => Err(DirectiveRefusal::NothingToCopy(var)),
        false => Ok(found),
    }
}

/// Has the threads of a block bring what they load alike in so many iterations of a loop; returns the loop over these, that of the threads that bring it, and the thread
/// loop.
pub(super) fn share_loads(
    kernel: &mut Kernel,
    thread: VarId,
    var: VarId,
    length: i64,
) -> Result<Vec<VarId>, DirectiveRefusal> {
    if !(1..=MAX_BLOCK_THREADS).contains(&length) {
        return Err(DirectiveRefusal::Threads(length));
    }
    let loads = shared_loads(kernel, thread, var)?;
    let n = kernel.extents[var.0 as usize].clone();
    let pieces = kernel.new_var(n.ceil_div(length).simplify(kernel));
    let start = IndexExpr::from(pieces) * IndexExpr::Const(length);
    let left = IndexExpr::min(&IndexExpr::Const(length), &(n - start.clone())).simplify(kernel);
    let filling = kernel.new_var(left.clone());
    let inside = kernel.new_var(left);
    let mut fill = Vec::new();
    let mut shared: SmallVec<[(ValueId, Memory); 2]> = SmallVec::new();
    for s in &loads {
        let dtype = kernel.dtype(s.value);
        let memory = kernel.new_scratch(dtype, IndexExpr::Const(length), Scope::Shared);
        let value = kernel.new_value(dtype);
        let at = start.clone() + filling.into();
        let index = s.index.replace_vars(&mut |v| (v == var).then(|| at.clone()));
        fill.push(load(value, s.memory, index.simplify(kernel)));
        fill.push(store(memory, filling.into(), value, None));
        shared.push((s.value, memory));
    }
    rewrite(kernel, thread, &mut |kernel, bind, mut body| {
        let Some(Stmt::Loop { body: mut each, .. }) = body.pop() else {
            return Vec::new();
        };
        let at = start.clone() + inside.into();
        substitute_in(kernel, &mut each, &mut |v| (v == var).then(|| at.clone()));
        for s in &mut each {
            if let Stmt::Let { value, op } = s
                && let Some((_, memory)) = shared.iter().find(|(v, _)| v == value)
            {
                *op = Op::Load {
                    memory: *memory,
                    index: inside.into(),
                    mask: None,
                };
            }
        }
        body.push(Stmt::Loop {
            var: inside,
            bind: Bind::Serial,
            body: each,
        });
        let around = |var, bind, body| Stmt::Loop { var, bind, body };
        let both = vec![
            around(filling, Bind::Thread, std::mem::take(&mut fill)),
            around(thread, bind, body),
        ];
        vec![around(pieces, Bind::Serial, both)]
    });
    Ok(vec![pieces, filling, thread])
}
