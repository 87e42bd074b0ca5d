//! Nodes that break an operator's rules: refused with a sentence, whatever is wrong with them.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tlc::onnx::{ImportError, ImportOptions, import, supported};
use tlc::{CompileOptions, compile_ir};
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
        "a size of -7; expected a positive number",
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

/// Attributes that operators ask for, by what they usually hold.
const NUMBERS: &[&str] = &[
    "align_corners",
    "allowzero",
    "antialias",
    "axis",
    "batch_axis",
    "batch_dims",
    "block_size",
    "blocksize",
    "ceil_mode",
    "count_include_pad",
    "detect_negative",
    "direction",
    "dtype",
    "end",
    "exclude_outside",
    "exclusive",
    "fmod",
    "group",
    "ignore_index",
    "inverse",
    "is_causal",
    "k",
    "keepdims",
    "kv_num_heads",
    "left_window_size",
    "max_gram_length",
    "max_skip_count",
    "min_gram_length",
    "noop_with_empty_axes",
    "num_groups",
    "num_heads",
    "num_outputs",
    "offset_group",
    "onesided",
    "output_datatype",
    "output_height",
    "output_width",
    "p",
    "periodic",
    "q_num_heads",
    "reverse",
    "right_window_size",
    "rotary_embedding_dim",
    "sample_size",
    "sampling_ratio",
    "select_last_index",
    "size",
    "start",
    "storage_order",
    "time_axis",
    "to",
    "training_mode",
    "transA",
    "transB",
    "upper",
];
const LISTS: &[&str] = &[
    "axes",
    "dilations",
    "ends",
    "kernel_shape",
    "ngram_counts",
    "ngram_indexes",
    "output_padding",
    "output_shape",
    "pads",
    "perm",
    "pool_int64s",
    "pooled_shape",
    "repeats",
    "scales",
    "shape",
    "split",
    "starts",
    "strides",
    "value_ints",
];
const FLOATS: &[&str] = &[
    "alpha",
    "beta",
    "bias",
    "cubic_coeff_a",
    "epsilon",
    "extrapolation_value",
    "gamma",
    "high",
    "lambd",
    "low",
    "max",
    "mean",
    "min",
    "momentum",
    "scale",
    "seed",
    "softcap",
    "spatial_scale",
    "value",
    "value_float",
];
const TEXTS: &[(&str, &[&str])] = &[
    ("auto_pad", &["SAME_UPPER", "VALID", "x"]),
    (
        "mode",
        &[
            "linear", "nearest", "cubic", "constant", "reflect", "CRD", "max", "TF", "",
        ],
    ),
    (
        "coordinate_transformation_mode",
        &["align_corners", "tf_crop_and_resize", "half_pixel"],
    ),
    ("reduction", &["none", "add", "mean", "sum"]),
    ("update_rule", &["linear", "gated", "delta", "gated_delta"]),
    ("padding_mode", &["border", "reflection"]),
    ("equation", &["ij,jk->ik", "...", "ii", "ij->", "->", "ij,"]),
    ("approximate", &["tanh"]),
    ("keep_aspect_ratio_policy", &["not_larger"]),
    ("activation", &["silu"]),
];

struct Dice(u64);

impl Dice {
    fn roll(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }

    fn number(&mut self) -> i64 {
        match self.roll(12) {
            0 => i64::MIN,
            1 => i64::MAX,
            2 => -(self.roll(1 << 20) as i64),
            3 => 1 << self.roll(62),
            4 | 5 => -1,
            _ => self.roll(5) as i64,
        }
    }

    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.roll(all.len())]
    }

    fn attributes(&mut self) -> Vec<Message> {
        let mut all: Vec<(&str, A)> = vec![];
        for _ in 0..self.roll(6) {
            let name = match self.roll(4) {
                0 => self.pick(NUMBERS),
                1 => self.pick(LISTS),
                2 => self.pick(FLOATS),
                _ => self.pick(TEXTS).0,
            };
            let usual = self.roll(8) > 0;
            let value = if usual && LISTS.contains(&name) {
                Is((0..self.roll(6)).map(|_| self.number()).collect())
            } else if usual && FLOATS.contains(&name) {
                F(self.pick(&[0.0, 1.0, -1.5, f32::NAN, f32::INFINITY, 1e-30, 1e30]))
            } else if let Some((_, texts)) = TEXTS.iter().find(|(n, _)| usual && *n == name) {
                T(self.pick(texts))
            } else {
                I(self.number())
            };
            all.retain(|(n, _)| *n != name);
            all.push((name, value));
        }
        all.iter().map(|(name, value)| attribute(name, value)).collect()
    }
}

#[test]
fn no_node_makes_the_import_panic() {
    let nodes = std::env::var("TLC_NODES")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(100);
    let mut dice = Dice(7);
    let names = ["a", "b", "c", "d", "e", "f", "g"];
    let (mut imported, mut panicked) = (0, BTreeSet::new());
    for (name, first, last) in supported() {
        // Subgraphs and recursion have tests of their own.
        for _ in 0..nodes {
            let version = first + dice.roll((last - first + 1) as usize) as i64;
            let count = dice.roll(names.len() + 1);
            let (mut inputs, mut constants, mut operands) = (vec![], vec![], vec![]);
            for &input in &names[..count] {
                let rank = dice.roll(6);
                let shape: Vec<i64> = (0..rank).map(|_| dice.pick(&[0, 1, 1, 2, 2, 3, 4])).collect();
                match dice.roll(10) {
                    0 => operands.push(""),
                    1..4 => {
                        let length = dice.roll(5);
                        let data: Vec<i64> = (0..length).map(|_| dice.number()).collect();
                        constants.push(match dice.roll(4) {
                            0 => ints(input, &[], &[dice.number()]),
                            _ => ints(input, &[length as i64], &data),
                        });
                        operands.push(input);
                    }
                    4 => {
                        let data: Vec<f32> = (0..4)
                            .map(|_| dice.pick(&[0.0, 0.5, 1.0, 2.0, -1.0, f32::NAN]))
                            .collect();
                        constants.push(floats(input, &[4], &data));
                        operands.push(input);
                    }
                    _ => {
                        let dims: Vec<D> = shape
                            .iter()
                            .map(|&d| {
                                if d == 4 {
                                    D::Sym(dice.pick(&["n", "m"]))
                                } else {
                                    D::N(d)
                                }
                            })
                            .collect();
                        let element = dice.pick(&[FLOAT, FLOAT, FLOAT, INT64, BOOL, 2, 10]);
                        inputs.push(value(input, element, &dims));
                        operands.push(input);
                    }
                }
            }
            let results = ["out", "p", "q", "r"];
            let wanted = 1 + dice.roll(results.len());
            let node = node(name, "it", &operands, &results[..wanted]).messages(5, dice.attributes());
            let g = graph(vec![node], constants, inputs, vec![value("out", FLOAT, &[])]);
            let bytes = model_of(version, g, vec![]);
            let answer = catch_unwind(AssertUnwindSafe(|| {
                let model = import(&bytes, &ImportOptions::default())?;
                // What cannot be compiled is an error, too.
                let _ = compile_ir(&model.graph, &CompileOptions::default());
                Ok::<_, ImportError>(model)
            }));
            let Ok(answer) = answer else {
                panicked.insert(name);
                continue;
            };
            match answer {
                Ok(model) => {
                    imported += 1;
                    assert_eq!(
                        tlc_ir::graph::verify::verify(&model.graph),
                        [],
                        "{name}: {}",
                        model.graph
                    );
                }
                Err(e) => {
                    let text = e.to_string();
                    assert!(!text.contains('\n') && text.len() < 2000, "{name}: {text}");
                }
            }
        }
    }
    assert!(panicked.is_empty(), "{panicked:?}");
    // Most nodes are nonsense; enough are not.
    assert!(imported > 1000, "{imported}");
}
