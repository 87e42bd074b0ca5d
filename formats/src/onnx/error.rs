//! Why an ONNX file was refused.

use crate::ErrorKind;

/// What is wrong with an ONNX file, without its name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct OnnxError {
    kind: ErrorKind,
    message: String,
}

impl OnnxError {
    /// The file breaks a rule of ONNX.
    pub fn invalid(message: impl Into<String>) -> OnnxError {
        OnnxError {
            kind: ErrorKind::Invalid,
            message: message.into(),
        }
    }

    /// The file asks for something that is not there.
    pub fn unsupported(message: impl Into<String>) -> OnnxError {
        OnnxError {
            kind: ErrorKind::Unsupported,
            message: message.into(),
        }
    }

    /// Memory was refused.
    pub fn limit(message: impl Into<String>) -> OnnxError {
        OnnxError {
            kind: ErrorKind::Limit,
            message: message.into(),
        }
    }

    /// Broken, unsupported, or too large.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The same error with another text.
    #[must_use]
    pub fn with_message(self, message: impl Into<String>) -> OnnxError {
        OnnxError {
            kind: self.kind,
            message: message.into(),
        }
    }
}
