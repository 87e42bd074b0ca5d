//! `tlc grad`: a model with the derivatives of its outputs. The derivatives are [`tlc::vjp`]'s; lines of a batch may ask for them,
//! too (`batch.rs`).

use std::borrow::Cow;
use std::collections::HashSet;
use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use tlc::{DType, Dim, Errors, Graph as Recording, Tensor, vjp};
use tlc_ir::graph::control::mentions_data;
use tlc_ir::graph::{NodeId, Origin};
use tlc_ir::index::IndexExpr;
use tlc_ir::{Graph, NodeKind};

use crate::args::ModelArgs;
use crate::data::{InputSpec, declared, input_spec};
use crate::failure::{Code, Failure};
use crate::import::{check_name, write_text};
use crate::onnx::Purpose;
use crate::session::{Model, Session};

/// Arguments.
#[derive(Args, Debug)]
#[command(after_help = "\
Writes FILE.tlir, and weights beside it in FILE.safetensors, as `tlc import` does. The graph has the model's inputs, then an input d.Y
for each output Y that is differentiated, of Y's type: what the derivatives are weighted with, ones for those of a sum. Its outputs
are the model's, then d.NAME for each NAME that it is differentiated by, of NAME's type: the sum, over all elements of all Y, of d.Y
times the derivative. Where data decides how long Y is, d.Y has a size of its own, and a call whose d.Y is not as long as its Y fails.

Weights are constants of at least two floats that the model gives a name. What the outputs do not depend on has zeros. What has no
derivative, such as a loop that nothing bounds, is refused by name with exit code 4; a loop whose trip count is an input is bounded by
the value that --input gives it, and any loop that data ends by --max-iterations.

What is written is a model like any other: `tlc grad FILE.tlir --of d.X --wrt X --prefix dd. -o SECOND.tlir` has second derivatives. Its
input dd.d.X is a direction V of X, its output dd.X the product of the matrix of second derivatives with V.")]
pub struct Grad {
    #[command(flatten)]
    model: ModelArgs,
    /// The outputs to differentiate
    #[arg(long, value_name = "Y,..", value_delimiter = ',')]
    of: Vec<String>,
    /// What to differentiate by: inputs or weights by name, or `weights` for all of them; `list` prints their names
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', required = true)]
    wrt: Vec<String>,
    /// Weights to leave out of `weights`; `*` is any text, as in --freeze 'encoder.*'
    #[arg(long, value_name = "PATTERN")]
    freeze: Vec<String>,
    /// What names of derivatives begin with, another one than in a model that has derivatives already
    #[arg(long, value_name = "TEXT", default_value = PREFIX)]
    prefix: String,
    /// The most iterations of a loop that a condition or an input ends: what is written ends it then, and keeps so many for its derivative
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_iterations: Option<u32>,
    /// The text to write; the weights go beside it, under its name
    #[arg(long, short = 'o', value_name = "FILE.tlir")]
    output: Option<PathBuf>,
    /// An input on whose value the model's shapes or its loops' trip counts depend, as in x=x.npy or x=all.npz:KEY: the text is for that value
    #[arg(long = "input", short = 'i', value_name = "NAME=SOURCE", value_parser = input_spec)]
    inputs: Vec<InputSpec>,
}

/// What names of derivatives begin with, unless it is said.
pub const PREFIX: &str = "d.";
/// What the recording says of a loop that has no derivative, to which there is an option here.
const UNBOUNDED: &str = "nothing bounds its iterations";
/// All weights, in place of a name.
const WEIGHTS: &str = "weights";
/// Names, in place of derivatives.
const LIST: &str = "list";

/// What is differentiated, by what.
pub struct Asked<'a> {
    /// Outputs.
    pub of: &'a [String],
    /// Inputs and weights.
    pub wrt: &'a [String],
    /// Patterns of weights that are no part of all.
    pub freeze: &'a [String],
    /// What names of derivatives and cotangents begin with.
    pub prefix: &'a str,
    /// The most iterations of loops that data ends.
    pub max_iterations: Option<u32>,
}

impl Asked<'_> {
    /// The name of a derivative, or of a cotangent.
    fn derivative(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

/// The model whose loops that data ends have a bound, if one is given.
pub fn bounded<'a>(model: &'a Model, max_iterations: Option<u32>) -> Result<Cow<'a, Graph>, Failure> {
    let Some(most) = max_iterations else {
        return Ok(Cow::Borrowed(&model.graph));
    };
    let ended = model.graph.with_loops_ended_after(most).map(Cow::Owned);
    ended.map_err(|e| Failure::at(Code::Invalid, &model.file, e.to_string()))
}

/// The model as it is differentiated: [`bounded`], and the weights that bodies of its loops read are weights of the graph, where a derivative
/// finds them.
fn prepared<'a>(model: &'a Model, max_iterations: Option<u32>) -> Result<Cow<'a, Graph>, Failure> {
    let graph = bounded(model, max_iterations)?;
    match graph.with_constants_captured() {
        Ok(captured) => Ok(captured.map_or(graph, Cow::Owned)),
        Err(e) => Err(Failure::at(Code::Invalid, &model.file, e.to_string())),
    }
}

/// What was expected in place of a loop that has no derivative, if that is what was refused.
pub fn expected_of(problem: &str) -> Option<&'static str> {
    let unbounded = problem.contains(UNBOUNDED);
    unbounded.then_some("a trip count, from --input if it is one, or --max-iterations")
}

/// Names of what is no constant, in bodies of loops as well.
fn names_of_operations<'a>(graph: &'a Graph, names: &mut HashSet<&'a str>) {
    for (_, node) in graph.nodes() {
        match (&node.kind, node.origin.recorded()) {
            (NodeKind::Data(_) | NodeKind::Input { .. }, _) => {}
            (_, Origin::Named(name)) => {
                names.insert(&**name);
            }
            _ => {}
        }
        if let NodeKind::Loop(l) = &node.kind {
            names_of_operations(&l.body.0, names);
        }
    }
}

/// Weights: constants of at least two floats that the model names, in the order of the graph.
fn weights(graph: &Graph) -> Vec<(&str, NodeId)> {
    let floats = |id: &NodeId| match &graph.node(*id).kind {
        NodeKind::Data(data) => data.0.dtype().is_float() && data.0.len() >= 2,
        _ => false,
    };
    // Constants that an importer made for an operation have the name of that, not one of their own.
    let mut operations = HashSet::new();
    names_of_operations(graph, &mut operations);
    let named = |id: NodeId| match graph.node(id).origin.recorded() {
        Origin::Weights(name) => Some((&**name, id)),
        Origin::Named(name) if !operations.contains(&**name) => Some((&**name, id)),
        _ => None,
    };
    graph
        .nodes()
        .map(|(id, _)| id)
        .filter(floats)
        .filter_map(named)
        .collect()
}

/// Whether a name is one of those that a pattern means: `*` is any text.
fn is_meant(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else {
        return false;
    };
    let Some(last) = parts.next_back() else {
        return rest.is_empty();
    };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

fn listed(names: &[&str]) -> String {
    match names.is_empty() {
        true => "none".into(),
        false => names.join(", "),
    }
}

/// The tensors to differentiate by, with their names.
fn by<'a>(file: &str, graph: &'a Graph, asked: &'a Asked<'_>) -> Result<Vec<(&'a str, NodeId)>, Failure> {
    let weights = weights(graph);
    let inputs = || {
        declared(graph)
            .into_iter()
            .map(|d| d.0)
            .zip(graph.inputs().iter().copied())
    };
    let mut all: Vec<(&str, NodeId)> = vec![];
    if let (Some(pattern), false) = (asked.freeze.first(), asked.wrt.iter().any(|w| w == WEIGHTS)) {
        let message = format!("--freeze {pattern}: no `{WEIGHTS}` to leave it out of; expected that among --wrt");
        return Err(Failure::at(Code::Invalid, file, message));
    }
    for pattern in asked.freeze {
        if !weights.iter().any(|(name, _)| is_meant(pattern, name)) {
            let message = format!("--freeze {pattern}: no weight has such a name");
            return Err(Failure::at(Code::Invalid, file, message));
        }
    }
    for name in asked.wrt {
        let found: Vec<(&str, NodeId)> = match inputs().find(|(n, _)| n == name) {
            Some(input) => vec![input],
            None if name == WEIGHTS => {
                let is_frozen = |name: &str| asked.freeze.iter().any(|p| is_meant(p, name));
                weights.iter().copied().filter(|(n, _)| !is_frozen(n)).collect()
            }
            None => weights.iter().copied().filter(|(n, _)| n == name).collect(),
        };
        if found.is_empty() {
            let message = match name == WEIGHTS {
                true => "the model has no weights to differentiate by; expected inputs".to_string(),
                false => format!(
                    "no input or weight of at least two floats is named `{name}`; `--wrt {LIST}` prints their names"
                ),
            };
            return Err(Failure::at(Code::Invalid, file, message));
        }
        all.extend(found);
    }
    for (i, (name, id)) in all.iter().enumerate() {
        let message = if all[..i].iter().any(|(n, _)| n == name) {
            format!(
                "two derivatives are named `{}`; expected each once",
                asked.derivative(name)
            )
        } else if !graph.ty(*id).dtype.is_float() {
            format!("`{name}` is {}; expected floats", graph.type_text(graph.ty(*id)))
        } else {
            continue;
        };
        return Err(Failure::at(Code::Invalid, file, message));
    }
    Ok(all)
}

/// The outputs to differentiate, with their names.
fn of<'a>(file: &str, graph: &'a Graph, asked: &'a Asked<'_>) -> Result<Vec<(&'a str, NodeId)>, Failure> {
    let mut all: Vec<(&str, NodeId)> = vec![];
    for name in asked.of {
        let message = match graph.outputs().iter().find(|o| o.name == *name) {
            None => {
                let names: Vec<&str> = graph.outputs().iter().map(|o| o.name.as_str()).collect();
                format!("no output is named `{name}`; expected {}", listed(&names))
            }
            Some(_) if all.iter().any(|(n, _)| n == name) => {
                format!("output `{name}` is given twice; expected it once")
            }
            Some(output) => {
                let ty = graph.ty(output.node);
                if ty.dtype.is_float() {
                    all.push((name, output.node));
                    continue;
                }
                format!("output `{name}` is {}; expected floats", graph.type_text(ty))
            }
        };
        return Err(Failure::at(Code::Invalid, file, message));
    }
    Ok(all)
}

/// Sizes that cotangents have where data decides those of outputs, which are not known before the call, by those.
#[derive(Default)]
struct Given(Vec<(IndexExpr, Dim)>);

impl Given {
    /// An input for the cotangent of an output. Whether it is as long as the output is seen as soon as that is known: they meet in one operation, both
    /// longer by some elements there, as a length of one would be broadcast.
    fn cotangent(&mut self, recording: &Recording, graph: &Graph, name: &str, (id, y): (NodeId, &Tensor)) -> Tensor {
        let extents = &graph.ty(id).shape;
        let decided = |d: &IndexExpr| mentions_data(graph.symbols(), d);
        if !extents.iter().any(decided) {
            return recording.input(name, y.dtype(), y.shape());
        }
        let own = extents.iter().zip(y.shape()).map(|(d, as_recorded)| match decided(d) {
            true => self.size(recording, graph, d),
            false => as_recorded,
        });
        let given = recording.input(name, y.dtype(), own.collect::<Vec<Dim>>());
        let beyond: Vec<(i64, i64)> = extents.iter().map(|d| (0, if decided(d) { 2 } else { 0 })).collect();
        let met = recording
            .full(y.shape(), true, DType::Bool)
            .pad(&beyond, false)
            .select(given.pad(&beyond, 0), 0);
        let decided_axes = (0..).zip(extents).filter(|(_, d)| decided(d)).map(|(axis, _)| axis);
        decided_axes.fold(met, |all, axis: i64| {
            all.narrow(axis, 0, y.shape()[axis as usize].clone())
        })
    }

    fn size(&mut self, recording: &Recording, graph: &Graph, of: &IndexExpr) -> Dim {
        if let Some((_, size)) = self.0.iter().find(|(known, _)| known == of) {
            return size.clone();
        }
        let is_free = |name: &String| graph.symbols().iter().all(|s| s.name != *name);
        let free = (0..).map(|k| format!("given{k}")).filter(is_free).nth(self.0.len());
        let range = of.interval(graph);
        let size = recording.symbol(&free.expect("some number is free"), range.lo.max(0)..=range.hi);
        self.0.push((of.clone(), size.clone()));
        size
    }
}

/// The model with derivatives, and the names of those that are zeros whatever the inputs.
pub fn differentiated(model: &Model, asked: &Asked<'_>) -> Result<(Model, Vec<String>), Failure> {
    if asked.prefix.is_empty() {
        let message = "the prefix of derivatives is empty; expected a text such as `dd.`";
        return Err(Failure::at(Code::Invalid, &model.file, message));
    }
    let derivative = |name: &str| asked.derivative(name);
    let prepared = prepared(model, asked.max_iterations)?;
    let graph = &*prepared;
    let (of, by) = (of(&model.file, graph, asked)?, by(&model.file, graph, asked)?);
    let inputs: Vec<&str> = declared(graph).into_iter().map(|d| d.0).collect();
    for (name, kind, taken) in (of.iter())
        .map(|(name, _)| (derivative(name), "an input", inputs.clone()))
        .chain(by.iter().map(|(name, _)| {
            let outputs = graph.outputs().iter().map(|o| o.name.as_str()).collect();
            (derivative(name), "an output", outputs)
        }))
    {
        if taken.contains(&name.as_str()) {
            let message = format!(
                "the model has {kind} `{name}` already; expected that name to be free for a derivative, or another prefix \
                 than `{}`",
                asked.prefix
            );
            return Err(Failure::at(Code::Invalid, &model.file, message));
        }
    }
    let recording = Recording::from_ir(graph.clone());
    let tensors = |all: &[(&str, NodeId)]| -> Vec<Tensor> {
        let known = |(_, id): &(&str, NodeId)| recording.tensor(*id);
        all.iter().filter_map(known).collect()
    };
    let (outputs, wrt) = (tensors(&of), tensors(&by));
    let mut sizes = Given::default();
    let cotangents: Vec<Tensor> = (of.iter().zip(&outputs))
        .map(|((name, id), y)| sizes.cotangent(&recording, graph, &derivative(name), (*id, y)))
        .collect();
    fn refs(all: &[Tensor]) -> Vec<&Tensor> {
        all.iter().collect()
    }
    let derivatives = vjp(&refs(&outputs), &refs(&cotangents), &refs(&wrt));
    let mut zeros = vec![];
    for ((name, _), d) in by.iter().zip(&derivatives) {
        recording.output(&derivative(name), d);
        let value = d.id().and_then(|id| recording.with_ir(|ir| ir.splat_value(id)));
        if value.is_some_and(|v| v.as_f64() == 0.0) {
            zeros.push((*name).to_string());
        }
    }
    let refused = |e: Errors| {
        // Where it was recorded is a line of this program; the message names the operation of the model.
        let said = |e: &tlc::Error| match expected_of(&e.problem).or(e.expected.as_deref()) {
            Some(expected) => format!("{}; expected {expected}", e.problem),
            None => e.problem.clone(),
        };
        let message = e.iter().map(said).next().unwrap_or_default();
        Failure::at(Code::Unsupported, &model.file, message)
    };
    let graph = recording.finish().map_err(refused)?;
    let file = model.file.clone();
    Ok((Model { file, graph }, zeros))
}

/// Says which derivatives are zeros.
pub fn note_zeros(session: &Session, model: &Model, zeros: &[String]) {
    for name in zeros {
        let text = format!(
            "note: {}: no output that is differentiated depends on `{name}`; its derivative is zeros",
            model.file
        );
        session.console.note(&text);
    }
}

/// Prints what there is to differentiate by.
fn list(session: &Session, model: &Model) -> Result<(), Failure> {
    let prepared = prepared(model, None)?;
    let graph = &*prepared;
    let typed = |id: NodeId| graph.type_text(graph.ty(id));
    let inputs: Vec<(&str, NodeId)> = (declared(graph).into_iter().map(|d| d.0))
        .zip(graph.inputs().iter().copied())
        .filter(|(_, id)| graph.ty(*id).dtype.is_float())
        .collect();
    let weights = weights(graph);
    if session.console.json() {
        let all = |of: &[(&str, NodeId)]| -> Vec<serde_json::Value> {
            let one = |(name, id): &(&str, NodeId)| json!({ "name": name, "type": typed(*id) });
            of.iter().map(one).collect()
        };
        return (session.console).json_result(&json!({ "inputs": all(&inputs), "weights": all(&weights) }));
    }
    let mut text = String::new();
    for (what, all) in [("input", &inputs), ("weight", &weights)] {
        for (name, id) in all {
            text += &format!("{what} {name}: {}\n", typed(*id));
        }
    }
    session.console.result(&text)
}

/// Runs the command.
pub fn run(session: &Session, args: &Grad) -> Result<(), Failure> {
    let model = session.imported_model(&args.model, &args.inputs, Purpose::Derivatives)?;
    let names = declared(&model.graph);
    let lists = args.wrt.iter().any(|w| w == LIST) && !names.iter().any(|(name, _)| *name == LIST);
    match (lists, args.wrt.len()) {
        (false, _) => {}
        (true, 1) => return list(session, &model),
        (true, _) => {
            let message = format!("`{LIST}` beside other names in --wrt; expected it alone, to print the names");
            return Err(Failure::new(Code::Usage, message));
        }
    }
    let Some(output) = &args.output else {
        return Err(Failure::new(
            Code::Usage,
            "--output is missing; expected a file to write",
        ));
    };
    check_name(output)?;
    if args.of.is_empty() {
        return Err(Failure::new(
            Code::Usage,
            "--of is missing; expected outputs to differentiate",
        ));
    }
    let asked = Asked {
        of: &args.of,
        wrt: &args.wrt,
        freeze: &args.freeze,
        prefix: &args.prefix,
        max_iterations: args.max_iterations,
    };
    let (gradient, zeros) = differentiated(&model, &asked)?;
    note_zeros(session, &model, &zeros);
    write_text(session, &gradient, output)
}

#[cfg(test)]
mod tests {
    use super::is_meant;

    #[test]
    fn a_star_is_any_text() {
        for (pattern, name) in [
            ("a", "a"),
            ("*", "x.y"),
            ("a.*", "a.b"),
            ("*.b", "a.b"),
            ("a*c*e", "abcde"),
            ("**", ""),
        ] {
            assert!(is_meant(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("a", "ab"),
            ("a.*", "b.a"),
            ("*.b", "a.c"),
            ("a*c*e", "abde"),
            ("ab*b", "ab"),
            ("", "a"),
        ] {
            assert!(!is_meant(pattern, name), "{pattern} {name}");
        }
    }
}
