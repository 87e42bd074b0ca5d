//! A graph that tlc compiled wrongly, as its verifiers found: it is kept for a report, and never run.

use std::io;
use std::path::{Path, PathBuf};

use tlc::{Broken, tlir};
use tlc_formats::FormatError;

use crate::failure::{Code, Failure};
use crate::staging::Outputs;

/// Saves the graph in the current directory, or where that cannot be written in the one for temporary files. The failure says
/// where it is, and how to make it smaller.
pub fn saved(file: &str, broken: &Broken) -> Failure {
    let stem = Path::new(file).file_stem().filter(|_| !file.starts_with('<'));
    let mut name = stem.map_or_else(|| "graph".into(), ToOwned::to_owned);
    name.push(".bug.tlir");
    let here = PathBuf::from(&name);
    let temporary = std::env::temp_dir().join(&name);
    let place = [here, temporary].into_iter().find(|path| write(path, broken).is_ok());
    let message = match place {
        Some(path) => {
            let path = path.display();
            format!(
                "a bug in tlc: {}; the graph is in {path}, and `tlc reduce {path}` makes it smaller",
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
