//! Which decision of the compiler is wrong.
//!
//! The compiler is a chain of languages, each with an interpreter, and every decision on the way is data. So the first wrong
//! one is found by asking, from the top: does the graph still mean the same behind each pass (and if not, at which node); is
//! the plan one that its verifier accepts; does each cluster's nest compute what it should, and with how many of the fusions;
//! is it still right behind each directive of its schedule; and behind legalization; is the plan right without aliases, with
//! each of them, and under its placement in the arena. What is left is machine code.
//!
//! The search runs interpreters over every value of the graph, so that it is for small cases: [`super::reduce()`] comes first.

use std::fmt;
use std::ops::ControlFlow;

use tlc_ir::interp::{self, interpret_with_bounds};
use tlc_ir::plan::interp::interpret_bound;
use tlc_ir::plan::verify::{PlanPlace, PlanViolation, verify as verify_plan, verify_layout};
use tlc_ir::plan::{Layout, Plan, SlotId, Step, Storage};
use tlc_ir::text::{PrintOptions, print_graph};
use tlc_ir::{Graph, NodeId};
use tlc_passes::cluster::{Clusters, cluster_at_most};
use tlc_passes::memory::pack;
use tlc_passes::pipeline::{Ran, rewrite};
use tlc_passes::planner::{Planned, cluster_label, plan};
use tlc_passes::reason::{FusionDecision, FusionReason};
use tlc_passes::{Compiled, compile};

use super::kernels::{Meaning, WrongKernel, wrong_kernel, wrong_nest};
use super::passes::{Wrong, first_wrong, first_wrong_node, pass_options};
use super::{Case, Finding, guarded, verify};
use crate::compile::CompileOptions;
use crate::explain::{node_text, operation_text};

/// A part of the compiler.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stage {
    /// A graph pass, by name.
    Pass(&'static str),
    /// Which values share a kernel.
    Fusion,
    /// From a cluster to a loop nest.
    Lowering,
    /// From a loop nest to a faster one.
    Schedule,
    /// From any statement to those of the target.
    Legalization,
    /// Which contractions are products for the library.
    Product,
    /// Which kernels run behind a product, in its step.
    Epilogue,
    /// Which launches run side by side.
    Grouping,
    /// Which values share bytes.
    Alias,
    /// Where values lie in the arena.
    Placement,
    /// Which inputs may be given away.
    Donation,
    /// The rest of the plan.
    Plan,
    /// Code generation, and running it.
    MachineCode,
    /// How work is shared by threads.
    Threads,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stage::Pass(name) => return write!(f, "pass {name}"),
            Stage::Fusion => "fusion",
            Stage::Lowering => "lowering",
            Stage::Schedule => "schedule",
            Stage::Legalization => "legalization",
            Stage::Product => "matrix product",
            Stage::Epilogue => "product epilogue",
            Stage::Grouping => "grouping of launches",
            Stage::Alias => "alias",
            Stage::Placement => "placement in the arena",
            Stage::Donation => "donation",
            Stage::Plan => "plan",
            Stage::MachineCode => "machine code",
            Stage::Threads => "threads",
        })
    }
}

/// The first wrong decision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Guilty {
    /// Who made it.
    pub stage: Stage,
    /// What was decided.
    pub decision: String,
    /// Why, as the compiler says itself.
    pub reason: String,
    /// What is wrong behind it.
    pub effect: String,
}

impl Guilty {
    fn new(stage: Stage, decision: impl Into<String>, reason: impl Into<String>, effect: impl Into<String>) -> Guilty {
        Guilty {
            stage,
            decision: decision.into(),
            reason: reason.into(),
            effect: effect.into(),
        }
    }
}

impl fmt::Display for Guilty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.stage, self.decision)?;
        if !self.reason.is_empty() {
            write!(f, " (reason: {})", self.reason)?;
        }
        Ok(())
    }
}

/// Finds the first wrong decision in the compilation of a case. `None` if nothing is wrong, or the case cannot be interpreted.
pub fn find(case: &Case, options: &CompileOptions) -> Option<Guilty> {
    decision(case, options, &|search| search.machine())
}

/// As [`find`], for a case that crashes `at` a place that [`super::verify_telling`] reported. Nothing that was generated runs: if every
/// decision is right for the interpreters, it is machine code.
pub fn find_crash(case: &Case, options: &CompileOptions, at: &str, effect: &str) -> Option<Guilty> {
    decision(case, options, &|_| {
        Some(Guilty::new(Stage::MachineCode, at, "", effect))
    })
}

/// The first wrong decision above machine code, or what is said where there is none.
fn decision(case: &Case, options: &CompileOptions, below: &dyn Fn(&Search<'_>) -> Option<Guilty>) -> Option<Guilty> {
    if let Some(wrong) = first_wrong(case, options)
        && !super::passes::only_regrouped(case, options).is_ok_and(|only| only)
    {
        return Some(in_pass(&wrong, case, options));
    }
    let passes = pass_options(options).ok()?;
    let compiled = match guarded(|| compile(&case.graph, &passes).map_err(|e| Finding::Refused(e.to_string()))) {
        Ok(compiled) => compiled,
        Err(finding) => return Some(in_back_end(finding, case, options)),
    };
    let search = Search {
        case,
        options,
        meaning: Meaning::of(&compiled.graph, case, options)?,
        compiled,
    };
    search
        .kernels()
        .or_else(|| search.plan_rules())
        .or_else(|| search.plan_meaning())
        .or_else(|| below(&search))
}

/// What a pass rewrote.
fn in_pass(wrong: &Wrong, case: &Case, options: &CompileOptions) -> Guilty {
    let name = wrong.pass.name();
    let effect = wrong.finding.to_string();
    let path = wrong.paths.first().map(|p| p.path.to_string()).unwrap_or_default();
    let reason = match path.is_empty() {
        true => String::new(),
        false => format!("contraction order: {}", one_line(&path)),
    };
    let Some((node, after)) = first_wrong_node(wrong, case, options) else {
        let decision = match &wrong.after {
            None => "it fails".to_string(),
            Some(_) => "outputs changed their meaning".to_string(),
        };
        return Guilty::new(Stage::Pass(name), decision, reason, effect);
    };
    let operation = |graph: &Graph, node: NodeId| {
        let n = graph.node(node);
        let origin = n.origin.clause();
        let operands: Vec<String> = n.operands.iter().map(|&o| graph.value_name(o)).collect();
        let value = graph.value_name(node);
        format!("{value} = {} {}{origin}", n.kind.name(), operands.join(", "))
    };
    let decision = match after.as_ref().and_then(|g| Some((g, g.outputs().first()?.node))) {
        Some((graph, result)) => {
            let operands: Vec<String> = graph.node(result).operands.iter().map(|&o| short(graph, o)).collect();
            let of = if operands.is_empty() { "" } else { " of " };
            let result = format!("{}{of}{}", short(graph, result), operands.join(" and "));
            format!("{} became {result}", operation(&wrong.before, node))
        }
        None => format!("{}: it fails on that", operation(&wrong.before, node)),
    };
    Guilty::new(Stage::Pass(name), decision, reason, effect)
}

/// A text of several lines, on one.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.collect::<Vec<_>>().join("; ")
}

/// A node for messages, in terms of inputs where it is one.
fn short(graph: &Graph, node: NodeId) -> String {
    match &graph.node(node).kind {
        tlc_ir::NodeKind::Input { name, .. } => format!("%{name}"),
        tlc_ir::NodeKind::Const(value) => format!("const {value}"),
        kind => format!("{} {}", graph.value_name(node), kind.name()),
    }
}

/// The text of a graph for reports.
pub fn graph_text(graph: &Graph) -> String {
    let options = PrintOptions {
        inline_elements: usize::MAX,
        ..PrintOptions::default()
    };
    print_graph(graph, &options).text
}

/// Clustering, lowering, scheduling or planning does not get through.
fn in_back_end(finding: Finding, case: &Case, options: &CompileOptions) -> Guilty {
    let effect = finding.to_string();
    let attempt = || -> Option<Guilty> {
        let passes = pass_options(options).ok()?;
        let mut pass_by = |_: Ran<'_>| ControlFlow::Continue(());
        let rewritten = rewrite(&case.graph, &passes, &mut Vec::new(), &mut pass_by).ok()?;
        let graph = tlc_passes::rewrite::own_outputs::run(&rewritten).ok()?;
        let placement = passes.placement(&graph);
        let fails = |merges: usize| {
            guarded(|| {
                let mut clusters = cluster_at_most(&graph, &placement, merges);
                Ok(plan(&graph, &mut clusters, &placement, &[], &[], &|_, _, _| {}))
            })
            .is_err()
        };
        if fails(0) {
            return Some(Guilty::new(Stage::Lowering, "it fails", "", effect.clone()));
        }
        let clusters = guarded(|| Ok(cluster_at_most(&graph, &placement, usize::MAX))).ok()?;
        let decision = first_wrong_merge(&clusters, &fails)?;
        Some(fused(&graph, &decision, effect.clone()))
    };
    attempt().unwrap_or_else(|| Guilty::new(Stage::Plan, "it fails", "", effect))
}

/// The fusion with which something begins to fail, of those that `clusters` has.
fn first_wrong_merge(clusters: &Clusters, fails: &dyn Fn(usize) -> bool) -> Option<FusionDecision> {
    let made = |d: &&FusionDecision| d.stage.merges_kernels() && d.reason.accepted();
    let merges: Vec<&FusionDecision> = clusters.ledger.entries().iter().filter(made).collect();
    // The least number of fusions that fails: with `low` it does not, with `high` it does.
    let (mut low, mut high) = (0, merges.len());
    if merges.is_empty() || fails(0) || !fails(high) {
        return None;
    }
    while low + 1 < high {
        let middle = low.midpoint(high);
        match fails(middle) {
            true => high = middle,
            false => low = middle,
        }
    }
    Some(merges[high - 1].clone())
}

fn fused(graph: &Graph, decision: &FusionDecision, effect: String) -> Guilty {
    let (producer, consumer) = (
        operation_text(graph, decision.producer),
        operation_text(graph, decision.consumer),
    );
    let text = format!("{producer} and {consumer} share a kernel");
    Guilty::new(Stage::Fusion, text, decision.reason.to_string(), effect)
}

/// What the search knows of a case that is right behind the passes.
struct Search<'c> {
    case: &'c Case,
    options: &'c CompileOptions,
    compiled: Compiled,
    meaning: Meaning,
}

impl Search<'_> {
    fn planned(&self) -> &Planned {
        &self.compiled.planned
    }

    fn slot_text(&self, slot: SlotId) -> String {
        match self.planned().values[slot.0 as usize] {
            Some(node) => node_text(&self.compiled.graph, node),
            None => self.planned().plan.slots[slot.0 as usize].name.clone(),
        }
    }

    fn cluster_text(&self, number: usize) -> String {
        let cluster = &self.compiled.clusters.clusters[number];
        let roots: Vec<String> = cluster
            .roots
            .iter()
            .map(|&r| operation_text(&self.compiled.graph, r))
            .collect();
        format!(
            "kernel of cluster {number} ({}): {}",
            cluster_label(&self.compiled.graph, cluster),
            roots.join(", ")
        )
    }

    /// The fusion that makes a check of the clusters fail.
    fn guilty_merge(&self, fails: &dyn Fn(&Clusters) -> bool) -> Option<FusionDecision> {
        let options = pass_options(self.options).ok()?;
        let placement = options.placement(&self.compiled.graph);
        first_wrong_merge(&self.compiled.clusters, &|merges| {
            fails(&cluster_at_most(&self.compiled.graph, &placement, merges))
        })
    }

    /// Lowering, fusion, schedules and legalization.
    fn kernels(&self) -> Option<Guilty> {
        let (graph, clusters) = (&self.compiled.graph, &self.compiled.clusters);
        if let Some((number, effect)) = wrong_nest(graph, clusters, &self.meaning) {
            let fails = |c: &Clusters| wrong_nest(graph, c, &self.meaning).is_some();
            if let Some(decision) = self.guilty_merge(&fails) {
                return Some(fused(graph, &decision, effect));
            }
            return Some(Guilty::new(Stage::Lowering, self.cluster_text(number), "", effect));
        }
        let (number, what, effect) = wrong_kernel(&self.compiled, &self.meaning)?;
        let of = self.cluster_text(number);
        Some(match what {
            WrongKernel::Directive(applied) => {
                let decision = format!("{} in the {of}", applied.directive);
                Guilty::new(Stage::Schedule, decision, applied.reason.to_string(), effect)
            }
            WrongKernel::Hoisting => Guilty::new(Stage::Schedule, format!("hoisting in the {of}"), "", effect),
            WrongKernel::Legalization(operations) => {
                let decision = format!("{operations} in the {of}");
                Guilty::new(Stage::Legalization, decision, "", effect)
            }
        })
    }

    /// What the verifier of plans says.
    fn plan_rules(&self) -> Option<Guilty> {
        let plan = &self.planned().plan;
        let PlanViolation { place, rule } = verify_plan(plan).errors.into_iter().next()?;
        let effect = PlanViolation {
            place,
            rule: rule.clone(),
        }
        .to_string();
        use tlc_ir::plan::verify::PlanRule::*;
        Some(match &rule {
            AliasLive(a, b) | NotInPlace(a, b) | AliasLength(a, b) => self.alias(*a, *b, effect),
            Epilogue(slot) => {
                let decision = format!("a kernel runs on {} as its lines are complete", self.slot_text(*slot));
                let product = self.planned().values[slot.0 as usize];
                let mut entries = self.compiled.clusters.ledger.entries().iter().rev();
                let decided =
                    entries.find(|d| matches!(d.reason, FusionReason::Epilogue { .. }) && Some(d.producer) == product);
                let reason = decided.map_or(String::new(), |d| d.reason.to_string());
                Guilty::new(Stage::Epilogue, decision, reason, effect)
            }
            GroupConflict(slot) => {
                let decision = match place {
                    PlanPlace::Step(step) => {
                        format!(
                            "step {step} runs launches side by side that share {}",
                            self.slot_text(*slot)
                        )
                    }
                    _ => format!("launches that share {} run side by side", self.slot_text(*slot)),
                };
                Guilty::new(Stage::Grouping, decision, "small launches run in one fork-join", effect)
            }
            Donation(input, output) => {
                let name = |k: &u32| plan.inputs[*k as usize].name.clone();
                let decision = format!(
                    "output `{}` may be computed in the bytes of input `{}`",
                    plan.outputs[*output as usize].name,
                    name(input)
                );
                Guilty::new(
                    Stage::Donation,
                    decision,
                    "in place if the caller gives the operand away",
                    effect,
                )
            }
            OutOfBounds(slot) => {
                let decision = format!("the product that accesses {}", self.slot_text(*slot));
                Guilty::new(Stage::Product, decision, "", effect)
            }
            Unwritten(slot) if self.is_written_beside(place, *slot) => {
                let decision = format!(
                    "launches run side by side of which one writes {}",
                    self.slot_text(*slot)
                );
                Guilty::new(Stage::Grouping, decision, "small launches run in one fork-join", effect)
            }
            Unwritten(slot) => {
                let options = pass_options(self.options).ok()?;
                let graph = &self.compiled.graph;
                let placement = options.placement(graph);
                let fails = |c: &Clusters| {
                    guarded(|| {
                        Ok(tlc_passes::planner::plan(
                            graph,
                            &mut c.clone(),
                            &placement,
                            &[],
                            &[],
                            &|_, _, _| {},
                        ))
                    })
                    .map_or(true, |p| !verify_plan(&p.plan).errors.is_empty())
                };
                match self.guilty_merge(&fails) {
                    Some(decision) => fused(graph, &decision, effect),
                    None => {
                        let decision = format!("nothing stores {}, which a step reads", self.slot_text(*slot));
                        Guilty::new(Stage::Fusion, decision, "", effect)
                    }
                }
            }
            _ => Guilty::new(Stage::Plan, effect.clone(), "", effect),
        })
    }

    /// Whether a launch of the same group writes a slot.
    fn is_written_beside(&self, place: PlanPlace, slot: SlotId) -> bool {
        let plan = &self.planned().plan;
        let PlanPlace::Step(number) = place else { return false };
        let Some(step @ Step::Group(_)) = plan.init.iter().chain(&plan.steps).nth(number) else {
            return false;
        };
        let mut written = false;
        step.visit_slots(&mut |s, writes| written |= writes && s == slot, &plan.kernels);
        written
    }

    /// The alias of one of two slots, with its reason.
    fn alias(&self, a: SlotId, b: SlotId, effect: String) -> Guilty {
        let planned = self.planned();
        let is = |s: SlotId, t: SlotId| s == t || planned.plan.root(s) == t;
        let decided = planned
            .aliases
            .iter()
            .find(|d| (d.slot == a && is(d.of, b)) || (d.slot == b && is(d.of, a)) || (d.of == a && d.slot == b));
        let reason = decided.map(|d| d.reason.to_string()).unwrap_or_default();
        let (slot, of) = decided.map_or((a, b), |d| (d.slot, d.of));
        let decision = format!("{} takes the bytes of {}", self.slot_text(slot), self.slot_text(of));
        Guilty::new(Stage::Alias, decision, reason, effect)
    }

    /// What is wrong with a plan, as its interpreter runs it.
    fn wrong_plan(&self, plan: &Plan, layout: Option<&Layout>) -> Option<String> {
        let case = self.case;
        let found = match guarded(|| Ok(interpret_bound(plan, layout, &case.inputs, &self.meaning.symbols))) {
            Ok(Ok(outputs)) => outputs,
            Ok(Err(e)) => return Some(e.to_string()),
            Err(finding) => return Some(finding.to_string()),
        };
        let expected =
            interpret_with_bounds(&self.compiled.graph, &case.inputs, &case.interpretation(self.options)).ok()?;
        found.iter().zip(&expected).zip(&plan.outputs).find_map(|((t, b), o)| {
            let mismatch = interp::compare(t, b).err()?;
            Some(format!("output `{}`: {mismatch}", o.name))
        })
    }

    /// The plan without aliases, then with each of them, then under its placement.
    fn plan_meaning(&self) -> Option<Guilty> {
        let planned = self.planned();
        let mut plan = Plan::clone(&planned.plan);
        let aliases: Vec<usize> = (0..plan.slots.len())
            .filter(|&s| matches!(plan.slots[s].storage, Storage::Alias(_)))
            .collect();
        for &slot in &aliases {
            plan.slots[slot].storage = Storage::Arena;
        }
        if let Some(effect) = self.wrong_plan(&plan, None) {
            return Some(self.wrong_step(effect));
        }
        for &slot in &aliases {
            let of = match planned.plan.slots[slot].storage {
                Storage::Alias(of) => of,
                _ => continue,
            };
            plan.slots[slot].storage = Storage::Alias(of);
            if let Some(effect) = self.wrong_plan(&plan, None) {
                return Some(self.alias(SlotId(slot as u32), of, effect));
            }
        }
        let layout = pack(&planned.plan, &self.meaning.symbols)?;
        if let Some(violation) = verify_layout(&planned.plan, &layout, &self.meaning.symbols).first() {
            let decision = match &violation.rule {
                tlc_ir::plan::verify::PlanRule::Overlap(a, b) => {
                    let at = |s: &SlotId| layout.offsets[s.0 as usize].unwrap_or_default();
                    let (text, other) = (self.slot_text(*a), self.slot_text(*b));
                    format!("{text} at byte {} and {other} at byte {}, both in use", at(a), at(b))
                }
                rule => rule.to_string(),
            };
            return Some(Guilty::new(Stage::Placement, decision, "", violation.to_string()));
        }
        let effect = self.wrong_plan(&planned.plan, Some(&layout))?;
        Some(Guilty::new(
            Stage::Placement,
            "where the arena's values lie",
            "",
            effect,
        ))
    }

    /// Kernels are right one by one and the plan is not: a step that is no kernel.
    fn wrong_step(&self, effect: String) -> Guilty {
        let products = self.planned().plan.steps.iter().filter_map(|s| match s {
            Step::Gemm(g) => Some(g),
            _ => None,
        });
        let products: Vec<_> = products.collect();
        match products.first() {
            Some(product) => {
                let decision = format!("{} by the library", self.slot_text(product.dst.slot));
                Guilty::new(Stage::Product, decision, "", effect)
            }
            None => Guilty::new(Stage::Plan, "what its steps read and write", "", effect),
        }
    }

    /// Everything up to the plan is right: machine code, or the runtime.
    fn machine(&self) -> Option<Guilty> {
        let report = verify(self.case, self.options).ok()?;
        let finding = report.findings.first()?;
        let effect = finding.to_string();
        let (stage, decision) = match finding {
            Finding::Value(place, _) => {
                let step = place.step.and_then(|s| self.planned().plan.steps.get(s));
                let what = match step {
                    Some(Step::Gemm(_)) => "the library's product",
                    Some(Step::Copy { .. }) => "the copy",
                    Some(Step::Group(_)) => "a kernel of the group",
                    Some(Step::Sequence(_)) => "a kernel of the sequence",
                    _ => "the kernel",
                };
                (Stage::MachineCode, format!("{what} that computes {}", place.text))
            }
            Finding::Threads(name) => (Stage::Threads, format!("the kernels behind output `{name}`")),
            Finding::Donation { input, output } => {
                let text = format!("output `{output}` is computed in the bytes of input `{input}`");
                return Some(Guilty::new(
                    Stage::Donation,
                    text,
                    "in place if the caller gives the operand away",
                    effect,
                ));
            }
            Finding::Overwritten(place, _) => (Stage::Placement, format!("the bytes of {}", place.text)),
            other => (Stage::MachineCode, other.to_string()),
        };
        Some(Guilty::new(stage, decision, "", effect))
    }
}
