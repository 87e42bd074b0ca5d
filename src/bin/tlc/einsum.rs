//! `tlc einsum`: one contraction of npy files, with its path, flops and largest intermediate.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};
use tlc::explain::{bytes_text, time_text};
use tlc::{DType, Graph, HostTensor, Input, Output};
use tlc_ir::einsum::{EinsumError, EinsumSpec, broadcast_extents, parse};
use tlc_passes::einsum_path::{ContractionPath, PathError, PathOptions, contraction_path};

use crate::data::{Summary, number_json, read_npy};
use crate::failure::{Code, Failure, one_line, tensor_text};
use crate::run::encode;
use crate::session::{Session, is_stdin};
use crate::staging::Outputs;

/// Arguments.
#[derive(Args, Debug)]
pub struct Einsum {
    /// The contraction in NumPy's notation, as in ij,jk->ik; any character is a label but space and the four of `,.->`
    #[arg(value_name = "EXPR", allow_hyphen_values = true, value_parser = expression)]
    expression: String,
    /// Operands, as npy files
    #[arg(required = true, value_name = "FILE.npy")]
    operands: Vec<PathBuf>,
    /// Where the result goes; - is standard output [default: only a summary is printed]
    #[arg(long, short, value_name = "FILE.npy")]
    output: Option<PathBuf>,
}

/// An expression may begin with an arrow; what else begins with `-` is a mistyped option.
fn expression(text: &str) -> Result<String, String> {
    match text.starts_with('-') && !text.starts_with("->") {
        true => Err("no such option, and an expression begins with `-` only if that is of `->`".into()),
        false => Ok(text.into()),
    }
}

/// What errors in the expression name as their file.
const PLACE: &str = "EXPR";

fn expression_failure(expression: &str, error: &EinsumError) -> Failure {
    match error.span() {
        Some(span) => {
            let chars = span.char_range(expression);
            let (column, width) = (chars.start as u32 + 1, chars.len());
            let mut failure =
                Failure::in_text(Code::Invalid, PLACE, expression, (1, column), width, &error.to_string());
            if let Some(report) = failure.reports.first_mut() {
                report.source.get_or_insert((expression.to_string(), 1));
            }
            failure
        }
        None => Failure::at(Code::Invalid, PLACE, format!("`{expression}`: {error}")),
    }
}

/// The order that a contraction takes, as the compiler's pass chooses it. Diagonals count as taken.
fn path(
    session: &Session,
    spec: &EinsumSpec,
    extents: &[usize],
    shapes: &[Vec<usize>],
    width: usize,
) -> Result<ContractionPath, PathError> {
    let mut operands = Vec::with_capacity(shapes.len());
    for (labels, shape) in spec.operands.iter().zip(shapes) {
        let mut distinct = Vec::with_capacity(labels.len());
        for (&label, &extent) in labels.iter().zip(shape) {
            // An axis of extent 1 that broadcasts is no axis.
            let broadcasts = extent == 1 && extents[label as usize] != 1;
            if !distinct.contains(&label) && !broadcasts {
                distinct.push(label);
            }
        }
        operands.push(distinct);
    }
    let extents: Vec<u64> = extents.iter().map(|&e| e as u64).collect();
    let max_intermediate = session.global.max_memory.map(|b| b as f64 / width as f64);
    let options = PathOptions {
        max_intermediate,
        seed: session.global.seed,
        ..PathOptions::default()
    };
    contraction_path(&operands, &spec.output, &extents, &options)
}

/// Runs the command.
pub fn run(session: &Session, args: &Einsum) -> Result<(), Failure> {
    let expression = &args.expression;
    let to_stdout = args.output.as_deref().is_some_and(is_stdin);
    let operands: Vec<HostTensor> = args
        .operands
        .iter()
        .map(|p| read_npy(session, p, None))
        .collect::<Result<_, _>>()?;
    let shapes: Vec<Vec<usize>> = operands.iter().map(|t| t.shape().to_vec()).collect();
    let ranks: Vec<usize> = shapes.iter().map(Vec::len).collect();
    let spec = parse(expression, &ranks).map_err(|e| expression_failure(expression, &e))?;
    let extents = broadcast_extents(&spec, &shapes).map_err(|e| expression_failure(expression, &e))?;
    let dtype = operands
        .iter()
        .map(HostTensor::dtype)
        .reduce(tlc::promote)
        .unwrap_or(DType::F32);
    let shape = spec.output_shape(&extents);
    let elements = shape.iter().fold(1u128, |n, &d| n.saturating_mul(d as u128));
    session.need_memory(PLACE, elements.saturating_mul(dtype.bytes() as u128), "the result")?;
    let path = path(session, &spec, &extents, &shapes, dtype.bytes()).map_err(|e| {
        let code = if matches!(e, PathError::MemoryLimit { .. }) {
            Code::Limit
        } else {
            Code::Bug
        };
        Failure::at(code, PLACE, format!("`{expression}`: {}", e.in_bytes(dtype.bytes())))
    })?;

    let (result, seconds) = contract(session, expression, &operands)?;
    let largest = path.largest_intermediate * dtype.bytes() as f64;
    // What is said is made before a file has its name: memory that runs out leaves none.
    let report = path.report(&spec.letters()).to_string();
    let mut notes = Vec::new();
    if !session.console.json() {
        let inputs: Vec<String> = operands.iter().map(tensor_text).collect();
        notes.push(format!(
            "{}: {} -> {}\n{}",
            one_line(expression),
            inputs.join(", "),
            output_text(&result),
            report.trim_end()
        ));
        notes.push(format!(
            "largest intermediate {}, ran in {}",
            bytes_text(largest as u64),
            time_text(seconds * 1e9)
        ));
    }
    if let Some(output) = &args.output {
        if to_stdout {
            let mut bytes = Vec::new();
            encode(&result, &mut bytes).map_err(|e| Failure::writing("standard output", &e))?;
            session.console.result_bytes(&bytes)?
        } else {
            let mut staged = Outputs::new();
            staged.file(output, &mut |w| encode(&result, w))?;
            staged.commit()?;
        }
    }
    notes.iter().for_each(|n| session.console.note(n));
    if to_stdout {
        return Ok(());
    }
    if session.console.json() {
        return session.console.json_result(&json!({
            "expression": expression,
            "result": Summary::of("result", result.view()).json(),
            "output": args.output.as_deref().map(Path::to_string_lossy),
            "naive_flops": number_json(path.naive_flops),
            "flops": number_json(path.flops),
            "largest_intermediate_elements": number_json(path.largest_intermediate),
            "largest_intermediate_bytes": number_json(largest),
            "path": path.pairs().iter().map(|p| json!([p.0, p.1])).collect::<Vec<Value>>(),
            "seconds": number_json(seconds),
        }));
    }
    if args.output.is_none() {
        session.console.result(&Summary::of("result", result.view()).text())?;
    }
    Ok(())
}

/// `f32[2, 3]`, for messages.
fn output_text(output: &Output) -> String {
    let dims: Vec<String> = output.shape().iter().map(usize::to_string).collect();
    format!("{}[{}]", output.dtype(), dims.join(", "))
}

fn contract(session: &Session, expression: &str, operands: &[HostTensor]) -> Result<(Output, f64), Failure> {
    let failed = |e: tlc::BuildError| Failure::build(PLACE, &e);
    let graph = Graph::new("einsum");
    let inputs: Vec<tlc::Tensor> = operands
        .iter()
        .enumerate()
        .map(|(i, t)| graph.input(&format!("operand{i}"), t.dtype(), t.shape().to_vec()))
        .collect();
    let refs: Vec<&tlc::Tensor> = inputs.iter().collect();
    graph.output("result", &tlc::einsum(expression, &refs));
    let executable = graph.compile(&session.compile_options()?).map_err(failed)?;
    session.stages.show_compiled(&session.console, executable.decisions())?;
    let views: Vec<Input<'_>> = operands.iter().map(Input::from).collect();
    let start = std::time::Instant::now();
    let mut outputs = executable.run(&views).map_err(|e| Failure::run(PLACE, &e))?;
    let seconds = start.elapsed().as_secs_f64();
    let result = outputs
        .pop()
        .ok_or_else(|| Failure::at(Code::Bug, PLACE, "the contraction has no result"))?;
    Ok((result, seconds))
}
