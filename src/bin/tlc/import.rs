//! `tlc import`: a model as text, with its weights beside it. The form is [`tlc::tlir`]'s.

use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;
use tlc_formats::FormatError;

use crate::args::ModelArgs;
use crate::data::{InputSpec, input_spec};
use crate::failure::{Code, Failure};
use crate::session::{Model, Session};
use crate::staging::Outputs;

/// Arguments.
#[derive(Args, Debug)]
#[command(after_help = "\
Writes FILE.tlir, and the weights beside it in FILE.safetensors: constants of more than 16 elements, under the names that the
model gives them. Both appear together or not at all; if the machine stops between the two, the text, whose first line says which
weights are its, is refused beside the others. Every command that takes a model takes FILE.tlir then, and maps the
weights. Inputs and outputs keep their names, and so do nodes (`from \"NAME\"`).

Element types that safetensors cannot name (int4, uint4, int2, uint2, float4) are written as U8, one element a byte; the metadata
says under dtype.NAME what they are.")]
pub struct Import {
    #[command(flatten)]
    model: ModelArgs,
    /// The text to write; the weights go beside it, under its name
    #[arg(long, short = 'o', value_name = "FILE.tlir")]
    output: PathBuf,
    /// An input on whose value the model's shapes depend, as in x=x.npy or x=all.npz:KEY: the text is for that value
    #[arg(long = "input", short = 'i', value_name = "NAME=SOURCE", value_parser = input_spec)]
    inputs: Vec<InputSpec>,
}

/// Runs the command.
pub fn run(session: &Session, args: &Import) -> Result<(), Failure> {
    check_name(&args.output)?;
    let model = session.model_for(&args.model, &args.inputs)?;
    write_text(session, &model, &args.output)
}

/// Refuses a name that is no text's.
pub fn check_name(output: &Path) -> Result<(), Failure> {
    if output.extension().is_none_or(|e| e != "tlir") {
        let message = format!("--output {}: expected a name that ends in .tlir", output.display());
        return Err(Failure::new(Code::Usage, message));
    }
    Ok(())
}

/// Writes a model as text with its weights beside it, and says what was written.
pub fn write_text(session: &Session, model: &Model, output: &Path) -> Result<(), Failure> {
    let printed = tlc::tlir::print(&model.graph);
    let weights = tlc::tlir::weights_path(output);
    let mut staged = Outputs::new();
    // The weights get their name first: a text is never without them.
    if !printed.externals.is_empty() {
        staged.file(&weights, &mut |mut w| {
            tlc::tlir::write_weights(&printed, &mut w).map_err(|e| match e {
                FormatError::Io { source, .. } => source,
                other => io::Error::other(other.to_string()),
            })
        })?;
    }
    staged.file(output, &mut |w| w.write_all(printed.text.as_bytes()))?;
    staged.commit()?;

    let bytes: u64 = printed.externals.iter().map(|(_, t)| t.bytes().len() as u64).sum();
    let written = (!printed.externals.is_empty()).then_some(&weights);
    if session.console.json() {
        return session.console.json_result(&json!({
            "graph": model.graph.name,
            "text": output.to_string_lossy(),
            "weights": written.map(|w| w.to_string_lossy()),
            "tensors": printed.externals.len(),
            "bytes": bytes,
        }));
    }
    session.console.note(&format!("wrote {}", output.display()));
    if let Some(weights) = written {
        let (count, size) = (printed.externals.len(), tlc::explain::bytes_text(bytes));
        let what = if count == 1 { "tensor" } else { "tensors" };
        session
            .console
            .note(&format!("wrote {}: {count} {what}, {size}", weights.display()));
    }
    Ok(())
}
