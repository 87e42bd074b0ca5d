//! The modifiers of one instruction while it is decoded: each must be taken by someone, or it is unknown.

use crate::arith::Ty;
use crate::arith::rounding::Round;
use crate::syntax::{PtxError, Statement};

pub(crate) struct Modifiers<'a> {
    statement: &'a Statement,
    left: Vec<&'a str>,
}

impl<'a> Modifiers<'a> {
    pub(crate) fn new(statement: &'a Statement) -> Modifiers<'a> {
        Modifiers {
            statement,
            left: statement.modifiers.iter().map(String::as_str).collect(),
        }
    }

    /// Takes a modifier if it is there.
    pub(crate) fn take(&mut self, name: &str) -> bool {
        match self.left.iter().position(|&m| m == name) {
            Some(at) => {
                self.left.remove(at);
                true
            }
            None => false,
        }
    }

    /// Takes the first modifier that a function knows.
    pub(crate) fn find<T>(&mut self, know: impl Fn(&str) -> Option<T>) -> Option<T> {
        let (at, value) = self.left.iter().enumerate().find_map(|(i, m)| Some((i, know(m)?)))?;
        self.left.remove(at);
        Some(value)
    }

    /// Takes the first type.
    pub(crate) fn ty(&mut self) -> Result<Ty, PtxError> {
        self.find(Ty::parse).ok_or_else(|| self.error("needs a type"))
    }

    /// Takes a rounding: of floats, or to integers (true).
    pub(crate) fn round(&mut self) -> Option<(Round, bool)> {
        self.find(|m| {
            Some(match m {
                "rn" => (Round::Even, false),
                "rna" => (Round::Away, false),
                "rz" => (Round::Zero, false),
                "rm" => (Round::Down, false),
                "rp" => (Round::Up, false),
                "rni" => (Round::Even, true),
                "rzi" => (Round::Zero, true),
                "rmi" => (Round::Down, true),
                "rpi" => (Round::Up, true),
                _ => return None,
            })
        })
    }

    /// Takes what only says how caches should be used, which is nothing here.
    pub(crate) fn take_cache_hints(&mut self) {
        self.left.retain(|m| {
            !matches!(*m, "ca" | "cg" | "cs" | "lu" | "cv" | "wb" | "wt" | "nc" | "L2")
                && !m.starts_with("L1::")
                && !m.starts_with("L2::")
        });
    }

    pub(crate) fn error(&self, what: &str) -> PtxError {
        let mut name = self.statement.opcode.clone();
        for modifier in &self.statement.modifiers {
            name.push('.');
            name.push_str(modifier);
        }
        PtxError::new(self.statement.line, format!("`{name}` {what}"))
    }

    /// Says that the instruction is none that the simulator has.
    pub(crate) fn unknown(&self) -> PtxError {
        self.error("is not an instruction that the simulator knows")
    }

    /// Checks that nothing is left.
    pub(crate) fn finish(&self) -> Result<(), PtxError> {
        match self.left.first() {
            None => Ok(()),
            Some(left) => Err(self.error(&format!("has a modifier `.{left}` that the simulator does not know"))),
        }
    }
}
