//! What was decided on the way to one launch of a kernel, for reports.

use std::sync::Arc;

use tlc_ir::Kernel;
use tlc_ir::plan::KernelId;

use crate::emitters::EmitterChoice;
use crate::lower::Form;
use crate::schedule::Schedule;
use crate::tuning::KernelKey;

/// What was decided about one kernel launch.
#[derive(Clone, Debug)]
pub struct LaunchReport {
    /// The cluster it belongs to.
    pub cluster: usize,
    /// The kernel before legalization; launches of equal nests share it.
    pub scheduled: Arc<Kernel>,
    /// How the nest was built.
    pub form: Form,
    /// What makes it, and why.
    pub emitter: EmitterChoice,
    /// The schedule.
    pub schedule: Arc<Schedule>,
    /// The kernel in the plan.
    pub kernel: KernelId,
    /// What it is known by to those who pin its choices, where that may be done.
    pub key: Option<KernelKey>,
}
