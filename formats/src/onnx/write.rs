//! ONNX models written: the messages that an exporter makes, and their bytes.
//!
//! Invariants:
//! - Field numbers are those of onnx.proto, as in the reader's files; fields are written in the order of their numbers, so the
//!   same model gives the same bytes.
//! - Elements of initializers are raw, little-endian, those of less than a byte packed, and never copied into a message: the
//!   model is written piece by piece. With [`Model::write_external`] the larger ones go to a second file.

use std::io::{self, Write};

use tlc_ir::dtype::DType;
use tlc_ir::tensor::HostTensor;

use super::tensor::{packed, per_byte};
use crate::layout;

/// The number of an element type in ONNX's `TensorProto.DataType`.
pub fn element(dtype: DType) -> i64 {
    match dtype {
        DType::F32 => 1,
        DType::U8 => 2,
        DType::I8 => 3,
        DType::U16 => 4,
        DType::I16 => 5,
        DType::I32 => 6,
        DType::I64 => 7,
        DType::Bool => 9,
        DType::F16 => 10,
        DType::F64 => 11,
        DType::U32 => 12,
        DType::U64 => 13,
        DType::BF16 => 16,
        DType::F8E4M3FN => 17,
        DType::F8E4M3FNUZ => 18,
        DType::F8E5M2 => 19,
        DType::F8E5M2FNUZ => 20,
        DType::U4 => 21,
        DType::I4 => 22,
        DType::F4E2M1FN => 23,
        DType::F8E8M0FNU => 24,
        DType::U2 => 25,
        DType::I2 => 26,
    }
}

/// The first operator set whose types include it.
pub fn first_opset(dtype: DType) -> i64 {
    match dtype {
        DType::F4E2M1FN => 23,
        DType::F8E8M0FNU => 24,
        DType::I2 | DType::U2 => 25,
        _ => 21,
    }
}

/// An attribute's value.
#[derive(Clone, Debug, PartialEq)]
pub enum Attribute {
    /// An integer.
    Int(i64),
    /// Text.
    Text(String),
    /// Integers.
    Ints(Vec<i64>),
    /// A subgraph.
    Graph(Box<Graph>),
}

/// An operator's application.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Node {
    /// The operator, of the default domain.
    pub op: &'static str,
    /// A name for messages.
    pub name: String,
    /// Operands; the empty name is one left out.
    pub inputs: Vec<String>,
    /// Results.
    pub outputs: Vec<String>,
    /// Settings by name.
    pub attributes: Vec<(&'static str, Attribute)>,
}

/// An extent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dimension {
    /// A number.
    Value(i64),
    /// A named size.
    Named(String),
    /// Nothing is said.
    Unknown,
}

/// A named value with its type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueInfo {
    /// Its name.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Extents, outermost first.
    pub shape: Vec<Dimension>,
}

/// A graph, or a subgraph.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    /// Its name.
    pub name: String,
    /// Nodes, each behind those whose results it takes.
    pub nodes: Vec<Node>,
    /// Constants by name.
    pub initializers: Vec<(String, HostTensor)>,
    /// Operands.
    pub inputs: Vec<ValueInfo>,
    /// Results.
    pub outputs: Vec<ValueInfo>,
}

/// A model.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// The default domain's operator set, 21 or more.
    pub opset: i64,
    /// The graph.
    pub graph: Graph,
}

/// Initializers of fewer bytes stay in the model when others go to a file of their own.
const EXTERNAL_BYTES: usize = 1024;
/// Where an initializer begins in a file of its own: at a multiple of this, so that it can be mapped.
const EXTERNAL_ALIGNMENT: u64 = 4096;

impl Model {
    /// Bytes of all initializers.
    pub fn initializer_bytes(&self) -> u64 {
        self.graph.initializers.iter().map(|(_, t)| raw_bytes(t) as u64).sum()
    }

    /// Writes the model with all its initializers. No program reads a model of 2 GiB and more.
    ///
    /// # Errors
    /// The writer's.
    pub fn write(&self, writer: &mut impl Write) -> io::Result<()> {
        let places = vec![Place::Inside; self.graph.initializers.len()];
        self.write_places(&places, writer)
    }

    /// Writes the model, and its larger initializers to `data`, which the model calls `location`: a file in the model's folder.
    ///
    /// # Errors
    /// A writer's.
    pub fn write_external(&self, location: &str, writer: &mut impl Write, data: &mut impl Write) -> io::Result<()> {
        let mut end = 0u64;
        let mut places = vec![];
        for (_, tensor) in &self.graph.initializers {
            let bytes = raw_bytes(tensor);
            if bytes < EXTERNAL_BYTES {
                places.push(Place::Inside);
                continue;
            }
            let offset = end.next_multiple_of(EXTERNAL_ALIGNMENT);
            io::copy(&mut io::Read::take(io::repeat(0), offset - end), data)?;
            write_raw(tensor, data)?;
            end = offset + bytes as u64;
            places.push(Place::Outside {
                location: location.to_string(),
                offset,
            });
        }
        self.write_places(&places, writer)
    }

    fn write_places(&self, places: &[Place], writer: &mut impl Write) -> io::Result<()> {
        let version = match self.opset {
            ..=22 => 10,
            23 => 11,
            24 => 12,
            25..=27 => 13,
            _ => 14,
        };
        let head = Message::default()
            .int(1, version)
            .text(2, "tlc")
            .text(3, env!("CARGO_PKG_VERSION"));
        let graph = GraphParts::of(&self.graph, places);
        writer.write_all(&head.0)?;
        writer.write_all(&field(7, graph.len()))?;
        graph.write(writer)?;
        let opset = Message::default().text(1, "").int(2, self.opset);
        writer.write_all(&Message::default().message(8, &opset).0)
    }
}

/// Where an initializer's elements are.
#[derive(Clone, PartialEq)]
enum Place {
    Inside,
    Outside { location: String, offset: u64 },
}

fn raw_bytes(tensor: &HostTensor) -> usize {
    match per_byte(tensor.dtype()) {
        1 => tensor.bytes().len(),
        n => tensor.len().div_ceil(n),
    }
}

fn write_raw(tensor: &HostTensor, writer: &mut impl Write) -> io::Result<()> {
    if per_byte(tensor.dtype()) == 1 {
        return layout::write_little_endian(tensor.dtype().bytes(), tensor.bytes(), writer);
    }
    writer.write_all(&packed(tensor))
}

/// A graph's message, in pieces: initializers are not copied.
struct GraphParts<'g> {
    before: Vec<u8>,
    /// What stands before the elements of each initializer, and those, if they stand there.
    initializers: Vec<(Vec<u8>, Option<&'g HostTensor>)>,
    behind: Vec<u8>,
}

impl<'g> GraphParts<'g> {
    fn of(graph: &'g Graph, places: &[Place]) -> GraphParts<'g> {
        let mut before = Message::default();
        for node in &graph.nodes {
            before = before.message(1, &node.message());
        }
        let before = before.text(2, &graph.name);
        let initializers = graph.initializers.iter().zip(places);
        let initializers = initializers.map(|((name, tensor), place)| {
            let mut head = Message::default();
            for &d in tensor.shape() {
                head = head.int(1, d as i64);
            }
            let head = head.int(2, element(tensor.dtype())).text(8, name);
            match place {
                Place::Inside => {
                    let bytes = raw_bytes(tensor);
                    let raw = field(9, bytes);
                    let mut all = field(5, head.0.len() + raw.len() + bytes);
                    all.extend_from_slice(&head.0);
                    all.extend_from_slice(&raw);
                    (all, Some(tensor))
                }
                Place::Outside { location, offset } => {
                    let entry = |key: &str, value: &str| Message::default().text(1, key).text(2, value);
                    let head = head
                        .message(13, &entry("location", location))
                        .message(13, &entry("offset", &offset.to_string()))
                        .message(13, &entry("length", &raw_bytes(tensor).to_string()))
                        .int(14, 1);
                    (Message::default().message(5, &head).0, None)
                }
            }
        });
        let mut behind = Message::default();
        for input in &graph.inputs {
            behind = behind.message(11, &input.message());
        }
        for output in &graph.outputs {
            behind = behind.message(12, &output.message());
        }
        GraphParts {
            before: before.0,
            initializers: initializers.collect(),
            behind: behind.0,
        }
    }

    fn len(&self) -> usize {
        let one = |(head, tensor): &(Vec<u8>, Option<&HostTensor>)| head.len() + tensor.map_or(0, raw_bytes);
        self.before.len() + self.initializers.iter().map(one).sum::<usize>() + self.behind.len()
    }

    fn write(&self, writer: &mut impl Write) -> io::Result<()> {
        writer.write_all(&self.before)?;
        for (head, tensor) in &self.initializers {
            writer.write_all(head)?;
            if let Some(tensor) = tensor {
                write_raw(tensor, writer)?;
            }
        }
        writer.write_all(&self.behind)
    }
}

/// A message being written.
#[derive(Default)]
struct Message(Vec<u8>);

fn varint(mut v: u64, to: &mut Vec<u8>) {
    while v >= 0x80 {
        to.push(v as u8 | 0x80);
        v >>= 7;
    }
    to.push(v as u8);
}

/// What stands before the bytes of a field: its number and their count.
fn field(number: u64, bytes: usize) -> Vec<u8> {
    let mut head = vec![];
    varint(number << 3 | 2, &mut head);
    varint(bytes as u64, &mut head);
    head
}

impl Message {
    fn int(mut self, number: u64, value: i64) -> Message {
        varint(number << 3, &mut self.0);
        varint(value as u64, &mut self.0);
        self
    }

    fn bytes(mut self, number: u64, bytes: &[u8]) -> Message {
        self.0.extend(field(number, bytes.len()));
        self.0.extend_from_slice(bytes);
        self
    }

    fn text(self, number: u64, text: &str) -> Message {
        self.bytes(number, text.as_bytes())
    }

    fn message(self, number: u64, inner: &Message) -> Message {
        self.bytes(number, &inner.0)
    }
}

impl Node {
    fn message(&self) -> Message {
        let mut m = Message::default();
        for input in &self.inputs {
            m = m.text(1, input);
        }
        for output in &self.outputs {
            m = m.text(2, output);
        }
        m = m.text(3, &self.name).text(4, self.op);
        for (name, value) in &self.attributes {
            m = m.message(5, &attribute(name, value));
        }
        m
    }
}

fn attribute(name: &str, value: &Attribute) -> Message {
    let m = Message::default().text(1, name);
    match value {
        Attribute::Int(v) => m.int(3, *v).int(20, 2),
        Attribute::Text(v) => m.text(4, v).int(20, 3),
        Attribute::Ints(v) => v.iter().fold(m, |m, &i| m.int(8, i)).int(20, 7),
        Attribute::Graph(graph) => {
            let parts = GraphParts::of(graph, &vec![Place::Inside; graph.initializers.len()]);
            let mut inner = vec![];
            parts.write(&mut inner).expect("memory is written to");
            m.bytes(6, &inner).int(20, 5)
        }
    }
}

impl ValueInfo {
    fn message(&self) -> Message {
        let mut shape = Message::default();
        for d in &self.shape {
            let dim = match d {
                Dimension::Value(n) => Message::default().int(1, *n),
                Dimension::Named(name) => Message::default().text(2, name),
                Dimension::Unknown => Message::default(),
            };
            shape = shape.message(1, &dim);
        }
        let tensor = Message::default().int(1, element(self.dtype)).message(2, &shape);
        let ty = Message::default().message(1, &tensor);
        Message::default().text(1, &self.name).message(2, &ty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx;

    fn model() -> Model {
        let weights: Vec<f32> = (0..600).map(|i| i as f32).collect();
        let mut narrow = HostTensor::zeros(DType::I4, &[5]).unwrap();
        narrow.bytes_mut().copy_from_slice(&[1, 15, 3, 8, 7]);
        let info = |name: &str| ValueInfo {
            name: name.into(),
            dtype: DType::F32,
            shape: vec![Dimension::Named("n".into()), Dimension::Value(600), Dimension::Unknown],
        };
        let node = Node {
            op: "Add",
            name: "sum".into(),
            inputs: vec!["x".into(), "w".into()],
            outputs: vec!["y".into()],
            attributes: vec![
                ("axis", Attribute::Int(-1)),
                ("perm", Attribute::Ints(vec![0, 2])),
                ("mode", Attribute::Text("add".into())),
            ],
        };
        Model {
            opset: 21,
            graph: Graph {
                name: "g".into(),
                nodes: vec![node],
                initializers: vec![
                    ("w".into(), HostTensor::from_slice(&[600], &weights).unwrap()),
                    ("narrow".into(), narrow),
                    ("again".into(), HostTensor::from_slice(&[300, 2], &weights).unwrap()),
                ],
                inputs: vec![info("x")],
                outputs: vec![info("y")],
            },
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let mut bytes = vec![];
        model().write(&mut bytes).unwrap();
        let read = onnx::Model::parse(&bytes).unwrap();
        let graph = read.graph().unwrap();
        assert_eq!(graph.name(), "g");
        let set = read.operator_sets().next().unwrap();
        assert_eq!((set.domain(), set.version()), ("", Some(21)));
        let node = graph.nodes().next().unwrap();
        assert_eq!((node.op_type(), node.name()), ("Add", "sum"));
        assert_eq!(node.inputs().collect::<Vec<_>>(), ["x", "w"]);
        assert_eq!(
            node.attributes().map(|a| a.name()).collect::<Vec<_>>(),
            ["axis", "perm", "mode"]
        );
        for ((name, tensor), read) in model().graph.initializers.iter().zip(graph.initializers()) {
            assert_eq!(read.name(), name);
            assert_eq!(read.to_host(None).unwrap(), *tensor);
        }
        let shape = graph.inputs().next().unwrap().ty().unwrap().tensor().unwrap();
        let shape: Vec<_> = shape.shape().unwrap().collect();
        use crate::onnx::Dimension::{Named, Unknown, Value};
        assert!(matches!(shape[..], [Named("n"), Value(600), Unknown]));
    }

    #[test]
    fn larger_initializers_can_lie_in_a_file_of_their_own() {
        let (mut bytes, mut data) = (vec![], vec![]);
        model().write_external("m.data", &mut bytes, &mut data).unwrap();
        assert_eq!(data.len(), 4096 + 2400);
        let read = onnx::Model::parse(&bytes).unwrap();
        let all: Vec<_> = read.graph().unwrap().initializers().collect();
        let place = all[2].external().unwrap().unwrap();
        assert_eq!(
            (place.location, place.offset, place.length),
            ("m.data", 4096, Some(2400))
        );
        let read = all[2].to_host(Some(&data[4096..])).unwrap();
        assert_eq!(read, model().graph.initializers[2].1);
        assert_eq!(all[1].external().unwrap(), None);
    }

    #[test]
    fn element_types_have_the_numbers_that_they_are_read_by() {
        for dtype in DType::ALL {
            assert_eq!(onnx::dtype(element(dtype)).unwrap(), dtype);
        }
    }
}
