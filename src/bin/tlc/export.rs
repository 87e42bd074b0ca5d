//! `tlc export`: a model in another format. What ONNX can say of it is [`tlc::onnx::export`]'s.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;
use tlc_formats::onnx;

use crate::args::ModelArgs;
use crate::data::{InputSpec, input_spec};
use crate::failure::{Code, Failure};
use crate::session::Session;
use crate::staging::Outputs;

/// Constants of more bytes go to a file of their own: no program reads a model of 2 GiB.
const MAX_MODEL_BYTES: u64 = (1 << 31) - (64 << 20);

/// Arguments.
#[derive(Args, Debug)]
#[command(after_help = "\
Writes opset 21, or the first that has what the model needs. Inputs, outputs and weights keep their names, and symbolic sizes are
dimensions of that name. What ONNX cannot say (random numbers, running maxima, arithmetic of one rounding, a size that no
input's shape tells, …) is refused by name, with exit code 4, and nothing is written.")]
pub struct Export {
    #[command(flatten)]
    model: ModelArgs,
    /// As an ONNX model, which is the default and the only format so far
    #[arg(long)]
    onnx: bool,
    /// The file to write
    #[arg(long, short = 'o', value_name = "FILE.onnx")]
    output: PathBuf,
    /// Write constants of 1 KiB and more to a file of their own, FILE.onnx.ID.data [default: only where they are about 2 GiB and more]
    #[arg(long)]
    external_data: bool,
    /// An input on whose value the model's shapes depend, as in x=x.npy or x=all.npz:KEY: the file is for that value
    #[arg(long = "input", short = 'i', value_name = "NAME=SOURCE", value_parser = input_spec)]
    inputs: Vec<InputSpec>,
}

/// The name of a model's data and its path. `id` is another one for other data: so a model never finds data beside it that
/// was written for another, whenever the writing is cut off.
fn data_path(model: &Path, id: &str) -> (String, PathBuf) {
    let name = model.file_name().unwrap_or(model.as_os_str());
    let location = format!("{}.{id}.data", name.to_string_lossy());
    let path = model.with_file_name(&location);
    (location, path)
}

/// The data of the model that is there already, where this command wrote it: nobody needs it once the model is another.
fn earlier_data(model: &Path) -> BTreeSet<PathBuf> {
    let read = || -> Option<BTreeSet<PathBuf>> {
        let mapped = tlc_runtime::mmap::MappedFile::open(model).ok()?;
        let parsed = onnx::Model::parse(&mapped).ok()?;
        let name = model.file_name()?.to_str()?;
        let own = |location: &str| {
            let id = location.strip_prefix(name)?.strip_prefix('.')?.strip_suffix(".data")?;
            let is_id = id.len() == 16 && id.bytes().all(|b| b.is_ascii_hexdigit());
            is_id.then(|| model.with_file_name(location))
        };
        let all = parsed.graph()?.initializers();
        Some(all.filter_map(|t| own(t.external().ok()??.location)).collect())
    };
    read().unwrap_or_default()
}

/// Runs the command.
pub fn run(session: &Session, args: &Export) -> Result<(), Failure> {
    if args.output.extension().is_none_or(|e| !e.eq_ignore_ascii_case("onnx")) {
        let message = format!("--output {}: expected a name that ends in .onnx", args.output.display());
        return Err(Failure::new(Code::Usage, message));
    }
    let source = session.model_for(&args.model, &args.inputs)?;
    let model =
        tlc::onnx::export(&source.graph).map_err(|e| Failure::at(Code::Unsupported, &source.file, e.to_string()))?;
    let external = args.external_data || model.initializer_bytes() > MAX_MODEL_BYTES;
    let initializers = || {
        model
            .graph
            .initializers
            .iter()
            .map(|(name, data)| (name.as_str(), data))
    };
    let id = match external {
        true => tlc::tlir::content_id(initializers()),
        false => String::new(),
    };
    let (location, data) = data_path(&args.output, &id);
    let mut earlier = earlier_data(&args.output);
    let mut staged = Outputs::new();
    if external {
        // The data is laid out as the model is written, and gets its name first: a model is never without it.
        let bytes = RefCell::new(vec![]);
        staged.file(&data, &mut |mut w| {
            model.write_external(&location, &mut *bytes.borrow_mut(), &mut w)
        })?;
        staged.file(&args.output, &mut |w| w.write_all(&bytes.borrow()))?;
    } else {
        staged.file(&args.output, &mut |mut w| model.write(&mut w))?;
    }
    staged.commit()?;
    if external {
        earlier.remove(&data);
    }
    // What stays is in nobody's way.
    earlier.iter().for_each(|f| drop(std::fs::remove_file(f)));
    let (nodes, opset) = (model.graph.nodes.len(), model.opset);
    if session.console.json() {
        return session.console.json_result(&json!({
            "graph": source.graph.name,
            "model": args.output.to_string_lossy(),
            "data": external.then(|| data.to_string_lossy()),
            "nodes": nodes,
            "initializers": model.graph.initializers.len(),
            "bytes": model.initializer_bytes(),
            "opset": opset,
        }));
    }
    let size = tlc::explain::bytes_text(model.initializer_bytes());
    session.console.note(&format!(
        "wrote {}: {nodes} nodes of opset {opset}, {size} of constants",
        args.output.display()
    ));
    if external {
        session.console.note(&format!("wrote {}", data.display()));
    }
    Ok(())
}
