//! Comparison of compiled graphs with their meaning, and the searches behind it.

mod nan;
mod reduction;
mod right;
