//! Which loops may run in vector lanes.

use std::fmt;

use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::{Memory, Op, Stmt};
use tlc_ir::target::{AccessKind, BYTE_TABLE, Emitter, Width};
use tlc_ir::{DType, ScalarOp};

use super::Scheduler;
use crate::legalize::{decoded, encoded};
use crate::tree;

/// Bits of the narrowest vectors that are worth while.
const NARROWEST_BITS: i64 = 128;

/// Why an innermost loop runs one element at a time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ScalarReason {
    /// A conversion without a vector form.
    NoVectorConversion(DType, DType),
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
    /// The emitter has no vectors.
    NoVectors,
    /// Each iteration needs the one before.
    Recurrence,
    /// With a loop for whole vectors and one for the rest the kernel would be too large.
    Size,
}

impl fmt::Display for ScalarReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoVectorConversion(a, b) => write!(f, "{a} to {b} has no vector form"),
            Self::NoVectorOp(op) => write!(f, "{op} has no vector form"),
            Self::MaskedAccess => f.write_str("an access is conditional per element"),
            Self::DataIndex => f.write_str("an index comes from data"),
            Self::StridedStore => f.write_str("results are not stored side by side"),
            Self::Short => f.write_str("the loop is shorter than a vector"),
            Self::NoVectors => f.write_str("the emitter has no vectors"),
            Self::Recurrence => f.write_str("each iteration needs the one before"),
            Self::Size => f.write_str("the kernel would be too large"),
        }
    }
}

impl Scheduler<'_> {
    /// Vector lanes that the loop over `var` can run in.
    pub(super) fn lanes(&self, var: VarId) -> Result<i64, ScalarReason> {
        self.lanes_within(var, self.widest_lanes(var)?)
            .ok_or(ScalarReason::Short)
    }

    /// Lanes of whole vectors that the loop over `var` can run in, if it is long enough.
    pub(super) fn widest_lanes(&self, var: VarId) -> Result<i64, ScalarReason> {
        if self.vector_bits == 0 {
            return Err(ScalarReason::NoVectors);
        }
        let body = tree::loop_body(&self.kernel.body, var).ok_or(ScalarReason::Short)?;
        let mut widest = 8;
        self.check_lanes(body, var, &mut widest)?;
        Ok(i64::from(self.vector_bits / widest))
    }

    /// Lanes of the narrowest vectors that are worth while, of so many in whole ones.
    pub(super) fn narrowest_lanes(&self, whole: i64) -> i64 {
        let bits = i64::from(self.vector_bits.max(1));
        // Eight bytes are one element of 64 bits, which machines that have more than one width of vectors move as such.
        let narrowest = match whole * 8 == bits && bits > NARROWEST_BITS {
            true => NARROWEST_BITS / 2,
            false => NARROWEST_BITS,
        };
        (whole * narrowest / bits).max(2)
    }

    /// So many lanes, or as many as the loop has iterations for in a part of a vector: one of 128 bits has as little use for
    /// elements that are not there as one of 512, and is as fast.
    pub(super) fn lanes_within(&self, var: VarId, lanes: i64) -> Option<i64> {
        let most = self.kernel.extents[var.0 as usize].interval(&self.kernel).hi;
        let narrowest = self.narrowest_lanes(lanes);
        let halves = std::iter::successors(Some(lanes), |n| (n / 2 >= narrowest).then_some(n / 2));
        halves.into_iter().find(|n| *n <= most)
    }

    /// Checks the statements of a loop; `widest` becomes the bits of the widest element that lanes hold. Narrower ones fill a
    /// part of a vector.
    fn check_lanes(&self, body: &[Stmt], var: VarId, widest: &mut u32) -> Result<(), ScalarReason> {
        let mut meet = |d: DType| {
            if d != DType::Bool {
                *widest = (*widest).max(d.bits());
            }
        };
        let unit = |e: &IndexExpr| e.affine_in(var).is_some_and(|(c, _)| c.is(1));
        // A value that does not change inside the loop stays a scalar; only what varies must fit the lanes.
        let mut varying = Vec::new();
        // Indices that data decides, of each lane.
        let mut chosen: Vec<VarId> = Vec::new();
        let by_data = |e: &IndexExpr, chosen: &[VarId]| chosen.iter().any(|v| e.uses(*v));
        for s in body {
            match s {
                Stmt::Let { value, op } => {
                    let dtype = self.kernel.dtype(*value);
                    let gathered = op.index().is_some_and(|e| by_data(e, &chosen));
                    if gathered && !self.gathers(op, var, &chosen) {
                        return Err(ScalarReason::DataIndex);
                    }
                    if let Some(a) = op.access().filter(|_| !gathered) {
                        // Lanes side by side are one access wherever all of them are inside, and one element for all of them is one.
                        let one_for_all = !a.index.uses(var) && matches!(a.memory, Memory::Param(_));
                        if a.mask.is_some_and(|m| varying.contains(&m)) && !unit(a.index) && !one_for_all {
                            return Err(ScalarReason::MaskedAccess);
                        }
                        // A gather from a parameter by an index that is not linear is still an index that the lanes can
                        // compute.
                        let scratch = matches!(a.memory, Memory::Scratch(_));
                        if scratch && a.index.uses(var) && a.index.affine_in(var).is_none() {
                            return Err(ScalarReason::DataIndex);
                        }
                    }
                    let varies = gathered
                        || op.index().is_some_and(|e| e.uses(var))
                        || op.operands().iter().any(|a| varying.contains(a));
                    if !varies {
                        continue;
                    }
                    if let Op::Map(op, args) = op {
                        let on = self.kernel.dtype(args[args.len() - 1]);
                        if !vector_form(self.emitter, *op, on) {
                            return Err(ScalarReason::NoVectorOp(*op));
                        }
                        // Arithmetic on 16-bit floats is arithmetic on f32.
                        if is_half(on) && *op != ScalarOp::Select {
                            meet(DType::F32);
                        }
                        args.iter()
                            .filter(|a| varying.contains(a))
                            .for_each(|a| meet(self.kernel.dtype(*a)));
                    }
                    if let Op::Convert(_, a) = op {
                        let from = self.kernel.dtype(*a);
                        if !convert_form(self.emitter, from, dtype) {
                            return Err(ScalarReason::NoVectorConversion(from, dtype));
                        }
                        meet(from);
                        // 16-bit floats and storage types are converted by way of 32 bits.
                        if [from, dtype].iter().any(|d| is_half(*d) || d.is_storage()) {
                            meet(DType::F32);
                        }
                    }
                    meet(dtype);
                    varying.push(*value);
                }
                Stmt::Store {
                    memory, index, mask, ..
                } => {
                    if by_data(index, &chosen) {
                        return Err(ScalarReason::DataIndex);
                    }
                    if !unit(index) {
                        return Err(match mask {
                            Some(_) => ScalarReason::MaskedAccess,
                            None => ScalarReason::StridedStore,
                        });
                    }
                    meet(self.kernel.memory_dtype(*memory));
                }
                Stmt::Accumulate { state, monoid, .. } => {
                    for (m, i) in state {
                        let dtype = self.kernel.memory_dtype(*m);
                        if by_data(i, &chosen) {
                            return Err(ScalarReason::DataIndex);
                        }
                        if i.uses(var) && !unit(i) {
                            return Err(ScalarReason::StridedStore);
                        }
                        if !vector_form(self.emitter, monoid.combine(), dtype) {
                            return Err(ScalarReason::NoVectorOp(monoid.combine()));
                        }
                        if is_half(dtype) {
                            meet(DType::F32);
                        }
                        meet(dtype);
                    }
                }
                Stmt::Clamp { var: at, value } if varying.contains(value) => {
                    let extent = &self.kernel.extents[at.0 as usize];
                    let small = extent.interval(&self.kernel).hi <= i64::from(i32::MAX);
                    let indexed = self.emitter.access(AccessKind::Indexed).is_vector();
                    if !indexed || !small || extent.uses(var) || by_data(extent, &chosen) {
                        return Err(ScalarReason::DataIndex);
                    }
                    chosen.push(*at);
                    meet(DType::I32);
                }
                // One index for all lanes.
                Stmt::Clamp { .. } => {}
                Stmt::If { .. }
                | Stmt::Loop { .. }
                | Stmt::Contract(_)
                | Stmt::Collective(_)
                | Stmt::FoldRows(_)
                | Stmt::Prefetch { .. } => {
                    return Err(ScalarReason::Recurrence);
                }
                Stmt::Each { .. } | Stmt::CopyAsync(_) | Stmt::Commit | Stmt::Wait(_) | Stmt::Barrier => {
                    return Err(ScalarReason::Recurrence);
                }
            }
        }
        Ok(())
    }
}

impl Scheduler<'_> {
    /// Whether the lanes of the loop over `var` load what data says all at once: from a parameter, by an index that is a sum of their own
    /// number and of what data chose for them.
    fn gathers(&self, op: &Op, var: VarId, chosen: &[VarId]) -> bool {
        let Op::Load {
            memory: memory @ Memory::Param(_),
            index,
            ..
        } = op
        else {
            return false;
        };
        let dtype = self.kernel.memory_dtype(*memory);
        if matches!(dtype, DType::U8 | DType::I8) {
            return self.looks_up(*memory, index);
        }
        let linear = |v: VarId| index.affine_in(v).is_some_and(|(k, _)| k.as_const().is_some());
        let wide = matches!(dtype.bytes(), 4 | 8);
        wide && linear(var) && chosen.iter().filter(|v| index.uses(**v)).all(|v| linear(*v))
    }

    /// Whether what data says is in a table of all bytes, and the emitter picks bytes from these.
    fn looks_up(&self, memory: Memory, index: &IndexExpr) -> bool {
        let Memory::Param(p) = memory else { return false };
        let whole = |n: &IndexExpr| n.is(BYTE_TABLE);
        let is_number = index
            .as_var()
            .is_some_and(|v| whole(&self.kernel.extents[v.0 as usize]));
        self.emitter.looks_bytes_up && whole(&self.kernel.params[p as usize].len) && is_number
    }
}

pub(super) fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// Whether an operation on a dtype has a vector form (after legalization).
pub(super) fn vector_form(emitter: &Emitter, op: ScalarOp, on: DType) -> bool {
    emitter.map(op, on, Width::Lanes).is_vector()
}

/// Whether a conversion has a vector form where both dtypes fit the lanes (after legalization).
fn convert_form(emitter: &Emitter, from: DType, to: DType) -> bool {
    if to.is_storage() || from.is_storage() {
        let from = if from.is_storage() { decoded(from) } else { from };
        let through = if to.is_storage() { encoded(to, from) } else { to };
        return through != DType::F64 && convert_form(emitter, from, through);
    }
    emitter.convert(from, to, Width::Lanes).is_vector()
}
