//! Reductions, products, windows and resampling.

use super::Of::{Below, F32};
use super::{Operand, case, check, f, i, numbers};
use crate::proto::A::{F, I, Is, T};
use crate::proto::*;

#[test]
fn reductions_and_normalizations() {
    let x = ("x", F32, "n 4 l m");
    let one =
        |name, opset, text: &str, attributes: &[(&str, A)]| case(name, opset, &[x], vec![], vec![op(text, attributes)]);
    let scaled = |name, opset, text: &str, attributes: &[(&str, A)]| {
        let constants = vec![
            f("s", &[4]),
            f("b", &[4]),
            f("c", &[4]),
            numbers("v", &[0.5, 1.0, 1.5, 2.0]),
        ];
        case(name, opset, &[x], constants, vec![op(text, attributes)])
    };
    check(vec![
        one("sum", 11, "ReduceSum x -> y", &[("axes", Is(vec![2, 3]))]),
        one(
            "mean",
            13,
            "ReduceMean x -> y",
            &[("axes", Is(vec![0, -1])), ("keepdims", I(0))],
        ),
        one("max of all", 13, "ReduceMax x -> y", &[]),
        one("log sum exp", 13, "ReduceLogSumExp x -> y", &[("axes", Is(vec![2]))]),
        one("arg max", 13, "ArgMax x -> y", &[("axis", I(2))]),
        one(
            "last arg max",
            13,
            "ArgMax x -> y",
            &[("axis", I(3)), ("select_last_index", I(1))],
        ),
        one("softmax", 13, "Softmax x -> y", &[("axis", I(2))]),
        one("softmax of old", 11, "Softmax x -> y", &[("axis", I(1))]),
        one("log softmax", 13, "LogSoftmax x -> y", &[("axis", I(3))]),
        one("hardmax", 13, "Hardmax x -> y", &[("axis", I(2))]).bound(&[[1, 5, 4], [3, 8, 6], [2, 6, 0]]),
        one("mean variance", 13, "MeanVarianceNormalization x -> y", &[]),
        one("lp norm", 1, "LpNormalization x -> y", &[("axis", I(2)), ("p", I(1))]).at_opset(17),
        one("lrn", 13, "LRN x -> y", &[("size", I(3))]),
        one("global average", 1, "GlobalAveragePool x -> y", &[]).at_opset(17),
        one("global max", 1, "GlobalMaxPool x -> y", &[]).at_opset(17),
        scaled("batch norm", 15, "BatchNormalization x s b c v -> y", &[]),
        scaled("instance norm", 6, "InstanceNormalization x s b -> y", &[]).at_opset(17),
        case(
            "group norm of any channels",
            21,
            &[("x", F32, "2 n l 3"), ("s", F32, "n"), ("b", F32, "n")],
            vec![],
            vec![op("GroupNormalization x s b -> y", &[("num_groups", I(2))])],
        )
        .bound(&[[4, 5, 1], [2, 3, 1], [6, 1, 1]]),
        case(
            "lrn of no channels",
            13,
            &[("x", F32, "2 n l 3")],
            vec![],
            vec![op("LRN x -> y", &[("size", I(3))])],
        )
        .bound(&[[0, 5, 1], [4, 3, 1], [1, 3, 1]]),
        scaled(
            "group norm",
            21,
            "GroupNormalization x s b -> y",
            &[("num_groups", I(2))],
        ),
        case(
            "layer norm",
            17,
            &[("x", F32, "n l 6")],
            vec![f("s", &[6]), f("b", &[6])],
            vec![op("LayerNormalization x s b -> y", &[])],
        ),
        case(
            "rms norm",
            23,
            &[("x", F32, "n l 6")],
            vec![f("s", &[6])],
            vec![op("RMSNormalization x s -> y", &[])],
        ),
        case(
            "running sum",
            14,
            &[x],
            vec![ints("a", &[], &[2])],
            vec![op("CumSum x a -> y", &[("reverse", I(1)), ("exclusive", I(1))])],
        ),
        case(
            "loss",
            13,
            &[("x", F32, "n 5 l"), ("t", Below(5), "n l")],
            vec![],
            vec![op("SoftmaxCrossEntropyLoss x t -> y z", &[("ignore_index", I(2))])],
        )
        .two(),
        case(
            "quantize by channel",
            13,
            &[x],
            vec![numbers("s", &[0.1, 0.2, 0.3, 0.4])],
            vec![op("QuantizeLinear x s -> q", &[]), op("DequantizeLinear q s -> y", &[])],
        ),
    ]);
}

#[test]
fn products_and_attention() {
    let heads = |n: i64| vec![("q_num_heads", I(n)), ("kv_num_heads", I(n))];
    check(vec![
        case(
            "matmul",
            13,
            &[("x", F32, "n l 6"), ("w", F32, "n 6 m")],
            vec![],
            vec![op("MatMul x w -> y", &[])],
        ),
        case(
            "matmul with weights",
            13,
            &[("x", F32, "n l 6")],
            vec![f("w", &[6, 5])],
            vec![op("MatMul x w -> y", &[])],
        ),
        case(
            "gemm",
            13,
            &[("x", F32, "6 n")],
            vec![f("w", &[5, 6]), f("b", &[5])],
            vec![op(
                "Gemm x w b -> y",
                &[("transA", I(1)), ("transB", I(1)), ("alpha", F(0.5))],
            )],
        ),
        case(
            "einsum",
            13,
            &[("x", F32, "n l 6"), ("w", F32, "n m 6")],
            vec![],
            vec![op("Einsum x w -> y", &[("equation", T("bid,bjd->bij"))])],
        ),
        case(
            "attention",
            23,
            &[("q", F32, "n l 8"), ("k", F32, "n m 8"), ("v", F32, "n m 8")],
            vec![],
            vec![op("Attention q k v -> y", &heads(2))],
        ),
        case(
            "attention with a mask",
            23,
            &[
                ("q", F32, "n 2 l 4"),
                ("k", F32, "n 2 m 4"),
                ("v", F32, "n 2 m 3"),
                ("b", F32, "l m"),
            ],
            vec![],
            vec![op("Attention q k v b -> y", &[("softcap", F(2.0))])],
        ),
        case(
            "causal attention with a cache",
            23,
            &[
                ("q", F32, "n 4 l 4"),
                ("k", F32, "n 2 l 4"),
                ("v", F32, "n 2 l 4"),
                ("pk", F32, "n 2 m 4"),
                ("pv", F32, "n 2 m 4"),
            ],
            vec![],
            vec![op("Attention q k v _ pk pv -> y z", &[("is_causal", I(1))])],
        )
        .two(),
        case(
            "rotary",
            23,
            &[("x", F32, "n l 8"), ("p", Below(9), "n l")],
            vec![f("c", &[9, 2]), f("s", &[9, 2])],
            vec![op("RotaryEmbedding x c s p -> y", &[("num_heads", I(2))])],
        ),
        case(
            "linear attention",
            27,
            &[
                ("q", F32, "n l 8"),
                ("k", F32, "n l 4"),
                ("v", F32, "n l 6"),
                ("g", F32, "n l 4"),
            ],
            vec![],
            vec![
                op("Abs g -> a", &[]),
                op("Neg a -> d", &[]),
                op(
                    "LinearAttention q k v _ d -> y z",
                    &[
                        ("q_num_heads", I(4)),
                        ("kv_num_heads", I(2)),
                        ("update_rule", T("gated")),
                    ],
                ),
            ],
        )
        .two(),
        case(
            "causal convolution",
            27,
            &[("x", F32, "n 3 l")],
            vec![f("w", &[3, 1, 4]), f("b", &[3])],
            vec![op("CausalConvWithState x w b -> y z", &[("activation", T("silu"))])],
        )
        .two(),
        case(
            "dft",
            17,
            &[("x", F32, "n l 1")],
            vec![],
            vec![op("DFT x -> y", &[("onesided", I(1))])],
        ),
        case(
            "inverse dft",
            17,
            &[("x", F32, "n l 2")],
            vec![],
            vec![op("DFT x -> y", &[("inverse", I(1))])],
        ),
        case(
            "stft",
            17,
            &[("x", F32, "n l 1")],
            vec![ints("s", &[], &[2]), f("w", &[4])],
            vec![op("STFT x s w -> y", &[])],
        ),
        case("det", 11, &[("x", F32, "n l 3 3")], vec![], vec![op("Det x -> y", &[])]),
    ]);
}

#[test]
fn convolutions_and_pools() {
    let image = ("x", F32, "n 4 l m");
    let conv = |name, attributes: &[(&str, A)]| {
        let constants = vec![f("w", &[6, 4, 3, 3]), f("b", &[6])];
        case(name, 11, &[image], constants, vec![op("Conv x w b -> y", attributes)])
    };
    let turned = |name, attributes: &[(&str, A)]| {
        let constants = vec![f("w", &[4, 3, 3, 3]), f("b", &[3])];
        case(
            name,
            11,
            &[image],
            constants,
            vec![op("ConvTranspose x w b -> y", attributes)],
        )
    };
    let pool = |name, opset, text: &str, attributes: &[(&str, A)]| {
        let mut all = vec![("kernel_shape", Is(vec![3, 2]))];
        all.extend_from_slice(attributes);
        case(name, opset, &[image], vec![], vec![op(text, &all)])
    };
    let strides = |a, b| ("strides", Is(vec![a, b]));
    let pads = ("pads", Is(vec![1, 0, 1, 1]));
    // Where the weight's extents are symbols the node says the window.
    let weighted = |name, text: &str, x: &'static str, w: &'static str, attributes: &[(&str, A)]| {
        let mut all = vec![("kernel_shape", Is(vec![3, 2]))];
        all.extend_from_slice(attributes);
        case(
            name,
            11,
            &[("x", F32, x), ("w", F32, w), ("b", F32, "m")],
            vec![],
            vec![op(text, &all)],
        )
    };
    check(vec![
        weighted("conv of any channels", "Conv x w b -> y", "2 n 5 6", "m n 3 2", &[]).bound(&[
            [1, 1, 1],
            [4, 1, 6],
            [3, 1, 2],
        ]),
        weighted(
            "conv of any channels in groups",
            "Conv x w b -> y",
            "2 n 5 6",
            "m l 3 2",
            &[("group", I(2)), ("pads", Is(vec![1, 0, 1, 1])), strides(2, 1)],
        )
        .bound(&[[4, 2, 6], [2, 1, 2], [6, 3, 4]]),
        weighted(
            "conv of a window that is named",
            "Conv x w b -> y",
            "2 4 5 6",
            "m 4 n l",
            &[("auto_pad", T("SAME_UPPER"))],
        )
        .bound(&[[3, 2, 1], [3, 2, 6]]),
        weighted(
            "transposed of any channels",
            "ConvTranspose x w b -> y",
            "2 n 5 6",
            "n m 3 2",
            &[strides(2, 2)],
        )
        .bound(&[[4, 1, 6], [1, 1, 1], [3, 1, 2]]),
        case(
            "rnn whose units the node counts",
            14,
            &[("x", F32, "4 3 n"), ("w", F32, "1 m n"), ("r", F32, "1 m l")],
            vec![],
            vec![op("RNN x w r -> y", &[("hidden_size", I(5))])],
        )
        .bound(&[[2, 5, 5], [1, 5, 5]]),
        case(
            "lstm whose units the node counts",
            14,
            &[
                ("x", F32, "4 3 2"),
                ("w", F32, "1 m 2"),
                ("r", F32, "1 m l"),
                ("b", F32, "1 n"),
            ],
            vec![],
            vec![op("LSTM x w r b -> y", &[("hidden_size", I(5))])],
        )
        .bound(&[[40, 5, 20]]),
        conv("conv", &[]),
        conv("conv padded", &[("pads", Is(vec![1, 1, 1, 1])), strides(2, 1)]),
        conv(
            "conv dilated",
            &[("pads", Is(vec![2, 2, 2, 2])), ("dilations", Is(vec![2, 2]))],
        ),
        conv("conv same", &[("auto_pad", T("SAME_UPPER")), strides(2, 2)]),
        conv("conv same lower", &[("auto_pad", T("SAME_LOWER")), strides(2, 3)]),
        turned("transposed", &[]),
        turned(
            "transposed by 2",
            &[
                strides(2, 2),
                ("pads", Is(vec![1, 1, 1, 1])),
                ("output_padding", Is(vec![1, 1])),
            ],
        ),
        turned("transposed same", &[strides(2, 2), ("auto_pad", T("SAME_UPPER"))]),
        pool("max pool", 12, "MaxPool x -> y z", &[strides(2, 2), pads.clone()]).two(),
        pool(
            "max pool ceil",
            12,
            "MaxPool x -> y z",
            &[strides(2, 2), ("ceil_mode", I(1))],
        )
        .two(),
        pool(
            "max pool by columns",
            12,
            "MaxPool x -> y z",
            &[strides(1, 2), ("storage_order", I(1))],
        )
        .two(),
        pool(
            "max pool same",
            12,
            "MaxPool x -> y",
            &[strides(2, 2), ("auto_pad", T("SAME_LOWER"))],
        ),
        pool("average pool", 19, "AveragePool x -> y", &[strides(2, 2), pads.clone()]),
        pool(
            "average pool ceil",
            19,
            "AveragePool x -> y",
            &[
                strides(2, 3),
                pads.clone(),
                ("ceil_mode", I(1)),
                ("count_include_pad", I(1)),
            ],
        ),
        pool("lp pool", 18, "LpPool x -> y", &[strides(2, 2)]),
        case(
            "unpooled",
            12,
            &[image],
            vec![],
            vec![
                op("MaxPool x -> p t", &[("kernel_shape", Is(vec![2, 2])), strides(2, 2)]),
                op("MaxUnpool p t -> y", &[("kernel_shape", Is(vec![2, 2])), strides(2, 2)]),
            ],
        ),
        case(
            "col2im",
            18,
            &[("x", F32, "n 12 12")],
            vec![i("s", &[5, 4]), i("b", &[2, 2])],
            vec![op("Col2Im x s b -> y", &[])],
        ),
        case(
            "deformed",
            19,
            &[("x", F32, "n 4 5 6"), ("o", F32, "n 8 4 5")],
            vec![f("w", &[3, 4, 2, 2])],
            vec![op("DeformConv x w o -> y", &[])],
        ),
        case(
            "regions",
            16,
            &[image, ("r", F32, "3 4"), ("t", Below(1), "3")],
            vec![],
            vec![op(
                "RoiAlign x r t -> y",
                &[
                    ("output_height", I(2)),
                    ("output_width", I(3)),
                    ("sampling_ratio", I(2)),
                ],
            )],
        ),
    ]);
}

#[test]
fn resampling() {
    let image = ("x", F32, "n 2 l m");
    let by = |name, scales: &[f32], attributes: &[(&str, A)]| {
        let constants = vec![numbers("s", scales)];
        case(name, 19, &[image], constants, vec![op("Resize x _ s -> y", attributes)])
    };
    let to = |name, attributes: &[(&str, A)]| {
        let mut all = vec![("axes", Is(vec![2, 3]))];
        all.extend_from_slice(attributes);
        case(
            name,
            19,
            &[image],
            vec![i("s", &[7, 5])],
            vec![op("Resize x _ _ s -> y", &all)],
        )
    };
    let linear = ("mode", T("linear"));
    let cubic = ("mode", T("cubic"));
    let place = |how| ("coordinate_transformation_mode", T(how));
    check(vec![
        by("nearest by 2", &[1.0, 1.0, 2.0, 2.0], &[]),
        by(
            "nearest by 2, asymmetric",
            &[1.0, 1.0, 2.0, 3.0],
            &[place("asymmetric"), ("nearest_mode", T("floor"))],
        ),
        by("nearest by 1.5", &[1.0, 1.0, 1.5, 0.6], &[("nearest_mode", T("ceil"))]),
        by("linear by 2", &[1.0, 1.0, 2.0, 2.0], std::slice::from_ref(&linear)),
        by(
            "linear by 0.6",
            &[1.0, 1.0, 0.6, 1.3],
            &[linear.clone(), place("half_pixel_symmetric")],
        ),
        by(
            "linear aligned",
            &[1.0, 1.0, 2.0, 1.5],
            &[linear.clone(), place("align_corners")],
        ),
        by(
            "cubic",
            &[1.0, 1.0, 1.7, 0.8],
            &[cubic.clone(), ("exclude_outside", I(1))],
        ),
        by(
            "antialias",
            &[1.0, 1.0, 0.6, 0.3],
            &[linear.clone(), ("antialias", I(1))],
        ),
        case(
            "antialias of a batch and channels that are numbers in the sizes",
            19,
            &[("x", F32, "n l 8 9")],
            vec![i("s", &[2, 3, 4, 5])],
            vec![op("Resize x _ _ s -> y", &[linear.clone(), ("antialias", I(1))])],
        )
        .bound(&[[2, 3, 1]]),
        to("linear to a size", std::slice::from_ref(&linear)),
        to("cubic to a size", &[cubic, place("pytorch_half_pixel")]),
        case(
            "resize like another",
            19,
            &[image, ("w", F32, "m l")],
            vec![],
            vec![
                op("Shape w -> s", &[]),
                op("Resize x _ _ s -> y", &[("axes", Is(vec![2, 3])), linear.clone()]),
            ],
        ),
        case(
            "upsample",
            9,
            &[image],
            vec![numbers("s", &[1.0, 1.0, 2.0, 1.5])],
            vec![op("Upsample x s -> y", &[linear])],
        ),
        case(
            "grid sample",
            20,
            &[image, ("g", F32, "n l 3 2")],
            vec![],
            vec![op("GridSample x g -> y", &[("padding_mode", T("reflection"))])],
        ),
        case(
            "affine grid",
            20,
            &[("x", F32, "n 2 3"), image_like()],
            vec![],
            vec![op("Shape w -> s", &[]), op("AffineGrid x s -> y", &[])],
        ),
    ]);
}

fn image_like() -> Operand {
    ("w", F32, "n 2 l m")
}
