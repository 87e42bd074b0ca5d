//! Descriptions, by handle: numbers that are looked up, never addresses that are followed.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use crate::driver::Handle;
use crate::refusal::Refusal;

/// How operands are multiplied.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Operation {
    /// `cublasComputeType_t`.
    pub(crate) compute: u32,
    /// `cudaDataType_t` of the factors.
    pub(crate) scale: u32,
    /// Whether the first and the second matrix are turned around.
    pub(crate) turned: [bool; 2],
    /// `cublasLtEpilogue_t`.
    pub(crate) epilogue: u32,
    /// The address of the bias.
    pub(crate) bias: u64,
}

/// A stack of matrices by columns.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Layout {
    /// `cudaDataType_t`.
    pub(crate) element: u32,
    pub(crate) rows: u64,
    pub(crate) columns: u64,
    pub(crate) leading: i64,
    pub(crate) batch: i32,
    pub(crate) stack: i64,
}

/// What an algorithm may use and rely on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Preference {
    pub(crate) workspace_bytes: u64,
    /// Mask of `cublasLtReductionScheme_t`.
    pub(crate) reductions: u32,
    /// Bytes that the addresses of A, B, C and D are multiples of.
    pub(crate) alignments: [u32; 4],
}

/// Anything that has a handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Described {
    Library,
    Operation(Operation),
    Layout(Layout),
    Preference(Preference),
}

#[derive(Default)]
pub(crate) struct Table {
    next: usize,
    all: HashMap<usize, Described>,
}

/// All of them.
pub(crate) fn table() -> MutexGuard<'static, Table> {
    static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Table {
    /// Keeps something; returns its handle.
    pub(crate) fn add(&mut self, new: Described) -> Handle {
        self.next += 1;
        let number = 0x6200_0000 + self.next * 16;
        self.all.insert(number, new);
        std::ptr::without_provenance_mut(number)
    }

    pub(crate) fn get(&mut self, handle: Handle) -> Result<&mut Described, Refusal> {
        let known = self.all.get_mut(&handle.addr());
        known.ok_or(Refusal::Invalid("a handle of nothing that there is"))
    }

    pub(crate) fn remove(&mut self, handle: Handle) -> Result<Described, Refusal> {
        let known = self.all.remove(&handle.addr());
        known.ok_or(Refusal::Invalid("a handle of nothing that there is"))
    }

    pub(crate) fn library(&mut self, handle: Handle) -> Result<(), Refusal> {
        match self.get(handle)? {
            Described::Library => Ok(()),
            _ => Err(Refusal::Invalid("a handle that is not the library's")),
        }
    }

    pub(crate) fn operation(&mut self, handle: Handle) -> Result<&mut Operation, Refusal> {
        match self.get(handle)? {
            Described::Operation(o) => Ok(o),
            _ => Err(Refusal::Invalid("a handle that is not an operation's")),
        }
    }

    pub(crate) fn layout(&mut self, handle: Handle) -> Result<&mut Layout, Refusal> {
        match self.get(handle)? {
            Described::Layout(l) => Ok(l),
            _ => Err(Refusal::Invalid("a handle that is not a matrix's")),
        }
    }

    pub(crate) fn preference(&mut self, handle: Handle) -> Result<&mut Preference, Refusal> {
        match self.get(handle)? {
            Described::Preference(p) => Ok(p),
            _ => Err(Refusal::Invalid("a handle that is not a preference's")),
        }
    }
}
