//! Packing: what a nest computes again and again is computed before it, into scratch that the nest loads.
//!
//! An operand of a product differs in two of three loops. Whatever it takes to compute it (a conversion, a scale, an index from
//! data) is done once for each of its elements, and they lie side by side in the order in which the nest wants them.

use rustc_hash::FxHashSet;
use smallvec::smallvec;
use tlc_ir::index::{IndexExpr, IndexNode, VarId};
use tlc_ir::kernel::verify::nonnegative;
use tlc_ir::kernel::visit::walk;
use tlc_ir::kernel::{Bind, Kernel, Memory, Op, Scope, Stmt, ValueId};
use tlc_ir::{DType, ScalarOp};

use super::directives::{enclosing_lanes, exists, rewrite};
use super::tile_sum::nest_of;
use crate::directive::{DirectiveRefusal, MAX_UNROLL};
use crate::tree::{clone_fresh, substitute_in, without_unused};

/// The most elements that are packed where room is made for all that there may be.
pub(super) const MOST_ELEMENTS: i64 = 1 << 16;

/// A perfect nest of loops that run one after another.
struct Nest<'k> {
    vars: Vec<VarId>,
    /// Those of them that are unrolled.
    unrolled: Vec<VarId>,
    body: &'k [Stmt],
}

fn nest_from(kernel: &Kernel, var: VarId) -> Result<Nest<'_>, DirectiveRefusal> {
    let mut at = var;
    let (mut vars, mut unrolled) = (Vec::new(), Vec::new());
    loop {
        let body = exists(kernel, at)?;
        match super::directives::loop_bind(&kernel.body, at) {
            Some(Bind::Serial) => {}
            Some(Bind::Unroll) => unrolled.push(at),
            _ => return Err(DirectiveRefusal::Recurrence(at)),
        }
        vars.push(at);
        match &body[..] {
            [Stmt::Loop { var, .. }] => at = *var,
            _ => return Ok(Nest { vars, unrolled, body }),
        }
    }
}

/// The statements that a value is made of, and the variables that they use.
pub(super) fn cone(body: &[Stmt], value: ValueId) -> (Vec<Stmt>, FxHashSet<VarId>) {
    let mut vars: FxHashSet<VarId> = FxHashSet::default();
    let mut values: FxHashSet<ValueId> = FxHashSet::default();
    values.insert(value);
    let mut out = Vec::new();
    for s in body.iter().rev() {
        let needed = match s {
            Stmt::Clamp { var, .. } => vars.contains(var),
            s => s.defined_value().is_some_and(|v| values.contains(&v)),
        };
        if !needed {
            continue;
        }
        values.extend(s.operands());
        for e in s.indices() {
            e.visit_atoms(&mut |a| {
                if let IndexNode::Var(v) = a {
                    vars.insert(*v);
                }
            });
        }
        out.push(s.clone());
    }
    out.reverse();
    (out, vars)
}

/// The bindings of the loops around the loop over `var`.
fn around(body: &[Stmt], var: VarId, out: &mut Vec<Bind>) -> bool {
    body.iter().any(|s| match s {
        Stmt::Loop { var: v, .. } if *v == var => true,
        Stmt::Loop { bind, body, .. } => {
            out.push(*bind);
            let found = around(body, var, out);
            if !found {
                out.pop();
            }
            found
        }
        s => around(s.body(), var, out),
    })
}

/// Whether scratch of a scope may be filled before a nest and read in it; `unrolled` says whether the loops that it is indexed
/// by are.
pub(super) fn fits(kernel: &Kernel, var: VarId, scope: Scope, len: &IndexExpr, unrolled: bool) -> bool {
    let mut binds = Vec::new();
    around(&kernel.body, var, &mut binds);
    let (block, thread) = (binds.contains(&Bind::Block), binds.contains(&Bind::Thread));
    let constant = len.as_const();
    match scope {
        Scope::Cache => true,
        Scope::Register => unrolled && constant.is_some_and(|n| n <= 4 * MAX_UNROLL),
        Scope::Shared => block && !thread && !binds.contains(&Bind::Warp) && constant.is_some(),
        Scope::Thread => thread && constant.is_some(),
        Scope::WarpFragment | Scope::BlockFragment => false,
    }
}

/// Has the statements read nothing where an index is not below its limit; returns what becomes of the values, which are zero there.
pub(super) fn masked<const N: usize>(
    kernel: &mut Kernel,
    body: &mut Vec<Stmt>,
    limits: &[(IndexExpr, IndexExpr)],
    values: [ValueId; N],
) -> [ValueId; N] {
    let mut tests = Vec::new();
    let mut all: Option<ValueId> = None;
    let define = |kernel: &mut Kernel, out: &mut Vec<Stmt>, dtype: DType, op: Op| {
        let value = kernel.new_value(dtype);
        out.push(Stmt::Let { value, op });
        value
    };
    for (at, limit) in limits {
        let [at, limit] = [at.clone(), limit.clone()]
            .map(|e: IndexExpr| define(kernel, &mut tests, DType::I64, Op::Index(e, DType::I64)));
        let inside = define(
            kernel,
            &mut tests,
            DType::Bool,
            Op::Map(ScalarOp::Lt, smallvec![at, limit]),
        );
        all = Some(match all {
            Some(before) => define(
                kernel,
                &mut tests,
                DType::Bool,
                Op::Map(ScalarOp::And, smallvec![before, inside]),
            ),
            None => inside,
        });
    }
    let Some(all) = all else { return values };
    let mut out = tests;
    for mut s in std::mem::take(body) {
        if let Stmt::Let {
            op: Op::Load { mask, .. },
            ..
        } = &mut s
        {
            *mask = Some(match *mask {
                Some(before) => {
                    let op = Op::Map(ScalarOp::And, smallvec![before, all]);
                    define(kernel, &mut out, DType::Bool, op)
                }
                None => all,
            });
        }
        out.push(s);
    }
    let padded = values.map(|value| {
        // What is not read is zero by itself.
        let loaded = |s: &Stmt| matches!(s, Stmt::Let { value: v, op: Op::Load { .. } } if *v == value);
        if out.iter().any(loaded) {
            return value;
        }
        let dtype = kernel.dtype(value);
        let zero = define(kernel, &mut out, dtype, Op::Const(dtype.zero()));
        let op = Op::Map(ScalarOp::Select, smallvec![all, value, zero]);
        define(kernel, &mut out, dtype, op)
    });
    *body = out;
    padded
}

/// The load that a value is if all that is done with what was loaded is to put zeros where it was not read: they are there already.
fn without_padding(body: &[Stmt], value: ValueId) -> ValueId {
    let op = |v: ValueId| {
        body.iter().find_map(|s| match s {
            Stmt::Let { value, op } if *value == v => Some(op),
            _ => None,
        })
    };
    let zero = |v: ValueId| matches!(op(v), Some(Op::Const(c)) if c.bits() == c.dtype().zero().bits());
    let Some(Op::Map(ScalarOp::Select, of)) = op(value) else {
        return value;
    };
    let loaded = without_padding(body, of[1]);
    match op(loaded) {
        Some(Op::Load { mask: Some(mask), .. }) if zero(of[2]) && implies(&op, *mask, of[0]) => loaded,
        _ => value,
    }
}

/// Whether a condition holds wherever another does, because the one is a part of the other.
fn implies<'b>(op: &impl Fn(ValueId) -> Option<&'b Op>, holds: ValueId, asked: ValueId) -> bool {
    let parts = |v: ValueId| match op(v) {
        Some(Op::Map(ScalarOp::And, of)) => Some([of[0], of[1]]),
        _ => None,
    };
    holds == asked
        || parts(asked).is_some_and(|of| of.into_iter().all(|v| implies(op, holds, v)))
        || parts(holds).is_some_and(|of| of.into_iter().any(|v| implies(op, v, asked)))
}

/// Computes a value of the nest of the loop over `var` before it; returns the loops that do.
pub(super) fn pack(
    kernel: &mut Kernel,
    var: VarId,
    value: ValueId,
    scope: Scope,
    [turned, padded]: [bool; 2],
) -> Result<Vec<VarId>, DirectiveRefusal> {
    let nest = nest_from(kernel, var)?;
    if let Some(Some(lanes)) = enclosing_lanes(&kernel.body, var, None) {
        return Err(DirectiveRefusal::NotNested(lanes, var));
    }
    let defined = |s: &Stmt| matches!(s, Stmt::Let { value: v, .. } if *v == value);
    if !nest.body.iter().any(defined) {
        return Err(DirectiveRefusal::NoValue(var, value));
    }
    // What a GPU's threads copy to shared memory they copy beside what they compute only if nothing is computed of it.
    let packed = match scope {
        Scope::Shared => without_padding(nest.body, value),
        _ => value,
    };
    let (cone, used) = cone(nest.body, packed);
    // It is computed before the nest writes anything.
    let accesses = walk(nest.body).flat_map(|s| s.accesses());
    let written: Vec<Memory> = accesses.filter(|a| a.effect.writes()).map(|a| a.memory).collect();
    if cone
        .iter()
        .flat_map(|s| s.accesses())
        .any(|a| written.contains(&a.memory))
    {
        return Err(DirectiveRefusal::Recurrence(var));
    }
    // Loops that are unrolled stay so: registers are indexed by them.
    let mut vars: Vec<VarId> = nest.vars.iter().copied().filter(|v| used.contains(v)).collect();
    let unrolled: Vec<VarId> = nest.unrolled.iter().copied().filter(|v| used.contains(v)).collect();
    let extent = |v: &VarId| kernel.extents[v.0 as usize].clone();
    let mut certain = true;
    for v in nest.vars.iter().filter(|v| !vars.contains(v)) {
        certain &= nonnegative(&(extent(v) - IndexExpr::ONE), kernel);
        let dependent = |u: &&VarId| extent(u).uses(*v);
        if let Some(u) = vars.iter().chain(&used).find(dependent) {
            return Err(DirectiveRefusal::DependentExtent(*u, *v));
        }
    }
    // Where a loop that it does not differ in is empty, nothing has been read of it so far.
    for s in &cone {
        for a in s.accesses().filter(|a| a.mask.is_none() && !certain) {
            let above = kernel.memory_len(a.memory).clone() - a.index.clone() - IndexExpr::ONE;
            if !nonnegative(a.index, kernel) || !nonnegative(&above, kernel) {
                return Err(DirectiveRefusal::MayBeOutside(value));
            }
        }
    }
    if turned {
        let dependent = |v: &VarId| vars.iter().find(|u| extent(v).uses(**u)).map(|u| (*v, *u));
        if let Some((v, u)) = vars.iter().find_map(dependent) {
            return Err(DirectiveRefusal::DependentExtent(v, u));
        }
        vars.reverse();
    }
    // Sides as long as their loops, or as the loops are at most.
    let (mut len, mut most) = (IndexExpr::ONE, Some(1i64));
    let (mut strides, mut sides) = (Vec::new(), Vec::new());
    for v in vars.iter().rev() {
        let e = extent(v);
        let hi = e.interval(kernel).hi.max(0);
        let side = match e.has_vars() || padded || scope != Scope::Cache {
            true if hi <= MOST_ELEMENTS => IndexExpr::Const(hi),
            true => {
                return Err(DirectiveRefusal::TooLong {
                    var: *v,
                    most: MOST_ELEMENTS,
                });
            }
            false => e,
        };
        strides.push((*v, len.clone()));
        most = most.and_then(|n| n.checked_mul(side.as_const().unwrap_or(1)));
        len = len * side.clone();
        sides.insert(0, side);
    }
    if most.is_none_or(|n| n > MOST_ELEMENTS) {
        return Err(DirectiveRefusal::TooLong {
            var,
            most: MOST_ELEMENTS,
        });
    }
    if !fits(kernel, var, scope, &len, unrolled.len() == vars.len()) {
        return Err(DirectiveRefusal::ScratchScope(scope));
    }
    let place = |e: IndexExpr, (v, stride): &(VarId, IndexExpr)| e + stride.clone() * (*v).into();
    let at = strides.iter().fold(IndexExpr::ZERO, place);
    let shorter = vars.iter().zip(&sides).filter(|(v, side)| extent(v) != **side);
    let shorter: Vec<(IndexExpr, IndexExpr)> = shorter.map(|(v, _)| ((*v).into(), extent(v))).collect();
    let memory = kernel.new_scratch(kernel.dtype(value), len, scope);
    let mut filling = cone;
    let mut stored = packed;
    if padded {
        [stored] = masked(kernel, &mut filling, &shorter, [packed]);
    }
    filling.push(Stmt::Store {
        memory,
        index: at.clone(),
        value: stored,
        mask: None,
    });
    let mut filling = clone_fresh(kernel, &filling);
    let mut own = Vec::new();
    for (v, side) in vars.iter().zip(sides) {
        let length = if padded {
            side
        } else {
            kernel.extents[v.0 as usize].clone()
        };
        own.push(kernel.new_var(length));
    }
    let renamed = |v: VarId| vars.iter().position(|u| *u == v).map(|i| IndexExpr::from(own[i]));
    for v in &own {
        let extent = kernel.extents[v.0 as usize].replace_vars(&mut |v| renamed(v));
        kernel.extents[v.0 as usize] = extent;
    }
    substitute_in(kernel, &mut filling, &mut |v| renamed(v));
    for (new, old) in own.iter().zip(&vars).rev() {
        let bind = if unrolled.contains(old) {
            Bind::Unroll
        } else {
            Bind::Serial
        };
        filling = nest_of(&[*new], bind, filling);
    }
    rewrite(kernel, var, &mut |_, bind, mut body| {
        load_instead(&mut body, value, memory, &at);
        let mut out = std::mem::take(&mut filling);
        out.push(Stmt::Loop { var, bind, body });
        out
    });
    Ok(own)
}

/// Makes the value a load in the innermost of the loops.
fn load_instead(body: &mut Vec<Stmt>, value: ValueId, memory: Memory, at: &IndexExpr) {
    if let [Stmt::Loop { body, .. }] = &mut body[..] {
        return load_instead(body, value, memory, at);
    }
    for s in body.iter_mut() {
        if let Stmt::Let { value: v, op } = s
            && *v == value
        {
            let (index, mask) = (at.clone(), None);
            *op = Op::Load { memory, index, mask };
        }
    }
    *body = without_unused(std::mem::take(body));
}
