//! A model while it is imported: the graph that is recorded, names and what they stand for, and the scopes of functions, subgraphs
//! and bodies of loops.

use std::rc::Rc;

use rustc_hash::{FxHashMap, FxHashSet};
use tlc_formats::onnx::{Attribute, Function};
use tlc_ir::graph::NodeKind;
use tlc_ir::{DType, HostTensor, IndexExpr};
use tlc_record::dim::Dim;
use tlc_record::ops::repeat::Iteration;
use tlc_record::streams::Entered;
use tlc_record::{Graph, Tensor};

use super::assumptions::Assumptions;
use super::external::Files;
use super::packed::Elements;
use super::refusal::{MAX_NAME, Outcome, invalid, shown};
use super::value::{Sequence, Value};
use super::{ImportOptions, fold};

/// How many operators behind a constant it is looked for.
const MAX_BEHIND: usize = 16;

/// The most parts of an extent that data decides. Where many such sizes add up, as boxes of one class after the other do, each further
/// operator's extents would hold all of them.
const MAX_DECIDED_EXTENT: u32 = 64;
/// Concatenated parts with such extents that are many, and what their limits may add up to.
const MANY_DECIDED: usize = 8;
const MAX_LIMIT: i64 = 1 << 22;

/// What a symbolic extent may be: no more than an i32, which many models compute shapes in.
const EXTENTS: std::ops::RangeInclusive<i64> = 0..=i32::MAX as i64;

pub(super) type Opsets<'a> = FxHashMap<&'a str, i64>;

/// Values by name, and what nodes in their scope are of.
#[derive(Default)]
pub(super) struct Scope<'a> {
    pub(super) values: FxHashMap<&'a str, Value>,
    /// The operator sets; a subgraph has those of its graph.
    pub(super) opsets: Rc<Opsets<'a>>,
    /// In a function: the names of its attributes.
    pub(super) formals: FxHashSet<&'a str>,
    /// In a function: attributes of the call, and what those are that it leaves out.
    pub(super) attributes: FxHashMap<&'a str, Attribute<'a>>,
    /// Formal operands that the call leaves out: nodes inside that name them lack them, too.
    pub(super) absent: Vec<&'a str>,
    /// Whether names are looked up in the scope around it.
    pub(super) open: bool,
    /// Whether it is the body of a loop, which is a graph of its own.
    pub(super) body: bool,
}

/// A model being imported.
pub(super) struct Importer<'o, 'a> {
    pub(super) graph: Graph,
    pub(super) options: &'o ImportOptions<'o>,
    pub(super) files: Files<'o>,
    pub(super) functions: FxHashMap<(&'a str, &'a str, &'a str), Function<'a>>,
    pub(super) scopes: Vec<Scope<'a>>,
    /// The loops whose bodies are being recorded, outermost first: one for each scope that is a body.
    pub(super) loops: Vec<(Iteration, Entered)>,
    pub(super) fixed: Vec<(String, HostTensor)>,
    /// The symbols of dimensions, by the dimensions' names.
    pub(super) symbols: FxHashMap<String, String>,
    /// The symbols, and how many others would have had the same text.
    pub(super) symbol_texts: FxHashMap<String, usize>,
    /// By the expression of an extent that data decides: a symbol that is equal to it.
    pub(super) short_extents: FxHashMap<IndexExpr, Dim>,
    /// What is assumed of sizes.
    pub(super) assumptions: Assumptions,
    pub(super) nodes: usize,
    /// The most iterations that a loop recorded so far in the innermost body makes, those of loops inside it included.
    pub(super) iterations: i64,
}

impl<'o, 'a> Importer<'o, 'a> {
    /// The symbol of a dimension. Names that differ only in what a symbol cannot hold (`n + 1` and `n - 1`) stay apart.
    pub(super) fn symbol(&mut self, name: &str) -> Dim {
        if !self.symbols.contains_key(name) {
            let plain = symbol_name(name.trim_start_matches('\0'));
            let mut text = plain.clone();
            while self.symbol_texts.contains_key(&text) {
                let copies = self.symbol_texts.entry(plain.clone()).or_insert(0);
                *copies += 1;
                text = format!("{plain}_{}", *copies + 1);
            }
            self.symbol_texts.insert(text.clone(), 0);
            self.symbols.insert(name.into(), text);
        }
        let text = &self.symbols[name];
        match self.options.sizes.iter().find(|(known, _)| known == text) {
            Some((_, size)) => Dim::from(*size),
            None => self.graph.symbol(text, EXTENTS),
        }
    }

    /// The first error of the recording, as a refusal.
    pub(super) fn recorded(&self) -> Outcome<()> {
        match self.graph.check() {
            Ok(()) => Ok(()),
            Err(errors) => invalid(errors.iter().map(ToString::to_string).next().unwrap_or_default()),
        }
    }

    pub(super) fn define(&mut self, name: &'a str, value: Value) -> Outcome<()> {
        let Some(scope) = self.scopes.last_mut() else {
            return Ok(());
        };
        match scope.values.insert(name, value) {
            None => Ok(()),
            Some(_) => invalid(format!("the name '{}' is defined twice; expected it once", shown(name))),
        }
    }

    /// The value of that name, in this scope or one around it.
    pub(super) fn lookup(&self, name: &str) -> Outcome<Value> {
        // How many bodies are between the name and here.
        let mut bodies = 0;
        for scope in self.scopes.iter().rev() {
            if let Some(value) = scope.values.get(name) {
                return Ok(self.captured(value, bodies));
            }
            bodies += usize::from(scope.body);
            if !scope.open {
                break;
            }
        }
        invalid(format!(
            "no value is named '{}'; expected an input, an initializer or the result of a node that does not wait for it",
            shown(name)
        ))
    }

    /// A value from outside of the innermost `bodies` bodies, as the innermost sees it.
    pub(super) fn captured(&self, value: &Value, bodies: usize) -> Value {
        match value {
            _ if bodies == 0 => value.clone(),
            // Expressions over symbols mean the same in a body, which has the symbols of the graph around it.
            Value::Sizes(_) | Value::Ratio(_) => value.clone(),
            Value::Sequence(s) => Value::Sequence(Rc::new(match &**s {
                Sequence::Known(items, dtype) => {
                    let inside = |item| self.captured(item, bodies);
                    Sequence::Known(items.iter().map(inside).collect(), *dtype)
                }
                Sequence::Stacked(parts) => Sequence::Stacked(self.inside(parts, bodies)),
            })),
            // What is known stays known in a body. Differentiation takes such constants out again, and tells them by their names.
            Value::Tensor(tensor, Some(data)) => Value::Tensor(self.again(tensor, data), Some(data.clone())),
            Value::Tensor(tensor, None) => Value::from(self.inside(tensor, bodies)),
        }
    }

    /// A tensor from outside of the innermost `bodies` bodies, captured by each of them.
    fn inside(&self, tensor: &Tensor, bodies: usize) -> Tensor {
        let capture = |t: Tensor, l: &(Iteration, Entered)| l.0.capture(&t);
        let bodies = &self.loops[self.loops.len() - bodies..];
        bodies.iter().fold(tensor.clone(), capture)
    }

    /// A constant once more, in the graph that is recorded now, under the name that it has where it was recorded first.
    fn again(&self, tensor: &Tensor, data: &Elements) -> Tensor {
        let known = |id| tensor.graph().with_ir(|ir| ir.node(id).origin.recorded().clone());
        let (Some(id), Elements::Whole(_)) = (tensor.id(), data) else {
            return data.tensor(&self.graph);
        };
        let before = self.graph.set_within(Some(known(id)));
        let again = data.tensor(&self.graph);
        self.graph.set_within(before);
        again
    }

    /// Begins to record the body of a loop; returns the graph around it.
    pub(super) fn enter(&mut self, iteration: Iteration) -> Graph {
        let inside = self.graph.enter_loop();
        let around = std::mem::replace(&mut self.graph, iteration.graph().clone());
        self.loops.push((iteration, inside));
        let opsets = self.scopes.last().map(|s| s.opsets.clone()).unwrap_or_default();
        self.scopes.push(Scope {
            opsets,
            open: true,
            body: true,
            ..Scope::default()
        });
        around
    }

    /// Ends what [`Importer::enter`] began.
    pub(super) fn leave(&mut self, around: Graph) -> Iteration {
        self.scopes.pop();
        self.graph = around;
        self.loops.pop().expect("a body was entered").0
    }

    /// In a function, or a subgraph of it: whether the call leaves out the operand of that name.
    pub(super) fn is_absent(&self, name: &str) -> bool {
        for scope in self.scopes.iter().rev() {
            if scope.values.contains_key(name) {
                return false;
            }
            if scope.absent.contains(&name) {
                return true;
            }
            if !scope.open {
                break;
            }
        }
        false
    }

    /// The attribute itself, or, if it stands for one of the function's, what the call gives for that.
    pub(super) fn resolved(&self, attribute: Attribute<'a>) -> Outcome<Option<Attribute<'a>>> {
        let reference = attribute.reference();
        if reference.is_empty() {
            return Ok(Some(attribute));
        }
        let function = self.scopes.iter().rev().find(|s| !s.open);
        match function.filter(|f| f.formals.contains(reference)) {
            Some(function) => Ok(function.attributes.get(reference).copied()),
            None => invalid(format!(
                "attribute {} stands for an attribute `{}` that no function around it has; expected a value",
                shown(attribute.name()),
                shown(reference)
            )),
        }
    }

    /// The tensor, with a symbol for each extent that data decides by a long expression. Equal extents have the same symbol.
    pub(super) fn with_short_extents(&mut self, tensor: &Tensor) -> Tensor {
        let mut short = tensor.clone();
        // Bodies of loops have no sizes that data decides.
        if !self.loops.is_empty() || tensor.is_poisoned() {
            return short;
        }
        for (axis, extent) in tensor.shape().iter().enumerate() {
            let expr = extent.expr();
            if expr.size() > MAX_DECIDED_EXTENT && self.is_data_bound(extent) {
                let known = self.short_extents.get(expr).cloned();
                let symbol = known.unwrap_or_else(|| {
                    let all = self.graph.full([extent.clone()], true, DType::Bool);
                    let symbol = all.nonzero().dim(1);
                    self.short_extents.insert(expr.clone(), symbol.clone());
                    symbol
                });
                short = self.as_long_as(&short, axis as i64, &symbol);
            }
        }
        short
    }

    /// The tensor with another extent along an axis that is equal to its own.
    fn as_long_as(&self, tensor: &Tensor, axis: i64, extent: &Dim) -> Tensor {
        tensor.take_from_start(&self.graph.range(extent, DType::I64), axis)
    }

    /// Whether data decides an extent.
    pub(super) fn is_data_bound(&self, extent: &Dim) -> bool {
        self.graph.with_ir(|ir| ir.is_data_bound(extent.expr()))
    }

    /// Many parts one behind the other, each as long as data decides and with a limit: `None` if there are few of them, or some have no limit.
    ///
    /// Their sum would have a part for each. Instead each is padded to its limit, and what is not padding is picked. The result's extent is
    /// a symbol, the same for all concatenations that are as long.
    pub(super) fn concatenated_to_limits(&mut self, parts: &[Tensor], axis: i64) -> Option<Tensor> {
        let decided = |part: &&Tensor| self.is_data_bound(&part.dim(axis));
        if !self.loops.is_empty() || parts.iter().filter(decided).count() < MANY_DECIDED {
            return None;
        }
        let limit = |part: &Tensor| self.graph.with_ir(|ir| part.dim(axis).expr().interval(ir).hi);
        let limits: Vec<i64> = parts.iter().map(limit).collect();
        let all = limits.iter().try_fold(0i64, |sum, &n| sum.checked_add(n));
        all.filter(|all| *all <= MAX_LIMIT)?;
        let (mut padded, mut masks) = (Vec::new(), Vec::new());
        let mut whole = Dim::from(0);
        for (part, &limit) in parts.iter().zip(&limits) {
            let extent = part.dim(axis);
            let mut amounts = vec![(Dim::from(0), Dim::from(0)); part.rank()];
            amounts[axis as usize].1 = Dim::from(limit) - &extent;
            padded.push(part.pad(&amounts, part.dtype().zero()));
            let there = self.graph.full([extent.clone()], true, DType::Bool);
            masks.push(there.pad(&[(Dim::from(0), Dim::from(limit) - &extent)], false));
            whole = whole + extent;
        }
        let mask = tlc_record::concat(&masks.iter().collect::<Vec<_>>(), 0);
        let places = mask.nonzero().select_index(0, 0);
        let padded = tlc_record::concat(&padded.iter().collect::<Vec<_>>(), axis);
        let packed = padded.take_from_start(&places, axis);
        let whole = self.graph.simplify(whole.expr());
        let symbol = self.short_extents.entry(whole).or_insert_with(|| places.dim(0)).clone();
        Some(match symbol == places.dim(0) {
            true => packed,
            false => self.as_long_as(&packed, axis, &symbol),
        })
    }

    /// The elements of a value that must be known now.
    pub(super) fn elements(&mut self, value: &Value, what: &str) -> Outcome<HostTensor> {
        if let Value::Tensor(_, Some(data)) = value {
            return data.host();
        }
        self.recorded()?;
        self.computed(value, what)
    }

    /// As [`Importer::elements`], of a value that was recorded before the recording failed.
    pub(super) fn computed(&mut self, value: &Value, what: &str) -> Outcome<HostTensor> {
        let tensor = value.tensor(&self.graph)?;
        // What a body is given differs from iteration to iteration.
        let outside = self.loops.is_empty();
        let (values, fixed) = (self.options.values.filter(|_| outside), &mut self.fixed);
        fold::elements(&tensor, what, &mut |name, dtype| {
            if let Some((_, value)) = fixed.iter().find(|(n, _)| outside && n == name) {
                return Some(value.clone());
            }
            let value = values?(name, dtype)?;
            fixed.push((name.to_string(), value.clone()));
            Some(value)
        })
    }

    /// The elements of a value that follows from constants alone.
    pub(super) fn constant(&self, value: &Value, what: &str) -> Outcome<HostTensor> {
        match value {
            Value::Tensor(_, Some(data)) => data.host(),
            other => fold::elements(&other.tensor(&self.graph)?, what, &mut |_, _| None),
        }
    }

    /// The elements of a constant, or of one behind a few operators that only move or convert them.
    pub(super) fn known(&self, value: &Value) -> Option<HostTensor> {
        if let Value::Sizes(sizes) = value {
            sizes.numbers()?;
        }
        if let Value::Tensor(tensor, None) = value {
            let mut at = tensor.id()?;
            let behind = self.graph.with_ir(|ir| {
                for _ in 0..MAX_BEHIND {
                    let node = ir.node(at);
                    match node.operands[..] {
                        [operand] => at = operand,
                        _ => return matches!(node.kind, NodeKind::Const(_) | NodeKind::Data(_)),
                    }
                }
                false
            });
            if !behind {
                return None;
            }
        }
        self.constant(value, "a constant").ok()
    }
}

/// A name that the graph's text form can hold as a symbol.
fn symbol_name(name: &str) -> String {
    let mut text: String = name
        .chars()
        .take(MAX_NAME)
        .map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' })
        .collect();
    if !text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
        text.insert(0, '_');
    }
    text
}
