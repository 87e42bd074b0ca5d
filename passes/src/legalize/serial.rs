//! GPU kernels by their serial meaning, for emitters without blocks of threads.
//!
//! Blocks become the iterations of a parallel loop; warps and threads become serial loops inside. Shared memory becomes
//! cache scratch, and so does what each thread or warp has a copy of: an array with a row for each. Barriers and waits vanish;
//! copies beside the threads are done at once; collectives become loops over the rows, in the order that they define.

use tlc_ir::Scalar;
use tlc_ir::graph::Monoid;
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::fold::{NEIGHBOURS, ROW_LANES};
use tlc_ir::kernel::{Bind, Collective, CollectiveKind, FoldRows, Group, Kernel, Memory, Op, Scope, Stmt, ValueId};
use tlc_ir::target::{MAX_BLOCK_THREADS, WARP_THREADS};

use crate::tree::store;

/// Statements that a collective becomes, at most.
pub(super) fn collective_statements(kernel: &Kernel, c: &Collective) -> u64 {
    // And a loop over parts.
    let parts = u64::from(c.group.parts() > 1);
    let Some(monoid) = c.kind.monoid() else {
        return 4 + parts;
    };
    let combine = u64::from(super::map_statements(monoid.combine(), kernel.memory_dtype(c.memory)));
    // Five levels in full warps, in the last one and over warps, and the elements of later warps: each two loops around two
    // loads, a combination and a store. Then one loop over all threads.
    (5 * 3 + 2) * (combine + 5) + 4 + parts
}

/// Statements that a fold of rows becomes: four loops around two loads of pairs, loads of the others, and as many combinations.
pub(super) fn fold_statements(kernel: &Kernel, f: &FoldRows) -> u64 {
    let combine = u64::from(super::map_statements(f.monoid.combine(), kernel.memory_dtype(f.to)));
    8 + 6 * (combine + 3)
}

/// Rewrites a GPU kernel; leaves any other as it is.
pub(super) fn serialize(kernel: &mut Kernel) {
    let [Stmt::Loop { bind: Bind::Block, .. }] = &kernel.body[..] else {
        return;
    };
    let body = std::mem::take(&mut kernel.body);
    let threads = threads(kernel, &body, 1);
    let mut copies = Vec::with_capacity(kernel.scratch.len());
    for s in &mut kernel.scratch {
        let len = s.len.clone();
        let (rows, row) = match s.scope {
            Scope::Register | Scope::Cache | Scope::Shared | Scope::BlockFragment => (1, Row::None),
            Scope::Thread => (threads, Row::Thread(len.clone())),
            Scope::WarpFragment => ((threads + WARP_THREADS - 1) / WARP_THREADS, Row::Warp(len.clone())),
        };
        copies.push(row);
        s.len = len * IndexExpr::Const(rows);
        if s.scope != Scope::Register {
            (s.scope, s.swizzled) = (Scope::Cache, false);
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
                Bind::Warp => threads(kernel, body, extent()).max(extent() * WARP_THREADS),
                Bind::Thread => extent() * warps,
                _ => threads(kernel, body, warps),
            }
        }
        Stmt::Collective(c) => match c.group {
            Group::Warp | Group::Part(_) => WARP_THREADS * warps,
            Group::Block(threads) => threads,
        },
        s => threads(kernel, s.body(), warps),
    };
    body.iter().map(of).max().unwrap_or(1).min(MAX_BLOCK_THREADS)
}

/// Who has a copy of a scratch, and how long a copy is.
enum Row {
    None,
    Thread(IndexExpr),
    Warp(IndexExpr),
}

struct Serial<'k> {
    kernel: &'k mut Kernel,
    /// By scratch.
    copies: Vec<Row>,
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
            Stmt::Prefetch { .. } | Stmt::Barrier | Stmt::Commit | Stmt::Wait(_) => {}
            Stmt::CopyAsync(c) => {
                let value = self.kernel.new_value(self.kernel.memory_dtype(c.from));
                let (memory, index, mask) = (c.from, c.from_index, c.mask);
                let op = Op::Load { memory, index, mask };
                let load = Stmt::Let { value, op };
                let (memory, index, mask) = (c.to, c.to_index, None);
                let store = Stmt::Store {
                    memory,
                    index,
                    value,
                    mask,
                };
                out.push(Stmt::Loop {
                    var: c.var,
                    bind: Bind::Serial,
                    body: vec![load, store],
                });
            }
            Stmt::Each { vars: [m, n], body, .. } => {
                let (body, bind) = (self.block(body), Bind::Serial);
                let body = vec![Stmt::Loop { var: n, bind, body }];
                out.push(Stmt::Loop { var: m, bind, body });
            }
            Stmt::Collective(c) => self.collective(&c, out),
            Stmt::FoldRows(f) => self.fold_rows(&f, out),
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
            Memory::Scratch(s) => match (&self.copies[s as usize], self.warp) {
                (Row::Thread(len), _) => thread.clone() * len.clone(),
                (Row::Warp(len), Some(warp)) => IndexExpr::from(warp) * len.clone(),
                (Row::None | Row::Warp(_), _) => IndexExpr::ZERO,
            },
            Memory::Param(_) => IndexExpr::ZERO,
        }
    }

    fn collective(&mut self, c: &Collective, out: &mut Vec<Stmt>) {
        let parts = c.group.parts();
        if parts == 1 {
            return self.collective_of(c, self.first(), out);
        }
        let (var, bind) = (self.kernel.new_var(parts.into()), Bind::Serial);
        let mut body = Vec::new();
        self.collective_of(
            c,
            self.first() + IndexExpr::from(var) * c.group.threads().into(),
            &mut body,
        );
        out.push(Stmt::Loop { var, bind, body });
    }

    /// Rows of a fragment, in the order that their threads combine them.
    fn fold_rows(&mut self, f: &FoldRows, out: &mut Vec<Stmt>) {
        let [m, n] = f.vars;
        let dtype = self.kernel.memory_dtype(f.to);
        let columns = self.kernel.extents[n.0 as usize].clone();
        let pairs = IndexExpr::Const(ROW_LANES * NEIGHBOURS);
        let lanes = self.kernel.new_scratch(dtype, ROW_LANES.into(), Scope::Cache);
        self.copies.push(Row::None);
        let [lane, next] = [ROW_LANES, NEIGHBOURS].map(|n| self.kernel.new_var(n.into()));
        let tile = self
            .kernel
            .new_var(IndexExpr::floor_div(&columns, &pairs) - IndexExpr::ONE);
        let base = |memory: Memory, s: &Self| s.row(memory, &s.thread);
        let from = |s: &Self, column: IndexExpr| {
            let index = f.from_index.replace_vars(&mut |v| (v == n).then(|| column.clone()));
            (f.from, base(f.from, s) + index)
        };
        let own = (lanes, IndexExpr::from(lane));
        let pair = IndexExpr::from(lane) * NEIGHBOURS.into();
        // The first tile, then those behind it.
        let mut body = Vec::new();
        let first = self.loaded(&from(self, pair.clone()), &mut body);
        let second = self.loaded(&from(self, pair.clone() + IndexExpr::ONE), &mut body);
        let both = self.combined(f.monoid, [first, second], &mut body);
        body.push(stored(&own, both));
        let mut inner = Vec::new();
        let column = (IndexExpr::from(tile) + IndexExpr::ONE) * pairs + pair + next.into();
        let element = (
            self.loaded(&own, &mut inner),
            self.loaded(&from(self, column), &mut inner),
        );
        let all = self.combined(f.monoid, element.into(), &mut inner);
        inner.push(stored(&own, all));
        for var in [next, tile] {
            let bind = Bind::Serial;
            inner = vec![Stmt::Loop { var, bind, body: inner }];
        }
        body.extend(inner);
        let bind = Bind::Serial;
        let mut row = vec![Stmt::Loop { var: lane, bind, body }];
        let at = |t: i64| (lanes, IndexExpr::Const(t));
        let mut values: Vec<ValueId> = (0..ROW_LANES).map(|t| self.loaded(&at(t), &mut row)).collect();
        while values.len() > 1 {
            let half = values.split_off(values.len() / 2);
            let pairs: Vec<_> = values.into_iter().zip(half).collect();
            let mut combine = |(a, b)| self.combined(f.monoid, [a, b], &mut row);
            values = pairs.into_iter().map(&mut combine).collect();
        }
        let to = (f.to, base(f.to, self) + f.to_index.clone());
        let before = self.loaded(&to, &mut row);
        let whole = self.combined(f.monoid, [before, values[0]], &mut row);
        row.push(stored(&to, whole));
        out.push(Stmt::Loop {
            var: m,
            bind,
            body: row,
        });
    }

    fn loaded(&mut self, (memory, index): &(Memory, IndexExpr), out: &mut Vec<Stmt>) -> ValueId {
        let value = self.kernel.new_value(self.kernel.memory_dtype(*memory));
        let (memory, index, mask) = (*memory, index.clone(), None);
        let op = Op::Load { memory, index, mask };
        out.push(Stmt::Let { value, op });
        value
    }

    fn combined(&mut self, monoid: Monoid, operands: [ValueId; 2], out: &mut Vec<Stmt>) -> ValueId {
        let value = self.kernel.new_value(self.kernel.dtype(operands[0]));
        let op = Op::Map(monoid.combine(), operands.into_iter().collect());
        out.push(Stmt::Let { value, op });
        value
    }

    /// As one group does it, whose first thread that is.
    fn collective_of(&mut self, c: &Collective, first: IndexExpr, out: &mut Vec<Stmt>) {
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
            CollectiveKind::Shift(monoid) => {
                all.each(threads - 1, |all, back| {
                    let to = IndexExpr::Const(threads - 1) - back;
                    let before = all.load(&(to.clone() - IndexExpr::ONE));
                    all.store(&to, before);
                });
                let nothing = all.constant(monoid.identity(all.serial.kernel.memory_dtype(c.memory)));
                all.store(&IndexExpr::ZERO, nothing);
                return;
            }
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

fn stored((memory, index): &(Memory, IndexExpr), value: ValueId) -> Stmt {
    store(*memory, index.clone(), value, None)
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
        let place = (self.collective.memory, self.index(thread));
        self.serial.loaded(&place, self.out)
    }

    fn constant(&mut self, number: Scalar) -> ValueId {
        let value = self.serial.kernel.new_value(number.dtype());
        let op = Op::Const(number);
        self.out.push(Stmt::Let { value, op });
        value
    }

    fn store(&mut self, thread: &IndexExpr, value: ValueId) {
        let place = (self.collective.memory, self.index(thread));
        self.out.push(stored(&place, value));
    }

    fn combine(&mut self, monoid: Monoid, to: &IndexExpr, left: &IndexExpr, right: &IndexExpr) {
        let operands = [self.load(left), self.load(right)];
        let value = self.serial.combined(monoid, operands, self.out);
        self.store(to, value);
    }
}
