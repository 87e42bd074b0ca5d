//! The parser of `graph` sections: each statement is read, then added to the graph, which infers its type.
//!
//! Invariants: a name that a broken statement defines is known but has no node, and statements that use it are read (so
//! their own syntax errors show) but not added. A node whose stated type differs from the inferred one counts as broken.

mod attributes;

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;

use super::cursor::{Cursor, Mark, Parsed, Reported};
use super::expr::{scalar, symbol_range, tensor_type};
use super::lexer::{Span, TokenKind, excerpt};
use super::{Resolver, constant, lexer};
use crate::dtype::DType;
use crate::graph::control::unit;
use crate::graph::{
    Along, Axes, ConstData, Derivation, Derived, Graph, HostFunction, Labels, Loop, Monoid, NodeId, NodeKind, Operands,
    Origin, Region, ScatterOp, Semiring, Shape, TensorType, ViewKind,
};
use crate::index::IndexExpr;
use crate::scalar::ScalarOp;

/// Words at which a line begins something new.
const STATEMENT_WORDS: &[&str] = &["return", "graph", "kernel", "plan"];

/// The rules of regions.
const REGIONS: [&str; 3] = ["opaque", "custom", "checkpoint"];

/// A value's name: text, and whether it was a bare number.
type Name = (String, bool);

pub(super) struct GraphParser<'c, 't, 'r, 'f> {
    pub(super) c: &'c mut Cursor<'t>,
    pub(super) resolver: &'r mut Resolver<'f>,
    pub(super) graph: Graph,
    /// Nodes by name; none where the definition is broken. Looked up, never iterated.
    values: HashMap<Name, Option<NodeId>>,
    /// The header could not be read, so unknown values may be inputs.
    inputs_unknown: bool,
    /// Loops and regions around it.
    depth: usize,
}

/// Reads a graph, behind the word `graph`. On failure the cursor may stand anywhere in the section.
pub(crate) fn graph(c: &mut Cursor<'_>, resolver: &mut Resolver<'_>) -> Parsed<Graph> {
    nested(c, resolver, 0)
}

fn nested(c: &mut Cursor<'_>, resolver: &mut Resolver<'_>, depth: usize) -> Parsed<Graph> {
    let mut parser = GraphParser {
        c,
        resolver,
        graph: Graph::default(),
        values: HashMap::new(),
        inputs_unknown: false,
        depth,
    };
    parser.header()?;
    parser.body()?;
    Ok(parser.graph)
}

impl GraphParser<'_, '_, '_, '_> {
    fn header(&mut self) -> Parsed<()> {
        let global = self.c.expect(TokenKind::Global, "graph")?;
        self.graph.name = self.c.sigil_name(global)?.0;
        let open = self.c.expect(TokenKind::LeftParen, "graph")?;
        let inputs = self.c.mark();
        // Symbols first: the types of the inputs depend on their ranges and their order.
        if !self.c.skip_parenthesized() {
            return Err(self
                .c
                .error(open.span(), "unclosed list of inputs; expected `)` before the body"));
        }
        let mut failed = false;
        if self.c.eat_word("where") {
            loop {
                failed |= self.symbol().is_err();
                if failed || !self.c.eat(TokenKind::Comma) {
                    break;
                }
            }
        }
        if failed {
            // An error was reported; the body is still worth reading.
            while !matches!(self.c.kind(), TokenKind::LeftBrace | TokenKind::End) {
                self.c.bump();
            }
        }
        let body = self.c.mark();
        self.c.reset(inputs);
        loop {
            if self.c.eat(TokenKind::RightParen) {
                break;
            }
            let read = self.input();
            let closed = self.c.kind() == TokenKind::RightParen;
            if read.is_err() || (!self.c.eat(TokenKind::Comma) && !closed) {
                if read.is_ok() {
                    self.c.unexpected("list of inputs", "`,` or `)`");
                }
                self.inputs_unknown = true;
                break;
            }
        }
        self.c.reset(body);
        self.c.expect(TokenKind::LeftBrace, "graph").map(|_| ())
    }

    fn symbol(&mut self) -> Parsed<()> {
        let start = self.c.mark();
        let symbol = symbol_range(self.c, &mut self.graph)?;
        if self.graph.find_symbol(&symbol.name).is_some() {
            self.c.declared_twice(start, &symbol.name);
            return Ok(());
        }
        match symbol.upper {
            Some(upper) => self.graph.add_data_symbol(&symbol.name, upper),
            None => self.graph.add_symbol(&symbol.name, symbol.lo, symbol.hi),
        };
        Ok(())
    }

    fn input(&mut self) -> Parsed<()> {
        let start = self.c.mark();
        let token = self.c.expect(TokenKind::Value, "input")?;
        let (name, numeric) = self.c.sigil_name(token)?;
        if numeric {
            let message = format!(
                "a number as an input's name; expected a name, or `%\"{}\"`",
                excerpt(&name)
            );
            self.c.error(token.span(), message);
        }
        self.c.expect(TokenKind::Colon, "input")?;
        let ty = tensor_type(self.c, &mut self.graph)?;
        let position = self.c.position(token.span().start);
        let origin = Origin::Text {
            line: position.line,
            column: position.column,
        };
        let added = self.graph.add_input(&name, ty, origin);
        let span = self.c.span_since(start);
        let id = match added {
            Ok(id) => Some(id),
            Err(error) => {
                self.c.error(span, error.to_string());
                None
            }
        };
        self.values.entry((name, numeric)).or_insert(id);
        Ok(())
    }

    /// Statements up to the closing brace.
    fn body(&mut self) -> Parsed<()> {
        let mut returned = false;
        while !self.c.gave_up() {
            self.c.anchor();
            if self.c.kind() == TokenKind::RightBrace {
                let brace = self.c.bump().span();
                if !returned {
                    self.c
                        .error(brace, "graph without outputs; expected `return` before `}`");
                }
                return Ok(());
            }
            if self.c.kind() == TokenKind::End {
                return Err(self.c.unexpected("graph", "`}`"));
            }
            let word_ahead = self.c.kind() == TokenKind::Word && self.c.token().line_start;
            if word_ahead && ["graph", "kernel", "plan"].iter().any(|w| self.c.at_word(w)) {
                return Err(self.c.unexpected("graph", "`}`"));
            }
            let start = self.c.mark();
            let read = if self.c.eat_word("return") {
                if returned {
                    let span = self.c.span_since(start);
                    self.c.error(span, "second return; expected `}`");
                }
                returned = true;
                self.outputs()
            } else if returned {
                Err(self.c.unexpected("graph", "`}` behind the outputs"))
            } else {
                self.statement()
            };
            if read.is_err() {
                self.c.recover_statement(start, STATEMENT_WORDS);
            }
        }
        Err(Reported)
    }

    fn outputs(&mut self) -> Parsed<()> {
        if self.c.kind() == TokenKind::RightBrace {
            return Ok(());
        }
        let mut names = std::collections::HashSet::new();
        loop {
            let start = self.c.mark();
            let value = self.value("output")?;
            let mut name = format!("output_{}", names.len());
            if self.c.eat_word("as") {
                name = self.c.word_or_string("output")?;
            }
            let span = self.c.span_since(start);
            if value.is_some_and(|v| self.graph.node(v).kind.is_tuple()) {
                let message = "an output of several results; expected a projection of it";
                self.c.error(span, message);
            }
            if name.is_empty() {
                self.c.error(span, "an output's name is empty; expected a name");
            }
            if !names.insert(name.clone()) {
                let message = format!("output name `{}` used twice; expected another name", excerpt(&name));
                self.c.error(span, message);
            }
            if let Some(node) = value {
                self.graph.add_output(&name, node);
            }
            if !self.c.eat(TokenKind::Comma) {
                return Ok(());
            }
        }
    }

    /// The node that a value names; none if its definition is broken.
    fn value(&mut self, context: &str) -> Parsed<Option<NodeId>> {
        if self.c.next_kind() == TokenKind::Equals {
            // The next statement: an operand is missing.
            return Err(self.c.unexpected(context, TokenKind::Value.describe()));
        }
        let token = self.c.expect(TokenKind::Value, context)?;
        let key = self.c.sigil_name(token)?;
        match self.values.get(&key) {
            Some(id) => Ok(*id),
            None => {
                if !self.inputs_unknown {
                    let found = excerpt(self.c.source(token));
                    let message = format!("unknown value; expected one that is defined above, found `{found}`");
                    self.c.error(token.span(), message);
                }
                self.values.insert(key, None);
                Ok(None)
            }
        }
    }

    /// `%x = operation : type`.
    fn statement(&mut self) -> Parsed<()> {
        let token = self.c.expect(TokenKind::Value, "statement")?;
        let key = self.c.sigil_name(token)?;
        let node = self.definition(token);
        // A failed statement still defines its name.
        let known = node.as_ref().map_or(None, |n| *n);
        if self
            .values
            .insert(key, known)
            .is_some_and(|previous| previous.is_some())
        {
            let found = excerpt(self.c.source(token));
            let message = format!("value defined twice; expected a new name, found `{found}`");
            self.c.error(token.span(), message);
        }
        node.map(|_| ())
    }

    fn definition(&mut self, target: lexer::Token) -> Parsed<Option<NodeId>> {
        self.c.expect(TokenKind::Equals, "statement")?;
        let start = self.c.mark();
        let word = self.c.expect(TokenKind::Word, "statement")?;
        let op = self.c.source(word);
        let mut draft = self.operation(op, word)?;
        let operation = self.c.span_since(start);
        self.c.expect(TokenKind::Colon, "statement")?;
        let annotation = self.c.mark();
        let (ty, results) = match &draft.form {
            Full::Call(_) | Full::Loop(_) | Full::Region(_) => (unit(), self.results()?),
            _ => (tensor_type(self.c, &mut self.graph)?, Vec::new()),
        };
        let annotation_span = self.c.span_since(annotation);
        let named = match self.c.eat_word("from") {
            true => Some(self.origin()?),
            false => None,
        };
        if let Full::Loop(None) | Full::Region(None) = draft.form {
            // Its body is broken.
            return Ok(None);
        }
        let Some(operands) = draft.operands.take() else {
            return Ok(None);
        };
        let outside = match &draft.form {
            Full::Opaque(_, name) => Some(Origin::Weights(name.as_str().into())),
            _ => None,
        };
        let kind = self.kind(draft.form, &operands, &ty)?;
        let position = self.c.position(target.span().start);
        let origin = outside.or(named).unwrap_or(Origin::Text {
            line: position.line,
            column: position.column,
        });
        let name = self.c.source(target).to_string();
        let id = self
            .graph
            .add(kind, &operands, origin.named(|| name))
            .map_err(|error| self.c.error(operation, error.to_string()))?;
        let node = self.graph.node(id);
        if node.ty != ty || node.results[..] != results[..] {
            let found = match node.kind.is_tuple() {
                true => {
                    let all: Vec<String> = results.iter().map(|t| self.graph.type_text(t)).collect();
                    format!("({})", all.join(", "))
                }
                false => self.graph.type_text(&ty),
            };
            let expected = self.graph.results_text(node);
            let message = format!("{op} has another type; expected {expected}, found {found}");
            self.c.error(annotation_span, message);
            return Ok(None);
        }
        Ok(Some(id))
    }

    /// `(f32[4], i64[])`.
    fn results(&mut self) -> Parsed<Vec<TensorType>> {
        self.c.expect(TokenKind::LeftParen, "results")?;
        let graph = &mut self.graph;
        self.c.list(TokenKind::RightParen, "results", |c| tensor_type(c, graph))
    }

    /// Reads what stands between `=` and `:`.
    fn operation(&mut self, op: &str, word: lexer::Token) -> Parsed<Draft> {
        let form = match op {
            "const" => {
                let form = self.constant()?;
                return Ok(Draft {
                    form,
                    operands: Some(Operands::new()),
                });
            }
            "reduce" | "scan" => {
                let monoid = self.modifier(op, Monoid::from_name, &Monoid::ALL.map(Monoid::name))?;
                if op == "reduce" {
                    Form::Reduce(monoid)
                } else {
                    Form::Scan(monoid)
                }
            }
            "scatter" => {
                let from_name = |name: &str| ScatterOp::ALL.into_iter().find(|s| s.name() == name);
                Form::Scatter(self.modifier(op, from_name, &ScatterOp::ALL.map(ScatterOp::name))?)
            }
            "iota" => Form::Iota,
            "random" => Form::Random,
            "convert" => Form::Convert,
            "bitcast" => Form::Bitcast,
            "einsum" => Form::Einsum,
            "gather" => Form::Gather,
            "copy" => Form::Copy,
            "project" => Form::Project,
            "call" => {
                let names = ["sort", "nonzero", "unique", "suppress"];
                let from_name = |name: &str| names.iter().find(|n| **n == name).copied();
                Form::Call(self.modifier(op, from_name, &names)?)
            }
            "loop" => Form::Loop,
            "region" => {
                let from_name = |name: &str| REGIONS.into_iter().find(|n| *n == name);
                Form::Region(self.modifier(op, from_name, &REGIONS)?)
            }
            _ => match (ScalarOp::from_name(op), ViewKind::from_name(op)) {
                (Some(op), _) => Form::Map(op),
                (_, Some(view)) => Form::View(view),
                (None, None) => {
                    let message = format!("unknown operation; expected an operation, found `{}`", excerpt(op));
                    return Err(self.c.error(word.span(), message));
                }
            },
        };
        let mut operands = Some(Operands::new());
        if self.c.kind() == TokenKind::Value {
            loop {
                match (self.value("operand")?, &mut operands) {
                    (Some(id), Some(all)) => all.push(id),
                    _ => operands = None,
                }
                if !self.c.eat(TokenKind::Comma) {
                    break;
                }
            }
        }
        let form = self.attributes(op, form)?;
        Ok(Draft { form, operands })
    }

    /// Where a node came from, behind the word `from`: a name, or rewrites of operations.
    fn origin(&mut self) -> Parsed<Origin> {
        const CONTEXT: &str = "statement";
        if self.c.kind() == TokenKind::String && !self.c.word_follows("of") {
            return Ok(Origin::Named(self.c.string(CONTEXT)?.into()));
        }
        let mut steps = Vec::new();
        loop {
            if !self.c.word_follows("of") {
                return Err(self
                    .c
                    .unexpected(CONTEXT, "a name in quotes, or a rewrite `of` an operation"));
            }
            let rewrite = self.c.word_or_string(CONTEXT)?.into();
            self.c.bump();
            let operation = self.c.word_or_string(CONTEXT)?.into();
            steps.push(Derived { rewrite, operation });
            if !self.c.eat_word("in") {
                break;
            }
        }
        let recorded = match self.c.kind() {
            TokenKind::String => Origin::Named(self.c.string(CONTEXT)?.into()),
            _ => Origin::Unknown,
        };
        Ok(Origin::Derived(Arc::new(Derivation { steps, recorded })))
    }

    fn modifier<T>(&mut self, op: &str, from_name: impl Fn(&str) -> Option<T>, names: &[&str]) -> Parsed<T> {
        let token = self.c.token();
        let found = (token.kind == TokenKind::Word)
            .then(|| from_name(self.c.source(token)))
            .flatten();
        match found {
            Some(found) => {
                self.c.bump();
                Ok(found)
            }
            None => Err(self.c.unexpected(op, &format!("one of {}", names.join(", ")))),
        }
    }

    /// The node kind, now that operands and type are known.
    fn kind(&mut self, form: Full, operands: &[NodeId], ty: &TensorType) -> Parsed<NodeKind> {
        let behind = self.c.mark();
        let (form, a) = match form {
            Full::With(form, a) => (form, *a),
            Full::Const(literal) => {
                if ty.rank() != 0 {
                    let span = self.c.span_since(literal);
                    let found = self.graph.type_text(ty);
                    let message = format!(
                        "a literal is one element; expected {}[] or a list, found {found}",
                        ty.dtype
                    );
                    return Err(self.c.error(span, message));
                }
                self.c.reset(literal);
                let value = scalar(self.c, ty.dtype)?;
                self.c.reset(behind);
                return Ok(NodeKind::Const(value));
            }
            Full::List(literal) => {
                self.c.reset(literal);
                let data = constant::list(self.c, ty, &self.graph.type_text(ty))?;
                self.c.reset(behind);
                return Ok(NodeKind::Data(ConstData(data)));
            }
            Full::Opaque(start, name) => {
                let text = self.graph.type_text(ty);
                let data = constant::opaque(self.c, self.resolver, start, &name, ty, &text)?;
                return Ok(NodeKind::Data(ConstData(data)));
            }
            Full::Call(function) => return Ok(NodeKind::Call(function)),
            Full::Loop(Some(l)) => return Ok(NodeKind::Loop(Arc::new(*l))),
            Full::Region(Some(r)) => return Ok(NodeKind::Region(Arc::new(*r))),
            Full::Loop(None) | Full::Region(None) => unreachable!("a broken body is no kind"),
            Full::Einsum(spec) => {
                if operands.len() != spec.inputs.len() {
                    let (expected, found) = (operands.len(), spec.inputs.len());
                    let message = format!("labels of {found} operands; expected one term per operand, {expected}");
                    return Err(self.c.error(spec.span, message));
                }
                return Ok(NodeKind::Einsum {
                    inputs: spec.inputs,
                    output: spec.output,
                    semiring: spec.semiring,
                    accumulator: spec.accumulator.unwrap_or(ty.dtype.accumulator()),
                    dtype: ty.dtype,
                });
            }
        };
        Ok(match form {
            Form::Iota => NodeKind::Iota {
                ty: ty.clone(),
                axis: a.axis,
            },
            Form::Random => NodeKind::Random {
                shape: ty.shape.clone(),
                stream: a.stream,
            },
            Form::Map(op) => NodeKind::Map(op),
            Form::Convert => NodeKind::Convert(ty.dtype),
            Form::Bitcast => NodeKind::Bitcast(ty.dtype),
            Form::Einsum | Form::Call(_) | Form::Loop | Form::Region(_) => unreachable!("it has its own braces"),
            Form::Project => NodeKind::Project(a.result),
            Form::Reduce(monoid) => NodeKind::Reduce { monoid, axes: a.axes },
            Form::View(view) => NodeKind::View(self.view(view, a, operands, ty)?),
            Form::Gather => NodeKind::Gather { axes: a.axes },
            Form::Scatter(op) => NodeKind::Scatter { axes: a.axes, op },
            Form::Scan(monoid) => NodeKind::Scan {
                monoid,
                axis: a.axis,
                exclusive: a.exclusive,
                reverse: a.reverse,
            },
            Form::Copy => NodeKind::Copy,
        })
    }
}

/// The operations, with what stands between the mnemonic and the operands.
pub(super) enum Form {
    Iota,
    Random,
    Map(ScalarOp),
    Convert,
    Bitcast,
    Einsum,
    Reduce(Monoid),
    View(ViewKind),
    Gather,
    Scatter(ScatterOp),
    Scan(Monoid),
    Copy,
    Project,
    Call(&'static str),
    Loop,
    Region(&'static str),
}

/// An operation with its attributes, before operands' types and the result type are looked at.
pub(super) enum Full {
    Const(Mark),
    List(Mark),
    Opaque(Mark, String),
    Einsum(Box<EinsumSpec>),
    Call(HostFunction),
    /// None if the body is broken.
    Loop(Option<Box<Loop>>),
    /// None if a body is broken.
    Region(Option<Box<Region>>),
    With(Form, Box<Attributes>),
}

pub(super) struct EinsumSpec {
    inputs: SmallVec<[Labels; 2]>,
    output: Labels,
    semiring: Semiring,
    accumulator: Option<DType>,
    span: Span,
}

/// What an operation's braces say; each operation uses a few.
#[derive(Default)]
pub(super) struct Attributes {
    pub(super) axis: u8,
    pub(super) axes: Axes,
    stream: u32,
    /// `lo` of a pad, `start` of a slice.
    pub(super) lo: Box<[IndexExpr]>,
    pub(super) hi: Box<[IndexExpr]>,
    pub(super) step: Option<Box<[i64]>>,
    pub(super) interior: Option<Box<[i64]>>,
    /// `size` of a window, `count` of a sort, `trip` of a loop.
    pub(super) size: Option<IndexExpr>,
    pub(super) stride: Option<i64>,
    pub(super) dilation: Option<i64>,
    pub(super) value: Option<Mark>,
    exclusive: bool,
    reverse: bool,
    result: u32,
    carried: usize,
    counted: bool,
    conditional: bool,
    descending: bool,
    sorted: bool,
    center: bool,
    slices: SmallVec<[Along; 2]>,
    stacks: SmallVec<[Along; 2]>,
    symbols: Shape,
}

/// A statement's right-hand side; no operands if one of them is broken.
struct Draft {
    form: Full,
    operands: Option<Operands>,
}
