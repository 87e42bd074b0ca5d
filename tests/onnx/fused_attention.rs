//! Attention of the domain `com.microsoft`, beside the products and the softmax that it stands for.

use half::f16;
use tlc::HostTensor;
use tlc::onnx::{ImportOptions, import};

use crate::fused::{defined, number, of, run, whole};
use crate::proto::*;
use A::{F, I, Is};

type Node = (&'static str, Vec<(&'static str, A)>);

/// Queries, keys and values `[2, 3, 8]` in four heads: `xq` as `q`, the others as `k1` and `v1`.
fn heads() -> Vec<Node> {
    let mut all = vec![];
    for (apart, turned) in [
        ("Reshape xq apart -> q0", "Transpose q0 -> q"),
        ("Reshape xk apart -> k0", "Transpose k0 -> k1"),
        ("Reshape xv apart -> v0", "Transpose v0 -> v1"),
    ] {
        all.push((apart, vec![]));
        all.push((turned, vec![("perm", Is(vec![0, 2, 1, 3]))]));
    }
    all
}

/// From `q`, `k` and `v` and what is added to the scores, `m`.
fn attended() -> Vec<Node> {
    vec![
        ("Transpose k -> kt", vec![("perm", Is(vec![0, 1, 3, 2]))]),
        ("MatMul q kt -> p", vec![]),
        ("Mul p scale -> r", vec![]),
        ("Add r m -> u", vec![]),
        ("Softmax u -> shares", vec![]),
        ("MatMul shares v -> h", vec![]),
        ("Transpose h -> h1", vec![("perm", Is(vec![0, 2, 1, 3]))]),
        ("Reshape h1 joined -> y", vec![]),
    ]
}

fn check(
    fused: &str,
    attributes: &[(&str, A)],
    operands: &[(&str, HostTensor)],
    constants: Vec<Message>,
    nodes: &[Vec<Node>],
) {
    let mut all = vec![
        ints("apart", &[4], &[2, 3, 4, 2]),
        ints("joined", &[3], &[2, 3, 8]),
        number("scale", 0.5f32.sqrt()),
    ];
    all.extend(constants);
    let nodes: Vec<(&str, &[(&str, A)])> = nodes.iter().flatten().map(|(text, a)| (*text, &a[..])).collect();
    defined(fused, attributes, operands, all, &nodes);
}

/// The most keys of a sequence, as i32.
fn total(keys: i64) -> Message {
    Message::default().int(2, 6).int(5, keys).bytes(8, "total")
}

/// What hides keys behind the query's own, of which `past` come before all queries.
fn order(name: &str, past: usize) -> Message {
    let hidden = |q: usize, k: usize| if k > q + past { -1e30 } else { 0.0 };
    let all: Vec<f32> = (0..3).flat_map(|q| (0..3 + past).map(move |k| hidden(q, k))).collect();
    floats(name, &[3, 3 + past as i64], &all)
}

#[test]
fn attention_is_the_products_and_the_softmax_that_it_stands_for() {
    let operands = || {
        [
            ("x", of("x", &[2, 3, 5])),
            ("w", of("w", &[5, 24])),
            ("c", of("c", &[24])),
        ]
    };
    let projected = || -> Vec<Node> {
        vec![
            ("MatMul x w -> xw", vec![]),
            ("Add xw c -> all", vec![]),
            ("Split all -> xq xk xv", vec![("axis", I(2))]),
        ]
    };
    let own = || -> Vec<Node> { vec![("Identity k1 -> k", vec![]), ("Identity v1 -> v", vec![])] };
    let four = || vec![("num_heads", I(4))];
    let nodes = || [projected(), heads(), own(), attended()];
    check(
        "Attention x w c -> y",
        &four(),
        &operands(),
        vec![number("m", 0.0)],
        &nodes(),
    );
    let causal = || [four(), vec![("unidirectional", I(1))]].concat();
    check(
        "Attention x w c -> y",
        &causal(),
        &operands(),
        vec![order("m", 0)],
        &nodes(),
    );

    // A mask of keys, of queries and keys, of lengths, and of ends and starts.
    let low = -30.0;
    let filtered = || [four(), vec![("mask_filter_value", F(low))]].concat();
    let masks = [
        (
            whole(&[2, 3], &[1, 0, 1, 1, 1, 0]),
            vec![2, 1, 1, 3],
            vec![0.0, low, 0.0, 0.0, 0.0, low],
        ),
        (
            whole(&[2, 3, 3], &[1, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 0, 1, 0, 1, 1, 0]),
            vec![2, 1, 3, 3],
            vec![
                0.0, low, 0.0, 0.0, 0.0, low, low, low, 0.0, 0.0, 0.0, 0.0, low, 0.0, low, 0.0, 0.0, low,
            ],
        ),
        (
            whole(&[2], &[2, 3]),
            vec![2, 1, 1, 3],
            vec![0.0, 0.0, low, 0.0, 0.0, 0.0],
        ),
        (
            whole(&[4], &[3, 2, 1, 0]),
            vec![2, 1, 1, 3],
            vec![low, 0.0, 0.0, 0.0, 0.0, low],
        ),
    ];
    for (mask, shape, added) in masks {
        let operands = [&operands()[..], &[("mask", mask)]].concat();
        check(
            "Attention x w c mask -> y",
            &filtered(),
            &operands,
            vec![floats("m", &shape, &added)],
            &nodes(),
        );
    }

    let past = ("past", of("past", &[2, 2, 4, 1, 2]));
    let bias = ("b", of("b", &[2, 1, 3, 4]));
    let joined: Vec<Node> = vec![
        ("Split past -> pk0 pv0", vec![("axis", I(0))]),
        ("Squeeze pk0 zero -> pk", vec![]),
        ("Squeeze pv0 zero -> pv", vec![]),
        ("Concat pk k1 -> k", vec![("axis", I(2))]),
        ("Concat pv v1 -> v", vec![("axis", I(2))]),
        ("Unsqueeze k zero -> uk", vec![]),
        ("Unsqueeze v zero -> uv", vec![]),
        ("Concat uk uv -> present", vec![("axis", I(0))]),
        ("Add order b -> m", vec![]),
    ];
    check(
        "Attention x w c _ past b -> y present",
        &causal(),
        &[&operands()[..], &[past, bias]].concat(),
        vec![ints("zero", &[1], &[0]), order("order", 1)],
        &[projected(), heads(), joined, attended()],
    );
}

#[test]
fn attention_of_projected_operands_has_their_bias_and_what_is_past() {
    let operands = || {
        [
            ("q0x", of("q", &[2, 3, 8])),
            ("k0x", of("k", &[2, 3, 8])),
            ("v0x", of("v", &[2, 3, 8])),
            ("c", of("c", &[24])),
        ]
    };
    let biased = || -> Vec<Node> {
        vec![
            ("Split c -> cq ck cv", vec![("axis", I(0))]),
            ("Add q0x cq -> xq", vec![]),
            ("Add k0x ck -> xk", vec![]),
            ("Add v0x cv -> xv", vec![]),
        ]
    };
    let own = vec![("Identity k1 -> k", vec![]), ("Identity v1 -> v", vec![])];
    let four = || vec![("num_heads", I(4))];
    check(
        "MultiHeadAttention q0x k0x v0x c -> y k v",
        &four(),
        &operands(),
        vec![number("m", 0.0)],
        &[biased(), heads(), own, attended()],
    );
    let joined: Vec<Node> = vec![
        ("Concat pk k1 -> k", vec![("axis", I(2))]),
        ("Concat pv v1 -> v", vec![("axis", I(2))]),
    ];
    check(
        "MultiHeadAttention q0x k0x v0x c _ _ pk pv -> y k v",
        &[four(), vec![("unidirectional", I(1))]].concat(),
        &[
            &operands()[..],
            &[("pk", of("pk", &[2, 4, 2, 2])), ("pv", of("pv", &[2, 4, 2, 2]))],
        ]
        .concat(),
        vec![order("m", 2)],
        &[biased(), heads(), joined, attended()],
    );
}

/// Queries in four heads, as `q`, and keys and values in two, as `k1` and `v1`.
fn grouped_heads() -> Vec<Node> {
    let mut all = vec![];
    for (apart, turned) in [
        ("Reshape q0x apart -> q0", "Transpose q0 -> q"),
        ("Reshape k0x fewer -> k0", "Transpose k0 -> k1"),
        ("Reshape v0x fewer -> v0", "Transpose v0 -> v1"),
    ] {
        all.push((apart, vec![]));
        all.push((turned, vec![("perm", Is(vec![0, 2, 1, 3]))]));
    }
    all
}

/// Each head of the keys and values `pk1` and `pv1` for two of queries.
fn shared_heads() -> Vec<Node> {
    vec![
        ("Gather pk1 pairs -> k", vec![("axis", I(1))]),
        ("Gather pv1 pairs -> v", vec![("axis", I(1))]),
    ]
}

#[test]
fn grouped_attention_sees_what_is_past_and_what_is_new() {
    let grouped = || vec![("num_heads", I(4)), ("kv_num_heads", I(2))];
    let fewer = || vec![ints("fewer", &[4], &[2, 3, 2, 2]), ints("pairs", &[4], &[0, 0, 1, 1])];
    let operands = || {
        [
            ("q0x", of("q", &[2, 3, 8])),
            ("k0x", of("k", &[2, 3, 4])),
            ("v0x", of("v", &[2, 3, 4])),
            ("pk", of("pk", &[2, 2, 4, 2])),
            ("pv", of("pv", &[2, 2, 4, 2])),
            ("last", whole(&[2], &[6, 6])),
        ]
    };
    let joined: Vec<Node> = vec![
        ("Concat pk k1 -> pk1", vec![("axis", I(2))]),
        ("Concat pv v1 -> pv1", vec![("axis", I(2))]),
    ];
    check(
        "GroupQueryAttention q0x k0x v0x pk pv last total -> y pk1 pv1",
        &grouped(),
        &operands(),
        [fewer(), vec![total(7), order("m", 4)]].concat(),
        &[grouped_heads(), joined, shared_heads(), attended()],
    );
    // A first prompt, of which nothing is past, and of which sequences may be shorter; all in one operand.
    let packed = [("x", of("x", &[2, 3, 16])), ("last", whole(&[2], &[2, 2]))];
    let split: Vec<Node> = vec![("Split x widths -> q0x k0x v0x", vec![("axis", I(2))])];
    let own = vec![("Identity k1 -> pk1", vec![]), ("Identity v1 -> pv1", vec![])];
    let three = || vec![total(3), ints("widths", &[3], &[8, 4, 4])];
    check(
        "GroupQueryAttention x _ _ _ _ last total -> y pk1 pv1",
        &grouped(),
        &packed,
        [fewer(), three(), vec![order("m", 0)]].concat(),
        &[split.clone(), grouped_heads(), own.clone(), shared_heads(), attended()],
    );
    // Two keys back at most, and scores that never leave -1.5 to 1.5.
    let near = floats("m", &[3, 3], &[0.0, -1e30, -1e30, 0.0, 0.0, -1e30, -1e30, 0.0, 0.0]);
    let mut capped = attended();
    capped.splice(
        3..4,
        [
            ("Div r cap -> r1", vec![]),
            ("Tanh r1 -> r2", vec![]),
            ("Mul r2 cap -> r3", vec![]),
            ("Add r3 m -> u", vec![]),
        ],
    );
    check(
        "GroupQueryAttention x _ _ _ _ last total -> y pk1 pv1",
        &[grouped(), vec![("local_window_size", I(2)), ("softcap", F(1.5))]].concat(),
        &packed,
        [fewer(), three(), vec![near, number("cap", 1.5)]].concat(),
        &[split, grouped_heads(), own, shared_heads(), capped],
    );
}

/// A rotary embedding by the place in the sequence, a bias, a scale, and a key without a value that takes its part of the sum.
#[test]
fn a_cache_of_grouped_attention_keeps_its_type() {
    let rounded: [Vec<f16>; 2] = ["pk", "pv"].map(|name| {
        let values = of(name, &[1, 1, 4, 4]);
        let values = values.as_slice::<f32>().unwrap().iter();
        values.map(|v| f16::from_f32(*v)).collect()
    });
    let results = |cache: [HostTensor; 2]| {
        let node = op(
            "GroupQueryAttention q k v pk pv last total -> y ck cv",
            &[("num_heads", I(2)), ("kv_num_heads", I(1))],
        );
        let [pk, pv] = cache;
        let operands = [
            ("q", of("q", &[1, 1, 8])),
            ("k", of("k", &[1, 1, 4])),
            ("v", of("v", &[1, 1, 4])),
            ("pk", pk),
            ("pv", pv),
            ("last", whole(&[1], &[4])),
        ];
        run(
            vec![node.bytes(7, "com.microsoft")],
            vec![total(5)],
            &operands,
            &["y", "ck", "cv"],
        )
    };
    let half = results(
        rounded
            .clone()
            .map(|r| HostTensor::from_slice(&[1, 1, 4, 4], &r).unwrap()),
    );
    let single = results(rounded.map(|r| {
        let wide: Vec<f32> = r.iter().map(|v| v.to_f32()).collect();
        HostTensor::from_slice(&[1, 1, 4, 4], &wide).unwrap()
    }));
    assert_eq!(half[0].as_slice::<f32>().unwrap(), single[0].as_slice::<f32>().unwrap());
    for (half, single) in half.iter().zip(&single).skip(1) {
        assert_eq!(half.shape(), [1, 1, 5, 4]);
        let single = single.as_slice::<f32>().unwrap().iter().map(|v| f16::from_f32(*v));
        assert_eq!(half.as_slice::<f16>().unwrap(), single.collect::<Vec<_>>());
    }
}

#[test]
fn grouped_attention_turns_by_places_and_leaves_a_part_to_a_sink() {
    let operands = || {
        vec![
            ("q0x", of("q", &[2, 3, 8])),
            ("k0x", of("k", &[2, 3, 4])),
            ("v0x", of("v", &[2, 3, 4])),
            ("pk", of("pk", &[2, 2, 4, 2])),
            ("pv", of("pv", &[2, 2, 4, 2])),
            ("last", whole(&[2], &[6, 6])),
            ("cos", of("cos", &[9, 1])),
            ("sin", of("sin", &[9, 1])),
            ("bias", of("bias", &[1, 1, 3, 7])),
            ("sink", of("sink", &[4])),
        ]
    };
    let along = |n: i64| vec![("axis", I(n))];
    let mut turned: Vec<Node> = vec![
        ("Gather cos places -> c", along(0)),
        ("Gather sin places -> s", along(0)),
    ];
    for [parts, ac, bs, real, r#as, bc, imaginary, both] in [
        [
            "Split q -> qa qb",
            "Mul qa c -> q1",
            "Mul qb s -> q2",
            "Sub q1 q2 -> qr",
            "Mul qa s -> q3",
            "Mul qb c -> q4",
            "Add q3 q4 -> qi",
            "Concat qr qi -> qt",
        ],
        [
            "Split k1 -> ka kb",
            "Mul ka c -> k2",
            "Mul kb s -> k3",
            "Sub k2 k3 -> kr",
            "Mul ka s -> k4",
            "Mul kb c -> k5",
            "Add k4 k5 -> ki",
            "Concat kr ki -> kt1",
        ],
    ] {
        turned.extend([
            (parts, along(3)),
            (ac, vec![]),
            (bs, vec![]),
            (real, vec![]),
            (r#as, vec![]),
            (bc, vec![]),
            (imaginary, vec![]),
            (both, along(3)),
        ]);
    }
    let joined: Vec<Node> = vec![("Concat pk kt1 -> pk1", along(2)), ("Concat pv v1 -> pv1", along(2))];
    let sums = |shown: &'static str| -> Vec<Node> {
        vec![
            ("Transpose k -> kt", vec![("perm", Is(vec![0, 1, 3, 2]))]),
            ("MatMul qt kt -> p", vec![]),
            ("Mul p third -> r", vec![]),
            ("Add r bias -> r1", vec![]),
            ("Add r1 m -> u", vec![]),
            (shown, vec![]),
            ("Expand one rows -> column", vec![]),
            ("Concat u column -> u1", along(3)),
            ("Softmax u1 -> all", vec![]),
            ("Split all seen -> shares gone", along(3)),
            ("MatMul shares v -> h", vec![]),
            ("Transpose h -> h1", vec![("perm", Is(vec![0, 2, 1, 3]))]),
            ("Reshape h1 joined -> y", vec![]),
        ]
    };
    let constants = || {
        vec![
            ints("fewer", &[4], &[2, 3, 2, 2]),
            ints("pairs", &[4], &[0, 0, 1, 1]),
            total(7),
            ints("places", &[3], &[4, 5, 6]),
            ints("rows", &[4], &[2, 4, 3, 1]),
            ints("heads", &[4], &[1, 4, 1, 1]),
            ints("seen", &[2], &[7, 1]),
            number("third", 0.3),
            number("none", 0.0),
            order("m", 4),
        ]
    };
    let attributes = [
        ("num_heads", I(4)),
        ("kv_num_heads", I(2)),
        ("do_rotary", I(1)),
        ("scale", F(0.3)),
    ];
    check(
        "GroupQueryAttention q0x k0x v0x pk pv last total cos sin _ bias sink -> y pk1 pv1",
        &attributes,
        &operands(),
        constants(),
        &[
            grouped_heads(),
            turned.clone(),
            joined.clone(),
            shared_heads(),
            sums("Reshape sink heads -> one"),
        ],
    );
    // A key of score 0, for all heads.
    check(
        "GroupQueryAttention q0x k0x v0x pk pv last total cos sin _ bias -> y pk1 pv1",
        &[&attributes[..], &[("smooth_softmax", I(1))]].concat(),
        &operands()[..9],
        constants(),
        &[
            grouped_heads(),
            turned,
            joined,
            shared_heads(),
            sums("Identity none -> one"),
        ],
    );
}

/// Of a batch each sequence has its own number of keys: new ones come directly behind them, and what is behind those stays.
#[test]
fn grouped_attention_of_a_batch_has_keys_where_each_sequence_ends() {
    let operands = [
        ("q0x", of("q", &[2, 1, 8])),
        ("k0x", of("k", &[2, 1, 4])),
        ("v0x", of("v", &[2, 1, 4])),
        ("pk", of("pk", &[2, 2, 4, 2])),
        ("pv", of("pv", &[2, 2, 4, 2])),
        ("last", whole(&[2], &[4, 2])),
    ];
    let along = || vec![("axis", I(2))];
    let mut placed: Vec<Node> = vec![];
    for [past, new, first, second, own, whole, short, rest, all] in [
        [
            "Split pk -> pa pb",
            "Split k1 -> na nb",
            "Identity pa -> a0",
            "Split pb parts -> b0 gone b2",
            "Concat a0 na -> a",
            "Identity a -> aa",
            "Concat b0 nb b2 -> b",
            "Pad b more -> bb",
            "Concat aa bb -> pk1",
        ],
        [
            "Split pv -> va vb",
            "Split v1 -> ma mb",
            "Identity va -> c0",
            "Split vb parts -> d0 lost d2",
            "Concat c0 ma -> c",
            "Identity c -> cc",
            "Concat d0 mb d2 -> d",
            "Pad d more -> dd",
            "Concat cc dd -> pv1",
        ],
    ] {
        let batch = || vec![("axis", I(0))];
        placed.extend([
            (past, batch()),
            (new, batch()),
            (first, vec![]),
            (second, along()),
            (own, along()),
            (whole, vec![]),
            (short, along()),
            (rest, vec![]),
            (all, batch()),
        ]);
    }
    let hidden = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1e30, -1e30];
    let mut nodes = grouped_heads();
    nodes[0].0 = "Reshape q0x single -> q0";
    let mut attended = attended();
    if let Some(last) = attended.last_mut() {
        last.0 = "Reshape h1 row -> y";
    }
    check(
        "GroupQueryAttention q0x k0x v0x pk pv last total -> y pk1 pv1",
        &[("num_heads", I(4)), ("kv_num_heads", I(2))],
        &operands,
        vec![
            ints("single", &[4], &[2, 1, 4, 2]),
            ints("fewer", &[4], &[2, 1, 2, 2]),
            ints("row", &[3], &[2, 1, 8]),
            ints("pairs", &[4], &[0, 0, 1, 1]),
            ints("parts", &[3], &[2, 1, 1]),
            ints("more", &[8], &[0, 0, 0, 0, 0, 0, 1, 0]),
            total(5),
            floats("m", &[2, 1, 1, 5], &hidden),
        ],
        &[nodes, placed, shared_heads(), attended],
    );
}

#[test]
fn attention_of_other_kinds_is_refused() {
    let x = || value("x", FLOAT, &[D::N(2), D::N(3), D::N(8)]);
    let refusal = |text: &str, attributes: &[(&str, A)]| {
        let node = op(text, attributes).bytes(7, "com.microsoft");
        let constants = vec![
            floats("w", &[8, 24], &[0.5; 192]),
            floats("p", &[1], &[0.0]),
            floats("c", &[5], &[0.0; 5]),
        ];
        let bytes = Message::default()
            .int(1, 8)
            .message(7, graph(vec![node], constants, vec![x()], vec![result("y")]))
            .message(8, opset("", 17))
            .message(8, opset("com.microsoft", 1))
            .0;
        import(&bytes, &ImportOptions::default()).unwrap_err().to_string()
    };
    for (text, attributes, expected) in [
        ("Attention x w -> y", vec![], "no attribute num_heads"),
        (
            "Attention x w -> y",
            vec![("num_heads", I(0))],
            "num_heads is 0; expected it from 1",
        ),
        (
            "Attention x w -> y",
            vec![("num_heads", I(3))],
            "a hidden size of 8; expected a multiple of 3 heads",
        ),
        (
            "Attention x w -> y",
            vec![("num_heads", I(2)), ("qkv_hidden_sizes", Is(vec![8, 8]))],
            "expected 3",
        ),
        (
            "Attention x w -> y p",
            vec![("num_heads", I(2)), ("qkv_hidden_sizes", Is(vec![8, 8, 4]))],
            "8 elements of keys and 4 of values",
        ),
        (
            "Attention x w -> y",
            vec![("num_heads", I(2)), ("do_rotary", I(1))],
            "expected do_rotary of 0",
        ),
        (
            "Attention x w _ c -> y",
            vec![("num_heads", I(2))],
            "expected one or two numbers for each of it",
        ),
        (
            "MultiHeadAttention x -> y",
            vec![("num_heads", I(2))],
            "a query of rank 3, for a key none",
        ),
        (
            "MultiHeadAttention x x x _ _ _ w -> y",
            vec![("num_heads", I(2))],
            "expected both",
        ),
        (
            "MultiHeadAttention x x x _ _ _ _ _ p -> y",
            vec![("num_heads", I(2))],
            "a past_sequence_length without a past",
        ),
        (
            "RotaryEmbedding x x w w -> y",
            vec![("scale", F(2.0))],
            "a scale of rotary embedding; expected 1",
        ),
        (
            "FusedConv x w -> y",
            vec![("activation", A::T("Relu"))],
            "expected one rank",
        ),
        (
            "FusedGemm w w -> y",
            vec![("activation", A::T("LeakyRelu")), ("transB", I(1))],
            "0 parameters of the activation LeakyRelu; expected 1",
        ),
        (
            "FusedGemm w w -> y",
            vec![("activation", A::T("Swish")), ("transB", I(1))],
            "the activation `Swish`",
        ),
    ] {
        let found = refusal(text, &attributes);
        assert!(found.contains(expected), "{text}: {found}");
    }
}
