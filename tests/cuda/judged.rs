//! Which of the processes that run one test compares with the interpreter.

/// Tells a process that another one compares with the interpreter.
pub const JUDGED: (&str, &str) = ("TLC_TEST_JUDGED", "elsewhere");

/// Whether this process compares results with the interpreter's. Of those that run one test in several orders of warps the first one does: the
/// bits of the others are compared with its own.
pub fn judges() -> bool {
    std::env::var_os(JUDGED.0).is_none()
}
