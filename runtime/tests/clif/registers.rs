//! More values at once than there are registers: each keeps its bits on the stack, masks too, and across calls.

use tlc_codegen::wide::{self, Level};
use tlc_ir::index::{IndexExpr, SymId};
use tlc_ir::kernel::{Access, Bind, Kernel, Memory, Scope, ValueId};
use tlc_ir::{DType, Scalar, ScalarOp};

use crate::build::*;

/// Values that are alive at once: more than any processor has vector registers.
const LIVE: i64 = 40;

/// `LIVE` vectors are read and their neighbours compared before any is used, from the last to the first; a call comes between where
/// `called` says so.
fn agrees(dtype: DType, lanes: i64, called: bool) {
    let n = LIVE * lanes;
    let mut b = Builder::default();
    let x = b.param(dtype, c(n), Access::Read);
    let y = b.param(dtype, c(n), Access::Write);
    b.repeat(Bind::Parallel, c(1), |b, _| {
        b.repeat(Bind::Lanes, c(lanes), |b, l| {
            let v: Vec<ValueId> = (0..LIVE).map(|k| b.load(x, c(k * lanes) + l.clone())).collect();
            let less: Vec<ValueId> = (0..LIVE as usize)
                .map(|k| b.map(ScalarOp::Lt, &[v[k], v[(k + 1) % v.len()]]))
                .collect();
            let mut sum = v[0];
            if called {
                sum = b.map(ScalarOp::Rem, &[v[1], v[2]]);
            }
            for k in (0..LIVE as usize).rev() {
                let added = b.map(ScalarOp::Add, &[sum, v[k]]);
                let other = b.map(ScalarOp::Sub, &[v[k], sum]);
                sum = b.map(ScalarOp::Select, &[less[k], added, other]);
                b.store(y, c(k as i64 * lanes) + l.clone(), sum);
            }
        });
    });
    let kernel = b.finish();
    let mut rng = Rng(u64::from(called) + 5 * lanes as u64);
    let small = |rng: &mut Rng| Scalar::from_f64(dtype, rng.below(100) as f64 + 1.0);
    let input: Vec<Scalar> = (0..n).map(|_| small(&mut rng)).collect();
    let mut buffers = [bytes(&input), vec![0; n as usize * dtype.bytes()]];
    run(&kernel, &mut buffers, &[]);
    let found = scalars(dtype, &buffers[1]);
    for lane in 0..lanes as usize {
        let at = |k: usize| k * lanes as usize + lane;
        let v = |k: usize| input[at(k % LIVE as usize)];
        let mut sum = v(0);
        if called {
            sum = ScalarOp::Rem.eval(&[v(1), v(2)]);
        }
        for k in (0..LIVE as usize).rev() {
            sum = match ScalarOp::Lt.eval(&[v(k), v(k + 1)]).as_bool() {
                true => ScalarOp::Add.eval(&[sum, v(k)]),
                false => ScalarOp::Sub.eval(&[v(k), sum]),
            };
            assert!(
                same(sum, found[at(k)]),
                "{dtype}, {lanes} lanes, value {k}, lane {lane}: expected {sum}, found {}",
                found[at(k)]
            );
        }
    }
}

#[test]
fn more_values_than_registers_keep_their_bits() {
    for (dtype, lanes) in [
        (DType::F32, 8),
        (DType::F32, 16),
        (DType::F64, 4),
        (DType::I64, 4),
        (DType::I32, 4),
        (DType::U8, 32),
        (DType::I16, 16),
        (DType::F32, 1),
        (DType::I64, 1),
    ] {
        for called in [false, true] {
            agrees(dtype, lanes, called);
        }
    }
}

/// More parameters at once than there are general registers, in loops around each other: their addresses live through all of these, and so
/// do what the loops count, some of which have to be on the stack.
#[test]
fn more_addresses_than_registers_keep_their_values() {
    for (params, rows, columns) in [(12, 3, 20), (17, 2, 16), (24, 5, 3), (40, 3, 33)] {
        let n = rows * columns;
        let mut b = Builder::default();
        let all: Vec<_> = (0..params).map(|_| b.param(DType::F32, c(n), Access::Read)).collect();
        let results: Vec<_> = (0..params).map(|_| b.param(DType::F32, c(n), Access::Write)).collect();
        b.repeat(Bind::Parallel, c(rows), |b, row| {
            b.repeat(Bind::Serial, c(columns), |b, column| {
                let at = row.clone() * c(columns) + column;
                let v: Vec<ValueId> = all.iter().map(|x| b.load(*x, at.clone())).collect();
                let mut sum = v[0];
                for (x, y) in v.iter().zip(&results).rev() {
                    sum = b.map(ScalarOp::Sub, &[*x, sum]);
                    b.store(*y, at.clone(), sum);
                }
            });
        });
        let kernel = b.finish();
        let mut rng = Rng(7 + params as u64);
        let inputs: Vec<Vec<Scalar>> = (0..params)
            .map(|_| {
                (0..n)
                    .map(|_| Scalar::from_f64(DType::F32, rng.below(100) as f64))
                    .collect()
            })
            .collect();
        let empty = vec![0; n as usize * DType::F32.bytes()];
        let read = inputs.iter().map(|x| bytes(x));
        let mut buffers: Vec<Vec<u8>> = read.chain(results.iter().map(|_| empty.clone())).collect();
        run(&kernel, &mut buffers, &[]);
        let found: Vec<Vec<Scalar>> = buffers[params as usize..]
            .iter()
            .map(|y| scalars(DType::F32, y))
            .collect();
        for (at, first) in inputs[0].iter().enumerate() {
            let mut sum = *first;
            for k in (0..params as usize).rev() {
                sum = ScalarOp::Sub.eval(&[inputs[k][at], sum]);
                let found = found[k][at];
                assert!(
                    same(sum, found),
                    "{params} parameters, {k}, element {at}: expected {sum}, found {found}"
                );
            }
        }
    }
}

/// A division wants its operands in particular registers, which nothing may be in that lives across it: addresses of parameters, what loops count,
/// and the quotients and remainders of other divisions.
#[test]
fn what_lives_across_divisions_keeps_its_value() {
    const ROWS: i64 = 5;
    const COLUMNS: i64 = 7;
    for (params, divisor) in [(1, 3), (5, 1), (9, 4), (14, 5), (30, 11)] {
        let n = ROWS * COLUMNS;
        let mut b = Builder::default();
        b.kernel.symbols.extend([(1, 1 << 20); 2]);
        let by = |k: u32| IndexExpr::from(SymId(k));
        let all: Vec<_> = (0..params).map(|_| b.param(DType::F32, c(n), Access::Read)).collect();
        let results: Vec<_> = (0..params).map(|_| b.param(DType::F32, c(n), Access::Write)).collect();
        b.repeat(Bind::Parallel, c(ROWS), |b, row| {
            let outside = IndexExpr::floor_div(&(row.clone() * c(COLUMNS)), &by(1));
            b.repeat(Bind::Serial, c(COLUMNS), |b, column| {
                let at = row.clone() * c(COLUMNS) + column;
                let (high, low) = (IndexExpr::floor_div(&at, &by(0)), IndexExpr::modulo(&at, &by(0)));
                let mut sum = b.load(all[0], outside.clone());
                for (x, y) in all.iter().zip(&results).rev() {
                    let (v, w) = (b.load(*x, high.clone()), b.load(*x, low.clone()));
                    sum = b.map(ScalarOp::Sub, &[v, sum]);
                    sum = b.map(ScalarOp::Add, &[sum, w]);
                    b.store(*y, at.clone(), sum);
                }
            });
        });
        let kernel = b.finish();
        let mut rng = Rng(11 + params as u64);
        let number = |rng: &mut Rng| Scalar::from_f64(DType::F32, rng.below(100) as f64);
        let inputs: Vec<Vec<Scalar>> = (0..params)
            .map(|_| (0..n).map(|_| number(&mut rng)).collect())
            .collect();
        let empty = vec![0; n as usize * DType::F32.bytes()];
        let read = inputs.iter().map(|x| bytes(x));
        let mut buffers: Vec<Vec<u8>> = read.chain(results.iter().map(|_| empty.clone())).collect();
        run(&kernel, &mut buffers, &[divisor, divisor + 1]);
        let found: Vec<Vec<Scalar>> = buffers[params as usize..]
            .iter()
            .map(|y| scalars(DType::F32, y))
            .collect();
        for at in 0..n {
            let (high, low) = ((at / divisor) as usize, (at % divisor) as usize);
            let mut sum = inputs[0][(at / COLUMNS * COLUMNS / (divisor + 1)) as usize];
            for k in (0..params as usize).rev() {
                sum = ScalarOp::Sub.eval(&[inputs[k][high], sum]);
                sum = ScalarOp::Add.eval(&[sum, inputs[k][low]]);
                let found = found[k][at as usize];
                assert!(
                    same(sum, found),
                    "{params} parameters, {k}, element {at}: expected {sum}, found {found}"
                );
            }
        }
    }
}

/// `rows` vectors of `lanes` elements, of which `filled` are read into registers, are stored across: one vector from each lane,
/// whose first `filled` lanes are wanted.
fn turned(dtype: DType, [rows, lanes, filled]: [i64; 3]) -> Kernel {
    let mut b = Builder::default();
    let x = b.param(dtype, c(filled * lanes), Access::Read);
    let y = b.param(dtype, c(filled * lanes), Access::Write);
    b.kernel.new_scratch(dtype, c(rows * lanes), Scope::Register);
    let tile = Memory::Scratch(0);
    b.repeat(Bind::Parallel, c(1), |b, _| {
        b.repeat(Bind::Unroll, c(filled), |b, row| {
            b.repeat(Bind::Lanes, c(lanes), |b, lane| {
                let v = b.load(x, row.clone() * c(lanes) + lane.clone());
                b.store(tile, row.clone() * c(lanes) + lane, v);
            });
        });
        b.repeat(Bind::Unroll, c(lanes), |b, column| {
            b.repeat(Bind::Lanes, c(rows), |b, row| {
                let (at, end) = (b.index(row.clone(), DType::I32), b.index(c(filled), DType::I32));
                let has = b.map(ScalarOp::Lt, &[at, end]);
                let v = b.load(tile, row.clone() * c(lanes) + column.clone());
                let v = b.map(ScalarOp::Max, &[v, v]);
                b.store_masked(y, column * c(filled) + row, v, Some(has));
            });
        });
    });
    b.finish()
}

#[test]
fn tiles_in_registers_are_stored_across_their_vectors() {
    let cases = [
        (DType::F32, [16, 16, 16]),
        (DType::F32, [16, 16, 14]),
        (DType::I32, [16, 16, 7]),
        (DType::F32, [16, 16, 3]),
        (DType::F32, [16, 16, 1]),
        (DType::F32, [8, 8, 7]),
        (DType::F32, [8, 8, 8]),
        (DType::I32, [8, 8, 5]),
        (DType::F32, [8, 8, 1]),
        (DType::F64, [8, 8, 8]),
        (DType::U8, [16, 16, 13]),
    ];
    for (dtype, [rows, lanes, filled]) in cases {
        let kernel = turned(dtype, [rows, lanes, filled]);
        let mut rng = Rng(3 + rows as u64);
        let all = edges(dtype);
        let input: Vec<Scalar> = (0..filled * lanes).map(|_| all[rng.below(all.len())]).collect();
        let mut buffers = [bytes(&input), vec![0; input.len() * dtype.bytes()]];
        run(&kernel, &mut buffers, &[]);
        let found = scalars(dtype, &buffers[1]);
        for (i, f) in found.iter().enumerate() {
            let (column, row) = (i / filled as usize, i % filled as usize);
            let expected = input[row * lanes as usize + column];
            assert!(
                same(expected, *f),
                "{dtype}, {filled} of {rows}: {expected} in lane {column} of {row}, found {f}"
            );
        }
    }
}

#[test]
fn a_turned_tile_takes_four_steps_a_result_and_a_small_one_three() {
    let wide = [(16, 64), (14, 62), (8, 40), (3, 32)].map(|case| (Level::Avx512, 16, case));
    let small = [(8, 24), (6, 22), (4, 16), (2, 14)].map(|case| (Level::Avx2, 8, case));
    for (level, side, (filled, steps)) in wide.into_iter().chain(small) {
        let kernel = turned(DType::F32, [side, side, filled]);
        let text = wide::flatten(&kernel, level).unwrap().to_string();
        let count = |word: &str| text.lines().filter(|l| l.contains(word)).count();
        let all: usize = [
            "first_lanes",
            "last_lanes",
            "first_pairs",
            "last_pairs",
            "even_parts",
            "odd_parts",
        ]
        .iter()
        .map(|w| count(w))
        .sum();
        assert_eq!((all, count("lane ")), (steps, 0), "{level:?}, {filled}\n{text}");
    }
}

/// Lane by lane, what was stored of several values.
fn expect_in_lane(found: &[Scalar], expected: &[Scalar], (lane, lanes): (usize, i64), what: &str) {
    for (k, expected) in expected.iter().enumerate() {
        let f = found[k * lanes as usize + lane];
        assert!(
            same(*expected, f),
            "{what}: expected {expected} at {k}, lane {lane} of {lanes}, found {f}"
        );
    }
}

/// Five values in registers: two change places in each iteration, three go round, and a sixth adds up one of them, which is needed
/// unchanged behind the sum.
fn circles(dtype: DType, lanes: i64, [outer, inner]: [i64; 2]) {
    let mut b = Builder::default();
    let x = b.param(dtype, c(5 * lanes), Access::Read);
    let y = b.param(dtype, c(6 * lanes), Access::Write);
    b.kernel.new_scratch(dtype, c(6 * lanes), Scope::Register);
    let held = Memory::Scratch(0);
    let places = [1, 0, 3, 4, 2];
    b.repeat(Bind::Parallel, c(1), |b, _| {
        b.repeat(Bind::Lanes, c(lanes), |b, l| {
            for k in 0..5 {
                let v = b.load(x, c(k * lanes) + l.clone());
                b.store(held, c(k * lanes) + l.clone(), v);
            }
            let first = b.load(x, l.clone());
            b.store(held, c(5 * lanes) + l, first);
        });
        b.repeat(Bind::Serial, c(outer), |b, _| {
            b.repeat(Bind::Serial, c(inner), |b, _| {
                b.repeat(Bind::Lanes, c(lanes), |b, l| {
                    let v: Vec<ValueId> = (0..6).map(|k| b.load(held, c(k * lanes) + l.clone())).collect();
                    for (to, from) in places.into_iter().enumerate() {
                        b.store(held, c(to as i64 * lanes) + l.clone(), v[from]);
                    }
                    let op = if dtype == DType::Bool {
                        ScalarOp::Xor
                    } else {
                        ScalarOp::Add
                    };
                    let sum = b.map(op, &[v[5], v[2]]);
                    b.store(held, c(5 * lanes) + l, sum);
                });
            });
        });
        b.repeat(Bind::Lanes, c(lanes), |b, l| {
            for k in 0..6 {
                let v = b.load(held, c(k * lanes) + l.clone());
                b.store(y, c(k * lanes) + l.clone(), v);
            }
        });
    });
    let kernel = b.finish();
    let mut rng = Rng(7 + lanes as u64);
    let input: Vec<Scalar> = (0..5 * lanes)
        .map(|_| Scalar::from_f64(dtype, rng.below(if dtype == DType::Bool { 2 } else { 100 }) as f64))
        .collect();
    let mut buffers = [bytes(&input), vec![0; 6 * lanes as usize * dtype.bytes()]];
    run(&kernel, &mut buffers, &[]);
    let found = scalars(dtype, &buffers[1]);
    for lane in 0..lanes as usize {
        let mut v: Vec<Scalar> = (0..5).map(|k| input[k * lanes as usize + lane]).collect();
        v.push(v[0]);
        for _ in 0..outer * inner {
            let sum = match dtype {
                DType::Bool => ScalarOp::Xor.eval(&[v[5], v[2]]),
                _ => ScalarOp::Add.eval(&[v[5], v[2]]),
            };
            v = places.into_iter().map(|from| v[from]).collect();
            v.push(sum);
        }
        expect_in_lane(&found, &v, (lane, lanes), &format!("{dtype}, {outer} by {inner}"));
    }
}

#[test]
fn values_that_change_places_in_each_iteration_keep_their_bits() {
    for dtype in [DType::F32, DType::F64, DType::I64, DType::I32, DType::Bool] {
        for lanes in [1, 4, 8, 16] {
            for trips in [[1, 1], [1, 5], [3, 2], [2, 7], [0, 3], [3, 0]] {
                circles(dtype, lanes, trips);
            }
        }
    }
}

/// More values than registers go round a loop, each with a constant of its own, so that both constants and what an iteration leaves to the next
/// one are on the stack. Where `compared`, only the smaller ones change.
fn crowded(dtype: DType, lanes: i64, [outer, inner]: [i64; 2], compared: bool) {
    let n = LIVE * lanes;
    let constant = |k: i64| Scalar::from_f64(dtype, (3 * k + 1) as f64);
    let (op, order) = (ScalarOp::Sub, ScalarOp::Lt);
    let mut b = Builder::default();
    let x = b.param(dtype, c(n), Access::Read);
    let y = b.param(dtype, c(n), Access::Write);
    b.kernel.new_scratch(dtype, c(n), Scope::Register);
    let held = Memory::Scratch(0);
    let at = |k: i64, l: &IndexExpr| c(k * lanes) + l.clone();
    b.repeat(Bind::Parallel, c(1), |b, _| {
        b.repeat(Bind::Lanes, c(lanes), |b, l| {
            for k in 0..LIVE {
                let v = b.load(x, at(k, &l));
                b.store(held, at(k, &l), v);
            }
        });
        b.repeat(Bind::Serial, c(outer), |b, _| {
            b.repeat(Bind::Serial, c(inner), |b, _| {
                b.repeat(Bind::Lanes, c(lanes), |b, l| {
                    let v: Vec<ValueId> = (0..LIVE).map(|k| b.load(held, at(k, &l))).collect();
                    let less: Vec<ValueId> = (0..LIVE as usize)
                        .map(|k| b.map(order, &[v[k], v[(k + 1) % v.len()]]))
                        .collect();
                    for k in (0..LIVE as usize).rev() {
                        let own = b.constant(dtype, (3 * k + 1) as f64);
                        let mut next = b.map(op, &[own, v[(k + 1) % v.len()]]);
                        if compared {
                            next = b.map(ScalarOp::Select, &[less[k], next, v[k]]);
                        }
                        b.store(held, at(k as i64, &l), next);
                    }
                });
            });
        });
        b.repeat(Bind::Lanes, c(lanes), |b, l| {
            for k in 0..LIVE {
                let v = b.load(held, at(k, &l));
                b.store(y, at(k, &l), v);
            }
        });
    });
    let kernel = b.finish();
    let mut rng = Rng(9 + lanes as u64);
    let input: Vec<Scalar> = (0..n).map(|_| Scalar::from_f64(dtype, rng.below(100) as f64)).collect();
    let mut buffers = [bytes(&input), vec![0; n as usize * dtype.bytes()]];
    run(&kernel, &mut buffers, &[]);
    let found = scalars(dtype, &buffers[1]);
    for lane in 0..lanes as usize {
        let mut v: Vec<Scalar> = (0..LIVE as usize).map(|k| input[k * lanes as usize + lane]).collect();
        for _ in 0..outer * inner {
            let next = |k: usize| {
                let other = v[(k + 1) % v.len()];
                let changed = op.eval(&[constant(k as i64), other]);
                let changes = !compared || order.eval(&[v[k], other]).as_bool();
                if changes { changed } else { v[k] }
            };
            v = (0..v.len()).map(next).collect();
        }
        expect_in_lane(&found, &v, (lane, lanes), &format!("{dtype}, {outer} by {inner}"));
    }
}

#[test]
fn more_values_around_a_loop_than_registers_keep_their_bits() {
    for (dtype, lanes) in [
        (DType::F32, 16),
        (DType::F64, 8),
        (DType::I64, 4),
        (DType::I32, 16),
        (DType::F32, 1),
    ] {
        for compared in [false, true] {
            crowded(dtype, lanes, [2, 3], compared);
        }
    }
    crowded(DType::F32, 16, [0, 3], true);
}
