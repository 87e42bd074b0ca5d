//! Integers of a byte or two that are loaded together and computed one by one.

use tlc_ir::DType;

use super::index::Width;
use super::scalar::{WORD, memory_type};
use super::write::Writer;
use crate::flat::{Flat, Op, Value};

/// By value: whether it is integers of a byte or two in whole words, of which single ones are computed with.
///
/// Of what it computes of the first integer of a word that it has loaded NVRTC 13.0 forgets to extend the sign: `(i8)-x > x`, `(i8)(x / 2)` and
/// `(i16)(x / 4) >> y` are of more bits there. So these are taken from words that it knows nothing of.
pub(super) fn computed_apart(flat: &Flat<'_>) -> Vec<bool> {
    let mut apart = vec![false; flat.values.len()];
    // What is only moved is not computed with.
    let computed = flat
        .values
        .iter()
        .filter(|i| !matches!(i.op, Op::Pack(_) | Op::Splat(_)));
    for info in computed {
        info.op.operands(|v| {
            let Op::Lane(of, _) = flat.op(v) else { return };
            let of_word = flat.info(*of);
            let bytes = of_word.dtype.bytes() as u32;
            let is_small = !of_word.dtype.is_float() && of_word.dtype.bits() >= 8 && bytes < WORD;
            apart[of.0 as usize] |= is_small && (of_word.lanes * bytes).is_multiple_of(WORD);
        });
    }
    apart
}

impl Writer<'_, '_> {
    /// Whether small integers that are loaded together have words beside them that the compiler knows nothing of, from which they are taken.
    pub(super) fn is_of_opaque_words(&self, v: Value) -> bool {
        let info = self.flat.info(v);
        let is_load = matches!(info.op, Op::Load { mask: None, .. });
        is_load && self.computed_apart[v.0 as usize] && !self.helpers.has_words(info.dtype)
    }

    /// Loads so many bytes of integers together, as words and as what the type is.
    pub(super) fn load_words(&mut self, name: &str, t: &str, place: &str, bytes: u32) {
        let words = bytes / WORD;
        let of_words = self.helpers.together(DType::U32, words);
        let opaque = self.helpers.opaque(Width::Narrow);
        self.line(&format!("const {of_words} {name}w = *(const {of_words}*)&{place};"));
        self.line(&format!("const {t} {name} = *(const {t}*)&{name}w;"));
        for word in 0..words {
            self.line(&format!("const int {name}w{word} = {opaque}({name}w.e[{word}]);"));
        }
    }

    /// One of small integers that have a name together.
    pub(super) fn part_of_word(&mut self, of: Value, lane: u32) -> String {
        let (name, dtype) = (self.value(of), self.flat.dtype(of));
        let (t, bytes) = (memory_type(dtype), dtype.bytes() as u32);
        let each = WORD / bytes;
        let word = match self.is_of_opaque_words(of) {
            true => format!("{name}w{}", lane / each),
            false => format!(
                "{}(*(const u32*)&{name}.e[{}])",
                self.helpers.opaque(Width::Narrow),
                lane / each * each
            ),
        };
        match lane % each {
            0 => format!("({t}){word}"),
            at => format!("({t})({word} >> {})", 8 * bytes * at),
        }
    }
}
