//! Staging: a tile of a strided operand is first copied to scratch along the operand's own rows, then read from there.
//!
//! A transposition walks one of its two tensors across its rows. Where rows are a power of two apart, a tile of them falls
//! into a few cache sets and is evicted before it is used; the copy, whose rows are one element longer than the tile, is
//! not, and it reads whole cache lines.

use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::{Access, Bind, Kernel, Memory, Op, Scope, Stmt};

use super::directives::{Refusal, nested, rewrite};

/// Copies what the two loops load across rows to scratch before they run. `outer` walks the loaded rows element by element,
/// `inner` walks from row to row. Answers the copying loops, `[rows, elements]` per staged load.
pub(super) fn stage(kernel: &mut Kernel, outer: VarId, inner: VarId, tile: i64) -> Result<Vec<VarId>, Refusal> {
    let body = nested(kernel, outer, inner)?;
    for v in [outer, inner] {
        if kernel.extents[v.0 as usize].interval(kernel).hi > tile {
            return Err(Refusal::NotConstant(v));
        }
    }
    let across = |kernel: &Kernel, memory: &Memory, index: &IndexExpr| {
        let read = matches!(memory, Memory::Param(p) if kernel.params[*p as usize].access == Access::Read);
        let unit = index.affine_in(outer).is_some_and(|(c, _)| c.is(1));
        let strided = index.affine_in(inner).is_some_and(|(c, _)| !c.is(0) && !c.is(1));
        read && unit && strided
    };
    let loads: Vec<(Memory, IndexExpr)> = body
        .iter()
        .filter_map(|s| match s {
            Stmt::Let {
                op:
                    Op::Load {
                        memory,
                        index,
                        mask: None,
                    },
                ..
            } if across(kernel, memory, index) => Some((*memory, index.clone())),
            _ => None,
        })
        .collect();
    if loads.is_empty() {
        return Err(Refusal::NoStridedLoad(inner));
    }
    let mut made = Vec::new();
    let mut copies = Vec::new();
    let mut staged = Vec::new();
    let pitch = IndexExpr::Const(tile + 1);
    for (memory, index) in loads {
        let dtype = kernel.memory_dtype(memory);
        let scratch = kernel.new_scratch(dtype, IndexExpr::Const(tile * (tile + 1)), Scope::Cache);
        let row = kernel.new_var(kernel.extents[inner.0 as usize].clone());
        let element = kernel.new_var(kernel.extents[outer.0 as usize].clone());
        let from = index.replace_vars(&mut |v| match v {
            v if v == outer => Some(element.into()),
            v if v == inner => Some(row.into()),
            _ => None,
        });
        let value = kernel.new_value(dtype);
        let to = IndexExpr::from(row) * pitch.clone() + element.into();
        let body = vec![
            Stmt::Let {
                value,
                op: Op::Load {
                    memory,
                    index: from,
                    mask: None,
                },
            },
            Stmt::Store {
                memory: scratch,
                index: to,
                value,
                mask: None,
            },
        ];
        let elements = Stmt::Loop {
            var: element,
            bind: Bind::Serial,
            body,
        };
        copies.push(Stmt::Loop {
            var: row,
            bind: Bind::Serial,
            body: vec![elements],
        });
        staged.push((memory, index, scratch));
        made.extend([row, element]);
    }
    let at = IndexExpr::from(inner) * pitch + outer.into();
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
                && let Some((.., scratch)) = staged.iter().find(|(m, i, _)| m == memory && i == index)
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
