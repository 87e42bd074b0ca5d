//! Evaluating a plan's sizes for concrete symbol values.

use std::sync::Mutex;

use tlc_ir::index::IndexExpr;
use tlc_ir::kernel::Access;
use tlc_ir::plan::{Launch, Plan, Step, Storage, Work};

use super::product::BoundGemm;
use super::repeat::{BoundCall, BoundLoop};
use super::{Binding, BoundLaunch, BoundStep, RunError, SCRATCH_ALIGNMENT};
use crate::binding::{Sizes, overflow};

impl Binding {
    /// Evaluates everything, and checks that every buffer is as large as whoever uses it believes.
    pub(super) fn new(plan: &Plan, sizes: Sizes, threads: usize) -> Result<Binding, RunError> {
        let Sizes {
            symbols,
            slot_bytes,
            layout,
            ..
        } = &sizes;
        let eval = |e: &IndexExpr, name: &str| e.eval_symbols(symbols).ok_or_else(|| overflow(name));
        let mut arg_count = 0;
        let mut scratch_bytes = 0u64;
        // The same, of steps that are more than launches.
        let mut product_bytes = 0u64;
        let mut counters = 0;
        let mut loops = 0;
        let mut steps = Vec::with_capacity(plan.init.len() + plan.steps.len());
        // `before` are bytes of a worker's scratch that lie before the kernel's.
        let mut bind_launch = |l: &Launch, before: u64| -> Result<BoundLaunch, RunError> {
            let kernel = &plan.kernels[l.kernel.0 as usize];
            let values: Vec<i64> = l.symbols.iter().map(|e| eval(e, &l.label)).collect::<Result<_, _>>()?;
            let local = |e: &IndexExpr| e.eval_symbols(&values).ok_or_else(|| overflow(&l.label));
            for (param, slot) in kernel.params.iter().zip(&l.args) {
                // What the kernel believes its buffers hold is what they hold.
                let wants = local(&param.len)?.max(0) as u64 * param.dtype.bytes() as u64;
                if wants > slot_bytes[slot.0 as usize] {
                    return Err(overflow(&l.label));
                }
            }
            // A launch that writes nothing does nothing, however far its loops go along the axes that are not empty.
            let written = kernel.params.iter().filter(|p| p.access != Access::Read);
            let lengths: Result<Vec<i64>, RunError> = written.map(|p| local(&p.len)).collect();
            let extent = match lengths?.iter().any(|&n| n > 0) {
                true => local(&kernel.parallel_extent())?.max(0) as u64,
                false => 0,
            };
            let scratch = local(&kernel.cache_scratch_bytes())?.max(0) as u64;
            scratch_bytes = scratch_bytes.max((before + scratch).next_multiple_of(SCRATCH_ALIGNMENT));
            let bound = BoundLaunch {
                kernel: l.kernel.0 as usize,
                first_arg: arg_count,
                args: l.args.iter().map(|s| s.0 as usize).collect(),
                symbols: values,
                extent,
                // What overflows is enough work for any number of threads.
                grain: match &l.work {
                    Work::Chunks { grain } => grain.eval_symbols(symbols).map_or(1, |n| n.max(1) as u64),
                    // No kernel for a grid is compiled for the host.
                    Work::Grid(_) => 1,
                },
            };
            arg_count += l.args.len();
            Ok(bound)
        };
        for (number, step) in plan.init.iter().chain(&plan.steps).enumerate() {
            let launches = match step {
                Step::Launch(l) => std::slice::from_ref(l),
                Step::Group(all) => &all[..],
                Step::Gemm(g) => {
                    let mut bound = BoundGemm::bind(g, threads, &eval)?;
                    let scratch = (bound.cut().scratch_bytes as u64).next_multiple_of(SCRATCH_ALIGNMENT);
                    product_bytes = product_bytes.max(scratch);
                    if let Some(e) = &g.epilogue {
                        let launch = bind_launch(&e.launch, scratch)?;
                        bound.follow(launch, e, threads, &eval)?;
                        counters = counters.max(bound.counters());
                    }
                    steps.push(BoundStep::Gemm(Box::new(bound)));
                    continue;
                }
                Step::Copy { src, dst } => {
                    let (src, dst) = (src.0 as usize, dst.0 as usize);
                    steps.push(BoundStep::Copy {
                        src,
                        dst,
                        bytes: slot_bytes[dst].min(slot_bytes[src]) as usize,
                    });
                    continue;
                }
                Step::Loop(l) => {
                    let body = layout.bodies.get(loops).ok_or_else(|| overflow(&l.label))?;
                    let bound = BoundLoop::bind(l, (number, loops), symbols, slot_bytes, body, threads)?;
                    loops += 1;
                    product_bytes = product_bytes.max(bound.body.scratch_bytes);
                    steps.push(BoundStep::Loop(Box::new(bound)));
                    continue;
                }
                Step::Call(c) => {
                    let bound = BoundCall::bind(c, plan, symbols, slot_bytes)?;
                    steps.push(BoundStep::Call(Box::new(bound)));
                    continue;
                }
            };
            let bound: Result<Vec<BoundLaunch>, RunError> = launches.iter().map(|l| bind_launch(l, 0)).collect();
            let launches = bound?;
            let alone = at_most_one_chunk(&launches);
            steps.push(BoundStep::Launches { launches, alone });
        }
        let rest = steps.split_off(plan.init.len());
        let (init, steps) = (steps, rest);
        let mut births = Vec::new();
        if cfg!(debug_assertions) {
            births = vec![Vec::new(); steps.len()];
            for (slot, life) in plan.lives().into_iter().enumerate() {
                if let (Some((first, _)), Storage::Arena) = (life, &plan.slots[slot].storage) {
                    births[first].push(slot);
                }
            }
        }
        Ok(Binding {
            sizes,
            scratch_bytes: scratch_bytes.max(product_bytes),
            arg_count,
            counters,
            init,
            steps,
            births,
            rebound: Mutex::default(),
        })
    }
}

/// Whether launches have no more iterations than one chunk: each is a part of one that its extent and grain say.
pub(super) fn at_most_one_chunk(launches: &[BoundLaunch]) -> bool {
    let parts = launches.iter().map(|l| l.extent as f64 / l.grain as f64);
    parts.sum::<f64>() <= 1.0
}
