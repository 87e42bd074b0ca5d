//! Matrix products: values against sums in f64, whatever the strides; the same bits whatever the threads; nothing read or
//! written beyond the matrices. The same for words of four bytes and for bf16, where the processor has
//! instructions for them.

mod elements;
#[path = "../guarded/mod.rs"]
mod guarded;
mod lying;
mod squares;

use std::sync::atomic::{AtomicU32, Ordering};

#[cfg(target_os = "linux")]
use guarded::{Edge, Guarded};
use tlc_ir::DType;
use tlc_runtime::cpu::gemm::{Follow, Matrix, Product, Side, cut, multiply};
use tlc_runtime::cpu::level::{self, Halves};
use tlc_runtime::memory::AlignedBuffer;
use tlc_runtime::pool::Pool;

use elements::{Element, Half, Random, Word, halves, words};

/// How a matrix of a stack lies in memory.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Order {
    Rows,
    Columns,
    /// Rows, every other element.
    Sparse,
    /// Rows, the last one first and the last element of each first.
    Backward,
    /// One row for all.
    SameRow,
}

/// A stack in memory: strides, where it begins and how long it is.
struct Layout {
    batch: isize,
    row: isize,
    column: isize,
    first: usize,
    len: usize,
}

fn layout(order: Order, batch: usize, rows: usize, columns: usize) -> Layout {
    let (r, c) = (rows as isize, columns as isize);
    let (row, column, each) = match order {
        Order::Rows => (c, 1, rows * columns),
        Order::Columns => (1, r, rows * columns),
        Order::Sparse => (2 * c, 2, 2 * rows * columns),
        Order::Backward => (-c, -1, rows * columns),
        Order::SameRow => (0, 1, columns),
    };
    let first = if order == Order::Backward {
        (rows * columns).saturating_sub(1)
    } else {
        0
    };
    Layout {
        batch: each as isize,
        row,
        column,
        first,
        len: batch * each,
    }
}

#[derive(Clone, Copy, Debug)]
struct Case {
    batch: usize,
    m: usize,
    n: usize,
    k: usize,
    orders: [Order; 3],
}

fn matrix<'a, T>(data: *mut T, l: &Layout, batch: &'a [isize]) -> Matrix<'a> {
    Matrix {
        start: data.wrapping_add(l.first).cast(),
        batch,
        row: l.row,
        column: l.column,
        composite: None,
    }
}

/// Runs a case on pools of several sizes, checks the bits against each other, and returns the first result.
fn run<T: Element>(case: Case, a: &mut [T], b: &mut [T], threads: &[usize]) -> (Vec<T>, Layout) {
    let Case { batch, m, n, k, orders } = case;
    let (la, lb) = (layout(orders[0], batch, m, k), layout(orders[1], batch, k, n));
    let lc = layout(orders[2], batch, m, n);
    let mut first: Option<Vec<T>> = None;
    for &t in threads {
        let pool = Pool::new(t);
        let mut c = vec![T::of(7.5); lc.len];
        let (ba, bb, bc) = ([la.batch], [lb.batch], [lc.batch]);
        let product = Product {
            dtype: T::DTYPE,
            batch: &[batch],
            m,
            n,
            k,
            lhs: matrix(a.as_mut_ptr(), &la, &ba),
            rhs: matrix(b.as_mut_ptr(), &lb, &bb),
            dst: matrix(c.as_mut_ptr(), &lc, &bc),
        };
        let cut = cut(&product, t);
        let stride = cut.scratch_bytes.next_multiple_of(64);
        let mut scratch = AlignedBuffer::zeroed(stride * t).expect("memory");
        // What lies in scratch must not matter.
        scratch.as_mut_slice().fill(0xff);
        // SAFETY: the layouts say where the matrices lie; the result is a buffer of its own.
        unsafe { multiply(&product, &cut, &pool, scratch.as_mut_ptr(), stride, None) }.expect("no panic");
        match &first {
            None => first = Some(c),
            Some(f) => {
                let same = f.iter().zip(&c).all(|(x, y)| x.bits() == y.bits());
                assert!(same, "{case:?} {}: {t} threads", T::DTYPE);
            }
        }
    }
    (first.expect("at least one pool"), lc)
}

fn at(l: &Layout, batch: usize, row: usize, column: usize) -> usize {
    let to = batch as isize * l.batch + row as isize * l.row + column as isize * l.column;
    (l.first as isize + to) as usize
}

fn check<T: Element>(case: Case, seed: u64, threads: &[usize]) {
    let Case { batch, m, n, k, orders } = case;
    let mut random = Random(seed);
    let (la, lb) = (layout(orders[0], batch, m, k), layout(orders[1], batch, k, n));
    let mut fill = |len: usize| -> Vec<T> { (0..len).map(|_| T::of(random.value())).collect() };
    let (mut a, mut b) = (fill(la.len), fill(lb.len));
    let (c, lc) = run(case, &mut a, &mut b, threads);
    let mut written = vec![false; c.len()];
    for e in 0..batch {
        for i in 0..m {
            for j in 0..n {
                let (mut sum, mut terms) = (0f64, 0f64);
                for s in 0..k {
                    let term = a[at(&la, e, i, s)].product(b[at(&lb, e, s, j)]);
                    sum += term;
                    terms += term.abs();
                }
                let place = at(&lc, e, i, j);
                written[place] = true;
                let off = (c[place].wide() - sum).abs();
                let allowed = T::allowed(k, sum, terms);
                assert!(
                    off <= allowed,
                    "{case:?} [{e}, {i}, {j}]: {} is not {sum}",
                    c[place].wide()
                );
            }
        }
    }
    for (place, value) in c.iter().enumerate() {
        assert!(written[place] || *value == T::of(7.5), "{case:?}: wrote at {place}");
    }
}

const OPERANDS: [Order; 5] = [
    Order::Rows,
    Order::Columns,
    Order::Sparse,
    Order::Backward,
    Order::SameRow,
];

#[test]
fn products_of_any_strides_are_sums_of_products() {
    let (mut random, halves, words) = (Random(1), halves(), words());
    for number in 0..400 {
        let mut extent = |most: usize| match random.below(4) {
            0 => random.below(4),
            1 => random.below(20),
            _ => random.below(most),
        };
        let (m, n, k) = (extent(150), extent(150), extent(80));
        let order = |random: &mut Random| OPERANDS[random.below(5)];
        let case = Case {
            batch: 1 + random.below(4),
            m,
            n,
            k,
            orders: [order(&mut random), order(&mut random), OPERANDS[random.below(4)]],
        };
        check::<f32>(case, number, &[1, 3]);
        check::<f64>(case, number, &[1, 3]);
        if halves {
            check::<Half>(case, number, &[1, 3]);
        }
        if words {
            check::<Word>(case, number, &[1, 3]);
        }
    }
}

#[test]
fn a_vector_for_an_operand_is_summed_alike_by_any_cut() {
    let halves = halves();
    for k in [1, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 48, 100, 513, 2048] {
        for (m, n) in [(1, 1), (1, 5), (5, 1), (1, 64), (67, 1), (1, 3001), (3001, 1)] {
            for dst in [Order::Rows, Order::Columns, Order::Backward] {
                let case = Case {
                    batch: 2,
                    m,
                    n,
                    k,
                    orders: [Order::Rows, Order::Columns, dst],
                };
                check::<f32>(case, 9, &[1, 2, 3]);
                check::<f64>(case, 9, &[1, 2, 3]);
                if halves {
                    check::<Half>(case, 9, &[1, 2, 3]);
                    let rows = [Order::Rows, Order::Rows, dst];
                    check::<Half>(Case { orders: rows, ..case }, 9, &[1, 2, 3]);
                }
            }
        }
    }
}

/// Few rows by a matrix whose columns lie together, and the mirror of that: each result has the bits that it has among many rows, or, where there are few
/// lines as well, those that it has alone.
#[test]
fn few_vectors_are_summed_as_many_and_small_results_as_each_of_them_alone() {
    fn among_many<T: Element>(case: Case, seed: u64) {
        check::<T>(case, seed, &[1, 2, 3]);
        let Case { m, n, k, orders, .. } = case;
        let large = match m <= n {
            true => Case { m: 100, ..case },
            false => Case { n: 100, ..case },
        };
        let mut random = Random(seed);
        let (la, lb) = (layout(orders[0], 1, large.m, k), layout(orders[1], 1, k, large.n));
        let mut fill = |len: usize| -> Vec<T> { (0..len).map(|_| T::of(random.value())).collect() };
        let (mut a, mut b) = (fill(la.len), fill(lb.len));
        let (all, of_all) = run(large, &mut a, &mut b, &[1, 2]);
        let (some, of_some) = run(case, &mut a, &mut b, &[1, 2]);
        for i in 0..m {
            for j in 0..n {
                let (here, there) = (at(&of_all, 0, i, j), at(&of_some, 0, i, j));
                assert_eq!(all[here].bits(), some[there].bits(), "{case:?} {i} {j}");
            }
        }
    }
    fn alone<T: Element>(case: Case, seed: u64) {
        check::<T>(case, seed, &[1, 2, 3]);
        let Case { m, n, k, orders, .. } = case;
        let mut random = Random(seed);
        let (la, lb) = (layout(orders[0], 1, m, k), layout(orders[1], 1, k, n));
        let mut fill = |len: usize| -> Vec<T> { (0..len).map(|_| T::of(random.value())).collect() };
        let (mut a, mut b) = (fill(la.len), fill(lb.len));
        let (all, lc) = run(case, &mut a, &mut b, &[1]);
        for i in 0..m.min(n) {
            let (case, row, column) = match m <= n {
                true => (Case { m: 1, ..case }, i, 0),
                false => (Case { n: 1, ..case }, 0, i),
            };
            let (a, b) = (&mut a[row * k..], &mut b[column * k..]);
            let (one, lone) = run(case, a, b, &[1]);
            for j in 0..m.max(n) {
                let (here, there) = match m <= n {
                    true => (at(&lc, 0, i, j), at(&lone, 0, 0, j)),
                    false => (at(&lc, 0, j, i), at(&lone, 0, j, 0)),
                };
                assert_eq!(all[here].bits(), one[there].bits(), "{case:?} {i} {j}");
            }
        }
    }
    let mut random = Random(5);
    for vectors in 2..=20 {
        for round in 0..4 {
            // From 16 elements a vector on, of small results from 48; below it is the micro-kernels'.
            let lines = vectors + [0, 1, 11, 60][random.below(4)] + random.below(30);
            let small = vectors < 16 && lines < 16;
            let least = if small { 48 } else { 16 };
            let k = (least + [0, 1, 17, 32][round]) * vectors + random.below(3) * 16;
            let (m, n) = match random.below(2) {
                0 => (vectors, lines),
                _ => (lines, vectors),
            };
            let dst = [Order::Rows, Order::Columns, Order::Backward][random.below(3)];
            let orders = [Order::Rows, Order::Columns, dst];
            let case = Case {
                batch: 1,
                m,
                n,
                k,
                orders,
            };
            if small {
                alone::<f32>(case, round as u64);
                alone::<f64>(case, round as u64);
            } else {
                among_many::<f32>(case, round as u64);
                among_many::<f64>(case, round as u64);
            }
            check::<f32>(Case { batch: 3, ..case }, 7, &[1, 3]);
        }
    }
}

/// Where the columns of the right operand lie beside each other, a row has the same bits in a product of any number of rows.
#[test]
fn a_row_is_summed_alike_among_few_and_among_many() {
    fn same<T: Element>(k: usize, n: usize, orders: [Order; 3], few: usize) {
        let many = 100;
        let mut random = Random(k as u64);
        let (la, lb) = (layout(orders[0], 1, many, k), layout(Order::Rows, 1, k, n));
        let mut fill = |len: usize| -> Vec<T> { (0..len).map(|_| T::of(random.value())).collect() };
        let (mut a, mut b) = (fill(la.len), fill(lb.len));
        let orders = [orders[0], Order::Rows, orders[2]];
        let case = |m: usize| Case {
            batch: 1,
            m,
            n,
            k,
            orders,
        };
        let (all, lc) = run(case(many), &mut a, &mut b, &[1, 2]);
        let lf = layout(orders[0], 1, few, k);
        let mut first = vec![T::default(); lf.len];
        for i in 0..few {
            for s in 0..k {
                first[at(&lf, 0, i, s)] = a[at(&la, 0, i, s)];
            }
        }
        let (some, ls) = run(case(few), &mut first, &mut b, &[1, 3]);
        for i in 0..few {
            for j in 0..n {
                let (one, other) = (some[at(&ls, 0, i, j)], all[at(&lc, 0, i, j)]);
                assert_eq!(
                    one.bits(),
                    other.bits(),
                    "{few} rows of {k} by {n}, {orders:?}: [{i}, {j}]"
                );
            }
        }
    }
    let mut random = Random(3);
    for few in 2..=40 {
        let k = [1, 7, 8, 100, 513, 1300][random.below(6)] + random.below(9);
        let n = [17, 64, 200, 700][random.below(4)] + random.below(40);
        let left = [Order::Rows, Order::Columns, Order::Sparse][random.below(3)];
        let orders = [left, Order::Rows, [Order::Rows, Order::Sparse][random.below(2)]];
        same::<f32>(k, n, orders, few);
        same::<f64>(k, n, orders, few);
        if halves() {
            same::<Half>(k, n, orders, few);
        }
        if words() {
            same::<Word>(k, n, orders, few);
        }
    }
}

#[test]
fn long_sums_are_taken_in_the_same_blocks_by_any_cut() {
    let (halves, words) = (halves(), words());
    for (m, n, k) in [
        (97, 130, 1111),
        (3, 700, 513),
        (700, 3, 512),
        (2, 2, 5000),
        (130, 257, 600),
    ] {
        for (lhs, rhs) in [(Order::Rows, Order::Rows), (Order::Columns, Order::Columns)] {
            for dst in [Order::Rows, Order::Columns] {
                let case = Case {
                    batch: 1,
                    m,
                    n,
                    k,
                    orders: [lhs, rhs, dst],
                };
                check::<f32>(case, 5, &[1, 2, 3, 8]);
                check::<f64>(case, 5, &[1, 2, 3, 8]);
                if halves {
                    check::<Half>(case, 5, &[1, 2, 3, 8]);
                }
                if words {
                    check::<Word>(case, 5, &[1, 2, 3, 8]);
                }
            }
        }
    }
}

/// Every way in which rows, columns and sums end within tiles.
#[test]
fn edges_of_tiles_are_right() {
    let (halves, words) = (halves(), words());
    let edges = [1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65];
    let mut random = Random(11);
    for m in edges {
        for n in edges {
            for k in [1, 2, 15, 16, 17, 31, 32, 33, 48, 64, 65, 255, 257] {
                let order = |random: &mut Random| OPERANDS[random.below(2)];
                let orders = [order(&mut random), order(&mut random), order(&mut random)];
                let case = Case {
                    batch: 1,
                    m,
                    n,
                    k,
                    orders,
                };
                if halves {
                    check::<Half>(case, k as u64, &[1]);
                }
                if words {
                    check::<Word>(case, k as u64, &[1]);
                }
            }
        }
    }
}

/// What `vdpbf16ps` does with a lane, as the Software Developer's Manual has it: the products of the odd elements, then those of the even ones,
/// are added with one rounding each, and what is no normal number is zero.
fn pair_added(sum: f32, [even, odd]: [(Half, Half); 2]) -> f32 {
    let normal = |x: f32| if x.is_subnormal() { 0f32.copysign(x) } else { x };
    let added = |sum: f32, (a, b): (Half, Half)| normal(normal(a.to_f32()).mul_add(normal(b.to_f32()), normal(sum)));
    added(added(sum, odd), even)
}

/// A result is one chain of pairs along the sum, whatever the strides, the rows beside it and the threads.
#[test]
fn pairs_are_added_one_after_the_other() {
    if level::halves() != Some(Halves::Pairs) {
        println!("SKIP: bf16 is not multiplied by pairs at {}", level::name());
        return;
    }
    let mut random = Random(21);
    let sizes = [
        (2, 33, 7),
        (3, 40, 520),
        (13, 64, 65),
        (40, 31, 33),
        (33, 70, 1030),
        (100, 5, 16),
        (5, 50, 17),
        (66, 97, 33),
    ];
    for (m, n, k) in sizes {
        for orders in [
            [Order::Rows; 3],
            [Order::Columns, Order::Rows, Order::Rows],
            [Order::Rows, Order::Columns, Order::Rows],
            [Order::Rows, Order::Columns, Order::Columns],
            [Order::Sparse, Order::Backward, Order::Sparse],
        ] {
            let case = Case {
                batch: 1,
                m,
                n,
                k,
                orders,
            };
            let (la, lb) = (layout(orders[0], 1, m, k), layout(orders[1], 1, k, n));
            let mut fill = |len: usize| -> Vec<Half> {
                let value = |random: &mut Random| match random.below(40) {
                    // Products and elements that are no normal numbers, and zeros.
                    0 => 1e-39,
                    1 => -1e-25,
                    2 => -0.0,
                    _ => random.value(),
                };
                (0..len).map(|_| Half::from_f64(value(&mut random))).collect()
            };
            let (mut a, mut b) = (fill(la.len), fill(lb.len));
            let (c, lc) = run(case, &mut a, &mut b, &[1, 2, 3, 8]);
            for i in 0..m {
                for j in 0..n {
                    let element = |s: usize| match s < k {
                        true => (a[at(&la, 0, i, s)], b[at(&lb, 0, s, j)]),
                        false => (Half::ZERO, Half::ZERO),
                    };
                    let words = (0..k).step_by(2).map(|s| [element(s), element(s + 1)]);
                    let sum = Half::from_f32(words.fold(0.0, pair_added));
                    assert_eq!(c[at(&lc, 0, i, j)].to_bits(), sum.to_bits(), "{case:?} {i} {j}");
                }
            }
        }
    }
}

#[test]
fn stacks_are_shared_between_threads_to_the_same_bits() {
    for (batch, m, n, k) in [
        (40, 33, 50, 17),
        (3, 128, 128, 64),
        (500, 4, 5, 6),
        (0, 8, 8, 8),
        (7, 64, 200, 100),
    ] {
        let orders = [Order::Rows, Order::Columns, Order::Rows];
        check::<f32>(Case { batch, m, n, k, orders }, 9, &[1, 2, 4, 7]);
        if halves() {
            check::<Half>(Case { batch, m, n, k, orders }, 9, &[1, 2, 4, 7]);
        }
        if words() {
            check::<Word>(Case { batch, m, n, k, orders }, 9, &[1, 2, 4, 7]);
        }
    }
}

#[test]
fn an_empty_sum_is_zero_and_an_empty_result_is_nothing() {
    for (m, n, k) in [(5, 7, 0), (0, 7, 3), (5, 0, 3), (0, 0, 0)] {
        let orders = [Order::Rows, Order::Rows, Order::Rows];
        let case = Case {
            batch: 2,
            m,
            n,
            k,
            orders,
        };
        check::<f32>(case, 3, &[1, 2]);
        if halves() {
            check::<Half>(case, 3, &[1, 2]);
        }
        if words() {
            check::<Word>(case, 3, &[1, 2]);
        }
    }
}

#[test]
fn nan_and_infinity_stay_in_their_row_and_column() {
    specials_stay_in_place::<f32>();
    if halves() {
        specials_stay_in_place::<Half>();
    }
}

fn specials_stay_in_place<T: Element>() {
    let few = [Order::Rows, Order::Columns, Order::Rows];
    let most = [[Order::Rows; 3], [Order::Columns, Order::Columns, Order::Rows]];
    for (m, place, value) in [
        (70, (13, 77), f32::NAN),
        (70, (69, 599), f32::INFINITY),
        (70, (0, 0), f32::NEG_INFINITY),
        (3, (2, 599), f32::NAN),
        (7, (5, 100), f32::INFINITY),
    ] {
        let (n, k) = (90, 608);
        for orders in most.into_iter().chain([few]) {
            let case = Case {
                batch: 1,
                m,
                n,
                k,
                orders,
            };
            let la = layout(orders[0], 1, m, k);
            let (mut a, mut b) = (vec![T::of(1.0); m * k], vec![T::of(0.5); k * n]);
            a[at(&la, 0, place.0, place.1)] = T::of(value.into());
            let (c, lc) = run(case, &mut a, &mut b, &[1, 2]);
            for i in 0..m {
                for j in 0..n {
                    let found = c[at(&lc, 0, i, j)].wide() as f32;
                    if i != place.0 {
                        // A whole number of eight bits.
                        assert_eq!(found, k as f32 * 0.5);
                    } else if value.is_nan() {
                        assert!(found.is_nan());
                    } else {
                        assert_eq!(found, value);
                    }
                }
            }
        }
    }
}

#[test]
#[cfg(target_os = "linux")]
fn nothing_beyond_the_end_of_a_matrix_is_touched() {
    let asked = [(DType::F32, true), (DType::BF16, halves()), (DType::I32, words())];
    let dtypes = asked.into_iter().filter(|d| d.1).map(|d| d.0);
    for (m, n, k) in [
        (1, 1, 1),
        (6, 64, 3),
        (7, 65, 33),
        (48, 16, 9),
        (5, 80, 40),
        (31, 10, 128),
        (3, 29, 145),
        (16, 33, 770),
        (90, 7, 337),
        (64, 64, 64),
    ] {
        for (row_a, row_b) in [(true, true), (false, true), (true, false), (false, false)] {
            for row_c in [true, false] {
                let strides = |rows: usize, columns: usize, by_row: bool| match by_row {
                    true => (columns as isize, 1),
                    false => (1, rows as isize),
                };
                for dtype in dtypes.clone() {
                    let bytes = dtype.bytes();
                    let (a, b, c) = (
                        Guarded::new(bytes * m * k, Edge::End),
                        Guarded::new(bytes * k * n, Edge::End),
                        Guarded::new(bytes * m * n, Edge::End),
                    );
                    let make = |g: &Guarded, (row, column): (isize, isize)| Matrix {
                        start: g.start,
                        batch: &[],
                        row,
                        column,
                        composite: None,
                    };
                    let product = Product {
                        dtype,
                        batch: &[],
                        m,
                        n,
                        k,
                        lhs: make(&a, strides(m, k, row_a)),
                        rhs: make(&b, strides(k, n, row_b)),
                        dst: make(&c, strides(m, n, row_c)),
                    };
                    let cut = cut(&product, 1);
                    let mut scratch = AlignedBuffer::zeroed(cut.scratch_bytes).expect("memory");
                    // SAFETY: three mappings of the matrices' sizes.
                    unsafe { multiply(&product, &cut, &Pool::new(1), scratch.as_mut_ptr(), 0, None) }
                        .expect("no panic");
                    // SAFETY: `m * n` elements were just written there.
                    let found = unsafe { std::slice::from_raw_parts(c.start, bytes * m * n) };
                    assert!(found.iter().all(|&x| x == 0), "fresh mappings hold zeros");
                }
            }
        }
    }
}

/// What is reported of a product's lines: each exactly once, when its elements are final, by whatever cut and order of strips.
#[test]
fn lines_are_told_once_and_when_they_are_complete() {
    let mut random = Random(77);
    let sizes = [1, 2, 7, 8, 9, 24, 48, 50, 64, 100, 131, 200, 300];
    for round in 0..150 {
        let mut size = || sizes[random.below(sizes.len())];
        let (m, n, k) = (size(), size(), [1, 5, 64, 700][round % 4]);
        let batch = 1 + random.below(3);
        let side = [Side::Rows, Side::Columns][random.below(2)];
        let order = match side {
            Side::Rows => Order::Rows,
            Side::Columns => Order::Columns,
        };
        let case = Case {
            batch,
            m,
            n,
            k,
            orders: [Order::Rows, [Order::Rows, Order::Columns][random.below(2)], order],
        };
        let (la, lb) = (layout(case.orders[0], batch, m, k), layout(case.orders[1], batch, k, n));
        let mut fill = |len: usize| -> Vec<f32> { (0..len).map(|_| random.value() as f32).collect() };
        let (mut a, mut b) = (fill(la.len), fill(lb.len));
        let (expected, lc) = run(case, &mut a, &mut b, &[1]);
        for threads in [1, 2, 5] {
            let pool = Pool::new(threads);
            let mut c = vec![7.5f32; lc.len];
            let (ba, bb, bc) = ([la.batch], [lb.batch], [lc.batch]);
            let product = Product {
                dtype: DType::F32,
                batch: &[batch],
                m,
                n,
                k,
                lhs: matrix(a.as_mut_ptr(), &la, &ba),
                rhs: matrix(b.as_mut_ptr(), &lb, &bb),
                dst: matrix(c.as_mut_ptr(), &lc, &bc),
            };
            let cut = cut(&product, threads);
            let stride = cut.scratch_bytes.next_multiple_of(64);
            let mut scratch = AlignedBuffer::zeroed(stride * threads).expect("memory");
            let done: Vec<AtomicU32> = (0..cut.counters(side, batch)).map(|_| AtomicU32::new(0)).collect();
            let (lines, width) = match side {
                Side::Rows => (m, n),
                Side::Columns => (n, m),
            };
            let told: Vec<AtomicU32> = (0..batch * lines).map(|_| AtomicU32::new(0)).collect();
            let early = AtomicU32::new(0);
            let address = c.as_ptr().addr();
            let tell = |worker: usize, entry: usize, all: std::ops::Range<usize>, next: &mut u64| {
                assert!(worker < threads);
                for line in all.start.max(*next as usize)..all.end {
                    told[entry * lines + line].fetch_add(1, Ordering::Relaxed);
                    for i in 0..width {
                        let at = (entry * lines + line) * width + i;
                        // SAFETY: an element of the result, which nobody writes any more: that is what is tested.
                        let now = unsafe { std::ptr::with_exposed_provenance::<f32>(address).add(at).read() };
                        early.fetch_add(u32::from(now.to_bits() != expected[at].to_bits()), Ordering::Relaxed);
                    }
                }
                *next = all.end as u64;
            };
            let follow = Follow {
                side,
                run: &tell,
                done: &done,
            };
            c.as_mut_ptr().expose_provenance();
            // SAFETY: the layouts say where the matrices lie; the result is a buffer of its own.
            unsafe { multiply(&product, &cut, &pool, scratch.as_mut_ptr(), stride, Some(&follow)) }.expect("no panic");
            let what = format!("{case:?} {side:?} {threads} threads");
            assert!(told.iter().all(|t| t.load(Ordering::Relaxed) == 1), "{what}");
            assert_eq!(early.load(Ordering::Relaxed), 0, "{what}: elements that were not final");
        }
    }
}
