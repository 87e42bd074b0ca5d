//! What a program does where the system refuses it memory or room in a file. For programs alone: a library leaves its process
//! as it is.
//!
//! Invariants, once a program uses [`EndingAllocator`] and has called [`install`]:
//! - An allocation that fails ends the process with the exit code and the words of [`LastWords`], after its cleaning up,
//!   unless it is made in [`fallibly`](tlc_ir::fallible::fallibly): then its maker handles it.
//! - An abort while the system has no memory (a thread that cannot start) ends it likewise.
//! - The first thread has the address space of its stack from the start; see `reserve_stack`.
//! - A write beyond the limit of a file's size is an error of that write, not the end of the process.
//! - On the way out nothing waits for a lock that the ending thread may hold.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

/// How a program ends that has no memory.
#[derive(Clone, Copy, Debug)]
pub struct LastWords {
    /// The exit code.
    pub exit_code: i32,
    /// What standard error gets: whole lines.
    pub message: &'static str,
    /// Called before the end, on the thread that has no memory: takes no lock that may be held, and allocates little. What it
    /// allocates in vain ends the process at once.
    pub clean_up: fn(),
}

static LAST_WORDS: OnceLock<LastWords> = OnceLock::new();

/// The system's allocator; see the module's text for what it does where that has no memory.
pub struct EndingAllocator;

/// A failed allocation that nobody handles is the end.
fn checked(start: *mut u8) -> *mut u8 {
    if start.is_null() && !tlc_ir::fallible::is_fallible() {
        end();
    }
    start
}

// SAFETY: every call goes to the system's allocator, with the caller's promises; what `checked` adds allocates nothing before
// it ends the process.
unsafe impl GlobalAlloc for EndingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises.
        checked(unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises.
        checked(unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promises.
        checked(unsafe { System.realloc(start, layout, size) })
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises.
        unsafe { System.dealloc(start, layout) }
    }
}

/// Ends a process that has no memory.
fn end() {
    thread_local! {
        static ENDING: Cell<bool> = const { Cell::new(false) };
    }
    static ENDED: AtomicBool = AtomicBool::new(false);
    // Before the program has said how, the failure is its allocator's.
    let Some(words) = LAST_WORDS.get() else { return };
    let again = ENDING.try_with(|e| e.replace(true)).unwrap_or(true);
    if again {
        exit_at_once(words.exit_code);
    }
    if ENDED.swap(true, Ordering::SeqCst) {
        // Another thread is at it.
        loop {
            std::thread::sleep(std::time::Duration::from_secs(1));
        }
    }
    write_unbuffered(Stream::Error, words.message.as_bytes());
    (words.clean_up)();
    exit_at_once(words.exit_code);
}

/// A stream of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stream {
    /// Standard output.
    Output,
    /// Standard error.
    Error,
}

/// Writes to a stream without buffers, locks or memory. What cannot be written is lost.
pub fn write_unbuffered(stream: Stream, bytes: &[u8]) {
    #[cfg(unix)]
    {
        let file = match stream {
            Stream::Output => libc::STDOUT_FILENO,
            Stream::Error => libc::STDERR_FILENO,
        };
        let mut rest = bytes;
        while !rest.is_empty() {
            // SAFETY: the bytes are ours, and as many as is said.
            let written = unsafe { libc::write(file, rest.as_ptr().cast(), rest.len()) };
            match usize::try_from(written) {
                Ok(n) if n > 0 => rest = &rest[n.min(rest.len())..],
                _ => return,
            }
        }
    }
    #[cfg(not(unix))]
    {
        use std::io::Write;
        let _ = match stream {
            Stream::Output => std::io::stdout().write_all(bytes),
            Stream::Error => std::io::stderr().write_all(bytes),
        };
    }
}

/// Ends the process now: no destructor runs, and no buffer is written.
pub fn exit_at_once(code: i32) -> ! {
    #[cfg(unix)]
    // SAFETY: it only ends the process.
    unsafe {
        libc::_exit(code)
    }
    #[cfg(not(unix))]
    std::process::exit(code)
}

/// Whether the system refuses the process even a little memory.
pub fn memory_is_exhausted() -> bool {
    #[cfg(unix)]
    {
        const LITTLE: usize = 256 << 10;
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: a fresh anonymous mapping at an address of the system's choice touches no other memory, and nobody else
        // knows of it when it goes.
        unsafe {
            let start = libc::mmap(std::ptr::null_mut(), LITTLE, protection, flags, -1, 0);
            if start == libc::MAP_FAILED {
                return true;
            }
            libc::munmap(start, LITTLE);
        }
    }
    false
}

/// Sets what the process does where memory runs out, and makes writes beyond a file's size limit errors. Once in a process;
/// later calls change nothing.
pub fn install(words: LastWords) {
    if LAST_WORDS.set(words).is_err() {
        return;
    }
    #[cfg(unix)]
    // SAFETY: the handler is a function of the right type that may run at any time (see there); ignoring a signal is always
    // sound.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        let handler: extern "C" fn(libc::c_int) = aborting;
        libc::signal(libc::SIGABRT, handler as libc::sighandler_t);
    }
    #[cfg(target_os = "linux")]
    reserve_stack();
}

/// Lets the first thread's stack cover half of what it may become, up to 4 MiB, and ends the process where the system has not
/// so much. Linux gives that stack address space as it is first touched; where none is left, as under `ulimit -v`, the touch is
/// a segmentation fault, which no handler could tell from a defect. Only one page is touched, so that no memory but that is used.
#[cfg(target_os = "linux")]
fn reserve_stack() {
    const MOST: usize = 4 << 20;
    // Below, arguments and environment may be a large part of the stack.
    const LEAST: usize = 1 << 20;
    // SAFETY: both only return numbers.
    if unsafe { libc::gettid() != libc::getpid() } {
        return;
    }
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the structure is ours and of the type that the call writes.
    if unsafe { libc::getrlimit(libc::RLIMIT_STACK, &raw mut limit) } != 0 {
        return;
    }
    let bytes = usize::try_from(limit.rlim_cur / 2).unwrap_or(MOST).min(MOST);
    if bytes < LEAST {
        return;
    }
    // SAFETY: as in `memory_is_exhausted`.
    unsafe {
        let (protection, flags) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let start = libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0);
        if start == libc::MAP_FAILED {
            return end();
        }
        libc::munmap(start, bytes);
    }
    let here = 0_u8;
    let lowest = (&raw const here).wrapping_sub(bytes);
    // SAFETY: the byte is in the part of the first thread's stack that no frame has reached: its limit is twice as far away,
    // and reading there only lets the stack grow.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        std::arch::asm!("mov {0:l}, byte ptr [{0}]", inout(reg_abcd) lowest => _, options(nostack, readonly));
        #[cfg(target_arch = "aarch64")]
        std::arch::asm!("ldrb {0:w}, [{0}]", inout(reg) lowest => _, options(nostack, readonly));
    }
}

/// The signals that ask a process to end.
#[cfg(unix)]
const ENDING: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// What else handles each of them, once a handler here is in front of it.
#[cfg(unix)]
static BEHIND: [AtomicUsize; ENDING.len()] = [const { AtomicUsize::new(0) }; ENDING.len()];

/// The first of them that came, or 0.
static ENDED_BY: AtomicI32 = AtomicI32::new(0);

/// The number of the signal that first asked the process to end, if one has since [`tell_signals_apart`].
pub fn ending_signal() -> Option<i32> {
    Some(ENDED_BY.load(Ordering::SeqCst)).filter(|&s| s != 0)
}

/// Has `set` set one handler for all signals that ask a process to end, and keeps the number of the one that comes for
/// [`ending_signal`]. A hang-up that is ignored, as under `nohup`, stays so. A signal that comes meanwhile waits until it can be told.
pub fn tell_signals_apart(set: impl FnOnce()) {
    #[cfg(unix)]
    {
        let _held = Held::hold();
        let hang_up = action(libc::SIGHUP);
        set();
        for (signal, behind) in ENDING.into_iter().zip(&BEHIND) {
            let Some(mut found) = action(signal) else { continue };
            if signal == libc::SIGHUP && hang_up.is_some_and(|h| h.sa_sigaction == libc::SIG_IGN) {
                // SAFETY: ignoring a signal is always sound.
                unsafe { libc::signal(signal, libc::SIG_IGN) };
                continue;
            }
            let plain = found.sa_flags & libc::SA_SIGINFO == 0;
            if !plain || [libc::SIG_DFL, libc::SIG_IGN].contains(&found.sa_sigaction) {
                continue;
            }
            behind.store(found.sa_sigaction, Ordering::SeqCst);
            let handler: extern "C" fn(libc::c_int) = telling;
            found.sa_sigaction = handler as libc::sighandler_t;
            // SAFETY: the handler is a function of the type that the flags say, and may run at any time (see there).
            unsafe { libc::sigaction(signal, &raw const found, std::ptr::null_mut()) };
        }
    }
    #[cfg(not(unix))]
    set();
}

/// The signals that ask a process to end wait, on this thread and those that it starts, until it is dropped on this thread.
#[cfg(unix)]
struct Held {
    before: libc::sigset_t,
}

#[cfg(unix)]
impl Held {
    fn hold() -> Held {
        // SAFETY: all zeros are a value of the sets, which are ours and which the calls write.
        unsafe {
            let (mut signals, mut before): (libc::sigset_t, libc::sigset_t) = std::mem::zeroed();
            libc::sigemptyset(&raw mut signals);
            for signal in ENDING {
                libc::sigaddset(&raw mut signals, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signals, &raw mut before);
            Held { before }
        }
    }
}

#[cfg(unix)]
impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: the set is the one that the system gave.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}

/// What is done at a signal.
#[cfg(unix)]
fn action(signal: libc::c_int) -> Option<libc::sigaction> {
    // SAFETY: all zeros are a value of the structure, which is ours and of the type that the call writes.
    unsafe {
        let mut found: libc::sigaction = std::mem::zeroed();
        (libc::sigaction(signal, std::ptr::null(), &raw mut found) == 0).then_some(found)
    }
}

/// Keeps a signal's number, then does what was done at it before. Nothing of it allocates or locks.
#[cfg(unix)]
extern "C" fn telling(signal: libc::c_int) {
    let _ = ENDED_BY.compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst);
    let at = ENDING.iter().position(|&s| s == signal);
    let behind = at.map_or(0, |k| BEHIND[k].load(Ordering::SeqCst));
    if behind != 0 {
        // SAFETY: it is the address of a handler that was set for this signal without SA_SIGINFO: a function of this type.
        let behind: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(behind) };
        behind(signal);
    }
}

/// What comes before an abort.
#[cfg(unix)]
extern "C" fn aborting(signal: libc::c_int) {
    if memory_is_exhausted() {
        end();
    }
    // Any other abort goes on: behind this handler the signal comes again, or is raised again.
    // SAFETY: the default action needs nothing.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    extern "C" fn nothing(_: libc::c_int) {}

    #[test]
    fn a_signal_that_comes_while_the_handlers_are_set_is_told() {
        let handler: extern "C" fn(libc::c_int) = nothing;
        tell_signals_apart(|| {
            // SAFETY: the handler does nothing, and the signal is sent to this thread alone.
            unsafe {
                libc::signal(libc::SIGTERM, handler as libc::sighandler_t);
                libc::raise(libc::SIGTERM);
            }
        });
        assert_eq!(ending_signal(), Some(libc::SIGTERM));
        // SAFETY: the default action needs nothing.
        unsafe { libc::signal(libc::SIGTERM, libc::SIG_DFL) };
    }
}
