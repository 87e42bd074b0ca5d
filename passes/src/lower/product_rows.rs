//! Rows behind products: the nest of a contraction and the nest of what waits for whole rows of it, in one loop over the rows.
//!
//! ```text
//! for m { for n { sum; value[m, n] = f(sum) } }         for m {
//! for m { phases of the row value[m] }             =>     for n { sum; row[n] = f(sum) }
//!                                                         phases of the row
//!                                                       }
//! ```
//! What the first leaves for the second is a scratch of one row; others that need it have it in memory too.

use rustc_hash::FxHashMap;
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::visit::walk_mut;
use tlc_ir::kernel::{Bind, Kernel, Memory, Scope, Stmt, ValueId};
use tlc_ir::{Graph, NodeId, Precision};

use super::{Arg, Form, Nest, in_place, lower_loops};
use crate::cluster::{Cluster, ClusterKind, LoopSpace, ProductRows};
use crate::tree::store;

/// The two nests apart.
pub(super) fn apart(graph: &Graph, cluster: &Cluster, form: &ProductRows, is_root: &[bool]) -> [Nest; 2] {
    let nest = |(roots, space): &(Vec<NodeId>, LoopSpace)| {
        let stored = |r: &NodeId| *r == form.value || cluster.stored.contains(r);
        let part = Cluster {
            stored: roots.iter().copied().filter(stored).collect(),
            roots: roots.clone(),
            kind: ClusterKind::Loops(space.clone()),
            ..cluster.clone()
        };
        lower_loops(graph, &part, space, is_root, None)
    };
    [nest(&form.product), nest(&form.rows)]
}

/// The two nests in two kernels, between which the value is in memory.
pub(super) fn lower_apart(
    graph: &Graph,
    cluster: &Cluster,
    form: &ProductRows,
    is_root: &[bool],
    precision: Precision,
) -> Vec<Nest> {
    let [mut product, mut rows] = apart(graph, cluster, form, is_root);
    product.precision = precision;
    if !cluster.stored.contains(&form.value) {
        for nest in [&mut product, &mut rows] {
            for arg in nest.args.iter_mut().filter(|a| **a == Arg::Value(form.value)) {
                *arg = Arg::Temporary(0);
            }
        }
    }
    vec![product, rows]
}

pub(super) fn lower(
    graph: &Graph,
    cluster: &Cluster,
    form: &ProductRows,
    is_root: &[bool],
    precision: Precision,
) -> Nest {
    let [product, rows] = apart(graph, cluster, form, is_root);
    let kept = cluster.stored.contains(&form.value);
    let along = rows.parallel.len();
    let columns = IndexExpr::product(
        product.parallel[along..]
            .iter()
            .map(|v| &product.kernel.extents[v.0 as usize]),
    );
    let mut joined = Joined {
        value: form.value,
        kept,
        kernel: Kernel {
            symbols: product.kernel.symbols.clone(),
            ..Kernel::default()
        },
        args: Vec::new(),
        row: Memory::Scratch(0),
    };
    joined.row = joined
        .kernel
        .new_scratch(graph.ty(form.value).dtype, columns, Scope::Cache);
    let (loops, mut first) = joined.add(&product, &FxHashMap::default(), along);
    let (around, inside) = loops.split_at(along);
    let same = rows.parallel.iter().copied().zip(around.iter().copied()).collect();
    let (_, behind) = joined.add(&rows, &same, along);
    for &v in inside.iter().rev() {
        first = in_loop(v, first);
    }
    let mut body = first;
    body.extend(behind);
    for &v in around.iter().rev() {
        body = in_loop(v, body);
    }
    let mut kernel = joined.kernel;
    kernel.body = body;
    let parallel = around.to_vec();
    Nest {
        in_place: in_place::pairs(&kernel, &parallel),
        kernel,
        args: joined.args,
        parallel,
        form: Form::ProductRows {
            rows: form.tile[0],
            columns: form.tile[1],
        },
        precision,
        copies: false,
        columns: 0,
        column_local: false,
        column_blocks: product.column_blocks,
        of_vector: false,
        again: false,
    }
}

fn in_loop(var: VarId, body: Vec<Stmt>) -> Vec<Stmt> {
    vec![Stmt::Loop {
        var,
        bind: Bind::Serial,
        body,
    }]
}

/// A kernel that statements of others are added to.
struct Joined {
    /// What the one leaves for the other, in a row of scratch, and whether others need it.
    value: NodeId,
    kept: bool,
    row: Memory,
    kernel: Kernel,
    args: Vec<Arg>,
}

impl Joined {
    /// Adds what is in the parallel loops of a nest. Variables are new but for those that others stand for; of the parallel loops the first so many are
    /// those of rows. Returns the parallel loops and the statements in them.
    fn add(&mut self, nest: &Nest, known: &FxHashMap<VarId, VarId>, along: usize) -> (Vec<VarId>, Vec<Stmt>) {
        let from = &nest.kernel;
        let mut vars: Vec<VarId> = Vec::with_capacity(from.extents.len());
        for (number, extent) in from.extents.iter().enumerate() {
            let new = match known.get(&VarId(number as u32)) {
                Some(&same) => same,
                // Extents mention loops outside, which were made before.
                None => self
                    .kernel
                    .new_var(extent.replace_vars(&mut |v| Some(vars[v.0 as usize].into()))),
            };
            vars.push(new);
        }
        let values: Vec<ValueId> = from.values.iter().map(|d| self.kernel.new_value(*d)).collect();
        let scratch: Vec<Memory> = from
            .scratch
            .iter()
            .map(|s| self.kernel.new_scratch(s.dtype, s.len.clone(), s.scope))
            .collect();
        let own = nest.args.iter().position(|a| *a == Arg::Value(self.value));
        let params: Vec<Memory> = (0..nest.args.len()).map(|p| self.param(nest, p)).collect();
        let mut body = &from.body;
        for _ in &nest.parallel {
            if let [Stmt::Loop { body: inside, .. }] = &body[..] {
                body = inside;
            }
        }
        let mut body = body.clone();
        let passed = own.map(|p| Memory::Param(p as u32));
        walk_mut(&mut body, &mut |s| {
            for v in s.operands_mut() {
                *v = values[v.0 as usize];
            }
            if let Some(v) = s.defined_value_mut() {
                *v = values[v.0 as usize];
            }
            for v in s.defined_vars_mut() {
                *v = vars[v.0 as usize];
            }
            for e in s.indices_mut().filter(|e| e.has_vars()) {
                *e = e.replace_vars(&mut |v| Some(vars[v.0 as usize].into()));
            }
        });
        let parallel: Vec<VarId> = nest.parallel.iter().map(|v| vars[v.0 as usize]).collect();
        let rows = &parallel[..along];
        // What the value has in other rows lies before.
        let in_row = |index: &IndexExpr, kernel: &Kernel| {
            let first = |v: VarId| rows.contains(&v).then_some(IndexExpr::ZERO);
            index.replace_vars(&mut { first }).simplify(kernel)
        };
        self.pass_on(&mut body, passed, &in_row);
        walk_mut(&mut body, &mut |s| {
            for a in s.accesses_mut() {
                *a.memory = match *a.memory {
                    Memory::Param(p) if p == u32::MAX => self.row,
                    Memory::Param(p) => params[p as usize],
                    Memory::Scratch(i) => scratch[i as usize],
                };
            }
        });
        (parallel, body)
    }

    /// Has accesses of the value go to the row of scratch, which is a parameter beyond all others until memories are renamed.
    fn pass_on(&self, body: &mut Vec<Stmt>, passed: Option<Memory>, in_row: &dyn Fn(&IndexExpr, &Kernel) -> IndexExpr) {
        let row = Memory::Param(u32::MAX);
        let mut out = Vec::with_capacity(body.len());
        for mut s in std::mem::take(body) {
            if let Some(inside) = s.body_mut() {
                self.pass_on(inside, passed, in_row);
            }
            let mut stored = None;
            for a in s.accesses_mut().filter(|a| Some(*a.memory) == passed) {
                let index = in_row(a.index, &self.kernel);
                if a.effect.writes() && self.kept {
                    stored = Some(index);
                } else {
                    (*a.memory, *a.index) = (row, index);
                }
            }
            if let (Some(index), Stmt::Store { value, mask, .. }) = (stored, &s) {
                out.push(store(row, index, *value, *mask));
            }
            out.push(s);
        }
        *body = out;
    }

    /// The parameter of a nest, which may be there already.
    fn param(&mut self, nest: &Nest, number: usize) -> Memory {
        let (arg, param) = (nest.args[number], &nest.kernel.params[number]);
        if arg == Arg::Value(self.value) && !self.kept {
            return self.row;
        }
        let found = self.args.iter().position(|a| *a == arg);
        let at = found.unwrap_or_else(|| {
            self.args.push(arg);
            self.kernel.params.push(param.clone());
            self.args.len() - 1
        });
        Memory::Param(at as u32)
    }
}
