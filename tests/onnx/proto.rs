//! Just enough of protobuf to write models for tests.

/// A message being written.
#[derive(Clone, Default)]
pub struct Message(pub Vec<u8>);

fn varint(mut v: u64, to: &mut Vec<u8>) {
    while v >= 0x80 {
        to.push(v as u8 | 0x80);
        v >>= 7;
    }
    to.push(v as u8);
}

impl Message {
    pub fn int(mut self, field: u64, v: i64) -> Message {
        varint(field << 3, &mut self.0);
        varint(v as u64, &mut self.0);
        self
    }

    pub fn bytes(mut self, field: u64, bytes: impl AsRef<[u8]>) -> Message {
        varint(field << 3 | 2, &mut self.0);
        varint(bytes.as_ref().len() as u64, &mut self.0);
        self.0.extend_from_slice(bytes.as_ref());
        self
    }

    pub fn message(self, field: u64, inner: Message) -> Message {
        self.bytes(field, inner.0)
    }

    pub fn messages(self, field: u64, inner: impl IntoIterator<Item = Message>) -> Message {
        inner.into_iter().fold(self, |m, i| m.message(field, i))
    }
}

pub const FLOAT: i64 = 1;
pub const UINT8: i64 = 2;
pub const INT64: i64 = 7;
pub const BOOL: i64 = 9;

/// A dimension.
pub enum D {
    N(i64),
    Sym(&'static str),
}

pub fn value(name: &str, element: i64, dims: &[D]) -> Message {
    let shape = Message::default().messages(
        1,
        dims.iter().map(|d| match d {
            D::N(n) => Message::default().int(1, *n),
            D::Sym(s) => Message::default().bytes(2, s),
        }),
    );
    let tensor = Message::default().int(1, element).message(2, shape);
    Message::default()
        .bytes(1, name)
        .message(2, Message::default().message(1, tensor))
}

/// A result whose element type and shape the model leaves to its nodes.
pub fn result(name: &str) -> Message {
    Message::default().bytes(1, name)
}

pub fn node(op: &str, name: &str, inputs: &[&str], outputs: &[&str]) -> Message {
    let m = inputs.iter().fold(Message::default(), |m, i| m.bytes(1, i));
    let m = outputs.iter().fold(m, |m, o| m.bytes(2, o));
    m.bytes(3, name).bytes(4, op)
}

pub fn int_attribute(name: &str, v: i64) -> Message {
    Message::default().bytes(1, name).int(3, v).int(20, 2)
}

/// The value of an attribute.
#[derive(Clone, Debug)]
pub enum A {
    I(i64),
    F(f32),
    T(&'static str),
    Is(Vec<i64>),
    Fs(Vec<f32>),
}

pub fn attribute(name: &str, value: &A) -> Message {
    let m = Message::default().bytes(1, name);
    match value {
        A::I(v) => m.int(3, *v).int(20, 2),
        A::F(v) => {
            let mut m = m;
            m.0.push(2 << 3 | 5);
            m.0.extend_from_slice(&v.to_le_bytes());
            m.int(20, 1)
        }
        A::T(v) => m.bytes(4, v).int(20, 3),
        A::Is(v) => v.iter().fold(m, |m, &i| m.int(8, i)).int(20, 7),
        A::Fs(v) => {
            let raw: Vec<u8> = v.iter().flat_map(|f| f.to_le_bytes()).collect();
            m.bytes(7, raw).int(20, 6)
        }
    }
}

/// A node from `"Op a b _ c -> y z"`, where `_` is an operand left out.
pub fn op(text: &str, attributes: &[(&str, A)]) -> Message {
    let (left, right) = text.split_once(" -> ").expect("an arrow");
    let mut words = left.split_whitespace();
    let name = words.next().expect("an operator");
    let inputs: Vec<&str> = words.map(|w| if w == "_" { "" } else { w }).collect();
    let outputs: Vec<&str> = right.split_whitespace().collect();
    let m = node(name, outputs[0], &inputs, &outputs);
    m.messages(5, attributes.iter().map(|(name, value)| attribute(name, value)))
}

pub fn graph_attribute(name: &str, graph: Message) -> Message {
    Message::default().bytes(1, name).message(6, graph).int(20, 5)
}

pub fn floats(name: &str, dims: &[i64], data: &[f32]) -> Message {
    let raw: Vec<u8> = data.iter().flat_map(|v| v.to_le_bytes()).collect();
    let m = dims.iter().fold(Message::default(), |m, &d| m.int(1, d));
    m.int(2, FLOAT).bytes(8, name).bytes(9, raw)
}

pub fn ints(name: &str, dims: &[i64], data: &[i64]) -> Message {
    let m = dims.iter().fold(Message::default(), |m, &d| m.int(1, d));
    let m = m.int(2, INT64).bytes(8, name);
    data.iter().fold(m, |m, &v| m.int(7, v))
}

pub fn graph(nodes: Vec<Message>, initializers: Vec<Message>, inputs: Vec<Message>, outputs: Vec<Message>) -> Message {
    Message::default()
        .messages(1, nodes)
        .bytes(2, "g")
        .messages(5, initializers)
        .messages(11, inputs)
        .messages(12, outputs)
}

pub fn opset(domain: &str, version: i64) -> Message {
    Message::default().bytes(1, domain).int(2, version)
}

pub fn model(graph: Message, functions: Vec<Message>) -> Vec<u8> {
    model_of(17, graph, functions)
}

pub fn model_of(version: i64, graph: Message, functions: Vec<Message>) -> Vec<u8> {
    Message::default()
        .int(1, 8)
        .message(7, graph)
        .message(8, opset("", version))
        .message(8, opset("own", 1))
        .messages(25, functions)
        .0
}
