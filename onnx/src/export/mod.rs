//! Graphs as ONNX models, in the plainest operators that say the same.
//!
//! Invariants:
//! - Every node is said exactly or refused by name ([`ExportError`]): random numbers, running maxima and what else the default
//!   domain has no word for. Nothing is written approximately, but where ONNX has a function only as a formula of others
//!   (`rsqrt`, `expm1`, `log1p`, `log2`), whose roundings differ.
//! - What ONNX leaves open and the graph language does not is made sure of: an index that may be out of range is masked, and what
//!   converts to a small integer is clipped. An index that was an ONNX model's own is written as it was there, and a
//!   conversion to 32 or 64 bits as a cast.
//! - Sizes that symbols decide are computed from the inputs' shapes, whose extents have the symbols' names.
//! - The writing is deterministic, and recursion is bounded by the depth of loops and the size of an extent.
//!
//! Each family of nodes has a file: it takes a node and returns the names of its results.

mod contraction;
mod control;
mod elementwise;
mod indexing;
mod reduction;
mod size;
mod view;
mod window;

use rustc_hash::{FxHashMap, FxHashSet};
use tlc_formats::onnx::write::{self, Attribute, Dimension, Model, Node, ValueInfo};
use tlc_ir::graph::{NodeId, NodeKind, Origin, TensorType, View};
use tlc_ir::index::{IndexExpr, IndexNode};
use tlc_ir::{DType, Graph, HostTensor, Scalar};

use crate::packed::Packed;
use size::Known;

/// The oldest operator set that is written; newer ones only where a model needs them.
const OPSET: i64 = 21;

/// Why a graph could not be exported. Prints as one line: which node, and why ONNX cannot say it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {message}")]
pub struct ExportError {
    place: String,
    message: String,
}

impl ExportError {
    /// What ONNX cannot say, without where.
    pub fn message(&self) -> &str {
        &self.message
    }
}

/// A refusal before it is known of which node.
type Outcome<T> = Result<T, String>;

/// See [`super::export`].
pub(super) fn export(graph: &Graph) -> Result<Model, ExportError> {
    let inlined = graph.inlined().map_err(|e| ExportError {
        place: "a region".into(),
        message: e.to_string(),
    })?;
    let graph = inlined.as_ref().unwrap_or(graph);
    let mut shared = Shared::default();
    let at = |place: &str| {
        let place = place.to_string();
        move |message| ExportError { place, message }
    };
    for &id in graph.inputs() {
        let name = input_name(graph, id);
        if name.is_empty() {
            return Err(at("an input")(
                "its name is empty, which in ONNX means that it is left out".into(),
            ));
        }
        shared.taken.insert(name.to_string());
    }
    for output in graph.outputs() {
        let name = &output.name;
        let own = matches!(&graph.node(output.node).kind, NodeKind::Input { name: n, .. } if n == name);
        if !own && !shared.taken.insert(name.clone()) {
            let message = "an input has that name, too, and ONNX has one space of names";
            return Err(at(&format!("output `{name}`"))(message.into()));
        }
    }
    let mut inputs = vec![];
    let one_size = |s: &tlc_ir::graph::Symbol| match s.lo == s.hi {
        true => Known::Number(s.lo),
        false => Known::Nothing,
    };
    let mut symbols: Vec<Known> = graph.symbols().iter().map(one_size).collect();
    for &id in graph.inputs() {
        let name = input_name(graph, id);
        for (axis, d) in graph.ty(id).shape.iter().enumerate() {
            size::learn(&mut symbols, d, name, axis);
        }
        shared.see(graph.ty(id).dtype);
        inputs.push(value_info(graph, name, graph.ty(id)));
    }
    let mut writer = Writer::new(&mut shared, graph, symbols);
    for &id in graph.inputs() {
        let mut name = input_name(graph, id).to_string();
        let shape = &graph.ty(id).shape;
        // An extent that is an expression has no name: the reshape says that it follows from the others.
        let computed = |d: &IndexExpr| matches!(d, IndexExpr::Node(n) if !matches!(**n, IndexNode::Sym(_)));
        if shape.iter().any(computed) {
            name = writer.reshape(&name, shape).map_err(at(&format!("input `{name}`")))?;
        }
        writer.set(id, name);
    }
    let mut names: FxHashMap<NodeId, &str> = FxHashMap::default();
    for output in graph.outputs() {
        names.entry(output.node).or_insert(&output.name);
    }
    writer.nodes_of(&names)?;
    let mut outputs = vec![];
    for output in graph.outputs() {
        let place = format!("output `{}`", output.name);
        let found = writer.value(output.node).map_err(at(&place))?;
        if found != output.name {
            writer.push("Identity", &[&found], vec![output.name.clone()], vec![]);
        }
        outputs.push(value_info(graph, &output.name, graph.ty(output.node)));
    }
    let nodes = std::mem::take(&mut writer.nodes);
    let name = if graph.name.is_empty() { "main" } else { &graph.name };
    Ok(Model {
        opset: shared.opset.max(OPSET),
        graph: write::Graph {
            name: name.to_string(),
            nodes,
            initializers: shared.initializers,
            inputs,
            outputs,
        },
    })
}

fn input_name(graph: &Graph, id: NodeId) -> &str {
    match &graph.node(id).kind {
        NodeKind::Input { name, .. } => name,
        _ => "",
    }
}

fn value_info(graph: &Graph, name: &str, ty: &TensorType) -> ValueInfo {
    let dimension = |d: &IndexExpr| match d {
        IndexExpr::Const(n) => Dimension::Value(*n),
        IndexExpr::Node(n) => match **n {
            IndexNode::Sym(s) => match graph.symbols().get(s.0 as usize) {
                Some(symbol) if symbol.lo == symbol.hi => Dimension::Value(symbol.lo),
                _ => Dimension::Named(graph.symbol_name(s)),
            },
            _ => Dimension::Unknown,
        },
    };
    ValueInfo {
        name: name.to_string(),
        dtype: ty.dtype,
        shape: ty.shape.iter().map(dimension).collect(),
    }
}

/// What the graph and the bodies of its loops share.
#[derive(Default)]
struct Shared {
    taken: FxHashSet<String>,
    initializers: Vec<(String, HostTensor)>,
    // Constants by what they are. Looked up, never iterated.
    data: FxHashMap<(usize, DType, Vec<usize>), String>,
    scalars: FxHashMap<Scalar, String>,
    vectors: FxHashMap<Vec<i64>, String>,
    opset: i64,
    counter: usize,
}

impl Shared {
    /// A name that nothing has; `base` itself, if that is free.
    fn name(&mut self, base: &str) -> String {
        if !base.is_empty() && self.taken.insert(base.to_string()) {
            return base.to_string();
        }
        loop {
            self.counter += 1;
            let name = format!("{base}_{}", self.counter);
            if self.taken.insert(name.clone()) {
                return name;
            }
        }
    }

    /// A value has that type.
    fn see(&mut self, dtype: DType) {
        self.needs(write::first_opset(dtype));
    }

    fn needs(&mut self, opset: i64) {
        self.opset = self.opset.max(opset);
    }

    fn initializer(&mut self, base: &str, tensor: HostTensor) -> String {
        self.see(tensor.dtype());
        let name = self.name(base);
        self.initializers.push((name.clone(), tensor));
        name
    }
}

/// A value of the graph in the model.
#[derive(Clone, Debug)]
enum Value {
    /// The value of that name.
    Named(String),
    /// What that value broadcasts to: written where something needs it whole.
    Broadcast(String),
}

/// A graph, or the body of a loop, being written.
struct Writer<'w, 'g> {
    shared: &'w mut Shared,
    graph: &'g Graph,
    values: Vec<Option<Value>>,
    /// Results of loops and calls.
    results: FxHashMap<NodeId, Vec<String>>,
    /// What is known of each symbol's value.
    symbols: Vec<Known>,
    /// Sizes that were written: `i64[1]`.
    sizes: FxHashMap<IndexExpr, String>,
    nodes: Vec<Node>,
    /// The node being written.
    at: NodeId,
}

impl<'w, 'g> Writer<'w, 'g> {
    fn new(shared: &'w mut Shared, graph: &'g Graph, symbols: Vec<Known>) -> Writer<'w, 'g> {
        Writer {
            shared,
            graph,
            values: vec![None; graph.len()],
            results: FxHashMap::default(),
            symbols,
            sizes: FxHashMap::default(),
            nodes: vec![],
            at: NodeId(0),
        }
    }

    /// Writes the nodes that the outputs need; `names` are names that nodes' results shall have.
    fn nodes_of(&mut self, names: &FxHashMap<NodeId, &str>) -> Result<(), ExportError> {
        let graph = self.graph;
        let windowed = window::absorbed(graph);
        let packed: FxHashMap<NodeId, Packed> = graph
            .nodes()
            .filter_map(|(id, _)| Some((id, Packed::of(graph, id)?)))
            .collect();
        let wanted = window::wanted(graph, &windowed, &packed);
        for (id, node) in graph.nodes() {
            if !wanted[id.index()] || matches!(node.kind, NodeKind::Input { .. }) {
                continue;
            }
            self.at = id;
            let first = self.nodes.len();
            let made = match (windowed.get(&id), packed.get(&id)) {
                (_, Some(packed)) => self.packed(id, packed).map(Some),
                (Some(windowed), _) => self.windowed(id, windowed),
                _ => self.node(id),
            };
            let name = made.map_err(|message| ExportError {
                place: self.place(id),
                message,
            })?;
            if let Some(value) = name {
                // The last node of what was written may carry the name of an output, unless it is an operand's.
                let of_operand = |o: &NodeId| matches!(&self.values[o.index()], Some(Value::Named(n)) if *n == value);
                let own = self.nodes[first..].last().is_some_and(|n| n.outputs == [value.clone()])
                    && !self.operands(id).iter().any(of_operand);
                let value = match names.get(&id) {
                    Some(&name) if own => {
                        let last = self.nodes.last_mut().expect("it was just written");
                        last.outputs = vec![name.to_string()];
                        if let Some(base) = last.name.strip_suffix(&value) {
                            last.name = format!("{base}{name}");
                        }
                        name.to_string()
                    }
                    _ => value,
                };
                self.set(id, value);
            }
        }
        Ok(())
    }

    /// Which node it is, for messages: its name in the graph's text, its operation, and where that comes from.
    fn place(&self, id: NodeId) -> String {
        let node = self.graph.node(id);
        let what = format!("{} {}", self.graph.value_name(id), node.kind.name());
        match node.origin.recorded() {
            Origin::Named(name) => format!("{what} of node '{name}'"),
            origin => format!("{what}{}", origin.clause()),
        }
    }

    fn set(&mut self, id: NodeId, name: String) {
        self.values[id.index()] = Some(Value::Named(name));
    }

    fn ty(&self, id: NodeId) -> &'g TensorType {
        self.graph.ty(id)
    }

    fn operands(&self, id: NodeId) -> &'g [NodeId] {
        &self.graph.node(id).operands
    }

    /// Adds a node of the model.
    fn push(
        &mut self,
        op: &'static str,
        inputs: &[&str],
        outputs: Vec<String>,
        attributes: Vec<(&'static str, Attribute)>,
    ) {
        let base = match self.graph.node(self.at).origin.recorded() {
            Origin::Named(name) => name,
            _ => op,
        };
        // Names of nodes are distinct, as those of results are.
        let name = format!("{base}/{}", outputs.first().map_or("", String::as_str));
        self.nodes.push(Node {
            op,
            name,
            inputs: inputs.iter().map(|i| i.to_string()).collect(),
            outputs,
            attributes,
        });
    }

    /// Adds a node of one result and settings; returns the result's name.
    fn with(&mut self, op: &'static str, inputs: &[&str], attributes: Vec<(&'static str, Attribute)>) -> String {
        let name = self.shared.name(&op.to_ascii_lowercase());
        self.push(op, inputs, vec![name.clone()], attributes);
        name
    }

    /// Adds a node of one result; returns the result's name.
    fn emit(&mut self, op: &'static str, inputs: &[&str]) -> String {
        self.with(op, inputs, vec![])
    }

    fn cast(&mut self, value: &str, from: DType, to: DType) -> String {
        if from == to {
            return value.to_string();
        }
        self.shared.see(to);
        self.with("Cast", &[value], vec![("to", Attribute::Int(write::element(to)))])
    }

    /// A constant of rank 0.
    fn scalar(&mut self, value: Scalar) -> String {
        if let Some(name) = self.shared.scalars.get(&value) {
            return name.clone();
        }
        let name = self.shared.initializer("scalar", HostTensor::scalar(value));
        self.shared.scalars.insert(value, name.clone());
        name
    }

    fn number(&mut self, value: f64, dtype: DType) -> String {
        self.scalar(Scalar::from_f64(dtype, value))
    }

    /// Constants `i64[n]`.
    fn vector(&mut self, numbers: &[i64]) -> String {
        if let Some(name) = self.shared.vectors.get(numbers) {
            return name.clone();
        }
        let data = HostTensor::from_slice(&[numbers.len()], numbers).expect("as many as there are");
        let name = self.shared.initializer("ints", data);
        self.shared.vectors.insert(numbers.to_vec(), name.clone());
        name
    }

    fn data(&mut self, id: NodeId, data: &HostTensor) -> String {
        let key = (data.data_address(), data.dtype(), data.shape().to_vec());
        if let Some(name) = self.shared.data.get(&key).filter(|_| !data.is_empty()) {
            return name.clone();
        }
        let base = match self.graph.node(id).origin.recorded() {
            Origin::Weights(name) | Origin::Named(name) => name.to_string(),
            _ => "data".into(),
        };
        let name = self.shared.initializer(&base, data.clone());
        self.shared.data.insert(key, name.clone());
        name
    }

    /// A constant of elements that share bytes.
    fn packed(&mut self, id: NodeId, packed: &Packed) -> Outcome<String> {
        let data = packed.host().map_err(|e| e.message)?;
        Ok(self.data(id, &data))
    }

    /// What an operator that moves elements makes of values. It takes no storage types: those are carried through it in a plain
    /// type that has all their values.
    fn carried(&mut self, values: &[&str], dtype: DType, f: impl FnOnce(&mut Self, &[String]) -> String) -> String {
        let plain = match dtype {
            d if !d.is_storage() => d,
            d if d.is_storage_float() => DType::F32,
            _ => DType::I8,
        };
        let values: Vec<String> = values.iter().map(|v| self.cast(v, dtype, plain)).collect();
        let made = f(self, &values);
        if matches!(
            dtype,
            DType::F8E4M3FN | DType::F8E4M3FNUZ | DType::F8E5M2 | DType::F8E5M2FNUZ
        ) {
            // Every value is one of the type's, infinities too.
            let to = Attribute::Int(write::element(dtype));
            return self.with("Cast", &[&made], vec![("to", to), ("saturate", Attribute::Int(0))]);
        }
        self.converted(&made, plain, dtype)
    }

    /// The name of a value that has its whole shape.
    fn value(&mut self, id: NodeId) -> Outcome<String> {
        match self.values[id.index()].clone() {
            Some(Value::Named(name)) => Ok(name),
            Some(Value::Broadcast(source)) => {
                let shape = self.shape(&self.ty(id).shape)?;
                let name = self.carried(&[&source], self.ty(id).dtype, |this, x| {
                    this.emit("Expand", &[&x[0], &shape])
                });
                self.set(id, name.clone());
                Ok(name)
            }
            None => Err(format!("{id} was not written; a bug")),
        }
    }

    /// The names of operands that broadcast to their common shape, of which at least one is whole.
    fn broadcast(&mut self, ids: &[NodeId]) -> Outcome<Vec<String>> {
        let whole = |v: &Option<Value>| matches!(v, Some(Value::Named(_)));
        if !ids.iter().any(|o| whole(&self.values[o.index()])) {
            self.value(ids[0])?;
        }
        let name = |o: &NodeId| match &self.values[o.index()] {
            Some(Value::Named(name) | Value::Broadcast(name)) => Ok(name.clone()),
            None => Err(format!("{o} was not written; a bug")),
        };
        ids.iter().map(name).collect()
    }

    /// Writes a node; returns the name of its result, if it has one that is written now.
    fn node(&mut self, id: NodeId) -> Outcome<Option<String>> {
        let node = self.graph.node(id);
        self.shared.see(node.ty.dtype);
        Ok(Some(match &node.kind {
            NodeKind::Input { .. } => return Ok(None),
            NodeKind::Const(value) => self.scalar(*value),
            NodeKind::Data(data) => self.data(id, &data.0),
            NodeKind::Iota { ty, axis } => {
                let source = self.iota(ty, *axis)?;
                self.values[id.index()] = Some(Value::Broadcast(source));
                return Ok(None);
            }
            NodeKind::Random { .. } => {
                return Err("ONNX does not say which random numbers a generator gives".into());
            }
            NodeKind::Map(op) => self.map(id, *op)?,
            NodeKind::Convert(to) => self.convert(id, *to)?,
            NodeKind::Bitcast(to) => self.bitcast(id, *to)?,
            NodeKind::Einsum { .. } => self.einsum(id)?,
            NodeKind::Reduce { monoid, axes } => self.reduce(id, *monoid, axes)?,
            NodeKind::View(View::Expand(_)) => {
                let operand = node.operands[0];
                let source = match self.values[operand.index()].clone() {
                    Some(Value::Named(name) | Value::Broadcast(name)) => name,
                    None => return Err(format!("{operand} was not written; a bug")),
                };
                self.values[id.index()] = Some(Value::Broadcast(source));
                return Ok(None);
            }
            NodeKind::View(view) => self.view(id, view)?,
            NodeKind::Gather { axes } => self.gather(id, axes)?,
            NodeKind::Scatter { axes, op } => self.scatter(id, axes, *op)?,
            NodeKind::Scan {
                monoid,
                axis,
                exclusive,
                reverse,
            } => self.scan(id, *monoid, *axis, *exclusive, *reverse)?,
            NodeKind::Copy => self.value(node.operands[0])?,
            NodeKind::Loop(l) => {
                let results = self.repeat(id, l)?;
                self.results.insert(id, results);
                return Ok(None);
            }
            NodeKind::Call(function) => {
                let results = self.call(id, function)?;
                self.results.insert(id, results);
                return Ok(None);
            }
            NodeKind::Region(_) => return Err("a region was not put in its place; a bug".into()),
            NodeKind::Project(k) => {
                let results = self.results.get(&node.operands[0]);
                let name = results.and_then(|r| r.get(*k as usize)).cloned();
                name.ok_or_else(|| format!("result {k} was not written; a bug"))?
            }
        }))
    }
}

/// Refuses storage types where an operator does not take them.
fn storage(dtype: DType, op: &str) -> Outcome<()> {
    match dtype.is_storage() {
        true => Err(format!("ONNX's {op} takes no {dtype}")),
        false => Ok(()),
    }
}

fn ints(all: impl IntoIterator<Item = usize>) -> Attribute {
    Attribute::Ints(all.into_iter().map(|i| i as i64).collect())
}
