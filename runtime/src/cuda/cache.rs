//! Compiled programs, kept on disk from one process to the next.
//!
//! `TLC_CACHE` is the folder, or `off`; if it is not set, it is `tlc/cuda` in the user's folder of caches. Invariants:
//! - A file holds all that decides what is in it, compared when it is read: a name that two programs share is no harm.
//! - Files appear whole: written beside their name and renamed. What does not read back as it was written is not there.
//! - Whatever goes wrong here, a program is compiled, as without a cache.

use std::hash::Hasher;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustc_hash::FxHasher;

/// How files begin; another format has another number.
const MAGIC: &[u8; 8] = b"tlccuda1";
/// The extension of files.
const EXTENSION: &str = "code";

/// All that decides what a program becomes.
pub(super) struct Key<'k> {
    pub(super) text: &'k str,
    pub(super) arch: &'k str,
    pub(super) flags: &'k [&'k str],
    /// Of NVRTC.
    pub(super) version: (i32, i32),
    /// Of its file, which tell builds of a version apart; 0 if they are not known.
    pub(super) library_bytes: u64,
}

/// A program that is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cached {
    /// The file.
    pub path: PathBuf,
    /// The architecture.
    pub arch: String,
    /// Its kernels.
    pub kernels: usize,
    /// Bytes of the file.
    pub bytes: u64,
}

/// The programs that are kept, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entries {
    /// The folder.
    pub folder: PathBuf,
    /// In the order of their names.
    pub programs: Vec<Cached>,
}

/// The folder, unless there is to be none.
fn folder() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty());
    match set("TLC_CACHE") {
        Some(off) if off == "off" => None,
        Some(folder) => Some(PathBuf::from(folder)),
        None => {
            // The base directory specification asks to ignore relative paths.
            let base = set("XDG_CACHE_HOME").map(PathBuf::from).filter(|p| p.is_absolute());
            let base = base.or_else(|| set("HOME").map(|h| Path::new(&h).join(".cache")))?;
            Some(base.join("tlc").join("cuda"))
        }
    }
}

fn hash(parts: &[&[u8]], seed: u64) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write_u64(seed);
    parts.iter().for_each(|p| hasher.write(p));
    hasher.finish()
}

impl Key<'_> {
    /// Everything but the text.
    fn settings(&self) -> String {
        format!(
            "{} {} {}.{} {}",
            self.arch,
            self.flags.join(" "),
            self.version.0,
            self.version.1,
            self.library_bytes
        )
    }

    fn path(&self, folder: &Path) -> PathBuf {
        let settings = self.settings();
        let parts = [settings.as_bytes(), self.text.as_bytes()];
        folder.join(format!("{:016x}{:016x}.{EXTENSION}", hash(&parts, 1), hash(&parts, 2)))
    }
}

/// The parts of a file: settings, text and code. `None` if it is not whole.
fn parts(bytes: &[u8]) -> Option<[&[u8]; 3]> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let (sum, mut rest) = rest.split_first_chunk::<8>()?;
    if hash(&[rest], 3) != u64::from_le_bytes(*sum) {
        return None;
    }
    let mut part = || {
        let (len, after) = rest.split_first_chunk::<8>()?;
        let len = usize::try_from(u64::from_le_bytes(*len)).ok()?;
        let (here, after) = after.split_at_checked(len)?;
        rest = after;
        Some(here)
    };
    Some([part()?, part()?, part()?])
}

/// What was made of a program before.
pub(super) fn get(key: &Key<'_>) -> Option<Vec<u8>> {
    let bytes = std::fs::read(key.path(&folder()?)).ok()?;
    let [settings, text, code] = parts(&bytes)?;
    let same = settings == key.settings().as_bytes() && text == key.text.as_bytes();
    same.then(|| code.to_vec())
}

/// Keeps what was made of a program, if that can be done.
pub(super) fn put(key: &Key<'_>, code: &[u8]) {
    let Some(folder) = folder() else { return };
    if let Err(e) = written(key, code, &folder) {
        tracing::debug!("{}: {e}", folder.display());
    }
}

fn written(key: &Key<'_>, code: &[u8], folder: &Path) -> std::io::Result<()> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    std::fs::create_dir_all(folder)?;
    let settings = key.settings();
    let mut body = Vec::with_capacity(code.len() + key.text.len() + settings.len() + 24);
    for part in [settings.as_bytes(), key.text.as_bytes(), code] {
        body.extend((part.len() as u64).to_le_bytes());
        body.extend(part);
    }
    let path = key.path(folder);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let beside = path.with_extension(format!("{}-{number}", std::process::id()));
    let write = || {
        let mut file = std::fs::File::create(&beside)?;
        file.write_all(MAGIC)?;
        file.write_all(&hash(&[&body], 3).to_le_bytes())?;
        file.write_all(&body)?;
        std::fs::rename(&beside, &path)
    };
    write().inspect_err(|_| drop(std::fs::remove_file(&beside)))
}

impl Entries {
    /// The programs that are kept; `None` if `TLC_CACHE` is `off` or there is no folder for it.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn list() -> std::io::Result<Option<Entries>> {
        let Some(folder) = folder() else { return Ok(None) };
        let mut programs = Vec::new();
        for path in files(&folder)? {
            let bytes = std::fs::read(&path)?;
            let Some([settings, text, _]) = parts(&bytes) else {
                continue;
            };
            let settings = String::from_utf8_lossy(settings);
            programs.push(Cached {
                arch: settings.split(' ').next().unwrap_or_default().to_string(),
                kernels: String::from_utf8_lossy(text).matches("__global__").count(),
                bytes: bytes.len() as u64,
                path,
            });
        }
        programs.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Some(Entries { folder, programs }))
    }

    /// Removes all of them; returns how many there were. Nothing else in the folder is touched.
    ///
    /// # Errors
    /// If one cannot be removed.
    pub fn clear() -> std::io::Result<usize> {
        let Some(folder) = folder() else { return Ok(0) };
        let files = files(&folder)?;
        files.iter().try_for_each(std::fs::remove_file)?;
        Ok(files.len())
    }
}

/// Whether a path is that of a program, as [`Key::path`] names them.
fn is_program(path: &Path) -> bool {
    let stem = path.file_stem().and_then(|s| s.to_str()).unwrap_or_default();
    path.extension().is_some_and(|e| e == EXTENSION)
        && stem.len() == 32
        && stem.bytes().all(|b| b.is_ascii_hexdigit())
        && path.symlink_metadata().is_ok_and(|m| m.is_file())
}

/// The files of a folder, none if there is no folder.
fn files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(folder) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let paths: Vec<PathBuf> = entries.map(|e| Ok(e?.path())).collect::<std::io::Result<_>>()?;
    Ok(paths.into_iter().filter(|p| is_program(p)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_whole_is_not_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let key = Key {
            text: "text",
            arch: "sm_80",
            flags: &["--fmad=false"],
            version: (13, 0),
            library_bytes: 1,
        };
        written(&key, b"code", folder.path()).expect("written");
        let path = key.path(folder.path());
        let whole = std::fs::read(&path).expect("a file");
        assert_eq!(
            parts(&whole).expect("whole"),
            [key.settings().as_bytes(), b"text", b"code"]
        );
        for len in 0..whole.len() {
            assert!(parts(&whole[..len]).is_none());
            let mut other = whole.clone();
            other[len] ^= 1;
            assert!(parts(&other).is_none(), "byte {len}");
        }
    }

    #[test]
    fn only_files_of_the_cache_are_seen() {
        let folder = tempfile::tempdir().expect("a folder");
        let named = |name: &str| folder.path().join(name);
        let program = named("0123456789abcdef0123456789abcdef.code");
        for path in [
            &program,
            &named("a.code"),
            &named("0123456789abcdef0123456789abcdef.txt"),
        ] {
            std::fs::write(path, "x").expect("written");
        }
        std::fs::create_dir(named("00000000000000000000000000000000.code")).expect("a folder");
        assert_eq!(files(folder.path()).expect("a folder"), [program]);
        assert!(files(&folder.path().join("none")).expect("no folder").is_empty());
    }
}
