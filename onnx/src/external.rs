//! Tensor data in other files: inside the model's folder, or refused.

use std::cell::RefCell;
use std::ops::Range;
use std::path::{Component, Path};
use std::sync::Arc;

use rustc_hash::FxHashMap;
use tlc_formats::onnx::{External, InPlace, Tensor};
use tlc_ir::HostTensor;
use tlc_ir::tensor::BytesOwner;
use tlc_runtime::memory::{ALIGNMENT, AlignedBuffer};
use tlc_runtime::mmap::{MappedFile, Sparse, read_sparsely};

use super::packed::{self, Elements};
use super::refusal::{Outcome, invalid};

/// Where a model's tensors have their elements: in its own bytes, and in files beside it, each mapped once.
pub(super) struct Files<'o> {
    /// Who keeps the model's bytes, if tensors may share them.
    model: Option<BytesOwner>,
    folder: Option<&'o Path>,
    others: RefCell<FxHashMap<String, (Arc<MappedFile>, Sparse)>>,
}

/// A tensor, or elements that nobody keeps.
enum Found<'a> {
    Tensor(Elements),
    Stray(InPlace<'a>),
}

impl<'o> Files<'o> {
    pub(super) fn new(model: Option<BytesOwner>, folder: Option<&'o Path>) -> Files<'o> {
        Files {
            model,
            folder,
            others: RefCell::default(),
        }
    }

    /// The tensor, with its elements from wherever they are.
    pub(super) fn elements(&self, tensor: Tensor<'_>) -> Outcome<Elements> {
        match self.find(tensor)? {
            Found::Tensor(t) => Ok(t),
            Found::Stray(stray) => copied(&stray),
        }
    }

    /// The tensor, each of its elements in bytes of its own.
    pub(super) fn host(&self, tensor: Tensor<'_>) -> Outcome<HostTensor> {
        self.elements(tensor)?.host()
    }

    /// As [`Files::elements`] for each. What must be copied goes into one buffer: for hundreds of megabytes, taking memory from
    /// the system a small page at a time costs more than the copy.
    pub(super) fn hosts<'a>(&self, tensors: impl Iterator<Item = Tensor<'a>>) -> Vec<Outcome<Elements>> {
        let mut all: Vec<Outcome<Found<'a>>> = tensors.map(|t| self.find(t)).collect();
        let strays = |all: &[Outcome<Found<'a>>]| -> usize {
            let of = |f: &Outcome<Found<'a>>| match f {
                Ok(Found::Stray(stray)) => stray.bytes.len().next_multiple_of(ALIGNMENT),
                _ => 0,
            };
            all.iter().map(of).fold(0, usize::saturating_add)
        };
        // Without memory for all, each is refused or not by itself.
        if let Ok(mut buffer) = AlignedBuffer::zeroed(strays(&all)) {
            let room = buffer.as_mut_slice();
            let mut end = 0;
            let mut starts = vec![];
            for stray in all.iter().flatten() {
                let Found::Stray(stray) = stray else { continue };
                let bytes = stray.bytes;
                room[end..][..bytes.len()].copy_from_slice(bytes);
                starts.push(end);
                end += bytes.len().next_multiple_of(ALIGNMENT);
            }
            let buffer: BytesOwner = Arc::new(buffer);
            let mut starts = starts.into_iter();
            for found in &mut all {
                if let Ok(Found::Stray(of)) = found {
                    let start = starts.next().unwrap_or_default();
                    *found = shared(of, &buffer, start).map(Found::Tensor);
                }
            }
        }
        let host = |found: Outcome<Found<'a>>| match found? {
            Found::Tensor(t) => Ok(t),
            Found::Stray(stray) => copied(&stray),
        };
        all.into_iter().map(host).collect()
    }

    fn find<'a>(&self, tensor: Tensor<'a>) -> Outcome<Found<'a>> {
        let Some(place) = tensor.external()? else {
            let Some(of) = tensor.in_place(None)? else {
                return packed::read(tensor.to_host(None)?).map(Found::Tensor);
            };
            let owner = self.model.as_ref();
            return match owner.and_then(|o| Some((o, within((**o).as_ref(), of.bytes)?))) {
                Some((owner, start)) => shared(&of, owner, start).map(Found::Tensor),
                None => Ok(Found::Stray(of)),
            };
        };
        let file = self.file(&place)?;
        let range = part(&place, &file)?;
        let tensor = match tensor.in_place(Some(&file[range.clone()]))? {
            Some(of) => {
                let owner: BytesOwner = file.clone();
                shared(&of, &owner, range.start)?
            }
            None => packed::read(tensor.to_host(Some(&file[range]))?)?,
        };
        Ok(Found::Tensor(tensor))
    }

    fn file(&self, place: &External<'_>) -> Outcome<Arc<MappedFile>> {
        if let Some((file, _)) = self.others.borrow().get(place.location) {
            return Ok(file.clone());
        }
        let file = Arc::new(open(place, self.folder)?);
        // An import looks at no more than the small constants in it.
        let known = (file.clone(), read_sparsely(&file));
        self.others.borrow_mut().insert(place.location.into(), known);
        Ok(file)
    }
}

/// Elements in memory of their own.
fn copied(of: &InPlace<'_>) -> Outcome<Elements> {
    let (dtype, shape) = packed::held(of);
    packed::elements(of, HostTensor::from_bytes(dtype, &shape, of.bytes))
}

/// Elements in the owner's memory, from byte `start`.
fn shared(of: &InPlace<'_>, owner: &BytesOwner, start: usize) -> Outcome<Elements> {
    let (dtype, shape) = packed::held(of);
    packed::elements(of, HostTensor::from_owner(dtype, &shape, owner, start))
}

/// Where `part` begins in `all`, if it is a part of it.
fn within(all: &[u8], part: &[u8]) -> Option<usize> {
    let start = part.as_ptr().addr().checked_sub(all.as_ptr().addr())?;
    let end = start.checked_add(part.len())?;
    (end <= all.len()).then_some(start)
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

fn part(place: &External<'_>, file: &MappedFile) -> Outcome<Range<usize>> {
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
        (Some(s), Some(e)) => Ok(s..e),
        _ => invalid(format!(
            "external data `{}` ends too early; expected {} bytes from byte {}, found {} in all",
            place.location,
            place.length.unwrap_or(0),
            place.offset,
            all.len()
        )),
    }
}
