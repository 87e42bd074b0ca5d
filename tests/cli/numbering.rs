//! One numbering: reports name values as the text that was read does, whatever passes made of them.

use std::collections::BTreeMap;

use super::support::Place;

/// Inputs stand before values, which are numbered out of order or have names.
const MODEL: &str = "graph @f(%x: f32[8, 16], %w: f32[16, 4], %v: f32[8, 4], %b: f32[4]) {
  %sum = add %x, %x : f32[8, 16]
  %7 = log %sum : f32[8, 16]
  %2 = einsum %7, %w {ab,bc->ac} : f32[8, 4]
  %5 = expand %b : f32[8, 4]
  %\"odd name\" = add %2, %5 : f32[8, 4]
  %9 = mul %\"odd name\", %v : f32[8, 4]
  %1 = reduce add %9 {axes=[1]} : f32[8]
  return %1 as total, %9 as product
}
";

/// What the text calls each value, and the operation that makes it.
fn defined(text: &str) -> BTreeMap<String, String> {
    let lines = text.lines().filter_map(|l| l.trim().split_once(" = "));
    lines
        .map(|(name, made)| (name.to_string(), made.split(' ').next().unwrap().to_string()))
        .collect()
}

/// The values that a report mentions: what follows each `%`, with the word behind it.
fn mentioned(report: &str) -> Vec<(String, String)> {
    let after = report.match_indices('%').map(|(at, _)| &report[at..]);
    let name = |rest: &str| -> String {
        match rest[1..].strip_prefix('"') {
            Some(quoted) => rest[..quoted.find('"').unwrap() + 3].to_string(),
            None => {
                let word = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
                rest.chars()
                    .take(1)
                    .chain(rest[1..].chars().take_while(|c| word(*c)))
                    .collect()
            }
        }
    };
    after
        .map(|rest| {
            let name = name(rest);
            let behind = rest[name.len()..]
                .trim_start_matches(' ')
                .split([' ', ':', ',', '"', '\\', '\n']);
            let word = behind.into_iter().next().unwrap_or_default().to_string();
            (name, word)
        })
        .filter(|(name, _)| name.len() > 1)
        .collect()
}

#[test]
fn explain_and_clusters_name_values_as_the_text_does() {
    let p = Place::new();
    p.write("m.tlir", MODEL);
    let names = defined(MODEL);
    let inputs = ["%x", "%w", "%v", "%b"];
    for args in [
        &["explain", "m.tlir"][..],
        &["explain", "m.tlir", "--format", "json"],
        &["emit", "m.tlir", "--what", "clusters"],
        &["emit", "m.tlir", "--what", "dot"],
    ] {
        let out = p.run(args).code(0).out.replace("\\\"", "\"");
        let mentioned = mentioned(&out);
        assert!(mentioned.iter().any(|(name, _)| name == "%7"), "{out}");
        for (name, word) in &mentioned {
            let Some(operation) = names.get(name) else {
                assert!(inputs.contains(&name.as_str()), "{name} in\n{out}");
                continue;
            };
            // Where the operation is named, it is the one that the text has; passes that rewrite this graph only move views.
            let known = ["add", "log", "mul", "reduce"].contains(&word.as_str());
            assert!(!known || word == operation, "{name} {word} in\n{out}");
        }
    }
}

#[test]
fn the_first_nan_has_its_value_s_name() {
    let p = Place::new();
    p.write("m.tlir", MODEL);
    let mut x = [1.0f32; 128];
    x[35] = -2.0;
    p.f32s("x.npy", &[8, 16], &x);
    let ran = p
        .run(&[
            "run",
            "m.tlir",
            "-i",
            "x=x.npy",
            "-i",
            "w=ones",
            "-i",
            "v=ones",
            "-i",
            "b=ones",
            "--check-nan",
        ])
        .code(1);
    let first = ran.first_error();
    assert!(
        first.contains("the first NaN is made by %7 log of -4.0 at [2, 3]"),
        "{first}"
    );
}

#[test]
fn values_that_passes_rewrite_keep_the_name_of_what_they_were_made_of() {
    let p = Place::new();
    // The order of three factors is chosen, the double negation and the unused value go.
    let text = "graph @f(%a: f32[8, 64], %b: f32[64, 64], %c: f32[64, 2]) {
  %unused = exp %a : f32[8, 64]
  %n = neg %a : f32[8, 64]
  %m = neg %n : f32[8, 64]
  %chain = einsum %m, %b, %c {ab,bc,cd->ad} : f32[8, 2]
  %4 = exp %chain : f32[8, 2]
  return %4 as y
}
";
    p.write("m.tlir", text);
    let names = defined(text);
    for args in [&["explain", "m.tlir"][..], &["emit", "m.tlir", "--what", "clusters"]] {
        let out = p.run(args).code(0).out;
        let mentioned = mentioned(&out);
        assert!(mentioned.iter().any(|(name, _)| name == "%chain"), "{out}");
        for (name, _) in &mentioned {
            let known = names.contains_key(name) || ["%a", "%b", "%c"].contains(&name.as_str());
            assert!(known, "{name} in\n{out}");
        }
    }
}

#[test]
fn a_guard_names_the_operation_and_its_line() {
    let p = Place::new();
    let text = "graph @f(%x: f32[n], %y: f32[8]) where n in 1..=64 {
  %0 = exp %x : f32[n]
  %both = add %0, %y : f32[8]
  %2 = neg %both : f32[8]
  return %2 as z
}
";
    p.write("m.tlir", text);
    for n in ["8", "5"] {
        let size = format!("n={n}");
        let made = ["run", "m.tlir", "-i", "x=x.npy", "-i", "y=ones"];
        p.f32s("x.npy", &[n.parse().unwrap()], &vec![0.0; n.parse().unwrap()]);
        let ran = p.run(&made).code(if n == "8" { 0 } else { 3 });
        let expected =
            "error: m.tlir: add %both at 3:3: the graph needs n = 8, which the inputs' shapes do not satisfy";
        assert!(n == "8" || ran.first_error() == expected, "{size}: {}", ran.err);
    }
    let ran = p
        .run(&["run", "m.tlir", "-i", "x=ones", "-i", "y=ones", "--set", "n=5"])
        .code(3);
    assert!(
        ran.first_error()
            .contains("under the sizes of --set: %both at 3:3: add of f32[5] and f32[8]"),
        "{}",
        ran.err
    );
    // The interpreter says so too, and plans keep it as text.
    let ran = p.run(&["verify", "m.tlir", "-i", "x=x.npy"]).code(3);
    assert!(
        ran.first_error().contains("add %both at 3:3: n = 8 fails with n = 5"),
        "{}",
        ran.err
    );
    let plan = p.run(&["emit", "m.tlir", "--what", "plan"]).code(0).out;
    assert!(plan.contains("for \"add %both at 3:3\""), "{plan}");
    p.write("plan.tlir", &plan);
    p.run(&["fmt", "--check", "plan.tlir"]).code(0);
}

#[test]
fn a_loop_s_body_has_names_of_its_own_and_what_leaves_it_says_where_it_was() {
    let p = Place::new();
    let text = "graph @f(%h: f32[64, 64], %w: f32[64, 64]) {
  %r = loop %h, %w {trip=9, carried=1} body @step(%i: i64[], %s: f32[64, 64], %k: f32[64, 64]) {
    %root = sqrt %k : f32[64, 64]
    %next = einsum %s, %root {ab,bc->ac} : f32[64, 64]
    return %next
  } : (f32[64, 64])
  %1 = project %r {result=0} : f32[64, 64]
  return %1 as y
}
";
    p.write("m.tlir", text);
    let out = p.run(&["explain", "m.tlir"]).code(0).out;
    assert!(
        out.contains("%r.%root sqrt") && out.contains("body of %r in @f"),
        "{out}"
    );
    assert!(out.contains("loop %r") && out.contains("matmul %next"), "{out}");
}

#[test]
fn a_size_that_no_graph_has_is_wrong_usage() {
    let p = Place::new();
    p.write("m.tlir", MODEL);
    p.f32s("s.npy", &[], &[1.0]);
    for args in [
        &["run", "m.tlir"][..],
        &["einsum", "->", "s.npy"],
        &["info"],
        &["fmt", "m.tlir"],
    ] {
        let ran = p.run(&[args, &["--set", "z=3"]].concat()).code(2);
        assert!(ran.first_error().contains("--set z=3"), "{}", ran.err);
    }
}
