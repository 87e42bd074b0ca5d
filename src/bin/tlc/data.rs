//! Tensors in and out: inputs from files or made up, summaries of results, names of output files.

use std::collections::{HashMap, HashSet};
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tlc::{DType, HostTensor, Scalar};
use tlc_formats::{npy, npz};
use tlc_ir::binding::idle_symbols;
use tlc_ir::graph::{Symbol, TensorType};
use tlc_ir::index::{IndexExpr, IndexNode, SymId};
use tlc_ir::tensor::element;
use tlc_ir::{Graph, NodeKind};
use tlc_runtime::driver::TensorView;

use crate::failure::{Code, Failure, tensor_text};
use crate::session::{Session, display, open};

/// Where an input comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// An npy file.
    File(PathBuf),
    /// An array of an npz file: that of the input's name, or another.
    Array(PathBuf, Option<String>),
    /// Uniform in [-1, 1) for floats, 0 to 9 for integers, either for bool; by name and seed.
    Random,
    /// Zeros.
    Zeros,
    /// Ones.
    Ones,
}

/// `NAME=SOURCE`.
pub type InputSpec = (String, Source);

/// Reads `NAME=FILE.npy`, `NAME=FILE.npz:KEY`, `NAME=random`, `NAME=zeros` or `NAME=ones`.
pub fn input_spec(text: &str) -> Result<InputSpec, String> {
    let (name, source) = text
        .split_once('=')
        .ok_or("expected NAME=FILE.npy, NAME=FILE.npz:KEY, NAME=random, NAME=zeros or NAME=ones")?;
    Ok((name.to_string(), source_of(source)?))
}

/// Reads `FILE.npy`, `FILE.npz:KEY`, `random`, `zeros` or `ones`.
pub fn source_of(text: &str) -> Result<Source, String> {
    Ok(match text {
        "" => return Err("expected a file behind `=`".into()),
        "random" => Source::Random,
        "zeros" => Source::Zeros,
        "ones" => Source::Ones,
        file => match file.split_once(".npz:") {
            Some((_, "")) => return Err("expected the name of an array behind `.npz:`".into()),
            Some((stem, key)) => Source::Array(format!("{stem}.npz").into(), Some(key.into())),
            None if file.ends_with(".npz") => Source::Array(file.into(), None),
            None => Source::File(file.into()),
        },
    })
}

/// Declared inputs of a graph, in order.
pub fn declared(graph: &Graph) -> Vec<(&str, &TensorType)> {
    let of = |&input| match &graph.node(input).kind {
        NodeKind::Input { name, ty, .. } => Some((name.as_str(), ty)),
        _ => None,
    };
    graph.inputs().iter().filter_map(of).collect()
}

fn declaration(graph: &Graph) -> String {
    let all: Vec<String> = declared(graph)
        .iter()
        .map(|(n, ty)| format!("{n}: {}", graph.type_text(ty)))
        .collect();
    if all.is_empty() {
        "no inputs".into()
    } else {
        all.join(", ")
    }
}

/// Reads one npy file, which must hold nothing else.
pub fn read_npy(session: &Session, path: &Path, hint: Option<DType>) -> Result<HostTensor, Failure> {
    let file = display(path);
    let mut reader = BufReader::with_capacity(1 << 20, open(path)?);
    let options = session.read_options(hint);
    let tensor = npy::read_from_with(&mut reader, &options).map_err(|e| Failure::format(&file, &e))?;
    match reader.read(&mut [0]) {
        Ok(0) => Ok(tensor),
        Ok(_) => Err(Failure::at(
            Code::Invalid,
            &file,
            "bytes after the array; expected the end of the file",
        )),
        Err(e) => Err(Failure::reading(&file, &e)),
    }
}

/// Reads an input from where it is, if that is a file.
pub fn read_source(
    session: &Session,
    source: &Source,
    name: &str,
    hint: Option<DType>,
) -> Option<Result<HostTensor, Failure>> {
    match source {
        Source::File(path) => Some(read_npy(session, path, hint)),
        Source::Array(path, key) => Some(read_npz(session, path, key.as_deref().unwrap_or(name), hint)),
        Source::Random | Source::Zeros | Source::Ones => None,
    }
}

fn read_npz(session: &Session, path: &Path, key: &str, hint: Option<DType>) -> Result<HostTensor, Failure> {
    let file = display(path);
    let limit = session.memory_limit();
    let mut bytes = Vec::new();
    let read = open(path)?.take(limit.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|e| Failure::reading(&file, &e))?;
    session.need_memory(&file, bytes.len() as u128, "reading it")?;
    npz::read_with(&bytes, key, &session.read_options(hint)).map_err(|e| Failure::format(&file, &e))
}

/// The inputs of a graph, in the order they are declared. What is not given comes from `otherwise`, or is an error.
pub fn inputs(
    session: &Session,
    file: &str,
    graph: &Graph,
    specs: &[InputSpec],
    otherwise: Option<Source>,
) -> Result<Vec<HostTensor>, Failure> {
    let declared = declared(graph);
    let mut seen = HashSet::new();
    for (name, _) in specs {
        if !declared.iter().any(|(n, _)| n == name) {
            let message = format!("no input is named `{name}`; expected {}", declaration(graph));
            return Err(Failure::at(Code::Invalid, file, message));
        }
        if !seen.insert(name) {
            return Err(Failure::at(
                Code::Usage,
                file,
                format!("input `{name}` is given twice; expected it once"),
            ));
        }
    }
    let mut sources = Vec::with_capacity(declared.len());
    for &(name, ty) in &declared {
        let given = specs.iter().find(|(n, _)| n == name).map(|(_, s)| s.clone());
        let source = given.or_else(|| otherwise.clone()).ok_or_else(|| {
            let example = format!("--input {name}=FILE.npy with {}", graph.type_text(ty));
            Failure::at(
                Code::Invalid,
                file,
                format!("input `{name}` is missing; expected {example}"),
            )
        })?;
        sources.push(source);
    }
    determined(graph, file)?;
    // Files first: their shapes say how large the others are.
    let mut symbols: Vec<Option<i64>> = vec![None; graph.symbols().len()];
    let mut tensors: Vec<Option<HostTensor>> = Vec::with_capacity(declared.len());
    for (&(name, ty), source) in declared.iter().zip(&sources) {
        let Some(read) = read_source(session, source, name, Some(ty.dtype)) else {
            tensors.push(None);
            continue;
        };
        let tensor = read?;
        let place = match source {
            Source::File(path) | Source::Array(path, _) => display(path),
            _ => file.to_string(),
        };
        check_type(graph, name, ty, &tensor, &place)?;
        for (dim, &extent) in ty.shape.iter().zip(tensor.shape()) {
            if let IndexExpr::Node(n) = dim
                && let IndexNode::Sym(s) = &**n
            {
                symbols[s.0 as usize].get_or_insert(extent as i64);
            }
        }
        tensors.push(Some(tensor));
    }
    // Some can have one value. Whatever others are changes nothing, so an input that nothing reads is made as small as it may be.
    for ((value, s), idle) in symbols.iter_mut().zip(graph.symbols()).zip(idle_symbols(graph, &[])) {
        *value = value.or((idle || s.lo == s.hi).then_some(s.lo));
    }
    let made = declared.iter().zip(&tensors).filter(|(_, tensor)| tensor.is_none());
    let made: Vec<(&str, &TensorType)> = made.map(|(declared, _)| *declared).collect();
    known_extents(&made, graph, &symbols, file)?;
    let mut total: u128 = tensors.iter().flatten().map(|t| t.bytes().len() as u128).sum();
    let mut shapes = Vec::with_capacity(declared.len());
    for (&(name, ty), tensor) in declared.iter().zip(&tensors) {
        if tensor.is_some() {
            shapes.push(vec![]);
            continue;
        }
        let shape = shape_under(graph, name, ty, &symbols, file)?;
        let elements = shape.iter().fold(1u128, |n, &d| n.saturating_mul(d as u128));
        total = total.saturating_add(elements.saturating_mul(ty.dtype.bytes() as u128));
        session.need_memory(file, total, &format!("input `{name}`"))?;
        shapes.push(shape);
    }
    let made =
        declared
            .iter()
            .zip(tensors)
            .zip(sources.iter().zip(shapes))
            .map(|((&(name, ty), tensor), (source, shape))| match tensor {
                Some(tensor) => Ok(tensor),
                None => make(source, name, ty.dtype, &shape, session.global.seed)
                    .map_err(|e| Failure::at(Code::Limit, file, format!("input `{name}`: {e}"))),
            });
    made.collect()
}

/// Every size that what is computed needs must be the extent of some input, or be decided by data.
fn determined(graph: &Graph, file: &str) -> Result<(), Failure> {
    let extents = || declared(graph).into_iter().flat_map(|(_, ty)| &ty.shape);
    let symbols = graph.symbols().iter().zip(0..).zip(idle_symbols(graph, &[]));
    let open = symbols.filter(|&((s, id), idle)| {
        let own = IndexExpr::from(SymId(id));
        s.upper.is_none() && s.lo < s.hi && !idle && extents().all(|d| *d != own)
    });
    let open: Vec<&Symbol> = open.map(|((s, _), _)| s).collect();
    let what = match open[..] {
        [] => return Ok(()),
        [_] => "is the extent of no input",
        _ => "are the extents of no input",
    };
    let message = format!("{} {what}; expected {}", named(&open), settings(&open));
    Err(Failure::at(Code::Usage, file, message))
}

/// Sizes by name.
fn named(sizes: &[&Symbol]) -> String {
    let names: Vec<String> = sizes.iter().map(|s| format!("`{}`", s.name)).collect();
    let noun = if names.len() == 1 { "size" } else { "sizes" };
    format!("{noun} {}", listed(&names))
}

/// What gives sizes values.
fn settings(sizes: &[&Symbol]) -> String {
    let setting = |s: &&Symbol| format!("--set {0}=N with N in {1}..={2}", s.name, s.lo, s.hi);
    listed(&sizes.iter().map(setting).collect::<Vec<_>>())
}

fn listed(all: &[String]) -> String {
    match all {
        [rest @ .., last] if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => all.concat(),
    }
}

/// An error if several sizes of inputs that are made up follow from nothing: all of them at once.
fn known_extents(
    made: &[(&str, &TensorType)],
    graph: &Graph,
    symbols: &[Option<i64>],
    file: &str,
) -> Result<(), Failure> {
    let mut open = Vec::new();
    for dim in made.iter().flat_map(|(_, ty)| &ty.shape) {
        dim.visit_atoms(&mut |atom| {
            if let IndexNode::Sym(s) = atom
                && symbols[s.0 as usize].is_none()
                && !open.contains(s)
            {
                open.push(*s);
            }
        });
    }
    if open.len() < 2 {
        return Ok(());
    }
    let open: Vec<&Symbol> = open.iter().map(|s| &graph.symbols()[s.0 as usize]).collect();
    let message = format!("nothing determines {}; expected {}", named(&open), settings(&open));
    Err(Failure::at(Code::Usage, file, message))
}

/// Dtype and rank, and extents that are numbers; the rest is checked where symbols are bound.
fn check_type(graph: &Graph, name: &str, ty: &TensorType, tensor: &HostTensor, file: &str) -> Result<(), Failure> {
    let fits = ty.dtype == tensor.dtype()
        && ty.rank() == tensor.shape().len()
        && ty
            .shape
            .iter()
            .zip(tensor.shape())
            .all(|(d, &n)| d.as_const().is_none_or(|d| d == n as i64));
    if fits {
        return Ok(());
    }
    let what = if ty.dtype == tensor.dtype() { "shape" } else { "dtype" };
    let (expected, found) = (graph.type_text(ty), tensor_text(tensor));
    let message = format!("wrong {what} for input `{name}`; expected {expected}, found {found}");
    Err(Failure::at(Code::Invalid, file, message))
}

fn shape_under(
    graph: &Graph,
    name: &str,
    ty: &TensorType,
    symbols: &[Option<i64>],
    file: &str,
) -> Result<Vec<usize>, Failure> {
    let mut shape = Vec::with_capacity(ty.rank());
    for dim in &ty.shape {
        let mut unknown = None;
        let bound = dim.replace(&mut |n| match n {
            IndexNode::Sym(s) => match symbols[s.0 as usize] {
                Some(v) => Some(IndexExpr::Const(v)),
                None => {
                    unknown.get_or_insert(*s);
                    None
                }
            },
            _ => None,
        });
        if let Some(symbol) = unknown {
            let s = &graph.symbols()[symbol.0 as usize];
            let message = format!(
                "input `{name}` is {} and nothing determines `{}`; expected --set {}=N with N in {}..={}",
                graph.type_text(ty),
                s.name,
                s.name,
                s.lo,
                s.hi
            );
            return Err(Failure::at(Code::Usage, file, message));
        }
        let extent = bound.as_const().and_then(|d| usize::try_from(d).ok()).ok_or_else(|| {
            Failure::at(
                Code::Invalid,
                file,
                format!("input `{name}`: {} is no size", graph.dim_text(dim)),
            )
        })?;
        shape.push(extent);
    }
    Ok(shape)
}

fn make(
    source: &Source,
    name: &str,
    dtype: DType,
    shape: &[usize],
    seed: u64,
) -> Result<HostTensor, tlc_ir::tensor::TensorError> {
    if *source == Source::Ones {
        return HostTensor::full(shape, dtype.one());
    }
    if *source == Source::Zeros {
        return HostTensor::zeros(dtype, shape);
    }
    tlc::verify::data::random(name, dtype, shape, seed)
}

/// What a tensor holds, in short.
pub struct Summary {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    range: Option<(Scalar, Scalar)>,
    mean: Option<f64>,
    nans: usize,
    infinities: usize,
    first: Vec<Scalar>,
}

/// Elements that a summary shows.
const FIRST: usize = 8;

/// An order of values that are no NaN.
pub fn less(a: Scalar, b: Scalar) -> bool {
    if a.dtype().is_any_float() {
        return a.as_f64() < b.as_f64();
    }
    whole(a) < whole(b)
}

fn whole(s: Scalar) -> i128 {
    if s.dtype() == DType::U64 {
        i128::from(s.bits())
    } else {
        i128::from(s.as_i64())
    }
}

impl Summary {
    /// Summarizes a tensor. NaNs are counted and else left out; infinities are counted and left out of the mean.
    pub fn of(name: &str, tensor: TensorView<'_>) -> Summary {
        let len: usize = tensor.shape.iter().product();
        let get = |i: usize| element(tensor.dtype, tensor.data, i);
        let (mut range, mut sum, mut nans, mut infinities) = (None, 0f64, 0usize, 0usize);
        for i in 0..len {
            let v = get(i);
            if v.is_nan() {
                nans += 1;
                continue;
            }
            let number = match v.dtype().is_any_float() {
                true => v.as_f64(),
                false => whole(v) as f64,
            };
            if number.is_infinite() {
                infinities += 1;
            } else {
                sum += number;
            }
            range = Some(match range {
                None => (v, v),
                Some((lo, hi)) => (if less(v, lo) { v } else { lo }, if less(hi, v) { v } else { hi }),
            });
        }
        let counted = len - nans - infinities;
        Summary {
            name: name.to_string(),
            dtype: tensor.dtype,
            shape: tensor.shape.to_vec(),
            range,
            mean: (counted > 0).then(|| sum / counted as f64),
            nans,
            infinities,
            first: (0..len.min(FIRST)).map(get).collect(),
        }
    }

    fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// For programs.
    pub fn json(&self) -> Value {
        json!({
            "name": self.name,
            "dtype": self.dtype.name(),
            "shape": self.shape,
            "min": self.range.map(|r| scalar_json(r.0)),
            "max": self.range.map(|r| scalar_json(r.1)),
            "mean": self.mean.map(number_json),
            "nan": self.nans,
            "infinite": self.infinities,
            "first": self.first.iter().copied().map(scalar_json).collect::<Vec<_>>(),
        })
    }

    /// For people: one line of facts, one of values.
    pub fn text(&self) -> String {
        let shape: Vec<String> = self.shape.iter().map(usize::to_string).collect();
        let mut line = format!("{}: {}[{}]", self.name, self.dtype, shape.join(", "));
        if let Some((lo, hi)) = self.range {
            line += &format!("  min {lo}  max {hi}");
        }
        if let Some(mean) = self.mean {
            line += &format!("  mean {mean:.6}");
        }
        if self.nans > 0 {
            line += &format!("  {} nan", self.nans);
        }
        if self.infinities > 0 {
            line += &format!("  {} infinite", self.infinities);
        }
        line.push('\n');
        if !self.first.is_empty() {
            let values: Vec<String> = self.first.iter().map(Scalar::to_string).collect();
            let more = if self.elements() > FIRST { ", …" } else { "" };
            line += &format!("  {}{more}\n", values.join(", "));
        }
        line
    }
}

/// A number for JSON, which has no infinities: those and NaN are strings.
pub fn number_json(value: f64) -> Value {
    serde_json::Number::from_f64(value).map_or_else(|| Value::String(value.to_string()), Value::Number)
}

pub fn scalar_json(s: Scalar) -> Value {
    match s.dtype() {
        DType::Bool => Value::Bool(s.as_bool()),
        DType::U64 => json!(s.bits()),
        // The shortest decimal of an f32 is not that of its f64.
        DType::F32 => match format!("{}", s.as_f64() as f32).parse::<f64>() {
            Ok(v) => number_json(v),
            Err(_) => number_json(s.as_f64()),
        },
        d if d.is_any_float() => number_json(s.as_f64()),
        _ => json!(s.as_i64()),
    }
}

/// Longer names are not used for files.
const MAX_FILE_NAME: usize = 200;

/// Names of output files: characters outside `[A-Za-z0-9._-]` become `_`; names that then collide (or are too long for a
/// file system) become `output_<position>`. With the ending `.npy`.
pub fn file_names<'a>(outputs: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let keep = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let clean = |name: &str| -> String { name.chars().map(|c| if keep(c) { c } else { '_' }).collect() };
    let mut names: Vec<String> = outputs.into_iter().map(clean).collect();
    let mut numbered: Vec<bool> = names.iter().map(|n| n.is_empty() || n.len() > MAX_FILE_NAME).collect();
    loop {
        for (i, name) in names.iter_mut().enumerate().filter(|(i, _)| numbered[*i]) {
            *name = format!("output_{i}");
        }
        // A number may take another output's name, which then collides.
        let mut count: HashMap<&str, usize> = HashMap::new();
        names.iter().for_each(|n| *count.entry(n).or_default() += 1);
        let collides: Vec<usize> = (0..names.len())
            .filter(|&i| !numbered[i] && count[names[i].as_str()] > 1)
            .collect();
        if collides.is_empty() {
            return names.into_iter().map(|n| n + ".npy").collect();
        }
        collides.into_iter().for_each(|i| numbered[i] = true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_are_clean_and_distinct() {
        assert_eq!(file_names(["y", "a.b-C_9"]), ["y.npy", "a.b-C_9.npy"]);
        assert_eq!(
            file_names(["a/b", "x", "a_b"]),
            ["output_0.npy", "x.npy", "output_2.npy"]
        );
        assert_eq!(file_names(["ä"]), ["_.npy"]);
        assert_eq!(
            file_names(["a/b", "a_b", "output_0"]),
            ["output_0.npy", "output_1.npy", "output_2.npy"]
        );
        assert_eq!(file_names(["", &"x".repeat(300)]), ["output_0.npy", "output_1.npy"]);
    }

    #[test]
    fn inputs_have_a_name_and_a_source() {
        assert_eq!(
            input_spec("x=a=b.npy"),
            Ok(("x".into(), Source::File("a=b.npy".into())))
        );
        assert_eq!(input_spec("x=random"), Ok(("x".into(), Source::Random)));
        assert!(input_spec("x").is_err() && input_spec("x=").is_err());
        let array = |file: &str, key: Option<&str>| Source::Array(file.into(), key.map(String::from));
        assert_eq!(input_spec("x=a.npz:k:1"), Ok(("x".into(), array("a.npz", Some("k:1")))));
        assert_eq!(input_spec("x=a.npz"), Ok(("x".into(), array("a.npz", None))));
    }
}
