//! Loops, memory, masks, scratch and indices.

use tlc_ir::graph::Monoid;
use tlc_ir::index::{IndexExpr, SymId};
use tlc_ir::kernel::{Access, Bind, Op, Scope, Stmt};
use tlc_ir::{DType, Scalar, ScalarOp};

use crate::build::*;

fn sym(i: u32) -> IndexExpr {
    SymId(i).into()
}

fn numbered(dtype: DType, n: usize) -> Vec<Scalar> {
    (0..n as i64)
        .map(|i| Scalar::from_i64(dtype, (i * 37 + 11) % 101))
        .collect()
}

#[test]
fn strided_loads_and_stores() {
    const N: i64 = 192;
    for dtype in [DType::Bool, DType::U8, DType::F16, DType::F32, DType::I64] {
        for lanes in [1, 2, 3, 4, 8, 16, 32, 64] {
            for step in [-3i64, -1, 0, 1, 2, 3] {
                for store_side in [false, true] {
                    if store_side && step == 0 {
                        continue;
                    }
                    let span = step.abs() * (N - 1) + 3;
                    let first = if step < 0 { -step * (N - 1) + 1 } else { 1 };
                    let mut b = Builder::default();
                    let (x_len, y_len) = if store_side { (N, span) } else { (span, N) };
                    let x = b.param(dtype, c(x_len), Access::Read);
                    let y = b.param(dtype, c(y_len), Access::Write);
                    b.repeat(Bind::Parallel, c(N / lanes), |b, i| {
                        b.repeat(Bind::Lanes, c(lanes), |b, l| {
                            let at = i * c(lanes) + l;
                            let far = at.clone() * c(step) + c(first);
                            let (from, to) = if store_side { (at, far) } else { (far, at) };
                            let v = b.load(x, from);
                            b.store(y, to, v);
                        });
                    });
                    let input = numbered(dtype, x_len as usize);
                    let mut buffers = [bytes(&input), vec![0; y_len as usize * dtype.bytes()]];
                    run(&b.finish(), &mut buffers, &[]);
                    let found = scalars(dtype, &buffers[1]);
                    for i in 0..N {
                        let far = (i * step + first) as usize;
                        let (from, to) = if store_side {
                            (i as usize, far)
                        } else {
                            (far, i as usize)
                        };
                        assert_eq!(
                            found[to], input[from],
                            "{dtype} {lanes} lanes, step {step}, element {i}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn masked_tails_touch_nothing_outside() {
    for dtype in [DType::Bool, DType::U8, DType::I16, DType::F32, DType::F64] {
        for lanes in [1, 2, 4, 8, 16, 32, 64] {
            for step in [1i64, 2] {
                let mut b = Builder::default();
                b.kernel.symbols.push((0, 1000));
                let x = b.param(dtype, sym(0) * c(step), Access::Read);
                let y = b.param(dtype, sym(0) * c(step), Access::Write);
                b.repeat(Bind::Parallel, sym(0).ceil_div(lanes), |b, i| {
                    b.repeat(Bind::Lanes, c(lanes), |b, l| {
                        let at = i * c(lanes) + l;
                        let here = b.index(at.clone(), DType::I64);
                        let n = b.index(sym(0), DType::I64);
                        let inside = b.map(ScalarOp::Lt, &[here, n]);
                        let v = b.load_masked(x, at.clone() * c(step), Some(inside));
                        b.store_masked(y, at * c(step), v, Some(inside));
                    });
                });
                let k = b.finish();
                let f = compile(&k).unwrap();
                for n in 0..40usize {
                    let input = numbered(dtype, n * step as usize);
                    let mut buffers = [bytes(&input), bytes(&vec![dtype.zero(); n * step as usize])];
                    run_function(&f, &k, &mut buffers, &[n as i64], None);
                    for (i, v) in scalars(dtype, &buffers[1]).iter().enumerate() {
                        let expected = if i as i64 % step == 0 { input[i] } else { dtype.zero() };
                        assert_eq!(*v, expected, "{dtype} {lanes} lanes, {n} elements, element {i}");
                    }
                }
            }
        }
    }
}

#[test]
fn masks_from_memory_uniform_and_by_lane() {
    const N: i64 = 96;
    for dtype in [DType::Bool, DType::U8, DType::F16, DType::F32, DType::I64] {
        for lanes in [1, 2, 3, 4, 8, 16] {
            for uniform in [false, true] {
                for step in [-1i64, 0, 1] {
                    let mut b = Builder::default();
                    let x = b.param(dtype, c(N), Access::Read);
                    let m = b.param(DType::Bool, c(N), Access::Read);
                    let loaded = b.param(dtype, c(N), Access::Write);
                    let stored = b.param(dtype, c(N), Access::ReadWrite);
                    let place = |at: IndexExpr| match step {
                        -1 => c(N - 1) - at,
                        0 => c(5),
                        _ => at,
                    };
                    b.repeat(Bind::Serial, c(N / lanes), |b, i| {
                        let shared = b.load(m, i.clone());
                        b.repeat(Bind::Lanes, c(lanes), |b, l| {
                            let at = i * c(lanes) + l;
                            let mask = if uniform { shared } else { b.load(m, at.clone()) };
                            let v = b.load_masked(x, place(at.clone()), Some(mask));
                            b.store(loaded, at.clone(), v);
                            let v = b.load(x, at.clone());
                            b.store_masked(stored, place(at), v, Some(mask));
                        });
                    });
                    let input = numbered(dtype, N as usize);
                    let mut rng = Rng(5);
                    let mask: Vec<bool> = (0..N).map(|i| i < 32 || rng.next() & 1 == 1).collect();
                    let mask_scalars: Vec<Scalar> = mask.iter().map(|m| Scalar::from_bool(*m)).collect();
                    let mut buffers = [
                        bytes(&input),
                        bytes(&mask_scalars),
                        vec![0; N as usize * dtype.bytes()],
                        vec![0; N as usize * dtype.bytes()],
                    ];
                    run(&b.finish(), &mut buffers, &[]);
                    let mut expected_stored = vec![dtype.zero(); N as usize];
                    let found_loaded = scalars(dtype, &buffers[2]);
                    for i in 0..N {
                        let on = mask[(if uniform { i / lanes } else { i }) as usize];
                        let at = match step {
                            -1 => N - 1 - i,
                            0 => 5,
                            _ => i,
                        } as usize;
                        let expected = if on { input[at] } else { dtype.zero() };
                        assert_eq!(
                            found_loaded[i as usize], expected,
                            "{dtype} {lanes} lanes {uniform} {step} {i}"
                        );
                        if on {
                            expected_stored[at] = input[i as usize];
                        }
                    }
                    let found = scalars(dtype, &buffers[3]);
                    assert_eq!(found, expected_stored, "{dtype} {lanes} lanes {uniform} {step}");
                }
            }
        }
    }
}

#[test]
fn sums_in_register_scratch() {
    // Each row in 4 x 4 accumulators, which are then added up in order.
    for (dtype, lanes) in [
        (DType::F32, 4),
        (DType::F64, 2),
        (DType::I32, 4),
        (DType::I64, 4),
        (DType::U8, 4),
        (DType::I16, 8),
    ] {
        let block = lanes * 4;
        let mut b = Builder::default();
        b.kernel.symbols.push((1, 100));
        let cols = sym(0) * c(block);
        let x = b.param(dtype, cols.clone() * c(3), Access::Read);
        let y = b.param(dtype, c(3), Access::Write);
        let acc = b.kernel.new_scratch(dtype, c(block), Scope::Register);
        let total = b.kernel.new_scratch(dtype, c(1), Scope::Register);
        b.repeat(Bind::Parallel, c(3), |b, row| {
            let zero = b.constant(dtype, 0.0);
            b.repeat(Bind::Unroll, c(4), |b, u| {
                b.repeat(Bind::Lanes, c(lanes), |b, l| b.store(acc, u * c(lanes) + l, zero));
            });
            b.repeat(Bind::Serial, sym(0), |b, j| {
                b.repeat(Bind::Unroll, c(4), |b, u| {
                    b.repeat(Bind::Lanes, c(lanes), |b, l| {
                        let slot = u * c(lanes) + l;
                        let at = row.clone() * cols.clone() + j * c(block) + slot.clone();
                        let v = b.load(x, at);
                        b.push(Stmt::Accumulate {
                            monoid: Monoid::Add,
                            state: [(acc, slot)].into_iter().collect(),
                            values: [v].into_iter().collect(),
                        });
                    });
                });
            });
            b.store(total, c(0), zero);
            b.repeat(Bind::Unroll, c(block), |b, u| {
                let v = b.load(acc, u);
                let t = b.load(total, c(0));
                let t = b.map(ScalarOp::Add, &[t, v]);
                b.store(total, c(0), t);
            });
            let t = b.load(total, c(0));
            b.store(y, row, t);
        });
        let k = b.finish();
        let f = compile(&k).unwrap();
        for blocks in [1usize, 2, 7] {
            let input = numbered(dtype, 3 * blocks * block as usize);
            let mut buffers = [bytes(&input), vec![0; 3 * dtype.bytes()]];
            run_function(&f, &k, &mut buffers, &[blocks as i64], None);
            for (row, found) in scalars(dtype, &buffers[1]).iter().enumerate() {
                let n = blocks * block as usize;
                let expected = input[row * n..(row + 1) * n]
                    .iter()
                    .fold(dtype.zero(), |a, b| ScalarOp::Add.eval(&[a, *b]));
                assert_eq!(*found, expected, "{dtype} {blocks} blocks");
            }
        }
    }
}

#[test]
fn registers_of_scalars_masks_and_mixed_access() {
    // A register array written by lane and by element, under masks, then read back both ways and reversed.
    for dtype in [DType::Bool, DType::U8, DType::I32, DType::F32, DType::F64] {
        for lanes in [2i64, 4, 8] {
            let mut b = Builder::default();
            let x = b.param(dtype, c(lanes * 2), Access::Read);
            let m = b.param(DType::Bool, c(lanes * 2), Access::Read);
            let y = b.param(dtype, c(lanes * 4), Access::Write);
            let r = b.kernel.new_scratch(dtype, c(lanes * 2), Scope::Register);
            b.repeat(Bind::Unroll, c(2), |b, u| {
                b.repeat(Bind::Lanes, c(lanes), |b, l| {
                    let at = u * c(lanes) + l;
                    let one = b.constant(dtype, 1.0);
                    b.store(r, at.clone(), one);
                    let v = b.load(x, at.clone());
                    let mask = b.load(m, at.clone());
                    b.store_masked(r, at, v, Some(mask));
                });
            });
            let v = b.load(x, c(0));
            let mask = b.load(m, c(1));
            b.store_masked(r, c(lanes + 1), v, Some(mask));
            let v = b.load(x, c(1));
            b.store(r, c(lanes - 1), v);
            b.repeat(Bind::Unroll, c(2), |b, u| {
                b.repeat(Bind::Lanes, c(lanes), |b, l| {
                    let at = u * c(lanes) + l;
                    let v = b.load(r, at.clone());
                    b.store(y, at.clone(), v);
                    let v = b.load(r, c(lanes * 2 - 1) - at.clone());
                    b.store(y, at + c(lanes * 2), v);
                });
            });
            let k = b.finish();
            for mask_bits in [0u64, u64::MAX, 0x5a5a_3c96] {
                let n = lanes as usize * 2;
                let input = numbered(dtype, n);
                let mask: Vec<Scalar> = (0..n).map(|i| Scalar::from_bool(mask_bits >> i & 1 == 1)).collect();
                let mut buffers = [bytes(&input), bytes(&mask), vec![0; 2 * n * dtype.bytes()]];
                run(&k, &mut buffers, &[]);
                let mut expected: Vec<Scalar> = (0..n)
                    .map(|i| if mask[i].as_bool() { input[i] } else { dtype.one() })
                    .collect();
                if mask[1].as_bool() {
                    expected[lanes as usize + 1] = input[0];
                }
                expected[lanes as usize - 1] = input[1];
                let found = scalars(dtype, &buffers[2]);
                assert_eq!(found[..n], expected, "{dtype} {lanes} lanes {mask_bits:x}");
                expected.reverse();
                assert_eq!(found[n..], expected, "{dtype} {lanes} lanes {mask_bits:x} reversed");
            }
        }
    }
}

#[test]
fn rows_in_cache_scratch() {
    // y = x - max(x) for each row, which is held in scratch; a second scratch checks the offsets.
    let mut b = Builder::default();
    b.kernel.symbols.extend([(1, 100), (1, 100)]);
    let (rows, cols) = (sym(0), sym(1));
    let x = b.param(DType::F32, rows.clone() * cols.clone(), Access::Read);
    let y = b.param(DType::F32, rows.clone() * cols.clone(), Access::Write);
    let held = b.kernel.new_scratch(DType::F32, cols.clone(), Scope::Cache);
    let negated = b.kernel.new_scratch(DType::F64, cols.clone(), Scope::Cache);
    let top = b.kernel.new_scratch(DType::F32, c(1), Scope::Register);
    b.repeat(Bind::Parallel, rows, |b, i| {
        let low = b.constant(DType::F32, f64::NEG_INFINITY);
        b.store(top, c(0), low);
        b.repeat(Bind::Serial, cols.clone(), |b, j| {
            let v = b.load(x, i.clone() * cols.clone() + j.clone());
            b.store(held, j.clone(), v);
            let wide = b.convert(DType::F64, v);
            let wide = b.map(ScalarOp::Neg, &[wide]);
            b.store(negated, j, wide);
            let t = b.load(top, c(0));
            let t = b.map(ScalarOp::Max, &[t, v]);
            b.store(top, c(0), t);
        });
        let t = b.load(top, c(0));
        b.repeat(Bind::Serial, cols.clone(), |b, j| {
            let v = b.load(held, j.clone());
            let n = b.load(negated, j.clone());
            let n = b.convert(DType::F32, n);
            let v = b.map(ScalarOp::Sub, &[v, t]);
            let v = b.map(ScalarOp::Sub, &[v, n]);
            b.store(y, i.clone() * cols.clone() + j, v);
        });
    });
    let k = b.finish();
    let f = compile(&k).unwrap();
    for (rows, cols) in [(1usize, 1usize), (3, 5), (2, 33)] {
        let mut rng = Rng(8);
        let input: Vec<f32> = (0..rows * cols).map(|_| rng.float()).collect();
        let mut buffers = [f32_bytes(input.iter().copied()), vec![0; rows * cols * 4]];
        run_function(&f, &k, &mut buffers, &[rows as i64, cols as i64], None);
        for (row, found) in input.chunks(cols).zip(f32s(&buffers[1]).chunks(cols)) {
            let top = row.iter().fold(f32::NEG_INFINITY, |a, b| a.max(*b));
            for (x, found) in row.iter().zip(found) {
                assert_eq!(*found, x - top + x);
            }
        }
    }
}

#[test]
fn gather_clamps_and_scatter_adds_in_order() {
    const N: i64 = 32;
    for lanes in [1, 2, 4, 8] {
        let mut b = Builder::default();
        b.kernel.symbols.push((1, 100));
        let table = b.param(DType::F32, sym(0) * c(2), Access::Read);
        let at = b.param(DType::I64, c(N), Access::Read);
        let gathered = b.param(DType::F32, c(N), Access::Write);
        let sums = b.param(DType::F32, sym(0), Access::ReadWrite);
        b.repeat(Bind::Serial, c(N / lanes), |b, i| {
            b.repeat(Bind::Lanes, c(lanes), |b, l| {
                let here = i * c(lanes) + l;
                let data = b.load(at, here.clone());
                let row = b.clamp(data, sym(0));
                let v = b.load(table, IndexExpr::from(row) * c(2) + c(1));
                b.store(gathered, here, v);
                b.push(Stmt::Accumulate {
                    monoid: Monoid::Add,
                    state: [(sums, row.into())].into_iter().collect(),
                    values: [v].into_iter().collect(),
                });
            });
        });
        let k = b.finish();
        for n in [1i64, 3, 10] {
            let mut rng = Rng(21);
            let indices: Vec<i64> = (0..N)
                .map(|i| match i {
                    0 => i64::MIN,
                    1 => i64::MAX,
                    _ => rng.below(14) as i64 - 2,
                })
                .collect();
            let table: Vec<f32> = (0..2 * n).map(|_| rng.float()).collect();
            let mut buffers = [
                f32_bytes(table.iter().copied()),
                i64_bytes(indices.iter().copied()),
                vec![0; N as usize * 4],
                vec![0; n as usize * 4],
            ];
            run(&k, &mut buffers, &[n]);
            let mut expected = vec![0f32; n as usize];
            for (i, index) in indices.iter().enumerate() {
                let row = (*index).clamp(0, n - 1) as usize;
                assert_eq!(f32s(&buffers[2])[i], table[2 * row + 1]);
                expected[row] += table[2 * row + 1];
            }
            assert_eq!(f32s(&buffers[3]), expected, "{lanes} lanes, {n} rows");
        }
    }
}

#[test]
fn every_monoid_accumulates() {
    const N: i64 = 24;
    for monoid in Monoid::ALL {
        for dtype in [DType::F32, DType::F64, DType::I32, DType::U8, DType::I64] {
            if dtype.is_float() && matches!(monoid, Monoid::And | Monoid::Or) {
                continue;
            }
            for lanes in [1i64, 2, 4] {
                for by_lane in [false, true] {
                    // By lane: each lane has a state of its own. Otherwise all lanes share one.
                    let states = if by_lane { lanes } else { 1 };
                    let mut b = Builder::default();
                    let x = b.param(dtype, c(N), Access::Read);
                    let out = b.param(dtype, c(states), Access::Write);
                    let out_at = b.param(DType::I64, c(states), Access::Write);
                    let best = b.kernel.new_scratch(dtype, c(states), Scope::Register);
                    let best_at = b.kernel.new_scratch(DType::I64, c(states), Scope::Register);
                    let first = b.load(x, c(0));
                    let zero = b.constant(DType::I64, 0.0);
                    b.repeat(Bind::Unroll, c(states), |b, s| {
                        b.store(best, s.clone(), first);
                        b.store(best_at, s, zero);
                    });
                    b.repeat(Bind::Serial, c(N / lanes), |b, i| {
                        b.repeat(Bind::Lanes, c(lanes), |b, l| {
                            let at = i * c(lanes) + l.clone();
                            let slot = if by_lane { l } else { c(0) };
                            let v = b.load(x, at.clone());
                            let mut state = vec![(best, slot.clone())];
                            let mut values = vec![v];
                            if monoid.is_arg() {
                                state.push((best_at, slot));
                                values.push(b.index(at, DType::I64));
                            }
                            b.push(Stmt::Accumulate {
                                monoid,
                                state: state.into_iter().collect(),
                                values: values.into_iter().collect(),
                            });
                        });
                    });
                    b.repeat(Bind::Unroll, c(states), |b, s| {
                        let v = b.load(best, s.clone());
                        b.store(out, s.clone(), v);
                        let v = b.load(best_at, s.clone());
                        b.store(out_at, s, v);
                    });
                    let k = b.finish();
                    let f = compile(&k).unwrap();
                    for seed in 1..6 {
                        let mut rng = Rng(seed * 977);
                        let edges: Vec<Scalar> = [3.0, 1.0, 3.0, 0.0, f64::NAN, 1.0, 2.0, f64::NAN]
                            [..if seed < 3 { 4 } else { 8 }]
                            .iter()
                            .map(|v| Scalar::from_f64(dtype, *v))
                            .collect();
                        let input: Vec<Scalar> = (0..N).map(|_| edges[rng.below(edges.len())]).collect();
                        let mut buffers = [
                            bytes(&input),
                            vec![0; states as usize * dtype.bytes()],
                            vec![0; states as usize * 8],
                        ];
                        run_function(&f, &k, &mut buffers, &[], None);
                        for s in 0..states as usize {
                            let (mut value, mut at) = (input[0], 0i64);
                            for (i, v) in input.iter().enumerate() {
                                if by_lane && i % lanes as usize != s {
                                    continue;
                                }
                                if monoid.is_arg() {
                                    let beyond = if monoid == Monoid::ArgMax {
                                        ScalarOp::Lt.eval(&[value, *v]).as_bool()
                                    } else {
                                        ScalarOp::Lt.eval(&[*v, value]).as_bool()
                                    };
                                    if !value.is_nan() && (v.is_nan() || beyond) {
                                        (value, at) = (*v, i as i64);
                                    }
                                } else {
                                    value = monoid.combine().eval(&[value, *v]);
                                }
                            }
                            let found = scalars(dtype, &buffers[1])[s];
                            assert!(
                                same(found, value),
                                "{} {dtype} {lanes} {by_lane}: {value}, {found}",
                                monoid.name()
                            );
                            if monoid.is_arg() {
                                assert_eq!(i64s(&buffers[2])[s], at, "{} {dtype} {lanes} {by_lane}", monoid.name());
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn index_values_in_every_dtype_that_is_computed_in() {
    const N: i64 = 48;
    for dtype in DType::ALL.into_iter().filter(|d| !d.is_storage()) {
        for lanes in [1, 2, 3, 4, 8, 16] {
            for form in 0..4 {
                let expression = |at: IndexExpr| match form {
                    0 => at,
                    1 => c(5) - at * c(7),
                    2 => IndexExpr::modulo(&at, &c(5)) * c(3) + IndexExpr::floor_div(&at, &c(7)),
                    _ => at + sym(0) * c(1 << 40),
                };
                let mut b = Builder::default();
                b.kernel.symbols.push((0, 100));
                let y = b.param(dtype, c(N), Access::Write);
                b.repeat(Bind::Parallel, c(N / lanes), |b, i| {
                    b.repeat(Bind::Lanes, c(lanes), |b, l| {
                        let at = i * c(lanes) + l;
                        let v = b.index(expression(at.clone()), dtype);
                        b.store(y, at, v);
                    });
                });
                let mut buffers = [vec![0; N as usize * dtype.bytes()]];
                run(&b.finish(), &mut buffers, &[3]);
                for (i, found) in scalars(dtype, &buffers[0]).iter().enumerate() {
                    let value = expression(c(i as i64)).eval_symbols(&[3]).unwrap();
                    assert_eq!(
                        *found,
                        Scalar::from_i64(dtype, value),
                        "{dtype} {lanes} lanes, form {form}, {i}"
                    );
                }
            }
        }
    }
}

#[test]
fn if_runs_when_any_lane_asks() {
    for lanes in [1, 2, 3, 4, 8, 16] {
        const N: i64 = 96;
        let mut b = Builder::default();
        let x = b.param(DType::F32, c(N), Access::Read);
        let y = b.param(DType::F32, c(N), Access::ReadWrite);
        let count = b.kernel.new_scratch(DType::I64, c(1), Scope::Register);
        let entered = b.param(DType::I64, c(1), Access::Write);
        let zero = b.constant(DType::I64, 0.0);
        b.store(count, c(0), zero);
        b.repeat(Bind::Serial, c(N / lanes), |b, i| {
            b.repeat(Bind::Lanes, c(lanes), |b, l| {
                let at = i * c(lanes) + l;
                let v = b.load(x, at.clone());
                let half = b.constant(DType::F32, 0.8);
                let large = b.map(ScalarOp::Lt, &[half, v]);
                b.when(large, |b| {
                    let doubled = b.map(ScalarOp::Add, &[v, v]);
                    b.store_masked(y, at, doubled, Some(large));
                    let n = b.load(count, c(0));
                    let one = b.constant(DType::I64, 1.0);
                    let n = b.map(ScalarOp::Add, &[n, one]);
                    b.store(count, c(0), n);
                });
            });
        });
        let n = b.load(count, c(0));
        b.store(entered, c(0), n);
        let mut rng = Rng(4);
        let input: Vec<f32> = (0..N).map(|_| rng.float()).collect();
        let mut buffers = [f32_bytes(input.iter().copied()), vec![0; N as usize * 4], vec![0; 8]];
        run(&b.finish(), &mut buffers, &[]);
        for (x, y) in input.iter().zip(f32s(&buffers[1])) {
            assert_eq!(y, if *x > 0.8 { x + x } else { 0.0 });
        }
        let expected = input
            .chunks(lanes as usize)
            .filter(|b| b.iter().any(|x| *x > 0.8))
            .count();
        assert_eq!(i64s(&buffers[2]), [expected as i64], "{lanes} lanes");
    }
}

#[test]
fn symbolic_transpose_in_parts() {
    for lanes in [1, 4] {
        let mut b = Builder::default();
        b.kernel.symbols.extend([(0, 100), (0, 100)]);
        let (m, n) = (sym(0), sym(1) * c(lanes));
        let x = b.param(DType::F32, m.clone() * n.clone(), Access::Read);
        let y = b.param(DType::F32, m.clone() * n.clone(), Access::Write);
        b.repeat(Bind::Parallel, m.clone(), |b, i| {
            b.repeat(Bind::Serial, sym(1), |b, j| {
                b.repeat(Bind::Lanes, c(lanes), |b, l| {
                    let j = j * c(lanes) + l;
                    let v = b.load(x, i.clone() * n.clone() + j.clone());
                    b.store(y, j * m.clone() + i, v);
                });
            });
        });
        let k = b.finish();
        let f = compile(&k).unwrap();
        for (m, n) in [(0i64, 3i64), (3, 0), (1, 1), (5, 3), (7, 4)] {
            let columns = n * lanes;
            let input: Vec<f32> = (0..m * columns).map(|i| i as f32).collect();
            let mut buffers = [f32_bytes(input.iter().copied()), vec![0; (m * columns * 4) as usize]];
            let middle = m / 2;
            for range in [(middle, m), (0, middle)] {
                run_function(&f, &k, &mut buffers, &[m, n], Some(range));
            }
            let found = f32s(&buffers[1]);
            for i in 0..m {
                for j in 0..columns {
                    assert_eq!(found[(j * m + i) as usize], input[(i * columns + j) as usize]);
                }
            }
        }
    }
}

#[test]
fn random_index_expressions() {
    // Over a serial, an unrolled and a lane variable, a clamped value and a symbol, stored as i64.
    let mut rng = Rng(0xfeed);
    for round in 0..150 {
        let lanes = [1i64, 2, 4, 3][round % 4];
        let (serial, unroll) = (3i64, 2i64);
        let mut b = Builder::default();
        b.kernel.symbols.push((1, 9));
        let data = b.param(DType::I64, c(lanes), Access::Read);
        let y = b.param(DType::I64, c(serial * unroll * lanes), Access::Write);
        let mut expression = None;
        let mut vars = Vec::new();
        b.repeat(Bind::Serial, c(serial), |b, i| {
            b.repeat(Bind::Unroll, c(unroll), |b, u| {
                b.repeat(Bind::Lanes, c(lanes), |b, l| {
                    let d = b.load(data, l.clone());
                    let clamped = b.clamp(d, c(6));
                    let atoms = [i.clone(), u.clone(), l.clone(), clamped.into(), sym(0)];
                    let e = random_index(&mut rng, &atoms, 3);
                    let v = b.index(e.clone(), DType::I64);
                    b.store(y, (i.clone() * c(unroll) + u.clone()) * c(lanes) + l.clone(), v);
                    expression = Some(e);
                    vars = vec![i, u, l, clamped.into()];
                });
            });
        });
        let e = expression.unwrap();
        let values: Vec<i64> = (0..lanes).map(|_| rng.below(9) as i64 - 1).collect();
        let mut buffers = [
            i64_bytes(values.iter().copied()),
            vec![0; (serial * unroll * lanes * 8) as usize],
        ];
        run(&b.finish(), &mut buffers, &[5]);
        let found = i64s(&buffers[1]);
        for i in 0..serial {
            for u in 0..unroll {
                for l in 0..lanes {
                    let at = ((i * unroll + u) * lanes + l) as usize;
                    let bound = [i, u, l, values[l as usize].clamp(0, 5)];
                    let expected = e.eval(&[5], &|v| {
                        vars.iter().position(|x| x.as_var() == Some(v)).map(|p| bound[p])
                    });
                    assert_eq!(Some(found[at]), expected, "{e:?} at {bound:?}, {lanes} lanes");
                }
            }
        }
    }
}

fn random_index(rng: &mut Rng, atoms: &[IndexExpr], depth: u32) -> IndexExpr {
    if depth == 0 || rng.below(6) == 0 {
        return match rng.below(atoms.len() + 1) {
            i if i < atoms.len() => atoms[i].clone(),
            _ => c(rng.below(9) as i64 - 3),
        };
    }
    let a = random_index(rng, atoms, depth - 1);
    let b = random_index(rng, atoms, depth - 1);
    let positive = match rng.below(3) {
        0 => sym(0),
        1 => c(8),
        _ => c(1 + rng.below(6) as i64),
    };
    match rng.below(7) {
        0 => a + b,
        1 => a - b,
        2 => a * b,
        3 => IndexExpr::floor_div(&a, &positive),
        4 => IndexExpr::modulo(&a, &positive),
        5 => IndexExpr::min(&a, &b),
        _ => IndexExpr::max(&a, &b),
    }
}

#[test]
fn loops_of_no_and_one_iteration() {
    for n in [0i64, 1, 2] {
        for constant in [false, true] {
            let mut b = Builder::default();
            b.kernel.symbols.push((0, 100));
            let extent = if constant { c(n) } else { sym(0) };
            let y = b.param(DType::I64, c(1), Access::ReadWrite);
            b.repeat(Bind::Serial, extent.clone(), |b, i| {
                b.repeat(Bind::Serial, i.clone() + c(1), |b, _| {
                    let v = b.load(y, c(0));
                    let here = b.index(i.clone() + c(1), DType::I64);
                    let v = b.map(ScalarOp::Add, &[v, here]);
                    b.store(y, c(0), v);
                });
            });
            let mut buffers = [i64_bytes([0])];
            run(&b.finish(), &mut buffers, &[n]);
            assert_eq!(i64s(&buffers[0]), [(1..=n).map(|i| i * i).sum::<i64>()]);
        }
    }
}

#[test]
fn constants_of_every_dtype_reach_memory() {
    for dtype in DType::ALL {
        for lanes in [1, 2, 4, 8, 16] {
            for value in edges(dtype) {
                let mut b = Builder::default();
                let y = b.param(dtype, c(lanes), Access::Write);
                b.repeat(Bind::Lanes, c(lanes), |b, l| {
                    let v = b.op(dtype, Op::Const(value));
                    b.store(y, l, v);
                });
                let mut buffers = [vec![0; lanes as usize * dtype.bytes()]];
                run(&b.finish(), &mut buffers, &[]);
                assert!(scalars(dtype, &buffers[0]).iter().all(|v| *v == value));
            }
        }
    }
}
