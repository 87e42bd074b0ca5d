//! Operators of the domain `com.microsoft` that ONNX Runtime's optimizers write, beside the nodes of ONNX's own operators that define them.

use half::f16;
use tlc::onnx::{ImportOptions, import};
use tlc::{CompileOptions, HostTensor, compile_ir};
use tlc_ir::DType;

use crate::proto::*;
use A::{F, Fs, I, Is, T};

const I32: i64 = 6;

fn element(dtype: DType) -> i64 {
    match dtype {
        DType::F32 => FLOAT,
        DType::F16 => 10,
        DType::U8 => 2,
        DType::I8 => 3,
        DType::I32 => I32,
        DType::I64 => INT64,
        other => panic!("{other}"),
    }
}

/// Numbers between -1 and 1 that look random, others for each name.
pub fn of(name: &str, shape: &[usize]) -> HostTensor {
    let mut state = name
        .bytes()
        .fold(7u32, |s, b| s.wrapping_mul(31).wrapping_add(b.into()));
    let numbers: Vec<f32> = (0..shape.iter().product())
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect();
    HostTensor::from_slice(shape, &numbers).unwrap()
}

pub fn whole(shape: &[usize], numbers: &[i32]) -> HostTensor {
    HostTensor::from_slice(shape, numbers).unwrap()
}

/// What a model of these nodes makes of the operands.
/// The results of nodes of ONNX and `com.microsoft`.
pub fn run(
    nodes: Vec<Message>,
    constants: Vec<Message>,
    operands: &[(&str, HostTensor)],
    results: &[&str],
) -> Vec<HostTensor> {
    let input = |(name, t): &(&str, HostTensor)| {
        let dims: Vec<D> = t.shape().iter().map(|&d| D::N(d as i64)).collect();
        value(name, element(t.dtype()), &dims)
    };
    let inputs = operands.iter().map(input).collect();
    let outputs = results.iter().map(|name| result(name)).collect();
    let bytes = Message::default()
        .int(1, 8)
        .message(7, graph(nodes, constants, inputs, outputs))
        .message(8, opset("", 17))
        .message(8, opset("com.microsoft", 1))
        .0;
    let imported = import(&bytes, &ImportOptions::default()).unwrap_or_else(|e| panic!("{results:?}: {e}"));
    let e = compile_ir(&imported.graph, &CompileOptions::default()).unwrap();
    let inputs: Vec<_> = operands.iter().map(|(_, t)| t.into()).collect();
    e.run(&inputs).unwrap().iter().map(|t| t.to_host()).collect()
}

/// Compares a node with the nodes that define it; `constants` are theirs.
pub fn defined(
    fused: &str,
    attributes: &[(&str, A)],
    operands: &[(&str, HostTensor)],
    constants: Vec<Message>,
    definition: &[(&str, &[(&str, A)])],
) {
    let results: Vec<&str> = fused.split(" -> ").nth(1).unwrap().split(' ').collect();
    let node = op(fused, attributes).bytes(7, "com.microsoft");
    let found = run(vec![node], constants.clone(), operands, &results);
    let nodes = definition
        .iter()
        .map(|(text, attributes)| op(text, attributes))
        .collect();
    let expected = run(nodes, constants, operands, &results);
    for ((found, expected), name) in found.iter().zip(&expected).zip(&results) {
        assert_eq!(
            (found.shape(), found.dtype()),
            (expected.shape(), expected.dtype()),
            "{fused}: {name}"
        );
        for i in 0..found.len() {
            let (v, of) = (found.get(i).as_f64(), expected.get(i).as_f64());
            assert!(
                (v - of).abs() <= 1e-5 * (1.0 + of.abs()),
                "{fused}: {name} {i}: {v} for {of}"
            );
        }
    }
}

pub fn number(name: &str, v: f32) -> Message {
    floats(name, &[], &[v])
}

#[test]
fn activations_are_their_formulas() {
    let x = || ("x", of("x", &[2, 3, 5]));
    let c = || ("c", of("c", &[5]));
    let erf = || vec![number("half", 0.5), number("root", 0.5f32.sqrt()), number("one", 1.0)];
    let gelu: [(&str, &[(&str, A)]); 5] = [
        ("Mul z half -> h", &[]),
        ("Mul z root -> r", &[]),
        ("Erf r -> e", &[]),
        ("Add e one -> f", &[]),
        ("Mul h f -> y", &[]),
    ];
    let with = |first: (&'static str, &'static [(&'static str, A)])| [&[first], &gelu[..]].concat();
    defined("Gelu x -> y", &[], &[x()], erf(), &with(("Identity x -> z", &[])));
    defined(
        "BiasGelu x c -> y",
        &[],
        &[x(), c()],
        erf(),
        &with(("Add x c -> z", &[])),
    );

    let tanh: [(&str, &[(&str, A)]); 8] = [
        ("Mul z z -> q", &[]),
        ("Mul q cubic -> q1", &[]),
        ("Add q1 one -> q2", &[]),
        ("Mul q2 rate -> q3", &[]),
        ("Mul q3 z -> q4", &[]),
        ("Tanh q4 -> t", &[]),
        ("Add t one -> u", &[]),
        ("Mul u z -> v", &[]),
    ];
    let constants = || {
        let rate = (2.0 / std::f32::consts::PI).sqrt();
        vec![
            number("cubic", 0.044715),
            number("one", 1.0),
            number("rate", rate),
            number("half", 0.5),
        ]
    };
    let last: (&str, &[(&str, A)]) = ("Mul v half -> y", &[]);
    let with = |first: (&'static str, &'static [(&'static str, A)])| [&[first], &tanh[..], &[last]].concat();
    defined(
        "FastGelu x -> y",
        &[],
        &[x()],
        constants(),
        &with(("Identity x -> z", &[])),
    );
    defined(
        "FastGelu x c -> y",
        &[],
        &[x(), c()],
        constants(),
        &with(("Add x c -> z", &[])),
    );

    for alpha in [None, Some(0.5), Some(-1.25)] {
        let attributes: Vec<_> = alpha.map(|a| ("alpha", F(a))).into_iter().collect();
        defined(
            "QuickGelu x -> y",
            &attributes,
            &[x()],
            vec![number("alpha", alpha.unwrap_or(1.702))],
            &[
                ("Mul x alpha -> z", &[]),
                ("Sigmoid z -> s", &[]),
                ("Mul x s -> y", &[]),
            ],
        );
    }
}

#[test]
fn products_are_those_of_their_matrices_turned() {
    for (attributes, a, b, first, second) in [
        (vec![("alpha", F(0.25))], [2, 3, 4], [2, 4, 5], [0, 1, 2], [0, 1, 2]),
        (
            vec![("alpha", F(0.25)), ("transA", I(1)), ("transB", I(1))],
            [2, 4, 3],
            [2, 5, 4],
            [0, 2, 1],
            [0, 2, 1],
        ),
        (
            vec![("alpha", F(0.25)), ("transBatchA", I(1))],
            [3, 2, 4],
            [2, 4, 5],
            [1, 0, 2],
            [0, 1, 2],
        ),
        (
            vec![
                ("alpha", F(0.25)),
                ("transBatchA", I(1)),
                ("transA", I(1)),
                ("transBatchB", I(1)),
                ("transB", I(1)),
            ],
            [4, 2, 3],
            [5, 2, 4],
            [1, 2, 0],
            [1, 2, 0],
        ),
    ] {
        defined(
            "FusedMatMul a b -> y",
            &attributes,
            &[("a", of("a", &a)), ("b", of("b", &b))],
            vec![number("alpha", 0.25)],
            &[
                ("Transpose a -> c", &[("perm", Is(first.to_vec()))]),
                ("Transpose b -> d", &[("perm", Is(second.to_vec()))]),
                ("MatMul c d -> e", &[]),
                ("Mul e alpha -> y", &[]),
            ],
        );
    }
    let operands = || [("a", of("a", &[3, 4])), ("b", of("b", &[5, 4])), ("c", of("c", &[5]))];
    let plain = || [("transB", I(1)), ("alpha", F(0.5)), ("beta", F(2.0))];
    let leaky = [
        &plain()[..],
        &[("activation", T("LeakyRelu")), ("activation_alpha", F(0.3))],
    ]
    .concat();
    let gemm = plain();
    let definition: [(&str, &[(&str, A)]); 2] =
        [("Gemm a b c -> z", &gemm), ("LeakyRelu z -> y", &[("alpha", F(0.3))])];
    defined("FusedGemm a b c -> y", &leaky, &operands(), vec![], &definition);
}

/// An activation's name and parameters, and its node with its attributes.
type Activation = (&'static str, Vec<f32>, &'static str, Vec<(&'static str, A)>);

#[test]
fn convolutions_are_followed_by_what_they_name() {
    let operands = || {
        [
            ("x", of("x", &[2, 3, 6, 5])),
            ("w", of("w", &[4, 3, 3, 2])),
            ("c", of("c", &[4])),
            ("z", of("z", &[2, 4, 6, 6])),
        ]
    };
    let settings = || [("pads", Is(vec![1, 1, 1, 1])), ("kernel_shape", Is(vec![3, 2]))];
    let cases: [Activation; 6] = [
        ("Relu", vec![], "Relu v -> y", vec![]),
        ("Sigmoid", vec![], "Sigmoid v -> y", vec![]),
        ("Tanh", vec![], "Tanh v -> y", vec![]),
        ("LeakyRelu", vec![0.2], "LeakyRelu v -> y", vec![("alpha", F(0.2))]),
        ("Clip", vec![-0.25, 0.5], "Clip v low high -> y", vec![]),
        (
            "HardSigmoid",
            vec![0.3, 0.4],
            "HardSigmoid v -> y",
            vec![("alpha", F(0.3)), ("beta", F(0.4))],
        ),
    ];
    for (name, parameters, node, attributes) in cases {
        let mut own = settings().to_vec();
        own.push(("activation", T(name)));
        if !parameters.is_empty() {
            own.push(("activation_params", Fs(parameters)));
        }
        let bounds = || vec![number("low", -0.25), number("high", 0.5)];
        let plain = settings();
        let conv: (&str, &[(&str, A)]) = ("Conv x w c -> u", &plain);
        defined(
            "FusedConv x w c z -> y",
            &own,
            &operands(),
            bounds(),
            &[conv, ("Add u z -> v", &[]), (node, &attributes)],
        );
        defined(
            "FusedConv x w c -> y",
            &own,
            &operands(),
            bounds(),
            &[conv, ("Identity u -> v", &[]), (node, &attributes)],
        );
    }
}

#[test]
fn norms_are_of_sums() {
    let (x, s) = (("x", of("x", &[2, 3, 6])), ("s", of("s", &[1, 3, 6])));
    let vector = |name: &'static str| (name, of(name, &[6]));
    let eps = || [("epsilon", F(1e-3))];
    let layer = eps();
    defined(
        "SkipLayerNormalization x s g b c -> y m i t",
        &eps(),
        &[x.clone(), s.clone(), vector("g"), vector("b"), vector("c")],
        vec![],
        &[
            ("Add x s -> u", &[]),
            ("Add u c -> t", &[]),
            ("LayerNormalization t g b -> y m i", &layer),
        ],
    );
    defined(
        "SkipLayerNormalization x s g -> y",
        &eps(),
        &[x.clone(), s.clone(), vector("g")],
        vec![],
        &[("Add x s -> u", &[]), ("LayerNormalization u g -> y", &layer)],
    );
    let last: &[(&str, A)] = &[("axes", Is(vec![-1]))];
    let rms: [(&str, &[(&str, A)]); 7] = [
        ("Mul t t -> q", &[]),
        ("ReduceMean q -> r", last),
        ("Add r eps -> e", &[]),
        ("Sqrt e -> d", &[]),
        ("Reciprocal d -> i", &[]),
        ("Mul t i -> n", &[]),
        ("Mul n g -> y", &[]),
    ];
    let sums: [(&str, &[(&str, A)]); 2] = [("Add x s -> u", &[]), ("Add u c -> t", &[])];
    defined(
        "SkipSimplifiedLayerNormalization x s g c -> y m i t",
        &eps(),
        &[x.clone(), s, vector("g"), vector("c")],
        vec![number("eps", 1e-3)],
        &[&sums[..], &[("ReduceMean t -> m", last)], &rms].concat(),
    );
    let own: (&str, &[(&str, A)]) = ("Identity x -> t", &[]);
    defined(
        "SimplifiedLayerNormalization x g -> y i",
        &eps(),
        &[x.clone(), vector("g")],
        vec![number("eps", 1e-3)],
        &[&[own], &rms[..]].concat(),
    );
    // ONNX Runtime's tools write it in ONNX's own domain too.
    let node = || op("SimplifiedLayerNormalization x g -> y", &eps());
    let operands = [x, vector("g")];
    let found = run(vec![node()], vec![], &operands, &["y"]);
    let expected = run(vec![node().bytes(7, "com.microsoft")], vec![], &operands, &["y"]);
    assert_eq!(found[0].bytes(), expected[0].bytes());
}

#[test]
fn embeddings_are_looked_up_added_and_normed() {
    let operands = [
        ("ids", whole(&[2, 3], &[4, 0, 2, 1, 3, 4])),
        ("segments", whole(&[2, 3], &[0, 1, 1, 1, 0, 0])),
        ("words", of("words", &[5, 6])),
        ("places", of("places", &[4, 6])),
        ("parts", of("parts", &[2, 6])),
        ("g", of("g", &[6])),
        ("b", of("b", &[6])),
        ("mask", whole(&[2, 3], &[1, 1, 0, 1, 1, 1])),
        ("at", whole(&[1, 3], &[3, 1, 0])),
    ];
    let sum: [(&str, &[(&str, A)]); 3] = [
        ("Gather words ids -> w", &[]),
        ("Gather parts segments -> p", &[]),
        ("Add w p -> wp", &[]),
    ];
    let layer: (&str, &[(&str, A)]) = ("LayerNormalization t g b -> y", &[("epsilon", F(1e-12))]);
    defined(
        "EmbedLayerNormalization ids segments words places parts g b mask at -> y n t",
        &[],
        &operands,
        vec![ints("one", &[1], &[1])],
        &[
            &sum[..],
            &[
                ("Gather places at -> l", &[]),
                ("Add wp l -> t", &[]),
                layer,
                ("ReduceSum mask one -> n", &[("keepdims", I(0))]),
            ],
        ]
        .concat(),
    );
    defined(
        "EmbedLayerNormalization ids segments words places parts g b -> y",
        &[],
        &operands,
        vec![ints("zero", &[1], &[0]), ints("three", &[1], &[3])],
        &[
            &sum[..],
            &[("Slice places zero three -> l", &[]), ("Add wp l -> t", &[]), layer],
        ]
        .concat(),
    );
}

#[test]
fn heads_turn_by_the_angles_of_their_positions() {
    let tables = || [("cos", of("cos", &[8, 2])), ("sin", of("sin", &[8, 2]))];
    let turn: [(&str, &[(&str, A)]); 6] = [
        ("Mul a c -> ac", &[]),
        ("Mul b s -> bs", &[]),
        ("Sub ac bs -> l", &[]),
        ("Mul a s -> as", &[]),
        ("Mul b c -> bc", &[]),
        ("Add as bc -> r", &[]),
    ];
    let angles: [(&str, &[(&str, A)]); 4] = [
        ("Gather cos at -> c0", &[]),
        ("Unsqueeze c0 one -> c", &[]),
        ("Gather sin at -> s0", &[]),
        ("Unsqueeze s0 one -> s", &[]),
    ];
    let positions = HostTensor::from_slice(&[2, 3], &[4i64, 0, 7, 1, 2, 3]).unwrap();
    let [cos, sin] = tables();
    defined(
        "RotaryEmbedding x at cos sin -> y",
        &[],
        &[("x", of("x", &[2, 3, 3, 4])), ("at", positions), cos, sin],
        vec![ints("one", &[1], &[1])],
        &[
            &angles[..],
            &[("Split x -> a b", &[("axis", I(3))])],
            &turn,
            &[("Concat l r -> y", &[("axis", I(3))])],
        ]
        .concat(),
    );
    // Of heads that lie side by side and of pairs, from a first position on.
    let first = HostTensor::from_slice(&[1], &[2i64]).unwrap();
    let [cos, sin] = tables();
    defined(
        "RotaryEmbedding x first cos sin -> y",
        &[
            ("interleaved", I(1)),
            ("num_heads", I(3)),
            ("rotary_embedding_dim", I(4)),
        ],
        &[("x", of("x", &[2, 3, 15])), ("first", first), cos, sin],
        vec![
            ints("one", &[1], &[1]),
            ints("steps", &[3], &[0, 1, 2]),
            ints("heads", &[4], &[2, 3, 3, 5]),
            ints("sizes", &[2], &[4, 1]),
            ints("pairs", &[5], &[2, 3, 3, 2, 2]),
            ints("whole", &[4], &[2, 3, 3, 4]),
            ints("flat", &[3], &[2, 3, 15]),
            ints("minus", &[1], &[-1]),
            ints("last", &[1], &[4]),
        ],
        &[
            &[("Add steps first -> at", &[] as &[(&str, A)])],
            &angles[..],
            &[
                ("Reshape x heads -> h", &[]),
                ("Split h sizes -> turned kept", &[("axis", I(3))]),
                ("Reshape turned pairs -> p", &[]),
                ("Split p -> a0 b0", &[("axis", I(4))]),
                ("Squeeze a0 last -> a", &[]),
                ("Squeeze b0 last -> b", &[]),
            ],
            &turn,
            &[
                ("Unsqueeze l minus -> l1", &[]),
                ("Unsqueeze r minus -> r1", &[]),
                ("Concat l1 r1 -> q", &[("axis", I(4))]),
                ("Reshape q whole -> w", &[]),
                ("Concat w kept -> v", &[("axis", I(3))]),
                ("Reshape v flat -> y", &[]),
            ],
        ]
        .concat(),
    );
}

#[test]
fn products_of_bytes_are_scaled() {
    let weights: Vec<i8> = (0..15).map(|i| (i * 53 % 200 - 100) as i8).collect();
    let b = ("b", HostTensor::from_slice(&[5, 3], &weights).unwrap());
    let scales = ("bs", HostTensor::from_slice(&[3], &[0.01f32, 0.02, 0.05]).unwrap());
    let zeros = ("bz", HostTensor::from_slice(&[3], &[3i8, -7, 0]).unwrap());
    let c = ("c", of("c", &[3]));
    let scaled: [(&str, &[(&str, A)]); 5] = [
        ("MatMulInteger a b az bz -> p", &[]),
        ("Cast p -> f", &[("to", I(FLOAT))]),
        ("Mul as bs -> s", &[]),
        ("Mul f s -> g", &[]),
        ("Add g c -> y", &[]),
    ];
    let bytes: Vec<u8> = (0..20).map(|i| (i * 37 % 256) as u8).collect();
    defined(
        "MatMulIntegerToFloat a b as bs az bz c -> y",
        &[],
        &[
            ("a", HostTensor::from_slice(&[2, 2, 5], &bytes).unwrap()),
            b.clone(),
            ("as", HostTensor::from_slice(&[], &[0.03f32]).unwrap()),
            scales.clone(),
            ("az", HostTensor::from_slice(&[], &[9u8]).unwrap()),
            zeros.clone(),
            c.clone(),
        ],
        vec![],
        &scaled,
    );
    // Of scales of f16 the result is f16.
    let half = |shape: &[usize], values: &[f32]| {
        let values: Vec<f16> = values.iter().map(|v| f16::from_f32(*v)).collect();
        HostTensor::from_slice(shape, &values).unwrap()
    };
    let in_f32: [(&str, &[(&str, A)]); 9] = [
        ("Cast as -> af", &[("to", I(FLOAT))]),
        ("Cast bs -> bf", &[("to", I(FLOAT))]),
        ("Cast c -> cf", &[("to", I(FLOAT))]),
        ("MatMulInteger a b az bz -> p", &[]),
        ("Cast p -> f", &[("to", I(FLOAT))]),
        ("Mul af bf -> s", &[]),
        ("Mul f s -> g", &[]),
        ("Add g cf -> h", &[]),
        ("Cast h -> y", &[("to", I(10))]),
    ];
    let few: Vec<u8> = (0..20).map(|i| (i * 7 % 16) as u8).collect();
    defined(
        "MatMulIntegerToFloat a b as bs az bz c -> y",
        &[],
        &[
            ("a", HostTensor::from_slice(&[2, 2, 5], &few).unwrap()),
            (
                "b",
                HostTensor::from_slice(&[5, 3], &(-7..8).collect::<Vec<i8>>()).unwrap(),
            ),
            ("as", half(&[], &[0.5])),
            ("bs", half(&[3], &[0.25, 0.5, 1.0])),
            ("az", HostTensor::from_slice(&[], &[9u8]).unwrap()),
            zeros.clone(),
            ("c", half(&[3], &[1.0, -2.0, 0.5])),
        ],
        vec![],
        &in_f32,
    );
    let bytes: (&str, &[(&str, A)]) = ("DynamicQuantizeLinear x -> a as az", &[]);
    defined(
        "DynamicQuantizeMatMul x b bs bz c -> y",
        &[],
        &[("x", of("x", &[2, 2, 5])), b, scales, zeros, c],
        vec![],
        &[&[bytes], &scaled[..]].concat(),
    );
}
