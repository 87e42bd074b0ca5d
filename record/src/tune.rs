//! Choices of schedules by measurement: what [`CompileOptions::tuned`] takes.
//!
//! A graph is compiled again and again, each time with another candidate of one choice of every kernel at once, for kernels do not change
//! each other's schedules. The steps of such a trial are timed in turns with those of the best choices so far, and a candidate is kept that
//! takes clearly less. In the end calculated and tuned choices are timed in turns twice more, and of each kernel the tuned ones stay only if they are
//! faster each time: of many candidates that are as fast as each other some measure less by luck.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::{FxHashMap, FxHashSet};
use tlc_ir::plan::{Plan, Step};
use tlc_ir::tensor::TensorError;
use tlc_ir::{Graph as IrGraph, HostTensor};
use tlc_passes::planner::Planned;
use tlc_passes::tuning::{Choice, KernelKey, Pin, Pins, Tunable};
use tlc_runtime::driver::{LoopTime, RunError, StepTime};

use crate::compile::{BuildError, CompileOptions, Device, Executable, Input, OutputMut, Specialize, compile_pinned};
use crate::tuned::{Tuned, TunedKernel, here};

/// A kernel that takes less than this share of a call is left alone.
const LEAST_SHARE: f64 = 0.005;
/// A candidate must take at most this of the time of the best so far.
const WORTH: f64 = 0.97;
/// Tuned choices stay if they take at most this of the time of those that are calculated.
const CONFIRMED: f64 = 0.985;
/// Calls that a trial is timed for, at least and at most, and about how long.
const CALLS: [usize; 2] = [7, 60];
const TRIAL: Duration = Duration::from_millis(150);
/// The part of the time that the last comparisons may take.
const CONFIRMING: f64 = 0.2;

/// What was found.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// The kernels whose choices are faster otherwise.
    pub tuned: Tuned,
    /// Every kernel whose choices were looked at, those that take most of a call first.
    pub kernels: Vec<KernelTuning>,
    /// Nanoseconds of a call, with the choices that are calculated and with those that were found.
    pub call_ns: [f64; 2],
    /// Candidates that were timed.
    pub tried: usize,
    /// Whether all candidates were timed: there was time enough.
    pub complete: bool,
}

/// What was found of one kernel.
#[derive(Clone, Debug)]
pub struct KernelTuning {
    /// What the kernel is known by.
    pub kernel: KernelKey,
    /// What it computes.
    pub label: String,
    /// Its steps in a call, those in the bodies of loops once.
    pub steps: usize,
    /// Nanoseconds that they take in a call together, as calculated and as tuned.
    pub ns: [f64; 2],
    /// The choices that are made in another way than calculated.
    pub choices: Vec<Pin>,
    /// The candidates there were.
    pub candidates: usize,
}

/// Why nothing could be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TuneError {
    /// The graph cannot be compiled.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// It cannot be run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// There is no memory for its results.
    #[error(transparent)]
    Memory(#[from] TensorError),
    /// Kernels of GPUs have no choices that can be pinned.
    #[error("kernels of {0} cannot be tuned; expected the processor")]
    Device(Device),
    /// A candidate computes other bits, which is a bug in tlc.
    #[error("a bug in tlc: {label} computes other results with {pin}")]
    OtherBits {
        /// What the kernel computes.
        label: String,
        /// The candidate.
        pin: Pin,
    },
}

/// Finds faster choices for the kernels of a graph by running it on the given inputs, for about so long. Sizes that are symbols are tuned for those of the
/// inputs. `progress` is called with the part of the time that is over. Choices of `options.tuned` are where it begins.
///
/// # Errors
/// [`TuneError`].
pub fn tune(
    graph: &IrGraph,
    options: &CompileOptions,
    inputs: &[Input<'_>],
    time: Duration,
    progress: &mut dyn FnMut(f64),
) -> Result<Tuning, TuneError> {
    if options.device != Device::Cpu {
        return Err(TuneError::Device(options.device));
    }
    let begin = Instant::now();
    let mut search = Search {
        graph,
        options,
        inputs,
        subjects: Vec::new(),
        tried: 0,
    };
    let mut calculated = search.compiled(&Pins::default())?;
    let mut pins = options.tuned.as_deref().map(Tuned::pins).unwrap_or_default();
    search.subjects = subjects(&mut calculated, inputs, &pins)?;
    let mut best = search.compiled(&pins)?;
    let enough = time.mul_f64(1.0 - CONFIRMING);
    let complete = loop {
        progress(begin.elapsed().as_secs_f64() / time.as_secs_f64().max(f64::MIN_POSITIVE));
        if begin.elapsed() >= enough {
            break false;
        }
        match search.round(&mut best, &pins)? {
            Round::Done => break true,
            Round::Same => {}
            Round::Better(better) => {
                pins = better;
                best = search.compiled(&pins)?;
            }
        }
    };
    drop(best);
    let left = time.saturating_sub(begin.elapsed()).max(TRIAL);
    search.confirmed(&mut calculated, &pins, left, complete)
}

/// A kernel whose choices are looked at.
struct Subject {
    key: KernelKey,
    label: String,
    steps: usize,
    pins: Vec<Pin>,
    tested: FxHashSet<(Tunable, u32, i64)>,
    candidates: usize,
}

/// What a round of trials has come to.
enum Round {
    /// Some kernels are better with these.
    Better(Pins),
    /// None is.
    Same,
    /// There was nothing left to try.
    Done,
}

struct Search<'a> {
    graph: &'a IrGraph,
    options: &'a CompileOptions,
    inputs: &'a [Input<'a>],
    subjects: Vec<Subject>,
    tried: usize,
}

/// An executable with memory for its results.
struct Timed {
    executable: Executable,
    outputs: Vec<HostTensor>,
    times: Vec<StepTime>,
}

impl Timed {
    /// Nanoseconds of each kernel in one call.
    fn call(&mut self, inputs: &[Input<'_>]) -> Result<FxHashMap<KernelKey, f64>, RunError> {
        let mut outputs: Vec<OutputMut<'_>> = self.outputs.iter_mut().map(OutputMut::from).collect();
        self.times.clear();
        let loops = self.executable.run_profiled(inputs, &mut outputs, &mut self.times)?;
        let mut steps = vec![0.0; self.executable.plan().steps.len()];
        for t in &self.times {
            if let Some(ns) = steps.get_mut(t.step) {
                *ns += t.ns as f64;
            }
        }
        let mut sums = FxHashMap::default();
        let planned = &self.executable.decisions().planned;
        add_times(self.executable.plan(), planned, &steps, &loops, &mut sums);
        Ok(sums)
    }
}

/// Adds up what the kernels of a plan took in a call whose steps took so many nanoseconds. A step of several kernels counts for the first.
fn add_times(plan: &Plan, planned: &Planned, steps: &[f64], loops: &[LoopTime], sums: &mut FxHashMap<KernelKey, f64>) {
    let once: usize = plan.init.iter().map(|s| s.launches().len()).sum();
    let mut reports = planned.launches.iter().skip(once);
    let is_loop = |s: &&Step| matches!(s, Step::Loop(_));
    let mut bodies = planned.bodies.iter().skip(plan.init.iter().filter(is_loop).count());
    for (number, (step, ns)) in plan.steps.iter().zip(steps).enumerate() {
        let own: Vec<_> = reports.by_ref().take(step.launches().len()).collect();
        if let Some(key) = own.first().and_then(|r| r.key) {
            *sums.entry(key).or_default() += ns;
        }
        if let Step::Loop(l) = step
            && let Some(body) = bodies.next()
            && let Some(time) = loops.iter().find(|t| t.step == number)
        {
            let steps: Vec<f64> = time.steps.iter().map(|ns| *ns as f64).collect();
            add_times(&l.body, &body.planned, &steps, &time.loops, sums);
        }
    }
}

/// Calls `each` with every launch of a plan and of its loops' bodies that runs in a call: its key, its label, and its choices.
fn for_each_launch(plan: &Plan, planned: &Planned, each: &mut dyn FnMut(KernelKey, &str, &[Choice])) {
    let once: usize = plan.init.iter().map(|s| s.launches().len()).sum();
    let launches = plan.steps.iter().flat_map(Step::launches);
    for (launch, report) in launches.zip(planned.launches.iter().skip(once)) {
        if let Some(key) = report.key {
            each(key, &launch.label, &report.schedule.choices);
        }
    }
    let is_loop = |s: &&Step| matches!(s, Step::Loop(_));
    let bodies = planned.bodies.iter().skip(plan.init.iter().filter(is_loop).count());
    let loops = plan.steps.iter().filter_map(|s| match s {
        Step::Loop(l) => Some(l),
        _ => None,
    });
    for (l, body) in loops.zip(bodies) {
        for_each_launch(&l.body, &body.planned, each);
    }
}

/// The kernels of an executable that take a share of a call and have choices, those that take most first.
fn subjects(calculated: &mut Timed, inputs: &[Input<'_>], pins: &Pins) -> Result<Vec<Subject>, RunError> {
    let mut times = Times::default();
    for _ in 0..CALLS[0] {
        times.add(0, &calculated.call(inputs)?);
    }
    let all: f64 = times.kernels().map(|key| times.of(key)[0]).sum();
    let mut found: Vec<Subject> = Vec::new();
    let executable = &calculated.executable;
    for_each_launch(
        executable.plan(),
        &executable.decisions().planned,
        &mut |key, label, choices| {
            if choices.is_empty() || times.of(key)[0] < all * LEAST_SHARE {
                return;
            }
            match found.iter_mut().find(|s| s.key == key) {
                Some(known) => known.steps += 1,
                None => found.push(Subject {
                    key,
                    label: label.to_string(),
                    steps: 1,
                    pins: pins.of(key).to_vec(),
                    tested: FxHashSet::default(),
                    candidates: choices.iter().map(|c| c.candidates.len() - 1).sum(),
                }),
            }
        },
    );
    found.sort_by(|a, b| times.of(b.key)[0].total_cmp(&times.of(a.key)[0]));
    Ok(found)
}

/// Nanoseconds of kernels in the calls of two executables.
#[derive(Default)]
struct Times {
    of: FxHashMap<KernelKey, [Vec<f64>; 2]>,
}

impl Times {
    fn add(&mut self, which: usize, call: &FxHashMap<KernelKey, f64>) {
        for (key, ns) in call {
            self.of.entry(*key).or_default()[which].push(*ns);
        }
    }

    fn kernels(&self) -> impl Iterator<Item = KernelKey> {
        self.of.keys().copied()
    }

    /// The time of a kernel by each executable: the first quartile, for what disturbs a call makes it longer.
    fn of(&self, key: KernelKey) -> [f64; 2] {
        match self.of.get(&key) {
            Some(both) => [quartile(&both[0]), quartile(&both[1])],
            None => [0.0; 2],
        }
    }
}

/// The first quartile; 0 of nothing.
fn quartile(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 4).copied().unwrap_or(0.0)
}

impl Search<'_> {
    /// Compiles the graph with these choices and runs it a few times. Without versions for fixed sizes, for it is this code that is measured.
    fn compiled(&self, pins: &Pins) -> Result<Timed, TuneError> {
        let options = CompileOptions {
            specialize: Specialize::Never,
            ..self.options.clone()
        };
        let executable = compile_pinned(self.graph, &options, Arc::new(pins.clone()))?;
        let shapes = executable.output_shapes(self.inputs)?;
        let types = executable.plan().outputs.iter().map(|o| o.ty.dtype);
        let outputs = types.zip(&shapes).map(|(dtype, shape)| HostTensor::zeros(dtype, shape));
        let outputs = outputs.collect::<Result<_, _>>()?;
        let mut timed = Timed {
            executable,
            outputs,
            times: Vec::new(),
        };
        timed.call(self.inputs)?;
        timed.executable.place_constants();
        timed.call(self.inputs)?;
        Ok(timed)
    }

    /// Times the calls of two executables in turns for about so long. Besides what kernels take, a call as a whole.
    fn in_turns(&self, both: [&mut Timed; 2], time: Duration) -> Result<(Times, [f64; 2]), RunError> {
        let (mut times, mut calls) = (Times::default(), [Vec::new(), Vec::new()]);
        let begin = Instant::now();
        while calls[1].len() < CALLS[0] || (calls[1].len() < CALLS[1] && begin.elapsed() < time) {
            for which in 0..2 {
                let start = Instant::now();
                times.add(which, &both[which].call(self.inputs)?);
                calls[which].push(start.elapsed().as_nanos() as f64);
            }
        }
        Ok((times, calls.map(|all| quartile(&all))))
    }

    /// Tries the next candidate of each kernel against the best so far.
    fn round(&mut self, best: &mut Timed, pins: &Pins) -> Result<Round, TuneError> {
        let mut choices: FxHashMap<KernelKey, Vec<Choice>> = FxHashMap::default();
        let executable = &best.executable;
        for_each_launch(
            executable.plan(),
            &executable.decisions().planned,
            &mut |key, _, made| {
                choices.entry(key).or_insert_with(|| made.to_vec());
            },
        );
        let mut trial = pins.clone();
        let mut proposed: Vec<(usize, Pin)> = Vec::new();
        for (number, subject) in self.subjects.iter_mut().enumerate() {
            let next = choices.get(&subject.key).and_then(|made| subject.next(made));
            if let Some(pin) = next {
                trial.set(subject.key, with_pin(&subject.pins, pin));
                proposed.push((number, pin));
            }
        }
        if proposed.is_empty() {
            return Ok(Round::Done);
        }
        let mut tried = self.compiled(&trial)?;
        self.tried += proposed.len();
        if !same_bits(&best.outputs, &tried.outputs) {
            return Err(self.guilty(best, pins, &proposed)?);
        }
        let (times, _) = self.in_turns([best, &mut tried], TRIAL)?;
        let mut better = None;
        for (number, pin) in proposed {
            let subject = &mut self.subjects[number];
            let [before, after] = times.of(subject.key);
            if after < before * WORTH {
                subject.pins = with_pin(&subject.pins, pin);
                let all = better.get_or_insert_with(|| pins.clone());
                all.set(subject.key, subject.pins.clone());
            }
        }
        Ok(better.map_or(Round::Same, Round::Better))
    }

    /// Which of the candidates of a trial computes other results than the best so far.
    fn guilty(&self, best: &Timed, pins: &Pins, proposed: &[(usize, Pin)]) -> Result<TuneError, TuneError> {
        let mut found = proposed[0];
        for &(number, pin) in proposed {
            let subject = &self.subjects[number];
            let mut alone = pins.clone();
            alone.set(subject.key, with_pin(&subject.pins, pin));
            if !same_bits(&best.outputs, &self.compiled(&alone)?.outputs) {
                found = (number, pin);
                break;
            }
        }
        Ok(TuneError::OtherBits {
            label: self.subjects[found.0].label.clone(),
            pin: found.1,
        })
    }

    /// Times what was found against what is calculated twice more, and drops what is not better each time.
    fn confirmed(
        mut self,
        calculated: &mut Timed,
        pins: &Pins,
        time: Duration,
        complete: bool,
    ) -> Result<Tuning, TuneError> {
        let mut pins = pins.clone();
        let mut last = (Times::default(), [0.0; 2]);
        for _ in 0..2 {
            let mut tuned = self.compiled(&pins)?;
            last = self.in_turns([calculated, &mut tuned], time / 2)?;
            for subject in &mut self.subjects {
                let [before, after] = last.0.of(subject.key);
                if after > before * CONFIRMED {
                    subject.pins.clear();
                    pins.set(subject.key, Vec::new());
                }
            }
        }
        let (times, call_ns) = last;
        let (cpu, level) = here();
        let threads = calculated.executable.target().threads;
        let mut tuned = self.options.tuned.as_deref().cloned().unwrap_or_default();
        let kernels = self.subjects.into_iter().map(|subject| {
            let ns = times.of(subject.key);
            match subject.pins.is_empty() {
                true => tuned.forget(&cpu, level, subject.key),
                false => tuned.insert(TunedKernel {
                    cpu: cpu.clone(),
                    level: level.into(),
                    threads,
                    kernel: subject.key,
                    label: subject.label.clone(),
                    choices: subject.pins.clone(),
                    ns,
                }),
            }
            KernelTuning {
                kernel: subject.key,
                label: subject.label,
                steps: subject.steps,
                ns,
                choices: subject.pins,
                candidates: subject.candidates,
            }
        });
        Ok(Tuning {
            kernels: kernels.collect(),
            tuned,
            call_ns,
            tried: self.tried,
            complete,
        })
    }
}

impl Subject {
    /// The next candidate of one of the choices that were made which was not tried yet.
    fn next(&mut self, made: &[Choice]) -> Option<Pin> {
        let mut ordinals: FxHashMap<Tunable, u32> = FxHashMap::default();
        for choice in made {
            let count = ordinals.entry(choice.tunable).or_default();
            let ordinal = *count;
            *count += 1;
            self.tested.insert((choice.tunable, ordinal, choice.value));
            for &value in &choice.candidates {
                if self.tested.insert((choice.tunable, ordinal, value)) {
                    return Some(Pin {
                        tunable: choice.tunable,
                        ordinal,
                        value,
                    });
                }
            }
        }
        None
    }
}

/// Pins with one more, in place of another about the same choice.
fn with_pin(pins: &[Pin], pin: Pin) -> Vec<Pin> {
    let others = pins
        .iter()
        .filter(|p| (p.tunable, p.ordinal) != (pin.tunable, pin.ordinal));
    others.copied().chain([pin]).collect()
}

/// Whether results are the same, bit for bit.
fn same_bits(a: &[HostTensor], b: &[HostTensor]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.bytes() == b.bytes())
}
