//! An innermost loop in lanes and unrolled copies.

use tlc_ir::graph::Monoid;
use tlc_ir::index::{IndexExpr, IndexNode, VarId};
use tlc_ir::kernel::{Bind, Memory, Scope, Stmt};

use super::{Directive, ScalarReason, ScheduleReason, Scheduler};
use crate::legalize::legal_block;
pub(super) use crate::tile::VECTORS_OF_A_ROW as UNROLL;
use crate::tree;
use crate::tuning::Tunable;

/// Legalized statements of a loop body beyond which several vectors of it are not put side by side: one vector's instructions fill
/// what a processor looks ahead (some hundred), so that the next vector's would wait all the same. The code is a quarter.
const OVERLAPPING_STATEMENTS: u64 = 2000;
/// Vectors of which an extremum is taken at once: their NaN tests share an update of the accumulator.
const EXTREMUM_UNROLL: i64 = 8;

/// The most vectors of a period: with more, those that whole periods leave over take longer than the others gain.
const MOST_OF_A_PERIOD: i64 = 3;

/// Multiplies a period by the odd factors of what a variable's multiples are divided by.
fn odd_periods(e: &IndexExpr, var: VarId, period: &mut i64) {
    let IndexExpr::Node(node) = e else { return };
    match &**node {
        IndexNode::Sym(_) | IndexNode::Var(_) => {}
        IndexNode::Sum { terms, .. } => terms.iter().for_each(|t| odd_periods(&t.0, var, period)),
        IndexNode::Product(factors) => factors.iter().for_each(|f| odd_periods(f, var, period)),
        IndexNode::FloorDiv(a, b) | IndexNode::Mod(a, b) => {
            odd_periods(a, var, period);
            if let Some(n @ 1..) = b.as_const().filter(|_| a.uses(var)) {
                let odd = n >> n.trailing_zeros();
                if *period % odd != 0 {
                    *period = period.saturating_mul(odd);
                }
            }
        }
        IndexNode::Min(a, b) | IndexNode::Max(a, b) => [a, b].into_iter().for_each(|e| odd_periods(e, var, period)),
    }
}

impl Scheduler<'_> {
    /// Vectorizes and unrolls an innermost loop, giving each lane and each unrolled copy accumulators of its own.
    pub(super) fn vectorize(&mut self, var: VarId) {
        self.vectorize_around(var, None, false);
    }

    /// As [`Self::vectorize`]; the accumulators live around a nest of loops that a loop is the innermost of, if there is one: then what lanes have is
    /// added up once, and not for each row.
    pub(super) fn vectorize_nest(&mut self, nest: &[VarId], var: VarId) {
        let around = nest.first().copied().filter(|_| nest.len() > 1);
        self.vectorize_around(var, around, false);
    }

    /// As [`Self::vectorize`]; what several vectors at once leave over of a loop that accumulates nothing is whole ones and one with a mask,
    /// if it is to be `masked`.
    pub(super) fn vectorize_with_rest(&mut self, var: VarId, masked: bool) {
        self.vectorize_around(var, None, masked);
    }

    fn vectorize_around(&mut self, var: VarId, around: Option<VarId>, masked: bool) {
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
        let few = self.few_vectors(var, lanes);
        let several = self.overlaps(var) && !few;
        let vectors = match several && !reduces {
            true => self.vectors_of_a_period(var).unwrap_or_else(|| self.side_by_side()),
            false => UNROLL,
        };
        if several && !self.bounded && reduces && self.only_extrema(var) && hi >= lanes * EXTREMUM_UNROLL {
            tail = self.extrema(var, lanes);
        } else if several
            && vectors > 1
            && hi >= lanes * vectors
            && let Some(made) = self
                .because(ScheduleReason::SideBySide { vectors })
                .apply(Directive::Split {
                    var,
                    factor: lanes * vectors,
                })
        {
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
                    self.because(ScheduleReason::Accumulators);
                    let around = around.unwrap_or(made[0]);
                    for var in [pair[1], pair[0]] {
                        self.apply(Directive::RFactor { var, around });
                    }
                }
            }
        }
        // Without a loop of several vectors before it, this is no tail but the whole.
        self.because(if tail == Some(var) {
            ScheduleReason::Vectors { lanes }
        } else {
            ScheduleReason::Rest
        });
        let Some(t) = tail else { return };
        if masked && self.apply(Directive::Across { var: t, lanes, masked }).is_some() {
            return;
        }
        let narrowest = self.narrowest_lanes(lanes).min(lanes);
        if !self.in_vectors(t, lanes, narrowest, (reduces, around), few) && t == var {
            self.schedule.inner.pop();
            self.schedule.inner.push(Err(ScalarReason::Size));
        }
    }

    /// Vectors of a loop that accumulates nothing to compute side by side.
    pub(super) fn side_by_side(&mut self) -> i64 {
        self.choose(Tunable::Vectors, UNROLL, |_| [1, 2, 4, 8])
    }

    /// Vectors behind which what is loaded lies as it did, of a loop along the elements of several values in turn: then where each lane's element
    /// is in its value is known, and nothing is divided. Of a power of two that is so of any vector.
    fn vectors_of_a_period(&self, var: VarId) -> Option<i64> {
        let body = tree::loop_body(&self.kernel.body, var)?;
        let mut period = 1;
        for e in body.iter().flat_map(Stmt::indices) {
            odd_periods(e, var, &mut period);
        }
        (3..=MOST_OF_A_PERIOD).contains(&period).then_some(period)
    }

    /// Whether a loop is known to be a few vectors that registers hold all at once: then a loop of several vectors and one of the others
    /// would be two sums to combine in place of one.
    fn few_vectors(&self, var: VarId, lanes: i64) -> bool {
        let most = i64::from(self.emitter.vector_registers) / 4;
        let n = self.kernel.extents[var.0 as usize].as_const();
        most > UNROLL && n.is_some_and(|n| n < most * lanes) && self.overlaps(var)
    }

    /// Runs a loop in vectors of that many lanes, what they leave over in ones of half as many, and so on down to the narrowest; then
    /// one by one. Returns whether it was split at all.
    fn in_vectors(
        &mut self,
        var: VarId,
        lanes: i64,
        narrowest: i64,
        (reduces, around): (bool, Option<VarId>),
        few: bool,
    ) -> bool {
        let Some(made) = self.apply(Directive::Split { var, factor: lanes }) else {
            return false;
        };
        if made.len() >= 2 {
            self.apply(Directive::Bind {
                var: made[1],
                bind: Bind::Lanes,
            });
            if reduces {
                self.apply(Directive::RFactor {
                    var: made[1],
                    around: around.unwrap_or(made[0]),
                });
            }
            if few {
                self.apply(Directive::Bind {
                    var: made[0],
                    bind: Bind::Unroll,
                });
            }
        }
        let Some(rest) = made.get(2).copied().or((made.len() == 1).then(|| made[0])) else {
            return true;
        };
        self.because(ScheduleReason::Rest);
        let again = lanes / 2 >= narrowest
            && self.overlaps(rest)
            && self.in_vectors(rest, lanes / 2, narrowest, (reduces, around), few);
        if !again {
            self.unroll_short(rest);
        }
        true
    }

    /// Whether copies of the body of a loop, one behind the other, would overlap when they run.
    fn overlaps(&self, var: VarId) -> bool {
        let body = tree::loop_body(&self.kernel.body, var);
        body.is_some_and(|b| legal_block(&self.kernel, b) <= OVERLAPPING_STATEMENTS)
    }

    /// As `vectorize` for a main part that takes extrema of floats: the vectors of one iteration are combined with each
    /// other, then into one accumulator, so that legalization can test them for NaN in pairs. Returns the tail.
    fn extrema(&mut self, var: VarId, lanes: i64) -> Option<VarId> {
        let factor = lanes * EXTREMUM_UNROLL;
        self.because(ScheduleReason::TestedTogether {
            vectors: EXTREMUM_UNROLL,
        });
        let made = self.apply(Directive::Split { var, factor })?;
        if made.len() >= 2
            && let Some(pair) = self.apply(Directive::Split {
                var: made[1],
                factor: lanes,
            })
        {
            self.apply(Directive::Interchange {
                outer: pair[0],
                inner: pair[1],
            });
            self.apply(Directive::Bind {
                var: pair[0],
                bind: Bind::Unroll,
            });
            self.apply(Directive::Bind {
                var: pair[1],
                bind: Bind::Lanes,
            });
            self.apply(Directive::RFactor {
                var: pair[1],
                around: made[0],
            });
        }
        made.get(2).copied().or((made.len() == 1).then(|| made[0]))
    }

    /// Whether everything that a loop does is to take extrema of floats.
    fn only_extrema(&self, var: VarId) -> bool {
        tree::loop_body(&self.kernel.body, var).is_some_and(|b| {
            b.iter().all(|s| match s {
                Stmt::Accumulate { monoid, state, .. } => {
                    matches!(monoid, Monoid::Max | Monoid::Min)
                        && state.iter().all(|(m, _)| self.kernel.memory_dtype(*m).is_float())
                }
                Stmt::Let { .. } => true,
                _ => false,
            })
        })
    }

    pub(super) fn unroll_short(&mut self, var: VarId) {
        self.because(ScheduleReason::Rest);
        let short = self.kernel.extents[var.0 as usize].as_const().is_some_and(|n| n <= 4);
        if short && self.overlaps(var) {
            self.apply(Directive::Bind {
                var,
                bind: Bind::Unroll,
            });
        }
    }

    pub(super) fn accumulates(&self, var: VarId) -> bool {
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
