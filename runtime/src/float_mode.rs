//! The floating-point mode of a thread: how the processor rounds, and whether it takes subnormal numbers for zero.
//!
//! Kernels, products and what the compiler computes itself mean IEEE arithmetic that rounds to nearest and keeps subnormal numbers. A
//! thread of the caller may be in another mode: audio programs flush subnormal numbers to zero, interval arithmetic rounds up.
//! Whoever computes something enters the default mode for as long as that takes, and leaves the thread as it was found, so that
//! results do not depend on who calls.

use std::marker::PhantomData;

/// Keeps this thread in the default mode for as long as the value lives; then the mode is what it was before.
#[must_use = "the thread leaves the default mode where this is dropped"]
#[derive(Debug)]
pub struct DefaultMode {
    /// The register as it was found, if it had to be changed.
    found: Option<control::Register>,
    /// The mode is this thread's.
    _of_thread: PhantomData<*mut ()>,
}

impl DefaultMode {
    /// Has this thread round to nearest and keep subnormal numbers. Where it does already, the register is only read.
    #[inline]
    pub fn enter() -> DefaultMode {
        let now = control::read();
        let other = now & control::MODE != control::DEFAULT & control::MODE;
        if other {
            control::write(control::DEFAULT);
        }
        DefaultMode {
            found: other.then_some(now),
            _of_thread: PhantomData,
        }
    }
}

impl Drop for DefaultMode {
    #[inline]
    fn drop(&mut self) {
        if let Some(found) = self.found {
            control::write(found);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod control {
    use std::arch::asm;

    /// MXCSR.
    pub(super) type Register = u32;
    /// Every exception masked, nearest, subnormal numbers kept.
    pub(super) const DEFAULT: Register = 0x1f80;
    /// All but the flags of exceptions that have occurred, which arithmetic raises in any mode.
    pub(super) const MODE: Register = !0x3f;

    #[inline]
    pub(super) fn read() -> Register {
        let mut register: Register = 0;
        // SAFETY: stores four bytes in the variable.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut register, options(nostack, preserves_flags)) };
        register
    }

    #[inline]
    pub(super) fn write(register: Register) {
        // SAFETY: loads four bytes that are either the default, which compiled code expects, or what was read before; no reserved
        // bit is set in either.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const register, options(nostack, readonly, preserves_flags)) };
    }
}

#[cfg(target_arch = "aarch64")]
mod control {
    use std::arch::asm;

    /// FPCR.
    pub(super) type Register = u64;
    /// Nearest, subnormal numbers kept, NaN payloads propagated, no exception trapped.
    pub(super) const DEFAULT: Register = 0;
    /// The alternative half-precision format, default NaN, flushing (of 16-bit numbers too), and the direction of rounding; traps
    /// of exceptions.
    pub(super) const MODE: Register = 0x07c8_9f00;

    #[inline]
    pub(super) fn read() -> Register {
        let register: Register;
        // SAFETY: reads a register.
        unsafe { asm!("mrs {}, fpcr", out(reg) register, options(nomem, nostack, preserves_flags)) };
        register
    }

    #[inline]
    pub(super) fn write(register: Register) {
        // SAFETY: sets the register to the default, which compiled code expects, or to what was read before.
        unsafe { asm!("msr fpcr, {}", in(reg) register, options(nostack, preserves_flags)) };
    }
}

/// Other processors are taken to be in the default mode.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod control {
    pub(super) type Register = u32;
    pub(super) const DEFAULT: Register = 0;
    pub(super) const MODE: Register = 0;

    pub(super) fn read() -> Register {
        0
    }

    pub(super) fn write(_: Register) {}
}
