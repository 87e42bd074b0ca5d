//! What ONNX does not give an operator is refused, by node, operator and name; what it gives and nothing depends on is not.

use tlc::onnx::{ImportOptions, import};
use tlc_formats::ErrorKind;

use crate::proto::A::{self, F, I, Is, T};
use crate::proto::*;

/// A model of one node from `x` of `[2, 3, 4, 4]` and the constants to `y`.
fn one(version: i64, node: Message, constants: Vec<Message>) -> Vec<u8> {
    let x = value("x", FLOAT, &[D::N(2), D::N(3), D::N(4), D::N(4)]);
    let g = graph(vec![node], constants, vec![x], vec![value("y", FLOAT, &[])]);
    model_of(version, g, vec![])
}

fn refusal(bytes: &[u8]) -> String {
    let e = import(bytes, &ImportOptions::default()).expect_err("it is refused");
    assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
    e.to_string()
}

#[test]
fn attributes_and_operands_that_an_operator_does_not_have_are_refused() {
    let w = || vec![floats("w", &[1], &[1.0]), ints("i", &[1, 1], &[0])];
    for (version, text, attributes, expected) in [
        (
            17,
            "Softmax x -> y",
            vec![("axes", I(0))],
            "node 'y' (Softmax): unknown attribute `axes`; expected axis",
        ),
        (
            17,
            "Relu x -> y",
            vec![("alpha", F(1.0))],
            "node 'y' (Relu): unknown attribute `alpha`; expected none",
        ),
        (17, "Relu x w -> y", vec![], "node 'y' (Relu): 2 operands; expected 1"),
        (17, "Relu x _ -> y", vec![], "node 'y' (Relu): 2 operands; expected 1"),
        (17, "Add x -> y", vec![], "node 'y' (Add): 1 operands; expected 2"),
        (
            17,
            "Clip x w w w -> y",
            vec![],
            "node 'y' (Clip): 4 operands; expected 1 to 3",
        ),
        (
            17,
            "Concat -> y",
            vec![("axis", I(0))],
            "node 'y' (Concat): 0 operands; expected at least 1",
        ),
        (
            17,
            "Relu x -> y z",
            vec![],
            "node 'y' (Relu): 2 results; expected at most 1",
        ),
        (
            17,
            "Concat x x -> y",
            vec![],
            "node 'y' (Concat): no attribute axis; expected Int",
        ),
        (
            17,
            "Concat x x -> y",
            vec![("axis", T("0"))],
            "node 'y' (Concat): attribute axis holds Text; expected Int",
        ),
        (
            17,
            "Softmax x -> y",
            vec![("axis", I(0)), ("axis", I(1))],
            "node 'y' (Softmax): attribute axis is given twice; expected it once",
        ),
        // What no function reads is checked, too.
        (
            17,
            "MaxPool x -> y",
            vec![("kernel_shape", Is(vec![2, 2])), ("storage_order", T("0"))],
            "node 'y' (MaxPool): attribute storage_order holds Text; expected Int",
        ),
        // What another opset has.
        (
            11,
            "GatherND x i -> y",
            vec![("batch_dims", I(0))],
            "unknown attribute `batch_dims`; expected none",
        ),
        (
            13,
            "ReduceSum x -> y",
            vec![("axes", Is(vec![0]))],
            "unknown attribute `axes`; expected keepdims, noop",
        ),
        (
            7,
            "Add x w -> y",
            vec![("broadcast", I(1))],
            "node 'y' (Add): unknown attribute `broadcast`; expected none",
        ),
        (
            17,
            "Shape x -> y",
            vec![("from", I(0))],
            "node 'y' (Shape): unknown attribute `from`; expected end, start",
        ),
        (
            14,
            "Shape x -> y",
            vec![("start", I(0))],
            "node 'y' (Shape): unknown attribute `start`; expected none",
        ),
    ] {
        let found = refusal(&one(version, op(text, &attributes), w()));
        assert!(found.contains(expected), "expected `{expected}`, found `{found}`");
    }
}

/// The element type that an operand's name begins with.
fn type_of(name: &str) -> (i64, &'static str) {
    match &name[..1] {
        "f" => (FLOAT, "f32"),
        "h" => (10, "f16"),
        "d" => (11, "f64"),
        "u" => (UINT8, "u8"),
        "s" => (3, "i8"),
        "i" => (6, "i32"),
        "j" => (INT64, "i64"),
        other => panic!("a type {other}"),
    }
}

/// A model of one node whose operands are inputs of `[2]`.
fn typed(version: i64, text: &str, attributes: &[(&str, A)]) -> Vec<u8> {
    let (domain, text) = match text.strip_prefix("com.microsoft.") {
        Some(text) => ("com.microsoft", text),
        None => ("", text),
    };
    let (operands, _) = text.split_once(" -> ").expect("an arrow");
    let inputs = operands
        .split(' ')
        .skip(1)
        .filter(|&name| name != "_")
        .map(|name| value(name, type_of(name).0, &[D::N(2)]));
    let node = op(text, attributes).bytes(7, domain);
    Message::default()
        .int(1, 8)
        .message(7, graph(vec![node], vec![], inputs.collect(), vec![result("y")]))
        .message(8, opset("", version))
        .message(8, opset("com.microsoft", 1))
        .0
}

#[test]
fn operands_that_have_one_type_are_refused_where_they_have_several() {
    let heads = || vec![("num_heads", I(1))];
    for (version, text, attributes, operands) in [
        (17, "MatMul h f -> y", vec![], (1, 0)),
        (17, "Gemm f f1 h -> y", vec![], (2, 0)),
        (17, "Conv h f -> y", vec![], (1, 0)),
        (17, "Conv h h1 f -> y", vec![], (2, 0)),
        (17, "ConvTranspose h f -> y", vec![], (1, 0)),
        (17, "ConvTranspose h h1 f -> y", vec![], (2, 0)),
        (22, "DeformConv f f1 f2 _ h -> y", vec![], (4, 0)),
        (10, "ConvInteger u s s1 -> y", vec![], (2, 0)),
        (10, "ConvInteger u s u1 u2 -> y", vec![], (3, 1)),
        (17, "Add i j -> y", vec![], (1, 0)),
        (17, "Less f d -> y", vec![], (1, 0)),
        (17, "Sum f f1 f2 h -> y", vec![], (3, 0)),
        (17, "Concat i i1 j -> y", vec![("axis", I(0))], (2, 0)),
        (12, "Einsum f d -> y", vec![("equation", T("i,i"))], (1, 0)),
        (17, "Clip f _ h -> y", vec![], (2, 0)),
        (17, "Pad f j h -> y", vec![], (2, 0)),
        (17, "Slice f j i -> y", vec![], (2, 1)),
        (17, "ScatterND f j h -> y", vec![], (2, 0)),
        (17, "LSTM f f1 h -> y", vec![], (2, 0)),
        (17, "LSTM f f1 f2 _ i _ h -> y", vec![], (6, 0)),
        (14, "GRU f f1 f2 f3 _ h -> y", vec![], (5, 0)),
        (17, "LayerNormalization h f -> y", vec![], (1, 0)),
        (17, "InstanceNormalization h h1 f -> y", vec![], (2, 0)),
        (21, "GroupNormalization h f f1 -> y", vec![("num_groups", I(1))], (1, 0)),
        // The types of the scale and of the statistics came apart from that of the operand one after the other.
        (9, "BatchNormalization h f f1 f2 f3 -> y", vec![], (1, 0)),
        (14, "BatchNormalization h h1 f f1 f2 -> y", vec![], (2, 0)),
        (15, "BatchNormalization h f f1 f2 d -> y", vec![], (4, 3)),
        (11, "Pow f i -> y", vec![], (1, 0)),
        (23, "Attention f h f1 -> y", vec![], (1, 0)),
        (23, "Attention f f1 h _ f2 f3 -> y", vec![], (5, 2)),
        (13, "DequantizeLinear u f s -> y", vec![], (2, 0)),
        (19, "QuantizeLinear h f u -> y", vec![], (1, 0)),
        (17, "com.microsoft.FusedConv h f -> y", vec![], (1, 0)),
        (17, "com.microsoft.FusedConv h h1 f -> y", vec![], (2, 0)),
        (17, "com.microsoft.FusedConv h h1 _ f -> y", vec![], (3, 0)),
        (17, "com.microsoft.FusedMatMul h f -> y", vec![], (1, 0)),
        (17, "com.microsoft.FusedGemm f f1 h -> y", vec![], (2, 0)),
        (17, "com.microsoft.BiasGelu f h -> y", vec![], (1, 0)),
        (17, "com.microsoft.FastGelu f h -> y", vec![], (1, 0)),
        (17, "com.microsoft.SkipLayerNormalization f f1 h -> y", vec![], (2, 0)),
        (17, "com.microsoft.RotaryEmbedding f j h f1 -> y", vec![], (2, 0)),
        (17, "com.microsoft.Attention f h -> y", heads(), (1, 0)),
        (17, "com.microsoft.MultiHeadAttention f _ _ h -> y", heads(), (3, 0)),
        (
            17,
            "com.microsoft.GroupQueryAttention f f1 f2 h f3 i i1 -> y",
            vec![("num_heads", I(1)), ("kv_num_heads", I(1))],
            (4, 3),
        ),
        (
            17,
            "com.microsoft.MatMulNBits f u h -> y",
            vec![("K", I(2)), ("N", I(1)), ("block_size", I(16))],
            (2, 0),
        ),
    ] {
        let (at, first) = operands;
        let words: Vec<&str> = text.split(' ').collect();
        let expected = format!(
            "node 'y' ({}): operand {at} of {}; expected {}, the type of operand {first}",
            words[0],
            type_of(words[1 + at]).1,
            type_of(words[1 + first]).1
        );
        assert_eq!(refusal(&typed(version, text, &attributes)), expected);
    }
    // Which may have several.
    for (version, text) in [
        (12, "Pow f i -> y"),
        (23, "RMSNormalization h f -> y"),
        (17, "SimplifiedLayerNormalization h f -> y"),
        (17, "Gather f i -> y"),
    ] {
        let found = import(&typed(version, text, &[]), &ImportOptions::default());
        assert!(found.is_ok(), "{text}: {}", found.expect_err("refused"));
    }
}

#[test]
fn attributes_that_nothing_depends_on_are_accepted() {
    let batch = || ["s", "b", "m", "v"].map(|n| floats(n, &[3], &[1.0; 3])).to_vec();
    for (version, text, attributes) in [
        (
            17,
            "MaxPool x -> y",
            vec![("kernel_shape", Is(vec![2, 2])), ("storage_order", I(0))],
        ),
        (17, "BatchNormalization x s b m v -> y", vec![("momentum", F(0.9))]),
        (17, "LayerNormalization x q -> y", vec![("stash_type", I(1))]),
        (12, "GatherND x i -> y", vec![("batch_dims", I(0))]),
        (11, "ReduceSum x -> y", vec![("axes", Is(vec![0]))]),
        // Left to tools, as ONNX's own checker leaves them.
        (17, "Relu x -> y", vec![("__note", T("seen"))]),
    ] {
        let constants = [batch(), vec![floats("q", &[4], &[1.0; 4]), ints("i", &[1, 1], &[0])]].concat();
        let found = import(
            &one(version, op(text, &attributes), constants),
            &ImportOptions::default(),
        );
        assert!(found.is_ok(), "{text}: {}", found.expect_err("refused"));
    }
}

#[test]
fn functions_and_branches_are_no_way_around() {
    let x = || value("x", FLOAT, &[D::N(2)]);
    let y = || value("y", FLOAT, &[D::N(2)]);
    let body = |node: Message| {
        Message::default()
            .bytes(1, "F")
            .bytes(4, "a")
            .bytes(5, "b")
            .bytes(6, "axis")
            .message(7, node)
            .message(9, opset("", 17))
            .bytes(10, "own")
    };
    let refers = |to: &str| Message::default().bytes(1, "axis").int(20, 2).bytes(21, to);
    let softmax = |attribute: Message| node("Softmax", "inner", &["a"], &["b"]).message(5, attribute);
    let call = |attributes: Vec<Message>| node("F", "n", &["x"], &["y"]).bytes(7, "own").messages(5, attributes);
    let calls =
        |call: Message, inner: Message| model(graph(vec![call], vec![], vec![x()], vec![y()]), vec![body(inner)]);
    let axis = || int_attribute("axis", 0);
    for good in [
        calls(call(vec![axis()]), softmax(refers("axis"))),
        calls(call(vec![]), softmax(refers("axis"))),
    ] {
        assert!(import(&good, &ImportOptions::default()).is_ok());
    }
    let branch = graph(
        vec![node("Softmax", "inner", &["x"], &["r"]).message(5, int_attribute("axes", 0))],
        vec![],
        vec![],
        vec![value("r", FLOAT, &[D::N(2)])],
    );
    let choose = node("If", "n", &["c"], &["y"])
        .message(5, graph_attribute("then_branch", branch.clone()))
        .message(5, graph_attribute("else_branch", branch));
    let choose = graph(vec![choose], vec![], vec![value("c", BOOL, &[]), x()], vec![y()]);
    for (bytes, expected) in [
        (
            calls(call(vec![axis()]), softmax(int_attribute("axes", 0))),
            "node 'inner' (Softmax): unknown attribute `axes`; expected axis",
        ),
        (
            calls(call(vec![int_attribute("axes", 0)]), softmax(refers("axis"))),
            "node 'n' (own.F): an attribute `axes` that the function does not have; expected each of its own at most once",
        ),
        (
            calls(call(vec![axis(), axis()]), softmax(refers("axis"))),
            "node 'n' (own.F): an attribute `axis` given twice; expected each of its own at most once",
        ),
        (
            calls(call(vec![axis()]), softmax(refers("alpha"))),
            "node 'inner' (Softmax): attribute axis stands for an attribute `alpha` that no function around it has; expected a value",
        ),
        (
            model(
                graph(
                    vec![op("Softmax x -> y", &[]).message(5, refers("axis"))],
                    vec![],
                    vec![x()],
                    vec![y()],
                ),
                vec![],
            ),
            "node 'y' (Softmax): attribute axis stands for an attribute `axis` that no function around it has; expected a value",
        ),
        (
            model(choose, vec![]),
            "node 'inner' (Softmax): unknown attribute `axes`; expected axis",
        ),
    ] {
        let found = refusal(&bytes);
        assert!(found.ends_with(expected), "expected `{expected}`, found `{found}`");
    }
}

#[test]
fn names_are_given_once_and_nodes_say_what_they_are() {
    let x = || value("x", FLOAT, &[D::N(2)]);
    let y = || value("y", FLOAT, &[D::N(2)]);
    let relu = || vec![op("Relu x -> y", &[])];
    let twice = model(graph(relu(), vec![], vec![x(), x()], vec![y()]), vec![]);
    assert_eq!(refusal(&twice), "the graph has two inputs 'x'; expected distinct names");
    // Of which one has a default, or both.
    let twice = model(
        graph(relu(), vec![floats("x", &[2], &[1.0; 2])], vec![x(), x()], vec![y()]),
        vec![],
    );
    assert_eq!(refusal(&twice), "the graph has two inputs 'x'; expected distinct names");
    let default = model(
        graph(relu(), vec![floats("x", &[2], &[1.0; 2])], vec![x()], vec![y()]),
        vec![],
    );
    assert!(import(&default, &ImportOptions::default()).is_ok());
    for domain in ["", "ai.onnx", "com.microsoft", "own"] {
        let nameless = node("", "n", &["x"], &["y"]).bytes(7, domain);
        let found = refusal(&model(graph(vec![nameless], vec![], vec![x()], vec![y()]), vec![]));
        assert!(
            found.ends_with("a node without an op_type; expected the name of an operator"),
            "{found}"
        );
    }
}

#[test]
fn constant_indices_outside_of_their_axis_are_refused() {
    let far = |i: i64| vec![ints("i", &[1, 1, 1, 1], &[i]), floats("u", &[1, 1, 1, 1], &[1.0])];
    let places = |i: &[i64]| vec![ints("i", &[1, 2], i), floats("u", &[1, 4, 4], &[1.0; 16])];
    let flat = |i: i64| vec![ints("i", &[1], &[i])];
    let axis = || vec![("axis", I(1))];
    for (version, nodes, constants, expected) in [
        (
            17,
            vec![op("Gather x i -> y", &axis())],
            flat(3),
            "index 3 into an axis of 3 elements; expected -3 to 2",
        ),
        (
            17,
            vec![op("Gather x i -> y", &axis())],
            flat(-4),
            "index -4 into an axis of 3 elements",
        ),
        (
            17,
            vec![op("GatherElements x i -> y", &axis())],
            far(3),
            "index 3 into an axis of 3 elements",
        ),
        (
            17,
            vec![op("ScatterElements x i u -> y", &axis())],
            far(-4),
            "index -4 into an axis of 3 elements",
        ),
        (
            10,
            vec![op("Scatter x i u -> y", &axis())],
            far(7),
            "index 7 into an axis of 3 elements",
        ),
        (
            17,
            vec![op("GatherND x i -> y", &[])],
            places(&[1, 3]),
            "index 3 into an axis of 3 elements",
        ),
        (
            17,
            vec![op("GatherND x i -> y", &[])],
            places(&[2, 0]),
            "index 2 into an axis of 2 elements",
        ),
        (
            17,
            vec![op("ScatterND x i u -> y", &[])],
            places(&[-3, 0]),
            "index -3 into an axis of 2 elements",
        ),
        // A constant behind a conversion and a view.
        (
            17,
            vec![
                op("Cast i -> j", &[("to", I(6))]),
                op("Reshape j i -> k", &[]),
                op("Gather x k -> y", &axis()),
            ],
            flat(1).into_iter().chain(vec![]).collect(),
            "",
        ),
        (
            17,
            vec![op("Cast i -> j", &[("to", I(6))]), op("Gather x j -> y", &axis())],
            vec![ints("i", &[1, 2], &[0, 3])],
            "index 3 into an axis of 3 elements",
        ),
        // A vector of sizes.
        (
            17,
            vec![op("Shape x -> s", &[]), op("Gather s i -> y", &[])],
            flat(4),
            "index 4 into an axis of 4 elements",
        ),
        (17, vec![op("Gather x i -> y", &axis())], flat(-3), ""),
        (17, vec![op("GatherND x i -> y", &[])], places(&[-2, 2]), ""),
        (17, vec![op("ScatterND x i u -> y", &[])], places(&[1, -3]), ""),
        (17, vec![op("GatherElements x i -> y", &axis())], far(-3), ""),
    ] {
        let x = value("x", FLOAT, &[D::N(2), D::N(3), D::N(4), D::N(4)]);
        let y = value("y", FLOAT, &[]);
        let bytes = model_of(version, graph(nodes, constants, vec![x], vec![y]), vec![]);
        match import(&bytes, &ImportOptions::default()) {
            Ok(_) => assert_eq!(expected, "", "it imports"),
            Err(e) => assert!(
                !expected.is_empty() && e.kind() == ErrorKind::Invalid && e.to_string().contains(expected),
                "expected `{expected}`, found `{e}`"
            ),
        }
    }
}
