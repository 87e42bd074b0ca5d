//! States in safetensors files.
//!
//! Invariant: a file of a state is written beside its name and renamed once it is whole, so that under that name there is the old file or
//! the new one, whatever happens. A process that is killed may leave the file beside it, which the next one that saves under that name
//! removes: whoever writes such a file has it locked, and the system unlocks it when the process ends.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tlc_formats::{FormatError, safetensors};
use tlc_ir::tensor::BytesOwner;
use tlc_ir::{DType, HostTensor};
use tlc_runtime::driver::{RunError, StateMemory};
use tlc_runtime::mmap::{MapError, MappedFile};

use super::state::{Entry, State};

/// Names that a message about a file lists, at most.
const LISTED: usize = 5;

/// Why a state could not be saved or loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateFileError {
    /// The file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file is broken, or has what tlc does not take.
    #[error("{}: {source}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: FormatError,
    },
    /// The file is the state of another model: it has other names, or other types.
    #[error("{}: another model's state: {differences}", path.display())]
    Other {
        /// The file.
        path: PathBuf,
        /// What differs, with names, types found and types expected.
        differences: String,
    },
    /// The state takes no part in this, or memory for it was refused.
    #[error("{}: {source}", path.display())]
    State {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: RunError,
    },
}

impl State {
    /// Writes all entries to a safetensors file, under their names. If that fails, a file that was there stays as it is: all is written to
    /// a file beside it first. Such files of processes that were killed while they saved under the same name are removed.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let file = folder.path().join("model.safetensors");
    /// let mut state = tlc::State::new();
    /// state.insert("w", [1.0f32, 2.0])?;
    /// state.save(&file)?;
    /// assert_eq!(tlc::State::open(&file)?["w"].as_slice::<f32>()?, [1.0, 2.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A torn state; what the system says; a name that the format keeps for itself.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), StateFileError> {
        let path = path.as_ref();
        self.whole().map_err(|source| StateFileError::State {
            path: path.into(),
            source,
        })?;
        let tensors: Vec<(&str, HostTensor)> = self
            .iter()
            .map(|e| Ok((e.name(), lent(e)?)))
            .collect::<Result<_, RunError>>()
            .map_err(|source| StateFileError::State {
                path: path.into(),
                source,
            })?;
        let all = || tensors.iter().map(|(name, tensor)| (*name, tensor));
        let metadata: BTreeMap<String, String> = safetensors::dtype_metadata(all());
        written(path, |file| safetensors::write(all(), &metadata, file))
    }

    /// The state in a safetensors file, which nobody may write meanwhile; entries come in the order of their bytes there. Beside the entries there is one of them in memory at a time.
    ///
    /// # Errors
    /// A file that cannot be read, is broken, or has elements of a type that tlc does not have.
    pub fn open(path: impl AsRef<Path>) -> Result<State, StateFileError> {
        let path = path.as_ref();
        let bytes = Contents::of(path).map_err(|source| StateFileError::Io {
            path: path.into(),
            source,
        })?;
        let format = |source| StateFileError::Format {
            path: path.into(),
            source,
        };
        let views = safetensors::Views::parse(bytes.as_ref()).map_err(format)?;
        let mut state = State::new();
        for view in views.iter() {
            let view = view.map_err(format)?;
            let mut tensor = view.to_host().map_err(format)?;
            // What has no name in safetensors lies there as bytes; what else is said there of types is somebody else's.
            let meant = views.metadata().get(&format!("dtype.{}", view.name));
            let narrow = |d: &DType| tensor.dtype() == DType::U8 && d.is_storage() && d.value_bits() < 8;
            let meant = meant.and_then(|name| DType::ALL.into_iter().find(|d| d.name() == name));
            if let Some(dtype) = meant.filter(narrow) {
                tensor = tensor.bitcast(dtype).map_err(|e| StateFileError::State {
                    path: path.into(),
                    source: e.into(),
                })?;
            }
            state
                .insert(view.name, &tensor)
                .map_err(|source| StateFileError::State {
                    path: path.into(),
                    source,
                })?;
        }
        Ok(state)
    }

    /// Gives all entries the values that a file has for them. The file has the same names and types. Entries keep their order, whatever the
    /// file's is; frozen ones stay frozen, and a torn state is whole again; one without entries becomes that of the file.
    ///
    /// # Errors
    /// As [`State::open`], and a file with other names or types, of which the error lists some. The state is then as it was.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<(), StateFileError> {
        let path = path.as_ref();
        let mut other = State::open(path)?;
        if self.is_empty() {
            self.replace(other);
            return Ok(());
        }
        let differences = differences(self, &other);
        if !differences.is_empty() {
            let mut text = differences[..differences.len().min(LISTED)].join("; ");
            if differences.len() > LISTED {
                text.push_str(&format!("; and {} more", differences.len() - LISTED));
            }
            return Err(StateFileError::Other {
                path: path.into(),
                differences: text,
            });
        }
        other.freeze(|name| self.get(name).is_some_and(Entry::is_frozen));
        self.replace(other);
        Ok(())
    }
}

/// The bytes of a file.
enum Contents {
    /// In the file, of which the system keeps in memory what there is room for.
    Mapped(MappedFile),
    /// What is no regular file is read.
    Read(Vec<u8>),
}

impl Contents {
    fn of(path: &Path) -> io::Result<Contents> {
        match MappedFile::open(path) {
            Ok(file) => {
                file.advise_sequential();
                Ok(Contents::Mapped(file))
            }
            Err(MapError::NotAFile { .. }) => fs::read(path).map(Contents::Read),
            Err(MapError::Open { source, .. } | MapError::Map { source, .. }) => Err(source),
        }
    }
}

impl AsRef<[u8]> for Contents {
    fn as_ref(&self) -> &[u8] {
        match self {
            Contents::Mapped(file) => file.as_slice(),
            Contents::Read(bytes) => bytes,
        }
    }
}

/// The bytes of an entry in the host's memory.
struct OnHost(Arc<StateMemory>);

impl AsRef<[u8]> for OnHost {
    fn as_ref(&self) -> &[u8] {
        // They are there, and nothing writes what is shared.
        self.0.on_host().unwrap_or_default()
    }
}

/// An entry as a tensor, in the same memory if it is in the host's.
fn lent(entry: &Entry) -> Result<HostTensor, RunError> {
    match entry.shared().filter(|data| data.is_on_host()) {
        Some(data) => {
            let owner: BytesOwner = Arc::new(OnHost(data));
            Ok(HostTensor::from_owner(entry.dtype(), entry.shape(), &owner, 0)?)
        }
        None => entry.to_host(),
    }
}

/// In what a file's state is another than the one that is expected.
fn differences(expected: &State, found: &State) -> Vec<String> {
    let ty = |e: &Entry| format!("{}{:?}", e.dtype(), e.shape());
    let mut all = Vec::new();
    for e in expected.iter() {
        match found.get(e.name()) {
            None => all.push(format!("`{}` is missing", e.name())),
            Some(f) if ty(f) != ty(e) => all.push(format!("`{}` is {}, expected {}", e.name(), ty(f), ty(e))),
            Some(_) => {}
        }
    }
    let unknown = found.iter().filter(|f| expected.get(f.name()).is_none());
    all.extend(unknown.map(|f| format!("`{}` is unknown", f.name())));
    all
}

/// Characters of a file's name in the name of the one beside it, which has to stay short enough for a name.
const NAMED: usize = 40;

/// Writes a file that appears whole or not at all, with the permissions of the one that it replaces. Where the path is a link, that is the
/// file which the link leads to.
pub(super) fn written(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> Result<(), FormatError>,
) -> Result<(), StateFileError> {
    let io = |source| StateFileError::Io {
        path: path.into(),
        source,
    };
    let target = followed(path).map_err(io)?;
    let known = fs::metadata(&target).ok();
    match &known {
        Some(known) if known.is_dir() => return Err(io(io::ErrorKind::IsADirectory.into())),
        // A device would be replaced by a file.
        Some(known) if !known.is_file() => {
            return Err(io(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file")));
        }
        _ => {}
    }
    // First, so that there is room.
    remove_abandoned(&target);
    let (file, beside) = beside(&target).map_err(io)?;
    let put = || {
        if let Some(known) = known {
            file.set_permissions(known.permissions()).map_err(io)?;
        }
        let mut file = BufWriter::new(file);
        write(&mut file).map_err(|source| StateFileError::Format {
            path: path.into(),
            source,
        })?;
        file.flush().map_err(io)?;
        // On the disk before it takes the place of what is there.
        file.get_ref().sync_all().map_err(io)?;
        fs::rename(&beside, &target).map_err(io)
    };
    put().inspect_err(|_| drop(fs::remove_file(&beside)))
}

/// Links that are followed one after the other, as many as Linux does.
const LINKS: usize = 40;

/// The file that a path leads to, whether it is there already or not.
fn followed(path: &Path) -> io::Result<PathBuf> {
    let missing = match fs::canonicalize(path) {
        Ok(target) => return Ok(target),
        Err(e) => e,
    };
    let mut target = path.to_path_buf();
    for _ in 0..LINKS {
        let Ok(next) = fs::read_link(&target) else {
            return Ok(target);
        };
        target = target.parent().unwrap_or(Path::new("")).join(next);
    }
    Err(missing)
}

/// What names of files beside another begin with; a number of the process and one of the file follow.
fn beginning(target: &Path) -> String {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let name: String = name.chars().take(NAMED).collect();
    format!(".{name}.")
}

/// A new file in the folder of another, locked where the system has locks. One of its name that is there already belongs to a process of
/// the same number, on another machine or in another container.
fn beside(target: &Path) -> io::Result<(File, PathBuf)> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let beginning = beginning(target);
    loop {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = target.with_file_name(format!("{beginning}{}-{number}", std::process::id()));
        let file = match File::create_new(&path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
            made => made?,
        };
        match file.try_lock() {
            // Before it was locked, it could be taken for one that is abandoned.
            Err(TryLockError::WouldBlock) => {}
            Ok(()) if !is_named(&file, &path) => {}
            Ok(()) | Err(TryLockError::Error(_)) => return Ok((file, path)),
        }
    }
}

/// Whether a file that is open still has a name.
#[cfg(unix)]
fn is_named(file: &File, _: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    file.metadata().is_ok_and(|m| m.nlink() > 0)
}

/// Whether a file that is open still has its name.
#[cfg(not(unix))]
fn is_named(_: &File, path: &Path) -> bool {
    path.exists()
}

/// Removes files beside another whose writers were killed: nobody has locked them. What cannot be removed stays.
fn remove_abandoned(target: &Path) {
    let beginning = beginning(target);
    let number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let folder = target.parent().filter(|p| !p.as_os_str().is_empty());
    let Ok(entries) = fs::read_dir(folder.unwrap_or(Path::new("."))) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let rest = name.to_str().and_then(|n| n.strip_prefix(&beginning));
        let numbers = rest.and_then(|r| r.split_once('-'));
        if !numbers.is_some_and(|(process, file)| number(process) && number(file))
            || !entry.file_type().is_ok_and(|t| t.is_file())
        {
            continue;
        }
        let path = entry.path();
        if let Ok(file) = OpenOptions::new().write(true).open(&path)
            && file.try_lock().is_ok()
        {
            drop(fs::remove_file(&path));
        }
    }
}
