//! Which instructions the wide emitter may use here.
//!
//! `TLC_CPU` forces a level: `amx`, `avx512_bf16`, `avx512`, `avx2`, `sse` for the portable emitter alone, or `scalar` for that one without vectors.
//! A level that the processor lacks is not offered, whatever the variable says. At `amx` and `avx512_bf16` kernels are those of `avx512`, and the library of products has matrix
//! instructions beside it, or products of pairs of bf16 (`vdpbf16ps`).

use std::sync::OnceLock;

use tlc_codegen::wide::{Extensions, Level};

use super::amx::{Refusal, permitted};

/// The environment variable that forces a level.
pub const VARIABLE: &str = "TLC_CPU";

/// What [`VARIABLE`] calls the portable emitter alone.
pub const PORTABLE: &str = "sse";

/// What [`VARIABLE`] calls the portable emitter without vectors.
pub const SCALAR: &str = "scalar";

/// What [`VARIABLE`] calls matrix instructions beside the widest kernels.
pub const MATRICES: &str = "amx";

/// What [`VARIABLE`] calls products of pairs of bf16 beside the widest kernels.
pub const PAIRS: &str = "avx512_bf16";

/// Why [`VARIABLE`] cannot be obeyed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LevelError {
    /// It names no level.
    #[error("{VARIABLE}={0}: unknown level; expected amx, avx512_bf16, avx512, avx2, sse or scalar")]
    Unknown(String),
    /// The processor lacks it.
    #[error("{VARIABLE}={0}: the processor lacks it")]
    Lacking(String),
    /// There are no matrix instructions.
    #[error("{VARIABLE}={MATRICES}: {0}")]
    Refused(Refusal),
}

/// Whether the level that [`VARIABLE`] forces, if it is set, is one of this machine.
///
/// # Errors
/// [`LevelError`], if it is not; the portable emitter then makes all kernels.
pub fn check() -> Result<(), LevelError> {
    let forced = std::env::var_os(VARIABLE).map(|v| v.to_string_lossy().into_owned());
    match forced.as_deref() {
        None | Some("" | PORTABLE | SCALAR) => Ok(()),
        Some(MATRICES) if all().contains(&Level::Avx512) => permitted().map_err(LevelError::Refused),
        Some(PAIRS) if has_pairs() => Ok(()),
        Some(name @ (MATRICES | PAIRS)) => Err(LevelError::Lacking(name.into())),
        Some(name) if Level::ALL.iter().any(|l| l.name() == name) => match wide() {
            Some(_) => Ok(()),
            None => Err(LevelError::Lacking(name.into())),
        },
        Some(name) => Err(LevelError::Unknown(name.into())),
    }
}

/// The level of the wide emitter in this process: the one that [`VARIABLE`] forces, or else the widest of this machine.
pub fn wide() -> Option<Level> {
    static LEVEL: OnceLock<Option<Level>> = OnceLock::new();
    *LEVEL.get_or_init(|| match std::env::var(VARIABLE).as_deref() {
        Err(_) | Ok("") => all().first().copied(),
        Ok(MATRICES) => all().first().copied().filter(|_| matrices().is_ok()),
        Ok(PAIRS) => all().first().copied().filter(|_| has_pairs()),
        Ok(name) => all().iter().copied().find(|level| level.name() == name),
    })
}

/// Why the library of products has no matrix instructions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoMatrices {
    /// [`VARIABLE`] forces another level.
    #[error("another level is forced")]
    Forced,
    /// The processor has no vectors of 512 bits, which kernels beside them are made for.
    #[error("the processor lacks AVX-512")]
    Narrow,
    /// There are none, or the system gives no leave.
    #[error("{0}")]
    Refused(Refusal),
}

/// Whether the library of products has matrix instructions in this process. Asks the system for leave to use them, once.
///
/// # Errors
/// Why not.
pub fn matrices() -> Result<(), NoMatrices> {
    static MATRIX: OnceLock<Result<(), NoMatrices>> = OnceLock::new();
    *MATRIX.get_or_init(|| match std::env::var(VARIABLE).as_deref() {
        Err(_) | Ok("" | MATRICES) if all().contains(&Level::Avx512) => permitted().map_err(NoMatrices::Refused),
        Err(_) | Ok("" | MATRICES) => Err(NoMatrices::Narrow),
        Ok(_) => Err(NoMatrices::Forced),
    })
}

/// What the library of products multiplies bf16 by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Halves {
    /// Tiles of matrices.
    Tiles,
    /// Vectors of pairs, whose products are added to lanes of f32.
    Pairs,
}

/// What the library of products multiplies bf16 by in this process, if it does. Which it is decides about the last bits of results, so at
/// `avx512` there is none: kernels multiply f32.
pub fn halves() -> Option<Halves> {
    static HALVES: OnceLock<Option<Halves>> = OnceLock::new();
    *HALVES.get_or_init(|| match std::env::var(VARIABLE).as_deref() {
        _ if matrices().is_ok() => Some(Halves::Tiles),
        Err(_) | Ok("" | PAIRS) => has_pairs().then_some(Halves::Pairs),
        Ok(_) => None,
    })
}

/// Whether [`VARIABLE`] leaves the portable emitter its vectors.
pub fn has_vectors() -> bool {
    static VECTORS: OnceLock<bool> = OnceLock::new();
    *VECTORS.get_or_init(|| std::env::var(VARIABLE).as_deref() != Ok(SCALAR))
}

/// The name of the level of this process, as [`VARIABLE`] has it: `sse` or `scalar` where the portable emitter makes all kernels.
pub fn name() -> &'static str {
    match halves() {
        Some(Halves::Tiles) => MATRICES,
        Some(Halves::Pairs) => PAIRS,
        None => of_kernels(),
    }
}

/// The name of the level at which kernels are made in this process, whatever the library of products has beside them.
pub fn of_kernels() -> &'static str {
    match (wide(), has_vectors()) {
        (Some(level), _) => level.name(),
        (None, true) => PORTABLE,
        (None, false) => SCALAR,
    }
}

/// The levels of this machine, the widest first.
pub fn all() -> &'static [Level] {
    static LEVELS: OnceLock<Vec<Level>> = OnceLock::new();
    LEVELS.get_or_init(|| Level::ALL.into_iter().filter(|level| detect(*level)).collect())
}

/// Whether the processor has the instruction for products of bytes in the encoding of a level (`vpdpbusd`).
#[cfg(all(target_arch = "x86_64", unix))]
fn multiplies_bytes(level: Level) -> bool {
    match level {
        Level::Avx512 => is_x86_feature_detected!("avx512vnni"),
        Level::Avx2 => is_x86_feature_detected!("avxvnni"),
    }
}

/// No code is made for its level.
#[cfg(not(all(target_arch = "x86_64", unix)))]
fn multiplies_bytes(_: Level) -> bool {
    false
}

/// What the processor has beside the instructions of a level.
pub fn extensions(level: Level) -> Extensions {
    Extensions {
        dots: multiplies_bytes(level),
        byte_tables: level == Level::Avx512 && has_byte_tables(),
    }
}

/// Whether the processor picks bytes from two vectors (`vpermt2b`).
#[cfg(all(target_arch = "x86_64", unix))]
fn has_byte_tables() -> bool {
    is_x86_feature_detected!("avx512vbmi")
}

/// No code is made for its level.
#[cfg(not(all(target_arch = "x86_64", unix)))]
fn has_byte_tables() -> bool {
    false
}

/// Whether the processor multiplies pairs of bf16 (`vdpbf16ps`), beside the widest kernels.
#[cfg(all(target_arch = "x86_64", unix))]
fn has_pairs() -> bool {
    all().contains(&Level::Avx512) && is_x86_feature_detected!("avx512bf16")
}

/// No code is made for its level.
#[cfg(not(all(target_arch = "x86_64", unix)))]
fn has_pairs() -> bool {
    false
}

#[cfg(all(target_arch = "x86_64", unix))]
fn detect(level: Level) -> bool {
    match level {
        Level::Avx512 => {
            is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512cd")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
        }
        Level::Avx2 => {
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
        }
    }
}

/// Its code is for x86-64 and the System V calling convention.
#[cfg(not(all(target_arch = "x86_64", unix)))]
fn detect(_: Level) -> bool {
    false
}
