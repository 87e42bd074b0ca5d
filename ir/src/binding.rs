//! Binding: from the types of the actual inputs to the values of the graph's symbols.
//!
//! Invariants of a binding that [`bind_symbols`] returns:
//! - there is one value per symbol, inside the symbol's declared range;
//! - every input has its declared dtype, rank and extents;
//! - every guard of the graph holds, and every extent of every node is a number that is not negative.
//!
//! An input extent that is just a symbol binds it. Every other extent is only checked: no equation is solved. A symbol that
//! no input binds takes its value from the caller, by name; failing that, its only possible value (a range of one); failing
//! that, if nothing that the outputs need mentions it, its smallest (see [`idle_symbols`]): nothing is checked then that mentions it. A
//! symbol that data decides is given its upper bound; what depends on it is checked when a call binds it.

use crate::dtype::DType;
use crate::graph::control::{mentions, mentions_data};
use crate::graph::{Condition, Graph, NodeId, NodeKind, Symbol};
use crate::index::{Bounds, IndexExpr, IndexNode, Interval, SymId, VarId};

/// Why inputs do not fit a graph.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BindError {
    /// Another number of inputs than declared.
    #[error("{found} inputs; expected {expected}: {}", .names.join(", "))]
    InputCount {
        /// How many the graph declares.
        expected: usize,
        /// How many were given.
        found: usize,
        /// The declared names.
        names: Vec<String>,
    },
    /// An input's element type.
    #[error("input {input}: dtype {found}; expected {expected}")]
    DType {
        /// The input's name.
        input: String,
        /// Declared.
        expected: DType,
        /// Given.
        found: DType,
    },
    /// An input's number of axes.
    #[error("input {input}: shape {found:?} has {} axes; expected {expected}", .found.len())]
    Rank {
        /// The input's name.
        input: String,
        /// The declared shape, printed.
        expected: String,
        /// The given extents.
        found: Vec<usize>,
    },
    /// An extent that is not what the declaration and the other inputs say.
    #[error("input {input}: extent {found} of axis {axis}; expected {expected}{reason}")]
    Extent {
        /// The input's name.
        input: String,
        /// The axis.
        axis: usize,
        /// What the declaration and the symbols bound so far demand.
        expected: String,
        /// Given.
        found: usize,
        /// Where the demand comes from, ready to print after it; may be empty.
        reason: String,
    },
    /// A symbol's value outside its declared range.
    #[error("symbol {symbol} = {found}{}; expected {lo}..={hi}", .bound_by)]
    Range {
        /// The symbol's name.
        symbol: String,
        /// Its value.
        found: i64,
        /// Smallest.
        lo: i64,
        /// Largest.
        hi: i64,
        /// Which input says so, ready to print after the value; may be empty.
        bound_by: String,
    },
    /// A value given by name for a symbol that the graph lacks.
    #[error("a value for symbol {symbol}, which the graph does not have")]
    UnknownSymbol {
        /// The name.
        symbol: String,
    },
    /// A symbol that nothing binds.
    #[error("symbol {symbol} is bound by no input; give its value by name")]
    Unbound {
        /// The symbol's name.
        symbol: String,
    },
    /// An assumption that the values break.
    #[error("{needed_by}: {condition} fails with {values}")]
    Guard {
        /// The node that needs it.
        node: NodeId,
        /// The operation, by its name and the place where it was recorded.
        needed_by: String,
        /// What was assumed, printed.
        condition: String,
        /// The symbols' values, printed.
        values: String,
    },
    /// An extent that comes out negative, or not at all (overflow, division by zero).
    #[error("{value}: extent {extent} of axis {axis} is {found} with {values}; expected at least 0")]
    NodeExtent {
        /// The node.
        node: NodeId,
        /// Its name in the graph's text.
        value: String,
        /// The axis.
        axis: usize,
        /// The extent, printed.
        extent: String,
        /// Its value, or "undefined".
        found: String,
        /// The symbols' values, printed.
        values: String,
    },
}

/// The symbol, if the extent is just that.
fn plain_symbol(dim: &IndexExpr) -> Option<SymId> {
    match dim {
        IndexExpr::Node(n) => match **n {
            IndexNode::Sym(s) => Some(s),
            _ => None,
        },
        IndexExpr::Const(_) => None,
    }
}

/// What shapes say of symbols: the name and value of each that is an extent of a declared shape. Where several are the same symbol
/// it is listed several times; nothing is checked.
pub fn named_extents<'a>(
    symbols: &[Symbol],
    declared: impl Iterator<Item = &'a [IndexExpr]>,
    shapes: impl Iterator<Item = &'a [usize]>,
) -> Vec<(String, i64)> {
    let extents = declared
        .zip(shapes)
        .flat_map(|(declared, shape)| declared.iter().zip(shape));
    let named = |(declared, &extent): (&IndexExpr, &usize)| {
        let symbol = symbols.get(plain_symbol(declared)?.0 as usize)?;
        Some((symbol.name.clone(), i64::try_from(extent).ok()?))
    };
    extents.filter_map(named).collect()
}

/// A condition, printed with symbol names.
pub fn condition_text(graph: &Graph, condition: &Condition) -> String {
    match condition {
        // What is a number is what the other should be.
        Condition::Equal(a, b) if a.as_const().is_some() => format!("{} = {}", graph.dim_text(b), graph.dim_text(a)),
        Condition::Equal(a, b) => format!("{} = {}", graph.dim_text(a), graph.dim_text(b)),
        Condition::NonNegative(a) => format!("{} >= 0", graph.dim_text(a)),
    }
}

/// Whether a condition mentions a symbol that data decides, so that it is checked once a call has bound it.
pub fn condition_waits(symbols: &[Symbol], condition: &Condition) -> bool {
    match condition {
        Condition::Equal(a, b) => mentions_data(symbols, a) || mentions_data(symbols, b),
        Condition::NonNegative(a) => mentions_data(symbols, a),
    }
}

/// Whether a condition mentions one of the symbols.
pub fn condition_mentions(condition: &Condition, symbols: &[bool]) -> bool {
    match condition {
        Condition::Equal(a, b) => mentions(a, symbols) || mentions(b, symbols),
        Condition::NonNegative(a) => mentions(a, symbols),
    }
}

/// By symbol: whether no value of it changes what the graph computes, and nothing says which it has. Such a symbol is the extent of no
/// input, nothing that the outputs need mentions it, and it has several possible values, of which `given` says none by name.
/// Extents of inputs that nothing reads, and what other values assumed, may mention it.
pub fn idle_symbols(graph: &Graph, given: &[(String, i64)]) -> Vec<bool> {
    let open = |s: &Symbol| s.upper.is_none() && s.lo != s.hi && given.iter().all(|(name, _)| *name != s.name);
    let mut idle: Vec<bool> = graph.symbols().iter().map(open).collect();
    let extents = graph.inputs().iter().flat_map(|&id| &graph.ty(id).shape);
    for s in extents.filter_map(plain_symbol) {
        idle.get_mut(s.0 as usize).into_iter().for_each(|idle| *idle = false);
    }
    if !idle.contains(&true) {
        return idle;
    }
    let mut needed = vec![false; graph.len()];
    for o in graph.outputs() {
        needed
            .get_mut(o.node.index())
            .into_iter()
            .for_each(|needed| *needed = true);
    }
    let mut used = vec![false; idle.len()];
    let binders = graph.binders();
    for (id, node) in (0..graph.len())
        .rev()
        .map(|i| NodeId(i as u32))
        .map(|id| (id, graph.node(id)))
    {
        if !needed[id.index()] {
            continue;
        }
        graph.visit_needs(id, &binders, &mut |o| needed[o.index()] = true);
        let mut mark = |e: &IndexExpr| mark(e, &mut used);
        node.ty.shape.iter().for_each(&mut mark);
        node.results.iter().flat_map(|t| &t.shape).for_each(&mut mark);
        node.kind.visit_sizes(&mut mark);
    }
    // A bound of what data decides mentions symbols before it.
    for (i, s) in graph.symbols().iter().enumerate().rev() {
        if let (true, Some(upper)) = (used[i], &s.upper) {
            mark(upper, &mut used);
        }
    }
    idle.iter().zip(used).map(|(idle, used)| *idle && !used).collect()
}

/// Marks the symbols that an expression mentions.
fn mark(e: &IndexExpr, used: &mut [bool]) {
    e.visit_atoms(&mut |a| {
        if let IndexNode::Sym(s) = a
            && let Some(used) = used.get_mut(s.0 as usize)
        {
            *used = true;
        }
    });
}

/// Whether a condition holds; one that has no value (overflow, division by zero) does not.
pub fn condition_holds(condition: &Condition, symbols: &[i64]) -> bool {
    match condition {
        Condition::Equal(a, b) => {
            matches!((a.eval_symbols(symbols), b.eval_symbols(symbols)), (Some(a), Some(b)) if a == b)
        }
        Condition::NonNegative(a) => a.eval_symbols(symbols).is_some_and(|a| a >= 0),
    }
}

/// The symbols' values, printed: `b = 2, s = 7`; only those that the expressions mention.
pub fn values_text(graph: &Graph, symbols: &[i64], mentioned: &[&IndexExpr]) -> String {
    let mut used = vec![false; symbols.len()];
    mentioned.iter().for_each(|e| mark(e, &mut used));
    let parts: Vec<String> = (0..symbols.len())
        .filter(|&i| used[i])
        .map(|i| format!("{} = {}", graph.symbol_name(SymId(i as u32)), symbols[i]))
        .collect();
    if parts.is_empty() {
        "no symbols".to_string()
    } else {
        parts.join(", ")
    }
}

struct Binder<'g> {
    graph: &'g Graph,
    /// Value and the input that bound it.
    values: Vec<Option<(i64, Option<usize>)>>,
}

impl Binder<'_> {
    fn input_name(&self, input: usize) -> String {
        match &self.graph.node(self.graph.inputs()[input]).kind {
            NodeKind::Input { name, .. } => name.clone(),
            other => other.name().to_string(),
        }
    }

    fn bound_by(&self, by: Option<usize>) -> String {
        by.map_or(" (given by name)".to_string(), |i| {
            format!(" (bound by input {})", self.input_name(i))
        })
    }

    fn set(&mut self, sym: SymId, value: i64, by: Option<usize>) -> Result<(), BindError> {
        let s = &self.graph.symbols()[sym.0 as usize];
        if value < s.lo || value > s.hi {
            return Err(BindError::Range {
                symbol: s.name.clone(),
                found: value,
                lo: s.lo,
                hi: s.hi,
                bound_by: self.bound_by(by),
            });
        }
        self.values[sym.0 as usize] = Some((value, by));
        Ok(())
    }

    fn input_types(&self, inputs: &[(DType, &[usize])]) -> Result<(), BindError> {
        let declared = self.graph.inputs();
        if declared.len() != inputs.len() {
            return Err(BindError::InputCount {
                expected: declared.len(),
                found: inputs.len(),
                names: (0..declared.len()).map(|i| self.input_name(i)).collect(),
            });
        }
        for (i, (&id, &(dtype, shape))) in declared.iter().zip(inputs).enumerate() {
            let ty = self.graph.ty(id);
            if dtype != ty.dtype {
                return Err(BindError::DType {
                    input: self.input_name(i),
                    expected: ty.dtype,
                    found: dtype,
                });
            }
            if shape.len() != ty.rank() {
                return Err(BindError::Rank {
                    input: self.input_name(i),
                    expected: self.graph.shape_text(&ty.shape),
                    found: shape.to_vec(),
                });
            }
        }
        Ok(())
    }

    fn plain_extents(&mut self, inputs: &[(DType, &[usize])]) -> Result<(), BindError> {
        for (i, &id) in self.graph.inputs().iter().enumerate() {
            for (axis, d) in self.graph.ty(id).shape.iter().enumerate() {
                let found = inputs[i].1[axis];
                let Some(sym) = plain_symbol(d).filter(|s| (s.0 as usize) < self.values.len()) else {
                    continue;
                };
                match self.values[sym.0 as usize] {
                    None => self.set(sym, i64::try_from(found).unwrap_or(i64::MAX), Some(i))?,
                    Some((value, by)) if usize::try_from(value) != Ok(found) => {
                        return Err(BindError::Extent {
                            input: self.input_name(i),
                            axis,
                            expected: format!("{} = {value}", self.graph.symbol_name(sym)),
                            found,
                            reason: self.bound_by(by),
                        });
                    }
                    Some(_) => {}
                }
            }
        }
        Ok(())
    }

    /// What no input binds: the only value of a range of one, or the smallest of an idle symbol.
    fn rest(&mut self, idle: &[bool]) -> Result<Vec<i64>, BindError> {
        for (i, s) in self.graph.symbols().iter().enumerate() {
            // What data decides is at most this; a call says what it is.
            if let (None, Some(upper)) = (self.values[i], &s.upper) {
                let known: Vec<i64> = self.values.iter().map(|v| v.map_or(0, |v| v.0)).collect();
                let most = most_under(self.graph.symbols(), upper, &known).unwrap_or(s.hi);
                let most = most.clamp(0, s.hi.max(0));
                self.values[i] = Some((most, None));
            }
        }
        for (i, s) in self.graph.symbols().iter().enumerate() {
            if self.values[i].is_none() {
                if !idle[i] && s.lo != s.hi {
                    return Err(BindError::Unbound { symbol: s.name.clone() });
                }
                self.set(SymId(i as u32), s.lo, None)?;
            }
        }
        Ok(self.values.iter().map(|v| v.map_or(0, |v| v.0)).collect())
    }
}

/// Symbols that have their value, or any up to it where data decides.
struct UpTo<'s> {
    symbols: &'s [Symbol],
    values: &'s [i64],
}

impl Bounds for UpTo<'_> {
    fn symbol(&self, sym: SymId) -> Interval {
        let at = sym.0 as usize;
        match (self.symbols.get(at), self.values.get(at)) {
            (Some(s), Some(&v)) if s.upper.is_some() => Interval::new(0, v),
            (Some(_), Some(&v)) => Interval::new(v, v),
            _ => Interval::new(0, i64::MAX),
        }
    }
    fn extent(&self, _: VarId) -> Option<IndexExpr> {
        None
    }
}

/// The most that a size may be: its value under the symbols, where those that data decides take any value up to the one given
/// here, for a size may be larger where they are smaller (a remainder). `None` if it overflows.
pub fn most_under(symbols: &[Symbol], size: &IndexExpr, values: &[i64]) -> Option<i64> {
    if !mentions_data(symbols, size) {
        return size.eval_symbols(values);
    }
    let most = size.interval(&UpTo { symbols, values }).hi.max(0);
    (most < i64::MAX).then_some(most)
}

/// Checks the inputs' dtypes and extents against the graph and returns the value of every symbol, indexed by [`SymId`].
///
/// `given` are values by name for symbols that no input binds; one that an input binds too must agree with it.
///
/// # Errors
/// [`BindError`], naming the input, what was expected and what was found.
pub fn bind_symbols(
    graph: &Graph,
    inputs: &[(DType, &[usize])],
    given: &[(String, i64)],
) -> Result<Vec<i64>, BindError> {
    let mut binder = Binder {
        graph,
        values: vec![None; graph.symbols().len()],
    };
    binder.input_types(inputs)?;
    for (name, value) in given {
        let sym = graph
            .find_symbol(name)
            .ok_or_else(|| BindError::UnknownSymbol { symbol: name.clone() })?;
        binder.set(sym, *value, None)?;
    }
    binder.plain_extents(inputs)?;
    let idle = idle_symbols(graph, given);
    let symbols = binder.rest(&idle)?;
    for (i, &id) in graph.inputs().iter().enumerate() {
        for (axis, d) in graph.ty(id).shape.iter().enumerate() {
            if mentions(d, &idle) {
                continue;
            }
            let (value, found) = (d.eval_symbols(&symbols), inputs[i].1[axis]);
            if value.and_then(|v| usize::try_from(v).ok()) != Some(found) {
                let expected = match (d.as_const(), value) {
                    (Some(c), _) => c.to_string(),
                    (None, Some(v)) => format!("{} = {v}", graph.dim_text(d)),
                    (None, None) => format!("{}, which has no value", graph.dim_text(d)),
                };
                let reason = match d.as_const() {
                    Some(_) => String::new(),
                    None => format!(" (with {})", values_text(graph, &symbols, &[d])),
                };
                return Err(BindError::Extent {
                    input: binder.input_name(i),
                    axis,
                    expected,
                    found,
                    reason,
                });
            }
        }
    }
    for g in graph.guards() {
        if !condition_waits(graph.symbols(), &g.condition) && !condition_mentions(&g.condition, &idle) {
            check_condition(graph, (g.node, Some(&g.needed_by)), &g.condition, &symbols)?;
        }
    }
    for (id, node) in graph.nodes() {
        for (axis, d) in node.ty.shape.iter().enumerate() {
            if graph.is_data_bound(d) || mentions(d, &idle) {
                continue;
            }
            let value = d.eval_symbols(&symbols);
            if value.is_none_or(|v| v < 0) {
                return Err(BindError::NodeExtent {
                    node: id,
                    value: graph.value_name(id),
                    axis,
                    extent: graph.dim_text(d),
                    found: value.map_or("undefined".to_string(), |v| v.to_string()),
                    values: values_text(graph, &symbols, &[d]),
                });
            }
        }
    }
    Ok(symbols)
}

/// An error if the condition does not hold, which the node needs, or what a guard says.
pub(crate) fn check_condition(
    graph: &Graph,
    (node, needed_by): (NodeId, Option<&str>),
    condition: &Condition,
    symbols: &[i64],
) -> Result<(), BindError> {
    if condition_holds(condition, symbols) {
        return Ok(());
    }
    let mentioned: Vec<&IndexExpr> = match condition {
        Condition::Equal(a, b) => vec![a, b],
        Condition::NonNegative(a) => vec![a],
    };
    Err(BindError::Guard {
        node,
        needed_by: needed_by.map_or_else(|| graph.operation_at(node), str::to_string),
        condition: condition_text(graph, condition),
        values: values_text(graph, symbols, &mentioned),
    })
}
