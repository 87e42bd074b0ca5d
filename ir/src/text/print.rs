//! The canonical printer.
//!
//! Invariants: inputs print by name in the header, every other node as `%n` with its position among them, in order. It
//! prints any graph, also one that does not verify: an operand that does not exist prints as `%missing.<id>`.

use std::collections::HashMap;
use std::fmt::{self, Write as _};

use super::lexer::{quote, sigil_name, word_name};
use super::{Module, Section};
use crate::dtype::DType;
use crate::graph::{
    Along, DEFAULT_SYMBOL_MAX, Derivation, Graph, HostFunction, Labels, Loop, Node, NodeId, NodeKind, Origin, Semiring,
    TensorType,
};
use crate::index::IndexExpr;
use crate::plan::Plan;
use crate::tensor::HostTensor;

/// Lists of more levels print flat.
const MAX_NESTING: usize = 8;

/// A header longer than this prints one input a line.
const MAX_HEADER: usize = 120;

/// How to print.
#[derive(Clone, Debug)]
pub struct PrintOptions {
    /// Data of at most this many elements prints in full; more becomes an external.
    pub inline_elements: usize,
    /// Names of a model print too: `from "name"` behind a node that has one, and data under its own name. Data of a weights file
    /// ([`Origin::Weights`]) stays an external, however small.
    pub names: bool,
}

impl Default for PrintOptions {
    fn default() -> PrintOptions {
        PrintOptions {
            inline_elements: 1024,
            names: false,
        }
    }
}

/// Text, and the data that it only names.
#[derive(Clone, Debug, Default)]
pub struct Printed {
    /// The text.
    pub text: String,
    /// Data of `const opaque "name"`, in order of appearance, each name once: its own, or `data0`, `data1`, …
    pub externals: Vec<(String, HostTensor)>,
    /// Where each name is in `externals`; and each address of data that has a name. Looked up, never iterated.
    taken: HashMap<String, usize>,
    shared: HashMap<usize, Vec<usize>>,
}

impl Printed {
    /// The data of that name: with this, `parse_module(&p.text, &mut |n, _, _| p.external(n))` reads the text back.
    ///
    /// # Errors
    /// The empty reason, if no data has that name.
    pub fn external(&self, name: &str) -> Result<HostTensor, String> {
        let found = self.taken.get(name).and_then(|&index| self.externals.get(index));
        found.map(|(_, data)| data.clone()).ok_or_else(String::new)
    }

    /// Appends data in full, or a name for it; `name` is what it is called, if anything, and `outside` says that the text
    /// shall not hold it.
    pub(crate) fn data(&mut self, data: &HostTensor, options: &PrintOptions, name: Option<&str>, outside: bool) {
        if data.len() <= options.inline_elements && !outside {
            write_list(&mut self.text, data);
            return;
        }
        let index = self.name_data(data, name);
        self.text.push_str("opaque ");
        self.text.push_str(&quote(&self.externals[index].0));
    }

    /// Where the data is among the externals: under `name`, or that name with a number if other data has it.
    fn name_data(&mut self, data: &HostTensor, name: Option<&str>) -> usize {
        let same = |o: &HostTensor| o.same_data(data) && o.dtype() == data.dtype() && o.shape() == data.shape();
        let index = self.externals.len();
        let address = data.data_address();
        if name.is_some() {
            let before = self.shared.get(&address).into_iter().flatten();
            if let Some(&known) = before
                .copied()
                .collect::<Vec<_>>()
                .iter()
                .find(|&&i| same(&self.externals[i].1))
            {
                return known;
            }
        }
        let base = name.map_or_else(|| format!("data{index}"), str::to_string);
        let mut free = base.clone();
        for n in 1.. {
            // The key of free-form text in a safetensors file is no tensor's name.
            if !self.taken.contains_key(&free) && free != "__metadata__" {
                break;
            }
            free = format!("{base}.{n}");
        }
        self.taken.insert(free.clone(), index);
        self.shared.entry(address).or_default().push(index);
        self.externals.push((free, data.clone()));
        index
    }
}

/// A graph as text.
pub fn print_graph(graph: &Graph, options: &PrintOptions) -> Printed {
    let mut out = Printed::default();
    write_graph(&mut out, graph, options);
    out
}

/// A plan as text, with its kernels.
pub fn print_plan(plan: &Plan, options: &PrintOptions) -> Printed {
    let mut out = Printed::default();
    // Writing to a String cannot fail.
    let _ = plan.write(&mut out, options);
    out
}

/// A module as text, its sections in their order.
pub fn print_module(module: &Module, options: &PrintOptions) -> Printed {
    let mut out = Printed::default();
    for section in module.sections() {
        if !out.text.is_empty() {
            out.text.push('\n');
        }
        section.write(&mut out, options);
    }
    out
}

impl Section<'_> {
    /// Appends the section's text.
    pub fn write(&self, out: &mut Printed, options: &PrintOptions) {
        match self {
            Section::Graph(graph) => write_graph(out, graph, options),
            Section::Kernel(name, kernel) => {
                let text = kernel.to_string();
                match name {
                    Some(name) => {
                        let rest = text.strip_prefix("kernel").unwrap_or(&text);
                        // Writing to a String cannot fail.
                        let _ = write!(out.text, "kernel @{}{rest}", sigil_name(name));
                    }
                    None => out.text.push_str(&text),
                }
            }
            Section::Plan(plan) => {
                // Writing to a String cannot fail.
                let _ = plan.write(out, options);
            }
        }
    }
}

impl fmt::Display for Graph {
    /// The canonical text with the default options; data beyond their limit is only named.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&print_graph(self, &PrintOptions::default()).text)
    }
}

impl fmt::Display for Module {
    /// The canonical text with the default options; data beyond their limit is only named.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&print_module(self, &PrintOptions::default()).text)
    }
}

pub(super) struct Printer<'g> {
    graph: &'g Graph,
    /// Each node's name, with its sigil.
    names: Vec<String>,
    /// Spaces before the closing brace.
    indent: usize,
}

fn write_graph(out: &mut Printed, graph: &Graph, options: &PrintOptions) {
    write_section(out, graph, options, "graph ", 0);
    out.text.push('\n');
}

/// Everything of a graph but what begins its section and the last line end.
fn write_section(out: &mut Printed, graph: &Graph, options: &PrintOptions, word: &str, indent: usize) {
    let mut number = 0usize;
    let names = graph
        .nodes()
        .map(|(_, node)| match &node.kind {
            NodeKind::Input { name, .. } => format!("%{}", sigil_name(name)),
            _ => {
                number += 1;
                format!("%{}", number - 1)
            }
        })
        .collect();
    let printer = Printer { graph, names, indent };
    out.text.push_str(word);
    printer.header(&mut out.text);
    for (id, node) in graph.nodes() {
        if matches!(node.kind, NodeKind::Input { .. }) {
            continue;
        }
        let _ = write!(out.text, "{:indent$}  {} = ", "", printer.name(id));
        let at = out.text.len();
        printer.operation(out, node, options);
        let ty = match node.kind.is_tuple() {
            true => format!("({})", comma(node.results.iter().map(|t| printer.ty(t)))),
            false => printer.ty(&node.ty),
        };
        let _ = write!(out.text, " : {ty}");
        // The name of data that the text does not hold stands there already.
        let named = options.names && !out.text[at..].starts_with("const opaque");
        match node.origin.recorded() {
            Origin::Named(name) if named => {
                let _ = write!(out.text, " from {}", quote(name));
            }
            Origin::Derived(from) if named => derivation(&mut out.text, from),
            _ => {}
        }
        out.text.push('\n');
    }
    let _ = write!(out.text, "{:indent$}  return", "");
    for (i, output) in graph.outputs().iter().enumerate() {
        let _ = write!(
            out.text,
            "{} {}",
            if i > 0 { "," } else { "" },
            printer.name(output.node)
        );
        if output.name != format!("output_{i}") {
            let _ = write!(out.text, " as {}", word_name(&output.name));
        }
    }
    let _ = write!(out.text, "\n{:indent$}}}", "");
}

impl Printer<'_> {
    fn name(&self, id: NodeId) -> String {
        let name = self.names.get(id.index()).cloned();
        name.unwrap_or_else(|| format!("%missing.{}", id.0))
    }

    pub(super) fn dim(&self, d: &IndexExpr) -> String {
        d.display(&|s| word_name(&self.graph.symbol_name(s))).to_string()
    }

    pub(super) fn dims(&self, shape: &[IndexExpr]) -> String {
        format!("[{}]", comma(shape.iter().map(|d| self.dim(d))))
    }

    fn ty(&self, ty: &TensorType) -> String {
        format!("{}{}", ty.dtype, self.dims(&ty.shape))
    }

    fn header(&self, out: &mut String) {
        let inputs: Vec<String> = self
            .graph
            .inputs()
            .iter()
            .map(|&i| format!("{}: {}", self.name(i), self.ty(self.graph.ty(i))))
            .collect();
        let symbols = self.graph.symbols().iter().map(|s| {
            let name = word_name(&s.name);
            if let Some(upper) = &s.upper {
                return format!("{name} upto {}", self.dim(upper));
            }
            match (s.lo, s.hi) {
                (0, DEFAULT_SYMBOL_MAX) => name,
                (lo, hi) if lo == hi => format!("{name} = {lo}"),
                (lo, hi) => format!("{name} in {lo}..={hi}"),
            }
        });
        let symbols = comma(symbols);
        let name = sigil_name(&self.graph.name);
        let length = inputs.iter().map(|i| i.len() + 2).sum::<usize>() + symbols.len() + name.len();
        let (open, between, close) = if self.indent == 0 && length + 20 > MAX_HEADER && !inputs.is_empty() {
            ("\n    ", ",\n    ", "\n")
        } else {
            ("", ", ", "")
        };
        let _ = write!(out, "@{name}({open}{}{close})", inputs.join(between));
        if !symbols.is_empty() {
            let _ = write!(out, " where {symbols}");
        }
        out.push_str(" {\n");
    }

    fn operation(&self, out: &mut Printed, node: &Node, options: &PrintOptions) {
        let (kind, operands, ty) = (&node.kind, &node.operands, &node.ty);
        let text = &mut out.text;
        text.push_str(kind.name());
        match kind {
            NodeKind::Reduce { monoid, .. } | NodeKind::Scan { monoid, .. } => {
                let _ = write!(text, " {}", monoid.name());
            }
            NodeKind::Scatter { op, .. } => {
                let _ = write!(text, " {}", op.name());
            }
            NodeKind::Call(function) => {
                let _ = write!(text, " {}", function.name());
            }
            NodeKind::Region(r) => {
                let _ = write!(text, " {}", r.rule.name());
            }
            _ => {}
        }
        if !operands.is_empty() {
            let _ = write!(text, " {}", comma(operands.iter().map(|&o| self.name(o))));
        }
        match kind {
            NodeKind::Input { .. }
            | NodeKind::Map(_)
            | NodeKind::Convert(_)
            | NodeKind::Bitcast(_)
            | NodeKind::Copy => {}
            NodeKind::View(view) => self.view(text, view),
            NodeKind::Const(value) => {
                let _ = write!(text, " {value}");
            }
            NodeKind::Data(data) => {
                text.push(' ');
                let name = match node.origin.recorded() {
                    Origin::Named(name) | Origin::Weights(name) if options.names => Some(&**name),
                    _ => None,
                };
                let outside = options.names && matches!(node.origin.recorded(), Origin::Weights(_));
                out.data(&data.0, options, name, outside);
            }
            NodeKind::Iota { axis, .. } => {
                let _ = write!(text, " {{axis={axis}}}");
            }
            NodeKind::Random { stream, .. } => {
                let _ = write!(text, " {{stream={stream}}}");
            }
            NodeKind::Einsum {
                inputs,
                output,
                semiring,
                accumulator,
                ..
            } => self.einsum(text, inputs, output, *semiring, *accumulator, ty.dtype),
            NodeKind::Reduce { axes, .. } | NodeKind::Gather { axes } | NodeKind::Scatter { axes, .. } => {
                let _ = write!(text, " {{axes=[{}]}}", comma(axes.iter().map(|a| a.to_string())));
            }
            NodeKind::Scan {
                axis,
                exclusive,
                reverse,
                ..
            } => {
                let exclusive = if *exclusive { ", exclusive" } else { "" };
                let reverse = if *reverse { ", reverse" } else { "" };
                let _ = write!(text, " {{axis={axis}{exclusive}{reverse}}}");
            }
            NodeKind::Project(result) => {
                let _ = write!(text, " {{result={result}}}");
            }
            NodeKind::Call(HostFunction::Sort {
                axis,
                count,
                descending,
            }) => {
                let descending = if *descending { ", descending" } else { "" };
                let _ = write!(text, " {{axis={axis}, count={}{descending}}}", self.dim(count));
            }
            NodeKind::Call(HostFunction::NonZero { count }) => {
                let _ = write!(text, " {{count={}}}", self.dim(&(*count).into()));
            }
            NodeKind::Call(HostFunction::Unique { axis, sorted, count }) => {
                let axis = axis.map_or(String::new(), |a| format!("axis={a}, "));
                let sorted = if *sorted { "sorted, " } else { "" };
                let _ = write!(text, " {{{axis}{sorted}count={}}}", self.dim(&(*count).into()));
            }
            NodeKind::Call(HostFunction::Suppress { center, count }) => {
                let center = if *center { "center, " } else { "" };
                let _ = write!(text, " {{{center}count={}}}", self.dim(&(*count).into()));
            }
            NodeKind::Loop(l) => {
                let _ = write!(text, " {{{}}} ", self.loop_attributes(l));
                write_section(out, &l.body.0, options, "body ", self.indent + 2);
            }
            NodeKind::Region(r) => {
                if !r.symbols.is_empty() {
                    let _ = write!(text, " {{symbols={}}}", self.dims(&r.symbols));
                }
                text.push(' ');
                for (what, body) in ["body ", " derivative "].iter().zip(r.bodies()) {
                    write_section(out, &body.0, options, what, self.indent + 2);
                }
            }
        }
    }

    fn loop_attributes(&self, l: &Loop) -> String {
        let along = |all: &[Along]| {
            let one = |a: &Along| format!("{}{}", a.axis, if a.reverse { " reverse" } else { "" });
            comma(all.iter().map(one))
        };
        let mut parts = Vec::new();
        parts.extend(l.trip.iter().map(|t| format!("trip={}", self.dim(t))));
        parts.extend(l.counted.then(|| "counted".to_string()));
        parts.extend(l.conditional.then(|| "conditional".to_string()));
        parts.push(format!("carried={}", l.carried));
        if !l.slices.is_empty() {
            parts.push(format!("slices=[{}]", along(&l.slices)));
        }
        if !l.stacks.is_empty() {
            parts.push(format!("stacks=[{}]", along(&l.stacks)));
        }
        if !l.symbols.is_empty() {
            parts.push(format!("symbols={}", self.dims(&l.symbols)));
        }
        parts.join(", ")
    }

    fn einsum(
        &self,
        text: &mut String,
        inputs: &[Labels],
        output: &Labels,
        semiring: Semiring,
        accumulator: DType,
        dtype: DType,
    ) {
        let _ = write!(text, " {{{}", einsum_labels(inputs, output));
        let mut options = Vec::new();
        if semiring != Semiring::AddMul {
            options.push(format!("semiring={}", semiring.name()));
        }
        if accumulator != dtype.accumulator() {
            options.push(format!("acc={accumulator}"));
        }
        if !options.is_empty() {
            let _ = write!(text, "; {}", options.join(", "));
        }
        text.push('}');
    }
}

/// How a node was derived: ` from gradient of mul in gradient of exp "name"`. Places in a program or in another text are not
/// those of this text and stay out.
fn derivation(text: &mut String, from: &Derivation) {
    for (i, step) in from.steps.iter().enumerate() {
        let before = if i > 0 { "in" } else { "from" };
        let (rewrite, operation) = (word_name(&step.rewrite), word_name(&step.operation));
        let _ = write!(text, " {before} {rewrite} of {operation}");
    }
    if let Origin::Named(name) | Origin::Weights(name) = &from.recorded {
        let _ = write!(text, " {}", quote(name));
    }
}

pub(super) fn comma(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(", ")
}

/// The labels of an einsum: `ab,bc->ac`.
pub fn einsum_labels(inputs: &[Labels], output: &Labels) -> String {
    let terms = inputs.iter().map(labels).collect::<Vec<_>>().join(",");
    format!("{terms}->{}", labels(output))
}

/// `a` to `z`, `A` to `Z`, then `'52` and on.
fn labels(labels: &Labels) -> String {
    let mut text = String::new();
    for &l in labels {
        match l {
            0..26 => text.push((b'a' + l as u8) as char),
            26..52 => text.push((b'A' + (l - 26) as u8) as char),
            _ => {
                let _ = write!(text, "'{l}");
            }
        }
    }
    text
}

/// Nested lists, or a flat one where nesting would hide an extent.
fn write_list(text: &mut String, data: &HostTensor) {
    let shape = data.shape();
    let nested = (2..=MAX_NESTING).contains(&shape.len()) && !data.is_empty();
    // The number of elements after which lists close, innermost first; the outermost closes at the end.
    let mut closes = Vec::new();
    if nested {
        let mut n = 1;
        for &d in shape[1..].iter().rev() {
            n *= d;
            closes.push(n);
        }
    }
    let open = |text: &mut String, n: usize| text.extend(std::iter::repeat_n('[', n));
    let close = |text: &mut String, n: usize| text.extend(std::iter::repeat_n(']', n));
    open(text, 1 + closes.len());
    for i in 0..data.len() {
        if i > 0 {
            let closed = closes.iter().filter(|&&n| i % n == 0).count();
            close(text, closed);
            text.push_str(", ");
            open(text, closed);
        }
        let _ = write!(text, "{}", data.get(i));
    }
    close(text, 1 + closes.len());
}
