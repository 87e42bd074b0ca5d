//! A module that can be launched.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::program::{Program, decode_module};
use crate::syntax::{PtxError, parse};

static NEXT: AtomicU64 = AtomicU64::new(0);

/// PTX, decoded.
#[derive(Debug)]
pub struct Module {
    pub(crate) id: u64,
    pub(crate) program: Program,
    version: (u32, u32),
    target: String,
}

/// What a kernel takes and needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kernel {
    /// Where each parameter begins, and its bytes.
    pub parameters: Vec<(u32, u32)>,
    /// Bytes of static shared memory of a block.
    pub shared_bytes: u32,
    /// Bytes of local memory of a thread.
    pub local_bytes: u32,
}

impl Module {
    /// Reads a PTX text.
    ///
    /// # Errors
    /// Any [`PtxError`]: what is not PTX, and instructions that the simulator does not have, by line.
    pub fn parse(text: &str) -> Result<Module, PtxError> {
        let text = parse(text)?;
        let program = decode_module(&text)?;
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(Module {
            id,
            program,
            version: text.version,
            target: text.target,
        })
    }

    /// The names of its kernels, sorted.
    pub fn kernels(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self
            .program
            .codes
            .iter()
            .filter(|c| c.is_kernel)
            .map(|c| c.name.as_str())
            .collect();
        names.sort_unstable();
        names
    }

    /// What a kernel takes and needs.
    pub fn kernel(&self, name: &str) -> Option<Kernel> {
        let &index = self.program.names.get(name)?;
        let code = &self.program.codes[index];
        code.is_kernel.then(|| Kernel {
            parameters: code.params.iter().map(|p| (p.offset, p.bytes)).collect(),
            shared_bytes: code.shared_bytes,
            local_bytes: code.local_bytes,
        })
    }

    /// How many instructions a function has.
    pub fn instructions(&self, function: &str) -> Option<usize> {
        let &index = self.program.names.get(function)?;
        Some(self.program.codes[index].instrs.len())
    }

    /// The version of PTX that the text names.
    pub const fn version(&self) -> (u32, u32) {
        self.version
    }

    /// The architecture that the text names.
    pub fn target(&self) -> &str {
        &self.target
    }
}
