//! The host as a device: kernels as machine code on a pool of threads, matrix products of our own, host functions.
//!
//! Everything here is called directly, for the driver is compiled for this host: a step of a call costs no more than what it does.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::calls;
use super::gemm::chain::{self, Chain};
use super::gemm::{Follow, multiply};
use super::jit::{self, Ahead, Args, JitOptions, KernelFn};
use super::product::{Along, Choice, choose, late, product};
use tlc_ir::plan::Epilogue;

use crate::binding::call::BoundCall;
use crate::binding::product::{BoundEpilogue, BoundProduct, Prepared};
use crate::binding::steps::{BoundLaunch, SCRATCH_ALIGNMENT, at_most_one_chunk};
use crate::device::{Device, Host, Places, Scratch, ToLoad};
use crate::error::RunError;
use crate::pool::Pool;

/// The cores of this machine.
pub struct Cpu {
    threads: Arc<Pool>,
    /// Code that was made before it was asked for.
    ahead: Mutex<Option<Ahead>>,
}

impl Cpu {
    /// The host whose work those threads do.
    pub fn new(threads: Arc<Pool>) -> Cpu {
        Cpu {
            threads,
            ahead: Mutex::default(),
        }
    }

    /// With code of kernels that are loaded next.
    pub fn with_code(self, ahead: Option<Ahead>) -> Cpu {
        Cpu {
            ahead: Mutex::new(ahead),
            ..self
        }
    }

    /// Its threads.
    pub fn threads(&self) -> &Arc<Pool> {
        &self.threads
    }
}

/// What workers share.
struct Shared<'a> {
    kernels: &'a [Option<KernelFn>],
    args: &'a [*mut u8],
    scratch: Scratch,
}

// SAFETY: workers only read the pointers; what they point to is split between them by the kernels' invariant that parallel
// iterations write disjoint memory, and each worker has a scratch area of its own.
unsafe impl Sync for Shared<'_> {}

impl Shared<'_> {
    /// Runs iterations of a kernel with the scratch of a worker, from a byte of it on.
    ///
    /// # Safety
    /// Its arguments are in place, the range lies in the kernel's parallel range, no one else runs it, and the worker is this
    /// thread.
    unsafe fn call(&self, l: &BoundLaunch, at: (usize, usize), begin: u64, end: u64) {
        // SAFETY: the caller's promise.
        unsafe { self.call_with(&self.args[l.first_arg..], l, at, begin, end) };
    }

    /// As [`Shared::call`], with arguments at other addresses than those in the table.
    ///
    /// # Safety
    /// As there.
    unsafe fn call_with(
        &self,
        buffers: &[*mut u8],
        l: &BoundLaunch,
        (worker, byte): (usize, usize),
        begin: u64,
        end: u64,
    ) {
        let Some(kernel) = &self.kernels[l.kernel] else {
            unreachable!("what is launched on the host is loaded there");
        };
        let args = Args {
            buffers: buffers.as_ptr(),
            symbols: l.symbols.as_ptr(),
            // SAFETY: the scratch area has `bytes` for each of the pool's workers.
            scratch: unsafe { self.scratch.start.add(worker * self.scratch.bytes as usize + byte) },
        };
        // SAFETY: the binding evaluated every parameter's length and gave each a buffer of at least that size; the rest is the
        // caller's promise.
        unsafe { kernel.call(&args, begin as i64, end as i64) };
    }
}

#[inline]
fn shared<'a>(at: &'a Places<'_, KernelFn>) -> Shared<'a> {
    Shared {
        kernels: at.kernels,
        args: at.args,
        scratch: at.scratch,
    }
}

impl Cpu {
    /// Computes a product, the kernel behind it, and the product behind that.
    ///
    /// # Safety
    /// As for [`Device::multiply`].
    unsafe fn multiply_on(
        &self,
        (p, e, behind): (&BoundProduct, &BoundEpilogue, &BoundProduct),
        chain: &Chain,
        at: &Places<'_, KernelFn>,
    ) -> Result<(), RunError> {
        let (first, second) = (product(p, at.slots), product(behind, at.slots));
        let shared = shared(at);
        let scratch_before = chain.scratch_bytes.next_multiple_of(SCRATCH_ALIGNMENT as usize);
        let launch = &e.launch;
        // Slots of what passes between the products have no memory of their own.
        let mut passed = [false; Epilogue::MOST_ARGUMENTS];
        for (passed, &slot) in passed.iter_mut().zip(&launch.args) {
            *passed = at.slots[slot].is_null();
        }
        let between = |worker: usize, rows: Range<usize>, start: *mut u8| {
            let shared = &shared;
            if launch.extent == 0 {
                return;
            }
            // The kernel counts elements from the value's first, which is that far before the worker's rows.
            let origin = start.wrapping_sub(rows.start * chain.row_bytes());
            let mut table = [std::ptr::null_mut(); Epilogue::MOST_ARGUMENTS];
            let addresses = &shared.args[launch.first_arg..][..launch.args.len()];
            for ((own, &passed), &address) in table.iter_mut().zip(&passed).zip(addresses) {
                *own = if passed { origin } else { address };
            }
            let (begin, end) = (rows.start as u64 * e.iterations, rows.end as u64 * e.iterations);
            // SAFETY: the plan's verifier found that these iterations touch nothing of the value but these rows; the rest as for any
            // kernel behind a product.
            unsafe { shared.call_with(&table, launch, (worker, scratch_before), begin, end) };
        };
        // SAFETY: the caller's promise, and the plan's verifier found that the products fit together.
        unsafe {
            chain::run(
                [&first, &second],
                chain,
                &self.threads,
                (at.scratch.start, at.scratch.bytes as usize),
                &between,
            )?
        };
        Ok(())
    }
}

impl Device for Cpu {
    type Kernel = KernelFn;
    type Product = Choice;

    fn load(&self, kernels: &[ToLoad<'_>], threads: usize) -> Result<Vec<KernelFn>, RunError> {
        let kernels: Vec<_> = kernels.iter().map(|k| (k.kernel, k.emitter)).collect();
        let options = JitOptions::on_threads(threads);
        let ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner).take();
        let compiled = jit::compile_with(ahead, &kernels, &options)?;
        Ok(compiled.into_iter().map(|c| c.function).collect())
    }

    fn prepare(&self, product: &BoundProduct) -> Prepared<Choice> {
        choose(product, self.threads.threads())
    }

    #[inline]
    unsafe fn launch(
        &self,
        _: u32,
        launches: &[BoundLaunch],
        alone: bool,
        at: &Places<'_, KernelFn>,
    ) -> Result<(), RunError> {
        let shared = shared(at);
        let run = |l: &BoundLaunch, worker: usize, begin: u64, end: u64| {
            // SAFETY: `begin..end` lies in the kernel's parallel range, and no other worker is given it.
            unsafe { shared.call(l, (worker, 0), begin, end) };
        };
        match launches {
            all if alone || self.threads.threads() == 1 => {
                for l in all.iter().filter(|l| l.extent > 0) {
                    run(l, 0, 0, l.extent);
                }
            }
            [one] => self
                .threads
                .parallel_ranges(one.extent, one.grain, &|w, b, e| run(one, w, b, e))?,
            many => {
                self.threads.parallel_for(many.len() as u64, 1, &|w, b, e| {
                    for l in &many[b as usize..e as usize] {
                        if l.extent > 0 {
                            run(l, w, 0, l.extent);
                        }
                    }
                })?;
            }
        }
        Ok(())
    }

    unsafe fn multiply(
        &self,
        queue: u32,
        p: &BoundProduct,
        choice: &Choice,
        at: &mut Places<'_, KernelFn>,
    ) -> Result<(), RunError> {
        if let (Some(chain), Some(e)) = (&choice.chain, &p.epilogue)
            && let Some(behind) = &e.product
        {
            // SAFETY: the caller's promise.
            return unsafe { self.multiply_on((p, e, behind), chain, at) };
        }
        let (product, way) = choice.of(p, at.slots, at.packed);
        let along = p.epilogue.as_ref().zip(way.along.as_ref());
        let along = along.map(|(e, along)| (&e.launch, along));
        let counters = along.map_or(0, |(_, a)| way.cut.counters(a.side, p.entries()));
        at.counters[..counters].iter_mut().for_each(|c| *c.get_mut() = 0);
        let shared = shared(at);
        let scratch_before = way.cut.scratch_bytes.next_multiple_of(SCRATCH_ALIGNMENT as usize);
        // Lines of the kernel from `first` to `last`.
        let lines = |(launch, along): (&BoundLaunch, &Along), worker: usize, first: u64, last: u64| {
            let (begin, end) = (first * along.iterations, last * along.iterations);
            // SAFETY: the binding gave each worker scratch for the kernel behind that for the product, and pieces and lines
            // are disjoint parts of the kernel's range. Until the product is done, only lines whose elements are.
            unsafe { shared.call(launch, (worker, scratch_before), begin, end) };
        };
        let run = |worker: usize, entry: usize, done: Range<usize>, next: &mut u64| {
            let Some((launch, along)) = along else { return };
            let element = |line: usize| (entry as u64 * along.lines + line as u64) * along.width;
            let (first, last) = along.within(element(done.start), element(done.end));
            let first = first.max(*next);
            if first < last {
                lines((launch, along), worker, first, last);
                *next = last;
            }
        };
        let follow = along.map(|(_, along)| Follow {
            side: along.side,
            run: &run,
            done: &at.counters[..counters],
        });
        // SAFETY: the three matrices lie inside their slots by construction of the matrix form, the result overlaps neither
        // operand, and every worker has the scratch that the binding made enough for the cut.
        unsafe {
            multiply(
                &product,
                &way.cut,
                &self.threads,
                at.scratch.start,
                at.scratch.bytes as usize,
                follow.as_ref(),
            )?
        };
        match (along, &p.epilogue) {
            (Some(both), _) => late(p, &way.cut, both.1, &mut |line| lines(both, 0, line, line + 1)),
            (None, Some(e)) => {
                let launches = std::slice::from_ref(&e.launch);
                // SAFETY: the caller's promise; the product is done.
                unsafe { self.launch(queue, launches, at_most_one_chunk(launches), at)? };
            }
            (None, None) => {}
        }
        Ok(())
    }

    unsafe fn copy(&self, _: u32, from: *const u8, to: *mut u8, bytes: usize) -> Result<(), RunError> {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
        Ok(())
    }

    unsafe fn fill(&self, _: u32, to: *mut u8, byte: u8, bytes: usize) -> Result<(), RunError> {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::write_bytes(to, byte, bytes) };
        Ok(())
    }
}

impl Host for Cpu {
    const VALUES: bool = true;

    unsafe fn call(&self, call: &BoundCall, at: &Places<'_, KernelFn>) -> Result<Option<(usize, i64)>, RunError> {
        // SAFETY: the caller's promise.
        unsafe { calls::call(call, at.slots, &self.threads) }
    }
}
