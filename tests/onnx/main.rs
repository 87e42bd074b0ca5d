//! Importing ONNX models: what they mean, and what is refused.

mod hostile;
mod meaning;
mod proto;
mod recurrent;
