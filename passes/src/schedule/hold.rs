//! Sums in memory, of which a tile is held in registers while it is added to.
//!
//! ```text
//! for m { for n { for k { t[m, n] += b } } }    becomes    for m { for n { r[m, n] = t[m, n] } }
//!                                                          for m { for n { for k { r[m, n] += b } } }
//!                                                          for m { for n { t[m, n] = r[m, n] } }
//! ```
//! A sum that is cut into blocks, each for all of a large tile before the next one, is then in memory between blocks alone. The same
//! numbers are added in the same order.

use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::visit::{walk, walk_mut};
use tlc_ir::kernel::{Bind, Kernel, Memory, Op, Scope, Stmt};

use super::contract::is_matrix;
use super::directives::rewrite;
use super::phases::Phase;
use super::tile_sum::{element, nest_of, tile_body, tile_elements};
use crate::directive::{DirectiveRefusal, MAX_UNROLL};
use crate::tree::{defined_vars, substitute_in};

/// The scratch that the nest adds to, and where.
fn held(kernel: &Kernel, body: &[Stmt], sum: VarId) -> Result<(u32, IndexExpr), DirectiveRefusal> {
    let refused = || DirectiveRefusal::NotASum(sum);
    let [nest] = body else { return Err(refused()) };
    let phase = Phase::of(nest)
        .filter(|p| p.vars.first() == Some(&sum))
        .ok_or_else(refused)?;
    let (last, computed) = phase.body.split_last().ok_or_else(refused)?;
    let Stmt::Accumulate { state, .. } = last else {
        return Err(refused());
    };
    let [(Memory::Scratch(scratch), index)] = &state[..] else {
        return Err(refused());
    };
    let alone = computed.iter().all(|s| {
        matches!(s, Stmt::Let { .. } | Stmt::Clamp { .. })
            && s.accesses().all(|a| a.memory != Memory::Scratch(*scratch))
    });
    let stays = |v: &VarId| !index.uses(*v);
    let fixed = phase.vars.iter().all(stays) && defined_vars(computed).iter().all(stays);
    let in_memory = kernel.scratch[*scratch as usize].scope == Scope::Cache;
    match alone && fixed && in_memory {
        true => Ok((*scratch, index.clone())),
        false => Err(refused()),
    }
}

/// Has the sums of a tile of exactly `size` iterations be in registers; returns the loops of the three nests.
pub(super) fn hold(
    kernel: &mut Kernel,
    [outer, inner, sum]: [VarId; 3],
    size: [i64; 2],
) -> Result<Vec<VarId>, DirectiveRefusal> {
    let body = tile_body(kernel, outer, inner)?;
    let (scratch, at) = held(kernel, body, sum)?;
    let mut summed = body.clone();
    let elements = tile_elements(size)?;
    let [rows, columns] = size;
    let whole = [outer, inner]
        .iter()
        .zip(size)
        .all(|(v, n)| kernel.extents[v.0 as usize].is(n));
    if !whole || elements > 8 * MAX_UNROLL || !is_matrix(&at, [outer, inner], size) {
        return Err(DirectiveRefusal::NoTile { rows, columns });
    }
    let dtype = kernel.scratch[scratch as usize].dtype;
    let own = kernel.new_scratch(dtype, IndexExpr::Const(elements), Scope::Register);
    let own_at = element(columns, &outer.into(), &inner.into());
    let mut made = Vec::new();
    let mut out = Vec::new();
    let memory = (Memory::Scratch(scratch), at);
    let registers = (own, own_at);
    let copy = |kernel: &mut Kernel, made: &mut Vec<VarId>, from: &(Memory, IndexExpr), to: &(Memory, IndexExpr)| {
        let value = kernel.new_value(dtype);
        let mut body = vec![
            Stmt::Let {
                value,
                op: Op::Load {
                    memory: from.0,
                    index: from.1.clone(),
                    mask: None,
                },
            },
            Stmt::Store {
                memory: to.0,
                index: to.1.clone(),
                value,
                mask: None,
            },
        ];
        let vars = size.map(|n| kernel.new_var(IndexExpr::Const(n)));
        substitute_in(kernel, &mut body, &mut |v| match v {
            v if v == outer => Some(vars[0].into()),
            v if v == inner => Some(vars[1].into()),
            _ => None,
        });
        made.extend(vars);
        nest_of(&vars, Bind::Unroll, body)
    };
    out.extend(copy(kernel, &mut made, &memory, &registers));
    walk_mut(&mut summed, &mut |s| {
        for a in s.accesses_mut().filter(|a| *a.memory == memory.0) {
            (*a.memory, *a.index) = (registers.0, registers.1.clone());
        }
    });
    made.extend([outer, inner]);
    made.extend(walk(&summed).filter_map(|s| match s {
        Stmt::Loop { var, .. } => Some(*var),
        _ => None,
    }));
    out.extend(nest_of(&[outer, inner], Bind::Unroll, summed));
    out.extend(copy(kernel, &mut made, &registers, &memory));
    rewrite(kernel, outer, &mut |_, _, _| std::mem::take(&mut out));
    Ok(made)
}
