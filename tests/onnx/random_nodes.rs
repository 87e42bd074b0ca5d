//! Nodes of every operator with random operands and attributes: an error or a graph, never a panic. TLC_NODES says how many of
//! each.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tlc::onnx::{ImportError, ImportOptions, import, signature, supported};
use tlc::{CompileOptions, compile_ir};

use crate::proto::A::{F, I, Is, T};
use crate::proto::*;

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
    "output_dtype",
    "output_height",
    "output_width",
    "p",
    "periodic",
    "precision",
    "q_num_heads",
    "reverse",
    "right_window_size",
    "rotary_embedding_dim",
    "sample_size",
    "sampling_ratio",
    "saturate",
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

/// Attributes that name an element type.
const ELEMENT_TYPES: &[&str] = &["dtype", "output_dtype", "precision", "to"];
/// Element types that are kept and converted but not computed in.
const STORAGE: &[i64] = &[17, 18, 19, 20, 21, 22, 23, 24, 25, 26];

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

    /// Attributes out of `known`, and now and then another.
    fn attributes(&mut self, known: &[&'static str]) -> Vec<Message> {
        let mut all: Vec<(&str, A)> = vec![];
        for _ in 0..self.roll(6) {
            let name = match self.roll(40) {
                0 => self.pick(NUMBERS),
                1 => self.pick(LISTS),
                2 => self.pick(FLOATS),
                3 => self.pick(TEXTS).0,
                _ if known.is_empty() => continue,
                _ => self.pick(known),
            };
            let usual = self.roll(8) > 0;
            let value = if usual && LISTS.contains(&name) {
                Is((0..self.roll(6)).map(|_| self.number()).collect())
            } else if usual && FLOATS.contains(&name) {
                F(self.pick(&[0.0, 1.0, -1.5, f32::NAN, f32::INFINITY, 1e-30, 1e30]))
            } else if let Some((_, texts)) = TEXTS.iter().find(|(n, _)| usual && *n == name) {
                T(self.pick(texts))
            } else if usual && ELEMENT_TYPES.contains(&name) {
                I(self.roll(30) as i64)
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
    let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
    let (mut imported, mut panicked) = (0, BTreeSet::new());
    for (name, first, last) in supported() {
        // Subgraphs and recursion have tests of their own.
        for _ in 0..nodes {
            let version = first + dice.roll((last - first + 1) as usize) as i64;
            let declared = signature(name, version).expect("it is supported");
            let known: Vec<&str> = declared.attributes().map(|(name, _)| name).collect();
            let (least, most) = (*declared.inputs().start(), names.len().min(*declared.inputs().end()));
            let count = match dice.roll(20) {
                0 => dice.roll(names.len() + 1),
                _ => least + dice.roll(most - least + 1),
            };
            let storage = (dice.roll(5) == 0).then(|| dice.pick(STORAGE));
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
                        let element = match storage {
                            Some(storage) if dice.roll(4) > 0 => storage,
                            _ => dice.pick(&[FLOAT, FLOAT, FLOAT, INT64, BOOL, 2, 10]),
                        };
                        inputs.push(value(input, element, &dims));
                        operands.push(input);
                    }
                }
            }
            let results = ["out", "p", "q", "r"];
            let wanted = 1 + dice.roll(results.len());
            let node = node(name, "it", &operands, &results[..wanted]).messages(5, dice.attributes(&known));
            let g = graph(vec![node], constants, inputs, vec![result("out")]);
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
