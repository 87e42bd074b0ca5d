//! Why a kernel did not become code.

/// Why a kernel did not become code.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CodegenError {
    /// The kernel uses what the emitter does not have. One that was made for the emitter's table does not: then the table, or
    /// who chose by it, is wrong.
    #[error("the emitter does not support {what}")]
    Unsupported {
        /// What is missing.
        what: String,
    },
    /// The kernel breaks a rule of the kernel language.
    #[error("invalid kernel: {what}")]
    Invalid {
        /// Which rule.
        what: String,
    },
    /// The kernel has more of something than the emitter can number.
    #[error("the kernel has {found} {what}, the limit is {limit}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many it has.
        found: usize,
        /// How many it can have.
        limit: usize,
    },
    /// Unrolling makes the kernel too large.
    #[error("kernel unrolls to more than {limit} statements")]
    TooLarge {
        /// The limit on statements after unrolling.
        limit: u64,
    },
    /// What the emitter sits on refused the function: a bug in the translation, or its limits on code size.
    #[error("{by}: {message}")]
    Refused {
        /// Who refused.
        by: &'static str,
        /// Its message.
        message: String,
    },
}

/// Shorthand.
pub type Result<T> = std::result::Result<T, CodegenError>;

pub(crate) fn unsupported<T>(what: impl Into<String>) -> Result<T> {
    Err(CodegenError::Unsupported { what: what.into() })
}

pub(crate) fn invalid<T>(what: impl Into<String>) -> Result<T> {
    Err(CodegenError::Invalid { what: what.into() })
}
