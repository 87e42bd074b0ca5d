//! Products by tiles of matrices that have whole squares of 32 results, which are computed one after the other, beside parts of squares.

use std::sync::atomic::{AtomicU32, Ordering};

use tlc_ir::DType;
use tlc_runtime::cpu::gemm::{Follow, Product, Side, cut, multiply};
use tlc_runtime::memory::AlignedBuffer;
use tlc_runtime::pool::Pool;

use super::elements::{Element, Half, Random, Word, halves, words};
use super::{Case, Order, at, check, layout, matrix, run};

/// Sums of no whole step, one, several, so many that rows share sets of a cache, of several blocks, and more than are multiplied at once.
const SUMS: [usize; 12] = [7, 15, 16, 32, 48, 144, 256, 272, 304, 512, 1040, 2080];

fn squares<T: Element>() {
    let mut random = Random(31);
    for (number, &(m, n)) in [(32, 32), (64, 33), (33, 64), (96, 70), (49, 128), (70, 160), (128, 47)]
        .iter()
        .enumerate()
    {
        for &k in &SUMS {
            let k = if T::DTYPE == DType::BF16 { 2 * k } else { k };
            // The long ones once each: they are summed in f64 too.
            if k > 300 && number % 3 != 0 {
                continue;
            }
            let operand = |random: &mut Random| [Order::Rows, Order::Columns, Order::Sparse][random.below(3)];
            let orders = [
                operand(&mut random),
                operand(&mut random),
                [Order::Rows, Order::Rows, Order::Columns, Order::Sparse][random.below(4)],
            ];
            for orders in [[Order::Rows, orders[1], Order::Rows], orders] {
                let case = Case {
                    batch: 1,
                    m,
                    n,
                    k,
                    orders,
                };
                check::<T>(case, k as u64, &[1, 2, 3]);
            }
        }
    }
    // Sums that are continued in the results.
    if T::DTYPE == DType::I32 {
        for (m, n, k) in [(40, 70, 2050), (64, 64, 4112), (33, 40, 4100)] {
            for dst in [Order::Rows, Order::Columns] {
                let orders = [Order::Rows, Order::Rows, dst];
                check::<T>(
                    Case {
                        batch: 1,
                        m,
                        n,
                        k,
                        orders,
                    },
                    1,
                    &[1, 2],
                );
            }
        }
    }
}

#[test]
fn whole_squares_and_parts_of_them_are_sums_of_products() {
    if words() {
        squares::<Word>();
    }
    if halves() {
        squares::<Half>();
    }
}

/// A result has the same bits in a whole square as in a part of one, with any rows and columns beside it.
#[test]
fn results_of_squares_have_the_bits_of_those_of_parts() {
    if !halves() {
        return;
    }
    let mut random = Random(5);
    for k in [32, 64, 500, 512, 544, 1024, 1500, 2048] {
        let (m, n) = (96, 96);
        let orders = [Order::Rows; 3];
        let case = Case {
            batch: 1,
            m,
            n,
            k,
            orders,
        };
        let (la, lb) = (layout(orders[0], 1, m, k), layout(orders[1], 1, k, n));
        let mut fill = |len: usize| -> Vec<Half> { (0..len).map(|_| Half::of(random.value())).collect() };
        let (mut a, mut b) = (fill(la.len), fill(lb.len));
        let (all, of_all) = run(case, &mut a, &mut b, &[1, 2, 3]);
        for (rows, columns) in [(40, 96), (96, 40), (33, 65), (20, 20), (64, 95)] {
            let mut few: Vec<Half> = (0..k)
                .flat_map(|s| (0..columns).map(move |j| (s, j)))
                .map(|(s, j)| b[at(&lb, 0, s, j)])
                .collect();
            let case = Case {
                batch: 1,
                m: rows,
                n: columns,
                k,
                orders,
            };
            let (some, of_some) = run(case, &mut a[..rows * k], &mut few, &[1, 2]);
            for (i, j) in (0..rows).flat_map(|i| (0..columns).map(move |j| (i, j))) {
                let (here, there) = (at(&of_all, 0, i, j), at(&of_some, 0, i, j));
                assert_eq!(all[here].bits(), some[there].bits(), "{case:?} {i} {j}");
            }
        }
    }
}

/// Lines are told once each, when all their elements are final.
fn told<T: Element + Sync>() {
    for (m, n, k) in [
        (64, 1024, 64),
        (96, 300, 512),
        (200, 512, 48),
        (130, 1024, 2064),
        (70, 160, 30),
    ] {
        let case = Case {
            batch: 1,
            m,
            n,
            k,
            orders: [Order::Rows; 3],
        };
        let mut random = Random(k as u64);
        let mut fill = |len: usize| -> Vec<T> { (0..len).map(|_| T::of(random.value())).collect() };
        let (mut a, mut b) = (fill(m * k), fill(k * n));
        let (expected, lc) = run(case, &mut a, &mut b, &[1]);
        let (la, lb) = (layout(Order::Rows, 1, m, k), layout(Order::Rows, 1, k, n));
        for threads in [1, 2] {
            let mut c = vec![T::of(7.5); lc.len];
            let batch = [0];
            let product = Product {
                dtype: T::DTYPE,
                batch: &[1],
                m,
                n,
                k,
                lhs: matrix(a.as_mut_ptr(), &la, &batch),
                rhs: matrix(b.as_mut_ptr(), &lb, &batch),
                dst: matrix(c.as_mut_ptr(), &lc, &batch),
            };
            let cut = cut(&product, threads);
            let stride = cut.scratch_bytes.next_multiple_of(64);
            let mut scratch = AlignedBuffer::zeroed(stride * threads).expect("memory");
            let done: Vec<AtomicU32> = (0..cut.counters(Side::Rows, 1)).map(|_| AtomicU32::new(0)).collect();
            let told: Vec<AtomicU32> = (0..m).map(|_| AtomicU32::new(0)).collect();
            let early = AtomicU32::new(0);
            let address = c.as_mut_ptr().expose_provenance();
            let tell = |_: usize, _: usize, lines: std::ops::Range<usize>, next: &mut u64| {
                let from = lines.start.max(*next as usize).min(lines.end);
                for told in &told[from..lines.end] {
                    told.fetch_add(1, Ordering::Relaxed);
                }
                for (at, meant) in (from * n..).zip(&expected[from * n..lines.end * n]) {
                    // SAFETY: an element of the result, which nobody writes any more: that is what is tested.
                    let now = unsafe { std::ptr::with_exposed_provenance::<T>(address).add(at).read() };
                    early.fetch_add(u32::from(now.bits() != meant.bits()), Ordering::Relaxed);
                }
                *next = lines.end as u64;
            };
            let follow = Follow {
                side: Side::Rows,
                run: &tell,
                done: &done,
            };
            // SAFETY: the layouts say where the matrices lie; the result is a buffer of its own.
            unsafe {
                multiply(
                    &product,
                    &cut,
                    &Pool::new(threads),
                    scratch.as_mut_ptr(),
                    stride,
                    Some(&follow),
                )
            }
            .expect("no panic");
            let what = format!("{case:?} {threads} threads");
            assert!(told.iter().all(|t| t.load(Ordering::Relaxed) == 1), "{what}");
            assert_eq!(early.load(Ordering::Relaxed), 0, "{what}: elements that were not final");
        }
    }
}

#[test]
fn lines_of_squares_are_told_once_and_when_they_are_complete() {
    if words() {
        told::<Word>();
    }
    if halves() {
        told::<Half>();
    }
}
