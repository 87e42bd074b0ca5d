//! `tlc cache`: compiled GPU programs that are kept from one process to the next.

use std::fmt::Write;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tlc::explain::bytes_text;
use tlc_runtime::cuda::Entries;

use crate::failure::{Code, Failure};
use crate::session::Session;

/// Arguments.
#[derive(Args, Debug)]
pub struct Cache {
    /// What to do
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Clone, Copy, Debug)]
enum What {
    /// List what is kept, and where
    List,
    /// Remove all of it
    Clear,
}

/// Runs the command.
pub fn run(session: &Session, args: &Cache) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::new(Code::Invalid, format!("the cache: {e}"));
    match args.what {
        What::List => list(session, Entries::list().map_err(failed)?),
        What::Clear => {
            let removed = Entries::clear().map_err(failed)?;
            if session.console.json() {
                return session.console.json_result(&json!({ "removed": removed }));
            }
            session.console.result(&format!("removed {removed}\n"))
        }
    }
}

fn list(session: &Session, entries: Option<Entries>) -> Result<(), Failure> {
    if session.console.json() {
        let folder = entries.as_ref().map(|e| e.folder.to_string_lossy().into_owned());
        let programs = entries.iter().flat_map(|e| &e.programs);
        let programs: Vec<Value> = programs
            .map(
                |p| json!({ "file": p.path.to_string_lossy(), "arch": p.arch, "kernels": p.kernels, "bytes": p.bytes }),
            )
            .collect();
        return session
            .console
            .json_result(&json!({ "folder": folder, "programs": programs }));
    }
    let Some(entries) = entries else {
        return session
            .console
            .result("no cache: TLC_CACHE is off, or there is no home folder\n");
    };
    let mut out = String::new();
    for p in &entries.programs {
        let name = p.path.file_name().map(|n| n.to_string_lossy()).unwrap_or_default();
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "{name}  {:<12} {:>4} kernels  {}",
            p.arch,
            p.kernels,
            bytes_text(p.bytes)
        );
    }
    let bytes = entries.programs.iter().map(|p| p.bytes).sum();
    let _ = writeln!(
        out,
        "{} programs, {}, in {}",
        entries.programs.len(),
        bytes_text(bytes),
        entries.folder.display()
    );
    session.console.result(&out)
}
