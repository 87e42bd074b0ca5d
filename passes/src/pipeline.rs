//! The pipeline: which passes run, in which order, and what they decided.
//!
//! The optional graph passes ([`PASSES`]) are data: a comma-separated list of names, which are also the names on the command line,
//! in tests and of tracing spans. Any subset in any order keeps every result. [`rewrite`] drives them: it names, times and
//! verifies each, shows it to who prints or bisects, and lets tests seed faults. What follows them is fixed: own-outputs,
//! place, cluster, lower, schedule, legalize, memory.

use std::borrow::Cow;
use std::fmt;
use std::ops::ControlFlow;
use std::str::FromStr;
use std::sync::Arc;

use tlc_ir::graph::GraphError;
use tlc_ir::graph::verify::verify;
use tlc_ir::plan::DeviceId;
use tlc_ir::{DType, Graph, Precision, Target};

use crate::carried_sums::{self, CarriedSum};
use crate::cluster::{Clusters, cluster};
use crate::devices::{Cut, Devices, Place, Placement, StateBinding, place};
use crate::made::{Made, made};
pub use crate::planner::Announce;
use crate::planner::{Planned, plan};
use crate::rewrite::einsum_path::{EinsumPathError, PathDecision};
use crate::rewrite::panels::Layouts;
use crate::rewrite::{Context, Failure, bodies, own_outputs};
pub use crate::rewrite::{PASSES, Pass};
use crate::segments::{self, Segmented};
use crate::tuning::Pins;

/// A list of optional passes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pipeline(pub Vec<&'static dyn Pass>);

impl Pipeline {
    /// The first passes of the list, at most so many: how a bug in a pass is found by bisection.
    #[must_use]
    pub fn first(mut self, limit: Option<usize>) -> Pipeline {
        self.0.truncate(limit.unwrap_or(usize::MAX));
        self
    }
}

impl Default for Pipeline {
    fn default() -> Pipeline {
        Pipeline(PASSES.to_vec())
    }
}

impl FromStr for Pipeline {
    type Err = PassError;
    fn from_str(text: &str) -> Result<Pipeline, PassError> {
        let names = text.split(',').map(str::trim).filter(|n| !n.is_empty());
        let find = |name: &str| {
            PASSES
                .into_iter()
                .find(|p| p.name() == name)
                .ok_or_else(|| PassError::UnknownPass { name: name.into() })
        };
        names.map(find).collect::<Result<_, _>>().map(Pipeline)
    }
}

impl fmt::Display for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.iter().map(|p| p.name()).collect::<Vec<_>>().join(","))
    }
}

/// What the compiler may do, and for which machine.
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    /// The machine.
    pub devices: Devices,
    /// Which of its devices computes what.
    pub place: Place,
    /// Where the caller has inputs and wants outputs that are not states.
    pub caller: DeviceId,
    /// Inputs and outputs that are states of the caller.
    pub states: Vec<StateBinding>,
    /// Optional passes.
    pub pipeline: Pipeline,
    /// The most bytes that any einsum intermediate may have.
    pub max_memory_bytes: Option<u64>,
    /// The most bytes of the arena of each device, by its number, where sizes are fixed; one that is missing may have any. Values are computed
    /// again where it would be larger. What cannot be made so small is as small as it can be.
    pub arena_limits: Vec<u64>,
    /// How exactly products are computed.
    pub precision: Precision,
    /// What choices of schedules are to be, by kernel; where there are pins, if only of no kernel, schedules note which choices there were.
    pub pins: Option<Arc<Pins>>,
    /// What is done so that loops need less memory.
    pub loops: Loops,
    /// Whether every graph that a pass makes is verified. Where debug assertions are on, it always is.
    pub verify_passes: bool,
}

impl Options {
    /// The default pipeline and no memory limit; all that can be is computed on the last of the devices.
    pub fn new(devices: impl Into<Devices>) -> Options {
        let devices = devices.into();
        Options {
            place: Place::On(DeviceId(devices.count() as u32 - 1)),
            devices,
            caller: DeviceId::HOST,
            states: Vec::new(),
            pipeline: Pipeline::default(),
            max_memory_bytes: None,
            arena_limits: Vec::new(),
            precision: Precision::Exact,
            pins: None,
            loops: Loops::AsRecorded,
            verify_passes: false,
        }
    }

    /// The machine that most is computed on: what passes over the graph go by.
    pub fn target(&self) -> &Target {
        self.devices.target(match self.place {
            Place::On(device) => device,
            // The parts are for devices of one kind.
            Place::Divided => DeviceId(1),
            Place::Scattered { .. } => DeviceId::HOST,
        })
    }

    /// The device of each value of a graph.
    pub fn placement(&self, graph: &Graph) -> Placement<'_> {
        place(graph, &self.devices, self.place)
            .with_states(graph, &self.states)
            .for_caller(self.caller)
            .with_precision(self.precision)
            .with_pins(self.pins.as_deref())
    }
}

/// What is done so that loops need less memory, each level in addition to those before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Loops {
    /// Nothing.
    AsRecorded,
    /// Products of what iterations stack are sums that go around; see [`crate::carried_sums`].
    CarrySums,
    /// Loops are cut whose derivatives keep what each iteration began with; see [`crate::segments`].
    Segments,
}

/// Why compilation failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PassError {
    /// No such pass.
    #[error("unknown pass `{name}`; expected {}", PASSES.map(|p| p.name()).join(", "))]
    UnknownPass {
        /// The name.
        name: String,
    },
    /// A pass made a graph that does not type: a bug.
    #[error("pass {pass}: {source}")]
    Pass {
        /// The pass.
        pass: &'static str,
        /// What the builder said.
        source: Box<GraphError>,
    },
    /// A pass made a graph that does not verify: a bug.
    #[error("after {pass}: {first} (one of {count} errors)")]
    Invalid {
        /// The pass.
        pass: &'static str,
        /// The first thing that is wrong.
        first: String,
        /// How many things are.
        count: usize,
    },
    /// States that are not the inputs and outputs of the graph.
    #[error("state {number}: {problem}")]
    State {
        /// Its number in [`Options::states`].
        number: usize,
        /// What is wrong.
        problem: String,
    },
    /// No contraction order fits the memory limit.
    #[error(transparent)]
    EinsumPath(#[from] EinsumPathError),
}

/// Everything that compilation decided.
pub struct Compiled {
    /// The graph after the passes.
    pub graph: Graph,
    /// Contraction orders.
    pub paths: Vec<PathDecision>,
    /// Products that are sums which go around in loops.
    pub carried_sums: Vec<CarriedSum>,
    /// Loops that were cut.
    pub segmented: Vec<Segmented>,
    /// Where the graph is cut between devices.
    pub cuts: Vec<Cut>,
    /// Clusters and fusion decisions.
    pub clusters: Clusters,
    /// The plan, schedules and memory decisions.
    pub planned: Planned,
}

/// A pass that has run.
pub struct Ran<'a> {
    /// Its place in the pipeline.
    pub number: usize,
    /// The pass.
    pub pass: &'static dyn Pass,
    /// What it was given.
    pub before: &'a Graph,
    /// What it made.
    pub after: &'a Graph,
}

/// Runs the optional passes of `options`, each seen by `seen`, which ends the run with `Break`. Chosen contraction orders go
/// to `paths`.
///
/// # Errors
/// [`PassError`], naming the pass.
pub fn rewrite<'g>(
    graph: &'g Graph,
    options: &Options,
    paths: &mut Vec<PathDecision>,
    seen: &mut dyn FnMut(Ran<'_>) -> ControlFlow<()>,
) -> Result<Cow<'g, Graph>, PassError> {
    let mut current = inlined(graph)?;
    for (number, &pass) in options.pipeline.0.iter().enumerate() {
        let after = run_pass(pass, &current, options, paths)?;
        let ran = Ran {
            number,
            pass,
            before: &current,
            after: &after,
        };
        let flow = seen(ran);
        current = Cow::Owned(after);
        if flow.is_break() {
            break;
        }
    }
    Ok(current)
}

/// The graph without regions, which no pass knows, and with numbers for sizes in the bodies of its loops wherever they are known.
fn inlined(graph: &Graph) -> Result<Cow<'_, Graph>, PassError> {
    let wrap = |source: GraphError| PassError::Pass {
        pass: "inline",
        source: source.into(),
    };
    let plain = match graph.inlined().map_err(wrap)? {
        Some(made) => Cow::Owned(made),
        None => Cow::Borrowed(graph),
    };
    Ok(match plain.with_settled_bodies().map_err(wrap)? {
        Some(made) => Cow::Owned(made),
        None => plain,
    })
}

/// Runs one optional pass, over bodies of loops first. Regions are put in place before.
///
/// # Errors
/// [`PassError`], naming the pass.
pub fn run_pass(
    pass: &dyn Pass,
    graph: &Graph,
    options: &Options,
    paths: &mut Vec<PathDecision>,
) -> Result<Graph, PassError> {
    let mut context = Context {
        layouts: match options.target() {
            Target::Cpu(cpu) => Layouts {
                panel_elements: cpu.panel_elements,
                vector_bits: cpu.emitters.iter().map(|e| e.table.vector_bits).max().unwrap_or(0),
                turned_bytes: cpu.turned_bytes(),
                products: cpu.products,
            },
            Target::Gpu(_) => Layouts::NONE,
        },
        tiles: match options.target() {
            Target::Cpu(cpu) => cpu
                .emitters
                .iter()
                .map(|e| &*e.table)
                .find(|e| e.tile(DType::F32, 1).is_some()),
            Target::Gpu(_) => None,
        },
        weight_block_bytes: match options.target() {
            Target::Cpu(cpu) => cpu.weight_block_bytes(),
            Target::Gpu(_) => 0,
        },
        resident_bytes: options.target().resident_bytes(),
        many_threads: matches!(options.target(), Target::Gpu(_)),
        gpu: match options.target() {
            Target::Cpu(_) => None,
            Target::Gpu(gpu) => Some(gpu),
        },
        max_memory_bytes: options.max_memory_bytes,
        inside_loop: false,
        paths,
    };
    let graph = inlined(graph)?;
    let made = run_inside(pass, &graph, &mut context)?;
    if options.verify_passes || cfg!(debug_assertions) {
        let errors = verify(&made);
        if let Some(first) = errors.first() {
            return Err(PassError::Invalid {
                pass: pass.name(),
                first: first.to_string(),
                count: errors.len(),
            });
        }
    }
    Ok(made)
}

/// Runs a pass over bodies of loops, then over the graph itself.
fn run_inside(pass: &dyn Pass, graph: &Graph, context: &mut Context<'_>) -> Result<Graph, PassError> {
    let _span = tracing::info_span!("pass", name = pass.name()).entered();
    let wrap = |source: GraphError| PassError::Pass {
        pass: pass.name(),
        source: source.into(),
    };
    let outside = std::mem::replace(&mut context.inside_loop, true);
    let with_bodies = bodies(graph, wrap, &mut |body| run_inside(pass, body, context))?;
    context.inside_loop = outside;
    let mut after = pass
        .run(with_bodies.as_ref().unwrap_or(graph), context)
        .map_err(|failure| match failure {
            Failure::Graph(source) => wrap(source),
            Failure::EinsumPath(e) => e.into(),
        })?;
    made(Made::Graph {
        pass: pass.name(),
        before: graph,
        after: &mut after,
    });
    Ok(after)
}

/// Compiles a verified graph to a plan.
///
/// # Errors
/// [`PassError`].
pub fn compile(graph: &Graph, options: &Options) -> Result<Compiled, PassError> {
    compile_announcing(graph, options, &|_, _, _| {})
}

/// As [`compile`]; `announce` is called with each kernel as soon as it is decided, for a device, to be made by an emitter. A plan may launch
/// fewer in the end.
///
/// # Errors
/// As there.
pub fn compile_announcing(graph: &Graph, options: &Options, announce: Announce<'_>) -> Result<Compiled, PassError> {
    let mut paths = Vec::new();
    let (graph, carried_sums) = match options.loops {
        Loops::AsRecorded => (Cow::Borrowed(graph), Vec::new()),
        Loops::CarrySums | Loops::Segments => changed(inlined(graph)?, "carried-sums", carried_sums::run)?,
    };
    let graph = &*graph;
    let rewritten = rewrite(graph, options, &mut paths, &mut |_| ControlFlow::Continue(()))?;
    let (rewritten, segmented) = match options.loops {
        Loops::AsRecorded | Loops::CarrySums => (rewritten, Vec::new()),
        Loops::Segments => changed(rewritten, "segments", segments::run)?,
    };
    let owned = own_outputs::run(&rewritten).map_err(|source| PassError::Pass {
        pass: "own-outputs",
        source: source.into(),
    })?;
    check_states(graph, &options.states)?;
    let placement = options.placement(&owned);
    let mut clusters = {
        let _span = tracing::info_span!("pass", name = "cluster").entered();
        cluster(&owned, &placement, &options.states)
    };
    let planned = {
        let _span = tracing::info_span!("pass", name = "plan").entered();
        plan(
            &owned,
            &mut clusters,
            &placement,
            &options.states,
            &options.arena_limits,
            announce,
        )
    };
    Ok(Compiled {
        graph: owned,
        paths,
        carried_sums,
        segmented,
        cuts: placement.cuts().to_vec(),
        clusters,
        planned,
    })
}

/// Makes another graph of one, and says what it did.
type Change<R> = fn(&Graph) -> Result<(Graph, Vec<R>), GraphError>;

/// What a change of loops makes of a graph, verified as what a pass makes, and what it says.
fn changed<'g, R>(
    graph: Cow<'g, Graph>,
    pass: &'static str,
    run: Change<R>,
) -> Result<(Cow<'g, Graph>, Vec<R>), PassError> {
    let _span = tracing::info_span!("pass", name = pass).entered();
    let (made, reports) = run(&graph).map_err(|source| PassError::Pass {
        pass,
        source: source.into(),
    })?;
    if reports.is_empty() {
        return Ok((graph, reports));
    }
    let errors = verify(&made);
    if let Some(first) = errors.first() {
        return Err(PassError::Invalid {
            pass,
            first: first.to_string(),
            count: errors.len(),
        });
    }
    Ok((Cow::Owned(made), reports))
}

/// States name inputs and outputs that exist, none twice, and old and new value have one type.
fn check_states(graph: &Graph, states: &[StateBinding]) -> Result<(), PassError> {
    let mut inputs = vec![false; graph.inputs().len()];
    let mut outputs = vec![false; graph.outputs().len()];
    for (number, s) in states.iter().enumerate() {
        let wrong = |problem: String| Err(PassError::State { number, problem });
        for (what, k, taken) in [("input", s.input, &mut inputs), ("output", s.output, &mut outputs)] {
            let Some(k) = k else { continue };
            let count = taken.len();
            let Some(taken) = taken.get_mut(k as usize) else {
                return wrong(format!("there is no {what} {k}; the graph has {count}"));
            };
            if std::mem::replace(taken, true) {
                return wrong(format!("{what} {k} is another state's as well"));
            }
        }
        match (s.input, s.output) {
            (None, None) => return wrong("neither an input nor an output".into()),
            (Some(i), Some(o)) => {
                let (old, new) = (graph.inputs()[i as usize], graph.outputs()[o as usize].node);
                let (old, new) = (graph.ty(old), graph.ty(new));
                if old != new {
                    let (expected, found) = (graph.type_text(old), graph.type_text(new));
                    return wrong(format!("its new value is {found}, expected {expected}"));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tlc_ir::target::Cpu;
    use tlc_ir::text::{no_data, parse_module};

    use super::*;

    /// Notes what it is shown, and changes nothing.
    struct Watching(Mutex<Vec<(String, bool)>>);

    impl Pass for Watching {
        fn name(&self) -> &'static str {
            "watching"
        }

        fn run(&self, graph: &Graph, context: &mut Context<'_>) -> Result<Graph, Failure> {
            let mut seen = self.0.lock().expect("no other thread panics");
            seen.push((graph.name.clone(), context.inside_loop));
            Ok(graph.clone())
        }
    }

    static WATCHING: Watching = Watching(Mutex::new(Vec::new()));

    fn looping() -> Graph {
        let text = "graph @outer(%x: f32[4]) {
  %0 = loop %x {trip=2, carried=1, slices=[], stacks=[]} body @inner(%i: i64[], %v: f32[4]) {
    %0 = neg %v : f32[4]
    return %0
  } : (f32[4])
  %1 = project %0 {result=0} : f32[4]
  return %1
}";
        let module = parse_module(text, &mut no_data).expect("a graph");
        module.graphs.into_iter().next().expect("one graph")
    }

    /// Bodies of loops come first and are distinguished from the graph around them; the observer may end the run.
    #[test]
    fn the_driver_shows_each_pass_and_stops_when_asked() {
        let graph = looping();
        let options = Options {
            pipeline: Pipeline(vec![&WATCHING, PASSES[0], &WATCHING]),
            ..Options::new(Cpu::modest(Arc::new(tlc_codegen::clif::emitter(true))))
        };
        let mut names = Vec::new();
        let mut seen = |ran: Ran<'_>| {
            assert_eq!(ran.number, names.len());
            names.push(ran.pass.name());
            match names.len() {
                2 => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        };
        rewrite(&graph, &options, &mut Vec::new(), &mut seen).expect("nothing fails");
        assert_eq!(names, ["watching", PASSES[0].name()]);
        let shown = WATCHING.0.lock().expect("no other thread panics");
        assert_eq!(*shown, [("inner".to_string(), true), ("outer".to_string(), false)]);
    }

    #[test]
    fn passes_are_told_apart_by_their_names() {
        for (k, pass) in PASSES.iter().enumerate() {
            assert!(PASSES[..k].iter().all(|other| other != pass), "{pass:?}");
            let pipeline: Pipeline = pass.name().parse().expect("a name");
            assert_eq!(pipeline.0, [*pass]);
        }
        assert_eq!(Pipeline::default().first(Some(2)).0, PASSES[..2]);
    }
}
