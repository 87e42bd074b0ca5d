//! Importing ONNX models: what they mean, and what is refused.

mod cold;
mod decided;
mod derivatives;
mod few_bits;
mod fused;
mod fused_attention;
mod hostile;
mod in_place;
mod meaning;
mod operators;
mod packed;
mod padding;
mod picked;
mod proto;
mod quantizer;
mod random;
mod random_nodes;
mod recurrent;
mod sequences;
mod signatures;
mod sizes;
mod slices;
mod steering;
mod storage;
mod symbolic;
mod versions;
