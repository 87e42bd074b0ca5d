//! The kernels of a cluster of loops: nests that lowering makes of it, scheduled and legalized, each once for all that are equal; and their launches.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use rustc_hash::FxHasher;
use smallvec::SmallVec;
use tlc_ir::DType;
use tlc_ir::index::{IndexExpr, IndexNode, SymId};
use tlc_ir::kernel::{Access, Grid, Kernel};
use tlc_ir::plan::verify::InPlace;
use tlc_ir::plan::{DeviceId, KernelId, Launch, SlotId, Step, Work};
use tlc_ir::target::EmitterId;
use tlc_ir::{Precision, Target};

use super::alike::Outline;
use super::{Planner, cluster_label, share};
use crate::cluster::Cluster;
use crate::directive::Directive;
use crate::launch::LaunchReport;
use crate::legalize::legalize_as;
use crate::lower::{Arg, Form, Nest, lower, lower_rows_apart};
use crate::made::is_changed;
use crate::schedule::{Schedule, moved_bytes, schedule};
use crate::tuning::{KernelKey, Pinned};

/// A kernel that was scheduled and legalized before.
#[derive(Clone)]
pub(super) struct Known {
    pub(super) kernel: KernelId,
    pub(super) schedule: Arc<Schedule>,
    /// Before legalization.
    pub(super) scheduled: Arc<Kernel>,
    /// Parameter pairs that may be one buffer, on the naive nest and on the final kernel.
    pub(super) in_place: Vec<(u32, u32)>,
    /// Bytes that it moves, over the kernel's symbols.
    pub(super) bytes: IndexExpr,
    /// What it is known by to those who pin its choices, where that may be done.
    pub(super) key: Option<KernelKey>,
    /// Picoseconds of the least work that is handed to another thread.
    pub(super) least_work: i64,
}

/// What is made of a nest, over the values of a cluster.
#[derive(Clone)]
pub(super) struct Ready {
    pub(super) args: Vec<Arg>,
    /// By parameter: whether it is written.
    pub(super) written: Vec<bool>,
    /// What the cluster's nests leave for each other that this one is the first to name, by number.
    pub(super) temporaries: Vec<(DType, IndexExpr)>,
    /// What each symbol of the kernel stands for.
    pub(super) symbols: Vec<IndexExpr>,
    pub(super) form: Form,
    pub(super) copies: bool,
    pub(super) known: Known,
}

/// What a schedule depends on besides the naive kernel.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Setting {
    pub(super) device: DeviceId,
    pub(super) emitter: EmitterId,
    pub(super) form: Form,
    pub(super) columns: usize,
    pub(super) column_local: bool,
    pub(super) column_blocks: bool,
    pub(super) precision: Precision,
}

/// Naive kernels of one hash, with the setting and what was made of them there.
pub(super) type Nests = SmallVec<[(Kernel, Setting, Known); 1]>;

impl Planner<'_> {
    /// The kernels of a cluster of loops: those of one that was equal to it, or its own.
    pub(super) fn ready(&mut self, c: &Cluster, is_root: &[bool], device: DeviceId, target: &Target) -> Vec<Ready> {
        let outline = Outline::of(self.graph, c, is_root, device, &mut self.places);
        if let Some(ready) = outline.as_ref().and_then(|o| self.alike.find(self.graph, o)) {
            if cfg!(debug_assertions) && !is_changed() {
                self.is_what_lowering_makes(c, is_root, (device, target), &ready);
            }
            return vec![ready];
        }
        let emitter = target.emitter(c.emitter.emitter);
        let nests = lower(
            self.graph,
            c,
            is_root,
            self.placement.precision().of_products(),
            Some(emitter),
        );
        self.lowered += nests.len();
        // A view that lies where its operand does, which another device computes once, is copied from there.
        let writes = |nest: &Nest| nest.kernel.params.iter().any(|p| p.access != Access::Read);
        let mut left = 0;
        let nests = nests.into_iter().filter(writes);
        let all: Vec<Ready> = nests
            .map(|nest| self.prepared(nest, c, (device, target), &mut left))
            .collect();
        if all
            .iter()
            .any(|r| matches!(r.form, Form::ProductRows { .. }) && !has_tiles(&r.known.schedule))
        {
            let precision = self.placement.precision().of_products();
            let nests = lower_rows_apart(self.graph, c, is_root, precision).into_iter();
            let mut left = 0;
            return nests
                .map(|nest| self.prepared(nest, c, (device, target), &mut left))
                .collect();
        }
        if let (Some(outline), [ready]) = (outline, &all[..]) {
            self.alike.keep(outline, ready);
        }
        all
    }

    /// Checks that of a cluster's own nest the same would have been made as it shares, over the same values.
    fn is_what_lowering_makes(
        &mut self,
        c: &Cluster,
        is_root: &[bool],
        (device, target): (DeviceId, &Target),
        shared: &Ready,
    ) {
        let emitter = target.emitter(c.emitter.emitter);
        let mut nests = lower(
            self.graph,
            c,
            is_root,
            self.placement.precision().of_products(),
            Some(emitter),
        );
        let nest = nests.pop().expect("a cluster of loops has a nest");
        let text = nest.kernel.to_string();
        let own = self.prepared(nest, c, (device, target), &mut 0);
        let same = Arc::ptr_eq(&own.known.schedule, &shared.known.schedule) && own.known.kernel == shared.known.kernel;
        let what = |r: &Ready| (r.args.clone(), r.written.clone(), r.symbols.clone(), r.form, r.copies);
        assert!(
            nests.is_empty() && same && what(&own) == what(shared) && own.temporaries == shared.temporaries,
            "shared with a cluster that is not alike: {text}"
        );
    }

    /// What is made of a nest of a cluster, of which those before have left so many temporaries.
    fn prepared(
        &mut self,
        mut nest: Nest,
        c: &Cluster,
        (device, target): (DeviceId, &Target),
        left: &mut u32,
    ) -> Ready {
        let emitter = c.emitter.emitter;
        let mut temporaries = Vec::new();
        for (arg, param) in nest.args.iter().zip(&nest.kernel.params) {
            if matches!(arg, Arg::Temporary(number) if number == left) {
                temporaries.push((param.dtype, param.len.clone()));
                *left += 1;
            }
        }
        nest.again = self.inside;
        let symbols = compact_symbols(&mut nest.kernel);
        let setting = Setting {
            device,
            emitter,
            form: nest.form,
            columns: nest.columns,
            column_local: nest.column_local,
            column_blocks: nest.column_blocks,
            precision: nest.precision,
        };
        let hash = hash_of(&nest.kernel);
        let known = match self.known(hash, &nest.kernel, &setting) {
            Some(known) => known.clone(),
            None => self.scheduled(&nest, hash, setting, target),
        };
        Ready {
            temporaries,
            written: nest.kernel.params.iter().map(|p| p.access != Access::Read).collect(),
            args: nest.args,
            symbols,
            form: nest.form,
            copies: nest.copies,
            known,
        }
    }

    /// Schedules and legalizes a nest that is equal to none before it.
    fn scheduled(&mut self, nest: &Nest, hash: u64, setting: Setting, target: &Target) -> Known {
        let emitter = setting.emitter;
        let pins = self.placement.pins();
        let key = match target {
            Target::Cpu(cpu) => {
                let again = nest.again;
                let setting = format_args!("{setting:?}{again}{}", cpu.threads);
                pins.map(|_| KernelKey::of(&nest.kernel, setting))
            }
            Target::Gpu(_) => None,
        };
        let pins = key.and_then(|key| Some(pins?.of(key)));
        let (mut kernel, mut made) = schedule(nest, target, emitter, pins);
        let threads = match target {
            Target::Cpu(cpu) => cpu.threads,
            Target::Gpu(_) => 1,
        };
        let pinned = pins
            .filter(|_| threads > 1)
            .map(|pins| (Pinned(pins), &mut made.choices));
        let least_work = share::least_work(threads, pinned);
        let scheduled = Arc::new(kernel.clone());
        legalize_as(&mut kernel, target.emitter(emitter), self.placement.precision());
        // Proven twice: the nest by construction, the scheduled kernel by the verifier's rule.
        let mut in_place = nest.in_place.clone();
        if !in_place.is_empty() {
            let proof = InPlace::of(&kernel);
            in_place.retain(|&(r, w)| proof.runs(r, w));
        }
        let known = Known {
            kernel: self.intern(kernel, setting.device, emitter),
            schedule: Arc::new(made),
            scheduled,
            in_place,
            bytes: moved_bytes(&nest.kernel),
            key,
            least_work,
        };
        let on = self.known.entry(hash).or_default();
        on.push((nest.kernel.clone(), setting, known.clone()));
        known
    }

    /// Appends the launch of what is made of a nest.
    pub(super) fn launch(
        &mut self,
        number: usize,
        c: &Cluster,
        (device, target): (DeviceId, &Target),
        ready: Ready,
        temporaries: &[SlotId],
    ) {
        let Known {
            kernel,
            schedule,
            scheduled,
            in_place,
            bytes,
            key,
            least_work,
        } = ready.known;
        if ready.copies {
            self.copies.insert(kernel);
        }
        let args = ready.args.iter().zip(ready.written);
        let args: Vec<SlotId> = args
            .map(|(&arg, written)| match arg {
                Arg::Value(a) if written => self.slot(a),
                Arg::Value(a) => self.read(a, device),
                Arg::Temporary(number) => temporaries[number as usize],
            })
            .collect();
        let mut launch = Launch {
            kernel,
            args,
            symbols: ready.symbols,
            work: Work::Chunks { grain: IndexExpr::ONE },
            label: cluster_label(self.graph, c),
            bytes: IndexExpr::ZERO,
            flops: IndexExpr::ZERO,
        };
        launch.bytes = launch.outer(&bytes);
        launch.flops = launch.outer(&schedule.flops);
        let made = &self.plan.kernels[kernel.0 as usize];
        match target {
            Target::Cpu(cpu) => {
                let extent = launch.outer(&made.parallel_extent());
                let work = [&launch.bytes, &launch.flops];
                let grain = share::grain(cpu, c.emitter.emitter, least_work, &extent, work);
                launch.work = Work::Chunks { grain };
            }
            // The schedule gives every kernel for a GPU one loop over blocks.
            Target::Gpu(_) => {
                if let Some(grid) = made.grid() {
                    let blocks = launch.outer(&grid.blocks);
                    launch.work = Work::Grid(Grid { blocks, ..grid });
                }
            }
        }
        let pairs = in_place
            .iter()
            .map(|&(r, w)| (launch.args[r as usize], launch.args[w as usize]))
            .collect();
        self.launches.push(LaunchReport {
            cluster: number,
            scheduled,
            form: ready.form,
            emitter: c.emitter,
            schedule,
            kernel,
            key,
        });
        self.push(Step::Launch(launch), pairs);
    }

    /// What was made of a naive kernel, which has that hash, in a setting before.
    fn known(&self, hash: u64, kernel: &Kernel, setting: &Setting) -> Option<&Known> {
        let on = self.known.get(&hash)?;
        let found = on.iter().find(|(of, s, _)| s == setting && of == kernel);
        found.map(|(.., known)| known)
    }

    fn intern(&mut self, kernel: Kernel, device: DeviceId, emitter: EmitterId) -> KernelId {
        let alike = self.kernel_of.entry(hash_of(&kernel)).or_default();
        let (kernels, emitters) = (&mut self.plan.kernels, &mut self.emitters);
        let is_known = |id: &&KernelId| emitters[id.0 as usize] == emitter && kernels[id.0 as usize] == kernel;
        if let Some(known) = alike.iter().find(is_known) {
            return *known;
        }
        let id = KernelId(kernels.len() as u32);
        (self.announce)(&kernel, device, emitter);
        kernels.push(kernel);
        emitters.push(emitter);
        alike.push(id);
        id
    }
}

/// Whether blocks have tiles of whole rows, as where no directive is refused.
fn has_tiles(schedule: &Schedule) -> bool {
    let mut applied = schedule.applied.iter();
    applied.any(|a| matches!(a.directive, Directive::TileRows { .. }))
}

/// What equal kernels have in common.
fn hash_of(kernel: &Kernel) -> u64 {
    let mut hasher = FxHasher::default();
    kernel.hash(&mut hasher);
    hasher.finish()
}

/// Renumbers a kernel's symbols to those it uses, in order of the graph; returns what each stands for.
fn compact_symbols(kernel: &mut Kernel) -> Vec<IndexExpr> {
    let mut used = vec![false; kernel.symbols.len()];
    for e in kernel.indices() {
        e.visit_atoms(&mut |a| {
            if let IndexNode::Sym(s) = a {
                used[s.0 as usize] = true;
            }
        });
    }
    let kept: Vec<u32> = (0..used.len() as u32).filter(|&s| used[s as usize]).collect();
    if kept.len() < used.len() {
        let mut rename = |n: &IndexNode| match n {
            IndexNode::Sym(s) => kept.iter().position(|&k| k == s.0).map(|k| SymId(k as u32).into()),
            _ => None,
        };
        kernel.for_each_index_mut(&mut |e| *e = e.replace(&mut rename));
        kernel.symbols = kept.iter().map(|&k| kernel.symbols[k as usize]).collect();
    }
    kept.into_iter().map(|k| SymId(k).into()).collect()
}
