//! What is compiled right is found right: random graphs of every kind, on every kind of call.

use tlc::verify::data::random as random_data;
use tlc::verify::{Case, guilty, verify};
use tlc::{CompileOptions, DType, Graph, HostTensor, keep};
use tlc_ir::NodeKind;
use tlc_ir::testgen::{GenOptions, random_case, seeds};
use tlc_ir::text::parse_graph;

/// A random graph with data.
pub fn random(seed: u64, options: &GenOptions) -> Case {
    let case = random_case(seed, options);
    Case {
        inputs: case.input_data(seed),
        symbols: case.symbols(),
        graph: case.graph,
    }
}

#[test]
fn random_graphs_are_right_in_every_value() {
    let (mut values, mut elements, mut uncertain) = (0, 0, 0);
    let mut wrong = Vec::new();
    for seed in seeds(0..120) {
        let case = random(seed, &GenOptions::default());
        let report = verify(&case, &CompileOptions::default()).expect("the interpreter runs it");
        values += report.values;
        elements += report.elements;
        uncertain += report.uncertain;
        if let Some(finding) = report.findings.first() {
            let guilty = guilty::find(&case, &CompileOptions::default());
            let guilty = guilty.map_or_else(String::new, |g| format!("; guilty: {g}"));
            wrong.push(format!("seed {seed}: {finding}{guilty}\n{}", case.graph));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(values > 100 && elements > 1000, "{values} values, {elements} elements");
    assert!(uncertain * 4 < elements, "{uncertain} of {elements} may be anything");
}

/// NaN, infinities, negative zero, subnormals and the ends of integers as inputs; more axes than most graphs have.
#[test]
fn random_graphs_are_right_on_the_ends_of_their_dtypes() {
    let wide = GenOptions {
        max_rank: 10,
        extents: vec![1, 2, 1, 2, 3],
        ..GenOptions::default()
    };
    let (mut elements, mut uncertain, mut ranks) = (0, 0, 0);
    let mut wrong = Vec::new();
    for seed in seeds(0..160) {
        let generated = random_case(seed, [&GenOptions::default(), &wide][(seed % 2) as usize]);
        ranks = generated
            .graph
            .nodes()
            .map(|(_, n)| n.ty.rank())
            .fold(ranks, usize::max);
        let case = Case {
            inputs: generated.edge_data(seed),
            symbols: generated.symbols(),
            graph: generated.graph,
        };
        let report = verify(&case, &CompileOptions::default()).expect("the interpreter runs it");
        elements += report.elements;
        uncertain += report.uncertain;
        if let Some(finding) = report.findings.first() {
            let guilty = guilty::find(&case, &CompileOptions::default());
            let guilty = guilty.map_or_else(String::new, |g| format!("; guilty: {g}"));
            wrong.push(format!("seed {seed}: {finding}{guilty}\n{}", case.graph));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(elements > 1000, "{elements} elements");
    assert!(uncertain * 2 < elements, "{uncertain} of {elements} may be anything");
    assert!(ranks > 7 || seeds(0..160) != (0..160), "rank {ranks}");
}

/// Sums that overflow only where they are taken before the product: `Σ 0 x` of numbers whose own sum is infinite.
#[test]
fn a_contraction_that_overflows_in_its_order_alone_is_right() {
    let text = "graph @g(%v: f64[17], %x: f64[63, 31]) {
  %0 = expand %v : f64[31, 17]
  %1 = einsum %0, %x {ab,ca->bc} : f64[17, 63]
  return %1 as y
}";
    let mut x = vec![1.0f64; 63 * 31];
    x[..31].fill(f64::MAX);
    let case = Case {
        graph: parse_graph(text, &mut tlc_ir::text::no_data).expect("a graph"),
        inputs: vec![
            HostTensor::from_slice(&[17], &[0.0f64; 17]).expect("as many"),
            HostTensor::from_slice(&[63, 31], &x).expect("as many"),
        ],
        symbols: vec![],
    };
    let report = verify(&case, &CompileOptions::default()).expect("the interpreter runs it");
    assert!(report.is_right(), "{}", report.findings[0]);
    assert!(report.regrouped);
}

/// A recorded graph on random data, under values of its symbols.
fn recorded(g: &Graph, symbols: &[(&str, i64)]) -> Case {
    let graph = g.finish().expect("a graph");
    let value = |s: tlc_ir::SymId| {
        let name = &graph.symbols()[s.0 as usize].name;
        symbols.iter().find(|(n, _)| n == name).map_or(0, |s| s.1)
    };
    let values: Vec<i64> = (0..graph.symbols().len() as u32)
        .map(|s| value(tlc_ir::SymId(s)))
        .collect();
    let input = |&id: &tlc_ir::NodeId| {
        let ty = graph.ty(id);
        let NodeKind::Input { name, .. } = &graph.node(id).kind else {
            unreachable!("an input")
        };
        let shape: Vec<usize> = ty
            .shape
            .iter()
            .map(|d| d.eval_symbols(&values).unwrap() as usize)
            .collect();
        random_data(name, ty.dtype, &shape, 3).unwrap()
    };
    Case {
        inputs: graph.inputs().iter().map(input).collect(),
        graph,
        symbols: vec![],
    }
}

#[track_caller]
fn is_right(case: &Case) {
    for passes in [None, Some(""), Some("canonicalize,cse,dce")] {
        let options = CompileOptions {
            passes: passes.map(String::from),
            ..CompileOptions::default()
        };
        let report = verify(case, &options).expect("the interpreter runs it");
        assert!(report.is_right(), "{passes:?}: {}", report.findings[0]);
        assert!(report.values > 0 && report.elements > report.uncertain);
    }
}

#[test]
fn networks_are_right_in_every_value() {
    let g = Graph::new("attention");
    let n = g.symbol("n", 1..=64);
    let (q, k, v) = (
        g.input("q", DType::F32, (&n, 32)),
        g.input("k", DType::F32, (&n, 32)),
        g.input("v", DType::F32, (&n, 32)),
    );
    let scores = q.matmul(&k.t()) * 0.2;
    g.output("y", &scores.softmax(-1).matmul(&v));
    is_right(&recorded(&g, &[("n", 13)]));

    let g = Graph::new("layers");
    let x = g.input("x", DType::F32, [9, 48]);
    let mut h = x.clone();
    for layer in 0..3 {
        let w = g.input(&format!("w{layer}"), DType::F32, [48, 48]);
        let mean = h.mean(keep(-1));
        let centred = &h - &mean;
        let variance = (&centred * &centred).mean(keep(-1));
        h = &x + (centred / (variance + 1e-5).sqrt()).matmul(&w).relu();
    }
    g.output("y", &h);
    g.output("sum", &h.sum(0));
    is_right(&recorded(&g, &[]));
}

#[test]
fn many_sums_down_the_columns_of_a_state_are_right() {
    for steps in [2, 6, 11] {
        let g = Graph::new("delta");
        let mut state = g.input("state", DType::F32, [1, 8, 8]);
        let keys = g.input("keys", DType::F32, [1, steps, 8]);
        for i in 0..steps {
            let key = keys.narrow(1, i, 1).reshape([1, 8]);
            let old = tlc::einsum("abc,ab->ac", &[&state, &key]);
            let scaled = &state * &(&old * 0.5).reshape([1, 1, 8]);
            g.output(&format!("read{i}"), &tlc::einsum("abc,ab->ac", &[&scaled, &key]));
            state = scaled;
        }
        g.output("state", &state);
        let graph = g.finish().unwrap();
        let input = |shape: &[usize], name: &str| tlc::verify::data::random(name, DType::F32, shape, 1).unwrap();
        let inputs = [input(&[1, 8, 8], "state"), input(&[1, steps, 8], "keys")];
        let expected = tlc_ir::interp::interpret(&graph, &inputs, &Default::default()).unwrap();
        let executable = tlc::compile_ir(&graph, &CompileOptions::default()).unwrap();
        let given: Vec<tlc::Input<'_>> = inputs.iter().map(Into::into).collect();
        for (found, expected) in executable.run(&given).unwrap().iter().zip(&expected) {
            let pairs = found
                .as_slice::<f32>()
                .unwrap()
                .iter()
                .zip(expected.as_slice::<f32>().unwrap());
            for (a, b) in pairs {
                assert!(
                    (a - b).abs() <= 1e-4 * b.abs().max(1.0),
                    "{steps} steps: {a} is not {b}"
                );
            }
        }
    }
}

/// A window longer than its axis has no position, wherever that is known: in the body of a region or a loop whose symbols have values
/// around it, and in a graph whose sizes are put in.
#[test]
fn windows_that_do_not_fit_have_no_position() {
    let body = "body @b(%a: f32[m]) where m in 1..=64, j in 1..=64 {
      %0 = window %a {axis=0, size=j, stride=2, dilation=3} : f32[max(0, div(m - 3*j + 2, 2) + 1), j]
      %1 = reduce add %0 {axes=[0, 1]} : f32[]
      %2 = expand %1 : f32[m]
      %3 = add %a, %2 : f32[m]
      return %3
    }";
    for (kind, text) in [
        ("region", format!("region opaque %x {{symbols=[5, 4]}} {body}")),
        (
            "loop",
            format!(
                "loop %x {{trip=2, carried=1, symbols=[5, 4]}} {}",
                body.replace("@b(", "@b(%i: i64[], ")
            ),
        ),
    ] {
        let text = format!(
            "graph @g(%x: f32[5]) {{\n %0 = {text} : (f32[5])\n %1 = project %0 {{result=0}} : f32[5]\n return %1\n}}"
        );
        let graph = parse_graph(&text, &mut tlc_ir::text::no_data).unwrap_or_else(|e| panic!("{kind}: {e:?}\n{text}"));
        let x = [1.0f32, -2.0, 3.0, 4.0, 0.5];
        let case = Case {
            graph,
            inputs: vec![HostTensor::from_slice(&[5], &x).expect("a tensor")],
            symbols: vec![],
        };
        let report = verify(&case, &CompileOptions::default()).expect("the interpreter runs it");
        assert!(report.is_right(), "{kind}: {:?}", report.findings);
        let found = tlc_ir::interp::interpret(&case.graph, &case.inputs, &Default::default()).expect("values");
        assert_eq!(found[0].bytes(), case.inputs[0].bytes(), "{kind}");
    }
    let text = "graph @g(%x: f32[n]) where n in 1..=64 {
      %0 = window %x {axis=0, size=10, stride=1, dilation=1} : f32[max(0, n - 9), 10]
      return %0
    }";
    let graph = parse_graph(text, &mut tlc_ir::text::no_data).expect("a graph");
    let five = graph.specialize(&[Some(5)]).expect("a graph");
    assert_eq!(five.ty(five.outputs()[0].node).const_shape(), Some(vec![0, 10]));
}

/// Passes that would make an axis more leave what has as many as there may be as it is.
#[test]
fn tensors_of_as_many_axes_as_there_may_be_are_right() {
    let shape = |ones: usize, ends: &[i64]| [&vec![1; ones], ends].concat();
    let most = tlc_ir::graph::MAX_RANK;
    for rank in [most - 1, most] {
        let g = Graph::new("axes");
        // Laid out for the library, and in blocks of columns for a vector.
        let values: Vec<f32> = (0..128 * 128).map(|i| (i % 17) as f32 - 8.0).collect();
        let whole: Vec<usize> = shape(rank - 2, &[128, 128]).iter().map(|&d| d as usize).collect();
        let matrix = || g.constant(HostTensor::from_slice(&whole, &values).expect("as many"));
        let rows = g.input("rows", DType::F32, shape(rank - 2, &[20, 128]));
        let vector = g.input("vector", DType::F32, shape(rank - 2, &[1, 128]));
        g.output("of_rows", &rows.matmul(&matrix()));
        g.output("of_vector", &vector.matmul(&matrix()));
        // Reduced in pieces.
        let long = g.input("long", DType::F32, shape(rank - 1, &[70_000]));
        let tall = g.input("tall", DType::F32, [vec![4_200], shape(rank - 3, &[3, 100])].concat());
        g.output("sum", &long.sum([-1]));
        g.output("sums", &tall.sum([0]));
        is_right(&recorded(&g, &[]));
    }
}
