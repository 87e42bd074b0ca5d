use super::*;

/// Runs one copy, every row of which has a gap behind it, and compares all bytes.
fn check(element: usize, transposed: bool, streaming: bool, (rows, columns): (usize, usize), shift: usize, gap: usize) {
    let unit = if transposed { element } else { 1 };
    let f = address(unit as u8, transposed, streaming).unwrap();
    // SAFETY: the address is of a function of this type.
    let f = unsafe { std::mem::transmute::<*const u8, Copy>(f) };
    let (read_rows, read_columns) = if transposed { (columns, rows) } else { (rows, columns) };
    let (to_pitch, from_pitch) = ((columns + gap) * element, (read_columns + gap) * element);
    let source: Vec<u8> = (0..shift + read_rows * from_pitch)
        .map(|k| (k * 7 + k / 251) as u8)
        .collect();
    let mut found = vec![0xEEu8; shift + rows * to_pitch];
    let mut expected = found.clone();
    for r in 0..rows {
        for c in 0..columns {
            let (i, j) = if transposed { (c, r) } else { (r, c) };
            let to = shift + r * to_pitch + c * element;
            let from = shift + i * from_pitch + j * element;
            expected[to..to + element].copy_from_slice(&source[from..from + element]);
        }
    }
    let width = if transposed { columns } else { columns * element };
    // SAFETY: the blocks lie in the two vectors.
    unsafe {
        f(
            found.as_mut_ptr().add(shift),
            to_pitch as i64,
            source.as_ptr().add(shift),
            from_pitch as i64,
            rows as i64,
            width as i64,
        );
    }
    let what = format!("{element} bytes, transposed {transposed}, streaming {streaming}, {rows}x{columns}, at {shift}");
    assert!(found == expected, "{what}");
}

#[test]
fn every_copy_moves_every_element_and_nothing_else() {
    let sizes = [
        (0, 5),
        (5, 0),
        (1, 1),
        (1, 300),
        (300, 1),
        (7, 9),
        (10, 64),
        (64, 10),
        (3, 64),
        (6, 37),
        (37, 18),
        (16, 16),
        (64, 128),
        (65, 129),
        (130, 260),
        (200, 31),
    ];
    for streaming in [false, true] {
        for transposed in [false, true] {
            for element in [1, 2, 4, 8] {
                for size in sizes {
                    for (shift, gap) in [(0, 0), (element, 3), (64, 64), (13 * element, 0)] {
                        check(element, transposed, streaming, size, shift, gap);
                    }
                }
            }
        }
    }
}

#[test]
fn aligned_rows_take_the_direct_way() {
    for element in [4usize, 8] {
        let side = 64 / element;
        let (rows, columns) = (4 * side, 6 * side);
        let source: Vec<u64> = (0..(rows * columns * element / 8) as u64)
            .map(|k| k.wrapping_mul(0x9E37_79B9_7F4A_7C15))
            .collect();
        let mut found = vec![0u8; rows * columns * element + 64];
        let start = found.as_ptr().align_offset(64);
        let f = address(element as u8, true, true).unwrap();
        // SAFETY: the address is of a function of this type, and the blocks lie in the two vectors.
        unsafe {
            let f = std::mem::transmute::<*const u8, Copy>(f);
            f(
                found.as_mut_ptr().add(start),
                (columns * element) as i64,
                source.as_ptr().cast(),
                (rows * element) as i64,
                rows as i64,
                columns as i64,
            );
        }
        let source: Vec<u8> = source.iter().flat_map(|x| x.to_ne_bytes()).collect();
        for r in 0..rows {
            for c in 0..columns {
                let (to, from) = (start + (r * columns + c) * element, (c * rows + r) * element);
                assert_eq!(found[to..to + element], source[from..from + element], "{r} {c}");
            }
        }
    }
}
