//! One order of sums: the bits of a row of a product do not depend on how many rows and columns there are, how the operands lie, whether sizes are known
//! when compiled, whether an operand never changes, what is computed of the result, threads or tuning.
//!
//! The order itself is that of [`chains`], written here once more: one chain of multiply-adds in each block of the sum, and the blocks added up in turn.
//! Long sums of results of few rows and few columns have another one where both operands lie along the sum, which the length of the sum alone says.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tlc::ir::rng::Rng;
use tlc::tune::tune;
use tlc::{CompileOptions, DType, Executable, Graph, HostTensor, Input, Specialize, Tensor, compile_ir};

/// Results of fewer rows and fewer columns have long sums added up in lanes.
const SMALL: usize = 16;
/// From so many elements on for each row or column, whichever there are fewer of.
const LONG: usize = 48;

fn options(threads: usize) -> CompileOptions {
    CompileOptions {
        threads: Some(threads),
        specialize: Specialize::Never,
        ..CompileOptions::default()
    }
}

/// A matrix of one dtype, in row-major order.
#[derive(Clone)]
struct Values {
    dtype: DType,
    shape: [usize; 2],
    all: Vec<f64>,
}

impl Values {
    fn new(rng: &mut Rng, dtype: DType, shape: [usize; 2]) -> Values {
        // Values that round at every step.
        let value = |_| {
            let x = rng.range(-1_000_000, 1_000_000) as f64 / 700_001.0;
            if dtype == DType::F32 { f64::from(x as f32) } else { x }
        };
        let all = (0..shape[0] * shape[1]).map(value).collect();
        Values { dtype, shape, all }
    }

    fn at(&self, row: usize, column: usize) -> f64 {
        self.all[row * self.shape[1] + column]
    }

    /// The first rows and columns, as they are or turned, of so many entries of a stack. Each has its rows or columns, whichever `shift` says, in
    /// another order.
    fn part(&self, batch: usize, shape: [usize; 2], turned: bool, shift: [usize; 2]) -> HostTensor {
        let [rows, columns] = shape;
        let mut all = Vec::new();
        for entry in 0..batch {
            let at = |row: usize, column: usize| {
                self.at(
                    (row + shift[0] * entry) % self.shape[0],
                    (column + shift[1] * entry) % self.shape[1],
                )
            };
            match turned {
                false => all.extend((0..rows * columns).map(|i| at(i / columns, i % columns))),
                true => all.extend((0..rows * columns).map(|i| at(i % rows, i / rows))),
            }
        }
        let shape = if turned { [columns, rows] } else { shape };
        let shape = match batch {
            1 => shape.to_vec(),
            _ => vec![batch, shape[0], shape[1]],
        };
        tensor(self.dtype, &shape, &all)
    }
}

fn tensor(dtype: DType, shape: &[usize], all: &[f64]) -> HostTensor {
    match dtype {
        DType::F64 => HostTensor::from_slice(shape, all),
        _ => HostTensor::from_slice(shape, &all.iter().map(|x| *x as f32).collect::<Vec<f32>>()),
    }
    .expect("memory for a tensor")
}

/// What is added to a column.
fn bias(column: usize) -> f64 {
    column as f64 / 8.0 - 1.0
}

/// The products of all rows of one matrix with all columns of another, as bytes of the elements, in the order that is promised.
fn chains(x: &Values, y: &Values) -> Vec<Vec<u8>> {
    let (k, most) = (x.shape[1], 2048 / x.dtype.bytes());
    let block = k.div_ceil(k.div_ceil(most).max(1)).max(1);
    let element = |i: usize, j: usize| {
        let blocks = (0..k).step_by(block).map(|from| from..k.min(from + block));
        match x.dtype {
            DType::F64 => {
                let sums = blocks.map(|b| b.fold(0.0, |sum, s| x.at(i, s).mul_add(y.at(s, j), sum)));
                sums.reduce(|a, b| a + b).unwrap_or(0.0).to_ne_bytes().to_vec()
            }
            _ => {
                let sums = blocks.map(|b| b.fold(0f32, |sum, s| (x.at(i, s) as f32).mul_add(y.at(s, j) as f32, sum)));
                sums.reduce(|a, b| a + b).unwrap_or(0.0).to_ne_bytes().to_vec()
            }
        }
    };
    let columns = y.shape[1];
    (0..x.shape[0] * columns)
        .map(|at| element(at / columns, at % columns))
        .collect()
}

/// How a product is computed.
#[derive(Clone, Copy, Debug)]
struct Case {
    /// Entries of a stack; 1 for none.
    batch: usize,
    m: usize,
    n: usize,
    /// Whether the operands lie turned.
    turned: [bool; 2],
    /// Whether sizes are symbols.
    symbolic: bool,
    /// Whether the right operand never changes.
    frozen: bool,
    /// Whether something is computed of the result which shows its bits.
    behind: bool,
    threads: usize,
}

impl Case {
    /// Whether each result is added up in lanes.
    fn is_in_lanes(&self, k: usize) -> bool {
        let along = !self.turned[0] && self.turned[1];
        along && self.m < SMALL && self.n < SMALL && k >= LONG * self.m.min(self.n)
    }
}

/// The graph of a case, with the inputs of a call.
fn recorded(case: &Case, x: &Values, y: &Values) -> (Graph, Vec<HostTensor>) {
    let Case { batch, m, n, .. } = *case;
    let k = x.shape[1];
    let g = Graph::new("product");
    let left = x.part(batch, [m, k], case.turned[0], [1, 0]);
    let right = y.part(batch, [k, n], case.turned[1], [0, 1]);
    let input = |name: &str, shape: [usize; 2], turned: bool, axis: usize| -> Tensor {
        let shape = if turned { [shape[1], shape[0]] } else { shape };
        let axis = if turned { 1 - axis } else { axis };
        let symbol = || g.symbol(name, 0..=1000);
        let input = match (batch, case.symbolic, axis) {
            (1, false, _) => g.input(name, x.dtype, shape),
            (1, true, 0) => g.input(name, x.dtype, (&symbol(), shape[1])),
            (1, true, _) => g.input(name, x.dtype, (shape[0], &symbol())),
            (_, false, _) => g.input(name, x.dtype, (batch, shape[0], shape[1])),
            (_, true, 0) => g.input(name, x.dtype, (batch, &symbol(), shape[1])),
            (_, true, _) => g.input(name, x.dtype, (batch, shape[0], &symbol())),
        };
        if turned { input.t() } else { input }
    };
    let a = input("x", [m, k], case.turned[0], 0);
    let (b, mut given) = match (case.frozen, case.turned[1]) {
        (true, false) => (g.constant(right), vec![left]),
        (true, true) => (g.constant(right).t(), vec![left]),
        (false, turned) => (input("y", [k, n], turned, 1), vec![left, right]),
    };
    let product = a.matmul(&b);
    let product = match (case.behind, case.symbolic && !case.frozen) {
        (false, _) => product,
        // Columns that are a symbol have no bias of their own.
        (true, true) => (product + 0.5).relu(),
        (true, false) => {
            let all: Vec<f64> = (0..n).map(bias).collect();
            given.push(tensor(x.dtype, &[n], &all));
            (product + g.input("bias", x.dtype, [n])).relu()
        }
    };
    g.output("z", &product);
    (g, given)
}

fn found(e: &Executable, given: &[HostTensor]) -> Vec<u8> {
    let given: Vec<Input<'_>> = given.iter().map(Input::from).collect();
    e.run(&given).expect("it runs")["z"].bytes().to_vec()
}

/// Asserts that what a case computes are the bits of the promised order.
fn assert_chains(case: &Case, (x, y): (&Values, &Values), expected: &[Vec<u8>], bytes: &[u8], what: &str) {
    let size = x.dtype.bytes();
    let columns = y.shape[1];
    for (at, element) in bytes.chunks(size).enumerate() {
        let (entry, at) = (at / (case.m * case.n), at % (case.m * case.n));
        let (i, j) = (at / case.n, at % case.n);
        let sum = &expected[(i + entry) % x.shape[0] * columns + (j + entry) % columns];
        let added = if case.symbolic && !case.frozen { 0.5 } else { bias(j) };
        let wanted = match (case.behind, x.dtype) {
            (false, _) => sum.clone(),
            (true, DType::F64) => {
                let sum = f64::from_ne_bytes(sum[..].try_into().expect("eight bytes"));
                (sum + added).max(0.0).to_ne_bytes().to_vec()
            }
            (true, _) => {
                let sum = f32::from_ne_bytes(sum[..].try_into().expect("four bytes"));
                (sum + added as f32).max(0.0).to_ne_bytes().to_vec()
            }
        };
        assert!(
            element == wanted,
            "{what}: entry {entry}, row {i}, column {j}, sum of {}: {case:?}",
            x.shape[1]
        );
    }
    assert_eq!(bytes.len(), case.batch * case.m * case.n * size);
}

/// Asserts what is known of results that are added up in lanes: they are the sums of other results that are.
fn assert_lanes(case: &Case, (x, y): (&Values, &Values), bytes: &[u8]) {
    let least = Case {
        batch: 1,
        m: 2,
        n: 2,
        symbolic: !case.symbolic,
        threads: 1,
        ..*case
    };
    let (g, given) = recorded(&least, x, y);
    let e = g.compile(&options(1)).unwrap_or_else(|e| panic!("{least:?}: {e}"));
    let size = x.dtype.bytes();
    let others = match case.behind && !case.frozen {
        // Two ways to be behind.
        true => return,
        false => found(&e, &given),
    };
    for (at, other) in others.chunks(size).enumerate() {
        let at = (at / 2 * case.n + at % 2) * size;
        assert_eq!(&bytes[at..at + size], other, "sum of {}: {case:?}", x.shape[1]);
    }
}

/// Whether the machine has the instructions that chains of multiply-adds are made of.
fn has_multiply_adds() -> bool {
    let there = tlc_runtime::cpu::level::wide().is_some();
    if !there {
        println!("SKIP: multiply-adds round once where vectors are AVX2's or wider");
    }
    there
}

#[test]
fn rows_have_the_same_bits_however_many_there_are() {
    if !has_multiply_adds() {
        return;
    }
    for (dtype, k) in [
        (DType::F32, 64),
        (DType::F32, 129),
        (DType::F32, 512),
        (DType::F32, 1000),
        (DType::F32, 2049),
        (DType::F64, 100),
        (DType::F64, 700),
    ] {
        let mut rng = Rng::new(k as u64);
        let (x, y) = (
            Values::new(&mut rng, dtype, [333, k]),
            Values::new(&mut rng, dtype, [k, 65]),
        );
        let expected = chains(&x, &y);
        let mut number = 0usize;
        for m in [2usize, 16, 333] {
            for n in [2usize, 3, 16, 33, 64, 65] {
                for layout in 0..4 {
                    // Each of the other ways in turn, so that all come with all before the sizes are through.
                    number += 1;
                    let case = Case {
                        batch: 1,
                        m,
                        n,
                        turned: [layout & 1 != 0, layout & 2 != 0],
                        symbolic: number.is_multiple_of(2),
                        frozen: (number / 2).is_multiple_of(3),
                        behind: (number / 3).is_multiple_of(2),
                        threads: 1 + number % 8,
                    };
                    assert_order(&case, (&x, &y), &expected, "compiled");
                }
            }
        }
    }
}

/// Multiply-adds of each product of a stack of which a kernel computes several at once, in an order of its own.
const FEW_OF_A_STACK: usize = 1024;

/// Compiles and runs a case, and asserts that its sums have the promised order.
fn assert_order(case: &Case, (x, y): (&Values, &Values), expected: &[Vec<u8>], what: &str) {
    if case.batch > 1 && case.m * case.n * x.shape[1] < FEW_OF_A_STACK {
        return;
    }
    let (g, given) = recorded(case, x, y);
    let e = g
        .compile(&options(case.threads))
        .unwrap_or_else(|e| panic!("{what}: {case:?}: {e}"));
    let bytes = found(&e, &given);
    match case.is_in_lanes(x.shape[1]) {
        true => assert_lanes(case, (x, y), &bytes),
        false => assert_chains(case, (x, y), expected, &bytes, what),
    }
}

#[test]
fn random_products_have_the_promised_order() {
    if !has_multiply_adds() {
        return;
    }
    let begin = Instant::now();
    for seed in tlc::ir::testgen::seeds(0..800) {
        if begin.elapsed() > Duration::from_secs(10) {
            break;
        }
        let mut rng = Rng::new(seed);
        let dtype = [DType::F32, DType::F32, DType::F64][rng.below(3)];
        let mut extent = || match rng.below(3) {
            0 => 2 + rng.below(40),
            _ => [2, 3, 4, 8, 15, 16, 17, 64, 333][rng.below(9)],
        };
        let (m, n) = (extent(), extent());
        let sums = [1, 2, 7, 16, 31, 48, 64, 100, 129, 256, 512, 513, 768, 1000, 2049, 3000];
        let most = 2_000_000 / (m * n);
        let k = match rng.below(3) {
            0 => 1 + rng.below(most.min(600)),
            _ => rng.pick(&sums.map(|k: usize| k.min(most))),
        };
        let case = Case {
            batch: if rng.chance(1, 3) { 3 } else { 1 },
            m,
            n,
            turned: [rng.chance(1, 2), rng.chance(1, 2)],
            symbolic: rng.chance(1, 3),
            frozen: rng.chance(1, 3),
            behind: rng.chance(1, 2),
            threads: 1 + rng.below(4),
        };
        let (x, y) = (
            Values::new(&mut rng, dtype, [m, k]),
            Values::new(&mut rng, dtype, [k, n]),
        );
        assert_order(&case, (&x, &y), &chains(&x, &y), &format!("seed {seed}"));
    }
}

/// What a tuned file says of the kernel behind a product, and of kernels beside it, leaves the product's bits.
#[test]
fn tuned_products_have_the_same_bits() {
    if !has_multiply_adds() {
        return;
    }
    let k = 300;
    let mut rng = Rng::new(7);
    let (x, y) = (
        Values::new(&mut rng, DType::F32, [64, k]),
        Values::new(&mut rng, DType::F32, [k, 40]),
    );
    let expected = chains(&x, &y);
    for (m, turned) in [(2, false), (2, true), (16, true), (64, false)] {
        let case = Case {
            batch: 1,
            m,
            n: 40,
            turned: [false, turned],
            symbolic: false,
            frozen: false,
            behind: true,
            threads: 2,
        };
        let (g, given) = recorded(&case, &x, &y);
        let graph = g.finish().unwrap();
        let views: Vec<Input<'_>> = given.iter().map(Input::from).collect();
        let tuning = tune(&graph, &options(2), &views, Duration::from_secs(1), &mut |_| {}).unwrap();
        let with = CompileOptions {
            tuned: Some(Arc::new(tuning.tuned)),
            ..options(2)
        };
        let e = compile_ir(&graph, &with).unwrap();
        let bytes = e.run(&views).unwrap()[0].to_host().bytes().to_vec();
        assert_chains(&case, (&x, &y), &expected, &bytes, "tuned");
    }
}
