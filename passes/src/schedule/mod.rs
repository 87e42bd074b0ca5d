//! Scheduling: how a naive nest is made to run fast on a target.
//!
//! The policy reads the nest and the target, and applies [`Directive`]s one after another; the applied list, each with its
//! reason, is the schedule, kept for `explain` and replay. A directive that refuses is not an error: why is noted and the
//! nest stays as it is.

mod accumulators;
mod across;
mod again;
mod beside_rows;
mod cascade;
mod cases;
mod columns;
mod contract;
mod cover;
mod direct;
pub mod directives;
mod elementwise;
mod flops;
mod gpu;
mod gpu_columns;
mod gpu_rows;
pub mod hoist;
mod hold;
mod inward;
mod keep;
mod lanes;
mod lengthen;
mod narrow;
mod over;
mod own;
mod pack;
mod peel;
mod phases;
mod pipeline;
mod prefetch;
mod product_rows;
mod product_tiles;
mod reason;
mod region;
mod residents;
mod rows;
mod rows_apart;
mod rows_by_warps;
mod share_loads;
mod share_rows;
mod slide;
mod spread;
mod stage;
mod swizzle;
mod tensor_cores;
mod threads;
mod tile_columns;
mod tile_rows;
mod tile_sum;
mod tile_threads;
mod transposition;
mod vectorize;
mod warps;
mod windows;

use tlc_ir::DType;
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::{Bind, Kernel, MAX_STATEMENTS, Stmt};
use tlc_ir::target::{Cpu, Emitter, EmitterId, Target};

pub use crate::directive::{Directive, DirectiveRefusal};
pub use directives::apply;
pub(crate) use flops::moved_bytes;
pub use lanes::ScalarReason;
pub use reason::{Applied, Refused, ScheduleReason};

use keep::{Room, keep_rows};

use crate::legalize::legal_statements;
use crate::lower::{Form, Nest};
use crate::tuning::{Choice, Pin, Pinned, Tunable};

/// What was done to a nest.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// The directives, in order.
    pub applied: Vec<Applied>,
    /// Directives that did not apply.
    pub refused: Vec<Refused>,
    /// Vector lanes of each innermost loop, or why it has none.
    pub inner: Vec<Result<u32, ScalarReason>>,
    /// Floating-point operations of what is computed, a transcendental counting 20.
    pub flops: IndexExpr,
    /// Choices among candidates, in order. They are noted where they may be pinned ([`schedule`]), and else not.
    pub choices: Vec<Choice>,
}

impl Default for Schedule {
    fn default() -> Schedule {
        Schedule {
            applied: Vec::new(),
            refused: Vec::new(),
            inner: Vec::new(),
            flops: IndexExpr::ZERO,
            choices: Vec::new(),
        }
    }
}

impl Schedule {
    fn note(&mut self, directive: Directive, reason: ScheduleReason) {
        self.applied.push(Applied { directive, reason });
    }
}

/// Legalized statements that a schedule may make of a kernel, loops unrolled. The rest up to [`MAX_STATEMENTS`] is for what
/// legalization makes of several copies at once.
const MOST_STATEMENTS: u64 = MAX_STATEMENTS * 4 / 5;

struct Scheduler<'t> {
    kernel: Kernel,
    cpu: &'t Cpu,
    /// What makes the kernel.
    emitter: &'t Emitter,
    schedule: Schedule,
    /// Whether directives are refused that make the kernel larger than [`MOST_STATEMENTS`].
    bounded: bool,
    /// Bits of a whole vector.
    vector_bits: u32,
    /// Why the directives that come next are applied.
    why: ScheduleReason,
    /// Bytes of each row that are kept from phase to phase.
    kept_bytes: i64,
    /// Whether a loop runs the kernel again and again.
    again: bool,
    /// Whether sums whose length is known are added up in the blocks of sums whose length is not.
    alike: bool,
    /// Whether long sums are in blocks already.
    cascaded: bool,
    /// Loops of sums that are.
    in_blocks: Vec<VarId>,
    /// What choices are to be, where they may be pinned.
    pinned: Option<Pinned<'t>>,
}

/// Schedules a nest for one of the emitters of a target, which is to make the kernel. Where choices may be pinned, they are as `pins` say.
pub fn schedule(nest: &Nest, target: &Target, emitter: EmitterId, pins: Option<&[Pin]>) -> (Kernel, Schedule) {
    let cpu = match target {
        Target::Cpu(cpu) => cpu,
        Target::Gpu(gpu) => return gpu::schedule(nest, gpu),
    };
    let emitter = &cpu.emitter(emitter).table;
    let pinned = pins.map(Pinned);
    let (kernel, made) = scheduled(nest, cpu, emitter, pinned, false);
    // Nearly every kernel is small. For the others each directive is looked at: one that copies too much is refused.
    match legal_statements(&kernel) > MOST_STATEMENTS {
        true => scheduled(nest, cpu, emitter, pinned, true),
        false => (kernel, made),
    }
}

/// Whether the phases of a nest meet the same elements soon after each other. Sums of columns that are walked several times
/// from end to end do not.
fn keeps_rows(nest: &Nest) -> bool {
    match nest.form {
        Form::Rows => true,
        Form::Columns => nest.column_local,
        // These are apart from the products first.
        Form::ProductRows { .. } => false,
        Form::Elementwise | Form::Serial | Form::Updates | Form::Tiles => false,
    }
}

fn scheduled<'t>(
    nest: &Nest,
    cpu: &'t Cpu,
    emitter: &'t Emitter,
    pinned: Option<Pinned<'t>>,
    bounded: bool,
) -> (Kernel, Schedule) {
    let mut s = Scheduler {
        kernel: nest.kernel.clone(),
        cpu,
        emitter,
        schedule: Schedule::default(),
        bounded,
        vector_bits: emitter.vector_bits,
        why: ScheduleReason::OneRange,
        kept_bytes: 0,
        again: nest.again,
        alike: false,
        cascaded: false,
        in_blocks: Vec::new(),
        pinned,
    };
    if keeps_rows(nest) {
        let room = Room {
            operands: nest.column_local,
            fits: &|_, _| Ok(()),
        };
        s.kept_bytes = keep_rows(&mut s.kernel, &mut s.schedule, &nest.parallel, &room);
    }
    s.schedule.flops = flops::flops(&s.kernel);
    match nest.form {
        Form::Elementwise => s.elementwise(&nest.parallel),
        Form::Rows | Form::Columns if !nest.of_vector && s.direct(&nest.parallel) => {}
        Form::Rows => s.rows(&nest.parallel),
        Form::Columns => s.columns(nest),
        // Rows behind products are a GPU's; elsewhere they are what they mean.
        Form::Serial if s.scans_side_by_side(&nest.parallel) => {}
        Form::Serial | Form::ProductRows { .. } => {
            s.parallel(&nest.parallel);
            s.schedule.inner.push(Err(ScalarReason::Recurrence));
        }
        Form::Updates => {
            s.parallel(&nest.parallel);
            s.updates();
        }
        Form::Tiles => {
            s.parallel(&nest.parallel);
            s.schedule.inner.push(Ok(emitter.lanes(DType::F32) as u32));
        }
    }
    s.cascades();
    hoist::hoist(&mut s.kernel);
    (s.kernel, s.schedule)
}

/// The loops that are perfectly nested inside of the condition under which an update applies, outermost first.
fn loops_around_store(body: &[Stmt]) -> Vec<VarId> {
    // What is in front of them computes where the update goes.
    match body.last() {
        Some(Stmt::If { body, .. }) => match &body[..] {
            [Stmt::Loop { var, body, .. }] => perfect_nest(body, *var),
            _ => Vec::new(),
        },
        Some(Stmt::Loop { body, .. }) => loops_around_store(body),
        _ => Vec::new(),
    }
}

/// A loop with this body, and those that are perfectly nested in it.
fn perfect_nest(body: &[Stmt], var: VarId) -> Vec<VarId> {
    let mut out = vec![var];
    if let [Stmt::Loop { var, body, .. }] = body {
        out.extend(perfect_nest(body, *var));
    }
    out
}

/// Fuses neighbouring loops, innermost first, where no division remains.
fn fuse_clean(kernel: &mut Kernel, schedule: &mut Schedule, loops: &[VarId]) -> Vec<VarId> {
    let mut left = loops.to_vec();
    let mut i = left.len();
    while i >= 2 {
        i -= 1;
        let (outer, inner) = (left[i - 1], left[i]);
        if let Ok(made) = directives::fuse_clean(kernel, outer, inner) {
            schedule.note(Directive::Fuse { outer, inner }, ScheduleReason::OneWalk);
            left.splice(i - 1..=i, made);
        }
    }
    left
}

impl Scheduler<'_> {
    /// Names the reason of the directives that follow.
    fn because(&mut self, reason: ScheduleReason) -> &mut Self {
        self.why = reason;
        self
    }

    /// Makes a choice: what the model says, or what is pinned.
    fn choose<I: IntoIterator<Item = i64>>(
        &mut self,
        tunable: Tunable,
        model: i64,
        candidates: impl FnOnce(&Self) -> I,
    ) -> i64 {
        let Some(pinned) = self.pinned else { return model };
        let candidates = candidates(self);
        pinned.choose(&mut self.schedule.choices, tunable, model, candidates)
    }

    fn apply(&mut self, directive: Directive) -> Option<Vec<VarId>> {
        let before = self.bounded.then(|| self.kernel.clone());
        let mut applied = apply(&mut self.kernel, &directive);
        if let Some(before) = before {
            let statements = legal_statements(&self.kernel);
            if statements > MOST_STATEMENTS && statements > legal_statements(&before) {
                self.kernel = before;
                applied = Err(DirectiveRefusal::Statements { statements });
            }
        }
        match applied {
            Ok(made) => {
                self.schedule.note(directive, self.why);
                Some(made)
            }
            Err(refusal) => {
                self.schedule.refused.push(Refused {
                    directive,
                    reason: self.why,
                    refusal,
                });
                None
            }
        }
    }

    /// Has the sum of one loop added up in blocks if it is long, as that of a row of vectors is.
    fn cascades_of_row(&mut self, var: VarId) {
        let apply = |s: &mut Self, directive, reason| s.because(reason).apply(directive);
        let made = cascade::cascades_of(self, var, |s| &s.kernel, apply);
        self.in_blocks.extend(made);
    }

    /// Has long sums added up in blocks.
    fn cascades(&mut self) {
        if std::mem::replace(&mut self.cascaded, true) {
            return;
        }
        let apply = |s: &mut Self, directive, reason| s.because(reason).apply(directive);
        let done = std::mem::take(&mut self.in_blocks);
        cascade::cascades(self, (self.alike, &done), |s| &s.kernel, apply);
    }

    /// Vectorizes the loops over the elements of an update, which are apart from each other.
    fn updates(&mut self) {
        let loops = self.fuse_clean(&loops_around_store(&self.kernel.body));
        match loops.last() {
            Some(&row) => self.vectorize(row),
            None => self.schedule.inner.push(Err(ScalarReason::Recurrence)),
        }
    }

    /// Fuses neighbouring loops where no division remains.
    fn fuse_clean(&mut self, loops: &[VarId]) -> Vec<VarId> {
        fuse_clean(&mut self.kernel, &mut self.schedule, loops)
    }

    /// Makes one parallel loop of the given perfectly nested loops; divisions are paid once per iteration.
    fn parallel(&mut self, loops: &[VarId]) -> Option<VarId> {
        let mut left = self.fuse_clean(loops);
        self.because(ScheduleReason::OneRange);
        while left.len() >= 2 {
            let (outer, inner) = (left[0], left[1]);
            let made = match self.kernel.extents[inner.0 as usize].interval(&self.kernel).lo > 0 {
                true => self.apply(Directive::Fuse { outer, inner }),
                // A loop that stayed below would keep what is inside it from lanes.
                false => self.apply(Directive::FuseGuarded { outer, inner }),
            };
            match made {
                Some(made) => drop(left.splice(0..=1, made)),
                None => break,
            }
        }
        let first = *left.first()?;
        self.apply(Directive::Bind {
            var: first,
            bind: Bind::Parallel,
        });
        Some(first)
    }

    /// The perfect nests of serial loops below the outermost parallel loop (or at the top), outermost first each.
    fn inner_nests(&self) -> Vec<Vec<VarId>> {
        let body = match &self.kernel.body[..] {
            [
                Stmt::Loop {
                    bind: Bind::Parallel,
                    body,
                    ..
                },
            ] => body,
            _ => &self.kernel.body,
        };
        let mut nests = Vec::new();
        for s in body {
            match s {
                Stmt::Loop { var, body, .. } => nests.push(perfect_nest(body, *var)),
                // Cases, each of which has loops of its own.
                Stmt::If { body, .. } => nests.extend(body.iter().filter_map(|s| match s {
                    Stmt::Loop { var, body, .. } => Some(perfect_nest(body, *var)),
                    _ => None,
                })),
                _ => {}
            }
        }
        nests
    }
}
