//! What kernels compute: each kind of them beside plain loops and the graph interpreter, at its edges.

mod column_local;
mod concatenations;
mod copies;
mod empty;
mod functions;
mod gathers;
mod interior;
mod kernel_size;
mod minimal_graphs;
mod narrow;
mod reductions;
mod scans;
mod scatter;
mod tails;
mod windows;
