//! Output files: written beside their final name, then renamed, so that a failed or interrupted run leaves none.
//!
//! Invariants:
//! - Every temporary file, and every directory made for it, is registered as it is made and until it is renamed, kept or
//!   removed. Whatever ends the process early (Ctrl-C, SIGTERM, SIGHUP, no memory) removes what is registered.
//! - A set of files is renamed only when all of them are complete, and never once the process is ending.
//! - Files are written in pieces: the system removes no file in the middle of a write, and a write of gigabytes would
//!   keep the process that long.
//! - Nothing is allocated while the list of files is locked.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tlc_runtime::process;

use crate::failure::{Code, Failure};

static TEMPORARY: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Set as the process begins to end: nothing is written or renamed from then on.
static ENDING: AtomicBool = AtomicBool::new(false);

/// The most that one write of a file takes, in bytes.
const PIECE_BYTES: usize = 1 << 20;

fn temporary() -> MutexGuard<'static, Vec<PathBuf>> {
    TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The list, with room for one more.
fn temporary_with_room() -> MutexGuard<'static, Vec<PathBuf>> {
    loop {
        let files = temporary();
        let (len, capacity) = (files.len(), files.capacity());
        if len < capacity {
            return files;
        }
        drop(files);
        let mut larger = Vec::with_capacity(2 * capacity + 16);
        let mut files = temporary();
        if files.len() < larger.capacity() {
            larger.append(&mut files);
            let smaller = std::mem::replace(&mut *files, larger);
            drop(files);
            drop(smaller);
        }
    }
}

/// Stops this thread for good if the process is ending; another one ends it.
fn stop_if_ending() {
    while ENDING.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// What a file's bytes go through: pieces, as long as the process is not ending.
struct Pieces(File);

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        stop_if_ending();
        self.0.write(&bytes[..bytes.len().min(PIECE_BYTES)])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

fn remove(files: &[PathBuf]) {
    files.iter().for_each(|f| drop(fs::remove_file(f)));
    // Then directories, innermost first; one that someone else has written to stays.
    files.iter().rev().for_each(|d| drop(fs::remove_dir(d)));
}

/// Removes temporary files where the process ends for want of memory: this thread may hold any lock.
pub fn clean_up_without_memory() {
    ENDING.store(true, Ordering::SeqCst);
    crate::isolated::end_without_memory();
    // Others hold the list for a moment only.
    for _ in 0..100 {
        if let Ok(files) = TEMPORARY.try_lock() {
            return remove(&files);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The exit code of a run that a signal ended is its number and this one, as shells say it.
pub const ENDED_BY_SIGNAL: i32 = 128;

/// The number of the signal of Ctrl-C.
const INTERRUPT: i32 = 2;

/// Removes temporary files when the process is interrupted or asked to end.
pub fn clean_up_on_signals() {
    let handler = || {
        ENDING.store(true, Ordering::SeqCst);
        crate::isolated::end();
        let files = temporary();
        remove(&files);
        // The lock is held on purpose: nobody registers another file on the way out. What the other threads are in the
        // middle of is not waited for.
        process::exit_at_once(ENDED_BY_SIGNAL + process::ending_signal().unwrap_or(INTERRUPT));
    };
    // Where no handler can be set, only the cleaning up is lost.
    process::tell_signals_apart(|| drop(ctrlc::set_handler(handler)));
}

/// A file being written.
struct Staged {
    temporary: PathBuf,
    target: PathBuf,
    renamed: bool,
}

impl Drop for Staged {
    fn drop(&mut self) {
        let mut files = temporary();
        files.retain(|f| *f != self.temporary);
        if !self.renamed {
            // It may not exist yet.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

/// A new file beside a target, registered. Its name has the process's number, which processes of other containers have too: a file that is there
/// already is somebody else's, and another name is taken.
fn beside(target: PathBuf) -> io::Result<(Staged, File)> {
    const MOST_TRIES: u32 = 1000;
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let mut tries = 0;
    loop {
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!(".tlc-{}-{number}.tmp", std::process::id());
        let path = target.parent().unwrap_or(Path::new("")).join(name);
        let listed = path.clone();
        let mut files = temporary_with_room();
        // Not removed by a handler of signals before it is ours: the list is locked.
        match File::create_new(&path) {
            Ok(file) => {
                files.push(listed);
                drop(files);
                let staged = Staged {
                    temporary: path,
                    target,
                    renamed: false,
                };
                return Ok((staged, file));
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && tries < MOST_TRIES => tries += 1,
            Err(e) => return Err(e),
        }
    }
}

/// Files that appear together or not at all.
#[derive(Default)]
pub struct Outputs {
    staged: Vec<Staged>,
    created: Vec<PathBuf>,
}

/// Writes the content of a file.
pub type Write1<'a> = dyn FnMut(&mut dyn Write) -> io::Result<()> + 'a;

impl Outputs {
    /// Nothing yet.
    pub fn new() -> Outputs {
        Outputs::default()
    }

    /// Makes a directory and its parents; those that did not exist go again if the run fails.
    pub fn directory(&mut self, path: &Path) -> Result<(), Failure> {
        let mut missing: Vec<&Path> = path
            .ancestors()
            .take_while(|p| !p.as_os_str().is_empty() && !p.exists())
            .collect();
        missing.reverse();
        for part in missing {
            let (own, listed) = (part.to_path_buf(), part.to_path_buf());
            self.created.reserve(1);
            let made = {
                let mut files = temporary_with_room();
                fs::create_dir(part).map(|()| files.push(listed))
            };
            match made {
                Ok(()) => self.created.push(own),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(Failure::writing(&part.display().to_string(), &e)),
            }
        }
        if path.is_dir() || path.as_os_str().is_empty() {
            return Ok(());
        }
        Err(Failure::at(
            Code::Invalid,
            &path.display().to_string(),
            "not a directory; expected one to write to",
        ))
    }

    /// Writes a file under a temporary name.
    pub fn file(&mut self, path: &Path, write: &mut Write1<'_>) -> Result<(), Failure> {
        let failed = |e: io::Error| Failure::writing(&path.display().to_string(), &e);
        let target = match fs::metadata(path) {
            // Devices and pipes have no beside.
            Ok(m) if !m.is_file() && !m.is_dir() => {
                let mut out = BufWriter::new(Pieces(File::options().write(true).open(path).map_err(failed)?));
                return write(&mut out).and_then(|()| out.flush()).map_err(failed);
            }
            Ok(m) if m.is_dir() => return Err(failed(io::Error::other("is a directory; expected a file name"))),
            // A link stays a link.
            Ok(_) => fs::canonicalize(path).map_err(failed)?,
            Err(_) => path.to_path_buf(),
        };
        let (staged, file) = beside(target).map_err(failed)?;
        // It takes the place of one that others may not read, if that is so.
        if let Ok(known) = fs::metadata(&staged.target) {
            file.set_permissions(known.permissions()).map_err(failed)?;
        }
        let mut out = BufWriter::new(Pieces(file));
        write(&mut out).and_then(|()| out.flush()).map_err(failed)?;
        self.staged.push(staged);
        Ok(())
    }

    /// Gives all files their names.
    pub fn commit(mut self) -> Result<(), Failure> {
        let mut new: Vec<PathBuf> = Vec::with_capacity(self.staged.len());
        // Held until all have their names: who ends the process finds none of them or all.
        let files = temporary();
        if ENDING.load(Ordering::SeqCst) {
            drop(files);
            stop_if_ending();
            unreachable!("the process is ending");
        }
        for staged in &mut self.staged {
            let existed = staged.target.exists();
            if let Err(e) = fs::rename(&staged.temporary, &staged.target) {
                new.iter().for_each(|f| drop(fs::remove_file(f)));
                drop(files);
                return Err(Failure::writing(&staged.target.display().to_string(), &e));
            }
            staged.renamed = true;
            if !existed {
                new.push(staged.target.clone());
            }
        }
        drop(files);
        let created = std::mem::take(&mut self.created);
        temporary().retain(|f| !created.contains(f));
        Ok(())
    }
}

impl Drop for Outputs {
    fn drop(&mut self) {
        self.staged.clear();
        // Innermost first; one that someone else has written to stays.
        self.created.iter().rev().for_each(|d| drop(fs::remove_dir(d)));
        temporary().retain(|f| !self.created.contains(f));
    }
}

/// Writes one file.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let mut outputs = Outputs::new();
    outputs.file(path, &mut |w| w.write_all(bytes))?;
    outputs.commit()
}
