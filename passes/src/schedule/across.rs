//! Lanes across rows: several short rows at once, one in each lane.
//!
//! A row of a few elements does not fill vectors, and what is computed once a row (a logarithm, a quotient) is computed one
//! element at a time. With a row in each lane every operation is a whole vector; only loads and stores are strided. The
//! loops inside a row are unrolled, and scratch holds an element for every lane.

use tlc_ir::index::{IndexExpr, IndexNode, VarId};
use tlc_ir::kernel::visit::{Effect, walk, walk_mut};
use tlc_ir::kernel::{Bind, Kernel, Memory, Op, Scope, Stmt, ValueId};
use tlc_ir::{DType, ScalarOp};

use super::directives::{enclosing_lanes, exists, loop_bind, rewrite};
use super::peel::{Known, decided};
use crate::directive::{DirectiveRefusal, MAX_UNROLL};
use crate::tree::{clone_fresh, defined_vars, substitute_in};

fn note_scratch(s: &Stmt, out: &mut Vec<u32>) {
    for a in s.accesses() {
        if let Memory::Scratch(i) = a.memory
            && !out.contains(&i)
        {
            out.push(i);
        }
    }
}

/// Every scratch that the statements use.
pub(super) fn scratch_of(body: &[Stmt], out: &mut Vec<u32>) {
    walk(body).for_each(|s| note_scratch(s, out));
}

/// Every scratch that the statements outside the loop over `var` use.
pub(super) fn scratch_outside(body: &[Stmt], var: VarId, out: &mut Vec<u32>) {
    for s in body {
        if !matches!(s, Stmt::Loop { var: v, .. } if *v == var) {
            note_scratch(s, out);
            scratch_outside(s.body(), var, out);
        }
    }
}

/// Whether two iterations of `var` never store to one element: the stride is wider than what the loops inside span.
fn apart(kernel: &Kernel, index: &IndexExpr, var: VarId, inside: &[VarId]) -> bool {
    let Some((stride, rest)) = index.affine_in(var) else {
        return false;
    };
    let Some(stride) = stride.as_const() else {
        return false;
    };
    // What is the same in both iterations does not count.
    let (terms, _) = rest.linear();
    let mut span = 0i64;
    for (term, k) in terms {
        let mut moves = false;
        term.visit_atoms(&mut |a| moves |= matches!(a, IndexNode::Var(v) if inside.contains(v)));
        if moves {
            let i = term.interval(kernel);
            let width = i.hi.checked_sub(i.lo).and_then(|w| w.checked_mul(k.saturating_abs()));
            let Some(total) = width.and_then(|w| span.checked_add(w)) else {
                return false;
            };
            span = total;
        }
    }
    let stride = stride.saturating_abs();
    if stride > span {
        return true;
    }
    // Or the loop inside strides over all iterations.
    let mut moving = rest.linear().0.into_iter().filter(|(term, _)| {
        let mut moves = false;
        term.visit_atoms(&mut |a| moves |= matches!(a, IndexNode::Var(v) if inside.contains(v)));
        moves
    });
    let reach = (kernel.extents[var.0 as usize].interval(kernel).hi - 1).max(0);
    match (moving.next(), moving.next()) {
        (Some((term, k)), None) => {
            term.as_var().is_some() && stride > 0 && k.saturating_abs() > stride.saturating_mul(reach)
        }
        _ => false,
    }
}

fn check(
    kernel: &Kernel,
    body: &[Stmt],
    var: VarId,
    inside: &[VarId],
    staged: &[Memory],
    written: &mut Vec<Memory>,
) -> Result<(), DirectiveRefusal> {
    for s in body {
        match s {
            Stmt::Store { mask: Some(_), .. }
            | Stmt::If { .. }
            | Stmt::Clamp { .. }
            | Stmt::Contract(_)
            | Stmt::Collective(_)
            | Stmt::FoldRows(_)
            | Stmt::Each { .. }
            | Stmt::CopyAsync(_)
            | Stmt::Prefetch { .. }
            | Stmt::Commit
            | Stmt::Wait(_)
            | Stmt::Barrier => {
                return Err(DirectiveRefusal::Recurrence(var));
            }
            Stmt::Let { .. } => {}
            Stmt::Store { memory, index, .. } => {
                if matches!(memory, Memory::Param(_)) || staged.contains(memory) {
                    if !apart(kernel, index, var, inside) {
                        return Err(DirectiveRefusal::Recurrence(var));
                    }
                    written.push(*memory);
                }
            }
            Stmt::Accumulate { state, .. } => {
                if state
                    .iter()
                    .any(|s| matches!(s.0, Memory::Param(_)) || staged.contains(&s.0))
                {
                    return Err(DirectiveRefusal::Recurrence(var));
                }
            }
            Stmt::Loop { var: v, bind, body } => {
                let n = kernel.extents[v.0 as usize].as_const();
                if !matches!(bind, Bind::Serial | Bind::Unroll) || n.is_none_or(|n| !(0..=MAX_UNROLL).contains(&n)) {
                    return Err(DirectiveRefusal::NotConstant(*v));
                }
                check(kernel, body, var, inside, staged, written)?;
            }
        }
    }
    Ok(())
}

pub(super) fn loads_any(body: &[Stmt], memories: &[Memory]) -> bool {
    let mut loads = walk(body)
        .flat_map(|s| s.accesses())
        .filter(|a| a.effect == Effect::Load);
    loads.any(|a| memories.contains(&a.memory))
}

/// Every scratch that the statements store to.
fn stored_scratch(body: &[Stmt], out: &mut Vec<u32>) {
    let writes = walk(body).flat_map(|s| s.accesses()).filter(|a| a.effect.writes());
    out.extend(writes.filter_map(|a| match a.memory {
        Memory::Scratch(i) => Some(i),
        Memory::Param(_) => None,
    }));
}

/// Elements that a scratch in registers must have for a loop of `n` iterations to read it in whole vectors of lanes.
fn read_by_lanes(
    kernel: &Kernel,
    body: &[Stmt],
    (var, n, lanes): (VarId, &IndexExpr, i64),
    scratch: u32,
) -> Option<i64> {
    let count = n.as_const()?;
    let whole = (count + lanes - 1) / lanes * lanes;
    let mut length = kernel.scratch[scratch as usize].len.as_const()?;
    for a in walk(body).flat_map(|s| s.accesses()) {
        if a.memory == Memory::Scratch(scratch) {
            let (stride, _) = a.index.affine_in(var)?;
            let stride = stride.as_const().filter(|s| *s >= 0)?;
            length = length.max(a.index.interval(kernel).hi + 1 + stride * (whole - count));
        }
    }
    (length <= 4 * MAX_UNROLL * lanes).then_some(length)
}

/// Runs `lanes` iterations of `var` at once, then what is left one by one, or in lanes that a mask leaves out where they have none.
/// Returns `[o, l, t]` as a split does, without `o` and `l` where no vector is whole.
pub(super) fn across(
    kernel: &mut Kernel,
    var: VarId,
    lanes: i64,
    masked: bool,
) -> Result<Vec<VarId>, DirectiveRefusal> {
    let body = exists(kernel, var)?;
    if !(2..=MAX_UNROLL).contains(&lanes) {
        return Err(DirectiveRefusal::Factor(lanes));
    }
    if !matches!(loop_bind(&kernel.body, var), Some(Bind::Serial)) {
        return Err(DirectiveRefusal::Recurrence(var));
    }
    if let Some(Some(outer)) = enclosing_lanes(&kernel.body, var, None) {
        return Err(DirectiveRefusal::NotNested(outer, var));
    }
    let n = kernel.extents[var.0 as usize].clone();
    if !masked && n.interval(kernel).hi < lanes {
        return Err(DirectiveRefusal::Factor(lanes));
    }
    let (mut inner, mut outer) = (Vec::new(), Vec::new());
    scratch_of(body, &mut inner);
    scratch_outside(&kernel.body, var, &mut outer);
    // Registers that the loop only reads hold what was computed before it.
    let mut stored = Vec::new();
    stored_scratch(body, &mut stored);
    let is_read =
        |i: &u32| outer.contains(i) && kernel.scratch[*i as usize].scope == Scope::Register && !stored.contains(i);
    let (read, inner): (Vec<u32>, Vec<u32>) = inner.into_iter().partition(|i| masked && is_read(i));
    let lengths = read.iter().map(|&i| read_by_lanes(kernel, body, (var, &n, lanes), i));
    let lengths: Vec<i64> = lengths
        .collect::<Option<_>>()
        .ok_or(DirectiveRefusal::Recurrence(var))?;
    // Scratch in memory that is copied from and to outside of the loop is shared by its iterations, as parameters are.
    let (shared, inner): (Vec<u32>, Vec<u32>) = inner
        .into_iter()
        .partition(|i| outer.contains(i) && kernel.scratch[*i as usize].scope == Scope::Cache);
    let staged: Vec<Memory> = shared.into_iter().map(Memory::Scratch).collect();
    let mut written = Vec::new();
    check(kernel, body, var, &defined_vars(body), &staged, &mut written)?;
    if written.is_empty() || loads_any(body, &written) {
        return Err(DirectiveRefusal::Recurrence(var));
    }
    for &i in &inner {
        let s = &kernel.scratch[i as usize];
        let small = s
            .len
            .as_const()
            .is_some_and(|n| s.scope != Scope::Register || n * lanes <= 4 * MAX_UNROLL);
        // Lanes that a mask leaves out have registers, but no elements of scratch in memory that is as long as the loop.
        let every_lane_has_it = !masked || s.scope == Scope::Register;
        if s.scope == Scope::Shared || !small || outer.contains(&i) || !every_lane_has_it {
            return Err(DirectiveRefusal::Recurrence(var));
        }
    }
    // Lanes that a mask leaves out read of such registers too, where nothing was written.
    for (&i, &length) in read.iter().zip(&lengths) {
        kernel.scratch[i as usize].len = IndexExpr::Const(length);
    }
    let k = IndexExpr::Const(lanes);
    let whole = IndexExpr::floor_div(&n, &k).simplify(kernel);
    let left = IndexExpr::modulo(&n, &k).simplify(kernel);
    let constants = Known::constants(kernel);
    let mut made = Vec::new();
    rewrite(kernel, var, &mut |kernel, _, body| {
        let tail = (!left.is(0)).then(|| clone_fresh(kernel, &body));
        let mut out = Vec::new();
        if !whole.is(0) {
            let o = kernel.new_var(whole.clone());
            let (l, main, _) = in_lanes(kernel, var, body, &inner, (&(IndexExpr::from(o) * k.clone()), &k));
            made.extend([o, l]);
            out.push(Stmt::Loop {
                var: o,
                bind: Bind::Serial,
                body: vec![Stmt::Loop {
                    var: l,
                    bind: Bind::Lanes,
                    body: main,
                }],
            });
        }
        let Some(mut tail) = tail else { return out };
        let first = whole.clone() * k.clone();
        if masked {
            let (l, rest, own) = in_lanes(kernel, var, tail, &inner, (&first, &k));
            let mut rest = decided(kernel, rest, constants.clone());
            let unmasked: Vec<Memory> = own
                .into_iter()
                .chain(read.iter().map(|&i| Memory::Scratch(i)))
                .collect();
            let has = mask_memory(kernel, &mut rest, (l, &left), &unmasked);
            rest.splice(0..0, has);
            made.push(l);
            let tail = Stmt::Loop {
                var: l,
                bind: Bind::Lanes,
                body: rest,
            };
            // What all lanes share is loaded without a mask, so there must be a lane that has an iteration.
            let some = IndexExpr::min(&left, &IndexExpr::ONE).simplify(kernel);
            out.push(match some.is(1) {
                true => tail,
                false => Stmt::Loop {
                    var: kernel.new_var(some),
                    bind: Bind::Serial,
                    body: vec![tail],
                },
            });
        } else {
            let t = kernel.new_var(left.clone());
            let at = first + t.into();
            substitute_in(kernel, &mut tail, &mut |v| (v == var).then(|| at.clone()));
            out.push(Stmt::Loop {
                var: t,
                bind: Bind::Serial,
                body: tail,
            });
            made.push(t);
        }
        out
    });
    Ok(made)
}

/// The iterations of `var` from `first` on in `lanes` lanes, each with its own part of these scratch memories. Returns the loop's
/// variable, its body, and what the lanes' own scratch is then.
fn in_lanes(
    kernel: &mut Kernel,
    var: VarId,
    mut body: Vec<Stmt>,
    own: &[u32],
    (first, lanes): (&IndexExpr, &IndexExpr),
) -> (VarId, Vec<Stmt>, Vec<Memory>) {
    let l = kernel.new_var(lanes.clone());
    let at = first.clone() + l.into();
    substitute_in(kernel, &mut body, &mut |v| (v == var).then(|| at.clone()));
    let wide: Vec<(Memory, Memory)> = own
        .iter()
        .map(|&i| {
            let s = kernel.scratch[i as usize].clone();
            let len = s.len * lanes.clone();
            (Memory::Scratch(i), kernel.new_scratch(s.dtype, len, s.scope))
        })
        .collect();
    widen(&mut body, &wide, &|e| e.clone() * lanes.clone() + l.into());
    (l, body, wide.into_iter().map(|w| w.1).collect())
}

/// Keeps lanes from `left` on away from memory that is no lane's own. Returns the statements before, which say what lanes there are.
pub(super) fn mask_memory(
    kernel: &mut Kernel,
    body: &mut Vec<Stmt>,
    (lane, left): (VarId, &IndexExpr),
    own: &[Memory],
) -> Vec<Stmt> {
    // Lanes are few, so that any number of 32 bits will do for them; what is left is less.
    let (at, end) = (kernel.new_value(DType::I32), kernel.new_value(DType::I32));
    let has = kernel.new_value(DType::Bool);
    let index = |e: IndexExpr| Op::Index(e, DType::I32);
    let statements = vec![
        Stmt::Let {
            value: at,
            op: index(lane.into()),
        },
        Stmt::Let {
            value: end,
            op: index(left.clone()),
        },
        Stmt::Let {
            value: has,
            op: Op::Map(ScalarOp::Lt, smallvec::smallvec![at, end]),
        },
    ];
    mask_accesses(kernel, body, (has, lane), own);
    statements
}

fn mask_accesses(kernel: &mut Kernel, body: &mut Vec<Stmt>, (has, lane): (ValueId, VarId), own: &[Memory]) {
    let mut out = Vec::with_capacity(body.len());
    for mut s in std::mem::take(body) {
        if let Some(inside) = s.body_mut() {
            mask_accesses(kernel, inside, (has, lane), own);
        }
        let own = |memory: &Memory| own.contains(memory);
        let mask = match &mut s {
            Stmt::Let {
                op: Op::Load { memory, index, mask },
                ..
            } if !own(memory) && index.uses(lane) => Some(mask),
            Stmt::Store {
                memory, index, mask, ..
            } if !own(memory) && index.uses(lane) => Some(mask),
            _ => None,
        };
        if let Some(mask) = mask {
            *mask = Some(match *mask {
                None => has,
                Some(before) => {
                    let both = kernel.new_value(DType::Bool);
                    out.push(Stmt::Let {
                        value: both,
                        op: Op::Map(ScalarOp::And, smallvec::smallvec![before, has]),
                    });
                    both
                }
            });
        }
        out.push(s);
    }
    *body = out;
}

/// Unrolls the loops, and gives every lane its own part of each scratch.
pub(super) fn widen(body: &mut [Stmt], wide: &[(Memory, Memory)], at: &dyn Fn(&IndexExpr) -> IndexExpr) {
    walk_mut(body, &mut |s| {
        for a in s.accesses_mut() {
            if let Some((_, new)) = wide.iter().find(|w| w.0 == *a.memory) {
                (*a.memory, *a.index) = (*new, at(a.index));
            }
        }
        if let Stmt::Loop { bind, .. } = s {
            *bind = Bind::Unroll;
        }
    });
}
