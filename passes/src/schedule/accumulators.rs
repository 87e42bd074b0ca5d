//! Accumulators of their own for parts of a loop: one for each lane and unrolled copy, or a register instead of memory.

use crate::tile::TREE_LANES;
use tlc_ir::graph::Monoid;
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::visit::{Effect, walk, walk_mut};
use tlc_ir::kernel::{Bind, Kernel, Memory, Op, Scope, Stmt};
use tlc_ir::{DType, Scalar};

use super::directives::{enclosing_lanes, exists, loop_bind, rewrite};
use crate::directive::{DirectiveRefusal, MAX_UNROLL};
use crate::tree::{loop_body, replace_loop};

/// Accumulations below the loop over `var` whose state is scratch made outside `around` and does not vary inside it.
pub(super) fn accumulations(body: &[Stmt], out: &mut Vec<(Memory, IndexExpr)>) {
    let accesses = walk(body).flat_map(|s| s.accesses());
    for a in accesses.filter(|a| a.effect == Effect::Accumulate) {
        if !out.iter().any(|(m, i)| *m == a.memory && i == a.index) {
            out.push((a.memory, a.index.clone()));
        }
    }
}

/// Accumulations with their states, once per distinct state.
pub(super) fn collect_groups(body: &[Stmt], out: &mut Vec<(Monoid, Vec<Memory>)>) {
    for s in walk(body) {
        if let Stmt::Accumulate { monoid, state, .. } = s {
            let memories: Vec<Memory> = state.iter().map(|s| s.0).collect();
            if !out.iter().any(|(_, m)| *m == memories) {
                out.push((*monoid, memories));
            }
        }
    }
}

/// True if a statement other than an accumulation loads or stores the memory.
pub(super) fn touched(body: &[Stmt], memory: Memory) -> bool {
    let mut accesses = walk(body).flat_map(|s| s.accesses());
    accesses.any(|a| a.memory == memory && a.effect != Effect::Accumulate)
}

/// What accumulators begin with that are combined with others: nothing changes where it is combined with that, not even the sign of a zero.
pub(super) fn neutral(monoid: Monoid, dtype: DType) -> Scalar {
    match monoid {
        Monoid::Add if dtype.is_float() => Scalar::from_f64(dtype, -0.0),
        _ => monoid.identity(dtype),
    }
}

pub(super) fn rfactor(kernel: &mut Kernel, var: VarId, around: VarId) -> Result<Vec<VarId>, DirectiveRefusal> {
    let inside = exists(kernel, var)?;
    let outer_body = exists(kernel, around)?;
    if around != var && loop_body(outer_body, var).is_none() {
        return Err(DirectiveRefusal::NotNested(around, var));
    }
    let Some(copies) = kernel.extents[var.0 as usize]
        .as_const()
        .filter(|n| (1..=MAX_UNROLL).contains(n))
    else {
        return Err(DirectiveRefusal::NotConstant(var));
    };
    // What is set up and combined around it has lanes of its own.
    if let Some(Some(outer)) = enclosing_lanes(&kernel.body, around, None) {
        return Err(DirectiveRefusal::NotNested(outer, around));
    }
    let bind = loop_bind(&kernel.body, var);
    if !matches!(bind, Some(Bind::Lanes | Bind::Unroll)) {
        return Err(DirectiveRefusal::NotInRegisters(var));
    }
    let lanes = bind == Some(Bind::Lanes);
    // Vectors inside, of which a copy of an accumulator may have several.
    let vector = walk(inside).find_map(|s| match s {
        Stmt::Loop {
            var, bind: Bind::Lanes, ..
        } => kernel.extents[var.0 as usize].as_const(),
        _ => None,
    });
    let mut found = Vec::new();
    let mut groups = Vec::new();
    accumulations(inside, &mut found);
    collect_groups(inside, &mut groups);
    if groups.is_empty() {
        return Err(DirectiveRefusal::NoAccumulation(var));
    }
    // Every state must be a register array of constant length that other statements around do not touch; lanes are the
    // last index of a register, so their copies come first.
    for (m, _) in &found {
        let registers = matches!(m, Memory::Scratch(s) if kernel.scratch[*s as usize].scope == Scope::Register);
        let len = kernel.memory_len(*m).as_const();
        let fits = len.is_some_and(|n| n * copies <= 4 * MAX_UNROLL && (!lanes || n == 1));
        if !registers || !fits || touched(outer_body, *m) {
            return Err(DirectiveRefusal::Recurrence(var));
        }
    }
    // Compilers for GPUs leave out what changes nothing; a processor's registers are zero for less.
    let in_blocks = matches!(&kernel.body[..], [Stmt::Loop { bind: Bind::Block, .. }]);
    let mut made = Vec::new();
    let mut before = Vec::new();
    let mut after = Vec::new();
    let mut renamed: Vec<(Memory, Memory, i64)> = Vec::new();
    for (monoid, states) in &groups {
        let mut pairs = Vec::new();
        for (position, m) in states.iter().enumerate() {
            let len = kernel.memory_len(*m).as_const().expect("checked above");
            let dtype = kernel.memory_dtype(*m);
            let copy = kernel.new_scratch(dtype, IndexExpr::Const(len * copies), Scope::Register);
            renamed.push((*m, copy, len));
            let identity = if position == 0 {
                if in_blocks {
                    neutral(*monoid, dtype)
                } else {
                    monoid.identity(dtype)
                }
            } else {
                dtype.zero()
            };
            pairs.push((*m, copy, len, dtype, identity));
        }
        let all = pairs[0].2;
        // Copies go outside, elements of one copy inside: whole vectors combine where a copy is as long as the lanes, or several times as long.
        let len = vector.filter(|n| *n > 1 && all % n == 0).unwrap_or(all);
        let (c, e) = (
            kernel.new_var(IndexExpr::Const(copies * (all / len))),
            kernel.new_var(IndexExpr::Const(len)),
        );
        let at = IndexExpr::from(c) * IndexExpr::Const(len) + e.into();
        let mut body = Vec::new();
        for (_, copy, _, dtype, identity) in &pairs {
            let value = kernel.new_value(*dtype);
            body.push(Stmt::Let {
                value,
                op: Op::Const(*identity),
            });
            body.push(Stmt::Store {
                memory: *copy,
                index: at.clone(),
                value,
                mask: None,
            });
        }
        before.push(copy_loops(c, e, len, lanes, body));
        if lanes
            && let [(original, copy, 1, dtype, _)] = pairs[..]
            && is_tree(*monoid, dtype, copies)
        {
            after.extend(tree(kernel, *monoid, original, copy, copies));
            continue;
        }
        let (c, e) = (
            kernel.new_var(IndexExpr::Const(copies)),
            kernel.new_var(IndexExpr::Const(len)),
        );
        let part = (all > len).then(|| kernel.new_var(IndexExpr::Const(all / len)));
        let of_state = match part {
            Some(part) => IndexExpr::from(part) * IndexExpr::Const(len) + e.into(),
            None => e.into(),
        };
        let at = IndexExpr::from(c) * IndexExpr::Const(all) + of_state.clone();
        let mut body = Vec::new();
        let mut values = smallvec::SmallVec::new();
        for (_, copy, _, dtype, _) in &pairs {
            let value = kernel.new_value(*dtype);
            body.push(Stmt::Let {
                value,
                op: Op::Load {
                    memory: *copy,
                    index: at.clone(),
                    mask: None,
                },
            });
            values.push(value);
        }
        let state = pairs.iter().map(|p| (p.0, of_state.clone())).collect();
        body.push(Stmt::Accumulate {
            monoid: *monoid,
            state,
            values,
        });
        // Combining never runs over lanes of the copies: those are what is combined.
        let mut combine = Stmt::Loop {
            var: e,
            bind: if len > 1 { Bind::Lanes } else { Bind::Unroll },
            body,
        };
        for var in part.into_iter().chain([c]) {
            combine = Stmt::Loop {
                var,
                bind: Bind::Unroll,
                body: vec![combine],
            };
        }
        after.push(combine);
        made.extend([c, e]);
    }
    let mut rewritten = std::mem::take(&mut kernel.body);
    replace_loop(&mut rewritten, var, &mut |bind, mut body| {
        move_states(&mut body, &mut |m, i| {
            if let Some((_, new, len)) = renamed.iter().find(|(old, ..)| old == m) {
                *m = *new;
                *i = IndexExpr::from(var) * IndexExpr::Const(*len) + i.clone();
            }
        });
        vec![Stmt::Loop { var, bind, body }]
    });
    replace_loop(&mut rewritten, around, &mut |bind, body| {
        let mut out = std::mem::take(&mut before);
        out.push(Stmt::Loop {
            var: around,
            bind,
            body,
        });
        out.append(&mut after);
        out
    });
    kernel.body = rewritten;
    Ok(made)
}

/// Whether copies, one for each lane, are combined by halves.
fn is_tree(monoid: Monoid, dtype: DType, copies: i64) -> bool {
    let halves = copies >= TREE_LANES && copies.cast_unsigned().is_power_of_two();
    halves && !monoid.is_arg() && dtype.bits() >= 32
}

/// Combines the lanes of a vector in as many steps as they can be halved, the upper half with the lower; then what is left with the
/// accumulator.
fn tree(kernel: &mut Kernel, monoid: Monoid, original: Memory, copy: Memory, copies: i64) -> Vec<Stmt> {
    let dtype = kernel.memory_dtype(copy);
    let mut out = Vec::new();
    let (mut from, mut half) = (copy, copies / 2);
    loop {
        let lane = kernel.new_var(IndexExpr::Const(half));
        let load = |kernel: &mut Kernel, index: IndexExpr| {
            let value = kernel.new_value(dtype);
            let op = Op::Load {
                memory: from,
                index,
                mask: None,
            };
            (value, Stmt::Let { value, op })
        };
        let (low, first) = load(kernel, lane.into());
        let (high, second) = load(kernel, IndexExpr::from(lane) + IndexExpr::Const(half));
        let both = kernel.new_value(dtype);
        let op = Op::Map(monoid.combine(), smallvec::smallvec![low, high]);
        let mut body = vec![first, second, Stmt::Let { value: both, op }];
        let last = half == 1;
        if last {
            body.push(Stmt::Accumulate {
                monoid,
                state: smallvec::smallvec![(original, IndexExpr::ZERO)],
                values: smallvec::smallvec![both],
            });
        } else {
            let next = kernel.new_scratch(dtype, IndexExpr::Const(half), Scope::Register);
            body.push(Stmt::Store {
                memory: next,
                index: lane.into(),
                value: both,
                mask: None,
            });
            from = next;
        }
        out.push(Stmt::Loop {
            var: lane,
            bind: if last { Bind::Unroll } else { Bind::Lanes },
            body,
        });
        if last {
            return out;
        }
        half /= 2;
    }
}

/// Loops that initialize register copies: over lanes where the copies are one per lane.
fn copy_loops(c: VarId, e: VarId, len: i64, lanes: bool, body: Vec<Stmt>) -> Stmt {
    let (outer, inner) = match (lanes && len == 1, len > 1) {
        (true, _) => (Bind::Lanes, Bind::Unroll),
        (false, true) => (Bind::Unroll, Bind::Lanes),
        _ => (Bind::Unroll, Bind::Unroll),
    };
    if outer == Bind::Lanes {
        return Stmt::Loop {
            var: e,
            bind: inner,
            body: vec![Stmt::Loop {
                var: c,
                bind: outer,
                body,
            }],
        };
    }
    Stmt::Loop {
        var: c,
        bind: outer,
        body: vec![Stmt::Loop {
            var: e,
            bind: inner,
            body,
        }],
    }
}

/// Calls `f` on the place of every accumulator of the statements.
pub(super) fn move_states(body: &mut [Stmt], f: &mut impl FnMut(&mut Memory, &mut IndexExpr)) {
    walk_mut(body, &mut |s| {
        for a in s.accesses_mut().filter(|a| a.effect == Effect::Accumulate) {
            f(a.memory, a.index);
        }
    });
}

pub(super) fn privatize(kernel: &mut Kernel, var: VarId, lanes: Option<VarId>) -> Result<Vec<VarId>, DirectiveRefusal> {
    let inside = exists(kernel, var)?;
    let mut groups = Vec::new();
    collect_groups(inside, &mut groups);
    let mut states = Vec::new();
    accumulations(inside, &mut states);
    if groups.is_empty() {
        return Err(DirectiveRefusal::NoAccumulation(var));
    }
    // One accumulator, which stays where it is while the loop runs, becomes one register.
    // Or one of each lane, where the lanes are inside.
    let inner = crate::tree::defined_vars(inside);
    let within = lanes.filter(|l| inner.contains(l) && loop_bind(&kernel.body, *l) == Some(Bind::Lanes));
    let moves = |i: &IndexExpr| i.uses(var) || inner.iter().any(|&v| Some(v) != within && i.uses(v));
    let several = |m: &Memory| states.iter().filter(|(other, _)| other == m).count() > 1;
    let apart = |i: &IndexExpr| within.is_none_or(|l| i.uses(l));
    let fits = |(m, i): &(Memory, IndexExpr)| !touched(inside, *m) && !moves(i) && !several(m) && apart(i);
    if !states.iter().all(fits) || groups.iter().any(|g| g.1.len() > 1) {
        return Err(DirectiveRefusal::Recurrence(var));
    }
    let enclosing = enclosing_lanes(&kernel.body, var, None).flatten();
    if enclosing != if within.is_some() { None } else { lanes } {
        return Err(DirectiveRefusal::NotNested(lanes.or(enclosing).unwrap_or(var), var));
    }
    let width = match lanes {
        Some(l) => kernel.extents[l.0 as usize]
            .as_const()
            .ok_or(DirectiveRefusal::NotConstant(l))?,
        None => 1,
    };
    let at: IndexExpr = lanes.map_or(IndexExpr::ZERO, |l| l.into());
    let mut around = || within.map(|_| kernel.new_var(IndexExpr::Const(width)));
    let (first, last) = (around(), around());
    let of = |lane: Option<VarId>| lane.map_or(at.clone(), IndexExpr::from);
    let (mut before, mut after, mut renamed) = (Vec::new(), Vec::new(), Vec::new());
    for (monoid, memories) in &groups {
        let original = memories[0];
        let dtype = kernel.memory_dtype(original);
        let own = kernel.new_scratch(dtype, IndexExpr::Const(width), Scope::Register);
        let (zero, total) = (kernel.new_value(dtype), kernel.new_value(dtype));
        before.push(Stmt::Let {
            value: zero,
            op: Op::Const(monoid.identity(dtype)),
        });
        before.push(Stmt::Store {
            memory: own,
            index: of(first),
            value: zero,
            mask: None,
        });
        after.push(Stmt::Let {
            value: total,
            op: Op::Load {
                memory: own,
                index: of(last),
                mask: None,
            },
        });
        let index = states
            .iter()
            .find(|(m, _)| *m == original)
            .map(|(_, i)| i.replace_vars(&mut |v| last.filter(|_| Some(v) == within).map(IndexExpr::from)))
            .expect("collected together");
        after.push(Stmt::Accumulate {
            monoid: *monoid,
            state: smallvec::smallvec![(original, index)],
            values: smallvec::smallvec![total],
        });
        renamed.push((original, own));
    }
    for (lane, body) in [(first, &mut before), (last, &mut after)] {
        if let Some(var) = lane {
            let (bind, inside) = (Bind::Lanes, std::mem::take(body));
            body.push(Stmt::Loop {
                var,
                bind,
                body: inside,
            });
        }
    }
    rewrite(kernel, var, &mut |_, bind, mut body| {
        move_states(&mut body, &mut |m, i| {
            if let Some((_, own)) = renamed.iter().find(|(old, _)| old == m) {
                (*m, *i) = (*own, at.clone());
            }
        });
        let mut out = std::mem::take(&mut before);
        out.push(Stmt::Loop { var, bind, body });
        out.append(&mut after);
        out
    });
    Ok(vec![var])
}
