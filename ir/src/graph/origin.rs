//! Where the nodes of a graph come from, and what reports call their values.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use super::{Graph, NodeId, NodeKind};

/// Where a node was recorded.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Origin {
    /// Made by a pass.
    #[default]
    Unknown,
    /// A line of the user's program.
    Source(&'static Location<'static>),
    /// A place in a text file, both counted from 1.
    Text {
        /// Line.
        line: u32,
        /// Column, in characters.
        column: u32,
    },
    /// A node of an imported model, by its name.
    Named(Arc<str>),
    /// A tensor of that name in the weights of a model: data that its text only names.
    Weights(Arc<str>),
    /// A value of the graph that was read or recorded. Passes hand it on to what they make of that value, so that reports
    /// of what became of a graph name values as its text does.
    Value(Arc<NamedValue>),
    /// Made of another node by a named rewrite, as differentiation makes the gradient of an operation.
    Derived(Arc<Derivation>),
}

/// How a node was derived from one that was recorded. The list is flat, so that derivatives of any order nest nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Derivation {
    /// The rewrites, the last first.
    pub steps: Vec<Derived>,
    /// Where the operation of the last step was recorded; no [`Origin::Value`] and no [`Origin::Derived`].
    pub recorded: Origin,
}

/// A rewrite, and what it was applied to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Derived {
    /// What the node is of that operation: `gradient`.
    pub rewrite: Arc<str>,
    /// The operation, by its mnemonic.
    pub operation: Arc<str>,
}

/// A value's name in the text of its graph, and where it was recorded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedValue {
    /// Its name.
    pub name: ValueName,
    /// Where it was recorded; no [`Origin::Value`].
    pub recorded: Origin,
}

/// What the text of a graph calls a value. It prints with its sigil, as in `%3`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ValueName {
    /// A number, which nearly all have: no text is made of it until it is printed.
    Number(u32),
    /// Any other name, with its sigil.
    Text(Box<str>),
}

impl From<String> for ValueName {
    fn from(text: String) -> ValueName {
        let number = text.strip_prefix('%').and_then(|digits| digits.parse().ok());
        let number = number.map(ValueName::Number).filter(|name| name.to_string() == text);
        number.unwrap_or_else(|| ValueName::Text(text.into()))
    }
}

impl fmt::Display for ValueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ValueName::Number(number) => write!(f, "%{number}"),
            ValueName::Text(text) => f.write_str(text),
        }
    }
}

impl Origin {
    /// A value of that name, recorded there. An origin that has a name keeps it.
    pub fn named<N: Into<ValueName>>(self, name: impl FnOnce() -> N) -> Origin {
        match self {
            Origin::Value(_) => self,
            recorded => Origin::Value(Arc::new(NamedValue {
                name: name().into(),
                recorded,
            })),
        }
    }

    /// What a rewrite makes of an operation that comes from here: `derived("gradient", "exp")` of line 4 is the gradient of
    /// the exponential function in line 4.
    pub fn derived(&self, rewrite: &str, operation: &str) -> Origin {
        let step = Derived {
            rewrite: rewrite.into(),
            operation: operation.into(),
        };
        let (before, recorded) = match self.recorded() {
            Origin::Derived(from) => (&from.steps[..], &from.recorded),
            recorded => (&[][..], recorded),
        };
        Origin::Derived(Arc::new(Derivation {
            steps: std::iter::once(step).chain(before.iter().cloned()).collect(),
            recorded: recorded.clone(),
        }))
    }

    /// What a message adds to an operation that comes from here: nothing, or its place behind a space.
    pub fn clause(&self) -> String {
        match self.recorded() {
            Origin::Unknown => String::new(),
            Origin::Named(_) | Origin::Weights(_) => format!(" {self}"),
            Origin::Derived(_) => format!(" ({self})"),
            Origin::Source(_) | Origin::Text { .. } | Origin::Value(_) => format!(" at {self}"),
        }
    }

    /// Where it was recorded, or how it was derived from what was.
    pub fn recorded(&self) -> &Origin {
        match self {
            Origin::Value(value) => &value.recorded,
            other => other,
        }
    }

    /// The value's name in the text of the graph that was read or recorded.
    pub fn value_name(&self) -> Option<&ValueName> {
        match self {
            Origin::Value(value) => Some(&value.name),
            _ => None,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.recorded() {
            Origin::Unknown => f.write_str("?"),
            Origin::Source(l) => write!(f, "{}:{}:{}", l.file(), l.line(), l.column()),
            Origin::Text { line, column } => write!(f, "{line}:{column}"),
            Origin::Named(name) | Origin::Weights(name) => write!(f, "'{name}'"),
            Origin::Value(value) => value.name.fmt(f),
            Origin::Derived(from) => write!(f, "{from}{}", from.recorded.clause()),
        }
    }
}

/// The steps: `gradient of mul in gradient of exp`.
impl fmt::Display for Derivation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, step) in self.steps.iter().enumerate() {
            let between = if i > 0 { " in " } else { "" };
            write!(f, "{between}{} of {}", step.rewrite, step.operation)?;
        }
        Ok(())
    }
}

impl Graph {
    /// A node's operation with its name and the place where it was recorded: `reshape %3 at 4:3`.
    pub fn operation_at(&self, id: NodeId) -> String {
        let node = self.nodes.get(id.index());
        node.map_or_else(String::new, |n| self.placed(&n.kind, id, &n.origin))
    }

    pub(super) fn placed(&self, kind: &NodeKind, id: NodeId, origin: &Origin) -> String {
        let name = match origin.value_name() {
            Some(name) => name.clone(),
            None => self.numbered(id),
        };
        format!("{} {name}{}", kind.name(), origin.clause())
    }

    /// A value's name for messages: that of the text that the graph was read from, or that the recorded graph prints as. What
    /// passes made of a value has that value's name.
    pub fn value_name(&self, id: NodeId) -> String {
        self.name_of_value(id).to_string()
    }

    /// As [`Graph::value_name`], not printed yet.
    pub fn name_of_value(&self, id: NodeId) -> ValueName {
        let text = |text: String| ValueName::Text(text.into());
        let Some(node) = self.nodes.get(id.index()) else {
            return text(format!("%missing.{}", id.0));
        };
        let quoted = |name: &str| name.contains(|c: char| !c.is_alphanumeric() && c != '_' && c != '.');
        match (node.origin.value_name(), &node.kind) {
            (Some(name), _) => name.clone(),
            (None, NodeKind::Input { name, .. }) if quoted(name) => text(format!("%{name:?}")),
            (None, NodeKind::Input { name, .. }) => format!("%{name}").into(),
            (None, _) if self.derived => text(format!("%new.{}", id.0)),
            (None, _) => self.numbered(id),
        }
    }

    /// The name of a value that is no input, as this graph's own text has it: inputs have no numbers.
    fn numbered(&self, id: NodeId) -> ValueName {
        let inputs = self.inputs.partition_point(|i| *i < id);
        ValueName::Number(id.0 - inputs as u32)
    }

    /// Forgets the names of the text that the graph was read from: values are called as this graph's own text calls them.
    pub fn forget_names(&mut self) {
        for node in self.nodes.own() {
            if let Origin::Value(value) = &node.origin {
                node.origin = value.recorded.clone();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::NodeKind;
    use crate::scalar::ScalarOp;
    use crate::{DType, Scalar};

    #[test]
    fn values_are_numbered_in_order() {
        let mut g = Graph::new("g");
        let one = Scalar::from_f64(DType::F32, 1.0);
        let mut last = g.add(NodeKind::Const(one), &[], Origin::Unknown).expect("it types");
        for _ in 0..1010 {
            last = g
                .add(NodeKind::Map(ScalarOp::Exp), &[last], Origin::Unknown)
                .expect("it types");
        }
        for n in [0, 1, 9, 10, 99, 100, 1010] {
            assert_eq!(g.value_name(NodeId(n)), format!("%{n}"));
            assert_eq!(g.name_of_value(NodeId(n)), ValueName::from(format!("%{n}")));
        }
    }

    #[test]
    fn names_print_as_the_text_that_they_were_made_of() {
        for text in [
            "%0",
            "%7",
            "%4294967295",
            "%4294967296",
            "%007",
            "%+7",
            "%-1",
            "%",
            "%x",
            "7",
            "",
            "%\"7\"",
        ] {
            let name = ValueName::from(text.to_owned());
            assert_eq!(name.to_string(), text);
            let counts = ["%0", "%7", "%4294967295"].contains(&text);
            assert_eq!(matches!(name, ValueName::Number(_)), counts, "{text}");
        }
    }
}
