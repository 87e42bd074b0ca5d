//! What it takes to launch a graph that was captured: the least that a warm call of steps on a device can take.

use std::sync::Arc;

use super::context::Context;
use super::device::timed_graph;
use crate::error::RunError;

/// A kernel that does nothing.
const TEXT: &str = "extern \"C\" __global__ void nothing(long long, long long, long long) {}\n";

/// Nanoseconds of a launch of a graph of one kernel that does nothing.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct GraphLaunch {
    /// What the host takes to give it to the device.
    pub host_ns: f64,
    /// What the device takes for each where they are given one behind another.
    pub device_ns: f64,
}

/// Measures launches of a graph, the least of so many times.
///
/// # Errors
/// If the device or NVRTC fails.
pub fn graph_launch(context: &Arc<Context>, times: usize) -> Result<GraphLaunch, RunError> {
    let [host_ns, device_ns] = timed_graph(context, (TEXT, "nothing"), times)?;
    Ok(GraphLaunch { host_ns, device_ns })
}
