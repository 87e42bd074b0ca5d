//! Why an operator was refused; the importer adds which node.

use tlc_formats::ErrorKind;
use tlc_formats::onnx::OnnxError;
use tlc_ir::tensor::TensorError;

/// What is wrong, and whether the model or this version is to blame.
#[derive(Clone, Debug)]
pub(super) struct OperatorRefusal {
    pub(super) kind: ErrorKind,
    pub(super) message: String,
}

impl From<OnnxError> for OperatorRefusal {
    fn from(e: OnnxError) -> OperatorRefusal {
        OperatorRefusal {
            kind: e.kind(),
            message: e.to_string(),
        }
    }
}

impl From<TensorError> for OperatorRefusal {
    fn from(e: TensorError) -> OperatorRefusal {
        OnnxError::limit(e.to_string()).into()
    }
}

/// The result of what may be refused.
pub(super) type Outcome<T> = Result<T, OperatorRefusal>;

/// The model breaks a rule.
pub(super) fn invalid<T>(message: impl Into<String>) -> Outcome<T> {
    Err(OperatorRefusal {
        kind: ErrorKind::Invalid,
        message: message.into(),
    })
}

/// The model asks for what is not there.
pub(super) fn unsupported<T>(message: impl Into<String>) -> Outcome<T> {
    Err(OperatorRefusal {
        kind: ErrorKind::Unsupported,
        message: message.into(),
    })
}

/// The model asks for more than anybody has.
pub(super) fn limit<T>(message: impl Into<String>) -> Outcome<T> {
    Err(OperatorRefusal {
        kind: ErrorKind::Limit,
        message: message.into(),
    })
}

/// Characters of a name that is shown; what is longer is cut.
pub(super) const MAX_NAME: usize = 200;

/// The name, as messages have it.
pub(super) fn shown(name: &str) -> String {
    let mut text: String = name.chars().take(MAX_NAME).collect();
    if text.len() < name.len() {
        text.push('…');
    }
    text
}
