//! What a processor holds between instructions.

/// A flag that instructions set and others look at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flag {
    /// A carry out of the highest bit, or a borrow.
    Carry,
    /// An even number of ones in the low byte.
    Parity,
    /// A result of zero.
    Zero,
    /// The highest bit.
    Sign,
    /// A signed result that does not fit.
    Overflow,
}

impl Flag {
    /// All of them.
    pub const ALL: [Flag; 5] = [Flag::Carry, Flag::Parity, Flag::Zero, Flag::Sign, Flag::Overflow];

    /// Its bit in `rflags`.
    pub const fn bit(self) -> u32 {
        match self {
            Flag::Carry => 0,
            Flag::Parity => 2,
            Flag::Zero => 6,
            Flag::Sign => 7,
            Flag::Overflow => 11,
        }
    }
}

/// The flags; some are undefined at the start and behind some instructions. The auxiliary carry is none of them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Flags {
    set: u32,
    defined: u32,
}

impl Flags {
    /// A flag, if it is defined.
    pub fn get(self, flag: Flag) -> Option<bool> {
        let bit = 1 << flag.bit();
        (self.defined & bit != 0).then_some(self.set & bit != 0)
    }

    /// Sets or clears a flag.
    pub fn put(&mut self, flag: Flag, value: bool) {
        let bit = 1 << flag.bit();
        self.defined |= bit;
        self.set = self.set & !bit | if value { bit } else { 0 };
    }

    /// Leaves a flag undefined.
    pub fn forget(&mut self, flag: Flag) {
        self.defined &= !(1 << flag.bit());
    }

    /// Those that are defined, as `rflags` has them, and which those are.
    pub fn bits(self) -> (u32, u32) {
        (self.set & self.defined, self.defined)
    }
}

/// A vector register of 512 bits, its first byte first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vector(pub [u8; 64]);

impl Default for Vector {
    fn default() -> Vector {
        Vector([0; 64])
    }
}

/// An element of a vector.
pub(crate) trait Lane: Copy {
    const BYTES: usize;
    /// Element `i`.
    fn get(v: &Vector, i: usize) -> Self;
    fn put(self, v: &mut Vector, i: usize);
}

macro_rules! lanes {
    ($($t:ty)*) => {$(
        impl Lane for $t {
            const BYTES: usize = size_of::<$t>();

            #[inline(always)]
            fn get(v: &Vector, i: usize) -> $t {
                let mut bytes = [0; size_of::<$t>()];
                bytes.copy_from_slice(&v.0[i * size_of::<$t>()..(i + 1) * size_of::<$t>()]);
                <$t>::from_le_bytes(bytes)
            }

            #[inline(always)]
            fn put(self, v: &mut Vector, i: usize) {
                v.0[i * size_of::<$t>()..(i + 1) * size_of::<$t>()].copy_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}

lanes!(u8 u16 u32 u64 i8 i16 i32 i64 u128);

/// The registers and flags.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct State {
    /// General registers, by their number: `rax`, `rcx`, `rdx`, `rbx`, `rsp`, `rbp`, `rsi`, `rdi`, `r8` and so on.
    pub general: [u64; 16],
    /// Vector registers.
    pub vectors: [Vector; 32],
    /// Mask registers.
    pub masks: [u64; 8],
    /// Flags.
    pub flags: Flags,
}
