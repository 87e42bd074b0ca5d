//! Panics, which are bugs: their messages are kept for whoever reports them.

use std::panic::PanicHookInfo;
use std::sync::{Mutex, PoisonError};

use crate::failure::{Code, Failure};

static LAST: Mutex<Option<String>> = Mutex::new(None);

/// Keeps the message of every panic, and prints nothing but a backtrace where `RUST_BACKTRACE` is set for one.
pub fn install() {
    std::panic::set_hook(Box::new(keep));
}

fn keep(info: &PanicHookInfo<'_>) {
    let payload = info.payload();
    let said = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let place = info
        .location()
        .map_or(String::new(), |l| format!(" at {}:{}", l.file(), l.line()));
    let message = format!("internal error: {}{place}", said.unwrap_or("no message"));
    if std::env::var_os("RUST_BACKTRACE").is_some_and(|v| v != "0") {
        eprintln!("{message}\n{}", std::backtrace::Backtrace::force_capture());
    }
    *LAST.lock().unwrap_or_else(PoisonError::into_inner) = Some(message);
}

/// What ends with a panic: a bug, or a system without memory, which some libraries panic about.
pub fn failure() -> Failure {
    match tlc_runtime::process::memory_is_exhausted() {
        true => Failure::new(Code::Limit, "out of memory"),
        false => Failure::new(Code::Bug, last_message()),
    }
}

/// What the last panic said.
fn last_message() -> String {
    let last = LAST.lock().unwrap_or_else(PoisonError::into_inner).take();
    last.unwrap_or_else(|| "internal error: a panic without a message".into())
}
