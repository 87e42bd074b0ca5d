//! How much work a thread is given at a time, and so which launches run on the calling thread alone.
//!
//! Handing work to another thread costs some microseconds, during which the caller computes. So a chunk is a piece of work that
//! takes several times as long, by the target's rates: what is less than two chunks stays where it is.

use tlc_ir::index::IndexExpr;
use tlc_ir::target::{Cpu, EmitterId};

use crate::tuning::{Choice, Pinned, Tunable};

/// Microseconds of the least work that is worth handing to another thread: about four times what waking it and waiting for it take, where many
/// may have to be woken.
const CHUNK: i64 = 8;
/// Those where few threads share work. What one thread alone computes between steps of all, the others then fetch from its cache: a copy of
/// 12 us that pads an image took 31 us beside another thread, which had computed half of the image (two cores of Zen 4).
const CHUNK_OF_FEW: i64 = 3;
/// Threads that are few.
const FEW_THREADS: usize = 4;

/// Microseconds of such work that may be better.
const CHUNK_MICROSECONDS: [i64; 7] = [2, 3, 4, 8, 16, 32, 1_000_000];

/// Parallel iterations of a chunk, of a launch that has `extent` of them, and in all moves so many bytes and makes so many
/// floating-point operations; a chunk is at least so many picoseconds of work. Where sizes are symbolic it is evaluated when they are bound.
pub fn grain(
    cpu: &Cpu,
    emitter: EmitterId,
    least_work: i64,
    extent: &IndexExpr,
    [bytes, flops]: [&IndexExpr; 2],
) -> IndexExpr {
    let (byte, flop) = picoseconds(cpu, emitter);
    let work = bytes.clone() * IndexExpr::Const(byte) + flops.clone() * IndexExpr::Const(flop);
    let work = IndexExpr::max(&work, &IndexExpr::ONE);
    let chunk = extent.clone() * IndexExpr::Const(least_work);
    IndexExpr::max(&IndexExpr::floor_div(&chunk, &work), &IndexExpr::ONE)
}

/// What a byte and a floating-point operation take, at least one picosecond each. A byte comes from the last cache: work that is
/// small enough for this to matter does not come from memory. Operations are those of whole vectors.
fn picoseconds(cpu: &Cpu, emitter: EmitterId) -> (i64, i64) {
    let each = |per_second: f64| ((1e12 / per_second.max(1.0)) as i64).clamp(1, 1_000_000);
    (
        each(cpu.bytes_per_second[1]),
        each(cpu.emitter(emitter).f32_ops_per_second()),
    )
}

/// Picoseconds of the least work that is worth handing to another of so many threads, where another time may be pinned.
pub(crate) fn least_work(threads: usize, pinned: Option<(Pinned<'_>, &mut Vec<Choice>)>) -> i64 {
    const PICOSECONDS: i64 = 1_000_000;
    let model = if threads > FEW_THREADS { CHUNK } else { CHUNK_OF_FEW };
    let chosen = match pinned {
        Some((pins, made)) => pins.choose(made, Tunable::ThreadWork, model, CHUNK_MICROSECONDS),
        None => model,
    };
    chosen * PICOSECONDS
}
