//! Every scalar operation and conversion on every dtype, alone and in lanes, against `ScalarOp::eval`.

use tlc_codegen::CodegenError;
use tlc_ir::kernel::{Access, Bind, Kernel, Op};
use tlc_ir::{DType, Scalar, ScalarOp};
use tlc_runtime::cpu::jit::JitError;

use crate::build::*;

/// Elements of a test buffer: a multiple of every lane count.
const N: usize = 960;

/// How the loop over the elements runs.
const FORMS: [i64; 8] = [1, 2, 3, 4, 8, 16, 32, 64];

/// Where an operand comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Operand {
    /// A buffer as long as the result.
    Each,
    /// A buffer with one element.
    One,
    /// A constant.
    Const(Scalar),
}

/// `out[i] = f(operands...)` over `N` elements in lanes.
fn kernel(
    dtypes: &[DType],
    operands: &[Operand],
    result: DType,
    lanes: i64,
    f: impl FnOnce(&mut Builder, &[tlc_ir::kernel::ValueId]) -> tlc_ir::kernel::ValueId,
) -> Kernel {
    let mut b = Builder::default();
    let params: Vec<_> = dtypes
        .iter()
        .zip(operands)
        .map(|(d, o)| b.param(*d, c(if *o == Operand::Each { N as i64 } else { 1 }), Access::Read))
        .collect();
    let out = b.param(result, c(N as i64), Access::Write);
    b.repeat(Bind::Parallel, c(N as i64 / lanes), |b, i| {
        b.repeat(Bind::Lanes, c(lanes), |b, l| {
            let at = i * c(lanes) + l;
            let values: Vec<_> = params
                .iter()
                .zip(operands)
                .zip(dtypes)
                .map(|((p, o), d)| match o {
                    Operand::Each => b.load(*p, at.clone()),
                    Operand::One => b.load(*p, c(0)),
                    Operand::Const(s) => b.op(*d, Op::Const(*s)),
                })
                .collect();
            let v = f(b, &values);
            b.store(out, at, v);
        });
    });
    b.finish()
}

/// Close enough: equal, both NaN, or what the operation leaves open.
fn accepts(op: ScalarOp, expected: Scalar, found: Scalar) -> bool {
    if same(expected, found) {
        return true;
    }
    match op {
        // The sign of a zero is open.
        ScalarOp::Max | ScalarOp::Min => expected.as_f64() == 0.0 && found.as_f64() == 0.0,
        // Two roundings, in the operands' type.
        ScalarOp::Rsqrt => (expected.as_f64() - found.as_f64()).abs() <= expected.as_f64().abs() * 1.2e-7,
        _ => false,
    }
}

struct Case {
    op: ScalarOp,
    dtypes: Vec<DType>,
    operands: Vec<Operand>,
    lanes: i64,
    kernel: Kernel,
}

fn cases(dtype: DType) -> Vec<Case> {
    let mut all = Vec::new();
    for &op in ScalarOp::ALL {
        let mut dtypes = vec![dtype; op.arity()];
        if op == ScalarOp::Select {
            dtypes[0] = DType::Bool;
        }
        let Ok(result) = op.result_dtype(&dtypes) else { continue };
        let mut shapes = vec![vec![Operand::Each; op.arity()]];
        if op.arity() == 2 {
            shapes.push(vec![Operand::Each, Operand::One]);
            shapes.push(vec![Operand::One, Operand::Each]);
            let pick = if dtype.is_float() {
                vec![0, 3, 29]
            } else {
                vec![0, 1, 4, 13, 6]
            };
            let edges = edges(dtype);
            for e in pick.into_iter().filter_map(|i| edges.get(i).copied()) {
                shapes.push(vec![Operand::Each, Operand::Const(e)]);
                shapes.push(vec![Operand::Const(e), Operand::Each]);
            }
        }
        if op.arity() == 3 {
            shapes.push(vec![Operand::One, Operand::Each, Operand::Each]);
            shapes.push(vec![Operand::Each, Operand::One, Operand::Const(dtype.one())]);
        }
        for lanes in FORMS {
            for operands in &shapes {
                if lanes != 1 && !matches!(lanes * dtype.bits() as i64, 128 | 512) && *operands != shapes[0] {
                    continue;
                }
                all.push(Case {
                    op,
                    dtypes: dtypes.clone(),
                    operands: operands.clone(),
                    lanes,
                    kernel: kernel(&dtypes, operands, result, lanes, |b, v| b.map(op, v)),
                });
            }
        }
    }
    all
}

fn check_dtype(dtype: DType) {
    let cases = cases(dtype);
    for maker in makers() {
        check_cases(dtype, &cases, &maker);
    }
}

fn check_cases(dtype: DType, cases: &[Case], maker: &Maker) {
    let kernels: Vec<&Kernel> = cases.iter().map(|c| &c.kernel).collect();
    let functions = compile_all(maker, &kernels);
    let mut rng = Rng(0x1234_5678 + dtype as u64);
    for (case, f) in cases.iter().zip(&functions) {
        let inputs: Vec<Vec<Scalar>> = case
            .dtypes
            .iter()
            .zip(&case.operands)
            .enumerate()
            .map(|(k, (d, o))| {
                let edges = edges(*d);
                match o {
                    // The first elements walk through pairs of edges.
                    Operand::Each => (0..N)
                        .map(|i| match (k, i < 300) {
                            (0, true) => edges[i % edges.len()],
                            (1, true) => edges[(i / edges.len() + i * 7 + i) % edges.len()],
                            _ => random_scalar(&mut rng, *d, &edges),
                        })
                        .collect(),
                    Operand::One => vec![edges[rng.below(edges.len())]],
                    Operand::Const(s) => vec![*s],
                }
            })
            .collect();
        let result = case.kernel.params[case.dtypes.len()].dtype;
        let mut buffers: Vec<Vec<u8>> = inputs.iter().map(|v| bytes(v)).collect();
        buffers.push(vec![0; N * result.bytes()]);
        run_function(&f.function, &case.kernel, &mut buffers, &[], None);
        let found = scalars(result, &buffers[case.dtypes.len()]);
        for i in 0..N {
            let args: Vec<Scalar> = inputs.iter().map(|v| v[if v.len() == 1 { 0 } else { i }]).collect();
            let expected = case.op.eval(&args);
            assert!(
                accepts(case.op, expected, found[i]),
                "{} on {:?} from {:?} in {} lanes, element {i}: expected {expected}, found {}",
                case.op,
                args.iter().map(|a| format!("{} {a}", a.dtype())).collect::<Vec<_>>(),
                case.operands,
                case.lanes,
                found[i]
            );
        }
    }
}

macro_rules! dtype_tests {
    ($($name:ident $dtype:ident;)*) => {
        $(#[test]
        fn $name() {
            check_dtype(DType::$dtype);
        })*
    };
}

dtype_tests! {
    operations_on_bool Bool;
    operations_on_i8 I8;
    operations_on_i16 I16;
    operations_on_i32 I32;
    operations_on_i64 I64;
    operations_on_u8 U8;
    operations_on_u16 U16;
    operations_on_u32 U32;
    operations_on_u64 U64;
    operations_on_f32 F32;
    operations_on_f64 F64;
}

#[test]
fn sixteen_bit_floats_move_but_do_not_compute() {
    for dtype in [DType::F16, DType::BF16] {
        for lanes in FORMS {
            let dtypes = [DType::Bool, dtype, dtype];
            let k = kernel(&dtypes, &[Operand::Each; 3], dtype, lanes, |b, v| {
                b.map(ScalarOp::Select, v)
            });
            let mut rng = Rng(77);
            let inputs: Vec<Vec<Scalar>> = dtypes
                .iter()
                .map(|d| (0..N).map(|_| random_scalar(&mut rng, *d, &edges(*d))).collect())
                .collect();
            let mut buffers: Vec<Vec<u8>> = inputs.iter().map(|v| bytes(v)).collect();
            buffers.push(vec![0; N * 2]);
            run(&k, &mut buffers, &[]);
            for (i, found) in scalars(dtype, &buffers[3]).iter().enumerate() {
                assert_eq!(*found, inputs[if inputs[0][i].as_bool() { 1 } else { 2 }][i]);
            }
        }
        let k = kernel(&[dtype; 2], &[Operand::Each; 2], dtype, 8, |b, v| {
            b.map(ScalarOp::Add, v)
        });
        let error = compile(&k).unwrap_err();
        assert!(
            matches!(
                &error,
                JitError::Kernel {
                    kernel: 0,
                    source: CodegenError::Unsupported { .. }
                }
            ),
            "{error}"
        );
        assert!(error.to_string().contains("legalize"), "{error}");
    }
}

#[test]
fn conversions_between_all_dtypes_that_are_computed_in() {
    let mut cases = Vec::new();
    let computed = || DType::ALL.into_iter().filter(|d| !d.is_storage());
    for from in computed() {
        for to in computed() {
            for lanes in FORMS {
                let k = kernel(&[from], &[Operand::Each], to, lanes, |b, v| b.convert(to, v[0]));
                cases.push((from, to, lanes, k));
            }
        }
    }
    for maker in makers() {
        check_conversions(&cases, &maker);
    }
}

fn check_conversions(cases: &[(DType, DType, i64, Kernel)], maker: &Maker) {
    let kernels: Vec<&Kernel> = cases.iter().map(|c| &c.3).collect();
    let functions = compile_all(maker, &kernels);
    let mut rng = Rng(99);
    for ((from, to, lanes, k), f) in cases.iter().zip(&functions) {
        let edges = edges(*from);
        let input: Vec<Scalar> = (0..N)
            .map(|i| {
                edges
                    .get(i)
                    .copied()
                    .unwrap_or_else(|| random_scalar(&mut rng, *from, &edges))
            })
            .collect();
        let mut buffers = [bytes(&input), vec![0; N * to.bytes()]];
        run_function(&f.function, k, &mut buffers, &[], None);
        for (i, found) in scalars(*to, &buffers[1]).iter().enumerate() {
            let expected = input[i].convert(*to);
            assert!(
                same(expected, *found),
                "{from} {} to {to} in {lanes} lanes: expected {expected}, found {found}",
                input[i]
            );
        }
    }
}

#[test]
fn every_half_converts_and_every_tie_rounds_to_even() {
    let all: Vec<u32> = (0..=0xffff).collect();
    for dtype in [DType::F16, DType::BF16] {
        let halves: Vec<Scalar> = all.iter().map(|b| Scalar::from_bits(dtype, *b as u64)).collect();
        // Each half as f32, and the f32 values beside and halfway between neighbours.
        let mut singles = Vec::new();
        for h in &halves {
            let bits = h.convert(DType::F32).bits();
            let step = if dtype == DType::F16 { 1 << 12 } else { 1 << 15 };
            for b in [
                bits,
                bits + 1,
                bits + step,
                bits + step - 1,
                bits + step + 1,
                bits.wrapping_sub(1),
            ] {
                singles.push(Scalar::from_bits(DType::F32, b));
            }
        }
        // There and back is rounded as there alone.
        let single = DType::F32;
        for (from, through, to, input) in [
            (dtype, dtype, single, &halves),
            (single, single, dtype, &singles),
            (single, dtype, single, &singles),
        ] {
            for lanes in [1, 4, 16] {
                let n = input.len() as i64;
                let mut b = Builder::default();
                let x = b.param(from, c(n), Access::Read);
                let out = b.param(to, c(n), Access::Write);
                b.repeat(Bind::Serial, c(n / lanes), |b, i| {
                    b.repeat(Bind::Lanes, c(lanes), |b, l| {
                        let at = i * c(lanes) + l;
                        let mut v = b.load(x, at.clone());
                        if through != from {
                            v = b.convert(through, v);
                        }
                        let v = b.convert(to, v);
                        b.store(out, at, v);
                    });
                });
                let mut buffers = [bytes(input), vec![0; input.len() * to.bytes()]];
                run(&b.finish(), &mut buffers, &[]);
                for (x, found) in input.iter().zip(scalars(to, &buffers[1])) {
                    let expected = x.convert(through).convert(to);
                    assert!(
                        same(expected, found),
                        "{from} {x} by {through} to {to}: {expected}, found {found}"
                    );
                }
            }
        }
    }
}

#[test]
fn bitcasts_keep_the_bits() {
    for from in DType::ALL {
        for to in DType::ALL.into_iter().filter(|to| to.bits() == from.bits()) {
            for lanes in FORMS {
                let k = kernel(&[from], &[Operand::Each], to, lanes, |b, v| {
                    b.op(to, Op::Bitcast(to, v[0]))
                });
                let mut rng = Rng(3);
                let input: Vec<Scalar> = (0..N)
                    .map(|_| match (from, to) {
                        (DType::Bool, _) | (_, DType::Bool) => Scalar::from_bits(from, rng.next() & 1),
                        _ => Scalar::from_bits(from, rng.next()),
                    })
                    .collect();
                let mut buffers = [bytes(&input), vec![0; N * to.bytes()]];
                run(&k, &mut buffers, &[]);
                let expected: Vec<Scalar> = input.iter().map(|v| Scalar::from_bits(to, v.bits())).collect();
                assert_eq!(bytes(&expected), buffers[1], "{from} to {to} in {lanes} lanes");
            }
        }
    }
}

#[test]
fn equal_values_in_all_lanes_need_no_lane() {
    // Uniform operands only: the result is stored to every lane.
    for dtype in [DType::F32, DType::I64, DType::Bool, DType::U8] {
        for lanes in FORMS {
            let k = kernel(&[dtype; 2], &[Operand::One; 2], dtype, lanes, |b, v| {
                b.map(ScalarOp::Max, v)
            });
            let (zero, one) = (dtype.zero(), dtype.one());
            let mut buffers = [bytes(&[zero]), bytes(&[one]), vec![0; N * dtype.bytes()]];
            run(&k, &mut buffers, &[]);
            assert!(scalars(dtype, &buffers[2]).iter().all(|v| *v == one));
        }
    }
}

/// Emitters have the larger or the smaller of two by one instruction, which must be the choice that is written: of equal zeros, and beside NaN.
#[test]
fn a_choice_by_a_comparison_keeps_signs_of_zeros_and_numbers_beside_nan() {
    for dtype in [DType::F32, DType::F64] {
        let edges = edges(dtype);
        let pair = |i: usize| [edges[i % edges.len()], edges[(i / edges.len() + i) % edges.len()]];
        let inputs: Vec<[Scalar; 2]> = (0..N).map(pair).collect();
        for lanes in FORMS {
            for (then, otherwise) in [(0, 1), (1, 0)] {
                let k = kernel(&[dtype; 2], &[Operand::Each; 2], dtype, lanes, |b, v| {
                    let less = b.map(ScalarOp::Lt, v);
                    b.map(ScalarOp::Select, &[less, v[then], v[otherwise]])
                });
                let column = |n: usize| bytes(&inputs.iter().map(|p| p[n]).collect::<Vec<_>>());
                let mut buffers = [column(0), column(1), vec![0; N * dtype.bytes()]];
                run(&k, &mut buffers, &[]);
                for (pair, found) in inputs.iter().zip(scalars(dtype, &buffers[2])) {
                    let less = ScalarOp::Lt.eval(pair).as_bool();
                    let expected = pair[if less { then } else { otherwise }];
                    assert!(
                        same(expected, found),
                        "{pair:?} in {lanes} lanes: expected {expected}, found {found}"
                    );
                }
            }
        }
    }
}

/// Conversions to integers round by themselves what is rounded to nearest for them alone, with ties to even, beyond the ends and beside NaN.
#[test]
fn what_is_rounded_and_converted_is_what_both_say() {
    let from = DType::F32;
    let beside = |h: f32| [-1, 0, 1].map(|n| f32::from_bits(h.to_bits().wrapping_add_signed(n)));
    let halves = (-130..260).flat_map(|k| beside(k as f32 + 0.5));
    let of = |v: f32| Scalar::from_f64(from, f64::from(v));
    let input: Vec<Scalar> = edges(from).into_iter().chain(halves.map(of)).collect();
    let input: Vec<Scalar> = input.iter().cycle().take(2 * N).copied().collect();
    let integers = || DType::ALL.into_iter().filter(|d| d.is_int() && !d.is_storage());
    let mut cases = Vec::new();
    for to in integers() {
        for lanes in FORMS {
            let k = kernel(&[from], &[Operand::Each], to, lanes, |b, v| {
                let rounded = b.map(ScalarOp::Round, v);
                b.convert(to, rounded)
            });
            cases.push((to, lanes, k));
        }
    }
    let kernels: Vec<&Kernel> = cases.iter().map(|c| &c.2).collect();
    for maker in makers() {
        for ((to, lanes, k), f) in cases.iter().zip(&compile_all(&maker, &kernels)) {
            for part in input.chunks(N) {
                let mut buffers = [bytes(part), vec![0; N * to.bytes()]];
                run_function(&f.function, k, &mut buffers, &[], None);
                for (x, found) in part.iter().zip(scalars(*to, &buffers[1])) {
                    let expected = ScalarOp::Round.eval(&[*x]).convert(*to);
                    assert!(
                        same(expected, found),
                        "{x} to {to} in {lanes} lanes: expected {expected}, found {found}"
                    );
                }
            }
        }
    }
}

/// Integers beside the middle between two neighbouring f32 and f64, of every size.
#[test]
fn integers_of_64_bits_are_rounded_once() {
    for to in [DType::F32, DType::F64] {
        let digits = if to == DType::F32 { 24 } else { 53 };
        let mut numbers: Vec<i64> = Vec::new();
        for k in digits..63 {
            let (one, half) = (1i64 << k, 1i64 << (k - digits));
            for beside in [-1, 0, 1] {
                numbers.extend([0, 1].map(|odd| one + odd * 2 * half + half + beside));
            }
        }
        numbers.extend(numbers.clone().iter().map(|n| -n));
        numbers.extend(numbers.clone().iter().map(|n| n ^ i64::MIN));
        numbers.resize(numbers.len().next_multiple_of(8), 0);
        for from in [DType::I64, DType::U64] {
            let input: Vec<Scalar> = numbers.iter().map(|n| Scalar::from_bits(from, *n as u64)).collect();
            for lanes in [1, 2, 4, 8] {
                let n = input.len() as i64;
                let mut b = Builder::default();
                let x = b.param(from, c(n), Access::Read);
                let out = b.param(to, c(n), Access::Write);
                b.repeat(Bind::Serial, c(n / lanes), |b, i| {
                    b.repeat(Bind::Lanes, c(lanes), |b, l| {
                        let at = i * c(lanes) + l;
                        let v = b.load(x, at.clone());
                        let v = b.convert(to, v);
                        b.store(out, at, v);
                    });
                });
                let mut buffers = [bytes(&input), vec![0; input.len() * to.bytes()]];
                run(&b.finish(), &mut buffers, &[]);
                for (x, found) in input.iter().zip(scalars(to, &buffers[1])) {
                    let expected = match (from, to) {
                        (DType::I64, DType::F32) => Scalar::from_f64(to, f64::from(x.as_i64() as f32)),
                        (DType::I64, _) => Scalar::from_f64(to, x.as_i64() as f64),
                        (_, DType::F32) => Scalar::from_f64(to, f64::from(x.bits() as f32)),
                        _ => Scalar::from_f64(to, x.bits() as f64),
                    };
                    assert!(
                        same(expected, found),
                        "{from} {x} in {lanes} lanes: {expected}, found {found}"
                    );
                }
            }
        }
    }
}
