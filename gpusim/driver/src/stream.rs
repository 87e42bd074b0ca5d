//! Streams: a thread each, that does its operations one after another, some time after they were asked for.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crate::history::Stamp;
use crate::machine::Machine;
use crate::result::CUDA_ERROR_UNKNOWN;
use crate::work::{Ticket, Work};

/// An operation on its way.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) work: Work,
    pub(crate) stamp: Stamp,
    /// What is done before it.
    pub(crate) after: Vec<Arc<Ticket>>,
    pub(crate) ticket: Arc<Ticket>,
}

/// Starts the thread of a stream. It ends when what is returned is dropped and all is done.
pub(crate) fn start(machine: &Arc<Machine>, gpu: usize, number: u64) -> std::io::Result<Sender<Job>> {
    let (sender, jobs) = channel();
    let machine = machine.clone();
    std::thread::Builder::new()
        .name(format!("gpusim-{number}"))
        .spawn(move || work_off(&machine, gpu, number, &jobs))?;
    Ok(sender)
}

fn work_off(machine: &Machine, gpu: usize, number: u64, jobs: &Receiver<Job>) {
    let mut delays = Delays::new(machine.settings.seed, number);
    for job in jobs {
        job.after.iter().for_each(|t| t.wait());
        delays.wait();
        let done = catch_unwind(AssertUnwindSafe(|| machine.run(gpu, &job.work, &job.stamp)));
        if done.is_err() {
            machine.fail(gpu, CUDA_ERROR_UNKNOWN);
        }
        machine.pending.fetch_sub(1, Ordering::SeqCst);
        job.ticket.finish();
    }
}

/// Waits of random length before operations, so that what is not ordered happens in an odd order now and then.
struct Delays {
    state: u64,
}

impl Delays {
    /// No seed, no delays.
    fn new(seed: u64, number: u64) -> Delays {
        let mixed = (seed ^ number.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Delays {
            state: if seed == 0 { 0 } else { mixed },
        }
    }

    fn wait(&mut self) {
        if self.state == 0 {
            return;
        }
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        let draw = self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        // One in four waits, most of them shortly, some until others have done much.
        match draw % 64 {
            0..=13 => std::thread::sleep(Duration::from_micros(draw >> 8 & 0x7f)),
            14 | 15 => std::thread::sleep(Duration::from_micros(draw >> 8 & 0xfff)),
            _ => {}
        }
    }
}
