//! Sorting along an axis, with the positions: what [`HostFunction::Sort`](tlc_ir::graph::HostFunction) says.
//!
//! Invariant: a row is sorted by keys, unsigned words in the order of the elements (reversed for a descending sort), and by
//! position where keys are equal, so the order is total and the same whatever sorts it.

mod first;
mod keys;

use std::ops::Range;

use keys::Order;
pub(super) use keys::key;

pub(crate) use crate::binding::call::Sort;
use crate::pool::{Pool, PoolPanic};

/// The buffers of a sort.
#[derive(Clone, Copy)]
pub(crate) struct Buffers {
    pub(crate) x: *const u8,
    pub(crate) values: *mut u8,
    pub(crate) places: *mut u8,
    /// Room for the keys of so many rows at once.
    pub(crate) workspace: *mut u8,
    pub(crate) rows_at_once: usize,
}

// SAFETY: the parts of a sort read `x` alone, and write rows and workspaces that are theirs alone.
unsafe impl Sync for Buffers {}

/// Sorts every row, a part of them on each thread. What a row becomes does not depend on who sorts it.
///
/// # Safety
/// `x` holds `outer * extent * inner` elements, `values` and `places` (i64) `outer * count * inner`, `workspace`
/// `rows_at_once` (at least 1) times `extent` pairs of u64; all are aligned to their elements and none overlaps another.
///
/// # Errors
/// If a thread panics.
pub(crate) unsafe fn sort(s: &Sort, buffers: Buffers, threads: &Pool) -> Result<(), PoolPanic> {
    if s.extent == 0 || s.count == 0 || s.outer == 0 || s.inner == 0 {
        return Ok(());
    }
    let rows = s.outer * s.inner;
    if rows < threads.threads() && s.count == s.extent && s.extent >= SHARED_ROW && is_packed(s) {
        let order = Order::of(s.dtype, s.descending);
        for (o, i) in (0..rows).map(|r| (r / s.inner, r % s.inner)) {
            let row = Row {
                s,
                order,
                buffers,
                o,
                i,
            };
            // SAFETY: the first workspace has room for a pair of words for each element of a row.
            unsafe { row.sort_shared(buffers.workspace.cast(), threads)? };
        }
        return Ok(());
    }
    let parts = match rows * s.extent < SMALL {
        true => 1,
        false => buffers.rows_at_once.min(rows),
    };
    let part = |p: usize| {
        let buffers = &buffers;
        // SAFETY: there are as many workspaces as parts, and each part is run once.
        let workspace = unsafe { buffers.workspace.add(p * s.extent * PAIR) };
        // In two factors: the product of three need not fit.
        let bound = |p: usize| (rows / parts) * p + (rows % parts).min(p);
        // SAFETY: the caller's promise.
        unsafe { sort_rows(s, bound(p)..bound(p + 1), *buffers, workspace) };
    };
    if parts == 1 {
        part(0);
        return Ok(());
    }
    threads.parallel_for(parts as u64, 1, &|_, begin, end| {
        (begin..end).for_each(|p| part(p as usize))
    })
}

/// Elements below which waking threads takes longer than sorting.
const SMALL: usize = 4096;

/// Elements from which on threads share a row: they meet twice for each digit.
const SHARED_ROW: usize = 1 << 17;

/// The most parts of a row that is shared.
const MOST_PARTS: usize = 8;

/// Whether a key and a position fit one word.
fn is_packed(s: &Sort) -> bool {
    s.dtype.bytes() <= 4 && u32::try_from(s.extent).is_ok()
}

/// Elements up to which all of a row are sorted sooner than the first of them are found.
const SHORT: usize = 32;

/// Bytes of a key and a position.
const PAIR: usize = 16;

/// Sorts some rows, numbered through `outer` and then `inner`.
///
/// # Safety
/// As for [`sort`], with a workspace of its own.
unsafe fn sort_rows(s: &Sort, rows: Range<usize>, buffers: Buffers, workspace: *mut u8) {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") {
        /// # Safety
        /// As for [`sort_rows`], on a processor with AVX2.
        #[target_feature(enable = "avx2")]
        unsafe fn wide(s: &Sort, rows: Range<usize>, buffers: Buffers, workspace: *mut u8) {
            // SAFETY: the caller's promise.
            unsafe { sort_rows_by(s, rows, buffers, workspace) }
        }
        // SAFETY: the caller's promise, and the processor has AVX2.
        return unsafe { wide(s, rows, buffers, workspace) };
    }
    // SAFETY: the caller's promise.
    unsafe { sort_rows_by(s, rows, buffers, workspace) }
}

/// As [`sort_rows`], with the instructions of the function that it becomes a part of.
///
/// # Safety
/// As for [`sort_rows`].
#[inline(always)]
unsafe fn sort_rows_by(s: &Sort, rows: Range<usize>, buffers: Buffers, workspace: *mut u8) {
    let order = Order::of(s.dtype, s.descending);
    let few = first::pays(s.extent, s.count);
    let mut r = rows.start;
    while r < rows.end {
        let (o, i) = (r / s.inner, r % s.inner);
        let row = Row {
            s,
            order,
            buffers,
            o,
            i,
        };
        let together = few && first::are_side_by_side(&row, rows.end - r);
        r += if together { first::ROWS } else { 1 };
        // SAFETY: the workspace has room for a pair of words for each element of a row.
        unsafe {
            match (is_packed(s), few) {
                (true, true) if together => first::side_by_side::<u32>(&row),
                (false, true) if together => first::side_by_side::<u64>(&row),
                (true, true) => first::first::<u32>(&row, workspace),
                (false, true) => first::first::<u64>(&row, workspace),
                (true, false) => {
                    let words = std::slice::from_raw_parts_mut(workspace.cast::<u64>(), 2 * s.extent);
                    row.sort_packed(words);
                }
                (false, false) => {
                    row.sort_pairs(std::slice::from_raw_parts_mut(workspace.cast::<[u64; 2]>(), s.extent))
                }
            }
        }
    }
}

/// One row.
struct Row<'s> {
    s: &'s Sort,
    order: Order,
    buffers: Buffers,
    o: usize,
    i: usize,
}

impl Row<'_> {
    /// The key of the element at a place.
    ///
    /// # Safety
    /// `k < extent`.
    unsafe fn key(&self, k: usize) -> u64 {
        // SAFETY: the caller's promise.
        self.order.key(unsafe { self.bits(k) })
    }

    /// The bits of the element at a place.
    ///
    /// # Safety
    /// `k < extent`.
    unsafe fn bits(&self, k: usize) -> u64 {
        let width = self.s.dtype.bytes();
        let at = ((self.o * self.s.extent + k) * self.s.inner + self.i) * width;
        // SAFETY: the element is inside `x`.
        unsafe { read(self.buffers.x.add(at), width) }
    }

    /// Writes what comes `k`-th: the element of a key, which is at `place`.
    ///
    /// # Safety
    /// `k < count` and `place < extent`.
    unsafe fn write(&self, k: usize, key: u64, place: usize) {
        let width = self.s.dtype.bytes();
        let to = (self.o * self.s.count + k) * self.s.inner + self.i;
        // SAFETY: both are inside their buffers.
        unsafe {
            // Read again only where several elements have one key: places are anywhere in memory.
            let bits = self.order.bits(key).unwrap_or_else(|| self.bits(place));
            write(self.buffers.values.add(to * width), width, bits);
            self.buffers.places.cast::<i64>().add(to).write(place as i64);
        }
    }

    /// Sorts words that hold a key of up to 32 bits above a position.
    ///
    /// # Safety
    /// As for [`sort`]; `words` has two for each element.
    #[inline(always)]
    unsafe fn sort_packed(&self, words: &mut [u64]) {
        let (extent, count) = (self.s.extent, self.s.count);
        if count <= first::FEW && extent <= SHORT {
            // Each goes past those that come before it.
            let (mut least, mut keys) = ([u64::MAX; first::FEW], [0u32; SHORT]);
            // SAFETY: there is a key for each element.
            unsafe { first::keys(self, &mut keys[..extent]) };
            for (k, &key) in keys[..extent].iter().enumerate() {
                let mut word = u64::from(key) << 32 | k as u64;
                for least in &mut least {
                    (*least, word) = ((*least).min(word), (*least).max(word));
                }
            }
            for (k, word) in least[..count].iter().enumerate() {
                // SAFETY: `k < count`, and the lower half is the position that was put there.
                unsafe { self.write(k, word >> 32, (word & u64::from(u32::MAX)) as usize) };
            }
            return;
        }
        let (row, other) = words.split_at_mut(extent);
        for (k, word) in row.iter_mut().enumerate() {
            // SAFETY: `k < extent`.
            *word = unsafe { self.key(k) } << 32 | k as u64;
        }
        let sorted = match count < extent {
            true => {
                if extent > SHORT {
                    row.select_nth_unstable(count - 1);
                    row[..count].sort_unstable();
                } else {
                    row.sort_unstable();
                }
                row
            }
            false if extent < LEAST_RADIX => {
                row.sort_unstable();
                row
            }
            false => by_digits(row, other, self.s.dtype.bytes()),
        };
        for (k, word) in sorted[..count].iter().enumerate() {
            // SAFETY: `k < count`, and the lower half is the position that was put there.
            unsafe { self.write(k, word >> 32, (word & u64::from(u32::MAX)) as usize) };
        }
    }

    /// Sorts words as [`Row::sort_packed`] does, each part of the row on a thread: a stable pass for each digit, in which the words of a part
    /// go behind those of the parts in front of it that have the same digit.
    ///
    /// # Safety
    /// As for [`sort`], for all elements of a row; `words` has two for each.
    unsafe fn sort_shared(&self, words: *mut u64, threads: &Pool) -> Result<(), PoolPanic> {
        let extent = self.s.extent;
        let parts = threads.threads().min(MOST_PARTS);
        let part = |p: usize| {
            let bound = |p: usize| extent / parts * p + (extent % parts).min(p);
            bound(p)..bound(p + 1)
        };
        let each = |f: &(dyn Fn(usize) + Sync)| {
            threads.parallel_for(parts as u64, 1, &|_, begin, end| {
                (begin..end).for_each(|p| f(p as usize));
            })
        };
        let mut counts = [[0u32; LONG_DIGITS]; MOST_PARTS];
        let counts = Shared(counts.as_mut_ptr());
        // SAFETY: there is room for two words for each element.
        let (mut from, mut to) = (Shared(words), Shared(unsafe { words.add(extent) }));
        each(&|p| {
            for k in part(p) {
                // SAFETY: `k < extent`, and no other part has this element.
                unsafe { from.at(k).write(self.key(k) << 32 | k as u64) };
            }
        })?;
        for pass in 0..(8 * self.s.dtype.bytes()).div_ceil(LONG_BITS) {
            let digit = |word: u64| (word >> (32 + LONG_BITS * pass)) as usize % LONG_DIGITS;
            each(&|p| {
                // SAFETY: `p < MOST_PARTS`, each part has counts of its own, and nothing writes `from` in this pass.
                unsafe {
                    let counts = &mut *counts.at(p);
                    counts.fill(0);
                    part(p).for_each(|k| counts[digit(from.at(k).read())] += 1);
                }
            })?;
            let mut next = 0;
            for d in 0..LONG_DIGITS {
                for p in 0..parts {
                    // SAFETY: `p < MOST_PARTS`, and the threads are done with their counts.
                    let count = unsafe { &mut (*counts.at(p))[d] };
                    next += std::mem::replace(count, next);
                }
            }
            each(&|p| {
                // SAFETY: as above; the counts say where in `to` the words of a part go, and that no two go to one place.
                unsafe {
                    let counts = &mut *counts.at(p);
                    for k in part(p) {
                        let word = from.at(k).read();
                        let at = &mut counts[digit(word)];
                        to.at(*at as usize).write(word);
                        *at += 1;
                    }
                }
            })?;
            std::mem::swap(&mut from, &mut to);
        }
        each(&|p| {
            for k in part(p) {
                // SAFETY: `k < count`, which is `extent`, and the lower half is the position that was put there.
                unsafe {
                    let word = from.at(k).read();
                    self.write(k, word >> 32, (word & u64::from(u32::MAX)) as usize);
                }
            }
        })
    }

    /// Sorts pairs of a key and a position.
    ///
    /// # Safety
    /// As for [`sort`]; there is a pair for each element.
    unsafe fn sort_pairs(&self, row: &mut [[u64; 2]]) {
        for (k, pair) in row.iter_mut().enumerate() {
            // SAFETY: `k < extent`.
            *pair = [unsafe { self.key(k) }, k as u64];
        }
        match self.s.count < self.s.extent {
            true => {
                row.select_nth_unstable(self.s.count - 1);
                row[..self.s.count].sort_unstable();
            }
            false => in_place(row, 0),
        }
        for (k, pair) in row[..self.s.count].iter().enumerate() {
            // SAFETY: `k < count`, and the second word is the position that was put there.
            unsafe { self.write(k, pair[0], pair[1] as usize) };
        }
    }
}

/// Memory that several threads use, each elements of its own.
struct Shared<T>(*mut T);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Shared<T> {
        *self
    }
}

impl<T> Copy for Shared<T> {}

// SAFETY: whoever makes an address of it says what keeps threads apart.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// The address of an element.
    ///
    /// # Safety
    /// It is inside the memory.
    unsafe fn at(self, k: usize) -> *mut T {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(k) }
    }
}

/// Bits of a digit of rows that threads share: fewer passes, in each of which all words move.
const LONG_BITS: usize = 11;

/// Values of such a digit.
const LONG_DIGITS: usize = 1 << LONG_BITS;

/// Elements below which comparing takes less time than counting digits.
const LEAST_RADIX: usize = 1024;

/// Values of a digit of eight bits.
const DIGITS: usize = 256;

/// Sorts words by their upper halves, of which the lower `bytes` bytes differ: a stable pass for each byte, from the lowest, from
/// one buffer to the other. Words come in the order of their lower halves. Returns the buffer that holds the result.
fn by_digits<'w>(row: &'w mut [u64], other: &'w mut [u64], bytes: usize) -> &'w mut [u64] {
    let mut counts = [[0usize; DIGITS]; 4];
    for &word in row.iter() {
        for (byte, counts) in counts[..bytes].iter_mut().enumerate() {
            counts[(word >> (32 + 8 * byte)) as usize % DIGITS] += 1;
        }
    }
    let (mut from, mut to) = (row, other);
    for (byte, counts) in counts[..bytes].iter_mut().enumerate() {
        // A digit that all have decides nothing.
        if counts.contains(&from.len()) {
            continue;
        }
        let mut next = 0;
        for count in counts.iter_mut() {
            next += std::mem::replace(count, next);
        }
        for &word in from.iter() {
            let at = &mut counts[(word >> (32 + 8 * byte)) as usize % DIGITS];
            to[*at] = word;
            *at += 1;
        }
        std::mem::swap(&mut from, &mut to);
    }
    from
}

/// Sorts pairs by both words, by their digits from the highest, which is number 0 of 16: each pair is swapped to the part of its
/// digit, then the parts are sorted (the American flag sort of McIlroy, Bostic and McIlroy, 1993). There is no room for a second
/// buffer, and no need for a stable sort where no two pairs are equal.
fn in_place(row: &mut [[u64; 2]], digit: usize) {
    if row.len() < LEAST_RADIX || digit == 16 {
        return row.sort_unstable();
    }
    let of = |pair: &[u64; 2]| (pair[digit / 8] >> (56 - 8 * (digit % 8))) as usize % DIGITS;
    let mut ends = [0usize; DIGITS];
    row.iter().for_each(|pair| ends[of(pair)] += 1);
    if ends.contains(&row.len()) {
        return in_place(row, digit + 1);
    }
    let mut next = [0usize; DIGITS];
    let mut end = 0;
    for (next, count) in next.iter_mut().zip(&mut ends) {
        *next = end;
        end += *count;
        *count = end;
    }
    let starts = next;
    for part in 0..DIGITS {
        while next[part] < ends[part] {
            let to = of(&row[next[part]]);
            row.swap(next[part], next[to]);
            next[to] += 1;
        }
    }
    for part in 0..DIGITS {
        if starts[part] + 1 < ends[part] {
            in_place(&mut row[starts[part]..ends[part]], digit + 1);
        }
    }
}

/// The bits of an element.
///
/// # Safety
/// `at` points to `width` bytes that hold an element, aligned to it.
unsafe fn read(at: *const u8, width: usize) -> u64 {
    // SAFETY: the caller's promise.
    unsafe {
        match width {
            1 => u64::from(at.read()),
            2 => u64::from(at.cast::<u16>().read()),
            4 => u64::from(at.cast::<u32>().read()),
            _ => at.cast::<u64>().read(),
        }
    }
}

/// Writes the bits of an element.
///
/// # Safety
/// `at` points to `width` bytes that may be written, aligned to an element of that width.
unsafe fn write(at: *mut u8, width: usize, bits: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        match width {
            1 => at.write(bits as u8),
            2 => at.cast::<u16>().write(bits as u16),
            4 => at.cast::<u32>().write(bits as u32),
            _ => at.cast::<u64>().write(bits),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tlc_ir::{DType, Scalar};

    /// Sorts one row by its definition: by key, then by position.
    fn defined(dtype: DType, bits: &[u64], count: usize, descending: bool) -> Vec<(u64, i64)> {
        let mut all: Vec<(u64, i64)> = bits.iter().copied().zip(0..).collect();
        all.sort_by(|a, b| {
            let (x, y) = (key(dtype, a.0), key(dtype, b.0));
            if descending { y.cmp(&x) } else { x.cmp(&y) }
        });
        all[..count].to_vec()
    }

    fn sorted(dtype: DType, bits: &[u64], count: usize, descending: bool, threads: usize) -> Vec<(u64, i64)> {
        sorted_along(dtype, bits, [1, bits.len(), 1], count, descending, threads)
    }

    /// The first elements along the middle one of three axes.
    fn sorted_along(
        dtype: DType,
        bits: &[u64],
        [outer, extent, inner]: [usize; 3],
        count: usize,
        descending: bool,
        threads: usize,
    ) -> Vec<(u64, i64)> {
        let (width, rows) = (dtype.bytes(), outer * inner);
        let bytes: Vec<u8> = bits.iter().flat_map(|b| b.to_le_bytes()[..width].to_vec()).collect();
        // Whole words, so that every element is aligned.
        let mut x = vec![0u64; bytes.len().div_ceil(8)];
        let mut values = vec![0u64; (rows * count * width).div_ceil(8)];
        let (mut places, mut workspace) = (vec![0i64; rows * count], vec![0u64; 2 * extent]);
        // SAFETY: there is room for all bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), x.as_mut_ptr().cast::<u8>(), bytes.len()) };
        let s = Sort {
            dtype,
            outer,
            extent,
            inner,
            count,
            descending,
        };
        let buffers = Buffers {
            x: x.as_ptr().cast(),
            values: values.as_mut_ptr().cast(),
            places: places.as_mut_ptr().cast(),
            workspace: workspace.as_mut_ptr().cast(),
            rows_at_once: 1,
        };
        // SAFETY: the buffers have the sizes that are asked for, and are apart.
        unsafe { sort(&s, buffers, &Pool::new(threads)).unwrap() };
        // SAFETY: `values` holds an element for each place.
        let value = |k: usize| unsafe { read(values.as_ptr().cast::<u8>().add(k * width), width) };
        (0..rows * count).map(|k| (value(k), places[k])).collect()
    }

    /// Numbers of 64 bits.
    fn random() -> impl FnMut() -> u64 {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        }
    }

    #[test]
    fn a_long_row_is_in_the_defined_order_on_any_number_of_threads() {
        let mut random = random();
        let extent = SHARED_ROW + 77;
        for dtype in [DType::F32, DType::I32, DType::U32, DType::F16, DType::BF16, DType::I8] {
            let mask = u64::MAX >> (64 - 8 * dtype.bytes());
            // Any bits, and few different ones: then positions decide.
            for few in [u64::MAX, 7] {
                let bits: Vec<u64> = (0..extent).map(|_| random() & mask & few).collect();
                for descending in [false, true] {
                    let expected = defined(dtype, &bits, extent, descending);
                    for threads in [2, 3, MOST_PARTS + 1] {
                        let found = sorted(dtype, &bits, extent, descending, threads);
                        assert!(found == expected, "{dtype} {few} {descending} {threads}");
                    }
                }
            }
        }
    }

    #[test]
    fn rows_of_every_dtype_and_length_are_in_the_defined_order() {
        let mut random = random();
        for dtype in DType::ALL.into_iter().filter(|d| !d.is_storage() && *d != DType::Bool) {
            let mask = u64::MAX >> (64 - 8 * dtype.bytes());
            let special = [-0.0, 0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -1.0, 1.0];
            let special: Vec<u64> = special.iter().map(|&v| Scalar::from_f64(dtype, v).bits()).collect();
            for extent in [1usize, 2, 31, 64, 100, 1023, 1024, 5000, 70_000] {
                // Any bits (NaN of every payload among them), few different ones, ascending and descending ones, and all alike.
                for kind in 0..5u64 {
                    let bits: Vec<u64> = (0..extent as u64)
                        .map(|i| match kind {
                            0 if i % 11 == 0 => special[i as usize % special.len()],
                            0 => random() & mask,
                            1 => special[(random() % 7) as usize],
                            2 => i & (mask >> 1),
                            3 => (extent as u64 - i) & (mask >> 1),
                            _ => special[5],
                        })
                        .collect();
                    for descending in [false, true] {
                        let few = (1..=5).chain([17]).filter(|&count| count < extent);
                        for count in few.chain([3, 4, 5, 8, 900].map(|n| extent.div_ceil(n))).chain([extent]) {
                            let (found, expected) = (
                                sorted(dtype, &bits, count, descending, 1),
                                defined(dtype, &bits, count, descending),
                            );
                            assert!(found == expected, "{dtype} {extent} {kind} {descending} {count}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn the_first_along_any_axis_are_in_the_defined_order() {
        let mut random = random();
        for dtype in DType::ALL.into_iter().filter(|d| !d.is_storage() && *d != DType::Bool) {
            let mask = u64::MAX >> (64 - 8 * dtype.bytes());
            let special = [-0.0, 0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -1.0, 1.0];
            let special: Vec<u64> = special.iter().map(|&v| Scalar::from_f64(dtype, v).bits()).collect();
            for [outer, extent, inner] in [[3, 32, 16], [2, 45, 37], [1, 200, 80], [5, 33, 15]] {
                for kind in 0..3 {
                    let bits: Vec<u64> = (0..outer * extent * inner)
                        .map(|_| match (kind, random()) {
                            (0, r) => r & mask,
                            (1, r) => special[(r % 7) as usize],
                            (_, r) if r % 5 > 0 => special[4],
                            (_, r) => special[(r / 5 % 7) as usize],
                        })
                        .collect();
                    for (descending, count) in [false, true].into_iter().flat_map(|d| (1..=6).map(move |n| (d, n))) {
                        let found = sorted_along(dtype, &bits, [outer, extent, inner], count, descending, 1);
                        for (o, i) in (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))) {
                            let row: Vec<u64> = (0..extent).map(|k| bits[(o * extent + k) * inner + i]).collect();
                            let found: Vec<_> = (0..count).map(|k| found[(o * count + k) * inner + i]).collect();
                            let expected = defined(dtype, &row, count, descending);
                            assert!(
                                found == expected,
                                "{dtype} {extent} {inner} {kind} {descending} {count}"
                            );
                        }
                    }
                }
            }
        }
    }
}
