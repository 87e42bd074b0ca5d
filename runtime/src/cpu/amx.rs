//! Whether this process may multiply tiles of matrices: Intel AMX, whose state a system keeps for those alone that ask for it.

use std::fmt;
use std::sync::OnceLock;

/// Why tiles of matrices are not offered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The processor has no such instructions, or not those that round products of bf16 beside them: a virtual machine may hide either.
    Lacking,
    /// The system does not keep their state.
    System,
    /// The system was asked for leave to use them and refused, with this error number.
    Permission(i32),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Lacking => f.write_str("the processor has no matrix tiles, or no AVX512-BF16 beside them"),
            Refusal::System => f.write_str("the system does not keep the state of matrix tiles"),
            Refusal::Permission(error) => {
                let error = std::io::Error::from_raw_os_error(*error);
                write!(f, "the system refuses leave to use matrix tiles: {error}")
            }
        }
    }
}

/// Asks, once in a process, for leave to use tiles of matrices.
///
/// # Errors
/// [`Refusal`], if there are none or the system refuses.
pub fn permitted() -> Result<(), Refusal> {
    static PERMITTED: OnceLock<Result<(), Refusal>> = OnceLock::new();
    *PERMITTED.get_or_init(ask)
}

/// As it is documented in the Linux kernel's `Documentation/arch/x86/xstate.rst`.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn ask() -> Result<(), Refusal> {
    use std::arch::asm;

    use crate::machine::x86::leaf;

    /// Bits of leaf 7: products of bf16, tiles, and products of bytes.
    const FEATURES: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    /// The components of a thread's state: configuration and data.
    const STATES: u32 = 1 << 17 | 1 << 18;
    const ARCH_REQ_XCOMP_PERM: libc::c_int = 0x1023;
    const TILE_DATA: libc::c_int = 18;

    // The one palette: eight tiles of 16 rows of 64 bytes. Processors before it lack the leaf, which is known without asking them.
    let [_, lines, rows, _] = leaf(0x1d, 1).ok_or(Refusal::Lacking)?;
    if lines & 0xffff != 64 || lines >> 16 != 8 || rows & 0xffff != 16 {
        return Err(Refusal::Lacking);
    }
    let saves = leaf(1, 0).is_some_and(|[_, _, ecx, _]| ecx & 1 << 27 != 0);
    let offers = leaf(7, 0).is_some_and(|[_, _, _, edx]| edx & FEATURES == FEATURES);
    if !saves || !offers || !is_x86_feature_detected!("avx512bf16") {
        return Err(Refusal::Lacking);
    }
    let kept: u32;
    // SAFETY: the processor said that the system has switched the instruction on; it reads a register.
    unsafe { asm!("xgetbv", in("ecx") 0, out("eax") kept, out("edx") _, options(nomem, nostack, preserves_flags)) };
    if kept & STATES != STATES {
        return Err(Refusal::System);
    }
    // SAFETY: a system call that touches no memory of ours.
    match unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) } {
        0 => Ok(()),
        _ => Err(Refusal::Permission(
            std::io::Error::last_os_error().raw_os_error().unwrap_or(0),
        )),
    }
}

/// Code for them is for x86-64 and Linux.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
fn ask() -> Result<(), Refusal> {
    Err(Refusal::Lacking)
}
