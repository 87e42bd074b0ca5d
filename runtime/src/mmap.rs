//! Read-only file mappings, so that crates which may not use `unsafe` see a large file as bytes.
//!
//! Invariants: the mapping is private to reading and lives as long as the [`MappedFile`]; its first byte is aligned to a
//! page. The bytes are the file's own: a program that truncates or rewrites the file while it is mapped changes them
//! under the reader (and a read past a truncated end kills the process with SIGBUS), as with every memory-mapped
//! loader. Files that others may change must be read instead.

use std::fs::File;
use std::ops::Deref;
use std::path::{Path, PathBuf};

/// A file could not be mapped.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// The file could not be opened.
    #[error("cannot open {}: {source}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The path names something other than a regular file (a directory, a pipe), which has no bytes to map.
    #[error("cannot map {}: not a regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The system refused the mapping.
    #[error("cannot map {}: {source}", path.display())]
    Map {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// The bytes of a file, mapped read-only.
#[derive(Debug)]
pub struct MappedFile {
    /// `None` for an empty file, which not every system maps.
    map: Option<memmap2::Mmap>,
    path: PathBuf,
}

impl MappedFile {
    /// Maps the whole of the file at `path`.
    ///
    /// # Errors
    ///
    /// [`MapError`] if there is no such file, if it is no regular file, or if the system refuses to map it.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, MapError> {
        let path = path.as_ref().to_path_buf();
        // Opening a pipe would wait for a writer: look first.
        let metadata = std::fs::metadata(&path).map_err(|source| MapError::Open {
            path: path.clone(),
            source,
        })?;
        if !metadata.is_file() {
            return Err(MapError::NotAFile { path });
        }
        let file = File::open(&path).map_err(|source| MapError::Open {
            path: path.clone(),
            source,
        })?;
        let length = file
            .metadata()
            .map_err(|source| MapError::Open {
                path: path.clone(),
                source,
            })?
            .len();
        if length == 0 {
            return Ok(MappedFile { map: None, path });
        }
        // SAFETY: the mapping is read-only and owns its file. That nobody else changes the file meanwhile is the
        // documented condition of this type, as the module's text says.
        let map = unsafe { memmap2::Mmap::map(&file) };
        let map = map.map_err(|source| MapError::Map {
            path: path.clone(),
            source,
        })?;
        #[cfg(target_os = "linux")]
        mapped().push(place(&map));
        Ok(MappedFile { map: Some(map), path })
    }

    /// The file's bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        self.map.as_deref().unwrap_or(&[])
    }

    /// The path it was opened from.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Tells the system that the bytes will be read soon, front to back, so that it reads ahead. Only a hint: where the
    /// system has none or refuses, nothing happens.
    pub fn advise_sequential(&self) {
        #[cfg(unix)]
        if let Some(map) = &self.map {
            for advice in [memmap2::Advice::Sequential, memmap2::Advice::WillNeed] {
                if let Err(error) = map.advise(advice) {
                    tracing::debug!(%error, path = %self.path.display(), "the system takes no advice on this mapping");
                }
            }
        }
    }
}

impl MappedFile {
    /// How many bytes of the file the system has in memory, in whole pages; `None` where it does not say. Of a file
    /// that this user may not write it says that all of it is.
    pub fn resident(&self) -> Option<usize> {
        #[cfg(target_os = "linux")]
        {
            let Some(map) = &self.map else { return Some(0) };
            let page = page_size()?;
            let mut pages = vec![0u8; map.len().div_ceil(page)];
            let start = map.as_ptr().cast_mut().cast::<libc::c_void>();
            // SAFETY: the mapping is ours and begins at a page; there is a byte for each page of it.
            let refused = unsafe { libc::mincore(start, map.len(), pages.as_mut_ptr()) } != 0;
            (!refused).then(|| pages.iter().filter(|&&p| p & 1 != 0).count() * page)
        }
        #[cfg(not(target_os = "linux"))]
        None
    }
}

/// Asks the system to drop what it has of a file in memory, so that the next read comes from the disk. What is mapped
/// somewhere stays, and so does all of it where the system has no such request: see [`MappedFile::resident`].
///
/// # Errors
/// If the file cannot be opened or written back.
pub fn evict(path: impl AsRef<Path>) -> std::io::Result<()> {
    let file = File::open(path)?;
    file.sync_all()?;
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd;
        // SAFETY: advice on a file that is open.
        let refused = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        if refused != 0 {
            return Err(std::io::Error::from_raw_os_error(refused));
        }
    }
    Ok(())
}

#[cfg(target_os = "linux")]
fn page_size() -> Option<usize> {
    // SAFETY: a plain query.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(page).ok().filter(|&p| p > 0)
}

/// The mappings that there are. Whoever holds the lock knows that none of them ends.
#[cfg(target_os = "linux")]
fn mapped() -> std::sync::MutexGuard<'static, Vec<Place>> {
    static MAPPED: std::sync::Mutex<Vec<Place>> = std::sync::Mutex::new(Vec::new());
    MAPPED.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The addresses of a mapping.
#[cfg(target_os = "linux")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    start: usize,
    end: usize,
}

#[cfg(target_os = "linux")]
impl Place {
    fn holds(&self, bytes: &[u8]) -> bool {
        let of = bytes.as_ptr_range();
        self.start <= of.start.addr() && of.end.addr() <= self.end
    }
}

/// While it lives, the system reads no more of a mapped file than the pages that are touched.
///
/// By default it reads megabytes around every page that is not in memory, which is right for weights that are about to be
/// computed with, and wrong for the few bytes of text between them.
#[derive(Debug)]
#[must_use = "the system reads ahead again once this is dropped"]
pub struct Sparse {
    #[cfg(target_os = "linux")]
    place: Option<Place>,
}

/// Files up to this size are read as they come: whole, they cost no more than a few hundred pages one by one.
#[cfg(target_os = "linux")]
const SMALL: usize = 8 << 20;

/// Reads the [`MappedFile`] that holds `bytes` sparsely, if it is large. Only a hint: nothing happens to other memory, nor
/// where the system refuses.
pub fn read_sparsely(bytes: &[u8]) -> Sparse {
    #[cfg(target_os = "linux")]
    {
        let mapped = mapped();
        let place = mapped
            .iter()
            .copied()
            .find(|p| p.holds(bytes) && p.end - p.start > SMALL);
        if let Some(place) = place {
            advise(place, libc::MADV_RANDOM);
        }
        Sparse { place }
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = bytes;
        Sparse {}
    }
}

#[cfg(target_os = "linux")]
impl Drop for Sparse {
    fn drop(&mut self) {
        let Some(place) = self.place else { return };
        let mapped = mapped();
        if mapped.contains(&place) {
            advise(place, libc::MADV_NORMAL);
        }
    }
}

/// Gives advice on a mapping that the caller knows to be there.
#[cfg(target_os = "linux")]
fn advise(place: Place, advice: libc::c_int) {
    let start = std::ptr::without_provenance_mut::<libc::c_void>(place.start);
    // SAFETY: advice on how to read a file changes no memory.
    let refused = unsafe { libc::madvise(start, place.end - place.start, advice) } != 0;
    if refused {
        tracing::debug!(advice, "the system takes no advice on a mapping");
    }
}

/// Whether `bytes` are part of a [`MappedFile`].
pub(crate) fn holds(bytes: &[u8]) -> bool {
    #[cfg(target_os = "linux")]
    return mapped().iter().any(|p| p.holds(bytes));
    #[cfg(not(target_os = "linux"))]
    {
        let _ = bytes;
        false
    }
}

/// Gives the whole pages of `bytes` back to the system if they are part of a [`MappedFile`]: a later read finds them in the file
/// again. Nothing happens to other memory.
pub(crate) fn release(bytes: &[u8]) {
    #[cfg(target_os = "linux")]
    {
        let mapped = mapped();
        let Some(page) = page_size() else { return };
        let start = bytes.as_ptr().addr();
        let before = start.next_multiple_of(page) - start;
        let Some(rest) = bytes.len().checked_sub(before) else {
            return;
        };
        let whole = rest / page * page;
        if whole > 0 && mapped.iter().any(|p| p.holds(bytes)) {
            let start = bytes[before..].as_ptr().cast_mut().cast::<libc::c_void>();
            // SAFETY: whole pages of a private read-only mapping of a file, which the lock keeps alive: they hold the file's
            // bytes, before and after.
            let refused = unsafe { libc::madvise(start, whole, libc::MADV_DONTNEED) } != 0;
            if refused {
                tracing::debug!(bytes = whole, "the system keeps pages that are not needed");
            }
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = bytes;
}

#[cfg(target_os = "linux")]
impl Drop for MappedFile {
    fn drop(&mut self) {
        if let Some(map) = &self.map {
            let place = place(map);
            let mut mapped = mapped();
            if let Some(at) = mapped.iter().position(|p| *p == place) {
                mapped.swap_remove(at);
            }
        }
    }
}

#[cfg(target_os = "linux")]
fn place(map: &memmap2::Mmap) -> Place {
    let range = map.as_ptr_range();
    Place {
        start: range.start.addr(),
        end: range.end.addr(),
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_shows_the_bytes_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.bin");
        let bytes: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let mapped = MappedFile::open(&path).unwrap();
        mapped.advise_sequential();
        assert_eq!(&mapped[..], &bytes[..]);
        assert_eq!(mapped.path(), path);
        assert!(mapped.as_ptr().addr().is_multiple_of(4096));
        // The mapping outlives the file's name.
        std::fs::remove_file(&path).unwrap();
        assert_eq!(mapped.as_slice(), &bytes[..]);
    }

    #[test]
    fn released_pages_still_hold_the_bytes_of_the_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let bytes: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
        std::fs::write(file.path(), &bytes).unwrap();
        let mapped = MappedFile::open(file.path()).unwrap();
        for range in [0..100_000, 1..99_999, 5000..5001, 4095..8193, 100_000..100_000] {
            release(&mapped[range]);
            assert_eq!(mapped.as_slice(), &bytes[..]);
        }
        // Memory that is no mapping of ours stays as it is.
        let own = bytes.clone();
        release(&own);
        assert_eq!(own, bytes);
    }

    #[test]
    fn what_is_read_sparsely_brings_in_nothing_around_it() {
        // In the build's folder: the system's own may be in memory.
        let build = std::env::current_exe().unwrap();
        let folder = tempfile::tempdir_in(build.parent().unwrap()).unwrap();
        let path = folder.path().join("data.bin");
        let bytes: Vec<u8> = (0..16 << 20).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        evict(&path).unwrap();
        let mapped = MappedFile::open(&path).unwrap();
        if mapped.resident() != Some(0) {
            eprintln!(
                "SKIP: this system keeps files in memory, or does not tell: {:?}",
                mapped.resident()
            );
            return;
        }
        let places = [0, 3 << 20, 9 << 20, (16 << 20) - 1];
        let sparse = read_sparsely(&mapped[1..5]);
        for at in places {
            assert_eq!(mapped[at], bytes[at]);
        }
        let page = page_size().unwrap();
        assert_eq!(mapped.resident(), Some(places.len() * page));
        drop(sparse);
        assert_eq!(mapped.as_slice(), &bytes[..]);
        // Of memory that is no mapping nothing is said, nor of a mapping that is gone.
        drop(read_sparsely(&bytes));
        let sparse = read_sparsely(&mapped);
        drop(mapped);
        drop(sparse);
    }

    #[test]
    fn an_empty_file_is_an_empty_slice() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mapped = MappedFile::open(file.path()).unwrap();
        mapped.advise_sequential();
        assert!(mapped.is_empty());
    }

    #[test]
    fn errors_name_the_path() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing.bin");
        let error = MappedFile::open(&missing).unwrap_err();
        assert!(matches!(error, MapError::Open { .. }));
        assert!(error.to_string().contains("missing.bin"), "{error}");
        let error = MappedFile::open(folder.path()).unwrap_err();
        assert!(matches!(error, MapError::NotAFile { .. }), "{error}");
    }
}
