//! What an operator's interface is at an opset, and whether a node keeps to it.
//!
//! Invariant: an operator's function sees only operands and attributes that the operator has, each attribute once and of the
//! declared kind, and operands of one element type where the operator has one for them: recorded operations promote, ONNX's never
//! do. Names that begin with two underscores are left to tools, as ONNX's own checker leaves them.

mod table;

use std::ops::RangeInclusive;

use tlc_formats::onnx::{Attribute, AttributeKind, Node};

use super::refusal::{Outcome, invalid, shown};
use super::value::Value;
use table::SIGNATURES;

/// No bound on how many.
pub(super) const MANY: usize = usize::MAX;

/// The operands, results and attributes of an operator, from an opset on.
#[derive(Debug)]
pub struct Signature {
    name: &'static str,
    since: i64,
    inputs: (usize, usize),
    /// A letter for each operand, the same for those of one element type, or `-` for a type of its own. The last character holds for
    /// all operands behind it, too.
    types: &'static str,
    outputs: (usize, usize),
    /// `name=kind` for each, with `!` where it must be given.
    attributes: &'static str,
}

pub(super) const fn row(
    name: &'static str,
    since: i64,
    inputs: (usize, usize),
    types: &'static str,
    outputs: (usize, usize),
    attributes: &'static str,
) -> Signature {
    Signature {
        name,
        since,
        inputs,
        types,
        outputs,
        attributes,
    }
}

/// One attribute of a signature.
struct Declared {
    name: &'static str,
    kind: AttributeKind,
    required: bool,
}

fn declared(text: &'static str) -> Declared {
    let (name, kind) = text.split_once('=').unwrap_or((text, ""));
    let required = kind.ends_with('!');
    let kind = match kind.trim_end_matches('!') {
        "int" => AttributeKind::Int,
        "ints" => AttributeKind::Ints,
        "float" => AttributeKind::Float,
        "floats" => AttributeKind::Floats,
        "text" => AttributeKind::Text,
        "texts" => AttributeKind::Texts,
        "tensor" => AttributeKind::Tensor,
        "graph" => AttributeKind::Graph,
        _ => AttributeKind::Other,
    };
    Declared { name, kind, required }
}

impl Signature {
    /// The signature of an operator at an opset.
    pub(super) fn find(name: &str, version: i64) -> Option<&'static Signature> {
        let end = SIGNATURES.partition_point(|s| (s.name, s.since) <= (name, version));
        SIGNATURES[..end].last().filter(|s| s.name == name)
    }

    /// The operator's name.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// How many operands it takes; `usize::MAX` is no bound.
    pub fn inputs(&self) -> RangeInclusive<usize> {
        self.inputs.0..=self.inputs.1
    }

    /// How many results it may name; `usize::MAX` is no bound.
    pub fn outputs(&self) -> RangeInclusive<usize> {
        self.outputs.0..=self.outputs.1
    }

    /// Its attributes, and what each holds.
    pub fn attributes(&self) -> impl Iterator<Item = (&'static str, AttributeKind)> {
        self.declared().map(|d| (d.name, d.kind))
    }

    fn declared(&self) -> impl Iterator<Item = Declared> {
        self.attributes.split_whitespace().map(declared)
    }

    /// Refuses a node with other operands, results or attributes. `resolve` returns the attribute that a name of the node stands for, which in a
    /// function may be one of the call's, or nothing.
    pub(super) fn check<'a>(
        &self,
        node: Node<'a>,
        resolve: impl Fn(Attribute<'a>) -> Outcome<Option<Attribute<'a>>>,
    ) -> Outcome<()> {
        // Fewer results than declared are results that nobody asks for.
        counted("operands", node.inputs().count(), self.inputs)?;
        counted("results", node.outputs().count(), (0, self.outputs.1))?;
        let mut given: Vec<&str> = vec![];
        for attribute in node.attributes().filter(|a| !a.name().starts_with("__")) {
            let name = attribute.name();
            let Some(own) = self.declared().find(|d| d.name == name) else {
                let names: Vec<&str> = self.declared().map(|d| d.name).collect();
                let expected = if names.is_empty() {
                    "none".into()
                } else {
                    names.join(", ")
                };
                return invalid(format!("unknown attribute `{}`; expected {expected}", shown(name)));
            };
            let value = resolve(attribute)?;
            if let Some(kind) = value.map(Attribute::kind).filter(|&k| k != own.kind) {
                return invalid(format!("attribute {name} holds {kind:?}; expected {:?}", own.kind));
            }
            if given.contains(&name) {
                return invalid(format!("attribute {name} is given twice; expected it once"));
            }
            given.extend(value.map(|_| name));
        }
        match self.declared().find(|d| d.required && !given.contains(&d.name)) {
            Some(d) => invalid(format!("no attribute {}; expected {:?}", d.name, d.kind)),
            None => Ok(()),
        }
    }

    /// The letter of operand `i`, unless it has a type of its own.
    fn letter(&self, i: usize) -> Option<u8> {
        let letters = self.types.as_bytes();
        letters
            .get(i)
            .or(letters.last())
            .copied()
            .filter(|&letter| letter != b'-')
    }

    /// Refuses operands of different element types where the operator has one type for them.
    pub(super) fn check_types(&self, operands: &[Option<Value>]) -> Outcome<()> {
        let given = |i: usize| Some((i, operands[i].as_ref()?.dtype()));
        for (i, found) in (0..operands.len()).filter_map(given) {
            let Some(letter) = self.letter(i) else { continue };
            let first = (0..i).filter(|&k| self.letter(k) == Some(letter)).find_map(given);
            if let Some((first, expected)) = first.filter(|&(_, expected)| expected != found) {
                return invalid(format!(
                    "operand {i} of {found}; expected {expected}, the type of operand {first}"
                ));
            }
        }
        Ok(())
    }
}

fn counted(what: &str, n: usize, (low, high): (usize, usize)) -> Outcome<()> {
    if (low..=high).contains(&n) {
        return Ok(());
    }
    let expected = match (low, high) {
        (low, MANY) => format!("at least {low}"),
        (0, high) => format!("at most {high}"),
        (low, high) if low == high => low.to_string(),
        (low, high) => format!("{low} to {high}"),
    };
    invalid(format!("{n} {what}; expected {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operators::table::OPERATORS;

    #[test]
    fn every_operator_has_a_signature_at_each_of_its_opsets() {
        assert!(
            SIGNATURES
                .windows(2)
                .all(|w| (w[0].name, w[0].since) < (w[1].name, w[1].since))
        );
        for o in OPERATORS {
            assert!(
                (o.first..=o.last).all(|v| Signature::find(o.name, v).is_some()),
                "{}",
                o.name
            );
        }
        let names: Vec<_> = Signature::find("Softmax", 17)
            .into_iter()
            .flat_map(Signature::attributes)
            .collect();
        assert_eq!(names, [("axis", AttributeKind::Int)]);
        assert!(Signature::find("Nothing", 17).is_none());
    }
}
