//! Extrema of several floats at once.
//!
//! A NaN wins in `max` and `min`, which a machine's one instruction does not do: `a < b ? b : a` drops a NaN on one side
//! or the other. Of the vectors that an unrolled loop combines into one accumulator, the plain extremum is taken, and
//! beside it whether any element was NaN. Then the accumulator is updated once:
//!
//! ```text
//! m = x0 < x1 ? x1 : x0; m = m < x2 ? x2 : m; ...
//! nan = (x0 != x0 | x1 != x1) | (x2 != x2 | x3 != x3) | ...
//! state = nan ? NaN : (state < m ? m : state)
//! ```
//! The last line keeps a state that is NaN already.
//!
//! Comparisons and extrema share two units of current processors, and multiply-adds have two others. So where a
//! multiply-add is one instruction, a sum of squares finds the NaN instead: `1 + x0 * x0 + x2 * x2 + ...` is never less
//! than one, so it meets no difference of infinities, and it is NaN if and only if one of its elements is.

use smallvec::SmallVec;
use tlc_ir::graph::Monoid;
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::visit::Effect;
use tlc_ir::kernel::{Memory, Op, Stmt, ValueId};
use tlc_ir::{DType, Scalar, ScalarOp};

use super::Legalizer;
use crate::tree::{clone_fresh, substitute_in};

/// Sums of squares side by side.
const CHAINS: usize = 2;

/// One accumulator of an unrolled loop.
struct Extremum {
    monoid: Monoid,
    state: (Memory, IndexExpr),
    values: Vec<ValueId>,
}

impl Legalizer<'_> {
    /// Whether the body of an unrolled loop does nothing but take extrema of floats, each into a state of its own that
    /// does not depend on the loop, and keep values elsewhere.
    pub(super) fn takes_extrema(&self, var: VarId, body: &[Stmt]) -> bool {
        let mut states: SmallVec<[Memory; 4]> = SmallVec::new();
        let accumulates = body.iter().all(|s| match s {
            Stmt::Let { .. } | Stmt::Store { .. } => true,
            Stmt::Accumulate { monoid, state, values } => {
                let (memory, index) = &state[0];
                let fits = matches!(monoid, Monoid::Max | Monoid::Min)
                    && self.kernel.dtype(values[0]).is_float()
                    && !index.uses(var)
                    && !states.contains(memory);
                states.push(*memory);
                fits
            }
            _ => false,
        });
        let mut accesses = body.iter().flat_map(|s| s.accesses());
        let mut touched = || accesses.any(|a| a.effect != Effect::Accumulate && states.contains(&a.memory));
        accumulates && !states.is_empty() && !touched()
    }

    /// The unrolled loop over `var` with `copies` iterations, of which [`Self::takes_extrema`] holds.
    pub(super) fn extrema(&mut self, var: VarId, copies: i64, body: &[Stmt]) {
        let mut all: Vec<Extremum> = Vec::new();
        for copy in 0..copies {
            let mut one = clone_fresh(self.kernel, body);
            substitute_in(self.kernel, &mut one, &mut |v| {
                (v == var).then_some(IndexExpr::Const(copy))
            });
            for s in one {
                let Stmt::Accumulate { monoid, state, values } = s else {
                    self.statement(s);
                    continue;
                };
                let value = self.of(values[0]);
                match all.iter_mut().find(|e| e.state == state[0]) {
                    Some(e) => e.values.push(value),
                    None => all.push(Extremum {
                        monoid,
                        state: state[0].clone(),
                        values: vec![value],
                    }),
                }
            }
        }
        for e in all {
            self.extremum(e);
        }
    }

    fn extremum(&mut self, e: Extremum) {
        let dtype = self.kernel.memory_dtype(e.state.0);
        let mut best = e.values[0];
        for &v in &e.values[1..] {
            best = self.pick(e.monoid, v, best);
        }
        let mut nan: Option<ValueId> = None;
        for pair in self.nan_witnesses(dtype, &e.values).chunks(2) {
            let mut either = self.map(ScalarOp::Ne, &[pair[0], pair[0]]);
            if let Some(&second) = pair.get(1) {
                let other = self.map(ScalarOp::Ne, &[second, second]);
                either = self.map(ScalarOp::Or, &[either, other]);
            }
            nan = Some(match nan {
                Some(nan) => self.map(ScalarOp::Or, &[nan, either]),
                None => either,
            });
        }
        let (memory, index) = e.state;
        let load = Op::Load {
            memory,
            index: index.clone(),
            mask: None,
        };
        let old = self.emit(load, dtype);
        let mut value = self.pick(e.monoid, best, old);
        if let Some(nan) = nan {
            let all_ones = self.emit(
                Op::Const(Scalar::from_bits(dtype, u64::MAX >> (64 - dtype.bits()))),
                dtype,
            );
            value = self.map(ScalarOp::Select, &[nan, all_ones, value]);
        }
        self.out.push(Stmt::Store {
            memory,
            index,
            value,
            mask: None,
        });
    }

    /// Values of which one is NaN where any of these is.
    fn nan_witnesses(&mut self, dtype: DType, values: &[ValueId]) -> SmallVec<[ValueId; 8]> {
        if !self.emitter.is_some_and(|e| e.has_fma)
            || values.len() < 2 * CHAINS
            || !matches!(dtype, DType::F32 | DType::F64)
        {
            return values.into();
        }
        let one = self.emit(Op::Const(Scalar::from_f64(dtype, 1.0)), dtype);
        let mut sums: SmallVec<[ValueId; 8]> = SmallVec::from_elem(one, CHAINS);
        for (k, &v) in values.iter().enumerate() {
            sums[k % CHAINS] = self.map(ScalarOp::Fma, &[v, v, sums[k % CHAINS]]);
        }
        sums
    }

    /// The better of two numbers; `b` where either is NaN.
    fn pick(&mut self, monoid: Monoid, a: ValueId, b: ValueId) -> ValueId {
        let (low, high) = if monoid == Monoid::Max { (b, a) } else { (a, b) };
        let better = self.map(ScalarOp::Lt, &[low, high]);
        self.map(ScalarOp::Select, &[better, a, b])
    }
}
