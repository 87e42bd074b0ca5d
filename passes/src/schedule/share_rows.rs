//! Columns whose rows the threads of a GPU block share.
//!
//! A thread that adds up all rows of its column waits for one element after the other, and few columns are few threads. Here several threads
//! have the same columns, each of them every so many rows; what they come to is added up through shared memory, always in the same order:
//!
//! ```text
//! for t thread { for r { a[t] += x[r, t] } }
//! ```
//! becomes
//! ```text
//! for (g, t) thread { own = 0; for r in g, g + groups, .. { own += x[r, t] }; part[g, t] = own }
//! for (h, t) thread { own = 0; for g in h, h + 8, .. { own += part[g, t] }; few[h, t] = own }
//! for t thread { for h { a[t] += few[h, t] } }
//! ```

use tlc_ir::DType;
use tlc_ir::ScalarOp;
use tlc_ir::graph::Monoid;
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::visit::{Effect, walk};
use tlc_ir::kernel::{Bind, Kernel, Memory, Op, Scope, Stmt, ValueId};
use tlc_ir::target::MAX_BLOCK_THREADS;

use super::accumulators::{accumulations, collect_groups, move_states, neutral, touched};
use super::directives::{exists, loop_bind, rewrite};
use super::threads::{Share, load};
use crate::directive::DirectiveRefusal;
use crate::tree::{store, substitute_in};

/// Partial results of a column that are left for one thread.
const FEW: i64 = 8;

/// The accumulators of one sum: that of a column, what is a thread's own, and what threads came to.
struct Sum {
    monoid: Monoid,
    original: Memory,
    dtype: DType,
    own: Memory,
    part: Memory,
}

/// Gives the rows of a thread's columns to so many threads in turn; returns the thread loops.
pub(super) fn share_rows(
    kernel: &mut Kernel,
    [thread, rows]: [VarId; 2],
    lane: Option<VarId>,
    groups: i64,
) -> Result<Vec<VarId>, DirectiveRefusal> {
    let body = exists(kernel, thread)?;
    let inside = match &body[..] {
        [
            Stmt::Loop {
                var,
                bind: Bind::Serial,
                body,
            },
        ] if *var == rows => body,
        _ => return Err(DirectiveRefusal::NotNested(thread, rows)),
    };
    if loop_bind(&kernel.body, thread) != Some(Bind::Thread) {
        return Err(DirectiveRefusal::NotInBlock(thread));
    }
    let threads = kernel.extents[thread.0 as usize].interval(kernel).hi;
    let all = threads.saturating_mul(groups);
    if threads < 1 || groups < 2 || !groups.cast_unsigned().is_power_of_two() || all > MAX_BLOCK_THREADS {
        return Err(DirectiveRefusal::Threads(all));
    }
    let lanes = match lane {
        Some(l) if loop_bind(&kernel.body, l) == Some(Bind::Lanes) => kernel.extents[l.0 as usize].as_const(),
        Some(l) => return Err(DirectiveRefusal::NotInRegisters(l)),
        None => Some(1),
    };
    let lanes = lanes.ok_or(DirectiveRefusal::NotConstant(lane.unwrap_or(rows)))?;
    let found = sums_of(kernel, inside, rows, (thread, lane, lanes))?;
    let width = threads * lanes;
    if groups > FEW && FEW * width > MAX_BLOCK_THREADS {
        return Err(DirectiveRefusal::Threads(FEW * width));
    }
    let scratch = |kernel: &mut Kernel, dtype, n: i64, scope| kernel.new_scratch(dtype, IndexExpr::Const(n), scope);
    let sums: Vec<Sum> = found
        .into_iter()
        .map(|(monoid, original)| {
            let dtype = kernel.memory_dtype(original);
            Sum {
                monoid,
                original,
                dtype,
                own: scratch(kernel, dtype, lanes, Scope::Register),
                part: scratch(kernel, dtype, groups * width, Scope::Shared),
            }
        })
        .collect();
    let columns = kernel.extents[thread.0 as usize].clone();
    let u = kernel.new_var(IndexExpr::Const(all));
    let (group, column) = (
        IndexExpr::floor_div(&u.into(), &IndexExpr::Const(threads)),
        IndexExpr::modulo(&u.into(), &IndexExpr::Const(threads)),
    );
    let share = Share {
        var: rows,
        n: kernel.extents[rows.0 as usize].clone(),
        thread: group,
        threads: groups,
    };
    let mut made = vec![u];
    rewrite(kernel, thread, &mut |kernel, _, mut body| {
        let Some(Stmt::Loop { body: mut inner, .. }) = body.pop() else {
            return body;
        };
        move_states(&mut inner, &mut |m, i| {
            if let Some(s) = sums.iter().find(|s| s.original == *m) {
                (*m, *i) = (s.own, lane.map_or(IndexExpr::ZERO, IndexExpr::from));
            }
        });
        let mut of_thread = Vec::new();
        for s in &sums {
            of_thread.push(in_lanes(kernel, lanes, |kernel, lane, out| {
                let zero = constant(kernel, s, out);
                out.push(store(s.own, lane, zero, None));
            }));
        }
        of_thread.extend(share.of(kernel, inner));
        for s in &sums {
            of_thread.push(in_lanes(kernel, lanes, |kernel, lane, out| {
                let own = kernel.new_value(s.dtype);
                out.push(load(own, s.own, lane.clone()));
                let at = IndexExpr::from(u) * IndexExpr::Const(lanes) + lane;
                out.push(store(s.part, at, own, None));
            }));
        }
        substitute_in(kernel, &mut of_thread, &mut |v| (v == thread).then(|| column.clone()));
        let mut out = vec![Stmt::Loop {
            var: u,
            bind: Bind::Thread,
            body: where_below(kernel, &column, &columns, threads, of_thread),
        }];
        let mut left = groups;
        let mut parts: Vec<Memory> = sums.iter().map(|s| s.part).collect();
        if groups > FEW {
            let v = kernel.new_var(IndexExpr::Const(FEW * width));
            made.push(v);
            let mut body = Vec::new();
            for (s, part) in sums.iter().zip(&mut parts) {
                let own = scratch(kernel, s.dtype, 1, Scope::Register);
                let few = scratch(kernel, s.dtype, FEW * width, Scope::Shared);
                let zero = constant(kernel, s, &mut body);
                body.push(store(own, IndexExpr::ZERO, zero, None));
                let several = (groups / FEW, FEW * width);
                body.push(combined(kernel, s, *part, (own, IndexExpr::ZERO), several, &v.into()));
                let sum = kernel.new_value(s.dtype);
                body.push(load(sum, own, IndexExpr::ZERO));
                body.push(store(few, v.into(), sum, None));
                *part = few;
            }
            let column = IndexExpr::modulo(&v.into(), &IndexExpr::Const(width));
            let all = columns.clone() * IndexExpr::Const(lanes);
            out.push(Stmt::Loop {
                var: v,
                bind: Bind::Thread,
                body: where_below(kernel, &column, &all, width, body),
            });
            left = FEW;
        }
        let c = kernel.new_var(columns.clone() * IndexExpr::Const(lanes));
        made.push(c);
        let last = sums.iter().zip(parts);
        out.push(Stmt::Loop {
            var: c,
            bind: Bind::Thread,
            body: last
                .map(|(s, part)| combined(kernel, s, part, (s.original, c.into()), (left, width), &c.into()))
                .collect(),
        });
        out
    });
    Ok(made)
}

/// What the rows accumulate: in scratch of the block, in the element of the column that a thread, or one of its lanes, has.
fn sums_of(
    kernel: &Kernel,
    inside: &[Stmt],
    rows: VarId,
    (thread, lane, lanes): (VarId, Option<VarId>, i64),
) -> Result<Vec<(Monoid, Memory)>, DirectiveRefusal> {
    let (mut groups, mut states) = (Vec::new(), Vec::new());
    collect_groups(inside, &mut groups);
    accumulations(inside, &mut states);
    if groups.is_empty() {
        return Err(DirectiveRefusal::NoAccumulation(rows));
    }
    let column = match lane {
        Some(l) => IndexExpr::from(thread) * IndexExpr::Const(lanes) + l.into(),
        None => thread.into(),
    };
    let mut accesses = walk(inside).flat_map(|s| s.accesses());
    let stores = accesses.any(|a| a.effect == Effect::Store);
    let of_column = |(m, i): &(Memory, IndexExpr)| {
        let shared = matches!(m, Memory::Scratch(s) if kernel.scratch[*s as usize].scope == Scope::Shared);
        shared && !touched(inside, *m) && *i == column && states.iter().filter(|s| s.0 == *m).count() == 1
    };
    let single = groups
        .iter()
        .all(|(monoid, memories)| !monoid.is_arg() && memories.len() == 1);
    match single && !stores && states.iter().all(of_column) {
        true => Ok(groups.into_iter().map(|(monoid, m)| (monoid, m[0])).collect()),
        false => Err(DirectiveRefusal::Recurrence(rows)),
    }
}

/// What a sum begins with.
fn constant(kernel: &mut Kernel, sum: &Sum, out: &mut Vec<Stmt>) -> ValueId {
    let value = kernel.new_value(sum.dtype);
    let op = Op::Const(neutral(sum.monoid, sum.dtype));
    out.push(Stmt::Let { value, op });
    value
}

/// Statements for each of so many lanes.
fn in_lanes(kernel: &mut Kernel, lanes: i64, f: impl FnOnce(&mut Kernel, IndexExpr, &mut Vec<Stmt>)) -> Stmt {
    let var = kernel.new_var(IndexExpr::Const(lanes));
    let mut body = Vec::new();
    f(kernel, var.into(), &mut body);
    let bind = if lanes > 1 { Bind::Lanes } else { Bind::Unroll };
    Stmt::Loop { var, bind, body }
}

/// Statements under the condition that an index is below an extent, where that is not always `most`.
fn where_below(kernel: &mut Kernel, index: &IndexExpr, extent: &IndexExpr, most: i64, body: Vec<Stmt>) -> Vec<Stmt> {
    if extent.is(most) {
        return body;
    }
    let [at, end] = [0; 2].map(|_| kernel.new_value(DType::I32));
    let inside = kernel.new_value(DType::Bool);
    let ops = [
        (at, Op::Index(index.clone(), DType::I32)),
        (end, Op::Index(extent.clone(), DType::I32)),
        (inside, Op::Map(ScalarOp::Lt, smallvec::smallvec![at, end])),
    ];
    let mut out: Vec<Stmt> = ops.into_iter().map(|(value, op)| Stmt::Let { value, op }).collect();
    out.push(Stmt::If { cond: inside, body });
    out
}

/// `into ⊕= part[0], part[apart], ..`, so many of them, from `at` on.
fn combined(
    kernel: &mut Kernel,
    sum: &Sum,
    part: Memory,
    into: (Memory, IndexExpr),
    (count, apart): (i64, i64),
    at: &IndexExpr,
) -> Stmt {
    let var = kernel.new_var(IndexExpr::Const(count));
    let value = kernel.new_value(sum.dtype);
    let at = IndexExpr::from(var) * IndexExpr::Const(apart) + at.clone();
    let accumulate = Stmt::Accumulate {
        monoid: sum.monoid,
        state: smallvec::smallvec![into],
        values: smallvec::smallvec![value],
    };
    Stmt::Loop {
        var,
        bind: Bind::Unroll,
        body: vec![load(value, part, at), accumulate],
    }
}
