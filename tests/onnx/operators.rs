//! Nodes that break an operator's rules: refused with a sentence, whatever is wrong with them.

use tlc::onnx::{ImportOptions, import};
use tlc_formats::ErrorKind;

use crate::proto::*;
use A::{F, Fs, I, Is, T};

/// A model of one node over inputs `x`, `y`, .. of those shapes and the constants.
fn one(version: i64, node: Message, inputs: &[(&str, i64, &[i64])], constants: Vec<Message>) -> Vec<u8> {
    let dims = |shape: &[i64]| shape.iter().map(|&d| D::N(d)).collect::<Vec<D>>();
    let inputs = inputs
        .iter()
        .map(|(name, element, shape)| value(name, *element, &dims(shape)));
    let g = graph(vec![node], constants, inputs.collect(), vec![value("out", FLOAT, &[])]);
    model_of(version, g, vec![])
}

/// ONNX Runtime has no window where the first is larger than the padded axis by up to a stride, and refuses what is larger still.
#[test]
fn where_no_window_fits_the_result_is_empty() {
    let shape_of = |text: &str, size: i64, stride: i64, ceil: bool| -> Result<Vec<usize>, String> {
        let attributes = [
            ("kernel_shape", Is(vec![size, 2])),
            ("strides", Is(vec![stride, 1])),
            ("pads", Is(vec![1, 0, 0, 0])),
            ("ceil_mode", I(ceil.into())),
        ];
        let bytes = one(19, op(text, &attributes), &[("x", FLOAT, &[2, 3, 3, 4])], vec![]);
        let graph = import(&bytes, &ImportOptions::default())
            .map_err(|e| e.to_string())?
            .graph;
        Ok(graph.ty(graph.outputs()[0].node).const_shape().expect("numbers"))
    };
    for text in [
        "MaxPool x -> out",
        "MaxPool x -> out places",
        "AveragePool x -> out",
        "LpPool x -> out",
    ] {
        // The padded axis has 4 elements.
        for (size, stride, ceil, expected) in [
            (4, 1, false, Some(1)),
            (5, 1, false, Some(0)),
            (5, 1, true, Some(0)),
            (5, 2, true, Some(1)),
            (6, 2, false, Some(0)),
            (6, 2, true, Some(0)),
            (7, 2, false, Some(0)),
            (7, 2, true, Some(0)),
            (6, 1, false, None),
            (8, 2, false, None),
        ] {
            let found = shape_of(text, size, stride, ceil);
            match expected {
                Some(n) => assert_eq!(found, Ok(vec![2, 3, n, 3]), "{text} {size} {stride} {ceil}"),
                None => assert!(
                    found.is_err_and(|e| e.contains("a window over")),
                    "{text} {size} {stride} {ceil}"
                ),
            }
        }
    }
}

#[test]
fn an_output_is_of_the_type_that_the_model_declares() {
    let declared = |output: Message| {
        let g = graph(
            vec![op("Shape x -> y", &[])],
            vec![],
            vec![value("x", FLOAT, &[D::N(2)])],
            vec![output],
        );
        import(&model_of(19, g, vec![]), &ImportOptions::default())
    };
    for fits in [value("y", INT64, &[D::N(1)]), value("y", 0, &[D::N(1)]), result("y")] {
        assert!(declared(fits).is_ok());
    }
    // ONNX Runtime warns of another shape and goes on.
    assert!(declared(value("y", INT64, &[D::N(7), D::N(1)])).is_ok());
    let sequence = Message::default()
        .bytes(1, "y")
        .message(2, Message::default().message(4, Message::default()));
    for (other, expected) in [
        (
            value("y", FLOAT, &[D::N(1)]),
            "output 'y': it is i64; expected f32, as the model declares",
        ),
        (
            value("y", 6, &[D::N(1)]),
            "output 'y': it is i64; expected i32, as the model declares",
        ),
        (
            sequence,
            "output 'y': it is a tensor of i64; expected what the model declares, which is no tensor",
        ),
    ] {
        let e = declared(other).map(|_| "a graph").expect_err("another type");
        assert_eq!((e.kind(), e.to_string().as_str()), (ErrorKind::Invalid, expected));
    }
}

#[test]
fn broken_nodes_are_refused_with_the_reason() {
    let image: &[(&str, i64, &[i64])] = &[("x", FLOAT, &[2, 4, 5, 6])];
    let list = |name: &str, data: &[i64]| ints(name, &[data.len() as i64], data);
    let scales = |data: &[f32]| floats("s", &[data.len() as i64], data);
    let mut wrong = vec![];
    let mut refused = |version: i64,
                       text: &str,
                       attributes: &[(&str, A)],
                       inputs: &[(&str, i64, &[i64])],
                       constants: Vec<Message>,
                       expected: &str| {
        let bytes = one(version, op(text, attributes), inputs, constants);
        match import(&bytes, &ImportOptions::default()) {
            Err(e) if e.to_string().contains(expected) && e.kind() == ErrorKind::Invalid => {}
            other => wrong.push(format!(
                "{text} {attributes:?}: expected `{expected}`, found {:?}",
                other.map(|_| "a graph")
            )),
        }
    };
    let two_by_three = ("kernel_shape", Is(vec![2, 3]));
    refused(
        19,
        "Resize x _ s -> out",
        &[("mode", I(1))],
        image,
        vec![scales(&[1.0; 4])],
        "attribute mode holds Int; expected Text",
    );
    refused(
        19,
        "Resize x _ s -> out",
        &[("mode", T("best"))],
        image,
        vec![scales(&[1.0; 4])],
        "mode `best`; expected nearest, linear or cubic",
    );
    refused(
        19,
        "Resize x _ s -> out",
        &[],
        image,
        vec![scales(&[1.0; 3])],
        "do not fit 4 axes",
    );
    refused(
        19,
        "Resize x _ s -> out",
        &[],
        image,
        vec![scales(&[1.0, 1.0, -2.0, 1.0])],
        "a scale of -2; expected a positive number",
    );
    refused(
        19,
        "Resize x _ s -> out",
        &[("axes", Is(vec![2, 2]))],
        image,
        vec![scales(&[2.0, 2.0])],
        "axis 2 is given twice",
    );
    refused(
        19,
        "Resize x _ _ s -> out",
        &[("axes", Is(vec![2, 9]))],
        image,
        vec![list("s", &[7, 7])],
        "axis 9 of a tensor of rank 4",
    );
    refused(
        19,
        "Resize x _ _ s -> out",
        &[("axes", Is(vec![2]))],
        image,
        vec![list("s", &[-7])],
        "a size of -7; expected 0 or more",
    );
    refused(
        19,
        "Resize x _ _ s -> out",
        &[
            ("axes", Is(vec![2])),
            ("coordinate_transformation_mode", T("tf_crop_and_resize")),
        ],
        image,
        vec![list("s", &[7])],
        "no roi; expected one",
    );
    refused(
        9,
        "Upsample x s -> out",
        &[("mode", T("cubic"))],
        image,
        vec![scales(&[1.0; 4])],
        "expected nearest or linear",
    );
    refused(
        20,
        "GridSample x g -> out",
        &[],
        &[image[0], ("g", FLOAT, &[2, 3, 3, 3])],
        vec![],
        "extent 3 on axis 3; expected 2",
    );
    refused(
        20,
        "GridSample x g -> out",
        &[],
        &[image[0], ("g", FLOAT, &[2, 3, 2])],
        vec![],
        "a grid of rank 3",
    );
    refused(
        20,
        "GridSample x g -> out",
        &[("padding_mode", T("wrap"))],
        &[image[0], ("g", FLOAT, &[2, 3, 3, 2])],
        vec![],
        "padding_mode `wrap`",
    );
    refused(
        20,
        "AffineGrid x s -> out",
        &[],
        &[("x", FLOAT, &[2, 2, 3])],
        vec![list("s", &[2, 3, -4, 5])],
        "an extent of -4",
    );
    refused(
        20,
        "AffineGrid x s -> out",
        &[],
        &[("x", FLOAT, &[2, 2, 3])],
        vec![list("s", &[2, 3])],
        "a size of 2 axes; expected 4 or 5",
    );
    refused(
        22,
        "DeformConv x w o -> out",
        &[("offset_group", I(0))],
        &[image[0], ("w", FLOAT, &[3, 4, 2, 2]), ("o", FLOAT, &[2, 8, 4, 5])],
        vec![],
        "offset_group 0; expected a positive number",
    );
    refused(
        22,
        "DeformConv x w o -> out",
        &[],
        &[image[0], ("w", FLOAT, &[3, 4, 2, 2]), ("o", FLOAT, &[2, 8, 4, 4])],
        vec![],
        "the offset has extent 4 on axis 3; expected 5",
    );
    refused(
        12,
        "MaxPool x -> out i",
        &[two_by_three.clone(), ("storage_order", I(2))],
        image,
        vec![],
        "storage_order 2; expected 0 or 1",
    );
    refused(
        12,
        "MaxPool x -> out",
        &[("kernel_shape", Is(vec![2]))],
        image,
        vec![],
        "kernel_shape of 1 axes",
    );
    refused(
        12,
        "MaxPool x -> out",
        &[("kernel_shape", Is(vec![2, -3]))],
        image,
        vec![],
        "kernel_shape of -3",
    );
    refused(
        12,
        "MaxPool x -> out",
        &[two_by_three.clone(), ("strides", Is(vec![1, 0]))],
        image,
        vec![],
        "strides of 0; expected 1 or more",
    );
    refused(
        12,
        "MaxPool x -> out",
        &[two_by_three.clone(), ("pads", Is(vec![1, 0, -1, 0]))],
        image,
        vec![],
        "pads of -1; expected 0 or more",
    );
    refused(
        12,
        "MaxPool x -> out",
        &[two_by_three.clone(), ("auto_pad", T("SOME"))],
        image,
        vec![],
        "auto_pad `SOME`",
    );
    refused(
        12,
        "MaxPool x -> out",
        &[two_by_three.clone(), ("ceil_mode", T("1"))],
        image,
        vec![],
        "attribute ceil_mode holds Text; expected Int",
    );
    refused(
        12,
        "MaxUnpool x i -> out",
        std::slice::from_ref(&two_by_three),
        &[image[0], ("i", FLOAT, &[2, 4, 5, 6])],
        vec![],
        "places of f32",
    );
    refused(
        12,
        "MaxUnpool x i s -> out",
        &[two_by_three],
        &[image[0], ("i", INT64, &[2, 4, 5, 6])],
        vec![list("s", &[2, 4, 5, 5])],
        "an output_shape smaller than",
    );
    refused(
        18,
        "Col2Im x s b -> out",
        &[],
        &[("x", FLOAT, &[2, 8, 7])],
        vec![list("s", &[3, 3]), list("b", &[2, 2])],
        "extent 7 on axis 2; expected 4",
    );
    refused(
        18,
        "Col2Im x s b -> out",
        &[],
        &[("x", FLOAT, &[2, 8, 4])],
        vec![list("s", &[3, 3]), list("b", &[2, 0])],
        "block_shape [2, 0]",
    );
    refused(
        16,
        "RoiAlign x r i -> out",
        &[("sampling_ratio", I(-1))],
        &[image[0], ("r", FLOAT, &[3, 4]), ("i", INT64, &[3])],
        vec![],
        "sampling_ratio -1",
    );
    refused(
        16,
        "RoiAlign x r i -> out",
        &[("sampling_ratio", I(2))],
        &[image[0], ("r", FLOAT, &[3, 5]), ("i", INT64, &[3])],
        vec![],
        "the regions has extent 5 on axis 1; expected 4",
    );
    refused(
        16,
        "MaxRoiPool x r -> out",
        &[("pooled_shape", Is(vec![2, 0]))],
        &[image[0], ("r", FLOAT, &[3, 5])],
        vec![],
        "expected two positive numbers",
    );
    refused(
        10,
        "ReverseSequence x n -> out",
        &[("time_axis", I(2))],
        &[image[0], ("n", INT64, &[2])],
        vec![],
        "batch_axis 1 and time_axis 2",
    );
    refused(
        18,
        "CenterCropPad x s -> out",
        &[],
        image,
        vec![list("s", &[1, 2])],
        "2 extents for 4 axes",
    );
    refused(
        18,
        "CenterCropPad x s -> out",
        &[("axes", Is(vec![0]))],
        image,
        vec![list("s", &[-1])],
        "an extent of -1",
    );
    refused(
        17,
        "DFT x -> out",
        &[("axis", I(4))],
        image,
        vec![],
        "axis 4 of a tensor of rank 4",
    );
    refused(
        17,
        "DFT x -> out",
        &[],
        image,
        vec![],
        "a last axis of one (real) or two (complex)",
    );
    refused(
        17,
        "DFT x n -> out",
        &[],
        &[("x", FLOAT, &[2, 4, 1])],
        vec![ints("n", &[], &[0])],
        "dft_length 0; expected a positive number",
    );
    refused(
        17,
        "STFT x n -> out",
        &[],
        &[("x", FLOAT, &[2, 4, 1])],
        vec![ints("n", &[], &[0])],
        "frame_step",
    );
    refused(
        17,
        "HannWindow n -> out",
        &[],
        &[],
        vec![ints("n", &[], &[-4])],
        "expected one",
    );
    refused(
        17,
        "MelWeightMatrix a b c l h -> out",
        &[],
        &[],
        vec![
            ints("a", &[], &[4]),
            ints("b", &[], &[16]),
            ints("c", &[], &[8000]),
            floats("l", &[], &[0.0]),
            floats("h", &[], &[9000.0]),
        ],
        "expected edges below half the sample rate",
    );
    refused(11, "Det x -> out", &[], image, vec![], "a square matrix");
    refused(
        22,
        "RandomNormal -> out",
        &[("shape", Is(vec![2, -1]))],
        &[],
        vec![],
        "an extent of -1; expected 0 or more",
    );
    refused(
        22,
        "RandomNormalLike x -> out",
        &[("dtype", I(7))],
        image,
        vec![],
        "random numbers of i64; expected floats",
    );
    refused(
        22,
        "Bernoulli x -> out",
        &[],
        &[("x", INT64, &[2])],
        vec![],
        "random numbers of i64",
    );
    refused(22, "Multinomial x -> out", &[], image, vec![], "rank 4");
    refused(
        22,
        "Dropout x r t -> out",
        &[],
        &[image[0], ("r", FLOAT, &[2]), ("t", BOOL, &[])],
        vec![],
        "not one number",
    );
    refused(
        27,
        "LinearAttention q k v -> out",
        &[("q_num_heads", I(2)), ("kv_num_heads", I(2))],
        &[
            ("q", FLOAT, &[1, 3, 4]),
            ("k", FLOAT, &[1, 3, 4]),
            ("v", FLOAT, &[1, 3, 4]),
        ],
        vec![],
        "decay or beta",
    );
    refused(
        27,
        "LinearAttention q k v -> out",
        &[
            ("q_num_heads", I(3)),
            ("kv_num_heads", I(2)),
            ("update_rule", T("linear")),
        ],
        &[
            ("q", FLOAT, &[1, 3, 4]),
            ("k", FLOAT, &[1, 3, 4]),
            ("v", FLOAT, &[1, 3, 4]),
        ],
        vec![],
        "3 query heads for 2",
    );
    refused(
        27,
        "CausalConvWithState x w -> out",
        &[],
        &[("x", FLOAT, &[1, 3, 4]), ("w", FLOAT, &[3, 2, 4])],
        vec![],
        "a weight that is not [channels, 1, size]",
    );
    refused(
        23,
        "Attention q k v -> out",
        &[],
        &[
            ("q", FLOAT, &[1, 3, 4]),
            ("k", FLOAT, &[1, 3, 4]),
            ("v", FLOAT, &[1, 3, 4]),
        ],
        vec![],
        "without a number of heads",
    );
    refused(
        23,
        "Attention q k v m -> out",
        &[],
        &[
            ("q", FLOAT, &[1, 2, 3, 4]),
            ("k", FLOAT, &[1, 2, 3, 4]),
            ("v", FLOAT, &[1, 2, 3, 4]),
            ("m", INT64, &[3, 3]),
        ],
        vec![],
        "a mask of i64",
    );
    refused(
        9,
        "TfIdfVectorizer x -> out",
        &[
            ("mode", T("TF")),
            ("min_gram_length", I(1)),
            ("max_gram_length", I(1)),
            ("max_skip_count", I(0)),
            ("ngram_counts", Is(vec![9])),
            ("ngram_indexes", Is(vec![0])),
            ("pool_int64s", Is(vec![1])),
        ],
        &[("x", INT64, &[4])],
        vec![],
        "expected ascending starts",
    );
    refused(
        28,
        "SwiGLU x y -> out",
        &[("alpha", Fs(vec![1.0]))],
        &[image[0], ("y", FLOAT, &[2, 4, 5, 6])],
        vec![],
        "attribute alpha holds Floats; expected Float",
    );
    refused(
        28,
        "SwiGLU x y -> out",
        &[("alpha", F(1.0))],
        &[image[0], ("y", FLOAT, &[2, 4, 5, 1])],
        vec![],
        "of different shapes",
    );
    refused(
        11,
        "ConvTranspose x w -> out",
        &[("output_shape", Is(vec![-3, 4]))],
        &[image[0], ("w", FLOAT, &[4, 2, 2, 2])],
        vec![],
        "an output_shape of -3",
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Antialiased, the ratio of the extents says how many neighbours count, and that is a number of the compiled graph: what is open is
/// not supported, which is something else than a model that is wrong.
#[test]
fn antialiased_sizes_over_an_open_axis_are_unsupported() {
    let resized = |mode: &'static str, shape: &[D]| {
        let node = op(
            "Resize x _ _ s -> out",
            &[("mode", T(mode)), ("antialias", I(1)), ("axes", Is(vec![3, 2]))],
        );
        let sizes = vec![ints("s", &[2], &[3, 2])];
        let g = graph(
            vec![node],
            sizes,
            vec![value("x", FLOAT, shape)],
            vec![value("out", FLOAT, &[])],
        );
        import(&model_of(19, g, vec![]), &ImportOptions::default())
            .map_err(|e| (e.kind(), e.to_string()))
            .map(|_| ())
    };
    let open = [D::N(1), D::N(2), D::Sym("h"), D::N(6)];
    for mode in ["linear", "cubic"] {
        let (kind, text) = resized(mode, &open).expect_err("the axis is open");
        assert_eq!(kind, ErrorKind::Unsupported, "{text}");
        assert!(
            text.contains("antialias by sizes over axis 2 of symbolic extent; expected scales"),
            "{text}"
        );
    }
    // The nearest one is no other for it.
    assert_eq!(resized("nearest", &open), Ok(()));
    assert_eq!(resized("linear", &[D::N(1), D::N(2), D::N(5), D::N(6)]), Ok(()));
}
