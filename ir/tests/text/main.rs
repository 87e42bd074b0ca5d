//! The text of graphs, kernels and plans: its laws, its errors, hostile texts, and what verifiers say of what it says.

mod errors;
mod generated;
mod hostile;
mod laws;
mod verifier;
mod verifier_texts;
