//! Which bytes of memory were written, and numbers in memory.

/// A bit for each byte: whether it was written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Written {
    words: Vec<u64>,
}

impl Written {
    pub(crate) fn new(bytes: usize) -> Written {
        Written {
            words: vec![0; bytes.div_ceil(64)],
        }
    }

    /// Whether all bytes of a range were.
    pub(crate) fn all(&self, at: usize, bytes: usize) -> bool {
        let (word, bit) = (at / 64, at % 64);
        if bit + bytes <= 64 {
            let mask = ones(bytes) << bit;
            return self.words.get(word).is_some_and(|w| w & mask == mask);
        }
        (at..at + bytes).all(|i| self.words.get(i / 64).is_some_and(|w| w >> (i % 64) & 1 == 1))
    }

    /// Appends the parts of a range that were not, moved on by `base`.
    pub(super) fn unset_ranges(&self, at: usize, bytes: usize, base: u64, found: &mut Vec<(u64, u64)>) {
        let end = at + bytes;
        let mut i = at;
        while i < end {
            let here = (64 - i % 64).min(end - i);
            let word = self.words.get(i / 64).copied().unwrap_or(0) >> (i % 64);
            bit_ranges(!word & ones(here), base + i as u64, found);
            i += here;
        }
    }

    pub(crate) fn set(&mut self, at: usize, bytes: usize) {
        let (word, bit) = (at / 64, at % 64);
        if bit + bytes <= 64 {
            if let Some(w) = self.words.get_mut(word) {
                *w |= ones(bytes) << bit;
            }
            return;
        }
        let end = at + bytes;
        let mut i = at;
        while i < end {
            let here = (64 - i % 64).min(end - i);
            if let Some(w) = self.words.get_mut(i / 64) {
                *w |= ones(here) << (i % 64);
            }
            i += here;
        }
    }

    pub(crate) fn unset(&mut self, at: usize, bytes: usize) {
        let end = at + bytes;
        let mut i = at;
        while i < end {
            let here = (64 - i % 64).min(end - i);
            if let Some(w) = self.words.get_mut(i / 64) {
                *w &= !(ones(here) << (i % 64));
            }
            i += here;
        }
    }

    /// Appends its ranges, moved on by `base`; one that goes on where the last ended is joined with it.
    pub(super) fn ranges(&self, base: u64, found: &mut Vec<(u64, u64)>) {
        for (index, &word) in self.words.iter().enumerate() {
            bit_ranges(word, base + index as u64 * 64, found);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.words.fill(0);
    }
}

/// Appends a range; one that goes on where the last ended is joined with it.
pub(super) fn append(found: &mut Vec<(u64, u64)>, start: u64, len: u64) {
    match found.last_mut() {
        Some(last) if last.1 == start => last.1 += len,
        _ => found.push((start, start + len)),
    }
}

/// Appends the runs of ones of a word.
fn bit_ranges(word: u64, base: u64, found: &mut Vec<(u64, u64)>) {
    let mut rest = word;
    while rest != 0 {
        let first = rest.trailing_zeros();
        let len = (rest >> first).trailing_ones();
        append(found, base + u64::from(first), u64::from(len));
        rest &= !(ones(len as usize) << first);
    }
}

const fn ones(bits: usize) -> u64 {
    if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
}

/// Little-endian bytes of memory as a number.
pub(crate) fn load(data: &[u8], at: usize, bytes: u32) -> u64 {
    let slice = &data[at..at + bytes as usize];
    match *slice {
        [a] => u64::from(a),
        [a, b] => u64::from(u16::from_le_bytes([a, b])),
        [a, b, c, d] => u64::from(u32::from_le_bytes([a, b, c, d])),
        [a, b, c, d, e, f, g, h] => u64::from_le_bytes([a, b, c, d, e, f, g, h]),
        _ => 0,
    }
}

/// A number as little-endian bytes of memory.
pub(crate) fn store(data: &mut [u8], at: usize, bytes: u32, value: u64) {
    let slice = &mut data[at..at + bytes as usize];
    match slice {
        [a] => *a = value as u8,
        [_, _] => slice.copy_from_slice(&(value as u16).to_le_bytes()),
        [_, _, _, _] => slice.copy_from_slice(&(value as u32).to_le_bytes()),
        _ => slice.copy_from_slice(&value.to_le_bytes()[..bytes as usize]),
    }
}
