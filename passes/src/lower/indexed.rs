//! Lowering of scans and scatters: recurrences that run serially along part of their space.

use smallvec::smallvec;
use tlc_ir::graph::ScatterOp;
use tlc_ir::index::IndexExpr;
use tlc_ir::kernel::{Access, Memory, Op, Scope, Stmt};
use tlc_ir::{Graph, NodeKind};

use super::{Form, Lowerer, Nest};
use crate::access::{Index, flat_index};
use crate::cluster::Cluster;

/// A scan: parallel over the other axes, serial along its own, the running value in a register.
pub(super) fn lower_scan(graph: &Graph, cluster: &Cluster, is_root: &[bool]) -> Nest {
    let root = cluster.roots[0];
    let node = graph.node(root);
    let NodeKind::Scan {
        monoid,
        axis,
        exclusive,
        reverse,
    } = node.kind
    else {
        unreachable!("a scan cluster")
    };
    let mut lo = Lowerer::new(graph, &cluster.roots, is_root);
    let mut parallel = Vec::new();
    let mut point = Index::new();
    let mut along = None;
    for (a, extent) in node.ty.shape.iter().enumerate() {
        if a == axis as usize {
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
    lo.trips[1] = node.ty.elements();
    lo.current_loop = 1;
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
    lo.flops = lo.flops.clone() + node.ty.elements();
    lo.close_inner(&[along]);
    lo.finish(parallel, Form::Serial)
}

/// A scatter: the base is copied, then the updates apply one after another in C order.
pub(super) fn lower_scatter(graph: &Graph, cluster: &Cluster, is_root: &[bool]) -> Vec<Nest> {
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
    let vars: Vec<_> = updates.shape.iter().map(|d| lo.new_var(d.clone(), 1)).collect();
    let point: Index = vars.iter().map(|&v| v.into()).collect();
    lo.may_not_run = !lo.certainly_run(&vars);
    let batch = point.len() - (node.ty.rank() - axes.len());
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
        let (var, ok) = lo.data_index(operand, &at, &node.ty.shape[axis as usize], None);
        target[axis as usize] = var;
        inside = Some(lo.and(inside, ok));
    }
    let cond = inside.expect("scatter has an axis");
    let value = lo.value_of(node.operands[1], &point, None);
    let memory = Memory::Param(lo.param(root, Access::ReadWrite));
    let index = flat_index(&target, &node.ty.shape);
    let apply = match (op, op.combine()) {
        (ScatterOp::Set, _) | (_, None) => Stmt::Store {
            memory,
            index,
            value,
            mask: None,
        },
        (_, Some(combine)) => {
            // Narrow floats combine in f32 and round after each update, as the scalar semantics say.
            let old = lo.new_value(node.ty.dtype, 1);
            let new = lo.new_value(node.ty.dtype, 1);
            let body = vec![
                Stmt::Let {
                    value: old,
                    op: Op::Load {
                        memory,
                        index: index.clone(),
                        mask: None,
                    },
                },
                Stmt::Let {
                    value: new,
                    op: Op::Map(combine, smallvec![old, value]),
                },
                Stmt::Store {
                    memory,
                    index,
                    value: new,
                    mask: None,
                },
            ];
            lo.push(1, Stmt::If { cond, body });
            return vec![copy, finish_scatter(lo, &vars)];
        }
    };
    lo.push(
        1,
        Stmt::If {
            cond,
            body: vec![apply],
        },
    );
    vec![copy, finish_scatter(lo, &vars)]
}

fn finish_scatter(mut lo: Lowerer<'_>, vars: &[tlc_ir::VarId]) -> Nest {
    lo.close_inner(vars);
    lo.finish(Vec::new(), Form::Serial)
}
