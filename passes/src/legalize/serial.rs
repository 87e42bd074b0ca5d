//! GPU kernels by their serial meaning, for emitters without blocks of threads.
//!
//! Blocks become the iterations of a parallel loop; warps and threads become serial loops inside. Shared memory becomes
//! cache scratch, and so does what each thread has a copy of: an array with a row for each thread. Barriers vanish;
//! collectives become loops over the rows, in the order that they define.

use smallvec::smallvec;
use tlc_ir::graph::Monoid;
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::{Bind, Collective, CollectiveKind, Group, Kernel, Memory, Op, Scope, Stmt, ValueId};
use tlc_ir::target::{MAX_BLOCK_THREADS, WARP_THREADS};

/// Statements that a collective becomes, at most.
pub(super) fn collective_statements(c: &Collective) -> u64 {
    // Five levels in full warps, in the last one and over warps, of two loops and four statements each; the elements of later
    // warps; and one loop over all threads.
    match c.kind {
        CollectiveKind::Reduce(_) | CollectiveKind::Scan(_) => 5 * 3 * 6 + 2 * 6 + 4,
        CollectiveKind::Broadcast(_) => 4,
    }
}

/// Rewrites a GPU kernel; leaves any other as it is.
pub(super) fn serialize(kernel: &mut Kernel) {
    let [Stmt::Loop { bind: Bind::Block, .. }] = &kernel.body[..] else {
        return;
    };
    let body = std::mem::take(&mut kernel.body);
    let threads = threads(kernel, &body, 1);
    let copies: Vec<Option<IndexExpr>> = kernel
        .scratch
        .iter()
        .map(|s| (s.scope == Scope::Thread).then(|| s.len.clone()))
        .collect();
    for s in &mut kernel.scratch {
        match s.scope {
            Scope::Thread => s.len = s.len.clone() * IndexExpr::Const(threads),
            Scope::Register | Scope::Cache | Scope::Shared => {}
        }
        if matches!(s.scope, Scope::Thread | Scope::Shared) {
            s.scope = Scope::Cache;
        }
    }
    let mut serial = Serial {
        kernel,
        copies,
        warp: None,
        thread: IndexExpr::ZERO,
    };
    let body = serial.block(body);
    kernel.body = body;
}

/// The most threads of a block, `warps` of which are around.
fn threads(kernel: &Kernel, body: &[Stmt], warps: i64) -> i64 {
    let of = |s: &Stmt| match s {
        Stmt::Loop { var, bind, body } => {
            let extent = || {
                kernel.extents[var.0 as usize]
                    .interval(kernel)
                    .hi
                    .clamp(1, MAX_BLOCK_THREADS)
            };
            match bind {
                Bind::Warp => threads(kernel, body, extent()),
                Bind::Thread => extent() * warps,
                _ => threads(kernel, body, warps),
            }
        }
        Stmt::Collective(c) => match c.group {
            Group::Warp => WARP_THREADS * warps,
            Group::Block(threads) => threads,
        },
        s => threads(kernel, s.body(), warps),
    };
    body.iter().map(of).max().unwrap_or(1).min(MAX_BLOCK_THREADS)
}

struct Serial<'k> {
    kernel: &'k mut Kernel,
    /// Of scratch that each thread has a copy of: the length of a copy.
    copies: Vec<Option<IndexExpr>>,
    warp: Option<VarId>,
    /// The thread of the block.
    thread: IndexExpr,
}

impl Serial<'_> {
    fn block(&mut self, body: Vec<Stmt>) -> Vec<Stmt> {
        let mut out = Vec::with_capacity(body.len());
        for s in body {
            self.statement(s, &mut out);
        }
        out
    }

    fn statement(&mut self, s: Stmt, out: &mut Vec<Stmt>) {
        match s {
            Stmt::Barrier => {}
            Stmt::Collective(c) => self.collective(&c, out),
            Stmt::Loop { var, bind, body } => {
                let outer = (self.warp, self.thread.clone());
                let bind = match bind {
                    Bind::Block => Bind::Parallel,
                    Bind::Warp => {
                        self.warp = Some(var);
                        Bind::Serial
                    }
                    Bind::Thread => {
                        self.thread = self.first() + var.into();
                        Bind::Serial
                    }
                    other => other,
                };
                let body = self.block(body);
                (self.warp, self.thread) = outer;
                out.push(Stmt::Loop { var, bind, body });
            }
            mut s => {
                for a in s.accesses_mut() {
                    *a.index = self.row(*a.memory, &self.thread) + a.index.clone();
                }
                if let Some(body) = s.body_mut() {
                    *body = self.block(std::mem::take(body));
                }
                out.push(s);
            }
        }
    }

    /// The first thread of the warp around, or of the block.
    fn first(&self) -> IndexExpr {
        match self.warp {
            Some(warp) => IndexExpr::from(warp) * IndexExpr::Const(WARP_THREADS),
            None => IndexExpr::ZERO,
        }
    }

    /// Where a thread's copy of a memory begins.
    fn row(&self, memory: Memory, thread: &IndexExpr) -> IndexExpr {
        match memory {
            Memory::Scratch(s) => match &self.copies[s as usize] {
                Some(len) => thread.clone() * len.clone(),
                None => IndexExpr::ZERO,
            },
            Memory::Param(_) => IndexExpr::ZERO,
        }
    }

    fn collective(&mut self, c: &Collective, out: &mut Vec<Stmt>) {
        let first = self.first();
        let mut all = Elements {
            out,
            serial: self,
            collective: c,
            first,
        };
        let threads = c.group.threads();
        let (warps, rest) = (threads / WARP_THREADS, threads % WARP_THREADS);
        // The last warp begins here, where it is not whole.
        let last = IndexExpr::Const(warps * WARP_THREADS);
        let from = match c.kind {
            CollectiveKind::Broadcast(from) => from,
            CollectiveKind::Reduce(monoid) => {
                all.each(warps, |all, w| {
                    all.tree(monoid, WARP_THREADS, &|t| w.clone() * WARP_THREADS.into() + t)
                });
                all.tree(monoid, rest, &|t| last.clone() + t);
                all.tree(monoid, warps + rest.min(1), &|w| w * WARP_THREADS.into());
                0
            }
            CollectiveKind::Scan(monoid) => {
                all.each(warps, |all, w| {
                    all.scan(monoid, WARP_THREADS, &|t| w.clone() * WARP_THREADS.into() + t)
                });
                all.scan(monoid, rest, &|t| last.clone() + t);
                let end = |w: IndexExpr| {
                    let end = w * WARP_THREADS.into() + (WARP_THREADS - 1).into();
                    IndexExpr::min(&end, &(threads - 1).into())
                };
                all.scan(monoid, warps + rest.min(1), &end);
                all.each(warps - 1, |all, w| {
                    let start = (w + IndexExpr::ONE) * WARP_THREADS.into();
                    let before = start.clone() - IndexExpr::ONE;
                    all.each(WARP_THREADS - 1, |all, t| {
                        let at = start.clone() + t;
                        all.combine(monoid, &at, &before, &at);
                    });
                });
                if warps > 0 {
                    let before = last.clone() - IndexExpr::ONE;
                    all.each(rest - 1, |all, t| {
                        let at = last.clone() + t;
                        all.combine(monoid, &at, &before, &at);
                    });
                }
                return;
            }
        };
        let value = all.load(&from.into());
        all.each(threads, |all, t| all.store(&t, value));
    }
}

/// The elements of a collective, by thread of its group, and the statements made of it.
struct Elements<'a, 'k> {
    out: &'a mut Vec<Stmt>,
    serial: &'a mut Serial<'k>,
    collective: &'a Collective,
    first: IndexExpr,
}

impl Elements<'_, '_> {
    /// A loop over so many, if there are any.
    fn each(&mut self, count: i64, body: impl FnOnce(&mut Self, IndexExpr)) {
        if count < 1 {
            return;
        }
        let var = self.serial.kernel.new_var(count.into());
        let outer = std::mem::take(self.out);
        body(self, var.into());
        let body = std::mem::replace(self.out, outer);
        let bind = Bind::Serial;
        self.out.push(Stmt::Loop { var, bind, body });
    }

    /// What `tree` of the definition does with so many members; `at` says which threads they are.
    fn tree(&mut self, monoid: Monoid, members: i64, at: &dyn Fn(IndexExpr) -> IndexExpr) {
        let mut half = WARP_THREADS / 2;
        while half > 0 {
            self.each(half.min(members - half), |all, t| {
                let (to, from) = (at(t.clone()), at(t + half.into()));
                all.combine(monoid, &to, &to, &from);
            });
            half /= 2;
        }
    }

    /// What `scan` of the definition does with so many members.
    fn scan(&mut self, monoid: Monoid, members: i64, at: &dyn Fn(IndexExpr) -> IndexExpr) {
        let mut step = 1;
        while step < WARP_THREADS {
            self.each(members - step, |all, back| {
                let t = IndexExpr::Const(members - 1) - back;
                let (to, from) = (at(t.clone()), at(t - step.into()));
                all.combine(monoid, &to, &from, &to);
            });
            step *= 2;
        }
    }

    fn index(&self, thread: &IndexExpr) -> IndexExpr {
        let c = self.collective;
        self.serial.row(c.memory, &(self.first.clone() + thread.clone())) + c.index.clone()
    }

    fn load(&mut self, thread: &IndexExpr) -> ValueId {
        let (memory, index, mask) = (self.collective.memory, self.index(thread), None);
        let value = self.serial.kernel.new_value(self.serial.kernel.memory_dtype(memory));
        let op = Op::Load { memory, index, mask };
        self.out.push(Stmt::Let { value, op });
        value
    }

    fn store(&mut self, thread: &IndexExpr, value: ValueId) {
        self.out.push(Stmt::Store {
            memory: self.collective.memory,
            index: self.index(thread),
            value,
            mask: None,
        });
    }

    fn combine(&mut self, monoid: Monoid, to: &IndexExpr, left: &IndexExpr, right: &IndexExpr) {
        let (left, right) = (self.load(left), self.load(right));
        let value = self.serial.kernel.new_value(self.serial.kernel.dtype(left));
        let op = Op::Map(monoid.combine(), smallvec![left, right]);
        self.out.push(Stmt::Let { value, op });
        self.store(to, value);
    }
}
