//! Small models whose results are known.

use tlc::onnx::{ImportOptions, Imported, import};
use tlc::{CompileOptions, DType, HostTensor, Input, compile_ir};

use crate::proto::*;

fn imported(bytes: &[u8]) -> Imported {
    import(bytes, &ImportOptions::default()).unwrap_or_else(|e| panic!("{e}"))
}

fn run(graph: &tlc_ir::Graph, inputs: &[HostTensor]) -> Vec<HostTensor> {
    let executable = compile_ir(graph, &CompileOptions::default()).expect("it compiles");
    let inputs: Vec<Input<'_>> = inputs.iter().map(Input::from).collect();
    executable
        .run(&inputs)
        .expect("it runs")
        .iter()
        .map(|o| o.to_host())
        .collect()
}

fn f32s(shape: &[usize], data: &[f32]) -> HostTensor {
    HostTensor::from_slice(shape, data).expect("a tensor")
}

/// `[batch, 2, 3]` to `[batch, 6]` through Shape, Gather, Unsqueeze, Concat and Reshape, as exporters write it.
fn reshaping() -> Vec<u8> {
    let nodes = vec![
        node("Shape", "shape", &["x"], &["s"]),
        node("Gather", "first", &["s", "zero"], &["b"]),
        node("Unsqueeze", "up", &["b", "axes"], &["b1"]),
        node("Concat", "join", &["b1", "rest"], &["target"]).message(5, int_attribute("axis", 0)),
        node("Reshape", "reshape", &["x", "target"], &["y"]),
    ];
    let initializers = vec![
        ints("zero", &[], &[0]),
        ints("axes", &[1], &[0]),
        ints("rest", &[1], &[-1]),
    ];
    let x = value("x", FLOAT, &[D::Sym("batch"), D::N(2), D::N(3)]);
    let y = value("y", FLOAT, &[D::Sym("batch"), D::N(6)]);
    model(graph(nodes, initializers, vec![x], vec![y]), vec![])
}

#[test]
fn a_shape_computed_in_the_model_becomes_an_index_expression() {
    let graph = imported(&reshaping()).graph;
    let text = graph.to_string();
    assert!(text.contains("f32[batch, 6]"), "{text}");
    assert!(!text.contains("i64"), "shape arithmetic is no data: {text}");
    for batch in [1, 3] {
        let data: Vec<f32> = (0..batch * 6).map(|v| v as f32).collect();
        let out = run(&graph, &[f32s(&[batch, 2, 3], &data)]);
        assert_eq!(out[0].shape(), [batch, 6]);
        assert_eq!(out[0].as_slice::<f32>(), Some(&data[..]));
    }
}

#[test]
fn an_extent_of_minus_one_or_a_question_mark_is_any_and_no_other() {
    let x = value("x", FLOAT, &[D::N(-1), D::Sym("?"), D::Sym("?")]);
    let nodes = vec![node("Neg", "neg", &["x"], &["y"])];
    let graph = imported(&model(
        graph(nodes, vec![], vec![x], vec![value("y", FLOAT, &[D::N(-1)])]),
        vec![],
    ))
    .graph;
    for shape in [[1, 2, 3], [2, 3, 1]] {
        let out = run(&graph, &[f32s(&shape, &[1.0; 6])]);
        assert_eq!(out[0].shape(), shape);
    }
}

/// What ONNX Runtime 1.32 and PyTorch 2.15 (`circular`, `reflect`, `replicate`) make of 0, 1, 2, 3: negative padding takes elements away, and
/// what it leaves is padded.
#[test]
fn padding_goes_round_what_negative_padding_leaves() {
    let cases: [(&'static str, [i64; 2], &[f32]); 14] = [
        ("wrap", [2, 3], &[2.0, 3.0, 0.0, 1.0, 2.0, 3.0, 0.0, 1.0, 2.0]),
        ("wrap", [-1, 2], &[1.0, 2.0, 3.0, 1.0, 2.0]),
        ("wrap", [2, -1], &[1.0, 2.0, 0.0, 1.0, 2.0]),
        ("wrap", [-1, 0], &[1.0, 2.0, 3.0]),
        ("wrap", [-1, -1], &[1.0, 2.0]),
        ("wrap", [-2, 3], &[2.0, 3.0, 2.0, 3.0, 2.0]),
        ("wrap", [3, -2], &[1.0, 0.0, 1.0, 0.0, 1.0]),
        ("wrap", [-1, 5], &[1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 1.0, 2.0]),
        ("wrap", [5, -1], &[1.0, 2.0, 0.0, 1.0, 2.0, 0.0, 1.0, 2.0]),
        ("wrap", [-3, 1], &[3.0, 3.0]),
        ("reflect", [-1, 2], &[1.0, 2.0, 3.0, 2.0, 1.0]),
        ("reflect", [2, -1], &[2.0, 1.0, 0.0, 1.0, 2.0]),
        ("edge", [-2, 3], &[2.0, 3.0, 3.0, 3.0, 3.0]),
        ("edge", [3, -2], &[0.0, 0.0, 0.0, 0.0, 1.0]),
    ];
    let padded = |mode: &'static str, pads: [i64; 2], extent: D| {
        let nodes = vec![op("Pad x p -> y", &[("mode", A::T(mode))])];
        let x = vec![value("x", FLOAT, &[extent])];
        let of = graph(
            nodes,
            vec![ints("p", &[2], &pads)],
            x,
            vec![value("y", FLOAT, &[D::N(-1)])],
        );
        import(&model(of, vec![]), &ImportOptions::default())
    };
    for (mode, pads, expected) in cases {
        for extent in [D::N(4), D::Sym("n")] {
            let graph = padded(mode, pads, extent).unwrap_or_else(|e| panic!("{e}")).graph;
            let out = run(&graph, &[f32s(&[4], &[0.0, 1.0, 2.0, 3.0])]);
            assert_eq!(out[0].as_slice::<f32>(), Some(expected), "{mode} {pads:?}");
        }
    }
    for pads in [[-4, 2], [2, -4]] {
        let error = padded("wrap", pads, D::N(4)).map(|_| ()).expect_err("nothing is left");
        assert!(error.to_string().contains("leaves nothing of axis 0"), "{error}");
    }
}

#[test]
fn dimensions_whose_names_differ_in_signs_alone_are_two() {
    let inputs = vec![
        value("x", FLOAT, &[D::Sym("n + 1")]),
        value("y", FLOAT, &[D::Sym("n - 1"), D::N(-1)]),
        value("z", FLOAT, &[D::Sym("n + 1"), D::Sym("n___1_2"), D::Sym("y_1")]),
    ];
    let nodes = ["x", "y", "z"].map(|n| op(&format!("Neg {n} -> {n}2"), &[])).to_vec();
    let outputs = ["x2", "y2", "z2"].map(|n| value(n, FLOAT, &[])).to_vec();
    let graph = imported(&model(graph(nodes, vec![], inputs, outputs), vec![])).graph;
    let shapes: [&[usize]; 3] = [&[3], &[1, 2], &[3, 4, 5]];
    let given = shapes.map(|s| f32s(s, &vec![1.0; s.iter().product()]));
    let out = run(&graph, &given);
    assert!(out.iter().zip(shapes).all(|(o, s)| o.shape() == s));
}

#[test]
fn an_extent_that_may_be_large_is_an_i32_under_a_guard() {
    // `[n, h, w, 6]` to `[n, h * w, 2, 3]`, with the shape computed in i32.
    let to = |t: i64| [("to", A::I(t))];
    let nodes = vec![
        op("Reshape x flat -> f", &[]),
        op("Shape f -> s", &[]),
        op("Cast s -> s32", &to(6)),
        op("Slice s32 one two zero -> t32", &[]),
        op("Cast t32 -> t", &to(7)),
        op("Concat zero t parts -> target", &[("axis", A::I(0))]),
        op("Reshape f target -> y", &[]),
    ];
    let constants = vec![
        ints("flat", &[3], &[0, -1, 6]),
        ints("zero", &[1], &[0]),
        ints("one", &[1], &[1]),
        ints("two", &[1], &[2]),
        ints("parts", &[2], &[2, 3]),
    ];
    let x = value("x", FLOAT, &[D::Sym("n"), D::Sym("h"), D::Sym("w"), D::N(6)]);
    let graph = imported(&model(
        graph(nodes, constants, vec![x], vec![value("y", FLOAT, &[])]),
        vec![],
    ))
    .graph;
    let out = run(&graph, &[f32s(&[1, 2, 2, 6], &[1.0; 24])]);
    assert_eq!(out[0].shape(), [1, 4, 2, 3]);
    let holds = |h: i64, w: i64| {
        let mut conditions = graph.guards().iter().map(|g| &g.condition);
        conditions.all(|c| tlc_ir::binding::condition_holds(c, &[1, h, w]))
    };
    assert!(holds(0, 5) && holds(46340, 46340));
    assert!(!holds(1 << 16, 1 << 15), "an i32 would be negative");
}

#[test]
fn weights_and_functions_of_the_model_are_inlined() {
    // own.Twice(a) = a + a, and y = Twice(x W).
    let twice = Message::default()
        .bytes(1, "Twice")
        .bytes(4, "a")
        .bytes(5, "b")
        .message(7, node("Add", "sum", &["a", "a"], &["b"]))
        .message(9, opset("", 17))
        .bytes(10, "own");
    let nodes = vec![
        node("MatMul", "product", &["x", "W"], &["p"]),
        node("Twice", "twice", &["p"], &["y"]).bytes(7, "own"),
    ];
    let weights = vec![floats("W", &[2, 2], &[1.0, 2.0, 3.0, 4.0])];
    let x = value("x", FLOAT, &[D::N(1), D::N(2)]);
    let y = value("y", FLOAT, &[D::N(1), D::N(2)]);
    let graph = imported(&model(graph(nodes, weights, vec![x], vec![y]), vec![twice])).graph;
    let out = run(&graph, &[f32s(&[1, 2], &[1.0, 10.0])]);
    assert_eq!(out[0].as_slice::<f32>(), Some(&[62.0f32, 84.0][..]));
}

#[test]
fn both_branches_of_a_condition_are_there() {
    let branch = |op: &str| {
        graph(
            vec![node(op, "inner", &["x", "x"], &["r"])],
            vec![],
            vec![],
            vec![value("r", FLOAT, &[D::N(2)])],
        )
    };
    let choose = node("If", "choose", &["c"], &["y"])
        .message(5, graph_attribute("then_branch", branch("Add")))
        .message(5, graph_attribute("else_branch", branch("Mul")));
    let inputs = vec![value("c", BOOL, &[]), value("x", FLOAT, &[D::N(2)])];
    let graph = imported(&model(
        graph(vec![choose], vec![], inputs, vec![value("y", FLOAT, &[D::N(2)])]),
        vec![],
    ))
    .graph;
    let x = f32s(&[2], &[3.0, 5.0]);
    for (c, expected) in [(true, [6.0f32, 10.0]), (false, [9.0, 25.0])] {
        let out = run(
            &graph,
            &[HostTensor::from_slice(&[], &[c]).expect("a tensor"), x.clone()],
        );
        assert_eq!(out[0].as_slice::<f32>(), Some(&expected[..]));
    }
}

/// Some tools append nodes, as casts, whose results others take that stand before them; branches take them too.
#[test]
fn nodes_that_stand_behind_those_that_wait_for_them_are_moved() {
    let branch = |op: &str| {
        graph(
            // Within a branch, too. Its own `d` is none of the names around it.
            vec![
                node("Neg", "last", &["d"], &["r"]),
                node(op, "inner", &["b", "a"], &["d"]),
            ],
            vec![],
            vec![],
            vec![value("r", FLOAT, &[D::N(2)])],
        )
    };
    let choose = node("If", "choose", &["c"], &["y"])
        .message(5, graph_attribute("then_branch", branch("Add")))
        .message(5, graph_attribute("else_branch", branch("Mul")));
    let nodes = vec![
        choose,
        node("Add", "sum", &["a", "x"], &["b"]),
        node("Exp", "other", &["x"], &["e"]),
        node("Neg", "first", &["x"], &["a"]),
    ];
    let inputs = || vec![value("c", BOOL, &[]), value("x", FLOAT, &[D::N(2)])];
    let outputs = || vec![value("y", FLOAT, &[D::N(2)]), value("e", FLOAT, &[D::N(2)])];
    let graph_ = imported(&model(graph(nodes, vec![], inputs(), outputs()), vec![])).graph;
    let x = f32s(&[2], &[3.0, 5.0]);
    for (c, expected) in [(true, [3.0f32, 5.0]), (false, [0.0, 0.0])] {
        let c = HostTensor::from_slice(&[], &[c]).expect("a tensor");
        let out = run(&graph_, &[c, x.clone()]);
        let found: Vec<f32> = out[0].as_slice::<f32>().expect("floats").to_vec();
        // Zeros of either sign are equal.
        assert_eq!(found, expected);
    }
    let circle = vec![
        node("Neg", "one", &["b"], &["a"]),
        node("Neg", "other", &["a"], &["b"]),
        node("Neg", "y", &["x"], &["y"]),
        node("Neg", "e", &["x"], &["e"]),
    ];
    let refused = import(
        &model(graph(circle, vec![], inputs(), outputs()), vec![]),
        &ImportOptions::default(),
    );
    assert_eq!(
        refused.expect_err("a circle").to_string(),
        "node 'one' (Neg): no value is named 'b'; expected an input, an initializer or the result of a node that does not wait for it"
    );
}

#[test]
fn a_shape_given_at_run_time_needs_its_value_and_is_told() {
    let nodes = vec![node("Reshape", "reshape", &["x", "s"], &["y"])];
    let inputs = vec![value("x", FLOAT, &[D::N(6)]), value("s", INT64, &[D::N(2)])];
    let bytes = model(
        graph(nodes, vec![], inputs, vec![value("y", FLOAT, &[D::N(2), D::N(3)])]),
        vec![],
    );
    let refused = import(&bytes, &ImportOptions::default()).expect_err("no value");
    assert_eq!(refused.kind(), tlc_formats::ErrorKind::Unsupported);
    assert_eq!(
        refused.to_string(),
        "node 'reshape' (Reshape): operand 1 depends on the value of the input `s`; expected a constant, or that input \
         from a file"
    );
    let target = HostTensor::from_slice(&[2], &[3i64, 2]).expect("a tensor");
    let given = |name: &str, _: DType| (name == "s").then(|| target.clone());
    let options = ImportOptions {
        values: Some(&given),
        ..ImportOptions::default()
    };
    let imported = import(&bytes, &options).expect("it imports");
    assert_eq!(imported.fixed.len(), 1);
    let out = run(
        &imported.graph,
        &[f32s(&[6], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]), target.clone()],
    );
    assert_eq!(out[0].shape(), [3, 2]);
}

#[test]
fn an_operand_that_a_call_leaves_out_is_left_out_inside() {
    // own.Layer(a, s, b?) is a layer normalization, and with no `b` one without a bias.
    let layer = Message::default()
        .bytes(1, "Layer")
        .bytes(4, "a")
        .bytes(4, "s")
        .bytes(4, "b")
        .bytes(5, "r")
        .message(7, op("LayerNormalization a s b -> r", &[]))
        .message(9, opset("", 17))
        .bytes(10, "own");
    let nodes = vec![
        op("Layer x s -> t", &[]).bytes(7, "own"),
        op("Layer x s b -> u", &[]).bytes(7, "own"),
        op("Sub u t -> y", &[]),
    ];
    let weights = vec![floats("s", &[2], &[1.0, 1.0]), floats("b", &[2], &[3.0, -4.0])];
    let (x, y) = (value("x", FLOAT, &[D::N(1), D::N(2)]), value("y", FLOAT, &[]));
    let graph = imported(&model(graph(nodes, weights, vec![x], vec![y]), vec![layer])).graph;
    let out = run(&graph, &[f32s(&[1, 2], &[5.0, 9.0])]);
    assert_eq!(out[0].as_slice::<f32>(), Some(&[3.0f32, -4.0][..]));
}

#[test]
fn linear_attention_goes_on_where_its_state_was_left() {
    // The whole at once, less the first 12 steps and the other 8 from the state that these leave.
    let heads = |rule| {
        [
            ("q_num_heads", A::I(2)),
            ("kv_num_heads", A::I(2)),
            ("update_rule", A::T(rule)),
        ]
    };
    for (rule, gates) in [("delta", "_ b"), ("gated_delta", "d b"), ("gated", "d"), ("linear", "")] {
        let gates_of = |suffix: &str| {
            let named = gates.split_whitespace().map(|g| match g {
                "_" => "_".to_string(),
                g => format!("{g}{suffix}"),
            });
            named.collect::<Vec<String>>().join(" ")
        };
        let mut nodes = vec![
            op("Sigmoid x -> b4", &[]),
            op("Split b4 half -> b o", &[("axis", A::I(2))]),
            op("Log b -> d", &[]),
        ];
        for name in ["x", "b", "d"] {
            nodes.push(op(
                &format!("Split {name} parts -> {name}1 {name}2"),
                &[("axis", A::I(1))],
            ));
        }
        nodes.push(op(
            &format!("LinearAttention x x x _ {} -> w ws", gates_of("")),
            &heads(rule),
        ));
        nodes.push(op(
            &format!("LinearAttention x1 x1 x1 _ {} -> p1 s1", gates_of("1")),
            &heads(rule),
        ));
        nodes.push(op(
            &format!("LinearAttention x2 x2 x2 s1 {} -> p2 s2", gates_of("2")),
            &heads(rule),
        ));
        nodes.push(op("Concat p1 p2 -> p", &[("axis", A::I(1))]));
        nodes.push(op("Sub w p -> y", &[]));
        nodes.push(op("Sub ws s2 -> z", &[]));
        let constants = vec![ints("half", &[2], &[2, 2]), ints("parts", &[2], &[12, 8])];
        let x = value("x", FLOAT, &[D::N(1), D::N(20), D::N(4)]);
        let outputs = vec![value("y", FLOAT, &[]), value("z", FLOAT, &[]), value("w", FLOAT, &[])];
        let graph = imported(&model_of(27, graph(nodes, constants, vec![x], outputs), vec![])).graph;
        let data: Vec<f32> = (0..80).map(|i| ((i * 37) % 101) as f32 / 101.0 - 0.5).collect();
        let out = run(&graph, &[f32s(&[1, 20, 4], &data)]);
        for difference in &out[..2] {
            let values = difference.as_slice::<f32>().expect("floats");
            assert!(values.iter().all(|v| v.abs() < 1e-5), "{rule}: {values:?}");
        }
        let whole = out[2].as_slice::<f32>().expect("floats");
        assert!(whole.iter().any(|v| v.abs() > 1e-2), "{rule}: {whole:?}");
    }
}

#[test]
fn operators_on_narrow_floats_do_not_overflow_on_their_way_and_take_infinities() {
    const FLOAT16: i64 = 10;
    let f16s = |shape: &[usize], data: &[f64]| {
        let mut t = HostTensor::zeros(DType::F16, shape).unwrap();
        (0..data.len()).for_each(|i| t.set(i, tlc::Scalar::from_f64(DType::F16, data[i])));
        t
    };
    let inf = f64::INFINITY;
    type Attributes = [(&'static str, A)];
    // Operator, attributes, two equal operands, the result: by the formulas of ONNX in f64, rounded to f16.
    let cases: [(&str, &Attributes, f64, f64); 11] = [
        ("Mean x y", &[], 60000.0, 60000.0),
        (
            "LRN x",
            &[("size", A::I(1)), ("alpha", A::F(1e-4))],
            300.0,
            300.0 / 10f64.powf(0.75),
        ),
        ("Asinh x", &[], -60000.0, -11.695246),
        ("Acosh x", &[], 60000.0, 11.695246),
        ("Atanh x", &[], 2f64.powi(-24), 2f64.powi(-24)),
        ("Asinh x", &[], -inf, -inf),
        ("Swish x", &[("alpha", A::F(2.0))], -inf, 0.0),
        ("Swish x", &[("alpha", A::F(-1.0))], inf, 0.0),
        ("Swish x", &[("alpha", A::F(0.0))], -inf, -inf),
        ("Softsign x", &[], inf, 1.0),
        ("Mish x", &[], -inf, 0.0),
    ];
    for (text, attributes, x, expected) in cases {
        let node = op(&format!("{text} -> out"), attributes);
        let inputs = ["x", "y"].map(|name| value(name, FLOAT16, &[D::N(1), D::N(1), D::N(1)]));
        let all = graph(vec![node], vec![], inputs.to_vec(), vec![value("out", FLOAT16, &[])]);
        let model = model_of(24, all, vec![]);
        let operands = [f16s(&[1, 1, 1], &[x]), f16s(&[1, 1, 1], &[x])];
        let found = run(&imported(&model).graph, &operands);
        let right = f16s(&[1], &[expected]);
        assert_eq!(found[0].get(0).as_f64(), right.get(0).as_f64(), "{text} of {x}");
    }
}

/// Sums of products with what is added to them and times what they are multiplied by, rounded to 16 bits once: where the product alone is too large
/// for f16, or what is added takes all of it but its last bits.
#[test]
fn products_of_16_bits_are_rounded_behind_what_is_added() {
    const TYPES: [(i64, DType, i32); 2] = [(10, DType::F16, 11), (16, DType::BF16, 8)];
    for (number, dtype, bits) in TYPES {
        // The largest power of two, and a number whose last bit is lost where 1 is added.
        let (large, odd) = (2f64.powi(15), 2f64.powi(-bits));
        type Case<'c> = (&'c str, &'c [(&'static str, A)], [f64; 2], f64, f64);
        // The operator, two addends of the sum, and what is added to it, with the result by arithmetic in f64.
        let cases: [Case<'_>; 8] = [
            ("Conv x w b", &[], [large, large], -large, large),
            ("ConvTranspose x w b", &[], [large, large], -large, large),
            ("Gemm x w b", &[], [large, large], -large, large),
            ("Gemm x w", &[("alpha", A::F(0.25))], [large, large], 0.0, large / 2.0),
            ("Gemm x w b", &[("beta", A::F(2.0))], [-large, -0.0], large, large),
            ("Conv x w b", &[], [1.0, odd], -1.0, odd),
            ("ConvTranspose x w b", &[], [1.0, odd], -1.0, odd),
            ("Gemm x w b", &[], [1.0, odd], -1.0, odd),
        ];
        for (text, attributes, addends, added, expected) in cases {
            let of = |shape: &[usize], data: &[f64]| {
                let mut t = HostTensor::zeros(dtype, shape).expect("a tensor");
                (0..data.len()).for_each(|i| t.set(i, tlc::Scalar::from_f64(dtype, data[i])));
                t
            };
            let shapes: [&[usize]; 2] = match text.split(' ').next() {
                Some("Conv") => [&[1, 2, 1, 1], &[1, 2, 1, 1]],
                Some("ConvTranspose") => [&[1, 2, 1, 1], &[2, 1, 1, 1]],
                _ => [&[1, 2], &[2, 1]],
            };
            let operands = [of(shapes[0], &addends), of(shapes[1], &[1.0; 2]), of(&[1], &[added])];
            let inputs = ["x", "w", "b"].iter().zip(&operands).map(|(name, t)| {
                let dims: Vec<D> = t.shape().iter().map(|&n| D::N(n as i64)).collect();
                value(name, number, &dims)
            });
            let node = op(&format!("{text} -> out"), attributes);
            let all = graph(vec![node], vec![], inputs.collect(), vec![value("out", number, &[])]);
            let found = run(&imported(&model_of(22, all, vec![])).graph, &operands);
            assert_eq!(
                found[0].get(0).as_f64(),
                expected,
                "{text} of {dtype}: {addends:?} {added}"
            );
        }
    }
}

/// What is normalized is rounded to the type of the operand, and its product with the scale to the type of the scale.
#[test]
fn a_norm_is_of_the_type_of_its_scale() {
    // Element types of ONNX: f32, f16, bf16. The root of the mean square of 1 and 7 is 5.
    const TYPES: [(i64, DType); 3] = [(FLOAT, DType::F32), (10, DType::F16), (16, DType::BF16)];
    let of = |dtype: DType, data: [f64; 2]| {
        let mut t = HostTensor::zeros(dtype, &[2]).expect("a tensor");
        (0..2).for_each(|i| t.set(i, tlc::Scalar::from_f64(dtype, data[i])));
        t
    };
    for (element, dtype) in TYPES {
        for (scale, result) in TYPES {
            let inputs = [("x", element), ("s", scale)].map(|(name, element)| value(name, element, &[D::N(2)]));
            let node = op("RMSNormalization x s -> y", &[("epsilon", A::F(0.0))]);
            let g = graph(vec![node], vec![], inputs.to_vec(), vec![value("y", scale, &[D::N(2)])]);
            let found = run(
                &imported(&model_of(23, g, vec![])).graph,
                &[of(dtype, [1.0, 7.0]), of(result, [3.0, 5.0])],
            );
            let normed = of(dtype, [0.2, 1.4]);
            let expected = of(result, [normed.get(0).as_f64() * 3.0, normed.get(1).as_f64() * 5.0]);
            assert_eq!(found[0].dtype(), result);
            for i in 0..2 {
                let (found, expected) = (found[0].get(i).as_f64(), expected.get(i).as_f64());
                assert!((found - expected).abs() < 1e-6, "{dtype} {result}: {found} {expected}");
            }
        }
    }
}

#[test]
fn a_reduction_over_no_axes_keeps_the_type() {
    // Element types of ONNX: i32, u8, f16, bf16.
    for (element, dtype) in [(6, DType::I32), (2, DType::U8), (10, DType::F16), (16, DType::BF16)] {
        for reduction in [
            "ReduceSum",
            "ReduceL2",
            "ReduceLogSum",
            "ReduceSumSquare",
            "ReduceMean",
            "ReduceMax",
        ] {
            let none = ints("axes", &[0], &[]);
            let nodes = vec![op(
                &format!("{reduction} x axes -> y"),
                &[("noop_with_empty_axes", A::I(1))],
            )];
            let x = value("x", element, &[D::N(5)]);
            let g = graph(nodes, vec![none], vec![x], vec![value("y", element, &[])]);
            let graph = imported(&model_of(18, g, vec![])).graph;
            assert_eq!(graph.ty(graph.outputs()[0].node).dtype, dtype, "{reduction}");
        }
    }
}

/// ONNX: one window that would start in the padding behind is left out, also where windows fill the padded image without a rest. The extents are those of its
/// own shape inference.
#[test]
fn one_window_that_starts_in_the_padding_behind_is_left_out_under_ceil_mode() {
    for (image, size, stride, pads, windows) in [
        (10, 1, 1, [0, 2], 11),
        (13, 4, 6, [5, 4], 3),
        (12, 2, 1, [3, 3], 16),
        (7, 2, 2, [0, 0], 4),
    ] {
        for pool in ["AveragePool", "MaxPool"] {
            let node = op(
                &format!("{pool} x -> y"),
                &[
                    ("kernel_shape", A::Is(vec![size])),
                    ("strides", A::Is(vec![stride])),
                    ("pads", A::Is(pads.to_vec())),
                    ("ceil_mode", A::I(1)),
                ],
            );
            let x = value("x", FLOAT, &[D::N(1), D::N(1), D::N(image)]);
            let y = value("y", FLOAT, &[D::N(1), D::N(1), D::N(windows)]);
            let graph = imported(&model_of(19, graph(vec![node], vec![], vec![x], vec![y]), vec![])).graph;
            let extent = image as usize;
            let out = run(&graph, &[f32s(&[1, 1, extent], &vec![1.0; extent])]);
            assert_eq!(
                out[0].shape(),
                [1, 1, windows as usize],
                "{pool} {image} {size} {stride} {pads:?}"
            );
        }
    }
}
