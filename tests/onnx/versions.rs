//! One meaning written in several opsets: settings that became operands, defaults that changed, operators that were renamed.

use tlc::onnx::{ImportOptions, import};
use tlc::{CompileOptions, HostTensor, Input, compile_ir};

use crate::proto::A::{F, Fs, I, Is, T};
use crate::proto::*;

/// An edition of a model: its opset, constants and nodes from `x` to `y`.
type Edition = (i64, Vec<Message>, Vec<Message>);

fn answer(shape: &[i64], (opset, constants, nodes): &Edition) -> Result<HostTensor, String> {
    let dims: Vec<D> = shape.iter().map(|&d| D::N(d)).collect();
    let g = graph(
        nodes.clone(),
        constants.clone(),
        vec![value("x", FLOAT, &dims)],
        vec![result("y")],
    );
    let imported = import(&model_of(*opset, g, vec![]), &ImportOptions::default()).map_err(|e| e.to_string())?;
    let executable = compile_ir(&imported.graph, &CompileOptions::default()).map_err(|e| e.to_string())?;
    let shape: Vec<usize> = shape.iter().map(|&d| d as usize).collect();
    let data: Vec<f32> = (0..shape.iter().product())
        .map(|i: usize| ((i * 37) % 101) as f32 / 25.0 - 2.0)
        .collect();
    let x = HostTensor::from_slice(&shape, &data).map_err(|e| e.to_string())?;
    let found = executable.run(&[Input::from(&x)]).map_err(|e| e.to_string())?;
    Ok(found[0].to_host())
}

/// Every edition answers what the first one does, to the bit.
fn same(wrong: &mut Vec<String>, shape: &[i64], editions: &[Edition]) {
    let first = answer(shape, &editions[0]);
    for (k, edition) in editions.iter().enumerate() {
        let other = answer(shape, edition);
        let equal = match (&first, &other) {
            (Ok(a), Ok(b)) => a.shape() == b.shape() && a.dtype() == b.dtype() && a.bytes() == b.bytes(),
            _ => false,
        };
        if !equal {
            wrong.push(format!(
                "edition {k} (opset {}): {other:?}, expected {first:?}",
                edition.0
            ));
        }
    }
}

fn i(name: &str, data: &[i64]) -> Message {
    ints(name, &[data.len() as i64], data)
}

fn f(name: &str, data: &[f32]) -> Message {
    floats(name, &[data.len() as i64], data)
}

fn plain(opset: i64, text: &str, attributes: &[(&str, A)]) -> Edition {
    (opset, vec![], vec![op(text, attributes)])
}

fn with(opset: i64, constants: Vec<Message>, text: &str, attributes: &[(&str, A)]) -> Edition {
    (opset, constants, vec![op(text, attributes)])
}

#[test]
fn settings_that_became_operands_mean_the_same() {
    let image = &[2, 4, 6, 6];
    let mut wrong = vec![];
    let w = &mut wrong;
    let number = |name: &str, v: f32| floats(name, &[], &[v]);
    same(
        w,
        image,
        &[
            plain(7, "Clip x -> y", &[("min", F(-0.5)), ("max", F(1.0))]),
            with(11, vec![number("a", -0.5), number("b", 1.0)], "Clip x a b -> y", &[]),
            with(28, vec![number("a", -0.5), number("b", 1.0)], "Clip x a b -> y", &[]),
        ],
    );
    let pads = [0, 0, 1, 2, 0, 0, 0, 1];
    same(
        w,
        image,
        &[
            plain(7, "Pad x -> y", &[("pads", Is(pads.to_vec())), ("value", F(3.0))]),
            with(11, vec![i("p", &pads), number("v", 3.0)], "Pad x p v -> y", &[]),
            with(
                18,
                vec![i("p", &[1, 2, 0, 1]), number("v", 3.0), i("a", &[2, 3])],
                "Pad x p v a -> y",
                &[],
            ),
        ],
    );
    same(
        w,
        image,
        &[
            plain(
                7,
                "Slice x -> y",
                &[
                    ("starts", Is(vec![1, -4])),
                    ("ends", Is(vec![5, 99])),
                    ("axes", Is(vec![2, 3])),
                ],
            ),
            with(
                10,
                vec![i("s", &[1, -4]), i("e", &[5, 99]), i("a", &[2, 3])],
                "Slice x s e a -> y",
                &[],
            ),
            with(
                13,
                vec![i("s", &[1, 2]), i("e", &[5, 6]), i("a", &[-2, -1])],
                "Slice x s e a -> y",
                &[],
            ),
        ],
    );
    same(
        w,
        image,
        &[
            plain(7, "Split x -> y z", &[("axis", I(2)), ("split", Is(vec![2, 4]))]),
            with(13, vec![i("s", &[2, 4])], "Split x s -> y z", &[("axis", I(2))]),
        ],
    );
    same(
        w,
        image,
        &[
            plain(7, "Split x -> y z w", &[("axis", I(3))]),
            plain(13, "Split x -> y z w", &[("axis", I(3))]),
            plain(18, "Split x -> y z w", &[("axis", I(3)), ("num_outputs", I(3))]),
        ],
    );
    same(
        w,
        &[2, 1, 6, 1],
        &[
            plain(7, "Squeeze x -> y", &[("axes", Is(vec![1, 3]))]),
            with(13, vec![i("a", &[1, -1])], "Squeeze x a -> y", &[]),
            plain(13, "Squeeze x -> y", &[]),
        ],
    );
    same(
        w,
        image,
        &[
            plain(7, "Unsqueeze x -> y", &[("axes", Is(vec![0, 3]))]),
            with(13, vec![i("a", &[3, 0])], "Unsqueeze x a -> y", &[]),
        ],
    );
    for (name, since) in [
        ("ReduceSum", 13),
        ("ReduceMean", 18),
        ("ReduceMax", 18),
        ("ReduceProd", 18),
        ("ReduceL2", 18),
        ("ReduceLogSumExp", 18),
    ] {
        let text = format!("{name} x -> y");
        same(
            w,
            image,
            &[
                plain(7, &text, &[("axes", Is(vec![1, 3])), ("keepdims", I(0))]),
                plain(since - 1, &text, &[("axes", Is(vec![-1, -3])), ("keepdims", I(0))]),
                with(
                    since,
                    vec![i("a", &[1, 3])],
                    &format!("{name} x a -> y"),
                    &[("keepdims", I(0))],
                ),
                with(
                    28,
                    vec![i("a", &[1, 3])],
                    &format!("{name} x a -> y"),
                    &[("keepdims", I(0))],
                ),
            ],
        );
    }
    same(
        w,
        image,
        &[
            plain(
                7,
                "Upsample x -> y",
                &[("scales", Fs(vec![1.0, 1.0, 2.0, 3.0])), ("mode", T("nearest"))],
            ),
            with(9, vec![f("s", &[1.0, 1.0, 2.0, 3.0])], "Upsample x s -> y", &[]),
            with(10, vec![f("s", &[1.0, 1.0, 2.0, 3.0])], "Resize x s -> y", &[]),
            with(
                11,
                vec![f("r", &[]), f("s", &[1.0, 1.0, 2.0, 3.0])],
                "Resize x r s -> y",
                &[
                    ("coordinate_transformation_mode", T("asymmetric")),
                    ("nearest_mode", T("floor")),
                ],
            ),
            with(
                19,
                vec![f("s", &[2.0, 3.0])],
                "Resize x _ s -> y",
                &[
                    ("axes", Is(vec![2, 3])),
                    ("coordinate_transformation_mode", T("asymmetric")),
                    ("nearest_mode", T("floor")),
                ],
            ),
        ],
    );
    same(
        w,
        image,
        &[
            with(
                10,
                vec![f("s", &[1.0, 1.0, 1.5, 0.5])],
                "Resize x s -> y",
                &[("mode", T("linear"))],
            ),
            with(
                11,
                vec![f("r", &[]), f("s", &[]), i("t", &[2, 4, 9, 3])],
                "Resize x r s t -> y",
                &[
                    ("mode", T("linear")),
                    ("coordinate_transformation_mode", T("asymmetric")),
                ],
            ),
            with(
                28,
                vec![f("s", &[1.0, 1.0, 1.5, 0.5])],
                "Resize x _ s -> y",
                &[
                    ("mode", T("linear")),
                    ("coordinate_transformation_mode", T("asymmetric")),
                ],
            ),
        ],
    );
    same(
        w,
        &[2, 8, 1],
        &[
            plain(17, "DFT x -> y", &[("axis", I(1))]),
            plain(17, "DFT x -> y", &[]),
            with(20, vec![ints("a", &[], &[1])], "DFT x _ a -> y", &[]),
            plain(20, "DFT x -> y", &[]),
        ],
    );
    same(
        w,
        image,
        &[
            plain(7, "Dropout x -> y", &[("ratio", F(0.3))]),
            plain(10, "Dropout x -> y", &[]),
            with(12, vec![number("r", 0.3)], "Dropout x r -> y", &[]),
            plain(22, "Identity x -> y", &[]),
        ],
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn names_and_defaults_that_changed_mean_the_same() {
    let image = &[2, 4, 6, 6];
    let mut wrong = vec![];
    let w = &mut wrong;
    for name in ["Softmax", "LogSoftmax", "Hardmax"] {
        let text = format!("{name} x -> y");
        same(
            w,
            &[6, 10],
            &[
                plain(7, &text, &[]),
                plain(11, &text, &[("axis", I(-1))]),
                plain(13, &text, &[]),
            ],
        );
        // All axes from the given one on were one.
        let flat = |inner: Message| {
            let back = i("s", &[2, 4, 6, 6]);
            (
                13,
                vec![back],
                vec![
                    op("Flatten x -> t", &[("axis", I(2))]),
                    inner,
                    op("Reshape u s -> y", &[]),
                ],
            )
        };
        same(
            w,
            image,
            &[
                plain(11, &text, &[("axis", I(2))]),
                flat(op(&format!("{name} t -> u"), &[])),
            ],
        );
    }
    let repeated = |v: &[f32]| v.iter().flat_map(|&v| [v, v]).collect::<Vec<f32>>();
    same(
        w,
        image,
        &[
            with(
                18,
                vec![f("s", &[0.5, 2.0]), f("b", &[1.0, -1.0])],
                "GroupNormalization x s b -> y",
                &[("num_groups", I(2))],
            ),
            with(
                21,
                vec![f("s", &repeated(&[0.5, 2.0])), f("b", &repeated(&[1.0, -1.0]))],
                "GroupNormalization x s b -> y",
                &[("num_groups", I(2))],
            ),
        ],
    );
    let statistics = || {
        let names = ["s", "b", "m"].map(|n| f(n, &[0.5, -1.0, 1.5, 2.0]));
        let mut all = names.to_vec();
        all.push(f("v", &[0.5, 1.0, 1.5, 2.0]));
        all
    };
    let normalized = |opset| with(opset, statistics(), "BatchNormalization x s b m v -> y", &[]);
    same(
        w,
        image,
        &[
            normalized(7),
            normalized(9),
            normalized(14),
            normalized(15),
            normalized(28),
        ],
    );
    let grid: Vec<f32> = (0..2 * 3 * 2 * 2).map(|k| k as f32 / 11.0 - 1.0).collect();
    let sampled = |opset, mode| {
        let grid = floats("g", &[2, 3, 2, 2], &grid);
        with(opset, vec![grid], "GridSample x g -> y", &[("mode", T(mode))])
    };
    same(
        w,
        image,
        &[sampled(16, "bilinear"), sampled(20, "linear"), sampled(28, "linear")],
    );
    same(w, image, &[sampled(16, "bicubic"), sampled(20, "cubic")]);
    let regions = |opset, attributes: &[(&str, A)]| {
        let mut all = vec![
            ("output_height", I(2)),
            ("output_width", I(2)),
            ("sampling_ratio", I(2)),
        ];
        all.extend_from_slice(attributes);
        let r = floats("r", &[2, 4], &[0.0, 1.0, 4.0, 5.0, 1.0, 1.0, 3.0, 2.0]);
        with(opset, vec![r, i("n", &[0, 1])], "RoiAlign x r n -> y", &all)
    };
    same(
        w,
        image,
        &[
            regions(10, &[]),
            regions(16, &[("coordinate_transformation_mode", T("output_half_pixel"))]),
        ],
    );
    let kernel = ("kernel_shape", Is(vec![3, 3]));
    for (name, opsets) in [
        ("MaxPool", [7, 8, 10, 12, 22]),
        ("AveragePool", [7, 10, 11, 19, 22]),
        ("LpPool", [7, 11, 18, 22, 28]),
    ] {
        let pooled = |opset| {
            plain(
                opset,
                &format!("{name} x -> y"),
                &[kernel.clone(), ("strides", Is(vec![2, 1]))],
            )
        };
        same(w, image, &opsets.map(pooled));
    }
    let rows = |name: &str, opset, index: i64| {
        with(
            opset,
            vec![i("t", &[0, index])],
            &format!("{name} x t -> y"),
            &[("axis", I(1))],
        )
    };
    same(
        w,
        image,
        &[rows("Gather", 7, 3), rows("Gather", 11, -1), rows("Gather", 28, 3)],
    );
    let scattered = |name: &str, opset| {
        let constants = vec![ints("t", &[1, 2], &[1, 0]), floats("u", &[1, 2], &[7.0, 8.0])];
        with(opset, constants, &format!("{name} x t u -> y"), &[("axis", I(0))])
    };
    same(
        w,
        &[3, 2],
        &[
            scattered("Scatter", 9),
            scattered("Scatter", 10),
            scattered("ScatterElements", 11),
            scattered("ScatterElements", 18),
        ],
    );
    let unchanged = [
        ("Relu x -> y", vec![]),
        ("Elu x -> y", vec![("alpha", F(0.5))]),
        ("Flatten x -> y", vec![("axis", I(2))]),
        ("LRN x -> y", vec![("size", I(3))]),
        ("Transpose x -> y", vec![("perm", Is(vec![3, 1, 0, 2]))]),
        ("Concat x x -> y", vec![("axis", I(1))]),
        ("Cast x -> y", vec![("to", I(7))]),
        ("Shape x -> y", vec![]),
        ("ArgMax x -> y", vec![("axis", I(2))]),
        ("GlobalMaxPool x -> y", vec![]),
        ("Sum x x x -> y", vec![]),
        ("Max x x -> y", vec![]),
        ("Gemm a a b -> y", vec![("transB", I(1)), ("alpha", F(0.5))]),
    ];
    for (text, attributes) in &unchanged {
        let all: Vec<Edition> = (7..=28)
            .map(|opset| {
                let constants = vec![floats("a", &[2, 2], &[1.0, 2.0, 3.0, 4.0]), f("b", &[1.0, -1.0])];
                with(opset, constants, text, attributes)
            })
            .collect();
        same(w, image, &all);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn an_operator_outside_its_opsets_is_refused_with_them() {
    for (opset, text, expected) in [
        (
            12,
            "HardSwish x -> y",
            "this operator at opset 12 is not supported; expected opset 14 to 28",
        ),
        (
            11,
            "Scatter x x x -> y",
            "this operator at opset 11 is not supported; expected opset 9 to 10",
        ),
        (
            10,
            "Upsample x x -> y",
            "this operator at opset 10 is not supported; expected opset 7 to 9",
        ),
        (29, "Relu x -> y", "opset 29 is not supported; expected 1 to 28"),
    ] {
        let e = answer(&[2, 2], &plain(opset, text, &[])).expect_err(text);
        assert!(e.contains(expected), "{e}");
    }
}
