//! Counter-based random bits: Threefry-2x32 with 20 rounds.
//!
//! Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 3.2. Rotations and the
//! parity constant are those of the Skein hash function 1.3 as Random123 uses them.

const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];
const PARITY: u32 = 0x1bd1_1bda;

/// Threefry-2x32-20 of a counter under a key.
pub fn threefry2x32(key: [u32; 2], counter: [u32; 2]) -> [u32; 2] {
    let schedule = [key[0], key[1], PARITY ^ key[0] ^ key[1]];
    let mut x0 = counter[0].wrapping_add(schedule[0]);
    let mut x1 = counter[1].wrapping_add(schedule[1]);
    for group in 0..5u32 {
        for r in ROTATIONS[group as usize % 2] {
            x0 = x0.wrapping_add(x1);
            x1 = x1.rotate_left(r) ^ x0;
        }
        let next = group as usize + 1;
        x0 = x0.wrapping_add(schedule[next % 3]);
        x1 = x1.wrapping_add(schedule[(next + 1) % 3]).wrapping_add(next as u32);
    }
    [x0, x1]
}

/// The bits of element `index` of a Random node: the first word under the key (low word first) and the counter
/// (flat index, stream).
pub fn random_bits(key: u64, index: u32, stream: u32) -> u32 {
    threefry2x32([key as u32, (key >> 32) as u32], [index, stream])[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threefry_gives_the_known_answers_of_random123() {
        assert_eq!(threefry2x32([0, 0], [0, 0]), [0x6b200159, 0x99ba4efe]);
        assert_eq!(threefry2x32([u32::MAX; 2], [u32::MAX; 2]), [0x1cb996fc, 0xbb002be7]);
        assert_eq!(
            threefry2x32([0x13198a2e, 0x03707344], [0x243f6a88, 0x85a308d3]),
            [0xc4923a9c, 0x483df7a0]
        );
    }
}
