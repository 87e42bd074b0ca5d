//! What each message of ONNX may hold, and the check that a file holds nothing else.
//!
//! Field numbers are facts of ONNX's `onnx.proto` (github.com/onnx/onnx, onnx/onnx.proto, IR version 13). A field that is
//! not in these tables is skipped, as protobuf asks, so that files of later versions are read.

use super::error::OnnxError;
use super::wire::{Fields, Payload, varint};

/// Messages nest at most this deep (graphs in attributes of nodes of graphs, types in types). Protobuf's own readers stop
/// at the same depth.
const MAX_DEPTH: usize = 100;

/// The messages that are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Message {
    Model,
    OperatorSet,
    Graph,
    Node,
    Attribute,
    Tensor,
    SparseTensor,
    Entry,
    ValueInfo,
    Type,
    TensorType,
    Shape,
    Dimension,
    Function,
    /// A type that holds one other type: sequence, optional.
    Holder,
    Map,
}

/// What a field holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Int,
    Float,
    Text,
    Bytes,
    One(Message),
    /// Repeated numbers, one by one or packed.
    Ints,
    Floats,
    Doubles,
    Texts,
    ByteStrings,
    Many(Message),
}

impl Message {
    fn name(self) -> &'static str {
        match self {
            Message::Model => "ModelProto",
            Message::OperatorSet => "OperatorSetIdProto",
            Message::Graph => "GraphProto",
            Message::Node => "NodeProto",
            Message::Attribute => "AttributeProto",
            Message::Tensor => "TensorProto",
            Message::SparseTensor => "SparseTensorProto",
            Message::Entry => "StringStringEntryProto",
            Message::ValueInfo => "ValueInfoProto",
            Message::Type => "TypeProto",
            Message::TensorType => "TypeProto.Tensor",
            Message::Shape => "TensorShapeProto",
            Message::Dimension => "TensorShapeProto.Dimension",
            Message::Function => "FunctionProto",
            Message::Holder => "TypeProto.Sequence",
            Message::Map => "TypeProto.Map",
        }
    }

    fn field(self, number: u32) -> Option<Kind> {
        use Kind::*;
        Some(match (self, number) {
            (Message::Model, 1 | 5) => Int,
            (Message::Model, 2 | 3 | 4 | 6) => Text,
            (Message::Model, 7) => One(Message::Graph),
            (Message::Model, 8) => Many(Message::OperatorSet),
            (Message::Model, 14) => Many(Message::Entry),
            (Message::Model, 25) => Many(Message::Function),
            (Message::OperatorSet, 1) => Text,
            (Message::OperatorSet, 2) => Int,
            (Message::Graph, 1) => Many(Message::Node),
            (Message::Graph, 2 | 10) => Text,
            (Message::Graph, 5) => Many(Message::Tensor),
            (Message::Graph, 11..=13) => Many(Message::ValueInfo),
            (Message::Graph, 15) => Many(Message::SparseTensor),
            (Message::Graph, 16) => Many(Message::Entry),
            (Message::Node, 1 | 2) => Texts,
            (Message::Node, 3 | 4 | 6 | 7 | 8) => Text,
            (Message::Node, 5) => Many(Message::Attribute),
            (Message::Node, 9) => Many(Message::Entry),
            (Message::Attribute, 1 | 13 | 21) => Text,
            (Message::Attribute, 2) => Float,
            (Message::Attribute, 3 | 20) => Int,
            (Message::Attribute, 4) => Bytes,
            (Message::Attribute, 5) => One(Message::Tensor),
            (Message::Attribute, 6) => One(Message::Graph),
            (Message::Attribute, 7) => Floats,
            (Message::Attribute, 8) => Ints,
            (Message::Attribute, 9) => ByteStrings,
            (Message::Attribute, 10) => Many(Message::Tensor),
            (Message::Attribute, 11) => Many(Message::Graph),
            (Message::Attribute, 14) => One(Message::Type),
            (Message::Attribute, 15) => Many(Message::Type),
            (Message::Attribute, 22) => One(Message::SparseTensor),
            (Message::Attribute, 23) => Many(Message::SparseTensor),
            (Message::Tensor, 1 | 5 | 7 | 11) => Ints,
            (Message::Tensor, 2 | 14) => Int,
            (Message::Tensor, 4) => Floats,
            (Message::Tensor, 6) => ByteStrings,
            (Message::Tensor, 8 | 12) => Text,
            (Message::Tensor, 9) => Bytes,
            (Message::Tensor, 10) => Doubles,
            (Message::Tensor, 13 | 16) => Many(Message::Entry),
            (Message::SparseTensor, 1 | 2) => One(Message::Tensor),
            (Message::SparseTensor, 3) => Ints,
            (Message::Entry, 1 | 2) => Text,
            (Message::ValueInfo, 1 | 3) => Text,
            (Message::ValueInfo, 2) => One(Message::Type),
            (Message::ValueInfo, 4) => Many(Message::Entry),
            (Message::Type, 1 | 8) => One(Message::TensorType),
            (Message::Type, 4 | 9) => One(Message::Holder),
            (Message::Type, 5) => One(Message::Map),
            (Message::Type, 6) => Text,
            (Message::TensorType, 1) => Int,
            (Message::TensorType, 2) => One(Message::Shape),
            (Message::Shape, 1) => Many(Message::Dimension),
            (Message::Dimension, 1) => Int,
            (Message::Dimension, 2 | 3) => Text,
            (Message::Function, 1 | 8 | 10 | 13) => Text,
            (Message::Function, 4..=6) => Texts,
            (Message::Function, 7) => Many(Message::Node),
            (Message::Function, 9) => Many(Message::OperatorSet),
            (Message::Function, 11) => Many(Message::Attribute),
            (Message::Function, 12) => Many(Message::ValueInfo),
            (Message::Function, 14) => Many(Message::Entry),
            (Message::Holder, 1) => One(Message::Type),
            (Message::Map, 1) => Int,
            (Message::Map, 2) => One(Message::Type),
            _ => return None,
        })
    }
}

/// Checks a message and all that it holds: well-formed fields of the right wire type, text that is UTF-8, no field twice
/// that is one, bounded depth. Allocates nothing; the data of tensors is not looked at.
pub(super) fn check(message: Message, bytes: &[u8], depth: usize) -> Result<(), OnnxError> {
    let invalid = |number: Option<u32>, what: &str| {
        let field = number.map_or(String::new(), |n| format!(" field {n}"));
        Err(OnnxError::invalid(format!(
            "not a valid ONNX file: {}{field}: {what}",
            message.name()
        )))
    };
    if depth > MAX_DEPTH {
        return invalid(None, "messages nested more than 100 deep");
    }
    let mut seen = 0u64;
    let mut fields = Fields::new(bytes);
    while let Some(field) = fields.next() {
        let (number, payload) = match field {
            Ok(field) => field,
            Err(what) => return invalid(None, what),
        };
        debug_assert!(fields.left() <= bytes.len());
        let Some(kind) = message.field(number) else {
            continue;
        };
        let once = matches!(kind, Kind::Int | Kind::Float | Kind::Text | Kind::Bytes | Kind::One(_));
        // Every field of the tables is below 64.
        let bit = 1u64 << (number & 63);
        if once && seen & bit != 0 {
            return invalid(Some(number), "given twice; expected it once");
        }
        seen |= bit;
        match (kind, payload) {
            (Kind::Int | Kind::Ints, Payload::Varint(_))
            | (Kind::Float | Kind::Floats, Payload::Fixed32(_))
            | (Kind::Doubles, Payload::Fixed64(_))
            | (Kind::Bytes | Kind::ByteStrings, Payload::Bytes(_)) => {}
            (Kind::Text | Kind::Texts, Payload::Bytes(text)) => {
                if std::str::from_utf8(text).is_err() {
                    return invalid(Some(number), "text that is not UTF-8");
                }
            }
            (Kind::One(inner) | Kind::Many(inner), Payload::Bytes(bytes)) => check(inner, bytes, depth + 1)?,
            (Kind::Ints, Payload::Bytes(mut packed)) => {
                while !packed.is_empty() {
                    if let Err(what) = varint(&mut packed) {
                        return invalid(Some(number), what);
                    }
                }
            }
            (Kind::Floats, Payload::Bytes(packed)) if packed.len() % 4 == 0 => {}
            (Kind::Doubles, Payload::Bytes(packed)) if packed.len() % 8 == 0 => {}
            (Kind::Floats | Kind::Doubles, Payload::Bytes(_)) => return invalid(Some(number), "a part of a number"),
            _ => return invalid(Some(number), "the wrong wire type"),
        }
    }
    Ok(())
}
