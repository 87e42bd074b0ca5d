//! Derivatives, from a graph to more of it: in reverse mode here, in forward mode in `forward`.
//!
//! [`grad`] records, behind what computes a loss, what computes its derivatives. They are tensors of the same graph: compiled,
//! fused and planned with it, and differentiated again for derivatives of higher order.
//!
//! Invariants:
//! - One table says what becomes of each kind of node (`rule`), each scalar operation, view, monoid, semiring, scatter and host
//!   function: a line that is missing does not compile. What has no derivative is zero where that is the definition
//!   (comparisons, `floor`, integers), and refused by name and source line elsewhere.
//! - A cotangent has the type of its value. Where a value is used several times, its cotangents are added in f32 if it is f16 or
//!   bf16, and rounded once. A cotangent that is known to be zero is not recorded.
//! - Only nodes between what is differentiated and what it is differentiated by get cotangents. Time and size are linear in
//!   them; nothing recurs on depth, but for loops in loops.
//! - What is recorded comes from the operation whose derivative it is, so that reports say `gradient of exp` and its line.
//!
//! [`jvp`] goes the other way, from tangents of inputs to those of outputs, by a table of its own over the same rules: the file of a
//! family of nodes has them both, each the transpose of the other, at corners too.
//!
//! At corners a derivative is that of the nodes: the maximum of two equal operands passes half of it to each. Where an operation has
//! another convention, its nodes say so (`relu` selects the constant 0 at 0), or it is a region with a derivative of its own.

mod combine;
mod einsum;
mod forward;
mod index;
mod jacobian;
mod node;
mod region;
mod repeat;
mod scalar;
mod view;

use rustc_hash::FxHashMap;
use tlc_ir::graph::{Node, NodeId, NodeKind};

use crate::graph::scope::{Step, making, mixed, record, refuse, refuse_expecting};
use crate::graph::{Graph, Tensor};
pub use jacobian::{hessian, jacobian};
use node::{At, Cotangents, sum, zeros};

/// The derivatives of `loss`, a float of rank 0, by each tensor of `wrt`: inputs, constants, or values in between.
///
/// Where the loss does not depend on a tensor, the derivative is zeros; of inputs and states
/// [`Executable::explain`](crate::Executable::explain) says so.
///
/// ```
/// use tlc::{CompileOptions, DType, Graph, grad, inputs};
///
/// let g = Graph::new("square");
/// let x = g.input("x", DType::F32, [3]);
/// let loss = (&x * &x).sum(..);
/// let dx = grad(&loss, &[&x]);
/// g.output("dx", &dx[0]);
/// let square = g.compile(&CompileOptions::default())?;
/// let found = square.run(&inputs![&[1.0f32, -2.0, 3.0]])?;
/// assert_eq!(found["dx"].as_slice::<f32>()?, [2.0, -4.0, 6.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// A loss that is no float of rank 0; a tensor of integers, bools or a storage type among `wrt`; an operation between them that
/// has no derivative, such as a loop that nothing bounds.
#[track_caller]
pub fn grad(loss: &Tensor, wrt: &[&Tensor]) -> Vec<Tensor> {
    let graph = loss.graph();
    let body = || {
        if loss.rank() != 0 || !loss.dtype().is_float() {
            return refuse_expecting(
                "the loss is no float of rank 0",
                "a sum or mean over all axes, or `vjp` with cotangents",
            );
        }
        let one = graph.filled(loss.dtype().one().into(), &[], loss.dtype())?;
        let found = nonzero_derivatives(graph, &[loss], &[&one], wrt)?;
        for (t, _) in wrt.iter().zip(&found).filter(|(_, d)| d.is_none()) {
            t.id().into_iter().for_each(|id| graph.note_unreached(id));
        }
        or_zeros(graph, wrt, found)
    };
    record(graph, "grad", &[loss], &[], body, |p| vec![p; wrt.len()])
}

/// `loss` and its [`grad`]: both come out of one recording, so this computes the loss once.
///
/// ```
/// use tlc::{Graph, value_and_grad};
///
/// let g = Graph::default();
/// let x = g.constant([1.0f32, 2.0]);
/// let (loss, d) = value_and_grad(&x.exp().sum(..), &[&x]);
/// assert_eq!(d[0].sum(..).eval()?.as_slice::<f32>()?, loss.eval()?.as_slice::<f32>()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// As [`grad`].
#[track_caller]
pub fn value_and_grad(loss: &Tensor, wrt: &[&Tensor]) -> (Tensor, Vec<Tensor>) {
    (loss.clone(), grad(loss, wrt))
}

/// The product of cotangents with the Jacobian: the derivatives of `Σ outputs[i] * cotangents[i]` by each tensor of `wrt`, where
/// the cotangents count as constants. A cotangent has the type of its output.
///
/// ```
/// use tlc::{Graph, vjp};
///
/// let g = Graph::default();
/// let x = g.constant([1.0f32, 2.0, 3.0]);
/// let weights = g.constant([1.0f32, 10.0, 100.0]);
/// let d = vjp(&[&x.square()], &[&weights], &[&x]);
/// assert_eq!(d[0].eval()?.as_slice::<f32>()?, [2.0, 40.0, 600.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// As [`grad`]; a cotangent of another type than its output, another number of them than of outputs.
#[track_caller]
pub fn vjp(outputs: &[&Tensor], cotangents: &[&Tensor], wrt: &[&Tensor]) -> Vec<Tensor> {
    let Some(first) = outputs.first().or(cotangents.first()).or(wrt.first()) else {
        return vec![];
    };
    let graph = first.graph();
    let operands: Vec<&Tensor> = outputs.iter().chain(cotangents).copied().collect();
    let body = || {
        same_types(graph, outputs, cotangents, ["cotangent", "output"])?;
        derivatives(graph, outputs, cotangents, wrt)
    };
    record(graph, "vjp", &operands, &[], body, |p| vec![p; wrt.len()])
}

/// The product of the Jacobian with tangents, in forward mode: the derivatives of the outputs along a direction, in which each of
/// `inputs` (inputs, constants, or values in between) moves by its tangent. A tangent has the type of what moves, and so has the result.
///
/// It costs about as much as what is differentiated, and keeps nothing: a loop has a tangent beside each value that it carries, however
/// many iterations it has, and needs no bound for them. [`vjp`] is for many inputs and few outputs, this for few directions.
///
/// ```
/// use tlc::{Graph, jvp};
///
/// let g = Graph::default();
/// let x = g.constant([1.0f32, 2.0, 3.0]);
/// let direction = g.constant([1.0f32, 10.0, 100.0]);
/// let t = jvp(&[&x.square()], &[&x], &[&direction]);
/// assert_eq!(t[0].eval()?.as_slice::<f32>()?, [2.0, 40.0, 600.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Outputs or inputs that are no floats; a tangent of another type than its input, another number of them than of inputs; bits of one
/// dtype read as another between them.
#[track_caller]
pub fn jvp(outputs: &[&Tensor], inputs: &[&Tensor], tangents: &[&Tensor]) -> Vec<Tensor> {
    let Some(first) = outputs.first().or(inputs.first()).or(tangents.first()) else {
        return vec![];
    };
    let graph = first.graph();
    let operands: Vec<&Tensor> = outputs.iter().chain(inputs).chain(tangents).copied().collect();
    let body = || {
        if let Some((k, y)) = outputs.iter().enumerate().find(|(_, y)| !y.dtype().is_float()) {
            return refuse_expecting(format!("output {k} is {}", y.type_text()), "floats");
        }
        same_types(graph, inputs, tangents, ["tangent", "input"])?;
        forward::all_tangents(graph, outputs, inputs, tangents, derivatives)
    };
    record(graph, "jvp", &operands, &[], body, |p| vec![p; outputs.len()])
}

/// The product of the second derivatives of `loss` with vectors: how [`grad`] changes as each of `inputs` moves by its vector. It is
/// forward mode over reverse mode, which costs a few times what the loss does and never has the matrix of second derivatives.
///
/// ```
/// use tlc::{Graph, hvp};
///
/// let g = Graph::default();
/// let x = g.constant([1.0f64, 2.0]);
/// let loss = x.pow(3.0).sum(..) + x.prod(0);
/// // The second derivatives are [[6 x0, 1], [1, 6 x1]].
/// let h = hvp(&loss, &[&x], &[&g.constant([1.0f64, 10.0])]);
/// assert_eq!(h[0].eval()?.as_slice::<f64>()?, [16.0, 121.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// As [`grad`] and [`jvp`].
#[track_caller]
pub fn hvp(loss: &Tensor, inputs: &[&Tensor], vectors: &[&Tensor]) -> Vec<Tensor> {
    let graph = loss.graph();
    let operands: Vec<&Tensor> = std::iter::once(&loss).chain(inputs).chain(vectors).copied().collect();
    let body = || {
        same_types(graph, inputs, vectors, ["vector", "input"])?;
        let slope = grad(loss, inputs);
        Ok(jvp(&slope.iter().collect::<Vec<_>>(), inputs, vectors))
    };
    record(graph, "hvp", &operands, &[], body, |p| vec![p; inputs.len()])
}

/// Refuses tensors that do not have the types of the values that they belong to. `names` says what is given, and what it belongs to.
fn same_types(graph: &Graph, values: &[&Tensor], given: &[&Tensor], names: [&str; 2]) -> Step<()> {
    let [what, of] = names;
    if values.len() != given.len() {
        let problem = format!("{} {of}s and {} {what}s", values.len(), given.len());
        return refuse_expecting(problem, format!("a {what} for each {of}"));
    }
    for (x, d) in values.iter().zip(given) {
        let fits = x.dtype().is_float() && x.dtype() == d.dtype() && x.rank() == d.rank();
        let differs = |(a, b): (&_, &_)| graph.differ(a, b);
        if !fits || x.extents().iter().zip(d.extents()).any(differs) {
            let problem = format!("a {what} {} of {}", d.type_text(), x.type_text());
            return refuse_expecting(problem, "floats of one type");
        }
    }
    Ok(())
}

/// What the derivatives by `wrt` are, zeros included.
fn derivatives(graph: &Graph, outputs: &[&Tensor], cotangents: &[&Tensor], wrt: &[&Tensor]) -> Step<Vec<Tensor>> {
    or_zeros(graph, wrt, nonzero_derivatives(graph, outputs, cotangents, wrt)?)
}

/// Derivatives by tensors, with zeros in place of those that are not there.
fn or_zeros(graph: &Graph, wrt: &[&Tensor], found: Vec<Option<Tensor>>) -> Step<Vec<Tensor>> {
    let each = wrt.iter().zip(found);
    each.map(|(t, d)| d.map_or_else(|| zeros(graph, t.extents(), t.dtype()), Ok))
        .collect()
}

/// As [`derivatives`], none by what the outputs do not depend on.
fn nonzero_derivatives(
    graph: &Graph,
    outputs: &[&Tensor],
    cotangents: &[&Tensor],
    wrt: &[&Tensor],
) -> Step<Vec<Option<Tensor>>> {
    if !wrt.iter().all(|t| t.graph().is(graph)) {
        return Err(mixed(wrt.iter().map(|t| t.graph()).chain([graph])));
    }
    if let Some((k, t)) = wrt
        .iter()
        .enumerate()
        .find(|(_, t)| !t.is_poisoned() && !t.dtype().is_float())
    {
        let problem = format!("tensor {k} to differentiate by is {}", t.type_text());
        return refuse_expecting(problem, "floats");
    }
    let Some(ids) = wrt.iter().map(|t| t.id()).collect::<Option<Vec<NodeId>>>() else {
        // The graph knows why.
        return Ok(wrt.iter().map(|t| Some(Tensor::poisoned(graph, t.dtype()))).collect());
    };
    let mut walk = Walk::new(graph, outputs, &ids);
    for (y, d) in outputs.iter().zip(cotangents) {
        walk.add(y, (*d).clone())?;
    }
    let found = walk.back()?;
    Ok(ids.iter().map(|id| found.get(id).cloned()).collect())
}

/// A walk from outputs back to what they are differentiated by.
struct Walk<'a> {
    graph: &'a Graph,
    /// By node: whether it is differentiated by, or computed from what is.
    active: Vec<bool>,
    /// Those that are differentiated by.
    wrt: FxHashMap<NodeId, Option<Tensor>>,
    /// By node: cotangents of its uses so far.
    uses: Vec<Vec<Tensor>>,
    /// Cotangents of results of nodes that have several.
    parts: FxHashMap<NodeId, Vec<(u32, Tensor)>>,
}

impl Walk<'_> {
    fn new<'a>(graph: &'a Graph, outputs: &[&Tensor], wrt: &[NodeId]) -> Walk<'a> {
        let end = outputs
            .iter()
            .filter_map(|t| t.id())
            .map(|id| id.index() + 1)
            .max()
            .unwrap_or(0);
        let mut active = vec![false; end];
        wrt.iter()
            .filter(|id| id.index() < end)
            .for_each(|id| active[id.index()] = true);
        let start = wrt.iter().map(|id| id.index()).min().unwrap_or(end);
        graph.with_ir(|ir| {
            for i in start..end {
                let node = ir.node(NodeId(i as u32));
                let may = node.kind.is_tuple() || node.ty.dtype.is_float();
                active[i] |= may && node.operands.iter().any(|o| active[o.index()]);
            }
        });
        Walk {
            graph,
            active,
            wrt: wrt.iter().map(|&id| (id, None)).collect(),
            uses: vec![vec![]; end],
            parts: FxHashMap::default(),
        }
    }

    /// A further cotangent of a value.
    fn add(&mut self, value: &Tensor, cotangent: Tensor) -> Step<()> {
        if let Some(id) = value.id()
            && self.active[id.index()]
        {
            self.uses[id.index()].push(cotangent.expanded(value.extents())?);
        }
        Ok(())
    }

    /// Goes through the nodes, the last first. Returns the cotangents of those that are differentiated by.
    fn back(mut self) -> Step<FxHashMap<NodeId, Tensor>> {
        for i in (0..self.active.len()).rev() {
            let id = NodeId(i as u32);
            let uses = std::mem::take(&mut self.uses[i]);
            if uses.is_empty() && !self.parts.contains_key(&id) {
                continue;
            }
            let node = self.graph.with_ir(|ir| ir.node(id).clone());
            let origin = node.origin.derived("gradient", node.kind.name());
            making(origin, || self.through(id, &node, uses)).map_err(|(problem, expected)| {
                let operation = self.graph.with_ir(|ir| ir.operation_at(id));
                (format!("the derivative of {operation}: {problem}"), expected)
            })?;
        }
        Ok(self.wrt.into_iter().filter_map(|(id, d)| Some((id, d?))).collect())
    }

    /// From a node's cotangents to those of its operands.
    fn through(&mut self, id: NodeId, node: &Node, uses: Vec<Tensor>) -> Step<()> {
        let tensor = |id: NodeId| {
            let ty = self.graph.with_ir(|ir| ir.ty(id).clone());
            Tensor::new(self.graph.clone(), id, ty)
        };
        let result = tensor(id);
        let operands: Vec<Tensor> = node.operands.iter().map(|&o| tensor(o)).collect();
        let wanted: Vec<bool> = node.operands.iter().map(|o| self.active[o.index()]).collect();
        let cotangents = match &node.kind {
            NodeKind::Loop(it) => {
                let parts = self.parts.remove(&id).unwrap_or_default();
                repeat::rule(it, &operands, &wanted, &parts, derivatives)?
            }
            NodeKind::Call(function) => {
                let parts = self.parts.remove(&id).unwrap_or_default();
                let mut all = vec![None; operands.len()];
                all[0] = Some(index::call(function, &result, &operands, &parts)?.to(operands[0].dtype())?);
                all
            }
            NodeKind::Region(region) => {
                let parts = self.parts.remove(&id).unwrap_or_default();
                let count = node.results.len() as u32;
                let results: Vec<Tensor> = (0..count)
                    .map(|k| self.graph.node(NodeKind::Project(k), &[&result]))
                    .collect::<Step<_>>()?;
                region::rule(region, &results, &operands, &wanted, &parts, derivatives)?
            }
            kind => {
                let Some(total) = sum(&uses, result.dtype())? else {
                    return refuse("a value without uses");
                };
                if let Some(of) = self.wrt.get_mut(&id) {
                    *of = Some(total.clone());
                }
                if let NodeKind::Project(part) = kind {
                    if wanted[0] {
                        let of = self.parts.entry(node.operands[0]).or_default();
                        of.push((*part, total));
                    }
                    return Ok(());
                }
                if !wanted.contains(&true) {
                    return Ok(());
                }
                rule(&At {
                    kind,
                    operands: &operands,
                    wanted: &wanted,
                    result: &result,
                    cotangent: &total,
                })?
            }
        };
        for (x, d) in operands.iter().zip(cotangents) {
            if let Some(d) = d {
                self.add(x, d)?;
            }
        }
        Ok(())
    }
}

/// The table: what becomes of the cotangent of a node's result.
fn rule(at: &At<'_>) -> Step<Cotangents> {
    match at.kind {
        NodeKind::Input { .. } | NodeKind::Const(_) | NodeKind::Data(_) | NodeKind::Iota { .. } => Ok(at.zero()),
        NodeKind::Random { .. } => Ok(at.zero()),
        NodeKind::Map(op) => scalar::rule(*op, at),
        // `each` rounds to the operand's dtype.
        NodeKind::Convert(_) => at.each(|_| Ok(at.cotangent.clone())),
        NodeKind::Bitcast(dtype) if *dtype == at.operands[0].dtype() => at.each(|_| Ok(at.cotangent.clone())),
        NodeKind::Bitcast(_) => refuse("bits of one dtype read as another have none"),
        NodeKind::Einsum {
            inputs,
            output,
            semiring,
            accumulator,
            dtype: _,
        } => einsum::rule(inputs, output, *semiring, *accumulator, at),
        NodeKind::Reduce { monoid, axes } => combine::reduce(*monoid, axes, at),
        NodeKind::View(view) => view::rule(view, at),
        NodeKind::Gather { axes } => index::gather(axes, at),
        NodeKind::Scatter { axes, op } => index::scatter(axes, *op, at),
        NodeKind::Scan {
            monoid,
            axis,
            exclusive,
            reverse,
        } => combine::scan(*monoid, *axis as usize, *exclusive, *reverse, at),
        NodeKind::Copy => at.each(|_| Ok(at.cotangent.clone())),
        NodeKind::Loop(_) | NodeKind::Call(_) | NodeKind::Region(_) | NodeKind::Project(_) => {
            refuse("a node of several results")
        }
    }
}
