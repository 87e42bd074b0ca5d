//! Versions of an executable for sizes that recur, and for sizes that break an assumption.
//!
//! Invariants:
//! - The code for any sizes is compiled first and stays. A version replaces it only for the input shapes it was made for.
//! - A version for shapes that recur is made on a thread of its own, one at a time, and no call waits for it. It stays only
//!   if it was measured to be faster. A version for shapes that break a guard is made by the call that needs it.
//! - At most [`MAX_KEPT`] versions for recurring shapes and [`MAX_BROKEN`] for broken guards are kept, and [`MAX_MADE`] are
//!   ever made.
//! - A call with known shapes costs a lock and a comparison of shapes, and allocates nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tlc_ir::Graph as IrGraph;
use tlc_runtime::driver::{RunError, Sources, kept_bytes_to_make};
use tlc_runtime::float_mode::DefaultMode;

use super::{Broken, BuildError, CompileOptions, Compiler, Version};

/// Versions for recurring shapes that are kept.
const MAX_KEPT: usize = 4;
/// Versions for shapes that break a guard that are kept.
const MAX_BROKEN: usize = 16;
/// Versions that are ever made, those that were dropped included.
const MAX_MADE: usize = 32;
/// Shapes that are watched.
const MAX_WATCHED: usize = 64;
/// Calls with the same shapes before a version for them may be made.
const MIN_CALLS: u32 = 16;
/// Calls that a new version is measured for.
const TRIAL_CALLS: u32 = 8;
/// A version stays if it takes at most this much of the time that the code for any sizes takes.
const WORTH: f64 = 0.97;
/// A version that was not called for so many calls makes room for another.
const IDLE_CALLS: u64 = 1024;
/// Bytes computed once (constants in another order) that a version may keep beside those that it shares with the code for any sizes.
const MAX_KEPT_BYTES: u64 = 256 << 20;

/// When an executable whose sizes are symbols makes versions of itself for fixed sizes, beside the code for any sizes.
///
/// A version computes the same function. Where it sums in another order, results differ by rounding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Specialize {
    /// For shapes that recur, once the calls with them have taken as long as compiling took; the version stays if it is
    /// measured to be faster. Made in the background. Not of a graph that sets states, as a step of training does: what they become
    /// would depend on when a version was ready.
    #[default]
    Recurring,
    /// For shapes that recur, after so many calls with them, whatever the gain. Made in the background.
    After(u32),
    /// Never, but for shapes that break an assumption of the code for any sizes.
    Never,
}

/// What became of a specialization.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Verdict {
    /// It is used; not yet measured.
    Trial,
    /// It is used: it takes this fraction of the time of the code for any sizes.
    Faster(f64),
    /// It is used, as was asked for.
    Asked,
    /// It is used: its sizes break an assumption of the code for any sizes.
    Needed,
    /// It was dropped: it takes this fraction of the time of the code for any sizes.
    NotFaster(f64),
    /// It was dropped: its constants in another order would need this many bytes more.
    TooLarge(u64),
    /// It could not be made: a call of it needs this many bytes of memory, more than it may use.
    TooMuchMemory(u64),
    /// It was dropped: it had not been called for long, and another was to be made.
    Idle,
    /// It could not be compiled.
    Failed,
    /// The verifiers found that it was compiled wrongly, which is a bug in tlc, or compiling it panicked. See
    /// [`Executable::broken`](super::Executable::broken).
    Broken,
}

/// A version of an executable for fixed sizes, and why there is one.
#[derive(Clone, Debug, PartialEq)]
pub struct Specialization {
    /// The sizes, as `batch=8 length=128`.
    pub sizes: String,
    /// Why it was made.
    pub reason: String,
    /// Kernels that were compiled for it.
    pub kernels: usize,
    /// What became of it.
    pub verdict: Verdict,
}

impl std::fmt::Display for Specialization {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}; {} kernels; ", self.sizes, self.reason, self.kernels)?;
        match self.verdict {
            Verdict::Trial => write!(f, "in use, being measured"),
            Verdict::Faster(ratio) => write!(f, "in use: {ratio:.2} of the time of the code for any sizes"),
            Verdict::Asked => write!(f, "in use, as asked for"),
            Verdict::Needed => write!(f, "in use: the code for any sizes does not fit"),
            Verdict::NotFaster(ratio) => {
                write!(f, "dropped: {ratio:.2} of the time of the code for any sizes")
            }
            Verdict::TooLarge(bytes) => write!(
                f,
                "dropped: {} of constants would be held twice; at most {}",
                crate::explain::bytes_text(bytes),
                crate::explain::bytes_text(MAX_KEPT_BYTES)
            ),
            Verdict::TooMuchMemory(bytes) => write!(
                f,
                "not made: a call needs {} of memory, more than it may use",
                crate::explain::bytes_text(bytes)
            ),
            Verdict::Idle => write!(f, "dropped: not called for {IDLE_CALLS} calls"),
            Verdict::Failed => write!(f, "could not be compiled"),
            Verdict::Broken => write!(f, "not used: a bug in tlc, which its verifiers found"),
        }
    }
}

/// What runs calls with the watched shapes.
enum Standing {
    /// The code for any sizes: calls so far, their time, and the least time of one.
    General {
        calls: u32,
        total: Duration,
        least: Duration,
    },
    /// The code for any sizes, while a version is being made.
    Making { least: Duration },
    /// A version that is being measured against the least time of a call before.
    Trial {
        version: Arc<Version>,
        before: Duration,
        calls: u32,
        least: Duration,
    },
    /// A version.
    Special { version: Arc<Version>, used: u64 },
    /// The code for any sizes, for good.
    Settled,
    /// Nothing: a call needs at least so many bytes of memory, more than it may use.
    Refused { needed: u64, device: Option<String> },
}

struct Watched {
    shapes: Vec<Vec<usize>>,
    /// Distinguishes it from others that took its place.
    number: u64,
    /// Its entry among the reports.
    report: Option<usize>,
    /// Whether its shapes break a guard.
    broken: bool,
    standing: Standing,
}

#[derive(Default)]
struct State {
    /// Latest first.
    watched: Vec<Watched>,
    reports: Vec<Specialization>,
    /// Calls with known shapes so far.
    calls: u64,
    next_number: u64,
    making: bool,
    /// The first that the verifiers refused.
    broken: Option<Arc<Broken>>,
}

/// Values of the graph's symbols, by position, and as text; `None` where data decides.
#[derive(Clone)]
struct Sizes {
    values: Vec<Option<i64>>,
    text: String,
}

/// Watches calls and makes versions.
pub(super) struct Specializations {
    graph: IrGraph,
    compiler: Compiler,
    policy: Specialize,
    /// What compiling the code for any sizes took.
    cost: Duration,
    state: Mutex<State>,
    made: Condvar,
}

/// What runs a call.
pub(super) struct Picked {
    /// The version, or the code for any sizes if there is none.
    pub(super) version: Option<Arc<Version>>,
    /// Which watched shapes the call's time counts for.
    timed: Option<(u64, Instant)>,
}

impl Picked {
    /// The code for any sizes; nothing is counted.
    pub(super) const GENERAL: Picked = Picked {
        version: None,
        timed: None,
    };
}

impl Specializations {
    pub(super) fn new(graph: IrGraph, compiler: Compiler, options: &CompileOptions, cost: Duration) -> Arc<Self> {
        let sets_states = compiler.options.states.iter().any(|s| s.output.is_some());
        let policy = match options.specialize {
            Specialize::Recurring if sets_states => Specialize::Never,
            asked => asked,
        };
        Arc::new(Specializations {
            graph,
            compiler,
            policy,
            cost,
            state: Mutex::default(),
            made: Condvar::new(),
        })
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What runs a call with these inputs, and after them the states that are read.
    ///
    /// # Errors
    /// If the inputs do not fit the graph.
    pub(super) fn pick(&self, general: &Version, inputs: Sources<'_>) -> Result<Picked, RunError> {
        let same = |w: &Watched| {
            w.shapes.len() == inputs.shapes().len() && w.shapes.iter().zip(inputs.shapes()).all(|(s, i)| s == i)
        };
        {
            let mut state = self.state();
            state.calls += 1;
            let now = state.calls;
            if let Some(at) = state.watched.iter().position(same) {
                state.watched.swap(0, at);
                let w = &mut state.watched[0];
                let timed = || Some((w.number, Instant::now()));
                return Ok(match &mut w.standing {
                    Standing::General { .. } => Picked {
                        version: None,
                        timed: timed(),
                    },
                    Standing::Trial { version, .. } => Picked {
                        version: Some(Arc::clone(version)),
                        timed: timed(),
                    },
                    Standing::Special { version, used } => {
                        *used = now;
                        Picked {
                            version: Some(Arc::clone(version)),
                            timed: None,
                        }
                    }
                    Standing::Making { .. } | Standing::Settled => Picked::GENERAL,
                    Standing::Refused { needed, device } => {
                        return Err(RunError::MemoryLimit {
                            needed: *needed,
                            limit: self.compiler.options.max_memory_bytes.unwrap_or(u64::MAX),
                            device: device.clone(),
                        });
                    }
                });
            }
        }
        match self.check(general, inputs) {
            Ok(()) => {}
            Err(broken @ (RunError::Guard { .. } | RunError::MemoryLimit { .. })) => {
                return self.for_sizes(general, inputs, broken);
            }
            Err(e) => return Err(e),
        }
        let standing = match self.policy {
            Specialize::Never => Standing::Settled,
            _ => Standing::General {
                calls: 0,
                total: Duration::ZERO,
                least: Duration::MAX,
            },
        };
        let number = self.state().watch(inputs, standing);
        // The first call with new shapes is slow for reasons that do not last; it counts, and its time does not.
        Ok(Picked {
            version: None,
            timed: Some((number, Instant::now())),
        })
    }

    /// An error if a version cannot run a call with these inputs, or not in the memory that it may use.
    fn check(&self, version: &Version, inputs: Sources<'_>) -> Result<(), RunError> {
        version.inner.check(inputs)?;
        let Some(limit) = self.compiler.options.max_memory_bytes else {
            return Ok(());
        };
        version.inner.memory(inputs, &|_, _| false, &|_| false)?.within(limit)
    }

    /// Counts a call that [`Specializations::pick`] chose the code for, which ended well, and may begin to make a version.
    pub(super) fn ran(self: &Arc<Self>, general: &Version, picked: &Picked) {
        let Some((number, start)) = picked.timed else { return };
        let took = start.elapsed();
        let mut state = self.state();
        let Some(at) = state.watched.iter().position(|w| w.number == number) else {
            return;
        };
        match &mut state.watched[at].standing {
            Standing::General { calls, total, least } => {
                *calls += 1;
                if *calls > 1 {
                    *total += took;
                    *least = took.min(*least);
                }
                let ripe = match self.policy {
                    Specialize::Recurring => *calls >= MIN_CALLS && *total >= self.cost,
                    Specialize::After(n) => *calls >= n.max(2),
                    Specialize::Never => false,
                };
                let (calls, total, before) = (*calls, *total, *least);
                if ripe && !state.making && state.make_room() {
                    let reason = match self.policy {
                        Specialize::After(_) => format!("the same shapes in {calls} calls"),
                        _ => format!(
                            "the same shapes in {calls} calls of {}, as long as compiling took",
                            crate::explain::time_text(total.as_nanos() as f64)
                        ),
                    };
                    let w = &mut state.watched[at];
                    w.standing = Standing::Making { least: before };
                    let sizes = self.sizes(general, &w.shapes);
                    state.making = true;
                    drop(state);
                    match sizes {
                        Ok(sizes) => self.make_in_background(sizes, number, reason),
                        Err(e) => self.enter(number, String::new(), e.to_string(), Err(Verdict::Failed)),
                    }
                }
            }
            Standing::Trial {
                version,
                before,
                calls,
                least,
            } if picked.version.is_some() => {
                *calls += 1;
                *least = took.min(*least);
                if *calls < TRIAL_CALLS {
                    return;
                }
                let ratio = least.as_secs_f64() / before.as_secs_f64().max(1e-9);
                let (verdict, standing) = match ratio <= WORTH {
                    true => {
                        let version = Arc::clone(version);
                        let used = state.calls;
                        (Verdict::Faster(ratio), Standing::Special { version, used })
                    }
                    false => (Verdict::NotFaster(ratio), Standing::Settled),
                };
                state.settle(at, verdict, standing);
            }
            _ => {}
        }
    }

    fn make_in_background(self: &Arc<Self>, sizes: Sizes, number: u64, reason: String) {
        let (this, on_thread, why) = (Arc::clone(self), sizes.clone(), reason.clone());
        let work = move || {
            // Whatever happens here, calls go on with the code for any sizes, and nobody waits for a thread that is gone.
            let made = catch_unwind(AssertUnwindSafe(|| this.make(&on_thread, 1)));
            // A panic has said what it is about.
            let made = made.unwrap_or(Err(Verdict::Broken));
            this.enter(number, on_thread.text, why, made);
        };
        let spawned = std::thread::Builder::new().name("tlc-specialize".into()).spawn(work);
        if spawned.is_err() {
            // No thread to be had: the code for any sizes goes on.
            self.enter(number, sizes.text, reason, Err(Verdict::Failed));
        }
    }

    /// Puts a version that was made into place, or what prevented it.
    fn enter(&self, number: u64, sizes: String, reason: String, made: Result<Version, Verdict>) {
        let mut state = self.state();
        state.making = false;
        let (kernels, verdict, version) = match made {
            Ok(version) => {
                let verdict = match self.policy {
                    Specialize::After(_) => Verdict::Asked,
                    _ => Verdict::Trial,
                };
                (version.inner.compiled_kernels(), verdict, Some(Arc::new(version)))
            }
            Err(verdict) => (0, verdict, None),
        };
        let report = state.report(Specialization {
            sizes,
            reason,
            kernels,
            verdict,
        });
        let used = state.calls;
        if let Some(w) = state.watched.iter_mut().find(|w| w.number == number) {
            w.report = Some(report);
            let before = match w.standing {
                Standing::Making { least } => least,
                _ => Duration::ZERO,
            };
            w.standing = match (version, verdict) {
                (Some(version), Verdict::Trial) => Standing::Trial {
                    version,
                    before,
                    calls: 0,
                    least: Duration::MAX,
                },
                (Some(version), _) => Standing::Special { version, used },
                (None, _) => Standing::Settled,
            };
        }
        drop(state);
        self.made.notify_all();
    }

    /// A version for sizes that the code for any sizes does not fit, because of what `broken` says.
    fn for_sizes(&self, general: &Version, inputs: Sources<'_>, broken: RunError) -> Result<Picked, RunError> {
        {
            let state = self.state();
            let kept = state.watched.iter().filter(|w| w.broken).count();
            if kept >= MAX_BROKEN || state.reports.len() >= MAX_MADE {
                return Err(broken);
            }
        }
        let shapes: Vec<Vec<usize>> = inputs.shapes().map(<[usize]>::to_vec).collect();
        let sizes = self.sizes(general, &shapes)?;
        // What the sizes contradict is an error of the call, reported as the assumption that it broke.
        let version = match self.make(&sizes, self.compiler.machine.threads.threads()) {
            Ok(version) => version,
            Err(verdict) => {
                // It counts as made: calls that cannot succeed do not compile for ever.
                let mut state = self.state();
                let report = state.report(Specialization {
                    sizes: sizes.text,
                    reason: broken.to_string(),
                    kernels: 0,
                    verdict,
                });
                return Err(match (verdict, broken) {
                    (
                        Verdict::TooMuchMemory(needed),
                        RunError::MemoryLimit {
                            needed: of_any,
                            limit,
                            device,
                        },
                    ) => {
                        // The version for the sizes may need more than the code for any.
                        let needed = needed.min(of_any);
                        let refused = Standing::Refused {
                            needed,
                            device: device.clone(),
                        };
                        state.watch(inputs, refused);
                        state.watched[0].report = Some(report);
                        RunError::MemoryLimit { needed, limit, device }
                    }
                    (_, broken) => broken,
                });
            }
        };
        let mut state = self.state();
        let mut report = Specialization {
            sizes: sizes.text,
            reason: broken.to_string(),
            kernels: version.inner.compiled_kernels(),
            verdict: Verdict::Needed,
        };
        if self.check(&version, inputs).is_err() {
            // Another assumption fails as well. It counts as made, as above.
            report.verdict = Verdict::Failed;
            state.report(report);
            return Err(broken);
        }
        let version = Arc::new(version);
        let used = state.calls;
        let standing = Standing::Special {
            version: Arc::clone(&version),
            used,
        };
        let report = state.report(report);
        state.watch(inputs, standing);
        state.watched[0].broken = true;
        state.watched[0].report = Some(report);
        Ok(Picked {
            version: Some(version),
            timed: None,
        })
    }

    /// What input shapes say of the graph's symbols.
    fn sizes(&self, general: &Version, shapes: &[Vec<usize>]) -> Result<Sizes, RunError> {
        let values = general.inner.sizes(shapes)?;
        let planned = &general.inner.plan().symbols;
        let of = |name: &str| {
            let at = planned.iter().position(|s| s.name == name)?;
            values.get(at).copied().flatten()
        };
        let symbols = self.graph.symbols();
        let values: Vec<Option<i64>> = symbols.iter().map(|s| of(&s.name)).collect();
        let known = symbols.iter().zip(&values).filter_map(|(s, v)| Some((&s.name, (*v)?)));
        let text: Vec<String> = known.map(|(name, v)| format!("{name}={v}")).collect();
        Ok(Sizes {
            values,
            text: text.join(" "),
        })
    }

    /// Compiles the graph for the sizes.
    fn make(&self, sizes: &Sizes, compiling: usize) -> Result<Version, Verdict> {
        let _mode = DefaultMode::enter();
        let _span = tracing::info_span!("specialize", graph = %self.graph.name, sizes = sizes.text).entered();
        let fail = |e: BuildError| match e {
            BuildError::Broken(broken) => {
                self.state().broken.get_or_insert(Arc::from(broken));
                Verdict::Broken
            }
            BuildError::Load(RunError::MemoryLimit { needed, .. }) => Verdict::TooMuchMemory(needed),
            _ => Verdict::Failed,
        };
        let graph = self.graph.specialize(&sizes.values).map_err(|_| Verdict::Failed)?;
        let (compiled, ahead) = self.compiler.decide(&graph, compiling).map_err(fail)?;
        let kept = kept_bytes_to_make(&compiled.planned.plan, &compiled.planned.emitters);
        if kept > MAX_KEPT_BYTES {
            return Err(Verdict::TooLarge(kept));
        }
        self.compiler
            .version(&graph, (compiled, ahead), compiling)
            .map_err(fail)
    }

    /// Waits until no version is being made.
    pub(super) fn wait(&self) {
        let mut state = self.state();
        while state.making {
            state = self.made.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The first version that the verifiers refused.
    pub(super) fn broken(&self) -> Option<Arc<Broken>> {
        self.state().broken.clone()
    }

    /// What was made so far, in order.
    pub(super) fn reports(&self) -> Vec<Specialization> {
        self.state().reports.clone()
    }
}

impl State {
    /// Watches shapes; returns their number.
    fn watch(&mut self, inputs: Sources<'_>, standing: Standing) -> u64 {
        if self.watched.len() >= MAX_WATCHED {
            // Versions are bounded elsewhere, so something else is there.
            let free = |w: &Watched| {
                use Standing::{General, Refused, Settled};
                matches!(w.standing, General { .. } | Settled | Refused { .. })
            };
            if let Some(at) = self.watched.iter().rposition(free) {
                self.watched.remove(at);
            }
        }
        let number = self.next_number;
        self.next_number += 1;
        let new = Watched {
            shapes: inputs.shapes().map(<[usize]>::to_vec).collect(),
            number,
            report: None,
            broken: false,
            standing,
        };
        self.watched.insert(0, new);
        number
    }

    /// Enters a report; returns its position.
    fn report(&mut self, report: Specialization) -> usize {
        self.reports.push(report);
        self.reports.len() - 1
    }

    fn settle(&mut self, at: usize, verdict: Verdict, standing: Standing) {
        let w = &mut self.watched[at];
        w.standing = standing;
        if let Some(r) = w.report {
            self.reports[r].verdict = verdict;
        }
    }

    /// Whether one more version for recurring shapes may be made; drops one that idles where that is needed.
    fn make_room(&mut self) -> bool {
        if self.reports.len() >= MAX_MADE {
            return false;
        }
        let holds = |w: &Watched| !w.broken && matches!(w.standing, Standing::Special { .. } | Standing::Trial { .. });
        if self.watched.iter().filter(|w| holds(w)).count() < MAX_KEPT {
            return true;
        }
        let used = |w: &Watched| match w.standing {
            Standing::Special { used, .. } if !w.broken => Some(used),
            _ => None,
        };
        let oldest = (0..self.watched.len())
            .filter_map(|k| Some((used(&self.watched[k])?, k)))
            .min();
        match oldest {
            Some((used, at)) if used + IDLE_CALLS < self.calls => {
                self.settle(at, Verdict::Idle, Standing::Settled);
                true
            }
            _ => false,
        }
    }
}
