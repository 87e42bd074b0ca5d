//! Machine code that may be wrong, in a process of its own: `tlc verify` and `tlc reduce` start themselves again, and what
//! crashes there is a finding here.
//!
//! Invariants: the process that was started has the same arguments, prints the same and ends with the same code, so that
//! where nothing crashes nobody sees the difference; it writes to a file what it is about to do; it does not outlive this one.

use std::cell::RefCell;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::failure::{Code, Failure};
use crate::staging::ENDED_BY_SIGNAL;

/// Set for a process that was started to be watched: the file in which it records where it is.
const TOLD: &str = "TLC_ISOLATED";

/// What this program's processes end with, but for 0.
const CODES: [Code; 6] = [
    Code::Failed,
    Code::Usage,
    Code::Invalid,
    Code::Unsupported,
    Code::Limit,
    Code::Bug,
];

/// What they end with that a signal ended, after they have removed their files.
const FIRST_ENDED: i32 = ENDED_BY_SIGNAL + 1;
const LAST_ENDED: i32 = ENDED_BY_SIGNAL + 31;

/// The process that is running.
static RUNNING: Mutex<Option<Child>> = Mutex::new(None);

/// The folder of files for it.
static FOLDER: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Ends the process that was started, as this one ends.
pub fn end() {
    let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(child) = running.as_mut() {
        let _ = child.kill();
        // It writes to the folder until then.
        let _ = child.wait();
    }
    let mut folder = FOLDER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(path) = folder.take() {
        let _ = std::fs::remove_dir_all(path);
    }
    // Both stay locked until this process is gone: another thread would go on and start the next process, or make a folder.
    std::mem::forget((running, folder));
}

/// As [`end`], where this thread may hold any lock: what it holds stays as it is.
pub fn end_without_memory() {
    if let Ok(mut running) = RUNNING.try_lock()
        && let Some(child) = running.as_mut()
    {
        let _ = child.kill();
    }
    if let Ok(mut folder) = FOLDER.try_lock()
        && let Some(path) = folder.take()
    {
        let _ = std::fs::remove_dir_all(path);
    }
}

fn remove_folder() {
    let mut folder = FOLDER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(path) = folder.take() {
        let _ = std::fs::remove_dir_all(path);
    }
}

/// Where the process is that was started to be watched.
pub struct Told(RefCell<File>);

impl Told {
    /// The file to tell in, if this is such a process.
    pub fn of_this_process() -> Option<Told> {
        let path = std::env::var_os(TOLD)?;
        Some(Told(File::options().write(true).open(path).ok()?.into()))
    }

    /// What is about to happen.
    pub fn tell(&self, place: &str) {
        let mut file = self.0.borrow_mut();
        // What cannot be written is only missing in a message.
        let _ = file
            .seek(SeekFrom::Start(0))
            .and_then(|_| file.write_all(place.as_bytes()))
            .and_then(|()| file.set_len(place.len() as u64));
    }
}

/// How a process ended.
pub enum End {
    /// With that exit code.
    Code(i32),
    /// By its own doing: with that signal, there.
    Crashed { signal: &'static str, place: String },
    /// From outside, with the signal of that number.
    Ended(i32),
}

impl End {
    /// What to do about it, if it did not crash.
    pub fn outcome(&self) -> Option<Result<(), Failure>> {
        Some(match self {
            End::Code(0) => Ok(()),
            // Everything has been said.
            End::Code(code) => Err(Failure::silent(
                CODES.into_iter().find(|c| *c as i32 == *code).unwrap_or(Code::Bug),
            )),
            End::Ended(signal) => Err(Failure::new(
                Code::Limit,
                format!("ended from outside (signal {signal}), as a system does when memory runs out"),
            )),
            End::Crashed { .. } => return None,
        })
    }
}

#[cfg(unix)]
fn signal_of(status: ExitStatus) -> Option<i32> {
    std::os::unix::process::ExitStatusExt::signal(&status)
}

#[cfg(not(unix))]
fn signal_of(_: ExitStatus) -> Option<i32> {
    None
}

/// The names of the signals that a program's own doing brings about.
fn crash(signal: i32) -> Option<&'static str> {
    Some(match signal {
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 | 10 => "SIGBUS",
        8 => "SIGFPE",
        11 => "SIGSEGV",
        _ => return None,
    })
}

/// A folder for files that both processes read, which goes with it. There is one at a time.
pub struct Scratch(PathBuf);

impl Scratch {
    /// A new folder among the temporary files.
    pub fn new() -> io::Result<Scratch> {
        let named = |n: u32| std::env::temp_dir().join(format!("tlc-{}-{n}", std::process::id()));
        // Locked before it is made, so that a handler of signals knows of it.
        let mut folder = FOLDER.lock().unwrap_or_else(PoisonError::into_inner);
        let mut path = named(0);
        let mut made = std::fs::create_dir(&path);
        // One that a process of the same number left behind is not ours.
        for n in 1..16 {
            if made.is_ok() {
                break;
            }
            path = named(n);
            made = std::fs::create_dir(&path);
        }
        made?;
        *folder = Some(path.clone());
        Ok(Scratch(path))
    }

    /// A file in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        remove_folder();
    }
}

/// Runs the program again and waits for its end. `input` is what it reads; with `quiet` nothing of what it prints is seen.
pub fn run(scratch: &Scratch, arguments: &[OsString], input: Option<&[u8]>, quiet: bool) -> io::Result<End> {
    // Locked before there is a file and before it starts: a handler of signals would not find what the locks do not know of yet.
    let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    let told = scratch.path("told");
    File::create(&told)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(arguments).env(TOLD, &told);
    command.stdin(match input {
        Some(_) => Stdio::piped(),
        None => Stdio::null(),
    });
    if quiet {
        command.stdout(Stdio::null()).stderr(Stdio::null());
    }
    let mut child = command.spawn()?;
    let pipe = child.stdin.take();
    *running = Some(child);
    drop(running);
    if let (Some(mut pipe), Some(bytes)) = (pipe, input) {
        // Who ends early reads no more.
        let _ = pipe.write_all(bytes);
    }
    let status = wait()?;
    let mut place = String::new();
    File::open(&told)?.read_to_string(&mut place)?;
    Ok(match (signal_of(status), status.code()) {
        (Some(signal), _) => match crash(signal) {
            Some(signal) => End::Crashed { signal, place },
            None => End::Ended(signal),
        },
        (None, Some(code @ FIRST_ENDED..=LAST_ENDED)) => End::Ended(code - ENDED_BY_SIGNAL),
        (None, Some(code)) if code == 0 || CODES.iter().any(|c| *c as i32 == code) => End::Code(code),
        // How systems without signals say it.
        _ => End::Crashed {
            signal: "an exception",
            place,
        },
    })
}

/// Waits for the process that runs, which a handler may end meanwhile.
fn wait() -> io::Result<ExitStatus> {
    let mut pause = Duration::from_micros(200);
    loop {
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(child) = running.as_mut() else {
            return Err(io::Error::other("no process runs"));
        };
        if let Some(status) = child.try_wait()? {
            *running = None;
            return Ok(status);
        }
        drop(running);
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(5));
    }
}

/// The arguments of this process, and what it would read, if one of them says that it reads.
pub fn own_arguments() -> io::Result<(Vec<OsString>, Option<Vec<u8>>)> {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let reads = |a: &OsString| a.to_str().is_some_and(|a| a == "-" || a.ends_with("=-"));
    if !arguments.iter().any(reads) {
        return Ok((arguments, None));
    }
    let mut bytes = Vec::new();
    io::stdin().lock().read_to_end(&mut bytes)?;
    Ok((arguments, Some(bytes)))
}
