//! Allocations whose failure is an error for the caller.
//!
//! A program may choose to end where memory runs out (see `tlc_runtime::process`). An allocation that is made in [`fallibly`]
//! is not ended so: whoever made it reports that it failed, and goes on.

use std::cell::Cell;

thread_local! {
    static FALLIBLE: Cell<bool> = const { Cell::new(false) };
}

/// Calls `allocate`, which handles the failure of every allocation that it makes.
pub fn fallibly<T>(allocate: impl FnOnce() -> T) -> T {
    /// Restores what was before, also where `allocate` panics.
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            FALLIBLE.set(self.0);
        }
    }
    let _restore = Restore(FALLIBLE.replace(true));
    allocate()
}

/// Whether this thread is in a call of [`fallibly`].
pub fn is_fallible() -> bool {
    // Where the thread's variables are gone, so are its callers.
    FALLIBLE.try_with(Cell::get).unwrap_or(false)
}
