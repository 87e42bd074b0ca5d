//! Tensor data in other files: inside the model's folder, or refused.

use std::path::{Component, Path};

use tlc_formats::onnx::{External, Tensor};
use tlc_ir::HostTensor;
use tlc_runtime::mmap::MappedFile;

use super::refusal::{Outcome, invalid};

/// The tensor, with its elements from wherever they are.
pub(super) fn host(tensor: Tensor<'_>, folder: Option<&Path>) -> Outcome<HostTensor> {
    match tensor.external()? {
        None => Ok(tensor.to_host(None)?),
        Some(place) => {
            let file = open(&place, folder)?;
            Ok(tensor.to_host(Some(part(&place, &file)?))?)
        }
    }
}

fn open(place: &External<'_>, folder: Option<&Path>) -> Outcome<MappedFile> {
    let location = place.location;
    let Some(folder) = folder else {
        return invalid(format!(
            "external data `{location}`; expected data in the model, which comes from no folder"
        ));
    };
    let path = Path::new(location);
    let inside = path
        .components()
        .all(|c| matches!(c, Component::Normal(_) | Component::CurDir));
    if location.is_empty() || location.contains('\\') || !inside {
        return invalid(format!(
            "external data `{location}`; expected a path inside the model's folder"
        ));
    }
    let missing = |e: std::io::Error| {
        let text = e.to_string();
        let text = text.split(" (os error").next().unwrap_or_default();
        invalid(format!("external data `{location}` cannot be read: {text}"))
    };
    // A link may lead out of the folder: what counts is where the file really is.
    let folder = match folder.as_os_str().is_empty() {
        true => Path::new("."),
        false => folder,
    };
    let (root, real) = match (folder.canonicalize(), folder.join(path).canonicalize()) {
        (Ok(root), Ok(real)) => (root, real),
        (Err(e), _) | (_, Err(e)) => return missing(e),
    };
    if !real.starts_with(&root) {
        return invalid(format!(
            "external data `{location}` leads out of the model's folder; expected a path inside it"
        ));
    }
    MappedFile::open(&real).or_else(|_| {
        invalid(format!(
            "external data `{location}` cannot be mapped; expected a regular file"
        ))
    })
}

fn part<'f>(place: &External<'_>, file: &'f MappedFile) -> Outcome<&'f [u8]> {
    let all = file.as_slice();
    let start = usize::try_from(place.offset).ok().filter(|&s| s <= all.len());
    let end = match (start, place.length) {
        (Some(_), None) => Some(all.len()),
        (Some(s), Some(n)) => usize::try_from(n)
            .ok()
            .and_then(|n| s.checked_add(n))
            .filter(|&e| e <= all.len()),
        _ => None,
    };
    match (start, end) {
        (Some(s), Some(e)) => Ok(&all[s..e]),
        _ => invalid(format!(
            "external data `{}` ends too early; expected {} bytes from byte {}, found {} in all",
            place.location,
            place.length.unwrap_or(0),
            place.offset,
            all.len()
        )),
    }
}
