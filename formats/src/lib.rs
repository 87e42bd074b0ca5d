//! formats
#![forbid(unsafe_code)]
