//! Files in and out: written by others, written here and read again, and hostile ones.

#[path = "../expected/mod.rs"]
mod expected;
mod golden;
mod hostile;
mod round_trip;
