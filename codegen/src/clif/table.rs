//! What this emitter has, as data for passes to choose by.

use std::sync::OnceLock;

use ScalarOp::*;
use cranelift_codegen::isa::TargetIsa;
use tlc_ir::scalar::Form;
use tlc_ir::target::{Emitter, Support, Width};
use tlc_ir::{DType, ScalarOp};

use crate::flat::Capability;
use crate::host::is_called;

/// Bits of a vector: Cranelift lowers no wider ones.
pub(super) const VECTOR_BITS: u32 = 128;
/// Vector registers of x86-64 without AVX-512, the fewest of all targets with vectors.
const VECTOR_REGISTERS: u32 = 16;

/// The table of the CLIF emitter, on a machine with or without a fused multiply-add.
pub fn emitter(has_fma: bool) -> Emitter {
    shared_emitter(has_fma).clone()
}

fn made(has_fma: bool) -> Emitter {
    Emitter::new(
        "clif",
        VECTOR_BITS,
        VECTOR_REGISTERS,
        has_fma,
        |op, on, width| map(op, on, width, has_fma),
        convert,
    )
}

/// The table, made once for all kernels.
pub(super) fn shared_emitter(has_fma: bool) -> &'static Emitter {
    static TABLES: [OnceLock<Emitter>; 2] = [OnceLock::new(), OnceLock::new()];
    TABLES[usize::from(has_fma)].get_or_init(|| made(has_fma))
}

fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

fn map(op: ScalarOp, on: DType, width: Width, has_fma: bool) -> Support {
    let support = match on.is_float() {
        true => float(op, has_fma),
        false => integer(op, on, width),
    };
    // There is no arithmetic on 16-bit floats: it is f32's, rounded.
    match is_half(on) && op != Select && support == Support::Native {
        true => Support::Formula,
        false => support,
    }
}

fn float(op: ScalarOp, has_fma: bool) -> Support {
    match op {
        // Functions would be a call for each element; their formulas are vector code.
        _ if op.form() == Form::Formula => Support::Formula,
        Fma if has_fma => Support::Native,
        // A call of the host for each element.
        Fma | Rem | Mod => Support::PerLane,
        _ => Support::Native,
    }
}

/// Operations on bool, integers and storage types.
fn integer(op: ScalarOp, on: DType, width: Width) -> Support {
    let lanes_of = |bits: &[u32]| match width == Width::Scalar || bits.contains(&on.bits()) {
        true => Support::Native,
        false => Support::PerLane,
    };
    match op {
        // On bool they are bitwise operations, which is what masks have.
        Max | Min | Eq | Ne | Lt | Le if on == DType::Bool => Support::Formula,
        // x86 multiplies neither 8-bit nor 64-bit lanes in less than lane by lane.
        Mul => lanes_of(&[16, 32]),
        // By one amount for all lanes; where amounts differ, lanes are shifted one by one.
        Shl | Shr | Dot4 => lanes_of(&[32]),
        // No machine divides integers in lanes.
        Div | Rem | Mod => lanes_of(&[]),
        _ => Support::Native,
    }
}

fn convert(from: DType, to: DType, width: Width) -> Support {
    if from == to {
        return Support::Native;
    }
    if from.is_storage() || to.is_storage() {
        return Support::Formula;
    }
    // One rounding takes a call where f32 in between would round twice.
    let host = is_half(to) && (from == DType::F64 || from.is_int() && from.bits() >= 32);
    let vector = match (to.is_float(), from.is_float()) {
        _ if to == DType::Bool || from == DType::Bool => true,
        (false, false) => true,
        (true, false) => from.bits() <= 16 && to != DType::F64 || from.bits() == 32 && to == DType::F32,
        (false, true) => from != DType::F64 && to.bits() <= 32,
        (true, true) => !(from == DType::F64 && is_half(to)),
    };
    let fits_significand = from.is_int() && from.bits() <= 32;
    match (host, width) {
        // Integers are put into the significand of a large number.
        (_, Width::Lanes) if fits_significand && to == DType::F64 => Support::Formula,
        (false, Width::Scalar) => Support::Native,
        (_, Width::Lanes) if vector => Support::Native,
        _ => Support::PerLane,
    }
}

/// What the emitter has on one machine.
pub(super) struct Machine {
    table: &'static Emitter,
    /// Whether it has 128-bit vectors whose first lane is the lowest address.
    vectors: bool,
}

impl Machine {
    pub(super) fn of(isa: &dyn TargetIsa) -> Machine {
        let vectors = match isa.name() {
            "aarch64" => true,
            // Before SSSE3 (2006) byte shuffles are calls.
            "x64" => isa.has_x86_pshufb_lowering(),
            "riscv64" => isa
                .isa_flags()
                .iter()
                .any(|f| f.name == "has_v" && f.as_bool() == Some(true)),
            _ => false,
        };
        Machine {
            table: shared_emitter(isa.has_native_fma()),
            vectors,
        }
    }
}

impl Capability for Machine {
    fn table(&self) -> &Emitter {
        self.table
    }

    fn vector_bits(&self) -> u32 {
        if self.vectors { VECTOR_BITS } else { 0 }
    }

    /// Also what the table advises against, since it is no faster than lane by lane.
    fn maps_lanes(&self, op: ScalarOp, on: DType, known: bool) -> bool {
        match op {
            Fma => self.table.map(op, on, Width::Lanes) == Support::Native,
            _ if matches!(on, DType::F32 | DType::F64) => !is_called(op),
            Shl | Shr => known,
            Div | Rem | Mod => false,
            _ => true,
        }
    }

    fn loads_lanes(&self, dtype: DType, offsets: &[u8]) -> bool {
        Pattern::of(dtype, offsets).is_some()
    }

    fn stores_lanes(&self, dtype: DType, offsets: &[u8]) -> bool {
        matches!(
            Pattern::of(dtype, offsets),
            Some(Pattern::Consecutive | Pattern::Reversed)
        )
    }

    fn masks_scalars(&self) -> bool {
        false
    }

    fn copies_blocks(&self) -> bool {
        true
    }
}

/// How the elements of lanes lie that are accessed at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pattern {
    /// Side by side.
    Consecutive,
    /// Side by side, the last lane's first.
    Reversed,
    /// A full vector of every second one.
    EverySecond,
    /// Two or three of 4 bytes, some for several lanes: as where an image is enlarged.
    Repeated,
}

impl Pattern {
    pub(super) fn of(dtype: DType, offsets: &[u8]) -> Option<Pattern> {
        let count = offsets.len();
        let is = |f: &dyn Fn(usize) -> usize| offsets.iter().enumerate().all(|(i, o)| usize::from(*o) == f(i));
        let together = |pair: &[u8]| pair[1] == pair[0] || pair[1] == pair[0] + 1;
        match offsets {
            _ if is(&|i| i) => Some(Pattern::Consecutive),
            _ if is(&|i| count - 1 - i) => Some(Pattern::Reversed),
            _ if is(&|i| 2 * i) && count * dtype.bytes() == 16 && dtype != DType::Bool => Some(Pattern::EverySecond),
            [0, .., 1 | 2] if count == 4 && dtype.bytes() == 4 && offsets.windows(2).all(together) => {
                Some(Pattern::Repeated)
            }
            _ => None,
        }
    }
}
