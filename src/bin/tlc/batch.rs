//! `tlc run --batch`: JSON lines in, one JSON line out for each, flushed; a bad case never ends the batch, but the command
//! ends with exit code 1 then.

use std::io::{BufRead, BufReader, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use tlc::explain::counted;

use crate::args::ModelArgs;
use crate::console::with_schema;
use crate::data::source_of;
use crate::failure::{Code, Failure};
use crate::grad::{Asked, PREFIX, differentiated};
use crate::onnx::Purpose;
use crate::panics;
use crate::run::{run_model, write_outputs};
use crate::session::{Session, display, open};

/// A longer line is an error of its own; the rest of it is skipped.
const MAX_LINE_BYTES: u64 = 16 << 20;

/// One line of a manifest.
#[derive(Deserialize)]
struct Case {
    model: PathBuf,
    #[serde(default)]
    inputs: Map<String, Value>,
    #[serde(default)]
    output_dir: Option<PathBuf>,
    #[serde(default)]
    graph: Option<String>,
    /// Derivatives to write beside the outputs.
    #[serde(default)]
    grad: Option<Grad>,
}

/// What is differentiated, by what.
#[derive(Deserialize)]
struct Grad {
    of: Vec<String>,
    wrt: Vec<String>,
    #[serde(default)]
    freeze: Vec<String>,
    #[serde(default = "prefix")]
    prefix: String,
    #[serde(default)]
    max_iterations: Option<std::num::NonZeroU32>,
}

fn prefix() -> String {
    PREFIX.into()
}

/// The keys of a line, and of its `grad`.
const KEYS: [&str; 6] = ["id", "model", "inputs", "output_dir", "graph", "grad"];
const GRAD_KEYS: [&str; 5] = ["of", "wrt", "freeze", "prefix", "max_iterations"];

/// A key that means nothing, which is a mistake: left alone, the line would do something else than it says.
fn unknown_key(line: &Value) -> Option<(&str, String)> {
    let of = |value: &Value, known: &[&str]| -> Option<String> {
        let key = value.as_object()?.keys().find(|key| !known.contains(&key.as_str()))?;
        Some(key.clone())
    };
    let (key, known, place) = match of(line, &KEYS) {
        Some(key) => (key, &KEYS[..], ""),
        None => (of(line.get("grad")?, &GRAD_KEYS)?, &GRAD_KEYS[..], " of \"grad\""),
    };
    let nearest = known.iter().map(|&k| (strsim::levenshtein(&key, k), k)).min()?;
    // As many letters wrong as half of it has make another word.
    let hint = match 2 * nearest.0 <= nearest.1.chars().count() {
        true => format!(" (did you mean \"{}\"?)", nearest.1),
        false => String::new(),
    };
    let quoted: Vec<String> = known.iter().map(|k| format!("\"{k}\"")).collect();
    let message = format!(
        "unknown key {}{place}{hint}; expected {}",
        Value::from(key.as_str()),
        quoted.join(", ")
    );
    let own = [line.as_object(), line.get("grad").and_then(Value::as_object)];
    let key = own.into_iter().flatten().find_map(|o| o.get_key_value(&key))?.0;
    Some((key, message))
}

/// The column, from 1, at which a key stands in the text of a line; 1 where it is written with escapes.
fn column_of(line: &[u8], key: &str) -> usize {
    let quoted = format!("\"{key}\"");
    let is_key = |&at: &usize| {
        let behind = line[at..].strip_prefix(quoted.as_bytes());
        behind.is_some_and(|b| b.trim_ascii_start().starts_with(b":"))
    };
    (0..line.len()).find(is_key).map_or(1, |at| at + 1)
}

/// Runs every case of a manifest. The lines say how each went.
///
/// # Errors
/// If the manifest cannot be read, or a case failed.
pub fn run(session: &Session, manifest: &Path) -> Result<(), Failure> {
    let file = display(manifest);
    let mut reader = BufReader::new(open(manifest)?);
    let (mut cases, mut failed) = (0usize, 0usize);
    for number in 1u32.. {
        let mut line = Vec::new();
        let read = reader.by_ref().take(MAX_LINE_BYTES + 1).read_until(b'\n', &mut line);
        if read.map_err(|e| Failure::reading(&file, &e))? == 0 {
            break;
        }
        let too_long = line.len() as u64 > MAX_LINE_BYTES && line.last() != Some(&b'\n');
        if too_long {
            skip_line(&mut reader).map_err(|e| Failure::reading(&file, &e))?;
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let start = Instant::now();
        let (id, outcome) = if too_long {
            let message = format!("line of more than {MAX_LINE_BYTES} bytes; expected a shorter one");
            (
                Value::Null,
                Err(Failure::at(Code::Limit, &format!("{file}:{number}"), message)),
            )
        } else {
            one_line(session, &file, number, &line)
        };
        cases += 1;
        failed += usize::from(outcome.is_err());
        let (status, message) = match outcome {
            Ok(()) => ("ok", String::new()),
            Err(f) if f.code == Some(Code::Unsupported) => ("unsupported", f.text()),
            Err(f) => ("error", f.text()),
        };
        let seconds = start.elapsed().as_secs_f64();
        let mut answer = json!({ "id": id, "status": status, "message": message, "seconds": seconds });
        if session.console.json() {
            answer = with_schema(&answer);
        }
        session.console.result(&format!("{answer}\n"))?;
    }
    if failed == 0 {
        return Ok(());
    }
    let message = format!("{failed} of {} failed; expected none", counted(cases, "case"));
    let failure = Failure::at(Code::Failed, &file, message);
    session.console.failure(&failure);
    // Programs have read of each case in its line.
    Err(Failure::silent(Code::Failed))
}

fn skip_line(reader: &mut impl BufRead) -> std::io::Result<()> {
    loop {
        let buffer = reader.fill_buf()?;
        let (used, done) = match buffer.iter().position(|&b| b == b'\n') {
            Some(at) => (at + 1, true),
            None => (buffer.len(), buffer.is_empty()),
        };
        reader.consume(used);
        if done {
            return Ok(());
        }
    }
}

fn one_line(session: &Session, file: &str, number: u32, line: &[u8]) -> (Value, Result<(), Failure>) {
    let place = |column: usize, message: String| {
        let failure = Failure::at(Code::Invalid, &format!("{file}:{number}:{column}"), message);
        Err(failure)
    };
    let value: Value = match serde_json::from_slice(line) {
        Ok(value) => value,
        Err(e) => {
            return (
                Value::Null,
                place(
                    e.column().max(1),
                    format!("not JSON: {}; expected one object", reason(&e)),
                ),
            );
        }
    };
    let id = value.get("id").cloned().unwrap_or(Value::Null);
    if let Some((key, message)) = unknown_key(&value) {
        return (id, place(column_of(line, key), message));
    }
    let case = match serde_json::from_value::<Case>(value) {
        Ok(case) => case,
        Err(e) => {
            let expected =
                r#"expected {"id", "model", "inputs": {name: file}, "output_dir", "grad": {"of": [..], "wrt": [..]}}"#;
            return (id, place(1, format!("not a case: {}; {expected}", reason(&e))));
        }
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| run_case(session, &case)));
    let outcome = outcome.unwrap_or_else(|_| Err(panics::failure()));
    (id, outcome)
}

/// What serde_json says, without the line, which is always 1.
fn reason(e: &serde_json::Error) -> String {
    let text = e.to_string();
    text.split(" at line ").next().unwrap_or(&text).to_string()
}

fn run_case(session: &Session, case: &Case) -> Result<(), Failure> {
    let mut specs = Vec::with_capacity(case.inputs.len());
    for (name, source) in &case.inputs {
        match source {
            Value::String(text) => {
                let failed = |e: String| Failure::new(Code::Invalid, format!("input `{name}`: {e}"));
                specs.push((name.clone(), source_of(text).map_err(failed)?));
            }
            other => {
                let message = format!("input `{name}`: expected a file, zeros, ones or random, found {other}");
                return Err(Failure::new(Code::Invalid, message));
            }
        }
    }
    session.stages.panic_if_asked();
    let chosen = ModelArgs {
        model: case.model.clone(),
        graph: case.graph.clone(),
    };
    let purpose = match &case.grad {
        Some(_) => Purpose::Derivatives,
        None => Purpose::Values,
    };
    let mut model = session.imported_model(&chosen, &specs, purpose)?;
    if let Some(Grad {
        of,
        wrt,
        freeze,
        prefix,
        max_iterations,
    }) = &case.grad
    {
        let asked = Asked {
            of,
            wrt,
            freeze,
            prefix,
            max_iterations: max_iterations.map(Into::into),
        };
        (model, _) = differentiated(&model, &asked)?;
    }
    let (outputs, _) = run_model(session, &model, &specs, None)?;
    if let Some(dir) = &case.output_dir {
        write_outputs(dir, &outputs)?;
    }
    Ok(())
}
