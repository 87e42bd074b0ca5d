//! What column-local nests need: the width of a tile, and values that are computed once a column.
//!
//! In column form the loop over the columns of a tile is the innermost, so that what depends on the column only (the
//! logarithm of its sum, the root of its variance) would be computed again in every row. Where that is costly, a loop over
//! the columns computes it before the rows and keeps it in scratch, an element a column.

use rustc_hash::{FxHashMap, FxHashSet};
use tlc_ir::graph::Shape;
use tlc_ir::index::{IndexExpr, IndexNode, VarId};
use tlc_ir::kernel::{Bind, Memory, Op, Scope, Stmt, ValueId, visit};
use tlc_ir::scalar::Cost;

use super::Lowerer;
use crate::access::{Index, space};
use crate::cluster::columns::tile_width;
use crate::cluster::{Cluster, LoopSpace, Role};
use crate::tree::{clone_fresh, substitute};

impl Lowerer<'_> {
    /// The width of a column-local tile: its rows and what is staged of them stay in cache.
    pub(super) fn local_tile(&self, columns: &Shape, loop_space: &LoopSpace, cluster: &Cluster) -> i64 {
        let longest = cluster.roots.iter().zip(&loop_space.roles).map(|(&root, roles)| {
            let s = space(self.graph, root);
            let inner = roles.iter().zip(&s.extents);
            let rows = inner
                .filter(|(r, _)| matches!(r, Role::Inner(_)))
                .fold(IndexExpr::ONE, |n, (_, d)| n * d.clone());
            rows.interval(self.graph).hi
        });
        let rows = longest.max().unwrap_or(1);
        let staged = self.stage.iter().map(|&n| self.graph.ty(n).dtype.bytes() as i64);
        tile_width(columns, rows.saturating_mul(staged.sum()), cluster.resident_bytes)
    }

    /// Whether an index moves with the rows of a column-local nest.
    pub(super) fn walks_rows_of_columns(&self, index: &Index) -> bool {
        let rows = &self.rows_of_columns;
        !rows.is_empty()
            && index.iter().any(|e| {
                let mut found = false;
                e.visit_atoms(&mut |a| found |= matches!(a, IndexNode::Var(v) if rows.contains(v)));
                found
            })
    }

    /// Takes what is costly and the same in all rows of a column out of the rows that are being written.
    pub(super) fn once_a_column(&mut self, column: VarId, width: &IndexExpr) {
        if self.rows_of_columns.is_empty() {
            return;
        }
        let stmts = std::mem::take(&mut self.levels[1].stmts);
        let frontier = self.costly_in_columns(&stmts, column);
        if frontier.is_empty() {
            self.levels[1].stmts = stmts;
            return;
        }
        let mut kept: FxHashMap<ValueId, Memory> = FxHashMap::default();
        let mut once = needed(&stmts, frontier.iter().copied().collect());
        for &value in &frontier {
            let memory = self
                .kernel
                .new_scratch(self.kernel.dtype(value), width.clone(), Scope::Cache);
            once.push(Stmt::Store {
                memory,
                index: column.into(),
                value,
                mask: None,
            });
            kept.insert(value, memory);
        }
        let mut once = clone_fresh(&mut self.kernel, &once);
        self.value_level.resize(self.kernel.values.len(), 1);
        let fresh = self.new_var(self.kernel.extents[column.0 as usize].clone(), 1);
        substitute(&mut once, &mut |v| (v == column).then(|| fresh.into()));
        self.levels[0].stmts.push(Stmt::Loop {
            var: fresh,
            bind: Bind::Serial,
            body: once,
        });
        let loaded: Vec<Stmt> = stmts
            .into_iter()
            .map(|s| match s {
                Stmt::Let { value, .. } if kept.contains_key(&value) => Stmt::Let {
                    value,
                    op: Op::Load {
                        memory: kept[&value],
                        index: column.into(),
                        mask: None,
                    },
                },
                s => s,
            })
            .collect();
        self.levels[1].stmts = needed(&loaded, FxHashSet::default());
    }

    /// Values that do not change from row to row, cost more than to load them, and are used by what does change.
    fn costly_in_columns(&self, stmts: &[Stmt], column: VarId) -> Vec<ValueId> {
        let writes = stmts.iter().flat_map(|s| s.accesses()).filter(|a| a.effect.writes());
        let written: Vec<Memory> = writes.map(|a| a.memory).collect();
        let still = |e: &IndexExpr| {
            let mut still = true;
            e.visit_atoms(&mut |a| {
                if let IndexNode::Var(v) = a {
                    still &= *v == column || self.var_level[v.0 as usize] == 0;
                }
            });
            still
        };
        // The loop over the columns runs where the rows may not.
        let rows_run = self.certainly_run(&self.rows_of_columns);
        let safe = |memory: Memory, e: &IndexExpr, masked: bool| rows_run || (!masked && self.in_bounds(memory, e));
        // Values defined here: whether they stay the same, and if so whether they are costly.
        let mut here: FxHashMap<ValueId, Option<bool>> = FxHashMap::default();
        let mut frontier = Vec::new();
        let mut meet = |here: &FxHashMap<ValueId, Option<bool>>, v: ValueId| {
            if here.get(&v) == Some(&Some(true)) && !frontier.contains(&v) {
                frontier.push(v);
            }
        };
        for s in stmts {
            match s {
                Stmt::Let { value, op } => {
                    let args = op.operands();
                    let fixed = args.iter().all(|v| here.get(v).is_none_or(Option::is_some))
                        && op.index().is_none_or(still)
                        && op.access().is_none_or(|a| {
                            !written.contains(&a.memory) && safe(a.memory, a.index, a.is_conditional())
                        });
                    if fixed {
                        let below = args.iter().any(|v| here.get(v) == Some(&Some(true)));
                        here.insert(*value, Some(below || costly(op)));
                    } else {
                        args.iter().for_each(|&v| meet(&here, v));
                        here.insert(*value, None);
                    }
                }
                s => s.operands().for_each(|v| meet(&here, v)),
            }
        }
        frontier
    }
}

/// Whether an operation costs more than a load.
fn costly(op: &Op) -> bool {
    match op {
        Op::Map(op, _) => op.cost() >= Cost::Division,
        _ => false,
    }
}

/// The statements without definitions that nothing uses: neither what follows nor `wanted`. With `wanted`, only what it
/// needs.
fn needed(stmts: &[Stmt], mut wanted: FxHashSet<ValueId>) -> Vec<Stmt> {
    let only = !wanted.is_empty();
    let mut out = Vec::new();
    for s in stmts.iter().rev() {
        let needed = match s.defined_value() {
            Some(value) => wanted.contains(&value),
            None => !only,
        };
        if needed {
            wanted.extend(visit::walk(std::slice::from_ref(s)).flat_map(|s| s.operands()));
            out.push(s.clone());
        }
    }
    out.reverse();
    out
}
