//! Staging: what a loop nest reads or writes goes through scratch, and is copied there or from there as a block.
//!
//! A transposition walks one of its two tensors across its rows. Where rows are a power of two apart, a tile of them falls
//! into a few cache sets and is evicted before it is used. A copy of the tile turns it in registers, reads and writes whole
//! cache lines, and leaves a nest that reads side by side. Results too large for the caches are copied behind the loop that
//! computes them, past the caches.

use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::{Access, Bind, Kernel, Memory, Op, Scope, Stmt, ValueId};

use super::directives::{Refusal, accumulations, exists, nested, rewrite, touched};

/// Bytes that rows of scratch are apart more than they are long, so that rows of a power of two do not share cache sets.
const PADDING: i64 = 64;

/// Loops over `vars` that load `value` from one place and store it to another.
fn copy(value: ValueId, vars: &[VarId], from: (Memory, IndexExpr), to: (Memory, IndexExpr)) -> Stmt {
    let mut body = vec![
        Stmt::Let {
            value,
            op: Op::Load {
                memory: from.0,
                index: from.1,
                mask: None,
            },
        },
        Stmt::Store {
            memory: to.0,
            index: to.1,
            value,
            mask: None,
        },
    ];
    for &var in vars.iter().rev() {
        body = vec![Stmt::Loop {
            var,
            bind: Bind::Serial,
            body,
        }];
    }
    body.swap_remove(0)
}

/// Copies what the two loops load across rows to scratch before they run, turned. `outer` walks the loaded rows element by
/// element, `inner` walks from row to row. Answers the outer loop of each copy.
pub(super) fn loads(kernel: &mut Kernel, vars: [VarId; 2], size: [i64; 2]) -> Result<Vec<VarId>, Refusal> {
    let [outer, inner] = vars;
    let body = nested(kernel, outer, inner)?;
    for (v, most) in vars.into_iter().zip(size) {
        if kernel.extents[v.0 as usize].interval(kernel).hi > most {
            return Err(Refusal::NotConstant(v));
        }
    }
    let across = |kernel: &Kernel, memory: &Memory, index: &IndexExpr| {
        let read = matches!(memory, Memory::Param(p) if kernel.params[*p as usize].access == Access::Read);
        let unit = index.affine_in(outer).is_some_and(|(c, _)| c.is(1));
        let strided = index.affine_in(inner).is_some_and(|(c, _)| !c.is(0) && !c.is(1));
        read && unit && strided
    };
    let mut loads: Vec<(Memory, IndexExpr)> = Vec::new();
    for s in body {
        if let Stmt::Let {
            op: Op::Load {
                memory,
                index,
                mask: None,
            },
            ..
        } = s
            && across(kernel, memory, index)
            && !loads.iter().any(|(m, i)| m == memory && i == index)
        {
            loads.push((*memory, index.clone()));
        }
    }
    if loads.is_empty() {
        return Err(Refusal::NoStridedLoad(inner));
    }
    let mut made = Vec::new();
    let mut copies = Vec::new();
    let mut staged = Vec::new();
    for (memory, index) in loads {
        let dtype = kernel.memory_dtype(memory);
        let pitch = size[1] + PADDING / dtype.bytes() as i64;
        let scratch = kernel.new_scratch(dtype, IndexExpr::Const(size[0] * pitch), Scope::Cache);
        let row = kernel.new_var(kernel.extents[outer.0 as usize].clone());
        let column = kernel.new_var(kernel.extents[inner.0 as usize].clone());
        let from = index.replace_vars(&mut |v| match v {
            v if v == outer => Some(row.into()),
            v if v == inner => Some(column.into()),
            _ => None,
        });
        let to = IndexExpr::from(row) * IndexExpr::Const(pitch) + column.into();
        let value = kernel.new_value(dtype);
        copies.push(copy(value, &[row, column], (memory, from), (scratch, to)));
        let at = IndexExpr::from(outer) * IndexExpr::Const(pitch) + inner.into();
        staged.push((memory, index, scratch, at));
        made.push(row);
    }
    rewrite(kernel, outer, &mut |_, bind, mut body| {
        let Some(Stmt::Loop { body: inside, .. }) = body.first_mut() else {
            unreachable!("checked to be nested")
        };
        for s in inside {
            if let Stmt::Let {
                op:
                    Op::Load {
                        memory,
                        index,
                        mask: None,
                    },
                ..
            } = s
                && let Some((.., scratch, at)) = staged.iter().find(|(m, i, ..)| m == memory && i == index)
            {
                *memory = *scratch;
                *index = at.clone();
            }
        }
        let mut out = std::mem::take(&mut copies);
        out.push(Stmt::Loop { var: outer, bind, body });
        out
    });
    Ok(made)
}

/// Sends what the loop stores to `param` through scratch; answers the loop that copies it from there.
pub(super) fn stores(kernel: &mut Kernel, var: VarId, param: u32, length: i64) -> Result<Vec<VarId>, Refusal> {
    let body = exists(kernel, var)?;
    let extent = kernel.extents[var.0 as usize].clone();
    if extent.interval(kernel).hi > length {
        return Err(Refusal::NotConstant(var));
    }
    let target = Memory::Param(param);
    let mut start = None;
    let mut stores = 0;
    for s in body {
        if let Stmt::Store {
            memory,
            index,
            mask: None,
            ..
        } = s
            && *memory == target
        {
            stores += 1;
            start = index.affine_in(var).filter(|(c, _)| c.is(1)).map(|(_, rest)| rest);
        }
    }
    let refused = Refusal::NotSideBySide { var, param };
    let start = start.filter(|at| !at.uses(var)).ok_or(refused.clone())?;
    // One store, and nothing else touches the parameter, inside or in a loop inside.
    let mut others = body.clone();
    others.retain(|s| !matches!(s, Stmt::Store { memory, mask: None, .. } if *memory == target));
    let mut states = Vec::new();
    accumulations(&others, &mut states);
    if stores != 1 || touched(&others, target) || states.iter().any(|(m, _)| *m == target) {
        return Err(refused);
    }
    let dtype = kernel.memory_dtype(target);
    let scratch = kernel.new_scratch(dtype, IndexExpr::Const(length), Scope::Cache);
    let element = kernel.new_var(extent);
    let value = kernel.new_value(dtype);
    let to = start + element.into();
    let copy = copy(value, &[element], (scratch, element.into()), (target, to));
    let mut copy = Some(copy);
    rewrite(kernel, var, &mut |_, bind, mut body| {
        for s in &mut body {
            if let Stmt::Store { memory, index, .. } = s
                && *memory == target
            {
                *memory = scratch;
                *index = var.into();
            }
        }
        let mut out = vec![Stmt::Loop { var, bind, body }];
        out.extend(copy.take());
        out
    });
    Ok(vec![element])
}
