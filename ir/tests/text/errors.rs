//! What the parser says of bad texts, and where; and the forms of input that the printer does not print.

use tlc_ir::DType;
use tlc_ir::dtype::Scalar;
use tlc_ir::graph::{Graph, NodeKind, Origin};
use tlc_ir::tensor::HostTensor;
use tlc_ir::text::{MAX_ERRORS, Module, no_data, parse_bytes, parse_graph, parse_module};

fn errors(text: &str) -> Vec<String> {
    parse_module(text, &mut no_data).map_or_else(|e| e.iter().map(ToString::to_string).collect(), |_| vec![])
}

/// The errors of a body over `%x: f32[2, n], %i: i64[n]` with `n in 1..=8`; its first line is line 2.
fn body_errors(body: &str) -> Vec<String> {
    errors(&format!(
        "graph @f(%x: f32[2, n], %i: i64[n]) where n in 1..=8 {{\n{body}\n  return %x\n}}\n"
    ))
}

#[test]
fn every_kind_of_bad_statement_has_its_message_and_place() {
    let cases = [
        (
            "%0 exp %x : f32[2, n]",
            "2:4: malformed statement; expected `=`, found `exp`",
        ),
        (
            "%0 = 4 : f32[2, n]",
            "2:6: malformed statement; expected a word, found `4`",
        ),
        (
            "%0 = ad %x : f32[2]",
            "2:6: unknown operation; expected an operation, found `ad`",
        ),
        ("%0 = exp %x", "3:3: malformed statement; expected `:`, found `return`"),
        (
            "%0 = add %x %x : f32[2, n]",
            "2:13: malformed statement; expected `:`, found `%x`",
        ),
        (
            "%0 = add %x, %no : f32[2, n]",
            "2:14: unknown value; expected one that is defined above, found `%no`",
        ),
        (
            "%x = exp %x : f32[2, n]",
            "2:1: value defined twice; expected a new name, found `%x`",
        ),
        (
            "%0 = exp %x : f32[n, 2]",
            "2:15: exp has another type; expected f32[2, n], found f32[n, 2]",
        ),
        (
            "%0 = exp %i : i64[n]",
            "2:6: exp of i64[n]: dtypes i64; expected floats",
        ),
        (
            "%0 = exp %x : q32[2]",
            "2:15: malformed type; expected a dtype like `f32`, found `q32`",
        ),
        (
            "%0 = exp %x : f32[2, n",
            "3:3: malformed type; expected `,` or `]`, found `return`",
        ),
        (
            "%0 = exp %x : f32[2, n]]",
            "2:24: malformed statement; expected a value like `%x`, found `]`",
        ),
        (
            "%0 = exp %x {a=1} : f32[2, n]",
            "2:14: unknown attribute of exp; expected none, found `a`",
        ),
        (
            "%0 = reduce big %x {axes=[0]} : f32[n]",
            "2:13: malformed reduce; expected one of add, mul, max, min, and, or, argmax, argmin, found `big`",
        ),
        (
            "%0 = reduce max %x : f32[n]",
            "2:20: missing attribute of reduce; expected `axes=…` in braces",
        ),
        (
            "%0 = reduce max %x {axis=[0]} : f32[n]",
            "2:21: unknown attribute of reduce; expected axes, found `axis`",
        ),
        (
            "%0 = reduce max %x {axes=[0], axes=[1]} : f32[n]",
            "2:31: attribute given twice; expected `axes` once",
        ),
        (
            "%0 = reduce max %x {axes=[256]} : f32[n]",
            "2:27: axes out of range; expected an integer in 0..=255, found `256`",
        ),
        (
            "%0 = reduce max %x {axes=[0.5]} : f32[n]",
            "2:27: malformed axes; expected an integer, found `0.5`",
        ),
        (
            "%0 = slice %x {start=[0, 0], step=[1, 9223372036854775808]} : f32[2, n]",
            "2:39: step out of range; expected an integer in -9223372036854775808..=9223372036854775807, found `9223372036854775808`",
        ),
        (
            "%0 = const 300 : i8[]",
            "2:12: constant of i8 out of range; expected an integer in -128..=127, found `300`",
        ),
        (
            "%0 = const -1 : u64[]",
            "2:12: malformed constant of u64; expected a number, found `-`",
        ),
        (
            "%0 = const 18446744073709551616 : u64[]",
            "2:12: constant of u64 out of range; expected an integer in 0..=18446744073709551615, found `18446744073709551616`",
        ),
        (
            "%0 = const 1e39 : f32[]",
            "2:12: constant of f32 out of range; expected a finite number or `inf`, found `1e39`",
        ),
        (
            "%0 = const 1 : bool[]",
            "2:12: malformed constant of bool; expected `true` or `false`, found `1`",
        ),
        (
            "%0 = const nan:0x1 : f32[]",
            "2:16: not a NaN; expected the bits of a NaN of f32 as `0x…`",
        ),
        (
            "%0 = const 1 : f32[2]",
            "2:12: a literal is one element; expected f32[] or a list, found f32[2]",
        ),
        (
            "%0 = const [1, 2, 3] : i8[2]",
            "2:12: list of 3 elements; expected 2 elements",
        ),
        (
            "%0 = const [[1, 2], [3]] : i8[2, 2]",
            "2:12: nested lists of another shape; expected [2, 2]",
        ),
        (
            "%0 = const [[[1]]] : i8[1, 1]",
            "2:12: list nested too deep; expected at most 2 levels",
        ),
        (
            "%0 = const [1, 2] : i8[n]",
            "2:12: data of unknown size; expected constant extents, found i8[n]",
        ),
        (
            "%0 = const [1, (] : i8[2]",
            "2:16: malformed list of constants; expected `]`, found `(`",
        ),
        (
            "%0 = const opaque \"w\" : f32[3]",
            "2:12: no data for `w`; expected data of f32[3]",
        ),
        (
            "%0 = einsum %x {ab->ac} : f32[2]",
            "2:22: unknown label; expected one of an operand, found `c`",
        ),
        (
            "%0 = einsum %x {ab,c->a} : f32[2]",
            "2:16: labels of 2 operands; expected one term per operand, 1",
        ),
        (
            "%0 = einsum %x {a1->a} : f32[2]",
            "2:18: malformed label; expected letters or `'52`, found `1`",
        ),
        (
            "%0 = einsum %x {ab->a; semiring=add-add} : f32[2]",
            "2:33: unknown semiring; expected one of add-mul, max-add, min-add, max-mul, or-and, add-dot4, found `add-add`",
        ),
        (
            "%0 = einsum %x {ab->a; mode=1} : f32[2]",
            "2:24: malformed einsum; expected `semiring` or `acc`, found `mode`",
        ),
        (
            "%0 = iota {axis=0} : i32[9223372036854775807]",
            "2:26: extent out of range; expected an integer in 0..=4611686018427387903, found `9223372036854775807`",
        ),
        (
            "%0 = iota {axis=0} : i32[4294967296*4294967296]",
            "2:26: integer overflow; expected values below 2^62",
        ),
        (
            "%0 = iota {axis=0} : i32[div(n, 0)]",
            "2:33: the divisor is zero or may be negative; expected a positive divisor",
        ),
        (
            "%0 = iota {axis=0} : i32[foo(n)]",
            "2:26: unknown function; expected div, mod, min or max, found `foo`",
        ),
        (
            "%0 = iota {axis=0} : i32[n +]",
            "2:29: malformed extent; expected an integer, a symbol or `(`, found `]`",
        ),
        (
            "%0 = const \"x : f32[]",
            "2:12: unterminated string; expected `\"` before the line ends",
        ),
        (
            "%\"\\q\" = exp %x : f32[2, n]",
            "2:1: unknown escape; expected `\\n`, `\\r`, `\\t`, `\\\"`, `\\\\` or `\\u{…}`, found `\\q`",
        ),
        (
            "%0 = exp %x : f32[2, 1n]",
            "2:22: malformed number; expected digits, found `1n`",
        ),
        (
            "\u{4f60}\u{597d} %0 = exp %x : f32[2, n]",
            "2:1: unknown character; expected a token, found `\u{4f60}\u{597d}`",
        ),
        (
            "%0 = exp %x : f32[2, \u{3b1}]",
            "2:22: unknown character; expected a token, found `\u{3b1}`",
        ),
    ];
    for (body, expected) in cases {
        assert_eq!(body_errors(body), [expected], "{body}");
    }
}

#[test]
fn every_kind_of_bad_header_or_ending_has_its_message_and_place() {
    let cases = [
        (
            "grph @f() { return }",
            "1:1: malformed module; expected `graph`, `kernel` or `plan`, found `grph`",
        ),
        (
            "graph f() { return }",
            "1:7: malformed graph; expected a name like `@f`, found `f`",
        ),
        (
            "graph @f(%x: f32[]) return }",
            "1:21: malformed graph; expected `{`, found `return`",
        ),
        (
            "graph @f(%x: f32[] { return }",
            "1:9: unclosed list of inputs; expected `)` before the body",
        ),
        (
            "graph @f(%7: f32[]) { return }",
            "1:10: a number as an input's name; expected a name, or `%\"7\"`",
        ),
        (
            "graph @f(%x: f32[], %x: f32[]) { return }",
            "1:21: input: the name `x` is taken by another input",
        ),
        ("graph @f(%x: f32[-1]) { return }", "1:10: input: extent -1 is negative"),
        (
            "graph @f() where n in 5..=4 { return }",
            "1:18: empty range; expected a lower bound of at most 4, found 5",
        ),
        (
            "graph @f() where n, n = 4 { return }",
            "1:21: symbol `n` declared twice; expected one declaration",
        ),
        (
            "graph @f() where n in -1..=4 { return }",
            "1:23: malformed range; expected a number, found `-`",
        ),
        (
            "graph @f() { }",
            "1:14: graph without outputs; expected `return` before `}`",
        ),
        (
            "graph @f() { return",
            "1:20: malformed output; expected a value like `%x`, found the end of the text",
        ),
        (
            "graph @f(%x: f32[]) { return %x as a, %x as a }",
            "1:39: output name `a` used twice; expected another name",
        ),
        (
            "graph @f(%x: f32[]) { return %x as \"\" }",
            "1:30: an output's name is empty; expected a name",
        ),
        (
            "graph @f(%x: f32[]) { return %x as output_1, %x }",
            "1:46: output name `output_1` used twice; expected another name",
        ),
        (
            "graph @f() { return } graph @f() { return }",
            "1:29: duplicate name; expected a name that no other graph has",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(errors(text), [expected], "{text}");
    }
}

#[test]
fn one_mistake_does_not_hide_or_cause_others() {
    let found = body_errors(
        "  %0 = ad %x : f32[2]\n  %1 = exp %0 : f32[2]\n  %2 = add %1, %x, : f32[2]\n  %3 = exp %i : i64[n]\n  \
         %4 = reduce max %x {axes=[x]} : f32[n]\n  %5 = sub %4,\n  %6 = exp %x : f32[3]",
    );
    let lines: Vec<&str> = found.iter().map(|e| e.split(':').next().unwrap()).collect();
    // Line 7 lacks an operand, which shows at line 8; that is still read, and its type is wrong.
    assert_eq!(lines, ["2", "4", "5", "6", "8", "8"], "{found:#?}");
    let two = errors("graph @a( { return }\ngraph @b() {\n  %0 = bad\n  return\n}\n");
    assert_eq!(two.len(), 2, "{two:?}");
}

#[test]
fn spans_are_the_bytes_concerned() {
    let text = "graph @f(%x: f32[2]) {\n  %\u{22}\u{e9}\u{22} = exp %x : f32[3]\n  return\n}\n";
    let found = parse_module(text, &mut no_data).unwrap_err();
    assert_eq!(&text[found[0].span.start..found[0].span.end], "f32[3]");
    assert_eq!((found[0].position.line, found[0].position.column), (2, 19));
}

#[test]
fn endless_errors_are_cut_off() {
    let text = format!("graph @f() {{\n{}return }}", "  %0 = bad\n".repeat(MAX_ERRORS * 3));
    let found = errors(&text);
    assert_eq!(found.len(), MAX_ERRORS + 1);
    assert!(found[MAX_ERRORS].contains("too many errors"));
}

#[test]
fn bytes_that_are_not_utf8_are_one_error_with_the_offset() {
    let found = parse_bytes(b"graph @f()\n  \xc3\xa9 \xff {", &mut no_data).unwrap_err();
    assert_eq!(found.len(), 1);
    assert_eq!(
        found[0].to_string(),
        "2:5: invalid text; expected UTF-8, found byte 0xff at offset 16"
    );
    assert_eq!((found[0].span.start, found[0].span.end), (16, 17));
}

#[test]
fn a_text_of_other_than_one_graph_is_no_graph() {
    assert!(
        parse_graph("", &mut no_data).unwrap_err()[0]
            .message
            .ends_with("found 0")
    );
    let two = "graph @a() { return } graph @b() { return }";
    assert!(
        parse_graph(two, &mut no_data).unwrap_err()[0]
            .message
            .ends_with("found 2")
    );
    assert_eq!(parse_module("// nothing\n", &mut no_data).unwrap().graphs.len(), 0);
}

fn one(text: &str) -> Graph {
    parse_graph(text, &mut no_data).unwrap_or_else(|e| panic!("{}", e[0]))
}

#[test]
fn loose_input_prints_canonically() {
    let text = "\u{feff}graph @scores(%q: f32[b, h, s, 64], %k: f32[b, h, t, 64],) where b in 1..=64, h = 12, s, t in 0..=0x10 {
      %qk = einsum %q, %k {bhsd,bhtd->bhst; acc=f32} : f32[b, h, s, t] // scores
      %again = einsum %q, %k {'7'8'9'1,'7'8'2'1->'7'8'9'2} : f32[b,h,s,t]
      %m = reduce max %again {axes=[3,],} : f32[b, h, s] %e = slice %m {start=[0, 0, 0]} : f32[b, h, s]
      %w = window %q {size=2, axis=3} : f32[b, h, s, 63, 2]
      %c = const [1, 0x2, -3, 4] : i8[2, 2]
      return %qk as scores, %e, %w }
    ";
    assert_eq!(
        one(text).to_string(),
        "graph @scores(%q: f32[b, h, s, 64], %k: f32[b, h, t, 64]) where b in 1..=64, h = 12, s, t in 0..=16 {
  %0 = einsum %q, %k {abcd,abed->abce} : f32[b, h, s, t]
  %1 = reduce max %0 {axes=[3]} : f32[b, h, s]
  %2 = slice %1 {start=[0, 0, 0], step=[1, 1, 1]} : f32[b, h, s]
  %3 = window %q {axis=3, size=2, stride=1, dilation=1} : f32[b, h, s, 63, 2]
  %4 = const [[1, 2], [-3, 4]] : i8[2, 2]
  return %0 as scores, %2, %3
}
"
    );
}

#[test]
fn names_of_digits_and_numbers_are_different_values() {
    let g =
        one("graph @\"a b\"(%\"0\": f32[\"n m\"], %layer.0.w: f32[i3]) { %0 = neg %\"0\" : f32[\"n m\"] return %0 }");
    let printed = "graph @\"a b\"(%\"0\": f32[\"n m\"], %layer.0.w: f32[\"i3\"]) where \"n m\", \"i3\" {\n  %0 = neg %\"0\" : f32[\"n m\"]\n  return %0\n}\n";
    assert_eq!(g.to_string(), printed);
    assert_eq!(one(printed).to_string(), printed);
}

#[test]
fn scalars_keep_their_bits() {
    for dtype in DType::ALL {
        let mut values = vec![dtype.zero(), dtype.one(), dtype.lowest(), dtype.highest()];
        let mut rng = tlc_ir::rng::Rng::new(7);
        values.extend((0..2000).map(|_| Scalar::from_bits(dtype, rng.bits())));
        if dtype.is_float() {
            values.push(Scalar::from_f64(dtype, -0.0));
            values.push(Scalar::from_f64(dtype, f64::NAN));
            values.push(Scalar::from_bits(dtype, 1));
        }
        let shape = [values.len()];
        let mut data = HostTensor::zeros(dtype, &shape).unwrap();
        values.iter().enumerate().for_each(|(i, v)| data.set(i, *v));
        let list = values.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let g = one(&format!(
            "graph @f() {{ %0 = const [{list}] : {dtype}[{}] return %0 }}",
            values.len()
        ));
        let node = g.node(g.outputs()[0].node);
        assert!(matches!(&node.kind, NodeKind::Data(d) if d.0 == data), "{dtype}");
    }
}

#[test]
fn nodes_know_their_line_and_column() {
    let g = one(
        "graph @f(%x: f32[]) {\n  // \u{e9}\n  /**/ %y = exp %x : f32[]\n  return %y\n}\n"
            .replace("/**/ ", "")
            .as_str(),
    );
    let origins: Vec<Origin> = g.nodes().map(|(_, n)| n.origin.recorded().clone()).collect();
    assert_eq!(
        origins,
        [
            Origin::Text { line: 1, column: 10 },
            Origin::Text { line: 3, column: 3 }
        ]
    );
}

#[test]
fn resolvers_give_data_of_the_stated_type_only() {
    let text = "graph @f() { %0 = const opaque \"w 1\" : f32[2] return %0 }";
    let mut asked = Vec::new();
    let module: Module = parse_module(text, &mut |name, dtype, shape| {
        asked.push((name.to_string(), dtype, shape.to_vec()));
        HostTensor::zeros(dtype, shape).map_err(|e| e.to_string())
    })
    .unwrap();
    assert_eq!(module.graphs[0].len(), 1);
    assert_eq!(asked, [("w 1".to_string(), DType::F32, vec![2])]);
    let wrong = parse_module(text, &mut |_, _, _| Ok(HostTensor::zeros(DType::F16, &[2]).unwrap())).unwrap_err();
    assert_eq!(
        wrong[0].to_string(),
        "1:25: data of another type; expected f32[2], found f16[2]"
    );
}

#[test]
fn long_headers_break_into_lines() {
    let inputs: Vec<String> = (0..9).map(|i| format!("%input_number_{i}: f32[2, 3]")).collect();
    let g = one(&format!("graph @f({}) {{ return }}", inputs.join(", ")));
    let printed = g.to_string();
    assert!(
        printed.starts_with("graph @f(\n    %input_number_0: f32[2, 3],\n"),
        "{printed}"
    );
    assert_eq!(one(&printed).to_string(), printed);
}

#[test]
fn the_example_in_the_documentation_is_canonical() {
    let docs = include_str!("../../src/text/mod.rs")
        .lines()
        .filter_map(|l| l.strip_prefix("//! "));
    let example: Vec<&str> = docs
        .skip_while(|l| !l.starts_with("// softmax"))
        .take_while(|l| *l != "```")
        .collect();
    let text = example[1..].join("\n") + "\n";
    assert_eq!(one(&text).to_string(), text);
}

#[test]
fn literals_of_storage_types_are_numbers_that_they_have() {
    for (dtype, literal, bits) in [
        ("f8e4m3fn", "448.0", 0x7e),
        ("f8e4m3fn", "-0.0", 0x80),
        ("f8e4m3fn", "nan:0xff", 0xff),
        ("f8e5m2", "-inf", 0xfc),
        ("f8e4m3fnuz", "nan", 0x80),
        ("f8e8m0fnu", "0.5", 126),
        ("f4e2m1fn", "-6.0", 0xf),
        ("i4", "-8", 8),
        ("u2", "3", 3),
    ] {
        let g = one(&format!("graph @f() {{ %0 = const {literal} : {dtype}[] return %0 }}"));
        let NodeKind::Const(value) = g.node(g.outputs()[0].node).kind else {
            panic!("{literal} is no constant");
        };
        assert_eq!(value.bits(), bits, "{dtype} {literal}");
    }
    for (dtype, literal) in [
        ("f8e4m3fn", "449.0"),
        ("f8e4m3fn", "inf"),
        ("f8e4m3fnuz", "nan:0x7f"),
        ("f8e8m0fnu", "0.0"),
        ("f8e8m0fnu", "-1.0"),
        ("f4e2m1fn", "nan"),
        ("f4e2m1fn", "7.0"),
        ("i4", "8"),
        ("u2", "-1"),
    ] {
        let text = format!("graph @f() {{ %0 = const {literal} : {dtype}[] return %0 }}");
        assert!(parse_graph(&text, &mut no_data).is_err(), "{dtype} {literal}");
    }
}
