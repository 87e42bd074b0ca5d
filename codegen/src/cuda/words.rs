//! Numbers of one or two bytes, and bools, that were loaded together, computed as the words of 32 bits that they are in.
//!
//! A thread that takes each out of its word, computes with it, and puts the results together again, executes three instructions for each of them. Of a
//! word, sums and differences keep the highest bit of each integer apart, so that nothing is carried from one into the next (Warren, "Hacker's
//! Delight", 2-18). What is compared leaves its answer in that bit: of a difference so made it says which of the other bits are less. A bool is a byte of 0 or
//! 1.

use tlc_ir::{DType, ScalarOp};

use super::CudaError;
use super::scalar::Helpers;
use super::write::Writer;
use crate::flat::Value;

/// Bytes of a word.
pub(super) const BYTES: usize = 4;

/// The highest bit of each byte of a word.
const HIGH: u32 = 0x8080_8080;
/// The other ones.
const LOW: u32 = !HIGH;

/// A bool that is true, in each byte of a word.
const TRUE: u32 = 0x0101_0101;

/// Whether an operation on all integers of words of so many takes fewer instructions than on one after another: of two integers, sums take six instructions
/// and as many apart.
pub(super) fn maps(op: ScalarOp, on: DType, lanes: u32) -> bool {
    // Conditions are bytes whatever they choose between.
    let bytes = if op == ScalarOp::Select { 1 } else { on.bytes() };
    has(op, on) && (lanes as usize * bytes).is_multiple_of(BYTES)
}

fn has(op: ScalarOp, on: DType) -> bool {
    use ScalarOp::*;
    match op {
        And | Or | Xor | Not => is_byte(on) || matches!(on, DType::I16 | DType::U16),
        Add | Sub | Neg => matches!(on, DType::I8 | DType::U8),
        Abs => on == DType::I8,
        Eq | Ne | Lt | Le | Max | Min => is_byte(on),
        Select => is_byte(on) || on.bytes() == 2,
        _ => false,
    }
}

/// Whether what has two types of so many bytes is the same words, or another comparison of them.
pub(super) fn converts(from: DType, to: DType) -> bool {
    is_byte(from) && is_byte(to)
}

fn is_byte(d: DType) -> bool {
    matches!(d, DType::I8 | DType::U8 | DType::Bool)
}

/// The three operands of an instruction that computes any function of their bits: the same function of these is its table.
const A: u8 = 0xf0;
const B: u8 = 0xcc;
const C: u8 = 0xaa;

/// The same integer in each place of a word.
fn in_each_place(on: DType, integer: u32) -> u32 {
    match on.bytes() {
        1 => (integer & 0xff) * 0x0101_0101,
        _ => (integer & 0xffff) * 0x0001_0001,
    }
}

/// An operation on words as text, of which the last operand is of a type.
fn text(h: &mut Helpers, op: ScalarOp, on: DType, args: &[String]) -> Option<String> {
    let less = |a: &str, b: &str| format!("(({a} | {HIGH:#x}u) - ({b} & {LOW:#x}u)) ^ (({a} ^ ~{b}) & {HIGH:#x}u)");
    // Of whatever the other bits are.
    let truth = |highest: String| format!("({highest} >> 7) & {TRUE:#x}u");
    let signed = on == DType::I8;
    Some(match (op, args) {
        (ScalarOp::And, [a, b]) => format!("{a} & {b}"),
        (ScalarOp::Or, [a, b]) => format!("{a} | {b}"),
        (ScalarOp::Min, [a, b]) if on == DType::Bool => format!("{a} & {b}"),
        (ScalarOp::Max, [a, b]) if on == DType::Bool => format!("{a} | {b}"),
        (ScalarOp::Xor, [a, b]) => format!("{a} ^ {b}"),
        (ScalarOp::Select, [c, a, b]) => {
            let choose = h.choose();
            format!("{choose}({c} * 255u, {a}, {b})")
        }
        _ if on == DType::Bool => match (op, args) {
            (ScalarOp::Not, [a]) => format!("{a} ^ {TRUE:#x}u"),
            (ScalarOp::Eq, [a, b]) => format!("{a} ^ {b} ^ {TRUE:#x}u"),
            (ScalarOp::Ne, [a, b]) => format!("{a} ^ {b}"),
            (ScalarOp::Lt, [a, b]) => format!("~{a} & {b}"),
            (ScalarOp::Le, [a, b]) => format!("({a} ^ {TRUE:#x}u) | {b}"),
            _ => return None,
        },
        (ScalarOp::Not, [a]) => format!("~{a}"),
        (ScalarOp::Add, [a, b]) => format!("(({a} & {LOW:#x}u) + ({b} & {LOW:#x}u)) ^ (({a} ^ {b}) & {HIGH:#x}u)"),
        (ScalarOp::Sub, [a, b]) => less(a, b),
        (ScalarOp::Neg, [a]) => less("0u", a),
        (ScalarOp::Abs, [a]) if signed => {
            let spread = h.spread();
            format!("({a} ^ {spread}({a})) + ({spread}({a}) & {TRUE:#x}u)")
        }
        (ScalarOp::Eq, [a, b]) => format!("{} >> 7", h.differs(false, a, b)),
        (ScalarOp::Ne, [a, b]) => format!("{} >> 7", h.differs(true, a, b)),
        (ScalarOp::Lt, [a, b]) => truth(h.below(signed, true, a, b)),
        (ScalarOp::Le, [a, b]) => truth(h.below(signed, false, b, a)),
        (ScalarOp::Max | ScalarOp::Min, [a, b]) => {
            let choose = h.choose();
            let spread = h.spread();
            let below = h.below(signed, true, a, b);
            match op {
                ScalarOp::Max => format!("{choose}({spread}({below}), {b}, {a})"),
                _ => format!("{choose}({spread}({below}), {a}, {b})"),
            }
        }
        _ => return None,
    })
}

impl Helpers {
    /// A function of three words, bit by bit, by its table.
    fn three_bits(&mut self, name: &str, table: u8) -> String {
        self.need(name.into(), |n| {
            format!(
                "u32 {n}(u32 a, u32 b, u32 c) {{\n    u32 r;\n    asm(\"lop3.b32 %0, %1, %2, %3, {table};\" : \"=r\"(r) : \"r\"(a), \"r\"(b), \"r\"(c));\n    return r;\n}}"
            )
        })
    }

    /// The bits of the second where the first has them, else those of the third.
    fn choose(&mut self) -> String {
        self.three_bits("words_of", A & B | !A & C)
    }

    /// The lower or the upper two bytes of a word, each twice.
    fn both_halves(&mut self, half: usize) -> String {
        let places = if half == 0 { "0x1100" } else { "0x3322" };
        self.need(format!("bytes_twice_{half}"), |n| {
            format!("u32 {n}(u32 x) {{\n    return __byte_perm(x, 0, {places});\n}}")
        })
    }

    /// The highest bit of each byte says whether that of `a` is below that of `b`, or is not; the others say nothing.
    fn below(&mut self, signed: bool, is: bool, a: &str, b: &str) -> String {
        // `C` is a difference of the other bits, whose highest bit is 0 where it borrows.
        let first = if signed { A & !B } else { !A & B };
        let table = first | !(A ^ B) & !C;
        let (name, table) = match (signed, is) {
            (true, true) => ("below_i8", table),
            (true, false) => ("not_below_i8", !table),
            (false, true) => ("below_u8", table),
            (false, false) => ("not_below_u8", !table),
        };
        let bits = self.three_bits(&format!("{name}_bits"), table);
        let f = self.need(name.into(), |n| {
            format!("u32 {n}(u32 a, u32 b) {{\n    return {bits}(a, b, (a | {HIGH:#x}u) - (b & {LOW:#x}u));\n}}")
        });
        format!("{f}({a}, {b})")
    }

    /// The highest bit of each byte says whether those of `a` and `b` differ, or are equal; the others are 0.
    fn differs(&mut self, is: bool, a: &str, b: &str) -> String {
        // `A` has the bit where one of the lower bits differs, `B` the highest bit itself, and `C` says which bits are asked for.
        let (name, table) = match is {
            true => ("differs_i8", (A | B) & C),
            false => ("equals_i8", !(A | B) & C),
        };
        let bits = self.three_bits(&format!("{name}_bits"), table);
        let f = self.need(name.into(), |n| {
            format!(
                "u32 {n}(u32 a, u32 b) {{\n    const u32 x = a ^ b;\n    return {bits}((x & {LOW:#x}u) + {LOW:#x}u, x, {HIGH:#x}u);\n}}"
            )
        });
        format!("{f}({a}, {b})")
    }

    /// The highest bit of each byte in all of its bits.
    fn spread(&mut self) -> String {
        self.need("spread".into(), |n| {
            format!(
                "u32 {n}(u32 x) {{\n    u32 r;\n    asm(\"prmt.b32 %0, %1, 0, 0xba98;\" : \"=r\"(r) : \"r\"(x));\n    return r;\n}}"
            )
        })
    }
}

impl Writer<'_, '_> {
    /// Writes the lines that compute integers word by word, and returns their name.
    pub(super) fn words(&mut self, v: Value, op: ScalarOp, args: &[Value]) -> Result<String, CudaError> {
        let on = args.last().map_or(self.flat.dtype(v), |a| self.flat.dtype(*a));
        if let ([c, a, b], 2) = (args, on.bytes()) {
            return self.each_word(v, |w, number| {
                // A word has the conditions of two of results.
                let (c, a, b) = (w.word(*c, number / 2), w.word(*a, number), w.word(*b, number));
                let both = w.helpers.both_halves(number % 2);
                let choose = w.helpers.choose();
                Ok(format!("{choose}({both}({c} * 255u), {a}, {b})"))
            });
        }
        self.each_word(v, |w, number| {
            let words: Vec<String> = args.iter().map(|a| w.word(*a, number)).collect();
            text(&mut w.helpers, op, on, &words).ok_or_else(|| CudaError::Unsupported(format!("{op} of words")))
        })
    }

    /// Writes the lines that convert integers and bools word by word, and returns their name.
    pub(super) fn converted_words(&mut self, v: Value, from: Value) -> Result<String, CudaError> {
        let (of, to) = (self.flat.dtype(from), self.flat.dtype(v));
        self.each_word(v, |w, number| {
            let word = w.word(from, number);
            Ok(match to == DType::Bool && of != DType::Bool {
                true => format!("{} >> 7", w.helpers.differs(true, &word, "0u")),
                false => word,
            })
        })
    }

    /// A word of a value.
    fn word(&self, v: Value, number: usize) -> String {
        match self.flat.constant(v) {
            Some(c) => format!("{:#x}u", in_each_place(c.dtype(), c.bits() as u32)),
            None => format!("{}.w[{number}]", self.value(v)),
        }
    }

    fn each_word(
        &mut self,
        v: Value,
        text: impl Fn(&mut Self, usize) -> Result<String, CudaError>,
    ) -> Result<String, CudaError> {
        let info = self.flat.info(v);
        let t = self.helpers.together(info.dtype, info.lanes);
        let name = self.new_name();
        self.line(&format!("{t} {name};"));
        for number in 0..info.lanes as usize * info.dtype.bytes() / BYTES {
            let text = text(self, number)?;
            self.line(&format!("{name}.w[{number}] = {text};"));
        }
        Ok(name)
    }
}
