//! What goes wrong while recording.
//!
//! Invariant: every [`Error`] names the operation, its operands' types, the problem, what would fit (where that can be
//! said), and the source line that recorded it.

use std::fmt;

/// One refused operation: which, where, on what, what is wrong and what would fit.
pub use tlc_ir::graph::GraphError as Error;

/// Every error of a recording, in the order of its lines. Prints one `file:line:column: message` a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errors(Vec<Error>);

impl Errors {
    pub(crate) fn new(errors: Vec<Error>) -> Errors {
        Errors(errors)
    }

    /// The errors, first to last.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Error> {
        self.0.iter()
    }

    /// How many there are; never 0.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, e) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{}: {e}", e.origin)?;
        }
        Ok(())
    }
}

impl std::error::Error for Errors {}

impl IntoIterator for Errors {
    type Item = Error;
    type IntoIter = std::vec::IntoIter<Error>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}
