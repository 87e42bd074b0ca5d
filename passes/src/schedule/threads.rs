//! The directives that bind loops to GPU blocks and threads.
//!
//! What a GPU kernel looks like, which these directives keep:
//! - One `Block` loop is the whole body. `Thread` loops lie inside it, never in each other.
//! - A `Thread` loop's iterations touch disjoint written memory. Register and cache scratch that it writes is not used
//!   outside of it: each thread has its own.
//! - What lies outside the thread loops is executed by every thread of the block alike, so it writes registers only.
//! - Shared memory that one statement writes is separated by a `Barrier` from another statement's use.

use smallvec::SmallVec;
use tlc_ir::graph::Monoid;
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::visit::{Effect, walk};
use tlc_ir::kernel::{Bind, Collective, CollectiveKind, Kernel, Memory, Op, Scope, Stmt, ValueId};
use tlc_ir::target::{MAX_BLOCK_THREADS, WARP_THREADS};
use tlc_ir::{DType, Scalar, ScalarOp};

use super::accumulators::{accumulations, collect_groups, move_states, neutral, touched};
use super::directives::{exists, rewrite};
use crate::directive::DirectiveRefusal;
use crate::tree::{loop_body, replace_loop, store, substitute_in};

/// The whole body as the body of a loop with one iteration.
pub(super) fn enclose(kernel: &mut Kernel) -> Vec<VarId> {
    let var = kernel.new_var(IndexExpr::ONE);
    let body = std::mem::take(&mut kernel.body);
    kernel.body = vec![Stmt::Loop {
        var,
        bind: Bind::Serial,
        body,
    }];
    vec![var]
}

pub(super) fn place(kernel: &mut Kernel, scratch: u32, scope: Scope) -> Result<Vec<VarId>, DirectiveRefusal> {
    let held = kernel.scratch.get_mut(scratch as usize);
    let held = held.ok_or(DirectiveRefusal::NoScratch(scratch))?;
    if held.swizzled && scope != Scope::Shared {
        return Err(DirectiveRefusal::ScratchScope(scope));
    }
    held.scope = scope;
    Ok(Vec::new())
}

/// Whether a loop may become a thread loop.
pub(super) fn may_bind(kernel: &Kernel, var: VarId) -> Result<(), DirectiveRefusal> {
    let most = kernel.extents[var.0 as usize].interval(kernel).hi;
    if most > MAX_BLOCK_THREADS {
        return Err(DirectiveRefusal::Threads(most));
    }
    let [
        Stmt::Loop {
            bind: Bind::Block,
            body,
            ..
        },
    ] = &kernel.body[..]
    else {
        return Err(DirectiveRefusal::NotInBlock(var));
    };
    fn inside_thread(body: &[Stmt], var: VarId, inside: bool) -> Option<bool> {
        body.iter().find_map(|s| match s {
            Stmt::Loop { var: v, .. } if *v == var => Some(inside),
            s => {
                let inside = inside
                    || matches!(
                        s,
                        Stmt::Loop {
                            bind: Bind::Thread | Bind::Warp,
                            ..
                        }
                    );
                inside_thread(s.body(), var, inside)
            }
        })
    }
    let thread_or_barrier = |s: &Stmt| matches!(s, Stmt::Barrier | Stmt::Loop { bind: Bind::Thread, .. });
    match inside_thread(body, var, false) {
        Some(false) if !loop_body(body, var).is_some_and(|b| walk(b).any(thread_or_barrier)) => Ok(()),
        _ => Err(DirectiveRefusal::NotInBlock(var)),
    }
}

/// Whether the loops from `around` to `var` are perfectly nested.
fn perfect_chain(kernel: &Kernel, around: VarId, var: VarId) -> Result<(), DirectiveRefusal> {
    let mut at = around;
    while at != var {
        match &exists(kernel, at)?[..] {
            [Stmt::Loop { var: inner, .. }] => at = *inner,
            _ => return Err(DirectiveRefusal::NotNested(around, var)),
        }
    }
    Ok(())
}

/// Threads that combine the block's accumulators first; the rest each thread does by itself.
const fn combining_threads(threads: i64) -> i64 {
    match threads {
        ..=32 => threads,
        33..=256 => 16,
        _ => 32,
    }
}

/// What several loops accumulate into together: one accumulator, or an extremum and its position.
pub(super) struct Group {
    monoid: Monoid,
    /// Per state.
    parts: Vec<Part>,
}

struct Part {
    /// The accumulator, and where in it.
    original: Memory,
    index: IndexExpr,
    /// A thread's.
    own: Memory,
    /// What threads came to, for the others.
    published: Memory,
    dtype: DType,
}

impl Group {
    /// Accumulators of a thread's own for each of those that loops accumulate into, and so many elements of scratch for what they come to.
    pub(super) fn of(
        kernel: &mut Kernel,
        monoids: Monoids,
        states: &[(Memory, IndexExpr)],
        (published, scope): (i64, Scope),
    ) -> Vec<Group> {
        let mut groups = Vec::new();
        for (monoid, memories) in monoids {
            let mut parts = Vec::new();
            for original in memories {
                let dtype = kernel.memory_dtype(original);
                let index = states
                    .iter()
                    .find(|s| s.0 == original)
                    .map_or(IndexExpr::ZERO, |s| s.1.clone());
                parts.push(Part {
                    original,
                    index,
                    own: kernel.new_scratch(dtype, IndexExpr::ONE, Scope::Register),
                    published: kernel.new_scratch(dtype, IndexExpr::Const(published), scope),
                    dtype,
                });
            }
            groups.push(Group { monoid, parts });
        }
        groups
    }

    /// Has statements accumulate into the threads' own accumulators.
    pub(super) fn accumulate_apart(groups: &[Group], body: &mut [Stmt]) {
        move_states(body, &mut |m, i| {
            if let Some(p) = groups.iter().flat_map(|g| &g.parts).find(|p| p.original == *m) {
                (*m, *i) = (p.own, IndexExpr::ZERO);
            }
        });
    }

    /// Each so many threads of a warp combine what each has published in scratch of its own, so that each has what all come to.
    pub(super) fn reduce(&self, kernel: &mut Kernel, threads: i64, after: &mut Vec<Stmt>, out: &mut Vec<Stmt>) {
        let copies: Vec<Memory> = self.parts.iter().map(|p| p.published).collect();
        self.reduce_copies(kernel, (&copies, threads), after, out);
    }

    /// As [`Group::reduce`], of these copies.
    fn reduce_copies(
        &self,
        kernel: &mut Kernel,
        (copies, threads): (&[Memory], i64),
        after: &mut Vec<Stmt>,
        out: &mut Vec<Stmt>,
    ) {
        match (extremum_of(self.monoid), &self.parts[..], copies) {
            (Some(extremum), [value, position], &[best, at]) => {
                let mine = own_copy(kernel, value, after);
                out.push(reduce_part(extremum, threads, best));
                out.push(positions_of_best(
                    kernel,
                    (value.dtype, position.dtype),
                    [mine, best, at],
                ));
                out.push(reduce_part(Monoid::Min, threads, at));
            }
            _ => out.extend(copies.iter().map(|&copy| reduce_part(self.monoid, threads, copy))),
        }
    }

    /// `own = identity`.
    pub(super) fn reset(&self, kernel: &mut Kernel, out: &mut Vec<Stmt>) {
        for (position, p) in self.parts.iter().enumerate() {
            let identity = if position == 0 {
                neutral(self.monoid, p.dtype)
            } else {
                p.dtype.zero()
            };
            let value = kernel.new_value(p.dtype);
            out.push(Stmt::Let {
                value,
                op: Op::Const(identity),
            });
            out.push(Stmt::Store {
                memory: p.own,
                index: IndexExpr::ZERO,
                value,
                mask: None,
            });
        }
    }

    /// `published[at] = own`.
    pub(super) fn publish(&self, kernel: &mut Kernel, at: &IndexExpr, out: &mut Vec<Stmt>) {
        for p in &self.parts {
            let value = kernel.new_value(p.dtype);
            out.push(load(value, p.own, IndexExpr::ZERO));
            out.push(Stmt::Store {
                memory: p.published,
                index: at.clone(),
                value,
                mask: None,
            });
        }
    }

    /// `own ⊕= published[at]`, or into the original accumulator.
    pub(super) fn combine(&self, kernel: &mut Kernel, at: &IndexExpr, into_original: bool) -> Vec<Stmt> {
        let mut out = Vec::new();
        let mut values = SmallVec::new();
        let mut state = SmallVec::new();
        for p in &self.parts {
            let value = kernel.new_value(p.dtype);
            out.push(load(value, p.published, at.clone()));
            values.push(value);
            state.push(if into_original {
                (p.original, p.index.clone())
            } else {
                (p.own, IndexExpr::ZERO)
            });
        }
        out.push(Stmt::Accumulate {
            monoid: self.monoid,
            state,
            values,
        });
        out
    }
}

pub(super) fn load(value: ValueId, memory: Memory, index: IndexExpr) -> Stmt {
    Stmt::Let {
        value,
        op: Op::Load {
            memory,
            index,
            mask: None,
        },
    }
}

/// What is combined into which accumulators.
type Monoids = Vec<(Monoid, Vec<Memory>)>;
/// Accumulators, and where in them.
type States = Vec<(Memory, IndexExpr)>;

/// What the statements of a loop accumulate, into registers that nothing else there touches.
pub(super) fn accumulators(
    kernel: &Kernel,
    inside: &[Stmt],
    var: VarId,
) -> Result<(Monoids, States), DirectiveRefusal> {
    let (mut monoids, mut states) = (Vec::new(), Vec::new());
    collect_groups(inside, &mut monoids);
    accumulations(inside, &mut states);
    for (m, index) in &states {
        let register = matches!(m, Memory::Scratch(i) if kernel.scratch[*i as usize].scope == Scope::Register);
        if !register || index.has_vars() || touched(inside, *m) || states.iter().filter(|s| s.0 == *m).count() > 1 {
            return Err(DirectiveRefusal::Recurrence(var));
        }
    }
    Ok((monoids, states))
}

/// Whether the threads of a warp may combine such accumulators. Of an extremum and its position, collectives combine first the one, then the
/// other.
pub(super) fn combine_in_warps(kernel: &Kernel, monoids: &[(Monoid, Vec<Memory>)]) -> bool {
    let pair = |memories: &[Memory]| matches!(memories, [value, _] if kernel.memory_dtype(*value) != DType::Bool);
    monoids
        .iter()
        .all(|(monoid, memories)| !monoid.is_arg() || pair(memories))
}

pub(super) fn distribute(
    kernel: &mut Kernel,
    around: VarId,
    var: VarId,
    threads: i64,
) -> Result<Vec<VarId>, DirectiveRefusal> {
    if !(1..=MAX_BLOCK_THREADS).contains(&threads) || !(threads as u64).is_power_of_two() {
        return Err(DirectiveRefusal::Threads(threads));
    }
    perfect_chain(kernel, around, var)?;
    let (monoids, states) = accumulators(kernel, exists(kernel, around)?, var)?;
    let warps = (threads >= WARP_THREADS && !monoids.is_empty() && combine_in_warps(kernel, &monoids))
        .then_some(threads / WARP_THREADS);
    let published = warps.unwrap_or(threads);
    let groups = Group::of(kernel, monoids, &states, (published, Scope::Shared));
    let warp = warps.map(|n| kernel.new_var(IndexExpr::Const(n)));
    let thread = kernel.new_var(IndexExpr::Const(warps.map_or(threads, |_| WARP_THREADS)));
    let number = match warp {
        Some(warp) => IndexExpr::from(warp) * IndexExpr::Const(WARP_THREADS) + thread.into(),
        None => thread.into(),
    };
    let mut before = Vec::new();
    let mut after = Vec::new();
    for g in &groups {
        g.reset(kernel, &mut before);
    }
    let mut in_warp = Vec::new();
    let mut combining = Vec::new();
    match warp {
        Some(warp) => {
            combine_warp(kernel, &groups, warp, &mut after, &mut in_warp);
            combining.push(combine_all(kernel, &groups, published));
        }
        None => {
            for g in &groups {
                g.publish(kernel, &thread.into(), &mut after);
            }
            if !groups.is_empty() {
                combine_blocks(kernel, &groups, threads, &mut combining);
            }
        }
    }
    let n = kernel.extents[var.0 as usize].clone();
    let share = Share {
        var,
        n,
        thread: number,
        threads,
    };
    rewrite(kernel, around, &mut |kernel, bind, mut body| {
        Group::accumulate_apart(&groups, &mut body);
        let mut inner = std::mem::take(&mut before);
        if around == var {
            inner.extend(share.of(kernel, body));
        } else {
            replace_loop(&mut body, var, &mut |_, body| share.of(kernel, body));
            inner.push(Stmt::Loop {
                var: around,
                bind,
                body,
            });
        }
        inner.append(&mut after);
        let mut out = vec![Stmt::Loop {
            var: thread,
            bind: Bind::Thread,
            body: inner,
        }];
        if let Some(var) = warp {
            out.append(&mut in_warp);
            out = vec![Stmt::Loop {
                var,
                bind: Bind::Warp,
                body: out,
            }];
        }
        out.append(&mut combining);
        out
    });
    Ok(warp.into_iter().chain([thread]).collect())
}

/// The iterations of a loop that one thread runs: every `threads`-th.
pub(super) struct Share {
    pub(super) var: VarId,
    pub(super) n: IndexExpr,
    /// The number of the thread among them.
    pub(super) thread: IndexExpr,
    pub(super) threads: i64,
}

impl Share {
    /// The loop's body, made to run for the thread's iterations.
    pub(super) fn of(&self, kernel: &mut Kernel, mut body: Vec<Stmt>) -> Vec<Stmt> {
        let turns = self.n.ceil_div(self.threads).simplify(kernel);
        let whole = IndexExpr::modulo(&self.n, &IndexExpr::Const(self.threads))
            .simplify(kernel)
            .is(0);
        let once = turns.is(1);
        let turn = (!once).then(|| kernel.new_var(turns));
        let at = match turn {
            Some(k) => IndexExpr::from(k) * IndexExpr::Const(self.threads) + self.thread.clone(),
            None => self.thread.clone(),
        };
        substitute_in(kernel, &mut body, &mut |v| (v == self.var).then(|| at.clone()));
        if !whole {
            let wide = self.n.interval(kernel).hi > i32::MAX as i64 - MAX_BLOCK_THREADS;
            let dtype = if wide { DType::I64 } else { DType::I32 };
            let (i, limit) = (kernel.new_value(dtype), kernel.new_value(dtype));
            let inside = kernel.new_value(DType::Bool);
            body = vec![
                Stmt::Let {
                    value: i,
                    op: Op::Index(at, dtype),
                },
                Stmt::Let {
                    value: limit,
                    op: Op::Index(self.n.clone(), dtype),
                },
                Stmt::Let {
                    value: inside,
                    op: Op::Map(ScalarOp::Lt, SmallVec::from_slice(&[i, limit])),
                },
                Stmt::If { cond: inside, body },
            ];
        }
        match turn {
            Some(k) => vec![Stmt::Loop {
                var: k,
                bind: Bind::Serial,
                body,
            }],
            None => body,
        }
    }
}

/// The accumulators of all threads into the original one: some threads combine a share each, then every thread combines
/// their results for itself.
fn combine_blocks(kernel: &mut Kernel, groups: &[Group], threads: i64, out: &mut Vec<Stmt>) {
    let few = combining_threads(threads);
    if few < threads {
        // Registers of their own: scratch of a thread loop stays in it.
        let fresh: Vec<Group> = groups
            .iter()
            .map(|g| Group {
                monoid: g.monoid,
                parts: g
                    .parts
                    .iter()
                    .map(|p| Part {
                        own: kernel.new_scratch(p.dtype, IndexExpr::ONE, Scope::Register),
                        index: p.index.clone(),
                        ..*p
                    })
                    .collect(),
            })
            .collect();
        let (u, k) = (
            kernel.new_var(IndexExpr::Const(few)),
            kernel.new_var(IndexExpr::Const(threads / few)),
        );
        let at = IndexExpr::from(k) * IndexExpr::Const(few) + u.into();
        let mut body = Vec::new();
        fresh.iter().for_each(|g| g.reset(kernel, &mut body));
        let share = fresh.iter().flat_map(|g| g.combine(kernel, &at, false)).collect();
        body.push(Stmt::Loop {
            var: k,
            bind: Bind::Unroll,
            body: share,
        });
        fresh.iter().for_each(|g| g.publish(kernel, &u.into(), &mut body));
        out.push(Stmt::Loop {
            var: u,
            bind: Bind::Thread,
            body,
        });
    }
    out.push(combine_all(kernel, groups, few));
}

/// So many shared accumulators into the original one, by every thread for itself.
fn combine_all(kernel: &mut Kernel, groups: &[Group], count: i64) -> Stmt {
    let var = kernel.new_var(IndexExpr::Const(count));
    let body = groups
        .iter()
        .flat_map(|g| g.combine(kernel, &var.into(), true))
        .collect();
    Stmt::Loop {
        var,
        bind: Bind::Unroll,
        body,
    }
}

/// The accumulators of a warp's threads into one, which its first thread puts into shared memory: `after` is what each thread does
/// behind its share, `out` what the warp does then.
fn combine_warp(kernel: &mut Kernel, groups: &[Group], warp: VarId, after: &mut Vec<Stmt>, out: &mut Vec<Stmt>) {
    let mut copies = Vec::new();
    for g in groups {
        let own: Vec<Memory> = g.parts.iter().map(|p| own_copy(kernel, p, after)).collect();
        g.reduce_copies(kernel, (&own, WARP_THREADS), after, out);
        copies.extend(own.into_iter().zip(&g.parts));
    }
    let thread = kernel.new_var(IndexExpr::Const(WARP_THREADS));
    let mut body = Vec::new();
    let first = is_first(kernel, thread.into(), &mut body);
    for (copy, p) in copies {
        let combined = kernel.new_value(p.dtype);
        body.push(load(combined, copy, IndexExpr::ZERO));
        body.push(store(p.published, warp.into(), combined, Some(first)));
    }
    out.push(Stmt::Loop {
        var: thread,
        bind: Bind::Thread,
        body,
    });
}

/// Whether a thread of that number among those that share something is the first of them.
pub(super) fn is_first(kernel: &mut Kernel, thread: IndexExpr, out: &mut Vec<Stmt>) -> ValueId {
    let (number, one) = (kernel.new_value(DType::I32), kernel.new_value(DType::I32));
    let first = kernel.new_value(DType::Bool);
    let ops = [
        (number, Op::Index(thread, DType::I32)),
        (one, Op::Const(Scalar::from_bits(DType::I32, 1))),
        (first, Op::Map(ScalarOp::Lt, SmallVec::from_slice(&[number, one]))),
    ];
    out.extend(ops.map(|(value, op)| Stmt::Let { value, op }));
    first
}

/// What the elements of pairs are combined by, if pairs are.
fn extremum_of(monoid: Monoid) -> Option<Monoid> {
    match monoid {
        Monoid::ArgMax => Some(Monoid::Max),
        Monoid::ArgMin => Some(Monoid::Min),
        _ => None,
    }
}

/// A copy of a thread's accumulator, which a collective may act on.
fn own_copy(kernel: &mut Kernel, part: &Part, after: &mut Vec<Stmt>) -> Memory {
    let copy = kernel.new_scratch(part.dtype, IndexExpr::ONE, Scope::Thread);
    let own = kernel.new_value(part.dtype);
    after.push(load(own, part.own, IndexExpr::ZERO));
    after.push(store(copy, IndexExpr::ZERO, own, None));
    copy
}

/// Each so many threads of a warp combine an element of each.
fn reduce_part(monoid: Monoid, threads: i64, memory: Memory) -> Stmt {
    let group = match threads {
        WARP_THREADS => tlc_ir::kernel::Group::Warp,
        threads => tlc_ir::kernel::Group::Part(threads),
    };
    Stmt::Collective(Box::new(Collective {
        kind: CollectiveKind::Reduce(monoid),
        group,
        memory,
        index: IndexExpr::ZERO,
    }))
}

/// Threads whose element is not as good as the best one take a position behind all others: the first position that is left is that of
/// the first such element. All that is not a number is alike.
fn positions_of_best(kernel: &mut Kernel, dtypes: (DType, DType), [mine, best, at]: [Memory; 3]) -> Stmt {
    let (of_value, of_position) = dtypes;
    let thread = kernel.new_var(IndexExpr::Const(WARP_THREADS));
    let mut body = Vec::new();
    let mut emit = |op: Op, dtype: DType| {
        let value = kernel.new_value(dtype);
        body.push(Stmt::Let { value, op });
        value
    };
    let element = |memory| Op::Load {
        memory,
        index: IndexExpr::ZERO,
        mask: None,
    };
    let map = |op, args: &[ValueId]| Op::Map(op, SmallVec::from_slice(args));
    let (own, all) = (emit(element(mine), of_value), emit(element(best), of_value));
    let mut as_good = emit(map(ScalarOp::Eq, &[own, all]), DType::Bool);
    if of_value.is_float() {
        let of_own = emit(map(ScalarOp::Ne, &[own, own]), DType::Bool);
        let of_all = emit(map(ScalarOp::Ne, &[all, all]), DType::Bool);
        let neither = emit(map(ScalarOp::And, &[of_own, of_all]), DType::Bool);
        as_good = emit(map(ScalarOp::Or, &[as_good, neither]), DType::Bool);
    }
    let position = emit(element(at), of_position);
    let behind = emit(Op::Const(Monoid::Min.identity(of_position)), of_position);
    let position = emit(map(ScalarOp::Select, &[as_good, position, behind]), of_position);
    body.push(store(at, IndexExpr::ZERO, position, None));
    Stmt::Loop {
        var: thread,
        bind: Bind::Thread,
        body,
    }
}

pub(super) fn one_thread(kernel: &mut Kernel, block: VarId) -> Result<Vec<VarId>, DirectiveRefusal> {
    exists(kernel, block)?;
    let mut made = Vec::new();
    let mut shared_or_param = Vec::new();
    for (i, s) in kernel.scratch.iter().enumerate() {
        if s.scope != Scope::Register {
            shared_or_param.push(Memory::Scratch(i as u32));
        }
    }
    rewrite(kernel, block, &mut |kernel, bind, body| {
        let mut out: Vec<Stmt> = Vec::new();
        for s in body {
            let visible = |m: &Memory| matches!(m, Memory::Param(_)) || shared_or_param.contains(m);
            match s {
                Stmt::Store { ref memory, .. } if visible(memory) => {
                    let last_is_mine = matches!(out.last(), Some(Stmt::Loop { var, .. }) if made.contains(var));
                    if !last_is_mine {
                        let var = kernel.new_var(IndexExpr::ONE);
                        made.push(var);
                        out.push(Stmt::Loop {
                            var,
                            bind: Bind::Thread,
                            body: Vec::new(),
                        });
                    }
                    if let Some(Stmt::Loop { body, .. }) = out.last_mut() {
                        body.push(s);
                    }
                }
                s => out.push(s),
            }
        }
        vec![Stmt::Loop {
            var: block,
            bind,
            body: out,
        }]
    });
    Ok(made)
}

/// Shared memory that statements read and write.
#[derive(Default, Clone)]
struct Uses {
    read: Vec<Memory>,
    written: Vec<Memory>,
}

fn uses(kernel: &Kernel, s: &Stmt, out: &mut Uses) {
    let shared = |m: Memory| matches!(m, Memory::Scratch(i) if kernel.scratch[i as usize].scope == Scope::Shared);
    let accesses = walk(std::slice::from_ref(s)).flat_map(|s| s.accesses());
    for a in accesses.filter(|a| shared(a.memory)) {
        if a.effect != Effect::Store {
            out.read.push(a.memory);
        }
        if a.effect.writes() {
            out.written.push(a.memory);
        }
    }
}

fn with_barriers(kernel: &Kernel, body: Vec<Stmt>) -> Vec<Stmt> {
    let mut out = Vec::with_capacity(body.len());
    let mut since = Uses::default();
    for mut s in body {
        let mut now = Uses::default();
        uses(kernel, &s, &mut now);
        if let Stmt::Loop { bind, body, .. } = &mut s
            && !matches!(bind, Bind::Thread | Bind::Warp)
            && !now.written.is_empty()
        {
            // The next iteration uses what this one wrote.
            let mut inner = with_barriers(kernel, std::mem::take(body));
            inner.push(Stmt::Barrier);
            *body = inner;
        }
        let conflict = now.read.iter().any(|m| since.written.contains(m))
            || now
                .written
                .iter()
                .any(|m| since.read.contains(m) || since.written.contains(m));
        if conflict {
            out.push(Stmt::Barrier);
            since = Uses::default();
        }
        since.read.extend(now.read);
        since.written.extend(now.written);
        out.push(s);
    }
    out
}

pub(super) fn synchronize(kernel: &mut Kernel, block: VarId) -> Result<Vec<VarId>, DirectiveRefusal> {
    exists(kernel, block)?;
    rewrite(kernel, block, &mut |kernel, bind, body| {
        let body = with_barriers(kernel, body);
        vec![Stmt::Loop { var: block, bind, body }]
    });
    Ok(Vec::new())
}
