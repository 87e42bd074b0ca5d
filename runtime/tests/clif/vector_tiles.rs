//! Contractions as tiles of vectors: by every level's form, against the interpreter, bit for bit, and what the inner loop is made of.

use tlc_codegen::clif::EmitText;
use tlc_codegen::wide::{self, Extensions, Level};
use tlc_ir::kernel::interp::interpret;
use tlc_ir::kernel::verify::{Report, verify};
use tlc_ir::kernel::{Bind, Kernel, Stmt};
use tlc_ir::{DType, Scalar};
use tlc_passes::legalize::{legal_statements, legalize};
use tlc_runtime::cpu::level;

use crate::build::*;
use crate::contract::{arguments, parse, product, statements, tensors};

/// The kernel for an emitter of a level, and whether tiles of vectors are in it.
fn legal(kernel: &Kernel, level: Level) -> (Kernel, bool) {
    let mut legal = kernel.clone();
    legalize(&mut legal, &wide::emitter(level));
    assert!(!legal.statements().any(|s| matches!(s, Stmt::Contract(_))), "{legal}");
    assert!(
        statements(&legal, &legal.body) <= legal_statements(kernel),
        "{} statements, {} foreseen\n{kernel}\n{legal}",
        statements(&legal, &legal.body),
        legal_statements(kernel)
    );
    let lanes = |s: &Stmt| matches!(s, Stmt::Loop { bind: Bind::Lanes, .. });
    let vectors = legal.statements().filter(|s| lanes(s)).count() > kernel.statements().filter(|s| lanes(s)).count();
    (legal, vectors)
}

/// Compares the form of each level, interpreted and as machine code, with the kernel. Returns at how many levels it is vectors.
fn agrees(kernel: &Kernel, symbols: &[i64], arguments: &[Vec<Scalar>]) -> usize {
    let mut expected = tensors(kernel, arguments);
    interpret(kernel, &mut expected, symbols).unwrap_or_else(|e| panic!("{e}\n{kernel}"));
    let mut taken = 0;
    for level in Level::ALL {
        let (legal, vectors) = legal(kernel, level);
        taken += usize::from(vectors);
        assert_eq!(verify(&legal).errors, [], "{legal}");
        let mut again = tensors(kernel, arguments);
        interpret(&legal, &mut again, symbols).unwrap_or_else(|e| panic!("{e}\n{legal}"));
        let mut buffers: Vec<Vec<u8>> = arguments.iter().map(|v| bytes(v)).collect();
        let evaluated = evaluate(&legal, (level, Extensions::default()), &buffers, symbols);
        if level::all().contains(&level) {
            let f = compile_all(&Maker::Wide(level), &[&legal]).remove(0).function;
            let mut alone = buffers.clone();
            run_function(&f, &legal, &mut buffers, symbols, None);
            let f = compile_all(&Maker::Level(level), &[&legal]).remove(0).function;
            run_function(&f, &legal, &mut alone, symbols, None);
            assert_eq!(alone, buffers, "with the instructions of {level:?} alone\n{legal}");
            assert!(
                alone == evaluated,
                "{level:?} is not the processor's bit for bit\n{legal}"
            );
        }
        for (p, expected) in expected.iter().enumerate() {
            let found = scalars(expected.dtype(), &evaluated[p]);
            for (i, f) in found.iter().enumerate() {
                let (e, a) = (expected.get(i), again[p].get(i));
                assert!(same(e, a), "p{p}[{i}]: {e}, {a} as tiles\n{kernel}\n{legal}");
                assert!(same(e, *f), "p{p}[{i}]: {e}, {f} at {level:?}\n{kernel}\n{legal}");
            }
        }
    }
    taken
}

#[test]
fn ragged_products_in_vectors_are_what_the_interpreter_says() {
    for dtype in ["f32", "f64"] {
        for tile in [[3, 16], [14, 32], [6, 5], [1, 64], [20, 40], [2, 1]] {
            let kernel = parse(&product(dtype, dtype, "cache", [tile[0], tile[1], 8]));
            let rest = verify(&kernel);
            assert!(rest.errors.is_empty(), "{rest:?}");
            for sizes in [[7, 41, 9], [15, 33, 3], [1, 1, 1], [4, 20, 0], [0, 3, 2]] {
                let args = arguments(&kernel, &sizes, 3 + tile[1] as u64);
                assert_eq!(agrees(&kernel, &sizes, &args), 2, "{kernel}");
            }
        }
    }
}

/// A product of one tile, in cache or registers, with random strides, offsets, conditions and sizes.
fn random(rng: &mut Rng) -> (Kernel, bool) {
    let dtype = ["f32", "f64"][rng.below(2)];
    let scope = ["register", "cache"][rng.below(2)];
    let register = scope == "register";
    let bind = if register { "unroll" } else { "serial" };
    let [m, k] = [1 + rng.below(if register { 6 } else { 12 }), rng.below(9)];
    let n = match register {
        true => 16 * (1 + rng.below(2)),
        false => 1 + rng.below(70),
    };
    let row = if register { n } else { n + rng.below(3) };
    let offset = if register { 0 } else { rng.below(3) };
    let len = offset + m * row;
    let (mut left, mut right) = (String::new(), String::new());
    let most = |rng: &mut Rng, n: usize| rng.below(n + 2) as i64 - 1;
    if rng.below(3) == 0 {
        left = format!(" if i2 in 0..{}", most(rng, m));
    }
    if rng.below(2) == 0 {
        right = format!(" if i3 - {} in 0..{}", rng.below(3), most(rng, n));
    }
    if rng.below(2) == 0 {
        let lead = |s: &str| if s.is_empty() { "if" } else { "and" };
        let range = format!("i4 - {} in 0..{}", rng.below(3), most(rng, k));
        left = format!("{left} {} {range}", lead(&left));
        right = format!("{right} {} {range}", lead(&right));
    }
    let (a_len, b_len) = (m * k.max(1) + 2, k.max(1) * n + 2);
    let a = ["KK*i2 + i4 + 1", "MM*i4 + i2 + 2"][rng.below(2)];
    let a = a.replace("KK", &k.to_string()).replace("MM", &m.to_string());
    // Columns side by side or, which is left to loops, apart.
    let apart = rng.below(8) == 0;
    let b = match apart {
        false => format!("{n}*i4 + i3 + 2"),
        true => format!("{k}*i3 + i4"),
    };
    let kernel = parse(&format!(
        "\
kernel (p0: {dtype}[{a_len}] read, p1: {dtype}[{b_len}] read, p2: {dtype}[{len}] readwrite) {{
  scratch r0: {dtype}[{len}] {scope}
  for i0 in 0..{len} {bind} {{
    %0: {dtype} = load p2[i0]
    store r0[i0], %0
  }}
  contract i2 in 0..{m}, i3 in 0..{n} over i4 in 0..{k} by 4 r0[{row}*i2 + i3 + {offset}] \
with p0[{a}]{left}, p1[{b}]{right}
  for i1 in 0..{len} {bind} {{
    %1: {dtype} = load r0[i1]
    store p2[i1], %1
  }}
}}
"
    ));
    (kernel, k > 0 && (!apart || k == 1))
}

/// How many random contractions are tried: `TLC_TEST_TILES`, or a few.
fn count() -> u64 {
    std::env::var("TLC_TEST_TILES")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(60)
}

#[test]
fn random_contractions_in_vectors_are_what_the_interpreter_says() {
    let mut rng = Rng(0x7_11e5);
    let mut vectors = 0;
    for seed in 0..count() {
        let (kernel, taken) = random(&mut rng);
        assert_eq!(verify(&kernel), Report::default(), "{kernel}");
        let dtype = kernel.params[0].dtype;
        let edges = edges(dtype);
        let mut args = arguments(&kernel, &[], seed);
        if seed % 3 == 0 {
            for v in args.iter_mut().flatten() {
                *v = random_scalar(&mut rng, dtype, &edges);
            }
        }
        let levels = agrees(&kernel, &[], &args);
        assert_eq!(levels, if taken { 2 } else { 0 }, "{kernel}");
        vectors += levels;
    }
    assert!(vectors as u64 > count(), "{vectors}");
}

/// Words of bytes, of any bits: by the instruction for them and without it.
#[test]
fn ragged_products_of_words_in_vectors_are_what_the_interpreter_says() {
    for tile in [[3, 16], [12, 32], [6, 5], [1, 64], [2, 1]] {
        let text = product("i32", "i32", "cache", [tile[0], tile[1], 8]).replace(" by 8 ", " by 8 dot4 ");
        let kernel = parse(&text);
        assert!(verify(&kernel).errors.is_empty(), "{kernel}");
        for sizes in [[7, 41, 9], [15, 33, 3], [1, 1, 1], [4, 20, 0], [0, 3, 2]] {
            let mut args = arguments(&kernel, &sizes, 5 + tile[1] as u64);
            assert_eq!(agrees(&kernel, &sizes, &args), 2, "{kernel}");
            // The largest products, of 255 and -128, in all places.
            for (values, word) in args.iter_mut().zip([-1i64, 0x8080_8080]) {
                values
                    .iter_mut()
                    .for_each(|v| *v = Scalar::from_bits(DType::I32, word as u64 & 0xffff_ffff));
            }
            agrees(&kernel, &sizes, &args);
        }
    }
}

/// A product of a tile in registers whose sum is as long as a symbol says.
fn in_registers(dtype: &str, [m, n]: [i64; 2]) -> Kernel {
    let len = m * n;
    parse(&format!(
        "\
kernel (p0: {dtype}[{m}*s0] read, p1: {dtype}[{n}*s0] read, p2: {dtype}[{len}] write) where s0 in 0..=1000 {{
  scratch r0: {dtype}[{len}] register
  %0: {dtype} = const 0.0
  for i0 in 0..{len} unroll {{
    store r0[i0], %0
  }}
  contract i2 in 0..{m}, i3 in 0..{n} over i4 in 0..s0 by 8 r0[{n}*i2 + i3] with p0[{m}*i4 + i2], p1[{n}*i4 + i3]
  for i1 in 0..{rows} unroll {{
    for i5 in 0..{lanes} lanes {{
      %1: {dtype} = load r0[{lanes}*i1 + i5]
      store p2[{lanes}*i1 + i5], %1
    }}
  }}
}}
",
        lanes = if dtype == "f32" { 8 } else { 4 },
        rows = len / if dtype == "f32" { 8 } else { 4 },
    ))
}

#[test]
fn the_sum_of_a_tile_is_loads_and_multiply_adds_in_registers() {
    for (level, dtype, [m, n]) in [
        (Level::Avx512, "f32", [14, 32]),
        (Level::Avx512, "f64", [6, 32]),
        (Level::Avx512, "f32", [30, 16]),
        (Level::Avx2, "f32", [6, 16]),
        (Level::Avx2, "f64", [14, 4]),
    ] {
        let kernel = in_registers(dtype, [m, n]);
        let (legal, vectors) = legal(&kernel, level);
        assert!(vectors);
        let text = EmitText {
            disasm: true,
            ..EmitText::default()
        };
        let code = wide::compile(&legal, level, text).unwrap();
        let text = code.disasm.unwrap();
        let element = if dtype == "f32" { DType::F32 } else { DType::F64 };
        let per_row = n / wide::emitter(level).lanes(element);
        let inside = sum_loop(&text);
        let having = |word: &str| inside.iter().filter(|l| l.contains(word)).count() as i64;
        assert_eq!(having("vfmadd"), m * per_row, "{text}");
        assert_eq!(having("broadcast"), m, "{text}");
        assert_eq!(having("vmov"), per_row, "{text}");
        assert_eq!(having("rsp"), 0, "{text}");
    }
}

/// The lines of the loop that has the multiply-adds: from where the jump behind them goes.
fn sum_loop(text: &str) -> Vec<&str> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let last = lines.iter().rposition(|l| l.contains("vfmadd")).unwrap();
    let jump = last + lines[last..].iter().position(|l| l.contains("jl ")).unwrap();
    let target = lines[jump].rsplit("0x").next().unwrap().to_lowercase();
    let first = lines.iter().position(|l| l.split(':').next() == Some(&target)).unwrap();
    lines[first..=jump].to_vec()
}
