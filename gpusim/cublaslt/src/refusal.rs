//! What goes wrong.

/// Why something is not done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// `CUBLAS_STATUS_INVALID_VALUE`.
    Invalid(&'static str),
    /// `CUBLAS_STATUS_NOT_SUPPORTED`.
    Unsupported(&'static str),
    /// `CUBLAS_STATUS_NOT_INITIALIZED`: there is no simulated driver.
    NoDriver,
    /// `CUBLAS_STATUS_EXECUTION_FAILED`: the driver said so.
    Driver(u32),
}
