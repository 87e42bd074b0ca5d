//! Masked lanes: what whole vectors leave over of a loop runs in vectors too, of which a mask leaves out the lanes that are not there.

use smallvec::smallvec;
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::{Bind, Kernel, Memory, Op, Scope, Stmt, ValueId};
use tlc_ir::{DType, ScalarOp};

use super::directives::{enclosing_lanes, exists, loop_bind, rewrite};
use crate::directive::DirectiveRefusal;
use crate::tree::substitute_in;

/// Lanes that can be numbered in 8 bits, which fit any vector.
const MOST_LANES: i64 = 64;

/// Whether a statement can be left out for some iterations of the loop over `var`: what it does goes by the iteration alone.
fn is_maskable(kernel: &Kernel, s: &Stmt, var: VarId) -> bool {
    let registers = |m: Memory| matches!(m, Memory::Scratch(i) if kernel.scratch[i as usize].scope == Scope::Register);
    let neighbours = |index: &IndexExpr| index.affine_in(var).is_some_and(|(c, _)| c.is(1));
    match s {
        // Registers that go by the lane hold something else in each.
        Stmt::Let { op, .. } => op
            .access()
            .is_none_or(|a| !a.index.uses(var) || !registers(a.memory) && neighbours(a.index)),
        Stmt::Store { memory, index, .. } => !registers(*memory) && neighbours(index),
        Stmt::Accumulate { monoid, state, .. } => {
            !monoid.is_arg() && state.iter().all(|(m, i)| registers(*m) && !i.uses(var))
        }
        _ => false,
    }
}

/// `for v in n` becomes `for o in ceil(n / lanes) { for l in lanes }`, the last lanes of which a mask leaves out. Returns `[o, l]`.
pub(super) fn masked(kernel: &mut Kernel, var: VarId, lanes: i64) -> Result<Vec<VarId>, DirectiveRefusal> {
    let inside = exists(kernel, var)?;
    if !(2..=MOST_LANES).contains(&lanes) {
        return Err(DirectiveRefusal::Factor(lanes));
    }
    if !matches!(loop_bind(&kernel.body, var), Some(Bind::Serial)) {
        return Err(DirectiveRefusal::Recurrence(var));
    }
    if let Some(Some(outer)) = enclosing_lanes(&kernel.body, var, None) {
        return Err(DirectiveRefusal::NotNested(outer, var));
    }
    if !inside.iter().all(|s| is_maskable(kernel, s, var)) {
        return Err(DirectiveRefusal::Recurrence(var));
    }
    let n = kernel.extents[var.0 as usize].clone();
    let count = IndexExpr::Const(lanes);
    let outer = kernel.new_var(n.ceil_div(lanes).simplify(kernel));
    let lane = kernel.new_var(count.clone());
    let start = IndexExpr::from(outer) * count.clone();
    let left = IndexExpr::min(&count, &(n - start.clone())).simplify(kernel);
    rewrite(kernel, var, &mut |kernel, bind, mut body| {
        let at = start.clone() + lane.into();
        substitute_in(kernel, &mut body, &mut |v| (v == var).then(|| at.clone()));
        let number = |kernel: &mut Kernel, index: IndexExpr, out: &mut Vec<Stmt>| {
            let value = kernel.new_value(DType::I8);
            let op = Op::Index(index, DType::I8);
            out.push(Stmt::Let { value, op });
            value
        };
        let mut out = Vec::with_capacity(body.len() + 4);
        let (mine, limit) = (
            number(kernel, lane.into(), &mut out),
            number(kernel, left.clone(), &mut out),
        );
        let there = define(
            kernel,
            Op::Map(ScalarOp::Lt, smallvec![mine, limit]),
            DType::Bool,
            &mut out,
        );
        // What was conditional is so twice; the same two conditions are one.
        let mut both: Vec<(ValueId, ValueId)> = Vec::new();
        let mut with = |kernel: &mut Kernel, mask: &mut Option<ValueId>, out: &mut Vec<Stmt>| {
            let Some(own) = *mask else {
                *mask = Some(there);
                return;
            };
            let known = both.iter().find(|(m, _)| *m == own).map(|(_, b)| *b);
            *mask = Some(known.unwrap_or_else(|| {
                let op = Op::Map(ScalarOp::And, smallvec![there, own]);
                let made = define(kernel, op, DType::Bool, out);
                both.push((own, made));
                made
            }));
        };
        for mut s in body {
            match &mut s {
                Stmt::Let {
                    op: Op::Load { index, mask, .. },
                    ..
                } if index.uses(lane) => with(kernel, mask, &mut out),
                Stmt::Store { mask, .. } => with(kernel, mask, &mut out),
                Stmt::Accumulate { monoid, state, values } => {
                    for ((memory, _), value) in state.iter().zip(values.iter_mut()) {
                        let dtype = kernel.memory_dtype(*memory);
                        let identity = define(kernel, Op::Const(monoid.identity(dtype)), dtype, &mut out);
                        let op = Op::Map(ScalarOp::Select, smallvec![there, *value, identity]);
                        *value = define(kernel, op, dtype, &mut out);
                    }
                }
                _ => {}
            }
            out.push(s);
        }
        let lanes = Stmt::Loop {
            var: lane,
            bind: Bind::Serial,
            body: out,
        };
        vec![Stmt::Loop {
            var: outer,
            bind,
            body: vec![lanes],
        }]
    });
    Ok(vec![outer, lane])
}

fn define(kernel: &mut Kernel, op: Op, dtype: DType, out: &mut Vec<Stmt>) -> ValueId {
    let value = kernel.new_value(dtype);
    out.push(Stmt::Let { value, op });
    value
}
