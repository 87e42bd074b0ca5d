//! Machine code of a processor: the convention that kernels are called by, and what a loader has to patch.
//!
//! # Calling convention
//! `extern "C" fn(args: *const Args, begin: i64, end: i64)`, where `Args` is three pointers: to the buffer pointers in
//! parameter order ([`ARGS_BUFFERS`]), to the symbol values ([`ARGS_SYMBOLS`]) and to this thread's scratch
//! ([`ARGS_SCRATCH`], 64-byte aligned, of `Kernel::cache_scratch_bytes`). `begin..end` is the part of the parallel loop to
//! run; a kernel without one ignores it. Parameters that are written may not overlap any other parameter, except that an
//! element that is not read again after it is written may share its place with the element written.

use crate::host::RuntimeFunction;

/// Byte offset in `Args` of the pointer to the buffer pointers.
pub const ARGS_BUFFERS: i32 = 0;
/// Byte offset in `Args` of the pointer to the symbol values (i64).
pub const ARGS_SYMBOLS: i32 = 8;
/// Byte offset in `Args` of the scratch pointer.
pub const ARGS_SCRATCH: i32 = 16;

/// How an address is written into code.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RelocKind {
    /// 8 bytes, the address itself.
    Absolute8,
    /// 4 bytes of an x86-64 call, the distance from the place itself.
    X86Call4,
}

/// A place in code to be patched with the address of a host function.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CodeReloc {
    /// Byte offset in the code.
    pub offset: u32,
    /// How the address is written.
    pub kind: RelocKind,
    /// Whose address.
    pub target: RuntimeFunction,
    /// Added to the address.
    pub addend: i64,
}

/// The machine code of one kernel.
#[derive(Clone, PartialEq, Debug)]
pub struct CompiledCode {
    /// The instructions and their constants.
    pub bytes: Vec<u8>,
    /// Required alignment of the first byte.
    pub alignment: u64,
    /// Places to patch, by offset.
    pub relocs: Vec<CodeReloc>,
    /// The text of the emitter's own form, if it has one and it was asked for.
    pub listing: Option<String>,
    /// Disassembly, if asked for.
    pub disasm: Option<String>,
}
