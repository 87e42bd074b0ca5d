//! Lowering of scans and scatters: recurrences that run serially along part of their space, and in parallel along the rest.

use smallvec::smallvec;
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::{Access, Bind, Memory, Op, Scope, Stmt, ValueId};
use tlc_ir::{DType, Graph, NodeId, NodeKind, Scalar, ScalarOp};

use super::{Form, Level, Lowerer, Nest, ScanKind};
use crate::access::Index;
use crate::cluster::{Cluster, Updates};
use tlc_ir::graph::infer::flat_index;

/// A scan: parallel over the other axes, serial along its own, the running value in a register.
pub(super) fn lower_scan(graph: &Graph, cluster: &Cluster, is_root: &[bool]) -> Nest {
    let root = cluster.roots[0];
    let node = graph.node(root);
    let ScanKind {
        monoid,
        axis,
        exclusive,
        reverse,
    } = ScanKind::of(graph, root);
    let mut lo = Lowerer::new(graph, &cluster.roots, is_root);
    let mut parallel = Vec::new();
    let mut point = Index::new();
    let mut along = None;
    for (a, extent) in node.ty.shape.iter().enumerate() {
        if a == axis {
            let v = lo.new_var(extent.clone(), 1);
            along = Some(v);
            let forward: IndexExpr = v.into();
            point.push(if reverse {
                extent.clone() - IndexExpr::ONE - forward
            } else {
                forward
            });
        } else {
            let v = lo.new_var(extent.clone(), 0);
            parallel.push(v);
            point.push(v.into());
        }
    }
    let along = along.expect("the verifier checked the axis");
    let carried = node.ty.dtype.accumulator();
    let state = lo.kernel.new_scratch(carried, IndexExpr::ONE, Scope::Register);
    let identity = lo.constant(monoid.identity(carried));
    lo.push(
        0,
        Stmt::Store {
            memory: state,
            index: IndexExpr::ZERO,
            value: identity,
            mask: None,
        },
    );
    lo.may_not_run = !lo.certainly_run(&[along]);
    let value = lo.value_of(node.operands[0], &point, None);
    let value = lo.convert(value, carried);
    let accumulate = Stmt::Accumulate {
        monoid,
        state: smallvec![(state, IndexExpr::ZERO)],
        values: smallvec![value],
    };
    if !exclusive {
        lo.push(1, accumulate.clone());
    }
    let running = lo.emit(
        Op::Load {
            memory: state,
            index: IndexExpr::ZERO,
            mask: None,
        },
        carried,
        1,
    );
    let result = lo.convert(running, node.ty.dtype);
    lo.store_root(root, &point, result, 1);
    if exclusive {
        lo.push(1, accumulate);
    }
    lo.close_inner(&[along]);
    lo.finish(parallel, Form::Serial)
}

/// A scatter: the base is copied, then the updates apply, those of one element one after another in C order. The indices are
/// looked at before the loops over what they select.
pub(super) fn lower_scatter(graph: &Graph, cluster: &Cluster, is_root: &[bool], who: Updates) -> Vec<Nest> {
    let root = cluster.roots[0];
    let node = graph.node(root);
    let NodeKind::Scatter { axes, op } = &node.kind else {
        unreachable!("a scatter cluster")
    };
    let mut copy = Lowerer::new(graph, &cluster.roots, is_root);
    let vars: Vec<_> = node.ty.shape.iter().map(|d| copy.new_var(d.clone(), 0)).collect();
    let point: Index = vars.iter().map(|&v| v.into()).collect();
    let value = copy.value_of(node.operands[0], &point, None);
    copy.store_root(root, &point, value, 0);
    let copy = copy.finish(vars, Form::Elementwise);

    let mut lo = Lowerer::new(graph, &cluster.roots, is_root);
    let updates = graph.ty(node.operands[1]);
    let batch = updates.rank() - (node.ty.rank() - axes.len());
    let first = axes.iter().copied().min().unwrap_or(0) as usize;
    // The axes of the updates: those of the indices, then those of the base that are not indexed, in order.
    let outer = match who {
        Updates::Outer => batch..batch + first,
        Updates::Apart(_) => batch..updates.rank(),
        Updates::Serial | Updates::Blocks { .. } | Updates::Owners(_) | Updates::Turns(_) => batch..batch,
    };
    let (mut parallel, mut around, mut inner) = (vec![], vec![], vec![]);
    let mut block = None;
    for (a, extent) in updates.shape.iter().enumerate() {
        let mut extent = extent.clone();
        if let Updates::Blocks { axis, blocks } = who
            && a == batch + (0..axis).filter(|b| !axes.contains(&(*b as u8))).count()
        {
            extent = IndexExpr::floor_div(&extent, &IndexExpr::Const(blocks));
            block = Some((a, lo.new_var(IndexExpr::Const(blocks), 0), extent.clone()));
        }
        let (list, level) = match a {
            a if a < batch => (&mut around, 1),
            a if outer.contains(&a) => (&mut parallel, 0),
            _ => (&mut inner, 2),
        };
        list.push((a, lo.new_var(extent, level)));
    }
    let mut point: Index = smallvec![IndexExpr::ZERO; updates.rank()];
    for &(a, v) in parallel.iter().chain(&around).chain(&inner) {
        point[a] = v.into();
    }
    let vars_of = |list: &[(usize, VarId)]| -> Vec<VarId> { list.iter().map(|l| l.1).collect() };
    let (mut parallel, around, inner) = (vars_of(&parallel), vars_of(&around), vars_of(&inner));
    // Of what threads side by side have, the index is the same.
    let apart = parallel.len();
    let mut owned = None;
    if let Some((a, var, len)) = block {
        point[a] = IndexExpr::from(var) * len + point[a].clone();
        parallel.push(var);
    }

    lo.may_not_run = !lo.certainly_run(&around);
    let at: Index = point[..batch].into();
    let mut target: Index = smallvec![IndexExpr::ZERO; node.ty.rank()];
    let mut rest = point[batch..].iter();
    for (a, slot) in target.iter_mut().enumerate() {
        if !axes.contains(&(a as u8)) {
            *slot = rest.next().cloned().unwrap_or(IndexExpr::ZERO);
        }
    }
    let mut inside = None;
    for (&axis, &operand) in axes.iter().zip(&node.operands[2..]) {
        let extent = &node.ty.shape[axis as usize];
        let (place, ok) = match (who, extent.as_const()) {
            (Updates::Owners(owners), Some(n)) if axis as usize == first => {
                let len = IndexExpr::Const(n).ceil_div(owners.max(1));
                let owner = lo.new_var(extent.ceil_div(len.as_const().unwrap_or(1).max(1)), 0);
                parallel.push(owner);
                lo.owned_index(operand, &at, extent, IndexExpr::from(owner) * len.clone(), &len)
            }
            (Updates::Apart(owners), Some(n)) if axis as usize == first => {
                let len = (n + owners - 1) / owners.max(1);
                let mut start = IndexExpr::ZERO;
                if owners > 1 {
                    let owner = lo.new_var(IndexExpr::Const(n).ceil_div(len.max(1)), 0);
                    parallel.push(owner);
                    start = IndexExpr::from(owner) * IndexExpr::Const(len);
                }
                let (value, ok) = lo.value_owned(operand, &at, extent, start.clone(), len);
                // Where it lies is computed for what is owned alone.
                owned = Some((axis as usize, value, start, len));
                (IndexExpr::ZERO, ok)
            }
            (Updates::Turns(owners) | Updates::Apart(owners), None) if axis as usize == first && owners > 1 => {
                let owner = lo.new_var(IndexExpr::Const(owners), 0);
                parallel.push(owner);
                lo.turn_index(operand, &at, extent, owner, owners)
            }
            _ => lo.data_index(operand, &at, extent, None),
        };
        target[axis as usize] = place;
        inside = Some(lo.and(inside, ok));
    }
    let cond = inside.expect("scatter has an axis");

    // What depends on the updates is computed where the indices select something, not before.
    lo.levels.push(Level::default());
    around.iter().for_each(|v| lo.var_level[v.0 as usize] = 2);
    if let Some((axis, value, start, len)) = owned {
        let var = lo.new_var(IndexExpr::Const(len), 2);
        lo.push(2, Stmt::Clamp { var, value });
        target[axis] = start + var.into();
    }
    parallel.rotate_left(apart);
    let loops: Vec<VarId> = around.iter().chain(&inner).copied().collect();
    lo.may_not_run = !lo.certainly_run(&loops);
    let value = lo.value_of(node.operands[1], &point, None);
    let memory = Memory::Param(lo.param(root, Access::ReadWrite));
    let index = flat_index(&target, &node.ty.shape);
    let mut stored = value;
    if let Some(combine) = op.combine() {
        // Narrow floats combine in f32 and round after each update, as the scalar semantics say.
        let (old, new) = (lo.new_value(node.ty.dtype, 2), lo.new_value(node.ty.dtype, 2));
        let op = Op::Load {
            memory,
            index: index.clone(),
            mask: None,
        };
        lo.push(2, Stmt::Let { value: old, op });
        let op = Op::Map(combine, smallvec![old, value]);
        lo.push(2, Stmt::Let { value: new, op });
        stored = new;
    }
    lo.push(
        2,
        Stmt::Store {
            memory,
            index,
            value: stored,
            mask: None,
        },
    );
    let mut body = lo.levels.pop().map_or_else(Vec::new, |level| level.stmts);
    for &var in inner.iter().rev() {
        let bind = Bind::Serial;
        body = vec![Stmt::Loop { var, bind, body }];
    }
    if inner.iter().any(|v| lo.kernel.extents[v.0 as usize].is(0)) {
        // Nothing is updated, however many indices there are.
        lo.levels[1] = Level::default();
    } else {
        lo.push(1, Stmt::If { cond, body });
        lo.close_inner(&around);
    }
    vec![copy, lo.finish(parallel, Form::Updates)]
}

impl Lowerer<'_> {
    /// An index taken from data that is looked for in `start..start + len` alone: an index expression that is always inside of
    /// that range, and whether the data was, and inside of `0..extent`.
    fn owned_index(
        &mut self,
        operand: NodeId,
        at: &Index,
        extent: &IndexExpr,
        start: IndexExpr,
        len: &IndexExpr,
    ) -> (IndexExpr, ValueId) {
        let raw = self.value_of(operand, at, None);
        let value = self.convert(raw, DType::I64);
        let first = self.index_value(&start, DType::I64);
        // A number that is no index may wrap here, to one that is far outside of the range.
        let place = self.map(ScalarOp::Sub, &[value, first]);
        let zero = self.constant(DType::I64.zero());
        let low = self.map(ScalarOp::Le, &[zero, place]);
        let limit = self.index_value(len, DType::I64);
        let high = self.map(ScalarOp::Lt, &[place, limit]);
        let end = self.index_value(extent, DType::I64);
        let inside = self.map(ScalarOp::Lt, &[value, end]);
        let owned = self.map(ScalarOp::And, &[low, high]);
        let ok = self.map(ScalarOp::And, &[owned, inside]);
        let level = self.value_level[place.0 as usize];
        let var = self.new_var(len.clone(), level);
        self.push(level, Stmt::Clamp { var, value: place });
        (start + var.into(), ok)
    }

    /// What an index taken from data is from `start` on, and whether it lies in `start..start + len` and inside of `0..extent`.
    fn value_owned(
        &mut self,
        operand: NodeId,
        at: &Index,
        extent: &IndexExpr,
        start: IndexExpr,
        len: i64,
    ) -> (ValueId, ValueId) {
        let raw = self.value_of(operand, at, None);
        let value = self.convert(raw, DType::I64);
        let first = self.index_value(&start, DType::I64);
        // A number that is no index may wrap here, to one that is far outside of the range.
        let place = self.map(ScalarOp::Sub, &[value, first]);
        let count = IndexExpr::min(&IndexExpr::Const(len), &(extent.clone() - start));
        let count = self.index_value(&count, DType::I64);
        // What is negative is above all others without its sign.
        let operands = [place, count].map(|v| self.bitcast(v, DType::U64));
        (place, self.map(ScalarOp::Lt, &operands))
    }

    /// An index taken from data that counts only if dividing it by the number of owners leaves this owner's: an index expression
    /// with that remainder, and whether the data has it and is inside of `0..extent`.
    fn turn_index(
        &mut self,
        operand: NodeId,
        at: &Index,
        extent: &IndexExpr,
        owner: VarId,
        owners: i64,
    ) -> (IndexExpr, ValueId) {
        let (value, inside) = self.data_value(operand, at, extent, None, DType::I64);
        let count = self.constant(Scalar::from_i64(DType::I64, owners));
        let turn = self.map(ScalarOp::Div, &[value, count]);
        let first = self.map(ScalarOp::Mul, &[turn, count]);
        let remainder = self.map(ScalarOp::Sub, &[value, first]);
        let me = self.index_value(&owner.into(), DType::I64);
        let mine = self.map(ScalarOp::Eq, &[remainder, me]);
        let ok = self.map(ScalarOp::And, &[inside, mine]);
        let level = self.value_level[turn.0 as usize];
        let var = self.new_var(extent.ceil_div(owners), level);
        self.push(level, Stmt::Clamp { var, value: turn });
        (IndexExpr::from(var) * IndexExpr::Const(owners) + owner.into(), ok)
    }
}
