//! Regions: what a loop nest reads of a parameter, copied to scratch before it.
//!
//! Windows that overlap read an element many times, and so do the tiles of a product. The elements lie in a box: an index is a
//! sum of parts, each a stride times what changes from iteration to iteration, and parts of one stride make one side of the box.
//! The box is copied whole. Elements of it that lie outside of the parameter are left out; nothing reads them.

use smallvec::smallvec;
use tlc_ir::index::{IndexExpr, IndexNode, VarId};
use tlc_ir::kernel::verify::nonnegative;
use tlc_ir::kernel::visit::{Effect, walk, walk_mut};
use tlc_ir::kernel::{Access, Bind, Kernel, Memory, Op, Scope, Stmt};
use tlc_ir::{DType, ScalarOp};

use super::directives::{enclosing_lanes, exists, loop_bind, rewrite};
use super::inward::replaceable;
use super::pack::{MOST_ELEMENTS, fits};
use super::tile_sum::nest_of;
use crate::directive::DirectiveRefusal;
use crate::tree::defined_vars;

/// Where an access goes: sides of the box, each a stride and the place along it, and what is the same in all iterations.
#[derive(Clone)]
struct Parts {
    sides: Vec<(IndexExpr, IndexExpr)>,
    start: IndexExpr,
}

/// An index in parts; `inside` are the variables that change.
fn parts(index: &IndexExpr, inside: &[VarId]) -> Option<Parts> {
    let moves = |e: &IndexExpr| inside.iter().any(|v| e.uses(*v));
    let (terms, constant) = index.linear();
    let mut out = Parts {
        sides: Vec::new(),
        start: IndexExpr::Const(constant),
    };
    for (term, k) in terms {
        let k = IndexExpr::Const(k);
        if !moves(&term) {
            out.start = out.start + term * k;
            continue;
        }
        let mut stride = k;
        let mut place = term.clone();
        if let IndexExpr::Node(n) = &term
            && let IndexNode::Product(factors) = &**n
        {
            let (moving, fixed): (Vec<&IndexExpr>, Vec<&IndexExpr>) = factors.iter().partition(|f| moves(f));
            let [one] = moving[..] else { return None };
            place = one.clone();
            stride = stride * IndexExpr::product(fixed);
        }
        match out.sides.iter_mut().find(|s| s.0 == stride) {
            Some(side) => side.1 = side.1.clone() + place,
            None => out.sides.push((stride, place)),
        }
    }
    // A stride that is a sum has a term for each of its own.
    let mut sides: Vec<(IndexExpr, IndexExpr)> = Vec::new();
    for (stride, place) in out.sides {
        match sides.iter_mut().find(|s| s.1 == place) {
            Some(side) => side.0 = side.0.clone() + stride,
            None => sides.push((stride, place)),
        }
    }
    Some(Parts { sides, ..out })
}

/// A side of the box.
struct Side {
    stride: IndexExpr,
    length: i64,
    /// How long it is in each iteration of what is around, where one loop alone goes along it.
    exact: Option<IndexExpr>,
    /// The strides of accesses that go along it, each with how many elements of the side a step is.
    along: Vec<(IndexExpr, i64)>,
}

/// The sides, longest strides first, where those of which one's stride is a multiple of the other's are one if it is not longer
/// than both take: windows that are several elements apart, and rows of elements in them.
fn merged(mut sides: Vec<Side>) -> Vec<Side> {
    sides.sort_by_key(|s| std::cmp::Reverse(s.stride.as_const().unwrap_or(i64::MAX)));
    let mut out: Vec<Side> = Vec::new();
    for side in sides {
        if let Some(before) = out.last_mut()
            && let (Some(wide), Some(narrow)) = (before.stride.as_const(), side.stride.as_const())
            && narrow > 0
            && wide % narrow == 0
        {
            let times = wide / narrow;
            let length = (before.length - 1).saturating_mul(times).saturating_add(side.length);
            if length <= before.length.saturating_mul(side.length) {
                before.along.iter_mut().for_each(|a| a.1 *= times);
                before.along.extend(side.along);
                (before.stride, before.length, before.exact) = (side.stride, length, None);
                continue;
            }
        }
        out.push(side);
    }
    out
}

/// Copies what a loop reads of a parameter to scratch first; returns the copying loops.
pub(super) fn region(
    kernel: &mut Kernel,
    var: VarId,
    param: u32,
    scope: Scope,
) -> Result<Vec<VarId>, DirectiveRefusal> {
    let body = exists(kernel, var)?;
    if let Some(Some(lanes)) = enclosing_lanes(&kernel.body, var, None) {
        return Err(DirectiveRefusal::NotNested(lanes, var));
    }
    if !matches!(loop_bind(&kernel.body, var), Some(Bind::Serial | Bind::Unroll)) {
        return Err(DirectiveRefusal::Recurrence(var));
    }
    let refused = DirectiveRefusal::NoRegion { var, param };
    let memory = Memory::Param(param);
    let read = kernel
        .params
        .get(param as usize)
        .is_some_and(|p| p.access == Access::Read);
    // What a result may take the place of is gone once that is stored, in whichever iteration.
    if !read || replaceable(kernel, memory) && !never_replaced(kernel, memory) {
        return Err(refused);
    }
    let together = |s: &Stmt| {
        let alone = matches!(
            s,
            Stmt::Loop {
                bind: Bind::Serial | Bind::Unroll | Bind::Lanes,
                ..
            }
        );
        (alone || !matches!(s, Stmt::Loop { .. }))
            && !matches!(s, Stmt::Barrier | Stmt::Commit | Stmt::Wait(_) | Stmt::CopyAsync(_))
    };
    if !walk(body).all(together) {
        return Err(refused);
    }
    let mut inside = vec![var];
    inside.extend(defined_vars(body));
    let mut found: Vec<(IndexExpr, Parts)> = Vec::new();
    for a in walk(body).flat_map(|s| s.accesses()).filter(|a| a.memory == memory) {
        if a.effect != Effect::Load || found.iter().any(|f| f.0 == *a.index) {
            continue;
        }
        let of = parts(a.index, &inside).ok_or(refused.clone())?;
        if found.first().is_some_and(|f| f.1.start != of.start) {
            return Err(refused);
        }
        found.push((a.index.clone(), of));
    }
    let Some(start) = found.first().map(|f| f.1.start.clone()) else {
        return Err(refused);
    };
    // Each side is as long as the longest that an access has of that stride.
    let mut sides: Vec<Side> = Vec::new();
    for (stride, place) in found.iter().flat_map(|f| &f.1.sides) {
        let range = place.interval(kernel);
        let length = range.hi.max(0).saturating_add(1);
        if range.lo < 0 || length > MOST_ELEMENTS {
            return Err(refused);
        }
        let exact = inside.iter().find(|&&v| *place == v.into());
        let exact = exact.map(|v| kernel.extents[v.0 as usize].clone());
        let exact = exact.filter(|e| !inside.iter().any(|v| e.uses(*v)));
        match sides.iter_mut().find(|s| s.stride == *stride) {
            Some(side) => {
                side.length = side.length.max(length);
                side.exact = side.exact.take().filter(|e| exact.as_ref() == Some(e));
            }
            None => sides.push(Side {
                stride: stride.clone(),
                length,
                exact,
                along: vec![(stride.clone(), 1)],
            }),
        }
    }
    let mut sides = merged(sides);
    if sides.is_empty() {
        // One element, which a loop copies that runs once.
        sides.push(Side {
            stride: IndexExpr::ONE,
            length: 1,
            exact: None,
            along: Vec::new(),
        });
    }
    // How far what is along each side is taken to reach.
    let reach: Vec<i64> = sides.iter().map(|s| s.length).collect();
    let elements = reach.iter().try_fold(1i64, |n, r| n.checked_mul(*r));
    let elements = elements.filter(|n| *n <= MOST_ELEMENTS).ok_or(refused)?;
    let len = IndexExpr::Const(elements);
    if !fits(kernel, var, scope, &len, false) {
        return Err(DirectiveRefusal::ScratchScope(scope));
    }
    let dtype = kernel.memory_dtype(memory);
    let scratch = kernel.new_scratch(dtype, len, scope);
    let own: Vec<VarId> = sides
        .iter()
        .map(|s| kernel.new_var(s.exact.clone().unwrap_or(IndexExpr::Const(s.length))))
        .collect();
    let at = |place: &dyn Fn(usize) -> IndexExpr| {
        let along = |sum: IndexExpr, (i, r): (usize, &i64)| sum * IndexExpr::Const(*r) + place(i);
        reach.iter().enumerate().fold(IndexExpr::ZERO, along)
    };
    let strides = sides.iter().map(|s| &s.stride).zip(&own);
    let from = strides.fold(start, |sum, (stride, v)| sum + stride.clone() * (*v).into());
    let copy = copied(kernel, (memory, from), (scratch, at(&|i| own[i].into())));
    let mut copy = nest_of(&own, Bind::Serial, copy);
    let moved: Vec<(IndexExpr, IndexExpr)> = found
        .into_iter()
        .map(|(index, parts)| {
            let along = |i: usize| {
                let of = |stride: &IndexExpr| parts.sides.iter().find(|p| p.0 == *stride).map(|p| p.1.clone());
                let places = sides[i].along.iter().filter_map(|(s, times)| Some((of(s)?, *times)));
                places.fold(IndexExpr::ZERO, |sum, (e, times)| sum + e * IndexExpr::Const(times))
            };
            (index, at(&along))
        })
        .collect();
    rewrite(kernel, var, &mut |_, bind, mut body| {
        walk_mut(&mut body, &mut |s| {
            for a in s.accesses_mut().filter(|a| *a.memory == memory) {
                if let Some((_, to)) = moved.iter().find(|m| m.0 == *a.index) {
                    (*a.memory, *a.index) = (scratch, to.clone());
                }
            }
        });
        let mut out = std::mem::take(&mut copy);
        out.push(Stmt::Loop { var, bind, body });
        out
    });
    Ok(own)
}

/// Whether no result may take the place of what is loaded although it has the size: the blocks of a GPU run beside each other, so that
/// this takes a store where each element is loaded.
fn never_replaced(kernel: &Kernel, memory: Memory) -> bool {
    let blocks = matches!(kernel.body[..], [Stmt::Loop { bind: Bind::Block, .. }]);
    let of = |effect: Effect| {
        kernel
            .statements()
            .flat_map(|s| s.accesses())
            .filter(move |a| a.effect == effect)
    };
    let stored = |index: &IndexExpr| of(Effect::Store).any(|a| a.index == index);
    blocks
        && of(Effect::Load)
            .filter(|a| a.memory == memory)
            .any(|a| !stored(a.index))
}

/// One element copied, if it is one of the parameter's.
fn copied(kernel: &mut Kernel, from: (Memory, IndexExpr), to: (Memory, IndexExpr)) -> Vec<Stmt> {
    let mut out = Vec::new();
    let mut define = |kernel: &mut Kernel, dtype: DType, op: Op| {
        let value = kernel.new_value(dtype);
        out.push(Stmt::Let { value, op });
        value
    };
    let len = kernel.memory_len(from.0).clone();
    let above = len.clone() - from.1.clone() - IndexExpr::ONE;
    let (low, high) = (nonnegative(&from.1, kernel), nonnegative(&above, kernel));
    let mut mask = None;
    if !low || !high {
        let at = define(kernel, DType::I64, Op::Index(from.1.clone(), DType::I64));
        let zero = define(kernel, DType::I64, Op::Const(DType::I64.zero()));
        let len = define(kernel, DType::I64, Op::Index(len, DType::I64));
        let first = define(kernel, DType::Bool, Op::Map(ScalarOp::Le, smallvec![zero, at]));
        let last = define(kernel, DType::Bool, Op::Map(ScalarOp::Lt, smallvec![at, len]));
        mask = Some(define(
            kernel,
            DType::Bool,
            Op::Map(ScalarOp::And, smallvec![first, last]),
        ));
    }
    let dtype = kernel.memory_dtype(from.0);
    let (memory, index) = from;
    let value = define(kernel, dtype, Op::Load { memory, index, mask });
    let (memory, index) = to;
    out.push(Stmt::Store {
        memory,
        index,
        value,
        mask: None,
    });
    out
}
