//! `tlc check`: every error of every file, in graphs, kernels and plans.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use tlc_ir::text::verify_module;

use crate::args::ModelArgs;
use crate::failure::{Code, Failure};
use crate::onnx::is_onnx;
use crate::session::{Session, read_model};

/// Arguments.
#[derive(Args, Debug)]
pub struct Check {
    /// .tlir or .onnx files, or - for text on standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// Runs the command.
pub fn run(session: &Session, args: &Check) -> Result<(), Failure> {
    let mut worst: Option<Code> = None;
    let mut all = Vec::new();
    let mut results: Vec<Value> = Vec::new();
    for path in &args.files {
        let failure = check(session, path);
        if let Some(failure) = &failure {
            session.console.failure(failure);
            // An error in a file is what this command looks for; a file that cannot be read is another matter.
            let code = failure
                .code
                .filter(|_| !failure.reports.iter().any(|r| r.position.is_some()));
            worst = worst.max(Some(code.unwrap_or(Code::Failed)));
            all.extend(failure.reports.iter().cloned());
        }
        let reports = failure.iter().flat_map(|f| &f.reports);
        let errors: Vec<Value> = reports
            .map(|r| {
                let (line, column) = r.position.unzip();
                json!({ "line": line, "column": column, "message": r.message })
            })
            .collect();
        results.push(json!({ "file": crate::session::display(path), "ok": errors.is_empty(), "errors": errors }));
    }
    let result = json!({ "files": results });
    match worst {
        Some(code) => Err(Failure::of_reports(code, all).already_reported().with_result(result)),
        None if session.console.json() => session.console.json_result(&result),
        None => Ok(()),
    }
}

fn check(session: &Session, path: &std::path::Path) -> Option<Failure> {
    if is_onnx(path) {
        let chosen = ModelArgs {
            model: path.to_path_buf(),
            graph: None,
        };
        return session.model(&chosen).err();
    }
    let source = match read_model(path) {
        Ok(source) => source,
        Err(failure) => return Some(failure),
    };
    let module = match source.parse(path) {
        Ok(module) => module,
        Err(errors) => return Some(source.failure(&errors, usize::MAX)),
    };
    // A text that parses is UTF-8.
    let errors = verify_module(&module, &String::from_utf8_lossy(&source.bytes));
    (!errors.is_empty()).then(|| source.failure(&errors, usize::MAX))
}
