//! From a model's messages to a recorded graph: names, scopes, functions and subgraphs.
//!
//! Invariants: a value is defined once in its scope and before its use; the recording of a node stops at its first error;
//! functions and subgraphs nest boundedly, and so does the number of nodes that inlining makes.

use rustc_hash::{FxHashMap, FxHashSet};
use tlc_formats::ErrorKind;
use tlc_formats::onnx::{self, Dimension, Function, Model, Node};
use tlc_ir::DType;
use tlc_ir::graph::Origin;
use tlc_ir::tensor::BytesOwner;
use tlc_runtime::mmap::read_sparsely;

use super::assumptions::Assumptions;
use super::call::Call;
use super::external::Files;
use super::operators::microsoft;
use super::order::ordered;
use super::refusal::{OperatorRefusal, Outcome, invalid, limit, shown, unsupported};
use super::scope::{Importer, Opsets, Scope};
use super::signature::Signature;
use super::value::Value;
use super::{ImportError, ImportOptions, Imported, MAX_OPSET, MIN_OPSET, operators, sizes};
use tlc_record::Graph;
use tlc_record::dim::Dim;
use tlc_record::ops::repeat::Iteration;
use tlc_record::streams::named_scope;

/// Functions and subgraphs nest at most this deep.
const MAX_DEPTH: usize = 48;
/// The most nodes that a model may have once its functions are inlined.
const MAX_NODES: usize = 500_000;

/// The most elements that a result may have. Larger ones need not be in memory to be computed with, but nothing that people
/// export has them, and a few nodes could ask for years of work.
const MAX_ELEMENTS: i64 = 1 << 34;
/// The most parts of a result's extent: where each depends on two of those before it, they double with each node.
const MAX_EXTENT: u32 = 512;

/// An error at a place.
struct At {
    place: String,
    refusal: OperatorRefusal,
}

impl From<OperatorRefusal> for At {
    fn from(refusal: OperatorRefusal) -> At {
        At {
            place: String::new(),
            refusal,
        }
    }
}

fn at(place: String) -> impl FnOnce(OperatorRefusal) -> At {
    |refusal| At { place, refusal }
}

/// Names come from the file and may hold anything; a message is one line.
fn one_line(text: String) -> String {
    if !text.contains(char::is_control) {
        return text;
    }
    let plain = |c: char| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    text.chars().map(plain).collect()
}

/// The name of a node, or of its first result.
fn node_name(node: Node<'_>) -> String {
    let name = match node.name() {
        "" => node.outputs().find(|o| !o.is_empty()).unwrap_or_default(),
        name => name,
    };
    one_line(shown(name))
}

fn node_place(node: Node<'_>) -> String {
    let domain = match node.domain() {
        "" | "ai.onnx" => String::new(),
        domain => format!("{}.", shown(domain)),
    };
    format!("node '{}' ({domain}{}): ", node_name(node), shown(node.op_type()))
}

/// See [`super::import`]; `owner` keeps `bytes`, if constants may share them.
pub(super) fn import(
    bytes: &[u8],
    owner: Option<BytesOwner>,
    options: &ImportOptions<'_>,
) -> Result<Imported, ImportError> {
    let whole = |e: onnx::OnnxError| ImportError {
        kind: e.kind(),
        place: String::new(),
        message: e.to_string(),
    };
    // What is text in a model lies between its weights, which nothing reads before the first call.
    let _sparse = read_sparsely(bytes);
    let model = Model::parse(bytes).map_err(whole)?;
    let mut assumptions = Assumptions::default();
    let mut refused = None;
    loop {
        match attempt(model, owner.clone(), options, assumptions) {
            Ok(imported) => return Ok(imported),
            Err(attempt) => {
                // The first says best what the model lacks.
                let first = refused.get_or_insert(attempt.error);
                match attempt.assumptions.next_attempt(attempt.nodes) {
                    Some(next) => assumptions = next,
                    None => return Err(first.clone()),
                }
            }
        }
    }
}

/// An import that was refused: why, what it assumed, and how many nodes were imported.
struct Refused {
    error: ImportError,
    assumptions: Assumptions,
    nodes: usize,
}

/// Imports a model under assumptions.
fn attempt(
    model: Model<'_>,
    owner: Option<BytesOwner>,
    options: &ImportOptions<'_>,
    assumptions: Assumptions,
) -> Result<Imported, Box<Refused>> {
    let name = model.graph().map_or("", |g| g.name());
    let name = if name.is_empty() { "main".into() } else { shown(name) };
    let mut importer = Importer {
        graph: Graph::new(name),
        options,
        files: Files::new(owner, options.folder),
        functions: FxHashMap::default(),
        scopes: vec![],
        loops: vec![],
        fixed: vec![],
        symbols: FxHashMap::default(),
        symbol_texts: FxHashMap::default(),
        short_extents: FxHashMap::default(),
        assumptions,
        nodes: 0,
        iterations: 1,
    };
    let result = importer.model(model).map_err(|e| ImportError {
        kind: e.refusal.kind,
        place: one_line(e.place),
        message: one_line(e.refusal.message),
    });
    let result = result.and_then(|()| {
        importer.graph.finish().map_err(|e| ImportError {
            kind: ErrorKind::Invalid,
            place: String::new(),
            message: one_line(e.iter().map(ToString::to_string).next().unwrap_or_default()),
        })
    });
    let graph = result.map_err(|error| Refused {
        error,
        assumptions: importer.assumptions,
        nodes: importer.nodes,
    })?;
    Ok(Imported {
        graph,
        fixed: importer.fixed,
    })
}

fn opsets<'a>(sets: impl Iterator<Item = onnx::OperatorSet<'a>>) -> Outcome<Opsets<'a>> {
    let mut all = Opsets::default();
    for set in sets {
        let (domain, version) = (set.domain(), set.version().unwrap_or(0));
        let domain = if domain == "ai.onnx" { "" } else { domain };
        if domain.is_empty() && !(MIN_OPSET..=MAX_OPSET).contains(&version) {
            return unsupported(format!(
                "opset {version} is not supported; expected {MIN_OPSET} to {MAX_OPSET}"
            ));
        }
        if all.insert(domain, version).is_some_and(|before| before != version) {
            return invalid(format!(
                "two versions of the operator set `{}`; expected one",
                shown(domain)
            ));
        }
    }
    Ok(all)
}

/// Whether a result has the element type that the model declares it to have, if it does. A declared shape is a hint, here as in
/// ONNX Runtime: exporters write extents that hold for the example alone which they were given.
fn declared(output: onnx::ValueInfo<'_>, found: DType) -> Outcome<()> {
    let Some(ty) = output.ty() else { return Ok(()) };
    let Some(tensor) = ty.tensor() else {
        return invalid(format!(
            "it is a tensor of {found}; expected what the model declares, which is no tensor"
        ));
    };
    match tensor.element() {
        0 => Ok(()),
        element => match onnx::dtype(element)? {
            expected if expected == found => Ok(()),
            expected => invalid(format!("it is {found}; expected {expected}, as the model declares")),
        },
    }
}

impl<'o, 'a> Importer<'o, 'a> {
    fn model(&mut self, model: Model<'a>) -> Result<(), At> {
        for function in model.functions() {
            let key = (function.domain(), function.name(), function.overload());
            if self.functions.insert(key, function).is_some() {
                let text = format!(
                    "function `{}` is defined twice; expected it once",
                    shown(function.name())
                );
                return Err(invalid::<()>(text).unwrap_err().into());
            }
        }
        let scope = Scope {
            opsets: opsets(model.operator_sets())?.into(),
            ..Scope::default()
        };
        self.scopes.push(scope);
        let Some(graph) = model.graph() else {
            return Err(invalid::<()>("the model has no graph; expected one")
                .unwrap_err()
                .into());
        };
        self.initializers(graph)?;
        let mut seen = FxHashSet::default();
        for input in graph.inputs() {
            let name = input.name();
            if !seen.insert(name) {
                let text = format!("the graph has two inputs '{}'; expected distinct names", shown(name));
                return Err(invalid::<()>(text).unwrap_err().into());
            }
            if self.scopes[0].values.contains_key(name) {
                // An input that has a default is a constant: before version 4 of the format every constant was listed.
                continue;
            }
            let place = || format!("input '{}': ", shown(name));
            let value = self.input(input).map_err(at(place()))?;
            self.scopes[0].values.insert(name, value);
        }
        self.nodes(graph.nodes())?;
        if graph.outputs().next().is_none() {
            return Err(invalid::<()>("the graph has no outputs; expected at least one")
                .unwrap_err()
                .into());
        }
        for output in graph.outputs() {
            let name = output.name();
            let place = || format!("output '{}': ", shown(name));
            let tensor = self
                .lookup(name)
                .and_then(|v| v.tensor(&self.graph))
                .map_err(at(place()))?;
            declared(output, tensor.dtype()).map_err(at(place()))?;
            self.graph.output(name, &tensor);
            self.recorded().map_err(at(place()))?;
        }
        Ok(())
    }

    fn initializers(&mut self, graph: onnx::Graph<'a>) -> Result<(), At> {
        if let Some(sparse) = graph.sparse_initializers().next() {
            let name = sparse.values().map_or("", |v| v.name());
            let refusal = unsupported::<()>("sparse tensors are not supported; expected a dense one").unwrap_err();
            return Err(at(format!("initializer '{}': ", shown(name)))(refusal));
        }
        let all = self.files.hosts(graph.initializers());
        for (tensor, data) in graph.initializers().zip(all) {
            let place = || format!("initializer '{}': ", shown(tensor.name()));
            if tensor.name().is_empty() {
                return Err(at(place())(invalid::<()>("no name; expected one").unwrap_err()));
            }
            let data = data.map_err(at(place()))?;
            let name = shown(tensor.name()).into();
            let origin = match data.len() <= tlc_record::tlir::INLINE_ELEMENTS {
                true => Origin::Named(name),
                false => Origin::Weights(name),
            };
            let before = self.graph.set_within(Some(origin));
            let value = Value::constant(&self.graph, data);
            self.graph.set_within(before);
            self.define(tensor.name(), value).map_err(at(place()))?;
        }
        Ok(())
    }

    fn input(&mut self, input: onnx::ValueInfo<'a>) -> Outcome<Value> {
        let name = input.name();
        let Some(ty) = input.ty().and_then(|t| t.tensor()) else {
            return unsupported("sequences, maps and optionals are not supported; expected a tensor");
        };
        let dtype = onnx::dtype(ty.element())?;
        let Some(declared) = ty.shape() else {
            return unsupported("a tensor of unknown rank is not supported; expected a shape");
        };
        if declared.clone().count() > tlc_ir::graph::MAX_RANK {
            return invalid(format!(
                "a tensor of rank {}; expected at most {}",
                declared.count(),
                tlc_ir::graph::MAX_RANK
            ));
        }
        let mut shape: Vec<Dim> = vec![];
        for (axis, d) in declared.enumerate() {
            shape.push(match d {
                Dimension::Value(n) if n < -1 => {
                    return invalid(format!(
                        "an extent of {n}; expected 0 or more, or -1 for one that is not known"
                    ));
                }
                // Exporters write -1 for an extent that is not known, and `?` for every one.
                Dimension::Value(-1) | Dimension::Unknown | Dimension::Named("?") => {
                    // No dimension's name begins so.
                    self.symbol(&format!("\0{name}_{axis}"))
                }
                Dimension::Value(n) => n.into(),
                Dimension::Named(symbol) => self.symbol(symbol),
            });
        }
        let tensor = self.graph.input(name, dtype, shape);
        self.recorded()?;
        Ok(tensor.into())
    }

    /// Records a subgraph as the body of a loop; `values` are its inputs. Returns its outputs.
    pub(super) fn iteration(
        &mut self,
        graph: onnx::Graph<'a>,
        iteration: Iteration,
        values: Vec<(&'a str, Value)>,
    ) -> Outcome<(Iteration, Vec<Value>)> {
        self.deeper()?;
        let around = self.enter(iteration);
        let result = self.results(graph, values);
        let iteration = self.leave(around);
        let values = result.map_err(|e| OperatorRefusal {
            kind: e.refusal.kind,
            message: format!("{}{}", e.place, e.refusal.message),
        })?;
        Ok((iteration, values))
    }

    /// Records a subgraph in the scope that was made for it; `values` are those of its inputs.
    fn results(&mut self, graph: onnx::Graph<'a>, values: Vec<(&'a str, Value)>) -> Result<Vec<Value>, At> {
        for (name, value) in values {
            self.define(name, value)?;
        }
        self.initializers(graph)?;
        self.nodes(graph.nodes())?;
        let values: Outcome<Vec<Value>> = graph.outputs().map(|o| self.lookup(o.name())).collect();
        Ok(values?)
    }

    fn nodes(&mut self, nodes: impl Iterator<Item = Node<'a>>) -> Result<(), At> {
        for node in ordered(nodes) {
            self.node(node)?;
        }
        Ok(())
    }

    fn node(&mut self, node: Node<'a>) -> Result<(), At> {
        let place = || node_place(node);
        let here = || at(place());
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            let text = format!("more than {MAX_NODES} nodes once functions are inlined; expected fewer");
            return Err(here()(unsupported::<()>(text).unwrap_err()));
        }
        let mut inputs = vec![];
        for name in node.inputs() {
            inputs.push(match name {
                "" => None,
                name if self.is_absent(name) => None,
                name => Some(self.lookup(name).map_err(here())?),
            });
        }
        let values = named_scope(&node_name(node), || self.apply(node, inputs))?;
        let wanted: Vec<&'a str> = node.outputs().collect();
        if wanted.iter().skip(values.len()).any(|n| !n.is_empty()) {
            let text = format!("{} results; expected at most {}", wanted.len(), values.len());
            return Err(here()(invalid::<()>(text).unwrap_err()));
        }
        for (name, value) in wanted.into_iter().zip(values).filter(|(n, _)| !n.is_empty()) {
            self.define(name, value).map_err(here())?;
        }
        Ok(())
    }

    fn apply(&mut self, node: Node<'a>, inputs: Vec<Option<Value>>) -> Result<Vec<Value>, At> {
        let here = || at(node_place(node));
        if node.op_type().is_empty() {
            let text = "a node without an op_type; expected the name of an operator";
            return Err(here()(invalid::<()>(text).unwrap_err()));
        }
        let domain = match node.domain() {
            "ai.onnx" => "",
            domain => domain,
        };
        let key = (node.domain(), node.op_type(), node.overload());
        if let Some(&function) = self.functions.get(&key) {
            return self.function(node, function, inputs);
        }
        let opsets = self.scopes.last().map(|s| s.opsets.clone()).unwrap_or_default();
        let Some(&version) = opsets.get(domain) else {
            let text = format!(
                "the operator set `{}` is not imported by the model; expected it among opset_import",
                shown(domain)
            );
            return Err(here()(invalid::<()>(text).unwrap_err()));
        };
        if !["", microsoft::DOMAIN].contains(&domain) {
            let text = format!(
                "operators of the domain `{}` are not supported; expected ONNX's own, `com.microsoft`, or a function of the model",
                shown(domain)
            );
            return Err(here()(unsupported::<()>(text).unwrap_err()));
        }
        // The norm that opset 23 has as RMSNormalization is in ONNX's own domain too where ONNX Runtime's tools write it.
        let own = domain.is_empty() && node.op_type() != "SimplifiedLayerNormalization";
        let (signature, operator) = match own {
            true => {
                let operator = operators::table::find(node.op_type(), version).map_err(here())?;
                (Signature::find(node.op_type(), version), operator)
            }
            false => {
                let (signature, operator) = microsoft::find(node.op_type()).map_err(here())?;
                (Some(signature), operator)
            }
        };
        let sequences = inputs.iter().flatten().any(|v| v.sequence().is_some());
        if sequences && !operators::sequences::TAKERS.contains(&node.op_type()) {
            return Err(here()(
                unsupported::<()>("a sequence as an operand; expected tensors").unwrap_err(),
            ));
        }
        if let Some(signature) = signature {
            signature.check(node, |a| self.resolved(a)).map_err(here())?;
            signature.check_types(&inputs).map_err(here())?;
        }
        let mut call = Call {
            importer: self,
            node,
            version,
            inputs,
            outputs: node.outputs().count(),
        };
        let graph = call.importer.graph.clone();
        let outer = graph.set_within(Some(Origin::Named(node_name(node).into())));
        let values = match sizes::carried(&mut call) {
            Ok(Some(value)) => Ok(vec![value]),
            Ok(None) => operator(&mut call),
            Err(refusal) => Err(refusal),
        };
        graph.set_within(outer);
        // What the recording refused first is the reason of what failed for it later.
        let mut values = values.map_err(|e| here()(self.recorded().err().unwrap_or(e)))?;
        self.recorded().map_err(here())?;
        for value in &mut values {
            let Value::Tensor(tensor, _) = value else { continue };
            *tensor = self.with_short_extents(tensor);
            if let Some(n) = tensor.elements().as_const().filter(|&n| n > MAX_ELEMENTS) {
                let text = format!("a result of {n} elements; expected at most {MAX_ELEMENTS}");
                return Err(here()(limit::<()>(text).unwrap_err()));
            }
            if let Some(axis) = tensor.shape().iter().position(|d| d.expr().size() > MAX_EXTENT) {
                let text = format!(
                    "the extent of axis {axis} is an expression of more than {MAX_EXTENT} parts; expected fewer"
                );
                return Err(here()(unsupported::<()>(text).unwrap_err()));
            }
        }
        Ok(values)
    }

    fn function(
        &mut self,
        node: Node<'a>,
        function: Function<'a>,
        inputs: Vec<Option<Value>>,
    ) -> Result<Vec<Value>, At> {
        let here = || at(node_place(node));
        self.deeper().map_err(here())?;
        let mut scope = Scope {
            opsets: opsets(function.operator_sets()).map_err(here())?.into(),
            ..Scope::default()
        };
        let formals = function.inputs().count();
        if inputs.len() > formals {
            let text = format!("{} operands; expected at most {formals}", inputs.len());
            return Err(here()(invalid::<()>(text).unwrap_err()));
        }
        let mut names = FxHashSet::default();
        if let Some(twice) = function.inputs().find(|n| !names.insert(*n)) {
            let text = format!(
                "a function with two operands '{}'; expected distinct names",
                shown(twice)
            );
            return Err(here()(invalid::<()>(text).unwrap_err()));
        }
        for (name, value) in function.inputs().zip(inputs) {
            if let Some(value) = value {
                scope.values.insert(name, value);
            }
        }
        scope.formals.extend(function.attributes());
        for default in function.defaults() {
            scope.formals.insert(default.name());
            scope.attributes.insert(default.name(), default);
        }
        let mut seen = FxHashSet::default();
        for attribute in node.attributes() {
            let name = attribute.name();
            let wrong = match () {
                () if !scope.formals.contains(name) => "that the function does not have",
                () if !seen.insert(name) => "given twice",
                () => {
                    if let Some(given) = self.resolved(attribute).map_err(here())? {
                        scope.attributes.insert(name, given);
                    }
                    continue;
                }
            };
            let text = format!(
                "an attribute `{}` {wrong}; expected each of its own at most once",
                shown(name)
            );
            return Err(here()(invalid::<()>(text).unwrap_err()));
        }
        let given = |n: &&str| scope.values.contains_key(n);
        scope.absent = function.inputs().filter(|n| !given(n)).collect();
        self.scopes.push(scope);
        let result = self.body(function);
        self.scopes.pop();
        result
    }

    fn body(&mut self, function: Function<'a>) -> Result<Vec<Value>, At> {
        for node in ordered(function.nodes()) {
            self.node(node)?;
        }
        let values = function.outputs().map(|name| self.lookup(name));
        let values: Outcome<Vec<Value>> = values.collect();
        values.map_err(at(format!("function '{}': ", shown(function.name()))))
    }

    fn deeper(&self) -> Outcome<()> {
        match self.scopes.len() > MAX_DEPTH {
            true => invalid(format!(
                "functions and subgraphs nested more than {MAX_DEPTH} deep; expected no recursion"
            )),
            false => Ok(()),
        }
    }

    /// The results of a subgraph without inputs, which sees the names around it.
    pub(super) fn branch(&mut self, graph: onnx::Graph<'a>) -> Outcome<Vec<Value>> {
        self.branch_with(graph, vec![])
    }

    /// The results of a subgraph with these inputs, recorded where its node stands.
    pub(super) fn branch_with(&mut self, graph: onnx::Graph<'a>, values: Vec<(&'a str, Value)>) -> Outcome<Vec<Value>> {
        self.deeper()?;
        let opsets = self.scopes.last().map(|s| s.opsets.clone()).unwrap_or_default();
        self.scopes.push(Scope {
            opsets,
            open: true,
            ..Scope::default()
        });
        let result = self.results(graph, values);
        self.scopes.pop();
        result.map_err(|e| OperatorRefusal {
            kind: e.refusal.kind,
            message: format!("{}{}", e.place, e.refusal.message),
        })
    }
}
