//! Tiles whose elements go to the threads of a block, whole or not.
//!
//! A tile at the end of a tensor is smaller than others. Threads have the same elements of each tile all the same, by shifts of their numbers where sides
//! are powers of two, and leave out those that there are none of: nothing divides by the sides of a smaller tile.

use smallvec::smallvec;
use tlc_ir::index::{IndexExpr, IndexNode, VarId};
use tlc_ir::kernel::{Bind, Kernel, Op, Stmt};
use tlc_ir::target::MAX_BLOCK_THREADS;
use tlc_ir::{DType, ScalarOp};

use super::accumulators::accumulations;
use super::directives::{nested, rewrite};
use crate::directive::DirectiveRefusal;
use crate::tree::substitute_in;

/// Whether an expression is a multiple of a number, by its form.
pub(super) fn is_multiple(e: &IndexExpr, of: i64) -> bool {
    let node = |e: &IndexExpr| match e {
        IndexExpr::Node(n) => match &**n {
            IndexNode::Min(a, b) | IndexNode::Max(a, b) => is_multiple(a, of) && is_multiple(b, of),
            IndexNode::Product(factors) => factors.iter().any(|f| is_multiple(f, of)),
            _ => false,
        },
        IndexExpr::Const(c) => c % of == 0,
    };
    let (terms, constant) = e.linear();
    constant % of == 0 && terms.iter().all(|(term, times)| times % of == 0 || node(term))
}

/// Gives the iterations of two nested loops over a tile to threads, `lanes` neighbours at a time; returns the thread loop and that over the neighbours.
pub(super) fn distribute_tile(
    kernel: &mut Kernel,
    [outer, inner]: [VarId; 2],
    [rows, columns]: [i64; 2],
    lanes: i64,
    threads: i64,
) -> Result<Vec<VarId>, DirectiveRefusal> {
    if !(1..=MAX_BLOCK_THREADS).contains(&threads) || !(threads as u64).is_power_of_two() {
        return Err(DirectiveRefusal::Threads(threads));
    }
    let body = nested(kernel, outer, inner)?;
    let mut states = Vec::new();
    accumulations(body, &mut states);
    if !states.is_empty() {
        return Err(DirectiveRefusal::Recurrence(inner));
    }
    let ends = [outer, inner].map(|v| kernel.extents[v.0 as usize].clone());
    for (end, most) in ends.iter().zip([rows, columns]) {
        if most < 1 || end.interval(kernel).hi > most {
            return Err(DirectiveRefusal::NoDivision);
        }
    }
    if lanes < 1 || columns % lanes != 0 || !is_multiple(&ends[1], lanes) {
        return Err(DirectiveRefusal::Neighbours(lanes));
    }
    let across = columns / lanes;
    if threads % across != 0 || rows % (threads / across) != 0 {
        return Err(DirectiveRefusal::Threads(threads));
    }
    let down = threads / across;
    let thread = kernel.new_var(IndexExpr::Const(threads));
    let turns = rows / down;
    let turn = (turns > 1).then(|| kernel.new_var(IndexExpr::Const(turns)));
    let lane = kernel.new_var(IndexExpr::Const(lanes));
    let [across, down, lanes] = [across, down, lanes].map(IndexExpr::Const);
    let mut row = IndexExpr::floor_div(&thread.into(), &across);
    if let Some(turn) = turn {
        row = row + IndexExpr::from(turn) * down;
    }
    let first = IndexExpr::modulo(&thread.into(), &across) * lanes.clone();
    let (row, first) = (row.simplify(kernel), first.simplify(kernel));
    let column = first.clone() + lane.into();
    let at = |v: VarId| match v {
        v if v == outer => Some(row.clone()),
        v if v == inner => Some(column.clone()),
        _ => None,
    };
    rewrite(kernel, outer, &mut |kernel, _, body| {
        let mut inside = match body.into_iter().next() {
            Some(Stmt::Loop { body, .. }) => body,
            _ => Vec::new(),
        };
        substitute_in(kernel, &mut inside, &mut |v| at(v));
        let mut out = vec![Stmt::Loop {
            var: lane,
            bind: Bind::Serial,
            body: inside,
        }];
        // The last of the neighbours is inside if any is.
        let last = first.clone() + lanes.clone() - IndexExpr::ONE;
        for (place, end, most) in [(last, &ends[1], columns), (row.clone(), &ends[0], rows)] {
            if !end.is(most) {
                out = where_below(kernel, place, end.clone(), out);
            }
        }
        if let Some(var) = turn {
            out = vec![Stmt::Loop {
                var,
                bind: Bind::Serial,
                body: out,
            }];
        }
        vec![Stmt::Loop {
            var: thread,
            bind: Bind::Thread,
            body: out,
        }]
    });
    Ok(vec![thread, lane])
}

/// Statements that run where a place is below an end.
fn where_below(kernel: &mut Kernel, place: IndexExpr, end: IndexExpr, body: Vec<Stmt>) -> Vec<Stmt> {
    let fits = |e: &IndexExpr| i32::try_from(e.interval(kernel).hi).is_ok();
    let dtype = if fits(&place) && fits(&end) {
        DType::I32
    } else {
        DType::I64
    };
    let (at, limit) = (kernel.new_value(dtype), kernel.new_value(dtype));
    let cond = kernel.new_value(DType::Bool);
    let define = |value, op| Stmt::Let { value, op };
    vec![
        define(at, Op::Index(place, dtype)),
        define(limit, Op::Index(end, dtype)),
        define(cond, Op::Map(ScalarOp::Lt, smallvec![at, limit])),
        Stmt::If { cond, body },
    ]
}
