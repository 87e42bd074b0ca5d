//! Broken, lying and hostile models: every one is an error that names its cause, and none panics.

use tlc::onnx::{ImportError, ImportOptions, import};
use tlc_formats::ErrorKind;
use tlc_formats::onnx::{Model, Tensor};

use crate::proto::*;

fn refused(bytes: &[u8]) -> ImportError {
    import(bytes, &ImportOptions::default()).expect_err("it is refused")
}

/// A model with each kind of message in it.
fn valid() -> Vec<u8> {
    let twice = Message::default()
        .bytes(1, "Twice")
        .bytes(4, "a")
        .bytes(5, "b")
        .message(7, node("Add", "sum", &["a", "a"], &["b"]))
        .message(9, opset("", 17))
        .bytes(10, "own");
    let branch = |op: &str| {
        graph(
            vec![node(op, "inner", &["t", "t"], &["r"])],
            vec![],
            vec![],
            vec![value("r", FLOAT, &[D::N(2)])],
        )
    };
    let pads = Message::default().bytes(1, "axes").int(8, 0).int(8, 1).int(20, 7);
    let nodes = vec![
        node("MatMul", "product", &["x", "W"], &["p"]),
        node("Twice", "twice", &["p"], &["t"]).bytes(7, "own"),
        node("If", "choose", &["c"], &["i"])
            .message(5, graph_attribute("then_branch", branch("Add")))
            .message(5, graph_attribute("else_branch", branch("Mul"))),
        node("Reshape", "shape", &["i", "target"], &["u"]),
        node("Expand", "expand", &["u", "large"], &["e"]),
        node("Tile", "tile", &["e", "large"], &["w"]),
        node("ReduceMax", "max", &["w"], &["m"]).message(5, pads),
        node("Slice", "part", &["w", "one", "large"], &["y"]),
    ];
    let weights = vec![
        floats("W", &[2, 2], &[1.0, 2.0, 3.0, 4.0]),
        ints("target", &[2], &[-1, 2]),
        ints("large", &[2], &[3, 2]),
        ints("one", &[2], &[1, 0]),
    ];
    let inputs = vec![value("c", BOOL, &[]), value("x", FLOAT, &[D::Sym("n"), D::N(2)])];
    let outputs = vec![value("y", FLOAT, &[D::Sym("n"), D::N(2)]), value("m", FLOAT, &[])];
    model(graph(nodes, weights, inputs, outputs), vec![twice])
}

#[test]
fn every_cut_of_a_model_is_an_error_or_a_model() {
    let whole = valid();
    assert!(import(&whole, &ImportOptions::default()).is_ok());
    for n in 0..whole.len() {
        let _ = import(&whole[..n], &ImportOptions::default());
    }
    assert_eq!(refused(&[]).kind(), ErrorKind::Invalid);
    assert_eq!(refused(&whole[..whole.len() / 2]).kind(), ErrorKind::Invalid);
}

#[test]
fn every_changed_byte_of_a_model_is_an_error_or_a_model() {
    let whole = valid();
    let mut changed = whole.clone();
    for i in 0..whole.len() {
        for byte in [
            0,
            1,
            0x7f,
            0x80,
            0xff,
            whole[i] ^ 1,
            whole[i] ^ 8,
            whole[i].wrapping_add(1),
        ] {
            changed[i] = byte;
            if let Err(e) = import(&changed, &ImportOptions::default()) {
                assert!(!e.to_string().contains('\n'), "{e}");
            }
        }
        changed[i] = whole[i];
    }
}

#[test]
fn two_changes_at_once_are_no_worse() {
    let whole = valid();
    let mut state = 1u64;
    let mut next = |n: usize| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) as usize % n
    };
    for _ in 0..4000 {
        let mut changed = whole.clone();
        for _ in 0..2 {
            let at = next(whole.len());
            changed[at] = next(256) as u8;
        }
        let _ = import(&changed, &ImportOptions::default());
    }
}

#[test]
fn nesting_has_an_end() {
    let mut inner = Message::default().message(1, Message::default().int(1, 1));
    for _ in 0..200_000 {
        inner = Message::default().message(1, Message::default().message(4, inner));
        if inner.0.len() > 1 << 17 {
            break;
        }
    }
    let ty = Message::default().message(2, Message::default().message(9, inner));
    let bytes = model(graph(vec![], vec![], vec![ty], vec![]), vec![]);
    let message = Model::parse(&bytes).expect_err("it nests too deep").to_string();
    assert!(message.contains("nested more than 100 deep"), "{message}");
}

#[test]
fn refusals_name_the_node_and_the_reason() {
    let x = || value("x", FLOAT, &[D::N(2)]);
    let y = || value("y", FLOAT, &[D::N(2)]);
    let one = |n: Message| model(graph(vec![n], vec![], vec![x()], vec![y()]), vec![]);
    let recursive = Message::default()
        .bytes(1, "F")
        .bytes(4, "a")
        .bytes(5, "b")
        .message(7, node("F", "again", &["a"], &["b"]).bytes(7, "own"))
        .message(9, opset("own", 1))
        .bytes(10, "own");
    let cases = [
        (
            one(node("Frobnicate", "n", &["x"], &["y"])),
            ErrorKind::Unsupported,
            "node 'n' (Frobnicate): this operator is not supported",
        ),
        (
            one(node("Relu", "n", &["z"], &["y"])),
            ErrorKind::Invalid,
            "node 'n' (Relu): no value is named 'z'; expected an input, an initializer or the result of a node that does not wait for it",
        ),
        (
            one(node("Relu", "n", &["x"], &["x"])),
            ErrorKind::Invalid,
            "node 'n' (Relu): the name 'x' is defined twice; expected it once",
        ),
        (
            one(node("Relu", "", &[], &["y"])),
            ErrorKind::Invalid,
            "node 'y' (Relu): 0 operands; expected 1",
        ),
        (
            one(node("Relu", "n", &["x"], &["w"])),
            ErrorKind::Invalid,
            "output 'y': no value is named 'y'; expected an input, an initializer or the result of a node that does not wait for it",
        ),
        (
            one(node("Softmax", "n", &["x"], &["y"]).message(5, Message::default().bytes(1, "axis").int(20, 3))),
            ErrorKind::Invalid,
            "node 'n' (Softmax): attribute axis holds Text; expected Int",
        ),
        (
            one(node("Frob", "n", &["x"], &["y"]).bytes(7, "com.example")),
            ErrorKind::Invalid,
            "node 'n' (com.example.Frob): the operator set `com.example` is not imported by the model; expected it among \
             opset_import",
        ),
        (
            model(
                graph(
                    vec![node("F", "n", &["x"], &["y"]).bytes(7, "own")],
                    vec![],
                    vec![x()],
                    vec![y()],
                ),
                vec![recursive],
            ),
            ErrorKind::Invalid,
            "node 'again' (own.F): functions and subgraphs nested more than 48 deep; expected no recursion",
        ),
        (
            model(
                graph(vec![], vec![floats("w", &[3], &[1.0])], vec![x()], vec![y()]),
                vec![],
            ),
            ErrorKind::Invalid,
            "initializer 'w': the tensor's bytes do not fit f32[3]; expected 12, found 4",
        ),
        (
            model(
                graph(vec![], vec![floats("w", &[-3], &[1.0])], vec![x()], vec![y()]),
                vec![],
            ),
            ErrorKind::Invalid,
            "initializer 'w': a tensor with an extent of -3; expected 0 or more",
        ),
        (
            model(
                graph(vec![], vec![floats("w", &[1; 1000], &[1.0])], vec![x()], vec![y()]),
                vec![],
            ),
            ErrorKind::Invalid,
            "initializer 'w': a tensor of rank 1000; expected at most 64",
        ),
        (
            model(
                graph(vec![], vec![], vec![value("x", 27, &[D::N(1)])], vec![y()]),
                vec![],
            ),
            ErrorKind::Unsupported,
            "input 'x': elements of float6e2m3 are not supported; expected bool, integers of 2 to 64 bits, or floats of 4, \
             8, 16, 32 or 64 bits",
        ),
    ];
    for (bytes, kind, message) in cases {
        let e = refused(&bytes);
        assert_eq!((e.kind(), e.to_string()), (kind, message.to_string()));
    }
}

/// Results that no memory holds, and loops that nobody waits for, even where nothing of them would be kept.
#[test]
fn more_than_anybody_has_is_refused_with_the_node_s_name() {
    let many = |op_of: &str, constants: Vec<Message>| {
        let x = value("x", FLOAT, &[D::N(1)]);
        let nodes = vec![op(op_of, &[]), op("ReduceMax e -> y", &[])];
        model(graph(nodes, constants, vec![x], vec![value("y", FLOAT, &[])]), vec![])
    };
    let size = |n: i64| ints("s", &[1], &[n]);
    for n in [1 << 40, 1 << 50] {
        for node in ["Expand x s -> e", "Tile x s -> e", "ConstantOfShape s -> e"] {
            let e = refused(&many(node, vec![size(n)]));
            assert_eq!(e.kind(), ErrorKind::Limit);
            let name = node.split(' ').next().expect("a name");
            let expected = format!("node 'e' ({name}): a result of {n} elements; expected at most 17179869184");
            assert_eq!(e.to_string(), expected);
        }
    }
    // Loops in loops, each of few iterations.
    fn body(depth: u32) -> Message {
        let (c, v, o) = (format!("c{depth}"), format!("v{depth}"), format!("o{depth}"));
        let inner = match depth {
            0 => node("Neg", "neg", &[&v], &[&o]),
            _ => node("Loop", &format!("loop{depth}"), &["m", "", &v], &[&o])
                .message(5, graph_attribute("body", body(depth - 1))),
        };
        let (go, number) = (format!("g{depth}"), format!("i{depth}"));
        let inputs = vec![
            value(&number, INT64, &[]),
            value(&c, BOOL, &[]),
            value(&v, FLOAT, &[D::N(2)]),
        ];
        let outputs = vec![value(&go, BOOL, &[]), value(&o, FLOAT, &[D::N(2)])];
        graph(
            vec![node("Identity", "go", &[&c], &[&go]), inner],
            vec![],
            inputs,
            outputs,
        )
    }
    let nested = |trip: i64, depth: u32| {
        let all = node("Loop", "all", &["m", "", "x"], &["y"]).message(5, graph_attribute("body", body(depth)));
        let x = value("x", FLOAT, &[D::N(2)]);
        model(
            graph(
                vec![all],
                vec![ints("m", &[], &[trip])],
                vec![x],
                vec![value("y", FLOAT, &[])],
            ),
            vec![],
        )
    };
    import(&nested(1000, 1), &ImportOptions::default()).expect("a million iterations are allowed");
    for (trip, depth, name) in [(1 << 39, 0, "all"), (1000, 2, "all"), (10_000, 4, "loop3")] {
        let e = refused(&nested(trip, depth));
        assert_eq!(e.kind(), ErrorKind::Limit);
        assert!(
            e.to_string().contains(&format!("node '{name}' (Loop): a loop of ")),
            "{e}"
        );
    }
}

#[test]
fn an_extent_that_doubles_with_each_node_is_refused() {
    // Each part of a concatenation is as long as what it is cut from allows.
    let mut nodes = vec![];
    for i in 0..40 {
        let from = if i == 0 { "x".into() } else { format!("v{i}") };
        nodes.push(op(&format!("Slice {from} zero three -> p{i}"), &[]));
        nodes.push(op(&format!("Slice {from} three end -> q{i}"), &[]));
        let to = if i == 39 { "y".into() } else { format!("v{}", i + 1) };
        nodes.push(op(&format!("Concat q{i} p{i} -> {to}"), &[("axis", A::I(0))]));
    }
    let constants = vec![
        ints("zero", &[1], &[0]),
        ints("three", &[1], &[3]),
        ints("end", &[1], &[1 << 31]),
    ];
    let x = value("x", FLOAT, &[D::Sym("n")]);
    let e = refused(&model(
        graph(nodes, constants, vec![x], vec![value("y", FLOAT, &[])]),
        vec![],
    ));
    assert_eq!(e.kind(), ErrorKind::Unsupported);
    assert!(
        e.to_string()
            .contains("the extent of axis 0 is an expression of more than"),
        "{e}"
    );
}

/// What is recorded after a refusal has no shape; an operator that looks at it must not take that for a tensor of rank 0.
#[test]
fn what_one_step_of_an_operator_refuses_is_the_reason() {
    let float =
        |name: &'static str, dims: &[i64]| value(name, FLOAT, &dims.iter().map(|&d| D::N(d)).collect::<Vec<_>>());
    let one = |version: i64, node: Message, inputs: Vec<Message>| {
        model_of(
            version,
            graph(vec![node], vec![], inputs, vec![value("y", FLOAT, &[])]),
            vec![],
        )
    };
    let heads = [
        ("q_num_heads", A::I(3)),
        ("kv_num_heads", A::I(3)),
        ("is_causal", A::I(1)),
    ];
    let tokens = |name, n, width| float(name, &[2, n, width]);
    let cases = [
        (
            one(
                23,
                op("Attention q k v -> y", &heads),
                vec![tokens("q", 4, 24), tokens("k", 6, 30), tokens("v", 6, 24)],
            ),
            "node 'y' (Attention): ",
        ),
        (
            one(
                23,
                op("RotaryEmbedding x c s p -> y", &[("num_heads", A::I(20))]),
                vec![
                    tokens("x", 3, 32),
                    float("c", &[50, 4]),
                    float("s", &[50, 4]),
                    value("p", INT64, &[D::N(2), D::N(3)]),
                ],
            ),
            "node 'y' (RotaryEmbedding): ",
        ),
        (
            one(
                11,
                op("ConvTranspose x w -> y", &[("strides", A::Is(vec![1 << 62, 1 << 62]))]),
                vec![float("x", &[1, 3, 6, 7]), float("w", &[3, 4, 3, 3])],
            ),
            "node 'y' (ConvTranspose): ",
        ),
    ];
    for (bytes, start) in cases {
        let text = refused(&bytes).to_string();
        assert!(text.starts_with(start), "{text}");
    }
}

#[test]
fn a_tensor_claims_no_memory_that_its_bytes_do_not_justify() {
    let huge = Message::default().int(1, 1 << 40).int(2, FLOAT).0;
    let e = Tensor::parse(&huge)
        .and_then(|t| t.to_host(None))
        .expect_err("it has no data");
    assert!(e.to_string().ends_with("found 0"), "{e}");
    let overflowing = Message::default().int(1, 1 << 62).int(1, 1 << 62).int(2, FLOAT).0;
    assert!(Tensor::parse(&overflowing).and_then(|t| t.to_host(None)).is_err());
}

#[test]
fn a_field_given_twice_is_refused() {
    let twice = Message::default().int(2, FLOAT).int(2, FLOAT).0;
    let e = Tensor::parse(&twice).expect_err("it is refused");
    assert_eq!(
        e.to_string(),
        "not a valid ONNX file: TensorProto field 2: given twice; expected it once"
    );
}

#[test]
fn external_data_stays_in_the_models_folder() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = root.path().join("model");
    std::fs::create_dir(&folder).expect("a folder");
    let data: Vec<u8> = [1.0f32, 2.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    std::fs::write(folder.join("w.bin"), &data).expect("a file");
    std::fs::write(root.path().join("secret.bin"), &data).expect("a file");
    let build = |location: &str, offset: &str, length: &str| {
        let entry = |k: &str, v: &str| Message::default().bytes(1, k).bytes(2, v);
        let w = Message::default()
            .int(1, 2)
            .int(2, FLOAT)
            .bytes(8, "w")
            .message(13, entry("location", location))
            .message(13, entry("offset", offset))
            .message(13, entry("length", length))
            .int(14, 1);
        let nodes = vec![node("Add", "sum", &["x", "w"], &["y"])];
        let (x, y) = (value("x", FLOAT, &[D::N(2)]), value("y", FLOAT, &[D::N(2)]));
        model(graph(nodes, vec![w], vec![x], vec![y]), vec![])
    };
    let options = ImportOptions {
        folder: Some(&folder),
        ..ImportOptions::default()
    };
    import(&build("w.bin", "0", "8"), &options).expect("it is inside");
    let absolute = root.path().join("secret.bin");
    for (location, offset, length, reason) in [
        ("../secret.bin", "0", "8", "expected a path inside"),
        (absolute.to_str().expect("UTF-8"), "0", "8", "expected a path inside"),
        ("", "0", "8", "expected a path inside"),
        ("none.bin", "0", "8", "cannot be read"),
        ("w.bin", "4", "8", "ends too early"),
        ("w.bin", "18446744073709551615", "8", "ends too early"),
        ("w.bin", "0", "4", "do not fit"),
        ("w.bin", "-1", "8", "expected a number of bytes"),
    ] {
        let e = import(&build(location, offset, length), &options).expect_err(location);
        assert_eq!(e.kind(), ErrorKind::Invalid);
        assert!(e.to_string().starts_with("initializer 'w': "), "{e}");
        assert!(e.to_string().contains(reason), "{e}");
    }
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(&absolute, folder.join("link.bin")).expect("a link");
        let e = import(&build("link.bin", "0", "8"), &options).expect_err("a link that leaves");
        assert!(e.to_string().contains("leads out of the model's folder"), "{e}");
    }
    assert!(import(&build("w.bin", "0", "8"), &ImportOptions::default()).is_err());
}
