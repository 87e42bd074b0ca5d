//! Code that is made while it is still being decided which kernels there are.
//!
//! Passes take about as long as code generators, and nothing that is decided about one kernel waits for the code of another. Where a
//! compilation has several threads, those beside the caller's make code of each kernel as soon as the planner has it.
//!
//! Invariants:
//! - What is made here is what [`super::compile_by`] makes of the same kernels, and nobody calls it before it was loaded there, which is
//!   behind the verifiers. A kernel that has no code here, because it failed or changed since, is compiled there.
//! - Each kernel is made once for an emitter.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tlc_codegen::code::CompiledCode;
use tlc_ir::Kernel;
use tlc_ir::target::EmitterId;

use super::{Generators, JitError, JitOptions};

/// Kernels whose code is made beside the caller's thread.
pub struct Ahead {
    shared: Arc<Shared>,
    /// Threads that may be begun.
    most: usize,
    state: Mutex<Known>,
}

/// What the caller's threads know.
#[derive(Default)]
struct Known {
    /// The numbers of kernels, by emitter.
    numbers: FxHashMap<Arc<Kernel>, SmallVec<[(EmitterId, usize); 1]>>,
    count: usize,
    workers: Vec<JoinHandle<()>>,
}

struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    options: JitOptions,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(usize, Arc<Kernel>, EmitterId)>,
    /// By number: the code, if it is made and nothing was wrong.
    made: Vec<Option<CompiledCode>>,
    /// Whether no more kernels come.
    closed: bool,
}

/// Locks a mutex whose data stays valid whatever panicked while it was held.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// The next kernel; waits for one if that is said. `None` if no more come.
    fn next(&self, waits: bool) -> Option<(usize, Arc<Kernel>, EmitterId)> {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(next) = queue.waiting.pop_front() {
                return Some(next);
            }
            if queue.closed || !waits {
                return None;
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn work(&self, waits: bool) {
        let Ok(mut generators) = Generators::of_machine(&self.options) else {
            // Whoever loads kernels says why.
            return;
        };
        while let Some((number, kernel, emitter)) = self.next(waits) {
            let code = generators.emit(&kernel, emitter).ok();
            if let Some(place) = lock(&self.queue).made.get_mut(number) {
                *place = code;
            }
        }
    }

    fn close(&self) {
        lock(&self.queue).closed = true;
        self.changed.notify_all();
    }
}

impl Ahead {
    /// For a compilation on so many threads, the caller's included. `None` if there are no others.
    pub fn new(threads: usize) -> Option<Ahead> {
        let shared = Shared {
            queue: Mutex::default(),
            changed: Condvar::new(),
            options: JitOptions::on_threads(threads),
        };
        (threads > 1).then(|| Ahead {
            shared: Arc::new(shared),
            most: threads - 1,
            state: Mutex::default(),
        })
    }

    /// Has code be made of a kernel.
    pub fn begin(&self, kernel: &Kernel, emitter: EmitterId) {
        let mut known = lock(&self.state);
        let Known {
            numbers,
            count,
            workers,
        } = &mut *known;
        let is_known = |of: &SmallVec<[(EmitterId, usize); 1]>| of.iter().any(|(e, _)| *e == emitter);
        if numbers.get(kernel).is_some_and(is_known) {
            return;
        }
        let number = *count;
        *count += 1;
        let kernel = Arc::new(kernel.clone());
        numbers.entry(Arc::clone(&kernel)).or_default().push((emitter, number));
        let mut queue = lock(&self.shared.queue);
        queue.waiting.push_back((number, kernel, emitter));
        queue.made.push(None);
        let left = queue.waiting.len();
        drop(queue);
        self.shared.changed.notify_one();
        // The only kernel of a small graph is made by the caller sooner than a thread begins.
        if left > 1 && workers.len() < self.most.min(number) {
            let shared = Arc::clone(&self.shared);
            let worker = std::thread::Builder::new()
                .name("tlc-compile".into())
                .spawn(move || shared.work(true));
            // A thread that cannot be had is not needed: the caller makes all that is left.
            workers.extend(worker.ok());
        }
    }

    /// Has the caller make what is left, and returns all code that was made.
    pub(super) fn finish(self) -> Made {
        self.shared.close();
        self.shared.work(false);
        let mut known = lock(&self.state);
        // Workers catch what panics in them.
        known.workers.drain(..).for_each(|w| drop(w.join()));
        Made {
            numbers: std::mem::take(&mut known.numbers),
            codes: std::mem::take(&mut lock(&self.shared.queue).made),
        }
    }
}

impl Drop for Ahead {
    /// What waits is not made, and no thread is left behind.
    fn drop(&mut self) {
        lock(&self.shared.queue).waiting.clear();
        self.shared.close();
        lock(&self.state).workers.drain(..).for_each(|w| drop(w.join()));
    }
}

/// Code that was made ahead.
#[derive(Default)]
pub(super) struct Made {
    numbers: FxHashMap<Arc<Kernel>, SmallVec<[(EmitterId, usize); 1]>>,
    codes: Vec<Option<CompiledCode>>,
}

impl Made {
    /// The code of a kernel, once.
    pub(super) fn take(&mut self, kernel: &Kernel, emitter: EmitterId) -> Option<CompiledCode> {
        let of = self.numbers.get(kernel)?;
        let (_, number) = of.iter().find(|(e, _)| *e == emitter)?;
        self.codes.get_mut(*number)?.take()
    }
}

/// As [`super::compile_by`], with code that was made before.
///
/// # Errors
/// As there.
pub fn compile_with(
    ahead: Option<Ahead>,
    kernels: &[(&Kernel, EmitterId)],
    options: &JitOptions,
) -> Result<Vec<super::LoadedKernel>, JitError> {
    let made = ahead.map(Ahead::finish).unwrap_or_default();
    super::compile_made(made, kernels, options)
}
