//! Integers of one or two bytes that were loaded together, computed as the words of 32 bits that they are in.
//!
//! A thread that takes each out of its word, computes with it, and puts the results together again, executes three instructions for each of them. Of a
//! word, sums and differences keep the highest bit of each integer apart, so that nothing is carried from one into the next (Warren, "Hacker's
//! Delight", 2-18).

use tlc_ir::{DType, ScalarOp};

use super::CudaError;
use super::write::Writer;
use crate::flat::Value;

/// Bytes of a word.
pub(super) const BYTES: usize = 4;

/// The highest bit of each byte of a word.
const HIGH: u32 = 0x8080_8080;
/// The other ones.
const LOW: u32 = !HIGH;

/// Whether an operation on all integers of a word takes fewer instructions than on one after another: of two integers, sums take six instructions
/// and as many apart.
pub(super) fn has(op: ScalarOp, on: DType) -> bool {
    match op {
        ScalarOp::And | ScalarOp::Or | ScalarOp::Xor | ScalarOp::Not => {
            matches!(on, DType::I8 | DType::U8 | DType::I16 | DType::U16)
        }
        ScalarOp::Add | ScalarOp::Sub | ScalarOp::Neg => matches!(on, DType::I8 | DType::U8),
        _ => false,
    }
}

/// The same integer in each place of a word.
fn in_each_place(on: DType, integer: u32) -> u32 {
    match on.bytes() {
        1 => (integer & 0xff) * 0x0101_0101,
        _ => (integer & 0xffff) * 0x0001_0001,
    }
}

/// An operation on words as text.
fn text(op: ScalarOp, args: &[String]) -> Option<String> {
    let less = |a: &str, b: &str| format!("(({a} | {HIGH:#x}u) - ({b} & {LOW:#x}u)) ^ (({a} ^ ~{b}) & {HIGH:#x}u)");
    Some(match (op, args) {
        (ScalarOp::Add, [a, b]) => format!("(({a} & {LOW:#x}u) + ({b} & {LOW:#x}u)) ^ (({a} ^ {b}) & {HIGH:#x}u)"),
        (ScalarOp::Sub, [a, b]) => less(a, b),
        (ScalarOp::Neg, [a]) => less("0u", a),
        (ScalarOp::And, [a, b]) => format!("{a} & {b}"),
        (ScalarOp::Or, [a, b]) => format!("{a} | {b}"),
        (ScalarOp::Xor, [a, b]) => format!("{a} ^ {b}"),
        (ScalarOp::Not, [a]) => format!("~{a}"),
        _ => return None,
    })
}

impl Writer<'_, '_> {
    /// Writes the lines that compute integers word by word, and returns their name.
    pub(super) fn words(&mut self, v: Value, op: ScalarOp, args: &[Value]) -> Result<String, CudaError> {
        let info = self.flat.info(v);
        let t = self.helpers.together(info.dtype, info.lanes);
        let name = self.new_name();
        self.line(&format!("{t} {name};"));
        for number in 0..info.lanes as usize * info.dtype.bytes() / BYTES {
            let word = |arg: &Value| match self.flat.constant(*arg) {
                Some(c) => format!("{:#x}u", in_each_place(info.dtype, c.as_i64() as u32)),
                None => format!("{}.w[{number}]", self.value(*arg)),
            };
            let words: Vec<String> = args.iter().map(word).collect();
            let Some(text) = text(op, &words) else {
                return Err(CudaError::Unsupported(format!("{op} of words")));
            };
            self.line(&format!("{name}.w[{number}] = {text};"));
        }
        Ok(name)
    }
}
