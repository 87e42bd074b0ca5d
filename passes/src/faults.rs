//! Wrong decisions on purpose: what `tlc verify` has to find. Compiled for tests alone, which ask for the feature `seeded-faults`.
//!
//! Each fault is what a bug in one decision would do, at the place where that decision is made; nothing is wrong unless a
//! [`Fault`] is [seeded](seed) on the thread that compiles.

use std::cell::Cell;
use std::marker::PhantomData;

use smallvec::SmallVec;
use tlc_ir::graph::{Graph, GraphError, Monoid, Node, View};
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::visit::walk_mut;
use tlc_ir::kernel::{Bind, Kernel, Memory, Op, Stmt};
use tlc_ir::plan::{Layout, Lines, Plan, Step, Storage};
use tlc_ir::{DType, NodeId, NodeKind, Scalar, ScalarOp};

use crate::directive::Directive;
use crate::made::{Made, change_with};
use crate::partition::{ClusterKind, Clusters, LoopSpace};
use crate::reason::{AliasDecision, AliasReason};
use crate::rewrite::{Rebuilder, rebuild};
use crate::tree::replace_loop;

/// A bug.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Fault {
    /// canonicalize: `x + 1` is `x`.
    AdditionOfOneIsNothing,
    /// canonicalize: `-x` is `x`.
    NegationIsNothing,
    /// canonicalize: two permutations become one in the wrong order.
    PermutationsComposedBackwards,
    /// canonicalize: a slice that reverses its operand changes nothing.
    ReversalIsTrivial,
    /// canonicalize panics on a maximum.
    PanicOnMaximum,
    /// fold: a computed constant is one too large.
    FoldedConstantIsOff,
    /// cse: `a - b` and `b - a` are one value.
    SubtractionCommutes,
    /// dce: the first two outputs change places.
    OutputsSwapped,
    /// sink-layout: a permuted operand gets the labels that it had.
    LabelsNotPermuted,
    /// einsum-path: a contraction returns its axes in the wrong order.
    ContractionTransposed,
    /// split-reduce: the second stage takes the maximum of the first's sums.
    SecondStageIsMaximum,
    /// pack: the copy has its last axes the wrong way round.
    PackedInAnotherOrder,
    /// cluster: values are fused that are read at other indices than they are computed at.
    FusedAtOtherIndices,
    /// cluster: a fused loop is one iteration short.
    FusedExtentIsShort,
    /// cluster: a value that another kernel reads stays in its kernel.
    StoredValueForgotten,
    /// contraction: rows and columns of the left matrix are confused.
    ProductTransposed,
    /// epilogue: a kernel runs behind a product although it needs other lines than those that are complete.
    EpilogueOfOtherLines,
    /// lower: sums begin at one.
    SumBeginsAtOne,
    /// schedule: what a row keeps for its next phase is read from the beginning of the row.
    StagedValueElsewhere,
    /// schedule: a split forgets what the whole pieces leave over.
    SplitDropsTail,
    /// schedule: of several accumulators only the first is combined, again and again.
    AccumulatorLost,
    /// legalize: a coefficient of the exponential is off.
    ExponentialCoefficient,
    /// legalize: a maximum is accumulated as a minimum.
    MaximumIsMinimum,
    /// memory: a result takes the bytes of a value that is still needed.
    AliasOfLiveValue,
    /// memory: a kernel writes in place what it reads elsewhere later.
    AliasNotInPlace,
    /// memory: values that are alive together overlap in the arena.
    ArenaOverlaps,
    /// memory: a launch is grouped with one whose result it reads.
    GroupedWithProducer,
    /// memory: an input may be given away that is read after the output is begun.
    WrongDonation,
    /// Machine code that subtracts the other way round.
    CodeSubtractsBackwards,
    /// Machine code whose parallel loop is one iteration short.
    CodeDropsLastIteration,
    /// Machine code of what runs once per executable, one iteration short.
    InitDropsLastIteration,
    /// Machine code of square roots, reading far from its buffers: it crashes, so that only who runs it in a process of its own
    /// can tell.
    CodeReadsFarAway,
}

impl Fault {
    /// Every fault but those that end the process.
    pub const ALL: [Fault; 31] = [
        Fault::AdditionOfOneIsNothing,
        Fault::NegationIsNothing,
        Fault::PermutationsComposedBackwards,
        Fault::ReversalIsTrivial,
        Fault::PanicOnMaximum,
        Fault::FoldedConstantIsOff,
        Fault::SubtractionCommutes,
        Fault::OutputsSwapped,
        Fault::LabelsNotPermuted,
        Fault::ContractionTransposed,
        Fault::SecondStageIsMaximum,
        Fault::PackedInAnotherOrder,
        Fault::FusedAtOtherIndices,
        Fault::FusedExtentIsShort,
        Fault::StoredValueForgotten,
        Fault::ProductTransposed,
        Fault::EpilogueOfOtherLines,
        Fault::SumBeginsAtOne,
        Fault::StagedValueElsewhere,
        Fault::SplitDropsTail,
        Fault::AccumulatorLost,
        Fault::ExponentialCoefficient,
        Fault::MaximumIsMinimum,
        Fault::AliasOfLiveValue,
        Fault::AliasNotInPlace,
        Fault::ArenaOverlaps,
        Fault::GroupedWithProducer,
        Fault::WrongDonation,
        Fault::CodeSubtractsBackwards,
        Fault::CodeDropsLastIteration,
        Fault::InitDropsLastIteration,
    ];
}

thread_local! {
    static SEEDED: Cell<Option<Fault>> = const { Cell::new(None) };
    /// Whether the kernel that is being legalized has an exponential.
    static EXPONENTIAL: Cell<bool> = const { Cell::new(false) };
}

/// A fault is seeded on this thread as long as it lives.
pub struct Seeded(PhantomData<*const ()>);

/// Seeds a fault on this thread.
#[must_use]
pub fn seed(fault: Fault) -> Seeded {
    plant(fault);
    Seeded(PhantomData)
}

fn plant(fault: Fault) {
    SEEDED.set(Some(fault));
    change_with(Some(change));
}

/// Seeds the fault that the variable `TLC_SEEDED_FAULT` names on this thread, for good: how the command line is tested.
///
/// # Panics
/// If there is no such fault.
pub fn seed_from_environment() {
    if let Ok(name) = std::env::var("TLC_SEEDED_FAULT") {
        let mut all = Fault::ALL.into_iter().chain([Fault::CodeReadsFarAway]);
        let found = all.find(|f| format!("{f:?}") == name);
        plant(found.expect("TLC_SEEDED_FAULT names a fault"));
    }
}

impl Drop for Seeded {
    fn drop(&mut self) {
        SEEDED.set(None);
        change_with(None);
    }
}

fn is(fault: Fault) -> bool {
    SEEDED.get() == Some(fault)
}

/// Changes what a stage has made, if the seeded fault is one of that stage's.
fn change(made: Made<'_>) {
    if SEEDED.get().is_none() {
        return;
    }
    match made {
        Made::Graph { pass, before, after } => {
            let given = std::mem::replace(after, Graph::new(""));
            *after = after_pass(pass, before, given);
        }
        Made::Space { alone, roots, shared } => {
            if shared.is_err()
                && let Some(space) = fused_space(alone, roots)
            {
                *shared = Ok(space);
            }
        }
        Made::Clusters { graph, clusters } => after_cluster(graph, clusters),
        Made::Nest(kernel) => after_lower(kernel),
        Made::Schedule {
            directive,
            variables,
            scratch,
            kernel,
        } => after_directive(directive, variables, scratch, kernel),
        Made::Scheduled(kernel) => EXPONENTIAL.set(before_legalize(kernel)),
        Made::Legal(kernel) => after_legalize(EXPONENTIAL.get(), kernel),
        Made::Lines(lines) => *lines = after_lines(lines.take()),
        Made::Groups { plan, in_place } => after_grouping(plan, in_place),
        Made::Aliases { plan, decisions } => after_aliases(plan, decisions),
        Made::Donations(plan) => after_donations(plan),
        Made::Layout(layout) => after_pack(layout),
        Made::Loaded(plan) => before_load(plan),
    }
}

/// Behind a pass.
fn after_pass(pass: &str, before: &Graph, after: Graph) -> Graph {
    let Some(fault) = SEEDED.get() else { return after };
    let operands = |re: &mut Rebuilder, node: &Node, operands: &[NodeId]| re.add(node.kind.clone(), operands);
    let made = match (pass, fault) {
        ("canonicalize", Fault::AdditionOfOneIsNothing) => rebuild(&after, &mut |re, _, node, o| {
            let one = |id: NodeId| re.splat_value(id).is_some_and(|s| s == s.dtype().one());
            match node.kind {
                NodeKind::Map(ScalarOp::Add) if one(o[1]) => Ok(o[0]),
                _ => operands(re, node, o),
            }
        }),
        ("canonicalize", Fault::NegationIsNothing) => rebuild(&after, &mut |re, _, node, o| match node.kind {
            NodeKind::Map(ScalarOp::Neg) => Ok(o[0]),
            _ => operands(re, node, o),
        }),
        ("canonicalize", Fault::PermutationsComposedBackwards) => {
            rebuild(&after, &mut |re, _, node, o| match &node.kind {
                NodeKind::View(View::Permute(p)) if !is_nested(before, p.len()) => {
                    re.add(NodeKind::View(View::Permute(p.clone())), o)
                }
                NodeKind::View(View::Permute(p)) => {
                    let mut inverse = p.clone();
                    p.iter().enumerate().for_each(|(i, &a)| inverse[a as usize] = i as u8);
                    let shape = &re.graph.ty(o[0]).shape;
                    let same = inverse
                        .iter()
                        .zip(p)
                        .all(|(&a, &b)| shape[a as usize] == shape[b as usize]);
                    let p = if same { inverse } else { p.clone() };
                    re.add(NodeKind::View(View::Permute(p)), o)
                }
                _ => operands(re, node, o),
            })
        }
        ("canonicalize", Fault::ReversalIsTrivial) => rebuild(&after, &mut |re, _, node, o| match &node.kind {
            NodeKind::View(View::Slice { size, step, .. })
                if size[..] == re.graph.ty(o[0]).shape[..] && step.contains(&-1) =>
            {
                Ok(o[0])
            }
            _ => operands(re, node, o),
        }),
        ("canonicalize", Fault::PanicOnMaximum) => {
            let maximum = after.nodes().any(|(_, n)| n.kind == NodeKind::Map(ScalarOp::Max));
            assert!(!maximum, "a maximum is more than this pass can take");
            return after;
        }
        ("fold", Fault::FoldedConstantIsOff) => {
            let known = |value: &Scalar| before.nodes().any(|(_, n)| n.kind == NodeKind::Const(*value));
            rebuild(&after, &mut |re, _, node, o| match &node.kind {
                NodeKind::Const(value) if !known(value) => {
                    let off = ScalarOp::Add.eval(&[*value, value.dtype().one()]);
                    re.add(NodeKind::Const(off), o)
                }
                _ => operands(re, node, o),
            })
        }
        ("cse", Fault::SubtractionCommutes) => rebuild(&after, &mut |re, _, node, o| match node.kind {
            NodeKind::Map(ScalarOp::Sub) => {
                let ordered = [o[0].min(o[1]), o[0].max(o[1])];
                re.add(node.kind.clone(), &ordered)
            }
            _ => operands(re, node, o),
        }),
        ("dce", Fault::OutputsSwapped) => {
            let mut after = after;
            let mut nodes: Vec<NodeId> = after.outputs().iter().map(|o| o.node).collect();
            if nodes.len() > 1 && after.ty(nodes[0]) == after.ty(nodes[1]) {
                nodes.swap(0, 1);
            }
            after.set_output_nodes(&nodes);
            return after;
        }
        ("sink-layout", Fault::LabelsNotPermuted) => {
            let permuted = before
                .nodes()
                .any(|(_, n)| matches!(n.kind, NodeKind::View(View::Permute(_))));
            rebuild(&after, &mut |re, _, node, o| match &node.kind {
                NodeKind::Einsum { inputs, .. } if permuted => {
                    let mut labels = inputs.to_vec();
                    labels[0].reverse();
                    relabelled(re, node, labels, o)
                }
                _ => operands(re, node, o),
            })
        }
        ("einsum-path", Fault::ContractionTransposed) => {
            let long = before
                .nodes()
                .any(|(_, n)| matches!(&n.kind, NodeKind::Einsum { inputs, .. } if inputs.len() > 2));
            rebuild(&after, &mut |re, _, node, o| match &node.kind {
                NodeKind::Einsum { output, .. } if long && output.len() == 2 => {
                    let shape = &node.ty.shape;
                    let NodeKind::Einsum { output, .. } = &node.kind else {
                        return operands(re, node, o);
                    };
                    let mut kind = node.kind.clone();
                    if let (NodeKind::Einsum { output: turned, .. }, true) = (&mut kind, shape[0] == shape[1]) {
                        *turned = output.iter().rev().copied().collect();
                    }
                    re.add(kind, o)
                }
                _ => operands(re, node, o),
            })
        }
        ("split-reduce", Fault::SecondStageIsMaximum) => {
            let sums = |g: &Graph| g.nodes().filter(|(_, n)| is_sum(&n.kind)).count();
            let last = after.nodes().filter(|(_, n)| is_sum(&n.kind)).last().map(|(id, _)| id);
            let split = sums(&after) > sums(before);
            rebuild(&after, &mut |re, id, node, o| match &node.kind {
                NodeKind::Reduce { axes, .. } if split && Some(id) == last => {
                    let monoid = Monoid::Max;
                    re.add(
                        NodeKind::Reduce {
                            monoid,
                            axes: axes.clone(),
                        },
                        o,
                    )
                }
                _ => operands(re, node, o),
            })
        }
        ("pack", Fault::PackedInAnotherOrder) => {
            let copies = |g: &Graph| g.nodes().filter(|(_, n)| n.kind == NodeKind::Copy).count();
            let packed = copies(&after) > copies(before);
            rebuild(&after, &mut |re, _, node, o| {
                let ty = node.ty.clone();
                let (rank, copy) = (ty.rank(), node.kind == NodeKind::Copy);
                if !packed || !copy || rank < 2 || ty.shape[rank - 1] != ty.shape[rank - 2] {
                    return operands(re, node, o);
                }
                let mut p: SmallVec<[u8; 4]> = (0..rank as u8).collect();
                p.swap(rank - 1, rank - 2);
                let turned = re.add(NodeKind::View(View::Permute(p)), o)?;
                re.add(NodeKind::Copy, &[turned])
            })
        }
        _ => return after,
    };
    made.unwrap_or(after)
}

/// Whether a graph has a permutation of so many axes below another.
fn is_nested(graph: &Graph, rank: usize) -> bool {
    let permutes = |kind: &NodeKind| matches!(kind, NodeKind::View(View::Permute(p)) if p.len() == rank);
    graph
        .nodes()
        .any(|(_, n)| permutes(&n.kind) && permutes(&graph.node(n.operands[0]).kind))
}

fn is_sum(kind: &NodeKind) -> bool {
    matches!(
        kind,
        NodeKind::Reduce {
            monoid: Monoid::Add,
            ..
        }
    )
}

fn relabelled(
    re: &mut Rebuilder,
    node: &Node,
    labels: Vec<tlc_ir::graph::Labels>,
    operands: &[NodeId],
) -> Result<NodeId, GraphError> {
    let NodeKind::Einsum { output, .. } = &node.kind else {
        return re.add(node.kind.clone(), operands);
    };
    let made = crate::rewrite::sink_layout::add_canonical(re, &node.kind, labels, output.clone(), operands);
    match made {
        Ok(id) if re.graph.ty(id) == &node.ty => Ok(id),
        _ => re.add(node.kind.clone(), operands),
    }
}

/// In the question whether two groups of roots can share a loop: a space for both though there is none.
fn fused_space(spaces: [Option<&LoopSpace>; 2], roots: [&[NodeId]; 2]) -> Option<LoopSpace> {
    let [Some(a), Some(b)] = spaces else { return None };
    if !is(Fault::FusedAtOtherIndices) || a.parallel != b.parallel {
        return None;
    }
    let of = |space: &LoopSpace, roots: &[NodeId]| -> Option<Vec<_>> {
        let role = |k: usize| space.roles.get(k).or_else(|| space.roles.first()).cloned();
        (0..roots.len()).map(|k| Some((roots[k], role(k)?))).collect()
    };
    let mut roles = of(a, roots[0])?;
    roles.extend(of(b, roots[1])?);
    roles.sort_by_key(|(root, _)| *root);
    Some(LoopSpace {
        parallel: a.parallel.clone(),
        roles: roles.into_iter().map(|(_, r)| r).collect(),
    })
}

/// Behind clustering.
fn after_cluster(graph: &Graph, clusters: &mut Clusters) {
    for c in &mut clusters.clusters {
        let fused = c.roots.len() > 1;
        if let (true, true, ClusterKind::Loops(space)) = (is(Fault::FusedExtentIsShort), fused, &mut c.kind)
            && let Some(last) = space.parallel.last_mut()
            && last.as_const().is_some_and(|n| n > 1)
        {
            *last = last.clone() - IndexExpr::ONE;
        }
        if is(Fault::StoredValueForgotten) && fused && c.stored.len() > 1 {
            let outputs = graph.outputs();
            if let Some(at) = c.stored.iter().position(|s| !outputs.iter().any(|o| o.node == *s)) {
                c.stored.remove(at);
            }
        }
        if is(Fault::ProductTransposed)
            && let ClusterKind::Gemm(product) = &mut c.kind
            && product.m == product.k
        {
            std::mem::swap(&mut product.lhs.row, &mut product.lhs.column);
        }
    }
}

/// Behind lowering.
fn after_lower(kernel: &mut Kernel) {
    let sum = |s: &Stmt| {
        matches!(
            s,
            Stmt::Accumulate {
                monoid: Monoid::Add,
                ..
            }
        )
    };
    let sums = kernel.statements().any(sum);
    walk_mut(&mut kernel.body, &mut |s| match s {
        Stmt::Let {
            op: Op::Const(value), ..
        } if sums && is(Fault::SumBeginsAtOne) && *value == value.dtype().zero() => *value = value.dtype().one(),
        _ => {}
    });
}

/// Behind a directive, which made these loops; the kernel had so many scratch buffers before.
fn after_directive(directive: &Directive, made: &[VarId], scratch: usize, kernel: &mut Kernel) {
    match directive {
        Directive::Split { factor, .. } if is(Fault::SplitDropsTail) => {
            let Some(&tail) = made.last() else { return };
            if kernel.extents[tail.0 as usize].as_const() != Some(*factor) {
                replace_loop(&mut kernel.body, tail, &mut |_, _| Vec::new());
            }
        }
        Directive::RFactor { .. } if is(Fault::AccumulatorLost) => read_first(kernel, scratch),
        Directive::Keep { .. } if is(Fault::StagedValueElsewhere) => read_first(kernel, scratch),
        _ => {}
    }
}

/// Loads of scratch from that number on are of its first element.
fn read_first(kernel: &mut Kernel, scratch: usize) {
    walk_mut(&mut kernel.body, &mut |s| {
        if let Stmt::Let {
            op:
                Op::Load {
                    memory: Memory::Scratch(m),
                    index,
                    ..
                },
            ..
        } = s
            && *m as usize >= scratch
        {
            *index = IndexExpr::ZERO;
        }
    });
}

/// Before legalization; returns what [`after_legalize`] wants to know.
fn before_legalize(kernel: &mut Kernel) -> bool {
    let mut exponential = false;
    walk_mut(&mut kernel.body, &mut |s| match s {
        Stmt::Let {
            op: Op::Map(ScalarOp::Exp, _),
            ..
        } => exponential = true,
        Stmt::Accumulate { monoid, .. } if is(Fault::MaximumIsMinimum) && *monoid == Monoid::Max => {
            *monoid = Monoid::Min;
        }
        _ => {}
    });
    exponential
}

/// Behind legalization.
fn after_legalize(exponential: bool, kernel: &mut Kernel) {
    if !exponential || !is(Fault::ExponentialCoefficient) {
        return;
    }
    walk_mut(&mut kernel.body, &mut |s| {
        if let Stmt::Let {
            op: Op::Const(value), ..
        } = s
            && value.dtype() == DType::F32
            && (0.1..0.2).contains(&value.as_f64())
        {
            *value = Scalar::from_f64(DType::F32, value.as_f64() * 1.05);
        }
    });
}

/// Behind the search for the lines along which a kernel goes.
fn after_lines(lines: Option<Lines>) -> Option<Lines> {
    let wrong = || Lines {
        iterations: IndexExpr::ONE,
        elements: IndexExpr::ONE,
    };
    lines.or_else(|| is(Fault::EpilogueOfOtherLines).then(wrong))
}

/// Behind the grouping of launches.
fn after_grouping(plan: &mut Plan, in_place: &mut Vec<Vec<(tlc_ir::plan::SlotId, tlc_ir::plan::SlotId)>>) {
    if !is(Fault::GroupedWithProducer) {
        return;
    }
    let pair = (1..plan.steps.len()).find(|&k| matches!(&plan.steps[k - 1..=k], [Step::Launch(_), Step::Launch(_)]));
    if let Some(k) = pair
        && let (Step::Launch(second), Step::Launch(first)) = (plan.steps.remove(k), plan.steps[k - 1].clone())
    {
        plan.steps[k - 1] = Step::Group(vec![first, second]);
        in_place.remove(k);
        in_place[k - 1].clear();
    }
}

/// Behind the choice of aliases.
fn after_aliases(plan: &mut Plan, decisions: &mut Vec<AliasDecision>) {
    let arena = |plan: &Plan, s: tlc_ir::plan::SlotId| plan.slots[s.0 as usize].storage == Storage::Arena;
    if is(Fault::AliasOfLiveValue) {
        for d in decisions.iter_mut() {
            if d.reason == AliasReason::StillLive && arena(plan, d.slot) && arena(plan, d.of) && d.slot != d.of {
                plan.slots[d.slot.0 as usize].storage = Storage::Alias(d.of);
                d.reason = AliasReason::InPlace;
                return;
            }
        }
    }
    if is(Fault::AliasNotInPlace) {
        for step in &plan.steps {
            let (mut read, mut written) = (Vec::new(), Vec::new());
            step.visit_slots(
                &mut |s, writes| if writes { written.push(s) } else { read.push(s) },
                &plan.kernels,
            );
            for &slot in &written {
                for &of in &read {
                    let same = plan.slots[slot.0 as usize].len == plan.slots[of.0 as usize].len;
                    if same && slot != of && arena(plan, slot) && arena(plan, of) {
                        plan.slots[slot.0 as usize].storage = Storage::Alias(of);
                        let reason = AliasReason::InPlace;
                        decisions.push(AliasDecision { slot, of, reason });
                        return;
                    }
                }
            }
        }
    }
}

/// Behind the choice of what may be given away.
fn after_donations(plan: &mut Plan) {
    if !is(Fault::WrongDonation) {
        return;
    }
    for (i, input) in plan.inputs.iter().enumerate() {
        for (o, output) in plan.outputs.iter().enumerate() {
            if input.ty == output.ty && !plan.donations.contains(&(i as u32, o as u32)) {
                plan.donations.push((i as u32, o as u32));
                return;
            }
        }
    }
}

/// Behind the placement of the arena.
fn after_pack(layout: &mut Layout) {
    if is(Fault::ArenaOverlaps) {
        layout.offsets.iter_mut().flatten().for_each(|o| *o = 0);
    }
}

/// Between the compiler and the runtime: the plan that runs is not the one that was planned.
fn before_load(plan: &mut Plan) {
    let once: Vec<u32> = plan
        .init
        .iter()
        .filter_map(|s| match s {
            Step::Launch(l) => Some(l.kernel.0),
            _ => None,
        })
        .collect();
    for (number, kernel) in plan.kernels.iter_mut().enumerate() {
        if is(Fault::CodeSubtractsBackwards) {
            walk_mut(&mut kernel.body, &mut |s| {
                if let Stmt::Let {
                    op: Op::Map(ScalarOp::Sub, args),
                    ..
                } = s
                {
                    args.swap(0, 1);
                }
            });
        }
        let root = |op: &Op| matches!(op, Op::Map(ScalarOp::Sqrt, _));
        let has_root = kernel
            .statements()
            .any(|s| matches!(s, Stmt::Let { op, .. } if root(op)));
        if has_root && is(Fault::CodeReadsFarAway) {
            walk_mut(&mut kernel.body, &mut |s| {
                if let Stmt::Let {
                    op:
                        Op::Load {
                            memory: Memory::Param(_),
                            index,
                            ..
                        },
                    ..
                } = s
                {
                    *index = index.clone() + IndexExpr::Const(1 << 41);
                }
            });
        }
        let short =
            is(Fault::CodeDropsLastIteration) || (is(Fault::InitDropsLastIteration) && once.contains(&(number as u32)));
        if short
            && let Some(Stmt::Loop {
                var,
                bind: Bind::Parallel,
                ..
            }) = kernel.body.first()
        {
            let extent = &mut kernel.extents[var.0 as usize];
            if extent.as_const().is_some_and(|n| n > 1) {
                *extent = extent.clone() - IndexExpr::ONE;
            }
        }
    }
}
