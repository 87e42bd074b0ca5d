//! A graph that tlc compiled wrongly, as its verifiers found: it is kept for a report, and never run.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use tlc::{Broken, tlir};
use tlc_formats::FormatError;

use crate::failure::{Code, Failure};
use crate::staging::Outputs;

/// What this process saved: the name, and of which model.
static SAVED: Mutex<Vec<(OsString, String)>> = Mutex::new(Vec::new());

/// The file's name: that of the model, with a number if another model of this process has it. A batch may have many models of one name,
/// each in a folder of its own.
fn name_for(file: &str, saved: &Mutex<Vec<(OsString, String)>>) -> OsString {
    let mut saved = saved.lock().unwrap_or_else(PoisonError::into_inner);
    let stem = Path::new(file).file_stem().filter(|_| !file.starts_with('<'));
    let stem = stem.map_or_else(|| "graph".into(), ToOwned::to_owned);
    let named = |number: usize| {
        let mut name = stem.clone();
        if number > 1 {
            name.push(format!(".{number}"));
        }
        name.push(".bug.tlir");
        name
    };
    let free = |name: &OsString| saved.iter().all(|(taken, model)| taken != name || model == file);
    let name = (1..).map(named).find(free).unwrap_or_else(|| named(1));
    saved.push((name.clone(), file.to_string()));
    name
}

/// Saves the graph in the current directory, or where that cannot be written in the one for temporary files. The failure says
/// where it is, and how to make it smaller.
pub fn saved(file: &str, broken: &Broken) -> Failure {
    let name = name_for(file, &SAVED);
    let here = PathBuf::from(&name);
    let temporary = std::env::temp_dir().join(&name);
    let place = [here, temporary].into_iter().find(|path| write(path, broken).is_ok());
    let message = match place {
        Some(path) => {
            let (path, device) = (path.display(), if broken.for_gpu { "--device cuda " } else { "" });
            format!(
                "a bug in tlc: {}; the graph is in {path}, and `tlc reduce {device}{path}` makes it smaller",
                broken.fault
            )
        }
        None => format!(
            "a bug in tlc: {}; no file could be written to keep the graph",
            broken.fault
        ),
    };
    Failure::at(Code::Bug, file, message)
}

fn write(path: &Path, broken: &Broken) -> Result<(), Failure> {
    let printed = tlir::print(&broken.graph);
    let mut outputs = Outputs::new();
    outputs.file(path, &mut |w| w.write_all(printed.text.as_bytes()))?;
    if !printed.externals.is_empty() {
        let failed = |e: FormatError| io::Error::other(e.to_string());
        outputs.file(&tlir::weights_path(path), &mut |w| {
            tlir::write_weights(&printed, &mut &mut *w).map_err(failed)
        })?;
    }
    outputs.commit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_of_one_name_are_kept_in_files_of_their_own() {
        let saved = Mutex::new(Vec::new());
        let name = |file: &str| name_for(file, &saved).into_string().expect("a text");
        assert_eq!(name("a/model.onnx"), "model.bug.tlir");
        assert_eq!(name("b/model.onnx"), "model.2.bug.tlir");
        assert_eq!(name("c/model.tlir"), "model.3.bug.tlir");
        assert_eq!(name("b/model.onnx"), "model.2.bug.tlir");
        assert_eq!(name("a/model.2.onnx"), "model.2.2.bug.tlir");
        assert_eq!(name("<stdin>"), "graph.bug.tlir");
    }
}
