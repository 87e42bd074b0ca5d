//! What the emitter has on one level, as data for passes to choose by.

use std::sync::OnceLock;

use ScalarOp::*;
use tlc_ir::scalar::Form;
use tlc_ir::target::{AccessKind, Emitter, Support, Width};
use tlc_ir::{DType, ScalarOp};

use super::{Extensions, Level};
use crate::flat::Capability;
use crate::host::is_called;

/// The table of a level.
pub fn emitter(level: Level) -> Emitter {
    shared_emitter(level).clone()
}

fn made(level: Level) -> Emitter {
    let (bits, registers) = (level.vector_bits(), level.vector_registers());
    Emitter::new(
        level.name(),
        bits,
        registers,
        true,
        |op, on, width| map(level, op, on, width),
        |from, to, width| convert(level, from, to, width),
    )
    .with_accesses(|kind| access(level, kind))
    .with_tiles([DType::F32, DType::F64, DType::I32])
    .with_prefetches()
}

/// Accesses of all lanes. AVX2 gathers, but does not scatter, and masks only elements of 32 and 64 bits.
fn access(level: Level, kind: AccessKind) -> Support {
    match (level, kind) {
        (Level::Avx512, _) | (Level::Avx2, AccessKind::SideBySide | AccessKind::Indexed) => Support::Native,
        (Level::Avx2, AccessKind::Apart | AccessKind::Masked) => Support::PerLane,
    }
}

/// The table, made once for all kernels.
pub(super) fn shared_emitter(level: Level) -> &'static Emitter {
    static TABLES: [OnceLock<Emitter>; Level::ALL.len()] = [const { OnceLock::new() }; Level::ALL.len()];
    TABLES[level as usize].get_or_init(|| made(level))
}

fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

fn map(level: Level, op: ScalarOp, on: DType, width: Width) -> Support {
    let support = match on.is_float() {
        true if is_called(op) && op.form() != Form::Formula => Support::PerLane,
        true if op.form() == Form::Formula => Support::Formula,
        true => Support::Native,
        false => integer(level, op, on, width),
    };
    // Arithmetic on 16-bit floats is f32's, rounded.
    match is_half(on) && op != Select && support == Support::Native {
        true => Support::Formula,
        false => support,
    }
}

/// Operations on bool, integers and storage types.
fn integer(level: Level, op: ScalarOp, on: DType, width: Width) -> Support {
    match op {
        // On bool they are operations on masks.
        Max | Min | Eq | Ne | Lt | Le if on == DType::Bool => Support::Formula,
        // Neither are 8-bit lanes multiplied or shifted.
        Mul | Shl | Shr if on.bits() == 8 && width == Width::Lanes => Support::PerLane,
        // AVX2 shifts only lanes of 32 and 64 bits by amounts that differ.
        Shl | Shr if level == Level::Avx2 && on.bits() == 16 && width == Width::Lanes => Support::PerLane,
        // No machine divides integers in lanes.
        Div | Rem | Mod if width == Width::Lanes => Support::PerLane,
        _ => Support::Native,
    }
}

fn convert(level: Level, from: DType, to: DType, width: Width) -> Support {
    if from == to {
        return Support::Native;
    }
    if from.is_storage() || to.is_storage() {
        return Support::Formula;
    }
    // One rounding takes a call where f32 in between would round twice.
    let host = is_half(to) && (from == DType::F64 || from.is_int() && from.bits() >= 32);
    // AVX2 has these for scalars alone; floats of 64-bit integers are put together from halves.
    let scalar = level == Level::Avx2 && from.is_float() && to.is_int() && to.bits() == 64;
    match (host, width) {
        (true, _) => Support::PerLane,
        (false, Width::Lanes) if scalar => Support::PerLane,
        (false, _) => Support::Native,
    }
}

/// What the emitter has on one level.
pub(super) struct Machine {
    level: Level,
    extensions: Extensions,
    table: &'static Emitter,
}

impl Machine {
    pub(super) fn of(level: Level, extensions: Extensions) -> Machine {
        Machine {
            level,
            extensions,
            table: shared_emitter(level),
        }
    }
}

/// Elements that gathers and scatters take.
fn is_gathered(dtype: DType) -> bool {
    matches!(dtype.bytes(), 4 | 8)
}

/// Lanes of one vector whose elements lie within two vectors' length: each is picked from at most two loads.
fn is_near(dtype: DType, offsets: &[u8]) -> bool {
    let most = offsets.iter().copied().max().unwrap_or(0);
    dtype != DType::Bool && dtype.bytes() >= 2 && usize::from(most) < 2 * offsets.len()
}

/// Every other byte of as many as one vector has twice the lanes of: the low halves of words of two.
pub(super) fn is_every_other_byte(dtype: DType, offsets: &[u8]) -> bool {
    dtype != DType::Bool && dtype.bytes() == 1 && (2..=32).contains(&offsets.len()) && is_every_other(offsets)
}

pub(super) fn is_every_other(offsets: &[u8]) -> bool {
    offsets.iter().enumerate().all(|(i, o)| usize::from(*o) == 2 * i)
}

/// Lanes that AVX2 picks from loads of 16-bit elements: those of 128 bits from whole ones, wider ones only in reverse.
fn is_shuffled(dtype: DType, offsets: &[u8]) -> bool {
    let most = offsets.iter().copied().max().unwrap_or(0);
    let whole = usize::from(most) + 1 >= offsets.len();
    whole && offsets.len() * dtype.bytes() <= 16 || is_reversed(offsets)
}

pub(super) fn is_consecutive(offsets: &[u8]) -> bool {
    offsets.iter().enumerate().all(|(i, o)| usize::from(*o) == i)
}

pub(super) fn is_reversed(offsets: &[u8]) -> bool {
    offsets.iter().rev().enumerate().all(|(i, o)| usize::from(*o) == i)
}

impl Capability for Machine {
    fn table(&self) -> &Emitter {
        self.table
    }

    /// Shifts by amounts that differ too, which are instructions here.
    fn maps_lanes(&self, op: ScalarOp, on: DType, _: bool) -> bool {
        self.table.map(op, on, Width::Lanes) == Support::Native
    }

    fn loads_lanes(&self, dtype: DType, offsets: &[u8]) -> bool {
        let apart = match self.level {
            Level::Avx512 => is_gathered(dtype) || is_near(dtype, offsets) || is_every_other_byte(dtype, offsets),
            Level::Avx2 => is_gathered(dtype) || is_near(dtype, offsets) && is_shuffled(dtype, offsets),
        };
        is_consecutive(offsets) || apart
    }

    fn stores_lanes(&self, dtype: DType, offsets: &[u8]) -> bool {
        let scattered = self.level == Level::Avx512 && is_gathered(dtype);
        is_consecutive(offsets) || scattered || is_near(dtype, offsets) && is_reversed(offsets)
    }

    fn gathers_lanes(&self, dtype: DType) -> bool {
        is_gathered(dtype)
    }

    fn looks_bytes_up(&self) -> bool {
        self.level == Level::Avx512 && self.extensions.byte_tables
    }

    fn takes_parts(&self) -> bool {
        true
    }

    /// A store of 6 lanes under a mask that is a vector takes 7 times as long as one of 4 and one of 2 (AMD EPYC 25/1/1).
    fn stores_parts(&self) -> bool {
        self.level == Level::Avx2
    }

    fn interleaves(&self, dtype: DType, lanes: u32) -> bool {
        dtype.bits() == 32 && lanes == self.level.vector_bits() / 32
    }

    fn masks_lanes(&self, dtype: DType) -> bool {
        match self.level {
            Level::Avx512 => true,
            Level::Avx2 => is_gathered(dtype),
        }
    }

    fn masks_every_other(&self, dtype: DType) -> bool {
        self.table.masks_every_other(dtype)
    }

    fn mask_registers(&self) -> bool {
        self.level == Level::Avx512
    }

    fn masks_scalars(&self) -> bool {
        false
    }

    fn copies_blocks(&self) -> bool {
        true
    }
}
