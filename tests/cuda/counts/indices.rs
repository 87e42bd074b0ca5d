//! Elementwise kernels whose tensors lie otherwise than their results: what a thread computes of indices takes as few instructions as where they do not.

use super::{Counted, PLAIN};

/// Graphs and what they may cost.
pub const COUNTED: &[Counted] = &[
    Counted {
        name: "bias of columns",
        text: "graph @f(%x: f32[256, 1024], %b: f32[1024]) {
           %0 = expand %b : f32[256, 1024]
           %1 = add %x, %0 : f32[256, 1024]
           return %1
         }",
        // Two loads, a store, four additions, and five.
        instructions: Some(120),
        sectors: 151,
        access_bytes: 16,
        ..PLAIN
    },
    Counted {
        name: "bias of rows",
        text: "graph @f(%x: f32[256, 1024], %b: f32[256]) {
           %0 = reshape %b : f32[256, 1]
           %1 = expand %0 : f32[256, 1024]
           %2 = add %x, %1 : f32[256, 1024]
           return %2
         }",
        instructions: Some(120),
        sectors: 104,
        access_bytes: 11,
        ..PLAIN
    },
    Counted {
        name: "bias of channels",
        text: "graph @f(%x: f32[8, 64, 28, 28], %b: f32[64]) {
           %0 = reshape %b : f32[64, 1, 1]
           %1 = expand %0 : f32[8, 64, 28, 28]
           %2 = add %x, %1 : f32[8, 64, 28, 28]
           return %2
         }",
        instructions: Some(120),
        sectors: 106,
        access_bytes: 11,
        ..PLAIN
    },
    Counted {
        name: "bias of channels 27",
        text: "graph @f(%x: f32[8, 64, 27, 27], %b: f32[64]) {
           %0 = reshape %b : f32[64, 1, 1]
           %1 = expand %0 : f32[8, 64, 27, 27]
           %2 = add %x, %1 : f32[8, 64, 27, 27]
           return %2
         }",
        // Eight loads, four stores, four additions, and five.
        instructions: Some(210),
        sectors: 118,
        access_bytes: 4,
        ..PLAIN
    },
    Counted {
        name: "two biases",
        text: "graph @f(%x: f32[16, 64, 256], %y: f32[16, 256], %z: f32[64]) {
           %0 = reshape %y : f32[16, 1, 256]
           %1 = expand %0 : f32[16, 64, 256]
           %2 = reshape %z : f32[64, 1]
           %3 = expand %2 : f32[16, 64, 256]
           %4 = mul %x, %3 : f32[16, 64, 256]
           %5 = add %4, %1 : f32[16, 64, 256]
           return %5
         }",
        // Three loads, a store, eight operations, and five.
        instructions: Some(170),
        sectors: 156,
        access_bytes: 13,
        ..PLAIN
    },
    Counted {
        name: "outer product",
        text: "graph @f(%x: f32[512], %y: f32[512]) {
           %0 = reshape %x : f32[512, 1]
           %1 = expand %0 : f32[512, 512]
           %2 = expand %y : f32[512, 512]
           %3 = mul %1, %2 : f32[512, 512]
           return %3
         }",
        instructions: Some(120),
        sectors: 210,
        access_bytes: 11,
        ..PLAIN
    },
    Counted {
        name: "heads",
        text: "graph @f(%x: f32[8, 128, 12, 64]) {
           %0 = permute %x {axes=[0, 2, 1, 3]} : f32[8, 12, 128, 64]
           return %0
         }",
        // A load, a store, and five.
        instructions: Some(70),
        access_bytes: 16,
        ..PLAIN
    },
    Counted {
        name: "axes turned 33x65",
        text: "graph @f(%x: f32[33, 65, 128]) {
           %0 = permute %x {axes=[1, 0, 2]} : f32[65, 33, 128]
           return %0
         }",
        instructions: Some(70),
        access_bytes: 15,
        ..PLAIN
    },
    Counted {
        name: "ragged",
        text: "graph @f(%x: f32[257, 1021], %y: f32[257, 1021]) {
           %0 = add %x, %y : f32[257, 1021]
           return %0
         }",
        instructions: Some(120),
        access_bytes: 15,
        ..PLAIN
    },
    Counted {
        name: "ragged bias",
        text: "graph @f(%x: f32[257, 1021], %b: f32[1021]) {
           %0 = expand %b : f32[257, 1021]
           %1 = add %x, %0 : f32[257, 1021]
           return %1
         }",
        instructions: Some(210),
        sectors: 160,
        access_bytes: 3,
        ..PLAIN
    },
    Counted {
        name: "part of rows",
        text: "graph @f(%x: f32[256, 1024]) {
           %0 = slice %x {start=[0, 256], step=[1, 1]} : f32[256, 512]
           %1 = add %0, %0 : f32[256, 512]
           return %1
         }",
        instructions: Some(110),
        access_bytes: 16,
        ..PLAIN
    },
    Counted {
        name: "every other row",
        text: "graph @f(%x: f32[512, 1024]) {
           %0 = slice %x {start=[0, 0], step=[2, 1]} : f32[256, 1024]
           return %0
         }",
        instructions: Some(70),
        access_bytes: 16,
        ..PLAIN
    },
    Counted {
        name: "below a diagonal",
        text: "graph @f(%x: f32[256, 256]) {
           %i = iota {axis=0} : i64[256, 256]
           %j = iota {axis=1} : i64[256, 256]
           %m = lt %j, %i : bool[256, 256]
           %c = const 0.0 : f32[]
           %e = expand %c : f32[256, 256]
           %0 = select %m, %x, %e : f32[256, 256]
           return %0
         }",
        // A load, a store, four comparisons and as many choices, and five.
        instructions: Some(150),
        access_bytes: 16,
        ..PLAIN
    },
    Counted {
        name: "rows by index",
        text: "graph @f(%x: f32[1000, 256], %i: i64[512]) {
           %0 = gather %x, %i {axes=[0]} : f32[512, 256]
           return %0
         }",
        // Two loads, a store, what says whether a row is one and where it is, and five.
        instructions: Some(120),
        access_bytes: 11,
        ..PLAIN
    },
    Counted {
        name: "images padded",
        text: "graph @f(%x: f32[8, 64, 28, 28]) {
           %0 = pad %x {lo=[0, 0, 1, 1], hi=[0, 0, 1, 1], value=0.0} : f32[8, 64, 30, 30]
           return %0
         }",
        // Four loads, four stores, what says of each whether it is padding (two differences, two comparisons, and both), and five.
        instructions: Some(330),
        sectors: 151,
        access_bytes: 3,
        ..PLAIN
    },
    Counted {
        name: "rows padded",
        text: "graph @f(%x: f32[254, 1024]) {
           %0 = pad %x {lo=[1, 0], hi=[1, 0], value=0.0} : f32[256, 1024]
           return %0
         }",
        // A load, a store, what says whether it is padding, and five.
        instructions: Some(100),
        access_bytes: 15,
        ..PLAIN
    },
    Counted {
        name: "sum bf16",
        text: "graph @f(%x: bf16[64, 1024], %y: bf16[64, 1024]) {
           %0 = add %x, %y : bf16[64, 1024]
           return %0
         }",
        // Two loads, a store, and five; eight sums of f32 of 16 halves of words, and four roundings of pairs.
        instructions: Some(520),
        access_bytes: 16,
        ..PLAIN
    },
    Counted {
        name: "any length",
        text: "graph @f(%x: f32[n], %y: f32[n]) where n in 1..=100000000 {
           %0 = add %x, %y : f32[n]
           return %0
         }",
        instructions: Some(120),
        symbols: &[200003],
        access_bytes: 15,
        ..PLAIN
    },
    Counted {
        name: "any rows",
        text: "graph @f(%x: f32[n, 1024], %b: f32[1024]) where n in 1..=100000000 {
           %0 = expand %b : f32[n, 1024]
           %1 = add %x, %0 : f32[n, 1024]
           return %1
         }",
        instructions: Some(120),
        sectors: 151,
        symbols: &[256],
        access_bytes: 16,
        ..PLAIN
    },
    Counted {
        name: "any sizes",
        text: "graph @f(%x: f32[n, m], %b: f32[m]) {
           %0 = expand %b : f32[n, m]
           %1 = add %x, %0 : f32[n, m]
           return %1
         }",
        // Of each thread's one element two loads, a store, a sum, and what any may have: setup and five.
        each: Some(33),
        sectors: 151,
        symbols: &[256, 1024],
        access_bytes: 4,
        ..PLAIN
    },
];
