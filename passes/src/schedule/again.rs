//! What it takes to compute a value again, against what it takes to keep it.

use tlc_ir::kernel::{Kernel, Op};
use tlc_ir::scalar::Cost;

use crate::legalize::convert_statements;

/// A value that takes more than this is kept rather than computed again, an addition being 1: about what it takes to store an
/// element and to load it.
pub(super) const MOST: u32 = 4;

/// What it takes to load an element.
pub(super) const ELEMENT: u32 = 2;

/// What an operation takes by itself, an addition being 1; a division and all that is dearer take more than [`MOST`].
pub(super) fn own_cost(kernel: &Kernel, op: &Op) -> u32 {
    match op {
        Op::Const(_) | Op::Bitcast(..) => 0,
        Op::Index(..) => 1,
        Op::Load { .. } => ELEMENT,
        Op::Map(op, _) => match op.cost() {
            Cost::Cheap | Cost::Fused => 1,
            Cost::Division | Cost::Function => MOST + 1,
        },
        Op::ShortExp2(_) | Op::Approximate(..) => MOST + 1,
        Op::Scale(_) => 1,
        Op::Convert(to, from) => convert_statements(kernel.dtype(*from), *to),
    }
}

/// Whether an operation is a transcendental function: as dear as what it is computed from, or dearer.
pub(super) fn is_function(op: &Op) -> bool {
    matches!(op, Op::Map(op, _) if op.cost() == Cost::Function)
}
