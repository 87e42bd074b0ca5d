//! Products with epilogues: a kernel that goes along a product's result line by line becomes part of the product's step, so
//! that each line is worked on while it is still in cache.
//!
//! A kernel qualifies by what it touches, not by what it computes ([`tlc_ir::plan::verify::lines`]): biases, activations,
//! residuals, padding, and norms or softmax whose rows are the result's. A product of what the kernel leaves may follow in the same step
//! ([`crate::chain`]).
//!
//! On a GPU, whose library computes some of them itself, a kernel qualifies by what it computes ([`crate::library_epilogue`]).

use rustc_hash::FxHashMap;
use tlc_ir::kernel::Access;
use tlc_ir::plan::verify::lines;
use tlc_ir::plan::{DeviceId, Epilogue, Gemm, KernelId, Launch, LibraryEpilogue, Lines, Plan, SlotId, Step};
use tlc_ir::target::Cpu;
use tlc_ir::{Graph, NodeId};

use crate::chain::{self, ChainReason};
use crate::groups::independent;
use crate::launch::LaunchReport;
use crate::library_epilogue::behind;
use crate::made::{Made, made};
use crate::reason::FusionReason;

/// Steps between a product and the kernel behind it, at most.
const MAX_DISTANCE: usize = 64;

/// What was decided about a kernel that reads a product's result.
pub(crate) struct Decision {
    /// The product's result.
    pub(crate) product: SlotId,
    /// The cluster of the kernel.
    pub(crate) cluster: usize,
    /// What was decided, and why.
    pub(crate) reason: EpilogueReason,
}

/// Why a kernel runs behind a product in one step, or does not.
pub(crate) enum EpilogueReason {
    /// It does: so many elements are a line of it.
    Lines(Lines),
    /// The library computes it with the product.
    Library(LibraryEpilogue),
    /// It does not go along the result line by line.
    OtherLines,
    /// It needs something that is computed after the product, or the product's result is needed before it.
    Order,
    /// Another kernel runs there already.
    Taken,
}

impl EpilogueReason {
    /// As a fusion of the product with the kernel.
    pub(crate) fn fusion_reason(self, graph: &Graph) -> FusionReason {
        match self {
            Self::Lines(lines) => FusionReason::Epilogue {
                elements: graph.dim_text(&lines.elements),
            },
            Self::Library(what) => FusionReason::LibraryEpilogue(what),
            Self::OtherLines => FusionReason::OtherLines,
            Self::Order => FusionReason::ProductOrder,
            Self::Taken => FusionReason::ProductTaken,
        }
    }
}

/// What was decided about a product that takes what a kernel behind a product leaves.
pub(crate) struct Link {
    /// What the kernel leaves.
    pub(crate) rows: SlotId,
    /// The second product's result.
    pub(crate) product: SlotId,
    /// What was decided, and why.
    pub(crate) reason: ChainReason,
}

/// What was decided about kernels behind products, and about products behind those.
#[derive(Default)]
pub(crate) struct Decisions {
    /// Kernels.
    pub(crate) kernels: Vec<Decision>,
    /// Products.
    pub(crate) products: Vec<Link>,
}

struct Entry {
    step: Step,
    in_place: Vec<(SlotId, SlotId)>,
    report: Option<LaunchReport>,
}

/// Puts kernels behind the products whose results they read. `in_place` has a list for each step, and `launches` a report for
/// each launch of the plan, in order; both are kept so.
pub(crate) fn attach(
    plan: &mut Plan,
    in_place: &mut Vec<Vec<(SlotId, SlotId)>>,
    launches: &mut Vec<LaunchReport>,
    (graph, values): (&Graph, &[Option<NodeId>]),
    cpu: Option<&Cpu>,
) -> Decisions {
    let touches = chain::touches(plan);
    let followed = chain::read_by_kernels(plan);
    let is_launch = |s: &&Step| matches!(s, Step::Launch(_));
    let once = plan.init.iter().filter(is_launch).count();
    let mut reports = launches.split_off(once).into_iter();
    let mut entries: Vec<Option<Entry>> = std::mem::take(&mut plan.steps)
        .into_iter()
        .zip(std::mem::take(in_place))
        .map(|(step, in_place)| {
            let report = is_launch(&&step).then(|| reports.next()).flatten();
            Some(Entry { step, in_place, report })
        })
        .collect();
    // By slot: the product that computes it.
    let mut product_of: Vec<Option<usize>> = vec![None; plan.slots.len()];
    // By slot: the product whose kernel writes it.
    let mut left_by: Vec<Option<usize>> = vec![None; plan.slots.len()];
    let mut known = KnownLines::default();
    let mut decisions = Decisions::default();
    for at in 0..entries.len() {
        let Some(entry) = &entries[at] else { continue };
        let launch = match &entry.step {
            Step::Gemm(g) => {
                if let (Some(before), Some(cpu)) = (left_by[g.lhs.slot.0 as usize], cpu) {
                    let (rows, product) = (g.lhs.slot, g.dst.slot);
                    let followed = followed[product.0 as usize];
                    let reason = link(plan, &mut entries, (before, at), cpu, (&touches, followed));
                    let linked = matches!(reason, ChainReason::Rows { .. });
                    decisions.products.push(Link { rows, product, reason });
                    if linked {
                        continue;
                    }
                }
                let Some(Entry {
                    step: Step::Gemm(g), ..
                }) = &entries[at]
                else {
                    continue;
                };
                product_of[g.dst.slot.0 as usize] = Some(at);
                continue;
            }
            Step::Launch(l) => l,
            _ => continue,
        };
        let products = launch.args.iter().filter_map(|s| product_of[s.0 as usize]);
        let (Some(product), Some(report)) = (products.max(), &entry.report) else {
            continue;
        };
        let cluster = report.cluster;
        let Some(Entry {
            step: Step::Gemm(g), ..
        }) = &entries[product]
        else {
            continue;
        };
        let dst = g.dst.slot;
        // The host's library of products calls kernels; that of a GPU has what is behind a product among its own.
        if plan.slots[dst.0 as usize].device != DeviceId::HOST {
            let alone = touches[dst.0 as usize] == 1 + launch.args.iter().filter(|s| **s == dst).count() as u32;
            let found = library_epilogue(plan, g, launch, (graph, values)).filter(|_| alone && g.epilogue.is_none());
            let Some(library) = found else { continue };
            let whole = plan.slots[dst.0 as usize].len.clone();
            let lines = Lines {
                iterations: whole.clone(),
                elements: whole,
            };
            let reason = match meet(plan, &entries, product, at) {
                Some(place) => {
                    join(&mut entries, product, at, place, (lines, Some(library)));
                    EpilogueReason::Library(library)
                }
                None => EpilogueReason::Order,
            };
            decisions.kernels.push(Decision {
                product: dst,
                cluster,
                reason,
            });
            continue;
        }
        let writes = launch.args.iter().zip(&plan.kernels[launch.kernel.0 as usize].params);
        let written: Vec<SlotId> = writes.filter(|w| w.1.access != Access::Read).map(|w| *w.0).collect();
        let reason = match (&g.epilogue, lines_along(plan, launch, dst, &mut known)) {
            (Some(_), _) => EpilogueReason::Taken,
            (None, None) => EpilogueReason::OtherLines,
            (None, Some(lines)) => match meet(plan, &entries, product, at) {
                Some(place) => {
                    join(&mut entries, product, at, place, (lines.clone(), None));
                    product_of[dst.0 as usize] = Some(place);
                    written.iter().for_each(|s| left_by[s.0 as usize] = Some(place));
                    EpilogueReason::Lines(lines)
                }
                None => EpilogueReason::Order,
            },
        };
        decisions.kernels.push(Decision {
            product: dst,
            cluster,
            reason,
        });
    }
    for entry in entries.into_iter().flatten() {
        plan.steps.push(entry.step);
        in_place.push(entry.in_place);
        launches.extend(entry.report);
    }
    decisions
}

/// Makes the product of one entry part of the step of the product of another, whose kernel leaves its left operand, if it should be.
fn link(
    plan: &mut Plan,
    entries: &mut [Option<Entry>],
    (before, at): (usize, usize),
    cpu: &Cpu,
    uses: (&[u32], bool),
) -> ChainReason {
    let (Some(first), Some(second)) = (&entries[before], &entries[at]) else {
        return ChainReason::Order;
    };
    let (Step::Gemm(one), Step::Gemm(two)) = (&first.step, &second.step) else {
        return ChainReason::Order;
    };
    let Some(e) = one.epilogue.as_ref().filter(|_| chain::open(plan, &first.step)) else {
        return ChainReason::Order;
    };
    let reason = match chain::chains(plan, cpu, (one, e, &first.in_place), two, uses) {
        Ok(reason) => reason,
        Err(reason) => return reason,
    };
    let Some(place) = meet(plan, entries, before, at) else {
        return ChainReason::Order;
    };
    let (Some(mut first), Some(second)) = (entries[before].take(), entries[at].take()) else {
        return ChainReason::Order;
    };
    if let (Step::Gemm(one), Step::Gemm(two)) = (&mut first.step, second.step)
        && let Some(e) = &mut one.epilogue
    {
        let (rows, passed) = (one.dst.slot, two.lhs.slot);
        chain::pass_on(plan, rows, passed);
        // Decided already, and what has no memory of its own takes nobody's.
        first
            .in_place
            .retain(|&(read, written)| read != rows && written != passed);
        e.product = Some(two);
    }
    entries[place] = Some(first);
    reason
}

/// What a kernel behind a product on a GPU is to the library there.
fn library_epilogue(
    plan: &Plan,
    g: &Gemm,
    launch: &Launch,
    (graph, values): (&Graph, &[Option<NodeId>]),
) -> Option<LibraryEpilogue> {
    let slot = |s: SlotId| &plan.slots[s.0 as usize];
    let params = &plan.kernels[launch.kernel.0 as usize].params;
    let mut written = (0u32..).zip(params).filter(|p| p.1.access != Access::Read).map(|p| p.0);
    let (Some(result), None) = (written.next(), written.next()) else {
        return None;
    };
    let result_slot = slot(launch.args[result as usize]);
    let same = result_slot.len == slot(g.dst.slot).len && result_slot.dtype == g.dtype;
    let value = values[launch.args[result as usize].0 as usize].filter(|_| same)?;
    let found = behind(graph, value, values[g.dst.slot.0 as usize]?)?;
    let bias = match &found.bias {
        Some(bias) => {
            let has = |s: &SlotId| values[s.0 as usize].is_some_and(|v| bias.values.contains(&v));
            let number = launch.args.iter().position(|s| has(s) && slot(*s).len == bias.len);
            Some(number.filter(|_| bias.fits_step(g))? as u32)
        }
        None => None,
    };
    Some(LibraryEpilogue {
        bias,
        rectified: found.rectified,
        result,
    })
}

/// What [`lines`] says of a kernel and some of its parameters: equal layers launch the same kernels.
type KnownLines = FxHashMap<(KernelId, Vec<u32>), Option<Lines>>;

/// How a launch goes along a slot that it only reads, in the plan's symbols.
fn lines_along(plan: &Plan, launch: &Launch, slot: SlotId, known: &mut KnownLines) -> Option<Lines> {
    let kernel = &plan.kernels[launch.kernel.0 as usize];
    let mut reads = Vec::new();
    for (arg, (param, number)) in launch.args.iter().zip(kernel.params.iter().zip(0..)) {
        if *arg == slot {
            if param.access != Access::Read {
                return None;
            }
            reads.push(number);
        }
    }
    let known = known.entry((launch.kernel, reads));
    let mut found = known.or_insert_with_key(|(_, reads)| lines(kernel, reads)).clone();
    made(Made::Lines(&mut found));
    let found = found?;
    Some(Lines {
        iterations: launch.outer(&found.iterations),
        elements: launch.outer(&found.elements),
    })
}

/// Where in the order of steps a product and a launch behind it can be one step.
fn meet(plan: &Plan, entries: &[Option<Entry>], product: usize, launch: usize) -> Option<usize> {
    if launch - product > MAX_DISTANCE {
        return None;
    }
    let between = || entries[product + 1..launch].iter().flatten().map(|e| &e.step);
    // What these decide may be a size of the launch.
    if between().any(|s| matches!(s, Step::Call(_) | Step::Loop(_))) {
        return None;
    }
    let free = |of: usize| {
        let Some(entry) = &entries[of] else { return false };
        between().all(|s| independent(s, &entry.step, plan))
    };
    match (free(launch), free(product)) {
        (true, _) => Some(product),
        (_, true) => Some(launch),
        _ => None,
    }
}

/// Makes the launch part of the product's step, at that place in the order.
fn join(
    entries: &mut [Option<Entry>],
    product: usize,
    launch: usize,
    place: usize,
    (lines, library): (Lines, Option<LibraryEpilogue>),
) {
    let (Some(mut first), Some(second)) = (entries[product].take(), entries[launch].take()) else {
        return;
    };
    if let (Step::Gemm(g), Step::Launch(launch)) = (&mut first.step, second.step) {
        let dst = g.dst.slot;
        g.epilogue = Some(Box::new(Epilogue {
            launch,
            lines,
            library,
            product: None,
        }));
        first.report = second.report;
        first.in_place = second.in_place;
        // Where the result's bytes are free to take, the result needs none of its own.
        first.in_place.sort_by_key(|(read, _)| *read != dst);
    }
    entries[place] = Some(first);
}
