//! Contractions: their loops as machine code, against the interpreter and against loops written here, bit for bit.

use tlc_ir::kernel::interp::interpret;
use tlc_ir::kernel::verify::{Report, Rule, verify};
use tlc_ir::kernel::{Access, Bind, Kernel, Stmt};
use tlc_ir::target::{Emitter, MatrixTile, Support};
use tlc_ir::text::{no_data, parse_module};
use tlc_ir::{DType, HostTensor, Precision, Scalar, ScalarOp};
use tlc_passes::legalize::{legal_statements, legalize};

use crate::build::*;

pub fn parse(text: &str) -> Kernel {
    let mut module = parse_module(text, &mut no_data).unwrap_or_else(|e| panic!("{}\n{text}", e[0]));
    let kernel = module.kernels.remove(0).1;
    assert_eq!(
        parse_module(&kernel.to_string(), &mut no_data).unwrap().kernels[0].1,
        kernel,
        "{text}"
    );
    kernel
}

/// Random elements of each parameter; what is only written is zero.
pub fn arguments(kernel: &Kernel, symbols: &[i64], seed: u64) -> Vec<Vec<Scalar>> {
    let mut rng = Rng(seed | 1);
    let mut all = Vec::new();
    for p in &kernel.params {
        let len = p.len.eval_symbols(symbols).unwrap() as usize;
        let element = |rng: &mut Rng| match p.dtype.is_any_float() {
            true => Scalar::from_f64(p.dtype, f64::from(rng.float()) * 4.0),
            false => Scalar::from_bits(p.dtype, rng.next()),
        };
        all.push(match p.access {
            Access::Write => vec![p.dtype.zero(); len],
            Access::Read | Access::ReadWrite => (0..len).map(|_| element(&mut rng)).collect(),
        });
    }
    all
}

pub fn tensors(kernel: &Kernel, arguments: &[Vec<Scalar>]) -> Vec<HostTensor> {
    let of = |(p, values): (&tlc_ir::kernel::Param, &Vec<Scalar>)| {
        let mut t = HostTensor::zeros(p.dtype, &[values.len()]).unwrap();
        values.iter().enumerate().for_each(|(i, v)| t.set(i, *v));
        t
    };
    kernel.params.iter().zip(arguments).map(of).collect()
}

/// Statements once unrolled loops are copied out.
pub fn statements(kernel: &Kernel, body: &[Stmt]) -> u64 {
    let of = |s: &Stmt| match s {
        Stmt::Loop {
            var,
            bind: Bind::Unroll,
            body,
        } => (1 + statements(kernel, body)) * kernel.extents[var.0 as usize].as_const().unwrap() as u64,
        s => 1 + statements(kernel, s.body()),
    };
    body.iter().map(of).sum()
}

/// Interprets a kernel, legalizes it, runs the machine code, and returns what all of them agree on.
pub fn agreed(kernel: &Kernel, symbols: &[i64], arguments: &[Vec<Scalar>]) -> Vec<Vec<Scalar>> {
    agreed_within(kernel, symbols, arguments, 0.0)
}

/// As [`agreed`]; formulas of elementary functions may be off by so much from the functions.
pub fn agreed_within(kernel: &Kernel, symbols: &[i64], arguments: &[Vec<Scalar>], far: f64) -> Vec<Vec<Scalar>> {
    let mut expected = tensors(kernel, arguments);
    interpret(kernel, &mut expected, symbols).unwrap_or_else(|e| panic!("{e}\n{kernel}"));
    let mut legal = kernel.clone();
    legalize(&mut legal, &tlc_codegen::clif::emitter(true));
    assert!(!legal.statements().any(|s| matches!(s, Stmt::Contract(_))), "{legal}");
    assert!(
        statements(&legal, &legal.body) <= legal_statements(kernel),
        "{kernel}\n{legal}"
    );
    // Blocks are cut from longer loops, which a parallel loop is not known to be.
    let conflict = |r: &Rule| matches!(r, Rule::ParallelConflict { .. });
    let errors = verify(&legal).errors.into_iter().filter(|v| !conflict(&v.rule));
    assert_eq!(errors.collect::<Vec<_>>(), [], "{legal}");
    let mut again = tensors(kernel, arguments);
    interpret(&legal, &mut again, symbols).unwrap_or_else(|e| panic!("{e}\n{legal}"));
    let mut buffers: Vec<Vec<u8>> = arguments.iter().map(|v| bytes(v)).collect();
    run(&legal, &mut buffers, symbols);
    let mut out = Vec::new();
    for (p, expected) in expected.iter().enumerate() {
        let found = scalars(expected.dtype(), &buffers[p]);
        for (i, f) in found.iter().enumerate() {
            let (e, a) = (expected.get(i), again[p].get(i));
            let near = same(e, a) || far > 0.0 && (e.as_f64() - a.as_f64()).abs() <= far;
            assert!(near, "p{p}[{i}]: {e} interpreted, {a} legalized\n{kernel}\n{legal}");
            assert!(
                same(a, *f),
                "p{p}[{i}]: {a} legalized, {f} as machine code\n{kernel}\n{legal}"
            );
        }
        out.push(found);
    }
    out
}

/// `p2[s0, s1] += p0[s0, s2] * p1[s2, s1]`, tile by tile, ragged at every side.
pub fn product(operand: &str, accumulator: &str, scope: &str, [m, n, block]: [i64; 3]) -> String {
    let len = m * n;
    let bind = if scope == "register" { "unroll" } else { "serial" };
    format!(
        "\
kernel (p0: {operand}[s0*s2] read, p1: {operand}[s1*s2] read, p2: {accumulator}[s0*s1] readwrite) \
where s0 in 0..=100, s1 in 0..=100, s2 in 0..=100 {{
  scratch r0: {accumulator}[{len}] {scope}
  for i0 in 0..div(s0 + {m} - 1, {m}) serial {{
    for i1 in 0..div(s1 + {n} - 1, {n}) serial {{
      %0: bool = const true
      for i2 in 0..{m} {bind} {{
        for i3 in 0..{n} {bind} {{
          %1: i64 = index {m}*i0 + i2
          %2: i64 = index s0
          %3: bool = lt %1, %2
          %4: i64 = index {n}*i1 + i3
          %5: i64 = index s1
          %6: bool = lt %4, %5
          %7: bool = and %3, %6
          %8: {accumulator} = load p2[s1*({m}*i0 + i2) + {n}*i1 + i3] if %7
          store r0[{n}*i2 + i3], %8
        }}
      }}
      contract i4 in 0..{m}, i5 in 0..{n} over i6 in 0..s2 by {block} r0[{n}*i4 + i5] \
with p0[s2*({m}*i0 + i4) + i6] if {m}*i0 + i4 in 0..s0, p1[s1*i6 + {n}*i1 + i5] if {n}*i1 + i5 in 0..s1
      for i7 in 0..{m} {bind} {{
        for i8 in 0..{n} {bind} {{
          %9: i64 = index {m}*i0 + i7
          %10: i64 = index s0
          %11: bool = lt %9, %10
          %12: i64 = index {n}*i1 + i8
          %13: i64 = index s1
          %14: bool = lt %12, %13
          %15: bool = and %11, %14
          %16: {accumulator} = load r0[{n}*i7 + i8]
          store p2[s1*({m}*i0 + i7) + {n}*i1 + i8], %16 if %15
        }}
      }}
    }}
  }}
}}
"
    )
}

/// The product by loops that share nothing with the compiler.
fn naive(arguments: &[Vec<Scalar>], [m, n, k]: [usize; 3]) -> Vec<Scalar> {
    let accumulator = arguments[2].first().map(|s| s.dtype());
    let mut out = arguments[2].clone();
    for row in 0..m {
        for column in 0..n {
            for step in 0..k {
                let to = accumulator.unwrap();
                let (a, b) = (arguments[0][row * k + step], arguments[1][step * n + column]);
                let state = out[row * n + column];
                out[row * n + column] = match to {
                    DType::F32 => {
                        let (a, b) = (a.as_f64() as f32, b.as_f64() as f32);
                        Scalar::from_f64(to, f64::from(a.mul_add(b, state.as_f64() as f32)))
                    }
                    DType::F64 => Scalar::from_f64(to, a.as_f64().mul_add(b.as_f64(), state.as_f64())),
                    DType::I32 => {
                        let (a, b) = (a.as_i64() as i32, b.as_i64() as i32);
                        Scalar::from_i64(to, i64::from(a.wrapping_mul(b).wrapping_add(state.as_i64() as i32)))
                    }
                    _ => Scalar::from_i64(to, a.as_i64().wrapping_mul(b.as_i64()).wrapping_add(state.as_i64())),
                };
            }
        }
    }
    out
}

#[test]
fn ragged_products_of_every_accumulator_are_what_loops_say() {
    let dtypes = [
        ("f32", "f32"),
        ("f64", "f64"),
        ("f32", "f64"),
        ("bf16", "f32"),
        ("f16", "f32"),
        ("f8e4m3fn", "f32"),
        ("i32", "i32"),
        ("i8", "i32"),
        ("u16", "i32"),
        ("i64", "i64"),
        ("u32", "i64"),
    ];
    for (operand, accumulator) in dtypes {
        for scope in ["register", "cache"] {
            for (tile, block) in [([3, 4], 4), ([1, 8], 1), ([2, 1], 16)] {
                let kernel = parse(&product(operand, accumulator, scope, [tile[0], tile[1], block]));
                // Neither the tile nor the blocks divide the sizes; a sum of nothing leaves the tile as it is.
                for sizes in [[7, 9, 10], [3, 4, 16], [1, 1, 1], [5, 3, 0], [0, 4, 3]] {
                    let symbols = sizes.map(|n| n as i64);
                    let arguments = arguments(&kernel, &symbols, 7 * block as u64);
                    let found = agreed(&kernel, &symbols, &arguments);
                    let expected = naive(&arguments, sizes);
                    let all = expected.iter().zip(&found[2]);
                    for (i, (e, f)) in all.enumerate() {
                        assert!(
                            same(*e, *f),
                            "{operand} {scope} {tile:?} {sizes:?}: {i}: {e}, found {f}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn products_in_tf32_are_those_of_rounded_operands() {
    let text = product("f32", "f32", "cache", [3, 4, 4]);
    let kernel = parse(&text.replace("by 4 r0", "by 4 tf32 r0"));
    let sizes = [7, 9, 10];
    let mut arguments = arguments(&kernel, &sizes.map(|n| n as i64), 5);
    // Between two neighbours, what has no neighbour above, and what is no number.
    for (i, value) in [
        1.0 + 2f32.powi(-11),
        -1.0 - 2f32.powi(-11),
        f32::MAX,
        f32::NAN,
        f32::NEG_INFINITY,
        -0.0,
        1e-40,
    ]
    .into_iter()
    .enumerate()
    {
        arguments[0][11 * i] = Scalar::from_f64(DType::F32, f64::from(value));
    }
    let found = agreed(&kernel, &sizes.map(|n| n as i64), &arguments);
    for operand in &mut arguments[..2] {
        for x in operand {
            // Written apart from the compiler: adds half of the last bit that is kept and drops what is below.
            let value = x.as_f64() as f32;
            let scale = f64::from(f32::from_bits(value.to_bits() & 0x7f80_0000).max(f32::MIN_POSITIVE)) / 1024.0;
            if value.is_finite() {
                let rounded = (f64::from(value) / scale).round() * scale;
                *x = Scalar::from_f64(DType::F32, rounded);
            }
        }
    }
    for (i, (e, f)) in naive(&arguments, sizes).iter().zip(&found[2]).enumerate() {
        assert!(same(*e, *f), "{i}: {e}, found {f}");
    }
}

#[test]
fn accesses_of_ragged_products_are_proven() {
    let kernel = parse(&product("f32", "f32", "cache", [4, 8, 16]));
    let report = verify(&kernel);
    let proven = |r: &Report| r.errors.is_empty() && r.unproven.iter().all(|v| !v.rule.to_string().contains("outside"));
    assert!(proven(&report), "{report:?}");
    // Without its condition an operand leaves its memory for some sizes.
    let text = product("f32", "f32", "cache", [4, 8, 16]).replace(" if 4*i0 + i4 in 0..s0", "");
    let errors = verify(&parse(&text)).errors;
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(
        errors[0]
            .rule
            .to_string()
            .starts_with("p0 is accessed outside its length for"),
        "{}",
        errors[0]
    );
    // So it does with one that is not narrow enough.
    let text = product("f32", "f32", "cache", [4, 8, 16]).replace("if 4*i0 + i4 in 0..s0", "if 4*i0 + i4 in 0..s0 + 1");
    assert_eq!(verify(&parse(&text)).errors.len(), 1);
}

/// A product of one tile with random strides, offsets, conditions and sizes.
fn random(rng: &mut Rng) -> Kernel {
    let dtypes = [
        ("f32", "f32"),
        ("bf16", "f32"),
        ("f64", "f64"),
        ("i16", "i32"),
        ("u8", "i64"),
        ("i4", "i32"),
    ];
    let (operand, accumulator) = dtypes[rng.below(dtypes.len())];
    let scope = ["register", "cache"][rng.below(2)];
    let bind = if scope == "register" { "unroll" } else { "serial" };
    let [m, n, k] = [1 + rng.below(5), 1 + rng.below(5), rng.below(12)];
    let block = 1 + rng.below(6);
    let precision = if operand == "f32" {
        ["", " tf32"][rng.below(2)]
    } else {
        ""
    };
    // Rows or columns next to each other, apart by more than is needed at times.
    let extra = rng.below(3);
    let (row, column) = if rng.below(2) == 0 {
        (n + extra, 1)
    } else {
        (1, m + extra)
    };
    let offset = rng.below(3);
    let len = offset + (m - 1) * row + (n - 1) * column + 1;
    let (mut left, mut right) = (String::new(), String::new());
    let (a_len, b_len) = (m * k.max(1) + 2, k.max(1) * n + 2);
    let most = |rng: &mut Rng, n: usize| rng.below(n + 2) as i64 - 1;
    if rng.below(2) == 0 {
        left = format!(" if i2 in 0..{}", most(rng, m));
    }
    if rng.below(2) == 0 {
        let lead = if left.is_empty() { "if" } else { "and" };
        let (shift, limit) = (rng.below(3), most(rng, k));
        left += &format!(" {lead} i4 - {shift} in 0..{limit}");
        right += &format!(" if i4 - {shift} in 0..{limit}");
    }
    let (a, b) = match rng.below(2) {
        0 => (format!("{k}*i2 + i4 + 1"), format!("{n}*i4 + i3 + 2")),
        _ => (format!("{m}*i4 + i2 + 2"), format!("{k}*i3 + i4")),
    };
    parse(&format!(
        "\
kernel (p0: {operand}[{a_len}] read, p1: {operand}[{b_len}] read, p2: {accumulator}[{len}] readwrite) {{
  scratch r0: {accumulator}[{len}] {scope}
  for i0 in 0..{len} {bind} {{
    %0: {accumulator} = load p2[i0]
    store r0[i0], %0
  }}
  contract i2 in 0..{m}, i3 in 0..{n} over i4 in 0..{k} by {block}{precision} r0[{row}*i2 + {column}*i3 + {offset}] \
with p0[{a}]{left}, p1[{b}]{right}
  for i1 in 0..{len} {bind} {{
    %1: {accumulator} = load r0[i1]
    store p2[i1], %1
  }}
}}
"
    ))
}

#[test]
fn random_contractions_agree_in_every_form() {
    let mut rng = Rng(0x5eed);
    for seed in 0..300 {
        let kernel = random(&mut rng);
        let report = verify(&kernel);
        assert_eq!(report, Report::default(), "{kernel}");
        let arguments = arguments(&kernel, &[], seed);
        agreed(&kernel, &[], &arguments);
    }
}

#[test]
fn what_is_masked_counts_as_zero_and_is_multiplied() {
    // f8e8m0fnu has no zero of its own.
    for (dtype, one) in [("f32", "1.0"), ("f8e8m0fnu", "1.0")] {
        let text = format!(
            "\
kernel (p0: {dtype}[2] read, p1: f32[2] read, p2: f32[1] write) {{
  scratch r0: f32[1] register
  %0: f32 = const {one}
  store r0[0], %0
  contract i0 in 0..1, i1 in 0..1 over i2 in 0..2 by 2 r0[0] with p0[i2] if i2 in 0..1, p1[i2]
  %1: f32 = load r0[0]
  store p2[0], %1
}}
"
        );
        let kernel = parse(&text);
        let p0 = DType::ALL.into_iter().find(|d| d.name() == dtype).unwrap();
        let f = |v: f64| Scalar::from_f64(DType::F32, v);
        let element = |v: f64| Scalar::from_f64(p0, v);
        for (last, expected) in [(3.0, 9.0), (f64::INFINITY, f64::NAN)] {
            let arguments = [vec![element(2.0), element(2.0)], vec![f(4.0), f(last)], vec![f(0.0)]];
            let found = agreed(&kernel, &[], &arguments);
            assert!(same(found[2][0], f(expected)), "{dtype}: {}", found[2][0]);
        }
    }
}

#[test]
fn a_float_product_is_not_rounded_before_it_is_added() {
    let kernel = parse(&product("f32", "f32", "register", [1, 1, 1]));
    let f = |v: f64| Scalar::from_f64(DType::F32, v);
    let near = 1.0 + f64::from(f32::EPSILON);
    // What the square of `near` is rounded to.
    let state = -(1.0 + 2.0 * f64::from(f32::EPSILON));
    let arguments = vec![vec![f(near)], vec![f(near)], vec![f(state)]];
    let found = agreed(&kernel, &[1, 1, 1], &arguments)[2][0];
    let rounded = ScalarOp::Add.eval(&[ScalarOp::Mul.eval(&[f(near), f(near)]), f(state)]);
    assert_eq!(found.as_f64(), f64::from(f32::EPSILON).powi(2));
    assert_eq!(rounded.as_f64(), 0.0);
}

#[test]
fn an_emitter_with_matrix_instructions_keeps_what_they_cut_without_a_rest() {
    let tile = MatrixTile {
        operands: [DType::BF16, DType::BF16],
        accumulator: DType::F32,
        precision: Precision::Exact,
        extents: [16, 8, 16],
    };
    let emitter = tlc_codegen::clif::emitter(true).with_matrices([tile]);
    assert_eq!(
        emitter.contract(tile.operands, DType::F32, Precision::Exact, [32, 8, 16]),
        Support::Native
    );
    let kept_by = |emitter: &Emitter, operand: &str, extents: [i64; 3]| {
        let mut kernel = parse(&product(operand, "f32", "cache", extents));
        legalize(&mut kernel, emitter);
        kernel.statements().any(|s| matches!(s, Stmt::Contract(_)))
    };
    let kept = |operand: &str, extents: [i64; 3]| kept_by(&emitter, operand, extents);
    assert!(kept("bf16", [16, 8, 16]) && kept("bf16", [32, 24, 48]));
    assert!(!kept("f16", [16, 8, 16]) && !kept("bf16", [16, 4, 16]) && !kept("bf16", [16, 8, 8]));
    // On a GPU they are a warp's, into its fragments.
    assert!(!kept_by(&tlc_codegen::cuda::emitter(), "bf16", [16, 8, 16]));
}
