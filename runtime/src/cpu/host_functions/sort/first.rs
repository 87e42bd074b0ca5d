//! The elements of a row that come first, in order, where there are several times as many.
//!
//! The keys of a row are dealt out to lanes in turns. The least keys of the lanes are those of different elements, so that the element that comes
//! `count`-th has no greater key than that which is the `count`-th least of them: with twice as many lanes as elements are asked for, few more than
//! these have a key up to there. Only they are sorted. How many more depends on how the keys are distributed, and what is found does not.
//!
//! All of it is inlined where rows are sorted, for the instructions that that has.

use super::Row;
use super::keys::{Keys, Word};

/// Keys that are compared together, and the fewest lanes.
const BLOCK: usize = 16;

/// Of so few elements the bound is the greatest of as many parts' least keys, which takes no sorting.
pub(super) const FEW: usize = 4;

/// Lanes of which the least keys bound those of so many elements.
fn lanes(count: usize) -> usize {
    match count <= FEW {
        true => BLOCK,
        false => (2 * count).next_power_of_two().max(BLOCK),
    }
}

/// Whether a row has enough elements for each lane to have several, and its positions are words.
pub(super) fn pays(extent: usize, count: usize) -> bool {
    u32::try_from(extent).is_ok() && count <= extent / 4 && 2 * lanes(count) <= extent
}

/// Memory for a row: a key of each element, the least of each lane, and the positions that are left.
struct Room<'w, K> {
    keys: &'w mut [K],
    least: &'w mut [K],
    places: &'w mut [u32],
}

/// Writes the first elements of a row, in order.
///
/// # Safety
/// As for [`super::sort`], where it [`pays`]; `workspace` is for this row alone, and `K` as wide as its elements or wider.
#[inline(always)]
pub(super) unsafe fn first<K: Word>(row: &Row, workspace: *mut u8) {
    let (extent, count) = (row.s.extent, row.s.count);
    let keys = workspace.cast::<K>();
    // SAFETY: 16 bytes an element are room for a key of up to 8, half as many of lanes, and a position of 4.
    let room = unsafe {
        let least = keys.add(extent);
        Room {
            keys: std::slice::from_raw_parts_mut(keys, extent),
            least: std::slice::from_raw_parts_mut(least, lanes(count)),
            places: std::slice::from_raw_parts_mut(least.add(lanes(count)).cast::<u32>(), extent),
        }
    };
    // SAFETY: the caller's promise.
    let (keys, places) = unsafe { up_to_a_bound(row, room) };
    let order = |&p: &u32| (keys[p as usize], p);
    if places.len() > 2 * count {
        places.select_nth_unstable_by_key(count - 1, order);
        places[..count].sort_unstable_by_key(order);
    } else {
        places.sort_unstable_by_key(order);
    }
    for (k, &place) in places[..count].iter().enumerate() {
        // SAFETY: `k < count`, and the position is one of the row's.
        unsafe { row.write(k, keys[place as usize].bits(), place as usize) };
    }
}

/// Rows that lie side by side, which [`side_by_side`] does together.
pub(super) const ROWS: usize = BLOCK;

/// Whether [`side_by_side`] has so many rows from one on: elements of the same place are neighbours, of which there is one vector after another.
pub(super) fn are_side_by_side(row: &Row, rows: usize) -> bool {
    let (s, width) = (row.s, row.s.dtype.bytes());
    row.i + ROWS <= s.inner && rows >= ROWS && s.count <= FEW && matches!(width, 4 | 8)
}

/// Writes the first elements of [`ROWS`] rows, in order: each element is compared with the last of the first so far, those of all rows at once.
///
/// # Safety
/// As for [`super::sort`], where they [`are_side_by_side`]; `K` is as wide as their elements.
#[inline(always)]
pub(super) unsafe fn side_by_side<K: Word>(row: &Row) {
    // SAFETY: the caller's promise.
    let first = unsafe { compared::<K>(row) };
    for next in 0..ROWS {
        let row = Row {
            i: row.i + next,
            ..*row
        };
        for (k, (keys, places)) in first[..row.s.count].iter().enumerate() {
            // SAFETY: `k < count`, and the position is one of the row's.
            unsafe { row.write(k, keys[next].bits(), places[next] as usize) };
        }
    }
}

/// The first elements of rows: keys and places of the first of each, of the second, and so on.
type First<K> = [([K; ROWS], [u32; ROWS]); FEW];

/// What is first of [`ROWS`] rows.
///
/// # Safety
/// As for [`side_by_side`].
#[inline(always)]
unsafe fn compared<K: Word>(row: &Row) -> First<K> {
    // SAFETY: the caller's promise.
    unsafe {
        match row.s.count {
            1 => compared_with::<K, 1>(row),
            2 => compared_with::<K, 2>(row),
            _ => compared_with::<K, FEW>(row),
        }
    }
}

/// As many are first as registers hold.
///
/// # Safety
/// As for [`side_by_side`].
#[inline(always)]
unsafe fn compared_with<K: Word, const FIRST: usize>(row: &Row) -> First<K> {
    let (inner, extent) = (row.s.inner, row.s.extent);
    let of = Keys::<K>::of(&row.order);
    // SAFETY: the first element is inside `x`.
    let elements = unsafe { row.buffers.x.cast::<K>().add(row.o * extent * inner + row.i) };
    let mut least = [[K::ZERO; ROWS]; FIRST];
    let mut places = [[0u32; ROWS]; FIRST];
    for place in 0..extent {
        // SAFETY: so many elements of one place lie side by side.
        let mut keys = unsafe { elements.add(place * inner).cast::<[K; ROWS]>().read() };
        match of.infinity {
            Some(infinity) => {
                for key in &mut keys {
                    *key = of.of_float(*key, infinity);
                }
            }
            None => {
                for key in &mut keys {
                    *key = of.of_integer(*key);
                }
            }
        }
        // No element is there yet from `place` on.
        match place < FIRST {
            true => put::<K, FIRST, true>(&mut least, &mut places, &keys, place as u32),
            false => put::<K, FIRST, false>(&mut least, &mut places, &keys, place as u32),
        }
    }
    let mut found = [([K::ZERO; ROWS], [0u32; ROWS]); FEW];
    for k in 0..FIRST {
        found[k] = (least[k], places[k]);
    }
    found
}

/// Puts an element of each row in front of those that it comes before, each of which moves on by one: of equal ones the first stays in front.
#[inline(always)]
fn put<K: Word, const FIRST: usize, const VACANT: bool>(
    least: &mut [[K; ROWS]; FIRST],
    places: &mut [[u32; ROWS]; FIRST],
    keys: &[K; ROWS],
    place: u32,
) {
    for row in 0..ROWS {
        let key = keys[row];
        for k in (0..FIRST).rev() {
            let comes = (key < least[k][row]) | (VACANT && k as u32 >= place);
            let (next, next_place) = if comes {
                (key, place)
            } else {
                (least[k][row], places[k][row])
            };
            (least[k][row], places[k][row]) = if k == 0 {
                (next, next_place)
            } else if (key < least[k - 1][row]) | (VACANT && k as u32 > place) {
                (least[k - 1][row], places[k - 1][row])
            } else {
                (next, next_place)
            };
        }
    }
}

/// The keys of a row, and the positions of those up to a bound, which the first ones do not exceed.
///
/// # Safety
/// As for [`first`].
#[inline(always)]
unsafe fn up_to_a_bound<'w, K: Word>(row: &Row, room: Room<'w, K>) -> (&'w [K], &'w mut [u32]) {
    let Room { keys, least, places } = room;
    let count = row.s.count;
    // SAFETY: the caller's promise.
    unsafe { self::keys(row, keys) };
    // Loops, and no closures: what is not inlined has not this function's instructions.
    let (blocks, rest) = keys.as_chunks::<BLOCK>();
    let bound = if count <= FEW {
        let mut least = [K::MAX; BLOCK];
        for keys in blocks {
            for k in 0..BLOCK {
                least[k] = least[k].min(keys[k]);
            }
        }
        for k in 0..rest.len() {
            least[k] = least[k].min(rest[k]);
        }
        match count {
            1 => most_of_parts::<K, 1>(&least),
            2 => most_of_parts::<K, 2>(&least),
            _ => most_of_parts::<K, FEW>(&least),
        }
    } else {
        least.fill(K::MAX);
        for keys in keys.chunks(least.len()) {
            for k in 0..keys.len() {
                least[k] = least[k].min(keys[k]);
            }
        }
        *least.select_nth_unstable(count - 1).1
    };
    let mut kept = 0;
    for (block, keys) in blocks.iter().enumerate() {
        let (mut any, mut those) = (false, 0u32);
        for key in keys {
            any |= *key <= bound;
        }
        if !any {
            continue;
        }
        for (k, key) in keys.iter().enumerate() {
            those |= u32::from(*key <= bound) << k;
        }
        while those != 0 {
            places[kept] = block as u32 * BLOCK as u32 + those.trailing_zeros();
            kept += 1;
            those &= those - 1;
        }
    }
    for (k, key) in rest.iter().enumerate() {
        places[kept] = (blocks.len() * BLOCK + k) as u32;
        kept += usize::from(*key <= bound);
    }
    (keys, &mut places[..kept])
}

/// The greatest of the least keys of so many parts of a block.
#[inline(always)]
fn most_of_parts<K: Word, const PARTS: usize>(keys: &[K; BLOCK]) -> K {
    let mut most = K::ZERO;
    for part in 0..PARTS {
        let mut least = K::MAX;
        for k in (part..BLOCK).step_by(PARTS) {
            least = least.min(keys[k]);
        }
        most = most.max(least);
    }
    most
}

/// Computes the keys of a row.
///
/// # Safety
/// As for [`first`].
#[inline(always)]
pub(super) unsafe fn keys<K: Word>(row: &Row, keys: &mut [K]) {
    if row.s.dtype.bytes() != size_of::<K>() {
        for (k, key) in keys.iter_mut().enumerate() {
            // SAFETY: `k < extent`.
            *key = K::of(unsafe { row.key(k) });
        }
        return;
    }
    let (inner, extent) = (row.s.inner, row.s.extent);
    // SAFETY: nothing writes the elements, which lie `inner` apart.
    let elements = unsafe {
        let first = row.buffers.x.cast::<K>().add(row.o * extent * inner + row.i);
        std::slice::from_raw_parts(first, (extent - 1) * inner + 1)
    };
    let of = Keys::<K>::of(&row.order);
    // A stride that is known to be one is that of vectors.
    match (of.infinity, inner) {
        (None, 1) => {
            for (key, x) in keys.iter_mut().zip(elements) {
                *key = of.of_integer(*x);
            }
        }
        (Some(infinity), 1) => {
            for (key, x) in keys.iter_mut().zip(elements) {
                *key = of.of_float(*x, infinity);
            }
        }
        (None, _) => {
            for (key, x) in keys.iter_mut().zip(elements.iter().step_by(inner)) {
                *key = of.of_integer(*x);
            }
        }
        (Some(infinity), _) => {
            for (key, x) in keys.iter_mut().zip(elements.iter().step_by(inner)) {
                *key = of.of_float(*x, infinity);
            }
        }
    }
}
