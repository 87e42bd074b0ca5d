//! The messages of ONNX as views of the file's bytes: each accessor looks its field up.

use super::error::OnnxError;
use super::schema::{self, Message};
use super::tensor::Tensor;
use super::wire::{Fields, Payload, varint};

/// The bytes of one message that has been checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Raw<'a>(pub(super) &'a [u8]);

impl<'a> Raw<'a> {
    pub(super) fn all(self, number: u32) -> impl Iterator<Item = Payload<'a>> + Clone {
        Fields::new(self.0)
            .map_while(Result::ok)
            .filter(move |f| f.0 == number)
            .map(|f| f.1)
    }

    pub(super) fn blobs(self, number: u32) -> impl Iterator<Item = &'a [u8]> + Clone {
        self.all(number).filter_map(|p| match p {
            Payload::Bytes(bytes) => Some(bytes),
            _ => None,
        })
    }

    pub(super) fn texts(self, number: u32) -> impl Iterator<Item = &'a str> + Clone {
        self.blobs(number).map(|b| std::str::from_utf8(b).unwrap_or_default())
    }

    pub(super) fn text(self, number: u32) -> &'a str {
        self.texts(number).next().unwrap_or_default()
    }

    pub(super) fn int(self, number: u32) -> Option<i64> {
        match self.all(number).next() {
            Some(Payload::Varint(v)) => Some(v as i64),
            _ => None,
        }
    }

    /// Repeated varints, packed or not.
    pub(super) fn ints(self, number: u32) -> impl Iterator<Item = u64> + Clone {
        self.all(number).flat_map(|p| {
            let (mut packed, mut single) = match p {
                Payload::Bytes(bytes) => (bytes, None),
                Payload::Varint(v) => (&[][..], Some(v)),
                _ => (&[][..], None),
            };
            std::iter::from_fn(move || match single.take() {
                Some(v) => Some(v),
                None if packed.is_empty() => None,
                None => varint(&mut packed).ok(),
            })
        })
    }

    /// Repeated 4-byte numbers, packed or not, as their bits.
    pub(super) fn words(self, number: u32) -> impl Iterator<Item = u32> + Clone {
        self.all(number).flat_map(|p| {
            let (packed, single) = match p {
                Payload::Bytes(bytes) => (bytes, None),
                Payload::Fixed32(v) => (&[][..], Some(v)),
                _ => (&[][..], None),
            };
            let packed = packed
                .chunks_exact(4)
                .map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]]));
            single.into_iter().chain(packed)
        })
    }

    /// Repeated 8-byte numbers, packed or not, as their bits.
    pub(super) fn double_words(self, number: u32) -> impl Iterator<Item = u64> + Clone {
        self.all(number).flat_map(|p| {
            let (packed, single) = match p {
                Payload::Bytes(bytes) => (bytes, None),
                Payload::Fixed64(v) => (&[][..], Some(v)),
                _ => (&[][..], None),
            };
            let packed = packed
                .chunks_exact(8)
                .map(|c| u64::from_le_bytes([c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7]]));
            single.into_iter().chain(packed)
        })
    }
}

macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $kind:ident $field:ident = $number:literal $(: $inner:ident)?;)* })*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name<'a>(pub(super) Raw<'a>);

        impl<'a> $name<'a> {
            $(messages! { @ $(#[$field_doc])* $kind $field $number $($inner)? })*
        }
    )* };
    (@ $(#[$doc:meta])* text $field:ident $number:literal) => {
        $(#[$doc])*
        pub fn $field(self) -> &'a str {
            self.0.text($number)
        }
    };
    (@ $(#[$doc:meta])* texts $field:ident $number:literal) => {
        $(#[$doc])*
        pub fn $field(self) -> impl Iterator<Item = &'a str> + Clone {
            self.0.texts($number)
        }
    };
    (@ $(#[$doc:meta])* int $field:ident $number:literal) => {
        $(#[$doc])*
        pub fn $field(self) -> Option<i64> {
            self.0.int($number)
        }
    };
    (@ $(#[$doc:meta])* one $field:ident $number:literal $inner:ident) => {
        $(#[$doc])*
        pub fn $field(self) -> Option<$inner<'a>> {
            self.0.blobs($number).next().map(|b| $inner(Raw(b)))
        }
    };
    (@ $(#[$doc:meta])* many $field:ident $number:literal $inner:ident) => {
        $(#[$doc])*
        pub fn $field(self) -> impl Iterator<Item = $inner<'a>> + Clone {
            self.0.blobs($number).map(|b| $inner(Raw(b)))
        }
    };
}

messages! {
    /// A model: a graph and what it is written in.
    Model {
        /// The version of the format.
        int ir_version = 1;
        /// The program that wrote it.
        text producer_name = 2;
        /// The graph that runs.
        one graph = 7: Graph;
        /// The operator sets that its nodes are of.
        many operator_sets = 8: OperatorSet;
        /// Its metadata, as texts by name.
        many metadata = 14: Entry;
        /// Functions that its nodes may call.
        many functions = 25: Function;
    }
    /// A domain of operators, and which version of it.
    OperatorSet {
        /// Empty for ONNX's own operators.
        text domain = 1;
        /// The version.
        int version = 2;
    }
    /// Nodes in an order in which each value is made before it is used.
    Graph {
        /// The nodes.
        many nodes = 1: Node;
        /// Its name.
        text name = 2;
        /// Constants.
        many initializers = 5: Tensor;
        /// Sparse constants.
        many sparse_initializers = 15: SparseTensor;
        /// Inputs, with their types.
        many inputs = 11: ValueInfo;
        /// Outputs, with their types.
        many outputs = 12: ValueInfo;
    }
    /// An operator applied to named values.
    Node {
        /// Names of its operands; empty where an optional one is left out.
        texts inputs = 1;
        /// Names of its results; empty where one is not wanted.
        texts outputs = 2;
        /// Its own name, which may be empty.
        text name = 3;
        /// The operator.
        text op_type = 4;
        /// The operator's domain.
        text domain = 7;
        /// Which of several functions of one name.
        text overload = 8;
        /// Its settings.
        many attributes = 5: Attribute;
    }
    /// A function: nodes over formal parameters.
    Function {
        /// The operator that it defines.
        text name = 1;
        /// The operator's domain.
        text domain = 10;
        /// Which of several functions of one name.
        text overload = 13;
        /// Formal operands.
        texts inputs = 4;
        /// Formal results.
        texts outputs = 5;
        /// Attributes that a call must give.
        texts attributes = 6;
        /// Attributes that a call may give, with what they are otherwise.
        many defaults = 11: Attribute;
        /// The nodes.
        many nodes = 7: Node;
        /// The operator sets that its nodes are of.
        many operator_sets = 9: OperatorSet;
    }
    /// A named, typed value.
    ValueInfo {
        /// Its name.
        text name = 1;
        /// Its type.
        one ty = 2: Type;
    }
    /// A type: a tensor's, or a sequence's, a map's, an optional's.
    Type {
        /// The tensor's type, if it is one.
        one tensor = 1: TensorType;
    }
    /// An entry of a table of texts.
    Entry {
        /// The value.
        text key = 1;
        /// What it is.
        text value = 2;
    }
    /// A tensor of which only some elements are stored.
    SparseTensor {
        /// The stored elements; their name is the tensor's.
        one values = 1: Tensor;
    }
}

/// Element type and shape.
#[derive(Clone, Copy, Debug)]
pub struct TensorType<'a>(pub(super) Raw<'a>);

/// One extent of a declared shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dimension<'a> {
    /// A number, which a broken file may make negative.
    Value(i64),
    /// A name, the same wherever the size is the same.
    Named(&'a str),
    /// Nothing is said.
    Unknown,
}

impl<'a> TensorType<'a> {
    /// The element type's number in ONNX; 0 if there is none.
    pub fn element(self) -> i64 {
        self.0.int(1).unwrap_or(0)
    }

    /// The extents; `None` if not even the rank is declared.
    pub fn shape(self) -> Option<impl Iterator<Item = Dimension<'a>> + Clone> {
        let shape = self.0.blobs(2).next()?;
        Some(Raw(shape).blobs(1).map(|d| {
            let dim = Raw(d);
            match (dim.int(1), dim.text(2)) {
                (Some(value), _) => Dimension::Value(value),
                (None, "") => Dimension::Unknown,
                (None, name) => Dimension::Named(name),
            }
        }))
    }
}

/// A setting of a node.
#[derive(Clone, Copy, Debug)]
pub struct Attribute<'a>(pub(super) Raw<'a>);

/// What an attribute holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the variants are named as in the ONNX schema")]
pub enum AttributeKind {
    Float,
    Int,
    Text,
    Tensor,
    Graph,
    Floats,
    Ints,
    Texts,
    Other,
}

impl<'a> Attribute<'a> {
    /// Its name.
    pub fn name(self) -> &'a str {
        self.0.text(1)
    }

    /// In a function: the attribute of the call that this one stands for, or empty.
    pub fn reference(self) -> &'a str {
        self.0.text(21)
    }

    /// What it holds: as declared, or as files of the first versions leave it, by what is there.
    pub fn kind(self) -> AttributeKind {
        use AttributeKind::*;
        match self.0.int(20) {
            Some(1) => Float,
            Some(2) => Int,
            Some(3) => Text,
            Some(4) => Tensor,
            Some(5) => Graph,
            Some(6) => Floats,
            Some(7) => Ints,
            Some(8) => Texts,
            None | Some(0) => {
                let by_field = [
                    (2, Float),
                    (3, Int),
                    (4, Text),
                    (5, Tensor),
                    (6, Graph),
                    (7, Floats),
                    (8, Ints),
                    (9, Texts),
                ];
                let found = by_field.iter().find(|(n, _)| self.0.all(*n).next().is_some());
                found.map_or(Other, |(_, kind)| *kind)
            }
            _ => Other,
        }
    }

    /// The number of a float attribute; 0 where it is not written.
    pub fn float(self) -> f32 {
        match self.0.all(2).next() {
            Some(Payload::Fixed32(bits)) => f32::from_bits(bits),
            _ => 0.0,
        }
    }

    /// The number of an integer attribute; 0 where it is not written.
    pub fn int(self) -> i64 {
        self.0.int(3).unwrap_or(0)
    }

    /// The bytes of a text attribute.
    pub fn bytes(self) -> &'a [u8] {
        self.0.blobs(4).next().unwrap_or_default()
    }

    /// The tensor of a tensor attribute.
    pub fn tensor(self) -> Option<Tensor<'a>> {
        self.0.blobs(5).next().map(|b| Tensor(Raw(b)))
    }

    /// The graph of a graph attribute.
    pub fn graph(self) -> Option<Graph<'a>> {
        self.0.blobs(6).next().map(|b| Graph(Raw(b)))
    }

    /// The numbers of a list of floats.
    pub fn floats(self) -> impl Iterator<Item = f32> + Clone {
        self.0.words(7).map(f32::from_bits)
    }

    /// The numbers of a list of integers.
    pub fn ints(self) -> impl Iterator<Item = i64> + Clone {
        self.0.ints(8).map(|v| v as i64)
    }

    /// The texts of a list of texts.
    pub fn texts(self) -> impl Iterator<Item = &'a [u8]> + Clone {
        self.0.blobs(9)
    }
}

impl<'a> Model<'a> {
    /// Checks the bytes of a `.onnx` file and returns the model in them.
    ///
    /// # Errors
    /// If the bytes are no protobuf messages of ONNX, if they nest too deep, or if there is no graph.
    pub fn parse(bytes: &'a [u8]) -> Result<Model<'a>, OnnxError> {
        if bytes.is_empty() {
            return Err(OnnxError::invalid("an empty file; expected an ONNX model"));
        }
        schema::check(Message::Model, bytes, 0)?;
        let model = Model(Raw(bytes));
        match model.graph() {
            Some(_) => Ok(model),
            None => Err(OnnxError::invalid(
                "not a valid ONNX file: no graph; expected an ONNX model",
            )),
        }
    }
}

impl<'a> Tensor<'a> {
    /// Checks the bytes of a `.pb` file and returns the tensor in them.
    ///
    /// # Errors
    /// If the bytes are no `TensorProto`.
    pub fn parse(bytes: &'a [u8]) -> Result<Tensor<'a>, OnnxError> {
        schema::check(Message::Tensor, bytes, 0)?;
        Ok(Tensor(Raw(bytes)))
    }
}
