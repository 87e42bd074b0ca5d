//! Where wrong decisions are seeded: each stage shows what it has made to one function, which tests fill.
//!
//! Decision code knows nothing of faults. The functions below do nothing, and cost nothing, but under the feature
//! `seeded-faults`, which tests have: there what is shown may be changed.

use std::sync::Arc;

use tlc_ir::index::VarId;
use tlc_ir::kernel::Kernel;
use tlc_ir::plan::{Layout, Lines, Plan, SlotId};
use tlc_ir::{Graph, NodeId};

use crate::directive::Directive;
use crate::partition::{Clusters, LoopSpace};
use crate::reason::{AliasDecision, FusionReason};

/// What a stage has made, before the next one sees it.
#[cfg_attr(
    not(feature = "seeded-faults"),
    expect(dead_code, reason = "only what seeds faults looks at it")
)]
pub(crate) enum Made<'a> {
    /// A graph by a pass.
    Graph {
        pass: &'static str,
        before: &'a Graph,
        after: &'a mut Graph,
    },
    /// The loops that two groups of roots can share, or why they cannot.
    Space {
        /// Those of each group by itself.
        alone: [Option<&'a LoopSpace>; 2],
        roots: [&'a [NodeId]; 2],
        shared: &'a mut Result<LoopSpace, FusionReason>,
    },
    /// All clusters of a graph.
    Clusters {
        graph: &'a Graph,
        clusters: &'a mut Clusters,
    },
    /// The naive nest of a cluster.
    Nest(&'a mut Kernel),
    /// What a directive made of a kernel: the loops over `variables`, and scratch from number `scratch` on.
    Schedule {
        directive: &'a Directive,
        variables: &'a [VarId],
        scratch: usize,
        kernel: &'a mut Kernel,
    },
    /// A kernel that is about to be legalized.
    Scheduled(&'a mut Kernel),
    /// The same kernel, legal.
    Legal(&'a mut Kernel),
    /// The lines along which a kernel goes over a product's result.
    Lines(&'a mut Option<Lines>),
    /// Launches that run side by side, with the pairs of slots that each step could do in place.
    Groups {
        plan: &'a mut Plan,
        in_place: &'a mut Vec<Vec<(SlotId, SlotId)>>,
    },
    /// Slots in the bytes of others.
    Aliases {
        plan: &'a mut Plan,
        decisions: &'a mut Vec<AliasDecision>,
    },
    /// Inputs that may be given away.
    Donations(&'a mut Plan),
    /// Places in the arena.
    Layout(&'a mut Layout),
    /// A plan that is about to be loaded.
    Loaded(&'a mut Plan),
}

#[cfg(feature = "seeded-faults")]
thread_local! {
    /// What changes what stages make, on this thread.
    static CHANGE: std::cell::Cell<Option<fn(Made<'_>)>> = const { std::cell::Cell::new(None) };
}

/// Has a function change what stages make on this thread from now on, or none.
#[cfg(feature = "seeded-faults")]
pub(crate) fn change_with(change: Option<fn(Made<'_>)>) {
    CHANGE.set(change);
}

/// Whether something changes what stages make on this thread, so that it need not be right.
#[inline]
pub fn is_changed() -> bool {
    #[cfg(feature = "seeded-faults")]
    let changed = CHANGE.get().is_some();
    #[cfg(not(feature = "seeded-faults"))]
    let changed = false;
    changed
}

/// Shows what a stage has made.
#[inline]
pub(crate) fn made(made: Made<'_>) {
    #[cfg(feature = "seeded-faults")]
    if let Some(change) = CHANGE.get() {
        change(made);
    }
    #[cfg(not(feature = "seeded-faults"))]
    let _ = made;
}

/// Shows a plan between the compiler and the runtime: what runs is not what was planned if a fault is seeded there.
#[inline]
pub fn before_load(plan: &mut Arc<Plan>) {
    if is_changed() {
        made(Made::Loaded(Arc::make_mut(plan)));
    }
}
