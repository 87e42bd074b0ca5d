//! Which stream of random bits a draw has.
//!
//! A stream is a hash of a path and an ordinal. The path is that of the scopes ([`named_scope`]), the nodes of an imported
//! model and the loops that a draw is recorded in, outermost first; the ordinal counts the draws on that path. So a draw
//! that is added on another path changes no other draw.
//!
//! Invariants:
//! - A graph and the bodies of its loops share one `Streams`, and no two draws in it have the same stream: one whose hash
//!   is taken is hashed again, and so is one whose hash is kept for draws by a key that is named.
//! - Streams depend on nothing but the recording: neither on the platform nor on the order in which threads record scopes of
//!   different names, unless two hashes collide.

use std::cell::RefCell;

use rustc_hash::{FxHashMap, FxHashSet};

/// The hash of the path without a component: the offset basis of FNV-1a.
const ROOT: u64 = 0xcbf2_9ce4_8422_2325;

thread_local! {
    /// Hashes of the paths of the scopes that this thread is in, outermost first.
    static PATHS: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Runs `record`, whose random numbers belong to a scope of that name inside the scopes that this thread is in.
///
/// The numbers that an operation draws depend on the names of the scopes around it and on how many draws the same scope
/// recorded before, but on nothing that other scopes draw. Give each layer of a network a scope, and a further layer leaves
/// the random numbers of the others as they were. A name that is used again goes on where its scope ended.
///
/// ```
/// use tlc::{DType, Graph, named_scope};
///
/// let two = |with_dropout: bool| {
///     let g = Graph::new("two layers");
///     if with_dropout {
///         named_scope("first", || g.ones(8, DType::F32).dropout(0.5));
///     }
///     let noise = named_scope("second", || g.randn(8, DType::F32));
///     noise.eval().map(|v| v.to_host())
/// };
/// assert_eq!(two(false)?, two(true)?);
/// # Ok::<(), tlc::EvalError>(())
/// ```
pub fn named_scope<R>(name: &str, record: impl FnOnce() -> R) -> R {
    // No name ends another one early: this byte is in no UTF-8 text.
    let _inside = Entered::new(|path| extend(extend(path, name.as_bytes()), &[0xff]));
    record()
}

/// Leaves a scope when it is dropped.
#[derive(Debug)]
#[doc(hidden)]
pub struct Entered(());

impl Entered {
    fn new(path: impl FnOnce(u64) -> u64) -> Entered {
        let inner = path(current());
        PATHS.with_borrow_mut(|paths| paths.push(inner));
        Entered(())
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        PATHS.with_borrow_mut(|paths| paths.pop());
    }
}

fn current() -> u64 {
    PATHS.with_borrow(|paths| paths.last().copied().unwrap_or(ROOT))
}

/// The hash of a name.
pub(crate) fn of_name(name: &str) -> u64 {
    extend(ROOT, name.as_bytes())
}

/// FNV-1a (Fowler, Noll, Vo; RFC 9923), 64 bits.
fn extend(hash: u64, bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(hash, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// What is added between states of SplitMix64: 2^64 over the golden ratio, odd.
pub(crate) const INCREMENT: u64 = 0x9e37_79b9_7f4a_7c15;

/// Streams below are those of draws by a key that is named: see [`Key`](crate::Key). Draws that have the stream of their place in the
/// recording have none of them, so that the two differ even under one key.
pub(crate) const KEYED: u32 = 64;

/// The shifts and factors of SplitMix64's output function: `z = (z ^ (z >> shift)) * factor` one after the other, then
/// `z ^ (z >> LAST_SHIFT)`. A bijection (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA
/// 2014; variant 13 of Stafford's).
pub(crate) const MIX: [(u32, u64); 2] = [(30, 0xbf58_476d_1ce4_e5b9), (27, 0x94d0_49bb_1331_11eb)];
/// See [`MIX`].
pub(crate) const LAST_SHIFT: u32 = 31;

fn mix(value: u64) -> u64 {
    let z = MIX
        .iter()
        .fold(value, |z, (shift, factor)| (z ^ (z >> shift)).wrapping_mul(*factor));
    z ^ (z >> LAST_SHIFT)
}

/// The streams of a graph and of the bodies of its loops.
#[derive(Default)]
pub(crate) struct Streams {
    /// By path: how many draws were recorded.
    draws: FxHashMap<u64, u64>,
    /// By path: how many loops were.
    loops: FxHashMap<u64, u64>,
    taken: FxHashSet<u32>,
}

impl Streams {
    /// A stream for a draw that is recorded now.
    pub(crate) fn next(&mut self) -> u32 {
        let path = current();
        let ordinal = self.draws.entry(path).or_insert(0);
        *ordinal += 1;
        let mut hash = mix(path.wrapping_add(ordinal.wrapping_mul(INCREMENT)));
        let mut free = |stream: u32| stream >= KEYED && self.taken.insert(stream);
        while !free((hash >> 32) as u32) {
            hash = mix(hash.wrapping_add(INCREMENT));
        }
        (hash >> 32) as u32
    }

    /// Enters the body of a loop that is recorded now.
    pub(crate) fn enter_loop(&mut self) -> Entered {
        let ordinal = self.loops.entry(current()).or_insert(0);
        *ordinal += 1;
        // No name starts so.
        let ordinal = ordinal.to_le_bytes();
        Entered::new(|path| extend(extend(path, &[0xfe]), &ordinal))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_the_published_ones() {
        // FNV-1a of "foobar": RFC 9923, appendix C.
        assert_eq!(extend(ROOT, b"foobar"), 0x85944171f73967e8);
        // The first two numbers of SplitMix64 with seed 1234567, as its reference implementation prints them.
        assert_eq!(mix(1234567u64.wrapping_add(INCREMENT)), 6457827717110365317);
        assert_eq!(
            mix(1234567u64.wrapping_add(INCREMENT.wrapping_mul(2))),
            3203168211198807973
        );
    }

    #[test]
    fn no_two_streams_are_the_same_where_hashes_collide() {
        // Some 600 pairs collide among so many.
        let draws = 1 << 21;
        let mut streams = Streams::default();
        let mut all: Vec<u32> = (0..draws).map(|_| streams.next()).collect();
        let first = |path: u64, k: u64| (mix(path.wrapping_add((k + 1).wrapping_mul(INCREMENT))) >> 32) as u32;
        let rehashed = (0..draws as u64)
            .zip(&all)
            .filter(|(k, s)| first(ROOT, *k) != **s)
            .count();
        assert!((200..1200).contains(&rehashed), "{rehashed}");
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), draws);
    }

    #[test]
    fn no_draw_in_its_place_has_a_stream_of_one_by_a_key() {
        // The first ordinal outside of all scopes whose hash is below [`KEYED`]: 33.
        let ordinal = 26_007_086u64;
        assert_eq!(mix(ROOT.wrapping_add(ordinal.wrapping_mul(INCREMENT))) >> 32, 33);
        let mut streams = Streams::default();
        streams.draws.insert(ROOT, ordinal - 1);
        assert!(streams.next() >= KEYED);
    }

    #[test]
    fn names_and_loops_make_paths_that_differ() {
        let mut streams = Streams::default();
        let mut paths = vec![current()];
        for outer in ["", "a", "ab", "a\u{ff}"] {
            named_scope(outer, || {
                paths.push(current());
                for inner in ["", "b", "a"] {
                    named_scope(inner, || paths.push(current()));
                }
                for _ in 0..3 {
                    let _inside = streams.enter_loop();
                    paths.push(current());
                }
            });
        }
        let count = paths.len();
        paths.sort_unstable();
        paths.dedup();
        assert_eq!(paths.len(), count);
        assert_eq!(current(), ROOT, "every scope was left");
    }
}
