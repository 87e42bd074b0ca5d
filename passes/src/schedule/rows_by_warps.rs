//! Rows by warps: a warp takes a row, so that its threads need no barrier to combine what they have.
//!
//! ```text
//! for row in n {                       for block in ceil(n / warps) block {
//!   a                                    for warp in min(warps, n - warps * block) warp {
//!   for i in m { acc ⊕= f(i) }             for t in 32 thread { a; own = identity; for k { own ⊕= f(32 * k + t) } }
//!   b                             =>       reduce own
//!   for i in m { g(i) }                    for t in 32 thread { acc ⊕= own; b; for k { g(32 * k + t) } }
//! }                                      }
//!                                      }
//! ```
//!
//! Every thread of the warp executes what is between the loops for itself. What it sets there for statements behind a
//! reduction is in scratch of its own.
//!
//! Of rows that are shorter a warp takes several, each so many neighbouring threads one: `row` is the number of the warp's first row and
//! `t / threads`, the thread in it `t % threads`, and `reduce` one of parts of the warp. Threads for whose row there is none execute the
//! same, but access no parameter.
//!
//! Rows of a tile, in a loop of a block that has other statements too, go to the block's warps in turn.

use rustc_hash::{FxHashMap, FxHashSet};
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::visit::{walk, walk_mut};
use tlc_ir::kernel::{Bind, Kernel, Memory, Op, Scope, Stmt, ValueId};
use tlc_ir::target::{MAX_BLOCK_THREADS, WARP_THREADS};
use tlc_ir::{DType, ScalarOp};

use super::directives::{block, carries_state, overwrites, own_scratch, rewrite};
use super::threads::{Group, Share, accumulators, combine_in_warps, is_first, load};
use crate::directive::DirectiveRefusal;
use crate::tree::{loop_body, replace_loop, store, substitute_in};

/// Gives the iterations of a loop to so many warps of a block, so many threads each.
pub(super) fn rows_by_warps(
    kernel: &mut Kernel,
    var: VarId,
    (warps, threads): (i64, i64),
) -> Result<Vec<VarId>, DirectiveRefusal> {
    if !(1..=MAX_BLOCK_THREADS / WARP_THREADS).contains(&warps) {
        return Err(DirectiveRefusal::Threads(warps.saturating_mul(WARP_THREADS)));
    }
    if !(1..=WARP_THREADS).contains(&threads) || threads.count_ones() != 1 {
        return Err(DirectiveRefusal::Threads(threads));
    }
    let in_block = check(kernel, var)?;
    if in_block && threads != WARP_THREADS {
        return Err(DirectiveRefusal::Threads(threads));
    }
    let mut new = kernel.clone();
    let (made, place) = match threads {
        WARP_THREADS => (block(&mut new, var, warps)?, None),
        _ => {
            let (made, place) = in_parts(&mut new, var, (warps, threads));
            (made, Some(place))
        }
    };
    let [outer, warp] = made[..] else {
        return Err(DirectiveRefusal::Factor(warps));
    };
    let mut refusal = None;
    rewrite(&mut new, warp, &mut |kernel, _, body| {
        let mut row = Row::new(kernel, threads, place.clone());
        if let Err(e) = body.into_iter().try_for_each(|s| row.statement(s)) {
            refusal = Some(e);
        }
        vec![Stmt::Loop {
            var: warp,
            bind: Bind::Warp,
            body: row.finish(),
        }]
    });
    let bind = if in_block { Bind::Serial } else { Bind::Block };
    rewrite(&mut new, outer, &mut |_, _, body| {
        vec![Stmt::Loop { var: outer, bind, body }]
    });
    if let Some(refusal) = refusal {
        return Err(refusal);
    }
    *kernel = new;
    Ok(made)
}

/// Where the rows of a part of a warp are.
#[derive(Clone)]
struct Place {
    /// What numbered the rows.
    var: VarId,
    /// The warp's first row, and how many rows there are.
    first: IndexExpr,
    rows: IndexExpr,
}

/// Loops over blocks and warps around the body of a loop, whose variable stays in it.
fn in_parts(kernel: &mut Kernel, var: VarId, (warps, threads): (i64, i64)) -> (Vec<VarId>, Place) {
    let rows = kernel.extents[var.0 as usize].clone();
    let each = WARP_THREADS / threads;
    let outer = kernel.new_var(rows.ceil_div(warps * each).simplify(kernel));
    let warp = kernel.new_var(warps.into());
    rewrite(kernel, var, &mut |_, bind, body| {
        let inner = Stmt::Loop {
            var: warp,
            bind: Bind::Serial,
            body,
        };
        vec![Stmt::Loop {
            var: outer,
            bind,
            body: vec![inner],
        }]
    });
    let first = (IndexExpr::from(outer) * warps.into() + warp.into()) * each.into();
    (vec![outer, warp], Place { var, first, rows })
}

/// The body of a loop of rows, and whether it is one of the statements of a block.
fn rows_of(kernel: &Kernel, var: VarId) -> Option<(&[Stmt], bool)> {
    let [outermost @ Stmt::Loop { bind, .. }] = &kernel.body[..] else {
        return None;
    };
    let in_block = *bind == Bind::Block;
    let mut among = if in_block { outermost.body() } else { &kernel.body }.iter();
    among.find_map(|s| match s {
        Stmt::Loop {
            var: v,
            bind: Bind::Serial,
            body,
        } if *v == var => Some((&body[..], in_block)),
        _ => None,
    })
}

/// Whether rows do not depend on each other, the statements of a row may be executed by all threads of a warp, and the loops among them shared. Returns
/// whether they are a part of a block.
fn check(kernel: &Kernel, var: VarId) -> Result<bool, DirectiveRefusal> {
    let (body, in_block) = rows_of(kernel, var).ok_or(DirectiveRefusal::NotNested(var, var))?;
    let all: Vec<Memory> = (0..kernel.scratch.len() as u32).map(Memory::Scratch).collect();
    let by_all = |s: &Stmt| match s {
        Stmt::Let { .. } => true,
        // One thread stores it to memory.
        Stmt::Store { memory, .. } => is_register(kernel, *memory) || matches!(memory, Memory::Param(_)),
        Stmt::Accumulate { state, .. } => state.iter().all(|(m, _)| is_register(kernel, *m)),
        Stmt::Loop { .. } => is_shared(kernel, s),
        _ => false,
    };
    let known = |s: &Stmt| match s {
        Stmt::Loop { bind, .. } => matches!(bind, Bind::Serial | Bind::Unroll | Bind::Lanes),
        Stmt::Accumulate { state, .. } => state.iter().all(|(m, _)| is_register(kernel, *m)),
        Stmt::Let { .. } | Stmt::Store { .. } | Stmt::If { .. } | Stmt::Clamp { .. } => true,
        _ => false,
    };
    let apart = !carries_state(body, &all) && !overwrites(kernel, body, var, &all);
    match apart && body.iter().all(by_all) && walk(body).all(known) {
        true => Ok(in_block),
        false => Err(DirectiveRefusal::Recurrence(var)),
    }
}

/// Whether the iterations of the loop of a nest that threads share may run in any order.
fn is_shared(kernel: &Kernel, nest: &Stmt) -> bool {
    let Some((_, var)) = shared_loop(nest) else {
        return false;
    };
    let body = loop_body(std::slice::from_ref(nest), var).map_or(&[][..], |b| &b[..]);
    let own = own_scratch(kernel, var, body);
    !carries_state(body, &own) && !overwrites(kernel, body, var, &own)
}

fn is_register(kernel: &Kernel, memory: Memory) -> bool {
    matches!(memory, Memory::Scratch(i) if kernel.scratch[i as usize].scope == Scope::Register)
}

/// What the threads of a warp execute between two reductions.
struct Segment {
    thread: VarId,
    body: Vec<Stmt>,
    /// Whether it is the first thread, once a statement needs to know.
    first: Option<ValueId>,
    /// What the warp does behind it.
    behind: Vec<Stmt>,
}

/// The statements of a row, in turn.
struct Row<'k> {
    kernel: &'k mut Kernel,
    /// Threads of a row.
    threads: i64,
    /// Where rows are that do not take a warp.
    place: Option<Place>,
    segments: Vec<Segment>,
}

impl<'k> Row<'k> {
    fn new(kernel: &'k mut Kernel, threads: i64, place: Option<Place>) -> Row<'k> {
        let mut row = Row {
            kernel,
            threads,
            place,
            segments: Vec::new(),
        };
        row.begin();
        row
    }

    fn begin(&mut self) {
        let thread = self.kernel.new_var(IndexExpr::Const(WARP_THREADS));
        self.segments.push(Segment {
            thread,
            body: Vec::new(),
            first: None,
            behind: Vec::new(),
        });
    }

    fn last(&mut self) -> (&mut Kernel, &mut Segment) {
        let at = self.segments.len() - 1;
        (self.kernel, &mut self.segments[at])
    }

    /// The number of a thread among those of its row.
    fn in_row(&self, thread: VarId) -> IndexExpr {
        match self.threads {
            WARP_THREADS => thread.into(),
            threads => IndexExpr::modulo(&thread.into(), &threads.into()),
        }
    }

    fn statement(&mut self, s: Stmt) -> Result<(), DirectiveRefusal> {
        match s {
            Stmt::Loop { .. } => self.nest(s),
            Stmt::Store {
                memory,
                index,
                value,
                mask,
            } if !is_register(self.kernel, memory) => {
                self.store_once(memory, index, value, mask);
                Ok(())
            }
            s => {
                self.last().1.body.push(s);
                Ok(())
            }
        }
    }

    /// A store that one thread executes.
    fn store_once(&mut self, memory: Memory, index: IndexExpr, value: ValueId, mask: Option<ValueId>) {
        let at = self.segments.len() - 1;
        let number = self.in_row(self.segments[at].thread);
        let (kernel, segment) = self.last();
        let first = match segment.first {
            Some(first) => first,
            None => is_first(kernel, number, &mut segment.body),
        };
        segment.first = Some(first);
        let mask = match mask {
            None => first,
            Some(mask) => {
                let both = kernel.new_value(DType::Bool);
                let op = Op::Map(ScalarOp::And, smallvec::smallvec![mask, first]);
                segment.body.push(Stmt::Let { value: both, op });
                both
            }
        };
        segment.body.push(store(memory, index, value, Some(mask)));
    }

    /// A nest of loops, of which the threads share the innermost, lanes aside.
    fn nest(&mut self, s: Stmt) -> Result<(), DirectiveRefusal> {
        let mut nest = vec![s];
        let Some((around, var)) = shared_loop(&nest[0]) else {
            return Err(DirectiveRefusal::NotNested(VarId(0), VarId(0)));
        };
        let (monoids, states) = accumulators(self.kernel, &nest, var)?;
        if !combine_in_warps(self.kernel, &monoids) {
            return Err(DirectiveRefusal::Recurrence(around));
        }
        let (at, threads) = (self.segments.len() - 1, self.threads);
        let thread = self.in_row(self.segments[at].thread);
        let (kernel, segment) = self.last();
        let groups = Group::of(kernel, monoids, &states, (1, Scope::Thread));
        groups.iter().for_each(|g| g.reset(kernel, &mut segment.body));
        Group::accumulate_apart(&groups, &mut nest);
        let share = Share {
            var,
            n: kernel.extents[var.0 as usize].clone(),
            thread,
            threads,
        };
        replace_loop(&mut nest, var, &mut |_, body| share.of(kernel, body));
        segment.body.append(&mut nest);
        if groups.is_empty() {
            return Ok(());
        }
        let here = &IndexExpr::ZERO;
        for g in &groups {
            g.publish(kernel, here, &mut segment.body);
            g.reduce(kernel, threads, &mut segment.body, &mut segment.behind);
        }
        self.begin();
        let (kernel, segment) = self.last();
        for g in &groups {
            segment.body.extend(g.combine(kernel, here, true));
        }
        Ok(())
    }

    /// What the warp executes for the row.
    fn finish(mut self) -> Vec<Stmt> {
        for at in 0..self.segments.len() {
            self.read_once(at);
        }
        self.carry_values();
        self.own_registers();
        self.number_rows();
        let mut out = Vec::new();
        for s in self.segments {
            if !s.body.is_empty() {
                out.push(Stmt::Loop {
                    var: s.thread,
                    bind: Bind::Thread,
                    body: s.body,
                });
            }
            out.extend(s.behind);
        }
        out
    }

    /// Has each part of a warp take its row, if there is one: where that is not known, what accesses parameters asks.
    fn number_rows(&mut self) {
        let Some(Place { var, first, rows }) = self.place.take() else {
            return;
        };
        for segment in &mut self.segments {
            let row = first.clone() + IndexExpr::floor_div(&segment.thread.into(), &self.threads.into());
            if !row.proves_less(&rows, self.kernel) {
                let exists = is_below(self.kernel, &row, &rows, &mut segment.body);
                mask_params(self.kernel, &mut segment.body, exists);
            }
            substitute_in(self.kernel, &mut segment.body, &mut |v| (v == var).then(|| row.clone()));
        }
    }

    /// Has the thread that stores for the row read alone what only it needs: what it stores may lie where the row was read from, and no thread
    /// waits for the others before the store. Of what the others need too a kernel says by its loads that it does not run in place.
    fn read_once(&mut self, at: usize) {
        let Some(first) = self.segments[at].first else {
            return;
        };
        // The condition comes first, and what it is computed from.
        let made = |s: &Stmt| s.defined_value() == Some(first);
        let Some(defined) = self.segments[at].body.iter().position(made) else {
            return;
        };
        let condition: Vec<Stmt> = self.condition(at, defined);
        self.segments[at].body.splice(0..0, condition);
        let later = self.segments[at + 1..].iter().flat_map(|s| walk(&s.body));
        let mut needed: FxHashSet<ValueId> = later.flat_map(|s| s.operands()).collect();
        let is_param = |m: &Memory| matches!(m, Memory::Param(_));
        let body = &self.segments[at].body;
        // Not every store outside of a loop is the first thread's: rows of no more elements than threads have no loop.
        let by_first = |mask: &Option<ValueId>| {
            let asks = |s: &Stmt| match s {
                Stmt::Let {
                    value,
                    op: Op::Map(ScalarOp::And, of),
                } => Some(*value) == *mask && of.contains(&first),
                _ => false,
            };
            *mask == Some(first) || body.iter().any(asks)
        };
        // Behind the uses of a value is none of what it is computed from.
        let mut alone: Vec<usize> = Vec::new();
        for (i, s) in body.iter().enumerate().rev() {
            match s {
                Stmt::Let { value, op } if !needed.contains(value) => {
                    if let Op::Load { memory, .. } = op
                        && is_param(memory)
                    {
                        alone.push(i);
                    }
                }
                Stmt::Store { memory, mask, .. } if is_param(memory) && by_first(mask) => {}
                s => needed.extend(walk(std::slice::from_ref(s)).flat_map(|s| s.operands())),
            }
        }
        for i in alone {
            let mut both = None;
            if let Stmt::Let {
                op: Op::Load { mask, .. },
                ..
            } = &mut self.segments[at].body[i]
            {
                both = mask.replace(first);
            }
            if let Some(mask) = both {
                let value = self.kernel.new_value(DType::Bool);
                let op = Op::Map(ScalarOp::And, smallvec::smallvec![mask, first]);
                let body = &mut self.segments[at].body;
                if let Stmt::Let {
                    op: Op::Load { mask, .. },
                    ..
                } = &mut body[i]
                {
                    *mask = Some(value);
                }
                body.insert(i, Stmt::Let { value, op });
            }
        }
    }

    /// Takes the statements that say whether it is the first thread out of a part, the last of which is at a place.
    fn condition(&mut self, at: usize, last: usize) -> Vec<Stmt> {
        let body = &mut self.segments[at].body;
        let mut needed: FxHashSet<ValueId> = body[last].operands().collect();
        let mut taken = vec![body.remove(last)];
        for i in (0..last).rev() {
            if body[i].defined_value().is_some_and(|v| needed.contains(&v)) {
                needed.extend(body[i].operands());
                taken.push(body.remove(i));
            }
        }
        taken.reverse();
        taken
    }

    /// Has values that a later part uses go there through scratch of each thread; constants are there again.
    fn carry_values(&mut self) {
        let mut defined: FxHashMap<ValueId, usize> = FxHashMap::default();
        for (at, segment) in self.segments.iter().enumerate() {
            defined.extend(segment.body.iter().filter_map(Stmt::defined_value).map(|v| (v, at)));
        }
        let mut carried: FxHashMap<ValueId, Memory> = FxHashMap::default();
        for at in 1..self.segments.len() {
            let mut from_before: Vec<ValueId> = Vec::new();
            for v in walk(&self.segments[at].body).flat_map(|s| s.operands()) {
                if defined.get(&v).is_some_and(|&d| d < at) && !from_before.contains(&v) {
                    from_before.push(v);
                }
            }
            let mut before = Vec::new();
            let mut renamed: FxHashMap<ValueId, ValueId> = FxHashMap::default();
            for v in from_before {
                let dtype = self.kernel.dtype(v);
                let again = self.kernel.new_value(dtype);
                renamed.insert(v, again);
                before.push(match self.constant(v, defined[&v]) {
                    Some(op) => Stmt::Let { value: again, op },
                    None => {
                        let kernel = &mut *self.kernel;
                        let new = || kernel.new_scratch(dtype, IndexExpr::ONE, Scope::Thread);
                        load(again, *carried.entry(v).or_insert_with(new), IndexExpr::ZERO)
                    }
                });
            }
            let body = &mut self.segments[at].body;
            walk_mut(body, &mut |s| {
                for v in s.operands_mut() {
                    *v = *renamed.get(v).unwrap_or(v);
                }
            });
            body.splice(0..0, before);
        }
        for (v, memory) in carried {
            let body = &mut self.segments[defined[&v]].body;
            if let Some(at) = body.iter().position(|s| s.defined_value() == Some(v)) {
                body.insert(at + 1, store(memory, IndexExpr::ZERO, v, None));
            }
        }
    }

    /// What a value is, if it is a constant of a part.
    fn constant(&self, value: ValueId, part: usize) -> Option<Op> {
        self.segments[part].body.iter().find_map(|s| match s {
            Stmt::Let { value: v, op } if *v == value && matches!(op, Op::Const(_)) => Some(op.clone()),
            _ => None,
        })
    }

    /// Registers that several parts use live as long as the block.
    fn own_registers(&mut self) {
        let mut seen: FxHashMap<u32, usize> = FxHashMap::default();
        let mut several: FxHashSet<u32> = FxHashSet::default();
        for (at, segment) in self.segments.iter().enumerate() {
            for a in walk(&segment.body).flat_map(|s| s.accesses()) {
                if let Memory::Scratch(i) = a.memory
                    && is_register(self.kernel, a.memory)
                    && *seen.entry(i).or_insert(at) != at
                {
                    several.insert(i);
                }
            }
        }
        for i in several {
            self.kernel.scratch[i as usize].scope = Scope::Thread;
        }
    }
}

/// Whether an index is below another, first of all.
fn is_below(kernel: &mut Kernel, index: &IndexExpr, end: &IndexExpr, out: &mut Vec<Stmt>) -> ValueId {
    let wide = index.interval(kernel).hi.max(end.interval(kernel).hi) > i64::from(i32::MAX);
    let dtype = if wide { DType::I64 } else { DType::I32 };
    let (at, limit) = (kernel.new_value(dtype), kernel.new_value(dtype));
    let below = kernel.new_value(DType::Bool);
    let ops = [
        (at, Op::Index(index.clone(), dtype)),
        (limit, Op::Index(end.clone(), dtype)),
        (below, Op::Map(ScalarOp::Lt, smallvec::smallvec![at, limit])),
    ];
    out.splice(0..0, ops.map(|(value, op)| Stmt::Let { value, op }));
    below
}

/// Has statements access parameters only where a condition holds.
fn mask_params(kernel: &mut Kernel, body: &mut Vec<Stmt>, cond: ValueId) {
    let mut out = Vec::with_capacity(body.len());
    for mut s in std::mem::take(body) {
        if let Stmt::Loop { body, .. } | Stmt::If { body, .. } = &mut s {
            mask_params(kernel, body, cond);
        }
        let mask = match &mut s {
            Stmt::Store {
                memory: Memory::Param(_),
                mask,
                ..
            }
            | Stmt::Let {
                op:
                    Op::Load {
                        memory: Memory::Param(_),
                        mask,
                        ..
                    },
                ..
            } => Some(mask),
            _ => None,
        };
        if let Some(mask) = mask {
            let both = match *mask {
                None => cond,
                Some(mask) => {
                    let both = kernel.new_value(DType::Bool);
                    let op = Op::Map(ScalarOp::And, smallvec::smallvec![cond, mask]);
                    out.push(Stmt::Let { value: both, op });
                    both
                }
            };
            *mask = Some(both);
        }
        out.push(s);
    }
    *body = out;
}

/// The outermost loop of a perfect nest, and the innermost of its serial loops: what is unrolled goes through registers, and lanes stay together.
fn shared_loop(s: &Stmt) -> Option<(VarId, VarId)> {
    let of = |s: &Stmt| match s {
        Stmt::Loop { var, bind, .. } if *bind == Bind::Serial => Some(*var),
        _ => None,
    };
    let around = of(s)?;
    let (mut at, mut var) = (s, around);
    while let [inner] = at.body()
        && let Some(v) = of(inner)
    {
        (at, var) = (inner, v);
    }
    Some((around, var))
}
