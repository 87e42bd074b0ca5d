//! Functions of the runtime that compiled code may call.
//!
//! Invariants:
//! - A compiled kernel refers to a runtime function only by a relocation to a [`RuntimeFunction`]; the runtime maps each to an
//!   address. The name is stable and fit for a symbol table.
//! - All use the platform's C calling convention. [`RuntimeFunction::Map`] and [`RuntimeFunction::Convert`] take and return
//!   scalars: f32 or f64 operands, or a 64-bit integer; a 16-bit float comes back as its bits in an i32.
//!   [`RuntimeFunction::Copy`] takes six 64-bit integers and returns nothing: address and pitch in bytes of the block that is
//!   written, the same of the block that is read, rows and columns of the block that is written.

use tlc_ir::scalar::Cost;
use tlc_ir::{DType, ScalarOp};

/// A function that compiled code calls for what the emitter has no instructions for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum RuntimeFunction {
    /// The scalar operation on f32 or f64 operands.
    Map(ScalarOp, DType),
    /// Conversion of an f64, i64 or u64 to the bits of an f16 or bf16, rounded once.
    Convert(DType, DType),
    /// Copies a block of memory.
    Copy {
        /// Bytes of an element: 1, 2, 4 or 8; 1 where rows are copied from rows.
        element: u8,
        /// Whether rows are copied from columns.
        transposed: bool,
        /// Whether it writes past the caches.
        streaming: bool,
    },
}

/// Operations on f32 and f64 for which an instruction may be missing.
const MAYBE_MISSING: [ScalarOp; 5] = [
    ScalarOp::Floor,
    ScalarOp::Ceil,
    ScalarOp::Trunc,
    ScalarOp::Round,
    ScalarOp::Fma,
];

/// Whether an operation on f32 and f64 is a call: functions that were not legalized, and remainders.
pub(crate) fn is_called(op: ScalarOp) -> bool {
    op.cost() == Cost::Function || matches!(op, ScalarOp::Rem | ScalarOp::Mod)
}

impl RuntimeFunction {
    /// Every one, in a fixed order; a position in it is the function's index in relocations.
    pub fn all() -> Vec<RuntimeFunction> {
        let mut all = Vec::with_capacity(2 * ScalarOp::ALL.len());
        let functions = ScalarOp::ALL.iter().copied().filter(|op| op.cost() == Cost::Function);
        let remainders = [ScalarOp::Rem, ScalarOp::Mod];
        for op in functions.chain(remainders).chain(MAYBE_MISSING) {
            all.push(RuntimeFunction::Map(op, DType::F32));
            all.push(RuntimeFunction::Map(op, DType::F64));
        }
        for from in [DType::F64, DType::I64, DType::U64] {
            all.push(RuntimeFunction::Convert(from, DType::F16));
            all.push(RuntimeFunction::Convert(from, DType::BF16));
        }
        for streaming in [false, true] {
            for (element, transposed) in [(1, false), (1, true), (2, true), (4, true), (8, true)] {
                all.push(RuntimeFunction::Copy {
                    element,
                    transposed,
                    streaming,
                });
            }
        }
        all
    }

    /// The symbol: `tlc_exp_f32`, `tlc_convert_f64_bf16`, `tlc_stream_transposed_4`.
    pub fn name(self) -> String {
        match self {
            RuntimeFunction::Map(op, dtype) => format!("tlc_{op}_{dtype}"),
            RuntimeFunction::Convert(from, to) => format!("tlc_convert_{from}_{to}"),
            RuntimeFunction::Copy {
                element,
                transposed,
                streaming,
            } => {
                let verb = if streaming { "stream" } else { "copy" };
                let order = if transposed { "transposed" } else { "rows" };
                format!("tlc_{verb}_{order}_{element}")
            }
        }
    }

    pub(crate) fn from_index(index: u32) -> Option<RuntimeFunction> {
        RuntimeFunction::all().get(index as usize).copied()
    }

    pub(crate) fn index(self) -> Option<u32> {
        RuntimeFunction::all().iter().position(|f| *f == self).map(|i| i as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_and_names_identify_a_function() {
        let all = RuntimeFunction::all();
        let mut names: Vec<String> = all.iter().map(|f| f.name()).collect();
        for (i, f) in all.iter().enumerate() {
            assert_eq!(f.index(), Some(i as u32));
            assert_eq!(RuntimeFunction::from_index(i as u32), Some(*f));
        }
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all.len());
    }
}
