//! Which loops may run in vector lanes.

use std::fmt;

use tlc_ir::index::VarId;
use tlc_ir::kernel::{Memory, Op, Stmt};
use tlc_ir::{DType, ScalarOp};

use super::{Scheduler, tree};

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

impl Scheduler<'_> {
    /// Vector lanes that the loop over `var` can run in.
    pub(super) fn lanes(&self, var: VarId) -> Result<i64, ScalarReason> {
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
