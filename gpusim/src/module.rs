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
