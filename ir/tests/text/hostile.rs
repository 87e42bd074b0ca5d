//! Kernel and plan texts made to hurt: deep nests, endless tables, numbers at the edge, floats of every kind. Each is an
//! error with a place, or something that the verifier judges, in time that grows with the text.

use tlc_ir::dtype::{DType, Scalar};
use tlc_ir::kernel::{Kernel, Op, Stmt};
use tlc_ir::text::{MAX_ERRORS, Module, no_data, parse_module, verify_module};

/// The first error of a text that does not parse.
#[track_caller]
fn first_error(text: &str) -> String {
    let errors = parse_module(text, &mut no_data).expect_err("an error");
    assert!(errors.len() <= MAX_ERRORS + 1);
    errors[0].to_string()
}

#[track_caller]
fn parsed(text: &str) -> Module {
    parse_module(text, &mut no_data).unwrap_or_else(|e| panic!("{}", e[0]))
}

fn kernel(body: &str) -> String {
    format!("kernel(p0: f32[8] readwrite) {{\n{body}\n}}\n")
}

#[test]
fn blocks_nest_so_deep_and_no_deeper() {
    let nest = |depth: usize| {
        let open: String = (0..depth).map(|i| format!("for i{i} in 0..2 serial {{\n")).collect();
        kernel(&format!("{open}{}", "}\n".repeat(depth)))
    };
    let module = parsed(&nest(127));
    verify_module(&module, &nest(127));
    assert!(first_error(&nest(200)).contains("blocks nested too deep; expected at most 128 levels"));
    assert!(first_error(&nest(100_000)).contains("blocks nested too deep"));
    let unclosed = kernel(&"if %0 {\n".repeat(50_000));
    first_error(&unclosed);
    let parentheses = kernel(&format!("%0: f32 = load p0[{}1", "(".repeat(100_000)));
    assert!(first_error(&parentheses).contains("extent nested too deep"));
}

#[test]
fn numbers_at_the_edge_are_errors_or_judged() {
    for (body, expected) in [
        ("%0: f32 = load p0[9223372036854775807]", "2:19: extent out of range"),
        ("%0: f32 = load p0[4611686018427387903*4]", "2:19: integer overflow"),
        ("%4294967295: f32 = const 0.0", "1:7: no definition of %0"),
        ("%4294967296: f32 = const 0.0", "2:1: malformed"),
        ("%00: f32 = const 0.0", "2:1: malformed"),
        ("for i4294967295 in 0..2 serial {\n}", "1:7: no definition of i0"),
        ("for i0 in 1..2 serial {\n}", "2:11: lower bound out of range"),
        (
            "scratch r1: f32[1] cache",
            "2:9: scratch out of order; expected number 0, found 1",
        ),
        ("%0: f32 = load p0[i0]", "2:19: unknown name"),
        ("for i0 in 0..i0 serial {\n}", "2:14: unknown name"),
        ("for i0 in 0..div(8, i1) serial {\n}", "2:21: unknown name"),
        ("%0: f32 = load p0[mod(3, 0)]", "2:26: the divisor is zero"),
        (
            "barrier barrier for",
            "3:1: malformed loop variable; expected a name like `i0`, found `}`",
        ),
        ("$0: f32[1] arena \"x\"", "2:1: malformed statement"),
    ] {
        let found = first_error(&kernel(body));
        assert!(found.contains(expected), "{body}: {found}");
    }
    for (text, expected) in [
        ("kernel(p0: f32[1] read) where s0 in 4..=3 {\n}", "1:31: empty range"),
        (
            "kernel(p0: f32[1] read) where s0 in -4..=3 {\n}",
            "1:37: malformed range",
        ),
        ("kernel(p1: f32[1] read) {\n}", "1:8: parameter out of order"),
        (
            "kernel(p0: f32[1] often) {\n}",
            "1:19: malformed parameter; expected read, write",
        ),
        ("kernel(p0: f32[1] read {\n}", "1:7: unclosed list of parameters"),
        ("kernel @a() {\n}\nkernel @a() {\n}", "3:8: duplicate name"),
        (
            "kernel",
            "1:7: malformed kernel; expected `(`, found the end of the text",
        ),
        ("plan", "1:5: malformed plan; expected a name"),
        ("plan @p {", "1:10: malformed plan; expected `}`"),
        (
            "plan @p {\n  $1: f32[1] arena \"a\"\n}",
            "2:3: slot out of order; expected number 0, found 1",
        ),
        ("plan @p {\n  $0: f32[n] arena \"a\"\n}", "2:11: unknown name"),
        (
            "plan @p {\n  $0: f32[1] attic \"a\"\n}",
            "2:14: malformed slot; expected input, output",
        ),
        (
            "plan @p {\n  steps {\n    launch kernel 0($0) bytes\n  }\n}",
            "3:25: malformed launch; expected `grain`",
        ),
        (
            "plan @p {\n  steps {\n    launch kernel 0() grain 0 bytes 0 flops 0 \"\"\n  }\n}",
            "3:29: grain out of range",
        ),
        (
            "plan @p {\n  constant 0: f32[2] = [1]\n}",
            "2:24: list of 1 elements; expected 2",
        ),
        (
            "plan @p {\n  constant 0: f32[2] = opaque \"w\"\n}",
            "2:24: no data for `w`",
        ),
        ("plan @p where n, n {\n}", "1:18: symbol `n` declared twice"),
        ("plan @p {\n  kernel 1() {\n  }\n}", "2:10: kernel out of order"),
        ("plan @p {\n}\nplan @p {\n}", "3:6: duplicate name"),
    ] {
        let found = first_error(text);
        assert!(found.contains(expected), "{text}: {found}");
    }
}

#[test]
fn one_mistake_in_a_kernel_or_plan_is_one_error() {
    for text in [
        "kernel(p0: f32[8] readwrite) {\n  for i0 of 0..8 serial {\n    %0: f32 = load p0[i0]\n    store p0[i0], %0\n  }\n  barrier\n}\n",
        "kernel(p0: f23[8] readwrite) {\n  for i0 in 0..8 serial {\n    %0: f32 = load p0[i0]\n    store p0[i0], %0\n  }\n}\n",
        "kernel(p0: f32[8] readwrite) {\n  %0: f32 = lod p0[0]\n  if %1 {\n    store p0[0], %0\n  }\n}\n",
        "plan @p {\n  input x: f32[4 = $0\n  $0: f32[4] input 0 \"x\"\n  steps {\n    copy $0 to $0\n  }\n}\n",
        "plan @p {\n  steps {\n    group {\n      launch kernel zero()\n      launch kernel 0() grain 1 bytes 0 flops 0 \"a\"\n    }\n  }\n  kernel 0() {\n  }\n}\n",
        "plan @p {\n  kernel 0() {\n    %0: f32 = const one\n  }\n  kernel 1() {\n  }\n}\n",
        "kernel() {\n  barrier\nkernel() {\n}\n",
    ] {
        let errors = parse_module(text, &mut no_data).expect_err("an error");
        assert_eq!(errors.len(), 1, "{text}\n{errors:?}");
    }
}

#[test]
fn endless_tables_are_cut_off_or_judged_in_time() {
    let slots: String = (0..70_000).map(|i| format!("${i}: f32[1] arena \"\"\n")).collect();
    assert!(first_error(&format!("plan @p {{\n{slots}}}")).contains("plan too large"));
    // A chain of aliases, each of the next, in a circle.
    let n = 20_000;
    let aliases = |last: usize| -> String {
        let all = (0..n).map(|i| format!("${i}: f32[1] alias ${} \"\"\n", if i + 1 < n { i + 1 } else { last }));
        format!("plan @p {{\n{}}}", all.collect::<String>())
    };
    let text = aliases(0);
    assert_eq!(verify_module(&parsed(&text), &text).len(), MAX_ERRORS);
    let launches = "launch kernel 0($0, $1) grain 1 bytes 0 flops 0 \"\"\n".repeat(n);
    let text = format!(
        "plan @p {{\n$0: f32[1] arena \"\"\n$1: f32[1] alias $0 \"\"\nsteps {{\ngroup {{\n{launches}}}\n}}\n\
         kernel 0(p0: f32[1] readwrite, p1: f32[1] readwrite) {{\n}}\n}}"
    );
    assert!(!verify_module(&parsed(&text), &text).is_empty());
    let donations = "donate input 0 to output 0\n".repeat(n);
    let text = format!("plan @p {{\n{donations}steps {{\n{}}}\n}}", "copy $0 to $0\n".repeat(n));
    assert!(!verify_module(&parsed(&text), &text).is_empty());
}

#[test]
fn kernels_that_prove_hard_are_judged_in_time() {
    // Many variables, of which none can be dropped first; loops that never reach their access.
    let open: String = (0..100).map(|i| format!("for i{i} in 0..3 serial {{\n")).collect();
    let sum: Vec<String> = (0..100).map(|i| format!("{}*i{i}", 1 + i % 7)).collect();
    let body = format!(
        "{open}%0: f32 = load p0[{} - 700]\n{}",
        sum.join(" + "),
        "}\n".repeat(100)
    );
    let text = kernel(&body);
    assert!(!verify_module(&parsed(&text), &text).is_empty());
    let text = kernel("for i0 in 0..1099511627776 serial {\nfor i1 in 0..0 serial {\n%0: f32 = load p0[i0]\n}\n}");
    verify_module(&parsed(&text), &text);
    let threads: String = (1..200)
        .map(|i| {
            format!(
                "for i{i} in 0..64 thread {{\n%{}: f32 = const 1.0\nstore r0[mod(7*i{i}, 64)], %{}\n}}\n",
                i - 1,
                i - 1
            )
        })
        .collect();
    let text = kernel(&format!(
        "scratch r0: f32[64] shared\nfor i0 in 0..2 block {{\n{threads}}}"
    ));
    verify_module(&parsed(&text), &text);
}

#[test]
fn floats_survive_by_bits() {
    let mut kernel = Kernel::default();
    let mut add = |dtype: DType, bits: u64| {
        let value = kernel.new_value(dtype);
        let op = Op::Const(Scalar::from_bits(dtype, bits));
        kernel.body.push(Stmt::Let { value, op });
    };
    for bits in [
        0,
        1,
        1 << 63,
        0x7ff0 << 48,
        0xfff0 << 48,
        0x7ff8 << 48,
        0xfff8_0000_0000_0001,
        0x7ff0_0000_0000_0001,
    ] {
        add(DType::F64, bits);
    }
    for bits in [
        0,
        1,
        1 << 31,
        0x7f80_0000,
        0xff80_0000,
        0x7fc0_0000,
        0xffc0_0001,
        0x7f80_0001,
        0x3dcc_cccd,
    ] {
        add(DType::F32, bits);
    }
    for dtype in [DType::F16, DType::BF16] {
        (0..=0xffff).for_each(|bits| add(dtype, bits));
    }
    for (dtype, bits) in [
        (DType::U64, u64::MAX),
        (DType::I64, 1 << 63),
        (DType::I8, 0x80),
        (DType::Bool, 1),
    ] {
        add(dtype, bits);
    }
    let text = kernel.to_string();
    assert_eq!(parsed(&text).kernels[0].1, kernel);
}
