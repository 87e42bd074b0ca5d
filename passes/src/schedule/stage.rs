//! Staging: what a loop nest reads or writes goes through scratch, and is copied there or from there as a block.
//!
//! A transposition walks one of its two tensors across its rows. Where rows are a power of two apart, a tile of them falls
//! into a few cache sets and is evicted before it is used. A copy of the tile turns it in registers, reads and writes whole
//! cache lines, and leaves a nest that reads side by side. Results too large for the caches are copied behind the loop that
//! computes them, past the caches.

use std::ops::Range;

use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::visit::{Effect, MemoryAccess, walk, walk_mut};
use tlc_ir::kernel::{Access, Bind, Kernel, Memory, Op, Scope, Stmt, ValueId};

use super::directives::{enclosing_lanes, exists, loop_bind, nested, rewrite};
use crate::directive::DirectiveRefusal;
use crate::tree::defined_vars;

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
/// element, `inner` walks from row to row. Returns the outer loop of each copy.
pub(super) fn loads(kernel: &mut Kernel, vars: [VarId; 2], size: [i64; 2]) -> Result<Vec<VarId>, DirectiveRefusal> {
    let [outer, inner] = vars;
    let body = nested(kernel, outer, inner)?;
    for (v, most) in vars.into_iter().zip(size) {
        if kernel.extents[v.0 as usize].interval(kernel).hi > most {
            return Err(DirectiveRefusal::NotConstant(v));
        }
    }
    let defined = defined_vars(body);
    let across = |kernel: &Kernel, memory: &Memory, index: &IndexExpr| {
        let read = matches!(memory, Memory::Param(p) if kernel.params[*p as usize].access == Access::Read);
        let unit = index.affine_in(outer).is_some_and(|(c, _)| c.is(1));
        let strided = index.affine_in(inner).is_some_and(|(c, _)| !c.is(0) && !c.is(1));
        // Copies run before the loops, where an index from data is not known yet.
        let known = !defined.iter().any(|v| index.uses(*v));
        read && unit && strided && known
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
        return Err(DirectiveRefusal::NoStridedLoad(inner));
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

/// Has the two loops store to scratch, along which `inner` goes, and copies it turned behind them to where they stored: `outer` walks along
/// rows of the result, `inner` across them. Returns the outer loop of the copy.
pub(super) fn turned(kernel: &mut Kernel, vars: [VarId; 2], size: [i64; 2]) -> Result<Vec<VarId>, DirectiveRefusal> {
    let [outer, inner] = vars;
    let body = nested(kernel, outer, inner)?;
    for (v, most) in vars.into_iter().zip(size) {
        if kernel.extents[v.0 as usize].interval(kernel).hi > most {
            return Err(DirectiveRefusal::NotConstant(v));
        }
    }
    let refused = DirectiveRefusal::NoStridedStore(inner);
    let mut stores = body.iter().filter_map(|s| match s {
        Stmt::Store {
            memory: target @ Memory::Param(_),
            index,
            mask: None,
            ..
        } => Some((*target, index.clone())),
        _ => None,
    });
    let (Some((target, index)), None) = (stores.next(), stores.next()) else {
        return Err(refused);
    };
    let unit = index.affine_in(outer).is_some_and(|(c, _)| c.is(1));
    let strided = index.affine_in(inner).is_some_and(|(c, _)| !c.is(0) && !c.is(1));
    // Where data says an element goes, it may be that of another iteration.
    let known = !defined_vars(body).iter().any(|v| index.uses(*v));
    // Nothing else touches the parameter, inside or in a loop inside, and nothing else is stored that the copy could come too late for.
    let alone = walk(body)
        .flat_map(|s| s.accesses())
        .filter(|a| a.memory == target || a.effect != Effect::Load)
        .count()
        == 1;
    if !(unit && strided && known && alone) {
        return Err(refused);
    }
    let dtype = kernel.memory_dtype(target);
    let pitch = size[1] + PADDING / dtype.bytes() as i64;
    let scratch = kernel.new_scratch(dtype, IndexExpr::Const(size[0] * pitch), Scope::Cache);
    let at = |outer: VarId, inner: VarId| IndexExpr::from(outer) * IndexExpr::Const(pitch) + inner.into();
    let row = kernel.new_var(kernel.extents[inner.0 as usize].clone());
    let column = kernel.new_var(kernel.extents[outer.0 as usize].clone());
    let to = index.replace_vars(&mut |v| match v {
        v if v == outer => Some(column.into()),
        v if v == inner => Some(row.into()),
        _ => None,
    });
    let value = kernel.new_value(dtype);
    let mut behind = Some(copy(value, &[row, column], (scratch, at(column, row)), (target, to)));
    rewrite(kernel, outer, &mut |_, bind, mut body| {
        let Some(Stmt::Loop { body: inside, .. }) = body.first_mut() else {
            unreachable!("checked to be nested")
        };
        for s in inside {
            if let Stmt::Store { memory, index, .. } = s
                && *memory == target
            {
                (*memory, *index) = (scratch, at(outer, inner));
            }
        }
        let mut out = vec![Stmt::Loop { var: outer, bind, body }];
        out.extend(behind.take());
        out
    });
    Ok(vec![row])
}

/// The elements of a row of a parameter that are accessed, from the first to the last.
struct Row {
    param: u32,
    /// Elements from row to row.
    stride: i64,
    /// What the first row's elements are counted from.
    base: IndexExpr,
    /// The first and behind the last element.
    range: Range<i64>,
    /// Those that are stored, in ranges; `None` if the parameter is read.
    stored: Option<Vec<Range<i64>>>,
}

impl Row {
    fn length(&self) -> i64 {
        self.range.end - self.range.start
    }

    /// Whether each element is stored that is copied from the scratch.
    fn is_whole(&self) -> bool {
        let Some(stored) = &self.stored else { return true };
        let mut stored: Vec<_> = stored.clone();
        stored.sort_by_key(|r| r.start);
        let covered = |end: i64, r: Range<i64>| if r.start <= end { end.max(r.end) } else { end };
        stored.into_iter().fold(self.range.start, covered) == self.range.end
    }
}

/// The fewest elements of a row that fill a block of a transposition.
const SHORTEST_ROW: i64 = 4;

/// The elements of a row that an access of an iteration of `var` goes to, with nothing said of others; `inside` are the loops in the iteration.
fn row_of(
    kernel: &Kernel,
    param: u32,
    (index, writes): (&IndexExpr, bool),
    var: VarId,
    inside: &[VarId],
) -> Option<Row> {
    let (stride, rest) = index.affine_in(var)?;
    let mut moving = inside.iter().copied().filter(|&v| rest.uses(v));
    let (start, length) = match (moving.next(), moving.next()) {
        (None, _) => (rest, 1),
        (Some(column), None) => {
            let (step, start) = rest.affine_in(column)?;
            let length = kernel.extents[column.0 as usize].as_const()?;
            (step.is(1) && !start.uses(column)).then_some((start, length))?
        }
        _ => return None,
    };
    if start.uses(var) || length < 1 {
        return None;
    }
    let first = start.linear().1;
    let range = first..first.checked_add(length)?;
    Some(Row {
        param,
        stride: stride.as_const()?,
        base: start - IndexExpr::Const(first),
        stored: writes.then(|| vec![range.clone()]),
        range,
    })
}

/// Notes the row of every access to a parameter; a parameter with accesses that differ goes to `refused`.
fn collect_rows(
    kernel: &Kernel,
    body: &[Stmt],
    var: VarId,
    inside: &[VarId],
    found: &mut Vec<Row>,
    refused: &mut Vec<u32>,
) {
    for s in body {
        for a in s.accesses() {
            let Memory::Param(p) = a.memory else { continue };
            let plain = !a.is_conditional() && a.effect != Effect::Accumulate;
            let row = row_of(kernel, p, (a.index, a.effect.writes()), var, inside).filter(|_| plain);
            let Some(row) = row else {
                refused.push(p);
                continue;
            };
            match found.iter_mut().find(|f| f.param == p) {
                None => found.push(row),
                Some(f)
                    if f.stride == row.stride && f.base == row.base && f.stored.is_some() == row.stored.is_some() =>
                {
                    f.range = f.range.start.min(row.range.start)..f.range.end.max(row.range.end);
                    if let (Some(all), Some(more)) = (&mut f.stored, row.stored) {
                        all.extend(more);
                    }
                }
                Some(_) => refused.push(p),
            }
        }
        collect_rows(kernel, s.body(), var, inside, found, refused);
        // What need not happen may leave elements of a row as they were, or not find them.
        if matches!(s, Stmt::If { .. }) {
            let inside = walk(s.body()).flat_map(|s| s.accesses());
            refused.extend(inside.filter_map(|a| match a.memory {
                Memory::Param(p) => Some(p),
                Memory::Scratch(_) => None,
            }));
        }
    }
}

/// Sends rows of a few elements, of which each iteration of `var` loads or stores one, through scratch that holds them
/// turned: `pitch` elements there, one of each row, lie side by side. Returns the copying loops.
pub(super) fn rows(kernel: &mut Kernel, var: VarId, pitch: i64) -> Result<Vec<VarId>, DirectiveRefusal> {
    let body = exists(kernel, var)?;
    let extent = kernel.extents[var.0 as usize].clone();
    if !matches!(loop_bind(&kernel.body, var), Some(Bind::Serial)) {
        return Err(DirectiveRefusal::Recurrence(var));
    }
    if let Some(Some(outer)) = enclosing_lanes(&kernel.body, var, None) {
        return Err(DirectiveRefusal::NotNested(outer, var));
    }
    if extent.interval(kernel).hi > pitch {
        return Err(DirectiveRefusal::NotConstant(var));
    }
    let inside = defined_vars(body);
    let (mut found, mut refused) = (Vec::new(), Vec::new());
    collect_rows(kernel, body, var, &inside, &mut found, &mut refused);
    found.retain(|r| {
        let p = &kernel.params[r.param as usize];
        let access = if r.stored.is_some() {
            Access::Write
        } else {
            Access::Read
        };
        let fits = (SHORTEST_ROW..=r.stride).contains(&r.length()) && r.is_whole();
        !refused.contains(&r.param) && p.access == access && p.dtype.bytes() == 4 && fits
    });
    if found.is_empty() {
        return Err(DirectiveRefusal::NoStridedLoad(var));
    }
    let k = IndexExpr::Const(pitch);
    let mut made = Vec::new();
    let mut staged = Vec::new();
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for r in found {
        let dtype = kernel.params[r.param as usize].dtype;
        let length = IndexExpr::Const(r.length());
        let first = r.base.clone() + IndexExpr::Const(r.range.start);
        let scratch = kernel.new_scratch(dtype, length.clone() * k.clone(), Scope::Cache);
        let (row, column) = (kernel.new_var(extent.clone()), kernel.new_var(length));
        let turned = IndexExpr::from(column) * k.clone() + row.into();
        let straight = IndexExpr::from(row) * IndexExpr::Const(r.stride) + first.clone() + column.into();
        let (param, turned) = ((Memory::Param(r.param), straight), (scratch, turned));
        let value = kernel.new_value(dtype);
        if r.stored.is_some() {
            after.push(copy(value, &[row, column], turned, param));
            made.push(row);
        } else {
            before.push(copy(value, &[column, row], param, turned));
            made.push(column);
        }
        staged.push((r.param, scratch, first));
    }
    rewrite(kernel, var, &mut |_, bind, mut body| {
        turn(&mut body, var, &staged, &k);
        let mut out = std::mem::take(&mut before);
        out.push(Stmt::Loop { var, bind, body });
        out.append(&mut after);
        out
    });
    Ok(made)
}

/// Moves accesses to staged parameters, whose first elements are given, to their scratch.
fn turn(body: &mut [Stmt], var: VarId, staged: &[(u32, Memory, IndexExpr)], pitch: &IndexExpr) {
    walk_mut(body, &mut |s| {
        for a in s.accesses_mut() {
            if let Memory::Param(p) = *a.memory
                && let Some((_, scratch, first)) = staged.iter().find(|s| s.0 == p)
                && let Some((_, rest)) = a.index.affine_in(var)
            {
                *a.memory = *scratch;
                *a.index = (rest - first.clone()) * pitch.clone() + var.into();
            }
        }
    });
}

/// Sends what the loop stores to `param` through scratch; returns the loop that copies it from there.
pub(super) fn stores(kernel: &mut Kernel, var: VarId, param: u32, length: i64) -> Result<Vec<VarId>, DirectiveRefusal> {
    let body = exists(kernel, var)?;
    let extent = kernel.extents[var.0 as usize].clone();
    if extent.interval(kernel).hi > length {
        return Err(DirectiveRefusal::NotConstant(var));
    }
    let target = Memory::Param(param);
    let mut start = None;
    let mut stores = 0;
    let plain = |a: &MemoryAccess<'_>| a.effect == Effect::Store && !a.is_conditional() && a.memory == target;
    for a in body.iter().flat_map(|s| s.accesses()).filter(plain) {
        stores += 1;
        start = a.index.affine_in(var).filter(|(c, _)| c.is(1)).map(|(_, rest)| rest);
    }
    let refused = DirectiveRefusal::NotSideBySide { var, param };
    let start = start.filter(|at| !at.uses(var)).ok_or(refused.clone())?;
    // One store, and nothing else touches the parameter, inside or in a loop inside.
    let touches = walk(body).flat_map(|s| s.accesses()).filter(|a| a.memory == target);
    if stores != 1 || touches.count() != 1 {
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
