//! `tlc compare`: two models, or one under two settings. The differences are [`tlc::verify::compare`]'s.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};
use tlc::verify::Case;
use tlc::verify::compare::{Difference, Extreme, difference, in_float};
use tlc::{CompileOptions, DType, HostTensor, Input};
use tlc_ir::interp::{Bounded, Options, interpret_with_bounds};

use crate::args::ModelArgs;
use crate::data::{InputSpec, Source, declared, input_spec, inputs, number_json};
use crate::failure::{Code, Failure};
use crate::session::Session;

/// Arguments.
#[derive(Args, Debug)]
pub struct Compare {
    /// The first model: a .tlir or .onnx file
    a: PathBuf,
    /// The second model [default: the first, under the settings of --b-…]
    b: Option<PathBuf>,
    /// The graph to take from files that hold several [default: the first]
    #[arg(long, value_name = "NAME")]
    graph: Option<String>,
    /// An input, as in x=x.npy or x=all.npz:KEY, or made up: x=zeros, x=ones [default: random]
    #[arg(long = "input", short = 'i', value_name = "NAME=SOURCE", value_parser = input_spec)]
    inputs: Vec<InputSpec>,
    /// The graph passes to compile with, comma-separated; may be empty [default: the compiler's pipeline]
    #[arg(long, value_name = "P")]
    passes: Option<String>,
    /// The same for the second [default: as the first]
    #[arg(long, value_name = "P")]
    b_passes: Option<String>,
    /// Threads of the second [default: as the first]
    #[arg(long, value_name = "N")]
    b_threads: Option<usize>,
    /// Compute all floats as f64, f32, f16 or bf16 [default: as the model says]
    #[arg(long, value_name = "D", value_parser = float)]
    dtype: Option<DType>,
    /// The same for the second [default: as the model says]
    #[arg(long, value_name = "D", value_parser = float)]
    b_dtype: Option<DType>,
}

fn float(text: &str) -> Result<DType, String> {
    let found = DType::ALL.into_iter().find(|d| d.name() == text && d.is_float());
    found.ok_or_else(|| "expected f64, f32, f16 or bf16".into())
}

/// What one side returns.
struct Side {
    file: String,
    names: Vec<String>,
    outputs: Vec<HostTensor>,
    bounds: Vec<Bounded>,
}

fn side(
    session: &Session,
    args: &Compare,
    model: &Path,
    passes: Option<&String>,
    threads: Option<usize>,
    dtype: Option<DType>,
) -> Result<Side, Failure> {
    let chosen = ModelArgs {
        model: model.to_path_buf(),
        graph: args.graph.clone(),
    };
    let model = session.model_for(&chosen, &args.inputs)?;
    // An input of the other model alone is none of this one's.
    let own: Vec<InputSpec> = args
        .inputs
        .iter()
        .filter(|(name, _)| args.b.is_none() || declared(&model.graph).iter().any(|(n, _)| n == name))
        .cloned()
        .collect();
    let inputs = inputs(session, &model.file, &model.graph, &own, Some(Source::Random))?;
    let mut case = Case {
        graph: model.graph,
        inputs,
        symbols: vec![],
    };
    if let Some(dtype) = dtype {
        case = in_float(&case, dtype).map_err(|e| Failure::at(Code::Unsupported, &model.file, e.to_string()))?;
    }
    let options = CompileOptions {
        threads,
        passes: passes.cloned(),
        ..session.compile_options()?
    };
    let executable = tlc::compile_ir(&case.graph, &options).map_err(|e| Failure::build(&model.file, &e))?;
    let views: Vec<Input<'_>> = case.inputs.iter().map(Into::into).collect();
    let outputs = executable.run(&views).map_err(|e| Failure::run(&model.file, &e))?;
    let settings = Options {
        max_bytes: Some(session.memory_limit()),
        precision: options.precision,
        ..Options::default()
    };
    let copied = |o: &tlc::Output| HostTensor::from_bytes(o.dtype(), o.shape(), o.bytes());
    let copies: Result<Vec<HostTensor>, _> = outputs.iter().map(copied).collect();
    let copies = copies.map_err(|e| Failure::at(Code::Limit, &model.file, e.to_string()))?;
    let bounds = interpret_with_bounds(&case.graph, &case.inputs, &settings)
        .map_err(|e| Failure::at(Code::Limit, &model.file, e.to_string()))?;
    Ok(Side {
        file: model.file,
        names: outputs.iter().map(|o| o.name.clone()).collect(),
        outputs: copies,
        bounds,
    })
}

fn shown(tensor: &HostTensor) -> String {
    crate::failure::tensor_text(tensor)
}

fn extreme_text(what: &str, e: &Option<Extreme>) -> String {
    match e {
        None => String::new(),
        Some(e) => format!("; largest {what} {:e} at {:?} ({:?} and {:?})", e.by, e.index, e.a, e.b),
    }
}

fn text(name: &str, a: &HostTensor, b: &HostTensor, d: &Difference) -> String {
    let types = match a.dtype() == b.dtype() {
        true => shown(a),
        false => format!("{} and {}", shown(a), b.dtype()),
    };
    let mut out = match d.differing {
        0 => format!("{name}: {types}: equal"),
        n => format!(
            "{name}: {types}: {n} of {} elements differ{}{}",
            d.elements,
            extreme_text("absolute", &d.absolute),
            extreme_text("relative", &d.relative)
        ),
    };
    if d.special > 0 {
        out += &format!("; {} NaN or infinite in one of the two", d.special);
    }
    out += &match &d.first_outside {
        None => "; within bounds".to_string(),
        Some(e) => format!(
            "; {} outside bounds, first at {:?} ({:?} and {:?})",
            d.outside, e.index, e.a, e.b
        ),
    };
    if d.uncertain > 0 {
        out += &format!(", {} uncertain", d.uncertain);
    }
    out + "\n"
}

fn extreme_json(e: &Option<Extreme>) -> Value {
    e.as_ref().map_or(
        Value::Null,
        |e| json!({ "by": number_json(e.by), "index": e.index, "a": number_json(e.a), "b": number_json(e.b) }),
    )
}

/// Runs the command.
pub fn run(session: &Session, args: &Compare) -> Result<(), Failure> {
    let threads = session.global.threads;
    let a = side(session, args, &args.a, args.passes.as_ref(), threads, args.dtype)?;
    let b = side(
        session,
        args,
        args.b.as_ref().unwrap_or(&args.a),
        args.b_passes.as_ref().or(args.passes.as_ref()),
        args.b_threads.or(threads),
        args.b_dtype,
    )?;
    let usage = |message: String| Failure::at(Code::Failed, &b.file, message);
    if a.outputs.len() != b.outputs.len() {
        let (expected, found) = (a.outputs.len(), b.outputs.len());
        return Err(usage(format!(
            "another number of outputs; expected {expected}, found {found}"
        )));
    }
    let (mut lines, mut values, mut outside) = (String::new(), vec![], 0);
    for (k, name) in a.names.iter().enumerate() {
        // By name where both have it, by position else.
        let other = b.names.iter().position(|n| n == name).unwrap_or(k);
        let (x, y) = (&a.outputs[k], &b.outputs[other]);
        let Some(d) = difference(x, y, (&a.bounds[k], &b.bounds[other]), args.b.is_none()) else {
            let (expected, found) = (shown(x), shown(y));
            return Err(usage(format!("output `{name}`: expected {expected}, found {found}")));
        };
        outside += usize::from(!d.is_within());
        lines += &text(name, x, y, &d);
        values.push(json!({
            "name": name,
            "elements": d.elements,
            "differing": d.differing,
            "absolute": extreme_json(&d.absolute),
            "relative": extreme_json(&d.relative),
            "special": d.special,
            "uncertain": d.uncertain,
            "outside": d.outside,
            "within": d.is_within(),
        }));
    }
    let result = json!({ "within": outside == 0, "outputs": values });
    if !session.console.json() {
        session.console.result(&lines)?;
    }
    match outside {
        0 if session.console.json() => session.console.json_result(&result),
        0 => Ok(()),
        n => {
            let message = format!(
                "{} further apart than two right implementations may be",
                tlc::explain::counted(n, "output")
            );
            Err(Failure::at(Code::Failed, &b.file, message).with_result(result))
        }
    }
}
