//! Windows that slide: several rows of results, whose windows share rows of the image, go through the image row by row.
//!
//! Rows of results that are computed together read an element of the image once for each row of the window that meets it. Here each is
//! loaded once, and added to all results that it is a part of:
//!
//! ```text
//! for q in K { for w in L { for r in R { acc[r] += x[q + s r, w] * y[q, w] } } }
//! ```
//! becomes, for each row `u` of the image in turn,
//! ```text
//! for w in L { x = x[u, w]; acc[r] += x * y[q, w] for each q + s r = u }
//! ```
//! A result takes its products in the same order, because it meets one `q` in each `u`.

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::{Bind, Kernel, Memory, Op, Scope, Stmt, ValueId};

use super::directives::{exists, loop_bind, rewrite};
use super::pack::cone;
use super::peel::{Known, decided};
use crate::directive::{DirectiveRefusal, MOST_SLIDING_PRODUCTS};

/// Rows of an image from one row of results to the next, at most: those of small windows share none that are further apart.
pub(super) const MOST_ROWS_APART: i64 = 8;

/// The nest of a loop over the rows of a window, taken apart.
struct Nest {
    /// The loop over elements of a row of the window.
    across: VarId,
    /// The loop over rows of results.
    rows: VarId,
    /// The loop over results of a row, which go to lanes.
    lanes: VarId,
    /// All that is computed in them, in order.
    computed: Vec<Stmt>,
    /// The sum.
    sum: Stmt,
    /// What of the image is added.
    image: ValueId,
    /// What else it is multiplied by.
    others: SmallVec<[ValueId; 2]>,
    /// Rows of the image from a row of results to the next.
    step: i64,
}

fn nest(kernel: &Kernel, var: VarId) -> Result<Nest, DirectiveRefusal> {
    let refused = || DirectiveRefusal::NotASum(var);
    let alone = |v: VarId| matches!(loop_bind(&kernel.body, v), Some(Bind::Serial | Bind::Unroll));
    let Some((Stmt::Loop { var: across, body, .. }, around)) = exists(kernel, var)?.split_last() else {
        return Err(refused());
    };
    let Some((
        Stmt::Loop {
            var: rows,
            bind: Bind::Unroll,
            body: inner,
        },
        before,
    )) = body.split_last()
    else {
        return Err(refused());
    };
    let Some((
        Stmt::Loop {
            var: lanes,
            bind: Bind::Lanes,
            body,
        },
        row,
    )) = inner.split_last()
    else {
        return Err(refused());
    };
    let Some((sum @ Stmt::Accumulate { state, values, .. }, within)) = body.split_last() else {
        return Err(refused());
    };
    let computed: Vec<Stmt> = around.iter().chain(before).chain(row).chain(within).cloned().collect();
    let defines = |s: &Stmt| matches!(s, Stmt::Let { .. });
    let [(Memory::Scratch(accumulator), at)] = &state[..] else {
        return Err(refused());
    };
    let register = kernel.scratch[*accumulator as usize].scope == Scope::Register;
    let apart = register && !at.uses(var) && !at.uses(*across);
    let reads = |s: &Stmt| s.accesses().any(|a| a.memory == Memory::Scratch(*accumulator));
    if !alone(var) || !alone(*across) || !apart || !computed.iter().all(defines) || computed.iter().any(reads) {
        return Err(refused());
    }
    // What differs from row to row.
    let mut varies: FxHashSet<ValueId> = FxHashSet::default();
    for s in &computed {
        if s.indices().any(|e| e.uses(*rows)) || s.operands().any(|v| varies.contains(&v)) {
            varies.extend(s.defined_value());
        }
    }
    let (of_image, others): (SmallVec<[ValueId; 2]>, _) = values.iter().copied().partition(|v| varies.contains(v));
    let [image] = of_image[..] else { return Err(refused()) };
    let (cone, _) = cone(&computed, image);
    let indices: Vec<&IndexExpr> = cone.iter().flat_map(|s| s.indices()).collect();
    // How far apart rows of an image of unknown size lie is not known, but how many of them a row of results is.
    let by = |v: VarId| Some(indices.iter().find(|e| e.uses(*rows))?.affine_in(v)?.0);
    let (row, element) = by(*rows).zip(by(var)).ok_or_else(refused)?;
    let is_apart = |step: &i64| {
        (row.clone() - element.clone() * IndexExpr::Const(*step))
            .simplify(kernel)
            .is(0)
    };
    let moves = !element.simplify(kernel).is(0) && element.as_const().is_none_or(|n| n > 0);
    let step = (1..=MOST_ROWS_APART)
        .find(is_apart)
        .filter(|_| moves)
        .ok_or_else(refused)?;
    let same = |e: &&IndexExpr| {
        let to = |v: VarId| match v {
            v if v == *rows => Some(IndexExpr::ZERO),
            v if v == var => Some(IndexExpr::from(var) + IndexExpr::from(*rows) * IndexExpr::Const(step)),
            _ => None,
        };
        e.replace_vars(&mut |v| to(v)).simplify(kernel) == e.simplify(kernel)
    };
    match indices.iter().all(same) {
        true => Ok(Nest {
            across: *across,
            rows: *rows,
            lanes: *lanes,
            computed,
            sum: sum.clone(),
            image,
            others,
            step,
        }),
        false => Err(refused()),
    }
}

/// Whether the loop is one that [`slide`] takes.
pub(super) fn slides(kernel: &Kernel, var: VarId) -> bool {
    nest(kernel, var).is_ok()
}

/// Statements of one lane that are made one after another: what is computed twice of the same is computed once.
struct Line {
    statements: Vec<Stmt>,
    known: FxHashMap<Op, ValueId>,
    /// Whether what is loaded stays in a register.
    held: bool,
}

impl Line {
    /// Adds definitions with other variables in their indices; `names` says what became of values before, and then also of theirs.
    fn define(
        &mut self,
        kernel: &mut Kernel,
        computed: &[Stmt],
        at: &dyn Fn(VarId) -> Option<IndexExpr>,
        names: &mut FxHashMap<ValueId, ValueId>,
    ) {
        for s in computed {
            let Stmt::Let { value, op } = s else { continue };
            let mut made = Stmt::Let {
                value: *value,
                op: op.clone(),
            };
            for v in made.operands_mut() {
                *v = *names.get(v).unwrap_or(v);
            }
            for e in made.indices_mut() {
                *e = e.replace_vars(&mut |v| at(v)).simplify(kernel);
            }
            let Stmt::Let { op, .. } = made else { continue };
            let kept = self.held || !matches!(op, Op::Load { .. });
            let name = match self.known.get(&op).filter(|_| kept) {
                Some(same) => *same,
                None => {
                    let new = kernel.new_value(kernel.dtype(*value));
                    self.known.insert(op.clone(), new);
                    self.statements.push(Stmt::Let { value: new, op });
                    new
                }
            };
            names.insert(*value, name);
        }
    }
}

/// Has a loop over the rows of a window, around those over its elements, over rows of results and over lanes, go along the image, and
/// what its elements are multiplied by stay in registers if that is asked for. Returns no loop.
pub(super) fn slide(kernel: &mut Kernel, var: VarId, held: bool) -> Result<Vec<VarId>, DirectiveRefusal> {
    let n = nest(kernel, var)?;
    let extent = |v: VarId| {
        let n = kernel.extents[v.0 as usize].as_const().filter(|n| *n >= 1);
        n.ok_or(DirectiveRefusal::NotConstant(v))
    };
    let (window, across, rows) = (extent(var)?, extent(n.across)?, extent(n.rows)?);
    let products = window.checked_mul(across).and_then(|w| w.checked_mul(rows));
    if products.is_none_or(|p| p > MOST_SLIDING_PRODUCTS) {
        return Err(DirectiveRefusal::TooLong {
            var,
            most: MOST_SLIDING_PRODUCTS,
        });
    }
    let lanes = extent(n.lanes)?;
    let lane = kernel.new_var(IndexExpr::Const(lanes));
    let constants = Known::constants(kernel);
    let image = cone(&n.computed, n.image).0;
    let others: Vec<Stmt> = n.others.iter().flat_map(|v| cone(&n.computed, *v).0).collect();
    let mut line = Line {
        statements: Vec::new(),
        known: FxHashMap::default(),
        held,
    };
    for u in 0..(rows - 1) * n.step + window {
        // Where a row of the window meets one of results.
        let pairs: Vec<(i64, i64)> = (0..window.min(u + 1))
            .filter(|q| (u - q) % n.step == 0)
            .map(|q| (q, (u - q) / n.step))
            .filter(|(_, r)| *r < rows)
            .collect();
        if pairs.is_empty() {
            continue;
        }
        for w in 0..across {
            let at = |q: i64, r: i64| {
                move |v: VarId| match v {
                    v if v == var => Some(IndexExpr::Const(q)),
                    v if v == n.rows => Some(IndexExpr::Const(r)),
                    v if v == n.across => Some(IndexExpr::Const(w)),
                    v if v == n.lanes => Some(lane.into()),
                    _ => None,
                }
            };
            let mut of_image = FxHashMap::default();
            line.define(kernel, &image, &at(u, 0), &mut of_image);
            for &(q, r) in &pairs {
                let mut names = FxHashMap::default();
                line.define(kernel, &others, &at(q, r), &mut names);
                names.insert(n.image, of_image[&n.image]);
                let mut sum = n.sum.clone();
                for v in sum.operands_mut() {
                    *v = *names.get(v).unwrap_or(v);
                }
                for e in sum.indices_mut() {
                    *e = e.replace_vars(&mut |v| at(q, r)(v)).simplify(kernel);
                }
                line.statements.push(sum);
            }
        }
    }
    let body = vec![Stmt::Loop {
        var: lane,
        bind: Bind::Lanes,
        body: line.statements,
    }];
    // What lies above or below the image is known to.
    let mut body = decided(kernel, body, constants);
    rewrite(kernel, var, &mut |_, _, _| std::mem::take(&mut body));
    Ok(Vec::new())
}
