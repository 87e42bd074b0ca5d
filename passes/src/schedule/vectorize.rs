//! An innermost loop in lanes and unrolled copies.

use tlc_ir::graph::Monoid;
use tlc_ir::index::VarId;
use tlc_ir::kernel::{Bind, Memory, Scope, Stmt};
use tlc_ir::target::AccessKind;

use super::{Directive, ScalarReason, ScheduleReason, Scheduler};
use crate::legalize::legal_block;
use crate::tree;

/// Vectors computed side by side in a loop body.
pub(super) const UNROLL: i64 = 4;
/// Legalized statements of a loop body beyond which several vectors of it are not put side by side: one vector's instructions fill
/// what a processor looks ahead (some hundred), so that the next vector's would wait all the same. The code is a quarter.
const OVERLAPPING_STATEMENTS: u64 = 2000;
/// Vectors of which an extremum is taken at once: their NaN tests share an update of the accumulator.
const EXTREMUM_UNROLL: i64 = 8;

impl Scheduler<'_> {
    /// Vectorizes and unrolls an innermost loop, giving each lane and each unrolled copy accumulators of its own.
    pub(super) fn vectorize(&mut self, var: VarId) {
        if self.short_in_one_vector(var) {
            return;
        }
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
        let several = self.overlaps(var);
        if several && !self.bounded && reduces && self.only_extrema(var) && hi >= lanes * EXTREMUM_UNROLL {
            tail = self.extrema(var, lanes);
        } else if several
            && hi >= lanes * UNROLL
            && let Some(made) = self
                .because(ScheduleReason::SideBySide { vectors: UNROLL })
                .apply(Directive::Split {
                    var,
                    factor: lanes * UNROLL,
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
        // Without a loop of several vectors before it, this is no tail but the whole.
        self.because(if tail == Some(var) {
            ScheduleReason::Vectors { lanes }
        } else {
            ScheduleReason::Rest
        });
        let Some(t) = tail else { return };
        if t != var && self.rest_in_masked_lanes(t, lanes) {
            return;
        }
        if let Some(made) = self.apply(Directive::Split { var: t, factor: lanes }) {
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
            if let Some(r) = rest
                && !self.rest_in_masked_lanes(r, lanes)
            {
                self.unroll_short(r);
            }
        } else if t == var {
            self.schedule.inner.pop();
            self.schedule.inner.push(Err(ScalarReason::Size));
        }
    }

    /// A loop whose iterations are known to be fewer than lanes: one vector, or a part of one, if the emitter masks lanes. Returns
    /// whether it was done.
    fn short_in_one_vector(&mut self, var: VarId) -> bool {
        let Some(n) = self.kernel.extents[var.0 as usize].as_const() else {
            return false;
        };
        let Some(whole) = self.widest_lanes(var).ok().filter(|whole| n < *whole) else {
            return false;
        };
        let fit = self
            .narrowest_lanes(whole)
            .max(n.max(2).cast_unsigned().next_power_of_two().cast_signed());
        // What fills its lanes needs no mask.
        let done = n > 1 && n != fit && self.rest_in_masked_lanes(var, fit);
        if done {
            self.schedule.inner.push(Ok(fit as u32));
        }
        done
    }

    /// Runs a loop in lanes some of which a mask leaves out, if the emitter does so at once. Returns whether it was done.
    pub(super) fn rest_in_masked_lanes(&mut self, var: VarId, lanes: i64) -> bool {
        let reduces = self.accumulates(var);
        if !self.emitter.access(AccessKind::Masked).is_vector() {
            return false;
        }
        self.because(ScheduleReason::MaskedRest);
        let Some(made) = self.apply(Directive::Mask { var, lanes }) else {
            return false;
        };
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
