//! Scheduling: how a naive nest is made to run fast on a target.
//!
//! The policy reads the nest and the target, and applies [`Directive`]s one after another; the applied list is the schedule,
//! kept for `explain` and replay. A directive that refuses is not an error: the reason is noted and the nest stays as it is.

pub mod directives;
mod gpu;
pub mod hoist;
mod stage;
mod threads;
pub mod tree;

use std::fmt;

use tlc_ir::index::VarId;
use tlc_ir::kernel::{Bind, Kernel, Memory, Op, Scope, Stmt};
use tlc_ir::{DType, ScalarOp, Target};

pub use directives::{Directive, Refusal, apply};
pub use gpu::{MAX_SHARED_BYTES, schedule_gpu, shared_bytes};

use crate::lower::{Form, Nest};

/// Vectors computed side by side in a loop body.
const UNROLL: i64 = 4;
/// Elements of one parallel iteration of a flat loop.
const BLOCK: i64 = 4096;
/// Edge of a transposition tile, in elements.
const TILE: i64 = 32;
/// Rows that a column reduction adds up before it touches the accumulators.
const COLUMN_ROWS: i64 = 4;

/// Why an innermost loop runs one element at a time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ScalarReason {
    /// Values of different widths meet in the loop.
    MixedWidths(DType, DType),
    /// A dtype without vector arithmetic.
    NoVectorForm(DType),
    /// An operation without a vector form.
    NoVectorOp(ScalarOp),
    /// An access is conditional per element.
    MaskedAccess,
    /// An index comes from data.
    DataIndex,
    /// Results are not stored side by side.
    StridedStore,
    /// The loop is shorter than a vector.
    Short,
    /// Each iteration needs the one before.
    Recurrence,
}

impl fmt::Display for ScalarReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MixedWidths(a, b) => write!(f, "{a} and {b} differ in width"),
            Self::NoVectorForm(d) => write!(f, "{d} has no vector arithmetic"),
            Self::NoVectorOp(op) => write!(f, "{op} has no vector form"),
            Self::MaskedAccess => f.write_str("an access is conditional per element"),
            Self::DataIndex => f.write_str("an index comes from data"),
            Self::StridedStore => f.write_str("results are not stored side by side"),
            Self::Short => f.write_str("the loop is shorter than a vector"),
            Self::Recurrence => f.write_str("each iteration needs the one before"),
        }
    }
}

/// What was done to a nest.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Schedule {
    /// The directives, in order.
    pub directives: Vec<Directive>,
    /// Vector lanes of each innermost loop, or why it has none.
    pub inner: Vec<Result<u32, ScalarReason>>,
}

struct Scheduler<'t> {
    kernel: Kernel,
    target: &'t Target,
    schedule: Schedule,
}

/// Schedules a nest for a CPU target.
pub fn schedule(nest: &Nest, target: &Target) -> (Kernel, Schedule) {
    let mut s = Scheduler {
        kernel: nest.kernel.clone(),
        target,
        schedule: Schedule::default(),
    };
    match nest.form {
        Form::Elementwise => s.elementwise(&nest.parallel),
        Form::Rows => s.rows(&nest.parallel),
        Form::Columns => s.columns(&nest.parallel),
        Form::Serial => {
            s.parallel(&nest.parallel);
            s.schedule.inner.push(Err(ScalarReason::Recurrence));
        }
    }
    hoist::hoist(&mut s.kernel);
    (s.kernel, s.schedule)
}

impl Scheduler<'_> {
    fn apply(&mut self, directive: Directive) -> Option<Vec<VarId>> {
        let made = apply(&mut self.kernel, &directive).ok()?;
        self.schedule.directives.push(directive);
        Some(made)
    }

    /// Fuses neighbouring loops, innermost first, where no division remains.
    fn fuse_clean(&mut self, loops: &[VarId]) -> Vec<VarId> {
        let mut left = loops.to_vec();
        let mut i = left.len();
        while i >= 2 {
            i -= 1;
            let (outer, inner) = (left[i - 1], left[i]);
            let before = tree::count_divisions(&self.kernel.body);
            let saved = self.kernel.clone();
            if let Ok(made) = apply(&mut self.kernel, &Directive::Fuse { outer, inner }) {
                if tree::count_divisions(&self.kernel.body) > before {
                    self.kernel = saved;
                } else {
                    self.schedule.directives.push(Directive::Fuse { outer, inner });
                    left.splice(i - 1..=i, made);
                }
            }
        }
        left
    }

    /// Makes one parallel loop of the given perfectly nested loops; divisions are paid once per iteration.
    fn parallel(&mut self, loops: &[VarId]) -> Option<VarId> {
        let mut left = self.fuse_clean(loops);
        while left.len() >= 2 {
            let (outer, inner) = (left[0], left[1]);
            match self.apply(Directive::Fuse { outer, inner }) {
                Some(made) => drop(left.splice(0..=1, made)),
                None => break,
            }
        }
        let first = *left.first()?;
        self.apply(Directive::Bind {
            var: first,
            bind: Bind::Parallel,
        });
        Some(first)
    }

    fn elementwise(&mut self, parallel: &[VarId]) {
        let loops = self.fuse_clean(parallel);
        let Some(&last) = loops.last() else {
            self.schedule.inner.push(Err(ScalarReason::Short));
            return;
        };
        if let Some(&across) = loops.iter().rev().skip(1).find(|&&v| self.prefers(v, last)) {
            return self.transposition(&loops, across, last);
        }
        if loops.len() > 1 {
            self.parallel(&loops[..loops.len() - 1]);
            self.vectorize(last);
            return;
        }
        let n = &self.kernel.extents[last.0 as usize];
        let small = n.as_const().is_some_and(|n| n < 2 * BLOCK);
        if small {
            self.vectorize(last);
            return;
        }
        // Blocks cover the whole range: the last one is cut short, so that there is one parallel loop and no tail.
        let divides = n.as_const().is_some_and(|n| n % BLOCK == 0);
        let (var, factor) = (last, BLOCK);
        let blocks = if divides {
            Directive::Split { var, factor }
        } else {
            Directive::Block { var, factor }
        };
        if let Some(made) = self.apply(blocks) {
            self.apply(Directive::Bind {
                var: made[0],
                bind: Bind::Parallel,
            });
            self.vectorize(made[1]);
        }
    }

    /// Whether loads walk memory along `a` but not along `b`.
    fn prefers(&self, a: VarId, b: VarId) -> bool {
        let mut strided = false;
        self.kernel.visit(&mut |s| {
            if let Stmt::Let {
                op: Op::Load { index, .. },
                ..
            } = s
            {
                let unit = |v: VarId| index.affine_in(v).is_some_and(|(c, _)| c.is(1));
                strided |= unit(a) && index.uses(b) && !unit(b);
            }
        });
        strided
    }

    /// Tiles two loops so that both the walk along one axis and the walk along the other stay in cache.
    fn transposition(&mut self, loops: &[VarId], across: VarId, last: VarId) {
        let at = loops.iter().position(|&v| v == across).unwrap_or(0);
        // Bring `across` next to the innermost loop.
        for k in at..loops.len() - 2 {
            if self
                .apply(Directive::Interchange {
                    outer: across,
                    inner: loops[k + 1],
                })
                .is_none()
            {
                return self.vectorize(last);
            }
        }
        let mut outer: Vec<VarId> = loops.iter().copied().filter(|&v| v != across && v != last).collect();
        let Some(rows) = self.apply(Directive::Block {
            var: across,
            factor: TILE,
        }) else {
            return self.vectorize(last);
        };
        outer.push(rows[0]);
        if let Some(columns) = self.apply(Directive::Block {
            var: last,
            factor: TILE,
        }) && self
            .apply(Directive::Interchange {
                outer: rows[1],
                inner: columns[0],
            })
            .is_some()
        {
            outer.push(columns[0]);
            self.parallel(&outer);
            let staged = self.apply(Directive::Stage {
                outer: rows[1],
                inner: columns[1],
                tile: TILE,
            });
            for pair in staged.unwrap_or_default().chunks_exact(2) {
                self.vectorize(pair[1]);
            }
            self.vectorize(columns[1]);
        } else {
            self.parallel(&outer);
        }
    }

    fn rows(&mut self, parallel: &[VarId]) {
        self.parallel(parallel);
        for nest in self.inner_nests() {
            let loops = self.fuse_clean(&nest);
            if let Some(&last) = loops.last() {
                self.vectorize(last);
            }
        }
    }

    fn columns(&mut self, parallel: &[VarId]) {
        self.parallel(parallel);
        for nest in self.inner_nests() {
            let Some((&column, inner)) = nest.split_last() else {
                continue;
            };
            let inner = self.fuse_clean(inner);
            let lanes = match self.lanes(column) {
                Ok(lanes) => lanes,
                Err(reason) => {
                    self.schedule.inner.push(Err(reason));
                    continue;
                }
            };
            let Some(&row) = inner.last() else {
                self.vectorize(column);
                continue;
            };
            self.schedule.inner.push(Ok(lanes as u32));
            let Some(rows) = self.apply(Directive::Split {
                var: row,
                factor: COLUMN_ROWS,
            }) else {
                continue;
            };
            if rows.len() == 1 {
                self.strip(column, lanes);
                continue;
            }
            // The tail's column loop is a copy: find it before the main one changes.
            let tail_column = rows.get(2).and_then(|&t| only_loop(&self.kernel, t));
            let vectors = self.strip(column, lanes);
            if let Some(path) = vectors {
                let mut moved = true;
                for &inside in &path {
                    moved &= self
                        .apply(Directive::Interchange {
                            outer: rows[1],
                            inner: inside,
                        })
                        .is_some();
                }
                if moved {
                    let lane = path.last().copied();
                    self.apply(Directive::Bind {
                        var: rows[1],
                        bind: Bind::Unroll,
                    });
                    self.apply(Directive::Privatize {
                        var: rows[1],
                        lanes: lane,
                    });
                }
            }
            if let Some(c) = tail_column {
                self.strip(c, lanes);
            }
        }
    }

    /// Splits a loop into vectors; answers the loops of the main part, outermost first, if it has no tail.
    fn strip(&mut self, var: VarId, lanes: i64) -> Option<Vec<VarId>> {
        let made = self.apply(Directive::Split { var, factor: lanes })?;
        if made.len() == 1 {
            return None;
        }
        self.apply(Directive::Bind {
            var: made[1],
            bind: Bind::Lanes,
        });
        (made.len() == 2).then_some(made)
    }

    /// The perfect nests of serial loops below the outermost parallel loop (or at the top), outermost first each.
    fn inner_nests(&self) -> Vec<Vec<VarId>> {
        let body = match &self.kernel.body[..] {
            [
                Stmt::Loop {
                    bind: Bind::Parallel,
                    body,
                    ..
                },
            ] => body,
            _ => &self.kernel.body,
        };
        fn chain(body: &[Stmt], var: VarId) -> Vec<VarId> {
            let mut out = vec![var];
            if let [Stmt::Loop { var, body, .. }] = body {
                out.extend(chain(body, *var));
            }
            out
        }
        body.iter()
            .filter_map(|s| match s {
                Stmt::Loop { var, body, .. } => Some(chain(body, *var)),
                _ => None,
            })
            .collect()
    }

    /// Vector lanes that the loop over `var` can run in.
    fn lanes(&self, var: VarId) -> Result<i64, ScalarReason> {
        let body = tree::loop_body(&self.kernel.body, var).ok_or(ScalarReason::Short)?;
        let mut width: Option<DType> = None;
        self.check_lanes(body, var, &mut width)?;
        let width = width.ok_or(ScalarReason::NoVectorForm(DType::Bool))?;
        let lanes = (self.target.vector_bits / width.bits()) as i64;
        let extent = &self.kernel.extents[var.0 as usize];
        if extent.interval(&self.kernel).hi < lanes {
            return Err(ScalarReason::Short);
        }
        Ok(lanes)
    }

    fn check_lanes(&self, body: &[Stmt], var: VarId, width: &mut Option<DType>) -> Result<(), ScalarReason> {
        let mut meet = |d: DType| match (*width, d) {
            (_, DType::Bool) => Ok(()),
            (_, DType::F16 | DType::BF16) => Err(ScalarReason::NoVectorForm(d)),
            (Some(w), d) if w.bits() != d.bits() => Err(ScalarReason::MixedWidths(w, d)),
            _ => {
                *width = Some(d);
                Ok(())
            }
        };
        // A value that does not change inside the loop stays a scalar; only what varies must fit the lanes.
        let mut varying = Vec::new();
        for s in body {
            match s {
                Stmt::Let { value, op } => {
                    let dtype = self.kernel.dtype(*value);
                    let varies = match op {
                        Op::Const(_) => false,
                        Op::Index(e, _) => e.uses(var),
                        Op::Load { memory, index, mask } => {
                            let masked = mask.is_some_and(|m| varying.contains(&m));
                            if masked {
                                return Err(ScalarReason::MaskedAccess);
                            }
                            if index.uses(var) && index.affine_in(var).is_none() {
                                // A gather by an index that is not linear is still an index the lanes can compute.
                                if matches!(memory, Memory::Scratch(_)) {
                                    return Err(ScalarReason::DataIndex);
                                }
                            }
                            index.uses(var)
                        }
                        Op::Map(_, args) => args.iter().any(|a| varying.contains(a)),
                        Op::Convert(_, a) | Op::Bitcast(_, a) => varying.contains(a),
                    };
                    if !varies {
                        continue;
                    }
                    if let Op::Map(op, args) = op {
                        let on = self.kernel.dtype(args[args.len() - 1]);
                        if !vector_form(*op, on) {
                            return Err(ScalarReason::NoVectorOp(*op));
                        }
                        args.iter()
                            .filter(|a| varying.contains(a))
                            .try_for_each(|a| meet(self.kernel.dtype(*a)))?;
                    }
                    if let Op::Convert(_, a) = op
                        && (dtype.bits() != self.kernel.dtype(*a).bits() || dtype == DType::Bool)
                        && self.kernel.dtype(*a) != DType::Bool
                    {
                        return Err(ScalarReason::MixedWidths(self.kernel.dtype(*a), dtype));
                    }
                    if let Op::Convert(to, a) = op
                        && !convert_form(*to, self.kernel.dtype(*a))
                    {
                        return Err(ScalarReason::MixedWidths(self.kernel.dtype(*a), dtype));
                    }
                    meet(dtype)?;
                    varying.push(*value);
                }
                Stmt::Store {
                    memory, index, mask, ..
                } => {
                    if mask.is_some() {
                        return Err(ScalarReason::MaskedAccess);
                    }
                    if !index.affine_in(var).is_some_and(|(c, _)| c.is(1)) {
                        return Err(ScalarReason::StridedStore);
                    }
                    meet(self.kernel.memory_dtype(*memory))?;
                }
                Stmt::Accumulate { state, monoid, .. } => {
                    for (m, i) in state {
                        let dtype = self.kernel.memory_dtype(*m);
                        if i.uses(var) && !i.affine_in(var).is_some_and(|(c, _)| c.is(1)) {
                            return Err(ScalarReason::StridedStore);
                        }
                        if !vector_form(monoid.combine(), dtype) {
                            return Err(ScalarReason::NoVectorOp(monoid.combine()));
                        }
                        meet(dtype)?;
                    }
                }
                Stmt::Clamp { .. } => return Err(ScalarReason::DataIndex),
                Stmt::If { .. } | Stmt::Loop { .. } | Stmt::Barrier => return Err(ScalarReason::Recurrence),
            }
        }
        Ok(())
    }

    /// Vectorizes and unrolls an innermost loop, giving each lane and each unrolled copy accumulators of its own.
    fn vectorize(&mut self, var: VarId) {
        let lanes = match self.lanes(var) {
            Ok(lanes) => lanes,
            Err(reason) => {
                self.schedule.inner.push(Err(reason));
                self.unroll_short(var);
                return;
            }
        };
        self.schedule.inner.push(Ok(lanes as u32));
        let hi = self.kernel.extents[var.0 as usize].interval(&self.kernel).hi;
        let reduces = self.accumulates(var);
        let mut tail = Some(var);
        if hi >= lanes * UNROLL {
            let made = self
                .apply(Directive::Split {
                    var,
                    factor: lanes * UNROLL,
                })
                .unwrap_or_default();
            tail = made.get(2).copied().or((made.len() == 1).then(|| made[0]));
            if made.len() >= 2
                && let Some(pair) = self.apply(Directive::Split {
                    var: made[1],
                    factor: lanes,
                })
            {
                self.apply(Directive::Bind {
                    var: pair[0],
                    bind: Bind::Unroll,
                });
                self.apply(Directive::Bind {
                    var: pair[1],
                    bind: Bind::Lanes,
                });
                if reduces {
                    self.apply(Directive::RFactor {
                        var: pair[1],
                        around: made[0],
                    });
                    self.apply(Directive::RFactor {
                        var: pair[0],
                        around: made[0],
                    });
                }
            }
        }
        if let Some(t) = tail
            && let Some(made) = self.apply(Directive::Split { var: t, factor: lanes })
        {
            if made.len() >= 2 {
                self.apply(Directive::Bind {
                    var: made[1],
                    bind: Bind::Lanes,
                });
                if reduces {
                    self.apply(Directive::RFactor {
                        var: made[1],
                        around: made[0],
                    });
                }
            }
            let rest = made.get(2).copied().or((made.len() == 1).then(|| made[0]));
            rest.into_iter().for_each(|r| self.unroll_short(r));
        }
    }

    fn unroll_short(&mut self, var: VarId) {
        if self.kernel.extents[var.0 as usize].as_const().is_some_and(|n| n <= 4) {
            self.apply(Directive::Bind {
                var,
                bind: Bind::Unroll,
            });
        }
    }

    fn accumulates(&self, var: VarId) -> bool {
        let registers = |m: &Memory| match m {
            Memory::Scratch(i) => self.kernel.scratch[*i as usize].scope == Scope::Register,
            Memory::Param(_) => false,
        };
        tree::loop_body(&self.kernel.body, var).is_some_and(|b| {
            b.iter()
                .any(|s| matches!(s, Stmt::Accumulate { state, .. } if state.iter().all(|(m, _)| registers(m))))
        })
    }
}

/// The loop that is a loop's only statement.
fn only_loop(kernel: &Kernel, var: VarId) -> Option<VarId> {
    match &tree::loop_body(&kernel.body, var)?[..] {
        [Stmt::Loop { var, .. }] => Some(*var),
        _ => None,
    }
}

/// Whether an operation on a dtype has a vector form (after legalization).
fn vector_form(op: ScalarOp, on: DType) -> bool {
    use ScalarOp::*;
    if on.is_float() {
        return !matches!(op, Rem | Mod) && (!op.is_transcendental() || crate::legalize::has_kernel_form(op, on));
    }
    match op {
        Div | Rem | Mod | Sign => false,
        // Per-lane shift amounts and wide or narrow products are scalar on 128-bit x86.
        Shl | Shr => on.bits() == 32,
        Mul => on.bits() == 32 || on.bits() == 16,
        _ => true,
    }
}

/// Whether a conversion between dtypes of equal width has a vector form.
fn convert_form(to: DType, from: DType) -> bool {
    if from == DType::Bool {
        return false;
    }
    match (to.is_float(), from.is_float()) {
        (false, false) => to != DType::Bool,
        (true, false) => from == DType::I32,
        (false, true) => to == DType::I32,
        (true, true) => true,
    }
}
