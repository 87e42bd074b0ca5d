//! Elements picked by masks that the model holds, written among booleans, resized where there are none, and quantized where all are zero.

use tlc::onnx::{ImportOptions, import};
use tlc::{CompileOptions, DType, HostTensor, Input, compile_ir};

use crate::proto::A::{I, Is, T};
use crate::proto::*;

/// The outputs, and the shape of the first where it is known when the model is imported.
fn run(bytes: &[u8], inputs: &[HostTensor]) -> (Vec<HostTensor>, Option<Vec<usize>>) {
    let graph = import(bytes, &ImportOptions::default())
        .unwrap_or_else(|e| panic!("{e}"))
        .graph;
    let shape = graph.ty(graph.outputs()[0].node).const_shape();
    let executable = compile_ir(&graph, &CompileOptions::default()).expect("it compiles");
    let inputs: Vec<Input<'_>> = inputs.iter().map(Input::from).collect();
    let found = executable.run(&inputs).expect("it runs");
    (found.iter().map(|o| o.to_host()).collect(), shape)
}

fn f32s(shape: &[usize], data: &[f32]) -> HostTensor {
    HostTensor::from_slice(shape, data).expect("a tensor")
}

fn bools(shape: &[usize], data: &[bool]) -> HostTensor {
    HostTensor::from_slice(shape, data).expect("a tensor")
}

/// A mask as Cast makes it of integers.
fn mask(of: &str) -> Message {
    op(&format!("Cast {of} -> m"), &[("to", I(BOOL))])
}

#[test]
fn a_mask_of_constants_leaves_a_number_of_elements_that_is_known() {
    // The two rows that are left are added to a tensor of two rows, and shape a constant.
    let nodes = vec![
        mask("bits"),
        op("Compress x m -> rows", &[("axis", I(0))]),
        op("Add rows y -> z", &[]),
        op("Compress x m -> flat", &[]),
        op("NonZero grid -> places", &[]),
    ];
    let constants = vec![
        ints("bits", &[3], &[1, 0, 1]),
        ints("grid", &[2, 3], &[0, 7, 0, -1, 0, 2]),
    ];
    let inputs = vec![
        value("x", FLOAT, &[D::N(4), D::N(2)]),
        value("y", FLOAT, &[D::N(2), D::N(1)]),
    ];
    let outputs = vec![
        value("z", FLOAT, &[]),
        value("flat", FLOAT, &[]),
        value("places", INT64, &[]),
    ];
    let bytes = model_of(19, graph(nodes, constants, inputs, outputs), vec![]);
    let x = f32s(&[4, 2], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
    let (found, shape) = run(&bytes, &[x, f32s(&[2, 1], &[10.0, 20.0])]);
    assert_eq!(shape, Some(vec![2, 2]));
    assert_eq!(found[0].as_slice::<f32>(), Some(&[10.0, 11.0, 24.0, 25.0][..]));
    assert_eq!(found[1].as_slice::<f32>(), Some(&[0.0, 2.0][..]));
    assert_eq!(found[2].shape(), [2, 3]);
    assert_eq!(found[2].as_slice::<i64>(), Some(&[0, 1, 1, 1, 0, 2][..]));
}

#[test]
fn a_mask_of_constants_that_is_false_everywhere_leaves_nothing() {
    let nodes = vec![mask("bits"), op("Compress x m -> y", &[("axis", I(-1))])];
    let constants = vec![ints("bits", &[2], &[0, 0])];
    let inputs = vec![value("x", FLOAT, &[D::Sym("n"), D::N(2)])];
    let bytes = model_of(
        19,
        graph(nodes, constants, inputs, vec![value("y", FLOAT, &[])]),
        vec![],
    );
    let (found, _) = run(&bytes, &[f32s(&[3, 2], &[1.0; 6])]);
    assert_eq!(found[0].shape(), [3, 0]);
}

#[test]
fn a_mask_of_constants_picks_in_the_body_of_a_loop() {
    // Three times: the first and the last element of what is carried, twice each.
    let body = Message::default()
        .messages(
            1,
            vec![
                op("Compress v m -> picked", &[("axis", I(0))]),
                op("Concat picked picked -> next", &[("axis", I(0))]),
                op("Identity go -> still", &[]),
            ],
        )
        .bytes(2, "body")
        .messages(
            11,
            [
                value("i", INT64, &[]),
                value("go", BOOL, &[]),
                value("v", FLOAT, &[D::N(4)]),
            ],
        )
        .messages(12, [value("still", BOOL, &[]), value("next", FLOAT, &[D::N(4)])]);
    let repeated = node("Loop", "", &["n", "", "x"], &["y"]).messages(5, [graph_attribute("body", body)]);
    let constants = vec![ints("bits", &[4], &[1, 0, 0, 1]), ints("n", &[], &[2])];
    let inputs = vec![value("x", FLOAT, &[D::N(4)])];
    let of = graph(
        vec![mask("bits"), repeated],
        constants,
        inputs,
        vec![value("y", FLOAT, &[])],
    );
    let (found, _) = run(&model_of(19, of, vec![]), &[f32s(&[4], &[1.0, 2.0, 3.0, 4.0])]);
    assert_eq!(found[0].as_slice::<f32>(), Some(&[1.0, 4.0, 1.0, 4.0][..]));
}

#[test]
fn booleans_are_scattered() {
    let scattered = |operator: &'static str, indices: Message, updates: &[i64]| {
        let nodes = vec![op("Cast bits -> u", &[("to", I(BOOL))]), op(operator, &[])];
        let constants = vec![indices, ints("bits", updates, &[1, 0])];
        let of = graph(
            nodes,
            constants,
            vec![value("x", BOOL, &[D::N(2), D::N(2)])],
            vec![value("y", BOOL, &[])],
        );
        let (found, _) = run(
            &model_of(18, of, vec![]),
            &[bools(&[2, 2], &[false, true, true, false])],
        );
        assert_eq!(found[0].dtype(), DType::Bool);
        found[0].as_slice::<bool>().expect("bool").to_vec()
    };
    assert_eq!(
        scattered("ScatterElements x i u -> y", ints("i", &[1, 2], &[-1, 0]), &[1, 2]),
        [false, false, true, false]
    );
    assert_eq!(
        scattered("ScatterND x i u -> y", ints("i", &[2, 2], &[0, 0, 1, 0]), &[2]),
        [true, true, false, false]
    );
    let nodes = vec![op("ScatterElements x i x -> y", &[("reduction", T("add"))])];
    let of = graph(
        nodes,
        vec![ints("i", &[2], &[0, 0])],
        vec![value("x", BOOL, &[D::N(2)])],
        vec![value("y", BOOL, &[])],
    );
    let error = import(&model_of(18, of, vec![]), &ImportOptions::default())
        .map(|_| ())
        .expect_err("a reduction of booleans");
    assert!(
        error.to_string().contains("a reduction of bool; expected none"),
        "{error}"
    );
}

#[test]
fn no_images_are_resized_to_none() {
    for of_sizes in [true, false] {
        let nodes = match of_sizes {
            true => vec![node("Resize", "", &["x", "", "", "sizes"], &["y"])],
            false => vec![
                node("Resize", "", &["x", "", "", "part"], &["y"]).messages(5, [attribute("axes", &Is(vec![2, 3]))]),
            ],
        };
        let constants = vec![ints("sizes", &[4], &[0, 3, 6, 4]), ints("part", &[2], &[6, 4])];
        let inputs = vec![value("x", FLOAT, &[D::N(0), D::N(3), D::N(2), D::N(2)])];
        let of = graph(nodes, constants, inputs, vec![value("y", FLOAT, &[])]);
        let (found, _) = run(&model_of(19, of, vec![]), &[f32s(&[0, 3, 2, 2], &[])]);
        assert_eq!(found[0].shape(), [0, 3, 6, 4]);
    }
}

/// Scale, zero point and elements as of ONNX Runtime 1.32.
#[test]
fn zeros_alone_are_quantized_by_a_scale_of_one() {
    let nodes = vec![op("DynamicQuantizeLinear x -> y s z", &[])];
    let inputs = vec![value("x", FLOAT, &[D::N(3)])];
    let outputs = vec![value("y", 2, &[]), value("s", FLOAT, &[]), value("z", 2, &[])];
    let of = graph(nodes, vec![], inputs, outputs);
    let (found, _) = run(&model_of(13, of, vec![]), &[f32s(&[3], &[0.0; 3])]);
    assert_eq!(found[0].as_slice::<u8>(), Some(&[0, 0, 0][..]));
    assert_eq!(found[1].as_slice::<f32>(), Some(&[1.0][..]));
    assert_eq!(found[2].as_slice::<u8>(), Some(&[0][..]));
}

/// What ONNX Runtime 1.32 makes of 1, 2, 3: of padding on one side the other takes away, if there is as much.
#[test]
fn padding_is_taken_away_too() {
    let padded = |pads: [i64; 2], extent: D| {
        let nodes = vec![op("Pad x p -> y", &[])];
        let inputs = vec![value("x", FLOAT, &[extent])];
        let of = graph(
            nodes,
            vec![ints("p", &[2], &pads)],
            inputs,
            vec![value("y", FLOAT, &[])],
        );
        model_of(18, of, vec![])
    };
    let cases: [([i64; 2], &[f32]); 4] = [
        ([3, -5], &[0.0]),
        ([-4, 4], &[0.0, 0.0, 0.0]),
        ([-1, 1], &[2.0, 3.0, 0.0]),
        ([2, -1], &[0.0, 0.0, 1.0, 2.0]),
    ];
    for (pads, expected) in cases {
        for extent in [D::N(3), D::Sym("n")] {
            let (found, _) = run(&padded(pads, extent), &[f32s(&[3], &[1.0, 2.0, 3.0])]);
            assert_eq!(found[0].as_slice::<f32>(), Some(expected), "{pads:?}");
        }
    }
    let refused = import(&padded([0, -4], D::N(3)), &ImportOptions::default());
    let message = refused.map(|_| ()).expect_err("-1 elements").to_string();
    assert!(message.contains("leave -1 elements"), "{message}");
}

/// As ONNX Runtime 1.32: of an output shape what is more than the whole lies behind, and what is less is missing in front first.
#[test]
fn transposed_convolutions_have_the_extents_that_are_asked_for() {
    let model = |size: usize, attributes: &[(&str, A)]| {
        let w: Vec<f32> = (1..=size).map(|v| v as f32).collect();
        let nodes = vec![op("ConvTranspose x w -> y", attributes)];
        let inputs = vec![value("x", FLOAT, &[D::N(1), D::N(1), D::N(3)])];
        let outputs = vec![value("y", FLOAT, &[])];
        model_of(
            11,
            graph(nodes, vec![floats("w", &[1, 1, size as i64], &w)], inputs, outputs),
            vec![],
        )
    };
    let cases: [(usize, i64, &[f32]); 3] = [
        (2, 10, &[1.0, 2.0, 0.0, 2.0, 4.0, 0.0, 3.0, 6.0, 0.0, 0.0]),
        (2, 7, &[2.0, 0.0, 2.0, 4.0, 0.0, 3.0, 6.0]),
        (3, 5, &[3.0, 2.0, 4.0, 6.0, 3.0]),
    ];
    for (size, wanted, expected) in cases {
        let bytes = model(size, &[("strides", Is(vec![3])), ("output_shape", Is(vec![wanted]))]);
        let (found, _) = run(&bytes, &[f32s(&[1, 1, 3], &[1.0, 2.0, 3.0])]);
        assert_eq!(found[0].as_slice::<f32>(), Some(expected), "{size} {wanted}");
    }
    for pads in [vec![0, 5], vec![0, 65], vec![6, 0]] {
        let refused = import(&model(2, &[("pads", Is(pads))]), &ImportOptions::default());
        let message = refused.map(|_| ()).expect_err("nothing is left").to_string();
        assert!(
            message.contains("elements along axis 2; expected at least 0"),
            "{message}"
        );
    }
}

/// As ONNX's reference evaluator: integers are rounded once, behind all axes.
#[test]
fn resized_integers_are_rounded_once() {
    let linear = [
        [100, 76, 27, 15, 38, 50],
        [77, 59, 25, 21, 49, 62],
        [30, 27, 19, 34, 70, 88],
        [7, 10, 17, 40, 80, 100],
    ];
    let cubic = [
        [121, 84, 21, 0, 31, 49],
        [87, 61, 17, 12, 46, 67],
        [29, 23, 11, 31, 72, 96],
        [0, 0, 7, 43, 87, 114],
    ];
    for (mode, expected) in [("linear", linear), ("cubic", cubic)] {
        let nodes = vec![op("Resize x _ s -> y", &[("mode", T(mode))])];
        let inputs = vec![value("x", 2, &[D::N(2), D::N(3)])];
        let of = graph(
            nodes,
            vec![floats("s", &[2], &[2.0, 2.0])],
            inputs,
            vec![value("y", 2, &[])],
        );
        let x = HostTensor::from_slice(&[2, 3], &[100u8, 3, 50, 7, 20, 100]).unwrap();
        let (found, _) = run(&model_of(18, of, vec![]), &[x]);
        assert_eq!(found[0].as_slice::<u8>(), Some(expected.as_flattened()), "{mode}");
    }
}

/// As ONNX Runtime 1.32: a condition that is longer than the axis says nothing more.
#[test]
fn a_long_condition_picks_what_there_is() {
    let condition = Message::default()
        .int(1, 5)
        .int(2, BOOL)
        .bytes(8, "c")
        .bytes(9, [1u8, 0, 1, 1, 1]);
    for (constant, rows) in [
        (true, D::N(3)),
        (false, D::N(3)),
        (true, D::Sym("n")),
        (false, D::Sym("n")),
    ] {
        let nodes = vec![op("Compress x c -> y", &[("axis", I(0))])];
        let mut inputs = vec![value("x", FLOAT, &[rows, D::N(2)])];
        let mut constants = vec![];
        let mut given = vec![f32s(&[3, 2], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0])];
        match constant {
            true => constants.push(condition.clone()),
            false => {
                inputs.push(value("c", BOOL, &[D::N(5)]));
                given.push(HostTensor::from_slice(&[5], &[true, false, true, true, true]).unwrap());
            }
        }
        let of = graph(nodes, constants, inputs, vec![value("y", FLOAT, &[])]);
        let (found, _) = run(&model_of(18, of, vec![]), &given);
        assert_eq!(found[0].as_slice::<f32>(), Some(&[0.0, 1.0, 4.0, 5.0][..]));
    }
}
