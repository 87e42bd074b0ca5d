//! Laws of the text form and the builder, on generated graphs and on damaged text.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tlc_ir::DType;
use tlc_ir::graph::verify::verify;
use tlc_ir::graph::{Graph, NodeKind, View};
use tlc_ir::rng::Rng;
use tlc_ir::testgen::{GenOptions, random_case, random_graph};
use tlc_ir::text::{PrintOptions, difference, no_data, parse_bytes, parse_graph, parse_module, print_graph};

fn options(seed: u64) -> GenOptions {
    GenOptions {
        symbolic: seed.is_multiple_of(2),
        strange: seed.is_multiple_of(3),
        ..GenOptions::default()
    }
}

#[test]
fn parsing_what_was_printed_gives_the_same_graph() {
    for seed in 0..3000 {
        let graph = random_graph(seed, &options(seed));
        let limit = if seed.is_multiple_of(5) { 3 } else { 1024 };
        let printing = PrintOptions {
            inline_elements: limit,
            ..PrintOptions::default()
        };
        let printed = print_graph(&graph, &printing);
        let parsed = parse_graph(&printed.text, &mut |name, _, _| printed.external(name))
            .unwrap_or_else(|e| panic!("seed {seed}: {}\n{}", e[0], printed.text));
        if let Some(d) = difference(&graph, &parsed) {
            panic!("seed {seed}: {d}\n{}", printed.text);
        }
        assert_eq!(print_graph(&parsed, &printing).text, printed.text, "seed {seed}");
        assert_eq!(verify(&parsed), [], "seed {seed}");
    }
}

#[test]
fn what_is_built_verifies() {
    for seed in 0..3000 {
        let graph = random_graph(seed, &options(seed));
        assert_eq!(verify(&graph), [], "seed {seed}\n{graph}");
    }
}

#[test]
fn generated_cases_keep_their_promises() {
    for seed in 0..2000 {
        let o = options(seed);
        let case = random_case(seed, &o);
        let g = &case.graph;
        assert_eq!(case.binding.len(), g.symbols().len());
        for (s, v) in g.symbols().iter().zip(&case.binding) {
            assert!((s.lo..=s.hi).contains(v));
        }
        for guard in g.guards() {
            let value = |e: &tlc_ir::IndexExpr| e.eval_symbols(&case.binding).expect("evaluates");
            match &guard.condition {
                tlc_ir::graph::Condition::Equal(a, b) => assert_eq!(value(a), value(b), "seed {seed}"),
                tlc_ir::graph::Condition::NonNegative(e) => assert!(value(e) >= 0, "seed {seed}"),
            }
        }
        for (_, n) in g.nodes() {
            let elements =
                n.ty.shape
                    .iter()
                    .map(|d| d.eval_symbols(&case.binding).expect("evaluates"));
            let elements = elements.inspect(|&d| assert!(d >= 0, "seed {seed}")).product::<i64>();
            assert!(elements <= o.max_elements as i64, "seed {seed}");
        }
        assert!(!g.inputs().is_empty() && !g.outputs().is_empty());
        assert_eq!(case.input_data(seed).len(), g.inputs().len());
        assert_eq!(random_graph(seed, &o).to_string(), g.to_string());
    }
}

#[test]
fn generated_graphs_cover_the_language() {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut see = |what: String| *seen.entry(what).or_default() += 1;
    for seed in 0..2000 {
        let graph = random_graph(seed, &options(seed));
        see(format!("outputs {}", graph.outputs().len().min(3)));
        if !graph.guards().is_empty() {
            see("guards".into());
        }
        for (_, n) in graph.nodes() {
            see(n.kind.name().to_string());
            see(n.ty.dtype.name().to_string());
            see(format!("rank {}", n.ty.rank()));
            match &n.kind {
                NodeKind::Einsum { semiring, inputs, .. } => {
                    see(semiring.name().to_string());
                    see(format!("einsum of {}", inputs.len()));
                }
                NodeKind::Reduce { monoid, .. } => see(format!("reduce {}", monoid.name())),
                NodeKind::Scan { monoid, .. } => see(format!("scan {}", monoid.name())),
                NodeKind::Scatter { op, .. } => see(format!("scatter {}", op.name())),
                NodeKind::View(View::Slice { .. } | View::Pad { .. } | View::Window { .. } | View::Reshape(_))
                    if n.ty.const_shape().is_none() =>
                {
                    see(format!("symbolic {}", n.kind.name()));
                }
                _ => {}
            }
            for d in &n.ty.shape {
                match d.as_const() {
                    Some(0) => see("extent 0".into()),
                    Some(1) => see("extent 1".into()),
                    None => see("symbolic extent".into()),
                    _ => {}
                }
            }
        }
    }
    let mut expected: Vec<String> = tlc_ir::ScalarOp::ALL.iter().map(|o| o.name().to_string()).collect();
    expected.extend(DType::ALL.iter().map(|d| d.name().to_string()));
    let kinds = "const iota random convert einsum reduce reshape permute expand pad slice window gather scatter scan copy loop call project";
    expected.extend(kinds.split(' ').map(String::from));
    expected.extend(tlc_ir::graph::Semiring::ALL.iter().map(|s| s.name().to_string()));
    for m in tlc_ir::graph::Monoid::ALL {
        expected.push(format!("reduce {}", m.name()));
        if !m.is_arg() {
            expected.push(format!("scan {}", m.name()));
        }
    }
    expected.extend(
        tlc_ir::graph::ScatterOp::ALL
            .iter()
            .map(|s| format!("scatter {}", s.name())),
    );
    for more in "rank 0,rank 4,outputs 1,outputs 3,guards,extent 0,extent 1,symbolic extent,einsum of 1,einsum of 3,\
                 symbolic slice,symbolic pad,symbolic window,symbolic reshape"
        .split(',')
    {
        expected.push(more.to_string());
    }
    let missing: Vec<&String> = expected
        .iter()
        .filter(|e| seen.get(*e).is_none_or(|&n| n < 3))
        .collect();
    assert!(missing.is_empty(), "rare: {missing:?}");
}

/// Parses, and checks what must hold of any text.
fn survives(bytes: &[u8]) {
    match parse_bytes(bytes, &mut no_data) {
        Ok(module) => {
            for graph in &module.graphs {
                let text = String::from_utf8_lossy(bytes);
                // A graph without outputs is read, so that what else is wrong with it is reported as well.
                let mut errors = verify(graph);
                if graph.outputs().is_empty() {
                    let last = errors.pop().map(|e| e.to_string());
                    assert_eq!(
                        last.as_deref(),
                        Some("the graph has no outputs; expected at least one"),
                        "{text}"
                    );
                }
                assert_eq!(errors, [], "{text}");
                let printed = graph.to_string();
                let again =
                    parse_graph(&printed, &mut no_data).unwrap_or_else(|e| panic!("{}\n{printed}\n{text}", e[0]));
                assert_eq!(difference(graph, &again), None, "{text}");
            }
        }
        Err(errors) => {
            assert!(!errors.is_empty());
            for e in errors {
                assert!(e.span.start <= e.span.end && e.span.end <= bytes.len(), "{e}");
                assert!(e.position.line >= 1 && e.position.column >= 1);
            }
        }
    }
}

#[test]
fn damaged_text_never_panics_and_what_parses_verifies() {
    let pieces = [
        "%0",
        "%x0",
        "\"",
        "'99",
        "'",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        ",",
        ":",
        ";",
        "=",
        "+",
        "-",
        "*",
        "->",
        "..=",
        "graph",
        "return",
        "where",
        "as",
        "in",
        "f32",
        "i64[]",
        "n",
        "0",
        "1",
        "-1",
        "18446744073709551615",
        "9223372036854775807",
        "9223372036854775808",
        "1e999",
        "nan:0x1",
        "nan",
        "inf",
        "0x",
        "div(n, 0)",
        "div(n, -1)",
        "mod(n, m)",
        "min(",
        "\\",
        "\n",
        "//",
        "\u{e9}",
        "\0",
        "@g",
        "%",
        "@",
        "const",
        "einsum",
        "axis=255",
        "axes=[]",
        "opaque \"d\"",
        "4611686018427387903",
    ];
    let mut parsed = 0usize;
    for seed in 0..4000u64 {
        let mut rng = Rng::new(seed);
        let o = GenOptions {
            max_nodes: 10,
            ..options(seed)
        };
        let mut text = random_graph(seed % 500, &o).to_string().into_bytes();
        for _ in 0..1 + rng.below(4) {
            let at = rng.below(text.len());
            let to = (at + rng.below(12)).min(text.len());
            match rng.below(5) {
                0 => text[at] = rng.bits() as u8,
                1 => drop(text.drain(at..to)),
                2 => {
                    let piece = pieces[rng.below(pieces.len())].bytes();
                    text.splice(at..at, piece);
                }
                3 => {
                    let piece = pieces[rng.below(pieces.len())].bytes();
                    text.splice(at..to, piece);
                }
                _ => {
                    let copy = text[at..to].to_vec();
                    let other = rng.below(text.len());
                    text.splice(other..other, copy);
                }
            }
            if text.is_empty() {
                text.push(b'x');
            }
        }
        parsed += usize::from(parse_bytes(&text, &mut no_data).is_ok());
        survives(&text);
    }
    assert!(
        parsed > 50,
        "only {parsed} damaged texts parse: the law is hardly tested"
    );
}

#[test]
fn random_tokens_never_panic() {
    let words = [
        "graph", "@f", "(", ")", "{", "}", "[", "]", "%a", "%b", "%0", "=", ":", ",", ";", "return", "f32", "n", "4",
        "-", "->", "add", "const", "einsum", "ab", "reduce", "max", "axes", "nan", "\"s\"", "'3", "*", "+", "div",
        "where", "in", "..=", "\n",
    ];
    for seed in 0..3000 {
        let mut rng = Rng::new(seed);
        let mut text = String::from("graph @f(%a: f32[4]) {\n");
        for _ in 0..rng.below(60) {
            text.push_str(words[rng.below(words.len())]);
            text.push(' ');
        }
        survives(text.as_bytes());
    }
}

/// Texts that are small but could cost much.
#[test]
fn hostile_text_is_refused_quickly() {
    let n = 50_000;
    let wrap = |body: String| format!("graph @f(%x: f32[4], %y: f32[5]) {{\n{body}\n  return\n}}\n");
    let sums: String = (0..40)
        .map(|i| format!("(a{i} + b{i} + 1)"))
        .collect::<Vec<_>>()
        .join("*");
    let dims: String = (0..40)
        .map(|i| format!("a{i} + b{i} + 1"))
        .collect::<Vec<_>>()
        .join(", ");
    let mods: String = (0..2000)
        .map(|i| format!("mod(a{i}, 7)*7"))
        .collect::<Vec<_>>()
        .join(" + ");
    let texts = [
        "(".repeat(n),
        "{".repeat(n),
        "[".repeat(n),
        "\"".repeat(n),
        "graph ".repeat(n),
        "graph @f(".repeat(n),
        "%x = add ".repeat(n),
        "\u{e9}".repeat(n),
        wrap("%a = const ".to_string() + &"[".repeat(n) + &"]".repeat(n) + " : f32[1]"),
        wrap("%a = const [1, 2] : f32[1000000, 1000000]".to_string()),
        wrap("%a = const [1, 2] : f32[4611686018427387903, 4611686018427387903]".to_string()),
        wrap(format!(
            "%a = iota {{axis=0}} : i32[{}4{}]",
            "(".repeat(n),
            ")".repeat(n)
        )),
        wrap(format!(
            "%a = iota {{axis=0}} : i32[{}4{}]",
            "min(n, ".repeat(n),
            ")".repeat(n)
        )),
        wrap(format!("%a = iota {{axis=0}} : i32[{sums}]")),
        wrap(format!(
            "%a = iota {{axis=0}} : i32[{dims}]\n%b = reshape %a : i32[1, {dims}]"
        )),
        wrap(format!("%a = iota {{axis=0}} : i32[{dims}]\n%b = reshape %a : i32[4]")),
        wrap(format!("%a = iota {{axis=0}} : i32[{mods}]")),
        wrap(format!("%a = iota {{axis=0}} : i32[{}1]", "1, ".repeat(n))),
        wrap(format!("%a = iota {{axis=0}} : i32[{}1]", "n*".repeat(n))),
        wrap(format!("%a = iota {{axis=0}} : i32[{}1]", "n + ".repeat(n))),
        wrap(format!(
            "%a = einsum %x{} {{{}->}} : f32[]",
            ", %x".repeat(n),
            "a,".repeat(n) + "a"
        )),
        wrap(format!("%a = einsum %x {{{}->a}} : f32[4]", "abc".repeat(n))),
        wrap(format!(
            "%a = einsum %x {{{}->a}} : f32[4]",
            (0..70_000).map(|i| format!("'{i}")).collect::<String>()
        )),
        wrap("%a = add %x, %y : f32[4]\n".repeat(n)),
        wrap(
            (0..n)
                .map(|i| format!("%v{i} = window %x {{axis=0, size=1}} : f32[4, 1]\n"))
                .collect(),
        ),
        wrap(
            (0..n)
                .map(|i| format!("%v{i} = add %v{i}, %q{i} : f32[4, 1]\n"))
                .collect(),
        ),
        format!(
            "graph @f({}) {{ return }}",
            (0..n).map(|i| format!("%v{i}: f32[n{i}], ")).collect::<String>()
        ),
        format!(
            "graph @f() where {} {{ return }}",
            (0..n).map(|i| format!("n{i}, ")).collect::<String>() + "n"
        ),
        "graph @f(%x: f32[n*4611686018427387903]) where n in 0..=9223372036854775807 { return %x, %x as y }"
            .to_string(),
        format!("graph @f(%x: f32[]) {{ return {} %x }}", "%x, ".repeat(n)),
        wrap(
            (0..20_000)
                .map(|i| {
                    format!(
                        "%w{i} = pad %x {{lo=[n + {i}], hi=[m], value=0}} : f32[n + m + {}]\n",
                        i + 4
                    )
                })
                .collect(),
        ),
    ];
    for text in texts {
        let start = Instant::now();
        survives(text.as_bytes());
        let elapsed = start.elapsed();
        assert!(
            elapsed < Duration::from_secs(10),
            "{elapsed:?} for {}",
            &text[..80.min(text.len())]
        );
    }
}

#[test]
fn a_hundred_thousand_nodes_parse_in_linear_time() {
    let text_of = |n: usize| {
        let mut text = String::from("graph @f(%x: f32[4]) {\n  %0 = neg %x : f32[4]\n");
        for i in 1..n {
            let op = ["exp", "neg", "abs"][i % 3];
            text.push_str(&format!("  %{i} = {op} %{} : f32[4]\n", i - 1));
        }
        text.push_str(&format!("  return %{}\n}}\n", n - 1));
        text
    };
    let time = |text: &str| {
        let start = Instant::now();
        let graph = parse_graph(text, &mut no_data).unwrap();
        (graph, start.elapsed())
    };
    let (_, small) = time(&text_of(10_000));
    let text = text_of(100_000);
    let (graph, large) = time(&text);
    assert_eq!(graph.len(), 100_001);
    assert_eq!(verify(&graph), []);
    assert_eq!(graph.to_string(), text);
    assert!(
        large < small * 60 + Duration::from_millis(500),
        "{small:?} for 10,000 nodes, {large:?} for 100,000"
    );
    // All on one line: columns must not be counted from the line's start each time.
    let (one_line, flat) = time(&text.replace('\n', " "));
    assert_eq!(difference(&graph, &one_line), None);
    assert!(
        flat < large * 10 + Duration::from_millis(500),
        "{flat:?} on one line, {large:?} on many"
    );
}

#[test]
fn modules_hold_several_graphs() {
    let a = random_graph(1, &GenOptions::default());
    let mut b = random_graph(2, &GenOptions::default());
    b.name = "the other".into();
    let text = format!("{a}\n{b}");
    let module = parse_module(&text, &mut no_data).unwrap();
    assert_eq!(module.graphs.len(), 2);
    assert_eq!(module.to_string(), text);
    assert_eq!(difference(&module.graphs[1], &b), None);
}

#[test]
fn labels_beyond_the_letters_and_odd_dims_round_trip() {
    let mut g = Graph::new("wide");
    let n: tlc_ir::IndexExpr = g.add_symbol("n", 1, 9).into();
    let m: tlc_ir::IndexExpr = g.add_symbol("max", 1, 9).into();
    let c = |k: i64| tlc_ir::IndexExpr::from(k);
    let ty = tlc_ir::TensorType::new(DType::F32, vec![c(1); 60]);
    let origin = tlc_ir::graph::Origin::Unknown;
    let x = g.add_input("x", ty, origin.clone()).unwrap();
    let labels: tlc_ir::graph::Labels = (0..60).collect();
    let kind = NodeKind::Einsum {
        inputs: [labels.clone()].into_iter().collect(),
        output: labels.into_iter().rev().collect(),
        semiring: tlc_ir::graph::Semiring::MaxMul,
        accumulator: DType::F64,
        dtype: DType::F16,
    };
    let y = g.add(kind, &[x], origin.clone()).unwrap();
    g.add_output("y", y);
    use tlc_ir::IndexExpr as E;
    let dims = [
        E::floor_div(&(n.clone() * c(3) - c(1)), &m) * n.clone(),
        E::modulo(&(n.clone() - m.clone()), &c(4)),
        E::max(&(c(-3) - n.clone()), &E::min(&n, &m)),
        (n.clone() + c(1)) * (m.clone() - n.clone() * n.clone()) + c(700),
        E::floor_div(&E::ZERO.clone(), &m) + E::floor_div(&(n.clone() + c(5)), &(m.clone() + n)) * c(2),
    ];
    g.add_input("z", tlc_ir::TensorType::new(DType::F32, dims), origin)
        .unwrap();
    let parsed = parse_graph(&g.to_string(), &mut no_data).unwrap_or_else(|e| panic!("{}\n{g}", e[0]));
    assert_eq!(difference(&g, &parsed), None, "{g}");
}

#[test]
fn names_of_a_model_survive_and_broken_statements_do_not_hide_them() {
    let text = "graph @f(%x: f32[2]) {\n  %0 = exp %x : f32[2] from \"layer/\\\"0\\\"\\n\"\n  %1 = const opaque \"w\" : f32[2]\n  \
                %2 = add %0, %1 : f32[2]\n  return %2\n}\n";
    let data = tlc_ir::HostTensor::zeros(DType::F32, &[2]).unwrap();
    let graph = parse_graph(text, &mut |_, _, _| Ok(data.clone())).unwrap();
    let options = PrintOptions {
        names: true,
        ..PrintOptions::default()
    };
    let printed = print_graph(&graph, &options);
    assert_eq!(printed.text, text);
    assert_eq!(printed.externals, [("w".to_string(), data)]);
    // Without names it is the text of the same graph recorded elsewhere.
    let plain = print_graph(&graph, &PrintOptions::default()).text;
    assert!(
        plain.contains("const [0.0, 0.0] : f32[2]") && !plain.contains("from"),
        "{plain}"
    );
    let broken = text.replace("exp %x", "exp %y");
    let errors = parse_graph(&broken, &mut no_data).unwrap_err();
    let told: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            "2:12: unknown value; expected one that is defined above, found `%y`",
            "3:14: no data for `w`; expected data of f32[2]"
        ]
    );
    let unfinished = parse_graph(
        "graph @f(%x: f32[2]) { %0 = exp %x : f32[2] from return %0 }",
        &mut no_data,
    );
    let message = &unfinished.unwrap_err()[0].message;
    assert!(message.starts_with("malformed statement; expected a"), "{message}");
}

#[test]
fn data_of_one_name_and_other_bits_gets_a_number() {
    use tlc_ir::graph::{ConstData, Origin};
    let mut graph = Graph::new("f");
    let mut add = |value: f32| {
        let data = tlc_ir::HostTensor::from_slice(&[2], &[value, value]).unwrap();
        let origin = Origin::Weights("w".into());
        graph.add(NodeKind::Data(ConstData(data)), &[], origin).unwrap()
    };
    let (a, b) = (add(1.0), add(2.0));
    graph.add_output("a", a);
    graph.add_output("b", b);
    let options = PrintOptions {
        names: true,
        ..PrintOptions::default()
    };
    let printed = print_graph(&graph, &options);
    let names: Vec<&str> = printed.externals.iter().map(|(n, _)| n.as_str()).collect();
    assert_eq!(names, ["w", "w.1"]);
    let again = parse_graph(&printed.text, &mut |name, _, _| printed.external(name)).unwrap();
    assert_eq!(difference(&graph, &again), None);
    assert_eq!(print_graph(&again, &options).text, printed.text);
}

#[test]
fn derived_origins_say_of_what_and_round_trip() {
    use tlc_ir::graph::{Origin, TensorType};
    let named = Origin::Named("conv \"1\"".into());
    let gradient = named.derived("gradient", "exp");
    let second = gradient.clone().named(|| "%9".to_owned()).derived("gradient", "mul");
    assert_eq!(second.to_string(), "gradient of mul in gradient of exp 'conv \"1\"'");
    let line = Origin::Text { line: 4, column: 3 };
    assert_eq!(line.derived("tangent", "max").to_string(), "tangent of max at 4:3");
    assert_eq!(
        Origin::Unknown.derived("gradient", "exp").to_string(),
        "gradient of exp"
    );

    let mut g = Graph::new("g");
    let mut value = g
        .add_input("x", TensorType::new(DType::F32, [2i64]), Origin::Unknown)
        .unwrap();
    let origins = [
        gradient,
        second,
        line.derived("an odd \"rewrite\"", "max"),
        Origin::Unknown.derived("of", "in").derived("in", "of"),
        Origin::Named("of".into()),
        Origin::Unknown,
    ];
    for origin in origins {
        value = g.add(NodeKind::Map(tlc_ir::ScalarOp::Neg), &[value], origin).unwrap();
    }
    g.add_output("y", value);
    assert_eq!(
        g.operation_at(tlc_ir::NodeId(2)),
        "neg %1 (gradient of mul in gradient of exp 'conv \"1\"')"
    );
    let options = PrintOptions {
        names: true,
        ..PrintOptions::default()
    };
    let printed = print_graph(&g, &options).text;
    let again = parse_graph(&printed, &mut no_data).unwrap_or_else(|e| panic!("{e:?}\n{printed}"));
    assert_eq!(print_graph(&again, &options).text, printed);
    let texts = |g: &Graph| -> Vec<String> { g.nodes().skip(1).map(|(_, n)| n.origin.to_string()).collect() };
    let (mut before, after) = (texts(&g), texts(&again));
    // A place in another text is none of this one; what has no origin gets its place.
    before[2] = "an odd \"rewrite\" of max".into();
    before[5] = "7:3".into();
    assert_eq!(before, after);
    for broken in ["gradient", "gradient of", "gradient of exp in", "of exp"] {
        let text = format!("graph @f(%x: f32[]) {{\n  %y = exp %x : f32[] from {broken}\n  return %y\n}}\n");
        assert!(parse_graph(&text, &mut no_data).is_err(), "{broken}");
    }
}

/// Kernels over some twenty sizes have positions of tens of thousands of nodes.
#[test]
fn long_extents_are_read_back() {
    let pairs = |first: &str| -> String {
        let pair = |i: usize| (0..i).map(move |j| format!("s{i}*s{j}"));
        let terms: Vec<String> = (0..110).flat_map(pair).map(|pair| format!("{first}{pair}")).collect();
        terms.join(" + ")
    };
    let (sum, same) = (pairs(""), pairs("z*"));
    let texts = [
        sum.clone(),
        // What divides nothing stays, and what divides everything is divided.
        format!("div({sum}, z + 1)"),
        format!("mod({sum} + z, 2*z + 1) + z*div({sum}, s0 + 3)"),
        format!("div({same}, z + 1)"),
        format!("div({same}, max(z, 1))"),
    ];
    for text in texts {
        let text = format!("graph @g(%x: f32[z]) {{\n  %0 = iota {{axis=0}} : f32[{text}]\n  return %0 as y\n}}\n");
        let graph = parse_graph(&text, &mut no_data).unwrap_or_else(|e| panic!("{}", e[0]));
        let printed = graph.to_string();
        assert!(printed.len() > 50_000, "{} bytes", printed.len());
        let again = parse_graph(&printed, &mut no_data).unwrap_or_else(|e| panic!("{}", e[0]));
        assert_eq!(printed, again.to_string());
    }
}

/// Sums and products take longer than in proportion to their length.
#[test]
fn long_sums_and_products_are_refused() {
    let terms = (0..9000)
        .map(|k| format!("mod({}*z, {})", k + 1, k + 7))
        .collect::<Vec<_>>()
        .join(" + ");
    let text = format!("graph @g(%x: f32[{terms}]) {{\n  return %x as y\n}}\n");
    let errors = parse_graph(&text, &mut no_data).map(|_| ()).unwrap_err();
    assert!(
        errors[0].to_string().contains("sums of at most 8192 terms"),
        "{}",
        errors[0]
    );
    let factors = vec!["z"; 9000].join("*");
    let text = format!("graph @g(%x: f32[{factors}]) {{\n  return %x as y\n}}\n");
    let errors = parse_graph(&text, &mut no_data).map(|_| ()).unwrap_err();
    assert!(errors[0].to_string().contains("product too long"), "{}", errors[0]);
}
