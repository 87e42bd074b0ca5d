//! Schedule directives: transformations of a loop nest that keep its result.
//!
//! A directive names loops by variable, checks its own precondition and answers why it does not apply; it never applies
//! in part. New variables are numbered deterministically, so a list of directives is a schedule that can be replayed.

use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::visit::{Effect, walk};
use tlc_ir::kernel::{Bind, CopyNest, Kernel, Memory, Scope, Stmt};

use super::tree::{clone_fresh, count_divisions, loop_body, replace_loop, substitute_in};
use super::{accumulators, inward, stage, threads};
use crate::made::{Made, made};

/// One transformation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Directive {
    /// `for v in n` becomes `for o in n div factor { for i in factor }`, then `for t in n mod factor` where that is not
    /// known to be empty. Answers `[o, i, t]`, without `o` where the factor is not below `n`.
    Split {
        /// The loop.
        var: VarId,
        /// Iterations of the inner loop.
        factor: i64,
    },
    /// `for v in n` becomes `for o in ceil(n / factor) { for i in min(factor, n - o * factor) }`: no tail, but an inner
    /// extent that varies. Answers `[o, i]`.
    Block {
        /// The loop.
        var: VarId,
        /// The most iterations of the inner loop.
        factor: i64,
    },
    /// Two perfectly nested loops become one. Answers the new variable.
    Fuse {
        /// The outer loop, whose body is just the inner.
        outer: VarId,
        /// The inner loop.
        inner: VarId,
    },
    /// As `Fuse`, also where the inner extent may be zero: indices divide by `max(extent, 1)`, which costs divisions that
    /// cannot cancel. Answers the new variable.
    FuseGuarded {
        /// The outer loop, whose body is just the inner.
        outer: VarId,
        /// The inner loop.
        inner: VarId,
    },
    /// Two perfectly nested loops swap places.
    Interchange {
        /// The outer loop, whose body is just the inner.
        outer: VarId,
        /// The inner loop.
        inner: VarId,
    },
    /// Sets how a loop runs.
    Bind {
        /// The loop.
        var: VarId,
        /// How.
        bind: Bind,
    },
    /// Gives every iteration of `var` accumulators of its own in registers, for the accumulations inside; they are set to
    /// the identity before the loop `around` and combined behind it.
    RFactor {
        /// The loop whose iterations become independent.
        var: VarId,
        /// The loop, at or outside `var`, around which the accumulators live.
        around: VarId,
    },
    /// Accumulates the iterations of `var` in a register first, and its result once into the accumulator.
    Privatize {
        /// The loop.
        var: VarId,
        /// The lanes loop outside it, if there is one.
        lanes: Option<VarId>,
    },
    /// Copies what two nested loops load across rows to scratch first, turned, so that the inner loop loads side by side.
    /// Answers the outer loops of the copies, one per staged load.
    Stage {
        /// The loop that walks along the loaded rows.
        outer: VarId,
        /// The loop inside it that walks from row to row.
        inner: VarId,
        /// The most iterations of the outer loop.
        rows: i64,
        /// The most iterations of the inner loop.
        columns: i64,
    },
    /// Stores of a loop to a parameter go to scratch first, which is copied behind the loop. Answers the copying loop.
    StageStores {
        /// The loop, which stores side by side.
        var: VarId,
        /// The parameter.
        param: u32,
        /// The most iterations of the loop.
        length: i64,
    },
    /// Sends the rows of a few elements that iterations of `var` load and store, one each, through scratch that holds them
    /// turned. Answers the copying loops.
    StageRows {
        /// The loop over rows.
        var: VarId,
        /// The most iterations of the loop.
        pitch: i64,
    },
    /// Runs several iterations of `var` at once, one in each lane, with the loops inside unrolled; then what is left one by
    /// one. Answers `[o, l, t]` as a split does.
    Across {
        /// The loop.
        var: VarId,
        /// Iterations at once.
        lanes: i64,
    },
    /// Splits a loop whose iterations may run in any order; each part has registers of its own. Answers `[o, i]`, and `t` for
    /// what is left over.
    Pieces {
        /// The loop.
        var: VarId,
        /// Iterations of a piece.
        factor: i64,
        /// Whether what is left over is a whole piece, which ends where the loop ends and computes some results again. The
        /// loop then has at least `factor` iterations, and loads nothing whose place a result may take.
        again: bool,
    },
    /// Moves a loop, whose iterations may run in any order, inside the loops of its body: each run of statements becomes an
    /// unrolled loop over it. Answers these loops.
    Inward {
        /// The loop.
        var: VarId,
    },
    /// A loop that finds the position of an extremum takes the extremum of whole blocks, then searches the block that has
    /// it; then what is left as before. Answers the loop over blocks, and the one over the rest if there may be one.
    Narrow {
        /// The loop.
        var: VarId,
        /// Positions side by side.
        lanes: i64,
        /// Vectors of that many lanes in a block.
        vectors: i64,
        /// Whether sums of squares look for NaN in f32 and f64, which takes a multiply-add an element.
        squares: bool,
    },
    /// The first and the last iterations run in loops of their own, so that what is conditional at the edges is not in the
    /// middle. Answers the loops, without empty ones.
    Peel {
        /// The loop, which has at least as many iterations as are peeled.
        var: VarId,
        /// The first iteration of the middle.
        from: i64,
        /// Iterations behind the middle.
        behind: i64,
    },
    /// The whole body becomes the body of a loop with one iteration. Answers its variable.
    Enclose,
    /// Moves scratch to another kind of memory.
    Place {
        /// Number of the scratch.
        scratch: u32,
        /// Where it goes.
        scope: Scope,
    },
    /// The iterations of `var` go to the threads of a GPU block in turn, each thread running the loops from `around` to
    /// `var` for its share; accumulations get an accumulator per thread, combined through shared memory. Answers the
    /// thread variable. Barriers are `Synchronize`'s business.
    Distribute {
        /// The outermost of a perfect nest of loops.
        around: VarId,
        /// The innermost.
        var: VarId,
        /// Threads: a power of two.
        threads: i64,
    },
    /// Stores directly in the body of a block loop go to its first thread.
    OneThread {
        /// The block loop.
        block: VarId,
    },
    /// Puts barriers between statements of a block loop of which one writes shared memory that the other uses.
    Synchronize {
        /// The block loop.
        block: VarId,
    },
}

/// Why a directive does not apply.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// No loop has that variable.
    #[error("there is no loop i{}", .0.0)]
    NoLoop(VarId),
    /// No such scratch.
    #[error("there is no scratch {0}")]
    NoScratch(u32),
    /// The two loops are not perfectly nested.
    #[error("loops i{} and i{} are not perfectly nested", .0.0, .1.0)]
    NotNested(VarId, VarId),
    /// An extent depends on the other loop.
    #[error("the extent of i{} depends on i{}", .0.0, .1.0)]
    DependentExtent(VarId, VarId),
    /// The order of iterations matters.
    #[error("iterations of i{} depend on each other", .0.0)]
    Recurrence(VarId),
    /// Vector lanes and registers need a constant extent.
    #[error("the extent of i{} is not a constant up to {}", .0.0, MAX_UNROLL)]
    NotConstant(VarId),
    /// Dividing by an extent that may be zero.
    #[error("the extent of i{} may be zero", .0.0)]
    MayBeEmpty(VarId),
    /// Registers are indexed by unrolled loops and lanes only.
    #[error("loop i{} is neither unrolled nor in lanes, so that registers cannot be indexed by it", .0.0)]
    NotInRegisters(VarId),
    /// A factor below 1.
    #[error("factor {0} is below 1")]
    Factor(i64),
    /// A parameter is not stored once per iteration, side by side.
    #[error("parameter {param} is not stored side by side in i{}, or not only", .var.0)]
    NotSideBySide {
        /// The loop.
        var: VarId,
        /// The parameter.
        param: u32,
    },
    /// No load there walks across rows.
    #[error("no load walks across rows in i{}", .0.0)]
    NoStridedLoad(VarId),
    /// Nothing is accumulated there.
    #[error("nothing is accumulated in i{}", .0.0)]
    NoAccumulation(VarId),
    /// The kernel would be too large.
    #[error("the kernel would have {statements} statements")]
    Statements {
        /// Statements that it would have, legalized and unrolled.
        statements: u64,
    },
    /// The loop does more than to copy.
    #[error("loop i{} does not just copy", .0.0)]
    NotACopy(VarId),
    /// More threads than a GPU block has, or no power of two.
    #[error("a block cannot have {0} threads there")]
    Threads(i64),
    /// A thread loop lies in another, or outside the block loop.
    #[error("thread loop i{} is not directly inside a block", .0.0)]
    NotInBlock(VarId),
}

/// The most iterations that are unrolled or kept in registers.
pub const MAX_UNROLL: i64 = 64;

/// Applies a directive to a kernel; answers the variables of the loops it made.
///
/// # Errors
/// [`Refusal`] if the precondition fails; the kernel is then unchanged.
pub fn apply(kernel: &mut Kernel, directive: &Directive) -> Result<Vec<VarId>, Refusal> {
    let scratch = kernel.scratch.len();
    let variables = transform(kernel, directive)?;
    made(Made::Schedule {
        directive,
        variables: &variables,
        scratch,
        kernel,
    });
    Ok(variables)
}

fn transform(kernel: &mut Kernel, directive: &Directive) -> Result<Vec<VarId>, Refusal> {
    match directive {
        Directive::Split { var, factor } => split(kernel, *var, *factor),
        Directive::Block { var, factor } => block(kernel, *var, *factor),
        Directive::Fuse { outer, inner } => fuse(kernel, *outer, *inner, false),
        Directive::FuseGuarded { outer, inner } => fuse(kernel, *outer, *inner, true),
        Directive::Interchange { outer, inner } => interchange(kernel, *outer, *inner),
        Directive::Bind { var, bind } => set_bind(kernel, *var, *bind),
        Directive::RFactor { var, around } => accumulators::rfactor(kernel, *var, *around),
        Directive::Privatize { var, lanes } => accumulators::privatize(kernel, *var, *lanes),
        Directive::Stage {
            outer,
            inner,
            rows,
            columns,
        } => stage::loads(kernel, [*outer, *inner], [*rows, *columns]),
        Directive::StageStores { var, param, length } => stage::stores(kernel, *var, *param, *length),
        Directive::StageRows { var, pitch } => stage::rows(kernel, *var, *pitch),
        Directive::Across { var, lanes } => super::across::across(kernel, *var, *lanes),
        Directive::Pieces { var, factor, again } => inward::pieces(kernel, *var, *factor, *again),
        Directive::Inward { var } => inward::inward(kernel, *var),
        Directive::Narrow {
            var,
            lanes,
            vectors,
            squares,
        } => super::narrow::narrow(kernel, *var, *lanes, *vectors, *squares),
        Directive::Peel { var, from, behind } => super::peel::peel(kernel, *var, *from, *behind),
        Directive::Enclose => Ok(threads::enclose(kernel)),
        Directive::Place { scratch, scope } => threads::place(kernel, *scratch, *scope),
        Directive::Distribute { around, var, threads } => threads::distribute(kernel, *around, *var, *threads),
        Directive::OneThread { block } => threads::one_thread(kernel, *block),
        Directive::Synchronize { block } => threads::synchronize(kernel, *block),
    }
}

pub(super) fn exists(kernel: &Kernel, var: VarId) -> Result<&Vec<Stmt>, Refusal> {
    loop_body(&kernel.body, var).ok_or(Refusal::NoLoop(var))
}

/// What a loop becomes, given its binding and body.
type Rewrite<'f> = dyn FnMut(&mut Kernel, Bind, Vec<Stmt>) -> Vec<Stmt> + 'f;

/// Runs `f` on the loop's binding and body, which it replaces.
pub(super) fn rewrite(kernel: &mut Kernel, var: VarId, f: &mut Rewrite<'_>) {
    let mut body = std::mem::take(&mut kernel.body);
    replace_loop(&mut body, var, &mut |bind, inner| f(kernel, bind, inner));
    kernel.body = body;
}

fn split(kernel: &mut Kernel, var: VarId, factor: i64) -> Result<Vec<VarId>, Refusal> {
    exists(kernel, var)?;
    if factor < 1 {
        return Err(Refusal::Factor(factor));
    }
    let n = kernel.extents[var.0 as usize].clone();
    let k = IndexExpr::Const(factor);
    let whole = IndexExpr::floor_div(&n, &k).simplify(kernel);
    let left = IndexExpr::modulo(&n, &k).simplify(kernel);
    let mut made = Vec::new();
    rewrite(kernel, var, &mut |kernel, bind, body| {
        let mut out = Vec::new();
        let tail_body = (!left.is(0)).then(|| {
            if whole.is(0) {
                body.clone()
            } else {
                clone_fresh(kernel, &body)
            }
        });
        if !whole.is(0) {
            let outer = kernel.new_var(whole.clone());
            let inner = kernel.new_var(k.clone());
            let mut main = body;
            let at = IndexExpr::from(outer) * k.clone() + inner.into();
            substitute_in(kernel, &mut main, &mut |v| (v == var).then(|| at.clone()));
            out.push(Stmt::Loop {
                var: outer,
                bind,
                body: vec![Stmt::Loop {
                    var: inner,
                    bind: Bind::Serial,
                    body: main,
                }],
            });
            made.extend([outer, inner]);
        }
        if let Some(mut tail) = tail_body {
            let t = kernel.new_var(left.clone());
            let at = whole.clone() * k.clone() + t.into();
            substitute_in(kernel, &mut tail, &mut |v| (v == var).then(|| at.clone()));
            out.push(Stmt::Loop {
                var: t,
                bind: Bind::Serial,
                body: tail,
            });
            made.push(t);
        }
        out
    });
    Ok(made)
}

fn block(kernel: &mut Kernel, var: VarId, factor: i64) -> Result<Vec<VarId>, Refusal> {
    exists(kernel, var)?;
    if factor < 1 {
        return Err(Refusal::Factor(factor));
    }
    let n = kernel.extents[var.0 as usize].clone();
    let k = IndexExpr::Const(factor);
    let outer = kernel.new_var(n.ceil_div(factor).simplify(kernel));
    let start = IndexExpr::from(outer) * k.clone();
    let left = IndexExpr::min(&k, &(n - start.clone())).simplify(kernel);
    let inner = kernel.new_var(left);
    rewrite(kernel, var, &mut |kernel, bind, mut body| {
        let at = start.clone() + inner.into();
        substitute_in(kernel, &mut body, &mut |v| (v == var).then(|| at.clone()));
        vec![Stmt::Loop {
            var: outer,
            bind,
            body: vec![Stmt::Loop {
                var: inner,
                bind: Bind::Serial,
                body,
            }],
        }]
    });
    Ok(vec![outer, inner])
}

pub(super) fn nested(kernel: &Kernel, outer: VarId, inner: VarId) -> Result<&Vec<Stmt>, Refusal> {
    match &exists(kernel, outer)?[..] {
        [Stmt::Loop { var, body, .. }] if *var == inner => {
            if kernel.extents[inner.0 as usize].uses(outer) {
                return Err(Refusal::DependentExtent(inner, outer));
            }
            Ok(body)
        }
        _ => Err(Refusal::NotNested(outer, inner)),
    }
}

fn fuse(kernel: &mut Kernel, outer: VarId, inner: VarId, guarded: bool) -> Result<Vec<VarId>, Refusal> {
    nested(kernel, outer, inner)?;
    let ei = kernel.extents[inner.0 as usize].clone();
    let total = kernel.extents[outer.0 as usize].clone() * ei.clone();
    let mut fused = kernel.clone();
    let var = fused.new_var(total);
    // Where the inner loop is known to be empty nothing runs, and nothing divides by zero all the same.
    let divisor = if guarded || ei.is(0) {
        IndexExpr::max(&ei, &IndexExpr::ONE)
    } else {
        ei.clone()
    };
    let (q, r) = (
        IndexExpr::floor_div(&var.into(), &divisor),
        IndexExpr::modulo(&var.into(), &divisor),
    );
    rewrite(&mut fused, outer, &mut |kernel, bind, body| {
        let Some(Stmt::Loop { body: mut inside, .. }) = body.into_iter().next() else {
            unreachable!("checked above")
        };
        substitute_in(kernel, &mut inside, &mut |v| match v {
            v if v == outer => Some(q.clone()),
            v if v == inner => Some(r.clone()),
            _ => None,
        });
        vec![Stmt::Loop {
            var,
            bind,
            body: inside,
        }]
    });
    let divides = count_divisions(&fused.body) > count_divisions(&kernel.body);
    if divides && divisor.interval(kernel).lo < 1 {
        return Err(Refusal::MayBeEmpty(inner));
    }
    *kernel = fused;
    Ok(vec![var])
}

/// True if the statements carry something from one iteration to the next that is not an accumulation.
fn carries_state(body: &[Stmt]) -> bool {
    let accesses = || walk(body).flat_map(|s| s.accesses());
    // Accumulations commute with each other, but not with loads of the running value.
    let loads: Vec<Memory> = accesses().filter(|a| !a.effect.writes()).map(|a| a.memory).collect();
    accesses().any(|a| a.effect.writes() && loads.contains(&a.memory))
}

/// True if iterations over `var` may store to one element, so that the last one counts.
fn overwrites(kernel: &Kernel, body: &[Stmt], var: VarId) -> bool {
    let one = kernel.extents[var.0 as usize].is(1);
    let mut accesses = walk(body).flat_map(|s| s.accesses());
    accesses.any(|a| a.effect == Effect::Store && !one && !a.index.uses(var))
}

/// True if one argmax or argmin state meets iterations of both loops: it must meet them in the order they count.
fn counts_through(body: &[Stmt], outer: VarId, inner: VarId) -> bool {
    walk(body).any(|s| match s {
        Stmt::Accumulate { monoid, state, .. } => {
            // A state index that is linear in one of the loops leaves each state to one iteration of it.
            let splits = |at: &IndexExpr, v: VarId| {
                at.affine_in(v)
                    .is_some_and(|(c, _)| c.as_const().is_some_and(|c| c != 0))
            };
            monoid.is_arg() && !state.iter().all(|(_, at)| splits(at, outer) != splits(at, inner))
        }
        _ => false,
    })
}

fn interchange(kernel: &mut Kernel, outer: VarId, inner: VarId) -> Result<Vec<VarId>, Refusal> {
    let body = nested(kernel, outer, inner)?;
    let reorders = carries_state(body) || [outer, inner].iter().any(|&v| overwrites(kernel, body, v));
    if reorders || counts_through(body, outer, inner) {
        return Err(Refusal::Recurrence(outer));
    }
    rewrite(kernel, outer, &mut |_, outer_bind, body| {
        let Some(Stmt::Loop { bind, body: inside, .. }) = body.into_iter().next() else {
            unreachable!("checked above")
        };
        vec![Stmt::Loop {
            var: inner,
            bind,
            body: vec![Stmt::Loop {
                var: outer,
                bind: outer_bind,
                body: inside,
            }],
        }]
    });
    Ok(vec![inner, outer])
}

fn set_bind(kernel: &mut Kernel, var: VarId, new: Bind) -> Result<Vec<VarId>, Refusal> {
    exists(kernel, var)?;
    let copies = || CopyNest::of(kernel, var, exists(kernel, var).ok()?);
    if matches!(new, Bind::Copy | Bind::Stream) && copies().is_none() {
        return Err(Refusal::NotACopy(var));
    }
    let constant = kernel.extents[var.0 as usize]
        .as_const()
        .is_some_and(|n| (0..=MAX_UNROLL).contains(&n));
    if matches!(new, Bind::Lanes | Bind::Unroll) && !constant {
        return Err(Refusal::NotConstant(var));
    }
    if matches!(new, Bind::Parallel | Bind::Block)
        && !matches!(&kernel.body[..], [Stmt::Loop { var: v, .. }] if *v == var)
    {
        return Err(Refusal::NotNested(var, var));
    }
    if new == Bind::Thread {
        threads::may_bind(kernel, var)?;
    }
    rewrite(kernel, var, &mut |_, _, body| vec![Stmt::Loop { var, bind: new, body }]);
    Ok(vec![var])
}

pub(super) fn loop_bind(body: &[Stmt], var: VarId) -> Option<Bind> {
    walk(body).find_map(|s| match s {
        Stmt::Loop { var: v, bind, .. } if *v == var => Some(*bind),
        _ => None,
    })
}

/// The lanes loop around the loop over `var`, if that is found.
pub(super) fn enclosing_lanes(body: &[Stmt], var: VarId, lanes: Option<VarId>) -> Option<Option<VarId>> {
    body.iter().find_map(|s| match s {
        Stmt::Loop { var: v, .. } if *v == var => Some(lanes),
        Stmt::Loop {
            var: v,
            bind: Bind::Lanes,
            body,
        } => enclosing_lanes(body, var, Some(*v)),
        s => enclosing_lanes(s.body(), var, lanes),
    })
}
