//! Contractions: three nested loops that add up products into a tile become the statement that means them.

use rustc_hash::FxHashSet;
use smallvec::{SmallVec, smallvec};
use tlc_ir::graph::Monoid;
use tlc_ir::index::{IndexExpr, IndexNode, VarId};
use tlc_ir::kernel::contract::{converts_exactly, is_accumulator};
use tlc_ir::kernel::verify::nonnegative;
use tlc_ir::kernel::visit::walk;
use tlc_ir::kernel::{Access, Bind, Contract, ContractOperand, Kernel, Memory, Op, Range, Scope, Stmt, ValueId};
use tlc_ir::{DType, Precision, ScalarOp};

use super::directives::{enclosing_lanes, loop_bind, nested, rewrite};
use super::inward::set_whole;
use super::tile_sum::{no_longer, tile_elements};
use crate::directive::DirectiveRefusal;
use crate::tree::defined_vars;

/// The products that the innermost of three loops adds up, and to what.
struct Products<'k> {
    dst: Memory,
    dst_index: &'k IndexExpr,
    factors: [ValueId; 2],
    /// Whether they are words, of whose bytes the first one's are unsigned.
    words: bool,
}

fn products(body: &[Stmt]) -> Option<Products<'_>> {
    let (last, computed) = body.split_last()?;
    let Stmt::Accumulate {
        monoid: Monoid::Add,
        state,
        values,
    } = last
    else {
        return None;
    };
    let [(dst, dst_index)] = &state[..] else {
        return None;
    };
    let pure = |s: &Stmt| matches!(s, Stmt::Let { .. } | Stmt::Clamp { .. });
    if !computed.iter().all(pure) {
        return None;
    }
    let (factors, words) = match values[..] {
        [value] => match definition(body, value)? {
            Op::Map(op @ (ScalarOp::Mul | ScalarOp::Dot4), factors) => {
                ([factors[0], factors[1]], *op == ScalarOp::Dot4)
            }
            _ => return None,
        },
        [left, right] => ([left, right], false),
        _ => return None,
    };
    Some(Products {
        dst: *dst,
        dst_index,
        factors,
        words,
    })
}

fn definition(body: &[Stmt], value: ValueId) -> Option<&Op> {
    body.iter().find_map(|s| match s {
        Stmt::Let { value: v, op } if *v == value => Some(op),
        _ => None,
    })
}

/// The factors of the products that three nested loops add up: the one that does not differ in the inner loop, then the one that
/// does not differ in the outer one.
pub(super) fn factors(kernel: &Kernel, [outer, inner, sum]: [VarId; 3]) -> Result<[ValueId; 2], DirectiveRefusal> {
    let body = nested(kernel, inner, sum)?;
    let refused = DirectiveRefusal::NotAProduct { sum, outer, inner };
    let Products {
        factors: [a, b], words, ..
    } = products(body).ok_or(refused.clone())?;
    let (down, across) = (varying(body, outer), varying(body, inner));
    let apart = |left: &ValueId, right: &ValueId| !across.contains(left) && !down.contains(right);
    match () {
        () if apart(&a, &b) => Ok([a, b]),
        () if apart(&b, &a) && !words => Ok([b, a]),
        () => Err(refused),
    }
}

/// The factors as they are before conversions that keep every value, and the dtype that the products are added up in.
pub(super) fn stored_factors(kernel: &Kernel, vars: [VarId; 3]) -> Result<([ValueId; 2], DType), DirectiveRefusal> {
    let found = factors(kernel, vars)?;
    let body = nested(kernel, vars[1], vars[2])?;
    let accumulator = products(body).map_or(kernel.dtype(found[0]), |p| kernel.memory_dtype(p.dst));
    let stored = found.map(|mut at| {
        while let Some(Op::Convert(to, from)) = definition(body, at)
            && is_accumulator(*to)
            && converts_exactly(kernel.dtype(*from), *to)
        {
            at = *from;
        }
        at
    });
    Ok((stored, accumulator))
}

/// The element of memory that a factor is, in the accumulator's dtype.
fn operand(kernel: &Kernel, body: &[Stmt], factor: ValueId, p: &Products<'_>) -> Option<ContractOperand> {
    let accumulator = kernel.memory_dtype(p.dst);
    let mut passed: SmallVec<[DType; 2]> = smallvec![];
    let mut at = factor;
    let (memory, index) = loop {
        passed.push(kernel.dtype(at));
        match definition(body, at)? {
            Op::Convert(_, from) => at = *from,
            Op::Load {
                memory,
                index,
                mask: None,
            } => break (*memory, index),
            Op::Const(_)
            | Op::Index(..)
            | Op::Load { .. }
            | Op::Map(..)
            | Op::Bitcast(..)
            | Op::ShortExp2(_)
            | Op::Scale(_)
            | Op::Approximate(..) => {
                return None;
            }
        }
    };
    // Each conversion on the way keeps the value, so that one is as good.
    let element = kernel.memory_dtype(memory);
    let exact = |to: &DType| *to == element || (is_accumulator(*to) && converts_exactly(element, *to));
    let known = match memory {
        Memory::Param(i) => kernel.params[i as usize].access == Access::Read,
        Memory::Scratch(i) => match kernel.scratch[i as usize].scope {
            Scope::Cache | Scope::Shared | Scope::Thread => memory != p.dst,
            Scope::Register | Scope::WarpFragment | Scope::BlockFragment => false,
        },
    };
    let from_data = defined_vars(body).into_iter().any(|v| index.uses(v));
    let fits = known && !from_data && passed.iter().all(exact) && converts_exactly(element, accumulator);
    fits.then(|| ContractOperand {
        memory,
        index: index.clone(),
        ranges: smallvec![],
    })
}

/// The values of the statements that differ in a loop.
fn varying(body: &[Stmt], var: VarId) -> FxHashSet<ValueId> {
    let mut values: FxHashSet<ValueId> = FxHashSet::default();
    let mut vars: FxHashSet<VarId> = FxHashSet::default();
    vars.insert(var);
    for s in body {
        let mut moves = s.operands().any(|v| values.contains(&v));
        for e in s.indices() {
            e.visit_atoms(&mut |a| moves |= matches!(a, IndexNode::Var(v) if vars.contains(v)));
        }
        if moves {
            values.extend(s.defined_value());
            vars.extend(s.defined_vars());
        }
    }
    values
}

/// The condition that a row or column of a tile of `size` is one that the loop has, for a variable in place of the loop's.
fn inside(kernel: &Kernel, var: VarId, extent: &IndexExpr, size: i64) -> SmallVec<[Range; 1]> {
    if extent.is(size) {
        return smallvec![];
    }
    // What a minimum says of the size is known.
    let mut limit = extent.clone();
    if let IndexExpr::Node(n) = extent
        && let IndexNode::Min(a, b) = &**n
    {
        let at_least = |e: &IndexExpr| e.as_const().is_some_and(|n| n >= size);
        limit = match () {
            () if at_least(a) => b.clone(),
            () if at_least(b) => a.clone(),
            () => limit,
        };
    }
    // What moves with the loops around goes to the index, so that sizes are compared with sizes.
    let (terms, _) = limit.linear();
    let moving = terms.iter().filter(|(t, _)| t.has_vars());
    let start = moving.fold(IndexExpr::ZERO, |sum, (t, c)| sum + t.clone() * IndexExpr::Const(*c));
    let index = IndexExpr::from(var) - start.clone();
    let range = match index.proves_nonnegative(kernel) {
        true => Range {
            limit: limit - start,
            index,
        },
        false => Range {
            index: var.into(),
            limit,
        },
    };
    smallvec![range]
}

/// Whether the index of a tile is that of a matrix of different elements, one of whose strides steps over what the other reaches.
pub(super) fn is_matrix(index: &IndexExpr, vars: [VarId; 2], size: [i64; 2]) -> bool {
    let stride = |e: &IndexExpr, v: VarId| {
        let (stride, rest) = e.affine_in(v)?;
        Some((stride.as_const()?, rest))
    };
    let strides = stride(index, vars[0]).and_then(|(row, rest)| Some((row, stride(&rest, vars[1])?.0)));
    let Some((row, column)) = strides else { return false };
    let reach = |stride: i64, n: i64| stride.saturating_mul(n - 1);
    let [rows, columns] = size;
    let down = rows == 1 || row > reach(column, columns);
    let across = columns == 1 || column > reach(row, rows);
    match (rows, columns) {
        (_, 1) => rows == 1 || row > 0,
        (1, _) => column > 0,
        _ => (down && column > 0) || (across && row > 0),
    }
}

/// Whether all of a scratch is set before the loop over `var`, in the statements around it.
fn set_before(kernel: &Kernel, var: VarId, scratch: u32) -> bool {
    fn blocks<'k>(body: &'k [Stmt], var: VarId, out: &mut Vec<&'k [Stmt]>) -> bool {
        let holds =
            |s: &Stmt| walk(std::slice::from_ref(s)).any(|s| matches!(s, Stmt::Loop { var: v, .. } if *v == var));
        let Some(at) = body.iter().position(holds) else {
            return false;
        };
        out.push(&body[..at]);
        blocks(body[at].body(), var, out)
    }
    let mut before = Vec::new();
    blocks(&kernel.body, var, &mut before);
    before
        .into_iter()
        .any(|b| set_whole(kernel, b, scratch, &mut Vec::new()))
}

/// Makes a contraction of three loops.
pub(super) fn contract(
    kernel: &mut Kernel,
    vars: [VarId; 3],
    size: [i64; 2],
    (block, precision): (i64, Precision),
) -> Result<Vec<VarId>, DirectiveRefusal> {
    let [outer, inner, sum] = vars;
    nested(kernel, outer, inner)?;
    let body = nested(kernel, inner, sum)?;
    if kernel.extents[sum.0 as usize].uses(outer) {
        return Err(DirectiveRefusal::DependentExtent(sum, outer));
    }
    for v in vars {
        if !matches!(loop_bind(&kernel.body, v), Some(Bind::Serial | Bind::Unroll)) {
            return Err(DirectiveRefusal::Recurrence(v));
        }
    }
    if let Some(Some(lanes)) = enclosing_lanes(&kernel.body, outer, None) {
        return Err(DirectiveRefusal::NotNested(lanes, outer));
    }
    if block < 1 {
        return Err(DirectiveRefusal::Factor(block));
    }
    tile_elements(size)?;
    for (v, most) in [outer, inner].into_iter().zip(size) {
        no_longer(kernel, v, most)?;
    }
    let p = products(body).ok_or(DirectiveRefusal::NotAProduct { sum, outer, inner })?;
    let accumulator = kernel.memory_dtype(p.dst);
    if !is_accumulator(accumulator) {
        return Err(DirectiveRefusal::Accumulator(accumulator));
    }
    let [left, right] = factors(kernel, vars)?;
    let [mut left, mut right] = {
        let packed = |v: ValueId| operand(kernel, body, v, &p).ok_or(DirectiveRefusal::NotPacked(v));
        [packed(left)?, packed(right)?]
    };
    let operands = [&left, &right].map(|o| kernel.memory_dtype(o.memory));
    if precision != Precision::Exact && (operands, accumulator) != ([DType::F32; 2], DType::F32) {
        return Err(DirectiveRefusal::NoMatrixInstruction { operands, accumulator });
    }
    // The tile: scratch of its own, a matrix of which all rows and columns exist and hold numbers.
    let no_tile = || DirectiveRefusal::NoTile {
        rows: size[0],
        columns: size[1],
    };
    let Memory::Scratch(scratch) = p.dst else {
        return Err(no_tile());
    };
    let scope = kernel.scratch[scratch as usize].scope;
    if scope == Scope::Shared {
        return Err(DirectiveRefusal::ScratchScope(scope));
    }
    let extents = [outer, inner].map(|v| kernel.extents[v.0 as usize].clone());
    if !extents.iter().zip(size).all(|(e, n)| e.is(n)) && !set_before(kernel, outer, scratch) {
        return Err(DirectiveRefusal::NotSet(outer));
    }
    let mut work = kernel.clone();
    let new = size.map(|n| work.new_var(IndexExpr::Const(n)));
    let put = |e: &IndexExpr| {
        e.replace_vars(&mut |v| match v {
            v if v == outer => Some(new[0].into()),
            v if v == inner => Some(new[1].into()),
            _ => None,
        })
    };
    let dst = p.dst;
    let dst_index = put(p.dst_index);
    let in_tile = dst_index.proves_nonnegative(&work) && dst_index.proves_less(work.memory_len(dst), &work);
    if !in_tile || dst_index.uses(sum) || !is_matrix(&dst_index, new, size) {
        return Err(no_tile());
    }
    (left.index, right.index) = (put(&left.index), put(&right.index));
    // Scratch that has all rows or columns may be read where the loops have none: what is made of it there is never used.
    for (i, operand) in [&mut left, &mut right].into_iter().enumerate() {
        let above = work.memory_len(operand.memory).clone() - operand.index.clone() - IndexExpr::ONE;
        let whole = matches!(operand.memory, Memory::Scratch(s) if set_before(kernel, outer, s));
        if !(whole && nonnegative(&operand.index, &work) && nonnegative(&above, &work)) {
            operand.ranges = inside(&work, new[i], &extents[i], size[i]);
        }
    }
    let mut made = Some(Stmt::Contract(Box::new(Contract {
        vars: [new[0], new[1], sum],
        dst,
        dst_index,
        left,
        right,
        k_block: block,
        precision,
        words: p.words,
    })));
    rewrite(&mut work, outer, &mut |_, _, _| made.take().into_iter().collect());
    *kernel = work;
    Ok(Vec::new())
}
