//! Lanes that load what data says: clamped, masked, of every type, at every level.

use tlc_ir::index::{IndexExpr, SymId};
use tlc_ir::kernel::{Access, Bind};
use tlc_ir::{DType, Kernel, Scalar, ScalarOp};
use tlc_runtime::cpu::jit::{self, JitOptions};

use crate::build::*;

const N: i64 = 96;

/// Numbers that are mostly indices, some far outside.
fn indices(dtype: DType, rng: &mut Rng, near: usize) -> Vec<i64> {
    let far = match dtype {
        DType::I32 => [i64::from(i32::MIN), i64::from(i32::MAX), -1, 1 << 30],
        _ => [i64::MIN, i64::MAX, -1, 1 << 40],
    };
    (0..N)
        .map(|i| match i % 13 {
            5 => far[i as usize / 13 % 4],
            _ => rng.below(near) as i64 - 2,
        })
        .collect()
}

fn table(dtype: DType, rng: &mut Rng, n: i64) -> Vec<Scalar> {
    let edges = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0];
    (0..n)
        .map(|i| match i % 7 {
            3 if dtype.is_float() => Scalar::from_f64(dtype, edges[i as usize / 7 % 4]),
            _ => Scalar::from_i64(dtype, rng.below(100) as i64),
        })
        .collect()
}

/// `out[i] = table[3 * row[i] + 2 * column[i] + i mod lanes + 1]` where the mask holds, rows and columns clamped to sizes of which
/// one is a symbol.
#[test]
fn lanes_load_where_clamped_data_says() {
    const COLUMNS: i64 = 7;
    let rows: IndexExpr = SymId(0).into();
    for dtype in [
        DType::F32,
        DType::F64,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::F16,
        DType::Bool,
    ] {
        for from in [DType::I32, DType::I64] {
            for lanes in [1, 2, 4, 8, 16] {
                for masked in [false, true] {
                    let mut b = Builder::default();
                    b.kernel.symbols.push((1, 1000));
                    let len = (rows.clone() - c(1)) * c(3) + c(2 * (COLUMNS - 1) + lanes + 1);
                    let x = b.param(dtype, len.clone(), Access::Read);
                    let at = [(); 2].map(|()| b.param(from, c(N), Access::Read));
                    let out = b.param(dtype, c(N), Access::Write);
                    b.repeat(Bind::Parallel, c(N / lanes), |b, i| {
                        b.repeat(Bind::Lanes, c(lanes), |b, l| {
                            let here = i * c(lanes) + l.clone();
                            let data = at.map(|m| b.load(m, here.clone()));
                            let row = b.clamp(data[0], rows.clone());
                            let column = b.clamp(data[1], c(COLUMNS));
                            let mask = masked.then(|| {
                                let zero = b.constant(from, 0.0);
                                b.map(ScalarOp::Le, &[zero, data[0]])
                            });
                            let index = IndexExpr::from(row) * c(3) + IndexExpr::from(column) * c(2) + l + c(1);
                            let v = b.load_masked(x, index, mask);
                            b.store(out, here, v);
                        });
                    });
                    let k = b.finish();
                    for n in [1i64, 3, 50] {
                        let mut rng = Rng(n as u64);
                        let values = table(dtype, &mut rng, len.eval_symbols(&[n]).unwrap());
                        let data = [indices(from, &mut rng, 2 * n as usize + 2), indices(from, &mut rng, 10)];
                        let of =
                            |all: &[i64]| bytes(&all.iter().map(|v| Scalar::from_i64(from, *v)).collect::<Vec<_>>());
                        let nothing = bytes(&vec![dtype.zero(); N as usize]);
                        let mut buffers = [bytes(&values), of(&data[0]), of(&data[1]), nothing];
                        run(&k, &mut buffers, &[n]);
                        let expected: Vec<u64> = (0..N as usize)
                            .map(|i| {
                                let (row, column) = (data[0][i].clamp(0, n - 1), data[1][i].clamp(0, COLUMNS - 1));
                                match masked && data[0][i] < 0 {
                                    true => dtype.zero().bits(),
                                    false => values[(3 * row + 2 * column + i as i64 % lanes + 1) as usize].bits(),
                                }
                            })
                            .collect();
                        let found: Vec<u64> = scalars(dtype, &buffers[3]).iter().map(|v| v.bits()).collect();
                        assert_eq!(
                            found, expected,
                            "{dtype} by {from}, {lanes} lanes, masked {masked}, {n} rows"
                        );
                    }
                }
            }
        }
    }
}

/// Nothing is read of an empty table: the mask is false everywhere.
#[test]
fn nothing_is_read_of_an_empty_table() {
    const LANES: i64 = 16;
    let mut b = Builder::default();
    b.kernel.symbols.push((0, 1000));
    let n: IndexExpr = SymId(0).into();
    let x = b.param(DType::F32, n.clone(), Access::Read);
    let at = b.param(DType::I32, c(N), Access::Read);
    let out = b.param(DType::F32, c(N), Access::Write);
    b.repeat(Bind::Parallel, c(N / LANES), |b, i| {
        b.repeat(Bind::Lanes, c(LANES), |b, l| {
            let here = i * c(LANES) + l;
            let data = b.load(at, here.clone());
            let place = b.clamp(data, n.clone());
            let (zero, limit) = (b.constant(DType::I32, 0.0), b.index(n.clone(), DType::I32));
            let (low, high) = (b.map(ScalarOp::Le, &[zero, data]), b.map(ScalarOp::Lt, &[data, limit]));
            let inside = b.map(ScalarOp::And, &[low, high]);
            let v = b.load_masked(x, place, Some(inside));
            b.store(out, here, v);
        });
    });
    let k = b.finish();
    let data = indices(DType::I32, &mut Rng(3), 5);
    let data: Vec<Scalar> = data.iter().map(|v| Scalar::from_i64(DType::I32, *v)).collect();
    let mut buffers = [vec![], bytes(&data), vec![1; 4 * N as usize]];
    run(&k, &mut buffers, &[0]);
    assert_eq!(f32s(&buffers[2]), vec![0.0; N as usize]);
}

/// `out[column][lane] = bools[lane][column] ? 1 : 2`, three times: the bools of a column lie apart.
fn by_column(dtype: DType, lanes: i64, columns: i64) -> Kernel {
    let mut b = Builder::default();
    let bools = b.param(DType::Bool, c(3 * lanes * columns), Access::Read);
    let out = b.param(dtype, c(3 * lanes * columns), Access::Write);
    b.repeat(Bind::Parallel, c(3), |b, i| {
        b.repeat(Bind::Lanes, c(lanes), |b, l| {
            let (yes, no) = (b.constant(dtype, 1.0), b.constant(dtype, 2.0));
            for k in 0..columns {
                let here = i.clone() * c(lanes * columns);
                let is = b.load(bools, here.clone() + l.clone() * c(columns) + c(k));
                let v = b.map(ScalarOp::Select, &[is, yes, no]);
                b.store(out, here + c(k * lanes) + l.clone(), v);
            }
        });
    });
    b.finish()
}

/// Bools whose bytes lie apart: whatever is not 0 is true.
#[test]
fn bools_that_lie_apart_are_lanes() {
    for dtype in [DType::F32, DType::F64, DType::I32, DType::I64, DType::U8] {
        for lanes in [1, 2, 4, 8, 16] {
            for columns in [1, 2, 3, 10] {
                let k = by_column(dtype, lanes, columns);
                let n = (3 * lanes * columns) as usize;
                let of = |i: usize| u8::from(i * 7 % 11 < 5);
                let mut buffers = [(0..n).map(of).collect(), vec![0; n * dtype.bytes()]];
                run(&k, &mut buffers, &[]);
                let found = scalars(dtype, &buffers[1]);
                for (at, found) in found.into_iter().enumerate() {
                    let (row, rest) = (at / (lanes * columns) as usize, at % (lanes * columns) as usize);
                    let (column, lane) = (rest / lanes as usize, rest % lanes as usize);
                    let is = of(row * (lanes * columns) as usize + lane * columns as usize + column) == 1;
                    let expected = Scalar::from_f64(dtype, if is { 1.0 } else { 2.0 });
                    assert!(
                        same(found, expected),
                        "{dtype}, {lanes} lanes, {columns} columns, {at}: {found}, not {expected}"
                    );
                }
            }
        }
    }
}

/// A bool that lies apart is one instruction, whose address has up to four bytes in place of a few.
#[test]
fn bools_that_lie_apart_take_little_code() {
    for &level in tlc_runtime::cpu::level::all() {
        let of = |columns| {
            let k = by_column(DType::F32, 8, columns);
            let made = jit::compile_wide(level, &[&k], &JitOptions::default()).unwrap();
            made[0].function.size_bytes()
        };
        let each = (of(10) - of(2)) / (8 * 8);
        assert!(each <= 20, "{each} bytes for each bool at {}", level.name());
    }
}
