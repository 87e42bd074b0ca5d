//! Operands that lie as windows or as panels, against copies of them.

use tlc_runtime::cpu::gemm::{Composite, Matrix, Product, StridedDim, cut, multiply};
use tlc_runtime::memory::AlignedBuffer;
use tlc_runtime::pool::Pool;

use crate::elements::{Element, Half, Random, Word, halves, words};

/// Axes in one, as sliding windows make them: extents and strides, outermost first, and the elements that they span.
fn dims(random: &mut Random, most: usize) -> Vec<StridedDim> {
    let count = 1 + random.below(3);
    (0..count)
        .map(|_| StridedDim {
            extent: 1 + random.below(most),
            stride: random.below(7) as isize,
        })
        .collect()
}

fn elements(dims: &[StridedDim]) -> usize {
    dims.iter().map(|l| l.extent).product()
}

fn place(dims: &[StridedDim], mut number: usize) -> isize {
    let mut sum = 0;
    for dim in dims.iter().rev() {
        sum += (number % dim.extent) as isize * dim.stride;
        number /= dim.extent;
    }
    sum
}

/// A composite operand (`left` says which) against its copy in C order: the same bits.
fn composite_equals_copied<T: Element>(seed: u64, left: bool) {
    let mut random = Random(seed);
    let (mut outer, mut inner) = (dims(&mut random, 4), dims(&mut random, 4));
    if let Some(last) = inner.last_mut() {
        // Mostly 1, which is copied in vectors.
        last.stride = [1, 1, 1, 2, 0][random.below(5)];
        last.extent += random.below(70);
    }
    if seed.is_multiple_of(4) {
        // More than one block of the sum.
        outer[0].extent += random.below(400);
    }
    let (batch, other) = (1 + random.below(3), 1 + random.below(40));
    lying_equals_copied::<T>(&mut random, &outer, &inner, (batch, other), left);
}

/// An operand whose rows and columns follow `outer` (summed) and `inner` against its copy in C order. Answers whether, with one
/// thread, nothing was packed.
fn lying_equals_copied<T: Element>(
    random: &mut Random,
    outer: &[StridedDim],
    inner: &[StridedDim],
    (batch, other): (usize, usize),
    left: bool,
) -> bool {
    let (summed, across) = (elements(outer), elements(inner));
    let span = |l: &[StridedDim]| place(l, elements(l) - 1) as usize;
    let one = span(outer) + span(inner) + 1;
    let mut x: Vec<T> = (0..batch * one).map(|_| T::of(random.value())).collect();
    let mut y: Vec<T> = (0..batch * summed * other).map(|_| T::of(random.value())).collect();
    let mut copy = Vec::with_capacity(batch * summed * across);
    for e in 0..batch {
        for s in 0..summed {
            let element = |a| x[e * one + (place(outer, s) + place(inner, a)) as usize];
            copy.extend((0..across).map(element));
        }
    }
    let strides = [
        [one as isize],
        [(summed * across) as isize],
        [(summed * other) as isize],
    ];
    let result = [(across * other) as isize];
    let multiplied = |threads: usize, composite: bool, x: &mut [T], copy: &mut [T], y: &mut [T]| {
        let mut c = vec![T::of(7.5); batch * across * other];
        // Summed by across; on the left, transposed.
        let windows = Matrix {
            start: if composite {
                x.as_mut_ptr().cast()
            } else {
                copy.as_mut_ptr().cast()
            },
            batch: if composite { &strides[0] } else { &strides[1] },
            row: if left { 1 } else { across as isize },
            column: if left { across as isize } else { 1 },
            composite: composite.then_some(Composite {
                rows: if left { inner } else { outer },
                columns: if left { outer } else { inner },
                first_row: 0,
                first_column: 0,
                windowed: &[],
            }),
        };
        let plain = Matrix {
            start: y.as_mut_ptr().cast(),
            batch: &strides[2],
            row: if left { other as isize } else { summed as isize },
            column: 1,
            composite: None,
        };
        // Neighbours of the result lie along the windows.
        let (row, column) = if left {
            (1, across as isize)
        } else {
            (across as isize, 1)
        };
        let dst = Matrix {
            start: c.as_mut_ptr().cast(),
            batch: &result,
            row,
            column,
            composite: None,
        };
        let (m, n) = if left { (across, other) } else { (other, across) };
        let (lhs, rhs) = if left { (windows, plain) } else { (plain, windows) };
        let product = Product {
            dtype: T::DTYPE,
            batch: &[batch],
            m,
            n,
            k: summed,
            lhs,
            rhs,
            dst,
        };
        let pool = Pool::new(threads);
        let cut = cut(&product, threads);
        let stride = cut.scratch_bytes.next_multiple_of(64);
        let mut scratch = AlignedBuffer::zeroed(stride * threads).expect("memory");
        scratch.as_mut_slice().fill(0xff);
        // SAFETY: the buffers have the elements that dimensions and strides reach; the result is a buffer of its own.
        unsafe { multiply(&product, &cut, &pool, scratch.as_mut_ptr(), stride, None) }.expect("no panic");
        let packed = scratch.as_slice().iter().any(|&b| b != 0xff);
        (c.into_iter().map(Element::bits).collect::<Vec<u64>>(), packed)
    };
    let (expected, _) = multiplied(1, false, &mut x, &mut copy, &mut y);
    // A vector for an operand is summed as dot products, where it is not composite.
    let alike = across > 1 && other > 1;
    let mut in_place = true;
    for threads in [1, 2, 3] {
        let (found, packed) = multiplied(threads, true, &mut x, &mut copy, &mut y);
        in_place &= !packed;
        if alike {
            assert!(found == expected, "{outer:?} by {inner:?}, {threads} threads");
        } else {
            assert_eq!(found.len(), expected.len());
        }
    }
    in_place
}

#[test]
fn windows_are_multiplied_where_they_lie_as_their_copy_is() {
    let words = words();
    for seed in 0..60 {
        if words {
            composite_equals_copied::<Word>(seed, false);
            composite_equals_copied::<Word>(seed, true);
        }
        composite_equals_copied::<f32>(seed, false);
        composite_equals_copied::<f32>(seed, true);
        composite_equals_copied::<f64>(seed, false);
        composite_equals_copied::<f64>(seed, true);
    }
}

#[test]
fn blocks_of_panels_are_multiplied_where_they_lie() {
    let wide = cfg!(target_arch = "x86_64");
    let mut random = Random(7);
    for (width, blocks, summed) in [
        (64, 3, 40),
        (64, 1, 700),
        (64, 20, 33),
        (32, 5, 600),
        (96, 2, 20),
        (48, 2, 9),
    ] {
        let outer = [StridedDim {
            extent: summed,
            stride: width as isize,
        }];
        // Blocks may have something between them.
        for gap in [0, 5] {
            let inner = [
                StridedDim {
                    extent: blocks,
                    stride: (summed * width + gap) as isize,
                },
                StridedDim {
                    extent: width,
                    stride: 1,
                },
            ];
            for other in [2, 7, 100] {
                let in_place = [
                    lying_equals_copied::<f32>(&mut random, &outer, &inner, (2, other), false),
                    lying_equals_copied::<f64>(&mut random, &outer, &inner, (2, other), false),
                ];
                // The other operand's elements lie together along the sum, so nothing of it is packed either.
                if wide && width == 64 {
                    assert_eq!(in_place, [true; 2], "{blocks} blocks of {width}, {other} rows");
                }
                lying_equals_copied::<f32>(&mut random, &outer, &inner, (1, other), true);
            }
        }
    }
}

/// Words in narrow panels, and pairs of halves in them, which nothing copies.
#[test]
fn panels_of_words_are_multiplied_where_they_lie() {
    let (halves, words) = (halves(), words());
    let dim = |extent: usize, stride: usize| StridedDim {
        extent,
        stride: stride as isize,
    };
    let mut random = Random(8);
    for (blocks, length) in [(3, 40), (1, 300), (20, 33), (5, 600)] {
        for gap in [0, 6] {
            for other in [2, 7, 33, 100] {
                if words {
                    let stride = length * 32 + gap;
                    let (outer, inner) = ([dim(length, 32)], [dim(blocks, stride), dim(32, 1)]);
                    lying_equals_copied::<Word>(&mut random, &outer, &inner, (2, other), false);
                    lying_equals_copied::<Word>(&mut random, &outer, &inner, (1, other), true);
                }
                if halves {
                    let stride = length * 64 + gap;
                    let (outer, inner) = ([dim(length, 64), dim(2, 1)], [dim(blocks, stride), dim(32, 2)]);
                    lying_equals_copied::<Half>(&mut random, &outer, &inner, (2, other), false);
                    lying_equals_copied::<Half>(&mut random, &outer, &inner, (1, other), true);
                }
            }
        }
    }
}
